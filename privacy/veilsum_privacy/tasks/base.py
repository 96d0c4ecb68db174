"""What a task is: declared once, for both sides.

A task names the vector that a site adds to the sum, in blocks, with a proven bound on what one record changes. There are
four kinds. A :class:`RecordTask` gives one vector a record; the framework clips and adds them. A :class:`SiteTask` gives one
vector for all of a site's records. A :class:`DerivedTask` reads no record: it computes from the noised vector that the site
kept of an earlier task, so it costs nothing. A :class:`TrainingTask` takes noised steps at the site and may keep what it has
trained for the next round. The participant computes vectors; the coordinator runs :meth:`Task.layout` and
reads the blocks of the released sum. Clipping, the grid, noise, masks and encryption come after, and no task can skip them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from veilsum_node.fields import Frozen, Real
from veilsum_privacy.mechanism.steps import Steps
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Disclosure

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Records:
    """A site's records after its schema, ready for a task.

    Attributes:
        features: (n, width) float64 in [-1, 1], scaled by the public bounds; 0 where ``present`` is False.
        present: (n, width) bool; False where the value is missing or invalid.
        labels: (n,) int64 class indices, -1 where missing or invalid; None when the schema has no label.
        subjects: (n,) int64, whose record each one is, never descending: a subject's records stand together. None where the
            site's dataset does not tell. Local; no task reads it.
    """

    features: Floats
    present: NDArray[np.bool_]
    labels: NDArray[np.int64] | None
    subjects: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return int(self.features.shape[0])


@dataclass(frozen=True)
class Block:
    """A named part of a task's vector.

    Attributes:
        name: unique in the layout.
        shape: the block's shape once read; its values lie flat, row-major, in the vector.
        weight: every value is multiplied by it before clipping and divided by it after release; a larger weight buys the
            block less noise at the others' cost.
    """

    name: str
    shape: tuple[int, ...]
    weight: float = 1.0

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The blocks of a vector, in order."""

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Number of values of the whole vector."""
        return sum(block.size for block in self.blocks)

    def split(self, vector: Floats) -> dict[str, Floats]:
        """Return the blocks of a released sum in their own units (weights divided out), by name."""
        if vector.shape != (self.size,):
            raise ValueError(f"expected a vector of {self.size} values, got shape {vector.shape}")
        blocks: dict[str, Floats] = {}
        offset = 0
        for block in self.blocks:
            blocks[block.name] = vector[offset : offset + block.size].reshape(block.shape) / block.weight
            offset += block.size
        return blocks

    def noise_std(self, std: float) -> dict[str, float]:
        """Standard deviation of each block's noise in its own units, for noise of ``std`` on the weighted vector."""
        return {block.name: std / block.weight for block in self.blocks}


class MomentUse(Frozen):
    """How features are aligned by their moments, one by one (:mod:`veilsum_aggregation.moment_alignment`).

    Attributes:
        order: 2, mean and variance, or 4, skewness and kurtosis as well where that can be.
        adjust: which of mean and variance are changed; ``both`` with order 4.
        channels: features are so many channels, each with equally many features side by side that share their moments; None
            for moments of each feature.
        bound: moments are of features divided by it; 1 for the schema's own.
    """

    order: Literal[2, 4]
    adjust: Literal["mean", "variance", "both"]
    channels: int | None = Field(default=None, ge=1, le=4096)
    bound: Real = Field(default=1.0, gt=0, le=1e6)

    @model_validator(mode="after")
    def _four_adjust_both(self) -> Self:
        if self.order == 4 and self.adjust != "both":
            raise ValueError("four moments adjust mean and variance both")
        return self


class Alignment(Frozen):
    """How a site's features are aligned before a task clips them.

    Attributes:
        kind: ``broadcast``: the site's own affine map stands in the broadcast. Others: the site makes its
            map from its kept noised statistic and the broadcast reference (:mod:`veilsum_aggregation.alignment`).
        tau: strength in [0, 1] of a map that the site makes; 0 leaves the features as they are.
        moments: of the kind ``moments``, which maps each feature by itself; None for all other kinds.
    """

    kind: Literal["broadcast", "barycenter", "two-way", "slopes", "moments"]
    tau: Real = Field(ge=0, le=1)
    moments: MomentUse | None = None

    @model_validator(mode="after")
    def _moments_of_their_kind(self) -> Self:
        if (self.kind == "moments") != (self.moments is not None):
            raise ValueError("moments are stated exactly if features are aligned by them")
        return self


class FeatureParameters(Frozen):
    """Parameters of every task that computes on features; all public and independent of the data.

    Attributes:
        width: None for the schema's own features, in [-1, 1]^d. A number for features of so many dimensions that an encoder
            or an alignment made: these are bounded by ``clip`` alone.
        alignment: None for none; needs a ``width``, unless it is by moments, which leaves features in their box.
        clip: L2 norm C that a record's features are scaled down to if they exceed it.
        missing: ``skip`` leaves a record with an absent feature out; ``centre`` takes an absent feature as 0, the middle of
            its bounds.
    """

    width: int | None = Field(default=None, ge=1, le=4096)
    alignment: Alignment | None = None
    clip: Real = Field(gt=0, le=1e6)
    missing: Literal["skip", "centre"]

    def dimension(self, schema: DatasetSchema) -> int:
        """Number of features that the task sees."""
        return schema.width if self.width is None else self.width

    def largest_square(self, schema: DatasetSchema) -> float:
        """R^2, the largest squared norm of a record's features after clipping: min(C^2, d) in the box, else C^2."""
        return min(self.clip**2, float(schema.width)) if self.width is None else self.clip**2


Part = Literal["all", "statistics", "training"]


class PartParameters(FeatureParameters):
    """Parameters of a task that may work on a part of the records only; all public and independent of the data.

    Attributes:
        part: ``statistics`` are the records that :func:`veilsum_privacy.tasks.parts.in_statistics_part` picks, ``training``
            the others, ``all`` both.
        part_share: share of the records, in expectation, that are for statistics; of no meaning with ``all``.
    """

    part: Part = "all"
    part_share: Real = Field(default=0.5, gt=0, lt=1)


class Piece(NamedTuple):
    """Some rows (b, s) of a task's vectors, and the s places of their values in the vector."""

    places: NDArray[np.intp]
    rows: Floats


class Task(ABC):
    """Base of all tasks. A subclass is pure: no file, clock or network.

    Subclasses set ``name`` and ``Parameters`` and are registered in :mod:`veilsum_privacy.tasks`.
    """

    name: ClassVar[str]
    disclosures: ClassVar[tuple[Disclosure, ...]] = ("joint", "per-site")
    Parameters: ClassVar[type[Frozen]]

    @abstractmethod
    def __init__(self, parameters: Frozen, schema: DatasetSchema) -> None:
        """Build the task.

        Raises:
            Misuse: parameters and schema do not fit together (no label for a task of classes).
        """

    @abstractmethod
    def layout(self) -> Layout:
        """The vector's blocks; depends on the parameters and the schema only."""

    @abstractmethod
    def clip(self) -> float:
        """The bound that each kind of task states, proven in the subclass's docstring."""

    def only_without_noise(self) -> str | None:
        """Why these parameters are for studies without noise only, as the end of a sentence; None where they are not."""
        return None

    def weighted(self) -> bool:
        """Whether a site's vector is multiplied by its public weight of the round (:mod:`veilsum_privacy.mechanism.weights`);
        only of tasks that give one vector for all of a site's records."""
        return False

    def site_arrays(self) -> tuple[str, ...]:
        """Names of broadcast arrays that have one row a study participant; the task is given its own site's row."""
        return ()

    def steers_sites(self) -> bool:
        """Whether what is broadcast for one site acts on its records: a joint sum can then be made to show one site alone.

        A subclass says no only where its rows cannot tell one site's records from another's.
        """
        parameters = getattr(self, "parameters", None)
        alignment = parameters.alignment if isinstance(parameters, FeatureParameters) else None
        return bool(self.site_arrays()) or (alignment is not None and alignment.kind == "broadcast")

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        """A legal broadcast of what the task itself reads, made without any record, for so many participants."""
        return {}


class RecordTask(Task):
    """One vector a record; ``clip()`` bounds the L2 norm of one record's weighted vector."""

    @abstractmethod
    def vectors(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Floats]:
        """Yield batches (b, size) of weighted per-record vectors, in the order of the records.

        A record that cannot contribute yields a row of zeros. A row depends on its own record alone, to the last bit: what
        sums over features keeps to :func:`veilsum_privacy.mechanism.clipping.row_norms` or is exact in any order.
        """

    def pieces(self, records: Records, broadcast: Mapping[str, Floats]) -> Iterator[Piece] | None:
        """The same rows in any order, each batch without columns in which it has zeros only; None if there is nothing to gain.

        Taken in place of :meth:`vectors` where every record is a unit of its own.
        """
        return None


class SiteTask(Task):
    """One vector for all of a site's records; ``clip()`` bounds, in L2, what one unit of privacy changes in it.

    The unit is a record; where ``records.subjects`` is given, a subject with all its records.
    """

    @abstractmethod
    def vector(self, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
        """The site's weighted vector (size,). It is a function of the set of records: their order changes nothing that
        ``clip()`` does not cover."""


class DerivedTask(Task):
    """A function of the site's kept noised statistic; ``clip()`` bounds the absolute value of each weighted value.

    Subclasses set ``sources``, the names of the tasks that it computes from, and ``dimension``, of the source's features.
    """

    sources: ClassVar[tuple[str, ...]]
    dimension: int

    @abstractmethod
    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        """The site's weighted vector (size,).

        Args:
            kept: blocks of the source in their own units, with the site's own noise in them.
            noise_std: standard deviation of that noise by block; 0 in a study without noise.
            broadcast: arrays that everyone received.
        """


class Trained(NamedTuple):
    """What training gives.

    Attributes:
        vector: (size,) weighted, for the sum.
        state: arrays that stay at the site and come back in its next round of the task.
    """

    vector: Floats
    state: Mapping[str, Floats] = MappingProxyType({})


class TrainingTask(Task):
    """Trains on the site's records for the steps of one round; ``clip()`` bounds the absolute value of each weighted value.

    With noise, vector and state must be made of noised sums, broadcasts and earlier state alone: nothing is added to them.
    """

    @abstractmethod
    def step_clip(self) -> float:
        """C, which bounds in L2 what one unit of privacy changes in the sum of a step; proven in the subclass's docstring."""

    @abstractmethod
    def noised_sums(self) -> int:
        """How many noised sums a release takes: what a study with noise declares as the task's steps."""

    @abstractmethod
    def step_size(self) -> int:
        """Number of values of a step's sum."""

    @abstractmethod
    def train(self, records: Records, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], steps: Steps) -> Trained:
        """One round of training.

        Args:
            records: all of the site's; ``records.subjects`` is given where the unit of privacy is the subject.
            broadcast: arrays that everyone received.
            state: of the site's last paid round of this task; empty at first, and after a site was restored.
            steps: samples and noise; not to be noised more than ``steps.number`` times.
        """


def batches(records: int, size: int) -> Iterator[slice]:
    """Slices over ``records`` rows such that a batch of vectors of ``size`` values takes about 512 KiB, to stay in a cache."""
    step = max(1, min(4096, 2**16 // max(size, 1)))
    for start in range(0, records, step):
        yield slice(start, min(start + step, records))


def balanced_weights(norms: Sequence[float], sizes: Sequence[int], importances: Sequence[float]) -> tuple[float, ...]:
    """Block weights that minimise the summed, importance-weighted noise variance of a vector at a given cost.

    Block b with weight w_b costs w_b^2 s_b^2 and has noise variance d_b / w_b^2 in its own units, for norm s_b, size d_b and
    importance a_b. The sum of a_b d_b / w_b^2 under a fixed total cost is smallest at w_b^2 = sqrt(a_b d_b) / s_b, that is
    at a share of the budget in proportion to s_b sqrt(a_b d_b). Everything here is public.
    """
    triples = zip(norms, sizes, importances, strict=True)
    return tuple(math.sqrt(math.sqrt(importance * size) / norm) for norm, size, importance in triples)
