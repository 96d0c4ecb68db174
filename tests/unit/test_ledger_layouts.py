"""How the ledger's tables come to be and change: old files are adopted, new ones refused, on every database."""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import inspect, text

from support.backends import BACKENDS, new_place
from support.ledgers import START, credentials_of, federation, make_reservation, open_ledger, set_budget, ticking
from support.tampering import Copy
from veilsum_node.database import SCHEMA_VERSION, Database, open_database
from veilsum_node.database_places import open_readonly
from veilsum_node.errors import Damage, StateError
from veilsum_node.identity import Credentials, Role, SigningKey, verify_certificate
from veilsum_node.migration import scripts
from veilsum_privacy.accounting.figures import rdp_epsilon
from veilsum_privacy.ledger import Kind, LedgerFault, LedgerReader, migrations, verify_ledger
from veilsum_privacy.ledger.tables import metadata

OLD = Path(__file__).parents[1] / "data" / "ledger-layout-1.sqlite3"
"""Written by version 0.1 with the key below: budget 2.0, a round charged and released, one freed, one refused, one of another
study open, budget 3.0. Its head is the one below."""

OLD_SECRET = 20260101
OLD_HEAD = bytes.fromhex("549107290d5e6ced5db0902138f658ed2f45b2177dc7b2d3ab42342eecebdcef")
OLD_KINDS = ["genesis", "budget", "reserve", "charge", "release-seen", "reserve", "free", "refusal", "reserve", "budget"]


def old_credentials() -> Credentials:
    """A certificate for the key that signed the old file."""
    forge, key = federation(), ec.derive_private_key(OLD_SECRET, ec.SECP256R1())
    certificate = forge.leaf(name="north", key=key, not_before=START - 60, not_after=START + 10**7)
    identity = verify_certificate(certificate, forge.ca, START, Role.PARTICIPANT)
    return Credentials(identity, SigningKey(key), forge.ca, b"", certificate, forge.ca.public_bytes(Encoding.PEM))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "participant.db"
    shutil.copyfile(OLD, path)
    return path


def test_an_old_file_is_adopted_without_loss(old: Path) -> None:
    before = LedgerReader(open_readonly(old))
    entries, spending = before.entries(), before.spending("heart")
    ledger = open_ledger(old, credentials=old_credentials(), clock=ticking(START + 1000))
    assert ledger.entries()[:10] == entries
    assert [entry.kind.value for entry in entries] == OLD_KINDS
    assert entries[-1].hash == OLD_HEAD
    assert [entry.kind for entry in ledger.entries()[10:]] == [Kind.KEY]
    assert ledger.spending("heart") == spending
    assert spending.spent == rdp_epsilon([make_reservation().mechanism.event], 1e-5) == pytest.approx(1.0126, abs=1e-4)
    verified = ledger.verify(authority=federation().ca)
    assert (verified.entries, verified.site) == (11, "north")
    assert verified.keys == (old_credentials().identity.fingerprint,)
    with sqlite3.connect(old) as raw:
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
        assert raw.execute("SELECT version_num FROM ledger_version").fetchall() == [(migrations.HEAD,)]
    raw.close()
    assert open_ledger(old, credentials=old_credentials(), clock=ticking(START + 2000)).head() == ledger.head()
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, make_reservation(4, multiplier=30))
        ledger.charge(connection, make_reservation(4, multiplier=30).context)
    assert ledger.verify().entries == 13


def test_an_old_file_can_be_read_as_it_is(old: Path) -> None:
    data = old.read_bytes()
    reader = LedgerReader(open_readonly(old))
    assert reader.site == "north"
    assert reader.receipts() == []
    assert [entry.kind.value for entry in reader.entries()] == OLD_KINDS
    with pytest.raises(LedgerFault, match="names no certificate") as caught:
        reader.verify()
    assert caught.value.entry == 1
    assert old.read_bytes() == data


def test_an_old_file_signed_by_another_key_is_found(old: Path) -> None:
    """Whoever adopts a file of someone else's, or edits one before, is named at its first entry."""
    ledger = open_ledger(old, credentials=credentials_of("north"))
    with pytest.raises(LedgerFault, match="entry 1 fails: its signature") as caught:
        ledger.verify()
    assert caught.value.entry == 1


def test_an_entry_of_an_old_file_that_was_made_anew_is_named(old: Path) -> None:
    """The chain anew from entry 7 on, by a key that the ledger names later."""
    other = credentials_of("north", secret=77)
    ledger = Copy.of(open_ledger(old, credentials=old_credentials()))
    first = [row["signature"] for row in ledger.rows[:6]]
    ledger.rows[6]["time"] += 1
    ledger.resign((1, old_credentials()), (7, other))
    for row, signature in zip(ledger.rows, first, strict=False):
        row["signature"] = signature
    with pytest.raises(LedgerFault, match="entry 7 fails: its signature"):
        verify_ledger(ledger)


def test_a_new_database_and_an_adopted_one_have_the_same_tables(old: Path, tmp_path: Path) -> None:
    open_ledger(old, credentials=old_credentials())
    open_ledger(tmp_path / "new.db")
    assert _statements(old) == _statements(tmp_path / "new.db")


def _statements(path: Path) -> set[str]:
    with sqlite3.connect(path) as raw:
        found = raw.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    raw.close()
    return {re.sub(r"\s+|IF NOT EXISTS", " ", statement).strip() for (statement,) in found}


@pytest.fixture(params=BACKENDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return open_database(new_place(request.param, tmp_path))


def test_queries_name_what_migrations_make(database: Database) -> None:
    open_ledger(database)
    inspector = inspect(database.engine)
    for table in metadata.tables.values():
        made = {column["name"]: column["nullable"] for column in inspector.get_columns(table.name)}
        assert made == {column.name: column.nullable for column in table.columns}
    assert {name for name in inspector.get_table_names() if name.startswith("ledger")} == {*metadata.tables, "ledger_version"}


def test_the_last_script_is_the_one_that_is_named() -> None:
    assert scripts(migrations.PACKAGE).get_heads() == [migrations.HEAD]
    revisions = [script.revision for script in scripts(migrations.PACKAGE).walk_revisions()]
    assert sorted(revisions, reverse=True) == revisions, "versions sort as texts: that is how a newer one is told"


def test_a_newer_version_is_refused_untouched(database: Database) -> None:
    ledger = open_ledger(database)
    set_budget(ledger)
    with database.transaction() as connection:
        connection.execute(text("UPDATE ledger_version SET version_num = '9999'"))
    head = ledger.head()
    for opening in (lambda: open_ledger(database), lambda: LedgerReader(database)):
        with pytest.raises(StateError, match="newer version") as caught:
            opening()
        assert "Install" in caught.value.advice
    assert ledger.head() == head


@pytest.fixture
def component(tmp_path: Path) -> Iterator[ModuleType]:
    """A component's migrations as its owner would write them: new tables, and a script for older ones that fails."""
    place = tmp_path / "some_migrations"
    (place / "versions").mkdir(parents=True)
    (place / "__init__.py").write_text(
        "HEAD = '0001'\n"
        "def create(connection):\n"
        "    connection.exec_driver_sql('CREATE TABLE some_one (x INTEGER)')\n"
        "    connection.exec_driver_sql('CREATE TABLE some_two (x INTEGER)' if HEAD > '0001' else 'SELECT 1')\n"
    )
    (place / "versions" / "0001_one.py").write_text("revision, down_revision = '0001', None\n")
    (place / "versions" / "0002_two.py").write_text(
        "from alembic import op\nimport sqlalchemy as sa\nrevision, down_revision = '0002', '0001'\n"
        "def upgrade():\n    op.create_table('some_two', sa.Column('x', sa.Integer))\n    op.execute('NONSENSE')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        yield __import__("some_migrations")
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("some_migrations", None)
        scripts.cache_clear()


def test_a_migration_that_fails_leaves_nothing(database: Database, component: ModuleType) -> None:
    database.migrate(component.__name__, "some")
    component.HEAD = "0002"
    with pytest.raises(Damage):
        database.migrate(component.__name__, "some")
    assert _tables_of("some", database) == {"some_one", "some_version"}
    two = Path(str(component.__file__)).parent / "versions" / "0002_two.py"
    two.write_text(two.read_text().replace("op.execute('NONSENSE')", "pass"))
    scripts.cache_clear()
    for _ in range(2):
        database.migrate(component.__name__, "some")
    assert _tables_of("some", database) == {"some_one", "some_two", "some_version"}
    open_ledger(database)  # components do not disturb each other
    assert inspect(database.engine).has_table("ledger_version")


def test_new_tables_that_fail_leave_nothing(database: Database, component: ModuleType) -> None:
    make, component.create = component.create, lambda connection: (make(connection), connection.exec_driver_sql("NONSENSE"))
    with pytest.raises(Damage):
        database.migrate(component.__name__, "some")
    assert not _tables_of("some", database)
    component.create = make
    database.migrate(component.__name__, "some")
    assert _tables_of("some", database) == {"some_one", "some_version"}


def _tables_of(component: str, database: Database) -> set[str]:
    return {name for name in inspect(database.engine).get_table_names() if name.startswith(component)}
