"""The command; see :mod:`analyst`."""

from __future__ import annotations

import argparse
import logging
import multiprocessing

from analyst.direct import run_direct_part
from analyst.judging import run_part

PART = 2000
"""Examples that one process tries between two reports."""


def main() -> int:
    """Try examples; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="analyst")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--direct", action="store_true", help="configurations of every kind, computed without a site's guard")
    options = parser.parse_args()
    parts = [(min(PART, options.examples - start), options.seed + start) for start in range(0, options.examples, PART)]
    found = False
    with multiprocessing.get_context("spawn").Pool(options.processes, logging.disable, (logging.CRITICAL,)) as pool:
        for report in pool.imap(run_direct_part if options.direct else run_part, parts):
            print(report, flush=True)
            for seed, finding in sorted(report.findings.items()):
                print(f"  seed {seed}: {finding}", flush=True)
            found |= bool(report.findings)
    return int(found)


if __name__ == "__main__":
    raise SystemExit(main())
