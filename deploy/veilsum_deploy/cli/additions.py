"""What the whole platform adds to a site's commands: reading a ``study.toml``, and finding a coordinator's mirror."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.cli.additions import Additions

if TYPE_CHECKING:
    from veilsum.compile import StudyRequest
    from veilsum_privacy.study.schema import DatasetSchema
    from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class RequestedStudy:
    """A study as its analyst wrote it; what a site's check asks of it."""

    request: StudyRequest

    @property
    def dataset(self) -> str:
        """The dataset's name."""
        return self.request.dataset

    @property
    def schema(self) -> DatasetSchema | None:
        """The dataset's schema, if it is stated."""
        return self.request.data

    @property
    def participants(self) -> tuple[str, ...]:
        """Who is invited, if it is stated."""
        return tuple(self.request.participants)

    @property
    def min_cohort(self) -> int | None:
        """The smallest cohort, if it is stated."""
        return self.request.privacy.min_cohort

    def compile(self, federation: str, participants: list[str], clock: Callable[[], int]) -> Study:
        """The study as it would come."""
        from veilsum.compile import compile_study

        return compile_study(
            self.request,
            federation_id=federation,
            coordinator="coordinator",
            participants=participants,
            clock=clock,
            random=SYSTEM_RANDOM,
        )


def load_requested(path: Path) -> RequestedStudy:
    """Read a ``study.toml``.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    from veilsum.compile import load_study_request  # loads torch, which most commands do without

    return RequestedStudy(load_study_request(path))


def coordinator_ledger(path: Path) -> tuple[str, Path]:
    """Where the mirror of a ``coordinator.toml`` lies, and its authority's certificate.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    from veilsum_coordinator.protocol.settings import load_coordinator_config
    from veilsum_node.identity.tls import AUTHORITY_FILE

    own = load_coordinator_config(path)
    return own.database_place, own.identity / AUTHORITY_FILE


ADDITIONS = Additions(load_requested, coordinator_ledger)
