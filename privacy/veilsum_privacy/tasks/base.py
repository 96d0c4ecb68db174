"""What a task is: declared once, for both sides.

A task names the vector that a site adds to the sum, in blocks, with a bound on what one record changes. A :class:`RowTask`
says what the row of a record is, and the kernel computes, clips and adds it: its code meets no record. A :class:`FactorTask`
says factors of it, where it is long and is made of products. A :class:`TrainingTask` asks for noised sums of factors and may
keep what it has trained for the next round; it meets no record in a study with noise. A :class:`DerivedTask` reads no record:
it computes from the noised vector that the site kept of an earlier task, so it costs nothing. The coordinator runs
:meth:`Task.layout` and reads the blocks of the released sum. The grid, noise, masks and encryption come after.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.fields import LARGEST, SMALLEST, Frozen, stated_model
from veilsum_privacy.computation.terms import TaskKind, TaskTerms, check_terms
from veilsum_privacy.mechanism.factors import Products, left_of
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.mechanism.persons import Persons
from veilsum_privacy.mechanism.records import Records as Records
from veilsum_privacy.mechanism.records import join_batches as join_batches
from veilsum_privacy.mechanism.requests import Request as Request
from veilsum_privacy.mechanism.requests import Trained as Trained
from veilsum_privacy.mechanism.requests import Training as Training
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, only, record_of, traced
from veilsum_privacy.mechanism.steps import StepNoise
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Disclosure, Study, TaskDeclaration
from veilsum_privacy.tasks.layout import Layout
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters, PartParameters, WidthParameters

if TYPE_CHECKING:
    from veilsum_privacy.training.models.base import Architecture

P = TypeVar("P", bound=Frozen)


class Task(ABC, Generic[P]):
    """Base of all tasks, each for parameters of its own type. A subclass is pure: no file, clock or network.

    Subclasses set ``name`` and are registered in :mod:`veilsum_privacy.tasks`.

    Attributes:
        dimension: how many features the task sees, or its source has; 0 for a task that takes none.
        architecture: of the model that is trained, or predicts; None of a task without one.
    """

    architecture: Architecture | None = None
    name: ClassVar[str]
    kind: ClassVar[TaskKind]
    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint", "per-site")
    Parameters: ClassVar[type[Frozen]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "Parameters" not in vars(cls) and (stated := stated_model(cls)) is not None:
            cls.Parameters = stated

    def __init__(self, parameters: P, schema: DatasetSchema) -> None:
        """Build the task.

        Raises:
            Misuse: parameters and schema do not fit together (no label for a task of classes).
        """
        self.parameters, self.schema = parameters, schema
        self.dimension = parameters.dimension(schema) if isinstance(parameters, WidthParameters) else 0

    @abstractmethod
    def layout(self) -> Layout:
        """The vector's blocks; depends on the parameters and the schema only."""

    @abstractmethod
    def clip(self) -> float:
        """The bound that each kind of task states, proven in the subclass's docstring."""

    @property
    def features(self) -> FeatureParameters | None:
        """The parameters, of a task that computes on features."""
        return self.parameters if isinstance(self.parameters, FeatureParameters) else None

    @property
    def width(self) -> int:
        """Features of a record as the task sees it."""
        made = None if self.features is None else self.features.width
        return self.schema.width if made is None else made

    @property
    def alignment(self) -> Alignment | None:
        """How the features are aligned that the task computes on."""
        return None if self.features is None else self.features.alignment

    @property
    def terms(self) -> TaskTerms:
        """What the kernel has to know of it."""
        features = self.features
        part = isinstance(features, PartParameters) and features.part != "all"
        mapped = features is not None and (features.width is not None or features.alignment is not None or part)
        return TaskTerms(
            self.kind,
            self.layout().size,
            self.clip(),
            mapped=mapped,
            weighted=self.weighted(),
            steers_sites=self.steers_sites(),
            site_arrays=self.site_arrays(),
            single_arrays=tuple(sorted(self.single_arrays())),
            disclosures=self.disclosures,
            weights="" if self.architecture is None else self.architecture.weights,
        )

    # -- the declaration ---------------------------------------------------------------------------------------------------

    def check(self, declared: TaskDeclaration, study: Study, source: Task[Any] | None) -> None:
        """Insist that a study's declaration suits the task and its kind.

        Features that an encoder or an alignment made come only to tasks that state their width, and are aligned only as
        declared.

        Args:
            declared: what the task was built from.
            source: the task that ``declared`` names as its source.

        Raises:
            HostileInput: the declaration contradicts the task.
        """
        what, noisy = f"Task {declared.label!r}", study.privacy.noise != "none"
        self._check_magnitudes(what, declared)
        check_terms(what, self.terms, declared, study)
        self._check_own(what, declared, noisy=noisy)
        if declared.single_precision and not self.single_arrays():
            raise HostileInput(f"{what} broadcasts no model that could be in single precision.")
        if noisy and (reason := self.only_without_noise()) is not None:
            raise HostileInput(f"{what} {reason}; that is for studies without noise only.")
        if self.features is not None:
            self._check_features(what, self.features, study)
        if (source is not None) != bool(self.computes_from()):
            raise HostileInput(f"{what} must name a source if, and only if, sites compute their own alignment.")
        if source is not None and not (
            source.name in self.computes_from() and source.dimension == self.dimension and source.serves(self)
        ):
            raise HostileInput(f"{what} cannot compute from what {declared.source!r} keeps.")

    def _check_magnitudes(self, what: str, declared: TaskDeclaration) -> None:
        """Insist that no number of the task is so small, or so large, that arithmetic could fail on some records only."""
        try:
            unit, clip = self.unit(declared), self.clip()
            numbers = [unit, *self.bounds()]
            for block in self.layout().blocks:
                numbers += [block.weight, clip / block.weight, unit / block.weight]
        except ArithmeticError as error:
            raise HostileInput(f"{what} has parameters out of range: {error}.") from error
        if odd := [number for number in numbers if not SMALLEST <= number <= LARGEST]:
            raise HostileInput(
                f"{what} leads to a bound, a weight or a unit of {odd[0]:g}.",
                f"All of them must lie within {SMALLEST:g} and {LARGEST:g}: change its clip norm or its weights.",
            )

    def _check_own(self, what: str, declared: TaskDeclaration, *, noisy: bool) -> None:
        """What the task asks of its declaration beside what its kind does (:func:`.check_terms`)."""
        if (norm := self.integer_norm()) and declared.grid % norm:
            raise HostileInput(f"{what} counts in integers: its grid must be a multiple of {norm}.")

    def _check_features(self, what: str, features: FeatureParameters, study: Study) -> None:
        width, alignment = study.width, features.alignment
        if features.width is None and (study.encoder is not None or (alignment is not None and alignment.moments is None)):
            raise HostileInput(f"{what} must state the width of the features that an encoder or an alignment makes.")
        if features.width not in (None, width):
            raise HostileInput(f"{what} has a width of {features.width}; its features have {width} dimensions.")

    def computes_from(self) -> tuple[str, ...]:
        """Names of the tasks that it can have as its source: one of them if it is not empty."""
        return () if self.alignment is None else self.alignment.sources

    def serves(self, reader: Task[Any]) -> bool:
        """Whether what a site keeps of this task is what a reader of the same dimension computes from."""
        return False

    # -- numbers that follow -----------------------------------------------------------------------------------------------

    def unit(self, declared: TaskDeclaration) -> float:
        """What one grid unit is worth in the weighted vector.

        A record's vector is truncated towards zero, so its norm bound C becomes the whole grid.

        Raises:
            HostileInput: the grid is too coarse for a vector of this length.
        """
        return self.clip() / declared.grid

    def largest(self, declared: TaskDeclaration) -> int:
        """Largest absolute value of the vector at one site before noise, in grid units."""
        return declared.grid * self.schema.max_records

    def bounds(self) -> tuple[float, ...]:
        """Every bound that the task states."""
        return (self.clip(),)

    def integer_norm(self) -> int:
        """The norm bound of a task whose vectors are integers: its grid is a multiple of it; 0 of all others."""
        return 0

    # -- what the task is like ---------------------------------------------------------------------------------------------

    def only_without_noise(self) -> str | None:
        """Why these parameters are for studies without noise only, as the end of a sentence; None where they are not."""
        return None

    def weighted(self) -> bool:
        """Whether a site's vector is multiplied by its public weight of the round, as
        :mod:`veilsum_privacy.computation.weights` has it; only of tasks that give one vector for all of a site's records."""
        return False

    def site_arrays(self) -> tuple[str, ...]:
        """Names of broadcast arrays that have one row a study participant; the task is given its own site's row."""
        return ()

    def single_arrays(self) -> frozenset[str]:
        """Names of broadcast arrays that a study may declare to be in single precision: a model's, and what is as long.

        None whose exact value matters: seeds, weights that a mean is divided by, arrays that a digest names.
        """
        return frozenset()

    def steers_sites(self) -> bool:
        """Whether what is broadcast for one site acts on its records: a joint sum can then be made to show one site alone.

        A subclass says no only where its rows cannot tell one site's records from another's.
        """
        return bool(self.site_arrays()) or (self.alignment is not None and self.alignment.kind == "broadcast")

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        """A legal broadcast of what the task itself reads, made without any record, for so many participants."""
        return {}


class RowTask(Task[P]):
    """One row a record, which the kernel computes: ``clip()`` is what its norm is scaled down to where it is longer.

    The task is traced on symbols (:mod:`veilsum_privacy.mechanism.rows`) and meets no record.
    """

    kind: ClassVar[TaskKind] = "rows"

    @property
    def terms(self) -> TaskTerms:
        return replace(super().terms, persons=self.persons)

    @abstractmethod
    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        """The weighted row (size,) of a record, real or whole; integers are added exactly, others truncated to the grid first.

        A record that cannot contribute has a row of zeros, as :func:`veilsum_privacy.mechanism.rows.symbols.only` makes it.

        Raises:
            HostileInput: the broadcast is not what the task needs.
        """

    @property
    def persons(self) -> Persons | None:
        """How a subject's records count; None where every record does."""
        return None

    def maps(self, broadcast: Mapping[str, Floats]) -> Mapping[str, OpaqueMap]:
        """The opaque maps that the row takes, by name: of networks, which are not graphs; none of most tasks."""
        return {}

    def traced(
        self, broadcast: Mapping[str, Floats], mapped: Callable[[Record], tuple[Record, Symbol]] | None = None, width: int = 0
    ) -> RowGraph:
        """The graph of a row, with a round's broadcast as public arrays.

        Args:
            mapped: makes of a record of so many features the one that the task sees, and says whether its row counts; None
                where records come as the task sees them.
            width: of the records that ``mapped`` takes.

        Raises:
            HostileInput: the broadcast is not what the task needs, or the task gives no row of its layout.
        """
        labelled = self.schema.label is not None
        if mapped is None:
            graph = traced(self.row(record_of(self.width, labelled=labelled), broadcast))
        else:
            record, taken = mapped(record_of(width, labelled=labelled))
            graph = traced(only(self.row(record, broadcast), taken))
        if graph.root.spec.size != self.row_size():
            raise HostileInput(f"The task {self.name} gives {graph.root.spec.size} values; it declares {self.row_size()}.")
        return graph

    def row_size(self) -> int:
        """Values of a row."""
        return self.layout().size


class FactorTask(RowTask[P]):
    """Factors of a record's vector, which the kernel multiplies, clips and adds (:mod:`veilsum_privacy.mechanism.factors`).

    ``clip()`` is what the norm of a record's vector becomes a grid for; where it is longer it is pulled in. :meth:`row` gives
    the factors, whose products are the layout's values.
    """

    kind: ClassVar[TaskKind] = "factors"

    @property
    def terms(self) -> TaskTerms:
        return replace(super().terms, products=self.products())

    @abstractmethod
    def products(self) -> Products:
        """What is made of a record's factors."""

    def row_size(self) -> int:
        products = self.products()
        if products.size != self.layout().size:
            raise HostileInput(f"The task {self.name} makes {products.size} values; it declares {self.layout().size}.")
        return products.given

    def unit(self, declared: TaskDeclaration) -> float:
        """A site's sum is rounded once: C is what that leaves of the grid (:func:`.left_of`)."""
        places, largest = (CENTRE_BITS, self.largest(declared)) if declared.unrounded else (0, 0)
        with told_as(HostileInput, Misuse, what=f"Task {declared.label!r}"):
            return self.clip() / left_of(declared.grid, self.layout().size, places, largest)


class DerivedTask(Task[P]):
    """A function of the site's kept noised statistic; ``clip()`` bounds the absolute value of each weighted value.

    Subclasses set ``sources``, the names of the tasks that it computes from. Only such a task may go without noise in a study
    that has noise.
    """

    kind: ClassVar[TaskKind] = "derived"
    sources: ClassVar[tuple[str, ...]]

    def computes_from(self) -> tuple[str, ...]:
        return self.sources

    def largest(self, declared: TaskDeclaration) -> int:
        return declared.grid

    @abstractmethod
    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        """The site's weighted vector (size,).

        Args:
            kept: blocks of the source in their own units, with the site's own noise in them.
            noise_std: standard deviation of that noise by block; 0 in a study without noise.
            broadcast: arrays that everyone received.
        """


class TrainingTask(Task[P]):
    """Trains on the site's records for the steps of one round; ``clip()`` bounds the absolute value of each weighted value.

    With noise it meets no record: vector and state are made of noised sums, broadcasts and earlier state, as there is nothing
    else. Nothing is added to them.
    """

    kind: ClassVar[TaskKind] = "training"

    @property
    def terms(self) -> TaskTerms:
        return replace(super().terms, step_clip=self.step_clip())

    def unit(self, declared: TaskDeclaration) -> float:
        return self.clip() / declared.resolution  # rounded, with its noise in it already

    def largest(self, declared: TaskDeclaration) -> int:
        return declared.resolution

    def bounds(self) -> tuple[float, ...]:
        return self.clip(), self.step_clip()

    def _check_own(self, what: str, declared: TaskDeclaration, *, noisy: bool) -> None:
        if noisy and declared.local_steps != self.noised_sums():
            raise HostileInput(f"{what} takes {self.noised_sums()} noised steps a release; the study declares another number.")
        if noisy and declared.grid < 2 * math.sqrt(self.step_size()):
            raise HostileInput(f"{what} has too coarse a grid for steps of {self.step_size()} values.")

    @abstractmethod
    def step_clip(self) -> float:
        """C, which becomes a grid in the sum of a step; a record's vector that is longer is pulled in."""

    @abstractmethod
    def noised_sums(self) -> int:
        """How many noised sums a release takes: what a study with noise declares as the task's steps."""

    @abstractmethod
    def step_size(self) -> int:
        """Most values of a step's sum."""

    @abstractmethod
    def train(self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], course: StepNoise) -> Training:
        """One round of training with noise.

        Args:
            broadcast: arrays that everyone received.
            state: of the site's last paid round of this task; empty at first, and after a site was restored.
            course: of its noised sums, of which it takes ``course.number``.
        """

    @abstractmethod
    def maps_at(
        self, broadcast: Mapping[str, Floats], state: Mapping[str, Floats]
    ) -> Callable[[Floats], Mapping[str, OpaqueMap]]:
        """The opaque maps that :meth:`train` asks for, by the values that it asks for them at (:class:`.MapAt`): so that they
        can be made where records are, and training where they are not.

        Args:
            broadcast, state: as of :meth:`train`.
        """

    @abstractmethod
    def train_plainly(
        self,
        records: Records,
        broadcast: Mapping[str, Floats],
        state: Mapping[str, Floats],
        note: Callable[[Exception], object],
    ) -> Trained:
        """One round of training in a study without noise, on all of the site's records, which come without subjects.

        ``note`` is told what is raised on a record, which is left out then.
        """
