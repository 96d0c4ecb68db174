"""Guides whose commands are run: the marked blocks of a page, and a walk through them in a fresh directory.

A guide's fenced blocks of the language ``console`` hold commands behind ``$ `` and what they print; in a shown line ``...``
stands for any text. What else a walk does is said by comments of the page, one a line, in front of a block:

    <!-- file: PATH -->             the block is the content of a file
    <!-- edit: PATH -->             the block's TOML is merged into a file
    <!-- background: NAME -->       the command runs on until it is stopped
    <!-- status: NUMBER -->         the block's last command ends with this status
    <!-- not run: REASON -->        the block is left out, and why

and by comments that stand alone:

    <!-- stop: NAME -->             end what runs in the background as an operator does; its status must be 0
    <!-- stage: NAME -->            what others do meanwhile: a function of the test
    <!-- pause -->                  the walk goes on here after other guides
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARKS = ("file", "edit", "background", "status", "not run", "stop", "stage", "pause")
ALONE = ("stop", "stage", "pause")
COMMAND_SECONDS = 60.0

_COMMENT = re.compile(r"<!-- (?P<key>[a-z ]+?)(?:: (?P<value>.*\S))? -->")


@dataclass(frozen=True)
class Block:
    """A fenced block, or a mark that stands alone (its language and text are empty)."""

    page: str
    line: int
    language: str
    text: str
    marks: Mapping[str, str]

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """One command of a console block and the lines that the page shows of its output."""

    text: str
    shown: tuple[str, ...]


def read_blocks(path: Path) -> list[Block]:
    """Every fenced block and every mark that stands alone, in the page's order.

    Raises:
        ValueError: a comment is not a mark that a walk knows, a mark belongs to no block, or a fence is not closed.
    """
    found: list[Block] = []
    marks: dict[str, str] = {}
    fence: tuple[int, str, dict[str, str]] | None = None
    text: list[str] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if fence is not None:
            if line == "```":
                start, language, given = fence
                found.append(Block(path.name, start, language, "".join(f"{item}\n" for item in text), given))
                fence, text = None, []
            else:
                text.append(line)
        elif line.startswith("```"):
            fence, marks = (number, line[3:].strip(), marks), {}
        elif comment := _COMMENT.fullmatch(line):
            key, value = comment["key"], comment["value"] or ""
            if key not in MARKS:
                raise ValueError(f"{path.name}:{number}: no mark {key!r}; there are {', '.join(MARKS)}")
            if key in ALONE:
                found.append(Block(path.name, number, "", "", {key: value}))
            else:
                marks[key] = value
        elif line.strip() and marks:
            raise ValueError(f"{path.name}:{number}: the marks {sorted(marks)} belong to no block")
    if fence is not None or marks:
        raise ValueError(f"{path.name}: a fence is not closed, or a mark belongs to no block")
    return found


def read_commands(block: Block) -> list[Command]:
    """The commands of a console block.

    Raises:
        ValueError: output is shown before any command.
    """
    commands: list[tuple[list[str], list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(([line[2:]], []))
        elif not commands:
            raise ValueError(f"{block.where}: the block does not begin with a command")
        elif commands[-1][0][-1].endswith("\\") and not commands[-1][1]:
            commands[-1][0].append(line)
        elif line.strip():
            commands[-1][1].append(line)
    return [Command("\n".join(text), tuple(shown)) for text, shown in commands]


def missing_line(shown: tuple[str, ...], output: str) -> str | None:
    """The first line of a page that a command's output does not have, in the page's order; None if it has all of them.

    Spaces and the lines of tables do not count; ``...`` in a shown line stands for any text.
    """
    lines = iter([_plain(line) for line in output.splitlines()])
    for line in shown:
        if not _plain(line) or set(_plain(line)) == {"."}:
            continue
        parts = (re.escape(part.strip()) for part in _plain(line).split("..."))
        pattern = re.compile(r"\s*.*?\s*".join(parts))
        if not any(pattern.search(candidate) for candidate in lines):
            return line
    return None


def _plain(line: str) -> str:
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", line).split())


class WalkError(AssertionError):
    """A command of a guide did not do what the guide says."""


class Walk:
    """Walks through guides, one working directory and one set of processes for all of them.

    Args:
        directory: where the guides' commands run.
        environment: variables of every command.
        replaced: texts of the pages, and what stands for them on this machine (ports, hosts); values may be functions.
        stages: by name, what others do.
    """

    def __init__(
        self,
        directory: Path,
        *,
        environment: Mapping[str, str],
        replaced: Mapping[str, str | Callable[[], str]],
        stages: Mapping[str, Callable[[], None]],
    ) -> None:
        self.directory = directory
        self.ran: list[tuple[str, str, float]] = []
        self._environment, self._replaced, self._stages = dict(environment), replaced, stages
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def walk(self, page: Path) -> Iterator[None]:
        """Walk through a page; pauses where the page says so."""
        cwd = self.directory
        for block in read_blocks(page):
            if "pause" in block.marks:
                yield
            elif "stage" in block.marks:
                self._stages[block.marks["stage"]]()
            elif "stop" in block.marks:
                self.stop(block.marks["stop"])
            elif "not run" in block.marks:
                continue
            elif "file" in block.marks:
                self._write(cwd / self._here(block.marks["file"]), self._here(block.text))
            elif "edit" in block.marks:
                self._edit(cwd / self._here(block.marks["edit"]), tomllib.loads(self._here(block.text)))
            elif block.language == "console":
                cwd = self._run(block, cwd)
            else:
                raise WalkError(f"{block.where}: the block is neither run nor marked")

    def stop(self, name: str) -> None:
        """End a process of the background with SIGTERM.

        Raises:
            WalkError: it does not end within 20 seconds with status 0.
        """
        child = self._running.pop(name)
        child.send_signal(signal.SIGTERM)
        try:
            status = child.wait(20)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise WalkError(f"{name} did not stop") from None
        if status != 0:
            raise WalkError(f"{name} ended with status {status}: {self._output(name).read_text()}")

    def start(self, name: str, command: str, cwd: Path) -> None:
        """Start a process of the background; what it prints lies in ``NAME.output``."""
        with self._output(name).open("wb") as output:
            self._running[name] = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=cwd,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def check_running(self) -> None:
        """Raise if a process of the background has ended by itself.

        Raises:
            WalkError: it has, and what it printed.
        """
        for name, child in self._running.items():
            if child.poll() is not None:
                raise WalkError(f"{name} ended with status {child.returncode}: {self._output(name).read_text()}")

    def close(self) -> None:
        """End whatever still runs."""
        for child in self._running.values():
            child.kill()
            child.wait()

    def _output(self, name: str) -> Path:
        return self.directory / f"{name}.output"

    def _here(self, text: str) -> str:
        for there, here in self._replaced.items():
            if there in text:
                text = text.replace(there, here if isinstance(here, str) else here())
        return text

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _edit(self, path: Path, changes: Mapping[str, Any]) -> None:
        self._write(path, write_toml(_merged(tomllib.loads(path.read_text(encoding="utf-8")), changes)))

    def _run(self, block: Block, cwd: Path) -> Path:
        commands = read_commands(block)
        if "background" in block.marks:
            (command,) = commands
            self.start(block.marks["background"], self._here(command.text), cwd)
            return cwd
        for number, command in enumerate(commands, 1):
            wanted = int(block.marks.get("status", "0")) if number == len(commands) else 0
            cwd = self._command(block, command, wanted, cwd)
        return cwd

    def _command(self, block: Block, command: Command, wanted: int, cwd: Path) -> Path:
        text, left = self._here(command.text), self.directory / "cwd"
        script = f"trap 'pwd > {left}' EXIT\n{text}\n"
        began = time.monotonic()
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", script],
            cwd=cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        self.ran.append((block.where, text, time.monotonic() - began))
        if done.returncode != wanted:
            raise WalkError(f"{block.where}: status {done.returncode}, not {wanted}, of: {text}\n{done.stdout}")
        missing = missing_line(tuple(self._here(line) for line in command.shown), done.stdout)
        if missing is not None:
            raise WalkError(f"{block.where}: {text}\ndid not print: {missing}\nbut:\n{done.stdout}")
        return Path(left.read_text().strip())


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(old)
    for key, value in new.items():
        both[key] = _merged(both[key], value) if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def write_toml(content: Mapping[str, Any], table: str = "") -> str:
    """TOML of plain values: texts, numbers, lists of them, tables."""
    lines = [f"{key} = {_value(value)}" for key, value in content.items() if not isinstance(value, dict)]
    text = ("" if not table else f"[{table}]\n") + "".join(f"{line}\n" for line in lines)
    for key, value in content.items():
        if isinstance(value, dict):
            text += write_toml(value, f"{table}.{key}" if table else key)
    return text


def _value(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return repr(value)


def environment_for(directory: Path, *programs: Path) -> dict[str, str]:
    """Variables for commands of a guide: the programs of some directories first, nothing of the caller's settings."""
    return {
        "PATH": os.pathsep.join([*map(str, programs), os.environ.get("PATH", os.defpath)]),
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "COLUMNS": "160",
        "OMP_NUM_THREADS": "1",
    }
