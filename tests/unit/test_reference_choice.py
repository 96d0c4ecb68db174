"""The choice of an alignment's reference by the release: what predicts best, what tells two classes best, or none."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from support.studies import SITES, compiled, run, shifted_sites
from veilsum_aggregation import reference_choice
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.heads import LinearHead
from veilsum_aggregation.reference_choice import held_out_errors, split, two_class_accuracy
from veilsum_aggregation.two_way import SiteMoments, fit_two_way
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.reference_choice import choose_reference
from veilsum_participant.applying.model import Model
from veilsum_privacy.tasks.base import Records

Floats = NDArray[np.float64]


def moments_of(
    rng: np.random.Generator, *, shift: float, slope: float, sites: int = 5, classes: int = 5, width: int = 6
) -> SiteMoments:
    """Class means of normal classes with the identity as covariance, shifted and turned at sites, of 30 to 60 records."""
    counts = rng.integers(30, 60, (sites, classes)).astype(float)
    means = rng.standard_normal((classes, width))
    turned = np.eye(width) + slope * rng.standard_normal((sites, width, width))
    own = np.einsum("sde,ce->scd", turned, means) + shift * rng.standard_normal((sites, 1, width))
    own += rng.standard_normal(own.shape) / np.sqrt(counts)[:, :, None]
    return SiteMoments(counts, own, np.tile(np.eye(width), (sites, 1, 1)), counts.sum(axis=1) - classes)


def test_errors_are_those_of_fits_without_the_class() -> None:
    """Against whole fits to the moments without it, and without a shift against the mean over the other sites."""
    site = moments_of(np.random.default_rng(3), shift=0.7, slope=0.2)
    found = held_out_errors(site)
    assert found is not None
    squares: list[list[float]] = [[], []]
    for s in range(5):
        for c in range(5):
            counts = site.counts.copy()
            counts[s, c] = 0.0
            share = site.counts[s, c] / site.counts[s].sum()
            mean = np.average(np.delete(site.means[:, c], s, axis=0), axis=0, weights=np.delete(site.counts[:, c], s))
            fit = fit_two_way(SiteMoments(counts, site.means, site.within, site.degrees), rounds=60)
            for own, predicted in zip(squares, (mean, fit.class_means[c] + fit.shifts[s]), strict=True):
                own.append(share * float(np.sum((site.means[s, c] - predicted) ** 2)))
    plain, shifted = (sum(own) / 5 / 6 for own in squares)
    assert found[0] == pytest.approx(plain, rel=1e-12)
    assert found[1] == pytest.approx(shifted, rel=0.02)
    assert plain > 2.0 * shifted


@pytest.mark.parametrize("slope", [0.0, 0.3])
def test_sites_that_differ_are_told_from_sites_that_do_not(slope: float) -> None:
    """Always where they do; where they do not a shift that takes hardly anything out is as good at times."""
    picked = dict.fromkeys((0.0, 0.5), 0)
    for seed, shift in itertools.product(range(10), picked):
        errors = held_out_errors(moments_of(np.random.default_rng(seed), shift=shift, slope=slope * (shift > 0.0), sites=8))
        assert errors is not None
        picked[shift] += errors[1] < errors[0]
    assert picked[0.5] == 10
    assert picked[0.0] <= 6


def test_classes_that_no_other_site_has_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    site = moments_of(np.random.default_rng(1), shift=0.5, slope=0.0, sites=2, classes=4)
    alone = SiteMoments(site.counts * [[1, 1, 0, 0], [0, 0, 1, 1]], site.means, site.within, site.degrees)
    assert held_out_errors(alone) is None
    monkeypatch.setattr(reference_choice, "MOST_CELLS", 40)
    many = moments_of(np.random.default_rng(1), shift=0.5, slope=0.0, sites=8, classes=12)
    errors = held_out_errors(many)
    assert errors is not None
    assert errors[1] < errors[0]


def blocks_of(x: Floats, y: NDArray[np.int64], classes: int = 2) -> dict[str, Floats]:
    member = (y[:, None] == np.arange(classes)).astype(float)
    second = x.T @ x
    return {
        "counts": member.sum(axis=0),
        "sums": member.T @ x,
        "squares": np.diag(second),
        "products": second[np.triu_indices(x.shape[1], 1)],
    }


def within_of(blocks: dict[str, Floats]) -> Floats:
    m = blocks["squares"].size
    second = np.zeros((m, m))
    second[np.triu_indices(m, 1)] = blocks["products"]
    second = second + second.T + np.diag(blocks["squares"])
    return np.asarray(second - (blocks["sums"] / blocks["counts"][:, None]).T @ blocks["sums"])


def test_parts_are_independent_and_have_the_stated_errors() -> None:
    rng = np.random.default_rng(2)
    x, y = rng.standard_normal((200, 3)), np.arange(200) % 2
    blocks, within, noise = blocks_of(x, y), np.diag([1.0, 4.0, 0.25]), {"sums": 2.0, "squares": 3.0}
    drawn = [split([blocks], noise, within, 0.5, rng) for _ in range(3000)]
    first = np.array([part.fit[0]["sums"][1] for part in drawn]) - blocks["sums"][1]
    second = np.array([part.tried[0]["sums"][1] for part in drawn]) - blocks["sums"][1]
    assert drawn[0].noise == pytest.approx({"sums": 2.0 * 1.25**0.5, "squares": 3.0 * 1.25**0.5})
    added = 100 * np.diag(within) + 4.0  # sampling of 100 records, and noise
    for got, factor in ((first, 0.25), (second, 4.0)):
        for column in range(3):
            statistic = np.sum(got[:, column] ** 2) / (factor * added[column])
            assert 1e-4 < stats.chi2.cdf(statistic, 3000) < 1 - 1e-4
    # cov(x + r g, x - g / r) = var(x) - var(g) = 0 over draws of x of the same variance: here, that g is the same in both.
    np.testing.assert_allclose(second, -4.0 * first, atol=1e-9)
    clear = split([blocks], {}, within, 0.5, rng)
    for part in (clear.fit[0], clear.tried[0]):
        np.testing.assert_allclose(within_of(part), within_of(blocks), atol=1e-9)
        assert np.abs(part["sums"] - blocks["sums"]).max() > 1.0
        np.testing.assert_array_equal(part["counts"], blocks["counts"])


def test_the_accuracy_of_a_head_is_that_of_drawn_records() -> None:
    rng = np.random.default_rng(5)
    spreads = [np.array([[1.0, 0.6], [0.6, 2.0]]), np.eye(2)]
    centres = [np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.5, 0.0], [0.0, 1.5]])]
    counts, head = (
        np.array([[30.0, 70.0], [60.0, 20.0]]),
        LinearHead(np.array([[0.5, -1.0], [1.0, 1.0]]), np.array([0.3, -0.4]), ("a", "b")),
    )
    maps = [AffineMap(np.array([[1.0, 0.2], [0.0, 0.8]]), np.array([0.1, -0.2])), AffineMap.identity(2)]
    sites = [{"sums": centre * own[:, None]} for centre, own in zip(centres, counts, strict=True)]
    shares = []
    for mapped, centre, spread, own in zip(maps, centres, spreads, counts, strict=True):
        right = 0.0
        for label in (0, 1):
            x = rng.multivariate_normal(centre[label], spread, 200_000) @ mapped.matrix.T + mapped.offset
            right += own[label] / own.sum() * float(np.mean(head.predict(x) == label))
        shares.append(right)
    assert two_class_accuracy(head, maps, sites, counts, spreads) == pytest.approx(np.mean(shares), abs=0.003)
    none = np.vstack([counts, [0.0, 0.0]])
    assert two_class_accuracy(head, [*maps, maps[0]], [*sites, sites[0]], none, [*spreads, spreads[0]]) == pytest.approx(
        np.mean(shares), abs=0.003
    )


def two_classes(
    kind: str, seed: int
) -> tuple[dict[str, tuple[Floats, NDArray[np.int64]]], dict[str, tuple[Floats, NDArray[np.int64]]]]:
    """Six sites of two classes: shifted by their instruments, or by who their patients are, the iller the more ill of them."""
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((2, 8)) / 3
    train, test = {}, {}
    for site in range(6):
        how_ill = rng.normal()
        share = 1 / (1 + np.exp(-2.0 * how_ill)) if kind == "patients" else 0.5
        shift = how_ill * (means[1] - means[0]) if kind == "patients" else rng.standard_normal(8)
        for part, number in ((train, 300), (test, 500)):
            y = (rng.random(number) < share).astype(np.int64)
            part[f"s{site}"] = (means[y] + shift + rng.standard_normal((number, 8)), y)
    return train, test


def released(train: dict[str, tuple[Floats, NDArray[np.int64]]], std: float = 0.0) -> Release:
    rng = np.random.default_rng(0)
    sites = [blocks_of(*own) for own in train.values()]
    values = {name: np.array([own[name] for own in sites]) for name in sites[0]}
    values = {name: array + std * rng.standard_normal(array.shape) for name, array in values.items()}
    return Release("alignment", 1, values, dict.fromkeys(values, std), tuple(train), b"")


@pytest.mark.parametrize("std", [pytest.param(0.0, marks=pytest.mark.system), 6.0])
@pytest.mark.parametrize(("kind", "right"), [("instruments", "aligned"), ("patients", "none")])
def test_two_classes_are_aligned_where_that_tells_them_better(kind: str, right: str, std: float) -> None:
    """In most draws, and what is chosen is what scikit-learn's discriminant does better on records that were not used."""
    chosen, gains = [], []
    for seed in range(4):
        train, test = two_classes(kind, seed)
        choice, why = choose_reference(released(train, std), tau=0.0, shrinkage="auto", rounds=10)
        assert set(why["estimated_accuracies"]) == {"none", "two-way", "slopes"}
        chosen.append("none" if choice == "none" else "aligned")
        shifts = {name: np.mean([x[y == label].mean(axis=0) for label in (0, 1)], axis=0) for name, (x, y) in train.items()}
        accuracies = []
        for moved in (False, True):
            x = np.concatenate([own - moved * shifts[name] for name, (own, _) in train.items()])
            fitted = LinearDiscriminantAnalysis().fit(x, np.concatenate([y for _, y in train.values()]))
            accuracies.append(np.mean([fitted.score(own - moved * shifts[name], y) for name, (own, y) in test.items()]))
        gains.append(accuracies[1] - accuracies[0])
    assert chosen.count(right) >= 3
    assert (np.mean(gains) > 0.005) == (right == "aligned")
    assert (np.mean(gains) < -0.005) == (right == "none")


def test_the_choice_is_a_function_of_the_release() -> None:
    train, _ = two_classes("instruments", 1)
    first = choose_reference(released(train, 6.0), tau=0.4, shrinkage="auto", rounds=10)
    assert first == choose_reference(released(train, 6.0), tau=0.4, shrinkage="auto", rounds=10)
    shapes = {"counts": (2, 3), "sums": (2, 3, 2), "squares": (2, 2), "products": (2, 1)}
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    nothing = Release("alignment", 1, zeros, dict.fromkeys(zeros, 5.0), ("a", "b"), b"")
    assert choose_reference(nothing, tau=0.4, shrinkage="auto", rounds=10) == ("slopes", {})


def alike() -> dict[str, Records]:
    """Sites whose records are drawn alike, by a seed for which no shift predicts better than none."""
    rng, found = np.random.default_rng(1), {}
    for name in SITES:
        x, y = rng.uniform(-0.4, 0.4, (120, 6)), np.arange(120) % 3
        x[np.arange(120), y] += 0.5
        found[name] = Records(x, np.ones(x.shape, dtype=np.bool_), y)
    return found


def settings(**more: Any) -> dict[str, Any]:
    return {"alignment": {"mode": "one-shot", **more}}


@pytest.mark.parametrize("method", ["slot-align", "fedcgs", "o-fedavg"])
def test_methods_build_on_what_was_chosen(method: str) -> None:
    for sites, right in ((alike(), "none"), (shifted_sites(shift=0.25), "slopes")):
        result = run(method, settings(), sites)
        about = result.summary if method == "slot-align" else result.summary["alignment"]
        assert (about["reference"], about["chosen"]) == ("auto", right)
        assert (about["held_out_errors"]["two-way"] < about["held_out_errors"]["none"]) == (right == "slopes")
        model = Model.from_result(result)
        features = model.features(sites[SITES[0]], site=SITES[0])
        if right == "none":
            np.testing.assert_allclose(features, sites[SITES[0]].features, atol=1e-15)
            assert all(not row["aligned"] for row in about["sites"])
        else:
            stated = Model.from_result(run(method, settings(reference=right), sites))
            np.testing.assert_allclose(features, stated.features(sites[SITES[0]], site=SITES[0]), atol=1e-12)


def test_a_study_over_sums_states_what_it_takes() -> None:
    assert compiled("fedcgs", {"alignment": {"mode": "iterated"}}).parameters["alignment"]["reference"] == "slopes"
    for reference in ("slopes", "two-way", "barycenter"):
        study = compiled("fedcgs", settings(reference=reference))
        assert study.parameters["alignment"]["reference"] == reference
