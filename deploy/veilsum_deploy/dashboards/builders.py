"""Panels and dashboards in one look: thin functions over the builders of ``grafana-foundation-sdk``.

Every panel has a description, a unit and the variable datasource. Functions return the SDK's builders, so that a dashboard can
say what is peculiar to one panel with the SDK's own words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from grafana_foundation_sdk.builders import common, dashboard, prometheus
from grafana_foundation_sdk.builders.bargauge import Panel as BarGauge
from grafana_foundation_sdk.builders.gauge import Panel as Gauge
from grafana_foundation_sdk.builders.stat import Panel as Stat
from grafana_foundation_sdk.builders.statetimeline import Panel as StateTimeline
from grafana_foundation_sdk.builders.table import Panel as Table
from grafana_foundation_sdk.builders.timeseries import Panel as Timeseries
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    FieldTextAlignment,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableHide,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

DATASOURCE = "veilsum-prometheus"
"""Uid of the provisioned datasource, which the variable ``datasource`` starts with."""

TAG = "veilsum"
RUNBOOKS = "https://intranet.example/veilsum/runbooks"
"""Where docs/runbooks is served unless it is said otherwise when the dashboards are written."""

GREEN, YELLOW, ORANGE, RED, BLUE, GREY = "green", "yellow", "orange", "red", "blue", "text"

Built: TypeAlias = BarGauge | Gauge | Stat | StateTimeline | Table | Timeseries
Steps: TypeAlias = Sequence[tuple[float | None, str]]
"""Colours from these values on; the first step's value is None, minus infinity."""

Words: TypeAlias = Mapping[str, tuple[str, str]]
"""Text and colour of exact values."""

B = TypeVar("B", BarGauge, Gauge, Stat, StateTimeline, Table, Timeseries)

_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


@dataclass(frozen=True)
class Query:
    """One query of a panel.

    Attributes:
        expr: PromQL.
        legend: how each series is called, with ``{{label}}`` for a label's value.
    """

    expr: str
    legend: str = "__auto"


@dataclass(frozen=True)
class Column:
    """A column of a table: a label, or the value of the query with that letter.

    Attributes:
        title: its heading.
        unit: of its values; empty for a label.
        steps: thresholds that colour the cell; see :func:`thresholds`.
        words: values that are written as words, with a colour each.
        decimals: of its values.
        hidden: leaves the column out.
    """

    title: str
    unit: str = ""
    steps: Steps = ()
    words: Words | None = None
    decimals: int | None = None
    hidden: bool = False


def thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    """Colours from these values on."""
    made = [Threshold(value=value, color=colour) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(made)


def value_words(words: Words) -> ValueMap:
    """Words in place of exact values."""
    options = {
        value: ValueMappingResult(text=text, color=colour, index=index)
        for index, (value, (text, colour)) in enumerate(words.items())
    }
    return ValueMap(options=options)


def runbook(name: str) -> dashboard.DashboardLink:
    """The link to an alert's runbook."""
    return _link(f"Runbook: {name.replace('-', ' ')}", f"${{runbooks}}/{name}.md")


def _link(title: str, url: str) -> dashboard.DashboardLink:
    made = dashboard.DashboardLink(title).type(DashboardLinkType.LINK).icon("doc").url(url).target_blank(True)
    return made.tooltip(title)


def _framed(
    panel: B, title: str, says: str, size: tuple[int, int], unit: str, runbooks: Sequence[str], decimals: int | None = None
) -> B:
    """What all panels have."""
    width, height = size
    panel.title(title).description(says).datasource(_SOURCE).span(width).height(height)
    panel.links([runbook(name) for name in runbooks])
    if unit:
        panel.unit(unit)
    if decimals is not None:
        panel.decimals(decimals)
    return panel


def _queried(panel: B, queries: Sequence[Query], *, instant: bool, table: bool = False) -> B:
    for letter, query in zip(_letters(), queries, strict=False):
        made = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(letter).datasource(_SOURCE)
        made.editor_mode(QueryEditorMode.CODE).format(PromQueryFormat.TABLE if table else PromQueryFormat.TIME_SERIES)
        panel.with_target(made.instant() if instant else made.range())
    return panel


def _letters() -> Iterator[str]:
    return iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _coloured(panel: B, steps: Steps, words: Words | None) -> B:
    panel.thresholds(thresholds(steps or ((None, GREEN),)))
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
    if words:
        panel.mappings([value_words(words)])
    return panel


def _last() -> common.ReduceDataOptions:
    return common.ReduceDataOptions().calcs(["lastNotNull"])


def stat(
    title: str,
    says: str,
    *queries: Query,
    unit: str = "none",
    steps: Steps = (),
    words: Words | None = None,
    decimals: int | None = None,
    size: tuple[int, int] = (3, 4),
    runbooks: Sequence[str] = (),
) -> Stat:
    """One large number a query, of now; coloured by ``steps`` or, value by value, by ``words``."""
    panel = _queried(_framed(Stat(), title, says, size, unit, runbooks, decimals), queries, instant=True)
    mode = BigValueTextMode.VALUE_AND_NAME if len(queries) > 1 else BigValueTextMode.VALUE
    panel.reduce_options(_last()).graph_mode(BigValueGraphMode.NONE).text_mode(mode)
    return _coloured(panel.color_mode(BigValueColorMode.VALUE), steps, words)


def gauge(
    title: str,
    says: str,
    query: Query,
    *,
    unit: str,
    most: float,
    steps: Steps,
    decimals: int | None = None,
    size: tuple[int, int] = (12, 7),
    runbooks: Sequence[str] = (),
) -> Gauge:
    """A dial for each series, from 0 to ``most``."""
    panel = _queried(_framed(Gauge(), title, says, size, unit, runbooks, decimals), [query], instant=True)
    panel.reduce_options(_last()).min(0).max(most).show_threshold_markers(True).orientation(VizOrientation.AUTO)
    return _coloured(panel, steps, None)


def bars(
    title: str,
    says: str,
    query: Query,
    *,
    unit: str = "none",
    steps: Steps = ((None, BLUE),),
    words: Words | None = None,
    decimals: int | None = None,
    most: float | None = None,
    size: tuple[int, int] = (8, 8),
    runbooks: Sequence[str] = (),
) -> BarGauge:
    """A horizontal bar for each series, of now."""
    panel = _queried(_framed(BarGauge(), title, says, size, unit, runbooks, decimals), [query], instant=True)
    panel.reduce_options(_last()).orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC).min(0)
    if most is not None:
        panel.max(most)
    return _coloured(panel.show_unfilled(True), steps, words)


def lines(
    title: str,
    says: str,
    *queries: Query,
    unit: str = "none",
    stacked: bool = False,
    steps: Steps = (),
    colours: Mapping[str, str] | None = None,
    decimals: int | None = None,
    size: tuple[int, int] = (8, 8),
    runbooks: Sequence[str] = (),
) -> Timeseries:
    """Curves over time, from 0; ``steps`` are drawn as dashed lines, ``colours`` are those of series by their names."""
    panel = _queried(_framed(Timeseries(), title, says, size, unit, runbooks, decimals), queries, instant=False)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel.legend(legend.show_legend(True).calcs(["lastNotNull"]))
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.min(0).line_width(1.5).fill_opacity(30 if stacked else 8).show_points(VisibilityMode.NEVER)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if steps:
        panel.thresholds(thresholds(steps))
        panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED))
    panel.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
    for name, colour in (colours or {}).items():
        panel.override_by_name(name, [DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})])
    return panel


def states(
    title: str,
    says: str,
    query: Query,
    words: Words,
    *,
    size: tuple[int, int] = (12, 8),
    runbooks: Sequence[str] = (),
) -> StateTimeline:
    """A band for each series, coloured by its value over time."""
    panel = _queried(_framed(StateTimeline(), title, says, size, "", runbooks), [query], instant=False)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel.legend(legend.show_legend(True)).show_value(VisibilityMode.NEVER).row_height(0.8).merge_values(True)
    return _coloured(panel.fill_opacity(75).line_width(0), ((None, GREY),), words)


def table(
    title: str,
    says: str,
    queries: Sequence[Query],
    columns: Mapping[str, Column],
    *,
    sort: str,
    descending: bool = False,
    size: tuple[int, int] = (24, 8),
    runbooks: Sequence[str] = (),
) -> Table:
    """Rows of now, joined on the labels that the queries share.

    Args:
        columns: in order, by label, or by the query's letter (``A`` is the first) for its value.
        sort: title of the column that rows are sorted by.
    """
    panel = _queried(_framed(Table(), title, says, size, "", runbooks), queries, instant=True, table=True)
    names = {key: _field(key, len(queries)) for key in columns}
    organize = {
        "excludeByName": {"Time": True, **{names[key]: True for key, column in columns.items() if column.hidden}},
        "indexByName": {names[key]: index for index, key in enumerate(columns)},
        "renameByName": {names[key]: column.title for key, column in columns.items()},
    }
    panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(DataTransformerConfig(id_val="organize", options=organize))
    for column in columns.values():
        if properties := _properties(column):
            panel.override_by_name(column.title, properties)
    panel.align(FieldTextAlignment.AUTO)
    return panel.sort_by([common.TableSortByFieldState().display_name(sort).desc(descending)])


def _field(key: str, queries: int) -> str:
    """What Grafana calls a column of the answer."""
    if len(key) > 1:
        return key
    return f"Value #{key}" if queries > 1 else "Value"


def _properties(column: Column) -> list[DynamicConfigValue]:
    made = []
    if column.unit:
        made.append(DynamicConfigValue("unit", column.unit))
    if column.decimals is not None:
        made.append(DynamicConfigValue("decimals", column.decimals))
    if column.words:
        made.append(DynamicConfigValue("mappings", [value_words(column.words)]))
    if column.steps:
        made.append(DynamicConfigValue("thresholds", thresholds(column.steps).build()))
    if column.steps or column.words:
        made.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
    return made


def variable(
    name: str, label: str, says: str, query: str, *, many: bool = True, hidden: bool = False
) -> dashboard.QueryVariable:
    """A variable whose values Prometheus knows; ``many``: several may be chosen, at first all."""
    asked = {"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"}
    made = dashboard.QueryVariable(name).label(label).description(says).datasource(_SOURCE).query(asked)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).sort(VariableSort.ALPHABETICAL_ASC).multi(many).include_all(many)
    if many:
        made.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    return made.hide(VariableHide.HIDE_VARIABLE if hidden else VariableHide.DONT_HIDE)


def board(
    uid: str,
    title: str,
    says: str,
    variables: Sequence[dashboard.QueryVariable],
    *,
    since: str,
    refresh: str,
    runbooks: str,
) -> dashboard.Dashboard:
    """An empty dashboard: links to the others, a variable for the datasource and one for where the runbooks lie."""
    made = dashboard.Dashboard(title).uid(uid).description(says).tags([TAG]).time(since, "now").refresh(refresh)
    made.timezone("browser").tooltip(DashboardCursorSync.CROSSHAIR).editable()
    others = dashboard.DashboardLink("veilsum").type(DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True)
    made.link(others.icon("external link").tooltip("The other dashboards of veilsum"))
    source = dashboard.DatasourceVariable("datasource").label("Datasource").type("prometheus")
    source.current(VariableOption(selected=True, text=DATASOURCE, value=DATASOURCE))
    made.with_variable(source.description("The Prometheus that scrapes veilsum."))
    for each in variables:
        made.with_variable(each)
    where = dashboard.ConstantVariable("runbooks").label("Runbooks").value(runbooks)
    return made.with_variable(where.description("Where docs/runbooks is served: panels link to its pages."))


def place(made: dashboard.Dashboard, rows: Sequence[tuple[str, Sequence[Built]]]) -> dashboard.Dashboard:
    """Lay panels out row by row, numbered in their order."""
    number = 0
    for title, panels in rows:
        number += 1
        made.with_row(dashboard.Row(title).id(number))
        for panel in panels:
            number += 1
            made.with_panel(panel.id(number))
    return made
