"""ChaCha20's keystream: many bytes of a key of 32."""

from veilsum_node.randomness import RandomSource


class Keystream:
    """ChaCha20's keystream under a key that is never used again, so a zero nonce is safe. It is not a source of randomness."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # a plan prices noise and draws none

        self._encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def read(self, count: int) -> bytes:
        """The next ``count`` bytes."""
        return self._encryptor.update(bytes(count))


class Expanded:
    """A source's randomness made longer: the keystream of a key of 32 bytes that is asked of the source for it alone.

    Made and dropped within one call: one that is kept would give the same bytes on both sides of a fork.
    """

    def __init__(self, source: RandomSource) -> None:
        self._stream = Keystream(source.bytes(32))

    def bytes(self, count: int) -> bytes:
        return self._stream.read(count)
