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
from support.securesum import sum_of, summands_of
from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Credentials, Label
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.open_studies import OpenStudy
from veilsum_participant.protocol.contributions import Payload
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.store.attempts import (
    OPEN,
    AttemptRow,
    AttemptState,
    attempts_in,
    find_attempt,
)
from veilsum_participant.store.studies import StudyRow, find_study
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import Countersignature, SignedReceipt, countersign, parse_receipt, receipts_digest
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.context import Assignment, broadcast_digest, encode_broadcast
from veilsum_privacy.securesum.contribution import Slots, open_sum
from veilsum_privacy.securesum.decryption import SignedStatement
from veilsum_privacy.securesum.frames import numbers_to_bytes
from veilsum_privacy.securesum.parameters import TAGS, BfvParameters
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_privacy.study.study import Study, parse_study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_proto import federation_pb2 as pb

LABEL = "statistics"
NAMES = ("a", "b", "c", "d")


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
    pb.DIRECTIVE_KIND_CONSENT: pb.OBJECT_KIND_RECEIPTS,
    pb.DIRECTIVE_KIND_DECRYPT: pb.OBJECT_KIND_SUM,
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

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes) -> None:
        self._say("consent", study, number, attempt, consent)

    def decrypted(self, study: bytes, number: int, attempt: int, words: Sequence[Slots], signed: SignedStatement) -> None:
        self._say("decrypted", study, number, attempt, list(words), signed)

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
        self.cores[name].handle(directive, channel)
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

    def show_roster(self, name: str, enrolments: Sequence[Enrolment], *, dealer: bool = False) -> Said:
        """Show a roster to one site and ask for its boxes."""
        items = [pb.SignedEnrolment(certificate=e.certificate, body=e.body, signature=e.signature) for e in enrolments]
        objects = {pb.OBJECT_KIND_ROSTER: pb.RosterObject(enrolments=items).SerializeToString()}
        return self.tell(name, pb.DIRECTIVE_KIND_SEAL, objects=objects, dealer=dealer)

    def boxes(self, enrolments: Sequence[Enrolment], dealers: Iterable[str] = ("a",)) -> list[Box]:
        """Everyone's boxes."""
        made: list[Box] = []
        for name in sorted(self.bed.sites):
            made += self.show_roster(name, enrolments, dealer=name in dealers).values[1]
        return made

    def show_boxes(self, name: str, boxes: Iterable[Box]) -> Said:
        """Deliver boxes to one site."""
        items = [
            pb.SealedBox(
                sender=box.sender,
                recipient=box.recipient,
                purpose=box.purpose.value,
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

    def assign(self, name: str, assignment: Assignment, broadcast: bytes = b"", raw: bytes | None = None) -> Said:
        """Show an assignment to one site; keeps its payload."""
        said = self.tell(
            name,
            pb.DIRECTIVE_KIND_CONTRIBUTE,
            assignment.round,
            assignment.attempt,
            objects={pb.OBJECT_KIND_BROADCAST: broadcast},
            assignment=assignment.to_bytes() if raw is None else raw,
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

    def ask_consent(
        self,
        name: str,
        receipts: Sequence[SignedReceipt],
        number: int = 1,
        attempt: int = 1,
        countersigned: SignedReceipt | None = None,
    ) -> Said:
        """Show receipts to one site, countersigned as a coordinator would, and ask for its consent."""
        word = countersigned or self.countersign(receipts, number, attempt, context=self._context(name, attempt))
        shown = pb.ReceiptsObject(
            receipts=[pb.SignedReceipt(body=item.body, signature=item.signature) for item in receipts],
            countersigned=pb.SignedReceipt(body=word.body, signature=word.signature),
        )
        objects = {pb.OBJECT_KIND_RECEIPTS: shown.SerializeToString()}
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

    def ask_decryption(self, name: str, ciphertexts: Sequence[bytes], number: int = 1, attempt: int = 1) -> Said:
        """Ask one site to decrypt."""
        objects = {pb.OBJECT_KIND_SUM: pb.SumObject(ciphertexts=ciphertexts).SerializeToString()}
        return self.tell(name, pb.DIRECTIVE_KIND_DECRYPT, number, attempt, objects=objects, words=True)

    def consents(self, number: int = 1, attempt: int = 1) -> list[bytes]:
        """Everyone's consent, honestly."""
        shown = self.receipts(attempt)
        return [self.ask_consent(name, shown, number, attempt).values[3] for name in self.assignments[attempt].names]

    def finish(self, number: int = 1, attempt: int = 1) -> Integers:
        """An honest opening of a collected attempt, seen by all."""
        consents = self.consents(number, attempt)
        cohort = self.assignments[attempt].names
        words = self.ask_decryption(cohort[0], self.sum(attempt), number, attempt).values[3]
        values = open_sum(words, self.plan(attempt).encoding, consents)
        for name in cohort:
            self.tell(name, pb.DIRECTIVE_KIND_RELEASED, number, attempt)
        return values

    # -- what the adversary can do alone, and with a colluder --------------------------------------------------------------

    def plan(self, attempt: int = 1) -> RoundPlan:
        """The public plan of an attempt."""
        return (
            AgreedStudy(self.study)
            .task(self.assignments[attempt].label)
            .plan(len(self.bed.sites), len(self.assignments[attempt].cohort))
        )

    def slots(self, attempt: int = 1) -> list[int]:
        """How many slots each ciphertext of an attempt has, tags included."""
        encoding = self.plan(attempt).encoding
        return [encoding.words(index) + TAGS for index in range(encoding.ciphertexts)]

    def sum(self, attempt: int = 1, names: Iterable[str] | None = None) -> list[bytes]:
        """Add ciphertexts of kept payloads; of the whole cohort by default."""
        chosen = [self.payloads[name, attempt].ciphertexts for name in names or self.assignments[attempt].names]
        return self.add(chosen, attempt)

    def add(self, payloads: Sequence[Sequence[bytes]], attempt: int = 1) -> list[bytes]:
        """Add any payloads, ciphertext by ciphertext."""
        plan, parts = self.plan(attempt).encoding, zip(*payloads, strict=True)
        return [sum_of(of, plan.parameters, plan.words(index) + TAGS) for index, of in enumerate(parts)]

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
        """Everything that a colluding participant holds of the study: BFV key, tag key, its pair seeds."""
        return OpenStudy(self.row(colluder), AgreedStudy(self.study))

    def words(self, colluder: str, ciphertexts: Sequence[bytes], attempt: int = 1) -> list[Slots]:
        """Decrypt anything of few summands with a colluder's key, tags unchecked: masked words without the tags."""
        secret, _ = self.spied(colluder).keys(len(self.bed.sites))
        plan, found = self.plan(attempt).encoding, []
        for index, data in enumerate(ciphertexts):
            slots = plan.words(index) + TAGS
            found.append(secret.decrypt(data, slots, summands_of(data, plan.parameters, slots))[:-TAGS])
        return found

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


def flat(words: Iterable[Slots]) -> Slots:
    """All words of a contribution."""
    return np.concatenate(list(words))


def add_mod(left: Slots, right: Slots, modulus: int) -> Slots:
    """(left + right) mod t."""
    return (left + right) % np.uint64(modulus)


def subtract_mod(left: Slots, right: Slots, modulus: int) -> Slots:
    """(left - right) mod t."""
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


def key_extracting_ciphertext(parameters: BfvParameters, slots: int) -> bytes:
    """The ciphertext c0 = 0, c1 = floor(q/t), whose plain decryption is the secret key modulo t, as a sum of many has it."""
    second = np.zeros(parameters.degree, dtype=np.uint64)
    second[0] = parameters.prime // parameters.plain_modulus
    return numbers_to_bytes(np.concatenate([np.zeros(slots, dtype=np.uint64), second]), parameters.coefficient_bytes)
