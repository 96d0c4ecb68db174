"""Named tests again and again beside busy processes: none may depend on how fast the machine is.

    .venv/bin/python tests/loaded.py --busy 4 --times 5 tests/integration/test_routes.py

`make test-loaded` does so for the tests that once waited by the clock.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import ExitStack

ONCE_BRITTLE = (
    "tests/integration/test_ray.py::test_a_cluster_gives_the_same_to_the_bit",
    "tests/faults/test_killed_participants.py",
    "tests/faults/test_killed_coordinator.py",
    "tests/integration/test_resource_limits.py",
    "tests/integration/test_routes.py",
    "tests/integration/test_stopping.py",
    "tests/integration/test_grpc_study.py",
    "tests/integration/test_wire_callers.py",
    "tests/unit/test_metrics_endpoint.py",
)


def burn(parent: int) -> None:
    """Keep a core busy for as long as the parent lives."""
    while os.getppid() == parent:
        sum(range(100_000))


def main() -> int:
    """Run the tests; returns how many of the runs failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", type=int, default=4, help="processes that do nothing but compute")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4, help="tests at a time")
    parser.add_argument("--redraw", action="store_true", help="other seeded randomness in each run; golden bytes fail then")
    parser.add_argument("tests", nargs="*", default=ONCE_BRITTLE, help="files or tests, as pytest takes them")
    asked = parser.parse_args()
    command = (sys.executable, "-m", "pytest", "-q", "-n", str(asked.workers), "--dist", "loadfile", *asked.tests)
    failed = 0
    with ExitStack() as stack:
        for _ in range(asked.busy):
            child = multiprocessing.get_context("spawn").Process(target=burn, args=(os.getpid(),), daemon=True)
            child.start()
            stack.callback(child.terminate)
        for number in range(1, asked.times + 1):
            begin = time.monotonic()
            drawn = {"TEST_REDRAW": str(number)} if asked.redraw else {}
            failed += subprocess.run(command, env=os.environ | drawn).returncode != 0
            print(f"run {number} of {asked.times}: {time.monotonic() - begin:.0f} s, {failed} failed so far", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
