"""A site with more records than a study's ``max_records`` finds it in its own log and metrics; no one else is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from veilsum_participant.telemetry.metrics import SiteMetrics

SCHEMA = schema_of(2).model_copy(update={"max_records": 10})


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("stated", "told"), [(0, True), (15, True), (60, False)])
def test_a_cut_sum_is_told_to_its_site_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, stated: int, *, told: bool
) -> None:
    bed = make_bed(tmp_path, make_data(rows=10) | make_data("a", rows=60))
    bed.know_noise()
    site = bed.sites["a"]
    offered = site.config.datasets[DATASET].model_copy(update={"most_records": stated})
    site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})
    for own in bed.sites.values():
        own.observer = SiteMetrics(own)
    key = bed.local.submit(bed.compile(make_request(SCHEMA)), bed.analyst)
    bed.local.prepare(key).sum("statistics")
    for name, own in bed.sites.items():
        counted = own.observer.registry.get_sample_value("veilsum_site_cut_sums_total")
        assert counted == float(told and name == "a")
    about = [record for record in caplog.records if "more records than the study's max_records of 10" in record.getMessage()]
    assert [record.levelname for record in about] == ["WARNING"] * told
    said = " ".join(record.getMessage() for record in about)
    assert not re.search(r"\b60\b", said), "how many there are is nobody's business"
