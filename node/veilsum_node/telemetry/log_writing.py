"""The log of the long-running commands: one line an event, plain for people or JSON for programs.

What a line says is made in :mod:`.logs`. Where peers cause lines at will, these are bounded (:mod:`.log_floods`).
"""

import asyncio
import json
import logging
import os
import sys
import time
from datetime import UTC, datetime
from io import TextIOWrapper
from logging.handlers import TimedRotatingFileHandler, WatchedFileHandler
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen
from veilsum_node.phrases import unwritable
from veilsum_node.telemetry.logs import LOGGER, said


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


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00Z INFO message``; a trace becomes the exception's type and places in the code."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Format a record into one line."""
        fields = said(record)
        line = f"{self.formatTime(record, self.datefmt)} {record.levelname} {fields['message']}"
        fault = fields.get("exception")
        return line if fault is None else f"{line} [{fault['type']} at {fault['at']}]"


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII: time, level, logger and message, what :func:`about` gave, and an exception's type."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record into one line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": moment.replace("+00:00", "Z"), **said(record)}
        return json.dumps(fields, ensure_ascii=True, allow_nan=False)


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


def start_logging(settings: LogSettings | None = None) -> None:
    """Send the log where the settings say; who serves peers calls :func:`.log_floods.start_bounded_logging`.

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
            advice = "Check the directory, its permissions and its space."
            raise ConfigurationError(f"The log {settings.file} {unwritable(error)}.", advice) from error
    handler.setFormatter(JsonFormatter() if settings.format == "json" else LineFormatter())
    handler.addFilter(_is_event)
    logging.raiseExceptions = False  # a full disk must not put messages and their arguments onto standard error
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger(LOGGER).setLevel(settings.level.upper())
