"""What an analyst writes: studies and schemas in TOML, compiled as they are before they are signed; and every other TOML file.

Each begins from one of the repository's own files and is spoilt along its structure: keys, kinds of values, numbers, nesting.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import random
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzzing.driver import Unexpected
from fuzzing.mutation import EDGES, ODD_TEXTS, mutate_bytes, mutate_json, mutate_text
from fuzzing.targets.base import Corpus
from fuzzing.targets.settings import COORDINATOR, PARTICIPANT
from support.studies import SITES, drafted
from veilsum.access import load_analyst
from veilsum.request import load_study_request
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_node.errors import VeilsumError
from veilsum_node.web.settings import load_console
from veilsum_participant.settings.config import load_participant_config
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.study.study import parse_study

ROOT = Path(__file__).parents[3]
SCHEMA = "schema.toml"
GROUPS = 'code,group\nE10..E14,diabetes\nI21,"infarction, acute"\n'


def _samples() -> dict[str, list[dict[str, Any]]]:
    """Tables of the repository's own files and of its pages, by what reads them."""
    paths = [path for place in ("tests/evaluations", "deploy") for path in ROOT.glob(f"{place}/**/*.toml")]
    texts = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    for page in ("docs/methods.md", "docs/statistics.md", "docs/scientist.md", "docs/console.md", "docs/deployment/logins.md"):
        texts += re.findall(r"^```toml\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    found: dict[str, list[dict[str, Any]]] = {"study": [], "schema": []}
    for text in texts:
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            continue
        if {"method", "privacy"} <= table.keys():
            found["study"].append(table)
        elif "columns" in table:
            found["schema"].append(table)
    return found


def write_toml(value: Any, top: bool = True) -> str:
    """A table as TOML, with inline tables for what is in it."""
    match value:
        case dict() if top:
            return "".join(f"{_text(key)} = {write_toml(item, False)}\n" for key, item in value.items())
        case dict():
            return "{" + ", ".join(f"{_text(key)} = {write_toml(item, False)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(write_toml(item, False) for item in value) + "]"
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case int():
            return str(value)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case None:
            return '"None"'
    return _text(value)


def _text(text: str) -> str:
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007f")


OTHERS: dict[str, dict[str, Any]] = {
    "participant": tomllib.loads(PARTICIPANT),
    "coordinator": tomllib.loads(COORDINATOR),
    "analyst": {"coordinator": "h:1", "identity": "identity", "proxy": "p:1", "proxy_user": "u", "proxy_password_file": "w"},
    "console": {"listen": "127.0.0.1:0", "url": "https://console.example", "idle_minutes": 5, "log": {"level": "info"}},
}

LOADERS: dict[str, Callable[[Path], object]] = {
    "participant": load_participant_config,
    "coordinator": load_coordinator_config,
    "analyst": load_analyst,
    "console": lambda path: load_console(path, demanded=True),
}


class Requests(Corpus):
    """Studies, schemas and settings as tables, written as TOML."""

    name = "requests"
    kinds = ("study", "study", "study", "schema", *OTHERS)
    readers = len(kinds)

    def __init__(self) -> None:
        super().__init__()
        self.tables = _samples() | {name: [table] for name, table in OTHERS.items()}
        assert len(self.tables["study"]) > 50, "the repository's own studies are where the samples come from"
        self.schemas = self.tables["schema"]
        self.tables["study"] += [{**table, "schema": SCHEMA} for table in self.tables["study"] if "data" not in table]
        self.file("groups.csv", GROUPS.encode())
        self.file(SCHEMA, write_toml(self.schemas[0]).encode())
        for reader, kind in enumerate(self.kinds):
            self.seeds[reader] = [self._whole(kind, table).encode() for table in self.tables[kind]]

    def _whole(self, kind: str, table: dict[str, Any]) -> str:
        """A table as a file whose schema is there: the one that lies beside it, or in it."""
        if kind == "study" and "data" not in table and table.get("schema") != SCHEMA:
            table = {key: value for key, value in table.items() if key != "schema"} | {"data": self.schemas[0]}
        return write_toml(table)

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        seed = rng.choice(self.seeds[reader])
        if rng.random() < 0.1:
            return mutate_text(rng, seed.decode("utf-8", "replace")).encode("utf-8", "surrogatepass")
        if rng.random() < 0.05:
            return mutate_bytes(rng, seed)
        try:
            table = tomllib.loads(seed.decode())
        except (ValueError, RecursionError):
            return None
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            table = self._spoilt(rng, table, rng.choice(self.tables[self.kinds[reader]]))
        return write_toml(table).encode("utf-8", "surrogatepass")

    def _spoilt(self, rng: random.Random, table: Any, other: Any) -> Any:
        """The table with one place changed, by another kind of value, an edge, or what another sample has there."""
        places = list(_places(table))
        if not places or rng.random() < 0.15:
            found = mutate_json(rng, json.loads(json.dumps(table, default=str)))
            return found if isinstance(found, dict) else {"x": found}
        holder, key = rng.choice(places)
        old = holder[key]
        match rng.randrange(6):
            case 0:
                holder[key] = _value(rng)
            case 1 if isinstance(old, int | float):
                edges = (-old, 1e308, 5e-324, math.inf, math.nan, -1, 0, 1, rng.choice(EDGES))
                holder[key] = rng.choice((*edges, old * 10**9) if isinstance(old, int) else (*edges, old * 1e9, old / 1e9))
            case 2 if isinstance(old, str):
                words = [item[at] for item, at in places if isinstance(item[at], str)]
                holder[key] = rng.choice((rng.choice(words), mutate_text(rng, old), old + old, old.upper(), "", "\0"))
            case 3 if isinstance(old, list):
                more = rng.choice((0, 2, 50))
                holder[key] = copy.deepcopy((old * more)[:5000])
            case 4 if others := [item[at] for item, at in _places(other) if at == key]:
                holder[key] = copy.deepcopy(rng.choice(others))
            case _:
                given, name = rng.choice(list(_places(other)) or [(other, next(iter(other)))])
                if isinstance(holder, dict) and isinstance(name, str):
                    holder[name] = copy.deepcopy(given[name])
                else:
                    holder[key] = copy.deepcopy(given[name])
        return table

    def read(self, reader: int, data: bytes) -> None:
        path = self.file("file.toml", data)
        kind = self.kinds[reader]
        try:
            if kind == "study":
                request = load_study_request(path)
                if request.privacy.error is None:  # an error is sought by rehearsals, for minutes
                    draft = drafted(request, request.participants or SITES)
                    # the noise of sampled steps is sought for seconds; their price is told in less
                    study = draft.compile_with(1.0) if "sampling_rate" in request.parameters else draft.compile()
                    if parse_study(study.to_bytes()) != study:
                        raise Unexpected("the study that was compiled is not the one that is read")
            elif kind == "schema":
                repr(load_schema(path))
            else:
                repr(LOADERS[kind](path))
        except VeilsumError as error:
            if not re.search(r"\w.*[.?]", str(error)) or "Traceback" in str(error) or " object at 0x" in str(error):
                raise Unexpected(f"no sentence: {error}") from error
            raise


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a table: what holds it, and its key or index."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _value(rng: random.Random) -> Any:
    """Some value that TOML has."""
    return rng.choice((
        [], {}, "", True, False, 0, -1, 1, 0.0, -0.0, math.nan, math.inf, -math.inf, [[]], {"a": 1}, [{}], ["a", "a"],
        datetime.date(1979, 5, 27), datetime.datetime(1, 1, 1, tzinfo=datetime.UTC), datetime.time(0, 0), 10**400, 2**63,
        1e308, rng.choice(ODD_TEXTS), rng.choice(EDGES), "\0", "nan", "1", "/", ".", SCHEMA, {"file": "groups.csv"},
        {"file": "../.."}, {"file": "\0"},
    ))  # fmt: skip
