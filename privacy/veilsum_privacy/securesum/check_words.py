"""Check words: what every member says about its own words once the sum stands fixed, and before anybody can open it.

The order is the point. The coordinator adds up and fixes the sum by its digest D; from D and all receipts follows the
challenge rho, and from rho three vectors r of 28-bit numbers. A member answers with <r, y> of its own masked words, under
masks that only cancel in the sum over the cohort, and under its consent's self-mask; then everyone signs for the whole list
of answers, with its consent and not before. So a sum that does not match what members said is refused by whoever holds the
evidence:

- A word that differs passes one vector with chance 2^-28 (t is prime, so the difference has an inverse), all three with 2^-84.
- One challenge for each context, ever: two of them, of one member, would tell <r - r', y> without a mask.
- The list is signed with the consent. Were only the answers signed, each by its sender, a member that lies could sign a second
  answer once the others' consents have opened everything, and the list that is shown later would hold that one.

Argued in decision 109.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Words
from veilsum_node.canonical import canonical, digest, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, SigningKey, verify
from veilsum_privacy.securesum.key_shares import CHECK, MemberMasks, self_masks
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream

CHECKS = 3
"""Vectors of a challenge."""

CHECK_BITS = 28
"""Bits of a number of a challenge: three vectors leave a false sum a chance of 2^-84."""

_BLOCK = 1 << 14
_SUMMED = 1 << 9  # 28-bit numbers times 26-bit halves, so many of them, stay below 2^63
_HALF = np.uint64(26)
_LOW = np.uint64((1 << 26) - 1)


def sum_digest(context: bytes, share: bytes, coefficients: bytes) -> bytes:
    """D: digest of a sum of contributions, of the digests of its key share and coefficients (32 bytes)."""
    return digest("veilsum/6/sum", context, share, coefficients)


def challenge(context: bytes, receipts: Sequence[bytes], fixed: bytes) -> bytes:
    """rho (32 bytes), of the receipts' statements in the cohort's order, without signatures, and D.

    ECDSA signatures are malleable: with them, whoever signs could try challenges without changing a word.
    """
    return digest("veilsum/6/check", context, digest("veilsum/6/receipts", *receipts), fixed)


def products(words: Words, context: bytes, rho: bytes) -> tuple[int, ...]:
    """<r, words> as integers, for each vector r of a challenge; words below 2^52."""
    streams = [
        WordStream(rho, StreamPurpose.CHALLENGE, context, bytes([number]), bound=1 << CHECK_BITS) for number in range(CHECKS)
    ]
    totals = [0] * CHECKS
    for start in range(0, len(words), _BLOCK):
        part = words[start : start + _BLOCK]
        halves = part & _LOW, part >> _HALF
        for number, stream in enumerate(streams):
            r = stream.take(len(part))
            totals[number] += _product(r, halves[0]) + (_product(r, halves[1]) << 26)
    return tuple(totals)


def _product(numbers: Words, halves: Words) -> int:
    return sum(np.add.reduceat(numbers * halves, np.arange(0, len(numbers), _SUMMED)).tolist())


def check_words(words: Words, modulus: int, rho: bytes, masks: MemberMasks) -> tuple[int, ...]:
    """A member's answer to a challenge: <r, y> mod t under pairwise masks and its self-mask, :data:`CHECKS` of them.

    A site gives one for each context, ever: it keeps D and the answer before they leave (:class:`Answered`).

    Args:
        words: y, the masked words that it sent.
        modulus: t.
        rho: the challenge.
        masks: of this member in this context.
    """
    pads = masks.all(CHECK, CHECKS, modulus, rho)
    return tuple(
        (product + int(pad)) % modulus for product, pad in zip(products(words, masks.context, rho), pads, strict=True)
    )


def verify_check_words(
    words: Words, modulus: int, context: bytes, rho: bytes, answers: Sequence[Sequence[int]], consents: Sequence[bytes]
) -> None:
    """Check opened words against all members' answers.

    Args:
        words: (n,) of the opened sum, the self-masks of the data still on.
        modulus: t.
        context: the digest c.
        rho: the challenge.
        answers: of every member, :data:`CHECKS` each.
        consents: of every member, held to its receipt before.

    Raises:
        HostileInput: the words are not the sum of what the members sent.
    """
    pads = self_masks(CHECK.own, context, consents, CHECKS, modulus, rho)
    for number, product in enumerate(products(words, context, rho)):
        said = sum(answer[number] for answer in answers) - int(pads[number])
        if (product - said) % modulus:
            raise HostileInput("The sum is not that of the contributions which its members vouched for.")


class CheckAnswer(NamedTuple):
    """A member's answer to a challenge as it travels: its check words, and its signature under the statement that holds them.

    The rest of the statement follows from the attempt. The words are under masks, and everybody is shown them.
    """

    words: tuple[int, ...]
    signature: bytes


@dataclass(frozen=True)
class Signed:
    """The exact bytes of a statement with their signature."""

    body: bytes
    signature: bytes


class _Statement:
    """What a party signs of a sum."""

    label: ClassVar[Label]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical({"v": 6, **vars(self)})

    def sign(self, key: SigningKey) -> Signed:
        body = self.to_bytes()
        return Signed(body, key.sign(self.label, body))


@dataclass(frozen=True)
class _OfMember(_Statement):
    """What a member signs; attributes as of :class:`~veilsum_privacy.ledger.receipts.Receipt`, and:

    Attributes:
        challenge: rho.
        sum: D.
    """

    study: bytes
    participant: str
    round: int
    attempt: int
    context: bytes
    challenge: bytes
    sum: bytes


@dataclass(frozen=True)
class CheckStatement(_OfMember):
    """What a member signs when it answers a challenge; ``words`` are its answer."""

    label = Label.CHECK
    words: tuple[int, ...] = field(repr=False)


@dataclass(frozen=True)
class ConsentStatement(_OfMember):
    """What a member signs with its consent: for which answers, of all members, it gives it; ``checks`` is their
    :func:`checks_digest` in the cohort's order."""

    label = Label.CONSENT
    checks: bytes


@dataclass(frozen=True)
class SumStatement(_Statement):
    """What the coordinator signs when it fixes a sum.

    Attributes:
        study, round, attempt, context, sum: as of :class:`CheckStatement`.
        coordinator: the signer's name.
    """

    label = Label.SUM
    study: bytes
    coordinator: str
    round: int
    attempt: int
    context: bytes
    sum: bytes


def checks_digest(bodies: Sequence[bytes]) -> bytes:
    """Digest of all members' answers in the cohort's order (32 bytes); over the bodies, for signatures are malleable."""
    return digest("veilsum/6/checks", *bodies)


def answer_words(body: bytes, modulus: int) -> tuple[int, ...]:
    """The words in an answer's bytes; whoever reads them knows all else that must stand there, and writes it again.

    Raises:
        HostileInput: malformed, or other words than a challenge has.
    """
    value = parse_canonical(body, what="answer")
    words = value.get("words") if isinstance(value, dict) else None
    return _words(words if isinstance(words, list) else (), modulus)


def _words(words: Sequence[Any], modulus: int) -> tuple[int, ...]:
    """The same words, if they are those of an answer."""
    if len(words) != CHECKS or any(type(word) is not int or not 0 <= word < modulus for word in words):
        raise HostileInput(f"An answer has {CHECKS} words below the study's modulus.")
    return tuple(words)


def verify_sum(signed: Signed, signer: Identity, expected: SumStatement) -> None:
    """Verify that a coordinator fixed exactly this sum.

    Raises:
        HostileInput: it said something else, or the signature is wrong.
    """
    if signed.body != expected.to_bytes() or expected.coordinator != signer.name:
        raise HostileInput("The coordinator's word is about another sum.")
    verify(signer.public_key, Label.SUM, signed.body, signed.signature)


def verify_answer(asked: CheckStatement, member: Identity, answer: CheckAnswer, modulus: int) -> bytes:
    """Verify that a member gave this answer to the challenge that ``asked`` names; returns what it signed.

    Args:
        asked: a statement about the challenge; whose it is and its words do not matter.
        member: who answers.
        answer: as it travels.
        modulus: t.

    Raises:
        HostileInput: other words than a challenge has, or they were not signed as an answer to this one.
    """
    body = replace(asked, participant=member.name, words=_words(answer.words, modulus)).to_bytes()
    verify(member.public_key, Label.CHECK, body, answer.signature)
    return body


def verify_answers(
    own: Signed, asked: CheckStatement, cohort: Sequence[Identity], answers: Sequence[CheckAnswer], modulus: int
) -> list[bytes]:
    """Before anyone is charged: every member of the cohort answered the challenge that this member did, its own answer stands
    among them as it was given, and every signature is right.

    Args:
        own: this member's answer, as it was kept.
        asked, modulus: as of :func:`verify_answer`.
        cohort: the members.
        answers: of all, in the cohort's order.

    Returns:
        What each signed.

    Raises:
        HostileInput: something does not hold.
    """
    if len(answers) != len(cohort):
        raise HostileInput("There is not exactly one answer for each member of the cohort.")
    said = [verify_answer(asked, member, answer, modulus) for member, answer in zip(cohort, answers, strict=True)]
    if own.body not in said:
        raise HostileInput("This member's own answer is another one.")
    return said


def consent_statement(own: CheckStatement, checks: bytes) -> ConsentStatement:
    """What a member signs with its consent, of its own answer and the digest of all answers."""
    return ConsentStatement(own.study, own.participant, own.round, own.attempt, own.context, own.challenge, own.sum, checks)


@dataclass(frozen=True)
class Answered:
    """What a site keeps of the challenge that it answered for a context, before the answer leaves.

    Attributes:
        sum: D.
        challenge: rho.
        answer: as signed.
    """

    sum: bytes
    challenge: bytes
    answer: Signed

    def again(self, rho: bytes, fixed: bytes) -> Signed | None:
        """The same answer once more; None to another question about the same context: the attempt must be given up."""
        same = hmac.compare_digest(rho, self.challenge) and hmac.compare_digest(fixed, self.sum)
        return self.answer if same else None
