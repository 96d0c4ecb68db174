"""A study's method run again on releases that were proven, and its result compared with what was handed out.

A method is a function of what was released to it. So whoever holds the releases makes the same result again, to the bit where
both compute by the same loops (:mod:`veilsum_coordinator.results.reproduction`); another architecture may round otherwise.
"""

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import Federation, Release, read_release
from veilsum_node.errors import Misuse
from veilsum_privacy.results.proof_check import CheckedRelease
from veilsum_privacy.results.release_check import ProofFault
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.results.result import ARRAYS, MANIFEST, Result
from veilsum_privacy.securesum.context import broadcast_digest, encode_broadcast
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedTask

LARGEST_TOLERANCE = 1e-6
"""Relative difference up to which two numbers may be one, rounded otherwise."""


class RoundingFault(ProofFault):
    """What was computed again differs as little as it would where loops round otherwise, or it cannot be told by how much."""


class Replayed(Federation):
    """Implements :class:`~veilsum_coordinator.parts.federation.Federation` on releases that were proven.

    Args:
        releases: in order; taken one at a time.
        encoder: arrays that every round broadcasts.
        exact: whether what the method would broadcast must be what was, to the bit.

    Attributes:
        differing: rounds whose broadcast is not the method's to the bit.
    """

    def __init__(
        self, study: Study, releases: Iterator[CheckedRelease], encoder: Mapping[str, Floats], *, exact: bool
    ) -> None:
        super().__init__(study, encoder)
        self._left, self._exact = releases, exact
        self.differing: list[int] = []
        self.releases = 0

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """The next release, if it is the one that the method asks for.

        Raises:
            ProofFault: it does not hold, is another one, or there is none left.
        """
        found = next(self._left, None)
        if found is None:
            raise ProofFault(MANIFEST, f"The method asks for a release of {label} that the manifest does not name.")
        self.releases += 1
        where, assignment = round_file(found.assignment.round), found.assignment
        if assignment.label != label:
            raise ProofFault(where, f"It is a release of {assignment.label}, where the method asks for one of {label}.")
        if members is not None and not set(assignment.names) <= set(members):
            raise ProofFault(where, "Its cohort has members whom the method does not ask for.")
        task = found.task
        if not isinstance(task, AgreedTask):
            raise Misuse("Releases are replayed where their tasks' code is.")
        encoded = encode_broadcast({**self.encoder, **(broadcast or {})}, task.single)
        if broadcast_digest(encoded) != assignment.broadcast:
            if self._exact:
                raise RoundingFault(
                    where, "The broadcast to its cohort differs from what the method computes from the earlier releases."
                )
            self.differing.append(assignment.round)
        return read_release(task, found.values, assignment.round, assignment.names, found.digest)


@dataclass(frozen=True)
class Comparison:
    """How a result agrees with the one that its releases make.

    Attributes:
        exact: whether every byte does.
        largest: the largest relative difference of two numbers; 0 if exact.
    """

    exact: bool
    largest: float


def compare(
    manifest: Mapping[str, Any], found: Mapping[str, bytes], made: Mapping[str, bytes], result: Result, again: Result,
    tolerance: float,
) -> Comparison:  # fmt: skip
    """Compare a result with the one that its releases make.

    Args:
        manifest: of the result, parsed.
        found: its files by name.
        tolerance: largest relative difference of two numbers that is let pass.

    Raises:
        ProofFault: names the first number, or other value, that differs.
    """
    if found == made:
        return Comparison(True, 0.0)
    largest = 0.0
    wanted = json.loads(made[MANIFEST])
    for name in dict.fromkeys((*wanted, *manifest)):
        if name != "files":  # their hashes follow from what is in them
            largest = max(largest, _apart(MANIFEST, name, manifest.get(name), wanted.get(name), tolerance))
    for name in dict.fromkeys((*again.arrays, *result.arrays)):
        one, other = result.arrays.get(name), again.arrays.get(name)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            raise ProofFault(ARRAYS, f"The array {name} does not follow from the releases.")
        largest = max(largest, _array_apart(name, one, other, tolerance))
    if largest == 0.0:
        name = ARRAYS if found.get(ARRAYS) != made.get(ARRAYS) else MANIFEST
        raise ProofFault(name, "It holds the values that follow from the releases, but is encoded differently.", _AGAIN)
    return Comparison(False, largest)


_AGAIN = "Fetch the result again."
_ROUNDING = "Another kind of processor may round differently: --tolerance 1e-9 accepts such a difference."


def _apart(where: str, name: str, found: Any, made: Any, tolerance: float) -> float:
    """Largest relative difference of two JSON values."""
    if isinstance(found, dict) and isinstance(made, dict) and list(found) == list(made):
        return max((_apart(where, f"{name}.{key}", found[key], made[key], tolerance) for key in made), default=0.0)
    if isinstance(found, list) and isinstance(made, list) and len(found) == len(made):
        pairs = enumerate(zip(found, made, strict=True))
        return max((_apart(where, f"{name}[{place}]", *pair, tolerance) for place, pair in pairs), default=0.0)
    if type(found) is type(made) and found == made and not isinstance(found, dict):
        return 0.0
    if isinstance(found, float) and isinstance(made, float):
        apart = abs(found - made) / max(abs(found), abs(made))
        if apart <= tolerance:
            return apart
        raise _differs(where, name, found, made, apart)
    raise ProofFault(where, f"{name} is {_short(found)}, but the releases give {_short(made)}.")


def _array_apart(name: str, found: NDArray[Any], made: NDArray[Any], tolerance: float) -> float:
    differs = (found != made) & ~((found != found) & (made != made))  # NaN is itself here
    if not differs.any():
        return 0.0
    place = tuple(int(index) for index in np.argwhere(differs)[0])
    one, other = found[place].item(), made[place].item()
    label = f"{name}[{', '.join(map(str, place))}]"
    if found.dtype.kind != "f":
        raise ProofFault(ARRAYS, f"{label} is {one}, but the releases give {other}.")
    scale = float(np.abs(made).max())
    apart = float(np.abs(found - made).max()) / scale if scale and math.isfinite(scale) else math.inf
    if not apart <= tolerance:
        raise _differs(ARRAYS, label, one, other, apart)
    return apart


def _differs(where: str, name: str, found: float, made: float, apart: float) -> ProofFault:
    what = f"{name} is {found!r}, but the releases give {made!r}."
    return RoundingFault(where, what, _ROUNDING) if apart <= LARGEST_TOLERANCE else ProofFault(where, what)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if value is not None else "absent"
    return text if len(text) <= 60 else f"{text[:57]}..."
