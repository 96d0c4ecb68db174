"""Hostile participants in a round: what they upload, answer and consent to out of turn is refused and the round goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.hostile import NAMES, HostileChannel
from support.one_time import shifted
from support.randomness import RARE_DEVIATIONS
from support.shown import shown_message, shown_of
from veilsum.local.federation import as_directive
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.protocol.accumulator import OutOfOrder
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.objects import chunks
from veilsum_coordinator.service.runner import HubFederation, RoundLostError
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Label
from veilsum_participant.protocol.payloads import Payload
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import AttemptRow, find_attempt
from veilsum_privacy.ledger import Kind, LedgerReader
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.ledger.receipts import parse_receipt, sign_receipt
from veilsum_privacy.ledger.verification import verify_ledger
from veilsum_privacy.securesum.check_words import CheckAnswer, consent_statement
from veilsum_privacy.securesum.one_time_keys import coefficients_to_bytes
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

Attack = Callable[["Ring"], None]


def attempt_row(site: Site, study: bytes, attempt: int) -> AttemptRow:
    """A site's own row of an attempt."""
    with site.database.reading() as connection:
        row = find_attempt(connection, study, attempt)
    assert row is not None
    return row


class Ring:
    """One study up to its first round, in which ``d`` (and whom a test names) does not keep to the protocol."""

    def __init__(self, bed: TestBed, width: int, method: str) -> None:
        self.bed, self.local = bed, bed.local
        study = bed.compile(make_request(schema_of(width), method, epsilon=60.0, min_cohort=2))
        self.label = study.tasks[0].label
        self.key = self.local.submit(study, bed.analyst)
        self._machine = self.hub.studies[self.key].machine
        self.local.prepare(self.key)
        self._payload: Payload | None = None

    @property
    def hub(self) -> Hub:
        return self.bed.hub

    @property
    def machine(self) -> StudyMachine:
        if (entry := self.hub.studies.get(self.key)) is not None:  # else it is over, and this is how it ended
            self._machine = entry.machine
        return self._machine

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
            self.local.cores["d"].handle(as_directive(directive), channel)
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
            dict(self.round.answers),
            dict(self.round.consents),
            {name: (seat.refusal, seat.gone) for name, seat in self.machine.seats.items()},
        )

    def refused(self, call: Callable[[], object], kind: type[HostileInput] = HostileInput, match: str | None = None) -> None:
        """The message ends in a typed error and changes nothing."""
        before = self.state()
        with pytest.raises(kind, match=match):
            call()
        assert self.state() == before

    def answer(self, name: str, words: tuple[int, ...], signer: str = "", /, **changes: Any) -> CheckAnswer:
        """What a member says, whatever its words; ``signer`` and ``changes`` make it sign as another, for something else."""
        statement = replace(self.round.total.statement(name, words), **changes)
        return CheckAnswer(words, statement.sign(self.bed.sites[signer or name].credentials.signing_key).signature)

    def said(self, name: str) -> tuple[int, ...]:
        """The words that a member would answer with, and does in the end."""
        channel = HostileChannel(certificate=self.hub.credentials.identity.certificate)
        channel.objects = {
            pb.OBJECT_KIND_FIXED: self.hub.objects.fetch(name, pb.OBJECT_KIND_FIXED, self.key, *self.round.present)
        }
        [directive] = [item for item in self.hub.directives(name) if item.kind == pb.DIRECTIVE_KIND_CHECK]
        self.local.cores[name].handle(as_directive(directive), channel)
        return tuple(channel.said[-1].values[3])

    def consent(self, name: str) -> tuple[bytes, bytes]:
        """A member's consent and signature, kept back; it has paid."""
        channel = HostileChannel()
        channel.objects = {
            pb.OBJECT_KIND_ANSWERS: self.hub.objects.fetch(name, pb.OBJECT_KIND_ANSWERS, self.key, *self.round.present)
        }
        [directive] = [item for item in self.hub.directives(name) if item.kind == pb.DIRECTIVE_KIND_CONSENT]
        self.local.cores[name].handle(as_directive(directive), channel)
        return channel.said[-1].values[3], channel.said[-1].values[4]

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
    """Nothing but the next piece, of these parameters, whole, is ever added."""

    def attack(ring: Ring) -> None:
        hub, key, attempt, payload = ring.hub, ring.key, ring.attempt, ring.payload()
        good = [bytes(piece) for piece in payload.pieces]
        count = len(good)
        assert count >= 2
        ring_of = ring.round.plan.encoding.ring
        above = coefficients_to_bytes(np.full(ring.round.plan.encoding.words, ring_of.prime, dtype=np.uint64), ring_of)

        def send(index: int, data: bytes, number: int = attempt, name: str = "d") -> Callable[[], None]:
            return lambda: hub.upload(name, key, number, index, data)

        ring.refused(send(1, good[1]), OutOfOrder)
        ring.refused(send(2**63, good[0]))
        for data in (b"", b"xx", good[0][:-1], good[0] + b"\0", bytes(len(good[0]) - 1), good[1], b"\xff" * len(good[0])):
            ring.refused(send(0, data))
        ring.refused(send(0, good[0], attempt + 1), match="different attempt")
        ring.refused(send(0, good[0], name="x"), match="not invited")
        ring.refused(lambda: hub.upload("d", bytes(32), attempt, 0, good[0]), match="no such study")
        good_receipt = part_of_receipt(payload.receipt)
        ring.refused(lambda: hub.receipt("d", key, attempt, good_receipt), match="before the last")
        send(0, good[0])()
        ring.refused(send(0, good[0]), OutOfOrder)
        assert hub.upload_status("d", key, attempt) == (1, False)
        for data in (b"", good[1][:-1], good[1] + b"\0", good[0], above, b"\xff" * len(good[1])):
            ring.refused(send(1, data))
        for index in range(1, count):
            send(index, good[index])()
        ring.refused(send(count, good[0]), match="more pieces")

        signer = ring.bed.sites["d"].credentials.signing_key
        own = parse_receipt(payload.receipt.body)
        changes = ("payload", "context", "study"), ({"participant": "a"}, {"version": 1}, {"round": 2}, {"attempt": 9})
        for change in (*({name: bytes(32)} for name in changes[0]), *changes[1]):
            wrong = part_of_receipt(sign_receipt(replace(own, **change), signer))  # type: ignore[arg-type]
            ring.refused(lambda wrong=wrong: hub.receipt("d", key, attempt, wrong), match="not signed for this attempt")  # type: ignore[misc]
        for wrong, match in (
            (good_receipt._replace(signature=b""), "not signed for this attempt"),
            (good_receipt._replace(number=own.number + 1), "not signed for this attempt"),
            (good_receipt._replace(head=bytes(32)), "not signed for this attempt"),
            (good_receipt._replace(consent=bytes(32)), "not signed for this attempt"),
            (good_receipt._replace(number=0), "out of range"),
            (good_receipt._replace(number=2**64 - 1), "out of range"),
            (good_receipt._replace(head=b""), "32 bytes"),
            (good_receipt._replace(consent=own.consent + b"!"), "32 bytes"),
            (part_of_receipt(sign_receipt(own, ring.bed.sites["c"].credentials.signing_key)), "not signed for this attempt"),
        ):
            ring.refused(lambda wrong=wrong: hub.receipt("d", key, attempt, wrong), match=match)  # type: ignore[misc]
        hub.receipt("d", key, attempt, good_receipt)
        hub.receipt("d", key, attempt, good_receipt._replace(payload=b""))  # the same again is not a fault
        second = part_of_receipt(sign_receipt(replace(own, number=99), signer))
        ring.refused(lambda: hub.receipt("d", key, attempt, second), match="second")
        ring.refused(send(count, good[0]))

    release = _ring(tmp_path, 100, "fedcgs").run(RoundPhase.CONTRIBUTING, attack)
    assert release.cohort == NAMES


def test_messages_of_other_phases(ring: Ring) -> None:
    """Answers and consents before their time, uploads after theirs."""

    def early(ring: Ring) -> None:
        ring.refused(lambda: ring.hub.answer("d", ring.key, ring.attempt, (1, 2, 3), b""))
        ring.refused(lambda: ring.hub.consent("d", ring.key, ring.attempt, bytes(32), b""))
        for kind in (pb.OBJECT_KIND_FIXED, pb.OBJECT_KIND_ANSWERS):
            ring.refused(lambda kind=kind: ring.hub.objects.fetch("d", kind, ring.key, 1, ring.attempt))  # type: ignore[misc]
        ring.refused(lambda: ring.hub.objects.fetch("x", pb.OBJECT_KIND_STUDY, ring.key, 0, 0))
        ring.refused(lambda: ring.hub.confirm("d", ring.key, pb.DIRECTIVE_KIND_CONSENT, 1, 1))

    _is_right(ring.run(RoundPhase.CONTRIBUTING, early))


def test_answers_that_their_sender_did_not_sign(ring: Ring) -> None:
    """Of another number of words, not below the modulus, about another sum, by another member or nobody: refused."""

    def attack(ring: Ring) -> None:
        words, modulus = ring.said("d"), ring.round.plan.encoding.ring.plain_modulus
        good = ring.answer("d", words)

        def send(answer: CheckAnswer, name: str = "d", number: int = ring.attempt) -> Callable[[], None]:
            return lambda: ring.hub.answer(name, ring.key, number, *answer)

        for wrong in ((), words[:2], (*words, 0), (modulus, 1, 2), (2**64 - 1, 1, 2), (-1, 1, 2)):
            ring.refused(send(ring.answer("d", wrong)))
        for change in (
            *({name: bytes(32)} for name in ("study", "context", "challenge", "sum")),
            {"round": 2},
            {"attempt": 7},
        ):
            ring.refused(send(ring.answer("d", words, **change)))  # type: ignore[arg-type]
        ring.refused(send(ring.answer("d", words, participant="c")))
        ring.refused(send(ring.answer("d", words, "c")))
        ring.refused(send(good, "c"))
        ring.refused(send(good, "x"))
        ring.refused(send(good, number=ring.attempt + 1))
        body = ring.round.total.statement("d", words).to_bytes()
        key = ring.bed.sites["d"].credentials.signing_key
        for signature in (b"", good.signature[:-1], key.sign(Label.CONSENT, body), key.sign(Label.RECEIPT, body)):
            ring.refused(send(CheckAnswer(words, signature)))
        for index in range(3):
            other = tuple((word + (place == index)) % modulus for place, word in enumerate(words))
            ring.refused(send(CheckAnswer(other, good.signature)))
        send(good)()
        before = ring.state()
        send(good)()  # the same again is not a fault
        send(ring.answer("d", words))()  # nor under another signature of the same words
        assert ring.state() == before
        ring.refused(send(ring.answer("d", (1, 2, 3))), match="second")
        ring.refused(lambda: ring.hub.consent("d", ring.key, ring.attempt, bytes(32), b""))
        ring.refused(lambda: ring.hub.upload("d", ring.key, ring.attempt, 0, b""))

    _is_right(ring.run(RoundPhase.CHECKING, attack))


def test_a_false_answer_costs_the_round_its_values(ring: Ring) -> None:
    """A member that signs for other words than it sent spoils the sum, and cannot make it another one: nothing is released."""

    def attack(ring: Ring) -> None:
        words, honest = ring.said("d"), ring.local.cores["d"]
        ring.hub.answer("d", ring.key, ring.attempt, *ring.answer("d", (words[0] ^ 1, *words[1:])))
        secret = attempt_row(ring.bed.sites["d"], ring.key, ring.attempt).consent

        class Liar:
            """Consents to its own false answer, which its program would not."""

            def handle(self, directive: pb.Directive, channel: Any) -> None:
                if directive.kind != pb.DIRECTIVE_KIND_CONSENT:
                    honest.handle(as_directive(directive), channel)
                    return
                statement = consent_statement(ring.round.total.statement("d", ()), ring.round.checks)
                signed = statement.sign(ring.bed.sites["d"].credentials.signing_key)
                channel.consent(ring.key, 1, ring.attempt, secret, signed.signature)

            def __getattr__(self, name: str) -> Any:
                return getattr(honest, name)

        ring.local.cores["d"] = Liar()  # type: ignore[assignment]

    with pytest.raises(RoundLostError, match="vouched"):
        ring.run(RoundPhase.CHECKING, attack)
    assert ring.hub.journal.releases(ring.key) == []


def test_a_false_sum_of_the_coordinators_own_is_not_released(ring: Ring) -> None:
    """Once all have answered the sum is the one that stood fixed: memory that changed, or a program that lies, is found."""

    def attack(ring: Ring) -> None:
        total = ring.round.total
        total.total = shifted(total.total, 1, 1, ring.round.plan.encoding.ring)

    with pytest.raises(RoundLostError, match="vouched"):
        ring.run(RoundPhase.CONSENTING, attack)
    assert ring.hub.journal.releases(ring.key) == []


def test_consents_that_are_false_or_given_to_other_answers(ring: Ring) -> None:
    """A consent is the one that its sender's receipt commits it to, for the present attempt, signed for the list of all
    answers; the sum stays closed until all are in."""

    def attack(ring: Ring) -> None:
        consent, signature = ring.consent("d")

        def send(secret: bytes, signed: bytes, name: str = "d", number: int = ring.attempt) -> Callable[[], None]:
            return lambda: ring.hub.consent(name, ring.key, number, secret, signed)

        for wrong in (b"", consent[:-1], consent + b"\0", bytes(32), bytes(33)):
            ring.refused(send(wrong, signature), match="commits it to")
        ring.refused(send(consent, signature, "c"), match="commits it to")  # another's, copied
        ring.refused(send(consent, signature, "x"))
        ring.refused(send(consent, signature, number=ring.attempt + 1))
        own = ring.round.total.statement("d", ())
        key = ring.bed.sites["d"].credentials.signing_key
        changes: list[dict[str, Any]] = [{name: bytes(32)} for name in ("study", "context", "challenge", "sum")] + [
            {"round": 2},
            {"attempt": 7},
            {"participant": "c"},
        ]
        for change in changes:
            other = consent_statement(replace(own, **change), ring.round.checks)
            ring.refused(send(consent, other.sign(key).signature))
        ring.refused(send(consent, consent_statement(own, bytes(32)).sign(key).signature))
        right = consent_statement(own, ring.round.checks)
        ring.refused(send(consent, right.sign(ring.bed.sites["c"].credentials.signing_key).signature))
        for signed in (b"", signature[:-1], key.sign(Label.CHECK, right.to_bytes())):
            ring.refused(send(consent, signed))
        send(consent, signature)()
        before = ring.state()
        send(consent, signature)()
        assert ring.state() == before
        ring.refused(send(bytes(32), signature))
        ring.refused(lambda: ring.hub.upload("d", ring.key, ring.attempt, 0, b""))
        assert ring.round.phase is RoundPhase.CONSENTING

    _is_right(ring.run(RoundPhase.CONSENTING, attack))


def test_nothing_is_charged_while_a_sum_is_checked(ring: Ring) -> None:
    """A member that refuses to answer, or is gone, costs another attempt and nobody a charge."""

    def attack(ring: Ring) -> None:
        ring.hub.answer("a", ring.key, ring.attempt, *ring.answer("a", ring.said("a")))
        ring.hub.refuse("d", ring.key, "check-invalid", 1, ring.attempt, (), pb.DIRECTIVE_KIND_CHECK)
        assert (ring.round.phase, ring.round.cohort, ring.round.attempts) == (RoundPhase.CONTRIBUTING, ("a", "b", "c"), 2)
        assert (ring.round.sum, ring.round.answers, ring.round.fixed) == (None, {}, None)

    release = ring.run(RoundPhase.CHECKING, attack)
    assert release.cohort == ("a", "b", "c")
    for name in NAMES:
        kinds = [entry.kind for entry in ring.bed.sites[name].ledger.entries()]
        assert kinds.count(Kind.CHARGE) == (name != "d")
        ring.bed.sites[name].ledger.verify()
    mirror = LedgerReader(ring.hub.journal.database)
    assert [entry.kind for entry in mirror.entries()].count(Kind.RECEIPTS) == 2, "both were shown"
    ledgers = [LedgerReader(site.database) for site in ring.bed.sites.values()]
    verify_ledger(mirror, against=ledgers)
    for ledger in ledgers:
        verify_ledger(ledger, against=[mirror, *ledgers])


@pytest.mark.parametrize("away", [False, True])
def test_a_member_that_does_not_answer_is_left_out(tmp_path: Path, away: bool) -> None:
    """Late or not connected for the grace period: the others contribute again, and nobody has paid twice."""
    ring = Ring(make_bed(tmp_path, make_data(NAMES), waits=Waits(grace=5)), 2, "statistics")

    def attack(ring: Ring) -> None:
        for name in "abc":
            ring.hub.answer(name, ring.key, ring.attempt, *ring.answer(name, ring.said(name)))
        ring.local.cores.pop("d")
        if away:
            ring.hub.disconnect("d", ring.hub.sessions["d"].serial)
        ring.bed.clock.now += 6 if away else Waits().check
        ring.hub.tick()
        if not away:
            assert ring.machine.seats["d"].gone

    release = ring.run(RoundPhase.CHECKING, attack)
    assert release.cohort == ("a", "b", "c")
    assert ring.hub.shown.status(ring.key).rounds[0].attempts == 2
    for name in "abc":
        assert [entry.kind for entry in ring.bed.sites[name].ledger.entries()].count(Kind.CHARGE) == 1


@pytest.mark.parametrize("phase", [RoundPhase.CONTRIBUTING, RoundPhase.CHECKING, RoundPhase.CONSENTING])
def test_refusals_of_someone_outside_the_cohort(ring: Ring, phase: RoundPhase) -> None:
    """Whoever is not in the cohort cannot kill an attempt, or lose a round that others paid for."""
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


def test_a_consent_that_does_not_come_in_time_loses_the_round(ring: Ring) -> None:
    """Others have paid: no other attempt begins, and the reason names who was waited for."""

    def attack(ring: Ring) -> None:
        for name in "abc":
            ring.hub.consent(name, ring.key, ring.attempt, *ring.consent(name))
        ring.local.cores.pop("d")
        ring.bed.clock.now += Waits().consent
        ring.hub.tick()

    with pytest.raises(RoundLostError, match=r"lost after consent was asked for: no consent from d in time"):
        ring.run(RoundPhase.CONSENTING, attack)
    assert ring.hub.journal.releases(ring.key) == []
    for name in NAMES:
        kinds = [entry.kind for entry in ring.bed.sites[name].ledger.entries()]
        assert kinds.count(Kind.CHARGE) == (name != "d")


@pytest.mark.parametrize("phase", [RoundPhase.CHECKING, RoundPhase.CONSENTING])
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


@pytest.mark.parametrize(
    "write", ["INSERT ON coordinator_sum", "UPDATE OF answers ON coordinator_sum WHEN NEW.answers IS NOT NULL"]
)
def test_sum_that_cannot_be_stored_costs_nobody_a_charge(ring: Ring, write: str) -> None:
    """Without a durable sum and all answers no consent is asked for, and the study ends instead of collecting them again."""
    with ring.hub.journal.database.transaction() as connection:
        connection.exec_driver_sql(f"CREATE TRIGGER full BEFORE {write} BEGIN SELECT RAISE(ABORT, 'full'); END")
    with pytest.raises(RoundLostError, match="could not be stored"):
        ring.run(RoundPhase.CONTRIBUTING, lambda _: None)
    assert [shown.phase for shown in ring.hub.shown.status(ring.key).rounds] == ["failed"]
    ring.local.step()
    for name in NAMES:
        kinds = [entry.kind for entry in ring.bed.sites[name].ledger.entries()]
        assert Kind.CHARGE not in kinds
        assert kinds.count(Kind.FREE) == kinds.count(Kind.RESERVE) > 0


def test_what_is_fetched_belongs_to_its_phase(tmp_path: Path) -> None:
    """The broadcast to contribute, the fixed sum to answer, the answers to consent, and the sum by another certificate: at
    other times there is none."""
    kinds = {
        RoundPhase.CONTRIBUTING: (pb.DIRECTIVE_KIND_CONTRIBUTE, pb.OBJECT_KIND_BROADCAST),
        RoundPhase.CHECKING: (pb.DIRECTIVE_KIND_CHECK, pb.OBJECT_KIND_FIXED),
        RoundPhase.CONSENTING: (pb.DIRECTIVE_KIND_CONSENT, pb.OBJECT_KIND_ANSWERS),
    }

    def look(ring: Ring) -> None:
        current, hub = ring.round, ring.hub
        asked, own = kinds[current.phase]

        def fetch(kind: pb.ObjectKind.ValueType) -> Callable[[], bytes]:
            return lambda: hub.objects.fetch("a", kind, ring.key, current.number, ring.attempt)

        for _, kind in kinds.values():
            if kind != own and (current.phase, kind) != (RoundPhase.CONSENTING, pb.OBJECT_KIND_FIXED):
                ring.refused(fetch(kind), match="no such object")
        data = fetch(own)()
        if current.phase is RoundPhase.CONTRIBUTING:
            assert data == b"".join(current.broadcast)
        elif current.phase is RoundPhase.CHECKING:
            assert current.countersigned is not None
            assert current.fixed is not None
            shown = shown_of(current.receipts(), current.countersigned, current.fixed)
            told = shown_message(shown)
            told.receipts[0].Clear()  # a has its own
            assert pb.FixedObject.FromString(data) == told
        else:
            found = pb.AnswersObject.FromString(data).answers
            assert found[0] == pb.MemberAnswer()
            assert [tuple(item.words) for item in found[1:]] == [current.answers[name].words for name in current.cohort[1:]]
            assert current.broadcast == ()
            assert pb.FixedObject.FromString(fetch(pb.OBJECT_KIND_FIXED)()).fixed.sum == current.total.digest
        [directive] = [item for item in hub.directives("a") if item.kind == asked]
        assert hub.objects.enclose("a", directive).object == data
        assert hub.objects.fetch("b", own, ring.key, current.number, ring.attempt) is not None

    for number, phase in enumerate(kinds):
        _ring(tmp_path / str(number), 100, "fedcgs").run(phase, look)


@pytest.mark.parametrize(
    "sizes", [[], [0], [1], [127, 128], [CHUNK_BYTES], [CHUNK_BYTES + 1, 3], [70_000] * 9, [3 * CHUNK_BYTES]]
)
def test_chunks_of_pieces_are_those_of_the_whole(sizes: list[int]) -> None:
    parts = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    whole = b"".join(parts)
    assert list(chunks(parts)) == [whole[at : at + CHUNK_BYTES] for at in range(0, max(len(whole), 1), CHUNK_BYTES)]
