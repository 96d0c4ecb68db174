"""Judges a federation whose plan was played: results, ledgers, privacy spent, reasons, and what its processes left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from chaos.federation import Federation, verification_arguments
from chaos.ledgers import Account, check_ledgers
from chaos.leftovers import left_files, left_processes, open_modes
from chaos.oracle import Noise, check_study
from chaos.plans import COORDINATOR
from chaos.playing import Player, Trial
from chaos.reasons import BUDGET, LOG_FAULTS, name_of

SETTLE_SECONDS = 60.0

_COMMANDS = """
import json, sys
from veilsum_deploy.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"veilsum {' '.join(arguments)} ended with status {ended.code}")
"""
"""Runs commands of the product one after the other, as an operator would; in one process, which saves starting each."""


@dataclass
class Verdict:
    """What a federation's studies came to.

    Attributes:
        ends: how many studies ended how; failed ones by the name of their reason.
        hits: strikes that were carried out, by what they were.
        releases: sums that were released.
        noise: of the releases.
        accounts: of the sites, by name.
        faults: what is wrong, with the study's seed where it is one study's.
    """

    ends: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    releases: int = 0
    noise: Noise = field(default_factory=Noise)
    accounts: dict[str, Account] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def judge(player: Player) -> Verdict:
    """Judge a federation that is up and healed; ends its processes."""
    federation, verdict = player.federation, Verdict()
    verdict.hits["kill at the first start"] = player.starting
    phases = {trial.key: trial.status.phase if trial.status else "unknown" for trial in player.trials}
    for trial in player.trials:
        end, faults = _judge_trial(federation, trial, verdict)
        verdict.ends[end] += 1
        verdict.faults += [f"study {trial.plan.seed} ({trial.plan.method}): {fault}" for fault in faults]
        verdict.hits.update(_kinds(trial))
    verdict.accounts, faults = _settled(federation, phases)
    statuses = federation.stop()
    verdict.faults += faults
    verdict.faults += [f"{name} ended with status {status} when asked to" for name, status in statuses.items() if status]
    verdict.faults += [fault for party in federation.parties.values() for fault in party.faults]
    verdict.faults += [f"process left: {text}" for text in left_processes(federation.folder)]
    verdict.faults += [f"file left: {name}" for name in left_files(federation.folder, federation.before)]
    verdict.faults += [f"shared memory left: {path}" for path in federation.memory if Path(path).exists()]
    verdict.faults += open_modes(federation.folder)
    verdict.faults += _bad_lines(federation)
    verdict.faults += verify(federation)
    return verdict


def _judge_trial(federation: Federation, trial: Trial, verdict: Verdict) -> tuple[str, list[str]]:
    status = trial.status
    if trial.hung or status is None:
        where = "" if status is None else f" ({status.phase})"
        return "hangs", [f"is not over {trial.seconds:.0f} s after its submission{where}"]
    try:
        released, own, faults = check_study(
            federation, trial.key, status.phase, status.reason, len(status.enrolled), verdict.noise
        )
    except Exception as error:  # noqa: BLE001 - a fault of what was read is one of the study
        return "broken", [f"cannot be read: {type(error).__name__}: {error}"]
    verdict.releases += released
    if status.phase == "finished":
        return "finished", faults
    if status.phase == "aborted":
        return "aborted by its analyst", faults + ([] if trial.aborted else [f"is aborted: {status.reason}"])
    if own:
        return "failed: the method's own reason", faults
    if federation.plan.budget is not None and BUDGET.fullmatch(status.reason):
        return "failed: budget", faults
    name = name_of(status.reason)
    if name is None:
        return "failed otherwise", [*faults, f"failed: {status.reason}"]
    if not federation.done:
        faults.append(f"failed undisturbed: {status.reason}")
    return f"failed: {name}", faults


def _kinds(trial: Trial) -> list[str]:
    """What struck it: ways and victims, in classes."""
    found = []
    for hit in trial.hit:
        way, rest = hit.split(": ", 1)[1].split(" ", 1)
        victims = rest.split(" at ")[0].split(", ")
        sites = [name for name in victims if name != COORDINATOR]
        if len(victims) > 2:
            whom = "all at once"
        elif len(victims) == 2:
            whom = "two at once"
        else:
            whom = "site" if sites else "coordinator"
        found.append(f"{way} {whom}")
    return found


def _settled(federation: Federation, phases: dict[bytes, str]) -> tuple[dict[str, Account], list[str]]:
    """The accounts, once every site has heard what there is to hear."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        federation.mind()
        over = all(federation.over_at(name, key) for name in federation.plan.names for key in phases)
        accounts, faults = check_ledgers(federation, phases)
        if (over and not faults) or time.monotonic() > end:
            late = [] if over else ["a site did not hear of a study's end"]
            return accounts, faults + late
        time.sleep(0.5)


def _bad_lines(federation: Federation) -> list[str]:
    found = []
    for name, party in federation.parties.items():
        lines = party.log.read_text(errors="replace").splitlines() if party.log.exists() else []
        found += [f"{name}'s log: {line}" for line in lines if LOG_FAULTS.search(line)]
    return found


def verify(federation: Federation) -> list[str]:
    """Let the product's own commands verify every ledger against everyone else's: exports, mirror and all."""
    folder = federation.folder / "exports"
    folder.mkdir()
    places = {name: str(federation.state(name)) for name in federation.plan.names}
    places[COORDINATOR] = str(federation.journal)
    exports = {name: folder / f"{name}.jsonl" for name in places}
    commands = [["ledger", "export", places[name], "--out", str(path)] for name, path in exports.items()]
    commands += [verification_arguments(federation, exports, name) for name in exports]
    command = [sys.executable, "-c", _COMMANDS, json.dumps(commands)]
    done = subprocess.run(command, env={**os.environ, **federation.environment}, capture_output=True, text=True)
    faults = [] if done.returncode == 0 else [f"a command failed: {done.stdout}{done.stderr}".strip()]
    return faults + [f"file left by a command: {path}" for path in (federation.folder / "tmp").iterdir()]
