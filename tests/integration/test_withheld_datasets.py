"""A site that would rather not take part with records that match nothing decides so by its own schema, before any study."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.federation import DATASET, make_request
from support.hostile import Adversary, make_adversary
from veilsum_node.errors import DataError, RefusalCode
from veilsum_node.process.check import CheckOutcome
from veilsum_participant.checks import SiteCheck
from veilsum_participant.checks.datasets import dataset as check_of
from veilsum_participant.data import check_dataset
from veilsum_participant.data.quality import count_cells, count_lines, most_unmatched
from veilsum_participant.data.sources import opened
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import origin
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema

OWN = """
[[columns]]
name = "x0"
kind = "number"
low = -1
high = 1

[[columns]]
name = "sex"
kind = "category"
categories = ["f", "m"]
"""
ASKED = DatasetSchema(columns=(NumberColumn(name="x0", low=-1, high=1),), max_records=100)
SECRET = "MRN5279348"


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    return make_adversary(tmp_path)


def offer(attack: Adversary, cells: list[str], most: float) -> Any:
    """Let the site offer so many records, and start; ``x0`` is always in order."""
    site, place = attack.bed.sites["a"], attack.bed.directory("a")
    (place / "own.toml").write_text(OWN)
    (place / "records.csv").write_text("x0,sex\n" + "".join(f"0.5,{cell}\n" for cell in cells))
    offered = DatasetConfig(
        path=place / "records.csv", columns=("x0", "sex"), schema_file=place / "own.toml", most_unmatched=most
    )
    site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})
    site.hold_against_schemas()
    return site


def answer(attack: Adversary) -> tuple[str, Any]:
    attack.use(attack.bed.compile(make_request(ASKED, min_cohort=2)))
    said = attack.enrol("a")
    return said.call, said.values[1] if said.call == "refuse" else None


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("cells", "most", "withheld"),
    [
        (["f", "m", "F", ""], 0.34, False),  # one of the three that hold something
        (["f", "m", "F", ""], 0.33, True),
        (["f"] * 9 + [SECRET], 0.09, True),
        (["f"] * 9 + [SECRET], 0.1, False),
        (["", "?"], 0.0, False),  # "?" is this schema's text for a missing value
        ([], 0.0, False),
        (["x"], 0.99, True),
    ],
)
def test_a_dataset_is_withheld_by_the_sites_own_schema(
    attack: Adversary, caplog: pytest.LogCaptureFixture, cells: list[str], most: float, withheld: bool
) -> None:
    """Though the study asks for another column, in which every cell is in order."""
    site = offer(attack, cells, most)
    call, code = answer(attack)
    assert (call == "refuse") == withheld
    assert code == ((RefusalCode.DATASET,) if withheld else None)
    gauge = SiteMetrics(site).registry.get_sample_value
    assert gauge("veilsum_dataset_withheld", {"dataset": DATASET}) == withheld
    share = gauge("veilsum_dataset_unmatched_ratio", {"dataset": DATASET})
    assert share == pytest.approx(np.ceil(100 * site.unmatched[DATASET]) / 100)
    entries = "\n".join(json.dumps(dict(entry.detail)) for entry in site.ledger.entries())
    assert SECRET not in caplog.text + entries


@pytest.mark.parametrize(("most", "withheld"), [(0.5, False), (0.49, True)])
def test_rows_that_are_not_used_count_as_cells_that_match_nothing(attack: Adversary, most: float, *, withheld: bool) -> None:
    """A mark too many in every other line took half of the records away, and the site part."""
    site = offer(attack, ["f", "m,", 'f"', '"f'], most)
    assert site.unmatched == {DATASET: 0.75}  # of the letter with a quotation mark, too
    site = offer(attack, ["f", "m,", "m", '"f'], most)
    assert site.unmatched == {DATASET: 0.5}
    assert site.withheld(DATASET) == withheld


def test_lines_that_no_query_sees_are_told_and_counted(tmp_path: Path) -> None:
    """Of its tables that are text; the records that a query yields are all in order."""
    (tmp_path / "own.toml").write_text(OWN)
    (tmp_path / "visits.csv").write_text("who,x0\n" + "1,0.5\n" * 6 + "2,0.5,\n" * 3 + '3,"0.5\n')
    (tmp_path / "persons.ndjson").write_text('{"who": 1, "sex": "f"}\n' * 2 + '{"who": 1, "who": 2, "sex": "f"}\n{]\n')
    files = {name: tmp_path / file for name, file in (("visits", "visits.csv"), ("persons", "persons.ndjson"))}
    text = "SELECT x0, json->>'$.sex' AS sex FROM visits JOIN persons ON json->>'$.who' = who"
    offered = DatasetConfig(source="sql", query=text, files=files, joined=False)
    query = origin(offered, "d")
    assert [(table, *counts) for table, _, *counts in count_lines(query)] == [("visits", 6, 4, 0), ("persons", 3, 1, 1)]
    own = load_schema(tmp_path / "own.toml")
    assert most_unmatched(query, own, subject=None, header=True) == 0.4
    shown = [item for item in check_of("d", offered, own) if item.detail.startswith("table ")]
    assert [item.status for item in shown] == [CheckOutcome.WARNING] * 3
    assert shown[0].detail == "table 'visits': 6 records; 4 lines left out, being none"
    assert shown[1].detail == "table 'persons': 1 JSON value with a key twice, of which the first counts"


def test_what_studies_ask_for_decides_nothing(attack: Adversary) -> None:
    """Records change while the process runs: it goes on by what it saw at its start, whatever a study names."""
    site = offer(attack, ["f", "m"], 0.5)
    (attack.bed.directory("a") / "records.csv").write_text("x0,sex\n0.5,x\n0.5,y\n")
    assert answer(attack)[0] != "refuse"
    site.hold_against_schemas()
    assert answer(attack) == ("refuse", (RefusalCode.DATASET,))


def test_check_says_that_it_would_be_withheld(attack: Adversary) -> None:
    site = offer(attack, ["f", "m", "F", "F", "\x1b[31mred"], 0.5)
    config = site.config

    def told(**shown: bool) -> str:
        own = {DATASET: DatasetSchema.model_validate({"columns": ASKED.columns + SEX, "max_records": 100})}
        found = SiteCheck(config, lambda: 0, schemas=own, **shown).run()
        own_lines = [item for item in found if item.check == f"dataset {DATASET}"]
        return "\n".join(f"{item.status.value} {item.detail} {item.advice}" for item in own_lines)

    assert "failed 60.00% of the cells of column 'sex' match nothing, most_unmatched is 50.00%: it would be withheld" in told()
    assert "`--texts` shows the most frequent" in told()
    assert "31m" not in told()
    shown = told(show_texts=True)
    assert 'match nothing: "F" 2, "�[31mred" 1' in shown
    assert "\x1b" not in shown


SEX = (CategoryColumn(name="sex", categories=("f", "m")),)


def test_a_site_does_not_start_on_a_dataset_that_cannot_be_read(attack: Adversary) -> None:
    site = offer(attack, ["f"], 0.5)
    (attack.bed.directory("a") / "records.csv").unlink()
    with pytest.raises(DataError, match="there is no such file"):
        site.hold_against_schemas()


NUMBERS = st.one_of(st.none(), st.sampled_from(["0", "1.5", "-3", "x", "nan", "", "?", "2,5", "inf"]))
TEXTS = st.one_of(st.none(), st.sampled_from(["f", "m", "F", "", "?", "1", "nan"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cells=st.lists(st.tuples(NUMBERS, TEXTS, TEXTS), max_size=20), rows=st.integers(1, 7))
def test_cells_are_counted_one_by_one(tmp_path: Path, cells: list[tuple[str | None, ...]], rows: int) -> None:
    """By a plain reading of each; in parts as at once, and as ``check`` counts them."""
    schema = DatasetSchema(
        columns=(NumberColumn(name="n", low=-1, high=1), *SEX),
        label=LabelColumn(column="y", classes=(ClassValues(name="f", values=("f",)), ClassValues(name="m", values=("m",)))),
        max_records=100,
    )
    columns = {name: pa.array([row[place] for row in cells], pa.string()) for place, name in enumerate(("n", "sex", "y"))}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")

    def number(text: str) -> str:
        if text in ("x", "2,5", "inf"):
            return "unmatched"
        return "inside" if -1 <= float(text) <= 1 else "outside"

    def kinds(place: int, judge: Callable[[str], str]) -> list[str]:
        gone = (None, "", "?", "nan")
        return ["missing" if row[place] in gone else judge(str(row[place])) for row in cells]

    judged = {"n": kinds(0, number), "sex": kinds(1, sex), "y": kinds(2, sex)}
    with opened(tmp_path / "t.parquet", schema) as tables:
        found = count_cells(tables.read(rows), schema)
    for one in found:
        want = judged[one.column]
        assert (one.read, one.missing) == (len(cells), want.count("missing"))
        assert (one.outside, one.unmatched) == (want.count("outside"), want.count("unmatched"))
        assert sum(one.texts.values()) == one.unmatched
    assert [*check_dataset(tmp_path / "t.parquet", schema).cells] == found
    shares = [one.share for one in found]
    assert most_unmatched(tmp_path / "t.parquet", schema, subject=None, header=True) == max(shares)


def sex(text: str) -> str:
    return "inside" if text in ("f", "m") else "unmatched"
