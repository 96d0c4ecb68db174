"""The files of a proof: canonical JSON, in which nothing can be written in two ways.

Signed bodies stand in it as the text that was signed, signatures, keys and certificates (DER) as hexadecimal digits, released
integers in as few bytes each as the largest one needs, as base64.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import begin_digest, canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.roster import Enrolment

FOLDER = "proof"
STUDY_FILE = f"{FOLDER}/study.json"

_ROUND_FILE = re.compile(rf"{FOLDER}/round-(\d{{6,15}})\.json")


def round_file(number: int) -> str:
    """The file of a round's release, below the result's directory."""
    return f"{FOLDER}/round-{number:06d}.json"


def round_of(name: str) -> int | None:
    """The round whose file has this name; None for any other name."""
    found = _ROUND_FILE.fullmatch(name)
    number = 0 if found is None else int(found[1])
    return number if number and round_file(number) == name else None


def release_digest(study: bytes, number: int, attempt: int, values: bytes | memoryview) -> bytes:
    """Digest of a release (32 bytes); ``values`` are the opened sum's integers, little-endian int64."""
    state = begin_release_digest(study, number, attempt, len(values))
    state.update(values)
    return state.digest()


def begin_release_digest(study: bytes, number: int, attempt: int, size: int) -> hashlib._Hash:
    """The state of :func:`release_digest` before the values' ``size`` bytes, which are then added piece by piece."""
    return begin_digest("veilsum/1/release", study, number.to_bytes(8, "big"), attempt.to_bytes(8, "big"), last=size)


@dataclass(frozen=True)
class ReleaseEntry:
    """What a result's manifest says of a release that it was made of.

    Attributes:
        round: its number.
        label: of the task.
        digest: :func:`release_digest`.
        decrypted_by: each decryptor's signature on what it decrypted, by its name.
    """

    round: int
    label: str
    digest: bytes
    decrypted_by: Mapping[str, bytes]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        signatures = {name: signature.hex() for name, signature in self.decrypted_by.items()}
        return {"round": self.round, "label": self.label, "digest": self.digest.hex(), "decrypted_by": signatures}

    @classmethod
    def parse(cls, value: Any) -> ReleaseEntry:
        """Read an entry.

        Raises:
            HostileInput: malformed, or written in another way than :meth:`to_json` does.
        """
        try:
            signatures = {str(name): bytes.fromhex(text) for name, text in value["decrypted_by"].items()}
            entry = cls(value["round"], value["label"], bytes.fromhex(value["digest"]), signatures)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("A release in it is malformed.") from error
        if type(entry.round) is not int or not isinstance(entry.label, str) or entry.to_json() != value:
            raise HostileInput("A release in it is malformed.")
        return entry


@dataclass(frozen=True)
class StudyProof:
    """The signed study and its roster.

    Attributes:
        study: the exact bytes that the analyst signed.
        signature: the analyst's.
        analyst: its certificate, DER.
        enrolments: of the roster, in its order.
    """

    study: bytes
    signature: bytes
    analyst: bytes
    enrolments: tuple[Enrolment, ...]

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        roster = [[item.certificate, item.body.decode(), item.signature] for item in self.enrolments]
        return canonical(
            {"v": 1, "study": self.study.decode(), "signature": self.signature, "analyst": self.analyst, "roster": roster}
        )

    @classmethod
    def parse(cls, data: bytes) -> StudyProof:
        """Parse the file; nothing of it is verified.

        Raises:
            HostileInput: malformed.
        """
        value = parse_canonical(data, what="file")
        try:
            roster = tuple(
                Enrolment(bytes.fromhex(certificate), body.encode(), bytes.fromhex(signature))
                for certificate, body, signature in value["roster"]
            )
            signed = bytes.fromhex(value["signature"]), bytes.fromhex(value["analyst"])
            return _exactly(cls(value["study"].encode(), *signed, roster), data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("It is malformed.") from error


@dataclass(frozen=True)
class ReleaseProof:
    """What shows that one release was opened as it should.

    Attributes:
        assignment: canonical JSON.
        keys: digest of the dealt keys.
        receipts: of the cohort, in its order.
        countersigned: the coordinator's word on them.
        coordinator: its certificate, DER.
        consents: of the cohort, in its order.
        values: (size,) the released sum in grid units.
    """

    assignment: bytes
    keys: bytes = field(repr=False)
    receipts: tuple[SignedReceipt, ...]
    countersigned: SignedReceipt
    coordinator: bytes
    consents: tuple[bytes, ...] = field(repr=False)
    values: Integers = field(repr=False)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return canonical(
            {
                "v": 1,
                "assignment": self.assignment.decode(),
                "keys": self.keys,
                "receipts": [_signed(item) for item in self.receipts],
                "countersigned": _signed(self.countersigned),
                "coordinator": self.coordinator,
                "consents": self.consents,
                "size": len(self.values),
                "values": base64.b64encode(_narrow(self.values)).decode(),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> ReleaseProof:
        """Parse the file; nothing of it is verified.

        Raises:
            HostileInput: malformed.
        """
        value = parse_canonical(data, what="file")
        try:
            proof = cls(
                value["assignment"].encode(),
                bytes.fromhex(value["keys"]),
                tuple(_receipt(item) for item in value["receipts"]),
                _receipt(value["countersigned"]),
                bytes.fromhex(value["coordinator"]),
                tuple(bytes.fromhex(item) for item in value["consents"]),
                _widened(base64.b64decode(value["values"], validate=True), value["size"]),
            )
            return _exactly(proof, data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("It is malformed.") from error


Proof = TypeVar("Proof", StudyProof, ReleaseProof)


def _exactly(proof: Proof, data: bytes) -> Proof:
    if proof.to_bytes() != data:
        raise ValueError("not in canonical form")
    return proof


def _signed(item: SignedReceipt) -> Sequence[str]:
    return [item.body.decode(), item.signature.hex()]


def _receipt(value: Sequence[str]) -> SignedReceipt:
    body, signature = value
    return SignedReceipt(body.encode(), bytes.fromhex(signature))


def _narrow(values: Integers) -> bytes:
    """Little-endian two's complement in as few bytes a value as the largest one needs."""
    ends = int(values.min(initial=0)), int(values.max(initial=0))
    width = next(width for width in range(1, 9) if -(1 << 8 * width - 1) <= ends[0] and ends[1] < 1 << 8 * width - 1)
    return np.ascontiguousarray(values, dtype="<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _widened(data: bytes, size: Any) -> Integers:
    width = len(data) // size if type(size) is int and size > 0 else 0
    if not 1 <= width <= 8 or width * size != len(data):
        raise ValueError("the wrong number of values")
    low = np.frombuffer(data, dtype=np.uint8).reshape(size, width)
    whole = np.where(low[:, -1:] >= 128, np.uint8(255), np.uint8(0)).repeat(8, axis=1)
    whole[:, :width] = low
    return whole.view("<i8").reshape(-1).astype(np.int64)
