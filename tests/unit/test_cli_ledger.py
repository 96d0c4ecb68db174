"""The ledger's commands on real ledger files, signed by real keys, and on their exports."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import shutil
import sqlite3
import stat
import time
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from support.commands import shown, veilsum
from support.ledgers import STUDY, Trial, federation, make_receipt, make_reservation, open_mirror
from support.studies import agreed
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_deploy.datasets import packaged_dataset
from veilsum_node.database import open_database
from veilsum_node.errors import Misuse, Refusal, RefusalCode, StateError
from veilsum_node.identity import load_credentials
from veilsum_node.identity.kit import make_kit
from veilsum_node.process.new_files import new_file
from veilsum_participant.checks.labels import study_labels
from veilsum_participant.cli.entries import entry_row, read_time
from veilsum_participant.cli.places import find_ledger
from veilsum_participant.session.client import open_ledger, open_site
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.store.studies import add_study
from veilsum_privacy.backup.restore import write_mark
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.dossier.ledgers import entry_fields, open_source
from veilsum_privacy.ledger import Mechanism, read_export
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.study.study import study_digest

RDP_OF_SIGMA_4 = 1.0126  # privacy.md, delta 1e-5
EXACT_OF_SIGMA_4 = 0.9263
START = 1_700_000_000  # of the trial's clock: 2023-11-14T22:13:20Z


def now() -> int:
    return int(time.time())


@dataclass(frozen=True)
class SiteFiles:
    config: Path
    ledger: Path


@pytest.fixture
def site(tmp_path: Path) -> SiteFiles:
    """A site with budget epsilon 2, one charged release at sigma 4 and one freed."""
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=now)
    party = kit.participants[0]
    config = party.directory / "participant.toml"
    config.write_text('coordinator = "localhost:1"\n[datasets.heart-2024]\npath = "x.csv"\npopulation = "heart"\n')
    database = open_database(party.directory / "participant.db")
    ledger = open_ledger(database, load_credentials(party.identity, now()), now)
    with database.transaction() as connection:
        ledger.set_budget(connection, "heart", 2.0, 1e-5, reason="board", operator="eve")
    first, second = make_reservation(1), make_reservation(2)
    for reservation in (first, second):
        with database.transaction() as connection:
            ledger.reserve(connection, reservation)
        with database.transaction() as connection:
            if reservation is first:
                ledger.charge(connection, reservation.context)
            else:
                ledger.free(connection, reservation.context, reason="test")
    database.close()
    return SiteFiles(config, party.directory / "participant.db")


@dataclass(frozen=True)
class Files:
    """What a trial of four sites left behind: one round charged and released, then a refusal at north."""

    folder: Path
    authority: Path

    def state(self, name: str) -> Path:
        return self.folder / f"{name}.db"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("played")
    trial = Trial(place=lambda name: folder / f"{name}.db", epsilon=1.5)
    trial.play(1)
    north = trial.ledgers["north"]
    refusal = Refusal(RefusalCode.BUDGET, "Too much.", "Less.")
    with north.database.transaction() as connection:
        north.refuse(connection, refusal, reservation=trial.release(2, multiplier=2.0))
    for party in (*trial.ledgers.values(), trial.mirror):
        party.database.close()
    authority = folder / "authority.pem"
    authority.write_bytes(federation("trial").ca.public_bytes(Encoding.PEM))
    return Files(folder, authority)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return veilsum(capsys, "ledger", *arguments)


def edit(path: Path, statement: str) -> None:
    """Change a ledger as its owner could, past the triggers."""
    with sqlite3.connect(path) as database:
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            database.execute(f"DROP TRIGGER {name}")
        database.execute(statement)
    database.close()


def test_show_says_what_was_spent(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "ledger", "show", "--config", site.config)
    (heart,) = body["spending"]
    assert heart["spent"] == pytest.approx(RDP_OF_SIGMA_4, abs=1e-3)
    assert heart["reserved"] == pytest.approx(heart["spent"])  # what was freed counts no longer
    assert EXACT_OF_SIGMA_4 - 0.02 < heart["estimate"] < EXACT_OF_SIGMA_4 + 0.05
    assert heart["left"] == pytest.approx(2.0 - heart["spent"])
    assert heart["alone"] > heart["spent"]
    assert heart["releases"] == 1
    assert [entry["kind"] for entry in body["entries"]] == ["genesis", "budget", "reserve", "charge", "reserve", "free"]
    assert body["entries"][-1]["hash"] == body["head"]
    assert (body["site"], body["role"]) == ("north", "participant")


def test_show_filters(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    def kinds(*arguments: str) -> list[str]:
        return [entry["kind"] for entry in shown(capsys, "ledger", "show", site.ledger, *arguments)["entries"]]

    release = ["reserve", "charge", "reserve", "free"]
    assert kinds("--study", STUDY.hex()[:6].upper()) == release
    assert kinds("--population", "heart") == ["budget", *release]
    assert kinds("--dataset", "heart-2024") == release
    assert kinds("--study", STUDY.hex(), "--kind", "budget") == []
    assert kinds("--dataset", "heart-2024", "--until", "2020-01-01") == []
    assert kinds("--kind", "charge") == ["charge"]
    assert kinds("--since", "1h", "--kind", "free") == ["free"]
    assert kinds("--until", "2020-01-01") == []
    wrong = {
        ("--population", "haert"): "heart",
        ("--dataset", "heart-2025"): "heart-2024",
        ("--study", "ffffffffffff"): STUDY.hex()[:12],
        ("--study", ""): STUDY.hex()[:12],
        ("--kind", "charg"): "charge",
        ("--since", "1y"): "30d",
    }
    for arguments, hint in wrong.items():
        code, _, err = run(capsys, "show", site.ledger, *arguments)
        assert (code, hint in err) == (2, True)


def test_dates_bound_entries_to_the_second(played: Files, capsys: pytest.CaptureFixture[str]) -> None:
    place = played.state("north")
    every = shown(capsys, "ledger", "show", place)["entries"]
    times = [entry["time"] for entry in every]
    middle = times[len(times) // 2]
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(middle))
    for option, expected in (("--since", [t for t in times if t >= middle]), ("--until", [t for t in times if t < middle])):
        assert [entry["time"] for entry in shown(capsys, "ledger", "show", place, option, stamp)["entries"]] == expected
    assert shown(capsys, "ledger", "show", place, "--since", "2023-11-14", "--until", "2023-11-14")["entries"] == every


def test_times_that_people_type() -> None:
    assert read_time("2023-11-14", 0) == START - (22 * 3600 + 13 * 60 + 20)
    assert read_time("2023-11-14", 0, end=True) == read_time("2023-11-15", 0)
    assert read_time("2023-11-14T22:13:20", 0) == read_time("2023-11-14T23:13:20+01:00", 0) == START
    assert [read_time(text, START) for text in ("2h", "30d", "1w")] == [START - 7200, START - 30 * 86400, START - 604800]
    for text in ("", "yesterday", "30", "-3d", "2023-13-01", "9999-12-31T23:59:59+99:00", "9" * 30 + "d"):
        with pytest.raises(Misuse, match="is not a time"):
            read_time(text, START)


def test_the_table_shows_every_entry(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "--config", site.config)
    assert code == 0
    for text in ("board (eve)", STUDY.hex()[:12], "noise multiplier 4", "against all others"):
        assert text in out
    assert out.index("Spending of north") < out.index("Entries")
    rows = [line for line in out.splitlines() if re.match(r"│ \d+ +│", line)]
    assert len(rows) == 6


def test_sampled_steps_of_training_are_told(played: Files) -> None:
    with open_source(played.state("north")) as ledger:
        charge = next(entry for entry in ledger.entries() if entry.kind.value == "charge")
    sampled = Mechanism(100, NoisePlan("training", 160_000, 1, 1), 0.25, 12)
    row = entry_row(entry_fields(replace(charge, mechanism=sampled)), None)
    assert row["what"].endswith("discrete Gaussian (training), noise multiplier 4, a sample of 0.25, 12 steps")


def test_a_refusal_shows_its_figures(played: Files, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", played.state("north"), "--kind", "refusal")
    assert code == 0
    with open_source(played.state("north")) as ledger:
        figures = ledger.entries()[-1].detail["figures"]
    after, reserved = (cost(float.fromhex(figures[name])) for name in ("after", "reserved"))
    assert float(after) > 1.5 > float(reserved) > 1
    assert f"budget-exceeded: would come to {after} of 1.5, {reserved} spent and set aside" in out


def test_verify_proves_a_ledger_offline_and_says_what_it_does_not(played: Files, capsys: pytest.CaptureFixture[str]) -> None:
    place = played.state("north")
    alone = shown(capsys, "ledger", "verify", place)
    assert (alone["valid"], alone["site"], alone["role"], alone["receipts"]) == (True, "north", "participant", 4)
    assert any("--authority" in item for item in alone["leaves_open"])
    assert any("--against" in item for item in alone["leaves_open"])
    assert alone["spending"]["heart"]["spent"] == pytest.approx(RDP_OF_SIGMA_4, abs=1e-3)
    sure = shown(capsys, "ledger", "verify", place, "--authority", played.authority, "--against", played.state("coordinator"))
    assert not any("--authority" in item or "--against" in item for item in sure["leaves_open"])
    assert any("north by the authority" in item for item in sure["proves"])
    assert any("coordinator.db" in item for item in sure["proves"])
    assert shown(capsys, "ledger", "verify", place, "--head", alone["head"])["head"] == alone["head"]
    code, out, _ = run(capsys, "verify", place)
    assert (code, "This proves:" in out, "This cannot prove:" in out) == (0, True, True)


def test_verify_uses_the_configured_authority(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "ledger", "verify", "--config", site.config)
    assert (body["valid"], body["entries"]) == (True, 6)
    assert any("certified for north" in item for item in body["proves"])
    assert not any("certified for" in item for item in shown(capsys, "ledger", "verify", site.ledger)["proves"])


def test_verify_fails_under_another_authority_or_head(
    site: SiteFiles, played: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "verify", site.ledger, "--authority", played.authority, "--json")
    assert (code, json.loads(out)["valid"], json.loads(out)["entry"]) == (1, False, 1)
    assert run(capsys, "verify", site.ledger, "--head", "00" * 32)[0] == 1
    assert run(capsys, "verify", site.ledger, "--head", "00")[0] == 2
    assert run(capsys, "verify", site.ledger, "--authority", site.config)[0] == 2


def test_verify_names_the_first_entry_that_fails(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    edit(site.ledger, "UPDATE ledger SET cohort_size = 9 WHERE seq = 4")
    code, out, _ = run(capsys, "verify", "--config", site.config, "--json")
    body = json.loads(out)
    assert (code, body["valid"], body["entry"]) == (1, False, 4)
    assert "entry 4" in body["fault"]
    code, out, _ = run(capsys, "verify", "--config", site.config)
    assert (code, "entry 4" in out, "proves" in out) == (1, True, False)


def test_a_truncated_ledger_fails_only_against_others(
    played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = tmp_path / "north.db"
    shutil.copyfile(played.state("north"), cut)
    edit(cut, "DELETE FROM ledger WHERE seq > 2")
    edit(cut, "DELETE FROM ledger_receipt")
    assert shown(capsys, "ledger", "verify", cut)["entries"] == 2
    for other in ("coordinator", "south"):
        code, out, _ = run(capsys, "verify", cut, "--against", played.state(other), "--json")
        body = json.loads(out)
        assert (code, body["entry"] <= 3, "removed or replaced" in body["fault"]) == (1, True, True)


@pytest.mark.parametrize("name", ["north", "coordinator"])
def test_an_export_verifies_as_its_ledger_does(
    played: Files, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"{name}.jsonl"
    written = shown(capsys, "ledger", "export", played.state(name), "--out", out)
    assert written["entries"] == len(out.read_text().splitlines()) - 1 - 4  # header and receipts
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    of_file, of_export = (
        shown(capsys, "ledger", "verify", place, "--authority", played.authority) for place in (played.state(name), out)
    )
    assert of_export | {"ledger": ""} == of_file | {"ledger": ""}
    of_file, of_export = (shown(capsys, "ledger", "show", place) for place in (played.state(name), out))
    assert of_export | {"ledger": ""} == of_file | {"ledger": ""}
    lines = out.read_text().splitlines(keepends=True)
    out.write_text("".join(lines[:-1]))
    assert run(capsys, "verify", out)[0] == 1
    whole = "".join(lines)
    for damaged, where in ((whole[:-20], f"Line {len(lines)} "), (whole.replace('"kind":', "'kind':", 1), "line 2 ")):
        out.write_text(damaged)
        code, text, _ = run(capsys, "verify", out, "--json")
        body = json.loads(text)
        assert (code, body["valid"], body["entry"], where in body["fault"]) == (1, False, None, True)
        assert str(out) in body["fault"]
        assert body["advice"]
        code, _, err = run(capsys, "verify", played.state(name), "--against", out)  # a broken witness is not an answer
        assert (code, str(out) in err) == (2, True)
        assert run(capsys, "show", out)[0] == 2


def test_the_export_is_what_its_description_says(played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """docs/ledger.md, followed to the letter with nothing of this project: hashes, chain and signatures."""
    out = tmp_path / "north.jsonl"
    shown(capsys, "ledger", "export", played.state("north"), "--out", out)
    header, *lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert (header["format"], header["site"], header["role"]) == ("veilsum-ledger/1", "north", "participant")
    certificates = {hashlib.sha256(bytes.fromhex(der)).hexdigest(): bytes.fromhex(der) for der in header["certificates"]}
    entries = [line for line in lines if "kind" in line]
    receipts = [line for line in lines if "body" in line]
    assert (len(entries), len(receipts)) == (header["entries"], header["receipts"])

    def check(certificate: bytes, label: bytes, data: bytes, signature: str) -> None:
        parts = b"".join(len(part).to_bytes(8, "big") + part for part in (label, data))
        key = x509.load_der_x509_certificate(certificate).public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(bytes.fromhex(signature), parts, ec.ECDSA(hashes.SHA256()))

    own = bytes.fromhex(entries[0]["detail"]["certificate"])
    previous = "0" * 64
    for number, entry in enumerate(entries, 1):
        content = {name: value for name, value in entry.items() if name not in ("hash", "signature")}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert (entry["seq"], entry["previous"]) == (number, previous)
        assert hashlib.sha256(text.encode()).hexdigest() == entry["hash"]
        check(own, b"veilsum/1/ledger", bytes.fromhex(entry["hash"]), entry["signature"])
        previous = entry["hash"]
    for receipt in receipts:
        check(certificates[receipt["certificate"]], b"veilsum/1/receipt", receipt["body"].encode(), receipt["signature"])
    assert [json.loads(receipt["body"])["participant"] for receipt in receipts] == ["north", "south", "east", "west"]


def test_an_export_goes_to_standard_output_too(played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "export", played.state("north"))
    assert code == 0
    copy = tmp_path / "copy.jsonl"
    copy.write_text(out)
    with open_source(played.state("north")) as ledger:
        assert read_export(copy).verify() == ledger.verify()
    assert run(capsys, "export", played.state("north"), "--json")[0] == 2
    code, out, _ = run(capsys, "export", played.state("north"), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert (code, [row["kind"] for row in rows][:3]) == (0, ["genesis", "budget", "reserve"])


def test_nothing_is_overwritten_unless_told(played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "thesis.html"
    out.write_text("mine")
    for command in ("export", "report"):
        code, _, err = run(capsys, command, played.state("north"), "--out", out)
        assert (code, "--force" in err, out.read_text()) == (2, True, "mine")
        assert run(capsys, command, played.state("north"), "--out", out, "--force")[0] == 0
        assert out.read_text() != "mine"
        out.write_text("mine")
    assert run(capsys, "export", played.state("north"), "--out", tmp_path / "no" / "where")[0] == 2
    with pytest.raises(TypeError), new_file(out, force=True) as file:
        file.writelines(["half", 1])  # type: ignore[list-item]
    assert out.read_text() == "mine"
    with pytest.raises(StateError, match="already exists"), new_file(tmp_path / "raced") as file:
        (tmp_path / "raced").write_text("theirs")
    assert (tmp_path / "raced").read_text() == "theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raced", "thesis.html"]  # no temporary file stays


def test_a_budget_is_appended_and_holds(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    change = (
        "budget", "set", "heart", "--delta", "1e-5", "--reason", "vote of May", "--operator", "eve", "--config", site.config,
    )  # fmt: skip
    body = shown(capsys, "ledger", *change, "--epsilon", "3.5")
    assert (body["epsilon"], body["below_spent"]) == (3.5, False)
    assert body["left"] == pytest.approx(3.5 - RDP_OF_SIGMA_4, abs=1e-3)
    last = shown(capsys, "ledger", "show", "--config", site.config)["entries"][-1]
    assert (last["kind"], last["detail"]["reason"]) == ("budget", "vote of May")
    assert shown(capsys, "ledger", *change, "--epsilon", "unlimited")["left"] is None
    assert shown(capsys, "ledger", "verify", "--config", site.config)["entries"] == 8
    for epsilon in ("-1", "0", "nan", "inf", "much", "1000.1", "1e9"):
        code, _, err = run(capsys, *change, f"--epsilon={epsilon}")
        assert (code, 'epsilon: must be a positive number up to 1000, or "unlimited"' in err) == (2, True)
    assert shown(capsys, "ledger", "verify", "--config", site.config)["entries"] == 8


def test_a_budget_below_what_is_spent_comes_with_a_warning(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    change = ("budget", "set", "heart", "--delta", "1e-5", "--reason", "r", "--operator", "o", "--config", site.config)
    code, out, _ = run(capsys, *change, "--epsilon", "0.5")
    assert (code, "Warning" in out, "below what is spent" in out) == (0, True, True)
    assert shown(capsys, "ledger", *change, "--epsilon", "0.4")["below_spent"] is True
    code, out, _ = run(capsys, "show", "--config", site.config)
    assert "epsilon 0.5: r (o); below what is spent" in out
    assert "Warning" not in run(capsys, *change, "--epsilon", "2")[1]


def test_a_strict_budget_costs_more_for_the_same_releases(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    change = (
        "budget",
        "set",
        "heart",
        "--epsilon",
        "3",
        "--delta",
        "1e-5",
        "--reason",
        "r",
        "--operator",
        "o",
        "--config",
        site.config,
    )
    standard = shown(capsys, "ledger", *change)
    strict = shown(capsys, "ledger", *change, "--adaptive", "strict")
    assert (standard["adaptive"], strict["adaptive"]) == ("standard", "strict")
    assert standard["spent"] < strict["spent"] < 1.3 * standard["spent"]
    assert run(capsys, *change, "--adaptive", "lax")[0] == 2


def test_budgets_are_shown_with_their_history(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "ledger", "budget", "show", "--config", site.config)
    assert [item["population"] for item in body["spending"]] == ["heart"]
    assert [item["detail"]["operator"] for item in body["changes"]] == ["eve"]
    code, out, _ = run(capsys, "budget", "show", site.ledger)
    assert (code, "epsilon 2: board (eve)" in out) == (0, True)


def test_a_budget_for_nobodys_records_is_refused(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--epsilon", "1", "--delta", "1e-5", "--reason", "r", "--operator", "o", "--config", site.config)
    code, _, err = run(capsys, "budget", "set", "haert", *arguments)
    assert (code, "heart" in err) == (2, True)


def test_a_checkpoint_records_what_verification_finds_again(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    body = shown(capsys, "ledger", "checkpoint", "--config", site.config)
    assert (body["entry"], body["up to entry"]) == (7, 6)
    verified = shown(capsys, "ledger", "verify", "--config", site.config, "--head", body["hash"])
    assert verified["entries"] == 7
    assert "figures up to entry 6" in run(capsys, "show", "--config", site.config)[1]


def test_reading_makes_and_changes_nothing(tmp_path: Path, site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.db"
    assert run(capsys, "show", missing)[0] == 2
    assert not missing.exists()
    empty = tmp_path / "empty.db"
    open_database(empty).close()
    assert run(capsys, "verify", empty)[0] == 2
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"no database" * 100)
    assert run(capsys, "verify", noise)[0] == 2
    assert run(capsys, "show", site.ledger, "--config", site.config)[0] == 2
    before = {path: path.read_bytes() for path in site.ledger.parent.iterdir() if path.is_file()}
    for arguments in (("show",), ("verify",), ("budget", "show"), ("export",)):
        assert run(capsys, *arguments, "--config", site.config)[0] == 0
    assert {path: path.read_bytes() for path in site.ledger.parent.iterdir() if path.is_file()} == before


def test_commands_work_beside_a_running_writer(site: SiteFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_participant_config(site.config)
    running = open_site(config)
    try:
        with running.database.transaction() as connection:
            running.ledger.reserve(connection, make_reservation(3, multiplier=9.0))
            seen = shown(capsys, "ledger", "show", "--config", site.config)["entries"]  # beside an open transaction
            assert seen[-1]["kind"] == "free"
        shown(capsys, "ledger", "checkpoint", "--config", site.config)
        with running.database.transaction() as connection:
            running.ledger.charge(connection, make_reservation(3, multiplier=9.0).context)
        kinds = [entry["kind"] for entry in shown(capsys, "ledger", "show", "--config", site.config)["entries"]]
        assert kinds[-3:] == ["reserve", "checkpoint", "charge"]
        assert shown(capsys, "ledger", "verify", "--config", site.config)["entries"] == len(kinds)
    finally:
        running.database.close()


def test_the_mirror_is_found_by_its_configuration(played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text('listen = "localhost:0"\nidentity = "identity"\nstate = "state"\n')
    (tmp_path / "state").mkdir()
    (tmp_path / "identity").mkdir()
    shutil.copyfile(played.state("coordinator"), tmp_path / "state" / "coordinator.db")
    shutil.copyfile(played.authority, tmp_path / "identity" / "authority.pem")
    body = shown(capsys, "ledger", "verify", "--config", config)
    assert (body["role"], body["receipts"], body["spending"]) == ("coordinator", 4, {})
    assert "shown to north, south, east, west" in run(capsys, "show", "--config", config)[1]
    code, _, err = run(capsys, "report", "--config", config, "--out", tmp_path / "x.html")
    assert (code, "mirror" in err, (tmp_path / "x.html").exists()) == (2, True, False)
    body = shown(capsys, "ledger", "export", "--config", config, "--out", tmp_path / "ledger.jsonl")
    mirror = tmp_path / "mirror.jsonl"
    assert shown(capsys, "coordinator", "mirror", "--config", config, "--out", mirror)["entries"] == body["entries"]
    assert mirror.read_bytes() == (tmp_path / "ledger.jsonl").read_bytes()  # by the command that a coordinator alone has
    code, _, err = veilsum(capsys, "coordinator", "mirror", "--config", config, "--out", mirror)
    assert (code, "--force" in err) == (2, True)
    compared = ("--authority", played.authority, "--against", mirror)
    assert shown(capsys, "ledger", "verify", played.state("north"), *compared)["valid"]


def test_a_databases_password_is_not_shown() -> None:
    shown_as = find_ledger("postgresql://hub:secret@db.example/mirror", None).name
    assert shown_as == "postgresql://hub:***@db.example/mirror"
    assert find_ledger("north.db", None).name == "north.db"
    assert "secret" not in find_ledger("postgresql://hub:secret@db.example:port/mirror", None).name


def test_a_report_comes_with_its_twin_and_the_verdict(
    played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, twin = tmp_path / "dossier.html", tmp_path / "dossier.json"
    arguments = ("--out", page, "--json-out", twin, "--title", "Year one", "--contact", "dpo@example.org")
    body = shown(capsys, "ledger", "report", played.state("north"), *arguments, "--authority", played.authority)
    data = json.loads(twin.read_text())
    assert (body["valid"], data["proof"]["valid"], data["proof"]["head"]) == (True, True, body["head"])
    assert (data["title"], data["contact"], data["proof"]["authority"]) == ("Year one", "dpo@example.org", True)
    assert "Year one" in page.read_text()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger SET cohort_size = 9 WHERE seq = 4",
        "UPDATE ledger SET event = 'rubbish' WHERE seq = 4",
        "UPDATE ledger SET detail = '{}' WHERE seq = 2",
        "UPDATE ledger SET detail = '[' WHERE seq = 1",
        "UPDATE ledger SET time = 'noon' WHERE seq = 3",
        "UPDATE ledger SET time = 9000000000000000 WHERE seq = 4",
        "DELETE FROM ledger",
    ],
)
def test_a_report_of_a_damaged_ledger_says_so(
    site: SiteFiles, tmp_path: Path, statement: str, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(site.ledger, statement)
    page, twin = tmp_path / "dossier.html", tmp_path / "dossier.json"
    code, _, err = run(capsys, "report", site.ledger, "--out", page, "--json-out", twin)
    assert (code, err) == (1, "")
    assert "DOES NOT VERIFY" in page.read_text()
    assert json.loads(twin.read_text())["proof"]["valid"] is False


def test_studies_are_called_by_the_names_that_the_site_knows(
    site: SiteFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digest in the ledger is that of the study's bytes, which the site keeps."""
    schema = packaged_dataset("breast-cancer").schema
    request = StudyRequest(
        name="pressure",
        method="statistics",
        dataset="clinic",
        data=schema,
        privacy=PrivacyRequest(epsilon=1.0, delta=1e-5),
    )
    body = agreed(request, ["north", "south"]).to_bytes()
    running = open_site(load_participant_config(site.config))
    database, release = running.database, make_reservation(3, multiplier=9.0, study=study_digest(body))
    with database.transaction() as connection:
        running.ledger.reserve(connection, release)
        running.ledger.charge(connection, release.context)
        add_study(
            connection, digest=study_digest(body), status="ended", study=body, analyst="alice", enrolment=b"{}",
        )  # fmt: skip
        add_study(connection, digest=STUDY, status="ended", study=b"of another version", analyst="bob", enrolment=b"{}")
    database.close()
    labels = study_labels(site.ledger)
    assert {label.name for label in labels.values()} == {"pressure"}
    assert set(labels) == {study_digest(body)}
    entries = shown(capsys, "ledger", "show", site.ledger, "--study", "pressure")["entries"]
    assert [entry["kind"] for entry in entries] == ["reserve", "charge"]
    assert f"{study_digest(body).hex()[:12]} pressure" in run(capsys, "show", site.ledger)[1]
    shown(capsys, "ledger", "report", site.ledger, "--out", tmp_path / "page.html")
    assert "pressure" in (tmp_path / "page.html").read_text()


def test_recover_charges_what_others_hold_exactly_once(
    site: SiteFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A site goes back to a copy from before a charge; the receipts in a peer's export bring the charge back."""
    config = load_participant_config(site.config)
    credentials = load_credentials(config.identity, now())
    coordinator = load_credentials(config.identity.parents[2] / "coordinator" / "identity", now())
    backup = tmp_path / "backup.db"
    running = open_site(config)
    running.database.close()  # the last connection empties the write-ahead log
    shutil.copyfile(site.ledger, backup)
    running = open_site(config)
    release = make_reservation(3, multiplier=9.0, cohort_size=1, kind="local")
    with running.database.transaction() as connection:
        running.ledger.reserve(connection, release)
    receipt = make_receipt(running.ledger, release, 1)
    mirror = open_mirror(tmp_path / "mirror.db", credentials=coordinator, clock=now)
    with mirror.database.transaction() as connection:
        mirror.show(connection, [receipt], {"north": credentials.identity.certificate})
    with running.database.transaction() as connection:
        running.ledger.charge(connection, release.context)
    spent = shown(capsys, "ledger", "show", "--config", site.config)["spending"][0]["spent"]
    running.database.close()
    mirror.database.close()
    for suffix in ("-wal", "-shm"):
        site.ledger.with_name(site.ledger.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(backup, site.ledger)
    assert shown(capsys, "ledger", "show", "--config", site.config)["spending"][0]["spent"] < spent
    export = tmp_path / "mirror.jsonl"
    shown(capsys, "ledger", "export", tmp_path / "mirror.db", "--out", export)
    body = shown(capsys, "ledger", "recover", "--from", export, "--config", site.config)
    assert (body["receipts"], len(body["charged"])) == (1, 1)
    assert shown(capsys, "ledger", "show", "--config", site.config)["spending"][0]["spent"] == spent
    assert shown(capsys, "ledger", "recover", "--from", export, "--config", site.config)["charged"] == []
    assert shown(capsys, "ledger", "verify", "--config", site.config, "--against", export)["valid"]


def test_recover_wants_to_know_whose_word_counts(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    trust = ("--trust-coordinator", "--config", site.config)
    said = ("--reason", "known to us", "--operator", "A. Berg")
    for arguments, says in {
        ("--config", site.config): "Give exactly one of --from and --trust-coordinator",
        ("--from", site.ledger, *trust): "Give exactly one of --from and --trust-coordinator",
        (*trust, "--operator", "A. Berg"): "--reason why",
        (*trust, "--reason", " ", "--operator", "A. Berg"): "--reason why",
        (*trust, *said): "No restored backup waits",
    }.items():
        code, _, err = run(capsys, "recover", *arguments)
        assert (code, says in " ".join(err.split())) == (2, True), err
    write_mark(site.ledger, now(), bytes(32))
    body = shown(capsys, "ledger", "recover", *trust, *said)
    assert (body["trusted"], len(body["entries"])) == (True, 1)
    config = load_participant_config(site.config)
    own = shown(capsys, "ledger", "recover", "--from", site.ledger, "--config", site.config)
    assert (own["completed"], "own ledger" in own["obstacle"]) == (False, True)
    with closing(sqlite3.connect(config.state)) as raw:
        assert raw.execute("SELECT trusted FROM participant_restored").fetchall() == [(1,)]


def test_a_cost_is_never_shown_smaller_than_it_is() -> None:
    assert cost(0.12341) == "0.124"
    assert cost(0.5) == "0.5"
    assert cost(0.1) == "0.1"
    assert cost(0.000123) == "0.00013"
    assert cost(None) == "unlimited"
    assert cost("infinite") == "infinite"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", ["show", "verify", "export", "report", "budget show"])
def test_what_is_no_ledger_is_named(
    command: str, site: SiteFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"empty": b"", "latin": b"\xff\xfe", "table.csv": b"seq,time,kind\r\n", "other.json": b'{"a":1}\n'}
    for name, content in places.items():
        (tmp_path / name).write_bytes(content)
    says = {"empty": "is empty", "latin": "neither", "table.csv": "spreadsheet", "other.json": "veilsum-ledger/1"}
    for name, hint in (says | {"kit": "is a folder", "none": "ledger none does not", str(site.config): "--config"}).items():
        code, _, err = run(capsys, *command.split(), name)
        assert (code, hint in err, name in err) == (2, True, True)
    (tmp_path / "study.toml").write_text('name = "x"\nmethod = "statistics"\n')
    code, _, err = run(capsys, *command.split(), "--config", "study.toml")
    assert (code, "not a configuration of a participant" in err) == (2, True)
    code, _, err = run(capsys, *command.split())
    assert (code, "has no participant.toml" in err) == (2, True)


def test_writing_commands_take_no_coordinators_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "coordinator.toml"
    config.write_text('listen = "localhost:0"\n')
    budget = ("budget", "set", "heart", "--epsilon", "1", "--delta", "1e-5", "--reason", "r", "--operator", "o")
    for command in (budget, ("checkpoint",)):
        code, _, err = run(capsys, *command, "--config", config)
        assert (code, "a coordinator's configuration" in err) == (2, True)


def test_a_budget_needs_words_and_a_small_delta(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"--epsilon": "3", "--delta": "1e-5", "--reason": "r", "--operator": "o"}
    for name, value in (("--reason", "  "), ("--operator", "\t"), ("--delta", "0"), ("--delta", "nan"), ("--delta", "0.1")):
        options = [text for pair in (given | {name: value}).items() for text in pair]
        code, _, err = run(capsys, "budget", "set", "heart", *options, "--config", site.config)
        assert (code, err.count("\n")) == (2, 2)  # what is wrong, and what to do
    assert len(shown(capsys, "ledger", "budget", "show", "--config", site.config)["changes"]) == 1


def test_a_report_that_cannot_be_written_whole_writes_nothing(
    played: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "folder").mkdir()
    for out, twin in (("-", None), ("a", "a"), ("a", "./a"), ("mine", "twin"), ("page", "mine"), ("folder", "twin")):
        arguments = ("--out", out, *(() if twin is None else ("--json-out", twin)))
        assert run(capsys, "report", played.state("north"), *arguments)[0] == 2
    code, _, err = run(capsys, "export", played.state("north"), "--out", "folder", "--force")
    assert (code, "is a folder" in err) == (2, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "mine"]


def test_what_is_left_is_not_drowned_in_digits(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    spent = shown(capsys, "ledger", "show", "--config", site.config)["spending"][0]["spent"]
    change = ("budget", "set", "heart", "--delta", "1e-5", "--reason", "r", "--operator", "o", "--config", site.config)
    body = shown(capsys, "ledger", *change, "--epsilon", repr(spent + 1e-9))
    assert 0 < body["left"] < 1e-6
    _, out, _ = run(capsys, "budget", "show", "--config", site.config)
    row = next(line for line in out.splitlines() if line.startswith("│ heart"))
    cells = [cell.strip() for cell in row.split("│")]
    assert cells[4:7] == [cost(spent), cost(spent), "0"]
