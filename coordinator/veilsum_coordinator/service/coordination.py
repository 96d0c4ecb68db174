"""What participants call: sessions, objects, enrolment, boxes, uploads, answers, consents."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import cast

from veilsum_coordinator.service.guard import Context, Guard, HeldElsewhere, WrongVersion
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.objects import FROM_DATABASE
from veilsum_coordinator.service.shared import read_report
from veilsum_node.addresses import peer_host
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Label, Role, hello_digest
from veilsum_privacy.ledger.receipts import ReceiptPart
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.check_words import CHECKS
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import PROTOCOL_VERSIONS, SOFTWARE
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationServicer

PING_SECONDS = 10.0
MAX_BOX_BYTES = 4096
"""Largest sealed box. What a stream of them brings is held until it ends."""

MAX_SIGNATURE_BYTES = 256

MOST_SEEN = 64
"""Most releases that an upload tells of."""

ROLES = (Role.PARTICIPANT, Role.TRANSPORT)

REST = 4.0
"""After a look at what is open for whom, the next one waits so many times as long as it took: many changes, one look."""


def _check_key(key: bytes) -> bytes:
    if len(key) != 32:
        raise HostileInput("A study's digest has 32 bytes.")
    return key


def _bounded(value: bytes, limit: int, what: str) -> bytes:
    if len(value) > limit:
        raise HostileInput(f"The {what} is larger than {limit} bytes.")
    return value


_Key = tuple[bytes, int, int, int, str]


class _Session:
    """What one open session was sent of what is open; a directive that was closed since is sent again when it opens again."""

    def __init__(self) -> None:
        self.waker = asyncio.Event()
        self._sent: set[_Key] = set()

    @staticmethod
    def _key(directive: pb.Directive) -> _Key:
        """All that tells directives apart: an attempt has one assignment."""
        numbers = (directive.kind, directive.round, directive.attempt)
        return bytes(directive.study), *numbers, directive.outcome

    def has_news(self, open_now: list[pb.Directive]) -> bool:
        """Whether anything is open that was not sent."""
        keys = {self._key(directive) for directive in open_now}
        self._sent &= keys
        return keys != self._sent

    def news(self, open_now: list[pb.Directive]) -> list[pb.Directive]:
        """What is open and was not sent, in order; it counts as sent from here on."""
        new = [directive for directive in open_now if self._key(directive) not in self._sent]
        self._sent = {self._key(directive) for directive in open_now}
        return new


class Coordination(CoordinationServicer):
    """The service for participants."""

    def __init__(self, hub: Hub, guard: Guard, clock: Callable[[], int]) -> None:
        self._hub, self._guard, self._clock = hub, guard, clock
        self._sessions: dict[str, _Session] = {}
        self._closing = False
        self._due, self._rested = False, 0.0
        self._lock, self._concerned, self._everyone = threading.Lock(), set[str](), False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        hub.listen(self._changed)

    def close(self) -> None:
        """End every session cleanly: the process is about to stop, and participants dial again until it is back."""
        self._closing = True
        for session in self._sessions.values():
            session.waker.set()

    def _changed(self, name: str | None) -> None:
        """Have a look soon at what is open for a participant, or for any; called from any thread."""
        with self._lock:
            self._everyone |= name is None
            self._concerned |= set() if name is None else {name}
            if not self._due and not self._loop.is_closed():
                self._due = True
                if threading.get_ident() == self._thread:  # as with most changes: nobody has to be woken
                    self._plan()
                else:
                    self._loop.call_soon_threadsafe(self._plan)

    def _plan(self) -> None:
        self._loop.call_at(max(self._rested, self._loop.time()), self._look)

    def _look(self) -> None:
        """Wake the sessions that have something to send, and no others: each of many members changes something for few."""
        with self._lock:
            self._due = False  # what changes from here on is looked at next time
            names = list(self._sessions) if self._everyone else [name for name in self._concerned if name in self._sessions]
            self._concerned, self._everyone = set(), False
        start = self._loop.time()
        for name in names:
            if (session := self._sessions[name]).has_news(self._hub.directives(name)):
                session.waker.set()
        end = self._loop.time()
        self._rested = end + REST * (end - start)

    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloReply:
        caller = self._guard.caller(context, tuple(Role))
        if len(request.versions) > 16 or len(request.software) > 64 or len(request.challenge) not in (0, 32):
            raise HostileInput("A greeting is larger than allowed.")
        common = set(request.versions) & set(PROTOCOL_VERSIONS)
        if not common:
            spoken = ", ".join(str(version) for version in PROTOCOL_VERSIONS)
            raise WrongVersion(f"No common protocol version; this coordinator speaks {spoken}. Update the older side.")
        own = self._hub.credentials
        reply = pb.HelloReply(version=max(common), now=self._clock(), coordinator=own.identity.name, software=SOFTWARE)
        if request.challenge:
            # the caller's name is signed too, so that no other coordinator can pass the answer on as its own
            greeting = hello_digest(request.challenge, caller.name, own.identity.name)
            reply.certificate, reply.signature = own.identity.certificate, own.signing_key.sign(Label.HELLO, greeting)
        return reply

    async def Work(self, request: pb.WorkRequest, context: Context) -> AsyncIterator[pb.Directive]:
        caller = self._guard.caller(context, ROLES)
        name = caller.name
        if request.version not in PROTOCOL_VERSIONS:
            raise WrongVersion("The session's protocol version was not negotiated.")
        session, address = _Session(), peer_host(context.peer()) or "an unknown address"
        if name in self._sessions and self._hub.held_elsewhere(name, request.session_nonce):
            # a connection that is only dead is noticed within half a minute, by its pings, and then the next try succeeds
            self._guard.metrics.held(name)
            raise HeldElsewhere(
                f"Another process with the identity of {name} has a session, opened from {self._hub.sessions[name].address};"
                f" this one asked from {address}. One of the two must stop for good: a site runs on one host (docs/moving.md)."
            )
        serial = self._hub.connect(name, request.session_nonce, address)
        self._guard.metrics.opened(caller)
        if (former := self._sessions.get(name)) is not None:
            former.waker.set()
        self._sessions[name] = session
        try:
            yield pb.Directive(kind=pb.DIRECTIVE_KIND_PING)  # the session is granted
            while self._sessions.get(name) is session and not self._closing:
                session.waker.clear()
                for directive in session.news(self._hub.directives(name)):
                    yield self._hub.objects.enclose(name, directive)
                try:
                    async with asyncio.timeout(PING_SECONDS):
                        await session.waker.wait()
                except TimeoutError:
                    self._guard.caller(context, ROLES)  # a certificate may expire while its session is open
                    yield pb.Directive(kind=pb.DIRECTIVE_KIND_PING)
        finally:
            if self._sessions.get(name) is session:
                del self._sessions[name]
            self._hub.disconnect(name, serial)

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> AsyncIterator[pb.Chunk]:
        name = self._guard.caller(context, ROLES).name
        for message in await self._messages(name, request, _check_key(request.study)):
            yield cast(pb.Chunk, message)  # serialised already, and sent as it is

    async def _messages(self, name: str, request: pb.FetchRequest, key: bytes) -> Iterable[bytes]:
        def fetch() -> Iterable[bytes]:
            return self._hub.objects.messages(name, request.kind, key, request.round, request.attempt)

        return await self._hub.journal.outage.call(fetch) if request.kind in FROM_DATABASE else fetch()

    async def Enrol(self, request: pb.EnrolRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        signed = request.enrolment
        enrolment = Enrolment(
            _bounded(signed.certificate, 8192, "certificate"), _bounded(signed.body, 8192, "enrolment"), signed.signature
        )
        self._hub.enrol(name, _check_key(request.study), enrolment)
        return pb.Ack()

    async def Refuse(self, request: pb.RefuseRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        key, more = _check_key(request.study), list(request.more)
        self._hub.refuse(name, key, request.code, request.round, request.attempt, more, request.answers)
        return pb.Ack()

    async def Seal(self, request_iterator: AsyncIterator[pb.SealedBoxes], context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        key, most = b"", 0
        boxes: list[Box] = []
        async for message in request_iterator:
            if not key:
                key = _check_key(message.study)
                most = self._hub.boxes_owed(name, key)
            elif message.study:
                raise HostileInput("Only the first message of a stream of boxes names its study.")
            if len(boxes) + len(message.boxes) > most:
                raise HostileInput("A stream holds more sealed boxes than its sender owes.")
            boxes += map(_box, message.boxes)
        self._hub.seal(name, _check_key(key), boxes)
        return pb.Ack()

    async def Ready(self, request: pb.ReadyRequest, context: Context) -> pb.Ack:
        self._hub.ready(self._guard.caller(context, ROLES).name, _check_key(request.study))
        return pb.Ack()

    async def UploadStatus(self, request: pb.UploadStatusRequest, context: Context) -> pb.UploadStatusReply:
        name = self._guard.caller(context, ROLES).name
        following, complete = self._hub.upload_status(name, _check_key(request.study), request.attempt)
        return pb.UploadStatusReply(next=following, complete=complete)

    async def Upload(self, request_iterator: AsyncIterator[pb.UploadChunk], context: Context) -> pb.UploadStatusReply:
        name = self._guard.caller(context, ROLES).name
        key, attempt = b"", 0
        async for chunk in request_iterator:
            if not key:
                key, attempt = _check_key(chunk.study), chunk.attempt
                if len(chunk.seen) > MOST_SEEN:
                    raise HostileInput("An upload tells of more releases than can be open.")
                for seen in chunk.seen:
                    self._hub.confirm(name, key, pb.DIRECTIVE_KIND_RELEASED, seen.round, seen.attempt)
            elif chunk.study or chunk.attempt or chunk.seen:
                raise HostileInput("Only the first chunk of an upload names its attempt.")
            if chunk.HasField("receipt"):
                told = chunk.receipt
                signature = _bounded(told.signature, MAX_SIGNATURE_BYTES, "signature")
                self._hub.receipt(name, key, attempt, ReceiptPart(b"", told.number, told.head, told.consent, signature))
            else:
                self._hub.upload(name, key, attempt, chunk.index, chunk.data)
        if not key:
            raise HostileInput("An upload came without a chunk.")
        following, complete = self._hub.upload_status(name, key, attempt)
        return pb.UploadStatusReply(next=following, complete=complete)

    async def Answer(self, request: pb.AnswerRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        answer = request.answer
        signature = _bounded(answer.signature, MAX_SIGNATURE_BYTES, "signature")
        if len(answer.words) != CHECKS:
            raise HostileInput(f"An answer has {CHECKS} words.")
        self._hub.answer(name, _check_key(request.study), request.attempt, tuple(answer.words), signature)
        return pb.Ack()

    async def Consent(self, request: pb.ConsentRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        signature = _bounded(request.signature, MAX_SIGNATURE_BYTES, "signature")
        self._hub.consent(name, _check_key(request.study), request.attempt, request.consent, signature)
        return pb.Ack()

    async def Confirm(self, request: pb.ConfirmRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        self._hub.confirm(name, _check_key(request.study), request.kind, request.round, request.attempt)
        return pb.Ack()

    async def Report(self, request: pb.ReportRequest, context: Context) -> pb.Ack:
        name = self._guard.caller(context, ROLES).name
        self._guard.metrics.shared.take(name, read_report(request))
        return pb.Ack()


def _box(message: pb.SealedBox) -> Box:
    ciphertext = _bounded(message.ciphertext, MAX_BOX_BYTES, "sealed box")
    if len(message.sender) > 64 or len(message.recipient) > 64 or len(message.signature) > MAX_SIGNATURE_BYTES:
        raise HostileInput("A box's names or signature are larger than allowed.")
    return Box(message.sender, message.recipient, ciphertext, message.signature)
