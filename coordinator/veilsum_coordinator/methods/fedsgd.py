"""The method "fedsgd": distributed DP-SGD, one secure sum a step.

In every step each site draws a Poisson sample of its records, adds up their clipped gradients of the present model and its
share of the noise; the coordinator divides the sum by the public number of records that a sample is expected to have and takes
one step of an optimiser. The steps are those of DP-SGD on all records in one place (Abadi et al. 2016), with noise on the sum
in place of noise at every site. How many steps there are, and so what all of them cost, stands in the study.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_coordinator.parts.application import outcome_application, study_application, study_arrays
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan
from veilsum_coordinator.parts.centring import MEANS, centre_plan, released_centre
from veilsum_coordinator.parts.class_weights import RARITY, resolved_class_weights, weights_of_classes
from veilsum_coordinator.parts.expectations import Z95, Expectation, released_noise
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.long_arrays import LongArrays, cut
from veilsum_coordinator.parts.moment_alignment import (
    LABEL,
    MomentAlignment,
    MomentReference,
    align_moments,
    aligned_parameters,
    epsilon_parts,
    moment_plans,
    moment_share,
    resolve_moments,
    training_records,
)
from veilsum_coordinator.parts.moment_plans import Missing, need_label
from veilsum_coordinator.parts.networks import network_head, resolved_model
from veilsum_coordinator.parts.outcomes import (
    PREDICTION,
    SCORE,
    beginning,
    bound_rows,
    predicts,
    refuse_for_outcomes,
    resolved_outcome,
    score_rows,
    spread,
)
from veilsum_coordinator.parts.server_optimisers import OptimiserParameters, ServerOptimiser
from veilsum_coordinator.parts.training_defaults import (
    OUTCOME_TRAVEL,
    default_gradient_clip,
    default_model,
    default_rate,
    default_travel,
    feature_clip,
    stable_rate,
)
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS
from veilsum_privacy.tasks.gradient import GradientParameters
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.arrays import MODEL, to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.models.perceptrons import Perceptron

Floats = NDArray[np.float64]

GRADIENT = "gradient"
"""Label of the releases."""


class FedSGDParameters(Frozen):
    """Parameters, all public.

    Attributes:
        model: what is trained; by default a linear softmax classifier.
        clip: L2 norm that a record's features are scaled down to; by default one that hardly a record exceeds, since gradients
            are clipped themselves.
        missing: ``skip`` leaves a record with an absent feature out, ``centre`` takes the middle of the bounds.
        centre: whether a noised mean is released first and taken off the features, for models whose first layer is linear.
            With ``moments`` it is the mean that these give, which costs nothing more.
        centre_share: part of the budget that this release takes.
        moments: alignment of the sites' features by their moments in front (FedAlign); None for none.
        outcome: a number, count or time to predict in place of classes, by a model linear or mlp of the schema's own columns.
        class_weights: what a record's clipped gradient is multiplied by: ``balanced``, the frequency of the rarest class over
            that of its own; ``sqrt``, the root of that; ``none``; or a table by class, of which only the proportions count.
            Frequencies are released with the centre, at no cost. By default ``sqrt`` where there is a centre to release:
            clipping takes from rare classes what this gives back (docs/decisions/0054-rare-classes.md).
        steps: of the optimiser, each a release.
        sampling_rate: q, with which each record takes part in a step.
        gradient_clip: C, L2 norm that a record's gradient is scaled down to.
        optimiser: of the coordinator.
        decay: L2 penalty on all values, decay / 2 |theta|^2.
        travel: D, how far the noise of all steps together would carry the model by itself; with noise it sets the learning
            rate of ``sgd`` where none is stated: eta = D / (sigma sqrt(T P)) on a step's sum, for noise of standard deviation
            sigma in each of P values and T steps. Nobody has to know how many records there are.
        average: share of the steps, from the last backwards, whose models' mean is the result; 0 takes the last one.
        records: number of all sites' records that sums are divided by where a learning rate is stated; public, by default what
            the study expects to train on. Without noise sums are divided by how many records there are.
        checkpoint_every: steps after which a model is kept; 0 for none.
        seed: of the first values; it protects nothing.
    """

    model: ModelSpec | None = None
    clip: Real | None = Field(default=None, gt=0, le=1e6)
    missing: Missing = "skip"
    centre: bool | None = None
    centre_share: Real = Field(default=0.1, gt=0, lt=1)
    moments: MomentAlignment | None = None
    outcome: Outcome | None = Field(default=None, exclude_if=lambda stated: stated is None)
    class_weights: Literal["none", "sqrt", "balanced"] | dict[Name, Annotated[Real, Field(gt=0, le=1e6)]] | None = None
    steps: int = Field(default=100, ge=1, le=100_000)
    sampling_rate: Real = Field(default=1.0, gt=0, le=1)
    gradient_clip: Real | None = Field(default=None, ge=1e-9, le=1e6)
    optimiser: OptimiserParameters = OptimiserParameters()
    travel: Real | None = Field(default=None, gt=0, le=1e6)
    decay: Real = Field(default=0.0, ge=0, le=1e6)
    average: Real = Field(default=0.25, ge=0, le=1)
    records: int | None = Field(default=None, ge=1, le=2**40)
    checkpoint_every: int = Field(default=0, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class FedSGD(Method):
    """DP-SGD over the task "gradient"."""

    name = "fedsgd"
    Parameters: ClassVar[type[Frozen]] = FedSGDParameters

    def resolve(self, parameters: Frozen, inputs: Inputs) -> Frozen:
        if not isinstance(parameters, FedSGDParameters):
            return parameters
        if parameters.outcome is None:
            need_label(inputs, "the method fedsgd", ", or name an outcome in [parameters.outcome]")
        outcome, inputs, scores = resolved_outcome(parameters.outcome, inputs, "fedsgd")
        clip = parameters.clip or feature_clip(inputs)
        centre = parameters.centre
        if outcome is not None:
            asked = {
                "moments": parameters.moments is not None,
                "class_weights": parameters.class_weights not in (None, "none"),
                "centre = false": centre is False,
            }
            refuse_for_outcomes(asked, "fedsgd")
        model = parameters.model or default_model(inputs, clip, centred=centre is not False)
        convex = model.name == "linear"
        if centre and model.name not in ("linear", "mlp"):
            raise ConfigurationError(
                "fedsgd's centre is for the models linear and mlp, whose first layer can absorb it.", "Leave it out."
            )
        optimiser, travel = parameters.optimiser, parameters.travel
        if optimiser.learning_rate is not None and travel is not None:
            raise ConfigurationError(
                "fedsgd takes either a learning rate or a travel, which determines it.", "Leave one of them out."
            )
        if outcome is not None and optimiser == OptimiserParameters(momentum=optimiser.momentum):
            travel = (travel or OUTCOME_TRAVEL) if inputs.private else None
        elif optimiser.learning_rate is None and (optimiser.name != "sgd" or not inputs.private):
            if travel is not None:
                raise ConfigurationError(
                    "fedsgd's travel is only for the optimiser sgd in a study with noise.", "Leave it out."
                )
            rate = default_rate(optimiser, convex=convex)
            optimiser = optimiser.model_copy(update={"learning_rate": rate})
        elif optimiser.learning_rate is None:
            travel = travel or default_travel(scores, convex=convex)
        model = resolved_model(model, inputs.width, scores, "fedsgd, parameters.model")
        moments = None if parameters.moments is None else resolve_moments(parameters.moments, inputs, model.inputs)
        centred = model.name in ("linear", "mlp") if centre is None else centre
        filled = {
            "moments": moments,
            "centre": centred,
            "class_weights": resolved_class_weights(
                parameters.class_weights, inputs, counted=centred and moments is None and outcome is None
            ),
            "outcome": outcome,
            "travel": travel,
            "clip": clip,
            "model": model,
            "gradient_clip": parameters.gradient_clip or default_gradient_clip(outcome, convex=convex),
            "optimiser": optimiser,
            "records": parameters.records or training_records(moments, inputs.records * inputs.sites),
        }
        return parameters.model_copy(update=filled)

    def declare(self, parameters: Frozen, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if not isinstance(parameters, FedSGDParameters) or parameters.model is None or parameters.clip is None:
            raise ConfigurationError("The method fedsgd needs its own parameters, with defaults resolved.")
        task = GradientParameters(
            width=None if inputs.encoder is None else inputs.width,
            clip=parameters.clip,
            missing=parameters.missing,
            model=parameters.model,
            gradient_clip=parameters.gradient_clip or 1.0,
            centre=bool(parameters.centre),
            count=not inputs.private,
            class_weights=parameters.class_weights not in (None, "none"),
            outcome=parameters.outcome,
            **aligned_parameters(parameters.moments),
        )
        moments, rate = parameters.moments, float(parameters.sampling_rate)
        own_mean = bool(parameters.centre) and moments is None
        share = float(parameters.centre_share) if own_mean else 0.0
        each = (1.0 - share) / parameters.steps
        source = None if moments is None else LABEL
        steps = TaskPlan(GRADIENT, "gradient", task, releases=parameters.steps, sampling_rate=rate, share=each, source=source)
        if moments is not None:
            wanted = each * moment_share(float(moments.share), parameters.steps, rate)
            return *moment_plans(moments, inputs, parameters.missing, share=wanted), steps
        if not own_mean:
            return (steps,)
        counted = isinstance(parameters.class_weights, str) and parameters.class_weights in RARITY
        return centre_plan(inputs, parameters.missing, parameters.clip, share, classes=counted), steps

    def expectations(self, study: Study, cohort: int, records: int) -> Sequence[Expectation]:
        """The noise of a step's mean gradient, along one direction, against the norm that a record's is clipped to."""
        parameters = FedSGDParameters.model_validate(study.parameters)
        noise = max(released_noise(study, GRADIENT, cohort).values())
        trained = training_records(parameters.moments, records)
        clip, number = float(parameters.gradient_clip or 1.0), max(1.0, float(parameters.sampling_rate) * trained)
        what = "mean clipped gradient of a step, along any one direction"
        basis = "the clip norm, reached if all records' gradients agree"
        return [Expectation(GRADIENT, what, clip, Z95 * noise / number, basis=basis, main=True, forecast=False)]

    def run(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedSGDParameters.model_validate(study.parameters)
        width = study.data.width if study.encoder is None else study.encoder.width
        outcome, scores = parameters.outcome, len(study.data.classes)
        if outcome is not None:
            width, scores = outcome.features(study.data).width, outcome.build(study.data).scores
        architecture = build_architecture(parameters.model or ModelSpec(name="linear"), width, scores)
        model, shapes = architecture.initial(parameters.seed), architecture.shapes()
        private = study.privacy.noise != "none"
        noise = released_noise(study, GRADIENT, study.sites)[MODEL + next(iter(shapes))]
        if parameters.travel is None:
            rule, expected = parameters.optimiser, float(parameters.sampling_rate) * float(parameters.records or 1)
        else:  # the unit of a step's sum is its noise
            rate = parameters.travel / math.sqrt(parameters.steps * architecture.size) * (1.0 - parameters.optimiser.momentum)
            rule, expected = parameters.optimiser.model_copy(update={"learning_rate": rate}), noise
        steps = AgreedStudy(study).task(GRADIENT)
        moments = None if parameters.moments is None else align_moments(federation, parameters.moments)
        members = None if moments is None else moments.cohort
        centre: Floats | None = None
        means: Release | None = None
        if parameters.centre:
            if moments is None:
                means = federation.sum(MEANS)
                centre = released_centre(means, study)
            else:
                centre = aligned_centre(moments, study)
        if outcome is not None and centre is not None and isinstance(architecture, Perceptron):
            begin = beginning(outcome, study.data, centre)
            model["head.weight"] = np.zeros(shapes["head.weight"])
            model["head.bias"] = begin.scores / architecture.layers()[-1].constant
            centre = centre[outcome.places(study.data)]
            if parameters.optimiser.learning_rate is None:
                total = float(means.values["count"].sum()) if means is not None else 1.0
                count = total * float(parameters.sampling_rate) if private else 1.0
                stable = stable_rate(architecture, begin.curvature, spread(outcome.features(study.data), centre), count)
                rate = stable * (1.0 - parameters.optimiser.momentum) * (expected if private else 1.0)
                if rule.learning_rate is not None:
                    rate = min(rate, rule.learning_rate)
                rule = rule.model_copy(update={"learning_rate": rate})
        optimiser = ServerOptimiser(rule, shapes)
        weights = weights_of_classes(parameters.class_weights, study.data.classes, means)
        common = {**({} if centre is None else {CENTRE: centre}), **({} if moments is None else moments.broadcast)}
        if weights is not None:
            common[CLASS_WEIGHTS] = weights
        averaged = math.ceil(parameters.average * parameters.steps)
        kept = LongArrays.of(model, np.float32 if steps.single else np.float64)  # as everyone receives it
        mean, exact = LongArrays(shapes if averaged else {}), LongArrays({} if averaged else shapes)
        del model
        sizes: list[float] = []
        for step in range(1, parameters.steps + 1):
            release = federation.sum(GRADIENT, {**to_broadcast(kept.arrays()), **common}, members=members)
            # A step without some participants is of fewer records.
            divisor = expected * (1.0 if parameters.travel else len(release.cohort) / study.sites)
            if not private:
                divisor = max(1.0, float(release.values["count"][0]))
            due = parameters.checkpoint_every and step % parameters.checkpoint_every == 0 and step < parameters.steps
            if due:
                exact = LongArrays(shapes)
            squares: list[float] = []
            for name, shape in shapes.items():
                total = 0.0
                for part in cut(math.prod(shape)):  # models are large: nothing else here is as long as one
                    before = kept.read(name, part)  # the step is taken from where the gradients are
                    gradient = release.part(MODEL + name, part) / divisor
                    if parameters.decay:
                        gradient += parameters.decay * before
                    total += float(np.sum(gradient**2))
                    after = before - optimiser.change(name, part, gradient)
                    kept.write(name, part, after)
                    if step > parameters.steps - averaged:
                        mean.write(name, part, mean.read(name, part) + after / averaged)
                    if due or (step == parameters.steps and not averaged):
                        exact.write(name, part, after)
                squares.append(total)
            sizes.append(math.sqrt(sum(squares)))
            if due:
                federation.checkpoint({**to_broadcast(exact.arrays()), **common}, {"step": step, "steps": parameters.steps})
        final = mean.arrays() if averaged else exact.arrays()
        summary: dict[str, Any] = {
            "model": architecture.name,
            "values": architecture.size,
            "steps": parameters.steps,
            "averaged": averaged,
            "gradient_norm": _shown(sizes),
            "noise_norm": noise * math.sqrt(architecture.size) / expected,
        }
        if weights is not None:
            summary["class_weights"] = dict(zip(study.data.classes, weights.tolist(), strict=True))
        if moments is not None:
            summary["moments"], summary["epsilon"] = dict(moments.summary), epsilon_parts(study, [GRADIENT])
        head, arrays = network_head(architecture, final, centre)
        if outcome is not None:
            applied = outcome_application(study.data, outcome, missing=parameters.missing, head=head)
            if centre is not None:
                summary[PREDICTION] = predicts(outcome)
                rows: list[dict[str, Any]] = []
                if architecture.name == "linear":
                    rows = list(score_rows(outcome, study.data, (arrays["weights"], arrays["bias"]), centre))
                summary[SCORE] = rows or list(bound_rows(outcome, study.data, architecture, final, centre))
            return Result(self.name, summary, arrays, applied)
        applied = study_application(federation, parameters.missing, moments, head, study.data.classes)
        return Result(self.name, summary, {**study_arrays(federation, moments), **arrays}, applied)


def aligned_centre(moments: MomentReference, study: Study) -> Floats:
    """The mean (d,) of features aligned by their moments, which is that of the reference: of a feature, or of its channel.

    Indicators of categories have no moments, and nothing is taken off them.
    """
    width = study.data.width if study.encoder is None else study.encoder.width
    use = moments.application["moments"]
    columns = columns_of_moments(study.data, None if study.encoder is None else width, use["channels"])
    centre = np.zeros(width)
    mean = moments.moments.mean * float(use["bound"])
    centre[columns] = np.repeat(mean, len(columns) // len(mean))
    return centre


def _shown(sizes: Sequence[float]) -> dict[str, float]:
    """First and last of a series, and its mean over the last tenth."""
    tail = sizes[-max(1, len(sizes) // 10) :]
    return {"first": sizes[0], "last_tenth": math.fsum(tail) / len(tail)}
