"""The coordinator of a federation in this process: what :class:`veilsum.remote.Remote` is for one on the network.

One thread drives all parties, study after study. A call that is interrupted leaves its study running, as on the network.
"""

import builtins
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from veilsum.local.federation import LocalFederation
from veilsum.remote import CoordinatorInfo, StudyInfo, choose_checkpoint, find_study, write_checkpoint, write_result
from veilsum_coordinator.results.proof import proof_file
from veilsum_coordinator.service.runner import run_study
from veilsum_node.errors import HostileInput, VeilsumError, raising
from veilsum_node.identity import Credentials
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.results.release_names import FOLDER
from veilsum_privacy.results.result import Result, checkpoint_directory, saved_checkpoints
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

LOG = logging.getLogger("veilsum.simulation")

STORED_SECONDS = 0.02
"""How often it is looked whether a study's end is stored."""

CHANGE_SECONDS = 0.2
"""Longest wait for a change before a watcher looks again."""


class LocalCoordinator:
    """A coordinator and its participants in this process.

    Args:
        results: where results lie.
    """

    def __init__(self, local: LocalFederation, results: Path) -> None:
        self._local, self._results = local, results
        self._waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def describe(self) -> CoordinatorInfo:
        """All participants are connected; nothing is received over a network."""
        names = tuple(sorted(self._local.cores))
        return CoordinatorInfo(self._local.hub.credentials.identity.name, names, names, dict.fromkeys(names, 0))

    def spending(self, dataset: str) -> dict[str, Counter[Mechanism]] | None:
        """What studies of this federation have released of a dataset, by participant."""
        return {name: Counter(events) for name, events in self._local.hub.journal.mirror.spending(dataset).items()}

    def submit(self, study: Study, analyst: Credentials) -> bytes:
        """Sign and submit a study, which runs once those before it are over; returns its digest."""
        key = self._local.submit(study, analyst)
        self._waiting.put(key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="veilsum-simulation", daemon=True)
            self._thread.start()
        return key

    def list(self) -> builtins.list[StudyInfo]:
        """All studies, oldest first."""
        return [StudyInfo.parse(status) for status in self._local.hub.shown.all()]

    def find(self, prefix: str) -> bytes:
        """As :meth:`veilsum.remote.Remote.find`."""
        return find_study(prefix, lambda begins: self.list())

    def show(self, study: bytes) -> StudyInfo:
        """A study's state, with the models that it kept on its way."""
        shown = pb.StudyStatus()
        shown.CopyFrom(self._local.hub.shown.status(study))
        shown.checkpoints.extend(saved_checkpoints(self._results, study))
        return StudyInfo.parse(shown)

    def abort(self, study: bytes) -> StudyInfo:
        """Stop a study."""
        self._local.hub.abort(study, "aborted by its analyst")
        return self.show(study)

    def watch(self, study: bytes) -> Iterator[StudyInfo]:
        """Yield the study's state at every change until it is over."""
        hub, seen, shown = self._local.hub, None, None
        while True:
            if (mark := hub.shown.mark(study)) != seen:
                seen, info = mark, self.show(study)
                if info != shown:
                    yield info
                    shown = info
                if info.over and (info.phase != "finished" or info.results):
                    return
            with hub.changed:
                if hub.shown.mark(study) == seen:
                    hub.changed.wait(timeout=CHANGE_SECONDS)

    def fetch(self, study: bytes, directory: Path, *, proof: bool = True) -> Result:
        """Write a finished study's result, with its proof."""
        return write_result(self.show(study), lambda name: self._file(study, name), directory, proof=proof)

    def fetch_checkpoint(self, study: bytes, directory: Path, number: int | None = None) -> tuple[Result, int]:
        """Write a model that a study kept on its way."""
        chosen = choose_checkpoint(self.show(study), number)
        place = checkpoint_directory(self._results, study, chosen)
        return write_checkpoint(lambda name: (place / name).read_bytes(), directory), chosen

    def close(self) -> None:
        """Stop the study under way and wait until nothing runs."""
        if self._thread is None:
            return
        for info in self.list():
            if not info.over:
                self._local.hub.abort(bytes.fromhex(info.study), "the simulation was closed")
        self._waiting.put(None)
        self._thread.join()
        self._thread = None

    def _file(self, study: bytes, name: str) -> bytes:
        if name.startswith(f"{FOLDER}/"):
            return proof_file(self._local.hub.journal.database, study, name)
        with raising(HostileInput(f"The simulated coordinator lost {name}.", "Run the study again."), on=OSError):
            return (self._results / study.hex() / name).read_bytes()

    def _drive(self) -> None:
        while (key := self._waiting.get()) is not None:
            try:
                self._run(key)
            except Exception as error:
                LOG.error("a simulated study failed", exc_info=error)
                reason = error.message if isinstance(error, VeilsumError) else "internal error in the simulation; see the log"
                self._local.hub.fail(key, reason)

    def _run(self, key: bytes) -> None:
        hub = self._local.hub
        if (entry := hub.studies.get(key)) is None or entry.machine.phase.over:
            return
        run_study(hub, key, self._local.prepare(key, self._results, checkpoints=True), self._results)
        self._local.settle()
        while not hub.stored(key):
            time.sleep(STORED_SECONDS)
            self._local.step()
