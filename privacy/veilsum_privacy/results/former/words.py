"""What the decryptors of a sum signed for, up to version 5 of the protocol: its words, under the cohort's self-masks.

Released values and consents give these words again to the bit, so a signature over their digest is one over the values.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from veilsum_aggregation.arrays import Integers, Words
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, verify
from veilsum_node.keystream import Keystream
from veilsum_privacy.results.former.layout import EncodingPlan
from veilsum_privacy.securesum.lanes import pack_lanes

LEAST_DECRYPTORS = 2
"""Members that decrypted every sum, and signed for it."""


@dataclass(frozen=True)
class Statement:
    """What a decryptor signed; attributes as of :class:`~veilsum_privacy.ledger.receipts.Receipt`, and:

    Attributes:
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


def verify_decryptors(
    said: Statement, padded: Callable[[], bytes], decrypted_by: Mapping[str, bytes], identities: Mapping[str, Identity]
) -> None:
    """Verify that every decryptor of a sum signed for the same words.

    Args:
        said: the statement, of which the signer is put in here.
        padded: the words' digest as up to version 3 of the protocol, when the last ciphertext was as long as the others.
        decrypted_by: signatures by name.

    Raises:
        HostileInput: too few signed, or somebody for other words.
    """
    names = tuple(decrypted_by)
    if len(names) < LEAST_DECRYPTORS or not set(names) <= set(identities):
        raise HostileInput(f"The manifest does not name {LEAST_DECRYPTORS} members of the cohort that decrypted it.")

    def signed(name: str) -> bool:
        own = replace(said, participant=name)
        try:
            verify(identities[name].public_key, Label.DECRYPTION, own.to_bytes(), decrypted_by[name])
        except HostileInput:
            return False
        return True

    if not signed(names[0]):
        said = replace(said, words=padded())
    for name in names:
        if not signed(name):
            raise HostileInput(f"{name} did not sign for these values.")


def words_digest(words: Iterable[Words]) -> bytes:
    """SHA-256 over the decrypted words of all ciphertexts in order, little-endian 64-bit (32 bytes)."""
    state = hashlib.sha256(b"veilsum/1/decrypted-words")
    for part in words:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part.astype(np.dtype("<u8"), copy=False).tobytes())
    return state.digest()


def masked_sum(values: Integers, plan: EncodingPlan, consents: Sequence[bytes], *, padded: bool = False) -> Iterator[Words]:
    """The decrypted words of each ciphertext that open to these values, and no other words do.

    Args:
        values: (size,) of the opened sum, in grid units.
        plan: the round's encoding.
        consents: the cohort's consents, one for each member: keys of their self-masks.
        padded: as up to version 3 of the protocol, when the last ciphertext was as long as the others.

    Raises:
        HostileInput: no sum of this plan opens to such values.
    """
    if values.shape != (plan.size,) or len(consents) != plan.cohort:
        raise HostileInput(f"A sum of {plan.cohort} has {plan.size} values and the consent of every member.")
    if any(not -plan.reach <= int(end) <= plan.reach for end in (values.min(), values.max())):
        raise HostileInput("A value of the sum lies outside the range that the cohort can reach.")
    modulus, width = plan.parameters.plain_modulus, plan.parameters.data_slots
    streams = [MaskStream(consent, modulus) for consent in consents]
    packed = pack_lanes(values, plan, plan.cohort * plan.offset, modulus)
    return _masked(packed, plan, streams, width + 1 if padded else 0)


def _masked(packed: Words, plan: EncodingPlan, streams: "Sequence[MaskStream]", least: int) -> Iterator[Words]:
    modulus, width = plan.parameters.plain_modulus, plan.parameters.data_slots
    for index in range(plan.ciphertexts):
        part = packed[index * width :][:width]
        words = np.zeros(max(least, plan.words(index)), dtype=np.uint64)
        words[0] = plan.cohort
        words[1 : 1 + len(part)] = part
        for stream in streams:  # at most 1 + 1024 words below 2^48: their sum stays below 2^59
            words += stream.take(len(words))
        yield words % np.uint64(modulus)


class MaskStream:
    """Uniform words below ``modulus``: 64-bit words of ChaCha20 cut to the bits of t, rejected if they are not below t."""

    def __init__(self, key: bytes, modulus: int) -> None:
        self._stream = Keystream(key)
        self._modulus = np.uint64(modulus)
        self._cut = np.uint64((1 << modulus.bit_length()) - 1)

    def take(self, count: int) -> Words:
        """The next ``count`` words, (count,) uint64."""
        words = self._words(count)
        while len(words) < count:
            words = np.concatenate([words, self._words(count - len(words))])
        return words

    def _words(self, count: int) -> Words:
        words = np.frombuffer(self._stream.read(8 * count), dtype="<u8") & self._cut
        good = words < self._modulus
        return words if good.all() else words[good]
