"""Log lines of the long-running commands."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilsum_node.errors import ConfigurationError, StateError
from veilsum_node.telemetry.log_writing import JsonFormatter, LineFormatter, LogSettings, start_logging
from veilsum_node.telemetry.logs import EVENTS, LONGEST_MESSAGE, about, heard, printable, said

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


def make_record(
    message: str, *arguments: object, exc_info: object = None, extra: dict[str, object] | None = None
) -> logging.LogRecord:
    record = logging.LogRecord("veilsum.test", logging.ERROR, __file__, 1, message, arguments, exc_info)  # type: ignore[arg-type]
    vars(record).update(extra or {})
    return record


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
        raise ValueError("age ninety")
    except ValueError as error:
        line = LineFormatter().format(make_record("internal error", exc_info=(ValueError, error, error.__traceback__)))
    assert "ninety" not in line
    assert "[ValueError at test_cli_logs.py:" in line
    assert "\n" not in line


@pytest.mark.usefixtures("restored_logging")
def test_the_log_file_is_private_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for message in ("first", "second"):
        start_logging(LogSettings(file=path))
        logging.getLogger("veilsum.test").info(message)
        logging.getLogger("somebody.else").info("not ours")
    lines = path.read_text().splitlines()
    assert [line.split()[-1] for line in lines] == ["first", "second"]
    assert all(LINE.fullmatch(line) for line in lines)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("restored_logging")
def test_a_rotated_log_is_as_private_as_the_first(tmp_path: Path) -> None:
    path, former = tmp_path / "log", os.umask(0o022)
    try:
        start_logging(LogSettings(file=path))
        logging.getLogger("veilsum.test").info("first")
        path.rename(tmp_path / "log.1")
        logging.getLogger("veilsum.test").info("second")
    finally:
        os.umask(former)
    assert path.read_text().split()[-1] == "second"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.usefixtures("restored_logging")
def test_streams_that_end_with_the_server_are_no_errors(tmp_path: Path) -> None:
    start_logging(LogSettings(file=tmp_path / "log"))
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
        start_logging(LogSettings(file=tmp_path / "missing" / "log"))


# -- lines for programs ----------------------------------------------------------------------------------------------------

HOSTILE = st.text() | st.sampled_from(
    ['"}\n{"level":"info"', "x\r\n2026", "\u202e\u2066evil", "\x1b[2J", "\u2028\u2029", "\ud800", "\0", "%s %d", "'\"\\\\"]
)


@given(HOSTILE, HOSTILE, HOSTILE, st.none() | st.floats() | st.integers(0, 10**12).map(float))
def test_every_json_line_is_one_object_that_says_what_was_given(
    message: str, argument: str, name: str, epsilon: float | None
) -> None:
    extra = about("refused", study=name, digest=bytes(32), round=3, attempt=4, participant=name, reason=name, epsilon=epsilon)
    line = JsonFormatter().format(make_record("said: %s", argument, extra=extra))
    assert line.isascii()
    assert line.isprintable()  # no line break, no control, nothing that turns text round
    fields = json.loads(line, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert list(fields)[:4] == ["time", "level", "logger", "message"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", fields["time"])
    assert (fields["level"], fields["logger"]) == ("error", "veilsum.test")
    assert all(text.isprintable() for text in (fields["message"], fields["study"], fields["participant"], fields["reason"]))
    assert fields["message"] == printable(f"said: {argument}")
    assert fields["study"] == printable(name[:128])
    assert (fields["event"], fields["study_id"], fields["round"], fields["attempt"]) == ("refused", "0" * 12, 3, 4)
    assert ("epsilon" in fields) == (epsilon is not None)
    plain = LineFormatter().format(make_record(message.replace("%", "%%"), extra=extra))
    assert plain.isprintable()


@given(argument=st.text(), name=st.text(max_size=200), level=st.sampled_from([10, 20, 30, 40]), fails=st.booleans())
def test_a_line_is_the_same_whichever_process_writes_it_down(argument: str, name: str, level: int, fails: bool) -> None:
    record = make_record("said: %s", argument, extra=about("refused", study=name, epsilon=math.inf))
    record.levelno, record.levelname, record.name = level, logging.getLevelName(level), name
    if fails:
        try:
            raise StateError(argument)
        except StateError as error:
            record.exc_info = (StateError, error, error.__traceback__)
    other = heard(*json.loads(json.dumps([record.created, said(record)])))
    assert (other.levelno, other.name) == (level, printable(name))
    for formatter in (LineFormatter(), JsonFormatter()):
        assert formatter.format(other) == formatter.format(record)


def test_only_what_is_known_is_in_a_line() -> None:
    fields = json.loads(JsonFormatter().format(make_record("words", extra=about("session"))))
    assert set(fields) == {"time", "level", "logger", "message", "event"}
    assert set(json.loads(JsonFormatter().format(make_record("words")))) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_foreign_exceptions_text_shows_nowhere(formatter: logging.Formatter) -> None:
    lines: list[str] = []
    try:
        raise ValueError("age ninety")  # digits could stand in a line's time as well
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
        lines.append(formatter.format(make_record("ended: %s %d", error, 7, exc_info=info)))
        lines.append(formatter.format(make_record("%d wrong", error)))  # a call that does not fit its words
        lines.append(formatter.format(logging.LogRecord("x", 40, "", 1, error, (), None)))
    assert "ended: ValueError 7" in lines[0]
    assert "test_cli_logs.py:" in lines[0]
    assert not any("ninety" in line for line in lines)
    assert "our own words" in formatter.format(make_record("%s", StateError("our own words")))


@pytest.mark.parametrize("formatter", [LineFormatter(), JsonFormatter()])
def test_a_line_is_bounded(formatter: logging.Formatter) -> None:
    assert len(formatter.format(make_record("%s", "x" * 10**6))) < LONGEST_MESSAGE + 300


@pytest.mark.usefixtures("restored_logging")
def test_format_and_level_as_the_settings_say(tmp_path: Path) -> None:
    for level, expected in (("debug", ["one", "two", "three"]), ("info", ["two", "three"]), ("warning", ["three"])):
        path = tmp_path / f"{level}.log"
        start_logging(LogSettings(file=path, format="json", level=level))  # type: ignore[arg-type]
        logger = logging.getLogger("veilsum.test")
        logger.debug("one")
        logger.info("two", extra=about("enrolled", participant="a"))
        logger.warning("three")
        assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == expected


def test_the_settings_take_a_text_for_the_file() -> None:
    assert LogSettings.model_validate("x.log") == LogSettings(file=Path("x.log"))


def test_every_event_that_is_logged_is_in_the_list() -> None:
    """Read off the source: who follows events by name finds the whole list in one place."""
    root = Path(__file__).parents[2]
    files = [path for part in ("coordinator", "participant", "privacy", "node") for path in (root / part).rglob("*.py")]
    called = {name for path in files for name in re.findall(r'\babout\(\s*"([^"]+)"', path.read_text())}
    assert called <= set(EVENTS), called - set(EVENTS)
    assert len(called) > 10
