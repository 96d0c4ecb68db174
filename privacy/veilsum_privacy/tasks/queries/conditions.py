"""Conditions on columns, as ``where`` of a query states them, and arithmetic of derived numbers; Python evaluates neither.

``age >= 65 and dx in ('I21', 'I50') and not (icu = 'yes')``: comparisons of a column with a constant (``= != < <= > >=``),
``in``, ``is missing``, ``and``, ``or``, ``not`` and parentheses. The logic has two values: a missing value fails every
comparison, so that ``not (age >= 65)`` holds where the age is missing. Numbers are compared as scaled by the schema's bounds,
and a constant is scaled in the same way: equal values stay equal.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Operator = Literal["=", "!=", "<", "<=", ">", ">="]

MAX_LENGTH = 2000
"""Characters of a condition."""

MAX_DEPTH = 32
"""Parentheses and ``not`` within one another."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(?P<text>'(?:[^']|'')*')"
    r"|(?P<quoted>\"(?:[^\"]|\"\")*\")|(?P<word>[^\W\d][\w.]*)|(?P<sign><=|>=|!=|<>|==|=|<|>|\(|\)|,|\+|-|\*|/))"
)
_COMPARE: Mapping[str, Callable[[Floats, float], Bools]] = {
    "=": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal
}  # fmt: skip


@dataclass(frozen=True)
class NumberCells:
    """Values of a numeric column, scaled by its public bounds: ``x`` (n,) in [-1, 1] and ``present`` (n,)."""

    x: Floats
    present: Bools


@dataclass(frozen=True)
class LevelCells:
    """Levels of a categorical column: ``codes`` (n,), -1 where the value is missing."""

    codes: NDArray[np.int64]

    @property
    def present(self) -> Bools:
        """Where there is a value."""
        return self.codes >= 0


Cells = NumberCells | LevelCells


def number_cells(cells: Mapping[str, Cells], name: str) -> NumberCells:
    """The cells of a numeric column."""
    found = cells[name]
    if not isinstance(found, NumberCells):
        raise HostileInput(f"{name!r} is no numeric column.")
    return found


def level_cells(cells: Mapping[str, Cells], name: str) -> LevelCells:
    """The cells of a categorical column."""
    found = cells[name]
    if not isinstance(found, LevelCells):
        raise HostileInput(f"{name!r} is no categorical column.")
    return found


@dataclass(frozen=True)
class NumberDomain:
    """What values a numeric column can have: ``low`` to ``high`` in its unit."""

    low: float
    high: float
    unit: str = ""

    def scale(self, value: float) -> float:
        """A value as its cells are scaled, the same to the last bit; beyond the bounds it lies beyond -1 and 1."""
        if value <= self.low or value >= self.high:
            beyond = (value - self.high if value >= self.high else value - self.low) / (self.high / 2.0 - self.low / 2.0)
            return (1.0 if value >= self.high else -1.0) + beyond
        return min(max((value - self.low) / (self.high / 2.0 - self.low / 2.0) - 1.0, -1.0), 1.0)

    def value(self, x: float) -> float:
        """The value in the column's unit of a scaled one."""
        return self.low + (x + 1.0) * (self.high / 2.0 - self.low / 2.0)


@dataclass(frozen=True)
class LevelDomain:
    """What values a categorical column can have."""

    levels: tuple[str, ...]


Domain = NumberDomain | LevelDomain


class Condition(ABC):
    """A condition; three forms of one truth: for records, for what is partly known, and where it changes."""

    @abstractmethod
    def holds(self, cells: Mapping[str, Cells]) -> Bools:
        """Where records fulfil it, (n,)."""

    @abstractmethod
    def possible(self, cells: Mapping[str, Cells]) -> tuple[Bools, Bools]:
        """Where it can hold, and where it can fail, if columns that are not given may have any value."""

    @abstractmethod
    def leaves(self) -> Iterator[Leaf]:
        """Its comparisons."""

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

    def holds(self, cells: Mapping[str, Cells]) -> Bools:
        found = cells[self.column]
        if self.missing:
            return ~found.present
        if isinstance(found, LevelCells):
            return np.isin(found.codes, sorted(self.codes)) & found.present
        truth: Bools = found.present & _COMPARE[self.operator or "="](found.x, self.value)
        return truth

    def possible(self, cells: Mapping[str, Cells]) -> tuple[Bools, Bools]:
        if self.column not in cells:
            size = max((len(item.present) for item in cells.values()), default=1)
            return np.ones(size, np.bool_), np.ones(size, np.bool_)
        truth = self.holds(cells)
        return truth, ~truth

    def leaves(self) -> Iterator[Leaf]:
        yield self


@dataclass(frozen=True)
class Both(Condition):
    """``and`` of all parts, or ``or`` where ``any_of``."""

    parts: tuple[Condition, ...]
    any_of: bool = False

    def holds(self, cells: Mapping[str, Cells]) -> Bools:
        truths = [part.holds(cells) for part in self.parts]
        found: Bools = np.logical_or.reduce(truths) if self.any_of else np.logical_and.reduce(truths)
        return found

    def possible(self, cells: Mapping[str, Cells]) -> tuple[Bools, Bools]:
        true, false = zip(*(part.possible(cells) for part in self.parts), strict=True)
        if self.any_of:
            return np.logical_or.reduce(true), np.logical_and.reduce(false)
        return np.logical_and.reduce(true), np.logical_or.reduce(false)

    def leaves(self) -> Iterator[Leaf]:
        for part in self.parts:
            yield from part.leaves()


@dataclass(frozen=True)
class Not(Condition):
    """The opposite."""

    part: Condition

    def holds(self, cells: Mapping[str, Cells]) -> Bools:
        return ~self.part.holds(cells)

    def possible(self, cells: Mapping[str, Cells]) -> tuple[Bools, Bools]:
        true, false = self.part.possible(cells)
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


@dataclass(frozen=True)
class _Lexeme:
    kind: str
    text: str
    place: int


class _Parser:
    """Recursive descent over the lexemes of one text."""

    def __init__(self, text: str, domains: Mapping[str, Domain]) -> None:
        if len(text) > MAX_LENGTH:
            raise HostileInput(f"A condition has {len(text)} characters; at most {MAX_LENGTH} are read.")
        self._text, self._domains = text, domains
        self._lexemes = list(_lexemes_of(text))
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
        name = _unquoted(lexeme)
        domain = self._domains.get(name)
        if domain is None:
            raise HostileInput(
                f"{self._text!r}: there is no column {name!r} in the schema.", f"Columns: {', '.join(self._domains)}."
            )
        if self._take_word("is"):
            negated = self._take_word("not")
            if not self._take_word("missing"):
                raise self._wrong(self._peek(), "missing")
            leaf = Leaf(name, missing=True)
            return Not(leaf) if negated else leaf
        negated = self._take_word("not")
        if self._take_word("in"):
            found = self._membership(name, domain)
            return _given_and_not(name, found) if negated else found
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
        return leaf if sign == "=" else _given_and_not(name, leaf)

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
        text = _unquoted(lexeme)
        if text not in domain.levels:
            raise HostileInput(
                f"{self._text!r}: {text!r} is no category of {name!r}.", f"Categories: {', '.join(domain.levels[:20])}."
            )
        return domain.levels.index(text)

    def _number(self, name: str) -> float:
        negative = self._take_sign("-")
        lexeme = self._take("a number")
        if lexeme.kind != "number":
            raise self._wrong(lexeme, f"a number, as {name!r} has")
        value = float(lexeme.text)
        if not np.isfinite(value):
            raise self._wrong(lexeme, "a finite number")
        return -value if negative else value

    # -- lexemes ------------------------------------------------------------------------------------------------------------

    def _peek(self) -> _Lexeme:
        return self._lexemes[self._next]

    def _take(self, wanted: str) -> _Lexeme:
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

    def _wrong(self, lexeme: _Lexeme, wanted: str, *, after: bool = False) -> HostileInput:
        there = "its end" if lexeme.kind == "end" else f"character {lexeme.place + 1} ({lexeme.text!r})"
        return HostileInput(f"{self._text!r}: at {there} {wanted} is expected{' before it' if after else ''}.")


def _given_and_not(name: str, condition: Condition) -> Condition:
    """A value that is there, and another one: missing values fail ``!=`` and ``not in`` as they fail every comparison."""
    return Both((Not(Leaf(name, missing=True)), Not(condition)))


def _lexemes_of(text: str) -> Iterator[_Lexeme]:
    place = 0
    end = len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None or match.lastgroup is None:
            start = place + len(text[place:]) - len(text[place:].lstrip())
            raise HostileInput(f"{text!r}: character {start + 1} ({text[start]!r}) belongs to no condition.")
        kind = match.lastgroup
        yield _Lexeme(kind, match.group(kind), match.start(kind))
        place = match.end()
    yield _Lexeme("end", "", len(text))


def _unquoted(lexeme: _Lexeme) -> str:
    if lexeme.kind in ("text", "quoted"):
        quote = lexeme.text[0]
        return lexeme.text[1:-1].replace(quote * 2, quote)
    return lexeme.text


# -- arithmetic ------------------------------------------------------------------------------------------------------------


FUNCTIONS = ("log", "above")


@dataclass(frozen=True)
class Number:
    """A column in its unit, or a function of it.

    Attributes:
        column: name.
        function: "" for the column itself, "log" for its natural logarithm, "above" for what it exceeds a constant by, or 0.
        constant: of "above", in the column's unit.
    """

    column: str
    function: str = ""
    constant: float = 0.0

    def of(self, values: Floats) -> Floats:
        """The values of the column (n,), as the function has them."""
        if self.function == "log":
            return np.asarray(np.log(values), dtype=np.float64)
        return np.maximum(values - self.constant, 0.0) if self.function == "above" else values


@dataclass(frozen=True)
class Product:
    """``factor`` times the product of numbers, and of conditions, which count as 1 where they hold and else as 0."""

    factor: float
    numbers: tuple[Number, ...]
    conditions: tuple[Condition, ...] = ()

    @property
    def sources(self) -> frozenset[str]:
        """All columns that it reads."""
        return frozenset(number.column for number in self.numbers).union(*(each.columns for each in self.conditions))


def parse_sum(text: str, domains: Mapping[str, Domain]) -> tuple[Product, ...]:
    """Read ``weight / 2 - 1.5 * log(height) + above(age, 50) + 2 * (smoker = 'yes')``: a sum of products of numeric columns,
    functions of one, constants, and conditions in brackets, which count as 1 where they hold.

    Raises:
        HostileInput: it is something else, or has a column that is no number.
    """
    if len(text) > MAX_LENGTH:
        raise HostileInput(f"An expression has {len(text)} characters; at most {MAX_LENGTH} are read.")
    return _SumParser(text, domains).parse()


class _SumParser:
    """Reads the lexemes of one expression from left to right."""

    def __init__(self, text: str, domains: Mapping[str, Domain]) -> None:
        self._text, self._domains, self._lexemes, self._place = text, domains, list(_lexemes_of(text)), 0

    def parse(self) -> tuple[Product, ...]:
        found = [self._product(self._sign())]
        while self._lexemes[self._place].kind != "end":
            if self._lexemes[self._place].text not in ("+", "-"):
                raise HostileInput(f"{self._text!r}: +, -, * or / is expected, not {self._lexemes[self._place].text!r}.")
            found.append(self._product(self._sign()))
        return tuple(found)

    def _sign(self) -> float:
        text = self._lexemes[self._place].text
        self._place += text in ("+", "-")
        return -1.0 if text == "-" else 1.0

    def _product(self, factor: float) -> Product:
        numbers, conditions, divide = list[Number](), list[Condition](), False
        while True:
            lexeme = self._lexemes[self._place]
            if lexeme.kind == "number":
                value = self._constant(nonzero=divide)
                factor = factor / value if divide else factor * value
            elif lexeme.kind in ("word", "quoted") and not divide:
                numbers.append(self._number())
            elif lexeme.text == "(" and not divide:
                last = _closing(self._lexemes, self._place, self._text)
                inside = self._text[lexeme.place + 1 : self._lexemes[last].place]
                conditions.append(parse_condition(inside, self._domains))
                self._place = last + 1
            else:
                raise HostileInput(
                    f"{self._text!r}: a numeric column or a number is expected, not {lexeme.text or 'the end'!r}.",
                    "Sums of products of columns, log(column), above(column, number), constants and conditions in brackets "
                    "can be derived; a column cannot be divided by.",
                )
            operator = self._lexemes[self._place].text
            if operator not in ("*", "/"):
                return Product(factor, tuple(numbers), tuple(conditions))
            divide = operator == "/"
            self._place += 1

    def _constant(self, *, nonzero: bool = False) -> float:
        lexeme = self._lexemes[self._place]
        value = float(lexeme.text) if lexeme.kind == "number" else math.nan
        if not math.isfinite(value) or (nonzero and value == 0.0):
            raise HostileInput(f"{self._text!r}: {lexeme.text or 'the end'} cannot stand there.")
        self._place += 1
        return value

    def _number(self) -> Number:
        lexeme, after = self._lexemes[self._place], self._lexemes[self._place + 1]
        self._place += 1
        if lexeme.kind == "word" and after.text == "(":
            return self._function(lexeme.text.lower())
        return Number(self._column(_unquoted(lexeme)))

    def _function(self, name: str) -> Number:
        if name not in FUNCTIONS:
            raise HostileInput(f"{self._text!r}: there is no function {name!r}.", f"Functions: {', '.join(FUNCTIONS)}.")
        self._place += 1
        column = self._column(_unquoted(self._lexemes[self._place]))
        self._place += 1
        constant = 0.0
        if name == "above":
            self._want(",")
            constant = self._sign() * self._constant()
        self._want(")")
        domain = self._domains[column]
        if name == "log" and isinstance(domain, NumberDomain) and domain.low <= 0.0:
            raise HostileInput(
                f"{self._text!r}: {column!r} can be {domain.low:g}, which has no logarithm.",
                "Take a lower bound above 0 in the schema, or derive the column plus a constant first.",
            )
        return Number(column, name, constant)

    def _column(self, name: str) -> str:
        if not isinstance(self._domains.get(name), NumberDomain):
            raise HostileInput(f"{self._text!r}: {name!r} is no numeric column of the schema.")
        return name

    def _want(self, sign: str) -> None:
        if self._lexemes[self._place].text != sign:
            raise HostileInput(f"{self._text!r}: {sign!r} is expected, not {self._lexemes[self._place].text or 'the end'!r}.")
        self._place += 1


def _closing(lexemes: Sequence[_Lexeme], opening: int, text: str) -> int:
    """Where the bracket that opens there closes."""
    depth = 0
    for place in range(opening, len(lexemes)):
        depth += (lexemes[place].text == "(") - (lexemes[place].text == ")")
        if depth == 0:
            return place
    raise HostileInput(f"{text!r}: the bracket at character {lexemes[opening].place + 1} is not closed.")


def evaluate_sum(
    terms: Sequence[Product], cells: Mapping[str, Cells], domains: Mapping[str, Domain], count: int
) -> NumberCells:
    """The value of an expression for each of so many records, in its own unit, as ``x``; present where all its columns are.

    Numbers are taken back to their units and rounded to 12 digits, so that what scaling did to the last bits does not show.
    """
    bounds = {name: (domain.low, domain.high) for name, domain in domains.items() if isinstance(domain, NumberDomain)}
    total, present = np.zeros(count), np.ones(count, np.bool_)
    for term in terms:
        product = np.full(count, term.factor)
        for number in term.numbers:
            found, (low, high) = number_cells(cells, number.column), bounds[number.column]
            values = low + (found.x + 1.0) * (high / 2.0 - low / 2.0)
            product = product * number.of(np.clip(_rounded(values, max(abs(low), abs(high))), low, high))
            present = present & found.present
        for condition in term.conditions:
            product = product * condition.holds(cells)
            for name in condition.columns:
                present = present & cells[name].present
        total = total + product
    return NumberCells(total, present)


def _rounded(values: Floats, largest: float) -> Floats:
    step = 10.0 ** (np.floor(np.log10(largest)) - 12.0)
    return np.asarray(np.rint(values / step) * step, dtype=np.float64)
