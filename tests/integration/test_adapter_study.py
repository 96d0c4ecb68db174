"""Studies of adapters: every site computes with its own file of frozen weights, which nothing sends and which it checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from support.apart import ThreadStarter
from support.commands import veilsum
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary
from support.network import submit, wired
from support.starting import ProcessStarter
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.errors import RefusalCode
from veilsum_participant.datasets import Datasets
from veilsum_participant.protocol.policy import term_faults
from veilsum_participant.settings.dataset_config import EncoderConfig
from veilsum_participant.worker.remote import WorkerDatasets
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.ledger import Kind
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training import weights
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_proto import federation_pb2 as pb

INPUTS, NAMES, ROWS = 6, "abc", 20
OPTIONS = {"heads": 1, "hidden": 4}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def base(**changed: np.ndarray) -> bytes:
    values = build_architecture(ModelSpec(name="block", inputs=(2, 3), options=OPTIONS), INPUTS, 2).initial(8)
    return save({name: value.astype(np.float32) for name, value in {**values, **changed}.items()})


def made_bed(tmp_path: Path, data: bytes, sites: str = NAMES, **options: Any) -> TestBed:
    bed = make_bed(tmp_path, make_data(NAMES, ROWS, INPUTS), **options)
    for name in sites:
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        site = bed.sites[name]
        site.config = site.config.model_copy(update={"encoders": {"own-name": EncoderConfig(path=path)}})
    return bed


def study(bed: TestBed, data: bytes, epsilon: float | None = None) -> Study:
    options = {
        "of": "block", "options": OPTIONS, "weights": hashlib.sha256(data).hexdigest(), "rank": 2,
        "layers": ["features.query", "features.value"],
    }  # fmt: skip
    model = {"name": "adapters", "inputs": [2, 3], "options": options}
    request = make_request(schema_of(INPUTS), "fedsgd", epsilon)
    return bed.compile(request.model_copy(update={"parameters": {"model": model, "steps": 2}}))


def test_a_study_runs_over_the_wire(tmp_path: Path) -> None:
    """With noise: members take the steps of what is trained themselves, and results hold nothing else."""
    data = base()
    bed = made_bed(tmp_path, data)
    with ExitStack() as stack:
        _, _, stub = stack.enter_context(wired(bed))
        told = study(bed, data, 8.0)
        assert "steps" in told.tasks[-1].parameters
        key = submit(bed, stub, told)
        for _ in stub.Watch(pb.ShowRequest(study=key), timeout=240):
            pass
        status = stub.Show(pb.ShowRequest(study=key))
        assert status.phase == StudyPhase.FINISHED, (status.reason, status.refusals)
        files = {
            name: b"".join(chunk.data for chunk in stub.Result(pb.ResultRequest(study=key, file=name)))
            for name in ("manifest.json", "arrays.safetensors")
        }
    assert b"lora_A" in files["arrays.safetensors"]
    assert b"features.first" not in files["arrays.safetensors"]
    released = [entry for entry in bed.sites["a"].ledger.entries() if entry.kind is Kind.CHARGE]
    assert len(released) == 2


def test_who_decides_is_told_of_frozen_weights_and_of_projections(tmp_path: Path) -> None:
    data = base()
    bed = made_bed(tmp_path, data)
    told = study(bed, data, 8.0)
    wanted = (
        f"the model adapters beside frozen weights, of each site's own file with SHA-256 {hashlib.sha256(data).hexdigest()}"
    )
    assert asked_facts(told)["computes"] == f"a model trained step by step on sums of gradients: {wanted}"
    projected = bed.compile(
        make_request(schema_of(INPUTS), "fedsgd", 8.0).model_copy(
            update={"parameters": {**dict(told.parameters), "projection": {"ratio": 4}}}
        )
    )
    assert asked_facts(projected)["computes"].endswith(f"{wanted}, by projected gradients")


def test_the_released_model_is_that_of_all_records_in_one_place(tmp_path: Path) -> None:
    data = base()
    bed = made_bed(tmp_path, data)
    told = study(bed, data)
    result = get_method("fedsgd").run(bed.local.prepare(bed.local.submit(told, bed.analyst)))
    weights.offer(hashlib.sha256(data).hexdigest(), tmp_path / "a.safetensors")
    sites = {
        name: PlainSite(Records(x, np.ones(x.shape, dtype=np.bool_), y.astype(np.int64)))
        for name, (x, y) in make_data(NAMES, ROWS, INPUTS).items()
    }
    plain = get_method("fedsgd").run(PlainFederation(told, sites, batched=False))
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(result.arrays[name], array)
    assert result.arrays["model.features.query.lora_B.weight"].any()


def test_a_site_without_the_file_refuses_before_it_enrols(tmp_path: Path) -> None:
    data = base()
    bed = made_bed(tmp_path, data, "ab")
    (tmp_path / "b.safetensors").write_bytes(base(**{"features.norm1.bias": np.ones(3)}))
    agreed = AgreedStudy(study(bed, data, 8.0))
    found = {name: list(term_faults(agreed, site.config, name, None)) for name, site in bed.sites.items()}
    assert found["a"] == []
    assert [fault.code for fault in found["b"]] == [fault.code for fault in found["c"]] == [RefusalCode.TASK]
    assert "No file of base weights has the SHA-256" in found["b"][0].message
    assert "none is configured" in found["c"][0].message


@pytest.fixture
def apart() -> Iterator[Any]:
    """Has a site compute its networks in processes of this starter."""
    made: list[Datasets] = []

    def make(bed: TestBed, starter: Any) -> None:
        for site in bed.sites.values():
            site.datasets = WorkerDatasets(starter)
            made.append(site.datasets)

    yield make
    for datasets in made:
        datasets.close()


@pytest.mark.parametrize("where", ["here", "apart"])
def test_a_file_that_lacks_an_array_is_refused_when_a_site_enrols(where: str, tmp_path: Path, apart: Any) -> None:
    """Its hash is the study's, and it is none of the model's: no record is read, and nothing reserved."""
    data = base(**{"features.first.weight": np.zeros((5, 3))})
    bed = made_bed(tmp_path, data)
    if where == "apart":
        apart(bed, ThreadStarter())
    attack = Adversary(bed, study(bed, data, 8.0))
    answer = attack.enrol("a")
    assert answer.call == "refuse"
    assert answer.refused is RefusalCode.TASK
    assert not attack.kinds("a")["reserve"]


def test_a_process_of_its_own_takes_the_file_and_gives_the_same(tmp_path: Path, apart: Any) -> None:
    """A real process, which knows no file but the one that the guard names, for one of the sites; the others compute here."""
    data = base()
    bed = made_bed(tmp_path, data)
    told = study(bed, data)
    here = bed.local.prepare(bed.local.submit(told, bed.analyst))
    first = build_architecture(ModelSpec.model_validate(told.tasks[0].parameters["model"]), INPUTS, 2).initial(0)
    sent = {f"model.{name}": value for name, value in first.items()}
    found = here.sum("gradient", sent).values
    other = tmp_path / "apart"
    other.mkdir()
    again = made_bed(other, data)
    again.sites["a"].datasets = datasets = WorkerDatasets(ProcessStarter())
    try:
        same = again.local.prepare(again.local.submit(study(again, data), again.analyst)).sum("gradient", sent).values
    finally:
        datasets.close()
    for name, array in found.items():
        np.testing.assert_array_equal(array, same[name])
    assert found["model.features.query.lora_B.weight"].any()


def test_the_commands_take_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """simulate without it says what is missing; with it, a result is applied with it, and is written for peft."""
    values = build_architecture(ModelSpec(name="block", inputs=(8, 8), options=OPTIONS), 64, 10).initial(4)
    file, folder = tmp_path / "base.safetensors", tmp_path / "found"
    file.write_bytes(save({name: value.astype(np.float32) for name, value in values.items()}))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    (tmp_path / "study.toml").write_text(f"""
name = "adapters"
method = "fedsgd"
dataset = "digits"

[privacy]
noise = "none"

[parameters]
steps = 2

[parameters.model]
name = "adapters"
inputs = [8, 8]

[parameters.model.options]
of = "block"
options = {{ heads = 1, hidden = 4 }}
weights = "{sha256}"
layers = ["features.query", "features.first"]
rank = 2
""")
    simulated = (
        "simulate",
        tmp_path / "study.toml",
        "--dataset",
        "digits",
        "--no-encryption",
        "--holdout",
        "0.3",
        "--sites",
        "2",
    )
    code, _, err = veilsum(capsys, *simulated, "--baselines", "none")
    assert code != 0
    assert f"No file is known that holds the base weights with SHA-256 {sha256}" in " ".join(err.split())
    code, _, err = veilsum(capsys, *simulated, "--baselines", "none", "--weights", file, "--out", folder)
    assert code == 0, err
    result = folder / "run-1"
    code, _, err = veilsum(capsys, "study", "export", result, "--out", tmp_path / "adapter", "--formats", "peft")
    assert code == 0, err
    assert {path.name for path in (tmp_path / "adapter").iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    header = "\n".join(",".join(row) for row in [[f"pixel_{place // 8}_{place % 8}" for place in range(64)], ["3"] * 64])
    (tmp_path / "new.csv").write_text(header + "\n")
    told = ("participant", "apply", result, "--data", tmp_path / "new.csv", "--out", tmp_path / "predicted.csv")
    code, _, err = veilsum(capsys, *told)
    assert (code, "--weights" in err) == (2, True)
    code, _, err = veilsum(capsys, *told, "--weights", file)
    assert code == 0, err
    assert len((tmp_path / "predicted.csv").read_text().splitlines()) == 2
