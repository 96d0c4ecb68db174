"""The keys that may sign a ledger: the authority and the certificates that its own entries name."""

from collections.abc import Mapping

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Role, load_authority_certificate, verify_certificate
from veilsum_node.identity.certificate import issued
from veilsum_privacy.ledger.entries import Entry
from veilsum_privacy.ledger.faults import require
from veilsum_privacy.ledger.kept_receipts import certificate_fingerprint
from veilsum_privacy.ledger.rows import unhex


class KeyRing:
    """Follows the entries that name keys.

    Args:
        trusted: the authority that must have issued everything, if it is known.

    Attributes:
        name: whose ledger it is, empty before the first entry.
        role: of its owner.
        current: the key that signs now; None while the ledger has named none, as ledgers of the first layout.
        fingerprints: of all keys so far, in order.
    """

    def __init__(self, trusted: x509.Certificate | None) -> None:
        self._trusted = trusted
        self._authority: x509.Certificate | None = None
        self._known: dict[tuple[str, Role], Identity] = {}
        self.name, self.role = "", Role.PARTICIPANT
        self.current: ec.EllipticCurvePublicKey | None = None
        self.fingerprints: list[str] = []

    @property
    def authority(self) -> x509.Certificate:
        """The federation's authority, as the ledger names it.

        Raises:
            HostileInput: it has named none yet.
        """
        if self._authority is None:
            raise HostileInput("the ledger names no authority.")
        return self._authority

    def begin(self, entry: Entry) -> None:
        """Take in the first entry.

        Raises:
            HostileInput: what it names is malformed, not issued by the authority, or not its owner's.
        """
        name = entry.detail.get("site")
        require(entry.random is not None, "its 32 random bytes are missing")
        require(isinstance(name, str) and 0 < len(name) <= 64, "it does not say whose ledger it is")
        self.name = str(name)
        role = entry.detail.get("role", Role.PARTICIPANT.value)
        require(role in (Role.PARTICIPANT, Role.COORDINATOR), "it names an owner who keeps no ledger")
        self.role = Role(role)
        if "certificate" in entry.detail or "authority" in entry.detail:
            self.change(entry)

    def change(self, entry: Entry) -> None:
        """Take in an entry that names the key it is signed with.

        Raises:
            HostileInput: what it names is malformed, not issued by the authority, or not its owner's.
        """
        authority = _certificate(entry.detail, "authority") if "authority" in entry.detail else None
        if self._authority is None:
            require(authority is not None, "it names a certificate, but no authority")
            self._authority = load_authority_certificate(authority or b"")
            trusted = self._trusted
            same = trusted is None or _der(trusted) == _der(self._authority)
            require(same, "the ledger belongs to another federation: its authority is not the one that was given")
        else:
            require(authority in (None, _der(self._authority)), "it names a different authority than the ledger did before")
        identity = verify_certificate(_certificate(entry.detail, "certificate"), self._authority, entry.time, self.role)
        require(identity.name == self.name, "the key that it names is not the owner's")
        self.current = identity.public_key
        self.fingerprints.append(identity.fingerprint)

    def identity(self, certificate: bytes, role: Role, at: int | None) -> Identity:
        """Verify a certificate that was kept with an entry.

        Args:
            certificate: DER.
            role: that it must have.
            at: time at which it must have been valid, Unix seconds; None for any time of its own.

        Raises:
            HostileInput: the authority did not issue it so.
        """
        key = (certificate_fingerprint(certificate), role)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = issued(certificate, self.authority, role)
        if at is not None:
            require(found.not_before <= at <= found.not_after, f"the certificate of {found.name} was not valid at its time")
        return found


def _certificate(detail: Mapping[str, object], name: str) -> bytes:
    try:
        return unhex(str(detail[name]))
    except (KeyError, ValueError) as error:
        raise HostileInput(f"its {name} is missing or malformed.") from error


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)
