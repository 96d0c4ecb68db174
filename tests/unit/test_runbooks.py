"""Runbooks: one for each alert, with the same parts; links lead somewhere, and the commands in them exist with options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from veilsum_deploy.cli import app

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "runbooks"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")
ALL = sorted(FOLDER.glob("*.md"))
PARTS = ["What it means", "How to look", "What to do", "When it is harmless", "Who to tell"]


def alerts() -> dict[str, set[str]]:
    """Severities of every alert."""
    found: dict[str, set[str]] = {}
    for group in yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules" / "veilsum.yml").read_text())["groups"]:
        for rule in group["rules"]:
            if "alert" in rule:
                found.setdefault(rule["alert"], set()).add(rule["labels"]["severity"])
    return found


def title(path: Path) -> str:
    """The page's first line, which is the alert's name."""
    return path.read_text().splitlines()[0].removeprefix("# ")


def commands(text: str) -> list[list[str]]:
    """Every command of veilsum in a page, in a block or in a line, as words; a comment after it is left out."""
    text = re.sub(r"\s*\\\n\s*", " ", text)
    blocks = re.findall(r"^ {4,}(veilsum .*)$", text, flags=re.MULTILINE)
    spans = re.findall(r"`(veilsum [^`]*)`", re.sub(r"\s+", " ", text))
    return [shlex.split(command, comments=True)[1:] for command in (*blocks, *spans)]


def missing(words: list[str]) -> str:
    """What of a command does not exist; empty if all of it does."""
    command: Any = typer.main.get_command(app)
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        found = command.get_command(typer.Context(command), rest[0])
        if found is None:
            return f"the command {rest[0]}"
        command = found
        rest.pop(0)
    if isinstance(command, TyperGroup) and not all(word.startswith("-") for word in rest):
        return "a command"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known.add("--help")
    wrong = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
    return ", ".join(f"the option {word}" for word in wrong)


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    titles = [title(path) for path in PAGES]
    assert sorted(titles) == sorted(alerts())
    for path in PAGES:
        words = re.findall(r"[A-Z][a-z]*|\d+", title(path).removeprefix("Veilsum"))
        assert path.stem == "-".join(words).lower()


def test_the_list_has_every_page_with_its_severities() -> None:
    listed = (FOLDER / "README.md").read_text()
    rows = re.findall(r"^\| \[(\w+)\]\(([\w-]+\.md)\) \| ([a-z, ]+) \|", listed, flags=re.MULTILINE)
    assert {name: set(severities.split(", ")) for name, _, severities in rows} == alerts()
    assert {(name, page) for name, page, _ in rows} == {(title(path), path.name) for path in PAGES}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_every_part(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == PARTS
    for severity in alerts()[title(path)]:
        assert severity in text.split("## ")[0].lower()


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        file, _, anchor = target.partition("#")
        place = path.parent / file if file else path
        assert place.is_file(), target
        headings = re.findall(r"^#+ (.*)$", place.read_text(), flags=re.MULTILINE)
        headings = [heading.lower().replace(" ", "-") for heading in headings]
        assert not anchor or anchor in headings, target


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_commands_exist(path: Path) -> None:
    found = commands(path.read_text())
    assert found or path.name == "README.md"
    for words in found:
        assert missing(words) == "", " ".join(words)


def test_a_command_that_is_none_is_found() -> None:
    assert missing(["ledger", "mend"]) == "the command mend"
    assert missing(["ledger", "verify", "--loudly"]) == "the option --loudly"
    assert missing(["ledger", "verify", "LEDGER", "--head=ab"]) == ""
    assert missing(["--version"]) == ""
    assert commands("`veilsum study\nlist`") == [["study", "list"]]
    assert commands("    veilsum ledger verify \\\n        --head x   # why\n") == [["ledger", "verify", "--head", "x"]]
