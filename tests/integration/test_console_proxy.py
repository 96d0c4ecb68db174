"""A site's console behind nginx by the lines of docs/console.md, in a real browser: log-ins, redirections, cookies, forms."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from support.browsing import running_browser
from support.consoles import ask
from support.federation import make_request, schema_of
from support.hostile import Adversary, make_adversary
from support.identity_provider import CLIENT, IdentityProvider
from support.network import PATIENCE, wait_for
from support.processes import VEILSUM, lasting_port, write_participant, write_toml
from support.tools import need_tool
from veilsum_deploy.provision import EndpointAuthority
from veilsum_node.web.people import Links, PersonRole, person
from veilsum_privacy.ledger import Kind

HOST = "veilsum.hospital.example"
ORIGIN = f"https://{HOST}"
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "console.md"
WHOLE = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxied;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
{server}
}}
"""


@contextmanager
def running(command: list[str], log: Path, said: str) -> Iterator[None]:
    """A process that has said, in its log, that it serves."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(lambda: said in log.read_text() or process.poll() is not None, said)
        assert process.poll() is None, log.read_text()
        yield
    finally:
        process.terminate()
        assert process.wait(240) == 0, log.read_text()


@contextmanager
def nginx(folder: Path, socket: Path) -> Iterator[int]:
    """The guide's server, at a port, before a socket, and with a certificate, that are this test's; yields the port."""
    folder.mkdir()
    (server,) = re.findall(r"^For nginx:\n\n```\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.M | re.S)
    key, certificate = EndpointAuthority(int(time.time())).issue([HOST])
    port = lasting_port()
    for theirs, own in (
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("unix:/run/veilsum-console/console.sock;", f"unix:{socket};"),
        ("ssl_certificate /etc/ssl/veilsum.hospital.example.pem;", f"ssl_certificate {folder}/certificate.pem;"),
        ("ssl_certificate_key /etc/ssl/private/veilsum.hospital.example.key;", f"ssl_certificate_key {folder}/key.pem;"),
    ):
        assert server.count(theirs) == 1, theirs
        server = server.replace(theirs, own)
    (folder / "certificate.pem").write_bytes(certificate)
    (folder / "key.pem").write_bytes(key)
    user = "user root;" if os.geteuid() == 0 else ""  # whose workers may use the socket, as www-data may on a host
    (folder / "nginx.conf").write_text(WHOLE.format(folder=folder, user=user, server=server))
    command = [str(need_tool("nginx")), "-p", str(folder), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen(command)
    try:
        wait_for(lambda: (folder / "pid").exists() or process.poll() is not None, "nginx")
        assert process.poll() is None, (folder / "error.log").read_text()
        yield port
    finally:
        process.terminate()
        assert process.wait(240) == 0


class Site:
    """A site whose console is behind the proxy, with an identity provider and a study that waits."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.attack: Adversary = make_adversary(folder, budget=(3.0, 1e-5), approval="manual")
        self.attack.use(self.attack.bed.compile(make_request(schema_of(2), min_cohort=2)))
        ask(self.attack)
        write_participant(self.attack.bed, "a", "localhost:1", (3.0, 1e-5))
        self.provider = stack.enter_context(IdentityProvider(folder))
        self.provider.client = ORIGIN
        self.provider.person |= {"name": "Olga Maier", "groups": ["privacy-office"]}
        directory, socket = self.attack.bed.directory("a"), folder / "console.sock"
        tables = {
            "": {"listen": f"unix:{socket}", "url": ORIGIN},
            "provider": {
                "issuer": self.provider.issuer,
                "client_id": CLIENT,
                "ca_bundle": str(self.provider.ca_bundle),
                "name_claim": "name",
            },
            "roles": {"officer": ["privacy-office"]},
        }
        write_toml(directory / "console.toml", tables)
        command = [sys.executable, *VEILSUM, "participant", "console", "--config", str(directory / "participant.toml")]
        stack.enter_context(running([*command, "--records-in-reach"], directory / "console-log", "The console is at"))
        self.port = stack.enter_context(nginx(folder / "nginx", socket))
        rules = f"--host-resolver-rules=MAP {HOST}:443 127.0.0.1:{self.port}"
        self.browser = stack.enter_context(running_browser(rules))
        self.links = Links(directory / "participant.console-links", self.attack.bed.clock)

    def page(self) -> Page:
        """A browser of somebody else, which takes this test's certificates."""
        return self.browser.new_context(ignore_https_errors=True).new_page()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("proxy"), stack)


def cookies(page: Page) -> dict[str, tuple[bool, bool, str, str]]:
    """Each cookie of the console: whether it is for TLS alone, hidden from scripts, its policy and its path."""
    found = page.context.cookies([ORIGIN])
    return {item["name"]: (item["secure"], item["httpOnly"], item["sameSite"], item["path"]) for item in found}


@pytest.mark.system
def test_somebody_logs_in_by_the_provider_and_decides(site: Site) -> None:
    page = site.page()
    answer = page.goto(f"{ORIGIN}/study/{site.attack.key.hex()}")
    assert answer is not None
    assert page.url == f"{ORIGIN}/login"
    assert answer.headers["strict-transport-security"].startswith("max-age=")
    assert answer.headers["server"].startswith("nginx")  # and nothing of the console's own
    page.get_by_role("link", name="Log in with your organisation").click()
    page.wait_for_url(f"{ORIGIN}/")
    assert cookies(page) == {"__Host-veilsum": (True, True, "Strict", "/")}
    page.get_by_role("link", name=site.attack.study.name).click()
    page.get_by_label("Reason").fill("covered by the vote")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("covered by the vote (Olga Maier)")).to_be_visible()
    (entry,) = site.attack.bed.sites["a"].ledger.entries(kind=Kind.APPROVAL)
    assert entry.detail["operator"] == "Olga Maier"
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url(f"{ORIGIN}/login")
    assert cookies(page) == {}


@pytest.mark.system
def test_a_link_and_a_large_export_come_through(site: Site) -> None:
    token = site.links.add(person("Pia Berg", [PersonRole.OFFICER]))
    page = site.page()
    page.goto(f"{ORIGIN}/enter?token={token}")
    page.get_by_role("button", name="Log in as Pia Berg").click()
    page.wait_for_url(f"{ORIGIN}/")
    page.get_by_role("link", name="Ledger").click()
    export = {"name": "export.jsonl", "mimeType": "application/json", "buffer": b"junk " * 2_000_000}
    page.get_by_label("Export, JSON Lines").set_input_files(export)  # type: ignore[arg-type]
    page.get_by_role("button", name="Verify against it").click()
    expect(page.get_by_role("heading", name="Not done")).to_be_visible()
    expect(page.get_by_text("413")).to_have_count(0)
    expect(page.get_by_text("Pia Berg")).to_be_visible()  # the console's own page, to whoever is logged in


@pytest.mark.system
def test_the_proxys_word_counts_for_nothing_but_the_host(site: Site) -> None:
    """Names in headers log nobody in, another host is sent away, and a form of another origin counts for nothing."""
    with httpx.Client(base_url=f"https://127.0.0.1:{site.port}", verify=False, timeout=PATIENCE) as client:  # noqa: S501
        names = {"X-Forwarded-User": "Olga Maier", "Remote-User": "Olga Maier", "X-Forwarded-Host": HOST}
        answer = client.get("/", headers={"Host": HOST, **names})
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        answer = client.get("/login", headers={"Host": "evil.example", **names})
        assert (answer.status_code, ORIGIN in answer.text) == (421, True)
        token = site.links.add(person("Pia Berg", [PersonRole.OFFICER]))
        sent = {"Host": HOST, "Origin": "https://evil.example"}
        assert client.post("/enter", data={"token": token}, headers=sent).status_code == 403
        answer = client.post("/enter", data={"token": token}, headers={"Host": HOST, "Origin": ORIGIN})
        assert answer.status_code == 303
        assert "secure" in answer.headers["set-cookie"].lower()
