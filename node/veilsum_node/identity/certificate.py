"""Who a key belongs to: certificates of the federation's one authority, and the checks they must pass.

There are no intermediate authorities, no revocation lists and no other trust anchors: peers are pinned by key fingerprint,
and a new key needs an operator's word. This module verifies; the authority issues in :mod:`.authority`.
"""

import hashlib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID, SignatureAlgorithmOID

from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity.files import read_file

MAX_CERTIFICATE_BYTES = 8192
"""Largest certificate that is parsed, DER or PEM."""

NAME_PATTERN = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
"""Names of federations and parties, matched as a whole: :data:`veilsum_privacy.study.schema.Name`."""

_PEM_START = b"-----BEGIN CERTIFICATE-----"
_LEAF_EXTENSIONS = frozenset(
    {
        ExtensionOID.BASIC_CONSTRAINTS,
        ExtensionOID.KEY_USAGE,
        ExtensionOID.EXTENDED_KEY_USAGE,
        ExtensionOID.SUBJECT_ALTERNATIVE_NAME,
        ExtensionOID.SUBJECT_KEY_IDENTIFIER,
        ExtensionOID.AUTHORITY_KEY_IDENTIFIER,
    }
)


class CertificateExpired(HostileInput):
    """A certificate that was in order has ended; the message names whose it is and when it did."""


class Role(StrEnum):
    """What the authority lets a party be; a certificate carries exactly one.

    ``transport`` is a participant's second certificate, of the key that its connections show: it speaks for the participant to
    a coordinator and signs nothing, so that the key that signs need not lie where connections are made.
    """

    PARTICIPANT = "participant"
    COORDINATOR = "coordinator"
    ANALYST = "analyst"
    OPERATOR = "operator"
    TRANSPORT = "transport"

    @property
    def key_usages(self) -> tuple[x509.ObjectIdentifier, ...]:
        """Extended key usages: only a coordinator is dialled."""
        if self is Role.COORDINATOR:
            return (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
        return (ExtendedKeyUsageOID.CLIENT_AUTH,)


@dataclass(frozen=True)
class Identity:
    """A party as its verified certificate states it; only :func:`verify_certificate` makes one.

    Attributes:
        name: unique in the federation.
        role: the one role.
        fingerprint: SHA-256 of the key's SubjectPublicKeyInfo in DER, 64 hexadecimal digits: what peers pin.
        public_key: the certified ECDSA P-256 key.
        not_before: first valid second, Unix time.
        not_after: last valid second, Unix time.
        certificate: the certificate in DER.
    """

    name: str
    role: Role
    fingerprint: str
    public_key: ec.EllipticCurvePublicKey = field(repr=False, compare=False)
    not_before: int
    not_after: int
    certificate: bytes = field(repr=False)


def key_fingerprint(public_key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the SubjectPublicKeyInfo in DER, as 64 hexadecimal digits."""
    return hashlib.sha256(public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def identity_uri(federation: str, role: Role, name: str) -> str:
    """The URI that a certificate's subjectAltName carries for a party."""
    return f"veilsum://{federation}/{role}/{name}"


def p256_key(public_key: object, what: str) -> ec.EllipticCurvePublicKey:
    """Return ``public_key`` if it is one of ECDSA P-256.

    Raises:
        HostileInput: it is of another kind or curve.
    """
    if not isinstance(public_key, ec.EllipticCurvePublicKey) or not isinstance(public_key.curve, ec.SECP256R1):
        raise HostileInput(f"The {what}'s key is not an ECDSA P-256 key.")
    return public_key


def common_name(subject: x509.Name, what: str) -> str:
    """Return the one CN of ``subject``, which must be a valid name.

    Raises:
        HostileInput: none, several, or one that is not a name.
    """
    values = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if len(values) != 1 or not isinstance(values[0], str) or not NAME_PATTERN.fullmatch(values[0]):
        raise HostileInput(f"The {what} does not have exactly one valid common name.")
    return values[0]


def load_certificate(data: bytes, what: str = "certificate") -> x509.Certificate:
    """Parse exactly one X.509 certificate, DER or PEM, and its key; nothing in it is verified.

    Raises:
        HostileInput: anything else.
    """
    if not 0 < len(data) <= MAX_CERTIFICATE_BYTES:
        raise HostileInput(f"The {what} is empty or larger than {MAX_CERTIFICATE_BYTES} bytes.")
    try:
        if data.lstrip().startswith(_PEM_START):
            (certificate,) = x509.load_pem_x509_certificates(data)
        else:
            certificate = x509.load_der_x509_certificate(data)
        certificate.public_key()  # which is parsed no sooner, and may be of no kind and no point of its curve
    except Exception as error:  # the parser's faults are many and undocumented
        raise HostileInput(f"The {what} is not a single X.509 certificate.") from error
    return certificate


def load_authority_certificate(data: bytes) -> x509.Certificate:
    """Parse an authority's certificate: self-signed, P-256, a CA of path length 0 that may sign certificates.

    Raises:
        HostileInput: it is not.
    """
    what = "authority's certificate"
    certificate = load_certificate(data, what)
    try:
        p256_key(certificate.public_key(), what)
        common_name(certificate.subject, what)
        certificate.verify_directly_issued_by(certificate)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
        if not constraints.ca or constraints.path_length != 0 or not usage.key_cert_sign:
            raise HostileInput(f"The {what} is not a CA certificate.", "Ask the authority's operator for authority.pem.")
    except VeilsumError:
        raise
    except Exception as error:
        raise HostileInput(f"The {what} is invalid.", "Ask the authority's operator for authority.pem.") from error
    return certificate


def federation_name(authority: x509.Certificate) -> str:
    """The federation's name: the CN of its authority."""
    return common_name(authority.subject, "authority's certificate")


def federation_id(authority: x509.Certificate) -> str:
    """SHA-256 of the authority's certificate in DER, as 64 hexadecimal digits: :attr:`Study.federation`."""
    return hashlib.sha256(authority.public_bytes(Encoding.DER)).hexdigest()


def verify_certificate(data: bytes, ca: x509.Certificate, at: int, role: Role | None) -> Identity:
    """Verify a certificate, DER or PEM, against the federation's one authority.

    1. It parses as one X.509 certificate of at most ``MAX_CERTIFICATE_BYTES``.
    2. Its issuer is the authority's subject and its signature, ECDSA with SHA-256 and whole bytes, verifies under the
       authority's key.
    3. The authority's certificate and this one are both valid at ``at``.
    4. It has exactly the extensions that the authority writes, each once, and none unknown (so it is of version 3).
    5. Its basic constraints deny it to be an authority; its key usage is digitalSignature alone.
    6. Its key is ECDSA P-256.
    7. Its subject is one CN, a valid name.
    8. It has exactly one URI in its subjectAltName, ``veilsum://<federation>/<role>/<name>`` with the CN as name and the
       authority's CN as federation; host names and addresses only for a coordinator, and nothing else.
    9. Its extended key usage is that of the role.
    10. The role is ``role``, unless that is None.

    Args:
        ca: the authority's certificate, from :func:`load_authority_certificate`.
        at: the time to judge by, Unix seconds.
        role: the role it must have, or None for any.

    Raises:
        CertificateExpired: one of the two has ended.
        HostileInput: any other step fails.
    """
    identity = _verified(data, ca, role)
    begin, end = _span(ca)
    _check_time(at, begin, end, ca)
    _check_time(at, identity.not_before, identity.not_after, identity)
    return identity


@lru_cache(maxsize=32)
def _span(ca: x509.Certificate) -> tuple[int, int]:
    """First and last second of an authority's certificate; remembered, for every certificate is held against it."""
    return _seconds(ca.not_valid_before_utc), _seconds(ca.not_valid_after_utc)


def _check_time(at: int, begin: int, end: int, of: x509.Certificate | Identity) -> None:
    if begin <= at <= end:
        return
    whose = f"{of.role} {of.name}" if isinstance(of, Identity) else f"authority {federation_name(of)}"
    if at < begin:
        raise HostileInput(
            f"The certificate of {whose} is not valid yet: it begins on {moment(begin)}.", "Check this machine's clock."
        )
    raise CertificateExpired(
        f"The certificate of {whose} has expired: it ended on {moment(end)}.", "Have the authority sign it again."
    )


def issued(certificate: bytes, authority: x509.Certificate, role: Role) -> Identity:
    """Verify that the authority issued a certificate, which may have expired since: what it signed stays signed.

    Raises:
        HostileInput: it did not.
    """
    ends = load_certificate(certificate).not_valid_after_utc, authority.not_valid_after_utc
    return verify_certificate(certificate, authority, int(min(ends).timestamp()), role)


@lru_cache(maxsize=4096)
def _verified(data: bytes, ca: x509.Certificate, role: Role | None) -> Identity:
    """All steps that do not depend on the time; remembered, for every message of a round asks for it again."""
    certificate = load_certificate(data)
    try:
        return _verify(certificate, ca, role)
    except VeilsumError:
        raise
    except Exception as error:  # lazily parsed fields raise whatever the parser finds
        raise HostileInput("The certificate is malformed or was not issued by the federation's authority.") from error


def _verify(certificate: x509.Certificate, ca: x509.Certificate, role: Role | None) -> Identity:
    if certificate.signature_algorithm_oid != SignatureAlgorithmOID.ECDSA_WITH_SHA256:
        raise HostileInput("The certificate is not signed with ECDSA and SHA-256.")
    certificate.verify_directly_issued_by(ca)
    if (
        certificate.public_bytes(Encoding.DER)[-len(certificate.signature) - 1] != 0
    ):  # how many bits of its last byte are unused
        raise HostileInput("The certificate's signature is not whole bytes.")

    extensions = certificate.extensions
    if {extension.oid for extension in extensions} != _LEAF_EXTENSIONS:
        raise HostileInput("The certificate does not have exactly the extensions that an authority writes.")
    if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        raise HostileInput("The certificate is that of an authority, not of a party.")
    if extensions.get_extension_for_class(x509.KeyUsage).value != LEAF_KEY_USAGE:
        raise HostileInput("The certificate's key usage is not digital signatures alone.")

    public_key = p256_key(certificate.public_key(), "certificate")
    name = common_name(certificate.subject, "certificate")
    if len(list(certificate.subject)) != 1:
        raise HostileInput("The certificate's subject holds more than a common name.")

    alternative = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = alternative.get_values_for_type(x509.UniformResourceIdentifier)
    hosts = [*alternative.get_values_for_type(x509.DNSName), *alternative.get_values_for_type(x509.IPAddress)]
    federation = federation_name(ca)
    found = [candidate for candidate in Role if uris == [identity_uri(federation, candidate, name)]]
    if len(found) != 1 or len(list(alternative)) != 1 + len(hosts):
        raise HostileInput("The certificate's alternative names do not agree with its common name and the federation.")
    (own,) = found
    if hosts and own is not Role.COORDINATOR:
        raise HostileInput("The certificate names hosts, but only a coordinator has any.")
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    if set(usages) != set(own.key_usages):
        raise HostileInput(f"The certificate's extended key usage is not that of a {own}.")
    if role is not None and own is not role:
        raise HostileInput(f"The certificate is that of a {own}, not of a {role}.")

    return Identity(
        name=name,
        role=own,
        fingerprint=key_fingerprint(public_key),
        public_key=public_key,
        not_before=_seconds(certificate.not_valid_before_utc),
        not_after=_seconds(certificate.not_valid_after_utc),
        certificate=certificate.public_bytes(Encoding.DER),
    )


def key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    """A key usage of the given bits and no other."""
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


LEAF_KEY_USAGE = key_usage(digital_signature=True)
"""What a party's key may do."""


def certificate_end(certificate: x509.Certificate) -> int:
    """The last second in which a certificate is valid, Unix time."""
    return _seconds(certificate.not_valid_after_utc)


def moment(seconds: int) -> str:
    """A point in time as an operator reads it; ``seconds`` are Unix time."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _seconds(point: datetime) -> int:
    return int(point.timestamp())


def load_authority(path: Path) -> x509.Certificate:
    """The federation's certificate from a PEM file.

    Raises:
        ConfigurationError: the file cannot be read.
        HostileInput: it is not an authority's certificate.
    """
    return load_authority_certificate(read_file(path, "authority's certificate"))
