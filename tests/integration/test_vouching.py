"""A restored site releases nothing before a peer's ledger, or its operator, vouches for what it spent since the backup."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import text

from support.federation import DATASET, open_test_site
from support.hostile import Adversary, make_adversary
from veilsum_node.errors import Misuse, Refusal, RefusalCode
from veilsum_node.identity import Role
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.boundary.front import Status
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.front.answering import in_process
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.endorsement import recover_receipts, trust_coordinator, vouch
from veilsum_participant.session.channel import UndeliveredError
from veilsum_participant.session.client import Client
from veilsum_participant.site import Site
from veilsum_participant.store.pending import count_waiting
from veilsum_participant.store.studies import count_enrolled
from veilsum_privacy.backup.backup import BackupOwner, back_up
from veilsum_privacy.backup.restore import Restored, restore
from veilsum_privacy.ledger import Kind
from veilsum_proto import federation_pb2 as pb


class Scene:
    """A study in which site a paid for a round that its backup does not know."""

    def __init__(self, directory: Path) -> None:
        self.attack: Adversary = make_adversary(directory, budget=(50.0, 1e-5))
        self.attack.set_up()
        config = self.site.config
        self.party = BackupOwner(Role.PARTICIPANT, config.state, config.identity)
        self.archive = directory / "a.backup"
        self.manifest = back_up(self.party, self.archive, software="test")
        self.attack.bed.clock.now = self.manifest.made + 60

    @property
    def site(self) -> Site:
        return self.attack.bed.sites["a"]

    def put_back(self) -> Restored:
        """Restore the backup over a ledger that has gone on, and start anew."""
        self.site.ledger.checkpoint()
        self.site.database.close()
        done = restore(self.archive, self.party, force=True)
        self.open()
        return done

    def open(self) -> None:
        """As a new process would."""
        self.site.database.close()
        self.attack.bed.sites["a"] = open_test_site(self.site.config, self.attack.bed.clock, SYSTEM_RANDOM)
        self.attack.cores["a"] = ParticipantCore(self.site)

    def show_mirror(self, consent: bytes | None = None) -> list[int]:
        """A session begins; the mirror shows what site a signed, or that it signed nothing."""
        shown = self.attack.payloads["a", 1].receipt
        receipt = pb.SignedReceipt(body=shown.body, signature=shown.signature)
        items = [] if consent is None else [pb.MirroredReceipt(receipt=receipt, number=5, consent=consent)]
        channel = self.attack.channels["a"]
        channel.objects = {pb.OBJECT_KIND_MIRRORED: pb.MirroredObject(receipts=items).SerializeToString()}
        return self.attack.cores["a"].catch_up(channel)

    def answers(self) -> str | tuple[RefusalCode, ...]:
        """What site a says to the next round: a call's name, or its codes."""
        said = self.attack.assign("a", self.attack.assignment(number=9, attempt=9))
        return said.codes if said.call == "refuse" else said.call


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def released(scene: Scene) -> bytes:
    """A round that all paid for; site a's consent."""
    scene.attack.collect()
    return scene.attack.consents()[0]


REFUSED = (RefusalCode.LEDGER,)


def test_a_coordinator_that_hides_its_mirror_gains_nothing(scene: Scene) -> None:
    """The restored site stays closed, through restarts, until a peer's receipts brought the charge back."""
    released(scene)
    spent = scene.site.ledger.spending(DATASET).spent
    assert scene.put_back().marked
    assert scene.show_mirror() == []
    assert scene.answers() == REFUSED
    scene.open()
    assert scene.show_mirror() == []
    assert scene.answers() == REFUSED
    with pytest.raises(Refusal) as refused:
        scene.site.check_ledger()
    assert "ledger recover --from" in refused.value.advice
    assert scene.site.ledger.spending(DATASET).spent == 0
    peer = scene.attack.bed.sites["b"].ledger
    assert len(recover_receipts(scene.site, peer.receipts(participant="a"))) == 1
    assert vouch(scene.site, peer) == ""
    assert scene.site.ledger.spending(DATASET).spent == pytest.approx(spent)
    assert scene.site.restored() is None
    assert scene.answers() == "upload"


def test_an_enrolment_is_refused_too(scene: Scene) -> None:
    scene.put_back()
    assert scene.attack.enrol("a").codes == REFUSED


def test_an_honest_mirror_alone_does_not_open_the_site(scene: Scene) -> None:
    """What it shows is charged, but that it shows all is its own word."""
    consent = released(scene)
    scene.put_back()
    assert len(scene.show_mirror(consent)) == 1
    assert scene.answers() == REFUSED


def test_the_operators_word_lets_the_mirror_count(scene: Scene) -> None:
    """It stands in the ledger, and holds from when a mirror was read."""
    consent = released(scene)
    scene.put_back()
    (number,) = trust_coordinator(scene.site, "no peer can be asked", "A. Berg")
    entry = scene.site.ledger.entries(first=number)[0]
    assert entry.kind is Kind.BUDGET
    assert entry.detail["operator"] == "A. Berg"
    assert entry.detail["reason"].startswith("no peer can be asked (restored from the backup of ")
    assert trust_coordinator(scene.site, "again", "A. Berg") == []
    assert scene.answers() == REFUSED  # no mirror was read yet
    assert len(scene.show_mirror(consent)) == 1
    assert scene.site.restored() is None
    assert scene.answers() == "upload"
    scene.site.ledger.verify(authority=scene.site.credentials.authority)
    with pytest.raises(Misuse, match="No restored backup"):
        trust_coordinator(scene.site, "once more", "A. Berg")


def test_a_running_participant_takes_the_word(scene: Scene) -> None:
    """The mirror was read when its session began; the operator's command comes from another process later."""
    consent = released(scene)
    scene.put_back()
    scene.show_mirror(consent)
    assert scene.answers() == REFUSED
    other = open_test_site(scene.site.config, scene.attack.bed.clock, SYSTEM_RANDOM)
    trust_coordinator(other, "known to us", "A. Berg")
    other.database.close()
    assert scene.answers() == "upload"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("which", "says"),
    [("mirror", "mirror of coordinator"), ("own", "site's own ledger"), ("old", "ends at"), ("edited", "verify")],
)
def test_who_cannot_vouch(scene: Scene, which: str, says: str) -> None:
    released(scene)
    scene.put_back()
    with scene.site.database.transaction() as connection:
        if which == "old":  # the backup is younger than all that the peer holds
            connection.execute(text("UPDATE participant_restored SET made = made + 3600"))
    peer = scene.attack.bed.sites["b"]
    if which == "edited":
        with peer.database.transaction() as connection:
            connection.execute(text("DROP TRIGGER IF EXISTS ledger_no_update"))
            connection.execute(text("UPDATE ledger SET cohort_size = 2 WHERE kind = 'charge'"))
    sources: dict[str, Callable[[], object]] = {
        "mirror": lambda: scene.attack.bed.hub.journal.mirror,
        "own": lambda: scene.site.ledger,
    }
    others = sources.get(which, lambda: peer.ledger)()
    assert says in vouch(scene.site, others)  # type: ignore[arg-type]
    assert scene.answers() == REFUSED


def test_a_checkpoint_makes_a_peers_ledger_young_enough(scene: Scene) -> None:
    """A peer that took part in nothing since can vouch for that."""
    scene.put_back()
    peer = scene.attack.bed.sites["b"].ledger
    before = scene.manifest.made + 1
    with scene.site.database.transaction() as connection:
        connection.execute(text("UPDATE participant_restored SET made = :made"), {"made": before})
    assert "ends at" in vouch(scene.site, peer)
    peer.checkpoint()
    assert vouch(scene.site, peer) == ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["malformed", "unknown"])
@pytest.mark.parametrize("restored", [True, False])
def test_a_missing_mirror_is_an_error_where_it_is_needed(
    scene: Scene, how: str, restored: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*_: object) -> bytes:
        if how == "unknown":
            raise UndeliveredError(Status.INVALID_ARGUMENT, "")
        return b"\xff\xff"

    if restored:
        scene.put_back()
        trust_coordinator(scene.site, "known to us", "A. Berg")
    channel = scene.attack.channels["a"]
    with monkeypatch.context() as patch:
        patch.setattr(channel, "fetch", fetch)
        Client(scene.site, in_process)._catch_up(channel)  # type: ignore[arg-type]
    (told,) = (item for item in caplog.records if "shows no mirror" in item.getMessage())
    assert told.levelno == (logging.ERROR if restored else logging.WARNING)
    assert (scene.answers() == REFUSED) is restored  # trust in a mirror that nobody saw lifts nothing


def test_check_shows_what_waits(scene: Scene) -> None:
    def found() -> CheckOutcome | None:
        checks = SiteCheck(scene.site.config, scene.attack.bed.clock).run()
        return next((item.status for item in checks if item.check == "restored"), None)

    assert found() is None
    scene.put_back()
    assert found() is CheckOutcome.FAILED
    trust_coordinator(scene.site, "known to us", "A. Berg")
    assert found() is CheckOutcome.WARNING
    scene.site.mirror_read = True
    assert scene.site.lift_trusted()
    assert found() is None


def test_a_backup_of_a_marked_state_is_marked(scene: Scene, tmp_path: Path) -> None:
    """Restoring one over the other, whose heads are the same, does not wash the mark off."""
    scene.put_back()
    scene.site.database.close()
    again = tmp_path / "again.backup"
    back_up(scene.party, again, software="test")
    assert restore(again, scene.party).marked
    assert restore(scene.archive, scene.party).marked
    scene.open()
    assert scene.site.restored() is not None


def test_a_backup_that_ends_where_the_state_ends_needs_no_word(scene: Scene) -> None:
    scene.site.database.close()
    assert not restore(scene.archive, scene.party).marked
    scene.open()
    assert scene.answers() == "upload"
    with scene.site.database.transaction() as connection:
        assert (count_enrolled(connection), count_waiting(connection)) == (1, 0)
