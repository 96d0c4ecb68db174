"""How good a result is on the test records of all domains together: ranking and calibration, of classes and of outcomes.

Nothing here is part of a study. Figures are exact; those of a federated evaluation have noise and intervals.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from veilsum_aggregation.heads import LinearHead
from veilsum_deploy.simulation.deal import Deal
from veilsum_deploy.simulation.scores import Kept, labelled, source_of
from veilsum_participant.applying.measurement import headline, outcome_headline
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.recipe import OutcomeForm
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Floats, Integers, Records
from veilsum_privacy.tasks.outcomes import Outcome

NAMES = {
    "auc": "area under the ROC curve",
    "r_squared": "R squared",
    "root_mean_squared_error": "root mean squared error",
    "deviance_explained": "deviance explained",
    "concordance": "concordance",
    "mean_predicted": "mean predicted",
    "observed": "observed",
    "accuracy": "accuracy",
    "accuracy_of_constant_guess": "accuracy of the constant guess",
}
"""Figures in the order in which people read them."""


LEADING = ("auc", "r_squared", "deviance_explained", "concordance")
"""The figures that come first, each of its kind of prediction."""

SHARES = frozenset(NAMES) - {"root_mean_squared_error", "mean_predicted", "observed"}
"""Figures that are shown in points; the mean predicted and observed too where classes are predicted."""


def without_accuracy(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures beside accuracy, which is told by domain."""
    return {name: value for name, value in figures.items() if name != "accuracy"}


def mean_figures(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over those that have it."""
    told = {name: [figures[name] for figures in each if name in figures] for name in NAMES}
    return {name: statistics.fmean(values) for name, values in told.items() if values}


def of_head(head: LinearHead | None, records: Records, schema: DatasetSchema) -> dict[str, float]:
    """Figures of a linear head on labelled records; none without a head."""
    if head is None or records.labels is None:
        return {}
    return headline(head.scores(records.features), records.labels, schema.classes, head.classes)


def held_out(
    result: Result, deal: Deal, schema: DatasetSchema, kept: Kept | None, program: Callable[[Floats], Floats] | None = None
) -> dict[str, float] | None:
    """Figures by their names in :data:`NAMES`; None where the result predicts nothing, or what it needs is out of reach.

    Args:
        result, deal, schema, kept, program: as of :func:`.scores.domain_accuracies`.
    """
    if not deal.tests or not result.application or "not_estimable" in result.summary:
        return None
    source = source_of(result)
    if source is not None and kept is None:
        return None
    model = Model.from_result(result, program)
    if model.recipe.head is None:
        return None
    if model.recipe.outcome is not None:
        return _of_outcome(model, model.recipe.outcome, deal, schema)
    sites = {domain: deal.sites_of(domain) for domain in deal.tests}
    turns = max(map(len, sites.values())) if result.application.get("alignment") is not None else 1
    found = [_of_classes(model, deal, schema, kept, source, sites, turn) for turn in range(turns)]
    return mean_figures(found)


def _of_classes(
    model: Model,
    deal: Deal,
    schema: DatasetSchema,
    kept: Kept | None,
    source: str | None,
    sites: Mapping[str, list[str]],
    turn: int,
) -> dict[str, float]:
    """Figures of all records once, each domain's by the alignment of one of its sites."""
    scores, truth = list[Floats](), list[Integers]()
    for domain, dataset in deal.tests.items():
        records, site = labelled(dataset.records), sites[domain][turn % len(sites[domain])]
        blocks = kept(site, source) if kept is not None and source is not None else None
        scores.append(model.scores(records, site=site, kept=blocks))
        truth.append(records.labels if records.labels is not None else np.zeros(0, dtype=np.int64))
    return headline(np.concatenate(scores), np.concatenate(truth), schema.classes, model.classes)


def _of_outcome(model: Model, form: OutcomeForm, deal: Deal, schema: DatasetSchema) -> dict[str, float] | None:
    outcome = Outcome(column=form.column, loss=form.loss, event=form.event, censored=form.censored, cuts=form.cuts)
    number = outcome.number(schema)
    half = number.high / 2.0 - number.low / 2.0
    predicted, truth, events = list[Floats](), list[Floats](), list[Floats]()
    for dataset in deal.tests.values():
        own = outcome.split(dataset.records, schema)
        said = model.estimates(own.records)
        used = own.known & np.isfinite(said)
        predicted.append(said[used])
        told = own.outcomes[used]
        if form.loss == "hazard":
            periods = told.shape[1] // 2
            truth.append(told[:, :periods].sum(axis=1) * number.high)
            events.append(told[:, periods:].sum(axis=1))
        else:
            truth.append(told[:, 0] * half + (0.0 if form.loss == "poisson" else number.low + half))
    whole = np.concatenate(truth)
    happened = np.concatenate(events) > 0.0 if events else None
    return outcome_headline(form.loss, np.concatenate(predicted), whole, happened) if len(whole) > 1 else None
