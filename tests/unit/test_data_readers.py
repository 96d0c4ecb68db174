"""Reading files: three formats give the same columns, and a wrong structure gives one DataError that names it."""

from __future__ import annotations

import ast
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.federation import schema_of, write_records
from support.tables import told, totals
from veilsum_node.errors import DataError
from veilsum_participant.data import FindingKind, check_dataset, csv_files, load_records
from veilsum_participant.data.lines import Fault
from veilsum_participant.data.sources import read_table
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records

LABEL = LabelColumn(column="num", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1", "2"))))
SCHEMA = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=100),
        CategoryColumn(name="sex", categories=("0", "1"), impute="1"),
        NumberColumn(name="chol", low=100, high=500, impute=200),
    ),
    label=LABEL,
)
CSV = "sex,age,unused,chol,num\n0,60,x,300,0\n1.0,,y,?,2\n7,150,z,abc,9\n , 20 ,w,100.0,1.0\n"


def write(tmp_path: Path, content: str | bytes, name: str = "data.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_is_scaled_clamped_imputed_and_counted(tmp_path: Path) -> None:
    records, counts = load_records(write(tmp_path, CSV), SCHEMA)
    np.testing.assert_allclose(records.features, [[0, 1, 0, 0], [0, 0, 1, -0.5], [1, 0, 1, -0.5], [-1, 0, 1, -1]])
    np.testing.assert_array_equal(records.present[:, 0], [True, False, True, True])
    assert records.present[:, 1:].all()
    assert records.labels is not None
    np.testing.assert_array_equal(records.labels, [0, 1, -1, 1])
    assert told(counts, "read") == {"age": 4, "sex": 4, "chol": 4, "num": 4}
    assert told(counts, "outside") == {"age": 1, "sex": 0, "chol": 0, "num": 0}
    assert told(counts, "unmatched") == {"age": 0, "sex": 1, "chol": 1, "num": 1}
    assert told(counts, "missing") == {"age": 1, "sex": 1, "chol": 1, "num": 0}


def test_formats_agree(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    age, chol, sex, num = rng.uniform(0, 120, 50), rng.uniform(50, 600, 50), rng.integers(0, 2, 50), rng.integers(0, 3, 50)
    age[3] = np.nan
    rows = zip(sex, age, chol, num, strict=True)
    lines = [f"{a},{'' if np.isnan(b) else repr(float(b))},{float(c)!r},{d}\n" for a, b, c, d in rows]
    csv = "sex,age,chol,num\n" + "".join(lines)
    table = pa.table({"num": num, "sex": sex.astype(str), "age": pa.array(age, from_pandas=True), "chol": chol})
    parquet.write_table(table, tmp_path / "data.parquet")
    np.savez(tmp_path / "named.npz", age=age, sex=sex, chol=chol, num=num)
    np.savez(tmp_path / "xy.npz", X=np.column_stack([age, sex, chol]), y=num)
    want, _ = load_records(write(tmp_path, csv), SCHEMA)
    for name in ("data.parquet", "named.npz", "xy.npz"):
        got, _ = load_records(tmp_path / name, SCHEMA)
        np.testing.assert_array_equal(got.features, want.features)
        np.testing.assert_array_equal(got.present, want.present)
        np.testing.assert_array_equal(got.labels, want.labels)


def test_parquet_types(tmp_path: Path) -> None:
    table = pa.table(
        {
            "age": pa.array([30, None, 40], pa.int16()),
            "sex": pa.array([True, False, None]),
            "chol": pa.array(["200", "x", None]).dictionary_encode(),
            "num": pa.array([None, None, None], pa.null()),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    records, counts = load_records(tmp_path / "t.parquet", SCHEMA)
    np.testing.assert_array_equal(records.features[:, 1:3], [[0, 1], [1, 0], [0, 1]])
    np.testing.assert_array_equal(records.labels, [-1, -1, -1])
    assert told(counts, "missing") == {"age": 1, "sex": 1, "chol": 1, "num": 3}
    assert counts["chol"].unmatched == 1


def test_without_header(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"header": False, "order": ("age", "sex", "chol", "num", "rest")})
    records, _ = load_records(write(tmp_path, "60,0,300,0,a\n60,1,300,1,b\n"), schema)
    np.testing.assert_array_equal(records.features, [[0, 1, 0, 0], [0, 0, 1, 0]])
    report = check_dataset(write(tmp_path, "60,0,300,0\n"), schema)
    assert (report.records, totals(report)) == (1, {None: {FindingKind.BROKEN_ROW: 1}})
    assert len(load_records(tmp_path / "data.csv", schema)[0]) == 0
    assert len(load_records(write(tmp_path, ""), schema)[0]) == 0
    with pytest.raises(DataError, match="column 'who' is missing"):
        load_records(write(tmp_path, ""), schema, subject="who")


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_mark_line_ends_and_blank_lines(tmp_path: Path, prefix: bytes, end: bytes) -> None:
    data = prefix + end.join([b"age,sex,chol,num", b"60,0,300,0", b"", b"60,1,300,1", b"", b""])
    records, _ = load_records(write(tmp_path, data), SCHEMA)
    assert len(records) == 2
    assert check_dataset(tmp_path / "data.csv", SCHEMA).ok
    np.testing.assert_array_equal(records.labels, [0, 1])


def test_latin_1_does_not_cost_a_record(tmp_path: Path) -> None:
    column = CategoryColumn(name="ort", categories=("Köln", "Ulm"))
    schema = DatasetSchema(columns=(column,))
    for encoding in ("utf-8", "latin-1"):
        records, counts = load_records(write(tmp_path, "ort\nKöln\nUlm\n".encode(encoding)), schema)
        np.testing.assert_array_equal(records.features, [[1, 0], [0, 1]])
        assert told(counts, "unmatched") == {"ort": 0}


def test_rows_with_too_few_or_too_many_cells_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "age,sex,chol,num\n60,0,300,0\n1,2\n1,2,3,4,5\n60,1,300,1\n")
    records, _ = load_records(path, SCHEMA)
    assert len(records) == 2
    assert totals(check_dataset(path, SCHEMA)) == {None: {FindingKind.BROKEN_ROW: 2}}


def test_records_beyond_max_records_are_used_and_counted(tmp_path: Path) -> None:
    """To leave them out would let one more record at the head of the file push another one out: a change by two."""
    schema = SCHEMA.model_copy(update={"max_records": 2})
    records, _ = load_records(write(tmp_path, CSV), schema)
    assert len(records) == 4
    assert totals(check_dataset(tmp_path / "data.csv", schema))[None] == {FindingKind.TOO_MANY_RECORDS: 2}
    assert None not in totals(check_dataset(tmp_path / "data.csv", SCHEMA))


def test_empty_table_has_no_records(tmp_path: Path) -> None:
    records, _ = load_records(write(tmp_path, "age,sex,chol,num\n"), SCHEMA)
    assert records.features.shape == (0, 4)


def test_numeric_code_for_missing(tmp_path: Path) -> None:
    schema = SCHEMA.model_copy(update={"missing": ("-9",)})
    path = write(tmp_path, "age,sex,chol,num\n-9,-9,-9.0,-9\n60,0,NaN,0\ninf,0,1e3,0\n")
    records, counts = load_records(path, schema)
    assert told(counts, "missing") == {"age": 1, "sex": 1, "chol": 2, "num": 1}
    assert counts["age"].unmatched == 1
    assert told(counts, "outside") == {"age": 0, "sex": 0, "chol": 1, "num": 0}
    assert not records.present[0, 0]


def test_structure_errors_name_file_and_column(tmp_path: Path) -> None:
    cases: list[tuple[Path, str]] = [
        (tmp_path / "none.csv", "there is no such file"),
        (write(tmp_path, "", "empty.csv"), "is empty"),
        (
            write(tmp_path, "age,sx,chol,num\n1,2,3,4\n", "a.csv"),
            r"its first line names 3 of the 4 columns wanted: column 'sex' is missing",
        ),
        (write(tmp_path, "age,age,sex,chol,num\n1,1,2,3,4\n", "b.csv"), "column 'age' occurs more than once"),
        (write(tmp_path, b"PAR1 no parquet", "c.parquet"), "cannot be read"),
        (write(tmp_path, b"no zip", "d.npz"), "d.npz"),
    ]
    np.savez(tmp_path / "e.npz", age=np.array([{}], dtype=object), sex=[1], chol=[1], num=[1])
    np.savez(tmp_path / "f.npz", age=[1, 2], sex=[1], chol=[1], num=[1])
    np.savez(tmp_path / "g.npz", X=np.zeros((3, 4)), y=np.zeros(3))
    np.savez(tmp_path / "h.npz", age=[1], sex=[1], chol=[1j], num=[1])
    cases += [(tmp_path / "e.npz", "'age' holds object"), (tmp_path / "f.npz", "equally long")]
    np.save(tmp_path / "i.npy", np.zeros(3))
    (tmp_path / "i.npy").rename(tmp_path / "i.npz")
    cases += [
        (tmp_path / "i.npz", "not an npz archive"),
        (tmp_path / "g.npz", "has shape"),
        (tmp_path / "h.npz", "'chol' holds complex"),
    ]
    for path, expected in cases:
        with pytest.raises(DataError, match=expected) as caught:
            load_records(path, SCHEMA)
        assert path.name in str(caught.value)


def rows_of(records: Records) -> list[tuple[object, ...]]:
    assert records.labels is not None
    return [(*f, *p, y) for f, p, y in zip(records.features.tolist(), records.present.tolist(), records.labels, strict=True)]


CITY = CategoryColumn(name="sex", categories=("Köln", "Ulm"))
LINES = ["60,Köln,300,0", "61,Ulm,301,1", "?,Köln,x,9", "1e400,7,-.5,2", "62,Köln", "63,Köln,1,0,0"]
ODD = [
    b"60,K\xf6ln,300,0",
    b"\xff\xfe,\x80,,",
    b"nan,inf,-inf,1e999",
    b"0x1,1_0,+5,\xd9\xa3",
    b"1,2,3",
    b"60,Ulm,3,0,4,5",
    b",,,",
]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=8),
    added=st.one_of(
        st.sampled_from(ODD),
        st.binary(min_size=1, max_size=40).map(lambda data: data.translate(None, b'\r\n"')),
    ),
    place=st.integers(0, 8),
)
def test_one_line_more_changes_no_other_record(tmp_path: Path, lines: list[str], added: bytes, place: int) -> None:
    """Neighbouring files have neighbouring records: nothing about how a record is read depends on the others."""
    schema = SCHEMA.model_copy(update={"columns": (SCHEMA.columns[0], CITY, SCHEMA.columns[2]), "max_records": 3})
    encoded = [line.encode() for line in lines]
    both = [
        rows_of(load_records(write(tmp_path, b"\n".join([b"age,sex,chol,num", *file, b""])), schema)[0])
        for file in (encoded, [*encoded[:place], added, *encoded[place:]])
    ]
    assert len(both[1]) - len(both[0]) in (0, 1)
    more = list(both[1])
    for row in both[0]:
        more.remove(row)
    assert len(more) == len(both[1]) - len(both[0])


def test_a_cell_of_many_bytes_costs_neither_the_file_nor_the_record(tmp_path: Path) -> None:
    text = "age,sex,note,chol,num\n60,0," + "y" * (3 << 20) + ",300,1\n60,0,z,300,1\n"
    assert read_table(write(tmp_path, text), SCHEMA).rows == 2


def test_quoted_cells_cost_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the parser's blocks end within such a cell; which rows that meets would depend on all rows before."""
    monkeypatch.setattr(csv_files, "_BLOCK", 1 << 16)
    text = "age,sex,note,chol,num\n" + '60,0,"a ""word"", and another",300,1\n' * 30_000
    for odd, broken in (("", {}), ("60,0\n", {30_001: Fault.CELLS}), ('60,0,"x,1,1\n', {30_001: Fault.QUOTE})):
        table = read_table(write(tmp_path, text + odd), SCHEMA)
        assert (table.rows, table.broken) == (30_000, broken)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("60,0,z,300,1\n", [(True, True)]),
        ("60,0,\xe9,300,1\n", [(True, True)]),
        ("60,0\n60,0,z,300,1\n", [(True, True), (False, False)]),
    ],
    ids=["whole", "latin", "broken"],
)
def test_no_thread_of_arrow_s_holds_anything_of_python_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, calls: list[tuple[bool, bool]]
) -> None:
    """A process that ended right after reading was aborted, one in 300: such a thread met an interpreter that was ending."""
    seen: list[tuple[bool, bool]] = []
    original = csv_files.pacsv.read_csv

    def spied(raw: Any, *, read_options: Any, parse_options: Any, convert_options: Any) -> Any:
        native = isinstance(raw, pa.OSFile | pa.BufferReader) and parse_options.invalid_row_handler is None
        seen.append((read_options.use_threads, native))
        return original(raw, read_options=read_options, parse_options=parse_options, convert_options=convert_options)

    monkeypatch.setattr(csv_files.pacsv, "read_csv", spied)
    table = read_table(write(tmp_path, ("age,sex,note,chol,num\n" + text).encode("latin-1")), SCHEMA)
    assert (table.rows, table.broken) == (1, {1: Fault.CELLS} if len(calls) > 1 else {})
    assert seen == calls


PEOPLE = ["b,60,0,300,0", " a ,61,0,300,0", ",62,0,300,1", "b,63,0,300,1", "NA,64,0,300,0", "7,65,0,300,0", "007,66,0,300,0"]
SUBJECTS = "\n".join(["who,age,sex,chol,num", *PEOPLE, ""])


def ages(records: Records) -> list[int]:
    return [round(20 + 40 * (float(value) + 1)) for value in records.features[:, 0]]


def test_records_are_sorted_by_subject(tmp_path: Path) -> None:
    records, _ = load_records(write(tmp_path, SUBJECTS), SCHEMA, subject="who")
    assert records.subjects is not None
    assert list(zip(records.subjects.tolist(), ages(records), strict=True)) == [
        (0, 60), (0, 63), (1, 61), (2, 65), (3, 66), (4, 62), (5, 64),
    ]  # fmt: skip
    np.testing.assert_array_equal(records.labels, [0, 1, 0, 0, 0, 1, 0])
    found = {FindingKind.MISSING: 2, FindingKind.ALIKE: 2}  # 7 and 007 are two persons, who may be one
    assert totals(check_dataset(tmp_path / "data.csv", SCHEMA, subject="who")) == {"who": found}
    plain, _ = load_records(write(tmp_path, SUBJECTS), SCHEMA)
    assert plain.subjects is None
    assert ages(plain) == [60, 61, 62, 63, 64, 65, 66]


def test_a_study_cannot_declare_an_identifier_missing(tmp_path: Path) -> None:
    """Its schema comes from the analyst: a person called missing would count once for each of its records."""
    schema = SCHEMA.model_copy(update={"missing": ("b", "a", "7")})
    records, _ = load_records(write(tmp_path, SUBJECTS), schema, subject="who")
    assert records.subjects is not None
    assert records.subjects.tolist() == [0, 0, 1, 2, 3, 4, 5]
    assert totals(check_dataset(tmp_path / "data.csv", schema, subject="who"))["who"] == {
        FindingKind.MISSING: 2,
        FindingKind.ALIKE: 2,
    }


def test_subjects_in_all_formats(tmp_path: Path) -> None:
    big = 2**60
    who = np.array([big, big + 1, big, 5])
    cells = {"age": [60.0, 61.0, 62.0, 63.0], "sex": [0, 0, 1, 1], "chol": [1.0] * 4, "num": [0, 1, 0, 1]}
    np.savez(tmp_path / "n.npz", who=who, **cells)
    np.savez(tmp_path / "t.npz", who=who.astype(str), **cells)
    np.savez(tmp_path / "xy.npz", who=who, X=np.column_stack([cells["age"], cells["sex"], cells["chol"]]), y=cells["num"])
    parquet.write_table(pa.table({"who": who, **cells}), tmp_path / "i.parquet")
    parquet.write_table(pa.table({"who": pa.array(who.astype(str)).dictionary_encode(), **cells}), tmp_path / "d.parquet")
    lines = [",".join(map(str, line)) + "\n" for line in zip(who, *cells.values(), strict=True)]
    write(tmp_path, "who,age,sex,chol,num\n" + "".join(lines), "c.csv")
    write(tmp_path, "".join(lines), "headless.csv")
    headless = SCHEMA.model_copy(update={"header": False, "order": ("who", "age", "sex", "chol", "num")})
    for name in ("n.npz", "t.npz", "xy.npz", "i.parquet", "d.parquet", "c.csv", "headless.csv"):
        schema = headless if name == "headless.csv" else SCHEMA
        records, _ = load_records(tmp_path / name, schema, subject="who")
        assert records.subjects is not None
        assert records.subjects.tolist() == [0, 0, 1, 2], f"{name}: long numbers must not run together"
        assert ages(records) == [60, 62, 61, 63]
        assert "who" not in totals(check_dataset(tmp_path / name, schema, subject="who"))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1.5, None, float("nan"), 1.5]), [0, 0, 1, 2]),
        (pa.array([None] * 4), [0, 1, 2, 3]),
        (pa.array(["x", "X", "null", "n/a"]), [0, 1, 2, 3]),
        (pa.array([True, None, True, False]), [0, 0, 1, 2]),
    ],
)
def test_missing_identifiers_of_each_type(tmp_path: Path, column: pa.Array, expected: list[int]) -> None:
    table = pa.table({"who": column, "age": range(4), "sex": [0] * 4, "chol": [1] * 4, "num": [0] * 4})
    parquet.write_table(table, tmp_path / "m.parquet")
    subjects = load_records(tmp_path / "m.parquet", SCHEMA, subject="who")[0].subjects
    assert subjects is not None
    assert np.unique(subjects, return_inverse=True)[1].tolist() == expected


def test_a_column_of_subjects_that_is_not_there_or_no_identifier(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'wo' is missing"):
        load_records(write(tmp_path, SUBJECTS), SCHEMA, subject="wo")
    cells = {"age": [1], "sex": [0], "chol": [1], "num": [0]}
    parquet.write_table(pa.table({"who": [[1]], **cells}), tmp_path / "l.parquet")
    np.savez(tmp_path / "l.npz", who=np.array([1j]), **cells)
    np.savez(tmp_path / "s.npz", who=np.array([1, 2]), **cells)
    for name, expected in (("l.parquet", "told apart"), ("l.npz", "complex"), ("s.npz", "equally long")):
        with pytest.raises(DataError, match=expected):
            load_records(tmp_path / name, SCHEMA, subject="who")


def test_a_column_may_be_feature_and_identifier(tmp_path: Path) -> None:
    records = load_records(write(tmp_path, CSV), SCHEMA, subject="age")[0]
    assert records.subjects is not None
    assert records.subjects.tolist() == [0, 1, 2, 3]
    assert records.features.shape == (4, 4)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=300))
def test_any_bytes_give_records_or_a_data_error(tmp_path: Path, content: bytes) -> None:
    for name in ("x.csv", "x.npz", "x.parquet"):
        path = write(tmp_path, b"age,sex,chol,num\n" + content if name == "x.csv" else content, name)
        try:
            records, _ = load_records(path, SCHEMA)
            check_dataset(path, SCHEMA)
        except DataError:
            continue
        assert np.abs(records.features).max(initial=0.0) <= 1.0
        assert not records.features[~records.present].any()


LETTERS = st.characters(codec="utf-8", exclude_characters='\x00",\r\n', exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"])
CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.integers(-1000, 1000).map(str),
    st.sampled_from(["", "?", "NA", "1.0", "0", " 1 ", "1_0", "0x1", "nan", "+5", "1e2"]),
    st.text(LETTERS, max_size=5),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=8))
def test_cells_against_a_plain_reading(tmp_path: Path, rows: list[tuple[str, str, str, str]]) -> None:
    rows = [row for row in rows if any(row)]
    text = "age,sex,chol,num\n" + "".join(",".join(row) + "\n" for row in rows)
    records, _ = load_records(write(tmp_path, text), SCHEMA)
    assert len(records) == len(rows)
    for index, (age, _, _, num) in enumerate(rows):
        value = _number(age)
        assert bool(records.present[index, 0]) == (value is not None)
        if value is not None:
            assert records.features[index, 0] == pytest.approx(2 * (min(max(value, 20), 100) - 20) / 80 - 1, abs=1e-12)
        assert records.labels is not None
        label = _number(num)
        assert records.labels[index] == ({0.0: 0, 1.0: 1, 2.0: 1}.get(label, -1) if label is not None else -1)


def _number(text: str) -> float | None:
    """What the schema's text means, one cell at a time and by Python's own parser."""
    text = text.strip()
    if not text.isascii() or "_" in text:
        return None
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def test_headers_of_arrays_are_read_by_one_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python before 3.11.8 can fail where two threads parse syntax, which is how numpy reads a header."""
    path, schema = tmp_path / "records.npz", schema_of(2)
    write_records(path, np.zeros((3, 2)), np.zeros(3, dtype=np.int64))
    literal, inside, met = ast.literal_eval, threading.Semaphore(1), threading.Event()

    def alone(text: Any) -> Any:
        if not inside.acquire(blocking=False):
            met.set()
            return literal(text)
        met.wait(0.02)  # for another one to come, if it can
        inside.release()
        return literal(text)

    monkeypatch.setattr(ast, "literal_eval", alone)
    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(lambda _: read_table(path, schema), range(6)))
    assert [table.rows for table in tables] == [3] * 6
    assert not met.is_set()


def test_a_folder_is_no_archive_and_holds_no_parquet(tmp_path: Path) -> None:
    for name, said in (("d.npz", "is a folder, not a file"), ("d", "is a folder that holds no Parquet file")):
        (tmp_path / name).mkdir()
        with pytest.raises(DataError, match=said):
            check_dataset(tmp_path / name, SCHEMA)


def test_a_schemas_width_is_that_of_its_columns_whatever_it_was_copied_from() -> None:
    """It is counted once, and a copy with other columns takes what was counted along."""
    schema = schema_of(3)
    assert schema.width == 3
    wider = schema.model_copy(update={"columns": (*schema.columns, CategoryColumn(name="c", categories=("a", "b")))})
    assert (wider.width, wider.width, schema.width) == (5, 5, 3)
    same = DatasetSchema.model_validate_json(schema.model_dump_json())
    assert same == schema
    assert same.model_dump() == schema.model_dump()
