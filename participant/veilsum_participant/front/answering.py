"""What a front does with each request of the guard."""

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any

import grpc

from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import probe_tls
from veilsum_node.transport.handshake import TlsParty
from veilsum_node.transport.route import Proxy, Route
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.calls import CallFailedError, Peer
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.front.channel import GrpcChannel

NEXT_SECONDS = 20.0
"""How long a request for the next directive is left open."""

_READ_AHEAD = 4  # directives; the rest wait in the stream


class _FrontSession:
    """One channel, and what comes in its session."""

    def __init__(self, raw: grpc.Channel, wire: GrpcChannel) -> None:
        self.raw, self.wire = raw, wire
        self._coming: queue.Queue[Message] = queue.Queue(maxsize=_READ_AHEAD)
        self._over = threading.Event()

    def begin(self, request: says.Work) -> None:
        threading.Thread(target=self._read, args=(request,), name="work", daemon=True).start()

    def _read(self, request: says.Work) -> None:
        last: Message = says.Came(over=1)
        try:
            for directive in self.wire.work(request):
                self._put(says.Came(directive=directive.SerializeToString()))
        except Exception as error:  # noqa: BLE001 - whatever it was ends the session, and is said
            last = told(error)
        self._put(last)

    def _put(self, message: Message) -> None:
        while not self._over.is_set():
            with contextlib.suppress(queue.Full):
                self._coming.put(message, timeout=1.0)
                return

    def next(self) -> Message:
        try:
            found = self._coming.get(timeout=NEXT_SECONDS)
        except queue.Empty:
            return says.Came()
        if isinstance(found, says.Failed):
            raise CallFailedError(found)
        return found

    def close(self) -> None:
        self._over.set()
        self.raw.close()


class Front:
    """Answers the guard, over one channel at a time."""

    def __init__(self) -> None:
        self._session: _FrontSession | None = None
        self._route, self._party = Route(""), TlsParty(b"", b"", b"")

    def answer(self, request: Inquiry[Any]) -> Message:
        """Do what a request says; see :mod:`veilsum_participant.boundary.front`.

        Raises:
            CallFailedError, grpc.RpcError, HostileInput: it could not be done.
        """
        match request:
            case says.Dial():
                self._dial(request)
            case says.Hang():
                self.hang()
            case says.Explain():
                return self._explained()
            case says.Work():
                self._open.begin(request)
            case says.Next():
                return self._open.next()
            case says.Hello():
                return self._hello(request)
            case says.FetchObject():
                return says.Fetched(data=self.wire.fetch(request))
            case says.Flush():
                self.wire.flush()
            case _:
                self._say(request)
        return says.Acknowledged()

    def take(self, raw: grpc.Channel, wire: GrpcChannel) -> None:
        """Go on over a channel that is open, in place of one before."""
        self.hang()
        self._session = _FrontSession(raw, wire)

    def hang(self) -> None:
        """End the channel."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def wire(self) -> GrpcChannel:
        """By which calls go out.

        Raises:
            CallFailedError: no channel is open.
        """
        return self._open.wire

    @property
    def _open(self) -> _FrontSession:
        session = self._session
        if session is None:
            raise CallFailedError(says.Failed(status=says.Status.CANCELLED, details="The channel is closed."))
        return session

    def _dial(self, request: says.Dial) -> None:
        self.hang()
        proxy = Proxy(request.proxy, request.proxy_user, request.proxy_password) if request.proxy else None
        self._route = Route(request.address, proxy, request.roots)
        self._party = TlsParty(request.authority, request.certificate, request.key)
        raw = open_channel(self._route, self._party)
        self.take(raw, GrpcChannel(raw))

    def _hello(self, request: says.Hello) -> says.HelloReply:
        reply = self.wire.hello(request)
        return says.HelloReply(
            version=reply.version,
            now=max(0, reply.now),
            coordinator=reply.coordinator,
            software=reply.software,
            certificate=reply.certificate,
            signature=reply.signature,
        )

    def _say(self, request: Inquiry[Any]) -> None:
        wire = self.wire
        calls: dict[type[Inquiry[Any]], Callable[[Any], None]] = {
            says.Enrol: wire.enrol,
            says.Refuse: wire.refuse,
            says.Seal: wire.seal,
            says.Ready: wire.ready,
            says.UploadPayload: wire.upload,
            says.Answer: wire.answer,
            says.GiveConsent: wire.consent,
            says.Confirm: wire.confirm,
            says.Report: wire.report,
        }
        calls[type(request)](request)

    def _explained(self) -> says.Explained:
        try:
            probe_tls(self._route, self._party)
        except VeilsumError as error:
            return says.Explained(words=_short(str(error)))
        return says.Explained(words=f"The coordinator at {self._route.address} does not answer. Try again, and read its log.")


def told(error: Exception) -> says.Failed:
    """What the guard is told of a fault: the coordinator's status and words, or that what it sent was malformed."""
    if isinstance(error, grpc.Call):
        code = error.code()
        known = code.value[0] if code is not None and code.value[0] else says.Status.UNKNOWN
        return says.Failed(status=known, details=_short(error.details() or ""))
    if isinstance(error, HostileInput):
        return says.Failed(status=says.Status.DATA_LOSS, details=_short(str(error)), hostile=1)
    if isinstance(error, VeilsumError):
        return says.Failed(status=says.Status.UNAVAILABLE, details=_short(str(error)))
    if isinstance(error, ValueError):  # by which gRPC tells of a closed channel
        return says.Failed(status=says.Status.CANCELLED, details="The channel is closed.")
    return says.Failed(status=says.Status.UNKNOWN, details=type(error).__name__)


def in_process() -> Peer:
    """A front in this process."""
    return Direct(Front().answer, told)


def _short(words: str) -> str:
    return printable(words.encode("utf-8", "replace").decode())[:500]
