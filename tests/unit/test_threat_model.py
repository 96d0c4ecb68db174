"""Every row of the threat model names the code that stops something and a test of it that runs, or says that nothing does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
_CODE = re.compile(r"`((?:privacy|node|participant|coordinator|aggregation|proto|deploy)/[\w./-]+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(test_\w+))?`")
LIMIT = re.compile(r"\*\*(?:not stopped|partly|only by)\b")
"""What a row says that is not stopped, or not wholly."""

SUMMARIES = {
    ("asset", "where it is in the clear", "worth"): "what there is to protect",
    ("party", "trusted for", "not trusted for"): "assumptions",
    ("", "threat", "what stands against it", "what is left"): "a summary of the tables above it",
    ("what", "mode", "who writes it"): "held by a test of its own",
}
"""Tables that claim nothing by themselves."""


class Row(NamedTuple):
    """A row of a table."""

    header: tuple[str, ...]
    cells: tuple[str, ...]


def rows(text: str) -> Iterator[Row]:
    """Rows of all tables of a page."""
    header: tuple[str, ...] = ()
    for line in text.splitlines():
        if not line.startswith("|"):
            header = ()
            continue
        cells = tuple(cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|"))
        if not header:
            header = cells
        elif not set(line) <= set("|- :"):
            yield Row(header, cells)


def faults(row: Row) -> list[str]:
    """What a row lacks."""
    if row.header in SUMMARIES:
        return []
    if len(row.cells) != len(row.header):
        return ["has another number of cells than its table"]
    text = " | ".join(row.cells)
    code, tests = _CODE.findall(text), _TEST.findall(text)
    found = [f"{path} does not exist" for path in code if not (ROOT / path).exists()]
    found += [f"{file}::{name}: {why}" for file, name in tests if (why := why_not_run(file, name))]
    if not LIMIT.search(text):
        found += [] if code else ["names no code"]
        found += [] if tests else ["names no test"]
    return found


@cache
def _module(file: str) -> ast.Module | None:
    path = ROOT / file
    return ast.parse(path.read_text(encoding="utf-8")) if path.exists() else None


def why_not_run(file: str, name: str) -> str:
    """Why a test is not collected, or left out unless somebody asks for it; empty if it runs."""
    tree = _module(file)
    if tree is None or not Path(file).name.startswith("test_"):
        return "no module of tests"
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark" and _skips(ast.unparse(node.value)):
            return "its module is left out"
    if not name:
        return ""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            marks = [ast.unparse(mark) for mark in node.decorator_list]
            return next((f"left out: {mark}" for mark in marks if _skips(mark)), "")
    return "there is no such test"


def _skips(mark: str) -> bool:
    """Whether a mark leaves a test out where the whole check runs: as root on Linux, with every tool."""
    if "skipif" in mark:
        return not any(
            condition in mark for condition in ("getuid() != 0", "geteuid() != 0", "linux", "shutil.which", "TOOLS")
        )
    return "mark.skip" in mark or "xfail" in mark or mark == "pytest.mark.system"


@pytest.mark.parametrize("row", list(rows(PAGE.read_text(encoding="utf-8"))), ids=lambda row: row.cells[0][:60])
def test_each_row_names_code_and_a_test_that_runs_or_says_that_nothing_stops_it(row: Row) -> None:
    assert faults(row) == []


def test_the_tables_are_read() -> None:
    found = list(rows(PAGE.read_text(encoding="utf-8")))
    claims = [row for row in found if row.header not in SUMMARIES]
    assert len(claims) > 50
    assert {row.header for row in found} >= {("can it", "stopped by", "in", "shown by")}
    assert sum(bool(LIMIT.search(" ".join(row.cells))) for row in claims) > 10


HEADER = ("can it", "stopped by", "in", "shown by")
CODE, TEST = "`privacy/veilsum_privacy/mechanism/noise.py`", "`tests/unit/test_noise.py::test_plans`"


@pytest.mark.parametrize(
    ("cells", "whole"),
    [
        (("x", "noise", CODE, TEST), True),
        (("x", "noise", CODE, ""), False),
        (("x", "noise", "", TEST), False),
        (("x", "**not stopped**", "", ""), True),
        (("x", "noise", "`privacy/veilsum_privacy/none.py`", TEST), False),
        (("x", "noise", CODE, "`tests/unit/test_noise.py::test_that_is_none`"), False),
        (("x", "noise", CODE, "`tests/support/planted.py::test_x`"), False),
        (("x", "noise", CODE), False),
    ],
)
def test_the_check_finds_what_is_missing(cells: tuple[str, ...], whole: bool) -> None:
    assert (faults(Row(HEADER, cells)) == []) == whole


@pytest.mark.parametrize(
    ("mark", "left_out"),
    [
        ("pytest.mark.skip", True),
        ("pytest.mark.skipif('VEILSUM_ALL' not in os.environ, reason='long')", True),
        ("pytest.mark.xfail", True),
        ("pytest.mark.system", True),
        ("pytest.mark.skipif(os.getuid() != 0, reason='only root can become another user')", False),
        ("pytest.mark.parametrize('x', [1])", False),
    ],
)
def test_a_test_that_is_left_out_shows_nothing(mark: str, left_out: bool) -> None:
    assert _skips(mark) == left_out


PARTIES = ("privacy", "node", "participant", "coordinator", "proto", "aggregation")
BARRED = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
NAMED = re.compile("|".join({*BARRED, "eval", "exec", "compile", "load", "allow_pickle"}))
"""A file without these words is not parsed."""


def _called(function: ast.expr) -> str:
    """The name of a function, or of a module's; empty for any other expression."""
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""


def test_no_party_reads_code_from_anywhere() -> None:
    """No pickles, no ``eval``: what comes over the wire, or lies in a file, is data."""
    found = []
    for folder in PARTIES:
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if NAMED.search(text) else ():
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = {item.name.split(".")[0] for item in node.names} | {
                        (getattr(node, "module", "") or "").split(".")[0]
                    }
                    found += [(path.name, name) for name in names & BARRED]
                elif isinstance(node, ast.Call) and _called(node.func) in ("eval", "exec", "compile", "torch.load"):
                    data_only = any(word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords)
                    found += [] if data_only else [(path.name, _called(node.func))]
                elif isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                    found += [] if ast.unparse(node.value) == "False" else [(path.name, "allow_pickle")]
    assert found == []
