"""A small OMOP CDM 5.4 database: the tables that the recipes read, with all of their columns, made-up persons, and what the
recipes yield of them, worked out person by person in plain Python."""

from __future__ import annotations

import math
import random
import re
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Any, cast

import psycopg

from support.postgres import server

Row = dict[str, Any]
Rows = dict[str, list[dict[str, object]]]

LAYOUT = (Path(__file__).parents[1] / "data" / "omop_cdm54.sql").read_text()
TABLES: dict[str, dict[str, str]] = {
    table: dict(line.strip().rstrip(",").split(" ", 1) for line in body.strip().splitlines())  # type: ignore[misc]
    for table, body in re.findall(r"CREATE TABLE (\w+) \((.*?)\n\);", LAYOUT, re.DOTALL)
}
"""Names and types of the columns by table."""

CONDITIONS = {"diabetes": 201820, "hypertension": 316866, "heart_failure": 316139, "copd": 255573}
DRUGS = {"metformin": 1503297, "insulin": 21600713, "statin": 21601855}
MEASURES = {"hba1c": (3004410, 8554), "creatinine": (3016723, 8840), "systolic": (3004249, 8876), "bmi": (3038553, 9531)}
BOTH = "emergency and inpatient"
VISITS = {9201: "inpatient", 32037: "inpatient", 9202: "outpatient", 9203: "emergency", 262: BOTH}
ANCESTORS = (*CONDITIONS.values(), *DRUGS.values(), *VISITS)
UNDER_BOTH = 2_000_000_001
"""A made-up concept below the emergency room and the ward."""
LESS, EQUAL = 4171756, 4172703


def descendant(ancestor: int) -> int:
    """A made-up concept below another one, as a code that is really recorded is."""
    return ancestor + 1_000_000_000


def make_persons(count: int, seed: int = 5) -> Rows:
    """Persons with what a hospital has of them: unknown sex, no observation period, other units, unknown codes; rows twice and
    of nobody; stays that end before they begin; values with operators."""
    draw = random.Random(seed)
    rows: Rows = {name: [] for name in TABLES}
    for ancestor in ANCESTORS:
        rows["concept_ancestor"] += [
            {"ancestor_concept_id": ancestor, "descendant_concept_id": below} for below in (ancestor, descendant(ancestor))
        ]
    for ancestor in (9201, 9203):
        rows["concept_ancestor"].append({"ancestor_concept_id": ancestor, "descendant_concept_id": UNDER_BOTH})

    def day(start: int = 0) -> date:
        return date(2010, 1, 1) + timedelta(days=start + draw.randrange(2000))

    def add(table: str, **values: object) -> None:
        made = {f"{table}_id": len(rows[table]) + 1, **values} if table not in ("person", "death") else values
        rows[table] += draw.choice([1, 1, 1, 1, 2]) * [made]

    for person in range(1, count + 1):
        sex = draw.choice([8507, 8532, 8532, 8507, 0])
        born = draw.randrange(1920, 2009)
        add("person", person_id=person, gender_concept_id=sex, year_of_birth=born, race_concept_id=0, ethnicity_concept_id=0)
        for _ in range(draw.choice([0, 1, 1, 1, 2])):
            begins = day()
            ends = begins + timedelta(days=draw.randrange(1500))
            add("observation_period", person_id=person, observation_period_start_date=begins, observation_period_end_date=ends,
                period_type_concept_id=32817)  # fmt: skip
        for _ in range(draw.randrange(4)):
            start = day()
            kind = draw.choice([*VISITS, *map(descendant, VISITS), UNDER_BOTH, 581477, 0])
            add("visit_occurrence", person_id=draw.choice([*9 * [person], count + person]), visit_concept_id=kind,
                visit_start_date=start, visit_end_date=start + timedelta(days=draw.randrange(-3, 30)),
                visit_type_concept_id=32817)  # fmt: skip
        for _ in range(draw.randrange(4)):
            code = draw.choice([0, *CONDITIONS.values(), *map(descendant, CONDITIONS.values())])
            add("condition_occurrence", person_id=person, condition_concept_id=code, condition_start_date=day())
        for _ in range(draw.randrange(4)):
            code, start = draw.choice([0, *DRUGS.values(), *map(descendant, DRUGS.values())]), day()
            add("drug_exposure", person_id=person, drug_concept_id=code, drug_exposure_start_date=start,
                drug_exposure_end_date=start)  # fmt: skip
        for _ in range(draw.randrange(6)):
            concept, unit = draw.choice(list(MEASURES.values()))
            taken = day()
            value = draw.choice([None, float("nan"), *(round(draw.uniform(4, 15), 1) for _ in range(4))])
            add("measurement", person_id=person, measurement_concept_id=concept, measurement_date=taken,
                measurement_datetime=datetime.combine(taken, time(8)), value_as_number=value,
                operator_concept_id=draw.choice([None, 0, EQUAL, EQUAL, LESS]),
                unit_concept_id=draw.choice([unit, unit, unit, 0]), value_source_value="as written")  # fmt: skip
        if draw.random() < 0.2:
            add("death", person_id=person, death_date=day(2000))
    return rows


def fill(rows: Rows) -> str:
    """The URL of a database whose tables are in a schema of their own, as it says."""
    url = server().new_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA cdm54")
        connection.execute("SET search_path = cdm54")
        connection.execute(LAYOUT.encode())
        for table in TABLES:
            names = list(dict.fromkeys(name for row in rows[table] for name in row))
            with connection.cursor().copy(f"COPY {table} ({', '.join(names)}) FROM STDIN".encode()) as copy:
                for row in rows[table]:
                    copy.write_row([row.get(name) for name in names])
    return f"{url}&options=-c%20search_path%3Dcdm54"


def visit_kind(concept: object) -> str | None:
    """The kind of visit of a concept, or of what it is below."""
    kinds = {name for code, name in VISITS.items() if concept in (code, descendant(code))}
    return BOTH if concept == UNDER_BOTH else kinds.pop() if kinds else None


def stay_days(row: dict[str, object]) -> int | None:
    days = (cast(date, row["visit_end_date"]) - cast(date, row["visit_start_date"])).days
    return days if days >= 0 else None


def expected(name: str, rows: Rows) -> list[Row]:
    """What a query should yield, by its own words: each row of a table once."""
    rows = {table: list({repr(row): row for row in found}.values()) for table, found in rows.items()}
    persons = {cast(int, row["person_id"]): row for row in rows["person"]}
    of = {
        table: {who: [row for row in rows[table] if row["person_id"] == who] for who in persons}
        for table in (
            "observation_period",
            "condition_occurrence",
            "drug_exposure",
            "measurement",
            "visit_occurrence",
            "death",
        )
    }
    if name == "visits":
        return [
            {
                "person_id": row["person_id"],
                "kind": visit_kind(row["visit_concept_id"]),
                "days": stay_days(row),
                "age": age(persons, row, "visit_start_date"),
            }
            for row in rows["visit_occurrence"]
            if row["person_id"] in persons
        ]
    kinds = {pair: kind for kind, pair in MEASURES.items()}
    measured = [
        (row, kinds[pair])
        for row in rows["measurement"]
        if (pair := (cast(int, row["measurement_concept_id"]), cast(int, row["unit_concept_id"]))) in kinds
        and row["operator_concept_id"] in (None, 0, EQUAL)
    ]
    if name == "measurements":
        return [
            {
                "person_id": row["person_id"], "kind": kind, "value": known(row),
                "age": age(persons, row, "measurement_date"),
            }
            for row, kind in measured
        ]  # fmt: skip
    found = []
    for who, periods in of["observation_period"].items():
        if not periods:
            continue
        begins = min(cast(date, row["observation_period_start_date"]) for row in periods)
        days = {
            day
            for row in periods
            for day in range(
                cast(date, row["observation_period_start_date"]).toordinal(),
                cast(date, row["observation_period_end_date"]).toordinal(),
            )
        }
        person: Row = {
            "age": begins.year - cast(int, persons[who]["year_of_birth"]),
            "sex": {8507: "male", 8532: "female"}.get(cast(int, persons[who]["gender_concept_id"])),
            "days_observed": len(days),
        }
        ill = flags(CONDITIONS, [row["condition_concept_id"] for row in of["condition_occurrence"][who]])
        takes = flags(DRUGS, [row["drug_concept_id"] for row in of["drug_exposure"][who]])
        died = {"died": "yes" if of["death"][who] else "no"}
        means: Row = {}
        for kind in MEASURES:
            values = [
                value
                for row, which in measured
                if row["person_id"] == who and which == kind and (value := known(row)) is not None
            ]
            means[kind] = sum(values) / len(values) if values else None
        stays = [visit_kind(row["visit_concept_id"]) for row in of["visit_occurrence"][who]]
        counts = {
            kind: sum(stay in (name, BOTH) for stay in stays)
            for kind, name in (("stays", "inpatient"), ("emergencies", "emergency"))
        }
        parts = {
            "persons": {**person, **died}, "conditions": ill, "drugs": takes,
            "cohort": {**person, **ill, **takes, **means, **counts, **died},
        }  # fmt: skip
        found.append({"person_id": who, **parts[name]})
    return found


def known(row: dict[str, object]) -> float | None:
    """The number that a measurement has; exports write NaN where they have none."""
    value = cast(float | None, row["value_as_number"])
    return None if value is None or math.isnan(value) else value


def age(persons: dict[int, dict[str, object]], row: dict[str, object], when: str) -> int:
    return cast(date, row[when]).year - cast(int, persons[cast(int, row["person_id"])]["year_of_birth"])


def flags(known: dict[str, int], codes: list[object]) -> Row:
    return {name: "yes" if {code, descendant(code)} & {*codes} else "no" for name, code in known.items()}
