"""Configurations computed directly, without the guard that a site has around a task: no record may make one fail.

What a rehearsal refuses is left out. Of the rest, an exception is a finding; so is a unit that changes the sum by more than
the sensitivity, or, in a sum of what each unit adds, by something else beside others than alone.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyst.configurations import Configuration, configuration, trained
from support.neighbours import TASK_LABEL
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.computation.contribution import Evaluations, SitePlace, compute_sum
from veilsum_privacy.computation.rehearsal import few_records, made_up_statistics, rehearse
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import TrainingTask

TRAINED = 25
"""Of so many configurations one is of a task that trains, or computes from what a site kept."""


AGAIN = 10
"""Of so many configurations one is rehearsed as in a later round, too."""


@dataclass
class DirectReport:
    """What was tried.

    Attributes:
        tried: seeds.
        refused: by what refuses them without a record: the declaration, or the rehearsal with its broadcast.
        computed: by task, those computed on {}, {r}, D and D + r.
        findings: by seed.
    """

    tried: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    computed: Counter[str] = field(default_factory=Counter)
    findings: dict[int, str] = field(default_factory=dict)

    def __str__(self) -> str:
        refused = ", ".join(f"{count} {name}" for name, count in sorted(self.refused.items()))
        computed = ", ".join(f"{count} {name}" for name, count in sorted(self.computed.items()))
        return (
            f"{self.tried} configurations: refused without a record {refused or 'none'}; computed directly on {{}}, {{r}}, D"
            f" and D + r: {computed or 'none'}; {len(self.findings)} findings"
        )

    def add(self, other: DirectReport) -> None:
        """Take another report's figures."""
        self.tried += other.tried
        self.refused += other.refused
        self.computed += other.computed
        self.findings |= other.findings


def run_direct(number: int, seed: int) -> DirectReport:
    """Try so many configurations from a seed on."""
    report = DirectReport()
    with np.errstate(all="ignore"):
        for place in range(seed, seed + number):
            report.tried += 1
            made = trained(place) if place % TRAINED == 0 else configuration(place)
            if made is None:
                report.refused["as no study"] += 1
            else:
                _judge(report, place, made)
    return report


def run_direct_part(given: tuple[int, int]) -> DirectReport:
    """For one process of several."""
    return run_direct(*given)


def _judge(report: DirectReport, seed: int, made: Configuration) -> None:
    try:
        agreed = AgreedStudy(made.study).task(made.label)
    except HostileInput:
        report.refused["as no study"] += 1
        return
    try:
        rehearse(agreed, made.broadcast)
        if seed % AGAIN == 0:
            rehearse(agreed, made.broadcast, again=few_records(agreed))
    except (HostileInput, Misuse):
        report.refused["in rehearsal"] += 1
        return
    except Exception as error:  # noqa: BLE001  a rehearsal turns whatever goes wrong into a refusal
        report.findings[seed] = f"{made.task}: the rehearsal itself fails: {error!r}"
        return
    try:
        totals = _totals(agreed, made)
    except Exception as error:  # noqa: BLE001
        report.findings[seed] = f"{made.task}: fails on records after a rehearsal that passed: {error!r}"
        return
    report.computed[made.task] += 1
    if isinstance(agreed.task, TrainingTask):
        return
    steps = [(after - before).astype(object) for before, after in ((totals[0], totals[1]), (totals[2], totals[3]))]
    grid = made.study.task(made.label).grid
    length = max(int((step * step).sum()) for step in steps)
    if length > grid**2:
        report.findings[seed] = f"{made.task}: one unit changes the sum by {math.sqrt(length) / grid:.6f} grids"
    elif made.additive and max(map(abs, steps[0] - steps[1]), default=0) > 2 * made.rounded:  # each sum is, by half at most
        report.findings[seed] = f"{made.task}: what a unit adds depends on who else is there"


def _totals(agreed: Any, made: Configuration) -> list[Any]:
    plan = agreed.plan(made.study.sites, made.study.sites)
    place = SitePlace(0, made_up_statistics(agreed), evaluations=Evaluations())
    return [compute_sum(plan, records, made.broadcast, place).total for records in made.worlds()]


__all__ = ["TASK_LABEL", "DirectReport", "run_direct", "run_direct_part"]
