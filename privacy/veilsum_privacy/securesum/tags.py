"""Linear tags: what stands between the study's decryption key and a crafted ciphertext.

The last two slots of every ciphertext hold <r, y> + pad mod t, with r (two vectors of 24-bit words) and pad from the tag key
K, the context and the ciphertext's index, pad also from the sender. Tags of a sum are sums of tags, so whoever holds K can
check a sum against an exact cohort; without K nobody can make one, and a forgery is a guess of 2^-48.
"""

from __future__ import annotations

from collections.abc import Iterable
from hmac import compare_digest

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.masks import Keystream, MaskStream, derive

Slots = NDArray[np.uint64]

TAGS = 2
_WORD = np.uint64((1 << 24) - 1)


class TagKey:
    """The study's tag key K (32 bytes). Its representation shows nothing."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise HostileInput("A tag key must have 32 bytes.")
        self._key = key

    def __repr__(self) -> str:
        return "TagKey()"

    def to_bytes(self) -> bytes:
        """The key's bytes, for a sealed box or the site's own store."""
        return self._key

    def tags(self, context: bytes, index: int, sender: str, words: Slots, modulus: int) -> Slots:
        """Tags (2,) of one ciphertext's words (N - 2,)."""
        pad = self._pad(context, index, sender, modulus)
        return np.array([(product + int(pad[k])) % modulus for k, product in enumerate(self._products(context, index, words))],
                        dtype=np.uint64)  # fmt: skip

    def check(self, context: bytes, index: int, cohort: Iterable[str], slots: Slots, modulus: int) -> None:
        """Check a decrypted sum's (N,) slots against the exact cohort.

        Raises:
            HostileInput: the tags are wrong; nothing of the slots may be used or shown.
        """
        pads = [self._pad(context, index, sender, modulus) for sender in cohort]
        expected = b"".join(
            ((product + sum(int(pad[k]) for pad in pads)) % modulus).to_bytes(8, "big")
            for k, product in enumerate(self._products(context, index, slots[:-TAGS]))
        )
        found = b"".join(int(word).to_bytes(8, "big") for word in slots[-TAGS:])
        if not compare_digest(expected, found):
            raise HostileInput("The tags of a sum are wrong: it is not the sum of exactly this cohort's contributions.")

    def _products(self, context: bytes, index: int, words: Slots) -> list[int]:
        """<r, words> as integers for both vectors r; words below 2^48 are split in halves so that 64 bits suffice."""
        stream = Keystream(derive(self._key, "tag-r", context, index.to_bytes(8, "big")))
        raw = np.frombuffer(stream.read(4 * TAGS * len(words)), dtype="<u4").astype(np.uint64) & _WORD
        low, high = words & _WORD, words >> np.uint64(24)
        return [(int(r @ high) << 24) + int(r @ low) for r in raw.reshape(TAGS, len(words))]

    def _pad(self, context: bytes, index: int, sender: str, modulus: int) -> Slots:
        key = derive(self._key, "tag-pad", context, index.to_bytes(8, "big"), sender.encode())
        return MaskStream(key, modulus).take(TAGS)
