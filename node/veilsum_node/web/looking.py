"""Rows of a page that are looked at beside it: a disk or a peer that does not answer keeps no page waiting."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

LOG = logging.getLogger("veilsum.console")

PATIENCE = 1.5
"""Seconds that a page waits for all of its rows together."""

FRESH = 60.0
"""Seconds after which what was found is looked for anew although nobody has seen it."""

KEPT_SECONDS = 10.0
"""Seconds for which what takes long to find is kept."""

PENDING = "pending"
"""State of a row that is not known yet."""

T = TypeVar("T")
Row = dict[str, str]
Look = Callable[[], Sequence[Row]]


@dataclass
class _Looking:
    began: float
    done: threading.Event = field(default_factory=threading.Event)
    rows: Sequence[Row] = ()
    ended: float = 0.0
    shown: bool = False


class Looks:
    """What each of some checks finds, each in a thread of its own and once at a time, however many people ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, _Looking] = {}

    def rows(self, checks: Sequence[tuple[str, Look]], *, again: bool = True) -> list[Row]:
        """The rows of every check in order, with one in the place of those that are not known yet.

        Args:
            checks: by names that stay the same from call to call.
            again: look anew at what was shown before, as when somebody asks; a page that renews itself waits for the rest.
        """
        asked = [(name, self._look(name, look, again=again)) for name, look in checks]
        until = time.monotonic() + PATIENCE
        rows: list[Row] = []
        for name, looking in asked:
            if looking.done.wait(max(0.0, until - time.monotonic())):
                looking.shown = True
                rows += looking.rows
            else:
                found = f"not known yet, after {time.monotonic() - looking.began:,.0f} s"
                rows.append({"state": PENDING, "of": name, "found": found, "what to do": "This page goes on asking."})
        return rows

    def _look(self, name: str, look: Look, *, again: bool) -> _Looking:
        now = time.monotonic()
        with self._lock:
            known = self._known.get(name)
            if known is not None and not known.done.is_set():
                return known
            if known is not None and now - known.ended < FRESH and not (again and known.shown):
                return known
            made = self._known[name] = _Looking(now)
        threading.Thread(target=_find, args=(name, look, made), name=f"veilsum-look-{name}", daemon=True).start()
        return made


class Kept(Generic[T]):
    """What takes long to find: found by one at a time, and shown to whoever asks within some seconds.

    A page that looked anew each time it is asked for would let anyone who may read it take the machine's processor.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: tuple[object, float, T] | None = None

    def of(self, what: object, find: Callable[[], T], seconds: float = KEPT_SECONDS) -> T:
        """What was found of something in so many seconds, or is found now."""
        with self._lock:
            if self._found is None or self._found[0] != what or time.monotonic() - self._found[1] >= seconds:
                self._found = None
                self._found = what, time.monotonic(), find()
            return self._found[2]

    def forget(self) -> None:
        """Find it anew the next time: it was changed."""
        with self._lock:
            self._found = None


def _find(name: str, look: Look, looking: _Looking) -> None:
    try:
        looking.rows = look()
    except Exception:
        LOG.exception("the check %s of the console failed", name)
        said = {"state": "failed", "of": name, "found": "the console failed to look", "what to do": "Its log has the cause."}
        looking.rows = [said]
    finally:
        looking.ended = time.monotonic()
        looking.done.set()
