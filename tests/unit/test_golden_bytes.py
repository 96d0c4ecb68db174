"""What is signed or agreed on keeps its bytes: studies, contexts, receipts, assignments, broadcasts, mechanisms.

``tests/data/golden.json`` was written by version 0.1 of the protocol's second version; its contexts and one receipt are of
version 6. A change here parts old sites from new ones: it needs a new version of what changed, never a new golden file alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.ledgers import any_receipt, make_reservation
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.ledger.receipts import Countersignature
from veilsum_privacy.securesum.context import Assignment, context_digest, encode_broadcast
from veilsum_privacy.securesum.roster import Enrolment, Roster
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden.json").read_text(encoding="utf-8"))


def roster_of(study: Study) -> Roster:
    """Members whose keys are made up from their names; nothing here verifies them."""
    members = [
        SimpleNamespace(
            name=name,
            identity=SimpleNamespace(fingerprint=hashlib.sha256(name.encode()).hexdigest()),
            public=hashlib.sha256(b"public" + name.encode()).digest(),
            enrolment=Enrolment(b"", name.encode(), b""),
        )
        for name in study.participants
    ]
    return Roster(tuple(members), hashlib.sha256(b"roster").digest())  # type: ignore[arg-type]


def agreed(study: Study) -> dict[str, Any]:
    """Digests of everything that sites agree on for each task, in hexadecimal."""
    roster, known, found = roster_of(study), AgreedStudy(study), {}
    for number, task in enumerate(study.tasks, start=1):
        plan = known.task(task.label).plan(len(roster.members), len(roster.members))
        cohort = tuple((name, hashlib.sha256(name.encode()).digest()[:16]) for name in roster.names)
        assignment = Assignment(number, number, task.label, cohort, hashlib.sha256(b"broadcast").digest(), 1_800_000_000)
        found[task.label] = {
            "assignment": hashlib.sha256(assignment.to_bytes()).hexdigest(),
            "context": context_digest(plan, roster, assignment).hex(),
            "kept": plan.task.kept_origin(assignment.broadcast).hex(),
            "mechanism": hashlib.sha256(canonical(Mechanism.of(plan.declaration, plan.noise).to_json())).hexdigest(),
        }
    return {"digest": known.digest.hex(), "tasks": found}


def signed() -> dict[str, str]:
    """Digests of what members and the coordinator sign, and of what travels, in hexadecimal."""
    receipt = any_receipt()
    of_coordinator = Countersignature(bytes(32), "hub", 1, 2, bytes(range(32)), bytes(32), 7, bytes(32))
    arrays = {"model.0": np.arange(6, dtype=np.float64).reshape(2, 3) / 7, "empty": np.empty((0, 3))}
    bodies = {
        "receipt": receipt.to_bytes(),
        "receipt of protocols 1 to 5": any_receipt(version=1).to_bytes(),
        "countersignature": of_coordinator.to_bytes(),
        "broadcast": encode_broadcast(arrays),
        "reservation": canonical(make_reservation().mechanism.to_json()),
    }
    return {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()}


@pytest.mark.parametrize("name", GOLDEN["studies"])
def test_studies_and_what_follows_from_them(name: str) -> None:
    data = GOLDEN["studies"][name]["study"].encode()
    study = parse_study(data)
    assert study.to_bytes() == data
    assert agreed(study) == GOLDEN["studies"][name]["agreed"]


@pytest.mark.parametrize("name", GOLDEN["former"])
def test_studies_of_former_tasks_are_read_and_name_the_version_that_computes_them(name: str) -> None:
    """As ledgers, stores and proofs hold them: bytes, digest and price stand."""
    data = GOLDEN["former"][name]["study"].encode()
    study = parse_study(data)
    known = AgreedStudy(study)
    assert (study.to_bytes(), known.digest.hex()) == (data, GOLDEN["former"][name]["digest"])
    booked = math.inf if study.privacy.noise == "none" else study.privacy.epsilon
    assert study_epsilon(study, study.privacy.delta) == booked
    with pytest.raises(HostileInput, match="removed after version") as caught:
        _ = known.tasks
    assert "Verify its results with that version" in caught.value.advice


def test_what_is_signed_and_sent() -> None:
    assert signed() == GOLDEN["signed"]
