"""Training on numbers, counts and times: what a method may take of the schema, where it begins, what its result predicts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_coordinator.parts.base import Inputs
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.outcomes import HUBER_BEND, Outcome
from veilsum_privacy.tasks.queries.conditions import MAX_LENGTH

Floats = NDArray[np.float64]

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
    try:
        outcome.check(inputs.schema)
    except Misuse as error:
        raise ConfigurationError(error.message, error.advice) from error
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


class Beginning(NamedTuple):
    """Where training begins, by released means.

    Attributes:
        scores: (k,) of the best constant prediction.
        curvature: of the loss there, an average over records.
    """

    scores: Floats
    curvature: float


def beginning(outcome: Outcome, schema: DatasetSchema, means: Floats) -> Beginning:
    """The constant prediction that released means (d,) of all columns suggest, the outcome's among them."""
    number, first = outcome.number(schema), 0
    scaled, events = 0.0, 0.0
    for column in schema.columns:
        own = means[first : first + column.width]
        if column.name == outcome.column:
            scaled = float(own[0])
        elif column.name == outcome.event and not isinstance(column, NumberColumn):
            shares = np.clip(own, 0.0, 1.0)
            counted = [share for share, level in zip(shares, column.categories, strict=True) if level not in outcome.censored]
            events = float(np.sum(counted)) / max(float(shares.sum()), 1e-3)
        first += column.width
    half = number.high / 2.0 - number.low / 2.0
    value = max(number.low + (scaled + 1.0) * half, 0.0)
    loss = outcome.build(schema)
    if outcome.loss == "hazard":  # one hazard for all periods, as nothing more is known
        at_risk = max(value / number.high, 1e-3)
        expected = np.repeat([at_risk, max(events, 1e-3)], loss.scores)
    else:
        expected = np.array([scaled if outcome.loss != "poisson" else max(value / half, 1e-3)])
    return Beginning(loss.constant(expected), loss.curvature(expected))


def spread(schema: DatasetSchema, centre: Floats) -> float:
    """Squared norm that scaled features have on average once their means (d,) are off, at most."""
    found, first = 0.0, 0
    for column in schema.columns:
        own = centre[first : first + column.width]
        number = isinstance(column, NumberColumn)
        found += float(
            np.sum(np.maximum(1.0 - own**2, 0.0) if number else np.clip(own, 0.0, 1.0) * (1.0 - np.clip(own, 0.0, 1.0)))
        )
        first += column.width
    return found


def score_rows(
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
    middle, variance, first, terms = float(slopes @ centre) + constant, 0.0, 0, list[tuple[float, str]]()
    for column in outcome.features(schema).columns:
        quoted = column.name if column.name.isidentifier() else '"' + column.name.replace('"', '""') + '"'
        place = slice(first, first + column.width)
        if isinstance(column, NumberColumn):
            radius = column.high / 2.0 - column.low / 2.0
            terms.append((float(slopes[first]) / radius, quoted))
            constant -= float(slopes[first]) * (column.low / radius + 1.0)
            variance += float(slopes[first]) ** 2 * max(1.0 - float(centre[first]) ** 2, 0.0) / 3.0
        else:
            shares, own = np.clip(centre[place], 0.0, 1.0), slopes[place]
            levels = [level.replace("'", "''") for level in column.categories]
            terms += [(float(slope), f"({quoted} = '{level}')") for slope, level in zip(own, levels, strict=True)]
            variance += float(own**2 @ (shares * (1.0 - shares)))
        first += column.width
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
