"""Training on numbers, counts and times: what a method may take of the schema, where it begins, what its result predicts.

Recalibrating a trained model of two classes: a logistic regression of the class on the model's own log odds (Cox 1958).

The first of three releases is at the coefficients 0, where score and information are sums and moments of the log odds, as far
as the others need them; each of these is a Newton step in coordinates that it whitened (:mod:`veilsum_aggregation.newton`).
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from veilsum_aggregation import newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer, NotEstimable
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.newton import NewtonFit, NewtonRelease
from veilsum_aggregation.normal_odds import of_normal_odds
from veilsum_aggregation.regression import Fit, UntoldFit
from veilsum_coordinator.parts.base import FORMULA_ERRORS, Inputs, TaskPlan, is_of_formulas, unforeseen
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.calibration_step import CalibrationStepParameters
from veilsum_privacy.tasks.designs import LARGEST_ENTRY
from veilsum_privacy.tasks.gradient import GradientParameters
from veilsum_privacy.tasks.local_training import LocalTrainingParameters
from veilsum_privacy.tasks.newton_step import POINT, WHITEN
from veilsum_privacy.tasks.outcomes import HUBER_BEND, Outcome
from veilsum_privacy.tasks.parameters import Alignment
from veilsum_privacy.tasks.queries.coefficients import NO_EVENT
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec
from veilsum_privacy.training.models.perceptrons import LinearOptions, Perceptron
from veilsum_privacy.training.models.trees import BASE, Trees
from veilsum_privacy.training.predict import scores

SCORE, PREDICTION = "score", "prediction"
"""Names in a result of a predictor's formula of columns, and of what it predicts."""

PREDICTS = {"squared": "number", "huber": "number", "poisson": "rate", "hazard": "hazard"}
"""What a prediction is of, as evaluations call it, by loss."""


def resolved_outcome(outcome: Outcome | None, inputs: Inputs, method: str) -> tuple[Outcome | None, Inputs, int]:
    """The outcome with nothing left open, the inputs as its model sees them, and how many scores the model gives.

    Args:
        outcome: None for classes.

    Raises:
        ConfigurationError: schema or encoder do not suit it.
    """
    if outcome is None:
        return None, inputs, len(inputs.classes)
    if inputs.encoder is not None:
        raise ConfigurationError(f"{method} predicts an outcome from the schema's own columns.", "Leave out [encoder].")
    with told_as(ConfigurationError, Misuse):
        outcome.check(inputs.schema)
    if outcome.loss == "huber" and outcome.bend is None:
        number = outcome.number(inputs.schema)
        outcome = outcome.model_copy(update={"bend": HUBER_BEND * (number.high / 2.0 - number.low / 2.0)})
    return outcome, replace(inputs, schema=outcome.features(inputs.schema)), outcome.build(inputs.schema).scores


def refuse_for_outcomes(asked: dict[str, bool], method: str) -> None:
    """Insist that nothing was asked for that outcomes have not.

    Args:
        asked: by its name in the study's file, whether it was.

    Raises:
        ConfigurationError: it was.
    """
    if wrong := [name for name, stated in asked.items() if stated]:
        raise ConfigurationError(f"{method} of an outcome has no {wrong[0]}.", f"Leave out {' and '.join(wrong)}.")


MADE_UP = 4096
"""Records by which the bounds of a model's predictions are found."""


class Beginning(NamedTuple):
    """Where training begins, by released means.

    Attributes:
        scores: (k,) of the best constant prediction.
        curvature: of the loss there, an average over records.
        centre: (d,) means of the features, without the outcome's columns.
        spread: squared norm that scaled features have on average once these are off, at most.
    """

    scores: Floats
    curvature: float
    centre: Floats
    spread: float


def beginning(outcome: Outcome, schema: DatasetSchema, means: Floats) -> Beginning:
    """The constant prediction that released means (d,) of all columns suggest, the outcome's among them."""
    number, scaled, events = outcome.number(schema), 0.0, 0.0
    for column, place in schema.places():
        own = means[place]
        if column.name == outcome.column:
            scaled = float(own[0])
        elif column.name == outcome.event and not isinstance(column, NumberColumn):
            shares = np.clip(own, 0.0, 1.0)
            counted = [share for share, level in zip(shares, column.categories, strict=True) if level not in outcome.censored]
            events = float(np.sum(counted)) / max(float(shares.sum()), 1e-3)
    half = number.high / 2.0 - number.low / 2.0
    value = max(number.low + (scaled + 1.0) * half, 0.0)
    loss = outcome.build(schema)
    if outcome.loss == "hazard":  # one hazard for all periods, as nothing more is known
        at_risk = max(value / number.high, 1e-3)
        expected = np.repeat([at_risk, max(events, 1e-3)], loss.scores)
    else:
        expected = np.array([scaled if outcome.loss != "poisson" else max(value / half, 1e-3)])
    centre = means[outcome.places(schema)]
    return Beginning(loss.constant(expected), loss.curvature(expected), centre, _spread(outcome.features(schema), centre))


def _spread(schema: DatasetSchema, centre: Floats) -> float:
    found = 0.0
    for column, place in schema.places():
        own = centre[place]
        number = isinstance(column, NumberColumn)
        found += float(
            np.sum(np.maximum(1.0 - own**2, 0.0) if number else np.clip(own, 0.0, 1.0) * (1.0 - np.clip(own, 0.0, 1.0)))
        )
    return found


def _score_rows(
    outcome: Outcome, schema: DatasetSchema, head: tuple[Floats, Floats], centre: Floats
) -> Iterator[dict[str, Any]]:
    """A linear model's prediction as a derived number with bounds, for federated evaluations; none of more scores than one.

    The number itself, the logarithm of the mean count, or that of the hazard. Bounds lie three standard deviations about the
    mean, those of numbers spread evenly and of indicators by their frequency.

    Args:
        schema: of the study.
        head: weights (k, d) and bias (k,) on scaled features.
        centre: (d,) released means of the features.
    """
    weights, bias = head
    if len(weights) != 1:
        return
    number = outcome.number(schema)
    half = number.high / 2.0 - number.low / 2.0
    factor, shift = (half, number.low + half) if outcome.loss in ("squared", "huber") else (1.0, 0.0)
    shift += math.log(half) if outcome.loss == "poisson" else 0.0
    slopes, constant = weights[0] * factor, float(bias[0]) * factor + shift
    middle, variance, terms = float(slopes @ centre) + constant, 0.0, list[tuple[float, str]]()
    for column, place in outcome.features(schema).places():
        quoted = column.name if column.name.isidentifier() else '"' + column.name.replace('"', '""') + '"'
        if isinstance(column, NumberColumn):
            radius, slope = column.high / 2.0 - column.low / 2.0, float(slopes[place.start])
            terms.append((slope / radius, quoted))
            constant -= slope * (column.low / radius + 1.0)
            variance += slope**2 * max(1.0 - float(centre[place.start]) ** 2, 0.0) / 3.0
        else:
            shares, own = np.clip(centre[place], 0.0, 1.0), slopes[place]
            levels = [level.replace("'", "''") for level in column.categories]
            terms += [(float(each), f"({quoted} = '{level}')") for each, level in zip(own, levels, strict=True)]
            variance += float(own**2 @ (shares * (1.0 - shares)))
    text = f"{constant:.6g}" + "".join(f" {'-' if slope < 0 else '+'} {abs(slope):.6g} * {what}" for slope, what in terms)
    reach = 3.0 * math.sqrt(variance)
    if len(text) <= MAX_LENGTH and reach > 0.0:
        yield {"number": text, "low": float(f"{middle - reach:.4g}"), "high": float(f"{middle + reach:.4g}")}


def predicts(outcome: Outcome) -> dict[str, Any]:
    """What the score predicts, all of a :class:`.predictions.Prediction` but the score."""
    about: dict[str, Any] = {"predicts": PREDICTS[outcome.loss], "outcome": outcome.column}
    if outcome.event is not None:
        about |= {"event": outcome.event, **({"censored": list(outcome.censored)} if outcome.censored else {})}
    return about


def predictor_bounds(
    outcome: Outcome,
    schema: DatasetSchema,
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    *,
    most: float | None = None,
    means: Floats | None = None,
    centred: bool = False,
) -> tuple[float, float]:
    """Bounds of what a released model predicts: three standard deviations about its mean, for made-up records.

    Their features are independent: numbers have a beta distribution with the released mean, even where that is the middle, and
    categories their released frequencies. Of trees the mean is what every sum of leaves begins with, about that of the
    records that they were made of. No record has a part in it.

    Args:
        outcome: what is predicted.
        schema: of the study.
        architecture, arrays: of the model.
        most: of counts, what larger predictions are taken as.
        means: (d,) released means of the features; None where none are known.
        centred: whether the model is one of features less these means.

    Raises:
        Misuse: the model predicts the same for all of them.
    """
    from veilsum_privacy.training.predict import scores

    rng, columns = np.random.default_rng(0), list[Floats]()
    for column, place in outcome.features(schema).places():
        own = None if means is None else means[place]
        if isinstance(column, NumberColumn):
            mean = 0.0 if own is None else min(max(float(own[0]), -0.99), 0.99)
            columns.append(2.0 * rng.beta(1.0 + mean, 1.0 - mean, (MADE_UP, 1)) - 1.0)
        else:
            shares = np.ones(column.width) if own is None else np.clip(own, 1e-3, 1.0)
            level = rng.choice(column.width, MADE_UP, p=shares / shares.sum())
            columns.append((level[:, None] == np.arange(column.width)).astype(np.float64))
    x = np.hstack(columns)
    if centred and means is not None:
        x = x - means
    found = outcome.predictor(scores(architecture, arrays, x), schema, most)
    middle, reach = float(found.mean()), 3.0 * float(found.std())
    if isinstance(architecture, Trees):
        middle = float(outcome.predictor(arrays[BASE][None], schema, most)[0])
    low, high = float(f"{middle - reach:.4g}"), float(f"{middle + reach:.4g}")
    if outcome.loss in ("squared", "huber"):
        number = outcome.number(schema)
        low, high = max(low, number.low), min(high, number.high)
    if not (math.isfinite(low) and low < high):
        raise Misuse("The model predicts the same for every record.", "Train it on more records, or with more epsilon.")
    return low, high


def score_summary(
    outcome: Outcome,
    schema: DatasetSchema,
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    head: Mapping[str, Floats],
    centre: Floats,
) -> dict[str, Any]:
    """What a result says of its model's prediction: what it is of; and as a row its formula, or bounds where there is none.

    A model that predicts the same for every record has no row.

    Args:
        outcome, schema: of the study.
        architecture, arrays: of the model, on features less the centre.
        head: ``weights`` and ``bias`` of a linear model on features as they are.
        centre: (d,) released means of the features.
    """
    linear = architecture.name == "linear"
    rows = list(_score_rows(outcome, schema, (head["weights"], head["bias"]), centre)) if linear else []
    if not rows:
        with suppress(Misuse):
            low, high = predictor_bounds(outcome, schema, architecture, arrays, means=centre, centred=True)
            rows = [{"low": low, "high": high}]
    return {PREDICTION: predicts(outcome), SCORE: rows}


ROUNDS = ("recalibration-1", "recalibration-2", "recalibration-3")
"""Labels of the releases."""

SHARES = (0.25, 0.25, 0.50)
"""Shares of the option's part of the budget."""

LENGTH, UNSHORTENED, FREE_INFORMATION = newton.REACH * math.sqrt(2.0), 1e3, 0.83
"""C with noise and without, and kappa, as of a logistic regression of one term."""

UNCLIPPED = 1e6
"""Features are scored as they are when the model is applied, however long they are."""

DRAWN, SPREAD = 200, 1.0 / 3.0
"""Typical records whose log odds set the scale of the first release, and standard deviation of their numbers in [-1, 1]."""

NAMES = ("calibration intercept", "calibration slope")


def check_recalibration(asked: float, inputs: Inputs, model: ModelSpec, method: str, *, outcome: bool) -> None:
    """Insist that a model can be recalibrated, if it is asked for.

    Raises:
        ConfigurationError: it cannot; the message says why.
    """
    if not asked:
        return
    if outcome or len(inputs.classes) != 2:
        found = "an outcome" if outcome else f"{len(inputs.classes)} classes"
        raise ConfigurationError(
            f"{method} recalibrates the probability of one of two classes; this model is of {found}.",
            "Leave out recalibrate, or name two classes in [label].",
        )
    if model.name == "linear" and LinearOptions.model_validate(model.options).bias == 0.0:
        raise ConfigurationError(f"{method} recalibrates a model's bias, and this model has none.", "State a bias above 0.")


def with_recalibration(asked: float, plans: tuple[TaskPlan, ...], *, private: bool) -> tuple[TaskPlan, ...]:
    """A method's releases, and those of the recalibration after them where it is asked for.

    Args:
        asked: part of the budget that it takes.
        plans: the training the last one; sampled steps count as of :func:`.moment_share`.
        private: whether the study has noise.
    """
    training = plans[-1].parameters
    if not asked or not isinstance(training, GradientParameters | LocalTrainingParameters):
        return plans
    step = CalibrationStepParameters(
        width=training.width,
        alignment=_own_map(training.alignment),
        clip=UNCLIPPED,
        missing=training.missing,
        model=training.model,
        length=LENGTH if private else UNSHORTENED,
        information_share=FREE_INFORMATION,
    )
    taken = sum(plan.share * plan.steps * plan.sampling_rate**2 for plan in plans if not plan.derived)
    parts = [taken * asked / (1.0 - asked) * part for part in SHARES]
    releases = zip(ROUNDS, parts, strict=True)
    return *plans, *(
        TaskPlan(label, "calibration-step", step, share=part, source=plans[-1].source) for label, part in releases
    )


def _own_map(alignment: Alignment | None) -> Alignment | None:
    """How a model is applied that was trained so: by the map of a record's own site."""
    if alignment is None or alignment.moments is None or not alignment.moments.drawn:
        return alignment
    return alignment.model_copy(update={"moments": alignment.moments.model_copy(update={"drawn": False})})


class Recalibrated(NamedTuple):
    """A model after its recalibration.

    Attributes:
        arrays: by name; as they were where nothing can be told.
        summary: what the result says of it; nothing where it was not asked for.
    """

    arrays: Mapping[str, Floats]
    summary: Mapping[str, Any]


def recalibrated(
    federation: Federation,
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    *,
    centre: Floats | None = None,
    broadcast: Mapping[str, Floats] | None = None,
    members: Collection[str] | None = None,
) -> Recalibrated:
    """Run the releases, if the study has them, and give the log odds s of the model the intercept a and slope b: a + b s.

    Args:
        federation: of the study.
        architecture: of the model.
        arrays: of the model, by name.
        centre: (d,) what training takes off the features.
        broadcast: what is broadcast beside the model.
        members: who can take part; None for all.
    """
    study = federation.study
    if all(task.label != ROUNDS[0] for task in study.tasks):
        return Recalibrated(arrays, {})
    sent = {**to_broadcast(_without_centre(architecture, arrays, centre)), **(broadcast or {})}
    try:
        fit = _fitted(federation, sent, _first_terms(study, architecture, arrays, centre), members)
    except FORMULA_ERRORS as error:  # the trained model is not lost with it
        if not is_of_formulas(federation, error):
            raise
        fit = UntoldFit(unforeseen(error, "recalibration"), 2)
    answers = [fit.combination(row) for row in np.eye(2)]
    told: dict[str, Any] = {name: answer.to_json() for name, answer in zip(NAMES, answers, strict=True)}
    why = _unfit(answers)
    told["applied"] = why is None
    if why is not None:
        return Recalibrated(arrays, {"recalibration": {**told, "note": f"{why}; the model stays as it was"}})
    intercept, slope = fit.coefficients
    return Recalibrated(_changed(architecture, arrays, float(intercept), float(slope)), {"recalibration": told})


def _unfit(answers: list[Answer]) -> str | None:
    """Why a recalibration is not applied; None where it is."""
    for answer in answers:
        if isinstance(answer, NotEstimable):
            return f"not estimable: {answer.reason}"
        if not math.isfinite(answer.value):
            return "not estimable: the released sums give no number"
    slope = answers[1]
    return "the slope is not above 0" if not isinstance(slope, NotEstimable) and slope.value <= 0.0 else None


def _fitted(federation: Federation, sent: Mapping[str, Floats], start: Floats, members: Collection[str] | None) -> Fit:
    """The logistic regression; the first release is in the coordinates of ``start`` (2, 2)."""
    length = float(CalibrationStepParameters.model_validate(federation.study.task(ROUNDS[0]).parameters).length)
    release = federation.sum(ROUNDS[0], {**sent, WHITEN: start, POINT: np.zeros(2)}, members=members)
    first = _told(release, np.zeros(2))
    gram, std = 4.0 * first.information, 4.0 * first.information_std
    events = float(first.score[0] + gram[0, 0] / 2.0)
    for number, what in ((events, "has"), (float(gram[0, 0]) - events, "lacks")):
        if std == 0.0 and number <= NO_EVENT:  # noise leaves it to the fit to say so
            return UntoldFit(NotEstimable(f"no record {what} the second class", "more records"), 2)
    own = newton.whitening(gram, std)
    whiten, released = np.asarray(start @ own), list[NewtonRelease]()
    if own.shape[1] < 2 or np.abs(whiten).max() > LARGEST_ENTRY:
        return UntoldFit(
            NotEstimable("the model says nearly the same of all records", "train it longer, or with less noise"), 2
        )
    point = np.asarray(np.linalg.inv(own) @ of_normal_odds(gram, first.score, length))
    for label in ROUNDS[1:]:
        release = federation.sum(label, {**sent, WHITEN: whiten, POINT: point}, members=release.cohort)
        released.append(_told(release, point))
        fit = NewtonFit(whiten, tuple(released), NAMES)
        point = fit.point
    return fit


def _told(release: Release, at: Floats) -> NewtonRelease:
    values, stds = release.values, release.noise_std
    return NewtonRelease(at, values["score"], symmetric(values["diagonal"], values["cross"]), stds["score"], stds["diagonal"])


def _first_terms(study: Study, architecture: Architecture, arrays: Mapping[str, Floats], centre: Floats | None) -> Floats:
    """(2, 2), which turns (1, s) into 1 and s in units of its standard deviation among typical records, from their mean on."""
    rng, middle = np.random.default_rng(0), np.zeros(study.width) if centre is None else centre
    x = middle + rng.normal(0.0, SPREAD, (DRAWN, study.width))
    if study.encoder is None:
        x = np.clip(x, -1.0, 1.0)
        for column, at in study.data.places():
            if not isinstance(column, NumberColumn):
                shares = np.maximum(middle[at], 0.0) + 1e-3
                x[:, at] = np.eye(len(shares))[rng.choice(len(shares), DRAWN, p=shares / shares.sum())]
    found = scores(architecture, _without_centre(architecture, arrays, centre), x)
    odds = np.clip(found[:, 1] - found[:, 0], -LARGEST_ENTRY, LARGEST_ENTRY)
    mean = float(odds.mean())
    spread = max(float(odds.std()), 1e-3, 1e-3 * abs(mean))
    return np.array([[1.0, -mean / spread], [0.0, 1.0 / spread]])


def _without_centre(architecture: Architecture, arrays: Mapping[str, Floats], centre: Floats | None) -> Mapping[str, Floats]:
    """A model's arrays for features that no centre (d,) was taken off: the first bias of a perceptron takes that up."""
    if centre is None or not isinstance(architecture, Perceptron):
        return arrays
    first = architecture.layers()[0]
    shift = architecture.scale * arrays[first.weight] @ centre / first.constant
    return {**arrays, first.bias: arrays[first.bias] - shift}


def _changed(architecture: Architecture, arrays: Mapping[str, Floats], intercept: float, slope: float) -> dict[str, Floats]:
    """The model with its last layer changed, so that its log odds s are a + b s."""
    last = architecture.linear_layers()[-1]
    constant = architecture.layers()[-1].constant if isinstance(architecture, Perceptron) else 1.0
    weight, bias = f"{last}.weight", f"{last}.bias"
    moved = slope * arrays[bias] + intercept / constant * np.array([-0.5, 0.5])
    return {**arrays, weight: slope * arrays[weight], bias: moved}
