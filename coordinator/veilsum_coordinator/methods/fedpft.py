"""The method "fedpft": Gaussian mixtures of each class, released once and sampled at the coordinator; one head from samples.

After FedPFT (Beitollahi et al. 2024). A site's class is one diagonal Gaussian, or G by a few rounds in which records go to the
nearest of public centres. How many samples stand for a class is a public constant, and so is each site's part in them; samples
descend from released sums only.

An alignment comes first, and mixtures are released of mapped records. One per-site release of second moments per class could
serve both instead, mapped at the coordinator. But that takes K d (d - 1) / 2 more values under the same noise, and the
covariances that the alignment needs would be sums over K classes of them; and it works for one component a class only, and
not where sites keep their maps to themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.mixtures import Mixture, sample
from veilsum_coordinator.parts.alignment import (
    NOTHING_ALIGNED,
    AlignmentParameters,
    align,
    plans_in_front,
    resolve_alignment,
)
from veilsum_coordinator.parts.application import linear_result
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.generated import NO_CLASS
from veilsum_coordinator.parts.generation import (
    FeatureUse,
    GenerationParameters,
    generation_plans,
    run_generation,
)
from veilsum_coordinator.parts.mixtures import Components, Sampling
from veilsum_coordinator.parts.moment_plans import Missing, need_label, resolved_clip
from veilsum_coordinator.parts.server_heads import softmax_head
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.class_mixtures import CENTRES

START, MIXTURES = "mixtures-start", "mixtures"
"""Labels of the releases: of one component a class, to begin several with, and of the components."""


class FedPFTParameters(Frozen):
    """Parameters, all public.

    Attributes:
        clip: L2 norm that a record's features are scaled down to, after any alignment; by default as in the method fedcgs.
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds.
        disclosure: ``per-site`` releases each site's mixtures, as FedPFT does; ``joint`` those of all sites together.
        components: G of each class, at each site or of all.
        rounds: releases after the first that find several components; each takes its part of the budget.
        samples: drawn of each class.
        sampling: how a class's samples are dealt to sites: ``equal`` for all sites that have the class, or in proportion to
            released ``counts``.
        ridge: of the head, on features of unit variance, against the mean cross-entropy.
        seed: of the samples. It protects nothing.
        alignment: what comes before; None for none.
        generation: samples around prototypes with the geometry of the class over all sites, in place of mixtures.
    """

    clip: Real | None = Field(default=None, gt=0, le=1e6)
    missing: Missing = "skip"
    disclosure: Disclosure = "per-site"
    components: int = Field(default=1, ge=1, le=64)
    rounds: int = Field(default=3, ge=1, le=100)
    samples: int = Field(default=500, ge=1, le=100_000)
    sampling: Sampling = "equal"
    ridge: Real = Field(default=0.1, gt=0, le=1e6)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    alignment: AlignmentParameters | None = None
    generation: GenerationParameters | None = None


class FedPFT(Method[FedPFTParameters]):
    """An alignment if any, "class-mixtures" once or in rounds, samples, and a softmax head."""

    name = "fedpft"
    Parameters: ClassVar[type[Frozen]] = FedPFTParameters
    rehearsals = 8

    def resolve(self, parameters: FedPFTParameters, inputs: Inputs) -> FedPFTParameters:
        alignment = None if parameters.alignment is None else resolve_alignment(parameters.alignment, inputs)
        return parameters.model_copy(update={"clip": resolved_clip(parameters.clip, inputs), "alignment": alignment})

    def declare(self, parameters: FedPFTParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method fedpft needs the defaults of its parameters resolved.")
        need_label(inputs, "the method fedpft")
        before, left = plans_in_front(parameters.alignment, inputs, parameters.clip, parameters.missing)
        use = FeatureUse.of(inputs, parameters.clip, parameters.missing, parameters.alignment)
        if parameters.generation is not None:
            if parameters.components > 1:
                raise ConfigurationError(
                    "With [parameters.generation] a class is generated around prototypes, not of several components.",
                    "Leave components out, or the generation.",
                )
            return *before, *generation_plans(parameters.generation, use, share=left)
        return *before, *_mixture_plans(parameters, use, left)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedPFTParameters.model_validate(study.parameters)
        aligned = None if parameters.alignment is None else align(federation, parameters.alignment)
        summary: dict[str, Any] = {} if aligned is None else {"alignment": dict(aligned.summary)}
        if aligned is not None and not aligned.ready:  # sites cannot make their maps, so no mapped record can be had
            return Result(self.name, {**summary, "not_estimable": NOTHING_ALIGNED})
        broadcast = {} if aligned is None else aligned.broadcast
        drawn, why = self._drawn(federation, parameters, broadcast)
        names, known = study.data.classes, [] if drawn is None else np.unique(drawn[1]).tolist()
        summary["classes"] = [{"class": name, "in_head": index in known} for index, name in enumerate(names)]
        if drawn is None:
            summary["not_estimable"] = why
            return Result(self.name, summary)
        summary["samples"] = len(drawn[0])
        head = softmax_head(*drawn, parameters.ridge, names)
        return linear_result(federation, summary, parameters.missing, head, aligned)

    def _drawn(
        self, federation: Federation, parameters: FedPFTParameters, broadcast: Mapping[str, Floats]
    ) -> tuple[tuple[Floats, NDArray[np.int64]] | None, str | None]:
        """Samples (n, d) and their classes (n,); or None, and why there are none."""
        if parameters.generation is not None:
            generation = run_generation(federation, parameters.generation, broadcast)
            why = generation.not_estimable
            return (None, why) if why is not None else (generation.samples(), None)
        mixtures = self._mixtures(federation, parameters, broadcast)
        numbers = [0 if mixture is None else parameters.samples for mixture in mixtures]
        if not any(numbers):
            return None, NO_CLASS
        return sample(mixtures, numbers, np.random.default_rng(parameters.seed)), None

    def _mixtures(
        self, federation: Federation, parameters: FedPFTParameters, broadcast: Mapping[str, Floats]
    ) -> list[Mixture | None]:
        """The mixture of each class, over all sites, that samples are drawn of."""
        participants, per_site = federation.study.participants, parameters.disclosure == "per-site"

        def released(label: str, centres: Floats | None) -> Components:
            arrays = {} if centres is None else {CENTRES: centres if per_site else centres[0]}
            return Components.of(federation.sum(label, {**broadcast, **arrays}), participants, per_site=per_site)

        if parameters.components == 1:
            return released(MIXTURES, None).mixtures(parameters.sampling)
        centres = released(START, None).first_centres(parameters.components, parameters.seed)
        for _ in range(parameters.rounds):
            found = released(MIXTURES, centres)
            centres = found.moved_centres(centres)
        return found.mixtures(parameters.sampling)


def _mixture_plans(parameters: FedPFTParameters, use: FeatureUse, share: float) -> tuple[TaskPlan, ...]:
    """One release of one component a class; for several that one first, and as many rounds as stated. All alike in budget."""
    each = share if parameters.components == 1 else share / (1 + parameters.rounds)
    common: dict[str, Any] = {"disclosure": parameters.disclosure, "source": use.source, "share": each}
    one = use.parameters("class-mixtures")
    if parameters.components == 1:
        return (TaskPlan(MIXTURES, "class-mixtures", one, **common),)
    centres = "site" if parameters.disclosure == "per-site" else "joint"
    g = parameters.components
    several = use.parameters("class-mixtures", g, components=g, centres=centres)
    start = TaskPlan(START, "class-mixtures", one, **common)
    return start, TaskPlan(MIXTURES, "class-mixtures", several, releases=parameters.rounds, **common)
