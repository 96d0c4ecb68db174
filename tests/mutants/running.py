"""Plants a fault in a process of its own and lets the module's tests judge it; those that reach the changed lines first.

A process is forked off for each fault, so nothing on disk changes. For a fault within a function it is forked off one that
has imported module and tests, and the function's code is exchanged; for one that an import would see, off one that has
imported only what does not belong to the project. A test that starts further processes does not see the fault there.
"""

from __future__ import annotations

import ast
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import _lru_cache_wrapper, cached_property
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
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
        imports: lines that are reached while modules and tests are imported.
        seconds: that each test takes.
        whole: seconds of all, imports included.
    """

    lines: dict[str, frozenset[tuple[str, int]]]
    imports: frozenset[tuple[str, int]]
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
        return _compiled(self._tree, self.path)


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
    def pytest_collection(self) -> Iterator[None]:
        with self._watched(""):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for function in self._remembering:  # or only the first test that calls one would seem to reach it
            function.cache_clear()
        with self._watched(item.nodeid):
            return (yield)

    @cached_property
    def _remembering(self) -> list[_lru_cache_wrapper[Any]]:
        """Functions of these files that remember what they returned."""
        gc.unfreeze()  # what was collected is frozen, and hidden with that
        every = (each for each in gc.get_objects() if type(each) is _lru_cache_wrapper)
        codes = ((each, getattr(inspect.unwrap(each), "__code__", None)) for each in every)
        return [each for each, code in codes if code is not None and code.co_filename in self._files]

    @contextmanager
    def _watched(self, name: str) -> Iterator[None]:
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
            yield
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.lines[name], self.seconds[name] = sorted(reached), time.monotonic() - begin


class _Judging(_Examples):
    """Runs tests that reach the fault first, of these the fast ones; writes down what fails."""

    def __init__(self, reach: Reach, mutant: Mutant, word: Path) -> None:
        self._reach, self._word = reach, word
        changed = {(mutant.path, line) for line in range(mutant.line, mutant.end + 1)}
        everywhere = not mutant.place or not changed.isdisjoint(reach.imports)
        self._reaching = {test for test, lines in reach.lines.items() if everywhere or not changed.isdisjoint(lines)}

    def ordered(self) -> list[str]:
        """Files of tests that reach the fault, those first of which these tests take least."""
        seconds: Counter[str] = Counter()
        for test in self._reaching:
            seconds[test.partition("::")[0]] += self._reach.seconds[test]  # type: ignore[assignment]
        return sorted(seconds, key=lambda file: seconds[file])

    def reaching(self, tests: Iterable[str]) -> list[str]:
        """Those of some tests that reach the fault."""
        return [test for test in tests if test in self._reaching]

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._reaching), key=lambda item: self._reach.seconds[item.nodeid]
        )

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
        self._functions: list[FunctionType] | None = None
        self._sharp: dict[str, list[str]] = {}
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
            imports = reached.pop("")
            return Reach(reached, imports, seconds, time.monotonic() - begin)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def warm(self) -> None:
        """Import modules and tests here: from now on :meth:`start` takes mutants of :meth:`exchanges` alone, and is fast.

        Raises:
            RuntimeError: an import left threads behind, which a fork would lose.
        """
        self._enter()
        directory = Path(tempfile.mkdtemp(prefix="mutants-"))
        try:
            pytest.main([*self._options(directory), "--collect-only", "-qq", *self._judges], plugins=[_Examples()])
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        for path in self._paths:  # what functions alone import would be read later, without a fault
            importlib.import_module(_module(path))
        if threading.active_count() > 1:
            raise RuntimeError(f"Threads of an import: {threading.enumerate()}")
        files = {str(self._root / path) for path in self._paths}
        gc.unfreeze()
        every = (each for each in gc.get_objects() if type(each) is FunctionType)
        self._functions = [each for each in every if each.__code__.co_filename in files]

    def reaches_imports(self, mutant: Mutant) -> bool:
        """Whether an import runs the changed code: what it makes is made without a fault that is planted later."""
        changed = {(mutant.path, line) for line in range(mutant.line, mutant.end + 1)}
        return not changed.isdisjoint(self.reach.imports)

    def found(self, mutant: Mutant, test: str) -> None:
        """Let a test that found a mutant look at the next ones of its module first."""
        sharp = self._sharp.setdefault(mutant.path, [])
        self._sharp[mutant.path] = [test, *(each for each in sharp if each != test)][:4]

    def start(self, tree: ast.Module, mutant: Mutant) -> Trial | None:
        """Begin to judge a mutant; None if :meth:`warm` came before and only an import would see it.

        Args:
            tree: that it was found in; it is changed.
            mutant: to judge.
        """
        path = str(self._root / mutant.path)
        before = _compiled(ast.parse((self._root / mutant.path).read_bytes(), path), path)
        mutant.plant()
        changed: dict[CodeType, CodeType] = {}
        if not _within_functions(before, _compiled(tree, path), changed) and self._functions is not None:
            return None
        loader = _Planted(_module(mutant.path), path, tree)
        directory = Path(tempfile.mkdtemp(prefix="mutants-"))

        def work() -> int:
            if self._functions is None:
                sys.meta_path.insert(0, _Finder(loader))
            for each in self._functions or []:
                each.__code__ = changed.get(each.__code__, each.__code__)
            plugin = _Judging(self.reach, mutant, directory / "word")
            files = [[file] for file in plugin.ordered()]  # one after the other: the first that finds it spares the others
            for judges in [plugin.reaching(self._sharp.get(mutant.path, ())), *files]:
                if judges and (code := int(pytest.main([*self._options(directory), *judges], plugins=[plugin]))):
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

    def _enter(self) -> None:
        os.chdir(self._root)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # importing them would take longer than most tests
        sys.path[:0] = [str(self._root / source) for source in SOURCES]

    def _fork(self, directory: Path, work: Callable[[], int]) -> int:
        own = [name for name in sys.modules if name.startswith("veilsum_")]
        if own and self._functions is None:
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
            if self._functions is None:
                self._enter()
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


def _module(path: str) -> str:
    """The name of the module that lies there, from the root."""
    return path.split("/", 1)[1].removesuffix(".py").replace("/", ".")


def _compiled(tree: ast.Module, path: str) -> CodeType:
    code: CodeType = compile(tree, path, "exec", dont_inherit=True)
    return code


def _within_functions(before: CodeType, after: CodeType, changed: dict[CodeType, CodeType]) -> bool:
    """Whether two modules differ within functions alone; notes which. A function's own functions may live on elsewhere."""
    if before == after:
        return True
    of_function = bool(before.co_flags & CO_OPTIMIZED)
    old, new = ([each for each in code.co_consts if isinstance(each, CodeType)] for code in (before, after))
    if of_function:
        changed[before] = after
    elif len(old) != len(new) or _alone(before) != _alone(after):
        return False
    inner = [
        _within_functions(one, other, changed) for one, other in zip(old, new, strict=False)
    ]  # of all, whatever comes of one
    return of_function or all(inner)


def _alone(code: CodeType) -> CodeType:
    """Without the functions and classes in it."""
    return code.replace(co_consts=tuple(None if isinstance(each, CodeType) else each for each in code.co_consts))
