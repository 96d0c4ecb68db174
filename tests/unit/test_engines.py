"""Engines give one answer: site by site, together, in processes and over Ray; and a run is taken up where it was killed."""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from support.randomness import RARE, RARE_DEVIATIONS
from support.studies import SCHEMA, compiled, projection, shifted_sites
from support.working import TravellingRandom, leave, square
from veilsum_coordinator.methods import get_method
from veilsum_deploy.cli.simulated import make_engine
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.simulation.chunks import _noise
from veilsum_deploy.simulation.engines import Engine, ProcessEngine, SerialEngine, running
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.plots import require_matplotlib
from veilsum_deploy.simulation.progress import RoundProgress, WatchedFederation
from veilsum_deploy.simulation.record import ROUNDS, RunRecorder
from veilsum_node.errors import HostileInput, Misuse, StateError
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.computation import contribution
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.features import CLASS_WEIGHTS

SITES = tuple("abcdefg")


def sites_of(records: dict[str, Records], seeded: bool = True) -> dict[str, PlainSite]:
    return {name: PlainSite(own, TravellingRandom(name) if seeded else SYSTEM_RANDOM) for name, own in records.items()}


def uneven(seed: int = 0) -> dict[str, Records]:
    """Sites of 0 to 90 records, some without a label, a value or a finite feature."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, own in shifted_sites(90, seed, SITES).items():
        number = 0 if name == "c" else int(rng.integers(1, 91))
        labels = own.labels[:number].copy() if own.labels is not None else None
        features, present = own.features[:number].copy(), own.present[:number].copy()
        if number > 5 and labels is not None:
            labels[1], present[2, 0], features[3, 1] = -1, False, np.nan
        found[name] = Records(features, present, labels)
    return found


PRIVATE = {"epsilon": 4.0, "cohort_difference": "allowed", "min_cohort": 2}
MLP = {"model": {"name": "mlp", "options": {"hidden": 5}}, "steps": 4}
STUDIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "records": ("fedcgs", {"clip": 1.0}, PRIVATE),
    "records in pieces": ("fedcgs", {"clip": 1.0, "generation": {}}, {}),
    "aligned": (
        "fedcgs",
        {"clip": 1.0, "alignment": {"reference": "slopes", "mode": "iterated", "rounds": 2}},
        {"epsilon": 6.0},
    ),
    "site by site": ("o-fedavg", {}, {"epsilon": 4.0}),
    "gradients": ("fedsgd", {"steps": 6, "sampling_rate": 0.5}, PRIVATE),
    "gradients of a perceptron": ("fedsgd", MLP, {}),
    "training with noise": ("fedavg", {"rounds": 2}, {"epsilon": 4.0, "noise": "local"}),
}


@cache
def study_of(name: str) -> Study:
    method, parameters, privacy = STUDIES[name]
    return compiled(method, parameters, sites=SITES, **privacy)


def run(study: Study, **options: Any) -> tuple[Result, list[Any]]:
    federation = PlainFederation(study, sites_of(uneven()), **options)
    return get_method(study.method).run(federation), federation.sums


def assert_same(one: tuple[Result, list[Any]], other: tuple[Result, list[Any]]) -> None:
    assert len(one[1]) == len(other[1]) > 0
    for mine, theirs in zip(one[1], other[1], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert one[0].summary == other[0].summary
    for name, array in one[0].arrays.items():
        np.testing.assert_array_equal(array, other[0].arrays[name])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in STUDIES if name != "gradients of a perceptron"])
def test_sites_together_are_sites_one_by_one_to_the_bit(name: str) -> None:
    study = study_of(name)
    assert_same(run(study), run(study, batched=False))


@pytest.mark.parametrize("parameters", [{"steps": 1}, MLP])
def test_gradients_of_many_sites_are_theirs_one_by_one(parameters: dict[str, Any]) -> None:
    """Each site rounds to the grid by itself, or all of them do together: half a unit a site and half a unit."""
    study = compiled("fedsgd", parameters, sites=SITES)
    rng = np.random.default_rng(1)
    example = AgreedStudy(study).task("gradient").task.example_broadcast(len(SITES))
    broadcast = {name: rng.normal(size=array.shape) for name, array in example.items() if name != CLASS_WEIGHTS}
    broadcast[CLASS_WEIGHTS] = rng.uniform(0.1, 1.0, len(SCHEMA.classes))
    found = []
    for batched in (True, False):
        federation = PlainFederation(study, sites_of(uneven(3)), batched=batched)
        federation.sum("gradient", broadcast)
        found.append(federation.sums[0])
    np.testing.assert_allclose(*found, rtol=0, atol=(len(SITES) + 1) / 2)
    assert np.abs(found[1]).max() > 100 * len(SITES)


@pytest.mark.parametrize(("seeded", "calls"), [(False, [1]), (True, [len(SITES)])])
def test_samples_of_many_sites_are_one_sample(seeded: bool, calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the system's source; a seeded one draws for its own site only."""
    drawn: list[int] = []
    plain = contribution.poisson_sample
    monkeypatch.setattr(contribution, "poisson_sample", lambda rate, n, *rest: drawn.append(n) or plain(rate, n, *rest))  # type: ignore[func-returns-value]
    sites, study = uneven(), study_of("gradients")
    broadcast = AgreedStudy(study).task("gradient").task.example_broadcast(len(SITES))
    PlainFederation(study, sites_of(sites, seeded)).sum("gradient", broadcast)
    assert [len(drawn)] == calls
    assert sum(drawn) == sum(map(len, sites.values()))


@pytest.fixture(scope="module")
def processes() -> Iterator[Engine]:
    with running(ProcessEngine(2)) as engine:
        yield engine


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ["records", "aligned", "site by site", "training with noise"])
def test_processes_give_the_same_to_the_bit(name: str, processes: Engine) -> None:
    study = study_of(name)
    assert_same(run(study, batched=False), run(study, engine=processes))


@pytest.mark.parametrize("which", ["serial", "processes"])
def test_a_map_keeps_order_and_types_of_errors(which: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = SerialEngine() if which == "serial" else request.getfixturevalue(which)
    numbers = list(range(12))
    assert list(engine.map(square, numbers)) == [number**2 for number in numbers]
    assert sorted(engine.map(square, numbers, ordered=False)) == [number**2 for number in numbers]
    assert list(engine.map(square, [])) == []
    assert engine.share({"a": 1}).get() == {"a": 1}
    with pytest.raises(HostileInput, match="thirteen") as caught:
        list(engine.map(square, [12, 13, 14]))
    assert caught.value.advice == "Take twelve."
    assert list(engine.map(square, [3])) == [9]  # an error ends the map, not the engine


def test_a_lost_process_is_a_typed_error(tmp_path: Path) -> None:
    with running(ProcessEngine(1)) as engine, pytest.raises(StateError, match="exited unexpectedly"):
        list(engine.map(partial(leave, tmp_path / "marker"), [1]))


def test_engines_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_engine("local", 1), SerialEngine)
    with pytest.raises(Misuse, match="No engine"):
        make_engine("dask", 1)
    with pytest.raises(Misuse, match="--address"):
        make_engine("local", 1, "auto")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Misuse) as caught:
        make_engine("ray", 1)
    assert "pip install 'veilsum[ray]'" in caught.value.advice


def test_packages_of_the_extra_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("matplotlib", "sklearn"):
        monkeypatch.setitem(sys.modules, package, None)
    for need in (require_matplotlib, partial(packaged_dataset, "digits")):
        with pytest.raises(Misuse) as caught:
            need()
        assert "pip install 'veilsum[simulation]'" in caught.value.advice
    assert packaged_dataset("breast-cancer").table.num_rows == 569


def test_projected_features_are_remembered_and_the_same() -> None:
    rng = np.random.default_rng(5)
    named, arrays = projection(rng.normal(size=(4, SCHEMA.width)), rng.normal(size=4))
    study = compiled("fedsgd", {"steps": 3, "sampling_rate": 0.7, "clip": 3.0}, sites=SITES, encoder=named, **PRIVATE)
    found = [run(study, encoder=arrays, batched=batched) for batched in (True, False)]
    assert_same(*found)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.booleans(), min_size=7, max_size=7).filter(lambda taken: sum(taken) > 1), st.integers(0, 99))
def test_any_members_together_are_the_same_as_one_by_one(taken: list[bool], seed: int) -> None:
    study = compiled("fedcgs", {"clip": 1.0}, sites=SITES, **PRIVATE)
    members = [name for name, one in zip(SITES, taken, strict=True) if one]
    found = []
    for batched in (True, False):
        federation = PlainFederation(study, sites_of(uneven(seed)), batched=batched)
        release = federation.sum(study.tasks[0].label, members=members)
        assert release.cohort == tuple(members)
        found.append(federation.sums[0])
    np.testing.assert_array_equal(*found)


def test_the_systems_noise_of_many_sites_has_the_distribution_of_their_sum() -> None:
    plan, shares = NoisePlan("distributed", 16 * 9, 9, 1), 11
    one = _noise(plan, 40_000, [SYSTEM_RANDOM] * shares)
    each = _noise(plan, 40_000, [TravellingRandom(str(index)) for index in range(shares)])  # drawn share by share
    variance = float(plan.total_variance(shares))
    for found in (one, each):
        spread_evenly = found + np.random.default_rng(0).uniform(-0.5, 0.5, len(found))
        assert stats.kstest(spread_evenly, "norm", (0, (variance + 1 / 12) ** 0.5)).pvalue > RARE
        assert abs(found.var() / variance - 1) < RARE_DEVIATIONS * (2 / len(found)) ** 0.5 < 0.05
    assert stats.ks_2samp(one, each).pvalue > RARE


class KilledError(Exception):
    """Stands for the end of the process."""


def killed_after(rounds: int) -> Callable[[str], None]:
    left = [rounds]

    def watch(label: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KilledError

    return watch


def watched(study: Study, watch: Callable[[str], None], **options: Any) -> None:
    federation = PlainFederation(study, sites_of(uneven()), **options)
    get_method(study.method).run(WatchedFederation(federation, watch))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["gradients", "aligned", "training with noise", "gradients of a perceptron"])
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_killed_run_is_taken_up_with_the_sums_that_it_had(name: str, rounds: int, tmp_path: Path) -> None:
    study = study_of(name)
    whole = run(study)
    with pytest.raises(KilledError):
        watched(study, killed_after(rounds), recorder=RunRecorder(tmp_path, pause=0.0))
    recorder = RunRecorder(tmp_path, pause=0.0)
    assert recorder.rounds == rounds
    again = PlainFederation(study, sites_of(uneven()), recorder=recorder)
    result = get_method(study.method).run(again)
    assert len(again.sums) == len(whole[1])
    for mine, theirs in zip(again.sums[:rounds], whole[1][:rounds], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    if study.privacy.noise == "none":  # no source of noise that would have to go on where it was
        assert_same((result, again.sums), whole)
    third = PlainFederation(study, sites_of(uneven()), recorder=RunRecorder(tmp_path))
    assert_same((get_method(study.method).run(third), third.sums), (result, again.sums))  # nothing is computed again


def test_rounds_that_changed_what_sites_keep_are_computed_again_without_a_snapshot(tmp_path: Path) -> None:
    study = study_of("aligned")
    with pytest.raises(KilledError):
        watched(study, killed_after(2), recorder=RunRecorder(tmp_path, pause=1e9))
    assert RunRecorder(tmp_path).rounds == 0  # the first round kept statistics, and no snapshot has them


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000))
def test_a_round_that_was_cut_off_is_no_round(cut: int) -> None:
    import tempfile

    study = study_of("gradients of a perceptron")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        recorder = RunRecorder(path)
        ends: list[int] = []

        def watch(label: str) -> None:
            ends.append((path / ROUNDS).stat().st_size)

        watched(study, watch, recorder=recorder)
        recorder.close()
        data = (path / ROUNDS).read_bytes()
        end = cut * len(data) // 10_000
        (path / ROUNDS).write_bytes(data[:end])
        again = RunRecorder(path)
        assert again.rounds == sum(own <= end for own in ends)
        other = PlainFederation(study, sites_of(uneven()), recorder=again)
        get_method(study.method).run(other)
        again.close()
        assert (path / ROUNDS).read_bytes() == data


def test_rounds_of_another_run_are_refused(tmp_path: Path) -> None:
    study = study_of("gradients of a perceptron")
    run(study, recorder=RunRecorder(tmp_path))
    other = compiled("fedsgd", {**MLP, "seed": 1}, sites=SITES)
    with pytest.raises(StateError, match="differs from now"):
        run(other, recorder=RunRecorder(tmp_path))


def test_progress_tells_rounds_and_the_epsilon_of_the_releases_so_far() -> None:
    study = study_of("gradients")
    told: list[tuple[str, float]] = []
    watch = RoundProgress(study, lambda *what: told.append(what), "Run 2 of 4", (0.25, 0.5), every=0.0, clock=lambda: 0.0)
    watched(study, watch)
    labels = [task.label for task in study.tasks for _ in range(task.releases)]
    assert len(told) == len(labels) >= 6
    for number, (text, fraction) in enumerate(told, start=1):
        spent = study_epsilon(study, study.privacy.delta, Counter(labels[:number]))
        shown = re.fullmatch(rf"Run 2 of 4: round {number} of {len(labels)}, epsilon ([0-9.]+) so far", text)
        assert shown
        assert spent <= float(shown[1]) < spent * 1.001, "what was spent is rounded up, to four digits"
        assert fraction == pytest.approx(0.25 + 0.25 * number / len(labels))
    assert study.privacy.epsilon == pytest.approx(spent)
    quiet: list[str] = []
    watched(study, RoundProgress(study, lambda text, _: quiet.append(text), every=100.0))
    assert quiet == []


def test_a_source_that_travels_goes_on_where_it_was() -> None:
    source, same = TravellingRandom("x"), TravellingRandom("x")
    assert source.bytes(5) == same.bytes(5)
    assert pickle.loads(pickle.dumps(source)).bytes(40) == same.bytes(40)  # noqa: S301
