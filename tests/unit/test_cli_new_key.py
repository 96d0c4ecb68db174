"""A new key while studies are open: refused with a word on what to do, and a way out where the former key is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.renewing import renew_with_new_key
from veilsum_node.errors import Misuse, StateError
from veilsum_participant.cli.participant import app
from veilsum_participant.front.answering import in_process
from veilsum_participant.session.client import Parts, open_site, run_participant
from veilsum_participant.store.studies import find_study
from veilsum_privacy.ledger import Kind


@pytest.fixture
def enrolled(tmp_path: Path) -> tuple[TestBed, bytes]:
    """A federation whose sites have exchanged a study's keys."""
    data = make_data("abc")
    bed = make_bed(tmp_path, data)
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    local.prepare(key)
    return bed, key


def write_config(bed: TestBed) -> Path:
    site = bed.sites["a"]
    path = site.config.state.parent / "participant.toml"
    path.write_text('coordinator = "localhost:1"\n[datasets.records]\npath = "records.npz"\n')
    return path


def test_a_new_key_is_refused_while_a_study_is_open(enrolled: tuple[TestBed, bytes]) -> None:
    bed, key = enrolled
    site = bed.sites["a"]
    open_site(site.config, clock=bed.clock, same_key=True).database.close()
    renew_with_new_key(bed.kit, bed.kit.participants[0], bed.clock)
    known = site.credentials.signing_key.fingerprint[:16]
    message = (
        f"new key, but the open study {key.hex()[:12]} knows this site by the key {known}.*participant leave {key.hex()[:12]}"
    )
    with pytest.raises(StateError, match=message):
        run_participant(site.config, Parts(in_process))
    path = write_config(bed)
    done = CliRunner().invoke(app, ["studies", "--config", str(path)])  # nor may a command beside it name the new key
    assert isinstance(done.exception, StateError)
    assert site.ledger.entries(kind=Kind.KEY) == []


def test_a_study_is_left_where_its_key_is_lost(enrolled: tuple[TestBed, bytes]) -> None:
    bed, key = enrolled
    site = bed.sites["a"]
    renew_with_new_key(bed.kit, bed.kit.participants[0], bed.clock)
    path = write_config(bed)
    for wrong in ("ffff", key.hex()[:3]):
        refused = CliRunner().invoke(app, ["leave", wrong, "--config", str(path)])
        assert isinstance(refused.exception, Misuse)
        assert key.hex()[:12] in str(refused.exception)
    done = CliRunner().invoke(app, ["leave", key.hex()[:8], "--config", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert '"left"' in done.output
    with site.database.reading() as connection:
        row = find_study(connection, key)
    assert row is not None
    assert row.status == "left"
    assert all(getattr(row, secret) is None for secret in ("box_key", "shares", "seeds"))
    opened = open_site(site.config, clock=bed.clock, same_key=True)
    opened.ledger.verify(authority=site.credentials.authority)
    assert len(opened.ledger.entries(kind=Kind.KEY)) == 1
    opened.database.close()
