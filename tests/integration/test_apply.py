"""``veilsum participant apply``: a result on a site's own file, through the command line."""

from __future__ import annotations

import csv
import hashlib
import io
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.special import softmax
from sklearn.covariance import OAS
from torch import nn

from support.commands import shown, veilsum
from support.federation import make_request, schema_of
from support.studies import agreed, complete, federation, split_records
from veilsum_aggregation.alignment import local_map, reference_arrays
from veilsum_aggregation.gaussian import Gaussian
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.alignment import application
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.database import open_database
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_participant.applying.heads import PersonalHead
from veilsum_participant.applying.model import Model, load_model
from veilsum_participant.store.kept import KeptVector, keep_vector
from veilsum_participant.store.studies import add_study
from veilsum_participant.store.tables import create_tables
from veilsum_privacy.results.result import Result, save_result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.feature_maps import map_records
from veilsum_privacy.tasks.parameters import FeatureParameters

WIDTH = 3
SCHEMA = schema_of(WIDTH)
SITES = ["berlin", "oslo", "rome"]


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    return veilsum(capsys, "participant", "apply", *arguments)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def result_of(arrays: dict[str, np.ndarray], schema: DatasetSchema = SCHEMA, **changes: Any) -> Result:
    given = {**application(schema), "classes": ["c0", "c1"], "missing_rule": "skip", "encoder": None, "alignment": None}
    head = {"kind": "linear", "weights": "weights", "bias": "bias"}
    return Result("test", {}, arrays, {**given, "head": head, **changes})


def linear(width: int = WIDTH) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {"weights": rng.standard_normal((2, width)), "bias": 0.1 * rng.standard_normal(2)}


def write_csv(path: Path, x: np.ndarray, labels: np.ndarray | None) -> Path:
    heading = [f"x{index}" for index in range(WIDTH)] + ([] if labels is None else ["y"])
    lines = [",".join(heading)]
    for number, row in enumerate(x):
        lines.append(",".join([*(repr(float(value)) for value in row), *([] if labels is None else [str(labels[number])])]))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_studys_result_predicts_as_the_study_found_and_compares(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A fedcgs study without noise; its head's predictions, counted by hand, are what is written and printed."""
    rng = np.random.default_rng(2)
    y = rng.integers(0, 2, 300)
    x = np.clip(rng.standard_normal((300, WIDTH)) * 0.4 + np.where(y[:, None] == 1, 0.25, -0.25), -1, 1)
    records = complete(x, y)
    study = agreed(make_request(SCHEMA, "fedcgs", None), SITES)
    plain = federation(study, split_records(records, SITES))
    save_result(here / "result", get_method("fedcgs").run(plain))
    head = load_model("result").arrays
    scores = x @ head["weights"].T + head["bias"]
    report = shown(capsys, "participant", "apply", "result", "--data", write_csv(here / "new.csv", x, y))
    lines = table(here / "predictions.csv")
    assert [int(line["row"]) for line in lines] == list(range(1, 301))
    assert [line["predicted"] for line in lines] == [f"c{index}" for index in scores.argmax(axis=1)]
    found = np.array([[float(line["probability_c0"]), float(line["probability_c1"])] for line in lines])
    np.testing.assert_allclose(found, softmax(scores, axis=1), atol=2e-6)
    assert report["records"] == report["predicted"] == report["labelled"] == 300
    assert report["accuracy"] == pytest.approx(np.mean(scores.argmax(axis=1) == y))
    confusion = [[int(((y == true) & (scores.argmax(axis=1) == said)).sum()) for said in (0, 1)] for true in (0, 1)]
    assert report["confusion"] == {"true": ["c0", "c1"], "predicted": ["c0", "c1"], "counts": confusion}
    assert min(min(row) for row in confusion) > 0  # a confusion that could be transposed would show
    assert confusion[0][1] != confusion[1][0]
    assert stat.S_IMODE((here / "predictions.csv").stat().st_mode) == 0o600

    code, out, _ = run(capsys, "result", "--data", here / "new.csv", "--force")
    assert code == 0
    assert f"{report['accuracy']:.1%} of 300 records" in out
    assert "Confusion" in out


def test_rows_keep_their_numbers_and_what_is_missing_is_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_result(here / "result", result_of(linear()))
    (here / "new.csv").write_text("x0,x1,x2,y\n0.1,0.2,0.3,1\n0.1,0.2\n,0.2,0.3,0\n5,0.2,0.3,\n0,0,0,7\n")
    report = shown(capsys, "participant", "apply", "result", "--data", "new.csv")
    lines = table(here / "predictions.csv")
    assert [line["row"] for line in lines] == ["1", "3", "4", "5"]
    assert [bool(line["predicted"]) for line in lines] == [True, False, True, True]
    assert lines[1] == {"row": "3", "predicted": "", "probability_c0": "", "probability_c1": ""}
    counted = {key: report[key] for key in ("records", "predicted", "left_out", "broken_rows", "clamped_cells", "labelled")}
    assert counted == {"records": 4, "predicted": 3, "left_out": 1, "broken_rows": 1, "clamped_cells": 1, "labelled": 1}


def test_a_file_is_read_as_its_owner_says_that_it_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_result(here / "result", result_of(linear()))
    (here / "new.csv").write_text("x0,x1,x2,y\n0.1,0.2,0.3,1\n-0.4,0.2,0.3,0\n")
    (here / "german.csv").write_text("x0;x1;x2;y\n0,1;0,2;0,3;1\n-0,4;0,2;0,3;0\n")
    written = ("--data", "german.csv", "--dialect", "delimiter=;", "--dialect", "decimal=,")
    shown(capsys, "participant", "apply", "result", "--data", "new.csv")
    plain = (here / "predictions.csv").read_text()
    shown(capsys, "participant", "apply", "result", *written, "--force")
    assert (here / "predictions.csv").read_text() == plain
    measured = [shown(capsys, "participant", "evaluate", "result", *given) for given in (("--data", "new.csv"), written)]
    assert [report.pop("data") for report in measured] == ["new.csv", "german.csv"]
    assert measured[0] == measured[1]


def test_a_file_without_the_label_is_predicted_and_says_why_there_is_no_accuracy(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_result(here / "result", result_of(linear()))
    write_csv(here / "new.csv", np.zeros((2, WIDTH)), None)
    report = shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--out", "p.csv")
    assert (report["accuracy"], report["confusion"], report["predicted"]) == (None, None, 2)
    assert "column 'y' is missing" in report["unlabelled"]
    code, out, _ = run(capsys, "result", "--data", "new.csv")
    assert code == 0
    assert "No accuracy" in out
    code, _, err = run(capsys, "result", "--data", write_csv(here / "bad.csv", np.zeros((2, WIDTH)), None), "--out", "q.csv")
    assert code == 0, err
    (here / "bad.csv").write_text("x0,x1,y\n1,2,0\n")
    code, _, err = run(capsys, "result", "--data", "bad.csv", "--out", "r.csv")
    assert code == 2
    assert "column 'x2' is missing" in err
    assert not (here / "r.csv").exists()


def test_an_existing_file_is_kept_unless_forced(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_result(here / "result", result_of(linear()))
    write_csv(here / "new.csv", np.zeros((2, WIDTH)), None)
    (here / "predictions.csv").write_text("mine\n")
    code, _, err = run(capsys, "result", "--data", "new.csv")
    assert code == 2
    assert "--force" in err
    assert (here / "predictions.csv").read_text() == "mine\n"
    shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--force")
    assert len(table(here / "predictions.csv")) == 2
    assert sorted(path.name for path in here.iterdir()) == ["new.csv", "predictions.csv", "result"]


def test_a_file_without_a_header_is_read_as_the_study_did_or_by_a_schema(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = SCHEMA.model_copy(update={"header": False, "order": ("x0", "y", "x1", "x2")})
    (here / "new.csv").write_text("0.1,1,0.2,0.3\n-0.5,0,0.5,0.25\n")
    save_result(here / "result", result_of(linear(), bare))
    first = shown(capsys, "participant", "apply", "result", "--data", "new.csv")
    old = result_of(linear(), bare)
    save_result(here / "old", Result("test", {}, old.arrays, {k: v for k, v in old.application.items() if k != "file"}))
    columns = "".join(f'[[columns]]\nkind = "number"\nname = "x{index}"\nlow = -1.0\nhigh = 1.0\n' for index in range(WIDTH))
    classes = '[label]\ncolumn = "y"\nclasses = [{name = "c0", values = ["0"]}, {name = "c1", values = ["1"]}]\n'
    (here / "schema.toml").write_text(f'header = false\norder = ["x0", "y", "x1", "x2"]\n{columns}{classes}')
    second = shown(
        capsys, "participant", "apply", "old", "--data", "new.csv", "--out", "second.csv", "--schema", "schema.toml"
    )
    assert (here / "second.csv").read_text() == (here / "predictions.csv").read_text()
    assert first["accuracy"] == second["accuracy"] is not None


def participant(here: Path, *, encoder: str = "") -> tuple[Kit, Path]:
    kit = make_kit(here / "kit", SITES, clock=lambda: int(time.time()))
    own = next(party for party in kit.participants if party.name == "oslo")
    config = own.directory / "participant.toml"
    text = f'coordinator = "localhost:1"\nidentity = "{own.identity.name}"\n[datasets.records]\npath = "none.csv"\n{encoder}'
    config.write_text(text)
    return kit, config


def maps() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    rng = np.random.default_rng(3)
    arrays = {"m": rng.standard_normal((3, WIDTH, WIDTH)), "o": rng.standard_normal((3, WIDTH))}
    return arrays, {"kind": "maps", "sites": SITES, "matrix": "m", "offset": "o"}


def test_each_sites_own_map_is_found_by_option_or_identity(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays, alignment = maps()
    save_result(here / "result", result_of({**linear(), **arrays}, alignment=alignment))
    x = np.random.default_rng(4).uniform(-1, 1, (40, WIDTH))
    write_csv(here / "new.csv", x, None)
    _, config = participant(here)
    head = linear()
    expected = {}
    for index, site in enumerate(SITES):
        aligned = x @ arrays["m"][index].T + arrays["o"][index]
        expected[site] = [f"c{best}" for best in (aligned @ head["weights"].T + head["bias"]).argmax(axis=1)]
    assert expected["oslo"] != expected["rome"]
    by_option = shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--site", "rome")
    assert by_option["site"] == "rome"
    assert [line["predicted"] for line in table(here / "predictions.csv")] == expected["rome"]
    shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--config", config, "--force")
    assert [line["predicted"] for line in table(here / "predictions.csv")] == expected["oslo"]
    for options, words in (((), "--site"), (("--site", "paris"), "no alignment for 'paris'")):
        code, _, err = run(capsys, "result", "--data", "new.csv", "--force", *options)
        assert code == 2
        assert words in err


def test_a_site_that_took_no_part_is_aligned_by_the_records_that_it_predicts(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the covariances' optimal map, whichever sites there were; towards what the result says that its maps were made by."""
    x = np.random.default_rng(4).uniform(-0.8, 0.8, (400, WIDTH)) @ np.diag([1.0, 0.5, 0.2]) + 0.1
    target = Gaussian(np.array([0.3, 0.0, -0.2]), np.diag([0.1, 0.2, 0.3]))
    arrays, alignment = maps()
    said = {f"reference.{name}": array for name, array in reference_arrays(target).items()}
    by = {"kind": "barycenter", "tau": 1.0, "reference": {name: f"reference.{name}" for name in reference_arrays(target)}}
    save_result(here / "result", result_of({**linear(), **arrays, **said}, alignment={**alignment, "made_by": by}))
    save_result(here / "earlier", result_of({**linear(), **arrays}, alignment=alignment))
    write_csv(here / "new.csv", x, None)
    for result, options, words in (
        ("result", (), "--new-site"),
        ("result", ("--new-site", "--site", "rome"), "none of those"),
        ("earlier", ("--new-site",), "nothing that a new site"),
    ):
        code, _, err = run(capsys, result, "--data", "new.csv", *options)
        assert code == 2
        assert words in " ".join(err.split())
    assert not (here / "predictions.csv").exists()

    found = shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--new-site")
    assert found["site"] is None
    root = sqrtm(OAS().fit(x).covariance_)
    inverse = np.linalg.inv(root)
    matrix = np.real(inverse @ sqrtm(root @ target.covariance @ root) @ inverse)
    head = linear()
    scores = ((x - x.mean(axis=0)) @ matrix.T + target.mean) @ head["weights"].T + head["bias"]
    probability = [float(line["probability_c0"]) for line in table(here / "predictions.csv")]
    np.testing.assert_allclose(probability, softmax(scores, axis=1)[:, 0], rtol=1e-5)

    labels = (scores[:, 1] > scores[:, 0]).astype(int)
    write_csv(here / "known.csv", x, labels)
    measured = shown(capsys, "participant", "evaluate", "result", "--data", "known.csv", "--new-site")
    assert measured["accuracy"]["value"] == 1.0
    shown(capsys, "participant", "personalise", "result", "--data", "known.csv", "--new-site", "--out", "personal")
    # Later records of the site, too few to align anything by, take the map that its model was made with.
    write_csv(here / "few.csv", x[:3], None)
    made = load_model(here / "personal")
    own = made.recipe.head
    assert isinstance(own, PersonalHead)
    moved = (x[:3] - x.mean(axis=0)) @ matrix.T + target.mean
    released = moved @ head["weights"].T + head["bias"]
    expected = own.scale * released + moved @ made.arrays[own.weights].T + made.arrays[own.bias]
    for options in ((), ("--new-site",)):
        found = shown(capsys, "participant", "apply", "personal", "--data", "few.csv", "--force", *options)
        assert found["site"] is None
        probability = [float(line["probability_c0"]) for line in table(here / "predictions.csv")]
        np.testing.assert_allclose(probability, softmax(expected, axis=1)[:, 0], rtol=1e-5)


def _size(study: Study, label: str) -> int:
    return AgreedStudy(study).task(label).task.layout().size


def kept_study() -> Study:
    """A study whose class moments every site keeps with its own noise."""
    study = agreed(make_request(SCHEMA, "fedcgs", 5.0, noise="local", cohort_difference="strict"), SITES)
    kept = study.tasks[0].model_copy(update={"keep": True})
    return parse_study(study.model_copy(update={"tasks": (kept,)}).to_bytes())


def test_a_site_aligns_by_what_it_kept_in_its_state_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = kept_study()
    key, label = study_digest(study.to_bytes()), study.tasks[0].label
    size = AgreedStudy(study).tasks[0].task.layout().size
    unit = AgreedStudy(study).task(label).kept_blocks(np.ones(size, dtype=np.int64))[0]["counts"][0]
    vector = np.random.default_rng(5).integers(-50, 50, size)
    vector[:2] = np.round(400 / unit)  # two classes of 400 records; what else is in it is of no matter here
    blocks, noise = AgreedStudy(study).task(label).kept_blocks(vector)
    assert noise["counts"] > 0
    target = Gaussian(np.array([0.3, -0.2, 0.1]), np.diag([0.2, 0.1, 0.3]))
    own = local_map("barycenter", blocks, noise, reference_arrays(target), tau=0.7)
    assert not np.allclose(own.matrix, np.eye(WIDTH))
    reference = reference_arrays(target)
    alignment = {"kind": "barycenter", "source": label, "tau": 0.7, "reference": {name: name for name in reference}}
    result = result_of({**linear(), **reference}, alignment=alignment)
    save_result(here / "result", result, study={"name": "s", "digest": key.hex(), "method": "test"})
    x = np.random.default_rng(6).uniform(-1, 1, (60, WIDTH))
    write_csv(here / "new.csv", x, None)
    _, config = participant(here)

    database = open_database(config.parent / "participant.db")
    create_tables(database)
    with database.transaction() as connection:
        add_study(connection, digest=key, status="ended", study=study.to_bytes(), analyst="a", enrolment=b"[]", box_key=b"")
    database.close()
    code, _, err = run(capsys, "result", "--data", "new.csv", "--config", config)
    assert code == 2
    assert f"kept nothing of the study's task '{label}'" in err
    database = open_database(config.parent / "participant.db")
    with database.transaction() as connection:
        keep_vector(connection, key, label, KeptVector(vector, vector, None))
    database.close()

    code, _, err = run(capsys, "result", "--data", "new.csv", "--config", config, "--site", "rome")
    assert code == 2
    assert "--site names 'rome', and this is 'oslo'" in err
    assert not (here / "predictions.csv").exists()

    before = (config.parent / "participant.db").read_bytes()
    shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--config", config, "--site", "oslo")
    assert (config.parent / "participant.db").read_bytes() == before
    head = linear()
    scores = (x @ own.matrix.T + own.offset) @ head["weights"].T + head["bias"]
    plain = x @ head["weights"].T + head["bias"]
    said = np.array([float(line["probability_c0"]) for line in table(here / "predictions.csv")])
    np.testing.assert_allclose(said, softmax(scores, axis=1)[:, 0], atol=2e-6)
    assert np.abs(said - softmax(plain, axis=1)[:, 0]).max() > 0.05


def test_a_bundle_that_does_not_name_its_study_cannot_be_aligned_locally(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = reference_arrays(Gaussian(np.zeros(WIDTH), np.eye(WIDTH)))
    alignment = {"kind": "barycenter", "source": "moments", "tau": 0.7, "reference": {name: name for name in reference}}
    save_result(here / "result", result_of({**linear(), **reference}, alignment=alignment))
    write_csv(here / "new.csv", np.zeros((2, WIDTH)), None)
    _, config = participant(here)
    code, _, err = run(capsys, "result", "--data", "new.csv", "--config", config)
    assert code == 2
    assert "does not say which study" in err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_frozen_program_comes_from_an_option_or_the_configuration(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh()).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(net), buffer)
    (here / "kit").mkdir()
    (here / "net.pt").write_bytes(buffer.getvalue())
    declared = {
        "kind": "program",
        "format": "torchscript",
        "sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
        "inputs": [WIDTH],
        "width": 4,
    }
    save_result(here / "result", result_of(linear(4), encoder=declared))
    x = np.random.default_rng(8).uniform(-1, 1, (30, WIDTH))
    write_csv(here / "new.csv", x, None)
    head = linear(4)
    with torch.no_grad():
        features = net.double()(torch.from_numpy(x)).numpy()
    expected = [f"c{best}" for best in (features @ head["weights"].T + head["bias"]).argmax(axis=1)]
    assert len(set(expected)) == 2
    shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--encoder", "net.pt")
    assert [line["predicted"] for line in table(here / "predictions.csv")] == expected
    _, config = participant(here, encoder=f'[encoders.net]\npath = "{here}/net.pt"\n')
    shown(capsys, "participant", "apply", "result", "--data", "new.csv", "--config", config, "--out", "again.csv")
    assert (here / "again.csv").read_text() == (here / "predictions.csv").read_text()
    (here / "other.pt").write_bytes(b"other")
    for options, words in (((), "--encoder"), (("--encoder", "other.pt"), "its SHA-256 is")):
        code, _, err = run(capsys, "result", "--data", "new.csv", "--force", *options)
        assert code == 2
        assert words in err


def test_an_encoders_result_writes_features(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from veilsum_privacy.study.projections import projection_digest

    rng = np.random.default_rng(9)
    matrix, offset = rng.standard_normal((2, WIDTH)), rng.standard_normal(2)
    encoder = {"kind": "projection", "sha256": projection_digest(matrix, offset), "matrix": "a", "offset": "b"}
    save_result(here / "result", result_of({"a": matrix, "b": offset}, encoder=encoder, head=None, classes=[]))
    x = rng.uniform(-1, 1, (5, WIDTH))
    report = shown(capsys, "participant", "apply", "result", "--data", write_csv(here / "new.csv", x, None))
    assert report["features"] == 2
    found = np.array([[float(line["feature_1"]), float(line["feature_2"])] for line in table(here / "predictions.csv")])
    np.testing.assert_allclose(found, x @ matrix.T + offset, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: (path / "manifest.json").unlink(), "no readable result"),
        (lambda path: (path / "manifest.json").write_text("{}"), "malformed"),
        (lambda path: (path / "arrays.safetensors").write_bytes(b"x"), "not the file that the manifest names"),
    ],
)
def test_a_spoilt_bundle_ends_in_one_typed_error(
    here: Path, capsys: pytest.CaptureFixture[str], spoil: Any, words: str
) -> None:
    save_result(here / "result", result_of(linear()))
    spoil(here / "result")
    write_csv(here / "new.csv", np.zeros((2, WIDTH)), None)
    code, _, err = run(capsys, "result", "--data", "new.csv")
    assert code == 2
    assert words in err
    assert "Traceback" not in err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", ["one-shot", "iterated"])
@pytest.mark.parametrize("reference", ["barycenter", "two-way"])
@pytest.mark.parametrize("epsilon", [None, 30.0])
def test_a_model_maps_records_as_the_study_did_to_the_last_bit(mode: str, reference: str, epsilon: float | None) -> None:
    """Each site's features, as the study's own task saw them, from the result alone and what the site kept."""
    request = make_request(SCHEMA, "fedpft", epsilon)
    parameters = {"alignment": {"mode": mode, "reference": reference}}
    study = agreed(request.model_copy(update={"parameters": parameters}), SITES)
    rng = np.random.default_rng(11)
    sites = {}
    for site in SITES:
        y = rng.integers(0, 2, 300)
        x = rng.standard_normal((300, WIDTH)) * 0.3 + np.where(y[:, None] == 1, 0.2, -0.2) + 0.2 * rng.standard_normal(WIDTH)
        sites[site] = PlainSite(complete(np.clip(x, -1, 1), y))
    federation = PlainFederation(study, sites)
    result = get_method("fedpft").run(federation)
    model = Model.from_result(result)
    (aligned,) = [task for task in study.tasks if task.parameters.get("alignment")]
    known = TASKS[aligned.task].Parameters.model_validate(dict(aligned.parameters))
    assert isinstance(known, FeatureParameters)
    moved = 0.0
    for index, site in enumerate(SITES):
        records = sites[site].records
        own: dict[str, Any] = {}
        if aligned.source is not None:
            noise = (
                AgreedStudy(study).task(aligned.source).kept_blocks(np.zeros(_size(study, aligned.source), dtype=np.int64))[1]
            )
            own = {"kept": federation.kept_blocks(site, aligned.source), "noise_std": noise}
        seen = map_records(study, known, records, result.arrays, index=index, **own).features
        found = model.features(records, site, **own)
        assert found.tobytes() == seen.tobytes()
        told = model.features(records, site, own.get("kept"))  # the noise as the result tells it, in its own rounding
        np.testing.assert_allclose(told, seen, rtol=1e-9, atol=1e-12)
        moved = max(moved, float(np.abs(found - records.features).max()))
    assert moved > 0.05
