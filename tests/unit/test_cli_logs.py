"""Log lines of the long-running commands."""

from __future__ import annotations

import asyncio
import logging
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilsum_privacy.errors import ConfigurationError
from veilsum_privacy.runtime.logs import LineFormatter, printable, start_logging

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (INFO|WARNING|ERROR) \S.*")


@pytest.fixture
def restored_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("veilsum")
    kept = root.handlers[:], root.level, ours.level
    yield
    for handler in root.handlers:
        if handler not in kept[0]:
            handler.close()
    root.handlers[:], root.level = kept[0], kept[1]
    ours.setLevel(kept[2])


def make_record(message: str, *arguments: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("veilsum.test", logging.ERROR, __file__, 1, message, arguments, exc_info)  # type: ignore[arg-type]


@given(st.text())
def test_nothing_unprintable_passes(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text)
    assert shown.isprintable()
    assert all(a == b for a, b in zip(shown, text, strict=True) if b.isprintable())


def test_a_peers_text_cannot_forge_a_line_or_steer_a_terminal() -> None:
    line = LineFormatter().format(make_record("from a peer: %s", "x\n2026-01-01T00:00:00Z INFO forged\x1b[2J\r"))
    assert "\n" not in line
    assert "\x1b" not in line
    assert LINE.fullmatch(line)


def test_a_trace_names_places_and_never_the_exceptions_text() -> None:
    try:
        raise ValueError("age 93")
    except ValueError as error:
        line = LineFormatter().format(make_record("internal error", exc_info=(ValueError, error, error.__traceback__)))
    assert "93" not in line
    assert "[ValueError at test_cli_logs.py:" in line
    assert "\n" not in line


@pytest.mark.usefixtures("restored_logging")
def test_the_log_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for message in ("first", "second"):
        start_logging(path)
        logging.getLogger("veilsum.test").info(message)
        logging.getLogger("somebody.else").info("not ours")
    lines = path.read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
    assert all(LINE.fullmatch(line) for line in lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("restored_logging")
def test_streams_that_end_with_the_server_are_no_errors(tmp_path: Path) -> None:
    start_logging(tmp_path / "log")
    for kind, name in ((asyncio.CancelledError, "grpc.x"), (asyncio.CancelledError, "veilsum.x"), (OSError, "grpc.x")):
        try:
            raise kind
        except kind:
            logging.getLogger(name).error("from %s", name, exc_info=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [re.findall(r"from (\S+) \[(\w+)", line)[0] for line in lines] == [
        ("veilsum.x", "CancelledError"),
        ("grpc.x", "OSError"),
    ]


@pytest.mark.usefixtures("restored_logging")
def test_a_log_that_cannot_be_written_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        start_logging(tmp_path / "missing" / "log")
