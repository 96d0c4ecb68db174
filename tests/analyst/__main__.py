"""The command; see :mod:`analyst`."""

from __future__ import annotations

import argparse
import multiprocessing

from analyst.judging import run_part


def main() -> int:
    """Try examples; the exit status is 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="analyst")
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    each = -(-options.examples // options.processes)
    parts = [(each, options.seed + index * 10**9) for index in range(options.processes)]
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        reports = pool.map(run_part, parts)
    for report in reports:
        print(report)
        for seed, finding in sorted(report.findings.items()):
            print(f"  seed {seed}: {finding}")
    return int(any(report.findings for report in reports))


if __name__ == "__main__":
    raise SystemExit(main())
