"""Consoles for tests: asked in this process, as the browser of somebody who logged in by a one-time link."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lxml import html

from support.hostile import Adversary
from support.processes import write_participant
from veilsum.local.federation import as_directive
from veilsum_node.web.application import Console
from veilsum_node.web.people import PersonRole, person
from veilsum_node.web.settings import ConsoleSettings
from veilsum_participant.console.run import site_console
from veilsum_proto import federation_pb2 as pb

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it would rather have a package that is not released widely yet
    from starlette.testclient import TestClient

URL = "http://127.0.0.1:8470"


class Seconds:
    """A clock of sessions that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Visitor:
    """Somebody before a console."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.client = TestClient(console.app, base_url=console.url, follow_redirects=False)

    def log_in(self, name: str = "Olga Maier", role: str = "officer") -> Visitor:
        """By a one-time link."""
        token = self.console.links.add(person(name, [PersonRole(role)]))
        self.client.get("/enter", params={"token": token}).raise_for_status()
        assert self.client.post("/enter", data={"token": token}).status_code == 303
        return self

    def page(self, path: str, **query: Any) -> Any:
        """A page as a tree; it must be there."""
        answer = self.client.get(path, params=query or None)
        assert answer.status_code == 200, answer.text
        return html.fromstring(answer.text)

    def text(self, path: str, **query: Any) -> str:
        """What a page says, with single spaces."""
        return words(self.page(path, **query))

    @property
    def csrf(self) -> str:
        """The session's token, as any page has it."""
        return str(self.page("/").xpath("//input[@name='csrf']/@value")[0])

    def send(self, path: str, **form: str) -> Any:
        """A form of the session's; returns the answer."""
        return self.client.post(path, data={"csrf": self.csrf, **form}, headers={"Origin": self.console.url})

    def decide(self, study: bytes, decision: str, reason: str = "") -> Any:
        """Open a study's page and decide."""
        place = f"/study/{study.hex()}"
        (shown,) = self.page(place).xpath("//input[@name='shown']/@value")
        return self.send(place, decision=decision, reason=reason, shown=str(shown))


def words(tree: Any) -> str:
    """The text of a page, with single spaces."""
    return re.sub(r"\s+", " ", str(tree.text_content())).strip()


def console_of(attack: Adversary, site: str = "a", clock: Any = None, **settings: Any) -> Console:
    """The console of a site of a bed, whose ``participant.toml`` is written for it."""
    write_participant(attack.bed, site, "localhost:1", (3.0, 1e-5))
    path: Path = attack.bed.directory(site) / "participant.toml"
    return site_console(path, ConsoleSettings(**settings), URL, clock=clock or Seconds())


def ask(attack: Adversary, site: str = "a") -> None:
    """Let a study come to a site."""
    channel = attack.channels[site]
    channel.objects = {pb.OBJECT_KIND_STUDY: attack.study_object()}
    attack.cores[site].handle(as_directive(pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL, study=attack.key)), channel)


def scripts(trees: Iterable[Any]) -> list[str]:
    """Everything in pages that would run: scripts that are not the console's own, handlers, and addresses of scripts."""
    found: list[str] = []
    for tree in trees:
        for item in tree.iter():
            if not isinstance(item.tag, str):
                continue
            if item.tag == "script" and (item.get("src") != "/static/htmx.min.js" or item.text):
                found.append(html.tostring(item, encoding="unicode"))
            if item.tag in ("iframe", "object", "embed", "base"):
                found.append(item.tag)
            found += [f"{item.tag} {key}" for key in item.keys() if key.startswith("on") or key == "style"]  # noqa: SIM118
            found += [
                value for key, value in item.items() if key in ("href", "src") and value.lower().startswith("javascript")
            ]
    return found
