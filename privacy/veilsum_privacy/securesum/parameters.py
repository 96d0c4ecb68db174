"""BFV parameters and the encoding plan: how integers lie in lanes, lanes in slots and slots in ciphertexts.

A slot is one coefficient of the plaintext polynomial: ciphertexts are only added, so it needs no batching, and of the first
polynomial of a ciphertext only the coefficients of its slots are sent (decision 69).

Everything here is a function of public quantities (dimension, bound, noise, cohort), so every party computes the same plan.
No floating point decides a layout. Nothing here encrypts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from veilsum_node.errors import Misuse
from veilsum_privacy.securesum.frames import SEED_BYTES, FrameSize
from veilsum_privacy.securesum.lanes import LanePlan, plan_lanes

RESERVED_SLOTS = 3
"""The first slot of a ciphertext counts the cohort; the last two hold the tags."""

MAX_SEEDS = 64
"""Most summands whose sum travels with their seeds in place of its second polynomial: a decryptor expands every one."""

TAGS = 2

MAX_SUMMANDS = 1024
"""Largest cohort whose sum of fresh ciphertexts was measured to decrypt without error at both parameter sets."""

NOISE_VARIANCE = Fraction(127, 12)
"""Variance of a fresh ciphertext's noise in a coefficient: SEAL's centred binomial of 42 bits, and rounding of q m / t."""

NOISE_SIGMAS_SQUARED = 96
"""Square of how many standard deviations of its noise a sum may show: 9.8, a tail below 2^-68 a coefficient."""


@dataclass(frozen=True)
class BfvParameters:
    """One of two fixed parameter sets; total moduli stand well inside 128-bit security (limit 218 bits at 8192, 109 at 4096).

    Attributes:
        degree: N, slots of a ciphertext.
        prime_bits: bits of the coefficient primes. The second serves keys alone.
        plain_modulus: t, a prime = 1 mod 2N.
        prime: q, the first coefficient prime: the modulus of every ciphertext.
        weight: what a ciphertext counts for when a study's parameters are chosen: the bytes of a whole one in version 3 of the
            protocol, because contexts are made of the choice.
        key: size of a secret key: one polynomial for each prime.
    """

    degree: int
    prime_bits: tuple[int, int]
    plain_modulus: int
    prime: int
    weight: int
    key: FrameSize

    @property
    def coefficient_bytes(self) -> int:
        """Bytes of one coefficient of a ciphertext."""
        return (self.prime_bits[0] + 7) // 8

    def fresh_bytes(self, slots: int) -> int:
        """Bytes of a fresh ciphertext of so many slots: their coefficients, and the seed of the second polynomial."""
        return slots * self.coefficient_bytes + SEED_BYTES

    def sum_bytes(self, slots: int, summands: int) -> int:
        """Bytes of a sum: its coefficients, and the seeds of all or, beyond :data:`MAX_SEEDS`, the second polynomial."""
        second = self.degree * self.coefficient_bytes if summands > MAX_SEEDS else summands * SEED_BYTES
        return slots * self.coefficient_bytes + second

    @property
    def data_slots(self) -> int:
        """Slots of one ciphertext that carry lanes."""
        return self.degree - RESERVED_SLOTS

    def most_noise(self, summands: int) -> int:
        """Largest noise in a coefficient of a sum of so many fresh ciphertexts, far below q/2t where decryption fails.

        A malleated sum may still decrypt, with right tags, at any noise below q/2t: whether it does would tell of its noise.
        """
        return math.isqrt(math.floor(NOISE_SIGMAS_SQUARED * NOISE_VARIANCE * summands)) + 1

    def to_context(self) -> dict[str, object]:
        """What the round's context binds."""
        return {"degree": self.degree, "prime_bits": list(self.prime_bits), "plain_modulus": self.plain_modulus}


BFV_8192 = BfvParameters(
    degree=8192,
    prime_bits=(60, 60),
    plain_modulus=281474976694273,
    prime=1152921504606748673,
    weight=65800,
    key=FrameSize(131125, 131225, 131144),
)
BFV_4096 = BfvParameters(
    degree=4096,
    prime_bits=(54, 55),
    plain_modulus=4398046486529,
    prime=18014398509309953,
    weight=31250,
    key=FrameSize(61400, 62100, 65608),
)


@dataclass(frozen=True)
class EncodingPlan(LanePlan):
    """The layout of one round's vector in ciphertexts.

    Attributes:
        parameters: the BFV parameters.
    """

    parameters: BfvParameters

    @property
    def ciphertexts(self) -> int:
        """Number of ciphertexts of one contribution."""
        return -(-self.slots // self.parameters.data_slots)

    def words(self, index: int) -> int:
        """Words of a ciphertext without its tags: the count and the slots that carry values; the last has what is left."""
        width = self.parameters.data_slots
        return 1 + min(width, self.slots - index * width)

    @property
    def upload_bytes(self) -> int:
        """Bytes of all ciphertexts of one contribution."""
        return sum(self.parameters.fresh_bytes(self.words(index) + TAGS) for index in range(self.ciphertexts))

    @property
    def sum_bytes(self) -> int:
        """Bytes of all ciphertexts of the cohort's sum."""
        return sum(self.parameters.sum_bytes(self.words(index) + TAGS, self.cohort) for index in range(self.ciphertexts))


def plan_encoding(size: int, bound: int, variance: Fraction, cohort: int, parameters: BfvParameters) -> EncodingPlan:
    """Choose the narrowest lanes that hold the cohort's sum with its noise.

    Args:
        size: number of values, at least 1.
        bound: largest absolute value of one site's sum before noise, in grid units, at least 1.
        variance: variance of the whole cohort's noise, in grid units squared.
        cohort: number of summands, 2 to :data:`MAX_SUMMANDS`.
        parameters: the BFV parameters.

    Raises:
        Misuse: out of range, or one lane does not fit a slot.
    """
    plan = plan_lanes(size, bound, variance, cohort, parameters.plain_modulus, MAX_SUMMANDS)
    return EncodingPlan(**vars(plan), parameters=parameters)


def choose_parameters(sums: list[tuple[int, int, Fraction]], participants: int) -> BfvParameters:
    """The parameter set of a study: the one whose ciphertexts weigh least over its tasks' sums at the full roster.

    Args:
        sums: (size, bound, variance of the whole noise) of each task.
        participants: size of the roster.

    Raises:
        Misuse: some task fits neither set.
    """

    def cost(parameters: BfvParameters) -> int:
        plans = [plan_encoding(size, bound, variance, participants, parameters) for size, bound, variance in sums]
        return sum(plan.ciphertexts for plan in plans) * parameters.weight

    large = cost(BFV_8192)
    try:
        small = cost(BFV_4096)
    except Misuse:
        return BFV_8192
    return BFV_4096 if small < large else BFV_8192
