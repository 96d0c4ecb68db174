"""The noise that a study takes at an epsilon, by RDP and by the rule ``gaussian``: ``python -m benchmarks.noise``.

Noise multipliers (standard deviation over sensitivity) at delta 1e-5; a study's slack is 0.5% of delta, as studies state it.
First by sampling rate and steps, then of every method's study on breast cancer with its defaults, as compiled.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from support.federation import make_request
from veilsum.compile import StudyDraft, draft_study
from veilsum_deploy.datasets import packaged_dataset
from veilsum_node.randomness import SystemRandom
from veilsum_privacy.accounting.accountant import Adaptive, Course, GaussianEvent, epsilon_of
from veilsum_privacy.study.study import Study

DELTA = 1e-5
EPSILONS = (0.1, 0.5, 1.0, 3.0, 8.0)
STUDIES = ((1.0, 1), (0.5, 50), (0.3, 50), (0.1, 100), (0.1, 1000), (0.02, 1000), (0.02, 100), (0.02, 10))
"""Sampling rate and steps."""

GRID = 2**40


def noise(rate: float, steps: int, epsilon: float, rule: Adaptive) -> float:
    """The least multiplier to 1e-5 of it."""
    course = Course(steps, 0.005 * DELTA) if rate < 1 else None
    low, high = 0.05, 1e4
    while high > low * (1 + 1e-5):
        middle = (low * high) ** 0.5
        event = GaussianEvent(GRID, (Fraction(middle) * GRID) ** 2, rate, steps, course)
        low, high = (middle, high) if epsilon_of([event], DELTA, rule) > epsilon else (low, middle)
    return high


LINEAR = {"model": {"name": "linear"}}
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "statistics": ({}, {}),
    "regression": ({"family": "logistic", "outcome": "target = 'malignant'", "over": ["mean radius", "mean texture"]}, {}),
    "pca": ({"width": 8}, {}),
    "fedcgs": ({}, {}),
    "o-fedavg": ({}, {}),
    "fedpft": ({}, {}),
    "ggeur": ({}, {}),
    "slot-align": ({}, {}),
    "gbdt": ({}, {}),
    "fedsgd": ({}, {}),
    "fedavg": (LINEAR, {"noise": "local"}),
    "hfedatm": ({"stations": {"east": ["a", "b"], "west": ["c", "d"]}, **LINEAR}, {"min_cohort": 2}),
}
"""Parameters that have no default, and what the demand needs besides; an evaluation takes what ``pca`` does."""


def drafts(method: str, epsilon: float) -> tuple[StudyDraft, StudyDraft]:
    """The method's study by RDP and by the rule ``gaussian``, at four sites."""
    parameters, demand = METHODS[method]
    made = []
    for accounting in ("rdp", "gaussian"):
        request = make_request(packaged_dataset("breast-cancer").schema, method, epsilon, accounting=accounting, **demand)
        request = request.model_copy(update={"parameters": parameters})
        made.append(
            draft_study(
                request, federation_id="0" * 64, coordinator="coordinator", participants=["a", "b", "c", "d"],
                clock=lambda: 0, random=SystemRandom(),
            )
        )  # fmt: skip
    return made[0], made[1]


def dearest(study: Study) -> tuple[str, float]:
    """The task whose releases have the least noise, and its multiplier."""
    own = [task for task in study.tasks if task.variance]
    task = min(own, key=lambda task: math.sqrt(task.variance) / task.grid)
    rate = f"{task.sampling_rate:g}" if task.sampling_rate < 1 else "none"
    return f"{task.label}: {rate}, {task.steps}", math.sqrt(task.variance) / task.grid


def change(before: float, now: float) -> str:
    """A cell."""
    return f"{before:.3g} to {now:.3g} ({now / before - 1:+.1%})"


def main() -> None:
    """Print the tables in Markdown."""
    print("| sampling rate, steps |", " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "|")
    print("| --- |", " | ".join("---:" for _ in EPSILONS), "|")
    for rate, steps in STUDIES:
        cells = [change(*(noise(rate, steps, epsilon, rule) for rule in ("standard", "gaussian"))) for epsilon in EPSILONS]
        print(f"| {f'{rate:g}' if rate < 1 else 'none'}, {steps} |", " | ".join(cells), "|", flush=True)
    print()
    print("| method | release: sampling rate, steps |", " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "|")
    print("| --- | --- |", " | ".join("---:" for _ in EPSILONS), "|")
    for method in METHODS:
        cells, release = [], ""
        for epsilon in EPSILONS:
            (release, before), (_, now) = (dearest(draft.compile()) for draft in drafts(method, epsilon))
            cells.append(change(before, now))
        print(f"| `{method}` | {release} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
