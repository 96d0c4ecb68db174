"""The same participants over different records: what leaves them may not tell which."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyst.examples import Example
from support.federation import DATASET, TestBed, make_bed, open_test_site
from support.hostile import Adversary, encoded
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.ledger import Kind
from veilsum_privacy.study.study import parse_study

SITES = ("a", "b", "c", "d")
WIDTH = 3


@dataclass(frozen=True)
class Seen:
    """What the coordinator has of a site after an example, sizes in bytes, and what the site's ledger says of it.

    Attributes:
        messages: the call of each answer, with its codes, or how many ciphertexts it sent and how long its receipt is.
        sizes: of the ciphertexts: uniform words, whose length varies by some bytes when SEAL has compressed them.
        entries: kinds of the ledger's new entries, faults left out, which nobody outside hears of.
        faults: how many of these there are.
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
        for name in SITES[1:]:
            self.put(rng.uniform(-1, 1, (6, WIDTH)), rng.integers(0, 2, 6), name)

    def put(self, features: NDArray[np.float64], labels: NDArray[np.int64], name: str = "a") -> None:
        """Give a site these records, two by two of one subject."""
        site = self.bed.sites[name]
        path = site.config.datasets[DATASET].path
        columns = {f"x{index}": features[:, index] for index in range(features.shape[1])}
        np.savez(path, **columns, y=labels.astype(str), subject=np.arange(len(labels)) // 2)
        site._records, site._latest = {}, None

    def try_out(self, example: Example) -> Seen:
        """Go through enrolment, keys and a round of the example; the study is left afterwards."""
        attack, site = self.attack, self.bed.sites["a"]
        attack.use(parse_study(example.data))
        before = len(site.ledger.entries())
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
        kinds = tuple(entry.kind.value for entry in entries if entry.kind is not Kind.FAULT)
        own = (said[0], *said[len(SITES) :])
        payloads = [answer.values[1] for answer in own if answer.call == "upload"]
        sizes = tuple(len(ciphertext) for payload in payloads for ciphertext in payload.ciphertexts)
        return Seen(tuple(map(_outline, own)), sizes, kinds, len(entries) - len(kinds))


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


def _outline(answer: Any) -> tuple[Any, ...]:
    if answer.call == "refuse":
        return ("refuse", *answer.codes)
    if answer.call == "upload":
        payload = answer.values[1]
        return ("upload", len(payload.ciphertexts), len(payload.receipt.body))
    return (answer.call,)
