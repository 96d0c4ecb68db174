"""What stands in a ledger: typed entries, the mechanisms that they record, and budgets.

Epsilon is derived from recorded mechanisms and never stored as the truth. This module reads no database and decides nothing
but whether an epsilon fits a budget.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.accounting.accountant import RULES, SLACK_SHARE, Adaptive, Course, GaussianEvent
from veilsum_privacy.mechanism.noise_plan import NoisePlan

if TYPE_CHECKING:
    from veilsum_privacy.study.study import TaskDeclaration


class Kind(StrEnum):
    """What an entry records. ``receipts`` and ``consent`` stand in a coordinator's mirror only."""

    GENESIS = "genesis"
    KEY = "key"
    BUDGET = "budget"
    RESERVE = "reserve"
    CHARGE = "charge"
    RECOVERY = "recovery"
    FREE = "free"
    FAULT = "fault"
    SNAPSHOT = "snapshot"
    RELEASE_SEEN = "release-seen"
    REFUSAL = "refusal"
    CHECKPOINT = "checkpoint"
    APPROVAL = "approval"
    DECLINE = "decline"
    EXPIRED = "expired"
    POLICY = "policy"
    RECEIPTS = "receipts"
    CONSENT = "consent"


MECHANISMS: Mapping[str, str] = {
    "distributed": "discrete-gaussian",
    "local": "discrete-gaussian",
    "none": "none",
    "kept": "post-processing",
    "training": "discrete-gaussian",
}
"""The mechanism's name by the kind of noise."""


_MECHANISM_KEYS = (
    "mechanism", "noise", "sensitivity", "variance", "share_variance", "honest", "sampling_rate", "steps", "course"
)  # fmt: skip


@dataclass(frozen=True)
class Mechanism:
    """How a release was made private.

    Attributes:
        sensitivity: D, L2 bound on what one record changes, in grid units.
        noise: how its noise was made up; its colluders are k.
        sampling_rate: public Poisson sampling rate q in (0, 1].
        steps: how many such releases.
        course: what its steps belong to, where it is sampled and the study is priced by the rule ``gaussian``.
    """

    sensitivity: int
    noise: NoisePlan
    sampling_rate: float = 1.0
    steps: int = 1
    course: Course | None = None

    @staticmethod
    def of(declaration: TaskDeclaration, noise: NoisePlan) -> Mechanism:
        """One release of a declared task."""
        course = Course.of(declaration.steps * declaration.releases, declaration.slack)
        return Mechanism(declaration.grid, noise, declaration.sampling_rate, declaration.steps, course)

    @property
    def free(self) -> bool:
        """Whether it costs nothing: the sum is made of noised statistics that the site kept, and was charged for."""
        return self.noise.kind == "kept"

    @cached_property
    def event(self) -> GaussianEvent | None:
        """What it costs against up to k colluders: the noise counted is S^2. None where it is free, and without noise, whose
        epsilon is infinite."""
        return self._event(Fraction(self.noise.variance))

    @cached_property
    def event_alone(self) -> GaussianEvent | None:
        """What it costs against all other parties together: only the site's own share S^2 / h is counted."""
        return self._event(self.noise.share_variance)

    def _event(self, variance: Fraction) -> GaussianEvent | None:
        if not self.noise.protects:
            return None
        return GaussianEvent(self.sensitivity, variance, self.sampling_rate, self.steps, self.course)

    def check(self) -> None:
        """Check that it has a price: sensitivity, rate and steps are those of an event, with or without noise.

        Raises:
            Misuse: they are not.
        """
        GaussianEvent(self.sensitivity, Fraction(max(1, self.noise.variance)), self.sampling_rate, self.steps, self.course)

    def to_json(self) -> dict[str, Any]:
        """The mechanism as an entry holds it; colluders stand in their own column."""
        share = self.noise.share_variance
        value = {
            "mechanism": MECHANISMS[self.noise.kind],
            "noise": self.noise.kind,
            "sensitivity": self.sensitivity,
            "variance": [self.noise.variance, 1],
            "share_variance": [share.numerator, share.denominator],
            "honest": self.noise.honest,
            "sampling_rate": self.sampling_rate,
            "steps": self.steps,
        }
        return value if self.course is None else value | {"course": [self.course.steps, self.course.slack]}

    @staticmethod
    def from_json(value: Mapping[str, Any], colluders: int) -> Mechanism:
        """Read what :meth:`to_json` wrote.

        Raises:
            HostileInput: it is not such a value.
        """
        if strange := sorted(set(value).difference(_MECHANISM_KEYS)) if isinstance(value, Mapping) else []:
            raise unknown(f"the key {strange[0][:40]!r}")
        if isinstance(kind := _of(value, "noise"), str) and kind not in MECHANISMS:
            raise unknown(f"noise of kind {kind[:40]!r}")
        try:
            noise = NoisePlan(value["noise"], int(value["variance"][0]), int(value["honest"]), colluders)
            rate = float.fromhex(value["sampling_rate"])
            steps, slack = value.get("course") or (0, "")
            course = Course(int(steps), float.fromhex(slack)) if slack else None
            mechanism = Mechanism(int(value["sensitivity"]), noise, rate, int(value["steps"]), course)
            mechanism.check()
            same = canonical(mechanism.to_json()) == canonical(value)
        except (KeyError, IndexError, TypeError, ValueError, ArithmeticError, Misuse) as error:
            raise HostileInput("The mechanism of a ledger entry is malformed.") from error
        if not same:
            raise HostileInput("The mechanism of a ledger entry is malformed.")
        return mechanism


@dataclass(frozen=True)
class Reservation:
    """A release about to be paid for.

    Attributes:
        study: digest of the study, 32 bytes.
        round, attempt: which sum of it, and which try at it.
        context: hash of the round's context, 32 bytes.
        population: whose budget it draws on.
        dataset: what it was computed from.
        mechanism: what it costs.
        unit: the unit of privacy.
        cohort_size: participants in the sum.
    """

    study: bytes
    round: int
    attempt: int
    context: bytes
    population: str
    dataset: str
    mechanism: Mechanism
    unit: str
    cohort_size: int

    def __post_init__(self) -> None:
        if len(self.study) != 32 or len(self.context) != 32:
            raise Misuse("A study and a context are named by 32 bytes.")
        if self.round < 0 or self.attempt < 0:
            raise Misuse("Rounds and attempts are not negative.")
        noise = self.mechanism.noise
        if noise.honest > max(1, self.cohort_size - noise.colluders):
            raise Misuse("The noise plan counts more honest shares than the cohort has.")
        self.mechanism.check()  # what has no price is not reserved

    def columns(self) -> dict[str, Any]:
        """The ledger's columns that describe the release; the same in its reservation, charge and freeing."""
        return {
            "study": self.study.hex(),
            "round": self.round,
            "attempt": self.attempt,
            "context": self.context.hex(),
            "population": self.population,
            "dataset": self.dataset,
            "event": canonical(self.mechanism.to_json()).decode(),
            "unit": self.unit,
            "cohort_size": self.cohort_size,
            "colluders": self.mechanism.noise.colluders,
        }


def unknown(what: str, error: Exception | None = None) -> HostileInput:
    """The error for an entry that states what this software has no word for; a later one may have."""
    found = HostileInput(
        f"A ledger entry was written by a newer version of veilsum, or is damaged: this one does not know {what}.",
        "Install the newer version, or restore the backup that was made before it was installed. If none was installed, run"
        " veilsum ledger verify.",
    )
    found.__cause__ = error
    return found


def _of(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


def read_kind(text: Any) -> Kind:
    """The kind of an entry.

    Raises:
        HostileInput: there is none such, in this version.
    """
    try:
        return Kind(text)
    except ValueError as error:
        raise unknown(f"entries of kind {str(text)[:40]!r}", error) from error


@dataclass(frozen=True)
class Budget:
    """What a population may lose in all.

    Attributes:
        epsilon: positive bound, or None: the site demands no guarantee (the only budget that admits releases without noise).
        delta: in (0, 1/2); of the population, not of a study.
        adaptive: the rule by which epsilon is derived (:meth:`veilsum_privacy.accounting.accountant.Releases.epsilon`).
    """

    epsilon: float | None
    delta: float
    adaptive: Adaptive = "standard"

    def __post_init__(self) -> None:
        if self.adaptive not in RULES:
            raise Misuse(f"A budget's rule is one of {', '.join(RULES)}.")
        if self.epsilon is not None and not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise Misuse("A budget's epsilon must be positive and finite, or None for no guarantee.")
        if not 0.0 < self.delta < 0.5:
            raise Misuse("A budget's delta must lie in (0, 1/2).")

    @staticmethod
    def from_detail(detail: Mapping[str, Any], delta: float) -> Budget:
        """The budget that an entry's detail and delta state.

        Raises:
            HostileInput: they state none.
        """
        if isinstance(rule := _of(detail, "adaptive"), str) and rule not in RULES:
            raise unknown(f"the budget's rule {rule[:40]!r}")
        try:
            epsilon = detail["epsilon"]
            value = None if epsilon is None else float.fromhex(epsilon)
            budget = Budget(value, delta, detail.get("adaptive", "standard"))
        except (KeyError, TypeError, ValueError, OverflowError, Misuse) as error:
            raise HostileInput("The budget of a ledger entry is malformed.") from error
        if value is not None and value.hex() != epsilon:
            raise HostileInput("The budget of a ledger entry is malformed.")
        return budget

    def admits(self, epsilon: float) -> bool:
        """Whether a total of ``epsilon`` stays within the budget."""
        return self.epsilon is None or epsilon <= self.epsilon


@dataclass(frozen=True)
class Entry:
    """One entry. Fields that a kind has no use for are None.

    Attributes:
        detail: what else it says; without its random bytes.
        random: the 32 bytes by which its hash hides the rest; None in an entry of a version up to 0.2.
    """

    seq: int
    time: int
    kind: Kind
    study: bytes | None
    round: int | None
    attempt: int | None
    population: str | None
    dataset: str | None
    mechanism: Mechanism | None
    delta: float | None
    unit: str | None
    cohort_size: int | None
    colluders: int | None
    context: bytes | None
    detail: Mapping[str, Any]
    previous: bytes
    hash: bytes
    signature: bytes
    random: bytes | None = field(default=None, repr=False)

    @property
    def reservation(self) -> Reservation:
        """The release that the entry reserves, charges, frees or has seen.

        Raises:
            HostileInput: the entry describes none, or not all of it.
        """
        about: list[Any] = [getattr(self, item.name) for item in fields(Reservation)]
        if None in about:
            raise HostileInput("The ledger entry describes no complete release.")
        try:
            return Reservation(*about)
        except Misuse as error:
            raise HostileInput(error.message) from error

    @property
    def budget(self) -> Budget:
        """The budget that an entry of kind ``budget`` sets.

        Raises:
            HostileInput: the entry sets none.
        """
        if self.kind is not Kind.BUDGET or self.delta is None:
            raise HostileInput("The ledger entry sets no budget.")
        return Budget.from_detail(self.detail, self.delta)


def why_infinite(epsilon: float) -> str:
    """A sentence on what makes an epsilon infinite, to follow another; empty if it is not."""
    if math.isfinite(epsilon):
        return ""
    return f" A release has no noise, or the sampled studies state more slack than {SLACK_SHARE:g} of delta."


def events_of(mechanisms: Mapping[Mechanism, int], *, alone: bool = False) -> tuple[list[tuple[GaussianEvent, int]], bool]:
    """The events of mechanisms, each with how often it was used, and whether one of them has no noise and so no bound.

    What is free counts for nothing. ``alone``: against all other parties together.
    """
    counted = [(item, count) for item, count in mechanisms.items() if count and not item.free]
    events = [(item.event_alone if alone else item.event, count) for item, count in counted]
    found = [(event, count) for event, count in events if event is not None]
    return found, len(found) < len(counted)
