"""A participant's folder was copied, and both copies run: the same key, the same seeds, the same ledger up to then.

A hostile coordinator, or two, asks both what it likes. Nothing that both send anew has the same noise, masks or consent; what
one had sent before is sent again as it was; and each ledger has what its own copy released.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from support.federation import make_bed, make_data, open_test_site
from support.hostile import NAMES, Adversary, HostileChannel
from support.opening import own_vector
from support.randomness import RARE
from support.restoring import copy_database
from veilsum_node.errors import RefusalCode
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.recovery import MirroredReceipt, settle
from veilsum_participant.site import Site
from veilsum_privacy.ledger import Kind

STAGES = ("ready", "uploaded", "answered", "consented")


class Twins:
    """Site ``a`` twice. Of the two, the adversary speaks to the one that it turned to."""

    def __init__(self, attack: Adversary, directory: Path, stage: str) -> None:
        self.attack = attack
        attack.set_up()
        if stage != "ready":
            attack.collect()
        if stage in ("answered", "consented"):
            self.answers = attack.answers()
        if stage == "consented":
            attack.ask_consent("a", self.answers)
        first = attack.bed.sites["a"]
        (directory / "copy").mkdir()
        config = first.config.model_copy(update={"state": directory / "copy" / "participant.db"})
        copy_database(first.config.state, config.state)
        second = open_test_site(config, attack.bed.clock, SYSTEM_RANDOM, credentials=first.credentials)
        self.sites: list[Site] = [first, second]
        certificate = attack.bed.hub.credentials.identity.certificate
        self.spoken = [
            (attack.cores["a"], attack.channels["a"]),
            (ParticipantCore(second), HostileChannel("other", certificate)),
        ]

    def turn(self, which: int) -> None:
        self.attack.bed.sites["a"] = self.sites[which]
        self.attack.cores["a"], self.attack.channels["a"] = self.spoken[which]

    def charged(self) -> list[set[bytes | None]]:
        found = []
        for site in self.sites:
            site.ledger.verify(authority=site.credentials.authority)
            found.append({entry.context for entry in site.ledger.entries() if entry.kind is Kind.CHARGE})
        return found


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    return Adversary(make_bed(tmp_path / "bed", make_data(NAMES)))


@pytest.mark.parametrize("stage", STAGES)
def test_what_two_copies_send_has_nothing_in_common(attack: Adversary, tmp_path: Path, stage: str) -> None:
    """Each is asked for the next round as itself and as the other: it answers by its own nonce alone, with its own noise."""
    twins, rows, vectors = Twins(attack, tmp_path, stage), [], []
    for which in (0, 1):
        twins.turn(1 - which)
        of_the_other = attack.assignment(number=2, attempt=2)
        twins.turn(which)
        assert attack.assign("a", of_the_other).call == "refuse"
        assert attack.assign("a", attack.assignment(number=2, attempt=3)).call == "upload"
        vectors.append(own_vector(attack, "a", 3).astype(np.float64))
        row = attack.attempt_row("a", 3)
        assert row is not None
        rows.append(row)
    one, other = rows
    assert one.context != other.context
    assert one.consent != other.consent
    assert one.payload != other.payload
    assert one.words != other.words
    assert not np.array_equal(*vectors)
    variance = 2.0 * float(attack.plan(3).noise.share_variance)
    spread = float(((vectors[0] - vectors[1]) ** 2).sum()) / variance  # the records are the same
    assert RARE < stats.chi2(len(vectors[0])).cdf(spread) < 1 - RARE


def test_two_copies_send_again_what_one_had_sent(attack: Adversary, tmp_path: Path) -> None:
    """Byte for byte, and each answers for one sum of it. Shown two sums, they answer under masks of two challenges."""
    twins, uploads, answers = Twins(attack, tmp_path, "uploaded"), [], []
    assignment, receipts = attack.assignments[1], attack.receipts()
    for which, total in ((0, None), (1, bytes(32))):
        twins.turn(which)
        uploads.append(attack.assign("a", assignment).values[1])
        answers.append(attack.ask_check("a", receipts, total))
        assert attack.ask_check("a", receipts, bytes(31) + b"1").refused is RefusalCode.CHECK
    assert b"".join(uploads[0].pieces) == b"".join(uploads[1].pieces)
    assert uploads[0].receipt == uploads[1].receipt
    assert [item.call for item in answers] == ["answer"] * 2
    assert not set(answers[0].values[3]) & set(answers[1].values[3])


def test_the_releases_of_both_copies_are_charged_between_them(attack: Adversary, tmp_path: Path) -> None:
    """Members refuse a receipt whose number they saw from the other copy. Each ledger lacks the other's releases, until a
    coordinator's mirror, or a peer's ledger, shows them."""
    twins, contexts = Twins(attack, tmp_path, "ready"), []
    attack.collect(number=1, attempt=1)
    attack.finish(1, 1)
    contexts.append({attack.context(1)})
    twins.turn(1)
    receipts = attack.collect(number=2, attempt=2)
    for name in NAMES[1:]:
        assert attack.ask_check(name, receipts, None, 2, 2).refused is RefusalCode.RECEIPT
    attack.collect(number=2, attempt=3)  # the copy's second receipt, and so a number that none has seen
    attack.finish(2, 3)
    contexts.append({attack.context(3)})
    assert twins.charged() == contexts
    for which, attempt in ((0, 3), (1, 1)):
        twins.turn(which)
        site, receipt = twins.sites[which], attack.payloads["a", attempt].receipt
        settle(site, "coordinator", [MirroredReceipt(receipt, 9, b"")])
        assert site.restored() is not None
        assert attack.assign("a", attack.assignment(number=5, attempt=5)).refused is RefusalCode.LEDGER
        assert contexts[0] | contexts[1] <= {entry.context for entry in site.ledger.entries()}
