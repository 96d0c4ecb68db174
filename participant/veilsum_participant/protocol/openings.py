"""The part of a round after upload: the sum is checked, paid for and consented to, and seen.

The coordinator fixes the sum and shows by what; the site answers the challenge that follows, once for each context. All
members' answers are shown; charge, consent and the signature under that list are one durable transaction. A consent is given
for one attempt of a round, ever. Who has all consents opens the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Role, verify_certificate
from veilsum_node.telemetry.logs import about
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.encoding import read
from veilsum_participant.protocol.budgets import record_refused_release
from veilsum_participant.protocol.cohorts import Weights, by_key, cohort_faults, is_held, remember
from veilsum_participant.protocol.contributions import give_up_open
from veilsum_participant.protocol.limits import paid_weights
from veilsum_participant.protocol.open_studies import OpenStudy, check_certificates, load_open_study
from veilsum_participant.protocol.payloads import sharing_masks, unpack_words
from veilsum_participant.protocol.policy import mask_faults, member_faults, noise_faults, refuse, term_faults
from veilsum_participant.site import LOG, AttemptOutcome, Site, SiteStep, Stage
from veilsum_participant.store.attempts import (
    AttemptRow,
    AttemptState,
    change_attempt,
    find_attempt,
    finish_attempt,
    paid_attempt,
)
from veilsum_participant.store.mirrors import keep_mirror_entry, mirror_entry
from veilsum_participant.store.studies import find_method
from veilsum_participant.store.tables import promised
from veilsum_privacy.computation.following import followed
from veilsum_privacy.ledger import Kind, SignedReceipt, Witness
from veilsum_privacy.ledger.kept_receipts import check_numbers
from veilsum_privacy.ledger.receipts import (
    ReceiptPart,
    WordPart,
    verify_countersignature,
    whole_receipts,
    whole_word,
)
from veilsum_privacy.securesum.check_words import (
    CheckAnswer,
    CheckStatement,
    Signed,
    SumStatement,
    answer_words,
    challenge,
    check_words,
    checks_digest,
    consent_statement,
    verify_answers,
    verify_sum,
)
from veilsum_privacy.securesum.context import Assignment, parse_assignment
from veilsum_privacy.securesum.graph import mask_graph
from veilsum_privacy.securesum.key_shares import MemberMasks
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.securesum.sum_plan import OneTimePlan
from veilsum_privacy.study.study import Study

DIGEST_BYTES = 32

Part = TypeVar("Part", ReceiptPart, CheckAnswer)


class Shown(NamedTuple):
    """What the coordinator shows before it asks for an answer; the rest of what was signed follows from the attempt.

    Attributes:
        receipts: of every member, in the cohort's order.
        countersigned: its own word that it shows exactly these to the whole cohort.
        fixed: digest of the sum.
        signature: under its word on that sum, which no later message can change.
        certificate: DER of the coordinator's certificate, by which it proved its name in this session.
    """

    receipts: Sequence[ReceiptPart]
    countersigned: WordPart
    fixed: bytes
    signature: bytes
    certificate: bytes

    @classmethod
    def of(cls, sent: says.FixedObject, certificate: bytes) -> Shown:
        """What was sent, by a coordinator of this certificate."""
        word, fixed = sent.countersigned, sent.fixed
        receipts = [ReceiptPart(item.payload, item.number, item.head, item.consent, item.signature) for item in sent.receipts]
        return cls(receipts, WordPart(word.entry, word.head, word.signature), fixed.sum, fixed.signature, certificate)

    def released(self, assignment: bytes = b"", members: Sequence[says.MemberConsent] = ()) -> says.ReleaseObject:
        """What of a release this is, which is how a site keeps it."""
        fixed = says.FixedObject(
            tuple(says.MemberReceipt(*item) for item in self.receipts),
            says.ReceiptsWord(*self.countersigned),
            says.SumWord(self.fixed, self.signature),
        )
        return says.ReleaseObject(assignment, fixed, self.certificate, tuple(members))


@dataclass(frozen=True)
class Consent:
    """A consent as it travels.

    Attributes:
        secret: 32 bytes.
        signature: under the consent statement: for which answers, of all members, it is given.
    """

    secret: bytes = field(repr=False)
    signature: bytes


class Openings:
    """Answer, consent, release."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def knows(self, key: bytes, attempt: int) -> bool:
        """Whether this site remembers an attempt."""
        with self._site.database.reading() as connection:
            return find_attempt(connection, key, attempt) is not None

    def on_fixed(self, key: bytes, round_number: int, attempt: int, shown: Shown) -> CheckAnswer:
        """Check by what a sum is fixed, and answer the challenge that follows; asked again, the same answer.

        The answer is durable before it is returned. Nothing is charged by it, and nothing opens.

        Raises:
            Refusal: a receipt, the countersignature or the word on the sum is missing, forged, old or for another sum; the
                attempt is over; or this site answered another challenge of it, and gives it up unless it is paid for.
        """
        site = self._site
        with site.observer.timed(SiteStep.ANSWER):
            with site.database.transaction() as connection:
                opened = load_open_study(connection, site, key)
                row = _find(connection, key, round_number, attempt)
                is_open = row.state is AttemptState.PAYLOAD
                refusal = Refusal(RefusalCode.ROUND, "The attempt's deadline passed before an answer was asked for.")
                if not is_open or site.steady() < row.deadline:
                    answer = self._answer(connection, opened, row, shown)
                    if answer is not None:
                        return answer
                    told = "This site answered another challenge of this attempt, and answers one for each context."
                    refusal = Refusal(RefusalCode.CHECK, told)
                if is_open:
                    give_up_open(connection, site, key, attempt)
            site.database.scrub()
            raise refusal

    def _answer(self, connection: Connection, opened: OpenStudy, row: AttemptRow, shown: Shown) -> CheckAnswer | None:
        """The one answer for a context: as it was kept, or made, signed and kept; None if another question was answered.

        Raises:
            Refusal: what is shown is not what exactly this attempt's cohort and coordinator signed.
        """
        site, key, kept = self._site, opened.digest, row.answered
        assignment, roster = parse_assignment(row.assignment), opened.roster(site)
        mine = row.signed_receipt.read()
        own = ReceiptPart(mine.payload, mine.number, mine.head, mine.consent, row.signed_receipt.signature)
        shown = shown._replace(receipts=_with_own(shown.receipts, assignment.names.index(site.name), own))
        receipts, word = _whole(shown, row, assignment, opened.study)
        self._verify_coordinator(shown, receipts, word, opened.study, row)
        fixed, rho = shown.fixed, challenge(row.context, [item.body for item in receipts], shown.fixed)
        if row.state is AttemptState.PAYLOAD:
            _check_unpaid(connection, key, row.round)
            if row.attempt < opened.row.attempt:
                raise Refusal(RefusalCode.ROUND, "This site knows of a later attempt.")
            _check_numbers(connection, receipts)
        plan = _plan(opened, roster, assignment)
        modulus = plan.ring.plain_modulus
        if kept is not None:
            if (signed := kept.again(rho, fixed)) is None:
                return None
            if row.state is AttemptState.PAYLOAD:  # the coordinator's key may have been renewed since
                change_attempt(connection, key, row.attempt, shown=shown.released().to_bytes())
            return CheckAnswer(answer_words(signed.body, modulus), signed.signature)
        sharing = sharing_masks(mask_graph(roster, opened.study.privacy), assignment, site.name)
        masks = MemberMasks(row.context, site.name, sharing, opened.seeds, promised(row.consent))
        words = check_words(unpack_words(promised(row.words), plan), modulus, rho, masks)
        statement = _statement(site.name, row, rho, fixed, words)
        signed = statement.sign(site.credentials.signing_key)
        change_attempt(
            connection,
            key,
            row.attempt,
            words=None,  # no second answer is made of them
            payload=None,  # it is in the sum, which its receiver signed for
            fixed=fixed,
            challenge=rho,
            answer=signed.body,
            answer_signature=signed.signature,
            shown=shown.released().to_bytes(),
        )
        return CheckAnswer(words, signed.signature)

    def on_answers(self, key: bytes, round_number: int, attempt: int, answers: Sequence[CheckAnswer]) -> Consent:
        """Check that everyone answered the challenge that this site answered; charge the ledger, consent and sign for the list
        of answers; asked again, the same consent and signature.

        Args:
            answers: of every member, in the cohort's order.

        Raises:
            Refusal: an answer is missing, forged or to another challenge; this site has answered none; the attempt was given
                up; policy, certificates or budget no longer hold. No consent was given then.
        """
        try:
            with self._site.observer.timed(SiteStep.CONSENT):
                return self._consent(key, round_number, attempt, answers)
        except Refusal as refusal:
            if RefusalCode.BUDGET in refusal.codes:  # lowered since the reservation
                self._record_refusal(key, attempt, refusal)
            raise

    def _consent(self, key: bytes, round_number: int, attempt: int, answers: Sequence[CheckAnswer]) -> Consent:
        site = self._site
        with site.database.transaction() as connection:
            opened = load_open_study(connection, site, key)
            row = _find(connection, key, round_number, attempt)
            if row.state is AttemptState.CONSENTED:
                return Consent(promised(row.consent), promised(row.agreed))
            in_time = site.steady() < row.deadline
            if in_time:
                consent = Consent(promised(row.consent), self._pay(connection, opened, row, answers))
            else:
                give_up_open(connection, site, key, attempt)
        if not in_time:
            site.database.scrub()
            raise Refusal(RefusalCode.ROUND, "The attempt's deadline passed before consent was asked for.")
        study, label = opened.study.name, row.label
        fields = about("consented", study=study, digest=key, round=round_number, attempt=attempt, label=label)
        LOG.info("study %s: round %d is paid for and consented to", study, round_number, extra=fields)
        return consent

    def _pay(self, connection: Connection, opened: OpenStudy, row: AttemptRow, answers: Sequence[CheckAnswer]) -> bytes:
        """Charge the ledger for an attempt and note the consent, if nothing speaks against it.

        Returns:
            The signature under the list of answers.

        Raises:
            Refusal: something does.
        """
        site, key, roster, kept = self._site, opened.digest, opened.roster(self._site), row.answered
        if kept is None:
            raise Refusal(RefusalCode.ROUND, "A consent is asked for before this site was asked to check the sum.")
        assignment = parse_assignment(row.assignment)
        modulus = _plan(opened, roster, assignment).ring.plain_modulus
        own = CheckAnswer(answer_words(kept.answer.body, modulus), kept.answer.signature)
        answers = _with_own(answers, assignment.names.index(site.name), own)
        weights = paid_weights(connection, opened.agreed.task(assignment.label), row.attempt, assignment.names)
        self._check_policy(connection, opened, roster, assignment, weights)
        _check_unpaid(connection, key, row.round)
        asked = _statement(site.name, row, kept.challenge, kept.sum)
        cohort = [roster.member(name).identity for name in assignment.names]
        try:
            said = verify_answers(kept.answer, asked, cohort, answers, modulus)
        except HostileInput as error:
            raise self._unreadable(error) from error
        kept_shown = read(promised(row.shown), says.ReleaseObject)
        shown = Shown.of(kept_shown.fixed, kept_shown.certificate)
        receipts, word = _whole(shown, row, assignment, opened.study)
        self._follow_mirror(connection, opened.study.coordinator, shown.countersigned.entry)
        certificates = {name: roster.member(name).enrolment.certificate for name in assignment.names}
        certificates[opened.study.coordinator] = shown.certificate
        self._charge(connection, row, Witness(receipts, word, certificates))
        agreed = consent_statement(asked, checks_digest(said)).sign(site.credentials.signing_key).signature
        finish_attempt(connection, key, row.attempt, AttemptState.CONSENTED, agreed=agreed)
        if followed(opened.study) is not None:
            from veilsum_participant.protocol.following import keep_seen_of  # which verifies results

            keep_seen_of(connection, row, assignment, shown, answers, agreed)
        if is_held(opened.study):
            dataset, members = opened.study.dataset, by_key([roster.member(name) for name in assignment.names])
            remember(connection, key, dataset, site.config.population(dataset), row.context, members, weights)
        return agreed

    def on_released(self, key: bytes, attempt: int) -> None:
        """The sum opened. Idempotent."""
        site = self._site
        with site.database.transaction() as connection:
            row = find_attempt(connection, key, attempt)
            if row is None or row.state not in (AttemptState.CONSENTED, AttemptState.RECOVERED):
                return
            if row.state == AttemptState.CONSENTED:
                change_attempt(connection, key, attempt, state=AttemptState.RELEASED)
            site.ledger.release_seen(connection, row.context)
            method = find_method(connection, key)
        if method is not None:
            site.observer.ended(method, AttemptOutcome.RELEASED)
        fields = about("released", digest=key, round=row.round, attempt=attempt, label=row.label or None)
        LOG.info("round %d of study %s released", row.round, key.hex()[:12], extra=fields)

    def _check_policy(
        self, connection: Connection, opened: OpenStudy, roster: Roster, assignment: Assignment, weights: Weights | None
    ) -> None:
        site, study, policy = self._site, opened.study, self._site.config.policy
        delta = site.budget_delta(study.dataset, connection)
        members = [roster.member(name) for name in assignment.names]
        check_certificates(members, site)
        noise = opened.agreed.task(assignment.label).noise(len(members))
        refuse(
            [
                *term_faults(opened.agreed, site.config, site.name, delta),
                *member_faults(members, study, policy, site.name),
                *mask_faults(mask_graph(roster, study.privacy), members, study, policy, site.name),
                *noise_faults(noise, members, policy, site.name),
            ]
        )
        refuse(cohort_faults(connection, opened.digest, study, site.config, members, site.name, weights))

    def _record_refusal(self, key: bytes, attempt: int, refusal: Refusal) -> None:
        site = self._site
        with site.database.transaction() as connection:
            row = find_attempt(connection, key, attempt)
            if row is not None:
                reserved = site.ledger.entries(kind=Kind.RESERVE, context=row.context, connection=connection)
                record_refused_release(connection, site, reserved[0].reservation, refusal)

    def _charge(self, connection: Connection, row: AttemptRow, witness: Witness) -> None:
        """The charge, and with it what depends on records."""
        ledger = self._site.ledger
        try:
            if row.snapshot is not None:
                ledger.snapshot(connection, row.context, row.snapshot)
            ledger.charge(connection, row.context, witness)
        except HostileInput as error:
            raise Refusal(RefusalCode.RECEIPT, error.message) from error

    def _verify_coordinator(
        self, shown: Shown, receipts: Sequence[SignedReceipt], word: SignedReceipt, study: Study, row: AttemptRow
    ) -> None:
        """Hold the words on receipts and sum to the coordinator that the study names, by the certificate of this session."""
        site = self._site
        try:
            identity = verify_certificate(shown.certificate, site.credentials.authority, site.clock(), Role.COORDINATOR)
            if identity.name != study.coordinator:
                raise HostileInput("The receipts come from a different coordinator than the study names.")
            verify_countersignature(word, identity, row.study, row.context, receipts)
        except HostileInput as error:
            raise Refusal(RefusalCode.RECEIPT, error.message) from error
        try:
            said = SumStatement(row.study, identity.name, row.round, row.attempt, row.context, shown.fixed)
            if len(said.sum) != DIGEST_BYTES:
                raise HostileInput(f"A sum is named by {DIGEST_BYTES} bytes.")
            verify_sum(Signed(said.to_bytes(), shown.signature), identity, said)
        except HostileInput as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: HostileInput) -> Refusal:
        self._site.observer.unreadable(Stage.CHECK)
        return Refusal(RefusalCode.CHECK, error.message)

    @staticmethod
    def _follow_mirror(connection: Connection, coordinator: str, entry: int) -> None:
        """A mirror whose entries begin anew is read from there again: what it held before is settled or lost."""
        settled = mirror_entry(connection, coordinator)
        if entry <= settled:
            told = "the mirror of coordinator %s is at entry %d, but had reached %d: it was restored or begun anew"
            LOG.warning(told, coordinator, entry, settled)
            keep_mirror_entry(connection, coordinator, entry - 1)


def _whole(
    shown: Shown, row: AttemptRow, assignment: Assignment, study: Study
) -> tuple[tuple[SignedReceipt, ...], SignedReceipt]:
    """The receipts and the coordinator's word on them as they were signed, for this very sum and its cohort; who signed the
    receipts is verified where they are charged.

    Raises:
        Refusal: there is not one of each member, or the site's own is another one.
    """
    own, names = row.signed_receipt, assignment.names
    try:
        receipts = whole_receipts(tuple(shown.receipts), own.read(), names)
        word = whole_word(shown.countersigned, own.read(), study.coordinator, receipts)
    except HostileInput as error:
        raise Refusal(RefusalCode.RECEIPT, error.message) from error
    if receipts[names.index(own.read().participant)] != own:
        raise Refusal(RefusalCode.RECEIPT, "This site's own receipt is not among the receipts.")
    return receipts, word


def _with_own(shown: Sequence[Part], place: int, own: Part) -> list[Part]:
    """All members' parts, with the site's own where that is left out: it has it."""
    return [own if at == place and not any(part) else part for at, part in enumerate(shown)]


def _find(connection: Connection, key: bytes, round_number: int, attempt: int) -> AttemptRow:
    """An attempt whose payload went out and which is not over; it may be paid for.

    Raises:
        Refusal: there is none.
    """
    row = find_attempt(connection, key, attempt)
    if row is None or row.round != round_number:
        raise Refusal(RefusalCode.ROUND, "This site has no such attempt.")
    if row.state not in (AttemptState.PAYLOAD, AttemptState.CONSENTED):
        raise Refusal(RefusalCode.ROUND, f"The attempt is {row.state}; it can be neither checked nor consented to.")
    return row


def _check_unpaid(connection: Connection, key: bytes, round_number: int) -> None:
    if paid_attempt(connection, key, round_number) is not None:
        raise Refusal(RefusalCode.ROUND, "This site consented to another attempt of this round.")


def _check_numbers(connection: Connection, receipts: Sequence[SignedReceipt]) -> None:
    """As the ledger does with the charge, before this site answers for them."""
    try:
        check_numbers(connection, [signed.read() for signed in receipts])
    except HostileInput as error:
        raise Refusal(RefusalCode.RECEIPT, error.message, error.advice) from error


def _plan(opened: OpenStudy, roster: Roster, assignment: Assignment) -> OneTimePlan:
    return opened.agreed.task(assignment.label).plan(len(roster.members), len(assignment.names)).encoding


def _statement(name: str, row: AttemptRow, rho: bytes, fixed: bytes, words: tuple[int, ...] = ()) -> CheckStatement:
    return CheckStatement(row.study, name, row.round, row.attempt, row.context, rho, fixed, words)
