"""How far synthetic records of a tree and of a graph lie from the records: ``python -m evaluations.synthetic``.

The release is the contrasts of all pairs of columns, with the noise of a release at delta 1e-5: ten columns of the German
Breast Cancer Study Group 2 trial, numbers in eight intervals (lifelines), and nine of Fair's survey of marriages
(statsmodels), three quarters of it, or more records drawn from it with replacement. Distances are total variation, the mean
over all pairs and all triples of columns, and the least is that of as many records drawn anew from the same ones.
"""

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import numpy as np
from lifelines.datasets import load_gbsg2
from statsmodels.datasets import fair

from veilsum.markov_fields import fit_field
from veilsum_aggregation.arrays import Integers
from veilsum_aggregation.contrasts import PairPlan
from veilsum_aggregation.synthetic import pair_tree
from veilsum_privacy.accounting.figures import calibrate_noise_multiplier

NUMBERS = {"age": (20, 90), "tsize": (0, 120), "pnodes": (0, 30), "progrec": (0, 500), "estrec": (0, 500), "time": (0, 2700)}
CATEGORIES = ("horTh", "menostat", "tgrade", "cens")


def trial() -> tuple[Integers, tuple[int, ...]]:
    """The trial's records as levels (686, 10), and how many each column has."""
    rows = load_gbsg2()
    codes = [np.clip((rows[name] - low) * 8 // (high - low), 0, 7).astype(int) for name, (low, high) in NUMBERS.items()]
    codes += [rows[name].astype("category").cat.codes.astype(int) for name in CATEGORIES]
    return np.stack(codes, axis=1), (*(8 for _ in NUMBERS), *(rows[name].nunique() for name in CATEGORIES))


def survey() -> tuple[Integers, tuple[int, ...]]:
    """The survey's records as levels (6366, 9), and how many each column has; of affairs whether there was one."""
    rows = fair.load_pandas().data
    rows["affairs"] = rows["affairs"] > 0
    codes = [rows[name].astype("category").cat.codes.astype(int) for name in rows]
    return np.stack(codes, axis=1), tuple(rows[name].nunique() for name in rows)


def distance(made: Integers, records: Integers, levels: tuple[int, ...], number: int) -> float:
    """The mean total variation of all tables of so many columns."""
    found = []
    for places in combinations(range(len(levels)), number):
        shape = [levels[place] for place in places]
        tables = [
            np.bincount(np.ravel_multi_index(tuple(each[:, places].T), shape), minlength=int(np.prod(shape))) / len(each)
            for each in (made, records)
        ]
        found.append(float(np.abs(tables[0] - tables[1]).sum()) / 2.0)
    return float(np.mean(found))


def table(runs: int) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| records | epsilon | pairs: tree | graph | least | triples: tree | graph | least | pairs of the graph |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    rng = np.random.default_rng(1)
    (patients, by_patient), (couples, by_couple) = trial(), survey()
    some, many = rng.permutation(couples)[:4774], rng.choice(couples, 50_000)
    for name, records, levels in (("trial", patients, by_patient), ("survey", some, by_couple), ("survey", many, by_couple)):
        plan = PairPlan(levels, 500)
        sums = plan.rows(records).sum(axis=0).astype(np.float64)
        for epsilon in (1.0, 3.0, 8.0):
            std = calibrate_noise_multiplier(epsilon, 1e-5, 1) * plan.norm**0.5
            rows = []
            for seed in range(runs):
                released = sums + rng.normal(size=plan.size) * std
                tree, _ = pair_tree(levels, partial(plan.table, released), partial(plan.cell_std, std=std))
                field = fit_field(plan, released, std)
                made = tree.sample(len(records), rng), field.sample(len(records), seed), rng.choice(records, len(records))
                rows.append([*(distance(each, records, levels, k) for k in (2, 3) for each in made), len(field.pairs)])
            *figures, pairs = np.mean(rows, axis=0)
            shown = " | ".join(f"{figure:.3f}" for figure in figures)
            yield f"| {name}, {len(records):,} | {epsilon:g} | {shown} | {pairs:.0f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    for row in table(parser.parse_args().runs):
        print(row, flush=True)
