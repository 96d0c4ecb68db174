"""Play many histories: ``PYTHONPATH=tests python -m simulation --histories 10000 --seed 0 --processes 2``.

Ends with 1 if anything did not hold; each failing seed is shrunk and printed as a file for ``tests/simulation/regressions``.
"""

from __future__ import annotations

import argparse
import sys
import time

from simulation.running import several


def main() -> int:
    """Parse the command line, play, print; returns the exit status."""
    parser = argparse.ArgumentParser(prog="simulation", description="Random histories of a federation.")
    parser.add_argument("--histories", type=int, default=10_000, help="how many, or in a batch (default 10000)")
    parser.add_argument("--steps", type=int, default=0, help="go on in whole batches until so many steps were carried out")
    parser.add_argument("--seed", type=int, default=0, help="of the first history; the next ones count up")
    parser.add_argument("--processes", type=int, default=2, help="that play side by side (default 2)")
    options = parser.parse_args()
    began, seed = time.monotonic(), options.seed
    histories = steps = 0
    phases: dict[str, int] = {}
    failures: list[str] = []
    with several(options.processes) as play:
        while not failures and (not histories or steps < options.steps):
            for played in play(seed, options.histories):
                histories, steps, failures = histories + played.histories, steps + played.steps, failures + played.failures
                for phase, count in played.phases.items():
                    phases[phase] = phases.get(phase, 0) + count
                seconds = time.monotonic() - began
                print(f"{histories} histories, {steps} steps, {seconds:.0f} s: {phases}", flush=True)
            seed += options.histories
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
