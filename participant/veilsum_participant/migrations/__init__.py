"""A participant's tables: made anew, or brought up to date from those of a released version, script by script.

Run by :meth:`veilsum_node.database.Database.migrate`.
"""

from sqlalchemy import Connection

from veilsum_node.database import make_tables
from veilsum_participant.store import attempts, followed, kept, mirrors, pending, populations, studies
from veilsum_participant.store.tables import METADATA

HEAD = "0013"
"""The last script."""

KEEPERS = (attempts, followed, kept, mirrors, pending, populations, studies)
"""The modules that own these tables."""


def create(connection: Connection) -> None:
    """Make all tables as the last script leaves them."""
    make_tables(connection, "participant", METADATA)
