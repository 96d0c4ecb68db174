"""The shipped queries for FHIR R4, on made-up exports of servers and generators, and again in plain Python."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pytest
from typer.testing import CliRunner

from support.tables import totals
from veilsum_node.errors import DataError
from veilsum_node.process.check import CheckOutcome
from veilsum_participant.checks.datasets import dataset
from veilsum_participant.cli.participant import app
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.duck import count_texts, risks
from veilsum_participant.data.sources import query_rows, read_table
from veilsum_participant.recipes import recipe_texts
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import PLAIN, Dialect
from veilsum_participant.settings.query import SourceQuery
from veilsum_privacy.study.schema_file import load_schema

PATIENTS = 110
QUERIES = ("cohort", "encounters", "observations")
TYPES = ("Patient", "Condition", "Observation", "Encounter")
SNOMED, ICD, LOINC = "http://snomed.info/sct", "http://hl7.org/fhir/sid/icd-10-cm", "http://loinc.org"
SYSTEMS = {
    SNOMED: "snomed", f"{SNOMED}/": "snomed", f"https{SNOMED[4:]}": "snomed", f"{SNOMED}|http://snomed.info": "snomed",
    "urn:oid:2.16.840.1.113883.6.96": "snomed", ICD: "icd", "http://hl7.org/fhir/sid/icd-10": "icd",
    "urn:oid:2.16.840.1.113883.6.90": "icd", "URN:OID:2.16.840.1.113883.6.3": "icd",
    "http://fhir.de/CodeSystem/bfarm/icd-10-gm": "icd",
    "http://fhir.de/CodeSystem/dimdi/icd-10-gm": "icd", LOINC: "loinc", "urn:oid:2.16.840.1.113883.6.1": "loinc",
}  # fmt: skip
OTHER_SYSTEMS = ["urn:local", "http://hl7.org/fhir/sid/icd-9-cm", "http://hl7.org/fhir/sid/icd-10-pcs", None]
CONDITIONS = {
    "diabetes": [("snomed", "44054006"), ("icd", "E11.9"), ("icd", "e11.90")],
    "hypertension": [("snomed", "38341003"), ("icd", "I10"), ("icd", "I10.00")],
    "heart_failure": [("snomed", "84114007"), ("icd", "I50.1")],
    "copd": [("snomed", "13645005"), ("icd", "J44.0")],
}
OTHERS = [("snomed", "195967001"), ("icd", "E66"), (None, "44054006"), (None, "E11"), ("loinc", "44054006"), ("snomed", "I10")]
MEASURES = {
    "hba1c": ("4548-4", "%"),
    "creatinine": ("2160-0", "mg/dL"),
    "systolic": ("8480-6", "mm[Hg]"),
    "bmi": ("39156-5", "kg/m2"),
}
CLASSES = {"IMP": "inpatient", "ACUTE": "inpatient", "NONAC": "inpatient", "AMB": "outpatient", "EMER": "emergency"}
ACT_CODES = [
    "http://terminology.hl7.org/CodeSystem/v3-ActCode",
    "http://hl7.org/fhir/v3/ActCode",
    "urn:oid:2.16.840.1.113883.5.4",
]
MOTHER = [
    [{"reference": "Patient/pat-1"}],
    [{"display": "their mother"}],
    [{"reference": "RelatedPerson/1"}, {"type": "Patient"}],
]
"""Whom an observation is about, where it is not its subject (Observation.focus)."""
OWN = "the subject"
ABSENT = {"extension": [{"url": "http://hl7.org/fhir/StructureDefinition/data-absent-reason", "valueCode": "unknown"}]}
HTEST = {"system": "http://terminology.hl7.org/CodeSystem/v3-ActReason", "code": "HTEST"}
SUBSETTED = {"system": "http://terminology.hl7.org/CodeSystem/v3-ObservationValue", "code": "SUBSETTED"}
LABELS = [
    {"security": [HTEST]}, {"tag": [SUBSETTED, {**HTEST, "system": "http://hl7.org/fhir/v3/ActReason"}]},
    {"tag": [SUBSETTED]}, {"security": [{"code": "HTEST"}, {**HTEST, "system": "urn:local"}]},
]  # fmt: skip
CHANGED = [{"modifierExtension": [{"url": "urn:not", "valueBoolean": True}]}, {"implicitRules": "urn:rules"}]
CERTAINTY = "http://fhir.de/StructureDefinition/icd-10-gm-diagnosesicherheit"
SUSPECTED = ["unconfirmed", "provisional", "differential"]
REPLACED = {19: ["pat-39"], 39: ["pat-0"], 59: ["pat-0", "pat-2"], 69: ["nobody"], 70: ["pat-71"], 71: ["pat-70"]}
"""By whom patients were replaced; two by each other."""
Resource = dict[str, Any]


class Entry(NamedTuple):
    """A resource and its place in a Bundle."""

    resource: Resource
    url: str


def make_export(seed: int = 3) -> list[Entry]:  # noqa: C901  # a resource of each type
    """Patients, and what names them in all forms: in several versions, in error, in other units and code systems."""
    draw = random.Random(seed)
    found: list[Entry] = []
    numbers = itertools.count()

    def system(kind: str | None) -> Resource:
        named = draw.choice(OTHER_SYSTEMS if kind is None else [name for name, own in SYSTEMS.items() if own == kind])
        return {} if named is None else {"system": named}

    def version(resource: Resource) -> Resource:
        stamp = draw.choice(["2021-03-04T05:06:07Z", "2021-03-04T07:06:07+02:00", "2022-01-01T00:00:00.5-05:00", None, "soon"])
        meta = {"versionId": draw.choice(["1", "2", "10", "x"])} | ({} if stamp is None else {"lastUpdated": stamp})
        labelled = draw.choice([{}, meta, meta]) | draw.choice([*30 * ({},), *LABELS])
        return resource | ({"meta": labelled} if labelled else {}) | draw.choice([*40 * ({},), *CHANGED])

    def add(kind: str, changing: Any, **fixed: Any) -> None:
        """A resource, at times in several versions or twice the same."""
        named = draw.choice([f"{kind}-{next(numbers)}", f"{kind}-{next(numbers)}", f"{kind}-of-many"])
        own = draw.choice([{}, {"id": named}, {"id": named}])
        for _ in range(draw.choice([1, 1, 1, 2, 3]) if own else 1):
            made = version({"resourceType": kind, **own, **fixed, **changing()})
            if made.get("focus") == OWN:
                made["focus"] = 2 * [fixed["subject"] or {"type": "Patient"}]
            for _ in range(draw.choice([1, 1, 1, 2]) if own else 1):
                found.append(Entry(made, f"urn:uuid:{kind.lower()}{len(found)}"))

    for number in range(PATIENTS):
        who = f"pat-{number}"
        uuid = f"ABCDEF00-0000-4000-8000-{number:012}"
        for _ in range(draw.choice([1, 1, 1, 2, 3])):
            patient: Resource = {"resourceType": "Patient", "id": who, "gender": draw.choice(["male", "female", "unknown"])}
            patient |= draw.choice([{}, {}, {"active": True}, {"active": False}])
            patient |= {"birthDate": draw.choice([f"{draw.randrange(1930, 2000)}-05-06", str(draw.randrange(1930, 2000))])}
            patient |= draw.choice(
                [
                    *2 * ({}, {"deceasedBoolean": False}, {"deceasedBoolean": True}, {"deceasedDateTime": "2020-01-02"}),
                    {"_deceasedDateTime": ABSENT}, {"_deceasedBoolean": ABSENT}, {"deceasedBoolean": "asked"},
                ]
            )  # fmt: skip
            if number in REPLACED:
                patient["link"] = [
                    {"type": "replaced-by", "other": {"reference": f"Patient/{other}"}} for other in REPLACED[number]
                ]
            elif number % 20 == 18:
                patient["link"] = [{"type": draw.choice(["replaces", "seealso"]), "other": {"reference": "Patient/pat-5"}}]
            found.append(Entry(version(patient), f"urn:uuid:{uuid}"))

        def subject(who: str = who, uuid: str = uuid) -> Resource:
            reference = draw.choice(
                [
                    *24 * (f"Patient/{who}",), f"https://fhir.example/r4/Patient/{who}",
                    f"http://fhir.example/Patient/{who}/_history/3",
                    f"Patient/{who}/_history/3", f"/Patient/{who}", f"Patient/{who}/", f"urn:uuid:{uuid}",
                    f"URN:UUID:{uuid.lower()}",
                    f"urn:uuid:{who.upper()}",
                    f"Patient/{who}x", f"Group/{who}", f"#{who}", who, f"Patient?identifier=urn:ids|{who}", "", "Patient/", 5,
                    f"urn:uuid:{uuid[:-1]}x", None,
                ]
            )  # fmt: skip
            named = draw.choice([{}, {}, {"identifier": {"system": "urn:ids", "value": who}}])
            return {"subject": named if reference is None else {"reference": reference, **named}}

        every = [pair for pairs in CONDITIONS.values() for pair in pairs] + OTHERS

        def condition(every: Any = every) -> Resource:
            codings = [{**system(kind), "code": code} for kind, code in draw.sample(every, draw.randrange(3))]
            for coding in codings[: draw.choice([0, 0, 1])]:
                url, letter = draw.choice([CERTAINTY, CERTAINTY, "urn:other"]), draw.choice("AAGVZ")
                coding["extension"] = [{"url": "urn:x", "valueString": "A"}, {"url": url, "valueCoding": {"code": letter}}]
            status = draw.choice([None, None, "confirmed", *SUSPECTED, "refuted", "entered-in-error"])
            said = draw.choice([status, {"coding": [{"code": status}]}, {"coding": [{"code": "other"}, {"code": status}]}])
            return {"code": {"coding": codings}, **({} if status is None else {"verificationStatus": said})}

        def observation() -> Resource:
            code, unit = draw.choice(list(MEASURES.values()))
            quantity: Resource = {"value": round(draw.uniform(3, 150), 1), "code": draw.choice([unit, unit, unit, "1"])}
            quantity |= draw.choice([{}, {}, {}, {"comparator": draw.choice(["<", ">="])}])
            named = {**system(draw.choice(["loinc", "loinc", "loinc", "loinc", None])), "code": code}
            coded = {"code": {"coding": [named, *draw.choice([[], [], [named], [{"system": "urn:local", "code": "x"}]])]}}
            value = draw.choice(
                [{"valueQuantity": quantity}, {"valueQuantity": quantity}, {"dataAbsentReason": {"text": "none"}}]
            )
            panel = {
                "code": {"coding": [{"system": LOINC, "code": "85354-9"}]},
                "component": [coded | value | draw.choice([{}, {}, {}, CHANGED[0]]), {"code": {"text": "x"}}],
            }
            status = draw.choice(["final", "final", "amended", "preliminary", "entered-in-error"])
            when = draw.choice(
                [
                    {"effectiveDateTime": "2021-03-04T05:06:07Z"},
                    {"effectivePeriod": {"start": "2021-03-04"}},
                    {"effectiveInstant": "2021-03-04T05:06:07.1Z"},
                ]
            )
            focus = draw.choice([*12 * ({},), *({"focus": item} for item in (OWN, *MOTHER))])
            return {"status": status, **when, **focus, **draw.choice([coded | value, panel])}

        def encounter() -> Resource:
            period = {
                "start": draw.choice([*6 * ("2021-03-05T10:00:00Z",), "2021-03", "2021"]),
                "end": draw.choice([*6 * (f"2021-03-{draw.randrange(1, 29):02}T11:00:00Z",), "2021-03", "2021"]),
            }
            status = draw.choice(["finished", "finished", "finished", "cancelled", "planned", "entered-in-error"])
            wholes = [(item.get("id", "none"), url) for item, url in found[-8:] if item["resourceType"] == "Encounter"]
            named = [
                form for name, url in wholes for form in (
                    f"Encounter/{name}", f"https://fhir.example/Encounter/{name}/_history/2", f"urn:uuid:{name.upper()}", url,
                    f"Encounter?identifier={name}", f"Group/{name}",
                )
            ]  # fmt: skip
            part = {"partOf": {"reference": draw.choice(named)}} if named and draw.random() < 0.5 else {}
            named = draw.choice([{}, *({"system": system} for system in (*ACT_CODES, *ACT_CODES, "urn:local"))])
            return {"status": status, "class": {"code": draw.choice([*CLASSES, "VR"]), **named}, "period": period, **part}

        for _ in range(draw.randrange(5)):
            add("Condition", condition, **subject())
        for _ in range(draw.randrange(14)):
            add("Observation", observation, **subject())
        for _ in range(draw.randrange(5)):
            add("Encounter", encounter, **subject())
    draw.shuffle(found)
    return found


def bundle(entry: list[Any], kind: str = "collection") -> Resource:
    return {"resourceType": "Bundle", "type": kind, "entry": entry}


FORMS = ("ndjson", "gz", "utf-16", "bundle", "lines of bundles", "pretty", "array")


def write_export(directory: Path, entries: list[Entry], form: str = "ndjson") -> dict[str, Path]:
    """Files as a bulk export has them, two for each type; or of Bundles, which hold all types together."""
    directory.mkdir()
    if form in ("bundle", "lines of bundles"):
        parts = [entries[part::3] for part in range(3)]
        bundles = [bundle([{"fullUrl": url, "resource": item} for item, url in part]) for part in parts]
        inner = bundle(bundles[0]["entry"][::2], "searchset")  # a batch's answer holds the answers to its searches
        bundles[0]["entry"] = [*bundles[0]["entry"][1::2], {"fullUrl": "urn:uuid:answer", "resource": inner}]
        if form == "bundle":
            for number, made in enumerate(bundles):
                (directory / f"{number}.json").write_text(json.dumps(made, indent=2), "utf-8-sig")
            return {kind.lower(): directory / "*.json" for kind in TYPES}
        (directory / "all.jsonl").write_text("\n".join(map(json.dumps, bundles)))
        return {kind.lower(): directory / "all.jsonl" for kind in TYPES}
    end = {"gz": "ndjson.gz", "pretty": "json", "array": "json.gz"}.get(form, "ndjson")
    for kind in TYPES:
        own = [item for item, _ in entries if item["resourceType"] == kind]
        for part in range(2):
            data = "\n".join([*map(json.dumps, own[part::2]), ""]).encode()
            if form in ("pretty", "array"):
                data = json.dumps(own[part::2], indent=2).encode("utf-16" if form == "array" else "utf-8")
            elif form == "utf-16":
                data = data.decode().encode("utf-16")
            (directory / f"{kind}.{part}.{end}").write_bytes(gzip.compress(data) if end.endswith("gz") else data)
    return {kind.lower(): directory / f"{kind}.*.{end}" for kind in TYPES}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recipe")
    ran = CliRunner().invoke(app, ["recipe", "fhir", str(directory), "--json"])
    assert ran.exit_code == 0, ran.output
    assert {Path(item["file"]).name for item in json.loads(ran.stdout)} == {
        *(f"{name}.{end}" for name in QUERIES for end in ("sql", "toml")),
        "misses.sql",
    }
    again = CliRunner().invoke(app, ["recipe", "fhir", str(directory)])
    assert "already exists" in str(again.exception)
    return directory


def moment(text: str | None) -> float | None:
    from datetime import datetime

    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def newest(versions: list[Resource]) -> Resource:
    """The last version: a later time of change, else a larger number; what has none comes first."""

    def place(item: Resource) -> tuple[float, int]:
        meta = item.get("meta", {})
        when, number = moment(meta.get("lastUpdated")), meta.get("versionId", "")
        return (float("-inf") if when is None else when, int(number) if number.isdigit() else -1)

    last = max(map(place, versions))
    equal = list({json.dumps(item): item for item in versions if place(item) == last}.values())
    return equal[0] if len(equal) == 1 else any_of(equal)


def any_of(equal: list[Resource]) -> Resource:
    """Of equally late versions any, but always the same: the greatest as DuckDB orders what the recipe reads of them."""
    kind = equal[0]["resourceType"]
    (part,) = (part for part in recipe_texts("fhir")["cohort.sql"].split("\n),\n") if f"type) = '{kind}'" in part)
    (read,) = re.findall(r"json_transform\(json, '([^']*)'\) AS resource", part)
    asked = "SELECT json FROM (SELECT unnest(?) AS json) ORDER BY json_transform(json, ?) DESC LIMIT 1"
    (found,) = duckdb.execute(asked, [[json.dumps(item) for item in equal], read]).fetchall()
    return json.loads(found[0])  # type: ignore[no-any-return]


def labelled(item: Resource, label: Resource) -> bool:
    meta = item.get("meta", {})
    return label in [*meta.get("tag", []), *meta.get("security", [])]


def aside(item: Resource) -> str:
    """Why a resource counts for nothing: what it means is not known, or it is of nobody; empty where it counts."""
    if "modifierExtension" in item or "implicitRules" in item:
        return "has an extension that changes its meaning, or implicit rules"
    test = any(labelled(item, {**HTEST, "system": system}) for system in (HTEST["system"], "http://hl7.org/fhir/v3/ActReason"))
    return "is labelled as test data" if test else ""


def successors(item: Resource) -> list[str]:
    links = [link for link in item.get("link", []) if link["type"] == "replaced-by"]
    return [link["other"]["reference"].removeprefix("Patient/") for link in links]


def parts_of(item: Resource) -> list[Resource]:
    """An observation and its components, but those whose meaning an extension changes."""
    return [part for part in (item, *item.get("component", [])) if "modifierExtension" not in part]


def kind_of(item: Resource) -> str | None:
    """The kind of an encounter, whose class is a code of FHIR's own system."""
    named = item["class"]
    return CLASSES.get(named["code"]) if named.get("system") in (None, *ACT_CODES) else None


def days_of(item: Resource) -> int | None:
    """From the day of an encounter's beginning to that of its end; None where either is no more than a month or a year."""
    start, end = item["period"]["start"][:10], item["period"]["end"][:10]
    return (date.fromisoformat(end) - date.fromisoformat(start)).days if len(start) == len(end) == 10 else None


def about_another(item: Resource) -> bool:
    """Whether an observation in somebody's record says something of somebody else, such as their mother."""
    return any(one.get("reference") != item["subject"]["reference"] for one in item.get("focus", []))


class Export:
    """What an export says, read in plain Python: patients, and of each what is its own, once each."""

    def __init__(self, entries: list[Entry], *, urls: bool) -> None:
        versions: dict[str, list[Resource]] = {}
        self.urns: dict[str, str] = {}
        for item, url in entries:
            if item["resourceType"] == "Patient":
                versions.setdefault(item["id"], []).append(item)
                self.urns[item["id"].lower()] = item["id"]
                if urls:
                    self.urns[url.removeprefix("urn:uuid:").lower()] = item["id"]
        self.every = {who: newest(own) for who, own in versions.items()}
        self.patients = {who: item for who, item in self.every.items() if not aside(item) and not successors(item)}
        self.replaced = sum(bool(successors(item)) for item in self.every.values())
        self.older = sum(map(len, versions.values())) - len(versions)
        self.misses: Counter[str] = Counter()
        self.of: dict[tuple[str, str], list[Resource]] = {}
        self.names: dict[tuple[str, str], list[str]] = {}
        for kind in TYPES[1:]:
            grouped: dict[tuple[str, str], list[Resource]] = {}
            met = 0
            for number, (item, url) in enumerate(entries):
                if item["resourceType"] != kind:
                    continue
                self.misses[f"{kind}: read"] += 1
                who = self.who(kind, item)
                if who is not None:
                    met += 1
                    grouped.setdefault((who, item.get("id") or (url if urls else str(number))), []).append(item)
            for (who, name), same in grouped.items():
                last = newest(same)
                if why := aside(last):
                    self.misses[f"{kind}: {why}"] += 1
                    continue
                self.misses[f"{kind}: is labelled as a part of its resource alone, and counts"] += labelled(last, SUBSETTED)
                self.of.setdefault((kind, who), []).append(last)
                self.names.setdefault((kind, who), []).append(name)
            self.misses[f"{kind}: is an older version, or the same again"] = met - len(grouped)

    def who(self, kind: str, item: Resource) -> str | None:
        """Whose a resource is; why it is nobody's is counted."""
        subject = item["subject"]
        reference = subject.get("reference")
        if reference is None and "identifier" in subject:
            self.misses[f"{kind}: names its patient by an identifier alone"] += 1
            return None
        text = str(reference or "")
        if text.startswith("#"):
            self.misses[f"{kind}: has its subject contained in itself"] += 1
            return None
        urn = text.lower().startswith("urn:uuid:")
        parts = text.split("/")
        if urn:
            name = self.urns.get(text[9:].lower())
        elif parts[-2:-1] == ["_history"]:
            name = parts[-3] if parts[-4] == "Patient" else ""
        else:
            parts = parts[:-1] if parts[-1] == "" else parts
            name = parts[-1] if parts[-2:-1] == ["Patient"] else ""
        if not urn and not name:
            self.misses[f"{kind}: has a subject that is not a patient, or none"] += 1
        elif name not in self.every:
            self.misses[f"{kind}: names a patient who is not there"] += 1
        elif (whole := self.stands_for(name)) is None:
            self.misses[f"{kind}: names a patient who is left aside"] += 1
        else:
            return whole
        return None

    def stands_for(self, who: str) -> str | None:
        """The patient who counts in place of one, after all who replaced each other."""
        met = {who}
        while (item := self.every.get(who)) is not None and not aside(item):
            others = successors(item)
            if not others:
                return who
            who = others[0]
            if len(others) > 1 or who in met:
                return None
            met.add(who)
        return None

    def own(self, kind: str, who: str) -> list[Resource]:
        return self.of.get((kind, who), [])

    def observed(self, who: str) -> list[tuple[str, float]]:
        """Kind and value of each observation that counts."""
        kinds = {pair: kind for kind, pair in MEASURES.items()}
        found = []
        for item in self.own("Observation", who):
            if item["status"] not in ("final", "amended") or about_another(item):
                continue
            for part in parts_of(item):
                quantity = part.get("valueQuantity", {"comparator": "none"})
                codes = {c["code"] for c in part["code"].get("coding", []) if SYSTEMS.get(c.get("system")) == "loinc"}
                if "comparator" not in quantity:
                    pairs = {(code, quantity["code"]) for code in codes}
                    found += [(kinds[pair], quantity["value"]) for pair in pairs if pair in kinds]
        return found

    def finished(self, who: str) -> list[tuple[str, Resource]]:
        """Encounters that happened, each with its name."""
        named = zip(self.names.get(("Encounter", who), []), self.own("Encounter", who), strict=True)
        return [(name, item) for name, item in named if item["status"] == "finished"]

    def stays(self, who: str) -> list[Resource]:
        """Encounters that are not part of another of the same kind."""
        known = self.finished(who)
        kinds = {(name, kind_of(item)) for name, item in known if kind_of(item)}
        kinds |= {(name.lower().removeprefix("urn:uuid:"), kind) for name, kind in kinds}
        return [item for _, item in known if (self.whole(item), kind_of(item)) not in kinds]

    @staticmethod
    def whole(item: Resource) -> str:
        """The name of what an encounter is part of, in small letters where it is a URN's."""
        text = item.get("partOf", {}).get("reference", "")
        if text.lower().startswith("urn:uuid:"):
            return str(text[9:].lower())
        parts = text.removesuffix("/_history/2").split("/")
        return str(parts[-1]) if parts[-2:-1] == ["Encounter"] else ""

    def codes(self, who: str) -> set[tuple[str | None, str]]:
        """What is coded of conditions that are not refuted, excluded or in error."""
        own = [item for item in self.own("Condition", who) if not certainties(item) & {"refuted", "entered-in-error", "A"}]
        codings = [coding for item in own for coding in item["code"]["coding"]]
        return {(SYSTEMS.get(coding.get("system")), coding["code"]) for coding in codings}


def certainties(item: Resource) -> set[str]:
    """How sure a condition is: the codes of its status, and the letters that its codings have in Germany."""
    status = item.get("verificationStatus", {})
    said = {status} if isinstance(status, str) else {coding["code"] for coding in status.get("coding", [])}
    told = [more for coding in item["code"]["coding"] for more in coding.get("extension", [])]
    return said | {more["valueCoding"]["code"] for more in told if more["url"] == CERTAINTY}


def died(item: Resource) -> str | None:
    if "deceasedDateTime" in item or item.get("deceasedBoolean") is True:
        return "yes"
    return None if ABSENT in item.values() or item.get("deceasedBoolean", False) is not False else "no"


def expected(name: str, export: Export) -> list[dict[str, Any]]:
    born = {who: int(item["birthDate"][:4]) for who, item in export.patients.items()}
    if name == "observations":
        return [
            {"patient": who, "kind": kind, "value": value, "age": 2021 - born[who]}
            for who in born
            for kind, value in export.observed(who)
        ]
    if name == "encounters":
        return [
            {
                "patient": who, "kind": kind_of(item), "age": 2021 - born[who],
                "days": days if (days := days_of(item)) is not None and days >= 0 else None,
            }
            for who in born
            for item in export.stays(who)
        ]  # fmt: skip
    rows = []
    for who, item in export.patients.items():
        codes, observed = export.codes(who), export.observed(who)
        means = {}
        for kind in MEASURES:
            values = [value for which, value in observed if which == kind]
            means[kind] = sum(values) / len(values) if values else None
        kinds = [kind_of(stay) for stay in export.stays(who)]
        rows.append(
            {
                "patient": who, "birth_year": born[who], "sex": item["gender"],
                **{condition: "yes" if codes & {*pairs} else "no" for condition, pairs in CONDITIONS.items()},
                **means, "stays": kinds.count("inpatient"), "emergencies": kinds.count("emergency"),
                "died": died(item),
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


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("name", "form"), [*(("cohort", form) for form in FORMS), *itertools.product(QUERIES[1:], ("ndjson", "bundle"))]
)
def test_a_query_yields_what_it_says(tmp_path: Path, recipe: Path, name: str, form: str) -> None:
    entries = make_export()
    files = write_export(tmp_path / "export", entries, form)
    schema = load_schema(recipe / f"{name}.toml")
    dialect = Dialect(encoding="utf-16") if form == "utf-16" else PLAIN
    query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=files, dialect=dialect)
    check_structure(query, schema, subject="patient")
    table = read_table(query, schema, subject="patient")
    read = {**{column: array.to_pylist() for column, array in table.columns.items()}, "patient": table.subjects.to_pylist()}
    found = [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]
    want = expected(name, Export(entries, urls="bundle" in form))
    assert plain(found, list(read)) == plain(want, list(read))
    assert len(want) > 40
    if form == FORMS[0]:  # as it says of any: the same rows were found
        assert "patient" not in totals(check_dataset(query, schema, subject="patient"))


@pytest.mark.parametrize("form", ["ndjson", "bundle"])
def test_what_is_left_aside_is_counted(tmp_path: Path, recipe: Path, form: str) -> None:
    entries = make_export(4)
    files = write_export(tmp_path / "export", entries, form)
    rows = query_rows(SourceQuery("misses", (recipe / "misses.sql").read_text(), files=files)).to_pylist()
    found = {row["what"]: row["of"] if row["number"] is None else row["number"] for row in rows}
    assert len(found) == len(rows)
    export = Export(entries, urls=form == "bundle")
    for what, number in export.misses.items():
        assert found[what] == number > 0, what
    meant = ("is an older version, or the same again", "names a patient who is left aside", "is labelled as test data")
    assert {row["what"] for row in rows if row["meant"]} & {*export.misses} == {
        f"{kind}: {what}" for kind in TYPES[1:] for what in meant
    }
    assert found["Patient: read"] == sum(item["resourceType"] == "Patient" for item, _ in entries)
    assert (found["Patient: was replaced by another"], found["Patient: has no id"]) == (export.replaced, 0) != (0, 0)
    assert found["Patient: is an older version, or the same again"] == export.older > 0
    lost = [who for who, item in export.every.items() if successors(item) and export.stands_for(who) is None]
    assert found["Patient: was replaced by several, or by one who does not count"] == len(lost) > 1
    why = Counter(map(aside, export.every.values()))
    for what in ("has an extension that changes its meaning, or implicit rules", "is labelled as test data"):
        assert found[f"Patient: {what}"] == why[what] > 0
    replaced = {
        link["other"]["reference"]
        for item in export.patients.values()
        for link in item.get("link", [])
        if link["type"] == "replaces"
    }
    assert found["Patient: was replaced by what another says, and counts as well"] == len(replaced) == 1
    counted = {kind: [item for who in export.patients for item in export.own(kind, who)] for kind in TYPES[1:]}
    final = [item for item in counted["Observation"] if item["status"] in ("final", "amended")]
    assert found["Observation: is not final, amended or corrected"] == len(counted["Observation"]) - len(final) > 0
    assert found["Observation: is about somebody else than its patient"] == sum(map(about_another, final)) > 0
    final = [item for item in final if not about_another(item)]
    suspected = [item for item in counted["Condition"] if certainties(item) & {*SUSPECTED, "V"}]
    refuted = [item for item in suspected if certainties(item) & {"refuted", "entered-in-error", "A"}]
    assert found["Condition: is a suspicion, and counts"] == len(suspected) - len(refuted) > 0
    inactive = [item for item in export.patients.values() if item.get("active") is False]
    assert found["Patient: is not in active use, and counts"] == len(inactive) > 0
    happened = [item for item in counted["Encounter"] if item["status"] == "finished"]
    assert found["Encounter: is planned, cancelled or entered in error"] == len(counted["Encounter"]) - len(happened) > 0
    whole = [item for who in export.patients for item in export.stays(who)]
    assert found["Encounter: is part of another of its kind"] == len(happened) - len(whole) > 0
    unsaid = [item for item in export.patients.values() if died(item) is None]
    assert found["Patient: has no word on whether they died"] == len(unsaid) > 0
    local = [item for item in happened if item["class"].get("system") == "urn:local"]
    assert found["Encounter: has a class of an unknown system"] == len(local) > 0
    assert found["Encounter: has a class other than inpatient, outpatient and emergency"] == sum(
        item["class"]["code"] == "VR" for item in happened if item not in local
    )
    assert found["Encounter: ends before it begins"] == sum((days_of(item) or 0) < 0 for item in counted["Encounter"])
    parts = [part for item in final for part in parts_of(item)]
    changed = [part for item in final for part in item.get("component", []) if part not in parts_of(item)]
    assert found["Observation: is a component with an extension that changes its meaning"] == len(changed) > 0
    known = [part for part in parts if any(SYSTEMS.get(c.get("system")) == "loinc" for c in part["code"].get("coding", []))]
    unknown = [part for part in parts if part["code"].get("coding") and part not in known]
    assert found["Observation: has codes of unknown systems alone"] == len(unknown) > 0
    assert found["Observation: has no code"] == len(parts) - len(known) - len(unknown) > 0
    systems = Counter(system for part in unknown for system in {c.get("system") or "none" for c in part["code"]["coding"]})
    said = {
        what.split("code system ")[1]: number for what, number in found.items() if what.startswith("Observation: of these")
    }
    assert said == systems
    for kind, (code, unit) in MEASURES.items():
        own = [
            part.get("valueQuantity", {})
            for part in known
            if any(c["code"] == code and SYSTEMS.get(c.get("system")) == "loinc" for c in part["code"]["coding"])
        ]
        assert found[f"Observation: {kind} without a value"] == sum(not item for item in own)
        assert found[f"Observation: {kind} with a comparator, such as <"] == sum("comparator" in item for item in own)
        assert found[f"Observation: {kind} in another unit than {unit}"] == sum(
            item.get("code", unit) != unit and "comparator" not in item for item in own
        )


def offered(recipe: Path, files: dict[str, Path]) -> DatasetConfig:
    return DatasetConfig(
        source="sql",
        query_file=recipe / "cohort.sql",
        misses_file=recipe / "misses.sql",
        subject="patient",
        joined=False,
        files=files,
        columns=load_schema(recipe / "cohort.toml").file_columns,
    )


@pytest.mark.system
def test_a_check_shows_the_site_what_is_left_aside(tmp_path: Path, recipe: Path) -> None:
    entries = make_export(4)
    files = write_export(tmp_path / "export", entries)
    path = tmp_path / "export" / "Condition.0.ndjson"
    path.write_text("{\n\n" + path.read_text() + "x" * (1 << 24) + "y\n[")
    checks = list(dataset("heart", offered(recipe, files), load_schema(recipe / "cohort.toml")))
    told = {item.detail: item.status for item in checks}
    export = Export(entries, urls=False)
    assert told[f"table 'condition': {export.misses['Condition: read']:,} JSON values; 3 lines left out, being none"] == (
        CheckOutcome.WARNING
    )
    number = export.misses["Condition: names a patient who is not there"]
    line = f"Condition: names a patient who is not there: {number} of {export.misses['Condition: read']}"
    assert told[line] == CheckOutcome.WARNING
    older = export.misses["Condition: is an older version, or the same again"]
    line = f"Condition: is an older version, or the same again: {older} of {export.misses['Condition: read']}"
    assert told[line] == CheckOutcome.OK
    assert sum("code system of your country" in item.advice for item in checks) == 1
    assert told[f"Condition: read: {export.misses['Condition: read']}"] == CheckOutcome.OK
    assert any(re.fullmatch(r"[0-9]+ other kinds? of misses looked for, none found", line) for line in told)


@pytest.mark.system
def test_a_file_of_which_nothing_is_read_is_no_success(tmp_path: Path, recipe: Path) -> None:
    """A document in lines of its own under a name that says a value a line; a type of which there is nothing."""
    files = write_export(tmp_path / "export", make_export(), "pretty")
    for path in (tmp_path / "export").iterdir():
        path.rename(path.with_suffix(".ndjson"))
    files = {name: path.with_suffix(".ndjson") for name, path in files.items()}
    checks = list(dataset("heart", offered(recipe, files), load_schema(recipe / "cohort.toml")))
    failed = [item for item in checks if item.status == CheckOutcome.FAILED]
    assert failed[0].detail == "no record: the query yields nobody"
    assert [item.detail.split(":")[0] for item in failed[1:]] == [f"table {name!r}" for name in files]
    assert "call a file of one document, in whatever lines, .json" in failed[1].advice
    assert {item.detail: item.status for item in checks}["Patient: read: 0"] == CheckOutcome.WARNING


def test_a_compressed_file_that_is_damaged_is_refused_by_name(tmp_path: Path, recipe: Path) -> None:
    files = write_export(tmp_path / "export", make_export(), "gz")
    path = tmp_path / "export" / "Condition.1.ndjson.gz"
    path.write_bytes(path.read_bytes()[:-30])
    query = SourceQuery("cohort", (recipe / "cohort.sql").read_text(), files=files)
    with pytest.raises(DataError, match=r"Condition\.1\.ndjson\.gz: is not compressed with gzip, or not whole"):
        query_rows(query)
    with pytest.raises(DataError, match=r"Condition\.1\.ndjson\.gz"):
        count_texts(files["condition"])


def test_all_files_of_the_recipe_know_the_same_code_systems(recipe: Path) -> None:
    texts = [path.read_text() for path in recipe.glob("*.sql")]
    tables = [re.search(r"systems\(system, kind\) AS \(.*?\n\)", text, re.DOTALL) for text in texts]
    found = {table[0] for table in tables if table is not None}
    assert len(found) == 1
    assert sum(table is not None for table in tables) == len(texts)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", QUERIES)
def test_nothing_of_one_person_changes_another_s_rows(tmp_path: Path, recipe: Path, name: str) -> None:
    """Ids of resources are shared between persons here, as where exports of several servers are put together."""
    entries = make_export(5)
    left = Export(entries, urls=False)
    gone = ("pat-0", "pat-3")  # the first is others as well, whom it replaced

    def whose(item: Resource) -> str | None:
        return left.who("", item) if "subject" in item else left.stands_for(item["id"]) or item["id"]

    without = [entry for entry in entries if whose(entry.resource) not in gone]
    assert len(without) < len(entries)
    found = []
    for turn, some in enumerate((entries, without)):
        query = SourceQuery(name, (recipe / f"{name}.sql").read_text(), files=write_export(tmp_path / str(turn), some))
        rows = [row for row in query_rows(query).to_pylist() if row["patient"] not in gone]
        found.append(plain(rows, list(rows[0])))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("urls", "told"),
    [
        (("https://north/fhir/Patient/1", "https://south/fhir/Patient/1"), 1),
        (("https://north/fhir/Patient/1", "http://North/fhir/Patient/1"), 0),
        (("https://north/fhir/Patient/1", None), 0),
        (("https://north/fhir/Patient/1", "urn:uuid:5cbc121b-cd71-4428-b8b7-31e53eba8100"), 0),
    ],
)
def test_one_id_of_two_servers_is_told(tmp_path: Path, recipe: Path, urls: tuple[str | None, ...], told: int) -> None:
    """An id is unique on its server alone, and these would count as one person."""
    patients = [{"fullUrl": url, "resource": {"resourceType": "Patient", "id": "1"}} for url in urls]
    (tmp_path / "t.json").write_text(json.dumps({"resourceType": "Bundle", "type": "collection", "entry": patients}))
    files = {kind.lower(): tmp_path / "t.json" for kind in TYPES}
    rows = query_rows(SourceQuery("misses", (recipe / "misses.sql").read_text(), files=files)).to_pylist()
    (found,) = (row for row in rows if "several servers" in row["what"])
    assert (found["number"], found["of"], found["meant"]) == (told, 2, False)


def test_a_transaction_names_its_patient_by_a_place_in_it(tmp_path: Path, recipe: Path) -> None:
    """As generators of synthetic patients write it: no resource has an id yet, and what is asked for says nothing of any."""

    def entry(number: int, resource: Resource) -> Resource:
        url = f"urn:uuid:5cbc121b-cd71-4428-b8b7-31e53eba810{number}"
        return {"fullUrl": url, "resource": resource, "request": {"method": "POST", "url": resource["resourceType"]}}

    subject = {"reference": "urn:uuid:5cbc121b-cd71-4428-b8b7-31e53eba8100"}
    code = {"coding": [{"system": SNOMED, "code": "44054006", "display": "Diabetes mellitus type 2"}], "text": "Diabetes"}
    quantity = {"value": 6.5, "unit": "%", "system": "http://unitsofmeasure.org", "code": "%"}
    measured = {"coding": [{"system": LOINC, "code": "4548-4"}]}
    bundle = {
        "resourceType": "Bundle",
        "type": "transaction",
        "entry": [
            entry(
                0, {"resourceType": "Patient", "gender": "female", "birthDate": "1961-02-03", "deceasedDateTime": "2020-01-01"}
            ),
            entry(1, {"resourceType": "Encounter", "status": "finished", "class": {"code": "IMP"}, "subject": subject}),
            entry(2, {"resourceType": "Condition", "subject": subject, "code": code}),
            entry(
                3,
                {
                    "resourceType": "Observation",
                    "status": "final",
                    "subject": subject,
                    "code": measured,
                    "valueQuantity": quantity,
                },
            ),
            {"request": {"method": "DELETE", "url": "Patient/1"}},
        ],
    }
    (tmp_path / "patient.json").write_text(json.dumps(bundle, indent=2))
    files = {kind.lower(): tmp_path / "*.json" for kind in TYPES}
    assert query_rows(SourceQuery("cohort", (recipe / "cohort.sql").read_text(), files=files)).to_pylist() == [
        {
            "patient": "urn:uuid:5cbc121b-cd71-4428-b8b7-31e53eba8100", "birth_year": 1961, "sex": "female", "diabetes": "yes",
            "hypertension": "no", "heart_failure": "no", "copd": "no", "hba1c": 6.5, "creatinine": None, "systolic": None,
            "bmi": None, "stays": 1, "emergencies": 0, "died": "yes",
        }
    ]  # fmt: skip


def test_what_lies_deeper_or_is_to_be_deleted_is_counted(tmp_path: Path, recipe: Path) -> None:
    patient = {"resourceType": "Patient", "id": "p"}
    deep = bundle([{"resource": patient}, {"resource": {"resourceType": "Group"}}])
    for _ in range(2):
        deep = bundle([{"resource": deep}])
    gone = [{"request": {"method": method, "url": url}} for method, url in (("DELETE", "Patient/q"), ("PUT", "Patient/p"))]
    read = bundle([{"resource": patient}])
    (tmp_path / "t.ndjson").write_text("\n".join(map(json.dumps, [deep, bundle(gone, "history"), read])))
    files = {kind.lower(): tmp_path / "t.ndjson" for kind in TYPES}
    rows = query_rows(SourceQuery("misses", (recipe / "misses.sql").read_text(), files=files)).to_pylist()
    found = {row["what"]: row["number"] for row in rows if row["number"] and not row["meant"]}
    assert found == {
        "Patient: lies in a Bundle in a Bundle in another, none of which is opened": 1,
        "Patient: is to be deleted by a Bundle, which is not done": 1,
        "Patient: has no sex that is female or male": 1,
        "Patient: has no year of birth": 1,
    }


@pytest.mark.system
@pytest.mark.parametrize("seed", range(2))
def test_the_order_of_lines_does_not_matter(tmp_path: Path, recipe: Path, seed: int) -> None:
    found = []
    for turn in range(2):
        entries = make_export(seed)
        random.Random(turn).shuffle(entries)
        files = write_export(tmp_path / str(turn), entries)
        table = query_rows(SourceQuery("cohort", (recipe / "cohort.sql").read_text(), files=files))
        found.append(
            sorted(
                repr([round(cell, 9) if isinstance(cell, float) else cell for cell in row.values()])
                for row in table.to_pylist()
            )
        )
    assert found[0] == found[1]


NO_JSON = [
    "", "{", "\x00", "[" * 100_000, '{"id": "pat-0", "id": "pat-5", "resourceType": "Patient", "resourceType": "Group"}',
    '{"id": "\\ud800"}', '{"value": 1e999}',
]  # fmt: skip
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
    {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Patient", "id": "pat-1"}}, None, 5, {"fullUrl": 7}]},
    {"resourceType": "Bundle", "entry": {"resource": []}},
    {"fullUrl": "urn:uuid:pat-2", "id": None, "meta": {"lastUpdated": "infinity", "versionId": "99999999999999999999"}},
    {
        "id": "pat-1", "link": [{"type": "replaced-by", "other": 5}, None, 7], "modifierExtension": 5, "implicitRules": [],
        "meta": {"tag": 5, "security": [None, "x", {"system": [], "code": {}}]}, "component": [{"modifierExtension": 0}],
    },
    {"id": "pat-0", "link": [{"type": "replaced-by", "other": {"reference": "Patient/pat-1"}}]},
    {"resourceType": "Bundle", "entry": [{"resource": {"resourceType": "Bundle", "entry": {"resource": 5}}}, {"request": 5}]},
    {"id": "pat-1", "link": "replaced-by", "subject": {"reference": {"reference": "Patient/pat-2"}}, "verificationStatus": 5},
    {"id": "NUL\0", "code": {"coding": [{"system": "\0", "code": "\0"}]}, "subject": {"reference": "Patient/pat-1\0"}},
    {"id": "pat-1", "subject": {"reference": "Patient/pat-1"}, "status": "\0", "partOf": {"reference": "urn:uuid:pat-1"}},
    {
        "subject": {"reference": "Patient/pat-1"}, "partOf": {"reference": "Encounter/Encounter-of-many"},
        "class": {"code": "IMP"},
        "code": {"coding": [{"extension": [None, 5, {"url": CERTAINTY, "valueCoding": "A"}]}, {"extension": "A"}]},
        "_deceasedBoolean": 5, "_deceasedDateTime": [],
    },
    {
        "id": "pat-1", "subject": {"reference": "Patient/pat-1"}, "status": "final", "focus": 5, "active": [],
        "class": {"system": {}, "code": "IMP"},
    },
    {
        "id": "pat-0", "subject": {"reference": "Patient/pat-0"}, "focus": {"reference": [None]}, "verificationStatus": [{}],
        "period": {"start": "290309-12-22 (BC)", "end": "58748-01-01"},
    },
]  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.system) for name in QUERIES[1:]), QUERIES[0]])
def test_no_resource_makes_a_query_fail_or_changes_another_persons_rows(tmp_path: Path, recipe: Path, name: str) -> None:
    files = write_export(tmp_path / "export", make_export())
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
    misses = SourceQuery("misses", (recipe / "misses.sql").read_text(), files=files)
    query_rows(misses)
    assert not risks(query)
    assert not risks(misses)
    check_structure(query, schema, subject="patient")  # with all of them
    load_records(query, schema, "patient")
