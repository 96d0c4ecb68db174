"""Generation in front of a method: class geometries and prototypes by secure sums, and features generated from these alone.

After GGEUR. Class counts, sums and second moments, summed over all sites, give each class's covariance by the law of total
covariance; its eigenvectors and eigenvalues are the class's geometry. Features are generated around class means, or around
each site's class prototypes, in the directions of that geometry.

What is generated here descends from released sums and from no record: it is post-processing, and free, in any number. Samples
around records are another matter; only sites of a study without noise make them (:mod:`veilsum_coordinator.methods.ggeur`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.alignment import AlignmentParameters, task_alignment
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.generated import (
    GeneratedFeatures,
    noise_of_geometry,
    released_geometry,
    released_prototypes,
    without_deviations,
)
from veilsum_coordinator.parts.moment_plans import IMPORTANCE, Missing, task_parameters
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.layout import balanced_weights
from veilsum_privacy.tasks.parameters import Alignment

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
        inputs: of the study.
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
    def of(cls, inputs: Inputs, clip: float, missing: Missing, alignment: AlignmentParameters | None = None) -> FeatureUse:
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
            values: further parameters.
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
        parameters: of the generation.
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
        federation: of the study.
        parameters: of the generation.
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
