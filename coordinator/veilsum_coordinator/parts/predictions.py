"""Evaluating predictions, formulas of columns or models: what is asked of the sites, and the measures that the sums tell.

What is measured follows from what is predicted, a number, a probability, a rate or a hazard, and not from the method that
made the prediction. One query by level of the prediction tells all of it, with the questions of the method statistics.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from veilsum_aggregation import tables
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import Answer
from veilsum_aggregation.group_means import mean
from veilsum_aggregation.prediction_levels import Levels, event_levels, number_levels, rate_levels
from veilsum_aggregation.prediction_levels import OutcomeRange as Range
from veilsum_aggregation.prediction_quality import event_measures, expit, hazard_measures, number_measures, rate_measures
from veilsum_coordinator.parts.base import Inputs, Missing, TaskPlan, told_rows
from veilsum_coordinator.parts.proportional_hazards import all_times
from veilsum_coordinator.parts.query_requests import DeriveRequest, EdgeRange, Names, QueryRequest, expand, weigh
from veilsum_node.errors import HostileInput
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.model_tables import SCORE, ModelTables, ModelTablesParameters, scored_schema
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.kinds.discrimination import Discrimination
from veilsum_privacy.tasks.queries.kinds.means import SHIFT, Means
from veilsum_privacy.tasks.queries.language import Columns, Text, even_edges, interval_names
from veilsum_privacy.tasks.tables import Tables, questions_of
from veilsum_privacy.training.models import ModelSpec

Row = dict[str, Any]

LABEL = "predictions"
"""Label of the release, and of its query."""

LEVEL, ABOVE, PRODUCT = "prediction level", "outcome above 0", "outcome log outcome"
"""Names of derived columns: the linear predictor's levels, and for counts y + a hair and y log y."""

LOSSES = {"number": "squared", "rate": "poisson", "hazard": "hazard"}
"""The loss that goes with what a model predicts."""

PRODUCTS = "products"
"""Name of the query for the sum of y log y."""

LEVELS = 16
"""Levels of the linear predictor, between its bounds."""

MOST_INTERVALS = 20
"""The most intervals of time: a hazard's edges are thinned to so many, as every cell has noise."""

FINE, MOST_STEPS = 16.0, 2.0**14
"""How much finer than of means the steps of an outcome are: counts are few values, whose rounding does not average out.
But not more than so many."""

HAIR = 1e-9
"""What is added to a count before its logarithm is taken."""

LEAST_PRODUCT = -0.37
"""y log y is not below -1/e."""


class Predictor(Frozen):
    """A released model that predicts an outcome, as the task "model-tables" takes it.

    Attributes:
        model, sha256, missing, most: as of :class:`~veilsum_privacy.tasks.model_tables.ModelTablesParameters`.
        cuts: of a hazard, as of :class:`~veilsum_privacy.tasks.outcomes.Outcome`.
    """

    model: ModelSpec
    sha256: str
    missing: Missing
    most: Real | None = Field(default=None, gt=0, le=1e100, exclude_if=lambda stated: stated is None)
    cuts: tuple[Real, ...] = Field(default=(), max_length=64, exclude_if=lambda stated: not stated)


class Prediction(Frozen):
    """A released prediction as a formula of columns, or by a model.

    Attributes:
        predicts: what of: a ``number``, the ``probability`` of an event, a ``rate`` (mean of a count), or a ``hazard``.
        number, low, high: the linear predictor as a derived number and its bounds: the prediction itself, the log odds, the
            logarithm of the mean, the logarithm of the relative hazard.
        by: in place of ``number`` the model; of a hazard then the logarithm of that up to the horizon is bounded.
        outcome: what happened: a numeric column; of a probability a condition; of a hazard the time.
        event, censored, edges: of a hazard, as a regression states them.
        where: which records, a condition.
        derive: derived columns that these use.
    """

    predicts: Literal["number", "probability", "rate", "hazard"]
    number: Text = Field(default="", exclude_if=lambda stated: not stated)
    low: Real
    high: Real
    outcome: Text
    event: str = ""
    censored: Names = ()
    edges: tuple[Real, ...] | EdgeRange = ()
    where: Text = ""
    derive: dict[str, DeriveRequest] = Field(default_factory=dict)
    by: Predictor | None = Field(default=None, exclude_if=lambda stated: stated is None)

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if bool(self.number) == (self.by is not None):
            raise ValueError("a prediction is either a formula, `number`, or made by a model")
        if self.by is not None and self.predicts == "probability":
            raise ValueError("a model that tells classes apart is evaluated as such")
        return self

    def of_model(self) -> Outcome:
        """What a model predicts, as tasks state it."""
        told: dict[str, Any] = {"column": self.outcome, "loss": LOSSES[self.predicts]}
        if self.predicts == "hazard":
            cuts = () if self.by is None else self.by.cuts
            told |= {"event": self.event, "censored": self.censored, "cuts": cuts}
        return Outcome.model_validate(told)


def prediction_plan(prediction: Prediction, inputs: Inputs, persons: Mapping[str, Any]) -> TaskPlan:
    """The one release, of the task "tables".

    Args:
        persons: how a person's records count, as parameters of the task.

    Raises:
        HostileInput: the schema lacks a column, or has one of a name that is used here.
    """
    derived = [request.column(name) for name, request in prediction.derive.items()]
    schema = inputs.schema
    if prediction.by is None:
        derived.append(DeriveRequest(number=prediction.number, low=prediction.low, high=prediction.high).column(SCORE))
    else:
        schema = scored_schema(schema, prediction.low, prediction.high)
    derived.append(DeriveRequest(of=SCORE, edges=even_edges(prediction.low, prediction.high, LEVELS)[1:-1]).column(LEVEL))
    columns = Columns(schema, derived)
    asked: dict[str, Any] = {"name": LABEL, "where": prediction.where}
    if prediction.predicts in ("number", "rate"):
        domain = columns.number(prediction.outcome, "the prediction's outcome")
        if prediction.predicts == "rate":
            if domain.low < 0.0:
                raise HostileInput(f"A rate is of a count; {prediction.outcome!r} can be {domain.low:g}.")
            derived += [request.column(name) for name, request in _products(prediction.outcome, domain)]
            columns = Columns(schema, derived)
        asked |= {"kind": "compare", "over": (prediction.outcome,), "by": (LEVEL,)}
    else:
        asked |= {"kind": "discrimination", "over": (LEVEL,), "outcome": prediction.outcome}
        if prediction.predicts == "hazard":
            edges = prediction.edges or all_times(columns.number(prediction.outcome, "the prediction's time"), MOST_INTERVALS)
            edges = edges.edges() if isinstance(edges, EdgeRange) else edges
            asked |= {"event": prediction.event, "censored": prediction.censored, "edges": thinned(edges)}
    requests = [QueryRequest.model_validate(asked)]
    if prediction.predicts == "rate":
        known = f'not ("{LEVEL}" is missing)' + (f" and ({prediction.where})" if prediction.where.strip() else "")
        requests.append(QueryRequest(name=PRODUCTS, kind="mean", over=(PRODUCT,), where=known))
    queries = expand(requests, columns)
    largest = inputs.sites * inputs.schema.max_records
    weighed = weigh(
        queries,
        derived,
        columns,
        largest=largest,
        fine=min(FINE, MOST_STEPS / math.sqrt(largest)),
        private=inputs.private,
        exact_rows=inputs.exact_rows(persons),
    )
    weighed = weighed.model_copy(update=dict(persons))
    if prediction.by is None:
        return TaskPlan(LABEL, Tables.name, weighed)
    of_model = {name: getattr(prediction.by, name) for name in ("model", "sha256", "missing", "most")}
    bounds = {"low": prediction.low, "high": prediction.high, "outcome": prediction.of_model()}
    task = ModelTablesParameters.model_validate({**dict(weighed), **of_model, **bounds})
    build_task(ModelTables.name, task.model_dump(mode="json"), inputs.schema)
    return TaskPlan(LABEL, ModelTables.name, task)


def _products(outcome: str, domain: NumberDomain) -> Iterator[tuple[str, DeriveRequest]]:
    """A count above 0, and y log y."""
    quoted = '"' + outcome.replace('"', '""') + '"'
    yield ABOVE, DeriveRequest(number=f"{quoted} + {HAIR:.0e}", low=max(domain.low, HAIR), high=domain.high + 2.0 * HAIR)
    high = max(domain.high * math.log(max(domain.high, 1.0)), 1.0)
    yield PRODUCT, DeriveRequest(number=f'{quoted} * log("{ABOVE}")', low=LEAST_PRODUCT, high=float(f"{high:.6g}"))


def thinned(edges: Sequence[float]) -> tuple[float, ...]:
    """At most :data:`MOST_INTERVALS` intervals of these edges, the first and the last one kept."""
    step = max(1, math.ceil((len(edges) - 1) / MOST_INTERVALS))
    return (*edges[:-1:step], *edges[-1:])


def prediction_tables(study: Study, values: Mapping[str, Floats], noise: Mapping[str, float]) -> dict[str, list[Row]]:
    """Tables of a result: each measure, and what was observed at each level."""
    reader = _PredictionReader(study, values, noise)
    return {"measures": told_rows("measures", reader.measure_rows), "levels": told_rows("levels", reader.levels)}


class _PredictionReader:
    """Reads the release."""

    def __init__(self, study: Study, values: Mapping[str, Floats], noise: Mapping[str, float]) -> None:
        self._question, *others = questions_of(AgreedStudy(study).task(LABEL).task)
        self._part, *self._others = (ReleasedPart(each.query, values, noise) for each in (self._question, *others))
        self._prediction = Prediction.model_validate(study.parameters["prediction"])
        low, high = float(self._prediction.low), float(self._prediction.high)
        self._width = (high - low) / LEVELS
        self._centres: Floats = low + self._width * (np.arange(LEVELS, dtype=np.float64) + 0.5)

    def measure_rows(self) -> Iterator[Row]:
        """Each as a row."""
        for name, answer in self.measures():
            yield {"measure": name, "value": answer.to_json()}

    def measures(self) -> Iterator[tuple[str, Answer]]:
        """In the order in which people read them."""
        if not isinstance(self._question, Discrimination):
            rate = self._prediction.predicts == "rate"
            yield from self._rates() if rate else number_measures(self._numbers(), self._outcome(self._question.query.over[0]))
            return
        table, std = self._part.block("ends")[0], self._part.std("ends")
        if self._question.times is None:
            yield from event_measures(event_levels(self._centres, self._width, table, std))
        else:
            yield from hazard_measures(self._centres, self._width, *self._question.times_of(table), std)

    def _rates(self) -> Iterator[tuple[str, Answer]]:
        outcome, product = self._outcome(self._question.query.over[0]), self._outcome(PRODUCT)
        (part,) = self._others
        levels = rate_levels(self._numbers(), float(part.block("sum")[0, 0]), part.std("sum"), outcome, product)
        yield from rate_measures(levels, outcome, product)

    def _outcome(self, name: str) -> Range:
        domain = self._question.columns.number(name, LABEL)
        return Range(domain.middle, domain.half)

    def _numbers(self) -> Levels:
        sums = np.column_stack([self._part.block("records"), self._part.block("sum")[:, 0], self._part.block("square")[:, 0]])
        noise = np.array([self._part.std("records"), self._part.std("sum"), self._part.std("square")])
        return number_levels(self._centres, self._width, sums, noise, SHIFT)

    def levels(self) -> Iterator[Row]:
        """What was predicted and what was observed at each level; of hazards how many records there are."""
        predicts = self._prediction.predicts
        edges = np.append(self._centres - self._width / 2.0, self._centres[-1] + self._width / 2.0)
        names = interval_names(edges.tolist(), 4)
        predicted = self._centres
        if predicts != "number":
            predicted = expit(predicted) if predicts == "probability" else np.exp(predicted)
        for place, name in enumerate(names):
            row: Row = {"level": name, "predicted": float(predicted[place])}
            if predicts in ("probability", "hazard"):
                counts, std = self._part.block("ends")[0, place], self._part.std("ends")
                row["records"] = tables.count(float(counts.sum()), std * math.sqrt(len(counts))).to_json()
                if predicts == "probability":
                    row["observed"] = tables.shares(counts, std)[1].to_json()
            elif isinstance(self._question, Means):
                own, outcome = self._question.sums(self._part, place, 0), self._outcome(self._question.query.over[0])
                row["records"] = tables.count(own.count, own.count_std).to_json()
                row["observed"] = mean(own).scaled(outcome.half, outcome.middle).to_json()
            yield row
