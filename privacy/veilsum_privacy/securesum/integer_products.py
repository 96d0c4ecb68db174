"""Products of polynomials by short keys in whole numbers, to open a sum without the encryption library: exact and slower.

A polynomial becomes one integer with a slot of 96 bits for each coefficient (Kronecker's substitution), so that one product of
two integers is the product of two polynomials, which is then reduced by X^N = -1 and modulo q. A coefficient of the product is
below 2^92 in absolute value: N <= 2^13 products of one below 2^60 and one below 2^19.

Time depends on the numbers. Whoever verifies knows the sum of the keys from the consents, so that tells nobody anything; a
site, whose key is a secret, multiplies by :mod:`.products` alone.
"""

from __future__ import annotations

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.ring import RingParameters

_SLOT = 12
"""Bytes of a coefficient."""


class IntegerProducts:
    """Products of polynomials by the sum of keys; the same as those of :class:`.products.KeyProducts`.

    Args:
        key: (N,) coefficients, in absolute value below 2^19.
        ring: their ring.

    Raises:
        Misuse: another number of coefficients, or a longer one.
    """

    def __init__(self, key: Integers, ring: RingParameters) -> None:
        if key.shape != (ring.degree,) or int(np.abs(key).max()) >= 1 << 19:
            raise Misuse("A key has one short coefficient for each of its ring's degree.")
        self._ring = ring
        self._key = _packed(np.maximum(key, 0).astype(np.uint64)) - _packed(np.maximum(-key, 0).astype(np.uint64))
        self._middle = int.from_bytes((bytes(_SLOT - 1) + b"\x80") * (2 * ring.degree), "little")  # makes every slot positive

    def times(self, polynomials: Words) -> Words:
        """(k, N) products mod q of (k, N) polynomials below q."""
        return np.array([self._product(row) for row in polynomials], dtype=np.uint64).reshape(polynomials.shape)

    def _product(self, row: Words) -> Words:
        """(N,) the product by one polynomial."""
        product = (_packed(row) * self._key + self._middle).to_bytes(2 * _SLOT * self._ring.degree, "little")
        slots = np.frombuffer(product, dtype="<u4").reshape(2, self._ring.degree, 3).astype(object)
        found = slots[..., 0] + (slots[..., 1] << 32) + (slots[..., 2] << 64)
        return np.array((found[0] - found[1]) % self._ring.prime, dtype=np.uint64)


def _packed(coefficients: Words) -> int:
    """The integer of a polynomial whose coefficients are not negative."""
    slots = np.zeros((len(coefficients), _SLOT), dtype=np.uint8)
    slots[:, :8] = coefficients.astype("<u8").view(np.uint8).reshape(-1, 8)
    return int.from_bytes(slots.tobytes(), "little")
