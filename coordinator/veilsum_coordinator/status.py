"""What is shown of a study to analysts and operators: phases, names, counts and times; never a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from veilsum_coordinator.machine import StudyMachine
from veilsum_coordinator.members import StudyPhase
from veilsum_coordinator.rounds import RoundPhase
from veilsum_proto import federation_pb2 as pb

_ROUND_SHARE = {
    RoundPhase.CONTRIBUTING: 0.2,
    RoundPhase.CONSENTING: 0.7,
    RoundPhase.DECRYPTING: 0.85,
    RoundPhase.OPENING: 0.95,
    RoundPhase.RELEASED: 1.0,
    RoundPhase.FAILED: 0.0,
}


@dataclass
class StudyEntry:
    """A study with its machine and what is shown of it."""

    machine: StudyMachine
    object: pb.StudyObject
    analyst: str
    submitted: int
    results: list[str] = field(default_factory=list)
    outcome: pb.StudyStatus | None = None


def progress(machine: StudyMachine) -> float:
    """How far a study has come, 0 to 1: a tenth for enrolment and keys, the rest over its declared releases."""
    if machine.phase is StudyPhase.FINISHED:
        return 1.0
    enrolled = sum(seat.enrolment is not None for seat in machine.seats.values()) / len(machine.seats)
    ready = sum(seat.ready for seat in machine.seats.values()) / len(machine.seats)
    total = sum(task.releases for task in machine.study.tasks)
    rounds = sum(_ROUND_SHARE[item.phase] for item in machine.rounds)
    return min(0.99, 0.05 * enrolled + 0.05 * ready + 0.9 * rounds / total)


def study_status(entry: StudyEntry) -> pb.StudyStatus:
    """The status message of a study."""
    machine = entry.machine
    return pb.StudyStatus(
        study=machine.digest,
        name=machine.study.name,
        method=machine.study.method,
        phase=machine.phase.value,
        reason=machine.reason,
        submitted=entry.submitted,
        participants=machine.study.participants,
        enrolled=[name for name, seat in machine.seats.items() if seat.enrolment is not None],
        refusals=[pb.Refusal(participant=name, code=code, round=number) for name, code, number in machine.refusals],
        rounds=[
            pb.RoundStatus(
                round=item.number,
                label=item.label,
                attempts=item.attempts,
                cohort=item.cohort,
                phase=item.phase.value,
                bytes_received=item.bytes_received,
                seconds=(item.finished or item.started) - item.started,
            )
            for item in machine.rounds
        ],
        progress=progress(machine),
        results=entry.results,
        analyst=entry.analyst,
    )
