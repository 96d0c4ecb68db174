"""Pictures of the dashboards and of a dossier, of a run on real processes: ``make pictures``.

The run takes minutes and has what an operator meets: a site that is killed and comes back, a site that is slow for a while,
and a study that is too dear for one site's budget.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum.remote import StudyInfo
from veilsum_deploy.dashboards.browser import find_browser, photograph
from veilsum_deploy.dashboards.drawing import draw
from veilsum_deploy.dashboards.reading import read_boards
from veilsum_deploy.dashboards.watching import Watched, watching
from veilsum_deploy.demo.directory import DELTA
from veilsum_deploy.demo.hospitals import packaged_hospitals
from veilsum_deploy.demo.interruption import Interruption
from veilsum_deploy.demo.processes import Process
from veilsum_deploy.demo.run import wait_for_ledgers
from veilsum_node.errors import StateError
from veilsum_privacy.study.study import Study

BUDGETS = {"north": 12.0, "east": 4.56, "south": 30.0, "west": 3.5}
SHARING = ("north", "east")
PAUSED_AT, PAUSE_SECONDS = 0.5, 5.0
"""Part of a study's rounds after which a site is stopped, and for how long."""

QUIET_SECONDS = 6.0
"""Between two studies."""

CURVE_SECONDS = 2.0
"""Between two points of a curve; rates look back over four of them."""

DOSSIER_WIDTH = 820
FIRST_PARTS = 'section[aria-labelledby="plots"] ~ section { display: none }'
"""The picture shows the dossier as far as its plots; the list of releases is long."""

Observe = Callable[[StudyInfo], None]


def take(directory: Path, out: Path, progress: Callable[[str], None]) -> list[Path]:
    """Run the studies and write the pictures; returns them.

    Args:
        directory: a new one, for the federation.
        out: gets rounds.png, budgets.png, participant.png and dossier.png.
        progress: told what is being done.

    Raises:
        StateError: there is no browser or no Prometheus, or a process or a study failed.
    """
    browser = find_browser()
    if browser is None:
        raise StateError("There is no browser on this machine.", "Install chromium.")
    directory.mkdir(parents=True)
    with watching(directory, packaged_hospitals(), lambda: int(time.time()), budgets=BUDGETS, sharing=SHARING) as watched:
        _run(watched, progress)
        progress("Drawing")
        pages = directory / "pages"
        draw(read_boards(), watched.prometheus, watched.window(CURVE_SECONDS), pages, {"site": "east"}, browser)
        kit = watched.analyst.kit
    dossier = pages / "dossier.html"
    config = next(party.directory for party in kit.participants if party.name == "west") / "participant.toml"
    command = [sys.executable, "-m", "veilsum_deploy.cli", "ledger", "report", "--config", str(config), "--out", str(dossier)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603  this interpreter, with arguments of our own
    dossier.write_text(dossier.read_text(encoding="utf-8").replace("</style>", f"{FIRST_PARTS}</style>", 1), encoding="utf-8")
    photograph(browser, dossier, pages / "dossier.png", DOSSIER_WIDTH)
    out.mkdir(parents=True, exist_ok=True)
    pictures = []
    for made in sorted(pages.glob("*.png")):
        pictures.append(out / made.name)
        pictures[-1].write_bytes(made.read_bytes())
    return pictures


def _run(watched: Watched, progress: Callable[[str], None]) -> None:
    analyst, sites = watched.analyst, watched.sites
    finished = []

    def study(name: str, method: str, epsilon: float, parameters: Mapping[str, Any] | None = None) -> Study:
        some = next(iter(analyst.hospitals.sites.values()))
        privacy = PrivacyRequest(epsilon=epsilon, delta=DELTA, assumed_colluders=1, min_cohort=analyst.min_cohort)
        request = StudyRequest(
            name=name, method=method, dataset=some.name, data=some.schema, parameters=dict(parameters or {}), privacy=privacy
        )
        return analyst.compile_request(request)

    def run(made: Study, observe: Observe = lambda _: None, killed: Callable[[Process], bool] = lambda _: False) -> None:
        progress(f"Study {made.name} ({made.method})")
        finished.append(analyst.finish(made, analyst.submit(made), killed=killed, observe=observe))
        time.sleep(QUIET_SECONDS)

    time.sleep(QUIET_SECONDS)
    run(study("statistics", "statistics", 0.5))
    run(study("classifier", "fedcgs", 1.0))
    training = study("train", "fedsgd", 2.0, {"steps": 240})
    interruption = Interruption("south", sites["south"], analyst.processes.restart, _rounds(training))
    try:
        run(training, interruption.watch, interruption.killed)
    finally:
        interruption.end()
    run(study("average", "fedavg", 1.0, {"rounds": 12}))
    again = study("train-again", "fedsgd", 1.0, {"steps": 150})
    run(again, _pausing(sites["east"], round(PAUSED_AT * _rounds(again))))
    run(study("too-dear", "fedcgs", 3.0))
    run(study("last", "fedsgd", 0.5, {"steps": 60}))
    wait_for_ledgers(analyst.kit, finished)


def _rounds(study: Study) -> int:
    return sum(task.releases for task in study.tasks)


def _pausing(process: Process, after: int) -> Observe:
    """Stops a process once after so many releases, for :data:`PAUSE_SECONDS`."""
    waiting = [True]

    def observe(info: StudyInfo) -> None:
        if waiting and sum(item.phase == "released" for item in info.rounds) >= after:
            waiting.clear()
            process.signal(signal.SIGSTOP)
            timer = threading.Timer(PAUSE_SECONDS, process.signal, [signal.SIGCONT])
            timer.daemon = True
            timer.start()

    return observe
