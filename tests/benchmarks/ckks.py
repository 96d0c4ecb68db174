"""The comparison: the same vectors summed with TenSEAL's CKKS at N = 8192, coefficient primes of 60, 40 and 40 bits.

That is homomorphic encryption as it is commonly set up for federated learning: public-key encryption, scale 2^40, no masks,
no tags and no consent, so whoever holds the key can read every single contribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tenseal as ts

from benchmarks.sums import timed

DEGREE, PRIMES, SCALE_BITS = 8192, [60, 40, 40], 40


@dataclass(frozen=True)
class CkksFigures:
    """Seconds and bytes: ``encrypt`` with serialisation for one participant, ``add`` with parsing, ``open`` with parsing."""

    payload: int
    encrypt: float
    add: float
    open: float


def measure_ckks(size: int, repeats: int) -> CkksFigures:
    """Time encryption, addition and decryption of one vector.

    Raises:
        AssertionError: the decrypted sum is not close to the exact one.
    """
    context = ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=PRIMES, n_threads=1)
    context.global_scale = 2**SCALE_BITS
    public = context.copy()
    public.make_context_public()
    values = np.random.default_rng(0).uniform(-1, 1, size)
    chunks = [values[start : start + DEGREE // 2] for start in range(0, size, DEGREE // 2)]
    encrypt_seconds, payload = timed(lambda: [ts.ckks_vector(public, chunk).serialize() for chunk in chunks], repeats)
    total = [ts.ckks_vector_from(public, part) for part in payload]

    def add() -> None:
        for index, part in enumerate(payload):
            total[index] += ts.ckks_vector_from(public, part)  # in place

    add_seconds, _ = timed(add, repeats)
    sums = [part.serialize() for part in total]
    open_seconds, opened = timed(
        lambda: np.concatenate([ts.ckks_vector_from(context, part).decrypt() for part in sums]), repeats
    )
    np.testing.assert_allclose(opened, (1 + repeats) * values, atol=1e-5)
    return CkksFigures(sum(len(part) for part in payload), encrypt_seconds, add_seconds, open_seconds)
