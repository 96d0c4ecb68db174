"""A peer's lines in the log are bounded and counted; nobody else's are touched."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.network import wait_for
from veilsum_coordinator.service.guard import Guard
from veilsum_coordinator.service.metrics import Metrics
from veilsum_node.errors import HostileInput
from veilsum_node.telemetry import log_floods
from veilsum_node.telemetry.log_floods import LINES, MOST_PEERS, SECONDS, FloodFilter, caused_by, start_bounded_logging
from veilsum_node.telemetry.log_writing import LogSettings
from veilsum_node.telemetry.logs import LOGGER


class Scene:
    """A filter on a clock of its own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.told: list[tuple[str, str, int]] = []
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        self.filter = FloodFilter(
            lambda kind, peer, count: self.told.append((kind, peer, count)),
            clock=lambda: self.now,
            wait=lambda seconds, action: self.waiting.append((self.now + seconds, action)),
        )

    def passes(self, kind: str = "rejected calls", peer: str = "a") -> bool:
        record = logging.makeLogRecord({"msg": "x"} | caused_by(kind, peer))
        return bool(self.filter.filter(record))


def test_the_first_lines_pass_and_the_others_are_counted_once_the_minute_is_over() -> None:
    scene = Scene()
    assert [scene.passes() for _ in range(LINES + 7)] == [True] * LINES + [False] * 7
    assert scene.told == []
    ((due, action),) = scene.waiting  # one timer a window, for a peer that goes silent
    assert due == 1000.0 + SECONDS
    scene.now = due
    action()
    assert scene.told == [("rejected calls", "a", 7)]
    assert scene.passes()
    action()
    assert len(scene.told) == 1


def test_a_flood_of_hours_is_told_of_every_minute() -> None:
    scene = Scene()
    passed = 0
    for _ in range(600):  # ten minutes at ten lines a second, in steps
        passed += sum(scene.passes() for _ in range(10))
        scene.now += 1.0
    scene.filter.flush()
    assert passed == 10 * LINES
    assert sum(count for _, _, count in scene.told) == 6000 - passed
    assert len(scene.told) == 10


def test_peers_and_kinds_have_shares_of_their_own_and_other_lines_are_not_bounded() -> None:
    scene = Scene()
    assert not all(scene.passes() for _ in range(LINES + 1))
    assert scene.passes(peer="b")
    assert scene.passes(kind="sessions opened")
    other = logging.makeLogRecord({"msg": "study x finished"})
    assert all(scene.filter.filter(other) for _ in range(3 * LINES))


def test_many_names_do_not_make_it_grow() -> None:
    scene = Scene()
    passed = sum(scene.passes(peer=f"10.0.{number // 256}.{number % 256}") for number in range(3 * MOST_PEERS))
    assert passed == MOST_PEERS + LINES
    assert len(scene.filter._windows) == MOST_PEERS + 1
    scene.now += SECONDS
    assert scene.passes()
    assert len(scene.filter._windows) == 1
    assert scene.told == [("calls", "others", 2 * MOST_PEERS - LINES)]


@pytest.fixture
def restored() -> Iterator[None]:
    root, own = logging.getLogger(), logging.getLogger(LOGGER)
    kept = root.handlers[:], root.level, own.level, logging.raiseExceptions
    yield
    root.handlers[:], logging.raiseExceptions = kept[0], kept[3]
    root.setLevel(kept[1])
    own.setLevel(kept[2])


@pytest.mark.usefixtures("restored")
def test_the_log_of_a_process_has_the_lines_and_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_floods, "SECONDS", 3.0)  # in which a busy machine writes the lines
    path = tmp_path / "log"
    start_bounded_logging(LogSettings(file=path))
    for number in range(LINES + 50):
        extra = caused_by("rejected calls", "alpha")
        logging.getLogger("veilsum.coordinator").warning("rejected (state): %d", number, extra=extra)
    wait_for(lambda: "left out" in path.read_text(), "the count")
    lines = path.read_text().splitlines()
    assert [line.split()[-1] for line in lines[:LINES]] == [str(number) for number in range(LINES)]
    assert len(lines) == LINES + 1
    assert "50 more rejected calls of alpha" in lines[LINES]


class _Call:
    """What the guard asks of a call."""

    @staticmethod
    def auth_context() -> dict[str, list[bytes]]:
        return {"x509_common_name": [b"alpha"]}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.AbortError


def test_a_flood_of_rejected_calls_hides_no_internal_error() -> None:
    """A peer that finds a fault of ours cannot first use up its lines: what went wrong stays in the log with its traceback."""
    guard = Guard(None, lambda: 0, Metrics(lambda: 0))  # type: ignore[arg-type]
    scene, passed = Scene(), logging.getLogger("veilsum.coordinator")
    seen: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    handler = Kept()
    handler.addFilter(scene.filter)
    passed.addHandler(handler)

    async def fails(error: Exception) -> None:
        async def work() -> None:
            raise error

        context: Any = _Call()
        with pytest.raises(grpc.aio.AbortError):
            await guard.unary(context, work)

    async def calls() -> None:
        for _ in range(3 * LINES):
            await fails(HostileInput("malformed"))
        await fails(ArithmeticError("a fault of ours"))

    try:
        asyncio.run(calls())
    finally:
        passed.removeHandler(handler)
    assert [record.levelname for record in seen] == ["WARNING"] * LINES + ["ERROR"]
    assert seen[-1].exc_info is not None
    scene.filter.flush()
    assert scene.told == [("rejected calls", "alpha", 2 * LINES)]
