"""What fails on a record costs that record alone: a site contributes what it would had the record never been there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from PIL import Image

from support.local_trainings import D, given_arrays, parameters
from support.neighbours import SETTINGS, TASK_LABEL, Setting, random_records, schema, spoil
from support.randomness import SeededRandom
from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_participant.data import images
from veilsum_participant.data.images import read_image
from veilsum_participant.data.slices import NoPixels
from veilsum_privacy.computation.contribution import SitePart, SitePlace, contribute
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.study import NoiseKind, Study, Unit
from veilsum_privacy.tasks import build_task, plain_training
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records, RowTask
from veilsum_privacy.tasks.local_training import SEEDS, LocalTraining
from veilsum_privacy.training.objectives import OBJECTIVES


def broadcast_of(setting: Setting, sites: int) -> dict[str, Floats]:
    return {**setting.broadcast, **{name: np.stack([row] * sites) for name, row in setting.given.items()}}


def test_a_persons_records_stay_together() -> None:
    """The first of each person's records counts, whatever other records hold; one by one each would be its person's first."""
    setting = next(s for s in SETTINGS if s.task == "tables")
    parameters = {
        "queries": [{"name": "persons", "kind": "count", "over": ["k0"], "scale": 1}],
        "sensitivity": 1,
        "at_most": 1,
    }
    tables = Setting("persons", "tables", setting.schema, parameters)
    study = tables.study("subject", grid=2**10, variance=10**9)
    plan = tables.plan(study)
    rng = np.random.default_rng(0)
    people, visits = 50, 30
    records = random_records(rng, people * visits, setting.schema, complete=True)
    records = Records(records.features, records.present, records.labels, np.repeat(np.arange(people), visits))
    for place, value in ((7, np.nan), (7, np.inf), (0, np.nan), (visits * people - 1, 1e308)):
        spoilt = Records(records.features.copy(), records.present, records.labels, records.subjects)
        spoilt.features[place, 0] = value
        found = contribute(plan, lambda spoilt=spoilt: spoilt, {}, SitePlace())  # type: ignore[misc]
        assert found.fault is None
        assert found.total.sum() == (people - (place == 0)) * plan.declaration.grid


def test_a_planted_fault_in_each_record_of_the_most_hostile_data() -> None:
    """Nothing is planted here: poisoned records alone, in every task, raise nothing that would need any of this."""
    for setting in SETTINGS[::7]:
        rng = np.random.default_rng(1)
        study = setting.study("record", grid=2**16, variance=10**9)
        plan = setting.plan(study)
        records = spoil(random_records(rng, 60, setting.schema), rng)
        assert contribute(plan, lambda records=records: records, broadcast_of(setting, 4), SitePlace()).fault is None  # type: ignore[misc]


# -- a record that makes a map raise ----------------------------------------------------------------------------------------

TRIGGER = 0.50390625
"""The first feature of the record on which a map raises; exact in single precision."""


def failing(real: Callable[..., Any], at: int) -> Callable[..., Any]:
    """A function that raises where the argument at a place holds the record."""

    def fails(*given: Any) -> Any:
        if (np.asarray(given[at])[:, 0] == TRIGGER).any():
            raise ArithmeticError("a record is here")
        return real(*given)

    return fails


def twice(x: Floats) -> Floats:
    return 2.0 * x


def encoded_study(setting: Setting, unit: Unit, noise: NoiseKind = "local") -> Study:
    """A study whose records a program encodes, which keeps their number of features."""
    study = setting.study(unit, grid=2**20, variance=0 if noise == "none" else 10**9, noise=noise)
    width = setting.schema.width
    return study.model_copy(update={"encoder": Program(format="torchscript", sha256="0" * 64, inputs=(width,), width=width)})


def declaring(study: Study, **changes: Any) -> Study:
    return study.model_copy(update={"tasks": (study.tasks[0].model_copy(update=changes),)})


def contributed(study: Study, records: Records, broadcast: Mapping[str, Floats], place: SitePlace) -> SitePart:
    return contribute(AgreedStudy(study).task(TASK_LABEL).plan(4, 4), lambda: records, broadcast, place)


def with_one_more(setting: Setting, unit: Unit, rng: np.random.Generator) -> tuple[Records, Records]:
    """Records; and the same with one more on which maps raise, of a subject of two others where units are subjects."""
    company = random_records(rng, 150, setting.schema, complete=True)
    place = int(rng.integers(1, len(company) - 1))
    features = np.insert(company.features, place, 0.25, axis=0)
    features[place, 0] = TRIGGER
    subjects = np.arange(len(company)) // 3 if unit == "subject" else None
    more = Records(
        features,
        np.ones(features.shape, dtype=np.bool_),
        None if company.labels is None else np.insert(company.labels, place, company.labels[place]),
        None if subjects is None else np.insert(subjects, place, subjects[place]),
    )
    return Records(company.features, company.present, company.labels, subjects), more


def check_left_out(parts: Sequence[SitePart]) -> None:
    """Without the record, and with it where maps raise on it: the same vector and state, and the site's log tells of it."""
    np.testing.assert_array_equal(parts[0].total, parts[1].total)
    assert parts[0].total.any()
    assert parts[0].state.keys() == parts[1].state.keys()
    for name, array in parts[0].state.items():
        np.testing.assert_array_equal(array, parts[1].state[name])
    assert parts[0].fault is None
    assert isinstance(parts[1].fault, ArithmeticError)


def of_encoded(setting: Setting) -> Setting | None:
    """A setting for records that a program encodes into as many features; None where it takes none such."""
    stated = {"clip": 2.0, **setting.parameters, "width": setting.schema.width}
    try:
        task = build_task(setting.task, stated, setting.schema)
    except HostileInput:
        return None
    return replace(setting, parameters=stated) if isinstance(task, RowTask) and task.features is not None else None


ENCODED = [own for setting in SETTINGS if (own := of_encoded(setting)) is not None]


@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("setting", ENCODED, ids=lambda setting: f"{setting.task}-{setting.name}")
def test_a_record_that_an_encoder_raises_on_is_as_if_it_were_not_there(setting: Setting, unit: Unit) -> None:
    rng = np.random.default_rng(3)
    study = encoded_study(setting, unit)
    records = with_one_more(setting, unit, rng)
    encoders = (twice, failing(twice, 0))
    rows = broadcast_of(setting, study.sites)
    check_left_out(
        [contributed(study, own, rows, SitePlace(encode=encode)) for own, encode in zip(records, encoders, strict=True)]
    )


def test_every_task_of_encoded_records_is_tried() -> None:
    kinds = {setting.task for setting in ENCODED}
    assert {"gradient", "grams", "feature-means", "class-moments", "prototypes"} <= kinds


def local_setting(objective: str, **changes: Any) -> Setting:
    stated = parameters(objective, **changes)
    task = build_task("local-training", stated, schema(D))
    assert isinstance(task, LocalTraining)
    arrays = {name: array for name, array in given_arrays(task).items() if name != SEEDS}
    return Setting(objective, "local-training", schema(D), stated, arrays, {SEEDS: np.array([5.0, 6.0])})


def plain_cases() -> Iterator[tuple[str, str]]:
    for name in sorted(OBJECTIVES):
        task = build_task("local-training", local_setting(name).parameters, schema(D))
        assert isinstance(task, LocalTraining)
        yield from ((name, where) for where in ("encoder", "gradient", *(["rows"] if task.objective.row_size() else [])))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("weighting", ["equal", "records"])
@pytest.mark.parametrize(("objective", "where"), list(plain_cases()))
def test_a_record_that_plain_training_raises_on_is_as_if_it_were_not_there(
    objective: str, weighting: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In epochs on batches, under every objective: a gradient of its batch, its encoder, or the objective's rows."""
    setting = local_setting(objective, weighting=weighting)
    task = build_task("local-training", setting.parameters, setting.schema)
    assert isinstance(task, LocalTraining)
    study = setting.study("record", grid=2**20, variance=0, noise="none")
    places = [SitePlace(), SitePlace()]
    if where == "encoder":
        study = encoded_study(setting, "record", "none")
        places = [SitePlace(encode=twice), SitePlace(encode=failing(twice, 0))]
    records = with_one_more(setting, "record", np.random.default_rng(4))
    if where == "gradient":
        real = plain_training.mean_gradient
        monkeypatch.setattr(plain_training, "mean_gradient", lambda *given: failing(real(*given), 1))
    if where == "rows":
        kind = type(task.objective)
        begin = kind.begin

        def begun(self: Any, received: Any) -> Any:
            made = begin(self, received)
            rows = made.rows
            return dataclasses.replace(made, rows=lambda end: failing(rows(end), 0))

        monkeypatch.setattr(kind, "begin", begun)
    study, rows = declaring(study, resolution=2**20), broadcast_of(setting, study.sites)
    check_left_out([contributed(study, own, rows, place) for own, place in zip(records, places, strict=True)])


def test_training_that_raises_on_all_records_is_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out one by one they would leave a sum without noise in which the site has none, beside another in which it has."""

    def raises(*_: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(plain_training, "mean_gradient", lambda *_: raises)
    setting = local_setting("none")
    study = declaring(setting.study("record", grid=2**20, variance=0, noise="none"), resolution=2**20)
    records = random_records(np.random.default_rng(4), 20, setting.schema, complete=True)
    found = contributed(study, records, broadcast_of(setting, study.sites), SitePlace())
    assert found.lost
    assert isinstance(found.fault, MemoryError)


@pytest.mark.parametrize("where", ["encoder", "rows"])
def test_a_record_that_noised_training_raises_on_is_as_if_it_were_not_there(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records are in each sample, so that both worlds draw the same noise."""
    setting = local_setting("proto")
    task = build_task("local-training", setting.parameters, setting.schema)
    assert isinstance(task, LocalTraining)
    steps, places = task.noised_sums(), [SitePlace(random=SeededRandom(1)) for _ in range(2)]
    study = setting.study("record", grid=2**20, variance=10**9)
    if where == "rows":
        real = LocalTraining._rows_of
        monkeypatch.setattr(LocalTraining, "_rows_of", lambda self, rows, size: real(self, failing(rows, 0), size))
    else:
        study = encoded_study(setting, "record")
        places = [replace(place, encode=encode) for place, encode in zip(places, (twice, failing(twice, 0)), strict=True)]
    study = declaring(study, local_steps=steps, steps=steps, resolution=2**20)
    records, rows = with_one_more(setting, "record", np.random.default_rng(5)), broadcast_of(setting, study.sites)
    parts = [contributed(study, own, rows, place) for own, place in zip(records, places, strict=True)]
    check_left_out(parts)


def test_an_image_that_its_decoder_raises_on_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one.png", "two.png"):
        Image.new("L", (3, 3), 90).save(tmp_path / name)
    real = images._open_picture

    def raises(file: IO[bytes], head: bytes) -> Any:
        raise RuntimeError("the decoder's own")

    assert isinstance(read_image(tmp_path, "one.png", (1, 3, 3)), np.ndarray)
    monkeypatch.setattr(images, "_open_picture", raises)
    assert isinstance(read_image(tmp_path, "two.png", (1, 3, 3)), NoPixels)
    assert real is not raises
