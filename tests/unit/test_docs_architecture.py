"""The pages on states and on methods' files say what the code has."""

from __future__ import annotations

import re
import sys
from enum import StrEnum

import pytest
from sqlalchemy import MetaData

import veilsum_coordinator.storage.fence
import veilsum_coordinator.storage.journal  # noqa: F401  makes all tables
import veilsum_participant.store.kept
import veilsum_participant.store.mirrors  # noqa: F401
from support.pages import ROOT
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.storage.long_values import METADATA as COORDINATOR
from veilsum_participant.store.attempts import AttemptState
from veilsum_participant.store.pending import PendingState
from veilsum_participant.store.populations import COHORTS
from veilsum_participant.store.studies import StudyState
from veilsum_participant.store.tables import METADATA as PARTICIPANT
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.queries.kinds import KINDS

sys.path.insert(0, str(ROOT))
from reached import closure, settings

STATES = (ROOT / "docs" / "states.md").read_text()
METHODS_PAGE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES = 10
"""Of the coordinator, for one method."""


def tables(page: str) -> list[list[list[str]]]:
    """Rows of every table of a page, the heading's among them, as cells."""
    blocks = re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE)
    return [[[cell.strip() for cell in row.strip("|").split(" | ")] for row in block.splitlines()] for block in blocks]


def states(table: list[list[str]]) -> set[str]:
    """What a table of transitions goes from and to."""
    return {name for row in table[2:] for cell in row[:2] for name in re.findall(r"`([a-z]+)`", cell)}


@pytest.mark.parametrize("kind", [PendingState, StudyState, AttemptState, StudyPhase, RoundPhase])
def test_every_state_is_reached_by_a_transition(kind: type[StrEnum]) -> None:
    known = {state.value for state in kind}
    found = [states(table) for table in tables(STATES) if table[0][:2] == ["from", "to"]]
    assert known in found


@pytest.mark.parametrize("metadata", [PARTICIPANT, COORDINATOR], ids=["participant", "coordinator"])
def test_every_table_is_named(metadata: MetaData) -> None:
    assert COHORTS.name in STATES
    pieces = {name for name in metadata.tables if name.endswith(("_piece", "_pieces", "_version"))}
    assert {name for name in metadata.tables if f"`{name}`" not in STATES} <= pieces


def test_a_method_is_read_in_the_files_that_its_row_names() -> None:
    (table,) = (table for table in tables(METHODS_PAGE) if table[0][0] == "method")
    rows = {re.findall(r"`([^`]+)`", row[0])[0]: row for row in table[2:]}
    assert list(rows) == list(METHODS) or set(rows) == set(METHODS)
    for name, row in rows.items():
        module = type(METHODS[name]).__module__
        assert row[1] == f"`{module.rpartition('.')[2]}.py`", name
        seen, waiting = set[str](), [module]
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += [other for other in _own(one) if other not in seen]
        parts = {one.rpartition(".")[2] for one in seen - {module}}
        assert len(seen) <= MOST_FILES, (name, sorted(seen))
        assert {*re.findall(r"`(\w+)`", row[2]), "base", "federation"} == parts, name
        assert {*re.findall(r"`([a-z-]+)`", row[3])} <= set(TASKS), name
        for formulas in re.findall(r"`(\w+)`", row[4]):
            assert (ROOT / "aggregation" / "veilsum_aggregation" / f"{formulas}.py").exists(), name


def test_participant_has_rooms_and_at_most_four_loose_modules() -> None:
    room = ROOT / "participant" / "veilsum_participant"
    assert len([file for file in room.glob("*.py") if file.name != "__init__.py"]) <= 4
    named = re.findall(r"participant<br>([\w, ]+)", METHODS_PAGE)[0].split(", ")
    assert {*named, "migrations"} == {file.parent.name for file in room.glob("*/__init__.py")}


def _own(module: str) -> list[str]:
    """Modules of the coordinator's methods and parts that a module imports itself."""
    rooms = ("veilsum_coordinator.parts.", "veilsum_coordinator.methods.")
    text = (ROOT / "coordinator" / (module.replace(".", "/") + ".py")).read_text()
    return [
        name for name in re.findall(r"^ *from (veilsum_coordinator\.\S+) import", text, re.MULTILINE) if name.startswith(rooms)
    ]


def test_the_closure_follows_what_a_package_gives_lazily() -> None:
    held = closure(["veilsum_participant.cli"])
    assert {"veilsum_privacy.ledger.export", "veilsum_privacy.dossier.page", "veilsum_participant.session.client"} <= set(held)
    assert not any(name.startswith(("veilsum_coordinator", "veilsum.", "veilsum_deploy")) for name in held)
    assert "veilsum_participant" not in closure(["veilsum_aggregation.figures"])
    with pytest.raises(ValueError, match="no such modules: veilsum_nowhere"):
        closure(["veilsum_nowhere"])


@pytest.mark.parametrize("distribution", ["participant", "coordinator", "analyst"])
def test_a_wheel_that_has_a_registry_has_every_part_that_it_names(distribution: str) -> None:
    """They are loaded by their names, so that no import says that they are needed."""
    held = closure(settings(distribution)["roots"], settings(distribution).get("without", ()))
    for registry in (TASKS, KINDS, METHODS):
        parts = {type(part).__module__ if registry is METHODS else part.__module__ for part in registry.values()}
        (package,) = {part.rpartition(".")[0] for part in parts}
        assert package not in held or parts <= held.keys()
    assert TASKS["tables"].__module__ in held


def test_no_wheel_has_what_its_party_never_does() -> None:
    held = {
        name: closure(settings(name)["roots"], settings(name).get("without", ())) for name in ("participant", "coordinator")
    }
    authority = {f"veilsum_node.identity.{name}" for name in ("authority", "kit", "record", "releases")}
    assert not held["participant"].keys() & {*authority, "veilsum_aggregation.newton"}
    assert not [name for name in held["coordinator"] if name.startswith("veilsum_participant")]
