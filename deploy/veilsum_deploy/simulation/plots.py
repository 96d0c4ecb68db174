"""Pictures of a sweep: its leading figure against epsilon where that was varied, else bars of the cells' gains or figures.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; lines differ in their markers as well.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from veilsum_deploy.datasets import EXTRA
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.scores import ACCURACY, LEADING, NAMES
from veilsum_deploy.simulation.sweep import EPSILON, NO_NOISE, Cell, Sweep, shown
from veilsum_deploy.simulation.tables import MeanOfRuns, SweepRow
from veilsum_node.errors import Misuse
from veilsum_node.file_names import file_name

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


class PlottedPoint(NamedTuple):
    """A point of a line, in points; hollow where some runs could not tell."""

    x: float
    mean: float
    error: float
    whole: bool


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
        paths = [folder / file_name(name, suffix) for suffix in (".png", ".svg")]
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
    sweep = table.sweep
    variants = list(dict.fromkeys(_without(cell, [EPSILON], cell.group) for cell in sweep.cells()))
    figure, panels = _panels(sweep, table.title, 4.4, 1.3, 3.4, sharey=True)
    places: dict[Any, float] = {number: number for number in numbers}
    if any(cell.value(EPSILON) == NO_NOISE for cell in sweep.cells()):
        places[NO_NOISE] = numbers[-1] * (numbers[-1] / numbers[0] if len(numbers) > 1 else 10.0) ** 0.22 * 1.6
    for panel, group in panels.items():
        for index, variant in enumerate(variants):
            rows = [row for row in _cells(table, group) if _without(row.cell, [EPSILON], group) == variant]
            _line(panel, table, rows, places, index, variant)
        _references(panel, table, group)
        panel.set_xscale("log")
        panel.set_xticks(list(places.values()), [shown(value) for value in places])
        panel.minorticks_off()
        panel.set_xlabel("epsilon")
        panel.grid(axis="y", alpha=0.25)
        if panel.get_subplotspec().is_first_col():
            panel.set_ylabel(table.words)
    _legend(figure, panels)
    return figure


def _line(
    panel: Axes, table: PlottedTable, rows: Sequence[SweepRow], places: Mapping[Any, float], index: int, variant: Cell
) -> None:
    again = index // len(COLOURS)  # how often the colours were used up: another style and marker then tells lines apart
    colour, style = COLOURS[index % len(COLOURS)], STYLES[again % len(STYLES)]
    marker = MARKERS[(index + 3 * again) % len(MARKERS)]
    points = []
    for row in rows:
        x, value = places.get(row.cell.value(EPSILON)), table.of(row)
        if x is not None and value is not None:
            points.append(PlottedPoint(x, 100 * value.mean, 100 * (value.error or 0.0), value.runs == row.planned))
    if not points:
        return
    points.sort()
    noised = [point for point in points if point.x != places.get(NO_NOISE)]
    xs, means, errors = [[point[part] for point in noised] for part in range(3)]
    panel.plot(xs, means, style, color=colour, linewidth=1.6)
    low, high = [[mean + sign * error for mean, error in zip(means, errors, strict=True)] for sign in (-1, 1)]
    panel.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    if noised and len(points) > len(noised):  # a dotted step: between them lies no epsilon
        panel.plot([xs[-1], points[-1].x], [means[-1], points[-1].mean], ":", color=colour, linewidth=1.2)
    look: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 6}
    for point in points:
        bar = point.error if len(noised) == 1 or point not in noised else 0.0  # elsewhere the band shows it
        face = colour if point.whole else "white"
        panel.errorbar([point.x], [point.mean], yerr=[bar] if bar else None, markerfacecolor=face, capsize=2, **look)
    panel.plot([], [], style, linewidth=1.6, label=_words(table.sweep, variant) or "the study", **look)


def _bars(table: PlottedTable) -> Any:
    """One panel for each setting, one bar for each cell: its gain where a baseline is named, its figure otherwise."""
    sweep, gains = table.sweep, table.sweep.baseline is not None
    bars: dict[Cell, list[tuple[SweepRow, MeanOfRuns]]] = {}
    for group in sweep.groups():
        pairs = [(row, row.gain if gains else table.of(row)) for row in _cells(table, group)]
        bars[group] = [(row, value) for row, value in pairs if value is not None][:MAX_BARS]
    longest = max(1, *map(len, bars.values()))
    title = table.title
    if sweep.baseline is not None:
        title += f"\ngain over {sweep.headings[sweep.baseline[0]]} {shown(sweep.baseline[1])}"
    figure, panels = _panels(sweep, title, 3.9, 1.5, 0.7 + 0.34 * longest, sharex=True)
    families = list(dict.fromkeys(_family(sweep, cell) for cell in sweep.cells()))
    first: list[Cell] | None = None  # the bars of the first panel: where others are the same, labels need not be said again
    for panel, group in panels.items():
        for place, (row, value) in enumerate(bars[group]):
            colour = COLOURS[families.index(_family(sweep, row.cell)) % len(COLOURS)]
            error = None if value.error is None else 100 * value.error
            panel.barh(place, 100 * value.mean, xerr=error, color=colour, alpha=0.85, height=0.7, capsize=2.5)
        own = [_without(row.cell, [], group) for row, _ in bars[group]]
        first = own if first is None else first
        labels = [_words(sweep, cell) or "the study" for cell in own]
        panel.set_yticks(range(len(own)), labels if panel.get_subplotspec().is_first_col() or own != first else [])
        panel.set_ylim(len(own) - 0.4, -0.6)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.grid(axis="x", alpha=0.25)
        if not gains:
            _references(panel, table, group, upright=True)
            panel.set_xlabel(table.words)
        else:
            classes = any(row.classes for row, _ in bars[group])
            panel.set_xlabel(f"gain in {ACCURACY if classes else NAMES[str(table.figure)]}, points")
    if not gains:
        _legend(figure, panels)
    return figure


def _panels(
    sweep: Sweep, title: str, width: float, margin: float, height: float, **shared: Any
) -> tuple[Any, dict[Any, Cell]]:
    """A figure with a titled panel for each setting, three a line.

    Args:
        sweep: whose settings they are.
        width, height: of a panel in inches.
        margin: above and below all of them.
        **shared: the axis that panels have in common.
    """
    from matplotlib.figure import Figure

    groups = sweep.groups()
    columns = min(len(groups), 3)
    lines = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(2.6 + width * columns, margin + height * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False, **shared).ravel()
    for panel in panels[len(groups) :]:
        panel.set_visible(False)
    found = dict(zip(panels, groups, strict=False))
    for panel, group in found.items():
        panel.set_title(_words(sweep, group))
    figure.suptitle(title, x=0.02, horizontalalignment="left")
    return figure, found


def _references(panel: Axes, table: PlottedTable, group: Cell, *, upright: bool = False) -> None:
    """Each site alone and pooled records, as lines across the panel."""
    for row in table.rows:
        value = table.of(row)
        if row.kind not in REFERENCE_STYLES or row.cell != group or value is None:
            continue
        style, colour = REFERENCE_STYLES[row.kind]
        across = panel.axvline if upright else panel.axhline
        across(100 * value.mean, linestyle=style, color=colour, linewidth=1.3, label=BASELINES[row.kind])


def _legend(figure: Any, panels: Iterable[Axes]) -> None:
    """One legend for all panels, to their right, each label once."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found.keys(), loc="outside right upper", frameon=False)


def _cells(table: PlottedTable, group: Cell) -> list[SweepRow]:
    """The rows of a setting's cells."""
    return [row for row in table.rows if row.kind == "cell" and row.cell.group == group]


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


def _family(sweep: Sweep, cell: Cell) -> Cell:
    """What a bar's colour tells: the value of the first key that is neither the baseline's nor the setting's."""
    baseline = [] if sweep.baseline is None else [sweep.baseline[0]]
    return Cell(_several(sweep, _without(cell, baseline, cell.group)).values[:1])
