"""What a plan promises: intervals that the real noise keeps, an epsilon that reaches the wanted error, an honest verdict."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.commands import veilsum
from support.randomness import SeededRandom
from support.studies import drafted
from veilsum.compile import PrivacyRequest, StudyDraft, StudyRequest
from veilsum.costs import study_cost
from veilsum.plan import Outlook, Verdict, divide, outlook, plan_study, twofold_epsilon, typical_share
from veilsum.privacy_loss import epsilon_alone, participant_losses, read_spending, study_mechanisms
from veilsum.remote import Remote
from veilsum_aggregation.moments import within_covariance, within_covariance_error
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedcgs import FedCGS
from veilsum_coordinator.parts.base import Method, TaskPlan
from veilsum_coordinator.parts.expectations import Expectation, main_error
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.canonical import canonical
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen
from veilsum_privacy.accounting.accountant import GaussianEvent, epsilon_of
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise import NoisePlan, task_noise
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.federation_pb2_grpc import StudiesServicer, add_StudiesServicer_to_server

SITES = ("a", "b", "c", "d")
PER_SITE = 400
DRAWS = 400

SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=100, unit="years"),
        NumberColumn(name="height", low=100, high=220, unit="cm"),
        NumberColumn(name="pulse", low=40, high=160),
        NumberColumn(name="bmi", low=10, high=60, impute=25),
        NumberColumn(name="dose", low=-1, high=1, impute=0),
        CategoryColumn(name="sex", categories=("f", "m")),
        CategoryColumn(name="smoker", categories=("no", "yes")),
    ),
    label=LabelColumn(
        column="ill", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "mild", "severe"))
    ),
    max_records=PER_SITE,
)


ONCE = {"centre": False}
"""Parameters of fedcgs that make one release."""


def draft(method: str = "statistics", schema: DatasetSchema = SCHEMA, sites: int = 4, **changes: Any) -> StudyDraft:
    records = changes.pop("expected_records", None)
    parameters = changes.pop("parameters", {})
    if "error" not in changes and changes.get("noise") != "none":
        changes.setdefault("epsilon", 1.0)
    request = StudyRequest(
        name="trial", method=method, dataset="clinic", data=schema, parameters=parameters, expected_records=records,
        privacy=PrivacyRequest(**changes), schema=None,
    )  # fmt: skip
    names = list("abcd") if sites == 4 else [f"site-{index:03d}" for index in range(sites)]
    return drafted(request, names)


def typical_records(seed: int = 0) -> dict[str, Records]:
    """Records as expectations take them to be: numbers a third off the middle with a spread of a third, the rest balanced."""
    rng = np.random.default_rng(seed)
    n = PER_SITE * len(SITES)
    numbers = rng.choice([0.0, 2.0 / 3.0], (n, 5))
    indicators = [np.eye(2)[rng.integers(0, 2, n)] for _ in range(2)]
    features = np.hstack([numbers, *indicators])
    labels = rng.integers(0, 3, n)
    parts = np.split(np.arange(n), len(SITES))
    present = np.ones_like(features, dtype=bool)
    return {name: Records(features[part], present[part], labels[part]) for name, part in zip(SITES, parts, strict=True)}


def federation(study: Study, sites: Mapping[str, Records], seed: int = 0) -> PlainFederation:
    """Sites in memory with the real grid and noise, reproducible."""
    return PlainFederation(
        study, {name: PlainSite(records, SeededRandom(f"{name} {seed}".encode())) for name, records in sites.items()}
    )


def spread_of(errors: NDArray[np.float64], half_width: float) -> tuple[float, float]:
    """Spread of noise errors against a predicted 95% half-width (1 if it is right), and how many lie within it."""
    ratio = math.sqrt(float(np.mean(errors**2))) * 1.959963984540054 / half_width
    return ratio, float(np.mean(np.abs(errors) <= half_width))


def check_block(pairs: list[tuple[NDArray[np.float64], float]]) -> None:
    """Hold a block's errors against its half-widths: spread and coverage within four standard errors of what is predicted.

    The quantities' noises are (all but) independent; each is one column of ``DRAWS`` errors.
    """
    scaled = np.concatenate([errors / width for errors, width in pairs])
    ratio, covered = spread_of(scaled, 1.0)
    assert ratio == pytest.approx(1.0, abs=4.0 / math.sqrt(2 * len(scaled)) + 0.02)
    assert covered == pytest.approx(0.95, abs=4.0 * math.sqrt(0.95 * 0.05 / len(scaled)) + 0.005)


def by_quantity(asked: StudyDraft, study: Study) -> dict[str, Expectation]:
    return {item.quantity: item for item in asked.expectations(study)}


# -- intervals against the real method with the real noise --------------------------------------------------------------------


def statistics_of(summary: dict[str, Any]) -> dict[str, dict[str, float]]:
    """A result's figures by the plan's words; of several alike, one."""
    found = {"number of records": summary["records"][0]["count"]}
    for row in summary["overview.numbers"]:
        found |= {
            f"{what.replace('_', ' ')} of {row['column']}": row[what] for what in ("mean", "standard_deviation", "count")
        }
    for query, name in (("overview.sex", "sex"), ("overview.smoker", "smoker"), ("classes", "ill")):
        found |= {f"{what} of each {name}": summary[query][0][what] for what in ("count", "share")}
    return found


def test_intervals_of_statistics_are_those_of_the_result() -> None:
    sites = typical_records()
    asked = draft(epsilon=2.0)
    study = asked.compile()
    summary = METHODS["statistics"].run(federation(study, sites, 1)).summary
    predicted = by_quantity(asked, study)
    found = statistics_of(summary)
    assert set(found) == set(predicted)
    levels = 3 + 3 + 3  # a category can be missing
    assert sum(item.number for item in predicted.values()) == 1 + 3 * 5 + 2 * levels
    for name, figure in found.items():
        width = (figure["high"] - figure["low"]) / 2.0
        assert width == pytest.approx(predicted[name].half_width, rel=0.25 if "each" in name else 0.15), name


@pytest.mark.parametrize("noise", ["distributed", pytest.param("local", marks=pytest.mark.system)])
def test_intervals_of_fedcgs_are_those_of_the_real_noise(noise: str) -> None:
    sites = typical_records()
    plain = federation(draft("fedcgs", noise="none", parameters={"clip": 3.0}).compile(), sites).sum("class-moments").values
    asked = draft(
        "fedcgs", epsilon=6.0, noise=noise, parameters={"clip": 3.0, "centre": False}
    )  # nothing is clipped: 5 * 4 / 9 + 2 < 9
    study = asked.compile()

    def quantities(values: Mapping[str, NDArray[np.float64]], sums_std: float) -> dict[str, NDArray[np.float64]]:
        counts, sums = values["counts"], values["sums"]
        second = np.diag(values["squares"])
        second[np.triu_indices(9, 1)] = values["products"]
        second = np.triu(second, 1).T + second
        within = within_covariance(counts, sums, second, sums_std)
        means = sums / counts[:, None]
        # indicators of one column depend on each other: one of each column is looked at
        return {
            "count of each class of ill": counts,
            "class mean of age": 40 * means[:, 0],
            "class mean of dose": means[:, 4],
            "class mean of each sex": means[:, 5],
            "variance of numbers": np.diag(within)[:5],
            "variance of indicators": np.diag(within)[[5, 7]],
            "covariance of numbers": within[:5, :5][np.triu_indices(5, 1)],
            "covariance of indicators": within[[5], [7]],
            "covariance of numbers with indicators": within[:5, [5, 7]].ravel(),
        }

    exact = quantities(plain, 0.0)
    drawn = []
    for seed in range(DRAWS):
        release = federation(study, sites, seed).sum("class-moments")
        drawn.append(quantities(release.values, release.noise_std["sums"]))
    predicted = by_quantity(asked, study)
    for name, value in exact.items():
        errors = np.array([item[name] for item in drawn]) - value
        check_block([(errors[:, index], predicted[name].half_width) for index in range(errors.shape[1])])


def test_intervals_by_hand() -> None:
    """The delta method written out for one quantity of each kind, at a mean a third off the middle and a spread of a third."""
    asked = draft(epsilon=2.0)
    study = asked.compile()
    (cost,) = study_cost(study).tasks
    std, n, found = cost.noise, 4 * PER_SITE, by_quantity(asked, study)
    number, gaps = std["records/table"], math.hypot(std["overview.numbers/records"], std["overview.numbers/absent"])
    sampling = math.sqrt(n) / 3  # of the sum, at a spread of a third
    by_hand = {
        "number of records": number,
        "mean of age": 40 * math.hypot(std["overview.numbers/sum"], gaps / 3, sampling) / n,
        "mean of bmi": 25 * math.hypot(std["overview.numbers/sum"], std["overview.numbers/records"] / 3, sampling) / n,
    }
    for name, error in by_hand.items():
        assert found[name].half_width == pytest.approx(1.959964 * error, rel=0.03), name
    assert found["mean of age"].size == 40
    asked = draft("fedcgs", epsilon=2.0, parameters={"clip": 3.0, "centre": False})
    study = asked.compile()
    (cost,) = study_cost(study).tasks
    std, found = cost.noise, by_quantity(asked, study)
    age = 40 * math.hypot(std["sums"], std["counts"] / 3) / (n / 3)
    sex = math.hypot(std["sums"], std["counts"] / 2) / (n / 3)
    assert found["class mean of age"].half_width == pytest.approx(1.959964 * age, rel=1e-6)
    assert found["class mean of each sex"].half_width == pytest.approx(1.959964 * sex, rel=1e-6)
    assert main_error(found.values()) == pytest.approx(1.959964 * sex / 0.5, rel=1e-6)  # the widest of the main ones


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("means", [(0.0, 0.0), (0.4, 0.3)])
@pytest.mark.parametrize(("n", "sums_std", "counts_std"), [(3000.0, 60.0, 25.0), (30_000.0, 20.0, 150.0)])
def test_error_of_a_within_covariance_is_that_of_simulated_noise(
    diagonal: bool, means: tuple[float, float], n: float, sums_std: float, counts_std: float
) -> None:
    rng = np.random.default_rng(5)
    k, second_std, value = 3, 20.0, 0.1
    one, other = (means[0], means[0]) if diagonal else means
    second = value * np.ones((2, 2)) + np.outer((one, other), (one, other))
    entries = []
    for _ in range(8000):
        counts = n / k + counts_std * rng.standard_normal(k)
        sums = np.array((one, other)) * n / k + sums_std * rng.standard_normal((k, 2))
        upper = second_std * rng.standard_normal(3)
        noise = np.array([[upper[0], upper[1]], [upper[1], upper[2]]])
        entries.append(within_covariance(counts, sums, n * second + noise, sums_std)[0, 0 if diagonal else 1])
    predicted = within_covariance_error(n, k, second_std, sums_std, counts_std, (one, other), value, diagonal=diagonal)
    assert np.std(entries) == pytest.approx(predicted, rel=0.035)
    assert np.mean(entries) == pytest.approx(value, abs=4 * predicted / math.sqrt(len(entries)) + 2e-4)


def test_a_small_clip_shrinks_what_is_expected() -> None:
    sites, asked = typical_records(), draft("fedcgs", noise="none", parameters={"clip": 0.8})
    study = asked.compile()
    values = federation(study, sites).sum("class-moments").values
    means = values["sums"].sum(axis=0) / values["counts"].sum()
    item = by_quantity(asked, study)["class mean of dose"]
    assert item.size == pytest.approx(means[4] * 3.0, rel=0.1)  # dose runs from -1 to 1 and its mean is a third
    unclipped = draft("fedcgs", noise="none", parameters={"clip": 100.0})
    assert by_quantity(unclipped, unclipped.compile())["class mean of dose"].size == 1.0


class Quiet(FedCGS):
    """A method that says nothing of what it expects."""

    name = "quiet"
    expectations = Method.expectations


def test_a_method_that_says_nothing_is_told_by_its_blocks() -> None:
    asked = draft("fedcgs", epsilon=6.0, parameters={"clip": 3.0, "centre": False})
    study = asked.compile()
    found = Quiet().expectations(study, 4, PER_SITE * 4)
    cost = study_cost(study).tasks[0]
    assert [item.block for item in found] == [f"class-moments: {name}" for name in ("counts", "sums", "squares", "products")]
    assert [item.number for item in found] == [3, 27, 9, 36]
    assert all(item.main for item in found)
    sites = typical_records()
    exact = federation(draft("fedcgs", noise="none", parameters={"clip": 3.0}).compile(), sites).sum("class-moments").values
    # a record with these values, each as often as the block is long, weighs exactly the clip norm
    (declared,) = study.tasks
    weights = {block.name: block.weight for block in build_task(declared.task, declared.parameters, SCHEMA).layout().blocks}
    values = [(item.size * weights[item.block.split(": ")[1]], item.number) for item in found]
    assert math.sqrt(sum(number * value**2 for value, number in values)) == pytest.approx(cost.clip)
    assert max(values)[0] == pytest.approx(min(values)[0])
    drawn = [federation(study, sites, seed).sum("class-moments").values for seed in range(60)]
    for item in found:
        name = item.block.split(": ")[1]
        errors = np.array([(values[name] - exact[name]).ravel() for values in drawn]) / (4 * PER_SITE)
        check_block([(errors.ravel(), item.half_width)])


# -- an error in place of an epsilon ------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["statistics", "fedcgs"]),
    st.floats(0.01, 0.6),
    st.integers(40, PER_SITE),
    st.sampled_from(["distributed", "local"]),
    st.integers(2, 16),
)
def test_an_error_becomes_the_epsilon_that_reaches_it(method: str, error: float, records: int, noise: str, sites: int) -> None:
    exact = draft(method, noise="none", expected_records=records, sites=sites)
    assume(main_error(exact.expectations(exact.compile())) < 0.9 * error)  # patients differ, whatever the noise
    asked = draft(method, error=error, expected_records=records, noise=noise, sites=sites)
    study = asked.compile()
    assert study.privacy.epsilon is not None
    reached = main_error(asked.expectations(study))
    assert error * (1 - 1e-2) <= reached <= error
    # the same epsilon, asked for as such, gives the same error; a tenth less misses it
    again = draft(method, epsilon=study.privacy.epsilon, expected_records=records, noise=noise, sites=sites)
    assert main_error(again.expectations(again.compile())) == pytest.approx(reached, rel=1e-3)
    less = draft(method, epsilon=0.9 * study.privacy.epsilon, expected_records=records, noise=noise, sites=sites)
    assert main_error(less.expectations(less.compile())) > error
    assert plan_study(again, again.compile(), error=error).error_epsilon == pytest.approx(study.privacy.epsilon, rel=1e-6)


def test_an_error_that_needs_next_to_no_epsilon_takes_the_most_noise() -> None:
    schema = SCHEMA.model_copy(update={"max_records": 2**22})
    study = draft(schema=schema, error=1.0).compile()
    assert study.privacy.epsilon is not None
    assert study.privacy.epsilon < 0.01


def test_an_error_out_of_reach_or_too_dear_is_said_with_figures() -> None:
    with pytest.raises(ConfigurationError, match=r"0\.001 of the expected size is out of reach") as caught:
        draft(error=0.001, expected_records=1).compile()
    assert "expected_records" in caught.value.advice
    needed = draft(error=0.05).compile().privacy.epsilon
    assert needed is not None
    assert draft(error=0.05, max_epsilon=needed * 1.01).compile().privacy.epsilon == needed
    with pytest.raises(ConfigurationError, match=rf"takes epsilon {needed:.4g}; max_epsilon is {needed / 2:g}"):
        draft(error=0.05, max_epsilon=needed / 2).compile()
    assert draft(noise="none").compile_for(0.1) is None


# -- verdicts -----------------------------------------------------------------------------------------------------------------


def expectation(share: float, number: int = 1, *, main: bool = True, block: str = "x") -> Expectation:
    return Expectation(block, "q", 1.0, share, number=number, main=main)


@given(st.lists(st.tuples(st.floats(0, 3) | st.just(math.inf), st.integers(1, 5)), min_size=1, max_size=8))
def test_a_part_is_judged_by_more_than_half_of_its_quantities(found: list[tuple[float, int]]) -> None:
    items = [expectation(share, number) for share, number in found]
    every = [share for share, number in found for _ in range(number)]
    lost, rough = (sum(share > limit for share in every) > len(every) / 2 for limit in (1.0, 0.25))
    expected = Outlook.NOTHING if lost else Outlook.WEAK if rough else Outlook.GOOD
    assert outlook(items) is (Outlook.EXACT if max(every) == 0 else expected)
    assert typical_share(items) == sorted(every)[(len(every) - 1) // 2]
    assert [part.number for part in divide(items)] == [len(every)]


@pytest.mark.parametrize(
    ("privacy", "records", "verdict"),
    [
        ({"epsilon": 0.02}, 50, Verdict.NOT_WORTH),
        ({"epsilon": 0.5}, 60, Verdict.WEAK),
        ({"epsilon": 2.0}, 400, Verdict.WORTH),
        ({"noise": "none"}, 400, Verdict.EXACT),
    ],
)
@pytest.mark.parametrize("method", ["statistics", "fedcgs"])
def test_verdicts(method: str, privacy: dict[str, Any], records: int, verdict: Verdict) -> None:
    asked = draft(method, expected_records=records, **privacy)
    assert plan_study(asked, asked.compile()).verdict is verdict


def test_numbers_decide_and_without_them_shares() -> None:
    assert {item.block for item in draft().expectations(draft().compile()) if item.main} == {"means of overview"}
    asked = draft(schema=SCHEMA.model_copy(update={"columns": SCHEMA.columns[5:]}))
    main = {item.block for item in asked.expectations(asked.compile()) if item.main}
    assert main == {"shares of overview", "shares of classes"}


# -- what it costs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sites", "colluders", "honest"), [(4, 1, 3), (9, 2, 7), (2, 1, 1)])
def test_two_guarantees(sites: int, colluders: int, honest: int) -> None:
    study = draft(sites=sites, assumed_colluders=colluders).compile()
    (task,) = study.tasks
    assert epsilon_alone(study) == pytest.approx(
        epsilon_of([GaussianEvent(task.grid, Fraction(task.variance, honest))], study.privacy.delta, "gaussian"), rel=1e-12
    )
    assert epsilon_alone(draft(sites=sites, noise="local").compile()) == pytest.approx(study.privacy.epsilon, rel=1e-3)
    assert epsilon_alone(draft(sites=sites, noise="none").compile()) is None


@pytest.mark.parametrize(
    ("sites", "colluders", "wider"), [(4, 1, 0.1547), (16, 1, 0.0328), (9, 2, 0.1339), (4, 3, 1.0), (2, 1, 0.4142)]
)
def test_a_plan_says_what_assumed_colluders_cost(sites: int, colluders: int, wider: float) -> None:
    """The shares that all sites really draw, against the noise that epsilon counts."""
    asked = draft(sites=sites, assumed_colluders=colluders)
    planned = plan_study(asked, asked.compile())
    assert planned.colluder_cost == pytest.approx(wider, abs=1e-4)
    (task,) = planned.study.tasks
    noise = task_noise(planned.study, task, sites)
    draws = np.sum([noise.draw(4000, SeededRandom(f"colluder {name}".encode())) for name in range(sites)], axis=0)
    assert draws.std() / math.sqrt(task.variance) == pytest.approx(1 + wider, rel=0.05)
    assert planned.to_json()["guarantees"]["noise_added_for_colluders"] == planned.colluder_cost
    local = draft(sites=sites, assumed_colluders=colluders, noise="local")
    assert plan_study(local, local.compile()).colluder_cost is None


def test_losses_compose_with_what_was_spent() -> None:
    study = draft().compile()
    (task,) = study.tasks
    earlier = Mechanism(100, NoisePlan("local", 160_000, 1, 1), steps=3)
    exact = Mechanism(100, NoisePlan("none", 0, 1, 1))
    a, b, c, d = participant_losses(study, {"a": {earlier: 2}, "c": {exact: 1}, "elsewhere": {earlier: 9}})
    this, before = GaussianEvent(task.grid, Fraction(task.variance)), GaussianEvent(100, Fraction(160_000), steps=6)
    assert (a.participant, a.before) == ("a", pytest.approx(epsilon_of([before], 1e-5, "gaussian")))
    assert a.after == pytest.approx(epsilon_of([before, this], 1e-5, "gaussian"))
    assert (b.before, b.after) == (0.0, study.privacy.epsilon)
    assert (c.before, c.after) == (math.inf, math.inf)
    assert d.to_json() == {"participant": "d", "epsilon_so_far": 0.0, "epsilon_after": study.privacy.epsilon}
    assert c.to_json()["epsilon_after"] is None
    assert participant_losses(draft(noise="none").compile(), {})[0].after == math.inf


def test_spending_is_read_back_and_anything_else_is_hostile() -> None:
    spent = Counter({Mechanism(7, NoisePlan("distributed", 900, 3, 2)): 4, Mechanism(5, NoisePlan("none", 0, 1, 1)): 1})
    value = [[item.to_json(), item.noise.colluders, count] for item, count in spent.items()]
    assert read_spending(canonical(value)) == spent
    assert read_spending(b"[]") == Counter()
    mechanism = value[0][0]
    for bad in (
        b"", b"{}x", b"3", b"null", b"[3]", b"[[]]",
        canonical([[mechanism, 2]]), canonical([[mechanism, 2, 0]]), canonical([[mechanism, 2, -1]]),
        canonical([[mechanism, 2, "4"]]), canonical([[mechanism, True, 1]]), canonical([[mechanism, 0, 1]]),
        canonical([[{**mechanism, "variance": [0, 1]}, 2, 1]]), canonical([["x", 1, 1]]), canonical([mechanism]),
    ):  # fmt: skip
        with pytest.raises(HostileInput):
            read_spending(bad)


@contextmanager
def serving(servicer: StudiesServicer) -> Iterator[Remote]:
    """A real server on loopback with this Studies service, without TLS."""
    server = grpc.server(ThreadPoolExecutor(1))
    add_StudiesServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Remote(channel, "hub", f"127.0.0.1:{port}", Path("nowhere"))
    finally:
        server.stop(None).wait()


def test_spending_is_asked_of_the_coordinator_and_an_old_one_does_not_know() -> None:
    study = draft().compile()
    own = study_mechanisms(study)
    events = canonical([[item.to_json(), item.noise.colluders, count] for item, count in own.items()])

    class Telling(StudiesServicer):
        def Spending(self, request: pb.SpendingRequest, context: grpc.ServicerContext) -> pb.SpendingReply:
            assert request.dataset == "clinic"
            return pb.SpendingReply(participants=[pb.ParticipantSpending(participant="b", events=events)])

    class Lying(StudiesServicer):
        def Spending(self, request: pb.SpendingRequest, context: grpc.ServicerContext) -> pb.SpendingReply:
            return pb.SpendingReply(participants=[pb.ParticipantSpending(participant="b", events=b"[[]]")])

    with serving(Telling()) as remote:
        spent = remote.spending("clinic")
    assert spent == {"b": own}
    twice = participant_losses(study, spent)[1]
    assert twice.before == study.privacy.epsilon
    (task,) = study.tasks
    both = GaussianEvent(task.grid, Fraction(task.variance), steps=2)
    assert twice.after == pytest.approx(epsilon_of([both], 1e-5, "gaussian"))
    with serving(StudiesServicer()) as remote:
        assert remote.spending("clinic") is None
    with serving(Lying()) as remote, pytest.raises(HostileInput):
        remote.spending("clinic")


class Repeated(FedCGS):
    """The same task many times."""

    name = "repeated"

    def declare(self, parameters: Frozen, schema: DatasetSchema) -> tuple[TaskPlan, ...]:
        (plan,) = super().declare(parameters, schema)
        return (TaskPlan(plan.label, plan.task, plan.parameters, releases=50),)


def test_bytes_rounds_and_time_grow_with_what_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    once = study_cost(draft("fedcgs", parameters=ONCE).compile())
    monkeypatch.setattr("veilsum_coordinator.methods.METHODS", {"repeated": Repeated()})
    many = study_cost(draft("repeated", parameters=ONCE).compile())
    assert (once.rounds, many.rounds) == (1, 50)
    assert (many.upload, many.fetch, many.deal) == (50 * once.upload, 50 * once.fetch, once.deal)
    assert once.fetch > once.upload  # a fresh ciphertext carries a seed, a sum cannot
    assert 10 < many.seconds / once.seconds < 50
    monkeypatch.undo()
    dear = study_cost(
        draft("fedcgs", parameters=ONCE).compile(), 10_000_000
    )  # 75 values of ten million records take some seconds
    assert 10 < dear.seconds - once.seconds < 100
    assert once.seconds < 10


def test_a_coarse_grid_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    from veilsum_deploy.cli.planned import print_plan

    schema = SCHEMA.model_copy(update={"max_records": 2**16})
    asked = draft("fedcgs", schema=schema, epsilon=8.0, sites=16, parameters=ONCE)
    plan = plan_study(asked, asked.compile())
    (task,) = plan.study.tasks
    assert plan.cost.rounding == pytest.approx(16 * 2**16 / math.sqrt(task.variance))
    assert 0.02 < plan.cost.rounding < 0.1
    print_plan(plan)
    assert "The grid is coarse" in capsys.readouterr().out
    assert not plan_study(draft("fedcgs"), draft("fedcgs").compile()).coarse
    assert plan_study(draft(schema=schema), draft(schema=schema).compile()).cost.rounding == 0  # integers


# -- the screen ---------------------------------------------------------------------------------------------------------------

STUDY = """
name = "averages"
method = "statistics"
dataset = "clinic"
expected_records = 150
[privacy]
epsilon = 1.0
[data]
max_records = 1000
[[data.columns]]
kind = "number"
name = "age"
unit = "years"
low = 0
high = 120
[[data.columns]]
kind = "category"
name = "smoker"
categories = ["no", "yes"]
"""


def show(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return veilsum(capsys, "study", "plan", *arguments)


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("VEILSUM_COORDINATOR", "VEILSUM_IDENTITY"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def test_a_plan_without_a_connection_in_a_process_of_its_own(study_file: Path) -> None:
    command = [sys.executable, "-m", "veilsum_deploy.cli", "study", "plan", str(study_file), "--participants", "4", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=study_file.parent, timeout=120)
    assert result.returncode == 0, result.stderr
    body = json.loads(result.stdout)
    assert set(body) == {
        "name", "method", "dataset", "cost", "guarantees", "participants", "records_per_site", "parts", "quantities",
        "verdict", "rule", "wanted", "notes",
    }  # fmt: skip
    assert body["cost"]["participants"] == ["site-1", "site-2", "site-3", "site-4"]
    assert body["participants"] is None
    assert body["verdict"] == "worth it"
    assert body["records_per_site"] == {"expected": 150, "stated": True}
    assert body["wanted"]["error"] == 0.1
    (mean,) = [item for item in body["quantities"] if item["block"] == "means of overview"]
    sampling = 1.96 * 20 / math.sqrt(600)  # at a spread of a third; the noise comes on top
    assert 1.5 * sampling < mean["half_width_95"] < 2.5 * sampling
    assert mean["unit"] == "years"
    assert list(study_file.parent.iterdir()) == [study_file]  # a plan writes nothing


def test_the_screen_says_it_in_words_and_fits(
    study_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    code, text, _ = show(capsys, study_file, "--participants", 4)
    assert code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert max(map(len, text.splitlines())) <= 100
    words = " ".join(text.split())
    for expected in (
        "epsilon 1 at delta 1e-05 for one record",
        "mean of age │ ± 3.3 years │ 60 (half of the column's range)",
        "Its budget stays private",
        "150 records at every site",
        "Verdict: worth it.",
        "To tell all means of overview to within 10% of their expected size",
    ):
        assert expected in words, text
    assert "a share of it; not counting 1 of 4 shares makes it 15% wider" in re.sub(r"[│\s]+", " ", text)
    assert "enyi" not in text


def test_a_delta_of_no_guarantee_is_said_with_the_verdict(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file.write_text(STUDY.replace("epsilon = 1.0", "epsilon = 1.0\ndelta = 0.3"))
    body = json.loads(show(capsys, study_file, "--participants", 4, "--json")[1])
    (warning,) = (note for note in body["notes"] if "Delta 0.3 is above 1 / 150" in note)
    assert "about 45 of them" in warning
    _, text, _ = show(capsys, study_file, "--participants", 4)
    assert warning in text
    assert "Verdict: worth it. But its delta guarantees too little" in text
    study_file.write_text(STUDY)
    assert "delta guarantees" not in show(capsys, study_file, "--participants", 4)[1]


def test_a_hopeless_study_is_told_and_what_it_would_take(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file.write_text(STUDY.replace("epsilon = 1.0", "epsilon = 0.01"))
    _, text, _ = show(capsys, study_file, "--participants", 4)
    assert "Verdict: not worth its epsilon. The noise hides the means of overview" in text
    body = json.loads(show(capsys, study_file, "--participants", 4, "--json", "--error", 0.04)[1])
    assert body["wanted"]["error"] == 0.04
    study_file.write_text(STUDY.replace("epsilon = 1.0", "error = 0.04"))
    again = json.loads(show(capsys, study_file, "--participants", 4, "--json")[1])
    assert again["cost"]["epsilon"] == pytest.approx(body["wanted"]["epsilon"], rel=1e-9)
    assert again["wanted"] == {"error": 0.04, "epsilon": again["cost"]["epsilon"]}


def test_lost_figures_are_null_in_json(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file.write_text(STUDY.replace("epsilon = 1.0", "epsilon = 0.01").replace("= 150", "= 5"))
    body = json.loads(show(capsys, study_file, "--participants", 4, "--json")[1])
    (mean,) = [item for item in body["quantities"] if item["block"] == "means of overview"]
    assert (mean["half_width_95"], mean["share"]) == (None, None)
    assert "lost in the noise" in show(capsys, study_file, "--participants", 4)[1]


def test_without_expected_records_the_bound_is_taken_and_said(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file.write_text(STUDY.replace("expected_records = 150\n", ""))
    _, text, _ = show(capsys, study_file, "--participants", 4)
    assert "if every site had 1,000 records" in text
    assert "states no expected_records" in text


@pytest.mark.parametrize(
    ("arguments", "changed", "message"),
    [
        (("--participants", 4, "--error", 0), "", "above 0 and at most 1"),
        (("--participants", 1), "", ""),
        ((), "", "No coordinator is named"),
        (("--participants", 3), 'participants = ["a", "b"]\n', "names 2 participants, not 3"),
        (("--participants", 4), "expected = 3\n", "unknown key"),
    ],
)
def test_what_cannot_be_planned_is_explained(
    study_file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], changed: str, message: str
) -> None:
    study_file.write_text(changed + STUDY)
    code, _, err = show(capsys, study_file, *arguments)
    assert code == 2
    assert message in " ".join(err.split())


def test_named_participants_are_planned_for(study_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study_file.write_text('participants = ["west", "east"]\n' + STUDY)
    body = json.loads(show(capsys, study_file, "--participants", 2, "--json")[1])
    assert body["cost"]["participants"] == ["east", "west"]


@pytest.mark.parametrize(
    ("privacy", "held"),
    [
        ({"noise": "none", "epsilon": None}, "without noise"),
        ({"cohort_difference": "strict"}, "of one cohort only"),
        ({"cohort_difference": "allowed"}, ""),
        ({}, ""),
    ],
)
def test_a_plan_says_that_a_study_is_held_to_earlier_cohorts(privacy: dict[str, Any], held: str) -> None:
    asked = draft(**privacy)
    found = [
        note for note in plan_study(asked, asked.compile()).notes if "held to the cohorts of earlier such studies" in note
    ]
    assert [note.split(" is held")[0].removeprefix("A study ") for note in found] == ([held] if held else [])


def test_a_plan_says_what_a_person_at_two_sites_costs() -> None:
    """Against dp-accounting: twice the sensitivity under shared noise, two releases where each site has noise of its own."""

    def plan_of(noise: str, unit: str = "subject") -> tuple[Study, list[str]]:
        asked = draft(noise=noise, unit=unit, parameters={"person": "first"} if unit == "subject" else {})
        study = asked.compile()
        return study, [note for note in plan_study(asked, study).notes if "two of the sites" in note]

    for noise, factor, releases in (("distributed", 2.0, 1), ("local", 1.0, 2)):
        study, notes = plan_of(noise)
        (task,) = study.tasks
        multiplier = math.sqrt(task.variance) / task.grid / factor
        accountant = PLDAccountant()
        accountant.compose(SelfComposedDpEvent(GaussianDpEvent(multiplier), releases))
        assert twofold_epsilon(study) == pytest.approx(accountant.get_epsilon(0.9 * study.privacy.delta), rel=1e-3)
        assert f"epsilon is {twofold_epsilon(study):.3g}" in notes[0]
    assert plan_of("distributed", "record")[1] == []
