"""Writes a sum as it opened, for members who need it: what :mod:`.opened_sums` reads."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.opened_sums import BLOCK, ZEROS, nearest
from veilsum_privacy.securesum.opening import open_keys_of, open_phases, unmask_values
from veilsum_privacy.securesum.packed import pack_numbers
from veilsum_privacy.securesum.sum_plan import OneTimePlan


@dataclass(frozen=True)
class Opening:
    """What beside its words a sum opens to.

    Attributes:
        keys: (N,) the sum of the one-time keys.
        rests: (plan.words,) how far each coefficient is from what key and word give.
    """

    keys: Integers = field(repr=False)
    rests: NDArray[np.int16] = field(repr=False)

    def to_bytes(self, values: NDArray[Any]) -> bytes:
        """The sum in few bytes; ``values``: (size,) of :func:`.unmask_values`, of any integers."""
        written = io.BytesIO()
        for numbers in (self.keys, values, self.rests):
            _write(written, numbers)
        return written.getvalue()


def open_total(total: Contribution, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> Opening:
    """Open a sum, of which all is kept that its bytes are made of; arguments and errors as of :func:`.opening.open_words`.

    The sum is used up: its coefficients give way to the words.
    """
    keys, prime = open_keys_of(total, plan, context, consents), plan.ring.prime
    words, rests = total.coefficients, np.empty(plan.words, dtype=np.int16)  # an error is below 2^13
    for part, phase, found in open_phases(total, keys, plan, context):
        rest = (phase - nearest(found, plan.ring)).view(np.int64)
        rests[part] = rest + prime * (rest < -(prime // 2)) - prime * (rest > prime // 2)  # a word near t is near 0
        words[part] = found
    return Opening(keys, rests)


def opened_to_bytes(total: Contribution, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> bytes:
    """A sum that opens, in few bytes; arguments and errors as of :func:`open_total`."""
    opening = open_total(total, plan, context, consents)
    return opening.to_bytes(unmask_values(total.coefficients, plan, context, consents, plan.narrowest))


def _write(file: io.BytesIO, numbers: NDArray[Any]) -> None:
    """Numbers about their mean, in blocks: as long as a sum, they are not held twice.

    Gaussian numbers take a bit less so than all of them in the width of the widest (Rice 1979, "Some practical universal
    noiseless coding techniques"): of each the lowest k bits, and as many zeros as the rest says, then a one.
    """
    for start in range(0, len(numbers), BLOCK):
        block = numbers[start : start + BLOCK].astype(np.int64)
        centre = int(np.rint(block.mean()))
        block -= centre
        signs = block >> 63
        block <<= 1
        block ^= signs
        folded = block.view(np.uint64)  # 0, -1, 1, -2, 2 .. are 0, 1, 2, 3, 4 ..
        width = max(1, int(folded.max()).bit_length())
        usual = int(folded.mean()).bit_length()
        longest = {k: int((folded >> np.uint64(k)).sum()) for k in range(max(1, usual - 2), min(usual + 1, width - 1) + 1)}
        cost, low = min((k * len(block) + len(block) + rest, k) for k, rest in (longest | {width: 0}).items())
        if low == width or cost >= width * len(block) or longest[low] > (ZEROS - 1) * len(block):
            low, ones = width, b""
        else:
            ends = np.cumsum((folded >> np.uint64(low)).astype(np.int64) + 1) - 1
            bits = np.zeros(int(ends[-1]) + 1, dtype=np.uint8)
            bits[ends] = 1
            ones = np.packbits(bits).tobytes()
        file.write(centre.to_bytes(8, "little", signed=True) + bytes([low]) + len(ones).to_bytes(4, "little"))
        file.write(pack_numbers(folded & np.uint64((1 << low) - 1), low))
        file.write(ones)
