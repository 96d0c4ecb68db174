"""The proof of a release up to version 5 of the protocol: the released values beside what was signed for them."""

import base64
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.results.proof_files import read_pair, signed_pair


@dataclass(frozen=True)
class FormerReleaseProof:
    """What shows that one release was opened as it should; attributes as of :class:`.proof_files.ReleaseProof`, and:

    Attributes:
        keys: digest of the dealt keys.
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
                "receipts": [signed_pair(item) for item in self.receipts],
                "countersigned": signed_pair(self.countersigned),
                "coordinator": self.coordinator,
                "consents": self.consents,
                "size": len(self.values),
                "values": base64.b64encode(_narrow(self.values)).decode(),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> "FormerReleaseProof":
        """Parse the file; nothing of it is verified.

        Raises:
            HostileInput: malformed.
        """
        value = parse_canonical(data, what="file")
        try:
            proof = cls(
                value["assignment"].encode(),
                bytes.fromhex(value["keys"]),
                tuple(SignedReceipt(*read_pair(item)) for item in value["receipts"]),
                SignedReceipt(*read_pair(value["countersigned"])),
                bytes.fromhex(value["coordinator"]),
                tuple(bytes.fromhex(item) for item in value["consents"]),
                _widened(base64.b64decode(value["values"], validate=True), value["size"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise HostileInput("It is malformed.") from error
        if proof.to_bytes() != data:
            raise HostileInput("It is malformed.")
        return proof


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
