"""Whether a coordinator can be reached, and if not, why: TCP, then TLS with both certificates, then the protocol's version.

gRPC reports most failures as "unavailable"; a handshake of our own tells a closed port from a foreign or expired certificate.
Nothing here opens a participant's session or changes anything at the coordinator.
"""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from veilsum_node.errors import Misuse, StateError, VeilsumError
from veilsum_node.identity import Credentials
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.channel import greet
from veilsum_node.transport.dialling import BrokenOffError, UnreachableError, as_route, connect
from veilsum_node.transport.handshake import TlsParty, own_certificate_refused, shake_hands
from veilsum_node.transport.route import Route, split_address
from veilsum_proto.services import CoordinationStub

__all__ = ["Greeting", "UnreachableError", "explain", "hello", "probe_tcp", "probe_tls", "split_address"]

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface and an empty SETTINGS frame (RFC 9113, section 3.4)."""


def probe_tcp(way: Route | str) -> None:
    """Open and close a TCP connection, through the proxy if the route has one.

    Raises:
        UnreachableError: nothing listens there, or the name is unknown, or the proxy refuses.
    """
    with connect(as_route(way)):
        pass


def probe_tls(way: Route | str, identity: Path | TlsParty) -> None:
    """Shake hands as a party, or as that whose identity directory it is, and wait for the coordinator's first bytes.

    In TLS 1.3 a server judges the client's certificate after the client has finished; only its first bytes show acceptance.

    Raises:
        UnreachableError: says whose certificate was refused and why.
    """
    way = as_route(way)
    try:
        party = identity if isinstance(identity, TlsParty) else TlsParty.of(identity)
        context = party.context(way.roots)
    except (OSError, ValueError) as error:  # includes ssl.SSLError
        where = f" in {identity}" if isinstance(identity, Path) else ""
        raise Misuse(f"The identity{where} cannot be loaded.", "Check its three files.") from error
    answer, alert = _first_byte(way, context)
    if not answer and not alert:  # a server that is killed ends a connection so as well: then nothing answers the next one
        answer, alert = _first_byte(way, context)
    if not answer:
        raise own_certificate_refused(party.certificate_pem, way, alert)


def _first_byte(way: Route, context: ssl.SSLContext) -> tuple[bytes, str]:
    """What a server says first once it has seen this party's certificate, and the alert by which it refused it."""
    with shake_hands(way, context) as tls:
        try:
            tls.sendall(_HTTP2_PREFACE)
            return tls.recv(1), ""
        except TimeoutError as error:
            raise BrokenOffError(
                f"{way.address} does not answer after the TLS handshake.", "Try again, and read its log."
            ) from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            return b"", ""
        except ssl.SSLError as error:
            return b"", str(error)
        except OSError:
            return b"", ""


@dataclass(frozen=True)
class Greeting:
    """A coordinator by the name that it proved, its clock (Unix seconds), the agreed version, its software's name, and the
    last second of the certificate that it proved its name by (Unix time)."""

    coordinator: str
    now: int
    version: int
    software: str
    not_after: int


def hello(channel: grpc.Channel, credentials: Credentials, at: int) -> Greeting:
    """Negotiate the protocol's version and let the coordinator prove its name; ``at`` is the time in Unix seconds.

    Raises:
        StateError: no common version.
        HostileInput: the coordinator does not prove its name.
        grpc.RpcError: the call failed otherwise.
    """
    reply, identity = greet(CoordinationStub(channel), credentials, SYSTEM_RANDOM.bytes(32), at)
    return Greeting(identity.name, reply.now, reply.version, printable(reply.software), identity.not_after)


def explain(error: grpc.RpcError, way: Route | str, identity: Path | TlsParty) -> VeilsumError:
    """The typed error behind a failed call; an unavailable coordinator is probed, the same way, to say what is wrong."""
    way = as_route(way)
    address = way.address
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = printable((error.details() if isinstance(error, grpc.Call) else "") or "")
    match code:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            try:
                probe_tls(way, identity)
            except VeilsumError as found:
                return found
            return BrokenOffError(f"The coordinator at {address} does not answer.", "Try again, and read its log.")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnreachableError(details, "Check certificate and clock, or ask the authority to sign again.")
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.INVALID_ARGUMENT:
            return Misuse(details or "The coordinator rejected the call.")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return StateError(details)
        case grpc.StatusCode.INTERNAL:
            return StateError(details or "The coordinator failed.", "Ask its operator to read the log.")
    return UnreachableError(f"The coordinator at {address} answered {code.name}. {details}".strip())
