"""What may follow what in a ledger, told from its entries alone: the same for a faulty site as for an honest one."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_privacy.accounting.accountant import PRV_ERROR
from veilsum_privacy.ledger.entries import Budget, Entry, Kind, Mechanism, Reservation
from veilsum_privacy.ledger.faults import require
from veilsum_privacy.ledger.receipts import Receipt
from veilsum_privacy.ledger.rows import unhex
from veilsum_privacy.ledger.statements import change_policy, estimate_of
from veilsum_privacy.ledger.sums import Sum
from veilsum_privacy.ledger.totals import BudgetStep, ReleaseStep, Standing, Totals

TOLERANCE = 1e-6
"""Relative; versions of the software may round an epsilon differently, and a budget may have been met exactly."""


class Rules(ABC):
    """One ledger's rules, entry by entry."""

    @property
    @abstractmethod
    def populations(self) -> Mapping[str, Standing]:
        """Where every population stands."""

    @abstractmethod
    def check(self, entry: Entry) -> None:
        """Check that an entry may follow those before it.

        Raises:
            HostileInput: it may not.
        """


class SiteRules(Rules):
    """A site's own ledger: budgets, and the life of each release from its reservation on."""

    def __init__(self) -> None:
        self._totals = Totals()
        self._reserved: dict[bytes, Entry] = {}
        self._ended: dict[bytes, Entry] = {}  # by its charge, recovery or freeing
        self._seen: set[bytes] = set()
        self._faulty: set[bytes] = set()
        self._read: set[bytes] = set()
        self._attempts: set[tuple[bytes, int, int]] = set()
        self._charged: set[tuple[bytes, int]] = set()
        self._sources: set[bytes] = set()  # studies with a paid release whose noise was the site's own alone
        self._history: defaultdict[str, list[tuple[int, Mechanism]]] = defaultdict(list)
        self._budgets: defaultdict[str, list[tuple[int, Budget]]] = defaultdict(list)
        self._hashes: list[str] = []
        self._policy: dict[str, str] = {}

    @property
    def populations(self) -> Mapping[str, Standing]:
        return self._totals.populations

    def check(self, entry: Entry) -> None:
        match entry.kind:
            case Kind.GENESIS:
                require(entry.seq == 1, "the ledger must begin with its one genesis entry")
            case Kind.KEY:
                pass
            case Kind.BUDGET:
                self._budget(entry)
            case Kind.RESERVE:
                self._reserve(entry)
            case Kind.CHARGE | Kind.FREE:
                self._end(entry)
            case Kind.FAULT:
                self._fault(entry)
            case Kind.SNAPSHOT:
                self._snapshot(entry)
            case Kind.RECOVERY:
                self._recover(entry)
            case Kind.RELEASE_SEEN:
                self._release_seen(entry)
            case Kind.REFUSAL:
                _check_refusal(entry.detail)
            case Kind.CHECKPOINT:
                self._checkpoint(entry)
            case Kind.APPROVAL | Kind.DECLINE | Kind.EXPIRED:
                _check_decision(entry)
            case Kind.POLICY:
                change_policy(self._policy, entry)
            case _:
                raise HostileInput("only a coordinator's mirror has entries of this kind.")
        self._hashes.append(entry.hash.hex())

    def _budget(self, entry: Entry) -> None:
        require(entry.population is not None, "it sets the budget of no population")
        budget, population = entry.budget, str(entry.population)
        stated = all(isinstance(entry.detail.get(name), str) for name in ("reason", "operator"))
        require(stated, "it does not say who set the budget, and why")
        self._totals.apply(BudgetStep(population, budget))
        self._budgets[population].append((entry.seq, budget))

    def _reserve(self, entry: Entry) -> None:
        release = entry.reservation
        attempt = (release.study, release.round, release.attempt)
        require(release.context not in self._reserved, "its context was reserved before")
        require(release.context not in self._ended, "its context was charged before")
        require(attempt not in self._attempts, "its attempt was reserved before")
        require((release.study, release.round) not in self._charged, "its round was charged before")
        require(entry.delta == self._budget_of(release.population).delta, "its delta is not the budget's")
        known = not release.mechanism.free or release.study in self._sources
        require(known, "it counts as post-processing of a statistic that the site never paid for")
        self._apply(entry)
        self._within_budget(release.population)
        self._reserved[release.context] = entry
        self._attempts.add(attempt)

    def _end(self, entry: Entry) -> None:
        release = self._known(entry)
        require(release.context not in self._ended, "its reservation was charged or freed before")
        if entry.kind is Kind.CHARGE:
            require((release.study, release.round) not in self._charged, "its round was charged before")
        self._apply(entry)
        if entry.kind is Kind.CHARGE:
            self._within_budget(release.population)

    def _fault(self, entry: Entry) -> None:
        release = self._known(entry)
        require(release.context not in self._ended, "its reservation was charged or freed before")
        require(release.context not in self._faulty, "its computation failed before")
        require(isinstance(entry.detail.get("cause"), str), "it names no cause")
        self._faulty.add(release.context)

    def _snapshot(self, entry: Entry) -> None:
        release = self._known(entry)
        require(release.context not in self._ended, "its reservation was charged or freed before")
        require(release.context not in self._read, "what it was computed from was recorded before")
        found = entry.detail.get("digest")
        require(isinstance(found, str) and len(unhex(found)) == 32, "it holds no digest")
        self._read.add(release.context)

    def _recover(self, entry: Entry) -> None:
        release = entry.reservation
        ended = self._ended.get(release.context)
        require(ended is None or ended.kind is Kind.FREE, "its release was charged before")
        if release.context in self._reserved:
            self._known(entry)
        else:
            budget = self._totals.of(release.population).budget
            require(entry.delta == (None if budget is None else budget.delta), "its delta is not the budget's")
        self._apply(entry)

    def _release_seen(self, entry: Entry) -> None:
        release = entry.reservation
        paid = self._ended.get(release.context)
        if paid is None or paid.kind is Kind.FREE:
            raise HostileInput("it releases what was never charged.")
        require(release.context not in self._seen, "it releases what was released before")
        same = (paid.reservation, paid.delta) == (release, entry.delta)
        require(same, "its release is not the one that was charged")
        self._seen.add(release.context)

    def _checkpoint(self, entry: Entry) -> None:
        """The figures that it states follow from the entries up to the one that it names."""
        upto, populations = entry.detail.get("upto"), entry.detail.get("populations")
        if type(upto) is not int or not isinstance(populations, dict):
            raise HostileInput("its figures are malformed.")
        fits = 0 < upto <= len(self._hashes) and entry.detail.get("head") == self._hashes[upto - 1]
        require(fits, "it names an entry that this ledger does not hold")
        budgets = {name: [item for seq, item in found if seq <= upto] for name, found in self._budgets.items()}
        require(set(populations) == {name for name, found in budgets.items() if found}, "it does not name every population")
        for name, stated in populations.items():
            charged = Sum()
            for seq, mechanism in self._history[name]:
                if seq <= upto:
                    charged.add(mechanism)
            _check_figures(name, stated, charged, budgets[name][-1])

    def _apply(self, entry: Entry) -> None:
        release = entry.reservation
        self._totals.apply(ReleaseStep(entry.kind, release.population, release.context.hex(), release.mechanism))
        if entry.kind in (Kind.CHARGE, Kind.RECOVERY):
            self._charged.add((release.study, release.round))
            if release.mechanism.noise.kind == "local":
                self._sources.add(release.study)
            self._history[release.population].append((entry.seq, release.mechanism))
        if entry.kind is not Kind.RESERVE:
            self._ended[release.context] = entry

    def _known(self, entry: Entry) -> Reservation:
        """The release of ``entry``, which repeats that of a reservation without a change."""
        release = entry.reservation
        reserved = self._reserved.get(release.context)
        if reserved is None:
            raise HostileInput("it names no reservation.")
        same = (reserved.reservation, reserved.delta) == (release, entry.delta)
        require(same, "its release is not the one that was reserved")
        return release

    def _budget_of(self, population: str) -> Budget:
        budget = self._totals.of(population).budget
        if budget is None:
            raise HostileInput("its population had no budget.")
        return budget

    def _within_budget(self, population: str) -> None:
        budget = self._budget_of(population)
        if budget.epsilon is not None:
            held = self._totals.of(population).held.epsilon(budget)
            require(held <= budget.epsilon * (1 + TOLERANCE), "it exceeded the budget")


def described(entry: Entry) -> tuple[Any, ...]:
    """The release that an entry is about, as receipts describe it."""
    return (
        entry.study, entry.round, entry.attempt, entry.context, entry.dataset, entry.mechanism, entry.unit, entry.cohort_size,
    )  # fmt: skip


def described_by(receipt: Receipt) -> tuple[Any, ...]:
    """The release that a receipt is about, in the same order."""
    return (
        receipt.study, receipt.round, receipt.attempt, receipt.context, receipt.dataset, receipt.mechanism, receipt.unit,
        receipt.cohort_size,
    )  # fmt: skip


def _check_refusal(detail: Mapping[str, Any]) -> None:
    figures = detail.get("figures", {})
    try:
        fits = isinstance(detail["code"], str) and isinstance(detail["message"], str)
        for value in figures.values():
            fits = fits and (value is None or math.isfinite(float.fromhex(value)))
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise HostileInput("the refusal is malformed.") from error
    require(fits, "the refusal is malformed")


def _check_decision(entry: Entry) -> None:
    if entry.kind is Kind.EXPIRED:
        require(entry.study is not None and type(entry.detail.get("since")) is int, "it does not say what expired")
        return
    operator, reason, shown = (entry.detail.get(name) for name in ("operator", "reason", "shown"))
    named = isinstance(operator, str) and operator and isinstance(reason, str) and (reason or entry.kind is Kind.APPROVAL)
    require(entry.study is not None and bool(named), "it does not say who decided on which study, and why")
    require(isinstance(shown, str) and len(unhex(shown)) == 32, "it does not say what was shown")


def _check_figures(name: str, stated: Any, charged: Sum, budget: Budget) -> None:
    try:
        spent, estimate = (None if stated[key] is None else float.fromhex(stated[key]) for key in ("spent", "estimate"))
        releases = stated["releases"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise HostileInput("its figures are malformed.") from error
    fault = f"its figures for {name} do not follow from the entries"
    require(releases == charged.counts.total(), fault)
    # Earlier versions certified fewer sampled courses, and stated more for the others: at most what they cost unsampled.
    unsampled = math.inf if charged.unbounded else charged.gate.epsilon(budget.delta, budget.adaptive, sampling=False)
    derived, most = charged.epsilon(budget), unsampled
    nearest = derived if spent is None else min(max(spent, derived), most)
    require(_close(spent, nearest if math.isfinite(derived) else None, TOLERANCE * max(1.0, nearest)), fault)
    require(_close(estimate, estimate_of(charged, budget), 2 * PRV_ERROR), fault)


def _close(stated: float | None, derived: float | None, tolerance: float) -> bool:
    if stated is None or derived is None:
        return stated is derived
    return abs(stated - derived) <= tolerance
