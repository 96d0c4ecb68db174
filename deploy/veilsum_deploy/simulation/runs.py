"""Run one study on simulated sites, once or several times with fresh noise.

With encryption the sites, the coordinator and the whole protocol between them run in this process; without, the same sums are
added in the clear, and a run that was killed can be taken up. Methods, tasks, clipping, grid and noise are the same.
Identities and ledgers are temporary.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from veilsum.local.federation import LocalFederation, results_directory
from veilsum.local.sites import make_local
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service.runner import run_study
from veilsum_deploy.simulation.baseline_names import OF_RECORDS
from veilsum_deploy.simulation.baselines import beside
from veilsum_deploy.simulation.deal import Deal, deal, site_names
from veilsum_deploy.simulation.engines import Engine
from veilsum_deploy.simulation.plain import PlainFederation, plain_sites
from veilsum_deploy.simulation.progress import Progress, RoundProgress, WatchedFederation
from veilsum_deploy.simulation.record import RunRecorder
from veilsum_deploy.simulation.run_store import UNFINISHED, RunStore, once
from veilsum_deploy.simulation.scores import Kept, Scores, score
from veilsum_deploy.simulation.study import Beside, SimulatedRun, SimulatedRuns, Simulation, SimulationDraft, compiled
from veilsum_node.errors import Misuse, StateError, VeilsumError
from veilsum_node.identity import load_credentials
from veilsum_participant.data.quality import count_cells
from veilsum_participant.store.kept import kept_vector
from veilsum_privacy.results.result import Result, load_result, save_result, study_fields
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy

Watch = Callable[[str], None]
Runner = Callable[[int, Callable[[Study], Watch]], tuple[Study, Result, Kept, float]]
"""Runs the study for the n-th time and tells of its rounds: the study, its result, what sites kept, seconds."""


def simulate(
    simulation: Simulation,
    progress: Progress,
    clock: Callable[[], int],
    *,
    engine: Engine | None = None,
    store: RunStore | None = None,
) -> SimulatedRuns:
    """Run the study.

    Args:
        progress: told of runs, and of rounds with the epsilon so far.
        clock: unix seconds.
        engine: where sites are computed; None for this process. Without encryption only.
        store: None to keep nothing. With encryption only whole runs are taken up.

    Raises:
        Misuse, ConfigurationError: simulation, study and data do not fit together.
        StateError: a study failed, or what is kept is another simulation's.
    """
    if simulation.repeat < 1:
        raise Misuse("A simulation needs at least one run.")
    names = site_names(simulation.collection, simulation.setting, simulation.draft.request.participants)
    if len(names) < 2:
        raise Misuse("A simulation needs at least two sites.")
    many = engine is not None and engine.workers > 1
    if many and simulation.encryption:
        raise Misuse("The whole protocol runs in one process.", "Add --no-encryption, or leave out --jobs and --engine.")
    if many and (simulation.draft.program is not None or simulation.draft.weights is not None):
        raise Misuse("A frozen program or model is simulated in one process.", "Leave out --jobs and --engine.")
    if store is not None:
        store.open()
    try:
        return _simulate(simulation, names, progress, clock, engine, store)
    except BaseException:
        if store is not None:
            store.leave()
        raise


def _simulate(
    simulation: Simulation,
    names: list[str],
    progress: Progress,
    clock: Callable[[], int],
    engine: Engine | None,
    store: RunStore | None,
) -> SimulatedRuns:
    folder = None if store is None else store.out / UNFINISHED
    dealt = deal(simulation.collection, simulation.setting, simulation.seed, names)
    runs: list[tuple[Study, SimulatedRun]] = []
    plain = not simulation.encryption
    with _plain(simulation, dealt, clock, engine, folder) if plain else _encrypted(simulation, dealt, clock) as run:
        for number in range(1, simulation.repeat + 1):
            what = f"Run {number} of {simulation.repeat}"
            progress(what, (number - 1) / simulation.repeat)
            earlier = None if store is None else store.load(number)
            if earlier is not None:
                runs.append(earlier)
                continue
            span = ((number - 1) / simulation.repeat, number / simulation.repeat)
            study, result, kept, seconds = run(number, lambda study: RoundProgress(study, progress, what, span))  # noqa: B023
            about = study_fields(study, study_digest(study.to_bytes()))
            scores = score(result, dealt, simulation.draft.schema, kept, simulation.draft.program)
            runs.append((study, SimulatedRun(result, about, seconds, scores)))
            if store is not None:
                store.save(number, *runs[-1])
    found: dict[str, Beside] = {}
    first = runs[0][1].scores
    if first.accuracies or first.held_out:
        for kind in simulation.baselines:
            if not first.accuracies and kind in OF_RECORDS:  # discriminants tell classes, and here are none
                continue
            progress(f"Beside it: {kind}", 1.0)
            found[kind] = _beside(kind, simulation.draft, dealt, clock)
    progress("Done", 1.0)
    sizes = {name: dataset.table.num_rows for name, dataset in dealt.training.items()}
    cells = count_cells((dataset.read for dataset in dealt.training.values()), simulation.draft.schema)
    return SimulatedRuns(runs[0][0], sizes, tuple(item for _, item in runs), dealt.forced, found, cells)


def _beside(kind: str, draft: SimulationDraft, dealt: Deal, clock: Callable[[], int]) -> Beside:
    """A baseline; one that the study does not have says why, and leaves the result as it is."""
    try:
        return beside(kind, draft, dealt, clock)
    except VeilsumError as error:
        return Beside(Scores(), note=" ".join(error.message.split()))


@contextmanager
def _plain(
    simulation: Simulation, dealt: Deal, clock: Callable[[], int], engine: Engine | None, folder: Path | None
) -> Iterator[Runner]:
    draft = simulation.draft
    sites = plain_sites(draft, dealt)

    def run(number: int, watch: Callable[[Study], Watch]) -> tuple[Study, Result, Kept, float]:
        started = time.monotonic()
        own = None if folder is None else folder / f"run-{number}"
        recorder = None if own is None else RunRecorder(own)
        study = once(own, lambda: compiled(draft, "0" * 64, list(dealt.training), clock))
        federation = PlainFederation(study, sites, draft.broadcast, engine=engine, recorder=recorder)
        try:
            result = get_method(study.method).run(WatchedFederation(federation, watch(study)))
        finally:
            if recorder is not None:
                recorder.close()
        return study, result, federation.kept_blocks, time.monotonic() - started

    yield run


@contextmanager
def _encrypted(simulation: Simulation, dealt: Deal, clock: Callable[[], int]) -> Iterator[Runner]:
    with TemporaryDirectory(prefix="veilsum-simulation-") as temporary, ExitStack() as stack:
        base, draft = Path(temporary), simulation.draft
        if draft.program is not None:
            raise Misuse("A frozen program is simulated without encryption only.", "Add --no-encryption.")
        results = base / "results"
        if draft.projection is not None:  # where the coordinator looks for it
            save_result(results / "projection", draft.projection)
        if draft.model is not None:
            save_result(results / "model", draft.model)
        files = {name: dataset.write(base / "data", name) for name, dataset in dealt.training.items()}
        subject = simulation.collection.domains[0].train.subject
        frozen = {} if draft.weights is None else {"weights": draft.weights}
        kit, local = make_local(
            base / "federation", files, draft.request.dataset, clock, stack, subject=subject, encoders=frozen
        )
        analyst = load_credentials(kit.analyst.identity, clock())

        def run(number: int, watch: Callable[[Study], Watch]) -> tuple[Study, Result, Kept, float]:
            started = time.monotonic()
            study = compiled(draft, kit.federation_id, sorted(files), clock)
            key = local.submit(study, analyst)
            run_study(local.hub, key, WatchedFederation(local.prepare(key, results), watch(study)), results)
            local.settle()
            status = local.hub.shown.status(key)
            if status.phase != StudyPhase.FINISHED.value:
                raise StateError(f"The study {study.name!r} {status.phase}: {status.reason}.")
            seconds = time.monotonic() - started
            return study, load_result(results_directory(results, key)), _kept(local, study, key), seconds

        yield run


def _kept(local: LocalFederation, study: Study, key: bytes) -> Kept:
    """What sites kept, from their own state."""

    def kept(site: str, label: str) -> Mapping[str, Floats]:
        with local.cores[site].site.database.engine.connect() as connection:
            vector = kept_vector(connection, key, label)
        if vector is None:
            raise StateError(f"{site} kept nothing of {label!r}.")
        return AgreedStudy(study).task(label).kept_blocks(vector)[0]

    return kept
