"""The estimate behind the parameters of one-time keys, first against published values, then of the parameters themselves."""

from __future__ import annotations

import math

import pytest

from support.lattices import core_svp, primal_block
from veilsum_privacy.securesum.ring import KEY_VARIANCE, RINGS

HINTED = math.sqrt(KEY_VARIANCE / 4)
"""Deviation of secret and error to which the hints of two honest members reduce (decision 109)."""


@pytest.mark.parametrize(
    ("degree", "modulus", "deviation", "samples", "published"),
    [
        (512, 3329, math.sqrt(1.5), 512, 406),  # Kyber, specification of round 3, table 4
        (768, 3329, 1.0, 768, 625),
        (1024, 3329, 1.0, 1024, 877),
        (1024, 12289, math.sqrt(8), 1024, 967),  # NewHope, 2016, table 1: 967, of the primal attack
    ],
)
def test_published_block_sizes_come_out(degree: int, modulus: int, deviation: float, samples: int, published: int) -> None:
    assert abs(primal_block(degree, modulus, deviation, deviation, samples) - published) <= 4


@pytest.mark.parametrize("ring", RINGS, ids=lambda ring: f"{ring.degree}-{ring.plain_modulus.bit_length()}")
def test_parameters_are_no_weaker_than_the_tables_entry(ring) -> None:  # type: ignore[no-untyped-def]
    """Of 128 bits against a quantum computer: ternary keys and errors of deviation 3.19 (Homomorphic Encryption Standard)."""
    bits = {2048: 51, 4096: 101}[ring.degree]
    table = primal_block(ring.degree, 1 << bits, math.sqrt(2 / 3), 3.19, 4 * ring.degree)
    ours = primal_block(ring.degree, ring.prime, HINTED, HINTED, 4 * ring.degree)
    assert ours >= table
    assert HINTED > 3.19
    classical, quantum = core_svp(ours)
    expected = {2048: (113.0, 102.6), 4096: (228.3, 207.2)}[ring.degree]
    assert (classical, quantum) == pytest.approx(expected, abs=0.6)


def test_fewer_honest_members_and_shorter_keys_would_show() -> None:
    """What the numbers can tell apart: variance 10.5 in place of 42 (no room for hints), and 54 bits in place of 51."""
    whole = primal_block(2048, 1 << 51, HINTED, HINTED, 8192)
    assert primal_block(2048, 1 << 51, HINTED / 2, HINTED / 2, 8192) < whole - 10
    assert primal_block(2048, 1 << 54, HINTED, HINTED, 8192) < whole - 20
