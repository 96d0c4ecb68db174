"""Codes of thousands of kinds, rolled up into groups: against the official chapters, and against a plain reading."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

import veilsum
from support.studies import agreed, drafted
from support.tables import told, totals
from veilsum.compile import StudyRequest, load_study_request
from veilsum_coordinator.parts.alignment import application
from veilsum_node.config import validate
from veilsum_node.errors import ConfigurationError, DataError
from veilsum_node.process.check import CheckOutcome
from veilsum_participant.applying.recipe import parse_recipe
from veilsum_participant.checks.datasets import dataset
from veilsum_participant.data import FindingKind, check_dataset, check_structure, load_records
from veilsum_participant.data.stream import stream_records
from veilsum_participant.drafting.dictionary import draft_dictionary
from veilsum_participant.drafting.records import LEAST, draft_records
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.codes import SYSTEMS, TABLES, Groups
from veilsum_privacy.study.schema import CategoryColumn, CodeColumn, DatasetSchema
from veilsum_privacy.study.schema_file import load_schema

# First and last categories of the chapters, as each publisher lists them.
WHO = """
A00-B99 C00-D48 D50-D89 E00-E90 F00-F99 G00-G99 H00-H59 H60-H95 I00-I99 J00-J99 K00-K93 L00-L99 M00-M99 N00-N99 O00-O99
P00-P96 Q00-Q99 R00-R99 S00-T98 V01-Y98 Z00-Z99 U00-U99"""
GERMAN = """
A00-B99 C00-D48 D50-D90 E00-E90 F00-F99 G00-G99 H00-H59 H60-H95 I00-I99 J00-J99 K00-K93 L00-L99 M00-M99 N00-N99 O00-O99
P00-P96 Q00-Q99 R00-R99 S00-T98 V01-Y84 Z00-Z99 U00-U99"""
AMERICAN = """
A00-B99 C00-D49 D50-D89 E00-E89 F01-F99 G00-G99 H00-H59 H60-H95 I00-I99 J00-J99 K00-K95 L00-L99 M00-M99 N00-N99 O00-O9A
P00-P96 Q00-QA0 R00-R99 S00-T88 V00-Y99 Z00-Z99 U00-U85"""
LETTERED = {"C4A": 2, "C7A": 2, "C7B": 2, "D3A": 2, "I1A": 9, "J4A": 10, "M1A": 13, "O9A": 15, "QA0": 17, "Z3A": 21}
NINE = """
001-139 140-239 240-279 280-289 290-319 320-389 390-459 460-519 520-579 580-629 630-679 680-709 710-739 740-759 760-779
780-799 800-999 E000-E999 V01-V91"""


def numbered(code: str) -> tuple[str, int]:
    return code[0], int(code[1:])


def official(chapters: str) -> dict[str, int]:
    """The chapter, from 1, of every category of a letter and two digits that is within an official range."""
    found = {}
    for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ":
        for number in range(100):
            for chapter, chunk in enumerate(chapters.split(), 1):
                first, last = chunk.split("-")
                last = {"O9A": "O99", "QA0": "Q99"}.get(last, last)
                if numbered(first) <= (letter, number) <= numbered(last):
                    found[f"{letter}{number:02}"] = chapter
    return found


def column(**keys: Any) -> CodeColumn:
    found = validate({"columns": [{"kind": "codes", "name": "dx", **keys}]}, DatasetSchema, source="schema").columns[0]
    assert isinstance(found, CodeColumn)
    return found


@pytest.mark.parametrize("chapters", [WHO, GERMAN, AMERICAN], ids=["WHO", "GM", "CM"])
def test_every_category_of_every_variant_is_of_its_official_chapter(chapters: str) -> None:
    dx = column(groups="icd-10-chapters", other="other")
    assert len(dx.categories) == 23
    categories = official(chapters)
    assert len(categories) > 2000
    categories |= LETTERED if chapters is AMERICAN else {}
    for code, chapter in categories.items():
        for text in (
            code,
            code.lower(),
            f"{code}.9",
            f"{code}9",
            f" {code}.90 ",
            f"{code}.-",
            f"{code}\u2020",
            f"{code}.1*",
            f"{code}1XA",
        ):
            assert dx.place(text) == chapter - 1, text
    roman = [name.split()[0] for name in dx.categories[:-1]]
    values = {"I": 1, "V": 5, "X": 10, " ": 0}
    pairs = [list(zip(text, f"{text[1:]} ", strict=True)) for text in roman]
    assert [sum(-values[a] if values[a] < values[b] else values[a] for a, b in own) for own in pairs] == [*range(1, 23)]


def test_every_category_of_icd_9_and_every_main_group_of_atc() -> None:
    nine = column(groups="icd-9-cm-chapters")
    for chapter, chunk in enumerate(NINE.split()):
        first, last = chunk.split("-")
        letter = first[0] if first[0].isalpha() else ""
        for number in range(int(first.lstrip("EV")), int(last.lstrip("EV")) + 1):
            code = f"{letter}{number:0{len(first) - len(letter)}}"
            assert nine.place(code) == nine.place(f"{code}.1") == nine.place(f"{code}1") == chapter, code
    assert [nine.place(text) for text in ("42", "42.1", "0421.1", "E11.9", "4019999")] == [-1] * 5
    assert nine.place("042") == nine.place("0421") == 0
    atc = column(groups="atc-main-groups")
    assert [name[0] for name in atc.categories] == list("ABCDGHJLMNPRSV")
    assert {text: atc.place(text) for text in ("C10AA05", "c10aa", "C", "C1", "Aspirin", "A", "X01")} == {
        "C10AA05": 2, "c10aa": 2, "C": 2, "C1": -1, "Aspirin": -1, "A": 0, "X01": -1
    }  # fmt: skip


NO_CODES = [
    "", " ", "diabetes", "Cancer", "CAT", "E1", "11.9", "E1.19", "E11.9;I10", "E11.9, I10", "E11.9/I10", "E11 9", "E11.9 G",
    "\u0415119", "\u017f11", "\u013111", "E11\x009", "E11.9" * 20, "=E11", "-", "...", "\u2020",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_CODES)
def test_what_is_no_code_is_of_no_group(text: str) -> None:
    assert column(groups="icd-10-chapters", other="other").place(text) == -1


def plain(code: str, groups: dict[str, list[str]]) -> str | None:
    """The group of a code as the documentation says it: every prefix from the longest on, codes before ranges."""
    code = re.sub(r"[.]", "", code.upper())
    for length in range(len(code), 0, -1):
        for ranged in (False, True):
            for name, items in groups.items():
                for item in items:
                    ends = [part.replace(".", "").upper() for part in item.split("..")]
                    if (len(ends) == 2) != ranged or len(ends[0]) != length:
                        continue
                    part = code[:length]
                    digits = all(
                        p.isdigit() for p, a, b in zip(part, ends[0], ends[-1], strict=True) if a.isdigit() and b.isdigit()
                    )
                    if (ends[0] == part) if not ranged else (ends[0] <= part <= ends[1] and digits):
                        return name
    return None


CODE = st.from_regex(r"\A[A-C][0-2]{1,2}(\.[0-2]{1,2})?\Z")


@given(st.data())
def test_groups_against_a_plain_reading(data: st.DataObject) -> None:
    names = ["a", "b", "c"]
    groups: dict[str, list[str]] = {name: [] for name in names}
    for code in data.draw(st.lists(CODE, min_size=1, max_size=8)):
        groups[data.draw(st.sampled_from(names))].append(code)
    for _ in range(data.draw(st.integers(0, 4))):
        low, high = sorted(data.draw(st.tuples(*2 * (st.from_regex(r"\A[A-C][0-2]\Z"),))))
        groups[data.draw(st.sampled_from(names))].append(f"{low}..{high}")
    try:
        made = Groups(SYSTEMS["any"], groups.items())
    except ValueError:
        return
    for code in data.draw(st.lists(CODE, min_size=1, max_size=20)):
        found = made.find(str(SYSTEMS["any"].normal(code)))
        assert (names[found] if found >= 0 else None) == plain(code, groups), code


def test_a_prefix_and_the_rest() -> None:
    dx = column(prefix=3, categories=["E11", "I10"], other="rest")
    assert dx.categories == ("E11", "I10", "rest")
    assert [dx.place(text) for text in ("E11.9", "e119", "I10", "I1", "I11", "E1.19", "?", "a b")] == [
        0,
        0,
        1,
        2,
        2,
        0,
        -1,
        -1,
    ]
    assert [column(prefix=1, categories=["A", "B"]).place(text) for text in ("A01", "b", "C")] == [0, 1, -1]
    assert column(prefix=1, categories=["rest", "A"], other="rest").place("C1") == 0


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"kind": "category", "categories": [str(n) for n in range(257)]}, 'has 257 categories, .* kind = "codes"'),
    ({}, "state either `groups`"),
    ({"prefix": 3}, "state as categories the prefixes that count"),
    ({"prefix": 3, "categories": ["E11", "I1"]}, "'I1' is not a prefix of 3"),
    ({"prefix": 3, "categories": ["E11", "E11"]}, "stands twice"),
    ({"prefix": 3, "categories": ["E11", "e11"]}, "two groups"),
    ({"prefix": 3, "categories": ["E11", "I10"], "groups": "icd-10-chapters"}, "leave `categories` out"),
    ({"prefix": 3, "categories": [f"A{number:02}" for number in range(100)] + [f"B{number:02}" for number in range(100)]
      + [f"C{number:02}" for number in range(56)], "other": "x"}, "257 categories"),
    ({"groups": "icd-10"}, "there are icd-10-chapters"),
    ({"groups": "icd-10-chapters", "system": "atc"}, "is of codes of icd-10"),
    ({"groups": "icd-10-chapters", "other": "II neoplasms"}, "stands twice"),
    ({"groups": "icd-10-chapters", "impute": "nothing"}, "impute"),
    ({"groups": [{"name": "a", "codes": ["E11"]}]}, "state `other`"),
    ({"groups": [{"name": "a", "codes": ["E11"]}, {"name": "a", "codes": ["E12"]}], "other": "x"}, "stands twice"),
    ({"groups": [{"name": "a", "codes": ["E11"]}, {"name": "b", "codes": ["e11"]}]}, "'e11' stands in two groups, 'a'"),
    ({"groups": [{"name": "a", "codes": ["E10..E14"]}, {"name": "b", "codes": ["E14..E20"]}]}, "meets E10..E14"),
    ({"groups": [{"name": "a", "codes": ["E10-E14"]}, {"name": "b", "codes": ["I10"]}]}, "write a range as E10..E14"),
    ({"groups": [{"name": "a", "codes": ["001-139"]}, {"name": "b", "codes": ["I10"]}]}, "write a range as 001..139"),
    ({"groups": [{"name": "a", "codes": ["E14..E10"]}, {"name": "b", "codes": ["I10"]}]}, "is not a range"),
    ({"groups": [{"name": "a", "codes": ["E10..I9"]}, {"name": "b", "codes": ["I10"]}]}, "is not a range"),
    ({"groups": [{"name": "a", "codes": ["E10.."]}, {"name": "b", "codes": ["I10"]}]}, "'E10..' is not a code"),
    ({"groups": [{"name": "a", "codes": ["diabetes mellitus"]}, {"name": "b", "codes": ["I10"]}]}, "is not a code"),
    ({"groups": [{"name": "a", "codes": ["Diab"]}, {"name": "b", "codes": ["11"]}], "system": "icd-10"}, "'11' is not a code"),
    ({"groups": [{"name": str(n), "codes": [str(n)]} for n in range(256)], "other": "x"}, "makes 257 categories"),
    ({"groups": {"file": "groups.csv"}}, "a file of groups is named in a schema's file"),
    ({"groups": [{"name": "a", "codes": []}, {"name": "b", "codes": ["I10"]}]}, "at least 1 item"),
    ({"groups": [{"name": "a", "codes": [str(n) for n in range(60001)]}, {"name": "b", "codes": ["A"]}]}, "60,002 codes"),
    ({"groups": 5}, "groups"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "told"), REFUSED)
def test_what_is_no_roll_up_is_refused_in_words_that_say_what_to_do(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        column(**keys)


def test_loinc_and_procedure_codes_keep_their_hyphens() -> None:
    groups = [{"name": "hba1c", "codes": ["4548-4", "1-8"]}, {"name": "bowel", "codes": ["5-45..5-46"]}]
    dx = column(groups=groups, other="other")
    assert [dx.place(text) for text in ("4548-4", "45484", "1-8", "5", "5-455.01", "5-47", "E11-I10")] == [
        0,
        2,
        0,
        2,
        1,
        2,
        -1,
    ]


TEXTS = ["E11.9", "e119", "I10", "042", "", "?", "NA", "nan", None, "999", "E11.9;I10", "free text", "Z99.9", "C34.1", "J44.0"]
SCHEMA = DatasetSchema.model_validate(
    {
        "columns": [
            {"kind": "codes", "name": "dx", "groups": "icd-10-chapters"},
            {"kind": "codes", "name": "ill", "of": "dx", "prefix": 3, "categories": ["E11", "I10"], "other": "rest"},
            {"kind": "codes", "name": "filled", "of": "dx", "groups": "icd-10-chapters", "other": "o", "impute": "o"},
        ],
        "missing": ["", "?", "NA", "nan", "999"],
    }
)
WANT = [
    ("IV", "E11", "IV"), ("IV", "E11", "IV"), ("IX", "I10", "IX"), (None, "rest", "o"), *[(None, None, "o")] * 8,
    ("XXI", "rest", "XXI"), ("II", "rest", "II"), ("X", "rest", "X"),
]  # fmt: skip


def read(schema: DatasetSchema, features: np.ndarray, present: np.ndarray) -> list[tuple[str | None, ...]]:
    found = []
    for row, known in zip(features, present, strict=True):
        cells = []
        for own, at in schema.places():
            assert isinstance(own, CategoryColumn)
            assert row[at].sum() == float(known[at].all()) == float(known[at].any()), "one category, or none"
            cells.append(own.categories[int(row[at].argmax())].split()[0] if known[at].all() else None)
        found.append(tuple(cells))
    return found


@pytest.mark.parametrize("form", ["csv", "parquet", "dictionary", "bytes", "npz", "sql"])
def test_all_sources_give_the_same_groups(tmp_path: Path, form: str) -> None:
    path: Any = tmp_path / f"data.{'csv' if form in ('csv', 'sql') else 'npz' if form == 'npz' else 'parquet'}"
    if form in ("csv", "sql"):
        path.write_text("dx\n" + "".join(f'"{text or ""}"\n' for text in TEXTS))
        path = SourceQuery("records", "SELECT dx FROM records", files={"records": path}) if form == "sql" else path
    elif form == "npz":
        np.savez(path, dx=np.array([text or "" for text in TEXTS]))
    else:
        made = pa.array(TEXTS, pa.string())
        made = made.dictionary_encode() if form == "dictionary" else made.cast(pa.binary()) if form == "bytes" else made
        parquet.write_table(pa.table({"dx": made}), path)
    check_structure(path, SCHEMA)
    records, counts = load_records(path, SCHEMA)
    assert read(SCHEMA, records.features, records.present) == WANT
    parts = list(stream_records(path, SCHEMA, None, rows=4))
    assert (np.concatenate([part.features for part in parts]) == records.features).all()
    assert told(counts, "missing") == {"dx": 6, "ill": 6, "filled": 6}
    assert told(counts, "unmatched") == {"dx": 3, "ill": 2, "filled": 3}  # "042" is not a code of ICD-10, but some code
    report = check_dataset(path, SCHEMA)
    assert totals(report)["ill"] == {FindingKind.OTHER_CODE: 4, FindingKind.UNKNOWN_CATEGORY: 2, FindingKind.MISSING: 6}
    assert totals(report)["dx"] == {FindingKind.UNKNOWN_CATEGORY: 3, FindingKind.MISSING: 6}
    assert not any(text in str(item) for item in report.findings for text in ("042", "free text"))


@pytest.mark.parametrize("stored", [pa.int64(), pa.float64(), pa.decimal128(30, 2), pa.bool_()])
def test_codes_that_are_stored_as_numbers_are_refused_by_their_type(tmp_path: Path, stored: pa.DataType) -> None:
    path = tmp_path / "data.parquet"
    parquet.write_table(pa.table({"dx": pa.array([1, 0], pa.int64()).cast(stored)}), path)
    with pytest.raises(DataError, match=f"'dx' holds {str(stored).split('(')[0]}.*no zero is lost"):
        check_structure(path, SCHEMA)
    parquet.write_table(pa.table({"dx": pa.nulls(2)}), path)
    check_structure(path, SCHEMA)
    assert not load_records(path, SCHEMA)[0].present[:, :22].any()
    np.savez(tmp_path / "data.npz", dx=np.array([42, 250]))
    with pytest.raises(DataError, match="Store texts"):
        check_structure(tmp_path / "data.npz", SCHEMA)


@given(
    st.lists(st.text(st.characters(exclude_characters='"\r\n\x00', codec="utf-8"), max_size=8), max_size=8), st.integers(0, 8)
)
def test_a_cell_counts_the_same_whatever_stands_beside_it(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], place: int
) -> None:
    path = tmp_path_factory.mktemp("codes") / "data.csv"
    texts = [*texts[:place], "E11.9", *texts[place:]]
    path.write_text("dx,x\n" + "".join(f'"{text}",1\n' for text in texts), "utf-8", newline="")
    records, _ = load_records(path, SCHEMA)
    assert read(SCHEMA, records.features[[min(place, len(texts) - 1)]], records.present[[min(place, len(texts) - 1)]]) == [
        WANT[0]
    ]


def test_a_study_carries_every_group_and_its_bytes_give_it_back(tmp_path: Path) -> None:
    groups = '\ufeffcode, Group\nE10..E14,diabetes\n"I50",heart failure\nO24,diabetes\n'
    (tmp_path / "groups.csv").write_text(groups, "utf-8")
    digest = hashlib.sha256(groups.encode()).hexdigest()
    column = 'kind = "codes"\nname = "dx"\nother = "other"\ngroups = { file = "groups.csv", sha256 = "%s" }\n'
    (tmp_path / "schema.toml").write_text(f"[[columns]]\n{column % digest}")
    head = 'name = "s"\nmethod = "statistics"\ndataset = "d"\n'
    (tmp_path / "study.toml").write_text(f'{head}schema = "schema.toml"\nprivacy = {{ epsilon = 1 }}\n')
    inline = f"{head}privacy = {{ epsilon = 1 }}\n[[data.columns]]\n{column % digest.upper()}"
    (tmp_path / "inline.toml").write_text(inline)
    requests = [load_study_request(tmp_path / name) for name in ("study.toml", "inline.toml")]
    assert requests[0].data == requests[1].data
    assert requests[0].data is not None
    dx = requests[0].data.columns[0]
    assert isinstance(dx, CodeColumn)
    assert dx.categories == ("diabetes", "heart failure", "other")
    assert [dx.place(text) for text in ("E11.9", "O24.4", "I50", "J44")] == [0, 0, 1, 2]
    dumped = requests[0].data.model_dump(mode="json")
    assert json.loads(json.dumps(dumped)) == DatasetSchema.model_validate(dumped).model_dump(mode="json")
    assert agreed(requests[0]).data == requests[0].data
    (tmp_path / "groups.csv").write_text(groups + "J44,copd\n", "utf-8")
    with pytest.raises(ConfigurationError, match=r"its SHA-256 is .* the schema states"):
        load_schema(tmp_path / "schema.toml")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "does not exist"), (b"", "is empty"), (b"a,b\nE11,x\n", "first line"), (b"code,group\nE11\n", "record 2"),
        (b"code,group\nE11,\n", "record 2"), (b"code,group\nE\xff11,x\n", "not CSV in UTF-8"),
        (b"code,group\n,x\n", "record 2"),
        (b'code,group\nE11,"a\nI50,b\n', "not CSV"), (b'code,group\nE11,"a\nI50,b\nJ44,"\n', "record 2"),
        (b"code,group\n" + b"E11,x\n" * 60_001, "more than 60,000"), (b"code,group\nE11,a\nE11,b\n", "two groups"),
        (b"code,group\n" + b"".join(b"%d,g%d\n" % (n, n) for n in range(300)), "makes 300 categories"),
        (b"code,group\n" + b"x" * (1 << 24), "larger than 16,777,216 bytes"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_of_groups_is_refused_by_name(tmp_path: Path, content: bytes | None, told: str) -> None:
    (tmp_path / "schema.toml").write_text('[[columns]]\nkind = "codes"\nname = "dx"\ngroups = { file = "groups.csv" }\n')
    if content is not None:
        (tmp_path / "groups.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=told):
        load_schema(tmp_path / "schema.toml")


def test_a_study_that_is_too_long_is_not_submitted() -> None:
    codes = [f"{letter}{number:05}" for letter in "ABCDEF" for number in range(9_000)]
    long = [{"name": "a", "codes": [code + "0" * 20 for code in codes]}, {"name": "b", "codes": ["Z"]}]
    schema = {"columns": [{"kind": "codes", "name": "dx", "groups": long}]}
    request = validate({"name": "s", "method": "statistics", "dataset": "d", "privacy": {"epsilon": 1}, "data": schema},
                       StudyRequest, source="study")  # fmt: skip
    with pytest.raises(ConfigurationError, match="of 1,048,576 at most"):
        drafted(request).compile()


def patients(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    codes = [f"{code}.{digit}" for code in official(WHO) for digit in range(4)]
    frame = pd.DataFrame(
        {
            "hospital": rng.choice(["a", "b", "c"], count),
            "age": rng.uniform(20, 90, count),
            "dx": rng.choice([*codes, "unknown", ""], count),
            "died": rng.integers(0, 2, count).astype(str),
        }
    )
    assert frame["dx"].nunique() > 256
    return frame


OFFERED: dict[str, Any] = {
    "max_records": 2000,
    "columns": [
        {"kind": "number", "name": "age", "low": 0, "high": 100},
        {"kind": "codes", "name": "chapter", "of": "dx", "groups": "icd-10-chapters"},
        {"kind": "codes", "name": "diabetes", "of": "dx", "system": "icd-10", "other": "no",
         "groups": [{"name": "yes", "codes": ["E10..E14"]}]},
    ],
    "label": {"column": "died", "classes": [{"name": "no", "values": ["0"]}, {"name": "yes", "values": ["1"]}]},
}  # fmt: skip


@pytest.mark.system
@pytest.mark.usefixtures("few_rehearsals")
def test_codes_are_planned_counted_and_learned_from_as_groups(tmp_path: Path) -> None:
    frame = patients(3000, 1)
    chapters = official(WHO)
    counts = Counter(chapters[text[:3]] for text in frame["dx"] if text[:3] in chapters)
    with veilsum.simulate(frame, OFFERED, site_column="hospital") as federation:
        exact = federation.dataset(noise="none")
        found = {row["chapter"]: round(row["count"]["value"]) for row in exact.count("chapter").run().rows()}
        assert found == {group.name: counts[place] for place, group in enumerate(TABLES["icd-10-chapters"][1], 1)}
        plan = federation.dataset(epsilon=3.0).count("chapter", by="diabetes").plan()
        assert "chapter" in str(plan)
        model = exact.train("fedcgs").run().model()
    assert list(model.feature_names_in_) == ["age", "dx"]
    scores = model.predict_proba(frame)
    same = frame.assign(dx=frame["dx"].str.lower().str.replace(".", ""))
    assert np.array_equal(model.predict_proba(same), scores, equal_nan=True)
    with pytest.raises(DataError, match="'dx' holds int64; codes are texts"):
        model.predict(frame.assign(dx=1))
    import onnxruntime  # starts a thread, which a fork would lose

    session = onnxruntime.InferenceSession(model.to_onnx(tmp_path / "model.onnx"))
    some = frame[frame["dx"].str.len() > 3].head(50)
    groups = [
        [name for column in model.released.schema.columns[1:] for name in [column.categories[column.place(text)]]]
        for text in some["dx"]
    ]
    inputs = {"numbers": some[["age"]].to_numpy(), "categories": np.array(groups, dtype=object)}
    _, probabilities, _ = session.run(None, inputs)
    assert probabilities == pytest.approx(model.predict_proba(some), abs=2e-4)


def test_a_released_models_columns_are_read_back() -> None:
    schema = validate(OFFERED, DatasetSchema, source="schema")
    result = Result("fedcgs", {}, {}, json.loads(json.dumps(application(schema))))
    assert parse_recipe(result)[0].schema.columns == schema.columns


@pytest.mark.parametrize("private", [False, True])
def test_a_draft_of_thousands_of_codes_proposes_a_roll_up(tmp_path: Path, private: bool) -> None:
    draw = random.Random(1)
    categories = list(official(WHO))
    drugs = [
        f"{letter}{number:02}{a}{b}{last:02}"
        for letter in "ABCDGHJLMNPRSV"
        for number in (1, 2, 3)
        for a in "AB"
        for b in "AB"
        for last in range(9)
    ]
    regions = [f"{number:05}" for number in range(1000, 9999, 7)]
    lines = ["person,dx,drug,region,note"]
    for number in range(6000):
        text = f"{draw.choice(categories)}.{draw.randrange(10)}"
        spelled = draw.choice([text, text.lower(), text.replace(".", "")])
        lines.append(f"P{number:06},{spelled},{draw.choice(drugs)},{draw.choice(regions)},free text {number}")
    path = tmp_path / "records.csv"
    path.write_text("\n".join([*lines, ""]))
    drafted = draft_records(path, private=private)
    by_name = {item.name: item for item in drafted.columns}
    assert set(drafted.left_out) == {"person", "note"}
    assert (by_name["dx"].groups, by_name["drug"].groups) == ("icd-10-chapters", "atc-main-groups")
    assert by_name["region"].kind == "codes"
    assert not drafted.open
    (tmp_path / "schema.toml").write_text(drafted.text())
    schema = load_schema(tmp_path / "schema.toml")
    records, counts = load_records(path, schema)
    assert records.present.all(), "every code has a category"
    assert not any(cells.unmatched for cells in counts.values())
    region = schema.columns[2]
    assert isinstance(region, CodeColumn)
    assert (region.prefix, len(region.categories)) == (3, 91)
    tally = Counter(line.split(",")[3][:3] for line in lines[1:])
    assert set(region.categories) - {"other"} == {text for text, count in tally.items() if count >= (LEAST if private else 2)}


def test_a_check_counts_what_is_no_code_and_what_is_of_no_group(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("dx\n" + "".join(f'"{text or ""}"\n' for text in TEXTS))
    offered = DatasetConfig(path=path, columns=("dx",))
    found = {item.detail.split(":")[0]: item for item in dataset("records", offered, SCHEMA)}
    told = re.sub(r" \(row [^;]*\);", ";", found["column 'ill'"].detail)
    assert told == (
        "column 'ill': code of no group: 4; it counts as 'rest'; unknown category: 2; expected a code; missing value: 6;"
        " the value contributes nothing"
    )
    assert found["column 'ill'"].status == CheckOutcome.WARNING
    path.write_text("dx\nE11.9\nJ44.0\n")
    assert {item.status for item in dataset("records", offered, SCHEMA)} == {CheckOutcome.OK}, "what was agreed on"


def test_a_dictionary_of_more_choices_than_a_column_has_categories(tmp_path: Path) -> None:
    codes = [f"{code}.{digit}" for code in list(official(WHO))[::20] for digit in range(4)]
    numbers = [str(number) for number in range(300)]
    lines = ["Variable / Field Name,Field Type,Field Label,Choices"]
    for name, choices in (("dx", codes), ("ward", numbers)):
        assert len(choices) > 256
        lines.append(f'{name},radio,{name},"{" | ".join(f"{choice}, Label" for choice in choices)}"')
    lines.append('sex,radio,Sex,"1, f | 2, m"')
    (tmp_path / "dictionary.csv").write_text("\n".join(lines))
    made = draft_dictionary(tmp_path / "dictionary.csv")
    assert [(item.name, item.kind, item.groups) for item in made.columns] == [
        ("dx", "codes", "icd-10-chapters"),
        ("sex", "category", ""),
    ]
    assert made.left_out == {"ward": 'more than 256 categories: group them, kind = "codes"'}
    (tmp_path / "schema.toml").write_text(made.text())
    assert load_schema(tmp_path / "schema.toml").columns[0].width == 23
