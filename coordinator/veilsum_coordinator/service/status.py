"""What is shown of a study to analysts and operators: phases, names, counts and times; never a value."""

import math

from veilsum_coordinator.protocol.machine import MOST_REFUSALS, StudyMachine
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.service.table import StudyEntry
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.study.study import Study
from veilsum_proto import federation_pb2 as pb

MOST_ROUNDS, MOST_NAMES = 1000, 2**14
"""Rounds of a study that are shown one by one, the newest, and names in their cohorts together: so they fit into a message."""

_ROUND_SHARE = {
    RoundPhase.CONTRIBUTING: 0.2,
    RoundPhase.CHECKING: 0.7,
    RoundPhase.CONSENTING: 0.85,
    RoundPhase.OPENING: 0.95,
    RoundPhase.RELEASED: 1.0,
    RoundPhase.FAILED: 0.0,
}


def spent_epsilon(study: Study, releases: dict[str, int] | None = None) -> float | None:
    """Epsilon of so many releases of each label, or of all that are declared; None without noise."""
    if study.privacy.noise == "none":
        return None
    epsilon = study_epsilon(study, study.privacy.delta, releases)
    return epsilon if math.isfinite(epsilon) else None


def progress(machine: StudyMachine, released: int) -> float:
    """How far a study has come, 0 to 1: a tenth for enrolment and keys, the rest over its declared releases."""
    if machine.phase is StudyPhase.FINISHED:
        return 1.0
    enrolled = sum(seat.enrolled for seat in machine.seats.values()) / len(machine.seats)
    ready = sum(seat.ready for seat in machine.seats.values()) / len(machine.seats)
    total = sum(task.releases for task in machine.study.tasks)
    current = machine.round
    rounds = released + (0.0 if current is None else _ROUND_SHARE[current.phase])
    return min(0.99, 0.05 * enrolled + 0.05 * ready + 0.9 * rounds / total)


def study_status(entry: StudyEntry) -> pb.StudyStatus:
    machine = entry.machine
    releases = entry.tally.releases(machine.rounds)
    done = sum(releases.values())
    received, seconds = entry.tally.spent(machine.rounds)
    shown = max(1, min(MOST_ROUNDS, MOST_NAMES // len(machine.seats)))
    return pb.StudyStatus(
        study=machine.digest,
        name=machine.study.name,
        method=machine.study.method,
        phase=machine.phase.value,
        reason=machine.reason,
        submitted=entry.submitted,
        participants=machine.study.participants,
        enrolled=[name for name, seat in machine.seats.items() if seat.enrolled],
        refusals=[
            pb.Refusal(participant=name, code=code, round=number) for name, code, number in machine.refusals[-MOST_REFUSALS:]
        ],
        rounds=[
            pb.RoundStatus(
                round=item.number,
                label=item.label,
                attempts=item.attempts,
                cohort=item.cohort,
                phase=item.phase.value,
                bytes_received=item.bytes_received,
                seconds=item.seconds,
            )
            for item in machine.rounds[-shown:]
        ],
        progress=progress(machine, done),
        results=entry.results,
        analyst=entry.analyst,
        declared=sum(task.releases for task in machine.study.tasks),
        released=done,
        epsilon=machine.study.privacy.epsilon,
        epsilon_spent=spent_epsilon(machine.study, releases),
        delta=machine.study.privacy.delta,
        bytes_received=received,
        seconds=seconds,
    )


def listed_status(status: pb.StudyStatus) -> pb.StudyStatus:
    """A study's status as it stands among others: of its rounds the last, since a message holds those of few studies."""
    del status.rounds[:-1]
    return status


def shown_status(entry: StudyEntry) -> pb.StudyStatus:
    """What is shown of a study: no end that a crash could take back."""
    shown, machine = study_status(entry), entry.machine
    if machine.phase.over:
        shown.phase = machine.former.value
        shown.reason = f"{machine.phase.value}, not yet stored in the database: {machine.reason}".removesuffix(": ")
    return shown
