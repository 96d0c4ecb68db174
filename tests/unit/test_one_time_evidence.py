"""Evidence of a sum: whatever is changed in it is refused, it comes back from its files, and its bytes are fixed for ever."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.one_time import STUDY, Members, Played, identity, make_members, play, said_in, signing_key, some_vectors
from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Label, Role
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.results.proof_files import ReleaseProof
from veilsum_privacy.results.sum_evidence import Evidence, Held
from veilsum_privacy.results.whole_sums import total_from_bytes, total_to_bytes, verify_evidence
from veilsum_privacy.securesum.check_words import (
    CHECK_BITS,
    CHECKS,
    Signed,
    SumStatement,
    answer_words,
    checks_digest,
    consent_statement,
    products,
)
from veilsum_privacy.securesum.products import common_polynomials
from veilsum_privacy.securesum.ring import KEY_VARIANCE, RING_2048, RING_4096, RINGS, RingParameters
from veilsum_privacy.securesum.rounding import gaussian_rounding
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream, derived_key

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "one-time-keys.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def played() -> Played:
    members = make_members(3, size=40, bound=10**6, variance=Fraction(10**6))
    return play(members, some_vectors(members))


def verified(played: Played, found: Evidence, **changes: Any) -> list[int]:
    members: Members = played.members
    asked: dict[str, Any] = {
        "plan": members.plan, "study": STUDY, "context": members.context, "cohort": members.identities,
        "coordinator": members.coordinator,
    }  # fmt: skip
    asked |= changes
    held = Held(found, *(asked.pop(name) for name in ("cohort", "study", "context")))
    return verify_evidence(held, **asked).tolist()


def test_honest_evidence_gives_the_sum(played: Played) -> None:
    assert verified(played, played.evidence) == played.exact.tolist()


@given(
    st.integers(2, 7),
    st.integers(1, 300),
    st.integers(1, 1 << 24),
    st.integers(0, 1 << 30),
    st.sampled_from(RINGS),
    st.sampled_from(["any", "largest", "smallest", "zero"]),
    st.integers(0, 2**32),
)
@settings(max_examples=30)
def test_whatever_members_hold_the_sum_is_exact(
    count: int, size: int, bound: int, variance: int, ring: RingParameters, kind: str, seed: int
) -> None:
    try:
        members = make_members(count, size, bound, ring, seed, Fraction(variance))
    except Misuse:
        return  # a sum that reaches further than a word
    ends = {"largest": bound, "smallest": -bound, "zero": 0}
    vectors = [np.full(size, ends[kind])] * count if kind in ends else some_vectors(members, seed)
    one = play(members, vectors)
    assert verified(one, one.evidence) == one.exact.tolist()
    assert len(one.evidence.total) == members.plan.payload_bytes


def at(parts: tuple[Any, ...], place: int, item: Any) -> tuple[Any, ...]:
    return (*parts[:place], item, *parts[place + 1 :])


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def test_whatever_is_changed_is_refused(played: Played) -> None:
    members, honest = played.members, played.evidence
    strangers = make_members(3, size=40, bound=10**6, variance=Fraction(10**6), seed=2)
    other = play(strangers, some_vectors(strangers))
    for place in range(3):
        for field in ("receipts", "checks", "consents", "agreed"):
            parts = getattr(honest, field)
            for changed in (parts[:place] + parts[place + 1 :], (*parts, parts[place]), at(parts, place, parts[place - 1])):
                with pytest.raises(HostileInput):
                    verified(played, replace(honest, **{field: changed}))
            with pytest.raises(HostileInput):
                verified(played, replace(honest, **{field: at(parts, place, getattr(other.evidence, field)[place])}))
        receipt = honest.receipts[place]
        for body, signature in ((receipt.body, flipped(receipt.signature, 9)), (flipped(receipt.body, 80), receipt.signature)):
            with pytest.raises(HostileInput):
                verified(played, replace(honest, receipts=at(honest.receipts, place, SignedReceipt(body, signature))))
        said = said_in(honest.checks[place])
        for change in (
            {"words": (said.words[0] ^ 1, *said.words[1:])}, {"challenge": bytes(32)}, {"sum": bytes(32)}, {"round": 2},
            {"attempt": 2}, {"study": bytes(32)}, {"context": bytes(32)},
        ):  # fmt: skip
            with pytest.raises(HostileInput):
                verified(played, replace(honest, checks=at(honest.checks, place, replace(said, **change).to_bytes())))
    for word in (other.evidence.fixed, Signed(honest.fixed.body, flipped(honest.fixed.signature, 9))):
        with pytest.raises(HostileInput):
            verified(played, replace(honest, fixed=word))
    fixed = SumStatement(STUDY, "site-00", 1, 1, members.context, said_in(honest.checks[0]).sum)
    with pytest.raises(HostileInput, match="another sum"):
        verified(played, replace(honest, fixed=fixed.sign(signing_key("site-00"))))
    mine = honest.fixed.body
    with pytest.raises(HostileInput, match="signature"):  # under a label of another purpose
        verified(played, replace(honest, fixed=Signed(mine, signing_key("coordinator").sign(Label.CONSENT, mine))))
    with pytest.raises(HostileInput):
        verified(played, replace(honest, total=other.evidence.total))


def test_evidence_is_of_one_study_context_cohort_and_coordinator(played: Played) -> None:
    members, honest = played.members, played.evidence
    cohort = members.identities
    wrong = identity("site-02", signing_key("somebody else"))
    for changes in (
        {"study": bytes(32)},
        {"context": bytes(32)},
        {"cohort": cohort[::-1]},
        {"cohort": cohort[:2]},
        {"cohort": (*cohort[:2], wrong)},
        {"coordinator": identity("coordinator", signing_key("somebody else"), Role.COORDINATOR)},
        {"coordinator": identity("another", signing_key("coordinator"), Role.COORDINATOR)},
        {"plan": make_members(4, size=40, bound=10**6, variance=Fraction(10**6)).plan},
        {"plan": make_members(3, size=41, bound=10**6, variance=Fraction(10**6)).plan},
        {"plan": make_members(3, size=40, bound=10**6, variance=Fraction(10**6), ring=RING_4096).plan},
    ):
        with pytest.raises(HostileInput):
            verified(played, honest, **changes)


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=60)
def test_a_sum_with_one_other_byte_is_refused(played: Played, place: int, change: int) -> None:
    honest = played.evidence
    place %= len(honest.total)
    total = honest.total[:place] + bytes([honest.total[place] ^ change]) + honest.total[place + 1 :]
    with pytest.raises(HostileInput):
        verified(played, replace(honest, total=total))


def test_nothing_secret_is_shown(played: Played) -> None:
    """What stands in a log or in a traceback: no consent, no words, no numbers of a contribution."""
    honest = played.evidence
    said = said_in(honest.checks[0])
    assert all(repr(secret) not in repr(honest) for secret in (honest.total, *honest.consents))
    assert all(str(word) not in repr(said) for word in said.words)
    assert "object at" not in repr(played.sent[0])
    assert repr(played.sent[0]) == "Sent(contribution=Contribution())"
    assert repr(played.total) == "Contribution()"


def test_sums_of_other_sizes_are_refused(played: Played) -> None:
    plan, total = played.members.plan, played.evidence.total
    again = total_from_bytes(total, plan)
    assert total_to_bytes(again, plan) == total
    for bad in (b"", total[:-1], total + b"\0"):
        with pytest.raises(HostileInput, match="bytes instead of"):
            total_from_bytes(bad, plan)


def test_a_proof_comes_back_from_its_files(played: Played) -> None:
    honest = played.evidence  # signed anew each time, and no two ECDSA signatures are alike
    shown = ReleaseProof(
        b'{"v":1}', honest.receipts, honest.receipts[0], b"certificate", honest.fixed, honest.checks, honest.consents,
        honest.agreed, honest.total,
    )  # fmt: skip
    statements = shown.to_bytes()
    assert ReleaseProof.parse(statements, shown.total) == shown
    assert shown.evidence == honest
    assert honest.total.hex() not in statements.decode()
    value = json.loads(statements)
    for name in value:
        for bad in (None, 7, *(("zz",) if name != "assignment" else ()), [["a"]], [1], {}):
            changed = value | {name: bad}
            with pytest.raises(HostileInput):
                ReleaseProof.parse(json.dumps(changed, sort_keys=True, separators=(",", ":")).encode(), shown.total)
        without = {key: item for key, item in value.items() if key != name}
        for other in (without, value | {"more": 1}):
            with pytest.raises(HostileInput):
                ReleaseProof.parse(json.dumps(other, sort_keys=True, separators=(",", ":")).encode(), shown.total)
    for data in (b"", b"[]", b"{}", statements + b" ", b"\xff"):
        with pytest.raises(HostileInput):
            ReleaseProof.parse(data, shown.total)


def test_malformed_answers_are_refused(played: Played) -> None:
    """Words that are none of an answer by themselves; all else because it is not what its member must have signed."""
    honest, t = played.evidence, RING_2048.plain_modulus
    body, value = honest.checks[0], json.loads(honest.checks[0])
    assert answer_words(body, t) == tuple(value["words"])

    def other(**change: Any) -> bytes:
        return json.dumps(value | change, sort_keys=True, separators=(",", ":")).encode()

    for words in ([0, 0], [0, 0, 0, 0], [0, 0, t], [0, 0, -1], [0, 0, True], "abc", 5, None, ["0", "0", "0"]):
        with pytest.raises(HostileInput, match="words below"):
            answer_words(other(words=words), t)
    for data in (b"", b"null", b"[]", b"{}", body + b" "):
        with pytest.raises(HostileInput):
            answer_words(data, t)
    for change in (
        {"v": 1}, {"challenge": "00"}, {"sum": "x"}, {"context": 5}, {"study": value["study"].upper()}, {"round": 0},
        {"attempt": True}, {"participant": 3}, {"participant": "a" * 3000}, {"participant": "site-01"}, {"more": 1},
    ):  # fmt: skip
        with pytest.raises(HostileInput, match="challenge about another sum"):
            verified(played, replace(honest, checks=at(honest.checks, 0, other(**change))))


# -- fixed bytes -------------------------------------------------------------------------------------------------------


def own_hkdf(secret: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256 and no salt, one block."""
    return hmac.digest(hmac.digest(bytes(32), secret, "sha256"), info + b"\x01", "sha256")


@pytest.mark.parametrize("purpose", list(StreamPurpose))
def test_streams_are_those_of_the_protocol(purpose: StreamPurpose) -> None:
    """Each key by HKDF of our own, each block by the cipher's block function with a counter of our own."""
    secret, context, more = bytes(range(32)), bytes(range(32, 64)), b"\x07"
    parts = (b"veilsum/6/" + purpose.encode(), context, more)
    key = own_hkdf(secret, b"".join(len(part).to_bytes(4, "big") + part for part in parts))
    assert derived_key(secret, purpose, context, more) == key
    if purpose in (StreamPurpose.PAIR_DATA, StreamPurpose.SELF_DATA):
        blocks = b"".join(
            Cipher(algorithms.ChaCha20(key, number.to_bytes(4, "little") + bytes(12)), None).encryptor().update(bytes(64))
            for number in range(40)
        )
    else:
        counters = b"".join(number.to_bytes(16, "big") for number in range(160))
        blocks = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counters)  # noqa: S305 - one block at a time
    for bound, size in ((549755813869, 8), (1 << 9, 2), (1 << 28, 4), (3, 8)):
        numbers = [int.from_bytes(blocks[i : i + size], "little") for i in range(0, len(blocks), size)]
        cut = [number & ((1 << (bound - 1).bit_length()) - 1) for number in numbers]
        expected = [number for number in cut if number < bound][:100]
        assert WordStream(secret, purpose, context, more, bound=bound).take(100).tolist() == expected


def fixed_bytes() -> dict[str, str]:
    """Digests of everything that members agree on, of one round with known randomness."""

    def short(data: bytes) -> str:
        return hashlib.sha256(data).hexdigest()

    found = {}
    for name, ring in (("2048", RING_2048), ("4096", RING_4096)):
        members = make_members(3, size=4100, bound=1000, ring=ring, seed=77)
        played = play(members, some_vectors(members))
        said = said_in(played.evidence.checks[1])
        statements = [json.loads(body) for body in (played.fixed[1].body, *played.evidence.checks)]
        found |= {
            f"{name} common": short(common_polynomials(members.context, ring, 1, 1).astype("<u8").tobytes()),
            f"{name} words": short(played.sent[1].words.astype("<u8").tobytes()),
            f"{name} contribution": short(total_to_bytes(played.sent[1].contribution, members.plan)),
            f"{name} sum": played.fixed[0].hex(),
            f"{name} challenge": played.rho.hex(),
            f"{name} products": short(repr(products(played.sent[1].words, members.context, played.rho)).encode()),
            f"{name} statements": short(json.dumps(statements, sort_keys=True).encode()),
            f"{name} agreed": short(consent_statement(said, checks_digest(played.evidence.checks)).to_bytes()),
            f"{name} receipt": short(played.receipts[2].body),
            f"{name} consents": short(b"".join(members.consents)),
            f"{name} released": short(played.exact.astype("<i8").tobytes()),
        }
    return found


def test_bytes_are_what_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """``tests/data/one-time-keys.json``: what changes here parts old sites from new ones, and needs a new version."""

    def as_drawn_then(ring: RingParameters, source: SeededRandom) -> NDArray[np.int64]:
        """Another use of the same source: nobody but its owner knows how a key was drawn."""
        return gaussian_rounding(np.zeros(ring.degree, dtype=np.uint64), ring.plain_modulus, Fraction(KEY_VARIANCE), source)

    monkeypatch.setattr("support.one_time.draw_key", as_drawn_then)
    assert fixed_bytes() == GOLDEN


@pytest.mark.parametrize("length", [1, 511, 513, 16384, 16385, 40000])
def test_a_challenge_meets_every_word_once(length: int) -> None:
    """Vectors of any length, in one piece or several, whose words are as large as they may be, against integers of Python."""
    words = np.random.default_rng(length).integers(0, 1 << 52, length, dtype=np.uint64)
    words[: length // 2] = (1 << 52) - 1
    context, rho = bytes(32), bytes(range(32))
    streams = [WordStream(rho, StreamPurpose.CHALLENGE, context, bytes([at]), bound=1 << CHECK_BITS) for at in range(CHECKS)]
    whole = [sum(r * word for r, word in zip(each.take(length).tolist(), words.tolist(), strict=True)) for each in streams]
    assert products(words, context, rho) == tuple(whole)
