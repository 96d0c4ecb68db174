"""Conditions on columns, as ``where`` of a query states them; they are never evaluated by Python.

``age >= 65 and dx in ('I21', 'I50') and not (icu = 'yes')``: comparisons of a column with a constant (``= != < <= > >=``),
``in``, ``is missing``, ``and``, ``or``, ``not`` and parentheses. The logic has three values, as SQL's and R's: a comparison
of a missing value is neither true nor false, nor is its opposite, so that neither ``age >= 65`` nor ``not (age >= 65)`` holds
where the age is missing (Kleene 1952). Numbers are compared as scaled by the schema's bounds, and a constant is scaled in the
same way: equal values stay equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import and_, or_
from typing import Literal

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Value, lookup
from veilsum_privacy.tasks.queries.cells import Cells, Domain, LevelCells, LevelDomain, NumberDomain, RecordCells
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH, Lexeme, lexemes_of, unquoted

Operator = Literal["=", "!=", "<", "<=", ">", ">="]

MAX_DEPTH = 32
"""Parentheses and ``not`` within one another."""

_COMPARE: Mapping[str, Callable[[Value, float], Value]] = {
    "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal
}  # fmt: skip


class Condition(ABC):
    """A condition: where it is true, and where it is false; where a missing value leaves it open, it is neither."""

    @abstractmethod
    def truths(self, cells: Mapping[str, Cells]) -> tuple[Value, Value]:
        """Whether it is true of a record, and whether it is false; of arrays of cells arrays.

        Of a column that is not given a value may be anything: then a comparison can be both.
        """

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """Its comparisons."""

    def holds(self, cells: Mapping[str, Cells]) -> Value:
        """Whether it is true, or can be."""
        return self.truths(cells)[0]

    def known(self, cells: Mapping[str, Cells]) -> Value:
        """Whether it is true or false."""
        return or_(*self.truths(cells))

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(leaf.column for leaf in self.leaves())


@dataclass(frozen=True)
class Leaf(Condition):
    """A comparison of one column with constants.

    Attributes:
        column: name.
        operator: of a number with ``value``; None for membership of a category's ``codes``, or ``is missing``.
        value: the constant, scaled.
        codes: levels that it holds for; empty for numbers.
        missing: whether it asks for a missing value.
    """

    column: str
    operator: Operator | None = None
    value: float = 0.0
    codes: frozenset[int] = frozenset()
    missing: bool = False

    def truths(self, cells: Mapping[str, Cells]) -> tuple[Value, Value]:
        if self.column not in cells and not isinstance(cells, RecordCells):
            anything = np.ones(max((len(item.present) for item in cells.values()), default=1), np.bool_)
            return anything, anything
        found = cells[self.column]
        if self.missing:
            return ~found.present, found.present
        if isinstance(found, LevelCells):
            among = np.isin(np.arange(max(self.codes, default=0) + 1), sorted(self.codes))
            truth = lookup(among, found.codes)
        else:
            truth = _COMPARE[self.operator or "="](found.x, self.value)
        return found.present & truth, found.present & ~truth

    def leaves(self) -> Iterator[Leaf]:
        yield self

    def settled(self, domain: Domain) -> str:
        """What a comparison says whatever a value within the column's bounds is; "" where values differ."""
        if self.missing:
            return ""
        if isinstance(domain, LevelDomain):
            return f"every category of {self.column!r} is among those that it names" * (len(self.codes) == len(domain.levels))
        ends = sorted({-1.0, 1.0, min(max(self.value, -1.0), 1.0)})
        x = np.array([*ends, *(sum(pair) / 2.0 for pair in pairwise(ends))])
        truth = _COMPARE[self.operator or "="](x, self.value)
        if 0 < truth.sum() < len(x):
            return ""
        text = f"{self.column} {self.operator} {domain.value(self.value):g}"
        bounds = f"{self.column!r} lies from {domain.low:g} to {domain.high:g}"
        return f"{text!r} holds for {'every value' if truth.any() else 'none'}, since {bounds}"


@dataclass(frozen=True)
class Both(Condition):
    """``and`` of all parts, or ``or`` where ``any_of``."""

    parts: tuple[Condition, ...]
    any_of: bool = False

    def truths(self, cells: Mapping[str, Cells]) -> tuple[Value, Value]:
        true, false = zip(*(part.truths(cells) for part in self.parts), strict=True)
        one, other = (or_, and_) if self.any_of else (and_, or_)
        return reduce(one, true), reduce(other, false)

    def leaves(self) -> Iterator[Leaf]:
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Not(Condition):
    """The opposite."""

    part: Condition

    def truths(self, cells: Mapping[str, Cells]) -> tuple[Value, Value]:
        true, false = self.part.truths(cells)
        return false, true

    def leaves(self) -> Iterator[Leaf]:
        yield from self.part.leaves()


def parse_condition(text: str, domains: Mapping[str, Domain]) -> Condition:
    """Read a condition on these columns.

    Raises:
        HostileInput: what cannot be read, with its place; an unknown column or level; a comparison that its column does not
            have.
    """
    parser = _Parser(text, domains)
    found = parser.either(0)
    parser.end()
    return found


class _Parser:
    """Recursive descent over the lexemes of one text."""

    def __init__(self, text: str, domains: Mapping[str, Domain]) -> None:
        if len(text) > MAX_LENGTH:
            raise HostileInput(f"A condition has {len(text)} characters; at most {MAX_LENGTH} are read.")
        self._text, self._domains = text, domains
        self._lexemes = list(lexemes_of(text))
        self._next = 0

    # -- grammar -----------------------------------------------------------------------------------------------------------

    def either(self, depth: int) -> Condition:
        parts = [self._all(depth)]
        while self._take_word("or"):
            parts.append(self._all(depth))
        return parts[0] if len(parts) == 1 else Both(tuple(parts), any_of=True)

    def _all(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._take_word("and"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else Both(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > MAX_DEPTH:
            raise HostileInput(f"{self._text!r} is nested more than {MAX_DEPTH} deep.")
        if self._take_word("not"):
            return Not(self._one(depth + 1))
        if self._take_sign("("):
            found = self.either(depth + 1)
            self._want_sign(")")
            return found
        return self._comparison()

    def _comparison(self) -> Condition:
        lexeme = self._take("a column")
        if lexeme.kind not in ("word", "quoted"):
            raise self._wrong(lexeme, "a column")
        name = unquoted(lexeme)
        domain = self._domains.get(name)
        if domain is None:
            raise HostileInput(f"{self._text!r}: the schema has no column {name!r}.", f"Columns: {', '.join(self._domains)}.")
        if self._take_word("is"):
            negated = self._take_word("not")
            if not self._take_word("missing"):
                raise self._wrong(self._peek(), "missing")
            leaf = Leaf(name, missing=True)
            return Not(leaf) if negated else leaf
        negated = self._take_word("not")
        if self._take_word("in"):
            found = self._membership(name, domain)
            return Not(found) if negated else found
        lexeme = self._take("a comparison")
        sign = {"==": "=", "<>": "!="}.get(lexeme.text, lexeme.text)
        if negated or lexeme.kind != "sign" or sign not in _COMPARE:
            raise self._wrong(lexeme, "=, !=, <, <=, >, >=, in, or is missing")
        return self._compared(name, domain, sign)

    def _compared(self, name: str, domain: Domain, sign: str) -> Condition:
        lexeme = self._peek()
        if isinstance(domain, NumberDomain):
            value = self._number(name)
            return Leaf(name, operator=sign, value=domain.scale(value))  # type: ignore[arg-type]  # one of _COMPARE
        if sign not in ("=", "!="):
            raise self._wrong(lexeme, f"= or != or in: {name!r} has categories, which have no order", after=True)
        leaf = Leaf(name, codes=frozenset([self._level(name, domain)]))
        return leaf if sign == "=" else Not(leaf)

    def _membership(self, name: str, domain: Domain) -> Condition:
        self._want_sign("(")
        parts: list[Condition] = []
        codes: set[int] = set()
        while True:
            if isinstance(domain, NumberDomain):
                parts.append(Leaf(name, operator="=", value=domain.scale(self._number(name))))
            else:
                codes.add(self._level(name, domain))
            if not self._take_sign(","):
                break
        self._want_sign(")")
        if isinstance(domain, LevelDomain):
            return Leaf(name, codes=frozenset(codes))
        return parts[0] if len(parts) == 1 else Both(tuple(parts), any_of=True)

    def _level(self, name: str, domain: LevelDomain) -> int:
        lexeme = self._take("a category")
        if lexeme.kind not in ("text", "quoted", "number"):
            raise self._wrong(lexeme, f"a category of {name!r} in quotes")
        text = unquoted(lexeme)
        if text not in domain.levels:
            raise HostileInput(
                f"{self._text!r}: {text!r} is not a category of {name!r}.", f"Categories: {', '.join(domain.levels[:20])}."
            )
        return domain.levels.index(text)

    def _number(self, name: str) -> float:
        negative = self._take_sign("-")
        lexeme = self._take("a number")
        if lexeme.kind != "number":
            raise self._wrong(lexeme, f"a number, as {name!r} has,")
        value = float(lexeme.text)
        if not np.isfinite(value):
            raise self._wrong(lexeme, "a finite number")
        return -value if negative else value

    # -- lexemes ------------------------------------------------------------------------------------------------------------

    def _peek(self) -> Lexeme:
        return self._lexemes[self._next]

    def _take(self, wanted: str) -> Lexeme:
        lexeme = self._peek()
        if lexeme.kind == "end":
            raise self._wrong(lexeme, wanted)
        self._next += 1
        return lexeme

    def _take_word(self, word: str) -> bool:
        lexeme = self._peek()
        found = lexeme.kind == "word" and lexeme.text.lower() == word
        self._next += found
        return found

    def _take_sign(self, sign: str) -> bool:
        lexeme = self._peek()
        found = lexeme.kind == "sign" and lexeme.text == sign
        self._next += found
        return found

    def _want_sign(self, sign: str) -> None:
        if not self._take_sign(sign):
            raise self._wrong(self._peek(), f"{sign!r}")

    def end(self) -> None:
        if self._peek().kind != "end":
            raise self._wrong(self._peek(), "and, or, or the end")

    def _wrong(self, lexeme: Lexeme, wanted: str, *, after: bool = False) -> HostileInput:
        there = "its end" if lexeme.kind == "end" else f"character {lexeme.place + 1} ({lexeme.text!r})"
        return HostileInput(f"{self._text!r}: at {there} {wanted} is expected{' before it' if after else ''}.")
