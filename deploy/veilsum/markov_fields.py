"""Synthetic records from a Markov random field of many pairs, fitted to the same noised contrasts as the tree.

The field has the largest entropy of all distributions that explain the contrasts as well (McKenna, Sheldon and Miklau 2019);
the package mbi fits it and draws from it. A pair is part of it if its interaction is well above what noise alone
would be, the strongest first, as long as exact inference stays cheap. Measured against the tree: docs/results.md.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.contrasts import PairPlan

Pair = tuple[int, int]

EVIDENCE = 2.0
"""A pair's interaction of k values has at least this times k + 2 for its squared norm, in units of the noise's variance: noise
alone has k, and more than that for 1 to 2% of pairs of two or three levels."""

LARGEST = 0.25
"""Megabytes of the field's tables, which grow with the product of the levels of columns that depend on one another."""

STEPS = 300
"""Steps of mirror descent; the loss hardly falls any more after 200."""


@dataclass(frozen=True)
class MarkovField:
    """A fitted field.

    Attributes:
        pairs: of columns that depend on one another directly, the strongest first.
        model: mbi's.
    """

    pairs: tuple[Pair, ...]
    model: Any

    def sample(self, records: int, seed: int) -> Integers:
        """Draw records: (records, columns) of levels. Counts are those of the field, rounded at random."""
        from mbi.extensions.synthetic_data import synthetic_data

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            drawn = synthetic_data(self.model, max(records, 1), seed=seed).to_dict()
        return np.stack([np.asarray(drawn[name], dtype=np.int64) for name in self.model.domain.attributes], axis=1)[:records]


@dataclass(frozen=True)
class _Contrasts:
    """How mbi asks for a block of the release; compared by identity, as its compiled code wants."""

    matrix: Floats

    def __call__(self, table: Any) -> Any:
        return self.matrix @ table.datavector()

    def op_norm_sq(self) -> float:
        return float(np.linalg.norm(self.matrix, 2) ** 2)

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def fit_field(plan: PairPlan, released: Floats, std: float) -> MarkovField:
    """Fit a field to released contrasts (size of the plan,), each with noise of ``std``.

    Raises:
        ImportError: mbi is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of float32, before it is set
        import jax

        jax.config.update("jax_enable_x64", True)
        from mbi import LinearMeasurement
        from mbi.estimation import MirrorDescent

    domain, pairs = _domain(plan), choose_pairs(plan, released, std)
    names = domain.attributes
    count = max(released[plan.places[()]].item() / plan.blocks[()].item(), 1.0)
    measured = [
        LinearMeasurement(
            released[plan.places[columns]], tuple(names[place] for place in columns), std or 1.0,
            query=_Contrasts(plan.blocks[columns].T.astype(np.float64)),
        )
        for columns in [*((place,) for place in range(len(names))), *pairs]
    ]  # fmt: skip
    return MarkovField(pairs, MirrorDescent().estimate(domain, measured, known_total=count, iters=STEPS))


def choose_pairs(plan: PairPlan, released: Floats, std: float) -> tuple[Pair, ...]:
    """Pairs of columns that depend on one another directly: those with evidence, as far as exact inference stays cheap.

    Raises:
        ImportError: mbi is not installed.
    """
    from mbi.junction_tree import hypothetical_model_size

    domain, pairs = _domain(plan), list[Pair]()
    for pair in _by_strength(plan, released, std):
        cliques = [tuple(domain.attributes[place] for place in each) for each in (*pairs, pair)]
        if hypothetical_model_size(domain, cliques) <= LARGEST:
            pairs.append(pair)
    return tuple(pairs)


def _domain(plan: PairPlan) -> Any:
    from mbi import Domain

    return Domain([f"column {place}" for place in range(len(plan.levels))], list(plan.levels))


def _by_strength(plan: PairPlan, released: Floats, std: float) -> list[Pair]:
    """Pairs with evidence of an interaction, the strongest in units of a cell first."""
    strength: dict[Pair, float] = {}
    for columns in plan.sets:
        if len(columns) == 2:
            block, told = plan.blocks[columns], released[plan.places[columns]]
            excess = float(told @ told) - EVIDENCE * (len(told) + 2) * std**2
            if excess > 0.0:
                strength[columns[0], columns[1]] = excess / float((block[0] ** 2).sum())
    return sorted(strength, key=strength.__getitem__, reverse=True)
