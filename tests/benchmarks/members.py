"""A study of many members through the real machinery in one process: each with its own keys, ledger, store and roster.

They take turns on one core, so the time is the sum of everyone's work, without a network; memory is that of all together.
"""

from __future__ import annotations

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from load.ground import RECORDS, WIDTH

from benchmarks.step_process import peak, resident
from benchmarks.steps import records_of
from support.federation import make_bed, make_request, schema_of
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_node.process.hardening import allow_files

SIZES, QUICK = (64, 128, 256), (16, 32)


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of studies of several sizes."""
    allow_files(16384)
    return {f"{count} members": study_of(count) for count in (QUICK if quick else SIZES)}


def study_of(count: int) -> dict[str, Any]:
    """One study of ``statistics`` with one round: processor seconds of its parts, and memory in MiB.

    Raises:
        AssertionError: a member is missing from the cohort, or the records counted are not all.
    """
    before = resident()
    with tempfile.TemporaryDirectory() as directory:
        bed = make_bed(Path(directory), records_of(WIDTH, 2, count, RECORDS))
        request = make_request(schema_of(WIDTH, max_records=100), epsilon=None, min_cohort=count)
        opened, local = resident(), bed.local
        key = local.submit(bed.compile(request), bed.analyst)
        marks = [("", time.process_time())]
        machine = bed.hub.studies[key].machine
        while machine.phase is StudyPhase.ENROLLING:
            local.step()
        marks.append(("enrolment", time.process_time()))
        federation = local.prepare(key)
        marks.append(("boxes", time.process_time()))
        release = federation.sum(machine.study.tasks[0].label)
        marks.append(("round", time.process_time()))
        assert len(release.cohort) == count
        most = peak()
    spent = {f"{name}, processor s": after - begun for (_, begun), (name, after) in pairwise(marks)}
    return {
        **spent,
        "a member's processor s, with its share of the coordinator's": (marks[-1][1] - marks[0][1]) / count,
        "all parties open, MiB": (opened - before) / 2**20,
        "peak, MiB": most / 2**20,
    }
