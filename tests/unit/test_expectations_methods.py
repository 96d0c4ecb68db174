"""What plans of aligned studies promise: the noise of one site's moments and of all, covariances that drown, what is shown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from support.studies import CLASSES, SCHEMA, SITES, WIDTH, compiled, draft, federation, projection, shifted_sites
from veilsum.plan import Outlook, Verdict, plan_study
from veilsum_aggregation.feature_moments import moments_of_sums
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.expectations import released_noise
from veilsum_coordinator.parts.expected_moments import DIRECTIONS, Noised, direction_expectations
from veilsum_coordinator.parts.joint_moments import joined
from veilsum_coordinator.parts.moment_alignment import records_to_align
from veilsum_deploy.cli.planned import print_plan
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, LabelColumn, NumberColumn

DRAWS = 60


def alignment(reference: str = "two-way", mode: str = "one-shot") -> dict[str, Any]:
    return {"alignment": {"reference": reference, "mode": mode}}


def wide(columns: int, records: int) -> DatasetSchema:
    label = SCHEMA.label
    assert isinstance(label, LabelColumn)
    return DatasetSchema(
        columns=tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(columns)),
        label=label,
        max_records=records,
    )


@pytest.mark.parametrize("mode", ["one-shot", "iterated"])
def test_noise_of_one_site_is_that_of_its_released_or_kept_moments(mode: str) -> None:
    sites = shifted_sites(100)
    parameters = {**alignment(mode=mode), "clip": 2.0}
    exact = federation(compiled("slot-align", parameters), sites).sum("alignment").values
    study = compiled("slot-align", parameters, epsilon=4.0)
    errors: dict[str, list[np.ndarray]] = {}
    together: list[np.ndarray] = []
    for seed in range(DRAWS):
        own = federation(study, sites, seed)
        release = own.sum("alignment")
        if mode == "one-shot":
            blocks = {name: array[0] for name, array in release.values.items()}
            truth = {name: array[0] for name, array in exact.items()}
            together.append(joined(release).values["sums"] - exact["sums"].sum(axis=0))
        else:
            blocks = own.kept_blocks("a", "alignment")
            alone = federation(compiled("slot-align", parameters), sites)
            alone.sum("alignment")
            truth = alone.kept_blocks("a", "alignment")
            together.append(release.values["sums"] - exact["sums"])
        for name, array in blocks.items():
            errors.setdefault(name, []).append(array - truth[name])
    stated = Noised.of_site(study, "alignment", 2.0, 4, 400)
    assert (stated.records, stated.copies) == (100, 4)
    for name in ("sums", "products"):
        assert np.sqrt(np.mean(np.square(errors[name]))) == pytest.approx(stated.std[name], rel=0.12)
    whole = Noised.together(study, "alignment", 2.0, 4, 400)
    assert np.sqrt(np.mean(np.square(together))) == pytest.approx(whole.std["sums"], rel=0.12)
    assert whole.std["sums"] == pytest.approx(stated.std["sums"] * 2.0)


def test_the_worst_direction_of_noise_is_as_large_as_stated() -> None:
    study = compiled("slot-align", alignment("barycenter"), schema=wide(100, 500), epsilon=1.0)
    noised = Noised.of_site(study, "alignment", 5.0, 4, 2000)
    (item,) = direction_expectations(noised)
    rng = np.random.default_rng(0)
    upper = np.triu(rng.normal(size=(100, 100)), 1) * noised.std["products"]
    noise = (upper + upper.T + np.diag(rng.normal(size=100)) * noised.std["squares"]) / 500
    assert np.linalg.eigvalsh(noise)[-1] == pytest.approx(item.half_width, rel=0.15)
    # a third of half the range, and the clip norm 5 is above the expected norm of sqrt(100 * 2 / 9)
    assert item.size == pytest.approx(1 / 9)


@pytest.mark.parametrize("reference", ["two-way", "barycenter"])
@pytest.mark.parametrize("mode", ["one-shot", "iterated"])
def test_a_plan_warns_where_covariances_of_many_features_drown(reference: str, mode: str) -> None:
    rng = np.random.default_rng(0)
    named, _ = projection(rng.normal(size=(64, 70)), np.zeros(64))
    asked = draft("slot-align", alignment(reference, mode), schema=wide(70, 500), encoder=named, epsilon=1.0, expected=500)
    plan = plan_study(asked, asked.compile())
    (part,) = (part for part in plan.parts if part.name == DIRECTIONS)
    assert part.outlook is Outlook.NOTHING
    assert part.main is (reference == "barycenter")
    assert plan.verdict in (Verdict.NOT_WORTH, Verdict.WEAK)
    if reference == "barycenter":
        assert plan.verdict is Verdict.NOT_WORTH
    assert any("Covariances drown in the noise" in note and "larger epsilon" in note for note in plan.notes)
    small, _ = projection(rng.normal(size=(4, 70)), np.zeros(4))
    asked = draft("slot-align", alignment(reference, mode), schema=wide(70, 20_000), encoder=small, epsilon=8.0)
    assert not any("Covariances" in note for note in plan_study(asked, asked.compile()).notes)


def test_a_plan_says_what_is_shown_of_single_sites(capsys: pytest.CaptureFixture[str]) -> None:
    def notes(mode: str, **privacy: Any) -> str:
        asked = draft("fedcgs", alignment(mode=mode), **privacy)
        plan = plan_study(asked, asked.compile())
        print_plan(plan)
        printed = " ".join(capsys.readouterr().out.split())
        assert all(note in printed for note in plan.notes)
        assert plan.to_json()["notes"] == list(plan.notes)
        return " ".join(plan.notes)

    assert "Disclosed per site: alignment" in notes("one-shot", epsilon=9.0)
    assert "noised, by site" in notes("one-shot", epsilon=9.0)
    assert "exactly and without noise" in notes("one-shot")
    assert "determine the covariance of each site" in notes("iterated")
    assert "cost nothing more" in notes("iterated", epsilon=9.0)
    plain = draft("fedcgs", epsilon=9.0)
    assert plan_study(plain, plain.compile()).notes == ()


@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg", "pca"])
@pytest.mark.parametrize("disclosed", [{}, alignment(), alignment("barycenter", "iterated")])
def test_every_method_says_what_matters_most_and_gets_there_by_an_error(method: str, disclosed: dict[str, Any]) -> None:
    parameters = {} if method == "pca" else disclosed
    asked = draft(method, parameters, epsilon=1.0, expected=400)
    found = asked.expectations(asked.compile())
    assert any(item.main for item in found)
    assert all(item.size > 0 and item.half_width > 0 and item.number >= 1 for item in found)
    by_error = draft(method, parameters, error=0.5, expected=400)
    study = by_error.compile()
    assert max(item.share for item in by_error.expectations(study) if item.main) <= 0.5
    exact = draft(method, parameters)
    assert all(item.half_width == 0 for item in exact.expectations(exact.compile()))


SURVEY = SCHEMA.model_copy(
    update={"columns": (*SCHEMA.columns, CategoryColumn(name="event", categories=("no", "yes")))},
)
LOGISTIC = {"family": "logistic", "outcome": "event = 'yes'", "over": ["x0", "x1"]}
NET = {"model": {"name": "linear"}, "learning_rate": 0.2}
PLANNED: dict[str, dict[str, Any]] = {
    "statistics": {},
    "regression": LOGISTIC,
    "pca": {},
    "slot-align": {},
    "o-fedavg": {},
    "fedcgs": {},
    "fedpft": {},
    "gbdt": {},
    "fedsgd": {},
    "fedavg": NET,
    "hfedatm": {**NET, "model": {"name": "mlp", "options": {"hidden": 4}}, "stations": {"x": SITES[:2], "y": SITES[2:]}},
    "ggeur": {},
    "federated-evaluation": {
        "model": {"name": "linear", "options": {"scale": 1.0, "bias": 1.0}},
        "sha256": "0" * 64,
        "classes": CLASSES,
    },
}
STEPWISE = {"fedsgd", "fedavg", "hfedatm"}
"""Methods of which nothing but the noise of one step is known in advance."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("expected", [20, pytest.param(800, marks=pytest.mark.system)])
def test_of_every_method_a_verdict_on_the_models_figures_or_none(
    method: str, expected: int, capsys: pytest.CaptureFixture[str]
) -> None:
    options: dict[str, Any] = {"epsilon": 2.0, **({"min_cohort": 2} if method == "hfedatm" else {})}
    options |= {"noise": "local"} if method in ("fedavg", "hfedatm") else {}
    asked = draft(method, PLANNED[method], SURVEY, expected=expected, **options)
    plan = plan_study(asked, asked.compile())
    print_plan(plan)
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Verdict: {plan.verdict.value}" in printed
    main = [part for part in plan.parts if part.main]
    assert main
    if method in STEPWISE:
        assert (plan.verdict, {part.outlook for part in main}) == (Verdict.NOT_FORECAST, {Outlook.NOT_FORECAST})
        assert plan.error_epsilon is None
        assert "veilsum simulate" in printed
        assert "of their expected size" not in printed.split("Verdict:")[1]
        exact = draft(method, PLANNED[method], SURVEY, expected=expected, **{**options, "epsilon": None, "noise": "none"})
        assert plan_study(exact, exact.compile()).verdict is Verdict.EXACT
    else:
        assert plan.verdict in (Verdict.WORTH, Verdict.WEAK, Verdict.NOT_WORTH)
        assert all(item.forecast for part in plan.parts for item in part.expectations)
    assert {item["forecast"] for item in plan.to_json()["quantities"] if item["main"]} == {method not in STEPWISE}


@pytest.mark.parametrize("share", [0.1, 0.6])
@pytest.mark.parametrize("moments", [{}, {"records": 1.0}, {"order": 4}])
def test_a_plan_says_when_alignment_by_moments_is_in_vain(share: float, moments: dict[str, Any]) -> None:
    """Against whole studies of normal features: below the number of the plan sites stay as they are, above it they align."""
    schema = wide(4, 2**20)
    parameters = {"moments": {"share": share, **moments}, "steps": 5}
    study = draft("fedsgd", parameters, schema, epsilon=2.0, expected=1000).compile()
    needed = records_to_align(study)
    assert needed is not None

    def vain(records: int) -> bool:
        asked = draft("fedsgd", parameters, schema, epsilon=2.0, expected=records)
        return any("will not pay" in note for note in plan_study(asked, asked.compile()).notes)

    assert vain(needed - 1)
    assert not vain(needed)
    noise = {name: std / 2.0 for name, std in released_noise(study, "power-moments", len(SITES)).items()}
    part = moments.get("records", 0.5)

    def told(records: int) -> float:
        rng, aligned = np.random.default_rng(0), 0
        for _ in range(200):
            number = round(part * records)
            x = np.clip(1 / 3 + rng.standard_normal((number, 4)) / 3, -1, 1)
            sums = {"count": np.array([float(number)]), "t1": x.sum(axis=0), "t2": (2 * x**2 - 1).sum(axis=0)}
            noised = {name: values + noise[name] * rng.standard_normal(values.shape) for name, values in sums.items()}
            aligned += int((moments_of_sums(noised, noise).order >= 2).sum())
        return aligned / 800

    assert told(needed // 3) < 0.3
    assert told(3 * needed) > 0.9
    plain = draft("fedsgd", {"steps": 5}, schema, epsilon=2.0, expected=10)
    assert not any("will not pay" in note for note in plan_study(plain, plain.compile()).notes)


def test_an_aligned_discriminant_is_expected_to_be_known_as_well_as_its_release() -> None:
    asked = draft("fedcgs", alignment(), epsilon=1.0, expected=400)
    found = {item.quantity: item for item in asked.expectations(asked.compile())}
    plain = draft("fedcgs", {"centre": False}, epsilon=1.0, expected=400)
    alone = {item.quantity: item for item in plain.expectations(plain.compile())}
    count = "count of each class of y"
    # four blocks with the noise S^2 of their own sites, against 4/3 S^2 of four sites of which three count
    assert found[count].half_width == pytest.approx(math.sqrt(3.0) * alone[count].half_width, rel=1e-3)
    assert found[count].number == len(CLASSES)
    assert found["class mean of x0"].main
    assert sum(item.number for item in found.values() if item.block == "class means") == len(CLASSES) * WIDTH
