"""What decryptors sign: the words of a sum, which released values and consents give again to the bit."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.certificates import NOW, Forge
from support.securesum import exact_plan, make_cohort
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Label, Role, SigningKey, verify_certificate
from veilsum_privacy.securesum.contribution import masked_sum, open_sum
from veilsum_privacy.securesum.decryption import (
    MAX_STATEMENT_BYTES,
    WORD_BYTES,
    SignedStatement,
    Statement,
    parse_statement,
    sign_statement,
    verify_statement,
    words_digest,
    words_from_bytes,
    words_to_bytes,
)
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192

CONTEXT = hashlib.sha256(b"a context").digest()
SAID = Statement(bytes(32), "north", 3, 5, CONTEXT, hashlib.sha256(b"keys").digest(), hashlib.sha256(b"words").digest())
FORGE = Forge()
KEY = SigningKey.generate()


@settings(max_examples=80, deadline=None)
@given(
    st.integers(2, 9), st.integers(1, 20_000), st.integers(0, 40), st.integers(0, 2**32), st.sampled_from([BFV_8192, BFV_4096])
)
def test_values_and_consents_give_the_decrypted_words(members: int, size: int, bits: int, seed: int, parameters: Any) -> None:
    """Words of a real sum, added contribution by contribution; also where the last slot and ciphertext are filled in part."""
    try:
        plan = exact_plan(size, 1 << bits, members, parameters)
    except Misuse:
        return
    rng, cohort = np.random.default_rng(seed), make_cohort(members, seed)
    vectors = [rng.integers(-plan.bound, plan.bound + 1, size) for _ in range(members)]
    words, consents = cohort.sum_words(vectors, plan, CONTEXT), cohort.consents(CONTEXT)
    values = open_sum(words, plan, consents)
    again = list(masked_sum(values, plan, consents))
    assert words_digest(again) == words_digest(words)
    for one, other in zip(again, words, strict=True):
        assert len(words_to_bytes(one)) == WORD_BYTES * len(one)
        np.testing.assert_array_equal(words_from_bytes(words_to_bytes(one)), one)
        np.testing.assert_array_equal(one, other)
    values[seed % size] += 1 if values[seed % size] < plan.reach else -1
    assert words_digest(masked_sum(values, plan, consents)) != words_digest(words)


def test_values_that_no_sum_opens_to_are_refused() -> None:
    plan, cohort = exact_plan(5, 10, 3), make_cohort(3)
    consents = cohort.consents(CONTEXT)
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


def test_a_statement_is_verified_against_what_was_decrypted() -> None:
    identity = verify_certificate(FORGE.leaf(name="north", key=KEY._key), FORGE.ca, NOW, Role.PARTICIPANT)
    signed = sign_statement(SAID, KEY)
    assert parse_statement(signed.body) == SAID
    verify_statement(signed, identity, SAID)
    for change in (
        {"study": bytes(31) + b"1"}, {"participant": "south"}, {"round": 4}, {"attempt": 6}, {"context": bytes(32)},
        {"keys": bytes(32)}, {"words": bytes(32)},
    ):  # fmt: skip
        other = replace(SAID, **change)  # type: ignore[arg-type]
        with pytest.raises(HostileInput):
            verify_statement(signed, identity, other)
        with pytest.raises(HostileInput):
            verify_statement(sign_statement(other, KEY), identity, SAID)
    for label in Label:
        if label is not Label.DECRYPTION:
            with pytest.raises(HostileInput):
                verify_statement(SignedStatement(signed.body, KEY.sign(label, signed.body)), identity, SAID)
    with pytest.raises(HostileInput):
        verify_statement(sign_statement(SAID, SigningKey.generate()), identity, SAID)
    south = replace(SAID, participant="south")  # north's signature under a word of another's
    with pytest.raises(HostileInput):
        verify_statement(sign_statement(south, KEY), identity, south)


def test_a_statement_shows_no_keys() -> None:
    """Whoever knows their digest can compute the context, and a log is no place for it."""
    assert SAID.keys.hex() not in repr(SAID)
    assert repr(SAID.keys) not in repr(SAID)


VALUE = {
    "v": 1, "study": SAID.study, "participant": "north", "round": 3, "attempt": 5, "context": SAID.context,
    "keys": SAID.keys, "words": SAID.words,
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"round": 0}, {"round": True}, {"attempt": -1}, {"attempt": "1"}, {"round": 2**53}, {"study": "00"}, {"keys": 7},
        {"context": "Z" * 64}, {"words": "AB" * 32}, {"participant": 1}, {"v": True},
    ],
)  # fmt: skip
def test_statements_written_otherwise_are_refused(change: dict[str, Any]) -> None:
    assert parse_statement(canonical(VALUE)) == SAID
    with pytest.raises(HostileInput):
        parse_statement(canonical(VALUE | change))


@pytest.mark.parametrize(
    "value",
    [
        *({key: item for key, item in VALUE.items() if key != name} for name in VALUE),
        VALUE | {"more": 1},
        VALUE | {"v": 2},
        [],
    ],
)
def test_statements_of_other_fields_are_refused(value: Any) -> None:
    with pytest.raises(HostileInput, match="exactly the fields of version 1"):
        parse_statement(canonical(value))


@pytest.mark.parametrize("number", [1, 2**53 - 1])
def test_numbers_at_both_bounds_are_taken(number: int) -> None:
    said = replace(SAID, round=number, attempt=number)
    assert parse_statement(said.to_bytes()) == said


def test_a_number_of_2_to_the_53_is_refused() -> None:
    with pytest.raises(HostileInput, match="canonical"):
        parse_statement(SAID.to_bytes().replace(b'"round":3', b'"round":%d' % (2**53)))


def test_a_statement_has_1024_bytes_at_most() -> None:
    room = 1024 - len(replace(SAID, participant="").to_bytes())
    said = replace(SAID, participant="n" * room)
    assert parse_statement(said.to_bytes()) == said
    with pytest.raises(HostileInput, match="larger than allowed"):
        parse_statement(replace(said, participant="n" * (room + 1)).to_bytes())


@given(st.binary(max_size=MAX_STATEMENT_BYTES + 1))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    with pytest.raises(HostileInput):
        parse_statement(data)
