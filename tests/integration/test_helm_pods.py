"""What the chart's pods would run, run on this machine: rendered files, commands, probes and the pod of ``helm test``.

Kubernetes' part is played by the test: it lays the files of Secrets and ConfigMaps out as volumes would, in a folder in place
of the container's root, and gives the ports numbers that are free.
"""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from support.charts import Pod, Release, render
from support.identity_provider import CLIENT, IdentityProvider
from support.network import PATIENCE, wait_for
from support.postgres import server
from support.processes import lasting_ports
from veilsum.access import LoginSettings
from veilsum.login.person import log_in
from veilsum_node.identity import Authority, Role, load_credentials
from veilsum_node.identity.kit import Kit, make_kit

TOKEN = "a-token-of-at-least-thirty-two-characters"
MONITORED = "trial-veilsum-coordinator-metrics.veilsum.svc"
PORTS = (8461, 8463, 9464, 9465, 9466)


class Machine:
    """A folder in place of containers' roots, and ports in place of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, lasting_ports(len(PORTS)), strict=True))

    def local(self, text: str) -> str:
        """A rendered text with this machine's paths, ports and names."""
        for place in ("/etc/veilsum", "/var/lib/veilsum", "/data/"):
            text = text.replace(place, f"{self.folder}{place}")
        for rendered, number in self.ports.items():
            text = text.replace(f":{rendered}", f":{number}")
        return text.replace("trial-veilsum-coordinator:", "localhost:")

    def lay_out(self, release: Release, pod: Pod, secrets: dict[tuple[str, str], bytes]) -> None:
        """Write a pod's volumes; a Secret's content comes from ``secrets`` by name and key."""
        for path, (kind, name, key) in pod.files.items():
            if kind == "configMap" and name.startswith(release.name):
                (file,) = release.get("ConfigMap", name)["data"]
                data = self.local(release.toml(file.removesuffix(".toml"))).encode()
            else:
                file, data = "records.csv", secrets[name, key]
            place = Path(f"{self.folder}{path.replace('*', file)}")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
            place.chmod(0o400)

    def environment(self, pod: Pod) -> dict[str, str]:
        """The container's environment, with what finds the interpreter."""
        own = {item["name"]: self.local(item["value"]) for item in pod.container.get("env", [])}
        return {"PATH": os.environ["PATH"], **own, "HOME": str(self.folder), "MPLCONFIGDIR": str(self.folder)}

    def command(self, words: list[str]) -> list[str]:
        """A container's command for this machine."""
        head = {"veilsum": [sys.executable, "-m", "veilsum_deploy.cli"], "python": [sys.executable]}[words[0]]
        return [*head, *(self.local(word) for word in words[1:])]

    @contextmanager
    def running(self, pod: Pod) -> Iterator[subprocess.Popen[bytes]]:
        """The container's process; it must stop within its grace period, with status 0."""
        Path(f"{self.folder}/var/lib/veilsum").mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        with log.open("wb") as output:
            command = self.command(pod.container["command"])
            process = subprocess.Popen(command, env=self.environment(pod), stdout=output, stderr=output, cwd=self.folder)
        try:
            yield process
            process.terminate()
            assert process.wait(pod.spec["terminationGracePeriodSeconds"]) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


def authority_and_certificate(name: str) -> tuple[bytes, bytes, bytes]:
    """An authority's certificate, and a server's certificate and key for a name."""
    now = datetime.now(UTC)

    def make(common: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, ca: bool) -> bytes:
        names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)]) for text in (common, issuer)]
        builder = x509.CertificateBuilder().subject_name(names[0]).issuer_name(names[1]).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        builder = builder.not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    root, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return make("roots", root, "roots", root, True), make(name, key, "roots", root, False), pem


@pytest.fixture
def kit(tmp_path: Path) -> Kit:
    return make_kit(tmp_path / "kit", ["north", "south"], clock=lambda: int(time.time()))


def identity(kit: Kit, name: str, secret: str) -> dict[tuple[str, str], bytes]:
    party = next(item for item in kit.parties if item.name == name)
    names = ("key.pem", "certificate.pem", "authority.pem")
    return {(secret, item): (party.identity / item).read_bytes() for item in names}


def coordinator_secrets(kit: Kit) -> dict[tuple[str, str], bytes]:
    """Every Secret that coordinator-production.yaml names."""
    ca, certificate, key = authority_and_certificate(MONITORED)
    metrics = "veilsum-coordinator-metrics"
    return {
        **identity(kit, "coordinator", "veilsum-coordinator"),
        ("veilsum-database", "url"): server().new_database().encode(),
        ("veilsum-database-authority", "ca.crt"): ca,
        (metrics, "tls.crt"): certificate,
        (metrics, "tls.key"): key,
        (metrics, "ca.crt"): ca,
        ("veilsum-metrics-token", "token"): TOKEN.encode(),
    }


def status(url: str, authority: Path, token: str | None = None) -> int:
    """Status of a request as Prometheus sends it, under the name that it verifies; 0 where nothing answers."""
    context = ssl.create_default_context(cafile=str(authority))
    context.check_hostname = False  # the address is not the name; the pod of `helm test` checks the name
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE, context=context) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.system
def test_a_coordinator_runs_from_the_rendered_files(tmp_path: Path, kit: Kit) -> None:
    release = render("coordinator-production")
    pod, tester = release.pod("coordinator"), release.pod("test")
    machine = Machine(tmp_path / "host")
    secrets = coordinator_secrets(kit)
    machine.lay_out(release, pod, secrets)
    machine.lay_out(release, tester, secrets)
    authority = Path(f"{machine.folder}/etc/veilsum/authority/ca.pem")
    base = f"https://127.0.0.1:{machine.ports[9464]}"
    with machine.running(pod) as process:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            get = pod.container[probe]["httpGet"]
            assert get["scheme"] == "HTTPS"
            wait_for(lambda path=get["path"]: process.poll() is not None or status(base + path, authority) == 200, probe)
            assert process.poll() is None, (machine.folder / "log").read_text()
        (monitor,) = release.of("ServiceMonitor")
        path = monitor["spec"]["endpoints"][0]["path"]
        assert status(base + path, authority, TOKEN) == 200
        assert status(base + path, authority) == 401
        script, service, port, name, place = tester.container["args"]
        assert (service, port, name) == (MONITORED, "9464", MONITORED)
        for asked, expected in ((MONITORED, 0), ("another.name", 1)):
            arguments = ["127.0.0.1", str(machine.ports[9464]), asked, machine.local(place)]
            command = [*machine.command(tester.container["command"]), script, *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=240)
            assert done.returncode == expected, done.stderr
    assert not list((machine.folder / "var/lib/veilsum").glob("*.db"))  # the journal is in PostgreSQL


@pytest.mark.system
def test_a_participant_runs_from_the_rendered_files(tmp_path: Path, kit: Kit) -> None:
    release = render("participant-trial")
    pod = release.pod("participant")
    machine = Machine(tmp_path / "host")
    records = {("north-records", "*"): b"age,disease\n50,0\n60,1\n"}
    machine.lay_out(release, pod, {**identity(kit, "north", "veilsum-north"), **records})
    with machine.running(pod) as process:
        health = machine.command(pod.container["readinessProbe"]["exec"]["command"])
        place = ("127.0.0.1", machine.ports[9465])

        def listens() -> bool:
            with socket.socket() as plain:
                return process.poll() is not None or plain.connect_ex(place) == 0

        wait_for(listens, "the participant's endpoint")
        assert process.poll() is None, (machine.folder / "log").read_text()
        seconds = pod.container["readinessProbe"]["timeoutSeconds"]
        done = subprocess.run(health, capture_output=True, text=True, timeout=seconds)
        assert (done.returncode, process.poll()) == (1, None)  # no coordinator is there: not ready, and alive
        assert "not ready" in done.stdout + done.stderr
    assert (machine.folder / "var/lib/veilsum/participant.db").exists()


@pytest.mark.system
def test_the_service_for_logins_runs_from_the_rendered_files(tmp_path: Path) -> None:
    """Its probes find it, somebody logs in, and it stops in its grace period."""
    with IdentityProvider(tmp_path) as provider:
        found = {"issuer": provider.issuer, "client_id": CLIENT}
        roles = {"analyst": ["research"], "operator": []}
        bundle = {"existingConfigMap": "hospital-roots"}
        release = render("logins", values={"logins": {"config": {"provider": found, "roles": roles}, "caBundle": bundle}})
        pod, machine = release.pod("logins"), Machine(tmp_path / "host")
        key, certificate = (path.read_bytes() for path in (provider.key_file, provider.certificate_file))
        tls = "veilsum-logins-tls"
        secrets = {(tls, "tls.crt"): certificate, (tls, "tls.key"): key, ("veilsum-authority", "passphrase"): b"of the key\n"}
        secrets["hospital-roots", "ca.crt"] = provider.ca_bundle.read_bytes()
        machine.lay_out(release, pod, secrets)
        place = Path(machine.local("/var/lib/veilsum/authority"))
        place.parent.mkdir(parents=True)
        Authority.create(place, "trial", lambda: int(time.time()), passphrase=b"of the key")
        url = f"https://localhost:{machine.ports[8463]}"
        with machine.running(pod) as process:
            for probe in ("readinessProbe", "livenessProbe"):
                get = pod.container[probe]["httpGet"]
                assert (get["scheme"], pod.port(get["port"])) == ("HTTPS", 8463)
                reached = url + get["path"]
                wait_for(lambda at=reached: process.poll() is not None or status(at, provider.ca_bundle) == 200, probe)
                assert process.poll() is None, (machine.folder / "log").read_text()
            settings = LoginSettings(url=url, ca_bundle=provider.ca_bundle)
            log_in(settings, tmp_path / "ada", Role.ANALYST, provider.browse, lambda: int(time.time()))
        credentials = load_credentials(tmp_path / "ada", int(time.time()), Role.ANALYST)
        assert (credentials.identity.name, (place / "issued" / "index.jsonl").exists()) == ("ada", True)
        assert "certified analyst ada" in (machine.folder / "log").read_text()
