"""The noise that a study takes at an epsilon, by RDP and by the rule ``gaussian``: ``python -m benchmarks.noise``.

Noise multipliers (standard deviation over sensitivity) at delta 1e-5; a study's slack is 0.5% of delta, as studies state it.
"""

from __future__ import annotations

from fractions import Fraction

from veilsum_privacy.accounting.accountant import Adaptive, Course, GaussianEvent, epsilon_of

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


def main() -> None:
    """Print the table in Markdown."""
    print("| sampling rate, steps |", " | ".join(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "|")
    print("| --- |", " | ".join("---:" for _ in EPSILONS), "|")
    for rate, steps in STUDIES:
        cells = []
        for epsilon in EPSILONS:
            before, now = (noise(rate, steps, epsilon, rule) for rule in ("standard", "gaussian"))
            cells.append(f"{before:.3g} to {now:.3g} ({now / before - 1:+.1%})")
        print(f"| {f'{rate:g}' if rate < 1 else 'none'}, {steps} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
