"""Training on numbers, counts and times: what a method may take of the schema, where it begins, what its result predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.outcomes import HUBER_BEND, Outcome
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH
from veilsum_privacy.training.models import Architecture
from veilsum_privacy.training.models.trees import BASE, Trees

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
