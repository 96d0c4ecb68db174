"""Pictures of a result's tables: survival curves, and figures with their intervals; with matplotlib, veilsum[plots]."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.process.software import install_extra

DRAWN = ("odds_ratio", "rate_ratio", "hazard_ratio", "coefficient", "mean", "value", "share", "count", "correlation")
"""Figures that a picture can be of, the first one that a table has."""

RATIOS = ("odds_ratio", "rate_ratio", "hazard_ratio")

Row = Mapping[str, Any]
"""A row of a table in a result's summary."""


def plot(name: str, rows: Sequence[Row], kind: str) -> bytes | None:
    """A picture of a table in a file format, ``svg`` or ``png``; as :func:`draw`."""
    canvas = draw(name, rows)
    if canvas is None:
        return None
    stream = io.BytesIO()
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": name}):  # one table, one file: it is written again without a difference
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
    with raising(ConfigurationError("Pictures need matplotlib.", install_extra("plots")), on=ImportError):
        from matplotlib.figure import Figure as Canvas
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
            look = {"ha": "center", "va": "center", "fontsize": 8, "color": line.get_color()}
            below.text(start, place, f"{row['at_risk']:.0f}", **look)
    axes.set(ylim=(0, 1.02), ylabel="survival", title=name)
    axes.legend(frameon=False)
    below.set(
        ylim=(len(groups) - 0.5, -0.5),
        yticks=range(len(groups)),
        yticklabels=groups,
        xlabel=str(rows[0].get("unit") or "time"),
    )
    below.set_title("number at risk, with noise", fontsize=8, loc="left")
    for panel in (axes, below):
        panel.spines[["top", "right"]].set_visible(False)


def _draw_forest(canvas: Any, name: str, rows: Sequence[Row], key: str) -> None:
    """Figures with their intervals, one below the other; several columns of one table in panels of their own."""
    from matplotlib import ticker

    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((str(row.get("column", "")), str(row.get("unit", "") or "")), []).append(row)
    canvas.set_size_inches(8.0, max(2.2, 0.32 * len(rows) + 0.8 * len(panels) + 0.6))
    grid = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=[len(own) for own in panels.values()])[:, 0]
    for axes, ((column, unit), own) in zip(grid, panels.items(), strict=True):
        for place, figure in enumerate(row[key] for row in own):
            low, high = (figure["value"] if figure[end] is None else figure[end] for end in ("low", "high"))
            axes.plot([low, high], [place, place], color="#3b6ea5", linewidth=1.6)
            axes.plot(figure["value"], place, "s", color="#1d3f66", markersize=5)
        axes.set(yticks=range(len(own)), yticklabels=[_label(row) for row in own], ylim=(len(own) - 0.5, -0.5))
        if key in (*RATIOS, "coefficient"):
            axes.axvline(1.0 if key in RATIOS else 0.0, color="#999999", linewidth=0.8, zorder=0)
        if key in RATIOS:
            axes.set_xscale("log")
            low, high = axes.get_xlim()
            narrow = high < 5.0 * low
            axes.xaxis.set_major_locator(ticker.MaxNLocator(6) if narrow else ticker.LogLocator(subs=(1, 2, 5), numticks=99))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(ticker.NullLocator())
        words = [key.replace("_", " "), f"of {column}" if column else "", f"({unit})" if unit else ""]
        axes.set_xlabel(" ".join(filter(None, words)))
        axes.spines[["top", "right"]].set_visible(False)
    grid[0].set_title(name)


def _label(row: Row) -> str:
    if "term" in row:
        return f"{row['term']} per {row['per']}" if row.get("per") else str(row["term"])
    parts = [f"{key} {text}" for key, text in row.items() if isinstance(text, str) and key not in ("column", "unit")]
    parts += [f"quantile {row['quantile']:g}"] if "quantile" in row else []
    return ", ".join(parts) or "all"
