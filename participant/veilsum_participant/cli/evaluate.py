"""``veilsum participant evaluate``: a result, or a checkpoint, measured on labelled records of the site's own, offline.

Nothing leaves the site and nothing is written. What is told is exact: to publish it is the site's own decision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse
from veilsum_node.process.console import print_fields, print_json, print_line, print_rows
from veilsum_participant.applying.measurement import measure
from veilsum_participant.cli.apply import Own, aligned, confusion_rows, open_model, read_sheet, with_schema
from veilsum_participant.settings.query import Source, origin


def evaluate_result(
    result: Path, own: Own, *, data: Source | None, dataset: str | None, schema: Path | None, as_json: bool
) -> None:
    """Measure a result on a file, or on a dataset of the site's configuration.

    Raises:
        HostileInput, Misuse: the result, the records or the site's own settings will not do; the message says which.
    """
    path = _records(own, data, dataset)
    model = open_model(result, own)
    if model.recipe.head is None:
        raise Misuse("This result computes features and holds no classifier.", "There is nothing in it to measure.")
    if model.recipe.outcome is not None:
        raise Misuse(
            f"This result predicts {model.recipe.outcome.column!r} and tells no classes apart.",
            "Write its predictions with `veilsum participant apply`, and compare them with the column.",
        )
    model = with_schema(model, schema)
    sheet = read_sheet(path, model.schema)
    if sheet.records.labels is None:
        raise Misuse(f"{path} holds no classes ({sheet.unlabelled}).", "Use records whose classes are known.")
    model, site, kept, noise_std = aligned(model, sheet.records, result, own)
    scores = model.scores(sheet.records, site, kept, noise_std)
    labelled, scored = sheet.records.labels >= 0, np.isfinite(scores).all(axis=1)
    used = labelled & scored
    report: dict[str, Any] = {
        "result": str(result),
        "data": str(path),
        "site": site,
        "records": len(used),
        "left_out": {
            "without_class": int((~labelled).sum()),
            "without_features": int((labelled & ~scored).sum()),
            "broken_rows": sheet.broken,
        },
        **measure(scores[used], sheet.records.labels[used], model.schema.classes, model.classes),
    }
    if as_json:
        print_json(report)
    else:
        print_measures(report)


def _records(own: Own, data: Source | None, dataset: str | None) -> Source:
    """The file, or the query, to measure on.

    Raises:
        Misuse: none or two are named, or the site offers no such dataset.
    """
    if (data is None) == (dataset is None):
        raise Misuse("Name the records with --data FILE or with --dataset NAME.", "One of them, not both.")
    if data is not None:
        return data
    offered = own.settings.datasets
    if dataset not in offered:
        raise Misuse(f"Dataset {dataset!r} is not offered here.", did_you_mean(str(dataset), offered))
    return origin(offered[dataset], str(dataset))


def print_measures(report: Mapping[str, Any]) -> None:
    """The report for people."""
    left = report["left_out"]
    reasons = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in left.items() if number)
    fields = {
        "records": report["records"],
        "evaluated": report["evaluated"],
        "left out": reasons or "none",
        **({} if report["site"] is None else {"site": report["site"]}),
        **({} if report["auc"] is None else {"area under the ROC curve": _figure(report["auc"])}),
        "calibration error": _percent(report["calibration_error"]),
        "accuracy": _percent(report["accuracy"]),
        "accuracy of the constant guess": _percent(report["accuracy_of_constant_guess"]),
        "balanced accuracy": _percent(report["balanced_accuracy"]),
        "log loss": _figure(report["log_loss"]),
    }
    print_fields(fields, title=f"{report['result']} on {report['data']}", as_json=False)
    rows = [
        {
            "class": row["class"],
            "records": row["records"],
            **{name: _percent(row[name]) for name in ("recall", "precision", "f1")},
        }
        for row in report["classes"]
    ]
    print_rows(rows, title="By class", as_json=False)
    print_rows(confusion_rows(report["confusion"]), title="Confusion", as_json=False)
    bins = [
        {
            "confidence": f"{row['from']:.0%} to {row['to']:.0%}",
            "records": row["records"],
            "mean confidence": f"{row['confidence']:.1%}",
            "accuracy": _percent(row["accuracy"]),
        }
        for row in report["calibration"]
    ]
    print_rows(bins, title="Calibration", as_json=False, empty="No record has a class and a prediction.")
    print_line("In brackets 95% intervals: what other records of the same kind might give.")


def _percent(found: Mapping[str, float] | None) -> str:
    return "" if found is None else f"{found['value']:.1%} ({found['low']:.1%} to {found['high']:.1%})"


def _figure(found: Mapping[str, float] | None) -> str:
    return "" if found is None else f"{found['value']:.3f} ({found['low']:.3f} to {found['high']:.3f})"
