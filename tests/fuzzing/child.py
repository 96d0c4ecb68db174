"""One target in a process of its own."""

from __future__ import annotations

import faulthandler
import logging
import sys
from pathlib import Path

import veilsum_participant  # noqa: F401  before gRPC
from fuzzing.driver import fuzz, save
from fuzzing.targets import make


def run_target(name: str, seconds: float, seed: int, current: Path, out: Path) -> None:
    """Run a target, print its report and exit with 1 if anything was found."""
    faulthandler.enable()
    logging.disable(logging.CRITICAL)
    target = make(name)
    try:
        report = fuzz(target, seconds, seed, current)
    finally:
        target.close()
    print(report.line(), flush=True)
    for place, (_, fault) in report.findings.items():
        print(f"  {place}\n{fault}", flush=True)
    save(report, out)
    sys.exit(bool(report.findings))
