"""What verifies former results, against words made here as their decryptors found them; and the sets of parameters of then."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from support.certificates import NOW, Forge
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Identity, Label, Role, SigningKey, verify_certificate
from veilsum_privacy.results.former.layout import (
    BFV_4096,
    BFV_8192,
    BfvParameters,
    EncodingPlan,
    choose_parameters,
    plan_encoding,
)
from veilsum_privacy.results.former.words import MaskStream, Statement, masked_sum, verify_decryptors, words_digest

KEY = bytes(range(32))
SETS = st.sampled_from([BFV_8192, BFV_4096])
SAID = Statement(
    bytes(32), "", 3, 5, hashlib.sha256(b"a").digest(), hashlib.sha256(b"keys").digest(), hashlib.sha256(b"words").digest()
)
FORGE = Forge()
KEYS = {name: SigningKey.generate() for name in ("north", "south", "west")}


def identities(*names: str) -> dict[str, Identity]:
    return {
        name: verify_certificate(FORGE.leaf(name=name, key=KEYS[name]._key), FORGE.ca, NOW, Role.PARTICIPANT) for name in names
    }


def keystream_words(key: bytes, modulus: int, count: int) -> list[int]:
    """64-bit words of ChaCha20 cut to the modulus' bits, without those that are not below it."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(64 * (count + 10)))
    cut = [word % (1 << modulus.bit_length()) for (word,) in struct.iter_unpack("<Q", stream)]
    return [word for word in cut if word < modulus][:count]


def decrypted(values: list[int], plan: EncodingPlan, consents: list[bytes], *, padded: bool) -> list[list[int]]:
    """The words of a sum of these values by integers alone: in each ciphertext the count, then lanes; under all self-masks."""
    t, width = plan.parameters.plain_modulus, plan.parameters.degree - 3
    lanes = [value + plan.cohort * plan.offset for value in values]
    lanes += [plan.cohort * plan.offset] * (-len(values) % plan.lanes)
    packed = [
        sum(lane << plan.width * place for place, lane in enumerate(lanes[start : start + plan.lanes])) % t
        for start in range(0, len(lanes), plan.lanes)
    ]
    parts = [[plan.cohort, *packed[start : start + width]] for start in range(0, len(packed), width)]
    if padded:
        parts = [part + [0] * (width + 1 - len(part)) for part in parts]
    masks = [keystream_words(consent, t, sum(map(len, parts))) for consent in consents]
    found, at = [], 0
    for part in parts:
        found.append([(word + sum(mask[at + place] for mask in masks)) % t for place, word in enumerate(part)])
        at += len(part)
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 12_000), st.integers(0, 40), st.integers(0, 2**32), st.booleans(), SETS)
def test_values_and_consents_give_the_decrypted_words(
    members: int, size: int, bits: int, seed: int, padded: bool, parameters: BfvParameters
) -> None:
    """Also where the last slot and ciphertext are filled in part."""
    try:
        plan = plan_encoding(size, 1 << bits, Fraction(0), members, parameters)
    except Misuse:
        return
    values = np.random.default_rng(seed).integers(-plan.reach, plan.reach + 1, size)
    consents = [hashlib.sha256(b"%d %d" % (seed, place)).digest() for place in range(members)]
    words = [part.tolist() for part in masked_sum(values, plan, consents, padded=padded)]
    assert words == decrypted(values.tolist(), plan, consents, padded=padded)
    values[seed % size] += 1 if values[seed % size] < plan.reach else -1
    assert [part.tolist() for part in masked_sum(values, plan, consents, padded=padded)] != words


def test_values_that_no_sum_opens_to_are_refused() -> None:
    plan = plan_encoding(5, 10, Fraction(0), 3, BFV_8192)
    consents = [bytes([place]) * 32 for place in range(3)]
    whole = np.full(5, plan.reach)
    for values in (whole, -whole):
        assert len(list(masked_sum(values, plan, consents))) == 1
    for values, given_ in (
        (whole + 1, consents),
        (np.array([0, 0, plan.reach + 1, 0, 0]), consents),
        (np.array([0, 0, 0, 0, -plan.reach - 1]), consents),
        (-whole - 1, consents),
        (np.full(5, -(2**63)), consents),
        (whole[:4], consents),
        (whole, consents[:2]),
    ):
        with pytest.raises(HostileInput):
            masked_sum(values, plan, given_)


def test_the_digest_is_that_of_every_word_in_order() -> None:
    words = [np.arange(4, dtype=np.uint64), np.arange(4, 8, dtype=np.uint64)]
    state = hashlib.sha256(b"veilsum/1/decrypted-words")
    for part in words:
        state.update((4).to_bytes(8, "big") + b"".join(int(word).to_bytes(8, "little") for word in part))
    assert words_digest(words) == state.digest()
    others = [words[::-1], words[:1], [np.concatenate(words)], [words[0], words[1][::-1].copy()]]
    assert len({words_digest(item) for item in (words, *others)}) == 5


def sign(name: str, words: bytes = SAID.words, label: Label = Label.DECRYPTION, **changes: object) -> bytes:
    said = replace(SAID, participant=name, words=words, **changes)  # type: ignore[arg-type]
    return KEYS[name].sign(label, said.to_bytes())


def holds(decrypted_by: dict[str, bytes], padded: bytes = bytes(32)) -> str:
    """What is found wrong; empty if nothing is."""
    try:
        verify_decryptors(SAID, lambda: padded, decrypted_by, identities("north", "south"))
    except HostileInput as error:
        return str(error)
    return ""


def test_two_members_signed_for_the_same_words() -> None:
    padded = hashlib.sha256(b"padded").digest()
    both = {name: sign(name) for name in ("north", "south")}
    assert not holds(both)
    assert not holds({name: sign(name, padded) for name in both}, padded), "as up to version 3 of the protocol"
    assert "north did not sign" in holds({name: sign(name, padded) for name in both})
    assert "south did not sign" in holds({**both, "south": sign("south", padded)}, padded)
    assert "south did not sign" in holds({**both, "north": sign("north", padded)}, padded)
    for wrong in ({"north": both["north"]}, {}, {**both, "west": sign("west")}):
        assert "does not name 2 members" in holds(wrong)
    changes: list[dict[str, object]] = [
        {"study": bytes(31) + b"1"}, {"round": 4}, {"attempt": 6}, {"context": bytes(32)}, {"keys": bytes(32)},
        {"words": bytes(32)}, *({"label": label} for label in Label if label is not Label.DECRYPTION),
    ]  # fmt: skip
    for change in changes:
        assert "south did not sign" in holds({**both, "south": sign("south", **change)})  # type: ignore[arg-type]
    assert "south did not sign" in holds({**both, "south": both["north"]})


def test_a_statement_shows_no_keys() -> None:
    """Whoever knows their digest can compute the context, and a log is no place for it."""
    assert SAID.keys.hex() not in repr(SAID)
    assert repr(SAID.keys) not in repr(SAID)


@pytest.mark.parametrize("modulus", [BFV_8192.plain_modulus, BFV_4096.plain_modulus, 65537])
def test_masks_follow_the_keystream_with_rejection(modulus: int) -> None:
    expected = keystream_words(KEY, modulus, 900)
    stream = MaskStream(KEY, modulus)
    assert [*stream.take(1).tolist(), *stream.take(899).tolist()] == expected


def test_every_context_names_the_same_two_sets() -> None:
    assert BFV_8192.to_context() == {"degree": 8192, "prime_bits": [60, 60], "plain_modulus": 2**48 - 16383}
    assert BFV_4096.to_context() == {"degree": 4096, "prime_bits": [54, 55], "plain_modulus": 2**42 - 24575}
    with pytest.raises(Misuse, match="2 to 1024 members"):
        plan_encoding(1, 5, Fraction(0), 1025, BFV_8192)


def test_the_set_is_chosen_as_it_was() -> None:
    assert choose_parameters([(100, 10, Fraction(0))], 4) is BFV_4096  # one small ciphertext is half of a large one
    assert choose_parameters([(10**6, 2**20, Fraction(0))], 4) is BFV_8192  # two lanes of 24 bits against one of 42
    assert choose_parameters([(100, 2**42, Fraction(0))], 4) is BFV_8192  # does not fit the smaller modulus
    assert choose_parameters([(100, 10, Fraction(0)), (100, 2**42, Fraction(0))], 4) is BFV_8192
    with pytest.raises(Misuse):
        choose_parameters([(100, 2**50, Fraction(0))], 4)
    even = [(8000, 2**36, Fraction(0))] * 559 + [(10_000, 2**19, Fraction(0))] * 66  # 1316 of 31250 bytes, 625 of 65800
    for parameters, count in ((BFV_4096, 1316), (BFV_8192, 625)):
        assert sum(plan_encoding(*item, 4, parameters).ciphertexts for item in even) == count
    assert choose_parameters(even, 4) is BFV_8192
    assert choose_parameters([*even, (1, 2**36, Fraction(0))], 4) is BFV_4096
