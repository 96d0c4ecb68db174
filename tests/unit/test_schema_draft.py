"""Drafts of schemas: by the command, of dictionaries and of records, and refused until a person has set what is open."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.commands import shown, veilsum
from veilsum_node.errors import ConfigurationError, DataError
from veilsum_participant.cli.schema import GIVES_AWAY
from veilsum_participant.drafting.dictionary import draft_dictionary
from veilsum_participant.drafting.records import LEAST
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, DateColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema

REDCAP = (
    '"Variable / Field Name","Form Name","Section Header","Field Type","Field Label",'
    '"Choices, Calculations, OR Slider Labels","Field Note",'
    '"Text Validation Type OR Show Slider Number","Text Validation Min","Text Validation Max","Identifier?"\n'
    "record_id,base,,text,Record,,,,,,\n"
    "surname,base,,text,Surname,,,,,,y\n"
    "age,base,,text,Age in years,,,integer,18,120,\n"
    'crp,base,,text,"C-reactive\nprotein",,mg/l,number_1dp_comma_decimal,"0,5",,\n'
    "born,base,,text,Day of birth,,,date_ymd,1900-01-01,today,\n"
    'sex,base,,radio,Sex,"1, Female | 2, Male | 3, Other, or not said",,,,,\n'
    "smoker,base,,yesno,Smokes,,,,,,\n"
    'drug,base,,checkbox,Drugs,"1, Statin | -9, Unknown",,,,,\n'
    'bmi,base,,calc,BMI,"[weight] / ([height]^2)",,,,,\n'
    "remarks,base,,notes,Remarks,,,,,,\n"
)


def fill(path: Path) -> DatasetSchema:
    """Complete a draft as a person would and read it."""
    text = path.read_text("utf-8")
    for open_key, value in (("low = ", "low = -1e100"), ("high = ", "high = 1e100"), ('origin = ""', 'origin = "2000-01-01"')):
        text = re.sub(rf"^# {re.escape(open_key)}$", value, text, flags=re.MULTILINE)
    text = re.sub(r"^# categories = \[.*\]$", 'categories = ["a", "b"]', text, flags=re.MULTILINE)
    filled = path.with_name("filled.toml")
    filled.write_text(text, "utf-8")
    return load_schema(filled)


def test_what_redcaps_interface_and_its_api_write_is_the_same(tmp_path: Path) -> None:
    """The API names its headings otherwise, the choices' too: without them radios and checkboxes were lost."""
    _, rest = REDCAP.split("\n", 1)
    api = (
        "field_name,form_name,section_header,field_type,field_label,select_choices_or_calculations,field_note,"
        "text_validation_type_or_show_slider_number,text_validation_min,text_validation_max,identifier\n"
    )
    found = []
    for name, text in (("interface", REDCAP), ("api", api + rest)):
        (tmp_path / f"{name}.csv").write_text(text)
        found.append(draft_dictionary(tmp_path / f"{name}.csv"))
    assert found[0].columns == found[1].columns
    assert found[0].left_out == found[1].left_out


def test_a_redcap_dictionary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dictionary.csv").write_text(REDCAP)
    report = shown(capsys, "schema", "draft", tmp_path / "dictionary.csv", "--out", tmp_path / "s.toml")
    assert report["open"] == ["crp", "born", "bmi"]
    assert set(report["left out"]) == {"record_id", "surname", "remarks"}
    read = {column.name: column for column in fill(tmp_path / "s.toml").columns}
    assert list(read) == ["age", "crp", "born", "sex", "smoker", "drug___1", "drug____9", "bmi"]
    assert read["age"] == NumberColumn(name="age", low=18.0, high=120.0)
    assert read["crp"] == NumberColumn(name="crp", low=0.5, high=1e100)
    assert isinstance(read["born"], DateColumn)
    assert read["sex"] == CategoryColumn(name="sex", categories=("1", "2", "3"))
    assert read["smoker"] == CategoryColumn(name="smoker", categories=("0", "1"))
    assert read["drug____9"] == CategoryColumn(name="drug____9", categories=("0", "1"))
    assert "3 = Other, or not said" in (tmp_path / "s.toml").read_text()


LABELS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="|")).map(
    lambda label: f"{label}, or = 1; 2: x"
)


@given(st.lists(st.tuples(st.from_regex(r"[A-Za-z0-9_=:-]{1,8}", fullmatch=True), LABELS), min_size=1, max_size=6))
@example([("1", "I agree")])
@example([("A=1", "low"), ("B=2", "high")])
def test_redcaps_choices_are_codes_before_commas(
    tmp_path_factory: pytest.TempPathFactory, choices: list[tuple[str, str]]
) -> None:
    """One choice alone too, as of a consent: its label was another choice."""
    choices = list({code.casefold(): (code, label) for code, label in choices}.values())
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["field_name", "field_type", "select_choices_or_calculations"])
    for name in ("radio", "checkbox"):
        writer.writerow([name, name, " | ".join(map(", ".join, choices))])
    writer.writerow(["illness", "text", "BIOPORTAL:ICD10"])
    path = tmp_path_factory.mktemp("dictionary") / "d.csv"
    path.write_text(file.getvalue(), "utf-8", newline="")
    draft = draft_dictionary(path)
    radio, *boxes = draft.columns
    assert radio.categories == tuple(code for code, _ in choices)
    named = {f"checkbox___{re.sub('[^a-z0-9_]', '_', code.lower())}": label for code, label in choices}
    assert {box.name: box.note for box in boxes} == {name: f": {label}" for name, label in named.items()}
    assert draft.left_out == {"illness": "free text"}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    "choices",
    [
        "1=no; 2=yes; 3=unknown", "1, no | 2, yes | 3, unknown", "1: no, 2: yes, 3: unknown", "1, 2, 3", "[1, 2, 3]",
        "1\n2\n3",
        "1,grade=1 | 2,grade=2 | 3,grade=3", "1=a, or b | 2=c, or d | 3=e, or f",
    ],
)  # fmt: skip
def test_common_spellings_of_a_dictionary(tmp_path: Path, separator: str, choices: str) -> None:
    file = io.StringIO()
    writer = csv.writer(file, delimiter=separator)
    writer.writerow(["Name", "Data Type", "Units", "Min. value", "MAXIMUM", "Permissible values"])
    writer.writerow(["hb", "Decimal", "g/dl", "2", "25", ""])
    writer.writerow(["stage", "Categorical", "", "", "", choices])
    (tmp_path / "d.csv").write_text("\ufeff" + file.getvalue(), "utf-8")
    hb, stage = draft_dictionary(tmp_path / "d.csv").columns
    assert (hb.low, hb.high, hb.unit) == (2.0, 25.0, "g/dl")
    assert stage.categories == ("1", "2", "3")


def test_a_code_of_signs_is_none(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text('name,type,choices\nage,category,"<=40, young | >=41, old"\n')
    (age,) = draft_dictionary(tmp_path / "d.csv").columns
    assert age.categories == ("<=40", ">=41")


def test_an_open_schema_is_refused_by_its_columns_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_text("name,type,categories\nage,number,\nsex,category,\nborn,date,\nill,category,0|1\n")
    veilsum(capsys, "schema", "draft", tmp_path / "d.csv", "--out", tmp_path / "schema.toml")
    with pytest.raises(ConfigurationError) as caught:
        load_schema(tmp_path / "schema.toml")
    message = caught.value.message
    assert "column 'age': to be filled in: low, high" in message
    assert "column 'sex': to be filled in: categories" in message
    assert "column 'born': to be filled in: low, high, origin" in message
    assert "'ill'" not in message
    (tmp_path / "study.toml").write_text(
        'name = "s"\nmethod = "statistics"\ndataset = "d"\nschema = "schema.toml"\n[privacy]\nepsilon = 1.0\n'
    )
    code, _, err = veilsum(capsys, "study", "plan", tmp_path / "study.toml", "--participants", 3)
    assert (code, "column 'age'" in err) == (2, True), err
    fill(tmp_path / "schema.toml")


def records(path: Path) -> Path:
    """120 records: a rare town, a unique name, numbers, codes and days."""
    towns = ["Jena"] * 60 + ["Gera"] * 48 + ["Rare"] * (LEAST - 1) + ["?"] * 3
    rows = {
        "town": towns,
        "person": [f"Person {index}" for index in range(120)],
        "weight": [40.25 + index for index in range(120)],
        "grade": [float(1 + index % 3) for index in range(119)] + [9.0],
        "seen": [f"2024-01-{1 + index % 28:02d}" for index in range(120)],
    }
    if path.suffix == ".parquet":
        table = pa.table(rows)
        days = pa.array(rows["seen"]).cast(pa.date32())
        parquet.write_table(table.set_column(4, "seen", days), path)
    else:
        lines = [",".join(map(str, row)) for row in zip(*rows.values(), strict=True)]
        path.write_text("\n".join([",".join(rows), *lines]) + "\n")
    return path


@pytest.mark.parametrize("name", ["r.csv", "r.parquet"])
@pytest.mark.parametrize(("flag", "rare"), [("--public", True), ("--local", False)])
def test_records(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, flag: str, rare: bool) -> None:
    report = shown(capsys, "schema", "draft", records(tmp_path / name), flag, "--out", tmp_path / "s.toml")
    text = (tmp_path / "s.toml").read_text()
    assert report["open"] == ["weight", "seen"]
    assert list(report["left out"]) == ["person"]
    assert not re.search(
        r"40\.25|159\.25|2024-01|Person|^low|^high|Rare" if not rare else r"40\.25|159\.25|2024-01|Person ",
        text.replace("2024-02-29", ""),
        re.MULTILINE,
    )
    read = {column.name: column for column in fill(tmp_path / "s.toml").columns}
    assert read["town"] == CategoryColumn(name="town", categories=("Gera", "Jena", *(["Rare"] if rare else [])))
    assert read["grade"] == CategoryColumn(name="grade", categories=("1", "2", "3", *(["9"] if rare else [])))
    assert isinstance(read["weight"], NumberColumn)
    assert isinstance(read["seen"], DateColumn)
    assert (GIVES_AWAY in text, report.get("gives away") == GIVES_AWAY) == (not rare, not rare)


def test_codes_keep_their_zeros_and_their_last_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers but for their spelling: neither numbers nor one another."""
    codes = [f"{code:03d}" for code in range(1, 900, 7)] * 2
    long = ["9007199254740992", "9007199254740993"] * (len(codes) // 2)
    rows = [f"{code},{number}" for code, number in zip(codes, long, strict=True)]
    (tmp_path / "r.csv").write_text("\n".join(["icd,long", *rows]) + "\n")
    shown(capsys, "schema", "draft", tmp_path / "r.csv", "--public", "--out", tmp_path / "s.toml")
    read = {column.name: column for column in fill(tmp_path / "s.toml").columns}
    assert isinstance(read["icd"], CategoryColumn)
    assert set(read["icd"].categories) == set(codes)
    assert read["long"] == CategoryColumn(name="long", categories=("9007199254740992", "9007199254740993"))


def test_the_tenth_record_names_a_category(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count, named in ((LEAST - 1, False), (LEAST, True)):
        (tmp_path / "r.csv").write_text("town\n" + "Jena\n" * 30 + "Gera\n" * 30 + "Rare\n" * count)
        out = tmp_path / f"{count}.toml"
        code, told, _ = veilsum(capsys, "schema", "draft", tmp_path / "r.csv", "--local", "--out", out)
        assert (code, GIVES_AWAY in told, "Rare" in out.read_text()) == (0, True, named)


@pytest.mark.parametrize("flag", ["--public", "--local"])
def test_records_with_semicolons(tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    """They are refused by what their first line looks like, and drafted as the same records with commas once that is said."""
    out, text = tmp_path / "s.toml", records(tmp_path / "r.csv").read_text()
    (tmp_path / "semi.csv").write_text(text.replace(",", ";"))
    code, told, err = veilsum(capsys, "schema", "draft", tmp_path / "semi.csv", flag, "--out", out)
    assert (code, told, out.exists()) == (2, "", False)
    assert 'separated by semicolons: state delimiter = ";"' in err
    for name, words in (("r.csv", ()), ("semi.csv", ("--dialect", "delimiter=;"))):
        shown(capsys, "schema", "draft", tmp_path / name, flag, *words, "--out", tmp_path / f"{name}.toml")
    assert (tmp_path / "r.csv.toml").read_text() == (tmp_path / "semi.csv.toml").read_text()
    code, _, err = veilsum(capsys, "schema", "draft", tmp_path / "semi.csv", "--dialect", "delimiter=;", "--out", out)
    assert (code, "--dialect is of records" in err) == (2, True)


def test_records_without_a_word_are_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "plain.csv")
    records(tmp_path / "plain.parquet")
    (tmp_path / "alike.csv").write_text("name,type\nHenrietta,inpatient\n")
    (tmp_path / "headless.csv").write_text("Henrietta,71\nAnna,54\n")
    for name, flags in (("plain.csv", ()), ("plain.parquet", ()), ("alike.csv", ()), ("headless.csv", ("--local",))):
        code, _, err = veilsum(capsys, "schema", "draft", tmp_path / name, *flags, "--out", tmp_path / "s.toml")
        assert code == 2
        assert not re.search("Henrietta|inpatient|Jena|town|71", err.replace(str(tmp_path), ""))
        assert not (tmp_path / "s.toml").exists()
    code, _, err = veilsum(capsys, "schema", "draft", tmp_path / "plain.csv", "--local", "--public")
    assert (code, "exclude" in err) == (2, True)


def test_a_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.csv").write_text("name,type\nage,number\n")
    (tmp_path / "s.toml").write_text("mine")
    code, _, _ = veilsum(capsys, "schema", "draft", tmp_path / "d.csv", "--out", tmp_path / "s.toml")
    assert (code, (tmp_path / "s.toml").read_text()) == (2, "mine")


@pytest.mark.parametrize("row", ["age,number\nage,number", "age,text\nage,text", ",number", "age,nonsense", '"age,number'])
def test_what_is_no_dictionary(tmp_path: Path, row: str) -> None:
    (tmp_path / "d.csv").write_text(f"name,type\n{row}\nsex,yesno\n")
    with pytest.raises(DataError):
        draft_dictionary(tmp_path / "d.csv")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
TYPES = st.sampled_from(["number", "radio", "date", "text", "checkbox", "calc", "yesno"])


@given(
    rows=st.lists(
        st.tuples(TEXT, TYPES, TEXT, TEXT | st.floats().map(str), TEXT | st.floats().map(str), TEXT, TEXT), max_size=4
    )
)
@example(rows=[("\0", "number", "", "", "", "", "")])
def test_every_draft_that_is_filled_in_is_a_schema(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.mktemp("draft")
    file = io.StringIO(newline="")
    csv.writer(file).writerows(
        [("name", "type", "unit", "min", "max", "choices", "label"), *rows, ("last", "number", *[""] * 5)]
    )
    (folder / "d.csv").write_bytes(file.getvalue().encode())
    try:
        found = draft_dictionary(folder / "d.csv")
    except DataError:
        assert any(not row[0].strip() for row in rows) or len({row[0].strip() for row in rows} | {"last"}) <= len(rows)
        return
    (folder / "s.toml").write_bytes(found.text().encode())
    with pytest.raises(ConfigurationError, match="'last': to be filled in"):
        load_schema(folder / "s.toml")
    assert [column.name for column in fill(folder / "s.toml").columns] == [column.name for column in found.columns]


# -- OMOP's vocabulary ------------------------------------------------------------------------------------------------------

CONCEPTS = (
    "concept_id\tconcept_name\tdomain_id\tvocabulary_id\tconcept_class_id\tstandard_concept\tconcept_code\tvalid_start_date"
    "\tvalid_end_date\tinvalid_reason\n"
    "8532\tFEMALE\tGender\tGender\tGender\tS\tF\t19700101\t20991231\t\n"
    "8507\tMALE\tGender\tGender\tGender\tS\tM\t19700101\t20991231\t\n"
    "8551\tUNKNOWN\tGender\tGender\tGender\t\tU\t19700101\t20991231\tD\n"
    "3004410\tHemoglobin A1c/Hemoglobin.total in Blood\tMeasurement\tLOINC\tLab Test\tS\t4548-4\t19700101\t20991231\t\n"
    '201826\tType 2 "adult-onset" diabetes\tCondition\tSNOMED\tClinical Finding\tS\t44054006\t19700101\t20991231\t\n'
    "45\tType 2 (adult onset) diabetes\tCondition\tICD10CM\t3-char code\t\tE11\t19700101\t20991231\tU\n"
)


def athena(directory: Path, text: str = CONCEPTS) -> Path:
    (directory / "CONCEPT.csv").write_bytes(text.encode())
    return directory


def test_a_vocabulary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Quotation marks are letters in it; concepts that are not standard or not valid are no categories."""
    folder = athena(tmp_path)
    out = tmp_path / "s.toml"
    words = ("--domain", "gender", "--concept", 3004410, "--concept", 201826, "--concept", 45, "--out", out)
    report = shown(capsys, "schema", "draft", folder, *words)
    names = ["gender", "hemoglobin_a1c_hemoglobin_total_in_blood", "type_2_adult_onset_diabetes"]
    assert report["open"] == names[1:2]
    assert fill(out).columns == (
        CategoryColumn(name=names[0], categories=("MALE", "FEMALE")),
        NumberColumn(name=names[1], low=-1e100, high=1e100),
        CategoryColumn(name=names[2], categories=("no", "yes")),
        CategoryColumn(name=f"{names[2]}_45", categories=("no", "yes")),
    )
    text = out.read_text("utf-8")
    assert "# 8507 = MALE; 8532 = FEMALE\n" in text
    assert "ICD10CM E11; no longer valid; not standard" in text
    with pytest.raises(ConfigurationError, match=names[1]):
        load_schema(out)


def test_a_domain_of_too_many_concepts_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{n}\tDrug {n}\tDrug\tRxNorm\tIngredient\tS\t{n}\t19700101\t20991231\t\n" for n in range(300)]
    words = ("--domain", "Drug", "--domain", "Gender", "--out", tmp_path / "s.toml")
    report = shown(capsys, "schema", "draft", athena(tmp_path, CONCEPTS + "".join(lines)), *words)
    assert report["left out"] == {"drug": "more than 256 categories; name concepts of it"}


@pytest.mark.parametrize(
    ("text", "words", "told"),
    [
        (CONCEPTS, (), "not said what to draft"),
        (CONCEPTS, ("--domain", "Gendr"), "has no domain 'Gendr'.*Gender"),
        (CONCEPTS, ("--concept", "7"), "has no concept 7"),
        (CONCEPTS, ("--concept", "45", "--local"), "are of a vocabulary"),
        (CONCEPTS + "46\tcut", ("--concept", "45"), "line 8 is not a concept"),
        (CONCEPTS.replace("\t", ","), ("--concept", "45"), "is not a vocabulary of OMOP"),
        ("", ("--concept", "45"), "is not a vocabulary of OMOP"),
    ],
)
def test_what_a_vocabulary_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: tuple[str, ...], told: str
) -> None:
    status, _, errors = veilsum(capsys, "schema", "draft", athena(tmp_path, text), *words, "--out", tmp_path / "s.toml")
    assert status != 0
    assert re.search(told, " ".join(errors.split()))
    assert not (tmp_path / "s.toml").exists()
