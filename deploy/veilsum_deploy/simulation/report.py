"""What a simulation leaves behind: a summary as JSON, its quantities as CSV and Markdown, each run's result as a bundle."""

import io
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from veilsum.texts import number_text
from veilsum_deploy.collections import TEST_SHARE
from veilsum_deploy.simulation.baseline_names import BASELINES
from veilsum_deploy.simulation.scores import NAMES
from veilsum_deploy.simulation.study import SimulatedRuns, Simulation
from veilsum_node.errors import StateError
from veilsum_node.identity.files import replace_file
from veilsum_node.spreadsheets import write_csv
from veilsum_privacy.dossier.figures import cost as rounded_up
from veilsum_privacy.results.result import save_result

SUMMARY, TABLE_CSV, TABLE_MARKDOWN = "summary.json", "table.csv", "table.md"


def summarise(simulation: Simulation, outcome: SimulatedRuns) -> dict[str, Any]:
    """The simulation as plain values: what was asked, what it cost, what came out."""
    study = outcome.study
    scores = [run.scores for run in outcome.runs]
    return {
        "study": study.name,
        "method": study.method,
        "dataset": simulation.collection.name,
        "sites": outcome.sizes,
        "partition": simulation.setting.partition,
        "limit": simulation.setting.limit,
        "cap": simulation.setting.cap,
        "cells": [
            {
                "column": one.column,
                "read": one.read,
                "missing": one.missing,
                "out of bounds": one.outside,
                "match nothing": one.unmatched,
            }
            for one in outcome.cells
            if one.missing or one.outside or one.unmatched
        ],
        "given_a_record": list(outcome.forced),
        "seed": simulation.seed,
        "encryption": simulation.encryption,
        "epsilon": study.privacy.epsilon,
        "delta": study.privacy.delta,
        "noise": study.privacy.noise,
        "repeat": len(outcome.runs),
        "holdout": TEST_SHARE if simulation.setting.holdout is None else simulation.setting.holdout,
        "held_out": [one.held_out for one in scores if one.held_out] or None,
        "accuracy": [one.accuracy for one in scores if one.accuracy is not None] or None,
        "accuracy_by_domain": [one.accuracies for one in scores if one.accuracies] or None,
        "seconds": [round(run.seconds, 3) for run in outcome.runs],
        "baselines": [
            {
                "baseline": kind,
                "words": BASELINES[kind],
                "held_out": one.scores.held_out or None,
                "accuracy": one.scores.accuracy,
                "accuracy_by_domain": one.scores.accuracies,
                "epsilon": one.epsilon,
                "note": one.note,
            }
            for kind, one in outcome.beside.items()
        ],
        "table": table(outcome),
    }


def table(outcome: SimulatedRuns) -> list[dict[str, Any]]:
    """One row for each quantity of the results.

    ``mean`` and ``std`` are over the runs that could tell it (``runs`` of them; std is 0 for one run), ``std_error`` is what
    the results themselves say of the noise, on average.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for name, words in NAMES.items():
        told = [run.scores.figures[name] for run in outcome.runs if name in run.scores.figures]
        if told:
            found[f"{words} on held-out records"] = [(value, 0.0) for value in told]
    for run in outcome.runs:
        for name, value, error in quantities(run.result.summary):
            found.setdefault(name, []).append((value, error))
    rows = []
    for name, pairs in found.items():
        values, errors = [value for value, _ in pairs], [error for _, error in pairs]
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        mean, error = statistics.fmean(values), statistics.fmean(errors)
        rows.append({"quantity": name, "mean": mean, "std": std, "std_error": error, "runs": len(values)})
    return rows


def quantities(value: Any, name: str = "") -> Iterator[tuple[str, float, float]]:
    """Yield (name, value, standard error) of every estimate in a result's summary."""
    if isinstance(value, Mapping):
        if isinstance(value.get("value"), float):
            yield name, float(value["value"]), float(value.get("noise_error", 0.0))
            return
        for key, item in value.items():
            yield from quantities(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            label = str(index)
            if isinstance(item, Mapping):
                parts = [
                    str(text) for key, text in item.items() if key not in ("unit", "note") and text and isinstance(text, str)
                ]
                parts += [f"{key} {item[key]:g}" for key in ("quantile", "time") if isinstance(item.get(key), float)]
                label = ", ".join(parts) or label
            yield from quantities(item, f"{name}[{label}]")


def save(directory: Path, simulation: Simulation, outcome: SimulatedRuns) -> None:
    """Write everything into a new or empty directory.

    Raises:
        StateError: the directory holds something, or cannot be written.
    """
    summary = summarise(simulation, outcome)
    for number, run in enumerate(outcome.runs, start=1):
        save_result(directory / f"run-{number}", run.result, study=run.study)
    replace_file(directory / TABLE_CSV, _csv(summary["table"]).encode())
    replace_file(directory / TABLE_MARKDOWN, _markdown(summary).encode())
    replace_file(directory / SUMMARY, (json.dumps(summary, indent=2, ensure_ascii=False) + "\n").encode())


def check_empty(directory: Path) -> None:
    """Refuse a results directory that holds something.

    Raises:
        StateError: it does, or it is not a directory.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise StateError(f"{directory} is not an empty directory.", "Name a new directory for the results.")


def _csv(rows: list[dict[str, Any]]) -> str:
    stream = io.StringIO()
    write_csv(stream, ["quantity", "mean", "std", "std_error", "runs"], rows, end="\r\n")
    return stream.getvalue()


def _markdown(summary: Mapping[str, Any]) -> str:
    cost = "no privacy guarantee" if summary["epsilon"] is None else f"epsilon {rounded_up(summary['epsilon'])}"
    lines = [
        f"# {summary['study']}: {summary['method']} on {summary['dataset']}",
        "",
        f"{len(summary['sites'])} sites, {summary['partition']}, {sum(summary['sites'].values())} records; {cost},"
        f" delta {summary['delta']:g}; {summary['repeat']} run(s), encryption {'on' if summary['encryption'] else 'off'}.",
        "",
        "| quantity | mean | std over runs | std error of the noise | runs |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for row in summary["table"]:
        name = str(row["quantity"]).replace("|", "\\|")
        lines.append(f"| {name} | {number_text(row['mean'], 6)} | {row['std']:.3g} | {row['std_error']:.3g} | {row['runs']} |")
    return "\n".join(lines) + "\n"
