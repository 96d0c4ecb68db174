"""The round's context: everything a contribution depends on, in one digest from which every mask is derived.

Each participant computes it from the study it agreed to, the roster and keys it verified and the broadcast it received, never
from the coordinator's word. Two participants who saw anything different derive masks that do not cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from veilsum_node.canonical import canonical, digest, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.fields import LARGEST
from veilsum_privacy.mechanism.noise import NoisePlan, task_noise
from veilsum_privacy.securesum.parameters import BfvParameters, EncodingPlan, choose_parameters, plan_encoding
from veilsum_privacy.securesum.roster import Roster
from veilsum_privacy.study.study import Study, TaskDeclaration
from veilsum_privacy.tasks import build_declared
from veilsum_privacy.tasks.base import DerivedTask, TrainingTask

NONCE_BYTES = 16
MAX_ASSIGNMENT_BYTES = 1 << 18


@dataclass(frozen=True)
class Assignment:
    """What the coordinator asks of a cohort: one attempt of one round.

    Attributes:
        round: number of the round, from 1, only rising.
        attempt: number of the attempt within the study, from 1, only rising.
        label: the declared task's label.
        cohort: names of the members with their session nonces, in roster order.
        broadcast: digest of what was broadcast for this round.
        deadline: unix seconds after which a site that was not asked for consent gives the attempt up.
    """

    round: int
    attempt: int
    label: str
    cohort: tuple[tuple[str, bytes], ...]
    broadcast: bytes
    deadline: int

    @cached_property
    def names(self) -> tuple[str, ...]:  # asked for with every message
        """The cohort's names in order."""
        return tuple(name for name, _ in self.cohort)

    def to_bytes(self) -> bytes:
        """Canonical JSON."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:  # asked for whenever a directive may be sent
        return canonical(
            {
                "v": 1,
                "round": self.round,
                "attempt": self.attempt,
                "label": self.label,
                "cohort": [[name, nonce] for name, nonce in self.cohort],
                "broadcast": self.broadcast,
                "deadline": self.deadline,
            }
        )


@lru_cache(maxsize=32)
def parse_assignment(data: bytes) -> Assignment:
    """Parse an assignment; remembered, for every message of an attempt needs it again.

    Raises:
        HostileInput: malformed, or a number out of range.
    """
    if len(data) > MAX_ASSIGNMENT_BYTES:
        raise HostileInput("An assignment is larger than allowed.")
    value = parse_canonical(data, what="assignment")
    try:
        if set(value) != {"v", "round", "attempt", "label", "cohort", "broadcast", "deadline"} or value["v"] != 1:
            raise HostileInput("An assignment has other fields than version 1 has.")
        cohort = tuple((str(name), bytes.fromhex(nonce)) for name, nonce in value["cohort"])
        assignment = Assignment(
            value["round"], value["attempt"], value["label"], cohort, bytes.fromhex(value["broadcast"]), value["deadline"]
        )
    except (TypeError, ValueError, KeyError) as error:
        raise HostileInput("An assignment is malformed.") from error
    numbers = (assignment.round, assignment.attempt, assignment.deadline)
    if not all(type(number) is int and 0 < number < 2**53 for number in numbers) or not isinstance(assignment.label, str):
        raise HostileInput("An assignment's numbers are out of range.")
    if len(assignment.broadcast) != 32 or any(len(nonce) != NONCE_BYTES for _, nonce in cohort):
        raise HostileInput("An assignment's digest or nonces have the wrong length.")
    if assignment.to_bytes() != data:
        raise HostileInput("An assignment writes a value in another way than version 1 does.")
    return assignment


@dataclass(frozen=True)
class RoundPlan:
    """All that follows from study, cohort size and task: the same for every party."""

    declaration: TaskDeclaration
    encoding: EncodingPlan
    noise: NoisePlan


def task_range(study: Study, declaration: TaskDeclaration) -> tuple[int, int]:
    """Length of a task's vector, a block for every site if it is disclosed per site, and each value's largest absolute value
    at one site before noise, in grid units.

    Raises:
        HostileInput: the declaration contradicts its task.
    """
    task = build_declared(study, declaration)
    size = task.layout().size * (study.sites if declaration.disclosure == "per-site" else 1)
    if isinstance(task, TrainingTask):
        return size, declaration.resolution
    return size, declaration.grid * (1 if isinstance(task, DerivedTask) else study.data.max_records)


_MOST_PLANS = 64
_PARAMETERS: dict[tuple[int, int], tuple[Study, BfvParameters]] = {}


def study_parameters(study: Study, participants: int) -> BfvParameters:
    """The BFV parameters of a study with this many members in its roster. Remembered as :func:`plan_round` is."""
    key = (id(study), participants)
    known = _PARAMETERS.get(key)
    if known is None or known[0] is not study:
        if len(_PARAMETERS) >= _MOST_PLANS:
            _PARAMETERS.clear()
        known = _PARAMETERS[key] = study, _study_parameters(study, participants)
    return known[1]


def _study_parameters(study: Study, participants: int) -> BfvParameters:
    sums = []
    for declaration in study.tasks:
        size, bound = task_range(study, declaration)
        sums.append((size, bound, task_noise(study, declaration, participants).total_variance(participants)))
    return choose_parameters(sums, participants)


_PLANS: dict[tuple[int, str, int, int], tuple[Study, RoundPlan]] = {}


def plan_round(study: Study, label: str, roster_size: int, cohort_size: int) -> RoundPlan:
    """Plan encoding and noise of one attempt. Remembered for the very same study, for every message of a round needs it.

    Raises:
        HostileInput: the study declares no such task.
        Misuse: the noise share is below 4 grid units, or the sum does not fit.
    """
    key = (id(study), label, roster_size, cohort_size)
    known = _PLANS.get(key)
    if known is not None and known[0] is study:
        return known[1]
    plan = _plan_round(study, label, roster_size, cohort_size)
    if len(_PLANS) >= _MOST_PLANS:
        _PLANS.clear()
    _PLANS[key] = study, plan
    return plan


def _plan_round(study: Study, label: str, roster_size: int, cohort_size: int) -> RoundPlan:
    try:
        declaration = study.task(label)
    except KeyError as error:
        raise HostileInput("The study declares no task of that label.") from error
    noise = task_noise(study, declaration, cohort_size)
    size, bound = task_range(study, declaration)
    encoding = plan_encoding(
        size,
        bound,
        Fraction(noise.total_variance(cohort_size)),
        cohort_size,
        study_parameters(study, roster_size),
    )
    return RoundPlan(declaration, encoding, noise)


_AGREED: dict[tuple[bytes, str], tuple[Study, TaskDeclaration, bytes]] = {}
_MOST_AGREED = 256


def _agreed(study: Study, study_digest: bytes, declaration: TaskDeclaration) -> bytes:
    """Digest of what a study says of a task: the declaration, the weights of all and the dataset's schema. Remembered for
    the study that :func:`veilsum_privacy.study.study.parse_study` remembers, for it is wanted in every round."""
    key = (study_digest, declaration.label)
    known = _AGREED.get(key)
    if known is None or known[0] is not study or known[1] is not declaration:
        if len(_AGREED) >= _MOST_AGREED:
            _AGREED.clear()
        schema = study.data.model_dump(mode="json")
        said = {"task": declaration.model_dump(mode="json"), "weights": dict(study.weights), "schema": schema}
        known = _AGREED[key] = study, declaration, digest("veilsum/1/task", canonical(said))
    return known[2]


def context_digest(
    study: Study, study_digest: bytes, roster: Roster, keys_digest: bytes, assignment: Assignment, plan: RoundPlan
) -> bytes:
    """Digest c of one attempt (32 bytes), as the design's list has it."""
    declaration = plan.declaration
    return digest(
        "veilsum/1/context",
        canonical(
            {
                "v": 1,
                "federation": study.federation,
                "study": study_digest,
                "roster": roster.digest,
                "keys": keys_digest,
                "round": assignment.round,
                "attempt": assignment.attempt,
                "deadline": assignment.deadline,
                "cohort": [
                    [name, roster.member(name).identity.fingerprint, roster.member(name).public, nonce]
                    for name, nonce in assignment.cohort
                ],
                "task": _agreed(study, study_digest, declaration),
                "broadcast": assignment.broadcast,
                "encoding": plan.encoding.to_context(),
                "bfv": plan.encoding.parameters.to_context(),
                "noise": plan.noise.to_context(),
                "event": {
                    "mechanism": "discrete-gaussian" if declaration.variance else "none",
                    "sensitivity": declaration.grid,
                    "variance": str(declaration.variance),
                    "sampling_rate": declaration.sampling_rate,
                    "steps": declaration.steps,
                    "delta": study.privacy.delta,
                    "unit": study.privacy.unit,
                },
            }
        ),
    )


def kept_origin(study: Study, study_digest: bytes, declaration: TaskDeclaration, broadcast: bytes) -> bytes:
    """Digest (32 bytes) of all that a kept vector was computed from beside the records; it may go out for nothing else.

    Args:
        study, study_digest: that declares the task.
        declaration: with its label.
        broadcast: the broadcast's digest.
    """
    return digest("veilsum/1/kept", _agreed(study, study_digest, declaration), broadcast)


MAX_BROADCAST_ARRAYS = 4096


def broadcast_digest(data: bytes) -> bytes:
    """Digest of an encoded broadcast."""
    return digest("veilsum/1/broadcast", data)


def encode_broadcast(arrays: Mapping[str, NDArray[np.float64]]) -> bytes:
    """Serialise named float64 arrays (safetensors); empty bytes for none."""
    if not arrays:
        return b""
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(array, dtype=np.float64) for name, array in sorted(arrays.items())})


def decode_broadcast(data: bytes) -> dict[str, NDArray[np.float64]]:
    """Parse a broadcast.

    Raises:
        HostileInput: not safetensors of float64 arrays, or a value is not finite or larger than any that a task takes.
    """
    if not data:
        return {}
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HostileInput("A broadcast is not a valid safetensors file.") from error
    if len(arrays) > MAX_BROADCAST_ARRAYS:
        raise HostileInput("A broadcast holds too many arrays.")
    for array in arrays.values():
        if array.dtype != np.float64 or not in_range(array):
            raise HostileInput(f"A broadcast holds something else than float64 arrays of values up to {LARGEST:g}.")
    return arrays


def in_range(array: NDArray[np.float64]) -> bool:
    """Whether an array's values are finite and no larger than any that a task takes."""
    return bool(np.abs(array).max(initial=0.0) <= LARGEST)
