"""What the long-running commands say in their log, whoever writes it down (:mod:`.log_writing`).

A line never holds an exception's own text, which may quote a record, and never a control character that a peer sent. Calls
say what an event is about by :func:`about`; these fields are a closed list of names, numbers and digests.
"""

import logging
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from veilsum_node.errors import VeilsumError

FRAMES = 8
"""Frames of a trace that a line keeps, the innermost ones."""

LOGGER = "veilsum"

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

_ATTRIBUTE, _SAID = "veilsum_about", "veilsum_said"


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


def said(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says, as JSON has it: level, logger and message, what :func:`about` gave, and an exception's type with its
    places in the code."""
    if (known := getattr(record, _SAID, None)) is not None:
        return dict(known)
    fields: dict[str, Any] = {
        "level": record.levelname.lower(),
        "logger": printable(record.name),
        "message": _message(record),
    }
    given = getattr(record, _ATTRIBUTE, None)
    if isinstance(given, Mapping):
        fields |= {name: _bounded(value) for name, value in given.items()}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = {"type": record.exc_info[0].__name__, "at": _places(record.exc_info[2])}
    return fields


def heard(moment: float, fields: Mapping[str, Any]) -> logging.LogRecord:
    """The record of what :func:`said` made of one in another process, at a time in Unix seconds."""
    level = str(fields["level"]).upper()
    number = logging.getLevelNamesMapping()[level]
    told = {"name": fields["logger"], "levelname": level, "levelno": number, "created": moment, _SAID: fields}
    return logging.makeLogRecord(told)


def _bounded(value: object) -> object:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)  # JSON knows neither infinity nor NaN
    return value if isinstance(value, int) else printable(str(value)[:LONGEST_FIELD])


def _places(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)[-FRAMES:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)) or "?"
