"""Evaluating classifiers: what is asked of the sites, and the figures that the sums tell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import tables
from veilsum_aggregation.classification import folded, noised_calibration, noised_f1
from veilsum_aggregation.concordance import area
from veilsum_aggregation.figures import Answer, Drowned
from veilsum_aggregation.group_means import NumberSums, mean
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.expectations import Expectation, released_noise
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.figure_rows import Row, rescaled, shown
from veilsum_coordinator.parts.moment_plans import Missing
from veilsum_coordinator.parts.predictions import LABEL
from veilsum_coordinator.parts.query_scales import weigh
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.study.study import Disclosure, Study
from veilsum_privacy.tasks.model_tables import (
    CLASS,
    LOSS,
    PREDICTED,
    RIGHT,
    SCORE,
    ModelTables,
    ModelTablesParameters,
    classified_schema,
    same_two,
)
from veilsum_privacy.tasks.queries.language import Columns, Query
from veilsum_privacy.tasks.queries.number_encodings import SHIFT
from veilsum_privacy.training.models import ModelSpec

Floats = NDArray[np.float64]

CONFUSION, SCORES = "confusion", "scores"
"""Queries: records by true and predicted class; by score, and class or whether it was the predicted one."""

BY_CLASS, BY_PREDICTION = "right_by_class", "right_by_prediction"
"""Queries in place of the first where it has too many cells: records by class, and whether it was the predicted one."""

MOST_CELLS = 50_000
"""Of a query; two marginal tables then tell shares with far less noise."""

IMPORTANCE = {CONFUSION: 40.0, BY_CLASS: 40.0, BY_PREDICTION: 40.0, SCORES: 1.0, LOSS: 0.3}
"""Of each query: classes are what is asked for."""

TYPICAL = 0.8
"""Accuracy and recall that expectations are for."""


class Classifier(Frozen):
    """A released classifier, and what is asked of it.

    Attributes:
        model, sha256, classes, missing, clip, largest_loss: as of
            :class:`~veilsum_privacy.tasks.model_tables.ModelTablesParameters`.
        bins: of scores; 0 for no question about them.
    """

    model: ModelSpec
    sha256: str
    classes: tuple[Name, ...]
    missing: Missing
    clip: Real
    bins: int
    largest_loss: Real


def classifier_plan(asked: Classifier, inputs: Inputs, persons: Mapping[str, Any], disclosure: Disclosure) -> TaskPlan:
    """The one release.

    Args:
        persons: how a person's records count, as parameters of the task.

    Raises:
        HostileInput: the model's classes are not the schema's.
    """
    schema = classified_schema(inputs.schema, asked.classes, float(asked.largest_loss))
    columns = Columns(schema)
    low = columns.number(SCORE, SCORES).low
    queries = [
        Query(name=name, kind="count", over=over, importance=IMPORTANCE[name])
        for name, over in _counted(len(schema.classes), len(asked.classes)).items()
    ]
    if asked.bins:
        edges = tuple((low + (1.0 - low) * np.arange(1, asked.bins) / asked.bins).tolist())
        by = CLASS if same_two(inputs.schema, asked.classes) else RIGHT
        queries.append(
            Query(name=SCORES, kind="histogram", over=(SCORE,), by=(by,), edges=edges, importance=IMPORTANCE[SCORES])
        )
    if asked.largest_loss:
        queries.append(Query(name=LOSS, kind="mean", over=(LOSS,), importance=IMPORTANCE[LOSS]))
    weighed = weigh(queries, (), columns, largest=inputs.sites * inputs.schema.max_records, private=inputs.private)
    named = ("model", "sha256", "classes", "missing", "clip", "largest_loss")
    about = {name: getattr(asked, name) for name in named} | {"low": low, "high": 1.0}
    width = None if inputs.encoder is None else inputs.width
    task = ModelTablesParameters.model_validate({**dict(weighed), **about, **persons, "width": width})
    return TaskPlan(LABEL, ModelTables.name, task, disclosure=disclosure)


def _counted(rows: int, columns: int) -> dict[str, tuple[str, ...]]:
    """The columns of each query that counts classes, by its name."""
    if rows * columns <= MOST_CELLS:
        return {CONFUSION: (CLASS, PREDICTED)}
    return {BY_CLASS: (CLASS, RIGHT), BY_PREDICTION: (PREDICTED, RIGHT)}


def classifier_tables(
    classes: Sequence[str], asked: Classifier, release: Release, *, per_site: bool
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Summary and arrays of a result; where sites are told apart, of each by itself as well."""
    values, noise = release.values, release.noise_std
    summary: dict[str, Any] = {"model": asked.model.name}
    if per_site:
        each = [{name: block[place] for name, block in values.items()} for place in range(len(release.cohort))]
        summary["sites"] = [
            {"site": name, **_ClassReader(classes, asked, own, noise).overall()}
            for name, own in zip(release.cohort, each, strict=True)
        ]
        values = {name: block.sum(axis=0) for name, block in values.items()}
        noise = {name: std * math.sqrt(len(each)) for name, std in noise.items()}
    reader = _ClassReader(classes, asked, values, noise)
    kept = {name.removesuffix("/table"): block for name, block in release.values.items() if name.endswith("/table")}
    return summary | reader.overall() | reader.detail(), kept


@dataclass(frozen=True)
class _ClassReader:
    """Reads noised tables.

    Attributes:
        classes: of the schema.
        asked: the model, and what was asked of it.
        values, noise: blocks of the release, and the standard deviation of their noise.
    """

    classes: Sequence[str]
    asked: Classifier
    values: Mapping[str, Floats]
    noise: Mapping[str, float]

    @cached_property
    def _columns(self) -> list[int | None]:
        """The model's class of each of the schema's; None of one that it does not know."""
        named = self.asked.classes
        return [named.index(name) if name in named else None for name in self.classes]

    @cached_property
    def _whole(self) -> bool:
        """Whether classes were counted by what was predicted, and not only by whether it was right."""
        return f"{CONFUSION}/table" in self.values

    def _table(self, name: str) -> tuple[Floats, float]:
        return self.values[f"{name}/table"], float(self.noise[f"{name}/table"])

    @cached_property
    def _by_class(self) -> tuple[Floats, float, int]:
        """Records of each class, wrongly and rightly predicted (K, 2), their noise, and how many cells a class has."""
        if not self._whole:
            return *self._table(BY_CLASS), 2
        counts, std = self._table(CONFUSION)
        hits = np.array([0.0 if at is None else float(counts[row, at]) for row, at in enumerate(self._columns)])
        return np.stack([counts.sum(axis=1) - hits, hits], axis=1), std, counts.shape[1]

    @cached_property
    def _by_prediction(self) -> tuple[Floats, float, int]:
        """The same of each predicted class."""
        if not self._whole:
            return *self._table(BY_PREDICTION), 2
        counts, std = self._table(CONFUSION)
        hits = np.zeros(counts.shape[1])
        for row, at in enumerate(self._columns):
            if at is not None:
                hits[at] = float(counts[row, at])
        return np.stack([counts.sum(axis=0) - hits, hits], axis=1), std, counts.shape[0]

    def overall(self) -> Row:
        """Records, area and calibration, accuracy, that of the constant guess, and log loss, as JSON.

        The constant guess is the class that most records have: where its accuracy is close to the model's, that says little.
        """
        counts, std, per = self._by_class
        known = [row for row, at in enumerate(self._columns) if at is not None]
        number, cells = float(counts.sum()), per * len(counts)
        found: Row = {"records": shown(tables.count(number, std * math.sqrt(cells)))}
        if f"{SCORES}/table" in self.values:
            found |= self._of_scores()
        right = float(counts[known, 1].sum())
        found["accuracy"] = shown(tables.share_in(right, number, (len(known), cells - len(known)), std))
        guess = tables.share_in(float(counts.sum(axis=1).max()), number, (per, cells - per), std)
        found["accuracy_of_constant_guess"] = shown(guess)
        if f"{LOSS}/sum" in self.values:
            found["log_loss"] = shown(self._log_loss())
        return found

    def _log_loss(self) -> Answer:
        (count, count_std), (total, total_std), (square, square_std) = (
            (float(self.values[f"{LOSS}/{name}"].sum()), float(self.noise[f"{LOSS}/{name}"]))
            for name in ("records", "sum", "square")
        )
        sums, half = NumberSums(count, total, square, SHIFT, count_std, total_std, square_std), self.asked.largest_loss / 2.0
        return rescaled(mean(sums), half, half)

    def _of_scores(self) -> Row:
        found: Row = {}
        histogram, std = self._table(SCORES)
        low, wrong, right = 1.0 / len(self.asked.classes), histogram[0], histogram[1]
        if len(self.classes) == len(self.asked.classes) == 2:
            found["auc"] = shown(area(histogram[0], histogram[1], std))
            low, (wrong, right), std = 0.5, folded(histogram), math.sqrt(2.0) * std
        calibration = noised_calibration(wrong, right, low, std)
        found["calibration_error"] = shown(calibration.error)
        if std > 0 and math.isfinite(calibration.by_noise):
            found["calibration_error_of_noise"] = calibration.by_noise
        return found

    def detail(self) -> dict[str, list[Row]]:
        """Tables by class: recall, precision and F1, and the confusion counts where they were asked for."""
        found = {"classes": list(self._class_rows())}
        if self._whole:
            found["confusion"] = list(self._confusion_rows())
        return found

    def _class_rows(self) -> Iterator[Row]:
        counts, std, per = self._by_class
        predicted, std_predicted, per_predicted = self._by_prediction
        for row, name in enumerate(self.classes):
            number, at = float(counts[row].sum()), self._columns[row]
            found: Row = {"class": name, "records": shown(tables.count(number, std * math.sqrt(per)))}
            if at is None:
                unknown = shown(Drowned("the model does not know the class"))
                yield found | {"recall": unknown, "precision": unknown, "f1": unknown}
                continue
            hit, (others, same) = float(counts[row, 1]), predicted[at].tolist()
            precision = tables.share_in(same, same + others, (1, per_predicted - 1), std_predicted)
            others += float(counts[row, 0])
            f1 = noised_f1(hit, others, per + per_predicted - 2, max(std, std_predicted))
            recall = tables.share_in(hit, number, (1, per - 1), std)
            yield found | {"recall": shown(recall), "precision": shown(precision), "f1": shown(f1)}

    def _confusion_rows(self) -> Iterator[Row]:
        counts, std = self._table(CONFUSION)
        for name, row in zip(self.classes, counts.tolist(), strict=True):
            cells = {f"predicted {said}": shown(tables.count(n, std)) for said, n in zip(self.asked.classes, row, strict=True)}
            yield {"class": name, **cells}


def expected_shares(study: Study, asked: Classifier, cohort: int, records: int) -> Sequence[Expectation]:
    """Accuracy and the recalls at an accuracy of :data:`TYPICAL` and equally frequent classes."""
    k, m = len(study.data.classes), len(asked.classes)
    name, per = (CONFUSION, m) if CONFUSION in _counted(k, m) else (BY_CLASS, 2)
    std = released_noise(study, LABEL, cohort)[f"{name}/table"]
    std *= math.sqrt(cohort) if study.tasks[0].disclosure == "per-site" else 1.0
    right = TYPICAL * records
    whole = tables.share_in(right, records, (k, k * (per - 1)), std)
    one = tables.share_in(right / k, records / k, (1, per - 1), std)
    basis = f"an accuracy of {TYPICAL:.0%}"
    return [
        Expectation("accuracies", "share of records predicted rightly", TYPICAL, _half(whole), basis=basis, main=True),
        Expectation("recalls", "share of a class predicted rightly", TYPICAL, _half(one), basis=basis, number=k),
    ]


def _half(answer: Answer) -> float:
    return math.inf if isinstance(answer, Drowned) else (answer.high - answer.low) / 2.0
