"""A result's tables as files, with pictures (:mod:`veilsum.pictures`), for papers and slides.

Tables are the lists of rows in a result's summary; what else it tells is one more, ``summary``. A figure with its interval
becomes one cell, ``61.2 (59.8 to 62.7)``, but in CSV, where value, errors and ends have columns of their own. Pictures need
matplotlib (the extra ``plots``).
"""

import hashlib
import html
import io
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from veilsum.markov_fields import fit_field
from veilsum.papers import (
    SUBGROUPS,
    Line,
    Names,
    PaperTable,
    documents_of,
    p_text,
    paper_tables,
    plain_text,
    subgroups_of,
)
from veilsum.pictures import Drawn, Row, plot
from veilsum.texts import figure_text, number_text
from veilsum.xgboost_model import xgboost_json
from veilsum_aggregation.contrasts import PairPlan
from veilsum_node.errors import ConfigurationError, Misuse, raising
from veilsum_node.file_names import file_name, write_files
from veilsum_node.process.software import install_extra
from veilsum_node.spreadsheets import write_csv, write_rows
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.queries.base import IN_ROWS, missing_among
from veilsum_privacy.tasks.queries.kinds.synthetic import NOISE, PAIRS, RECORDS, SCALE
from veilsum_privacy.training.arrays import MODEL

FORMATS = ("csv", "html", "latex", "word", "text", "svg", "png", "xgboost", "onnx", "peft")

MODELS = ("tree", "graph")
"""Models of synthetic records: the result's own tree of pairs, or a new Markov random field (the extra `synthetic`)."""

PARTS = ("value", "noise_error", "sampling_error", "low", "high")

SUMMARY = "summary"
"""The table of what a result tells outside of its tables."""


def export_result(
    result: Result,
    directory: Path,
    formats: Sequence[str],
    model: str = "tree",
    *,
    about: Mapping[str, Any] | None = None,
    site: str | None = None,
    from_features: bool = False,
    replace: bool = False,
    study: Study | None = None,
    nonnormal: Sequence[str] = (),
) -> list[Path]:
    """Write every table of a result, and a picture of each that has one, into a directory; returns the files.

    CSV is for programs, a row a figure. The others are for papers: a table one is one table, with a column for each group.

    A file is named for its table (:func:`veilsum_node.file_names.file_name`) and lies in the directory, whatever that name is.
    Of a site's own model only the owner can read them.

    Args:
        formats: of :data:`FORMATS`.
        model: of synthetic records, of :data:`MODELS`: those of the result, or new ones of its released sums.
        about: what files say of the study: its digest, epsilon and delta.
        site, from_features: of an ONNX file (:func:`veilsum.onnx_model.onnx_bytes`).
        replace: replace files that are there; without it, one that is there with other content is an error, and nothing is
            written.
        study: that the result is of, for labels, units and categories.
        nonnormal: numbers of which a table one shows the median alone.

    Raises:
        ConfigurationError: an unknown format or model, pictures without matplotlib, a graph without mbi, or ONNX without onnx.
        Misuse: the result holds no model of the kind that a format writes.
        StateError: another file of a name is there.
        Unavailable: the directory cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ConfigurationError(f"No format is called {unknown[0]!r}.", f"Formats: {', '.join(FORMATS)}.")
    if model not in MODELS:
        raise ConfigurationError(f"No model of synthetic records is called {model!r}.", f"Models: {', '.join(MODELS)}.")
    files: dict[str, bytes] = {}
    if "html" in formats:
        files["result.html"] = to_html(result, about, study, nonnormal).encode()
    if "xgboost" in formats:
        files["model.json"] = xgboost_json(result)
    if "onnx" in formats:
        from veilsum.onnx_model import exported_model, onnx_bytes

        files["model.onnx"] = onnx_bytes(exported_model(result), about or {}, site=site, from_features=from_features)
    if "peft" in formats:
        files |= _adapter_files(result)
    synthetic = {
        name: result.arrays[name] if model == "tree" else _graph_records(result, name, rows)
        for name, rows in tables_of(result).items()
        if name in result.arrays and rows and "levels" in rows[0]
    }
    _add_printed(files, result, formats, study, nonnormal, about)
    for name, rows in all_tables(result).items():
        if "csv" in formats and name not in synthetic:
            files[file_name(name, ".csv", taken=files)] = to_csv(rows).encode()
        if name in synthetic:
            files[file_name(name, ".csv", taken=files)] = records_csv(synthetic[name], rows).encode()
    return write_files(directory, files, replace=replace, confidential=result.personal)


def _adapter_files(result: Result) -> dict[str, bytes]:
    """The files of a result's adapters as the package peft names and reads them."""
    from veilsum_participant.applying.model import network_of
    from veilsum_participant.applying.recipe import parse_recipe
    from veilsum_privacy.training.models.adapters import Adapters

    network = network_of(parse_recipe(result)[0])
    if not isinstance(network, Adapters):
        raise Misuse("This result holds no adapters.", "Train the model 'adapters' by fedsgd, or export another format.")
    return network.peft_files({name: result.arrays[MODEL + name] for name in network.shapes()})


def _add_printed(
    files: dict[str, bytes],
    result: Result,
    formats: Sequence[str],
    study: Study | None,
    nonnormal: Sequence[str],
    about: Mapping[str, Any] | None,
) -> None:
    """Add the files for papers: tables and pictures."""
    printed = printed_tables(result, study, nonnormal, about)
    for name, table in printed.items():
        if "latex" in formats:
            files[file_name(name, ".tex", taken=files)] = table.to_latex().encode()
        if "text" in formats:
            files[file_name(name, ".txt", taken=files)] = table.text.encode()
    if "word" in formats:
        files["result.docx"] = documents_of(list(printed.values()))
    for name, own in drawings(result, study).items():
        for form in ("svg", "png"):
            if form in formats and (data := plot(name, own, form)) is not None:
                files[file_name(name, f".{form}", taken=files)] = data


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
    """One line a row; a figure's parts in columns ``mean``, ``mean_low``, ... No text is a formula to a spreadsheet."""
    stream, flat = io.StringIO(), flat_rows(rows)
    write_csv(stream, column_names(flat), flat)
    return stream.getvalue()


def records_csv(codes: Any, columns: Sequence[Row]) -> str:
    """Synthetic records by their levels' names; what is missing is empty. No text is a formula to a spreadsheet."""
    stream = io.StringIO()
    levels = [["" if level == missing_among(column["levels"]) else level for level in column["levels"]] for column in columns]
    write_rows(
        stream,
        [column["column"] for column in columns],
        ([names[code] for names, code in zip(levels, row, strict=True)] for row in codes.tolist()),
    )
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
    with raising(
        ConfigurationError("A graph needs the package mbi.", f"Install it with: {install_extra('synthetic')}"), on=ImportError
    ):
        field = fit_field(plan, released, float(std.item()))
    seed = int.from_bytes(hashlib.sha256(released.tobytes()).digest()[:4], "big")
    return field.sample(len(result.arrays[name]), seed)


def flat_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows without nesting, all with the same keys: a figure's parts are ``mean``, ``mean_low``, ...; None where unknown."""
    flat = [dict(_flat(row)) for row in rows]
    names = column_names(flat)
    return [{name: row.get(name) for name in names} for row in flat]


def column_names(rows: Sequence[Row]) -> list[str]:
    """Every key that a row has, in order."""
    return list(dict.fromkeys(name for row in rows for name in row))


def _flat(row: Row) -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if not isinstance(value, Mapping):
            yield name, None if value == "" else value
        elif "value" in value:
            yield from ((name if part == "value" else f"{name}_{part}", value[part]) for part in PARTS if part in value)
        else:
            yield f"{name}_note", cell(value)


def cell(value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, Mapping):
        return str(value)
    if "low" in value and "value" in value:
        return figure_text(value, "…")
    if "below" in value:
        return f"< {value['below']}"
    return f"not estimable: {value['not_estimable']}" if "not_estimable" in value else str(dict(value))


def plain_table(rows: Sequence[Row], name: str, names: Names | None = None) -> PaperTable:
    """A table as it is, one column a key, by the columns' labels; a figure is one cell."""
    called, keys = names or Names(None), column_names(rows)
    lines = (
        Line(first, tuple(rest)) for first, *rest in ([_printed(key, row.get(key), called) for key in keys] for row in rows)
    )
    return PaperTable(name, tuple(_head(key, [row.get(key) for row in rows], called) for key in keys), tuple(lines))


def _head(key: str, values: Sequence[Any], names: Names) -> str:
    """A column's label, or what its figures are; with "95% CI" where they have intervals."""
    label = names.label(key)
    text = "P value" if key == "p_value" else label if key in names or key.endswith(IN_ROWS) else label[:1].upper() + label[1:]
    ends = [(value["low"], value["high"]) for value in values if isinstance(value, Mapping) and "low" in value]
    return f"{text} (95% CI)" if any(low != high for low, high in ends) else text


def _printed(key: str, value: Any, names: Names) -> str:
    """A cell as papers print it; what is not told says why."""
    if key == "p_value":
        return p_text(value)
    if (text := plain_text(key, value)) is not None:
        return text
    exact = isinstance(value, Mapping) and "value" in value and value.get("low") == value["value"] == value.get("high")
    shown = cell(value["value"] if exact else value)
    if key == "column":
        return names.label(shown)
    return names.replaced(shown) if key in ("of", "compared") else re.sub(r"(?<![\w.])-(?=[\d.])", "−", shown)


_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:0 0 2rem}th,td{text-align:left;padding:.25rem .9rem .25rem 0;border-bottom:1px solid
#ddd} th{border-bottom:2px solid #555;font-weight:600}td{font-variant-numeric:tabular-nums}h2{font-size:1.1rem;margin:1.5rem 0
.5rem} p{color:#555}svg{max-width:100%;height:auto}"""


def printed_tables(
    result: Result, study: Study | None, nonnormal: Sequence[str] = (), about: Mapping[str, Any] | None = None
) -> dict[str, PaperTable]:
    """A result's tables as papers print them: those that have a form of their own, and every other as it is.

    Args:
        study: for labels, units and categories, if it is at hand.
        nonnormal: numbers of which a table one shows the median alone.
        about: what is known of the study, of which ``noise`` says whether figures have any.
    """
    private = (about or {}).get("noise") != "none"
    known = tables_of(result)
    found = paper_tables(known, study, nonnormal, private=private)
    printed = set(found)
    for name, rows in all_tables(result).items():
        if name in printed or name == "queries" or (printed and name in (SUMMARY, "score")) or belongs(name, printed):
            continue
        found[name] = plain_table(rows, name, Names(study))
    return found


def drawings(result: Result, study: Study | None) -> dict[str, Drawn]:
    """What there is to draw, by table: its rows, the tests of it, and what columns are called."""
    tables, names = tables_of(result), Names(study)
    ones = {name.partition(".")[0] for name in paper_tables(tables, study)}
    found = {
        name: Drawn(rows, tuple(tables.get(f"{name} tests", ())), (), names)
        for name, rows in tables.items()
        if not belongs(name, ones) and not name.endswith(" tests")
    }
    if SUBGROUPS in tables:
        found[SUBGROUPS] = Drawn((), (), subgroups_of(tables, names), names)
    return found


def belongs(name: str, printed: Collection[str]) -> bool:
    """Whether a table is a part of one that is printed in a form of its own."""
    parts = name.partition(".")[0], name.removesuffix(" tests")
    of_subgroups = SUBGROUPS in printed and re.fullmatch(rf"{SUBGROUPS}(?:-\d+)?(?: \w+)?", name) and name != SUBGROUPS
    return bool(of_subgroups) or any(part in printed and part != name for part in parts)


def to_html(
    result: Result, about: Mapping[str, Any] | None = None, study: Study | None = None, nonnormal: Sequence[str] = ()
) -> str:
    """One page with every table, and the pictures where matplotlib is installed; ``about`` is what it says of the study."""
    parts = [f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(result.method)}</title>"]
    parts += [f"<style>{_STYLE}</style><body><h1>Result of {html.escape(result.method)}</h1>"]
    if about:
        told = ", ".join(f"{key} {cell(value)}" for key, value in about.items() if value is not None and key != "method")
        parts.append(f"<p>{html.escape(told)}</p>")
    parts.append("<p>In brackets 95% intervals for the population: sampling and noise together.</p>")
    drawn = drawings(result, study)
    own = paper_tables(tables_of(result), study, nonnormal, private=(about or {}).get("noise") != "none")
    every = all_tables(result)
    for name in {**own, **every}:
        if name not in own and (belongs(name, own) or name == "queries"):
            continue
        parts.append(f"<h2>{html.escape(name)}</h2>")
        picture = _picture_if_possible(name, drawn[name]) if name in drawn else ""
        if picture:
            parts.append(picture)
        parts.append(own[name].to_html() if name in own else table_html(every[name]))
    return "\n".join([*parts, "</body></html>"]) + "\n"


def table_html(rows: Sequence[Row]) -> str:
    """A ``<table>`` of rows, one column a key."""
    names = column_names(rows)
    head = "".join(f"<th>{html.escape(key.replace('_', ' '))}</th>" for key in names)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell(row.get(key)))}</td>" for key in names) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _picture_if_possible(name: str, drawn: Drawn) -> str:
    try:
        picture = plot(name, drawn, "svg")
    except ConfigurationError:  # without matplotlib a page has tables only
        return ""
    return "" if picture is None else picture.decode().partition("<svg")[1] + picture.decode().partition("<svg")[2]
