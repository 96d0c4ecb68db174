"""Alignment over the whole protocol, encryption on: sites keep their statistic, steps are secure sums, results apply."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.randomness import SeededRandom
from support.studies import SCHEMA, federation, shifted_sites
from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum.local.federation import LocalFederation, results_directory
from veilsum.local.sites import make_local
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.results.released_models import result_projection
from veilsum_node.identity import load_credentials
from veilsum_node.identity.kit import Kit
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result, load_result
from veilsum_privacy.study.encoder import Projection
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.base import Records

PARTICIPANTS = ("a", "b", "c")
NOW = 1_700_000_000


def clock() -> int:
    return NOW


@pytest.fixture
def protocol(tmp_path: Path) -> Any:
    """Simulated sites with their records, and the whole protocol between them."""
    sites = shifted_sites(60, sites=PARTICIPANTS)
    files = {}
    for name, own in sites.items():
        files[name] = tmp_path / f"{name}.npz"
        columns = {column.name: own.features[:, index] for index, column in enumerate(SCHEMA.columns)}
        np.savez(files[name], **columns, y=np.array(SCHEMA.classes)[own.labels])
    with ExitStack() as stack:
        kit, local = make_local(tmp_path / "federation", files, "clinic", clock, stack)
        yield kit, local, sites


def compiled(kit: Kit, method: str, parameters: Mapping[str, Any], encoder: Projection | None = None) -> Study:
    request = StudyRequest(
        name=f"{method}-trial",
        method=method,
        dataset="clinic",
        data=SCHEMA,
        parameters=dict(parameters),
        privacy=PrivacyRequest(noise="none"),
        encoder=encoder,
    )
    return draft_study(
        request,
        federation_id=kit.federation_id,
        coordinator="coordinator",
        participants=PARTICIPANTS,
        clock=clock,
        random=SeededRandom(method.encode()),
    ).compile()


def encrypted(kit: Kit, local: LocalFederation, study: Study, results: Path) -> Result:
    analyst = load_credentials(kit.analyst.identity, clock())
    local.run(study, analyst, results)
    return load_result(results_directory(results, study_digest(study.to_bytes())))


@pytest.mark.system
@pytest.mark.parametrize("reference", ["barycenter", pytest.param("two-way", marks=pytest.mark.system)])
def test_the_iterated_reference_is_the_plain_one_within_the_grid(protocol: Any, reference: str, tmp_path: Path) -> None:
    kit, local, sites = protocol
    study = compiled(kit, "slot-align", {"alignment": {"reference": reference, "mode": "iterated"}})
    result = encrypted(kit, local, study, tmp_path / "results")
    plain = get_method("slot-align").run(federation(study, sites))
    assert set(result.arrays) == set(plain.arrays)
    assert result.summary["iterations"] == plain.summary["iterations"]
    assert result.summary["converged"]
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(result.arrays[name], array, rtol=0, atol=1e-9)


@pytest.mark.system
def test_fedcgs_after_an_iterated_alignment_on_a_released_projection(protocol: Any, tmp_path: Path) -> None:
    kit, local, sites = protocol
    results = tmp_path / "results"
    components = encrypted(kit, local, compiled(kit, "pca", {"width": 4}), results)
    projection, arrays = result_projection(components)
    study = compiled(kit, "fedcgs", {"alignment": {"reference": "slopes", "mode": "iterated"}}, projection)
    result = encrypted(kit, local, study, results)
    own = federation(study, sites, encoder=arrays)
    plain = get_method("fedcgs").run(own)
    assert set(result.arrays) == set(plain.arrays)
    for name, array in plain.arrays.items():
        np.testing.assert_allclose(result.arrays[name], array, rtol=1e-9, atol=1e-9)
    model = Model.from_result(result)
    hits = [
        np.mean(
            model.predict(Records(part.features, part.present, None), site=name, kept=own.kept_blocks(name, "alignment"))
            == part.labels
        )
        for name, part in sites.items()
    ]
    assert np.mean(hits) > 0.8
