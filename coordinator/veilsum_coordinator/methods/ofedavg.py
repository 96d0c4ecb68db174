"""The method "o-fedavg": every site fits a softmax head to its own records, and the heads are averaged once.

One-shot federated averaging, with an alignment or generation in front. All heads count alike, and have a score for every
class: that a class did not occur at a site is a vote as well. On digits of four domains weighing heads by counts, or leaving
those votes out, did worse, and equal votes need no private count.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.heads import LinearHead, average_heads
from veilsum_coordinator.parts.alignment import (
    Aligned,
    AlignmentParameters,
    align,
    plans_in_front,
    resolve_alignment,
    task_alignment,
)
from veilsum_coordinator.parts.application import linear_result
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.generation import (
    FeatureUse,
    GenerationParameters,
    generation_plans,
    run_generation,
)
from veilsum_coordinator.parts.moment_plans import FeatureRules, need_label, resolved_clip, task_parameters, typical_norm
from veilsum_coordinator.parts.server_heads import softmax_head
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Disclosure

HEADS = "heads"
"""Label of the release."""

RIDGE = 0.01
"""Default ridge for each record of a site, in units of the features' squared norm."""

NOISED_RIDGE, LEAST_RIDGE, MOST_RIDGE = 12.0, 2.0, 16.0
"""Default ridge of a site under noise, in the same units: 12 / epsilon of the study, from 2 to 16.

Noise on a head is in inverse proportion to the ridge, so the best ridge falls as epsilon rises: by the sweep in
docs/results.md, on three data sets with about 100, 150 and 1,500 records a site.
"""

BIAS = 0.2
"""Default value of the constant feature, as a share of the features' norm; all of it costs noise.

A larger one lets biases learn how frequent classes are at a site: 0.3 took up to 2 points of what aligning gains on digits.
"""

CLEAR = 4.0
"""Difference of two scores at which a head is sure: odds of more than 50 to 1. Larger ones tell no more."""


class OFedAvgParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        ridge: Lambda of each site's objective sum CE + Lambda / 2 |V|^2, of each record or each site as ``ridge_per`` says.
            By default 0.01 for each record, or under noise 12 / epsilon for each site, from 2 to 16; times the squared root
            mean square norm that features are expected to have.
        ridge_per: ``record`` multiplies the ridge by a site's number of records, as against their mean loss; it is the default
            without noise, and cannot be had with noise. ``site`` is one public ridge for all: heads of sites with few records
            are then smaller and weigh less in the mean.
        bias: value of the constant feature that the bias belongs to; by default 0.2 of that norm.
        disclosure: ``joint`` releases the sum of the heads, ``per-site`` each of them.
        alignment: of the sites' features, before heads are fitted; it takes ``alignment.share`` of the budget.
        generation: of features from released class geometries; one head is then trained on them here, since every site would
            train on the same ones.
    """

    ridge: Real | None = Field(default=None, gt=0, le=1e9)
    ridge_per: Literal["record", "site"] | None = None
    bias: Real | None = Field(default=None, gt=0, le=1e6)
    disclosure: Disclosure = "joint"
    alignment: AlignmentParameters | None = None
    generation: GenerationParameters | None = None


class OFedAvg(Method[OFedAvgParameters]):
    """An alignment if any, one round of "local-head", and the mean of the heads."""

    name = "o-fedavg"
    Parameters: ClassVar[type[Frozen]] = OFedAvgParameters
    rehearsals = 8

    def resolve(self, parameters: OFedAvgParameters, inputs: Inputs) -> OFedAvgParameters:
        clip = resolved_clip(parameters.clip, inputs)
        norm = min(clip, typical_norm(inputs, clip))
        per = parameters.ridge_per or ("site" if inputs.private else "record")
        if per == "record" and inputs.private:
            raise ConfigurationError(
                'ridge_per = "record" is for studies without noise: one record would change the ridge of all others.',
                "Leave it out; a study with noise takes one public ridge for all sites.",
            )
        ridge = RIDGE if per == "record" else RIDGE * inputs.records
        if inputs.private:
            ridge = min(max(NOISED_RIDGE / (inputs.epsilon or 1.0), LEAST_RIDGE), MOST_RIDGE)
        alignment = parameters.alignment
        return parameters.model_copy(
            update={
                "clip": clip,
                "ridge": parameters.ridge or ridge * norm**2,
                "ridge_per": per,
                "bias": parameters.bias or BIAS * norm,
                "alignment": None if alignment is None else resolve_alignment(alignment, inputs),
            }
        )

    def declare(self, parameters: OFedAvgParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method o-fedavg needs the defaults of its parameters resolved.")
        need_label(inputs, "the method o-fedavg")
        clip, missing, alignment = parameters.clip, parameters.missing, parameters.alignment
        before, left = plans_in_front(alignment, inputs, clip, missing)
        if parameters.generation is not None:
            if parameters.disclosure == "per-site":
                raise ConfigurationError(
                    'With [parameters.generation] no site sends a head, so there is none to disclose "per-site".',
                    "Leave disclosure out.",
                )
            use = FeatureUse.of(inputs, clip, missing, alignment)
            return *before, *generation_plans(parameters.generation, use, share=left)
        own, source = task_alignment(alignment)
        width = None if inputs.encoder is None and own is None else inputs.width
        task = task_parameters(
            "local-head",
            width=width,
            alignment=own,
            clip=clip,
            missing=missing,
            ridge=parameters.ridge,
            bias=parameters.bias,
            per_record=parameters.ridge_per == "record",
        )
        plan = TaskPlan(HEADS, "local-head", task, disclosure=parameters.disclosure, source=source, share=left)
        return *before, plan

    def compute(self, federation: Federation) -> Result:
        parameters = OFedAvgParameters.model_validate(federation.study.parameters)
        aligned = None if parameters.alignment is None else align(federation, parameters.alignment)
        summary: dict[str, Any] = {} if aligned is None else {"alignment": dict(aligned.summary)}
        if aligned is not None and not aligned.ready:
            summary["not_estimable"] = "there is no alignment to fit heads after; nothing else was released"
            return Result(self.name, summary)
        if parameters.generation is not None:
            return self._generated(federation, parameters, parameters.generation, aligned, summary)
        release = federation.sum(HEADS, {} if aligned is None else aligned.broadcast)
        head, each = _heads(release, federation.study.data.classes, parameters.disclosure)
        std = _noise(release, parameters.disclosure)
        summary = {"cohort": len(release.cohort), "ridge": parameters.ridge, **summary}
        size, noise = float(np.linalg.norm(head.weights)), std * math.sqrt(head.weights.size)
        summary["weights"] = {"norm": size, "norm_of_noise": noise}
        summary["classes"] = [{"class": name, "in_head": True} for name in head.classes]
        # The squared norm of noise alone varies by sqrt(2 / number of weights) of its mean.
        if size**2 <= noise**2 * (1.0 + 3.0 * math.sqrt(2.0 / head.weights.size)):
            summary["not_estimable"] = (
                "the averaged head cannot be told from its noise; ask for less noise, more ridge or fewer features"
                if noise
                else "no site has a usable record"
            )
            return Result(self.name, summary)
        return linear_result(federation, summary, parameters.missing, head, aligned, each)

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


def _heads(release: Release, classes: tuple[str, ...], disclosure: Disclosure) -> tuple[LinearHead, dict[str, Floats]]:
    """The mean head, and where each is disclosed the arrays of them all, in the cohort's order."""
    weights, bias = release.values["weights"], release.values["bias"]
    if disclosure == "joint":
        number = len(release.cohort)
        return LinearHead(weights / number, bias / number, classes), {}
    heads = [LinearHead(own, shift, classes) for own, shift in zip(weights, bias, strict=True)]
    return average_heads(heads), {"heads.weights": weights, "heads.bias": bias}


def _noise(release: Release, disclosure: Disclosure) -> float:
    """Standard deviation of the noise of a weight of the mean head."""
    number = len(release.cohort)
    return release.noise_std["weights"] / (number if disclosure == "joint" else math.sqrt(number))
