"""From a noised integer vector to ciphertexts, and from an opened sum back to integers.

Participant: pack into lanes, mask, tag, encrypt, one ciphertext at a time. Coordinator: take off the self-masks, check the
count lane and every lane's range, unpack. Adding ciphertexts stands in :mod:`.bfv`; noise and clipping come before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_node.canonical import digest
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.bfv import SecretKey
from veilsum_privacy.securesum.lanes import pack_lanes, unpack_lanes
from veilsum_privacy.securesum.masks import MaskStream, derive
from veilsum_privacy.securesum.parameters import TAGS, EncodingPlan
from veilsum_privacy.securesum.tags import TagKey

Slots = NDArray[np.uint64]

SECRET_BYTES = 32


def keys_digest(key: bytes, tag_key: bytes) -> bytes:
    """Digest of the dealt keys, part of every context: a dealer that deals two sets makes masks that do not cancel."""
    return digest("veilsum/1/dealt-keys", key, tag_key)


def consent_key(self_seed: bytes, context: bytes) -> bytes:
    """HKDF(b_i, "self", c): the key of the self-mask, and all that a consent gives away."""
    return derive(self_seed, "self", context)


def pack(values: Integers, plan: EncodingPlan) -> Slots:
    """Pack (size,) noised values into (slots,) words mod t: lanes of ``value + offset``, low lane first."""
    return pack_lanes(values, plan, plan.offset, plan.parameters.plain_modulus)


def masked_words(
    values: Integers,
    plan: EncodingPlan,
    context: bytes,
    own: str,
    sharing: Sequence[str],
    seeds: Mapping[str, bytes],
    self_seed: bytes,
) -> Iterator[Slots]:
    """Yield the masked words of each ciphertext, (plan.words(index),): the count, then slots.

    Args:
        values: (size,) clamped and noised values.
        plan: the round's encoding.
        context: the digest c.
        own: this participant's name.
        sharing: this participant and all members of the cohort that it shares masks with (:mod:`.graph`), in roster order.
        seeds: 32-byte pair seeds by the other member's name.
        self_seed: b_i, 32 fresh random bytes for this payload only.
    """
    modulus = plan.parameters.plain_modulus
    place = list(sharing).index(own)
    plus = [MaskStream(consent_key(self_seed, context), modulus)]
    plus += [MaskStream(derive(seeds[name], "pair", context), modulus) for name in sharing[place + 1 :]]
    minus = [MaskStream(derive(seeds[name], "pair", context), modulus) for name in sharing[:place]]
    yield from _masked(pack(values, plan), plan, 1, plus, minus)


def _masked(
    packed: Slots,
    plan: EncodingPlan,
    count: int,
    plus: Sequence[MaskStream],
    minus: Sequence[MaskStream],
    *,
    padded: bool = False,
) -> Iterator[Slots]:
    modulus, width = plan.parameters.plain_modulus, plan.parameters.data_slots
    for index in range(plan.ciphertexts):
        part = packed[index * width :][:width]
        words = np.zeros(width + 1 if padded else plan.words(index), dtype=np.uint64)
        words[0] = count
        words[1 : 1 + len(part)] = part
        # at most 1 + 1024 words below 2^48: their sum stays below 2^59
        for stream in plus:
            words += stream.take(len(words))
        for stream in minus:
            words += np.uint64(modulus) - stream.take(len(words))
        yield words % np.uint64(modulus)


def encrypt_contribution(
    words: Iterable[Slots], plan: EncodingPlan, context: bytes, own: str, key: SecretKey, tag_key: TagKey
) -> Iterator[bytes]:
    """Tag and encrypt masked words; yields one serialised ciphertext each."""
    modulus = key.parameters.plain_modulus
    pads = tag_key.pads(context, (own,), plan.ciphertexts, modulus)
    for index, masked in enumerate(words):
        yield key.encrypt(np.concatenate([masked, tag_key.tags(context, index, pads[index], masked, modulus)]))


def payload_digest(ciphertexts: Iterable[bytes]) -> bytes:
    """SHA-256 over the length-prefixed ciphertexts of a payload."""
    state = hashlib.sha256(b"veilsum/1/payload")
    for ciphertext in ciphertexts:
        state.update(len(ciphertext).to_bytes(4, "big"))
        state.update(ciphertext)
    return state.digest()


def decrypt_sum(
    ciphertexts: Sequence[bytes], plan: EncodingPlan, context: bytes, cohort: Sequence[str], key: SecretKey, tag_key: TagKey
) -> list[Slots]:
    """Decrypt a sum and check noise and tags of all of it before anything is returned; the words of each ciphertext, untagged.

    Raises:
        HostileInput: another number of ciphertexts, a malformed one, more noise than the cohort's, or wrong tags.
    """
    if len(ciphertexts) != plan.ciphertexts:
        raise HostileInput("A sum has a different number of ciphertexts than its plan.")
    modulus, opened = plan.parameters.plain_modulus, []
    pads = tag_key.pads(context, cohort, plan.ciphertexts, modulus)
    for index, ciphertext in enumerate(ciphertexts):
        slots = key.decrypt_sum(ciphertext, plan.words(index) + TAGS, len(cohort))
        tag_key.check(context, index, pads[index], slots, modulus)
        opened.append(slots[:-TAGS])
    return opened


def masked_sum(values: Integers, plan: EncodingPlan, consents: Sequence[bytes], *, padded: bool = False) -> Iterator[Slots]:
    """The decrypted words of each ciphertext that :func:`open_sum` opens to these values, and no other words do.

    Args:
        values: (size,) of the opened sum, in grid units.
        plan: the round's encoding.
        consents: the cohort's consents, one for each member.
        padded: as up to version 3 of the protocol, when the last ciphertext was as long as the others.

    Raises:
        HostileInput: no sum of this plan opens to such values.
    """
    if values.shape != (plan.size,) or len(consents) != plan.cohort:
        raise HostileInput(f"A sum of {plan.cohort} has {plan.size} values and the consent of every member.")
    if any(not -plan.reach <= int(end) <= plan.reach for end in (values.min(), values.max())):
        raise HostileInput("A value of the sum lies outside the range that the cohort can reach.")
    modulus = plan.parameters.plain_modulus
    streams = [MaskStream(consent, modulus) for consent in consents]
    packed = pack_lanes(values, plan, plan.cohort * plan.offset, modulus)
    return _masked(packed, plan, plan.cohort, streams, [], padded=padded)


def open_sum(words: Sequence[Slots], plan: EncodingPlan, consents: Sequence[bytes]) -> Integers:
    """The whole vector of :func:`open_pieces`, (size,) in grid units; arguments and errors are the same."""
    return np.concatenate(list(open_pieces(words, plan, consents)))


def open_pieces(words: Sequence[Slots], plan: EncodingPlan, consents: Sequence[bytes]) -> Iterator[Integers]:
    """Take off the self-masks, check the opened vector and unpack it, one ciphertext after the other.

    No value may be used before the last piece has come: whether the vector is a sum at all is known only then.

    Args:
        words: decrypted words of each ciphertext, (plan.words(index),).
        plan: the round's encoding.
        consents: the cohort's consents, one for each member.

    Yields:
        Parts of the (size,) sum in grid units, in order.

    Raises:
        HostileInput: the count lane is not the cohort's size, or a lane is out of range: no value may be used.
    """
    modulus = plan.parameters.plain_modulus
    if len(consents) != plan.cohort or len(words) != plan.ciphertexts:
        raise HostileInput("A sum needs the consent of every member of its cohort and all of its ciphertexts.")
    streams = [MaskStream(consent, modulus) for consent in consents]
    left = plan.size
    for index, part in enumerate(words):
        if part.shape != (plan.words(index),) or (part >= modulus).any():
            raise HostileInput("A decrypted sum has the wrong shape or a word beyond the modulus.")
        total = part.copy()
        for stream in streams:
            total += np.uint64(modulus) - stream.take(len(part))
        total %= np.uint64(modulus)
        if int(total[0]) != plan.cohort:
            raise HostileInput("The count lane is not the size of the cohort: the masks did not cancel.")
        values = unpack_lanes(total[1:], plan, left)
        yield values
        left -= len(values)
