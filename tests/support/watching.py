"""A real Prometheus, Alertmanager and webhook for tests, on the shipped rules and configurations with everything quicker.

Only intervals, waiting times, addresses and paths are changed; expressions, labels, routes and inhibitions stay as shipped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.network import PATIENCE, wait_for
from support.tools import need_tool

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
QUICKER = 300.0
"""By how much waiting times are divided: five minutes become a second."""

LISTENING = r'"?Listening on"? address=(\S+)'
"""How Prometheus and Alertmanager log the port that the system chose."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(span: str) -> int:
    """A span of Prometheus, such as ``1h30m``, in seconds."""
    return sum(int(count) * _SECONDS[unit] for count, unit in re.findall(r"(\d+)([smhd])", span))


def quicker(span: str) -> str:
    """The span, divided and in whole seconds: at least one."""
    return f"{max(1, round(seconds(span) / QUICKER))}s"


class Watched:
    """The three processes' addresses and answers; use :func:`watching`."""

    def __init__(self, directory: Path, scrapes: list[dict[str, Any]]) -> None:
        self._directory = directory
        self._scrapes = scrapes
        self._children: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.webhook = self.alertmanager = self.prometheus = ""

    def start(self) -> None:
        """Start them one after the other: each is told where the one before listens."""
        self.webhook = self._start(
            "webhook", [sys.executable, str(DEPLOY / "alertmanager" / "webhook.py"), "127.0.0.1:0"], r"listening on (\S+)"
        )
        self.alertmanager = self._start(
            "alertmanager",
            [
                str(need_tool("alertmanager")),
                f"--config.file={self._write('alertmanager.yml', self._alertmanager())}",
                f"--storage.path={self._directory / 'silences'}",
                "--web.listen-address=127.0.0.1:0",
                "--cluster.listen-address=",
            ],
            LISTENING,
        )
        self._write("rules.yml", self._rules())
        self.prometheus = self._start(
            "prometheus",
            [
                str(need_tool("prometheus")),
                f"--config.file={self._write('prometheus.yml', self._prometheus())}",
                f"--storage.tsdb.path={self._directory / 'series'}",
                "--web.listen-address=127.0.0.1:0",
            ],
            LISTENING,
        )
        for address in (self.alertmanager, self.prometheus):
            wait_for(lambda address=address: _is_ready(address), f"{address} to be ready")  # type: ignore[misc]

    def stop(self) -> None:
        """End them, the last first."""
        for name, child in reversed(self._children):
            child.terminate()
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                raise RuntimeError(f"{name} did not stop") from None
        self._children.clear()

    def log(self, name: str) -> str:
        """What a process has printed."""
        return (self._directory / f"{name}.log").read_text()

    def query(self, expression: str) -> dict[str, float]:
        """An instant query's values, by the labels ``site`` or ``participant``, or by ``job``."""
        found = self._get(f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        assert found["status"] == "success", found
        return {
            entry["metric"].get("site") or entry["metric"].get("participant") or entry["metric"].get("job", ""): float(
                entry["value"][1]
            )
            for entry in found["data"]["result"]
        }

    def alerts(self) -> list[dict[str, Any]]:
        """What Alertmanager holds, by its API."""
        return list(self._get(f"http://{self.alertmanager}/api/v2/alerts"))

    def send(self, *alerts: dict[str, str]) -> None:
        """Hand alerts to Alertmanager as Prometheus would: their labels."""
        notes = {"summary": "sent by a test", "runbook_url": "docs/runbooks/README.md"}
        body = json.dumps([{"labels": labels, "annotations": notes} for labels in alerts]).encode()
        request = urllib.request.Request(
            f"http://{self.alertmanager}/api/v2/alerts", body, {"Content-Type": "application/json"}
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()  # noqa: S310

    def _get(self, url: str) -> Any:
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310
            return json.load(answer)

    def _start(self, name: str, command: list[str], pattern: str) -> str:
        path = self._directory / f"{name}.log"
        with path.open("ab") as log:
            child = subprocess.Popen(command, cwd=self._directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._children.append((name, child))
        wait_for(lambda: bool(re.search(pattern, self.log(name))) or child.poll() is not None, name)
        addresses = re.findall(pattern, self.log(name))
        assert addresses, self.log(name)
        return str(addresses[-1])

    def _write(self, name: str, content: Any) -> Path:
        path = self._directory / name
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        return path

    def _alertmanager(self) -> Any:
        found = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
        for route in (found["route"], *found["route"]["routes"]):
            route.update({key: quicker(route[key]) for key in ("group_wait", "group_interval") if key in route})
        for receiver in found["receivers"]:
            for hook in receiver["webhook_configs"]:
                hook["url"] = hook["url"].replace("127.0.0.1:9095", self.webhook)
        return found

    def _rules(self) -> Any:
        found = yaml.safe_load((DEPLOY / "prometheus" / "rules" / "veilsum.yml").read_text())
        for group in found["groups"]:
            if "interval" in group:
                group["interval"] = "1s"
            for rule in group["rules"]:
                if "for" in rule:
                    rule["for"] = quicker(rule["for"])
        return found

    def _prometheus(self) -> Any:
        found = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        found["global"].update(scrape_interval="1s", evaluation_interval="1s")
        found["rule_files"] = ["rules.yml"]
        found["alerting"]["alertmanagers"] = [{"static_configs": [{"targets": [self.alertmanager]}]}]
        found["scrape_configs"] = self._scrapes
        return found


def _is_ready(address: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{address}/-/ready", timeout=PATIENCE).close()
    except OSError:  # an answer of another status is one as well
        return False
    return True


@contextmanager
def watching(directory: Path, scrapes: list[dict[str, Any]]) -> Iterator[Watched]:
    """Run a webhook, Alertmanager and Prometheus; all are stopped at the end.

    Args:
        directory: where they keep their files; made if it is missing.
        scrapes: the ``scrape_configs``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    watched = Watched(directory, scrapes)
    try:
        watched.start()
        yield watched
    finally:
        watched.stop()
