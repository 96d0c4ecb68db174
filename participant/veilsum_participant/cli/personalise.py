"""``veilsum participant personalise``: a model of the site's own, of a released one and its records; it stays here.

The site's records are used exactly, without noise, so what is written is as confidential as they are: files that only their
owner can read, and a head that no study takes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from veilsum_node.errors import Misuse, StateError
from veilsum_node.phrases import unwritable
from veilsum_node.process.console import print_fields, print_json, print_line, print_rows
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.personal import FEWEST, Personal, personalise
from veilsum_participant.cli.apply import Own, aligned, open_model, read_sheet, with_schema
from veilsum_participant.data.encode import encode_tables
from veilsum_participant.data.sources import read_table
from veilsum_participant.settings.query import Source
from veilsum_privacy.results.result import MANIFEST, load_result, save_result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.tasks.base import Records

HEADINGS = {"released": "released model", "alone": "this site alone", "personal": "personal model"}


def personalise_result(result: Path, data: Source, own: Own, *, schema: Path | None, out: Path, as_json: bool) -> None:
    """Make a personal model and store it as a result of its own.

    Raises:
        HostileInput, Misuse, DataError: the result, the records or the site's own settings will not do.
        StateError: the folder is there already, or cannot be made.
    """
    if out.exists():
        raise StateError(f"{out} already exists.", "Name another folder with --out.")
    model = open_model(result, own)
    whole = None if schema is None else load_schema(schema)
    records = _records(model, data, whole)
    if model.recipe.outcome is None and schema is not None:
        model = with_schema(model, schema)
    model, site, kept, noise_std = aligned(model, records, result, own)
    found = personalise(model, records, schema=whole, site=site, kept=kept, noise_std=noise_std)
    released = load_result(result)
    try:
        out.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StateError(f"{out} {unwritable(error)}.", "Check the directory, its permissions and its space.") from error
    about = json.loads((result / MANIFEST).read_bytes()).get("study")
    save_result(out, found.result(released), study=about if isinstance(about, Mapping) else None)
    if as_json:
        told = {"weights": dict(found.weights), "figures": {name: dict(each) for name, each in found.figures.items()}}
        print_json({"written": str(out), "records": found.records, "left_out": found.left_out, **told})
    else:
        _print(found, out)


def _records(model: Model, data: Source, schema: DatasetSchema | None) -> Records:
    """The site's records: with classes under the model's schema, with an outcome under the study's."""
    outcome = model.recipe.outcome
    if outcome is None:
        sheet = read_sheet(data, model.schema if schema is None else schema)
        if sheet.unlabelled is not None:
            raise Misuse(f"A personal model needs records with their classes: {sheet.unlabelled}", "Add them to the file.")
        return sheet.records
    if schema is None:
        raise Misuse(
            f"A model of {outcome.column!r} is moved by records with that outcome.", "Name the study's schema with --schema."
        )
    return encode_tables([read_table(data, schema)], schema)[0]


def _print(found: Personal, out: Path) -> None:
    parts = ", ".join(f"{weight:.0%} {name}" for name, weight in found.weights.items())
    fields = {
        "written": f"{out} (apply it with `veilsum participant apply {out} --data FILE`)",
        "records": found.records,
        "left out": found.left_out or "none",
        "made of": parts or f"the released model as it is: fewer than {FEWEST} records, or of one class alone",
    }
    print_fields(fields, title="Personal model", as_json=False)
    rows = [{"model": HEADINGS[name], **_figures(figures)} for name, figures in found.figures.items()]
    print_rows(rows, title="On own records that each was not made of", as_json=False)
    print_line(
        "It was made of this site's records without noise. Keep it here: whoever holds it may learn about single records."
    )


def _figures(figures: Mapping[str, float]) -> dict[str, Any]:
    return {name.replace("_", " "): f"{value:.3f}" for name, value in figures.items()}
