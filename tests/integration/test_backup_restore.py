"""Backups of running parties, put back after more was released: nothing is released without a charge, whoever was restored."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import commands
from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.network import wait_for
from support.postgres import server
from support.processes import Processes, count, running_processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.database import open_database
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.ledger import Kind, LedgerFault, LedgerReader
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.verification import verify_ledger

NAMES = "abc"
WAITS = Waits(enrol=60, seal=60, contribute=60, consent=60, check=60, grace=20)


Command = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def veilsum(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command; its status, and what it printed as JSON."""

    def run(*arguments: object) -> tuple[int, dict[str, Any]]:
        status, out, err = commands.veilsum(capsys, *arguments, "--json")
        return status, json.loads(out or err)

    return run


def study(network: Processes) -> bytes:
    key = network.submit(network.compile(make_request(schema_of(2), epsilon=0.5)))
    assert network.await_end(key).phase == "finished"
    for name in NAMES:
        wait_for(lambda name=name: count(network.entries(name, key), Kind.RELEASE_SEEN) == 1, name)  # type: ignore[misc]
    return key


def ledger_of(network: Processes, name: str) -> LedgerReader:
    return LedgerReader(open_database(network.directory(name) / "participant.db"))


@pytest.mark.system
def test_parties_are_restored_between_releases(tmp_path: Path, veilsum: Command) -> None:
    data = make_data(NAMES)
    with running_processes(tmp_path / "federation", data, waits=WAITS, budget=(10.0, 1e-5)) as network:
        site, centre = network.directory("a") / "participant.toml", network.kit.coordinator.directory / "coordinator.toml"
        first = study(network)
        status, made = veilsum("participant", "backup", tmp_path / "a.tar", "--config", site)
        assert (status, made["party"], made["identity"]) == (0, "a", False)
        status, made = veilsum("coordinator", "backup", tmp_path / "c.tar", "--config", centre)
        assert (status, made["party"], made["role"]) == (0, "coordinator", "coordinator")
        assert made["files"] > 1  # the results as well
        second = study(network)

        # the participant: what it consented to since is charged before anything else
        status, error = veilsum("participant", "restore", tmp_path / "a.tar", "--config", site, "--force")
        assert (status, error["error"]) == (2, "StateError")
        assert "is running" in error["message"]
        assert network.participants["a"].stop() == 0
        status, error = veilsum("participant", "restore", tmp_path / "a.tar", "--config", site)
        assert status == 2
        assert "newer" in error["message"]
        status, done = veilsum("participant", "restore", tmp_path / "a.tar", "--config", site, "--force")
        assert status == 0
        assert done["entries_forgotten"] >= 3
        assert done["to_be_completed"]
        assert Path(done["replaced_file"]).is_file()
        assert network.entries("a", second) == []
        network.heal()
        wait_for(lambda: count(network.entries("a", second), Kind.RECOVERY) == 1, "the recovered charge")
        # the coordinator's mirror alone does not let it release again; a peer's ledger does
        status, shown = veilsum("participant", "check", "--config", site)
        assert (status, [item["check"] for item in shown["checks"] if item["status"] == "failed"]) == (1, ["restored"])
        peer = network.directory("b") / "participant.db"
        status, shown = veilsum("ledger", "recover", "--from", peer, "--config", site)
        assert (status, shown["completed"], shown["charged"]) == (0, True, [])
        third = study(network)
        spent = {name: ledger_of(network, name).spending(DATASET) for name in NAMES}
        assert {item.releases for item in spent.values()} == {3}
        assert spent["a"].spent == pytest.approx(spent["b"].spent)

        # the coordinator: its mirror ends where the backup ends, and goes on
        assert network.coordinator is not None
        assert network.coordinator.stop() == 0
        status, done = veilsum("coordinator", "restore", tmp_path / "c.tar", "--config", centre, "--force")
        assert (status, done["entries_forgotten"]) == (0, 6)
        network.heal()
        assert network.status(first).phase == "finished"
        fourth = study(network)
        for name in NAMES:
            charged = Counter(
                entry.study for entry in ledger_of(network, name).entries() if entry.kind in (Kind.CHARGE, Kind.RECOVERY)
            )
            assert charged == dict.fromkeys([first, second, third, fourth], 1)
        database = open_database(network.kit.coordinator.directory / "state" / "coordinator.db")
        released = [entry.study for entry in LedgerReader(database).entries(kind=Kind.RELEASE_SEEN)]
        assert released == [first, fourth]
        verify_ledger(LedgerReader(database))
        database.close()


def _hub(bed: TestBed, url: str) -> Hub:
    database = open_database(url)
    mirror = Mirror(database, credentials=bed.hub.credentials, clock=bed.clock, random=SYSTEM_RANDOM)
    return Hub(bed.hub.credentials, SqlJournal(database, mirror), waits=Waits(), clock=bed.clock)


def test_a_coordinator_in_postgresql_is_the_servers_to_back_up(tmp_path: Path, veilsum: Command) -> None:
    """The commands of docs/upgrading.md; what they restore is a whole mirror, and `coordinator backup` points to them."""
    postgres = server()
    dump, back = (postgres.programs / name for name in ("pg_dump", "pg_restore"))
    if not dump.exists():
        pytest.skip(f"{postgres.programs} has no pg_dump beside its server")
    rows = 20
    bed = make_bed(tmp_path, {name: (np.full((rows, 2), 0.25), np.arange(rows) % 2) for name in NAMES})
    url = postgres.new_database()
    bed.hub = _hub(bed, url)
    bed.local.run(bed.compile(make_request(schema_of(2), epsilon=None)), bed.analyst, tmp_path / "results")
    file = tmp_path / "coordinator.toml"
    file.write_text(f'identity = "{bed.kit.coordinator.identity}"\ndatabase = "{url}"\n')
    status, error = veilsum("coordinator", "backup", tmp_path / "c.tar", "--config", file)
    assert (status, "pg_dump" in error["advice"]) == (2, True)

    subprocess.run([dump, "--format=custom", f"--file={tmp_path / 'coordinator.dump'}", url], check=True)
    bed.local.run(bed.compile(make_request(schema_of(2), epsilon=None)), bed.analyst, tmp_path / "results")
    place = postgres.new_database()
    restored = ["--no-owner", "--exit-on-error", "--single-transaction", f"--dbname={place}"]
    subprocess.run([back, *restored, tmp_path / "coordinator.dump"], check=True)
    again = _hub(bed, place)
    assert [item.phase for item in again.shown.all()] == ["finished"]
    mirror = LedgerReader(open_database(place))
    assert verify_ledger(mirror).entries == 4
    assert verify_ledger(LedgerReader(open_database(url))).entries == 7
    bed.hub = again
    bed.local.run(bed.compile(make_request(schema_of(2), epsilon=None)), bed.analyst, tmp_path / "results")
    assert verify_ledger(mirror).entries == 7
    with pytest.raises(LedgerFault, match="entry"):  # what the restored mirror lacks, a site's own ledger shows
        verify_ledger(bed.sites["a"].ledger, against=[mirror])
