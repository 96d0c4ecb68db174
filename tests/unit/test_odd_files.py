"""Odd files of every kind: each is read as its reference reader reads it, or refused by name; and no record changes another.

The reference of CSV is a reading letter by letter, of Parquet Arrow's own values, of ndjson Python's ``json``.
"""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import json
import math
import os
import resource
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pyarrow.parquet.encryption as encryption
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from veilsum_node.errors import DataError
from veilsum_participant.data import check_structure, csv_files, lines, load_records
from veilsum_participant.data.sources import opened, read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.forms import Dialect
from veilsum_participant.settings.query import Source, SourceQuery, TextFile
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn, NumberColumn

ODD = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
NAMED = ("1", "2.5", "true", "no", "042", "x")
SPACES = "".join(letter for letter in map(chr, range(0x3001)) if letter.isspace())
UTC = dt.UTC
DAYS = st.datetimes(dt.datetime(1900, 1, 2), dt.datetime(2100, 1, 1))  # noqa: DTZ001  one is in no zone

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float16": (pa.float16(), st.floats(width=16).map(np.float16)),
    "float32": (pa.float32(), st.floats(width=32)),
    "float64": (pa.float64(), st.floats()),
    "decimal": (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.sampled_from([*NAMED, " 1", "1.0", "042 ", "", "nan", "é"])),
    "large_string": (pa.large_string(), st.text(max_size=4)),
    "string_view": (pa.string_view(), st.text(max_size=4)),
    "binary": (pa.binary(), st.binary(max_size=4)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(NAMED)),
    "null": (pa.null(), st.none()),
    "uuid": (pa.uuid(), st.uuids()),
    "date32": (pa.date32(), st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))),
    "timestamp": (pa.timestamp("us"), DAYS),
    "zoned": (pa.timestamp("us", "+05:00"), DAYS.map(lambda day: day.replace(tzinfo=UTC))),
    "duration": (pa.duration("s"), st.integers(0, 9).map(lambda n: dt.timedelta(seconds=n))),
    "time": (pa.time64("us"), st.times()),
    "list": (pa.list_(pa.int64()), st.lists(st.integers(0, 9), max_size=2)),
    "struct": (pa.struct({"a": pa.int64()}), st.fixed_dictionaries({"a": st.integers(0, 9)})),
}  # fmt: skip
DATES = ("date32", "timestamp", "zoned")
REFUSED = ("duration", "time", "list", "struct")


def spelled(value: Any, kind: str) -> str | None:
    """A cell as a text; None where there is none."""
    if value is None:
        return None
    if kind == "binary":
        try:
            return bytes(value).decode().strip(SPACES)
        except UnicodeDecodeError:
            return bytes(value).decode("latin-1").strip(SPACES)
    if isinstance(value, str):
        return value.strip(SPACES)
    if isinstance(value, bool):
        return str(value).lower()
    if kind == "float32":
        return str(np.float32(value))
    return str(value)


def number(value: Any, kind: str) -> float:
    """What a number column makes of a cell: NaN where it holds none."""
    if value is None:
        return math.nan
    if isinstance(value, bool | int | float | Decimal | np.floating):
        read = float(str(value)) if kind == "float16" else float(str(np.float32(value))) if kind == "float32" else float(value)
    else:
        text = spelled(value, kind) or ""
        shape = text.removeprefix("+").removeprefix("-") if text[:1] in "+-" else text
        if not shape or not set(shape) <= set("0123456789.eE+-") or shape[0] in "eE+-":
            return math.nan
        try:
            read = float(text)
        except ValueError:
            return math.nan
    return read if math.isfinite(read) else math.nan


def code(value: Any, kind: str) -> int:
    """The category that a cell means: by its text, else as the only one of its number or truth."""
    text = spelled(value, kind)
    if text is None:
        return -1
    if text in NAMED:
        return NAMED.index(text)
    if isinstance(value, bool):
        return {True: -1, False: NAMED.index("no")}[value]
    meant = {"1": Decimal(1), "2.5": Decimal("2.5")}
    if kind not in ("string", "large_string", "string_view", "binary", "dictionary", "uuid"):
        meant["042"] = Decimal(42)  # a number has no leading zeros that could tell it apart
    try:
        exact = Decimal(text)
    except ArithmeticError:
        return -1
    odd = any(letter not in "0123456789.eE+-" for letter in text)
    odd = odd or (text.lower().partition("e")[2].isdigit() and "." not in text)  # 1E1 is a ward
    digits = text.lstrip("+-").partition(".")[0]
    if odd or (len(digits) > 1 and digits.startswith("0")) or not exact.is_finite():
        return -1
    return next((NAMED.index(name) for name, own in meant.items() if own == exact), -1)


def columns_of(found: Any) -> tuple[list[float], list[int]]:
    """Numbers, NaN for none, and codes, -1 for none, of records under :func:`schema`."""
    values = np.where(found.present[:, 0], found.features[:, 0], np.nan)
    names = found.features[:, 1 : 1 + len(NAMED)]
    return values.tolist(), [int(row.argmax()) if row.any() else -1 for row in names]


def schema() -> DatasetSchema:
    return DatasetSchema(
        columns=(NumberColumn(name="n", low=-1000.0, high=1000.0), CategoryColumn(name="c", categories=NAMED)),
        max_records=1000,
    )


def scaled(value: float) -> float:
    clamped = min(max(value, -1000.0), 1000.0)
    return value if math.isnan(value) else min(max((clamped + 1000.0) / 1000.0 - 1.0, -1.0), 1.0)


def joined(source: Source, under: DatasetSchema, rows: int) -> Any:
    whole, counts = load_records(source, under)
    parts = list(stream_records(source, under, None, rows=rows))
    np.testing.assert_array_equal(np.concatenate([part.features for part in parts]), whole.features)
    np.testing.assert_array_equal(np.concatenate([part.present for part in parts]), whole.present)
    assert {cells.read for cells in counts.values()} == {len(whole)}
    return whole


@ODD
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), rows=st.integers(1, 5), group=st.integers(1, 4))
def test_parquet_of_every_type(tmp_path: Path, data: st.DataObject, kind: str, rows: int, group: int) -> None:
    arrow, cells = KINDS[kind]
    given_cells = data.draw(st.lists(st.none() | cells, max_size=8))
    storage = (
        pa.array([None if cell is None else cell.bytes for cell in given_cells], pa.binary(16)) if kind == "uuid" else None
    )
    column = pa.array(given_cells, arrow) if storage is None else pa.ExtensionArray.from_storage(pa.uuid(), storage)
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"n": column, "c": column}), path, row_group_size=group)
    under = schema()
    if kind in (*REFUSED, *DATES):
        with pytest.raises(DataError, match=r"column '[nc]' holds "):
            load_records(path, under)
        if kind in DATES:
            days(path, given_cells, kind, rows)
        return
    if kind == "bool":
        with pytest.raises(DataError, match="in which '1' and 'true' are the same"):
            load_records(path, under)
        return
    found, codes = columns_of(joined(path, under, rows))
    np.testing.assert_array_equal(found, [scaled(number(cell, kind)) for cell in given_cells])
    assert codes == [code(cell, kind) for cell in given_cells]
    if given_cells:
        place = data.draw(st.integers(0, len(given_cells) - 1))
        parquet.write_table(pa.table({"n": column, "c": column}).slice(0, place), tmp_path / "less.parquet")
        fewer, others = columns_of(joined(tmp_path / "less.parquet", under, rows))
        np.testing.assert_array_equal(fewer, found[:place])
        assert others == codes[:place]


def days(path: Path, cells: list[Any], kind: str, rows: int) -> None:
    """A date is its day where it was taken."""
    under = DatasetSchema(columns=(DateColumn(name="n", low=-40_000, high=60_000, origin="1970-01-01"),), max_records=1000)
    records = joined(path, under, rows)
    found = np.where(records.present[:, 0], (records.features[:, 0] + 1) * 50_000 - 40_000, np.nan)
    zone = dt.timezone(dt.timedelta(hours=5))
    own = [cell.astimezone(zone) if kind == "zoned" and cell is not None else cell for cell in cells]
    want = [
        math.nan if cell is None else (dt.date(cell.year, cell.month, cell.day) - dt.date(1970, 1, 1)).days for cell in own
    ]
    np.testing.assert_allclose(found, want, atol=1e-6)


SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
LONG = st.one_of(
    st.sampled_from([2**63 - 1, -(2**63) + 1, -1, 0]),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.builds(lambda year, per: year * 31_556_952 * per, st.integers(-70_000, 70_000), st.sampled_from([*SECONDS.values()])),
)  # fmt: skip


@ODD
@given(cells=st.lists(st.none() | LONG, max_size=6), unit=st.sampled_from([*SECONDS, "date32", "date64"]), zone=st.booleans())
@example(cells=[2**63 - 1], unit="ms", zone=False)
@example(cells=[(67_568 - 1970) * 31_556_952 * 10**6], unit="us", zone=True)
@example(cells=[-1], unit="ns", zone=False)
def test_a_day_that_no_calendar_has_is_none_and_never_another(
    tmp_path: Path, cells: list[int | None], unit: str, zone: bool
) -> None:
    """Software writes the largest number for "for ever", and years beyond 32,767 wrap around where days are told."""
    per, most = {"date32": (1, 2**31), "date64": (86_400_000, 2**63)}.get(unit, (86_400 * SECONDS.get(unit, 1), 2**63))
    most -= per if unit in ("ns", "date64") else 0  # its day could begin, or be moved by a zone, beyond what can be stored
    most = most // 1000 if unit == "s" else most  # Parquet stores milliseconds
    own = [None if cell is None or abs(cell) >= most else cell for cell in cells]
    if unit == "date64":
        own = [None if cell is None else cell // per * per for cell in own]
    kind = {"date32": pa.date32(), "date64": pa.date64()}.get(unit) or pa.timestamp(unit, "UTC" if zone else None)
    storage = pa.array(own, pa.int32() if unit == "date32" else pa.int64())
    column = storage.view(kind)
    parquet.write_table(pa.table({"n": column}), tmp_path / "t.parquet")
    under = DatasetSchema(columns=(DateColumn(name="n", low=-800_000, high=3_000_000, origin="1970-01-01"),), max_records=1000)
    records = joined(tmp_path / "t.parquet", under, 3)
    found = np.where(records.present[:, 0], (records.features[:, 0] + 1) * 1_900_000 - 800_000, np.nan)
    first, last = (day.toordinal() - dt.date(1970, 1, 1).toordinal() for day in (dt.date.min, dt.date.max))
    days_of = [None if cell is None else cell // per for cell in own]
    want = [float(day) if day is not None and first <= day <= last else math.nan for day in days_of]
    np.testing.assert_allclose(found, want, atol=1e-6)


def test_a_zone_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    under = DatasetSchema(columns=(DateColumn(name="n", low=0, high=9, origin="1970-01-01"),), max_records=10)
    for cells in ([], [None], [0]):
        parquet.write_table(pa.table({"n": pa.array(cells, pa.timestamp("ms", "Mars/Olympus"))}), tmp_path / "t.parquet")
        with pytest.raises(DataError, match=r"column 'n' holds timestamp\[ms, tz=Mars/Olympus\]"):
            check_structure(tmp_path / "t.parquet", under)


CELLS = st.one_of(
    st.sampled_from([*NAMED, "", " 1 ", "1.0", '"x"', '"x', 'a"b', '"1",', '"x"y', "\x00", "\u00e9", "\ufeff", "1e400"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=5),
)  # fmt: skip
LINES = st.one_of(st.tuples(CELLS, CELLS).map(";".join), CELLS, st.just(""), st.just("a;b;c"))


def plain_cells(line: str) -> list[str] | None:
    cells, cell, state = [], "", "start"
    for letter in line:
        if state == "quoted":
            state, cell = ("mark", cell) if letter == '"' else (state, cell + letter)
        elif state == "mark" and letter == '"':
            cell, state = cell + letter, "quoted"
        elif letter == ";":
            cells.append(cell)
            cell, state = "", "start"
        elif state == "start" and letter == '"':
            state = "quoted"
        else:
            cell, state = cell + letter, "open"
    return None if state == "quoted" else [*cells, cell]


@ODD
@given(
    content=st.lists(LINES, max_size=10),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
    small=st.booleans(),
    last=st.booleans(),
)
def test_csv_line_by_line(tmp_path: Path, content: list[str], encoding: str, small: bool, last: bool) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(("n;c\n" + "\n".join(content) + "\n" * last).encode(encoding))
    source = TextFile(path, Dialect(delimiter=";", encoding=encoding))
    bare = [line.lstrip("\ufeff") for line in content]
    read = [cells for line in bare if line and (cells := plain_cells(line)) is not None and len(cells) == 2]
    with pytest.MonkeyPatch.context() as patched:
        if small:
            patched.setattr(lines, "_READ", 5)
            patched.setattr(csv_files, "BATCH", 20)
        table = read_table(source, schema())
        found, codes = columns_of(joined(source, schema(), 3))
    assert len(table.broken) == sum(map(bool, bare)) - len(read)
    np.testing.assert_array_equal(found, [scaled(number(cells[0], "string")) for cells in read])
    assert codes == [code(cells[1], "string") for cells in read]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | st.sampled_from(NAMED),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("nac"), inner, max_size=2),
    max_leaves=3,
)
JSON_LINES = st.one_of(
    st.dictionaries(st.sampled_from("nc"), VALUES).map(json.dumps),
    VALUES.map(json.dumps),
    st.sampled_from(["", "{", "{'n': 1}", '{"n": 1} {"n": 2}', "\ufeff{}", "NaN", "[1,", '"open', "\x00"]),
)


@settings(ODD, max_examples=30)
@given(content=st.lists(JSON_LINES, max_size=8), compressed=st.booleans())
@example(content=["{}", "\x00", "\x00"], compressed=False)
@example(content=["\x00", "\x00", "{}"], compressed=True)
def test_ndjson_line_by_line(tmp_path: Path, content: list[str], compressed: bool) -> None:
    text = "\n".join(content)
    path = tmp_path / ("t.ndjson.gz" if compressed else "t.ndjson")
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    want: list[int] = []
    for line in content:
        try:
            value = json.loads(line.removeprefix("\ufeff"))
        except ValueError:
            continue
        told = value.get("c") if isinstance(value, dict) else None
        want.append(code(told, "string") if isinstance(told, str) else -1)
    assume(all(not isinstance(json_of(line), dict) or isinstance(json_of(line).get("c"), str | None) for line in content))
    query = SourceQuery(
        "d",
        "SELECT 0 AS n, json->>'$.c' AS c FROM t",
        files={"t": path},
        dialect=Dialect(compression="gzip" if compressed else ""),
    )
    assert columns_of(joined(query, schema(), 3))[1] == want


def json_of(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def test_uuids_tell_subjects_apart(tmp_path: Path) -> None:
    people = [uuid.UUID(int=number) for number in (7, 8, 7)]
    storage = pa.array([one.bytes for one in people], pa.binary(16))
    table = pa.table({"n": [1.0, 2.0, 3.0], "c": ["x"] * 3, "who": pa.ExtensionArray.from_storage(pa.uuid(), storage)})
    parquet.write_table(table, tmp_path / "t.parquet")
    with opened(tmp_path / "t.parquet", schema(), subject="who") as tables:
        (read,) = tables.read()
    assert read.subjects.to_pylist() == [str(one) for one in people]


class Keys(encryption.KmsClient):
    """Wraps no key, which is enough to write a file."""

    def __init__(self, config: encryption.KmsConnectionConfig) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)


@pytest.mark.parametrize("readable", [True, False], ids=["footer in the clear", "footer encrypted"])
def test_encrypted_parquet_is_refused_by_name_and_ends_no_process(tmp_path: Path, *, readable: bool) -> None:
    """A process ended where a query was on a file of which a column is encrypted and the footer is not."""
    table, path = pa.table({"n": [1.0, 2.0], "c": ["x", "no"]}), tmp_path / "t.parquet"
    how = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["c"]}, plaintext_footer=readable)
    made = encryption.CryptoFactory(Keys).file_encryption_properties(encryption.KmsConnectionConfig(), how)
    with parquet.ParquetWriter(path, table.schema, encryption_properties=made) as file:
        file.write_table(table)
    under = schema()
    for source in (path, SourceQuery("d", "SELECT n, c FROM t", files={"t": path})):
        with pytest.raises(DataError, match=r"t\.parquet: (cannot be read|its footer is signed)"):
            load_records(source, under)
    numbers = under.model_copy(update={"columns": under.columns[:1]})
    if readable:
        assert len(load_records(path, numbers)[0]) == 2


@pytest.mark.parametrize("ending", [b"", b"\xf0\xff\xff\xffPAR1"], ids=["nothing", "a footer of 4 GB"])
def test_a_file_of_holes_takes_no_memory(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "t.parquet"
    with path.open("wb") as file:
        file.truncate(1 << 40)
        file.seek(-len(ending), os.SEEK_END)
        file.write(ending)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="not a complete Parquet file"):
        check_structure(path, schema())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


@pytest.mark.system
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("tried", "files"),
    [(test_parquet_of_every_type, 4000), (test_csv_line_by_line, 4000), (test_ndjson_line_by_line, 2000)],
    ids=["parquet", "csv", "ndjson"],
)
def test_ten_thousand_odd_files(tmp_path: Path, tried: Any, files: int) -> None:
    stated = tried._hypothesis_internal_use_settings
    try:
        tried._hypothesis_internal_use_settings = settings(stated, max_examples=files)
        tried(tmp_path)
    finally:
        tried._hypothesis_internal_use_settings = stated
