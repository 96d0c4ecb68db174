"""Simulations over a Ray cluster of this machine: the same results to the bit, typed errors, and lost workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.commands import shown
from support.studies import SITES, compiled, shifted_sites
from support.working import TravellingRandom, leave, square
from veilsum_coordinator.methods import get_method
from veilsum_deploy.simulation.engines import Engine, RayEngine, running
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.errors import HostileInput, StateError

# Found, not imported, for that takes seconds; the process pool, which test_engines.py holds to the same, runs by default.
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is an optional extra: pip install 'veilsum[ray]'"),
]

STARTS = 10


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # what is sent lies in tests/support
        with running(started()) as engine:
            yield engine


def started() -> RayEngine:
    """A cluster; Ray gives its agents 15 s to start, which a busy machine may miss, and is then asked again."""
    import ray

    for _ in range(STARTS - 1):
        with suppress(StateError):
            return RayEngine(workers=2)
        ray.shutdown()
    return RayEngine(workers=2)


STUDIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "records": ("fedcgs", {"clip": 1.0}, {"epsilon": 4.0}),
    "aligned": ("fedcgs", {"clip": 1.0, "alignment": {"reference": "slopes", "mode": "iterated", "rounds": 2}}, {}),
    "gradients": ("fedsgd", {"steps": 4, "sampling_rate": 0.5}, {"epsilon": 4.0}),
    "training with noise": ("fedavg", {"rounds": 2}, {"epsilon": 4.0, "noise": "local"}),
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_cluster_gives_the_same_to_the_bit(name: str, ray: Engine) -> None:
    method, parameters, privacy = STUDIES[name]
    study = compiled(method, parameters, **privacy)
    found = []
    for engine in (None, ray):
        sites = {site: PlainSite(own, TravellingRandom(site)) for site, own in shifted_sites(50).items()}
        federation = PlainFederation(study, sites, engine=engine)
        found.append((get_method(method).run(federation), federation.sums))
    assert len(found[0][1]) == len(found[1][1]) > 0
    for mine, theirs in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert found[0][0].arrays.keys() == found[1][0].arrays.keys()
    for key, array in found[0][0].arrays.items():
        np.testing.assert_array_equal(array, found[1][0].arrays[key])
    assert sorted(study.participants) == sorted(SITES)


def test_a_map_keeps_order_and_types_of_errors(ray: Engine) -> None:
    numbers = list(range(12))
    assert list(ray.map(square, numbers)) == [number**2 for number in numbers]
    assert sorted(ray.map(square, numbers, ordered=False)) == [number**2 for number in numbers]
    assert list(ray.map(square, [])) == []
    assert ray.share({"a": 1}).get() == {"a": 1}
    with pytest.raises(HostileInput, match="thirteen") as caught:
        list(ray.map(square, [12, 13, 14]))
    assert caught.value.advice == "Take twelve."
    assert list(ray.map(square, [3])) == [9]  # an error ends the map, not the engine


def test_what_a_lost_worker_had_is_worked_on_again(ray: Engine, tmp_path: Path) -> None:
    assert list(ray.map(partial(leave, tmp_path / "marker"), list(range(4)))) == list(range(4))
    assert (tmp_path / "marker").exists()


def test_a_sweep_over_a_cluster_is_the_local_one(ray: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text('name = "trial"\ndataset = "d"\nmethod = "fedcgs"\nprivacy = { noise = "none" }\n')
    found = []
    for options in (("--jobs", "1"), ("--engine", "ray", "--jobs", "2")):
        arguments = ("simulate", str(tmp_path / "study.toml"), "--dataset", "breast-cancer", "--vary", "parameters.clip=2,4")
        rows = shown(capsys, *arguments, "--seeds", 2, *options)["rows"]
        found.append([{key: value for key, value in row.items() if key != "seconds"} for row in rows])
    assert found[0] == found[1]
    assert len(found[0]) == 4
