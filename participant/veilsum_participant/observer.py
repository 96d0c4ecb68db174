"""What a site's protocol tells whoever counts. Called in the midst of its work, so an observer only counts and never waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import StrEnum

from veilsum_node.errors import RefusalCode


class SiteStep(StrEnum):
    """A part of a round that takes a site time."""

    COMPUTE = "compute"
    ENCRYPT = "encrypt"
    UPLOAD = "upload"
    ANSWER = "answer"
    CONSENT = "consent"


class AttemptOutcome(StrEnum):
    """How an attempt at a round ended for a site."""

    RELEASED = "released"
    GIVEN_UP = "given-up"
    REFUSED = "refused"


class Stage(StrEnum):
    """What could not be decoded."""

    MESSAGE = "message"
    CHECK = "check"


class SiteObserver:
    """Observes nothing; a subclass overrides what it wants to know."""

    @contextmanager
    def timed(self, step: SiteStep) -> Iterator[None]:
        """Tell how long the block took, if it did what it should."""
        start = time.perf_counter()
        yield
        self.took(step, time.perf_counter() - start)

    def took(self, step: SiteStep, seconds: float) -> None:
        """A step of a round was done."""

    def ended(self, method: str, outcome: AttemptOutcome, count: int = 1) -> None:
        """Attempts at rounds of a method ended."""

    def refused(self, codes: Collection[RefusalCode]) -> None:
        """The site refused something, for these reasons."""

    def failed(self) -> None:
        """A round's computation failed on the site's records; it took part all the same."""

    def cut(self) -> None:
        """A round's sum was more than the study's ``max_records`` records can reach, and was cut off there."""

    def contributed(self, size: int) -> None:
        """A contribution was uploaded; ``size`` in bytes."""

    def unreadable(self, stage: Stage) -> None:
        """Something that the coordinator sent could not be decoded."""

    def session_opened(self, send: Callable[..., None]) -> None:
        """The session with the coordinator is open; ``send`` reports samples of shared metrics in it."""

    def session_ended(self) -> None:
        """The session with the coordinator has ended."""

    def held_elsewhere(self, held: bool) -> None:
        """A session was refused, or not, because another process with this identity has one."""

    def heard(self) -> None:
        """The coordinator said something."""

    def turned(self) -> None:
        """The client's loop turned."""
