"""What a real site has loaded once studies have ended: its guard no tasks, networks, readers of data or network, and each
process beside the guard nothing that it is not for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.durable import NAMES, WIDTH
from support.durable_studies import STUDIES
from support.federation import make_data
from support.network import wait_for
from support.processes import Process, Processes
from support.victims import unconfinable
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.settings import Waits, load_coordinator_config

GUARD, BESIDE = "a", "b"
"""Sites in processes: the one tells what its guard had loaded, the other what each process imports."""
WAITS = Waits(enrol=400, seal=200, contribute=400, consent=200, check=200, grace=120)

STRANGERS = (
    "torch", "typer", "rich", "opacus", "grpc", "google.protobuf", "pandas", "duckdb", "PIL", "pydicom", "nibabel",
    "uvicorn", "starlette", "prometheus_client",
    "veilsum_node.config", "veilsum_node.overrides", "veilsum_node.transport.dialling", "veilsum_participant.settings.roles",
    "veilsum_participant.telemetry.metrics", "veilsum_privacy.accounting.figures", "veilsum_privacy.accounting.estimate",
    "veilsum_privacy.results.proof_files", "veilsum_privacy.results.whole_sums", "veilsum_privacy.securesum.opening",
    "veilsum_node.telemetry.listener", "veilsum_node.telemetry.endpoint", "veilsum_node.web",
    "veilsum_node.telemetry.log_floods", "veilsum_node.telemetry.log_writing", "veilsum_node.process.imports",
    "veilsum_node.transport.route", "veilsum_participant.session.supervisor",
    "veilsum_privacy.tasks", "veilsum_privacy.audit", "veilsum_privacy.results.former", "veilsum_privacy.results.proof_check",
    "veilsum_participant.data", "veilsum_participant.front", "veilsum_participant.cli",
    "veilsum_participant.protocol.decisions", "veilsum_participant.protocol.endorsement", "veilsum_participant.settings.query",
    "veilsum_participant.session.hooks", "veilsum_privacy.ledger.summary", "veilsum_privacy.ledger.comparison",
    "veilsum_node.database_places", "veilsum_node.process.system_calls", "veilsum_participant.session.whole",
    "veilsum_privacy.computation.said_terms", "veilsum_participant.settings.config",
    "veilsum_participant.settings.dataset_config",
    "veilsum_participant.settings.telling", "veilsum_participant.worker.verifying", "veilsum_privacy.ledger.keys",
    "veilsum_privacy.ledger.rules", "veilsum_privacy.ledger.verification", "veilsum_privacy.ledger.walking",
    "veilsum_privacy.accounting.renyi",
    "veilsum_privacy.backup.commands", "veilsum_privacy.dossier", "veilsum_node.process.console", "veilsum_coordinator",
)  # fmt: skip
"""What does not belong beside keys and ledger."""

OF_NODE = 2_735
"""Lines of node, beside ours."""


HELD = (
    "veilsum_privacy.ledger.", "veilsum_privacy.backup.", "veilsum_node.database.", "veilsum_node.state_lock.",
    "veilsum_participant.site.", "veilsum_participant.store.", "veilsum_participant.protocol.", "veilsum_participant.session.",
    "tenseal.", "veilsum_coordinator.",
)  # fmt: skip
"""What only a guard has: ledger, store, keys' use and the protocol."""

NETWORK = (
    "grpc.", "google.protobuf.", "veilsum_participant.front.", "veilsum_node.transport.channel.",
    "veilsum_node.transport.connection.", "veilsum_node.transport.dialling.", "veilsum_node.transport.greeting.",
    "veilsum_node.transport.handshake.", "veilsum_node.transport.route.",
)  # fmt: skip

NEIGHBOURS = {
    "front": (
        *HELD, "numpy.", "torch.", "sqlalchemy.", "veilsum_privacy.", "veilsum_aggregation.", "veilsum_participant.data.",
        "veilsum_participant.worker.", "veilsum_participant.settings.",
    ),
    "reader": (*HELD, *NETWORK, "torch.", "veilsum_privacy.securesum.", "veilsum_privacy.tasks.", "veilsum_privacy.training."),
    "compiler": (*HELD, *NETWORK, "sqlalchemy.", "duckdb.", "veilsum_participant.data.", "veilsum_participant.settings."),
    "maps": (*HELD, *NETWORK, "sqlalchemy.", "duckdb."),
}  # fmt: skip
"""What each process beside the guard never loads."""

SEEN = ("veilsum_participant.boundary.",)
"""What all of them load."""


class Watched(Processes):
    """A federation of which two sites run in processes and are watched."""

    def __init__(self, place: Path) -> None:
        data, whose = make_data(NAMES, 24, WIDTH), {"isolation": "processes", "isolated": (GUARD, BESIDE)}
        disclosures = ("joint", "per-site")
        super().__init__(place, data, waits=WAITS, budget=(None, 1e-5), max_peer_streams=16, disclosures=disclosures, **whose)
        results = load_coordinator_config(self.kit.coordinator.directory / "coordinator.toml").state / "results"
        results.mkdir(parents=True)
        (self.kit.directory / "results").symlink_to(results)  # where a study of an evaluation puts the model that it names

    @property
    def told(self) -> Path:
        return self.directory(GUARD) / "loaded.json"

    def launch(self, role: str, directory: Path) -> Process:
        if directory == self.directory(GUARD):
            arguments = ["support.loaded", str(self.told)]
        elif directory == self.directory(BESIDE):
            watched = {*SEEN, *(name for names in NEIGHBOURS.values() for name in names)}
            arguments = ["support.importing", json.dumps(sorted(watched))]
        else:
            return super().launch(role, directory)
        command = ["-P", "-m", *arguments, str(directory / f"{role}.toml")]
        return Process(command, directory / "log", {"PYTHONPATH": str(Path(__file__).parents[1])})


def end_studies(network: Processes, names: list[str]) -> None:
    """Have these studies run to their ends."""
    network.heal()
    for name in names:
        network.forget_cohorts()
        key = network.submit(STUDIES[name](network))  # type: ignore[arg-type]
        status = network.await_end(key)
        assert status.phase == "finished", f"{name}: {status.reason}"


def lines(modules: dict[str, str], *, node: bool) -> int:
    """Lines of ours."""
    own = {name: file for name, file in modules.items() if name.startswith("veilsum_") and file.endswith(".py")}
    return sum(
        len(Path(file).read_text().splitlines()) for name, file in own.items() if name.startswith("veilsum_node") == node
    )


@pytest.mark.parametrize(
    ("names", "most", "roles"),
    [
        pytest.param(["statistics", "fedsgd"], 21_040, {"front", "reader", "compiler"}, id="a few"),
        pytest.param(list(STUDIES), 21_770, set(NEIGHBOURS), id="every way of every method", marks=pytest.mark.system),
    ],
)
def test_no_process_of_a_site_loads_what_it_is_not_for_and_the_guard_no_more_than_so_much(
    tmp_path: Path, names: list[str], most: int, roles: set[str]
) -> None:
    if reason := unconfinable():
        pytest.skip(reason)
    assert len(names) == 2 or set(METHODS) <= set(names)
    network = Watched(tmp_path)
    try:
        end_studies(network, names)
        network.participants[GUARD].terminate()
        wait_for(network.told.exists, "what the guard had loaded")
    finally:
        network.stop()
    modules: dict[str, str] = json.loads(network.told.read_text())
    assert [name for name in modules if f"{name}.".startswith(tuple(f"{stranger}." for stranger in STRANGERS))] == []
    assert most - 500 < lines(modules, node=False) <= most
    assert lines(modules, node=True) <= OF_NODE
    told = re.findall(r" (\w+): imports ([\w.]+);", (network.directory(BESIDE) / "log").read_text())
    assert {role for role, name in told if f"{name}.".startswith(SEEN)} >= roles
    strangers = {(role, name) for role, name in told if f"{name}.".startswith(NEIGHBOURS.get(role, ()))}
    assert not strangers, sorted(strangers)
