"""The shipped rules and configurations of Prometheus and Alertmanager, by their own checkers, and against the program."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.tools import need_tool
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import RefusalCode
from veilsum_participant.settings.config import ParticipantConfig

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = PROMETHEUS / "rules" / "veilsum.yml"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
RULE_TESTS = sorted((PROMETHEUS / "tests").glob("*.yml"))
LONG = ("backups", "ledger-days", "pace", "refusals")
"""Days and weeks of samples, which take promtool longer than all others together."""

RUNBOOKS = ROOT / "docs" / "runbooks"

NAMES = {
    "VeilsumBudget80",
    "VeilsumBudget95",
    "VeilsumBudgetGoneInAWeek",
    "VeilsumBudgetSearched",
    "VeilsumStudyWaiting",
    "VeilsumParticipantGone",
    "VeilsumIdentityTwice",
    "VeilsumDiskFull",
    "VeilsumBackupOld",
    "VeilsumRoundStuck",
    "VeilsumRefusals",
    "VeilsumComputationFaults",
    "VeilsumDecodeFailures",
    "VeilsumLedgerVerificationFailed",
    "VeilsumLedgerVerificationStale",
    "VeilsumCertificateExpiring",
    "VeilsumDirectoryExpiring",
    "VeilsumTargetDown",
    "VeilsumLoginsDown",
}


def check(program: str, *arguments: str | Path, within: Path = PROMETHEUS) -> str:
    """Run a checker; returns what it printed. The test fails if the checker does."""
    command = [str(need_tool(program)), *map(str, arguments)]
    done = subprocess.run(command, cwd=within, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[dict[str, Any]]:
    """Every rule."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    """Every alert; a name may come twice, with another severity."""
    return [rule for rule in rules() if "alert" in rule]


def kebab(name: str) -> str:
    """VeilsumBudget80 -> budget-80."""
    return "-".join(re.findall(r"[A-Z][a-z]*|\d+", name.removeprefix("Veilsum"))).lower()


# -- the projects' own checkers ---------------------------------------------------------------------------------------------


def test_rules_are_valid() -> None:
    assert f"{len(rules())} rules found" in check("promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES)


@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.system)])
def test_rules_do_what_they_say(long: bool) -> None:
    files = [path.name for path in RULE_TESTS if (path.stem in LONG) == long]
    told = check("promtool", "test", "rules", *files, within=PROMETHEUS / "tests")
    assert told.count("SUCCESS") == len(files) > 1


def test_prometheus_configuration_is_valid() -> None:
    assert "1 rule files found" in check("promtool", "check", "config", "prometheus.yml")


def remote_job(text: str) -> str:
    """The configuration with its example for participants on other hosts taken out of the comment."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if "# - job_name:" in line)
    return "\n".join([*lines[:start], *(line.replace("# ", "", 1) for line in lines[start:])])


def test_example_of_a_remote_participant_is_valid(tmp_path: Path) -> None:
    shutil.copytree(PROMETHEUS / "rules", tmp_path / "rules")
    (tmp_path / "secrets").mkdir()
    shutil.copy(ROOT / "LICENSE", tmp_path / "secrets" / "metrics.token")  # that the files are there is all that is checked
    shutil.copy(ROOT / "LICENSE", tmp_path / "secrets" / "metrics-authority.pem")
    text = remote_job((PROMETHEUS / "prometheus.yml").read_text())
    (tmp_path / "prometheus.yml").write_text(text)
    check("promtool", "check", "config", "prometheus.yml", within=tmp_path)
    jobs = yaml.safe_load(text)["scrape_configs"]
    assert [job["job_name"] for job in jobs] == ["veilsum-coordinator", "veilsum-participant", "veilsum-participant-remote"]
    assert jobs[2]["scheme"] == "https"
    assert jobs[2]["static_configs"][0]["labels"]["job"] == "veilsum-participant"


def test_alertmanager_configuration_is_valid() -> None:
    assert "SUCCESS" in check("amtool", "check-config", ALERTMANAGER)


@pytest.mark.parametrize("severity", ["critical", "warning", "info"])
def test_every_severity_has_its_way(severity: str) -> None:
    shown = check("amtool", "config", "routes", "test", f"--config.file={ALERTMANAGER}", f"severity={severity}")
    assert shown.split() == [{"critical": "at-once", "warning": "working-hours", "info": "to-be-known"}[severity]]


def test_commented_channels_of_alertmanager_are_valid(tmp_path: Path) -> None:
    text = re.sub(r"^(\s*)# (slack_configs:|email_configs:|smtp_|  )", r"\1\2", ALERTMANAGER.read_text(), flags=re.MULTILINE)
    text = re.sub(r"^    webhook_configs:\n.*\n", "", text, flags=re.MULTILINE)
    found = yaml.safe_load(text)
    assert found["global"]["smtp_smarthost"]
    assert [sorted(receiver) for receiver in found["receivers"]] == [
        ["name", "slack_configs"],
        ["email_configs", "name"],
        ["email_configs", "name"],
    ]
    (tmp_path / "alertmanager.yml").write_text(text)
    assert "SUCCESS" in check("amtool", "check-config", tmp_path / "alertmanager.yml")


# -- the rules against the program ------------------------------------------------------------------------------------------


def test_the_list_of_alerts_is_closed() -> None:
    assert {rule["alert"] for rule in alerts()} == NAMES


def test_every_alert_is_tested() -> None:
    fires, rests = set(), set()
    for path in RULE_TESTS:
        for group in yaml.safe_load(path.read_text())["tests"]:
            for case in group["alert_rule_test"]:
                for expected in case["exp_alerts"]:
                    fires.add((case["alertname"], expected["exp_labels"]["severity"]))
                if not case["exp_alerts"]:
                    rests.add(case["alertname"])
    assert fires == {(rule["alert"], rule["labels"]["severity"]) for rule in alerts()}
    assert rests == NAMES


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: f"{rule['alert']}-{rule['labels']['severity']}")
def test_an_alert_says_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    notes = rule["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert notes["runbook_url"] == f'{{{{ or $externalLabels.runbooks "docs/runbooks" }}}}/{kebab(rule["alert"])}.md'
    assert (RUNBOOKS / f"{kebab(rule['alert'])}.md").is_file()


def test_every_metric_exists() -> None:
    """The page is held against the registries by a test of its own."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    asked = {name for rule in rules() for name in re.findall(r"[a-z_:]*veilsum_[a-z_:]+", rule["expr"])}
    assert recorded <= asked
    documented = set(re.findall(r"`(veilsum_[a-z_]+)", (ROOT / "docs" / "metrics.md").read_text()))
    assert asked - recorded <= documented


def test_thresholds_are_the_program_s_defaults() -> None:
    found = {rule["alert"]: rule["expr"] for rule in alerts()}
    waits = Waits()
    assert found["VeilsumRoundStuck"].endswith(f"> {waits.contribute + waits.consent + waits.check}")
    assert ParticipantConfig.model_fields["verify_hours"].default == 24
    assert found["VeilsumLedgerVerificationStale"].endswith("> 2 * 86400")


def test_refusals_are_split_by_existing_codes() -> None:
    first, second = [rule["expr"] for rule in alerts() if rule["alert"] == "VeilsumRefusals"]
    (grave,), (other,) = re.findall(r'reason=~"(.*?)"', first), re.findall(r'reason!~"(.*?)"', second)
    assert grave == other
    assert set(grave.split("|")) == {
        RefusalCode.STUDY_SIGNATURE,
        RefusalCode.STUDY_REPLAYED,
        RefusalCode.ROSTER,
        RefusalCode.KEYS,
        RefusalCode.BROADCAST,
        RefusalCode.RECEIPT,
        RefusalCode.CHECK,
        RefusalCode.LOST,
        RefusalCode.LEDGER,
        RefusalCode.INTERNAL,
    }
    rows = re.findall(r"^\| (`.*?) \| warning \|", (RUNBOOKS / "refusals.md").read_text(), flags=re.MULTILINE)
    assert set(grave.split("|")) == {code for row in rows for code in re.findall("`(.*?)`", row)}
