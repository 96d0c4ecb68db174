"""What an upgrade meets: states of older layouts open, with all that is in them, and older backups can be put back."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import MetaData, inspect, select, text

from support.ledgers import START, federation
from support.postgres import server
from veilsum_coordinator.storage.long_values import METADATA
from veilsum_coordinator.storage.records import KeptStudy, read_state
from veilsum_node.database import Database, open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import StateError
from veilsum_node.identity import Role
from veilsum_node.migration import scripts
from veilsum_participant.session.client import open_site
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.store.populations import COHORTS
from veilsum_participant.store.tables import create_tables
from veilsum_privacy.backup.backup import BackupOwner, back_up
from veilsum_privacy.backup.restore import restore
from veilsum_privacy.ledger import Kind, LedgerReader

OLD = Path(__file__).parents[1] / "data" / "ledger-layout-1.sqlite3"
OLD_SECRET = 20260101
COMPONENTS = {
    "ledger": "veilsum_privacy.ledger.migrations",
    "participant": "veilsum_participant.migrations",
    "coordinator": "veilsum_coordinator.migrations",
}


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_last_script_of_each_component_is_the_one_that_is_named(component: str) -> None:
    """Otherwise a state of an older version would be taken for one of this version, and lack tables."""
    package = COMPONENTS[component]
    assert scripts(package).get_heads() == [import_module(package).HEAD]
    revisions = [script.revision for script in scripts(package).walk_revisions()]
    assert sorted(revisions, reverse=True) == revisions


RELEASED = ("0.1", "0.2")
STATES = Path(__file__).parents[1] / "data" / "states"
"""Written by the code of 0.1.0 (commit b38ea62a) and 0.2.0 (0080f6a4): the states of one of four sites and of their
coordinator after studies of statistics, fedcgs, slot-align and fedavg, by 0.2 of eight more; and the statements by which their
coordinators made tables in PostgreSQL."""


GONE = {"strict_cohort", "ciphertexts", "secret_key", "tag_key", "dealer", "self_seed", "sizes", "decrypted", "consent_digest"}


def left_state(party: str, version: str, directory: Path) -> Path:
    """A state that a released version left."""
    path = directory / f"{party}-{version}.db"
    path.write_bytes(gzip.decompress((STATES / f"{party}-{version}.sqlite3.gz").read_bytes()))
    return path


def migrate(database: Database, party: str) -> None:
    for component in ("ledger", party):
        database.migrate(COMPONENTS[component], component)


_ON_SERVER = """
SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
"""


def shape(database: Database) -> dict[str, object]:
    """All that a schema holds a row to: types as their database tells them apart, keys, uniqueness, triggers."""
    with database.reading() as connection:
        found, inspector = dict[str, object](), inspect(connection)
        for name in inspector.get_table_names():
            columns = {(c["name"], _affinity(database, c["type"]), c["nullable"]) for c in inspector.get_columns(name)}
            unique = {tuple(item["column_names"]) for item in inspector.get_unique_constraints(name)}
            key = inspector.get_pk_constraint(name)
            found[name] = (columns, tuple(key["constrained_columns"]), unique)
        if database.on_server:
            rows = connection.execute(text(_ON_SERVER))
            sources = connection.execute(text("SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'ledger%'"))
            found["functions"] = {tuple(row) for row in sources}
        else:
            rows = connection.execute(
                text("SELECT sql FROM sqlite_master WHERE type = 'trigger' OR sql LIKE 'CREATE UNIQUE%'")
            )
        found["indexes and triggers"] = {" ".join(str(sql).split()) for (sql,) in rows}
        assert len(found["indexes and triggers"]) > 12
    return found


def _affinity(database: Database, kind: object) -> str:
    """SQLite holds no text to its length, and knows one kind of integer."""
    name = str(kind)
    return "TEXT" if not database.on_server and name.startswith("VARCHAR") else name


def rows(path: Path) -> dict[str, list[dict[str, object]]]:
    """All rows of all tables."""
    with closing(sqlite3.connect(path)) as raw:
        raw.row_factory = sqlite3.Row
        names = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: [dict(row) for row in raw.execute(f'SELECT * FROM "{name}"')] for name in names}  # noqa: S608


@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize(("party", "metadata"), [("participant", COHORTS.metadata), ("coordinator", METADATA)])
def test_a_state_that_waits_for_its_upgrade_is_no_fault_of_disk_or_database(
    tmp_path: Path, party: str, metadata: MetaData, version: str
) -> None:
    """Whatever reads a state before this version's first start on it, as checks do, hears what is to be done."""
    told = []
    with open_readonly(left_state(party, version, tmp_path)) as database:
        with database.reading() as connection:
            there = inspect(connection).get_table_names()
        for table in (table for table in metadata.sorted_tables if table.name in there):
            try:
                with database.reading() as connection:
                    connection.execute(select(table)).fetchall()
            except StateError as error:
                told.append((error.message, error.advice))
    assert told
    assert {message.partition(": no such column")[0] for message, _ in told} == {
        "The state was not upgraded to this version yet"
    }
    assert {advice for _, advice in told} == {"Back it up, and start this version."}


@pytest.mark.parametrize("version", RELEASED)
def test_studies_that_sites_had_joined_are_known_as_those_of_another_protocol(tmp_path: Path, version: str) -> None:
    """What was decided of a study stays as it was; one of which nothing was decided yet is marked, for its sites left it."""
    path, joined, decided = left_state("coordinator", version, tmp_path), b"j" * 32, b"d" * 32
    with closing(sqlite3.connect(path)) as raw:
        for study in (joined, decided):
            raw.execute("INSERT INTO coordinator_member (study, name, enrolment) VALUES (?, 'a', x'00')", (study,))
        raw.execute("INSERT INTO coordinator_progress (study, state) VALUES (?, ?)", (decided, '{"phase": "running"}'))
        raw.commit()
    with open_database(path) as database:
        migrate(database, "coordinator")
        with database.reading() as connection:
            states = {study: read_state(connection, study) for study in (joined, decided, bytes(32))}
    assert states == {joined: {"protocol": 5}, decided: {"phase": "running"}, bytes(32): {}}
    assert [KeptStudy(state, {}, {}, [], {}).former for state in states.values()] == [True, True, False]


@pytest.mark.parametrize("version", RELEASED)
@pytest.mark.parametrize("party", ["participant", "coordinator"])
def test_a_released_versions_state_is_brought_up_to_date(tmp_path: Path, party: str, version: str) -> None:
    """It has the tables of a new one, and every row that it had, but for columns that there are no more, and for numbers of
    peers' receipts, which the ledger keeps with the receipts themselves."""
    path = left_state(party, version, tmp_path)
    before = rows(path)
    with open_database(path) as database, open_database(tmp_path / "new.db") as fresh:
        for _ in range(2):
            migrate(database, party)
        migrate(fresh, party)
        assert shape(database) == shape(fresh)
    after = rows(path)
    peers = before.pop("participant_peer", [])
    assert bool(peers) == (party == "participant")
    numbers = Counter[tuple[object, object]]()
    for row in after["ledger_receipt"]:
        numbers[row["study"], row["participant"]] = max(numbers[row["study"], row["participant"]], row["number"])  # type: ignore[type-var]
    assert all(row["number"] <= numbers[row["study"].hex(), row["name"]] for row in peers)  # type: ignore[attr-defined, operator]
    for name, kept in before.items():
        if not name.endswith("_version"):
            assert len(after[name]) == len(kept)
            for old, new in zip(kept, after[name], strict=True):
                assert {key: new[key] for key in old if key in new} == {key: old[key] for key in old if key in new}
                assert set(old) - set(new) <= GONE


@pytest.mark.parametrize("version", RELEASED)
def test_a_released_versions_server_is_brought_up_to_date(version: str) -> None:
    with open_database(server().new_database()) as database, open_database(server().new_database()) as fresh:
        with database.transaction() as connection:
            for statement in (STATES / f"coordinator-{version}.postgresql.sql").read_text().split("\n--\n"):
                connection.exec_driver_sql(statement)
        migrate(database, "coordinator")
        migrate(fresh, "coordinator")
        assert shape(database) == shape(fresh)


@pytest.mark.parametrize("version", RELEASED)
def test_a_released_participant_remembers_its_cohorts(tmp_path: Path, version: str) -> None:
    """Of 0.1 by the receipts that its charges kept; 0.2 wrote them down."""
    path = left_state("participant", version, tmp_path)
    with open_database(path) as database:
        migrate(database, "participant")
        with database.reading() as connection:
            found = connection.execute(select(COHORTS)).all()
            known = connection.execute(text("SELECT digest, study FROM participant_study"))
            signed = {bytes(digest): json.loads(data) for digest, data in known}
            paid = connection.execute(
                text("SELECT study, context FROM participant_attempt WHERE state IN ('consented', 'released', 'recovered')")
            ).all()
    strict = {study for study, value in signed.items() if value["privacy"]["cohort_difference"] == "strict"}
    assert found
    assert {row.study for row in found} <= {study for study, _ in paid}
    if version == "0.1":
        assert {row.study for row in found} == {study for study, _ in paid if study in strict}
    assert all(set(json.loads(row.members)) == set("abcd") and all(json.loads(row.members).values()) for row in found)


@pytest.mark.parametrize("party", ["participant", "coordinator"])
def test_tables_of_a_version_that_was_not_released_are_refused(tmp_path: Path, party: str) -> None:
    """Those of the commits between two versions; nothing is changed."""
    path = left_state(party, "0.1", tmp_path)
    with open_database(path) as database:
        with database.transaction() as connection:
            connection.execute(text(f"UPDATE {party}_version SET version_num = '0001'"))  # noqa: S608
        with pytest.raises(StateError, match="'0001', which no released version has") as caught:
            migrate(database, party)
        assert "version 0.2" in caught.value.advice
    with closing(sqlite3.connect(path)) as raw:
        assert raw.execute(f"SELECT version_num FROM {party}_version").fetchall() == [("0001",)]  # noqa: S608


def test_new_tables_need_no_scripts(tmp_path: Path) -> None:
    """Alembic takes longer to load than most commands take in all."""
    code = "\n".join(
        [
            "import sys",
            "from veilsum_node.database import open_database",
            *(
                f"open_database({str(tmp_path / name)!r}).migrate({package!r}, {name!r})"
                for name, package in COMPONENTS.items()
            ),
            "print('alembic' in sys.modules)",
        ]
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False"]


def test_cohorts_of_an_older_version_are_remembered(tmp_path: Path) -> None:
    """By name where no receipts were kept; of a sum that is known by its receipt only, that there was one."""
    path, receipt = left_state("participant", "0.1", tmp_path), json.dumps({"dataset": "records"})
    database = open_database(path)
    with database.transaction() as connection:
        for name in ("study", "attempt"):
            connection.execute(text(f"DELETE FROM participant_{name}"))  # noqa: S608
        for number, (difference, cohort) in enumerate([("strict", '["a", "b"]'), ("allowed", '["a", "c"]'), ("strict", None)]):
            signed = json.dumps({"dataset": "records", "privacy": {"cohort_difference": difference}}).encode()
            connection.execute(
                text(
                    "INSERT INTO participant_study (digest, status, study, analyst, enrolment, strict_cohort, receipts, round,"
                    " attempt) VALUES (:digest, 'ended', :study, 'analyst', X'00', :cohort, 0, 0, 0)"
                ),
                {"digest": bytes([number]) * 32, "study": signed, "cohort": cohort},
            )
        states = [(0, "released", None), (0, "consented", None), (0, "tombstone", None), (1, "released", None),
                  (2, "recovered", receipt), (3, "recovered", receipt)]  # fmt: skip
        for number, (study, state, shown) in enumerate(states):
            connection.execute(
                text(
                    "INSERT INTO participant_attempt (study, attempt, round, state, context, assignment, deadline, label,"
                    " receipt) VALUES (:study, :number, 1, :state, :context, X'00', 9, 'statistics', :receipt)"
                ),
                {
                    "study": bytes([study]) * 32,
                    "number": number,
                    "state": state,
                    "context": bytes([number]) * 32,
                    "receipt": None if shown is None else shown.encode(),
                },
            )
    create_tables(database)
    with database.transaction() as connection:
        rows = connection.execute(select(COHORTS).order_by(COHORTS.c.context)).all()
    database.close()
    assert [(row.study[0], row.dataset, row.population, row.members) for row in rows] == [
        (0, "records", "records", '{"a": "", "b": ""}'),
        (2, "records", "records", None),
        (3, "records", "records", None),
    ]


def old_site(directory: Path) -> ParticipantConfig:
    """A participant of version 0.1, as it was left: state file of the first layout, key and certificates."""
    forge, key = federation(), ec.derive_private_key(OLD_SECRET, ec.SECP256R1())
    identity = directory / "identity"
    identity.mkdir(parents=True)
    uri = "veilsum://trial/participant/north"
    certificate = forge.leaf(name="north", key=key, uris=[uri], not_before=START - 60, not_after=START + 10**7)
    (identity / "certificate.pem").write_bytes(certificate)
    (identity / "authority.pem").write_bytes(forge.ca.public_bytes(Encoding.PEM))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (identity / "key.pem").write_bytes(private)
    (identity / "key.pem").chmod(0o600)
    shutil.copyfile(OLD, directory / "participant.db")
    values = {"coordinator": "localhost:1", "datasets": {"heart": {"path": "records.csv"}}}
    config = ParticipantConfig.model_validate(values)
    return config.model_copy(update={"identity": identity, "state": directory / "participant.db"})


def test_a_participant_opens_its_state_of_the_first_layout(tmp_path: Path) -> None:
    config = old_site(tmp_path / "north")
    with closing(sqlite3.connect(config.state)) as raw:
        before = raw.execute("SELECT seq, hash FROM ledger ORDER BY seq").fetchall()
    site = open_site(config, clock=lambda: START + 1000)
    found = [(entry.seq, entry.hash.hex()) for entry in site.ledger.entries()]
    assert found[:10] == before
    assert [entry.kind for entry in site.ledger.entries()[10:]] == [Kind.KEY]
    site.ledger.verify(authority=federation().ca)
    site.database.close()


def test_going_back_and_forth(tmp_path: Path) -> None:
    """The upgraded state is backed up; the file from before the upgrade is put back; then the backup, which is newer."""
    config = old_site(tmp_path / "north")
    site = open_site(config, clock=lambda: START + 1000)
    head = site.ledger.head()
    site.database.close()
    party = BackupOwner(Role.PARTICIPANT, config.state, config.identity)
    manifest = back_up(party, tmp_path / "new.tar", software="veilsum test")
    assert manifest.layout == {"ledger": "0004", "participant": "0013"}
    shutil.copyfile(OLD, config.state)
    assert restore(tmp_path / "new.tar", party).behind == 0
    database = open_database(config.state)
    assert LedgerReader(database).head() == head
    database.close()


@pytest.mark.parametrize(
    ("migrations", "store", "holder"),
    [
        ("veilsum_participant.migrations", "veilsum_participant.store", "veilsum_participant.store.tables"),
        ("veilsum_coordinator.migrations", "veilsum_coordinator.storage", "veilsum_coordinator.storage.long_values"),
    ],
)
def test_what_makes_tables_knows_all_of_them_whatever_else_is_loaded(migrations: str, store: str, holder: str) -> None:
    """A process loads what it needs: no table may wait for a module that the first study brings."""
    code = (
        "import importlib, pkgutil, sys\n"
        f"importlib.import_module({migrations!r})\n"
        f"tables = importlib.import_module({holder!r}).METADATA.tables\n"
        "made = set(tables)\n"
        f"package = importlib.import_module({store!r})\n"
        "for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        "print(len(made), sorted(set(tables) - made))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    number, left = done.stdout.split(maxsplit=1)
    assert int(number) >= 6
    assert left.strip() == "[]"
