"""What a long simulated study keeps on disk so that it can be taken up again, wherever it was killed.

A method is a function of what was released to it. So every released sum is kept; a run that is taken up runs its method from
the start, gets the same sums and does the same, until the rounds that are kept are used up. What sites keep from round to
round is kept as well, now and then: rounds after the last such snapshot that changed it are computed again.
"""

import hashlib
import json
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as dump_arrays

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import StateError
from veilsum_node.identity.files import replace_file

ROUNDS = "rounds.bin"
STATES = "states-"
SHARE = 10.0
"""Snapshots take no more than one part in so many of a run's time."""

_HEAD = struct.Struct("<II32s")  # lengths of header and values, SHA-256 of both
_ADVICE = "Leave out --resume and name a new folder."


@dataclass(frozen=True)
class RoundRecord:
    """What a round was asked for: the task's label, places of the members, digest of the broadcast."""

    label: str
    members: tuple[int, ...]
    broadcast: bytes


@dataclass
class SiteStates:
    """What sites keep from round to round, by place and label: what they trained, and noised vectors."""

    sites: int
    trained: list[dict[str, Mapping[str, Floats]]] = field(default_factory=list)
    kept: list[dict[str, Integers]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.trained = self.trained or [{} for _ in range(self.sites)]
        self.kept = self.kept or [{} for _ in range(self.sites)]

    def holds(self, record: RoundRecord) -> bool:
        """Whether a round of this kind changes what is kept."""
        return any(record.label in self.trained[index] or record.label in self.kept[index] for index in record.members)


class RunRecorder:
    """The rounds of one run, in a folder of its own.

    Args:
        folder: made if it is not there; rounds in it are taken up.
        pause: least seconds between two snapshots of what sites keep.
        clock: seconds.

    Attributes:
        rounds: how many rounds there are to be taken up.

    Raises:
        StateError: the folder cannot be read or written.
    """

    def __init__(self, folder: Path, *, pause: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._pause, self._clock = folder, pause, clock
        self._snapshot = (clock(), 0.0)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            found = list(_read(folder / ROUNDS))
            self._since, self._arrays = self._latest(len(found))
            changed = [number for number, (head, _, _) in enumerate(found) if head["changes"] and number >= self._since]
            self._known = found[: changed[0] if changed else len(found)]
            self._file = (folder / ROUNDS).open("ab")
            self._file.truncate(self._known[-1][2] if self._known else 0)
        except OSError as error:
            raise StateError(f"{folder} cannot be used ({error.strerror}).", "Check the folder and its space.") from error
        self.rounds = len(self._known)
        self._next = 0

    def states(self, sites: int) -> SiteStates:
        """What sites kept when the last round that can be taken up ended.

        Raises:
            StateError: it is of other sites.
        """
        found = SiteStates(sites)
        try:
            for key, array in self._arrays.items():
                kind, place, label, name = json.loads(key)
                if kind == "kept":
                    found.kept[place][label] = array.astype(np.int64)
                else:
                    found.trained[place][label] = {**found.trained[place].get(label, {}), name: array}
        except (ValueError, IndexError, TypeError) as error:
            raise StateError(f"{self._folder} is of another study.", _ADVICE) from error
        return found

    def recorded(self, record: RoundRecord) -> Integers | None:
        """The next round's sum if it was kept; None once the kept rounds are used up.

        Raises:
            StateError: the round that was kept was asked for in another way: this is not the same run.
        """
        if self._next >= self.rounds:
            return None
        head, values, _ = self._known[self._next]
        if head != _header(record, bool(head["changes"])):
            words = f"Round {self._next + 1} in {self._folder} differs from now: study, data or program have changed."
            raise StateError(words, _ADVICE)
        self._next += 1
        return np.frombuffer(values, dtype="<i8").astype(np.int64)

    def append(self, record: RoundRecord, total: Integers, states: SiteStates) -> None:
        """Keep a round that was computed.

        Raises:
            StateError: the folder cannot be written.
        """
        changes = states.holds(record)
        head, values = json.dumps(_header(record, changes)).encode(), total.astype("<i8").tobytes()
        try:
            self._file.write(_HEAD.pack(len(head), len(values), hashlib.sha256(head + values).digest()) + head + values)
            self._file.flush()
            self._next += 1
            began, took = self._snapshot
            if changes and self._clock() - began >= max(self._pause, SHARE * took):
                self._keep(states)
        except OSError as error:
            raise StateError(f"{self._folder} cannot be written ({error.strerror}).", "Check its space.") from error

    def close(self) -> None:
        self._file.close()

    def _keep(self, states: SiteStates) -> None:
        began = self._clock()
        arrays: dict[str, NDArray[np.generic]] = {}
        for place in range(states.sites):
            for label, vector in states.kept[place].items():
                arrays[json.dumps(["kept", place, label, ""])] = vector
            for label, state in states.trained[place].items():
                for name, array in state.items():
                    arrays[json.dumps(["trained", place, label, name])] = np.ascontiguousarray(array)
        replace_file(self._folder / f"{STATES}{self._next:08d}", dump_arrays(arrays))
        for older in sorted(self._folder.glob(f"{STATES}*"))[:-1]:
            older.unlink()
        self._snapshot = (self._clock(), self._clock() - began)

    def _latest(self, rounds: int) -> tuple[int, dict[str, NDArray[np.generic]]]:
        """The newest snapshot that is whole: after how many rounds it was made, and its arrays."""
        for path in sorted(self._folder.glob(f"{STATES}*"), reverse=True):
            number = int(path.name.removeprefix(STATES))
            try:
                if number <= rounds:
                    return number, dict(load_arrays(path.read_bytes()))
            except (SafetensorError, ValueError):
                continue
        return 0, {}


def _header(record: RoundRecord, changes: bool) -> dict[str, object]:
    members = np.array(record.members, dtype="<i4").tobytes()
    return {
        "label": record.label,
        "members": hashlib.sha256(members).hexdigest(),
        "broadcast": record.broadcast.hex(),
        "changes": changes,
    }


def _read(path: Path) -> Iterator[tuple[dict[str, object], bytes, int]]:
    """Header, values and end of each whole round, up to the first that was cut off."""
    data = path.read_bytes() if path.exists() else b""
    offset = 0
    while offset + _HEAD.size <= len(data):
        first, second, digest = _HEAD.unpack_from(data, offset)
        start, middle = offset + _HEAD.size, offset + _HEAD.size + first
        end = middle + second
        if end > len(data) or hashlib.sha256(data[start:end]).digest() != digest:
            return
        yield json.loads(data[start:middle]), data[middle:end], end
        offset = end
