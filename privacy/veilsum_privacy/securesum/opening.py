"""Opening a sum: the sum of the keys from consents, the words from the sum of the keys, and every bound on the way.

Nothing here holds a key or knows a member's words. Whoever has the sum of all contributions and the consent of every member
opens it, and finds the same words or refuses for the same reason, wherever that is: the coordinator once, a verifier again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.contributions import Contribution, key_pads
from veilsum_privacy.securesum.key_shares import DATA, self_masks
from veilsum_privacy.securesum.lanes import LanePlan
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream
from veilsum_privacy.securesum.sum_plan import OneTimePlan

_BLOCK = 1 << 14


class Total:
    """The running sum of a cohort's contributions.

    Args:
        plan: of the sum.
    """

    def __init__(self, plan: OneTimePlan) -> None:
        self._bound = np.uint64(1 << plan.ring.share_bits(plan.cohort))
        self._prime = np.uint64(plan.ring.prime)
        self._plan = plan
        self._share = np.zeros(plan.ring.degree + 1, dtype=np.uint64)
        self._coefficients = np.zeros(plan.words, dtype=np.uint64)

    def add(self, contribution: Contribution) -> None:
        """Add one.

        Raises:
            HostileInput: another number of coefficients, or one out of range; the sum is what it was.
        """
        check_contribution(contribution, self._plan)
        self.add_share(contribution.share)
        self.add_part(slice(0, self._plan.words), contribution.coefficients)

    def add_share(self, share: Words) -> None:
        """Add a key share alone, its form checked before."""
        self._share = (self._share + share) % self._bound

    def add_part(self, part: slice, coefficients: Words) -> None:
        """Add the coefficients of some words alone, their form checked before."""
        place = self._coefficients[part]
        place += coefficients
        place -= self._prime * (place >= self._prime)

    @property
    def contribution(self) -> Contribution:
        """What was added up."""
        return Contribution(self._share, self._coefficients)


def check_contribution(contribution: Contribution, plan: OneTimePlan) -> None:
    """Check the form of a contribution or of a sum.

    Raises:
        HostileInput: another number of coefficients than the plan's, or one out of range.
    """
    share, coefficients = contribution.share, contribution.coefficients
    if share.shape != (plan.ring.degree + 1,) or coefficients.shape != (plan.words,):
        raise HostileInput("A contribution has a different number of coefficients than its plan.")
    if int(share.max()) >> plan.ring.share_bits(plan.cohort) or int(coefficients.max()) >= plan.ring.prime:
        raise HostileInput("A coefficient of a contribution is out of range.")


def open_words(
    total: Contribution, plan: OneTimePlan, context: bytes, consents: Sequence[bytes], into: Words | None = None
) -> Words:
    """The opened words M, (plan.words,) below t, the self-masks of the data still on.

    Args:
        total: the sum of all contributions of the cohort.
        plan: of the sum.
        context: the digest c.
        consents: of every member in the cohort's order, held to its receipt before.
        into: where the words go, (plan.words,); the sum's own coefficients where nobody needs them any more.

    Raises:
        HostileInput: not a sum of exactly this cohort: of another form or size, its keys do not open, or it shows more error
            than contributions of so many leave.
    """
    words = np.empty(plan.words, dtype=np.uint64) if into is None else into
    for part, _, found in open_phases(total, open_keys_of(total, plan, context, consents), plan, context):
        words[part] = found
    return words


def open_keys_of(total: Contribution, plan: OneTimePlan, context: bytes, consents: Sequence[bytes]) -> Integers:
    """The (N,) sum of the keys of a sum, its form checked; arguments and errors as of :func:`open_words`."""
    if len(consents) != plan.cohort:
        raise HostileInput("A sum needs the consent of every member of its cohort.")
    check_contribution(total, plan)
    return open_keys(total.share, plan.ring, context, consents)


def open_phases(
    total: Contribution, keys: Integers, plan: OneTimePlan, context: bytes
) -> Iterator[tuple[slice, Words, Words]]:
    """Coefficients of a sum less the products of its keys, below q, and the words that they round to: of some places each."""
    prime = np.uint64(plan.ring.prime)
    for part, pads in key_pads(keys, plan, context):
        phase = total.coefficients[part] + prime - pads
        phase -= prime * (phase >= prime)
        yield part, phase, _rounded(phase, plan.ring, plan.cohort)


def _rounded(phase: Words, ring: RingParameters, members: int) -> Words:
    """round(t phase / q) mod t, if the error of every one is within what so many contributions leave.

    t phase - M q is right modulo 2^64, because it is less than 2^61 either way: a float64 finds M to one, of 51 bits too.
    """
    prime, modulus = ring.prime, ring.plain_modulus
    words = np.rint(phase.astype(np.float64) * (modulus / prime)).astype(np.uint64)
    error = (phase * np.uint64(modulus) - words * np.uint64(prime)).view(np.int64)
    over = (error > prime // 2).astype(np.int64) - (error < -(prime // 2))
    if over.any():
        words += over.view(np.uint64)
        error -= over * prime
    if int(np.abs(error).max()) > ring.most_error(members):
        raise HostileInput(f"A sum holds more error than {members} contributions leave: it is not of exactly this cohort.")
    words[words == modulus] = 0
    return words


def unmask_values(
    words: Words, plan: OneTimePlan, context: bytes, consents: Sequence[bytes], kind: DTypeLike = np.int64
) -> Integers:
    """Take the self-masks off the opened words of a sum, check it and unpack it: (size,) in grid units.

    Args:
        words: (plan.words,) below t.
        plan: the round's encoding.
        context: the digest c.
        consents: of every member of the cohort.
        kind: of the integers; :attr:`.lanes.LanePlan.narrowest` where a long sum is not to take twice the memory.

    Raises:
        HostileInput: the count is not the cohort's size, or a value is out of range: no value may be used.
    """
    modulus, left = plan.ring.plain_modulus, plan.size
    if words.shape != (plan.words,) or len(consents) != plan.cohort:
        raise HostileInput("A sum needs the consent of every member of its cohort and all of its words.")
    values = np.empty(plan.size, dtype=kind)
    streams = [WordStream(consent, DATA.own, context, bound=modulus) for consent in consents]
    for start in range(0, plan.words, _BLOCK):  # a long vector is not held several times over
        total = WordStream.total([], streams, len(words[start : start + _BLOCK]), modulus)
        total += words[start : start + _BLOCK]
        total -= total // np.uint64(modulus) * np.uint64(modulus)
        if start == 0 and int(total[0]) != plan.cohort:
            raise HostileInput("The count is not the size of the cohort: the masks did not cancel.")
        found = unpack_lanes(total[1:] if start == 0 else total, plan, left)
        values[len(values) - left :][: len(found)] = found
        left -= len(found)
    return values


def open_keys(total: Words, ring: RingParameters, context: bytes, consents: Sequence[bytes]) -> Integers:
    """The (N,) sum of a cohort's one-time keys.

    Args:
        total: (N + 1,) sum of the key shares, below 2^w.
        ring: the parameters.
        context: the digest c.
        consents: of every member, held to its receipt before.

    Raises:
        HostileInput: the count is not the cohort's size, or a coefficient is larger than a sum of so many keys.
    """
    members = len(consents)
    bound = 1 << ring.share_bits(members)
    masks = self_masks(StreamPurpose.SELF_KEY, context, consents, ring.degree + 1, bound)
    opened = ((total + np.uint64(bound) - masks) % np.uint64(bound)).view(np.int64)
    if int(opened[-1]) != members:
        raise HostileInput("The key shares do not count the cohort's members: they are not those of exactly this cohort.")
    keys = np.where(opened[:-1] >= bound // 2, opened[:-1] - bound, opened[:-1])
    if int(np.abs(keys).max()) > ring.most_key(members):
        raise HostileInput("The sum of the one-time keys is larger than keys of this cohort can be.")
    return keys


def unpack_lanes(words: Words, plan: LanePlan, left: int) -> Integers:
    """Unpack words of an opened sum, of which the first ``left`` values are the vector's, less the cohort's offsets.

    Raises:
        HostileInput: a lane is out of range, or not empty beyond the vector: no value may be used.
    """
    rest, cut = words.copy(), np.uint64((1 << plan.width) - 1)
    lanes = np.empty((len(rest), plan.lanes), dtype=np.int64)
    for lane in range(plan.lanes):
        lanes[:, lane] = rest & cut
        rest >>= np.uint64(plan.width)
    if rest.any():
        raise HostileInput("A slot of the sum overflows its lanes.")
    lanes -= plan.cohort * plan.offset
    if len(lanes) and max(int(lanes.max()), -int(lanes.min())) > plan.reach:
        raise HostileInput("A value of the sum lies outside the range that the cohort can reach.")
    values = lanes.reshape(-1)
    if values[left:].any():
        raise HostileInput("A lane beyond the vector is not empty.")
    return values[:left]
