"""What a module brings with it: every module of ours that it imports, directly or not, at any place of its text."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import grimp

OURS = ("veilsum_node", "veilsum_aggregation", "veilsum_privacy", "veilsum_proto")


@lru_cache(maxsize=1)
def import_graph() -> grimp.ImportGraph:
    """Imports of our packages, also those within functions; those for type checkers alone are none."""
    return grimp.build_graph(*OURS, exclude_type_checking_imports=True, cache_dir=None)


def closure(roots: Iterable[str]) -> frozenset[str]:
    """These modules and all that they import, with the packages that these lie in."""
    graph, found, left = import_graph(), set[str](), list(roots)
    assert left
    while left:
        module = left.pop()
        if module in found or module not in graph.modules:
            continue
        found.add(module)
        left += graph.find_modules_directly_imported_by(module)
        left += [module.rpartition(".")[0]]
    return frozenset(found)


def lines(module: str) -> int:
    """Of a module's text."""
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    return len(Path(found.origin).read_text(encoding="utf-8").splitlines())
