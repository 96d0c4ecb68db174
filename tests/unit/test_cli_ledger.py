"""The ledger's commands on a real ledger file, signed by a real site's key."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.ledgers import STUDY, make_reservation
from veilsum_deploy import cli
from veilsum_deploy.ledgers import epsilon_text
from veilsum_deploy.provision import make_kit
from veilsum_participant.client import open_ledger
from veilsum_privacy.database import open_database, transaction
from veilsum_privacy.identity import load_credentials

RDP_OF_SIGMA_4 = 1.0126  # privacy.md, delta 1e-5
EXACT_OF_SIGMA_4 = 0.9263


def now() -> int:
    return int(time.time())


@dataclass(frozen=True)
class SiteFiles:
    config: Path
    ledger: Path
    certificate: Path


@pytest.fixture
def site(tmp_path: Path) -> SiteFiles:
    """A site with budget epsilon 2, one charged release at sigma 4 and one freed."""
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=now)
    party = kit.participants[0]
    config = party.directory / "participant.toml"
    config.write_text('coordinator = "localhost:1"\n[datasets.heart-2024]\npath = "x.csv"\npopulation = "heart"\n')
    engine = open_database(party.directory / "participant.db")
    ledger = open_ledger(engine, load_credentials(party.identity, now()), now)
    with transaction(engine) as connection:
        ledger.set_budget(connection, "heart", 2.0, 1e-5, reason="board", operator="eve")
    first, second = make_reservation(1), make_reservation(2)
    for reservation in (first, second):
        with transaction(engine) as connection:
            ledger.reserve(connection, reservation)
        with transaction(engine) as connection:
            if reservation is first:
                ledger.charge(connection, reservation.context)
            else:
                ledger.free(connection, reservation.context, reason="test")
    engine.dispose()
    return SiteFiles(config, party.directory / "participant.db", party.identity / "certificate.pem")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main(["ledger", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, captured.out, captured.err


def shown(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_show_says_what_was_spent(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "show", "--config", site.config)
    (heart,) = body["spending"]
    assert heart["spent"] == pytest.approx(RDP_OF_SIGMA_4, abs=1e-3)
    assert heart["reserved"] == pytest.approx(heart["spent"])  # what was freed counts no longer
    assert EXACT_OF_SIGMA_4 - 0.02 < heart["estimate"] < EXACT_OF_SIGMA_4 + 0.05
    assert heart["left"] == pytest.approx(2.0 - heart["spent"])
    assert heart["releases"] == 1
    assert [entry["kind"] for entry in body["entries"]] == ["genesis", "budget", "reserve", "charge", "reserve", "free"]
    assert body["entries"][-1]["hash"] == body["head"]


def test_show_filters_by_study_and_population(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    of_study = shown(capsys, "show", "--ledger", site.ledger, "--study", STUDY.hex()[:6].upper())["entries"]
    assert [entry["kind"] for entry in of_study] == ["reserve", "charge", "reserve", "free"]
    assert shown(capsys, "show", "--ledger", site.ledger, "--study", "ffffffffffff")["entries"] == []
    assert len(shown(capsys, "show", "--ledger", site.ledger, "--population", "heart")["entries"]) == 5
    code, _, err = run(capsys, "show", "--ledger", site.ledger, "--population", "haert")
    assert (code, "heart" in err) == (2, True)


def test_the_table_shows_every_entry(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--config", site.config)
    assert code == 0
    for text in ("board (eve)" in out, STUDY.hex()[:12] in out, "noise multiplier 4" in out):
        assert text
    rows = [line for line in out.splitlines() if re.match(r"│ \d+ +│", line)]
    assert len(rows) == 6


def test_verify_checks_signatures_by_the_sites_certificate(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "verify", "--config", site.config)
    assert (body["valid"], body["entries"], body["signatures"]) == (True, 6, "checked")
    assert shown(capsys, "verify", "--ledger", site.ledger)["signatures"] == "not checked"
    arguments = ("verify", "--ledger", site.ledger, "--certificate", site.certificate)
    assert shown(capsys, *arguments, "--head", body["head"])["signatures"] == "checked"
    assert run(capsys, *arguments, "--head", "00" * 32)[0] == 1
    assert run(capsys, *arguments, "--head", "00")[0] == 2
    other = site.certificate.parents[2] / "south" / "identity" / "certificate.pem"
    code, out, _ = run(capsys, "verify", "--ledger", site.ledger, "--certificate", other, "--json")
    assert (code, json.loads(out)["valid"]) == (1, False)


def test_a_signature_by_another_key_of_the_same_name_fails(
    site: SiteFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    namesake = make_kit(tmp_path / "other", ["north", "south"], clock=now).participants[0].identity / "certificate.pem"
    code, out, _ = run(capsys, "verify", "--ledger", site.ledger, "--certificate", namesake, "--json")
    assert (code, "entry 1" in json.loads(out)["fault"]) == (1, True)
    assert "signature" in json.loads(out)["fault"]


def test_verify_names_the_first_entry_that_fails(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    with sqlite3.connect(site.ledger) as database:
        database.execute("DROP TRIGGER ledger_no_update")
        database.execute("UPDATE ledger SET cohort_size = 9 WHERE seq = 4")
    database.close()
    code, out, _ = run(capsys, "verify", "--config", site.config, "--json")
    assert code == 1
    assert "entry 4" in json.loads(out)["fault"]
    code, out, _ = run(capsys, "verify", "--config", site.config)
    assert (code, "entry 4" in out) == (1, True)


def test_a_budget_is_appended_and_holds(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    change = (
        "budget",
        "set",
        "heart",
        "--delta",
        "1e-5",
        "--reason",
        "vote of May",
        "--operator",
        "eve",
        "--config",
        site.config,
    )
    body = shown(capsys, *change, "--epsilon", "3.5")
    assert body["epsilon"] == 3.5
    assert body["left"] == pytest.approx(3.5 - RDP_OF_SIGMA_4, abs=1e-3)
    last = shown(capsys, "show", "--config", site.config)["entries"][-1]
    assert (last["kind"], last["detail"]["reason"]) == ("budget", "vote of May")
    assert shown(capsys, *change, "--epsilon", "unlimited")["left"] is None
    assert shown(capsys, "verify", "--config", site.config)["entries"] == 8
    for epsilon in ("-1", "0", "nan", "inf", "much"):
        code, _, err = run(capsys, *change, f"--epsilon={epsilon}")
        assert (code, "is no epsilon" in err, '"unlimited"' in err) == (2, True, True)
    assert shown(capsys, "verify", "--config", site.config)["entries"] == 8


def test_a_budget_for_nobodys_records_is_refused(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--epsilon", "1", "--delta", "1e-5", "--reason", "r", "--operator", "o", "--config", site.config)
    code, _, err = run(capsys, "budget", "set", "haert", *arguments)
    assert (code, "heart" in err) == (2, True)


def test_reading_makes_no_ledger(tmp_path: Path, site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.db"
    assert run(capsys, "show", "--ledger", missing)[0] == 2
    assert not missing.exists()
    empty = tmp_path / "empty.db"
    open_database(empty).dispose()
    assert run(capsys, "verify", "--ledger", empty)[0] == 2
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database" * 100)
    assert run(capsys, "verify", "--ledger", noise)[0] == 2
    assert run(capsys, "show", "--ledger", site.ledger, "--config", site.config)[0] == 2


def test_a_cost_is_never_shown_smaller_than_it_is() -> None:
    assert epsilon_text(0.12341) == "0.1235"
    assert epsilon_text(0.5) == "0.5"
    assert epsilon_text(None) == "unlimited"
    assert epsilon_text("infinite") == "infinite"
