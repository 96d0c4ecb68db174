"""The method "o-fedavg": every site makes a head of its own noised class moments, and the heads are averaged once.

One-shot federated averaging, with an alignment or generation in front. All heads count alike, and have a score for every
class: that a class did not occur at a site is a vote as well. On digits of four domains weighing heads by counts, or leaving
those votes out, did worse, and equal votes need no count.

No head is fitted to records: a site releases class moments and keeps its own, with all the noise that its records need, and
computes its head from these at no cost, after an alignment as well. What one record changes is bounded in the moments, where
the kernel clips it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pydantic import Field

from veilsum_aggregation.alignment import mapped_moments, mapped_noise
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.heads import LinearHead, average_heads
from veilsum_aggregation.ridge_heads import ridge_head
from veilsum_coordinator.parts.alignment import (
    Aligned,
    AlignmentParameters,
    align,
    alignment_plans,
    linear_result,
    plans_in_front,
    resolve_alignment,
    task_alignment,
)
from veilsum_coordinator.parts.base import (
    FeatureRules,
    Inputs,
    Method,
    TaskPlan,
    need_label,
    resolved_clip,
    task_parameters,
    typical_norm,
)
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.generation import FeatureUse, GenerationParameters, generation_plans, run_generation
from veilsum_coordinator.parts.iteration import site_blocks
from veilsum_coordinator.parts.moment_plans import Split, class_moments
from veilsum_coordinator.parts.server_heads import softmax_head
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Disclosure

HEADS = "heads"
"""Label of the release."""

MOMENTS = "moments"
"""Label of the release that heads are made of where nothing is aligned."""

RIDGE, NOISED_RIDGE = 0.01, 0.001
"""Default ridge for each record, in units of the features' squared norm; under noise :func:`ridge_head` adds to it what the
noise in second moments asks for. By the sweep in docs/results.md."""

BIAS = 0.2
"""Default value of the constant in a site's regression, as a share of the features' norm."""

ROOM = 4.0
"""How much longer than a clipped record a site's mean may be, after its map and with noise, before biases are clamped."""

SPLIT = Split(counts=0.05, sums=0.75, second=0.2)
"""How the release is split among counts, sums and second moments; found by the same sweep."""


class OFedAvgParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        ridge: of each record in a site's own regression; by default 0.01, or under noise 0.001, times the squared root mean
            square norm that features are expected to have.
        bias: value of the constant in a site's regression; by default 0.2 of that norm. It takes up how frequent classes are.
        prior: how far a class's frequency at a site is a vote for it; 0 for not at all, 1 for what Newton's step would have.
        split: of the release's cost among counts, sums and second moments; by default 5, 75 and 20 of 100.
        disclosure: ``joint`` releases the sum of the heads, ``per-site`` each of them; of moments the sum alone.
        alignment: of the sites' features; its release is then the only one.
        generation: of features from released class geometries; one head is then trained on them here, since every site would
            train on the same ones.
    """

    ridge: Real | None = Field(default=None, gt=0, le=1e9)
    bias: Real | None = Field(default=None, gt=0, le=1e6)
    prior: Real = Field(default=0.5, ge=0, le=1)
    split: Split | None = None
    disclosure: Disclosure = "joint"
    alignment: AlignmentParameters | None = None
    generation: GenerationParameters | None = None


class OFedAvg(Method[OFedAvgParameters]):
    """One release of class moments that each site keeps, an alignment if any, and the mean of the sites' own heads."""

    name = "o-fedavg"
    rehearsals = 8

    def resolve(self, parameters: OFedAvgParameters, inputs: Inputs) -> OFedAvgParameters:
        clip = resolved_clip(parameters.clip, inputs)
        norm = min(clip, typical_norm(inputs, clip))
        alignment = parameters.alignment
        by_class = parameters.generation is None
        return parameters.model_copy(
            update={
                "clip": clip,
                "ridge": parameters.ridge or (NOISED_RIDGE if inputs.private else RIDGE) * norm**2,
                "bias": parameters.bias or BIAS * norm,
                "split": parameters.split or SPLIT,
                "alignment": None if alignment is None else resolve_alignment(alignment, inputs, classes=by_class),
            }
        )

    def declare(self, parameters: OFedAvgParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method o-fedavg needs the defaults of its parameters resolved.")
        need_label(inputs, "the method o-fedavg")
        clip, missing, alignment = parameters.clip, parameters.missing, parameters.alignment
        if parameters.generation is not None:
            if parameters.disclosure == "per-site":
                raise ConfigurationError(
                    'With [parameters.generation] no site sends a head, so there is none to disclose "per-site".',
                    "Leave disclosure out.",
                )
            before, left = plans_in_front(alignment, inputs, clip, missing)
            use = FeatureUse.of(inputs, clip, missing, alignment)
            return *before, *generation_plans(parameters.generation, use, share=left)
        if alignment is None:
            kept = class_moments(inputs, clip, missing, split=parameters.split)
            plans: tuple[TaskPlan, ...] = (TaskPlan(MOMENTS, "class-moments", kept, keep=True),)
        else:
            plans = alignment_plans(alignment, inputs, clip, missing, classes=True, split=parameters.split)
            if alignment.mode == "one-shot":  # everyone sees each site's moments, and can make its head
                return plans
        own, source = task_alignment(alignment)
        width = None if inputs.encoder is None and own is None else inputs.width
        task = task_parameters(
            "ridge-head",
            width=width,
            alignment=own,
            ridge=parameters.ridge,
            bias=parameters.bias,
            prior=parameters.prior,
            reach=ROOM * clip,
        )
        return *plans, TaskPlan(HEADS, "ridge-head", task, disclosure=parameters.disclosure, source=source or MOMENTS)

    def compute(self, federation: Federation) -> Result:
        parameters = OFedAvgParameters.model_validate(federation.study.parameters)
        aligned = None if parameters.alignment is None else align(federation, parameters.alignment)
        summary: dict[str, Any] = {} if aligned is None else {"alignment": dict(aligned.summary)}
        if aligned is not None and not aligned.ready:
            summary["not_estimable"] = "there is no alignment to fit heads after; nothing else was released"
            return Result(self.name, summary)
        if parameters.generation is not None:
            return self._generated(federation, parameters, parameters.generation, aligned, summary)
        heads = self._heads(federation, parameters, aligned)
        summary = {"cohort": heads.cohort, "ridge": parameters.ridge, **summary}
        head, each = heads.mean, heads.each if parameters.disclosure == "per-site" else {}
        size, noise = float(np.linalg.norm(head.weights)), heads.noise
        summary["weights"] = {"norm": size, "norm_of_noise": noise}
        summary["classes"] = [{"class": name, "in_head": True} for name in head.classes]
        # The squared norm of noise alone varies by sqrt(2 / number of weights) of its mean.
        if size**2 <= noise**2 * (1.0 + 3.0 * math.sqrt(2.0 / head.weights.size)):
            summary["not_estimable"] = (
                "the averaged head cannot be told from its noise; ask for less noise or fewer features, or for more records"
                if federation.study.privacy.noise != "none"
                else "no site has a usable record"
            )
            return Result(self.name, summary)
        return linear_result(federation, summary, parameters.missing, head, aligned, each)

    def _heads(self, federation: Federation, parameters: OFedAvgParameters, aligned: Aligned | None) -> _Heads:
        classes = federation.study.data.classes
        if parameters.alignment is not None and parameters.alignment.mode == "one-shot" and aligned is not None:
            return _of_moments(aligned, parameters, classes)
        if aligned is None:
            federation.sum(MOMENTS)
        release = federation.sum(HEADS, {} if aligned is None else aligned.broadcast)
        weights, bias, number = release.values["weights"], release.values["bias"], len(release.cohort)
        noise = math.sqrt(max(float(release.values["noise"].sum()), 0.0)) / number
        if parameters.disclosure == "joint":
            return _Heads(LinearHead(weights / number, bias / number, classes), noise, number)
        return _averaged(weights, bias, noise, classes)

    def _generated(
        self,
        federation: Federation,
        parameters: OFedAvgParameters,
        generating: GenerationParameters,
        aligned: Aligned | None,
        summary: dict[str, Any],
    ) -> Result:
        names = federation.study.data.classes
        generation = run_generation(federation, generating, {} if aligned is None else aligned.broadcast)
        known = generation.known
        summary["classes"] = [{"class": name, "in_head": index in known} for index, name in enumerate(names)]
        if generation.not_estimable is not None:
            summary["not_estimable"] = generation.not_estimable
            return Result(self.name, summary)
        features, labels = generation.samples()
        summary["samples"] = len(features)
        # Of features of unit variance, whose squared norm is their number.
        head = softmax_head(features, labels, RIDGE * features.shape[1], names)
        return linear_result(federation, summary, parameters.missing, head, aligned)


@dataclass(frozen=True)
class _Heads:
    """The sites' heads.

    Attributes:
        mean: of them all.
        noise: the norm that noise is expected to have in its weights.
        cohort: how many they are.
        each: the arrays of them all, in the cohort's order, where they are seen.
    """

    mean: LinearHead
    noise: float
    cohort: int
    each: Mapping[str, Floats] = field(default_factory=dict)


def _averaged(weights: Floats, bias: Floats, noise: float, classes: tuple[str, ...]) -> _Heads:
    heads = [LinearHead(own, shift, classes) for own, shift in zip(weights, bias, strict=True)]
    return _Heads(average_heads(heads), noise, len(heads), {"heads.weights": weights, "heads.bias": bias})


def _of_moments(aligned: Aligned, parameters: OFedAvgParameters, classes: tuple[str, ...]) -> _Heads:
    """The heads of moments that each site released by itself, after its map."""
    weights, bias, squares = [], [], 0.0
    ridge, constant = parameters.ridge or RIDGE, parameters.bias or BIAS
    for blocks, mapped in zip(site_blocks(aligned.release), aligned.maps, strict=True):
        moved = mapped_moments(blocks, mapped)
        noise = mapped_noise(aligned.release.noise_std, float(moved["gain"][0]))
        head = ridge_head(moved, noise, ridge=ridge, bias=constant, prior=float(parameters.prior))
        k, d = moved["sums"].shape
        weights.append(np.zeros((k, d)) if head is None else head.weights)
        bias.append(np.zeros(k) if head is None else head.bias)
        squares += 0.0 if head is None else head.noise
    return _averaged(np.array(weights), np.array(bias), math.sqrt(squares) / len(weights), classes)
