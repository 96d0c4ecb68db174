"""What studies have cost participants, as a coordinator's mirror tells it, and what one more study would add.

A mirror knows its own coordinator's studies only, and no budget. Every participant's own ledger is the authority.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from veilsum_node.canonical import parse_canonical
from veilsum_node.errors import HostileInput, raising
from veilsum_privacy.accounting.prices import study_rule
from veilsum_privacy.ledger.entries import Budget, Mechanism
from veilsum_privacy.ledger.statements import declared_mechanisms
from veilsum_privacy.ledger.sums import Sum
from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class ParticipantLoss:
    """Epsilon of one participant's releases of a dataset by the study's rule and delta; infinite after one without noise."""

    participant: str
    before: float
    after: float

    def to_json(self) -> dict[str, Any]:
        """Plain values; None where no bound is known."""
        return {"participant": self.participant, "epsilon_so_far": finite(self.before), "epsilon_after": finite(self.after)}


def finite(value: float) -> float | None:
    """The value, or None where it is infinite."""
    return value if math.isfinite(value) else None


def read_spending(events: bytes) -> Counter[Mechanism]:
    """Parse a participant's releases: canonical JSON, a list of [mechanism, colluders, releases].

    Raises:
        HostileInput: it is not such a list.
    """
    value = parse_canonical(events, what="list of releases")
    counted: Counter[Mechanism] = Counter()
    with raising(HostileInput("A list of releases is malformed."), on=(TypeError, ValueError)):
        for mechanism, colluders, releases in value:
            if not (type(colluders) is int and type(releases) is int and 0 < releases < 2**53):
                raise HostileInput("A list of releases holds a number that is out of range.")
            counted[Mechanism.from_json(mechanism, colluders)] += releases
    return counted


def epsilon_alone(study: Study) -> float | None:
    """Epsilon of a study against all other parties together, who take off every noise share but the site's own.

    What is left is S^2 / h of the variance S^2 (all of it where noise is local). None without noise.
    """
    return finite(_sum(declared_mechanisms(study)).alone(_budget(study)))


def participant_losses(study: Study, spent: Mapping[str, Mapping[Mechanism, int]]) -> tuple[ParticipantLoss, ...]:
    """What each of a study's participants has spent, and what it will have spent after it; nobody unknown has spent."""
    added, budget = declared_mechanisms(study), _budget(study)
    before = {name: _sum(spent.get(name, {})) for name in study.participants}
    return tuple(ParticipantLoss(name, total.epsilon(budget), total.epsilon(budget, added)) for name, total in before.items())


def affordable(study: Study, epsilon: float, most: int) -> int:
    """How many such studies a budget of so much epsilon bears from its start, at the study's delta and rule.

    Args:
        study: with noise.
        most: that are counted.
    """
    added, budget = declared_mechanisms(study), _budget(study)

    def beyond(studies: int) -> bool:
        return _sum({}).epsilon(budget, {mechanism: studies * count for mechanism, count in added.items()}) > epsilon

    return bisect_left(range(1, most + 1), True, key=beyond)


def _sum(mechanisms: Mapping[Mechanism, int]) -> Sum:
    total = Sum()
    for mechanism, count in mechanisms.items():
        total.add(mechanism, count)
    return total


def _budget(study: Study) -> Budget:
    """Whatever sites allow, the study's own delta and rule are what it is priced by."""
    return Budget(None, study.privacy.delta, study_rule(study))
