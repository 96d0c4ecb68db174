"""``PYTHONPATH=tests python -m fuzzing TARGET [--seconds 600] [--seed 0] [--out DIR]``; ``all`` takes one after the other.

Each target runs in a process of its own, so that one that dies is a finding too.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

from fuzzing.child import run_target
from fuzzing.driver import INPUT_SECONDS, Report, save
from fuzzing.targets import TARGETS


def _watch(process: multiprocessing.process.BaseProcess, current: Path) -> str:
    """Wait for its end; says how it ended if it did not end by itself."""
    while process.is_alive():
        process.join(5)
        if process.is_alive() and current.exists() and time.time() - current.stat().st_mtime > 6 * INPUT_SECONDS:
            process.kill()
            process.join()
            return "hangs where no signal is heard"
    code = process.exitcode or 0
    return f"died of signal {-code}" if code < 0 else ""


def main() -> int:
    """Run targets; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzzing")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzzing-findings"), help="where inputs of findings are written")
    options = parser.parse_args()
    found = False
    for name in TARGETS if options.target == "all" else [options.target]:
        with tempfile.TemporaryDirectory(prefix="fuzzing-") as directory:
            current = Path(directory) / "current"
            process = multiprocessing.get_context("spawn").Process(
                target=run_target, args=(name, options.seconds, options.seed, current, options.out)
            )
            process.start()
            if word := _watch(process, current):
                data = current.read_bytes() if current.exists() else b""
                paths = save(Report(name, findings={word: (data, word)}), options.out)
                print(f"{name}: {word}, see {paths[0]}", flush=True)
            found |= process.exitcode != 0
    return int(found)


if __name__ == "__main__":
    raise SystemExit(main())
