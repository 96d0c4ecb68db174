"""One site's noised vector out of its payload: opened with its own secrets, which nobody in the protocol ever has together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from support.hostile import Adversary, subtract_mod
from veilsum_aggregation.arrays import Integers
from veilsum_participant.store.tables import promised
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import DATA, KEY, MemberMasks, self_masks
from veilsum_privacy.securesum.opening import open_words, unmask_values


def own_vector(attack: Adversary, name: str, attempt: int) -> Integers:
    """What one site added to the sum of an attempt that it did not give up: (size,) in grid units, noise included."""
    row = attack.attempt_row(name, attempt)
    assert row is not None
    plan, names, seeds = attack.plan(attempt).encoding, attack.assignments[attempt].names, attack.spied(name).seeds
    sharing = [other for other in names if other == name or other in seeds]
    consent, sent = promised(row.consent), attack.contribution(name, attempt)

    bound, alone, count = 1 << plan.ring.share_bits(plan.cohort), replace(plan, cohort=1), len(sent.share)
    masks = MemberMasks(row.context, name, sharing, seeds, consent)
    opened = subtract_mod(sent.share, masks.all(KEY, count, bound) % np.uint64(bound), bound).view(np.int64)
    key = np.where(opened >= bound // 2, opened - bound, opened)

    own = 1 << plan.ring.share_bits(1)
    share = np.mod(key, own).view(np.uint64) + self_masks(KEY.own, row.context, [consent], count, own)
    words = open_words(Contribution(share % np.uint64(own), sent.coefficients), alone, row.context, [consent])
    modulus = plan.ring.plain_modulus
    pairs = masks.pairwise(DATA.pair, plan.words, modulus)
    return unmask_values(subtract_mod(words, pairs, modulus), alone, row.context, [consent])
