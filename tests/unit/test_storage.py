"""Disk, size of state and age of the backup: in checks, in metrics, and beside a party that runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from support.federation import make_bed, make_data
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_deploy.coordinator.check import check_coordinator
from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.process.check import CheckOutcome, storage_checks
from veilsum_node.storage import FULL, NEARLY_FULL, OLD_BACKUP, Storage, backup_record, last_backup, look_at, record_backup
from veilsum_node.telemetry.process_metrics import ProcessMetrics
from veilsum_participant.checks import SiteCheck

NOW = 1_800_000_000
SIZES = st.one_of(st.integers(0, 1 << 42), st.sampled_from([FULL - 1, FULL, NEARLY_FULL - 1, NEARLY_FULL]))


@given(SIZES, SIZES, st.one_of(st.none(), st.integers(0, NOW + OLD_BACKUP), st.just(NOW - OLD_BACKUP)))
def test_what_a_check_says_of_a_disk(free: int, state: int, backed_up: int | None) -> None:
    disk, backup = storage_checks(Storage(free, max(free, 1 << 40), state, backed_up), NOW, "participant")
    worst = CheckOutcome.FAILED if free < 64 * 1024**2 else CheckOutcome.WARNING
    assert disk.status is (CheckOutcome.OK if free >= 1024**3 and free >= state else worst)
    assert (disk.status is CheckOutcome.OK) is not bool(disk.advice)
    assert ("not writable" in disk.detail) is (free == 0)
    fresh = backed_up is not None and NOW - backed_up <= 7 * 24 * 3600
    assert backup.status is (CheckOutcome.OK if fresh else CheckOutcome.WARNING)
    assert (backup.status is CheckOutcome.OK) is not bool(backup.advice)
    (alone,) = storage_checks(Storage(free, disk=1 << 40, state=state, backed_up=None), NOW, "coordinator", backups=False)
    assert alone == disk or "free of" in alone.detail


def test_what_a_state_has(tmp_path: Path) -> None:
    state = tmp_path / "here" / "state.db"
    with pytest.raises(ConfigurationError, match=r"folder .* does not exist"):
        look_at(state)
    state.parent.mkdir()
    assert look_at(state).state == 0
    state.write_bytes(bytes(1000))
    state.with_name("state.db-wal").write_bytes(bytes(200))
    state.with_name("other").write_bytes(bytes(50_000))
    results = tmp_path / "here" / "results" / "deep"
    results.mkdir(parents=True)
    results.joinpath("file").write_bytes(bytes(30))
    results.joinpath("away").symlink_to(tmp_path / "nowhere")
    assert look_at(state).state == 1200
    assert look_at(state, results.parent).state == 1230 + len(os.fsencode(tmp_path / "nowhere"))
    found, stat = look_at(state), os.statvfs(tmp_path)
    assert 0 < found.free <= found.disk == stat.f_blocks * stat.f_frsize
    record_backup(state, 17, "ab")
    assert look_at(state).backed_up == last_backup(state) == 17
    assert backup_record(state).stat().st_mode & 0o777 == 0o600


def test_nothing_is_free_in_a_folder_that_this_user_may_not_write() -> None:
    if (child := os.fork()) == 0:
        if os.geteuid() == 0:
            os.setuid(65534)
        os._exit(look_at(Path("/state.db")).free != 0)  # the root's folder is the administrator's
    assert os.waitpid(child, 0)[1] == 0


def test_a_participants_check_fails_where_its_start_would(tmp_path: Path) -> None:
    """A volume that is not mounted: the folder of the state is not there."""
    site = make_bed(tmp_path, make_data("ab")).sites["a"]
    for folder, expected in ((site.config.state.parent, CheckOutcome.OK), (tmp_path / "nothing", CheckOutcome.FAILED)):
        config = site.config.model_copy(update={"state": folder / "participant.db"})
        (disk,) = [item for item in SiteCheck(config, site.clock).run(reach=False) if item.check == "disk"]
        assert disk.status is expected


def test_metrics_have_no_number_where_nothing_is_known() -> None:
    answers: list[Storage | Exception] = [StateError("unread"), Storage(5, 7, 3, None), Storage(5, 7, 3, 11)]

    def look() -> Storage:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry = CollectorRegistry()
    metrics = ProcessMetrics("participant", registry)
    metrics.watch_storage(look)
    names = (
        "veilsum_state_disk_free_bytes",
        "veilsum_state_bytes",
        "veilsum_backup_timestamp_seconds",
    )
    shown = []
    for _ in range(3):
        lines = dict(line.rsplit(" ", 1) for line in generate_latest(registry).decode().splitlines() if line[0] != "#")
        shown.append([lines[name] for name in names])
    assert shown == [["NaN"] * 3, ["5.0", "3.0", "NaN"], ["5.0", "3.0", "11.0"]]


def test_a_coordinators_check_sees_what_is_wrong(tmp_path: Path) -> None:
    """A new one, with a backup, with an old one, with a mirror that was changed, without an identity."""
    bed = make_bed(tmp_path, make_data("ab"))
    config = CoordinatorConfig(identity=bed.kit.coordinator.identity, state=bed.kit.coordinator.directory)

    def found(settings: CoordinatorConfig = config) -> dict[str, str]:
        return {item.check: item.status.value for item in check_coordinator(settings, bed.clock) if item.check != "disk"}

    state = config.state / "coordinator.db"
    assert found() == {"certificate": "ok", "mirror": "ok", "backup": "warning"}
    record_backup(state, bed.clock(), "ab")
    assert found()["backup"] == "ok"
    record_backup(state, bed.clock() - OLD_BACKUP - 1, "ab")
    assert found()["backup"] == "warning"
    empty = config.model_copy(update={"state": tmp_path / "nothing"})
    assert found(empty) == {"certificate": "ok", "mirror": "warning"}
    with bed.hub.journal.database.transaction() as connection:
        for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.exec_driver_sql("UPDATE ledger SET time = time + 1")
    assert found()["mirror"] == "failed"
    config.identity.joinpath("certificate.pem").unlink()
    assert found()["certificate"] == "failed"
