"""One record more, whatever it holds, changes nothing that a site says, writes or counts, but for what masks and noise hide.

The same site over the same records with one more and without it: its messages and how long each is, every line of its log,
its metrics, the rows of its state file and the files beside it. What differs between two sites over the very same records is
drawn or follows from what was drawn; of that the lengths are compared alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image
from sqlalchemy import MetaData, inspect, select

from support.durable_studies import ODDS, STUDIES
from support.federation import DATASET, TestBed, make_bed, make_data, make_request, open_test_site
from support.hostile import Adversary, encoded
from support.randomness import SeededRandom
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_participant.protocol import contributions, payloads
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.settings.forms import pixel_names
from veilsum_participant.store.mirrors import keep_mirror_entry
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.training.released import model_digest
from veilsum_proto import federation_pb2 as pb

NAMES = ("a", "b")
COLUMNS = ("x0", "x1", "x2", "y", "who")
SHAPE = (1, 2, 3)
HELD = 40
"""Records that the operator states."""

Row = Sequence[Any]
ROWS: list[Row] = [
    (str(value), str(-value), str(value / 3), str(place % 2), f"p{place // 2}")
    for place, value in enumerate(np.linspace(-1.0, 1.0, 12))
]


def schema(columns: Sequence[str] = COLUMNS[:3]) -> DatasetSchema:
    high = 1.0 if columns == COLUMNS[:3] else 255.0
    numbers = tuple(NumberColumn(name=name, low=-high, high=high) for name in columns)
    classes = tuple(ClassValues(name=f"c{index}", values=(str(index),)) for index in range(2))
    return DatasetSchema(columns=numbers, label=LabelColumn(column="y", classes=classes), max_records=HELD)


# -- forms of datasets, and what a record may hold in each -------------------------------------------------------------------

ODD_CELLS: dict[str, Row] = {
    "plain": ("0.5", "0.5", "0.5", "1", "p99"),
    "of somebody who is there": ("0.5", "0.5", "0.5", "1", "p0"),
    "extreme": ("1e308", "-1e308", "5e-324", "0", "p99"),
    "beyond": ("1e999", "-1e999", "1e-999", "0", "p99"),
    "no numbers": ("nan", "inf", "-inf", "1", "p99"),
    "absent": ("", "", "", "", ""),
    "mis-typed": ("true", "[1]", "2026-02-29", "two", "p99"),
    "long": ("9" * 70_000, "0." + "3" * 70_000, "x" * 70_000, "1" * 70_000, "p" * 70_000),
    "odd signs": ("\x00", "\u202e1", "\u0661", "\ufeff", "\U0001f600"),
}


@dataclass(frozen=True)
class Form:
    """How a dataset lies on the disk.

    Attributes:
        write: puts rows, and one that only this form can hold, into a folder; gives the dataset's settings.
        odd: rows that only this form can hold.
        columns: that studies ask for.
    """

    write: Callable[[Path, Sequence[Any]], Mapping[str, Any]]
    odd: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[str] = COLUMNS[:3]


def line_of(row: Any) -> bytes:
    return row if isinstance(row, bytes) else ",".join(row).encode()


def write_csv(place: Path, rows: Sequence[Any]) -> dict[str, Any]:
    (place / "t.csv").write_bytes(b"\n".join([",".join(COLUMNS).encode(), *map(line_of, rows), b""]))
    return {"path": place / "t.csv", "columns": COLUMNS[:4]}


def write_lines(place: Path, rows: Sequence[Any]) -> dict[str, Any]:
    lines = [row if isinstance(row, bytes) else json.dumps(dict(zip(COLUMNS, row, strict=True))).encode() for row in rows]
    (place / "t.ndjson").write_bytes(b"\n".join([*lines, b""]))
    cells = ", ".join(f"json->>'$.{name}' AS {name}" for name in COLUMNS)
    return {"source": "sql", "query": f"SELECT {cells} FROM t", "files": {"t": place / "t.ndjson"}, "joined": False}  # noqa: S608


def write_parquet(place: Path, rows: Sequence[Any]) -> dict[str, Any]:
    columns = {name: pa.array([row[at] for row in rows], pa.string()) for at, name in enumerate(COLUMNS)}
    parquet.write_table(pa.table(columns), place / "t.parquet")
    return {"path": place / "t.parquet"}


def write_npz(place: Path, rows: Sequence[Any]) -> dict[str, Any]:
    numbers = [[_number(cell) for cell in row[:3]] for row in rows]
    texts = {name: np.array([row[at] for row in rows], dtype="U12") for at, name in ((3, "y"), (4, "who"))}
    np.savez(place / "t.npz", **dict(zip(COLUMNS[:3], np.array(numbers).T, strict=True)), **texts)
    return {"path": place / "t.npz"}


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def write_images(place: Path, rows: Sequence[Any]) -> dict[str, Any]:
    """Each row of a table names a picture; an odd one is a file's bytes."""
    (place / "scans").mkdir(exist_ok=True)
    lines = [b"file,y,who"]
    for at, row in enumerate(rows):
        file = place / "scans" / f"{at}.png"
        if isinstance(row, bytes):
            file.write_bytes(row)
        else:
            Image.fromarray(np.full(SHAPE[1:], 5 * at, dtype=np.uint8)).save(file)
        lines.append(f"{file.name},{at % 2},p{at}".encode())
    (place / "t.csv").write_bytes(b"\n".join([*lines, b""]))
    return {
        "path": place / "t.csv",
        "columns": ("y",),
        "images": {"folder": place / "scans", "column": "file", "shape": SHAPE},
    }


def pictures() -> dict[str, bytes]:
    """What a file of a folder of images may hold."""
    whole = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR"
    return {
        "empty": b"",
        "no image": b"x" * 1000,
        "cut": whole,
        "huge": whole + b"\x7f\xff\xff\xff" * 2 + b"\x08\x02\x00\x00\x00",
        "of gzip": b"\x1f\x8b" + bytes(400),
        "of DICOM": bytes(128) + b"DICM" + b"\xff" * 64,
        "of JPEG": b"\xff\xd8\xff" + b"\xe0" * 99,
        "of NIfTI": b"\x5c\x01\x00\x00" + b"\xff" * 344 + b"n+1\x00",
    }


LINES_OF_CSV = {
    "few cells": b"1",
    "many cells": b"," * 99,
    "open quote": b'"0.5,0.5,0.5,1,p9',
    "no line": b"",
    "latin-1": b"\xff\xfe,\xe9,1,1,p",
    "packed": b"\x1f\x8b\x08" + b"\x00" * 99,
    "a line too long": b"1" * (1 << 24) + b"1",
}
LINES_OF_JSON = {
    "no JSON": b"{",
    "packed": b"BZh91AY",
    "UTF-16": b"\xff\xfe{\x00",
    "zeros": b"{\x00" * 3000,
    "other types": b'{"x0": [1], "x1": {"a": 1}, "y": 1.0}',
    "deep": b"[" * 50_000 + b"]" * 50_000,
    "keys": b'{"x0": 1, "x0": 2, "y": "1", "y": null}',
    "half a letter": b'{"y": "\\ud800", "who": "\\udfff"}',
    "another list": b"[1, 2]",
    "1e99999": b'{"x0": 1e99999, "x1": -0, "y": "0", "who": 7}',
}
FORMS = {
    "csv": Form(write_csv, LINES_OF_CSV),
    "ndjson": Form(write_lines, LINES_OF_JSON),
    "parquet": Form(write_parquet, {"nulls": (None,) * 5}),
    "npz": Form(write_npz),
    "images": Form(write_images, pictures(), pixel_names(SHAPE)),
}


# -- a site, and all that can be seen of it ---------------------------------------------------------------------------------


class Lines(logging.Handler):
    """Keeps every line of every level."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.name} {record.getMessage()} {sorted(getattr(record, 'about', {}))}")


class Side:
    """Two sites of which the first has the records."""

    def __init__(self, directory: Path, first: TestBed) -> None:
        self.bed = self._beside(directory, first)
        for name, site in self.bed.sites.items():
            site.random, site.noise_random = (
                SeededRandom(name.encode()),
                SeededRandom(f"noise of {name} {directory.name}".encode()),
            )
            site.ledger._chain._random = SeededRandom(b"ledger")
        self.attack = Adversary(self.bed)
        self.site, self.place = self.bed.sites["a"], directory / "data"
        self.place.mkdir()
        self.site.observer = self.metrics = SiteMetrics(self.site)

    @staticmethod
    def _beside(directory: Path, first: TestBed) -> TestBed:
        sites = {}
        for name, site in first.sites.items():
            (directory / name).mkdir(parents=True)
            config = site.config.model_copy(update={"state": directory / name / "participant.db"})
            sites[name] = open_test_site(config, first.clock, SeededRandom(name.encode()), (None, 1e-5))
        beside = copy(first)
        beside.sites = sites
        return beside

    def offer(self, form: Form, rows: Sequence[Any]) -> None:
        offered = DatasetConfig.model_validate({"subject": "who", "most_records": HELD, **form.write(self.place, rows)})
        policy = self.site.config.policy.model_copy(update={"units": ("record", "subject")})
        for site in self.bed.sites.values():
            site.config = site.config.model_copy(update={"datasets": {DATASET: offered}, "policy": policy})
            site.datasets.let_go()

    def seen(self, study: Study) -> dict[str, Any]:
        """Everything that can be seen of the first site in a round of a study, by where it is seen."""
        attack, handler, logger = self.attack, Lines(), logging.getLogger("veilsum")
        before = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        start = len(attack.channels["a"].said)
        try:
            attack.use(study)
            members = [*self.bed.sites]
            made = [attack.enrol(name) for name in members]
            if all(said.call == "enrol" for said in made):
                boxes = attack.boxes([said.values[1] for said in made])
                for name in members:
                    attack.show_boxes(name, [box for box in boxes if box.recipient == name])
                label = study.tasks[0].label
                broadcast = encoded(study, label, made_up_broadcast(AgreedStudy(study).task(label))[1])
                assignment = attack.assignment(members, broadcast=broadcast, label=label)
                for name in members:
                    assert attack.assign(name, assignment, broadcast).call == "upload"
                answers = attack.answers()
                for name in members:
                    assert attack.ask_consent(name, answers).call == "consent"
                    attack.tell(name, pb.DIRECTIVE_KIND_RELEASED, 1, 1)
                for name in members:
                    attack.tell(name, pb.DIRECTIVE_KIND_END)
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before)
        found: dict[str, Any] = dict(flat("said", [[said.call, said.values] for said in attack.channels["a"].said[start:]]))
        found |= flat(
            "log",
            [line.replace(str(self.place), "").replace(str(self.site.config.state.parent), "") for line in handler.lines],
        )
        found |= flat("metrics", self._metrics())
        found |= flat("rows", self._rows())
        found |= flat("files", sorted(path.name for path in self.site.config.state.parent.rglob("*")))
        return found

    def _metrics(self) -> list[str]:
        told = []
        for family in self.metrics.registry.collect():
            if not any(word in family.name for word in ("seconds", "process_", "bytes_free", "storage", "disk", "info")):
                told += [f"{sample.name} {sorted(sample.labels.items())} {sample.value}" for sample in family.samples]
        return told

    def _rows(self) -> list[Any]:
        tables = MetaData()
        with self.site.database.reading() as connection:
            tables.reflect(connection)
            assert inspect(connection).has_table("ledger")
            return [
                [name, *[sorted(row._mapping.items()) for row in connection.execute(select(table))]]
                for name, table in sorted(tables.tables.items())
            ]


def flat(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The leaves of a value, each by its place."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from flat(place, {item.name: getattr(value, item.name) for item in dataclasses.fields(value)})
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from flat(f"{place}.{name}", inner)
    elif isinstance(value, list | tuple):
        yield f"{place}.length", len(value)
        for at, inner in enumerate(value):
            yield from flat(f"{place}.{at}", inner)
    elif isinstance(value, bytes | memoryview):
        try:
            yield from flat(f"{place}.json", json.loads(bytes(value)))
        except ValueError:
            yield place, bytes(value)
    elif isinstance(value, str) and value[:1] in "{[" and value:
        yield from flat(f"{place}.json", json.loads(value))
    else:
        yield place, value


def outline(value: Any) -> Any:
    """What is compared of a value that is drawn: its length, which of a signature is one of five."""
    if not isinstance(value, bytes | str):
        return type(value)
    longest = 72 if isinstance(value, bytes) else 144
    return type(value), longest if longest * 17 // 18 <= len(value) <= longest else len(value)


def compare(control: Sequence[Mapping[str, Any]], other: Mapping[str, Any]) -> None:
    """Hold what one site shows to what two over the same records show."""
    one, two = control
    assert one.keys() == two.keys()
    assert one.keys() == other.keys(), sorted(one.keys() ^ other.keys())[:9]
    for place, value in one.items():
        if value == two[place]:
            assert other[place] == value, place
        else:
            assert outline(other[place]) == outline(value), place


@pytest.fixture
def sides(tmp_path: Path) -> list[Side]:
    bed = make_bed(tmp_path / "kit", make_data(NAMES, width=3))
    return [Side(tmp_path / str(number), bed) for number in range(3)]


PERCEPTRON = {"name": "mlp", "options": {"hidden": 3}}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "statistics": ("statistics", {}),
    "moments": ("fedcgs", {}),
    "regression": ("regression", ODDS),
    "gradients": ("fedsgd", {"steps": 2, "followed": False, "sampling_rate": 1.0, "model": PERCEPTRON}),
    "training": ("fedavg", {"rounds": 2}),
}


def study_of(bed: TestBed, method: str, form: Form, unit: str, epsilon: float | None = 4.0) -> Study:
    name, parameters = METHODS[method]
    request = make_request(schema(form.columns), name, epsilon, min_cohort=2, unit=unit)
    if name == "regression":
        parameters = {**parameters, "over": list(form.columns[:2])}
    if unit == "subject" and name in ("statistics", "regression"):
        parameters = {**parameters, "person": "first"}
    return bed.compile(request.model_copy(update={"parameters": request.parameters | parameters}))


def differ(sides: Sequence[Side], form: Form, study: Study, extra: Sequence[Any]) -> None:
    """Compare the site over the usual records, twice, with the one over some more."""
    for side, rows in zip(sides, (ROWS, ROWS, [*ROWS[:5], *extra, *ROWS[5:]]), strict=True):
        side.offer(form, rows)
    first, again, other = (side.seen(study) for side in sides)
    compare((first, again), other)
    assert "upload" in first.values(), [value for value in first.values() if isinstance(value, RefusalCode)]


KINDS = [(name, kind) for name, form in FORMS.items() for kind in (*form.odd, *([] if name == "images" else ODD_CELLS))]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_one_record_more_shows_nowhere(sides: list[Side], name: str, kind: str) -> None:
    form = FORMS[name]
    extra = form.odd[kind] if kind in form.odd else ODD_CELLS[kind]
    differ(sides, form, study_of(sides[0].bed, "statistics", form, "record"), [extra])


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("name", "method", "unit"),
    [case for case in itertools.product(FORMS, METHODS, ("record", "subject")) if case[1:] != ("training", "subject")],
)
def test_none_of_many_odd_records_shows_anywhere(sides: list[Side], name: str, method: str, unit: str) -> None:
    form = FORMS[name]
    extra = [*form.odd.values(), *([] if name == "images" else ODD_CELLS.values())]
    differ(sides, form, study_of(sides[0].bed, method, form, unit), extra)


def alone(value: Mapping[str, Any], task: dict[str, Any]) -> Study:
    """A study of one of its tasks; a model that it names is the one that is made up for the broadcast."""
    parameters = dict(task["parameters"])
    parameters.pop("steps", None)  # which would have other releases before
    study = parse_study(canonical({**value, "tasks": [{**task, "parameters": parameters}]}))
    if "sha256" not in parameters:
        return study
    architecture = AgreedStudy(study).task(task["label"]).task.architecture
    assert architecture is not None
    parameters["sha256"] = model_digest(architecture, architecture.initial(0))
    return parse_study(canonical({**value, "tasks": [{**task, "parameters": parameters}]}))


@pytest.mark.sampled(17)
@pytest.mark.parametrize("method", STUDIES)
def test_no_task_shows_odd_records(tmp_path: Path, method: str) -> None:
    """Each task that reads records, by itself, of every method's study."""
    bed = make_bed(tmp_path / "kit", make_data("abcd", width=3), disclosures=("joint", "per-site"))
    value = parse_canonical(STUDIES[method](bed).to_bytes(), what="study")
    tasks = [task for task in value["tasks"] if not task["source"]]
    assert tasks
    for task in tasks:
        sides = [Side(tmp_path / task["label"] / str(number), bed) for number in range(3)]
        differ(sides, FORMS["csv"], alone(value, task), [*LINES_OF_CSV.values(), *ODD_CELLS.values()])


@pytest.mark.parametrize("where", ["a code", "a length", "a line", "a count", "an entry", "a row"])
def test_what_shows_is_found(sides: list[Side], monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Each of these, planted, follows from how many records there are."""
    real = contributions.contribute

    def planted(plan: Any, load: Any, *given: Any) -> Any:
        found, records = real(plan, load, *given), sum(map(len, load()))
        site = next(side.site for side in sides if side.place == planted_at[0])
        match where if records > len(ROWS) else "":
            case "a code":
                raise Refusal(RefusalCode.TASK, "more")
            case "a length":
                monkeypatch.setattr(payloads, "cut", lambda payload, plan: [memoryview(payload)])
            case "a line":
                contributions.LOG.debug("more")
            case "a count":
                site.observer.cut()
            case "an entry":
                site.ledger.checkpoint()
            case "a row":
                with site.database.transaction() as connection:
                    keep_mirror_entry(connection, "coordinator", 1)
        return found

    planted_at: list[Path] = []
    seen = Side.seen
    monkeypatch.setattr(Side, "seen", lambda side, study: (planted_at.insert(0, side.place), seen(side, study))[1])
    monkeypatch.setattr(contributions, "contribute", planted)
    form = FORMS["csv"]
    with pytest.raises(AssertionError):
        differ(sides, form, study_of(sides[0].bed, "statistics", form, "record"), [ODD_CELLS["plain"]])
