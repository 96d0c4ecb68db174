"""The coordinator's peak memory for one round, measured in a process of its own that does nothing else.

The process reads one ciphertext after the other and adds it to the running sum, as the service does when uploads arrive; or it
goes on as the service does until the release is stored: without gRPC, and without the method.
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
from benchmarks.sums import lane_plan
from veilsum_privacy.securesum.decryption import WORD_BYTES
from veilsum_privacy.securesum.parameters import TAGS


def measure_memory(size: int, members: int, ciphertexts: list[bytes]) -> int:
    """Bytes by which the peak of resident memory grows while a whole cohort's uploads are added and the sum serialised."""
    with tempfile.TemporaryDirectory() as directory:
        for index, ciphertext in enumerate(ciphertexts):
            Path(directory, str(index)).write_bytes(ciphertext)
        command = [sys.executable, "-m", "benchmarks.memory", directory, str(size), str(members)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout)["peak"])


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


def measure_round(*, quick: bool = False) -> dict[str, Any]:
    """MiB by which each step of a round at the coordinator raises its memory over what it held before, of 4 members."""
    size = 1_000_000 if quick else 10_000_000
    command = [sys.executable, "-m", "benchmarks.memory", "round", str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {f"{size} values, 4 members, peak MiB": json.loads(done.stdout)}


def whole_round(size: int) -> None:
    """Add, hand over and serve a sum, take its words, open them, store the release; print each step's peak in MiB."""
    from veilsum_coordinator.protocol.accumulator import Accumulator
    from veilsum_coordinator.service.objects import chunks
    from veilsum_coordinator.storage.long_values import METADATA, RELEASE_PIECES, cut, write_pieces
    from veilsum_coordinator.storage.messages import sum_pieces
    from veilsum_node.database import open_database
    from veilsum_privacy.securesum.contribution import masked_sum, open_pieces
    from veilsum_privacy.securesum.decryption import words_digest, words_from_bytes, words_to_bytes

    names = tuple("abcd")
    plan, consents = lane_plan(size, len(names)), [bytes([index]) * 32 for index in range(len(names))]
    fresh = [bytes(plan.parameters.fresh_bytes(plan.words(index) + TAGS)) for index in (0, plan.ciphertexts - 1)]
    with tempfile.TemporaryDirectory() as directory:
        wire = Path(directory, "words")
        with wire.open("wb") as file:
            for part in masked_sum(np.zeros(size, dtype=np.int64), plan, consents):
                file.write(words_to_bytes(part))
        before, found = resident(), {}

        def passed(step: str) -> None:
            found[step] = round((peak() - before) / 2**20)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew

        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        accumulator = Accumulator(plan, names)
        for name in names:
            for index in range(plan.ciphertexts):
                accumulator.add(name, index, fresh[index == plan.ciphertexts - 1])
        passed("added")
        total = accumulator.serialise()
        passed("handed over")
        for _ in range(2):
            for _ in chunks(sum_pieces(total)):
                pass
        passed("served to two")
        with wire.open("rb") as file:
            words = [words_from_bytes(file.read(WORD_BYTES * plan.words(index))) for index in range(plan.ciphertexts)]
        words_digest(words)
        passed("words taken")
        del total
        with open_database(f"{directory}/release.db") as database, database.transaction() as connection:
            METADATA.create_all(connection)
            for place, piece in enumerate(cut(open_pieces(words, plan, consents))):
                write_pieces(connection, RELEASE_PIECES, bytes(32), 1, [piece.tobytes()], place)
            passed("opened and stored")
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "round":
        whole_round(int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
