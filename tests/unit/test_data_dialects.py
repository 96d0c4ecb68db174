"""How a file of text is written is declared, never guessed; what is written otherwise is named, and nothing of a record is."""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import lzma
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from support.tables import totals
from veilsum_node.errors import DataError
from veilsum_participant.data import check_dataset, check_structure, csv_files, lines, load_records
from veilsum_participant.data.duck import count_texts
from veilsum_participant.data.json_files import has_key_twice
from veilsum_participant.data.sources import query_rows, read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import COMPRESSIONS, ENCODINGS, PLAIN, Dialect
from veilsum_participant.settings.query import SourceQuery, TextFile, origin
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

SLOW = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
SCHEMA = DatasetSchema(
    max_records=100,
    columns=(NumberColumn(name="age", low=0, high=100), CategoryColumn(name="town", categories=("Ulm", "Bonn"))),
)
TEXTS = DatasetSchema(
    columns=(CategoryColumn(name="a", categories=("x", "y")), CategoryColumn(name="b", categories=("x", "y")))
)
WIDE = ("utf-16", "utf-16-le", "utf-16-be")
OTHER = tuple(name for name in ENCODINGS if name != PLAIN.encoding)


def packed(data: bytes, compression: str) -> bytes:
    if compression == "zstd":
        out = pa.BufferOutputStream()
        with pa.CompressedOutputStream(out, "zstd") as stream:
            stream.write(data)
        return out.getvalue().to_pybytes()
    pack = {"": bytes, "gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress}[compression]
    return pack(data)


def rows_of(source: Any, schema: DatasetSchema) -> list[tuple[Any, ...]]:
    table = read_table(source, schema)
    return list(zip(*(table.columns[name].to_pylist() for name in schema.file_columns), strict=True))


@pytest.mark.parametrize("delimiter", "\t\x1f !#$%&*/:;<=>?@^_`|~,-")
def test_odd_lines_are_mended_whatever_separates_their_cells(tmp_path: Path, delimiter: str) -> None:
    """Some of the marks mean something else in a pattern."""
    text = 'age|town\n1|Ulm\n"2|Ulm\n3|"Bonn"\n\n"4"|Ulm\xe9\n5|6|Ulm\n"7""|"|Ulm"\n8|"Ulm\n'.replace("|", delimiter)
    (tmp_path / "t").write_bytes(text.encode("latin-1"))
    source = TextFile(tmp_path / "t", Dialect(delimiter=delimiter))
    assert rows_of(source, SCHEMA) == [
        ("1", "Ulm"), ("3", "Bonn"), ("4", "Ulm\xe9"), (f'7"{delimiter}'.strip(), 'Ulm"'),
    ]  # fmt: skip
    assert read_table(source, SCHEMA).broken == {
        2: lines.Fault.QUOTE, 5: lines.Fault.CELLS, 7: lines.Fault.QUOTE,
    }  # fmt: skip


@pytest.mark.sampled(7)
@pytest.mark.parametrize("encoding", OTHER)
def test_no_character_reaches_beyond_its_line_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    """Every pair of units that is broken or not, and triples that begin one of four, each before an end of line."""
    end, size = "\n".encode(encoding).removeprefix(codecs.BOM_UTF16), 1
    if encoding in WIDE:
        size = len(end)
        units = [bytes([0xD8, 0x00]), bytes([0xDC, 0x00]), bytes([0x00, 0x0D]), bytes([0xFF, 0xFE]), bytes([0x00, 0x41])]
        units = [unit.rjust(size, b"\0") for unit in units] + [bytes([0x00, 0xD8]).ljust(size, b"\0")]
        odd = [one + other for one in units for other in units]
    else:
        odd = [bytes([one, other]) for one in range(256) for other in range(256)]
        odd += [bytes([one, 0x30, other]) for one in range(0x81, 0xFF) for other in range(0x81, 0xFF, 3)]
        odd = [data for data in odd if not {*b"\n\r"} & {*data}]
    odd = [
        data for data in odd if "\n" not in data.decode(encoding, "replace") and "\r" not in data.decode(encoding, "replace")
    ]
    start = codecs.BOM_UTF16 if encoding == "utf-16" else b""
    follows = "next".encode(encoding).removeprefix(codecs.BOM_UTF16)
    (tmp_path / "t").write_bytes(start + b"".join(data + end + follows + end for data in odd))
    with lines.open_text(tmp_path / "t", Dialect(encoding=encoding)) as file:
        found = file.read().split(b"\n")
    assert found[1::2] == [b"next"] * len(odd)
    assert len(found) == 2 * len(odd) + 1


CELLS = st.text(st.characters(codec="latin-1", exclude_characters="\r\n\x85"), max_size=6)


@SLOW
@given(
    cells=st.lists(st.tuples(CELLS, CELLS), max_size=12),
    delimiter=st.sampled_from([",", ";", "\t", "|", "\x1f"]),
    encoding=st.sampled_from(["utf-8", "utf-16", "utf-16-be", "latin-1"]),
    compression=st.sampled_from(["", *COMPRESSIONS]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    small=st.booleans(),
)
def test_a_declared_file_is_what_pythons_own_reader_reads(
    tmp_path: Path, cells: Any, delimiter: str, encoding: str, compression: str, quoting: int, end: str, small: bool
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end).writerows([("a", "b"), *cells])  # type: ignore[call-overload]
    (tmp_path / "t.csv").write_bytes(packed(text.getvalue().encode(encoding), compression))
    want = [
        tuple(cell.strip(TRIMMED) for cell in row)
        for row in csv.reader(io.StringIO(text.getvalue(), newline=""), delimiter=delimiter)
    ]
    source = TextFile(tmp_path / "t.csv", Dialect(delimiter=delimiter, encoding=encoding, compression=compression))
    with pytest.MonkeyPatch.context() as patched:
        if small:
            patched.setattr(lines, "_READ", 7)
            patched.setattr(csv_files, "BATCH", 16)
        assert rows_of(source, TEXTS) == [row for row in want if row][1:]
        whole, _ = load_records(source, TEXTS)
        parts = list(stream_records(source, TEXTS, None))
    assert None not in totals(check_dataset(source, TEXTS))
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), whole.features)


TRIMMED = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace())


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"age;town\n1;Ulm\n", 'separated by semicolons: state delimiter = ";"'),
        (b"age\ttown\n1\tUlm\n", r'separated by tabs: state delimiter = "\\t"'),
        (b"age|town\n1|Ulm\n", r'vertical bars: state delimiter = "\|"'),
        (b"sep=;\nage;town\n1;Ulm\n", "remove that line, and state `delimiter`"),
        (b"# from the clinic\nage,town\n1,Ulm\n", "is a comment: remove it"),
        ("age,town\n1,Ulm\n".encode("utf-16"), 'state encoding = "utf-16"'),
        ("age,town\n1,Ulm\n".encode("utf-16-le"), 'state encoding = "utf-16-le"'),
        ("age,town\n1,Ulm\n".encode("utf-16-be"), 'state encoding = "utf-16-be"'),
        (gzip.compress(b"age,town\n1,Ulm\n"), 'state compression = "gzip"'),
        (bz2.compress(b"age,town\n1,Ulm\n"), 'state compression = "bzip2"'),
        (lzma.compress(b"age,town\n1,Ulm\n"), 'state compression = "xz"'),
        (packed(b"age,town\n1,Ulm\n", "zstd"), 'state compression = "zstd"'),
        (b"PK\x03\x04 and more", "is a ZIP archive, as spreadsheets are: save it as CSV"),
        (b"PAR1 and more", r"is a Parquet file: end its name in \.parquet"),
        (b'PAR1 "and more', r"is a Parquet file: end its name in \.parquet"),  # a quotation mark that stays open
        (b"years,place\n1,Ulm\n", "If its first line holds a record, state header = false"),
    ],
    ids=lambda given: given if isinstance(given, str) else "file",
)
def test_what_a_file_looks_like_is_named(tmp_path: Path, data: bytes, told: str) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(DataError, match=told) as caught:
        check_structure(tmp_path / "t.csv", SCHEMA, header=True)
    shown = caught.value.message + caught.value.advice
    assert all(letter.isprintable() for letter in shown)
    assert not any(word in shown for word in ("clinic", "years", "place", "Ulm"))


def test_without_a_header_nothing_is_told_of_a_first_record(tmp_path: Path) -> None:
    """It would say something of that record where a study is accepted; ``check`` looks, for the owner."""
    path = tmp_path / "t.csv"
    path.write_bytes(b"60;Ulm\n61;Bonn\n")
    schema = SCHEMA.model_copy(update={"header": False, "order": ("age", "town")})
    check_structure(path, schema, header=False)
    assert (
        check_dataset(path, schema, header=False).advice
        == 'Cells of its first line are separated by semicolons: state delimiter = ";".'
    )
    path.write_bytes(b"60,Ulm\n61;Bonn\n")
    assert check_dataset(path, schema, header=False).advice == ""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("change", ["other", "cut", "spoiled"])
def test_a_file_that_is_not_compressed_so_is_named(tmp_path: Path, compression: str, change: str) -> None:
    body = b"age,town\n" + b"".join(b"%d,MRN%d\n" % (number % 90, number * 7919) for number in range(5_000))
    data = packed(body, compression)
    data = {"other": body, "cut": data[: len(data) // 2], "spoiled": data[:200] + b"spoiled!" + data[208:]}[change]
    (tmp_path / "t.csv").write_bytes(data)
    if (compression, change) == ("zstd", "spoiled"):
        pytest.skip("Arrow writes no checksum into it")
    source = TextFile(tmp_path / "t.csv", Dialect(compression=compression))
    with pytest.raises(DataError, match=f"is not compressed with {compression}, or not whole") as caught:
        read_table(source, SCHEMA)
    assert "MRN" not in str(caught.value)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_compressed_file_may_have_several_members(tmp_path: Path, compression: str) -> None:
    (tmp_path / "t.csv").write_bytes(packed(b"age,town\n1,Ulm\n", compression) + packed(b"2,Bonn\n", compression))
    assert rows_of(TextFile(tmp_path / "t.csv", Dialect(compression=compression)), SCHEMA) == [("1", "Ulm"), ("2", "Bonn")]


@SLOW
@given(
    compression=st.sampled_from(COMPRESSIONS),
    members=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    behind=st.sampled_from(["nothing", "padding", "words", "a member damaged where it begins", "a member cut short"]),
    size=st.integers(1, 64),
)
def test_what_stands_behind_a_member_is_read_or_refused(
    tmp_path: Path, compression: str, members: list[int], behind: str, size: int
) -> None:
    """A damaged member takes its records with it: those before it are no whole file."""
    bodies = [b"".join(b"%d,Ulm\n" % row for row in range(rows)) for rows in members]
    data = b"".join(packed(body, compression) for body in (b"age,town\n", *bodies))
    more = packed(b"77,Bonn\n" * 9, compression)
    data += {"nothing": b"", "padding": bytes(8), "words": b"and so on", "a member cut short": more[: len(more) // 2]}.get(
        behind, b"?" + more[1:]
    )
    (tmp_path / "t.csv").write_bytes(data)
    source = TextFile(tmp_path / "t.csv", Dialect(compression=compression))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lines, "_READ", size)
        if behind == "nothing" or (behind == "padding" and compression != "zstd"):
            assert rows_of(source, SCHEMA) == [(str(row), "Ulm") for rows in members for row in range(rows)]
        else:
            with pytest.raises(DataError, match=f"is not compressed with {compression}, or not whole"):
                rows_of(source, SCHEMA)


def test_numbers_with_a_decimal_comma(tmp_path: Path) -> None:
    """There a point groups digits: 1.234 is a thousand. Texts keep theirs, and missing numbers are found by value."""
    schema = DatasetSchema(
        columns=(NumberColumn(name="x", low=-2000, high=2000), CategoryColumn(name="c", categories=("1,5", "a.b"))),
        missing=("-9.5",),
    )
    cells = ["1,5", "-0,25", ",5", "7", "1e2", "2,5E1", "1.234", "1.234,5", "1,234,5", "-9,5", "-9.5", "", "x"]
    body = "".join(f'"{cell}";"{text}"\r\n' for cell, text in zip(cells, ["1,5", "a.b", *["1.5"] * 11], strict=True))
    (tmp_path / "t.csv").write_bytes(("x;c\r\n" + body).encode("cp1252"))
    source = TextFile(tmp_path / "t.csv", Dialect(";", ",", "cp1252"))
    records, counts = load_records(source, schema)
    known = records.present[:, 0]
    assert (2000 * records.features[known, 0]).round(6).tolist() == [1.5, -0.25, 0.5, 7, 100, 25]
    assert (counts["x"].unmatched, counts["x"].missing) == (5, 2)
    assert records.features[:2, 1:].tolist() == [[1, 0], [0, 1]]
    report = check_dataset(TextFile(tmp_path / "t.csv", Dialect(";", ".", "cp1252")), schema)
    assert "state decimal" in report.advice


def test_a_missing_text_with_a_decimal_comma_is_no_number(tmp_path: Path) -> None:
    schema = DatasetSchema(columns=(NumberColumn(name="x", low=0, high=2000),), missing=("999,9",))
    (tmp_path / "t.csv").write_text("x\n999,9\n999,8\n")
    records, counts = load_records(TextFile(tmp_path / "t.csv", Dialect(";", ",")), schema)
    assert (records.present[:, 0].tolist(), counts["x"].missing, counts["x"].unmatched) == ([False, True], 1, 0)


@SLOW
@given(value=st.floats(-1e6, 1e6), places=st.integers(0, 9))
def test_a_decimal_comma_is_a_decimal_point(tmp_path: Path, value: float, places: int) -> None:
    point = f"{value:.{places}f}"
    schema = DatasetSchema(columns=(NumberColumn(name="x", low=-1e6, high=1e6),))
    (tmp_path / "p.csv").write_text(f"x\n{point}\n")
    (tmp_path / "c.csv").write_text(f"x\n{point.replace('.', ',')}\n")
    found = load_records(TextFile(tmp_path / "c.csv", Dialect(";", ",")), schema)[0]
    np.testing.assert_array_equal(found.features, load_records(tmp_path / "p.csv", schema)[0].features)


@pytest.mark.parametrize(
    ("text", "twice"),
    [
        ('{"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]}', False),
        ('{"a": 1, "a": 2}', True),
        (r'{"a": 1, "\u0061": 1}', True),
        ('{"b": [0, {"c": {"d": 1, "d": null}}], "e": {}}', True),
        (f'{{"a": {"9" * 5000}, "a": 1e{"9" * 99}}}', True),
        ("[" * 99_999, False),
        ('["a", "a", NaN]', False),
    ],
)
def test_a_key_that_stands_twice(text: str, twice: bool) -> None:
    assert has_key_twice(text) is twice


@pytest.mark.sampled(3)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-16-le"])
@pytest.mark.parametrize("compression", ["", *COMPRESSIONS])
@pytest.mark.parametrize("name", ["t.ndjson", "t.JSONL{}", "t.json", "t.json{}"])
def test_json_is_read_however_it_is_packed(tmp_path: Path, name: str, compression: str, encoding: str) -> None:
    """Of a document its first bytes tell, whatever its name; of lines the name, or what is declared, as is their encoding."""
    rows = [f'{{"a": "Ulm", "b": {number}}}' for number in range(3)]
    document = name.startswith("t.json")
    text = f"[{','.join(rows)}]" if document else "\n".join(rows)
    path = tmp_path / name.format({"": "", "gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".ZST"}[compression])
    path.write_bytes(packed(text.encode(encoding), compression))
    lines = Dialect(encoding="utf-8" if encoding == "utf-8-sig" else encoding, compression="" if "{}" in name else compression)
    dialect = PLAIN if document else lines
    query = SourceQuery("d", "SELECT json->>'$.a' AS a, json->'$.b' AS b FROM t", files={"t": path}, dialect=dialect)
    assert [tuple(row.values()) for row in query_rows(query).to_pylist()] == [("Ulm", str(number)) for number in range(3)]
    assert count_texts(path, dialect) == (1 if document else 3, 0, 0)


ASKED: dict[str, Any] = {"path": None, "source": "sql", "query": "SELECT 1", "joined": False}


def test_a_query_reads_its_files_as_declared(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("age;town\n60;Köln\n".encode("utf-16")))
    (tmp_path / "n.ndjson.gz").write_bytes(gzip.compress('{"a": 7}\n{"a": 8}\n'.encode("utf-16")))
    text = "SELECT t.age, t.town, json->>'$.a' AS a FROM t, n"
    files = {"t": tmp_path / "t.csv.gz", "n": tmp_path / "n.ndjson.gz"}
    query = SourceQuery("d", text, files=files, dialect=Dialect(";", ".", "utf-16", "gzip"))
    schema = DatasetSchema(columns=tuple(CategoryColumn(name=name, categories=("x", "y")) for name in ("age", "town", "a")))
    check_structure(query, schema)
    assert rows_of(query, schema) == [("60", "Köln", "7"), ("60", "Köln", "8")]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"delimiter": "ab"}, "delimiter"),
        ({"delimiter": '"'}, "delimiter"),
        ({"delimiter": "."}, "delimiter"),
        ({"delimiter": "1"}, "delimiter"),
        ({"decimal": ","}, "delimiter and decimal are the same mark"),
        ({"encoding": "utf-7"}, "is none of utf-8"),
        ({"encoding": "iso2022_jp"}, "is none of utf-8"),
        ({"compression": "rar"}, "compression"),
        ({"path": "t.parquet", "compression": "gzip"}, "are for CSV"),
        ({"path": "t.npz", "delimiter": ";"}, "are for CSV"),
        ({"schema_file": "s.toml"}, "go together"),
        ({"most_unmatched": 0.1}, "go together"),
        ({"schema_file": "s.toml", "most_unmatched": 1.0}, "less than 1"),
        (ASKED | {"files": {"t": "t.csv"}, "delimiter": ";", "decimal": ","}, "for a file"),
        (ASKED | {"files": {"t": "t.pq"}, "delimiter": ";"}, "for CSV and ndjson"),
    ],
)
def test_what_cannot_be_declared_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        DatasetConfig.model_validate({"path": "t.csv", **given})


def test_a_plain_file_is_its_path() -> None:
    assert origin(DatasetConfig(path=Path("t.csv")), "d") == Path("t.csv")
    assert origin(DatasetConfig(path=Path("t.csv"), delimiter=";"), "d") == TextFile(Path("t.csv"), Dialect(";"))


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("header", [True, False])
def test_a_zip_archive_is_named_where_nothing_of_it_is_read(tmp_path: Path, columns: int, *, header: bool) -> None:
    """Of a file without a header its structure tells nothing: what begins it may be a record."""
    names = [f"c{place}" for place in range(columns)]
    text = "".join(",".join(row) + "\n" for row in ([names] if header else []) + [["1"] * columns] * 9)
    with zipfile.ZipFile(tmp_path / "t.csv", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", text)
    numbers = tuple(NumberColumn(name=name, low=0, high=9) for name in names)
    schema = DatasetSchema(columns=numbers, header=header, order=() if header else tuple(names))
    told = "It is a ZIP archive, as spreadsheets are: save it as CSV."
    if header:
        with pytest.raises(DataError) as caught:
            check_dataset(tmp_path / "t.csv", schema)
        assert caught.value.advice == told
    else:
        assert check_dataset(tmp_path / "t.csv", schema).advice == told


@pytest.mark.parametrize("name", ["t.csv", "t.npz", "t.parquet", "t.ndjson"])
def test_a_pipe_is_no_file_and_is_called_so(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    source: Any = tmp_path / name
    if name == "t.ndjson":
        source = SourceQuery("records", "SELECT 1 AS x FROM t", files={"t": source})
    with pytest.raises(DataError, match="is a pipe or a device"):
        check_structure(source, DatasetSchema(columns=(NumberColumn(name="x", low=0, high=9),)))
