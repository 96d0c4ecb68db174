"""The secure sum's steps by themselves, in CPU time of one core: noise, mask, encrypt, add, decrypt and open.

One participant's work is timed; the rest of the cohort exists as seeds. The opened sum is compared with the exact one, so a
figure never belongs to a wrong result.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

from support.securesum import make_cohort
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.mechanism.noise import plan_noise
from veilsum_privacy.securesum.bfv import Adder, SecretKey
from veilsum_privacy.securesum.contribution import decrypt_sum, encrypt_contribution, open_sum
from veilsum_privacy.securesum.parameters import BFV_8192, TAGS, EncodingPlan, plan_encoding
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = bytes(range(32))
STD = 4096  # grid units
LANE_BITS = 24

Result = TypeVar("Result")


def timed(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    """CPU seconds of the fastest of several runs, which other load on the machine disturbs least, and the last result."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        seconds.append(time.process_time() - start)
    return min(seconds), result


def lane_plan(size: int, members: int) -> EncodingPlan:
    """A plan of two 24-bit lanes a slot, with the largest bound that fits them."""
    variance = plan_noise("distributed", STD**2, members, 1).total_variance(members)
    tails = 12 * (int(variance**0.5) + 1)
    plan = plan_encoding(
        size, ((1 << (LANE_BITS - 1)) - 1 - members - tails) // members, Fraction(variance), members, BFV_8192
    )
    if (plan.width, plan.lanes) != (LANE_BITS, 2):
        raise AssertionError(f"lanes of {plan.width} bits, {plan.lanes} a slot")
    return plan


@dataclass(frozen=True)
class SumFigures:
    """CPU seconds of one participant's or the coordinator's work, and sizes.

    Attributes:
        payload: bytes of one contribution.
        noise, mask, encrypt: of one participant: draw its share; pack and mask; tag, encrypt and serialise.
        add: of the coordinator for one contribution: check, parse, add.
        open: decrypt and check the tags (one member), take off the self-masks and unpack (the coordinator).
        ciphertexts: of one contribution.
    """

    payload: int
    noise: float
    mask: float
    encrypt: float
    add: float
    open: float
    ciphertexts: list[bytes]


def measure_sum(size: int, members: int, repeats: int) -> SumFigures:
    """Time every step of one sum.

    Raises:
        AssertionError: the opened sum is not the exact one.
    """
    plan, cohort = lane_plan(size, members), make_cohort(members)
    noise = plan_noise("distributed", STD**2, members, 1)
    key, tag_key = SecretKey.generate(BFV_8192), TagKey(bytes(32))
    random = np.random.default_rng(0)
    totals = [Adder(BFV_8192, plan.words(index) + TAGS, members) for index in range(plan.ciphertexts)]
    exact = np.zeros(size, dtype=np.int64)
    figures: dict[str, float] = {}
    payload: list[bytes] = []
    add_seconds = []
    for place, name in enumerate(cohort.names):
        values = random.integers(-plan.bound, plan.bound + 1, size)
        times = repeats if place == members // 2 else 1  # the one in the middle adds and subtracts masks
        noise_seconds, share = timed(lambda: noise.draw(size, SYSTEM_RANDOM), times)
        noised = values + share
        mask_seconds, words = timed(lambda name=name, noised=noised: cohort.words(name, noised, plan, CONTEXT), times)  # type: ignore[misc]
        encrypt_seconds, ciphertexts = timed(
            lambda name=name, words=words: list(encrypt_contribution(words, plan, CONTEXT, name, key, tag_key)),  # type: ignore[misc]
            times,
        )
        if place == members // 2:
            figures = {"noise": noise_seconds, "mask": mask_seconds, "encrypt": encrypt_seconds}
            payload = ciphertexts
        start = time.process_time()
        for index, ciphertext in enumerate(ciphertexts):
            totals[index].add(ciphertext)
        add_seconds.append(time.process_time() - start)
        exact += noised
    sums = [total.to_bytes() for total in totals]
    consents = cohort.consents(CONTEXT)
    open_seconds, opened = timed(
        lambda: open_sum(decrypt_sum(sums, plan, CONTEXT, cohort.names, key, tag_key), plan, consents), repeats
    )
    np.testing.assert_array_equal(opened, exact)
    return SumFigures(
        payload=sum(len(ciphertext) for ciphertext in payload),
        add=min(add_seconds),
        open=open_seconds,
        ciphertexts=payload,
        **figures,
    )
