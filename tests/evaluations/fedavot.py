"""FedAVOT's two experiments: 100 sites, 2 a round, beside full participation, FedAvg(K) and a coordinated design.

Regression: a site has its own mean and spread of features, and a coefficient vector that turns with the site's number. Sites
of small number matter most and turn up least. MNIST: a site holds two digits; p falls with its number, and all pairs are
equally likely. The images are brought to 14 x 14 by means of 2 x 2 pixels, which makes it run in minutes. Both come in the
paper's setting, in which no weights can give every site its importance, and in a milder one in which some do.

All methods of a seed have the same data; FedAvg(K) and FedAVOT also have the same members in every round. What is reported
is the objective sum_i p_i f_i over all training records. Nothing is encrypted or noised here: with K = 2 each site sees the
other, so this is for simulation only.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evaluations.tables import line
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.masked_transport import MaskedPlan, Subsets, pair_probabilities, solve
from veilsum_aggregation.participation import design_weights, draw_design, inclusion_probabilities

Round = tuple[Integers, Floats]

SITES = 100
MEMBERS = 2
LOCAL_STEPS = 5
METHODS = ("FedAvg (full)", "FedAvg (K)", "FedAVOT", "coordinated")


@dataclass(frozen=True)
class Problem:
    """Sites' records and how they are trained on.

    Attributes:
        x: (N, n, d) features, a constant among them.
        y: (N, n, c) targets, or one-hot classes.
        softmax: cross-entropy of a softmax model; else the mean squared error of a linear one.
        step: size of a step along x^T (prediction - y) / batch, for the squared error half its gradient.
        batch: records of a local step; the batches of one round share none.
        rounds: T.
    """

    x: Floats
    y: Floats
    softmax: bool
    step: float
    batch: int
    rounds: int

    def losses(self, theta: Floats) -> Floats:
        """f_i (N,) of parameters (d, c)."""
        scores = self.x @ theta
        if not self.softmax:
            squares: Floats = np.square(scores - self.y).sum(axis=2).mean(axis=1)
            return squares
        scores -= scores.max(axis=2, keepdims=True)
        entropies: Floats = (np.log(np.exp(scores).sum(axis=2)) - (scores * self.y).sum(axis=2)).mean(axis=1)
        return entropies

    def trained(self, theta: Floats, members: Integers, random: np.random.Generator) -> Floats:
        """Parameters (m, d, c) of the members after their local steps from ``theta`` (d, c)."""
        taken = LOCAL_STEPS * self.batch
        records = np.argpartition(random.random((len(members), self.x.shape[1])), taken - 1, axis=1)[:, :taken]
        records = random.permuted(records, axis=1)
        local = np.repeat(theta[None], len(members), axis=0)
        for start in range(0, taken, self.batch):
            rows = (members[:, None], records[:, start : start + self.batch])
            x, y = self.x[rows], self.y[rows]
            predicted = x @ local
            if self.softmax:
                predicted = np.exp(predicted - predicted.max(axis=2, keepdims=True))
                predicted /= predicted.sum(axis=2, keepdims=True)
            local -= self.step / self.batch * (x.transpose(0, 2, 1) @ (predicted - y))
        return local


@dataclass(frozen=True)
class PairProblem:
    """A problem with importance p (N,) and availability of pairs q (M,)."""

    name: str
    build: Callable[[np.random.Generator], Problem]
    importance: Floats
    probabilities: Floats


def regression(random: np.random.Generator) -> Problem:
    """100 records of 10 features a site; y = x . w_i + noise of variance 1, and w_i moves along a line."""
    records, d = 100, 10
    means, spreads = 0.5 * random.standard_normal((SITES, 1, d)), random.uniform(0.5, 1.5, (SITES, 1, 1))
    x = means + spreads * random.standard_normal((SITES, records, d))
    ends = random.standard_normal((2, d))
    share = np.linspace(0.0, 1.0, SITES)[:, None]
    w = (1.0 - share) * ends[0] + share * ends[1] + 0.1 * random.standard_normal((SITES, d))
    y = np.einsum("snd,sd->sn", x, w) + random.standard_normal((SITES, records))
    x = np.concatenate([x, np.ones((SITES, records, 1))], axis=2)
    return Problem(x, y[:, :, None], softmax=False, step=0.002, batch=10, rounds=3000)


def mnist(data: Path) -> Callable[[np.random.Generator], Problem]:
    """Two digits a site, every digit at 20 sites, 150 records of each; no record at two sites."""
    with np.load(data / "mnist" / "mnist.npz") as stored:
        images, labels = stored["X_train"], stored["y_train"]
    pooled = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(images), -1) / 255.0
    held = 150

    def build(random: np.random.Generator) -> Problem:
        digits = np.concatenate([random.permutation(10) for _ in range(SITES // 5)]).reshape(SITES, 2)
        left = {digit: iter(random.permutation(np.flatnonzero(labels == digit))) for digit in range(10)}
        rows = np.array([[int(next(left[int(digit)])) for digit in pair for _ in range(held)] for pair in digits])
        x = np.concatenate([pooled[rows], np.ones((*rows.shape, 1))], axis=2)
        return Problem(x, np.eye(10)[labels[rows].astype(int)], softmax=True, step=0.05, batch=10, rounds=1500)

    return build


def settings(data: Path) -> list[PairProblem]:
    """Both problems in the milder and in the paper's setting; site i from 1 to N."""
    i = np.arange(1.0, SITES + 1.0)
    even = np.full(SITES * (SITES - 1) // 2, 2.0 / (SITES * (SITES - 1)))
    images = mnist(data)

    def scaled(values: Floats) -> Floats:
        result: Floats = values / values.sum()
        return result

    return [
        PairProblem("regression, feasible", regression, scaled(2 * SITES + 1 - i), pair_probabilities(SITES + i)),
        PairProblem("regression, paper", regression, scaled(SITES + 1 - i), pair_probabilities(i)),
        PairProblem("MNIST, feasible", images, scaled(np.exp(-i / 100)), even),
        PairProblem("MNIST, paper", images, scaled(np.exp(-i / 10)), even),
    ]


def rounds_of(method: str, setting: PairProblem, plan: MaskedPlan, rounds: int, seed: int) -> Iterator[Round]:
    """Members and weights of every round."""
    p, random = setting.importance, np.random.default_rng([seed, 1])
    if method == "FedAvg (full)":
        yield from ((np.arange(SITES), p) for _ in range(rounds))
    elif method == "coordinated":
        inclusion = inclusion_probabilities(p, MEMBERS)
        weights = design_weights(p, inclusion)
        for _ in range(rounds):
            members = draw_design(inclusion, MEMBERS, random)
            yield members, weights[members]
    else:
        subsets = Subsets.all_pairs(SITES)
        for number in random.choice(len(subsets), rounds, p=setting.probabilities):
            members = subsets[int(number)]
            yield members, plan.weights(members) if method == "FedAVOT" else SITES / MEMBERS * p[members]


def train(problem: Problem, importance: Floats, schedule: Iterator[Round], seed: int) -> tuple[float, float]:
    """The objective at the mean of the second half of the iterates, and at the last one; both start from zero."""
    random = np.random.default_rng([seed, 2])
    theta = np.zeros((problem.x.shape[2], problem.y.shape[2]))
    total, half = np.zeros_like(theta), problem.rounds // 2
    for number, (members, weights) in enumerate(schedule):
        theta = np.einsum("m,mdc->dc", weights, problem.trained(theta, members, random))
        if number >= half:
            total += theta
    mean = total / (problem.rounds - half)
    return float(importance @ problem.losses(mean)), float(importance @ problem.losses(theta))


def measure(setting: PairProblem, seeds: int) -> dict[str, Any]:
    """Certificate of the setting, and for each method (seeds, 2) objectives: mean of the second half, last."""
    plan = solve(setting.importance, Subsets.all_pairs(SITES), setting.probabilities)
    figures: dict[str, list[tuple[float, float]]] = {method: [] for method in METHODS}
    for seed in range(seeds):
        problem = setting.build(np.random.default_rng([seed, 0]))
        for method in METHODS:
            schedule = rounds_of(method, setting, plan, problem.rounds, seed)
            figures[method].append(train(problem, setting.importance, schedule, seed))
    return {
        "setting": setting.name,
        "feasible": plan.feasible,
        "residual": plan.residual,
        "excess": plan.excess,
        "blocking": len(plan.blocking),
        "iterations": plan.iterations,
        "objectives": figures,
    }


def tables(results: Sequence[dict[str, Any]]) -> str:
    """Certificates and objectives as two Markdown tables; ± is the standard error over seeds."""
    lines = [
        "| setting | feasible | residual | excess | blocking sites | Newton steps |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    names = {True: "yes", False: "no", None: "undecided"}
    for one in results:
        cells = [one["setting"], names[one["feasible"]], f"{one['residual']:.3g}", f"{one['excess']:.3g}", one["blocking"]]
        lines.append(line([*cells, one["iterations"]]))
    lines += ["", "| setting | method | mean of second half | against full | last iterate | against full |"]
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for one in results:
        full = np.array(one["objectives"]["FedAvg (full)"]).mean(axis=0)
        for method, values in one["objectives"].items():
            found = np.array(values)
            mean, error = found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(len(found)) if len(found) > 1 else [0.0, 0.0]
            parts = [
                cell
                for k in range(2)
                for cell in (
                    f"{mean[k]:.3f} ± {error[k]:.3f}",
                    "" if method == METHODS[0] else f"{mean[k] / full[k] - 1:+.1%}",
                )
            ]
            lines.append(line([one["setting"], method, *parts]))
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    """Parse the command line, measure, print, and keep the figures where ``--out`` says."""
    parser = argparse.ArgumentParser(prog="python -m evaluations fedavot", description="FedAVOT's two experiments.")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds mnist/mnist.npz")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="folder for fedavot.json and fedavot.md")
    parser.add_argument("--only", default="", help="settings whose names begin so")
    options = parser.parse_args(arguments)
    results = [measure(one, options.seeds) for one in settings(options.data) if one.name.startswith(options.only)]
    text = tables(results)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "fedavot.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
        (options.out / "fedavot.md").write_text(text + "\n", encoding="utf-8")
    print(text)
