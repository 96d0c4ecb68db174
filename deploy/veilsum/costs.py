"""What a compiled study asks of each participant: releases, values, noise, bytes and minutes, before anything is signed.

Everything follows from the study and an expected number of records. Noise and bytes are those of rounds of all its
participants; time is an estimate for ordinary machines and lines, and waits for nobody: sites that are away, or approve by
hand, take what they take.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from veilsum.quantisation import rounding_share
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan

# CPU seconds of one core, rounded up from docs/performance.md; measured again by `make bench`.
RECORD_VALUE_SECONDS = 25e-9
"""Computing, clipping and truncating one value of one record (whole round: 1,000,000 values of 8 records)."""

NOISE_SECONDS, SEAL_SECONDS, MASK_SECONDS = 0.25e-6, 0.09e-6, 3e-9
"""For one value of the vector: drawing its noise; packing and encrypting it, with check words; masking it, for each member of
the cohort."""

ADD_SECONDS, OPEN_SECONDS, UNMASK_SECONDS = 10e-9, 0.06e-6, 3e-9
"""The coordinator, for one value: adding it, for each member; opening, checking and unpacking it; taking off a self-mask."""

MEMBER_SECONDS, PEER_SECONDS = 0.06, 0.002
"""A member's databases and signatures in a round, and what each other member adds (whole round: 10,000 values, 4 and 16)."""

# What a line is taken to be.
LINE_BITS = 10e6
"""Bits a second that a participant sends or fetches."""

ROUND_TRIP_SECONDS = 0.05
SETUP_TRIPS, ROUND_TRIPS = 9, 8
"""Messages that wait for each other: study, enrolment, roster, boxes; then assignment, upload, answer, consent and end."""

ANSWER_BYTES = 100
"""Bytes of one member among all answers: three words of up to 7 bytes and a signature of up to 72, with what frames them."""

RECEIPT_BYTES = 800
"""Bytes of one member's signed receipt among all: 710 of text at 4 sites and a signature, with what frames them."""


JSON_NAMES = {"noise_std": "noise", "upload_bytes": "upload", "fetch_bytes": "fetch"}
"""Keys of a task's cost in JSON that are not its fields' names."""


@dataclass(frozen=True)
class TaskCost:
    """One task of a study.

    Attributes:
        values: length of the vector.
        lane_bits: bits that a value of the sum takes, noise and all; ``lanes`` of them lie in a slot of a ciphertext.
        clip: L2 bound on what one record contributes, in the task's units.
        noise: standard deviation of the released sum's noise by block, in the block's units.
        upload: bytes of contributions that one participant sends over all releases.
        fetch: bytes of receipts and answers of the cohort that it fetches.
        seconds: of all releases, about.
    """

    label: str
    task: str
    disclosure: str
    releases: int
    values: int
    lane_bits: int
    lanes: int
    clip: float
    noise: dict[str, float]
    upload: int
    fetch: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told = asdict(self)
        renamed = {key: told.pop(name) for key, name in JSON_NAMES.items()}
        return {**told, **renamed, "seconds": round(self.seconds, 2)}


@dataclass(frozen=True)
class StudyCost:
    """A whole study.

    Attributes:
        epsilon: of the study for one unit of privacy; None: released without noise, no guarantee.
        unit: the unit of privacy.
        rounding: what truncation to the grid adds at most, as a share of the noise; without noise, of one record's clip norm.
    """

    epsilon: float | None
    delta: float
    noise: str
    unit: str
    min_cohort: int
    participants: tuple[str, ...]
    tasks: tuple[TaskCost, ...]
    rounding: float

    @property
    def upload(self) -> int:
        """Bytes of contributions that one participant sends."""
        return sum(task.upload for task in self.tasks)

    @property
    def fetch(self) -> int:
        """Bytes of its cohorts' receipts and answers that one participant fetches."""
        return sum(task.fetch for task in self.tasks)

    @property
    def rounds(self) -> int:
        """Rounds at most."""
        return sum(task.releases for task in self.tasks)

    @property
    def seconds(self) -> float:
        """Time of all rounds and of the key exchange before them, about."""
        return sum(task.seconds for task in self.tasks) + SETUP_TRIPS * ROUND_TRIP_SECONDS

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        totals = {"rounds": self.rounds, "upload_bytes": self.upload, "fetch_bytes": self.fetch}
        told = {**asdict(self), **totals, "seconds": round(self.seconds, 2), "participants": list(self.participants)}
        return {**told, "tasks": [task.to_json() for task in self.tasks]}


def study_cost(study: Study, records: int | None = None) -> StudyCost:
    """Price a compiled study.

    Args:
        records: that each site is expected to have; by default the schema's bound.

    Raises:
        Misuse: a sum does not fit the encryption's parameters.
    """
    cohort, tasks = study.sites, []
    for task in AgreedStudy(study).tasks:
        declaration, plan = task.declaration, task.plan(cohort, cohort)
        upload, fetch = plan.encoding.payload_bytes, cohort * (RECEIPT_BYTES + ANSWER_BYTES)
        seconds = _round_seconds(plan, records or study.data.max_records) + (upload + fetch) * 8 / LINE_BITS
        tasks.append(
            TaskCost(
                label=declaration.label,
                task=declaration.task,
                disclosure=declaration.disclosure,
                releases=declaration.releases,
                values=plan.encoding.size,
                lane_bits=plan.encoding.width,
                lanes=plan.encoding.lanes,
                clip=task.task.clip(),
                noise=task.block_std(math.sqrt(task.released_variance(cohort))),
                upload=declaration.releases * upload,
                fetch=declaration.releases * fetch,
                seconds=declaration.releases * seconds,
            )
        )
    privacy = study.privacy
    return StudyCost(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        noise=privacy.noise,
        unit=privacy.unit,
        min_cohort=privacy.min_cohort,
        participants=tuple(study.participants),
        tasks=tuple(tasks),
        rounding=rounding_share(study),
    )


def _round_seconds(plan: RoundPlan, records: int) -> float:
    """One round without its transfers: the members work side by side, then the coordinator; and its messages' latencies."""
    values, cohort = plan.encoding.size, plan.encoding.cohort
    noise = NOISE_SECONDS / (plan.task.study.sites if plan.declaration.own_noise else 1) if plan.noise.drawn else 0.0
    member = values * (records * RECORD_VALUE_SECONDS + noise + SEAL_SECONDS + cohort * MASK_SECONDS)
    coordinator = values * (cohort * (ADD_SECONDS + UNMASK_SECONDS) + OPEN_SECONDS)
    return member + coordinator + MEMBER_SECONDS + cohort * PEER_SECONDS + ROUND_TRIPS * ROUND_TRIP_SECONDS
