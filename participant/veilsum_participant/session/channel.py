"""The guard's side of a session: what the core says goes to the front, and what comes of it is not believed.

The guard draws the challenge by which the coordinator proves its name, and verifies certificate and signature itself: a front
that lies can keep silent, say that calls fail, or hand on what a malicious coordinator would send, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from veilsum_node.errors import HostileInput, RefusalCode, StateError, Unavailable
from veilsum_node.identity import Credentials
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.greeting import verify_greeting
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.calls import BrokenError, CallFailedError, Peer
from veilsum_participant.boundary.encoding import Inquiry, Message, read
from veilsum_proto import PROTOCOL_VERSIONS, SOFTWARE

if TYPE_CHECKING:
    from veilsum_participant.protocol.payloads import Payload
    from veilsum_privacy.securesum.boxes import Box
    from veilsum_privacy.securesum.roster import Enrolment

R = TypeVar("R", bound=Message)

PAUSE_SECONDS = 0.05  # before a guard asks again whom it was told nothing by: a front may say so at once, and without end


class UndeliveredError(Exception):
    """A call to the coordinator failed.

    Attributes:
        status: how.
        details: in somebody else's words, printable.
    """

    def __init__(self, status: says.Status, details: str) -> None:
        super().__init__(f"{status.name} {details}".strip())
        self.status, self.details = status, details


class SiteChannel:
    """Implements :class:`~veilsum_participant.protocol.core.Channel` by asking a front.

    Args:
        front: who is asked.
        credentials: the site's.
        clock: Unix seconds.
        random: where challenges come from.

    Attributes:
        coordinator, coordinator_certificate: the name that it proved, and by which certificate (DER); empty before.
        coordinator_end: the certificate's last second, Unix time.
        version: of the protocol that was agreed.
    """

    def __init__(
        self, front: Peer, credentials: Credentials, clock: Callable[[], int], random: RandomSource = SYSTEM_RANDOM
    ) -> None:
        self._front, self._credentials, self._clock, self._random = front, credentials, clock, random
        self.coordinator, self.coordinator_certificate, self.coordinator_end = "", b"", 0
        self.version = 0

    def dial(self, way: says.Dial, shown: Credentials | None = None) -> None:
        """Open a channel to the coordinator.

        Args:
            way: to it, as yet without a key.
            shown: what the connection shows, of a key for that alone; the site's own by default.

        Raises:
            Unavailable: the front cannot open one; says why.
        """
        used = shown or self._credentials
        try:
            self._ask(replace(way, authority=used.authority_pem, certificate=used.certificate_pem, key=used.key_pem))
        except UndeliveredError as error:
            raise Unavailable(error.details) from error

    def hang(self) -> None:
        """End the channel; calls that wait end now."""
        try:
            self._front.call(says.Hang())
        except (BrokenError, CallFailedError):  # then it has ended
            self._front.close()

    def give_up(self) -> None:
        """Speak no more to this front; calls that wait for it end now."""
        self._front.close()

    def hello(self) -> int:
        """Negotiate the protocol version and let the coordinator prove its name.

        Returns:
            The coordinator's clock, Unix seconds.

        Raises:
            StateError: no common version.
            HostileInput: it does not prove a coordinator's name.
            UndeliveredError: the call failed.
        """
        return self._greet("")

    def _greet(self, name: str) -> int:
        """:meth:`hello` by a coordinator of this name, if one was proven before: nothing is taken over of another."""
        challenge = self._random.bytes(32)
        try:
            reply = self._ask(says.Hello(versions=PROTOCOL_VERSIONS, software=SOFTWARE, challenge=challenge))
        except UndeliveredError as error:
            if error.status is says.Status.FAILED_PRECONDITION:
                raise StateError(error.details, "Install a version that the coordinator speaks.") from error
            raise
        identity = verify_greeting(
            self._credentials,
            challenge,
            version=reply.version,
            certificate=reply.certificate,
            signature=reply.signature,
            at=self._clock(),
        )
        if name and identity.name != name:
            raise HostileInput(f"The coordinator was {name} and now is {identity.name}.")
        self.version, self.coordinator, self.coordinator_certificate = reply.version, identity.name, reply.certificate
        self.coordinator_end = identity.not_after
        return reply.now

    def greet_again(self) -> bool:
        """Let the coordinator prove its name once more: its certificate or key may have been renewed since.

        Returns:
            Whether it proved it with another certificate than before.

        Raises:
            HostileInput: it does not prove it, or proves another one.
            UndeliveredError: the call failed.
        """
        certificate = self.coordinator_certificate
        self._greet(self.coordinator)
        return self.coordinator_certificate != certificate

    def directives(self, nonce: bytes) -> Iterator[says.Directive]:
        """Open the session and yield what the coordinator wants as it comes.

        Raises:
            HostileInput: it is not a directive.
            UndeliveredError: the session was refused, or broke.
        """
        self._ask(says.Work(version=self.version, session_nonce=nonce))
        while not (came := self._ask(says.Next())).over:
            directive = read(came.directive, says.Directive)
            if came.directive:
                yield directive
            if directive.kind in (says.DirectiveKind.UNSPECIFIED, says.DirectiveKind.PING):
                time.sleep(PAUSE_SECONDS)

    def explain(self) -> str:
        """Why the coordinator cannot be reached, in words for the log.

        Raises:
            UndeliveredError: the front does not say.
        """
        return printable(self._ask(says.Explain()).words)

    def fetch(self, kind: says.ObjectKind, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        """Fetch an object whole.

        Raises:
            HostileInput: it is larger than allowed, or its size is not what was announced.
            UndeliveredError: the call failed; so do those below.
        """
        return self._ask(says.FetchObject(kind=kind, study=study, round=number, attempt=attempt)).data

    def enrol(self, study: bytes, enrolment: Enrolment) -> None:
        signed = says.SignedEnrolment(enrolment.certificate, enrolment.body, enrolment.signature)
        self._ask(says.Enrol(study=study, enrolment=signed))

    def refuse(self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: int) -> None:
        """Decline; only the codes leave."""
        said = tuple(code.value for code in codes)
        self._ask(says.Refuse(study=study, codes=said, round=number, attempt=attempt, answers=answers))

    def seal(self, study: bytes, boxes: Sequence[Box]) -> None:
        """Deliver sealed boxes; none is an answer too."""
        sealed = tuple(says.SealedBox(box.sender, box.recipient, box.ciphertext, box.signature) for box in boxes)
        self._ask(says.Seal(study=study, boxes=sealed))

    def ready(self, study: bytes) -> None:
        """Confirm that every box opened."""
        self._ask(says.Ready(study=study))

    def upload(self, study: bytes, payload: Payload) -> None:
        own = payload.receipt.read()
        self._ask(
            says.UploadPayload(
                study=study,
                round=payload.round,
                attempt=payload.attempt,
                resumed=int(payload.resumed),
                pieces=tuple(payload.pieces),
                receipt=says.MemberReceipt(b"", own.number, own.head, own.consent, payload.receipt.signature),
            )
        )

    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        """Answer the challenge of one attempt."""
        self._ask(says.Answer(study=study, round=number, attempt=attempt, words=words, signature=signature))

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        """Let the sum of one attempt open."""
        self._ask(says.GiveConsent(study=study, round=number, attempt=attempt, consent=consent, signature=signature))

    def confirm(self, study: bytes, kind: int, number: int, attempt: int) -> None:
        """Confirm a given-up attempt, a seen release or an ended study."""
        self._ask(says.Confirm(study=study, kind=kind, round=number, attempt=attempt))

    def flush(self) -> None:
        """Confirm what releases were seen and are still to be told of."""
        self._ask(says.Flush())

    def report(self, samples: Sequence[says.Sample]) -> None:
        """Report metrics that the site's policy shares."""
        self._ask(says.Report(samples=tuple(samples)))

    def _ask(self, request: Inquiry[R]) -> R:
        try:
            return self._front.call(request)
        except BrokenError as error:
            raise UndeliveredError(says.Status.UNAVAILABLE, f"The front: {error}") from error
        except CallFailedError as error:
            failure = error.failure
            if not isinstance(failure, says.Failed):
                raise UndeliveredError(says.Status.UNKNOWN, "") from error
            details = printable(failure.details)
            if failure.hostile:
                raise HostileInput(details) from error
            raise UndeliveredError(says.Status(failure.status or says.Status.UNKNOWN), details) from error
