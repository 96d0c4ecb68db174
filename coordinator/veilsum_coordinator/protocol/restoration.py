"""Rounds of an earlier process, as the journal kept them, in the form in which a study's machine goes on with them.

A method is a function of what was released to it: run from its start, it asks for the same rounds in the same way. Each is
held against the journal before anything of it is used, so that a changed program cannot go on with another one's releases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from veilsum_coordinator.protocol.accumulator import Accumulator
from veilsum_coordinator.protocol.members import MemberState
from veilsum_coordinator.protocol.rounds import Round, RoundPhase
from veilsum_coordinator.storage.records import KeptRelease, KeptRound, KeptSum, RoundStart
from veilsum_node.errors import StateError
from veilsum_privacy.results.whole_sums import total_from_bytes
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.securesum.context import Pieces
from veilsum_privacy.tasks.agreed import AgreedStudy, RoundPlan


class ReplayError(StateError):
    """The method, run again after a restart, asks for other rounds than the journal holds; the study cannot go on."""


def check_same(kept: KeptRound, label: str, broadcast: bytes, allowed: frozenset[str]) -> None:
    """Insist that a round is asked for again as it was before; arguments and errors as of :meth:`Replay.release`."""
    known = kept.start.assignment
    faults = [
        what
        for what, differs in (
            (f"it was {known.label!r} and is {label!r} now", known.label != label),
            ("its broadcast differs", known.broadcast != broadcast),
            ("the participants that may take part differ", kept.start.allowed != allowed),
        )
        if differs
    ]
    if faults:
        raise ReplayError(
            f"the method does not continue as before the restart: round {known.round} differs from the journal's"
            f" ({'; '.join(faults)}). Its program has changed, or computes differently on this machine",
            "Submit the study again.",
        )


class Replay:
    """Rounds of an earlier process, until the method has asked for each of them again."""

    def __init__(self, rounds: Sequence[KeptRound] = ()) -> None:
        self._rounds = list(rounds)

    @property
    def releases(self) -> bool:
        """Whether the next of them was released."""
        return bool(self._rounds) and self._rounds[0].release is not None

    def release(self, label: str, broadcast: bytes, allowed: frozenset[str]) -> tuple[int, KeptRelease] | None:
        """The next round's number and release, if it was released.

        Args:
            label: of the task that the method asks for.
            broadcast: digest of what would be broadcast.
            allowed: who may be in the cohort.

        Raises:
            ReplayError: the method asks for another round.
        """
        if not self._rounds or (release := self._rounds[0].release) is None:
            return None
        check_same(self._rounds[0], label, broadcast, allowed)
        return self._rounds.pop(0).start.assignment.round, release

    def begun(self, label: str, broadcast: bytes, allowed: frozenset[str]) -> KeptRound | None:
        """The round that an earlier process began and did not release, if there is one; arguments and errors as above."""
        if not self._rounds:
            return None
        kept = self._rounds.pop(0)
        check_same(kept, label, broadcast, allowed)
        return kept

    def check_over(self) -> None:
        """Insist, when the method has returned, that it asked for every round.

        Raises:
            ReplayError: it did not.
        """
        if self._rounds:
            number = self._rounds[0].start.assignment.round
            raise ReplayError(f"the method ended before round {number}, which the journal holds", "Submit the study again.")


def released_rounds(agreed: AgreedStudy, kept: Sequence[KeptRound], roster: int) -> list[Round]:
    """The released rounds of the journal, without what was sent and received; ``roster``: how many members it has."""
    accumulators: dict[tuple[str, int], tuple[RoundPlan, Accumulator]] = {}
    found = []
    for item in kept:
        if item.release is None:
            break
        start, label, cohort = item.start, item.start.assignment.label, item.release.cohort
        if (label, len(cohort)) not in accumulators:
            plan = agreed.task(label).plan(roster, len(cohort))
            accumulators[label, len(cohort)] = plan, Accumulator(plan.encoding, ())
        plan, accumulator = accumulators[label, len(cohort)]
        found.append(
            Round(
                start.assignment.round,
                label,
                (),
                start.assignment,
                plan,
                b"",
                accumulator,
                start.started,
                start.started,
                start.allowed,
                phase=RoundPhase.RELEASED,
                attempts=start.attempts,
                received=start.received,
                finished=item.release.time,
            )
        )
    return found


def summed_round(
    plan: RoundPlan, context: bytes, start: RoundStart, total: KeptSum, broadcast: Pieces, deadline: int
) -> Round:
    """The round whose complete sum was kept: to be stored again, which changes nothing, and to go on from there."""
    accumulator = Accumulator(plan.encoding, start.assignment.names)
    for name, receipt in zip(start.assignment.names, total.receipts, strict=True):
        upload = accumulator.uploads[name]
        upload.next, upload.receipt = plan.encoding.pieces, receipt
    current = Round(
        start.assignment.round,
        start.assignment.label,
        broadcast,
        start.assignment,
        plan,
        context,
        accumulator,
        start.started,
        deadline,
        start.allowed,
        attempts=start.attempts,
        received=start.received,
        answers={name: CheckAnswer(*kept) for name, kept in zip(start.assignment.names, total.answers, strict=False)},
        consents=dict(total.consents),
        agreed=dict(total.agreed),
        asked=bool(total.answers),
    )
    current.fix(total_from_bytes(total.total, plan.encoding))
    return current


def dump_seats(seats: Mapping[str, MemberState]) -> dict[str, Any]:
    """What the journal keeps of the seats: refusals, who was given up on, what each must still hear."""
    kept: dict[str, Any] = {}
    for name, seat in seats.items():
        values = {
            "refusal": seat.refusal,
            "gone": seat.gone,
            "excuses": seat.excuses,
            "give_up": sorted(seat.give_up),
            "released": sorted(seat.released),
            "ended": seat.ended,
        }
        if filled := {key: value for key, value in values.items() if value}:
            kept[name] = filled
    return kept


def with_heard(state: Mapping[str, Any], names: Iterable[str], waiting: Mapping[str, MemberState]) -> dict[str, Any]:
    """What the journal keeps of a study that is over, with who has heard of that.

    Args:
        state: as it is kept.
        names: of all whom the study invited.
        waiting: seats of those that have not heard everything.
    """
    seats = {name: MemberState(name) for name in names}
    load_seats(seats, state.get("seats", {}))
    for name, seat in seats.items():
        left = waiting.get(name) or MemberState(name, ended=True)
        seat.ended, seat.released, seat.give_up = left.ended, left.released, left.give_up
    return {**state, "seats": dump_seats(seats)}


def load_seats(seats: Mapping[str, MemberState], kept: Mapping[str, Any]) -> None:
    """Put back what :func:`dump_seats` wrote."""
    for name, values in kept.items():
        seat = seats[name]
        seat.refusal, seat.gone = values.get("refusal", ""), values.get("gone", False)
        seat.excuses, seat.ended = values.get("excuses", 0), values.get("ended", False)
        seat.give_up = {(number, attempt) for number, attempt in values.get("give_up", ())}
        seat.released = {(number, attempt) for number, attempt in values.get("released", ())}
