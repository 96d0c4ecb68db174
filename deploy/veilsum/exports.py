"""A result's tables as CSV, LaTeX and HTML, and its figures as pictures, for papers and slides.

Tables are the lists of rows in a result's summary; what else it tells is one more, ``summary``. A figure with its interval
becomes one cell, ``61.2 (59.8 to 62.7)``, but in CSV, where value, errors and ends have columns of their own. Pictures need
matplotlib (``pip install veilsum[plots]``).
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from veilsum.markov_fields import fit_field
from veilsum.xgboost_model import xgboost_json
from veilsum_aggregation.contrasts import PairPlan
from veilsum_coordinator.parts.query_answers import RECORDS
from veilsum_coordinator.parts.query_readers import NOISE, PAIRS, SCALE
from veilsum_node.errors import ConfigurationError, Unavailable
from veilsum_privacy.results.result import Result

FORMATS = ("csv", "html", "latex", "svg", "png", "xgboost", "onnx")

MODELS = ("tree", "graph")
"""Of synthetic records: the result's own, of a tree of pairs; or new ones of a Markov random field, veilsum[synthetic]."""

PARTS = ("value", "noise_error", "sampling_error", "low", "high", "std_error")

DRAWN = ("odds_ratio", "rate_ratio", "hazard_ratio", "coefficient", "mean", "value", "share", "count", "correlation")
"""Figures that a picture can be of, the first one that a table has."""

SUMMARY = "summary"
"""The table of what a result tells outside of its tables."""

RATIOS = ("odds_ratio", "rate_ratio", "hazard_ratio")

Row = Mapping[str, Any]


def export_result(
    result: Result,
    directory: Path,
    formats: Sequence[str],
    model: str = "tree",
    *,
    about: Mapping[str, Any] | None = None,
    site: str | None = None,
    from_features: bool = False,
) -> list[Path]:
    """Write every table of a result, and a picture of each that has one, into a directory; returns the files.

    Args:
        result: what to write.
        directory: of the files.
        formats: of :data:`FORMATS`.
        model: of synthetic records, of :data:`MODELS`: those of the result, or new ones of its released sums.
        about: what files say of the study: its digest, epsilon and delta.
        site, from_features: of an ONNX file (:func:`veilsum.onnx_model.onnx_bytes`).

    Raises:
        ConfigurationError: an unknown format or model, pictures without matplotlib, a graph without mbi, or ONNX without onnx.
        Misuse: the result holds no model of the kind that a format writes.
        Unavailable: the directory cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigurationError(f"There is no format {unknown[0]!r}.", f"Formats: {', '.join(FORMATS)}.")
    if model not in MODELS:
        raise ConfigurationError(f"There is no model {model!r} of synthetic records.", f"Models: {', '.join(MODELS)}.")
    files: dict[str, bytes] = {}
    for name, rows in all_tables(result).items():
        stem = name.replace(" ", "-").replace("/", "-")
        if "csv" in formats:
            files[f"{stem}.csv"] = to_csv(rows).encode()
        if "latex" in formats:
            files[f"{stem}.tex"] = to_latex(rows, name).encode()
        for kind in ("svg", "png"):
            if kind in formats and (picture := plot(name, rows, kind)) is not None:
                files[f"{stem}.{kind}"] = picture
    for name, rows in tables_of(result).items():
        if name in result.arrays and rows and "levels" in rows[0]:
            codes = result.arrays[name] if model == "tree" else _graph_records(result, name, rows)
            files[f"{name.replace(' ', '-')}.csv"] = records_csv(codes, rows).encode()
    if "html" in formats:
        files["result.html"] = to_html(result, about).encode()
    if "xgboost" in formats:
        files["model.json"] = xgboost_json(result)
    if "onnx" in formats:
        from veilsum.onnx_model import exported_model, onnx_bytes

        files["model.onnx"] = onnx_bytes(exported_model(result), about or {}, site=site, from_features=from_features)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            (directory / name).write_bytes(data)
    except OSError as error:
        raise Unavailable(f"{directory}: cannot be written ({error.strerror}).", "Check path and space.") from error
    return [directory / name for name in files]


def tables_of(result: Result) -> dict[str, list[Row]]:
    """The tables of a result's summary by name, in order."""
    return {
        name: list(rows)
        for name, rows in result.summary.items()
        if isinstance(rows, Sequence) and not isinstance(rows, str) and rows and all(isinstance(row, Mapping) for row in rows)
    }


def figures_of(result: Result) -> list[Row]:
    """What a result's summary tells outside of its tables, a row each: its name, and its value."""
    rows: list[Row] = []
    for name, value in result.summary.items():
        told = isinstance(value, Mapping) and not {"value", "below", "not_estimable"} & value.keys()
        for inner, part in value.items() if told else [("", value)]:
            if isinstance(part, str | float | int | None) or (isinstance(part, Mapping) and cell(part) != str(dict(part))):
                rows.append({"name": f"{name} {inner}".strip(), "value": part})
    return rows


def all_tables(result: Result) -> dict[str, list[Row]]:
    """The tables of a result by name, and what else it tells as :data:`SUMMARY`, unless a table has that name."""
    tables, figures = tables_of(result), figures_of(result)
    return tables if not figures or SUMMARY in tables else {**tables, SUMMARY: figures}


def to_csv(rows: Sequence[Row]) -> str:
    """One line a row; a figure's parts in columns ``mean``, ``mean_low``, ..."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    stream = io.StringIO()
    writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return stream.getvalue()


def records_csv(codes: Any, columns: Sequence[Row]) -> str:
    """Synthetic records by their levels' names; what is missing is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([column["column"] for column in columns])
    names = [["" if level == "missing" else level for level in column["levels"]] for column in columns]
    writer.writerows([[levels[code] for levels, code in zip(names, row, strict=True)] for row in codes.tolist()])
    return stream.getvalue()


def _graph_records(result: Result, name: str, columns: Sequence[Row]) -> Any:
    """As many records as the result's, drawn from a Markov random field by the released sums themselves."""
    query = name.removesuffix(RECORDS)
    if query + PAIRS not in result.arrays:
        raise ConfigurationError(
            f"{query}: a graph needs the released sums, which this result leaves out.",
            "Results of studies with smallest_cell do. Use the records that it has: --synthetic tree.",
        )
    released, scale, std = (result.arrays[query + part] for part in (PAIRS, SCALE, NOISE))
    plan = PairPlan(tuple(len(column["levels"]) for column in columns), int(scale.item()))
    try:
        field = fit_field(plan, released, float(std.item()))
    except ImportError as error:
        raise ConfigurationError(
            "A graph needs the package mbi.", "Install it with: pip install veilsum[synthetic]"
        ) from error
    seed = int.from_bytes(hashlib.sha256(released.tobytes()).digest()[:4], "big")
    return field.sample(len(result.arrays[name]), seed)


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows without nesting, all with the same keys: a figure's parts are ``mean``, ``mean_low``, ...; None where unknown."""
    flat = [dict(_flat(row)) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    return [{name: None if row.get(name) == "" else row.get(name) for name in names} for row in flat]


def _flat(row: Row) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in row.items():
        if not isinstance(value, Mapping):
            found.append((name, "" if value is None else value))
        elif "value" in value:
            found += [(name if part == "value" else f"{name}_{part}", value[part]) for part in PARTS if part in value]
        else:
            found.append((f"{name}_note", cell(value)))
    return found


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, Mapping):
        return str(value)
    if "low" in value and "value" in value:
        low, high = ("…" if end is None else f"{end:.4g}" for end in (value["low"], value["high"]))
        return f"{value['value']:.4g} ({low} to {high})"
    if "std_error" in value:
        return f"{value['value']:.4g} ± {value['std_error']:.2g}"
    if "below" in value:
        return f"< {value['below']}"
    return f"not estimable: {value['not_estimable']}" if "not_estimable" in value else str(dict(value))


def to_latex(rows: Sequence[Row], caption: str) -> str:
    """A ``table`` with ``booktabs`` rules."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [
        r"\begin{table}", rf"\caption{{{_tex(caption)}}}", rf"\begin{{tabular}}{{{'l' * len(names)}}}", r"\toprule",
        _tex_row(name.replace("_", " ") for name in names), r"\midrule",
        *(_tex_row(cell(row.get(name)) for name in names) for row in rows),
        r"\bottomrule", r"\end{tabular}", r"\end{table}",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "…": r"\dots{}",
}
_TEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"} | {"±": r"$\pm$"}


def _tex_row(cells: Iterable[str]) -> str:
    """A row; one that begins with a bracket would be taken for an option of the command before it."""
    text = " & ".join(map(_tex, cells))
    return ("{[}" + text[1:] if text.startswith("[") else text) + r" \\"


def _tex(text: str) -> str:
    """Text as TeX shows it, on one line: an empty one would end the paragraph. Hyphens and quotes stay as they are."""
    apart = re.sub(r"(?<=([-`'?!]))(?=[-`'])", "\0", " ".join(text.split()))
    return "".join("{}" if letter == "\0" else _TEX.get(letter, letter) for letter in apart)


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:0 0 2rem}th,td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid
#ddd} th{border-bottom:2px solid #555;font-weight:600}td{font-variant-numeric:tabular-nums}h2{font-size:1.1rem;margin:1.5rem 0
.5rem} p{color:#555}svg{max-width:100%;height:auto}"""


def to_html(result: Result, about: Mapping[str, Any] | None = None) -> str:
    """One page with every table, and the pictures where matplotlib is installed; ``about`` is what it says of the study."""
    parts = [f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(result.method)}</title>"]
    parts += [f"<style>{_STYLE}</style><body><h1>Result of {html.escape(result.method)}</h1>"]
    if about:
        told = ", ".join(f"{key} {cell(value)}" for key, value in about.items() if value is not None and key != "method")
        parts.append(f"<p>{html.escape(told)}</p>")
    parts.append("<p>In brackets 95% intervals for the population: sampling and noise together.</p>")
    for name, rows in all_tables(result).items():
        parts.append(f"<h2>{html.escape(name)}</h2>")
        picture = _picture_if_possible(name, rows)
        if picture:
            parts.append(picture)
        parts.append(table_html(rows))
    return "\n".join([*parts, "</body></html>"]) + "\n"


def table_html(rows: Sequence[Row]) -> str:
    """A ``<table>`` of rows, one column a key."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(key.replace('_', ' '))}</th>" for key in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell(row.get(key)))}</td>" for key in names) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture_if_possible(name: str, rows: Sequence[Row]) -> str:
    try:
        picture = plot(name, rows, "svg")
    except ConfigurationError:  # without matplotlib a page has tables only
        return ""
    return "" if picture is None else picture.decode().partition("<svg")[1] + picture.decode().partition("<svg")[2]


# -- pictures --------------------------------------------------------------------------------------------------------------


def plot(name: str, rows: Sequence[Row], kind: str) -> bytes | None:
    """A picture of a table in a file format, ``svg`` or ``png``; as :func:`draw`."""
    canvas = draw(name, rows)
    if canvas is None:
        return None
    stream = io.BytesIO()
    canvas.savefig(stream, format=kind, dpi=160, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def draw(name: str, rows: Sequence[Row]) -> Any:
    """A table as a matplotlib figure: survival curves with bands and numbers at risk, or figures with their intervals; None
    where there is nothing to draw.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    curves = [row for row in rows if row.get("figure") == "survival" and isinstance(row.get("time"), float | int)]
    rows = [row for row in rows if row.get("term") != "constant"]
    columns = [key for key in DRAWN if any(_told(row.get(key)) for row in rows)]
    if not curves and not columns:
        return None
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ConfigurationError("Pictures need matplotlib.", "pip install veilsum[plots]") from error
    canvas = Canvas(figsize=(8.0, 5.0), layout="constrained")
    if curves:
        _draw_curves(canvas, name, curves)
    else:
        _draw_forest(canvas, name, [row for row in rows if _told(row.get(columns[0]))], columns[0])
    return canvas


def _told(value: Any) -> bool:
    return isinstance(value, Mapping) and "low" in value


def _group(row: Row) -> str:
    """The levels of a row's group."""
    fixed = {"figure", "time", "unit", "value", "at_risk", "column", "quantile"}
    return ", ".join(f"{key} {text}" for key, text in row.items() if key not in fixed and isinstance(text, str)) or "all"


def _draw_curves(canvas: Any, name: str, rows: Sequence[Row]) -> None:
    axes, below = canvas.subplots(2, 1, height_ratios=(5, 1), sharex=True)
    groups = list(dict.fromkeys(_group(row) for row in rows))
    for place, group in enumerate(groups):
        told = [row for row in rows if _group(row) == group and _told(row["value"])]
        times = [0.0, *(float(row["time"]) for row in told)]
        low, middle, high = (
            [1.0, *(float(row["value"][end]) if row["value"][end] is not None else limit for row in told)]
            for end, limit in (("low", 0.0), ("value", 0.0), ("high", 1.0))
        )
        (line,) = axes.plot(times, middle, label=group, marker="o", markersize=3)
        axes.fill_between(times, low, high, alpha=0.18, color=line.get_color(), linewidth=0)
        for start, row in zip(times, told, strict=False):  # who was at risk when the interval began
            below.text(
                start,
                place,
                f"{row['at_risk']:.0f}",
                ha="center",
                va="center",
                fontsize=8,
                color=line.get_color(),
            )
    axes.set(ylim=(0, 1.02), ylabel="survival", title=name)
    axes.legend(frameon=False)
    below.set(
        ylim=(len(groups) - 0.5, -0.5),
        yticks=range(len(groups)),
        yticklabels=groups,
        xlabel=str(rows[0].get("unit") or "time"),
    )
    below.set_title("number at risk, with noise", fontsize=8, loc="left")
    for spine in ("top", "right"):
        axes.spines[spine].set_visible(False)
        below.spines[spine].set_visible(False)


def _draw_forest(canvas: Any, name: str, rows: Sequence[Row], key: str) -> None:
    """Figures with their intervals, one below the other; several columns of one table in panels of their own."""
    from matplotlib import ticker

    panels = list(dict.fromkeys((str(row.get("column", "")), str(row.get("unit", "") or "")) for row in rows))
    canvas.set_size_inches(8.0, max(2.2, 0.32 * len(rows) + 0.8 * len(panels) + 0.6))
    counts = [sum((str(row.get("column", "")), str(row.get("unit", "") or "")) == panel for row in rows) for panel in panels]
    grid = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=counts)[:, 0]
    for axes, panel in zip(grid, panels, strict=True):
        own = [row for row in rows if (str(row.get("column", "")), str(row.get("unit", "") or "")) == panel]
        names = [_label(row) for row in own]
        for place, row in enumerate(own):
            figure = row[key]
            low, high = (figure["value"] if figure[end] is None else figure[end] for end in ("low", "high"))
            axes.plot([low, high], [place, place], color="#3b6ea5", linewidth=1.6)
            axes.plot(figure["value"], place, "s", color="#1d3f66", markersize=5)
        axes.set(yticks=range(len(own)), yticklabels=names, ylim=(len(own) - 0.5, -0.5))
        if key in (*RATIOS, "coefficient"):
            axes.axvline(1.0 if key in RATIOS else 0.0, color="#999999", linewidth=0.8, zorder=0)
        if key in RATIOS:
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            even = ticker.MaxNLocator(6).tick_values(low, high)
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            some = even if high < 5.0 * low else [place * 10.0**decade for decade in decades for place in (1, 2, 5)]
            axes.set_xticks([place for place in some if low <= place <= high])
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel(
            " ".join(
                part
                for part in (key.replace("_", " "), f"of {panel[0]}" if panel[0] else "", f"({panel[1]})" if panel[1] else "")
                if part
            )
        )
        for spine in ("top", "right"):
            axes.spines[spine].set_visible(False)
    grid[0].set_title(name)


def _label(row: Row) -> str:
    if "term" in row:
        return f"{row['term']} per {row['per']}" if row.get("per") else str(row["term"])
    parts = [f"{key} {text}" for key, text in row.items() if isinstance(text, str) and key not in ("column", "unit")]
    parts += [f"quantile {row['quantile']:g}"] if "quantile" in row else []
    return ", ".join(parts) or "all"
