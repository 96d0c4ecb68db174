"""A site that is killed at its writes and messages while its coordinator does anything in any order.

The histories are those of :mod:`support.hostile_histories`; the coordinator moreover says again what it once said, goes back
to earlier studies and shows what it likes of the receipts of the site, whose process dies anywhere in them and begins anew on
its file. Nothing leaves twice in two forms, no round opens twice, all that left is charged once, at no less than it costs and
within the budget, and once every deadline has passed nothing is held that was not charged.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from support.federation import DATASET, open_test_site
from support.hostile import Adversary, Said
from support.hostile_histories import NAMES, OPERATIONS, Playing, play
from support.killing import CATCH_UP, EXPIRE, MortalProcess, charge_afterwards
from support.restoring import put_file, vouch
from veilsum_node.database import open_database
from veilsum_node.errors import VeilsumError
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.ledger.reader import LedgerReader
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_proto import federation_pb2 as pb

FARTHEST = 40
"""Points that a process passes at most before it dies, where it dies: a round has about thirty."""


class Died(Exception):  # noqa: N818 - no error
    """The site's process died before it said anything."""


class Outside:
    """What the adversary and the judge know of a site that runs in a process of its own: its files."""

    def __init__(self, site: Any, process: Callable[[], MortalProcess]) -> None:
        self.config, self.credentials, self._process = site.config, site.credentials, process
        self.open()

    def open(self) -> None:
        self.database = open_database(self.config.state)
        self.ledger = LedgerReader(self.database)

    @property
    def nonce(self) -> bytes:
        return self._process().nonce


class MortalCore:
    """Site ``a`` as a process, in place of a core."""

    def __init__(self, playing: MortalPlaying) -> None:
        self.playing = playing

    def handle(self, directive: Any, channel: Any) -> None:
        self.playing.do(directive.to_bytes(), channel)

    def expire(self) -> None:
        self.playing.do(EXPIRE, None)


class Ledgered(Adversary):
    """An adversary who hears what a process said before it died, and keeps all that it ever told site ``a``."""

    def __init__(self, bed: Any) -> None:
        super().__init__(bed)
        self.told: list[tuple[bytes, Any]] = []

    def tell(self, name: str, kind: Any, number: int = 0, attempt: int = 0, objects: Any = None, **fields: Any) -> Said:
        if name == "a":
            self.told.append((self.key, (kind, number, attempt, objects, fields)))
        said = self.channels[name].said
        before = len(said)
        try:
            return super().tell(name, kind, number, attempt, objects, **fields)
        except Died:
            if len(said) == before:
                raise
            return said[-1]


class MortalPlaying(Playing):
    """The history, and what the site said in it; ``a`` dies as often as ``deadly`` lets it.

    Attributes:
        said: what it said in answer to what, in every form.
        opened: contexts that it consented to, by study and round.
    """

    operations: Mapping[str, int] = MappingProxyType(
        OPERATIONS | {"again": 6, "go_back": 2, "show": 2, "put_back": 0.3}  # most histories shall have a budget to keep
    )

    def __init__(
        self, directory: Path, seed: int, *, fatal: int | None = None, plant: Callable[[], None] | None = None
    ) -> None:
        self.said: dict[Any, set[Any]] = {}
        self.opened: dict[tuple[bytes, int], set[bytes]] = {}
        self.studies: list[Any] = []
        self.deaths, self.process, self._left, self._plant = 0, None, fatal, plant
        super().__init__(directory, seed)

    def arm(self, bed: Any) -> None:
        """The adversary, and the site in a process."""
        self.attack = Ledgered(bed)
        bed.sites["a"].database.close()
        bed.sites["a"] = self.site = Outside(bed.sites["a"], lambda: self.process)
        self.attack.cores["a"] = MortalCore(self)
        self.live()

    def live(self) -> None:
        """Another process, to die at some point."""
        self.valid()
        hub, site = self.attack.bed.hub, self.site
        fatal = (
            self.draw.choice([0, *(self.draw.randint(1, FARTHEST) for _ in range(3))])
            if self._left is None
            else max(0, self._left)
        )
        identity = hub.credentials.identity
        self.process = MortalProcess(
            site.config, self.attack.bed.clock, identity.name, identity.certificate, fatal, self._plant
        )
        self.deaths += self.process.deaths

    def do(self, work: Any, channel: Any) -> None:
        before = len(self.attack.channels["a"].said)
        died = self.process.work(work, channel)
        for said in self.attack.channels["a"].said[before:]:
            self.hear(said)
        if died:
            self.deaths += 1
            self._left = None if self._left is None else 0
            self.live()
            raise Died

    def hear(self, said: Said) -> None:
        """One question has one answer: a context one payload, one list of words and one consent."""
        if said.call == "upload":
            payload = said.values[1]
            form = b"".join(map(bytes, payload.pieces)), payload.receipt
            self.said.setdefault(("upload", parse_receipt(payload.receipt.body).context), set()).add(form)
        elif said.call in ("answer", "consent"):
            self.said.setdefault((said.call, *said.values[:3]), set()).add(said.values[3:])

    def keep(self, attempt: int, consent: bytes) -> None:
        super().keep(attempt, consent)
        receipt = parse_receipt(self.attack.payloads["a", attempt].receipt.body)
        self.opened.setdefault((receipt.study, receipt.round), set()).add(receipt.context)

    # -- operations ---------------------------------------------------------------------------------------------------------

    def again(self) -> None:
        """What was told once, in whatever study, is told once more."""
        self.tell_again(*self.draw.choice(self.attack.told))

    def tell_again(self, key: bytes, told: Any) -> None:
        kind, number, attempt, objects, fields = told
        present, self.attack.key = self.attack.key, key
        try:
            self.attack.tell("a", kind, number, attempt, objects, **fields)
        finally:
            self.attack.key = present

    def begin(self) -> None:
        if self.attempt:
            self.studies.append(self.aside())
        while True:
            try:
                return super().begin()
            except Died:
                continue  # the study has lost a member before its first round

    def aside(self) -> Any:
        attack = self.attack
        return attack.study, attack.key, attack.payloads, attack.assignments, self.answered, self.number, self.attempt

    def go_back(self) -> None:
        """To an earlier study, as it was left."""
        place = self.draw.choice(range(len(self.studies)))
        found, self.studies[place] = self.studies[place], self.aside()
        attack = self.attack
        attack.study, attack.key, attack.payloads, attack.assignments, self.answered, self.number, self.attempt = found

    def show(self) -> None:
        """A session begins, in which a coordinator shows some of the site's receipts, or all, or none."""
        self.mirror(self.draw.sample(self.shown, k=self.draw.randint(0, len(self.shown))))

    def mirror(self, receipts: Any) -> None:
        channel = self.attack.channels["a"]
        channel.objects = {pb.OBJECT_KIND_MIRRORED: pb.MirroredObject(receipts=receipts).SerializeToString()}
        self.do(CATCH_UP, channel)

    def kill(self) -> None:
        passed = self.process.stop()
        self._left = None if self._left is None else self._left - passed
        self.live()

    def put_back(self) -> None:
        """An earlier copy; the mirror shows what it has, and the operator says that this is the site."""
        self.process.stop()
        self.site.database.close()
        put_file(self.site.config.state, self.draw.choice(self.copies))
        self.restored = True
        self.site.open()
        self.live()
        while True:
            try:
                self.mirror(self.shown)
            except Died:
                continue
            break
        operator = open_test_site(self.site.config, self.attack.bed.clock, SYSTEM_RANDOM)
        operator.mirror_read = True
        if operator.restored() is not None:
            vouch(operator)
        operator.database.close()
        self.begin()

    # -- what must hold -----------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        super().judge()
        assert all(len(forms) == 1 for forms in self.said.values()), "one question had two answers"
        if not self.restored:
            assert all(len(contexts) == 1 for contexts in self.opened.values()), "a round opened twice"

    def compare(self, charged: Any) -> None:
        """A site that died may have charged what it could not say; asked again, it says it."""
        assert set(self.left) <= charged

    def end(self) -> None:
        """Every deadline passes, and no process dies any more: what is held then was charged."""
        self.process.stop()
        self._left = 0
        self.live()
        self.attack.bed.clock.now = self.noon + 40 * 86400
        self.do(EXPIRE, None)
        self.judge()
        spending = self.site.ledger.spending(DATASET)
        assert spending.reserved == spending.spent, "a reservation outlives its deadline"
        self.process.stop()
        self.site.database.close()


def deviating(playing: MortalPlaying) -> None:
    """A round and another, with all that a coordinator may not do between: each question also to attempts that are over, paid
    for or of another cohort, and all that was asked asked once more in the end."""
    steps: list[Callable[[], Any]] = [
        lambda: playing.assign_to(NAMES, 1, 1),
        lambda: playing.check_of(1, bytes(32)),
        lambda: playing.check_of(1),
        lambda: playing.assign_to(NAMES[:2], 1, 2),
        lambda: playing.check_of(1),
        lambda: playing.check_of(2),
        lambda: playing.consent_to(1),
        lambda: playing.attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1),
        lambda: playing.consent_to(2),
        lambda: playing.assign_to(NAMES, 1, 3),
        lambda: playing.check_of(3),
        lambda: playing.consent_to(3),
        lambda: playing.attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 2),
        lambda: playing.attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 2),
        lambda: playing.mirror(playing.shown),
        lambda: playing.assign_to(NAMES, 2, 4),
        lambda: playing.attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 2, 4),
        lambda: playing.check_of(4),
        lambda: playing.consent_to(4),
    ]
    for step in steps:
        for _ in range(2):  # and once more, whether it died of it or not
            with suppress(Died, KeyError, VeilsumError):
                step()
            playing.judge()
    for told in list(playing.attack.told):
        with suppress(Died):
            playing.tell_again(*told)
    playing.end()


@pytest.mark.parametrize(
    ("first", "stride"), [(60, 120), *(pytest.param(first, 8, marks=pytest.mark.system) for first in range(1, 9))]
)
def test_a_death_at_every_write_under_a_coordinator_that_deviates(tmp_path: Path, first: int, stride: int) -> None:
    """Two sums would open without a death, and at least one does wherever the site dies. The system's tests are all of it."""
    opened = set()
    for fatal in itertools.count(first, stride):
        playing = MortalPlaying(tmp_path / str(fatal), 0, fatal=fatal)
        deviating(playing)
        opened.add(len(playing.left))
        shutil.rmtree(tmp_path / str(fatal))
        if not playing.deaths:
            break
    assert fatal > 100  # fewer would mean that the harness no longer sees the writes
    assert opened <= {1, 2}
    assert 2 in opened


def run(directory: Path, seed: int, steps: int = 50, *, fatal: int | None = None) -> MortalPlaying:
    playing = MortalPlaying(directory, seed, fatal=fatal)
    play(playing, steps, passed=(Died,))
    playing.end()
    return playing


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.system) for seed in range(1, 30))])
def test_whatever_is_asked_and_wherever_a_site_dies_all_that_left_is_charged(tmp_path: Path, seed: int) -> None:
    run(tmp_path, seed)


@pytest.mark.system
def test_a_charge_that_comes_after_its_consent_is_found(tmp_path: Path) -> None:
    """Planted: the consent is durable before its charge is, and no start looks for what is not charged. A death between them
    lets the consent out on the next request."""
    playing = MortalPlaying(tmp_path / "until", 0, fatal=0)
    playing.assign_to(NAMES, 1, 1)
    playing.check_of(1)
    passed = playing.process.stop()
    found = []
    for fatal in range(passed + 1, passed + 12):
        playing = MortalPlaying(tmp_path / str(fatal), 0, fatal=fatal, plant=charge_afterwards)
        try:
            playing.assign_to(NAMES, 1, 1)
            playing.check_of(1)
            for _ in range(2):
                with suppress(Died):
                    playing.consent_to(1)
            playing.judge()
        except AssertionError as error:
            found.append(str(error))
            break
        finally:
            playing.process.stop()
    assert found
    assert "something left that no ledger knows" in found[0]
