"""The federation's certificate authority: one key, one self-signed certificate, and a record of everything it signed.

It decides names and roles; a request only proves that its sender holds the key. It sees no private key but its own, keeps no
revocation list and takes no part in studies. Keys and serial numbers come from the cryptographic library's own randomness.

    key.pem              private key, mode 0600, encrypted if a passphrase was given
    certificate.pem      what every party of the federation trusts
    issued/index.jsonl   one line for each certificate, written before it is handed out

The federation's directory is signed in :mod:`veilsum_node.identity.releases`.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from veilsum_node.addresses import bare_host
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, told_as
from veilsum_node.identity import certificate as certificates
from veilsum_node.identity.certificate import NAME_PATTERN, Role, key_fingerprint
from veilsum_node.identity.files import MAX_FILE_BYTES, read_file, read_private, write_new
from veilsum_node.identity.record import Issued, IssuedRecord
from veilsum_node.identity.requests import BACKDATE, LONGEST_LOGIN, PEOPLE, check_name
from veilsum_node.identity.signatures import SigningKey

DEFAULT_DAYS = 365
"""How long a party's certificate is valid unless told otherwise."""

_CA_DAYS = 3653
_DAY = 86_400
_HOST = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def parse_login_request(csr: bytes) -> tuple[Role, ec.EllipticCurvePublicKey]:
    """The role and the key of :func:`~veilsum_node.identity.requests.login_request`.

    Raises:
        HostileInput: it is malformed, badly signed, of another curve, or asks for no role that people have.
    """
    subject, key = _parse_request(csr)
    stated = [item.value for item in subject]
    if len(stated) != 1 or stated != _units(subject) or stated[0] not in PEOPLE:
        raise HostileInput("The request of a login states a role, analyst or operator, and nothing else.")
    return Role(stated[0]), key


class Authority:
    """A certificate authority in a directory; use :meth:`create` or :meth:`load`."""

    def __init__(
        self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, clock: Callable[[], int]
    ) -> None:
        self.directory = directory
        self.certificate = certificate
        self._key = key
        self._clock = clock
        self._record = IssuedRecord(directory)

    @classmethod
    def create(
        cls, directory: Path, federation_name: str, clock: Callable[[], int], *, passphrase: bytes | None = None
    ) -> "Authority":
        """Make a new authority: a key and a certificate valid for ten years.

        Raises:
            Misuse: ``federation_name`` is not a name, or the passphrase is empty.
            StateError: the directory holds an authority already, or cannot be written.
        """
        check_name(federation_name, "federation's name")
        if passphrase is not None and not passphrase:
            raise Misuse("The passphrase is empty.", "Give one, or none at all.")
        key = ec.generate_private_key(ec.SECP256R1())
        now = clock()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, federation_name)])
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        certificate = (
            certificate_builder(subject, subject, key.public_key(), now - BACKDATE, now + _CA_DAYS * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(certificates.key_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .add_extension(identifier, critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
            .sign(key, hashes.SHA256())
        )
        encryption: KeySerializationEncryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        write_new(directory / "key.pem", pem, mode=0o600)
        IssuedRecord(directory).create()
        write_new(directory / "certificate.pem", certificate.public_bytes(Encoding.PEM))
        return cls(directory, key, certificate, clock)

    @classmethod
    def load(cls, directory: Path, clock: Callable[[], int], *, passphrase: bytes | None = None) -> "Authority":
        """Open an authority that :meth:`create` made.

        Raises:
            ConfigurationError: a file is missing, malformed or readable by others, or the passphrase is wrong.
        """
        advice = "Create an authority first with `veilsum federation init`."
        if (directory / "certificate.pem").exists():
            advice = (
                "Put it back from a backup: this authority's certificate belongs to that key, and no other can replace it."
            )
        pem = read_private(directory / "key.pem", "authority's key", advice=advice)
        data = read_file(directory / "certificate.pem", "authority's certificate", advice=advice)
        try:
            key = load_pem_private_key(pem, passphrase)
        except Exception as error:
            raise ConfigurationError(
                f"The authority's key {directory / 'key.pem'} cannot be opened.",
                "Check the passphrase; if the file is damaged, keep it and put it back from a backup.",
            ) from error
        with told_as(ConfigurationError, HostileInput, what=directory / "certificate.pem"):
            certificate = certificates.load_authority_certificate(data)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise ConfigurationError(f"Key and certificate in {directory} do not match.", "Restore both from one backup.")
        return cls(directory, key, certificate, clock)

    @property
    def federation_name(self) -> str:
        """The name in the authority's certificate."""
        return certificates.federation_name(self.certificate)

    @property
    def federation_id(self) -> str:
        """SHA-256 of the authority's certificate in DER, 64 hexadecimal digits."""
        return certificates.federation_id(self.certificate)

    @property
    def certificate_pem(self) -> bytes:
        """The authority's certificate in PEM: ``authority.pem`` of every party."""
        return self.certificate.public_bytes(Encoding.PEM)

    def sign(
        self, csr: bytes, *, role: Role, name: str, hosts: Sequence[str] = (), days: int = DEFAULT_DAYS, replace: bool = False
    ) -> bytes:
        """Sign a request; the same key may be certified again, for renewal.

        Args:
            csr: the request, PEM.
            role: the role to certify; a request that states another one is refused.
            name: the name to certify; the request must ask for exactly it.
            hosts: host names and IP addresses under which a coordinator is dialled.
            days: how long the certificate is valid, 1 to 3653, and not beyond the authority's own.
            replace: let the name go to another key or role than before. Peers that pinned the old key do not follow.

        Returns:
            The certificate in PEM.

        Raises:
            HostileInput: the request is malformed, badly signed, of another curve, or states another name or role.
            Misuse: hosts or days are wrong.
            StateError: the name or the key is taken.
        """
        check_name(name, "name")
        alternatives: list[x509.GeneralName] = [
            x509.UniformResourceIdentifier(certificates.identity_uri(self.federation_name, role, name)),
            *host_names(role, hosts),
        ]
        public_key = _request_key(csr, name, role)
        now = self._clock()
        expires = self.expiry(now, days)
        return self._issue(public_key, name, alternatives, role, now, expires, replace=replace).certificate.encode()

    def sign_login(self, csr: bytes, *, name: str, subject: str, seconds: int) -> Issued:
        """Certify the key of a person who logged in; whoever calls this has verified the login, and that it is this key's.

        Args:
            csr: of :func:`~veilsum_node.identity.requests.login_request`; its role is certified.
            name: the name to certify, as the identity provider states it.
            subject: issuer and subject of the login, whom the name belongs to from now on.
            seconds: how long the certificate is valid, 1 to :data:`LONGEST_LOGIN`.

        Returns:
            The certificate with its line on record.

        Raises:
            HostileInput: the request is not one of a login, or the name is not valid.
            Misuse: ``seconds`` are wrong, or the certificate would outlive its authority.
            StateError: the key was certified before, or the name belongs to somebody else.
        """
        if not subject or not 1 <= seconds <= LONGEST_LOGIN:
            raise Misuse("A login needs a subject and 1 second to 7 days.")
        if not NAME_PATTERN.fullmatch(name):
            raise HostileInput(
                f"The identity provider's name {name[:80]!r} is not a name in a federation.",
                "Its operator must send a claim of 1 to 64 of the characters a-z, 0-9, '.', '_' and '-'.",
            )
        role, public_key = parse_login_request(csr)
        now = self._clock()
        expires = now + seconds
        if expires > certificates.certificate_end(self.certificate):
            raise Misuse("The certificate would outlive its authority.", "Set up a new authority.")
        alternatives = [x509.UniformResourceIdentifier(certificates.identity_uri(self.federation_name, role, name))]
        return self._issue(public_key, name, alternatives, role, now, expires, subject=subject)

    def _issue(
        self,
        public_key: ec.EllipticCurvePublicKey,
        name: str,
        alternatives: Sequence[x509.GeneralName],
        role: Role,
        now: int,
        expires: int,
        *,
        replace: bool = False,
        subject: str = "",
    ) -> Issued:
        """Make a certificate and put it on record before it is handed out: what is not on record could be signed over."""
        certificate = (
            certificate_builder(
                x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
                self.certificate.subject,
                public_key,
                now - BACKDATE,
                expires,
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(certificates.LEAF_KEY_USAGE, critical=True)
            .add_extension(x509.ExtendedKeyUsage(role.key_usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        entry = Issued(
            name=name,
            role=role,
            fingerprint=key_fingerprint(public_key),
            serial=f"{certificate.serial_number:x}",
            issued=now,
            expires=expires,
            certificate=certificate.public_bytes(Encoding.PEM).decode(),
            subject=subject,
        )
        self._record.add(entry, replace=replace)
        return entry

    def issued(self) -> list[Issued]:
        """Every certificate ever signed, oldest first.

        Raises:
            StateError: the record is missing.
            Damage: it cannot be read.
        """
        return self._record.entries()

    @property
    def signing_key(self) -> SigningKey:
        """The authority's key, for what it signs beside certificates: labelled statements, such as a directory's root."""
        return SigningKey(self._key)

    def now(self) -> int:
        """The time that its signatures state, Unix seconds."""
        return self._clock()

    def expiry(self, now: int, days: int, what: str = "certificate") -> int:
        """The last second, Unix time, of something that is valid for so many days from ``now``.

        Raises:
            Misuse: the days are not 1 to 3653, or it would outlive the authority's own certificate.
        """
        if not 1 <= days <= _CA_DAYS:
            raise Misuse(f"A {what} cannot be valid for {days} days.", f"Choose 1 to {_CA_DAYS} days.")
        expires = now + days * _DAY
        if expires > int(self.certificate.not_valid_after_utc.timestamp()):
            raise Misuse(f"The {what} would outlive its authority.", "Choose fewer days, or set up a new authority.")
        return expires


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, not_before: int, not_after: int
) -> x509.CertificateBuilder:
    """A certificate with a number of its own, yet without extensions; times are Unix seconds."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.fromtimestamp(not_before, UTC))
        .not_valid_after(datetime.fromtimestamp(not_after, UTC))
    )


def host_names(role: Role, hosts: Sequence[str]) -> list[x509.GeneralName]:
    """Names and addresses that a certificate of a role says, as it says them.

    Raises:
        Misuse: one is neither, the role has none, or a coordinator has none.
    """
    if role is Role.COORDINATOR and not hosts:
        raise Misuse("A coordinator needs a host name.", "Give the names and addresses at which it is reached (--host).")
    if role is not Role.COORDINATOR and hosts:
        raise Misuse(f"A {role} accepts no connections and has no host name.", "Leave the hosts out.")
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(bare_host(host))))
        except ValueError:
            if not _HOST.fullmatch(host.lower()):
                raise Misuse(
                    f"{host!r} is neither a host name nor an IP address.", "Give it without scheme and port."
                ) from None
            names.append(x509.DNSName(host.lower()))
    return names


def requested(csr: bytes) -> tuple[str, str, str]:
    """Name, role (empty where none is stated) and key's fingerprint that a request to sign asks for.

    Raises:
        HostileInput: it is none, or not signed by its key.
    """
    subject, key = _parse_request(csr)
    return certificates.common_name(subject, "request"), " ".join(map(str, _units(subject))), key_fingerprint(key)


def _parse_request(csr: bytes) -> tuple[x509.Name, ec.EllipticCurvePublicKey]:
    if not 0 < len(csr) <= MAX_FILE_BYTES:
        raise HostileInput("The request is empty or too large.")
    try:
        request = x509.load_pem_x509_csr(csr)
        valid = request.is_signature_valid
        public_key, subject = request.public_key(), request.subject
        _units(subject)
    except Exception as error:
        raise HostileInput(
            "The request is not a certificate signing request in PEM.", "Ask the site to send it again."
        ) from error
    key = certificates.p256_key(public_key, "request")
    if not valid:
        raise HostileInput("The request's own signature is invalid.", "Ask the site to send it again.")
    return subject, key


def _units(subject: x509.Name) -> list[str | bytes]:
    return [item.value for item in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)]


def _request_key(csr: bytes, name: str, role: Role) -> ec.EllipticCurvePublicKey:
    subject, key = _parse_request(csr)
    requested = certificates.common_name(subject, "request")
    if requested != name:
        raise HostileInput(f"The request asks for the name {requested!r}, not {name!r}.", "Check whose request this is.")
    if _units(subject) not in ([], [role.value]):
        raise HostileInput(f"The request states a different role than {role}.", "Check whose request this is.")
    return key
