"""The ledger's tables: made anew, or brought up to date from those of a released version, script by script.

Run by :meth:`veilsum_node.database.Database.migrate`.
"""

from veilsum_privacy.ledger.tables import create

__all__ = ["COMPONENT", "HEAD", "PACKAGE", "create"]

HEAD = "0004"
"""The last script."""

COMPONENT = "ledger"
PACKAGE = __name__
