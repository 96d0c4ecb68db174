"""Tags against big-integer arithmetic, and every way to present a sum that is not the cohort's."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput
from veilsum_node.keystream import Keystream
from veilsum_privacy.securesum.masks import MaskStream, Slots, derive
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters
from veilsum_privacy.securesum.tags import TagKey

KEY = TagKey(hashlib.sha256(b"tags").digest())
CONTEXT = hashlib.sha256(b"context").digest()
NAMES = ("a", "b", "c")


def _words(parameters: BfvParameters, seed: int, count: int | None = None) -> Slots:
    key = SeededRandom(seed).bytes(32)
    return MaskStream(key, parameters.plain_modulus).take(count or parameters.degree - 2)


def _tagged(words: Slots, name: str, modulus: int, context: bytes = CONTEXT, index: int = 0, key: TagKey = KEY) -> Slots:
    return np.concatenate([words, key.tags(context, index, _pad((name,), modulus, context, index, key), words, modulus)])


def _pad(names: Sequence[str], modulus: int, context: bytes = CONTEXT, index: int = 0, key: TagKey = KEY) -> Slots:
    return key.pads(context, names, index + 1, modulus)[index]


def _sum(vectors: Sequence[Slots], modulus: int) -> Slots:
    total = sum(vector.astype(object) for vector in vectors)
    return np.array([value % modulus for value in total], dtype=np.uint64)  # type: ignore[union-attr]


@pytest.fixture(params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def modulus(request: pytest.FixtureRequest) -> int:
    return int(request.param.plain_modulus)


@given(st.integers(0, 2**32), st.integers(0, 500), st.sampled_from([BFV_8192, BFV_4096]))
def test_tags_equal_big_integers(seed: int, index: int, parameters: BfvParameters) -> None:
    t, words = parameters.plain_modulus, _words(parameters, seed, 40)
    at = struct.pack(">Q", index)
    r = struct.unpack("<80I", Keystream(derive(KEY.to_bytes(), "tag-r", CONTEXT, at)).read(320))
    pads = MaskStream(derive(KEY.to_bytes(), "tag-pad", CONTEXT, b"a"), t).take(2 * index + 4).tolist()
    pad = pads[2 * index : 2 * index + 2]
    products = [sum((r[40 * row + slot] & 0xFFFFFF) * word for slot, word in enumerate(words.tolist())) for row in (0, 1)]
    expected = [(product + pad[row]) % t for row, product in enumerate(products)]
    assert KEY.tags(CONTEXT, index, KEY.pads(CONTEXT, ("a",), index + 2, t)[index], words, t).tolist() == expected


@given(st.integers(1, 70), st.integers(1, 9), st.sampled_from([BFV_8192, BFV_4096]))
def test_pads_of_a_cohort_are_the_sum_of_its_members(members: int, count: int, parameters: BfvParameters) -> None:
    """One word is never served twice: not to two ciphertexts, two tags or two members."""
    t, names = parameters.plain_modulus, [str(index) for index in range(members)]
    each = [KEY.pads(CONTEXT, (name,), count, t) for name in names]
    total = sum(pads.astype(object) for pads in each)
    assert KEY.pads(CONTEXT, names, count, t).tolist() == (total % t).tolist()  # type: ignore[union-attr]
    words = [word for pads in each for word in pads.ravel().tolist()]
    assert len(set(words)) == members * count * 2


def test_the_largest_words_do_not_overflow(modulus: int) -> None:
    degree = 8192 if modulus == BFV_8192.plain_modulus else 4096
    words = np.full(degree - 2, modulus - 1, dtype=np.uint64)
    # <r, -1> = -<r, 1>, and <r, 1> is small enough for anyone to add up
    pad = KEY.tags(CONTEXT, 0, _pad(("a",), modulus), np.zeros_like(words), modulus)
    ones = KEY.tags(CONTEXT, 0, _pad(("a",), modulus), np.ones_like(words), modulus)
    low = KEY.tags(CONTEXT, 0, _pad(("a",), modulus), words, modulus)
    assert [(int(x) + int(y) - 2 * int(z)) % modulus for x, y, z in zip(ones, low, pad, strict=True)] == [0, 0]


@given(st.integers(2, 9), st.integers(0, 2**32))
def test_tags_of_a_sum_are_the_sum_of_tags(members: int, seed: int) -> None:
    modulus, names = BFV_4096.plain_modulus, [f"m{index}" for index in range(members)]
    parts = [_tagged(_words(BFV_4096, seed + index, 60), name, modulus) for index, name in enumerate(names)]
    KEY.check(CONTEXT, 0, _pad(names, modulus), _sum(parts, modulus), modulus)


def _refused(slots: Slots, modulus: int, cohort: Sequence[str] = NAMES, context: bytes = CONTEXT, index: int = 0) -> None:
    with pytest.raises(HostileInput, match="tags of a sum are wrong"):
        KEY.check(context, index, _pad(cohort, modulus, context, index), slots, modulus)


@pytest.fixture
def total(modulus: int) -> Slots:
    parameters = BFV_8192 if modulus == BFV_8192.plain_modulus else BFV_4096
    return _sum([_tagged(_words(parameters, seed), name, modulus) for seed, name in enumerate(NAMES)], modulus)


def test_only_the_exact_cohort_context_and_index_pass(modulus: int, total: Slots) -> None:
    KEY.check(CONTEXT, 0, _pad(NAMES, modulus), total, modulus)
    for cohort in (NAMES[:2], NAMES[1:], (*NAMES, "d"), (*NAMES, "c"), ("a", "b", "d"), ()):
        _refused(total, modulus, cohort)
    _refused(total, modulus, context=hashlib.sha256(CONTEXT).digest())
    _refused(total, modulus, index=1)


def test_another_key_does_not_pass(modulus: int, total: Slots) -> None:
    other = TagKey(hashlib.sha256(b"other").digest())
    with pytest.raises(HostileInput):
        other.check(CONTEXT, 0, _pad(NAMES, modulus, key=other), total, modulus)


def test_every_altered_slot_is_found(modulus: int, total: Slots) -> None:
    random = np.random.default_rng(0)
    for slot in [0, 1, len(total) - 3, len(total) - 2, len(total) - 1, *random.integers(0, len(total), 60)]:
        for step in (1, modulus - 1, int(random.integers(1, modulus))):
            altered = total.copy()
            altered[slot] = (int(altered[slot]) + step) % modulus
            _refused(altered, modulus)


def test_a_member_twice_multiples_and_swaps_are_found(modulus: int, total: Slots) -> None:
    parameters = BFV_8192 if modulus == BFV_8192.plain_modulus else BFV_4096
    one = _tagged(_words(parameters, 0), "a", modulus)
    _refused(_sum([total, one], modulus), modulus)
    _refused(_sum([total, total], modulus), modulus)
    _refused(np.zeros_like(total), modulus)
    _refused(np.concatenate([total[1::-1], total[2:]]), modulus)
    _refused(np.concatenate([total[:-2], total[:-3:-1]]), modulus)  # the two tags exchanged


def test_a_forger_without_the_key_is_refused(modulus: int, total: Slots) -> None:
    # what the key's holder would answer to: chosen words with tags of another context, index, sender, or at random
    words = np.zeros(len(total) - 2, dtype=np.uint64)
    for tags in (
        _tagged(words, "a", modulus, bytes(32))[-2:],
        _tagged(words, "a", modulus, index=1)[-2:],
        _tagged(words, "b", modulus)[-2:],
        MaskStream(bytes(32), modulus).take(2),
        total[-2:],
    ):
        _refused(np.concatenate([words, tags]), modulus, ("a",))
    KEY.check(CONTEXT, 0, _pad(("a",), modulus), _tagged(words, "a", modulus), modulus)


def test_the_key_has_one_length_and_shows_nothing() -> None:
    assert repr(KEY) == "TagKey()"
    assert str(KEY) == "TagKey()"
    for length in (0, 31, 33):
        with pytest.raises(HostileInput):
            TagKey(bytes(length))
