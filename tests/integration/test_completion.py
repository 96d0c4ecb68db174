"""A study that failed in a formula after its sites were charged is completed from its journal by the next coordinator."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.durable import Trial, make_trial, same
from support.federation import TestBed, make_request, schema_of
from support.proving import proven
from veilsum.local.federation import results_directory
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.service import runner
from veilsum_coordinator.service.completion import complete
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study


class Failing:
    """The method of an earlier version, whose formula fails after so many releases."""

    def __init__(self, name: str, after: int) -> None:
        self.method, self.left = METHODS[name], after

    def run(self, federation: Federation) -> Result:
        failing, sums = self, federation.sum

        class Counting:
            study, encoder = federation.study, federation.encoder

            def sum(
                self, label: str, broadcast: Mapping[str, Any] | None = None, *, members: Collection[str] | None = None
            ) -> Release:
                release = sums(label, broadcast, members=members)
                failing.left -= 1
                if failing.left == 0:
                    raise OverflowError("math range error")
                return release

            def checkpoint(self, *_: Any) -> None:
                return

        return self.method.compute(Counting())


def failed(directory: Path, study: Any, name: str, after: int) -> tuple[Trial, bytes]:
    """A study as a coordinator of an earlier version left it: charged, released, and failed."""
    trial = make_trial(directory, study)
    key = trial.submit()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "get_method", lambda _: Failing(name, after))
        status = trial.live(trial.open(), key)
    assert (status.phase, status.reason) == ("failed", runner.INTERNAL)
    return trial, key


def tables(bed: TestBed) -> Study:
    return bed.compile(make_request(schema_of(3, 2, 40), "statistics", 8.0))


def steps(bed: TestBed) -> Study:
    request = make_request(schema_of(3, 2, 40), "fedsgd", 8.0)
    return bed.compile(request.model_copy(update={"parameters": {"steps": 3}}))


def test_it_is_completed_with_its_proof_and_nobody_is_charged_again(tmp_path: Path) -> None:
    wanted = make_trial(tmp_path / "wanted", tables)
    arrays = wanted.finish(wanted.submit())
    trial, key = failed(tmp_path / "failed", tables, "statistics", 1)
    local = trial.open()
    assert complete(local.hub, key, trial.results)
    assert local.hub.shown.status(key).phase == "finished"
    status = trial.live_status(key)  # of another process
    assert (status.phase, status.reason, status.progress) == ("finished", "", 1.0)
    assert "manifest.json" in status.results
    same(dict(trial.result(key).arrays), arrays)
    found = proven(trial.open().hub.journal, results_directory(trial.results, key), trial.bed.analyst.authority, trial.results)
    assert found.comparison.exact
    trial.audit(key)
    assert trial.released(key) == 1


@pytest.mark.system
def test_what_it_would_have_asked_further_is_not_estimable_and_the_sums_are_given(tmp_path: Path) -> None:
    trial, key = failed(tmp_path, steps, "fedsgd", 2)
    assert complete(trial.open().hub, key, trial.results)
    result = trial.result(key)
    assert "the study ended before its next round" in result.summary["not_estimable"]
    assert result.arrays
    assert all(np.isfinite(values).all() for values in result.arrays.values())
    trial.audit(key)


def test_one_that_fails_again_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, key = failed(tmp_path, tables, "statistics", 1)
    local = trial.open()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "get_method", lambda _: Failing("statistics", 1))
        assert not complete(local.hub, key, trial.results)
    assert trial.live_status(key).phase == "failed"
    with monkeypatch.context() as patch:  # another method asks for other rounds
        patch.setattr(runner, "get_method", lambda _: METHODS["pca"])
        assert not complete(local.hub, key, trial.results)
    assert trial.live_status(key).phase == "failed"
    assert complete(local.hub, key, trial.results)


def test_a_coordinator_completes_them_as_it_starts(tmp_path: Path) -> None:
    trial, key = failed(tmp_path, tables, "statistics", 1)
    hub = trial.open().hub
    supervisor = runner.Supervisor(hub, trial.results, trial.bed.clock)
    supervisor.start()
    try:
        with hub.changed:
            assert hub.changed.wait_for(lambda: hub.shown.status(key).phase == "finished", timeout=120)
    finally:
        supervisor.stop()
