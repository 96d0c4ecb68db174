"""A decryptor's signed word: for this context, the sum opened to exactly these words.

The words still bear the cohort's self-masks. Released values and consents give them again to the bit
(:func:`.contribution.masked_sum`), so a signature over their digest is one over the values, for whoever checks it later. The
digest of the dealt keys stands in the statement because it is the one part of a context that nobody without keys can compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, SigningKey, verify
from veilsum_privacy.securesum.contribution import Slots
from veilsum_privacy.securesum.frames import numbers_from_bytes, numbers_to_bytes

MAX_STATEMENT_BYTES = 1024

_FIELDS = {"v", "study", "participant", "round", "attempt", "context", "keys", "words"}


@dataclass(frozen=True)
class Statement:
    """What a decryptor signs.

    Attributes:
        study: digest of the study.
        participant: the signer's name.
        round, attempt: which sum.
        context: digest c of the attempt.
        keys: digest of the dealt keys, which is a part of the context.
        words: :func:`words_digest` of the decrypted words.
    """

    study: bytes
    participant: str
    round: int
    attempt: int
    context: bytes
    keys: bytes = field(repr=False)
    words: bytes

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical({"v": 1, **vars(self)})


@dataclass(frozen=True)
class SignedStatement:
    """The exact bytes of a statement with their signature."""

    body: bytes
    signature: bytes


def words_digest(words: Iterable[Slots]) -> bytes:
    """SHA-256 over the decrypted words of all ciphertexts in order, little-endian 64-bit (32 bytes)."""
    state = hashlib.sha256(b"veilsum/1/decrypted-words")
    for part in words:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part.astype(np.dtype("<u8"), copy=False).tobytes())
    return state.digest()


WORD_BYTES = 6
"""Bytes of a word on the wire: every plain modulus is below 2^48."""


def words_to_bytes(words: Slots) -> bytes:
    """Words below 2^48 as they travel, little-endian, :data:`WORD_BYTES` each."""
    return numbers_to_bytes(words, WORD_BYTES)


def words_from_bytes(data: bytes) -> Slots:
    """The words of :func:`words_to_bytes`; of a length that is a multiple of :data:`WORD_BYTES`."""
    return numbers_from_bytes(data, WORD_BYTES)


def sign_statement(statement: Statement, key: SigningKey) -> SignedStatement:
    """Sign for what a sum opened to."""
    body = statement.to_bytes()
    return SignedStatement(body, key.sign(Label.DECRYPTION, body))


def parse_statement(body: bytes) -> Statement:
    """Parse a statement's bytes; says nothing about who signed them.

    Raises:
        HostileInput: malformed.
    """
    if len(body) > MAX_STATEMENT_BYTES:
        raise HostileInput("The decryption statement is larger than allowed.")
    value = parse_canonical(body, what="decryption statement")
    if not isinstance(value, dict) or set(value) != _FIELDS or value["v"] != 1:
        raise HostileInput("The decryption statement does not have exactly the fields of version 1.")
    try:
        study, context, keys, words = (bytes.fromhex(value[name]) for name in ("study", "context", "keys", "words"))
    except (TypeError, ValueError) as error:
        raise HostileInput("A digest in the decryption statement is not hexadecimal.") from error
    numbers, name = (value["round"], value["attempt"]), value["participant"]
    # what has a canonical form is below 2^53
    if any(type(number) is not int or number < 1 for number in numbers) or not isinstance(name, str):
        raise HostileInput("A number or name in the decryption statement is malformed.")
    statement = Statement(study, name, *numbers, context, keys, words)
    if statement.to_bytes() != body or {len(item) for item in (study, context, keys, words)} != {32}:
        raise HostileInput("The decryption statement encodes a value differently than version 1 does.")
    return statement


def verify_statement(signed: SignedStatement, signer: Identity, expected: Statement) -> None:
    """Verify that ``signer`` said exactly ``expected``.

    Raises:
        HostileInput: it said something else, or the signature is wrong.
    """
    verify(signer.public_key, Label.DECRYPTION, signed.body, signed.signature)
    if expected.participant != signer.name or signed.body != expected.to_bytes():
        raise HostileInput(
            "The decryption statement is for a different study, round, context, keys or words than were decrypted."
        )
