"""Runs methods: one thread a study, from the moment its keys are exchanged to its result on disk.

:class:`HubFederation` is what a method sees. It waits for the hub to change; in simulation the wait drives the participants
of the same process instead, so that both run the same code.

Memory that was freed goes back to the system.

The C library keeps it: every thread has an arena of its own, and what lies between two things still in use is kept for what
the same thread asks for next. After a large round that was a quarter of all that the process held.
"""

import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Integers
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.federation import Federation, Release, StoredBlocks, read_release
from veilsum_coordinator.parts.networks import checkpoint_result
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.protocol.settings import Retention
from veilsum_coordinator.results.proof import release_entries
from veilsum_coordinator.results.released_models import find_released
from veilsum_coordinator.results.retirement import PROOFS, retire
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.status import spent_epsilon
from veilsum_node.errors import Damage, HostileInput, Unavailable, VeilsumError
from veilsum_node.process.memory import give_back_memory
from veilsum_node.telemetry.logs import about
from veilsum_privacy.dossier.figures import cost
from veilsum_privacy.results.result import Result, checkpoint_directory, remove_partial, save_result, study_fields
from veilsum_privacy.securesum.context import Pieces, broadcast_digest, broadcast_pieces
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan
from veilsum_privacy.training.long_arrays import PIECE

LOG = logging.getLogger("veilsum.coordinator")

_LONGER_THAN_KEPT = 1 << 25
"""Bytes of a release whose round frees more than is kept for the next (:func:`veilsum_node.process.memory.loading`)."""

RESULT_PAUSE = 1.0
"""Seconds between two tries to write a result."""

INTERNAL = "internal error in the method; see the coordinator's log"
"""Why a study failed that a later version may complete (:mod:`.completion`)."""

MOST_CHECKPOINTS = 3
"""Intermediate models of a study that are kept, the newest ones."""


class RoundLostError(VeilsumError):
    """A round ended without a release; the study cannot go on. What it cost stands in the participants' ledgers."""


class StoredFederation(Federation):
    """What was released to a study, in a hub's journal.

    Args:
        key: its digest.
        encoder: arrays of the study's projection, which every round broadcasts.
    """

    def __init__(self, hub: Hub, agreed: AgreedStudy, key: bytes, encoder: Mapping[str, NDArray[np.float64]] | None) -> None:
        super().__init__(agreed.study, encoder)
        self._hub, self._agreed, self._key = hub, agreed, key

    def _stored(self, plan: RoundPlan, number: int, cohort: tuple[str, ...], digest: bytes) -> Release:
        """A release of the journal, whose values are read when they are asked for if they are many."""

        def read(start: int, stop: int) -> Integers:
            return self._hub.journal.release_values(self._key, number, start, stop)

        if plan.task.per_site or plan.encoding.size <= PIECE:
            return read_release(plan.task, read(0, plan.encoding.size), number, cohort, digest)
        std = math.sqrt(plan.task.released_variance(len(cohort)))
        values = StoredBlocks(plan.task.task.layout(), lambda start, stop: plan.task.in_units(read(start, stop)))
        return Release(plan.task.label, number, values, plan.task.block_std(std), cohort, digest)


class HubFederation(StoredFederation):
    """A federation behind a hub. It holds on to its study's machine when the study is stopped.

    Args:
        wait: returns after something may have changed; called without the lock.
        encoder: arrays of the study's projection, which every round broadcasts.
        results: where results lie; None keeps no checkpoints.
    """

    def __init__(
        self,
        hub: Hub,
        key: bytes,
        wait: Callable[[], None],
        clock: Callable[[], int],
        encoder: Mapping[str, NDArray[np.float64]] | None = None,
        results: Path | None = None,
    ):
        with hub.changed:
            entry = hub.studies[key]
        super().__init__(hub, entry.machine.agreed, key, encoder)
        self._machine, self._tally = entry.machine, entry.tally
        self._results, self._round = results, 0
        self._wait, self._clock = wait, clock

    def sum(
        self, label: str, broadcast: Mapping[str, NDArray[np.float64]] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """Run one round of a declared task; see :class:`~veilsum_coordinator.parts.federation.Federation`.

        Raises:
            RoundLostError: no cohort could be formed, or the round was lost after consent was asked for.
            ReplayError: after a restart, the journal holds another round in this place.
        """
        declared = any(task.label == label for task in self.study.tasks)  # another label ends the study, below
        singles = self._agreed.task(label).single if declared else ()
        encoded = broadcast_pieces({**self.encoder, **(broadcast or {})}, singles)
        del broadcast  # a model is large, and the round lets go of it as soon as nobody may fetch it any more
        if (release := self._replayed(label, encoded, members)) is not None:
            return release
        while self._returning():
            self._wait()
        machine = self._machine
        with self._hub.changing(self._key):
            if machine.phase.over:
                raise RoundLostError(f"The study is {machine.phase.value}: {machine.reason}.")
            current = machine.start_round(label, encoded, members)
            if current is None:
                raise RoundLostError(f"No round could start: {machine.reason}.")
        del encoded  # the round has it, as long as anybody may fetch it
        while current.phase not in (RoundPhase.OPENING, RoundPhase.FAILED):
            self._wait()
        if current.phase is RoundPhase.FAILED:
            raise RoundLostError(f"Round {current.number} failed: {machine.reason}.")
        return self._open(current)

    def _replayed(self, label: str, encoded: Pieces, members: Collection[str] | None) -> Release | None:
        """The release that the journal holds in this place, if an earlier process of the coordinator came so far."""
        with self._hub.changed:
            machine = self._machine
            found = None if machine.phase.over else machine.replayed(label, broadcast_digest(encoded), members)
            if found is None:
                return None
            number, cohort = found[0], found[1].cohort
            plan = machine.agreed.task(label).plan(len(machine.members.fixed_roster().members), len(cohort))
        digest = self._hub.journal.find_release(self._key, number)
        self._round = number
        return self._stored(plan, number, cohort, digest)

    def _returning(self) -> bool:
        with self._hub.changed:
            return self._machine.returning

    def _open(self, current: Round) -> Release:
        with self._hub.changed:
            if current.phase is not RoundPhase.OPENING:  # stopped since
                raise RoundLostError(f"Round {current.number} failed: the study was stopped.")
            opened = current.opening()
            proof = current.proof(self._hub.credentials.identity.certificate)
        attempt, cohort, size = current.assignment.attempt, current.cohort, current.plan.encoding.size
        try:
            values = opened()
        except HostileInput as error:
            with self._hub.changing(self._key):
                self._machine.unusable(current, error.message)
            raise RoundLostError(f"Round {current.number} cannot be used: {error.message}") from error
        digest = self._hub.journal.release(
            self._key,
            current.number,
            attempt,
            current.label,
            cohort,
            current.context,
            values,
            self._clock(),
            current.bytes_received,
            proof=proof,
        )
        del values, opened  # they are as long as the release
        if 8 * size >= _LONGER_THAN_KEPT:
            give_back_memory()
        keep = partial(self._hub.objects.keep_release, self._key, current.number, current.total.shown)
        self._hub.journal.outage.wait(keep)
        self._hub.released(self._key, self._machine, current)
        del keep  # with the round the last that holds the sum as it is shown
        if 8 * size >= _LONGER_THAN_KEPT:
            give_back_memory()
        self._round = current.number
        done, epsilon = self._spent()
        LOG.info(
            "study %s: round %d (%s) released, cohort of %d; release %d of %d%s",
            self.study.name,
            current.number,
            current.label,
            len(cohort),
            done,
            sum(task.releases for task in self.study.tasks),
            "" if epsilon is None else f", epsilon {cost(epsilon)} so far",
            extra=about(
                "released",
                study=self.study.name,
                digest=self._key,
                round=current.number,
                attempt=attempt,
                label=current.label,
                epsilon=epsilon,
            ),
        )
        return self._stored(current.plan, current.number, cohort, digest)

    def checkpoint(self, arrays: Mapping[str, NDArray[np.float64]], summary: Mapping[str, Any]) -> None:
        """Keep a model in ``checkpoints/round-N`` of the study's results; only the newest three of them stay."""
        if self._results is None:
            return
        with self._hub.changed:
            if self._machine.replay.releases:
                return
        study = self.study
        described = {
            **study_fields(study, self._key),
            "round": self._round,
            "epsilon": self._spent()[1],
            "delta": study.privacy.delta,
        }
        directory = checkpoint_directory(self._results, self._key, self._round)
        try:
            save_result(directory, checkpoint_result(self, arrays, summary), study=described)
        except Unavailable as error:  # the study does without it; the next one may find room
            LOG.warning("study %s: no checkpoint after round %d: %s", study.name, self._round, error)
            shutil.rmtree(directory, ignore_errors=True)
            return
        for old in sorted(directory.parent.iterdir())[:-MOST_CHECKPOINTS]:
            shutil.rmtree(old)
        with self._hub.changing(self._key):  # who watches the study is shown it
            pass

    def _spent(self) -> tuple[int, float | None]:
        """Releases so far, and their epsilon."""
        with self._hub.changed:
            releases = self._tally.releases(self._machine.rounds)
        return sum(releases.values()), spent_epsilon(self.study, releases)


def run_study(hub: Hub, key: bytes, federation: Federation, results: Path) -> None:
    """Run a study's method to its end: result on disk and finished, or failed with a reason."""
    study = federation.study
    try:
        files = save_method_result(hub, federation, results / key.hex())
        hub.finish(key, files)
    except VeilsumError as error:
        if hub.stopping:  # the process ends; the study is found as it stands
            return
        hub.fail(key, error.message)
    except Exception as error:
        LOG.error("study %s: internal error", study.name, exc_info=error, extra=about("failed", study=study.name, digest=key))
        hub.fail(key, INTERNAL)
    finally:
        give_back_memory()


def save_method_result(hub: Hub, federation: Federation, directory: Path) -> list[str]:
    """Run a study's method and write its result; the names of its files.

    Raises:
        VeilsumError: a round was lost, the journal holds other rounds, or the folder takes nothing.
    """
    study = federation.study
    result = get_method(study.method).run(federation)
    with hub.changed:
        if (entry := hub.studies.get(bytes.fromhex(directory.name))) is not None:
            entry.machine.replay.check_over()
    _save(hub, study, directory, result)
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def _save(hub: Hub, study: Study, directory: Path, result: Result) -> None:
    """Write a result. Its releases are paid for, so a folder that takes nothing is waited for as long as the database is.

    Raises:
        Unavailable: it took nothing all that time, or the coordinator is stopping.
    """
    key = bytes.fromhex(directory.name)
    releases = hub.journal.outage.wait(lambda: release_entries(hub.journal.database, key))
    end, told = time.monotonic() + hub.journal.outage.seconds, False
    while True:
        try:
            save_result(directory, result, study=study_fields(study, key), releases=releases)
        except Unavailable as error:
            if hub.stopping or time.monotonic() >= end:
                raise
            if not told:
                LOG.error("study %s: %s; retrying for up to %.0f s", study.name, error, hub.journal.outage.seconds)
            told = True
            time.sleep(RESULT_PAUSE)
        else:
            return


class Supervisor:
    """Ticks the hub and starts a thread for every study whose keys are exchanged."""

    TICK_SECONDS = 0.2

    TIDY_SECONDS = 10.0

    def __init__(self, hub: Hub, results: Path, clock: Callable[[], int], retention: Retention | None = None) -> None:
        self._hub, self._results, self._clock = hub, results, clock
        self._retention = retention or Retention()
        self._stopping = threading.Event()
        self._started: set[bytes] = set()
        self._thread = threading.Thread(target=self._loop, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start ticking."""
        remove_partial(self._results)
        self._thread.start()
        threading.Thread(target=self._complete, name="completion", daemon=True).start()
        threading.Thread(target=self._tidy, name="retention", daemon=True).start()

    def _complete(self) -> None:
        """Try once what failed in a formula under an earlier process, which may have been an earlier version."""
        from veilsum_coordinator.service.completion import complete  # it builds on this module

        with self._hub.changed:
            ended = [item for item in self._hub.ended.values() if item.phase is StudyPhase.FAILED]
        failed = [item.digest for item in ended if item.status.reason == INTERNAL]
        for key in failed:
            if not self._stopping.is_set():
                complete(self._hub, key, self._results)

    def _tidy(self) -> None:
        """Delete what was held long enough, and let go of what another process deleted."""
        days, due = self._retention.studies, 0
        while not self._stopping.wait(self.TIDY_SECONDS):
            try:
                if days is not None and self._clock() >= due:
                    due = self._clock() + 3600
                    proofs = self._results.parent / PROOFS if self._retention.keep_proofs else None
                    for study in retire(self._hub.journal.database, self._results, self._clock(), days, proofs=proofs):
                        extra = about("deleted", study=study.name, digest=study.digest)
                        LOG.info("study %s was deleted: it expired %d days ago", study.name, days, extra=extra)
                self._hub.forget_deleted()
            except (Unavailable, Damage):  # the database is away: the next look will do
                continue
            except Exception as error:
                if self._stopping.is_set():  # what it reads is being closed
                    return
                LOG.error("what was held long enough is not deleted", exc_info=error)

    def stop(self) -> None:
        """Stop ticking; running methods wait on and end with the process."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                self._hub.tick()
                with self._hub.changed:
                    running = [key for key, entry in self._hub.studies.items() if entry.machine.phase is StudyPhase.RUNNING]
                for key in running:
                    if key not in self._started:
                        self._started.add(key)
                        self._run(key)
                self._started &= set(running)
            except Exception as error:
                LOG.error("internal error in the supervisor", exc_info=error)
            self._stopping.wait(self.TICK_SECONDS)

    def _run(self, key: bytes) -> None:
        with self._hub.changed:
            if (entry := self._hub.studies.get(key)) is None:
                return
        try:
            arrays = find_released(self._results, entry.machine.study)
        except VeilsumError as error:
            self._hub.fail(key, f"{error.message} {error.advice}".strip())
            return
        with self._hub.changed:
            if key not in self._hub.studies:  # stopped meanwhile
                return
            federation = HubFederation(self._hub, key, self._waiter(), self._clock, arrays, self._results)
        threading.Thread(
            target=run_study, args=(self._hub, key, federation, self._results), name=f"study-{key.hex()[:8]}", daemon=True
        ).start()

    def _waiter(self) -> Callable[[], None]:
        """For one thread: waits for a change since its last call, or a tick."""
        seen = self._hub.changes

        def wait() -> None:
            nonlocal seen
            with self._hub.changed:
                if seen == self._hub.changes:
                    self._hub.changed.wait(timeout=self.TICK_SECONDS)
                seen = self._hub.changes

        return wait
