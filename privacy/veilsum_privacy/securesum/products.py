"""A context's common polynomials, and products of polynomials by short keys.

Products come from SEAL through ``tenseal.sealapi``: a ciphertext of up to 16 polynomials is multiplied by a plaintext, sixteen
at a time because the library's Python interface only reads and writes files (:mod:`.seal_files`). Where few coefficients are
needed those alone are computed (:mod:`.short_products`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import Misuse, StateError
from veilsum_privacy.securesum import short_products
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream

if TYPE_CHECKING:
    from veilsum_privacy.securesum.integer_products import IntegerProducts
    from veilsum_privacy.securesum.seal_files import Template

BATCH = 16
"""Polynomials that are multiplied at a time: the most that SEAL holds in one ciphertext."""

_PLAIN_MODULUS = 1 << 20
"""Of SEAL's context, in which a key is a plaintext: it holds s mod this, and takes what is above half of it as negative."""


def is_installed() -> bool:
    """Whether the encryption library is there; only who opens sums may do without (:mod:`.integer_products`)."""
    return find_spec("tenseal") is not None


@cache
def _seal() -> Any:
    """The library, which short vectors need not."""
    try:
        from tenseal import sealapi
    except ModuleNotFoundError as error:
        message = "The encryption library TenSEAL is not installed."
        raise StateError(message, "Install it with: pip install tenseal") from error
    return sealapi


@lru_cache(maxsize=12)  # batches, of a quarter or half of a mebibyte: who contributed opens the sum later, by the same
def common_polynomials(context: bytes, ring: RingParameters, start: int, count: int) -> Words:
    """a_start .. of a context, (count, N) below q: everybody computes them and nobody chooses them, nor changes these.

    Each is uniform by rejection from a stream of its own, under a key that is HKDF of the context and its number.
    """
    out = np.empty((count, ring.degree), dtype=np.uint64)
    for row, number in enumerate(range(start, start + count)):
        stream = WordStream(context, StreamPurpose.COMMON, context, number.to_bytes(4, "big"), bound=ring.prime)
        stream.fill(out[row])
    out.setflags(write=False)
    return out


def batches(words: int, ring: RingParameters) -> Iterator[tuple[int, int, slice]]:
    """Number of the first polynomial, how many, and the words that they hold, for at most :data:`BATCH` at a time."""
    for first in range(0, ring.polynomials(words), BATCH):
        count = min(BATCH, ring.polynomials(words) - first)
        yield first, count, slice(first * ring.degree, min((first + count) * ring.degree, words))


def common_products(
    key: Integers, context: bytes, ring: RingParameters, words: int, multiplier: type[KeyProducts | IntegerProducts]
) -> Iterator[tuple[slice, Words]]:
    """The coefficients of all a_j times a key that so many words need, mod q: which words they are for, and those.

    Args:
        key: (N,) short coefficients.
        context: whose common polynomials.
        ring: the parameters.
        words: how many, at least one.
        multiplier: what multiplies where there are many.
    """
    if short_products.fits(words, key, ring):
        common = common_polynomials(context, ring, 0, 1)[0]
        yield slice(0, words), short_products.first_coefficients(common, key, words, ring)
        return
    products = multiplier(key, ring)
    for first, count, part in batches(words, ring):
        common = common_polynomials(context, ring, first, count)
        yield part, products.times(common).reshape(-1)[: part.stop - part.start]


class KeyProducts:
    """Products of polynomials by one short key, or sum of keys. Not thread-safe.

    Args:
        key: (N,) coefficients, in absolute value below 2^19.
        ring: their ring.

    Raises:
        Misuse: another number of coefficients, or a longer one.
        StateError: the encryption library is not installed.
    """

    def __init__(self, key: Integers, ring: RingParameters) -> None:
        from veilsum_privacy.securesum.integer_products import IntegerProducts  # short vectors need neither
        from veilsum_privacy.securesum.seal_files import Passage, Scratch

        if key.shape != (ring.degree,) or 2 * int(np.abs(key).max()) >= _PLAIN_MODULUS:
            raise Misuse("A key has one short coefficient for each of its ring's degree.")
        self._ring, self._zero = ring, not key.any()
        # of a key with one term the library takes a negative coefficient for a positive one; no key that is drawn has one
        self._one = IntegerProducts(key, ring) if np.count_nonzero(key) == 1 else None
        self._context, self._passage = _context(ring), Passage()
        self._evaluator = _seal().Evaluator(self._context)
        self._plain = _seal().Plaintext()
        if not self._zero:  # which the library refuses to multiply by
            numbers = np.mod(key, _PLAIN_MODULUS).astype("<u8").tobytes()
            Scratch().load(_templates(ring, 1).fill(numbers), self._loader(self._plain))

    def times(self, polynomials: Words) -> Words:
        """(k, N) products mod q of (k, N) polynomials below q, k at most :data:`BATCH`."""
        count, degree = polynomials.shape
        if self._zero:
            return np.zeros_like(polynomials)
        if self._one is not None:
            return self._one.times(polynomials)
        rows = max(2, count)  # no ciphertext has a single polynomial
        numbers = np.ascontiguousarray(polynomials, dtype="<u8").data
        product, template = _seal().Ciphertext(), _templates(self._ring, rows)
        self._passage.load(template.parts(*[numbers] * (rows // count)), self._loader(product))
        self._evaluator.multiply_plain_inplace(product, self._plain)
        content = self._passage.content(product, len(template.head) + 8 * rows * degree)
        found = np.frombuffer(content, dtype="<u8", offset=len(template.head))
        return found.reshape(rows, degree)[:count].astype(np.uint64, copy=False)

    def _loader(self, item: Any) -> Callable[[str], None]:
        return lambda path: item.load(self._context, path)


@lru_cache(maxsize=8)
def _context(ring: RingParameters) -> Any:
    """SEAL's context of one prime; it refuses parameters below 128-bit security."""
    sealapi = _seal()
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
    from veilsum_privacy.securesum.seal_files import Scratch, Template, inflate

    context, scratch, sealapi = _context(ring), Scratch(), _seal()
    item: Any
    if polynomials == 1:
        item = sealapi.Plaintext(f"1x^{ring.degree - 1}")
    else:
        item = sealapi.Ciphertext(context)
        item.resize(context, polynomials)
    data = scratch.dump(item)
    return Template.of(inflate(data), data, 8 * polynomials * ring.degree)
