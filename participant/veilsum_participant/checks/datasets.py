"""Checks of datasets: that they are there, and how their records suit a schema."""

from __future__ import annotations

from collections.abc import Iterator

from veilsum_node.phrases import counted
from veilsum_participant.checks.check import Check, CheckOutcome
from veilsum_participant.data import CheckReport, FindingKind, check_dataset
from veilsum_participant.data.images import check_images
from veilsum_participant.data.parquet_files import file_parts
from veilsum_participant.data.queries import query_schema
from veilsum_participant.dataset_config import DatasetConfig
from veilsum_participant.query import Images, Source, SourceQuery
from veilsum_privacy.study.schema import DatasetSchema


def dataset(name: str, offered: DatasetConfig, schema: DatasetSchema | None) -> Iterator[Check]:
    """Whether a dataset is there, and how its records suit a schema."""
    label, source = f"dataset {name}", offered.origin(name)
    if schema is None:
        yield _there(label, source)
        return
    report = check_dataset(source, schema, subject=offered.subject, header=offered.header)
    columns = {column.name for column in schema.columns} | ({schema.label.column} if schema.label else set())
    clean = f"{len(columns - set(report.totals))} of {counted(len(columns), 'column')} as the schema says"
    detail = f"{counted(report.records, 'record')}; {clean}"
    if report.ok:
        yield Check(label, CheckOutcome.OK, detail)
    else:
        advice = "Violations are clamped or left out, as the schema says. Correct the file, or agree on another schema."
        yield Check(label, CheckOutcome.WARNING, detail, advice)
    for column, kinds in report.totals.items():  # a line each: of a wide file an operator reads what needs a look
        known = all(kind is FindingKind.MISSING for kind in kinds)  # what becomes of it was agreed
        told = "; ".join(_finding(report, column, kind) for kind in kinds)
        where = "whole rows" if column is None else f"column {column!r}"
        yield Check(label, CheckOutcome.OK if known else CheckOutcome.WARNING, f"{where}: {told}")
    if (spread := report.per_person) is not None:
        several = f"{spread.several:,} of them with several records, {spread.most:,} at most"
        advice = 'A study with privacy.unit = "record" protects each of them by itself; "subject" protects the person.'
        told = f"{counted(spread.persons, 'person')}, {several}"
        yield Check(label, CheckOutcome.OK, told, advice if spread.several else "")


def _there(label: str, source: Source) -> Check:
    """What can be said of a dataset without a schema and without a record."""
    if isinstance(source, Images):
        check_images(source)
        source = source.table
    if isinstance(source, SourceQuery):
        names = query_schema(source).names
        return Check(label, CheckOutcome.OK, f"the {source} is accepted; it yields {', '.join(names)}")
    if file_parts(source):
        return Check(label, CheckOutcome.OK, f"{source} is there; give a schema to check what it holds")
    return Check(label, CheckOutcome.FAILED, f"{source} is not there", "Check the path in participant.toml.")


def _finding(report: CheckReport, column: str | None, kind: FindingKind) -> str:
    """How often a fault is in a column, where it is first, and what is expected there."""
    count = report.totals[column][kind]
    places = [item for item in report.violations if (item.column, item.kind) == (column, kind)]
    where = ", ".join(item.place for item in places) + (", ..." if len(places) < count else "")
    return f"{kind}: {count:,} ({where}); {places[0].expected}"
