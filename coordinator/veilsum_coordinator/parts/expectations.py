"""How well a study's quantities will be known, predicted from public values alone before anything is spent.

An expectation holds what the privacy noise does at an expected number of records, and of the method statistics what sampling
does as well: no record is read. Where a width depends on the data, they are taken to lie as schemas mostly have it: numbers
between their bounds as :data:`OFFSET` and :data:`SPREAD` say, categories and classes equally frequent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from veilsum_aggregation.figures import Z95 as Z95
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study

SPREAD = 1.0 / 3.0
"""Expected standard deviation of a number as a share of half its range: three of them reach from the middle to a bound."""

OFFSET = 1.0 / 3.0
"""Expected distance of a number's mean from the middle of its bounds, as a share of half its range.

Zero would be the best case: intervals grow with the distance, those of variances most.
"""


@dataclass(frozen=True)
class Expectation:
    """One quantity of a result, or several that are expected to be known equally well.

    Attributes:
        block: the part of the result that it belongs to, in words ("means").
        quantity: in a scientist's words ("mean of age").
        size: what it is measured against, in its unit: how large it is expected to be, or how far it may be off a guess.
        half_width: of its 95% interval as the result will print it, in its unit: from the noise, and from sampling where
            the method tells that too. Infinite where it cannot be told.
        unit: of size and half-width; empty where it has none.
        basis: where the size comes from ("half of 20 to 90").
        number: how many quantities this stands for.
        main: whether the method is run for it.
        forecast: whether it says how good the result will be. The noise of one step of training does not: what many steps
            leave of it depends on the records.
    """

    block: str
    quantity: str
    size: float
    half_width: float
    unit: str = ""
    basis: str = ""
    number: int = 1
    main: bool = False
    forecast: bool = True

    @property
    def share(self) -> float:
        """The half-width as a share of the size."""
        return self.half_width / self.size

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is infinite becomes None."""
        return {
            "block": self.block,
            "quantity": self.quantity,
            "number": self.number,
            "unit": self.unit,
            "expected_size": self.size,
            "basis": self.basis,
            "half_width_95": finite(self.half_width),
            "share": finite(self.share),
            "main": self.main,
            "forecast": self.forecast,
        }


def finite(value: float) -> float | None:
    """The value, or None where it is infinite."""
    return value if math.isfinite(value) else None


def main_error(expectations: Iterable[Expectation]) -> float:
    """The widest interval among the main quantities, as a share of the expected size: what a study's ``error`` bounds."""
    return max(item.share for item in expectations if item.main)


def released_noise(study: Study, label: str, cohort: int) -> dict[str, float]:
    """Standard deviation of the noise on a task's sum over ``cohort`` participants, by block, in the block's units.

    Raises:
        HostileInput: the study has no such task.
        Misuse: a noise share would be below 4 grid units.
    """
    task = AgreedStudy(study).task(label)
    return task.block_std(math.sqrt(task.released_variance(cohort)))


def block_expectations(study: Study, cohort: int, records: int) -> Sequence[Expectation]:
    """What can be said of any task: the noise on each block's mean over records, against the clip norm.

    A record that uses the whole clip norm C evenly over d values has C / (w sqrt(d)) in each, in the units of a block of
    weight w; that is the size. All blocks count as main.
    """
    found: list[Expectation] = []
    for agreed in AgreedStudy(study).tasks:
        layout, noise = agreed.task.layout(), released_noise(study, agreed.label, cohort)
        even = agreed.task.clip() / math.sqrt(layout.size)
        found += [
            Expectation(
                block=f"{agreed.label}: {block.name}",
                quantity=f"mean over records of a value of {block.name}",
                size=even / block.weight,
                half_width=Z95 * noise[block.name] / records,
                basis="a record that uses its whole clip norm evenly",
                number=block.size,
                main=True,
            )
            for block in layout.blocks
        ]
    return found
