"""The dossier as plain data: its JSON twin, and all that the page shows. Figures come from the ledger's entries alone.

Everything is derived from one list of entries, so that a participant that goes on writing cannot make two parts of a dossier
disagree. Nothing here verifies; what verification found is handed in.

What a verified ledger proves and what it cannot, in words, and how somebody else repeats the verification.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from veilsum_node.phrases import listed
from veilsum_privacy.accounting.accountant import Adaptive, epsilon_of
from veilsum_privacy.accounting.figures import at_sites
from veilsum_privacy.audit.signed import SignedAudit
from veilsum_privacy.dossier.annex import annex
from veilsum_privacy.dossier.figures import meaning
from veilsum_privacy.dossier.history import policy_steps, study_accounts
from veilsum_privacy.dossier.model import (
    AtSites,
    BudgetChange,
    DossierStep,
    Population,
    Proof,
    Refused,
    ReleaseRow,
    StudyLabel,
    StudySpending,
    to_plain,
)
from veilsum_privacy.dossier.protection import impact_assessment, processing_record, retention_table
from veilsum_privacy.ledger import Budget, Entry, Kind, Mechanism
from veilsum_privacy.ledger.entries import MECHANISMS
from veilsum_privacy.ledger.statements import estimate_of
from veilsum_privacy.ledger.sums import Sum, total_epsilon

FORMAT = "veilsum-dossier/1"

_SITES = (2, 3)
_CHARGES = (Kind.CHARGE, Kind.RECOVERY)


def describe(
    entries: Sequence[Entry],
    proof: Proof,
    *,
    site: str,
    made: int,
    studies: Mapping[bytes, StudyLabel] | None = None,
    title: str = "",
    contact: str = "",
    policy: Mapping[str, Any] | None = None,
    audits: Sequence[SignedAudit] = (),
    annexes: Collection[str] = ("nist",),
    retention: Mapping[str, int | None] | None = None,
) -> dict[str, Any]:
    """The dossier of a site's ledger as plain data, ready for JSON.

    Args:
        entries: all entries that ``proof`` speaks of, in order.
        site: whose ledger it is.
        made: unix seconds.
        studies: names of studies by their digest, from the site's own files.
        title: of the page; by default names the site.
        contact: whom to ask.
        policy: the site's own, as plain values, where its configuration is at hand.
        audits: signed reports of audits at the site.
        annexes: which of :data:`~veilsum_privacy.dossier.protection.ANNEXES` it has.
        retention: what the site's configuration keeps for how many days, where it is at hand.
    """
    labels = {digest.hex(): label for digest, label in (studies or {}).items()}
    by_population: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.population is not None:
            by_population[entry.population].append(entry)
    shown = {entry.study.hex() for entry in entries if entry.study is not None}
    dossier = {
        "format": FORMAT,
        "title": title or f"Privacy dossier of {site}",
        "contact": contact,
        "site": site,
        "made": made,
        "first": entries[0].time if entries else None,
        "last": entries[-1].time if entries else None,
        "entries": len(entries),
        "proof": {
            **to_plain(proof),
            "proves": proven(proof, site),
            "leaves_open": unproven(proof),
            "repeat": repeating(proof.head),
        },
        "studies": {digest: labels[digest] for digest in sorted(shown) if digest in labels},
        "accounts": study_accounts(entries, {digest: labels[digest] for digest in labels}),
        "policy_changes": policy_steps(entries),
        "populations": [_Account(name, by_population[name]).population() for name in sorted(by_population)],
        "refusals": [_refused(entry) for entry in entries if entry.kind is Kind.REFUSAL and entry.population is None],
        "policy": policy,
        "audits": [{**audit.body, "digest": audit.digest, "key": audit.fingerprint} for audit in audits],
    }
    plain = dict(to_plain(dossier))
    annexed: dict[str, Any] = {}
    if "nist" in annexes:
        annexed["annex"] = to_plain(annex(plain))
    if "dpia" in annexes:
        annexed["dpia"] = to_plain(impact_assessment(plain))
    if "art30" in annexes:
        annexed["art30"] = to_plain(processing_record(plain))
    if "dpia" in annexed or "art30" in annexed:
        annexed["retention"] = to_plain(retention_table(retention))
    return plain | annexed


class _Account:
    """One population's entries, read in order."""

    def __init__(self, name: str, entries: Sequence[Entry]) -> None:
        self._name, self._entries = name, entries
        self._budget: Budget | None = None
        self._budgets: list[BudgetChange] = []
        self._charged = Sum()
        self._curve: list[DossierStep] = []
        self._releases: list[ReleaseRow] = []
        self._mechanisms: list[Mechanism] = []
        self._open: dict[bytes, Mechanism] = {}
        for entry in entries:
            self._read(entry)

    def population(self) -> Population:
        """Where the population stands after its last entry."""
        budget, spent = self._budget, self._spent()
        reserved = self._total([*self._mechanisms, *self._open.values()])
        alone = self._total(self._mechanisms, alone=True)
        delta = 0.0 if budget is None else budget.delta
        bound = None if budget is None else budget.epsilon
        studies = self._studies()
        return Population(
            name=self._name,
            datasets=_distinct(entry.dataset for entry in self._entries),
            units=_distinct(entry.unit for entry in self._entries),
            epsilon=bound,
            delta=None if budget is None else budget.delta,
            adaptive=self._adaptive,
            spent=spent,
            estimate=self._estimate(spent),
            reserved=reserved,
            left=None if bound is None else max(0.0, bound - reserved),
            alone=alone,
            colluders=_colluders(self._mechanisms),
            open=len(self._open),
            unseen=sum(not release.seen for release in self._releases),
            meaning=meaning(spent, delta),
            meaning_alone=meaning(alone, delta),
            after_all=None if bound is None else meaning(bound, delta),
            sum_of_studies=math.fsum(study.epsilon for study in studies),
            sites=self._at_sites(),
            budgets=tuple(self._budgets),
            curve=tuple(self._curve),
            studies=tuple(studies),
            releases=tuple(self._releases),
            refusals=tuple(_refused(entry) for entry in self._entries if entry.kind is Kind.REFUSAL),
        )

    def _read(self, entry: Entry) -> None:
        if entry.kind is Kind.BUDGET:
            self._set_budget(entry)
        elif entry.kind is Kind.RESERVE and entry.context is not None and entry.mechanism is not None:
            self._open[entry.context] = entry.mechanism
        elif entry.kind is Kind.FREE and entry.context is not None:
            self._open.pop(entry.context, None)
        elif entry.kind in _CHARGES and entry.mechanism is not None:
            self._charge(entry, entry.mechanism)

    def _set_budget(self, entry: Entry) -> None:
        budget = self._budget = entry.budget
        detail = entry.detail
        below = detail.get("below_spent") is True
        self._budgets.append(
            BudgetChange(
                entry.seq, entry.time, budget.epsilon, budget.delta, budget.adaptive, str(detail.get("reason", "")),
                str(detail.get("operator", "")), below,
            )
        )  # fmt: skip
        self._curve.append(DossierStep(entry.seq, entry.time, self._spent(), budget.epsilon))

    def _charge(self, entry: Entry, mechanism: Mechanism) -> None:
        if entry.context is not None:
            self._open.pop(entry.context, None)
        self._mechanisms.append(mechanism)
        self._charged.add(mechanism)
        total, budget = self._spent(), self._budget
        self._curve.append(DossierStep(entry.seq, entry.time, total, None if budget is None else budget.epsilon))
        self._releases.append(self._release(entry, mechanism, total))

    def _release(self, entry: Entry, mechanism: Mechanism, total: float) -> ReleaseRow:
        noise, delta = mechanism.noise, self._delta(entry.delta)
        adaptive = self._adaptive
        std = math.sqrt(noise.variance)
        return ReleaseRow(
            entry=entry.seq,
            time=entry.time,
            study="" if entry.study is None else entry.study.hex(),
            round=entry.round,
            attempt=entry.attempt,
            dataset=entry.dataset or "",
            unit=entry.unit or "",
            delta=delta,
            adaptive=adaptive,
            mechanism=MECHANISMS[noise.kind].replace("discrete-gaussian", "discrete Gaussian"),
            noise=noise.kind,
            sensitivity=mechanism.sensitivity,
            variance=str(noise.variance),
            std=std,
            share_std=noise.share_std,
            multiplier=std / mechanism.sensitivity,
            sampling_rate=mechanism.sampling_rate,
            steps=mechanism.steps,
            cohort=entry.cohort_size or 0,
            honest=noise.honest,
            colluders=noise.colluders,
            epsilon=_epsilon(mechanism, delta, adaptive, alone=False),
            alone=_epsilon(mechanism, delta, adaptive, alone=True),
            total=total,
            budget=None if self._budget is None else self._budget.epsilon,
            seen=entry.context in self._seen,
            recovered=entry.kind is Kind.RECOVERY,
        )

    @cached_property
    def _seen(self) -> frozenset[bytes | None]:
        return frozenset(entry.context for entry in self._entries if entry.kind is Kind.RELEASE_SEEN)

    def _delta(self, stated: float | None = None) -> float:
        """The delta of an entry, or else of the budget in force."""
        if stated is not None:
            return stated
        return 0.0 if self._budget is None else self._budget.delta

    @property
    def _adaptive(self) -> Adaptive:
        return "standard" if self._budget is None else self._budget.adaptive

    def _spent(self) -> float:
        if not self._mechanisms:
            return 0.0
        delta = self._delta()
        return math.inf if self._charged.unbounded or not delta else self._charged.gate.epsilon(delta, self._adaptive)

    def _total(self, mechanisms: Iterable[Mechanism], *, alone: bool = False) -> float:
        return _epsilon_of(Counter(mechanisms), self._delta(), self._adaptive, alone=alone)

    def _estimate(self, spent: float) -> float | None:
        return None if self._budget is None or not math.isfinite(spent) else estimate_of(self._charged, self._budget)

    def _studies(self) -> list[StudySpending]:
        charged: defaultdict[str, list[int]] = defaultdict(list)
        for index, release in enumerate(self._releases):
            charged[release.study].append(index)
        costs = []
        for study, indices in charged.items():
            mechanisms = [self._mechanisms[index] for index in indices]
            costs.append(
                StudySpending(
                    study,
                    len(indices),
                    self._total(mechanisms),
                    self._total(mechanisms, alone=True),
                    _colluders(mechanisms),
                    self._releases[indices[0]].time,
                    self._releases[indices[-1]].time,
                )
            )
        return costs

    def _at_sites(self) -> tuple[AtSites, ...]:
        """For a person with a record at each of several sites of every sum."""
        events = Counter(event for mechanism in self._mechanisms if (event := mechanism.event) is not None)
        delta, unsampled = self._delta(), all(event.sampling_rate == 1 for event in events)
        if not (events and delta and unsampled) or self._charged.unbounded:
            return ()
        largest = max(release.cohort for release in self._releases)
        found = []
        for sites in sorted({count for count in (*_SITES, largest) if 1 < count <= largest}):
            epsilon = epsilon_of(at_sites(events, sites), delta, self._adaptive)
            found.append(AtSites(sites, epsilon, meaning(epsilon, delta)))
        return tuple(found)


@lru_cache(maxsize=4096)
def _epsilon(mechanism: Mechanism, delta: float, adaptive: Adaptive, *, alone: bool) -> float:
    return _epsilon_of({mechanism: 1}, delta, adaptive, alone=alone)


def _epsilon_of(counted: Mapping[Mechanism, int], delta: float, adaptive: Adaptive, *, alone: bool) -> float:
    """Epsilon; infinite without noise, or without a delta: after a charge that was recovered without any budget."""
    if not delta:
        return 0.0 if all(mechanism.free for mechanism in counted) else math.inf
    return total_epsilon(counted, delta, adaptive, alone=alone)


def _colluders(mechanisms: Iterable[Mechanism]) -> int | None:
    """How many colluders the cost of all of them together stands: as many as each does; any number if None."""
    return min((item.noise.colluders for item in mechanisms if item.noise.kind == "distributed"), default=None)


def _refused(entry: Entry) -> Refused:
    detail = entry.detail
    figures = detail.get("figures")
    known = isinstance(figures, Mapping)
    return Refused(
        entry=entry.seq,
        time=entry.time,
        study=None if entry.study is None else entry.study.hex(),
        population=entry.population,
        dataset=entry.dataset,
        code=str(detail.get("code", "")),
        message=str(detail.get("message", "")),
        reasons=tuple(reason for reason in _items(detail.get("reasons")) if isinstance(reason, Mapping)),
        budget=_figure(figures, "budget"),
        reserved=_figure(figures, "reserved"),
        after=_figure(figures, "after"),
        figures=known,
    )


def _figure(figures: Any, name: str) -> float | None:
    """A figure of a refusal: None means no bound (budget) or an infinite cost (the others)."""
    if not isinstance(figures, Mapping):
        return None
    value = figures.get(name)
    if value is None:
        return None if name == "budget" else math.inf
    try:
        return float.fromhex(value) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return None  # written by nobody that verifies


def _items(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _distinct(values: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({value for value in values if value is not None}))


def proven(proof: Proof, owner: str, *, mirror: bool = False) -> list[str]:
    """What follows from a verification that found no fault; nothing if it found one.

    Args:
        owner: whose ledger it is.
        mirror: whether it is a coordinator's.
    """
    if not proof.valid:
        return []
    found = ["Nothing was changed, removed, inserted or moved since it was signed, up to the head named here."]
    if mirror:
        found.append("Every sum that is noted as released was shown to its cohort, and every member of it had consented.")
    else:
        found += [
            "Every entry was allowed after those before it: no release without a reservation, none beyond the budget then in "
            "force, none charged twice. What a restored backup had lost and receipts brought back is marked as such.",
            "The totals follow from the recorded releases alone. They were computed anew, by two accountants.",
        ]
    found.append("Every receipt that is kept with it is signed by the member that it names.")
    if not mirror:
        found.append("Where receipts are kept with a charge, the coordinator signed for showing exactly these to the cohort.")
    if proof.authority:
        found.append(
            f"The keys that signed are certified for {owner} by the authority whose certificate was given for the check."
        )
    if proof.against:
        found.append(f"It agrees with what is recorded of it in {listed(proof.against)}.")
    return found


def unproven(proof: Proof, *, mirror: bool = False) -> list[str]:
    """What such a verification leaves open, whatever it found."""
    left = []
    if not proof.authority:
        left.append(
            "Only the ledger itself says who owns the keys. Compare the federation's fingerprint with what its authority "
            "publishes, or give the authority's certificate with --authority."
        )
    last = "That its last entry is the last there ever was, and that no second version exists: "
    if proof.against:
        left.append(last + "that is known only as far as the ledgers compared with it have seen.")
    elif proof.head_given:
        left.append(last + "that is known only if the given head comes from somebody who knows the latest one.")
    else:
        left.append(last + "only others can tell. Give a head that they saw with --head, or what they hold with --against.")
    if not mirror:
        left.append(
            "That the software at the site did what was recorded: that noise was drawn as stated, and that nothing left "
            "by another route."
        )
    return left


def repeating(head: str) -> list[str]:
    """The commands by which a third party repeats the verification from an export; the first is run at the site."""
    return [
        "veilsum ledger export --out ledger.jsonl",
        f"veilsum ledger verify ledger.jsonl --authority authority.pem --head {head}",
        "veilsum ledger report ledger.jsonl --authority authority.pem --out again.html",
    ]
