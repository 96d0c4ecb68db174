"""Whose noise counts: the site's own and that of members pinned by key, less the assumed colluders, at the very boundary."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from support.certificates import NOW, Forge
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Role, SigningKey, verify_certificate
from veilsum_participant.config import Policy
from veilsum_participant.policy import noise_faults, trusted
from veilsum_privacy.mechanism.noise import NoisePlan
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.roster import Member, enrol

FORGE = Forge()
OWN, NAMES = "a", "abcdef"


@cache
def member(name: str, number: int = 0) -> Member:
    """A certified member; another ``number`` is another key under the same name."""
    key = ec.generate_private_key(ec.SECP256R1())
    identity = verify_certificate(FORGE.leaf(name=name, key=key), FORGE.ca, NOW, Role.PARTICIPANT)
    public = BoxKey.generate().public
    return Member(identity, public, enrol(bytes(32), identity, public, SigningKey(key)))


def policy(pinned: str) -> Policy:
    return Policy(trusted={name: member(name).identity.fingerprint for name in pinned}, noise=("distributed",))


def refused(honest: int, colluders: int, cohort: list[Member], pins: Policy) -> bool:
    plan = NoisePlan("distributed", 10**9, honest, colluders)
    codes = [fault.code for fault in noise_faults(plan, cohort, pins, OWN)]
    assert codes in ([], [RefusalCode.NOISE])
    return bool(codes)


@pytest.mark.parametrize("pinned", ["".join(part) for n in range(6) for part in itertools.combinations("bcdef", n)][::3])
def test_as_many_shares_as_trusted_members_less_colluders_and_not_one_more(pinned: str) -> None:
    cohort = [member(name) for name in NAMES]
    known = 1 + len(pinned)  # this site needs no pin
    assert trusted(cohort, policy(pinned), OWN) == known
    for colluders in range(1, known):
        honest = known - colluders
        if honest > 1:
            assert not refused(honest, colluders, cohort, policy(pinned))
        assert refused(honest + 1, colluders, cohort, policy(pinned))


def test_one_unpinned_member_counts_for_nothing() -> None:
    """n - k shares of n members need n pins, this site's own apart: one missing, or under another key, is one share less."""
    for n in range(3, 7):
        cohort = [member(name) for name in NAMES[:n]]
        others = NAMES[1:n]
        for colluders in range(1, n - 1):
            assert not refused(n - colluders, colluders, cohort, policy(others))
            assert refused(n - colluders, colluders, cohort, policy(others[:-1]))
            assert refused(n - colluders, colluders, [*cohort[:-1], member(others[-1], 1)], policy(others))
            assert refused(n - colluders, colluders, cohort, policy(others[:-1] + "z"))  # a pin of nobody who is here


def test_the_site_itself_counts_once_pinned_or_not() -> None:
    cohort = [member(name) for name in "abc"]
    for pins in (policy("bc"), policy("abc")):
        assert trusted(cohort, pins, OWN) == 3
        assert not refused(2, 1, cohort, pins)
        assert refused(3, 1, cohort, pins)
    assert trusted(cohort, policy("ab"), OWN) == 2
    assert refused(2, 1, cohort, policy("ab"))


def test_a_site_that_bears_the_whole_noise_needs_nobody() -> None:
    cohort = [member(name) for name in "abc"]
    assert not refused(1, 2, cohort, policy(""))
    assert not list(noise_faults(NoisePlan("local", 10**9, 1, 1), cohort, Policy(trusted={}, noise=("local",)), OWN))
