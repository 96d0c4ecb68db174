"""The guides of docs/ are walked through: every command that they print, against one federation of real processes.

Each party's page is followed in its own directories, in the order in which the parties would: the coordinator's operator, a
hospital, a scientist, the hospital's privacy officer; then what hospital and operator do with a federation that has run. Host
names and ports of the pages are this machine's; nothing else is changed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.guides import Walk, environment_for
from support.network import wait_for
from support.postgres import server
from support.processes import lasting_ports
from support.tools import give_up
from veilsum_node.identity import Authority, Role
from veilsum_node.identity.files import read_file
from veilsum_node.identity.provision import install, prepare

DOCS = Path(__file__).parents[2] / "docs"
OPERATOR, HOSPITAL = DOCS / "deployment" / "operator.md", DOCS / "deployment" / "hospital.md"
SCIENTIST, OFFICER = DOCS / "scientist.md", DOCS / "privacy-officer.md"
GUIDES = (OPERATOR, HOSPITAL, SCIENTIST, OFFICER)
OTHERS = ("south", "west")
PASSPHRASE = b"correct horse battery staple and four more"
PROGRAMS = ("curl", "openssl")


class Federation:
    """What others do beside the reader of a guide."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        database = server().new_database()
        coordinator, metrics, site_metrics = lasting_ports(3)
        replaced = {
            "postgresql://veilsum@database.example/veilsum": database,
            "coordinator.example": "localhost",
            "0.0.0.0:": "localhost:",
            ":8461": f":{coordinator}",
            ":9464": f":{metrics}",
            ":9465": f":{site_metrics}",
            "<fingerprint of south>": lambda: self.fingerprint("south"),
            "<fingerprint of west>": lambda: self.fingerprint("west"),
            "--head HEAD": lambda: f"--head {self.head('north/signed.json')}",
        }
        stages = {
            "coordinator is ready": lambda: self.logged("coordinator/coordinator.log", "listens on"),
            "requests of two sites": self.request,
            "empty place for the hospital": lambda: None,
            "authority signs north": lambda: self.sign("north", Role.PARTICIPANT),
            "authority renews north": self.renew_north,
            "coordinator takes its renewed certificate": lambda: self.logged(
                "coordinator/coordinator.log", "renewed certificate with the same key in use"
            ),
            "authority signs alice": lambda: self.sign("alice", Role.ANALYST),
            "records of north": lambda: self.write_records("north", 1),
            "north is connected": lambda: self.logged("coordinator/coordinator.log", "north opened its session"),
            "other sites": self.start_others,
        }
        environment = environment_for(directory, Path(sys.executable).parent, server().programs)
        self.walk = Walk(directory, environment=environment, replaced=replaced, stages=stages)

    def _authority(self) -> Authority:
        return Authority.load(self.directory / "authority", lambda: int(time.time()), passphrase=PASSPHRASE)

    def fingerprint(self, name: str) -> str:
        """Of the key that the authority certified last under a name."""
        return next(entry.fingerprint for entry in reversed(self._authority().issued()) if entry.name == name)

    def head(self, twin: str) -> str:
        """The ledger's head that a dossier names."""
        return str(json.loads((self.directory / twin).read_text())["proof"]["head"])

    def logged(self, log: str, text: str) -> None:
        """Wait until a log holds a text."""
        path = self.directory / log

        def holds() -> bool:
            self.walk.check_running()
            return path.exists() and text in path.read_text()

        wait_for(holds, f"{text!r} in {log}")

    def request(self) -> None:
        """Two sites make their keys and send their requests."""
        (self.directory / "requests").mkdir()
        for name in OTHERS:
            party = prepare(self.directory / name, name, Role.PARTICIPANT)
            shutil.copy(party.request, self.directory / "requests" / f"{name}.csr")

    def sign(self, name: str, role: Role) -> None:
        """The authority answers a request, or renews what it answered."""
        authority, identity = self._authority(), self.directory / name / "identity"
        certificate = authority.sign(read_file(identity / "request.csr", "request"), role=role, name=name)
        install(identity, certificate, authority.certificate_pem)

    def renew_north(self) -> None:
        """The authority signs the hospital's request again, and the running participant finds the answer."""
        self.sign("north", Role.PARTICIPANT)
        self.logged("north/participant.log", "renewed certificate taken")

    def write_records(self, name: str, seed: int) -> None:
        """Made-up records of a site, as the guides' schema describes them."""
        random, path = np.random.default_rng(seed), self.directory / name / "data" / "records.csv"
        path.parent.mkdir()
        ill = random.random(240) < 0.5
        age = np.clip(random.normal(52 + 14 * ill, 9), 18, 100)
        pressure = np.clip(random.normal(128 + 22 * ill, 12), 80, 220)
        lines = [f"{a:.0f},{p:.0f},{int(d)}" for a, p, d in zip(age, pressure, ill, strict=True)]
        path.write_text("\n".join(["age,pressure,disease", *lines]) + "\n")
        shutil.copy(path, path.with_name("new.csv"))

    def start_others(self) -> None:
        """The other sites do what the hospital's guide says."""
        template = (self.directory / "north" / "participant.toml").read_text()
        for seed, name in enumerate(OTHERS, 2):
            identity = self.directory / name / "identity"
            for file in ("certificate.pem", "authority.pem"):
                shutil.copy(self.directory / "answers" / name / file, identity / file)
            self.write_records(name, seed)
            text = template.replace(f'{name} = "{self.fingerprint(name)}"', f'north = "{self.fingerprint("north")}"')
            settings, _, _ = text.partition("[metrics]")
            (self.directory / name / "participant.toml").write_text(f'{settings}[log]\nfile = "participant.log"\n')
            self.walk.start(name, f"veilsum participant start --config {name}/participant.toml", self.directory)
        for name in OTHERS:
            self.logged("coordinator/coordinator.log", f"{name} opened its session")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        give_up(f"the guides also use {', '.join(missing)}: install what is missing")
    made = Federation(tmp_path)
    try:
        yield made
    finally:
        made.walk.close()


@pytest.mark.system
def test_the_guides_do_what_they_say(federation: Federation) -> None:
    walks = [federation.walk.walk(page) for page in (OPERATOR, HOSPITAL, SCIENTIST, OFFICER)]
    for walk in (*walks, walks[1], walks[0]):  # the hospital's and the operator's pages pause until a study has run
        next(walk, None)
    assert all(next(walk, "over") == "over" for walk in walks), "a guide pauses more often than this test goes on"
    for where, command, seconds in federation.walk.ran:
        print(f"{seconds:6.2f} s  {where}  {command}")
    ran = {where.partition(":")[0] for where, _, _ in federation.walk.ran}
    assert ran == {page.name for page in GUIDES}
