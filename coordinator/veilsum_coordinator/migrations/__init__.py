"""The coordinator's tables: made anew, or brought up to date from those of a released version, script by script.

Run by :meth:`veilsum_node.database.Database.migrate`.
"""

from sqlalchemy import Connection

from veilsum_coordinator.storage import fence, journal, long_values, records
from veilsum_node.database import make_tables

HEAD = "0006"
"""The last script."""

KEEPERS = (fence, journal, long_values, records)
"""The modules that own these tables."""


def create(connection: Connection) -> None:
    """Make all tables as the last script leaves them."""
    make_tables(connection, "coordinator", long_values.METADATA)
