"""Key shares: a one-time key under masks, of which only the sum over an exact cohort opens, once everyone has consented.

k = s + pairwise masks + the self-mask of the sender's consent, mod 2^w, N coefficients and a count of 1 that is masked like
them. Shares are added up; the sum of all is the sum of keys under the self-masks, and consents take these off. The masks come
from other streams than those of the data (:mod:`.streams`), so neither lock is the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.canonical import digest
from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.packed import pack_numbers
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream, derived_key


class MaskKind(NamedTuple):
    """The two purposes of what hides one thing: of streams shared by a pair, and of a consent's own."""

    pair: StreamPurpose
    own: StreamPurpose


KEY = MaskKind(StreamPurpose.PAIR_KEY, StreamPurpose.SELF_KEY)
CHECK = MaskKind(StreamPurpose.PAIR_CHECK, StreamPurpose.SELF_CHECK)
DATA = MaskKind(StreamPurpose.PAIR_DATA, StreamPurpose.SELF_DATA)


def consent_of(self_secret: bytes, context: bytes) -> bytes:
    """HKDF(self_i, consent | c): the secret of the sender's three self streams, and all that a consent gives away."""
    return derived_key(self_secret, StreamPurpose.CONSENT, context)


@dataclass(frozen=True)
class MemberMasks:
    """All that one member hides a contribution to one context with.

    Attributes:
        context: the digest c.
        own: this member's name.
        sharing: this member and all members of the cohort that it shares masks with, in roster order.
        seeds: 32-byte pair seeds by the other member's name.
        consent: of :func:`consent_of`, not given to anyone yet.
    """

    context: bytes
    own: str
    sharing: Sequence[str]
    seeds: Mapping[str, bytes] = field(repr=False)
    consent: bytes = field(repr=False)

    def pairwise(self, purpose: StreamPurpose, count: int, bound: int, *more: bytes) -> Words:
        """The (count,) sum of the masks shared with others, mod ``bound``: + towards those behind it in the roster's order, -
        towards those before; ``more``: further parts of the streams' keys."""
        place = list(self.sharing).index(self.own)
        before, behind = (
            [WordStream(self.seeds[name], purpose, self.context, *more, bound=bound) for name in names]
            for names in (self.sharing[:place], self.sharing[place + 1 :])
        )
        return WordStream.total(behind, before, count, bound)

    def all(self, kind: MaskKind, count: int, bound: int, *more: bytes) -> Words:
        """The (count,) masks of one kind, below 2 ``bound``: those shared with others and that of the consent."""
        masks = self_masks(kind.own, self.context, [self.consent], count, bound, *more)
        masks += self.pairwise(kind.pair, count, bound, *more)
        return masks


def self_masks(
    purpose: StreamPurpose, context: bytes, consents: Sequence[bytes], count: int, bound: int, *more: bytes
) -> Words:
    """The (count,) sum of the self-masks of these consents, mod ``bound``."""
    streams = [WordStream(consent, purpose, context, *more, bound=bound) for consent in consents]
    return WordStream.total(streams, [], count, bound)


def mask_key(key: Integers, ring: RingParameters, cohort: int, masks: MemberMasks) -> Words:
    """The key share of a one-time key, (N,) coefficients, in a sum of so many: (N + 1,) below 2^w.

    Raises:
        Misuse: a cohort that the parameters cannot sum up, or a key of another length.
    """
    ring.check_members(cohort)
    if key.shape != (ring.degree,):
        raise Misuse("A key has one coefficient for each of its ring's degree.")
    bound = 1 << ring.share_bits(cohort)
    share = np.append(key, np.int64(1)) % bound
    return (share.view(np.uint64) + masks.all(KEY, len(share), bound)) % np.uint64(bound)


def share_to_bytes(share: Words, ring: RingParameters, members: int) -> bytes:
    """A key share as it travels, w bits a coefficient; a sum of shares has the same form."""
    return pack_numbers(share, ring.share_bits(members))


def share_digest(data: bytes) -> bytes:
    """SHA-256 over a key share as it travels (32 bytes)."""
    return digest("veilsum/6/key-share", data)


def payload_digest(share: bytes, coefficients: bytes) -> bytes:
    """What a receipt signs of a payload (32 bytes), of the digests of its key share and of its coefficients."""
    return digest("veilsum/6/payload", share, coefficients)
