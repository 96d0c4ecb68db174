"""Plans of studies before they are submitted: for connected participants, or for a number of them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.process.console import print_line

if TYPE_CHECKING:
    from veilsum.compile import StudyRequest
    from veilsum.plan import StudyPlan
    from veilsum.remote import Remote
    from veilsum_node.identity import Credentials


def plan_connected(
    request: StudyRequest, remote: Remote, credentials: Credentials, error: float | None = None, *, as_json: bool
) -> StudyPlan:
    """Plan for the participants that the study names, or for the connected ones, with what the coordinator's mirror tells."""
    from veilsum.compile import draft_study
    from veilsum.plan import plan_study
    from veilsum_node.randomness import SYSTEM_RANDOM

    seen = remote.describe()
    if not request.participants and len(seen.connected) < 2:
        raise StateError(
            f"A study needs at least two participants; {len(seen.connected)} are connected.",
            "Wait for them to connect, or name the participants in the study.",
        )
    draft = draft_study(
        request,
        federation_id=credentials.federation_id,
        coordinator=seen.coordinator,
        participants=seen.known if request.participants else seen.connected,
        clock=now,
        random=SYSTEM_RANDOM,
    )
    planned = plan_study(draft, draft.compile(), error=error, spent=remote.spending(request.dataset))
    away = [name for name in draft.members if name not in seen.connected]
    if away and not as_json:
        print_line(f"Not connected now: {', '.join(away)}. The study waits for them.")
    return planned


def plan_offline(request: StudyRequest, participants: int, error: float | None) -> StudyPlan:
    """Plan for a number of sites, by the study's names for them or by made-up ones."""
    from veilsum.compile import draft_study
    from veilsum.plan import plan_study
    from veilsum_node.randomness import SYSTEM_RANDOM

    named = request.participants
    if named and len(set(named)) != participants:
        raise ConfigurationError(
            f"study {request.name!r} names {len(set(named))} participants, not {participants}.",
            "Give their number, or leave `participants` out of the study.",
        )
    draft = draft_study(
        request,
        federation_id="0" * 64,
        coordinator="coordinator",
        participants=named or [f"site-{number:0{len(str(participants))}d}" for number in range(1, participants + 1)],
        clock=now,
        random=SYSTEM_RANDOM,
    )
    return plan_study(draft, draft.compile(), error=error)


def now() -> int:
    """Unix seconds."""
    return int(time.time())
