"""The running sum of one attempt: pieces are added as they arrive, so memory is one contribution, whatever the cohort."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.receipts import SignedReceipt
from veilsum_privacy.results.whole_sums import coefficients_from_bytes, share_from_bytes
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import payload_digest, share_digest
from veilsum_privacy.securesum.one_time_keys import begin_coefficients_digest
from veilsum_privacy.securesum.opening import Total
from veilsum_privacy.securesum.sum_plan import OneTimePlan


class OutOfOrder(HostileInput):
    """A piece came with another index than the next one; the sender asks for the upload's status and goes on there."""


@dataclass
class Upload:
    """How far one member's upload has come."""

    next: int = 0
    received: int = 0
    receipt: SignedReceipt | None = None
    share: bytes = field(default=b"", repr=False)  # digest of the key share
    digest: Any = field(default=None, repr=False)  # running, of the coefficients

    @property
    def complete(self) -> bool:
        """Whether the receipt is in."""
        return self.receipt is not None

    @property
    def payload(self) -> bytes:
        """What the receipt has to sign of the pieces, once all of them are in."""
        return payload_digest(self.share, self.digest.digest())


class Accumulator:
    """Adds the cohort's contributions, piece by piece; a piece of a member is never added twice."""

    def __init__(self, plan: OneTimePlan, cohort: tuple[str, ...]) -> None:
        self.plan = plan
        self.uploads = {name: Upload() for name in cohort}
        self._total: Total | None = None  # nothing came yet

    def add(self, name: str, index: int, data: bytes) -> None:
        """Add one piece of a member's contribution.

        Raises:
            OutOfOrder: not the member's next index.
            HostileInput: malformed, beyond the plan, or after the receipt.
        """
        upload, plan = self.uploads[name], self.plan
        if upload.complete or index >= plan.pieces:
            raise HostileInput("An upload holds more pieces than its plan.")
        if index != upload.next:
            raise OutOfOrder(f"Piece {index} came where {upload.next} was expected.")
        total = self._total or Total(plan)
        if index == 0:
            total.add_share(share_from_bytes(data, plan.ring, plan.cohort))
            upload.share = share_digest(data)  # no other bytes are this share
            upload.digest = begin_coefficients_digest(plan.words)
        else:
            part = plan.piece_words(index)
            total.add_part(part, coefficients_from_bytes(data, part.stop - part.start, plan.ring))
            upload.digest.update(data)
        self._total = total
        upload.received += len(data)
        upload.next += 1

    @property
    def complete(self) -> bool:
        """Whether every member's receipt is in."""
        return all(upload.complete for upload in self.uploads.values())

    @property
    def received(self) -> int:
        """Bytes of contributions received."""
        return sum(upload.received for upload in self.uploads.values())

    def drop(self) -> None:
        """Forget the sum; what was received stays counted."""
        self._total = None

    def take(self) -> Contribution:
        """Hand over the sum once every member's contribution is in."""
        total, self._total = self._total or Total(self.plan), None
        return total.contribution
