"""Who counts in a cohort, at the very boundary: the site itself and members pinned by key; their noise less the colluders'."""

from __future__ import annotations

import itertools
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from support.certificates import NOW, Forge
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Role, SigningKey, verify_certificate
from veilsum_participant.protocol.policy import member_faults, noise_faults, trusted
from veilsum_participant.settings.config import Policy
from veilsum_privacy.mechanism.noise_plan import NoisePlan
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
    assert len(trusted(cohort, policy(pinned), OWN)) == known
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
        assert len(trusted(cohort, pins, OWN)) == 3
        assert not refused(2, 1, cohort, pins)
        assert refused(3, 1, cohort, pins)
    assert len(trusted(cohort, policy("ab"), OWN)) == 2
    assert refused(2, 1, cohort, policy("ab"))


def test_a_site_that_bears_the_whole_noise_needs_nobody() -> None:
    cohort = [member(name) for name in "abc"]
    assert not refused(1, 2, cohort, policy(""))
    assert not list(noise_faults(NoisePlan("local", 10**9, 1, 1), cohort, Policy(trusted={}, noise=("local",)), OWN))


@pytest.mark.parametrize(("kind", "accepted"), [("training", "local"), ("local", "local"), ("distributed", "distributed")])
def test_noise_is_of_a_kind_that_the_site_accepts(kind: Any, accepted: Any) -> None:
    plan, cohort = NoisePlan(kind, 10**9, 1, 1), [member(name) for name in "abc"]
    other = {"local": "distributed", "distributed": "local"}[accepted]
    assert not list(noise_faults(plan, cohort, Policy(noise=(accepted,)), OWN))
    (fault,) = noise_faults(plan, cohort, Policy(noise=(other, "none")), OWN)
    assert (fault.code, repr(accepted) in fault.message) == (RefusalCode.NOISE, True)


def test_what_was_kept_and_paid_for_needs_no_further_noise() -> None:
    assert not list(noise_faults(NoisePlan("kept", 0, 1, 1), [member("a")], Policy(noise=()), OWN))


def broken(cohort: str, pins: dict[str, str], own_least: int = 2, study_least: int = 2, trusted_least: int = 1) -> list[Any]:
    study: Any = SimpleNamespace(privacy=SimpleNamespace(min_cohort=study_least))
    held = Policy(trusted=pins, min_cohort=own_least, min_trusted=trusted_least)
    return [fault.code for fault in member_faults([member(name) for name in cohort], study, held, OWN)]


def test_a_cohort_is_as_large_as_the_site_and_the_study_demand() -> None:
    for own_least, study_least in ((3, 2), (2, 3), (3, 3)):
        assert broken("abc", {}, own_least, study_least) == []
        assert broken("ab", {}, own_least, study_least) == [RefusalCode.COHORT_SMALL]
    assert broken("a", {}) == [RefusalCode.COHORT_SMALL]


def test_a_pinned_name_has_the_pinned_key_and_enough_are_pinned() -> None:
    pins = {name: member(name).identity.fingerprint for name in "bc"}
    assert broken("abcd", pins, trusted_least=3) == []
    assert broken("abcd", pins, trusted_least=4) == [RefusalCode.COHORT_TRUST]
    assert broken("abcd", {**pins, "d": member("d", 1).identity.fingerprint}, trusted_least=3) == [RefusalCode.COHORT_TRUST]
