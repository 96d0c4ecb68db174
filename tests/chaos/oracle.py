"""What a study should have yielded: its method run once more on what was released, each release held against the true sum.

The true sum of a round is that of the records of its cohort, without noise, computed here. What was released less that is the
noise, in grid units: nothing in a study without noise, and as large as the study declares in one with noise. For the method
``statistics`` numpy computes the sum as well, without the product's code.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chaos.federation import Federation
from chaos.reading import Row
from support.federation import Data
from support.studies import complete
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Release, read_release
from veilsum_node.errors import VeilsumError
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.securesum.context import broadcast_digest, decode_broadcast, encode_broadcast
from veilsum_privacy.study.study import Study, TaskDeclaration, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_proto import federation_pb2 as pb

SIGMAS = 8.0
"""More than so many standard deviations happen once in 10^15 values, and a federation may release thousands."""

SHIFT = 0.7
"""Is taken from the square of a number."""

RELEASES = 'SELECT round, attempt, label, cohort, "values", digest FROM coordinator_release WHERE study = ? ORDER BY round'

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class WrongError(Exception):
    """The study yielded something else."""


@dataclass
class Noise:
    """Noise of releases, each value divided by the standard deviation that its study declares."""

    values: list[Floats] = field(default_factory=list)

    def chi_square(self) -> tuple[int, float]:
        """Number of values, and the sum of their squares less its expectation, in its own standard deviations."""
        if not self.values:
            return 0, 0.0
        drawn = np.concatenate(self.values)
        return len(drawn), float(((drawn**2).sum() - len(drawn)) / math.sqrt(2 * len(drawn)))


def declared_variance(study: Study, task: TaskDeclaration, cohort: int) -> float:
    """Variance of the noise in a released value, in grid units squared, after the study's own words."""
    privacy = study.privacy
    if privacy.noise == "none" or task.variance == 0:
        return 0.0
    alone = task.keep or privacy.noise == "local"
    share = task.variance / (1 if alone else max(1, cohort - privacy.assumed_colluders))
    return cohort * (share + (16 if task.unrounded else 0))


def numpy_statistics(data: Data, cohort: Collection[str]) -> dict[str, Floats]:
    """Blocks of the method ``statistics`` by numpy alone, for numbers in [-1, 1] and a label of two classes."""
    x = np.concatenate([data[name][0] for name in cohort])
    y = np.concatenate([data[name][1] for name in cohort])
    counts = np.bincount(y, minlength=2).astype(np.float64)
    return {
        "records/table": np.array([float(len(x))]),
        "overview.numbers/records": np.array([float(len(x))]),
        "overview.numbers/absent": np.zeros((1, x.shape[1])),
        "overview.numbers/sum": x.sum(0)[None],
        "overview.numbers/square": (x**2 - SHIFT).sum(0)[None],
        "classes/table": counts,
    }


class Replay:
    """A federation, as a method sees it, of what was released; every release is checked on the way."""

    def __init__(
        self, federation: Federation, study: Study, key: bytes, releases: list[Row], roster: int, noise: Noise
    ) -> None:
        self.study, self.encoder = study, dict[str, Floats]()
        self._federation, self._key, self._noise = federation, key, noise
        self._rows, self._roster = list(releases), roster
        self._state: dict[tuple[str, str], Mapping[str, Floats]] = {}
        self._records = {name: complete(x, y.astype(np.int64)) for name, (x, y) in federation.data.items()}

    @property
    def left(self) -> int:
        """How many releases were not asked for."""
        return len(self._rows)

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """The next release of the study, checked.

        Raises:
            WrongError: there is none, it is of another task, or its values are not what they should be.
        """
        if not self._rows:
            raise MissingError(f"no release of {label} is journalled")
        row = self._rows.pop(0)
        cohort = tuple(json.loads(row["cohort"]))
        if row["label"] != label:
            raise WrongError(f"release {row['round']} is of {row['label']}, not of {label}")
        encoded = encode_broadcast(dict(broadcast or {}), AgreedStudy(self.study).task(label).single)
        self._check_broadcast(row["round"], encoded)
        values = np.frombuffer(row["values"], "<i8").astype(np.int64)
        plan = AgreedStudy(self.study).task(label).plan(self._roster, len(cohort))
        true = sum((self._contribution(name, label, cohort, encoded) for name in cohort), np.zeros_like(values))
        centre = true / 2.0**CENTRE_BITS if plan.declaration.unrounded else true
        self._compare(row["round"], label, cohort, values, centre)
        if self.study.method == "statistics":
            self._compare_with_numpy(label, cohort, values)
        return read_release(plan.task, values, row["round"], cohort, bytes(row["digest"]))

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        """Keeps nothing."""

    def _check_broadcast(self, number: int, encoded: bytes) -> None:
        query = "SELECT broadcast FROM coordinator_round WHERE study = ? AND round = ?"
        for row in self._federation.at_coordinator(query, self._key, number):  # gone once the study is over
            if bytes(row["broadcast"]) != broadcast_digest(encoded):
                raise WrongError(f"what was broadcast in round {number} does not follow from what was released")

    def _contribution(self, name: str, label: str, cohort: tuple[str, ...], encoded: bytes) -> Integers:
        study, task = self.study, self.study.task(label)
        kept = {} if task.source is None else {task.source: self._kept(name, task.source)}
        places = tuple(study.participants.index(member) for member in cohort)
        place = SitePlace(study.participants.index(name), kept, None, places, self._state.get((name, label), {}))
        plan = AgreedStudy(study).task(label).plan(self._roster, len(cohort))
        found = compute_sum(plan, self._records[name], decode_broadcast(encoded, plan.task.single), place)
        self._state[name, label] = found.state
        return found.total

    def _kept(self, name: str, label: str) -> Integers:
        query = "SELECT vector FROM participant_kept WHERE study = ? AND label = ?"
        (row,) = self._federation.at_site(name, query, self._key, label)
        return np.frombuffer(row["vector"], "<i8").astype(np.int64)

    def _compare(self, number: int, label: str, cohort: tuple[str, ...], values: Integers, true: Integers | Floats) -> None:
        task = self.study.task(label)
        if task.keep and (values != np.sum([self._kept(name, label) for name in cohort], axis=0)).any():
            raise WrongError(f"what the sites kept of round {number} is not what was summed")
        error, variance = values - true, declared_variance(self.study, task, len(cohort))
        if variance == 0:
            rounding = len(cohort) if task.resolution else 0  # training: another order of additions moves a value by a unit
            if np.abs(error).max() > rounding:
                raise WrongError(f"the sum of round {number} ({label}) is wrong by up to {np.abs(error).max()} grid units")
            return
        noise = error / math.sqrt(variance)
        if np.abs(noise).max() > SIGMAS:
            raise WrongError(f"the noise of round {number} ({label}) reaches {np.abs(noise).max():.1f} standard deviations")
        self._noise.values.append(noise)

    def _compare_with_numpy(self, label: str, cohort: tuple[str, ...], values: Integers) -> None:
        task = self.study.task(label)
        built = AgreedTask(AgreedStudy(self.study), task).task
        unit = built.unit(task)
        std = math.sqrt(declared_variance(self.study, task, len(cohort))) * unit
        records = sum(len(self._records[name]) for name in cohort)
        expected = numpy_statistics(self._federation.data, cohort)
        if len(values) != built.layout().limbs * sum(block.size for block in expected.values()):
            raise WrongError(f"the release of {label} has {len(values)} values")
        found = built.layout().split((values * unit).astype(np.float64))
        for block in built.layout().blocks:
            # rounding takes at most half a unit of every value of a record
            bound = (unit * records + SIGMAS * std) / block.weight
            if np.abs(found[block.name] - expected[block.name]).max() > bound:
                raise WrongError(f"{block.name} of {label} is not the sum that numpy has")


class MissingError(WrongError):
    """The method asks for more than was released: right for a study that did not finish."""


def check_study(
    federation: Federation, key: bytes, phase: str, reason: str, roster: int, noise: Noise
) -> tuple[int, bool, list[str]]:
    """Hold a study's releases and result against the truth.

    Args:
        phase: in which it ended.
        reason: why, if it did not finish.
        roster: how many sites enrolled.
        noise: to which the noise of its releases is added.

    Returns:
        how many sums were released; whether the method itself could not go on, as the reason says; and what is wrong.
    """
    study = parse_study(_submitted(federation, key))
    releases = federation.at_coordinator(RELEASES, key)
    faults: list[str] = []
    replay = Replay(federation, study, key, releases, roster, noise)
    try:
        result = get_method(study.method).run(replay)
    except MissingError as error:
        return len(releases), False, [str(error)] if phase == "finished" else []
    except WrongError as error:
        return len(releases), False, [str(error)]
    except VeilsumError as error:
        return len(releases), True, [] if error.message == reason else [f"the method says: {error.message}"]
    if replay.left:
        faults.append(f"{replay.left} releases were journalled that the method did not ask for")
    if phase == "finished":
        faults += _compare_results(load_result(federation.results(key)), result)
    return len(releases), False, faults


def _compare_results(found: Result, expected: Result) -> Iterator[str]:
    same = found.arrays.keys() == expected.arrays.keys() and all(
        found.arrays[name].tobytes() == np.ascontiguousarray(array).tobytes() for name, array in expected.arrays.items()
    )
    if not same:
        yield "the result's arrays do not follow from what was released"
    if json.dumps(found.summary) != json.dumps(expected.summary):
        yield "the result's summary does not follow from what was released"


def _submitted(federation: Federation, key: bytes) -> bytes:
    (row,) = federation.at_coordinator("SELECT object FROM coordinator_study WHERE digest = ?", key)
    return bytes(pb.StudyObject.FromString(bytes(row["object"])).study)
