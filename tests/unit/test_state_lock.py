"""The lock beside a state: one process at a time, gone with its holder however that ends, and a word on who holds it."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from support.federation import make_bed
from support.network import PATIENCE
from veilsum_node import state_lock
from veilsum_node.errors import ConfigurationError
from veilsum_node.state_lock import HeldError, StateLock
from veilsum_participant.front.answering import in_process
from veilsum_participant.session.client import Parts, run_participant

LOG = logging.getLogger("veilsum.test")
HOLD = """
import sys
from pathlib import Path
from veilsum_node.state_lock import StateLock
assert not StateLock(Path(sys.argv[1]), "participant north").take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "participant.db"


def test_one_at_a_time_and_again_after_it(state: Path) -> None:
    one, other = StateLock(state, "participant north"), StateLock(state, "participant north")
    assert one.take() == ""
    assert one.take() == ""  # it has it
    assert f"participant north, process {os.getpid()} on" in other.take()
    one.release()
    one.release()
    assert other.take() == ""
    other.release()
    assert stat.S_IMODE(other.path.stat().st_mode) == 0o600


def test_it_ends_with_a_process_that_is_killed(state: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == "held\n"
    mine = StateLock(state, "participant north")
    assert f"process {child.pid} on" in mine.take()
    child.send_signal(signal.SIGKILL)
    child.wait(PATIENCE)
    assert mine.take() == ""
    assert f"process {os.getpid()} on" in mine.path.read_text()
    for pipe in (child.stdin, child.stdout):
        pipe.close()
    mine.release()


def test_a_file_that_was_removed_holds_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and locking: the lock must be on the file that the next one will find."""
    lock, real, calls = StateLock(state, "x"), StateLock._is_there, [True]

    def removed_once(self: StateLock, descriptor: int) -> bool:
        if calls.pop() if calls else False:
            self.path.unlink()
        return real(self, descriptor)

    monkeypatch.setattr(StateLock, "_is_there", removed_once)
    assert lock.take() == ""
    assert "x, process" in StateLock(state, "y").take()
    lock.release()


def test_who_waits_begins_when_the_other_ends(state: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    one, other = StateLock(state, "coordinator hub"), StateLock(state, "coordinator hub")
    one.take()
    threading.Timer(0.2, one.release).start()
    other.hold("Stop it.", LOG)
    assert sum("waiting up to" in record.getMessage() for record in caplog.records) == 1
    stopping = threading.Event()
    stopping.set()
    with pytest.raises(HeldError, match=r"Another process is using .*participant\.db: coordinator hub, process"):
        one.hold("Stop it.", LOG, stopping)
    other.release()


def test_where_there_can_be_no_lock(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be opened"):
        StateLock(tmp_path / "nowhere" / "participant.db", "x").take()


def test_a_second_participant_on_a_ledger_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lock, "HANDOVER_SECONDS", 0.0)
    bed = make_bed(tmp_path, {name: (np.zeros((4, 2)), np.zeros(4, dtype=np.int64)) for name in "ab"})
    config = bed.sites["a"].config
    first = StateLock(config.state, "participant a")
    first.take()
    entries = len(bed.sites["a"].ledger.entries())
    with pytest.raises(HeldError, match="participant a, process") as caught:
        run_participant(config, Parts(in_process))
    assert "two sites" in caught.value.advice
    assert len(bed.sites["a"].ledger.entries()) == entries
    first.release()
