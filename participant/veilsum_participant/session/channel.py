"""The participant's side of the wire: gRPC over mutual TLS, resumable uploads, bounded fetches.

The coordinator's name is what its TLS certificate proves; a call that fails on the network raises ``grpc.RpcError`` and the
client's loop reconnects.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Credentials
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_node.transport.channel import greet
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.securesum.boxes import Box
from veilsum_privacy.securesum.roster import Enrolment
from veilsum_proto import CHUNK_BYTES, MAX_OBJECT_BYTES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.federation_pb2_grpc import CoordinationStub

CALL_SECONDS = 60.0
STREAM_SECONDS = 3600.0
REPORT_SECONDS = 10.0
UPLOAD_TRIES = 5
MOST_SEEN = 64
"""Most releases that one upload tells of."""

STALE = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.OUT_OF_RANGE)
"""Codes by which a coordinator does not want an answer any more."""

OWED_PAUSES = (0.2, 0.4, 0.8, *[1.5] * 20)
"""Seconds between two tries to deliver boxes, an answer or a consent, half a minute in all; then the session begins anew."""


class GrpcChannel:
    """Implements :class:`~veilsum_participant.protocol.core.Channel` over one gRPC channel."""

    def __init__(
        self, channel: grpc.Channel, credentials: Credentials, clock: Callable[[], int] = lambda: int(time.time())
    ) -> None:
        self._credentials, self._clock = credentials, clock
        self.stub = CoordinationStub(channel)
        self.coordinator, self.coordinator_certificate, self.coordinator_end = "", b"", 0
        self.version = 0
        self._seen: dict[bytes, list[tuple[int, int]]] = {}  # releases that are still to be confirmed, by study
        self._lock = threading.Lock()

    def hello(self, challenge: bytes, at: int) -> pb.HelloReply:
        """Negotiate the protocol version and let the coordinator prove its name; see :func:`greet`."""
        reply, identity = greet(self.stub, self._credentials, challenge, at)
        self.version, self.coordinator, self.coordinator_certificate = reply.version, identity.name, reply.certificate
        self.coordinator_end = identity.not_after
        return reply

    def greet_again(self) -> bool:
        """Let the coordinator prove its name once more: its certificate or key may have been renewed since.

        Returns:
            Whether it proved it with another certificate than before.

        Raises:
            HostileInput: it does not prove it, or proves another one.
            grpc.RpcError: the call failed.
        """
        name, certificate = self.coordinator, self.coordinator_certificate
        self.hello(SYSTEM_RANDOM.bytes(32), self._clock())
        if self.coordinator != name:
            raise HostileInput(f"The coordinator was {name} and now is {self.coordinator}.")
        return self.coordinator_certificate != certificate

    def fetch(self, kind: pb.ObjectKind.ValueType, study: bytes, number: int = 0, attempt: int = 0) -> bytes:
        """Fetch an object whole.

        Raises:
            HostileInput: it is larger than allowed, or its size is not what was announced.
        """
        request = pb.FetchRequest(kind=kind, study=study, round=number, attempt=attempt)
        parts, size, total = [], 0, None
        for chunk in self.stub.Fetch(request, timeout=STREAM_SECONDS):
            total = chunk.total if total is None else total
            size += len(chunk.data)
            if total > MAX_OBJECT_BYTES or size > total or chunk.total != total:
                raise HostileInput("A fetched object is larger than allowed or than announced.")
            parts.append(chunk.data)
        if size != total:
            raise HostileInput("A fetched object ended early.")
        return b"".join(parts)

    def enrol(self, study: bytes, enrolment: Enrolment) -> None:
        """Join a study."""
        signed = pb.SignedEnrolment(certificate=enrolment.certificate, body=enrolment.body, signature=enrolment.signature)
        self._call(self.stub.Enrol, pb.EnrolRequest(study=study, enrolment=signed))

    def refuse(
        self, study: bytes, codes: Sequence[RefusalCode], number: int, attempt: int, answers: pb.DirectiveKind.ValueType
    ) -> None:
        """Decline; only the codes leave."""
        code, *more = (item.value for item in codes)
        self._call(
            self.stub.Refuse,
            pb.RefuseRequest(study=study, code=code, round=number, attempt=attempt, more=more, answers=answers),
        )

    def seal(self, study: bytes, boxes: Sequence[Box]) -> None:
        """Deliver sealed boxes; none is an answer too."""
        messages = [pb.SealedBoxes(study=study)]
        size = 0
        for box in boxes:
            message = pb.SealedBox(
                sender=box.sender,
                recipient=box.recipient,
                purpose=box.purpose.value,
                ciphertext=box.ciphertext,
                signature=box.signature,
            )
            if size + message.ByteSize() > CHUNK_BYTES:
                messages.append(pb.SealedBoxes())
                size = 0
            messages[-1].boxes.append(message)
            size += message.ByteSize()
        self._owed(lambda: self.stub.Seal(iter(messages), timeout=STREAM_SECONDS))

    def ready(self, study: bytes) -> None:
        """Confirm that every box opened."""
        self._call(self.stub.Ready, pb.ReadyRequest(study=study))

    def upload(self, study: bytes, payload: Payload) -> None:
        """Upload a payload; a broken stream goes on at the piece that the coordinator wants next."""
        request = pb.UploadStatusRequest(study=study, round=payload.round, attempt=payload.attempt)
        asks = payload.resumed
        for attempt in range(UPLOAD_TRIES):
            start = 0
            if asks:
                status = self.stub.UploadStatus(request, timeout=CALL_SECONDS)
                if status.complete:
                    return
                if status.next > len(payload.pieces):
                    raise HostileInput("The coordinator asks for a piece beyond the payload.")
                start = status.next
            asks, seen = True, self._take_seen(study)
            try:
                self.stub.Upload(_chunks(study, payload, start, seen), timeout=STREAM_SECONDS)
            except grpc.RpcError as error:
                self._keep_seen(study, seen)
                again = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.CANCELLED)
                if not isinstance(error, grpc.Call) or error.code() not in again or attempt == UPLOAD_TRIES - 1:
                    raise
            else:
                return

    def answer(self, study: bytes, number: int, attempt: int, words: tuple[int, ...], signature: bytes) -> None:
        """Answer the challenge of one attempt."""
        given = pb.MemberAnswer(words=words, signature=signature)
        request = pb.AnswerRequest(study=study, round=number, attempt=attempt, answer=given)
        self._owed(lambda: self._call(self.stub.Answer, request))

    def consent(self, study: bytes, number: int, attempt: int, consent: bytes, signature: bytes) -> None:
        """Let the sum of one attempt open."""
        request = pb.ConsentRequest(study=study, round=number, attempt=attempt, consent=consent, signature=signature)
        self._owed(lambda: self._call(self.stub.Consent, request))

    @staticmethod
    def _owed(call: Callable[[], object]) -> None:
        """Deliver what others wait for; a coordinator that cannot store it yet, its database being away, is asked again."""
        for pause in (*OWED_PAUSES, None):
            try:
                call()
            except grpc.RpcError as error:
                # to end the session now would only delay what the site owes to everyone, who may have paid as well
                away = isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNAVAILABLE
                if not away or pause is None:
                    raise
                time.sleep(pause)
            else:
                return

    def confirm(self, study: bytes, kind: pb.DirectiveKind.ValueType, number: int, attempt: int) -> None:
        """Confirm a given-up attempt, a seen release or an ended study.

        That a release was seen keeps nobody waiting: it goes with the study's next upload, or with :meth:`flush`. If neither
        comes, the next session is told of the release again.
        """
        if kind == pb.DIRECTIVE_KIND_RELEASED:
            self._keep_seen(study, [(number, attempt)])
        else:
            self.flush(study)
            self._call(self.stub.Confirm, pb.ConfirmRequest(study=study, kind=kind, round=number, attempt=attempt))

    def flush(self, study: bytes | None = None) -> None:
        """Confirm what releases were seen, of one study or all."""
        with self._lock:
            studies = list(self._seen) if study is None else [study]
        for each in studies:
            for number, attempt in self._take_seen(each):
                request = pb.ConfirmRequest(study=each, kind=pb.DIRECTIVE_KIND_RELEASED, round=number, attempt=attempt)
                try:
                    self._call(self.stub.Confirm, request)
                except grpc.RpcError as error:
                    if not isinstance(error, grpc.Call) or error.code() not in STALE:
                        raise

    def _keep_seen(self, study: bytes, seen: Sequence[tuple[int, int]]) -> None:
        with self._lock:
            self._seen.setdefault(study, []).extend(seen)

    def _take_seen(self, study: bytes) -> list[tuple[int, int]]:
        with self._lock:
            waiting = self._seen.pop(study, [])
            if waiting[MOST_SEEN:]:
                self._seen[study] = waiting[MOST_SEEN:]
            return waiting[:MOST_SEEN]

    def report(self, samples: Sequence[pb.SharedSample]) -> None:
        """Report metrics that the site's policy shares."""
        self.stub.Report(pb.ReportRequest(samples=samples), timeout=REPORT_SECONDS)

    def work(self, nonce: bytes) -> Iterator[pb.Directive]:
        """Open the session and yield directives as they come; cancelled with the channel."""
        yield from self.stub.Work(pb.WorkRequest(version=self.version, session_nonce=nonce))

    def _call(self, method: Callable[..., object], request: object) -> None:
        method(request, timeout=CALL_SECONDS)


def _chunks(study: bytes, payload: Payload, start: int, seen: Sequence[tuple[int, int]]) -> Iterator[pb.UploadChunk]:
    receipt = pb.SignedReceipt(body=payload.receipt.body, signature=payload.receipt.signature)
    for index in range(start, len(payload.pieces) + 1):
        last = index == len(payload.pieces)
        chunk = pb.UploadChunk(receipt=receipt) if last else pb.UploadChunk(index=index, data=bytes(payload.pieces[index]))
        if index == start:
            chunk.study, chunk.round, chunk.attempt = study, payload.round, payload.attempt
            chunk.seen.extend(pb.Seen(round=number, attempt=attempt) for number, attempt in seen)
        yield chunk
