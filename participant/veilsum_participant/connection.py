"""Whether a coordinator can be reached, and if not, why: TCP, then TLS with both certificates, then the protocol's version.

gRPC reports most failures as "unavailable"; a handshake of our own tells a closed port from a foreign or expired certificate.
Nothing here opens a participant's session or changes anything at the coordinator.
"""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from veilsum_participant.channel import GrpcChannel
from veilsum_privacy.errors import HostileInput, Misuse, StateError, VeilsumError
from veilsum_privacy.identity import Credentials
from veilsum_privacy.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_privacy.runtime.logs import printable

PROBE_SECONDS = 5.0

_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Connection preface and an empty SETTINGS frame (RFC 9113, section 3.4)."""

_VERIFY_EXPIRED, _VERIFY_NOT_YET, _VERIFY_HOSTNAME, _VERIFY_ADDRESS = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR codes."""


class UnreachableError(HostileInput):
    """The coordinator cannot be reached, or what answers is not one of this federation."""


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``.

    Raises:
        Misuse: it is not such an address.
    """
    host, _, port = address.rpartition(":")
    if not host or any(character.isspace() for character in host) or not port.isascii() or not port.isdigit():
        raise Misuse(f"{address!r} is not HOST:PORT.", "For example: coordinator.example:8461.")
    if not 0 < int(port) < 65536:
        raise Misuse(f"{address!r} has no valid port.", "Ports are 1 to 65535.")
    return host, int(port)


def probe_tcp(address: str) -> None:
    """Open and close a TCP connection.

    Raises:
        UnreachableError: nothing listens there, or the name is unknown.
    """
    with _connect(address):
        pass


def probe_tls(address: str, identity: Path) -> None:
    """Shake hands as the party whose identity directory it is, and wait for the coordinator's first bytes.

    In TLS 1.3 a server judges the client's certificate after the client has finished; only its first bytes show acceptance.

    Raises:
        UnreachableError: says whose certificate was refused and why.
    """
    host = split_address(address)[0]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cafile=identity / AUTHORITY_FILE)
        context.load_cert_chain(identity / CERTIFICATE_FILE, identity / KEY_FILE)
    except OSError as error:  # includes ssl.SSLError
        raise Misuse(f"The identity in {identity} cannot be loaded.", "Check its three files.") from error
    with _connect(address) as raw:
        try:
            tls = context.wrap_socket(raw, server_hostname=host)
        except ssl.SSLCertVerificationError as error:
            raise _untrusted(address, error) from error
        except OSError as error:
            raise UnreachableError(
                f"What listens on {address} does not speak TLS 1.3.", "Check host and port of the coordinator."
            ) from error
        with tls:
            try:
                tls.sendall(_HTTP2_PREFACE)
                answer = tls.recv(1)
            except TimeoutError as error:
                raise UnreachableError(f"{address} does not answer after the TLS handshake.") from error
            except OSError:
                answer = b""
    if not answer:
        raise UnreachableError(
            f"The coordinator at {address} refused this party's certificate.",
            "It is of another federation, or not valid by the coordinator's clock. Let the authority sign again.",
        )


@dataclass(frozen=True)
class Greeting:
    """A coordinator by the name that it proved, its clock (Unix seconds), the agreed version and its software's name."""

    coordinator: str
    now: int
    version: int
    software: str


def hello(channel: grpc.Channel, credentials: Credentials, at: int) -> Greeting:
    """Negotiate the protocol's version and let the coordinator prove its name; ``at`` is the time in Unix seconds.

    Raises:
        StateError: no common version.
        HostileInput: the coordinator does not prove its name.
        grpc.RpcError: the call failed otherwise.
    """
    greeted = GrpcChannel(channel, credentials)
    reply = greeted.hello(SYSTEM_RANDOM.bytes(32), at)
    return Greeting(greeted.coordinator, reply.now, reply.version, printable(reply.software))


def explain(error: grpc.RpcError, address: str, identity: Path) -> VeilsumError:
    """The typed error behind a failed call; an unavailable coordinator is probed to say what is wrong with it."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = printable((error.details() if isinstance(error, grpc.Call) else "") or "")
    match code:
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            try:
                probe_tls(address, identity)
            except VeilsumError as found:
                return found
            return UnreachableError(f"The coordinator at {address} does not answer now.", "Try again; read its log.")
        case grpc.StatusCode.UNAUTHENTICATED:
            return UnreachableError(details, "Check certificate and clock, or ask the authority to sign again.")
        case grpc.StatusCode.PERMISSION_DENIED | grpc.StatusCode.INVALID_ARGUMENT:
            return Misuse(details or "The coordinator rejected the call.")
        case grpc.StatusCode.FAILED_PRECONDITION:
            return StateError(details)
        case grpc.StatusCode.INTERNAL:
            return StateError(details or "The coordinator failed.", "Ask its operator to read the log.")
    return UnreachableError(f"The coordinator at {address} answered {code.name}. {details}".strip())


def _connect(address: str) -> socket.socket:
    host, port = split_address(address)
    try:
        return socket.create_connection((host.strip("[]"), port), PROBE_SECONDS)
    except TimeoutError as error:
        raise UnreachableError(
            f"{address} does not answer within {PROBE_SECONDS:g} s.", "Check address, routes and firewalls."
        ) from error
    except socket.gaierror as error:
        raise UnreachableError(f"The host of {address} is not known.", "Check the name, or the name server.") from error
    except ConnectionRefusedError as error:
        raise UnreachableError(
            f"Nothing listens on {address}.", "Check host and port, and that the coordinator is running."
        ) from error
    except OSError as error:
        raise UnreachableError(f"{address} cannot be reached ({error.strerror}).", "Check address and routes.") from error


def _untrusted(address: str, error: ssl.SSLCertVerificationError) -> UnreachableError:
    match error.verify_code:
        case code if code == _VERIFY_EXPIRED:
            return UnreachableError(
                f"The certificate of the coordinator at {address} has expired.",
                "Let the authority sign it again; check the clock.",
            )
        case code if code == _VERIFY_NOT_YET:
            return UnreachableError(
                f"The certificate of the coordinator at {address} is not valid yet.", "Check this machine's clock."
            )
        case code if code in (_VERIFY_HOSTNAME, _VERIFY_ADDRESS):
            return UnreachableError(
                f"The coordinator at {address} is not certified for that host.",
                "Dial it by a certified name, or let the authority sign it with --host.",
            )
    return UnreachableError(
        f"The certificate of {address} is not of this federation.",
        "Check the address, and that authority.pem is that of the coordinator's federation.",
    )
