"""Who shares masks with whom: in a small study all members, in a large one each with some neighbours (decision 73).

A large study's members sit in a circle, in an order that the roster's digest draws, and each shares masks with those that sit
at most ``reach`` places away: Harary's graph with its nodes permuted, as in Bell et al. 2020 ("Secure single-server
aggregation with (poly)logarithmic overhead", ACM CCS). A cohort's masks cancel whoever shares them. When some of its members
work together and take off all masks that they know, the rest's masks still hide everything but one sum over those that remain
connected; and members in a circle fall apart only where two runs of ``reach`` neighbouring places each are gone whole. So how
many members can take a cohort apart, however they were chosen, is known exactly: :meth:`MaskGraph.separators`. Every site
computes it before each attempt and refuses a cohort in which it is below :func:`least_separators`. Nothing here rests on the
order being random, but how often a cohort of those that are present passes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import comb

from veilsum_node.canonical import digest
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.study.study import PrivacyDemand

NEIGHBOURS = 64
"""Fewest neighbours of a member; a study of no more other members is complete."""

SEPARATORS = 16
"""Fewest members that must have to work together to take a cohort apart, where masks are shared by neighbours."""

CHANCE_BITS = 40
"""A cohort of the study's smallest size, absent members being independent of the order, fails by a chance below 2^-this."""


def least_separators(privacy: PrivacyDemand) -> int:
    """How many members must have to work together, at least, to take a cohort apart."""
    return max(SEPARATORS, privacy.assumed_colluders + 1)


def is_complete(members: int, privacy: PrivacyDemand) -> bool:
    """Whether in a study everyone shares masks with everyone, with a roster of so many members."""
    return 2 * reach(members, privacy.min_cohort, least_separators(privacy)) >= members - 1


@lru_cache(maxsize=32)
def reach(members: int, smallest: int, least: int) -> int:
    """How many places away a member's farthest neighbours sit in the circle; half of all places is everyone.

    The fewest at which two runs of places hold ``least`` present members but with a chance below 2^-:data:`CHANCE_BITS`: of
    the fewer than members^2 / 2 pairs of runs, each holds a hypergeometric number of them.

    Args:
        members: of the roster.
        smallest: how many of them are present at least.
        least: how many members must have to work together to take them apart.
    """
    low, high = NEIGHBOURS // 2, members // 2
    while low < high:
        middle = (low + high) // 2
        if _falls_apart(members, smallest, 2 * middle, least):
            low = middle + 1
        else:
            high = middle
    return high


def _falls_apart(members: int, smallest: int, places: int, least: int) -> bool:
    few = sum(comb(smallest, count) * comb(members - smallest, places - count) for count in range(min(least, places + 1)))
    return members**2 * few << CHANCE_BITS > 2 * comb(members, places)


@dataclass(frozen=True)
class MaskGraph:
    """Who shares masks with whom in one study.

    Attributes:
        circle: all members' names, in the order in which they sit.
        reach: how many places away the farthest neighbours sit, at most half of all.
    """

    circle: tuple[str, ...]
    reach: int

    @property
    def complete(self) -> bool:
        """Whether everyone shares masks with everyone."""
        return 2 * self.reach >= len(self.circle) - 1

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.circle)}

    def neighbours(self, name: str) -> frozenset[str]:
        """The other members that a member shares masks with."""
        place, count = self._places[name], len(self.circle)
        steps = range(1, self.reach + 1)
        return frozenset(self.circle[(place + step * side) % count] for step in steps for side in (1, -1)) - {name}

    def separators(self, cohort: Collection[str]) -> int:
        """How many members of a cohort must work together, at least, for the others' masks to hide less than their whole sum.

        It is the connectivity of the cohort's part of the graph: one less than the cohort if the graph is complete.
        """
        return len(cohort) - 1 if self.complete else self._cut(frozenset(cohort))

    @lru_cache(maxsize=8)  # noqa: B019 - few graphs are made, and all are remembered by mask_graph
    def _cut(self, cohort: frozenset[str]) -> int:
        """The fewest members of two disjoint runs of places that leave members between them, on either side.

        Each run may begin right behind a member that stays: moved back to one, it holds no more members than before.
        """
        places = sorted(self._places[name] for name in cohort)
        count, whole = len(places), len(self.circle)
        around = [*places, *(place + whole for place in places)]
        sizes, end = [], 0
        for index, place in enumerate(places):  # how many members sit in the run behind each
            end = max(end, index)
            while end + 1 < len(around) and around[end + 1] <= place + self.reach:
                end += 1
            sizes.append(end - index)
        least = count - 1
        order = sorted(range(count), key=sizes.__getitem__)
        for position, first in enumerate(order):
            if 2 * sizes[first] >= least:
                break
            for second in order[position + 1 :]:
                if sizes[first] + sizes[second] >= least:
                    break
                if sizes[first] < (second - first) % count and sizes[second] < (first - second) % count:
                    least = sizes[first] + sizes[second]
                    break
        return least


@lru_cache(maxsize=32)
def _graph(names: tuple[str, ...], roster: bytes, farthest: int) -> MaskGraph:
    return MaskGraph(tuple(sorted(names, key=lambda name: digest("veilsum/1/circle", roster, name.encode()))), farthest)


def mask_graph(roster: Roster, privacy: PrivacyDemand) -> MaskGraph:
    """The graph of a study: everyone who has its roster makes the same."""
    farthest = reach(len(roster.members), privacy.min_cohort, least_separators(privacy))
    return _graph(roster.names, roster.digest, farthest)
