"""Sealed boxes between participants: HPKE (RFC 9180 base mode) with ML-KEM-768 + X25519, HKDF-SHA256, ChaCha20-Poly1305.

Base mode does not say who sealed, so the sender signs info and box; info holds study, roster, sender, recipient and what it is
for, so a box opens only where it was meant to. The hybrid key encapsulation keeps recorded boxes closed to a quantum computer.

Each of two participants seals a share of their pair's seed to the other, and :func:`pair_seed` mixes both: who knows what one
of them draws does not know the seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, MLKEM768X25519PrivateKey, MLKEM768X25519PublicKey, Suite

from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, SigningKey, verify
from veilsum_privacy.securesum.streams import hkdf

_SUITE = Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_MLKEM_PUBLIC, _MLKEM_PRIVATE, _X25519 = 1184, 64, 32

PUBLIC_KEY_BYTES = _MLKEM_PUBLIC + _X25519

SHARE_BYTES = 32


class BoxKey:
    """A participant's HPKE key for one study. Its representation shows nothing."""

    def __init__(self, mlkem: MLKEM768PrivateKey, x25519: X25519PrivateKey) -> None:
        self._mlkem, self._x25519 = mlkem, x25519

    def __repr__(self) -> str:
        return "BoxKey()"

    @classmethod
    def generate(cls) -> BoxKey:
        """Make a fresh key."""
        return cls(MLKEM768PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def parse(cls, data: bytes) -> BoxKey:
        """Load a key from the site's own store.

        Raises:
            HostileInput: damaged.
        """
        if len(data) != _MLKEM_PRIVATE + _X25519:
            raise HostileInput("A stored box key has the wrong length.")
        return cls(
            MLKEM768PrivateKey.from_seed_bytes(data[:_MLKEM_PRIVATE]),
            X25519PrivateKey.from_private_bytes(data[_MLKEM_PRIVATE:]),
        )

    def to_bytes(self) -> bytes:
        """The private key, for the site's own store."""
        return self._mlkem.private_bytes_raw() + self._x25519.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The public key, :data:`PUBLIC_KEY_BYTES` long."""
        return self._mlkem.public_key().public_bytes_raw() + self._x25519.public_key().public_bytes_raw()

    def open(self, ciphertext: bytes, info: bytes) -> bytes:
        """Open a sealed box.

        Raises:
            HostileInput: sealed to another key or under another info, or altered.
        """
        try:
            return _SUITE.decrypt(ciphertext, MLKEM768X25519PrivateKey(self._mlkem, self._x25519), info=info)
        except (InvalidTag, ValueError) as error:
            raise HostileInput("A sealed box does not open: it was altered, or was meant for another recipient.") from error


def public_key(data: bytes) -> MLKEM768X25519PublicKey:
    """The HPKE public key of these bytes; HostileInput where they are none."""
    if len(data) != PUBLIC_KEY_BYTES:
        raise HostileInput("An HPKE public key has the wrong length.")
    try:
        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(data[:_MLKEM_PUBLIC]), X25519PublicKey.from_public_bytes(data[_MLKEM_PUBLIC:])
        )
    except (ValueError, UnsupportedAlgorithm) as error:
        raise HostileInput("An HPKE public key is invalid.") from error


@dataclass(frozen=True)
class Box:
    """A sealed and signed box on its way from one participant to another."""

    sender: str
    recipient: str
    ciphertext: bytes
    signature: bytes


def _info(study: bytes, roster: bytes, sender: str, recipient: str) -> bytes:
    return canonical(
        {"v": 1, "study": study, "roster": roster, "sender": sender, "recipient": recipient, "purpose": "pair-share"}
    )


def seal(secret: bytes, *, study: bytes, roster: bytes, sender: str, recipient: str, public: bytes, key: SigningKey) -> Box:
    """Seal a share of a pair's seed to the recipient's public key and sign it.

    Raises:
        HostileInput: the recipient's key is invalid.
    """
    info = _info(study, roster, sender, recipient)
    ciphertext = _SUITE.encrypt(secret, public_key(public), info=info)
    return Box(sender, recipient, ciphertext, key.sign(Label.SEEDS, digest("box", info, ciphertext)))


def unseal(box: Box, *, study: bytes, roster: bytes, sender: Identity, recipient: str, key: BoxKey) -> bytes:
    """Verify the sender's signature and open the box.

    Raises:
        HostileInput: another sender, recipient, study or roster; a wrong signature; altered.
    """
    if (box.sender, box.recipient) != (sender.name, recipient):
        raise HostileInput("A sealed box names another sender or recipient than expected.")
    info = _info(study, roster, sender.name, recipient)
    verify(sender.public_key, Label.SEEDS, digest("box", info, box.ciphertext), box.signature)
    return key.open(box.ciphertext, info)


def pair_seed(shares: Mapping[str, bytes], *, study: bytes, roster: bytes) -> bytes:
    """The seed of two participants' masks (32 bytes): HKDF of both shares, bound to study, roster and both names.

    Args:
        shares: what each of the two drew for the other, by the name of who drew it.

    Raises:
        HostileInput: a share has the wrong length.
    """
    names = sorted(shares, key=str.encode)
    if len(names) != 2 or any(len(share) != SHARE_BYTES for share in shares.values()):
        raise HostileInput("A pair's seed is made of two shares of 32 bytes.")
    secret = b"".join(shares[name] for name in names)
    return hkdf(secret, "veilsum/1/pair-seed", study, roster, *(name.encode() for name in names))
