"""The adversary of the design: a coordinator that sends what it likes to real participants and keeps all that they say.

:class:`Adversary` drives real sites directive by directive, honest steps included, so that a test departs from the protocol at
one place only. It can also hold a colluding participant's keys. Nothing of a participant is replaced.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from support.federation import TestBed, make_bed, make_data, make_request, open_test_site, schema_of
from support.shown import shown_message, shown_of
from veilsum.local.federation import as_directive
from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.storage.messages import assignment_message
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Credentials, Label
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.open_studies import OpenStudy
from veilsum_participant.protocol.openings import Shown
from veilsum_participant.protocol.payloads import Payload
from veilsum_participant.store.attempts import (
    OPEN,
    AttemptRow,
    AttemptState,
    attempts_in,
    find_attempt,
)
from veilsum_participant.store.studies import StudyRow, find_study
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import Countersignature, SignedReceipt, parse_receipt, receipts_digest
from veilsum_privacy.results.whole_sums import total_from_bytes
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import CheckAnswer, Signed, SumStatement, challenge, verify_check_words
from veilsum_privacy.securesum.context import Assignment, broadcast_digest, encode_broadcast
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import self_masks
from veilsum_privacy.securesum.opening import Total, open_words, unmask_values
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_privacy.securesum.streams import StreamPurpose
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_proto import federation_pb2 as pb

LABEL = "statistics"
NAMES = ("a", "b", "c", "d")

Words = NDArray[np.uint64]


def encoded(study: Study, label: str, arrays: Mapping[str, NDArray[np.float64]]) -> bytes:
    """Arrays as they are broadcast for a task of a study."""
    return encode_broadcast(arrays, AgreedStudy(study).task(label).single)


@dataclass(frozen=True)
class Said:
    """One message of a participant: the channel's call and its arguments."""

    call: str
    values: tuple[Any, ...] = field(repr=False)

    @property
    def refused(self) -> RefusalCode:
        """The code, if it is a refusal for one reason."""
        (code,) = self.codes
        return code

    @property
    def codes(self) -> tuple[RefusalCode, ...]:
        """All codes, if it is a refusal."""
        assert self.call == "refuse", f"{self.call} instead of a refusal"
        assert all(isinstance(code, RefusalCode) for code in self.values[1])
        return tuple(self.values[1])


ENCLOSED = ("a", "c")
"""Sites to which what a directive is answered by comes with it; the others fetch it. Attacks must fail on either way."""

OBJECTS = {
    pb.DIRECTIVE_KIND_CONTRIBUTE: pb.OBJECT_KIND_BROADCAST,
    pb.DIRECTIVE_KIND_CHECK: pb.OBJECT_KIND_FIXED,
    pb.DIRECTIVE_KIND_CONSENT: pb.OBJECT_KIND_ANSWERS,
}


class HostileChannel:
    """Hands out the objects that the adversary chose and keeps what the participant says."""

    def __init__(self, coordinator: str = "coordinator", certificate: bytes = b"") -> None:
        self.coordinator, self.coordinator_certificate = coordinator, certificate
        self.objects: dict[int, bytes] = {}
        self.said: list[Said] = []

    def greet_again(self) -> bool:
        return False

    def fetch(self, kind: pb.ObjectKind.ValueType, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        if kind not in self.objects:
            raise HostileInput("There is no such object.")
        return self.objects[kind]

    def _say(self, call: str, *values: Any) -> None:
        self.said.append(Said(call, values))

    def enrol(self, study: bytes, enrolment: Enrolment) -> None:
        self._say("enrol", study, enrolment)

    def refuse(
        self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: pb.DirectiveKind.ValueType
    ) -> None:
        self._say("refuse", study, tuple(codes), number, attempt)

    def seal(self, study: bytes, boxes: Sequence[Box]) -> None:
        self._say("seal", study, list(boxes))

    def ready(self, study: bytes) -> None:
        self._say("ready", study)

    def upload(self, study: bytes, payload: Payload) -> None:
        self._say("upload", study, payload)

    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        self._say("answer", study, number, attempt, words, signature)

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        self._say("consent", study, number, attempt, consent, signature)

    def confirm(self, study: bytes, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        self._say("confirm", study, kind, number, attempt)


def altered(study: Study, **changes: Any) -> Study:
    """The study with top-level fields changed, and fields of ``privacy`` and of its first task by prefix."""
    value = parse_canonical(study.to_bytes(), what="study")
    for name, change in changes.items():
        place, _, inner = name.partition("__")
        if place == "task":
            value["tasks"][0][inner] = change
        elif inner:
            value[place][inner] = change
        else:
            value[place] = change
    return parse_study(canonical(value))


class Adversary:
    """A hostile coordinator in front of the bed's sites.

    Args:
        bed: the honest parties.
        study: what the analyst signs; a statistics study with ten releases by default.
    """

    def __init__(self, bed: TestBed, study: Study | None = None) -> None:
        self.bed = bed
        self.cores = {name: ParticipantCore(site) for name, site in bed.sites.items()}
        self.channels = {name: HostileChannel(certificate=bed.hub.credentials.identity.certificate) for name in bed.sites}
        self._entries = itertools.count(1)
        self.use(
            study or altered(bed.compile(make_request(schema_of(2), min_cohort=2)), task__releases=10, privacy__epsilon=50.0)
        )

    def use(self, study: Study) -> None:
        """Turn to another study."""
        self.study, self.key = study, study_digest(study.to_bytes())
        self.payloads: dict[tuple[str, int], Payload] = {}
        self.assignments: dict[int, Assignment] = {}

    def reopen(self, name: str) -> None:
        """A site's process ends, and another one begins on its files."""
        site = self.bed.sites[name]
        site.database.close()
        self.bed.sites[name] = open_test_site(site.config, self.bed.clock, SYSTEM_RANDOM)
        self.cores[name] = ParticipantCore(self.bed.sites[name])

    # -- speaking to a participant -----------------------------------------------------------------------------------------

    def tell(
        self,
        name: str,
        kind: pb.DirectiveKind.ValueType,
        number: int = 0,
        attempt: int = 0,
        objects: Mapping[Any, bytes] | None = None,
        **fields: Any,
    ) -> Said:
        """Send one directive with the objects it may fetch; returns the one answer."""
        channel = self.channels[name]
        channel.objects = dict(objects or {})
        before = len(channel.said)
        directive = pb.Directive(kind=kind, study=self.key, round=number, attempt=attempt, **fields)
        if name in ENCLOSED and kind in OBJECTS and OBJECTS[kind] in channel.objects:
            directive.object = channel.objects.pop(OBJECTS[kind])
        self.cores[name].handle(as_directive(directive), channel)
        assert len(channel.said) == before + 1, "a directive has one answer"
        return channel.said[-1]

    def study_object(self, data: bytes | None = None, label: Label = Label.STUDY) -> bytes:
        """The study as the analyst signs it."""
        return self.bed.signed(self.study if data is None else data, label=label).SerializeToString()

    def enrol(self, name: str, data: bytes | None = None) -> Said:
        """Ask one site to enrol."""
        return self.tell(
            name, pb.DIRECTIVE_KIND_ENROL, objects={pb.OBJECT_KIND_STUDY: self.study_object() if data is None else data}
        )

    def enrolments(self, names: Iterable[str] = ()) -> list[Enrolment]:
        """Enrol sites; their enrolments in roster order."""
        return [self.enrol(name).values[1] for name in sorted(names or self.bed.sites)]

    def show_roster(self, name: str, enrolments: Sequence[Enrolment]) -> Said:
        """Show a roster to one site and ask for its boxes."""
        items = [pb.SignedEnrolment(certificate=e.certificate, body=e.body, signature=e.signature) for e in enrolments]
        objects = {pb.OBJECT_KIND_ROSTER: pb.RosterObject(enrolments=items).SerializeToString()}
        return self.tell(name, pb.DIRECTIVE_KIND_SEAL, objects=objects)

    def boxes(self, enrolments: Sequence[Enrolment]) -> list[Box]:
        """Everyone's boxes."""
        made: list[Box] = []
        for name in sorted(self.bed.sites):
            made += self.show_roster(name, enrolments).values[1]
        return made

    def show_boxes(self, name: str, boxes: Iterable[Box]) -> Said:
        """Deliver boxes to one site."""
        items = [
            pb.SealedBox(
                sender=box.sender,
                recipient=box.recipient,
                ciphertext=box.ciphertext,
                signature=box.signature,
            )
            for box in boxes
        ]
        return self.tell(
            name, pb.DIRECTIVE_KIND_UNSEAL, objects={pb.OBJECT_KIND_BOXES: pb.BoxesObject(boxes=items).SerializeToString()}
        )

    def set_up(self) -> None:
        """Enrolment and keys, honestly."""
        made = self.boxes(self.enrolments())
        for name in self.bed.sites:
            assert self.show_boxes(name, [box for box in made if box.recipient == name]).call == "ready"

    def assignment(
        self, names: Iterable[str] = NAMES, number: int = 1, attempt: int = 1, broadcast: bytes = b"", **changes: Any
    ) -> Assignment:
        """An assignment for these members with their present nonces."""
        values: dict[str, Any] = {
            "round": number,
            "attempt": attempt,
            "label": LABEL,
            "cohort": tuple((name, self.bed.sites[name].nonce if name in self.bed.sites else bytes(16)) for name in names),
            "broadcast": broadcast_digest(broadcast),
            "deadline": self.bed.clock.now + 3600,
        }
        return Assignment(**(values | changes))

    def assign(self, name: str, assignment: Assignment, broadcast: bytes = b"", parts: pb.Assignment | None = None) -> Said:
        """Show an assignment to one site, or these parts of it; keeps its payload."""
        said = self.tell(
            name,
            pb.DIRECTIVE_KIND_CONTRIBUTE,
            assignment.round,
            assignment.attempt,
            objects={pb.OBJECT_KIND_BROADCAST: broadcast},
            assignment=assignment_message(assignment) if parts is None else parts,
        )
        if said.call == "upload":
            self.payloads[name, assignment.attempt] = said.values[1]
            self.assignments[assignment.attempt] = assignment
        return said

    def collect(self, names: Iterable[str] = NAMES, number: int = 1, attempt: int = 1) -> list[SignedReceipt]:
        """An honest attempt up to the receipts."""
        assignment = self.assignment(names, number, attempt)
        for name in assignment.names:
            assert self.assign(name, assignment).call == "upload"
        return self.receipts(attempt)

    def receipts(self, attempt: int = 1) -> list[SignedReceipt]:
        """The receipts of an attempt in the cohort's order."""
        return [self.payloads[name, attempt].receipt for name in self.assignments[attempt].names]

    def ask_check(
        self,
        name: str,
        receipts: Sequence[SignedReceipt],
        total: Contribution | bytes | None = None,
        number: int = 1,
        attempt: int = 1,
        countersigned: SignedReceipt | None = None,
        fixed: Signed | None = None,
    ) -> Said:
        """Show one site receipts and a sum's digest, signed as a coordinator would, and ask for its answer.

        Args:
            total: the sum whose digest is shown, or any digest; the true one by default.
            countersigned, fixed: in place of the words that a coordinator would give.
        """
        word = countersigned or self.countersign(receipts, number, attempt, context=self._context(name, attempt))
        stands = fixed or self.fix(name, total, number, attempt)
        return self.show(name, shown_of(receipts, word, stands), number, attempt)

    def show(self, name: str, shown: Shown, number: int = 1, attempt: int = 1) -> Said:
        """Show one site these parts, and ask for its answer."""
        objects = {pb.OBJECT_KIND_FIXED: shown_message(shown).SerializeToString()}
        return self.tell(name, pb.DIRECTIVE_KIND_CHECK, number, attempt, objects=objects)

    def fix(
        self,
        name: str,
        total: Contribution | bytes | None = None,
        number: int = 1,
        attempt: int = 1,
        signer: Credentials | None = None,
        **changes: Any,
    ) -> Signed:
        """The coordinator's word on a sum, for one site; ``signer`` and ``changes`` make it wrong."""
        context, digest = self._context(name, attempt), total
        if not isinstance(digest, bytes):
            try:
                digest = (digest or self.total(attempt)).digest(self.plan(attempt).encoding, context)
            except (KeyError, HostileInput):  # of an attempt that never was, or of members who were told of different cohorts
                digest = bytes(32)
        values: dict[str, Any] = {
            "study": self.key,
            "coordinator": "coordinator",
            "round": number,
            "attempt": attempt,
            "context": context,
            "sum": digest,
        }
        return SumStatement(**(values | changes)).sign((signer or self.bed.hub.credentials).signing_key)

    def answers(self, number: int = 1, attempt: int = 1) -> list[CheckAnswer]:
        """Everyone's answer about the true sum, honestly; in the cohort's order."""
        shown = self.receipts(attempt)
        said = [self.ask_check(name, shown, None, number, attempt) for name in self.assignments[attempt].names]
        return [CheckAnswer(*item.values[3:]) for item in said]

    def ask_consent(self, name: str, answers: Sequence[CheckAnswer], number: int = 1, attempt: int = 1) -> Said:
        """Show all answers to one site, and ask for its consent."""
        found = [pb.MemberAnswer(words=item.words, signature=item.signature) for item in answers]
        objects = {pb.OBJECT_KIND_ANSWERS: pb.AnswersObject(answers=found).SerializeToString()}
        return self.tell(name, pb.DIRECTIVE_KIND_CONSENT, number, attempt, objects=objects)

    def _context(self, name: str, attempt: int) -> bytes:
        payload = self.payloads.get((name, attempt))
        return bytes(32) if payload is None else context_of(payload.receipt)

    def countersign(
        self,
        receipts: Sequence[SignedReceipt],
        number: int = 1,
        attempt: int = 1,
        signer: Credentials | None = None,
        **changes: Any,
    ) -> SignedReceipt:
        """The coordinator's word on receipts; ``signer`` and ``changes`` make it wrong."""
        values: dict[str, Any] = {
            "study": self.key,
            "coordinator": "coordinator",
            "round": number,
            "attempt": attempt,
            "context": context_of(receipts[0]) if receipts else bytes(32),
            "receipts": receipts_digest(receipts),
            "entry": next(self._entries),
            "head": bytes(32),
        }
        key = (signer or self.bed.hub.credentials).signing_key
        return countersign(Countersignature(**(values | changes)), key)

    def consents(self, number: int = 1, attempt: int = 1) -> list[bytes]:
        """Everyone's consent, honestly."""
        answers, names = self.answers(number, attempt), self.assignments[attempt].names
        return [self.ask_consent(name, answers, number, attempt).values[3] for name in names]

    def finish(self, number: int = 1, attempt: int = 1) -> Integers:
        """An honest opening of a collected attempt, seen by all."""
        answers, cohort = self.answers(number, attempt), self.assignments[attempt].names
        consents = [self.ask_consent(name, answers, number, attempt).values[3] for name in cohort]
        values = self.open(answers, consents, attempt)
        for name in cohort:
            self.tell(name, pb.DIRECTIVE_KIND_RELEASED, number, attempt)
        return values

    def open(
        self, answers: Sequence[CheckAnswer], consents: Sequence[bytes], attempt: int = 1, total: Contribution | None = None
    ) -> Integers:
        """Open a sum as an honest coordinator would, and hold it to the answers.

        Raises:
            HostileInput: it does not open, or is not the one that the members answered for.
        """
        plan, context, whole = self.plan(attempt).encoding, self.context(attempt), total or self.total(attempt)
        words = open_words(whole, plan, context, consents)
        rho = challenge(context, [item.body for item in self.receipts(attempt)], whole.digest(plan, context))
        verify_check_words(words, plan.ring.plain_modulus, context, rho, [item.words for item in answers], consents)
        return unmask_values(words, plan, context, consents)

    # -- what the adversary can do alone, and with a colluder --------------------------------------------------------------

    def plan(self, attempt: int = 1) -> RoundPlan:
        """The public plan of an attempt."""
        return (
            AgreedStudy(self.study)
            .task(self.assignments[attempt].label)
            .plan(len(self.bed.sites), len(self.assignments[attempt].cohort))
        )

    def context(self, attempt: int = 1) -> bytes:
        """The context that the first member of an attempt signed for."""
        return context_of(self.receipts(attempt)[0])

    def contribution(self, name: str, attempt: int = 1) -> Contribution:
        """A kept payload."""
        return total_from_bytes(b"".join(self.payloads[name, attempt].pieces), self.plan(attempt).encoding)

    def total(self, attempt: int = 1, names: Iterable[str] | None = None) -> Contribution:
        """Add kept payloads; of the whole cohort by default."""
        total = Total(self.plan(attempt).encoding)
        for name in names or self.assignments[attempt].names:
            total.add(self.contribution(name, attempt))
        return total.contribution

    def unmasked_share(self, total: Contribution, consents: Sequence[bytes], attempt: int = 1) -> Words:
        """The key share of any sum without the self-masks of these consents, below :meth:`share_bound`."""
        bound = self.share_bound(attempt)
        masks = self_masks(StreamPurpose.SELF_KEY, self.context(attempt), consents, len(total.share), bound)
        return subtract_mod(total.share, masks, bound)

    def share_bound(self, attempt: int = 1) -> int:
        """What the words of a key share are below."""
        plan = self.plan(attempt).encoding
        return 1 << plan.ring.share_bits(plan.cohort)

    def row(self, name: str) -> StudyRow:
        """A site's own row of the study."""
        with self.bed.sites[name].database.transaction() as connection:
            found = find_study(connection, self.key)
        assert found is not None
        return found

    def attempt_row(self, name: str, attempt: int = 1) -> AttemptRow | None:
        """A site's own row of an attempt."""
        with self.bed.sites[name].database.transaction() as connection:
            return find_attempt(connection, self.key, attempt)

    def spied(self, colluder: str) -> OpenStudy:
        """Everything that a colluding participant holds of the study: its pair seeds."""
        return OpenStudy(self.row(colluder), AgreedStudy(self.study))

    def consent_of(self, name: str, attempt: int = 1) -> bytes:
        """A site's own consent, given or not, as it is kept."""
        row = self.attempt_row(name, attempt)
        assert row is not None
        assert row.consent is not None
        return row.consent

    # -- what must hold whatever happened ----------------------------------------------------------------------------------

    def kinds(self, name: str) -> Counter[str]:
        """How many entries of each kind the site's ledger holds."""
        return Counter(entry.kind.value for entry in self.bed.sites[name].ledger.entries())

    def charges(self, name: str) -> int:
        """How many charges stand in the site's ledger."""
        return self.kinds(name)[Kind.CHARGE.value]

    def check_ledgers(self) -> None:
        """Every ledger verifies; a round is charged at most once and exactly where consent was given; the rest is freed."""
        for site in self.bed.sites.values():
            site.ledger.verify(authority=site.credentials.authority)
            entries = site.ledger.entries()
            charged = [entry.reservation for entry in entries if entry.kind is Kind.CHARGE]
            rounds = [(item.study, item.round) for item in charged]
            assert len(set(rounds)) == len(rounds), "a round was charged twice"
            freed = {entry.reservation.context for entry in entries if entry.kind is Kind.FREE}
            reserved = {entry.reservation.context for entry in entries if entry.kind is Kind.RESERVE}
            with site.database.transaction() as connection:
                states = {row.context: row.state for row in attempts_in(connection, (*OPEN, *_CLOSED))}
            paid = {context for context, state in states.items() if state in ("consented", "released")}
            assert {item.context for item in charged} == paid, "charges and consents differ"
            assert freed == {context for context, state in states.items() if state == "tombstone"}
            assert reserved == set(states)

    def nothing_said_but_codes(self, name: str, start: int = 0) -> None:
        """All that a site said since ``start`` is refusals that carry a code of the fixed list and what it was asked."""
        for said in self.channels[name].said[start:]:
            study, codes, number, attempt = said.values
            assert said.call == "refuse"
            assert study == self.key
            assert codes
            assert all(type(code) is RefusalCode for code in codes)
            assert list(codes) == [code for code in RefusalCode if code in codes], "each once, in the list's order"
            assert (type(number), type(attempt)) == (int, int)


_CLOSED = (AttemptState.TOMBSTONE, AttemptState.CONSENTED, AttemptState.RELEASED)
"""What an attempt that the site itself made ends in; recovered ones were made by the process before the backup."""


def make_adversary(directory: Path, names: Iterable[str] = NAMES, rows: int = 20, **options: Any) -> Adversary:
    """An adversary before a fresh federation."""
    return Adversary(make_bed(directory, make_data(names, rows), **options))


def add_mod(left: Words, right: Words, modulus: int) -> Words:
    """(left + right) mod the modulus."""
    return (left + right) % np.uint64(modulus)


def subtract_mod(left: Words, right: Words, modulus: int) -> Words:
    """(left - right) mod the modulus."""
    return (left + (np.uint64(modulus) - right)) % np.uint64(modulus)


def uniformity(words: NDArray[np.uint64], modulus: int) -> float:
    """p-value of the hypothesis that words are uniform below the modulus, by how many of them lie in one of 64 equal bins.

    The first bin is around 0. If they are uniform, some bin has m of n words with a chance of at most 64 P(Bin(n, 1/64) >= m),
    which holds for the dozen words of these sums too: of so few, chi-square's p-value is below 1e-6 once in 2,000 times.
    """
    bins = [(int(word) * 128 // modulus + 1) // 2 % 64 for word in words]
    return min(1.0, 64 * float(binom.sf(np.bincount(bins).max() - 1, len(bins), 1 / 64)))


def context_of(receipt: SignedReceipt) -> bytes:
    """The context that a receipt was signed for."""
    return parse_receipt(receipt.body).context
