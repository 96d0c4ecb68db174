"""Which cohorts a population's sums had, over all studies, and what may come beside them.

Two sums of one population whose cohorts differ in a few members show those members' own numbers by subtraction, whatever the
two studies asked for. Noise covers that where each sum has its own; so this rule is about sums without noise, and those whose
study promises one cohort only. Every such cohort that this site consented to is remembered for good, in the transaction that
charges, and a later one must be the same or differ in at least ``policy.min_cohort`` members.

Members are the same if their keys are; a name whose key has changed counts as another member, unless it is this site's own or
the new key is pinned. Sums of more than two cohorts may be combined so that fewer members are left than any two differ in:
that is not looked for.

Sums of one vector a site, as training gives it, may weigh their members. Two of one cohort at unlike weights are two equations
of the same vectors, also where they are of two studies: w of the one less c times v of the other leaves the vectors of some
members. So weights are remembered as well, and no such difference may leave one member more than 1 / ``min_cohort`` of it. At
equal weights that is the rule for members.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TYPE_CHECKING

import numpy as np
from sqlalchemy import Connection, bindparam, inspect, or_, select, update
from sqlalchemy.dialects.sqlite import insert as upsert

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_participant.store.populations import COHORTS
from veilsum_privacy.securesum.roster import Member
from veilsum_privacy.study.study import Study

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig, Policy
    from veilsum_privacy.computation.declared import DeclaredStudy

Cohort = Mapping[str, str]
"""Members' key fingerprints by name; an empty one where only the name is known."""

Weights = Mapping[str, float]
"""What a sum of one vector a site multiplies each member's by, by name; the largest is 1. NaN where a restored site does not
know whether it was such a sum, or its weights."""

VECTORS = ("factors", "training")
"""Kinds of tasks that give one vector of all of a site's records, which another sum may be of as well."""

NOTHING = 2.0**-46
"""A share of all weights that counts as none: of vectors of up to 2^40 grid units it is less than what rounding takes."""

MOST_COMPARISONS = 20_000
"""How many pairs of cohorts are compared in search of one that an invited study could have; beyond them, rounds decide."""

FORGOTTEN = "Run `veilsum ledger recover --from` with the export of a site that took part; its receipts show who was in it."
"""What to do where a restored site does not know a cohort."""

UNWEIGHED = 'Ask for sums over records, or for a study with noise and cohort_difference = "allowed".'
"""What to do where a restored site does not know by which weights a sum of one vector a site had its members."""


@dataclass(frozen=True)
class RememberedCohort:
    """A cohort that this site consented to.

    Attributes:
        study: digest of the study.
        members: None after a restored backup whose receipts do not show them.
        weights: of a sum of one vector a site; None of others, and of sums that earlier versions remembered.
    """

    study: bytes
    members: Cohort | None
    weights: Weights | None = None


def is_held(study: Study) -> bool:
    """Whether the cohorts of a study's sums are held to earlier ones; a study without noise is always strict."""
    return study.privacy.cohort_difference == "strict"


def remember(
    connection: Connection,
    key: bytes,
    dataset: str,
    population: str,
    context: bytes,
    members: Cohort | None,
    weights: Weights | None = None,
) -> None:
    """Remember the cohort of a sum that is charged; belongs into the same transaction. Nothing if its study is known to have
    had that cohort. Members and weights are as in :class:`RememberedCohort`.
    """
    text = None if members is None else _dump(members, weights)
    same = select(COHORTS.c.context).where(COHORTS.c.study == key, COHORTS.c.members == text)
    if text is None or connection.execute(same.limit(1)).first() is None:
        values = {"context": context, "study": key, "dataset": dataset, "population": population, "members": text}
        connection.execute(upsert(COHORTS).values(values).on_conflict_do_nothing())


def complete(connection: Connection, context: bytes, members: Cohort, weights: Weights | None) -> None:
    """Fill in the members of a cohort that was not known, and what is known of their weights."""
    unknown = update(COHORTS).where(COHORTS.c.context == context, COHORTS.c.members.is_(None))
    connection.execute(unknown.values(members=_dump(members, weights)))


def remembered(connection: Connection, config: ParticipantConfig, population: str) -> list[RememberedCohort]:
    """The cohorts of a population: of its name, and of the datasets that are counted to it now."""
    if not inspect(connection).has_table(COHORTS.name):  # a file of an older layout, or none yet, opened to read
        return []
    datasets = [name for name in config.datasets if config.population(name) == population]
    rows = connection.execute(_OF_POPULATION, {"population": population, "datasets": datasets})
    return [RememberedCohort(bytes(row.study), *((None,) if row.members is None else _load(row.members))) for row in rows]


_OF_POPULATION = select(COHORTS.c.study, COHORTS.c.members).where(
    or_(COHORTS.c.population == bindparam("population"), COHORTS.c.dataset.in_(bindparam("datasets", expanding=True)))
)


def by_key(members: Sequence[Member]) -> dict[str, str]:
    """A cohort of verified members."""
    return {member.name: member.identity.fingerprint for member in members}


def difference(one: Cohort, other: Cohort, policy: Policy, own: str) -> set[str]:
    """Names of those who are in one of two cohorts only, ``one`` being the present one."""
    if one == other:
        return set()
    keys, others = set(one.values()), set(other.values())
    apart = {name for name, key in one.items() if key not in others} | {name for name, key in other.items() if key not in keys}
    return {name for name in apart if not (name in one and name in other and _same(name, one, other, policy, own))}


def _same(name: str, one: Cohort, other: Cohort, policy: Policy, own: str) -> bool:
    return name == own or not other[name] or policy.trusted.get(name) == one[name]


def _side_by_side(
    one: Cohort, weights: Weights, other: Cohort, others: Weights, policy: Policy, own: str
) -> tuple[Floats, Floats]:
    """The weights of every member of either cohort in both sums, 0 where it is in one only; ``one`` is the present cohort."""
    names, pairs, left = {key: name for name, key in other.items()}, list[tuple[float, float]](), dict(others)
    for name, key in one.items():
        former = names.get(key, name if name in other and _same(name, one, other, policy, own) else None)
        pairs.append((weights[name], left.pop(former, 0.0) if former is not None else 0.0))
    pairs += [(0.0, weight) for weight in left.values()]
    found = np.array(pairs, dtype=np.float64)
    return found[:, 0], found[:, 1]


def largest_left(weights: Floats, others: Floats) -> float:
    """The largest part that one member has of a difference of two sums in which these are everyone's weights (n,), at most 1.

    That is of w - c v, for the c at which it is largest: between two c at which a member drops out, each member's part rises
    or falls throughout. 0 where nothing is left.
    """
    largest, both = 0.0, np.stack([weights, others])
    for own, other in np.unique(both[:, others > 0.0], axis=1).T.tolist():
        first, second = weights * (other / max(own, other)), others * (own / max(own, other))
        left, whole = np.abs(first - second), float(first.sum() + second.sum())
        if left.sum() > NOTHING * whole:
            largest = max(largest, float(left.max() / left.sum()))
    return largest


def cohort_faults(
    connection: Connection,
    key: bytes,
    study: Study,
    config: ParticipantConfig,
    members: Sequence[Member],
    own: str,
    weights: Weights | None = None,
) -> Iterator[Refusal]:
    """Whether a sum would stand beside an earlier one that it must not be subtracted from.

    Args:
        own: this site's certified name.
        weights: of a sum of one vector a site; None of others, and before they are known.
    """
    if not is_held(study):
        return
    present, population, policy = by_key(members), config.population(study.dataset), config.policy
    earlier = remembered(connection, config, population)
    apart = [(item.study, difference(present, item.members, policy, own)) for item in earlier if item.members is not None]
    if any(of == key and names for of, names in apart):
        yield Refusal(RefusalCode.COHORT_CHANGED, "The study allows one cohort only, and this is another.")
        return
    if any(item.members is None for item in earlier):
        yield _unknown(population)
        return
    close = sorted({tuple(sorted(names)) for _, names in apart if 0 < len(names) < policy.min_cohort}, key=len)
    if close:
        yield Refusal(
            RefusalCode.COHORT_CHANGED,
            f"An earlier sum of the population {population} had a cohort that differs from this one only by"
            f" {', '.join(close[0])}, whose own numbers the two sums would reveal; policy.min_cohort is {policy.min_cohort}.",
            'Ask for the same cohort, or for a study with noise and cohort_difference = "allowed".'
            + (" If a site changed its key, confirm the new fingerprint and pin it." if set(close[0]) & set(present) else ""),
        )
        return
    if weights is not None and any(map(lacks_weights, earlier)):
        yield _unknown(population, "by which weights members were", UNWEIGHED)
        return
    for item in earlier:
        if weights is None or item.study == key or item.members is None or item.weights is None:
            continue  # of one study :func:`.limits.weight_faults` says more
        part = largest_left(*_side_by_side(present, weights, item.members, item.weights, policy, own))
        if part > (1.0 + 1e-9) / policy.min_cohort:
            yield Refusal(
                RefusalCode.COHORT_CHANGED,
                f"An earlier sum of the population {population} had other weights, and one member would have {part:.3g} of the"
                f" difference of the two, above 1 / min_cohort = 1/{policy.min_cohort}.",
                'Ask for the same weights, or for a study with noise and cohort_difference = "allowed".',
            )
            return


def lacks_weights(item: RememberedCohort) -> bool:
    """Whether its weights are not known, after a restored backup."""
    return item.weights is not None and any(map(math.isnan, item.weights.values()))


def _unknown(population: str, what: str = "who was", advice: str = FORGOTTEN) -> Refusal:
    message = f"A restored backup does not know {what} in a sum of the population {population}, so none can stand beside it."
    return Refusal(RefusalCode.COHORT_CHANGED, message, advice)


def joining_faults(connection: Connection, agreed: DeclaredStudy, config: ParticipantConfig, own: str) -> Iterator[Refusal]:
    """Whether the sites that a study invites can form a cohort that :func:`cohort_faults` lets pass, as far as names tell."""
    study = agreed.study
    if not is_held(study) or study.dataset not in config.datasets:
        return
    population, policy = config.population(study.dataset), config.policy
    earlier = remembered(connection, config, population)
    if any(item.members is None for item in earlier):
        yield _unknown(population)
        return
    if any(map(lacks_weights, earlier)) and any(task.terms.kind in VECTORS for task in agreed.tasks):
        yield _unknown(population, "by which weights members were", UNWEIGHED)
    cohorts = {frozenset(item.members) for item in earlier if item.members is not None}
    smallest = max(policy.min_cohort, study.privacy.min_cohort)
    if not _possible(study.participants, own, smallest, cohorts, policy.min_cohort):
        yield Refusal(
            RefusalCode.COHORT_CHANGED,
            f"Each cohort that the invited sites can form differs from one of an earlier sum of the population {population} by"
            f" fewer than {policy.min_cohort} (policy.min_cohort), whose own numbers would be revealed.",
            'Invite the same sites as before, or ask for noise and cohort_difference = "allowed".',
        )


def _possible(invited: Sequence[str], own: str, smallest: int, cohorts: Collection[frozenset[str]], least: int) -> bool:
    whole, others = frozenset(invited), [name for name in invited if name != own]
    smaller = (whole.difference(away) for size in range(len(invited) - smallest + 1) for away in combinations(others, size))
    again = (cohort for cohort in cohorts if own in cohort and cohort <= whole and len(cohort) >= smallest)
    compared = 0
    for cohort in chain(again, smaller):
        if all(not 0 < len(cohort ^ item) < least for item in cohorts):
            return True
        compared += len(cohorts)
        if compared > MOST_COMPARISONS:
            return True
    return len(invited) < smallest  # another rule's business


def _dump(members: Cohort, weights: Weights | None = None) -> str:
    """A cohort as it is kept: keys by name, each with the member's weight where it is known."""
    return json.dumps({name: [key, weights[name].hex()] if weights else key for name, key in sorted(members.items())})


def _load(text: str) -> tuple[Cohort, Weights | None]:
    kept = {name: item for name, item in json.loads(text).items() if name}  # commits after 0.2.0 kept a number by none
    weights = {name: float.fromhex(item[1]) for name, item in kept.items() if not isinstance(item, str)}
    return {name: item if isinstance(item, str) else item[0] for name, item in kept.items()}, weights or None
