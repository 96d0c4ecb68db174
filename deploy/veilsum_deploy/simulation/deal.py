"""Who holds what in a simulation: the domains of a collection, a partition and a seed make sites and records to test on.

The same seed gives the same records, whatever is done with them: cells of a sweep are compared on equal splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from veilsum_deploy.collections import TEST_SHARE, Collection
from veilsum_deploy.datasets import Dataset, Rows, concatenate
from veilsum_deploy.simulation.partition import domain_alpha, hold_out, partition, thin_domains
from veilsum_node.errors import Misuse

DEFAULT_SITES = 4

_AFTER = 1 << 20
"""Keeps the draws after the skew apart from those before it."""


@dataclass(frozen=True)
class Setting:
    """What of a simulation is no part of the study.

    Attributes:
        partition: as the command's help lists them.
        sites: how many; None for one a domain, or :data:`DEFAULT_SITES` where sites are no domains.
        limit: most training records of a site before the skew; where sites are no domains, on average.
        cap: most training records of a site after the skew, drawn at random.
        holdout: share of each class that is tested on where the source has no test records; None for the collection's.
        split: seed of what is held out; None for each run's own. A fixed one keeps the records to test on out of whatever is
            fitted beforehand, as a projection.
    """

    partition: str = "iid"
    sites: int | None = None
    limit: int | None = None
    cap: int | None = None
    holdout: float | None = None
    split: int | None = None

    @property
    def most_records(self) -> int | None:
        """Public bound on a site's training records that the setting gives; None where it gives none."""
        bounds = [bound for bound in (self.limit if self.by_domain else None, self.cap) if bound is not None]
        return min(bounds, default=None)

    @property
    def by_domain(self) -> bool:
        """Whether each site is a domain."""
        return self.partition.startswith("domains")


@dataclass(frozen=True)
class Deal:
    """Records of one simulated federation.

    Attributes:
        training: what each site holds, by its name.
        tests: records to test on, by domain; without those that have none.
        home: by domain, the site whose alignment its test records go through; empty where sites are no domains.
        forced: sites that got one record because the skew left them none.
    """

    training: dict[str, Dataset]
    tests: dict[str, Dataset]
    home: dict[str, str]
    forced: tuple[str, ...] = ()


def site_names(collection: Collection, setting: Setting, wanted: Sequence[str] = ()) -> list[str]:
    """Names of the sites, in the order in which records are dealt.

    Args:
        collection, setting: what is dealt.
        wanted: participants that a study names; they take the place of numbered names.

    Raises:
        Misuse: their number does not fit the partition.
    """
    if setting.by_domain:
        domain_alpha(setting.partition)
        names = [domain.name for domain in collection.domains]
        if len(names) < 2:
            raise Misuse(f"{collection.name} has one domain, and the partition asks for one a site.", "Use another partition.")
        if setting.sites not in (None, len(names)) or (wanted and sorted(wanted) != sorted(names)):
            raise Misuse(
                f"The sites of the partition {setting.partition} are the domains {', '.join(names)}.",
                "Leave out --sites, and `participants` in the study.",
            )
        return names
    number = DEFAULT_SITES if setting.sites is None else setting.sites
    if wanted and len(wanted) != number:
        raise Misuse(
            f"The study names {len(wanted)} participants, the simulation has {number} sites.",
            "Leave `participants` out of the study, or ask for as many sites.",
        )
    return list(wanted) or [f"site-{index:0{len(str(number))}d}" for index in range(1, number + 1)]


def deal(collection: Collection, setting: Setting, seed: int, names: Sequence[str]) -> Deal:
    """Deal a collection's records to sites of these names, as :func:`site_names` gives them.

    Raises:
        Misuse: the partition does not suit the records.
    """
    training, tests = _test_split(collection, setting, seed)
    if setting.by_domain:
        kept = [_limited(training[name], setting.limit, (seed, index)) for index, name in enumerate(names)]
        alpha, forced = domain_alpha(setting.partition), list[int]()
        if alpha is not None:
            rows, forced = thin_domains([dataset.classes for dataset in kept], alpha, seed)
            kept = [dataset.take(own) for dataset, own in zip(kept, rows, strict=True)]
        kept = [_limited(dataset, setting.cap, (seed, _AFTER + index)) for index, dataset in enumerate(kept)]
        home = {name: name for name in names}
        return Deal(dict(zip(names, kept, strict=True)), tests, home, tuple(names[index] for index in forced))
    parts = list(training.values())
    whole = parts[0] if len(parts) == 1 else concatenate(parts)
    whole = _limited(whole, None if setting.limit is None else setting.limit * len(names), (seed, 0))
    dealt = partition(whole.classes, len(names), setting.partition, seed)
    shares = [_limited(whole.take(rows), setting.cap, (seed, _AFTER + index)) for index, rows in enumerate(dealt)]
    return Deal(dict(zip(names, shares, strict=True)), tests, {})


def _test_split(collection: Collection, setting: Setting, seed: int) -> tuple[dict[str, Dataset], dict[str, Dataset]]:
    """Training and test records by domain. Records that the source gives for testing are never trained on."""
    training, tests = {}, {}
    for domain in collection.domains:
        if domain.test is not None:
            training[domain.name], tests[domain.name] = domain.train, domain.test
            continue
        share = TEST_SHARE if setting.holdout is None else setting.holdout
        kept, held = hold_out(domain.train.classes, share, seed if setting.split is None else setting.split)
        training[domain.name] = domain.train if share == 0 else domain.train.take(kept)
        if len(held):
            tests[domain.name] = domain.train.take(held)
    return training, tests


def _limited(dataset: Dataset, limit: int | None, seed: tuple[int, int]) -> Dataset:
    """At most ``limit`` records, drawn at random without regard to their classes."""
    count = dataset.table.num_rows
    if limit is None or count <= limit:
        return dataset
    rows: Rows = np.sort(np.random.default_rng(seed).permutation(count)[:limit]).astype(np.int64)
    return dataset.take(rows)
