"""Randomness of tests: a reproducible source, the ChaCha20 keystream of a seed, which nothing installed can construct; and how
rarely what a test draws afresh may fail it."""

from __future__ import annotations

import hashlib
import os

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

RARE = 1e-10
"""Chance with which a statistical assertion about fresh randomness may fail: of its p-value, or by a bound that is derived."""

RARE_DEVIATIONS = 6.5
"""Standard deviations that a normal value exceeds with a chance below :data:`RARE` on either side (8e-11 on both)."""


REDRAW = os.environ.get("TEST_REDRAW", "").encode()
"""What seeds are mixed with where a test is asked whether it holds for other draws too (``tests/loaded.py --redraw``)."""


class SeededRandom:
    """A ``RandomSource`` that yields the same bytes for the same seed, however the calls are split."""

    def __init__(self, seed: bytes | int) -> None:
        material = seed if isinstance(seed, bytes) else f"integer:{seed}".encode()
        key = hashlib.sha256(b"veilsum tests" + REDRAW + material).digest()
        self._keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._keystream.update(bytes(count))
