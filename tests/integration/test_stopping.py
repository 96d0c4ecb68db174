"""SIGTERM in each phase of a study: processes end by themselves, with status 0, and what was paid for is not lost.

The harness waits 15 s for the end and kills after, which shows in the status: half of what Kubernetes and systemd give.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from support.federation import make_request, make_wide_data, wide_schema
from support.network import wait_for
from support.processes import Processes, count, open_contexts, running_processes
from support.proxy import BEFORE_CONSENT
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.database import open_database
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.tasks.agreed import AgreedStudy

pytestmark = pytest.mark.system  # a clean stop in the middle of a study is in test_killed_coordinator.py by default

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=100)
BEFORE_UPLOAD = 20_000


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    with running_processes(tmp_path_factory.mktemp("federation"), make_wide_data(NAMES), waits=WAITS) as processes:
        yield processes


@pytest.fixture(autouse=True)
def healthy(network: Processes) -> None:
    network.heal()


def log_of(network: Processes, name: str = "") -> str:
    process = network.participants[name] if name else network.coordinator
    assert process is not None
    return process.log.read_text()


def enrolling(network: Processes) -> bytes:
    network.participants["b"].pause()
    key = network.submit(network.compile(make_request(wide_schema(), epsilon=None)))
    network.await_status(key, lambda shown: len(shown.enrolled) == 2, "two enrolments")
    return key


def contributing(network: Processes) -> bytes:
    network.proxies["c"].limit(BEFORE_UPLOAD)
    study = network.compile(make_request(wide_schema(), epsilon=None))
    assert AgreedStudy(study).task("statistics").plan(3, 3).encoding.payload_bytes > 1.2 * BEFORE_UPLOAD
    key = network.submit(study)
    wait_for(network.proxies["c"].stalled.is_set, "the third participant in its upload")
    network.await_contributions(2)
    return key


def checking(network: Processes) -> bytes:
    key = contributing(network)
    network.participants["b"].pause()
    network.proxies["c"].release()
    network.await_round(key, "checking")
    wait_for(lambda: answered(network, key) == ["a", "c"], "two answers")
    return key


def answered(network: Processes, key: bytes) -> list[str]:
    return [name for name in NAMES if any(attempt["answer"] for attempt in network.attempts(name, key))]


def consenting(network: Processes) -> bytes:
    key = contributing(network)
    network.proxies["b"].limit(BEFORE_CONSENT)
    network.proxies["c"].release()
    network.await_round(key, "consenting")
    wait_for(lambda: states(network, key) == ["consented"] * 3, "three charges")
    wait_for(network.proxies["b"].stalled.is_set, "the second participant's consent at its limit")
    return key


def states(network: Processes, key: bytes) -> list[str]:
    return [attempt["state"] for name in NAMES for attempt in network.attempts(name, key)]


@pytest.mark.parametrize("phase", [enrolling, contributing, checking, consenting])
def test_a_coordinator_is_stopped(network: Processes, phase: Callable[[Processes], bytes]) -> None:
    key = phase(network)
    assert network.coordinator is not None
    assert network.coordinator.stop() == 0
    said = log_of(network)
    assert re.search(r"stopping: .*\n(.*\n)*.* stopped\n", said)
    assert "Traceback" not in said
    database = open_database(network.kit.coordinator.directory / "state" / "coordinator.db")
    LedgerReader(database).verify()
    database.close()
    network.participants["b"].resume()
    wait_for(lambda: "the coordinator ended the session" in log_of(network, "a"), "the word of a clean end")
    network.heal()
    assert network.await_end(key).phase == "finished"
    network.audit(key, charged=NAMES, released=NAMES)


@pytest.mark.parametrize("phase", [enrolling, contributing, checking])
def test_a_participant_is_stopped(network: Processes, phase: Callable[[Processes], bytes]) -> None:
    """It goes on where it was when it comes back: the study finishes, and each charge has its release."""
    key = phase(network)
    name = "c" if phase is contributing else "b"
    assert network.participants[name].stop() == 0
    said = log_of(network, name)
    assert said.rstrip().endswith("stopped")
    assert "Traceback" not in said
    network.proxies["c"].release()
    network.heal()
    assert network.await_end(key).phase == "finished"
    for site in NAMES:
        entries = network.entries(site, key)
        assert count(entries, Kind.CHARGE) == 1, site
        wait_for(lambda site=site: count(network.entries(site, key), Kind.RELEASE_SEEN) == 1, site)  # type: ignore[misc]
        assert not open_contexts(network.entries(site, key))


def test_a_participant_is_stopped_and_started_in_the_middle_of_rounds(network: Processes) -> None:
    request = make_request(wide_schema(), "fedsgd", epsilon=None)
    key = network.submit(network.compile(request.model_copy(update={"parameters": {"centre": False, "steps": 6}})))
    for released in (1, 3):
        network.await_status(key, lambda shown: shown.released >= released, "some releases")  # noqa: B023
        assert network.participants["b"].stop() == 0
        network.heal()
    assert network.await_end(key).phase == "finished"
    for name in NAMES:
        wait_for(lambda name=name: count(network.entries(name, key), Kind.RELEASE_SEEN) == 6, name)  # type: ignore[misc]
        entries = network.entries(name, key)
        assert count(entries, Kind.CHARGE) == 6, name
        assert not open_contexts(entries)
