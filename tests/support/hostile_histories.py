"""Histories of a coordinator that does anything in any order, and what must hold whatever becomes of a site meanwhile.

:class:`Playing` keeps every consent. What they open costs at least what an accountant of privacy loss distributions says,
which knows the noise and the bound of each sum and nothing of a ledger; the site's own figure may never be below that, nor
above its budget.
"""

from __future__ import annotations

import calendar
import random
from collections.abc import Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dp_accounting import ComposedDpEvent, GaussianDpEvent
from dp_accounting.pld import PLDAccountant

from support.federation import DATASET, TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered, context_of
from support.restoring import copy_database, restore, vouch
from veilsum_node.errors import VeilsumError
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_proto import federation_pb2 as pb

NAMES = ("a", "b", "c")
BUDGET, DELTA = 10.0, 1e-5
DAYS = (3600, 86400, 365 * 86400)


OPERATIONS = {
    "whole": 6, "assign": 4, "check": 4, "consent": 4, "kill": 2, "begin": 2,
    "give_up": 1, "released": 1, "expire": 1, "clock": 1, "copy": 1, "put_back": 1,
}  # fmt: skip
"""How often each is drawn, beside the others."""


@cache
def composed(ratios: tuple[float, ...]) -> float:
    """What sums cost together whose noise is so many times their bound, by privacy loss distributions, at :data:`DELTA`."""
    accountant = PLDAccountant()
    accountant.compose(ComposedDpEvent([GaussianDpEvent(ratio) for ratio in ratios]))
    return float(accountant.get_epsilon(DELTA))


class Playing:
    """A coordinator that does anything, and keeps what left the site.

    Attributes:
        left: the event of each context that the site consented to.
        operations: how often each is drawn, beside the others.
    """

    operations: Mapping[str, int] = MappingProxyType(OPERATIONS)

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.draw = directory, random.Random(seed)
        bed = make_bed(directory / "bed", make_data(NAMES), budget=(BUDGET, DELTA), max_attempts=1000, max_lost=100)
        self.left: dict[bytes, tuple[float, bool]] = {}
        self.shown: list[Any] = []
        self.copies: list[Path] = []
        self.answered: dict[int, Any] = {}
        self.restored, self.noon = False, bed.clock.now
        self.number = self.attempt = 0
        self.arm(bed)
        self.begin()
        self.copy()

    def arm(self, bed: TestBed) -> None:
        """Put the adversary before the sites."""
        self.attack = Adversary(bed)

    def begin(self) -> None:
        """Another study, of three releases, which all sites enrol in, but that whose budget does not bear it."""
        study = self.attack.bed.compile(make_request(schema_of(2), epsilon=self.draw.choice([0.3, 0.5, 1.0]), min_cohort=2))
        self.attack.use(altered(study, task__releases=3, privacy__epsilon=BUDGET))
        self.number = self.attempt = 0
        self.answered = {}
        if all(self.attack.enrol(name).call == "enrol" for name in NAMES):
            enrolments = [said.values[1] for name in NAMES for said in self.attack.channels[name].said[-1:]]
            boxes = self.attack.boxes(enrolments)
            for name in NAMES:
                self.attack.show_boxes(name, [box for box in boxes if box.recipient == name])

    def assign(self) -> None:
        self.attempt += self.draw.choice([0, 1, 1, 1, 1, 1])
        self.number = max(1, self.number + self.draw.choice([-1, 0, 1, 1, 1, 1]))
        self.assign_to(self.draw.choice([NAMES, NAMES, NAMES[:2]]), self.number, max(1, self.attempt))

    def assign_to(self, names: Sequence[str], number: int, attempt: int) -> None:
        assignment = self.attack.assignment(names, number, attempt)
        said = [self.attack.assign(name, assignment) for name in names]
        if said[0].call == "upload":
            mirrored = pb.SignedReceipt(body=said[0].values[1].receipt.body, signature=said[0].values[1].receipt.signature)
            self.shown.append(pb.MirroredReceipt(receipt=mirrored, number=len(self.shown) + 1))

    def check(self) -> None:
        attempt = self.draw.choice([*self.attack.assignments, *[*self.attack.assignments][-1:] * 9])
        self.check_of(attempt, self.draw.choice([None, None, None, None, bytes(32)]))

    def check_of(self, attempt: int, total: bytes | None = None) -> None:
        number = self.attack.assignments[attempt].round
        receipts = self.attack.receipts(attempt)
        said = [
            self.attack.ask_check(name, receipts, total, number, attempt) for name in self.attack.assignments[attempt].names
        ]
        if all(item.call == "answer" for item in said):
            self.answered[attempt] = [item.values[3:] for item in said]

    def consent(self) -> None:
        self.consent_to(self.draw.choice([*self.answered, *[*self.answered][-1:] * 3]))

    def consent_to(self, attempt: int) -> None:
        answers = [CheckAnswer(*values) for values in self.answered[attempt]]
        for name in self.draw.sample(self.attack.assignments[attempt].names, k=len(answers)):
            said = self.attack.ask_consent(name, answers, self.attack.assignments[attempt].round, attempt)
            if name == "a" and said.call == "consent":
                self.keep(attempt, said.values[3])

    def keep(self, attempt: int, consent: bytes) -> None:
        """A consent left: what it opens is out, whatever the site says of it later."""
        context, plan = context_of(self.attack.payloads["a", attempt].receipt), self.attack.plan(attempt)
        variance = float(plan.noise.share_variance) * plan.noise.honest
        self.left[context] = variance**0.5 / plan.declaration.grid, self.restored
        for item in self.shown:
            if parse_receipt(item.receipt.body).context == context:
                item.consent = consent

    def whole(self) -> None:
        """All of a round, in which anything else may have its place."""
        for step in (self.assign, self.check, self.consent):
            step()

    def give_up(self) -> None:
        self.attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, self.number, self.attempt)

    def released(self) -> None:
        self.attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, self.number, self.attempt)

    def expire(self) -> None:
        self.attack.cores["a"].expire()

    def kill(self) -> None:
        self.valid()
        self.attack.reopen("a")

    def valid(self) -> None:
        """No site starts before its certificate is valid, nor after that: then its clock is set right."""
        clock = self.attack.bed.clock
        clock.now = clock.now if self.noon <= clock.now < self.noon + 300 * 86400 else self.noon

    def clock(self) -> None:
        clock = self.attack.bed.clock
        clock.now = self.noon + self.draw.choice([-1, 0, 0, 0, 1]) * self.draw.choice(DAYS)
        if self.draw.random() < 0.1:
            clock.now = calendar.timegm((2028, 2, 29, 23, 59, 59))

    def copy(self) -> None:
        copy = self.directory / f"{len(self.copies)}.db"
        copy_database(self.attack.bed.sites["a"].config.state, copy)
        self.copies.append(copy)

    def put_back(self) -> None:
        """An earlier copy; the mirror shows what it has, and the operator says that this is the site."""
        self.valid()
        site = restore(self.attack.bed, "a", self.draw.choice(self.copies))
        core = self.attack.cores["a"] = ParticipantCore(site)
        channel = self.attack.channels["a"]
        channel.objects = {pb.OBJECT_KIND_MIRRORED: pb.MirroredObject(receipts=self.shown).SerializeToString()}
        core.catch_up(channel)
        self.restored = True
        if site.restored() is not None:
            vouch(site)
        self.begin()

    def judge(self) -> None:
        """What left is charged, once each, at no less than it costs, and within the budget where nothing was put back."""
        site = self.attack.bed.sites["a"]
        site.ledger.verify(authority=site.credentials.authority)
        charged = [entry.context for entry in site.ledger.entries() if entry.kind in (Kind.CHARGE, Kind.RECOVERY)]
        assert len(set(charged)) == len(charged)
        assert set(self.left) <= set(charged), "something left that no ledger knows"
        spent = site.ledger.spending(DATASET).spent
        if self.left:
            cost = composed(tuple(sorted(ratio for ratio, _ in self.left.values())))
            assert cost <= spent * (1 + 1e-3), "what left costs more than the ledger says"
        if not self.restored:
            assert spent <= BUDGET
            self.compare(set(charged))

    def compare(self, charged: Set[bytes | None]) -> None:
        """Hold all that was charged to all that left."""
        assert charged == set(self.left), "a charge without a consent"


def play(playing: Playing, steps: int = 50, passed: tuple[type[Exception], ...] = ()) -> Playing:
    """So many operations, and what must hold after each; one that ends with an error of ``passed`` is over."""
    for _ in range(steps):
        (operation,) = playing.draw.choices([*playing.operations], [*playing.operations.values()])
        try:
            getattr(playing, operation)()
        except (VeilsumError, KeyError, IndexError, *passed):  # of what the adversary itself cannot put together
            continue
        finally:
            playing.judge()
    return playing
