"""A federation whose sites take their pins from the authority's directory: real processes, and operators' own commands."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.federation import make_data, make_request, schema_of
from support.forked import ForkedCommand
from support.network import PATIENCE, wait_for
from support.processes import Processes, write_participant
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.identity import Authority, Role, load_credentials
from veilsum_node.identity.files import read_file
from veilsum_node.identity.provision import install, prepare
from veilsum_participant.settings.config import Policy
from veilsum_privacy.ledger.entries import Kind

NAMES = "abc"
BUDGET = (None, 1e-5)


def ended(place: Path, *arguments: object) -> tuple[int, str]:
    """The exit status of a command and what it prints; ``place`` is where its output is kept."""
    log = place / "command.log"
    log.unlink(missing_ok=True)
    status = ForkedCommand([str(argument) for argument in arguments], log, {}).wait(PATIENCE)
    return status, log.read_text()


class Federation(Processes):
    """Processes whose sites name the directory; nobody has confirmed it yet."""

    def __init__(self, place: Path) -> None:
        self.file = place / "directory.json"
        super().__init__(place / "kit", make_data(NAMES), waits=Waits(), budget=BUDGET, max_peer_streams=16)
        self.policy = Policy(**{**self.policy.model_dump(exclude_none=True), "trusted": {}, "directory": self.file})
        for name in self.names:
            self.write(name)

    def write(self, name: str) -> None:
        """A site's configuration."""
        write_participant(self, name, self.proxies[name].address, BUDGET)

    def site(self, name: str, *arguments: object, status: int = 0) -> str:
        """Run `veilsum participant directory` at a site."""
        config = self.directory(name) / "participant.toml"
        return self.run("participant", "directory", *arguments, "--config", config, status=status)

    def run(self, *arguments: object, status: int = 0) -> str:
        """What a command prints."""
        found, said = ended(self.file.parent, *arguments)
        assert found == status, said
        return said

    def sign(self, *arguments: object) -> dict[str, Any]:
        """The authority's next directory, sent to all."""
        shown = self.run("federation", "directory", self.kit.authority, "--out", self.file, *arguments, "--json")
        return dict(json.loads(shown))

    def words(self, name: str) -> str:
        return " ".join(json.loads(self.site(name, "show", "--json"))["words"])

    def refused_start(self, name: str) -> str:
        """Start a participant that stops by itself; what it says."""
        process = self.launch("participant", self.directory(name))
        wait_for(lambda: not process.alive, "the participant's end")
        assert process.status == 2
        return process.log.read_text()


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    federation = Federation(tmp_path)
    try:
        yield federation
    finally:
        federation.stop()


@pytest.mark.system  # the directory and its pins in one process by default, in test_directory.py
def test_pins_from_a_directory(federation: Federation, tmp_path: Path) -> None:
    """Unconfirmed it is refused; confirmed it bears distributed noise; a key that the authority swaps alone counts for
    nothing; a new version shows the change and is refused until it is confirmed."""
    request = make_request(schema_of(2))
    assert "does not exist" in federation.refused_start("a")
    signed = federation.sign()
    assert (signed["version"], signed["participants"], signed["analysts"]) == (1, list(NAMES), ["analyst"])
    assert "was not confirmed" in federation.refused_start("a")

    heard = {name: federation.words(name) for name in NAMES}
    assert len(set(heard.values())) == 1
    assert "misheard" in federation.site("a", "confirm", "--words", " ".join(["zoo"] * 24), status=2)
    assert "words are missing" in federation.site("a", "confirm", status=2)
    for name, other in zip(NAMES, "bca", strict=True):
        federation.site(name, "confirm", "--words", heard[other])
    federation.heal()
    key = federation.submit(federation.compile(request))
    assert federation.await_end(key).phase == "finished"
    federation.audit(key, charged=NAMES, released=NAMES)

    # whoever holds the authority's key certifies another "c", and runs it without asking its configuration
    federation.participants["c"].stop()
    real = tmp_path / "real"
    shutil.move(federation.directory("c"), real)
    authority = Authority.load(federation.kit.authority, federation.clock)
    party = prepare(federation.directory("c"), "c", Role.PARTICIPANT)
    certificate = authority.sign(read_file(party.request, "request"), role=Role.PARTICIPANT, name="c", replace=True)
    install(party.identity, certificate, authority.certificate_pem)
    shutil.copy(real / "records.npz", federation.directory("c"))
    agreed = federation.policy
    pins = {name: load_credentials(federation.directory(name) / "identity", federation.clock()).identity.fingerprint
            for name in "ab"}  # fmt: skip
    federation.policy = Policy(**{**agreed.model_dump(exclude_none=True), "directory": None, "trusted": pins})
    federation.write("c")
    federation.policy = agreed
    federation.heal()
    key = federation.submit(federation.compile(request))
    status = federation.await_end(key)
    assert status.phase == "failed"
    for name in "ab":
        assert not [entry for entry in federation.entries(name, key) if entry.kind in (Kind.RESERVE, Kind.CHARGE)]
        assert "has a different key than the pinned one" in federation.participants[name].log.read_text()

    # the change is announced: everybody sees it, and confirms it anew
    assert federation.sign()["version"] == 2
    federation.participants["a"].stop()
    said = federation.refused_start("a")
    assert "(version 2) is not the one that was confirmed (version 1)" in said
    shown = json.loads(federation.site("a", "show", "--json"))
    (line,) = shown["changes"]
    assert line.startswith("changed: participant c, key ")
    assert shown["confirmed before"] == "version 1"
    assert "another directory" in federation.site("a", "confirm", "--words", heard["b"], status=2)
    federation.write("c")
    for name in NAMES:
        federation.participants[name].stop()
        federation.site(name, "confirm", "--words", federation.words("b" if name == "a" else "a"))
    federation.heal()
    key = federation.submit(federation.compile(request))
    assert federation.await_end(key).phase == "finished"
    federation.audit(key, charged=NAMES, released=NAMES)


def test_the_check_tells_of_the_directory(federation: Federation) -> None:
    config = federation.directory("a") / "participant.toml"

    def checked() -> dict[str, tuple[str, str]]:
        _, said = ended(federation.file.parent, "participant", "check", "--config", config, "--json")
        return {item["check"]: (item["status"], item["detail"]) for item in json.loads(said)["checks"]}

    federation.sign("--days", "20")
    found = checked()
    assert found["directory"] == ("failed", f"The directory {federation.file} was not confirmed.")
    assert "pinned peers" not in found  # why there are none is said once
    federation.site("a", "confirm", "--words", federation.words("b"))
    found = checked()
    status, detail = found["directory"]
    assert (status, "version 1, confirmed, until" in detail) == ("warning", True)
    assert re.search("in (19|20) days", detail), detail  # 20 within the second in which it was signed
    assert found["pinned peers"] == ("ok", "2: b, c")
