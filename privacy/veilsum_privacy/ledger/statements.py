"""What a ledger is told and tells beside what it books: studies in words, where a population stands, a site's policy.

No gate asks for any of it: epsilon and its bound are those of :mod:`.entries` and :mod:`.totals`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.entries import Budget, Entry, Mechanism
from veilsum_privacy.mechanism.noise_plan import task_noise

if TYPE_CHECKING:
    from veilsum_privacy.ledger.sums import Sum
    from veilsum_privacy.study.study import Study

LONGEST_TEXT = 2000
"""Characters of a text that an entry holds; the rest of a longer one is left out."""


@dataclass(frozen=True)
class RequestedStudy:
    """A study that a site was asked to take part in, as entries name it: nobody may be left who holds the study itself.

    Attributes:
        study: its digest, 32 bytes.
        name, method, dataset: of the study.
        analyst: certified name of who signed it.
        population: whose records they are; None where the site offers no such dataset.
        columns_read: names of the columns that it reads.
        purpose: as the analyst states it.
    """

    study: bytes
    name: str
    method: str
    dataset: str
    analyst: str
    population: str | None
    columns_read: tuple[str, ...] = ()
    purpose: str | None = None

    def columns(self) -> dict[str, Any]:
        """What the columns of an entry hold of it."""
        return {"study": self.study.hex(), "dataset": self.dataset, "population": self.population}

    def detail(self) -> dict[str, Any]:
        """What else an entry says of it."""
        stated = {} if self.purpose is None else {"purpose": self.purpose}
        columns = {"columns": ", ".join(self.columns_read)[:LONGEST_TEXT]} if self.columns_read else {}
        return {"name": self.name, "analyst": self.analyst, "method": self.method, **columns, **stated}


def declared_mechanisms(study: Study) -> Counter[Mechanism]:
    """Every release that a study may ask for, at the noise plan of all its participants, with how often.

    Raises:
        Misuse: a noise share is too small to be drawn.
    """
    releases: Counter[Mechanism] = Counter()
    for task in study.tasks:
        releases[Mechanism.of(task, task_noise(study, task, study.sites))] += task.releases
    return releases


@dataclass(frozen=True)
class Spending:
    """Where a population stands; every epsilon at its budget's delta.

    Attributes:
        population: its name.
        budget: in force now.
        spent: epsilon of all charged releases by the budget's rule: the guarantee.
        estimate: the same by the tighter accountant, None where that cannot tell.
        reserved: epsilon of charged and open releases together: what the gate counts.
        left: the budget's epsilon less ``reserved``, not below 0; infinite without a bound.
        releases: charged releases, those recovered from receipts included.
        alone: epsilon of all charged releases against all other parties together, colluding.
    """

    population: str
    budget: Budget
    spent: float
    estimate: float | None
    reserved: float
    left: float
    releases: int
    alone: float


@dataclass(frozen=True)
class Headroom:
    """Where a population would stand after more releases; both epsilons at its budget's delta.

    Attributes:
        budget: in force now.
        reserved: epsilon of charged and open releases together.
        after: the same with the releases asked about.
    """

    budget: Budget
    reserved: float
    after: float

    @property
    def admits(self) -> bool:
        """Whether the budget bears what would stand."""
        return self.budget.admits(self.after)


def estimate_of(charged: Sum, budget: Budget) -> float | None:
    """The figure of the tighter accountant beside the budget's rule; None where that cannot tell, or without noise."""
    if charged.unbounded:
        return None
    from veilsum_privacy.accounting.figures import estimated_epsilon  # for reports and checkpoints: no gate asks for it

    return estimated_epsilon(charged.gate, budget.delta, budget.adaptive)


def change_policy(held: dict[str, str], entry: Entry) -> None:
    """Apply to a policy what an entry ``policy`` says has changed.

    Raises:
        HostileInput: it is malformed, or changes what was not so.
    """
    changes = entry.detail.get("changes")
    if not isinstance(changes, Mapping) or not changes:
        raise HostileInput("it says no change of the policy.")
    for key, pair in changes.items():
        fits = isinstance(pair, list) and len(pair) == 2 and all(value is None or isinstance(value, str) for value in pair)
        if not fits or pair[0] == pair[1] or held.get(key) != pair[0]:
            raise HostileInput("it changes the policy from what it was not.")
        if pair[1] is None:
            del held[key]
        else:
            held[key] = pair[1]
