"""A reproducible random source for tests: the ChaCha20 keystream of a seed. Nothing installed can construct one."""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20


class SeededRandom:
    """A ``RandomSource`` that yields the same bytes for the same seed, however the calls are split."""

    def __init__(self, seed: bytes | int) -> None:
        material = seed if isinstance(seed, bytes) else f"integer:{seed}".encode()
        key = hashlib.sha256(b"veilsum tests" + material).digest()
        self._keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()

    def bytes(self, count: int) -> bytes:
        return self._keystream.update(bytes(count))
