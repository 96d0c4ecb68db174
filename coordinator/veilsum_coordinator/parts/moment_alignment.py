"""Alignment of sites' features by their moments, in front of methods that train (FedAlign).

One release of power sums, of which every site keeps its own noised ones. The sum tells the moments of all, which are
broadcast; each site maps its features from its own moments to these, each feature or channel by itself, before it clips
and trains. By default moments are of one part of the records and training is on the others, as FedAlign does; one ledger
is charged for both in full. Where moments are disclosed per site, maps are made here and broadcast in place of a reference:
of other sites for records to be drawn for (FedRDN), or of moments that are released anew for each round of training.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import (
    FeatureMoments,
    mean_of_moments,
    moment_terms,
    moments_of_sums,
    reference_arrays,
)
from veilsum_aggregation.moment_alignment import moment_map
from veilsum_coordinator.parts.base import Inputs, Missing, TaskPlan, task_parameters
from veilsum_coordinator.parts.federation import Federation, Release, released_noise
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_OFFSET, ALIGNMENT_SCALE, SALT
from veilsum_privacy.tasks.layout import balanced_weights
from veilsum_privacy.tasks.parameters import Alignment, MomentUse
from veilsum_privacy.tasks.power_moments import columns_of_moments

LABEL, WITHIN_LABEL = "power-moments", "within-moments"
"""Labels: of the release that moments are made from, and of the sum of the sites' own moments."""

PROJECTED_BOUND = 2.0
"""Bound of one feature of a released projection, whose root mean square norm is about 1."""

COUNT_IMPORTANCE = 10.0
"""Importance of the count, which stands under every moment, against 1 for a power sum."""


class MomentAlignment(Frozen):
    """The ``[parameters.moments]`` table; all public.

    Attributes:
        order: 2 aligns mean and variance; 4 skewness and kurtosis as well, of features for which that can be.
        adjust: ``mean`` or ``variance`` alone, or ``both``.
        per: ``feature``, each by its own moments, or ``channel``, whose pixels share theirs; by default ``channel`` where the
            model takes images.
        channels: of the features, in the order channel, row, column; by default the model's.
        bound: absolute value that a feature of an encoder is cut to for the moments; by default 2 for a projection's, and of
            a program's to be stated. The schema's own features lie in [-1, 1].
        tau: how far to go, in [0, 1].
        reference: ``pooled`` are the moments of all records, with the spread between sites; ``within`` is the mean of the
            sites' own moments, as in FedAlign.
        records: share of each site's records that moments are made from; the others are trained on. 1 takes all for both.
        share: part of the budget that the release of moments takes, or all of them together.
        moved_by: whose moments a record is moved by in training: ``own`` are its site's, ``drawn`` those of a site that is
            drawn anew for each record and round (FedRDN). When the model is applied they are always its site's own.
        released: ``once``; or for ``each-round`` of training, which then is on other records in each round, as moments are.
    """

    order: Literal[2, 4] = 2
    adjust: Literal["mean", "variance", "both"] = "both"
    per: Literal["feature", "channel"] | None = None
    channels: int | None = Field(default=None, ge=1, le=4096)
    bound: Real | None = Field(default=None, gt=0, le=1e6)
    tau: Real = Field(default=1.0, ge=0, le=1)
    reference: Literal["pooled", "within"] = "pooled"
    records: Real = Field(default=0.5, gt=0, le=1)
    share: Real = Field(default=0.1, gt=0, lt=1)
    moved_by: Literal["own", "drawn"] = Field(default="own", exclude_if=lambda whose: whose == "own")
    released: Literal["once", "each-round"] = Field(default="once", exclude_if=lambda often: often == "once")

    @property
    def shown(self) -> bool:
        """Whether each site's noised moments are disclosed; otherwise it keeps them, and their sum is."""
        return self.moved_by == "drawn" or self.released == "each-round"

    @property
    def resplit(self) -> bool:
        """Whether each round has other records for moments and for training."""
        return self.released == "each-round" and self.records < 1.0


@dataclass(frozen=True)
class MomentReference:
    """What the moments' release gives a method to build on.

    Attributes:
        moments: of all sites' features.
        broadcast: arrays that later sums over aligned features need; of the result as well.
        application: how a result says it (the key ``alignment``).
        cohort: who kept a statistic, and so can align.
        reference: arrays that :attr:`application` names: further ones, or in the place of those that are broadcast.
    """

    moments: FeatureMoments
    broadcast: Mapping[str, Floats]
    application: Mapping[str, Any]
    summary: Mapping[str, Any]
    cohort: tuple[str, ...] = ()
    reference: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def arrays(self) -> Mapping[str, Floats]:
        """The arrays that :attr:`application` names."""
        return {**self.broadcast, **self.reference}


def resolve_moments(parameters: MomentAlignment, inputs: Inputs, image: Sequence[int] | None = None) -> MomentAlignment:
    """Fill in the defaults that depend on the inputs.

    Args:
        image: (channels, height, width) that the model takes; None for features as they are.

    Raises:
        ConfigurationError: the parameters contradict each other or the inputs.
    """
    per = parameters.per or ("feature" if image is None and parameters.channels is None else "channel")
    channels = parameters.channels if parameters.channels is not None else None if image is None else image[0]
    what = "parameters.moments"
    if per == "feature":
        if parameters.channels is not None:
            raise ConfigurationError(f'{what}: moments per = "feature" know no channels.', 'Leave out one, or take "channel".')
        channels = None
    elif channels is None:
        raise ConfigurationError(
            f'{what}: per = "channel" needs to know the channels.', "State channels, or a model of images."
        )
    if parameters.order == 4 and parameters.adjust != "both":
        raise ConfigurationError(f"{what}: order = 4 adjusts mean and variance both.", "Take order = 2 to adjust one of them.")
    if parameters.order == 4 and parameters.shown:
        raise ConfigurationError(
            f"{what}: four moments are aligned by what a site keeps, of one release.",
            "Take order = 2, or leave out moved_by and released.",
        )
    bound = parameters.bound
    if inputs.encoder is None:
        if bound not in (None, 1.0):
            raise ConfigurationError(f"{what}.bound: the schema bounds its own features.", "Leave it out.")
        bound = 1.0
    elif bound is None:
        if isinstance(inputs.encoder, Program):
            raise ConfigurationError(
                f"A study whose features a program makes must state {what}.bound.",
                "Take what hardly any feature exceeds, known from other data than the sites'.",
            )
        bound = PROJECTED_BOUND
    with told_as(ConfigurationError, Misuse, what=what):
        columns_of_moments(inputs.schema, None if inputs.encoder is None else inputs.width, channels)
    return parameters.model_copy(update={"per": per, "channels": channels, "bound": bound})


def moment_share(share: float, steps: int, sampling_rate: float = 1.0) -> float:
    """The share of the release of moments, against 1 for each step of training, that takes part ``share`` of the budget.

    Steps on records sampled at rate q cost about as much as q^2 times as many on all records.

    Args:
        share: wanted, in (0, 1).
        steps: noised steps of training in the whole study.
    """
    return share / (1.0 - share) * max(steps, 1) * sampling_rate**2


def moment_plans(
    parameters: MomentAlignment, inputs: Inputs, missing: Missing, *, share: float = 1.0, rounds: int = 1
) -> tuple[TaskPlan, ...]:
    """The release that moments are made from, and for ``within`` the sum of the sites' own, which costs nothing.

    Args:
        missing: of features, as training takes them.
        share: of the budget, against the shares of the method's other releases: see :func:`moment_share`.
    """
    width = None if inputs.encoder is None else inputs.width
    m = parameters.channels or len(columns_of_moments(inputs.schema, width, None))
    powers = parameters.order * m
    count_weight, power_weight = balanced_weights((1.0, powers**0.5), (1, powers), (COUNT_IMPORTANCE, 1.0))
    part, part_share = _part(parameters, "statistics")
    values = task_parameters(
        "power-moments",
        width=width,
        clip=parameters.bound,
        missing=missing,
        part=part,
        part_share=part_share,
        resplit=parameters.resplit,
        order=parameters.order,
        channels=parameters.channels,
        count_weight=count_weight,
        power_weight=power_weight,
    )
    if parameters.shown:
        often = rounds if parameters.released == "each-round" else 1
        return (TaskPlan(LABEL, "power-moments", values, releases=often, disclosure="per-site", share=share / often),)
    kept = TaskPlan(LABEL, "power-moments", values, keep=True, share=share)
    if parameters.reference == "pooled":
        return (kept,)
    within = task_parameters("within-moments", width=width, channels=parameters.channels)
    return kept, TaskPlan(WITHIN_LABEL, "within-moments", within, source=LABEL)


def aligned_parameters(parameters: MomentAlignment | None) -> dict[str, Any]:
    """What a task that trains on aligned features states of it (``PartParameters``); :func:`moment_source` is its source.

    None stands for no alignment: all records, as they are.
    """
    if parameters is None:
        return {"alignment": None, "part": "all", "part_share": 0.5}
    part, part_share = _part(parameters, "training")
    use = MomentUse(
        order=parameters.order,
        adjust=parameters.adjust,
        channels=parameters.channels,
        bound=parameters.bound or 1.0,
        drawn=parameters.moved_by == "drawn",
    )
    alignment = Alignment(kind="broadcast" if parameters.shown else "moments", tau=parameters.tau, moments=use)
    return {"alignment": alignment, "part": part, "part_share": part_share, "resplit": parameters.resplit}


def moment_source(parameters: MomentAlignment | None) -> str | None:
    """Of which kept task such a task makes its map; None where it is broadcast, or there is none."""
    return None if parameters is None or parameters.shown else LABEL


def training_records(parameters: MomentAlignment | None, records: int) -> int:
    """How many of so many records are expected to be trained on: those that no moments are made from."""
    if parameters is None or parameters.records == 1.0:
        return records
    return max(1, round(records * (1.0 - parameters.records)))


SPREAD = 1.0 / 3.0
"""Standard deviation of a feature, and distance of its mean from the middle, that sites are expected to have."""


def records_to_align(study: Study) -> int | None:
    """How many records a site needs so that the noise it keeps leaves it a feature's variance; None where none do.

    A site whose variances are within their noise leaves its features as they are: the release of moments is in vain. By
    :func:`.moments_of_sums` of a feature as :data:`SPREAD` has it, without a draw of the noise.
    """
    declaration = study.task(LABEL)
    cohort = len(study.participants)
    noises = 1 if declaration.own_noise else cohort
    noise = {name: std / math.sqrt(noises) for name, std in released_noise(study, LABEL, cohort).items()}
    square = 2.0 * SPREAD**2
    part = float.fromhex(declaration.parameters["part_share"]) if declaration.parameters["part"] == "statistics" else 1.0

    def told(records: int) -> bool:
        number = part * records
        sums = {"count": [number], "t1": [SPREAD * number], "t2": [(2.0 * square - 1.0) * number]}
        return bool(moments_of_sums({name: np.array(values) for name, values in sums.items()}, noise).order[0] >= 2)

    most = 2**40
    return bisect_left(range(most), True, key=told) if told(most) else None


def epsilon_parts(study: Study, training: Sequence[str]) -> dict[str, float | None]:
    """What the moments, the releases ``training`` and all of a study's releases cost, at its delta; None without noise.

    The parts do not add up to the whole: two releases cost less together than the sum of their epsilons.
    """
    releases = {task.label: task.releases for task in study.tasks}
    parts = {"moments": [LABEL], "training": training, "total": list(releases)}
    found = {
        part: study_epsilon(study, study.privacy.delta, {label: releases[label] for label in labels})
        for part, labels in parts.items()
    }
    return {part: epsilon if math.isfinite(epsilon) else None for part, epsilon in found.items()}


def align_moments(federation: Federation, parameters: MomentAlignment) -> MomentReference:
    """Run the rounds of :func:`moment_plans`; ``parameters`` are resolved.

    Where nothing can be told from the noise every site's map leaves features as they are, and the summary says so.
    """
    release = federation.sum(LABEL)
    within = federation.sum(WITHIN_LABEL, members=release.cohort) if parameters.reference == "within" else None
    return moment_reference(release, parameters, within)


class MomentRounds:
    """The alignment of one study's rounds of training, from the first on.

    Attributes:
        now: the reference of the rounds so far. Of moments that are released in each round it is made of each site's so far:
            together they have less noise than the last ones alone, and cost no more. Who is away for a round keeps its own.
    """

    def __init__(self, federation: Federation, parameters: MomentAlignment, seed: int = 0) -> None:
        """Release the moments of the first round; ``parameters`` are resolved."""
        self._federation, self._parameters, self._seed = federation, parameters, seed
        self._sums: dict[str, SiteSums] = {}
        self.now = self._release(1)

    def broadcast(self, number: int) -> dict[str, Floats]:
        """What round ``number``, counted from 1, broadcasts beside the model; in turn, each once."""
        if self._parameters.released == "each-round" and number > 1:
            self.now = self._release(number)
        return {**self.now.broadcast, **self._salts(number)}

    def _release(self, number: int) -> MomentReference:
        if not self._parameters.shown:
            return align_moments(self._federation, self._parameters)
        release, sites = self._federation.sum(LABEL, self._salts(number)), self._federation.study.participants
        for row, name in enumerate(release.cohort):
            found, known = {part: values[row] for part, values in release.values.items()}, self._sums.get(name)
            self._sums[name] = SiteSums(found) if known is None else known.with_further(found)
        return shown_reference(self._sums, release.noise_std, self._parameters, sites)

    def _salts(self, number: int) -> dict[str, Floats]:
        """By which records are split and sites are drawn in a round; public, and of no round but this."""
        if not self._parameters.shown:
            return {}
        return {SALT: np.random.default_rng((self._seed, 0x73616C74, number)).integers(2**53, size=2).astype(np.float64)}


@dataclass(frozen=True)
class SiteSums:
    """A site's power sums, the mean of those of so many releases."""

    values: Mapping[str, Floats]
    releases: int = 1

    def with_further(self, values: Mapping[str, Floats]) -> "SiteSums":
        """These and those of one release more."""
        more = self.releases + 1
        return SiteSums({name: mean + (values[name] - mean) / more for name, mean in self.values.items()}, more)


def _moments_of(sums: Sequence[SiteSums], noise_std: Mapping[str, float]) -> FeatureMoments:
    """Of the records of some sites; ``noise_std``: of one release of a site."""
    noise = math.sqrt(sum(1.0 / each.releases for each in sums))
    whole = {name: np.sum([each.values[name] for each in sums], axis=0) for name in sums[0].values}
    return moments_of_sums(whole, {name: std * noise for name, std in noise_std.items()})


def shown_reference(
    sums: Mapping[str, SiteSums], noise_std: Mapping[str, float], parameters: MomentAlignment, participants: Sequence[str]
) -> MomentReference:
    """The maps of all sites from each one's power sums.

    Args:
        sums: of the sites that were in a release.
        noise_std: of one release of a site.
        participants: of the study; for one without sums, records are drawn for another one's map, and the result has none.
    """
    cohort = tuple(name for name in participants if name in sums)
    own = [_moments_of([sums[name]], noise_std) for name in cohort]
    pooled = _moments_of([sums[name] for name in cohort], noise_std)
    terms = [moment_terms(moments) for moments in own]
    within = mean_of_moments({name: np.sum([term[name] for term in terms], axis=0) for name in terms[0]})
    moments = pooled if parameters.reference == "pooled" else within
    maps = [moment_map(each, moments, adjust=parameters.adjust, tau=parameters.tau).affine() for each in own]
    places = [cohort.index(name) if name in sums else at % len(cohort) for at, name in enumerate(participants)]
    scale, offset = (np.stack([maps[place][part] for place in places]) for part in (0, 1))
    reference, there = reference_arrays(moments), np.array([[name in sums] for name in participants])
    use = _use(parameters)
    made_by = {"kind": "moments", "tau": parameters.tau, "moments": use, "reference": {name: name for name in reference}}
    maps_of = {"sites": list(participants), "matrix": ALIGNMENT_SCALE, "offset": ALIGNMENT_OFFSET}
    application = {"kind": "maps", **maps_of, "moments": use, "made_by": made_by}
    broadcast = {ALIGNMENT_SCALE: scale, ALIGNMENT_OFFSET: offset}
    reference |= {ALIGNMENT_SCALE: np.where(there, scale, 1.0), ALIGNMENT_OFFSET: np.where(there, offset, 0.0)}
    summary = _summary(parameters, moments, pooled.number)
    return MomentReference(moments, broadcast, application, summary, cohort, reference)


def moment_reference(release: Release, parameters: MomentAlignment, within: Release | None = None) -> MomentReference:
    """The reference from the release of power sums, or from the sum of the sites' own moments."""
    pooled = moments_of_sums(release.values, release.noise_std)
    moments = pooled if within is None else mean_of_moments(within.values)
    broadcast = reference_arrays(moments)
    # The sum holds one site's own noise for each member.
    noise = {name: std / len(release.cohort) ** 0.5 for name, std in release.noise_std.items()}
    application = {"kind": "moments", "source": LABEL, "tau": parameters.tau, "moments": _use(parameters)}
    application |= {"reference": {name: name for name in broadcast}, "noise_std": noise}
    return MomentReference(moments, broadcast, application, _summary(parameters, moments, pooled.number), release.cohort)


def _use(parameters: MomentAlignment) -> dict[str, Any]:
    return {name: getattr(parameters, name) for name in ("order", "adjust", "channels", "bound")}


def _summary(parameters: MomentAlignment, moments: FeatureMoments, records: float) -> dict[str, Any]:
    told = moment_map(moments, moments, order=parameters.order, adjust=parameters.adjust).columns()
    summary: dict[str, Any] = {name: getattr(parameters, name) for name in ("order", "adjust", "per", "reference", "tau")}
    summary |= {"records": max(records, 0.0), "columns": told}
    if parameters.shown:
        summary |= {"moved_by": parameters.moved_by, "released": parameters.released}
    if told["none"] == len(moments):
        summary["not_estimable"] = "no feature's variance can be told from the noise; nothing is aligned"
    return summary


def _part(parameters: MomentAlignment, part: str) -> tuple[str, float]:
    """A part and the share of records for statistics, as tasks state them."""
    return ("all", 0.5) if parameters.records == 1.0 else (part, parameters.records)
