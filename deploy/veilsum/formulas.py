"""A formula, ``died ~ age + C(sex) * treated + bs(bmi, knots=[25, 30])``, as parameters of a regression.

formulaic cuts a formula into terms and factors; each factor is then read as a tree of syntax, of which the few forms below are
known. Nothing of it is evaluated by Python. A factor becomes columns that public rules derive
(:class:`~veilsum_privacy.tasks.queries.language.DerivedColumn`), named as statsmodels names the columns of a design.

What would need the records' own levels, means, quantiles or bounds is refused with what to state in its place: they are not
public, and a site computes no design of its own.

B-splines are those of de Boor (1972); natural cubic splines the cardinal ones of Wood (2006), section 4.1.2, without the
first, which the constant stands for.
"""

import ast
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
from scipy.interpolate import BSpline, CubicSpline, PPoly

from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, HostileInput, raising
from veilsum_node.process.software import install_extra
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.queries.cells import Domain, LevelDomain, NumberDomain
from veilsum_privacy.tasks.queries.conditions import parse_condition
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn
from veilsum_privacy.tasks.queries.lexemes import MAX_LENGTH

MOST_TERMS, MOST_COLUMNS = 128, 127
"""Terms of a formula, and columns that they make: as many as a regression has coefficients."""

MOST_STARS, LARGEST_POWER = 8, 4
"""``*`` between terms, of which each doubles their number; and the largest exponent."""

NOTHING = 1e-12
"""What a term of a spline's basis, which lies about [-1, 1], adds at most if it is left out."""

Products = tuple[tuple[float, tuple[str, ...]], ...]
"""A sum: factors with what each multiplies, as :func:`veilsum_privacy.tasks.queries.arithmetic.parse_sum` reads it."""


def has_formula(text: str) -> bool:
    """Whether a text is a formula, and no column or condition: it has a ``~`` outside of quotes."""
    return isinstance(text, str) and "~" in re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", "", text)


@dataclass(frozen=True)
class _Piece:
    """One column that a factor makes: a sum of products, and what it lies between."""

    name: str
    products: Products
    low: float
    high: float

    def times(self, other: "_Piece") -> "_Piece":
        """The product of both, whose name is statsmodels'."""
        ends = [one * another for one in (self.low, self.high) for another in (other.low, other.high)]
        both = tuple((one[0] * another[0], (*one[1], *another[1])) for one, another in product(self.products, other.products))
        return _Piece(f"{self.name}:{other.name}", both, min(ends), max(ends))

    @property
    def text(self) -> str:
        """As a derived column states it."""
        parts = []
        for place, (factor, rest) in enumerate(self.products):
            sign = "-" if factor < 0.0 else "+" if place else ""
            size = abs(factor)
            value = () if size == 1.0 and rest else (f"{size!r}",)
            parts.append(f"{sign} {' * '.join((*value, *rest))}".strip())
        return " ".join(parts)


@dataclass(frozen=True)
class _Factor:
    """A factor of a formula's terms.

    Attributes:
        text: as it is written.
        column: where it is a column of the schema and nothing else, its name.
        pieces: columns in the model; of a category one for each level.
        reference: which level stands for the others, of a category; -1 of what is not a category.
    """

    text: str
    pieces: tuple[_Piece, ...]
    column: str = ""
    reference: int = -1

    def coded(self, *, full: bool) -> tuple[_Piece, ...]:
        """The columns of a category, with the reference's or without it."""
        if self.reference < 0:
            return self.pieces
        if full:
            return tuple(_renamed(piece, piece.name.replace("[T.", "[", 1)) for piece in self.pieces)
        return tuple(piece for place, piece in enumerate(self.pieces) if place != self.reference)


def _renamed(piece: _Piece, name: str) -> _Piece:
    return _Piece(name, piece.products, piece.low, piece.high)


@dataclass
class _Design:
    """What a formula comes to.

    Attributes:
        over: terms of the regression.
        derive: the columns among them that are derived, by name.
        reference: levels other than the first that a category is compared with.
    """

    over: list[str] = field(default_factory=list)
    derive: dict[str, dict[str, Any]] = field(default_factory=dict)
    reference: dict[str, str] = field(default_factory=dict)


def formula_parameters(
    family: str, text: str, schema: DatasetSchema, derive: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """``outcome``, ``over``, ``derive`` and ``reference`` of the method "regression".

    Args:
        text: the formula; of ``cox`` its left side is the time.
        schema: of the dataset; all levels and bounds are its own.
        derive: columns that the study derives beside the schema's.

    Raises:
        ConfigurationError: it cannot be read, names what is not a column, or needs what only the records tell; the message
            says what to state.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigurationError(f"The formula has {len(text)} characters; at most {MAX_LENGTH} are read.", "Use fewer terms.")
    left, right = _sides(text)
    try:
        given = [DerivedColumn.model_validate({**own, "name": name, "edges": _edges(own)}) for name, own in derive.items()]
        columns = Columns(schema, given)
    except (HostileInput, ValueError) as error:
        raise ConfigurationError(f"derive: {error}", "Correct the derived columns.") from error
    reader = _Reader(columns, {column.name for column in schema.columns if column.impute is not None})
    design = reader.design(_terms(right))
    outcome = reader.outcome(left, family)
    if not design.over:
        raise ConfigurationError(f"{text!r} has no terms.", f"Name what explains {left!r}: {left} ~ age + sex.")
    return {
        "outcome": outcome,
        "over": design.over,
        "derive": {**{name: dict(own) for name, own in derive.items()}, **reader.derived, **design.derive},
        "reference": design.reference,
    }


def _edges(own: Mapping[str, Any]) -> Any:
    edges = own.get("edges", ())
    if isinstance(edges, Mapping):
        from veilsum_coordinator.parts.query_requests import EdgeRange

        return EdgeRange.model_validate(edges).edges()
    return tuple(edges)


def _sides(text: str) -> tuple[str, str]:
    bare = re.sub(r"'[^']*'|\"[^\"]*\"|`[^`]*`", lambda found: "_" * len(found[0]), text)
    if bare.count("~") != 1 or "|" in bare:
        raise ConfigurationError(
            f"{text!r} is not a formula of one outcome.", "Write outcome ~ terms, such as died ~ age + C(sex)."
        )
    place = bare.index("~")
    left, right = text[:place].strip(), text[place + 1 :].strip()
    if not left or not right:
        raise ConfigurationError(
            f"{text!r} has nothing {'before' if right else 'behind'} the ~.", "Write outcome ~ terms, such as died ~ age."
        )
    outside = re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", bare[place + 1 :]))
    powers = [int(found) for found in re.findall(r"\*\*\s*(\d+)", bare)]
    if outside.replace("**", "").count("*") > MOST_STARS or any(power > LARGEST_POWER for power in powers):
        raise ConfigurationError(
            f"{text!r} multiplies too much.", f"At most {MOST_STARS} times `*` between terms, and powers to {LARGEST_POWER}."
        )
    return left, right


def _terms(right: str) -> list[tuple[str, ...]]:
    """The factors of each term but the constant, as texts, in order."""
    with raising(
        ConfigurationError("A formula needs the package formulaic.", f"Install it with: {install_extra('formula')}"),
        on=ImportError,
    ):
        from formulaic.parser import DefaultFormulaParser
    try:
        found = list(DefaultFormulaParser(include_intercept=True).get_terms(right))
        terms = [tuple(str(factor.expr) for factor in term.factors) for term in found]
    except Exception as error:
        why = " ".join(re.sub(r"[⧛⧚]|\x1b?\[[0-9;]+m", "", str(error)).split())[:200]  # without a terminal's colours
        told = f"{right!r} cannot be read as the right side of a formula ({why.rstrip('.')})."
        raise ConfigurationError(told, "Write terms as in age + C(sex) * treated.") from error
    if ("1",) not in terms:
        raise ConfigurationError(
            "The formula takes the constant out; a regression has one.", "Leave out - 1 or 0 +: a category has a reference."
        )
    if len(terms) > MOST_TERMS:
        raise ConfigurationError(f"The formula has {len(terms)} terms; at most {MOST_TERMS} can be.", "Use fewer.")
    return [term for term in terms if term != ("1",)]


class _Reader:
    """Reads factors by the columns that there are.

    Attributes:
        derived: columns that factors need beside the terms, by name.
    """

    def __init__(self, columns: Columns, imputed: set[str]) -> None:
        self._domains: dict[str, Domain] = dict(columns.domains)
        self._imputed, self.derived = imputed, dict[str, dict[str, Any]]()
        self._calls: Mapping[str, Callable[[str, ast.Call], _Factor]] = {
            "C": self._category,
            "I": lambda text, call: self._arithmetic(text, _only(text, call)),
            "Q": lambda text, call: self._named(_constant_text(text, _only(text, call)), text),
            "bs": self._b_spline,
            "cr": self._natural_spline,
            "ns": self._natural_spline,
            "missing": self._missing,
            "filled": self._filled,
            "log": self._arithmetic,
            "above": self._arithmetic,
            "np.log": self._arithmetic,
        }

    # -- terms and outcome -------------------------------------------------------------------------------------------------

    def design(self, terms: Sequence[tuple[str, ...]]) -> _Design:
        """The columns of all terms, each once."""
        found, present = _Design(), {frozenset[str](), *(frozenset(term) for term in terms)}
        count = 0
        for term in terms:
            factors = [self.factor(text) for text in term]
            full = [
                factor.reference >= 0 and len(factors) > 1 and frozenset(term) - {text} not in present
                for text, factor in zip(term, factors, strict=True)
            ]
            if sum(full) > 1:
                raise ConfigurationError(
                    f"{':'.join(term)} stands without the terms that it is made of.",
                    f"Write {' * '.join(term)}, which has them all.",
                )
            if len(factors) == 1 and (column := factors[0].column):
                found.over.append(column)
                if factors[0].reference > 0:
                    domain = self._domains[column]
                    found.reference[column] = domain.levels[factors[0].reference] if isinstance(domain, LevelDomain) else ""
                count += max(1, len(factors[0].pieces) - 1)
            else:
                for pieces in product(*(factor.coded(full=own) for factor, own in zip(factors, full, strict=True))):
                    whole = pieces[0]
                    for piece in pieces[1:]:
                        whole = whole.times(piece)
                    self._add(found, whole)
                    count += 1
            if count > MOST_COLUMNS:
                raise ConfigurationError(
                    f"The formula makes more than {MOST_COLUMNS} columns.", "Use fewer terms, or merge levels in the schema."
                )
        return found

    def _add(self, found: _Design, piece: _Piece) -> None:
        name = piece.name if len(piece.name) <= 128 else f"{piece.name[:120]}~{len(found.over)}"
        if name in self._domains or name in found.over:
            raise ConfigurationError(f"The formula has {name!r} twice.", "Write each term once.")
        text = piece.text
        if len(text) > MAX_LENGTH:
            raise ConfigurationError(
                f"{name!r} is too long an expression: {len(text)} characters, of {MAX_LENGTH} at most.",
                "Use fewer knots, or no interaction of two splines.",
            )
        reach = max(abs(piece.low), abs(piece.high))
        if not math.isfinite(reach):
            raise ConfigurationError(f"{name!r} grows beyond any number within its bounds.", "Divide by a constant.")
        low, high = piece.low, piece.high
        if low == 0.0:  # a column that is mostly 0 lies in the middle of its range, where it has no length
            low = -high
        if not low < high:
            raise ConfigurationError(f"{name!r} does not vary within the schema's bounds.", "Leave the term out.")
        found.over.append(name)
        found.derive[name] = {"number": text, "low": low, "high": high}

    def outcome(self, text: str, family: str) -> str:
        """A column, or the condition that an event is."""
        name = text[1:-1] if text.startswith("`") and text.endswith("`") else text
        domain = self._domains.get(name)
        if domain is None:
            if re.fullmatch(r"[^\W\d][\w.]*", name) or text.startswith("`"):
                raise ConfigurationError(f"The schema has no column {name!r}.", did_you_mean(name, self._domains))
            try:
                parse_condition(text, self._domains)
            except HostileInput as error:
                raise ConfigurationError(error.message, error.advice or "Name a column, or a condition.") from error
            return text
        if isinstance(domain, NumberDomain):
            return name
        if family in ("poisson", "cox"):
            raise ConfigurationError(f"{name!r} has categories; a {family} regression explains a number.", "Name another.")
        if len(domain.levels) != 2:
            raise ConfigurationError(
                f"{name!r} has the categories {', '.join(domain.levels[:8])}; an event is one of two.",
                f"State which it is: {_quoted(name)} = {_text(domain.levels[-1])} ~ ...",
            )
        return f"{_quoted(name)} = {_text(domain.levels[1])}"

    # -- factors -----------------------------------------------------------------------------------------------------------

    def factor(self, text: str) -> _Factor:
        """One factor.

        Raises:
            ConfigurationError: it is none of the forms that are known.
        """
        if text in self._domains:
            return self._named(text, text)
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._unknown(text) from error
        try:
            if isinstance(tree, ast.Call):
                read = self._calls.get(_called(tree))
                if read is None:
                    raise self._refused(text, _called(tree))
                return read(text, tree)
            if isinstance(tree, ast.Name):
                return self._named(tree.id, text)
            if isinstance(tree, ast.Constant):
                raise ConfigurationError(f"{text!r} is a constant, which is not a term.", "Name a column.")
            return self._arithmetic(text, tree)
        except RecursionError as error:
            raise self._unknown(text) from error
        except HostileInput as error:
            raise ConfigurationError(error.message, error.advice) from error

    def _named(self, name: str, text: str) -> _Factor:
        domain = self._domains.get(name)
        if domain is None:
            raise ConfigurationError(f"{text!r}: the schema has no column {name!r}.", did_you_mean(name, self._domains))
        if isinstance(domain, NumberDomain):
            return _Factor(text, (_Piece(text, ((1.0, (_quoted(name),)),), domain.low, domain.high),), name)
        return self._levels(name, text, 0)

    def _levels(self, name: str, text: str, reference: int, filled: str = "") -> _Factor:
        domain = self._domains[name]
        levels = domain.levels if isinstance(domain, LevelDomain) else ()
        pieces = []
        for level in levels:
            condition = f"{_quoted(name)} = {_text(level)}"
            if filled:
                gap = f"{_quoted(name)} is missing"
                condition += f" or {gap}" if level == filled else f" and not ({gap})"
            pieces.append(_Piece(f"{text}[T.{level}]", ((1.0, (f"({condition})",)),), 0.0, 1.0))
        return _Factor(text, tuple(pieces), "" if filled else name, reference)

    def _category(self, text: str, call: ast.Call) -> _Factor:
        """``C(sex)``, ``C(sex, Treatment('m'))``, and of a filled category ``C(filled(smoker, 'no'))``."""
        if not call.args or len(call.args) > 2 or any(each.arg not in ("contr", "reference") for each in call.keywords):
            raise ConfigurationError(
                f"{text!r} is not a category.",
                "Write C(sex) or C(sex, Treatment('m')); the levels are the schema's categories.",
            )
        inner = self.factor(ast.unparse(call.args[0]))
        if inner.reference < 0:
            raise ConfigurationError(
                f"{text!r}: {ast.unparse(call.args[0])} is a number, and its values are not public categories.",
                "Declare it as a category in the schema, or cut it: derive={'age_group': {'of': 'age', 'edges': [50, 65]}}.",
            )
        named = [*call.args[1:], *(each.value for each in call.keywords)]
        reference = inner.reference
        for node in named:
            stated: ast.expr = node
            if isinstance(node, ast.Call) and _called(node) in ("Treatment", "contr.treatment"):
                given = [*node.args, *(each.value for each in node.keywords)]
                if len(given) != 1:
                    raise ConfigurationError(f"{text!r} names no reference.", "Write Treatment('m').")
                stated = given[0]
            elif isinstance(node, ast.Call | ast.Name):
                raise ConfigurationError(
                    f"{text!r}: of contrasts only Treatment is known.", "Write C(sex, Treatment('m')), or C(sex)."
                )
            level = _constant(text, stated)
            levels = [piece.name.rpartition("[T.")[2][:-1] for piece in inner.pieces]
            if str(level) not in levels:
                raise ConfigurationError(
                    f"{text!r}: {level!r} is not one of its categories.", f"Categories: {', '.join(levels[:20])}."
                )
            reference = levels.index(str(level))
        pieces = tuple(_renamed(piece, f"{text}[{piece.name.rpartition('[')[2]}") for piece in inner.pieces)
        return _Factor(text, pieces, inner.column, reference)

    def _missing(self, text: str, call: ast.Call) -> _Factor:
        """1 of a record without the value."""
        name = self._column_of(text, _only(text, call))
        return _Factor(text, (_Piece(text, ((1.0, (f"({_quoted(name)} is missing)",)),), 0.0, 1.0),))

    def _filled(self, text: str, call: ast.Call) -> _Factor:
        """A column with a public value where it is missing."""
        if len(call.args) != 2 or call.keywords:
            raise ConfigurationError(
                f"{text!r} does not say what stands for a missing value.",
                "State a public one: filled(bmi, 25) + missing(bmi); the records' mean is not public.",
            )
        name, value = self._column_of(text, call.args[0]), _constant(text, call.args[1])
        domain = self._domains[name]
        if isinstance(domain, LevelDomain):
            if str(value) not in domain.levels:
                raise ConfigurationError(
                    f"{text!r}: {value!r} is not one of its categories.", f"Categories: {', '.join(domain.levels[:20])}."
                )
            return self._levels(name, text, 0, str(value))
        number = _number(text, value)
        if not domain.low <= number <= domain.high:
            raise ConfigurationError(
                f"{text!r}: {number:g} lies outside of the schema's bounds.", f"From {domain.low:g} to {domain.high:g}."
            )
        word = f"filled({_quoted(name)}, {number!r})"
        return _Factor(text, (_Piece(text, ((1.0, (word,)),), domain.low, domain.high),))

    def _column_of(self, text: str, node: ast.expr) -> str:
        name = str(_constant(text, node)) if isinstance(node, ast.Constant) else _column_name(text, node)
        if name not in self._domains:
            raise ConfigurationError(
                f"{text!r}: the schema has no column {ast.unparse(node)!r}.", did_you_mean(name, self._domains)
            )
        if name in self._imputed:
            raise ConfigurationError(
                f"{text!r}: the schema imputes {name!r}, so none is missing.", "Leave `impute` out of the schema, or the term."
            )
        return name

    # -- splines -----------------------------------------------------------------------------------------------------------

    def _b_spline(self, text: str, call: ast.Call) -> _Factor:
        """``bs(x, knots=[...], degree=3, lower_bound=.., upper_bound=..)`` without the first column."""
        word, knots, (low, high), degree = self._spline(text, call, ("degree",))
        if not 1 <= degree <= LARGEST_POWER + 1:
            raise ConfigurationError(f"{text!r}: a degree lies between 1 and {LARGEST_POWER + 1}.", "Take 3.")
        places = np.concatenate([np.full(degree + 1, low), knots, np.full(degree + 1, high)])
        count = len(places) - degree - 1
        # scipy's basis ends in front of the last knot: the value there is the limit from the left, as truncated powers have it
        bases = [PPoly.from_spline(BSpline(places, np.eye(count)[at], degree)) for at in range(1, count)]
        return self._pieces(text, word, low, high, bases, first=1)

    def _natural_spline(self, text: str, call: ast.Call) -> _Factor:
        """``cr(x, knots=[...])``: straight beyond its bounds, of which no value is; without the first column."""
        word, knots, (low, high), _ = self._spline(text, call, ())
        places = np.array([low, *knots, high])
        bases = [CubicSpline(places, np.eye(len(places))[at], bc_type="natural") for at in range(1, len(places))]
        return self._pieces(text, word, low, high, bases, first=2)

    def _spline(self, text: str, call: ast.Call, more: Sequence[str]) -> tuple[str, list[float], tuple[float, float], int]:
        """The column as it is written, inner knots, bounds and degree; what the records would have to tell is refused."""
        given = {each.arg or "**": each.value for each in call.keywords}
        if len(call.args) != 1 or (unknown := sorted(given.keys() - {"knots", "lower_bound", "upper_bound", "df", *more})):
            raise ConfigurationError(
                f"{text!r}: {'state one column' if len(call.args) != 1 else unknown[0] + ' is not known'}.",
                f"Write {_called(call)}(bmi, knots=[25, 30]).",
            )
        if "df" in given or "knots" not in given:
            raise ConfigurationError(
                f"{text!r}: knots by df are the records' own quantiles, which are not public.",
                f"State public knots: {_called(call)}({ast.unparse(call.args[0])}, knots=[...]), numbers within the bounds.",
            )
        name = self._column_of_number(text, call.args[0])
        domain = self._domains[name]
        if not isinstance(domain, NumberDomain):
            raise ConfigurationError(f"{text!r}: {name!r} has categories; a spline is of a number.", "Write C(..).")
        if not isinstance(given["knots"], ast.List | ast.Tuple):
            raise ConfigurationError(f"{text!r}: knots are a list of numbers.", "knots=[22, 25, 30]")
        knots = [_number(text, _constant(text, node)) for node in given["knots"].elts]
        low, high = (
            _number(text, _constant(text, given[key])) if key in given else own
            for key, own in (("lower_bound", domain.low), ("upper_bound", domain.high))
        )
        if not domain.low <= low < high <= domain.high:
            raise ConfigurationError(
                f"{text!r}: bounds from {low:g} to {high:g} do not lie within the schema's.",
                f"They are {domain.low:g} to {domain.high:g}; leave lower_bound and upper_bound out to take these.",
            )
        if any(not a < b for a, b in pairwise([low, *knots, high])) or not knots:
            raise ConfigurationError(
                f"{text!r}: knots ascend between {low:g} and {high:g}, each once.", "Leave those outside of the bounds out."
            )
        degree = _number(text, _constant(text, given["degree"])) if "degree" in given else 3.0
        if degree != int(degree):
            raise ConfigurationError(f"{text!r}: a degree is a whole number.", "Take 3.")
        if (low, high) != (domain.low, domain.high):  # values beyond them count as if they lay there
            inner = f"{name}[{low:g} to {high:g}]"
            self.derived[inner] = {"number": _quoted(name), "low": low, "high": high, "unit": domain.unit}
            return inner, knots, (low, high), int(degree)
        return name, knots, (low, high), int(degree)

    def _column_of_number(self, text: str, node: ast.expr) -> str:
        name = _column_name(text, node)
        if name not in self._domains:
            raise ConfigurationError(
                f"{text!r}: {ast.unparse(node)!r} is not a column of the schema.",
                did_you_mean(name, self._domains) or "Derive it first: derive={'name': {...}}.",
            )
        return name

    def _pieces(self, text: str, word: str, low: float, high: float, bases: Iterable[Any], *, first: int) -> _Factor:
        """Piecewise polynomials as sums of truncated powers, times the share of the range that x lies above each knot."""
        made, width = list[_Piece](), high - low
        for place, basis in enumerate(bases, first):
            pieces = [at for at in range(len(basis.x) - 1) if basis.x[at] < basis.x[at + 1]]
            degree, before, products = len(basis.c) - 1, 0.0, list[tuple[float, tuple[str, ...]]]()
            for at in pieces:  # a spline's lower derivatives have no jump at a knot
                powers = range(degree + 1) if at == pieces[0] else (degree,)
                for power in powers:
                    value = float(basis.c[degree - power, at]) - (before if power == degree else 0.0)
                    if abs(value) * width**power > NOTHING:
                        share = f"above({_quoted(word)}, {float(basis.x[at])!r})"
                        products.append((value, (share,) * power))
                before = float(basis.c[0, at])
            grid = np.unique(np.concatenate([np.linspace(low, high, 4001), _extremes(basis)]))
            values = basis(grid)
            ends = float(values.min()), float(values.max())
            ends = 0.0 if abs(ends[0]) < NOTHING else ends[0], ends[1]
            made.append(_Piece(f"{text}[{place}]", tuple(products) or ((0.0, ()),), *ends))
        return _Factor(text, tuple(made))

    # -- arithmetic --------------------------------------------------------------------------------------------------------

    def _arithmetic(self, text: str, tree: ast.expr) -> _Factor:
        """``I(age / 10)``, ``I(age ** 2)``, ``log(x)``, ``I(age > 65)``: sums of products, as derived columns state them."""
        found = self._value(text, tree)
        return _Factor(text, (_renamed(found, text),))

    def _value(self, text: str, node: ast.expr) -> _Piece:
        if isinstance(node, ast.Constant):
            value = _number(text, _constant(text, node))
            return _Piece("", ((value, ()),), value, value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return _scaled(self._value(text, node.operand), -1.0)
        if isinstance(node, ast.Compare):
            return _Piece("", ((1.0, (f"({self._condition(text, node)})",)),), 0.0, 1.0)
        if isinstance(node, ast.Name) or (isinstance(node, ast.Call) and _called(node) == "Q"):
            return self._number_piece(text, _column_name(text, node))
        if isinstance(node, ast.Call):
            return self._function(text, node)
        if isinstance(node, ast.BinOp):
            return self._operation(text, node)
        raise self._unknown(text)

    def _operation(self, text: str, node: ast.BinOp) -> _Piece:
        left = self._value(text, node.left)
        if isinstance(node.op, ast.Pow):
            power = _number(text, _constant(text, node.right))
            if power not in range(1, LARGEST_POWER + 1):
                raise ConfigurationError(f"{text!r}: powers are whole, 1 to {LARGEST_POWER}.", "Or take log(x), or a spline.")
            whole = left
            for _ in range(int(power) - 1):
                whole = whole.times(left)
            ends = sorted([left.low**power, left.high**power])
            inside = left.low < 0.0 < left.high and power % 2 == 0
            return _Piece("", whole.products, 0.0 if inside else ends[0], ends[1])
        right = self._value(text, node.right)
        if isinstance(node.op, ast.Mult):
            return left.times(right)
        if isinstance(node.op, ast.Div) and right.low == right.high and right.low != 0.0:
            return _scaled(left, 1.0 / right.low)
        if isinstance(node.op, ast.Add | ast.Sub):
            other = right if isinstance(node.op, ast.Add) else _scaled(right, -1.0)
            return _Piece("", left.products + other.products, left.low + other.low, left.high + other.high)
        raise ConfigurationError(
            f"{text!r}: {ast.unparse(node)} cannot be derived.", "Sums, products, powers, and divisions by constants can."
        )

    def _function(self, text: str, call: ast.Call) -> _Piece:
        name = _called(call)
        if name not in ("log", "np.log", "above"):
            raise self._refused(text, name)
        wanted = 2 if name == "above" else 1
        if len(call.args) != wanted or call.keywords:
            raise ConfigurationError(f"{text!r}: {name} takes {wanted} {'values' if wanted > 1 else 'value'}.", "log(x)")
        column = self._column_of_number(text, call.args[0])
        piece = self._number_piece(text, column)
        if name == "above":
            knot = _number(text, _constant(text, call.args[1]))
            ends = max(piece.low - knot, 0.0), max(piece.high - knot, 0.0)
            return _Piece("", ((1.0, (f"above({_quoted(column)}, {knot!r})",)),), *ends)
        if piece.low <= 0.0:
            raise ConfigurationError(
                f"{text!r}: {column!r} can be {piece.low:g} by the schema, which has no logarithm.",
                "State a lower bound above 0 in the schema.",
            )
        return _Piece("", ((1.0, (f"log({_quoted(column)})",)),), math.log(piece.low), math.log(piece.high))

    def _number_piece(self, text: str, name: str) -> _Piece:
        found = self._named(name, text)
        if found.reference >= 0:
            raise ConfigurationError(f"{text!r}: {name!r} has categories, with which nothing is computed.", "Write C(..).")
        return found.pieces[0]

    def _condition(self, text: str, node: ast.Compare) -> str:
        """``age > 65`` or ``sex == 'm'`` as a condition."""
        signs = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "=", ast.NotEq: "!="}
        sign = signs.get(type(node.ops[0]))
        if len(node.ops) != 1 or sign is None:
            raise ConfigurationError(f"{text!r}: one comparison of a column with a constant is read.", "I(age > 65)")
        name = node.left.id if isinstance(node.left, ast.Name) else ""
        if name not in self._domains:
            raise ConfigurationError(
                f"{text!r}: {ast.unparse(node.left)!r} is not a column of the schema.", did_you_mean(name, self._domains)
            )
        value = _constant(text, node.comparators[0])
        told = repr(_number(text, value)) if isinstance(self._domains[name], NumberDomain) else _text(str(value))
        condition = f"{_quoted(name)} {sign} {told}"
        parse_condition(condition, self._domains)
        return condition

    # -- refusals ----------------------------------------------------------------------------------------------------------

    def _refused(self, text: str, name: str) -> ConfigurationError:
        if name in _OF_RECORDS:
            return ConfigurationError(f"{text!r}: {name} needs the records' own {_OF_RECORDS[name][0]}.", _OF_RECORDS[name][1])
        return ConfigurationError(
            f"{text!r}: {name or 'this'} is not known in a formula.",
            f"Known: {', '.join(dict.fromkeys(self._calls))}; formulas are not evaluated by Python.",
        )

    def _unknown(self, text: str) -> ConfigurationError:
        return ConfigurationError(
            f"{text[:200]!r} is not a term: neither a column of the schema nor a known form of one.",
            "Terms are such as age, C(sex), I(age / 10), log(x), bs(bmi, knots=[25, 30]); a name with spaces stands in `..`.",
        )


_OF_RECORDS = {
    **dict.fromkeys(("center", "centre"), ("mean, which is not public", "Take a public number off: I(age - 60).")),
    **dict.fromkeys(
        ("scale", "standardize", "zscore"),
        ("mean and deviation, which are not public", "Use public numbers: I((age - 60) / 10)."),
    ),
    "poly": ("moments, which are not public", "Write I(age ** 2), or bs(age, knots=[60])."),
    "cc": ("period, and cyclic splines are not known", "Take bs or cr with public knots."),
    "cut": ("values", "Cut at public edges: derive={'age_group': {'of': 'age', 'edges': [50, 65]}}."),
    "qcut": ("quantiles, which are not public", "Cut at public edges: derive={'age_group': {'of': 'age', 'edges': [50]}}."),
}
"""What formulas of other programs compute of the data at hand: what of it, and what to write instead."""


def _extremes(basis: Any) -> Any:
    roots = basis.derivative().roots(discontinuity=False, extrapolate=False)
    return roots[np.isfinite(roots)]


def _scaled(piece: _Piece, factor: float) -> _Piece:
    ends = sorted([piece.low * factor, piece.high * factor])
    return _Piece(piece.name, tuple((own * factor, rest) for own, rest in piece.products), ends[0], ends[1])


def _called(call: ast.Call) -> str:
    """The name that is called; empty where it is not a plain one."""
    node = call.func
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _only(text: str, call: ast.Call) -> ast.expr:
    if len(call.args) != 1 or call.keywords:
        raise ConfigurationError(f"{text!r}: {_called(call)} takes one value.", "Such as I(age / 10).")
    return call.args[0]


def _constant(text: str, node: ast.expr) -> str | int | float:
    """A number or a text that is written there."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(text, _constant(text, node.operand))
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float) and not isinstance(node.value, bool):
        return node.value
    raise ConfigurationError(f"{text!r}: {ast.unparse(node)[:80]} is neither number nor text.", "Write it out: it is public.")


def _constant_text(text: str, node: ast.expr) -> str:
    return str(_constant(text, node))


def _column_name(text: str, node: ast.expr) -> str:
    """The column that ``age`` or ``Q('age')`` names; empty of anything else."""
    if isinstance(node, ast.Call) and _called(node) == "Q":
        return _constant_text(text, _only(text, node))
    return node.id if isinstance(node, ast.Name) else ""


def _number(text: str, value: str | float) -> float:
    try:
        found = math.nan if isinstance(value, str) else float(value)
    except OverflowError:
        found = math.inf
    if not math.isfinite(found):
        raise ConfigurationError(f"{text!r}: {str(value)[:40]!r} is not a finite number.", "Write one.")
    return found


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(level: str) -> str:
    return "'" + level.replace("'", "''") + "'"


def offset_parameters(exposure: str, schema: DatasetSchema, derive: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``offset`` and its derived column, the logarithm of how long, or of how many, a record's count is.

    Raises:
        ConfigurationError: the exposure is not a number above 0.
    """
    domain = Columns(schema).domains.get(str(exposure))
    if str(exposure) in derive or not isinstance(domain, NumberDomain) or domain.low <= 0.0:
        raise ConfigurationError(
            f"exposure: {exposure!r} is not a numeric column of the schema with a lower bound above 0.",
            "State low = 1, say, in the schema; or derive its logarithm and name it as `offset`.",
        )
    name = f"log({exposure})"
    number = {"number": f"log({_quoted(exposure)})", "low": math.log(domain.low), "high": math.log(domain.high)}
    return {"offset": name, "derive": {name: number}}
