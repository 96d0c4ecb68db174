"""Logging of the long-running commands: one line an event, plain for people or JSON for programs.

A line never holds an exception's own text, which may quote a record, and never a control character that a peer sent. Calls
say what an event is about by :func:`about`; these fields are a closed list of names, numbers and digests. Lines that a peer
causes at will are bounded (:mod:`.log_floods`).
"""

import asyncio
import atexit
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import TimedRotatingFileHandler, WatchedFileHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from pydantic import Field, model_validator

from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_node.fields import Frozen
from veilsum_node.phrases import unwritable
from veilsum_node.telemetry.log_floods import FloodFilter

FRAMES = 8
"""Frames of a trace that a line keeps, the innermost ones."""

LOGGER = "veilsum"

LOG = logging.getLogger("veilsum.log")

LONGEST_MESSAGE = 4096
"""Characters of a message that a line keeps."""

LONGEST_FIELD = 128
"""Characters of a field's text that a line keeps."""

EVENTS = (
    "started", "stopping", "stopped", "session", "submitted", "enrolled", "waiting", "refused", "ready", "round", "attempt",
    "contributed", "checked", "consented", "released", "given-up", "finished", "failed", "aborted", "verified", "certificate",
    "database", "recovered", "restored", "rejected", "completed", "approved", "expired", "hook", "deleted",
)  # fmt: skip
"""Names of events in the field ``event``; a line without one is told in words only."""

_ATTRIBUTE = "veilsum_about"


class LogSettings(Frozen):
    """The table ``[log]``; a text in its place names the file.

    Attributes:
        file: appended to, and opened again when it was rotated; standard error without it.
        format: ``line`` for people, ``json`` for programs: one object per line.
        level: of the project's own messages; those of libraries show from ``warning`` on.
        days: with a file: begin a new one every day, and delete what is older than so many days; None leaves both to others.
    """

    file: Path | None = None
    format: Literal["line", "json"] = "line"
    level: Literal["debug", "info", "warning"] = "info"
    days: int | None = Field(default=None, ge=1, le=36500)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"file": value} if isinstance(value, str | Path) else value


def about(
    event: str = "",
    *,
    study: str | None = None,
    digest: bytes | None = None,
    round: int | None = None,  # noqa: A002 - the protocol's own word
    attempt: int | None = None,
    participant: str | None = None,
    label: str | None = None,
    reason: str | None = None,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """What an event is about, for ``extra=`` of a log call; what is not known is left out.

    Args:
        event: one of :data:`EVENTS`.
        digest: of the study; the first 12 hexadecimal digits are shown.
        round, attempt: their numbers.
        participant: a certified name.
        label: of the round's task.
        reason: a code, never words.
        epsilon: of all of the study's releases so far, as it is asked for.
    """
    fields: dict[str, Any] = {
        "event": event or None,
        "study": study,
        "study_id": None if digest is None else digest.hex()[:12],
        "round": round,
        "attempt": attempt,
        "participant": participant,
        "task": label,
        "reason": reason,
        "epsilon": epsilon,
    }
    return {_ATTRIBUTE: {name: value for name, value in fields.items() if value is not None}}


def printable(text: str) -> str:
    """``text`` with everything that is not printable replaced: no line breaks, no terminal's control sequences."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def _message(record: logging.LogRecord) -> str:
    """A record's message; an exception among its arguments shows its text only if it is one of ours, whose text is public."""
    arguments = record.args
    if isinstance(arguments, tuple):
        arguments = tuple(_public(item) for item in arguments)
    try:
        text = str(record.msg) % arguments if arguments else str(_public(record.msg))
    except Exception:  # noqa: BLE001 - a wrong call of a library must not end in a trace with its values
        text = str(_public(record.msg))
    return printable(text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "...")


def _public(item: object) -> object:
    foreign = isinstance(item, BaseException) and not isinstance(item, VeilsumError)
    return type(item).__name__ if foreign else item


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO message``; a trace becomes the exception's type and places in the code."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record into one line."""
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname} {_message(record)}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f" [{record.exc_info[0].__name__} at {_places(record.exc_info[2])}]"
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: time, level, logger and message, what :func:`about` gave, and an exception's type."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record into one line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": printable(record.name),
            "message": _message(record),
        }
        given = getattr(record, _ATTRIBUTE, None)
        if isinstance(given, Mapping):
            fields |= {name: _bounded(value) for name, value in given.items()}
        if record.exc_info and record.exc_info[0] is not None:
            fields["exception"] = {"type": record.exc_info[0].__name__, "at": _places(record.exc_info[2])}
        return json.dumps(fields, ensure_ascii=True, allow_nan=False)


def _bounded(value: object) -> object:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # JSON knows neither infinity nor NaN
    return value if isinstance(value, int) else printable(str(value)[:LONGEST_FIELD])


def _places(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)[-FRAMES:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)) or "?"


def _is_event(record: logging.LogRecord) -> bool:
    """Everything but gRPC's report that a stream was cancelled, which is how open streams end when a server stops."""
    kind = record.exc_info[0] if record.exc_info else None
    return not (record.name.startswith("grpc") and kind is not None and issubclass(kind, asyncio.CancelledError))


class PrivateFileHandler(WatchedFileHandler):
    """Keeps a log to its owner also when it is made anew after a rotation, whatever the umask."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)


class DailyFileHandler(TimedRotatingFileHandler):
    """Begins a new private file at midnight UTC, and deletes the files of days that are held no longer."""

    def __init__(self, path: Path, days: int) -> None:
        super().__init__(path, when="midnight", utc=True, backupCount=days, encoding="utf-8")

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _bound_floods(handler: logging.Handler) -> None:
    """Count what a peer causes beyond some lines a minute; what was counted last is told when the process ends."""
    words = "%d more %s of %s in the last minute were left out of the log"
    flood = FloodFilter(lambda kind, peer, count: LOG.warning(words, count, kind, peer))
    handler.addFilter(flood)
    atexit.register(flood.flush)  # runs before the one of logging itself


def start_logging(settings: LogSettings | None = None) -> None:
    """Send the log where the settings say.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    settings = settings or LogSettings()
    handler: logging.Handler
    if settings.file is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            if settings.days is None:
                handler = PrivateFileHandler(settings.file, encoding="utf-8")
            else:
                handler = DailyFileHandler(settings.file, settings.days)
        except OSError as error:
            advice = "Check the directory and its permissions."
            raise ConfigurationError(f"The log {settings.file} {unwritable(error)}.", advice) from error
    handler.setFormatter(JsonFormatter() if settings.format == "json" else LineFormatter())
    handler.addFilter(_is_event)
    _bound_floods(handler)
    logging.raiseExceptions = False  # a full disk must not put messages and their arguments onto standard error
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(LOGGER).setLevel(settings.level.upper())
