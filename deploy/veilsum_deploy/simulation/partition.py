"""Deal the rows of one table to simulated sites: evenly, unevenly, with skewed classes, or thin out domains that are sites.

The seed decides who gets which row and nothing else: noise and keys never come from it.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from veilsum_node.errors import Misuse
from veilsum_node.phrases import counted

Rows = NDArray[np.int64]

KINDS = "iid, uneven, dirichlet:ALPHA, shards:N, domains, or domains+dirichlet:ALPHA"


def partition(classes: NDArray[np.int64], sites: int, how: str, seed: int) -> list[Rows]:
    """Split rows among sites; every row goes to exactly one, and no site stays empty.

    Args:
        classes: (n,) class index of each row.
        sites: number of sites, 1 to n.
        how: ``iid`` (sizes differ by one at most), ``uneven`` (site i has a share in proportion to 1 / i, classes mixed), or
            ``dirichlet:ALPHA`` (each class is split by a Dirichlet draw; a small alpha gives each site few classes), or
            ``shards:N`` (N classes a site; each class is split evenly among the sites that got it).

    Returns:
        Sorted row numbers of each site.

    Raises:
        Misuse: an unknown partition, or more sites than rows.
    """
    count = len(classes)
    if not 1 <= sites <= count:
        raise Misuse(f"{counted(count, 'record')} cannot be dealt to {sites} sites.", "Use fewer sites; each needs a record.")
    rng = np.random.default_rng(seed)
    if how == "iid":
        parts = np.array_split(rng.permutation(count), sites)
    elif how == "uneven":
        parts = np.split(rng.permutation(count), _cuts(1.0 / np.arange(1, sites + 1), count))
    elif how.startswith("shards:"):
        parts = _shards(classes, sites, how, rng)
    else:
        parts = _dirichlet(classes, sites, _alpha(how), rng)
    return _without_empty([np.sort(part).astype(np.int64) for part in parts])


def thin_domains(classes: Sequence[NDArray[np.int64]], alpha: float, seed: int) -> tuple[list[Rows], list[int]]:
    """Skew the classes of sites that each hold a domain of their own: the label and domain skew of GGEUR and SLOT-Align.

    For every class one Dirichlet(alpha) draw over the sites, which sums to 1, is the share that each site keeps of its own
    domain's records of that class, rounded. No class is forced on a site. A site that ends with no record gets one of its
    own, for a site without records cannot take part.

    Args:
        classes: for each site the class index (n,) of each of its records.
        alpha: concentration, above 0; a small one leaves each class to few sites.

    Returns:
        Sorted row numbers that each site keeps, and the indices of the sites that got a record because they had none.

    Raises:
        Misuse: a site has no record to begin with.
    """
    if not all(len(own) for own in classes):
        raise Misuse("A site has no record to begin with.", "Leave the domain out.")
    rng = np.random.default_rng(seed)
    kept: list[list[Rows]] = [[] for _ in classes]
    for value in np.unique(np.concatenate(list(classes))):
        shares = rng.dirichlet(np.full(len(classes), alpha))
        for part, own, share in zip(kept, classes, shares, strict=True):
            rows = rng.permutation(np.flatnonzero(own == value))
            part.append(rows[: round(float(share) * len(rows))])
    parts = [np.sort(np.concatenate(part)).astype(np.int64) for part in kept]
    forced = [index for index, part in enumerate(parts) if not len(part)]
    for index in forced:
        parts[index] = rng.integers(0, len(classes[index]), 1)
    return parts, forced


def domain_alpha(how: str) -> float | None:
    """The alpha of ``domains+dirichlet:ALPHA``, None for ``domains``.

    Raises:
        Misuse: another partition, or no alpha above 0.
    """
    if how == "domains":
        return None
    return _alpha(how.removeprefix("domains+"))


def hold_out(classes: NDArray[np.int64], share: float, seed: int) -> tuple[Rows, Rows]:
    """Split rows into (kept, held out), the same share of every class, rounded.

    Raises:
        Misuse: the share is not in [0, 1).
    """
    if not 0.0 <= share < 1.0:
        raise Misuse(f"A share of {share:g} cannot be held out.", "Use a share from 0 to below 1.")
    rng = np.random.default_rng(seed)
    held = np.zeros(len(classes), dtype=np.bool_)
    for value in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == value))
        held[rows[: round(share * len(rows))]] = True
    return np.flatnonzero(~held).astype(np.int64), np.flatnonzero(held).astype(np.int64)


def _alpha(how: str) -> float:
    kind, _, number = how.partition(":")
    try:
        alpha = float(number)
    except ValueError:
        alpha = math.nan
    if kind != "dirichlet" or not (math.isfinite(alpha) and alpha > 0):
        raise Misuse(f"Unknown partition {how!r}.", f"Use {KINDS}; for example dirichlet:0.5.")
    return alpha


def _cuts(shares: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Where to cut ``count`` rows so that the parts have the shares; one cut fewer than parts."""
    cuts: NDArray[np.int64] = np.rint(np.cumsum(shares / shares.sum())[:-1] * count).astype(np.int64)
    return cuts


def _dirichlet(classes: NDArray[np.int64], sites: int, alpha: float, rng: np.random.Generator) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(sites)]
    for value in np.unique(classes):
        rows = rng.permutation(np.flatnonzero(classes == value))
        shares = np.maximum(rng.dirichlet(np.full(sites, alpha)), 1e-12)
        for part, dealt in zip(parts, np.split(rows, _cuts(shares, len(rows))), strict=True):
            part.append(dealt)
    return [np.concatenate(part) for part in parts]


def _shards(classes: NDArray[np.int64], sites: int, how: str, rng: np.random.Generator) -> list[Rows]:
    """Each site takes the N classes that most places are left of, so that classes are as even as can be."""
    text = how.partition(":")[2]
    number = int(text) if text.isascii() and text.isdigit() else 0
    values = np.unique(classes)
    if not 1 <= number <= len(values):
        raise Misuse(
            f"Unknown partition {how!r}.", f"Use shards:N with 1 to {len(values)} classes a site, for example shards:2."
        )
    if sites * number < len(values):
        raise Misuse(
            f"{sites} sites with {number} of {len(values)} classes each leave classes to nobody.", "Use more sites or classes."
        )
    places, extra = divmod(sites * number, len(values))
    left = np.full(len(values), places)
    left[rng.permutation(len(values))[:extra]] += 1
    owners: list[list[int]] = [[] for _ in values]
    for site in range(sites):
        for index in np.lexsort((rng.random(len(values)), -left))[:number]:
            left[index] -= 1
            owners[index].append(site)
    parts: list[list[Rows]] = [[np.empty(0, dtype=np.int64)] for _ in range(sites)]
    for value, owning in zip(values, owners, strict=True):
        rows = rng.permutation(np.flatnonzero(classes == value))
        for site, dealt in zip(rng.permutation(owning), np.array_split(rows, len(owning)), strict=True):
            parts[site].append(dealt)
    return [np.concatenate(part) for part in parts]


def _without_empty(parts: list[Rows]) -> list[Rows]:
    """Give each empty site one row of the largest."""
    for index, part in enumerate(parts):
        if not len(part):
            largest = max(range(len(parts)), key=lambda other: len(parts[other]))
            parts[index], parts[largest] = parts[largest][:1], parts[largest][1:]
    return parts
