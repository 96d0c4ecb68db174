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
from veilsum_node.keystream import Keystream
from veilsum_privacy.securesum.masks import MaskStream, derive
from veilsum_privacy.securesum.parameters import TAGS

Slots = NDArray[np.uint64]

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

    def pads(self, context: bytes, senders: Iterable[str], count: int, modulus: int) -> Slots:
        """The senders' pads, summed: (count, TAGS) for as many ciphertexts, from one stream for each sender and context."""
        total = np.zeros(count * TAGS, dtype=np.uint64)  # at most 1024 words below 2^48: their sum stays below 2^58
        for sender in senders:
            total += MaskStream(derive(self._key, "tag-pad", context, sender.encode()), modulus).take(count * TAGS)
        return (total % np.uint64(modulus)).reshape(count, TAGS)

    def tags(self, context: bytes, index: int, pad: Slots, words: Slots, modulus: int) -> Slots:
        """Tags (TAGS,) of one ciphertext's (n,) words; ``pad`` is its row of :meth:`pads`."""
        products = self._products(context, index, words)
        return np.array([(of + int(one)) % modulus for of, one in zip(products, pad, strict=True)], dtype=np.uint64)

    def check(self, context: bytes, index: int, pad: Slots, slots: Slots, modulus: int) -> None:
        """Check a decrypted sum's (n + TAGS,) slots against the exact cohort, of which ``pad`` is.

        Raises:
            HostileInput: the tags are wrong; nothing of the slots may be used or shown.
        """
        expected = self.tags(context, index, pad, slots[:-TAGS], modulus).tobytes()
        found = slots[-TAGS:].astype(np.uint64).tobytes()
        if not compare_digest(expected, found):
            raise HostileInput("The tags of a sum are wrong: it is not the sum of exactly this cohort's contributions.")

    def _products(self, context: bytes, index: int, words: Slots) -> list[int]:
        """<r, words> as integers for both vectors r; words below 2^48 are split in halves so that 64 bits suffice."""
        stream = Keystream(derive(self._key, "tag-r", context, index.to_bytes(8, "big")))
        raw = np.frombuffer(stream.read(4 * TAGS * len(words)), dtype="<u4").astype(np.uint64) & _WORD
        low, high = words & _WORD, words >> np.uint64(24)
        return [(int(r @ high) << 24) + int(r @ low) for r in raw.reshape(TAGS, len(words))]
