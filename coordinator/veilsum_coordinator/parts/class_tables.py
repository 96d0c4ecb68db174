"""Columns by class, released first: a discriminant's features are taken about their means, and its result shows them."""

from __future__ import annotations

from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.query_requests import QueryRequest, expand
from veilsum_coordinator.parts.query_scales import weigh
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.schema import CategoryColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.base import ReleasedPart
from veilsum_privacy.tasks.queries.kinds.means import Means
from veilsum_privacy.tasks.queries.language import Columns
from veilsum_privacy.tasks.tables import questions_of

COLUMNS = "columns"
"""Label of the release."""

NUMBERS = "numbers-by-class"
"""Name of the query about numbers, and of its table; those about categories follow it."""

TESTS = f"{NUMBERS} tests"
"""Name of the table of its tests."""

SHARES = "categories-by-class"
"""Name of the table of all categories."""


def columns_plan(inputs: Inputs, share: float) -> TaskPlan:
    """Every number's count, sum and square by class, and how many of each class have each category.

    Args:
        share: of the budget.
    """
    schema, label = inputs.schema, "" if inputs.schema.label is None else inputs.schema.label.column
    numbers = tuple(column.name for column in schema.columns if not isinstance(column, CategoryColumn))
    asked = [QueryRequest(kind="compare", name=NUMBERS, over=numbers, by=(label,))] if numbers else []
    for place, column in enumerate(schema.columns):
        if isinstance(column, CategoryColumn):
            asked.append(QueryRequest(kind="count", name=f"category-{place}", over=(column.name,), by=(label,)))
    columns = Columns(schema)
    tables = weigh(expand(asked, columns), (), columns, largest=inputs.sites * schema.max_records)
    return TaskPlan(COLUMNS, "tables", tables, share=share)


def released_means(release: Release, study: Study) -> Floats:
    """The noised means (d,) of the features of all classes together, within their bounds."""
    found: dict[str, Floats] = {}
    for question in questions_of(AgreedStudy(study).task(COLUMNS).task):
        name = question.query.name
        if isinstance(question, Means):
            count, absent = release.values[f"{name}/records"].sum(), release.values.get(f"{name}/absent")
            std = release.noise_std[f"{name}/records"]
            for place, column in enumerate(question.query.over):
                own = float(count)
                if absent is not None and column in question.open:
                    own -= float(absent[:, question.open.index(column)].sum())
                total = float(release.values[f"{name}/sum"][:, place].sum())
                found[column] = np.array([np.clip(total / max(own, std, 1e-9), -1.0, 1.0)])
        else:
            table = release.values[f"{name}/table"].sum(axis=0)
            whole = max(float(table.sum()), release.noise_std[f"{name}/table"], 1e-9)
            found[question.query.over[0]] = np.clip(table / whole, 0.0, 1.0)
    return np.concatenate([found[column.name] for column in study.data.columns])


def class_tables(release: Release, study: Study) -> dict[str, list[dict[str, Any]]]:
    """Each number's count, mean and deviation by class with a test of equal means, and counts and shares of categories."""
    found: dict[str, list[dict[str, Any]]] = {}
    for question in questions_of(AgreedStudy(study).task(COLUMNS).task):
        part = ReleasedPart(question.query, release.values, release.noise_std)
        if isinstance(question, Means):
            found[NUMBERS] = list(question.answer(part))
            found[TESTS] = list(question.tests(part))
        else:
            (column,), (label,) = question.query.over, question.query.by
            # One table of all columns: the level of each row under one heading.
            for row in question.answer(part):
                about = {label: row[label], "column": column, "level": row[column]}
                found.setdefault(SHARES, []).append(about | {name: row[name] for name in ("count", "share") if name in row})
    return found
