"""The accountants on 10,000 mixed events: the gate for each event as it comes, the estimate for all of them.

Half of the events are sums without sampling, half sampled steps; how many mechanisms differ is what matters and is varied.
Times are CPU time with empty caches. By itself: ``python -m benchmarks.accounting``.
"""

from __future__ import annotations

import math
import random
import time
from fractions import Fraction
from typing import Any

from veilsum_privacy.accounting import figures, renyi
from veilsum_privacy.accounting.accountant import GaussianEvent, Releases
from veilsum_privacy.accounting.figures import calibrate_noise_multiplier, prv_epsilon, rdp_epsilon

EVENTS = 10_000
DISTINCT = (10, 100, 1000, 10_000)
DELTA = 1e-5
GRID = 2**20

ROWS = (
    ("gate, ms an event", "gate_ms", "{:.3f}"),
    ("  slowest event, ms", "gate_slowest_ms", "{:.2f}"),
    ("  first time with a mechanism, ms", "gate_new_ms", "{:.3f}"),
    ("  taken back, ms an event", "free_ms", "{:.3f}"),
    ("gate of all at once, s", "gate_all_s", "{:.2f}"),
    ("estimate (PRV) of all, s", "estimate_s", "{:.2f}"),
    ("epsilon by RDP", "epsilon", "{:.3f}"),
    ("epsilon by PRV", "estimate", "{:.3f}"),
    ("  strict", "strict", "{:.3f}"),
)


def mixed_events(distinct: int) -> list[GaussianEvent]:
    """10,000 events of ``distinct`` mechanisms, half of them sampled, in random order."""
    generator = random.Random(distinct)
    kinds = []
    for index in range(distinct):
        sampled = index % 2 == 0
        sigma = math.exp(generator.uniform(math.log(0.8), math.log(20))) if sampled else generator.uniform(200, 1000)
        rate = math.exp(generator.uniform(math.log(1e-3), math.log(0.05))) if sampled else 1.0
        kinds.append(GaussianEvent(GRID, Fraction(round((GRID * sigma) ** 2)), rate))
    events = [kinds[index % distinct] for index in range(EVENTS)]
    generator.shuffle(events)
    return events


def _forget() -> None:
    renyi.step_curve.cache_clear()
    renyi.sampled_curve.cache_clear()
    figures._prv.cache_clear()


def measure_history(distinct: int) -> dict[str, Any]:
    """All figures of one history.

    Raises:
        AssertionError: the gate's epsilon depends on how it was reached, or the accountants contradict each other.
    """
    events = mixed_events(distinct)
    _forget()
    gate, first, again, seen = Releases(), [], [], set()
    for event in events:
        start = time.process_time()
        gate = gate.with_event(event)
        epsilon = gate.epsilon(DELTA)
        (again if event in seen else first).append(time.process_time() - start)
        seen.add(event)
    start = time.process_time()
    estimate = prv_epsilon(gate, DELTA)
    estimate_seconds = time.process_time() - start
    _forget()
    start = time.process_time()
    at_once = rdp_epsilon(events, DELTA)
    at_once_seconds = time.process_time() - start
    emptied, start = gate, time.process_time()
    for event in events:
        emptied = emptied.without_event(event)
    free_seconds = time.process_time() - start
    if at_once != epsilon or emptied != Releases() or any(emptied.curve_units):
        raise AssertionError("the gate depends on the order of its events")
    if estimate is None or not estimate <= epsilon:
        raise AssertionError("the estimate is missing or above the guarantee")
    return {
        "distinct": distinct,
        "gate_ms": sum(first + again) / EVENTS * 1e3,
        "gate_slowest_ms": max(first + again) * 1e3,
        "gate_new_ms": sum(first) / len(first) * 1e3,
        "free_ms": free_seconds / EVENTS * 1e3,
        "gate_all_s": at_once_seconds,
        "estimate_s": estimate_seconds,
        "epsilon": epsilon,
        "estimate": estimate,
        "strict": gate.epsilon(DELTA, "strict"),
    }


def strict_surcharge() -> dict[str, float]:
    """How much more epsilon strict composition counts for one release, at each epsilon and delta."""
    surcharge = {}
    for delta in (1e-3, 1e-5, 1e-7, 1e-9):
        for epsilon in (0.1, 0.3, 1.0, 3.0, 10.0):
            z = calibrate_noise_multiplier(epsilon, delta, 1)
            event = GaussianEvent(GRID, Fraction(round((GRID * z) ** 2)))
            surcharge[f"{epsilon:g}, {delta:g}"] = rdp_epsilon([event], delta, "strict") / rdp_epsilon([event], delta) - 1
    return surcharge


def measure() -> dict[str, Any]:
    """Figures of 10,000 mixed events for each number of different mechanisms, and what strict composition costs."""
    return {"histories": [measure_history(distinct) for distinct in DISTINCT], "strict_surcharge": strict_surcharge()}


def table(result: dict[str, Any]) -> str:
    """The histories as a Markdown table."""
    histories = result["histories"]
    heads = [f"{history['distinct']:,} mechanisms" for history in histories]
    lines = [[f"{EVENTS:,} mixed events", *heads], ["---", *("---:" for _ in heads)]]
    lines += [[name, *(form.format(history[key]) for history in histories)] for name, key, form in ROWS]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    measured = measure()
    print(table(measured))
    for where, surcharge in measured["strict_surcharge"].items():
        print(f"strict at epsilon, delta {where}: {surcharge:+.1%}")
