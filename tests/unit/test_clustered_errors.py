"""Errors of a regression clustered by site: statsmodels without noise, coverage with it, and what a site may refuse."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

from support.neighbours import check_rows_stand_alone
from support.studies import STAYS, agreed, demand, drafted, federation
from veilsum.compile import StudyRequest
from veilsum.plan import plan_study
from veilsum_aggregation.clustered import ClusteredFit, SiteErrors
from veilsum_aggregation.families import mean_of
from veilsum_aggregation.figures import MODEL_ERRORS, Figure
from veilsum_aggregation.newton import NewtonFit, NewtonRelease, whitening
from veilsum_aggregation.regression import LinearFit
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.base import Method
from veilsum_coordinator.parts.clustered_errors import SCORES
from veilsum_node.errors import ConfigurationError, HostileInput, RefusalCode
from veilsum_participant.protocol.policy import study_faults
from veilsum_participant.settings.config import ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.computation.looking import task_rows
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.designs import LARGEST_ENTRY
from veilsum_privacy.tasks.hazard_step import PERIODS, POWERS
from veilsum_privacy.tasks.newton_step import POINT, WHITEN
from veilsum_privacy.tasks.site_scores import BASELINE, SCALE

pytestmark = pytest.mark.usefixtures("few_rehearsals", "plans_without_search")

REHEARSALS = Method.rehearsals
SITES = [f"site-{index}" for index in range(6)]
OVER = ["age", "ward", "dose"]
FAMILIES: dict[str, dict[str, Any]] = {
    "linear": {"outcome": "stay"},
    "logistic": {"outcome": "end = 'died'"},
    "poisson": {"outcome": "stay", "most": 30.0},
    "cox": {"outcome": "stay", "event": "end", "censored": ["home"]},
}
MEAN = {
    "linear": np.array([20.0, 2.0, 3.0, -2.0]), "logistic": np.array([-0.4, 0.5, 0.6, -0.5]),
    "poisson": np.array([1.6, 0.3, 0.4, -0.3]), "cox": np.array([-0.4, 0.5, 0.6, -0.5]),
}  # fmt: skip
DIFFERS = {"linear": 1.0, "logistic": 0.3, "poisson": 0.1, "cox": 0.3}


class Pooled:
    """Sites whose slopes differ, and their records as a model sees them, in the clear.

    With ``even`` numbers are at their bounds, so that no record lies farther out than others and none is shortened.
    """

    def __init__(
        self, family: str, each: int = 700, sites: int = 6, seed: int = 0, differs: float | None = None, even: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        self.terms, self.outcome, self.event, self.sites = [], [], [], {}
        for name in SITES[:sites]:
            off = rng.normal(size=4) * (DIFFERS[family] if differs is None else differs) * [0, 1, 1, 1]
            age, ward, dose = rng.uniform(-1, 1, each), rng.integers(0, 2, each), rng.uniform(-1, 1, each)
            age, dose = (np.sign(age), np.sign(dose)) if even else (age, dose)
            x = np.column_stack([np.ones(each), age, ward, dose])
            at = x @ (MEAN[family] + off)
            event, stay = np.zeros(each, dtype=np.bool_), np.full(each, 20.0)
            if family == "linear":
                stay = (at + rng.uniform(-6, 6, each)).clip(0, 40)
            elif family == "poisson":
                stay = rng.poisson(np.exp(at)).clip(0, 40).astype(float)
            elif family == "logistic":
                event = rng.random(each) < 1 / (1 + np.exp(-at))
            else:
                died, left = rng.exponential(size=each) * 20 / np.exp(at), rng.uniform(0, 80, each)
                stay, event = np.minimum(np.minimum(died, left), 40.0), (died <= left) & (died < 40)
            features = np.zeros((each, STAYS.width))
            features[:, 0], features[np.arange(each), 1 + ward] = age, 1.0
            features[:, 3], features[:, 4], features[np.arange(each), 5 + event] = stay / 20 - 1, dose, 1.0
            self.sites[name] = Records(features, np.ones(features.shape, dtype=np.bool_), None)
            self.terms.append(x)
            self.outcome.append(stay)
            self.event.append(event)
        self.groups = np.repeat(np.arange(sites), each)


def request_of(family: str, epsilon: float | None, each: int = 700, **more: Any) -> StudyRequest:
    parameters = {"family": family, "over": OVER, "errors": "clustered", **FAMILIES[family], **more}
    return StudyRequest(
        name="fit", method="regression", dataset="stays", data=STAYS, parameters=parameters, privacy=demand(epsilon),
        expected_records=each,
    )  # fmt: skip


def compiled(family: str, epsilon: float | None, sites: int = 6, **more: Any) -> Study:
    return agreed(request_of(family, epsilon, **more), SITES[:sites])


def figures(summary: Any, errors: str = "") -> list[Any]:
    rows = summary[f"coefficients{errors}"]
    return [row.get("coefficient") or row["log"] for row in rows]


def run(study: Study, pooled: Pooled, seed: int = 0) -> Any:
    return METHODS["regression"].run(federation(study, pooled.sites, seed)).summary


OWN_UNITS = np.array([1.0, 1 / 30, 1.0, 1 / 5])
"""Of age in years and dose, per unit of what they are scaled to."""


def statsmodels_fit(family: str, pooled: Pooled, ends: np.ndarray | None = None) -> Any:
    """A fit with clustered errors, without the correction of statsmodels but for K / (K - 1)."""
    import statsmodels.api as sm

    x, stay, event, groups = np.vstack(pooled.terms), np.hstack(pooled.outcome), np.hstack(pooled.event), pooled.groups
    families = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson()}
    if family == "linear":  # terms are shortened as the release shortens them, which weighs records
        short = np.minimum(1, math.sqrt(1 + 2 / 3 + 1 / 2) / np.linalg.norm(x, axis=1))
        model = sm.WLS(stay, x, weights=short**2)
    elif family == "cox":
        assert ends is not None
        spent = np.clip(stay[:, None], ends[:-1], ends[1:]) - ends[:-1]
        last = np.searchsorted(ends, stay, side="left") - 1
        dead = (np.arange(len(ends) - 1) == last[:, None]) & event[:, None]
        who, period = np.nonzero(spent > 0)
        x = np.hstack([x[who, 1:], (period[:, None] == np.arange(len(ends) - 1)).astype(float)])
        model = sm.GLM(dead[who, period], x, family=sm.families.Poisson(), offset=np.log(spent[who, period]))
        groups = groups[who]
    else:
        model = sm.GLM(event if family == "logistic" else stay, x, family=families[family])
    more = {} if family == "linear" else {"tol": 1e-13}
    return model.fit(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}, **more)


EXACT = {"linear": 0.02, "logistic": 0.002, "poisson": 0.01, "cox": 0.03}
"""Of moments rounded to the grid; of information that is partly of earlier steps; of follow-ups that end early."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("epsilon", [None, 1e4])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_it_is_statsmodels(family: str, epsilon: float | None) -> None:
    pooled = Pooled(family, even=True)
    study = compiled(family, epsilon)
    plain, seen = federation(study, pooled.sites), list[dict[str, np.ndarray]]()
    sums = plain.sum

    def watched(label: str, broadcast: Any = None, **more: Any) -> Any:
        seen.append(dict(broadcast or {}))
        return sums(label, broadcast, **more)

    plain.sum = watched  # type: ignore[method-assign]
    summary = METHODS["regression"].run(plain).summary
    model = statsmodels_fit(family, pooled, np.unique(seen[-1][PERIODS]) * 40 if family == "cox" else None)
    slopes = slice(0, 3) if family == "cox" else slice(1, 4)
    values, errors = model.params[slopes], model.bse[slopes] * math.sqrt(6 / 5)
    rows = figures(summary)[0 if family == "cox" else 1 :]
    exact = EXACT[family] if epsilon is None else 0.03
    for row, figure, value, error, unit in zip(summary["coefficients"][-3:], rows, values, errors, OWN_UNITS[1:], strict=True):
        assert figure["value"] == pytest.approx(unit * value, abs=2 * exact * unit * error)
        assert figure["sampling_error"] == pytest.approx(unit * error, rel=exact)
        half, low = student.ppf(0.975, 5) * unit * error, figure["value"] - figure["low"]
        assert low == pytest.approx(half, rel=exact)
        assert row["p_value"] == pytest.approx(2 * student.sf(abs(value / error), 5), rel=20 * exact)
    assert summary["queries"][0]["errors"] == "clustered by 6 sites"
    beside = figures(summary, f" {MODEL_ERRORS}")
    assert [figure["value"] for figure in beside] == [figure["value"] for figure in figures(summary)]
    alone = run(compiled(family, None, errors="model"), pooled)
    assert alone["queries"][0]["errors"] == MODEL_ERRORS
    if epsilon is None:
        assert figures(alone) == beside
    assert MODEL_ERRORS in summary["coefficients tests"][0]["test"]


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_at_the_exact_estimate_it_is_statsmodels_to_the_last_digits(family: str) -> None:
    pooled = Pooled(family, even=True)
    x, short = np.vstack(pooled.terms), 1.0
    task, y = task_of(family), np.hstack(pooled.event if family == "logistic" else pooled.outcome).astype(float)
    fit: LinearFit | NewtonFit
    if family == "linear":
        y = y / 20 - 1
        short = np.minimum(1, task.parameters.length / np.linalg.norm(x, axis=1))[:, None]
        z = np.column_stack([x, y]) * short
        fit = LinearFit(z.T @ z, 0.0)
        whiten, gamma = whitening(fit.moments[:4, :4], 0.0), fit.coefficients
        influence = np.linalg.inv(fit.moments[:4, :4]) @ np.linalg.inv(whiten)
        gamma = np.linalg.solve(whiten, gamma)
    else:
        whiten = whitening(x.T @ x, 0.0)
        gamma = np.linalg.solve(whiten, statsmodels_fit(family, pooled).params)
        _, variance = mean_of("logistic" if family == "logistic" else "poisson", x @ whiten @ gamma, 30.0)
        information = (x @ whiten).T @ (x @ whiten * variance[:, None])
        fit = NewtonFit(whiten, [NewtonRelease(gamma, np.zeros(4), information, 0.0, 0.0)])
        influence = fit.influence
    scale = 1e-3  # B, which no record's score exceeds
    given = {WHITEN: whiten, POINT: gamma, SCALE: np.full(1, scale)}
    scores = [sum(batch.sum(axis=0) for batch in task_rows(task, own, given)) / scale for own in pooled.sites.values()]
    clustered = ClusteredFit(fit, np.array(scores), 0.0, influence)
    model, unit = statsmodels_fit(family, pooled), 20.0 if family == "linear" else 1.0
    errors = np.sqrt(np.diag(clustered.covariances[1])) * unit
    assert errors == pytest.approx(model.bse * math.sqrt(6 / 5), rel=1e-6)
    np.testing.assert_array_equal(clustered.covariances[0], fit.covariances[0])  # by the fit's noise alone
    assert clustered.all_slopes() == fit.all_slopes()
    for place, value in enumerate(clustered.coefficients):
        figure = clustered.combination(np.eye(4)[place])
        assert isinstance(figure, Figure)
        assert (figure.value, figure.sampling_error * unit) == (pytest.approx(value), pytest.approx(errors[place], rel=1e-6))


@pytest.mark.system
@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_cover_the_effect_over_all_sites_where_sites_differ(family: str) -> None:
    """Those of independent records do not."""
    study, covered, naive = compiled(family, 8.0, 4), [], []
    for seed in range(12):
        summary, truth = run(study, Pooled(family, sites=4, seed=seed, differs=3.0 * DIFFERS[family]), seed), MEAN[family]
        for errors, found in (("", covered), (f" {MODEL_ERRORS}", naive)):
            for figure, value in zip(figures(summary, errors)[-3:], (OWN_UNITS * truth)[1:], strict=True):
                found.append(figure["low"] <= value <= figure["high"])
    assert np.mean(covered) >= 0.85  # of 36
    assert np.mean(naive) <= 0.7


@pytest.mark.system
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "family", [family for family in FAMILIES if family != "poisson"]
)  # typical counts vary more than these
def test_a_plan_foretells_how_much_wider_intervals_are_where_sites_are_alike(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as many rehearsals as plans have: of six, the width by three degrees of freedom is off by a third."""
    monkeypatch.setattr(Method, "rehearsals", REHEARSALS)
    study, wider = compiled(family, 8.0, 4), []
    for seed in range(6):
        summary = run(study, Pooled(family, sites=4, seed=seed, differs=0.0), seed)
        widths = [[each["high"] - each["low"] for each in figures(summary, errors)] for errors in ("", f" {MODEL_ERRORS}")]
        wider += [clustered / alone for clustered, alone in zip(*widths, strict=True)]
    told = []
    for errors in ("clustered", "model"):
        draft = drafted(request_of(family, 8.0, errors=errors), SITES[:4])
        told.append([item.half_width for item in draft.forecast(draft.compile()) if item.main])
    planned = np.divide(*told)
    assert np.all(planned > 1.2)  # Student's t with 3 degrees alone is 1.6 times a normal, and the fit has less of the budget
    assert np.median(wider) == pytest.approx(np.median(planned), rel=0.35)


@pytest.mark.system
def test_only_the_scores_are_disclosed_per_site_under_the_sites_own_noise() -> None:
    for family in FAMILIES:
        study = compiled(family, 1.0)
        (told,) = (task for task in study.tasks if task.disclosure == "per-site")
        assert (told.label, told.own_noise) == (SCORES, True)
        assert all(task.variance for task in study.tasks)
        assert [task for task in compiled(family, 1.0, errors="model").tasks if task.disclosure == "per-site"] == []
        plan = plan_study(drafted(request_of(family, 1.0), SITES), study)
        assert any("per-site" in note for note in plan.notes)
        assert study.privacy.epsilon == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("disclosures", "refused"), [(("joint",), [RefusalCode.DISCLOSURE]), (("joint", "per-site"), [])])
def test_a_site_takes_part_only_if_its_policy_allows_per_site(disclosures: Any, refused: list[RefusalCode]) -> None:
    policy = Policy(analysts=("ana",), trusted=dict.fromkeys(SITES[1:], "0" * 64), disclosures=disclosures)
    config = ParticipantConfig(
        coordinator="localhost:1", datasets={"stays": DatasetConfig(path=Path("stays.npz"))}, policy=policy
    )
    found = list(study_faults(AgreedStudy(compiled("logistic", 1.0)), "ana", config, SITES[0], 1e-5))
    assert [fault.code for fault in found] == refused


def test_two_sites_are_too_few() -> None:
    with pytest.raises(ConfigurationError, match="need 3 sites; the study names 2"):
        compiled("linear", 1.0, 2)
    for family in FAMILIES:  # who asks for no such errors hears nothing of them
        assert all(task.disclosure == "joint" for task in compiled(family, 1.0, 2, errors="model").tasks)
    pooled = Pooled("linear")
    moments = LinearFit(np.eye(3), 0.0)
    told = ClusteredFit(moments, np.ones((2, 2)), 0.0, np.eye(2))
    assert told.drowned is not None
    assert "2 took part" in told.drowned.reason
    noisy = run(compiled("linear", 0.05), pooled)
    assert all("not_estimable" in figure for figure in figures(noisy))


def task_of(family: str, **more: Any) -> Any:
    return AgreedStudy(compiled(family, 1.0, **more)).task(SCORES).task


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_broadcast_makes_a_score_longer_than_1(family: str) -> None:
    task, rng, longest = task_of(family), np.random.default_rng(3), 0.0
    (records, *_) = Pooled(family, each=150).sites.values()
    assert task.clip() == 1.0
    for size in (1e-3, 1.0, 1e3, LARGEST_ENTRY):
        given = {name: rng.uniform(-size, size, array.shape) for name, array in task.example_broadcast(6).items()}
        if family == "cox":
            given[PERIODS], given[POWERS] = np.sort(rng.random(given[PERIODS].shape)), 10.0 ** rng.uniform(-1, 1, 1)
        rows = np.vstack(list(task_rows(task, records, given)))
        assert np.isfinite(rows).all()
        longest = max(longest, float(np.linalg.norm(rows, axis=1).max()))
        check_rows_stand_alone(task, records, given)
    assert 1 - 1e-9 < longest <= 1 + 1e-12


@pytest.mark.parametrize(
    ("family", "name"), [("linear", SCALE), ("linear", WHITEN), ("poisson", POINT), ("cox", BASELINE), ("cox", SCALE)]
)
def test_a_broadcast_of_another_shape_is_refused(family: str, name: str) -> None:
    task = task_of(family)
    given = task.example_broadcast(6)
    for array in (np.zeros(7), given[name] * np.nan, given[name] + 2 * LARGEST_ENTRY):
        with pytest.raises(HostileInput, match=f"must hold {name}"):
            list(task_rows(task, Pooled(family, each=3).sites["site-0"], {**given, name: array}))


# -- the intervals themselves ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sites", [3, 4, 8, 40])
def test_without_noise_the_error_is_students(sites: int) -> None:
    errors = SiteErrors(middle=4.0, hidden=0.0, noise=0.0, sampling=1.0, sites=sites)
    assert errors.half_width() == pytest.approx(2 * student.ppf(0.975, sites - 1), rel=1e-6)
    for value in (0.1, 3.0, 20.0):
        assert errors.figure(value).p_value == pytest.approx(2 * student.sf(value / 2, sites - 1), rel=1e-3, abs=1e-9)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("hidden", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("between", [1.0, 4.0])
@pytest.mark.parametrize("sites", [3, 8])
def test_intervals_cover_whatever_the_noise_hides(sites: int, between: float, hidden: float) -> None:
    """Where the scores' noise is subtracted instead, fewer do: .88 to .94 with 8 sites or more."""
    rng, noise = np.random.default_rng(1), 1.5 * hidden / sites
    estimates = rng.normal(size=400) * math.sqrt(between + noise)
    middles = (between + hidden) * rng.chisquare(sites - 1, 400) / (sites - 1)
    covered = [
        abs(estimate) <= SiteErrors(middle, hidden, noise, 1.0, sites).half_width()
        for estimate, middle in zip(estimates, middles, strict=True)
    ]
    assert np.mean(covered) >= 0.925
    whole = [SiteErrors(middle, hidden, noise, 1.0, sites).half_width() for middle in middles]
    conservative = student.ppf(0.975, sites - 1) * np.sqrt(middles + noise)
    assert np.median(whole / conservative) < 1.0


def test_where_noise_cancels_the_scores_no_interval_is_shorter_than_that_of_independent_records() -> None:
    errors = SiteErrors(middle=1e-6, hidden=4.0, noise=0.5, sampling=1.0, sites=4)
    assert errors.half_width() >= 1.96 * math.sqrt(1.5) * (1 - 1e-4)
    assert errors.figure(0.0).sampling_error == 1.0


def test_no_scores_and_no_noise_leave_no_error() -> None:
    errors = SiteErrors(0.0, 0.0, 0.0, 0.0, 4)
    assert errors.half_width() == 0.0
    assert errors.figure(0.0).p_value == pytest.approx(1.0)
