"""A coordinator whose journal and mirror lie in PostgreSQL: the same studies, the same proof, over a restart."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from support.federation import TestBed, make_bed, make_request, schema_of
from support.postgres import server
from veilsum_coordinator.protocol.settings import DATABASE_VARIABLE, CoordinatorConfig, Waits, load_coordinator_config
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.database import open_database
from veilsum_node.errors import Unavailable
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.ledger.metrics import read_mirror
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_privacy.results.result import load_result

ROWS = 20
DATA = {name: (np.full((ROWS, 2), 0.25), np.arange(ROWS) % 2) for name in "abc"}


def _hub(bed: TestBed, url: str) -> Hub:
    database = open_database(url)
    mirror = Mirror(database, credentials=bed.hub.credentials, clock=bed.clock, random=SYSTEM_RANDOM)
    return Hub(bed.hub.credentials, SqlJournal(database, mirror), waits=Waits(), clock=bed.clock)


def test_a_study_and_its_mirror(tmp_path: Path) -> None:
    bed, url = make_bed(tmp_path, DATA), server().new_database()
    bed.hub = _hub(bed, url)
    study = bed.compile(make_request(schema_of(2), epsilon=None))
    status = bed.local.run(study, bed.analyst, tmp_path / "results")
    result = load_result(tmp_path / "results" / status.study.hex())
    assert result.summary["records"][0]["count"]["value"] == pytest.approx(3 * ROWS, abs=1e-3)

    again = _hub(bed, url)  # a restarted coordinator
    assert [item.phase for item in again.shown.all()] == ["finished"]
    (release,) = again.journal.releases(status.study)
    mirror = LedgerReader(open_database(url))
    assert [entry.kind for entry in mirror.entries()] == [Kind.GENESIS, Kind.RECEIPTS, Kind.CONSENT, Kind.RELEASE_SEEN]
    sites = [LedgerReader(open_database(site.config.state)) for site in bed.sites.values()]
    assert verify_ledger(mirror, against=sites).role == "coordinator"
    for site in sites:
        assert verify_ledger(site, against=[mirror, *sites]).entries >= 5
        (seen,) = site.entries(kind=Kind.RELEASE_SEEN)
        assert seen.study == status.study
    assert len(release["digest"]) == 32
    spent = again.journal.mirror.spending(study.dataset)
    assert {name: events.total() for name, events in spent.items()} == {"a": 1, "b": 1, "c": 1}
    figures = read_mirror(open_database(url))
    assert (figures.entries, figures.epsilon) == (4, {(name, study.dataset): math.inf for name in "abc"})


def test_a_coordinator_serves_from_the_database_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, url = make_bed(tmp_path, DATA), server().new_database()
    file = tmp_path / "coordinator.toml"
    file.write_text(f'listen = "127.0.0.1:0"\nidentity = "{bed.kit.coordinator.identity}"\nstate = "state"\n')
    monkeypatch.setenv(DATABASE_VARIABLE, url)
    config = load_coordinator_config(file)
    assert config.database_place == url
    assert url not in repr(config)
    coordinator = CoordinatorServer(config)
    coordinator.open()
    coordinator._close(0.0)
    assert LedgerReader(open_database(url)).role == "coordinator"
    assert not (tmp_path / "state" / "coordinator.db").exists()


def test_a_server_that_is_away_is_a_typed_error(tmp_path: Path) -> None:
    bed = make_bed(tmp_path, DATA)
    config = CoordinatorConfig(
        identity=bed.kit.coordinator.identity,
        state=tmp_path / "state",
        database="postgresql://nobody@127.0.0.1:1/none",
        waits=Waits(database=0),
    )
    with pytest.raises(Unavailable, match="database did not answer"):
        CoordinatorServer(config).open()
