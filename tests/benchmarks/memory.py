"""The coordinator's peak memory for one round, measured in a process of its own that does nothing else.

The process reads one ciphertext after the other and adds it to the running sum, as the service does when uploads arrive.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.sums import lane_plan


def measure_memory(size: int, members: int, ciphertexts: list[bytes]) -> int:
    """Bytes by which the peak of resident memory grows while a whole cohort's uploads are added and the sum serialised."""
    with tempfile.TemporaryDirectory() as directory:
        for index, ciphertext in enumerate(ciphertexts):
            Path(directory, str(index)).write_bytes(ciphertext)
        command = [sys.executable, "-m", "benchmarks.memory", directory, str(size), str(members)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["peak"])


def peak() -> int:
    """Peak of this process's resident memory in bytes (Linux). ``ru_maxrss`` would begin at the parent's peak instead."""
    return next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        if line.startswith("VmHWM:")
    )


def main(directory: Path, size: int, members: int) -> None:
    """Add a payload once for each member, under that member's name, and print the growth."""
    from veilsum_coordinator.protocol.accumulator import Accumulator

    plan, small = lane_plan(size, members), lane_plan(2, members)
    names = tuple(f"site-{index}" for index in range(members))
    warm = Accumulator(small, names)  # the library's own tables are no part of a round
    for name in names:
        warm.add(name, 0, bytes(small.upload_bytes))
    warm.serialise()
    before = peak()
    accumulator = Accumulator(plan, names)
    for name in names:
        for index in range(plan.ciphertexts):
            accumulator.add(name, index, (directory / str(index)).read_bytes())
    accumulator.serialise()
    print(json.dumps({"peak": peak() - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
