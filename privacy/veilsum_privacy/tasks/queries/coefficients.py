"""A fitted model's coefficients in the columns' own units, as rows of a result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer, NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH

if TYPE_CHECKING:
    from veilsum_aggregation.regression import Fit
    from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression


def term_names(question: LinearRegression) -> tuple[str, ...]:
    """``constant``, then each term: a column, with its level if it has one."""
    return ("constant", *(f"{name} {level}".strip() for name, level in question.terms))


class Coefficient(NamedTuple):
    """One coefficient.

    Attributes:
        term: what it is of; ``constant``, or a column with its level.
        per: unit of a numeric term; empty of others.
        answer: with both errors.
        estimate: where it has no interval.
    """

    term: str
    per: str
    answer: Answer
    estimate: float

    @property
    def p_value(self) -> float | None:
        """That it is 0; None of the constant."""
        return None if self.term == "constant" else self.answer.p_value


def coefficients(
    fit: Fit,
    question: LinearRegression,
    factor: float = 1.0,
    shift: float = 0.0,
    per: Mapping[str, float] = MappingProxyType({}),
    infinite: Mapping[str, NotEstimable] = MappingProxyType({}),
    reference: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Coefficient]:
    """The constant, where numbers are 0 and categories at their reference, and the change with each term.

    Args:
        fit: in scaled terms.
        question: whose terms they are.
        factor: one unit of what is fitted, in the outcome's unit.
        shift: the outcome's value where what is fitted is 0.
        per: by numeric term, for a change of how many units its coefficient is; 1 where none is stated.
        infinite: terms that have no finite coefficient, and why (:func:`infinite_terms`).
        reference: by category the level that others are compared with; the first where none is stated.
    """
    weights = [row * factor for row in np.eye(fit.p)]
    names, units = list(term_names(question)), [""]
    for place, (name, _) in enumerate(question.terms, 1):
        units.append("")
        domain = question.columns.domains[name]
        if isinstance(domain, NumberDomain):
            weights[place] = weights[place] / domain.half
            weights[0] = weights[0] - weights[place] * domain.middle
            step = per.get(name, 1.0)
            weights[place] = weights[place] * step
            units[-1] = f"{step:g} {domain.unit}".strip() if step != 1.0 else domain.unit or "1"
    for column, level in reference.items():
        own = [place for place, (name, _) in enumerate(question.terms, 1) if name == column]
        levels = question.columns.level_names(column)
        if level == levels[0]:
            continue
        base, indicators = weights[own[levels.index(level) - 1]], [0.0 * weights[0], *(weights[place] for place in own)]
        others = [(name, indicator - base) for name, indicator in zip(levels, indicators, strict=True) if name != level]
        weights[0] = weights[0] + base
        for place, (name, combined) in zip(own, others, strict=True):
            weights[place], names[place] = combined, f"{column} {name}"
    for place, (name, unit, combined) in enumerate(zip(names, units, weights, strict=True)):
        moved = 0.0 if place else shift
        answer = infinite[name] if name in infinite and fit.drowned is None else fit.combination(combined)
        estimate = float(combined @ fit.coefficients) + moved
        yield Coefficient(name, unit, answer.scaled(1.0, moved), estimate)


class TermSums(NamedTuple):
    """Sums over records of (1, terms).

    Attributes:
        records: of these themselves, (p,).
        events: times the outcome: an event, or a count, (p,).
        std: of the noise in ``events``.
        grain: what rounding changes a sum by at most, for each record; 0 where noise hides it.
    """

    records: Floats
    events: Floats
    std: float
    grain: float

    @property
    def rest(self) -> TermSums:
        """Figure of the records without the event."""
        return self._replace(events=self.records - self.events)


def infinite_terms(
    question: LinearRegression, sums: TermSums, fitted: Floats, what: str, reference: Mapping[str, str] = MappingProxyType({})
) -> dict[str, NotEstimable]:
    """Levels among which nobody has the outcome: estimates of their ratios grow without end, and the reason names them.

    Without noise the first release tells it. With noise such a level is one whose sum of outcomes is within its noise, and of
    which the fit says that fewer than :data:`RULE_OF_THREE` are expected.

    Args:
        sums: of the first release.
        fitted: what the fit expects of its events, (p,).
        what: is said of them, such as "nobody has the event".
        reference: as of :func:`coefficients`.
    """
    found: dict[str, NotEstimable] = {}
    places: dict[str, list[int]] = {}
    for place, (name, level) in enumerate(question.terms, 1):
        if level:
            places.setdefault(name, []).append(place)
    for column, own in places.items():
        levels, indicators = question.columns.level_names(column), np.zeros((len(own) + 1, len(fitted)))
        indicators[0, 0], indicators[0, own] = 1.0, -1.0
        indicators[np.arange(1, len(own) + 1), own] = 1.0
        for level, indicator in zip(levels, indicators, strict=True):
            records, events, expected = (float(indicator @ each) for each in (sums.records, sums.events, fitted))
            none, noise = NO_EVENT + sums.grain * max(records, 0.0), sums.std * float(np.linalg.norm(indicator))
            if sums.std == 0.0 and records <= none:
                continue  # nobody has the level, which is another reason
            if events > max(none, NOISE_FLOOR * noise) or (sums.std > 0.0 and expected > RULE_OF_THREE):
                continue
            few, nobody = (
                records <= max(none, NOISE_FLOOR * noise),
                f"no record has {column} {level}, or too few against the noise",
            )
            among = f"{what} among those with {column} {level}, or nearly, against the noise"
            reason = NotEstimable(nobody if few else among, f"merge {level!r} with another level")
            compared = reference.get(column, levels[0])
            of_reference = ("constant", *(f"{column} {other}" for other in levels if other != compared))
            found |= dict.fromkeys(of_reference if level == compared else (f"{column} {level}",), reason)
    return found


NO_EVENT, RULE_OF_THREE = 0.1, 3.0
"""Weighted events that are none, and how many may be expected where none is seen (Hanley and Lippman-Hand 1983)."""


def score_row(
    fit: Fit, question: LinearRegression, gram: Floats, factor: float = 1.0, shift: float = 0.0
) -> Iterator[dict[str, Any]]:
    """The linear predictor as a derived number, for queries about how it does: text, and bounds three deviations away.

    Args:
        fit, question, factor, shift: as of :func:`coefficients`.
        gram: released moments of (1, terms), (p, p).
    """
    text = ""
    for (name, level), found in zip((("", ""), *question.terms), coefficients(fit, question, factor, shift), strict=True):
        value = f"{abs(found.estimate):.6g}"
        column = name if name.isidentifier() else '"' + name.replace('"', '""') + '"'
        quoted = level.replace("'", "''")
        part = value if not name else f"{value} * ({column} = '{quoted}')" if level else f"{value} * {column}"
        text += f"{' - ' if found.estimate < 0 else ' + ' if text else ''}{part}"
    number = max(float(gram[0, 0]), 1.0)
    mean = gram[0, 1:] / number
    slopes = fit.coefficients[1:] * factor
    variance = float(slopes @ (gram[1:, 1:] / number - np.outer(mean, mean)) @ slopes)
    middle = float(fit.coefficients[0] * factor + slopes @ mean) + shift
    reach = 3.0 * math.sqrt(variance) if variance > 0.0 else float(np.abs(slopes).sum())
    if len(text) <= MAX_LENGTH and reach > 0.0:
        yield {"number": text.strip(), "low": float(f"{middle - reach:.4g}"), "high": float(f"{middle + reach:.4g}")}


def told_of(found: Coefficient) -> dict[str, Any]:
    """What a row says of a coefficient beside its figure."""
    if isinstance(found.answer, NotEstimable):
        return {"p_value": None, "noise_share": None, "without_interval": found.estimate}
    return {"p_value": found.p_value, "noise_share": found.answer.noise_share}
