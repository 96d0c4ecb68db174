"""The comparison: the same vectors summed with TenSEAL's CKKS at N = 8192, coefficient primes of 60, 40 and 40 bits.

That is homomorphic encryption as it is commonly set up for federated learning: public-key encryption, scale 2^40, no masks,
no tags and no consent, so whoever holds the key can read every single contribution. Symmetric encryption is timed beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import tenseal as ts

from benchmarks.timing import timed

DEGREE, PRIMES, SCALE_BITS = 8192, [60, 40, 40], 40


@dataclass(frozen=True)
class CkksFigures:
    """CPU seconds, with serialisation or parsing, and bytes of one participant's payload.

    Attributes:
        encrypt, encrypt_symmetric: one participant's vector, under a public key and under the secret key.
        add: one contribution to the sum.
        open: decrypt the sum.
    """

    payload: int
    encrypt: float
    encrypt_symmetric: float
    add: float
    open: float


def measure_ckks(size: int, repeats: int) -> CkksFigures:
    """Time encryption, addition and decryption of one vector.

    Raises:
        AssertionError: the decrypted sum is not close to the exact one.
    """
    context, symmetric = (
        ts.context(ts.SCHEME_TYPE.CKKS, DEGREE, coeff_mod_bit_sizes=PRIMES, encryption_type=kind, n_threads=1)
        for kind in (ts.ENCRYPTION_TYPE.ASYMMETRIC, ts.ENCRYPTION_TYPE.SYMMETRIC)
    )
    context.global_scale = symmetric.global_scale = 2**SCALE_BITS
    public = context.copy()
    public.make_context_public()
    values = np.random.default_rng(0).uniform(-1, 1, size)
    chunks = [values[start : start + DEGREE // 2] for start in range(0, size, DEGREE // 2)]
    encrypt_seconds, payload = timed(lambda: [ts.ckks_vector(public, chunk).serialize() for chunk in chunks], repeats)
    symmetric_seconds, _ = timed(lambda: [ts.ckks_vector(symmetric, chunk).serialize() for chunk in chunks], repeats)
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
    return CkksFigures(sum(len(part) for part in payload), encrypt_seconds, symmetric_seconds, add_seconds, open_seconds)
