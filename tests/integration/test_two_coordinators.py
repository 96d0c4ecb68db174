"""Two coordinators with one key, each honest, each with a database of its own: one of them was cloned, or its database was put
back from an older copy while members went on.

Members answer whoever speaks to them. Between both, a round is paid for once and opens once; each study ends, finished or
failed; and members' ledgers have all that either of them opened.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.fresh import COORDINATOR, LEDGER, fresh_database
from support.restoring import copy_database
from veilsum.cli import display
from veilsum.local.federation import LocalChannel, LocalFederation
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.runner import run_study
from veilsum_coordinator.storage.journal import SqlJournal
from veilsum_node.errors import StateError
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.openings import Openings
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.mirror import Mirror

NAMES = ("a", "b", "c")
GRACE = 30
PATIENCE = 50
"""How often a coordinator finds nothing to do and waits, before it is taken for stuck."""


class Baton:
    """Lets one of several threads work at a time; which is next is drawn."""

    def __init__(self, draw: random.Random) -> None:
        self._draw, self._alive, self._turn = draw, list[str](), ""
        self._changed = threading.Condition()

    def join(self, name: str) -> None:
        with self._changed:
            self._alive.append(name)
            self._turn = self._turn or name

    def wait(self, name: str) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == name)

    def pass_on(self, name: str, *, ends: bool = False) -> None:
        with self._changed:
            if ends:
                self._alive.remove(name)
            self._turn = self._draw.choice(self._alive) if self._alive else ""
            self._changed.notify_all()


class Coordinator(LocalFederation):
    """One of them, which steps when it has the baton."""

    def __init__(
        self,
        name: str,
        bed: TestBed,
        hub: Hub,
        cores: dict[str, ParticipantCore],
        baton: Baton,
        stepped: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(hub, cores, bed.clock)
        self.name, self.bed, self._baton, self._idle, self._stepped = name, bed, baton, 0, stepped
        baton.join(name)
        for core in cores.values():
            core.catch_up(LocalChannel(hub, core.site.name))

    def step(self) -> bool:
        self._stepped()
        self._baton.pass_on(self.name)
        self._baton.wait(self.name)
        if super().step():
            return True
        self.bed.clock.now += GRACE + 1
        for core in self.cores.values():
            core.expire()
        self.hub.tick()
        self._idle += 1
        return self._idle < PATIENCE

    def lead(self, key: bytes, results: Path) -> None:
        """The study, to whatever end."""
        self._baton.wait(self.name)
        try:
            run_study(self.hub, key, self.prepare(key), results)
            self._idle = PATIENCE - 2
            self.settle()
        except StateError:  # it has failed, or had finished before this copy was made
            pass
        finally:
            self._baton.pass_on(self.name, ends=True)


def hub_on(bed: TestBed, place: Path) -> Hub:
    credentials = bed.hub.credentials
    database = fresh_database(place, LEDGER, COORDINATOR)
    mirror = Mirror(database, credentials=credentials, clock=bed.clock, random=SYSTEM_RANDOM)
    return Hub(credentials, SqlJournal(database, mirror), waits=Waits(grace=GRACE), clock=bed.clock)


def open_bed(directory: Path) -> TestBed:
    return make_bed(directory / "bed", make_data(NAMES), waits=Waits(grace=GRACE))


@dataclass
class History:
    """Both lead one study: the second is a clone, or begins with a copy of the first one's database, at any step.

    Attributes:
        hubs: of both, once they have ended.
    """

    bed: TestBed
    directory: Path
    seed: int
    method: str
    hubs: list[Hub] = field(default_factory=list)
    steps: int = 0

    def play(self) -> bytes:
        """Both to their ends; returns the study's digest."""
        draw, bed = random.Random(self.seed), self.bed
        request = make_request(schema_of(2), self.method, epsilon=4.0, min_cohort=2)
        if self.method == "fedsgd":
            request = request.model_copy(update={"parameters": {"steps": 2}})
        study = bed.signed(bed.compile(request))
        key = bed.hub.submit(bed.analyst.identity.name, study)
        cores, baton = {name: ParticipantCore(site) for name, site in bed.sites.items()}, Baton(draw)
        copied, begun, place = draw.randrange(12), draw.choice([0, 1, 2, 4, 8, 99]), self.directory / "other.db"
        threads = []

        def second() -> None:
            hub = hub_on(bed, place)
            self.hubs.append(hub)
            if not hub.journal.studies():
                hub.submit(bed.analyst.identity.name, study)
            other = Coordinator("second", bed, hub, cores, baton)
            threads.append(threading.Thread(target=other.lead, args=(key, self.directory / "second")))
            threads[0].start()

        def stepped() -> None:
            if self.steps == copied:
                copy_database(bed.kit.coordinator.directory / "coordinator.db", place)
            if self.steps == copied + begun:
                second()
            self.steps += 1

        self.hubs.append(bed.hub)
        first = Coordinator("first", bed, bed.hub, cores, baton, stepped)
        first.lead(key, self.directory / "first")
        if not threads:
            second()
        threads[0].join()
        return key

    def judge(self, key: bytes) -> int:
        """Hold what members paid to what either opened; returns how many rounds opened."""
        opened: dict[tuple[int, str], set[bytes]] = {}
        for hub in self.hubs:
            status = hub.shown.status(key)
            assert status.phase in ("finished", "failed")
            assert all(item.code in display._REMEDIES for item in status.refusals), "an analyst is not told what to do"
            for release in hub.journal.releases(key):
                for name in json.loads(release["cohort"]):
                    opened.setdefault((release["round"], name), set()).add(release["values"])
        assert all(len(values) == 1 for values in opened.values()), "a member is in two sums of one round"
        for name, site in self.bed.sites.items():
            site.ledger.verify(authority=site.credentials.authority)
            charged = Counter(entry.reservation.round for entry in site.ledger.entries(kind=Kind.CHARGE))
            assert all(times == 1 for times in charged.values()), "a round is charged twice"
            assert {number for number, member in opened if member == name} <= charged.keys(), "a sum that was not paid for"
            spending = site.ledger.spending(DATASET)
            self.bed.clock.now += 86400
            ParticipantCore(site).expire()
            assert site.ledger.spending(DATASET).reserved == spending.spent, "a reservation outlives its deadline"
        return len({number for number, _ in opened})


@pytest.mark.parametrize("method", ["statistics", "fedsgd"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.system) for seed in range(1, 20))])
def test_members_pay_once_whoever_leads(tmp_path: Path, seed: int, method: str) -> None:
    history = History(open_bed(tmp_path), tmp_path, seed, method)
    history.judge(history.play())


def test_members_that_do_not_pay_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Openings, "_charge", lambda *_: None)
    history = History(open_bed(tmp_path), tmp_path, 0, "statistics")
    with pytest.raises(AssertionError, match="not paid for"):
        history.judge(history.play())
