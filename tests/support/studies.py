"""Small studies over sites in memory: sites that differ by shift, spread and mix of classes, and any method run on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.randomness import SeededRandom
from veilsum.compile import PrivacyRequest, StudyDraft, StudyRequest, draft_study
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Release
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.base import Records

Floats = NDArray[np.float64]

SITES = ("a", "b", "c", "d")
WIDTH, CLASSES = 6, ("p", "q", "r")

SCHEMA = DatasetSchema(
    columns=tuple(NumberColumn(name=f"x{index}", low=-1, high=1) for index in range(WIDTH)),
    label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in CLASSES)),
    max_records=800,
)

STAYS = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=80, unit="years"),
        CategoryColumn(name="ward", categories=("north", "it's")),
        NumberColumn(name="stay", low=0, high=40, unit="days"),
        NumberColumn(name="dose", low=-5, high=5),
        CategoryColumn(name="end", categories=("home", "died", "moved")),
    ),
    max_records=20_000,
)
"""Days in a hospital, which are a number, a count, or a time until an end."""


def complete(x: Floats, y: NDArray[Any] | None = None, subjects: NDArray[np.int64] | None = None) -> Records:
    """Records (n, d) without a missing value."""
    return Records(x, np.ones(x.shape, dtype=np.bool_), None if y is None else y.astype(np.int64), subjects)


def pooled(sites: Mapping[str, Records]) -> tuple[Floats, NDArray[np.int64]]:
    """Features and labels of all sites together."""
    return np.concatenate([own.features for own in sites.values()]), np.concatenate([own.labels for own in sites.values()])


def skewed_sites(
    seed: int,
    n: int = 300,
    shares: tuple[float, ...] = (0.8, 0.15, 0.05),
    sites: Sequence[str] = ("site-0", "site-1", "site-2"),
    root: float = 0.12,
) -> dict[str, Records]:
    """Sites of three classes in four dimensions, each class with a covariance of its own and other ``shares`` at each site."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(11)
    means, roots = fixed.normal(0, 0.25, (3, 4)), fixed.normal(0, root, (3, 4, 4))
    found = {}
    for index, site in enumerate(sites):
        y = rng.choice(3, n, p=np.roll(shares, index))
        x = means[y] + np.einsum("nij,nj->ni", roots[y], rng.standard_normal((n, 4)))
        found[site] = complete(x.clip(-1.0, 1.0), y)
    return found


def shifted_sites(
    n: int = 400, seed: int = 0, sites: tuple[str, ...] = SITES, apart: float = 0.25, shift: float = 0.1
) -> dict[str, Records]:
    """Sites whose records differ by a shift, a linear map and the mix of classes, which lie ``apart``."""
    rng = np.random.default_rng(seed)
    means = rng.normal(0.0, apart, (len(CLASSES), WIDTH))
    found = {}
    for site in sites:
        y = rng.choice(len(CLASSES), n, p=rng.dirichlet([1.0] * len(CLASSES)))
        spread = 0.08 * (np.eye(WIDTH) + 0.3 * rng.normal(size=(WIDTH, WIDTH)))
        x = means[y] + rng.normal(size=(n, WIDTH)) @ spread.T + rng.normal(0.0, shift, WIDTH)
        found[site] = complete(x.clip(-1.0, 1.0), y)
    return found


def demand(epsilon: float | None) -> PrivacyRequest:
    """So much privacy; None is a study without noise."""
    return PrivacyRequest(noise="none") if epsilon is None else PrivacyRequest(epsilon=epsilon)


def drafted(request: StudyRequest, sites: Sequence[str] = SITES, now: int = 1) -> StudyDraft:
    """A request resolved for a federation of these sites that exists nowhere."""
    return draft_study(
        request, federation_id="0" * 64, coordinator="hub", participants=sites, clock=lambda: now, random=SeededRandom(1)
    )


def agreed(request: StudyRequest, sites: Sequence[str] = SITES, now: int = 1) -> Study:
    """A request compiled, as a coordinator gets it: through its signed bytes, which say all of it."""
    study = drafted(request, sites, now).compile()
    found = parse_study(study.to_bytes())
    assert found == study
    return found


def draft(
    method: str,
    parameters: Mapping[str, Any] | None = None,
    schema: DatasetSchema = SCHEMA,
    sites: tuple[str, ...] = SITES,
    encoder: Projection | None = None,
    expected: int | None = None,
    **privacy: Any,
) -> StudyDraft:
    """A request resolved; without privacy keys it is a study without noise."""
    request = StudyRequest(
        name="trial",
        method=method,
        dataset="clinic",
        data=schema,
        parameters=dict(parameters or {}),
        privacy=PrivacyRequest(**(privacy or {"noise": "none"})),
        encoder=encoder,
        expected_records=expected,
    )
    return drafted(request, sites)


def compiled(method: str, parameters: Mapping[str, Any] | None = None, **options: Any) -> Study:
    """A study as a coordinator gets it, through its signed bytes."""
    return parse_study(draft(method, parameters, **options).compile().to_bytes())


def federation(
    study: Study, records: Mapping[str, Records], seed: int = 0, encoder: Mapping[str, Floats] | None = None
) -> PlainFederation:
    """Sites in memory with the real grid and noise, reproducible."""
    return PlainFederation(study, plain_sites(records, seed), encoder)


def plain_sites(records: Mapping[str, Records], seed: int = 0) -> dict[str, PlainSite]:
    """Sites whose noise follows from name and seed."""
    return {name: PlainSite(own, SeededRandom(f"{name} {seed}".encode())) for name, own in records.items()}


def split_records(records: Records, sites: int | Sequence[str], seed: int = 0) -> dict[str, Records]:
    """Deal records to sites at random; to so many, or to those of these names."""
    names = [f"site-{index}" for index in range(sites)] if isinstance(sites, int) else sites
    parts = np.array_split(np.random.default_rng(seed).permutation(len(records)), len(names))
    return {name: records.take(part) for name, part in zip(names, parts, strict=True)}


class Watched(PlainFederation):
    """Sites in memory, as in :func:`federation`; remembers what was asked of them, what they released, and checkpoints.

    Attributes:
        broadcasts: what was sent for each sum.
        members: of each sum, None for all.
        kept: the summaries of checkpoints.
    """

    def __init__(self, study: Study, records: Mapping[str, Records], seed: int = 0) -> None:
        super().__init__(study, plain_sites(records, seed))
        self.broadcasts: list[dict[str, Floats]] = []
        self.members: list[tuple[str, ...] | None] = []
        self.releases: list[Release] = []
        self.kept: list[Mapping[str, Any]] = []

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        self.broadcasts.append(dict(broadcast or {}))
        self.members.append(None if members is None else tuple(sorted(members)))
        self.releases.append(super().sum(label, broadcast, members=members))
        return self.releases[-1]

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        self.kept.append(summary)


def run(
    method: str,
    parameters: Mapping[str, Any] | None = None,
    records: Mapping[str, Records] | None = None,
    seed: int = 0,
    **options: Any,
) -> Result:
    """A method's result on these sites."""
    sites = shifted_sites() if records is None else records
    return get_method(method).run(federation(compiled(method, parameters, **options), sites, seed))


def projection(matrix: Floats, offset: Floats) -> tuple[Projection, dict[str, Floats]]:
    """A projection as a study names it, and its arrays as they are broadcast."""
    named = Projection(sha256=projection_digest(matrix, offset), inputs=matrix.shape[1], width=len(matrix))
    return named, {"encoder.matrix": matrix, "encoder.offset": offset}
