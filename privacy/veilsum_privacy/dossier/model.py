"""What a dossier says, as typed values that turn into plain data; an infinite cost becomes the text "infinite"."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from veilsum_privacy.dossier.figures import Meaning, plain
from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class StudyTerms:
    """What a signed study declares of privacy.

    Attributes:
        epsilon: of the whole study, if nothing else is ever released; None without noise. At ``delta``.
        noise, colluders, min_cohort, unit: as in :class:`veilsum_privacy.study.study.PrivacyDemand`.
        tasks: of each its label, the task's name, and how many releases it has at most.
        sampled: labels of tasks that sample records.
    """

    epsilon: float | None
    delta: float
    noise: str
    colluders: int
    min_cohort: int
    unit: str
    tasks: tuple[tuple[str, str, int], ...]
    sampled: tuple[str, ...]

    @staticmethod
    def of(study: Study) -> "StudyTerms":
        privacy = study.privacy
        return StudyTerms(
            privacy.epsilon,
            privacy.delta,
            privacy.noise,
            privacy.assumed_colluders,
            privacy.min_cohort,
            privacy.unit,
            tuple((task.label, task.task, task.releases) for task in study.tasks),
            tuple(task.label for task in study.tasks if task.sampling_rate < 1),
        )


@dataclass(frozen=True)
class StudyLabel:
    """What a site's own files say about a study; the ledger itself holds its digest only.

    Attributes:
        name, method, analyst: as in the signed study.
        per_site: labels of the tasks whose figures it shows of each site by itself.
        stated: what the analyst states in words, such as ``purpose``.
        asks: what it asks, by :func:`veilsum_privacy.dossier.asked.asked_facts`.
    """

    name: str
    method: str
    analyst: str
    per_site: tuple[str, ...] = ()
    terms: StudyTerms | None = None
    stated: Mapping[str, str] = field(default_factory=dict)
    asks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """What verification found.

    Attributes:
        valid: whether nothing failed.
        fault, fault_entry: what failed first, and at which entry if at one.
        entries, receipts, keys: how many were checked; keys is how many the ledger was signed with.
        head: hash of the last entry, hexadecimal.
        federation: fingerprint of the certificate authority that the ledger names, or None.
        authority, head_given: whether the authority's certificate, and the head, were given from outside the ledger.
        against: other ledgers and exports that it was held against.
        when: unix seconds.
    """

    valid: bool
    fault: str | None
    fault_entry: int | None
    entries: int
    receipts: int
    keys: int
    head: str
    federation: str | None
    authority: bool
    head_given: bool
    against: tuple[str, ...]
    when: int


@dataclass(frozen=True)
class BudgetChange:
    """A budget entry: who set what, and why."""

    entry: int
    time: int
    epsilon: float | None
    delta: float
    adaptive: str
    reason: str
    operator: str
    below_spent: bool


@dataclass(frozen=True)
class ReleaseRow:
    """A charged release.

    Attributes:
        entry, time: of the charge.
        study: digest, hexadecimal.
        std: standard deviation of the noise that is counted, S, in grid units; ``share_std`` of the site's own share.
        multiplier: std / sensitivity.
        honest, colluders: shares of noise that are counted, and participants whose shares are not.
        epsilon: of this release alone, against the coordinator and everyone who sees the sum, with up to ``colluders`` of the
            participants.
        alone: the same against all others together: the site's own share alone.
        total: epsilon of all releases of the population up to this one.
        budget: epsilon of the budget in force then; None for no bound.
        seen: whether the site saw the sum released; recovered: charged from a receipt after a restored backup.
    """

    entry: int
    time: int
    study: str
    round: int | None
    attempt: int | None
    dataset: str
    unit: str
    delta: float
    adaptive: str
    mechanism: str
    noise: str
    sensitivity: int
    variance: str
    std: float
    share_std: float
    multiplier: float
    sampling_rate: float
    steps: int
    cohort: int
    honest: int
    colluders: int
    epsilon: float
    alone: float
    total: float
    budget: float | None
    seen: bool
    recovered: bool


@dataclass(frozen=True)
class Refused:
    """A refusal, with figures that never left the site; None where the entry states none."""

    entry: int
    time: int
    study: str | None
    population: str | None
    dataset: str | None
    code: str
    message: str
    reasons: tuple[Mapping[str, Any], ...]
    budget: float | None
    reserved: float | None
    after: float | None
    figures: bool


@dataclass(frozen=True)
class DossierDecision:
    """What became of a study that waited: who said yes or no and why, or that it ended without an answer.

    Attributes:
        kind: ``approval``, ``decline`` or ``expired``.
        operator, reason: of a decision; of ``expired`` why it ended.
        shown: SHA-256 of the text by which it was decided; empty of ``expired``.
    """

    entry: int
    time: int
    kind: str
    operator: str
    reason: str
    shown: str


@dataclass(frozen=True)
class StudyAccount:
    """A study in the ledger: who asked for what and why, on whose word, and what became of it.

    Attributes:
        study: digest, hexadecimal.
        name, analyst, method, columns, purpose: as far as the ledger or the site's files say.
        stated, asks: what else the site's files say, as in :class:`StudyLabel`.
        decisions: on it, in order.
        approval: the policy's ``approval`` by the ledger, when the study was first entered; None where it does not say.
        first: when it was first entered.
    """

    study: str
    name: str
    analyst: str
    method: str
    columns: str
    purpose: str
    stated: Mapping[str, str]
    asks: Mapping[str, str]
    decisions: tuple[DossierDecision, ...]
    approval: str | None
    releases: int
    refusals: int
    first: int


@dataclass(frozen=True)
class PolicyStep:
    """What changed of the policy at a start: each key with its value before and after, None where there was none."""

    entry: int
    time: int
    changes: Mapping[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class StudySpending:
    """What one study has cost a population, by itself. Studies' costs do not add up to the population's.

    Attributes:
        epsilon: against the coordinator and everyone who sees the sums, with up to ``colluders`` of the participants (None:
            any number of them); ``alone`` against all others together.
    """

    study: str
    releases: int
    epsilon: float
    alone: float
    colluders: int | None
    first: int
    last: int


@dataclass(frozen=True)
class DossierStep:
    """Where a population stood after an entry."""

    entry: int
    time: int
    spent: float
    budget: float | None


@dataclass(frozen=True)
class AtSites:
    """Epsilon for a person with a record at so many sites of every one of the sums."""

    sites: int
    epsilon: float
    meaning: Meaning


@dataclass(frozen=True)
class Population:
    """Where a population stands; epsilons by the budget's rule and delta, but for ``estimate``.

    Attributes:
        spent: the guarantee; ``estimate`` the tighter accountant's figure; ``reserved`` counts open releases too.
        left: the budget's epsilon less ``reserved``; None without a bound.
        alone: of all charged releases, against all others together.
        colluders: participants that may work with the coordinator before ``spent`` is too little; None for any number.
        open: releases reserved and neither charged nor freed; ``unseen``: charged, and the sum never seen released.
        sum_of_studies: what the studies' own costs add up to: more than ``spent``.
        after_all: what the budget's epsilon, once used up, means for a person; None without a bound.
        sites: for people with records at several sites; empty where records were sampled or noise was missing.
    """

    name: str
    datasets: tuple[str, ...]
    units: tuple[str, ...]
    epsilon: float | None
    delta: float | None
    adaptive: str
    spent: float
    estimate: float | None
    reserved: float
    left: float | None
    alone: float
    colluders: int | None
    open: int
    unseen: int
    meaning: Meaning
    meaning_alone: Meaning
    after_all: Meaning | None
    sum_of_studies: float
    sites: tuple[AtSites, ...]
    budgets: tuple[BudgetChange, ...]
    curve: tuple[DossierStep, ...]
    studies: tuple[StudySpending, ...]
    releases: tuple[ReleaseRow, ...]
    refusals: tuple[Refused, ...]


def to_plain(value: Any) -> Any:
    """Dataclasses as objects, tuples as lists, infinite floats as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    return plain(value) if isinstance(value, float) else value
