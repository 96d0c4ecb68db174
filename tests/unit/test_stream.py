"""Data larger than memory: batches are together what one reading gives, and sums do not show how records came in batches."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydantic import SecretStr

from support.neighbours import SETTINGS, Setting, random_records, spoil, with_subjects
from support.postgres import server
from support.randomness import SeededRandom
from support.tables import SCHEMA, totals
from veilsum_node.errors import DataError
from veilsum_participant.data import FindingKind, check_dataset, csv_files, json_files, lines, load_records, sources
from veilsum_participant.data.postgres import SPACES
from veilsum_participant.data.sources import opened
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.forms import PLAIN, pixel_names
from veilsum_participant.settings.query import Images, Source, SourceQuery
from veilsum_privacy.computation.contribution import SitePlace, compute_sum, contribute
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study, Unit
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records, join_batches

ADDED = [setting for setting in SETTINGS if setting.additive]
CUTS = st.lists(st.integers(0, 90), max_size=12).map(sorted)


def cut(records: Records, places: list[int]) -> Iterator[Records]:
    """The records in batches; a cut within a subject moves to its end."""
    ends = [min(place, len(records)) for place in places]
    if records.subjects is not None:
        ends = [int(np.searchsorted(records.subjects, records.subjects[end - 1], side="right")) if end else 0 for end in ends]
    for begin, end in zip([0, *ends], [*ends, len(records)], strict=True):
        yield records.take(slice(begin, end))


def sampled(study: Study, rate: float) -> Study:
    tasks = tuple(task.model_copy(update={"sampling_rate": rate}) for task in study.tasks)
    return study.model_copy(update={"tasks": tasks})


@pytest.mark.sampled(13)  # test_tasks.py holds every task to rows that do not depend on their company
@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("setting", ADDED, ids=lambda setting: f"{setting.task}-{setting.name}")
@settings(max_examples=20)
@given(places=CUTS, seed=st.integers(0, 2**32 - 1), rate=st.sampled_from([1.0, 0.3]))
def test_sums_are_the_same_integers_however_records_come_in_batches(
    setting: Setting, unit: Unit, places: list[int], seed: int, rate: float
) -> None:
    """Every task that sums over records, with values no reader gives."""
    setting, rng = few(setting), np.random.default_rng(seed)
    records = spoil(random_records(rng, 90, setting.schema), rng)
    if unit == "subject":
        records = with_subjects(records, rng)
    study = sampled(setting.study(unit, grid=2**16, variance=10**9), rate)
    rows = {name: np.stack([row] * study.sites) for name, row in setting.given.items()}
    broadcast, plan = {**setting.broadcast, **rows}, setting.plan(study)
    want = compute_sum(plan, records, broadcast, SitePlace(random=SeededRandom(seed)))
    found = compute_sum(plan, cut(records, places), broadcast, SitePlace(random=SeededRandom(seed)))
    np.testing.assert_array_equal(found.total, want.total)
    assert (found.clipped, found.invalid) == (want.clipped, want.invalid)


def few(setting: Setting) -> Setting:
    """The setting with a schema whose records a site's sum is clamped to soon."""
    return replace(setting, schema=setting.schema.model_copy(update={"max_records": 8}))


def statistics() -> Setting:
    return few(next(setting for setting in SETTINGS if setting.task == "feature-means"))


def test_clamping_is_of_the_whole_sum() -> None:
    """Were each batch clamped to 8 records, those of another sign could not make up for those beyond."""
    setting = statistics()
    study = setting.study("record", grid=2**16, variance=0, noise="none")
    high = random_records(np.random.default_rng(0), 100, setting.schema, complete=True)
    high.features[:, 0] = 1.0
    low = replace(high, features=-high.features)
    whole = join_batches([high, low])
    plan = setting.plan(study)
    found = compute_sum(plan, [high, low], {}).total
    np.testing.assert_array_equal(found, compute_sum(plan, whole, {}).total)
    assert np.abs(compute_sum(plan, high, {}).total).max() == plan.encoding.bound


@pytest.mark.parametrize("where", ["at first", "in the midst"])
def test_what_fails_in_reading_counts_as_no_records_and_is_read_once(where: str) -> None:
    setting = statistics()
    plan = setting.plan(setting.study("record", grid=2**16, variance=0, noise="none"))
    some = random_records(np.random.default_rng(0), 9, setting.schema, complete=True)
    reads = []

    def load() -> Iterator[Records]:
        reads.append(1)
        if where == "in the midst":
            yield some
        raise OSError(5, "Input/output error")

    part = contribute(plan, load, {}, SitePlace())
    assert not part.total.any()
    assert isinstance(part.fault, OSError)
    assert reads == [1]


@pytest.mark.parametrize("missing", ["skip", "centre"])
def test_a_record_that_a_program_fails_on_is_left_out_of_any_batch(missing: str) -> None:
    setting = next(each for each in SETTINGS if each.task == "feature-means" and each.name == "mapped")
    setting = replace(setting, parameters={**setting.parameters, "missing": missing})
    encoder = Program(format="torchscript", sha256="0" * 64, inputs=(2,), width=2)
    study = setting.study("record", grid=2**16, variance=0, noise="none").model_copy(update={"encoder": encoder})
    plan = AgreedStudy(study).task(study.tasks[0].label).plan(4, 4)
    some = random_records(np.random.default_rng(0), 9, setting.schema, complete=True)
    odd = some.features[4].copy()

    def encode(x: np.ndarray) -> np.ndarray:
        if (x == odd).all(axis=1).any():
            raise ArithmeticError
        return 2.0 * x

    place = SitePlace(encode=encode)
    want = compute_sum(plan, join_batches([some.take(slice(4)), some.take(slice(5, 9))]), {}, place).total
    assert want.any()
    part = contribute(plan, lambda: cut(some, [3, 6]), {}, place)
    np.testing.assert_array_equal(part.total, want)
    assert isinstance(part.fault, ArithmeticError)


# -- sources ----------------------------------------------------------------------------------------------------------------

ODD = [
    b"p1,60,K\xc3\xb6ln,0", b"p2,61.5,Ulm,1", b"p1,1e400,?,2", b",,,", b"p3,x,Ulm", b'"p,4","7",Ulm,1', b'p5,"8,Ulm,1', b"",
    b"p1,200,K\xf6ln,0", b"p2,-1,Ulm,1", b"NA,3,Ulm,0", b"p6,5,Ulm,0,9", b"n/a,4,Ulm,0", b"p7,nan,Ulm,1", b"p2,9, Ulm ,1 ",
]  # fmt: skip


def csv_file(directory: Path) -> Source:
    lines = [b"who,age,town,ill", *ODD * 9, b"p1,70,K\xf6ln,0"]  # Latin-1 that no line's end follows
    (directory / "odd.csv").write_bytes(b"\n".join(lines))
    return directory / "odd.csv"


def plain_csv(directory: Path) -> Source:
    lines = [f"p{row % 5},{row},Ulm,{row % 2}" for row in range(70)]
    (directory / "plain.csv").write_text("\n".join(["who,age,town,ill", *lines, ""]))
    return directory / "plain.csv"


def people(rows: int, seed: int, who: Any = None) -> pa.Table:
    rng = np.random.default_rng(seed)
    persons = [f"p{number}" if number else None for number in rng.integers(0, 7, rows)] if who is None else who
    age = [None if value < 20 else float(value) for value in rng.uniform(0, 130, rows)]
    town = [("Köln", "Ulm", "Bonn", None)[place] for place in rng.integers(0, 4, rows)]
    ill = [str(value) for value in rng.integers(0, 3, rows)]
    return pa.table({"who": pa.array(persons), "age": age, "town": town, "ill": ill})


def parts(directory: Path) -> Source:
    """Parts of several groups of rows, with numbers stored as other types, and one without rows."""
    folder = directory / "parts"
    folder.mkdir()
    parquet.write_table(people(50, 1), folder / "1.parquet", row_group_size=7)
    whole = people(20, 2)
    parquet.write_table(whole.set_column(1, "age", whole["age"].cast(pa.int32(), safe=False)), folder / "2.parquet")
    parquet.write_table(whole.slice(0, 0), folder / "3.parquet")
    parquet.write_table(whole.set_column(2, "town", pa.nulls(20)), folder / "4.parquet", row_group_size=3)
    return folder


def sorted_parts(directory: Path) -> Source:
    parquet.write_table(people(60, 3).sort_by("who"), directory / "sorted.parquet", row_group_size=6)
    return directory / "sorted.parquet"


def no_rows(directory: Path) -> Source:
    parquet.write_table(people(0, 0), directory / "none.parquet")
    return directory / "none.parquet"


FILES = {"csv": csv_file, "plain csv": plain_csv, "parts": parts, "sorted": sorted_parts, "empty": no_rows}


def assert_same(batches: list[Records], whole: Records) -> None:
    found = join_batches(list(batches))
    np.testing.assert_array_equal(found.features, whole.features)
    np.testing.assert_array_equal(found.present, whole.present)
    np.testing.assert_array_equal(found.labels, whole.labels)
    assert (found.subjects is None) == (whole.subjects is None)
    if whole.subjects is not None:
        np.testing.assert_array_equal(found.subjects, whole.subjects)
        owners = [set(batch.subjects.tolist()) for batch in batches if batch.subjects is not None]
        assert sum(map(len, owners)) == len(set(whole.subjects.tolist())), "a subject's records stand in one batch"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("subject", [None, "who"])
@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(("rows", "persons"), [(1, 1), (3, 20), (8, 5), (1000, 1000)])
def test_batches_are_together_what_one_reading_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, subject: str | None, rows: int, persons: int
) -> None:
    monkeypatch.setattr(csv_files, "BATCH", 40 * rows)
    monkeypatch.setattr(lines, "_READ", 40 * rows)
    source = FILES[kind](tmp_path)
    whole, _ = load_records(source, SCHEMA, subject)
    batches = list(stream_records(source, SCHEMA, subject, rows=rows, persons=persons))
    assert_same(batches, whole)
    if rows == 1 and kind in ("parts", "sorted") and subject is None:
        assert max(map(len, batches)) == 1
    if subject is not None and len(whole):
        largest = int(np.bincount(whole.subjects).max())  # type: ignore[arg-type]
        assert max(map(len, batches)) < rows + largest


def persons_of(batches: list[Records]) -> list[list[bytes]]:
    """Each subject's records, in any order, and subjects in any order."""
    found: dict[int, list[bytes]] = {}
    for batch in batches:
        assert batch.subjects is not None
        assert (np.diff(batch.subjects) >= 0).all()
        own = dict.fromkeys(batch.subjects.tolist())
        assert not own.keys() & found.keys(), "a subject's records stand in one batch"
        for subject, *row in zip(batch.subjects.tolist(), batch.features, batch.present, batch.labels, strict=True):  # type: ignore[arg-type]
            found.setdefault(subject, []).append(b"".join(np.asarray(part).tobytes() for part in row))
    return sorted(map(sorted, found.values()))


ODD_PERSONS = [
    "p1",
    " p1",
    "p1\u2003",
    "p10",
    "M\u00fcller",
    "Mu\u0308ller",
    "mull",
    None,
    "NA",
    "",
    "n/a",
    "\U00010000",
    "\uffee",
    "Z",
    "a b",
]


def odd_people(rows: int = 70) -> pa.Table:
    rng = np.random.default_rng(5)
    return people(rows, 5, [ODD_PERSONS[place] for place in rng.integers(0, len(ODD_PERSONS), rows)])


def sqlite(directory: Path) -> Source:
    table = odd_people()
    with sqlite3.connect(directory / "clinic.db") as made:
        made.execute("CREATE TABLE t (who, age, town, ill)")
        made.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", zip(*table.to_pydict().values(), strict=True))
    url = SecretStr(f"sqlite:///{directory / 'clinic.db'}")
    return SourceQuery("records", "SELECT * FROM t", url, columns=("who", "age", "town", "ill"))


def odd_query(directory: Path) -> Source:
    parquet.write_table(odd_people(), directory / "odd.parquet", row_group_size=8)
    return SourceQuery("records", "SELECT * FROM t", files={"t": directory / "odd.parquet"})


def postgres(directory: Path, kind: str = "text", who: str = "who", table: pa.Table | None = None) -> Source:
    url = server().new_database()
    rows = zip(*(table or odd_people()).to_pydict().values(), strict=True)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (who {kind}, age float8, town text, ill text)")  # type: ignore[arg-type]
        connection.cursor().executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", list(rows))
    return SourceQuery("records", f"SELECT {who} AS who, age, town, ill FROM t", SecretStr(url))  # noqa: S608


def query_on_csv(directory: Path) -> Source:
    """A CSV file that comes in many parts, with lines that are no records."""
    cells = zip(*odd_people().to_pydict().values(), strict=True)
    rows = [",".join("" if cell is None else str(cell) for cell in row) for row in cells]
    lines = ["who,age,town,ill", *rows[:90], 'p1,"5,Ulm,0', "p1,5", *rows[90:], "p1,5,Ulm,0,9"]
    (directory / "odd.csv").write_text("\n".join(lines), encoding="utf-8")
    return SourceQuery("records", "SELECT * FROM t", files={"t": directory / "odd.csv"})


def query_on_lines(directory: Path) -> Source:
    """Two ndjson files that come in many parts, with lines that are not JSON; they are joined with themselves."""
    rows = [json.dumps(row | {"id": place}) for place, row in enumerate(odd_people().to_pylist())]
    for part in range(2):
        lines = [*rows[part::2][:40], "{", "", "\x00", *rows[part::2][40:]]
        (directory / f"{part}.ndjson").write_text("\n".join(lines), encoding="utf-8")
    text = """SELECT t.json->>'$.who' AS who, CAST(t.json->>'$.age' AS DOUBLE) AS age, other.json->>'$.town' AS town,
        other.json->>'$.ill' AS ill FROM t JOIN t AS other ON CAST(t.json->'$.id' AS INT) = CAST(other.json->'$.id' AS INT)
        ORDER BY CAST(t.json->'$.id' AS INT)"""
    return SourceQuery("records", text, files={"t": directory / "*.ndjson"})


QUERIES = {"duck": odd_query, "csv": query_on_csv, "lines": query_on_lines, "sqlite": sqlite, "postgres": postgres}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", QUERIES)
def test_batches_of_a_query_are_together_what_one_reading_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Identifiers with spaces, in both of Unicode's forms, beyond its first plane, and missing in several ways."""
    source = QUERIES[kind](tmp_path)
    whole, _ = load_records(source, SCHEMA, "who")
    assert persons_of([whole]) == persons_of([load_records(odd_query(tmp_path), SCHEMA, "who")[0]])
    monkeypatch.setattr(csv_files, "BATCH", 1500)
    monkeypatch.setattr(lines, "_READ", 500)
    monkeypatch.setattr(lines, "BATCH", 3000)
    nobody = totals(check_dataset(source, SCHEMA, subject="who"))["who"][FindingKind.MISSING]
    assert len(persons_of([whole])) == 8 + nobody
    least = 1 if kind == "postgres" else 6  # it is read once; of the others so few at once take hundreds of readings
    for rows, persons in ((1, least), (7, 30), (1000, 1000))[kind in ("csv", "lines") :]:
        assert persons_of(list(stream_records(source, SCHEMA, "who", rows=rows, persons=persons))) == persons_of([whole])
        singly, _ = load_records(source, SCHEMA)
        found = join_batches(list(stream_records(source, SCHEMA, None, rows=rows)))
        for name in ("features", "present", "labels"):
            np.testing.assert_array_equal(getattr(found, name), getattr(singly, name))


@pytest.mark.parametrize(
    ("kind", "who"),
    [("text", "length(who)"), ("text", "CASE WHEN who > 'p' THEN 'NaN' ELSE '-0' END::float8"), ("numeric", "who")],
)
def test_a_database_sorts_numbers_as_the_site_does(tmp_path: Path, kind: str, who: str) -> None:
    table = odd_people()
    if kind == "numeric":
        table = table.set_column(0, "who", pa.array([str(row % 9 - 4) for row in range(table.num_rows)]))
    source = postgres(tmp_path, kind, who, table)
    whole, _ = load_records(source, SCHEMA, "who")
    assert persons_of(list(stream_records(source, SCHEMA, "who", rows=9))) == persons_of([whole])


def test_identifiers_are_trimmed_alike() -> None:
    letters = [chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000]
    trimmed = pc.utf8_trim_whitespace(pa.array(letters, pa.large_string())).to_pylist()
    assert tuple(letter for letter, left in zip(letters, trimmed, strict=True) if not left) == SPACES


def test_an_order_that_is_not_the_sites_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if Unicode had changed between the two: a person whose records came apart would count twice."""
    monkeypatch.setattr(sources, "PAUSES", ())
    monkeypatch.setattr("veilsum_participant.data.postgres._as_told", lambda name: f"length({name})")
    with pytest.raises(DataError, match="does not sort subjects"):
        list(stream_records(postgres(tmp_path), SCHEMA, "who", rows=9))


def test_a_query_that_depends_on_chance_is_a_fault(tmp_path: Path) -> None:
    source = odd_query(tmp_path)
    assert isinstance(source, SourceQuery)
    chance = replace(source, text="SELECT t.* FROM t, range(50) WHERE random() < 0.5")
    with pytest.raises(DataError, match="other rows than a moment ago"):
        list(stream_records(chance, SCHEMA, "who", rows=100, persons=500))


def test_all_readings_of_sqlite_see_one_state(tmp_path: Path) -> None:
    source = sqlite(tmp_path)
    with sqlite3.connect(tmp_path / "clinic.db") as other:
        other.execute("PRAGMA journal_mode = WAL")
    whole, _ = load_records(source, SCHEMA, "who")
    batches = stream_records(source, SCHEMA, "who", rows=10, persons=30)
    found = [next(batches)]
    with sqlite3.connect(tmp_path / "clinic.db") as other:
        other.execute("DELETE FROM t")
    assert persons_of([*found, *batches]) == persons_of([whole])


def test_a_file_in_the_order_of_its_subjects_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    persons = [f"p{row // 3}" for row in range(60)]
    parquet.write_table(people(60, 3, persons), tmp_path / "sorted.parquet", row_group_size=6)
    read: list[int] = []
    real = parquet.ParquetFile.iter_batches

    def counted(file: Any, *given: Any, **named: Any) -> Any:
        if "age" in named["columns"]:
            read.extend(named["row_groups"])
        return real(file, *given, **named)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    batches = list(stream_records(tmp_path / "sorted.parquet", SCHEMA, "who", rows=4, persons=12))
    assert [len(batch) for batch in batches] == [6] * 10
    assert read == list(range(10))


@pytest.mark.parametrize("subject", [None, "who"])
def test_images_come_in_batches(tmp_path: Path, subject: str | None) -> None:
    rng = np.random.default_rng(0)
    for number in range(12):
        Image.fromarray(rng.integers(0, 255, (2, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    files = [f"{number}.png" for number in (*range(12), 99)]
    table = pa.table({"file": files, "who": [f"p{number % 4}" for number in range(13)]})
    parquet.write_table(table, tmp_path / "labels.parquet", row_group_size=5)
    images = Images(tmp_path / "labels.parquet", tmp_path, "file", (1, 2, 3))
    agreed = DatasetSchema(columns=tuple(NumberColumn(name=name, low=0, high=255) for name in pixel_names((1, 2, 3))))
    whole, _ = load_records(images, agreed, subject)
    assert whole.present[:, 0].sum() == 12
    batches = list(stream_records(images, agreed, subject, rows=2, persons=3))
    joined = join_batches(list(batches))
    np.testing.assert_array_equal(joined.features, whole.features)
    np.testing.assert_array_equal(joined.present, whole.present)


def test_a_query_in_batches_fails_without_its_words_and_ends_in_time(tmp_path: Path) -> None:
    lines = [json.dumps({"age": row}) for row in range(3000)] + [json.dumps({"age": "secret"})]
    (tmp_path / "lines.ndjson").write_text("\n".join(lines))
    text = "SELECT CAST(json->>'$.age' AS DOUBLE) AS age, 'Ulm' AS town, '0' AS ill FROM t"
    source = SourceQuery("records", text, files={"t": tmp_path / "lines.ndjson"})
    with pytest.raises(DataError, match=r"failed \(Conversion\)") as caught:
        list(stream_records(source, SCHEMA, None, rows=100))
    assert caught.value.__suppress_context__
    assert "secret" not in repr(caught.value)
    slow = replace(source, text="SELECT sum(a.range) AS age, 'x' AS town, '0' AS ill FROM range(10000000000) a", timeout=1)
    with pytest.raises(DataError, match="did not end within 1 s"):
        list(stream_records(slow, SCHEMA, None, rows=100))


def test_texts_are_read_as_a_query_asks_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.csv").write_text("age,town,ill\n" + "60,Ulm,1\n" * 200_000)
    query = SourceQuery("records", "SELECT * FROM t", files={"t": tmp_path / "t.csv"})
    monkeypatch.setattr(csv_files, "BATCH", 1 << 14)
    parts, real = [0], csv_files.CsvReader._parsed

    def counted(*asked: Any) -> Any:
        parts[0] += 1
        return real(*asked)

    monkeypatch.setattr(csv_files.CsvReader, "_parsed", counted)
    batches = stream_records(query, SCHEMA, None, rows=1000)
    first, read = len(next(batches)), parts[0]
    assert first + sum(map(len, batches)) == 200_000
    assert 0 < read < parts[0] // 2


ENDING = """
import sys, threading, time
from pathlib import Path
from veilsum_participant.data import csv_files, duck
from veilsum_participant.data.reader import RowRequest
from veilsum_participant.settings.query import SourceQuery

csv_files.BATCH = 1 << 16
begun = threading.Event()

def ask():
    query = SourceQuery("d", "SELECT * FROM t", files={"t": Path(sys.argv[1])})
    with duck.DuckReader(query).opened() as rows:
        for part in rows.parts(RowRequest(["age", "town", "ill"], 1000)):
            begun.set()
    print("all of it")

threading.Thread(target=ask, daemon=True).start()
begun.wait()
"""
"""A process that ends while a thread of its own reads, as a participant that is stopped may."""


@pytest.mark.system
def test_a_process_may_end_while_texts_are_read(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,town,ill\n" + "60,Ulm,1\n" * 2_000_000)
    done = subprocess.run([sys.executable, "-c", ENDING, tmp_path / "t.csv"], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_texts_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two files is gone when its turn comes."""
    for part in range(2):
        (tmp_path / f"{part}.ndjson").write_text('{"age": 60}\n')
    text = "SELECT json->>'$.age' AS age, 'Ulm' AS town, '0' AS ill FROM t"
    query = SourceQuery("records", text, files={"t": tmp_path / "*.ndjson"})
    real = json_files.texts

    def removed(*args: Any) -> Iterator[Any]:
        yield from real(*args)
        (tmp_path / "1.ndjson").unlink(missing_ok=True)

    monkeypatch.setattr(json_files, "texts", removed)
    for read in (lambda: load_records(query, SCHEMA), lambda: list(stream_records(query, SCHEMA, None))):
        (tmp_path / "1.ndjson").touch()
        with pytest.raises(DataError, match=r"1\.ndjson: .*[Nn]o such file"):
            read()


def test_a_line_that_is_too_long_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [b"a" * 9, b"b" * 10, b"c" * 11, b"d" * 45, b"", b"\xff\r", b"e" * 30, b"f" * 10]
    (tmp_path / "t.ndjson").write_bytes(b"\n".join(said))
    monkeypatch.setattr(lines, "MAX_LINE", 10)
    monkeypatch.setattr(lines, "BATCH", 12)
    long: Counter[lines.Fault] = Counter()
    found = [line for part in lines.texts(tmp_path / "t.ndjson", PLAIN, long) for line in part.to_pylist()]
    assert long == {lines.Fault.LENGTH: 3}
    assert found == ["a" * 9, "b" * 10, "", "\xff\r", "f" * 10]


@pytest.mark.parametrize("rows", [3, 9, 30])
def test_a_file_that_changes_between_readings_is_a_fault(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "t.parquet"
    parquet.write_table(people(20, 1, ["p1", "p2"] * 10), path)
    batches = stream_records(path, SCHEMA, "who", rows=5, persons=10)
    next(batches)
    parquet.write_table(people(rows, 1, ["p"] * rows), path)
    with pytest.raises(DataError, match="was changed while it was read"):
        list(batches)


FORMS = ("t.csv", "t.parquet", "query of t.csv", "query of t.ndjson", "query of t.parquet")


def written(path: Path, last: int) -> bytes:
    """A file of 3,000 persons with two records each, of whom one is ``last``: all such files are of one size."""
    who = [str(person) for person in [*range(1000, 3999), last]] * 2
    rows = pa.table({"who": who, "age": ["60"] * len(who), "town": ["Ulm"] * len(who), "ill": ["1"] * len(who)})
    if path.suffix == ".parquet":
        parquet.write_table(rows, path, use_dictionary=False, compression="none", row_group_size=500)
    elif path.suffix == ".csv":
        pacsv.write_csv(rows, path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return path.read_bytes()


@pytest.mark.parametrize("change", ["rewritten", "grown", "replaced"])
@pytest.mark.parametrize("form", FORMS)
def test_no_records_are_of_a_file_and_of_the_one_that_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, change: str
) -> None:
    """Of as many records in as many bytes, which the file system alone tells apart; others' were taken for a person's own."""
    monkeypatch.setattr(csv_files, "BATCH", 1 << 12)
    path = tmp_path / form.rpartition(" ")[2]
    other = written(tmp_path / f"other{path.suffix}", 5000)
    assert len(written(path, 4000)) == len(other)
    text = "SELECT json->>'$.who' AS who, 60 AS age, 'Ulm' AS town, '1' AS ill FROM t" if "json" in form else "SELECT * FROM t"
    source = SourceQuery("records", text, files={"t": path}) if "query" in form else path
    batches = stream_records(source, SCHEMA, "who", rows=100, persons=600)
    next(batches)
    if change == "rewritten":
        path.write_bytes(other)
    elif change == "grown":
        path.open("ab").write(b"\n")
    else:
        (tmp_path / f"other{path.suffix}").rename(path)
    with pytest.raises(DataError, match=r"was changed while it was read|yields other rows|failed \(InvalidInputException\)"):
        list(batches)


@pytest.mark.parametrize("form", ["t.csv", "t.parquet"])
def test_what_is_renamed_over_a_file_that_is_read_once_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(csv_files, "BATCH", 1 << 12)
    written(tmp_path / form, 4000)
    batches = stream_records(tmp_path / form, SCHEMA, None, rows=100)
    first = len(next(batches))
    (tmp_path / "none").write_bytes(b"")
    (tmp_path / "none").rename(tmp_path / form)
    assert first + sum(map(len, batches)) == 6000


def test_a_table_of_the_kept_rows_alone(tmp_path: Path) -> None:
    keep = np.zeros(110, dtype=np.bool_)
    keep[[0, 6, 7, 60, 109]] = True
    with opened(parts(tmp_path), SCHEMA) as found:
        tables = list(found.read(4, keep=lambda place, rows, _: keep[:90][place : place + rows]))
    assert sum(table.rows for table in tables) == 4
