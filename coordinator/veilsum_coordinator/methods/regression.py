"""The method "regression": a generalised linear model over all sites, with intervals that hold.

A first release gives the second moments of terms and outcome, which is a linear regression already; odds, rates and hazards
take three more, each a Newton step in coordinates that the first one whitened (:mod:`veilsum_aggregation.newton`,
:mod:`veilsum_aggregation.hazards`). Errors clustered by site, and robust ones, take one more
(:mod:`veilsum_coordinator.parts.clustered_errors`, :mod:`veilsum_coordinator.parts.robust_errors`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import not_
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from veilsum_aggregation import families, newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import MODEL_ERRORS, test_row
from veilsum_aggregation.hazards import HazardFit
from veilsum_aggregation.newton import NewtonFit
from veilsum_aggregation.regression import Fit, UntoldFit
from veilsum_aggregation.robust import RobustFit
from veilsum_coordinator.parts.base import Inputs, Method, TaskPlan, told_rows, told_tables
from veilsum_coordinator.parts.clustered_errors import SCORES, cluster, linear_scores, score_release
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.first_moments import FirstMoments, fit_newton
from veilsum_coordinator.parts.outcomes import PREDICTION, SCORE
from veilsum_coordinator.parts.proportional_hazards import (
    MOST_STRATA,
    ends_request,
    entries_request,
    entry_columns,
    event_condition,
    fit_hazards,
    followed,
    hazard_step,
)
from veilsum_coordinator.parts.query_requests import (
    DeriveRequest,
    EdgeRange,
    Names,
    QueryRequest,
    check_persons,
    expand,
    weigh,
)
from veilsum_coordinator.parts.robust_errors import is_robust, product_release, robust
from veilsum_node.config import explain
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.mechanism.persons import Reduction
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import ColumnName
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.hazard_step import HazardStep, HazardStepParameters
from veilsum_privacy.tasks.newton_step import NewtonStep, NewtonStepParameters
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.coefficients import coefficients, score_row, term_names, told_of
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query, Text
from veilsum_privacy.tasks.site_scores import SiteScoresParameters
from veilsum_privacy.tasks.tables import questions_of

ALL_SLOPES = "all slopes are 0 (Wald)"
"""Name of a test."""

BEYOND = 0.003
"""Share of the records whose mean count exceeds the largest that is allowed, up to which a fit is hardly off."""

Row = dict[str, Any]

OFFSET = "offset"
"""Name of the first release's query about offsets."""

MOMENTS, QUERY = "moments", "coefficients"
"""Label of the first release, and name of its query and of the result's table."""

STEPS = ("newton-1", "newton-2", "newton-3")
"""Labels of the others."""

EXACT_STEPS = (*STEPS, "newton-4", "newton-5", "newton-6")
"""The same without noise, where a step costs a round alone: the last one then moves nothing that float64 shows."""

SHARES = (0.20, 0.15, 0.20, 0.45)
"""Shares of the budget by step: the last step counts most, and hardly moves."""

FREE_INFORMATION = {"logistic": 0.83, "poisson": 0.86}
"""kappa: as much information as lengthens no record's vector (:class:`~veilsum_privacy.tasks.newton_step.NewtonStep`)."""

FREE_EXCESS = {"logistic": 0.55, "poisson": 0.51}
"""lambda, in the same way: what the model's errors are shortened by where terms are."""

PREDICTS = {"linear": "number", "logistic": "probability", "poisson": "rate", "cox": "hazard"}

RATIOS = {"logistic": "odds_ratio", "poisson": "rate_ratio", "cox": "hazard_ratio"}


class RegressionParameters(Frozen):
    """What is fitted.

    Attributes:
        family: ``linear`` of a number, ``logistic`` of an event, ``poisson`` of counts, ``cox`` of the time to an event.
        outcome: what is explained: a numeric column; of ``logistic`` a condition, such as ``died = 'yes'``; of ``cox`` the
            time, whose upper bound is the horizon.
        event: of ``cox``, the column that tells how the time ended.
        censored: its levels that do not count as the event; ratios are of the hazard of all others together.
        edges: of ``cox``, of the intervals in which ends of follow-up are counted first, from the start to the horizon; by
            default 40 equal ones.
        over: terms: numbers, and categories, whose first level is the reference. Interactions and powers are derived columns.
        where: which records, a condition; empty for all.
        derive: ``[derive.NAME]`` tables.
        per: by numeric term, for a change of how many units a ratio is given, such as ``{ age = 10 }``; 1 by default.
        most: of ``poisson`` the largest mean of a record; by default half the largest count that the column can hold: of a
            larger mean, many counts would lie beyond that.
        reference: by category, the level that others are compared with, such as ``{ stage = "II" }``; by default the first.
        offset: of ``poisson``, a numeric column that is added to the linear predictor: the logarithm of the time, or of the
            number, that a record's count is of.
        entry: of ``cox``, a numeric column in the time's unit: from when on a record was followed; by default the start.
        strata: of ``cox``, a category whose levels have baselines of their own; ratios are of all of them together.
        person: in a study whose unit is the subject, how a person's records become one
            (:class:`~veilsum_privacy.tasks.persons.PersonParameters`).
        at_most: in its place, how many of a person's records count.
        errors: of coefficients: those of a ``model`` whose records are independent, or ``clustered`` by site, for which each
            site discloses its own noised score; or ``robust``, which hold where the outcome's variance is not the family's,
            for one more release. Not of ``cox``. By default ``robust`` of an event by ``linear``, whose variance follows the
            risk, and of ``poisson``; else of the ``model``.
        solved: whether intervals of ratios are of the last step solved in the cells that a term tells apart
            (:class:`veilsum_aggregation.cells.Cells`), the default, or of the step alone, as they were.
    """

    family: Literal["linear", "logistic", "poisson", "cox"]
    outcome: Text
    event: str = ""
    censored: Names = ()
    edges: tuple[Real, ...] | EdgeRange = ()
    over: Names
    where: Text = ""
    derive: dict[str, DeriveRequest] = Field(default_factory=dict)
    per: dict[ColumnName, Annotated[Real, Field(gt=0)]] = Field(default_factory=dict)
    most: Real | None = Field(default=None, gt=0, le=1e6)
    reference: dict[ColumnName, str] = Field(default_factory=dict, exclude_if=lambda of: not of)
    offset: str = Field(default="", exclude_if=lambda of: not of)
    entry: str = Field(default="", exclude_if=lambda of: not of)
    strata: str = Field(default="", exclude_if=lambda of: not of)
    person: Reduction | None = None
    at_most: int = Field(default=0, ge=0, le=1000)
    solved: bool | None = Field(default=None, exclude_if=not_)  # studies signed before do not state it
    # a study of the model's errors is signed in the form that it always had, without naming them
    errors: Literal["model", "clustered", "robust"] | None = Field(default=None, exclude_if=lambda of: of in (None, "model"))


class Regression(Method[RegressionParameters]):
    """One release of the task "tables", and for odds and rates three of "newton-step", for hazards of "hazard-step".

    Errors clustered by site take one of "site-scores" or "site-hazard-scores", which discloses each site's score by itself.
    """

    name = "regression"

    def resolve(self, parameters: RegressionParameters, inputs: Inputs) -> RegressionParameters:
        if parameters.solved is None and parameters.family in RATIOS:
            parameters = parameters.model_copy(update={"solved": True})
        if parameters.errors is not None:
            return parameters
        numbers = {column.name for column in inputs.schema.columns} | parameters.derive.keys()
        event = parameters.family == "linear" and parameters.outcome not in numbers
        errors = "robust" if event or parameters.family == "poisson" else "model"
        return parameters.model_copy(update={"errors": errors})

    def declare(self, parameters: RegressionParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.most is not None and parameters.family != "poisson":
            raise ConfigurationError("Only counts have a largest mean, `most`.", "Leave it out.")
        if parameters.per and parameters.family == "linear":
            raise ConfigurationError("Coefficients of numbers are per unit; `per` is of ratios.", "Leave it out.")
        of_times = parameters.event, parameters.censored, parameters.edges, parameters.entry, parameters.strata
        if parameters.family != "cox" and any(of_times):
            raise ConfigurationError(
                '`event`, `censored`, `edges`, `entry` and `strata` are of family = "cox".', "Leave them out."
            )
        if parameters.offset and parameters.family != "poisson":
            raise ConfigurationError("An offset is of counts, the logarithm of what they are counted in.", "Leave it out.")
        persons = {"person": parameters.person, "at_most": parameters.at_most}
        try:
            derived = [request.column(name) for name, request in parameters.derive.items()]
            columns = Columns(inputs.schema, derived)
            if parameters.entry:
                derived += entry_columns(parameters.entry, parameters.outcome, columns)
                columns = Columns(inputs.schema, derived)
            asked = expand(_asked(parameters, columns), columns)
            _check_references(parameters, columns)
            largest = inputs.sites * inputs.schema.max_records
            exact = inputs.exact_rows(persons)
            tables = weigh(asked, derived, columns, largest=largest, private=inputs.private, exact_rows=exact)
            start = TaskPlan(MOMENTS, "tables", tables.model_copy(update=persons), share=SHARES[0])
            if parameters.family == "linear":
                (question,) = (LinearRegression(query, columns) for query in tables.queries)
                scores = linear_scores(tables.queries[0], tuple(derived), question.longest).model_copy(update=persons)
                return start, *_score_releases(parameters, scores, (start,), inputs)
            step = self._step(parameters, tables.queries[0], derived, columns, private=inputs.private).model_copy(
                update=persons
            )
            name = "hazard-step" if isinstance(step, HazardStepParameters) else "newton-step"
            _check_units(parameters, LinearRegression(step.query, columns))
            build_task(name, step.model_dump(mode="json"), inputs.schema)
        except ValidationError as error:
            raise ConfigurationError(" ".join(explain(error, DerivedColumn)), "Correct the study's file.") from error
        except HostileInput as error:
            raise ConfigurationError(error.message, error.advice) from error
        labels = STEPS if inputs.private else EXACT_STEPS
        shares = SHARES[1:] if inputs.private else (0.8 / len(labels),) * len(labels)
        fit = (start, *(TaskPlan(label, name, step, share=share) for label, share in zip(labels, shares, strict=True)))
        return *fit, *_score_releases(parameters, step, fit, inputs)

    @staticmethod
    def _step(
        parameters: RegressionParameters, query: Query, derived: Sequence[DerivedColumn], columns: Columns, *, private: bool
    ) -> NewtonStepParameters | HazardStepParameters:
        if parameters.family == "cox":
            levels = len(columns.level_names(parameters.strata)) if parameters.strata else 1
            late = bool(parameters.entry)
            return hazard_step(parameters.outcome, query, derived, parameters.strata, levels, late=late)
        question = LinearRegression(query, columns)
        family: families.Family = "logistic" if parameters.family == "logistic" else "poisson"
        return NewtonStepParameters(
            query=query.model_copy(update={"scale": 1}),
            derived=tuple(derived),
            offset=parameters.offset,
            family=family,
            most=1.0 if family == "logistic" else parameters.most or question.outcome.high / 2.0,
            length=(newton.REACH if private else newton.UNSHORTENED) * math.sqrt(len(question.terms) + 1),
            information_share=FREE_INFORMATION[family],
            excess_share=FREE_EXCESS[family] if private else 0.0,
        )

    def check(self, study: Study) -> None:
        parameters = RegressionParameters.model_validate(study.parameters)
        check_persons(parameters.person, parameters.at_most, study)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        family = study.parameters["family"]
        first = federation.sum(MOMENTS)
        question, most = _model(study)
        cohort = {"cohort": len(first.cohort)}
        outcome, reference = study.parameters["outcome"], study.parameters.get("reference", {})
        about = {
            "query": QUERY,
            "kind": family,
            "over": ", ".join(question.query.over),
            "where": study.parameters.get("where", ""),
        }
        clustered = any(task.label == SCORES for task in study.tasks)
        errors = f"clustered by {len(first.cohort)} sites" if clustered else "robust" if is_robust(study) else MODEL_ERRORS
        summary: dict[str, Any] = {"queries": [{**about, "outcome": outcome, "errors": errors}], **cohort}
        (asked,) = (each for each in questions_of(AgreedStudy(study).task(MOMENTS).task) if isinstance(each, LinearRegression))
        moments = FirstMoments(first, asked)
        if family == "linear":
            part = moments.part
            of_model = {f"{QUERY}{suffix}": rows for suffix, rows in question.result_tables(part).items()}
            of_model[QUERY] = partial(question.answer, part, None, reference)
            tables = told_tables(self.name, of_model | {SCORE: partial(question.score, part, moments.gram)})
            linear = question.fit(part)
            if clustered and linear.drowned is None:
                told_apart = cluster(federation, first, linear)
                tables = _told_twice(tables, told_rows(errors, partial(question.answer, part, told_apart, reference)))
            elif is_robust(study) and linear.drowned is None:
                robustly = robust(federation, moments, linear)
                with_robust = told_rows(errors, partial(question.answer, part, robustly, reference))
                tables = _told_twice(tables, with_robust, _robust_tests(tables, outcome, robustly))
            return Result(self.name, {**summary, **tables, PREDICTION: _predicts(study)})
        fit: Fit
        offsets = _offsets(study, first.values, first.noise_std)
        offset = offsets[0] + offsets[1] ** 2 / 2.0  # the logarithm of the mean of what they are logarithms of, if normal
        if (none := moments.no_outcome(family)) is not None:
            fit = UntoldFit(none, len(moments.gram))
        elif family == "cox":
            fit = fit_hazards(federation, first, QUERY, _steps(study), question)
        else:
            kind: families.Family = "logistic" if family == "logistic" else "poisson"
            fit = fit_newton(federation, moments, _steps(study), kind, most, offsets)
        infinite = moments.infinite(fit, family, most, offset=offset)
        if isinstance(fit, NewtonFit | HazardFit):
            apart = np.eye(len(moments.gram))[:, [term in infinite for term in term_names(question)]]
            fit = replace(fit, apart=apart, cells=fit.cells if study.parameters.get("solved") else None)
        if isinstance(fit, HazardFit):
            summary["queries"][0] |= fit.model.baseline.told(fit.point[: fit.model.q])
        told_infinite = moments.infinite(fit, family, most, reference, offset)
        told = {"per": _units(study), "infinite": told_infinite, "reference": reference}
        rows = partial(_rows, question=question, name=RATIOS[family], told=told)
        of_fit: dict[str, Callable[[], Iterator[Row]]] = {
            QUERY: partial(rows, fit),
            f"{QUERY} tests": lambda: iter([test_row(ALL_SLOPES, outcome, fit.all_slopes(), **asked.numbers(moments.part))]),
            SCORE: partial(score_row, fit, question, moments.gram),
        }
        tables = told_tables(self.name, of_fit)
        if study.parameters.get("offset"):
            tables[SCORE] = []  # a score without its offset would predict another thing
        if clustered and isinstance(fit, NewtonFit | HazardFit):
            told_apart = cluster(federation, first, fit, moments.rate)
            tables = _told_twice(tables, told_rows(errors, partial(rows, told_apart)))
        elif is_robust(study) and isinstance(fit, NewtonFit | HazardFit):
            robustly = robust(federation, moments, fit)
            tables = _told_twice(tables, told_rows(errors, partial(rows, robustly)), _robust_tests(tables, outcome, robustly))
        if family == "poisson" and isinstance(fit, NewtonFit) and fit.cells and (share := fit.cells.beyond(fit.coefficients)):
            _warn_of_most(tables[f"{QUERY} tests"], share, most)
        return Result(self.name, {**summary, **tables, PREDICTION: _predicts(study)}, {"coefficients": fit.coefficients})


def _warn_of_most(tests: Sequence[Row], share: float, most: float) -> None:
    """In the tests' notes, where so many records' means are taken as the largest that their slopes are off."""
    for row in tests if share > BEYOND else ():
        told = f"mean counts exceed {most:g} in about {share:.1%} of the records, which biases the fit: state a larger `most`"
        row["note"] = "; ".join(text for text in (row["note"], told) if text)


def _told_twice(tables: Mapping[str, list[Row]], rows: list[Row], tests: Sequence[Row] = ()) -> dict[str, list[Row]]:
    """The tables with clustered or robust errors, beside the coefficients and the test with the model's."""
    both = [*tests, *({**row, "test": f"{row['test']}, errors {MODEL_ERRORS}"} for row in tables[f"{QUERY} tests"])]
    return {QUERY: rows, f"{QUERY} {MODEL_ERRORS}": tables[QUERY], f"{QUERY} tests": both, SCORE: tables[SCORE]}


def _robust_tests(tables: Mapping[str, list[Row]], of: str, fit: RobustFit) -> list[Row]:
    """The test of all slopes by robust errors, with what else the model's own tells."""

    def rows() -> Iterator[Row]:
        for row in tables[f"{QUERY} tests"]:
            yield {**row, **test_row(f"{ALL_SLOPES}, robust errors", of, fit.all_slopes())}

    return told_rows(f"{QUERY} tests, robust", rows)


def _predicts(study: Study) -> dict[str, Any]:
    """What the score predicts, as far as the study says it: all of a :class:`..parts.predictions.Prediction` but the score."""
    parameters = RegressionParameters.model_validate(study.parameters).model_dump(by_alias=True, exclude_defaults=True)
    told = {name: _listed(parameters.get(name)) for name in ("outcome", "event", "censored", "edges", "where", "derive")}
    return {"predicts": PREDICTS[study.parameters["family"]]} | {name: value for name, value in told.items() if value}


def _listed(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, Mapping):
        return {name: _listed(item) for name, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


def _asked(parameters: RegressionParameters, columns: Columns) -> list[QueryRequest]:
    """The queries of the first release."""
    about = QueryRequest(name=QUERY, kind="linear", outcome=parameters.outcome, over=parameters.over, where=parameters.where)
    if parameters.offset:
        columns.number(parameters.offset, "offset")
        if parameters.offset in parameters.over:
            raise ConfigurationError(f"{parameters.offset!r} is an offset and a term.", "Name it as one of the two.")
        return [about, QueryRequest(name=OFFSET, kind="mean", over=(parameters.offset,), where=parameters.where)]
    if parameters.family != "cox":
        return [about]
    if parameters.strata:
        levels = columns.levels(parameters.strata, "strata")
        if len(levels) > MOST_STRATA or parameters.strata in parameters.over:
            raise ConfigurationError(
                f"strata: {parameters.strata!r} has {len(levels)} levels, of {MOST_STRATA} at most, and is not a term.",
                "Merge levels, or leave it out of the terms.",
            )
    time, event, censored, where = parameters.outcome, parameters.event, parameters.censored, parameters.where
    if parameters.entry:
        where = followed(where, time, columns)
    ends = ends_request(time, event, censored, parameters.edges, where, columns, parameters.strata)
    entries = [entries_request(ends)] if parameters.entry else []
    risk = about.model_copy(update={"outcome": event_condition(event, censored, columns), "where": where})
    return [risk, ends, *entries]


def _offsets(study: Study, values: Mapping[str, Floats], stds: Mapping[str, float]) -> tuple[float, float]:
    """Mean and standard deviation of offsets; 0 where there are none."""
    found = [each for each in questions_of(AgreedStudy(study).task(MOMENTS).task) if each.query.name == OFFSET]
    if not found:
        return 0.0, 0.0
    (question,) = found
    rows = list(question.answer(ReleasedPart(question.query, values, stds)))
    domain = question.columns.number(question.query.over[0], OFFSET)
    mean, deviation = (rows[0][name].get("value") for name in ("mean", "standard_deviation"))
    return (domain.middle, 0.0) if mean is None else (float(mean), float(deviation or 0.0))


def _check_units(parameters: RegressionParameters, question: LinearRegression) -> None:
    numbers = [name for name, level in question.terms if not level]
    for name in parameters.per:
        if name not in numbers:
            raise ConfigurationError(
                f"per: {name!r} is not a numeric term.", f"Numeric terms: {', '.join(numbers) or 'none'}."
            )


def _check_references(parameters: RegressionParameters, columns: Columns) -> None:
    for name, level in parameters.reference.items():
        levels = columns.level_names(name) if name in parameters.over else ()
        if level not in levels:
            raise ConfigurationError(
                f"reference: {level!r} is not a category of a term {name!r}.",
                f"Its categories: {', '.join(levels[:20])}." if levels else f"Terms: {', '.join(parameters.over)}.",
            )


def _units(study: Study) -> Mapping[str, float]:
    return {name: float(step) for name, step in RegressionParameters.model_validate(study.parameters).per.items()}


def _model(study: Study) -> tuple[LinearRegression, float]:
    """Terms and outcome, and the largest mean of counts."""
    task = AgreedStudy(study).task(MOMENTS if study.parameters["family"] == "linear" else STEPS[0]).task
    if isinstance(task, NewtonStep):
        return task.question, float(task.parameters.most)
    if isinstance(task, HazardStep):
        return task.question, 1.0
    (question,) = task.questions  # type: ignore[attr-defined]  # of "tables"
    return question, 1.0


def _steps(study: Study) -> tuple[str, ...]:
    """Labels of the rounds after the first release."""
    declared = {task.label for task in study.tasks}
    return tuple(label for label in EXACT_STEPS if label in declared)


def _score_releases(
    parameters: RegressionParameters,
    step: NewtonStepParameters | HazardStepParameters | SiteScoresParameters,
    fit: Sequence[TaskPlan],
    inputs: Inputs,
) -> tuple[TaskPlan, ...]:
    """The release of sites' scores, if errors are clustered; of scores' products, if they are robust."""
    others = sum(plan.share for plan in fit)
    if parameters.errors == "robust":
        return (product_release(step, others),)
    return (score_release(step, others, inputs.sites),) if parameters.errors == "clustered" else ()


def _rows(fit: Fit, question: LinearRegression, name: str, told: Mapping[str, Any]) -> Iterator[Row]:
    for found in coefficients(fit, question, **told):
        if name == RATIOS["cox"] and found.term == "constant":
            continue
        row: Row = {"term": found.term, "per": found.per, name: found.answer.exponential().to_json()}
        yield row | {"log": found.answer.to_json()} | told_of(found)
