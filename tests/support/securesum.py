"""Cohorts with made-up keys for tests of the secure sum's core, and the statistics that judge their words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from support.randomness import RARE, SeededRandom
from veilsum_privacy.securesum.bfv import Adder
from veilsum_privacy.securesum.contribution import consent_key, masked_words
from veilsum_privacy.securesum.frames import SEED_BYTES
from veilsum_privacy.securesum.masks import MaskStream, derive
from veilsum_privacy.securesum.parameters import BFV_8192, BfvParameters, EncodingPlan, plan_encoding

Slots = NDArray[np.uint64]
Integers = NDArray[np.int64]

ALPHA = RARE
"""Bound on the p-values of :func:`uniform_p_value`: two statistics at this level, so a false alarm stays below 1e-9."""

BINS = 64


@dataclass
class Cohort:
    """Members with pair seeds and self seeds, none of them random.

    Attributes:
        names: in roster order.
        pairs: the seed of every pair, by both names.
        selves: every member's self seed.
    """

    names: tuple[str, ...]
    pairs: dict[frozenset[str], bytes]
    selves: dict[str, bytes]

    def seeds(self, name: str) -> dict[str, bytes]:
        """One member's pair seeds by the other's name."""
        return {other: self.pairs[frozenset((name, other))] for other in self.names if other != name}

    def words(self, name: str, values: Integers, plan: EncodingPlan, context: bytes) -> list[Slots]:
        """The masked words of one member's contribution."""
        return list(masked_words(values, plan, context, name, self.names, self.seeds(name), self.selves[name]))

    def consents(self, context: bytes) -> list[bytes]:
        """Every member's consent."""
        return [consent_key(self.selves[name], context) for name in self.names]

    def sum_words(self, vectors: Sequence[Integers], plan: EncodingPlan, context: bytes) -> list[Slots]:
        """The sum of all contributions' words, as adding their ciphertexts would give it."""
        words = (self.words(name, values, plan, context) for name, values in zip(self.names, vectors, strict=True))
        return add_words(words, plan.parameters.plain_modulus)

    def unmask(self, name: str, words: Sequence[Slots], context: bytes, modulus: int, without: Sequence[str]) -> list[Slots]:
        """Take every mask off a contribution but those of the pairs with ``without`` (its own name: the self-mask)."""
        place = self.names.index(name)
        plus = [] if name in without else [consent_key(self.selves[name], context)]
        minus = []
        for other, seed in self.seeds(name).items():
            if other not in without:
                (plus if self.names.index(other) > place else minus).append(derive(seed, "pair", context))
        t, width = np.uint64(modulus), len(words[0])
        rest = np.concatenate(words)
        for key in plus:
            rest = (rest + t - MaskStream(key, modulus).take(len(rest))) % t
        for key in minus:
            rest = (rest + MaskStream(key, modulus).take(len(rest))) % t
        return [rest[start : start + width] for start in range(0, len(rest), width)]


def make_cohort(size: int, seed: int = 0) -> Cohort:
    """Make a cohort with seeded keys."""
    random = SeededRandom(b"cohort %d %d" % (size, seed))
    names = tuple(f"site-{index:02d}" for index in range(size))
    pairs = {frozenset((a, b)): random.bytes(32) for place, a in enumerate(names) for b in names[place + 1 :]}
    return Cohort(names, pairs, {name: random.bytes(32) for name in names})


def add_words(contributions: Iterable[Sequence[Slots]], modulus: int) -> list[Slots]:
    """Sum contributions slot by slot mod t, one after the other."""
    total: list[Slots] = []
    for words in contributions:
        total = [(a + b) % np.uint64(modulus) for a, b in zip(total, words, strict=True)] if total else list(words)
    return total


def exact_plan(size: int, bound: int, cohort: int, parameters: BfvParameters = BFV_8192) -> EncodingPlan:
    """The encoding of a sum without noise."""
    return plan_encoding(size, bound, Fraction(0), cohort, parameters)


def sum_of(contributions: Iterable[bytes], parameters: BfvParameters, slots: int) -> bytes:
    """The sum of fresh ciphertexts of so many slots; of one it has the same bytes."""
    parts = list(contributions)
    adder = Adder(parameters, slots, len(parts))
    for part in parts:
        adder.add(part)
    return adder.to_bytes()


def summands_of(total: bytes, parameters: BfvParameters, slots: int) -> int:
    """How many ciphertexts of so many slots a sum of at most 64 is of, by its seeds."""
    return (len(total) - slots * parameters.coefficient_bytes) // SEED_BYTES


def malleated(total: bytes, parameters: BfvParameters, extra: int) -> bytes:
    """A sum with ``extra`` added to its first coefficient: so much more noise, and the same words while it stays below q/2t.

    Whoever adds up ciphertexts can do that without a key."""
    width = parameters.coefficient_bytes
    changed = (int.from_bytes(total[:width], "little") + extra) % parameters.prime
    return changed.to_bytes(width, "little") + total[width:]


def uniform_p_value(words: NDArray[np.uint64], modulus: int) -> float:
    """Smaller p-value of two chi-square tests of uniformity below ``modulus``: leading bits, and residues mod 64.

    Bins differ in their probability by less than BINS / modulus, far below what any sample here can see.
    """
    flat = words.reshape(-1)
    leading = np.bincount((flat // np.uint64(-(-modulus // BINS))).astype(np.int64), minlength=BINS)
    trailing = np.bincount((flat % np.uint64(BINS)).astype(np.int64), minlength=BINS)
    return min(float(stats.chisquare(leading).pvalue), float(stats.chisquare(trailing).pvalue))
