"""What a result says of its own application: parsed from its manifest and checked against its arrays.

Every step that a result names must be known here: one that is not would silently be left out, and the predictions be others
than the study's. So an unknown key is an error. This module computes nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import MOMENT_REFERENCE
from veilsum_node.config import explain
from veilsum_node.errors import HostileInput, Misuse, raising
from veilsum_node.fields import Frozen, Name, Real
from veilsum_participant.applying.heads import Array, Head, LinearArrays, MlpHead, NetworkHead, PersonalHead
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program, Projection, RandomFeatures
from veilsum_privacy.study.projections import check_projection
from veilsum_privacy.study.schema import Column, ColumnName, DatasetSchema, LabelColumn
from veilsum_privacy.tasks.parameters import MomentUse
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.losses import LARGEST_EXPONENT

_AGAIN = "Fetch the result again; a newer version of veilsum may have made it."


class ProjectionArrays(Frozen):
    """An affine encoder in the bundle: x -> matrix x + offset, ``matrix`` (m, inputs), ``offset`` (m,), with its digest."""

    kind: Literal["projection"]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    matrix: Array
    offset: Array


class MadeBy(Frozen):
    """What maps were made by: kind of reference, share of the way, reference; no array of it where nothing is aligned."""

    kind: Literal["barycenter", "two-way", "slopes", "moments"]
    tau: Real = Field(ge=0, le=1)
    moments: MomentUse | None = None
    reference: dict[Array, Array]


class Maps(Frozen):
    """One affine map a site: ``matrix`` (sites, m, m) and ``offset`` (sites, m), in the order of ``sites``.

    With ``moments`` each column is mapped by itself: ``matrix`` (sites, m) are scales of the columns that have moments.
    ``made_by`` gives a site that took no part its map; results of earlier versions do not have it.
    """

    kind: Literal["maps"]
    sites: tuple[Name, ...] = Field(min_length=1)
    matrix: Array
    offset: Array
    moments: MomentUse | None = None
    made_by: MadeBy | None = None


class OwnAlignment(MadeBy):
    """A map that each site makes of what it kept of the task ``source``, and of the bundle's reference.

    Attributes:
        reference: by the name that :func:`veilsum_aggregation.alignment.local_map`, or of the kind ``moments``
            :func:`veilsum_aggregation.moment_alignment.local_map`, knows, the name of the array.
        moments: of the kind ``moments``.
        noise_std: standard deviation of the noise in the kept statistic, by block, in the block's own units.
        own: of a personal model of a site that took no part, what its records give in place of a kept statistic, without
            noise: of the kind ``moments`` power sums by block, else ``matrix`` (m, m) and ``offset`` (m,) of the map.
    """

    source: Name | Literal[""]
    noise_std: dict[str, Annotated[Real, Field(ge=0)]] | None = None
    own: dict[str, Array] = Field(default_factory=dict)


class FileForm(Frozen):
    """How the study's files were read: the schema's keys besides its columns."""

    label: LabelColumn | None = None
    header: bool = True
    order: tuple[ColumnName, ...] = ()
    missing: tuple[str, ...] = DatasetSchema.model_fields["missing"].default


class OutcomeForm(Frozen):
    """What a head's scores predict that tells no classes apart (:class:`veilsum_privacy.tasks.outcomes.Outcome`)."""

    column: ColumnName
    loss: Literal["squared", "huber", "poisson", "hazard"]
    low: Real
    high: Real
    unit: str = ""
    event: ColumnName | None = None
    censored: tuple[str, ...] = ()
    cuts: tuple[Real, ...] = Field(default=(), max_length=64)
    most: Real | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        edges = (0.0, *self.cuts, self.high) if self.loss == "hazard" else (self.low, self.high)
        if any(low >= high for low, high in pairwise(edges)):
            raise ValueError("its bounds and cuts must rise")
        if self.most is not None and self.loss != "poisson":
            raise ValueError("only counts have a largest mean, `most`")
        return self

    def observed(self, outcomes: Floats) -> tuple[Floats, NDArray[np.bool_] | None]:
        """Outcomes (n, t) of the loss as numbers, counts or times (n,) in the unit; of times, whether in the event."""
        half = self.high / 2.0 - self.low / 2.0
        if self.loss == "hazard":
            periods = outcomes.shape[1] // 2
            return outcomes[:, :periods].sum(axis=1) * self.high, np.asarray(outcomes[:, periods:].sum(axis=1) > 0.0)
        return outcomes[:, 0] * half + (0.0 if self.loss == "poisson" else self.low + half), None

    def estimates(self, scores: Floats) -> Floats:
        """Scores (n, k) to numbers or mean counts (n,) in the column's unit, or probabilities of the event by the horizon."""
        half = self.high / 2.0 - self.low / 2.0
        if self.loss in ("squared", "huber"):
            return self.low + (np.clip(scores[:, 0], -1.0, 1.0) + 1.0) * half
        rates = np.exp(np.minimum(scores, LARGEST_EXPONENT))
        if self.loss == "poisson":
            means: Floats = rates[:, 0] * half
            return means if self.most is None else np.minimum(means, self.most)
        lengths = np.diff([0.0, *self.cuts, self.high]) / self.high
        risks: Floats = -np.expm1(-(rates @ lengths))
        return risks


class _Application(BaseModel):
    """The manifest's ``application``; ``scaling``, ``missing`` and ``scores`` are words for people."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    features: tuple[Column, ...] = Field(min_length=1, max_length=4096)
    file: FileForm = FileForm()
    scaling: str = ""
    missing: str = ""
    missing_rule: Literal["skip", "centre"] = "centre"
    encoder: Annotated[ProjectionArrays | Program | RandomFeatures, Field(discriminator="kind")] | None = None
    alignment: Annotated[Maps | OwnAlignment, Field(discriminator="kind")] | None = None
    head: Annotated[Head, Field(discriminator="kind")] | None = None
    classes: tuple[Name, ...] = ()
    outcome: OutcomeForm | None = None
    scores: str = ""


@dataclass(frozen=True)
class Recipe:
    """The steps from columns to scores, in this order.

    Attributes:
        missing_rule: ``skip``: a record with an absent value gets no scores; ``centre``: absent values are taken as 0.
        encoder: None where the scaled columns are the features.
        alignment, head: None for none.
        classes: names of the head's classes.
        outcome: what the head's scores predict in place of classes; None for classes.
        width: features that the alignment and the head take.
    """

    schema: DatasetSchema
    missing_rule: Literal["skip", "centre"]
    encoder: ProjectionArrays | Program | RandomFeatures | None
    alignment: Maps | OwnAlignment | None
    head: Head | None
    classes: tuple[Name, ...]
    width: int
    outcome: OutcomeForm | None = None

    @property
    def scores(self) -> int:
        """How many scores the head gives."""
        return len(self.classes) if self.outcome is None else len(self.outcome.cuts) + 1

    def aligned_columns(self, use: MomentUse) -> NDArray[np.intp]:
        """Which features are aligned by their moments.

        Raises:
            HostileInput: there are no such moments of these features.
        """
        try:
            return columns_of_moments(self.schema, None if self.encoder is None else self.width, use.channels)
        except Misuse as error:
            raise HostileInput(f"The result's alignment does not fit its features: {error.message}", _AGAIN) from error


def parse_recipe(result: Result) -> tuple[Recipe, dict[str, Floats]]:
    """The steps of a result, and the arrays that they name in float64.

    Raises:
        Misuse: the result says nothing of an application.
        HostileInput: what it says is malformed or contradicts its arrays.
    """
    if not isinstance(result.application, Mapping):
        raise HostileInput("The result's application is malformed.", _AGAIN)
    if not result.application:
        raise Misuse(f"A result of {result.method} is only read.", "It holds nothing that applies to records.")
    given = dict(result.application)
    if "head" not in given and {"weights", "bias"} <= set(result.arrays):  # results of the first version
        given["head"] = {"kind": "linear", "weights": "weights", "bias": "bias"}
    try:
        parsed = _Application.model_validate(given)
        schema = DatasetSchema(columns=parsed.features, max_records=2**24, **dict(parsed.file))
    except ValidationError as error:
        raise HostileInput(
            f"The result's application is malformed: {' '.join(explain(error, _Application))}", _AGAIN
        ) from error
    arrays = _Arrays(result.arrays)
    width = _width(parsed.encoder, schema, arrays)
    recipe = Recipe(
        schema, parsed.missing_rule, parsed.encoder, parsed.alignment, parsed.head, parsed.classes, width, parsed.outcome
    )
    _check_alignment(recipe, arrays)
    _check_head(recipe, arrays)
    return recipe, arrays.taken


class _Arrays:
    """A bundle's arrays, taken by name and shape."""

    def __init__(self, given: Mapping[str, NDArray[Any]]) -> None:
        self._given = given
        self.taken: dict[str, Floats] = {}

    def take(self, name: str, *shape: int | None) -> Floats:
        """An array; None leaves the length of an axis open."""
        array = self._given.get(name)
        if array is None:
            raise HostileInput(f"The result names an array {name!r} that it does not hold.", _AGAIN)
        fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
        if array.dtype.kind != "f" or not fits:
            wanted = "x".join("any" if length is None else str(length) for length in shape)
            raise HostileInput(
                f"The result's array {name!r} is {array.dtype} of shape {array.shape}, not real {wanted}.", _AGAIN
            )
        if not np.isfinite(array).all():
            raise HostileInput(f"The result's array {name!r} holds a value that is not finite.", _AGAIN)
        self.taken[name] = array.astype(np.float64)
        return self.taken[name]


def _width(encoder: ProjectionArrays | Program | RandomFeatures | None, schema: DatasetSchema, arrays: _Arrays) -> int:
    """Number of features after the encoder."""
    if encoder is None:
        return schema.width
    if isinstance(encoder, Program | RandomFeatures):
        if encoder.size != schema.width:
            raise HostileInput(f"The result's encoder takes {encoder.size} values; its columns give {schema.width}.", _AGAIN)
        return encoder.width
    matrix = arrays.take(encoder.matrix, None, schema.width)
    offset = arrays.take(encoder.offset, len(matrix))
    with raising(HostileInput("The result's projection is empty or too large.", _AGAIN), on=ValidationError):
        declared = Projection(sha256=encoder.sha256, inputs=schema.width, width=len(matrix))
    check_projection(declared, matrix, offset)
    return len(matrix)


def _check_alignment(recipe: Recipe, arrays: _Arrays) -> None:
    alignment, width = recipe.alignment, recipe.width
    if isinstance(alignment, Maps):
        if len(set(alignment.sites)) != len(alignment.sites):
            raise HostileInput("The result's alignment names a site twice.", _AGAIN)
        if alignment.moments is None:
            arrays.take(alignment.matrix, len(alignment.sites), width, width)
            arrays.take(alignment.offset, len(alignment.sites), width)
        else:
            m = _columns(recipe, alignment.moments)
            arrays.take(alignment.matrix, len(alignment.sites), m)
            arrays.take(alignment.offset, len(alignment.sites), m)
        if alignment.made_by is not None:
            _check_reference(alignment.made_by, recipe, arrays)
    elif alignment is not None:
        _check_reference(alignment, recipe, arrays)
        if alignment.own:
            _check_own(alignment, recipe, arrays)


def _check_reference(made: MadeBy, recipe: Recipe, arrays: _Arrays) -> None:
    width = recipe.width
    shapes: dict[str, tuple[int | None, ...]] = {
        "reference.mean": (width,),
        "reference.covariance": (width, width),
        "reference.class_means": (None, width),
        "reference.within": (width, width),
        "reference.scalars": (None,),
    }
    if (made.kind == "moments") != (made.moments is not None):
        raise HostileInput("The result's alignment states moments exactly if it is by moments.", _AGAIN)
    if made.moments is not None:
        shapes = dict.fromkeys(MOMENT_REFERENCE, (_columns(recipe, made.moments),))
        if set(made.reference) != set(shapes):
            raise HostileInput("The result's alignment lacks the reference that moments need.", _AGAIN)
    for name, array in made.reference.items():
        if name not in shapes:
            raise HostileInput(f"The result's alignment has an unknown reference {name!r}.", _AGAIN)
        arrays.take(array, *shapes[name])


def _check_own(alignment: OwnAlignment, recipe: Recipe, arrays: _Arrays) -> None:
    shapes: dict[str, tuple[int, ...]] = {"matrix": (recipe.width, recipe.width), "offset": (recipe.width,)}
    if (use := alignment.moments) is not None:
        named = ("count", *(f"t{k}" for k in range(1, use.order + 1)))
        shapes = {name: (1 if name == "count" else _columns(recipe, use),) for name in named}
    if set(alignment.own) != set(shapes):
        raise HostileInput("The result's alignment lacks a part of the site's own.", _AGAIN)
    for name, array in alignment.own.items():
        arrays.take(array, *shapes[name])


def _columns(recipe: Recipe, use: MomentUse) -> int:
    return use.channels or len(recipe.aligned_columns(use))


def _check_head(recipe: Recipe, arrays: _Arrays) -> None:
    head, classes, outcome, scores, width = recipe.head, recipe.classes, recipe.outcome, recipe.scores, recipe.width
    if outcome is not None and (head is None or classes):
        raise HostileInput("The result predicts an outcome without a model, or classes beside it.", _AGAIN)
    if head is None:
        return
    if outcome is None and (not classes or len(set(classes)) != len(classes)):
        raise HostileInput("The result has a classifier without distinct classes.", _AGAIN)
    if isinstance(head, PersonalHead):
        arrays.take(head.weights, scores, width)
        arrays.take(head.bias, scores)
        head = head.released
    if isinstance(head, NetworkHead):
        for name, shape in head.architecture(width, scores).shapes().items():
            arrays.take(head.prefix + name, *shape)
        return
    if isinstance(head, LinearArrays) and head.centre is not None:
        arrays.take(head.centre, width)
    for weight, bias, rows in _layers(head, scores):
        width = len(arrays.take(bias, len(arrays.take(weight, rows, width))))


def _layers(head: LinearArrays | MlpHead, classes: int) -> Iterator[tuple[str, str, int | None]]:
    """Names of weight and bias, and how many rows they must have, of each layer."""
    if isinstance(head, LinearArrays):
        yield head.weights, head.bias, classes
        return
    for index, (weight, bias) in enumerate(head.layers):
        yield weight, bias, classes if index == len(head.layers) - 1 else None
