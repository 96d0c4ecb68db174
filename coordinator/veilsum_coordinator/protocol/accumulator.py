"""The running sum of one attempt: ciphertexts are added as they arrive, so memory is one payload, whatever the cohort."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.securesum.bfv import Adder
from veilsum_privacy.securesum.parameters import TAGS, EncodingPlan


class OutOfOrder(HostileInput):
    """A ciphertext came with another index than the next one; the sender asks for the upload's status and goes on there."""


@dataclass
class Upload:
    """How far one member's upload has come."""

    next: int = 0
    received: int = 0
    receipt: SignedReceipt | None = None
    digest: Any = field(default_factory=lambda: hashlib.sha256(b"veilsum/1/payload"), repr=False)

    @property
    def complete(self) -> bool:
        """Whether the receipt is in."""
        return self.receipt is not None


class Accumulator:
    """Adds the cohort's ciphertexts, index by index; an index of a member is never added twice."""

    def __init__(self, plan: EncodingPlan, cohort: tuple[str, ...]) -> None:
        self.plan = plan
        self.uploads = {name: Upload() for name in cohort}
        slots = [plan.words(index) + TAGS for index in range(plan.ciphertexts)]
        sizes = [plan.parameters.sum_bytes(count, len(cohort)) for count in slots]
        whole, ends = np.zeros(sum(sizes), dtype=np.uint8).data, accumulate(sizes)  # one piece, which is let go of whole
        places = [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]
        self._sums = [Adder(plan.parameters, count, len(cohort), place) for count, place in zip(slots, places, strict=True)]

    def add(self, name: str, index: int, ciphertext: bytes) -> None:
        """Add one ciphertext of a member.

        Raises:
            OutOfOrder: not the member's next index.
            HostileInput: malformed, beyond the plan, or after the receipt.
        """
        upload = self.uploads[name]
        if upload.complete or index >= self.plan.ciphertexts:
            raise HostileInput("An upload holds more ciphertexts than its plan.")
        if index != upload.next:
            raise OutOfOrder(f"Ciphertext {index} came where {upload.next} was expected.")
        self._sums[index].add(ciphertext)
        upload.digest.update(len(ciphertext).to_bytes(4, "big"))
        upload.digest.update(ciphertext)
        upload.received += len(ciphertext)
        upload.next += 1

    @property
    def complete(self) -> bool:
        """Whether every member's receipt is in."""
        return all(upload.complete for upload in self.uploads.values())

    @property
    def received(self) -> int:
        """Bytes of ciphertexts received."""
        return sum(upload.received for upload in self.uploads.values())

    def drop(self) -> None:
        """Forget the ciphertexts; what was received stays counted."""
        self._sums = []

    def serialise(self) -> list[memoryview]:
        """Hand over the sum's ciphertexts once every member's are in; they are not copied."""
        sums, self._sums = self._sums, []
        return [each.view() for each in sums]
