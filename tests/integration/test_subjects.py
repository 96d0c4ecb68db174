"""A study whose unit is the subject, from the site's file to the released sum: a person with many records counts once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.federation import DATASET, TestBed, make_bed, make_request, schema_of
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_privacy.study.study import Unit

PEOPLE, VISITS = 4, 5


def bed_with_people(directory: Path) -> TestBed:
    """Three sites; each person came five times, is at a bound in every number, and the visits stand apart in the file."""
    signs = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
    features = np.tile(signs, (VISITS, 1))
    labels = np.tile(np.arange(PEOPLE) % 2, VISITS)
    bed = make_bed(directory, dict.fromkeys("abc", (features, labels)), units=("record", "subject"))
    for site in bed.sites.values():
        path = site.config.datasets[DATASET].path
        np.savez(path, X=features, y=labels.astype(str), patient=np.tile([f"p{i}" for i in range(PEOPLE)], VISITS))
        datasets = {DATASET: DatasetConfig(path=path, subject="patient", most_records=PEOPLE * VISITS)}
        site.config = site.config.model_copy(update={"datasets": datasets})
    return bed


@pytest.mark.parametrize(("unit", "counted"), [("record", PEOPLE * VISITS), ("subject", PEOPLE)])
def test_a_person_counts_once_however_many_records(tmp_path: Path, unit: Unit, counted: int) -> None:
    bed = bed_with_people(tmp_path)
    local = bed.local
    request = make_request(schema_of(2), epsilon=None, unit=unit)
    person = {"person": "first"} if unit == "subject" else {}
    key = local.submit(bed.compile(request.model_copy(update={"parameters": person})), bed.analyst)
    values = local.prepare(key).sum("statistics").values
    np.testing.assert_allclose(values["records/table"], [3 * counted], rtol=1e-5)
    np.testing.assert_allclose(values["overview.numbers/sum"], [[3 * counted / 2] * 2], rtol=5e-3)
    np.testing.assert_allclose(values["classes/table"], [3 * counted / 2] * 2, rtol=1e-5)
    assert all(site.records(DATASET, schema_of(2)).subjects is not None for site in bed.sites.values())
