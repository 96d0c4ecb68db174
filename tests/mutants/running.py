"""Plants a fault in a process of its own and lets the module's tests judge it; those that reach the changed lines first.

A process is forked off this one, which has imported what does not belong to the project. Only the module's import differs in
it, so nothing on disk changes. A test that starts further processes does not see the fault there.
"""

from __future__ import annotations

import ast
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import Phase, settings

from mutants.judges import ROOT
from mutants.operators import Mutant

settings.register_profile("thorough", deadline=None)  # as tests/conftest.py does, which judges elsewhere do not load
SOURCES = ("proto", "node", "privacy", "aggregation", "participant", "coordinator", "deploy", "tests")
LARGEST = 12 * 2**30
"""Bytes of data that a process may hold."""

_ELSEWHERE = (
    "alembic", "cryptography.x509", "google.protobuf.message", "hypothesis.strategies", "numpy", "opacus.accountants",
    "prometheus_client", "psycopg", "pyarrow", "pydantic", "pytest_timeout", "rfc8785", "rich.console", "safetensors.numpy",
    "scipy.stats", "sqlalchemy.dialects.sqlite", "tenseal.sealapi", "typer", "yaml",
)  # fmt: skip
_PLUGINS = ("pytest_timeout", "_hypothesis_pytestplugin")


def preload() -> None:
    """Import what tests need and does not belong to the project, once for all."""
    for name in _ELSEWHERE:
        importlib.import_module(name)


@dataclass(frozen=True)
class Reach:
    """What tests do without a fault.

    Attributes:
        lines: that each test reaches in the modules: pairs of path and number.
        seconds: that each test takes.
        whole: seconds of all, imports included.
    """

    lines: dict[str, frozenset[tuple[str, int]]]
    seconds: dict[str, float]
    whole: float


@dataclass(frozen=True)
class Verdict:
    """Attributes: ``found`` is how a fault came to light (``test``, ``import``, ``crash``, ``time``), or empty; ``by`` what
    found it; ``seconds`` how long that took."""

    found: str
    by: str
    seconds: float


class _Planted(importlib.machinery.SourceFileLoader):
    """Loads one module from a syntax tree."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        super().__init__(name, path)
        self._tree = tree

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, loader: _Planted) -> None:
        self._loader = loader

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._loader.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._loader.path, loader=self._loader)


class _Examples:
    """The same examples every time; none is kept or made smaller."""

    def pytest_sessionstart(self) -> None:
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", deadline=None, derandomize=True, database=None, phases=phases)
        settings.load_profile("mutants")


class _Reaching(_Examples):
    """Notes which lines of some files each test reaches.

    Args:
        files: absolute paths, with the names to note them by.
    """

    def __init__(self, files: dict[str, str]) -> None:
        self._files = files
        self.lines: dict[str, list[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        reached: set[tuple[str, int]] = set()

        def line(frame: FrameType, event: str, _: Any) -> Any:
            reached.add((self._files[frame.f_code.co_filename], frame.f_lineno))
            return line

        def call(frame: FrameType, event: str, _: Any) -> Any:
            return line if frame.f_code.co_filename in self._files else None

        begin = time.monotonic()
        threading.settrace(call)
        sys.settrace(call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.lines[item.nodeid], self.seconds[item.nodeid] = sorted(reached), time.monotonic() - begin


class _Judging(_Examples):
    """Runs tests that reach the fault first, of these the fast ones; writes down what fails."""

    def __init__(self, reach: Reach, mutant: Mutant, word: Path) -> None:
        self._reach, self._word = reach, word
        changed = {(mutant.path, line) for line in range(mutant.line, mutant.end + 1)}
        everywhere = not mutant.place  # what a module does when it is imported is noted of no test
        self._reaching = {test for test, lines in reach.lines.items() if everywhere or not changed.isdisjoint(lines)}

    def ordered(self, judges: Iterable[str]) -> list[str]:
        """Files of tests, those first of which the reaching tests take least; what does not reach last."""
        seconds = dict.fromkeys(judges, 0.0)
        for test in self._reaching:
            seconds[test.partition("::")[0]] += self._reach.seconds[test]
        return sorted(seconds, key=lambda file: (seconds[file] == 0.0, seconds[file]))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: (item.nodeid not in self._reaching, self._reach.seconds.get(item.nodeid, 0.0)))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._word.write_text(f"import of {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._word.write_text(report.nodeid)


class Workshop:
    """Judges mutants of modules that have the same judges.

    Args:
        paths: of the modules, from the root.
        judges: files of tests.
        root: of the repository.
        slack: seconds that tests of a mutant may take beside four times what they take without a fault.

    Raises:
        RuntimeError: a test fails without any fault.
    """

    def __init__(self, paths: Sequence[str], judges: Sequence[str], root: Path = ROOT, slack: float = 30.0) -> None:
        self._paths, self._judges, self._root, self._slack = list(paths), list(judges), root, slack
        self.reach = self._without_fault()

    def _without_fault(self) -> Reach:
        directory = Path(tempfile.mkdtemp(prefix="mutants-"))
        try:
            found, begin = directory / "reach", time.monotonic()

            def work() -> int:
                plugin = _Reaching({str(self._root / path): path for path in self._paths})
                code = int(pytest.main([*self._options(directory), *self._judges], plugins=[plugin]))
                found.write_text(json.dumps([plugin.lines, plugin.seconds]))
                return code

            child = self._fork(directory, work)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
                raise RuntimeError(f"Tests fail without a fault:\n{(directory / 'output').read_text()}")
            lines, seconds = json.loads(found.read_text())
            reached = {name: frozenset((path, line) for path, line in each) for name, each in lines.items()}
            return Reach(reached, seconds, time.monotonic() - begin)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def start(self, tree: ast.Module, mutant: Mutant) -> Trial:
        """Begin to judge a mutant, with the tree that it was found in."""
        name = mutant.path.split("/", 1)[1].removesuffix(".py").replace("/", ".")
        loader = _Planted(name, str(self._root / mutant.path), tree)
        directory = Path(tempfile.mkdtemp(prefix="mutants-"))

        def work() -> int:
            mutant.plant()
            sys.meta_path.insert(0, _Finder(loader))
            plugin = _Judging(self.reach, mutant, directory / "word")
            for judge in plugin.ordered(self._judges):  # one after the other: a file that finds it spares the others' imports
                if code := int(pytest.main([*self._options(directory), judge], plugins=[plugin])):
                    return code
            return 0

        return Trial(mutant, self._fork(directory, work), directory, self._slack + 4 * self.reach.whole)

    @staticmethod
    def _options(directory: Path) -> list[str]:
        plugins = [word for name in _PLUGINS for word in ("-p", name)]
        options = [
            "-x",
            "-q",
            "--tb=line",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore",
            "--hypothesis-profile=thorough",
        ]
        return [*plugins, *options, f"--basetemp={directory / 'tmp'}"]

    def _fork(self, directory: Path, work: Callable[[], int]) -> int:
        if own := [name for name in sys.modules if name.startswith("veilsum_")]:
            raise RuntimeError(f"{own[0]} is imported already: faults in it would not be seen.")
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child:
            return child
        code = 99
        try:
            os.setsid()
            output = os.open(directory / "output", os.O_CREAT | os.O_WRONLY, 0o600)
            for stream in (1, 2):
                os.dup2(output, stream)
            resource.setrlimit(resource.RLIMIT_DATA, (LARGEST, LARGEST))
            os.chdir(self._root)
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them would take longer than most tests
            sys.path[:0] = [str(self._root / source) for source in SOURCES]
            code = work()
        except BaseException:  # noqa: BLE001  # nothing may go on in a fork
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


class Trial:
    """A mutant being judged."""

    def __init__(self, mutant: Mutant, child: int, directory: Path, limit: float) -> None:
        self.mutant = mutant
        self._child, self._directory, self._limit, self._begin = child, directory, limit, time.monotonic()

    def verdict(self) -> Verdict | None:
        """What came of it; None while it is being judged.

        Raises:
            RuntimeError: the tests could not be run.
        """
        seconds = time.monotonic() - self._begin
        done, status = os.waitpid(self._child, os.WNOHANG)
        if not done and seconds < self._limit:
            return None
        if not done:
            os.killpg(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
        word, output = self._directory / "word", (self._directory / "output").read_text(errors="replace")
        by = word.read_text() if word.exists() else ""
        shutil.rmtree(self._directory, ignore_errors=True)
        if not done:
            return Verdict("time", f"not done after {self._limit:.0f} s", seconds)
        code = os.waitstatus_to_exitcode(status)
        match code:
            case 0:
                return Verdict("", "", seconds)
            case 1 | 2 if by:
                return Verdict("import" if by.startswith("import of ") else "test", by, seconds)
            case 4 if output:  # the support of all tests cannot be imported
                return Verdict("import", output.strip().splitlines()[-1], seconds)
            case _ if code < 0:
                return Verdict("crash", f"signal {-code}", seconds)
        raise RuntimeError(f"{self.mutant.name}: the tests ended with {code}:\n{output}")
