"""Up to where the site has settled what a coordinator's mirror holds of it."""

from sqlalchemy import Column, Connection, Integer, String, Table, bindparam, select
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_participant.store.tables import METADATA

MIRRORS = Table(
    "participant_mirror",
    METADATA,
    Column("coordinator", String(64), primary_key=True),
    Column("entry", Integer, nullable=False),  # every receipt of ours up to this entry of its mirror is settled here
)

_MIRROR = select(MIRRORS.c.entry).where(MIRRORS.c.coordinator == bindparam("coordinator"))


def mirror_entry(connection: Connection, coordinator: str) -> int:
    """The entry of a coordinator's mirror up to which everything is settled; 0 at first."""
    return int(connection.execute(_MIRROR, {"coordinator": coordinator}).scalar() or 0)


def keep_mirror_entry(connection: Connection, coordinator: str, entry: int) -> None:
    """Remember that entry."""
    statement = upsert(MIRRORS).values(coordinator=coordinator, entry=entry)
    connection.execute(statement.on_conflict_do_update(index_elements=["coordinator"], set_={"entry": entry}))
