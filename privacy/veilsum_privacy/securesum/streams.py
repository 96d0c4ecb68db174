"""Keystreams of protocol 6: each of one secret, one purpose and one context, and of no other.

A stream's key is HKDF(secret, purpose | context [| more]) and it starts at counter 0, so no two streams share a key and
nothing is keyed by a part of a context. The purpose fixes the cipher too: data are masked by ChaCha20, everything else by
AES-256 in counter mode, so that a weakness of either cipher leaves one of the first two locks shut.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Words

SECRET_BYTES = 32

_TOGETHER = 1 << 12  # words of several streams that are looked at together

_BLOCK = 1 << 14  # words of one stream at a time: what is drawn and added stays in a processor's cache


class StreamPurpose(StrEnum):
    PAIR_KEY = "pair-key"
    PAIR_CHECK = "pair-check"
    PAIR_DATA = "pair-data"
    SELF_KEY = "self-key"
    SELF_CHECK = "self-check"
    SELF_DATA = "self-data"
    COMMON = "common"
    CHALLENGE = "challenge"
    CONSENT = "consent"


_OF_DATA = frozenset({StreamPurpose.PAIR_DATA, StreamPurpose.SELF_DATA})
_PREFIX = "veilsum/6/"
_START = bytes(16)
_ZEROS = memoryview(bytes(1 << 16))  # what is encrypted; a keystream of any length is drawn in pieces of it
_COUNTER = modes.CTR(_START)


def derived_key(secret: bytes, purpose: StreamPurpose, context: bytes, *more: bytes) -> bytes:
    """The key of one stream (32 bytes): of a secret, a purpose and length-prefixed parts."""
    return hkdf(secret, _PREFIX + purpose, context, *more)


def hkdf(secret: bytes, label: str, *parts: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) of a secret to 32 bytes, without a salt, bound to a label and to length-prefixed parts."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), _info(label, parts), "sha256")


@lru_cache(maxsize=64)
def _info(label: str, parts: tuple[bytes, ...]) -> bytes:
    """What the first and only block of the output is of; many secrets are bound to the same."""
    return b"".join(len(part).to_bytes(4, "big") + part for part in (label.encode(), *parts)) + b"\x01"


class _Form(NamedTuple):
    """How words below a bound are read: held to which bound unless it is a power of two, cut by which mask, of which type."""

    bound: np.uint64 | None
    cut: np.uint64
    type: np.dtype[np.unsignedinteger]


@lru_cache(maxsize=64)
def _form(bound: int) -> _Form:
    bits = (bound - 1).bit_length()
    whole = bound == 1 << bits
    size = next(size for size in (2, 4, 8) if bits <= 8 * size) if whole else 8
    return _Form(None if whole else np.uint64(bound), np.uint64((1 << bits) - 1), np.dtype(f"<u{size}"))


class WordStream:
    """Uniform words below a bound: cut to the bound's bits, and rejected if they are not below it.

    Args:
        secret: whose stream it is.
        purpose: what for.
        context: of which attempt.
        more: further parts of the key's name.
        bound: of the words, at most 2^64; a power of two up to 2^16 takes two bytes a word, up to 2^32 four, all others eight.
    """

    def __init__(self, secret: bytes, purpose: StreamPurpose, context: bytes, *more: bytes, bound: int) -> None:
        key = derived_key(secret, purpose, context, *more)
        if purpose in _OF_DATA:
            self._encryptor = Cipher(algorithms.ChaCha20(key, _START), mode=None).encryptor()
        else:
            self._encryptor = Cipher(algorithms.AES(key), _COUNTER).encryptor()
        self._bound, self._cut, self._type = _form(bound)

    def take(self, count: int) -> Words:
        """The next ``count`` words, (count,) uint64."""
        words = np.empty(count, dtype=np.uint64)
        self.fill(words)
        return words

    def fill(self, words: Words) -> None:
        """Put the next words in the place of these, (n,) uint64 one behind the other."""
        if self._type.itemsize == 8:
            self._draw(words)
        else:
            words[:] = self._raw(len(words))
        words &= self._cut
        self._replace(words)

    def _raw(self, count: int) -> NDArray[np.unsignedinteger]:
        words = np.empty(count, dtype=self._type)
        self._draw(words)
        return words

    def _draw(self, words: NDArray[np.unsignedinteger]) -> None:
        octets = words.view(np.uint8).data
        for start in range(0, len(octets), len(_ZEROS)):
            piece = octets[start : start + len(_ZEROS)]
            self._encryptor.update_into(_ZEROS[: len(piece)], piece)

    def _replace(self, words: Words) -> None:
        """Those that are not below the bound give way to this stream's next ones."""
        if self._bound is None or not len(words) or words.max() < self._bound:
            return
        good = words[words < self._bound]
        self.fill(words[len(good) :])
        words[: len(good)] = good

    @staticmethod
    def total(added: Sequence[WordStream], subtracted: Sequence[WordStream], count: int, bound: int) -> Words:
        """The next ``count`` words of some streams of this bound less those of others, mod the bound: (count,).

        Sums fit 64 bits: of 4,096 streams of 47 bits, 1,024 of 48 or 16 of 51.
        """
        whole = np.empty(count, dtype=np.uint64)
        for start in range(0, count, _BLOCK):
            part = whole[start : start + _BLOCK]
            part[:] = WordStream._total(added, subtracted, len(part), bound)
        return whole

    @staticmethod
    def _total(added: Sequence[WordStream], subtracted: Sequence[WordStream], count: int, bound: int) -> Words:
        streams = [*added, *subtracted]
        if streams and streams[0]._bound is None:  # a power of two: words are cut once, in the end
            whole = np.zeros(count, dtype=streams[0]._type)
            for stream in added:
                whole += stream._raw(count)
            for stream in subtracted:
                whole -= stream._raw(count)
            return whole.astype(np.uint64, copy=False) & streams[0]._cut
        total = np.full(count, len(subtracted) * bound, dtype=np.uint64)
        rows = max(1, _TOGETHER // count)
        for place in range(0, len(streams), rows):
            group = streams[place : place + rows]
            words = np.empty((len(group), count), dtype=np.uint64)
            for stream, row in zip(group, words, strict=True):
                stream._draw(row)
            words &= group[0]._cut
            if words.max() >= bound:
                for stream, row in zip(group, words, strict=True):
                    stream._replace(row)
            split = max(0, len(added) - place)
            for change, some in ((np.add, words[:split]), (np.subtract, words[split:])):
                if len(some):
                    change(total, some[0] if len(some) == 1 else some.sum(axis=0), out=total)
        return total - total // np.uint64(bound) * np.uint64(bound)  # in a third of the time of its remainder
