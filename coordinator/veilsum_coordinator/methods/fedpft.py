"""The method "fedpft": Gaussian mixtures of each class, released once and sampled at the coordinator; one head from samples.

After FedPFT (Beitollahi et al. 2024). A site's class is one diagonal Gaussian, or G by a few rounds in which records go to the
nearest of public centres. How many samples stand for a class is a public constant, and so is each site's part in them; samples
descend from released sums only.

An alignment comes first, and mixtures are released of mapped records. One per-site release of second moments per class could
serve both instead, mapped at the coordinator. But that takes K d (d - 1) / 2 more values under the same noise, and the
covariances that the alignment needs would be sums over K classes of them; and it works for one component a class only, and
not where sites keep their maps to themselves.

Class mixtures from releases of the task "class-mixtures": of each site or of all, one component a class or several.

A record belongs to the nearest of its class's public centres, so several components take several releases: the first tells
each class's mean and spread, from which centres are laid out; each further one moves them to the means of their records.
Everything here is post-processing of releases.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.mixtures import Mixture, mixture_from_moments, sample
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_coordinator.parts.alignment import (
    NOTHING_ALIGNED,
    AlignmentParameters,
    align,
    linear_result,
    plans_in_front,
    resolve_alignment,
)
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label, resolved_clip
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.generation import NO_CLASS, FeatureUse, GenerationParameters, generation_plans, run_generation
from veilsum_coordinator.parts.server_heads import softmax_head
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Disclosure
from veilsum_privacy.tasks.class_mixtures import CENTRES

Sampling = Literal["equal", "counts"]

SPREAD_OF_CENTRES = 0.5
"""Distance of the first centres from the class mean along each feature, as a share of the class's standard deviation."""

START, MIXTURES = "mixtures-start", "mixtures"
"""Labels of the releases: of one component a class, to begin several with, and of the components."""


class FedPFTParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
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

        def released(label: str, centres: Floats | None) -> "Components":
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


@dataclass(frozen=True)
class Components:
    """Moments of the components of each class in one release.

    Attributes:
        counts: (R, K, G): R is the participants of the study in their order where it is per site, else 1.
        sums, squares: (R, K, G, d).
        counts_std, sums_std, squares_std: noise of one entry of each.
    """

    counts: Floats
    sums: Floats
    squares: Floats
    counts_std: float
    sums_std: float
    squares_std: float

    @classmethod
    def of(cls, release: Release, participants: Sequence[str], *, per_site: bool) -> "Components":
        """The components of a release; zeros for participants that are not in it."""
        values, noise = release.values, release.noise_std
        if per_site:
            rows = [participants.index(name) for name in release.cohort]
            placed = {}
            for name, found in values.items():
                placed[name] = np.zeros((len(participants), *found.shape[1:]))
                placed[name][rows] = found
        else:
            placed = {name: found[None] for name, found in values.items()}
        return cls(placed["counts"], placed["sums"], placed["squares"], noise["counts"], noise["sums"], noise["squares"])

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Components (R, K, G) whose count is beyond its noise."""
        found: NDArray[np.bool_] = self.counts > max(NOISE_FLOOR * self.counts_std, 0.0)
        return found

    def mixtures(self, sampling: Sampling) -> list[Mixture | None]:
        """The mixture of each class over all rows; None where even all of it together is within the noise.

        A component's variances are shrunk towards the class's pooled ones (:func:`mixture_from_moments`). Weights are the
        released counts, or with ``equal`` sampling the same for each row that has the class, and by counts within it.
        """
        result: list[Mixture | None] = []
        d = self.sums.shape[-1]
        for c in range(self.counts.shape[1]):
            counts, usable = self.counts[:, c], self.usable[:, c]
            mixture = mixture_from_moments(
                counts.ravel(),
                self.sums[:, c].reshape(-1, d),
                self.squares[:, c].reshape(-1, d),
                counts_std=self.counts_std,
                sums_std=self.sums_std,
                squares_std=self.squares_std,
            )
            if mixture is not None and sampling == "equal" and usable.any():
                known: Floats = np.where(usable, counts, 0.0)
                rows = known.sum(axis=1, keepdims=True)
                share = (known / np.where(rows > 0.0, rows, 1.0))[usable]
                mixture = Mixture(share / share.sum(), mixture.means, mixture.variances)
            result.append(mixture)
        return result

    def first_centres(self, components: int, seed: int) -> Floats:
        """Centres (R, K, components, d) around the mean of each row's class, from a release of one component a class.

        They lie at :data:`SPREAD_OF_CENTRES` standard deviations in random directions, the same for all rows and classes.
        Where a row's class is within its noise, the class's mean over all rows stands in; where that is too, zeros.
        """
        rows, k, _, d = self.sums.shape
        directions = SPREAD_OF_CENTRES * np.random.default_rng(seed).standard_normal((components, d))
        result = np.zeros((rows, k, components, d))
        for c, mixture in enumerate(self.mixtures("counts")):
            if mixture is None or mixture.variances is None:
                continue
            mean, variance = mixture.weights @ mixture.means, mixture.weights @ mixture.variances
            usable = self.usable[:, c, 0]
            own, spread = np.tile(mean, (rows, 1)), np.tile(variance, (rows, 1))
            if usable.any():
                own[usable], spread[usable] = mixture.means, mixture.variances
            result[:, c] = own[:, None] + np.sqrt(spread)[:, None] * directions
        return result

    def moved_centres(self, centres: Floats) -> Floats:
        """The means (R, K, G, d) of the components; a component within its noise stays where it was."""
        usable = self.usable[..., None]
        counts = np.where(usable, self.counts[..., None], 1.0)
        return np.where(usable, self.sums / counts, centres)
