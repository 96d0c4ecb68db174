"""TLS handshakes of our own, beside gRPC's: to say whose certificate was refused and why, and to pin a server's.

gRPC reports most failures as "unavailable" and never shows a client the certificate of its server.
"""

import os
import ssl
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from veilsum_node.errors import HostileInput
from veilsum_node.identity.certificate import certificate_end, load_certificate, moment
from veilsum_node.identity.files import read_file
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.dialling import BrokenOffError, UnreachableError, connect
from veilsum_node.transport.route import Route, split_address

_VERIFY_EXPIRED, _VERIFY_NOT_YET, _VERIFY_HOSTNAME, _VERIFY_ADDRESS = 10, 9, 62, 64
"""OpenSSL's X509_V_ERR codes."""


@dataclass(frozen=True)
class TlsParty:
    """What a party shows itself by in TLS and believes others by, in PEM."""

    authority_pem: bytes = field(repr=False)
    certificate_pem: bytes = field(repr=False)
    key_pem: bytes = field(repr=False)

    @classmethod
    def of(cls, identity: Path) -> "TlsParty":
        """The party whose identity directory it is; nothing is verified.

        Raises:
            Misuse: a file cannot be read.
        """
        return cls(
            read_file(identity / AUTHORITY_FILE, "authority's certificate"),
            read_file(identity / CERTIFICATE_FILE, "certificate"),
            read_file(identity / KEY_FILE, "private key"),
        )

    def context(self, roots: bytes) -> ssl.SSLContext:
        """TLS 1.3 as this party, to a server whose certificate comes from its authority or ``roots``.

        Raises:
            OSError, ValueError: the PEM is wrong; no file can be made in memory.
        """
        context = client_context(self.authority_pem + b"\n" + roots)
        with tempfile.TemporaryFile() if not hasattr(os, "memfd_create") else os.fdopen(os.memfd_create("tls"), "wb") as file:
            file.write(self.certificate_pem + b"\n" + self.key_pem)  # OpenSSL is given these by a file's name only
            file.flush()
            file.seek(0)
            context.load_cert_chain(f"/dev/fd/{file.fileno()}")
        return context


def client_context(roots: bytes) -> ssl.SSLContext:
    """TLS 1.3 to a server whose certificate must come from ``roots`` (PEM) and name the host."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as gRPC does: an intermediate authority may be a root
    context.set_alpn_protocols(["h2"])
    context.load_verify_locations(cadata=roots.decode())
    return context


def _certified(way: Route) -> str:
    """The name that the server's certificate must bear; an address's zone is this machine's own business."""
    return split_address(way.address)[0].partition("%")[0]


def shake_hands(way: Route, context: ssl.SSLContext) -> ssl.SSLSocket:
    """Connect and finish a TLS handshake.

    Raises:
        BrokenOffError, AwayError: the connection was broken off, or nothing answers.
        UnreachableError: says whose certificate was refused and why, or that what listens there speaks something else.
    """
    raw = connect(way)
    try:
        return context.wrap_socket(raw, server_hostname=_certified(way))
    except ssl.SSLCertVerificationError as error:
        raw.close()
        raise _untrusted(way, error) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, TimeoutError, ConnectionError) as error:
        raw.close()
        what = "does not answer" if isinstance(error, TimeoutError) else "broke off"
        raise BrokenOffError(
            f"What listens on {way.address} {what} in the TLS handshake.",
            "A coordinator that starts or stops does so: try again. If it stays so, check host and port.",
        ) from error
    except OSError as error:  # includes ssl.SSLError
        raw.close()
        raise UnreachableError(
            f"What listens on {way.address} does not speak TLS 1.3.", "Check host and port of the coordinator."
        ) from error


def server_certificate(way: Route, authority: bytes) -> bytes:
    """The PEM certificate that the server presents now, if the federation's authority or one of the route's roots issued it.

    A channel that trusts this one certificate and nothing else cannot be moved to another server when it reconnects. Whose
    the certificate is then follows from the signed greeting on that channel: a middlebox with a certificate of its own would
    have to answer the greeting, and the coordinator signs one only for a caller that showed its client certificate on the
    coordinator's own connection.

    Raises:
        UnreachableError: no server answers, or its certificate does not hold.
    """
    with shake_hands(way, client_context(authority + b"\n" + way.roots)) as tls:
        found = tls.getpeercert(binary_form=True)
    if not found:
        raise UnreachableError(f"{way.address} presented no certificate.")
    return ssl.DER_cert_to_PEM_cert(found).encode()


def _presented(way: Route) -> str:
    """When the certificate ends that an untrusted server presents, in words; nothing of this party is shown to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with connect(way) as raw, context.wrap_socket(raw, server_hostname=_certified(way)) as tls:
            shown = load_certificate(tls.getpeercert(binary_form=True) or b"")
            return (
                f": {printable(shown.subject.rfc4514_string())[:100]}, {moment(int(shown.not_valid_before_utc.timestamp()))}"
                f" to {moment(certificate_end(shown))}"
            )
    except (OSError, HostileInput, ValueError):
        return ""


def _untrusted(way: Route, error: ssl.SSLCertVerificationError) -> UnreachableError:
    match error.verify_code:
        case code if code == _VERIFY_EXPIRED:
            return UnreachableError(
                f"The certificate of the coordinator at {way.address}, or its authority's, has expired{_presented(way)}.",
                "Have the authority sign it again; check the clock.",
            )
        case code if code == _VERIFY_NOT_YET:
            return UnreachableError(
                f"The certificate of the coordinator at {way.address} is not valid yet{_presented(way)}.",
                "Check this machine's clock.",
            )
        case code if code in (_VERIFY_HOSTNAME, _VERIFY_ADDRESS):
            return UnreachableError(
                f"The coordinator at {way.address} is not certified for that host.",
                "Use a name in its certificate, or have the authority sign it with --host.",
            )
    if way.roots:
        return UnreachableError(
            f"The certificate of {way.address} is neither of this federation nor of the CA bundle's authorities.",
            "Check the address and `ca_bundle`; a proxy that intercepts TLS shows a certificate of its own.",
        )
    return UnreachableError(
        f"The certificate of {way.address} is not of this federation.",
        "Check the address, and that authority.pem is that of the coordinator's federation; a certificate of another authority"
        " needs `ca_bundle`.",
    )


def own_certificate_refused(certificate: bytes, way: Route, alert: str) -> UnreachableError:
    """Why a server ended the connection after it saw this party's certificate (PEM)."""
    shown = load_certificate(certificate)
    ended = certificate_end(shown)
    end = moment(ended)
    if "expired" in alert or time.time() > ended:  # a server may end the connection without a word
        return UnreachableError(
            f"The coordinator at {way.address} refused this party's certificate: it has expired, it ended on {end}.",
            "Have the authority sign the request again; if the date is in the future, check both clocks.",
        )
    return UnreachableError(
        f"The coordinator at {way.address} refused this party's certificate.",
        f"It is of another federation, or not valid by the coordinator's clock (it ends on {end}). Have it signed again.",
    )
