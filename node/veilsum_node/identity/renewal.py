"""Certificates that are renewed while a process runs: looked for on disk, checked as at the start, taken or refused.

Files are expected to be replaced, each in one step, as ``veilsum`` itself writes them. Nothing is ever half taken: what is in
use stays until a complete, valid set lies there. Nothing here has a thread; a loop that turns anyway calls :meth:`poll`.
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from veilsum_node.errors import HostileInput, VeilsumError
from veilsum_node.identity.certificate import moment
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE, Credentials, load_credentials
from veilsum_node.phrases import counted

LOG = logging.getLogger("veilsum.identity")

FEW_DAYS = 30
"""Days before its end from which a certificate is worth a warning."""

DAY = 86_400

Loaded = TypeVar("Loaded")
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Renewal(Generic[Loaded]):
    """What some files hold, loaded again when they change.

    Args:
        load: reads and checks them all.
        what: names them in the log.

    A set that ``load`` refuses is logged once and tried again at every poll: it may be half of a change, not valid yet, or
    wait for something else to end.
    """

    def __init__(self, paths: Iterable[Path], load: Callable[[], Loaded], what: str) -> None:
        self._paths, self._load, self._what = tuple(paths), load, what
        self._taken: _Stamp | None = None
        self._refused: _Stamp | None = None

    def poll(self) -> Loaded | None:
        """What the files hold now, if they changed since the last poll that returned them and are in order; None otherwise.

        The first poll returns what lies there, so that no change between a program's start and it is missed.
        """
        stamp = self._stamp()
        if stamp == self._taken:
            return None
        try:
            loaded = self._load()
        except VeilsumError as error:
            if stamp != self._refused:
                LOG.warning("%s: the new files cannot be used, the previous ones stay in use: %s", self._what, error)
            self._refused = stamp
            return None
        if self._stamp() != stamp:  # changed while it was read: the next poll looks again
            return None
        self._taken, self._refused = stamp, None
        return loaded

    def forget(self) -> None:
        """What was returned last could not be taken after all: look at it again at the next poll."""
        self._taken = None

    def _stamp(self) -> _Stamp:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes with a file's content; links are followed, so that a swapped link is seen as well."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def renewed_credentials(
    directory: Path,
    current: Callable[[], Credentials],
    clock: Callable[[], int],
    allowed: Callable[[Credentials], None] = lambda _: None,
) -> Renewal[Credentials]:
    """Watch an identity directory for the same party's renewed certificate, or for a new key with its own.

    Args:
        directory: the party's ``identity`` directory.
        current: what is in use.
        clock: Unix seconds.
        allowed: raises a typed error if what was loaded must not be taken now.
    """

    def load() -> Credentials:
        found, used = load_credentials(directory, clock()), current()
        if found.federation_id != used.federation_id:
            raise HostileInput(
                f"{directory / AUTHORITY_FILE} is another authority's.", "A federation never changes its authority."
            )
        if (found.identity.name, found.identity.role) != (used.identity.name, used.identity.role):
            raise HostileInput(
                f"The certificate is that of {found.identity.role} {found.identity.name},"
                f" not of {used.identity.role} {used.identity.name}."
            )
        allowed(found)
        return found

    files = (directory / name for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE))
    return Renewal(files, load, f"identity in {directory}")


def expiry_warning(whose: str, not_after: int, now: int, what: str = "certificate") -> str:
    """What to tell an operator of a certificate that has ended or soon will; empty while there is time."""
    if now > not_after:
        return f"the {what} of {whose} has expired: it ended on {moment(not_after)}"
    if not_after - now < FEW_DAYS * DAY:
        return f"the {what} of {whose} ends on {moment(not_after)}, in {counted((not_after - now) // DAY, 'day')}"
    return ""


class ExpiryLog:
    """Logs certificates that end soon: each when it is first seen to, once a day after, and when it has ended."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._told: dict[str, tuple[int, int, bool]] = {}

    def check(self, whose: str, not_after: int, what: str = "certificate") -> None:
        """Look at one certificate; cheap enough for every turn of a loop."""
        now = self._clock()
        text = expiry_warning(whose, not_after, now, what)
        mark = (not_after, now // DAY, now > not_after)
        if not text:
            self._told.pop(whose, None)
        elif self._told.get(whose) != mark:
            self._told[whose] = mark
            LOG.log(logging.ERROR if now > not_after else logging.WARNING, "%s", text)
