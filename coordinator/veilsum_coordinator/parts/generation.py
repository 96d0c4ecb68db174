"""Generation in front of a method: class geometries and prototypes by secure sums, and features generated from these alone.

After GGEUR. Class counts, sums and second moments, summed over all sites, give each class's covariance by the law of total
covariance; its eigenvectors and eigenvalues are the class's geometry. Features are generated around class means, or around
each site's class prototypes, in the directions of that geometry.

What is generated here descends from released sums and from no record: it is post-processing, and free, in any number. Samples
around records are another matter; only sites of a study without noise make them (:mod:`veilsum_coordinator.methods.ggeur`).

Features generated from released sums alone: geometries, centres, samples, and the moments that these tend to.

Nothing here runs a release or reads a record. It is post-processing, and free, in any number of samples.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation import moments
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.geometry import ClassGeometry, class_covariances, class_geometry, directions, generate
from veilsum_aggregation.heads import NoiseInWeights, noise_in_weights
from veilsum_aggregation.shrinkage import project_psd, shrink_noised
from veilsum_coordinator.parts.alignment import AlignmentParameters, task_alignment
from veilsum_coordinator.parts.base import Inputs, Missing, TaskPlan, task_parameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.moment_plans import IMPORTANCE
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.layout import balanced_weights
from veilsum_privacy.tasks.parameters import Alignment

NO_CLASS = "every class's released count is within its noise; ask for less noise or more records"
NO_HEAD = "the head's weights cannot be told from what noise alone gives; ask for less noise, more records or fewer features"


@dataclass(frozen=True)
class GeneratedFeatures:
    """Where features are generated, and in which directions; made of released sums alone.

    Attributes:
        geometry: of all K classes; a class whose count is within its noise has count 0, and zeros.
        centres: (n, d) around which features are generated.
        classes: (n,) class of each centre.
        sites: (n,) row of each centre's site in the release of the prototypes, -1 for a mean over all sites.
        copies: features around each centre.
        scale, seed: as in :class:`GenerationParameters`.
        noise: how much of a discriminant of the classes the geometry's noise explains; None without noise.
    """

    geometry: ClassGeometry
    centres: Floats
    classes: Integers
    sites: Integers
    copies: int
    scale: Literal["std", "eigenvalue"]
    seed: int
    noise: NoiseInWeights | None = None

    @classmethod
    def around_means(
        cls,
        geometry: ClassGeometry,
        copies: int,
        scale: Literal["std", "eigenvalue"],
        seed: int,
        noise: NoiseInWeights | None = None,
    ) -> "GeneratedFeatures":
        """Around the mean of each known class over all sites."""
        classes = np.flatnonzero(geometry.counts > 0.0).astype(np.int64)
        sites = np.full(len(classes), -1, dtype=np.int64)
        return cls(geometry, geometry.means[classes], classes, sites, copies, scale, seed, noise)

    @property
    def known(self) -> list[int]:
        """Indices of the classes that can be generated."""
        return [int(c) for c in np.unique(self.classes)]

    @property
    def not_estimable(self) -> str | None:
        """Why no head can be made of these, for a summary; None where one can."""
        if not self.known:
            return NO_CLASS
        return NO_HEAD if self.noise is not None and self.noise.explains else None

    def samples(self) -> tuple[Floats, Integers]:
        """Generated features (n * copies, d) and their classes, the same in every call."""
        rng = np.random.default_rng(self.seed)
        return generate(self.geometry, self.centres, self.classes, self.copies, self.scale, rng)

    def moments(self) -> dict[str, Floats]:
        """What class moments of infinitely many samples would be, per ``copies`` of them around each centre.

        Returns:
            ``counts`` (K,), ``sums`` (K, d) and ``second`` (K, d, d), the sums of x x^T.
        """
        k, d = self.geometry.means.shape
        member = np.zeros((k, len(self.centres)))
        member[self.classes, np.arange(len(self.centres))] = float(self.copies)
        counts = member.sum(axis=1)
        root = directions(self.geometry, self.scale)
        outer = np.stack([(self.centres * own[:, None]).T @ self.centres for own in member]).reshape(k, d, d)
        second: Floats = outer + counts[:, None, None] * (root @ root.transpose(0, 2, 1))
        return {"counts": counts, "sums": member @ self.centres, "second": second}

    def similarities(self, leading: int = 5) -> Floats:
        """Similarity (K, K) of the classes' geometries: the sum of |<a_i, b_i>| over the first ``leading`` eigenvectors, or d
        if that is fewer (GGEUR, equation 3); 0 where a class is not known."""
        vectors = self.geometry.vectors[:, :, :leading]
        found: Floats = np.abs(np.einsum("adm,bdm->abm", vectors, vectors)).sum(axis=2)
        known = self.geometry.counts > 0.0
        return np.where(known[:, None] & known[None, :], found, 0.0)


def released_geometry(release: Release) -> ClassGeometry:
    """Class geometries from a joint release of class moments with second moments per class.

    Without noise the covariances are exactly those of the classes over all sites. With noise each is shrunk towards the
    covariance of all records about their class means, itself shrunk by :func:`veilsum_aggregation.shrinkage.shrink_noised`:
    that one is known K times better. A class whose count is within its noise is left out.
    """
    values, noise = release.values, release.noise_std
    counts, sums, squares = values["counts"], values["sums"], values["squares"]
    products = values.get("products", np.zeros((len(counts), 0)))
    known = np.array([not moments.within_noise(float(n), noise["counts"]) for n in counts])
    d = sums.shape[1]
    seconds = np.stack([moments.symmetric(own, off) for own, off in zip(squares, products, strict=True)])
    n: Floats = np.where(known, counts, 0.0)
    means, covariances = class_covariances(n, sums, seconds)
    if noise["squares"] > 0.0 and known.any():
        # Noise makes the squared means too large by its variance on the diagonal.
        covariances[known] += (noise["sums"] / n[known])[:, None, None] ** 2 * np.eye(d)
        covariances[known] = _shrunk(covariances[known], n[known], noise["squares"], noise.get("products", 0.0))
    covariances[~known] = 0.0
    return class_geometry(n, means, covariances)


def without_deviations(release: Release) -> ClassGeometry:
    """Class means of a joint release of class sums, or of one per site over all of them, with covariances of zero.

    A class whose count over all sites is within its noise is left out.
    """
    counts, sums, noise = release.values["counts"], release.values["sums"], release.noise_std["counts"]
    if counts.ndim == 2:
        noise *= math.sqrt(len(counts))
        counts, sums = counts.sum(axis=0), sums.sum(axis=0)
    known = np.array([not moments.within_noise(float(n), noise) for n in counts])
    n: Floats = np.where(known, counts, 0.0)
    d = sums.shape[1]
    means, covariances = class_covariances(n, sums, np.zeros((len(n), d, d)))
    return class_geometry(n, means, np.zeros_like(covariances))


def noise_of_geometry(geometry: ClassGeometry, sums_std: float) -> NoiseInWeights | None:
    """How much of a discriminant of the known classes noise of their sums explains; None without noise, or without a class."""
    known = geometry.counts > 0.0
    if not sums_std > 0.0 or not known.any():
        return None
    counts = geometry.counts[known]
    pooled = np.einsum("k,kde->de", counts / counts.sum(), geometry.covariances()[known])
    covariance = project_psd(
        pooled, floor=1e-9 * float(np.trace(pooled)) / len(pooled) + float(np.finfo(np.float64).tiny) ** 0.5
    )
    return noise_in_weights(counts, geometry.means[known] * counts[:, None], covariance, sums_std)


def released_prototypes(release: Release, geometry: ClassGeometry) -> tuple[Floats, Integers, Integers]:
    """Centres (n, d), their classes (n,) and the rows of their sites (n,), from a per-site release of class sums.

    A site's class whose count is within its noise has no prototype. With noise a prototype is shrunk towards the class's mean
    over all sites by its noise's variance over its squared distance from there, in the manner of James and Stein.
    """
    counts, sums = release.values["counts"], release.values["sums"]
    noise, sums_std = release.noise_std["counts"], release.noise_std["sums"]
    present = (counts > max(moments.NOISE_FLOOR * noise, 0.0)) & (geometry.counts > 0.0)
    sites, classes = (index.astype(np.int64) for index in np.nonzero(present))
    n = counts[present][:, None]
    centres: Floats = sums[present] / n
    if sums_std > 0.0:
        means = geometry.means[classes]
        distance = np.sum((centres - means) ** 2, axis=1, keepdims=True)
        error = centres.shape[1] * (sums_std / n) ** 2
        centres = means + (centres - means) * np.maximum(1.0 - error / np.maximum(distance, error), 0.0)
    return centres, classes, sites


def _shrunk(covariances: Floats, counts: Floats, square_std: float, product_std: float) -> Floats:
    """Noised class covariances (K, d, d), each shrunk towards the pooled one by expected squared error over distance."""
    k, d = covariances.shape[:2]
    number = float(counts.sum())
    pooled = np.einsum("k,kde->de", counts, covariances) / number
    root = math.sqrt(k)
    target = shrink_noised(pooled, number, square_std * root, product_std * root)
    trace, square = float(np.trace(target)), float(np.sum(target**2))
    sampling = (trace**2 + square) / counts  # of a normal class whose covariance is the target
    noise = (d * square_std**2 + d * (d - 1) * product_std**2) / counts**2
    distance = np.sum((covariances - target) ** 2, axis=(1, 2))
    share = np.minimum(1.0, (sampling + noise) / np.maximum(distance, np.finfo(np.float64).tiny))[:, None, None]
    mixed = (1.0 - share) * covariances + share * target
    # No class is known better than all of them together: what noise left narrower than the target's narrowest is noise.
    least = float(np.linalg.eigvalsh(target)[0])
    return np.stack([project_psd(matrix, floor=least) for matrix in mixed])


GEOMETRY, PROTOTYPES = "geometry", "prototypes"
"""Labels of the two releases."""

SINGLE_TARGET, MULTI_TARGET = 2000, 500
"""Samples of each class that GGEUR fills up to: in one domain, and in each of several."""


class GenerationParameters(Frozen):
    """Parameters of generation, all public; what is generated depends on them and on released sums.

    Attributes:
        mode: ``single-domain``: samples of the classes over all sites. ``multi-domain``: also around the class prototypes of
            each site, which are released per site.
        scale: length of a deviation along an eigenvector: ``std``, the root of its eigenvalue, or ``eigenvalue``, as GGEUR
            states it, which changes with the unit of the features.
        target: samples of each class; by default 2000 in one domain, 500 around each prototype in several (GGEUR takes
            5000 for CIFAR-10 and 500 for sets of 100 classes).
        seed: of the generation. It protects nothing.
        prototype_share: part of the generation's budget that the prototypes take in multi-domain mode; the geometry takes the
            rest.
    """

    mode: Literal["single-domain", "multi-domain"] = "single-domain"
    scale: Literal["std", "eigenvalue"] = "std"
    target: int | None = Field(default=None, ge=1, le=100_000)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    prototype_share: Real = Field(default=0.5, gt=0, lt=1)

    @property
    def copies(self) -> int:
        """Samples around each centre."""
        if self.target is not None:
            return self.target
        return SINGLE_TARGET if self.mode == "single-domain" else MULTI_TARGET


@dataclass(frozen=True)
class FeatureUse:
    """Which features the tasks of a method compute on: the study's, aligned if the method aligns them.

    Attributes:
        clip, missing: as tasks take them (:class:`veilsum_privacy.tasks.parameters.FeatureParameters`).
        alignment: as tasks take it, None for none.
        source: label of the kept task that a site makes its own alignment from.
    """

    inputs: Inputs
    clip: float
    missing: Missing
    alignment: Alignment | None = None
    source: str | None = None

    @classmethod
    def of(cls, inputs: Inputs, clip: float, missing: Missing, alignment: AlignmentParameters | None = None) -> "FeatureUse":
        """The features after the alignment of these resolved parameters, if any."""
        return cls(inputs, clip, missing, *task_alignment(alignment))

    @property
    def boxed(self) -> bool:
        """Whether the features are the schema's own, in [-1, 1]^d."""
        return self.inputs.encoder is None and self.alignment is None

    def parameters(self, task: str, groups: int = 1, **values: Any) -> Frozen:
        """Parameters of a task on these features that releases counts, sums and perhaps second moments of each class.

        Block weights split the budget by :data:`veilsum_coordinator.parts.moment_plans.IMPORTANCE`.

        Args:
            task: "class-moments" with ``second`` of "class" or "class-diagonal", "class-mixtures" or "prototypes".
            groups: of each class, that a record is of one of.
        """
        d, groups = self.inputs.width, len(self.inputs.classes) * groups
        largest = min(self.clip, math.sqrt(d)) if self.boxed else self.clip
        square = largest * min(self.clip, 1.0) if self.boxed else largest**2
        names = ("count_weight", "sum_weight", "square_weight", "product_weight")
        used = 2 if task == "prototypes" else 4 if values.get("second") == "class" else 3
        sizes = (groups, groups * d, groups * d, groups * max(1, d * (d - 1) // 2))[:used]
        norms = (1.0, largest, square, largest**2)[:used]
        weights = dict(zip(names, balanced_weights(norms, sizes, IMPORTANCE[:used]), strict=False))
        if task == "class-moments":
            weights.setdefault("product_weight", 1.0)  # of a block that is not there
        if task == "class-mixtures":
            values.setdefault("components", 1)
        common = {"width": None if self.boxed else d, "alignment": self.alignment, "clip": self.clip, "missing": self.missing}
        return task_parameters(task, **common, **weights, **values)


def generation_plans(parameters: GenerationParameters, use: FeatureUse, *, share: float = 1.0) -> tuple[TaskPlan, ...]:
    """The releases that generation needs: one joint one, and the prototypes per site in multi-domain mode.

    Args:
        use: the features, after any alignment; features are generated in the aligned space.
        share: of the study's budget, for all of them together.
    """
    several = parameters.mode == "multi-domain"
    own = share * parameters.prototype_share if several else 0.0
    moments = use.parameters("class-moments", second="class")
    geometry = TaskPlan(GEOMETRY, "class-moments", moments, source=use.source, share=share - own)
    if not several:
        return (geometry,)
    sums = use.parameters("prototypes")
    return geometry, TaskPlan(PROTOTYPES, "prototypes", sums, disclosure="per-site", source=use.source, share=own)


def centres_plan(parameters: GenerationParameters, use: FeatureUse) -> TaskPlan:
    """The release of what is generated around, where nothing deviates from it: class means, or prototypes per site."""
    disclosure: Disclosure = "joint" if parameters.mode == "single-domain" else "per-site"
    return TaskPlan(PROTOTYPES, "prototypes", use.parameters("prototypes"), disclosure=disclosure, source=use.source)


def run_centres(federation: Federation, parameters: GenerationParameters) -> GeneratedFeatures:
    """Run the release of :func:`centres_plan`; what is generated from it repeats the centres."""
    release = federation.sum(PROTOTYPES)
    copies, scale, seed = parameters.copies, parameters.scale, parameters.seed
    geometry = without_deviations(release)
    if parameters.mode == "single-domain":
        return GeneratedFeatures.around_means(geometry, copies, scale, seed)
    return GeneratedFeatures(geometry, *released_prototypes(release, geometry), copies, scale, seed)


def run_generation(
    federation: Federation, parameters: GenerationParameters, broadcast: Mapping[str, Floats] | None = None
) -> GeneratedFeatures:
    """Run the releases of :func:`generation_plans` and say what is generated from them.

    Args:
        broadcast: arrays that the tasks need, as those of an alignment.
    """
    release = federation.sum(GEOMETRY, broadcast)
    geometry = released_geometry(release)
    noise = noise_of_geometry(geometry, release.noise_std["sums"])
    copies, scale, seed = parameters.copies, parameters.scale, parameters.seed
    if parameters.mode == "single-domain":
        return GeneratedFeatures.around_means(geometry, copies, scale, seed, noise)
    centres, classes, sites = released_prototypes(federation.sum(PROTOTYPES, broadcast), geometry)
    return GeneratedFeatures(geometry, centres, classes, sites, copies, scale, seed, noise)
