"""`make deploy-local`: the compose file's services as processes, a study, what is shown, and a stop that leaves nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.network import PATIENCE, wait_for
from support.randomness import RARE_DEVIATIONS
from support.tools import need_tool
from veilsum_privacy.results.result import load_result

ROOT = Path(__file__).parents[2]
SITES = {"north", "east", "south", "west"}
SECONDS = 240


@dataclass(frozen=True)
class Local:
    """A deployment that stays up after its study.

    Attributes:
        found: what it printed.
        children: its processes.
    """

    process: subprocess.Popen[str]
    directory: Path
    found: dict[str, Any]
    children: list[psutil.Process]


def command(directory: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "local", "--directory", str(directory), *options]


@contextmanager
def running(directory: Path) -> Iterator[Local]:
    errors = directory.with_name("stderr")
    with errors.open("w") as stream:
        process = subprocess.Popen(
            command(directory, "--keep", "--json"), cwd=ROOT / "tests", stdout=subprocess.PIPE, stderr=stream, text=True
        )
    try:
        assert process.stdout is not None
        wait_for(lambda: "stays up" in errors.read_text() or process.poll() is not None, "the deployment")
        assert process.poll() is None, errors.read_text()
        lines = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        children = psutil.Process(process.pid).children(recursive=True)
        yield Local(process, directory, json.loads("".join(lines)), children)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(PATIENCE)


def listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def page(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
        return json.load(answer)


def the_study_ran_and_is_paid_for_at_every_site(local: Local) -> None:
    sites = local.found["sites"]
    assert set(sites) == SITES
    for fields in sites.values():
        assert 0 < fields["spent"] <= 1.0 + 1e-9  # what deploy/compose/study.toml asks for
        assert fields["scraped"] == pytest.approx(fields["spent"], rel=1e-6)
        assert fields["releases"] == 1
        assert Path(fields["ledger"]).is_file()
    result = load_result(Path(local.found["result"]))
    assert result.summary["cohort"] == len(SITES)
    # deploy/compose/study.toml buys a count whose 95% interval is +- 31.4, as `veilsum study plan` says of it before it runs
    (count,) = (row["count"] for row in result.summary["records"])
    assert 1.96 * count["noise_error"] == pytest.approx(31.4, abs=0.1)
    classes = [row["count"] for row in result.summary["classes"]]
    told = [(count["value"], count["noise_error"])]
    told.append((sum(part["value"] for part in classes), math.hypot(*(part["noise_error"] for part in classes))))
    for value, error in told:
        assert abs(value - (160 + 130 + 94 + 35)) < RARE_DEVIATIONS * error


def the_coordinators_journal_lies_in_postgresql(local: Local) -> None:
    state = local.directory / "volumes" / "coordinator-state"
    assert (state / "results").is_dir()
    assert not (state / "coordinator.db").exists()
    log = (local.directory / "logs" / "database.log").read_text()
    assert "database system is ready to accept connections" in log


def prometheus_scrapes_all_over_tls_with_a_token(local: Local) -> None:
    pages = local.found["pages"]
    assert set(pages) == {"prometheus", "alertmanager"}
    assert local.found["left_out"] == ["grafana"]
    targets = page(f"{pages['prometheus']}/api/v1/targets")["data"]["activeTargets"]
    assert {(item["labels"]["job"], item["labels"].get("site")) for item in targets} == {
        ("veilsum-coordinator", None),
        *(("veilsum-participant", name) for name in SITES),
    }
    assert all(item["health"] == "up" and item["scrapeUrl"].startswith("https://127.0.0.1:") for item in targets)
    rules = page(f"{pages['prometheus']}/api/v1/rules")["data"]["groups"]
    assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
    managers = page(f"{pages['prometheus']}/api/v1/alertmanagers")["data"]["activeAlertmanagers"]
    assert [item["url"] for item in managers] == [f"{pages['alertmanager']}/api/v2/alerts"]
    url, context = local.found["metrics"]["north"], ssl.create_default_context(cafile=local.found["authority"])
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url, timeout=PATIENCE, context=context)  # noqa: S310
    asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {Path(local.found['token']).read_text()}"})  # noqa: S310
    with urllib.request.urlopen(asked, timeout=PATIENCE, context=context) as answer:  # noqa: S310
        assert b"veilsum_epsilon_spent" in answer.read()


def every_query_of_the_dashboards_returns_data(local: Local) -> None:
    words = ["--prometheus", local.found["pages"]["prometheus"], "--minutes", "4", "--scrape", "5"]
    done = subprocess.run([sys.executable, "-m", "grafana.check", *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def a_participant_listens_for_its_metrics_alone(local: Local) -> None:
    for name in SITES:
        found = [child for child in local.children if f"/configs/{name}/" in " ".join(child.cmdline())]
        assert found, name
        ports = {item.laddr.port for child in found for item in child.net_connections("tcp") if item.status == "LISTEN"}
        assert ports == {int(local.found["metrics"][name].rsplit(":", 1)[1].split("/")[0])}


def a_signal_stops_everything_and_nothing_is_left(local: Local) -> None:
    addresses = [url.split("/")[2] for url in (*local.found["pages"].values(), *local.found["metrics"].values())]
    assert all(map(listening, addresses))
    names = {child.pid: child.name() for child in local.children}
    local.process.send_signal(signal.SIGTERM)
    assert local.process.wait(PATIENCE) == 0
    left = [names[child.pid] for child in local.children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not left
    assert not any(map(listening, addresses))
    for name in ("coordinator", *SITES):
        assert '"stopped"' in (local.directory / "logs" / f"{name}.log").read_text(), name


@pytest.mark.system  # test_compose.py covers its services and its file by default
def test_a_deployment_from_its_start_to_its_end(tmp_path: Path) -> None:
    # One test, since the parallel runner would start a deployment in each of its workers.
    for tool in ("prometheus", "alertmanager"):
        need_tool(tool)
    with running(tmp_path / "local") as local:
        the_study_ran_and_is_paid_for_at_every_site(local)
        the_coordinators_journal_lies_in_postgresql(local)
        prometheus_scrapes_all_over_tls_with_a_token(local)
        every_query_of_the_dashboards_returns_data(local)
        a_participant_listens_for_its_metrics_alone(local)
        a_signal_stops_everything_and_nothing_is_left(local)


@pytest.mark.system
def test_a_service_that_cannot_start_ends_all_with_its_log_and_a_status(tmp_path: Path) -> None:
    need_tool("prometheus")
    text = (ROOT / "deploy" / "compose.yaml").read_text()
    for name in ("compose", "prometheus", "alertmanager", "grafana"):
        text = text.replace(f"./{name}/", f"{ROOT}/deploy/{name}/")
    broken = tmp_path / "compose.yaml"
    broken.write_text(text.replace("--storage.path=/alertmanager", "--storage.pth=/alertmanager"))
    directory = tmp_path / "local"
    done = subprocess.run(
        command(directory, "--compose", str(broken)), cwd=ROOT / "tests", capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2, done.stderr
    assert "alertmanager exited unexpectedly" in done.stderr
    assert "--storage.pth" in done.stderr
    mine = [
        process for process in psutil.process_iter(["cmdline"]) if str(directory) in " ".join(process.info["cmdline"] or ())
    ]
    assert not mine
    assert os.path.isdir(directory / "logs")
