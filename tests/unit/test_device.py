"""Where networks are computed: what is asked for and missing, that everything goes to the device, and that clipping does not.

No GPU is at hand here. torch's device "meta" stands for one: it takes shapes and gives no values, and an operation that mixes
it with the CPU raises. So whatever runs on it until values are fetched has no tensor left on the CPU.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from typer.testing import CliRunner

from support.gradient_sums import clipped_gradient_sum, engine_sum
from veilsum_deploy.cli import simulate as command
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.data.encoders import ProgramEncoder
from veilsum_participant.data.programs import read_program
from veilsum_participant.session.client import open_site
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.training import batches, device
from veilsum_privacy.training.arrays import flatten, load
from veilsum_privacy.training.epochs import mean_gradient
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture
from veilsum_privacy.training.objectives import OBJECTIVES, ObjectiveSpec, build_objective, resolve_objective
from veilsum_privacy.training.objectives.base import Received
from veilsum_privacy.training.per_record import Part, PerRecordGradients, Rows
from veilsum_privacy.training.places import records_at_once
from veilsum_privacy.training.predict import scores

FETCHED = "Cannot copy out of meta tensor"


@pytest.fixture
def meta(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.device]]:
    """Networks are on "meta"; the devices of every layer's inputs are noted."""
    monkeypatch.setattr(device, "_chosen", "meta")
    seen: list[torch.device] = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, given: seen.extend([value.device for value in (*given, *module.parameters())])
    )
    yield seen
    hook.remove()


def network() -> Architecture:
    return build_architecture(ModelSpec(name="lenet5", inputs=(1, 16, 16)), 256, 4)


def records(architecture: Architecture, n: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.standard_normal((n, architecture.width)), rng.integers(4, size=n)


@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:7"])
def test_a_gpu_that_is_not_there_is_said_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigurationError, match=f"no device {name}: torch .* finds no GPUs here") as told:
        device.choose(name)
    assert "use auto or cpu" in told.value.advice
    assert device.chosen() == "cpu"


def test_auto_takes_the_first_gpu_that_torch_finds_else_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device.choose("auto") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    before = torch.backends.cudnn.allow_tf32
    try:
        assert [device.choose(name) for name in ("auto", "cuda", "cuda:1")] == ["cuda:0", "cuda:0", "cuda:1"]
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.matmul.allow_tf32
        with pytest.raises(ConfigurationError, match="finds 2 GPUs here"):
            device.choose("cuda:2")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.allow_tf32 = before
        assert device.choose("cpu") == "cpu"


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:0:1", "mps", ""])
def test_other_names_are_none(name: str) -> None:
    with pytest.raises(ConfigurationError, match="No device is called"):
        device.choose(name)
    with pytest.raises(ValidationError):
        ParticipantConfig.model_validate({"coordinator": "localhost:1", "datasets": {"a": {"path": "a"}}, "device": name})


def test_gradients_are_computed_on_the_device(meta: list[torch.device]) -> None:
    architecture = network()
    arrays = architecture.initial(0)
    with pytest.raises(NotImplementedError, match=FETCHED):
        clipped_gradient_sum(architecture, arrays, *records(architecture), 1.0)
    assert {where.type for where in meta} == {"meta"}


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_losses_of_objectives_are_computed_on_the_device(name: str, meta: list[torch.device]) -> None:
    architecture = network()
    own = build_objective(resolve_objective(ObjectiveSpec(name=name)), architecture)
    start = flatten(own.trained().initial(0), own.trained().shapes())
    broadcast = {key: np.ones(shape) for key, shape in own.broadcast().items()}
    gradient = mean_gradient(own.trained(), own.begin(Received(start, broadcast, {})))
    with pytest.raises(NotImplementedError, match=FETCHED):
        gradient(start, *records(architecture))
    assert {where.type for where in meta} == {"meta"}


def test_scores_are_computed_on_the_device(meta: list[torch.device], monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = network()
    with pytest.raises(NotImplementedError, match=FETCHED):
        records_at_once(architecture)
    monkeypatch.setattr("veilsum_privacy.training.places.records_at_once", lambda _: 4)
    with pytest.raises(NotImplementedError, match=FETCHED):
        scores(architecture, architecture.initial(0), records(architecture)[0])
    assert {where.type for where in meta} == {"meta"}


def test_what_a_device_gives_is_clipped_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that a device returned a thousand times too long add no more than the clip to the sum."""
    architecture = network()
    x, labels = records(architecture)
    honest = clipped_gradient_sum(architecture, architecture.initial(0), x, labels, 1e6)
    assert np.linalg.norm(honest.total) > 0.05
    engine = PerRecordGradients(batches.compute_module(architecture))
    load(engine.module, architecture.initial(0))
    found = engine._parts

    def off(*given: Any) -> list[Part]:
        return [part._replace(**_longer(part)) for part in found(*given)]

    engine.terms(lambda a, b: nn.functional.cross_entropy(engine.module(a), b, reduction="none"), x.shape[1:])
    monkeypatch.setattr(engine, "_parts", off)
    told = engine_sum(engine, lambda a, b: nn.functional.cross_entropy(engine.module(a), b, reduction="none"), x, labels, 0.01)
    assert told.clipped == len(x)
    assert np.linalg.norm(told.total) <= 0.01 * len(x)


def _longer(part: Part) -> dict[str, Any]:
    return {"values": 1000.0 * part.values} if isinstance(part, Rows) else {"delta": 1000.0 * part.delta}


def test_encoders_are_read_onto_the_device(meta: list[torch.device]) -> None:
    written = io.BytesIO()
    torch.export.save(torch.export.export(nn.Linear(3, 2).eval(), (torch.zeros(1, 3),)), written)
    program = read_program(written.getvalue(), "exported", "meta")
    assert {tensor.device.type for tensor in program.tensors} == {"meta"}
    declared = Program(kind="program", sha256="0" * 64, format="exported", inputs=(3,), width=2)
    with pytest.raises(ConfigurationError, match="does not run"):
        ProgramEncoder(written.getvalue(), declared)


def test_simulate_and_ray_have_no_device_between_them() -> None:
    given = ["study.toml", "--dataset", "digits", "--engine", "ray", "--device", "auto"]
    with pytest.raises(Misuse, match="--device belongs"):
        CliRunner().invoke(command.app, given, catch_exceptions=False)


def test_a_site_whose_gpu_is_missing_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    config = ParticipantConfig.model_validate(
        {"coordinator": "localhost:1", "datasets": {"a": {"path": "a"}}, "device": "cuda:0", "identity": str(tmp_path)}
    )
    with pytest.raises(ConfigurationError, match="no device cuda:0"):
        open_site(config)
    found = [check for check in SiteCheck(config, lambda: 0).run() if check.check == "device"]
    assert [(check.status, "no device cuda:0" in check.detail) for check in found] == [(CheckOutcome.FAILED, True)]
