"""`veilsum … health` against a real endpoint: ready, not ready, away, and another's certificate."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from veilsum_deploy import cli
from veilsum_deploy.provision import EndpointAuthority
from veilsum_node.errors import ConfigurationError
from veilsum_node.telemetry.endpoint import MetricsServer, MetricsSettings
from veilsum_node.telemetry.health import ask_ready
from veilsum_participant import cli as participant_cli


@contextmanager
def endpoint(settings: MetricsSettings, reason: str = "") -> Iterator[MetricsSettings]:
    """A running endpoint; yields its settings with the port that the system chose."""
    server = MetricsServer(CollectorRegistry(), settings, ready=lambda: reason)
    address = server.start()
    try:
        yield settings.model_copy(update={"listen": address})
    finally:
        server.stop()


def write_pair(directory: Path, hosts: tuple[str, ...] = ("elsewhere",)) -> dict[str, Path]:
    """Key, certificate and token, certified for names that nobody dials."""
    directory.mkdir()
    key, certificate = EndpointAuthority(int(time.time())).issue(hosts)
    files = {"key": key, "certificate": certificate, "token_file": b"x" * 32}
    for name, data in files.items():
        (directory / name).write_bytes(data)
        (directory / name).chmod(0o600)
    return {name: directory / name for name in files}


@pytest.mark.parametrize("reason", ["", "database"])
def test_it_says_what_the_endpoint_says(reason: str) -> None:
    with endpoint(MetricsSettings(listen="127.0.0.1:0"), reason) as settings:
        found = ask_ready(settings)
        assert (found.ready, found.reason) == (not reason, reason)
        assert found.endpoint == f"http://{settings.listen}/readyz"
    gone = ask_ready(settings)
    assert not gone.ready
    assert "cannot be reached" in gone.reason


def test_over_tls_only_the_very_certificate_of_the_configuration_will_do(tmp_path: Path) -> None:
    own, other = write_pair(tmp_path / "own"), write_pair(tmp_path / "other")
    with endpoint(MetricsSettings(listen="0.0.0.0:0", **own)) as settings:  # every interface: asked on loopback
        found = ask_ready(settings)
        assert found.ready, found
        assert found.endpoint.startswith("https://127.0.0.1:")
        stranger = ask_ready(settings.model_copy(update={"certificate": other["certificate"]}))
        assert not stranger.ready
        assert str(other["certificate"]) in stranger.reason
        plain = ask_ready(MetricsSettings(listen=f"127.0.0.1:{settings.listen.rpartition(':')[2]}"))
        assert not plain.ready
    broken = tmp_path / "broken"
    broken.write_text("no certificate")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ask_ready(settings.model_copy(update={"certificate": broken}))


def test_a_port_that_the_system_chose_is_found_by_its_file(tmp_path: Path) -> None:
    ready_file = tmp_path / "address"
    with endpoint(MetricsSettings(listen="127.0.0.1:0", ready_file=ready_file)):
        assert ask_ready(MetricsSettings(listen="127.0.0.1:0", ready_file=ready_file)).ready
    with pytest.raises(ConfigurationError, match="ready_file"):
        ask_ready(MetricsSettings(listen="127.0.0.1:0"))
    ready_file.write_text("nothing")
    with pytest.raises(ConfigurationError, match="not hold the address"):
        ask_ready(MetricsSettings(listen="127.0.0.1:0", ready_file=ready_file))


def test_who_answers_nothing_or_nonsense_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_node.telemetry.health.SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:  # accepts by its backlog, and says nothing
        found = ask_ready(MetricsSettings(listen=f"127.0.0.1:{silent.getsockname()[1]}"))
    assert not found.ready
    assert "no answer" in found.reason


@pytest.mark.parametrize("role", ["coordinator", "participant"])
def test_the_commands_end_with_a_status_that_a_health_check_reads(
    role: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = cli.main if role == "coordinator" else participant_cli.main
    stated = 'coordinator = "hub:1"\n[datasets.records]\npath = "records.csv"\n' if role == "participant" else ""
    config = tmp_path / f"{role}.toml"

    def ask(listen: str | None) -> tuple[object, str]:
        config.write_text(stated + ("" if listen is None else f'[metrics]\nlisten = "{listen}"\n'))
        with pytest.raises(SystemExit) as ended:
            run([role, "health", "--config", str(config), "--json"])
        printed = capsys.readouterr()
        return ended.value.code, printed.out or printed.err

    with endpoint(MetricsSettings(listen="127.0.0.1:0")) as settings:
        status, text = ask(settings.listen)
    assert (status, json.loads(text)["ready"]) == (0, True)
    status, text = ask(settings.listen)
    assert (status, json.loads(text)["ready"]) == (1, False)
    status, text = ask(None)
    assert status == 2
    assert "[metrics]" in json.loads(text)["message"]
