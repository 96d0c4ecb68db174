"""Run one study on simulated sites, once or several times with fresh noise.

With encryption the sites, the coordinator and the whole protocol between them run in this process; without, the same sums are
added in the clear. Methods, tasks, clipping, grid and noise are the same. Identities and ledgers are temporary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.compile import StudyRequest, compile_study
from veilsum_coordinator.results import Result, load_result
from veilsum_deploy.datasets import Dataset
from veilsum_deploy.evaluation import accuracy, result_head
from veilsum_deploy.local import results_directory
from veilsum_deploy.simulation.partition import hold_out, partition
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.sites import make_local
from veilsum_participant.data import load_records
from veilsum_privacy.config import read_toml, validate
from veilsum_privacy.errors import ConfigurationError, Misuse
from veilsum_privacy.identity import load_credentials
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_privacy.schema_file import load_schema
from veilsum_privacy.study import Study, study_digest
from veilsum_privacy.tasks.base import Records

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is, 0 to 1."""


@dataclass(frozen=True)
class Simulation:
    """What to simulate.

    Attributes:
        request: the study, with its schema in ``data``.
        dataset: the records of all sites together.
        sites: how many sites.
        partition: how records are dealt: ``iid``, ``uneven`` or ``dirichlet:ALPHA``.
        seed: of the split and of what is held out; noise never depends on it.
        repeat: runs, each with fresh noise and keys.
        encryption: whether the whole protocol runs.
        holdout: share of the records that no site gets and a classifier is tested on.
    """

    request: StudyRequest
    dataset: Dataset
    sites: int
    partition: str
    seed: int
    repeat: int = 1
    encryption: bool = True
    holdout: float = 0.0


@dataclass(frozen=True)
class Run:
    """One run; ``accuracy`` is None where nothing was held out or the method trains no classifier."""

    result: Result
    study: dict[str, Any]
    seconds: float
    accuracy: float | None


@dataclass(frozen=True)
class Outcome:
    """All runs; ``study`` is the first one's and ``sizes`` says how many records each site had."""

    study: Study
    sizes: dict[str, int]
    runs: tuple[Run, ...]


def simulation_request(path: Path, dataset: Dataset | None) -> StudyRequest:
    """Read a study.toml; one that names no schema gets that of the packaged data set.

    Raises:
        ConfigurationError: a file cannot be read or is invalid, or no schema is named.
    """
    content = read_toml(path)
    if dataset is not None and not {"schema", "data"} & set(content):
        content["data"] = dataset.schema
    request = validate(content, StudyRequest, source=str(path))
    if request.schema_file is None:
        return request
    return request.model_copy(update={"schema_file": None, "data": load_schema(path.parent / request.schema_file)})


def simulate(simulation: Simulation, progress: Progress, clock: Callable[[], int]) -> Outcome:
    """Run the study.

    Raises:
        Misuse, ConfigurationError: simulation, study and data do not fit together.
        StateError: a study failed.
    """
    request, dataset = simulation.request, simulation.dataset
    if simulation.sites < 2 or simulation.repeat < 1:
        raise Misuse("A simulation needs at least two sites and one run.")
    names = _names(request, simulation.sites)
    kept, held = hold_out(dataset.classes, simulation.holdout, simulation.seed)
    training = dataset.take(kept)
    parts = partition(training.classes, simulation.sites, simulation.partition, simulation.seed)
    with TemporaryDirectory(prefix="veilsum-simulation-") as temporary, ExitStack() as stack:
        base = Path(temporary)
        files = {name: training.take(rows).write(base / "data", name) for name, rows in zip(names, parts, strict=True)}
        test = load_records(dataset.take(held).write(base / "data", "held-out"), dataset.schema)[0] if len(held) else None
        prepare = _encrypted if simulation.encryption else _plain
        run = stack.enter_context(prepare(simulation, base, files, clock))
        runs = []
        for number in range(1, simulation.repeat + 1):
            progress(f"Run {number} of {simulation.repeat}", (number - 1) / simulation.repeat)
            started = time.monotonic()
            study, result = run()
            seconds = time.monotonic() - started
            about = {"name": study.name, "digest": study_digest(study.to_bytes()).hex(), "method": study.method}
            runs.append((study, Run(result, about, seconds, _accuracy(result, test, dataset))))
        progress("Done", 1.0)
    sizes = {name: len(rows) for name, rows in zip(names, parts, strict=True)}
    return Outcome(runs[0][0], sizes, tuple(item for _, item in runs))


Runner = Callable[[], tuple[Study, Result]]


@contextmanager
def _plain(simulation: Simulation, base: Path, files: dict[str, Path], clock: Callable[[], int]) -> Iterator[Runner]:
    sites = {name: PlainSite(load_records(path, simulation.dataset.schema)[0]) for name, path in files.items()}

    def run() -> tuple[Study, Result]:
        study = _compile(simulation, "0" * 64, files, clock)
        return study, get_method(study.method).run(PlainFederation(study, sites))

    yield run


@contextmanager
def _encrypted(simulation: Simulation, base: Path, files: dict[str, Path], clock: Callable[[], int]) -> Iterator[Runner]:
    with ExitStack() as stack:
        kit, local = make_local(base / "federation", files, simulation.request.dataset, clock, stack)
        analyst = load_credentials(kit.analyst.identity, clock())

        def run() -> tuple[Study, Result]:
            study = _compile(simulation, kit.federation_id, files, clock)
            local.run(study, analyst, base / "results")
            return study, load_result(results_directory(base / "results", study_digest(study.to_bytes())))

        yield run


def _compile(simulation: Simulation, federation: str, files: dict[str, Path], clock: Callable[[], int]) -> Study:
    return compile_study(
        simulation.request,
        federation_id=federation,
        coordinator="coordinator",
        participants=sorted(files),
        clock=clock,
        random=SYSTEM_RANDOM,
    )


def _names(request: StudyRequest, sites: int) -> list[str]:
    if request.participants and len(request.participants) != sites:
        raise ConfigurationError(
            f"study {request.name!r} names {len(request.participants)} participants, the simulation has {sites} sites.",
            "Leave `participants` out of the study, or ask for as many sites.",
        )
    return list(request.participants) or [f"site-{number:0{len(str(sites))}d}" for number in range(1, sites + 1)]


def _accuracy(result: Result, test: Records | None, dataset: Dataset) -> float | None:
    """Accuracy on held-out records; 0 where noise left no classifier, None where the method has none."""
    head = result_head(result)
    if test is None or (head is None and "not_estimable" not in result.summary):
        return None
    return accuracy(head, test, dataset.schema)
