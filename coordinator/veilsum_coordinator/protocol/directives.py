"""What the coordinator wants of a participant now, read off a study's state.

Level-triggered: the same state gives the same directives, so a reconnect loses nothing and nothing has to be queued.
"""

from __future__ import annotations

from veilsum_coordinator.protocol.members import Members, MemberState, StudyPhase
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.storage.messages import assignment_message
from veilsum_proto import federation_pb2 as pb


def open_directives(study: bytes, phase: StudyPhase, members: Members, current: Round | None, name: str) -> list[pb.Directive]:
    """Directives that are open for a participant, in the order in which it should answer.

    Args:
        phase: where the study is.
        current: the present round, if one runs.
    """
    seat = members.seats.get(name)
    if seat is None:
        return []
    if phase.over:
        return closing_directives(study, seat, phase.value)
    if phase is StudyPhase.ENROLLING:
        found = [pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL)] if not seat.enrolled and not seat.refusal else []
    elif not seat.active:
        return closing_directives(study, seat, "left out")
    elif phase is StudyPhase.SEALING:
        found = _sealing(seat, members)
    else:
        found = [*_closing(seat), *_of_round(seat, current)]
    return _of(study, found)


def closing_directives(study: bytes, seat: MemberState, outcome: str) -> list[pb.Directive]:
    """The end, after what a member must still hear: a release that it does not see counts as a lost charge.

    Whoever heard the end first, its disk having been full for the release, still has to hear of that.
    """
    end = [] if seat.ended else [pb.Directive(kind=pb.DIRECTIVE_KIND_END, outcome=outcome)]
    return _of(study, [*_closing(seat), *end])


def _of(study: bytes, found: list[pb.Directive]) -> list[pb.Directive]:
    for directive in found:
        directive.study = study
    return found


def _sealing(seat: MemberState, members: Members) -> list[pb.Directive]:
    if seat.boxes is None:
        return [pb.Directive(kind=pb.DIRECTIVE_KIND_SEAL)]
    if not seat.ready and members.all_sealed():
        return [pb.Directive(kind=pb.DIRECTIVE_KIND_UNSEAL)]
    return []


def _closing(seat: MemberState) -> list[pb.Directive]:
    kinds = ((pb.DIRECTIVE_KIND_GIVE_UP, seat.give_up), (pb.DIRECTIVE_KIND_RELEASED, seat.released))
    return [
        pb.Directive(kind=kind, round=number, attempt=attempt) for kind, pairs in kinds for number, attempt in sorted(pairs)
    ]


_ROUND_DIRECTIVES = {
    RoundPhase.CONTRIBUTING: pb.DIRECTIVE_KIND_CONTRIBUTE,
    RoundPhase.CHECKING: pb.DIRECTIVE_KIND_CHECK,
    RoundPhase.CONSENTING: pb.DIRECTIVE_KIND_CONSENT,
}


def round_directive(phase: RoundPhase) -> pb.DirectiveKind.ValueType:
    """Kind of the directives that are open in a phase of a round; unspecified where there are none."""
    return _ROUND_DIRECTIVES.get(phase, pb.DIRECTIVE_KIND_UNSPECIFIED)


def _of_round(seat: MemberState, current: Round | None) -> list[pb.Directive]:
    if current is None or seat.name not in current.cohort or not current.owes(seat.name):
        return []
    number, attempt = current.present
    directive = pb.Directive(kind=round_directive(current.phase), round=number, attempt=attempt)
    if current.phase is RoundPhase.CONTRIBUTING:
        directive.assignment.CopyFrom(assignment_message(current.assignment))
    return [directive]
