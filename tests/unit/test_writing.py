"""Transactions that nobody who holds a lock may wait out: bounded, in order, and known to be late when they are."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import Connection

from support.federation import make_bed
from support.network import PATIENCE, wait_for
from veilsum_coordinator.storage import journal as journal_module
from veilsum_coordinator.storage import outage as module
from veilsum_coordinator.storage.journal import NotStoredError
from veilsum_coordinator.storage.outage import Outage, Writer
from veilsum_coordinator.storage.records import boxes_data
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import StateError
from veilsum_privacy.securesum.boxes import Box


class Silent:
    """Work that answers when it is let."""

    def __init__(self, order: list[str], error: Exception | None = None) -> None:
        self.go, self.ended = threading.Event(), threading.Event()
        self._order, self._error = order, error

    def __call__(self) -> str:
        assert self.go.wait(PATIENCE)
        self._order.append("silent")
        self.ended.set()
        if self._error is not None:
            raise self._error
        return "done"


def test_results_and_errors_are_the_callers() -> None:
    writer = Writer(lambda: pytest.fail("nothing was late"))

    def refuse() -> None:
        raise StateError("No.")

    assert [writer.run(lambda value=value: value, 20) for value in (1, 2)] == [1, 2]  # type: ignore[misc]
    with pytest.raises(StateError, match="No"):
        writer.run(refuse, 20)
    assert writer.run(threading.get_ident, 20) != threading.get_ident()


def test_a_silent_one_is_left_and_nothing_overtakes_it() -> None:
    late, order = threading.Event(), list[str]()
    writer, silent = Writer(late.set), Silent(order)
    with pytest.raises(DatabaseAwayError, match="has not answered for"):
        writer.run(silent, 0.01)
    for _ in range(3):
        with pytest.raises(DatabaseAwayError, match="not answered yet"):
            writer.run(lambda: order.append("overtook"), 20)
    silent.go.set()
    assert late.wait(PATIENCE)
    writer.run(lambda: order.append("next"), 20)
    assert order == ["silent", "next"]


def test_a_late_failure_is_no_answer() -> None:
    late = threading.Event()
    writer, silent = Writer(late.set), Silent([], StateError("No."))
    with pytest.raises(DatabaseAwayError):
        writer.run(silent, 0.01)
    silent.go.set()
    assert silent.ended.wait(PATIENCE)
    while True:
        try:
            writer.run(lambda: None, 20)
        except DatabaseAwayError:  # it is just about to end
            continue
        break
    assert not late.is_set()


def test_an_outage_is_over_when_a_late_answer_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOLD_SECONDS", 0.01)
    monkeypatch.setattr(module, "REST_SECONDS", 600.0)
    outage, silent = Outage(60), Silent([])
    with pytest.raises(DatabaseAwayError):
        outage.bounded(silent)
    assert outage.away
    with pytest.raises(DatabaseAwayError, match="temporarily unreachable"):
        outage.bounded(lambda: pytest.fail("the rest is not over"))
    silent.go.set()
    while outage.away:
        assert silent.ended.wait(PATIENCE)
    monkeypatch.setattr(module, "HOLD_SECONDS", 20.0)
    assert outage.bounded(lambda: "here") == "here"


def test_boxes_that_were_stored_late_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that always takes longer than its caller may wait would otherwise be tried for ever."""
    bed = make_bed(tmp_path, {name: (np.zeros((4, 1)), np.zeros(4, dtype=np.int64)) for name in "ab"})
    journal, writes, go = bed.hub.journal, list[bytes](), threading.Event()
    monkeypatch.setattr(journal, "_try", journal.outage.bounded)
    monkeypatch.setattr(module, "HOLD_SECONDS", 0.05)

    def slow(connection: Connection, study: bytes, name: str, data: bytes) -> None:
        assert go.wait(PATIENCE)
        writes.append(data)

    monkeypatch.setattr(journal_module, "write_boxes", slow)
    study, first, other = bytes(32), *([Box("a", "b", text, b"")] for text in (b"1", b"2"))
    with pytest.raises(NotStoredError):
        journal.keep_boxes(study, "a", first)
    with pytest.raises(NotStoredError):  # the first is under way
        journal.keep_boxes(study, "a", first)
    go.set()
    wait_for(lambda: not journal.outage.away, "the late write")
    monkeypatch.setattr(module, "HOLD_SECONDS", 20.0)
    journal.keep_boxes(study, "a", first)
    assert writes == [boxes_data(first)]
    journal.keep_boxes(study, "a", other)
    assert writes == [boxes_data(first), boxes_data(other)]
