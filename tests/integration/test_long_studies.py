"""What a step asks of the parties' databases does not depend on how many steps, or studies, lie behind it: counted, not timed.
Of a step that is over the coordinator keeps as much for many members as for few, but for a pointer to each one's name.

SQLite says how many instructions each statement takes. What grows in a row is written again and again, so the bytes that
statements carry are counted too.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from sqlalchemy import Engine, event

from support.calls import then
from support.federation import make_bed, make_clusters, make_request, schema_of
from veilsum_coordinator.service.runner import run_study

WIDTH, CLASSES, SITES = 4, 2, "abc"
EARLY, LATE, SPAN = 4, 24, 4
"""Compared are SPAN steps after so many."""

TALLY = "SELECT participant_attempt.label, participant_attempt.state, count(*)"
TALLIED = 10
"""Instructions for each attempt that lies behind, in this statement alone: it counts a study's attempts along an index."""


@dataclass
class Stretch:
    """What the statements of some steps took, by their text."""

    instructions: Counter[str] = field(default_factory=Counter)
    times: Counter[str] = field(default_factory=Counter)
    carried: int = 0  # bytes


class Meter:
    """Counts what all databases of this process do.

    Attributes:
        stretches: what SPAN steps took, after EARLY ones and after LATE ones.
    """

    def __init__(self) -> None:
        self.stretches: list[Stretch] = []
        self._passed, self._present, self._statement = 0, Stretch(), ""

    def passed(self) -> None:
        """One more step is over."""
        self._passed += 1
        if self._passed in (EARLY + SPAN, LATE + SPAN):
            self.stretches.append(self._present)
        if self._passed in (EARLY, EARLY + SPAN, LATE, LATE + SPAN):
            self._present = Stretch()

    def connected(self, driver: Any, _: object) -> None:
        driver.set_progress_handler(self._instruction, 1)

    def executes(self, _connection: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        self._statement = statement
        self._present.times[statement] += 1
        rows = values if isinstance(values, list) else [values]
        self._present.carried += sum(len(value) for row in rows for value in row if isinstance(value, bytes | str))

    def _instruction(self) -> int:
        self._present.instructions[self._statement] += 1
        return 0


@pytest.fixture
def meter() -> Iterator[Meter]:
    made = Meter()
    hooks = {"connect": made.connected, "before_cursor_execute": made.executes}
    for name, hook in hooks.items():
        event.listen(Engine, name, hook)
    yield made
    for name, hook in hooks.items():
        event.remove(Engine, name, hook)


def assert_alike(early: Stretch, late: Stretch, tallied: int) -> None:
    assert sum(early.instructions.values()) > 1000 * SPAN
    assert late.times == early.times
    grown = {statement: count - early.instructions[statement] for statement, count in late.instructions.items()}
    tally = sum(grown.pop(statement) for statement in list(grown) if statement.startswith(TALLY))
    most = (LATE - EARLY) * SPAN  # an index's last page ends here or there; a row that is read takes several instructions
    assert {statement: more for statement, more in grown.items() if more >= most} == {}
    assert tally <= TALLIED * tallied
    assert late.carried <= 1.01 * early.carried  # numbers of more digits; 32 bytes for each step behind it would be 2%


@pytest.mark.parametrize(
    ("method", "epsilon", "parameters"),
    [
        ("fedsgd", 3.0, {"steps": LATE + SPAN, "centre": False}),
        ("fedavg", 20.0, {
            "model": {"name": "mlp", "options": {"hidden": 5}}, "rounds": LATE + SPAN, "local_steps": 1,
            "objective": {"name": "dyn"},
        }),
    ],
)  # fmt: skip
def test_a_step_asks_no_more_of_databases_than_those_before_it(
    meter: Meter, tmp_path: Path, method: str, epsilon: float, parameters: dict[str, Any]
) -> None:
    bed = make_bed(tmp_path, make_clusters(SITES, WIDTH, CLASSES), disclosures=("joint", "per-site"))
    noise = {"noise": "local"} if method == "fedavg" else {}
    request = make_request(schema_of(WIDTH, CLASSES, 200), method, epsilon, **noise)
    key = bed.local.submit(bed.compile(request.model_copy(update={"parameters": parameters})), bed.analyst)
    federation = bed.local.prepare(key)
    federation.sum = then(federation.sum, meter.passed)  # type: ignore[method-assign]
    run_study(bed.hub, key, federation, tmp_path / "results")
    assert bed.hub.shown.status(key).phase == "finished", bed.hub.shown.status(key).reason
    early, late = meter.stretches
    assert_alike(early, late, (LATE - EARLY) * SPAN * len(SITES))


def test_a_study_asks_no_more_of_databases_than_those_before_it(meter: Meter, tmp_path: Path) -> None:
    bed = make_bed(tmp_path, make_clusters(SITES, WIDTH, CLASSES))
    local = bed.local
    for _ in range(LATE + SPAN):
        local.run(bed.compile(make_request(schema_of(WIDTH, CLASSES, 200), epsilon=0.01)), bed.analyst, tmp_path / "results")
        meter.passed()
    early, late = meter.stretches
    assert_alike(early, late, 0)


def reached(roots: Iterable[object]) -> dict[int, int]:
    """Sizes in bytes of all objects that can be reached, by their address."""
    found: dict[int, int] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) not in found and not isinstance(item, type | ModuleType | FunctionType):
            found[id(item)] = sys.getsizeof(item)
            waiting += gc.get_referents(item)
    return found


def kept_of_a_step(directory: Path, sites: str) -> int:
    """Bytes that a coordinator keeps of one step alone, once it is over."""
    bed = make_bed(directory, make_clusters(sites, WIDTH, CLASSES))
    parameters = {"steps": 6, "centre": False}
    request = make_request(schema_of(WIDTH, CLASSES, 200), "fedsgd", 3.0).model_copy(update={"parameters": parameters})
    federation = bed.local.prepare(bed.local.submit(bed.compile(request), bed.analyst))
    asked, rounds, sizes = federation.sum, federation._machine.rounds, list[int]()

    def measured(*arguments: Any, **keywords: Any) -> Any:
        release = asked(*arguments, **keywords)
        known = reached(rounds[:-1])
        sizes.append(sum(size for address, size in reached(rounds).items() if address not in known))
        return release

    federation.sum = measured  # type: ignore[method-assign]
    run_study(bed.hub, federation._machine.digest, federation, directory / "results")
    assert len(sizes) == 6
    return min(sizes[1:])


def test_of_each_member_of_a_step_no_more_than_a_pointer_is_kept(tmp_path: Path) -> None:
    few, many = (kept_of_a_step(tmp_path / sites, sites) for sites in ("abc", "abcdefghij"))
    assert 300 < few < 3000
    assert many <= few + 8 * 7  # a pointer to each further member's name
