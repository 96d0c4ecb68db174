"""The ledger's tables: made anew, or brought up to date from those of a released version, script by script.

Run by :meth:`veilsum_node.database.Database.migrate`.
"""

from sqlalchemy import Connection

__all__ = ["COMPONENT", "HEAD", "PACKAGE", "create"]

HEAD = "0004"
"""The last script."""

COMPONENT = "ledger"
PACKAGE = __name__


def create(connection: Connection) -> None:
    """As :func:`veilsum_privacy.ledger.triggers.create`."""
    from veilsum_privacy.ledger import triggers  # of a ledger that is made anew

    triggers.create(connection)
