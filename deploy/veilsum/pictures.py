"""Pictures of a result's tables: survival curves, and figures with their intervals; with matplotlib, veilsum[plots]."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from veilsum.papers import DAGGER, Names, Subgroup, estimate_text, group_of, p_text, ratio_text, terms_of
from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.process.software import install_extra

DRAWN = ("odds_ratio", "rate_ratio", "hazard_ratio", "coefficient", "mean", "value", "share", "count", "correlation")
"""Figures that a picture can be of, the first one that a table has."""

RATIOS = ("odds_ratio", "rate_ratio", "hazard_ratio")

WORDS = {"odds_ratio": "Odds ratio", "rate_ratio": "Rate ratio", "hazard_ratio": "Hazard ratio"}

COLOURS = ("#1f4e79", "#c55a11", "#548235", "#7f6000", "#7030a0", "#404040")
"""Colours of curves, which are told apart in grey as well by their dashes."""

DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)))

LARGEST_RATIO = 1e3
"""Ratios beyond this are drawn to the edge with an arrow: their interval says nothing."""

Row = Mapping[str, Any]
"""A row of a table in a result's summary."""


@dataclass(frozen=True)
class Drawn:
    """What a picture is of.

    Attributes:
        tests: of its tests, if there are any.
        subgroups: lines of a forest of subgroups, in place of rows.
    """

    rows: Sequence[Row]
    tests: Sequence[Row] = ()
    subgroups: Sequence[Subgroup] = ()
    names: Names = field(default_factory=lambda: Names(None))


def plot(name: str, drawn: Drawn, kind: str) -> bytes | None:
    """A picture of a table in a file format, ``svg`` or ``png``; as :func:`draw`."""
    canvas = draw(name, drawn)
    if canvas is None:
        return None
    stream = io.BytesIO()
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": name}):  # one table, one file: it is written again without a difference
        canvas.savefig(stream, format=kind, dpi=200, metadata={"Date": None} if kind == "svg" else None)
    return stream.getvalue()


def draw(name: str, drawn: Drawn) -> Any:
    """A table as a matplotlib figure: survival curves as steps with bands, numbers at risk and the test's p, or figures with
    their intervals; None where there is nothing to draw.

    Raises:
        ConfigurationError: matplotlib is not installed.
    """
    if drawn.subgroups:
        canvas = _canvas()
        lines = [
            Shown(each.name, None, "", each.p, each.indent)
            if each.figure is None
            else Shown(each.name, each.figure, ratio_text(each.figure), "", each.indent)  # the column of p is of interactions
            for each in drawn.subgroups
        ]
        forest(canvas, lines, "odds_ratio", "Subgroup", "P, interaction")
        return canvas
    curves = [row for row in drawn.rows if row.get("figure") == "survival" and isinstance(row.get("time"), float | int)]
    rows = [row for row in drawn.rows if row.get("term") != "constant"]
    columns = [key for key in DRAWN if any(_told(row.get(key)) for row in rows)]
    if not curves and not columns:
        return None
    canvas, odds = (
        _canvas(),
        [row for row in rows if "compared" in row and str(row.get("figure", "")).startswith("odds ratio")],
    )
    if curves:
        _draw_curves(canvas, curves, drawn)
    elif odds:
        _draw_odds(canvas, odds, drawn.names)
    elif columns[0] in (*RATIOS, "coefficient") and "term" in rows[0]:
        _draw_model(canvas, [row for row in rows if "term" in row], columns[0], drawn.names)
    else:
        _draw_figures(canvas, [row for row in rows if _told(row.get(columns[0]))], columns[0], drawn.names)
    return canvas


def _canvas() -> Any:
    with raising(ConfigurationError("Pictures need matplotlib.", install_extra("plots")), on=ImportError):
        from matplotlib.figure import Figure as Canvas
    return Canvas(figsize=(7.2, 5.0), layout="constrained")


def _told(value: Any) -> bool:
    return isinstance(value, Mapping) and "low" in value


def _draw_curves(canvas: Any, rows: Sequence[Row], drawn: Drawn) -> None:
    """Steps at the ends of intervals; what happens within one is not released."""
    from matplotlib.ticker import FixedLocator, PercentFormatter

    groups = list(dict.fromkeys(group_of(row, drawn.names) for row in rows))
    labels, tall = _wrapped(groups)
    canvas.set_size_inches(7.2, 4.4 + 0.24 * len(groups) * tall)
    axes, below = canvas.subplots(2, 1, height_ratios=(12, 0.8 + 0.8 * len(groups) * tall), sharex=True)
    ends = sorted({float(row["time"]) for row in rows})
    at_risk: dict[str, list[tuple[float, float]]] = {}
    for place, group in enumerate(groups):
        told = [row for row in rows if group_of(row, drawn.names) == group and _told(row["value"])]
        times = [0.0, *(float(row["time"]) for row in told)]
        low, middle, high = (
            [1.0, *(float(row["value"][end]) if row["value"][end] is not None else limit for row in told)]
            for end, limit in (("low", 0.0), ("value", 0.0), ("high", 1.0))
        )
        colour, dash = COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]
        axes.step(times, middle, where="post", label=labels[place], color=colour, linestyle=dash, linewidth=1.6)
        axes.fill_between(times, low, high, step="post", alpha=0.15, color=colour, linewidth=0)
        at_risk[group] = [(start, float(row["at_risk"])) for start, row in zip(times, told, strict=False)]
    ticks = _ticks([0.0, *ends])
    for place, group in enumerate(groups):
        for start, number in at_risk[group]:
            if start in ticks:
                look = {"ha": "center", "va": "center", "fontsize": 9, "color": COLOURS[place % len(COLOURS)]}
                below.text(start, place, f"{max(round(number), 0):,}", **look)
    axes.set(ylim=(0.0, 1.02), xlim=(0.0, ends[-1] * 1.02), ylabel="Survival")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if len(groups) > 1:
        axes.legend(frameon=False, loc="lower left")
    test = next((row for row in drawn.tests if str(row.get("test", "")).startswith("log-rank")), None)
    if test is not None and test.get("p_value") is not None:
        p = p_text(test["p_value"])
        axes.text(0.99, 0.97, f"Log-rank P {p if p[0] in '<>' else f'= {p}'}", ha="right", va="top", transform=axes.transAxes)
    unit = str(rows[0].get("unit") or "")
    below.set(ylim=(len(groups) - 0.4, -0.6), yticks=range(len(groups)), yticklabels=labels)
    below.set_xlabel(f"Time, {unit}" if unit else "Time")
    below.xaxis.set_major_locator(FixedLocator(ticks))
    below.xaxis.set_major_formatter("{x:g}")
    below.set_title("No. at risk, less half of those censored in the interval", fontsize=9, loc="left")
    below.tick_params(axis="y", left=False, labelsize=9, pad=18)
    below.tick_params(axis="x", labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    below.spines[["top", "right", "left"]].set_visible(False)


WIDEST_NAME = 32
"""Characters of a name in one line: a longer one takes several, or it would leave the picture no room."""

MOST_LINES = 6


def _wrapped(names: Sequence[str]) -> tuple[list[str], int]:
    """Names in lines, and how many lines the tallest has."""
    shown = [textwrap.fill(name, WIDEST_NAME, max_lines=MOST_LINES, placeholder=" …") for name in names]
    return shown, max(name.count("\n") + 1 for name in shown)


MOST_TICKS = 8


def _ticks(ends: Sequence[float]) -> list[float]:
    """Starts of intervals that are named, evenly among all."""
    every = max(1, -(-(len(ends) - 1) // MOST_TICKS))
    return [end for place, end in enumerate(ends) if place % every == 0]


@dataclass(frozen=True)
class Shown:
    """A line of a forest: its name, its figure, and whether it is indented or a heading."""

    name: str
    figure: Any = None
    text: str = ""
    p: str = ""
    indent: int = 0


def _draw_model(canvas: Any, rows: Sequence[Row], key: str, names: Names) -> None:
    """A forest of a model's terms: categories under their columns with their references, figures in words at the side."""
    lines, open_column = list[Shown](), ""
    for term in terms_of(rows, names):
        figure = term.row.get(key)
        told = estimate_text(key, figure).replace(DAGGER, "")
        p = p_text(term.row.get("p_value"))
        if term.level and term.column != open_column:
            lines += [Shown(names.label(term.column)), Shown(term.reference, None, "Reference", "", 1)]
        open_column = term.column if term.level else ""
        lines.append(Shown(term.level or term.shown, figure, told, p, int(bool(term.level))))
    forest(canvas, lines, key)


def _draw_odds(canvas: Any, rows: Sequence[Row], names: Names) -> None:
    """A forest of the odds ratios of a table of two columns, under what they are of, and in which stratum."""
    lines, heading = list[Shown](), ""
    for row in rows:
        levels = [f"{names.label(key)}: {text}" for key, text in row.items() if key not in _OF_ODDS and isinstance(text, str)]
        stratum = ", ".join([names.replaced(row["of"]), *levels])
        lines += [] if stratum == heading else [Shown(stratum)]
        p, told = p_text(row.get("p_value")), ratio_text(row["value"]).replace(DAGGER, "")
        lines.append(Shown(names.replaced(row["compared"]), row["value"], told, p, 1))
        heading = stratum
    forest(canvas, lines, "odds_ratio", "")


_OF_ODDS = ("of", "compared", "figure", "note", "unit")


def forest(canvas: Any, lines: Sequence[Shown], key: str, title: str = "Term", of_p: str = "P value") -> None:
    """Names, squares with their intervals, the figures and p, one line below the other."""
    shown, tall = _wrapped([line.name for line in lines])
    canvas.set_size_inches(8.4, 0.9 + 0.28 * len(lines) * (1 + 0.6 * (tall - 1)))
    names, axes, words = canvas.subplots(1, 3, width_ratios=(3.0, 3.0, 3.5), sharey=True)
    for panel in (names, words):
        panel.axis("off")
    null = 1.0 if key in RATIOS else 0.0
    drawn = [line.figure for line in lines if _told(line.figure)]
    values = [
        float(figure[end])
        for figure in drawn
        for end in ("value", "low", "high")
        if figure[end] is not None and (key not in RATIOS or 1.0 / LARGEST_RATIO < figure[end] < LARGEST_RATIO)
    ]
    low, high = min([null, *values]), max([null, *values])
    if key in RATIOS:
        axes.set_xscale("log")
        low, high = min(low / 1.15, 0.8), max(high * 1.15, 1.25)
    else:
        spare = 0.08 * (high - low or 1.0)
        low, high = low - spare, high + spare
    axes.set_xlim(low, high)
    for place, line in enumerate(lines):
        names.text(0.0 + 0.05 * line.indent, place, shown[place], va="center", fontweight=None if line.text else "bold")
        words.text(0.0, place, line.text, va="center")
        words.text(1.0, place, line.p, va="center", ha="right")
        if not _told(line.figure):
            continue
        ends = [
            low if line.figure["low"] is None else line.figure["low"],
            high if line.figure["high"] is None else line.figure["high"],
        ]
        for end, limit, mark in ((ends[0], low, "<"), (ends[1], high, ">")):
            if (end < limit) if mark == "<" else (end > limit):
                axes.plot(limit, place, mark, color=COLOURS[0], markersize=5, clip_on=False)
        axes.plot([max(ends[0], low), min(ends[1], high)], [place, place], color=COLOURS[0], linewidth=1.3)
        axes.plot(min(max(line.figure["value"], low), high), place, "s", color=COLOURS[0], markersize=5.5)
    axes.axvline(null, color="#777777", linewidth=0.8, zorder=0)
    axes.set(ylim=(len(lines) - 0.4, -1.6), yticks=[])
    names.text(0.0, -1.0, title, fontweight="bold", va="center")
    head = WORDS.get(key, "Coefficient" if key == "coefficient" else key.replace("_", " "))
    words.text(0.0, -1.0, f"{head} (95% CI)", fontweight="bold", va="center")
    words.text(1.0, -1.0, of_p if any(line.p for line in lines) else "", fontweight="bold", va="center", ha="right")
    _scale(axes, head, log=key in RATIOS)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _scale(axes: Any, head: str, *, log: bool) -> None:
    """Few round numbers below a picture."""
    from matplotlib import ticker

    if log:
        low, high = axes.get_xlim()
        for subs in ((1, 2, 5), (1, 2), (1,)):
            places = [at for power in range(-4, 5) for sub in subs if low <= (at := sub * 10.0**power) <= high]
            if len(places) <= 7:
                break
        if len(places) < 3:
            steps = [at for at in (0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5) if low <= at <= high]
            places = steps if len(steps) >= 2 else places
        axes.xaxis.set_major_locator(ticker.FixedLocator(places))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
    else:
        axes.xaxis.set_major_locator(ticker.MaxNLocator(5))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(f"{head}, log scale" if log else head)


def _draw_figures(canvas: Any, rows: Sequence[Row], key: str, names: Names) -> None:
    """Figures with their intervals, one below the other; several columns of one table in panels of their own."""
    from matplotlib.ticker import MaxNLocator

    panels: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((str(row.get("column", "")), str(row.get("unit", "") or "")), []).append(row)
    labels = {column: _wrapped([_label(row, names) for row in own]) for column, own in panels.items()}
    tall = max(lines for _, lines in labels.values())
    row_height = 0.32 * (1 + 0.5 * (tall - 1))
    canvas.set_size_inches(7.2, max(2.2, row_height * len(rows) + 0.8 * len(panels) + 0.6))
    grid = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=[len(own) for own in panels.values()])[:, 0]
    for axes, ((column, unit), own) in zip(grid, panels.items(), strict=True):
        figures = [row[key] for row in own]
        for place, figure in enumerate(figures):
            low, high = (figure["value"] if figure[end] is None else figure[end] for end in ("low", "high"))
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=1.4)
            axes.plot(figure["value"], place, "s", color=COLOURS[0], markersize=5)
        limits = axes.get_xlim()
        for place, figure in enumerate(figures):  # an open end reaches to the picture's edge, with an arrow
            for end, limit, mark in zip(("low", "high"), limits, "<>", strict=True):
                if figure[end] is None:
                    axes.plot([figure["value"], limit], [place, place], color=COLOURS[0], linewidth=1.4)
                    axes.plot(limit, place, mark, color=COLOURS[0], markersize=5, clip_on=False)
        axes.set_xlim(limits)
        axes.xaxis.set_major_locator(MaxNLocator(5))  # numbers such as 0.01825 are wide
        axes.set(yticks=range(len(own)), yticklabels=labels[column, unit][0], ylim=(len(own) - 0.5, -0.5))
        words = [names.label(column) if column else "", unit, key.replace("_", " ")]
        said = ", ".join(filter(None, words))
        axes.set_xlabel(textwrap.fill(f"{said[:1].upper()}{said[1:]} (95% CI)", 2 * WIDEST_NAME))
        axes.spines[["top", "right"]].set_visible(False)


def _label(row: Row, names: Names) -> str:
    parts = [
        f"{names.label(key)}: {text}" for key, text in row.items() if isinstance(text, str) and key not in ("column", "unit")
    ]
    parts += [f"quantile {row['quantile']:g}"] if "quantile" in row else []
    return ", ".join(parts) or "All"
