"""Tables as papers print them: a table one with a column for each group, and a regression's coefficients.

Names are the schema's labels with their units, figures "mean (SD)", "median [IQR]" and "n (%)", p-values as JAMA prints them:
two digits from .01 on, three below, "<.001" and ">.99". What noise drowned is a dash with a note.
"""

import html
import io
import math
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veilsum.texts import tex_table
from veilsum_node.phrases import rounded
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.base import IN_ROWS, OVERALL, missing_among
from veilsum_privacy.tasks.queries.language import TABLE_ONE

Row = Mapping[str, Any]

DASH, DAGGER = "—", "†"

QUARTILES = (0.25, 0.5, 0.75)

MOST_DECIMALS = 20
"""Of a number: what is smaller is printed as 0."""

LARGEST_RATIO = 10_000
"""Ratios from here on are printed as being above."""

KEPT, KEPT_WHOLE = r"\(n = [^)]*\)$|^P value$", r"<span style='white-space:nowrap'>\g<0></span>"
"""Of a table's head what stays on one line, and how HTML says so."""

RATIOS = {"odds_ratio": "OR", "rate_ratio": "Rate ratio", "hazard_ratio": "HR"}
"""What a paper calls ratios."""


@dataclass(frozen=True)
class Line:
    """A row of a table: its name, how far it is indented, and its cells."""

    name: str
    cells: tuple[str, ...]
    indent: int = 0


@dataclass(frozen=True)
class PaperTable:
    """A table that a paper can print.

    Attributes:
        head: of the columns, the first one's being that of the names.
    """

    title: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As plain text, in columns."""
        grid = [self.head, *((f"{'  ' * line.indent}{line.name}", *line.cells) for line in self.lines)]
        widths = [max(len(row[place]) for row in grid) for place in range(len(self.head))]
        rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
        told = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
        return "\n".join([self.title, rule, told[0], rule, *told[1:], rule, *self.notes]) + "\n"

    def to_html(self) -> str:
        """A ``<table>`` with its title and notes, without a style of its own but for the rules and the indents."""
        rule, cell = "border-top:1.5px solid #000", "padding:.15rem .8rem .15rem "
        head = "".join(
            f"<th style='{rule};border-bottom:.8px solid #000;{cell}0;text-align:left'>"
            f"{re.sub(KEPT, KEPT_WHOLE, html.escape(text))}</th>"
            for text in self.head
        )
        body = []
        for place, line in enumerate(self.lines):
            last = ";border-bottom:1.5px solid #000" if place == len(self.lines) - 1 else ""
            first = f"<td style='{cell}{1.2 * line.indent:g}rem{last}'>{html.escape(line.name)}</td>"
            body.append(f"<tr>{first}" + "".join(f"<td style='{cell}0{last}'>{html.escape(t)}</td>" for t in line.cells))
        foot = "".join(f"<p style='margin:.2rem 0;font-size:smaller'>{html.escape(note)}</p>" for note in self.notes)
        table = (
            "<table style='border-collapse:collapse'>"
            f"<caption style='caption-side:top;text-align:left'>{html.escape(self.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{'</tr>'.join(body)}</tr></tbody></table>"
        )
        return f"<div>{table}{foot}</div>"

    def to_latex(self) -> str:
        """A ``table`` with ``booktabs`` rules."""
        rows = [(line.indent, (line.name, *line.cells)) for line in self.lines]
        return tex_table(self.title, self.head, rows, self.notes)

    def to_docx(self) -> bytes:
        """A document of Word (ECMA-376) with this table alone."""
        return documents_of([self])

    def _repr_html_(self) -> str:
        return self.to_html()

    def __str__(self) -> str:
        return self.text


# -- figures ------------------------------------------------------------------------------------------------------------------


def p_text(p: float | None) -> str:
    """A p-value: ``<.001``, three digits below .01 and where two would round across .05, else two, ``>.99``."""
    if p is None or not math.isfinite(p):
        return DASH
    if p < 0.001:
        return "<.001"
    if p > 0.99:
        return ">.99"
    digits = 3 if p < 0.01 or (p < 0.05 and round(p, 2) >= 0.05) else 2
    if p < 0.05 and round(p, digits) >= 0.05:
        return ".049"  # what is below .05 is not printed as .05
    return f"{p:.{digits}f}".lstrip("0")


def digits_of(spread: float) -> int:
    """Decimals of a mean, by its standard deviation: one more than says anything of a person."""
    if not math.isfinite(spread) or spread <= 0.0:
        return 2
    return min(MOST_DECIMALS, 1 - math.floor(math.log10(spread))) if spread < 1.0 else (1 if spread < 100.0 else 0)


def ratio_text(figure: Any) -> str:
    """``1.42 (1.10 to 1.83)``."""
    if not _told(figure):
        return _untold(figure)
    low, high = figure["low"], figure["high"]
    return f"{_ratio(figure['value'])} ({_ratio(0.0 if low is None else low)} to {_ratio(math.inf if high is None else high)})"


def _ratio(value: float) -> str:
    """Three digits that tell, two decimals at most but of what is near 0; the ends of the scale as p-values have them."""
    if not 0.001 <= value < LARGEST_RATIO:
        return "∞" if value == math.inf else f">{LARGEST_RATIO - 1}" if value > 1.0 else "<0.001" if value else "0"
    if value < 0.005:
        return f"{value:.2g}"
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def _told(figure: Any) -> bool:
    return isinstance(figure, Mapping) and isinstance(figure.get("value"), int | float)


def _untold(figure: Any) -> str:
    return f"<{figure['below']}" if isinstance(figure, Mapping) and "below" in figure else DASH + DAGGER


def _count(figure: Any) -> str:
    return f"{max(round(figure['value']), 0):,}" if _told(figure) else _untold(figure)


# -- names --------------------------------------------------------------------------------------------------------------------


class Names:
    """What papers call columns, by the study's schema; their own names where there is none.

    A name that a row of an answer has for something else stands there with :data:`IN_ROWS` behind it.

    Args:
        study: that the result is of, if it is at hand.
        private: whether there is noise in its figures.

    Attributes:
        noise: what a note below a table says of it; empty where there is none.
    """

    def __init__(self, study: Study | None, *, private: bool = True) -> None:
        self.schema: DatasetSchema | None = None if study is None else study.data
        self.noise = "Numbers have noise for the privacy of patients" if private else ""
        if private and study is not None and study.privacy.epsilon:
            self.noise += f" (differential privacy, {_cost(study.privacy.epsilon, study.privacy.delta)})"
        self.parameters: Mapping[str, Any] = {} if study is None else study.parameters
        columns = () if self.schema is None else self.schema.columns
        self._columns = {column.name: column for column in columns}
        label = None if self.schema is None else self.schema.label
        self._labels = {name: column.label for name, column in self._columns.items() if column.label}
        if label is not None and label.label:
            self._labels[label.column] = label.label

    def label(self, name: str) -> str:
        """A column's label, or its name."""
        own = name.removesuffix(IN_ROWS)
        return self._labels.get(own, own.replace("_", " "))

    def __contains__(self, name: str) -> bool:
        return name in self._columns or name in self._labels

    def unit(self, name: str, stated: str = "") -> str:
        """A numeric column's unit."""
        column = self._columns.get(name)
        return (column.unit if isinstance(column, NumberColumn) else "") or stated

    def asked(self, one: str) -> Mapping[str, Any]:
        """What a study asks of its table one of this name; empty where it is not at hand."""
        queries = (query for query in self.parameters.get("query", ()) if query.get("kind") == TABLE_ONE)
        return next((query for query in queries if (query.get("name") or TABLE_ONE) == one), {})

    def imputed(self, name: str) -> bool:
        """Whether a public value stands for what is missing of a column, so that nothing is."""
        return name in self._columns and self._columns[name].impute is not None

    def levels(self, name: str) -> tuple[str, ...]:
        """A category's levels, of the schema's label its classes; none of others."""
        column = self._columns.get(name)
        if isinstance(column, CategoryColumn):
            return column.categories
        label = None if self.schema is None else self.schema.label
        return self.schema.classes if self.schema is not None and label is not None and label.column == name else ()

    def replaced(self, text: str) -> str:
        """A term in which columns' names stand as words, with their labels."""
        if not self._labels:
            return text
        names = "|".join(re.escape(name) for name in sorted(self._labels, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])(?:{names})(?!\.|[^\W²³])", lambda found: self._labels[found[0]], text)


# -- table one ----------------------------------------------------------------------------------------------------------------


def paper_tables(
    tables: Mapping[str, Sequence[Row]], study: Study | None, nonnormal: Sequence[str] = (), *, private: bool = True
) -> dict[str, PaperTable]:
    """The tables of a result that papers print in a form of their own, by name.

    Args:
        tables: of a result, by name.
        study: that it is of, for labels, units and categories; None where it is not at hand.
        nonnormal: numbers of which the median and quartiles are shown alone, where the study asked for them.
        private: whether there is noise in them.
    """
    names, found = Names(study, private=private), dict[str, PaperTable]()
    ones = dict.fromkeys(name.partition(".")[0] for name in tables if _is_part(name, tables[name]))
    for one in ones:
        parts = {name: rows for name, rows in tables.items() if name.startswith(f"{one}.")}
        found[one] = _table_one(one, parts, names, nonnormal)
    if SUBGROUPS in tables:
        found[SUBGROUPS] = _subgroup_table(tables, names)
    for name, rows in tables.items():
        if any(row.get("figure") == "survival" for row in rows):
            found[name] = _survival(rows, tables.get(f"{name} tests", ()), names)
        if rows and "term" in rows[0] and any(key in rows[0] for key in (*RATIOS, "coefficient")):
            found[name] = _regression(name, rows, names, tables.get(f"{name} tests", ()))
    return found


def _is_part(name: str, rows: Sequence[Row]) -> bool:
    return "." in name and not name.endswith(" tests") and bool(rows) and ("count" in rows[0] or "quantile" in rows[0])


_OWN = {"column", "unit", "count", "mean", "missing", "standard_deviation", "quantile", "value", "share"}


def _table_one(one: str, parts: Mapping[str, Sequence[Row]], names: Names, nonnormal: Sequence[str]) -> PaperTable:
    """All parts of one table, in the order of the columns that it is over."""
    numbers, medians, counts = dict[str, list[Row]](), dict[str, list[Row]](), dict[str, list[Row]]()
    tests, kinds = dict[str, float | None](), dict[str, None]()
    for name, rows in parts.items():
        for row in rows:
            if name.endswith(" tests"):
                tests[str(row.get("of", ""))] = row.get("p_value")
                kinds[str(row["test"])] = None
            elif "mean" in row:
                numbers.setdefault(str(row["column"]), []).append(row)
            elif "quantile" in row:
                medians.setdefault(str(row["column"]), []).append(row)
    by = _by(parts)
    for name, rows in parts.items():
        if not name.endswith(" tests") and rows and "share" in rows[0]:
            (column,) = [key for key in rows[0] if key not in by and key not in _OWN][:1] or [name.partition(".")[2]]
            counts.setdefault(column, []).extend(rows)
    groups = dict.fromkeys(_group(row, by) for rows in parts.values() for row in rows if by and set(by) <= row.keys())
    together = any(name.endswith(OVERALL) for name in parts)
    sizes = {group: _size(group, by, numbers, counts) for group in ([(), *groups] if together or not groups else groups)}
    lines = list[Line]()
    for column in _order(one, numbers, counts, names):
        p = p_text(_test(tests, column)) if by else None
        lacking = names.asked(one).get("missing") != "drop" and not names.imputed(column)
        lines += _lines(column, numbers, medians, counts, names, sizes, by, p, nonnormal, lacking)
    heads = [f"{_group_name(group, by, names)} (n = {_count(size) if size else DASH})" for group, size in sizes.items()]
    title = f"Table 1. Characteristics{' by ' if by else ''}{', '.join(names.label(name) for name in by)}"
    notes = (*_notes(lines, names, counts=True), *([f"P values are of tests of {' and '.join(kinds)}."] if kinds else []))
    return PaperTable(title, ("Characteristic", *heads, *(["P value"] if by else [])), tuple(lines), notes)


def _cost(epsilon: float, delta: float) -> str:
    """``ε = 1, δ = 0.00001``."""
    small = f"{delta:.12f}".rstrip("0") if delta >= 1e-10 else f"{delta:g}"
    return f"ε = {rounded(epsilon)}" + (f", δ = {small}" if delta else "")


def _notes(lines: Sequence[Line], names: Names, *, counts: bool = False) -> tuple[str, ...]:
    found = [DASH + DAGGER in cell for line in lines for cell in line.cells]
    rounded = "; counts are rounded, and not below 0" if counts else ""
    return (
        *([f"{names.noise}{rounded}."] if names.noise else []),
        *([f"{DAGGER} Not estimable from the released sums."] if any(found) else []),
    )


def _by(parts: Mapping[str, Sequence[Row]]) -> tuple[str, ...]:
    """The columns of groups: those that every part's rows have."""
    told = [rows[0].keys() for name, rows in parts.items() if rows and not name.endswith((" tests", OVERALL))]
    common = set.intersection(*(set(keys) for keys in told)) - _OWN if told else set()
    if len(told) == 1:  # of one category alone the last key is its own
        keys = [key for key in told[0] if key not in _OWN]
        return tuple(keys[:-1]) if "share" in told[0] and "mean" not in told[0] else tuple(keys)
    return tuple(key for key in told[0] if key in common) if told else ()


def _group(row: Row, by: Sequence[str]) -> tuple[str, ...]:
    """The levels of a row's group; none of all together."""
    return tuple(str(row[name]) for name in by if name in row)


def _group_name(group: Sequence[str], by: Sequence[str], names: Names) -> str:
    if not group:
        return "Overall" if by else "All"
    return ", ".join(f"{names.label(name)}: {level}" for name, level in zip(by, group, strict=True))


def _size(group: Sequence[str], by: Sequence[str], numbers: Mapping[str, list[Row]], counts: Mapping[str, list[Row]]) -> Row:
    """How many records a group has: those with a number and without; all levels of a category, with what is missing; or, of a
    study that tells neither, the most of those with a number."""
    own = [row for rows in numbers.values() for row in rows if _group(row, by) == tuple(group)]
    split = [[row["count"], row["missing"]] for row in own if "missing" in row]
    for figures in (*split, *([row["count"] for row in rows if _group(row, by) == tuple(group)] for rows in counts.values())):
        if figures and all(map(_told, figures)):
            return {"value": sum(each["value"] for each in figures), "noise_error": math.hypot(*map(_noise, figures))}
    return max((row["count"] for row in own if _told(row["count"])), key=lambda figure: float(figure["value"]), default={})


def _noise(figure: Row) -> float:
    return float(figure.get("noise_error", 0.0))


def _missing(size: Row, row: Row) -> Row:
    """Of a group's records those without a number, as a row of a category has them."""
    own: Any = row.get("missing")
    count: Any = row.get("count")
    if own is None and _told(size) and _told(count):
        own = {"value": size["value"] - count["value"], "noise_error": math.hypot(_noise(size), _noise(count))}
    share = {"value": max(own["value"], 0.0) / max(size["value"], 1.0)} if _told(own) and _told(size) else {}
    return {} if own is None else {"count": own, "share": share}


def _order(one: str, numbers: Mapping[str, Any], counts: Mapping[str, Any], names: Names) -> list[str]:
    stated = [*names.asked(one).get("over", ())]
    if not stated and names.schema is not None:
        stated = [column.name for column in names.schema.columns]
    every = dict.fromkeys([*numbers, *counts])
    return [*(name for name in stated if name in every), *(name for name in every if name not in stated)]


def _test(tests: Mapping[str, float | None], column: str) -> float | None:
    for of, p in tests.items():
        if of == column or of.startswith(f"{column} by "):
            return p
    return None


def _lines(
    column: str,
    numbers: Mapping[str, list[Row]],
    medians: Mapping[str, list[Row]],
    counts: Mapping[str, list[Row]],
    names: Names,
    sizes: Mapping[tuple[str, ...], Row],
    by: Sequence[str],
    p: str | None,
    nonnormal: Sequence[str],
    lacking: bool,
) -> Iterator[Line]:
    """The rows of a column; one of missing values where it is ``lacking`` them: the study, and never noise, says whether."""
    groups, last, none = tuple(sizes), (() if p is None else (p,)), (() if p is None else ("",))
    if column in counts:
        rows = counts[column]
        yield Line(f"{names.label(column)}, n (%)", ("",) * len(groups) + last)
        levels = list(dict.fromkeys(str(row[column]) for row in rows))
        for level in levels:
            missing = level == missing_among(levels)
            own = [next((r for r in rows if _group(r, by) == g and str(r[column]) == level), {}) for g in groups]
            if missing and not (lacking and any(map(_seen, own))):
                continue
            cells = tuple(_share(row) for row in own)
            yield Line("Missing" if missing else level, cells + none, 1)
        return
    rows, quartiles = numbers.get(column, []), medians.get(column, [])
    unit = names.unit(column, str((rows or quartiles)[0].get("unit") or ""))
    name = f"{names.label(column)}{f', {unit}' if unit else ''}"
    medians_told = {round(float(row["quantile"]), 6) for row in quartiles} >= set(QUARTILES)
    own = [next((row for row in rows if _group(row, by) == group), {}) for group in groups]
    if rows and not (medians_told and column in nonnormal):
        yield Line(f"{name}, mean (SD)", tuple(_means(own)) + last)
        last = none
    if medians_told:
        cells = tuple(_medians([[row for row in quartiles if _group(row, by) == group] for group in groups]))
        yield Line(f"{name}, median [IQR]", cells + last)
    stated = any("missing" in row for each in numbers.values() for row in each)  # then of every number that may be missing
    lost = [_missing(size, row) for size, row in zip(sizes.values(), own, strict=True)]
    if lacking and (any("missing" in row for row in own) if stated else counts) and any(map(_seen, lost)):
        yield Line("Missing", (*map(_share, lost), *none), 1)


def _seen(row: Row) -> bool:
    """Whether missing values are not known, without noise, to be none."""
    count = row.get("count", {"value": 0.0})
    return not _told(count) or bool(_noise(count)) or count["value"] >= 0.5


def _share(row: Row) -> str:
    count, share = row.get("count", {}), row.get("share", {})
    if not _told(count):
        return _untold(count)
    return f"{_count(count)} ({_percent(share['value'], count['value']) if _told(share) else _untold(share)})"


def _percent(share: float, count: float) -> str:
    """A share of so many records in percent; a rare one is not printed as none, nor a frequent one as all."""
    if round(count) >= 1 and 0.0 < share < 0.0005:
        return "<0.1"
    if 0.9995 <= share < 1.0 and round(count / share - count) >= 1:
        return ">99.9"
    return f"{100.0 * share:.1f}"


def _means(rows: Sequence[Row]) -> Iterator[str]:
    """The cells of a row, one a group, with as many decimals each: those of the widest."""
    spreads = [row["standard_deviation"] for row in rows if _told(row.get("standard_deviation"))]
    widths = [max(float(spread["value"]), _noise(spread)) for spread in spreads]
    means = [abs(row["mean"]["value"]) for row in rows if _told(row.get("mean"))]
    digits = digits_of(max(widths, default=0.0) or max(means, default=0.0))
    for row in rows:
        mean, spread, count = (row.get(key, {}) for key in ("mean", "standard_deviation", "count"))
        if not _told(mean):
            yield _untold(mean)
            continue
        deviation = _untold(spread)
        if _told(spread):
            n = float(count["value"]) if _told(count) else math.inf
            sample = math.sqrt(n / (n - 1.0)) if 1.5 < n < math.inf else 1.0  # journals print the sample's
            deviation = _plain(spread["value"] * sample, digits)
            if _noise(spread) > 0.5 * spread["value"]:  # it would say that values hardly differ
                deviation = DASH + DAGGER
        yield f"{_plain(mean['value'], digits)} ({deviation})"


def _medians(groups: Sequence[Sequence[Row]]) -> Iterator[str]:
    """The cells of a row, one a group, with as many decimals each: those of the widest."""
    found = [{round(float(row["quantile"]), 6): row["value"] for row in rows} for rows in groups]
    told = [[each.get(at) for at in QUARTILES] for each in found]
    known = [[float(end["value"]) for end in ends if end is not None] for ends in told if all(map(_told, ends))]
    digits = digits_of(max(((high - low) / 1.35 or abs(middle) for low, middle, high in known), default=0.0))
    for ends in told:
        if not all(map(_told, ends)):
            yield _untold(next((each for each in ends if not _told(each)), None))
            continue
        low, middle, high = (_plain(float(end["value"]), digits) for end in ends if end is not None)
        yield f"{middle} [{low} to {high}]"


def _plain(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}"
    return text.lstrip("-") if float(text.replace(",", "")) == 0.0 else text.replace("-", "−")


# -- regressions --------------------------------------------------------------------------------------------------------------


def numbers_text(tests: Sequence[Row]) -> str:
    """``n = 1,234; 210 events``, with 95% intervals where there is noise; nothing where a result does not tell them."""
    told = next((row for row in tests if "records" in row), {})
    texts = [(f"n = {_with_ends(told['records'])}" if key == "records" else f"{_with_ends(told[key])} events")
             for key in ("records", "events") if key in told]  # fmt: skip
    return "; ".join(texts)


def _with_ends(figure: Any, told: str = "95% CI ") -> str:
    text = _count(figure)
    if not _told(figure) or not figure["noise_error"]:
        return text
    low, high = (f"{max(round(figure[end]), 0):,}" for end in ("low", "high"))
    return f"{text} ({told}{low} to {high})"


def plain_text(key: str, figure: Any) -> str | None:
    """A number of records or their share as a table without a form of its own prints it; None of other figures."""
    if not _told(figure) or None in (figure["low"], figure["high"]):
        return None
    if key in ("count", "missing"):
        return _with_ends(figure, "")
    if key != "share":
        return None
    value, low, high = (f"{_percent(figure[end], 1e6)}%" for end in ("value", "low", "high"))
    return value if figure["low"] == figure["high"] else f"{value} ({low} to {high})"


def _regression(name: str, rows: Sequence[Row], names: Names, tests: Sequence[Row]) -> PaperTable:
    """Coefficients with their intervals; a category's reference has a line of its own, and a note says of how many records."""
    key = next(key for key in (*RATIOS, "coefficient") if key in rows[0])
    head = f"{RATIOS.get(key, 'Coefficient')} (95% CI)"
    lines, open_column = list[Line](), ""
    for term in terms_of(rows, names):
        figure = estimate_text(key, term.row[key])
        p = "" if term.name == "constant" else p_text(term.row.get("p_value"))
        if term.name == "constant":
            if key not in RATIOS:
                lines.append(Line("Constant", (figure, p)))
            continue
        if not term.level:
            lines.append(Line(term.shown, (figure, p)))
            open_column = ""
            continue
        if term.column != open_column:
            lines.append(Line(names.label(term.column), ("", "")))
            lines.append(Line(term.reference, (f"{'1' if key in RATIOS else '0'} [reference]", ""), 1))
            open_column = term.column
        lines.append(Line(term.level, (figure, p), 1))
    outcome = re.sub("[\"']", "", names.replaced(str(names.parameters.get("outcome", name))))
    if event := str(names.parameters.get("event", "")):
        outcome += f" to {names.label(event)}"
    family = {"odds_ratio": "Logistic", "rate_ratio": "Poisson", "hazard_ratio": "Cox"}.get(key, "Linear")
    title = f"{family} regression of {outcome}" + ("" if name == "coefficients" else f" ({name})")
    numbers = numbers_text(tests)
    return PaperTable(
        title, ("Term", head, "P value"), tuple(lines), (*([f"{numbers}."] if numbers else []), *_notes(lines, names))
    )


def estimate_text(key: str, figure: Any) -> str:
    """A ratio or a coefficient, as ``key`` says which, with its interval; with as many decimals as its length allows."""
    if key in RATIOS or not _told(figure):
        return ratio_text(figure)
    ends = [figure[key] for key in ("value", "low", "high")]
    width = ((ends[2] - ends[1]) / 4.0 if None not in ends else 0.0) or abs(ends[0])
    digits = digits_of(width) + (width >= 1.0)
    value, low, high = (none if end is None else _plain(end, digits) for none, end in zip(("", "−∞", "∞"), ends, strict=True))
    return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Term:
    """A row of coefficients as people read it.

    Attributes:
        name: as the result has it.
        shown: with the column's label, and per how many units.
        column, level, reference: of a category's level what they say; else empty.
    """

    name: str
    shown: str
    column: str
    level: str
    reference: str
    row: Row

    @property
    def formula(self) -> str:
        """As statsmodels names the column of a design: ``Intercept``, ``sex[T.m]``, or what a formula has."""
        if self.name == "constant":
            return "Intercept"
        return f"{self.column}[T.{self.level}]" if self.level else self.name


def terms_of(rows: Sequence[Row], names: Names) -> Iterator[Term]:
    """The terms of a table of coefficients, in order."""
    over = [str(name) for name in names.parameters.get("over", ())]
    known = {
        f"{column} {level}": (column, level, str(reference))
        for column in over
        if (levels := names.levels(column))
        for reference in [names.parameters.get("reference", {}).get(column, levels[0])]
        for level in levels
    }
    for row in rows:
        if "term" not in row:
            continue
        name, per = str(row["term"]), str(row.get("per") or "")
        unit = str(row.get("unit") or "")
        per = per or _per(unit, names)
        column, level, reference = known.get(name, ("", "", ""))
        label = names.label(name) if name in names else names.replaced(_of_design(name))
        shown = f"{label}, per {_SINGULAR.get(per, per)}" if per and per != "1" and not level else label
        yield Term(name, shown, column, level, reference, row)


def _per(unit: str, names: Names) -> str:
    """Of what a coefficient's unit says that it is: ``beats per minute per year``; of a level it is the outcome's own."""
    name = str(names.parameters.get("outcome", ""))
    outcome = names.unit(name, str(names.parameters.get("derive", {}).get(name, {}).get("unit", "")))
    if name and (unit == outcome or unit.startswith(f"{outcome or 1} per ")):
        return unit[len(f"{outcome or 1} per ") :]
    return unit.rpartition(" per ")[2] if " per " in unit else ""


_OF_DESIGN = (
    (r"\bC\(([^,()]+)(?:,[^\[]*)?\)(?=\[)", r"\1"),
    (r"\bbs\(([^,()]+),[^()]*\)\[(\d+)\]", r"\1, B-spline \2"),
    (r"\b[cn][rs]\(([^,()]+),[^()]*\)\[(\d+)\]", r"\1, natural spline \2"),
    (r"\bmissing\(([^()]+)\)", r"\1 missing"),
    (r"\bfilled\(([^,()]+),[^()]*\)", r"\1"),
    (r"\babove\(([^,()]+), ([^,()]+)\)", r"\1 above \2"),
    (r"\bQ\('([^()]+)'\)", r"\1"),
    (r"\bnp\.log\(", "log("),
    (r"\bI\((.*?)\)(?=:|$)", r"\1"),
    (r" ?\*\* ?2\b", "²"),
    (r" ?\*\* ?3\b", "³"),
    (r" \* ", " × "),
    (r" - |(?<![\w)])-(?=[\d.])", lambda found: " − " if found[0] == " - " else "−"),
    (r"\[T?\.?([^\[\]0-9][^\[\]]*)\]", "\0\\1"),
    (":", " × "),
    ("\0", ": "),
)
"""What stands in the names of a design's columns, and what people read."""


def _of_design(name: str) -> str:
    """``C(sex)[T.m]:age`` as ``sex: m × age``."""
    for written, read in _OF_DESIGN:
        name = re.sub(written, read, name)
    return name


_SINGULAR = {f"{unit}s": unit for unit in ("year", "month", "week", "day", "hour", "minute", "second", "point", "cigarette")}


# -- survival -----------------------------------------------------------------------------------------------------------------

_OF_CURVES = {"figure", "time", "unit", "value", "at_risk", "column", "quantile"}


def group_of(row: Row, names: Names) -> str:
    """The levels of a row's group, with their columns."""
    told = (f"{names.label(key)}: {text}" for key, text in row.items() if key not in _OF_CURVES and isinstance(text, str))
    return ", ".join(told) or "All"


def _survival(rows: Sequence[Row], tests: Sequence[Row], names: Names) -> PaperTable:
    """A column for each group; medians and times in the column's unit, survival in percent."""
    groups = list(dict.fromkeys(group_of(row, names) for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        figure, time, unit = str(row.get("figure")), row.get("time"), str(row.get("unit") or "")
        percent = figure == "survival" or "incidence" in figure
        name_of = f"{figure[:1].upper()}{figure[1:]}"
        if time is not None:
            counted = _SINGULAR.get(unit, unit) if time == 1.0 else unit
            name_of += f" {'to' if figure == 'restricted mean' else 'at'} {time:,g} {counted}".rstrip()
        name_of += ", % (95% CI)" if percent else f", {unit} (95% CI)" if unit and time is None else " (95% CI)"
        cells.setdefault(name_of, {})[group_of(row, names)] = _interval(row["value"], 100.0 if percent else 1.0)
    lines = tuple(Line(text, tuple(own.get(group, DASH) for group in groups)) for text, own in cells.items())
    notes = [
        f"{str(test['test'])[:1].upper()}{str(test['test'])[1:]} test: P {p if p[0] in '<>' else f'= {p}'}."
        for test in tests
        if (p := p_text(test.get("p_value"))) != DASH
    ]
    by = [names.label(key) for key, text in rows[0].items() if key not in _OF_CURVES and isinstance(text, str)]
    title = f"Survival{' by ' if by else ''}{', '.join(by)}"
    return PaperTable(title, ("", *groups), lines, (*notes, *_notes(lines, names)))


def _interval(figure: Any, factor: float) -> str:
    if not _told(figure):  # a quantile past the end of its curve is no failure
        above = isinstance(figure, Mapping) and str(figure.get("not_estimable", "")).startswith("the curve stays above")
        return "not reached" if above else _untold(figure)
    value = float(figure["value"]) * factor
    low, high = (None if figure[end] is None else float(figure[end]) * factor for end in ("low", "high"))
    rest = (
        abs(value) if factor == 1.0 else min(abs(value), 100.0 - abs(value))
    )  # of percent, what is nearly all as nearly none
    near = 1.0 if factor == 1.0 else 0.1
    digits = digits_of(rest) if 0.0 < rest < near else 0 if factor == 1.0 and abs(value) >= 100.0 else 1
    ends = ("not reached" if end is None else _plain(end, digits) for end in (low, high))
    return f"{_plain(value, digits)} ({' to '.join(ends)})"


# -- subgroups ----------------------------------------------------------------------------------------------------------------

SUBGROUPS = "subgroups"
"""The table of a treatment's effect among all; those by subgroup are named after it, with a number."""


@dataclass(frozen=True)
class Subgroup:
    """A line of a forest of subgroups: a column as a heading, with the p of its interaction, or a level with its figure."""

    name: str
    figure: Any = None
    p: str = ""
    indent: int = 0


def subgroups_of(tables: Mapping[str, Sequence[Row]], names: Names) -> list[Subgroup]:
    """All, then each level of each subgroup: an odds ratio with its interval, and the test that it is the same in all levels.

    That test is Woolf's, of logarithms weighted by the inverses of their variances, which have the noise (Woolf 1955).
    """
    found: list[Subgroup] = []
    for name in (key for key in tables if key == f"{SUBGROUPS} ratios" or re.fullmatch(rf"{SUBGROUPS}-\d+ ratios", key)):
        rows = [row for row in tables[name] if row.get("figure") == "odds ratio"]
        columns = [key for key in (rows[0] if rows else ()) if key not in {"of", "compared", "figure", "value", "p_value"}]
        column, pairs = ", ".join(map(names.label, columns)), dict.fromkeys(row["compared"] for row in rows)
        for pair in pairs:  # of a treatment of several levels, each against the first
            own = [row for row in rows if row["compared"] == pair]
            of = f", {names.replaced(pair)}" if len(pairs) > 1 else ""
            if columns:
                found.append(Subgroup(column + of, None, p_text(_heterogeneity(own))))
                found += [Subgroup(", ".join(str(row[key]) for key in columns), row["value"], "", 1) for row in own]
            else:
                found += [Subgroup(f"All{of}", row["value"], p_text(row.get("p_value"))) for row in own]
    return found


def _heterogeneity(rows: Sequence[Row]) -> float | None:
    from scipy.stats import chi2

    told = [row["value"] for row in rows if _told(row["value"]) and row["value"]["value"] > 0.0]
    errors = [math.hypot(figure["noise_error"], figure["sampling_error"]) / figure["value"] for figure in told]
    if len(told) < 2 or not all(error > 0.0 for error in errors):
        return None
    logs, weights = [math.log(figure["value"]) for figure in told], [error**-2 for error in errors]
    mean = sum(weight * log for weight, log in zip(weights, logs, strict=True)) / sum(weights)
    distance = sum(weight * (log - mean) ** 2 for weight, log in zip(weights, logs, strict=True))
    return float(chi2.sf(distance, len(told) - 1))


def _subgroup_table(tables: Mapping[str, Sequence[Row]], names: Names) -> PaperTable:
    lines = tuple(
        Line(line.name, (ratio_text(line.figure) if line.figure is not None else "", line.p), line.indent)
        for line in subgroups_of(tables, names)
    )
    rows = tables.get(f"{SUBGROUPS} ratios", ())
    told = ", ".join(dict.fromkeys(row[key] for key in ("of", "compared") for row in rows)) or SUBGROUPS
    notes = ("P values of subgroups are of their interaction (Woolf).", *_notes(lines, names))
    return PaperTable(names.replaced(told), ("Subgroup", "Odds ratio (95% CI)", "P value"), lines, notes)


# -- Word ---------------------------------------------------------------------------------------------------------------------

_W = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"

_TEXT_WIDTH = 9638
"""Between a page's margins, in twentieths of a point."""

_FONT = "Times New Roman"

_SIGN = 130
"""The widest a column is for each sign of its longest cell, in the same unit."""

_PARTS = {
    "[Content_Types].xml": '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Override PartName="/word/document.xml"'
    ' ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>',
    "_rels/.rels": '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1"'
    ' Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"'
    ' Target="word/document.xml"/></Relationships>',
}


def documents_of(tables: Sequence[PaperTable]) -> bytes:
    """A document of Word with these tables, the same bytes for the same tables."""
    body = "".join(map(_word_table, tables))
    page = '<w:sectPr><w:pgSz w:w="11906" w:h="16838"/><w:pgMar w:top="1134" w:right="1134" w:bottom="1134" w:left="1134"'
    page += ' w:header="708" w:footer="708" w:gutter="0"/></w:sectPr>'
    document = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
    document += f'<w:document xmlns:w="{_W}"><w:body>{body}{page}</w:body></w:document>'
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in {**_PARTS, "word/document.xml": document}.items():
            packed.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _paragraph(text: str, *, bold: bool = False, indent: int = 0, small: bool = False) -> str:
    kept = re.sub("[^\t\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", text)  # XML 1.0 has no others
    run = f'<w:rFonts w:ascii="{_FONT}" w:hAnsi="{_FONT}" w:cs="{_FONT}"/>' + ("<w:b/>" if bold else "")
    run += f'<w:sz w:val="{16 if small else 20}"/>'
    space = '<w:spacing w:before="20" w:after="20"/>' + (f'<w:ind w:left="{240 * indent}"/>' if indent else "")
    shown = f'<w:t xml:space="preserve">{html.escape(kept, quote=False)}</w:t>'
    return f"<w:p><w:pPr>{space}</w:pPr><w:r><w:rPr>{run}</w:rPr>{shown}</w:r></w:p>"


def _word_table(table: PaperTable) -> str:
    edges = f"<w:tblBorders>{_rule('top', 12)}{_rule('bottom', 12)}</w:tblBorders>"
    grid = [table.head, *((" " * 2 * line.indent + line.name, *line.cells) for line in table.lines)]
    lengths = [min(max(len(row[place]) for row in grid), 36) + 6 for place in range(len(table.head))]
    widths = [length * min(_TEXT_WIDTH / sum(lengths), _SIGN) for length in lengths]
    rows = [_word_row(table.head, widths, 0, bold=True, below=_rule("bottom", 6))]
    rows += [_word_row((line.name, *line.cells), widths, line.indent) for line in table.lines]
    columns = "".join(f'<w:gridCol w:w="{width:.0f}"/>' for width in widths)
    look = f'<w:tblPr><w:tblW w:w="{sum(widths):.0f}" w:type="dxa"/>{edges}</w:tblPr><w:tblGrid>{columns}</w:tblGrid>'
    notes = "".join(_paragraph(note, small=True) for note in table.notes)
    return f"{_paragraph(table.title, bold=True)}<w:tbl>{look}{''.join(rows)}</w:tbl>{notes}{_paragraph('')}"


def _rule(side: str, eighths: int) -> str:
    return f'<w:{side} w:val="single" w:sz="{eighths}" w:space="0" w:color="000000"/>'


def _word_row(cells: Sequence[str], widths: Sequence[float], indent: int, *, bold: bool = False, below: str = "") -> str:
    border = f"<w:tcBorders>{below}</w:tcBorders>" if below else ""
    inner = (
        f'<w:tc><w:tcPr><w:tcW w:w="{width:.0f}" w:type="dxa"/>{border}</w:tcPr>'
        f"{_paragraph(text, bold=bold, indent=0 if place else indent)}</w:tc>"
        for place, (text, width) in enumerate(zip(cells, widths, strict=True))
    )
    return f"<w:tr>{'<w:trPr><w:cantSplit/><w:tblHeader/></w:trPr>' if bold else ''}{''.join(inner)}</w:tr>"
