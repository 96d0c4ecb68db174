"""How good a result is on the test records: accuracy by domain, and figures of all records together.

Every test record is one site's, and goes through that site's alignment alone. Those of a domain that no site has are a new
site's, which is aligned by their features (:meth:`veilsum_participant.applying.model.Model.at_new_site`). Nothing here is part
of a study. Figures are exact; those of a federated evaluation have noise and intervals.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Bools, Floats, Integers
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
            or tested.
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
        deal: whose test records are used.
        kept: None where sites' kept statistics are out of reach.
        program: the study's frozen program, where it has one.

    Returns:
        Nothing where the result predicts nothing, or what it needs is out of reach.
    """
    if "not_estimable" in result.summary or not deal.tests or not result.application:
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

    def of_records(records: Records, site: str | None) -> Floats:
        if alignment is not None and site is None:
            return model.at_new_site(records).scores(records)
        own = None if kept is None or source is None or site is None else kept(site, source)
        return model.scores(records, site=site, kept=own)

    scores, truth = dict[str, Floats](), dict[str, Integers]()
    for domain, dataset in labelled_tests(deal).items():
        records, found = dataset.records, np.empty((len(dataset.records), len(model.classes)))
        for site, rows in deal.parts(domain):
            found[rows] = of_records(records.take(rows), site)
        known = labelled_rows(records)
        scores[domain], truth[domain] = found[known], _labels(records)[known]
    # The last entry is what -1, no class, becomes.
    classes = np.array([*(schema.classes.index(name) for name in model.classes), -1])
    accuracies = {domain: float(np.mean(classes[best_class(own)] == truth[domain])) for domain, own in scores.items()}
    together = np.concatenate(list(scores.values())), np.concatenate(list(truth.values()))
    return scored(deal, accuracies, headline(*together, schema.classes, model.classes))


def guessed(deal: Deal, schema: DatasetSchema) -> Scores:
    """What is reached without a model: one class for every record, the most frequent of all test records; areas are a half."""
    truth = {domain: _labels(labelled(dataset.records)) for domain, dataset in labelled_tests(deal).items()}
    counts = np.bincount(np.concatenate(list(truth.values())), minlength=len(schema.classes))
    most, share = int(counts.argmax()), float(counts.max() / counts.sum())
    accuracies = {domain: float(np.mean(own == most)) for domain, own in truth.items()}
    return scored(deal, accuracies, {"auc": 0.5, ACCURACY: share, "accuracy_of_constant_guess": share})


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
    numbers = {domain: len(labelled(deal.tests[domain].records)) for domain in accuracies}
    return math.fsum(accuracies[domain] * number for domain, number in numbers.items()) / sum(numbers.values())


def labelled(records: Records) -> Records:
    """The records that have a label."""
    known = labelled_rows(records)
    return records if known.all() else records.take(known)


def labelled_rows(records: Records) -> Bools:
    """Which records (n,) have a label."""
    return _labels(records) >= 0


def labelled_tests(deal: Deal) -> dict[str, TableWithSchema]:
    """The test records of the domains of which some have a label.

    Raises:
        DataError: none has.
    """
    found = {domain: dataset for domain, dataset in deal.tests.items() if labelled_rows(dataset.records).any()}
    if not found:
        raise DataError("No test record has a label.", "Hold out more records.")
    return found


def _labels(records: Records) -> Integers:
    return np.full(len(records), -1, dtype=np.int64) if records.labels is None else records.labels


def complete(dataset: TableWithSchema) -> bool:
    """Whether no labelled record lacks a feature."""
    return bool(labelled(dataset.records).present.all())
