"""Participants killed, cut off and stalled at every point of a round: real processes, real sockets, real keys.

Every test ends in a released sum of exactly the survivors, or in a failure with its reason; then the ledgers, stores and the
coordinator's journal are read from disk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from support.federation import make_request, schema_of
from support.network import wait_for
from support.processes import Processes, running_processes
from support.proxy import BEFORE_CONSENT
from support.randomness import RARE_DEVIATIONS
from veilsum_coordinator.protocol.settings import Waits
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

NAMES = "abcd"
NUMBERS, COLUMNS, CATEGORIES, ROWS = 3, 130, 256, 30
WAITS = Waits(enrol=200, seal=100, contribute=100, consent=100, check=100, grace=4)
"""So long that nobody who is there misses a deadline on a slow machine; who is killed is waited for no longer than grace."""

HURRIED = WAITS.model_copy(update={"contribute": 20, "check": 20, "consent": 20})
"""For tests in which a deadline passes; before a connection that stalls is given up as broken."""


BEFORE_BOXES = 8_000  # bytes: enough for an enrolment, not for the boxes
BEFORE_UPLOAD = 20_000  # enough for everything before the upload, its key share perhaps, not for the coefficients
MID_UPLOAD = 50_000  # the key share and a part of the coefficients


def _schema() -> DatasetSchema:
    numbers = schema_of(NUMBERS)
    values = tuple(str(value) for value in range(CATEGORIES))
    columns = tuple(CategoryColumn(name=f"k{index}", categories=values) for index in range(COLUMNS))
    return DatasetSchema(columns=(*numbers.columns, *columns), label=numbers.label, max_records=1000)


def _features(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.hstack([rng.uniform(-1, 1, (ROWS, NUMBERS)), rng.integers(0, CATEGORIES, (ROWS, COLUMNS))])


DATA = {name: (_features(index), np.arange(ROWS) % 2) for index, name in enumerate(NAMES)}
SCHEMA = _schema()


def expected(cohort: str) -> np.ndarray:
    """The sum of the survivors' records, by numpy alone: counts, absences, x, x^2 - 0.7, categories and classes."""
    features = np.concatenate([DATA[name][0] for name in cohort])
    labels = np.concatenate([DATA[name][1] for name in cohort])
    numbers = features[:, :NUMBERS]
    counts = [np.append(np.bincount(column.astype(int), minlength=CATEGORIES), 0) for column in features[:, NUMBERS:].T]
    parts = [[len(features)] * 2, [0] * NUMBERS, numbers.sum(0), (numbers**2 - 0.7).sum(0), *counts]
    return np.concatenate([*parts, np.bincount(labels, minlength=2)])


@pytest.fixture(scope="module", params=["none", pytest.param("processes", marks=pytest.mark.system)])
def network(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Processes]:
    with running_processes(tmp_path_factory.mktemp("federation"), DATA, waits=WAITS, isolation=request.param) as processes:
        yield processes


@pytest.fixture(autouse=True)
def healthy(network: Processes) -> None:
    network.heal()
    network.forget_cohorts()


@pytest.fixture
def hurried(network: Processes) -> Iterator[None]:
    network.restart_coordinator(HURRIED)
    yield
    network.restart_coordinator(WAITS)


def _study(network: Processes, epsilon: float | None = None, min_cohort: int = 3) -> Study:
    return network.compile(make_request(SCHEMA, epsilon=epsilon, min_cohort=min_cohort))


def _begin(network: Processes, epsilon: float | None = None, **limits: int) -> tuple[Study, bytes]:
    """Submit a study with limits on what some participants may send from now on."""
    for name, limit in limits.items():
        network.proxies[name].limit(limit)
    study = _study(network, epsilon)
    encoding = AgreedStudy(study).task("statistics").plan(4, 4).encoding
    assert BEFORE_UPLOAD < MID_UPLOAD < encoding.piece_bytes(1), "the limits lie elsewhere than they say"
    return study, network.submit(study)


def _stalled(network: Processes, name: str) -> None:
    wait_for(network.proxies[name].stalled.is_set, f"{name} at its limit")


def _state(network: Processes, name: str, key: bytes) -> str:
    attempts = network.attempts(name, key)
    return str(attempts[-1]["state"]) if attempts else ""


def _error(study: Study, values: np.ndarray, cohort: str) -> tuple[np.ndarray, float]:
    """Released values less numpy's sum of the cohort, in the task's weighted blocks, and the grid's unit on that scale."""
    task = build_task("tables", study.tasks[0].parameters, study.data)
    layout = task.layout()
    weights = np.concatenate([np.full(block.size, block.weight) for block in layout.blocks])
    unit = task.clip() / study.tasks[0].grid
    return layout.joined(np.split(values * unit, layout.limbs)) - expected(cohort) * weights, unit


def _check_sum(network: Processes, study: Study, key: bytes, cohort: str) -> None:
    (release,) = network.releases(key)
    assert release.cohort == tuple(cohort)
    error, unit = _error(study, release.values, cohort)
    assert np.abs(error).max() <= unit * ROWS * len(cohort)  # rounding takes at most half a unit of every value of a record
    assert network.kept_sums(key) == 0


@pytest.mark.system  # test_killed_writes.py kills a site at its writes by default
@pytest.mark.parametrize("limit", [pytest.param(BEFORE_UPLOAD, marks=pytest.mark.system), MID_UPLOAD])
def test_killed_during_its_upload(network: Processes, limit: int) -> None:
    study, key = _begin(network, c=limit)
    _stalled(network, "c")
    encoding = AgreedStudy(study).task("statistics").plan(4, 4).encoding
    assert network.proxies["c"].stalled.is_set()
    assert _state(network, "c", key) == "payload"
    network.await_contributions(3)
    network.participants["c"].kill()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert status.rounds[0].attempts == 2
    own = status.rounds[0].bytes_received - 6 * encoding.payload_bytes  # beside three survivors, two attempts
    assert own == encoding.piece_bytes(0) or (own, limit) == (0, BEFORE_UPLOAD)
    _check_sum(network, study, key, "abd")
    network.audit(key, charged="abd", released="abd")


@pytest.mark.system
def test_killed_after_its_upload_while_another_still_uploads(network: Processes) -> None:
    study, key = _begin(network, d=BEFORE_UPLOAD)
    _stalled(network, "d")
    network.await_contributions(3)
    network.participants["b"].kill()
    network.await_status(key, lambda shown: shown.rounds[-1].attempts == 2, "the second attempt")
    network.proxies["d"].release()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    _check_sum(network, study, key, "acd")
    network.audit(key, charged="acd", released="acd")


@pytest.mark.system
@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("silent", [False, True])
def test_gone_before_its_answer(network: Processes, silent: bool) -> None:
    """Killed, or silent until the deadline: the others contribute again, and pay once."""
    study, key = _begin(network, d=BEFORE_UPLOAD)
    _stalled(network, "d")
    network.await_contributions(3)
    network.participants["c"].pause()
    network.proxies["d"].release()
    network.await_round(key, "checking")
    if not silent:
        network.participants["c"].kill()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert status.rounds[0].attempts == 2
    _check_sum(network, study, key, "abd")
    network.audit(key, charged="abd", released="abd")


@pytest.mark.system
@pytest.mark.usefixtures("hurried")
def test_a_consent_that_does_not_come(network: Processes) -> None:
    """All have paid when one is cut off: the round is lost after its deadline, and what it cost stands."""
    _, key = _begin(network, d=BEFORE_UPLOAD)
    _stalled(network, "d")
    network.await_contributions(3)
    network.proxies["c"].limit(BEFORE_CONSENT)
    network.proxies["d"].release()
    status = network.await_end(key)
    assert status.phase == "failed"
    assert "no consent from c in time" in status.reason
    assert not network.releases(key)
    network.audit(key, charged="abcd")


@pytest.mark.system
def test_killed_after_it_paid_and_back_in_time(network: Processes) -> None:
    """Whether or not its consent left before it was killed: it gives the same again, and pays once."""
    study, key = _begin(network, c=BEFORE_UPLOAD)
    _stalled(network, "c")
    network.await_contributions(3)
    network.proxies["c"].release()
    wait_for(lambda: _state(network, "a", key) in ("consented", "released"), "a charge")
    network.participants["a"].kill()
    network.start("a")
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert status.rounds[0].attempts == 1
    _check_sum(network, study, key, "abcd")
    network.audit(key, charged="abcd", released="abcd")


@pytest.mark.system
def test_killed_while_it_seals(network: Processes) -> None:
    study, key = _begin(network, a=BEFORE_BOXES)
    network.await_status(key, lambda shown: shown.phase == "sealing", "sealing")
    _stalled(network, "a")
    network.participants["a"].kill()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    _check_sum(network, study, key, "bcd")
    network.audit(key, charged="bcd", released="bcd")


def test_an_upload_that_is_cut_goes_on_at_the_next_piece(network: Processes) -> None:
    network.proxies["b"].limit(MID_UPLOAD, cut=True)
    study, key = _begin(network)
    status = network.await_end(key)
    assert network.proxies["b"].stalled.is_set(), "the connection was not cut"
    assert status.phase == "finished", status.reason
    assert status.rounds[0].attempts == 1
    encoding = AgreedStudy(study).task("statistics").plan(4, 4).encoding
    assert status.rounds[0].bytes_received == 4 * encoding.payload_bytes  # nothing was counted twice
    _check_sum(network, study, key, "abcd")
    network.audit(key, charged="abcd", released="abcd")


@pytest.mark.system
def test_a_restarted_participant_sends_the_rest_of_the_same_payload(network: Processes) -> None:
    study, key = _begin(network, c=MID_UPLOAD)
    _stalled(network, "c")
    before = network.attempts("c", key)[0]
    network.participants["c"].kill()
    network.proxies["c"].release()
    network.start("c")
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert status.rounds[0].attempts == 1
    (after,) = network.attempts("c", key)
    assert (after["context"], after["receipt"]) == (before["context"], before["receipt"])
    _check_sum(network, study, key, "abcd")
    network.audit(key, charged="abcd", released="abcd")


@pytest.mark.system
@pytest.mark.usefixtures("hurried")
def test_a_silent_connection_is_waited_for_until_the_deadline_only(network: Processes) -> None:
    study, key = _begin(network, d=MID_UPLOAD)
    _stalled(network, "d")
    assert network.coordinator is not None
    before = len(network.coordinator.log.read_text())
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    assert "goes on without d, which did not answer in time" in network.coordinator.log.read_text()[before:]
    _check_sum(network, study, key, "abc")
    network.audit(key, charged="abc", released="abc")


@pytest.mark.system
def test_with_noise_the_survivors_sum_carries_it(network: Processes) -> None:
    study, key = _begin(network, epsilon=8.0, b=MID_UPLOAD)
    _stalled(network, "b")
    network.participants["b"].kill()
    status = network.await_end(key)
    assert status.phase == "finished", status.reason
    (release,) = network.releases(key)
    assert release.cohort == tuple("acd")
    error, unit = _error(study, release.values, "acd")
    std = unit * math.sqrt(AgreedStudy(study).task("statistics").plan(4, 3).noise.total_variance(3))
    assert np.abs(error).max() < 8 * std
    assert abs(error.std() / std - 1) < RARE_DEVIATIONS / math.sqrt(2 * error.size) < 0.04  # 20,000 draws
    network.audit(key, charged="acd", released="acd")


@pytest.mark.system
def test_too_few_survivors_fail_with_a_reason(network: Processes) -> None:
    _, key = _begin(network, c=BEFORE_UPLOAD, d=BEFORE_UPLOAD)
    for name in "cd":
        _stalled(network, name)
        network.participants[name].kill()
    status: pb.StudyStatus = network.await_end(key)
    assert status.phase == "failed"
    assert "3 are needed" in status.reason
    assert not network.releases(key)
    network.audit(key, charged="")
