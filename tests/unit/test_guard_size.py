"""What has to be believed for a guarantee is counted: the modules that a part brings with it, and their lines."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib

import pytest

from support.imports import closure, import_graph, lines
from support.pages import ROOT
from veilsum_participant.session.launcher import ROLES
from veilsum_participant.session.serving import MODULE

sys.path.insert(0, str(ROOT))
import reached

SAYS_ROWS = "veilsum_privacy.mechanism.rows.symbols"
"""By which tasks say rows, before there is a record; what evaluates graphs does not import it."""

GATE = ("veilsum_privacy.accounting.accountant", "veilsum_privacy.ledger.gate")


def kernel() -> frozenset[str]:
    """The mechanism with its evaluator of graphs, the gate of the accounting, and the ledger that is written."""
    mechanism = [module for module in import_graph().modules if module.startswith("veilsum_privacy.mechanism")]
    return closure([*(module for module in mechanism if module != SAYS_ROWS), *GATE])


def total(modules: frozenset[str], *parts: str) -> int:
    """Lines of those modules that lie in one of these packages."""
    return sum(lines(module) for module in modules if any(f"{module}.".startswith(f"{part}.") for part in parts))


def test_the_kernel_stays_small_and_says_no_row() -> None:
    """Its own lines, the study's declarations, and what every process is, counted apart; docs/guard.md states them."""
    found = kernel()
    assert SAYS_ROWS not in found
    own = total(
        found, "veilsum_privacy.mechanism", "veilsum_privacy.accounting", "veilsum_privacy.ledger", "veilsum_aggregation"
    )
    assert 5000 < own <= 6000
    assert total(found, "veilsum_privacy.study") <= 1100
    assert total(found, "veilsum_node") <= 2650
    assert total(found, "veilsum_privacy", "veilsum_aggregation", "veilsum_node") == sum(map(lines, found))


@pytest.mark.parametrize(
    ("root", "most"), [("veilsum_privacy.securesum.agreed", 2600), ("veilsum_privacy.securesum.context", 4870)]
)
def test_what_masks_rest_on_knows_no_task(root: str, most: int) -> None:
    found = closure([root])
    assert not [module for module in found if module.startswith(("veilsum_privacy.tasks", "veilsum_privacy.training"))]
    assert 1000 < sum(map(lines, found)) <= most


LOADED = """
import json, sys
import veilsum_participant.session.__main__, veilsum_participant.session.client, veilsum_participant.session.launcher
files = [module.__file__ for name, module in [*sys.modules.items()] if name.startswith("veilsum_")]
print(json.dumps([sum(len(open(file).read().splitlines()) for file in files if file), sorted(sys.modules)]))
"""


def test_what_shares_a_process_with_the_signing_key_is_counted_and_grows_no_more() -> None:
    """All that a guard has loaded when it starts, `node` with it; test_guard_modules.py looks at a real one."""
    done = subprocess.run([sys.executable, "-P", "-c", LOADED], capture_output=True, text=True, check=True)
    total_lines, modules = json.loads(done.stdout)
    strangers = (
        "typer",
        "rich",
        "torch",
        "opacus",
        "grpc",
        "google.protobuf",
        "pyarrow",
        "pandas",
        "scipy",
        "prometheus_client",
        "tenseal",
        "duckdb",
        "PIL",
        "pydicom",
        "nibabel",
        "sentencepiece",
    )
    assert [name for name in strangers if name in modules] == []
    assert [
        name
        for name in modules
        if f"{name}.".startswith(("veilsum_participant.data.", "veilsum_participant.front.", "veilsum_privacy.tasks."))
    ] == []
    needed_by_some = (
        "veilsum_aggregation.moment_maps",
        "veilsum_node.addresses",
        "veilsum_node.database_places",
        "veilsum_node.process.imports",
        "veilsum_node.process.system_calls",
        "veilsum_node.telemetry.log_floods",
        "veilsum_node.telemetry.log_writing",
        "veilsum_node.transport.route",
        "veilsum_node.transport.route_settings",
        "veilsum_participant.boundary.compiler",
        "veilsum_participant.boundary.maps",
        "veilsum_participant.datasets",
        "veilsum_participant.protocol.approval",
        "veilsum_participant.protocol.contributions",
        "veilsum_participant.protocol.decisions",
        "veilsum_participant.protocol.endorsement",
        "veilsum_participant.protocol.following",
        "veilsum_participant.protocol.membership",
        "veilsum_participant.protocol.openings",
        "veilsum_participant.protocol.policy",
        "veilsum_participant.protocol.recovery",
        "veilsum_participant.session.hooks",
        "veilsum_participant.session.supervisor",
        "veilsum_participant.session.whole",
        "veilsum_participant.settings.config",
        "veilsum_participant.settings.dataset_config",
        "veilsum_participant.settings.encoder_files",
        "veilsum_participant.settings.query",
        "veilsum_participant.settings.telling",
        "veilsum_participant.studies",
        "veilsum_participant.worker.compiled",
        "veilsum_participant.worker.compiling",
        "veilsum_participant.worker.elsewhere",
        "veilsum_participant.worker.remote",
        "veilsum_participant.worker.verifying",
        "veilsum_privacy.accounting.domination",
        "veilsum_privacy.accounting.renyi",
        "veilsum_privacy.computation.contribution",
        "veilsum_privacy.computation.declared",
        "veilsum_privacy.ledger.checks",
        "veilsum_privacy.ledger.comparison",
        "veilsum_privacy.ledger.kept_receipts",
        "veilsum_privacy.ledger.keys",
        "veilsum_privacy.ledger.receipts",
        "veilsum_privacy.ledger.rules",
        "veilsum_privacy.ledger.summary",
        "veilsum_privacy.ledger.triggers",
        "veilsum_privacy.ledger.verification",
        "veilsum_privacy.ledger.walking",
        "veilsum_privacy.mechanism.noise",
        "veilsum_privacy.mechanism.records",
        "veilsum_privacy.mechanism.rows",
        "veilsum_privacy.results",
        "veilsum_privacy.securesum.context",
        "veilsum_privacy.securesum.roster",
        "veilsum_privacy.securesum.seal_files",
        "veilsum_privacy.study.codes",
        "veilsum_privacy.study.study",
    )
    assert [name for name in needed_by_some if name in modules] == []
    assert 9_000 < total_lines <= 9_763


def test_every_process_of_a_site_is_in_the_participants_distribution() -> None:
    """Modules that are started by their names, of which packages have a main."""
    settings = tomllib.loads((ROOT / "participant" / "pyproject.toml").read_text())
    stated = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    listed = reached.closure(stated["roots"])
    for module in (MODULE, *ROLES.values()):
        assert module in listed
        assert f"{module}.__main__" in listed or not (ROOT / "participant" / module.replace(".", "/")).is_dir(), module
