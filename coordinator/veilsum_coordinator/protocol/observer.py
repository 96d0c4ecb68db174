"""What a study's machine tells whoever counts: called under the hub's lock, so an observer only counts and never waits."""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import TYPE_CHECKING

from veilsum_node.errors import RefusalCode

if TYPE_CHECKING:
    from veilsum_coordinator.protocol.rounds import Round
    from veilsum_privacy.study.study import Study


class AttemptReason(StrEnum):
    """Why an attempt at a round began."""

    FIRST = "first"
    REFUSED = "refused"
    ABSENT = "absent"
    LATE = "late"


class StudyObserver:
    """Observes nothing; a subclass overrides what it wants to know."""

    def moved(self, study: Study, current: Round) -> None:
        """A round began, or came to another phase."""

    def attempted(self, reason: AttemptReason) -> None:
        """An attempt at a round began."""

    def refused(self, codes: Collection[RefusalCode]) -> None:
        """A participant refused, for these reasons."""

    def received(self, name: str, size: int) -> None:
        """A piece of a participant's contribution was added; ``size`` in bytes."""

    def contributed(self, name: str) -> None:
        """A participant's contribution is complete."""

    def unopened(self) -> None:
        """A complete sum could not be opened."""
