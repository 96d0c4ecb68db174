"""The secure sum's steps by themselves, in CPU time of one core: noise, mask, encrypt, add, answer, open and check.

One participant's work is timed; the rest of the cohort exists as seeds. The opened sum is compared with the exact one, so a
figure never belongs to a wrong result.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from benchmarks.timing import timed
from support.one_time import Members, make_members
from veilsum_aggregation.arrays import Integers
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.mechanism.noise_plan import plan_noise
from veilsum_privacy.results.whole_sums import total_from_bytes
from veilsum_privacy.securesum.check_words import challenge, check_words, verify_check_words
from veilsum_privacy.securesum.key_shares import share_to_bytes
from veilsum_privacy.securesum.one_time_keys import coefficients_to_bytes, encrypt_words
from veilsum_privacy.securesum.opening import Total, open_words, unmask_values
from veilsum_privacy.securesum.ring import RING_4096
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.sum_plan import OneTimePlan

STD = 4096  # grid units
LANE_BITS = 24


def lane_cohort(size: int, count: int) -> Members:
    """A cohort whose plan has two 24-bit lanes a word, with the largest bound that fits them."""
    variance = plan_noise("distributed", STD**2, count, 1).total_variance(count)
    tails = 12 * (int(variance**0.5) + 1)
    bound = ((1 << (LANE_BITS - 1)) - 1 - count - tails) // count
    members = make_members(count, size, bound, RING_4096, variance=Fraction(variance))
    if (members.plan.width, members.plan.lanes) != (LANE_BITS, 2):
        raise AssertionError(f"lanes of {members.plan.width} bits, {members.plan.lanes} a word")
    return members


def lock(members: Members, name: str, words: Integers) -> bytes:
    """Key, key share and encryption of masked words, as they travel."""
    plan, ring = members.plan, members.ring
    key = draw_key(ring, SYSTEM_RANDOM)
    parts = encrypt_words(words, key, members.context, ring, SYSTEM_RANDOM)  # type: ignore[arg-type]
    share = share_to_bytes(members.share(name, key), ring, plan.cohort)
    return b"".join([share, *(coefficients_to_bytes(part, ring) for part in parts)])


def pieces_of(payload: bytes, plan: OneTimePlan) -> list[bytes]:
    """A contribution in the pieces in which it travels."""
    pieces, start = [], 0
    for index in range(plan.pieces):
        pieces.append(payload[start : start + plan.piece_bytes(index)])
        start += plan.piece_bytes(index)
    return pieces


@dataclass(frozen=True)
class SumFigures:
    """CPU seconds of one participant's or the coordinator's work, and sizes.

    Attributes:
        payload: bytes of one contribution.
        noise, mask, encrypt, check: of one participant: draw its share; pack and mask; key, key share and encryption,
            serialised; answer the challenge.
        add: of the coordinator for one contribution: parse, add.
        open: of the coordinator: open, hold to the check words, take off the self-masks and unpack.
        sent: one contribution.
    """

    payload: int
    noise: float
    mask: float
    encrypt: float
    check: float
    add: float
    open: float
    sent: bytes


def measure_sum(size: int, count: int, repeats: int) -> SumFigures:
    """Time every step of one sum.

    Raises:
        AssertionError: the opened sum is not the exact one.
    """
    members, noise = lane_cohort(size, count), plan_noise("distributed", STD**2, count, 1)
    plan, context, modulus = members.plan, members.context, members.ring.plain_modulus
    random, total, exact = np.random.default_rng(0), Total(plan), np.zeros(size, dtype=np.int64)
    figures: dict[str, float] = {}
    masked, add_seconds, sent = [], [], b""
    for place, name in enumerate(members.names):
        values = random.integers(-plan.bound, plan.bound + 1, size)
        times = repeats if place == count // 2 else 1  # the one in the middle adds and subtracts masks
        noise_seconds, share = timed(lambda: noise.draw(size, SYSTEM_RANDOM), times)
        noised = values + share
        mask_seconds, words = timed(lambda name=name, noised=noised: members.mask(name, noised), times)  # type: ignore[misc]
        encrypt_seconds, payload = timed(lambda name=name, words=words: lock(members, name, words), times)  # type: ignore[misc]
        if place == count // 2:
            figures = {"noise": noise_seconds, "mask": mask_seconds, "encrypt": encrypt_seconds}
            sent = payload
        start = time.process_time()
        total.add(total_from_bytes(payload, plan))
        add_seconds.append(time.process_time() - start)
        masked.append(words)
        exact += noised
    fixed = total.contribution.digest(plan, context)
    rho, answers = challenge(context, [b"receipt"] * count, fixed), []
    for place, (name, words) in enumerate(zip(members.names, masked, strict=True)):

        def answer(name: str = name, words: Integers = words) -> tuple[int, ...]:
            return check_words(words, modulus, rho, members.masks(name))  # type: ignore[arg-type]

        seconds, said = timed(answer, repeats if place == count // 2 else 1)
        answers.append(said)
        if place == count // 2:
            figures["check"] = seconds
    consents = members.consents

    def opening() -> Integers:
        opened = open_words(total.contribution, plan, context, consents)
        verify_check_words(opened, modulus, context, rho, answers, consents)
        return unmask_values(opened, plan, context, consents)

    open_seconds, opened = timed(opening, repeats)
    np.testing.assert_array_equal(opened, exact)
    return SumFigures(payload=len(sent), add=min(add_seconds), open=open_seconds, sent=sent, **figures)
