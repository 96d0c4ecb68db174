"""Tables of parts by name: every entry loads, nothing that there is is left out, and names alone load nothing."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import ModuleType
from typing import Any

import pytest

import veilsum_coordinator.methods
import veilsum_privacy.tasks
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.base import Method
from veilsum_node.process.imports import Registry
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import Task


def concrete(package: ModuleType, kind: type) -> Iterator[type[Any]]:
    """Classes of this kind that are defined in a package's own modules and can be made, but not what only others build on."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        for item in vars(module).values():
            own = inspect.isclass(item) and issubclass(item, kind) and item.__module__ == module.__name__
            if own and not inspect.isabstract(item) and "name" in vars(item):
                yield item


def test_every_entry_loads_and_nothing_is_left_out() -> None:
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}
    assert sorted(map(str, concrete(veilsum_coordinator.methods, Method))) == sorted(
        str(type(each)) for each in METHODS.values()
    )
    assert sorted(map(str, concrete(veilsum_privacy.tasks, Task))) == sorted(map(str, TASKS.values()))


def test_what_is_not_there_is_not_found() -> None:
    for table in (METHODS, TASKS):
        assert "none" not in table
        assert None not in table
        with pytest.raises(KeyError):
            table["none"]


def test_names_alone_load_no_part() -> None:
    code = (
        "import json, sys\n"
        "from veilsum_coordinator.methods import METHODS\n"
        "from veilsum_privacy.tasks import TASKS\n"
        "names = [len(METHODS), len(TASKS), 'fedsgd' in METHODS, *METHODS, *TASKS]\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    found = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    parts = ("veilsum_coordinator.methods.", "veilsum_coordinator.parts", "veilsum_privacy.tasks.", "numpy")
    assert "veilsum_coordinator.methods" in found
    assert [name for name in found if name.startswith(parts)] == []


def test_threads_that_ask_at_once_are_given_the_same_part() -> None:
    """A coordinator runs studies in threads: each of them makes the part, and all are handed the first."""
    together = Barrier(8)

    def made(kind: type[object]) -> object:
        together.wait(10)  # none is kept before all eight are made
        return kind()

    table = Registry[object]("concurrent", {"future": "futures:Future"}, made)

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(table.__getitem__, "future") for _ in range(8)]
        found = {id(each.result()) for each in asked}
    assert found == {id(table["future"])}
