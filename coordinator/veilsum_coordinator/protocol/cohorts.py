"""Who is in the next attempt of a round, and the attempts' numbers, which only rise."""

from __future__ import annotations

from collections.abc import Callable, Collection

from veilsum_coordinator.protocol.members import Members
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import StateError
from veilsum_privacy.securesum.context import Assignment, Pieces, broadcast_digest
from veilsum_privacy.securesum.graph import least_separators
from veilsum_privacy.study.study import Study


class CohortError(StateError):
    """No cohort can be formed that the study allows; the study cannot go on."""


class Cohorts:
    """Forms the cohorts of one study.

    Attributes:
        attempts: number of the last attempt, over all rounds.
    """

    def __init__(
        self, study: Study, members: Members, waits: Waits, clock: Callable[[], int], steady: Callable[[], int]
    ) -> None:
        self.attempts = 0
        self._steady = steady  # what waits are measured by
        self._study, self._members, self._waits, self._clock = study, members, waits, clock
        self._everyone = frozenset(study.participants)
        self._seated: tuple[tuple[str, bytes], ...] = ()  # as it was last; past rounds share this and the line above
        self._strict: dict[frozenset[str], tuple[str, ...]] = {}  # cohort by who may be in it

    def allowed(self, members: Collection[str] | None) -> frozenset[str]:
        """Who may be in a cohort; None stands for all participants.

        Raises:
            StateError: the study does not name all of them.
        """
        allowed = self._everyone if members is None else frozenset(members)
        if strangers := allowed - self._everyone:
            raise StateError(f"A round is asked of {', '.join(sorted(strangers))}, which the study does not name.")
        return self._everyone if allowed == self._everyone else allowed

    def consented(self, allowed: frozenset[str], cohort: tuple[str, ...]) -> None:
        """A cohort consented: where the study allows one cohort only, it is this one from here on."""
        self._strict.setdefault(allowed, cohort)

    def assign(self, number: int, label: str, broadcast: Pieces, allowed: frozenset[str]) -> Assignment:
        """The next attempt: every ready and present member that may be in it.

        Args:
            broadcast: encoded.

        Raises:
            CohortError: they are too few, others than before where the study allows one cohort only, or few could take their
                masks apart.
        """
        now, members, privacy = self._steady(), self._members, self._study.privacy
        seats = members.seats
        names = tuple(
            name
            for name in members.live()
            if name in allowed and seats[name].ready and seats[name].nonce and not members.absent(name, now, self._waits.grace)
        )
        if len(names) < privacy.min_cohort:
            why = f"{len(names)} participants are left, {privacy.min_cohort} are needed"
            raise CohortError(f"{why} ({members.left_out(names)})" if len(allowed) == len(self._study.participants) else why)
        if privacy.cohort_difference == "strict" and names != self._strict.get(allowed, names):
            raise CohortError("the cohort changed and the study allows one cohort only")
        graph, needed = members.graph, min(least_separators(privacy), len(names) - 1)
        if not graph.complete and (found := graph.separators(names)) < needed:
            left = f"the {len(names)} participants that are left"
            raise CohortError(f"{found} of {left} could take their masks apart; it must need {needed}")
        self.attempts += 1
        seated = tuple((name, seats[name].nonce) for name in names)
        self._seated = self._seated if seated == self._seated else seated
        return Assignment(
            number,
            self.attempts,
            label,
            self._seated,
            broadcast_digest(broadcast),
            self._clock() + self._waits.contribute + self._waits.check + self._waits.consent,
        )
