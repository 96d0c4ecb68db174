"""Tells an operator's log what happens in a study: who enrolled or refused, which round and attempt runs, how it ended.

It compares a study with what it was when last looked at, so that the state machines need not know of a log. Names, numbers and
codes only; no reason's words of a participant ever come here.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import MemberState, StudyPhase
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_node.telemetry.logs import about

LOG = logging.getLogger("veilsum.coordinator")


@dataclass
class StudyLog:
    """What of one study was told already."""

    machine: StudyMachine
    _phase: StudyPhase = StudyPhase.ENROLLING
    _round: tuple[int, int, str] = (0, 0, "")
    _refusals: int = 0
    _enrolled: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)

    def catch_up(self) -> None:
        """Take all that is there as told: an earlier process did."""
        machine = self.machine
        self._phase, self._refusals = machine.phase, len(machine.refusals)
        self._enrolled = {seat.name for seat in machine.seats.values() if seat.enrolled}
        self._gone = {seat.name for seat in machine.seats.values() if seat.gone}
        if machine.rounds:
            last = machine.rounds[-1]
            self._round = (last.number, last.assignment.attempt, last.phase.value)

    def look(self, name: str | None = None) -> None:
        """Tell what is new; ``name``: of the only participant of whom there is anything new, None for any."""
        machine = self.machine
        if self._phase.over:
            return
        study, digest = machine.study.name, machine.digest
        seats = machine.seats.values() if name is None else filter(None, [machine.seats.get(name)])
        self._look_at_members(seats, study, digest)
        for participant, code, number in machine.refusals[self._refusals :]:
            fields = about("refused", study=study, digest=digest, participant=participant, reason=code, round=number or None)
            LOG.warning("study %s: %s refused (%s)", study, participant, code, extra=fields)
        self._refusals = len(machine.refusals)
        if machine.rounds:
            self._look_at_round(study, digest, machine.rounds[-1])
        if machine.phase is not self._phase:
            self._phase = machine.phase
            self._tell_phase(study, digest)

    def _look_at_members(self, seats: Iterable[MemberState], name: str, digest: bytes) -> None:
        for seat in seats:
            if seat.enrolled and seat.name not in self._enrolled:
                self._enrolled.add(seat.name)
                fields = about("enrolled", study=name, digest=digest, participant=seat.name)
                LOG.info("study %s: %s enrolled", name, seat.name, extra=fields)
            if seat.gone and seat.name not in self._gone:
                self._gone.add(seat.name)
                fields = about("given-up", study=name, digest=digest, participant=seat.name)
                LOG.warning("study %s: goes on without %s, which did not answer in time", name, seat.name, extra=fields)

    def _look_at_round(self, name: str, digest: bytes, current: Round) -> None:
        number, attempt, phase = current.number, current.assignment.attempt, current.phase
        told = (number, attempt, phase.value)
        if told == self._round:
            return
        before, self._round = self._round, told
        where: dict[str, Any] = {"study": name, "digest": digest, "round": number, "attempt": attempt, "label": current.label}
        asked = ", ".join(current.cohort) if len(current.cohort) <= 8 else f"{len(current.cohort)} participants"
        if number != before[0]:
            LOG.info("study %s: round %d (%s) asks %s", name, number, current.label, asked, extra=about("round", **where))
        elif attempt != before[1]:
            LOG.warning("study %s: round %d is tried again with %s", name, number, asked, extra=about("attempt", **where))
        if phase is RoundPhase.CHECKING:
            LOG.info("study %s: round %d is complete, its sum is checked", name, number, extra=about("contributed", **where))
        elif phase is RoundPhase.CONSENTING:
            LOG.info("study %s: round %d is checked, consent is asked for", name, number, extra=about("checked", **where))
        elif phase is RoundPhase.OPENING:
            LOG.info("study %s: round %d has every consent", name, number, extra=about("consented", **where))
        elif phase is RoundPhase.FAILED:
            LOG.warning("study %s: round %d failed", name, number, extra=about("failed", **where))

    def _tell_phase(self, name: str, digest: bytes) -> None:
        phase, reason = self._phase, self.machine.reason
        if phase is StudyPhase.FINISHED:
            LOG.info("study %s finished", name, extra=about("finished", study=name, digest=digest))
        elif phase.over:
            LOG.warning("study %s %s: %s", name, phase.value, reason, extra=about(phase.value, study=name, digest=digest))
        elif phase is StudyPhase.RUNNING:
            LOG.info("study %s: keys are exchanged", name, extra=about("ready", study=name, digest=digest))
