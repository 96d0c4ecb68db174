"""Who is at a console: roles, sessions that end, one-time links, and how often something may be tried."""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from veilsum_node.errors import Damage, Misuse, StateError

LINK_SECONDS = 15 * 60
"""How long a one-time link waits for its person."""

MOST_SESSIONS = 256
"""Sessions at once; beyond them the one that was longest without a click ends."""

LONGEST_NAME = 100


class Right(StrEnum):
    """What a page or a form needs."""

    READ = "read"
    DECIDE = "decide"
    OPERATE = "operate"


class PersonRole(StrEnum):
    """What a person is to the party: nobody who decides for the patients' sake operates, and the other way round."""

    READER = "reader"
    OFFICER = "officer"
    OPERATOR = "operator"

    @property
    def rights(self) -> frozenset[Right]:
        """What the role may."""
        more = {PersonRole.OFFICER: {Right.DECIDE}, PersonRole.OPERATOR: {Right.OPERATE}}
        return frozenset({Right.READ} | more.get(self, set()))


@dataclass(frozen=True)
class Person:
    """Somebody who logged in."""

    name: str
    roles: frozenset[PersonRole]

    def may(self, right: Right) -> bool:
        """Whether one of the roles has it."""
        return any(right in role.rights for role in self.roles)


def person(name: str, roles: Iterable[PersonRole]) -> Person:
    """Somebody with a name that can stand in a ledger.

    Raises:
        Misuse: the name is empty, too long or has control characters; or no role is named.
    """
    name, held = " ".join(name.split()), frozenset(roles)
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        raise Misuse(f"Who logs in has a name of 1 to {LONGEST_NAME} characters.", "Give the person's own name.")
    if not held:
        raise Misuse("The login has no role here.", "The operator names groups under [roles] of console.toml.")
    return Person(name, held)


@dataclass
class LoggedIn:
    """One log-in; ``csrf`` stands in every form that it is shown."""

    person: Person
    began: float
    seen: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)


class Sessions:
    """Who is logged in, in this process's memory: its end ends them all.

    Args:
        idle, whole: seconds after which one ends: without a click, and whatever is done.
        clock: seconds that no change of the time of day moves.
    """

    def __init__(self, idle: float, whole: float, clock: Callable[[], float]) -> None:
        self._idle, self._whole, self._clock = idle, whole, clock
        self._lock = threading.Lock()
        self._held: dict[str, LoggedIn] = {}

    def begin(self, who: Person) -> str:
        """Begin one; returns the secret that its cookie holds."""
        secret, now = secrets.token_urlsafe(32), self._clock()
        with self._lock:
            self._drop(now)
            while len(self._held) >= MOST_SESSIONS:
                del self._held[min(self._held, key=lambda key: self._held[key].seen)]
            self._held[_digest(secret)] = LoggedIn(who, now, now)
        return secret

    def find(self, secret: str, *, click: bool = True) -> LoggedIn | None:
        """The session of a cookie; ``click``: it is a person who asks, and no page that renews itself."""
        now = self._clock()
        with self._lock:
            self._drop(now)
            found = self._held.get(_digest(secret))
            if found is not None and click:
                found.seen = now
        return found

    def end(self, session: LoggedIn) -> None:
        """End it; what is not there has ended."""
        with self._lock:
            self._held = {key: item for key, item in self._held.items() if item is not session}

    def _drop(self, now: float) -> None:
        over = [key for key, item in self._held.items() if now - item.seen > self._idle or now - item.began > self._whole]
        for key in over:
            del self._held[key]


class Links:
    """One-time links by their digests, in a private file that the command and the running console share."""

    def __init__(self, path: Path, clock: Callable[[], int]) -> None:
        self._path, self._clock = path, clock

    def add(self, who: Person) -> str:
        """Make one for somebody; returns its secret.

        Raises:
            StateError: the file cannot be written.
        """
        secret = secrets.token_urlsafe(32)
        (role,) = who.roles
        line = {"sha256": _digest(secret), "name": who.name, "role": role.value, "ends": self._clock() + LINK_SECONDS}
        self._change(lambda held: [*held, line])
        return secret

    def whose(self, secret: str) -> Person | None:
        """The person that a link is for, while it can still be used."""
        return self._find(secret, take=False)

    def take(self, secret: str) -> Person | None:
        """The same, for the last time."""
        return self._find(secret, take=True)

    def _find(self, secret: str, *, take: bool) -> Person | None:
        digest, found = _digest(secret), list[dict[str, Any]]()

        def change(held: list[dict[str, Any]]) -> list[dict[str, Any]]:
            found.extend(item for item in held if hmac.compare_digest(str(item["sha256"]), digest))
            return [item for item in held if not (take and item in found)]

        self._change(change)
        return person(found[0]["name"], [PersonRole(found[0]["role"])]) if found else None

    def _change(self, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
        now = self._clock()
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "r+", encoding="utf-8") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                held = [item for item in map(json.loads, file) if item["ends"] > now]
                file.seek(0)
                file.truncate()
                file.writelines(json.dumps(item) + "\n" for item in change(held))
        except OSError as error:
            raise StateError(
                f"The one-time links {self._path} cannot be used ({error.strerror}).", "Run this as the console's user."
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise Damage(f"The one-time links {self._path} are damaged.", "Delete the file and make new links.") from error


class Allowance:
    """How often something may happen: ``burst`` at once, and then ``rate`` a second, for each key."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, key: str = "") -> bool:
        """Whether it may happen once more."""
        now = self._clock()
        with self._lock:
            if len(self._left) > MOST_SESSIONS:
                self._left.clear()
            left, since = self._left.get(key, (float(self._burst), now))
            left = min(float(self._burst), left + (now - since) * self._rate)
            self._left[key] = max(0.0, left - 1), now
        return left >= 1


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
