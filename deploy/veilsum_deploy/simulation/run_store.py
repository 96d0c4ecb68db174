"""The results folder of a simulation of one study while it runs: what is needed to take it up again."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from veilsum_deploy.simulation.record import ROUNDS
from veilsum_deploy.simulation.report import SUMMARY, check_empty
from veilsum_deploy.simulation.scores import Scores
from veilsum_deploy.simulation.study import SimulatedRun
from veilsum_node.errors import StateError
from veilsum_node.identity.files import replace_file
from veilsum_privacy.results.result import load_result, save_result
from veilsum_privacy.study.study import Study, parse_study

UNFINISHED = "unfinished"
"""Folder beside the results in which a simulation keeps what it needs to be taken up; gone once all is done."""

_IDENTITY, _STUDY, _DONE = "simulation.json", "study.json", "done.json"


@dataclass(frozen=True)
class RunStore:
    """Where runs are kept as they go.

    Attributes:
        identity: of all that decides the simulation but its noise.
        resume: whether to take up what lies there.
    """

    out: Path
    identity: str
    resume: bool = False

    def open(self) -> None:
        """Make or check the folder of what is unfinished.

        Raises:
            StateError: the folder holds something else, or another simulation.
        """
        folder = self.out / UNFINISHED
        if not self.resume or not folder.exists():
            if self.resume and (self.out / SUMMARY).exists():
                raise StateError(f"The simulation in {self.out} is done.", "Name a new folder to run it again.")
            check_empty(self.out)
            try:
                folder.mkdir(parents=True)
            except OSError as error:
                raise StateError(f"{folder} cannot be made ({error.strerror}).", "Check the folder.") from error
            replace_file(folder / _IDENTITY, json.dumps({"simulation": self.identity}).encode())
        try:
            found = json.loads((folder / _IDENTITY).read_bytes())["simulation"]
        except (OSError, ValueError, KeyError, TypeError):
            found = None
        if found != self.identity:
            advice = "Give the command that was interrupted, or name another folder."
            raise StateError(f"{self.out} holds another simulation: study, data or settings differ.", advice)

    def leave(self) -> None:
        """Remove the folder again if nothing was run that could be taken up."""
        folder = self.out / UNFINISHED
        if any(path.stat().st_size for path in folder.glob(f"*/{ROUNDS}")) or any(folder.glob(f"*/{_DONE}")):
            return
        self.close()
        with suppress(OSError):
            self.out.rmdir()

    def close(self) -> None:
        """Remove what only an unfinished simulation needs."""
        shutil.rmtree(self.out / UNFINISHED, ignore_errors=True)

    def save(self, number: int, study: Study, run: SimulatedRun) -> None:
        """Keep a run that is done; the note is written last, so a run with a note is whole."""
        save_result(self.out / f"run-{number}", run.result, study=run.study)
        own = self.out / UNFINISHED / f"run-{number}"
        own.mkdir(exist_ok=True)
        replace_file(own / _STUDY, study.to_bytes())
        note = {"seconds": run.seconds, "study": run.study, **asdict(run.scores)}
        replace_file(own / _DONE, json.dumps(note).encode())

    def load(self, number: int) -> tuple[Study, SimulatedRun] | None:
        """A run that was done before."""
        own = self.out / UNFINISHED / f"run-{number}"
        if not (own / _DONE).exists():
            return None
        note: dict[str, Any] = json.loads((own / _DONE).read_bytes())
        result = load_result(self.out / f"run-{number}")
        # What there is not was null in files of earlier versions.
        scores = Scores(note["accuracies"] or {}, note["held_out"] or {}, note["accuracy"])
        run = SimulatedRun(result, note["study"], note["seconds"], scores)
        return parse_study((own / _STUDY).read_bytes()), run


def once(folder: Path | None, make: Callable[[], Study]) -> Study:
    """A run's study: the one that lies in its folder, or a new one that is put there."""
    if folder is None:
        return make()
    path = folder / _STUDY
    if not path.exists():
        replace_file(path, make().to_bytes())
    return parse_study(path.read_bytes())
