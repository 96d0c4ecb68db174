"""What it costs a site to have its records read, and its tasks traced, in processes of their own: processor time and memory.

``python -m benchmarks.apart RECORDS`` runs, in a fresh process each, one site's contribution to two rounds of a study of
statistics on four columns from a CSV file: the first reads, the second has the records. Processor time is that of the site
with its workers, memory the largest resident set of the site and of a worker.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS, TIMES = 4, 3


def measured(records: int, apart: bool) -> dict[str, float]:
    """One run, in this process."""
    from support.federation import DATASET, make_bed, make_data, make_request, schema_of
    from support.hostile import Adversary, altered
    from support.starting import ProcessStarter
    from veilsum_participant.data.local import LocalDatasets
    from veilsum_participant.settings.dataset_config import DatasetConfig
    from veilsum_participant.worker.compiling import WorkerStudies
    from veilsum_participant.worker.remote import WorkerDatasets

    with tempfile.TemporaryDirectory() as name:
        bed = make_bed(Path(name), make_data("abc", 20, COLUMNS))
        path = bed.directory("a") / "large.csv"
        rng = np.random.default_rng(0)
        values = np.column_stack([rng.uniform(-1, 1, (records, COLUMNS)), rng.integers(0, 2, records)])
        names = [f"x{place}" for place in range(COLUMNS)]
        np.savetxt(path, values, fmt=["%.6f"] * COLUMNS + ["%d"], delimiter=",", header=",".join([*names, "y"]), comments="")
        site = bed.sites["a"]
        offered = DatasetConfig(path=path, columns=(*names, "y"))
        site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})
        schema = schema_of(COLUMNS, 2, 2 * records)
        attack = Adversary(bed, altered(bed.compile(make_request(schema)), task__releases=4, privacy__epsilon=50.0))
        attack.set_up()
        site.datasets = WorkerDatasets(ProcessStarter()) if apart else LocalDatasets()
        if apart:
            site.studies = WorkerStudies(ProcessStarter())
        found: dict[str, float] = {}
        for attempt in (1, 2):
            before, began = _cpu(), time.perf_counter()
            assert attack.assign("a", attack.assignment("abc", number=attempt, attempt=attempt)).call == "upload"
            found[f"wall {attempt}"] = time.perf_counter() - began
            found[f"cpu {attempt}"] = _cpu() - before
        site.datasets.close()
        site.studies.close()
        found["site MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found["worker MiB"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return found


def _cpu() -> float:
    """Seconds of this process and of all that it started, whether they ended or not."""
    ended = sum(
        used.ru_utime + used.ru_stime for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return ended + sum(map(_cpu_of, Path("/proc/self/task").glob("*/children")))


def _cpu_of(children: Path) -> float:
    """Seconds of children that a thread started."""
    ticks = 0
    for child in children.read_text().split():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main(records: int) -> None:
    """Print the least of several runs, in turn."""
    least: dict[str, dict[str, float]] = {"one process": {}, "apart": {}}
    for _ in range(TIMES):
        for how, best in least.items():
            command = [sys.executable, "-m", "benchmarks.apart", str(records), how]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for name, value in json.loads(said.splitlines()[-1]).items():
                best[name] = min(best.get(name, value), value)
    for how, best in least.items():
        print(f"{how:12}", *(f"{name} {value:.2f}" for name, value in best.items()))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(measured(int(sys.argv[1]), sys.argv[2] == "apart")))
    else:
        main(int(sys.argv[1]))
