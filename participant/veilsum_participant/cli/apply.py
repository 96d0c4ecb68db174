"""``veilsum participant apply``: a result on a file of the site's own, offline; what it writes stays here.

The file is read as the study's were, every record is encoded and aligned as the site's own records were, and a line is written
for each. Where the file tells the classes, the predictions are compared with them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import DataError, Misuse, StateError
from veilsum_node.process.console import print_fields, print_json, print_line, print_rows
from veilsum_node.process.new_files import new_file
from veilsum_node.spreadsheets import defused, line
from veilsum_participant.applying.model import Model, best_class, network_of, probabilities
from veilsum_participant.applying.recipe import Maps, OwnAlignment, parse_recipe
from veilsum_participant.cli.places import CONFIG, load_participant
from veilsum_participant.data.encode import encode_tables
from veilsum_participant.data.quality import ColumnCells
from veilsum_participant.data.sources import read_table
from veilsum_participant.settings.encoder_files import WEIGHTS, find_path
from veilsum_participant.settings.query import Source
from veilsum_privacy.results.result import MANIFEST, load_result
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import DatasetSchema

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig
    from veilsum_privacy.tasks.base import Records


@dataclass(frozen=True)
class Own:
    """What the command line says of the site, read when it is needed.

    Attributes:
        config: ``--config``, or None for participant.toml in this directory.
        site: ``--site``.
        encoder: ``--encoder``.
        new: ``--new-site``: it took no part in the study.
        weights: ``--weights``.
    """

    config: Path | None
    site: str | None
    encoder: Path | None
    new: bool = False
    weights: Path | None = None

    @cached_property
    def settings(self) -> ParticipantConfig:
        """The participant's configuration; Misuse without one."""
        return load_participant(self.config)

    @property
    def name(self) -> str:
        """The site's name: as given, or as its certificate says."""
        if self.site is not None:
            return self.site
        if self.config is None and not CONFIG.exists():
            raise Misuse(
                "This result aligns the features of each site.",
                "Name the site with --site, or its configuration with --config; one that took no part is a --new-site.",
            )
        return self.certified_name

    @property
    def certified_name(self) -> str:
        """The name in the certificate of the configuration's identity."""
        from veilsum_node.identity import Role, load_credentials

        return load_credentials(self.settings.identity, int(time.time()), Role.PARTICIPANT).identity.name


@dataclass(frozen=True)
class Sheet:
    """A file as a model reads it.

    Attributes:
        records: with labels where the file tells the classes.
        rows: (n,) the records' 1-based data rows in the file; rows with a wrong number of cells are left out.
        broken: how many rows of the file are left out.
        cells: what was found in its columns.
        unlabelled: why no labels were read; None where they were.
    """

    records: Records
    rows: Integers
    broken: int
    cells: Sequence[ColumnCells]
    unlabelled: str | None


def apply_result(result: Path, data: Source, own: Own, *, schema: Path | None, out: Path, force: bool, as_json: bool) -> None:
    """Predict for a file and write one line a record to ``out``.

    Raises:
        HostileInput, Misuse: the result, the file or the site's own settings will not do; the message says which.
    """
    if out.exists() and not force:
        raise Misuse(f"{out} already exists.", "Name another file with --out, or replace it with --force.")
    model = with_schema(open_model(result, own), schema)
    sheet = read_sheet(data, model.schema)
    model, site, kept, noise_std = aligned(model, sheet.records, result, own)
    if model.recipe.head is None:
        values = model.features(sheet.records, site, kept, noise_std)
        names = [f"feature_{number}" for number in range(1, model.width + 1)]
        write_table(out, ["row", *names], zip(sheet.rows, values, strict=True), force=force)
        shown: dict[str, Any] = {"features": model.width}
    elif model.recipe.outcome is not None:
        values = model.estimates(sheet.records)[:, None]
        event, column = model.recipe.outcome.event, model.recipe.outcome.column
        name = column if event is None else f"probability_{event}"
        write_table(out, ["row", name], zip(sheet.rows, values, strict=True), force=force)
        shown = {"outcome": name}
    else:
        values = model.scores(sheet.records, site, kept, noise_std)
        names = [f"probability_{name}" for name in model.classes]
        predicted = best_class(values)
        lines = zip(sheet.rows, predicted, probabilities(values), strict=True)
        texts = ([row, model.classes[best] if best >= 0 else "", chances] for row, best, chances in lines)
        write_table(out, ["row", "predicted", *names], texts, force=force)
        shown = {**compare(predicted, sheet, model)}
    report = {**about(values, sheet, out, site), **shown}
    if as_json:
        print_json(report)
    else:
        print_report(report, data)


def open_model(result: Path, own: Own) -> Model:
    """The result as a model; what it needs of frozen files as named, or by its hash from the site's configuration."""
    bundle = load_result(result)
    recipe = parse_recipe(bundle)[0]
    declared, network = recipe.encoder, network_of(recipe)
    if own.encoder is not None and not isinstance(declared, Program):
        raise Misuse("This result needs no frozen program.", "Leave out --encoder.")
    encoder, weights = own.encoder, own.weights
    if isinstance(declared, Program) and encoder is None:
        encoder = _configured(own, declared.sha256, "frozen program", "--encoder")
    if network is not None and network.weights and weights is None:
        weights = _configured(own, network.weights, WEIGHTS, "--weights")
    return Model.from_result(bundle, encoder, weights)


def _configured(own: Own, sha256: str, what: str, option: str) -> Path:
    """The file of the site's configuration that has a hash."""
    if own.config is None and not CONFIG.exists():
        raise Misuse(
            f"This result needs the {what} with SHA-256 {sha256}.",
            f"Name its file with {option}, or a configuration that has it with --config.",
        )
    return find_path(own.settings.encoders, sha256)


def with_schema(model: Model, path: Path | None) -> Model:
    """The model for files as another schema says, where one is given."""
    if path is None:
        return model
    from veilsum_privacy.study.schema_file import load_schema

    return model.with_schema(load_schema(path))


def read_sheet(source: Source, schema: DatasetSchema) -> Sheet:
    """Read a file under the model's schema, with the classes where they are in it.

    Raises:
        DataError: the file or a feature's column is missing or unreadable.
    """
    reason = "the result names no label" if schema.label is None else None
    try:
        table = read_table(source, schema)
    except DataError as error:
        if schema.label is None:
            raise
        schema = schema.model_copy(update={"label": None})
        table = read_table(source, schema)  # raises again if it was not for the label
        reason = str(error)
    records, cells = encode_tables([table], schema)
    return Sheet(records, table.row_numbers(), len(table.broken), list(cells.values()), reason)


def aligned(
    model: Model, records: Records, result: Path, own: Own
) -> tuple[Model, str | None, Mapping[str, Floats] | None, Mapping[str, float] | None]:
    """The model with site, kept statistic and its noise, as far as the result's alignment needs them.

    At a site that took no part the alignment is made of these records.

    Raises:
        Misuse: such a site was named as one that took part.
    """
    if own.new:
        if own.site is not None:
            raise Misuse("A --new-site is none of those that --site names.", "Leave out one of them.")
        return model.at_new_site(records), None, None, None
    alignment = model.recipe.alignment
    if isinstance(alignment, Maps):
        return model, own.name, None, None
    if isinstance(alignment, OwnAlignment) and not alignment.own:
        _require_own(own)
        return model, own.site, *kept_statistic(own.settings, study_digest(result), alignment.source)
    return model, None, None, None


def _require_own(own: Own) -> None:
    """A site that makes its own map has its own statistic only.

    Raises:
        Misuse: ``--site`` names another than the configuration's identity.
    """
    if own.site is not None and (name := own.certified_name) != own.site:
        raise Misuse(
            f"Each site applies this result with what it kept itself; --site names {own.site!r}, and this is {name!r}.",
            f"Leave out --site, or run this at {own.site!r}.",
        )


def study_digest(result: Path) -> bytes:
    """SHA-256 of the study that a bundle says it is of.

    Raises:
        Misuse: it says none.
    """
    try:
        digest = bytes.fromhex(json.loads((result / MANIFEST).read_bytes())["study"]["digest"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Misuse(
            f"{result}: does not say which study it belongs to.", "Use the result exactly as the coordinator sent it."
        ) from error
    return digest


def kept_statistic(settings: ParticipantConfig, study: bytes, label: str) -> tuple[dict[str, Floats], dict[str, float]]:
    """What the site kept of a task, in its blocks' own units, and the noise in it; from the state file, which is only read.

    Raises:
        StateError: the site kept nothing of that task, or its state cannot be read.
    """
    from veilsum_node.database_places import open_readonly
    from veilsum_participant.store.kept import kept_vector
    from veilsum_participant.store.studies import find_study
    from veilsum_privacy.tasks.agreed import AgreedStudy

    with open_readonly(settings.state) as database, database.reading() as connection:
        row = find_study(connection, study)
        vector = kept_vector(connection, study, label)
    if row is None or vector is None:
        raise StateError(
            f"{settings.state}: this site kept nothing of the study's task {label!r}.",
            "Only a site that took part in that task can be aligned; use the state file of that time.",
        )
    return AgreedStudy.parse(row.study).task(label).kept_blocks(vector)


def write_table(path: Path, heading: list[str], lines: Any, *, force: bool) -> None:
    """Write a CSV file that only its owner can read; numbers that are not finite stay empty.

    Raises:
        StateError: it exists and ``force`` is False, or cannot be written.
    """
    with new_file(path, force=force) as file:
        file.write(line(map(defused, heading)))
        for *cells, values in lines:
            numbers = (f"{value:.6g}" if np.isfinite(value) else "" for value in values)
            file.write(line([*map(defused, cells), *numbers]))


def about(values: Floats, sheet: Sheet, out: Path, site: str | None) -> dict[str, Any]:
    """What was read and written; ``left_out`` counts records without features."""
    known = int(np.isfinite(values).all(axis=1).sum())
    return {
        "written": str(out),
        "site": site,
        "records": len(sheet.records),
        "predicted": known,
        "left_out": len(values) - known,
        "broken_rows": sheet.broken,
        "invalid_cells": sum(cells.unmatched for cells in sheet.cells),
        "missing_cells": sum(cells.missing for cells in sheet.cells),
        "clamped_cells": sum(cells.outside for cells in sheet.cells),
    }


def compare(predicted: Integers, sheet: Sheet, model: Model) -> dict[str, Any]:
    """Predictions by class and, where the file tells the classes, accuracy and confusion of labelled, predicted records."""
    by_class = {name: int((predicted == index).sum()) for index, name in enumerate(model.classes)}
    labels = sheet.records.labels
    if labels is None:
        return {"by_class": by_class, "labelled": 0, "accuracy": None, "confusion": None, "unlabelled": sheet.unlabelled}
    used = (labels >= 0) & (predicted >= 0)
    names = np.array(model.schema.classes)
    truth, said = names[labels[used]], np.array(model.classes)[predicted[used]]
    present = [name for name in model.schema.classes if (truth == name).any()]
    confusion = {
        "true": present,
        "predicted": list(model.classes),
        "counts": [[int(((truth == name) & (said == other)).sum()) for other in model.classes] for name in present],
    }
    accuracy = float(np.mean(truth == said)) if used.any() else None
    return {"by_class": by_class, "labelled": int(used.sum()), "accuracy": accuracy, "confusion": confusion}


def print_report(report: Mapping[str, Any], data: Source) -> None:
    """The report for people."""
    plain = {key.replace("_", " "): value for key, value in report.items() if key not in _TABLES and value is not None}
    if report.get("accuracy") is not None:
        plain["accuracy"] = f"{report['accuracy']:.1%} of {report['labelled']} records that have a class and a prediction"
    plain.pop("unlabelled", None)
    print_fields(plain, title=f"Predictions for {data}", as_json=False)
    if (confusion := report.get("confusion")) is not None:
        empty = "No record has a class and a prediction."
        print_rows(confusion_rows(confusion), title="Confusion", as_json=False, empty=empty)
    elif "by_class" in report:
        rows = [{"class": name, "predicted": number} for name, number in report["by_class"].items()]
        print_rows(rows, title="Predictions by class", as_json=False)
        if report.get("unlabelled"):
            print_line(f"No accuracy: {report['unlabelled']}")


def confusion_rows(confusion: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each true class: how many of its records got each prediction."""
    return [
        {"class": name, **{f"predicted {other}": count for other, count in zip(confusion["predicted"], counts, strict=True)}}
        for name, counts in zip(confusion["true"], confusion["counts"], strict=True)
    ]


_TABLES = ("by_class", "confusion")
