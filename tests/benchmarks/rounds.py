"""A whole round through the real machinery in one process: stores, ledgers, signatures, journal, receipts, consents, opening.

The participants take turns on one core, so the time is the sum of everyone's work, without a network. What is summed are the
second moments of a few records with so many features that the vector has about the size asked for.
"""

from __future__ import annotations

import logging
import math
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.sums import LANE_BITS
from support.federation import make_bed, make_request, schema_of
from veilsum_privacy.tasks.agreed import AgreedStudy

RECORDS = 8
MAX_RECORDS = 100
MULTIPLIER = 4  # noise over sensitivity


def features_for(size: int) -> int:
    """Number of features whose two-class moments, 2 + 2d + d + d (d - 1) / 2 values, come closest to ``size``."""
    return max(1, round((math.sqrt(8 * size + 9) - 5) / 2))


class _Told(logging.Handler):
    """What the sites tell their operators: a fault in reading would send noise alone, and be faster."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


def measure_round(size: int, members: int) -> tuple[float, float, int]:
    """Seconds and CPU seconds of one round, from its start to the released values, and the number of values.

    Raises:
        AssertionError: the lanes are not those of the other measurements, or the records of a site did not count.
    """
    logging.getLogger("veilsum").setLevel(logging.WARNING)
    features = features_for(size)
    random = np.random.default_rng(0)
    data = {
        f"site-{index:02d}": (random.uniform(-1, 1, (RECORDS, features)), random.integers(0, 2, RECORDS))
        for index in range(members)
    }
    grid = ((1 << (LANE_BITS - 1)) - 1) // (members * MAX_RECORDS + 12 * 2 * MULTIPLIER)
    with tempfile.TemporaryDirectory() as directory:
        bed = make_bed(Path(directory), data)
        study = bed.compile(make_request(schema_of(features, max_records=MAX_RECORDS), "fedcgs", epsilon=2.0))
        task = study.tasks[0].model_copy(update={"grid": grid, "variance": (MULTIPLIER * grid) ** 2})
        study = study.model_copy(update={"tasks": (task,)})
        encoding = AgreedStudy(study).task(task.label).plan(members, members).encoding
        if (encoding.width, encoding.lanes) != (LANE_BITS, 2):
            raise AssertionError(f"lanes of {encoding.width} bits, {encoding.lanes} a slot")
        local = bed.local
        federation = local.prepare(local.submit(study, bed.analyst))
        faults = _Told()
        logging.getLogger("veilsum").addHandler(faults)
        start, cpu = time.perf_counter(), time.process_time()
        release = federation.sum(task.label)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        logging.getLogger("veilsum").removeHandler(faults)
        if len(release.cohort) != members or faults.messages:
            raise AssertionError(f"the round was not one of records: {faults.messages}")
    return seconds, cpu, encoding.size
