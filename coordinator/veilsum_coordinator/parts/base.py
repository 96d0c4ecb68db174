"""What a method is: it declares its tasks before it runs, then is an ordinary function of a federation.

A method sees released sums only. What it declares is all that will ever be computed for it. How records' features are taken,
classes and clip norms among it, is the same for all methods and follows from public values.

Here is the net under formulas as well: what is released is paid for, so a formula that fails takes nothing along but its own
figure. Formulas say of a figure that it is not estimable, and why (:class:`~veilsum_aggregation.figures.NotEstimable`). What
they did not foresee ends here: the question, or at last the whole method, is then not estimable for that reason, and the
rest stands.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import NotEstimable, Row
from veilsum_coordinator.parts.federation import Federation, NoFurtherRoundError, Release
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real, stated_model
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.array_bytes import in_range
from veilsum_privacy.study.encoder import Encoder, Program, RandomFeatures
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Disclosure, Study, TaskDeclaration, Unit
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import DerivedTask, TrainingTask

LOG = logging.getLogger("veilsum.coordinator")

FORMULA_ERRORS = (ArithmeticError, ValueError)
"""What formulas raise on numbers that they cannot take; those of linear algebra among them."""


def unforeseen(error: Exception, what: str) -> NotEstimable:
    """The reason for what a formula did not foresee; the log has where it happened."""
    LOG.error("%s: not estimable, for a formula failed", what, exc_info=error)
    return NotEstimable(f"it could not be computed from the released sums: {str(error) or type(error).__name__}", "report it")


def told_rows(what: str, rows: Callable[[], Iterator[Row]]) -> list[Row]:
    """The rows of a question; where a formula fails, those before it and one that says so."""
    found: list[Row] = []
    try:
        found.extend(row for row in rows() if row)
    except FORMULA_ERRORS as error:
        found.append({"value": unforeseen(error, what).to_json()})
    return found


def told_arrays(what: str, arrays: Callable[[], Mapping[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
    """The arrays of a question; none where a formula fails."""
    try:
        return arrays()
    except FORMULA_ERRORS as error:
        unforeseen(error, what)
        return {}


def told_tables(what: str, tables: Mapping[str, Callable[[], Iterator[Row]]]) -> dict[str, list[Row]]:
    """The same of several tables by name."""
    return {name: told_rows(f"{what}, {name}", rows) for name, rows in tables.items()}


OF_NOISE = {
    "is within its noise": "is 0",
    "within its noise is": "0 is",
    "as they are within noise": "for they have too few records",
    "are within their noise": "tell nothing",
    "are above the noise": "have records",
    "be told from the noise": "be told",
    ", or too few against the noise": "",
    ", or nearly, against the noise": "",
    "too little against the noise": "too little",
    " against the noise in the hazards": "",
    ", or its noise,": "",
    " beyond the noise": "",
    "less noise or ": "",
    ", or more epsilon": "",
    ", or with more epsilon": "",
    ", or with less noise": "",
    " or the epsilon": "",
    " or epsilon": "",
}
"""What reasons and advice say of noise, and what is true in its place where there is none."""


def finite(value: Any, *, exact: bool = False) -> Any:
    """A summary without numbers that are none: a figure that is none is not estimable, any other is left open. Of ``exact``
    sums no reason says that noise hides something, and no advice that more epsilon would help (:data:`OF_NOISE`)."""
    if isinstance(value, Mapping):
        if isinstance(own := value.get("value"), float) and not math.isfinite(own):
            return NotEstimable("the released sums give no number").to_json()
        found = {name: finite(own, exact=exact) for name, own in value.items()}
        for name in ("not_estimable", "advice", "note"):
            if exact and isinstance(found.get(name), str):
                found[name] = reduce(lambda text, each: text.replace(*each), OF_NOISE.items(), found[name])
        return found
    if isinstance(value, list | tuple):
        return [finite(own, exact=exact) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Kept(Federation):
    """A federation that remembers the last release of each task, and asks for nothing that sites would refuse."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation.study, federation.encoder)
        self._federation = federation
        self.releases: dict[str, Release] = {}
        self.asking = False

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """See the protocol.

        Raises:
            ArithmeticError: the broadcast has a value that no task takes; nobody was asked for anything.
        """
        if not all(map(_taken, (broadcast or {}).values())):
            raise ArithmeticError(f"what the next round, {label}, would begin with is not finite")
        self.asking = True  # what fails from here on is not a formula of the method's
        release = self._federation.sum(label, broadcast, members=members)
        self.asking = False
        self.releases[label] = release
        return release

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        self._federation.checkpoint(arrays, finite(summary))


def _taken(array: NDArray[Any]) -> bool:
    """Whether sites take an array as a part of a broadcast; of a model in single precision every finite number is in range."""
    return in_range(array) if array.dtype == np.float64 else bool(np.isfinite(array).all())


def is_of_formulas(federation: Federation, error: Exception) -> bool:
    """Whether one of :data:`FORMULA_ERRORS` came from a formula, and not from asking the sites."""
    return not (isinstance(federation, Kept) and federation.asking) or isinstance(error, NoFurtherRoundError)


def told_result(name: str, federation: Federation, compute: Callable[[Federation], Result]) -> Result:
    """A method's result; where its formulas fail, the reason and the last sum of each task that was released."""
    kept = Kept(federation)
    try:
        result = compute(kept)
    except FORMULA_ERRORS as error:
        if not is_of_formulas(kept, error) or not kept.releases:
            raise
        reason = unforeseen(error, f"study {federation.study.name}").reason
        cohort = len(next(reversed(kept.releases.values())).cohort)
        hidden = int(federation.study.parameters.get("smallest_cell", 0)) > 0
        arrays = {
            f"{label} {block}".replace("/", "."): values
            for label, release in ({} if hidden else kept.releases).items()
            for block, values in release.values.items()
        }
        return Result(name, {"cohort": cohort, "not_estimable": reason}, arrays)
    exact = federation.study.privacy.noise == "none"
    return Result(result.method, finite(result.summary, exact=exact), result.arrays, result.application)


@dataclass(frozen=True)
class TaskPlan:
    """A task that a method will ask for; the study's grid and noise are added when it is compiled.

    Attributes:
        label: unique within the method.
        parameters: the task's parameters, as its own model.
        releases: the largest number of rounds of it.
        disclosure: joint or per site.
        keep: whether every site keeps its own noised vector.
        source: label of the kept task that it computes or aligns from.
        share: how much of the study's budget one release takes, against the shares of the other releases; its noise has
            1 / share of the variance. Of no meaning for a derived task.
        sampling_rate: public rate at which records take part in a release, or in each step of training.
        local_steps: steps of one release of a task that trains; taken with noise in a study that has it.
    """

    label: str
    task: str
    parameters: Frozen
    releases: int = 1
    disclosure: Disclosure = "joint"
    keep: bool = False
    source: str | None = None
    share: float = 1.0
    sampling_rate: float = 1.0
    local_steps: int = 0

    @property
    def steps(self) -> int:
        """Noised steps of all its releases together."""
        return self.releases * max(1, self.local_steps)

    @property
    def trains(self) -> bool:
        """Whether the task trains at the site and adds its noise itself."""
        return issubclass(TASKS[self.task], TrainingTask)

    @property
    def derived(self) -> bool:
        """Whether the task reads no record, and so costs nothing."""
        return issubclass(TASKS[self.task], DerivedTask)

    @property
    def own_noise(self) -> bool:
        """Whether a site adds noise to its own block alone, where there is noise to add."""
        return self.disclosure == "per-site" and not self.trains

    def declaration(
        self, *, grid: int, variance: int, resolution: int = 0, single_precision: bool = False, unrounded: bool = False,
        slack: float = 0.0,
    ) -> TaskDeclaration:  # fmt: skip
        """The plan as a study states it; parameters in their JSON form, floats in hexadecimal, as in the signed bytes.

        Only of a sampled task with noise is ``slack`` stated.
        """
        return TaskDeclaration.model_validate(
            {
                "label": self.label,
                "task": self.task,
                "parameters": self.parameters.model_dump(mode="json"),
                "disclosure": self.disclosure,
                "own_noise": self.own_noise and variance > 0,
                "releases": self.releases,
                "grid": grid,
                "variance": variance,
                "keep": self.keep,
                "source": self.source,
                "sampling_rate": self.sampling_rate,
                "local_steps": self.local_steps if variance else 0,
                "resolution": resolution,
                "single_precision": single_precision,
                "unrounded": unrounded,
                "slack": slack if variance and self.sampling_rate < 1 else 0.0,
            }
        )


@dataclass(frozen=True)
class Inputs:
    """What a method may know before it runs: public values only.

    Attributes:
        encoder: what makes its features, None for the schema's own.
        sites: how many participants the study names.
        private: whether its releases have noise.
        records: that each site is expected to have.
        epsilon: that the study asks for; None without noise, and where it asks for an error instead.
        unit: whose records the study protects together: one record, or a subject's.
    """

    schema: DatasetSchema
    encoder: Encoder | None = None
    sites: int = 2
    private: bool = True
    records: int = 1000
    epsilon: float | None = None
    unit: Unit = "record"

    def exact_rows(self, persons: Mapping[str, Any]) -> int:
        """Number of rows that make a unit's exact sum; 0 where sums are not exact.

        They are not with noise, nor where a person's rows are scaled down together, which values in limbs do not bear.

        Args:
            persons: how a person's records count, as parameters of the task.
        """
        if self.private or (self.unit != "record" and not any(persons.values())):
            return 0
        return max(1, int(persons.get("at_most", 0)))

    @property
    def width(self) -> int:
        """Number of features."""
        return self.schema.width if self.encoder is None else self.encoder.width

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in order."""
        return self.schema.classes


Missing = Literal["skip", "centre"]


class FeatureRules(Frozen):
    """How a method takes a record's features.

    Attributes:
        clip: L2 norm that they are scaled down to, after any alignment; by default one that hardly a record exceeds where
            models are trained on gradients, else as in the method fedcgs.
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds.
    """

    clip: Real | None = Field(default=None, gt=0, le=1e6)
    missing: Missing = "skip"


PROJECTED = 0.7
"""Clip norm of a projection's features under noise, whose root mean square norm is about 1 (docs/results.md)."""

GENEROUS = 8.0
"""Clip norm of a projection's features without noise: their root mean square norm is about 1, so hardly one is clipped."""


def default_clip(schema: DatasetSchema) -> float:
    """Root mean square L2 norm of a record whose numbers are uniform in [-1, 1] and whose categories are all present."""
    numbers = sum(isinstance(column, NumberColumn) for column in schema.columns)
    return math.sqrt(numbers / 3.0 + (len(schema.columns) - numbers))


def resolved_clip(clip: float | None, inputs: Inputs) -> float:
    """The clip norm, or in place of None the default of these inputs.

    The schema's own features: :func:`default_clip` under noise, sqrt(width) without, which no record exceeds. Features of a
    released projection, whose root mean square norm is about 1: :data:`PROJECTED` under noise, :data:`GENEROUS` without,
    since a clip that saves no noise only loses. Of random features: 1, which is their root mean square, and sqrt 2, which none
    exceeds.

    Raises:
        ConfigurationError: a program makes the features, whose scale nobody can know.
    """
    if clip is not None:
        return clip
    if inputs.encoder is None:
        return default_clip(inputs.schema) if inputs.private else math.sqrt(inputs.width)
    if isinstance(inputs.encoder, Program):
        raise ConfigurationError(
            "A study whose features a program makes must state parameters.clip.",
            "Take the norm that most feature vectors keep within, known from other data than the sites'.",
        )
    if isinstance(inputs.encoder, RandomFeatures):
        return 1.0 if inputs.private else math.sqrt(2.0)
    return PROJECTED if inputs.private else GENEROUS


def typical_norm(inputs: Inputs, clip: float) -> float:
    """Root mean square norm that a record's features are expected to have before clipping."""
    if inputs.encoder is None:
        return default_clip(inputs.schema)
    return clip if isinstance(inputs.encoder, Program) else 1.0


OF_OUTCOMES = (
    "Numbers, counts and times are what regression explains, and what gbdt, fedsgd and fedavg predict"
    " with [parameters.outcome]."
)
"""Which methods do what those of classes cannot."""


def need_label(inputs: Inputs, what: str, instead: str = "") -> None:
    """Insist on classes.

    Raises:
        ConfigurationError: the schema has no label.
    """
    if inputs.schema.label is None:
        advice = f"Add a [label] table with classes to the schema{instead}."
        other = "" if instead else f" It tells classes apart. {OF_OUTCOMES}"
        raise ConfigurationError(f"{what[:1].upper()}{what[1:]} needs a label.", advice + other)


def task_parameters(task: str, **values: Any) -> Frozen:
    """Parameters of a registered task, as its own model."""
    return TASKS[task].Parameters.model_validate(values)


P = TypeVar("P", bound=Frozen)


class Method(ABC, Generic[P]):
    """Base of all methods, each for parameters of its own type, which may have defaults; a compiled study states
    them all."""

    name: ClassVar[str]
    Parameters: ClassVar[type[Frozen]]
    rehearsals: ClassVar[int] = 24
    """How often a plan runs it on typical records; fewer where a run is dear, 0 where it trains in many steps, of which too
    much depends on the records."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Parameters" not in vars(cls) and (stated := stated_model(cls)) is not None:
            cls.Parameters = stated

    def resolve(self, parameters: P, inputs: Inputs) -> P:
        """Fill in the defaults that depend on the inputs; the result leaves nothing open."""
        return parameters

    @abstractmethod
    def declare(self, parameters: P, inputs: Inputs) -> tuple[TaskPlan, ...]:
        """The tasks for resolved parameters, from public values alone.

        Raises:
            ConfigurationError: the inputs do not suit the method.
        """

    def check(self, study: Study) -> None:
        """Look at a compiled study before anyone is asked to agree to it, in what its parts alone do not tell.

        Raises:
            ConfigurationError: the method could not run it.
        """
        return

    def check_federation(self, study: Study) -> None:
        """Look at a study that is to run on a federation: what sites would refuse although a simulation of it runs.

        Raises:
            ConfigurationError: they would.
        """
        return

    def run(self, federation: Federation) -> Result:
        """Run the study and return its result; the federation's study names this method.

        Once sites were charged no formula fails it: what cannot be computed is not estimable, and the rest is given.
        """
        return told_result(self.name, federation, self.compute)

    @abstractmethod
    def compute(self, federation: Federation) -> Result:
        """The result, for :meth:`run`."""
