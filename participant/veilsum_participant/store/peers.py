"""How much of others' accounts the site has seen: peers' receipt numbers, the coordinator's mirror of its own."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Column, Connection, Integer, LargeBinary, String, Table, bindparam, select
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_participant.store.tables import METADATA

PEERS = Table(
    "participant_peer",
    METADATA,
    Column("study", LargeBinary(32), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("head", LargeBinary(32), nullable=False),
)

MIRRORS = Table(
    "participant_mirror",
    METADATA,
    Column("coordinator", String(64), primary_key=True),
    Column("entry", Integer, nullable=False),  # every receipt of ours up to this entry of its mirror is settled here
)

_NUMBERS = select(PEERS.c.name, PEERS.c.number).where(PEERS.c.study == bindparam("study"))
_PEER = upsert(PEERS)
_KEEP_PEER = _PEER.on_conflict_do_update(
    index_elements=["study", "name"], set_={"number": _PEER.excluded.number, "head": _PEER.excluded.head}
)
_MIRROR = select(MIRRORS.c.entry).where(MIRRORS.c.coordinator == bindparam("coordinator"))


def peer_numbers(connection: Connection, study: bytes) -> Counter[str]:
    """The last receipt number seen from each peer in this study; 0 for none."""
    return Counter({str(name): int(number) for name, number in connection.execute(_NUMBERS, {"study": study})})


def keep_peers(connection: Connection, study: bytes, shown: Sequence[tuple[str, int, bytes]]) -> None:
    """Remember peers' receipt numbers and ledger heads, given as (name, number, head)."""
    rows = [{"study": study, "name": name, "number": number, "head": head} for name, number, head in shown]
    connection.execute(_KEEP_PEER, rows)


def mirror_entry(connection: Connection, coordinator: str) -> int:
    """The entry of a coordinator's mirror up to which everything is settled; 0 at first."""
    return int(connection.execute(_MIRROR, {"coordinator": coordinator}).scalar() or 0)


def keep_mirror_entry(connection: Connection, coordinator: str, entry: int) -> None:
    """Remember that entry."""
    statement = upsert(MIRRORS).values(coordinator=coordinator, entry=entry)
    connection.execute(statement.on_conflict_do_update(index_elements=["coordinator"], set_={"entry": entry}))
