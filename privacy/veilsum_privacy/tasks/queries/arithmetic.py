"""Arithmetic of derived numbers, as ``number`` of a derived column states it; it is never evaluated by Python."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.mechanism.rows.symbols import Value, symbol, where
from veilsum_privacy.tasks.queries.cells import Cells, Domain, NumberDomain, ScaledNumbers, number_cells
from veilsum_privacy.tasks.queries.conditions import Condition, parse_condition
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH, Lexeme, lexemes_of, unquoted

FUNCTIONS = ("log", "above", "filled")


@dataclass(frozen=True)
class Number:
    """A column in its unit, or a function of it.

    Attributes:
        column: name.
        function: "" for the column itself, "log" for its natural logarithm, "above" for what it exceeds a constant by, or 0,
            "filled" for itself and a constant where it is missing.
        constant: of "above" and "filled", in the column's unit.
    """

    column: str
    function: str = ""
    constant: float = 0.0

    def of(self, values: Value) -> Value:
        """The values of the column, as the function has them."""
        if self.function == "log":
            return np.log(values)
        return np.maximum(values - self.constant, 0.0) if self.function == "above" else values

    @property
    def optional(self) -> bool:
        """Whether it has a value where its column has none."""
        return self.function == "filled"


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
        HostileInput: it is something else, or has a column that is not a number.
    """
    if len(text) > MAX_LENGTH:
        raise HostileInput(f"An expression has {len(text)} characters; at most {MAX_LENGTH} are read.")
    return _SumParser(text, domains).parse()


class _SumParser:
    """Reads the lexemes of one expression from left to right."""

    def __init__(self, text: str, domains: Mapping[str, Domain]) -> None:
        self._text, self._domains, self._lexemes, self._place = text, domains, list(lexemes_of(text)), 0

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
                if not math.isfinite(factor):
                    raise HostileInput(f"{self._text!r}: its constants multiply to more than any number.", "Correct them.")
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
                    "Sums of products of columns, log(column), above(column, number), filled(column, number), constants and "
                    "conditions in brackets can be derived; a column cannot be divided by.",
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
        return Number(self._column(unquoted(lexeme)))

    def _function(self, name: str) -> Number:
        if name not in FUNCTIONS:
            raise HostileInput(f"{self._text!r}: no function is called {name!r}.", f"Functions: {', '.join(FUNCTIONS)}.")
        self._place += 1
        column = self._column(unquoted(self._lexemes[self._place]))
        self._place += 1
        constant = 0.0
        if name in ("above", "filled"):
            self._want(",")
            constant = self._sign() * self._constant()
        self._want(")")
        domain = self._domains[column]
        if name == "filled" and isinstance(domain, NumberDomain) and not domain.low <= constant <= domain.high:
            raise HostileInput(
                f"{self._text!r}: {constant:g} is not a value of {column!r}.",
                f"State one from {domain.low:g} to {domain.high:g}.",
            )
        if name == "log" and isinstance(domain, NumberDomain) and domain.low <= 0.0:
            raise HostileInput(
                f"{self._text!r}: {column!r} can be {domain.low:g}, which has no logarithm.",
                "Take a lower bound above 0 in the schema, or derive the column plus a constant first.",
            )
        return Number(column, name, constant)

    def _column(self, name: str) -> str:
        if not isinstance(self._domains.get(name), NumberDomain):
            raise HostileInput(f"{self._text!r}: {name!r} is not a numeric column of the schema.")
        return name

    def _want(self, sign: str) -> None:
        if self._lexemes[self._place].text != sign:
            raise HostileInput(f"{self._text!r}: {sign!r} is expected, not {self._lexemes[self._place].text or 'the end'!r}.")
        self._place += 1


def _closing(lexemes: Sequence[Lexeme], opening: int, text: str) -> int:
    """Where the bracket that opens there closes."""
    depth = 0
    for place in range(opening, len(lexemes)):
        depth += (lexemes[place].text == "(") - (lexemes[place].text == ")")
        if depth == 0:
            return place
    raise HostileInput(f"{text!r}: the bracket at character {lexemes[opening].place + 1} is not closed.")


def evaluate_sum(terms: Sequence[Product], cells: Mapping[str, Cells], domains: Mapping[str, Domain]) -> ScaledNumbers:
    """The value of an expression for a record, in its own unit, as ``x``; present where its numbers are, but those that are
    filled, and where its conditions are true or false.

    Numbers are taken back to their units and rounded to 12 digits, so that what scaling did to the last bits does not show.
    """
    bounds = {name: (domain.low, domain.high) for name, domain in domains.items() if isinstance(domain, NumberDomain)}
    total, present = symbol(0.0), symbol(np.True_)
    for term in terms:
        product: Value = term.factor
        for number in term.numbers:
            found, (low, high) = number_cells(cells, number.column), bounds[number.column]
            values = low + (found.x + 1.0) * (high / 2.0 - low / 2.0)
            values = number.of(np.clip(_rounded(values, max(abs(low), abs(high))), low, high))
            if number.optional:
                values = where(found.present, values, number.constant)
            else:
                present = present & found.present
            product = product * values
        for condition in term.conditions:
            product = product * condition.holds(cells)
            present = present & condition.known(cells)
        total = total + product
    return ScaledNumbers(total, present)


def _rounded(values: Value, largest: float) -> Value:
    step = 10.0 ** (np.floor(np.log10(largest)) - 12.0)
    return np.rint(values / step) * step
