"""The round's context: everything a contribution depends on, in one digest from which every mask is derived.

Each participant computes it from the study it agreed to, the roster and keys it verified and the broadcast it received, never
from the coordinator's word. Two participants who saw anything different derive masks that do not cancel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_node.canonical import begin_digest, canonical, digest, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.fields import LARGEST
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.securesum import NONCE_BYTES
from veilsum_privacy.securesum.agreed import SummedTask, SumPlan
from veilsum_privacy.securesum.array_bytes import array_pieces, in_range, single
from veilsum_privacy.securesum.roster import Roster

MAX_ASSIGNMENT_BYTES = 1 << 18
MAX_BROADCAST_ARRAYS = 4096


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
            raise HostileInput("An assignment does not have exactly the fields of version 1.")
        cohort = tuple((str(name), bytes.fromhex(nonce)) for name, nonce in value["cohort"])
        assignment = Assignment(
            value["round"], value["attempt"], value["label"], cohort, bytes.fromhex(value["broadcast"]), value["deadline"]
        )
    except (TypeError, ValueError, KeyError) as error:
        raise HostileInput("An assignment is malformed.") from error
    numbers = (assignment.round, assignment.attempt, assignment.deadline)
    # what has a canonical form is below 2^53
    if any(type(number) is not int or number < 1 for number in numbers) or not isinstance(assignment.label, str):
        raise HostileInput("An assignment's numbers are out of range.")
    if len(assignment.broadcast) != 32 or any(len(nonce) != NONCE_BYTES for _, nonce in cohort):
        raise HostileInput("An assignment's digest or nonces have the wrong length.")
    if assignment.to_bytes() != data:
        raise HostileInput("An assignment encodes a value differently than version 1 does.")
    return assignment


def context_digest(plan: SumPlan[SummedTask], roster: Roster, assignment: Assignment) -> bytes:
    """Digest c of one attempt (32 bytes), as the design's list has it."""
    own = {"v": 6, "encoding": plan.encoding.to_context(), "ring": plan.encoding.ring.to_context()}
    return digest("veilsum/6/context", canonical(context_fields(plan.task, plan.noise, roster, assignment) | own))


def context_fields(task: SummedTask, noise: NoisePlan, roster: Roster, assignment: Assignment) -> dict[str, object]:
    """What a context holds in every version of the protocol."""
    study, declaration = task.study, task.declaration
    members = [(name, roster.member(name), nonce) for name, nonce in assignment.cohort]
    return {
        "federation": study.federation,
        "study": task.agreed.digest,
        "roster": roster.digest,
        "round": assignment.round,
        "attempt": assignment.attempt,
        "deadline": assignment.deadline,
        "cohort": [[name, member.identity.fingerprint, member.public, nonce] for name, member, nonce in members],
        "task": task.digest,
        "broadcast": assignment.broadcast,
        "noise": noise.to_context(),
        "event": {  # of the declaration alone: what post-processing is called in a ledger has no noise of its own here
            "mechanism": "discrete-gaussian" if declaration.variance else "none",
            "sensitivity": declaration.grid,
            "variance": str(declaration.variance),
            "sampling_rate": declaration.sampling_rate,
            "steps": declaration.steps,
            "delta": study.privacy.delta,
            "unit": study.privacy.unit,
        },
    }


Pieces = Sequence[bytes | memoryview]
"""A broadcast as it is encoded, cut somewhere."""


def broadcast_digest(data: bytes | Pieces) -> bytes:
    """Digest of an encoded broadcast, whole or in pieces."""
    pieces = [data] if isinstance(data, bytes) else data
    state = begin_digest("veilsum/1/broadcast", last=sum(map(len, pieces)))
    for piece in pieces:
        state.update(piece)
    return state.digest()


def encode_broadcast(arrays: Mapping[str, NDArray[Any]], singles: Collection[str] = ()) -> bytes:
    """Serialise named arrays (safetensors); empty bytes for none. Arguments as of :func:`broadcast_pieces`."""
    return b"".join(broadcast_pieces(arrays, singles))


def broadcast_pieces(arrays: Mapping[str, NDArray[Any]], singles: Collection[str] = ()) -> Pieces:
    """The same in pieces; arrays that have their type already are not copied, and must not change as long as it is used.

    Args:
        arrays: by name.
        singles: names of those that are float32; all others are float64.
    """
    if not arrays:
        return ()
    return array_pieces(
        {
            name: single(array) if name in singles else np.ascontiguousarray(array, dtype=np.float64)
            for name, array in arrays.items()
        }
    )


class Broadcast(dict[str, NDArray[np.float64]]):
    """Arrays of a broadcast by their names, and its bytes."""

    encoded = b""


def decode_broadcast(data: bytes, singles: Collection[str] = ()) -> Broadcast:
    """Parse a broadcast; nobody can write to its arrays.

    Args:
        data: the bytes.
        singles: names of the arrays that are float32; all others are float64.

    Raises:
        HostileInput: not safetensors of arrays of these types, or a value is not finite or larger than any that a task takes.
    """
    if not data:
        return Broadcast()
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HostileInput("A broadcast is not a valid safetensors file.") from error
    if len(arrays) > MAX_BROADCAST_ARRAYS:
        raise HostileInput("A broadcast holds too many arrays.")
    if any(array.dtype != (np.float32 if name in singles else np.float64) for name, array in arrays.items()):
        raise HostileInput("A broadcast holds arrays of other types than the study states.")
    found = Broadcast((name, _lasting(array.astype(np.float64, copy=False))) for name, array in arrays.items())
    found.encoded = data
    if not all(map(in_range, found.values())):
        raise HostileInput(f"A broadcast holds something other than numbers up to {LARGEST:g}.")
    return found


def _lasting(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """An array whose memory is that of bytes."""
    return np.frombuffer(array.tobytes()).reshape(array.shape)
