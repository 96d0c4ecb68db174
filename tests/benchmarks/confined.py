"""What processes of its own cost a site, beside one of one process: a step of a large model, a start, and memory at rest.

``python -m benchmarks.confined [STEPS]``: a coordinator and four sites over gRPC and mutual TLS, two of them in processes and
two in one each, in one study of ``fedsgd`` with a head of 1,000,000 values that members follow. So both kinds take their steps
at the same time, and what else the machine does lengthens both. Figures are of ``/proc/PID/stat``: of the steps after the
first three, and of each process. A start is counted until every site has its session, sites of both kinds started in turns.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks.step_process import WARM
from benchmarks.steps import records_of
from support.federation import make_request, schema_of
from support.network import wait_for
from support.processes import OVER, Process, Processes
from veilsum_coordinator.protocol.settings import Waits

FEATURES, CLASSES, SITES, RECORDS = 999, 1000, 4, 256
STEPS = 12
WAITS = Waits(enrol=3600, seal=3600, contribute=3600, consent=3600)

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
_SETTLING = 2.0  # seconds after a start

Figures = dict[str, Counter[str]]
"""Of each process by what it is for: processor ms in the program and in the kernel, and page faults."""


def measure(*, quick: bool = False, steps: int = STEPS) -> dict[str, Any]:
    """Figures a site and step, of processes and of one process; ``quick`` takes a twentieth of the values."""
    head = (49, 1000) if quick else (FEATURES, CLASSES)
    request = make_request(schema_of(*head), "fedsgd", epsilon=3.0)
    request = request.model_copy(update={"parameters": {"steps": steps, "centre": False, "followed": True}})
    with tempfile.TemporaryDirectory() as directory:
        parties = Processes(
            Path(directory),
            records_of(*head, SITES, RECORDS),
            waits=WAITS,
            budget=(None, 1e-5),
            max_peer_streams=16,
            forked=False,
            isolation="processes",
            isolated=[f"site-{place}" for place in range(0, SITES, 2)],
        )
        try:
            return _of_study(parties, request)
        finally:
            parties.stop()


def _of_study(parties: Processes, request: Any) -> dict[str, Any]:
    kinds = {"processes": parties.names[::2], "one process": parties.names[1::2]}
    parties.heal()
    time.sleep(_SETTLING)
    begun = {name: looked_at(process) for name, process in parties.participants.items()}
    found: dict[str, Any] = {
        kind: {
            "start, processor ms": sum(_cpu(begun[name]) for name in names) / len(names),
            "at rest, MiB with shared pages divided": sum(map(_share, (parties.participants[n] for n in names))) / len(names),
        }
        for kind, names in kinds.items()
    }
    key = parties.submit(parties.compile(request))
    ends: list[dict[str, Figures]] = []
    while (shown := parties.status(key)).phase not in OVER:
        released = sum(one.phase == "released" for one in shown.rounds)
        while len(ends) < released:
            ends.append({name: looked_at(process) for name, process in parties.participants.items()})
        time.sleep(0.05)
    assert shown.phase == "finished", shown.reason
    wait_for(lambda: not any(_compiles(process) for process in parties.participants.values()), "the study's end at the sites")
    for kind, names in kinds.items():
        shares = [_settled(parties.participants[name]) for name in names]
        found[kind]["after the study, MiB with shared pages divided"] = sum(shares) / len(shares)
    first, last, counted = ends[WARM - 1], ends[-1], len(ends) - WARM
    for kind, names in kinds.items():
        told: dict[str, Counter[str]] = {}
        for name in names:
            for role, figures in last[name].items():
                spent = Counter(figures)
                spent.subtract(first[name].get(role, {}))
                told.setdefault(role, Counter()).update(spent)
        each = {role: {of: value / counted / len(names) for of, value in spent.items()} for role, spent in told.items()}
        found[kind]["a step, processor ms"] = sum(own["user ms"] + own["system ms"] for own in each.values())
        found[kind]["a step, by process"] = each
    return found


def looked_at(process: Process) -> Figures:
    """What a site's processes took so far, by what they are for."""
    found: Figures = {}
    whole = psutil.Process(process.pid)
    for one in [whole, *whole.children(recursive=True)]:
        words = Path(f"/proc/{one.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        role = _role(one, whole)
        figures = {"user ms": int(words[11]) * _TICK_MS, "system ms": int(words[12]) * _TICK_MS, "page faults": int(words[7])}
        found.setdefault(role, Counter()).update(figures)  # type: ignore[arg-type]
    return found


def _role(one: psutil.Process, whole: psutil.Process) -> str:
    if one.pid == whole.pid:
        return "as started"
    module = one.cmdline()[one.cmdline().index("-m") + 1]
    return "guard" if module.endswith(".session") else module.removeprefix("veilsum_participant.")


def _cpu(figures: Mapping[str, Counter[str]]) -> float:
    return sum(own["user ms"] + own["system ms"] for own in figures.values())


def _compiles(process: Process) -> bool:
    """Whether what traces a study is there, which ends with it."""
    whole = psutil.Process(process.pid)
    with suppress(psutil.NoSuchProcess, ValueError):  # one that has not begun or has ended
        return any(_role(one, whole).endswith("compiler_main") for one in whole.children(recursive=True))
    return True


def _settled(process: Process) -> float:
    """Its memory once no more is given back."""
    before, share = math.inf, _share(process)
    while before - share > 1.0:
        time.sleep(1.0)
        before, share = share, _share(process)
    return share


def _share(process: Process) -> float:
    whole = psutil.Process(process.pid)
    return sum(one.memory_full_info().pss for one in [whole, *whole.children(recursive=True)]) / 2**20


if __name__ == "__main__":
    print(json.dumps(measure(quick="--quick" in sys.argv, steps=int(next(iter(sys.argv[1:]), STEPS))), indent=2))
