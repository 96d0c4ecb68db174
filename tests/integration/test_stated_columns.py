"""A file's first record is nobody's business: no answer, no log line and no entry of the ledger depends on it."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from support.federation import DATASET, make_request
from support.hostile import Adversary, make_adversary
from veilsum_node.errors import DataError, RefusalCode
from veilsum_node.process.check import CheckOutcome
from veilsum_participant.checks.datasets import dataset as check
from veilsum_participant.data import check_structure, load_records
from veilsum_participant.data.formats import CHECK_FORMAT
from veilsum_participant.data.reader import Found
from veilsum_participant.data.sources import reader_of
from veilsum_participant.data.table import check_found
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn

MRN = "MRN5279348"
FIRST = [f"37,{MRN},f", "41,MRN0000001,m", "age,sex,ill", "f,f,f", '37,"open', "", f"{MRN}", f"sex,{MRN},age", "AGE, Sex ,ill"]
"""What a file's first line may be; the third is a header."""
GUESSES = [("37", MRN, "f"), (MRN,), ("37",), ("age",), ("age", "sex", "ill"), ("f",), ("ill", MRN)]


def schema_of(names: tuple[str, ...]) -> DatasetSchema:
    return DatasetSchema(columns=tuple(NumberColumn(name=name, low=0, high=100) for name in names), max_records=100)


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    return make_adversary(tmp_path)


def csv(place: Path, **more: Any) -> DatasetConfig:
    return DatasetConfig(path=place / "records.csv", **more)


def query(place: Path, **more: Any) -> DatasetConfig:
    return DatasetConfig(source="sql", query="SELECT * FROM t", files={"t": place / "records.csv"}, joined=False, **more)


def offer(attack: Adversary, offered: DatasetConfig) -> None:
    site = attack.bed.sites["a"]
    site.config = site.config.model_copy(update={"datasets": {DATASET: offered}})


def put(attack: Adversary, line: str, *rows: str) -> None:
    (attack.bed.directory("a") / "records.csv").write_text("\n".join([line, *rows, "50,60,1", ""]))


def answer(attack: Adversary, names: tuple[str, ...]) -> list[Any]:
    """All that a site says to a study of these columns."""
    attack.use(attack.bed.compile(make_request(schema_of(names), min_cohort=2)))
    said = attack.enrol("a")
    return [said.call, said.values[1] if said.call == "refuse" else None]


def ledger_of(attack: Adversary) -> str:
    return "\n".join(json.dumps(dict(entry.detail)) for entry in attack.bed.sites["a"].ledger.entries())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", [csv, query])
@pytest.mark.parametrize("stated", [(), ("age", "sex", "ill")])
def test_no_answer_depends_on_a_first_record(
    attack: Adversary, caplog: pytest.LogCaptureFixture, form: Callable[..., DatasetConfig], stated: tuple[str, ...]
) -> None:
    """The analyst guesses at names; the site says the same whatever record stands first."""
    caplog.set_level(logging.DEBUG)
    offer(attack, form(attack.bed.directory("a"), columns=stated))
    for names in GUESSES:
        answers = []
        caplog.clear()
        for line in FIRST:
            put(attack, line)
            answers.append(answer(attack, names))
        records = [answers[place] for place, line in enumerate(FIRST) if line != "age,sex,ill"]
        assert all(said == ["refuse", (RefusalCode.DATASET,)] for said in records), names
        fits = bool(stated) and set(names) <= set(stated)
        assert (answers[FIRST.index("age,sex,ill")][0] == "enrol") == fits, names
        assert "MRN0000001" not in caplog.text
        assert MRN in names or MRN not in caplog.text  # a study's own names are told
        assert caplog.text.count("refused") >= len(records)
    assert "MRN0000001" not in ledger_of(attack)


def test_a_name_that_is_not_stated_is_refused_without_a_look_at_the_data(attack: Adversary) -> None:
    """The same words with the file, without it, and with another."""
    words = []
    offer(attack, csv(attack.bed.directory("a"), columns=("age",)))
    for line in (*FIRST, None):
        path = attack.bed.directory("a") / "records.csv"
        path.unlink(missing_ok=True)
        if line is not None:
            put(attack, line)
        assert answer(attack, ("age", "stay")) == ["refuse", (RefusalCode.DATASET,)]
        entries = [entry for entry in attack.bed.sites["a"].ledger.entries() if "reasons" in str(entry.detail) or entry.detail]
        words.append(str(dict(entries[-1].detail)))
    told = {text.partition("'study'")[0] for text in words}
    assert len(told) == 1
    assert "stay" in words[0]


@pytest.mark.parametrize("unread", ["sex", "ill"])
def test_all_that_is_stated_is_there_for_every_study_or_for_none(attack: Adversary, unread: str) -> None:
    """Else a record with a cell of the name of one column would let studies of that column pass."""
    offer(attack, csv(attack.bed.directory("a"), columns=("age", "sex", "ill")))
    put(attack, ",".join(name for name in ("age", "sex", "ill") if name != unread))
    assert answer(attack, ("age",)) == ["refuse", (RefusalCode.DATASET,)]
    put(attack, "note,ill,age,sex")
    assert answer(attack, ("age",))[0] == "enrol"


def test_a_file_without_a_header_needs_no_names_and_its_order_is_the_sites(attack: Adversary) -> None:
    order = ("age", "who", "ill")
    schema = schema_of(("age", "ill")).model_copy(update={"header": False, "order": order})
    for stated, enrols in (((), True), (order, True), (("who", "age", "ill"), False), (("age", "ill"), False)):
        offer(attack, csv(attack.bed.directory("a"), header=False, columns=stated))
        for line in FIRST:
            put(attack, line)
            attack.use(attack.bed.compile(make_request(schema, min_cohort=2)))
            assert (attack.enrol("a").call == "enrol") is enrols, (stated, line)


def test_keys_of_an_ndjson_record_are_no_columns(tmp_path: Path) -> None:
    """Whatever keys a first record has, the query's columns are its own."""
    path = tmp_path / "records.ndjson"
    asked = SourceQuery("records", "SELECT try_cast(json->>'$.age' AS DOUBLE) AS age FROM t", files={"t": path})
    for first in ({MRN: 1}, {"age": 3}, {"stay": {MRN: 2}}):
        path.write_text(json.dumps(first) + "\n")
        assert reader_of(asked).columns() == ["age"]
        check_structure(asked, schema_of(("age",)))
        with pytest.raises(DataError) as caught:
            check_structure(asked, schema_of((MRN,)))
        assert "0 of the 1 column wanted" in str(caught.value)


@pytest.mark.sampled(13)
@pytest.mark.parametrize("line", [line for line in FIRST if line != "age,sex,ill"])
@pytest.mark.parametrize(
    "text",
    [
        "SELECT age, ill FROM t", "SELECT * FROM t JOIN t AS o USING (age)", "SELECT * FROM t", None,
        "SELECT t.*, count(*) FROM t", "SELECT CAST(t AS INTEGER) FROM t", "SELECT t + 1 FROM t", "SELECT t > 3 FROM t",
    ],
)  # fmt: skip
def test_no_message_holds_a_first_records_cell(tmp_path: Path, line: str, text: str | None) -> None:
    """Neither of a file nor of a query, neither to the log nor to the check; unless its owner asks to see it."""
    path = tmp_path / "records.csv"
    path.write_text(f"{line}\n50,60,1\n")
    source = path if text is None else SourceQuery("records", text, files={"t": path})
    schema, messages = schema_of(("age", "sex", "ill")), []
    for ask in (
        lambda: check_structure(source, schema, header=True),
        lambda: check_structure(source, schema, columns=("age", "stay")),
        lambda: load_records(source, schema),
    ):
        with pytest.raises(DataError) as caught:
            ask()
        messages.append(f"{caught.value}")
    config = csv(tmp_path) if text is None else query(tmp_path).model_copy(update={"query": text})
    for known in (None, schema):
        for stated in ((), ("age", "ill")):
            try:
                found = list(check("records", config.model_copy(update={"columns": stated}), known))
                messages += [f"{item.detail} {item.advice}" for item in found]
            except DataError as error:
                messages.append(str(error))
    for cell in {cell.strip(' "') for cell in line.split(",")} - {"age", "sex", "ill", "f", "m", ""}:
        assert not [message for message in messages if cell in message.replace(str(tmp_path), "")], cell


@pytest.mark.parametrize("cell", ["D'Angelo Maria", "m", 's"" x', "1976", "54", "GRO"])
def test_a_cell_that_looks_like_a_part_of_the_query_is_not_told(tmp_path: Path, cell: str) -> None:
    """A quotation mark of its own, letters that some word has, or a value that the query compares with."""
    path = tmp_path / "records.csv"
    path.write_text(f'"{cell}",sex,age\n50,60,1\n')
    text = "SELECT t.*, count(*) FROM t WHERE t.age <> '1976' GROUP BY t.age"
    with pytest.raises(DataError, match="Binder Error: column …") as caught:
        check_structure(SourceQuery("records", text, files={"t": path}), schema_of(("age",)))
    assert "must appear" not in str(caught.value)


def test_an_owner_sees_the_columns_on_asking(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text(f"37,{MRN},f\n")
    shown = list(check("records", csv(tmp_path), None, show=True))
    assert shown[0].detail == f'columns = ["37", "{MRN}", "f"]'
    assert [MRN in item.detail + item.advice for item in shown[1:]] == [False] * (len(shown) - 1)
    refused = [item.status for item in shown if "every study is refused" in item.detail]
    assert refused == [CheckOutcome.FAILED]  # a participant that answers nobody is not a healthy one


def test_a_first_line_is_counted_by_the_schemas_columns(tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text(f"37,{MRN},f\n")
    with pytest.raises(
        DataError, match="its first line names 0 of the 3 columns wanted: columns 'age', 'sex' and 'ill' are missing"
    ):
        check_structure(tmp_path / "records.csv", schema_of(("age", "sex", "ill")))
    (tmp_path / "records.csv").write_text("Age,sex,ill\n")
    with pytest.raises(DataError, match=r"names 2 of the 3 columns wanted.*capitals, accents and spaces in 'age'"):
        check_structure(tmp_path / "records.csv", schema_of(("age", "sex", "ill")))


def test_fields_of_a_structure_are_not_told(tmp_path: Path) -> None:
    """They may be keys of records, as where JSON was written as Parquet."""
    kinds = [pa.struct({MRN: pa.int64()}), pa.list_(pa.struct({MRN: pa.int64()})), pa.map_(pa.string(), pa.int64())]
    for kind, number in zip(kinds, itertools.count()):
        path = tmp_path / f"{number}.parquet"
        parquet.write_table(pa.table({"age": pa.array([None], kind)}), path)
        for subject in (None, "age"):
            with pytest.raises(DataError) as caught:
                check_structure(path, schema_of(("age",)), subject=subject)
            assert MRN not in str(caught.value)
    assert CHECK_FORMAT
    with pytest.raises(DataError, match="holds struct"):
        check_found("x", [Found("x", "x has", pa.schema({"age": kinds[0]}))], schema_of(("age",)), None)
