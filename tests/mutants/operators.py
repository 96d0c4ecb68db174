"""Which faults can be planted in a module: one change of its syntax tree each.

Left alone is what decides nothing: annotations, decorators, documentation, words of messages, log lines and reports to the
observer, and how an object shows itself.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
_IN_ANY_ORDER = {"min", "max", "isinstance", "hypot"}
_SILENT = {"LOG", "about", "observer"}
_UNSEEN = {"__repr__", "__hash__"}
_LONGEST = 120  # characters of a part that is shown whole
_SKIPPED = {"annotation", "returns", "decorator_list", "bases"}


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Attributes:
        path: of the module, from the repository's root.
        place: qualified name of the function or class that holds it; empty at the module's own level.
        line, end: lines that the changed part covers.
        kind: of fault.
        before, after: the changed part.
        number: 1, 2 ... among those that read alike in one place.
        plant: makes the change in the tree that it was found in.
    """

    path: str
    place: str
    line: int
    end: int
    kind: str
    before: str
    after: str
    number: int = 1
    plant: Callable[[], None] = field(default=lambda: None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Names it as long as the code that it changes stays: no line number is in it."""
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.path}::{self.place}: {self.before} -> {self.after}{again}"


def find_mutants(path: str, source: str) -> tuple[ast.Module, list[Mutant]]:
    """The module's tree and every fault that can be planted in it, in the order of the code."""
    tree = ast.parse(source, path)
    seen: Counter[str] = Counter()
    found = []
    for mutant in _Finder(path).walk(tree, "", None):
        seen[mutant.name] += 1
        found.append(replace(mutant, number=seen[mutant.name]))
    return tree, found


class _Finder:
    def __init__(self, path: str) -> None:
        self._path = path

    def walk(self, node: ast.AST, place: str, returns: ast.expr | None) -> Iterator[Mutant]:
        """Faults below a node; ``returns`` is the annotation of the function that it stands in."""
        for name, value in ast.iter_fields(node):
            if name in _SKIPPED or (isinstance(node, ast.Raise) and name in ("exc", "cause")):
                continue
            children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
            for index, child in children:
                if not isinstance(child, ast.AST) or _decides_nothing(child):
                    continue
                for kind, new in _variants(child, node, name, returns):
                    yield self._mutant(node, name, index, child, place, kind, new)
                inner, inner_returns = place, returns
                if isinstance(child, ast.FunctionDef | ast.ClassDef):
                    inner = f"{place}.{child.name}" if place else child.name
                    inner_returns = child.returns if isinstance(child, ast.FunctionDef) else None
                yield from self.walk(child, inner, inner_returns)

    def _mutant(
        self, parent: ast.AST, name: str, index: int | None, child: Any, place: str, kind: str, new: ast.AST
    ) -> Mutant:
        def plant() -> None:
            ast.copy_location(new, child)
            ast.fix_missing_locations(new)
            if index is None:
                setattr(parent, name, new)
            else:
                getattr(parent, name)[index] = new

        where = child.target if isinstance(child, ast.comprehension) else child
        end = where.end_lineno or where.lineno
        return Mutant(self._path, place, where.lineno, end, kind, *_texts(child, new), plant=plant)


def _texts(old: ast.AST, new: ast.AST) -> tuple[str, str]:
    """Both as source; of long ones the part that differs, with a little around it."""
    before, after = (" ".join(ast.unparse(node).split()) for node in (old, new))
    if len(before) <= _LONGEST:
        return before, after
    if len(after) < _LONGEST // 2:
        return f"{before[:_LONGEST]}...", after
    first = max(0, _common(before, after) - 30)
    last = max(0, min(_common(before[:first:-1], after[:first:-1]) - 30, len(after) - first))
    return before[first : len(before) - last], after[first : len(after) - last]


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    return next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _root(node: ast.AST) -> set[str]:
    """Names that a chain of attributes and calls goes through."""
    found = set()
    while isinstance(node, ast.Attribute | ast.Call):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
            node = node.value
        else:
            node = node.func
    return found | ({node.id} if isinstance(node, ast.Name) else set())


def _decides_nothing(node: ast.AST) -> bool:
    match node:
        case ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef(name=name):
            return name in _UNSEEN
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name == "__all__"
        case ast.Call():
            return bool(_root(node) & _SILENT)
        case ast.Expr(value=value):
            return _decides_nothing(value)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
    return False


def _variants(node: ast.AST, parent: ast.AST, name: str, returns: ast.expr | None) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.stmt):
        yield from _statements(node, returns)
    elif isinstance(node, ast.expr) and not (isinstance(parent, ast.Expr | ast.Delete) or name == "targets"):
        if name in ("test", "ifs"):
            yield "condition negated", ast.UnaryOp(ast.Not(), node)
        yield from _expressions(node)
    elif isinstance(node, ast.comprehension):
        for index in range(len(node.ifs)):
            rest = node.ifs[:index] + node.ifs[index + 1 :]
            yield "filter dropped", ast.comprehension(node.target, node.iter, rest, node.is_async)


def _statements(node: ast.stmt, returns: ast.expr | None) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Raise() | ast.Continue() | ast.Break() | ast.AugAssign() | ast.Expr(value=ast.Call()):
            yield "statement dropped", ast.Pass()
        case ast.Expr(value=ast.Yield() | ast.YieldFrom()):
            yield "statement dropped", ast.parse("if False:\n    yield").body[0]
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement dropped", ast.Pass()
        case ast.Return(value=None):
            yield "statement dropped", ast.Pass()
        case ast.Return(value=value) if not isinstance(value, ast.Constant):
            if isinstance(returns, ast.Name) and returns.id == "bool":
                for each in (True, False):
                    yield "value returned", ast.Return(ast.Constant(each))
            else:
                yield "value returned", ast.Return(ast.Constant(None))
    if isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
        yield "arithmetic", ast.AugAssign(node.target, _ARITHMETIC[type(node.op)](), node.value)


def _expressions(node: ast.expr) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=others):
            for index, op in enumerate(ops):
                changed = [*ops[:index], _COMPARISONS[type(op)](), *ops[index + 1 :]]
                yield "comparison", ast.Compare(left, changed, others)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC and not _of_types(node):
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.BoolOp(op=op, values=values):
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield "operand dropped", rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert(), operand=operand):
            yield "sign dropped", operand
        case ast.Constant(value=bool() | int() | float() as value):
            yield from (("constant", ast.Constant(other)) for other in _other_values(value))
        case ast.Dict() | ast.List() | ast.Set():
            yield from _without_one(node)
        case ast.Slice(lower=lower, upper=upper, step=step):
            if lower is not None:
                yield "bound dropped", ast.Slice(None, upper, step)
            if upper is not None:
                yield "bound dropped", ast.Slice(lower, None, step)
        case ast.Call():
            yield from _calls(node)


def _other_values(value: bool | int | float) -> list[bool | int | float]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value > 0 else [value + 1]
    return [2 * value or 1.0]


def _without_one(node: ast.Dict | ast.List | ast.Set) -> Iterator[tuple[str, ast.AST]]:
    """A display of two elements or more, each time without one of them."""
    elements = node.values if isinstance(node, ast.Dict) else node.elts
    for dropped in range(len(elements) if len(elements) > 1 else 0):
        rest = [*elements[:dropped], *elements[dropped + 1 :]]
        if isinstance(node, ast.Dict):
            yield "element dropped", ast.Dict([*node.keys[:dropped], *node.keys[dropped + 1 :]], rest)
        else:
            yield "element dropped", ast.List(rest, ast.Load()) if isinstance(node, ast.List) else ast.Set(rest)


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    called = (
        node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    )
    for index, keyword in enumerate(node.keywords):
        if keyword.arg is not None:
            yield "argument dropped", ast.Call(node.func, node.args, node.keywords[:index] + node.keywords[index + 1 :])
    if len(node.args) > 1 and called not in _IN_ANY_ORDER and not any(isinstance(item, ast.Starred) for item in node.args[:2]):
        first, second, *rest = node.args
        if ast.dump(first) != ast.dump(second) and "connection" not in (ast.unparse(first), ast.unparse(second)):
            yield "arguments swapped", ast.Call(node.func, [second, first, *rest], node.keywords)
    if called in _NAMES:
        func: ast.expr = ast.Name(_NAMES[called], ast.Load())
        if isinstance(node.func, ast.Attribute):
            func = ast.Attribute(node.func.value, _NAMES[called], ast.Load())
        yield "function", ast.Call(func, node.args, node.keywords)


def _of_types(node: ast.BinOp) -> bool:
    """Whether it is a union of types, as in ``isinstance(x, A | B)``."""
    sides = (ast.unparse(side).rpartition(".")[2] for side in (node.left, node.right))
    return isinstance(node.op, ast.BitOr) and any(side[:1].isupper() or side == "None" for side in sides)
