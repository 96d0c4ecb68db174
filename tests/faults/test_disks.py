"""Disks that fill up, fail or can only be read, under a participant's state and under the coordinator's: real file systems.

Whatever happens: no consent without its durable charge, none twice, every ledger verifies, the log says what to do and the
health which party it is; the study goes on when there is room again, or ends with its reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.disks import limit_files
from support.faulted import COORDINATOR, FaultedProcesses, faulted_processes
from support.federation import make_request, make_wide_data, wide_schema
from support.network import PATIENCE, wait_for
from support.processes import count, open_contexts
from support.proxy import BEFORE_CONSENT
from veilsum_coordinator.protocol.settings import Waits
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.results.result import load_result

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=60, consent=120, check=100, grace=100, database=60)
"""The one that passes here is contribute, with a disk that stays full; the others are for slow machines."""

BEFORE_UPLOAD = 20_000


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultedProcesses]:
    directory = tmp_path_factory.mktemp("federation")
    with faulted_processes(directory, make_wide_data(NAMES), waits=WAITS, on_disks=("c", COORDINATOR)) as processes:
        yield processes


@pytest.fixture(autouse=True)
def healthy(request: pytest.FixtureRequest) -> None:
    if "network" in request.fixturenames:
        network: FaultedProcesses = request.getfixturevalue("network")
        for disk in network.disks.values():
            disk.free()
        network.heal()


def _submit(network: FaultedProcesses, **privacy: Any) -> bytes:
    """With noise: without it no cohort may differ by one from an earlier one."""
    return network.submit(network.compile(make_request(wide_schema(), **privacy)))


def _check_finished(network: FaultedProcesses, key: bytes) -> None:
    status = network.await_end(key)
    assert (status.phase, status.reason) == ("finished", "")
    (release,) = network.releases(key)
    assert release.cohort == tuple(NAMES)
    network.audit(key, charged=NAMES, released=NAMES)


class _Full:
    """A disk without room."""

    def __init__(self, network: FaultedProcesses, name: str) -> None:
        self._network, self._name = network, name

    def begin(self) -> None:
        self._network.fill(self._name)

    def end(self) -> None:
        self._network.disks[self._name].free()

    word = "is out of space"


class _Limited:
    """Every write fails (EFBIG): the process may not make any file larger than nothing."""

    def __init__(self, network: FaultedProcesses, name: str) -> None:
        process = network.participants.get(name) or network.coordinator
        assert process is not None
        self._pid = process.pid

    def begin(self) -> None:
        limit_files(self._pid, 0)

    def end(self) -> None:
        limit_files(self._pid, None)

    word = ""  # the log cannot be written either


@pytest.mark.system
def test_full_before_enrolment(network: FaultedProcesses) -> None:
    start = len(network.log("c"))
    network.fill("c")
    key = _submit(network)
    network.await_status(key, lambda shown: len(shown.enrolled) == 2, "two enrolments")
    line = network.await_log("c", "state cannot be written", start)
    assert "is out of space" in line
    assert "Free space on the disk" in line
    network.await_health("c", "database")
    assert network.study_row("c", key) is None
    network.disks["c"].free()
    network.await_log("c", "can be written again", start)
    network.await_health("c", "")
    _check_finished(network, key)


def _stall_upload(network: FaultedProcesses, **privacy: Any) -> bytes:
    """A study in which c has its payload and has sent its first bytes."""
    network.proxies["c"].limit(BEFORE_UPLOAD)
    key = _submit(network, **privacy)
    wait_for(network.proxies["c"].stalled.is_set, "the third participant at its limit")
    wait_for(lambda: set(network.attempt_states(key).values()) == {"payload"}, "three payloads")
    return key


@pytest.mark.system  # histories have disks that fail there by default
@pytest.mark.parametrize("fault", [_Full, pytest.param(_Limited, marks=pytest.mark.system)])
def test_failing_between_payload_and_charge(network: FaultedProcesses, fault: Callable[..., _Full]) -> None:
    """It pays and consents when it can, and the others wait for it."""
    start = len(network.log("c"))
    key = _stall_upload(network)
    failing = fault(network, "c")
    failing.begin()
    network.proxies["c"].release()
    network.await_round(key, "checking")
    network.await_health("c", "database")
    time.sleep(1)
    assert network.attempt_states(key)["c"] == "payload"
    assert count(network.entries("c", key), Kind.CHARGE) == 0
    assert network.status(key).rounds[-1].phase == "checking"
    failing.end()
    _check_finished(network, key)
    network.await_health("c", "")
    assert failing.word in network.log("c")[start:]


@pytest.mark.system
def test_full_when_the_release_is_told(network: FaultedProcesses) -> None:
    """Nobody else waits for it, and it is kept when there is room."""
    key = _stall_upload(network)
    network.proxies["b"].limit(BEFORE_CONSENT)
    network.proxies["c"].release()
    wait_for(network.proxies["b"].stalled.is_set, "another's consent at its limit")
    wait_for(lambda: network.attempt_states(key)["c"] == "consented", "the third participant's charge")
    network.participants["c"].pause()
    network.fill("c")
    network.participants["c"].resume()
    network.proxies["b"].release()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    network.await_health("c", "database")
    entries = network.entries("c", key)
    assert (count(entries, Kind.CHARGE), count(entries, Kind.RELEASE_SEEN)) == (1, 0)
    network.disks["c"].free()
    _check_finished(network, key)


@pytest.mark.system
@pytest.mark.parametrize("leave", [0, 40_000])
def test_full_at_the_reservation_and_at_the_payload(network: FaultedProcesses, leave: int) -> None:
    """With some room left there is enough for the reservation, not for the payload: what was drawn is kept in hand."""
    key = _submit(network)
    wait_for(lambda: (network.study_row("c", key) or {}).get("status") == "ready", "keys")
    network.fill("c", leave)
    network.await_health("c", "database")
    network.disks["c"].free()
    _check_finished(network, key)
    assert len(network.attempts("c", key)) == 1


@pytest.mark.system
def test_full_for_longer_than_the_others_wait(network: FaultedProcesses) -> None:
    """A study that allows it goes on without the site, which is charged nothing."""
    key = _stall_upload(network, min_cohort=2)
    network.fill("c")
    status = network.await_status(key, lambda shown: shown.phase == "failed" or shown.rounds[-1].attempts == 2, "a deadline")
    assert status.phase != "failed", status.reason
    network.disks["c"].free()
    network.proxies["c"].release()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    network.audit(key, charged="ab", released="ab")


@pytest.mark.system
def test_the_coordinators_disk_is_full_at_every_step(network: FaultedProcesses) -> None:
    """Submission, sum, consents, release and result wait for room; what is decided is written before anyone acts on it."""
    disk, start = network.disks[COORDINATOR], len(network.log(COORDINATOR))
    study = network.compile(make_request(wide_schema(), epsilon=None))
    keys: list[bytes] = []
    network.fill(COORDINATOR)
    sender = threading.Thread(target=lambda: keys.append(network.submit(study)))
    network.proxies["c"].limit(BEFORE_UPLOAD)
    sender.start()
    line = network.await_log(COORDINATOR, "is out of space", start)
    assert "Free space on the disk" in line
    network.await_health(COORDINATOR, "database")
    assert not keys
    disk.free()
    sender.join(PATIENCE)
    (key,) = keys
    wait_for(network.proxies["c"].stalled.is_set, "the third participant at its limit")
    network.await_health(COORDINATOR, "")
    network.fill(COORDINATOR)
    network.proxies["c"].release()
    network.await_health(COORDINATOR, "database")
    assert set(network.attempt_states(key).values()) == {"payload"}
    assert not network.kept_sums(key)
    disk.free()
    _check_finished(network, key)
    network.await_health(COORDINATOR, "")
    load_result(disk.root / "results" / key.hex())
    assert not list((disk.root / "results" / key.hex()).glob(".*"))


@pytest.mark.system
def test_a_full_folder_of_results(network: FaultedProcesses) -> None:
    """Everybody has paid: the result waits for room."""
    results = network.disks[COORDINATOR].root / "results"
    key = _stall_upload(network)
    results.mkdir(exist_ok=True)
    (results / key.hex()).write_text("")  # nothing can be made below it
    network.proxies["c"].release()
    line = network.await_log(COORDINATOR, "the result cannot be written")
    assert "retrying for up to 60 s" in line
    assert network.status(key).phase == "running"
    (results / key.hex()).unlink()
    _check_finished(network, key)
    load_result(results / key.hex())


@pytest.mark.system
@pytest.mark.parametrize("read_only", [True, False])
def test_a_participants_disk_fails_for_good(network: FaultedProcesses, read_only: bool) -> None:
    """It says so and answers nothing; stopped, repaired and started again it goes on where it was."""
    start = len(network.log("c"))
    key = _stall_upload(network)
    network.disks["c"].fail(read_only=read_only)
    network.proxies["c"].release()
    line = network.await_log("c", "state cannot be written", start)
    assert "Check the disk" in line or "restore a backup" in line  # what cannot even be read looks damaged
    network.await_health("c", "database")
    assert network.participants["c"].alive
    network.participants["c"].stop()
    network.disks["c"].repair()
    network.start("c")
    status = network.await_end(key)
    if read_only:
        assert (status.phase, status.reason) == ("finished", "")
    if status.phase == "failed":  # a site whose database is damaged answers for nothing, and nobody has paid
        assert "3 are needed (c: internal-error)" in status.reason
    paid = "".join(name for name, state in network.attempt_states(key).items() if state in ("consented", "released"))
    network.audit(key, charged=paid, released=NAMES if status.phase == "finished" else "")


@pytest.mark.system
@pytest.mark.parametrize("read_only", [True, False])
def test_the_coordinators_disk_fails_for_good(network: FaultedProcesses, read_only: bool) -> None:
    key = _stall_upload(network)
    network.disks[COORDINATOR].fail(read_only=read_only)
    network.proxies["c"].release()
    network.await_health(COORDINATOR, "database")
    assert set(network.attempt_states(key).values()) == {"payload"}
    assert network.coordinator is not None
    network.coordinator.stop()
    network.disks[COORDINATOR].repair()
    network.heal()
    _check_finished(network, key)


def _refused_start(network: FaultedProcesses, name: str) -> str:
    start = len(network.log(name))
    role, home = network._home(name)
    process = network.launch(role, home)
    wait_for(lambda: not process.alive, "the end of the process")
    assert process.status == 2, network.log(name)[start:]
    return network.log(name)[start:]


@pytest.mark.system
@pytest.mark.parametrize("name", ["c", COORDINATOR])
def test_started_on_a_disk_that_can_only_be_read(network: FaultedProcesses, name: str) -> None:
    disk = network.disks[name]
    process = network.coordinator if name == COORDINATOR else network.participants[name]
    assert process is not None
    assert process.stop() == 0
    disk.repair("ro")
    before = _files(disk.root)
    said = _refused_start(network, name)
    assert "Read-only file system" in said, said
    assert _files(disk.root) == before
    disk.repair()
    network.heal()
    _check_finished(network, _submit(network))


@pytest.mark.system
@pytest.mark.parametrize("name", ["c", COORDINATOR])
def test_started_on_a_full_disk_for_the_first_time(tmp_path: Path, name: str) -> None:
    """A typed error that says what to do; with room it starts as if nothing had been."""
    with faulted_processes(tmp_path, make_wide_data(NAMES), waits=WAITS, on_disks=(name,)) as network:
        for process in (network.coordinator, *network.participants.values()):
            assert process is not None
            process.stop()
        for path in network.disks[name].root.iterdir():
            if path.is_file():
                path.unlink()
        network.disks[name].fill()
        if name == COORDINATOR:  # it waits for its database, up to waits.database
            start = len(network.log(name))
            process = network.launch(name, network.kit.coordinator.directory)
            assert "Free space on the disk" in network.await_log(name, "is out of space", start)
            process.kill()
        else:
            said = _refused_start(network, name)
            assert "Free space on the disk" in said or "No space left" in said, said
        network.disks[name].free()
        network.heal()
        _check_finished(network, _submit(network))


def _files(root: Path) -> dict[str, int]:
    return {str(path.relative_to(root)): path.stat().st_size for path in root.rglob("*") if path.is_file()}


@pytest.mark.system
def test_nothing_is_left_open(network: FaultedProcesses) -> None:
    """After all that: a study as any other, and every ledger whole."""
    _check_finished(network, _submit(network))
    for name in NAMES:
        assert not open_contexts(network.entries(name, bytes(32)))
