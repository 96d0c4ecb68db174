"""Streams against published vectors and against a reader of ChaCha20 in plain Python; uniformity by chi-square."""

from __future__ import annotations

import hashlib
import hmac
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from support.securesum import ALPHA, uniform_p_value
from veilsum_node.keystream import Keystream
from veilsum_privacy.securesum.ring import RINGS
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream, derived_key, hkdf

KEY = bytes(range(32))


def _hkdf(secret: bytes, info: bytes, salt: bytes, length: int) -> bytes:
    """HKDF-SHA256 as RFC 5869, section 2, states it; an empty salt is 32 zero bytes."""
    extracted = hmac.digest(salt or bytes(32), secret, "sha256")
    out = block = b""
    counter = 1
    while len(out) < length:
        block = hmac.digest(extracted, block + info + bytes([counter]), "sha256")
        out, counter = out + block, counter + 1
    return out[:length]


def _quarter(state: list[int], a: int, b: int, c: int, d: int) -> None:
    for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[first] = (state[first] + state[second]) & 0xFFFFFFFF
        mixed = state[third] ^ state[first]
        state[third] = (mixed << turn | mixed >> (32 - turn)) & 0xFFFFFFFF


def _chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """The block function of RFC 8439, section 2.3."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, *struct.unpack("<3I", nonce)]
    state = list(start)
    for _ in range(10):
        for quarter in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
                        (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):  # fmt: skip
            _quarter(state, *quarter)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def test_the_oracles_meet_their_published_vectors() -> None:
    block = _chacha20_block(KEY, 1, bytes.fromhex("000000090000004a00000000"))  # RFC 8439, section 2.3.2
    assert block.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e")
    zero = _chacha20_block(bytes(32), 0, bytes(12))  # RFC 8439, appendix A.1, vector 1
    assert zero.hex().startswith("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    derived = _hkdf(b"\x0b" * 22, bytes(range(0xF0, 0xFA)), bytes(range(13)), 42)  # RFC 5869, appendix A.1
    assert derived.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    derived = _hkdf(b"\x0b" * 22, b"", b"", 42)  # RFC 5869, appendix A.3: no salt, as here
    assert derived.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"


def test_the_keystream_is_chacha20_from_block_zero() -> None:
    assert Keystream(bytes(32)).read(32).hex() == "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    expected = b"".join(_chacha20_block(KEY, counter, bytes(12)) for counter in range(5))
    stream = Keystream(KEY)
    assert stream.read(1) + stream.read(100) + stream.read(219) == expected


@given(st.binary(min_size=1, max_size=64), st.text("abc-/6", min_size=1), st.lists(st.binary(max_size=40), max_size=4))
def test_keys_are_hkdf_over_length_prefixed_parts(secret: bytes, label: str, parts: list[bytes]) -> None:
    bound = b"".join(struct.pack(">I", len(part)) + part for part in (label.encode(), *parts))
    assert hkdf(secret, label, *parts) == _hkdf(secret, bound, b"", 32)


def test_keys_are_of_one_secret_purpose_and_context() -> None:
    keys = [
        derived_key(KEY, StreamPurpose.SELF_DATA, b"ab"),
        derived_key(KEY, StreamPurpose.PAIR_DATA, b"ab"),
        derived_key(KEY, StreamPurpose.SELF_DATA, b"a", b"b"),
        derived_key(KEY, StreamPurpose.SELF_DATA, b"ab", b""),
        derived_key(KEY, StreamPurpose.SELF_DATA, b"b"),
        derived_key(hashlib.sha256(KEY).digest(), StreamPurpose.SELF_DATA, b"ab"),
        hkdf(KEY, "veilsum/1/self-data", b"ab"),
    ]
    assert len(set(keys)) == len(keys)
    assert keys[0] == hkdf(KEY, "veilsum/6/self-data", b"ab")


def words_of(bound: int, purpose: StreamPurpose = StreamPurpose.SELF_DATA) -> WordStream:
    return WordStream(KEY, purpose, b"context", bound=bound)


@pytest.mark.parametrize("modulus", [*sorted({ring.plain_modulus for ring in RINGS}), 65537])
def test_words_follow_the_keystream_with_rejection(modulus: int) -> None:
    key = hkdf(KEY, "veilsum/6/self-data", b"context")
    blocks = b"".join(_chacha20_block(key, counter, bytes(12)) for counter in range(40))
    words = [word % (1 << modulus.bit_length()) for word in struct.unpack("<320Q", blocks)]
    expected = [word for word in words if word < modulus][:100]
    assert len(expected) == 100
    assert words_of(modulus).take(100).tolist() == expected
    if modulus == 65537:
        assert words[:100] != expected, "this modulus must show rejections"


@given(
    st.lists(st.integers(0, 700), max_size=8),
    st.sampled_from([RINGS[1].plain_modulus, RINGS[1].prime, 65537, 5, 129, 1 << 9, 1 << 28]),
    st.sampled_from([StreamPurpose.SELF_DATA, StreamPurpose.SELF_KEY]),
)
def test_words_do_not_depend_on_how_they_are_taken(counts: list[int], bound: int, purpose: StreamPurpose) -> None:
    stream = words_of(bound, purpose)
    parts = np.concatenate([np.zeros(0, np.uint64), *(stream.take(count) for count in counts)])
    np.testing.assert_array_equal(parts, words_of(bound, purpose).take(sum(counts)))


@pytest.mark.parametrize("purpose", [StreamPurpose.SELF_DATA, StreamPurpose.SELF_KEY])
@pytest.mark.parametrize("bound", [RINGS[0].plain_modulus, RINGS[1].plain_modulus, RINGS[1].prime, 1 << 9])
def test_words_are_uniform(bound: int, purpose: StreamPurpose) -> None:
    words = words_of(bound, purpose).take(1_000_000)
    assert (words < bound).all()
    assert uniform_p_value(words, bound) > ALPHA
    assert uniform_p_value(words[:-1] ^ words[1:], 1 << (bound - 1).bit_length()) > ALPHA, "neighbours are unrelated"
    assert uniform_p_value(words % np.uint64(max(bound // 100 * 99, 500)), bound) < ALPHA, "the test must see one percent"


@pytest.mark.parametrize("modulus", [3, 5, 17, 65, 1100])
def test_rejection_keeps_a_small_modulus_uniform(modulus: int) -> None:
    words = words_of(modulus).take(400_000)
    assert words.max() == modulus - 1
    assert stats.chisquare(np.bincount(words.astype(np.int64), minlength=modulus)).pvalue > ALPHA
    reduced = np.frombuffer(Keystream(KEY).read(8 * 400_000), "<u8") % (1 << modulus.bit_length()) % modulus
    assert stats.chisquare(np.bincount(reduced.astype(np.int64), minlength=modulus)).pvalue < ALPHA, "a remainder is seen"
