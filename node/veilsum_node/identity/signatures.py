"""Signatures over labelled data: ECDSA P-256 with SHA-256.

What is signed is the label and the data, each behind its length (:func:`veilsum_node.canonical.digest`), so a signature
under one label never verifies under another. Who a key belongs to is the certificate's business; signatures are malleable
(r, -s verifies as well), so nothing may be named by the hash of one.
"""

from enum import StrEnum

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from veilsum_node.canonical import digest
from veilsum_node.errors import ConfigurationError, HostileInput
from veilsum_node.identity.certificate import key_fingerprint

_ALGORITHM = ec.ECDSA(utils.Prehashed(hashes.SHA256()))  # the digest is SHA-256 of the encoded label and data already


class Label(StrEnum):
    """Everything that is ever signed; no label serves two purposes."""

    STUDY = "veilsum/1/study"
    ENROLMENT = "veilsum/1/enrolment"
    SEEDS = "veilsum/1/seeds"
    RECEIPT = "veilsum/1/receipt"
    COUNTERSIGN = "veilsum/1/countersign"
    DECRYPTION = "veilsum/1/decryption"  # on sums of earlier versions of the protocol, which are only verified
    LEDGER = "veilsum/1/ledger"
    HELLO = "veilsum/1/hello"
    REFUSAL = "veilsum/1/refusal"
    DIRECTORY = "veilsum/1/directory"
    AUDIT = "veilsum/1/audit"
    SUM = "veilsum/6/sum"
    CHECK = "veilsum/6/check"
    CONSENT = "veilsum/6/consent"


class SigningKey:
    """A party's ECDSA P-256 private key; it signs and never prints."""

    __slots__ = ("_key", "fingerprint", "public_key")

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key()
        self.fingerprint = key_fingerprint(self.public_key)

    @classmethod
    def generate(cls) -> "SigningKey":
        """Make a fresh key; the randomness is the cryptographic library's own."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> "SigningKey":
        """Load a private key in PEM.

        Raises:
            ConfigurationError: not a P-256 private key without a passphrase.
        """
        try:
            key = load_pem_private_key(pem, None)
        except Exception as error:
            raise ConfigurationError(
                "The private key cannot be loaded.", "Check that it is a private key in PEM, without a passphrase."
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ConfigurationError("The private key is not an ECDSA P-256 key.", "Check the path.")
        return cls(key)

    def to_pem(self) -> bytes:
        """The unencrypted private key in PEM (PKCS #8), for a file with mode 0600."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, label: Label, data: bytes) -> bytes:
        """Return the DER signature of ``data`` under ``label``."""
        return self._key.sign(digest(label, data), _ALGORITHM)

    def secret(self, purpose: str) -> bytes:
        """32 secret bytes for one purpose (HKDF-SHA256 of the private key, RFC 5869): the same while the key is."""
        scalar = self._key.private_numbers().private_value.to_bytes(32, "big")
        info = f"veilsum/1/secret/{purpose}".encode()
        return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=info).derive(scalar)

    def __repr__(self) -> str:
        return f"SigningKey({self.fingerprint[:16]})"


def hello_digest(challenge: bytes, caller: str, coordinator: str) -> bytes:
    """What a coordinator signs to prove its name to one caller (32 bytes)."""
    return digest("hello", challenge, caller.encode(), coordinator.encode())


def verify(public_key: ec.EllipticCurvePublicKey, label: Label, data: bytes, signature: bytes) -> None:
    """Check that ``signature`` was made over ``data`` under ``label`` by the key's owner.

    Raises:
        HostileInput: it was not.
    """
    try:
        public_key.verify(signature, digest(label, data), _ALGORITHM)
    except InvalidSignature as error:
        raise HostileInput(f"The signature under {label.value} is invalid.") from error
