"""Which files a distribution holds: modules that its entry points reach by imports, lazy ones too, and their packages' data.

Hatchling calls :class:`Reached` when it builds a wheel, so that nobody keeps a list of files; ``python reached.py
participant`` prints what a distribution's wheel would hold. An import of a module is followed wherever it stands but under
``TYPE_CHECKING``; a text that is a module's full name counts as an import, and so do a name that a package imports for type
checkers and gives lazily, and ``"module:Class"``, by which a registry names the parts of its own package. Modules in
``without`` are not followed: whoever imports them says what to install.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # only what builds a wheel has it

    class BuildHookInterface:  # type: ignore[no-redef]
        """Stands in for hatchling's."""


ROOT = Path(__file__).resolve().parent
_PART = re.compile(r"([a-z_0-9.]+):[A-Z]\w*")
ROOMS = ("proto", "node", "privacy", "aggregation", "participant", "coordinator", "deploy")


@cache
def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the product by its name, a package by its ``__init__.py``."""
    found = {}
    for room in ROOMS:
        for package in sorted((root / room).glob("veilsum*")):
            for file in sorted(package.rglob("*.py")) if (package / "__init__.py").exists() else ():
                parts = file.relative_to(root / room).with_suffix("").parts
                found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def _is_typing(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _walk(module: ast.Module) -> Iterator[ast.AST]:
    """All that runs."""
    left: list[ast.AST] = [module]
    while left:
        node = left.pop()
        yield node
        left += node.orelse if isinstance(node, ast.If) and _is_typing(node) else ast.iter_child_nodes(node)


@cache
def _given(package: str, root: Path) -> dict[str, str]:
    """Where a package's lazily given names come from, as it tells type checkers."""
    file = modules(root)[package]
    found = {}
    for block in filter(_is_typing, ast.parse(file.read_text()).body):
        for node in ast.walk(block):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.update({item.asname or item.name: node.module for item in node.names})
    return found


@cache
def _imported(name: str, root: Path) -> frozenset[str]:
    """Modules of the product that a module names."""
    known, found = modules(root), set()
    package = name if known[name].name == "__init__.py" else name.rpartition(".")[0]
    for node in _walk(ast.parse(known[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {item.name for item in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            if node.level:
                raise ValueError(f"{name} has a relative import")
            found.add(node.module)
            for item in node.names:
                found.add(f"{node.module}.{item.name}")
                if node.module in known:
                    found.add(_given(node.module, root).get(item.name, node.module))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if (part := _PART.fullmatch(node.value)) is not None:
                found.add(f"{package}.{part.group(1)}")
            elif "." in node.value:
                found.add(node.value)
    return frozenset(found & set(known))


def closure(roots: Iterable[str], without: Iterable[str] = (), root: Path = ROOT) -> dict[str, Path]:
    """The modules that ``roots`` reach, and their packages; ``package.*`` is all of a package.

    Raises:
        ValueError: one of ``roots`` or ``without`` is not a module.
    """
    known, left = modules(root), set(without)
    waiting = []
    for place in roots:
        waiting += [name for name in known if name.startswith(place[:-1])] if place.endswith(".*") else [place]
    unknown = sorted({*waiting, *left} - set(known))
    if unknown or not waiting:
        raise ValueError(f"no such modules: {', '.join(unknown) or roots}")
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name in found or any(name == place or name.startswith(f"{place}.") for place in left):
            continue
        found[name] = known[name]
        waiting += _imported(name, root)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if name.endswith(".migrations"):  # Alembic finds its scripts by their folder
            waiting += [other for other in known if other.startswith(f"{name}.")]
    return dict(sorted(found.items()))


def files(found: dict[str, Path], root: Path = ROOT) -> dict[Path, str]:
    """A wheel's path for each module's file, and for what else its package holds: templates, types, scripts."""
    packages = {file.parent for file in found.values() if file.name == "__init__.py"}
    held = set(found.values())
    for package in packages:
        for file in package.rglob("*"):
            owner = next(parent for parent in file.parents if (parent / "__init__.py").exists())
            if owner == package and file.is_file() and file.suffix not in (".py", ".pyc"):
                held.add(file)
    return {file: file.relative_to(root).as_posix().partition("/")[2] for file in sorted(held)}


class Reached(BuildHookInterface):  # type: ignore[type-arg, misc]
    """Fills a wheel with what its settings ``roots`` and ``without`` reach."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before the wheel is written."""
        root = Path(self.root).resolve().parent
        held = files(closure(self.config["roots"], self.config.get("without", ()), root), root)
        build_data["force_include"].update({str(file): place for file, place in held.items()})


def settings(distribution: str) -> dict[str, Any]:
    """The hook's settings of a distribution, by its folder."""
    stated = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())
    return stated["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]  # type: ignore[no-any-return]


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        stated = settings(argument)
        held = closure(stated["roots"], stated.get("without", ()))
        lines: dict[str, int] = {}
        for name, file in held.items():
            top = name.partition(".")[0]
            lines[top] = lines.get(top, 0) + len(file.read_text().splitlines())
        print(f"{argument}: {len(held)} modules, {sum(lines.values()):,} lines")
        for top, count in sorted(lines.items(), key=lambda item: -item[1]):
            print(f"  {top:22} {count:7,}")
