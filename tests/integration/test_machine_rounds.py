"""Hostile participants in a round: what they upload, consent to and decrypt out of turn is refused and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import NAMES, HostileChannel
from support.proving import signed_words
from support.randomness import RARE_DEVIATIONS
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.protocol.accumulator import OutOfOrder
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.rounds import DecryptionsDiffer, Round, RoundPhase
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.objects import chunks
from veilsum_coordinator.service.runner import HubFederation, RoundLostError
from veilsum_coordinator.storage.messages import sum_pieces
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Label
from veilsum_participant.protocol.contributions import Payload
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt
from veilsum_privacy.securesum.bfv import SecretKey
from veilsum_privacy.securesum.contribution import Slots
from veilsum_privacy.securesum.decryption import SignedStatement
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

Attack = Callable[["Ring"], None]

NOTHING = SignedStatement(b"", b"")


class Ring:
    """One study up to its first round, in which ``d`` (and whom a test names) does not keep to the protocol."""

    def __init__(self, bed: TestBed, width: int, method: str) -> None:
        self.bed, self.local = bed, bed.local
        study = bed.compile(make_request(schema_of(width), method, epsilon=60.0, min_cohort=2))
        self.label = study.tasks[0].label
        self.key = self.local.submit(study, bed.analyst)
        self.local.prepare(self.key)
        self._payload: Payload | None = None

    @property
    def hub(self) -> Hub:
        return self.bed.hub

    @property
    def machine(self) -> StudyMachine:
        return self.hub.studies[self.key].machine

    @property
    def round(self) -> Round:
        assert self.machine.round is not None
        return self.machine.round

    @property
    def attempt(self) -> int:
        return self.round.assignment.attempt

    def payload(self) -> Payload:
        """What ``d`` would upload, kept back."""
        if self._payload is None:
            channel = HostileChannel()
            channel.objects = {pb.OBJECT_KIND_BROADCAST: b"".join(self.round.broadcast)}
            [directive] = [item for item in self.hub.directives("d") if item.kind == pb.DIRECTIVE_KIND_CONTRIBUTE]
            self.local.cores["d"].handle(directive, channel)
            self._payload = channel.said[-1].values[1]
        assert self._payload is not None
        return self._payload

    def state(self) -> Any:
        """All of the round that a message could change."""
        uploads = self.round.accumulator.uploads
        return (
            self.machine.phase,
            self.round.phase,
            self.attempt,
            {name: (upload.next, upload.receipt) for name, upload in uploads.items()},
            dict(self.round.consents),
            set(self.round.answers),
            set(self.round.unable),
            {name: (seat.refusal, seat.gone) for name, seat in self.machine.seats.items()},
        )

    def refused(self, call: Callable[[], object], kind: type[HostileInput] = HostileInput, match: str | None = None) -> None:
        """The message ends in a typed error and changes nothing."""
        before = self.state()
        with pytest.raises(kind, match=match):
            call()
        assert self.state() == before

    def decrypt(self, name: str, words: list[Slots], /, **changes: Any) -> None:
        """A member sends words as its decryption and signs for them; ``changes`` make it sign for something else."""
        signed = signed_words(self.bed.sites[name], self.key, self.round, words, **changes)
        self.hub.decrypted(name, self.key, self.attempt, words, signed)

    def run(self, phase: RoundPhase, attack: Attack) -> Release:
        """Run the round honestly, with the attack once at the first sight of the phase."""
        done: list[bool] = []

        def wait() -> None:
            if not done and self.machine.round is not None and self.round.phase is phase:
                done.append(True)
                attack(self)
            self.local.step()

        release = HubFederation(self.hub, self.key, wait, self.bed.clock).sum(self.label)
        assert done
        return release


def _ring(directory: Path, width: int = 2, method: str = "statistics") -> Ring:
    return Ring(make_bed(directory, make_data(NAMES, width=width)), width, method)


@pytest.fixture
def ring(tmp_path: Path) -> Ring:
    return _ring(tmp_path)


def _is_right(release: Release) -> None:
    assert release.cohort == NAMES
    assert abs(release.values["records/table"][0] - 80) < RARE_DEVIATIONS * release.noise_std["records/table"] < 0.05 * 80


def test_uploads_out_of_order_doubled_late_or_foreign(tmp_path: Path) -> None:
    """Nothing but the next ciphertext, of these parameters, whole, is ever added."""

    def attack(ring: Ring) -> None:
        hub, key, attempt, payload = ring.hub, ring.key, ring.attempt, ring.payload()
        good = payload.ciphertexts
        count = len(good)
        assert count >= 2
        planned = ring.round.plan.encoding.parameters
        other = BFV_8192 if planned == BFV_4096 else BFV_4096
        foreign = SecretKey.generate(other).encrypt(np.zeros(other.degree, dtype=np.uint64))

        def send(index: int, data: bytes, number: int = attempt, name: str = "d") -> Callable[[], None]:
            return lambda: hub.upload(name, key, number, index, data)

        ring.refused(send(1, good[1]), OutOfOrder)
        ring.refused(send(2**63, good[0]))
        for data in (b"", b"xx", good[0][:-1], good[0] + b"\0", bytes(len(good[0]) - 1), foreign, b"\xff" * len(good[0])):
            ring.refused(send(0, data))
        ring.refused(send(0, good[0], attempt + 1), match="different attempt")
        ring.refused(send(0, good[0], name="x"), match="not invited")
        ring.refused(lambda: hub.upload("d", bytes(32), attempt, 0, good[0]), match="no such study")
        ring.refused(lambda: hub.receipt("d", key, attempt, payload.receipt), match="before the last")
        send(0, good[0])()
        ring.refused(send(0, good[0]), OutOfOrder)
        assert hub.upload_status("d", key, attempt) == (1, False)
        for index in range(1, count):
            send(index, good[index])()
        ring.refused(send(count, good[0]), match="more ciphertexts")

        signer = ring.bed.sites["d"].credentials.signing_key
        own = parse_receipt(payload.receipt.body)
        for change in ({"payload": bytes(32)}, {"participant": "a"}, {"study": bytes(32)}):
            wrong = sign_receipt(replace(own, **change), signer)  # type: ignore[arg-type]
            ring.refused(lambda wrong=wrong: hub.receipt("d", key, attempt, wrong))  # type: ignore[misc]
        for wrong in (
            SignedReceipt(payload.receipt.body, b""),
            SignedReceipt(b"", payload.receipt.signature),
            SignedReceipt(b"[]", payload.receipt.signature),
            sign_receipt(own, ring.bed.sites["c"].credentials.signing_key),
        ):
            ring.refused(lambda wrong=wrong: hub.receipt("d", key, attempt, wrong))  # type: ignore[misc]
        hub.receipt("d", key, attempt, payload.receipt)
        hub.receipt("d", key, attempt, payload.receipt)  # the same again is no fault
        second = sign_receipt(replace(own, number=99), signer)
        ring.refused(lambda: hub.receipt("d", key, attempt, second), match="second")
        ring.refused(send(count, good[0]))

    release = _ring(tmp_path, 100, "fedcgs").run(RoundPhase.CONTRIBUTING, attack)
    assert release.cohort == NAMES


def test_messages_of_other_phases(ring: Ring) -> None:
    """Consents and decryptions before their time, uploads after theirs."""

    def early(ring: Ring) -> None:
        words = [np.zeros(ring.round.plan.encoding.words(0), dtype=np.uint64)]
        ring.refused(lambda: ring.hub.consent("d", ring.key, ring.attempt, bytes(32)))
        ring.refused(lambda: ring.hub.decrypted("d", ring.key, ring.attempt, words, NOTHING))
        for kind in (pb.OBJECT_KIND_RECEIPTS, pb.OBJECT_KIND_SUM):
            ring.refused(lambda kind=kind: ring.hub.fetch("d", kind, ring.key, 1, ring.attempt))  # type: ignore[misc]
        ring.refused(lambda: ring.hub.fetch("x", pb.OBJECT_KIND_STUDY, ring.key, 0, 0))
        ring.refused(lambda: ring.hub.confirm("d", ring.key, pb.DIRECTIVE_KIND_CONSENT, 1, 1))

    _is_right(ring.run(RoundPhase.CONTRIBUTING, early))


def test_consents_of_wrong_length_or_for_another_attempt(ring: Ring) -> None:
    """A consent is 32 bytes for the present attempt; the sum stays closed until all are in."""

    def attack(ring: Ring) -> None:
        for consent in (b"", bytes(31), bytes(33)):
            ring.refused(lambda consent=consent: ring.hub.consent("d", ring.key, ring.attempt, consent))  # type: ignore[misc]
        ring.refused(lambda: ring.hub.consent("d", ring.key, ring.attempt + 1, bytes(32)))
        ring.refused(lambda: ring.hub.consent("x", ring.key, ring.attempt, bytes(32)))
        ring.refused(lambda: ring.hub.fetch("d", pb.OBJECT_KIND_SUM, ring.key, 1, ring.attempt))
        ring.refused(lambda: ring.hub.upload("d", ring.key, ring.attempt, 0, b""))

    _is_right(ring.run(RoundPhase.CONSENTING, attack))


def test_false_consent_is_refused_to_its_sender(ring: Ring) -> None:
    """A receipt commits to the consent that may follow it: another one opens nothing and spoils nothing."""

    def attack(ring: Ring) -> None:
        ring.refused(lambda: ring.hub.consent("d", ring.key, ring.attempt, bytes(32)), match="commits it to")

    _is_right(ring.run(RoundPhase.CONSENTING, attack))


def test_decryptions_of_the_wrong_shape(ring: Ring) -> None:
    """Another shape or number of ciphertexts is refused; the honest two then open the sum."""

    def attack(ring: Ring) -> None:
        width = ring.round.plan.encoding.words(0)
        shapes: list[list[tuple[int, ...]]] = [[(width - 1,)], [(width,), (width,)], [(width, 1)], [(0,)]]
        for shape in shapes:
            words = [np.zeros(part, np.uint64) for part in shape]
            ring.refused(lambda words=words: ring.decrypt("a", words), match="shape")  # type: ignore[misc]
        ring.refused(lambda: ring.hub.decrypted("x", ring.key, ring.attempt, [], NOTHING))

    _is_right(ring.run(RoundPhase.DECRYPTING, attack))


def test_decryption_that_is_signed_for_as_another(ring: Ring) -> None:
    """What a decryptor signs must be what it sent, about this sum: refused to it, and the round goes on to be opened."""
    other = {name: bytes(32) for name in ("words", "context", "keys", "study")} | {
        "round": 2,
        "attempt": 7,
        "participant": "b",
    }

    def attack(ring: Ring) -> None:
        words = [np.zeros(ring.round.plan.encoding.words(0), dtype=np.uint64)]
        for change in other.items():
            ring.refused(lambda change=change: ring.decrypt("a", words, **dict([change])), match="decryption statement")  # type: ignore[misc]

    _is_right(ring.run(RoundPhase.DECRYPTING, attack))


def test_decryption_that_another_signed_or_nobody(ring: Ring) -> None:
    """The signature is that of the sender's certified key, under a label of its own."""

    def attack(ring: Ring) -> None:
        words = [np.zeros(ring.round.plan.encoding.words(0), dtype=np.uint64)]
        own = signed_words(ring.bed.sites["a"], ring.key, ring.round, words)
        other = signed_words(ring.bed.sites["b"], ring.key, ring.round, words, participant="a")
        receipt = SignedStatement(own.body, ring.bed.sites["a"].credentials.signing_key.sign(Label.RECEIPT, own.body))
        for signed in (other, receipt, SignedStatement(own.body, b""), SignedStatement(b"", own.signature), NOTHING):
            ring.refused(lambda signed=signed: ring.hub.decrypted("a", ring.key, ring.attempt, words, signed))  # type: ignore[misc]

    _is_right(ring.run(RoundPhase.DECRYPTING, attack))


def test_decryption_that_nobody_asked_for(ring: Ring) -> None:
    """Two members decrypt, chosen by the coordinator: a third's words are not taken, so it cannot stand in for one."""

    def attack(ring: Ring) -> None:
        assert set(ring.round.decryptors(NAMES)) == {"a", "b"}
        false = [np.zeros(ring.round.plan.encoding.words(0), dtype=np.uint64)]
        ring.refused(lambda: ring.decrypt("d", false), match="not asked")

    _is_right(ring.run(RoundPhase.DECRYPTING, attack))


def test_decryptions_that_differ(ring: Ring) -> None:
    """One of the two lies: no value is used."""

    def attack(ring: Ring) -> None:
        false = [np.zeros(ring.round.plan.encoding.words(0), dtype=np.uint64)]
        ring.decrypt("a", false)
        with pytest.raises(DecryptionsDiffer):
            ring.decrypt("b", [false[0] + np.uint64(1)])

    with pytest.raises(RoundLostError, match="different words"):
        ring.run(RoundPhase.DECRYPTING, attack)
    assert ring.hub.journal.releases(ring.key) == []


def test_one_of_two_decryptors_sends_the_words(ring: Ring) -> None:
    """The other signs for the same digest; if it alone is left of the two, it is asked again, for the words."""

    def asked(ring: Ring) -> dict[str, bool]:
        return {
            name: directive.words
            for name in NAMES
            for directive in ring.hub.directives(name)
            if directive.kind == pb.DIRECTIVE_KIND_DECRYPT
        }

    def attack(ring: Ring) -> None:
        assert asked(ring) == {"a": True, "b": False}
        sites = ring.bed.sites
        words = [np.full(ring.round.plan.encoding.words(0), 7, dtype=np.uint64)]
        for name in ("a", "b"):
            ring.hub.decrypted(name, ring.key, ring.attempt, [], signed_words(sites[name], ring.key, ring.round, words))
        assert asked(ring) == {"a": True}  # both signed; nobody sent the words
        assert ring.round.phase is RoundPhase.DECRYPTING
        ring.machine.seats["a"].connected = False
        assert asked(ring) == {"b": True}
        with pytest.raises(DecryptionsDiffer):
            ring.decrypt("b", [words[0] + np.uint64(1)])

    with pytest.raises(RoundLostError, match="different words"):
        ring.run(RoundPhase.DECRYPTING, attack)


def test_words_beyond_the_modulus(ring: Ring) -> None:
    """Two liars that agree on words that no sum can have: found by the checks of the opened vector."""

    def attack(ring: Ring) -> None:
        false = [np.full(ring.round.plan.encoding.words(0), 2**64 - 1, dtype=np.uint64)]
        for name in ("a", "b"):
            ring.decrypt(name, false)

    with pytest.raises(RoundLostError, match="beyond the modulus"):
        ring.run(RoundPhase.DECRYPTING, attack)


@pytest.mark.parametrize("phase", [RoundPhase.CONTRIBUTING, RoundPhase.CONSENTING, RoundPhase.DECRYPTING])
def test_refusals_of_someone_outside_the_cohort(ring: Ring, phase: RoundPhase) -> None:
    """Whoever is not in the cohort cannot kill an attempt, lose a round that others paid for, or name decryptors unable."""
    ring.machine.refuse("d", RefusalCode.CLOSED, 0, 0)

    def attack(ring: Ring) -> None:
        assert ring.round.cohort == ("a", "b", "c")
        for code in ("context-mismatch", "budget-exceeded"):
            ring.refused(lambda code=code: ring.hub.refuse("d", ring.key, code, 1, ring.attempt))  # type: ignore[misc]
        ring.refused(lambda: ring.hub.refuse("x", ring.key, "budget-exceeded", 1, ring.attempt))
        ring.refused(lambda: ring.hub.refuse("a", ring.key, "no such code", 1, ring.attempt), match="fixed list")
        ring.refused(lambda: ring.hub.refuse("a", ring.key, "budget-exceeded", 1, ring.attempt + 1))

    release = ring.run(phase, attack)
    assert release.cohort == ("a", "b", "c")


@pytest.mark.parametrize("phase", [RoundPhase.CONSENTING, RoundPhase.DECRYPTING])
def test_the_refusal_of_a_directive_that_is_not_open_any_more_changes_nothing(ring: Ring, phase: RoundPhase) -> None:
    """Two members that hear their assignment again after their consent refuse it, and the sum opens all the same."""

    def attack(ring: Ring) -> None:
        for name in ("a", "b", "c"):
            ring.hub.refuse(name, ring.key, "round-replayed", 1, ring.attempt, (), pb.DIRECTIVE_KIND_CONTRIBUTE)
        ring.refused(lambda: ring.hub.refuse("a", ring.key, "round-replayed", 1, ring.attempt, (), 99))  # type: ignore[arg-type]
        assert not any(seat.refusal for seat in ring.machine.seats.values())

    assert ring.run(phase, attack).cohort == ("a", "b", "c", "d")


def test_refusals_do_not_pile_up(ring: Ring) -> None:
    """What a participant can make the coordinator remember is bounded."""

    def attack(ring: Ring) -> None:
        before = len(ring.machine.refusals)
        for number in range(2, 200):
            with pytest.raises(HostileInput):
                ring.hub.refuse("d", ring.key, "context-mismatch", number, number)
        for _ in range(200):
            ring.hub.refuse("d", ring.key, "context-mismatch", 0, 0)
        assert len(ring.machine.refusals) <= before + 1

    ring.run(RoundPhase.CONSENTING, attack)


def test_member_that_refuses_its_attempt_is_left_out_of_the_next(ring: Ring) -> None:
    """A refusal before consent costs an attempt, not the round: the others' reservation is freed and made anew."""

    def attack(ring: Ring) -> None:
        ring.hub.refuse("d", ring.key, "budget-exceeded", 1, ring.attempt)
        assert ring.round.cohort == ("a", "b", "c")

    release = ring.run(RoundPhase.CONTRIBUTING, attack)
    assert release.cohort == ("a", "b", "c")
    for name in ("a", "b", "c"):
        ledger = ring.bed.sites[name].ledger
        kinds = [entry.kind for entry in ledger.entries()]
        assert (kinds.count(Kind.RESERVE), kinds.count(Kind.FREE), kinds.count(Kind.CHARGE)) in ((2, 1, 1), (1, 0, 1))
        ledger.verify()


def test_sum_that_cannot_be_stored_costs_nobody_a_charge(ring: Ring) -> None:
    """Without a durable sum no consent is asked for, and the study ends instead of collecting the same uploads again."""
    with ring.hub.journal.database.transaction() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER full BEFORE INSERT ON coordinator_sum BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    with pytest.raises(RoundLostError, match="could not be stored"):
        ring.run(RoundPhase.CONTRIBUTING, lambda _: None)
    assert ring.machine.rounds == []
    assert [shown.phase for shown in ring.hub.status(ring.key).rounds] == ["failed"]
    ring.local.step()
    for name in NAMES:
        kinds = [entry.kind for entry in ring.bed.sites[name].ledger.entries()]
        assert Kind.CHARGE not in kinds
        assert kinds.count(Kind.FREE) == kinds.count(Kind.RESERVE) > 0


@pytest.mark.parametrize("phase", [RoundPhase.CONSENTING, RoundPhase.DECRYPTING])
def test_words_are_taken_only_from_those_asked_for_them(ring: Ring, phase: RoundPhase) -> None:
    """A stream of words is turned away at its first message, before it is kept in memory."""

    def early(ring: Ring) -> None:
        for name in NAMES:
            with pytest.raises(HostileInput, match="not asked"):
                ring.hub.words_owed(name, ring.key, ring.attempt)

    def asked(ring: Ring) -> None:
        assert ring.hub.words_owed("a", ring.key, ring.attempt) == ring.round.plan.encoding.ciphertexts
        with pytest.raises(HostileInput, match="not asked"):
            ring.hub.words_owed("d", ring.key, ring.attempt)

    _is_right(ring.run(phase, early if phase is RoundPhase.CONSENTING else asked))


def test_what_is_fetched_belongs_to_its_phase(tmp_path: Path) -> None:
    """The broadcast to contribute, the sum to decrypt: at other times there is none, so neither is held for longer."""
    seen = []

    def look(ring: Ring) -> None:
        current, hub = ring.round, ring.hub
        seen.append(current.phase)

        def fetch(kind: pb.ObjectKind.ValueType) -> Callable[[], bytes]:
            return lambda: hub.fetch("a", kind, ring.key, current.number, ring.attempt)

        if current.phase is RoundPhase.CONTRIBUTING:
            assert fetch(pb.OBJECT_KIND_BROADCAST)() == b"".join(current.broadcast)
            ring.refused(fetch(pb.OBJECT_KIND_SUM), match="no such object")
            return
        ring.refused(fetch(pb.OBJECT_KIND_BROADCAST), match="no such object")
        if current.phase is RoundPhase.CONSENTING:
            ring.refused(fetch(pb.OBJECT_KIND_SUM), match="no such object")
            return
        assert len(current.sum) > 1
        total = fetch(pb.OBJECT_KIND_SUM)()
        assert total == pb.SumObject(ciphertexts=map(bytes, current.sum)).SerializeToString()
        pieces = hub.pieces("a", pb.OBJECT_KIND_SUM, ring.key, current.number, ring.attempt)
        assert all(any(piece is part for piece in pieces) for part in current.sum), "none is copied"
        cut = list(chunks(pieces))
        assert b"".join(cut) == total
        assert [len(chunk) for chunk in cut[:-1]] == [CHUNK_BYTES] * (len(cut) - 1)
        assert 0 < len(cut[-1]) <= CHUNK_BYTES
        [directive] = [item for item in hub.directives("a") if item.kind == pb.DIRECTIVE_KIND_DECRYPT]
        assert hub.enclose("a", directive).HasField("object") == (len(total) <= CHUNK_BYTES)

    for number, phase in enumerate((RoundPhase.CONTRIBUTING, RoundPhase.CONSENTING, RoundPhase.DECRYPTING)):
        _ring(tmp_path / str(number), 100, "fedcgs").run(phase, look)
    assert seen == [RoundPhase.CONTRIBUTING, RoundPhase.CONSENTING, RoundPhase.DECRYPTING]


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [127, 128], [CHUNK_BYTES], [CHUNK_BYTES + 1, 3], [70_000] * 9, [3 * CHUNK_BYTES]]
)
def test_chunks_of_pieces_are_those_of_the_whole(sizes: list[int]) -> None:
    parts = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    whole = b"".join(parts)
    assert list(chunks(parts)) == [whole[at : at + CHUNK_BYTES] for at in range(0, max(len(whole), 1), CHUNK_BYTES)]
    assert b"".join(sum_pieces(parts)) == pb.SumObject(ciphertexts=parts).SerializeToString()
