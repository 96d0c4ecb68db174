"""What each test takes of the processors, with all processes that it starts: ``make test-costs``.

A plugin of pytest. A test's own time does not show what browsers, servers and forked federations take; here it counts for the
test that ran meanwhile, as what a fixture of its module takes does. What daemons take, which left their parents, is missing.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

_SHOWN = 60
_TICKS = os.sysconf("SC_CLK_TCK")
_WORD = "seconds of processors"


def _started(parent: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{parent}/task"):
            with contextlib.suppress(OSError):
                found += map(int, Path(f"/proc/{parent}/task/{task}/children").read_text().split())
    return found


def spent() -> tuple[float, float]:
    """Seconds of this process, and of all that it started, theirs and those that ended among them."""
    own = os.times()
    others, left = own.children_user + own.children_system, _started(os.getpid())
    while left:
        process = left.pop()
        try:
            words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        others += sum(map(int, words[11:15])) / _TICKS
        left += _started(process)
    return own.user + own.system, others


class Costs:
    """Counts where tests run, adds up where reports come together."""

    def __init__(self) -> None:
        self._before = (0.0, 0.0)
        self._found: dict[str, tuple[float, float, int]] = defaultdict(lambda: (0.0, 0.0, 0))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        others = spent()[1]
        own = os.times()
        self._before = own.user + own.system, others  # what looking at all processes takes is no test's

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "teardown":
            own, others = (now - before for now, before in zip(spent(), self._before, strict=True))
            report.user_properties.append((_WORD, [own, max(0.0, others)]))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties if report.when == "teardown" else ():
            if name == _WORD:
                own, others, cases = self._found[report.nodeid.partition("[")[0]]
                self._found[report.nodeid.partition("[")[0]] = own + value[0], others + value[1], cases + 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        write = terminalreporter.write_line
        total = [sum(item[place] for item in self._found.values()) for place in (0, 1)]
        write(f"{total[0]:.0f} s of processors in tests, {total[1]:.0f} s in processes that they started; the dearest:")
        for name, (own, others, cases) in sorted(self._found.items(), key=lambda item: -item[1][0] - item[1][1])[:_SHOWN]:
            write(f"{own + others:7.1f} s ({others:.1f} s in other processes), {cases} cases: {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs())
