"""What an upgrade meets: states of older layouts open, with all that is in them, and older backups can be put back."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from sqlalchemy import inspect, select, text

from support.ledgers import START, federation
from veilsum_coordinator.storage.records import RELEASES
from veilsum_node.database import open_database
from veilsum_node.identity import Role
from veilsum_node.migration import scripts
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.session.client import open_site
from veilsum_participant.store.attempts import find_attempt
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
CONSENT = bytes(range(32))


@pytest.mark.parametrize("component", COMPONENTS)
def test_the_last_script_of_each_component_is_the_one_that_is_named(component: str) -> None:
    """Otherwise a state of an older version would be taken for one of this version, and lack tables."""
    package = COMPONENTS[component]
    assert scripts(package).get_heads() == [import_module(package).HEAD]
    revisions = [script.revision for script in scripts(package).walk_revisions()]
    assert sorted(revisions, reverse=True) == revisions


def upgrade_to(path: Path, package: str, component: str, version: str) -> None:
    """Make a component's tables as a version made them."""
    script = scripts(package)

    def steps(revision: Any, _context: Any) -> Any:
        return script._upgrade_revs(version, revision)

    database = open_database(path)
    with database.transaction() as connection, EnvironmentContext(Config(), script, fn=steps) as environment:  # type: ignore[arg-type]
        environment.configure(connection=connection, version_table=f"{component}_version")
        environment.run_migrations()
    database.close()


def tables(path: Path) -> dict[str, list[str]]:
    database = open_database(path)
    inspector = inspect(database.engine)
    found = {name: sorted(item["name"] for item in inspector.get_columns(name)) for name in inspector.get_table_names()}
    database.close()
    return found


@pytest.mark.parametrize("version", ["0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009"])
def test_a_participants_older_tables_are_brought_up_to_date(tmp_path: Path, version: str) -> None:
    path = tmp_path / "old.db"
    upgrade_to(path, COMPONENTS["participant"], "participant", version)
    database = open_database(path)
    with database.transaction() as connection:
        connection.execute(
            text(
                "INSERT INTO participant_attempt (study, attempt, round, state, context, assignment, deadline, label, consent)"
                " VALUES (:study, 1, 1, 'consented', :study, X'00', 9, 'statistics', :consent)"
            ),
            {"study": bytes(32), "consent": CONSENT},
        )
    create_tables(database)
    create_tables(database)
    with database.transaction() as connection:
        row = find_attempt(connection, bytes(32), 1)
    database.close()
    assert row is not None
    assert (row.state, row.consent) == ("consented", CONSENT)
    if version == "0001":
        assert row.consent_digest == hashlib.sha256(CONSENT).digest()
    fresh = open_database(tmp_path / "fresh.db")
    create_tables(fresh)
    fresh.close()
    assert tables(path) == tables(tmp_path / "fresh.db")


@pytest.mark.parametrize("version", ["0001", "0002", "0003"])
def test_a_coordinators_older_tables_are_brought_up_to_date(tmp_path: Path, version: str) -> None:
    """An earlier release stays as it is; it has no proof, and none is made up for it."""
    path = tmp_path / "old.db"
    upgrade_to(path, COMPONENTS["coordinator"], "coordinator", version)
    database = open_database(path)
    row = {"study": bytes(32), "values": bytes(8), "digest": bytes(range(32))}
    with database.transaction() as connection:
        connection.execute(
            text(
                'INSERT INTO coordinator_release (study, round, attempt, label, cohort, "values", digest, time)'
                " VALUES (:study, 1, 1, 'statistics', '[\"a\", \"b\"]', :values, :digest, 9)"
            ),
            row,
        )
    for _ in range(2):
        database.migrate(COMPONENTS["coordinator"], "coordinator")
    with database.transaction() as connection:
        found = connection.execute(RELEASES.select()).mappings().one()
    database.close()
    assert (bytes(found["digest"]), bytes(found["values"]), found["proof"]) == (row["digest"], row["values"], None)
    fresh = open_database(tmp_path / "fresh.db")
    fresh.migrate(COMPONENTS["coordinator"], "coordinator")
    fresh.close()
    assert tables(path) == tables(tmp_path / "fresh.db")


def test_cohorts_of_an_older_version_are_remembered(tmp_path: Path) -> None:
    """By name where no receipts were kept; of a sum that is known by its receipt only, that there was one."""
    path, receipt = tmp_path / "old.db", json.dumps({"dataset": "records"})
    upgrade_to(path, COMPONENTS["participant"], "participant", "0004")
    database = open_database(path)
    with database.transaction() as connection:
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
    assert manifest.layout == {"ledger": "0003", "participant": "0009"}
    shutil.copyfile(OLD, config.state)
    assert restore(tmp_path / "new.tar", party).behind == 0
    database = open_database(config.state)
    assert LedgerReader(database).head() == head
    database.close()
