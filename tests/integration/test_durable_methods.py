"""Every method, its coordinator killed in every phase: the same result to the bit, every release paid for once.

Each study here dies at every third place, one after another; three neighbours in the list have them all. Marked ``system``,
each pair of a study and a place has a trial of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.durable import OF_RESULT, OF_ROUND, OF_STUDY, Died, Doom, Trial, make_trial, same_result
from support.durable_studies import STUDIES
from support.federation import make_bed, make_data
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.storage import outage
from veilsum_participant.settings.config import NEEDED
from veilsum_privacy.results.result import Result, saved_checkpoints

FEW = ("fedavg scaffold",)
"""One-shot after an alignment, with state at the sites; an iterated one is in test_durable_studies.py."""

Expected = Callable[[str], tuple[Result, int]]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk is none that is away: what a site in this process is told then, nobody asks again."""
    monkeypatch.setattr(outage, "HOLD_SECONDS", 120.0)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """A study's result and number of rounds where the coordinator never dies."""
    known: dict[str, tuple[Result, int]] = {}

    def of(name: str) -> tuple[Result, int]:
        if name not in known:
            trial = make_trial(tmp_path_factory.mktemp("expected"), STUDIES[name])
            key = trial.submit()
            trial.finish(key)
            known[name] = trial.result(key), trial.released(key)
        return known[name]

    return of


def places(rounds: int) -> list[tuple[str, Doom, int]]:
    """All places of a study in order: name, how to die there, number of the round."""
    of_rounds = [(f"{name} {number}", doom, number) for number in sorted({1, rounds}) for name, doom in OF_ROUND.items()]
    before = [(name, doom, 0) for name, doom in OF_STUDY.items()]
    return [*before, *of_rounds, *((name, doom, rounds) for name, doom in OF_RESULT.items())]


def die(trial: Trial, key: bytes, doom: Doom, number: int) -> None:
    local = trial.open()
    doom(local, key, number)
    with pytest.raises(Died):
        trial.live(local, key)


def test_every_method_is_here() -> None:
    assert {name.split(" ")[0] for name in STUDIES} == set(METHODS)


def test_every_study_computes_what_sites_know_its_method_by(tmp_path: Path) -> None:
    """A site's check warns of a method of which its policy allows no study: by this table, which knows no registry."""
    bed = make_bed(tmp_path, make_data("abcd", 24, 4))
    assert set(NEEDED) == set(METHODS)
    for name, make in STUDIES.items():
        study = make(bed)
        tasks = {task.task for task in study.tasks}
        assert all(tasks & set(group) for group in NEEDED[study.method]), name


@pytest.mark.parametrize("name", [pytest.param(name, marks=[] if name in FEW else pytest.mark.system) for name in STUDIES])
def test_dying_in_every_third_phase(tmp_path: Path, expected: Expected, name: str) -> None:
    result, rounds = expected(name)
    trial = make_trial(tmp_path, STUDIES[name])
    key = trial.submit()
    for _, doom, number in places(rounds)[list(STUDIES).index(name) % 3 :: 3]:
        die(trial, key, doom, number)
    trial.finish(key)
    same_result(trial.result(key), result)
    trial.audit(key)
    assert len(saved_checkpoints(trial.results, key)) <= 3


@pytest.mark.system
@pytest.mark.parametrize("name", STUDIES)
def test_dying_in_each_phase_alone(tmp_path: Path, expected: Expected, name: str) -> None:
    result, rounds = expected(name)
    for index, (place, doom, number) in enumerate(places(rounds)):
        trial = make_trial(tmp_path / str(index), STUDIES[name])
        key = trial.submit()
        die(trial, key, doom, number)
        trial.finish(key)
        try:
            same_result(trial.result(key), result)
            trial.audit(key)
        except AssertionError as error:
            raise AssertionError(f"{name}, {place}: {error}") from error
    print(f"{name}: {len(places(rounds))} places")
