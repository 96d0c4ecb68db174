"""What R's package has Python do: calls whose errors come back as values, and tables as columns.

reticulate hands an exception to R as text in some of its versions, and a list with None as a list; so neither crosses.
Only names that ``veilsum`` promises to keep are used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PARTS = ("value", "noise_error", "sampling_error", "low", "high")


def attempt(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """What a call gives, after True; or after False the error's classes, the narrowest first, its message and its advice."""
    try:
        return [True, function(*args, **named)]
    except Exception as error:  # noqa: BLE001  every kind, since R decides by the classes what to do
        kinds = [kind.__name__ for kind in type(error).__mro__ if kind not in (Exception, BaseException, object)]
        text = str(getattr(error, "message", "") or error or type(error).__name__)
        return [False, kinds, text, str(getattr(error, "advice", ""))]


def columns(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """A table by columns, each its name, its kind (number, truth, text), its values, and the places where there is none.

    A figure has the columns ``mean``, ``mean_noise_error``, ``mean_sampling_error``, ``mean_low``, ``mean_high``; where one
    is not told also ``mean_note``, which says why. The end of an open interval is infinite.
    """
    figures = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, Mapping))
    noted = {name for row in rows for name in figures if why(row.get(name))}
    found: dict[str, list[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        if name not in figures:
            found[name] = [row.get(name) for row in rows]
            continue
        for part in PARTS:
            values = [figure_part(row.get(name), part) for row in rows]
            if part == "value" or any(value is not None for value in values) or name in noted:
                found[name if part == "value" else f"{name}_{part}"] = values
        if name in noted:
            found[f"{name}_note"] = [why(row.get(name)) or None for row in rows]
    return [typed(name, values) for name, values in found.items()]


def why(figure: Any) -> str:
    """Why a figure is not told; empty where it is, or where there is none."""
    if not isinstance(figure, Mapping) or "value" in figure:
        return ""
    if "not_estimable" in figure:
        return f"not estimable: {figure['not_estimable']}"
    return f"< {figure['below']}" if "below" in figure else "not told"


def figure_part(figure: Any, part: str) -> Any:
    """A part of a figure; None where it is not told."""
    if not isinstance(figure, Mapping):
        return figure if part == "value" else None
    if "value" not in figure or part not in figure:
        return None
    value = figure[part]
    return {"low": -math.inf, "high": math.inf}.get(part) if value is None else value


def typed(name: str, values: Sequence[Any]) -> list[Any]:
    """A column as R takes it: of one kind, with something in the place of what is missing."""
    told = [None if value == "" or (isinstance(value, float) and math.isnan(value)) else value for value in values]
    absent = [place for place, value in enumerate(told, 1) if value is None]
    known = [value for value in told if value is not None]
    if all(isinstance(value, bool) for value in known) and known:
        return [name, "truth", [bool(value) for value in told], absent]
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
        kind = "number" if known or not any(value == "" for value in values) else "text"
        if kind == "number":
            return [name, kind, [math.nan if value is None else float(value) for value in told], absent]
    return [name, "text", ["" if value is None else in_words(value) for value in told], absent]


def in_words(value: Any) -> str:
    """A value as text; several with commas."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def table(result: Any, name: str | None) -> list[list[Any]]:
    """A table of a result, by columns."""
    return columns(result.rows(name))


def fitted(result: Any, level: float) -> list[list[Any]]:
    """Coefficients of a regression under broom's names, by columns, with the reason where one is not estimable."""
    ends = result.conf_int(1.0 - level)
    notes = [why(row.get("log", row.get("coefficient"))) for row in result.rows("coefficients")]
    parts = {
        "estimate": result.params,
        "std.error": result.bse,
        "statistic": result.tvalues,
        "p.value": result.pvalues,
        "conf.low": ends[0],
        "conf.high": ends[1],
    }
    numbers = [typed(name, list(map(float, values))) for name, values in parts.items()]
    return [typed("term", list(result.params.index)), *numbers, typed("note", notes)]


def linear(result: Any) -> bool:
    """Whether a regression's coefficients are differences, not logarithms of ratios."""
    return any("coefficient" in row for row in result.rows("coefficients"))


def labels(result: Any) -> list[str]:
    """What a regression's figures are, then its terms by the schema's labels, as a paper has them."""
    names = ("odds_ratio", "rate_ratio", "hazard_ratio", "coefficient")
    key = next(name for name in names if name in result.rows("coefficients")[0])
    return [key.replace("_", " ").capitalize(), *(term.shown for term in result.fitted.terms)]


def about(result: Any) -> list[list[Any]]:
    """What a study was and what it cost, as a table of one row, by columns."""
    kept = ("name", "method", "epsilon", "delta", "noise", "unit", "study")
    row = {name: result.about.get(name) for name in kept}
    return columns([{**row, "sites": result.content.summary.get("cohort")}])


def predicted(result: Any, frame: Mapping[str, Any]) -> list[float]:
    """What a regression predicts of records."""
    return [float(value) for value in result.predict(frame)]


def studies(federation: Any) -> list[list[Any]]:
    """The analyst's studies, by columns."""
    kept = ("study", "name", "method", "phase", "reason")
    told = federation.studies()
    return [[name, "text", [getattr(study, name) for study in told], []] for name in kept]


def names_of(result: Any) -> list[str]:
    """The result's tables."""
    return list(result.tables)


def paper(result: Any, name: str | None, nonnormal: str | Sequence[str]) -> list[Any]:
    """A table for a paper: by columns, its title, its notes, and all of it as text. Rows below another are indented."""
    made = result.paper(name, nonnormal=listed(nonnormal))
    grid = [("\u2003" * line.indent + line.name, *line.cells) for line in made.lines]
    shown = [[head, "text", [row[place] for row in grid], []] for place, head in enumerate(made.head)]
    return [shown, made.title, list(made.notes), made.text]


def written(result: Any, directory: str, formats: str | Sequence[str], nonnormal: str | Sequence[str]) -> list[str]:
    """Write a result's tables and pictures; the files' names."""
    return [str(path) for path in result.export(directory, listed(formats), nonnormal=listed(nonnormal))]


def listed(names: str | Sequence[str]) -> list[str]:
    """Names as a list, where R had a vector of one."""
    return [names] if isinstance(names, str) else list(names)


def tidied(result: Any, name: str | None) -> list[list[Any]]:
    """A table with a row for each of its figures, under broom's names; tests under those of a test; curves as of a fit."""
    rows = result.rows(name)
    if rows and all("test" in row and "p_value" in row for row in rows):
        return columns([tested(row) for row in rows])
    curve = [row for row in rows if row.get("figure") == "survival"]
    made: list[dict[str, Any]] = []
    for row in curve or rows:
        keys = {key: value for key, value in row.items() if not isinstance(value, Mapping) and key not in LEFT}
        for term, figure in row.items():
            if isinstance(figure, Mapping):
                named = (
                    {"n.risk": row.get("at_risk")} if curve else {"term": row.get("figure", term) if term == "value" else term}
                )
                made.append({**keys, **named, **estimate(figure), "p.value": row.get("p_value"), "note": why(figure)})
    told = any(row["p.value"] is not None for row in made)
    return columns([row if told else {key: value for key, value in row.items() if key != "p.value"} for row in made])


LEFT = ("at_risk", "figure", "p_value", "noise_share", "note", "without_interval")
"""Columns that have another name or place in a tidy table."""


def tested(row: Mapping[str, Any]) -> dict[str, Any]:
    """A test as broom names its parts."""
    names = {"of": "term", "test": "method", "degrees": "parameter", "p_value": "p.value"}
    return {names.get(name, name): value for name, value in row.items() if not isinstance(value, Mapping)}


def estimate(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure as broom names its parts; its standard error is of sampling and noise together."""
    errors = [figure_part(figure, part) for part in ("noise_error", "sampling_error")]
    return {
        "estimate": figure_part(figure, "value"),
        "std.error": None if None in errors else math.hypot(*errors),
        "conf.low": figure_part(figure, "low"),
        "conf.high": figure_part(figure, "high"),
    }
