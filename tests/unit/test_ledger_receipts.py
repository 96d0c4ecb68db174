"""Receipts and countersignatures: what they say survives their bytes, and nothing else passes for them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.ledgers import COORDINATOR, any_receipt, credentials_of, make_reservation
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Label, Role
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.ledger.countersigning import countersign, countersign_again, part_of_receipt, part_of_word
from veilsum_privacy.ledger.receipts import (
    MAX_RECEIPT_BYTES,
    Countersignature,
    SignedReceipt,
    consent_commitment,
    consent_proof,
    parse_countersignature,
    parse_receipt,
    receipts_digest,
    sign_receipt,
    verify_countersignature,
    verify_receipt,
    whole_receipts,
    whole_word,
)
from veilsum_privacy.mechanism.noise_plan import NoisePlan

STUDY, CONTEXT, HEAD, OTHER = (bytes([number]) * 32 for number in range(1, 5))
NORTH, SOUTH = credentials_of("north"), credentials_of("south")
CENTRE = credentials_of(COORDINATOR, role=Role.COORDINATOR)
RECEIPT = any_receipt(STUDY, context=CONTEXT, head=HEAD, number=7)


def test_a_receipt_survives_its_bytes() -> None:
    signed = sign_receipt(RECEIPT, NORTH.signing_key)
    assert verify_receipt(signed, NORTH.identity, STUDY, CONTEXT) == RECEIPT
    assert parse_receipt(signed.body).to_bytes() == signed.body
    assert len(signed.body) < MAX_RECEIPT_BYTES
    longest = any_receipt(participant="n" * 64, dataset="d" * 64, unit="u" * 64, number=2**53 - 1, mechanism=replace(
        RECEIPT.mechanism, sensitivity=2**62, sampling_rate=1 / 3, steps=10**9))  # fmt: skip
    assert len(sign_receipt(longest, NORTH.signing_key).body) < MAX_RECEIPT_BYTES
    for each in (longest, any_receipt(participant="n", dataset="d", unit="u", round=1, attempt=1, number=1)):
        assert parse_receipt(each.to_bytes()) == each


@pytest.mark.parametrize("version", [1, 6])
def test_a_receipt_of_each_version_is_held_to_its_own_consent(version: int) -> None:
    """The former form committed to the consent alone: whose it is, and of which context, the present one says."""
    consent, other = bytes(range(32)), bytes(range(1, 33))
    proof = consent_proof(consent)
    commitment = hashlib.sha256(proof).digest() if version == 1 else consent_commitment(CONTEXT, "north", proof)
    receipt = replace(RECEIPT, version=version, consent=commitment)
    assert parse_receipt(receipt.to_bytes()) == receipt
    signed = sign_receipt(receipt, NORTH.signing_key)
    assert verify_receipt(signed, NORTH.identity, STUDY, CONTEXT, version) == receipt
    with pytest.raises(HostileInput, match="another version"):
        verify_receipt(signed, NORTH.identity, STUDY, CONTEXT, 7 - version)
    receipt.hold(consent)
    for wrong in (other, b"", consent[:-1], consent + b"\0", proof):
        with pytest.raises(HostileInput, match="is not the one that its receipt commits it to"):
            receipt.hold(wrong)
    for copied in (replace(receipt, participant="south"), replace(receipt, context=OTHER)):
        assert copied.commits_to(proof) is (version == 1)
    assert not replace(receipt, version=7 - version).commits_to(proof), "one form does not pass for the other"


@given(
    numbers=st.lists(st.integers(1, 2**53 - 1), min_size=1, max_size=5),
    digests=st.lists(st.binary(min_size=32, max_size=32), min_size=3, max_size=3, unique=True),
    entry=st.integers(1, 2**53 - 1),
)
def test_what_is_shown_of_receipts_makes_the_signed_bytes_again(numbers: list[int], digests: list[bytes], entry: int) -> None:
    payload, head, consent = digests
    names = [f"site-{place}" for place in range(len(numbers))]
    common = replace(RECEIPT, payload=payload, head=head, consent=consent)
    receipts = [
        SignedReceipt(replace(common, participant=name, number=number).to_bytes(), name.encode())
        for name, number in zip(names, numbers, strict=True)
    ]
    said = replace(WORD, round=RECEIPT.round, attempt=RECEIPT.attempt, entry=entry, head=head)
    word = countersign(replace(said, receipts=receipts_digest(receipts)), CENTRE.signing_key)
    parts = [part_of_receipt(item) for item in receipts]
    for own in receipts:
        whole = whole_receipts(tuple(parts), parse_receipt(own.body), tuple(names))
        assert list(whole) == receipts
        assert [item.read() for item in whole] == [parse_receipt(item.body) for item in receipts]
        assert whole_word(part_of_word(word), parse_receipt(own.body), WORD.coordinator, whole) == word


@pytest.mark.parametrize("names", [[], ["north"], ["north", "south", "west"]])
def test_a_part_of_each_member_is_shown(names: list[str]) -> None:
    with pytest.raises(HostileInput, match="exactly one receipt"):
        whole_receipts((part_of_receipt(sign_receipt(RECEIPT, NORTH.signing_key)),) * 2, RECEIPT, tuple(names))


def test_a_receipt_that_nobody_would_read_is_not_written_again() -> None:
    part = part_of_receipt(sign_receipt(RECEIPT, NORTH.signing_key))
    with pytest.raises(HostileInput, match="larger than allowed"):
        whole_receipts((part,), RECEIPT, ("n" * MAX_RECEIPT_BYTES,))


def test_no_receipt_is_longer_than_what_is_parsed_at_all() -> None:
    """Names of characters that are written with six bytes each, and the largest numbers, are the longest there are."""
    most, name = 2**53 - 1, "\1" * 64
    mechanism = Mechanism(2**62, NoisePlan("distributed", 2**96, 2**92 - 1, most), 1 / 3, 10**9)
    numbers = dict.fromkeys(("round", "attempt", "number", "cohort_size"), most)
    longest = any_receipt(participant=name, dataset=name, unit=name, mechanism=mechanism, **numbers)
    assert parse_receipt(longest.to_bytes()) == longest
    for parse in (parse_receipt, parse_countersignature):
        with pytest.raises(HostileInput, match="larger than allowed"):
            parse(b" " * 2049)
        with pytest.raises(HostileInput, match="canonical"):
            parse(b" " * 2048)


def test_a_receipt_books_the_release_that_it_is_about() -> None:
    release = make_reservation()
    receipt = any_receipt(release.study, context=release.context)
    assert receipt.reservation("heart") == release
    with pytest.raises(Misuse):
        replace(receipt, cohort_size=3).reservation("heart")


def test_a_receipt_for_anything_else_is_refused() -> None:
    signed = sign_receipt(RECEIPT, NORTH.signing_key)
    for case, signer, study, context in (
        (signed, NORTH, OTHER, CONTEXT),
        (signed, NORTH, STUDY, OTHER),
        (signed, SOUTH, STUDY, CONTEXT),
        (sign_receipt(RECEIPT, SOUTH.signing_key), NORTH, STUDY, CONTEXT),
        (sign_receipt(RECEIPT, SOUTH.signing_key), SOUTH, STUDY, CONTEXT),  # south signs that it is north
        (replace(signed, body=replace(RECEIPT, number=8).to_bytes()), NORTH, STUDY, CONTEXT),
        (replace(signed, signature=b""), NORTH, STUDY, CONTEXT),
        *(
            (SignedReceipt(signed.body, NORTH.signing_key.sign(label, signed.body)), NORTH, STUDY, CONTEXT)
            for label in set(Label) - {Label.RECEIPT}
        ),
    ):
        with pytest.raises(HostileInput):
            verify_receipt(case, signer.identity, study, context)


EVENT = json.loads(RECEIPT.to_bytes())["event"]


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2}, {"v": "1"}, {"v": None}, {"v": True}, {"study": "00"}, {"study": 1}, {"study": None}, {"participant": 3},
        {"participant": ""}, {"participant": "n" * 65}, {"context": "zz" * 32}, {"context": "AB" * 32}, {"payload": "00" * 31},
        {"head": "00" * 33}, {"head": [1]}, {"number": 0}, {"number": -1}, {"number": "7"}, {"number": True},
        {"number": None}, {"number": 2**53}, {"round": 0}, {"attempt": 0}, {"cohort_size": 0}, {"colluders": 0},
        {"more": 1}, {"dataset": ""}, {"dataset": None}, {"unit": 5}, {"event": None}, {"event": []},
        {"event": EVENT | {"steps": 0}}, {"event": EVENT | {"honest": 2}}, {"event": EVENT | {"extra": 1}},
        {"event": EVENT | {"sampling_rate": "nan"}}, {"event": EVENT | {"sampling_rate": "0x1p0"}},
        {"event": EVENT | {"variance": [16000000]}}, {"event": {}},
    ],
)  # fmt: skip
def test_malformed_receipts_are_refused(change: dict[str, Any]) -> None:
    right = json.loads(RECEIPT.to_bytes())
    assert parse_receipt(canonical(right)) == RECEIPT
    with pytest.raises(HostileInput):
        parse_receipt(canonical(right | change))


@pytest.mark.parametrize("name", sorted(json.loads(RECEIPT.to_bytes())))
def test_a_receipt_lacks_nothing(name: str) -> None:
    right = json.loads(RECEIPT.to_bytes())
    del right[name]
    with pytest.raises(HostileInput):
        parse_receipt(canonical(right))


@pytest.mark.parametrize("number", ["0", "-1", "9007199254740992", "7.0", "1e3", "true"])
def test_numbers_are_whole_positive_and_canonical(number: str) -> None:
    for parse, right, name in ((parse_receipt, RECEIPT, "number"), (parse_countersignature, WORD, "entry")):
        body = replace(right, **{name: 77777}).to_bytes()  # type: ignore[type-var]
        assert getattr(parse(body), name) == 77777
        with pytest.raises(HostileInput):
            parse(body.replace(b"77777", number.encode()))


WORD = Countersignature(STUDY, COORDINATOR, 1, 2, CONTEXT, OTHER, 5, HEAD)


def test_words_survive_their_bytes_and_another_key() -> None:
    for word in (WORD, replace(WORD, coordinator="c" * 64, round=2**53 - 1), replace(WORD, coordinator="c", entry=1)):
        assert parse_countersignature(word.to_bytes()) == word
    renewed = credentials_of(COORDINATOR, role=Role.COORDINATOR, secret=2)
    receipts = [sign_receipt(RECEIPT, NORTH.signing_key)]
    signed = countersign(replace(WORD, receipts=receipts_digest(receipts)), CENTRE.signing_key)
    again = countersign_again(signed, renewed.signing_key)
    assert again.body == signed.body
    for each, signer in ((signed, CENTRE), (again, renewed)):
        assert verify_countersignature(each, signer.identity, STUDY, CONTEXT, receipts).entry == WORD.entry


@pytest.mark.parametrize("name", sorted(json.loads(WORD.to_bytes())))
def test_a_countersignature_lacks_nothing(name: str) -> None:
    right = json.loads(WORD.to_bytes())
    del right[name]
    with pytest.raises(HostileInput, match="exactly the fields"):
        parse_countersignature(canonical(right))


def test_what_is_of_no_or_another_version() -> None:
    for parse, right in ((parse_receipt, RECEIPT), (parse_countersignature, WORD)):
        known = json.loads(right.to_bytes())
        for value in (5, None, "v", [], [["v"]], sorted(known), known | {"v": 2}, known | {"v": "1"}):
            with pytest.raises(HostileInput, match="exactly the fields"):
                parse(canonical(value))


def test_a_countersignature_covers_the_receipts_in_their_order() -> None:
    receipts = [sign_receipt(any_receipt(STUDY, name, context=CONTEXT), NORTH.signing_key) for name in ("north", "south")]
    word = replace(WORD, receipts=receipts_digest(receipts))
    signed = countersign(word, CENTRE.signing_key)
    assert verify_countersignature(signed, CENTRE.identity, STUDY, CONTEXT, receipts) == word
    again = sign_receipt(any_receipt(STUDY, "north", context=CONTEXT), NORTH.signing_key)
    assert verify_countersignature(signed, CENTRE.identity, STUDY, CONTEXT, [again, receipts[1]]) == word, (
        "another signature of the same words is not another receipt"
    )
    for changed in ([receipts[1], receipts[0]], receipts[:1], [*receipts, receipts[0]], []):
        with pytest.raises(HostileInput, match="different receipts"):
            verify_countersignature(signed, CENTRE.identity, STUDY, CONTEXT, changed)
    for study, context, signer in ((OTHER, CONTEXT, CENTRE), (STUDY, OTHER, CENTRE), (STUDY, CONTEXT, NORTH)):
        with pytest.raises(HostileInput):
            verify_countersignature(signed, signer.identity, study, context, receipts)
    by_another = countersign(replace(word, coordinator="north"), CENTRE.signing_key)
    with pytest.raises(HostileInput, match="names a coordinator other"):
        verify_countersignature(by_another, CENTRE.identity, STUDY, CONTEXT, receipts)
    wrong = SignedReceipt(signed.body, CENTRE.signing_key.sign(Label.RECEIPT, signed.body))
    with pytest.raises(HostileInput, match="signature"):
        verify_countersignature(wrong, CENTRE.identity, STUDY, CONTEXT, receipts)


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2}, {"v": True}, {"study": "00"}, {"context": None}, {"receipts": "zz" * 32}, {"head": "AB" * 32}, {"entry": 0},
        {"entry": "5"}, {"round": True}, {"attempt": -1}, {"coordinator": ""}, {"coordinator": 5}, {"more": 1},
        {"coordinator": "c" * 65}, {"study": "00" * 33}, {"receipts": 1}, {"coordinator": ["c"]},
    ],
)  # fmt: skip
def test_malformed_countersignatures_are_refused(change: dict[str, Any]) -> None:
    right = json.loads(WORD.to_bytes())
    assert parse_countersignature(canonical(right)) == WORD
    with pytest.raises(HostileInput):
        parse_countersignature(canonical(right | change))


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | st.just(b" " * (MAX_RECEIPT_BYTES + 1)))
def test_any_bytes_parse_or_are_refused(data: bytes) -> None:
    for parse in (parse_receipt, parse_countersignature):
        with pytest.raises(HostileInput):
            parse(data)
