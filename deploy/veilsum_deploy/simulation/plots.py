"""Pictures of a sweep: its leading figure against epsilon where that was varied, else bars of the cells' gains or figures.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; lines differ in their markers as well.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilsum_deploy.datasets import EXTRA
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.held_out import LEADING, NAMES
from veilsum_deploy.simulation.sweep import EPSILON, NO_NOISE, Cell, Sweep, shown
from veilsum_deploy.simulation.tables import MeanOfRuns, SweepRow
from veilsum_node.errors import Misuse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
STYLES = ("-", "--", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
REFERENCE_STYLES = {
    "alone": (":", "#555555"),
    "pooled": ("--", "#555555"),
    "trained-alone": (":", "#999999"),
    "trained-pooled": ("--", "#999999"),
}
MAX_BARS = 60
ACCURACY = "accuracy"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "veilsum",
}


@dataclass(frozen=True)
class PlottedTable:
    """What is drawn: the rows of a sweep under a title."""

    sweep: Sweep
    rows: Sequence[SweepRow]
    title: str

    @cached_property
    def figure(self) -> str | None:
        """The figure that leads the table's cells; accuracy where they have no other, None where they have nothing."""
        cells = [row for row in self.rows if row.kind == "cell"]
        led = next((name for name in LEADING if any(name in row.figures for row in cells)), None)
        return led or (ACCURACY if any(row.average is not None for row in cells) else None)

    @property
    def words(self) -> str:
        """The figure on an axis."""
        return "accuracy, mean over domains, %" if self.figure == ACCURACY else f"{NAMES[str(self.figure)]}, %"

    def of(self, row: SweepRow) -> MeanOfRuns | None:
        """The figure of a row, a share."""
        return row.average if self.figure == ACCURACY else row.figures.get(str(self.figure))


def require_matplotlib() -> None:
    """Fail before a sweep, not after it, where pictures cannot be drawn.

    Raises:
        Misuse: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise Misuse("matplotlib, which draws a sweep's pictures, is not installed.", EXTRA)


def draw(folder: Path, table: PlottedTable) -> list[Path]:
    """Write a .png and an .svg, named for the figure or ``gains``, into a folder; nothing where no cell has a figure.

    Returns:
        The files' paths.
    """
    if table.figure is None:
        return []
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # no window, no display

    with mpl.rc_context(STYLE):
        numbers = _epsilons(table.sweep)
        figure = _lines(table, numbers) if numbers else _bars(table)
        name = table.figure if numbers or table.sweep.baseline is None else "gains"
        FigureCanvasAgg(figure)
        paths = [folder / f"{name}.png", folder / f"{name}.svg"]
        figure.savefig(paths[0], dpi=150, bbox_inches="tight")
        figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    return paths


def _epsilons(sweep: Sweep) -> list[float]:
    """The varied epsilons that are numbers, ascending; empty where fewer than two values are varied."""
    values = [value for axis in sweep.axes if axis.key == EPSILON for value in axis.values]
    numbers = sorted(float(value) for value in values if isinstance(value, int | float) and value > 0)
    return numbers if len(values) > 1 else []


def _lines(table: PlottedTable, numbers: Sequence[float]) -> Any:
    """One panel for each setting, one line for each variant; "none" stands at the right end, beyond a gap."""
    from matplotlib.figure import Figure

    sweep = table.sweep
    groups = sweep.groups()
    variants = _distinct([_without(cell, (EPSILON,), cell.group) for cell in sweep.cells()])
    columns = min(len(groups), 3)
    lines = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(2.6 + 4.4 * columns, 1.3 + 3.4 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, sharey=True, squeeze=False).ravel()
    far = numbers[-1] * (numbers[-1] / numbers[0] if len(numbers) > 1 else 10.0) ** 0.22 * 1.6
    for panel, group in zip(panels, groups, strict=False):
        for index, variant in enumerate(variants):
            rows = [
                row
                for row in table.rows
                if row.kind == "cell" and row.cell.group == group and _without(row.cell, (EPSILON,), group) == variant
            ]
            _line(panel, table, rows, far, index, variant)
        _references(panel, table, group)
        panel.set_xscale("log")
        none = any(value == NO_NOISE for axis in sweep.axes if axis.key == EPSILON for value in axis.values)
        ticks = [*numbers, far] if none else list(numbers)
        panel.set_xticks(ticks, [*(f"{number:g}" for number in numbers), *([NO_NOISE] if none else [])])
        panel.minorticks_off()
        panel.set_xlabel("epsilon")
        panel.set_title(_words(sweep, group))
        panel.grid(axis="y", alpha=0.25)
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    for panel in panels[::columns]:
        panel.set_ylabel(table.words)
    _legend(figure, list(panels[: len(groups)]))
    figure.suptitle(table.title, x=0.02, horizontalalignment="left")
    return figure


def _line(panel: Axes, table: PlottedTable, rows: Sequence[SweepRow], far: float, index: int, variant: Cell) -> None:
    again = index // len(COLOURS)  # how often the colours were used up: another style and marker then tells lines apart
    colour, style = COLOURS[index % len(COLOURS)], STYLES[again % len(STYLES)]
    marker = MARKERS[(index + 3 * again) % len(MARKERS)]
    told = [(_place(row, far), value, row) for row in rows if (value := table.of(row)) is not None]
    noised = sorted(((x, value, row) for x, value, row in told if x < far), key=lambda item: item[0])
    points = [*noised, *((x, value, row) for x, value, row in told if x >= far)]
    if not points:
        return
    xs = [x for x, _, _ in noised]
    panel.plot(xs, [100 * value.mean for _, value, _ in noised], style, color=colour, linewidth=1.6)
    low = [100 * (value.mean - (value.error or 0.0)) for _, value, _ in noised]
    high = [100 * (value.mean + (value.error or 0.0)) for _, value, _ in noised]
    panel.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    if noised and len(points) > len(noised):  # a dotted step: between them lies no epsilon
        ends = (noised[-1], points[-1])
        panel.plot([x for x, _, _ in ends], [100 * value.mean for _, value, _ in ends], ":", color=colour, linewidth=1.2)
    for x, value, row in points:
        whole = value.runs == row.planned  # hollow where some runs could not tell
        face = colour if whole else "white"
        bars = x >= far or len(noised) == 1  # elsewhere the band shows it
        error = [100 * value.error] if value.error is not None and bars else None
        panel.errorbar(
            [x], [100 * value.mean], yerr=error, color=colour, marker=marker, markersize=6, markerfacecolor=face, capsize=2
        )
    label = _words(table.sweep, variant) or "the study"
    panel.plot([], [], style, color=colour, marker=marker, markersize=6, linewidth=1.6, label=label)


def _bars(table: PlottedTable) -> Any:
    """One panel for each setting, one bar for each cell: its gain where a baseline is named, its figure otherwise."""
    from matplotlib.figure import Figure

    sweep, gains = table.sweep, table.sweep.baseline is not None
    groups = sweep.groups()
    shown_rows: list[list[tuple[SweepRow, MeanOfRuns]]] = []
    for group in groups:
        found = [row for row in table.rows if row.kind == "cell" and row.cell.group == group]
        pairs = [(row, row.gain if gains else table.of(row)) for row in found]
        shown_rows.append([(row, value) for row, value in pairs if value is not None][:MAX_BARS])
    longest = max(1, *(len(rows) for rows in shown_rows))
    columns = min(len(groups), 3)
    lines = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(2.6 + 3.9 * columns, 1.5 + lines * (0.7 + 0.34 * longest)), layout="constrained")
    panels = figure.subplots(lines, columns, sharex=True, squeeze=False).ravel()
    families = _distinct([_family(sweep, cell) for cell in sweep.cells()])
    for number, (panel, group, rows) in enumerate(zip(panels, groups, shown_rows, strict=False)):
        labels = []
        for place, (row, value) in enumerate(rows):
            colour = COLOURS[families.index(_family(sweep, row.cell)) % len(COLOURS)]
            error = None if value.error is None else 100 * value.error
            panel.barh(place, 100 * value.mean, xerr=error, color=colour, alpha=0.85, height=0.7, capsize=2.5)
            labels.append(_words(sweep, _without(row.cell, (), group)) or "the study")
        panel.set_yticks(range(len(rows)), labels if number % columns == 0 or not _same(shown_rows, group, groups) else [])
        panel.set_ylim(len(rows) - 0.4, -0.6)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.grid(axis="x", alpha=0.25)
        panel.set_title(_words(sweep, group))
        if not gains:
            _references(panel, table, group, upright=True)
            panel.set_xlabel(table.words)
        else:
            classes = any(row.classes for row, _ in rows)
            panel.set_xlabel(f"gain in {'accuracy' if classes else NAMES[str(table.figure)]}, points")
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    if not gains:
        _legend(figure, list(panels[: len(groups)]))
    baseline = "" if sweep.baseline is None else f"\ngain over {sweep.headings[sweep.baseline[0]]} {shown(sweep.baseline[1])}"
    figure.suptitle(f"{table.title}{baseline}", x=0.02, horizontalalignment="left")
    return figure


def _references(panel: Axes, table: PlottedTable, group: Cell, *, upright: bool = False) -> None:
    """Each site alone and pooled records, as lines across the panel."""
    for row in table.rows:
        value = table.of(row)
        if row.kind not in REFERENCE_STYLES or row.cell != group or value is None:
            continue
        style, colour = REFERENCE_STYLES[row.kind]
        across = panel.axvline if upright else panel.axhline
        across(100 * value.mean, linestyle=style, color=colour, linewidth=1.3, label=BASELINES[row.kind])


def _legend(figure: Any, panels: Sequence[Axes]) -> None:
    """One legend for all panels, to their right, each label once."""
    found: dict[str, Any] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        found.update({label: handle for handle, label in zip(handles, labels, strict=True) if label not in found})
    figure.legend(found.values(), found.keys(), loc="outside right upper", frameon=False)


def _place(row: SweepRow, far: float) -> float:
    value = row.cell.value(EPSILON)
    return far if value == NO_NOISE else float(value)


def _without(cell: Cell, keys: Sequence[str], group: Cell) -> Cell:
    """The cell without some keys and without those of its group."""
    gone = {*keys, *(key for key, _ in group.values)}
    return Cell(tuple((key, value) for key, value in cell.values if key not in gone))


def _several(sweep: Sweep, cell: Cell) -> Cell:
    """The cell without the keys that take one value only."""
    return _without(cell, [axis.key for axis in sweep.axes if len(axis.values) == 1], Cell(()))


def _words(sweep: Sweep, cell: Cell) -> str:
    """What tells the cell from others; empty where nothing does."""
    own = _several(sweep, cell)
    return own.label() if own.values else ""


def _family(sweep: Sweep, cell: Cell) -> Any:
    """What a bar's colour tells: the value of the first key that is neither the baseline's nor the setting's."""
    own = _several(sweep, _without(cell, () if sweep.baseline is None else (sweep.baseline[0],), cell.group)).values
    return own[0] if own else None


def _distinct(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _same(rows: Sequence[Sequence[tuple[SweepRow, MeanOfRuns]]], group: Cell, groups: Sequence[Cell]) -> bool:
    """Whether a group's bars are those of the first, so that its labels need not be said again."""
    own = [_without(row.cell, (), group) for row, _ in rows[list(groups).index(group)]]
    return own == [_without(row.cell, (), groups[0]) for row, _ in rows[0]]
