"""Who holds what in a simulation: the domains of a collection, a partition and a seed make sites and records to test on.

The same seed gives the same records, whatever is done with them: cells of a sweep are compared on equal splits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from veilsum_deploy.collections import TEST_SHARE, Collection, Domain
from veilsum_deploy.datasets import Rows, TableWithSchema, concatenate
from veilsum_deploy.simulation.partition import domain_alpha, hold_out, partition, thin_domains
from veilsum_node.config import did_you_mean
from veilsum_node.errors import Misuse

DEFAULT_SITES = 4

_AFTER = 1 << 20
"""Keeps the draws after the skew apart from those before it."""


@dataclass(frozen=True)
class Setting:
    """Parts of a simulation that do not belong to the study.

    Attributes:
        partition: as the command's help lists them.
        sites: how many; None for one a domain, or :data:`DEFAULT_SITES` unless sites are domains.
        limit: most training records of a site before the skew; unless sites are domains, on average.
        cap: most training records of a site after the skew, drawn at random.
        holdout: share of each class that is tested on where the source has no test records; None for the collection's.
        split: seed of what is held out; None for each run's own. A fixed one keeps the records to test on out of whatever is
            fitted beforehand, as a projection.
        leave_out: a domain that no site has, and that is only tested on.
    """

    partition: str = "iid"
    sites: int | None = None
    limit: int | None = None
    cap: int | None = None
    holdout: float | None = None
    split: int | None = None
    leave_out: str | None = None

    @property
    def most_records(self) -> int | None:
        """Public bound on a site's training records that the setting gives; None where it gives none."""
        bounds = [bound for bound in (self.limit if self.by_domain else None, self.cap) if bound is not None]
        return min(bounds, default=None)

    @property
    def by_domain(self) -> bool:
        """Whether each site has records of one domain."""
        return self.partition.startswith("domains")


@dataclass(frozen=True)
class Deal:
    """Records of one simulated federation.

    Attributes:
        training: what each site holds, by its name.
        tests: records to test on, by domain; without those that have none.
        home: by domain, the site whose records it has; empty unless sites are domains.
        forced: sites that got one record because the skew left them none.
        sites: by domain, its sites, where it has several.
        owners: by domain, the place among its sites of each test record's own, where the source tells.
        left_out: the domain that no site has.
    """

    training: dict[str, TableWithSchema]
    tests: dict[str, TableWithSchema]
    home: dict[str, str]
    forced: tuple[str, ...] = ()
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    owners: Mapping[str, Rows] = field(default_factory=dict)
    left_out: str | None = None

    def parts(self, domain: str) -> list[tuple[str | None, Rows]]:
        """A domain's test records by whose they are: every record is one site's; of a domain left out one new site's, None.

        Where the source does not tell, a domain's sites, or all where it has none, have its records in turn.
        """
        number = self.tests[domain].table.num_rows
        new = domain == self.left_out
        sites: list[str | None] = [None] if new else list(self.sites_of(domain))
        owners = self.owners.get(domain, np.arange(number) % len(sites))
        found = [(None if new else sites[place], np.flatnonzero(owners == place)) for place in np.unique(owners)]
        return [(site, rows.astype(np.int64)) for site, rows in found]

    def own(self, domain: str, site: str) -> TableWithSchema | None:
        """What a site's own model is tested on: its own, if the source tells whose they are, or all of the domain."""
        dataset = self.tests[domain]
        if domain not in self.owners or domain == self.left_out:
            return dataset
        rows = dict(self.parts(domain)).get(site)
        return None if rows is None else dataset.take(rows)

    def sites_of(self, domain: str) -> list[str]:
        """The sites that have records of a domain, or all where none has."""
        if domain in self.home:
            return [self.home[domain]]
        return list(self.sites.get(domain, self.training))


def site_names(collection: Collection, setting: Setting, wanted: Sequence[str] = ()) -> list[str]:
    """Names of the sites, in the order in which records are dealt.

    Args:
        wanted: participants that a study names; they take the place of numbered names.

    Raises:
        Misuse: their number does not fit the partition.
    """
    if setting.by_domain:
        domain_alpha(setting.partition)
        names = [name for own in sites_by_domain(collection, setting).values() for name in own]
        if wanted and sorted(wanted) != sorted(names):
            raise Misuse(
                f"The sites of the partition {setting.partition} are the domains {', '.join(names)}.",
                "Leave `participants` out of the study.",
            )
        return names
    number = DEFAULT_SITES if setting.sites is None else setting.sites
    if wanted and len(wanted) != number:
        raise Misuse(
            f"The study names {len(wanted)} participants, the simulation has {number} sites.",
            "Leave `participants` out of the study, or ask for as many sites.",
        )
    return list(wanted) or [f"site-{index:0{len(str(number))}d}" for index in range(1, number + 1)]


def sites_by_domain(collection: Collection, setting: Setting) -> dict[str, tuple[str, ...]]:
    """Names of the sites of each domain but the one left out: the source's own, one as the domain, or equally many.

    Raises:
        Misuse: there is one domain, or the number of sites does not fit.
    """
    kept = trained_domains(collection, setting)
    names = [domain.name for domain in kept]
    if len(collection.domains) < 2:
        raise Misuse(f"{collection.name} has one domain, and the partition asks for one a site.", "Use another partition.")
    own = {domain.name: tuple(domain.sites) or (domain.name,) for domain in kept}
    if setting.sites in (None, sum(map(len, own.values()))):
        return own
    number, rest = divmod(setting.sites or 0, len(names))
    if rest or any(domain.sites or domain.train.subject is not None for domain in kept):
        raise Misuse(
            f"The sites of the partition {setting.partition} are the domains {', '.join(names)}, or as many sites of each.",
            "Leave out --sites, or ask for a multiple of the number of domains.",
        )
    width = len(str(number))
    return {name: tuple(f"{name[: 63 - width]}-{one:0{width}d}" for one in range(1, number + 1)) for name in names}


def trained_domains(collection: Collection, setting: Setting) -> tuple[Domain, ...]:
    """The domains but the one that is left out.

    Raises:
        Misuse: no such domain, or nothing else.
    """
    names = [domain.name for domain in collection.domains]
    if setting.leave_out is not None and setting.leave_out not in names:
        raise Misuse(
            f"{collection.name} has no domain {setting.leave_out!r} to leave out.", did_you_mean(setting.leave_out, names)
        )
    kept = tuple(domain for domain in collection.domains if domain.name != setting.leave_out)
    if not kept:
        raise Misuse(f"{collection.name} has one domain, which cannot be left out.")
    return kept


def deal(collection: Collection, setting: Setting, seed: int, names: Sequence[str]) -> Deal:
    """Deal a collection's records to sites of these names, as :func:`site_names` gives them.

    Raises:
        Misuse: the partition does not suit the records.
    """
    rows, tests, owners = _test_split(collection, setting, seed)
    training = trained_domains(collection, setting)
    if setting.by_domain:
        by_domain = sites_by_domain(collection, setting)
        owned = [part for own in training for part in _parts(own, rows[own.name], len(by_domain[own.name]), seed)]
        kept = [_limited(dataset, setting.limit, (seed, index)) for index, dataset in enumerate(owned)]
        alpha, forced = domain_alpha(setting.partition), list[int]()
        if alpha is not None:
            thinned, forced = thin_domains([dataset.classes for dataset in kept], alpha, seed)
            kept = [dataset.take(own) for dataset, own in zip(kept, thinned, strict=True)]
        kept = [_limited(dataset, setting.cap, (seed, _AFTER + index)) for index, dataset in enumerate(kept)]
        home = {domain: own[0] for domain, own in by_domain.items() if len(own) == 1}
        several = {domain: own for domain, own in by_domain.items() if len(own) > 1}
        held = dict(zip(names, kept, strict=True))
        return Deal(held, tests, home, tuple(names[index] for index in forced), several, owners, setting.leave_out)
    parts = [_taken(domain.train, rows[domain.name]) for domain in training]
    whole = parts[0] if len(parts) == 1 else concatenate(parts)
    whole = _limited(whole, None if setting.limit is None else setting.limit * len(names), (seed, 0))
    dealt = partition(whole.classes, len(names), setting.partition, seed)
    shares = [_limited(whole.take(rows), setting.cap, (seed, _AFTER + index)) for index, rows in enumerate(dealt)]
    return Deal(dict(zip(names, shares, strict=True)), tests, {}, left_out=setting.leave_out)


def _test_split(
    collection: Collection, setting: Setting, seed: int
) -> tuple[dict[str, Rows], dict[str, TableWithSchema], dict[str, Rows]]:
    """For each domain the rows that are trained on, the records to test on, which never are, and whose these are if told."""
    rows, tests, owners = {}, {}, dict[str, Rows]()
    for domain in collection.domains:
        kept = np.arange(domain.train.table.num_rows)
        if domain.test is not None:
            tests[domain.name] = domain.test
        elif domain.name == setting.leave_out:
            tests[domain.name] = domain.train
            owners |= _owners(domain, kept)
        else:
            share = TEST_SHARE if setting.holdout is None else setting.holdout
            kept, held = hold_out(domain.train.classes, share, seed if setting.split is None else setting.split)
            if len(held):
                tests[domain.name] = domain.train.take(held)
                owners |= _owners(domain, held)
        rows[domain.name] = kept
    return rows, tests, owners


def _owners(domain: Domain, rows: Rows) -> dict[str, Rows]:
    """By the domain's name, the place of the site that has each of its rows; nothing where the source does not tell."""
    if len(domain.sites) < 2:
        return {}
    places = np.zeros(domain.train.table.num_rows, dtype=np.int64)
    for place, own in enumerate(domain.sites.values()):
        places[own] = place
    return {domain.name: places[rows]}


def _parts(domain: Domain, rows: Rows, number: int, seed: int) -> list[TableWithSchema]:
    """What each of a domain's sites has of its rows: those that are its own, or an even share at random."""
    if domain.sites:
        of_sites = {name: np.intersect1d(site, rows) for name, site in domain.sites.items()}
        for name, part in of_sites.items():
            if not len(part):
                raise Misuse(f"All records of {name} are held out.", "Hold out a smaller share, or leave the site out.")
        return [domain.train.take(part) for part in of_sites.values()]
    if number == 1:
        return [_taken(domain.train, rows)]
    return [domain.train.take(rows[part]) for part in partition(domain.train.classes[rows], number, "iid", seed)]


def _taken(dataset: TableWithSchema, rows: Rows) -> TableWithSchema:
    return dataset if len(rows) == dataset.table.num_rows else dataset.take(rows)


def _limited(dataset: TableWithSchema, limit: int | None, seed: tuple[int, int]) -> TableWithSchema:
    """At most ``limit`` records, drawn at random without regard to their classes."""
    count = dataset.table.num_rows
    if limit is None or count <= limit:
        return dataset
    rows: Rows = np.sort(np.random.default_rng(seed).permutation(count)[:limit]).astype(np.int64)
    return dataset.take(rows)
