"""The command that plants faults: which ones it finds, and that what tests see, miss or never end on is told apart."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mutants.harmless import HARMLESS
from mutants.judges import ROOT, modules
from mutants.operators import find_mutants

SOURCE = '''
from __future__ import annotations

LIMIT: int = 3


def admits(rows: list[int], limit: int = LIMIT, *, strict: bool = False) -> bool:
    """Words, 7 < 8."""
    LOG.info("seen %d", len(rows))
    if strict and not rows:
        raise ValueError(f"{len(rows) + 1} is too few")
    taken = dict(first=min(rows[1:]), second=2)
    return sum(rows) <= limit
'''

EXPECTED = """
constant: 3 -> 4
constant: 3 -> 2
constant: False -> True
condition negated: strict and (not rows) -> not (strict and (not rows))
operand dropped: strict and (not rows) -> not rows
operand dropped: strict and (not rows) -> strict
sign dropped: not rows -> rows
statement dropped: raise ValueError(f'{len(rows) + 1} is too few') -> pass
argument dropped: dict(first=min(rows[1:]), second=2) -> dict(second=2)
argument dropped: dict(first=min(rows[1:]), second=2) -> dict(first=min(rows[1:]))
function: min(rows[1:]) -> max(rows[1:])
bound dropped: 1: -> :
constant: 1 -> 2
constant: 1 -> 0
constant: 2 -> 3
constant: 2 -> 1
value returned: return sum(rows) <= limit -> return True
value returned: return sum(rows) <= limit -> return False
comparison: sum(rows) <= limit -> sum(rows) < limit
"""


def test_faults_of_every_kind_and_none_in_words() -> None:
    _, found = find_mutants("a.py", SOURCE)
    assert [f"{mutant.kind}: {mutant.before} -> {mutant.after}" for mutant in found] == EXPECTED.strip().splitlines()
    assert {mutant.place for mutant in found} == {"", "admits"}
    assert len({mutant.name for mutant in found}) == len(found)


def test_every_module_and_its_judges_are_there() -> None:
    for path, judges in modules():
        assert find_mutants(path, (ROOT / path).read_text())[1], path
        for judge in judges:
            assert (ROOT / judge).is_file(), judge


@pytest.mark.system
def test_what_is_known_to_be_harmless_is_still_there() -> None:
    """A name holds the changed code: when that changes, the mutant is judged anew."""
    names = {mutant.name for path, _ in modules() for mutant in find_mutants(path, (ROOT / path).read_text())[1]}
    assert set(HARMLESS) <= names
    assert all(HARMLESS.values())


TOY = """
    from functools import cache

    @cache
    def remembered():
        return [value % 2 for value in range(4)]

    def whole(value, least=5 - 5):
        if value < least:
            raise ValueError
        return value + 1

    def idle(value):
        return value * 2

    def count(limit):
        number = 0
        while number < limit:
            number += 1
        return number
"""

TESTS = """
    import pytest
    from toy.calc import count, idle, remembered, whole

    def test_count():
        assert remembered()
        assert count(3) == 3

    def test_whole():
        assert idle(1)
        assert remembered() == [0, 1, 0, 1]
        assert whole(2) == 3
        with pytest.raises(ValueError):
            whole(-1)
"""

WHOLE, COUNT = "tests/test_calc.py::test_whole", "tests/test_calc.py::test_count"
ENDLESS = "number += 1 -> pass"
AT_IMPORT = "5 - 5 -> 5 + 5"
FOUND = {
    "value + 1 -> value - 1": ("test", WHOLE),
    "raise ValueError -> pass": ("test", WHOLE),
    "return number -> return None": ("test", COUNT),
    "value % 2 -> value // 2": ("test", WHOLE),
    "value * 2 -> value + 2": ("", ""),
    "value < least -> value <= least": ("", ""),
    ENDLESS: ("time", ""),
    AT_IMPORT: ("test", WHOLE),
}

RUN = """
    import json, sys, time
    from pathlib import Path
    from mutants.operators import find_mutants
    from mutants.running import Workshop

    root, path = Path.cwd(), "privacy/toy/calc.py"
    workshop = Workshop([path], ["tests/test_calc.py"], root, slack=6.0)
    found = {}
    for warm in (False, True):
        if warm:
            workshop.warm()
        for index, mutant in enumerate(find_mutants(path, (root / path).read_text())[1]):
            name = f"{mutant.before} -> {mutant.after}"
            if name in sys.argv[1:]:
                tree, every = find_mutants(path, (root / path).read_text())
                if trial := workshop.start(tree, every[index]):
                    while (verdict := trial.verdict()) is None:
                        time.sleep(0.01)
                    found.setdefault(name, []).append([verdict.found, verdict.by])
    lines = {name: sorted(line for _, line in each) for name, each in workshop.reach.lines.items()}
    print(json.dumps([found, lines]))
"""


@pytest.mark.system
def test_found_missed_and_endless(tmp_path: Path) -> None:
    for name, text in (("privacy/toy/__init__.py", ""), ("privacy/toy/calc.py", TOY), ("tests/test_calc.py", TESTS)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(textwrap.dedent(text).lstrip())
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RUN), *FOUND],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT / "tests"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, lines = json.loads(done.stdout.splitlines()[-1])
    endless, at_import = found.pop(ENDLESS), found.pop(AT_IMPORT)
    assert [each for each, _ in endless] == ["time", "time"]
    assert at_import == [["test", WHOLE]]  # not judged in the process that has imported it
    assert found == {name: [list(each)] * 2 for name, each in FOUND.items() if name not in (ENDLESS, AT_IMPORT)}
    assert (tmp_path / "privacy/toy/calc.py").read_text() == textwrap.dedent(TOY).lstrip()
    assert lines == {WHOLE: [5, 8, 9, 10, 13], COUNT: [5, 16, 17, 18, 19]}
