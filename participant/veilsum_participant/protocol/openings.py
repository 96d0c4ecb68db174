"""The part of a round after upload: receipts, charge and consent, decryption, release.

Charge and consent are one durable transaction. A consent is given for one attempt of a round, ever. A sum is decrypted only
if its tags are right for the exact cohort, and only one sum for each context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection

from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Role, verify_certificate
from veilsum_node.telemetry.logs import about
from veilsum_participant.observer import AttemptOutcome, SiteStep, Stage
from veilsum_participant.open_studies import OpenStudy, check_certificates, load_open_study
from veilsum_participant.policy import mask_faults, member_faults, noise_faults, refuse, term_faults
from veilsum_participant.protocol.budgets import record_refused_release
from veilsum_participant.protocol.cohorts import by_key, cohort_faults, is_held, remember
from veilsum_participant.protocol.contributions import give_up_open
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.attempts import PAID, AttemptRow, AttemptState, change_attempt, count_attempts, find_attempt
from veilsum_participant.store.peers import keep_mirror_entry, keep_peers, mirror_entry, peer_numbers
from veilsum_participant.store.studies import find_method
from veilsum_participant.store.tables import promised
from veilsum_privacy.ledger import Kind, Receipt, SignedReceipt, Witness
from veilsum_privacy.ledger.receipts import Countersignature, parse_receipt, verify_countersignature
from veilsum_privacy.securesum.context import Assignment, parse_assignment
from veilsum_privacy.securesum.contribution import Slots, decrypt_sum, keys_digest
from veilsum_privacy.securesum.decryption import SignedStatement, Statement, sign_statement, words_digest
from veilsum_privacy.securesum.graph import mask_graph
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class Shown:
    """What the coordinator shows before it asks for consent.

    Attributes:
        receipts: of every member, in the cohort's order.
        countersigned: its own word that it shows exactly these to the whole cohort.
        certificate: DER of the coordinator's certificate, by which it proved its name in this session.
    """

    receipts: Sequence[SignedReceipt]
    countersigned: SignedReceipt
    certificate: bytes


@dataclass(frozen=True)
class OpenedSum:
    """What a site decrypted, and its signed word that the sum opened to it.

    Attributes:
        words: (N - 2,) of each ciphertext, self-masks still on.
        signed: over the digest of all of them and the round's context.
    """

    words: list[Slots] = field(repr=False)
    signed: SignedStatement


class Openings:
    """Consent, decryption, release."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def on_receipts(self, key: bytes, round_number: int, attempt: int, shown: Shown) -> bytes:
        """Check that everyone signed for the same sum and the coordinator for them all; keep that, charge the ledger and
        consent; asked again, the same answer.

        Returns:
            The consent, 32 bytes.

        Raises:
            Refusal: a receipt or the countersignature is missing, forged, old or for another context; the attempt was given
                up; policy, certificates or budget no longer hold. No consent was given then.
        """
        try:
            with self._site.observer.timed(SiteStep.CONSENT):
                return self._consent(key, round_number, attempt, shown)
        except Refusal as refusal:
            if RefusalCode.BUDGET in refusal.codes:  # lowered since the reservation
                self._record_refusal(key, attempt, refusal)
            raise

    def _consent(self, key: bytes, round_number: int, attempt: int, shown: Shown) -> bytes:
        site = self._site
        with site.database.transaction() as connection:
            opened = load_open_study(connection, site, key)
            row = find_attempt(connection, key, attempt)
            if row is None or row.round != round_number:
                raise Refusal(RefusalCode.ROUND, "This site has no such attempt.")
            if row.state == AttemptState.CONSENTED:
                return promised(row.consent)
            if row.state != AttemptState.PAYLOAD:
                raise Refusal(RefusalCode.ROUND, f"The attempt is {row.state}; it cannot be consented to.")
            in_time = site.steady() < row.deadline
            if in_time:
                self._pay(connection, opened, row, shown)
        if not in_time:
            with site.database.transaction() as connection:
                give_up_open(connection, site, key, attempt)
            raise Refusal(RefusalCode.ROUND, "The attempt's deadline passed before consent was asked for.")
        study, label = opened.study.name, row.label
        fields = about("consented", study=study, digest=key, round=round_number, attempt=attempt, label=label)
        LOG.info("study %s: round %d is paid for and consented to", study, round_number, extra=fields)
        return promised(row.consent)

    def _pay(self, connection: Connection, opened: OpenStudy, row: AttemptRow, shown: Shown) -> None:
        """Charge the ledger for an attempt and note the consent, if nothing speaks against it.

        Raises:
            Refusal: something does.
        """
        site, key, roster = self._site, opened.digest, opened.roster(self._site)
        assignment = parse_assignment(row.assignment)
        self._check_policy(connection, opened, roster, assignment)
        if count_attempts(connection, key, PAID, round=assignment.round):
            raise Refusal(RefusalCode.ROUND, "This site consented to another attempt of this round.")
        compared = self._compare(shown.receipts, row, assignment, key)
        word = self._verify_coordinator(shown, opened.study, key, row.context)
        seen = peer_numbers(connection, key)
        for receipt in compared:
            if receipt.number <= seen[receipt.participant]:
                raise Refusal(RefusalCode.RECEIPT, f"A receipt of {receipt.participant} has a number seen before.")
        keep_peers(connection, key, [(item.participant, item.number, item.head) for item in compared])
        self._follow_mirror(connection, word)
        certificates = {name: roster.member(name).enrolment.certificate for name in assignment.names}
        certificates[word.coordinator] = shown.certificate
        self._charge(connection, row, Witness(tuple(shown.receipts), shown.countersigned, certificates))
        change_attempt(connection, key, assignment.attempt, state=AttemptState.CONSENTED)
        if is_held(opened.study):
            dataset, members = opened.study.dataset, by_key([roster.member(name) for name in assignment.names])
            remember(connection, key, dataset, site.config.population(dataset), row.context, members)

    def on_sum(self, key: bytes, round_number: int, attempt: int, ciphertexts: Sequence[bytes]) -> OpenedSum:
        """Decrypt the sum of an attempt that this site consented to, and sign for what it opened to.

        Raises:
            Refusal: no consent was given, another sum was decrypted for this context, or the sum holds more noise than the
                cohort's or wrong tags (the caller must then leave the study: each such answer tells something of the key).
        """
        site = self._site
        with site.database.transaction() as connection:
            opened = load_open_study(connection, site, key)
            row = find_attempt(connection, key, attempt)
            if row is None or row.round != round_number or row.state != AttemptState.CONSENTED:
                raise Refusal(RefusalCode.ROUND, "This site gave no consent for that attempt, or it is released.")
            mark = digest("veilsum/1/sum", *ciphertexts)
            if row.decrypted not in (None, mark):
                raise Refusal(RefusalCode.TAG, "A different sum was already decrypted for this context.")
            change_attempt(connection, key, attempt, decrypted=mark)
            roster = opened.roster(site)
        assignment = parse_assignment(row.assignment)
        plan = opened.agreed.task(assignment.label).plan(len(roster.members), len(assignment.cohort))
        secret, tag = opened.keys(len(roster.members))
        try:
            with site.observer.timed(SiteStep.DECRYPT):
                words = decrypt_sum(ciphertexts, plan.encoding, row.context, assignment.names, secret, tag)
                keys = keys_digest(promised(opened.row.secret_key), promised(opened.row.tag_key))
                said = Statement(key, site.name, round_number, attempt, row.context, keys, words_digest(words))
                return OpenedSum(words, sign_statement(said, site.credentials.signing_key))
        except HostileInput as error:
            site.observer.unreadable(Stage.SUM)
            raise Refusal(RefusalCode.TAG, error.message) from error

    def on_released(self, key: bytes, attempt: int) -> None:
        """The sum opened: the payload is no longer needed. Idempotent."""
        site = self._site
        with site.database.transaction() as connection:
            row = find_attempt(connection, key, attempt)
            if row is None or row.state not in (AttemptState.CONSENTED, AttemptState.RECOVERED):
                return
            if row.state == AttemptState.CONSENTED:
                change_attempt(connection, key, attempt, state=AttemptState.RELEASED, payload=None, self_seed=None)
            site.ledger.release_seen(connection, row.context)
            method = find_method(connection, key)
        if method is not None:
            site.observer.ended(method, AttemptOutcome.RELEASED)
        fields = about("released", digest=key, round=row.round, attempt=attempt, label=row.label or None)
        LOG.info("round %d of study %s released", row.round, key.hex()[:12], extra=fields)

    def _check_policy(self, connection: Connection, opened: OpenStudy, roster: Roster, assignment: Assignment) -> None:
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
                *cohort_faults(connection, opened.digest, study, site.config, members, site.name),
            ]
        )

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

    def _verify_coordinator(self, shown: Shown, study: Study, key: bytes, context: bytes) -> Countersignature:
        """The word of the coordinator that the study names, by the certificate that it showed in this session."""
        site = self._site
        try:
            identity = verify_certificate(shown.certificate, site.credentials.authority, site.clock(), Role.COORDINATOR)
            if identity.name != study.coordinator:
                raise HostileInput("The receipts come from a different coordinator than the study names.")
            return verify_countersignature(shown.countersigned, identity, key, context, shown.receipts)
        except HostileInput as error:
            raise Refusal(RefusalCode.RECEIPT, error.message) from error

    @staticmethod
    def _follow_mirror(connection: Connection, word: Countersignature) -> None:
        """A mirror whose entries begin anew is read from there again: what it held before is settled or lost."""
        settled = mirror_entry(connection, word.coordinator)
        if word.entry <= settled:
            LOG.warning(
                "the mirror of coordinator %s is at entry %d, but had reached %d: it was restored or begun anew",
                word.coordinator,
                word.entry,
                settled,
            )
            keep_mirror_entry(connection, word.coordinator, word.entry - 1)

    def _compare(
        self, receipts: Sequence[SignedReceipt], row: AttemptRow, assignment: Assignment, key: bytes
    ) -> list[Receipt]:
        """The receipts, if there is one of each member for this sum; who signed them is verified where they are charged."""
        names = assignment.names
        if len(receipts) != len(names):
            raise Refusal(RefusalCode.RECEIPT, "There is not exactly one receipt for each member of the cohort.")
        own = row.signed_receipt
        if receipts[names.index(self._site.name)] != own:
            raise Refusal(RefusalCode.RECEIPT, "This site's own receipt is not among the receipts.")
        try:
            parsed = [parse_receipt(receipt.body) for receipt in receipts]
        except HostileInput as error:
            raise Refusal(RefusalCode.RECEIPT, error.message) from error
        if any((item.study, item.context) != (key, row.context) for item in parsed):
            raise Refusal(RefusalCode.RECEIPT, "A receipt is for another context: not everyone was asked for the same sum.")
        if tuple(item.participant for item in parsed) != names:
            raise Refusal(RefusalCode.RECEIPT, "The receipts are not those of the cohort's members, in its order.")
        return parsed
