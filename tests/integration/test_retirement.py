"""Studies that are over: copies that verify, deletion that leaves nothing but the ledger, and what is erased by itself."""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from support import commands
from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import TestBed, make_bed, make_data
from support.held import HeldStudies
from support.network import wait_for
from veilsum.verification import verify_result
from veilsum_coordinator.protocol.settings import Retention
from veilsum_coordinator.results.retirement import (
    OUTCOME,
    archive_study,
    delete_study,
    find_study,
    retire,
)
from veilsum_coordinator.service.runner import Supervisor
from veilsum_node.errors import Misuse, StateError
from veilsum_node.telemetry.log_writing import LogSettings, start_logging
from veilsum_participant.protocol.membership import Membership
from veilsum_participant.settings.config import RetentionConfig
from veilsum_participant.store.kept import KEPT
from veilsum_participant.store.studies import STUDIES as SITE_STUDIES
from veilsum_privacy.ledger import LedgerReader
from veilsum_proto import federation_pb2 as pb

DAY = 86400


@pytest.fixture
def place(tmp_path: Path) -> HeldStudies:
    return HeldStudies(tmp_path)


def test_an_archived_study_verifies_and_stays(place: HeldStudies, tmp_path: Path) -> None:
    before = place.tables()
    found = archive_study(place.database, place.results, place.held()[place.key], tmp_path / "archive")
    verified = verify_result(found, place.bed.analyst.authority)
    assert verified.comparison.exact
    assert verified.study.digest == place.key
    assert json.loads((found / OUTCOME).read_text())["phase"] == "finished"
    assert {path.stat().st_mode & 0o077 for path in found.parent.iterdir()} == {0}
    assert place.tables() == before
    with pytest.raises(StateError, match="exists already"):
        archive_study(place.database, place.results, place.held()[place.key], tmp_path / "archive")
    with pytest.raises(StateError, match="not over"):
        archive_study(place.database, place.results, place.held()[place.open], tmp_path / "archive")
    assert [path.name for path in (tmp_path / "archive").iterdir()] == [found.name]


def test_a_deleted_study_leaves_its_proof_and_the_ledger(place: HeldStudies, tmp_path: Path) -> None:
    held, database = place.held(), place.database
    mirror = place.bed.hub.journal.mirror
    head, entries = mirror.head(), len(mirror.entries())
    for study, when, words in (
        (held[place.open], place.expires, "not over"),
        (held[place.key], place.expires - 1, "not expired"),
    ):
        with pytest.raises(StateError, match=words):
            delete_study(database, place.results, study, when)
    assert place.tables()["coordinator_release"] > 1
    values = (place.results / place.key.hex() / "arrays.safetensors").read_bytes()
    assert held[place.key].size > len(values)
    kept = delete_study(database, place.results, held[place.key], place.expires, proofs=tmp_path / "proofs")
    assert kept is not None
    assert verify_result(kept, place.bed.analyst.authority).study.digest == place.key
    assert set(place.tables().values()) == {0}
    assert not (place.results / place.key.hex()).exists()
    assert (mirror.head(), len(mirror.entries())) == (head, entries)
    mirror.verify(authority=place.bed.analyst.authority)
    assert set(place.held()) == {place.open}
    # the coordinator beside which it was deleted lets go of it, and of nothing else
    assert place.key in place.bed.hub.ended
    place.bed.hub.confirm(NAMES[0], place.key, pb.DIRECTIVE_KIND_END, 0, 0)  # late, and before it does
    place.bed.hub.tick()
    assert set(place.tables().values()) == {0}
    place.bed.hub.forget_deleted()
    assert {*place.bed.hub.studies, *place.bed.hub.ended} == {place.open}
    assert [item.study for item in place.bed.hub.shown.all()] == [place.open]
    for name in NAMES:
        assert all(bytes(item.study) == place.open for item in place.bed.hub.directives(name))


def test_a_deletion_that_was_cut_off_is_repeated(place: HeldStudies) -> None:
    shutil.rmtree(place.results / place.key.hex())
    assert delete_study(place.database, place.results, place.held()[place.key], place.expires) is None
    assert set(place.tables().values()) == {0}


def test_which_study_is_meant(place: HeldStudies) -> None:
    studies = list(place.held().values())
    assert find_study(studies, place.key.hex()[:8].upper()).digest == place.key
    for wanted in ("", "zz", "0" * 64):
        with pytest.raises(Misuse, match="begins with"):
            find_study(studies, wanted)
    with pytest.raises(Misuse, match="2 studies"):
        find_study([studies[0], studies[0]], studies[0].digest.hex()[:4])


@pytest.mark.parametrize("days", [pytest.param(0, marks=pytest.mark.system), 30])
def test_studies_are_deleted_when_they_were_held_long_enough(place: HeldStudies, tmp_path: Path, days: int) -> None:
    due = place.expires + days * DAY
    assert retire(place.database, place.results, due - 1, days, proofs=None) == []
    supervisor = Supervisor(place.bed.hub, place.results, place.bed.clock, Retention(studies=days))
    supervisor.TIDY_SECONDS = 0.01
    place.bed.clock.now = due
    supervisor.start()
    try:
        wait_for(lambda: place.key not in place.bed.hub.ended, "the study's deletion")
    finally:
        supervisor.stop()
    assert set(place.tables().values()) == {0}
    kept = tmp_path / "proofs" / place.key.hex()[:16]  # beside what the other study left, which had ended by its time
    assert verify_result(kept, place.bed.analyst.authority).comparison.exact


# -- a site ----------------------------------------------------------------------------------------------------------------


def rows(bed: TestBed, name: str) -> tuple[int, int]:
    with bed.sites[name].database.reading() as connection:
        return len(connection.execute(select(SITE_STUDIES)).all()), len(connection.execute(select(KEPT)).all())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("retention", "left"), [((None, None), (1, 1)), ((7, None), (0, 0)), ((None, 7), (1, 0)), ((9, 7), (1, 0))]
)
def test_a_site_forgets_what_it_need_not_hold(
    tmp_path: Path, retention: tuple[int | None, int | None], left: tuple[int, int]
) -> None:
    """After the days that were named and not before; attempts and the ledger stay, and nothing is enrolled in again."""
    bed = make_bed(tmp_path, make_data(NAMES, 24, WIDTH))
    study = STUDIES["slot-align"](bed)
    bed.local.run(study, bed.analyst, tmp_path / "results")
    site = bed.sites["a"]
    studies, kept = retention
    site.config = site.config.model_copy(update={"retention": RetentionConfig(studies=studies, kept_vectors=kept)})
    with site.database.reading() as connection:
        ledger = LedgerReader(site.database)
        head = ledger.head(connection)
        attempts = connection.exec_driver_sql("SELECT count(*) FROM participant_attempt").scalar_one()
    before = rows(bed, "a")
    assert before[0] == 1
    assert before[1] >= 1
    membership = Membership(site)
    bed.clock.now = study.expires + 7 * DAY - 1
    membership.expire()
    assert rows(bed, "a") == before
    bed.clock.now = study.expires + 7 * DAY + 3600
    membership.expire()
    found = rows(bed, "a")
    assert (found[0], min(found[1], 1)) == left
    with site.database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM participant_attempt").scalar_one() == attempts
        assert ledger.head(connection) == head


def test_a_running_study_is_never_forgotten(place: HeldStudies) -> None:
    site = place.bed.sites["a"]
    site.config = site.config.model_copy(update={"retention": RetentionConfig(studies=0, kept_vectors=0)})
    with place.bed.sites["a"].database.transaction() as connection:
        connection.exec_driver_sql("UPDATE participant_study SET status = 'ready'")
    place.bed.clock.now = place.expires - 1
    Membership(site).expire()
    assert rows(place.bed, "a")[0] == 1


# -- commands and logs -----------------------------------------------------------------------------------------------------


def test_the_commands_beside_a_database(place: HeldStudies, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the first digits of the study's name, on a state of the coordinator's as it lies on the disk."""
    config = place.copy(tmp_path / "hub")
    wanted = place.key.hex()[:10]
    told = commands.shown(capsys, "coordinator", "archive", wanted, "--to", tmp_path / "out", "--config", config)
    assert verify_result(Path(told["archived"]), place.bed.analyst.authority).comparison.exact
    status, _, err = commands.veilsum(capsys, "coordinator", "delete", place.open.hex(), "--config", config)
    assert (status != 0, "not over" in err) == (True, True)
    status, out, err = commands.veilsum(capsys, "coordinator", "delete", wanted, "--keep-proof", "--config", config, "--json")
    if time.time() < place.expires:
        assert (status != 0, "not expired" in err) == (True, True)
    else:
        assert verify_result(Path(json.loads(out)["proof"]), place.bed.analyst.authority).comparison.exact
        status, _, err = commands.veilsum(capsys, "coordinator", "delete", wanted, "--config", config)
        assert (status != 0, "No study" in err) == (True, True)


@pytest.fixture
def own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in root.handlers:
        if handler not in handlers:
            handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
def test_logs_of_days_that_are_over_are_deleted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for age in range(2, 9):
        day = time.strftime("%Y-%m-%d", time.gmtime(time.time() - age * DAY))
        (tmp_path / f"log.{day}").write_text("old")
    start_logging(LogSettings(file=path, days=5))
    logging.getLogger("veilsum.test").warning("first")
    (handler,) = [item for item in logging.getLogger().handlers if getattr(item, "baseFilename", "") == str(path)]
    handler.rolloverAt = int(time.time()) - 1  # type: ignore[attr-defined]  # as at midnight
    logging.getLogger("veilsum.test").warning("second")
    assert "second" in path.read_text()
    assert "first" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.glob("log.*"))) == 5
