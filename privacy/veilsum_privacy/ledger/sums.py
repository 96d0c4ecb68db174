"""Mechanisms and what they cost together, by the accountant that budgets are decided by; no ledger is read for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from veilsum_privacy.accounting.accountant import Adaptive, Releases
from veilsum_privacy.ledger.entries import Budget, Mechanism, events_of


def total_epsilon(
    mechanisms: Mapping[Mechanism, int], delta: float, adaptive: Adaptive = "standard", *, alone: bool = False
) -> float:
    """Epsilon of all mechanisms, each as often as counted; infinite if one of them has no noise.

    Args:
        mechanisms: how often each was used.
        delta: at which epsilon is told.
        adaptive: the rule by which.
        alone: against all other parties together, when only the site's own share of the noise counts.
    """
    events, unbounded = events_of(mechanisms, alone=alone)
    return math.inf if unbounded else Releases().with_events(events).epsilon(delta, adaptive)


class Sum:
    """A multiset of mechanisms and what they cost together; adding and taking back are exact, in any order.

    Attributes:
        counts: how often each mechanism was used.
        gate: those with noise.
    """

    def __init__(self) -> None:
        self.counts: Counter[Mechanism] = Counter()
        self.gate = Releases()
        self._exact = 0  # releases without noise

    @property
    def unbounded(self) -> bool:
        """Whether one of them has no noise."""
        return self._exact != 0

    def add(self, mechanism: Mechanism, count: int = 1) -> None:
        """Add releases, or take back ones that were added (a negative count)."""
        left = self.counts[mechanism] + count
        if left:
            self.counts[mechanism] = left
        else:
            del self.counts[mechanism]
        event = mechanism.event
        if mechanism.free:
            return
        if event is None:
            self._exact += count
        elif count >= 0:
            self.gate = self.gate.with_event(event, count)
        else:
            self.gate = self.gate.without_event(event, -count)

    def copy(self) -> Sum:
        """The same releases, apart from these."""
        other = Sum()
        other.counts, other.gate, other._exact = self.counts.copy(), self.gate, self._exact
        return other

    def epsilon(self, budget: Budget, more: Mapping[Mechanism, int] | None = None) -> float:
        """Epsilon by the budget's rule, the guarantee, at its delta, of these mechanisms and ``more``."""
        events, unbounded = events_of(more or {})
        if self.unbounded or unbounded:
            return math.inf
        gate = self.gate.with_events(events) if events else self.gate
        return gate.epsilon(budget.delta, budget.adaptive)

    def alone(self, budget: Budget) -> float:
        """Epsilon against all other parties together, when only the site's own share of the noise counts."""
        return total_epsilon(self.counts, budget.delta, budget.adaptive, alone=True)
