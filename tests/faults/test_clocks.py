"""Clocks that are set while a round runs, and processes that stand still for longer than every deadline: real processes.

Whatever the clocks do, nobody is charged twice, every wait ends, the ledgers verify, and the logs say what happened.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from support.faulted import COORDINATOR, FaultedProcesses, faulted_processes
from support.federation import make_request, make_wide_data, wide_schema
from support.network import wait_for
from support.processes import open_contexts
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.database_places import open_readonly
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.ledger.verification import verify_ledger

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=100)
"""So long that nobody who is there misses a deadline on a slow machine."""

LATE_UPLOAD, LATE_CONSENT = {"contribute": 40}, {"consent": 20}
"""What passes in the tests of it; all other deadlines stay as long as they are."""

HOUR, DAY = 3600, 86_400
AHEAD = 2 * DAY
"""Everybody is so far ahead of the certificates' first day, so that a clock can be set back."""

BEFORE_UPLOAD = 20_000


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultedProcesses]:
    directory = tmp_path_factory.mktemp("federation")
    with faulted_processes(directory, make_wide_data(NAMES), waits=WAITS, clocks=AHEAD) as processes:
        yield processes


@pytest.fixture(autouse=True)
def healthy(network: FaultedProcesses) -> Iterator[None]:
    network.heal()
    yield
    if network.waits != WAITS:
        network.restart_coordinator(WAITS)
    for clock in network.clocks.values():
        clock.set(AHEAD)


def _hurry(network: FaultedProcesses, shorter: dict[str, int]) -> None:
    """Let some deadlines be so short that a test can wait for them."""
    network.restart_coordinator(WAITS.model_copy(update=shorter))


def _submit(network: FaultedProcesses, **privacy: Any) -> bytes:
    request = make_request(wide_schema(), **privacy)  # with noise: without it no cohort may differ by one from an earlier one
    key: bytes = network.submit(network.compile(request.model_copy(update={"expires_hours": 24 * 60})))
    return key


def _begin(network: FaultedProcesses, min_cohort: int = 2) -> bytes:
    """A study in which c has its payload and has sent its first bytes."""
    network.proxies["c"].limit(BEFORE_UPLOAD)
    key = _submit(network, min_cohort=min_cohort)
    wait_for(network.proxies["c"].stalled.is_set, "the third participant at its limit")
    wait_for(lambda: set(network.attempt_states(key).values()) == {"payload"}, "three payloads")
    return key


def _check_finished(network: FaultedProcesses, key: bytes, cohort: str = NAMES) -> None:
    status = network.await_end(key)
    assert (status.phase, status.reason) == ("finished", "")
    (release,) = network.releases(key)
    assert release.cohort == tuple(cohort)
    network.audit(key, charged=cohort, released=cohort)


def _await_step(network: FaultedProcesses, name: str, change: int, start: int) -> None:
    """The process says by how much its clock was set: to the second, and perhaps after what the test before this one set."""
    told = re.compile(rf"the clock jumped {'forward' if change > 0 else 'back'} by (\d+) s,")

    def says_so() -> bool:
        return any(abs(int(seconds) - abs(change)) <= 1 for seconds in told.findall(network.log(name)[start:]))

    wait_for(says_so, f"a step of {change} s in the log of {name}")


def _answers(network: FaultedProcesses) -> bool:
    try:
        return bool(network.connected())
    except grpc.RpcError:
        return False


def _set_back(network: FaultedProcesses, name: str) -> tuple[int, ...]:
    with open_readonly(network._state(name)) as database:
        return verify_ledger(LedgerReader(database)).set_back


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("c", HOUR, marks=pytest.mark.system),
        pytest.param("c", -HOUR, marks=pytest.mark.system),  # test_steady_clock.py and histories set clocks back by default
        pytest.param("c", DAY, marks=pytest.mark.system),
        pytest.param("c", -DAY, marks=pytest.mark.system),
        pytest.param(COORDINATOR, HOUR, marks=pytest.mark.system),
        pytest.param(COORDINATOR, -HOUR, marks=pytest.mark.system),
        pytest.param(COORDINATOR, DAY, marks=pytest.mark.system),
        pytest.param(COORDINATOR, -DAY, marks=pytest.mark.system),
    ],
)
def test_a_clock_is_set_in_the_middle_of_a_round(network: FaultedProcesses, name: str, change: int) -> None:
    """Waits go on as if it had not been; the ledger bears the new time, and shows where it went back."""
    start = len(network.log(name))
    key = _begin(network)
    before = _set_back(network, "c")
    network.clocks[name].set(AHEAD + change)
    _await_step(network, name, change, start)
    network.proxies["c"].release()
    _check_finished(network, key)
    after = _set_back(network, "c")
    assert (len(after) > len(before)) == (name == "c" and change < 0)


@pytest.mark.system
def test_the_greeting_tells_the_difference(network: FaultedProcesses) -> None:
    start = len(network.log("c"))
    network.clocks["c"].set(AHEAD - HOUR)
    network.proxies["c"].limit(0, cut=True)
    line = network.await_log("c", "the coordinator's clock differs by", start)
    assert line.endswith(("by 3599 s", "by 3600 s", "by 3601 s"))


@pytest.mark.system
@pytest.mark.parametrize("name", ["c", COORDINATOR])
def test_a_clock_before_the_certificates_first_day(network: FaultedProcesses, name: str) -> None:
    """Nothing is signed at such a time: the study ends with its reason or goes on without the site, and nothing is stuck."""
    key = _begin(network)
    start = len(network.log(name))
    network.clocks[name].set(-DAY)
    network.proxies["c"].release()
    network.await_log(name, "not valid yet", start)
    network.clocks[name].set(AHEAD)
    wait_for(lambda: _answers(network), "the coordinator's answer")
    network.heal()
    status = network.await_end(key)
    print(f"{name} a day before the certificates: {status.phase}, {status.reason}")
    assert status.phase == "finished" or status.reason
    for site in NAMES:
        wait_for(lambda site=site: not open_contexts(network.entries(site, key)), site)  # type: ignore[misc]


@pytest.mark.system
def test_a_study_expires_where_the_clock_says_so(network: FaultedProcesses) -> None:
    key = _begin(network)
    network.clocks[COORDINATOR].set(AHEAD + 200 * DAY)
    status = network.await_end(key)
    assert (status.phase, status.reason) == ("failed", "the study expired")
    network.clocks[COORDINATOR].set(AHEAD)
    network.audit(key, charged="")


@pytest.mark.system
@pytest.mark.parametrize("seconds", [LATE_UPLOAD["contribute"] + 10, LATE_UPLOAD["contribute"] + 40])
def test_a_participant_stands_still_in_its_upload(network: FaultedProcesses, seconds: int) -> None:
    """A suspended laptop: the others go on, and it is charged nothing."""
    _hurry(network, LATE_UPLOAD)
    start = len(network.log("c"))
    key = _begin(network)
    network.participants["c"].pause()
    began = time.monotonic()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    network.proxies["c"].release()
    network.participants["c"].resume()
    network.await_log("c", "this process was suspended for", start)
    _check_finished(network, key, "ab")


@pytest.mark.system
def test_a_participant_stands_still_when_consent_is_asked_for(network: FaultedProcesses) -> None:
    """Its answer is in, and the request for its consent comes to a process that does not run."""
    _hurry(network, LATE_CONSENT)
    key = _begin(network)
    network.await_contributions(2)
    network.participants["a"].pause()  # so that nobody is asked for consent yet
    network.proxies["c"].release()
    wait_for(lambda: network.attempts("b", key)[-1]["fixed"] is not None, "an answer of b")
    network.proxies["b"].deafen()
    network.participants["a"].resume()
    network.await_round(key, "consenting")
    network.participants["b"].pause()
    network.proxies["b"].release()
    status = network.await_end(key)
    assert status.phase == "failed"
    assert "no consent from b in time" in status.reason
    assert network.attempt_states(key) == {"a": "consented", "b": "payload", "c": "consented"}
    network.participants["b"].resume()
    network.await_over("b", key)  # which may have had the request at its socket, and consented too late, charged for it
    charged = "".join(name for name, state in network.attempt_states(key).items() if state == "consented")
    network.audit(key, charged=charged)


@pytest.mark.system
@pytest.mark.parametrize("seconds", [LATE_CONSENT["consent"] + 10, 50])
def test_the_coordinator_stands_still(network: FaultedProcesses, seconds: int) -> None:
    """For longer than the deadlines: nobody is held to a time in which it could hear nobody."""
    _hurry(network, LATE_CONSENT | LATE_UPLOAD)
    start = len(network.log(COORDINATOR))
    network.participants["b"].pause()
    key = _submit(network)
    network.participants["b"].resume()
    network.await_status(key, lambda shown: bool(shown.rounds), "a round")
    assert network.coordinator is not None
    network.coordinator.pause()
    time.sleep(seconds)
    network.coordinator.resume()
    network.await_log(COORDINATOR, "this process was suspended for", start)
    wait_for(lambda: _answers(network), "the coordinator's answer")
    _check_finished(network, key)


@pytest.mark.system
@pytest.mark.parametrize("seconds", [2, 50])
def test_everybody_stands_still(network: FaultedProcesses, seconds: int) -> None:
    """All at once, as on one suspended machine; for some seconds, and for longer than a round's waits."""
    _hurry(network, LATE_CONSENT | LATE_UPLOAD)
    key = _begin(network)
    network.proxies["c"].release()
    everyone = [network.coordinator, *network.participants.values()]
    for process in everyone:
        assert process is not None
        process.pause()
    time.sleep(seconds)
    for process in everyone:
        assert process is not None
        process.resume()
    wait_for(lambda: _answers(network), "the coordinator's answer")
    _check_finished(network, key)
