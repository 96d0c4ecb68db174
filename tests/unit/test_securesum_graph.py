"""Who shares masks with whom, held against networkx and against the exact chance that a cohort falls apart."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any, cast

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom

from veilsum_privacy.securesum import graph
from veilsum_privacy.securesum.graph import (
    CHANCE_BITS,
    NEIGHBOURS,
    SEPARATORS,
    MaskGraph,
    is_complete,
    least_separators,
    mask_graph,
    reach,
)


def _names(count: int) -> tuple[str, ...]:
    return tuple(f"site-{index:04d}" for index in range(count))


def _drawn(made: MaskGraph) -> networkx.Graph:
    drawn = networkx.Graph()
    drawn.add_nodes_from(made.circle)
    drawn.add_edges_from((name, other) for name in made.circle for other in made.neighbours(name))
    return drawn


@settings(deadline=None, max_examples=300)
@given(st.integers(2, 16), st.integers(1, 8), st.data())
def test_separators_are_the_connectivity_of_the_cohort(count: int, far: int, data: st.DataObject) -> None:
    made = MaskGraph(_names(count), min(far, count // 2))
    cohort = data.draw(st.lists(st.sampled_from(made.circle), min_size=2, unique=True))
    assert made.separators(cohort) == networkx.node_connectivity(_drawn(made).subgraph(cohort))


@settings(deadline=None, max_examples=25)
@given(st.integers(30, 60), st.integers(2, 5), st.integers(0, 2**32))
def test_separators_of_larger_cohorts(count: int, far: int, seed: int) -> None:
    made, random = MaskGraph(_names(count), far), np.random.default_rng(seed)
    cohort = [name for name in made.circle if random.random() < 0.8] or list(made.circle)[:2]
    assert made.separators(cohort) == networkx.node_connectivity(_drawn(made).subgraph(cohort))


@pytest.mark.parametrize(("count", "far"), [(2, 1), (5, 2), (6, 2), (9, 4), (9, 3), (100, 32)])
def test_neighbours_are_mutual_and_as_many_for_everyone(count: int, far: int) -> None:
    made = MaskGraph(_names(count), far)
    assert {len(made.neighbours(name)) for name in made.circle} == {min(2 * far, count - 1)}
    assert all(name in made.neighbours(other) and other != name for name in made.circle for other in made.neighbours(name))
    assert made.complete == (2 * far >= count - 1)


def test_small_studies_are_complete_and_large_ones_are_not() -> None:
    for count, complete in ((2, True), (NEIGHBOURS, True), (NEIGHBOURS + 1, True), (NEIGHBOURS + 2, False), (1024, False)):
        made = MaskGraph(_names(count), reach(count, count, SEPARATORS))
        assert made.complete is complete
        assert made.reach <= count // 2
        assert is_complete(count, cast(Any, SimpleNamespace(assumed_colluders=1, min_cohort=count))) is complete
        assert made.separators(made.circle) == (count - 1 if complete else NEIGHBOURS)


@pytest.mark.parametrize("least", [SEPARATORS, 100])
@pytest.mark.parametrize(("members", "smallest"), [(1000, 900), (1000, 500), (1024, 300), (200, 100)])
def test_neighbours_suffice_and_one_on_either_side_fewer_would_not(members: int, smallest: int, least: int) -> None:
    found = reach(members, smallest, least)

    def chance(far: int) -> float:
        return float(members**2 / 2 * hypergeom.cdf(least - 1, members, smallest, 2 * far))

    if 2 * found < members - 1:
        assert chance(found) <= 2.0**-CHANCE_BITS
    assert found == NEIGHBOURS // 2 or chance(found - 1) > 2.0**-CHANCE_BITS


@pytest.mark.parametrize("smallest", [2, SEPARATORS])
def test_cohorts_below_what_must_be_withstood_share_masks_with_everyone(smallest: int) -> None:
    assert MaskGraph(_names(1024), reach(1024, smallest, SEPARATORS)).complete


def test_what_has_to_be_withstood_follows_the_assumed_colluders() -> None:
    privacy = [cast(Any, SimpleNamespace(assumed_colluders=count)) for count in (1, SEPARATORS - 1, SEPARATORS, 300)]
    assert [least_separators(item) for item in privacy] == [SEPARATORS, SEPARATORS, SEPARATORS + 1, 301]
    assert 2 * reach(1000, 1000, 301) >= 301


def test_the_circle_follows_the_roster() -> None:
    privacy = cast(Any, SimpleNamespace(assumed_colluders=1, min_cohort=100))

    def made(roster: bytes) -> MaskGraph:
        members = [SimpleNamespace(name=name) for name in _names(100)]
        return mask_graph(cast(Any, SimpleNamespace(names=_names(100), members=members, digest=roster)), privacy)

    one, other = made(bytes(32)), made(bytes([1] * 32))
    assert one is made(bytes(32))
    drawn = hashlib.sha256(" ".join(one.circle).encode()).hexdigest()  # all parties draw the same, whatever version they run
    assert drawn == "768bef364283334aab63a482f7173a3f7cf79e8f7354984d0bf0dab330083ada"
    assert sorted(one.circle) == sorted(other.circle) == list(_names(100))
    assert one.circle != other.circle
    assert one.circle != _names(100)


def test_a_cohort_of_the_smallest_size_withstands_what_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the bound lets one in eight fail, no more do: it is a bound, and a graph with fewer neighbours breaks it."""
    monkeypatch.setattr(graph, "NEIGHBOURS", 2)
    monkeypatch.setattr(graph, "CHANCE_BITS", 3)
    far = reach.__wrapped__(200, 120, 2)
    random = np.random.default_rng(5)

    def failures(distance: int) -> int:
        made = MaskGraph(_names(200), distance)
        return sum(made.separators(list(random.choice(made.circle, 120, replace=False))) < 2 for _ in range(200))

    assert failures(far) <= 200 / 8 + 3 * np.sqrt(200 / 8)
    assert failures(far // 3) > 100


def test_decided_numbers_of_neighbours() -> None:
    """As decision 73 has them; another number would let no masks cancel between versions."""
    assert [2 * reach(1000, smallest, SEPARATORS) for smallest in (1000, 750, 500, 250, 100)] == [64, 64, 116, 250, 554]
