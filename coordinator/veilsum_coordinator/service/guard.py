"""Who calls, and how errors leave: every handler runs under :class:`Guard`.

A caller is what its client certificate says. A typed error becomes a status with its public text and a count; anything else
becomes "internal error", logged here with its trace and told to nobody. Every rejection is counted; of each caller the log
has some lines a minute, and how many more there were.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
from google.protobuf.message import DecodeError

from veilsum_coordinator.protocol.accumulator import OutOfOrder
from veilsum_coordinator.service.metrics import Metrics
from veilsum_node.addresses import peer_host
from veilsum_node.errors import Damage, HostileInput, StateError, Unavailable, VeilsumError
from veilsum_node.identity import CertificateExpired, Credentials, Identity, Role, verify_certificate
from veilsum_node.identity.renewal import ExpiryLog
from veilsum_node.telemetry.log_floods import caused_by
from veilsum_node.telemetry.logs import about

LOG = logging.getLogger("veilsum.coordinator")

CALL_SECONDS = 3600.0
"""How long a call that sends may take, whatever deadline the caller set: as long as an honest one waits for its own."""

LONGEST_NAME = 64
"""Bytes of a caller's name in the log, as many as a certified one has."""

Result = TypeVar("Result")
if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:
    Context = grpc.aio.ServicerContext
    Interceptor = grpc.aio.ServerInterceptor


class Unauthenticated(HostileInput):
    """The caller showed no certificate of this federation that is valid now."""


class WrongRole(HostileInput):
    """The caller's certificate has another role than the call needs."""


class WrongVersion(HostileInput):
    """Caller and coordinator speak no common version of the protocol."""


class HeldElsewhere(HostileInput):
    """Another process with the caller's identity has a session that is alive."""


class TooManyCalls(HostileInput):
    """The caller holds as many open calls as one peer may, over all its connections."""


class TooSlow(HostileInput):
    """A stream of requests took longer than any honest one may."""


_STATUS: tuple[tuple[type[Exception], grpc.StatusCode, str], ...] = (
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
    (WrongRole, grpc.StatusCode.PERMISSION_DENIED, "role"),
    (WrongVersion, grpc.StatusCode.FAILED_PRECONDITION, "version"),
    (HeldElsewhere, grpc.StatusCode.ALREADY_EXISTS, "held"),
    (TooManyCalls, grpc.StatusCode.RESOURCE_EXHAUSTED, "busy"),
    (TooSlow, grpc.StatusCode.DEADLINE_EXCEEDED, "busy"),
    (OutOfOrder, grpc.StatusCode.OUT_OF_RANGE, "out-of-order"),
    (HostileInput, grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    (DecodeError, grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
    (Unavailable, grpc.StatusCode.UNAVAILABLE, "not-stored"),
    (Damage, grpc.StatusCode.FAILED_PRECONDITION, "state"),
    (StateError, grpc.StatusCode.FAILED_PRECONDITION, "state"),
)


class Guard:
    """Authenticates callers and maps errors to statuses."""

    def __init__(self, credentials: Credentials, clock: Callable[[], int], metrics: Metrics) -> None:
        self._credentials, self._clock, self.metrics = credentials, clock, metrics
        self._expiry = ExpiryLog(clock)

    def caller(self, context: Context, roles: tuple[Role, ...]) -> Identity:
        """The caller's identity; a participant's connections may show a certificate of their own under its name.

        Raises:
            Unauthenticated: no valid certificate.
            WrongRole: another role than one of ``roles``.
        """
        shown = list(context.auth_context().get("x509_pem_cert", ()))
        try:
            identity = verify_certificate(bytes(shown[0]), self._credentials.authority, self._clock(), None)
        except CertificateExpired as error:  # a session outlived it; at a handshake TLS refuses it before anyone hears of it
            raise Unauthenticated(error.message, error.advice) from error
        except (HostileInput, IndexError) as error:
            raise Unauthenticated("The caller's certificate is missing, not valid yet or not of this federation.") from error
        self._expiry.check(f"{identity.role} {identity.name}", identity.not_after)
        if identity.role not in roles:
            raise WrongRole(f"This call is for {' or '.join(roles)}, but the caller is {identity.role.value}.")
        return identity

    async def unary(self, context: Context, work: Callable[[], Awaitable[Result]]) -> Result:
        """Run a handler that returns one message."""
        try:
            return await work()
        except Exception as error:
            await self.abort(context, error)
            raise

    async def stream(self, context: Context, work: Callable[[], AsyncIterator[Result]]) -> AsyncIterator[Result]:
        """Run a handler that streams messages."""
        try:
            async for item in work():
                yield item
        except Exception as error:
            await self.abort(context, error)
            raise

    async def abort(self, context: Context, error: Exception) -> None:
        """End a call with the status of an error; raises."""
        if isinstance(error, grpc.aio.AbortError):
            return
        await asyncio.sleep(0)  # a caller that vanished in a stream looks like one that ended it, until this task is cancelled
        peer = caller_name(context)
        flood = caused_by("rejected calls", peer)
        for kind, status, reason in _STATUS:
            if isinstance(error, kind):
                text = error.message if isinstance(error, VeilsumError) else "The message cannot be parsed."
                extra = about("rejected", reason=reason) | flood
                LOG.warning("rejected (%s): %s (from %s)", reason, text, peer, extra=extra)
                self.metrics.rejected.labels(reason).inc()
                if kind is DecodeError:
                    self.metrics.decode_failures.labels("message").inc()
                await _tell(context, status, text)
        LOG.error("internal error", exc_info=error, extra=caused_by("internal errors", peer))
        self.metrics.rejected.labels("internal").inc()
        await _tell(context, grpc.StatusCode.INTERNAL, "Internal error; see the coordinator's log.")


async def _tell(context: Context, status: grpc.StatusCode, text: str) -> None:
    """Abort the call, which raises; a caller that has gone meanwhile cannot be told, and its call ends as a cancelled one."""
    try:
        await context.abort(status, text)
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


def caller_name(context: Context) -> str:
    """What to call a caller in the log: the name in the certificate that TLS let in, also of another role or expired since."""
    names = list(context.auth_context().get("x509_common_name", ()))
    if names:
        return bytes(names[0])[:LONGEST_NAME].decode("utf-8", "replace")
    return peer_host(context.peer()) or "an unknown address"


class Intake(Interceptor):
    """Runs every handler of a package under the guard, which parses single requests as well, and bounds a peer's open calls.

    gRPC bounds open calls by connection only, and a peer can open many; and it would answer a single request that cannot be
    parsed with "unknown" and the parser's own words, and count nothing. Requests that stream are parsed as they are read,
    under the guard as well. Who sends a byte now and then is cut off in the end, and holds no other's call up meanwhile.
    """

    def __init__(self, guard: Guard, package: str, max_peer_calls: int) -> None:
        self._guard, self._prefix, self._limit = guard, f"/{package}.", max_peer_calls
        self._open: Counter[bytes] = Counter()
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler of one of the package's methods."""
        method = handler_call_details.method
        if (known := self._wrapped.get(method)) is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is None or not method.startswith(self._prefix):
            return handler
        if handler.request_streaming:
            wrapped = self._wrap(handler, handler.stream_unary, None, handler.request_deserializer)
        else:
            behaviour = handler.unary_stream if handler.response_streaming else handler.unary_unary
            wrapped = self._wrap(handler, behaviour, handler.request_deserializer, None)
        self._wrapped[method] = wrapped
        return wrapped

    def _wrap(self, handler: Any, behaviour: Any, parse: Callable[[bytes], Any] | None, deserializer: Any) -> Any:
        async def single(request: Any, context: Context) -> Any:
            """A request that is here whole: nobody can make it longer."""
            try:
                with self._admitted(context):
                    return await behaviour(parse(request) if parse else request, context)
            except Exception as error:
                await self._guard.abort(context, error)
                raise

        async def unary(request: Any, context: Context) -> Any:
            async def work() -> Any:
                with self._admitted(context):
                    try:
                        async with asyncio.timeout(CALL_SECONDS) as limit:
                            return await behaviour(request, context)
                    except TimeoutError as error:
                        if not limit.expired():
                            raise
                        raise TooSlow(f"The call took longer than {CALL_SECONDS:.0f} s.", "Send faster, or less.") from error

            return await self._guard.unary(context, work)

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            async def work() -> AsyncIterator[Any]:
                with self._admitted(context):
                    async for item in behaviour(parse(request) if parse else request, context):
                        yield item

            async for item in self._guard.stream(context, work):
                yield item

        def serializer(message: Any) -> bytes:
            """What was serialised once for many is sent as it is."""
            return message if isinstance(message, bytes) else handler.response_serializer(message)

        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, deserializer, serializer)
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(unary, deserializer, serializer)
        return grpc.unary_unary_rpc_method_handler(single, deserializer, serializer)

    @contextmanager
    def _admitted(self, context: Context) -> Iterator[None]:
        peer = bytes(next(iter(context.auth_context().get("x509_pem_cert", ())), b""))
        if self._open[peer] >= self._limit:
            raise TooManyCalls(f"The caller holds {self._limit} open calls already.", "Close some first.")
        self._open[peer] += 1
        try:
            yield
        finally:
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
