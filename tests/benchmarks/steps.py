"""Steps per second of ``fedsgd`` over real processes, gRPC and mutual TLS, with encryption and without.

One coordinator and four participants train a linear head of 512 features and 100 classes, 51,300 values, one secure sum a
step. Runs with and without encryption take turns; each pair gives a ratio, and medians are shown. What "without" leaves out
stands in :mod:`benchmarks.step_process`.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.step_process import WARM
from benchmarks.wire import Proxy
from support.federation import Data, Parties, make_request, schema_of, unix_time
from support.network import wait_for
from support.processes import OVER, Process, write_participant, write_toml
from veilsum.compile import StudyRequest
from veilsum.remote import connect

FEATURES, CLASSES, SITES, RECORDS = 512, 100, 4, 256
SMALL = ((30, 2), (52, 10))
"""Features and classes of heads of 62 and 530 values."""

START_SECONDS, STEP_SECONDS = 60.0, 30.0
PROFILE_LINES = 5


def measure(*, quick: bool = False) -> dict[str, Any]:
    """Figures of both kinds of run, their ratios, and profiles of an encrypted run."""
    pairs, steps = (1, 6) if quick else (3, 15)
    runs = [(run(steps), run(steps, plain=True)) for _ in range(pairs)]
    profiled = run(steps, profile=True)
    by_kind = {"on": [pair[0] for pair in runs], "off": [pair[1] for pair in runs]}
    return {
        **{kind: {name: statistics.median(found[name] for found in several) for name in several[0] if name != "profiles"}
           for kind, several in by_kind.items()},
        "off_over_on": statistics.median(off["step_s"] / on["step_s"] for on, off in runs),
        "off_over_on_cpu": statistics.median(off["cpu_s"] / on["cpu_s"] for on, off in runs),
        "profiles": profiled["profiles"],
    }  # fmt: skip


def measure_small(*, quick: bool = False) -> dict[str, Any]:
    """Of small heads, kB that a site sends and fetches for one further step: what more steps add to a study, by the step."""
    few, many = (2, 4) if quick else (4, 24)
    found = {}
    for features, classes in SMALL:
        totals = []
        for steps in (few, many):
            figures = run(steps, head=(features, classes))
            totals.append([figures[way] * (WARM + steps) / SITES / 1e3 for way in ("sent_bytes", "fetched_bytes")])
        sent, fetched = ((after - before) / (many - few) for before, after in zip(*totals, strict=True))
        found[f"{(features + 1) * classes} values, kB a site and step"] = {"sent": sent, "fetched": fetched}
    return found


def measure_followed(*, quick: bool = False) -> dict[str, Any]:
    """What it takes that members take the steps themselves: bytes a value and site, CPU of everybody, in turns without."""
    heads = [(FEATURES, CLASSES), *([] if quick else [(999, 1000)])]
    found = {}
    for features, classes in heads:
        values = (features + 1) * classes
        for followed in (False, True):
            figures = run(3, head=(features, classes), followed=followed)
            told = {f"{way}, bytes a value": figures[f"{way}_bytes"] / SITES / values for way in ("sent", "fetched")}
            cpu = {f"{who}, CPU s a step": figures[f"{who}_cpu_s"] for who in ("participant", "coordinator")}
            found[f"{values} values, {'members take the steps' if followed else 'the model is broadcast'}"] = told | cpu
    return found


def run(
    steps: int,
    *,
    plain: bool = False,
    profile: bool = False,
    head: tuple[int, int] = (FEATURES, CLASSES),
    members: int = SITES,
    wire: bool = False,
    followed: bool | None = None,
) -> dict[str, Any]:
    """One study of so many counted steps in processes of its own; ``head`` is the model's features and classes.

    Returns:
        Median seconds of a step, CPU seconds and bytes of all parties a step, the coordinator's peak memory in bytes, and the
        profiles' first lines; with ``wire`` the bytes a counted step that participants and the coordinator exchanged in all,
        with the frames of gRPC and TLS.
    """
    with tempfile.TemporaryDirectory() as directory:
        parties = Parties(Path(directory), records_of(*head, members, RECORDS))
        request = make_request(schema_of(*head), "fedsgd", epsilon=3.0)
        request = request.model_copy(update={"parameters": {"steps": WARM + steps, "centre": False, "followed": followed}})
        seconds_allowed = START_SECONDS + STEP_SECONDS * (WARM + steps)
        (coordinator, *sites), proxy = run_study(
            parties, request, {"plain": plain, "profile": profile}, seconds_allowed, wire=wire
        )
    ends = [elapsed for elapsed, _ in coordinator["marks"]][WARM - 1 :]
    carried = 0 if proxy is None else proxy.carried_at(ends[-1]) - proxy.carried_at(ends[0])
    seconds = [after - before for before, after in pairwise(ends)]

    def spent(report: dict[str, Any]) -> float:
        counted = [cpu for _, cpu in report["marks"]][WARM - 1 :]
        return float((counted[-1] - counted[0]) / (len(counted) - 1))

    total = len(coordinator["marks"])
    return {
        "step_s": statistics.median(seconds),
        "steps_per_s": 1.0 / statistics.median(seconds),
        "coordinator_cpu_s": spent(coordinator),
        "participant_cpu_s": statistics.mean(map(spent, sites)),
        "cpu_s": spent(coordinator) + sum(map(spent, sites)),
        "sent_bytes": sum(site["bytes"]["sent"] for site in sites) / total,
        "fetched_bytes": sum(site["bytes"]["fetched"] for site in sites) / total,
        "coordinator_peak_bytes": coordinator["peak"],
        "wire_bytes": carried / (len(ends) - 1),
        "profiles": {
            who: [f"{1e3 * taken / steps:7.1f} ms {calls / steps:8.1f} calls  {name}" for name, calls, taken in lines]
            for who, lines in (
                ("coordinator", coordinator["profile"][:PROFILE_LINES]),
                ("participant", sites[0]["profile"][:PROFILE_LINES]),
            )
        },
    }


def run_study(
    parties: Parties, request: StudyRequest, options: dict[str, Any], seconds: float, *, wire: bool = False
) -> tuple[list[dict[str, Any]], Proxy | None]:
    """Start all processes, run the study, stop them; returns what they report, the coordinator first.

    ``options`` are those of :mod:`benchmarks.step_process`; the study may take so many ``seconds``. With ``wire`` participants
    reach the coordinator through the proxy, which counts; the analyst does not.
    """
    proxy = None
    where = parties.kit.coordinator.directory
    with ExitStack() as stack:

        def start(directory: Path, role: str) -> tuple[Path, Process]:
            report = directory / "report.json"
            told = json.dumps({**options, "report": str(report)})
            command = ["-m", "benchmarks.step_process", told, role, "start", "--config", str(directory / f"{role}.toml")]
            process = Process(command, directory / "log")
            stack.callback(process.stop)
            return report, process

        write_toml(where / "coordinator.toml", {"": {"listen": "127.0.0.1:0", "ready_file": "ready"}})
        started = [start(where, "coordinator")]
        wait_for((where / "ready").exists, "the coordinator's address")
        address = dialled = (where / "ready").read_text().strip()
        if wire:
            proxy = Proxy(int(address.rpartition(":")[2]))
            stack.callback(proxy.close)
            dialled = f"127.0.0.1:{proxy.port}"
        for name in parties.names:
            write_participant(parties, name, dialled, (None, 1e-5))
            started.append(start(parties.directory(name), "participant"))
        with connect(address, parties.analyst, parties.kit.analyst.identity, unix_time()) as remote:
            wait_for(lambda: set(parties.names) <= set(remote.describe().connected), "every participant's session")
            key = remote.submit(parties.compile(request), parties.analyst)
            end = time.monotonic() + seconds
            while remote.show(key).phase not in OVER and time.monotonic() < end:
                time.sleep(1.0)
            shown = remote.show(key)
            assert shown.phase == "finished", f"{shown.phase}: {shown.reason}; see the logs"
            time.sleep(1.0)  # the last release is on its way to the participants
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda item: item[1].stop(), started))
        return [_read(report) for report, _ in started], proxy


def _read(report: Path) -> dict[str, Any]:
    assert report.exists(), f"{report.parent.name} left no report: {(report.parent / 'log').read_text()[-2000:]}"
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def records_of(features: int, classes: int, members: int, rows: int) -> Data:
    """Made-up records of so many sites, ``rows`` at each."""
    found = {}
    for number in range(members):
        random = np.random.default_rng(number)
        found[f"site-{number}"] = random.uniform(-1, 1, (rows, features)), random.integers(0, classes, rows)
    return found


ROWS = (
    ("steps a second", "steps_per_s", "{:.2f}", 1.0),
    ("a step, ms", "step_s", "{:.0f}", 1e3),
    ("CPU of all parties a step, ms", "cpu_s", "{:.0f}", 1e3),
    ("  coordinator, ms", "coordinator_cpu_s", "{:.0f}", 1e3),
    ("  one participant, ms", "participant_cpu_s", "{:.0f}", 1e3),
    ("sent by participants a step, MB", "sent_bytes", "{:.2f}", 1e-6),
    ("fetched by participants a step, MB", "fetched_bytes", "{:.2f}", 1e-6),
)


def table(results: dict[str, Any]) -> str:
    """The figures as a Markdown table, and the profiles."""
    lines = [[f"{SITES} sites, {FEATURES} x {CLASSES} head", "encrypted", "not encrypted"], ["---", "---:", "---:"]]
    lines += [[name, *(form.format(results[kind][key] * scale) for kind in ("on", "off"))] for name, key, form, scale in ROWS]
    lines += [["  not encrypted / encrypted: a step", f"{results['off_over_on']:.2f}", ""]]
    lines += [["  not encrypted / encrypted: CPU", f"{results['off_over_on_cpu']:.2f}", ""]]
    text = [_row(line, lines) for line in lines]
    for who, profile in results["profiles"].items():
        text += [
            "",
            f"{who}, encrypted: time of their own and calls a step, without waiting:",
            *(f"  {line}" for line in profile),
        ]
    return "\n".join(text)


def _row(line: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(other[column]) for other in lines) for column in range(len(line))]
    return "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |"
