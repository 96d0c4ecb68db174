"""A ledger is verified by a process without keys: it says what verification in one process says, and nothing else is taken."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import text

from support.ledgers import credentials_of, make_reservation, open_ledger, set_budget
from support.victims import unconfinable
from veilsum_node.database import Database
from veilsum_node.errors import Unavailable
from veilsum_node.process.confinement import Bounds
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.verifying import MOST_SAID, LedgerSaid
from veilsum_participant.session.launcher import LaunchStarter
from veilsum_participant.worker.verifying import examine_apart, examined


class Apart:
    """A confined fork that verifies once it is asked; made before this process opens the state, as the launcher's is."""

    def __init__(self) -> None:
        heard, self._asking = os.pipe()
        self._says, told = os.pipe()
        self._child = os.fork()
        if not self._child:
            place, authority = json.loads(os.read(heard, 1 << 16))
            state = Path(place)
            bounds = Bounds(read=tuple(state.with_name(f"{state.name}{suffix}") for suffix in ("", "-wal", "-shm")))
            examine_apart(told, bounds, state, bytes.fromhex(authority))
        os.close(told)
        os.close(heard)

    def ask(self, state: Path, authority: bytes) -> LedgerSaid:
        os.write(self._asking, json.dumps([str(state), authority.hex()]).encode())
        os.close(self._asking)
        with os.fdopen(self._says, "rb") as words:
            said = words.read()
        assert os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1]) == 0
        return read(said, LedgerSaid)


def edit(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(text("DROP TRIGGER IF EXISTS ledger_no_update"))
        connection.execute(text("UPDATE ledger SET cohort_size = 2 WHERE kind = 'charge'"))


@pytest.mark.parametrize("case", ["whole", "edited", "another authority", "gone"])
def test_a_confined_fork_says_what_one_process_says(tmp_path: Path, case: str) -> None:
    if reason := unconfinable():
        pytest.skip(reason)
    apart, state = Apart(), tmp_path / "participant.db"
    ledger = open_ledger(str(state))
    first = make_reservation(1)
    set_budget(ledger, 3.0)
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, first)
        ledger.charge(connection, first.context)
    authority = credentials_of().authority
    match case:
        case "edited":
            edit(ledger.database)
        case "another authority":
            authority = credentials_of(of="others").authority
        case "gone":
            state = state.with_name("gone.db")
    said = apart.ask(state, authority.public_bytes(Encoding.DER))
    assert said == examined(state, authority)
    found = (said.entries, "Ledger entry 4 fails" in said.fault, "another federation" in said.fault, bool(said.unread))
    assert found == (4 * (case == "whole"), case == "edited", case == "another authority", case == "gone")


WHOLE = LedgerSaid(entries=4, receipts=1, set_back=(3,))


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (WHOLE.to_bytes(), True),
        (LedgerSaid(fault="x").to_bytes(), True),
        (LedgerSaid(unread="x").to_bytes(), True),
        (b"", False),  # it ended before it said anything
        (LedgerSaid(receipts=3).to_bytes(), False),  # neither proven nor at fault
        (LedgerSaid(fault="x" * 4000).to_bytes()[:-1], False),
        (WHOLE.to_bytes() + b"\x32\x00", False),  # a field that there is not
        (replace(WHOLE, set_back=tuple(range(1, 21))).to_bytes() + LedgerSaid(set_back=(1,)).to_bytes(), False),
        (b"\x08" + b"\xff" * 9 + b"\x01", False),  # a number beyond its bound
        (LedgerSaid(fault="x").to_bytes() * (MOST_SAID // 3 + 1), False),
    ],
)
def test_of_what_a_process_says_a_guard_takes_a_result_and_nothing_else(said: bytes, taken: bool) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def launch() -> None:
        assert json.loads(theirs.recv(1024)) == {"verify": "00ff"}
        says, told = os.pipe()
        socket.send_fds(theirs, [b'{"number": 1}'], [says])
        os.close(says)
        with os.fdopen(told, "wb") as words:
            words.write(said)

    launching = Thread(target=launch)
    launching.start()
    with ours, theirs:
        if taken:
            assert LaunchStarter(ours).verify(b"\x00\xff") == read(said, LedgerSaid)
        else:
            with pytest.raises(Unavailable, match="nothing that there is to say"):
                LaunchStarter(ours).verify(b"\x00\xff")
        launching.join()
