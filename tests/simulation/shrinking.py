"""Shrinks a failing history to a short one that still fails: delta debugging over its operations, then over their parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from simulation.world import History, Operation

Fails = Callable[[History], bool]


def shrink(history: History, fails: Fails) -> History:
    """The shortest history found that still fails; no single operation of it can be left out.

    Args:
        history: fails.
        fails: plays a history and tells.
    """

    def still(operations: Sequence[Operation]) -> bool:
        return fails(dataclasses.replace(history, operations=tuple(operations)))

    operations = list(history.operations)
    size = max(len(operations) // 2, 1)
    while True:
        start, smaller = 0, False
        while start < len(operations):
            rest = operations[:start] + operations[start + size :]
            if still(rest):
                operations, smaller = rest, True
            else:
                start += size
        if size == 1 and not smaller:
            break
        size = max(size // 2, 1)
    operations = _simplify(operations, still)
    history = dataclasses.replace(history, operations=tuple(operations))
    for changed in ({"keyed": True}, {"verified": False}, {"rounds": 1}):
        simpler = dataclasses.replace(history, **changed)
        if simpler != history and fails(simpler):
            history = simpler
    return history


def _simplify(operations: list[Operation], still: Callable[[Sequence[Operation]], bool]) -> list[Operation]:
    """Take off the fates of calls that do not matter."""
    for place, operation in enumerate(operations):
        if operation[0] == "go" and len(operation) > 2:
            for fates in [(), *([fate] for fate in operation[2])]:
                simpler = ("go", operation[1], tuple(fates)) if fates else ("go", operation[1])
                changed = [*operations[:place], simpler, *operations[place + 1 :]]
                if simpler != operation and still(changed):
                    operations = changed
                    break
    return operations


def as_text(history: History, violation: str) -> str:
    """A history as a file for ``tests/simulation/regressions``."""
    operations = "".join(f"        {operation!r},\n" for operation in history.operations)
    fields = "".join(f"    {name}={getattr(history, name)!r},\n" for name in ("kind", "keyed", "rounds", "seed", "verified"))
    return f"# {violation}\nHistory(\n{fields}    operations=(\n{operations}    ),\n)\n"
