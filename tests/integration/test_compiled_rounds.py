"""Rounds of sites whose tasks are traced apart: the same releases, and one that ends before a reservation charges nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.apart import Answer, ThreadStarter
from support.federation import make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, make_adversary
from veilsum_node.errors import RefusalCode
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.worker.compiling import WorkerStudies

NAMES = "abc"


class Ending:
    """Ends a compiler at each request of a name, so many times."""

    def __init__(self, name: str, times: int) -> None:
        self.name, self.left, self._lock = name, times, threading.Lock()

    def __call__(self, request: Inquiry[Any], honest: Answer) -> Message | None:
        with self._lock:
            if type(request).__name__ == self.name and self.left:
                self.left -= 1
                return None
        return honest(request)


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    found = make_adversary(tmp_path)
    found.set_up()
    yield found
    for site in found.bed.sites.values():
        site.studies.close()


@pytest.mark.parametrize("name", ["TakeStudy", "TryTask", "AskGraph"])
def test_a_compiler_that_ends_before_a_reservation_charges_nothing(attack: Adversary, name: str) -> None:
    """Once it is started anew; one that ends each time is a refusal, which depends on no record."""
    site = attack.bed.sites["a"]
    site.studies = WorkerStudies(ThreadStarter(Ending(name, 2)))
    said = attack.assign("a", attack.assignment())
    assert said.refused in (RefusalCode.CONTEXT, RefusalCode.TASK)
    assert attack.kinds("a")["reserve"] == 0
    site.studies.close()
    site.studies = WorkerStudies(ThreadStarter(Ending(name, 1)))
    assert attack.assign("a", attack.assignment()).call == "upload"
    assert attack.kinds("a")["reserve"] == 1


@pytest.mark.parametrize("method", ["statistics", "pca"])
def test_releases_and_ledgers_are_those_of_one_process(tmp_path: Path, method: str) -> None:
    found = []
    for apart in (True, False):
        bed = make_bed(tmp_path / str(apart), make_data(NAMES, 60))
        bed.know_noise()
        if apart:
            for site in bed.sites.values():
                site.studies = WorkerStudies(ThreadStarter())
        request = make_request(schema_of(2), method)
        if method == "pca":
            request = request.model_copy(update={"parameters": {"width": 1}})
        study = bed.compile(request)
        key = bed.local.submit(study, bed.analyst)
        values = bed.local.prepare(key).sum(study.tasks[0].label).values
        kinds = [[entry.kind for entry in bed.sites[name].ledger.entries()] for name in NAMES]
        found.append(({name: np.ravel(block).tolist() for name, block in values.items()}, kinds))
        for site in bed.sites.values():
            site.studies.close()
    assert found[0] == found[1]
