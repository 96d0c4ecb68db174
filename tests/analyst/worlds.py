"""The same participants over different records: what leaves them may not tell which."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyst.examples import Example
from support.federation import DATASET, TestBed, make_bed, open_test_site
from support.hostile import Adversary, Said, encoded
from support.randomness import SeededRandom
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.site import SiteObserver
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.entries import Entry
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.study.study import parse_study

SITES = ("a", "b", "c", "d")
WIDTH = 3


@dataclass(frozen=True)
class Seen:
    """What the coordinator has of a site after an example, sizes in bytes, and what the site's ledger says of it.

    Attributes:
        messages: the call of each answer, with its codes, or how many ciphertexts it sent and what its receipt says.
        sizes: of the ciphertexts: uniform words, whose length varies by some bytes when SEAL has compressed them.
        entries: what the ledger's new entries say, which whoever gets an export of it sees; their random bytes are seeded.
        faults: how often a computation failed, which nobody outside hears of.
    """

    messages: tuple[tuple[Any, ...], ...]
    sizes: tuple[int, ...]
    entries: tuple[str, ...]
    faults: int


class World:
    """Real participants whose first site has its own records."""

    def __init__(self, directory: Path, first: TestBed | None = None) -> None:
        rng = np.random.default_rng(1)
        self.bed = _first(directory) if first is None else _beside(directory, first)
        self.attack = Adversary(self.bed)
        self._counter = _Counter()
        site = self.bed.sites["a"]
        site.observer = self._counter
        site.ledger._chain._random = SeededRandom(b"ledger")  # the same in every world
        for name in SITES[1:]:
            self.put(rng.uniform(-1, 1, (6, WIDTH)), rng.integers(0, 2, 6), name)

    def put(self, features: NDArray[np.float64], labels: NDArray[np.int64], name: str = "a") -> None:
        """Give a site these records, two by two of one subject."""
        site = self.bed.sites[name]
        path = site.config.datasets[DATASET].path
        columns = {f"x{index}": features[:, index] for index in range(features.shape[1])}
        np.savez(path, **columns, y=labels.astype(str), subject=np.arange(len(labels)) // 2)
        site.datasets.let_go()

    @property
    def failures(self) -> int:
        """How often the first site's computation failed."""
        return self._counter.failures

    def try_out(self, example: Example) -> Seen:
        """Go through enrolment, keys and a round of the example; the study is left afterwards."""
        attack, site = self.attack, self.bed.sites["a"]
        attack.use(parse_study(example.data))
        before, failures = len(site.ledger.entries()), self.failures
        said = [attack.enrol(name) for name in SITES]
        if all(answer.call == "enrol" for answer in said):
            made = attack.boxes([answer.values[1] for answer in said])
            for name in SITES:
                attack.show_boxes(name, [box for box in made if box.recipient == name])
            study = attack.study
            for number, task in enumerate(study.tasks, start=1):  # the tasks that it computes from are released first
                source = task.label != example.label
                asked = Example(0, example.data, task.label, None if source else example.damage)
                broadcast = encoded(study, task.label, asked.broadcast(study))
                assignment = attack.assignment(SITES, number, number, broadcast, label=task.label)
                answers = [attack.assign(name, assignment, broadcast) for name in (SITES if source else SITES[:1])]
                said.append(answers[0])
                if source and all(answer.call == "upload" for answer in answers):
                    attack.consents(number, number)
        for core in attack.cores.values():
            core.membership.leave(attack.key, "ended")
        entries = site.ledger.entries()[before:]
        own = (said[0], *said[len(SITES) :])
        payloads = [answer.values[1] for answer in own if answer.call == "upload"]
        sizes = tuple(len(piece) for payload in payloads for piece in payload.pieces)
        messages, told = (tuple(map(self._outline, own)), tuple(map(_told, entries)))
        return Seen(messages, sizes, told, self.failures - failures)

    def _outline(self, answer: Said) -> tuple[Any, ...]:
        if answer.call == "refuse":
            return ("refuse", *answer.codes)
        if answer.call == "upload":
            payload = answer.values[1]
            receipt = parse_receipt(payload.receipt.body)
            ledger = self.bed.sites["a"].ledger
            (reserved,) = ledger.entries(kind=Kind.RESERVE, context=receipt.context)
            said = replace(receipt, **dict.fromkeys(("context", "payload", "head", "consent"), bytes(32)))
            # A head that is the reservation's was there before a record was read.
            known = "reserved" if receipt.head == reserved.hash else f"entry {ledger.position(receipt.head)}"
            return ("upload", len(payload.pieces), len(payload.receipt.body), known, said)
        return (answer.call,)


class _Counter(SiteObserver):
    """Counts computations that failed."""

    failures = 0

    def failed(self) -> None:
        self.failures += 1


def _first(directory: Path) -> TestBed:
    empty = np.zeros((0, WIDTH)), np.zeros(0, dtype=np.int64)
    bed = make_bed(directory, dict.fromkeys(SITES, empty), disclosures=("joint", "per-site"), max_attempts=1000)
    for site in bed.sites.values():
        site.config.datasets[DATASET] = site.config.datasets[DATASET].model_copy(update={"subject": "subject"})
    return bed


def _beside(directory: Path, first: TestBed) -> TestBed:
    """The same identities and policies, with records, stores and ledgers of their own."""
    sites = {}
    for name, site in first.sites.items():
        own = directory / name
        own.mkdir(parents=True)
        datasets = {DATASET: site.config.datasets[DATASET].model_copy(update={"path": own / "records.npz"})}
        config = site.config.model_copy(update={"state": own / "participant.db", "datasets": datasets})
        sites[name] = open_test_site(config, first.clock, SYSTEM_RANDOM, (None, 1e-5))
    beside = copy(first)
    beside.sites = sites
    return beside


def _told(entry: Entry) -> str:
    """What an entry says, but for what differs from one federation to the next: contexts, signatures, what others drew."""
    drawn = ("receipts", "countersigned", "coordinator")
    detail = {name: "drawn" if name in drawn else value for name, value in entry.detail.items()}
    return repr(replace(entry, seq=0, context=b"", previous=b"", hash=b"", signature=b"", detail=detail)) + repr(entry.random)
