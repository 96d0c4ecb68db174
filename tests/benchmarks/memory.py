"""The coordinator's peak memory for one round, measured in a process of its own that does nothing else.

The process reads one contribution after the other, piece by piece, and adds it to the running sum, as the service does when
uploads arrive; or it goes on as the service does until the release is stored: without gRPC, and without the method.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.step_process import peak, resident
from benchmarks.sums import lane_cohort, lock, pieces_of


def measure_memory(size: int, members: int, payload: bytes) -> int:
    """Bytes by which the peak of resident memory grows while a whole cohort's uploads are added and the sum serialised."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "payload").write_bytes(payload)
        command = [sys.executable, "-m", "benchmarks.memory", directory, str(size), str(members)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["peak"])


def main(directory: Path, size: int, members: int) -> None:
    """Add a payload once for each member, under that member's name, and print the growth."""
    from veilsum_coordinator.protocol.accumulator import Accumulator
    from veilsum_privacy.results.whole_sums import total_to_bytes

    plan, small = lane_cohort(size, members).plan, lane_cohort(2, members).plan
    names = tuple(f"site-{index}" for index in range(members))
    warm = Accumulator(small, names)  # the library's own tables are no part of a round
    for name in names:
        for index, piece in enumerate(pieces_of(bytes(small.payload_bytes), small)):
            warm.add(name, index, piece)
    total_to_bytes(warm.take(), small)
    before = peak()
    accumulator = Accumulator(plan, names)
    for name in names:
        with (directory / "payload").open("rb") as file:
            for index in range(plan.pieces):
                accumulator.add(name, index, file.read(plan.piece_bytes(index)))
    total_to_bytes(accumulator.take(), plan)
    print(json.dumps({"peak": peak() - before}))


def measure_round(*, quick: bool = False) -> dict[str, Any]:
    """MiB by which each step of a round at the coordinator raises its memory over what it held before, of 4 members."""
    size = 1_000_000 if quick else 10_000_000
    with tempfile.TemporaryDirectory() as directory:
        members = lane_cohort(size, 4)
        for name in members.names:
            words = members.mask(name, np.zeros(size, dtype=np.int64))
            Path(directory, name).write_bytes(lock(members, name, words))
        del members, words
        command = [sys.executable, "-m", "benchmarks.memory", "round", str(size), directory]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {f"{size} values, 4 members, peak MiB": json.loads(done.stdout)}


def whole_round(size: int, directory: Path) -> None:
    """Add and fix a sum, open it, store the release; print each step's peak in MiB."""
    from veilsum_coordinator.protocol.accumulator import Accumulator
    from veilsum_coordinator.storage.long_values import METADATA, RELEASE_PIECES, SUM_PIECES, cut, write_pieces
    from veilsum_node.database import open_database
    from veilsum_privacy.results.whole_sums import total_blocks
    from veilsum_privacy.securesum.opening import open_words, unmask_values

    members = lane_cohort(size, 4)
    plan, consents, context, names = members.plan, members.consents, members.context, members.names
    before, found = resident(), {}

    def passed(step: str) -> None:
        found[step] = round((peak() - before) / 2**20)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew

    with open_database(f"{directory}/round.db") as database:
        with database.transaction() as connection:
            METADATA.create_all(connection)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        accumulator = Accumulator(plan, names)
        for name in names:
            with (directory / name).open("rb") as file:
                for index in range(plan.pieces):
                    accumulator.add(name, index, file.read(plan.piece_bytes(index)))
        passed("added")
        total = accumulator.take()
        with database.transaction() as connection:
            for place, block in enumerate(total_blocks(total, plan)):
                write_pieces(connection, SUM_PIECES, bytes(32), 1, [block], place)
        total.digest(plan, context)
        passed("fixed and stored")
        words = open_words(total, plan, context, consents, total.coefficients)
        values = unmask_values(words, plan, context, consents)
        del words, total
        if values.any():
            raise AssertionError("the opened sum is not the exact one")
        passed("opened")
        with database.transaction() as connection:
            for place, piece in enumerate(cut(values)):
                write_pieces(connection, RELEASE_PIECES, bytes(32), 1, [piece.tobytes()], place)
        passed("stored")
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "round":
        whole_round(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
