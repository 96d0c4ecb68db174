"""The model of a round of protocol 6, searched whole by SPIN: clean as it is; each planted fault breaks its own property."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.tools import give_up, need_tool

MODEL = Path(__file__).with_name("one_time_sum.pml")

pytestmark = pytest.mark.system


@dataclass(frozen=True)
class Search:
    """What a search of all states came to."""

    errors: int
    states: int
    violated: str
    whole: bool


def search(folder: Path, *options: str) -> Search:
    """Search all states of the model under these definitions."""
    spin, compiler = need_tool("spin"), shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        give_up("SPIN's searches are compiled, and there is no C compiler on PATH")
    defined = [f"-D{option}" for option in options]
    subprocess.run([str(spin), *defined, "-a", str(MODEL)], cwd=folder, check=True, capture_output=True)
    subprocess.run([compiler, "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], cwd=folder, check=True)
    found = subprocess.run(["./pan", "-m1000000", "-w24"], cwd=folder, capture_output=True, text=True)
    text = found.stdout
    errors, states = re.search(r"errors: (\d+)", text), re.search(r"(\d+) states, stored", text)
    assert errors, text + found.stderr
    assert states, text + found.stderr
    violated = re.search(r"assertion violated (.*) \(at depth", text)
    whole = "Search not completed" not in text and "max search depth too small" not in text
    return Search(int(errors[1]), int(states[1]), "" if violated is None else violated[1], whole)


@pytest.mark.parametrize(
    ("options", "states"),
    [
        (("ATTEMPTS=1",), 30_218),
        (("ATTEMPTS=1", "COLLUDER"), 2_080),
        (("ATTEMPTS=2", "COLLUDER"), 473_809),
        (("ATTEMPTS=2", "COARSE", "SUMS=1"), 5_423_647),
    ],
    ids=["fine", "colluder", "colluder-twice", "coarse"],
)
def test_no_state_breaks_a_promise(tmp_path: Path, options: tuple[str, ...], states: int) -> None:
    """All states, of one attempt with every write and crash by itself, and of two attempts in two rounds and two cohorts."""
    found = search(tmp_path, *options)
    assert (found.errors, found.violated, found.whole) == (0, "", True)
    assert found.states > states // 2, "as SPIN 6.5.2 counts them; another version may join steps that this one tells apart"


PAYLOAD = "!(left[me].payload[a])"
FAULTS = {
    1: (("ATTEMPTS=1",), PAYLOAD),
    2: (("ATTEMPTS=1",), ".paid"),
    3: (("ATTEMPTS=2", "COARSE", "SUMS=1"), ".round!="),
    4: (("ATTEMPTS=1",), "left[me].answer[a]=="),
    5: (("ATTEMPTS=1",), ".paid"),
    6: (("ATTEMPTS=2",), PAYLOAD),
    7: (("ATTEMPTS=2",), "left[me].key=="),
    8: (("ATTEMPTS=1",), "good"),
    9: (("ATTEMPTS=1", "COLLUDER"), "9!=9"),
}
"""Under which definitions a planted fault is sought, and what the assertion that it breaks speaks of."""


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_found(tmp_path: Path, fault: int) -> None:
    options, speaks = FAULTS[fault]
    found = search(tmp_path, *options, f"FAULT={fault}")
    assert found.errors == 1
    assert speaks in found.violated.replace(" ", "")
