"""What the whole platform adds to a site's commands: reading a ``study.toml``, and finding a coordinator's mirror."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.cli.additions import Additions

if TYPE_CHECKING:
    from veilsum.compile import StudyRequest
    from veilsum_participant.checks import AskedStudy
    from veilsum_privacy.study.study import Study


def asked_study(request: StudyRequest) -> AskedStudy:
    """A study as its analyst wrote it, for a site's check."""
    from veilsum.compile import draft_study
    from veilsum_participant.checks import AskedStudy

    def compiled(federation: str, participants: list[str], clock: Callable[[], int]) -> Study:
        return draft_study(
            request,
            federation_id=federation,
            coordinator="coordinator",
            participants=participants,
            clock=clock,
            random=SYSTEM_RANDOM,
        ).compile()

    return AskedStudy(request.dataset, request.data, tuple(request.participants), request.privacy.min_cohort, compiled)


def load_requested(path: Path) -> AskedStudy:
    """Read a ``study.toml``.

    Raises:
        ConfigurationError: missing, malformed, or a key is unknown or out of range.
    """
    from veilsum.compile import load_study_request  # loads torch, which most commands do without

    return asked_study(load_study_request(path))


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
