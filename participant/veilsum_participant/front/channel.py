"""The participant's side of the wire: gRPC over mutual TLS, resumable uploads, bounded fetches.

What it is asked for comes from the guard, by the messages of :mod:`veilsum_participant.boundary.front`; a call that fails on
the network raises ``grpc.RpcError``.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import grpc

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary import front as says
from veilsum_proto import CHUNK_BYTES, MAX_OBJECT_BYTES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub

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
    """Says over one gRPC channel what the guard wants said, and fetches what it asks for."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.stub = CoordinationStub(channel)
        self._seen: dict[bytes, list[tuple[int, int]]] = {}  # releases that are still to be confirmed, by study
        self._lock = threading.Lock()

    def hello(self, request: says.Hello) -> pb.HelloReply:
        """Negotiate the protocol version and ask the coordinator to prove its name."""
        hello = pb.HelloRequest(versions=request.versions, software=request.software, challenge=request.challenge)
        return self.stub.Hello(hello, timeout=CALL_SECONDS)

    def fetch(self, request: says.FetchObject) -> bytes:
        """Fetch an object whole.

        Raises:
            HostileInput: it is larger than allowed, or its size is not what was announced.
        """
        wanted = pb.FetchRequest(
            kind=request.kind,  # type: ignore[arg-type]
            study=request.study,
            round=request.round,
            attempt=request.attempt,
        )
        parts, size, total = [], 0, None
        for chunk in self.stub.Fetch(wanted, timeout=STREAM_SECONDS):
            total = chunk.total if total is None else total
            size += len(chunk.data)
            if total > MAX_OBJECT_BYTES or size > total or chunk.total != total:
                raise HostileInput("A fetched object is larger than allowed or than announced.")
            parts.append(chunk.data)
        if size != total:
            raise HostileInput("A fetched object ended early.")
        return b"".join(parts)

    def enrol(self, request: says.Enrol) -> None:
        """Join a study."""
        said = request.enrolment
        signed = pb.SignedEnrolment(certificate=said.certificate, body=said.body, signature=said.signature)
        self._call(self.stub.Enrol, pb.EnrolRequest(study=request.study, enrolment=signed))

    def refuse(self, request: says.Refuse) -> None:
        """Decline; only the codes leave."""
        code, *more = request.codes
        self._call(
            self.stub.Refuse,
            pb.RefuseRequest(
                study=request.study,
                code=code,
                round=request.round,
                attempt=request.attempt,
                more=more,
                answers=request.answers,  # type: ignore[arg-type]
            ),
        )

    def seal(self, request: says.Seal) -> None:
        """Deliver sealed boxes; none is an answer too."""
        messages = [pb.SealedBoxes(study=request.study)]
        size = 0
        for box in request.boxes:
            message = pb.SealedBox(
                sender=box.sender, recipient=box.recipient, ciphertext=box.ciphertext, signature=box.signature
            )
            if size + message.ByteSize() > CHUNK_BYTES:
                messages.append(pb.SealedBoxes())
                size = 0
            messages[-1].boxes.append(message)
            size += message.ByteSize()
        self._owed(lambda: self.stub.Seal(iter(messages), timeout=STREAM_SECONDS))

    def ready(self, request: says.Ready) -> None:
        """Confirm that every box opened."""
        self._call(self.stub.Ready, pb.ReadyRequest(study=request.study))

    def upload(self, payload: says.UploadPayload) -> None:
        """Upload a payload; a broken stream goes on at the piece that the coordinator wants next."""
        study = payload.study
        request = pb.UploadStatusRequest(study=study, round=payload.round, attempt=payload.attempt)
        asks = bool(payload.resumed)
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
                self.stub.Upload(_chunks(payload, start, seen), timeout=STREAM_SECONDS)
            except grpc.RpcError as error:
                self._keep_seen(study, seen)
                again = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.CANCELLED)
                if not isinstance(error, grpc.Call) or error.code() not in again or attempt == UPLOAD_TRIES - 1:
                    raise
            else:
                return

    def answer(self, request: says.Answer) -> None:
        """Answer the challenge of one attempt."""
        given = pb.MemberAnswer(words=request.words, signature=request.signature)
        said = pb.AnswerRequest(study=request.study, round=request.round, attempt=request.attempt, answer=given)
        self._owed(lambda: self._call(self.stub.Answer, said))

    def consent(self, request: says.GiveConsent) -> None:
        """Let the sum of one attempt open."""
        said = pb.ConsentRequest(
            study=request.study,
            round=request.round,
            attempt=request.attempt,
            consent=request.consent,
            signature=request.signature,
        )
        self._owed(lambda: self._call(self.stub.Consent, said))

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

    def confirm(self, request: says.Confirm) -> None:
        """Confirm a given-up attempt, a seen release or an ended study.

        That a release was seen keeps nobody waiting: it goes with the study's next upload, or with :meth:`flush`. If neither
        comes, the next session is told of the release again.
        """
        if request.kind == pb.DIRECTIVE_KIND_RELEASED:
            self._keep_seen(request.study, [(request.round, request.attempt)])
        else:
            self.flush(request.study)
            self._call(
                self.stub.Confirm,
                pb.ConfirmRequest(
                    study=request.study,
                    kind=request.kind,  # type: ignore[arg-type]
                    round=request.round,
                    attempt=request.attempt,
                ),
            )

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

    def report(self, request: says.Report) -> None:
        """Report metrics that the site's policy shares."""
        samples = [
            pb.SharedSample(metric=item.metric, label=item.label, value=item.value)  # type: ignore[arg-type]
            for item in request.samples
        ]
        self.stub.Report(pb.ReportRequest(samples=samples), timeout=REPORT_SECONDS)

    def work(self, request: says.Work) -> Iterator[pb.Directive]:
        """Open the session and yield directives as they come; cancelled with the channel."""
        yield from self.stub.Work(pb.WorkRequest(version=request.version, session_nonce=request.session_nonce))

    def _call(self, method: Callable[..., object], request: object) -> None:
        method(request, timeout=CALL_SECONDS)


def _chunks(payload: says.UploadPayload, start: int, seen: Sequence[tuple[int, int]]) -> Iterator[pb.UploadChunk]:
    own = payload.receipt
    receipt = pb.MemberReceipt(number=own.number, head=own.head, consent=own.consent, signature=own.signature)
    for index in range(start, len(payload.pieces) + 1):
        last = index == len(payload.pieces)
        chunk = pb.UploadChunk(receipt=receipt) if last else pb.UploadChunk(index=index, data=bytes(payload.pieces[index]))
        if index == start:
            chunk.study, chunk.round, chunk.attempt = payload.study, payload.round, payload.attempt
            chunk.seen.extend(pb.Seen(round=number, attempt=attempt) for number, attempt in seen)
        yield chunk
