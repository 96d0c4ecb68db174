"""Key shares: a one-time key under masks, of which only the sum over an exact cohort opens, once everyone has consented.

k = s + pairwise masks + the self-mask of the sender's consent, mod 2^w, N coefficients and a count of 1 that is masked like
them. Shares are added up; the sum of all is the sum of keys under the self-masks, and consents take these off. The masks come
from other streams than those of the data (:mod:`.streams`), so neither lock is the other's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.securesum.packed import pack_numbers, unpack_numbers
from veilsum_privacy.securesum.ring import RingParameters
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream, derived_key

Words = NDArray[np.uint64]
Integers = NDArray[np.int64]


def consent_of(self_secret: bytes, context: bytes) -> bytes:
    """HKDF(self_i, consent | c): the secret of the sender's three self streams, and all that a consent gives away."""
    return derived_key(self_secret, StreamPurpose.CONSENT, context)


def pairwise_masks(
    purpose: StreamPurpose,
    context: bytes,
    own: str,
    sharing: Sequence[str],
    seeds: Mapping[str, bytes],
    count: int,
    bound: int,
    *more: bytes,
) -> Words:
    """The (count,) sum of a member's masks with those that it shares any with, mod ``bound``: + towards those behind it in the
    roster's order, - towards those before.

    Args:
        purpose: of the streams.
        context: the digest c.
        own: this member's name.
        sharing: this member and all that it shares masks with, in roster order.
        seeds: 32-byte pair seeds by the other member's name.
        count: how many.
        bound: of the words.
        more: further parts of the streams' keys.
    """
    place = list(sharing).index(own)
    before, behind = (
        [WordStream(seeds[name], purpose, context, *more, bound=bound) for name in names]
        for names in (sharing[:place], sharing[place + 1 :])
    )
    return WordStream.total(behind, before, count, bound)


def self_masks(
    purpose: StreamPurpose, context: bytes, consents: Sequence[bytes], count: int, bound: int, *more: bytes
) -> Words:
    """The (count,) sum of the self-masks of these consents, mod ``bound``."""
    streams = [WordStream(consent, purpose, context, *more, bound=bound) for consent in consents]
    return WordStream.total(streams, [], count, bound)


def mask_key(
    key: Integers,
    ring: RingParameters,
    context: bytes,
    own: str,
    cohort: int,
    sharing: Sequence[str],
    seeds: Mapping[str, bytes],
    consent: bytes,
) -> Words:
    """The key share of a one-time key: (N + 1,) below 2^w.

    Args:
        key: (N,) coefficients.
        ring: the parameters.
        context: the digest c.
        own: this member's name.
        cohort: members of the sum.
        sharing: as of :func:`pairwise_masks`.
        seeds: pair seeds by the other member's name.
        consent: of :func:`consent_of`, not given to anyone yet.

    Raises:
        Misuse: a cohort that the parameters cannot sum up, or a key of another length.
    """
    ring.check_members(cohort)
    if key.shape != (ring.degree,):
        raise Misuse("A key has one coefficient for each of its ring's degree.")
    bound, count = 1 << ring.share_bits(cohort), ring.degree + 1
    share = np.ones(count, dtype=np.int64)
    share[:-1] = key
    masks = pairwise_masks(StreamPurpose.PAIR_KEY, context, own, sharing, seeds, count, bound)
    masks += self_masks(StreamPurpose.SELF_KEY, context, [consent], count, bound)
    return (np.mod(share, bound).view(np.uint64) + masks) % np.uint64(bound)


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


def share_to_bytes(share: Words, ring: RingParameters, members: int) -> bytes:
    """A key share as it travels, w bits a coefficient; a sum of shares has the same form."""
    return pack_numbers(share, ring.share_bits(members))


def share_from_bytes(data: bytes | memoryview, ring: RingParameters, members: int) -> Words:
    """The share of :func:`share_to_bytes`, (N + 1,).

    Raises:
        HostileInput: another length, or bits behind the last coefficient.
    """
    return unpack_numbers(data, ring.degree + 1, ring.share_bits(members), "key share")


def share_digest(share: Words, ring: RingParameters, members: int) -> bytes:
    """SHA-256 over a key share as it travels (32 bytes)."""
    return digest("veilsum/6/key-share", share_to_bytes(share, ring, members))


def payload_digest(share: bytes, coefficients: bytes) -> bytes:
    """What a receipt signs of a payload (32 bytes), of the digests of its key share and of its coefficients."""
    return digest("veilsum/6/payload", share, coefficients)
