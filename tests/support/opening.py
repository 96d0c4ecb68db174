"""One site's noised vector out of its payload: opened with its own secrets, which nobody in the protocol ever has together."""

from __future__ import annotations

from dataclasses import replace

from support.hostile import Adversary, flat
from veilsum_aggregation.arrays import Integers
from veilsum_privacy.securesum.contribution import open_sum
from veilsum_privacy.securesum.masks import MaskStream, derive
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan


def plan_of(attack: Adversary, attempt: int) -> RoundPlan:
    """The public plan of an attempt of any task."""
    assignment = attack.assignments[attempt]
    return AgreedStudy(attack.study).task(assignment.label).plan(len(attack.bed.sites), len(assignment.cohort))


def own_vector(attack: Adversary, name: str, attempt: int) -> Integers:
    """What one site added to the sum of an attempt whose payload it still holds: (size,) in grid units, noise included."""
    row = attack.attempt_row(name, attempt)
    assert row is not None
    cohort, context = attack.assignments[attempt].names, row.context
    encoding = plan_of(attack, attempt).encoding
    modulus = encoding.parameters.plain_modulus
    place = cohort.index(name)
    words = attack.words(name, attack.payloads[name, attempt].ciphertexts, attempt)
    rest, width = flat(words), len(words[0])
    for other, seed in attack.spied(name).seeds.items():
        if other in cohort:
            mask = MaskStream(derive(seed, "pair", context), modulus).take(len(rest))
            rest = (rest + (mask if cohort.index(other) < place else modulus - mask)) % modulus
    alone = replace(encoding, cohort=1)
    return open_sum([rest[start : start + width] for start in range(0, len(rest), width)], alone, [row.consent])
