"""A site audits its own releases on its machine, and its dossier takes the report in and answers NIST SP 800-226."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from support.commands import shown, veilsum
from support.ledgers import make_reservation
from support.studies import agreed, demand
from veilsum.compile import StudyRequest
from veilsum_deploy.datasets import packaged_dataset
from veilsum_node.database import open_database
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Authority, Role, load_credentials
from veilsum_node.identity.kit import make_kit
from veilsum_node.identity.provision import prepare
from veilsum_node.identity.releases import sign_directory
from veilsum_participant.cli.audit import SiteAudit
from veilsum_participant.session.client import open_ledger, open_site
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.store.studies import add_study
from veilsum_privacy.audit.report import AuditReport
from veilsum_privacy.audit.signed import read_report, sign_report
from veilsum_privacy.dossier import render
from veilsum_privacy.dossier.annex import annex
from veilsum_privacy.dossier.ledgers import Checked, read_audit
from veilsum_privacy.mechanism import noise
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy

pytestmark = pytest.mark.usefixtures("known_randomness")  # an audit may find a fault that is none, once in a million


def now() -> int:
    return int(time.time())


@dataclass(frozen=True)
class SiteFiles:
    config: Path
    peer: Path
    folder: Path

    @property
    def state(self) -> Path:
        return self.config.parent / "participant.db"


@pytest.fixture
def site(tmp_path: Path) -> SiteFiles:
    """A site with a budget and one charged release; its dataset's file does not exist."""
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=now)
    for party in kit.participants:
        text = (
            'coordinator = "localhost:1"\n[datasets.heart-2024]\npath = "absent.csv"\npopulation = "heart"\n'
            '[policy]\nanalysts = ["ada"]\nnoise = ["distributed"]\nunits = ["record"]\n'
        )
        (party.directory / "participant.toml").write_text(text)
        database = open_database(party.directory / "participant.db")
        ledger = open_ledger(database, load_credentials(party.identity, now()), now)
        release = make_reservation(1)
        with database.transaction() as connection:
            ledger.set_budget(connection, "heart", 2.0, 1e-5, reason="board", operator="eve")
            ledger.reserve(connection, release)
            ledger.charge(connection, release.context)
        database.close()
    north, south = (party.directory / "participant.toml" for party in kit.participants)
    return SiteFiles(north, south, tmp_path)


def known_study(site: SiteFiles, epsilon: float | None = 1.0) -> Study:
    """A study of statistics that north's store keeps."""
    schema = packaged_dataset("breast-cancer").schema
    request = StudyRequest(name="pressure", method="statistics", dataset="clinic", data=schema, privacy=demand(epsilon))
    study = agreed(request, ["north", "south", "west"])
    body = study.to_bytes()
    database = open_site(load_participant_config(site.config)).database
    with database.transaction() as connection:
        digest = study_digest(body)
        add_study(connection, digest=digest, status="ended", study=body, analyst="ada", enrolment=b"{}")
    database.close()
    return study


def audited(site: SiteFiles, capsys: pytest.CaptureFixture[str], *arguments: object, name: str = "audit.json") -> Path:
    out = site.folder / name
    given = ("--config", site.config, "--trials", 200, "--out", out)
    code, _, err = veilsum(capsys, "participant", "audit", *given, *arguments)
    assert code == 0, err
    return out


def fails(site: SiteFiles, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    out = site.folder / "never.json"
    code, _, err = veilsum(capsys, "participant", "audit", "--config", site.config, "--out", out, *arguments)
    assert code == 2
    assert not out.exists()
    return err


def twin(site: SiteFiles, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[dict[str, Any], str]:
    """The dossier's twin and its page."""
    out, plain = site.folder / "dossier.html", site.folder / "dossier.json"
    given = ("--out", out, "--json-out", plain, "--force", "--config", site.config)
    code, _, err = veilsum(capsys, "ledger", "report", *given, *arguments)
    assert code == 0, err
    return json.loads(plain.read_text(encoding="utf-8")), out.read_text(encoding="utf-8")


def test_a_policy_is_audited_without_a_record_a_charge_or_an_entry(
    site: SiteFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shown(capsys, "ledger", "show", "--config", site.config)
    found = shown(
        capsys, "participant", "audit", "--config", site.config, "--trials", 100, "--task", "feature-means",
        "--task", "local-training", "--out", site.folder / "audit.json",
    )  # fmt: skip
    assert shown(capsys, "ledger", "show", "--config", site.config) == before
    rows = found["audit"]["rows"]
    assert [(row["label"], row["sampling_rate"]) for row in rows] == [
        ("feature-means", 1.0), ("local-training", 1.0), ("local-training", 0.5)
    ]  # fmt: skip
    assert not found["audit"]["flagged"]
    assert rows[0]["encrypted"] == 2
    assert all(row["finding"]["level"] == pytest.approx(1e-6 / 3) for row in rows), "one audit is wrong once in a million"
    assert json.loads((site.folder / "audit.json").read_text()) == {name: found[name] for name in found if name != "out"}


@pytest.mark.system
def test_every_kind_that_the_policy_allows_is_audited_in_every_way(
    site: SiteFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    text = site.config.read_text().replace('["distributed"]', '["distributed", "local", "none"]')
    text = text.replace('units = ["record"]', 'units = ["record", "subject"]\ndisclosures = ["joint", "per-site"]')
    site.config.write_text(text)
    rows = read_report(audited(site, capsys, "--task", "feature-means").read_bytes()).body["rows"]
    ways = {(row["noise"], row["unit"], row["disclosure"]) for row in rows}
    assert len(rows) == len(ways) == 6
    assert ("local", "subject", "per-site") in ways


@pytest.mark.system
def test_the_table_says_what_an_audit_sees(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = veilsum(
        capsys,
        "participant",
        "audit",
        "--config",
        site.config,
        "--trials",
        200,
        "--task",
        "tables",
        "--out",
        site.folder / "a",
    )
    assert code == 0
    assert "no fault" in out
    assert "noise below 0." in out
    assert (site.folder / "a").stat().st_mode & 0o777 == 0o600


def halve(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: Callable[..., Any] = noise.discrete_gaussian

    def less(variance: Fraction, size: int, source: Any) -> Any:
        return drawn(variance / 4, size, source)

    monkeypatch.setattr(noise, "discrete_gaussian", less)


def test_a_fault_is_status_1_and_stands_in_the_dossier(
    site: SiteFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    halve(monkeypatch)
    out = site.folder / "audit.json"
    code, text, _ = veilsum(
        capsys, "participant", "audit", "--config", site.config, "--trials", 200, "--task", "tables", "--out", out
    )
    assert code == 1
    assert "FAULT in tables: the release tells mu" in text
    plain, page = twin(site, capsys, "--audit", out)
    assert plain["audits"][0]["flagged"]
    assert "FAULTS WERE FOUND" in page
    assert any("FOUND FAULTS" in line for item in plain["annex"] for line in item["answer"])


def test_a_fault_in_the_site_s_code_is_one_too(
    site: SiteFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("veilsum_privacy.computation.contribution.rows_sum", broken)
    out = site.folder / "audit.json"
    code, text, _ = veilsum(
        capsys, "participant", "audit", "--config", site.config, "--trials", 200, "--task", "gaussian-moments", "--out", out
    )
    assert code == 1
    assert "cannot be computed on: ZeroDivisionError" in " ".join(text.split())
    _, page = twin(site, capsys, "--audit", out)
    assert "ZeroDivisionError" in page


@pytest.mark.system  # the audit of a policy shows the same command
def test_a_study_is_audited_by_its_id(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    study = known_study(site)
    digest = study_digest(study.to_bytes()).hex()
    signed = read_report(audited(site, capsys, "--study", digest[:8]).read_bytes())
    assert signed.body["study"] == digest
    assert [row["label"] for row in signed.body["rows"]] == [task.label for task in study.tasks]
    found = signed.body["rows"][0]["finding"]
    declared = study.tasks[0]
    assert found["booked"] == pytest.approx(declared.grid / (declared.variance / 2) ** 0.5), (
        "one of three colludes: two shares"
    )
    plain, page = twin(site, capsys, "--audit", site.folder / "audit.json")
    assert f"Of the study pressure, {digest[:12]}" in page
    assert plain["audits"][0]["digest"] == signed.digest


def test_a_study_toml_is_audited_before_anyone_submits_it(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    schema = site.folder / "schema.toml"
    schema.write_text('[[columns]]\nkind = "number"\nname = "age"\nlow = 0\nhigh = 100\n')
    file = site.folder / "study.toml"
    file.write_text(
        'name = "ages"\nmethod = "statistics"\ndataset = "heart-2024"\nschema = "schema.toml"\n[privacy]\nepsilon = 1.0\n'
    )
    rows = read_report(audited(site, capsys, "--study", file).read_bytes()).body["rows"]
    assert len(rows) == 1
    assert not rows[0]["flagged"]


@pytest.mark.system
def test_a_study_toml_is_audited_among_the_peers_of_the_directory(
    site: SiteFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pins of a directory are peers as pins of the policy are: the cohort is theirs, and an unconfirmed one is nobody's."""
    kit = site.folder / "kit"
    opened = Authority.load(kit / "authority", now)
    for name in ("east", "west"):
        party = prepare(kit / name, name, Role.PARTICIPANT)
        opened.sign(party.request.read_bytes(), role=Role.PARTICIPANT, name=name)
    (site.config.parent / "directory.json").write_bytes(sign_directory(opened))
    site.config.write_text(f'{site.config.read_text()}directory = "directory.json"\n')
    (site.folder / "schema.toml").write_text('[[columns]]\nkind = "number"\nname = "age"\nlow = 0\nhigh = 100\n')
    file = site.folder / "study.toml"
    file.write_text(
        'name = "ages"\nmethod = "statistics"\ndataset = "heart-2024"\nschema = "schema.toml"\n[privacy]\nepsilon = 1.0\n'
    )
    assert "was not confirmed" in fails(site, capsys, "--study", file)
    words = shown(capsys, "participant", "directory", "show", "--config", site.config)["words"]
    shown(capsys, "participant", "directory", "confirm", "--config", site.config, "--words", " ".join(words))
    seen: list[AgreedStudy] = []
    of_study = SiteAudit.of_study

    def watched(self: SiteAudit, agreed: AgreedStudy) -> AuditReport:
        seen.append(agreed)
        return of_study(self, agreed)

    monkeypatch.setattr(SiteAudit, "of_study", watched)
    audited(site, capsys, "--study", file)
    assert seen[0].study.participants == ("east", "north", "south", "west")


def test_what_cannot_be_audited_is_said(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    study = known_study(site)
    assert "No task 'table' that reads records" in fails(site, capsys, "--task", "table")
    assert "knows no study" in fails(site, capsys, "--study", "00112233")
    assert "too short" in fails(site, capsys, "--study", "ab")
    digest = study_digest(study.to_bytes()).hex()
    assert "no task with the label 'other'" in fails(site, capsys, "--study", digest, "--task", "other")
    exact = study_digest(known_study(site, None).to_bytes()).hex()
    assert "has no noise" in fails(site, capsys, "--study", exact)
    config = load_participant_config(site.config)
    credentials = load_credentials(config.identity, now())
    elsewhere = AgreedStudy(study.model_copy(update={"participants": ("south", "west"), "weights": {"south": 1, "west": 1}}))
    with pytest.raises(Misuse, match="does not name this site"):
        SiteAudit(config, credentials, now(), trials=100).of_study(elsewhere)
    site.config.write_text(site.config.read_text().replace('["distributed"]', '["none"]'))
    assert "nothing to audit" in fails(site, capsys)
    taken = site.folder / "taken.json"
    taken.write_text("mine")
    code, _, err = veilsum(capsys, "participant", "audit", "--config", site.config, "--out", taken)
    assert (code, taken.read_text()) == (2, "mine")
    assert "already exists" in err


def test_a_dossier_takes_in_only_its_own_site_s_unchanged_reports(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    out = audited(site, capsys, "--task", "tables")
    whole = json.loads(out.read_text())

    def refused(value: Any, *, config: Path = site.config) -> str:
        file = site.folder / "given.json"
        file.write_text(value if isinstance(value, str) else json.dumps(value))
        page = site.folder / "no.html"
        code, _, err = veilsum(capsys, "ledger", "report", "--config", config, "--audit", file, "--out", page)
        assert code == 2
        assert not page.exists()
        return err

    assert "changed after it was signed" in refused({**whole, "audit": {**whole["audit"], "flagged": True}})
    assert "another digest" in refused({**whole, "digest": "00" * 32})
    assert "not a report of an audit" in refused("{}")
    assert "not a report of an audit" in refused("[" * 100_000 + " " * (1 << 16))
    assert "not a report of an audit" in refused({**whole, "audit": {**whole["audit"], "rows": [1]}})
    assert "is an audit of north" in refused(whole, config=site.peer)
    south = load_credentials(load_participant_config(site.peer).identity, now())
    forged = sign_report(whole["audit"], south.signing_key, south.certificate_pem)
    assert "a key that this ledger does not name" in refused(forged)
    with pytest.raises(HostileInput):
        read_report(b"x" * (1 << 23))


# The annex.

TOPICS = {
    "Privacy parameter epsilon", "Delta", "Variant of differential privacy", "Unit of privacy", "Neighbouring data",
    "Bounds on what a unit contributes", "Other releases of the same data", "Mechanism", "Sensitivity and its proof",
    "Composition and accounting", "Sampling", "Hyperparameters", "Empirical audit", "Accuracy of what is released", "Bias",
    "Trust model", "Query model", "Floating point", "Randomness", "Side channels", "Software and its review", "Data security",
    "Access control", "Enforcement of the budget, and its record", "How the data were collected, kept and shared before",
    "Retention of records",
}  # fmt: skip


def answers(plain: dict[str, Any]) -> dict[str, str]:
    return {item["topic"]: " ".join(item["answer"]) for item in plain["annex"]}


def test_the_annex_answers_from_ledger_policy_studies_and_audits(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    study = known_study(site)
    database = open_site(load_participant_config(site.config)).database
    ledger = open_ledger(database, load_credentials(load_participant_config(site.config).identity, now()), now)
    sampled = make_reservation(2, study=study_digest(study.to_bytes()), rate=0.25, multiplier=9.0)
    with database.transaction() as connection:
        ledger.reserve(connection, sampled)
        ledger.charge(connection, sampled.context)
    database.close()
    plain, page = twin(site, capsys)
    said = answers(plain)
    assert set(said) == TOPICS
    spent = plain["populations"][0]["spent"]
    assert "heart: epsilon 2 in all" in said["Privacy parameter epsilon"]
    assert f"spent {spent:.3f}"[:9] in said["Privacy parameter epsilon"]
    assert "The study pressure declares epsilon" in said["Privacy parameter epsilon"]
    assert "heart: 0.00001." in said["Delta"]
    assert "accepts studies whose unit is record." in said["Unit of privacy"]
    assert "1 release sampled records at rates of 0.25" in said["Sampling"]
    assert "not a proven filter" in said["Composition and accounting"]
    assert "1 named analyst; approval is by the policy" in said["Query model"]
    assert "No audit" in said["Empirical audit"]
    for topic in TOPICS:
        assert topic in page
    open_ones = {item["topic"] for item in plain["annex"] if item["answered"] == "not answered by this tool"}
    assert {"Bias", "Accuracy of what is released", "Retention of records", "Empirical audit"} <= open_ones
    assert page.count("not answered by this tool") == len(open_ones)


def test_the_annex_counts_peers_by_their_pins_or_their_directory(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    policy = site.config.read_text()
    site.config.write_text(f'{policy}[policy.trusted]\nnorth = "{"1" * 64}"\nsouth = "{"2" * 64}"\n')
    said = answers(twin(site, capsys)[0])["Trust model"]
    assert "counts the noise of 1 pinned peer and" in said  # a site is not its own peer
    site.config.write_text(f'{policy}directory = "directory.json"\nnot_trusted = ["south"]\n')
    said = answers(twin(site, capsys)[0])["Trust model"]
    assert "pinned peer" not in said
    assert "all participants in the federation’s directory that the site confirmed, but for 1 participant left out" in said


@pytest.mark.system
def test_the_annex_says_of_how_many_releases_an_audit_tells(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of one release is not one of all, and an audit that measured nothing answers nothing."""
    whole = read_report(audited(site, capsys, "--task", "feature-means", "--task", "tables").read_bytes()).body
    config = load_participant_config(site.config)
    credentials = load_credentials(config.identity, now())
    good, other = whole["rows"]
    cases = {
        "found no fault in 2 of 2 releases that the policy allowed (part 8)": ([good, other], "answered"),
        "FOUND FAULTS in 1 of 2 releases": ([good, {**other, "flagged": True}], "answered"),
        "in 1 of 2 releases that the policy allowed; 1 could not be measured": (
            [good, {**other, "finding": None}],
            "answered",
        ),
        "found no fault in 0 of 1 release": ([{**good, "finding": None, "why": "no"}], "not answered by this tool"),
    }
    for words, (rows, answered) in cases.items():
        body = {**whole, "rows": rows, "flagged": any(row["flagged"] for row in rows)}
        file = site.folder / "given.json"
        file.write_text(json.dumps(sign_report(body, credentials.signing_key, credentials.certificate_pem)))
        plain, page = twin(site, capsys, "--audit", file)
        (item,) = [item for item in plain["annex"] if item["topic"] == "Empirical audit"]
        assert words in item["answer"][0]
        assert item["answered"] == answered
        assert "Of releases that the policy allowed, on" in page


def test_what_was_charged_without_a_budget_is_told(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    plain, _ = twin(site, capsys)
    (heart,) = plain["populations"]
    told = {item.topic: item.answer for item in annex({**plain, "populations": [{**heart, "delta": None, "epsilon": None}]})}
    assert (
        "heart: no budget was set. 1 release was charged all the same: nothing bounds them."
        in told["Privacy parameter epsilon"]
    )


def test_a_ledger_that_does_not_verify_vouches_for_no_audit(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    out = audited(site, capsys, "--task", "tables")
    ledger = Checked("north", mirror=False, verification=None, fault=None, authority=False, head_given=False, against=())
    with pytest.raises(HostileInput, match="does not verify"):
        read_audit(out, ledger)


def test_the_annex_of_an_export_has_no_policy(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    export = site.folder / "ledger.jsonl"
    assert veilsum(capsys, "ledger", "export", "--config", site.config, "--out", export)[0] == 0
    page, plain = site.folder / "e.html", site.folder / "e.json"
    assert veilsum(capsys, "ledger", "report", export, "--out", page, "--json-out", plain)[0] == 0
    found = json.loads(plain.read_text())
    assert found["policy"] is None
    assert "which was not at hand" in page.read_text()
    assert not any("policy accepts" in " ".join(item["answer"]) for item in found["annex"])


def test_twins_of_earlier_versions_are_rendered_without_it(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    plain, page = twin(site, capsys)
    assert render(plain) == page
    old = {name: value for name, value in plain.items() if name not in ("annex", "audits", "policy")}
    assert "SP 800-226" in page
    assert "SP 800-226" not in render(old)


def test_annexes_are_asked_for_by_name(site: SiteFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """With what the configuration keeps for how long; an annex that there is not is refused before anything is written."""
    plain, text = twin(site, capsys, "--annex", "dpia, art30")
    assert [name for name in ("annex", "dpia", "art30") if name in plain] == ["dpia", "art30"]
    assert "Annex: draft of a data protection impact assessment" in text
    assert not any("not at hand" in row["until"] for row in plain["retention"])
    assert "annex" in twin(site, capsys)[0]
    out = site.folder / "none.html"
    status, _, err = veilsum(capsys, "ledger", "report", "--config", site.config, "--annex", "dpia,gdpr", "--out", out)
    assert (status != 0, "'gdpr'" in err, out.exists()) == (True, True, False)
