"""Logging of the long-running commands: one plain line an event, with time, level and message.

A line never holds an exception's own text, which may quote a record, and never a control character that a peer sent. What
messages say is the callers' business; this module filters no values.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import traceback
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import TracebackType

from veilsum_privacy.errors import ConfigurationError

FRAMES = 8
"""Frames of a trace that a line keeps, the innermost ones."""

LOGGER = "veilsum"


def printable(text: str) -> str:
    """``text`` with everything that is not printable replaced: no line breaks, no terminal's control sequences."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO message``; a trace becomes the exception's type and places in the code."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record into one line."""
        message = printable(record.getMessage())
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname} {message}"
        if record.exc_info and record.exc_info[0] is not None:
            line += f" [{record.exc_info[0].__name__} at {_places(record.exc_info[2])}]"
        return line


def _places(trace: TracebackType | None) -> str:
    frames = traceback.extract_tb(trace)[-FRAMES:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)) or "?"


def _is_event(record: logging.LogRecord) -> bool:
    """Everything but gRPC's report that a stream was cancelled, which is how open streams end when a server stops."""
    kind = record.exc_info[0] if record.exc_info else None
    return not (record.name.startswith("grpc") and kind is not None and issubclass(kind, asyncio.CancelledError))


def start_logging(path: Path | None = None) -> None:
    """Send the log to ``path`` (appended to; reopened when it was rotated), or to standard error.

    Raises:
        ConfigurationError: the file cannot be written.
    """
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            path.touch(mode=0o600)
            handler = WatchedFileHandler(path, encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"The log {path} cannot be written ({error.strerror}).", "Check the directory and its permissions."
            ) from error
    handler.setFormatter(LineFormatter())
    handler.addFilter(_is_event)
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(LOGGER).setLevel(logging.INFO)
