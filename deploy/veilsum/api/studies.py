"""A study that is asked for, and one that was submitted."""

from __future__ import annotations

import logging
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilsum.api.notebook import fields_html, show_progress
from veilsum.api.options import Question
from veilsum.api.plans import Plan
from veilsum.api.results import StudyResult, fetched_result
from veilsum.drafts import absences, draft_connected, plan_connected
from veilsum.provenance import stated_cost
from veilsum.request import StudyRequest
from veilsum_node.errors import Misuse, StateError, VeilsumError

if TYPE_CHECKING:
    from veilsum.api.federation import Federation
    from veilsum.remote import StudyInfo


LOG = logging.getLogger("veilsum.studies")


@dataclass(frozen=True)
class Study:
    """A question as it would be asked. It has cost nothing until it is run.

    Attributes:
        federation: that it would be asked of.
        asked: the question, or what a study.toml says.
    """

    federation: Federation
    asked: Question | StudyRequest

    @cached_property
    def request(self) -> StudyRequest:
        """What a study.toml would say.

        Raises:
            ConfigurationError: it does not say what it may cost, or something is unknown or out of range.
        """
        return self.asked.request() if isinstance(self.asked, Question) else self.asked

    @property
    def name(self) -> str:
        """Name of the study."""
        return self.asked.study_name if isinstance(self.asked, Question) else self.asked.name

    @property
    def method(self) -> str:
        """Method of the study."""
        return self.asked.method

    @property
    def queries(self) -> Sequence[Mapping[str, Any]]:
        """What it asks of the method ``statistics``, as ``[[query]]`` tables."""
        return self.asked.parameters.get("query", ()) if isinstance(self.asked, Question) else self.asked.query

    def plan(self, error: float | None = None) -> Plan:
        """What it would tell and what it would cost; nothing is signed, and no record is read.

        Args:
            error: a relative error, such as 0.05, whose epsilon is told as well; 0.1 by default.

        Raises:
            ConfigurationError: the study cannot be made; the message says which key is wrong.
            StateError: fewer than two sites are connected.
            Misuse: the error is not a number above 0.
        """
        federation = self.federation
        if error is not None and not (isinstance(error, int | float) and 0.0 < error < math.inf):
            raise Misuse(f"error={error!r} is not a number above 0.", "A tenth of each figure's size is 0.1.")
        return Plan(*plan_connected(self.request, federation.coordinator, federation.federation_id, error))

    def submit(self) -> Run:
        """Sign the study and submit it; it runs whether this process does or not, if the federation is a real one.

        Raises:
            VeilsumError: it cannot be compiled, or the coordinator rejects it.
        """
        federation = self.federation
        draft, away, left_out = draft_connected(self.request, federation.coordinator, federation.federation_id)
        for line in absences(away, left_out):
            LOG.warning("%s", line)
        study = draft.compile()
        draft.method.check_federation(study)
        return Run(federation, federation.coordinator.submit(study, federation.credentials).hex())

    def run(self, directory: str | Path | None = None, *, progress: bool | None = None) -> StudyResult:
        """Submit the study, wait for its end and fetch its result, verified by its proof.

        Args:
            directory: keeps the result's files; by default they last as long as the result.
            progress: whether to show how it goes on; by default in a notebook and on a terminal. The study's id is shown
                first: :func:`veilsum.attach` takes it up again after an interruption.

        Raises:
            StateError: the study failed, or sites refused it; the message says which and why.
            HostileInput: the result is not proven by its sums.
        """
        return self.submit().result(directory, progress=progress)

    def __repr__(self) -> str:
        return f"<Study {self.name!r}: {self.method} on {self.asked.dataset!r}, not submitted>"

    def _repr_html_(self) -> str:
        asked = self.asked
        stated = asked.options if isinstance(asked, Question) else asked.privacy.model_dump(exclude_defaults=True)
        return fields_html(
            {
                "study": self.name,
                "method": self.method,
                "dataset": asked.dataset,
                "asked": list(self.queries) or asked.parameters or "the method's defaults",
                "options": stated or "none",
                "state": "not submitted: plan() says what it would tell and cost, run() asks the sites",
            }
        )


@dataclass(frozen=True)
class Run:
    """A submitted study.

    Attributes:
        federation: that runs it.
        id: its digest, 64 hexadecimal digits.
    """

    federation: Federation
    id: str

    @property
    def key(self) -> bytes:
        """The digest as bytes."""
        return bytes.fromhex(self.id)

    def status(self) -> StudyInfo:
        """Its state: phase, rounds, who enrolled, who refused and why, what it has cost."""
        return self.federation.coordinator.show(self.key)

    def wait(self, *, progress: bool | None = None) -> StudyInfo:
        """Wait until it is over; a coordinator that restarts is waited for.

        Raises:
            StateError: it failed or was aborted.
            KeyboardInterrupt: the caller waits no more; the study goes on, and what takes it up again was said.
        """
        try:
            last = show_progress(self.federation.coordinator.watch(self.key), self.id, shown=progress)
        except KeyboardInterrupt:
            if not self.federation.simulated:
                print(
                    f"Interrupted. The study goes on: attach({self.id[:12]!r}) takes it up again, and .abort() of what that"
                    " gives stops it.",
                    file=sys.stderr,
                    flush=True,
                )
            raise
        if last.phase != "finished":
            raise _failure(last)
        return last

    def result(self, directory: str | Path | None = None, *, progress: bool | None = None) -> StudyResult:
        """Wait for its end and fetch its result, verified by its proof; arguments and errors as of :meth:`Study.run`."""
        self.wait(progress=progress)
        return fetched_result(self.federation, self.key, None if directory is None else Path(directory))

    def abort(self) -> StudyInfo:
        """Stop it; what it has cost so far stays charged."""
        return self.federation.coordinator.abort(self.key)

    def checkpoint(self, number: int | None = None, directory: str | Path | None = None) -> StudyResult:
        """The model that it kept after a round, the newest by default; also of a study that runs or failed.

        Raises:
            StateError: it kept none of that round.
        """
        temporary = tempfile.TemporaryDirectory(prefix="veilsum-") if directory is None else None
        place = Path(temporary.name if temporary else str(directory))
        self.federation.coordinator.fetch_checkpoint(self.key, place, number)
        return StudyResult(place, cost=stated_cost(place), keeps=temporary)

    def __repr__(self) -> str:
        return f"<Run {self.id[:12]}>"

    def _repr_html_(self) -> str:
        try:
            info = self.status()
        except VeilsumError as error:
            return fields_html({"id": self.id, "phase": f"not known: {error.message}"})
        return fields_html({"study": info.name, "id": self.id, "phase": info.phase, "progress": f"{info.progress:.0%}"})


def _failure(info: StudyInfo) -> StateError:
    refusals = ", ".join(f"{item.participant} ({item.code})" for item in info.refusals)
    told = f"The study {info.name!r} {info.phase}: {info.reason or 'no reason was given'}."
    advice = f"Sites refused: {refusals}. docs/scientist.md says what each code asks for." if refusals else ""
    return StateError(told, advice)
