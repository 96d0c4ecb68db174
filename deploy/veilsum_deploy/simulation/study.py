"""Run one study on simulated sites, once or several times with fresh noise.

With encryption the sites, the coordinator and the whole protocol between them run in this process; without, the same sums are
added in the clear. Methods, tasks, clipping, grid and noise are the same. Identities and ledgers are temporary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.compile import StudyRequest, compile_study
from veilsum_coordinator.methods.request import ReleasedProjection, with_projection
from veilsum_coordinator.projections import result_projection
from veilsum_coordinator.results import Result, load_result, save_result
from veilsum_deploy.collections import Collection
from veilsum_deploy.local import LocalFederation, results_directory
from veilsum_deploy.simulation.dealing import Deal, Setting, deal, site_names
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.scoring import Encode, Kept, domain_accuracies, overall
from veilsum_deploy.simulation.sites import make_local
from veilsum_participant.data.encoders import load_encoder
from veilsum_participant.store import kept_vector
from veilsum_privacy.computing import kept_blocks
from veilsum_privacy.config import read_toml, validate
from veilsum_privacy.encoder import Program as FrozenProgram
from veilsum_privacy.errors import Misuse, StateError
from veilsum_privacy.features import ENCODER_MATRIX, ENCODER_OFFSET, exact_affine
from veilsum_privacy.identity import load_credentials
from veilsum_privacy.randomness import SYSTEM_RANDOM
from veilsum_privacy.schema import DatasetSchema
from veilsum_privacy.schema_file import load_schema
from veilsum_privacy.study import Study, study_digest
from veilsum_privacy.tasks.base import Floats, Records

Program = Callable[[Floats], Floats]

Progress = Callable[[str, float], None]
"""Told what is being done and how far it is, 0 to 1."""


@dataclass(frozen=True)
class Draft:
    """A study as asked for, ready to be compiled for any sites.

    Attributes:
        request: with its schema in ``data`` and a released projection by its digest.
        projection: the result that released the study's projection; None without one.
        program: the study's frozen program; None without one.
    """

    request: StudyRequest
    projection: Result | None = None
    program: Program | None = None

    @property
    def schema(self) -> DatasetSchema:
        """The study's schema.

        Raises:
            Misuse: it has none.
        """
        if self.request.data is None:
            raise Misuse("The study has no schema.")
        return self.request.data

    @property
    def broadcast(self) -> dict[str, Floats]:
        """The arrays of the projection, which every round broadcasts; empty without one."""
        return {} if self.projection is None else result_projection(self.projection)[1]

    @property
    def encode(self) -> Encode:
        """Features of records as the study's tasks see them before any alignment."""
        arrays, program = self.broadcast, self.program
        if not arrays and program is None:
            return lambda records: records

        def encode(records: Records) -> Records:
            x = np.where(records.present, records.features, 0.0)
            mapped = exact_affine(x, arrays[ENCODER_MATRIX], arrays[ENCODER_OFFSET]) if program is None else program(x)
            whole = np.ones_like(mapped, dtype=np.bool_)
            whole[~(records.present.all(axis=1) & np.isfinite(mapped).all(axis=1))] = False
            return Records(np.where(whole, mapped, 0.0), whole, records.labels)

        return encode


@dataclass(frozen=True)
class Simulation:
    """What to simulate.

    Attributes:
        draft: the study.
        collection: the records of all sites together, in domains.
        setting: how they are dealt.
        seed: of the split and of what is held out; noise never depends on it.
        repeat: runs, each with fresh noise and keys.
        encryption: whether the whole protocol runs.
    """

    draft: Draft
    collection: Collection
    setting: Setting
    seed: int
    repeat: int = 1
    encryption: bool = True


@dataclass(frozen=True)
class Run:
    """One run; ``accuracies`` by domain is None where nothing is tested on or the result's classifier is out of reach.

    Where noise left no classifier every accuracy is 0.
    """

    result: Result
    study: dict[str, Any]
    seconds: float
    accuracies: dict[str, float] | None
    accuracy: float | None


@dataclass(frozen=True)
class Outcome:
    """All runs; ``study`` is the first one's, ``sizes`` says how many records each site had, ``forced`` who was given one."""

    study: Study
    sizes: dict[str, int]
    runs: tuple[Run, ...]
    forced: tuple[str, ...] = field(default=())


def read_content(path: Path, encoder: Path | None) -> dict[str, Any]:
    """Parse a study.toml; ``encoder``, the folder of a result that released a projection, takes the place of its encoder.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    content = read_toml(path)
    return content if encoder is None else {**content, "encoder": {"result": str(encoder.resolve())}}


def draft_of(
    content: Mapping[str, Any], base: Path, schema: DatasetSchema | None, *, source: str, program: Path | None = None
) -> Draft:
    """Read the content of a study.toml; one that names no schema gets ``schema``.

    Args:
        content: as parsed; it is left as it is.
        base: directory that its paths are relative to.
        schema: of the data; None where the study must name its own.
        source: names the content in errors.
        program: file of the frozen program, for a study whose encoder is one.

    Raises:
        ConfigurationError: the content is invalid, a file cannot be read, or no schema is named.
        Misuse: the study's encoder is a program, and its file is not given.
    """
    values = dict(content)
    if schema is not None and not {"schema", "data"} & set(values):
        values["data"] = schema
    asked = validate(values, StudyRequest, source=source)
    request = with_projection(asked, base)
    projection = load_result(base / asked.encoder.result) if isinstance(asked.encoder, ReleasedProjection) else None
    if request.schema_file is not None:
        request = request.model_copy(update={"schema_file": None, "data": load_schema(base / request.schema_file)})
    if not isinstance(request.encoder, FrozenProgram):
        return Draft(request, projection)
    if program is None:
        raise Misuse("The study's encoder is a frozen program.", "Name its file with --program.")
    return Draft(request, None, load_encoder(program, request.encoder))


def simulate(simulation: Simulation, progress: Progress, clock: Callable[[], int]) -> Outcome:
    """Run the study.

    Raises:
        Misuse, ConfigurationError: simulation, study and data do not fit together.
        StateError: a study failed.
    """
    if simulation.repeat < 1:
        raise Misuse("A simulation needs at least one run.")
    names = site_names(simulation.collection, simulation.setting, simulation.draft.request.participants)
    if len(names) < 2:
        raise Misuse("A simulation needs at least two sites.")
    dealt = deal(simulation.collection, simulation.setting, simulation.seed, names)
    prepare = _encrypted if simulation.encryption else _plain
    with prepare(simulation, dealt, clock) as run:
        runs = []
        for number in range(1, simulation.repeat + 1):
            progress(f"Run {number} of {simulation.repeat}", (number - 1) / simulation.repeat)
            started = time.monotonic()
            study, result, kept = run()
            seconds = time.monotonic() - started
            about = {"name": study.name, "digest": study_digest(study.to_bytes()).hex(), "method": study.method}
            accuracies = _accuracies(result, dealt, simulation.draft, kept)
            share = None if accuracies is None else overall(accuracies, dealt)
            runs.append((study, Run(result, about, seconds, accuracies, share)))
        progress("Done", 1.0)
    sizes = {name: dataset.table.num_rows for name, dataset in dealt.training.items()}
    return Outcome(runs[0][0], sizes, tuple(item for _, item in runs), dealt.forced)


def run_plain(draft: Draft, dealt: Deal, clock: Callable[[], int]) -> tuple[Study, Result, Kept]:
    """Run a study once without encryption; the last of the three looks up what a site kept.

    Raises:
        VeilsumError: the study cannot be compiled for these sites, or its method refuses.
    """
    study = _compile(draft, "0" * 64, list(dealt.training), clock)
    sites = {name: PlainSite(dataset.records, encode=draft.program) for name, dataset in dealt.training.items()}
    federation = PlainFederation(study, sites, draft.broadcast)
    return study, get_method(study.method).run(federation), federation.kept_blocks


Runner = Callable[[], tuple[Study, Result, Kept]]


@contextmanager
def _plain(simulation: Simulation, dealt: Deal, clock: Callable[[], int]) -> Iterator[Runner]:
    yield lambda: run_plain(simulation.draft, dealt, clock)


@contextmanager
def _encrypted(simulation: Simulation, dealt: Deal, clock: Callable[[], int]) -> Iterator[Runner]:
    with TemporaryDirectory(prefix="veilsum-simulation-") as temporary, ExitStack() as stack:
        base, draft = Path(temporary), simulation.draft
        if draft.program is not None:
            raise Misuse("A frozen program is simulated without encryption only.", "Add --no-encryption.")
        results = base / "results"
        if draft.projection is not None:  # where the coordinator looks for it
            save_result(results / "projection", draft.projection)
        files = {name: dataset.write(base / "data", name) for name, dataset in dealt.training.items()}
        kit, local = make_local(base / "federation", files, draft.request.dataset, clock, stack)
        analyst = load_credentials(kit.analyst.identity, clock())

        def run() -> tuple[Study, Result, Kept]:
            study = _compile(draft, kit.federation_id, sorted(files), clock)
            local.run(study, analyst, results)
            key = study_digest(study.to_bytes())
            return study, load_result(results_directory(results, key)), _kept(local, study, key)

        yield run


def _kept(local: LocalFederation, study: Study, key: bytes) -> Kept:
    """What sites kept, from their own state."""

    def kept(site: str, label: str) -> Mapping[str, Floats]:
        with local.cores[site].site.engine.connect() as connection:
            vector = kept_vector(connection, key, label)
        if vector is None:
            raise StateError(f"{site} kept nothing of {label!r}.")
        return kept_blocks(study, label, vector)[0]

    return kept


def _compile(draft: Draft, federation: str, names: list[str], clock: Callable[[], int]) -> Study:
    return compile_study(
        draft.request,
        federation_id=federation,
        coordinator="coordinator",
        participants=sorted(names),
        clock=clock,
        random=SYSTEM_RANDOM,
    )


def _accuracies(result: Result, dealt: Deal, draft: Draft, kept: Kept) -> dict[str, float] | None:
    if not dealt.tests:
        return None
    if "not_estimable" in result.summary:
        return dict.fromkeys(dealt.tests, 0.0)
    return domain_accuracies(result, dealt, draft.schema, kept, draft.program)
