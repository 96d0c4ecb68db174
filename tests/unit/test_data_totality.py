"""What one record holds decides nothing but that record: neither whether a file is read, nor how any other record is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.tables import (
    ORDER,
    SCHEMA,
    assert_one_group_changed,
    assert_one_more,
    groups_of,
    places,
    records_of,
    rows_of,
    totals,
    trimmed,
)
from veilsum_node.errors import DataError
from veilsum_participant.data import FindingKind, check_dataset, csv_files, lines, load_records
from veilsum_participant.data.cells import judge_table
from veilsum_participant.data.lines import Fault, split_line
from veilsum_participant.data.sources import check_structure, query_rows, read_table
from veilsum_participant.data.subjects import number_subjects
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

HEADLESS = SCHEMA.model_copy(update={"header": False, "order": ORDER})
HEADER = ",".join(ORDER).encode()
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

PLAIN = [b"a,30,Ulm,1", "b,40,Köln,0".encode(), b'a,"31","Ulm",1', b'"c, d",50,Ulm,0', b"", b',7,"K""ln",']
ODD = [
    HEADER,
    b'e,"60,Ulm,1',
    b'"',
    b'e,60,Ulm,"',
    b"e,60,5'10\",1",
    b'e,60,x"y,"z"w"',
    b'e,6"0,U"lm,1',
    b'"a""',
    b"a,60",
    b"a,60,Ulm,1,",
    b"e,60,\xff,1",
    b"e,60,\xc3,1",
    b"\xef\xbb\xbfe,60,Ulm,1",
    b"\xef\xbb\xbf",
    b"\xef\xbb\xbf\xef\xbb\xbfe,60,Ulm,1",
    b"e\x00,\x00,\x00,1",
    b"e,1e999,Ulm,1e-999",
    b"e,\xe2\x80\xa8,\x0b\x0c\x1c\x85,1",
    b"," * 40,
    b"y" * 120,
    b'"' + b"y" * 90 + b'",60,Ulm,1',
]
LETTERS = st.binary(max_size=30).map(lambda data: data.translate(None, b"\r\n"))
LETTERS_OF_CSV = st.lists(st.sampled_from([b'"', b",", b"a", b"1", b"\xef\xbb\xbf", b"\xff", b"\x00"]), max_size=12).map(
    b"".join
)
LINES = st.one_of(st.sampled_from(PLAIN), st.sampled_from(ODD), LETTERS, LETTERS_OF_CSV)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@pytest.fixture(params=["as built", "small"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read in blocks: what it holds must not depend on where they end."""
    if request.param == "small":
        monkeypatch.setattr(lines, "_READ", 5)
        monkeypatch.setattr(lines, "MAX_LINE", 64)
        monkeypatch.setattr(csv_files, "_BLOCK", 256)


@settings(EXAMPLES, max_examples=30)
@given(before=st.lists(LINES, max_size=5), after=st.lists(LINES, max_size=5), added=LINES, end=ENDS, last=st.booleans())
@pytest.mark.parametrize("schema", [SCHEMA, HEADLESS], ids=["header", "no header"])
def test_one_line_more_of_a_csv_file_is_one_record_more_at_most(
    tmp_path: Path,
    blocks: None,
    schema: DatasetSchema,
    before: list[bytes],
    after: list[bytes],
    added: bytes,
    end: bytes,
    last: bool,
) -> None:
    head = [HEADER] if schema.header else []
    found = []
    for name, middle in (("without.csv", []), ("with.csv", [added])):
        path = tmp_path / name
        path.write_bytes(end.join([*head, *before, *middle, *after]) + end * last)
        check_structure(path, schema, subject="who", header=schema.header)
        table = read_table(path, schema, subject="who")
        report = check_dataset(path, schema, subject="who", header=schema.header)
        assert report.records == table.rows + len(table.broken)
        found.append((rows_of(table), records_of(path, schema), groups_of(path, schema), list(table.broken.values())))
    (rows, records, groups, broken), (more_rows, more_records, more_groups, more_broken) = found
    assert_one_more(rows, more_rows)
    assert_one_more(records, more_records)
    assert_one_group_changed(groups, more_groups)
    assert_one_more(broken, more_broken)
    assert len(more_rows) - len(rows) + len(more_broken) - len(broken) in (0, 1)


JSON_HEADS = [
    b"\x1f\x8b\x08",
    b"BZh9",
    b"\xfd7zXZ\x00",
    b"\x28\xb5\x2f\xfd",
    b"PK\x03\x04",
    b"\xff\xfe",
    b"\xfe\xff",
    b"\xef\xbb\xbf",
]
JSON_LINES = st.one_of(
    st.sampled_from([b'{"age": 30}', b'{"age": "Ulm"}', b"[1]", b"", b"{", b'{\0"\0}\0' * 9, b"{\0" * 3000, b"\0{" * 3000]),
    st.builds(bytes.__add__, st.sampled_from(JSON_HEADS), LETTERS),
    LETTERS,
)


@EXAMPLES
@given(before=st.lists(JSON_LINES, max_size=3), after=st.lists(JSON_LINES, max_size=3), added=JSON_LINES, name=st.booleans())
@example(before=[], after=[b'{"age": 30}'] * 3, added=b"\xff\xfe", name=False)
@example(before=[b'{"age": 30}'], after=[b'{"age": 30}'], added=b"{\0" * 3000, name=True)
def test_one_line_more_of_json_is_one_value_more_at_most(
    tmp_path: Path, before: list[bytes], after: list[bytes], added: bytes, name: bool
) -> None:
    """Were it looked at how the file is written, the first line, or one of zeros near it, would decide how all are read."""
    found = []
    for middle in ([], [added]):
        path = tmp_path / ("t.jsonl" if name else "t.ndjson")
        path.write_bytes(b"\n".join([*before, *middle, *after]))
        query = SourceQuery("d", "SELECT json FROM t", files={"t": path})
        found.append([row["json"] for row in query_rows(query).to_pylist()])
    assert_one_more(*found)


def plain_cells(line: bytes) -> list[str] | None:
    """A line's cells letter by letter, as ``docs/files.md`` says; None where a quotation mark stays open."""
    while line[:3] == b"\xef\xbb\xbf":
        line = line[3:]
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    cells, cell, state = [], "", "start"
    for letter in text:
        if state == "quoted":
            state = "mark" if letter == '"' else state
            cell += letter if letter != '"' else ""
        elif state == "mark" and letter == '"':
            cell, state = cell + letter, "quoted"
        elif letter == ",":
            cells.append(cell)
            cell, state = "", "start"
        elif state == "start" and letter == '"':
            state = "quoted"
        else:
            cell, state = cell + letter, "open"
    return None if state == "quoted" else [*cells, cell]


@EXAMPLES
@given(content=st.lists(LINES, max_size=8), ends=st.lists(ENDS, min_size=8, max_size=8))
def test_each_line_is_read_as_a_plain_reading_reads_it(
    tmp_path: Path, blocks: None, content: list[bytes], ends: list[bytes]
) -> None:
    path = tmp_path / "plain.csv"
    data = b"".join(line + end for line, end in zip(content, ends, strict=False))
    path.write_bytes(data)
    columns = DatasetSchema(columns=tuple(CategoryColumn(name=name, categories=("0", "1")) for name in ORDER))
    table = read_table(path, columns.model_copy(update={"header": False, "order": ORDER}))
    want, broken, numbers = [], {}, {}
    number, row = 0, 0
    for line in data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"):
        number += 1
        cells = plain_cells(line)
        if not line.replace(b"\xef\xbb\xbf", b""):
            continue
        row += 1
        numbers[row] = number
        if len(line.removeprefix(b"\xef\xbb\xbf")) > lines.MAX_LINE:
            broken[row] = Fault.LENGTH
        elif cells is None:
            broken[row] = Fault.QUOTE
        elif len(cells) != len(ORDER):
            broken[row] = Fault.CELLS
        else:
            want.append(tuple(trimmed(cell) for cell in cells))
    assert rows_of(table) == want
    assert table.broken == broken
    assert list(table.broken) == sorted(broken)
    with path.open("rb") as file:
        assert lines.line_numbers(file, numbers, header=False) == numbers


def test_a_quotation_mark_left_open_costs_its_own_line(tmp_path: Path) -> None:
    """It took in what followed, up to the next one or the file's end; a reader of lines finds each in its place."""
    path = tmp_path / "open.csv"
    path.write_bytes(HEADER + b'\r\na,30,Ulm,1\r\n\r\nb,"31,Ulm,1\r\nc,32,"Ulm",1\r\nd,33\r\n"e""",34,5\'10",0\r\n')
    table = read_table(path, SCHEMA, subject="who")
    assert table.subjects.to_pylist() == ["a", "c", 'e"']
    assert table.broken == {2: Fault.QUOTE, 4: Fault.CELLS}
    report = check_dataset(path, SCHEMA)
    assert places(report) == [
        (2, 4, None, FindingKind.OPEN_QUOTE),
        (4, 6, None, FindingKind.BROKEN_ROW),
        (5, 7, "town", FindingKind.UNKNOWN_CATEGORY),
    ]
    assert totals(report)[None] == {FindingKind.OPEN_QUOTE: 1, FindingKind.BROKEN_ROW: 1}
    (expected,) = (finding.expected for finding in report.findings if finding.kind == FindingKind.OPEN_QUOTE)
    assert "cannot reach beyond its line" in expected
    assert "Parquet" in expected


def test_a_long_first_record_is_a_record(tmp_path: Path) -> None:
    """Python's own limit for a cell is 131,072 letters, and it raises."""
    path = tmp_path / "first.csv"
    path.write_bytes(b'"' + b"y" * 200_000 + b'",60,Ulm,1\nb,61,Ulm,1\n')
    assert read_table(path, HEADLESS).columns["age"].to_pylist() == ["60", "61"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("most", [100, lines.MAX_LINE], ids=["short", "as built"])
def test_a_line_without_end_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also where it is quoted, ends a file or has no more than quotation marks; a shorter one is used."""
    monkeypatch.setattr(lines, "MAX_LINE", most)
    longest = b"a" * (lines.MAX_LINE - len(b",30,Ulm,1"))
    for odd in (b"a" * (lines.MAX_LINE + 1), longest + b"a,30,Ulm,1", b'"' * (3 * lines.MAX_LINE)):
        path = tmp_path / "long.csv"
        path.write_bytes(b"\n".join([longest + b",30,Ulm,1", b"b,31,Ulm,1", odd, b"c,32,Ulm,1", odd]))
        table = read_table(path, HEADLESS)
        assert table.columns["age"].to_pylist() == ["30", "31", "32"]
        assert table.broken == {3: Fault.LENGTH, 5: Fault.LENGTH}
    assert totals(check_dataset(path, HEADLESS))[None] == {FindingKind.LONG_LINE: 2}
    assert split_line(b'"' * lines.MAX_LINE) == [b'"' * (lines.MAX_LINE // 2 - 1)]


def test_texts_of_any_length_in_all_fit_a_column(tmp_path: Path) -> None:
    """With offsets of 32 bits the record that fills 2 GiB would make the column unreadable."""
    (tmp_path / "t.csv").write_bytes(HEADER + b"\na,1,Ulm,0\n")
    parquet.write_table(pa.table({name: ["1", "2"] for name in ORDER}), tmp_path / "t.parquet")
    np.savez(tmp_path / "t.npz", **{name: np.array(["1", "2"]) for name in ORDER})  # type: ignore[arg-type]
    for name in ("t.csv", "t.parquet", "t.npz"):
        table = read_table(tmp_path / name, SCHEMA, subject="who")
        assert {column.type for column in (*table.columns.values(), table.subjects)} == {pa.large_string()}


NUMERALS = st.one_of(
    st.text("0123456789.eE+-", max_size=8),
    st.text("0189.eE+-xXnNaAiIfFtTyYpP_() \x00٣", max_size=8),
    st.integers(0, 2000).map(lambda digits: "1" * digits),
)


@EXAMPLES
@given(st.lists(NUMERALS, min_size=1, max_size=6))
def test_a_numeral_is_a_number_or_not_whatever_stands_beside_it(cells: list[str]) -> None:
    column = NumberColumn(name="x", low=-10, high=10)

    def judged(texts: list[str]) -> list[tuple[object, ...]]:
        schema = DatasetSchema(columns=(column,), missing=("", "?"))
        found = next(judge_table({"x": pa.array(texts, pa.large_string())}, schema))
        parts = (np.nan_to_num(found.values, nan=99.0), found.missing, found.invalid, found.outside)
        return list(zip(*(part.tolist() for part in parts), strict=True))

    assert judged(cells) == [judged([cell])[0] for cell in cells]


@EXAMPLES
@given(st.lists(st.one_of(st.none(), st.text(max_size=3), st.sampled_from(["a", "é", "e\u0301", "NA", " "])), max_size=8))
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
def test_two_records_are_of_one_subject_or_not_whatever_others_hold(kind: Any, identifiers: list[str | None]) -> None:
    numbers, missing = number_subjects([pa.array(identifiers, kind)])
    for one in range(len(identifiers)):
        for other in range(one + 1, len(identifiers)):
            alone, gone = number_subjects([pa.array([identifiers[one], identifiers[other]], kind)])
            assert (alone[0] == alone[1]) == (numbers[one] == numbers[other])
            assert gone.tolist() == missing[[one, other]].tolist()


@EXAMPLES
@given(content=st.binary(max_size=60), schema=st.sampled_from([SCHEMA, HEADLESS]))
def test_no_record_of_a_csv_file_changes_whether_it_can_be_read(
    tmp_path: Path, blocks: None, content: bytes, schema: DatasetSchema
) -> None:
    path = tmp_path / "any.csv"
    path.write_bytes((HEADER + b"\n" if schema.header else b"") + content)
    check_structure(path, schema, subject="who", header=schema.header)
    records, _ = load_records(path, schema, "who", header=schema.header)
    assert np.abs(records.features).max(initial=0.0) <= 1.0


def test_whether_the_first_line_names_columns_is_its_owner_s_word(tmp_path: Path) -> None:
    """By a schema's word, a first record that reads like the study's columns would let the site take part."""
    for content in (b"", HEADER + b"\n", b"a,30,Ulm,1\n"):
        path = tmp_path / "records.csv"
        path.write_bytes(content)
        for schema in (SCHEMA, HEADLESS):
            for read in (check_structure, read_table):
                with pytest.raises(DataError, match="first line") as caught:
                    read(path, schema, header=not schema.header)
                assert "[datasets]" in str(caught.value)
    path = tmp_path / "records.parquet"
    parquet.write_table(pa.table(dict.fromkeys(ORDER, pa.array([1]))), path)
    for header in (True, False):
        check_structure(path, SCHEMA, header=header)
        check_structure(path, HEADLESS, header=header)


def test_structure_is_told_without_a_record(tmp_path: Path) -> None:
    """Where the records cannot be read at all, the structure still can."""
    csv = tmp_path / "r.csv"
    csv.write_bytes(b"\xef\xbb\xbf\r\n" + b'"who", age ,"to""wn",town,ill' + b"\x00" * 1000)
    with pytest.raises(DataError, match="column 'ill' is missing"):
        check_structure(csv, SCHEMA)
    csv.write_bytes(b"\xef\xbb\xbf\r\n" + b'"who", age ,"to""wn",town,ill\r' + b"\x00" * 1000)
    check_structure(csv, SCHEMA, subject='to"wn')
    for content, expected in (
        (b'who,"age,town,ill\n"', "not closed"),
        (b"\n\r\n", "empty"),
        (b"x" * (lines.MAX_LINE + 1), "longer"),
    ):
        csv.write_bytes(content)
        with pytest.raises(DataError, match=expected):
            check_structure(csv, SCHEMA)
    columns = {name: np.arange(100_000.0) for name in ORDER}
    np.savez(tmp_path / "r.npz", **columns)  # type: ignore[arg-type]
    parquet.write_table(pa.table(columns), tmp_path / "r.parquet", compression="none", use_dictionary=False)
    for name in ("r.npz", "r.parquet"):
        path = tmp_path / name
        data = bytearray(path.read_bytes())
        data[2_000:700_000] = bytes(698_000)
        path.write_bytes(data)
        check_structure(path, SCHEMA, subject="who")
        with pytest.raises(DataError):
            read_table(path, SCHEMA, subject="who")
