"""What the demo found, as plain values: accuracy, epsilon from the ledgers, bytes, and what the coordinator saw.

Baselines without privacy are computed here, in one place, from data that the federation never shares: for comparison only.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from veilsum_coordinator.parts.federation import read_release
from veilsum_coordinator.storage.releases import read_releases
from veilsum_deploy.demo.directory import BUDGET, DELTA
from veilsum_deploy.demo.hospitals import Hospitals
from veilsum_deploy.demo.run import Finished, Trial, spending
from veilsum_deploy.evaluation import accuracy, exact_head, pool, result_head
from veilsum_node.database import open_database
from veilsum_node.identity.kit import Kit
from veilsum_participant.data import load_records
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records


def findings(trial: Trial, directory: Path, seconds: float) -> dict[str, Any]:
    """All findings; the keys are those of ``veilsum demo --json``."""
    spent = spending(trial.kit, trial.hospitals)
    return {
        "data": trial.hospitals.source,
        "accuracy": _accuracies(trial, directory),
        "epsilon": {
            name: {
                "spent": fields["spent"],
                "estimate": fields["estimate"],
                "left": fields["left"],
                "budget": BUDGET,
                "releases": fields["releases"],
                "entries_verified": fields["entries"],
            }
            for name, fields in spent.items()
        },
        "delta": DELTA,
        "bytes_sent": trial.bytes_sent,
        **_bytes_per_value(next(iter(trial.trained.values()))),
        "classes": trial.statistics.result.summary["classes"],
        "releases": released(trial.kit, trial.finished),
        "proofs": {done.study.name: done.proof.to_json() for done in trial.finished},
        "dropout": _dropout(trial, directory),
        "ledgers": {party.name: str(party.directory / "participant.db") for party in trial.kit.participants},
        "dossiers": trial.dossiers,
        "directory": str(directory),
        "seconds": round(seconds, 1),
    }


def _accuracies(trial: Trial, directory: Path) -> dict[str, Any]:
    schema, test = trial.hospitals.held_out.schema, held_out_records(trial.hospitals, directory)
    alone, pooled = accuracies_in_the_clear(trial.hospitals, directory)
    trained = trial.trained.items()
    federated = {f"{epsilon:g}": round(accuracy(result_head(done.result), test, schema), 4) for epsilon, done in trained}
    return {"held_out": len(test), "alone": alone, "federated": federated, "pooled": pooled}


def held_out_records(hospitals: Hospitals, directory: Path) -> Records:
    """All hospitals' records to test on."""
    return load_records(hospitals.held_out.write(directory / "held-out", "records"), hospitals.held_out.schema)[0]


def accuracies_in_the_clear(hospitals: Hospitals, directory: Path) -> tuple[dict[str, float], float]:
    """Linear discriminants on records in the clear: each site alone, and all in one place; for comparison only."""
    schema, test = hospitals.held_out.schema, held_out_records(hospitals, directory)
    own = {
        site: load_records(next((directory / "participants" / site / "data").iterdir()), schema)[0] for site in hospitals.sites
    }
    alone = {site: round(accuracy(exact_head(records, schema), test, schema), 4) for site, records in own.items()}
    return alone, round(accuracy(exact_head(pool(list(own.values())), schema), test, schema), 4)


def _bytes_per_value(done: Finished) -> dict[str, Any]:
    """Bytes of one hospital's contribution for one value in a study's last sum."""
    declared, round_info = done.study.tasks[-1], done.info.rounds[-1]
    task = AgreedStudy(done.study).task(declared.label)
    plan = task.plan(len(done.info.enrolled), len(round_info.cohort)).encoding
    each = round_info.bytes_received / len(round_info.cohort)
    return {"values": plan.size, "bytes_per_value": round(each / plan.size, 1)}


def released(kit: Kit, finished: Sequence[Finished]) -> list[dict[str, Any]]:
    """Every released sum in the coordinator's journal: all that it ever learned of the records."""
    rows = []
    with open_database(kit.coordinator.directory / "state" / "coordinator.db") as database:
        for done in finished:
            for row in read_releases(database, done.key):
                cohort = tuple(json.loads(row["cohort"]))
                plan = AgreedStudy(done.study).task(row["label"]).plan(len(done.info.enrolled), len(cohort))
                values = np.frombuffer(row["values"], dtype="<i8").astype(np.int64)
                release = read_release(plan.task, values, row["round"], cohort, row["digest"])
                rows.append(
                    {
                        "study": done.study.name,
                        "method": done.study.method,
                        "epsilon": done.study.privacy.epsilon,
                        "label": release.label,
                        "cohort": list(cohort),
                        "values": len(values),
                        "noise_std": {name: round(std, 4) for name, std in release.noise_std.items()},
                    }
                )
    return rows


def _dropout(trial: Trial, directory: Path) -> dict[str, Any] | None:
    if trial.kill is None or trial.survived is None:
        return None
    last = trial.survived.info.rounds[-1]
    test = load_records(next((directory / "held-out").iterdir()), trial.hospitals.held_out.schema)[0]
    head = result_head(trial.survived.result)
    return {
        "killed": trial.victim,
        "killed_while": trial.kill.phase,
        "cohort": list(last.cohort),
        "attempts": last.attempts,
        "phase": trial.survived.info.phase,
        "accuracy": round(accuracy(head, test, trial.hospitals.held_out.schema), 4),
        "sent_by": trial.kill.sender,
        "sent": trial.kill.contribution.hex(),
    }
