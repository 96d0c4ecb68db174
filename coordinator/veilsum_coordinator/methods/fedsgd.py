"""The method "fedsgd": distributed DP-SGD, one secure sum a step.

In every step each site draws a Poisson sample of its records, adds up their clipped gradients of the present model and its
share of the noise; the coordinator divides the sum by the public number of records that a sample is expected to have and takes
one step of an optimiser. The steps are those of DP-SGD on all records in one place (Abadi et al. 2016), with noise on the sum
in place of noise at every site. How many steps there are, and so what all of them cost, stands in the study.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.alignment import outcome_application, study_result
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label
from veilsum_coordinator.parts.federation import Federation, Release, released_noise
from veilsum_coordinator.parts.moment_alignment import (
    MomentAlignment,
    MomentReference,
    MomentRounds,
    aligned_parameters,
    epsilon_parts,
    moment_plans,
    moment_share,
    moment_source,
    resolve_moments,
    training_records,
)
from veilsum_coordinator.parts.moment_plans import MEANS, centre_plan, released_centre
from veilsum_coordinator.parts.networks import (
    OUTCOME_TRAVEL,
    checkpoint_due,
    default_gradient_clip,
    default_model,
    default_rate,
    default_travel,
    feature_clip,
    network_head,
    resolved_class_weights,
    resolved_model,
    stable_rate,
    weights_of_classes,
)
from veilsum_coordinator.parts.outcomes import (
    Beginning,
    beginning,
    check_recalibration,
    recalibrated,
    refuse_for_outcomes,
    resolved_outcome,
    score_summary,
    with_recalibration,
)
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Name, Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS
from veilsum_privacy.tasks.gradient import GradientParameters
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.power_moments import columns_of_moments
from veilsum_privacy.training.arrays import MODEL, to_broadcast
from veilsum_privacy.training.long_arrays import LongArrays
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.server_steps import RARITY, OptimiserParameters, ServerSteps, SteppedModel
from veilsum_privacy.training.sketches import GradientProjection, Read, Sketches

GRADIENT = "gradient"
"""Label of the releases."""


class FedSGDParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        model: what is trained; by default a linear softmax classifier.
        clip: L2 norm that a record's features are scaled down to; by default one that hardly a record exceeds, since gradients
            are clipped themselves.
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
        decay: L2 penalty on all values, decay / 2 |theta|^2.
        travel: D, how far the noise of all steps together would carry the model by itself; with noise it sets the learning
            rate of ``sgd`` where none is stated: eta = D / (sigma sqrt(T P)) on a step's sum, for noise of standard deviation
            sigma in each of P values and T steps. Nobody has to know how many records there are.
        average: share of the steps, from the last backwards, whose models' mean is the result; 0 takes the last one.
        records: number of all sites' records that sums are divided by where a learning rate is stated; public, by default what
            the study expects to train on. Without noise sums are divided by how many records there are.
        checkpoint_every: steps after which a model is kept; 0 for none.
        seed: of the first values; it protects nothing.
        followed: whether every member takes the steps itself, of the sums that it verified, and refuses any other model. By
            default it does wherever all that is broadcast follows from the released sums in that way, with up to 64 sites
            (docs/decisions/0114-members-take-the-steps.md).
        recalibrate: part of the budget for a logistic regression of the class on the trained model's log odds, by which its
            last layer is changed; of two classes. 0 for none.
        projection: how a record's gradient is projected before it is clipped and summed, so that a step takes fewer bytes; of
            classes. None for gradients as they are (docs/decisions/0122-projected-gradients.md).
    """

    model: ModelSpec | None = None
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
    recalibrate: Real = Field(default=0.0, ge=0, lt=1, exclude_if=lambda part: not part)
    followed: bool | None = Field(default=None, exclude_if=lambda asked: not asked)  # studies signed before do not state it
    projection: GradientProjection | None = Field(default=None, exclude_if=lambda stated: stated is None)

    def server_steps(self) -> ServerSteps:
        """How steps are made of sums of gradients."""
        return ServerSteps(
            optimiser=self.optimiser,
            travel=self.travel,
            records=self.records or 1,
            decay=self.decay,
            steps=self.steps,
            seed=self.seed,
            class_weights=self.class_weights or "none",
        )


class FedSGD(Method[FedSGDParameters]):
    """DP-SGD over the task "gradient"."""

    name = "fedsgd"
    rehearsals = 0

    def resolve(self, parameters: FedSGDParameters, inputs: Inputs) -> FedSGDParameters:
        if parameters.outcome is None:
            need_label(inputs, "the method fedsgd", ", or name an outcome in [parameters.outcome]")
        outcome, inputs, scores = resolved_outcome(parameters.outcome, inputs, "fedsgd")
        if outcome is not None:
            asked = {
                "moments": parameters.moments is not None,
                "class_weights": parameters.class_weights not in (None, "none"),
                "centre = false": parameters.centre is False,
                "projection": parameters.projection is not None,
            }
            refuse_for_outcomes(asked, "fedsgd")
        clip = parameters.clip or feature_clip(inputs)
        model = parameters.model or default_model(inputs, clip, centred=parameters.centre is not False)
        convex, absorbs = model.name == "linear", model.name in ("linear", "mlp")
        if parameters.centre and not absorbs:
            raise ConfigurationError(
                "fedsgd's centre is for the models linear and mlp, whose first layer can absorb it.", "Leave it out."
            )
        optimiser, travel = resolved_descent(parameters, inputs, scores, convex=convex)
        model = resolved_model(model, inputs.width, scores, "fedsgd, parameters.model")
        check_recalibration(parameters.recalibrate, inputs, model, "fedsgd", outcome=outcome is not None)
        moments = None if parameters.moments is None else resolve_moments(parameters.moments, inputs, model.inputs)
        if moments is not None and moments.released != "once":
            raise ConfigurationError(
                "Moments are released anew in each round of fedavg; a step of fedsgd is too short for that.",
                "Leave out parameters.moments.released.",
            )
        centred = absorbs if parameters.centre is None else parameters.centre
        counted = centred and moments is None and outcome is None
        filled = {
            "moments": moments,
            "centre": centred,
            "class_weights": resolved_class_weights(parameters.class_weights, inputs, counted=counted),
            "outcome": outcome,
            "travel": travel,
            "clip": clip,
            "model": model,
            "gradient_clip": parameters.gradient_clip or default_gradient_clip(outcome, convex=convex),
            "optimiser": optimiser,
            "records": parameters.records or training_records(moments, inputs.records * inputs.sites),
            "followed": resolved_following(parameters, inputs),
        }
        return parameters.model_copy(update=filled)

    def declare(self, parameters: FedSGDParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.model is None or parameters.clip is None:
            raise ConfigurationError("The method fedsgd needs the defaults of its parameters resolved.")
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
            steps=parameters.server_steps() if parameters.followed else None,
            projection=parameters.projection,
            **aligned_parameters(parameters.moments),
        )
        moments, rate = parameters.moments, float(parameters.sampling_rate)
        own_mean = bool(parameters.centre) and moments is None
        share = float(parameters.centre_share) if own_mean else 0.0
        each = (1.0 - share) / parameters.steps
        source = moment_source(moments)
        steps = TaskPlan(GRADIENT, "gradient", task, releases=parameters.steps, sampling_rate=rate, share=each, source=source)
        before = tuple[TaskPlan, ...]()
        if moments is not None:
            wanted = each * moment_share(float(moments.share), parameters.steps, rate)
            before = moment_plans(moments, inputs, parameters.missing, share=wanted)
        elif own_mean:
            counted = isinstance(parameters.class_weights, str) and parameters.class_weights in RARITY
            before = (centre_plan(inputs, parameters.missing, parameters.clip, share, classes=counted),)
        return with_recalibration(float(parameters.recalibrate), (*before, steps), private=inputs.private)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = FedSGDParameters.model_validate(study.parameters)
        architecture, last = trained_architecture(study, parameters), parameters.steps
        before = release_before(federation, parameters)
        task, made = AgreedStudy(study).task(GRADIENT), parameters.server_steps()
        noise = released_noise(study, GRADIENT, study.sites)[MODEL + next(iter(architecture.shapes()))]
        unit = made.unit(noise, float(parameters.sampling_rate))
        rule = step_rule(study, parameters, architecture, before, unit)
        first = first_model(architecture, parameters.seed, before.beginning)
        stepped = SteppedModel(rule, parameters.decay, first, np.float32 if task.single else np.float64)
        model = AveragedModel(stepped, parameters, architecture.shapes())
        sketches = Sketches(architecture.shapes(), parameters.projection)
        for step in range(1, last + 1):
            drawn = sketches.broadcast(parameters.seed, step)
            sent = {**to_broadcast(model.shown()), **before.of_step(step), **drawn}
            release = federation.sum(GRADIENT, sent, members=before.members)
            due = checkpoint_due(parameters.checkpoint_every, step, last)
            if study.privacy.noise == "none":
                divisor = max(1.0, float(release.values["count"][0]))
            else:
                divisor = made.divisor(unit, len(release.cohort), study.sites)
            exact = model.step(sketches.sketch(drawn).expanded(_gradient_of(release)), divisor, keep=due)
            if due:
                federation.checkpoint({**to_broadcast(exact), **before.broadcast}, {"step": step, "steps": last})
        summary: dict[str, Any] = {
            "model": architecture.name,
            "values": architecture.size,
            "steps": last,
            "averaged": model.averaged,
            "gradient_norm": _shown(model.gradients),
            "noise_norm": noise * math.sqrt(architecture.size) / unit,
        }
        if parameters.projection is not None:
            summary["projected"] = sum(map(math.prod, sketches.shapes().values()))
        if before.weights is not None:
            summary["class_weights"] = dict(zip(study.data.classes, before.weights.tolist(), strict=True))
        if before.moments is not None:
            summary["moments"], summary["epsilon"] = dict(before.moments.summary), epsilon_parts(study, [GRADIENT])
        maps = {} if before.moments is None else before.moments.broadcast
        final, told = recalibrated(
            federation, architecture, model.final(), centre=before.centre, broadcast=maps, members=before.members
        )
        summary |= told
        head, arrays = network_head(architecture, final, before.centre)
        if parameters.outcome is not None:
            if before.centre is not None:
                summary |= score_summary(parameters.outcome, study.data, architecture, final, arrays, before.centre)
            applied = outcome_application(study.data, parameters.outcome, missing=parameters.missing, head=head)
            return Result(self.name, summary, arrays, applied)
        return study_result(federation, summary, parameters.missing, head, arrays, study.data.classes, before.moments)


MOST_FOLLOWING = 64
"""Up to how many sites they take the steps themselves where the study says nothing: each opens each sum, which takes a
self-mask of every member off it."""


def resolved_following(parameters: FedSGDParameters, inputs: Inputs) -> bool:
    """Whether members take the steps themselves: by default wherever they can.

    Raises:
        ConfigurationError: it is asked for where they cannot.
    """
    asked = parameters.followed
    hindrances = {
        "a study without noise": not inputs.private,
        "an outcome": parameters.outcome is not None,
        "moments": parameters.moments is not None,
        "recalibrate": bool(parameters.recalibrate),
        "a projection as encoder": isinstance(inputs.encoder, Projection),
    }
    found = [what for what, holds in hindrances.items() if holds]
    if asked and found:
        raise ConfigurationError(
            f"fedsgd's members cannot take the steps themselves with {found[0]}: these need more than sums and steps.",
            "Leave followed out.",
        )
    return not found and inputs.sites <= MOST_FOLLOWING if asked is None else asked


def resolved_descent(
    parameters: FedSGDParameters, inputs: Inputs, scores: int, *, convex: bool
) -> tuple[OptimiserParameters, float | None]:
    """The optimiser, with a learning rate unless something else sets it; and the travel where that does.

    Of plain descent on an outcome the released means set it, and with noise the travel as well.

    Raises:
        ConfigurationError: a travel beside a learning rate, or where there is nothing that it could set.
    """
    optimiser, travel = parameters.optimiser, parameters.travel
    if optimiser.learning_rate is not None:
        if travel is not None:
            raise ConfigurationError(
                "fedsgd takes either a learning rate or a travel, which determines it.", "Leave one of them out."
            )
        return optimiser, None
    if parameters.outcome is not None and optimiser == OptimiserParameters(momentum=optimiser.momentum):
        return optimiser, (travel or OUTCOME_TRAVEL) if inputs.private else None
    if optimiser.name == "sgd" and inputs.private:
        return optimiser, travel or default_travel(scores, convex=convex)
    if travel is not None:
        raise ConfigurationError("fedsgd's travel is only for the optimiser sgd in a study with noise.", "Leave it out.")
    return optimiser.model_copy(update={"learning_rate": default_rate(optimiser, convex=convex)}), None


def trained_architecture(study: Study, parameters: FedSGDParameters) -> Architecture:
    """What is trained, of the study's features, or of those that do not belong to the outcome."""
    spec, outcome = parameters.model or ModelSpec(name="linear"), parameters.outcome
    if outcome is None:
        return build_architecture(spec, study.width, len(study.data.classes))
    return build_architecture(spec, outcome.features(study.data).width, outcome.build(study.data).scores)


@dataclass(frozen=True)
class ReleasedBefore:
    """What is released before the first step, and what follows from it.

    Attributes:
        moments: that features are aligned by; None for none.
        centre: (d,) what is taken off the features that the model sees; None for none.
        weights: (K,) of classes; None where all count alike.
        beginning: where training on an outcome begins; None for classes.
        records: of all sites by the released means; 0 without these.
        aligned: what has the moments, from step to step.
    """

    moments: MomentReference | None = None
    centre: Floats | None = None
    weights: Floats | None = None
    beginning: Beginning | None = None
    records: float = 0.0
    aligned: MomentRounds | None = None

    def of_step(self, number: int) -> dict[str, Floats]:
        """What a step, counted from 1, broadcasts beside the model."""
        return self.broadcast if self.aligned is None else {**self.broadcast, **self.aligned.broadcast(number)}

    @property
    def broadcast(self) -> dict[str, Floats]:
        """What every step broadcasts beside the model, of which nothing is drawn."""
        found = {} if self.centre is None else {CENTRE: self.centre}
        found |= {} if self.moments is None else self.moments.broadcast
        return found if self.weights is None else {**found, CLASS_WEIGHTS: self.weights}

    @property
    def members(self) -> tuple[str, ...] | None:
        """Who can take part in a step; None for everyone."""
        return None if self.moments is None else self.moments.cohort


def release_before(federation: Federation, parameters: FedSGDParameters) -> ReleasedBefore:
    """Run the rounds that come before the steps: of moments, or else of means where a centre is asked for."""
    study, outcome, asked = federation.study, parameters.outcome, parameters.class_weights
    if parameters.moments is not None or not parameters.centre:
        aligned = None if parameters.moments is None else MomentRounds(federation, parameters.moments, parameters.seed)
        moments = None if aligned is None else aligned.now
        centre = aligned_centre(moments, study) if parameters.centre and moments is not None else None
        return ReleasedBefore(moments, centre, weights_of_classes(asked, study.data.classes, None), aligned=aligned)
    means = federation.sum(MEANS)
    centre, weights = released_centre(means, study), weights_of_classes(asked, study.data.classes, means)
    begin = None if outcome is None else beginning(outcome, study.data, centre)
    own = centre if begin is None else begin.centre
    return ReleasedBefore(None, own, weights, begin, float(means.values["count"].sum()))


def step_rule(
    study: Study, parameters: FedSGDParameters, architecture: Architecture, before: ReleasedBefore, unit: float
) -> OptimiserParameters:
    """The optimiser, with a learning rate for sums divided by this unit."""
    sampled, private = float(parameters.sampling_rate), study.privacy.noise != "none"
    optimiser, begin, made = parameters.optimiser, before.beginning, parameters.server_steps()
    rate = made.rate(architecture.size)
    if begin is not None and optimiser.learning_rate is None and isinstance(architecture, Perceptron):
        stable = stable_rate(architecture, begin.curvature, begin.spread, before.records * sampled if private else 1.0)
        stable = stable * (1.0 - optimiser.momentum) * (unit if private else 1.0)
        rate = stable if rate is None else min(rate, stable)
    return made.with_rate(rate)


def first_model(architecture: Architecture, seed: int, begin: Beginning | None) -> dict[str, Floats]:
    """First values by name; of an outcome those of the best constant prediction."""
    model = architecture.initial(seed)
    if begin is not None and isinstance(architecture, Perceptron):
        model["head.weight"] = np.zeros(architecture.shapes()["head.weight"])
        model["head.bias"] = begin.scores / architecture.layers()[-1].constant
    return model


class AveragedModel:
    """The model from step to step, and the mean of its last ones.

    Models are large: everything goes part by part, and nothing here is as long as one.

    Args:
        model: before the first step.
        shapes: of the model's arrays, by name.

    Attributes:
        averaged: how many steps, the last ones, the result is the mean of; 0 stands for the last one as it is.
        gradients: L2 norm of each step's.
    """

    def __init__(self, model: SteppedModel, parameters: FedSGDParameters, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.averaged = math.ceil(parameters.average * parameters.steps)
        self.gradients: list[float] = []
        self._model, self._steps, self._shapes = model, parameters.steps, dict(shapes)
        self._mean = LongArrays(shapes)

    def shown(self) -> dict[str, NDArray[Any]]:
        """The model as everyone receives it, by name."""
        return self._model.shown()

    def final(self) -> dict[str, Floats]:
        """The result after the last step, by name."""
        return self._mean.arrays()

    def step(self, read: Read, divisor: float, *, keep: bool) -> dict[str, Floats]:
        """Take one step.

        Args:
            read: gives some values of an array of the sum of gradients.
            keep: whether the model is wanted as it is then, before it is rounded.

        Returns:
            That model by name; nothing if it is not wanted.
        """
        number, averaged = len(self.gradients) + 1, max(1, self.averaged)
        exact, squares = LongArrays(self._shapes if keep else {}), dict.fromkeys(self._shapes, 0.0)
        for name, part, gradient, after in self._model.step(read, divisor):
            squares[name] += float(np.sum(gradient**2))
            if number > self._steps - averaged:
                self._mean.write(name, part, self._mean.read(name, part) + after / averaged)
            if keep:
                exact.write(name, part, after)
        self.gradients.append(math.sqrt(sum(squares.values())))
        return exact.arrays()


def aligned_centre(moments: MomentReference, study: Study) -> Floats:
    """The mean (d,) of features aligned by their moments, which is that of the reference: of a feature, or of its channel.

    Indicators of categories have no moments, and nothing is taken off them.
    """
    use = moments.application["moments"]
    columns = columns_of_moments(study.data, None if study.encoder is None else study.width, use["channels"])
    centre = np.zeros(study.width)
    mean = moments.moments.mean * float(use["bound"])
    centre[columns] = np.repeat(mean, len(columns) // len(mean))
    return centre


def _gradient_of(release: Release) -> Read:
    return lambda name, part: release.part(MODEL + name, part)


def _shown(sizes: Sequence[float]) -> dict[str, float]:
    """First and last of a series, and its mean over the last tenth."""
    tail = sizes[-max(1, len(sizes) // 10) :]
    return {"first": sizes[0], "last_tenth": math.fsum(tail) / len(tail)}
