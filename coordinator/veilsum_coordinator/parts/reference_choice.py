"""The choice of ``reference = "auto"``: which reference an alignment takes, or none, by the release that it is made from.

See :mod:`veilsum_aggregation.reference_choice` for what decides. It is made of released moments, at no cost, with draws from a
public seed, so that whoever has the release makes the same choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import moments
from veilsum_aggregation.alignment import ClassStatistics, class_statistics, stack
from veilsum_aggregation.gaussian import AffineMap
from veilsum_aggregation.heads import LinearHead, lda_head
from veilsum_aggregation.reference_choice import held_out_errors, split, two_class_accuracy
from veilsum_aggregation.two_way import pooled_within
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.joint_moments import joined
from veilsum_coordinator.parts.references import site_blocks, two_way_maps

Floats = NDArray[np.float64]
Shrinkage = Literal["auto", "oas", "noised", "ridge"]

SPLITS = 20
"""How often a release is split where two classes are told apart."""

RATIO = 0.5
"""Of the splits: the part that a head is made of has 1.25 times the release's variance of noise."""

SEED = 59

Choice = Literal["none", "two-way", "slopes"]

REFERENCES: tuple[Literal["two-way", "slopes"], ...] = ("two-way", "slopes")


def usual_reference(classes: int) -> Literal["two-way", "slopes"]:
    """The reference where nothing else is known: with two classes hardly anything tells a slope from a shift."""
    return "slopes" if classes > 2 else "two-way"


def choose_reference(release: Release, *, tau: float, shrinkage: Shrinkage, rounds: int) -> tuple[Choice, dict[str, Any]]:
    """The reference for a per-site release of class moments, and for a summary what decided.

    Args:
        release: with second moments pooled over the classes.
        tau, shrinkage, rounds: of the alignment.
    """
    statistics = [class_statistics(blocks, release.noise_std, shrinkage=shrinkage) for blocks in site_blocks(release)]
    known = [own for own in statistics if own is not None]
    classes = release.values["counts"].shape[-1]
    usual = usual_reference(classes)
    try:
        if not known:
            return usual, {}
        if classes > 2:
            errors = held_out_errors(stack(known), rounds=rounds)
            if errors is None:
                return usual, {}
            plain, shifted = errors
            return usual if shifted < plain else "none", {"held_out_errors": {"none": plain, "two-way": shifted}}
        shares = _accuracies(release, statistics, known, tau=tau, shrinkage=shrinkage, rounds=rounds)
    except ValueError:  # no spread within classes to whiten by
        return usual, {}
    if shares is None:
        return usual, {}
    better: Choice = "slopes" if shares["slopes"] > shares["two-way"] else "two-way"
    return "none" if shares["none"] > shares["two-way"] else better, {"estimated_accuracies": shares}


def _accuracies(
    release: Release,
    statistics: Sequence[ClassStatistics | None],
    known: Sequence[ClassStatistics],
    *,
    tau: float,
    shrinkage: Shrinkage,
    rounds: int,
) -> dict[Choice, float] | None:
    """Of heads without an alignment and after each reference, over splits; None where no part tells both classes."""
    pooled = pooled_within(np.array([own.within for own in known]), np.array([own.degrees for own in known]))
    width, sites, rng = len(pooled), site_blocks(release), np.random.default_rng(SEED)
    counts = np.array([np.zeros(2) if own is None else own.counts for own in statistics])
    spreads = [
        pooled if own is None else (own.degrees * own.within + width * pooled) / (own.degrees + width) for own in statistics
    ]
    found: dict[Choice, list[float]] = {"none": [], "two-way": [], "slopes": []}
    for _ in range(SPLITS):
        parts = split(sites, release.noise_std, pooled, RATIO, rng)
        values = {name: np.array([blocks[name] for blocks in parts.fit]) for name in release.values}
        own_part = replace(release, values=values, noise_std=parts.noise)
        identity = tuple(AffineMap.identity(width) for _ in sites)
        maps: dict[Choice, tuple[AffineMap, ...]] = {"none": identity}
        for kind in REFERENCES:
            fitted = two_way_maps(own_part, tau=tau, shrinkage=shrinkage, rounds=rounds, kind=kind)
            maps[kind] = identity if fitted is None else fitted
        heads = {choice: _head(joined(own_part, own)) for choice, own in maps.items()}
        for choice, shares in found.items():
            head = heads[choice]
            if head is not None:
                shares.append(two_class_accuracy(head, maps[choice], parts.tried, counts, spreads))
    # Counts decide whether there is a head, and an alignment leaves these as they are: all have equally many.
    return {choice: float(np.mean(shares)) for choice, shares in found.items()} if found["none"] else None


def _head(release: Release) -> LinearHead | None:
    """The discriminant of two classes from joint moments, None where one is within its noise."""
    counts, sums, std = release.values["counts"], release.values["sums"], release.noise_std
    if any(moments.within_noise(float(number), std["counts"]) for number in counts):
        return None
    second = moments.symmetric(release.values["squares"], release.values.get("products", np.zeros(0)))
    number = float(counts.sum())
    within = moments.within_covariance(counts, sums, second, std["sums"])
    if std["squares"] > 0.0:
        covariance = moments.shrink_noised(within, number, std["squares"], std.get("products", 0.0))
    else:
        covariance = moments.shrink_oas(within, number)
    floor = max(1e-9 * float(np.trace(covariance)) / len(covariance), 1e-12)
    return lda_head(sums / counts[:, None], moments.project_psd(covariance, floor=floor), counts, ("first", "second"))
