"""Two coordinators on one database: the second does not begin, and one that lost the database writes nothing any more.

With a real PostgreSQL, whose sessions are ended and whose server is restarted, and with files.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psycopg
import pytest
from pydantic import SecretStr

from support.federation import RealClock, TestBed, make_bed
from support.network import PATIENCE, wait_for
from support.postgres import Server, server
from veilsum_coordinator.protocol.settings import CoordinatorConfig, Waits
from veilsum_coordinator.service import server as server_module
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_coordinator.storage import fence
from veilsum_coordinator.storage.fence import Fence, FencedError
from veilsum_node import state_lock
from veilsum_node.database import open_database
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import ConfigurationError, StateError, Unavailable
from veilsum_node.state_lock import HeldError

STUDY = bytes(32)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_lock, "HANDOVER_SECONDS", 0.3)
    monkeypatch.setattr(fence, "WATCH_SECONDS", 0.05)


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = {name: (np.full((4, 2), 0.25), np.arange(4) % 2) for name in "ab"}
    return make_bed(tmp_path_factory.mktemp("bed"), data, clock=RealClock())


@pytest.fixture(params=["server", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without tables."""
    return server().new_database() if request.param == "server" else str(tmp_path / "coordinator.db")


class Coordinator:
    """A coordinator in a thread of this process."""

    def __init__(self, bed: TestBed, place: str, directory: Path, waits: Waits | None = None) -> None:
        url = SecretStr(place) if "://" in place else None
        state = directory if url is not None else Path(place).parent
        config = CoordinatorConfig(
            listen="localhost:0",
            identity=bed.kit.coordinator.identity,
            state=state,
            database=url,
            waits=waits or Waits(database=20),
        )
        self.server = CoordinatorServer(config)
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self._stop: Callable[[], object] = lambda: None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        async def main() -> None:
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            self._stop = lambda: loop.call_soon_threadsafe(stop.set)
            await self.server.run(stop, on_ready=lambda _: self.ready.set())

        try:
            asyncio.run(main())
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def serves(self) -> Coordinator:
        wait_for(lambda: self.ready.is_set() or self.error is not None, "the coordinator")
        assert self.error is None, self.error
        return self

    def stop(self) -> None:
        if self.thread.is_alive():
            self._stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def coordinators(bed: TestBed, place: str, tmp_path: Path) -> Iterator[Callable[[], Coordinator]]:
    started: list[Coordinator] = []

    def start() -> Coordinator:
        started.append(Coordinator(bed, place, tmp_path / f"state{len(started)}"))
        return started[-1]

    try:
        yield start
    finally:
        for item in started:
            item.stop()


def sessions(place: str) -> list[int]:
    """Of the database: who holds a lock for as long as it runs."""
    with psycopg.connect(place, autocommit=True) as connection:
        query = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted"
        return [row[0] for row in connection.execute(query).fetchall()]


def end_sessions(place: str) -> None:
    with psycopg.connect(place, autocommit=True) as connection:
        for pid in sessions(place):
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def test_a_second_coordinator_does_not_begin(bed: TestBed, place: str, tmp_path: Path) -> None:
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        second = start()
        second.thread.join(PATIENCE)
        assert isinstance(second.error, HeldError)
        assert "Another process is using" in second.error.message
        assert f"{os.getpid()}" in second.error.message
        assert "Stop the other coordinator first" in second.error.advice
        first.server.hub.journal.end_study(STUDY, {}, status=b"")  # the first one's word still holds
        assert first.error is None


def test_the_next_one_begins_as_soon_as_the_last_one_has_ended(
    bed: TestBed, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rolling restart: the new process is started while the old one still ends."""
    monkeypatch.setattr(state_lock, "HANDOVER_SECONDS", 30.0)
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        epoch = first.server._fence.epoch
        second = start()
        time.sleep(0.3)
        assert not second.ready.is_set()
        first.stop()
        assert second.serves().server._fence.epoch == epoch + 1
        with pytest.raises(StateError, match="stopping"):
            first.server.hub.journal.end_study(STUDY, {}, status=b"")


def test_a_coordinator_that_lost_the_database_writes_nothing_and_ends(bed: TestBed, place: str, tmp_path: Path) -> None:
    """Whatever it believes about its lock: here it is not even told that it lost it."""
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        first.server._fence._lock.release()  # the session ended, or the file was removed
        first.server._fence._ending.set()  # and nobody looks after it
        second = start().serves()
        journal = first.server.hub.journal
        with pytest.raises(FencedError, match="taken over the database: coordinator"):
            journal.end_study(STUDY, {}, status=b"")
        with pytest.raises(FencedError), journal.database.transaction():  # nor by any other way that this process has
            pytest.fail("a transaction began")
        first.thread.join(PATIENCE)
        assert isinstance(first.error, FencedError)
        assert first.server.hub.stopping
        second.server.hub.journal.end_study(STUDY, {}, status=b"")


def test_a_transaction_under_way_is_undone_or_comes_first(bed: TestBed, place: str) -> None:
    """The successor's first word waits for a transaction that has begun, and reads what it wrote."""
    one, other = (open_database(place) for _ in range(2))
    first, second = (Fence(place, f"coordinator {name}", bed.clock) for name in ("one", "two"))
    first.hold()
    first.claim(one)
    first._ending.set()
    first._lock.release()
    second.hold()
    order: list[str] = []
    began, go = threading.Event(), threading.Event()

    def write() -> None:
        with one.transaction() as connection:
            began.set()
            go.wait(PATIENCE)
            connection.exec_driver_sql("UPDATE coordinator_fence SET since = 1")
            order.append("first")

    def claim() -> None:
        second.claim(other)
        order.append("second")

    writing, claiming = threading.Thread(target=write), threading.Thread(target=claim)
    writing.start()
    assert began.wait(PATIENCE)
    claiming.start()
    time.sleep(0.2)
    go.set()
    writing.join(PATIENCE)
    claiming.join(PATIENCE)
    assert order == ["first", "second"]
    with pytest.raises(FencedError, match="coordinator two"), one.transaction():
        pytest.fail("a transaction began")
    second.release()


def test_a_lock_that_was_lost_is_taken_again(bed: TestBed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An administrator ends the session: nobody took over meanwhile, so nothing has to end."""
    caplog.set_level("INFO", "veilsum")
    place = server().new_database()
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        before = sessions(place)
        end_sessions(place)
        first.server.hub.journal.end_study(STUDY, {}, status=b"")
        wait_for(lambda: len(found := sessions(place)) == 1 and found != before, "the lock")
        assert first.error is None
        second = start()
        second.thread.join(PATIENCE)
        assert isinstance(second.error, HeldError)
    said = [record.getMessage() for record in caplog.records]
    assert any("the database lock was lost" in text for text in said)


def test_who_waits_takes_over_when_the_session_is_ended(bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pg_terminate_backend while another one stands by: exactly one of the two goes on, and the other ends."""
    monkeypatch.setattr(state_lock, "HANDOVER_SECONDS", 60.0)
    monkeypatch.setattr(state_lock, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(fence, "WATCH_SECONDS", 1.0)
    place = server().new_database()
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        second = start()
        deadline = time.monotonic() + 30
        while not second.ready.is_set() and time.monotonic() < deadline:
            end_sessions(place)
            second.ready.wait(0.3)
        second.serves()
        with pytest.raises((FencedError, StateError)):
            first.server.hub.journal.end_study(STUDY, {}, status=b"")
        first.thread.join(PATIENCE)
        assert isinstance(first.error, FencedError)
        wait_for(lambda: len(sessions(place)) == 1, "the lock")  # its session may have been ended as well
        second.server.hub.journal.end_study(STUDY, {}, status=b"")


def test_a_restart_of_the_server_leaves_one_coordinator(bed: TestBed, tmp_path: Path) -> None:
    """All sessions end with it; the one that ran goes on if nobody else was there."""
    postgres = Server()
    try:
        place = postgres.new_database()
        with coordinators(bed, place, tmp_path) as start:
            first = start().serves()
            postgres.halt(immediate=True)
            postgres.resume()
            wait_for(lambda: len(sessions(place)) == 1, "the lock")
            first.server.hub.journal.outage.wait(
                lambda: first.server.hub.journal._transact(lambda connection: connection.exec_driver_sql("SELECT 1"))
            )
            assert first.error is None
    finally:
        postgres.stop()


def _watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "fence"]


def test_the_lock_is_watched_only_once_a_start_has_gone_well(
    bed: TestBed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that is tried again takes the lock again: a watch of the first try would have taken it beside the second."""
    place = server().new_database()
    watching: list[int] = []
    journal = server_module.SqlJournal

    def fails_twice(*arguments: object) -> object:
        watching.append(len(_watchers()))
        if len(watching) < 3:
            raise DatabaseAwayError("the server went away in the middle of the start")
        return journal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(server_module, "SqlJournal", fails_twice)
    with coordinators(bed, place, tmp_path) as start:
        first = start().serves()
        assert watching == [0, 0, 0]
        assert len(_watchers()) == 1
        assert len(sessions(place)) == 1
        first.server.hub.journal.end_study(STUDY, {}, status=b"")
    assert _watchers() == []
    wait_for(lambda: sessions(place) == [], "the server to see that the session ended")


# -- a start that fails ----------------------------------------------------------------------------------------------------


def test_a_start_that_fails_lets_go_of_everything(bed: TestBed, place: str, tmp_path: Path) -> None:
    """Whatever it fails at after the database is open: the next one begins at once, in the same process too."""
    (tmp_path / "state").mkdir()
    url = SecretStr(place) if "://" in place else None
    state = tmp_path / "state" if url is not None else Path(place).parent
    good = CoordinatorConfig(listen="localhost:0", identity=bed.kit.coordinator.identity, state=state, database=url)
    taken = socket.create_server(("127.0.0.1", 0))
    with taken:
        wrong = {
            "listen": f"127.0.0.1:{taken.getsockname()[1]}",
            "ready_file": tmp_path / "nowhere" / "ready",
        }
        for key, value in wrong.items():
            failed = CoordinatorServer(good.model_copy(update={key: value}))
            with pytest.raises(ConfigurationError, match=str(value)):
                asyncio.run(failed.run(asyncio.Event()))
            with pytest.raises(StateError):
                failed.hub.journal.end_study(STUDY, {}, status=b"")
            if url is not None:
                assert sessions(place) == []
    with coordinators(bed, place, tmp_path) as start:
        assert start().serves().server._fence.epoch == 1 + len(wrong)


@pytest.mark.parametrize(
    "wrong", ["sqlite://", "sqlite:///:memory:", ":memory:", "oracle://host/name", "postgresql://h:port/n"]
)
def test_a_place_where_nothing_lasts_or_that_is_none(wrong: str, bed: TestBed) -> None:
    with pytest.raises(ConfigurationError):
        Fence(wrong, "coordinator hub", bed.clock).hold()


# -- a server that is not there yet ----------------------------------------------------------------------------------------


@pytest.mark.system
def test_a_coordinator_waits_for_its_database(bed: TestBed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever an orchestrator starts first."""
    caplog.set_level("INFO", "veilsum")
    postgres = Server()
    try:
        place = postgres.new_database()
        postgres.halt()
        with coordinators(bed, place, tmp_path) as start:
            first = start()
            wait_for(lambda: first.server._not_ready() == "database", "the word for who asks")
            assert not first.ready.is_set()
            postgres.resume()
            first.serves()
            assert first.server._not_ready() == ""
        assert sum("database unreachable" in record.getMessage() for record in caplog.records) == 1
        assert sum("the database is reachable again" in record.getMessage() for record in caplog.records) == 1
    finally:
        postgres.stop()


def test_it_waits_no_longer_than_it_was_told(bed: TestBed, tmp_path: Path) -> None:
    away = "postgresql://nobody@127.0.0.1:1/none"
    coordinator = Coordinator(bed, away, tmp_path, Waits(database=0))
    coordinator.thread.join(PATIENCE)
    assert isinstance(coordinator.error, Unavailable)
    assert "did not answer within 0 s" in coordinator.error.message
    assert "start the coordinator again" in coordinator.error.advice
    patient = Coordinator(bed, away, tmp_path, Waits(database=600))
    wait_for(lambda: patient.server._not_ready() == "database", "the wait")
    patient.stop()  # told to stop, it does not wait on
    assert patient.error is None
