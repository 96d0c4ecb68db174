"""Runs a target: makes inputs, reads them, and tells what is more than a typed error."""

from __future__ import annotations

import gc
import hashlib
import os
import random
import resource
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import grpc

from veilsum_node.errors import VeilsumError

INPUT_SECONDS = 10
"""What takes longer is a hang."""

INPUT_BYTES = 256 << 20
"""What makes the process this much larger at once is a bomb."""

SETTLED_INPUTS = 200
"""So many are read before growth is looked for: libraries load on the way."""

GROWTH_BYTES = 128 << 20
"""How much larger a run may leave the process than its first tenth did."""


class Unexpected(AssertionError):  # noqa: N818
    """The product answered, and the answer is wrong."""


class Hang(BaseException):
    """One input took too long."""


class Target(ABC):
    """Something that reads input from outside.

    Attributes:
        name: for the command line.
        allowed: typed errors in which an input may end.
        memory: by how many bytes one input may make the process larger.
    """

    name: str
    allowed: tuple[type[BaseException], ...] = (VeilsumError,)
    memory: int = INPUT_BYTES

    @abstractmethod
    def case(self, rng: random.Random) -> bytes:
        """One input."""

    @abstractmethod
    def run(self, data: bytes) -> None:
        """Read it.

        Raises:
            BaseException: of an allowed kind, or it is a finding.
        """

    def keep(self, data: bytes) -> None:  # noqa: B027
        """Hear of an input that ended as none before: a target may go on from it."""

    def close(self) -> None:  # noqa: B027
        """Stop what was started."""


@dataclass
class Report:
    """What a run did.

    Attributes:
        target: its name.
        inputs: how many were read.
        refused: how many ended in a typed error.
        ends: how many different ends there were: the lines that raised, or none.
        findings: input and traceback by the line that it ended at.
        seconds: length of the run.
        growth: bytes that the process grew by after the first tenth.
    """

    target: str
    inputs: int = 0
    refused: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    findings: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    seconds: float = 0.0
    growth: int = 0

    def line(self) -> str:
        """For people."""
        return (
            f"{self.target}: {self.inputs} inputs in {self.seconds:.0f} s, {self.refused} refused, {len(self.ends)} different"
            f" ends, {len(self.findings)} findings, grew by {self.growth / 2**20:.1f} MiB"
        )


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak() -> int:
    """Most bytes that this process had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _place(error: BaseException) -> str:
    """The innermost line of the project's own code, and the error's kind."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/veilsum_" in frame.filename] or list(frames)
    place = f" {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    if isinstance(error, grpc.RpcError):  # raised where every status is; what differs is its text
        place = " " + "".join(letter for letter in str(error.args) if not letter.isdigit())[:80]
    return type(error).__name__ + place


def _stop(_: int, __: FrameType | None) -> None:
    raise Hang


def try_input(target: Target, data: bytes) -> tuple[str, str]:
    """Read one input. Returns how it ended, and a traceback if that is a finding."""
    before = peak()
    armed = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, INPUT_SECONDS)
    end, fault = "value", ""
    try:
        try:
            target.run(data)
        finally:  # before anything that an alarm must not interrupt
            signal.setitimer(signal.ITIMER_REAL, 0)
    except target.allowed as error:
        end = _place(error)
    except (Exception, Hang) as error:  # noqa: BLE001  that is what is looked for
        end, fault = _place(error), "".join(traceback.format_exception(error))
    finally:
        signal.signal(signal.SIGALRM, armed)
    if (more := peak() - before) > target.memory:
        return f"memory {end}", f"{fault}\none input took {more >> 20} MiB"
    return end, fault


def fuzz(
    target: Target, seconds: float, seed: int = 0, current: Path | None = None, inputs: int | None = None, least: int = 0
) -> Report:
    """Read inputs for some time.

    Args:
        target: what reads.
        seconds: how long.
        seed: of the inputs.
        current: where each input is written before it is read, for whoever survives this process.
        inputs: stop after so many.
        least: go on until so many were read, however long it takes.
    """
    report, start = Report(target.name), time.monotonic()
    rng = random.Random(seed)
    settled, descriptors = 0, 0
    while ((elapsed := time.monotonic() - start) < seconds or report.inputs < least) and (
        inputs is None or report.inputs < inputs
    ):
        data = target.case(rng)
        if current is not None:
            current.write_bytes(data)
        end, fault = try_input(target, data)
        report.inputs += 1
        report.refused += end != "value" and not fault
        report.ends[end] += 1
        if fault:
            report.findings.setdefault(end, (data, fault))
        elif report.ends[end] == 1:
            target.keep(data)
        if not settled and elapsed > seconds / 10 and report.inputs >= SETTLED_INPUTS:
            gc.collect()
            settled, descriptors = resident(), _descriptors()
    report.seconds = time.monotonic() - start
    gc.collect()
    if settled:
        report.growth = resident() - settled
        if report.growth > GROWTH_BYTES:
            report.findings["leak"] = b"", f"the process grew by {report.growth >> 20} MiB"
        if (more := _descriptors() - descriptors) > 8:
            report.findings["descriptors"] = b"", f"{more} more descriptors are open"
    return report


def save(report: Report, directory: Path) -> list[Path]:
    """Write the findings' inputs and tracebacks."""
    written = []
    for data, fault in report.findings.values():
        path = directory / f"{report.target}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(fault)
        written.append(path)
    return written
