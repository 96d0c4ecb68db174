"""How soon a participant dials again: at once after a session that was lost, ever later after one that can only fail again."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.federation import TestBed, make_bed, make_data
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.process.steady_clock import RETURN_SECONDS
from veilsum_participant.boundary.front import Status
from veilsum_participant.front.answering import in_process
from veilsum_participant.session import client as module
from veilsum_participant.session.channel import UndeliveredError
from veilsum_participant.session.client import FIRST_BACKOFF, Client

GROWING = [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
SAME = [FIRST_BACKOFF] * len(GROWING)


class _LostError(UndeliveredError):
    """A connection that broke."""

    def __init__(self) -> None:
        super().__init__(Status.UNAVAILABLE, "")


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data())


class _Failing(Client):
    """Each session ends at once in an error; pauses are kept instead of waited."""

    fault: Exception | None = None
    opens = True
    good_session = -1

    def __init__(self, bed: TestBed) -> None:
        super().__init__(bed.sites["a"], in_process)
        self.pauses: list[float] = []

    def _session(self) -> None:
        self._opened = self.opens
        fault = _LostError() if len(self.pauses) == self.good_session else self.fault
        if fault is not None:
            raise fault

    def _idle(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) == len(GROWING):
            self._stopping.set()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "opens", "expected"),
    [
        (_LostError(), True, SAME),
        (None, True, SAME),  # the coordinator ended it
        (_LostError(), False, GROWING),
        (ConfigurationError("a file is gone"), False, GROWING),
        (DatabaseAwayError("the disk is read only"), True, GROWING),
        (HostileInput("what it says is malformed"), True, GROWING),
        (ArithmeticError("a fault of our own"), True, GROWING),
    ],
    ids=["lost", "ended", "unreachable", "configuration", "disk", "hostile", "internal"],
)
def test_pauses(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch, fault: Exception | None, opens: bool, expected: list[float]
) -> None:
    """A coordinator's hello succeeds in each session that a full disk or a fault of our own ends, so it says nothing."""
    assert GROWING[-1] == RETURN_SECONDS
    monkeypatch.setattr(module, "spread", lambda pause, random: pause)
    client = _Failing(bed)
    client.fault, client.opens = fault, opens
    client.run()
    assert client.pauses == expected


def test_pauses_begin_anew_after_a_session_that_was_only_lost(bed: TestBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "spread", lambda pause, random: pause)
    client = _Failing(bed)
    client.fault, client.good_session = DatabaseAwayError("the disk is full"), 4
    client.run()
    assert client.pauses == [0.5, 1.0, 2.0, 4.0, 0.5, 1.0, 2.0, 4.0]
