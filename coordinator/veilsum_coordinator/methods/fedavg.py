"""The method "fedavg": sites train a model for some steps, a secure sum averages what changed (McMahan et al. 2017).

With noise every site trains by DP-SGD, with noise of its own in each step, so that its whole update is noised before it leaves
(local training is not linear, and a share of noise cannot stand in for all of it). Which objective sites train on, which
optimiser takes the mean update, and who takes part with which weight, are plug-ins: FedProx, SCAFFOLD, FedDyn, MOON, FedNTD,
FedProto, FedSR, FedIIR; FedOPT and FedNova; FedAVOT.

Who takes part in a round, and with which weight, such that sites count as their importance says (FedAVOT).

``available``: subsets of sites turn up with known probabilities; weights within each subset come from masked optimal
transport between importances and subsets. Who turns up is drawn here, which simulates it. ``natural``: the same weights, and
whoever comes takes part. ``coordinated``: the coordinator chooses so many sites a round with such probabilities that
importance is met exactly (:mod:`veilsum_aggregation.participation`). ``uniform``: the control of the papers, FedAvg(K), in
which all sets of so many sites are equally likely. Weights are public and reach sites in the broadcast. So are the members: a
draw that everybody sees hides nobody, and no price is lowered for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.masked_transport import Subsets, pair_probabilities, solve
from veilsum_aggregation.participation import design_weights, draw_design, inclusion_probabilities
from veilsum_coordinator.parts.alignment import outcome_application, study_result
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label, typical_norm
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.local_rounds import (
    LOCAL,
    PULLING,
    LocalRounds,
    TrainingParameters,
    resolved_training,
    training_plan,
)
from veilsum_coordinator.parts.moment_alignment import (
    MomentAlignment,
    MomentRounds,
    aligned_parameters,
    epsilon_parts,
    moment_plans,
    moment_share,
    moment_source,
    resolve_moments,
    training_records,
)
from veilsum_coordinator.parts.networks import (
    OUTCOME_TRAVEL,
    default_gradient_clip,
    default_model,
    feature_clip,
    network_head,
    resolved_model,
    stable_rate,
)
from veilsum_coordinator.parts.outcomes import (
    check_recalibration,
    recalibrated,
    refuse_for_outcomes,
    resolved_outcome,
    with_recalibration,
)
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.computation.weights import SCORES, WEIGHTS
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.local_training import OF_OUTCOMES
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.perceptrons import LinearOptions, Perceptron
from veilsum_privacy.training.objectives import OBJECTIVES
from veilsum_privacy.training.server_steps import stated_weights

SHOWN = 20
"""Most sites that a summary lists."""

CHOSEN = ("coordinated", "uniform")
"""Modes in which the coordinator chooses a number of sites."""


class Available(Frozen):
    """One subset of sites that may turn up.

    Attributes:
        probability: of this subset, in proportion to the others'.
    """

    sites: tuple[Name, ...] = Field(min_length=1)
    probability: Real = Field(gt=0, le=1e9)


class ParticipationParameters(Frozen):
    """Who takes part, all public. One of ``rates``, ``subsets`` and, where sites are chosen, ``size`` says how.

    Attributes:
        mode: see the module.
        importance: of each site, in proportion; None where all count alike.
        rates: of each site; two of them turn up, drawn in turn at these rates.
        subsets: that turn up.
        size: K, sites in a round that are chosen.
        unscaled: of ``uniform``: weights N p_i / K as FedAVOT's FedAvg(K) has them, whose sum is 1 on average only, and by
            which the whole model is multiplied. Otherwise a round's weights are its members' p_i over their sum.
    """

    mode: Literal["available", "coordinated", "natural", "uniform"] = "available"
    importance: dict[Name, Real] | None = None
    rates: dict[Name, Real] | None = None
    subsets: tuple[Available, ...] = ()
    size: int | None = Field(default=None, ge=1, le=1024)
    unscaled: bool = Field(default=False, exclude_if=lambda stated: not stated)

    @property
    def smallest(self) -> int | None:
        """Members of the smallest cohort that is asked for; None where whoever comes takes part."""
        if self.mode == "natural":
            return None
        if self.size is not None:
            return self.size
        return 2 if self.rates is not None else min((len(own.sites) for own in self.subsets), default=None)

    @model_validator(mode="after")
    def _complete(self) -> ParticipationParameters:
        if self.unscaled and self.mode != "uniform":
            raise ValueError("unscaled weights are those of uniform participation")
        if self.mode in CHOSEN:
            if self.size is None or self.rates is not None or self.subsets:
                raise ValueError(f"{self.mode} participation takes a size, and neither rates nor subsets")
        elif (self.rates is None) == (not self.subsets) or self.size is not None:
            raise ValueError("participation by availability takes either rates, of pairs, or subsets, and no size")
        return self


class Participation:
    """Members and weights of each round of a study.

    Raises:
        ConfigurationError: the parameters name other sites than the study's, or not all of them.
    """

    def __init__(self, parameters: ParticipationParameters, participants: Sequence[str]) -> None:
        self._parameters, self._names = parameters, tuple(participants)
        given = parameters.importance or dict.fromkeys(self._names, 1.0)
        importance = self._by_site(given, "importance")
        self.importance = importance / importance.sum()
        if parameters.mode in CHOSEN:
            self._coordinate()
        else:
            self._transport()

    def scale(self, members: Collection[str]) -> float:
        """What a round's weights sum to: 1, but for unscaled ones N / K times its members' importance."""
        if not self._parameters.unscaled:
            return 1.0
        own = [self.importance[self._names.index(name)] for name in members]
        return len(self._names) * float(np.mean(own))

    def draw(self, rng: np.random.Generator) -> tuple[tuple[str, ...] | None, dict[str, Floats]]:
        """The next round's members, None for whoever comes, and the arrays that weigh them."""
        mode = self._parameters.mode
        if mode == "natural":
            return None, {SCORES: self._scores}
        if mode == "available":
            members = self._subsets[int(rng.choice(len(self._probabilities), p=self._probabilities))]
            return tuple(self._names[index] for index in members), {SCORES: self._scores}
        size = self._parameters.size or 1
        if mode == "uniform":
            members = np.sort(rng.choice(len(self._names), size, replace=False))
        else:
            members = draw_design(self._inclusion, size, rng)
        return tuple(self._names[index] for index in members), {WEIGHTS: self._weights}

    def summary(self) -> dict[str, Any]:
        """What was reached: for weights by transport the residual, whether importance can be met, and who is in the way."""
        if self._parameters.mode == "uniform":
            return {"mode": "uniform", "size": self._parameters.size}
        if self._parameters.mode == "coordinated":
            always = [name for name, share in zip(self._names, self._inclusion, strict=True) if share >= 1.0 - 1e-12]
            return {"mode": "coordinated", "size": self._parameters.size, "residual": 0.0, "always": always[:SHOWN]}
        plan = self._plan
        return {
            "mode": self._parameters.mode,
            "subsets": len(self._probabilities),
            "residual": float(plan.residual),
            "feasible": plan.feasible,
            "blocking": [self._names[index] for index in plan.blocking][:SHOWN],
            "blocking_sites": len(plan.blocking),
            "excess": float(plan.excess),
        }

    def _coordinate(self) -> None:
        size = self._parameters.size or 1
        if size > len(self._names):
            raise ConfigurationError(f"parameters.participation: size {size} exceeds the study's {len(self._names)} sites.")
        if self._parameters.mode == "uniform":
            if not self.importance.all():
                raise ConfigurationError("parameters.participation: of uniform rounds every site must have importance.")
            self._weights: Floats = self.importance
            return
        if size > np.count_nonzero(self.importance):
            raise ConfigurationError(f"parameters.participation: fewer than {size} sites have importance.")
        self._inclusion: Floats = inclusion_probabilities(self.importance, size)
        self._weights = design_weights(self.importance, self._inclusion)

    def _transport(self) -> None:
        rates = self._parameters.rates
        if rates is not None:
            self._subsets = Subsets.all_pairs(len(self._names))
            self._probabilities: Floats = pair_probabilities(self._by_site(rates, "rates"))
        else:
            listed = self._parameters.subsets
            self._subsets = Subsets.from_lists([self._places(subset.sites) for subset in listed])
            self._probabilities = np.array([float(subset.probability) for subset in listed])
        self._probabilities = self._probabilities / self._probabilities.sum()
        self._plan = solve(self.importance, self._subsets, self._probabilities)
        # A site that no weight can raise has a score far below; exp of it must stay a number.
        self._scores: Floats = np.asarray(self._plan.scores, dtype=np.float64)

    def _places(self, names: Sequence[str]) -> list[int]:
        if len(set(names)) != len(names):
            raise ConfigurationError("parameters.participation: a subset names a site twice.")
        return [self._place(name) for name in names]

    def _place(self, name: str) -> int:
        if name not in self._names:
            raise ConfigurationError(
                f"parameters.participation: {name!r} does not take part in the study.", did_you_mean(name, self._names)
            )
        return self._names.index(name)

    def _by_site(self, given: Mapping[str, float], what: str) -> Floats:
        """One number a site (N,), from a table that names them all."""
        found = np.full(len(self._names), np.nan)
        for name, value in given.items():
            found[self._place(name)] = float(value)
        if np.isnan(found).any():
            missing = [name for name, value in zip(self._names, found, strict=True) if np.isnan(value)]
            raise ConfigurationError(f"parameters.participation.{what}: nothing is said of {', '.join(missing[:5])}.")
        if (found < 0.0).any() or found.sum() <= 0.0:
            raise ConfigurationError(f"parameters.participation.{what}: numbers must not be negative, nor all zero.")
        return found


class FedAvgParameters(TrainingParameters, FeatureRules):
    """Parameters, all public; those of training stand beside these.

    Attributes:
        model: what is trained; by default a perceptron with one hidden layer, of an outcome a linear model.
        moments: alignment of the sites' features by their moments in front (FedAlign); None for none.
        participation: who takes part, with which weight; None for all, alike.
        outcome: a number, count or time to predict in place of classes, by a model linear or mlp of the schema's own columns,
            under the objectives none, prox, scaffold and dyn.
        class_weights: by class, what a record's gradient is multiplied by, after it is clipped where there is noise; of which
            only the proportions count. None for alike.
        average: share of the rounds, from the last backwards, whose models' mean is the result; 0 takes the last one. By
            default a quarter with noise, 0 without.
        recalibrate: part of the budget for a logistic regression of the class on the trained model's log odds, by which its
            last layer is changed; of two classes. 0 for none.
    """

    model: ModelSpec = ModelSpec(name="mlp")
    moments: MomentAlignment | None = None
    participation: ParticipationParameters | None = None
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    class_weights: dict[Name, Annotated[Real, Field(gt=0, le=1e6)]] | None = None
    average: Real | None = Field(default=None, ge=0, le=1)
    recalibrate: Real = Field(default=0.0, ge=0, lt=1, exclude_if=lambda part: not part)


class FedAvg(Method[FedAvgParameters]):
    """Rounds of the task "local-training"."""

    name = "fedavg"
    rehearsals = 0

    def resolve(self, parameters: FedAvgParameters, inputs: Inputs) -> FedAvgParameters:
        if parameters.outcome is None:
            need_label(inputs, "the method fedavg", ", or name an outcome in [parameters.outcome]")
        outcome, inputs, scores = resolved_outcome(parameters.outcome, inputs, "fedavg")
        if outcome is not None:
            other = parameters.objective.name not in OF_OUTCOMES
            refuse_for_outcomes(
                {
                    "moments": parameters.moments is not None,
                    "class_weights": parameters.class_weights is not None,
                    f'objective "{parameters.objective.name}"': other,
                },
                "fedavg",
            )
        clip = parameters.clip or feature_clip(inputs)
        model = parameters.model
        if outcome is not None and "model" not in parameters.model_fields_set:
            model = ModelSpec(name="linear")  # a perceptron needs far more steps for an outcome (decision 55)
        if model == ModelSpec(name="linear"):
            model = default_model(inputs, clip, centred=False)
        convex = model.name == "linear"
        model = resolved_model(model, inputs.width, scores, "fedavg, parameters.model")
        check_recalibration(parameters.recalibrate, inputs, model, "fedavg", outcome=outcome is not None)
        scale = float(LinearOptions.model_validate(model.options).scale) if convex else 1.0
        norm = scale * min(clip, typical_norm(inputs, clip))
        moments = None if parameters.moments is None else resolve_moments(parameters.moments, inputs, model.inputs)
        filled = {
            **resolved_training(parameters, inputs, convex=convex, norm=norm),
            **outcome_rates(parameters, outcome, inputs, model, scores),
            "outcome": outcome,
            "clip": clip,
            "average": (0.25 if inputs.private else 0.0) if parameters.average is None else parameters.average,
            "model": model,
            "moments": moments,
            "records": parameters.records or training_records(moments, inputs.records),
        }
        if parameters.participation is not None:
            check_participation(parameters, parameters.participation)
        return parameters.model_copy(update=filled)

    def declare(self, parameters: FedAvgParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method fedavg needs the defaults of its parameters resolved.")
        public = parameters.participation is not None
        moments = parameters.moments
        _, features, scores = resolved_outcome(parameters.outcome, inputs, "fedavg")
        plan = training_plan(
            parameters,
            inputs,
            parameters.model,
            parameters.clip,
            parameters.missing,
            public_weights=public,
            size=build_architecture(parameters.model, features.width, scores).size,
            outcome=parameters.outcome,
            class_weights=stated_weights(parameters.class_weights, inputs.classes, "fedavg"),
            **aligned_parameters(moments),
        )
        before = tuple[TaskPlan, ...]()
        if moments is not None:
            share = moment_share(float(moments.share), plan.steps, plan.sampling_rate)
            before = moment_plans(moments, inputs, parameters.missing, share=share, rounds=parameters.rounds)
            plan = replace(plan, source=moment_source(moments))
        return with_recalibration(float(parameters.recalibrate), (*before, plan), private=inputs.private)

    def check_federation(self, study: Study) -> None:
        participation = FedAvgParameters.model_validate(study.parameters).participation
        smallest = None if participation is None else participation.smallest
        if participation is None or smallest is None:
            return
        if smallest < 2:  # no min_cohort allows it
            raise ConfigurationError(
                "fedavg's participation table asks for cohorts of one site, whose sum would be that site's own model.",
                "Ask for two sites or more in every round, or try it with veilsum simulate.",
            )
        if study.privacy.cohort_difference == "strict":
            raise ConfigurationError(
                f'fedavg with participation mode "{participation.mode}" changes the cohort in every round, but the study'
                " allows only one.",
                'Ask for noise and cohort_difference = "allowed", or try it with veilsum simulate.',
            )
        if smallest < study.privacy.min_cohort:
            raise ConfigurationError(
                f"fedavg's participation table asks for cohorts of {smallest}; the study's min_cohort is"
                f" {study.privacy.min_cohort}.",
                f"Set privacy.min_cohort = {smallest} if the sites' policies allow it, or ask for larger cohorts.",
            )

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedAvgParameters.model_validate(study.parameters)
        outcome = parameters.outcome
        aligned = None if parameters.moments is None else MomentRounds(federation, parameters.moments, parameters.seed)
        rounds = LocalRounds(federation, parameters)
        who = None if parameters.participation is None else Participation(parameters.participation, study.participants)
        rng = np.random.default_rng((parameters.seed, 0x61766F74))
        averaged = math.ceil((parameters.average or 0.0) * parameters.rounds)
        mean = {name: np.zeros_like(values) for name, values in rounds.trained.items()}
        for number in range(1, parameters.rounds + 1):
            drawn, weights = (None, {}) if who is None else who.draw(rng)
            reference = {} if aligned is None else aligned.broadcast(number)
            able = None if aligned is None else aligned.now.cohort
            rounds.round({**reference, **weights}, _in_both(able, drawn), None if who is None else who.scale)
            if number > parameters.rounds - averaged:
                mean = {name: mean[name] + values / averaged for name, values in rounds.trained.items()}
        trained, moments = mean if averaged else rounds.trained, None if aligned is None else aligned.now
        architecture = rounds.task.objective.architecture
        summary: dict[str, Any] = {
            "model": architecture.name,
            "values": architecture.size,
            "objective": parameters.objective.name,
            "server": parameters.server.name,
            "averaged": averaged,
            **rounds.summary(),
        }
        if parameters.normalised and study.privacy.noise != "none":
            summary["normalised"] = "all sites take equally many steps with noise, so this is the plain mean"
        if who is not None:
            summary["participation"] = who.summary()
        if moments is not None:
            summary["moments"], summary["epsilon"] = dict(moments.summary), epsilon_parts(study, [LOCAL])
        maps, able = ({}, None) if moments is None else (moments.broadcast, moments.cohort)
        final, told = recalibrated(federation, architecture, trained, broadcast=maps, members=able)
        summary |= told
        head, arrays = network_head(architecture, final)
        if outcome is not None:
            applied = outcome_application(study.data, outcome, missing=parameters.missing, head=head)
            return Result(self.name, summary, arrays, applied)
        return study_result(federation, summary, parameters.missing, head, arrays, study.data.classes, moments)


def _in_both(one: Collection[str] | None, other: Collection[str] | None) -> Collection[str] | None:
    """Who is in both; None stands for everyone."""
    if one is None or other is None:
        return other if one is None else one
    return set(one).intersection(other)


def check_participation(parameters: FedAvgParameters, participation: ParticipationParameters) -> None:
    """Insist that nothing was asked for that goes with no table of who takes part.

    Raises:
        ConfigurationError: it was.
    """
    if OBJECTIVES[parameters.objective.name].whole_cohort:
        raise ConfigurationError(
            f'fedavg with objective "{parameters.objective.name}" corrects towards the unweighted mean of all'
            " sites, so it cannot be combined with a participation table.",
            'Leave [parameters.participation] out, or use the objective "none", "prox", "moon" or "ntd".',
        )
    if parameters.weighting == "records":
        raise ConfigurationError(
            'fedavg with a participation table cannot use weighting = "records".', "State the sites' importance in the table."
        )
    if parameters.moments is not None and participation.mode != "natural":
        raise ConfigurationError(
            "fedavg with alignment by moments needs one cohort for the whole study, as does every study whose sites keep"
            " a statistic: no two sums may differ by one site.",
            'Leave out [parameters.moments], or set mode = "natural".',
        )


def outcome_rates(
    parameters: FedAvgParameters, outcome: Outcome | None, inputs: Inputs, model: ModelSpec, scores: int
) -> dict[str, Any]:
    """What is left open of training on an outcome, in place of what classes need; nothing of classes.

    A site's rate is stable for features spread evenly and a curvature of 1: that of numbers, which others hardly exceed.
    """
    if outcome is None:
        return {}
    architecture = build_architecture(model, inputs.width, scores)
    if not isinstance(architecture, Perceptron):
        raise ConfigurationError("fedavg predicts an outcome by a model linear or mlp.", "Take one of them.")
    numbers = sum(isinstance(column, NumberColumn) for column in inputs.schema.columns)
    spread = numbers / 3.0 + (len(inputs.schema.columns) - numbers) / 2.0
    own = inputs.private and parameters.travel is None and parameters.learning_rate is None
    pulling = parameters.objective.name in PULLING
    return {
        "gradient_clip": parameters.gradient_clip or default_gradient_clip(outcome, convex=model.name == "linear"),
        "learning_rate": parameters.learning_rate or stable_rate(architecture, 1.0, spread, 1.0) * (1.0 - parameters.momentum),
        "travel": OUTCOME_TRAVEL if own and not pulling else parameters.travel,
    }
