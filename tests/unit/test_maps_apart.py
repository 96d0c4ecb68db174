"""Networks computed in a process apart: the same sums to the bit for every kind of task, and records of which one ends it."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support import golden_sums
from support.apart import Answer, ThreadStarter
from support.local_trainings import D, given_arrays, parameters
from support.neighbours import NEIGHBOURS, Setting, network_settings, random_records, schema
from support.randomness import SeededRandom
from support.starting import Child, ProcessStarter
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import SealedMemory
from veilsum_participant.boundary.maps import Apply, Made, Prepare, Train
from veilsum_participant.settings.dataset_config import EncoderConfig
from veilsum_participant.worker import elsewhere as elsewhere_module
from veilsum_participant.worker import keeping
from veilsum_participant.worker.elsewhere import Computing, RoundMaps
from veilsum_participant.worker.remote import WorkerDatasets
from veilsum_participant.worker.rows import opened_rows, sealed_rows
from veilsum_participant.worker.starting import WorkerStarter
from veilsum_privacy.computation.contribution import SitePart, SitePlace, contribute, no_records
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.models import ModelSpec, resolve_model
from veilsum_privacy.training.objectives import OBJECTIVES

Making = Callable[[WorkerStarter], RoundMaps]

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def computing() -> Iterator[Making]:
    """Makes the maps of a round."""
    made: list[Computing] = []

    def make(starter: WorkerStarter, seconds: float = 600.0) -> RoundMaps:
        made.append(Computing(starter))
        return RoundMaps(made[-1], "records", "cpu", seconds)

    yield make
    for each in made:
        each.close()


def contributed(study: Study, broadcast: Mapping[str, Any], records: Records, elsewhere: RoundMaps | None) -> SitePart:
    plan = AgreedStudy(study).task(study.tasks[0].label).plan(study.sites, study.sites)
    place = SitePlace(0, random=SeededRandom(7), elsewhere=elsewhere)
    return contribute(plan, lambda: records, broadcast, place)


def check_same(one: SitePart, other: SitePart) -> None:
    assert one.fault is None
    assert other.fault is None
    np.testing.assert_array_equal(one.total, other.total)
    assert one.total.any()
    assert (one.clipped, one.invalid, one.cut) == (other.clipped, other.invalid, other.cut)
    assert one.state.keys() == other.state.keys()
    for name, values in one.state.items():
        assert values.tobytes() == other.state[name].tobytes()


def broadcast_of(setting: Setting, study: Study) -> dict[str, Any]:
    return {**setting.broadcast, **{name: np.stack([row] * study.sites) for name, row in setting.given.items()}}


def crossed(records: Records, setting: Setting) -> Records:
    """As a guard gets them of a reader."""
    assert records.features.shape[1] == setting.schema.width
    return opened_rows(sealed_rows(records), setting.schema, subjects=records.subjects is not None)


def test_a_sum_of_records_that_crossed_is_the_same(monkeypatch: pytest.MonkeyPatch, computing: Making) -> None:
    """Each task, both units: records from sealed memory, and what its networks give from elsewhere."""
    real, starter, seen = golden_sums._sum, ThreadStarter(), dict[str, str]()

    def both(study: Study, setting: Setting, broadcast: Mapping[str, Any], records: Records) -> Any:
        given = {**broadcast, **broadcast_of(setting, study)}
        there = contributed(study, given, crossed(records, setting), computing(starter))
        here = real(study, setting, broadcast, records)
        assert there.fault is None
        np.testing.assert_array_equal(there.total, here)
        return here

    monkeypatch.setattr(golden_sums, "_sum", both)
    for name, case in golden_sums.cases():
        if seen.setdefault(name.split("/")[0] + name.rpartition("/")[2].partition(",")[0], name) == name:
            assert case().any(), name
    assert {name.split("/")[0] for name in seen.values()} == set(NEIGHBOURS) | {"local-training"}


def network(task: str) -> Setting:
    return next(setting for setting in network_settings() if setting.task == task)


def some(setting: Setting, count: int = 70) -> Records:
    records = random_records(np.random.default_rng(2), count, setting.schema, complete=True)
    return replace(records, subjects=np.sort(np.random.default_rng(3).integers(0, count // 2, count)))


@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("task", ["gradient", "grams"])
def test_networks_give_the_same_elsewhere(task: str, unit: Any, computing: Making) -> None:
    setting = network(task)
    study, starter = setting.study(unit, grid=2**20, variance=10**9), ThreadStarter()
    given = broadcast_of(setting, study)
    check_same(
        contributed(study, given, some(setting), None),
        contributed(study, given, crossed(some(setting), setting), computing(starter)),
    )
    assert [worker.asked[:2] for worker in starter.started] == [["Prepare", "Apply"]]


def test_networks_give_the_same_in_a_real_process_and_after_it_was_killed(
    computing: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between two batches: the one that finds it gone is computed record by record in another process."""
    setting = network("grams")
    study = setting.study("record", grid=2**20, variance=10**9)
    given, records = broadcast_of(setting, study), some(setting, 130)
    started: list[Child] = []

    class Watched(ProcessStarter):
        def start(self, role: str, of: str = "") -> Child:
            started.append(super().start(role, of))
            return started[-1]

    real, asked = elsewhere_module.Compute._ask, list[str]()

    def ask(self: Any, request: Inquiry[Any], seconds: float) -> Any:
        asked.append(type(request).__name__)
        if asked.count("Apply") == 2 and len(started) == 1:
            started[0].process.kill()
            started[0].process.wait()
        return real(self, request, seconds)

    monkeypatch.setattr(elsewhere_module.Compute, "_ask", ask)
    there = contributed(study, given, records, computing(Watched()))
    assert there.fault is not None
    check_same(contributed(study, given, records, None), there._replace(fault=None))
    assert len(started) == 2


def local_setting(objective: str, **changes: Any) -> Setting:
    stated = parameters(objective, **changes)
    task = build_task("local-training", stated, schema(D))
    assert isinstance(task, LocalTraining)
    arrays = {name: array for name, array in given_arrays(task).items() if name != SEEDS}
    return Setting(objective, "local-training", schema(D), stated, arrays, {SEEDS: np.array([5.0, 6.0])})


def declaring(study: Study, **changes: Any) -> Study:
    return study.model_copy(update={"tasks": (study.tasks[0].model_copy(update=changes),)})


def training_study(setting: Setting, *, noised: bool) -> Study:
    task = build_task("local-training", setting.parameters, setting.schema)
    assert isinstance(task, LocalTraining)
    if not noised:
        return declaring(setting.study("record", grid=2**20, variance=0, noise="none"), resolution=2**20)
    study = setting.study("record", grid=2**20, variance=10**9)
    steps = task.noised_sums()
    return declaring(study, local_steps=steps, steps=steps, resolution=2**20, sampling_rate=0.5)


def allowed(objective: str, *, noised: bool) -> bool:
    if not noised:
        return True
    task = build_task("local-training", local_setting(objective).parameters, schema(D))
    return task.only_without_noise() is None


@pytest.mark.parametrize(
    ("objective", "noised"),
    [(name, noised) for name in sorted(OBJECTIVES) for noised in (False, True) if allowed(name, noised=noised)],
)
def test_training_learns_the_same_elsewhere(objective: str, noised: bool, computing: Making) -> None:
    """Of plain training all of it, under noise its maps at each step's values: vector, state and counts."""
    setting = local_setting(objective)
    study, starter = training_study(setting, noised=noised), ThreadStarter()
    given, records = broadcast_of(setting, study), some(setting, 40)
    here = contributed(study, given, records, None)
    check_same(here, contributed(study, given, crossed(records, setting), computing(starter)))
    asked = set(starter.asked("maps"))
    assert asked in ([{"Prepare", "Train"}] if not noised else [set(), {"Prepare", "Point", "Apply"}])


def test_a_network_that_trains_under_noise_learns_the_same_elsewhere(computing: Making) -> None:
    spec = resolve_model(ModelSpec(name="lenet5", inputs=(1, 12, 12), options={"conv1": 2, "conv2": 2, "fc1": 5, "fc2": 4}))
    stated = parameters("none") | {"model": spec.model_dump(mode="json"), "width": None, "alignment": None}
    stated = {name: value for name, value in stated.items() if name not in ("width", "alignment")}
    task = build_task("local-training", stated, schema(144))
    assert isinstance(task, LocalTraining)
    arrays = {name: array for name, array in given_arrays(task).items() if name != SEEDS}
    setting = Setting("network", "local-training", schema(144), stated, arrays, {SEEDS: np.array([5.0, 6.0])})
    study, starter = training_study(setting, noised=True), ThreadStarter()
    given, records = broadcast_of(setting, study), some(setting, 40)
    check_same(
        contributed(study, given, records, None), contributed(study, given, crossed(records, setting), computing(starter))
    )
    asked = starter.asked("maps")
    assert asked.count("Point") == task.noised_sums()
    assert asked.count("Prepare") == 1


# -- processes that are out of order -----------------------------------------------------------------------------------------


POISON = 0.987654321


def poisoned(request: Inquiry[Any]) -> bool:
    if not isinstance(request, Apply) or request.memory is None:
        return False
    return bool((np.frombuffer(request.memory.view(), np.float64) == POISON).any())


def made(values: Any, size: int) -> Made:
    return Made(size, SealedMemory.of(np.asarray(values).tobytes()))


WRONG: dict[str, Callable[[Inquiry[Any]], Message | None]] = {
    "ends": lambda _: None,
    "raises": lambda _: (_ for _ in ()).throw(Misuse("of that record")),
    "no memory": lambda _: Made(7),
    "a row less": lambda request: made(np.zeros((request.rows - 1, 3)), 3),
    "another width": lambda request: made(np.zeros((request.rows, 3)), 3),
    "no size": lambda _: Made(0),
}


@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("what", sorted([*WRONG, "hangs"]))
def test_a_record_on_which_a_process_is_out_of_order_is_as_if_it_were_not_there(
    what: str, unit: Any, computing: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = network("grams")
    study = setting.study(unit, grid=2**20, variance=10**9)
    given, records = broadcast_of(setting, study), some(setting)
    records = replace(records, subjects=np.arange(len(records)))
    bad = Records(records.features.copy(), records.present, records.labels, records.subjects)
    bad.features[33, 5] = POISON
    without = contributed(study, given, bad.take(np.arange(len(bad)) != 33), None)
    asleep = threading.Event()

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        if not poisoned(request):
            return honest(request)
        if what == "hangs":
            asleep.wait(60)
            return None
        return WRONG[what](request)

    if what == "hangs":
        monkeypatch.setattr(elsewhere_module, "LATER", 2.0)
        monkeypatch.setattr(elsewhere_module, "FIRST", 2.0)
    there = contributed(study, given, bad, computing(ThreadStarter(meddle)))
    asleep.set()
    assert there.fault is not None
    check_same(without, there._replace(fault=None, invalid=without.invalid))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_whatever_a_process_says_of_a_record_its_part_is_bounded(value: float, computing: Making) -> None:
    setting = network("grams")
    study = setting.study("record", grid=2**20, variance=10**9)
    given, records = broadcast_of(setting, study), some(setting)

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        answer = honest(request)
        if not isinstance(answer, Made) or answer.memory is None or not isinstance(request, Apply):
            return answer
        values = np.frombuffer(answer.memory.view(), np.float64).reshape(request.rows, -1).copy()
        values[0] = value
        return made(values, values.shape[1])

    there = contributed(study, given, records.take(slice(0, 1)), computing(ThreadStarter(meddle)))
    assert there.fault is None
    assert np.linalg.norm(there.total.astype(np.float64)) <= 2**20 * (1 + 1e-12)


def test_a_process_that_cannot_be_prepared_leaves_what_a_site_without_records_gives(
    computing: Making,
) -> None:
    setting = network("grams")
    study = setting.study("record", grid=2**20, variance=10**9)
    given = broadcast_of(setting, study)
    without = contributed(study, given, no_records(study), None)
    for dies in (Prepare, Apply):

        def meddle(request: Inquiry[Any], honest: Answer, dies: type[Inquiry[Any]] = dies) -> Message | None:
            return None if isinstance(request, dies) else honest(request)

        there = contributed(study, given, some(setting, 5), computing(ThreadStarter(meddle)))
        assert there.fault is not None
        assert there.lost
        np.testing.assert_array_equal(there.total, without.total)


@pytest.mark.parametrize("noise", ["none", "distributed"])
@pytest.mark.parametrize("fails", ["ends", "raises"])
def test_records_for_which_there_is_no_process_any_more_are_not_left_out_one_by_one(
    fails: str, noise: Any, computing: Making
) -> None:
    """Without noise the difference to another sum of the same sites would be theirs. What fails once leaves nobody out."""
    setting = network("grams")
    study = setting.study("record", grid=2**20, variance=0 if noise == "none" else 10**9, noise=noise)
    given, records = broadcast_of(setting, study), some(setting)
    whole, without = (contributed(study, given, each, None) for each in (records, no_records(study)))
    batches = last = 0

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        nonlocal batches
        batches += isinstance(request, Apply)
        return WRONG[fails](request) if isinstance(request, Apply) and 2 <= batches <= last else honest(request)

    assert not np.array_equal(whole.total, without.total)
    for last in (2, 3, 4, 5, 10_000):  # the second batch, a record of it alone, zeros after it, zeros in a new process, all
        batches = 0
        there = contributed(study, given, records, computing(ThreadStarter(meddle)))
        assert there.lost is (last > 4)
        assert np.array_equal(there.total, without.total) is there.lost


def test_a_round_whose_time_is_over_has_no_record_in_it(computing: Any) -> None:
    """Not the ones that were computed before: which these are would depend on others."""
    setting = network("grams")
    study = setting.study("record", grid=2**20, variance=10**9)
    given = broadcast_of(setting, study)
    there = contributed(study, given, some(setting), computing(ThreadStarter(), seconds=0.0))
    assert there.fault is not None
    np.testing.assert_array_equal(there.total, contributed(study, given, no_records(study), None).total)


@pytest.mark.parametrize("what", ["ends", "a vector less", "a state that is none", "not finite"])
def test_plain_training_that_fails_elsewhere_trains_on_nothing(what: str, computing: Making) -> None:
    setting = local_setting("none")
    study = training_study(setting, noised=False)
    given, records = broadcast_of(setting, study), some(setting, 20)

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        answer = honest(request)
        if not isinstance(request, Train):
            return answer
        vector = np.frombuffer(answer.vector, np.float64).copy()  # type: ignore[attr-defined]
        if what == "ends":
            return None
        if what == "not finite":
            vector[0] = np.nan
        state = b"not safetensors" if what == "a state that is none" else answer.state  # type: ignore[attr-defined]
        return replace(answer, vector=vector[what == "a vector less" :].tobytes(), state=state)  # type: ignore[type-var]

    there = contributed(study, given, records, computing(ThreadStarter(meddle)))
    assert there.fault is not None
    np.testing.assert_array_equal(there.total, contributed(study, given, no_records(study), None).total)


def test_processes_are_of_one_dataset_and_study_and_the_oldest_goes(computing: Any) -> None:
    starter = ThreadStarter()
    kept = Computing(starter)
    setting = network("grams")
    for number in range(keeping.MOST + 2):
        study = setting.study("record", grid=2**20, variance=10**9 + number)
        maps = RoundMaps(kept, f"d{number % 2}", "cpu", 600.0)
        contributed(study, broadcast_of(setting, study), some(setting, 2), maps)
    assert [worker.dataset for worker in starter.started] == [f"d{number % 2}" for number in range(keeping.MOST + 2)]
    assert [worker.ended.is_set() for worker in starter.started] == [True] * 2 + [False] * keeping.MOST
    kept.forget(study_digest(study.to_bytes()))
    assert [worker.ended.is_set() for worker in starter.started] == [True] * 2 + [False] * (keeping.MOST - 1) + [True]
    kept.close()
    assert all(worker.ended.is_set() for worker in starter.started)


# -- programs that encode ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Program]:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(net), buffer)
    path = tmp_path_factory.mktemp("program") / "own.pt"
    path.write_bytes(buffer.getvalue())
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    return path, Program(format="torchscript", sha256=digest, inputs=(6,), width=4)


def test_a_program_encodes_the_same_elsewhere(program: tuple[Path, Program]) -> None:
    path, declared = program
    starter = ThreadStarter()
    apart, rows = WorkerDatasets(starter), np.random.default_rng(0).uniform(-1, 1, (64, 6))
    encoders = {"own": EncoderConfig(path=path)}
    encode = apart.encoder("records", encoders, declared, "cpu")
    from veilsum_participant.data.encoders import load_encoder

    assert encode(rows).tobytes() == load_encoder(path, declared)(rows).tobytes()
    assert apart.encoder("records", encoders, declared, "cpu") is encode
    assert starter.asked("maps") == ["EncodeBy", "Apply"]
    apart.close()


def test_a_program_that_cannot_be_loaded_is_refused_without_its_words(program: tuple[Path, Program]) -> None:
    path, declared = program
    apart = WorkerDatasets(ThreadStarter())
    other = declared.model_copy(update={"inputs": (5,)})
    with pytest.raises(ConfigurationError, match="cannot be loaded"):
        apart.load_encoder("records", {"own": EncoderConfig(path=path)}, other, "cpu")
    apart.close()
