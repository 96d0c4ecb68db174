"""Checks of datasets: that they are there, and how their records suit a schema."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

from veilsum_node.phrases import counted
from veilsum_node.process.check import Check, CheckOutcome
from veilsum_node.telemetry.logs import printable
from veilsum_participant.data import FindingKind, check_dataset
from veilsum_participant.data.check import AGREED, Finding
from veilsum_participant.data.csv_files import CsvReader
from veilsum_participant.data.parquet_files import file_parts
from veilsum_participant.data.quality import count_lines
from veilsum_participant.data.sources import asked_query, check_derived, query_rows, reader_of
from veilsum_participant.data.table import require_columns
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import is_document, is_json
from veilsum_participant.settings.query import MISSES, Derived, Source, SourceQuery, TextFile, misses, origin
from veilsum_privacy.study.schema import DatasetSchema

_TEXTS, _LONGEST = 10, 60
"""Texts that are shown of a column, and letters of each."""

_UNREAD = {FindingKind.MISSING, FindingKind.NOT_A_NUMBER}
"""What records without pixels or tokens have in their place."""


def dataset(
    name: str, offered: DatasetConfig, schema: DatasetSchema | None, *, show: bool = False, texts: bool = False
) -> Iterator[Check]:
    """Whether a dataset is there, has the columns that the site states, and how its records suit a schema.

    Args:
        schema: without one only the dataset's structure is looked at.
        show: whether its operator asks to see the columns as they stand in the data. A CSV file's first line may be a record.
        texts: whether its operator asks to see the most frequent texts that match nothing.
    """
    label, source = f"dataset {name}", origin(offered, name)
    if show:
        yield _shown(label, source, offered)
    if schema is None:
        yield _there(label, source, offered)
        yield from _stated(label, offered, ())
        yield from _risks(label, source)
        return
    report = check_dataset(source, schema, subject=offered.subject, header=offered.header, most_records=offered.most_records)
    yield from _stated(label, offered, schema.file_columns)
    columns = {column.name for column in schema.columns} | ({schema.label.column} if schema.label else set())
    wrong: dict[str | None, list[Finding]] = {}
    for finding in report.findings:
        wrong.setdefault(finding.column, []).append(finding)
    clean = f"{len(columns - set(wrong))} of {counted(len(columns), 'column')} as the schema says"
    detail = f"{counted(report.records, 'record')}; {clean}"
    if not report.records:
        advice = "Is it the right file? Of a query, look at what it leaves aside."
        yield Check(
            label,
            CheckOutcome.FAILED,
            f"no record: the {'query yields nobody' if asked_query(source) else 'file is empty'}",
            advice,
        )
    elif report.ok:
        yield Check(label, CheckOutcome.OK, detail)
    else:
        advice = "Violations are clamped or left out, as the schema says. Correct the file, or agree on another schema."
        advice = report.advice or advice
        yield Check(label, CheckOutcome.WARNING, detail, advice)
    if unread := sum(report.unread.values()):
        why = ", ".join(f"{reason} ({count:,})" for reason, count in Counter(report.unread).most_common())
        what = "pixels" if offered.texts is None else "tokens"
        told = f"{unread:,} of {counted(report.records, 'record')} have no {what}: {why}"
        yield Check(label, CheckOutcome.WARNING, told, f"All {what} of these records count as missing.")
    derived = set(offered.derived)
    for column, found in wrong.items():  # a line each: of a wide file an operator reads what needs a look
        kinds = {finding.kind: finding.count for finding in found}
        if column in derived and kinds.keys() <= _UNREAD and sum(kinds.values()) == unread:
            continue
        known = all(kind in AGREED for kind in kinds)  # what becomes of it was agreed
        told = "; ".join(map(str, found))
        where = "whole rows" if column is None else f"column {column!r}"
        odd = next((cells.texts for cells in report.cells if cells.column == column), Counter())
        if odd and texts:
            shown = [f"{_toml_text(text[:_LONGEST])} {count:,}" for text, count in odd.most_common(_TEXTS)]
            told += f"; match nothing: {', '.join(shown)}"
        advice = "`--texts` shows the most frequent texts that match nothing." if odd and not texts else ""
        yield Check(label, CheckOutcome.OK if known else CheckOutcome.WARNING, f"{where}: {told}", advice)
    worst = max(report.cells, key=lambda cells: cells.share)
    if offered.most_unmatched is not None and worst.share > offered.most_unmatched:
        told = f"{worst.share:.2%} of the cells of column {worst.column!r} match nothing, most_unmatched is"
        advice = "A participant that starts with the site's own schema of it accepts no study of it. Correct what is stored."
        yield Check(label, CheckOutcome.FAILED, f"{told} {offered.most_unmatched:.2%}: it would be withheld", advice)
    yield from _lines(label, source)
    yield from _risks(label, source)
    yield from _misses(label, name, offered)
    if offered.most_records > schema.max_records:
        share = f"{schema.max_records:,} of {offered.most_records:,}"
        yield Check(label, CheckOutcome.OK, f"most_records is above the schema's max_records: its sums count for {share}")
    if (spread := report.per_person) is not None:
        several = int((spread > 1).sum())
        advice = 'A study with privacy.unit = "record" protects each of them by itself; "subject" protects the person.'
        told = f"{counted(len(spread), 'person')}, {several:,} of them with several records, {spread.max(initial=0):,} at most"
        yield Check(label, CheckOutcome.OK, told, advice if several else "")


def _lines(label: str, source: Source) -> Iterator[Check]:
    """How many records, or values of JSON, the tables of a query hold that are text, and what is left out of them."""
    for table, path, read, left_out, twice in count_lines(source):
        what = "JSON value" if is_json(path) else "record"
        part = "document" if is_document(path) else "line"
        told = f"table {table!r}: {counted(read, what)}; {counted(left_out, part)} left out, being none"
        if twice:
            odd = f"table {table!r}: {counted(twice, what)} with a key twice, of which the first counts"
            yield Check(label, CheckOutcome.WARNING, odd, "Other software takes the last: correct the file.")
        if not read and (left_out or is_json(path)):
            advice = "A .ndjson file has a value a line; call a file of one document, in whatever lines, .json."
            advice += " Of a file that is compressed and not called so, or not in UTF-8, state `compression` or `encoding`."
            advice = advice if left_out and is_json(path) else "Is this the right file?"
            yield Check(label, CheckOutcome.FAILED, told, advice)
        elif left_out:
            yield Check(label, CheckOutcome.WARNING, told, "Correct the file: no query sees these.")
        else:
            yield Check(label, CheckOutcome.OK, told)


def _risks(label: str, source: Source) -> Iterator[Check]:
    """What one record can make a query on files fail by, and with it all others' part in a sum."""
    if (query := asked_query(source)) is None or not query.files:
        return
    from veilsum_participant.data.duck import risks  # what asks no query of files does without

    if found := risks(query):
        told = f"its query fails, and every record of the site with it, on a cell that it cannot convert: {', '.join(found)}"
        yield Check(label, CheckOutcome.WARNING, told, "Convert by TRY_CAST, also what is compared with a number.")


def _misses(label: str, name: str, offered: DatasetConfig) -> Iterator[Check]:
    """What the dataset's own query about misses yields, for its operator alone.

    Each row says that of ``of`` things ``number`` are so, and whether that is ``meant``. Without a ``number`` it says how many
    there are.
    """
    if (query := misses(offered, name)) is None:
        return
    found = query_rows(query, MISSES)
    require_columns("The query of misses yields", MISSES, found.column_names)
    clean, warned = 0, False
    for row in found.select(list(MISSES)).to_pylist():
        what = printable(str(row["what"]))
        number, of, meant = (_whole(row[name]) for name in MISSES[1:])
        if number is None:
            status = CheckOutcome.OK if of else CheckOutcome.WARNING
            yield Check(label, status, f"{what}: {of or 0:,}", "" if of else "Is this the right table or file?")
        elif number:
            told = f"{what}: {number:,} of {of or 0:,}"
            status = CheckOutcome.OK if meant else CheckOutcome.WARNING
            yield Check(label, status, told, "" if meant or warned else _ADAPT)
            warned |= not meant
        else:
            clean += 1
    if clean:
        yield Check(label, CheckOutcome.OK, f"{counted(clean, 'other kind')} of misses looked for, none found")


_ADAPT = "What should count needs a change of the queries, such as a code system of your country, or of the data."


def _whole(value: object) -> int | None:
    """A number, or whether something is, as any database yields it; None for neither."""
    text = str(value).strip().lower()
    if text in ("true", "false", "t", "f"):
        return int(text.startswith("t"))
    try:
        return int(Decimal(text))
    except (ArithmeticError, ValueError):
        return None


def _shown(label: str, source: Source, offered: DatasetConfig) -> Check:
    """The columns as they stand in the data, as a line of participant.toml."""
    reader = reader_of(source)
    names = reader.columns() if offered.header or not isinstance(reader, CsvReader) else None
    if names is None:
        return Check(label, CheckOutcome.OK, "its columns have no names of their own")
    line = f"columns = [{', '.join(map(_toml_text, names))}]"
    return Check(label, CheckOutcome.OK, line, "State those that studies may ask for, if these are names and no record.")


def _toml_text(text: str) -> str:
    return json.dumps(printable(text), ensure_ascii=False)


def _stated(label: str, offered: DatasetConfig, asked: Sequence[str]) -> Iterator[Check]:
    """Whether the site states the columns, where studies are refused otherwise; and those of a schema that was checked."""
    derived = set(offered.derived)
    wanted = [name for name in asked if name not in derived]
    if not offered.columns and offered.named_in_records:
        advice = f"State them with the dataset: columns = [{', '.join(map(_toml_text, wanted))}]"
        if not asked:
            advice = "State them with the dataset; `--columns` shows what is there."
        told = "which columns studies may ask for is not stated: every study is refused"
        yield Check(label, CheckOutcome.FAILED, told, advice)
    elif offered.columns and (others := [name for name in wanted if name not in offered.columns]):
        told = f"{len(others)} of the schema's {counted(len(wanted), 'column')} are not among those that it states"
        yield Check(label, CheckOutcome.WARNING, told, f"If studies may ask for them, add: {', '.join(others[:20])}")


def _there(label: str, source: Source, offered: DatasetConfig) -> Check:
    """What can be said of a dataset without a schema and without a record."""
    if isinstance(source, Derived):
        check_derived(source)
        source = source.table
    if isinstance(source, SourceQuery) or (offered.columns and offered.named_in_records):
        (found,) = reader_of(source).layout()
        require_columns(found.says, offered.columns, found.schema.names, found.advice)
        if isinstance(source, SourceQuery):
            yielded = counted(len(found.schema.names), "column")
            return Check(label, CheckOutcome.OK, f"the {source} is accepted; it yields {yielded}")
        stated = counted(len(offered.columns), "column")
        return Check(label, CheckOutcome.OK, f"{source} is there; its first line names the {stated} that the site states")
    if file_parts(source.file if isinstance(source, TextFile) else source):
        return Check(label, CheckOutcome.OK, f"{source} is there; give a schema to check what it holds")
    return Check(label, CheckOutcome.FAILED, f"{source} is not there", "Check the path in participant.toml.")
