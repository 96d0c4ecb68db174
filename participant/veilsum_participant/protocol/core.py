"""A participant's answer to every directive, over any channel: gRPC in production, the same process in simulation.

Directives are handled one at a time. A refusal sends its codes and keeps its words in the site's own log and ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from veilsum_node.errors import Damage, HostileInput, Misuse, Refusal, RefusalCode, VeilsumError
from veilsum_node.telemetry.logs import about
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.encoding import read
from veilsum_participant.boundary.front import Directive, DirectiveKind, ObjectKind
from veilsum_participant.site import LOG, AttemptOutcome, Site, SiteStep, Stage
from veilsum_participant.store.attempts import is_late
from veilsum_participant.store.mirrors import mirror_entry
from veilsum_participant.store.pending import PendingState, pending_studies
from veilsum_participant.store.studies import StudyState, count_enrolled, find_method

if TYPE_CHECKING:
    from veilsum_participant.protocol.contributions import Contributions
    from veilsum_participant.protocol.following import Following
    from veilsum_participant.protocol.membership import Membership
    from veilsum_participant.protocol.openings import Consent, Openings, Shown
    from veilsum_participant.protocol.payloads import Payload
    from veilsum_privacy.securesum.boxes import Box
    from veilsum_privacy.securesum.check_words import CheckAnswer
    from veilsum_privacy.securesum.context import Assignment
    from veilsum_privacy.securesum.roster import Enrolment

LARGEST_NUMBER = 2**53 - 1
"""Largest round or attempt, as in an assignment; the wire carries 64 bits, the store does not."""


class Channel(Protocol):
    """What a participant can say to its coordinator."""

    coordinator: str
    """The coordinator's certified name."""

    coordinator_certificate: bytes
    """DER of the certificate by which it proved that name."""

    def greet_again(self) -> bool: ...
    def fetch(self, kind: ObjectKind, study: bytes, number: int = 0, attempt: int = 0) -> bytes: ...
    def enrol(self, study: bytes, enrolment: Enrolment) -> None: ...
    def refuse(self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: int) -> None: ...
    def seal(self, study: bytes, boxes: Sequence[Box]) -> None: ...
    def ready(self, study: bytes) -> None: ...
    def upload(self, study: bytes, payload: Payload) -> None: ...
    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None: ...
    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None: ...
    def confirm(self, study: bytes, kind: int, number: int, attempt: int) -> None: ...


class ParticipantCore:
    """Dispatches directives to the site's protocol, each part of which is loaded when it is first needed.

    The parts keep what they know in the site's store: of two that threads make at once either will do.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self._following: Following | None = None

    @cached_property
    def membership(self) -> Membership:
        """The part of the protocol before the first round and after the last."""
        from veilsum_participant.protocol.membership import Membership

        return Membership(self.site)

    @cached_property
    def contributions(self) -> Contributions:
        """The part of a round before consent."""
        from veilsum_participant.protocol.contributions import Contributions

        return Contributions(self.site)

    @cached_property
    def openings(self) -> Openings:
        """The part of a round after upload."""
        from veilsum_participant.protocol.openings import Openings

        return Openings(self.site)

    def catch_up(self, channel: Channel) -> list[int]:
        """Charge what the coordinator's mirror shows and this site's ledger does not know: after a backup was restored.

        Belongs at the beginning of every session, before a directive is answered or a deadline acted on.

        Returns:
            Numbers of the ledger's new entries.

        Raises:
            StateError, Unavailable, Damage: what it shows cannot be kept.
            Exception: what the channel raises.
        """
        after = settled_entry(self.site, channel.coordinator)
        try:
            mirrored = read(channel.fetch(ObjectKind.MIRRORED, bytes(32), after), says.MirroredObject)
        except HostileInput as error:
            self.without_mirror(channel.coordinator, f"what it shows is malformed: {error}")
            return []
        entries: list[int] = []
        with self.site.database.transaction():  # nothing is answered by a site whose state cannot be written
            pass
        if mirrored.receipts:
            from veilsum_participant.protocol.recovery import MirroredReceipt, settle  # of a site that has any to settle
            from veilsum_privacy.ledger.receipts import SignedReceipt

            shown = [
                MirroredReceipt(SignedReceipt(item.receipt.body, item.receipt.signature), item.number, item.consent)
                for item in mirrored.receipts
            ]
            entries = settle(self.site, channel.coordinator, shown)
        self.site.mirror_read = True
        if self.site.restored() is not None:
            self.site.lift_trusted()
        return entries

    def without_mirror(self, coordinator: str, why: str) -> None:
        """Tell that a coordinator shows no mirror of this site's receipts: an error where a restored site waits for it."""
        try:
            restored = self.site.restored() is not None
        except VeilsumError:
            restored = True  # the safer one of two guesses
        LOG.log(
            logging.ERROR if restored else logging.WARNING,
            "coordinator %s shows no mirror of this site's receipts (%s)%s",
            coordinator,
            why,
            ": what this restored site spent since its backup stays unknown" if restored else "",
        )

    def decided(self) -> list[Directive]:
        """Directives that the operator's word on waiting studies gives cause to: to enrol, or to tell that it declines."""
        with self.site.database.reading() as connection:
            told = [row for row in pending_studies(connection) if row.state in (PendingState.APPROVED, PendingState.DECLINED)]
        return [Directive(kind=DirectiveKind.ENROL, study=row.digest) for row in told]

    def expire(self) -> None:
        """Act on the site's own deadlines."""
        with self.site.database.reading() as connection:  # every second, and hardly ever for anything: it takes no lock
            late = is_late(connection, self.site.steady())
            held = count_enrolled(connection) or pending_studies(connection)
        if late:
            self.contributions.expire()
        days = self.site.config.retention
        if held or days.studies is not None or days.kept_vectors is not None:
            self.membership.expire()

    def handle(self, directive: Directive, channel: Channel) -> None:
        """Answer one directive; the same directive again is answered the same.

        Raises:
            Unavailable: the site's disk takes nothing for the moment; nothing was decided and nothing said.
            Exception: what the channel raises (a broken connection); everything else becomes a refusal.
        """
        key = bytes(directive.study)
        number, attempt = directive.round, directive.attempt
        try:
            if len(key) != 32:
                raise HostileInput("A directive names no study.")
            if max(number, attempt) > LARGEST_NUMBER:
                raise HostileInput("A directive's round or attempt is out of range.")
            self._answer(directive, key, channel)
        except Refusal as refusal:
            self._refuse(directive, refusal, channel)
        except HostileInput as error:
            self.site.observer.unreadable(Stage.MESSAGE)
            self.unable(directive, error, channel)
        except (Misuse, Damage) as error:
            self.unable(directive, error, channel)

    def unable(self, directive: Directive, error: Exception, channel: Channel) -> None:
        """Refuse a directive for a fault of the site's own, or for one that no rule names.

        Raises:
            Exception: what the channel raises.
        """
        self._refuse(directive, Refusal(RefusalCode.INTERNAL, f"{type(error).__name__}: {error}"), channel)

    def _refuse(self, directive: Directive, refusal: Refusal, channel: Channel) -> None:
        key, number, attempt = bytes(directive.study), directive.round, directive.attempt
        for reason in refusal.reasons:
            fields = about("refused", digest=key, round=number or None, attempt=attempt or None, reason=reason.code.value)
            LOG.warning("refused %s: %s (%s)", key.hex()[:12], reason.code.value, reason, extra=fields)
        self.site.observer.refused(refusal.codes)
        if number and (method := self._method(key)) is not None:
            self.site.observer.ended(method, AttemptOutcome.REFUSED)
        channel.refuse(key, refusal.codes, number, attempt, directive.kind)

    def _method(self, key: bytes) -> str | None:
        try:
            with self.site.database.reading() as connection:
                return find_method(connection, key)
        except VeilsumError:  # what is refused may be the database's own fault
            return None

    def _answer(self, directive: Directive, key: bytes, channel: Channel) -> None:
        number, attempt = directive.round, directive.attempt
        match directive.kind:
            case DirectiveKind.ENROL:
                from veilsum_participant.protocol.approval import SignedStudy

                sent = read(channel.fetch(ObjectKind.STUDY, key), says.StudyObject)
                signed = SignedStudy(sent.study, sent.signature, sent.certificate, channel.coordinator, sent.seconds_left)
                enrolment = self.membership.on_study(key, signed)
                if enrolment is not None:
                    channel.enrol(key, enrolment)
            case DirectiveKind.SEAL:
                roster = read(channel.fetch(ObjectKind.ROSTER, key), says.RosterObject)
                from veilsum_privacy.securesum.roster import Enrolment

                enrolments = [Enrolment(item.certificate, item.body, item.signature) for item in roster.enrolments]
                channel.seal(key, self.membership.on_roster(key, enrolments))
            case DirectiveKind.UNSEAL:
                boxes = read(channel.fetch(ObjectKind.BOXES, key), says.BoxesObject)
                from veilsum_privacy.securesum.boxes import Box

                shown = [Box(item.sender, item.recipient, item.ciphertext, item.signature) for item in boxes.boxes]
                self.membership.on_boxes(key, shown)
                channel.ready(key)
            case DirectiveKind.CONTRIBUTE:
                self._contribute(directive, key, channel)
            case DirectiveKind.CHECK:
                answer = self._check(directive, key, channel)
                channel.answer(key, number, attempt, answer.words, answer.signature)
            case DirectiveKind.CONSENT:
                consent = self._consent(directive, key, channel)
                channel.consent(key, number, attempt, consent.secret, consent.signature)
            case DirectiveKind.GIVE_UP:
                self.contributions.give_up(key, attempt)
                channel.confirm(key, directive.kind, number, attempt)
            case DirectiveKind.RELEASED:
                self.openings.on_released(key, attempt)
                channel.confirm(key, directive.kind, number, attempt)
            case DirectiveKind.END:
                self._following = None  # with the model that it holds
                self.membership.leave(key, StudyState.ENDED)
                channel.confirm(key, directive.kind, number, attempt)
            case _:
                raise HostileInput("A directive has an unknown kind.")

    def _check(self, directive: Directive, key: bytes, channel: Channel) -> CheckAnswer:
        number, attempt = directive.round, directive.attempt
        try:
            shown = _shown(_needed(directive, ObjectKind.FIXED, channel), channel)
            return self.openings.on_fixed(key, number, attempt, shown)
        except Refusal as refusal:
            if not self.openings.knows(key, attempt):  # restored since: numbers of its receipts were shown, to be used no more
                self.catch_up(channel)
            # its certificate or key may have been renewed since it proved its name, or since it sent the receipts along
            if refusal.code is not RefusalCode.RECEIPT or not (_greeted_again(channel) or directive.object is not None):
                raise
            return self._fixed_again(key, number, attempt, channel, refusal)

    def _fixed_again(self, key: bytes, number: int, attempt: int, channel: Channel, refusal: Refusal) -> CheckAnswer:
        """The answer to the same question, as the coordinator shows it anew; the refusal where it does not."""
        try:
            again = channel.fetch(ObjectKind.FIXED, key, number, attempt)
        except HostileInput:
            raise refusal from None
        return self.openings.on_fixed(key, number, attempt, _shown(again, channel))

    def _consent(self, directive: Directive, key: bytes, channel: Channel) -> Consent:
        from veilsum_privacy.securesum.check_words import CheckAnswer

        number, attempt = directive.round, directive.attempt
        shown = read(_needed(directive, ObjectKind.ANSWERS, channel), says.AnswersObject)
        answers = [CheckAnswer(item.words, item.signature) for item in shown.answers]
        try:
            return self.openings.on_answers(key, number, attempt, answers)
        except Refusal as refusal:
            # the coordinator's certificate may have ended since it was kept with the receipts; it shows them again by its next
            if refusal.code is not RefusalCode.RECEIPT:
                raise
            _greeted_again(channel)
            self._fixed_again(key, number, attempt, channel, refusal)  # another question is refused
        return self.openings.on_answers(key, number, attempt, answers)

    def _contribute(self, directive: Directive, key: bytes, channel: Channel) -> None:
        try:
            assignment = assigned(directive)
        except HostileInput as error:
            raise Refusal(RefusalCode.CONTEXT, error.message) from error
        broadcast, own = self._broadcast(directive, key, assignment, channel)
        payload = self.contributions.on_assignment(key, assignment, broadcast, own=own)
        with self.site.observer.timed(SiteStep.UPLOAD):
            channel.upload(key, payload)
        self.site.observer.contributed(sum(map(len, payload.pieces)))

    def _broadcast(self, directive: Directive, key: bytes, assignment: Assignment, channel: Channel) -> tuple[bytes, bool]:
        """What a round broadcasts, and whether this site computed it, as in a study that declares its steps."""
        from veilsum_participant.protocol.open_studies import load_open_study
        from veilsum_privacy.computation.following import followed

        with self.site.database.reading() as connection:
            study = load_open_study(connection, self.site, key).study
        if followed(study) is None:
            return _needed(directive, ObjectKind.BROADCAST, channel), False
        from veilsum_participant.protocol.following import Following  # which verifies results, for studies that need it

        self._following = self._following or Following(self.site)
        return self._following.broadcast(key, assignment, directive.object, channel.fetch), True


def settled_entry(site: Site, coordinator: str) -> int:
    """The entry of a coordinator's mirror up to which this site has settled everything."""
    with site.database.reading() as connection:
        return mirror_entry(connection, coordinator)


def assigned(directive: Directive) -> Assignment:
    """The assignment that a directive carries the parts of; HostileInput where they are those of none."""
    from veilsum_privacy.securesum import NONCE_BYTES
    from veilsum_privacy.securesum.context import Assignment, parse_assignment

    said, size = directive.assignment, NONCE_BYTES
    if len(said.nonces) != size * len(said.cohort):
        raise HostileInput("There is not exactly one nonce of each member of the cohort.")
    nonces = (said.nonces[start : start + size] for start in range(0, len(said.nonces), size))
    cohort = tuple(zip(said.cohort, nonces, strict=True))
    told = Assignment(directive.round, directive.attempt, said.label, cohort, said.broadcast, said.deadline)
    return parse_assignment(told.to_bytes())


def _needed(directive: Directive, kind: ObjectKind, channel: Channel) -> bytes:
    """What a directive is answered by: it came with it, or is fetched. Neither is trusted more than the other."""
    if directive.object is not None:
        return directive.object
    return channel.fetch(kind, directive.study, directive.round, directive.attempt)


def _shown(data: bytes, channel: Channel) -> Shown:
    from veilsum_participant.protocol.openings import Shown

    return Shown.of(read(data, says.FixedObject), channel.coordinator_certificate)


def _greeted_again(channel: Channel) -> bool:
    try:
        return channel.greet_again()
    except HostileInput as error:
        LOG.warning("coordinator %s does not prove its name again: %s", channel.coordinator, error)
        return False
