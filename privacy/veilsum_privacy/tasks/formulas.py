"""Derived tasks: formulas by which a site computes, from the noised statistic that it kept, what it adds to a sum.

None reads a record, so none costs anything. A site that can tell nothing from its noise adds zeros, or maps nothing. What is
shared stands in :class:`SiteFormula`; a formula says its blocks.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, TypeVar

import numpy as np
from pydantic import Field

from veilsum_aggregation.alignment import (
    CLASS_MEANS,
    SCALARS,
    WITHIN,
    class_statistics,
    example_reference,
    local_step,
    mapped_moments,
    mapped_noise,
    pooled_moments,
    site_gaussian,
)
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import moment_terms, moments_of_sums
from veilsum_aggregation.gaussian import barycenter_term
from veilsum_aggregation.polar import factor
from veilsum_aggregation.ridge_heads import ridge_head
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import DerivedTask
from veilsum_privacy.tasks.feature_maps import own_map
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import Alignment, WidthParameters
from veilsum_privacy.tasks.power_moments import columns_of_moments

P = TypeVar("P", bound=Frozen)
Shrinkage = Literal["auto", "oas", "noised", "ridge"]

ROOM = 4.0
"""How far above the largest sums of records values may lie before they are clamped, for there is noise in them."""

LARGEST_SHAPE = 64.0
"""Absolute values of skewness and kurtosis beyond it are clamped: no map is made for these."""

FACTOR = "barycenter.factor"
"""Broadcast array Q (m, m) of the last step; absent in the first, which starts from the identity."""

TOTAL = "reference.count"
"""Broadcast array (1,) of the released number of records of all sites; not read where sites weigh alike."""

CENTRE = "reference.centre"
"""Broadcast array (m,) that class means, also those of the broadcast, are taken from; the origin where it is absent.

A feature that hardly varies lies far from the origin in whitened space, but near any centre of the records.
"""


class SiteFormula(DerivedTask[P]):
    """A function of what a site kept, in named blocks. Subclasses set ``by_class`` where they need the schema's classes.

    Sensitivity. None: it computes from what the site has released already. Values beyond ``clip()`` are clamped.
    """

    by_class: ClassVar[bool] = False

    def __init__(self, parameters: P, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if self.by_class and schema.label is None:
            raise Misuse(f"The task {self.name} needs a label in the schema.", "Add a [label] table with classes.")
        self._classes, self._records = len(schema.classes), schema.max_records

    @abstractmethod
    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats] | None:
        """The values of each block in their own units; None where the site adds zeros. Arguments as of :meth:`vector`."""

    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        layout, found = self.layout(), self.blocks(kept, noise_std, broadcast)
        if found is None:
            return np.zeros(layout.size)
        return np.concatenate([found[block.name].ravel() * block.weight for block in layout.blocks])


class BarycenterStepParameters(WidthParameters):
    """Parameters of :class:`BarycenterStep`.

    Attributes:
        width: m, features of the source; None for as many as the schema has.
        bound: largest absolute value of an entry of a site's term; the source's clip norm will do.
        shrinkage: of the site's covariance; ``auto`` is OAS without noise and fits the noise otherwise.
        weights: of the sites: by their noised ``counts`` over the released total, or ``equal``.
    """

    bound: Real = Field(gt=0, le=1e9)
    shrinkage: Shrinkage = "auto"
    weights: Literal["counts", "equal"] = "counts"


class BarycenterStep(SiteFormula[BarycenterStepParameters]):
    """What a site adds to the next factor Q of the barycenter's covariance Q^T Q: w_k polar(Q L_k) L_k^T, S_k = L_k L_k^T.

    Blocks: ``term`` (m, m), whose sum over the sum of ``weight`` (1,) is the next factor. S_k is the site's noised covariance,
    projected and shrunk. w_k is its noised count over the released total, cut to [0, 1], or 1. A site whose count is within
    its noise adds nothing.

    The entries of a term are at most the root of the largest eigenvalue of S_k, which is at most the clip norm but for noise;
    beyond ``bound`` they are clamped. The weight is carried at ``bound`` a unit.
    """

    name = "barycenter-step"
    sources = ("gaussian-moments", "class-moments")

    def layout(self) -> Layout:
        m = self.dimension
        return Layout((Block("term", (m, m)), Block("weight", (1,), self.parameters.bound)))

    def clip(self) -> float:
        return self.parameters.bound

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {FACTOR: np.eye(self.dimension), TOTAL: np.ones(1)}

    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats] | None:
        m, p = self.dimension, self.parameters
        q = broadcast.get(FACTOR, np.eye(m))
        if q.shape != (m, m) or not np.isfinite(q).all():
            raise HostileInput(f"The broadcast's {FACTOR} must be finite and of shape {(m, m)}.")
        total = np.ones(1) if p.weights == "equal" else broadcast.get(TOTAL)
        if total is None or total.shape != (1,) or not (np.isfinite(total).all() and float(total[0]) > 0.0):
            raise HostileInput(f"The broadcast must hold {TOTAL} of shape (1,), positive.")
        found = site_gaussian(kept, noise_std, shrinkage=p.shrinkage)
        if found is None:
            return None
        number, proxy = found
        weight = 1.0 if p.weights == "equal" else min(number / float(total[0]), 1.0)
        return {"term": barycenter_term(q, factor(proxy.covariance), weight), "weight": np.array([weight])}


class TwoWayStepParameters(WidthParameters):
    """Parameters of :class:`TwoWayStep`.

    Attributes:
        step: ``within``: the degrees of freedom and the within-class covariance times them, whose sums are the pooled one.
            ``effects``: the summands of one round of expectation maximisation.
        width: m, features of the source; None for as many as the schema has.
        bound: for ``within``, the largest absolute value of an entry of a site's covariance; the square of the source's clip
            norm will do. For ``effects``, the largest coordinate in space whitened by the pooled covariance.
        shrinkage: of the site's covariance; ``auto`` is none without noise and fits the noise otherwise.
    """

    step: Literal["within", "effects"]
    bound: Real = Field(gt=0, le=1e12)
    shrinkage: Shrinkage = "auto"


class TwoWayStep(SiteFormula[TwoWayStepParameters]):
    """A site's summands of the two-way reference (:mod:`veilsum_aggregation.two_way`), with slopes or without.

    ``within`` has the blocks ``degrees`` (1,) and ``within`` (m, m), the degrees times the within-class covariance.
    ``effects`` has those of :func:`veilsum_aggregation.two_way.two_way_local`: ``weights`` (K,) and ``weighted`` (K, m), both
    times v_e, by which weights are at most 1 and which cancels in the class means; ``shift`` (2,) and ``residual`` (2,). It
    reads the broadcast ``reference.within``, ``reference.scalars``, after the first round ``reference.class_means``, and
    ``reference.centre`` if there is one. The scalars are v_d and v_e (2,), and v_b (3,) where sites have slopes. A site whose
    counts are within their noise adds nothing.

    Clamped are degrees at four times the schema's ``max_records``, covariances at the bound times that, whitened coordinates
    at the bound, their squares at its square.
    """

    name = "two-way-step"
    sources = ("class-moments",)
    by_class = True

    def layout(self) -> Layout:
        m, k, bound = self.dimension, self._classes, self.parameters.bound
        if self.parameters.step == "within":
            return Layout((Block("degrees", (1,), bound), Block("within", (m, m))))
        pairs = tuple(Block(name, (2,), 1.0 / bound) for name in ("shift", "residual"))
        return Layout((Block("weights", (k,), bound), Block("weighted", (k, m)), *pairs))

    def clip(self) -> float:
        return self.parameters.bound * (ROOM * self._records if self.parameters.step == "within" else 1.0)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {**example_reference("two-way", self.dimension, self._classes), CENTRE: np.zeros(self.dimension)}

    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats] | None:
        statistics = class_statistics(kept, noise_std, shrinkage=self.parameters.shrinkage)
        if self.parameters.step == "effects":
            self._check(broadcast)
        if statistics is None:
            return None
        if self.parameters.step == "within":
            degrees = np.array([statistics.degrees])
            return {"degrees": degrees, "within": degrees * statistics.within}
        centred = replace(statistics, means=statistics.means - broadcast.get(CENTRE, np.zeros(self.dimension)))
        _, found = local_step(centred, broadcast)
        residual = float(broadcast[SCALARS][1])
        return found | {name: residual * found[name] for name in ("weights", "weighted")}

    def _check(self, broadcast: Mapping[str, Floats]) -> None:
        m, k = self.dimension, self._classes
        for name, shape in ((WITHIN, (m, m)), (CLASS_MEANS, (k, m)), (CENTRE, (m,))):
            array = broadcast.get(name)
            if array is None and name in (CLASS_MEANS, CENTRE):
                continue
            if array is None or array.shape != shape or not np.isfinite(array).all():
                raise HostileInput(f"The broadcast must hold {name} of shape {shape}, finite.")
        scalars = broadcast.get(SCALARS, np.zeros(0))
        if scalars.shape not in ((2,), (3,)) or not np.isfinite(scalars).all():
            raise HostileInput(f"The broadcast must hold two or three finite numbers as {SCALARS}.")
        positive = bool((scalars[:2] > 0.0).all() and (scalars[2:] >= 0.0).all())
        if not positive or not float(np.trace(broadcast[WITHIN])) > 0.0:
            raise HostileInput("The variances of the broadcast reference must be positive.")


class AlignedMomentsParameters(WidthParameters):
    """Parameters of :class:`AlignedMoments`.

    Attributes:
        width: m, features of the source; None for as many as the schema has.
        alignment: ``barycenter``, ``two-way`` or ``slopes``, and its strength.
        reach: R, largest norm of a record after the map; twice the source's clip norm leaves room.
    """

    alignment: Alignment
    reach: Real = Field(gt=0, le=1e6)


class AlignedMoments(SiteFormula[AlignedMomentsParameters]):
    """The class moments of a site after its own map x -> A x + b, by :func:`veilsum_aggregation.alignment.mapped_moments`.

    An affine map turns moments into moments, so what is learnt from class moments after an alignment costs nothing more than
    the alignment's own release. Blocks: ``counts`` (K,), ``sums`` (K, m), ``squares`` (m,) and ``products``
    (m (m - 1) / 2,), as class-moments pools them; and ``gain`` (1,).

    The map is :func:`veilsum_aggregation.alignment.local_map` of the kept moments and the broadcast reference; a site whose
    count is within its noise maps nothing. Where the source has second moments of each class they are pooled.

    With M the schema's ``max_records``, values are clamped far beyond what records of norm R reach: counts at 4 M, sums at
    4 M R, second moments at 4 M R^2.
    """

    name = "aligned-moments"
    sources = ("class-moments",)
    by_class = True

    def __init__(self, parameters: AlignedMomentsParameters, schema: DatasetSchema) -> None:
        if parameters.alignment.kind in ("broadcast", "moments"):
            raise Misuse("The task aligned-moments makes its own map.", "Use the alignment slopes, two-way or barycenter.")
        super().__init__(parameters, schema)

    def layout(self) -> Layout:
        m, k, r = self.dimension, self._classes, self.parameters.reach
        blocks = [Block("counts", (k,), r * r), Block("sums", (k, m), r), Block("squares", (m,))]
        if m > 1:
            blocks.append(Block("products", (m * (m - 1) // 2,)))
        return Layout((*blocks, Block("gain", (1,), r * r)))

    def clip(self) -> float:
        return ROOM * self._records * self.parameters.reach**2

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return example_reference(self.parameters.alignment.kind, self.dimension, self._classes)

    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats]:
        return mapped_moments(kept, own_map(self.parameters.alignment, kept, noise_std, broadcast, self.dimension))


class RidgeHeadParameters(WidthParameters):
    """Parameters of :class:`SiteRidgeHead`.

    Attributes:
        width: m, features of the source; None for as many as the schema has.
        alignment: ``barycenter``, ``two-way`` or ``slopes``, and its strength; None where features are left as they are.
        ridge: for each record, in the features' unit squared.
        bias: value b of the constant in the regression.
        prior: how far a class's frequency at the site is a vote for it.
        reach: R, largest norm of a site's mean that its biases are not clamped for.
    """

    alignment: Alignment | None = None
    ridge: Real = Field(gt=0, le=1e9)
    bias: Real = Field(gt=0, le=1e6)
    prior: Real = Field(ge=0, le=1)
    reach: Real = Field(gt=0, le=1e6)


class SiteRidgeHead(SiteFormula[RidgeHeadParameters]):
    """A site's own head of the class moments it kept (:func:`~veilsum_aggregation.ridge_heads.ridge_head`); to be averaged.

    Blocks: ``weights`` (K, m), ``bias`` (K,), and ``noise`` (1,), the squared norm that noise is expected to have in the
    weights. Where features are aligned, the moments are those after the site's own map, and noise is turned by it. A site
    whose count is within its noise gives zeros.

    Without noise no row of weights is longer than K / (2 sqrt(ridge)): with lambda = n ridge, a row is
    K y^T X~ (X~^T X~ + lambda)^-1, whose norm is at most K |y| / (2 sqrt(lambda)), and |y|^2 <= n. Weights are clamped
    there, and biases at R times that.
    """

    name = "ridge-head"
    sources = ("class-moments",)
    by_class = True

    def __init__(self, parameters: RidgeHeadParameters, schema: DatasetSchema) -> None:
        if parameters.alignment is not None and parameters.alignment.kind in ("broadcast", "moments"):
            raise Misuse("The task ridge-head makes its own map.", "Use the alignment slopes, two-way or barycenter.")
        super().__init__(parameters, schema)
        if self._classes < 2:
            raise Misuse("The task ridge-head needs a label with two classes or more.", "Add a [label] table with classes.")

    def layout(self) -> Layout:
        m, k, largest = self.dimension, self._classes, self.clip()
        blocks = Block("weights", (k, m)), Block("bias", (k,), 1.0 / self.parameters.reach)
        return Layout((*blocks, Block("noise", (1,), 1.0 / (largest * k * m))))

    def clip(self) -> float:
        return 0.5 * self._classes / math.sqrt(self.parameters.ridge)

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        alignment = self.parameters.alignment
        return {} if alignment is None else example_reference(alignment.kind, self.dimension, self._classes)

    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats] | None:
        p, moments, noise = self.parameters, pooled_moments(kept), dict(noise_std)
        if p.alignment is not None:
            moments = mapped_moments(kept, own_map(p.alignment, kept, noise_std, broadcast, self.dimension))
            noise = mapped_noise(noise_std, float(moments["gain"][0]))
        head = ridge_head(moments, noise, ridge=p.ridge, bias=p.bias, prior=p.prior)
        if head is None:
            return None
        return {"weights": head.weights, "bias": head.bias, "noise": np.array([head.noise])}


class WithinMomentsParameters(WidthParameters):
    """Parameters of :class:`WithinMoments`.

    Attributes:
        width: features of the source; None for the schema's own.
        channels: of the source.
    """

    channels: int | None = Field(default=None, ge=1, le=4096)


class WithinMoments(SiteFormula[WithinMomentsParameters]):
    """A site's summands of :func:`veilsum_aggregation.feature_moments.mean_of_moments`, from its own noised power sums.

    Blocks: ``spread`` (3, m): records n, n mean, n variance; ``shape`` (3, m): n, n skewness, n kurtosis. Rows of features
    that the site cannot tell hold zeros. Values are clamped at four times the schema's ``max_records``, those of shape at 64
    times that.
    """

    name = "within-moments"
    sources = ("power-moments",)
    disclosures = ("joint",)

    def __init__(self, parameters: WithinMomentsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        columns = columns_of_moments(schema, parameters.width, parameters.channels)
        self._values = len(columns) if parameters.channels is None else parameters.channels

    def layout(self) -> Layout:
        shape = (3, self._values)
        return Layout((Block("spread", shape), Block("shape", shape, 1.0 / LARGEST_SHAPE)))

    def clip(self) -> float:
        return ROOM * self._records

    def blocks(
        self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]
    ) -> Mapping[str, Floats]:
        moments = moments_of_sums(kept, noise_std)
        if len(moments) != self._values:
            raise ValueError("the kept sums are of other features")
        return moment_terms(moments)
