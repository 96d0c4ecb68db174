"""A study over a frozen program: every site runs its own file, sums are over its features, and a site without it refuses."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.kernel_approximation import RBFSampler
from torch import nn

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary
from veilsum_node.errors import ConfigurationError, HostileInput, RefusalCode
from veilsum_participant.data import encoders as encoders_module
from veilsum_participant.data import local as local_module
from veilsum_participant.protocol.policy import term_faults
from veilsum_participant.settings.dataset_config import EncoderConfig
from veilsum_privacy.ledger import Kind
from veilsum_privacy.study.encoder import Program, RandomFeatures
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.feature_maps import waves

INPUTS, WIDTH, ROWS = 6, 4, 30
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def program() -> tuple[nn.Module, bytes, Program]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, WIDTH)).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(net), buffer)
    data = buffer.getvalue()
    digest = hashlib.sha256(data).hexdigest()
    return net, data, Program(format="torchscript", sha256=digest, inputs=(2, 3), width=WIDTH)


def _bed(tmp_path: Path, data: bytes, sites: str) -> TestBed:
    bed = make_bed(tmp_path, make_data("abc", ROWS, INPUTS))
    for name in sites:
        path = tmp_path / f"{name}.pt"
        path.write_bytes(data)
        site = bed.sites[name]
        bed.sites[name].config = site.config.model_copy(update={"encoders": {"own-name": EncoderConfig(path=path)}})
    return bed


def _study(bed: TestBed, declared: Program) -> Study:
    request = make_request(schema_of(INPUTS), "fedcgs", None)
    request = request.model_copy(update={"encoder": declared, "parameters": {"clip": 0.5}})
    return bed.compile(request)


def test_the_sums_are_of_the_programs_features(tmp_path: Path, program: tuple[nn.Module, bytes, Program]) -> None:
    net, data, declared = program
    flat = declared.model_copy(update={"inputs": (INPUTS,)})
    bed = _bed(tmp_path, data, "abc")
    study = _study(bed, flat)
    local = bed.local
    task = study.tasks[0]
    release = local.prepare(local.submit(study, bed.analyst)).sum(task.label)
    x = np.concatenate([features for features, _ in make_data("abc", ROWS, INPUTS).values()])
    y = np.concatenate([labels for _, labels in make_data("abc", ROWS, INPUTS).values()])
    with torch.no_grad():
        features = net(torch.from_numpy(x.astype(np.float32))).numpy().astype(np.float64)
    clip = float.fromhex(task.parameters["clip"])
    features *= np.minimum(1.0, clip / np.linalg.norm(features, axis=1))[:, None]
    sums = np.array([features[y == label].sum(axis=0) for label in (0, 1)])
    np.testing.assert_allclose(release.values["sums"], sums, atol=2e-3)
    assert release.cohort == ("a", "b", "c")


def test_the_sums_are_of_random_features_that_every_site_draws(tmp_path: Path) -> None:
    """Through enrolment, its trials and encryption; scikit-learn's features with the same draws, of each site's records."""
    bed = _bed(tmp_path, b"", "abc")
    declared = RandomFeatures(width=20, gamma=0.4, seed=3, inputs=INPUTS)
    study = bed.compile(make_request(schema_of(INPUTS), "fedcgs", None).model_copy(update={"encoder": declared}))
    release = bed.local.prepare(bed.local.submit(study, bed.analyst)).sum(study.tasks[0].label)
    made = RBFSampler(gamma=0.4, n_components=20).fit(np.zeros((1, INPUTS)))
    matrix, made.random_offset_ = waves(declared)
    made.random_weights_ = matrix.T
    own = make_data("abc", ROWS, INPUTS).values()
    features = made.transform(np.concatenate([x for x, _ in own]).clip(-1.0, 1.0))
    y = np.concatenate([labels for _, labels in own])
    sums = np.array([features[y == label].sum(axis=0) for label in (0, 1)])
    np.testing.assert_allclose(release.values["sums"], sums, atol=2e-3)


def test_a_site_without_the_file_refuses_before_it_enrols(tmp_path: Path, program: tuple[nn.Module, bytes, Program]) -> None:
    _, data, declared = program
    flat = declared.model_copy(update={"inputs": (INPUTS,)})
    bed = _bed(tmp_path, data, "ab")
    (tmp_path / "b.pt").write_bytes(data + b"x")
    study = _study(bed, flat)
    found = {name: list(term_faults(AgreedStudy(study), site.config, name, None)) for name, site in bed.sites.items()}
    assert found["a"] == []
    assert [fault.code for fault in found["b"]] == [fault.code for fault in found["c"]] == [RefusalCode.TASK]
    assert hashlib.sha256(data + b"x").hexdigest() in found["b"][0].message
    assert "none is configured" in found["c"][0].message


class Counting(nn.Module):
    """Adds how many records it saw before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1.0
        return x[:, :4] + 1e-3 * self.seen


def test_a_program_that_joins_records_is_refused_when_a_site_enrols(
    tmp_path: Path, program: tuple[nn.Module, bytes, Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any charge, and without a record read; a program that keeps nothing is enrolled for, and loaded once."""
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(Counting()), buffer)
    read: list[str] = []
    monkeypatch.setattr(local_module, "load_records", lambda *_, **__: read.append("read"))
    loaded: list[Program] = []
    real = encoders_module.find_encoder
    monkeypatch.setattr(
        encoders_module, "find_encoder", lambda encoders, named: (loaded.append(named), real(encoders, named))[1]
    )
    _, honest, declared = program
    for data, said in ((buffer.getvalue(), "refuse"), (honest, "enrol")):
        named = declared.model_copy(update={"inputs": (INPUTS,), "sha256": hashlib.sha256(data).hexdigest()})
        folder = tmp_path / said
        folder.mkdir()
        bed = _bed(folder, data, "abc")
        attack = Adversary(bed, _study(bed, named))
        answer = attack.enrol("a")
        assert answer.call == said
        assert said == "enrol" or answer.codes == (RefusalCode.TASK,)
        assert not bed.sites["a"].ledger.entries(kind=Kind.RESERVE)
        if said == "enrol":
            assert bed.sites["a"].encoder(attack.study) is not None
    assert not read
    assert len(loaded) == 2


def test_a_program_of_other_columns_is_refused_by_everyone(tmp_path: Path, program: tuple[nn.Module, bytes, Program]) -> None:
    _, data, declared = program
    bed = _bed(tmp_path, data, "abc")
    assert declared.size == INPUTS
    study = _study(bed, declared)
    wrong = declared.model_copy(update={"inputs": (7,)})
    with pytest.raises(ConfigurationError, match=r"takes 7 features; the schema has 6"):
        _study(bed, wrong)
    forged = study.model_copy(update={"encoder": wrong})
    with pytest.raises(HostileInput, match="the encoder takes 7 features; the columns give 6"):
        parse_study(forged.to_bytes())
