"""A request made ready for the participants of a coordinator, or for a number of them that nobody knows yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from veilsum.compile import StudyDraft, StudyRequest, draft_study
from veilsum.plan import StudyPlan, plan_study
from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.process.steady_clock import now
from veilsum_node.randomness import SYSTEM_RANDOM

if TYPE_CHECKING:
    from veilsum.coordinator import Coordinator


class Planned(NamedTuple):
    """A plan for a coordinator's participants.

    Attributes:
        plan: the plan, with the study as it would be signed.
        away: invited participants that are not connected now; the study waits for them.
        left_out: participants that the coordinator has seen and that are not connected now, where the request names none:
            they are not asked.
    """

    plan: StudyPlan
    away: tuple[str, ...]
    left_out: tuple[str, ...]


def plan_connected(request: StudyRequest, coordinator: Coordinator, federation_id: str, error: float | None = None) -> Planned:
    """Plan for the participants that the request names, or for the connected ones, with what the coordinator's mirror tells.

    Args:
        request: with its schema in ``data``.
        federation_id: hash of the authority's certificate.
        error: relative error to price.

    Raises:
        StateError: fewer than two participants are connected, and the request names none.
        ConfigurationError: the request cannot be compiled; the message says why.
    """
    draft, away, left_out = draft_connected(request, coordinator, federation_id)
    plan = plan_study(draft, draft.compile(), error=error, spent=coordinator.spending(request.dataset))
    return Planned(plan, away, left_out)


def absences(away: Sequence[str], left_out: Sequence[str]) -> list[str]:
    """The participants that a study waits for, and those that it does not ask, in words: see :class:`Planned`."""
    waits = [f"Not connected now: {', '.join(away)}. The study waits for them."] if away else []
    leaves = f"Not connected now, and so not asked: {', '.join(left_out)}. To wait for them, name the study's participants."
    return [*waits, *([leaves] if left_out else [])]


def draft_connected(
    request: StudyRequest, coordinator: Coordinator, federation_id: str
) -> tuple[StudyDraft, tuple[str, ...], tuple[str, ...]]:
    """The draft of a request for a coordinator's participants, with ``away`` and ``left_out`` as of :class:`Planned`."""
    seen = coordinator.describe()
    if not request.participants and len(seen.connected) < 2:
        raise StateError(
            f"A study needs at least two participants; {len(seen.connected)} are connected.",
            "Wait for them to connect, or name the participants in the study.",
        )
    draft = draft_study(
        request,
        federation_id=federation_id,
        coordinator=seen.coordinator,
        participants=seen.known if request.participants else seen.connected,
        clock=now,
        random=SYSTEM_RANDOM,
    )
    away = tuple(name for name in draft.members if name not in seen.connected)
    left_out = () if request.participants else tuple(name for name in seen.known if name not in draft.members)
    return draft, away, left_out


def plan_offline(request: StudyRequest, participants: int, error: float | None = None) -> StudyPlan:
    """Plan for a number of sites, by the request's names for them or by made-up ones.

    Raises:
        ConfigurationError: the request names another number, or cannot be compiled.
    """
    draft = draft_offline(request, participants)
    return plan_study(draft, draft.compile(), error=error)


def draft_offline(request: StudyRequest, participants: int) -> StudyDraft:
    """The draft of a request for a number of sites; errors as of :func:`plan_offline`."""
    named = request.participants
    if named and len(set(named)) != participants:
        raise ConfigurationError(
            f"study {request.name!r} names {len(set(named))} participants, not {participants}.",
            "Give their number, or leave `participants` out of the study.",
        )
    return draft_study(
        request,
        federation_id="0" * 64,
        coordinator="coordinator",
        participants=named or [f"site-{number:0{len(str(participants))}d}" for number in range(1, participants + 1)],
        clock=now,
        random=SYSTEM_RANDOM,
    )
