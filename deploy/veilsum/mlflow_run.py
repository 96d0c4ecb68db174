"""A result as a run of an MLflow tracking server: parameters, released numbers, and files.

A run is found again by its study's digest, so that a second export adds nothing. Only what the result holds is sent: neither
the machine's user nor its paths, which MLflow's own functions add. The package is mlflow-skinny, veilsum[mlflow]; its reports
of usage to its makers are switched off.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from veilsum.exports import export_result, figures_of, flat_rows, tables_of
from veilsum.pictures import Row
from veilsum_node.errors import ConfigurationError, Misuse, Unavailable, raising
from veilsum_node.process.software import install_extra, installed_version
from veilsum_privacy.results.proof_files import STUDY_FILE, StudyProof
from veilsum_privacy.results.result import MANIFEST, Result, copy_result, has_file, load_result

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

KEY = "veilsum.key"
"""The tag that a run is found by: the study's digest, of a checkpoint with its round."""

CONTENT = "veilsum.manifest"
"""The tag with the SHA-256 of the result's manifest, which names its arrays'."""

STEPS = ("round", "step")
"""Columns that number a table's rows in time: MLflow's steps."""

MOST_METRICS = 2000
"""Larger tables are in the files alone."""

_BATCH = 1000  # the most that a server takes at once
_LONGEST, _LONGEST_TEXT = 200, 6000  # characters of a name and of a parameter

Metric = tuple[str, float, int]
"""Name, value and step."""


def log_result(
    directory: Path,
    about: Mapping[str, Any],
    tracking_uri: str,
    experiment: str,
    *,
    dossier: str | None = None,
    proof: bool = False,
) -> str:
    """Write a result, or a checkpoint, to a tracking server; returns the run's id.

    Args:
        about: study, name, method, epsilon and delta, as far as known.
        experiment: its name; made where there is none.
        dossier: address of a site's or the federation's dossier on the study, which the run links to.
        proof: also send the proof, which names every site of the roster; without it only the signed study is sent.

    Raises:
        ConfigurationError: mlflow is not installed.
        Misuse: the result is a site's own, or names no study; the dossier's address is none; or the experiment was deleted, or
            has a run of the study with another result.
        Unavailable: the server cannot be reached, or refuses.
    """
    result, study = load_result(directory), about.get("study")
    if result.personal:
        raise Misuse(
            "This model was made of one site's records without noise; a tracking server would show it to others.",
            "Export the released result.",
        )
    if study is None:
        raise Misuse("The result names no study, by which its run would be found again.", "Export a study's result.")
    if dossier is not None and urlsplit(dossier).scheme not in ("http", "https"):
        raise Misuse("A dossier is linked to by its address on the web.", "For example https://intranet/dossiers/7.html.")
    key = f"{study}/round-{about['round']}" if "round" in about else str(study)
    content = hashlib.sha256((directory / MANIFEST).read_bytes()).hexdigest()
    with _client(tracking_uri) as client:
        place = _experiment(client, experiment)
        found = client.search_runs([place], f"tags.`{KEY}` = '{key}'", max_results=1)
        if found and found[0].data.tags.get(CONTENT) != content:
            raise Misuse(
                "The experiment has a run of this study with another result.",
                "A simulation can make several of one study: name an experiment of its own for each.",
            )
        if found and found[0].info.status == "FINISHED":
            return str(found[0].info.run_id)
        if found:  # an export that was interrupted is completed
            run, begun = found[0].info.run_id, found[0].info.start_time
        else:
            tags = {KEY: key, CONTENT: content, "mlflow.runName": str(about.get("name") or result.method)}
            made = client.create_run(place, tags=tags | ({} if dossier is None else {"veilsum.dossier": dossier}))
            run, begun = made.info.run_id, made.info.start_time
        _log(client, run, begun, parameters_of(result, about), metrics_of(result))
        with tempfile.TemporaryDirectory(prefix="veilsum-") as folder:
            _gather(result, directory, Path(folder), about, proof=proof)
            client.log_artifacts(run, folder)
        client.set_terminated(run, "FINISHED")
        return str(run)


def parameters_of(result: Result, about: Mapping[str, Any]) -> dict[str, str]:
    """What a run was made with: the study and its cost, and the texts of the result's summary."""
    told = {key: str(value) for key, value in about.items() if value is not None}
    texts = {_name(str(row["name"])): row["value"] for row in figures_of(result) if isinstance(row["value"], str)}
    return {**texts, **told, "method": result.method, "software": f"veilsum {installed_version()}"}


def metrics_of(result: Result) -> list[Metric]:
    """The released numbers: a table's row by the texts in it, or, where its rows are numbered in time, as steps."""
    found = _unique(_metrics(figures_of(result), ""))
    for name, rows in tables_of(result).items():
        more = _unique(_metrics(rows, name))
        if len(found) + len(more) <= MOST_METRICS:
            found += more
    return found


def _metrics(rows: list[Row], table: str) -> Iterator[Metric]:
    for place, row in enumerate(flat_rows(rows)):
        step = next((key for key in STEPS if type(row.get(key)) is int), None)
        texts = [value for value in row.values() if isinstance(value, str)]
        if step is None and not texts and len(rows) > 1:
            texts = [str(place + 1)]
        for column, value in row.items():
            if column != step and isinstance(value, int | float) and not isinstance(value, bool):
                last = [] if not table and column == "value" else [column.removeprefix("value_") if not table else column]
                name = "/".join(_name(part) for part in (table, *texts, *last) if part)
                yield name[-_LONGEST:].strip("/ ."), float(value), 0 if step is None else int(row[step])


def _unique(metrics: Iterator[Metric]) -> list[Metric]:
    """Names that are alike once they are written as MLflow has them are numbered."""
    found: dict[tuple[str, int], Metric] = {}
    for name, value, step in metrics:
        number, chosen = 1, name
        while (chosen, step) in found:
            number += 1
            chosen = f"{name}-{number}"
        found[chosen, step] = (chosen, value, step)
    return list(found.values())


def _name(text: str) -> str:
    """Text as part of a name, of which MLflow takes letters, digits and a few signs."""
    return re.sub(r"[^\w.\- :]", "_", text).strip(" .") or "_"


def _gather(result: Result, directory: Path, folder: Path, about: Mapping[str, Any], *, proof: bool) -> None:
    """The files of a run: the result, the signed study, tables, and the model where ONNX has it."""
    copy_result(directory, folder / "result", proof=proof)
    if has_file(directory, STUDY_FILE):
        signed = StudyProof.parse((directory / STUDY_FILE).read_bytes())
        (folder / "study").mkdir()
        (folder / "study" / "study.json").write_bytes(signed.study)
        words = {"signature": signed.signature.hex(), "analyst": signed.analyst.hex()}
        (folder / "study" / "signature.json").write_text(json.dumps(words, indent=2) + "\n", encoding="utf-8")
    export_result(result, folder / "tables", ["csv", "html"], about=about)
    with contextlib.suppress(ConfigurationError, Misuse):  # no model, or none that ONNX has
        export_result(result, folder / "model", ["onnx"], about=about)


def _log(client: MlflowClient, run: str, begun: int, parameters: Mapping[str, str], metrics: list[Metric]) -> None:
    """Parameters, and metrics at the time when the run began: sent twice, they are the same."""
    from mlflow.entities import Metric as Entity
    from mlflow.entities import Param

    client.log_batch(run, params=[Param(name, value[:_LONGEST_TEXT]) for name, value in parameters.items()])
    entities = [Entity(name, value, begun, step) for name, value, step in metrics]
    for start in range(0, len(entities), _BATCH):
        client.log_batch(run, metrics=entities[start : start + _BATCH])


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        return str(client.create_experiment(name))
    if found.lifecycle_stage != "active":
        raise Misuse(f"The experiment {name!r} was deleted on the server.", "Restore it there, or name another.")
    return str(found.experiment_id)


@contextlib.contextmanager
def _client(tracking_uri: str) -> Iterator[MlflowClient]:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # an absent server is said within seconds
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    with raising(ConfigurationError("MLflow's client is not installed.", install_extra("mlflow")), on=ImportError):
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    try:
        yield MlflowClient(tracking_uri=tracking_uri)
    except (MlflowException, OSError) as error:  # the latter of requests, too
        told = str(getattr(error, "error_code", "") or type(error).__name__)
        raise Unavailable(f"The tracking server did not take the result ({told}).", "Check its address and log.") from error
