"""The shipped queries for a FHIR R4 bulk export, on a small one of several files a type; worked out again in plain Python."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from veilsum_participant.cli.participant import app
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.sources import read_table
from veilsum_participant.query import SourceQuery
from veilsum_privacy.study.schema_file import load_schema

PATIENTS = 80
QUERIES = ("cohort", "encounters", "observations")
TYPES = ("Patient", "Condition", "Observation", "Encounter")
SNOMED, ICD, LOINC = "http://snomed.info/sct", "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"
CONDITIONS = {
    "diabetes": [(SNOMED, "44054006"), (ICD, "E11.9")], "hypertension": [(SNOMED, "38341003"), (ICD, "I10")],
    "heart_failure": [(SNOMED, "84114007"), (ICD, "I50.1")], "copd": [(SNOMED, "13645005"), (ICD, "J44.0")],
}  # fmt: skip
OTHERS = [(SNOMED, "195967001"), (ICD, "E66"), ("urn:local", "44054006"), ("urn:local", "E11")]
MEASURES = {
    "hba1c": ("4548-4", "%"),
    "creatinine": ("2160-0", "mg/dL"),
    "systolic": ("8480-6", "mm[Hg]"),
    "bmi": ("39156-5", "kg/m2"),
}
CLASSES = {"IMP": "inpatient", "AMB": "outpatient", "EMER": "emergency"}
Resource = dict[str, Any]


def make_export(seed: int = 3) -> list[Resource]:
    """Resources as servers write them: refuted and mistaken ones, panels, other units, references with a server's address."""
    draw = random.Random(seed)
    found: list[Resource] = []
    for number in range(PATIENTS):
        who = f"pat-{number}"
        patient: Resource = {"resourceType": "Patient", "id": who, "gender": draw.choice(["male", "female", "unknown"])}
        patient |= draw.choice(
            [{"birthDate": f"{draw.randrange(1930, 2000)}-05-06"}, {"birthDate": str(draw.randrange(1930, 2000))}]
        )
        patient |= draw.choice(
            [{}, {}, {"deceasedBoolean": False}, {"deceasedBoolean": True}, {"deceasedDateTime": "2020-01-02"}]
        )
        found.append(patient)
        subject = {"reference": draw.choice(["", "https://fhir.example/r4/"]) + f"Patient/{who}"}
        every = [pair for pairs in CONDITIONS.values() for pair in pairs] + OTHERS
        for _ in range(draw.randrange(4)):
            codings = [{"system": system, "code": code} for system, code in draw.sample(every, draw.randrange(3))]
            status = draw.choice([None, "confirmed", "refuted", "entered-in-error"])
            verified = {} if status is None else {"verificationStatus": {"coding": [{"code": status}]}}
            found.append({"resourceType": "Condition", "subject": subject, "code": {"coding": codings}, **verified})
        for _ in range(draw.randrange(6)):
            code, unit = draw.choice(list(MEASURES.values()))
            value = {"valueQuantity": {"value": round(draw.uniform(3, 150), 1), "code": draw.choice([unit, unit, unit, "1"])}}
            coded = {"code": {"coding": [{"system": LOINC, "code": code}]}}
            panel = {"code": {"coding": [{"code": "85354-9"}]}, "component": [coded | value, {"code": {"text": "other"}}]}
            status = draw.choice(["final", "amended", "preliminary", "entered-in-error"])
            said = draw.choice([coded | value, panel, coded])
            found.append(
                {
                    "resourceType": "Observation",
                    "status": status,
                    "subject": subject,
                    "effectiveDateTime": "2021-03-04T05:06:07Z",
                    **said,
                }
            )
        for _ in range(draw.randrange(4)):
            period = {"start": "2021-03-01T10:00:00Z", "end": f"2021-03-{draw.randrange(1, 29):02}T11:00:00Z"}
            status = draw.choice(["finished", "finished", "cancelled"])
            kind = {"code": draw.choice([*CLASSES, "VR"])}
            found.append({"resourceType": "Encounter", "status": status, "class": kind, "subject": subject, "period": period})
    return found


def write_export(directory: Path, lines: list[str]) -> dict[str, Path]:
    """Files as a bulk export has them, two for each type; all lines in all of them are of that file's type but odd ones."""
    directory.mkdir()
    for kind in TYPES:
        own = [line for line in lines if f'"resourceType": "{kind}"' in line]
        for part in range(2):
            (directory / f"{kind}.{part}.ndjson").write_text("\n".join([*own[part::2], ""]))
    return {kind.lower(): directory / f"{kind}.*.ndjson" for kind in TYPES}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recipe")
    ran = CliRunner().invoke(app, ["recipe", "fhir", str(directory), "--json"])
    assert ran.exit_code == 0, ran.output
    assert {Path(item["file"]).name for item in json.loads(ran.stdout)} == {
        f"{name}.{end}" for name in QUERIES for end in ("sql", "toml")
    }
    again = CliRunner().invoke(app, ["recipe", "fhir", str(directory)])
    assert "already exists" in str(again.exception)
    return directory


def who(resource: Resource) -> str:
    return str(resource["subject"]["reference"]).rsplit("/", 1)[1]


def observed(resources: list[Resource]) -> list[tuple[str, str, float]]:
    """Person, kind and value of each observation that counts."""
    kinds = {pair: kind for kind, pair in MEASURES.items()}
    return [
        (who(item), kinds[pair], part["valueQuantity"]["value"])
        for item in resources
        if item["resourceType"] == "Observation" and item["status"] in ("final", "amended")
        for part in (item, *item.get("component", []))
        if "valueQuantity" in part
        for coding in part["code"]["coding"]
        if (pair := (coding["code"], part["valueQuantity"]["code"])) in kinds
    ]


def expected(name: str, resources: list[Resource]) -> list[dict[str, Any]]:
    patients = {item["id"]: item for item in resources if item["resourceType"] == "Patient"}
    born = {key: int(item["birthDate"][:4]) for key, item in patients.items()}
    visits = [item for item in resources if item["resourceType"] == "Encounter" and item["status"] != "cancelled"]
    if name == "observations":
        return [
            {"patient": person, "kind": kind, "value": value, "age": 2021 - born[person]}
            for person, kind, value in observed(resources)
        ]
    if name == "encounters":
        return [
            {
                "patient": who(item), "kind": CLASSES.get(item["class"]["code"]),
                "days": int(item["period"]["end"][8:10]) - 1, "age": 2021 - born[who(item)],
            }
            for item in visits
        ]  # fmt: skip
    rows = []
    for key, item in patients.items():
        codes = {
            (coding["system"], coding["code"])
            for other in resources
            if other["resourceType"] == "Condition" and who(other) == key
            if other.get("verificationStatus", {"coding": [{"code": ""}]})["coding"][0]["code"] in ("", "confirmed")
            for coding in other["code"]["coding"]
        }
        means = {}
        for kind in MEASURES:
            values = [value for person, which, value in observed(resources) if (person, which) == (key, kind)]
            means[kind] = sum(values) / len(values) if values else None
        classes = [visit["class"]["code"] for visit in visits if who(visit) == key]
        rows.append(
            {
                "patient": key, "birth_year": born[key], "sex": item["gender"],
                **{condition: "yes" if codes & {*pairs} else "no" for condition, pairs in CONDITIONS.items()},
                **means, "stays": classes.count("IMP"), "emergencies": classes.count("EMER"),
                "died": "yes" if item.get("deceasedBoolean") or "deceasedDateTime" in item else "no",
            }
        )  # fmt: skip
    return rows


def plain(rows: list[dict[str, Any]], names: list[str]) -> list[tuple[object, ...]]:
    return sorted(
        (
            tuple(row[name] if isinstance(row[name], str | None) else round(float(row[name]), 9) for name in names)
            for row in rows
        ),
        key=repr,
    )


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_yields_what_it_says(tmp_path: Path, recipe: Path, name: str) -> None:
    resources = make_export()
    files = write_export(tmp_path / "export", [json.dumps(item) for item in resources])
    schema = load_schema(recipe / f"{name}.toml")
    query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=files)
    check_structure(query, schema, subject="patient")
    table = read_table(query, schema, subject="patient")
    read = {**{column: array.to_pylist() for column, array in table.columns.items()}, "patient": table.subjects.to_pylist()}
    found = [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]
    want = expected(name, resources)
    assert plain(found, list(read)) == plain(want, list(read))
    assert len(want) > PATIENTS / 2
    assert check_dataset(query, schema, subject="patient").totals.get("patient") is None


NO_JSON = ["", "{", "\x00", '{"id": "\\ud800"}', '{"value": 1e999}']
ODD: list[Any] = [
    None, 7, "text", [], {},
    {"id": 5, "gender": [], "birthDate": {}},
    {"id": ["pat-2"], "birthDate": "99999999999", "deceasedBoolean": "maybe"},
    {"subject": [], "code": {"coding": "none"}, "class": 3, "status": "final", "component": {}},
    {
        "status": "final", "subject": {"reference": "Patient/pat-1"}, "effectiveDateTime": "0000",
        "valueQuantity": {"value": "1e999", "code": "%"}, "code": {"coding": [{"code": "4548-4"}, None, 5]},
        "component": [None, 3, {"code": 5}], "period": {"start": "2021-99-99", "end": "infinity"},
    },
    {"status": "final", "subject": {"reference": "Patient/"}, "period": {"start": "infinity", "end": "-infinity"}},
    {"id": "pat-0", "subject": {"reference": "Patient/pat-0"}, "period": {"start": "290309-12-22 (BC)", "end": "58748-01-01"}},
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUERIES)
def test_no_resource_makes_a_query_fail_or_changes_another_persons_rows(tmp_path: Path, recipe: Path, name: str) -> None:
    resources = make_export()
    lines = [json.dumps(item) for item in resources]
    files = write_export(tmp_path / "export", lines)
    schema = load_schema(recipe / f"{name}.toml")
    query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=files)

    def others() -> list[str]:
        table = read_table(query, schema, subject="patient")
        columns = [table.subjects.to_pylist(), *(column.to_pylist() for column in table.columns.values())]
        kept = [
            row for row in zip(*columns, strict=True) if str(row[0]).startswith("pat-") and row[0] not in ("pat-0", "pat-1")
        ]
        return sorted(map(repr, kept))

    before = others()
    every = [*NO_JSON, *ODD]
    for some in (every[:5], every[5:10], every[10:]):  # they stay, and a query takes longer than all lines of them
        for odd, kind in itertools.product(some, TYPES):
            line = odd if odd in NO_JSON else json.dumps({"resourceType": kind, **odd} if isinstance(odd, dict) else odd)
            path = tmp_path / "export" / f"{kind}.1.ndjson"
            path.write_text(f"{line}\n{path.read_text()}")
        assert others() == before, some
    check_structure(query, schema, subject="patient")  # with all of them
    load_records(query, schema, "patient")
