"""Models broadcast as float32: which studies state it, of which arrays, and that everyone goes on from the same values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest

from support.randomness import SeededRandom
from support.studies import compiled, shifted_sites
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Release
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.errors import HostileInput
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy

MODEL: dict[str, Any] = {"model": {"name": "mlp", "options": {"hidden": 5}}, "seed": 3}
TRAINED: dict[str, dict[str, Any]] = {
    "fedsgd": {"steps": 12, "gradient_clip": 0.5, "centre": False, **MODEL},
    "fedavg": {"rounds": 4, "objective": {"name": "scaffold"}, **MODEL},
}


class Watched(PlainFederation):
    """Remembers what the method broadcast."""

    def __init__(self, study: Study) -> None:
        super().__init__(study, {name: PlainSite(own, SeededRandom(name.encode())) for name, own in shifted_sites(60).items()})
        self.broadcasts: list[dict[str, Floats]] = []

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        self.broadcasts.append(dict(broadcast or {}))
        return super().sum(label, broadcast, members=members)


def run(study: Study) -> tuple[Result, list[dict[str, Floats]]]:
    watched = Watched(study)
    return get_method(study.method).run(watched), watched.broadcasts


def of_old(study: Study) -> Study:
    """The study as it was compiled before models were broadcast in single precision."""
    tasks = tuple(task.model_copy(update={"single_precision": False}) for task in study.tasks)
    return study.model_copy(update={"tasks": tasks})


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.parametrize("epsilon", [None, 8.0])
def test_a_method_goes_on_from_the_values_that_its_sites_have(method: str, epsilon: float | None) -> None:
    """So the result is that of an old study but for the rounding of its models, and of some values to the next grid unit."""
    parameters = dict(TRAINED[method])
    if method == "fedavg" and epsilon is not None:
        parameters["objective"] = {"name": "none"}
    study = compiled(method, parameters, **({"noise": "none"} if epsilon is None else {"epsilon": epsilon}))
    assert [task.single_precision for task in study.tasks] == [True]
    task = AgreedStudy(study).tasks[0]
    (result, sent), (before, sent_before) = run(study), run(of_old(study))
    for arrays in sent:
        models = {name for name in arrays if name.startswith("model.")}
        assert models <= task.single <= set(arrays)
        for name in models:
            np.testing.assert_array_equal(arrays[name], arrays[name].astype(np.float32), err_msg="not what sites receive")
    moved = np.concatenate([array.ravel() for array in sent[-1].values()])
    apart = moved - np.concatenate([array.ravel() for array in sent_before[-1].values()])
    assert apart.any()
    for name, array in before.arrays.items():
        np.testing.assert_allclose(result.arrays[name], array, atol=3e-4 * np.abs(array).max())


def test_what_must_be_exact_stays_so() -> None:
    """Seeds are whole numbers up to 2^53; a centre, weights and everything else outside a model too."""
    study = compiled("fedavg", TRAINED["fedavg"])
    task = AgreedStudy(study).tasks[0]
    seeds = {"training.seeds": np.array([[2.0**53 - 1, 2.0**52 + 1]])}
    model = {name: np.full(3, 0.1) for name in task.single}
    assert "training.seeds" not in task.single
    found = task.as_broadcast({**seeds, **model})
    np.testing.assert_array_equal(found["training.seeds"], seeds["training.seeds"])
    assert all(float(array[0]) == float(np.float32(0.1)) for name, array in found.items() if name in model)
    old = AgreedStudy(of_old(study)).tasks[0]
    assert (old.single, old.as_broadcast(model)) == (frozenset(), model)


def test_studies_of_old_keep_their_bytes() -> None:
    study = compiled("fedsgd", TRAINED["fedsgd"])
    assert parse_study(study.to_bytes()).tasks[0].single_precision
    assert b"single_precision" not in of_old(study).to_bytes()
    with pytest.raises(HostileInput, match="leave something to defaults"):
        parse_study(study.to_bytes().replace(b'"single_precision":true', b'"single_precision":false'))


def test_only_a_task_with_a_model_has_it() -> None:
    study = compiled("fedcgs", {})
    assert not any(task.single_precision for task in study.tasks)
    tasks = tuple(task.model_copy(update={"single_precision": True}) for task in study.tasks)
    with pytest.raises(HostileInput, match="broadcasts no model"):
        AgreedStudy(study.model_copy(update={"tasks": tasks})).task(tasks[-1].label)
