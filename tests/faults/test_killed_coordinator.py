"""The coordinator killed in the middle of a study: another process goes on with it, and what it cost stands once."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator

import pytest

from support.federation import make_request, make_wide_data, wide_schema
from support.network import PATIENCE, wait_for
from support.processes import Processes, count, open_contexts, running_processes
from support.proxy import BEFORE_CONSENT
from veilsum_coordinator.protocol.settings import Waits
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.results.result import load_result
from veilsum_privacy.tasks.agreed import AgreedStudy

NAMES = "abc"
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=100)
"""So long that nobody misses a deadline on a slow machine; grace too, for who stalls or is paused may lose its connection."""

HURRIED = WAITS.model_copy(update={"contribute": 20, "consent": 10})
"""For the test in which the sites' own deadline passes."""

BEFORE_UPLOAD = 20_000


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    data = make_wide_data(NAMES)
    with running_processes(tmp_path_factory.mktemp("federation"), data, waits=WAITS) as processes:
        yield processes


@pytest.fixture(autouse=True)
def healthy(network: Processes) -> None:
    network.heal()


def _begin(network: Processes) -> bytes:
    """Submit a study that stands still with two uploads in and the third at its first bytes."""
    network.proxies["c"].limit(BEFORE_UPLOAD)
    study = network.compile(make_request(wide_schema(), epsilon=None))
    encoding = AgreedStudy(study).task("statistics").plan(3, 3).encoding
    assert encoding.payload_bytes > 1.2 * BEFORE_UPLOAD
    key = network.submit(study)
    wait_for(network.proxies["c"].stalled.is_set, "the third participant at its limit")
    wait_for(lambda: _states(network, key) == ["payload"] * 3, "three payloads")
    network.await_contributions(2)
    return key


def _states(network: Processes, key: bytes) -> list[str]:
    return [attempt["state"] for name in NAMES for attempt in network.attempts(name, key)]


def _kill(network: Processes) -> None:
    assert network.coordinator is not None
    network.coordinator.kill()


def _check_goes_on(network: Processes, key: bytes, least: int = 1) -> None:
    """Another process finishes it; the released sum is right, and of a new attempt."""
    status = network.await_end(key)
    assert (status.phase, status.reason) == ("finished", "")
    (release,) = network.releases(key)
    assert release.cohort == tuple(NAMES)
    assert release.attempt >= least
    assert network.kept_sums(key) == 0
    network.audit(key, charged=NAMES, released=NAMES)


@pytest.mark.system
def test_killed_before_consent(network: Processes) -> None:
    key = _begin(network)
    _kill(network)
    network.heal()
    _check_goes_on(network, key, 2)
    for name in NAMES:
        assert [attempt["state"] for attempt in network.attempts(name, key)] == ["tombstone", "released"]
        entries = network.entries(name, key)
        assert (count(entries, Kind.RESERVE), count(entries, Kind.FREE)) == (2, 1)


@pytest.mark.system
def test_killed_while_the_sum_is_checked(network: Processes) -> None:
    """Two have answered for the sum that stands fixed, and answer for the same again: nobody contributes twice."""
    key = _begin(network)
    network.participants["b"].pause()
    network.proxies["c"].release()
    network.await_round(key, "checking")
    wait_for(lambda: _answered(network, key) == ["a", "c"], "two answers")
    assert network.kept_sums(key) == 1
    _kill(network)
    network.heal()
    _check_goes_on(network, key)
    assert _states(network, key) == ["released"] * 3  # of the one attempt


def _answered(network: Processes, key: bytes) -> list[str]:
    return [name for name in NAMES if any(attempt["answer"] for attempt in network.attempts(name, key))]


@pytest.mark.system
def test_killed_after_some_consents(network: Processes) -> None:
    """Two consents are in, the third is held up: the same sum is consented to further, once."""
    key = _begin(network)
    network.proxies["b"].limit(BEFORE_CONSENT)
    network.proxies["c"].release()
    network.await_round(key, "consenting")
    wait_for(lambda: _states(network, key) == ["consented"] * 3, "three charges")
    wait_for(network.proxies["b"].stalled.is_set, "the second participant's consent at its limit")
    _kill(network)
    network.heal()
    _check_goes_on(network, key)
    assert _states(network, key) == ["released"] * 3  # of the one attempt


@pytest.mark.system
def test_killed_while_the_result_is_written(network: Processes) -> None:
    """The last round is released; the method runs again and writes the same result."""
    key = _begin(network)
    place = network.kit.coordinator.directory / "state" / "results" / key.hex()
    network.proxies["c"].release()
    end = time.monotonic() + PATIENCE
    while not place.exists():  # as soon as it is there
        assert time.monotonic() < end, "no result is written"
    _kill(network)
    assert len(network.releases(key)) == 1
    network.heal()
    _check_goes_on(network, key)
    wait_for(lambda: bool(network.status(key).results), "the result")
    assert load_result(place).summary["records"][0]["count"]["value"] == pytest.approx(60, abs=1e-3)
    assert [path.name for path in place.iterdir() if path.name.startswith(".")] == []


@pytest.mark.system
def test_killed_twice_while_keys_are_exchanged(network: Processes) -> None:
    network.participants["b"].pause()
    key = network.submit(network.compile(make_request(wide_schema(), epsilon=None)))
    network.await_status(key, lambda shown: len(shown.enrolled) == 2, "two enrolments")
    _kill(network)
    network.start_coordinator()
    assert len(network.status(key).enrolled) == 2
    network.participants["b"].resume()
    network.await_status(key, lambda shown: shown.phase != "enrolling", "the exchange of keys")
    _kill(network)
    network.heal()
    _check_goes_on(network, key)


def test_asked_to_stop_while_it_asks_for_consent(network: Processes) -> None:
    """A clean stop ends no study either."""
    key = _begin(network)
    network.proxies["c"].release()
    wait_for(lambda: "consented" in _states(network, key), "a consent")
    assert network.coordinator is not None
    assert network.coordinator.stop() == 0
    network.heal()
    _check_goes_on(network, key)


@pytest.mark.system
def test_a_coordinator_that_vanishes_leaves_no_reservation_behind(network: Processes) -> None:
    network.restart_coordinator(HURRIED)
    key = _begin(network)
    deadlines = [network.attempts(name, key)[0]["deadline"] for name in NAMES]
    _kill(network)
    for name in NAMES:
        assert len(open_contexts(network.entries(name, key))) == 1
    wait_for(lambda: _states(network, key) == ["tombstone"] * 3, "the sites' own deadline")
    assert time.time() >= min(deadlines)
    for name in NAMES:
        entries = network.entries(name, key)
        assert not open_contexts(entries)
        assert count(entries, Kind.FREE) == 1
        assert network.attempts(name, key)[0]["payload"] is None
    for name in NAMES:  # new processes dial at once, the old ones would first wait out their pause
        network.participants[name].kill()
    network.heal()
    _check_goes_on(network, key, 2)
    network.restart_coordinator(WAITS)


@pytest.mark.system
def test_a_study_after_all_that(network: Processes) -> None:
    key = network.submit(network.compile(make_request(wide_schema(), epsilon=None)))
    assert network.await_end(key).phase == "finished"
    network.audit(key, charged=NAMES, released=NAMES)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_process_speaks_tls_1_3_only(network: Processes, version: ssl.TLSVersion) -> None:
    """In a process of its own, whose imports no test arranged."""
    identity = network.directory("a") / "identity"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(identity / "authority.pem")
    context.load_cert_chain(identity / "certificate.pem", identity / "key.pem")
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, port = network.address.rsplit(":", 1)
    raw = socket.create_connection((host, int(port)), timeout=PATIENCE)
    with raw:
        if version is ssl.TLSVersion.TLSv1_3:
            with context.wrap_socket(raw, server_hostname=host) as tls:
                assert tls.version() == "TLSv1.3"
        else:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                context.wrap_socket(raw, server_hostname=host)


def test_processes_end_when_they_are_asked_to(network: Processes) -> None:
    assert [network.participants[name].stop() for name in NAMES] == [0, 0, 0]
    assert network.coordinator is not None
    assert network.coordinator.stop() == 0
