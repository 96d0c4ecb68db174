"""From an analyst's ``study.toml`` to the study that everyone agrees to: every task, parameter, grid and variance stated.

Grid and noise follow from public values alone: the schema's ``max_records``, the number of participants and the privacy
demand. This module signs nothing and submits nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from veilsum_coordinator.methods import get_method
from veilsum_privacy.accounting import GaussianEvent, calibrate_noise_multiplier, rdp_epsilon
from veilsum_privacy.config import did_you_mean, load_toml, validate
from veilsum_privacy.errors import ConfigurationError, Misuse
from veilsum_privacy.randomness import RandomSource
from veilsum_privacy.schema import DatasetSchema, Frozen, Name
from veilsum_privacy.schema_file import load_schema
from veilsum_privacy.study import NoiseKind, Study, TaskDeclaration
from veilsum_privacy.tasks import TASKS, build_task

LANE_BITS = 47
"""Bits that a lane of the encoding offers to the sum of a whole cohort, sign included."""

LARGEST_GRID = 2**26
LARGEST_STD = 2**31
"""A study's variance is at most 2^62."""

ROUNDING = 0.01
"""Share of the noise's standard deviation that truncation to the grid may add up to, per value, over all records."""

SMALLEST_SHARE = 8
"""Standard deviation in grid units that one participant's noise share keeps at least; below 4 noise is refused."""

NOISE_TAILS = 12
"""Standard deviations of each participant's noise that a lane has room for."""


class PrivacyRequest(Frozen):
    """The ``[privacy]`` table of a study.toml; ``noise = "none"`` takes no epsilon."""

    epsilon: float | None = Field(default=None, gt=0, le=1e4)
    delta: float = Field(default=1e-5, gt=0, lt=0.5)
    noise: NoiseKind = "distributed"
    assumed_colluders: int = Field(default=1, ge=1, le=1024)
    min_cohort: int | None = Field(default=None, ge=2, le=1024)
    cohort_difference: Literal["strict", "allowed"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.epsilon is None) != (self.noise == "none"):
            raise ValueError('state epsilon, or noise = "none" without one')
        if self.noise == "none" and self.cohort_difference == "allowed":
            raise ValueError('a study without noise needs cohort_difference = "strict"')
        return self


class StudyRequest(Frozen):
    """An analyst's study.toml.

    Attributes:
        name: of the study.
        method: registered method.
        dataset: the dataset's name as sites offer it.
        parameters: the method's parameters.
        privacy: what it may cost; ``min_cohort`` is by default all participants.
        schema_file: key ``schema``: path of the dataset's schema, relative to the study's file.
        data: key ``data``: the schema itself, in place of ``schema``.
        participants: who shall take part; by default everyone in the federation.
        expires_hours: how long the study may run, in hours.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: Name
    method: str
    dataset: Name
    privacy: PrivacyRequest
    parameters: dict[str, Any] = Field(default_factory=dict)
    schema_file: str | None = Field(default=None, alias="schema")
    data: DatasetSchema | None = None
    participants: tuple[Name, ...] = ()
    expires_hours: int = Field(default=24, ge=1, le=24 * 366)

    @model_validator(mode="after")
    def _one_schema(self) -> Self:
        if (self.schema_file is None) == (self.data is None):
            raise ValueError('state either schema = "file.toml" or a [data] table')
        return self


def load_study_request(path: Path) -> StudyRequest:
    """Read a study.toml and the schema it points to; the result carries the schema in ``data``.

    Raises:
        ConfigurationError: a file cannot be read or is invalid; the message names file and keys.
    """
    request = load_toml(path, StudyRequest)
    if request.schema_file is None:
        return request
    data = load_schema(path.parent / request.schema_file)
    return request.model_copy(update={"schema_file": None, "data": data})


@dataclass(frozen=True)
class GridPlan:
    """A grid and what truncation to it can cost.

    Attributes:
        grid: c, grid units that a task's clip norm becomes.
        variance: S^2 in grid units squared; 0 without noise.
        rounding: largest error of a value of the sum through truncation, as a share of S; without noise, of the clip norm.
    """

    grid: int
    variance: int
    rounding: float


def plan_grid(*, max_records: int, participants: int, multiplier: float | None, honest: int = 1) -> GridPlan:
    """Choose the grid of a sum of per-record vectors, a power of two.

    Each record is truncated towards zero, by less than one unit a value, so a value of the sum is off by less than
    n M units for n participants of at most M records. With noise S = z c the smallest c with n M <= 0.01 z c is taken, and
    at least what leaves a noise share of z c / sqrt(h) 8 units; but never more than a lane holds,
    2 n (M c + 12 z c) < 2^47, nor 2^26, nor S above 2^31. Where the 1% asks for more than fits, what fits is taken and
    ``rounding`` says what it costs. Without noise the finest grid that fits is taken.

    Args:
        max_records: M.
        participants: n.
        multiplier: z, the noise's standard deviation over the sensitivity; None is no noise.
        honest: h, the shares that S is divided among.

    Raises:
        ConfigurationError: no grid fits.
    """
    z = multiplier or 0.0
    lane = 2 ** (LANE_BITS - 1) / (participants * (max_records + NOISE_TAILS * z))
    finest = min(int(2.0 ** (math.ceil(math.log2(lane)) - 1)), LARGEST_GRID)
    if z:
        finest = min(finest, int(2.0 ** math.floor(math.log2(LARGEST_STD / z))))
    if not finest or (z and z * finest / math.sqrt(honest) < SMALLEST_SHARE):
        raise ConfigurationError(
            f"No grid fits {max_records} records at each of {participants} participants with this noise.",
            "Lower the schema's max_records, or ask for a smaller epsilon.",
        )
    worst = participants * max_records
    if not z:
        return GridPlan(finest, 0, worst / finest)
    needed = max(worst / (ROUNDING * z), SMALLEST_SHARE * math.sqrt(honest) / z, 1.0)
    grid = min(2 ** math.ceil(math.log2(needed)), finest)
    variance = math.ceil((Fraction(z) * grid) ** 2)
    return GridPlan(grid, variance, worst / (z * grid))


def compile_study(
    request: StudyRequest,
    *,
    federation_id: str,
    coordinator: str,
    participants: Sequence[str],
    clock: Callable[[], int],
    random: RandomSource,
    calibrate: Callable[[float, float, int], float] = calibrate_noise_multiplier,
) -> Study:
    """Turn a request, with its schema in ``data``, into a study that leaves nothing to defaults.

    All releases of the study have one noise multiplier. Its epsilon is what RDP gives for the noise as rounded to the grid,
    never above the demand.

    Args:
        request: from :func:`load_study_request`.
        federation_id: hash of the authority's certificate, 64 hexadecimal digits.
        coordinator: the coordinator's name.
        participants: names of the federation's participants.
        clock: Unix time in seconds.
        random: for the nonce.
        calibrate: (epsilon, delta, releases) to the smallest noise multiplier.

    Raises:
        ConfigurationError: the request cannot be compiled; the message says why.
    """
    if request.data is None:
        raise Misuse("The request's schema has not been read.", "Use load_study_request.")
    schema, demand = request.data, request.privacy
    members = _members(request, participants)
    method = get_method(request.method)
    source = f"study {request.name!r}, [parameters]"
    parameters = method.resolve(validate(request.parameters, method.Parameters, source=source), schema)
    plans = method.declare(parameters, schema)
    multiplier = None
    if demand.epsilon is not None:
        try:
            multiplier = calibrate(demand.epsilon, demand.delta, sum(plan.releases for plan in plans))
        except Misuse as error:
            raise ConfigurationError(error.message, error.advice) from error
    min_cohort = demand.min_cohort if demand.min_cohort is not None else len(members)
    honest = max(1, len(members) - demand.assumed_colluders) if demand.noise == "distributed" else 1
    grid = plan_grid(max_records=schema.max_records, participants=len(members), multiplier=multiplier, honest=honest)
    tasks: list[TaskDeclaration] = []
    for plan in plans:
        task = plan.declaration(disclosure=TASKS[plan.task].disclosure, grid=grid.grid, variance=grid.variance)
        build_task(task.task, task.parameters, schema)  # what no participant could build is not submitted
        tasks.append(task)
    created = clock()
    content = {
        "version": 1,
        "name": request.name,
        "federation": federation_id,
        "coordinator": coordinator,
        "nonce": random.bytes(16).hex(),
        "created": created,
        "expires": created + 3600 * request.expires_hours,
        "method": request.method,
        "parameters": parameters.model_dump(mode="json"),
        "dataset": request.dataset,
        "data": schema,
        "privacy": {
            "epsilon": _reached(tasks, demand.delta),
            "delta": demand.delta,
            "noise": demand.noise,
            "assumed_colluders": demand.assumed_colluders,
            "min_cohort": min_cohort,
            "cohort_difference": demand.cohort_difference or ("strict" if demand.noise == "none" else "allowed"),
            "unit": "record",
        },
        "tasks": tasks,
        "participants": members,
        "weights": dict.fromkeys(members, 1),
    }
    return validate(content, Study, source=f"study {request.name!r}")


def _members(request: StudyRequest, participants: Sequence[str]) -> list[str]:
    """The study's participants, sorted by the bytes of their names."""
    for name in request.participants:
        if name not in participants:
            raise ConfigurationError(
                f"study {request.name!r}, participants: {name!r} is not in the federation.", did_you_mean(name, participants)
            )
    return sorted(set(request.participants or participants), key=str.encode)


def _reached(tasks: Sequence[TaskDeclaration], delta: float) -> float | None:
    """Epsilon by RDP of all releases with the noise as it is on the grid; None without noise."""
    if any(task.variance == 0 for task in tasks):
        return None
    events = [GaussianEvent(task.grid, Fraction(task.variance), steps=task.releases) for task in tasks]
    return rdp_epsilon(events, delta)
