"""Results on a real MLflow tracking server on loopback, read back over its REST API without MLflow's client."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilsum
from support.commands import shown
from support.commands import veilsum as command
from support.network import wait_for
from support.processes import lasting_port
from support.studies import run as run_plain
from support.studies import shifted_sites
from veilsum import mlflow_run
from veilsum.mlflow_run import metrics_of
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, Unavailable
from veilsum_privacy.results.proof_files import STUDY_FILE, StudyProof
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.study import parse_study, study_digest

pytestmark = pytest.mark.system  # a tracking server takes ten seconds to start; test_file_names.py sends it a folder

SCHEMA: dict[str, Any] = {
    "max_records": 400,
    "columns": [
        {"kind": "number", "name": "age", "low": 0, "high": 100, "unit": "years"},
        {"kind": "category", "name": "sex", "categories": ["f", "m"]},
    ],
    "label": {"column": "died", "classes": [{"name": "no", "values": ["0"]}, {"name": "yes", "values": ["1"]}]},
}
SITES = ("mary-hospital", "north-clinic", "west-clinic")


class Server:
    """A tracking server's REST API.

    Attributes:
        uri: its address.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.uri + path, data, {"Content-Type": "application/json"})  # noqa: S310  loopback
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return json.load(answer)

    def runs(self, experiment: str) -> list[Any]:
        found = self.ask(f"/api/2.0/mlflow/experiments/get-by-name?experiment_name={urllib.parse.quote(experiment)}")
        asked = {"experiment_ids": [found["experiment"]["experiment_id"]]}
        return list(self.ask("/api/2.0/mlflow/runs/search", asked).get("runs", []))

    def history(self, run: str, metric: str) -> list[tuple[int, float]]:
        key = urllib.parse.quote(metric, safe="")
        found = self.ask(f"/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={key}")
        return [(int(item.get("step", 0)), item["value"]) for item in found["metrics"]]

    def files(self, run: str, path: str = "") -> dict[str, bytes]:
        listed = self.ask(f"/api/2.0/mlflow/artifacts/list?run_id={run}&path={urllib.parse.quote(path)}")
        found: dict[str, bytes] = {}
        for item in listed.get("files", []):
            if item["is_dir"]:
                found |= self.files(run, item["path"])
            else:
                asked = urllib.parse.urlencode({"run_id": run, "path": item["path"]})
                with urllib.request.urlopen(f"{self.uri}/get-artifact?{asked}") as answer:  # noqa: S310
                    found[item["path"]] = answer.read()
        return found


def fields(run: Any, kind: str) -> dict[str, Any]:
    return {item["key"]: item["value"] for item in run["data"].get(kind, [])}


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.read() == b"OK")
    except OSError:
        return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place, port = tmp_path_factory.mktemp("tracking"), lasting_port()
    words = ["--backend-store-uri", f"sqlite:///{place}/runs.db", "--artifacts-destination", str(place / "files")]
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", *words, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=(place / "log").open("w"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        wait_for(lambda: answers(port) or process.poll() is not None, "the tracking server")
        assert process.poll() is None, (place / "log").read_text()
        yield Server(f"http://127.0.0.1:{port}")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def federation() -> Iterator[veilsum.Federation]:
    rng = np.random.default_rng(2)
    age = rng.uniform(20, 90, 600).round()
    frame = pd.DataFrame(
        {"site": rng.choice(SITES, 600), "age": age, "sex": rng.choice(["f", "m"], 600), "died": (age > 60).astype(int)}
    )
    with veilsum.simulate(frame, SCHEMA, site_column="site") as made:
        yield made


def test_a_study_is_one_run_with_its_cost_numbers_and_files(
    server: Server, federation: veilsum.Federation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    result = federation.dataset(epsilon=8.0).train("fedcgs").run(tmp_path / "result")
    key = result.to_mlflow(server.uri, "heart: trial 1", dossier="https://intranet/dossiers/7.html")
    (run,) = server.runs("heart: trial 1")
    assert (run["info"]["run_id"], run["info"]["status"]) == (key, "FINISHED")
    told = fields(run, "params")
    assert (told["study"], told["method"], told["unit"]) == (result.provenance["digest"], "fedcgs", "record")
    assert (float(told["epsilon"]), float(told["delta"])) == (result.cost["epsilon"], result.cost["delta"])
    tags = fields(run, "tags")
    assert tags["veilsum.dossier"] == "https://intranet/dossiers/7.html"
    assert "mlflow.user" not in tags or tags["mlflow.user"] == "unknown"
    assert not [name for name in tags if name.startswith("mlflow.source")]

    numbers = fields(run, "metrics")
    rows = {row["class"]: row["count"] for row in result.rows("classes")}
    assert {name: numbers[f"classes/{name}/count"] for name in rows} == {name: row["value"] for name, row in rows.items()}
    assert numbers["cohort"] == 3
    assert numbers["classes/yes/count_noise_error"] == rows["yes"]["noise_error"] > 0

    files = server.files(key)
    directory = result.directory
    assert files["result/manifest.json"] == (directory / "manifest.json").read_bytes()
    assert files["result/arrays.safetensors"] == (directory / "arrays.safetensors").read_bytes()
    signed = StudyProof.parse((directory / STUDY_FILE).read_bytes())
    assert study_digest(files["study/study.json"]).hex() == result.provenance["digest"]
    assert parse_study(files["study/study.json"]).method == "fedcgs"
    assert json.loads(files["study/signature.json"])["signature"] == signed.signature.hex()
    assert {"tables/classes.csv", "tables/summary.csv", "tables/result.html", "model/model.onnx"} <= set(files)
    made = onnx.load_from_string(files["model/model.onnx"])
    assert {item.key: item.value for item in made.metadata_props}["veilsum.study"] == result.provenance["digest"]

    names = json.dumps([run["data"], run["info"]])
    assert not [site for site in SITES if site in names]
    told_of = {name for name, data in files.items() for site in SITES if site.encode() in data}
    assert told_of <= {"result/manifest.json", "study/study.json"}, "what the analyst signed, and who decrypted"
    assert not [name for name in files if "proof" in name]

    again = shown(capsys, "study", "mlflow", directory, "--tracking-uri", server.uri, "--experiment", "heart: trial 1")
    assert again["run"] == key
    assert server.runs("heart: trial 1") == [run]
    assert server.files(key) == files


def test_a_proof_is_sent_where_it_is_asked_for(server: Server, federation: veilsum.Federation, tmp_path: Path) -> None:
    """The files of the run are a result that is verified anywhere."""
    result = federation.dataset(noise="none").count().run(tmp_path / "result")
    files = server.files(result.to_mlflow(server.uri, "proofs", proof=True))
    for name, data in files.items():
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "copy" / name).write_bytes(data)
    copy = veilsum.open_result(tmp_path / "copy" / "result")
    assert result.authority is not None
    assert veilsum.StudyResult(copy.directory, result.authority).verify().comparison.exact
    assert "model/model.onnx" not in files


@pytest.mark.system
def test_rounds_are_steps_and_checkpoints_are_runs_of_their_own(
    server: Server, federation: veilsum.Federation, tmp_path: Path
) -> None:
    run = federation.dataset(noise="none").train("fedavg", {"rounds": 4, "checkpoint_every": 1}).submit()
    result = run.result(tmp_path / "result")
    key = result.to_mlflow(server.uri, "rounds")
    changes = result.rows("changes")
    assert len(changes) > 1
    assert server.history(key, "changes/change") == [(row["round"], row["change"]) for row in changes]
    kept = run.checkpoint()
    other = kept.to_mlflow(server.uri, "rounds")
    assert kept.to_mlflow(server.uri, "rounds") == other != key
    runs = {item["info"]["run_id"]: fields(item, "params") for item in server.runs("rounds")}
    assert runs.keys() == {key, other}
    assert runs[other]["study"] == runs[key]["study"] == run.id
    assert int(runs[other]["round"]) in run.status().checkpoints


def test_an_export_that_was_interrupted_is_completed_once(
    server: Server, federation: veilsum.Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    result = federation.dataset(epsilon=4.0).train("fedcgs").run()

    def broken(*_: object) -> None:
        raise OSError("the line is cut")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_artifacts", broken)
        with pytest.raises(Unavailable, match="did not take the result"):
            result.to_mlflow(server.uri, "interrupted")
    (begun,) = server.runs("interrupted")
    assert begun["info"]["status"] == "RUNNING"
    key = result.to_mlflow(server.uri, "interrupted")
    (run,) = server.runs("interrupted")
    assert (run["info"]["run_id"], run["info"]["status"]) == (key, "FINISHED") == (begun["info"]["run_id"], "FINISHED")
    assert "result/manifest.json" in server.files(key)
    assert server.history(key, "cohort") == [(0, 3.0)]


def test_names_of_any_kind_become_names_that_the_server_takes(server: Server, tmp_path: Path) -> None:
    levels = ["[0, 10)", "[0; 10)", "../..", "a/b", "ä <b>", ".", "", "x" * 400, "n\u0000l"]
    rows = [{"level": level, "mean": {"value": float(place), "low": -1.0, "high": 9.0}} for place, level in enumerate(levels)]
    many = [{"at": place, "value": 1.0} for place in range(3000)]
    result = Result("statistics", {"means: a=b": rows, "many": many, "text": "t" * 9000, "few": [{"a": 1}, {"a": 2}]})
    save_result(tmp_path / "odd", result, study={"name": "odd", "digest": "0d" * 32})
    key = veilsum.open_result(tmp_path / "odd").to_mlflow(server.uri, "odd")
    (run,) = server.runs("odd")
    numbers = fields(run, "metrics")
    found = sorted(value for name, value in numbers.items() if re.fullmatch(r".*/mean(-[0-9]+)?", name))
    assert found == [float(place) for place in range(len(levels))]
    assert not [name for name in numbers if name.startswith("many")]
    assert (numbers["few/1/a"], numbers["few/2/a"]) == (1, 2)
    assert server.files(key)["tables/many.csv"].count(b"\n") == 3001
    assert len(fields(run, "params")["text"]) == 6000


def test_every_methods_numbers_have_names_of_their_own() -> None:
    found = metrics_of(run_plain("pca", {}, shifted_sites(100), epsilon=4.0))
    assert len({(name, step) for name, _, step in found}) == len(found)
    assert ("width", 6.0, 0) in found
    assert {name for name, _, _ in found if name.startswith("components/")} >= {"components/6/share", "components/1/variance"}


def test_what_cannot_be_tracked_is_refused(
    server: Server, federation: veilsum.Federation, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from mlflow.tracking import MlflowClient

    result = federation.dataset(noise="none").count().run()
    with pytest.raises(Misuse, match="address on the web"):
        result.to_mlflow(server.uri, "refused", dossier="javascript:alert(1)")
    save_result(tmp_path / "nameless", Result("x", {"a": 1}))
    with pytest.raises(Misuse, match="names no study"):
        veilsum.open_result(tmp_path / "nameless").to_mlflow(server.uri, "refused")
    for value in (1, 2):
        save_result(tmp_path / f"run-{value}", Result("x", {"a": value}), study={"name": "x", "digest": "11" * 32})
    veilsum.open_result(tmp_path / "run-1").to_mlflow(server.uri, "refused")
    with pytest.raises(Misuse, match="another result"):
        veilsum.open_result(tmp_path / "run-2").to_mlflow(server.uri, "refused")
    assert [fields(run, "metrics") for run in server.runs("refused")] == [{"a": 1}]
    MlflowClient(server.uri).delete_experiment(MlflowClient(server.uri).create_experiment("gone"))
    with pytest.raises(Misuse, match="was deleted"):
        result.to_mlflow(server.uri, "gone")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = f"http://analyst:geheim@127.0.0.1:{closed.getsockname()[1]}"
        code, _, err = command(capsys, "study", "mlflow", result.directory, "--tracking-uri", away, "--experiment", "x")
    assert code != 0
    assert "did not take the result" in err
    assert "geheim" not in err
    with pytest.raises(HostileInput, match="no readable result"):
        mlflow_run.log_result(tmp_path / "nowhere", {}, server.uri, "x")
    monkeypatch.setitem(sys.modules, "mlflow.tracking", None)
    with pytest.raises(ConfigurationError) as caught:
        result.to_mlflow(server.uri, "x")
    assert caught.value.advice == "pip install 'veilsum[mlflow]'"
