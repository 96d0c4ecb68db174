"""A site whose records lie in PostgreSQL, on a real server: what is read, what is refused before the budget is touched, and
what becomes of a round whose query fails after that.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from support.federation import DATASET, TestBed, make_bed, make_request, schema_of
from support.network import submit, wired
from support.postgres import Server
from support.tables import SCHEMA, rows_of
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_node.errors import ConfigurationError, DataError, StateError, Unavailable
from veilsum_participant.checks import Check, CheckOutcome, SiteCheck
from veilsum_participant.checks.snapshots import compare_snapshots
from veilsum_participant.cli.participant import app
from veilsum_participant.data import check_structure, load_records, sources
from veilsum_participant.data import local as local_module
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.data.sources import opened, read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery, origin
from veilsum_participant.site import Site
from veilsum_privacy.ledger.entries import Kind
from veilsum_privacy.mechanism.records import join_batches
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

SELECT = "SELECT * FROM records"


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """A server that tests may halt."""
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.new_database()


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]


def query(url: str, text: str = SELECT, **changes: Any) -> SourceQuery:
    return SourceQuery("records", text, dsn=SecretStr(url), **changes)


def test_each_type_becomes_what_a_file_would_hold(url: str, tmp_path: Path) -> None:
    execute(
        url,
        "CREATE TYPE town AS ENUM ('Köln', 'Ulm')",
        "CREATE TABLE records (who bigint, age numeric(9, 3), town town, ill boolean, day date, at timestamptz)",
        "INSERT INTO records VALUES (9007199254740993, 61.125, 'Köln', true, '2024-02-29', '2024-02-29 23:30+00'),"
        " (9007199254740992, NULL, 'Ulm', false, NULL, NULL)",
    )
    day, at = (DateColumn(name=name, origin="2024-01-01", low=0, high=366) for name in ("day", "at"))
    schema = SCHEMA.model_copy(update={"columns": (*SCHEMA.columns, day, at)})
    asked = query(url, "SELECT who, age, town, ill, day, at FROM records ORDER BY who DESC")
    check_structure(asked, schema, subject="who")
    found = read_table(asked, schema, subject="who")
    table = pa.table({"who": pa.array([2**53 + 1, 2**53], pa.int64()), "age": [61.125, None], "town": ["Köln", "Ulm"]})
    table = table.append_column("ill", pa.array([True, False]))
    table = table.append_column("day", pa.array(["2024-02-29", None])).append_column("at", pa.array(["2024-02-29", None]))
    parquet.write_table(table, tmp_path / "whole.parquet")
    want = rows_of(read_table(tmp_path / "whole.parquet", schema, subject="who"))
    assert [(float(row[0]) if row[0] else None, *row[1:]) for row in rows_of(found)] == want  # NUMERIC comes as text


NUMBERS = {
    "numeric": ["1.10", "-0", "1e20", "123456789012345678901234567890.123", "'NaN'", "'Infinity'", "0.30000000000000004"],
    "numeric(5, 2)": ["999.9", "1", "-1.5"], "numeric(3, -2)": ["12300"], "numeric(38, 20)": ["0.00000000000000000001"],
    "real": ["999.9", "1.1", "'NaN'", "'-Infinity'", "1e-40"], "double precision": ["0.1", "'NaN'", "'Infinity'", "1e300"],
    "smallint": ["'-32768'"], "int": ["2147483647"], "bigint": ["9007199254740993", "'-9223372036854775808'"],
    "positive": ["3"], "long": ["9" * 131_072, "1." + "0" * 16_382 + "1", "9" * 131_072 + "." + "9" * 16_383, "1.10"],
}  # fmt: skip
"""``long``, a domain of NUMERIC, at as many digits as the type holds, of which the driver's own reader loses its place."""
TEXTS = {
    "char(8)": ["'ab'", "'042'", "' x'"], "varchar(8)": ["'ab '", "'1E1'"], "text": ["'  a'", "'é'", "''", "'042'"],
    '"char"': ["'a'"], "name": ["'abc'"], "mood": ["'sad'", "'042'"], "short": ["'x '"], "json": ["'1'", "'{\"a\":1}'"],
    "jsonb": ["'1.10'", "'{\"a\": 1}'"], "uuid": ["'550E8400-e29b-41d4-a716-446655440000'"], "boolean": ["true", "false"],
}  # fmt: skip


def test_a_column_means_what_the_server_writes_of_it(url: str) -> None:
    """At once and in parts, which are two ways of the driver: numbers to the last digit, texts but for spaces around them."""
    schema = DatasetSchema(columns=(CategoryColumn(name="v", categories=("a", "b")),), max_records=9)
    execute(
        url,
        "CREATE TYPE mood AS ENUM ('sad', '042')",
        "CREATE DOMAIN positive AS int CHECK (value > 0)",
        "CREATE DOMAIN short AS varchar(4)",
        "CREATE DOMAIN long AS numeric",
    )
    for place, (kind, cells) in enumerate({**NUMBERS, **TEXTS}.items()):
        rows = [f"INSERT INTO t{place} VALUES ({number}, {cell}::{kind})" for number, cell in enumerate([*cells, "NULL"])]  # noqa: S608
        execute(url, f"CREATE TABLE t{place} (n int, v {kind})", *rows)
        with psycopg.connect(url) as server:
            told = [text for (text,) in server.execute(f"SELECT v::text FROM t{place} ORDER BY n").fetchall()]  # type: ignore[arg-type]  # noqa: S608
        source = query(url, f"SELECT v FROM t{place} ORDER BY n")  # noqa: S608
        with opened(source, schema) as tables:
            parts = [cell for part in tables.read(2) for cell in part.columns["v"].to_pylist()]
        for found in (read_table(source, schema).columns["v"].to_pylist(), parts):
            means = Decimal if kind in NUMBERS else str.strip
            assert [cell if cell is None else str(means(cell)) for cell in found] == [
                text if text is None else str(means(text)) for text in told
            ], kind


SCALES = ("7", "7.0", "7.00", "70", "70.000", "0.7", "0.70", "-7", "-7.0", "0", "0.00", "1e20", "100000000000000000000.0")


def test_who_is_told_by_a_numeric_is_one_person_however_many_zeros_it_has(url: str, tmp_path: Path) -> None:
    """The databases' own equality says who is who; as text, 7 and 7.00 would be two persons and each have a part in a sum."""
    made = "CREATE TABLE records (who {}, age float8, town text, ill int)"
    rows = [f"INSERT INTO records VALUES ({who}, 1, 'Ulm', 0)" for who in (*SCALES, "NULL")]  # noqa: S608
    execute(url, made.format("numeric"), *rows)
    file = tmp_path / "records.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(";".join([made.format(""), *rows]))
        connection.commit()
    lite = SourceQuery("records", SELECT, dsn=SecretStr(f"sqlite:///{file}"), columns=("who", "age", "town", "ill"))
    counted = "SELECT count(*) FROM records GROUP BY who"
    with psycopg.connect(url) as server, closing(sqlite3.connect(file)) as connection:
        counts = [server.execute(counted).fetchall(), connection.execute(counted).fetchall()]
    assert sorted(counts[0]) == sorted(counts[1]) != [(1,)] * (len(SCALES) + 1)
    for source in (query(url), lite):
        check_structure(source, SCHEMA, subject="who")
        whole, _ = load_records(source, SCHEMA, "who")
        parts = list(stream_records(source, SCHEMA, "who", rows=2))
        for found in (whole, join_batches(parts)):
            _, sizes = np.unique(found.subjects, return_counts=True)
            assert sorted(sizes) == sorted(size for (size,) in counts[0])


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT age, town FROM records", "column 'ill' is missing"),
        ("SELECT nope FROM records", r'column "nope" does not exist \(SQLSTATE 42703\)'),
        ("SELECT * FROM absent", r"SQLSTATE 42P01"),
        ("SELEKT", "SQLSTATE 42601"),
        ("SELECT 1; SELECT 2", "SQLSTATE 42601"),
        ("SELECT 1 AS age, 'Ulm' AS town, 1 AS ill; COMMIT", "SQLSTATE 42601"),
        ("DELETE FROM records", "SQLSTATE 42601"),
        ("INSERT INTO records VALUES (1, 'Ulm', 0) RETURNING age, town, ill", "SQLSTATE 42601"),
        ("WITH made AS (INSERT INTO records VALUES (1, 'Ulm', 0) RETURNING *) SELECT * FROM made", "SQLSTATE 0A000"),
        ("SELECT ARRAY[1] AS age, town, ill FROM records", "column 'age' holds list"),
        ("SELECT interval '1 day' AS age, town, ill FROM records", "column 'age' holds month_day_nano"),
        ("SELECT point(1, 2) AS age, town, ill FROM records", "column 'age' holds point"),
        ("SELECT 12.34::money AS age, town, ill FROM records", "column 'age' holds money"),
        ("SELECT 4294967295::oid AS age, town, ill FROM records", "column 'age' holds oid"),
    ],
)
def test_what_the_server_does_not_accept_is_refused_whatever_is_in_it(url: str, text: str, told: str) -> None:
    execute(url, "CREATE TABLE records (age float8, town text, ill int)")
    for _ in range(2):
        with pytest.raises(DataError, match=told):
            check_structure(query(url, text), SCHEMA)
        execute(url, "INSERT INTO records VALUES ('NaN', 'x', 0), (NULL, NULL, NULL)")
    check_structure(query(url, "SELECT age / 0 AS age, town, ill FROM records"), SCHEMA)  # only a record makes that fail


@pytest.mark.sampled(3)
@pytest.mark.parametrize("end", [";\n", " -- all of them", "\n-- all of them\n", " ;\n\n", " ORDER BY age"])
def test_how_a_query_ends_does_not_matter(url: str, end: str) -> None:
    text = SELECT + end
    execute(url, "CREATE TABLE records (age float8, town text, ill int)", "INSERT INTO records VALUES (1, 'Ulm', 0)")
    check_structure(query(url, text), SCHEMA)
    assert read_table(query(url, text), SCHEMA).rows == 1


def test_a_query_writes_nothing(url: str) -> None:
    execute(
        url,
        "CREATE TABLE records (age float8, town text, ill int)",
        "CREATE FUNCTION log_and_go() RETURNS float8 LANGUAGE sql AS"
        " 'INSERT INTO records VALUES (1, ''Ulm'', 0) RETURNING age'",
    )
    asked = query(url, "SELECT log_and_go() AS age, 'Ulm' AS town, 0 AS ill")
    check_structure(asked, SCHEMA)
    with pytest.raises(DataError, match="SQLSTATE 25006"):
        read_table(asked, SCHEMA)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (0,)


def test_messages_hold_neither_values_nor_secrets(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(url, "CREATE TABLE records (who text)", "INSERT INTO records VALUES ('Smith')")
    text = "SELECT who::float8 AS age, 'Ulm' AS town, 0 AS ill FROM records"
    with pytest.raises(DataError, match="SQLSTATE 22P02") as failed:
        read_table(query(url, text), SCHEMA)
    monkeypatch.setattr(sources, "PAUSES", ())
    away = query("postgresql://reader:hunter2@127.0.0.1:1/clinic")
    for read in (check_structure, read_table):
        with pytest.raises(Unavailable, match="cannot be reached") as unreached:
            read(away, SCHEMA)
        assert unreached.value.__cause__ is None
        assert "hunter2" not in f"{unreached.value} {away!r}"
    assert "Smith" not in str(failed.value)
    assert failed.value.__cause__ is None


def test_a_slow_query_ends_and_is_not_tried_again(url: str) -> None:
    text = "SELECT 1 AS age, 'Ulm' AS town, 0 AS ill FROM pg_sleep(60)"
    check_structure(query(url, text, timeout=30), SCHEMA)  # which does not run it
    with pytest.raises(DataError, match="did not end within 1 s"):
        read_table(query(url, text, timeout=1), SCHEMA)


@pytest.mark.parametrize("breaks", [2, 3])
def test_a_connection_that_breaks_while_records_are_read_is_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch, breaks: int
) -> None:
    """The server ends the query's session so many times, as when it restarts; three tries are all."""
    monkeypatch.setattr(sources, "PAUSES", (0.0, 0.0))
    execute(url, "CREATE TABLE records (age float8, town text, ill int)", "INSERT INTO records VALUES (1, 'Ulm', 0)")
    ended = set[int]()

    def end_sessions() -> None:
        with psycopg.connect(url, autocommit=True) as connection:
            while len(ended) < breaks:
                found = connection.execute(
                    "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                    " AND pid <> pg_backend_pid() AND query LIKE '%pg_sleep%' AND state = 'active' AND query LIKE 'COPY%'"
                ).fetchall()
                ended.update(pid for pid, _ in found)
                time.sleep(0.01)

    slow = query(url, "SELECT age, town, ill FROM records, pg_sleep(2)")
    check_structure(slow, SCHEMA)
    ending = threading.Thread(target=end_sessions)
    ending.start()
    if breaks < 3:
        assert read_table(slow, SCHEMA).rows == 1
    else:
        with pytest.raises(Unavailable, match=r"answers with SQLSTATE 57P01|cannot be reached"):
            read_table(slow, SCHEMA)
    ending.join()
    assert len(ended) == breaks


def test_the_url_lies_in_a_private_file(url: str, tmp_path: Path) -> None:
    execute(url, "CREATE TABLE records (age float8, town text, ill int)")
    path = tmp_path / "clinic.url"
    path.write_text(url + "\n")
    path.chmod(0o640)
    asked = SourceQuery("records", SELECT, dsn_file=path)
    with pytest.raises(ConfigurationError, match=r"clinic\.url"):
        check_structure(asked, SCHEMA)
    path.chmod(0o600)
    check_structure(asked, SCHEMA)


def test_the_environment_names_the_url_and_nothing_shows_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "participant.toml"
    path.write_text('coordinator = "localhost:1"\n[datasets.records]\nsource = "sql"\nquery = "SELECT 1"\njoined = false\n')
    monkeypatch.setenv("VEILSUM__DATASETS__RECORDS__DSN", "postgresql://reader:hunter2@db/clinic")
    offered = load_participant_config(path).datasets["records"]
    source = origin(offered, "records")
    assert isinstance(source, SourceQuery)
    assert source.url == "postgresql://reader:hunter2@db/clinic"
    shown = CliRunner().invoke(app, ["config", "--config", str(path)])
    assert (shown.exit_code, "(hidden)" in shown.output, "hunter2" in shown.output) == (0, True, False)
    assert "hunter2" not in f"{offered!r} {source!r} {source}"
    monkeypatch.delenv("VEILSUM__DATASETS__RECORDS__DSN")
    monkeypatch.setenv("VEILSUM__DATASETS__RECORDS__DSN_FILE", "clinic.url")
    (tmp_path / "clinic.url").write_text(url)
    (tmp_path / "clinic.url").chmod(0o600)
    asked = origin(load_participant_config(path).datasets["records"], "records")
    assert isinstance(asked, SourceQuery)
    assert asked.url == url


def test_sqlite_by_columns_that_the_site_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "PAUSES", (0.0, 0.0))
    """Each cell is text by itself, whatever SQLite stored: nothing is run before records may be read."""
    path = tmp_path / "clinic.db"
    asked = query(f"sqlite:///{path}", columns=("age", "town", "ill", "who"), text="SELECT age, town, ill, who FROM records")
    for read in (check_structure, read_table):
        with pytest.raises(Unavailable):
            read(asked, SCHEMA)
    assert not path.exists()
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE records (age, town, ill, who)")
        made.execute("INSERT INTO records VALUES (61.1, ' Ulm ', 1, 7), ('60', CAST(X'4BF66C6E' AS TEXT), NULL, '007')")
    check_structure(asked, SCHEMA, subject="who")
    assert rows_of(read_table(asked, SCHEMA, subject="who")) == [("61.1", "Ulm", "1", "7"), ("60", "Köln", None, "007")]
    with pytest.raises(ConfigurationError, match="needs `columns`"):
        check_structure(query(f"sqlite:///{path}"), SCHEMA)
    with pytest.raises(DataError, match="column 'ill' is missing"):
        check_structure(query(f"sqlite:///{path}", columns=("age", "town")), SCHEMA)
    with pytest.raises(DataError, match="yields other columns"):
        read_table(query(f"sqlite:///{path}", columns=("ill", "town", "age", "who")), SCHEMA)
    for text in ("DELETE FROM records", "DROP TABLE records"):
        with pytest.raises(DataError, match="failed"):
            read_table(query(f"sqlite:///{path}", text, columns=asked.columns), SCHEMA)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT sum(i), 1, 1, 1 FROM n"
    with pytest.raises(DataError, match="did not end within 1 s"):
        read_table(query(f"sqlite:///{path}", endless, columns=asked.columns, timeout=1), SCHEMA)
    with pytest.raises(ConfigurationError, match="no database that this installation knows"):
        check_structure(query("nosuch://x/y", columns=("age",)), SCHEMA)


def bed_on(directory: Path, url: str, text: str = SELECT, timeout: int = 300, **options: Any) -> TestBed:
    """Three sites of ten equal records each; those of a are in PostgreSQL."""
    features = np.tile([[0.5, -0.5]], (10, 1))
    bed = make_bed(directory, dict.fromkeys("abc", (features, np.arange(10) % 2)), **options)
    execute(
        url,
        "CREATE TABLE records (x0 float8, x1 float8, y int, seconds float8 DEFAULT 0)",
        "INSERT INTO records SELECT 0.5, -0.5, i % 2 FROM generate_series(0, 9) i",
    )
    site = bed.sites["a"]
    offered = DatasetConfig(source="sql", dsn=SecretStr(url), query=text, timeout=timeout, joined=False, most_records=100)
    site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})
    return bed


def kinds(site: Site) -> list[Kind]:
    return [
        entry.kind
        for entry in site.ledger.entries()
        if entry.kind not in (Kind.GENESIS, Kind.BUDGET, Kind.KEY, Kind.RELEASE_SEEN)
    ]


LARGE = schema_of(2).model_copy(update={"max_records": 100_000})
"""Whose records would be more than 1 MiB."""


def in_batches(bed: TestBed) -> None:
    site = bed.sites["a"]
    offered = site.config.datasets[DATASET].model_copy(update={"memory": 1})
    site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})


def total(bed: TestBed, schema: DatasetSchema | None = None, epsilon: float | None = None) -> float:
    """Records in the released sum of a study, without noise by default."""
    local = bed.local
    key = local.submit(bed.compile(make_request(schema or schema_of(2), epsilon=epsilon)), bed.analyst)
    values = local.prepare(key).sum("statistics").values
    return float(values["records/table"][0])


def test_the_sum_has_the_databases_records(tmp_path: Path, url: str) -> None:
    bed = bed_on(tmp_path, url)
    assert total(bed) == pytest.approx(30, rel=1e-5)
    assert kinds(bed.sites["a"]) == [Kind.RESERVE, Kind.SNAPSHOT, Kind.CHARGE]


def test_the_site_can_tell_which_records_a_release_was_computed_from(tmp_path: Path, url: str) -> None:
    bed = bed_on(tmp_path, url, f"{SELECT} ORDER BY ctid DESC")
    site = bed.sites["a"]
    total(bed)
    total(bed)
    (one, two) = site.ledger.entries(kind=Kind.SNAPSHOT)
    assert one.detail != two.detail, "an export does not show that nothing changed"

    def compared() -> list[bool | None]:
        reopened = Site(
            site.config, site.credentials, site.database, site.ledger, site.clock, site.random, reading=LocalDatasets
        )
        return [item.same for item in compare_snapshots(reopened)]

    execute(url, "UPDATE records SET seconds = 1 WHERE y = 0")  # moves rows; no study's column
    assert compared() == [True, True]
    execute(url, "UPDATE records SET x0 = 0.25 WHERE ctid = (SELECT max(ctid) FROM records)")
    assert compared() == [False, False]
    execute(url, "UPDATE records SET x0 = 0.5")
    assert compared() == [True, True]
    execute(url, "DROP TABLE records")
    assert compared() == [None, None]
    assert list(compare_snapshots(bed.sites["b"])) == []


@pytest.mark.sampled(5)  # each query in one of the ways
@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT x0, x1, y, pg_sleep(seconds) FROM records",
        "SELECT x0, x1 + 1 / (seconds - 9) AS x1, y FROM records",
        "SELECT CASE WHEN seconds > 0 THEN 'nine'::text::float8 ELSE x0 END AS x0, x1, y FROM records",
    ],
)
def test_a_query_that_one_record_makes_fail_takes_part_and_pays(
    tmp_path: Path, url: str, text: str, batches: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With and without that record the same is said, in the same messages and entries but for the log of the site.

    Without noise there is no sum, which would show by how much it is short.
    """
    bed = bed_on(tmp_path, url, text, timeout=4)  # of which the slow record takes nine
    if batches:
        in_batches(bed)
    execute(url, "INSERT INTO records VALUES (0, 0, 0, 9)")
    total(bed, LARGE if batches else None, epsilon=1.0)
    assert kinds(bed.sites["a"]) == [Kind.RESERVE, Kind.SNAPSHOT, Kind.CHARGE]
    assert "failed on this site's records" in caplog.text
    with pytest.raises(RoundLostError):
        total(bed, LARGE if batches else None)
    assert kinds(bed.sites["a"])[3:] == [Kind.RESERVE, Kind.FREE]


@pytest.mark.parametrize("change", ["DROP COLUMN x1", "ALTER COLUMN x1 TYPE float8[] USING ARRAY[x1]"])
def test_a_column_that_is_gone_or_changed_is_refused_before_the_budget_is_touched(
    tmp_path: Path, url: str, change: str
) -> None:
    bed = bed_on(tmp_path, url)
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2), epsilon=None)), bed.analyst)
    federation = local.prepare(key)
    execute(url, f"ALTER TABLE records {change}")
    with pytest.raises(RoundLostError):
        federation.sum("statistics")
    assert [(item.participant, item.code) for item in bed.hub.shown.status(key).refusals] == [("a", "dataset-not-offered")]
    assert Kind.RESERVE not in kinds(bed.sites["a"])


@pytest.mark.parametrize("change", ["DROP COLUMN x1", "ALTER COLUMN x1 TYPE float8[] USING ARRAY[x1]"])
def test_a_column_that_changes_between_rounds_is_refused_and_the_first_round_paid_once(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Of a dataset in batches, which each round reads anew; one that is held stays as it was read."""
    calls: list[object] = []
    original = local_module.check_structure

    def watched(source: object, *arguments: Any, **options: Any) -> None:
        if isinstance(source, SourceQuery):
            calls.append(source)
            if len(calls) == 3:  # the first is the enrolment's, the second the first round's
                execute(url, f"ALTER TABLE records {change}")
        return original(source, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(local_module, "check_structure", watched)
    bed = bed_on(tmp_path, url)
    in_batches(bed)
    request = make_request(LARGE, method="fedcgs").model_copy(update={"parameters": {"centre": True}})
    study = bed.compile(request)
    assert len(study.tasks) > 1
    with pytest.raises(StateError, match="2 participants are left"):
        bed.local.run(study, bed.analyst, tmp_path / "results")
    (refused,) = bed.hub.shown.status(AgreedStudy(study).digest).refusals
    assert (refused.participant, refused.code, len(calls)) == ("a", "dataset-not-offered", 3)
    assert kinds(bed.sites["a"]) == [Kind.RESERVE, Kind.SNAPSHOT, Kind.CHARGE]


def test_a_database_that_is_away_is_waited_for_and_paid_once(
    tmp_path: Path, url: str, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops as the round's query is tried without a record, and comes back after the site has met that."""
    calls: list[object] = []
    away = threading.Event()
    original = local_module.check_structure

    def watched(source: object, *arguments: Any, **options: Any) -> None:
        if not isinstance(source, SourceQuery):
            return original(source, *arguments, **options)  # type: ignore[arg-type]
        calls.append(source)
        if len(calls) == 2:  # the first is the enrolment's
            postgres.halt()
        try:
            return original(source, *arguments, **options)
        except Unavailable:
            away.set()
            raise

    monkeypatch.setattr(local_module, "check_structure", watched)
    bed = bed_on(tmp_path, url)
    with ExitStack() as stack:
        _, _, stub = stack.enter_context(wired(bed))
        key = submit(bed, stub, bed.compile(make_request(schema_of(2), epsilon=None)))
        assert away.wait(60)
        postgres.resume()
        phases = [status.phase for status in stub.Watch(pb.ShowRequest(study=key), timeout=240)]
        status = stub.Show(pb.ShowRequest(study=key))
    assert phases[-1] == StudyPhase.FINISHED.value, (status.reason, status.refusals)
    assert len(calls) >= 3
    assert kinds(bed.sites["a"]) == [Kind.RESERVE, Kind.SNAPSHOT, Kind.CHARGE]


def test_the_check_says_what_is_wrong_with_a_database(tmp_path: Path, url: str, postgres: Server) -> None:
    bed = bed_on(tmp_path, url)
    config = bed.sites["a"].config

    def told(schema: bool = False, **changes: Any) -> list[Check]:
        offered = config.datasets[DATASET].model_copy(update=changes)
        asked = config.model_copy(update={"datasets": {DATASET: offered}})
        schemas = {DATASET: schema_of(2)} if schema else {}
        return [item for item in SiteCheck(asked, bed.clock, schemas=schemas).run() if item.check == f"dataset {DATASET}"]

    def said(schema: bool = False, **changes: Any) -> Check:
        return told(schema, **changes)[0]

    assert (said().status, said().detail) == (
        CheckOutcome.OK, "the query of dataset records is accepted; it yields 4 columns",
    )  # fmt: skip
    assert said(schema=True).detail == "10 records; 3 of 3 columns as the schema says"
    broken = said(query="SELECT nope FROM records")
    assert (broken.status, "does not exist" in broken.detail) == (CheckOutcome.FAILED, True)
    execute(url, "INSERT INTO records VALUES (7, 0, 0)")
    assert [item.detail for item in told(schema=True)] == [
        "11 records; 2 of 3 columns as the schema says",
        "column 'x0': out of bounds: 1 (row 11); expected a number in [-1, 1]",
    ]
    postgres.halt()
    try:
        gone = said()
    finally:
        postgres.resume()
    assert (gone.status, gone.detail) == (
        CheckOutcome.FAILED,
        "The database of the query of dataset records cannot be reached.",
    )
