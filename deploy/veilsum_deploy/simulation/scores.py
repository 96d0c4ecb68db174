"""How good a result is on the test records: accuracy by domain, and figures of all records together.

Test records of a domain go through the alignment of the domain's own site; where it has several, or none, through that of each
of these, or of all, in turn, and the figures are averaged. Nothing here is part of a study. Figures are exact; those of a
federated evaluation have noise and intervals.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Bools, Floats
from veilsum_aggregation.heads import LinearHead
from veilsum_deploy.datasets import TableWithSchema
from veilsum_deploy.simulation.deal import Deal
from veilsum_node.errors import DataError
from veilsum_participant.applying.measurement import headline, outcome_headline
from veilsum_participant.applying.model import Model, best_class
from veilsum_participant.applying.recipe import OutcomeForm
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.outcomes import Outcome

Kept = Callable[[str, str], Mapping[str, Floats]]
"""The noised statistic that a site keeps: of (site, label of the task)."""

Encode = Callable[[Records], Records]
"""What makes features of records; the identity where a study has no encoder."""

ACCURACY = "accuracy"
NAMES = {
    "auc": "area under the ROC curve",
    "r_squared": "R squared",
    "root_mean_squared_error": "root mean squared error",
    "deviance_explained": "deviance explained",
    "concordance": "concordance",
    "mean_predicted": "mean predicted",
    "observed": "observed",
    ACCURACY: "accuracy",
    "accuracy_of_constant_guess": "accuracy of the constant guess",
}
"""Figures in the order in which people read them."""

LEADING = ("auc", "r_squared", "deviance_explained", "concordance")
"""The figures that come first, each of its kind of prediction."""

SHARES = frozenset(NAMES) - {"root_mean_squared_error", "mean_predicted", "observed"}
"""Figures that are shown in points; the mean predicted and observed too where classes are predicted."""


@dataclass(frozen=True)
class Scores:
    """How good a result, or a baseline, is on the test records.

    Attributes:
        accuracies: share of each domain's labelled test records that is classified rightly; empty where nothing is classified
            or tested, and 0 where noise left no classifier.
        held_out: figures of all test records by their names in :data:`NAMES`; of sites alone means over domains.
        accuracy: the domains' accuracies, weighted by their numbers of records; None without accuracies.
    """

    accuracies: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] = field(default_factory=dict)
    accuracy: float | None = None

    @property
    def figures(self) -> dict[str, float]:
        """The figures of all test records, with the accuracy that is averaged over sites."""
        return self.held_out if self.accuracy is None else {**self.held_out, ACCURACY: self.accuracy}


def scored(deal: Deal, accuracies: dict[str, float], held_out: dict[str, float]) -> Scores:
    """Scores with the accuracy over all records."""
    return Scores(accuracies, held_out, overall(accuracies, deal) if accuracies else None)


def score(
    result: Result, deal: Deal, schema: DatasetSchema, kept: Kept | None, program: Callable[[Floats], Floats] | None = None
) -> Scores:
    """Test a result.

    Args:
        result: of a study.
        deal: whose test records are used.
        schema: of the data.
        kept: None where sites' kept statistics are out of reach.
        program: the study's frozen program, where it has one.

    Returns:
        Nothing where the result predicts nothing, or what it needs is out of reach.
    """
    if "not_estimable" in result.summary:
        return scored(deal, dict.fromkeys(deal.tests, 0.0), {})
    if not deal.tests or not result.application:
        return Scores()
    alignment: Mapping[str, Any] | None = result.application.get("alignment")
    # The task whose kept statistic a site's own alignment is made of.
    source = None if alignment is None or alignment["kind"] == "maps" else str(alignment["source"])
    if source is not None and kept is None:
        return Scores()
    model = Model.from_result(result, program)
    if model.recipe.head is None:
        return Scores()
    if model.recipe.outcome is not None:
        return Scores(held_out=_outcome_figures(model, model.recipe.outcome, deal, schema))
    tests = {domain: labelled(dataset.records) for domain, dataset in deal.tests.items()}

    def of_sites(domain: str) -> list[Floats]:
        """Scores of a domain's records by each alignment that they go through."""
        if alignment is None:
            return [model.scores(tests[domain])]
        blocks = {site: None if kept is None or source is None else kept(site, source) for site in deal.sites_of(domain)}
        return [model.scores(tests[domain], site=site, kept=own) for site, own in blocks.items()]

    scores = {domain: of_sites(domain) for domain in tests}
    truth = {domain: records.labels for domain, records in tests.items() if records.labels is not None}
    # The last entry is what -1, no class, becomes.
    classes = np.array([*(schema.classes.index(name) for name in model.classes), -1])
    accuracies = {
        domain: statistics.fmean(float(np.mean(classes[best_class(one)] == truth[domain])) for one in each)
        for domain, each in scores.items()
    }
    together = np.concatenate(list(truth.values()))
    turns = [
        headline(np.concatenate([each[turn % len(each)] for each in scores.values()]), together, schema.classes, model.classes)
        for turn in range(max(map(len, scores.values())))
    ]
    return scored(deal, accuracies, mean_figures(turns))


def _outcome_figures(model: Model, form: OutcomeForm, deal: Deal, schema: DatasetSchema) -> dict[str, float]:
    """Figures of predicted numbers, counts or times; none of fewer than two records."""
    outcome = Outcome(column=form.column, loss=form.loss, event=form.event, censored=form.censored, cuts=form.cuts)
    predicted, truth, events = list[Floats](), list[Floats](), list[Bools]()
    for dataset in deal.tests.values():
        own = outcome.split(dataset.records, schema)
        said = model.estimates(own.records)
        used = own.known & np.isfinite(said)
        predicted.append(said[used])
        told, happened = form.observed(own.outcomes[used])
        truth.append(told)
        events += [] if happened is None else [happened]
    whole = np.concatenate(truth)
    if len(whole) < 2:
        return {}
    return outcome_headline(form.loss, np.concatenate(predicted), whole, np.concatenate(events) if events else None)


def mean_figures(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over those that have it."""
    told = {name: [figures[name] for figures in each if name in figures] for name in NAMES}
    return {name: statistics.fmean(values) for name, values in told.items() if values}


def head_figures(head: LinearHead | None, records: Records, schema: DatasetSchema) -> dict[str, float]:
    """Figures of a linear head on labelled records; none without a head."""
    if head is None or records.labels is None:
        return {}
    return headline(head.scores(records.features), records.labels, schema.classes, head.classes)


def spread(accuracies: Mapping[str, float]) -> tuple[float, float]:
    """AVG and STD over domains: the mean, each domain counted once, and the standard deviation with n in the denominator."""
    values = list(accuracies.values())
    return statistics.fmean(values), statistics.pstdev(values)


def overall(accuracies: Mapping[str, float], deal: Deal) -> float:
    """Accuracy over all labelled test records: the domains' accuracies, weighted by their numbers of records."""
    numbers = {domain: len(labelled(dataset.records)) for domain, dataset in deal.tests.items()}
    return math.fsum(accuracies[domain] * number for domain, number in numbers.items()) / sum(numbers.values())


def labelled(records: Records) -> Records:
    """The records that have a label.

    Raises:
        DataError: there is none.
    """
    known: NDArray[np.bool_] = np.zeros(len(records), dtype=np.bool_) if records.labels is None else records.labels >= 0
    if records.labels is None or not known.any():
        raise DataError("No test record has a label.", "Hold out more records.")
    if known.all():
        return records
    return Records(records.features[known], records.present[known], records.labels[known])


def complete(dataset: TableWithSchema) -> bool:
    """Whether no labelled record lacks a feature."""
    return bool(labelled(dataset.records).present.all())
