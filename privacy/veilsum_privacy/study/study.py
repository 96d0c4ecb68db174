"""A study as everyone agrees to it: the exact bytes that the analyst signs, and what they mean.

An analyst writes ``study.toml``; the method turns it into a :class:`Study` that names every task with its parameters, its
grid, its noise and its largest number of releases. Nothing else is ever computed for it. The study's name in the protocol is
the SHA-256 of its canonical bytes. This module holds no defaults that a later version could change under a signed study.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import not_
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, StringConstraints, ValidationError, model_validator

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Hex32, Name, Real, Sentence
from veilsum_privacy.study.encoder import Encoder
from veilsum_privacy.study.schema import DatasetSchema

MAX_STUDY_BYTES = 1 << 20
"""Largest signed study that is parsed, in bytes."""

MAX_STEPS = 10**9
"""Most noised steps of all releases of a study, which one event can hold."""

Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Disclosure = Literal["joint", "per-site"]
NoiseKind = Literal["distributed", "local", "none"]
Unit = Literal["record", "subject", "site"]
Statement = Literal["purpose", "reference", "legal_basis", "contact"]
STATEMENTS: tuple[Statement, ...] = get_args(Statement)
"""What an analyst may state of a study beside what it computes, in words."""


class TaskDeclaration(Frozen):
    """One task of a study: what is computed, how often at most, and at what noise.

    Attributes:
        label: unique in the study; ``federation.sum`` names it.
        parameters: the task's parameters, resolved; no default is left open.
        disclosure: ``joint``: only the sum over the cohort is seen. ``per-site``: the vector has one block a site, of which a
            site fills its own, and the sum shows each site's block.
        own_noise: of a per-site task with noise: a site adds noise to its own block alone, all of S^2. Studies signed before
            there was this field do not state it, and every site adds its share to all blocks; false has no bytes of its own.
        releases: how many rounds of it may be released.
        grid: L2 norm bound of one record, or one subject, in grid units (the sensitivity D of the sum).
        variance: variance S^2 of the sum's noise in grid units squared that the honest shares together reach; 0 without noise.
        keep: each site keeps its own noised vector, whose noise is then its own alone, whatever the study's kind of noise.
            Later tasks may compute from it.
        source: label of an earlier kept task: that a derived task computes from, at no cost and without noise of its own, or
            that a site's alignment is made from.
        sampling_rate: public q in (0, 1]: each record, or subject, takes part in a release with this probability, by itself.
        local_steps: of a task that trains with noise: it samples and adds noise of ``variance`` so many times a release, and
            no more is added to its vector; 0 for all others.
        resolution: of a task that trains: grid units of the largest value of its vector; 0 for all others.
        single_precision: whether the arrays of the task's model are broadcast as float32. Studies signed before there was this
            field do not state it, and broadcast float64; false has no bytes of its own.
        unrounded: of a task of one vector a site, with noise: what a site sends is drawn around its real vector, which is not
            rounded to the grid before. Studies signed before there was this field do not state it, and round; false has no
            bytes of its own.
        slack: of a sampled task with noise, where the study is priced by the rule ``gaussian``: the probability with which all
            its steps together may be taken to reveal a record (:class:`veilsum_privacy.accounting.accountant.Course`); part of
            delta. 0, of all others, has no bytes of its own.
    """

    label: Name
    task: Name
    parameters: dict[str, Any]
    disclosure: Disclosure
    own_noise: bool = Field(default=False, exclude_if=not_)
    releases: int = Field(ge=1, le=100_000)
    grid: int = Field(ge=1, le=2**40)
    variance: int = Field(ge=0, le=2**62)
    keep: bool = False
    source: Name | None = None
    sampling_rate: Real = Field(default=1.0, gt=0, le=1)
    local_steps: int = Field(default=0, ge=0, le=100_000)
    resolution: int = Field(default=0, ge=0, le=2**40)
    single_precision: bool = Field(default=False, exclude_if=not_)
    unrounded: bool = Field(default=False, exclude_if=not_)
    slack: Real = Field(default=0.0, ge=0, lt=0.5, exclude_if=not_)

    @property
    def steps(self) -> int:
        """Noised steps of one release."""
        return max(1, self.local_steps)

    @property
    def derived(self) -> bool:
        """Whether it is declared as computed from what a site kept, which was paid for; the task tells whether it can be."""
        return self.source is not None and self.variance == 0


class PrivacyDemand(Frozen):
    """What the study demands and costs.

    Attributes:
        epsilon: what the whole study costs each site at ``delta`` if nothing else is ever released; None without noise.
        accounting: by which rule that is: ``gaussian``, or ``rdp``, which studies signed before there was a choice do not
        state
            and which has no bytes of its own.
        delta: of the datasets' budgets as the study assumes it.
        noise: ``distributed`` over honest shares, ``local`` (each site alone reaches S), or ``none``.
        assumed_colluders: k, participants whose noise is not counted.
        min_cohort: smallest cohort of any sum.
        cohort_difference: ``strict`` (one cohort for the whole study) or ``allowed``.
        unit: the unit of privacy: one ``record``, one ``subject`` with all its records at a site, or one ``site``.
    """

    epsilon: Real | None
    delta: Real = Field(gt=0, lt=0.5)
    noise: NoiseKind
    assumed_colluders: int = Field(ge=1, le=1024)
    min_cohort: int = Field(ge=2, le=1024)
    cohort_difference: Literal["strict", "allowed"]
    unit: Unit
    accounting: Literal["rdp", "gaussian"] = Field(default="rdp", exclude_if=lambda rule: rule == "rdp")

    def check(self, tasks: Sequence[TaskDeclaration]) -> None:
        """Insist that a study's tasks suit the demand, and one another, whatever they compute.

        Raises:
            ValueError: they do not.
        """
        kept: set[str] = set()
        for task in tasks:
            if task.source is not None and task.source not in kept:
                raise ValueError(f"task {task.label}: its source {task.source!r} is not a kept task before it")
            for broken, rule in self._rules(task):
                if broken:
                    raise ValueError(f"task {task.label}: {rule}")
            kept |= {task.label} if task.keep else set()
        if kept and self.cohort_difference != "strict":
            raise ValueError("a study that keeps statistics is always strict: two cohorts would show one site's noised vector")
        if self.noise == "none" and self.cohort_difference != "strict":
            raise ValueError("a study without noise is always strict: differencing two cohorts would show one site")

    def _rules(self, task: TaskDeclaration) -> Iterable[tuple[bool, str]]:
        """What holds for every task by itself: whether it is broken, and how it reads."""
        exact = task.variance == 0
        return (
            (task.keep and task.releases != 1, "what a site keeps is released once"),
            (task.keep and task.sampling_rate < 1, "what a site keeps is of all its records"),
            (
                task.local_steps > 0 and (self.noise == "none" or task.keep),
                "steps with noise need a study with noise, and are not kept",
            ),
            (
                task.own_noise and (task.disclosure != "per-site" or exact or task.local_steps > 0),
                "noise of its own block is for per-site sums that get noise",
            ),
            (
                task.slack > 0 and (self.accounting != "gaussian" or exact or task.sampling_rate == 1),
                "slack is for sampled tasks with noise, priced by the rule gaussian",
            ),
            (
                not task.derived and exact != (self.noise == "none"),
                f"noise = {self.noise!r} contradicts variance {task.variance}",
            ),
        )


class Study(Frozen):
    """A compiled study.

    ``encoder`` makes features of the dataset's columns, None for none. ``weights`` is one public table for all sites; v1 sums
    are unweighted, so it maps to ones.

    What the analyst states in words: ``purpose``, what the study is for; ``reference``, by which it can be found elsewhere, as
    an ethics vote or a contract; ``legal_basis``, on which the data are used; ``contact``, whom to ask. Nothing computes with
    them. Studies signed before there were these fields do not state them; None has no bytes of its own.
    """

    version: Literal[1]
    name: Name
    federation: Hex32
    coordinator: Name
    nonce: Nonce
    created: int = Field(ge=0)
    expires: int = Field(ge=0)
    method: Name
    parameters: dict[str, Any]
    dataset: Name
    data: DatasetSchema
    encoder: Encoder | None = None
    privacy: PrivacyDemand
    tasks: tuple[TaskDeclaration, ...] = Field(min_length=1, max_length=256)
    participants: tuple[Name, ...] = Field(min_length=2, max_length=1024)
    weights: dict[Name, int]
    purpose: Sentence | None = Field(default=None, exclude_if=lambda stated: stated is None)
    reference: Sentence | None = Field(default=None, exclude_if=lambda stated: stated is None)
    legal_basis: Sentence | None = Field(default=None, exclude_if=lambda stated: stated is None)
    contact: Sentence | None = Field(default=None, exclude_if=lambda stated: stated is None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        labels = [task.label for task in self.tasks]
        if len(set(labels)) != len(labels):
            raise ValueError("a task label stands twice")
        if list(self.participants) != sorted(set(self.participants), key=str.encode):
            raise ValueError("participants must be sorted and distinct")
        if set(self.weights) != set(self.participants):
            raise ValueError("weights must name exactly the participants")
        if self.encoder is not None and self.encoder.size != self.data.width:
            raise ValueError(f"the encoder takes {self.encoder.size} features; the columns give {self.data.width}")
        if not self.created < self.expires:
            raise ValueError("expires must come after created")
        if self.privacy.min_cohort > len(self.participants):
            raise ValueError("min_cohort exceeds the number of participants")
        if sum(task.steps * task.releases for task in self.tasks) > MAX_STEPS:
            raise ValueError("the study declares more than 10^9 noised steps")
        self.privacy.check(self.tasks)
        return self

    @property
    def sites(self) -> int:
        """How many participants the study names: the blocks of a vector that is disclosed per site."""
        return len(self.participants)

    @property
    def statements(self) -> dict[str, str]:
        """What the analyst states in words, as far as it is stated."""
        found = ((name, getattr(self, name)) for name in STATEMENTS)
        return {name: text for name, text in found if text is not None}

    @property
    def width(self) -> int:
        """Number of features that tasks are given: the encoder's, or the schema's own."""
        return self.data.width if self.encoder is None else self.encoder.width

    def task(self, label: str) -> TaskDeclaration:
        """Return the declared task with this label.

        Raises:
            KeyError: no task of the study has it.
        """
        for declaration in self.tasks:
            if declaration.label == label:
                return declaration
        raise KeyError(label)

    def to_bytes(self) -> bytes:
        """The canonical bytes that the analyst signs."""
        return canonical(self.model_dump(mode="json", by_alias=True))


def study_digest(data: bytes) -> bytes:
    """SHA-256 of the exact signed bytes: the study's name in the protocol (32 bytes)."""
    return hashlib.sha256(data).digest()


@lru_cache(maxsize=32)
def parse_study(data: bytes) -> Study:
    """Parse and validate signed study bytes; remembered, for every message of a study needs it again.

    Raises:
        HostileInput: too large, not canonical JSON, or not a valid study.
    """
    if not 0 < len(data) <= MAX_STUDY_BYTES:
        raise HostileInput("The study is empty or larger than allowed.")
    value = parse_canonical(data, what="study")
    try:
        study = Study.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        said = str(first["msg"]).removeprefix("Value error, ")
        raise HostileInput(f"The study is invalid at {place or 'its top level'}: {said}.") from error
    if study.to_bytes() != data:
        raise HostileInput("The study's bytes leave something to defaults; they must state every value.")
    return study
