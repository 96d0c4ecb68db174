"""Encryption of one contribution under a key that exists for one context only.

Words y below t become c_j = a_j s + z_j mod q for each polynomial's worth of them: a_j is common to the cohort
(:mod:`.ring`), s is drawn here and never stored, and z is a discrete Gaussian of variance 42 about q y / t itself. So a sum of
contributions is a BFV ciphertext of the sum of the words under the sum of the keys, and its error depends on that sum alone
and not on how each member's words were rounded. Only the coefficients in use travel, in as many bits as q has.

The errors' law and what the opened sums of keys and errors give away are argued in decision 109. This module knows no masks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.securesum.packed import pack_numbers, packed_blocks
from veilsum_privacy.securesum.products import KeyProducts, common_products
from veilsum_privacy.securesum.ring import KEY_VARIANCE, RingParameters
from veilsum_privacy.securesum.rounding import gaussian_rounding

_TOGETHER = 1 << 17  # words whose errors are drawn at once, whole batches of products: each draw ends with ever fewer


def encrypt_words(words: Words, key: Integers, context: bytes, ring: RingParameters, source: RandomSource) -> Iterator[Words]:
    """Encrypt (n,) words below t under a key of this context's own; yields coefficients below q, a batch of polynomials each.

    Args:
        words: masked words.
        key: of :func:`.short_keys.draw_key`, drawn for this call.
        context: the digest c.
        ring: the parameters.
        source: where the errors come from.

    Raises:
        Misuse: a word is not below t, or the key is not short.
    """
    if words.ndim != 1 or not len(words) or int(words.max()) >= ring.plain_modulus:
        raise Misuse("Only words below the plain modulus can be encrypted.")
    rounded = words[:0]
    for part, product in common_products(key, context, ring, len(words), KeyProducts):
        place = part.start % _TOGETHER
        if not place:
            rounded = _rounded(words[part.start : part.start + _TOGETHER], ring, source)
        total = product + rounded[place : place + len(product)]
        yield np.minimum(total, total - np.uint64(ring.prime), out=total)  # what would be negative is very large


def _rounded(words: Words, ring: RingParameters, source: RandomSource) -> Words:
    """A discrete Gaussian about q words / t, mod q. With q = d t + r: q y / t = d y + r y / t."""
    modulus = np.uint64(ring.plain_modulus)
    d, r = divmod(ring.prime, ring.plain_modulus)
    bits = ring.plain_modulus.bit_length()
    low = bits // 2  # r is below 2^20: r times the words' high half needs no more than 64 bits
    whole = (np.uint64(r) * (words >> np.uint64(low))) >> np.uint64(bits - low)  # floor(r y / t), or one less
    rest = np.uint64(r) * words - whole * modulus  # below 2t, so it is right modulo 2^64
    over = rest >= modulus
    whole += over
    rest -= modulus * over
    whole += np.uint64(d) * words  # below q
    noisy = whole.view(np.int64)
    noisy += gaussian_rounding(rest, ring.plain_modulus, Fraction(KEY_VARIANCE), source)
    noisy += ring.prime * (noisy < 0)
    noisy -= ring.prime * (noisy >= ring.prime)
    return whole


def coefficients_to_bytes(coefficients: Words, ring: RingParameters) -> bytes:
    """Coefficients below q as they travel."""
    return pack_numbers(coefficients, ring.coefficient_bits)


def coefficients_digest(coefficients: Words, ring: RingParameters) -> bytes:
    """SHA-256 over coefficients as they travel, all of one vector (32 bytes); also H(c_i) of a contribution."""
    state = begin_coefficients_digest(len(coefficients))
    for block in packed_blocks(coefficients, ring.coefficient_bits):
        state.update(block)
    return state.digest()


def begin_coefficients_digest(count: int) -> hashlib._Hash:
    """The state of :func:`coefficients_digest` before the bytes of so many coefficients, which are added in pieces."""
    return hashlib.sha256(b"veilsum/6/coefficients" + count.to_bytes(8, "big"))
