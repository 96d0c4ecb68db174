"""docs/architecture.md draws the house that stands: its rooms, no others, and modules that exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = ("aggregation", "coordinator", "deploy", "node", "participant", "privacy")
WORDS_OF_THE_API = {"Federation", "Study"}
"""What an analyst's names stand for inside: the rounds of a study, and its signed form."""

SCHEMA_HISTORY = "migrations"
"""A folder of every database, and no room."""


def rooms(package: str) -> set[str]:
    """Packages within a package."""
    found = (ROOT / package / f"veilsum_{package}").glob("*/__init__.py")
    return {file.parent.name for file in found} - {SCHEMA_HISTORY}


def drawn(package: str) -> set[str]:
    """What the first diagram says in a package's box."""
    (box,) = re.findall(rf'^    {package}\["{package}<br>(.*)"\]$', PAGE, re.MULTILINE)
    return set(re.split(r", ?(?:<br>)?", box))


@pytest.mark.parametrize("package", ["privacy", "coordinator", "participant"])
def test_the_diagram_has_the_rooms_and_no_others(package: str) -> None:
    assert drawn(package) == rooms(package)


def test_the_diagram_has_the_rooms_of_node_beside_single_modules() -> None:
    assert rooms("node") <= drawn("node")


def test_the_table_of_privacy_asks_a_question_of_every_room() -> None:
    table = PAGE.partition("### Inside `privacy`")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)/`", table)) == rooms("privacy")


def test_modules_that_the_ways_name_lie_in_the_room_named_before() -> None:
    named = [
        ROOT / folder / file
        for folder, files in re.findall(r"`([a-z]+/[a-z_/]+)` \(((?:`[\w/]+\.py`[^()]*)+)\)", PAGE)
        for file in re.findall(r"`([\w/]+\.py)`", files)
    ]
    assert len(named) > 12
    assert [str(path.relative_to(ROOT)) for path in named if not path.is_file()] == []


def test_a_class_has_a_name_that_no_other_has() -> None:
    names = Counter(
        node.name
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    )
    assert names["DatasetSchema"] == 1
    assert {name for name, count in names.items() if count > 1} == WORDS_OF_THE_API
