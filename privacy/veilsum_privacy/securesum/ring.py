"""The ring of protocol 6, R_q = Z_q[X] / (X^N + 1): its parameters, a context's common polynomials, products by short keys.

Products come from SEAL through ``tenseal.sealapi``: a ciphertext of up to 16 polynomials is multiplied by a plaintext, sixteen
at a time because the library's Python interface only reads and writes files (:mod:`.seal_files`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tenseal import sealapi

from veilsum_node.errors import Misuse, StateError
from veilsum_privacy.securesum.seal_files import Scratch, Template, inflate
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]

KEY_VARIANCE = 42
"""Variance of a one-time key's coefficients and of the errors: half of the half of it is the tables' 3.2^2 (decision 109)."""

ERROR_SIGMAS_SQUARED = 96
"""Square of how many standard deviations of its error a sum may show: 9.8, a tail below 2^-68 a coefficient."""

KEY_SIGMAS = 12
"""How many standard deviations a coefficient of the sum of keys may show: a tail below 2^-102 a coefficient."""

BATCH = 16
"""Polynomials that are multiplied at a time: the most that SEAL holds in one ciphertext."""

_PLAIN_MODULUS = 1 << 20
"""Of SEAL's context, in which a key is a plaintext: it holds s mod this, and takes what is above half of it as negative."""


@dataclass(frozen=True)
class RingParameters:
    """One of the parameter sets of one-time encryption; q and t are primes, q = 1 mod 2N.

    Attributes:
        degree: N.
        prime: q, the modulus of every coefficient.
        plain_modulus: t, the modulus of every word, a prime just below 2^k; q / t exceeds 2^12, or 2^13 for large cohorts.
        most_members: the largest cohort whose sum's error stays within its bound.
    """

    degree: int
    prime: int
    plain_modulus: int
    most_members: int

    @property
    def coefficient_bits(self) -> int:
        """Bits of a coefficient as it travels."""
        return self.prime.bit_length()

    def polynomials(self, words: int) -> int:
        """How many polynomials hold so many words."""
        return -(-words // self.degree)

    def share_bits(self, members: int) -> int:
        """w: bits of a coefficient of a key share, the least with 2^(w-1) > 12 sqrt(42 n)."""
        return self.most_key(members).bit_length() + 1

    @staticmethod
    def most_key(members: int) -> int:
        """Largest absolute value of a coefficient of a sum of keys: floor(12 sqrt(42 n))."""
        return math.isqrt(KEY_SIGMAS * KEY_SIGMAS * KEY_VARIANCE * members)

    def most_error(self, members: int) -> int:
        """Largest absolute value of t times the error of a coefficient of a sum, exactly: floor(9.8 sqrt(42 n) t)."""
        return math.isqrt(ERROR_SIGMAS_SQUARED * KEY_VARIANCE * members * self.plain_modulus**2)

    def check_members(self, members: int) -> None:
        """Check that a cohort's sum can be opened.

        Raises:
            Misuse: it is too small or too large for these parameters.
        """
        if not 2 <= members <= self.most_members:
            raise Misuse(f"A cohort of {members} cannot be summed; it must have 2 to {self.most_members} members.")

    def to_context(self) -> dict[str, object]:
        """What the round's context binds."""
        return {"degree": self.degree, "prime": str(self.prime), "plain_modulus": str(self.plain_modulus)}


RING_2048 = RingParameters(2048, 2251799813640193, 549755813869, 1024)
RING_4096 = RingParameters(4096, 1152921504606830593, 281474976710597, 1024)
RING_2048_LARGE = RingParameters(2048, 2251799813640193, 274877906899, 4096)
RING_4096_LARGE = RingParameters(4096, 1152921504606830593, 140737488355213, 4096)

RINGS = (RING_2048, RING_4096, RING_2048_LARGE, RING_4096_LARGE)


def known_ring(degree: int, prime: int, plain_modulus: int) -> RingParameters:
    """The parameter set of these numbers; there are no others.

    Raises:
        Misuse: none of the sets.
    """
    for ring in RINGS:
        if (ring.degree, ring.prime, ring.plain_modulus) == (degree, prime, plain_modulus):
            return ring
    raise Misuse("Those are not parameters of this protocol: degree and moduli come from a fixed list.")


def common_polynomials(context: bytes, ring: RingParameters, start: int, count: int) -> Words:
    """a_start .. of a context, (count, N) below q: everybody computes them and nobody chooses them.

    Each is uniform by rejection from a stream of its own, under a key that is HKDF of the context and its number.
    """
    out = np.empty((count, ring.degree), dtype=np.uint64)
    for row, number in enumerate(range(start, start + count)):
        stream = WordStream(context, StreamPurpose.COMMON, context, number.to_bytes(4, "big"), bound=ring.prime)
        out[row] = stream.take(ring.degree)
    return out


def batches(words: int, ring: RingParameters) -> Iterator[tuple[int, int, slice]]:
    """Number of the first polynomial, how many, and the words that they hold, for at most :data:`BATCH` at a time."""
    for first in range(0, ring.polynomials(words), BATCH):
        count = min(BATCH, ring.polynomials(words) - first)
        yield first, count, slice(first * ring.degree, min((first + count) * ring.degree, words))


class KeyProducts:
    """Products of polynomials by one short key, or sum of keys. Not thread-safe.

    Args:
        key: (N,) coefficients, in absolute value below 2^19.
        ring: their ring.

    Raises:
        Misuse: another number of coefficients, or a longer one.
    """

    def __init__(self, key: Integers, ring: RingParameters) -> None:
        if key.shape != (ring.degree,) or 2 * int(np.abs(key).max()) >= _PLAIN_MODULUS:
            raise Misuse("A key has one short coefficient for each of its ring's degree.")
        self._ring, self._zero = ring, not key.any()
        self._context, self._scratch = _context(ring), Scratch()
        self._evaluator = sealapi.Evaluator(self._context)
        self._plain = sealapi.Plaintext()
        if not self._zero:  # which the library refuses to multiply by
            numbers = np.mod(key, _PLAIN_MODULUS).astype("<u8").tobytes()
            self._load(self._plain, _templates(ring, 1).fill(numbers))

    def times(self, polynomials: Words) -> Words:
        """(k, N) products mod q of (k, N) polynomials below q, k at most :data:`BATCH`."""
        count, degree = polynomials.shape
        if self._zero:
            return np.zeros_like(polynomials)
        rows = max(2, count)  # no ciphertext has a single polynomial
        numbers = polynomials.astype("<u8", copy=False).tobytes()
        if count < rows:
            numbers *= rows
        product = sealapi.Ciphertext()
        self._load(product, _templates(self._ring, rows).fill(numbers))
        self._evaluator.multiply_plain_inplace(product, self._plain)
        found = np.frombuffer(self._scratch.content(product), dtype="<u8", offset=len(_templates(self._ring, rows).head))
        return found.reshape(rows, degree)[:count].astype(np.uint64, copy=False)

    def _load(self, item: Any, data: bytes) -> None:
        self._scratch.load(data, lambda path: item.load(self._context, path))


@lru_cache(maxsize=8)
def _context(ring: RingParameters) -> Any:
    """SEAL's context of one prime; it refuses parameters below 128-bit security."""
    values = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    values.set_poly_modulus_degree(ring.degree)
    primes = sealapi.CoeffModulus.Create(ring.degree, [ring.coefficient_bits])
    if [prime.value() for prime in primes] != [ring.prime]:
        raise StateError("The encryption library makes another prime than this protocol's.")
    values.set_coeff_modulus(primes)
    values.set_plain_modulus(_PLAIN_MODULUS)
    context = sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.TC128)
    if not context.parameters_set():
        raise StateError(f"SEAL refuses the parameters: {context.parameters_error_message()}.")
    return context


@lru_cache(maxsize=4 * BATCH)
def _templates(ring: RingParameters, polynomials: int) -> Template:
    """What the library writes around the numbers of so many polynomials: a plaintext of one, a ciphertext of more."""
    context, scratch = _context(ring), Scratch()
    item: Any
    if polynomials == 1:
        item = sealapi.Plaintext(f"1x^{ring.degree - 1}")
    else:
        item = sealapi.Ciphertext(context)
        item.resize(context, polynomials)
    data = scratch.dump(item)
    return Template.of(inflate(data), data, 8 * polynomials * ring.degree)
