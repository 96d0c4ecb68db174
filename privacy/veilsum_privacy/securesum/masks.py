"""Masks: exactly uniform words below t from a key and a context, added and subtracted mod t.

The generator is ChaCha20 with a key that serves once (derived from the context), so a zero nonce is safe. Every mask comes
from the context: parties that were shown different contexts derive masks that do not cancel.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from veilsum_node.keystream import Keystream

Slots = NDArray[np.uint64]


def derive(secret: bytes, purpose: str, *info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) of ``secret`` to 32 bytes, bound to a purpose and length-prefixed info."""
    bound = b"".join(len(part).to_bytes(4, "big") + part for part in (b"veilsum/1/" + purpose.encode(), *info))
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=None, info=bound).derive(secret)


class MaskStream:
    """Uniform words below ``modulus``: 64-bit words cut to the bits of t, rejected if they are not below t."""

    def __init__(self, key: bytes, modulus: int) -> None:
        self._stream = Keystream(key)
        self._modulus = np.uint64(modulus)
        self._cut = np.uint64((1 << modulus.bit_length()) - 1)

    def take(self, count: int) -> Slots:
        """The next ``count`` words, (count,) uint64."""
        words = self._words(count)
        while len(words) < count:
            words = np.concatenate([words, self._words(count - len(words))])
        return words

    def _words(self, count: int) -> Slots:
        words = np.frombuffer(self._stream.read(8 * count), dtype="<u8") & self._cut
        good = words < self._modulus
        return words if good.all() else words[good]
