"""The webhook that prints notifications: what it prints, and what it does not take."""

from __future__ import annotations

import http.client
import json
import runpy
import threading
from collections.abc import Iterator
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "alertmanager" / "webhook.py"


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    listener = runpy.run_path(str(SCRIPT))["NotificationHandler"]
    with HTTPServer(("127.0.0.1", 0), listener) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield "127.0.0.1", server.server_port
        server.shutdown()
        thread.join()


def post(address: tuple[str, int], path: str, body: bytes, **headers: str) -> int:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("POST", path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def alert(name: str, status: str) -> dict[str, Any]:
    return {
        "status": status,
        "labels": {"alertname": name, "severity": "warning"},
        "annotations": {"summary": f"{name} is so", "runbook_url": f"docs/{name}.md"},
    }


def test_a_line_for_each_alert(address: tuple[str, int], capsys: pytest.CaptureFixture[str]) -> None:
    body = json.dumps({"version": "4", "alerts": [alert("A", "firing"), alert("B", "resolved")]}).encode()
    assert post(address, "/working-hours", body) == 204
    assert capsys.readouterr().out.splitlines() == [
        "working-hours: firing warning A: A is so (docs/A.md)",
        "working-hours: resolved warning B: B is so (docs/B.md)",
    ]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"alerts": [1]}', b'{"alerts": [{"status": "firing"}]}', b"\xff"])
def test_other_bodies_are_refused(address: tuple[str, int], body: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    assert post(address, "/x", body) == 400
    assert capsys.readouterr().out == ""


def test_a_body_that_says_it_is_large_is_not_read(address: tuple[str, int]) -> None:
    assert post(address, "/x", b"{}", **{"Content-Length": str(1 << 30)}) == 400
