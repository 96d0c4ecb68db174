"""Synthetic records of a graph: against the records whose contrasts were released, with and without noise."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from veilsum.exports import export_result
from veilsum.markov_fields import EVIDENCE, MarkovField, choose_pairs, fit_field
from veilsum_aggregation.contrasts import PairPlan
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.results.result import Result
from veilsum_privacy.tasks.queries.kinds.synthetic import NOISE, PAIRS, RECORDS, SCALE

LEVELS = (3, 3, 2)
NAMES = ("grade", "stage", "arm")


def ring(records: int) -> NDArray[np.int64]:
    """Three columns of which each depends on both others, as no tree can tell, (records, 3)."""
    rng = np.random.default_rng(5)
    first, second = rng.integers(0, 3, records), rng.integers(0, 3, records)
    second = np.where(rng.random(records) < 0.5, first, second)
    third = (first + second + (rng.random(records) < 0.15)) % 2
    return np.stack([first, second, third], axis=1)


def shares(codes: NDArray[np.int64], *places: int) -> NDArray[np.float64]:
    shape = [LEVELS[place] for place in places]
    cells = np.ravel_multi_index(tuple(codes[:, place] for place in places), shape)
    return np.bincount(cells, minlength=int(np.prod(shape))) / len(codes)


PLAN = PairPlan(LEVELS, 500)
CODES = ring(4000)
SUMS = PLAN.rows(CODES).sum(axis=0).astype(np.float64)


@pytest.fixture(scope="module")
def field() -> MarkovField:
    return fit_field(PLAN, SUMS, 0.0)


@pytest.mark.system
def test_a_field_without_noise_has_the_tables_of_all_pairs(field: MarkovField) -> None:
    assert set(field.pairs) == {(0, 1), (0, 2), (1, 2)}
    drawn = field.sample(4000, 1)
    for pair in field.pairs:
        assert shares(drawn, *pair) == pytest.approx(shares(CODES, *pair), abs=0.005)
    assert shares(drawn, 0, 1, 2) != pytest.approx(shares(CODES, 0, 1, 2), abs=1e-4)  # of the largest entropy, not a copy


@pytest.mark.system
def test_the_same_seed_draws_the_same_records(field: MarkovField) -> None:
    assert np.array_equal(field.sample(4000, 3), field.sample(4000, 3))  # as many as above: mbi compiles for each number anew
    assert not np.array_equal(field.sample(4000, 3), field.sample(4000, 4))


def test_pairs_within_the_noise_are_taken_as_independent() -> None:
    rng = np.random.default_rng(0)
    std = 3.0 * PLAN.norm**0.5
    noise_alone = rng.normal(size=PLAN.size) * std
    noise_alone[PLAN.places[()]] = SUMS[PLAN.places[()]]
    assert choose_pairs(PLAN, noise_alone, std) == ()
    told = {pair: SUMS[PLAN.places[pair]] for pair in PLAN.sets[4:]}
    weakest = min(float(each @ each) / (len(each) + 2) for each in told.values())
    just_below, just_above = ((weakest / EVIDENCE) ** 0.5 * factor for factor in (0.99, 1.01))
    assert len(choose_pairs(PLAN, SUMS, just_below)) == 3
    assert len(choose_pairs(PLAN, SUMS, just_above)) == 2


def result_of() -> Result:
    """A statistics result with a synthetic query, whose own records are of the last level throughout."""
    tree = np.tile(np.array(LEVELS) - 1, (4000, 1))
    levels = [{"column": name, "levels": [*"abc"[:count]]} for name, count in zip(NAMES, LEVELS, strict=True)]
    arrays = {
        f"cohort{RECORDS}": tree,
        f"cohort{PAIRS}": SUMS,
        f"cohort{SCALE}": np.array([500]),
        f"cohort{NOISE}": np.zeros(1),
    }
    return Result("statistics", {f"cohort{RECORDS}": levels}, arrays)


@pytest.mark.system  # test_query_answers.py draws a synthetic cohort by default
def test_an_export_draws_from_the_graph_instead_of_the_tree(tmp_path: Path) -> None:
    for model in ("tree", "graph"):
        export_result(result_of(), tmp_path / model, ["csv"], model)
    rows = {model: list(csv.DictReader((tmp_path / model / "cohort-records.csv").open())) for model in ("tree", "graph")}
    assert {len(each) for each in rows.values()} == {4000}
    assert {row["grade"] for row in rows["tree"]} == {"c"}
    assert {row["grade"] for row in rows["graph"]} == {"a", "b", "c"}


def test_what_a_graph_needs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="Models: tree, graph"):
        export_result(result_of(), tmp_path, ["csv"], "forest")
    bare = result_of()
    bare = Result(bare.method, bare.summary, {name: each for name, each in bare.arrays.items() if not name.endswith(PAIRS)})
    with pytest.raises(ConfigurationError, match="smallest_cell"):
        export_result(bare, tmp_path, ["csv"], "graph")
    monkeypatch.setitem(sys.modules, "mbi", None)
    with pytest.raises(ConfigurationError, match=r"veilsum\[synthetic\]"):
        export_result(result_of(), tmp_path, ["csv"], "graph")
