"""Secrets of a real run are looked for in what others may read: logs, errors, metrics, statuses, representations."""

from __future__ import annotations

import base64
import gc
import io
import json
import logging
import random
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fuzzing.targets.coordinator import Coordinator
from fuzzing.targets.participant import Participant
from fuzzing.targets.stage import PHASES, Stage
from prometheus_client import generate_latest
from sqlalchemy import inspect, select

from support.federation import make_data, make_request, schema_of
from support.planted import look_for
from support.processes import running_processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_participant.store.attempts import ATTEMPTS
from veilsum_participant.store.studies import STUDIES

HOSTILE_INPUTS = 40


def private_number(pem: bytes) -> bytes:
    """The private number of a key."""
    key = load_pem_private_key(pem, None)
    return int(key.private_numbers().private_value).to_bytes(32, "big")  # type: ignore[union-attr]


def stored(stage: Stage) -> dict[str, bytes]:
    """What the sites keep to themselves at this moment: keys, seeds, masked words, consents."""
    found: dict[str, bytes] = {}
    for name, site in stage.bed.sites.items():
        found[f"{name} key"] = private_number(site.credentials.key_pem)
        with site.database.reading() as connection:
            for row in connection.execute(select(STUDIES)).mappings():
                if row["box_key"] is not None:
                    found[f"{name} box_key {row['digest'].hex()[:8]}"] = row["box_key"][-64:]
                for peer, seed in json.loads(row["seeds"] or b"{}").items():
                    found[f"{name} seed with {peer} {row['digest'].hex()[:8]}"] = bytes.fromhex(seed)
            for row in connection.execute(select(ATTEMPTS)).mappings():
                for column in ("words", "consent"):
                    if row[column] is not None:
                        found[f"{name} {column} {row['context'].hex()[:8]}"] = row[column][-64:]
    return found


def alive() -> list[Any]:
    """Everything of the project that is alive."""
    own: dict[type, bool] = {}

    def is_own(kind: type) -> bool:
        module = kind.__module__
        return isinstance(module, str) and module.startswith("veilsum_") and "_pb2" not in module

    gc.unfreeze()  # what was collected is frozen, and hidden with that
    found = []
    for item in gc.get_objects():
        kind = type(item)
        if (wanted := own.get(kind)) is None:
            wanted = own[kind] = is_own(kind)
        if wanted:
            found.append(item)
    gc.freeze()
    return found


def said_of(item: object) -> str:
    """An object's representation, or its fields' if it has none, whatever the reason: nothing hides behind an exception.

    Objects of other tests may be half made, such as a log's handler without its file, or deeper than the stack.
    """
    try:
        return repr(item)
    except Exception:  # noqa: BLE001
        return "\n".join(_field(getattr(item, name, None)) for name in sorted(_fields(item)))


def _fields(item: object) -> set[str]:
    named = (vars(kind).get("__slots__", ()) for kind in type(item).__mro__)
    slots = {name for names in named for name in ([names] if isinstance(names, str) else names)}
    return slots | set(getattr(item, "__dict__", ()))


def _field(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001
        return f"{type(value).__qualname__}: {type(error).__qualname__}"


def representations(but: list[Any]) -> bytes:
    """How everything of the project that is alive shows itself, but some; what several show alike is there once."""
    left_out = {id(item) for item in but}
    said = {said_of(item) for item in alive() if id(item) not in left_out}
    return "\n".join(said).encode("utf-8", "surrogateescape")


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The project's own log at the lowest level, libraries' from warnings on, as the processes have it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root, own = logging.getLogger(), logging.getLogger("veilsum")
    level = own.level
    root.addHandler(handler)
    own.setLevel(logging.DEBUG)
    yield stream
    root.removeHandler(handler)
    own.setLevel(level)


@pytest.mark.parametrize("kind", [Coordinator, Participant])
def test_nothing_leaves_of_a_study_under_attack(kind: type[Coordinator] | type[Participant], log: io.StringIO) -> None:
    older = alive()  # of other tests, and what modules hold: looked through once, when all secrets are there
    target, rng = kind(), random.Random(0)
    stage, secrets, said = target.stage, {}, []
    try:
        for phase in PHASES:
            stage.bring_to(phase)
            secrets |= (found := stored(stage))
            if kind is Coordinator:  # the other's stage and its phases are the same
                look_for(found, representations(older if phase != "consenting" else []), f"a representation ({phase})")
            said.append(str([stage.hub.shown.status(key) for key in (*stage.hub.studies, *stage.hub.ended)]))
        assert {key.split()[1] for key in secrets} >= {"key", "box_key", "seed", "words", "consent"}
        for _ in range(HOSTILE_INPUTS):
            try:
                target.run(target.case(rng))
            except target.allowed as error:
                said += [str(error), repr(error), repr(error.__cause__)]
            if stage.phase != "over":
                secrets |= stored(stage)
        metrics = generate_latest(stage.metrics.registry)
    finally:
        target.close()
    assert len(log.getvalue()) > 1000
    for where, text in (("the log", log.getvalue()), ("errors and statuses", "\n".join(said))):
        look_for(secrets, text.encode("utf-8", "surrogateescape"), where)
    look_for(secrets, metrics, "metrics")


class _Unshowable:
    """An object whose representation fails."""

    __slots__ = ("__dict__", "secret")

    def __init__(self, error: type[Exception], secret: bytes, beside: object) -> None:
        self.error, self.secret, self.beside = error, secret, beside

    def __repr__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [AttributeError, RecursionError, ValueError, KeyError])
@pytest.mark.parametrize("place", ["slot", "field"])
def test_nothing_hides_behind_a_representation_that_fails(error: type[Exception], place: str) -> None:
    secret = bytes(range(100, 132))
    other = _Unshowable(error, b"", None)
    item = _Unshowable(error, secret, other) if place == "slot" else _Unshowable(error, b"", [secret])
    with pytest.raises(AssertionError, match="planted in a text"):
        look_for({"planted": secret}, said_of(item).encode(), "a text")
    said_of(_Unshowable.__new__(_Unshowable))  # of which nothing was made


def test_the_search_finds_what_is_there() -> None:
    secret = bytes(range(100, 132))
    for text in (secret, secret.hex().upper().encode(), base64.b64encode(b"abc" + secret)[4:], repr(secret).encode()):
        with pytest.raises(AssertionError, match="planted in a text"):
            look_for({"planted": secret}, b"x" + text + b"y", "a text")


PRIVATE = stat.S_IRWXG | stat.S_IRWXO
READABLE = {
    "certificate.pem",
    "authority.pem",
    "ready",
    "coordinator.toml",
    "participant.toml",
    "records.npz",
    "log",
    "metrics-address",
    "request.csr",
    "index.jsonl",
}


def test_processes_that_log_everything_write_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes with debug logs and temporary files in a known place; one is killed."""
    monkeypatch.setenv("VEILSUM__LOG__LEVEL", "debug")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    data = make_data("ab", 9)
    with running_processes(tmp_path / "federation", data, waits=Waits(grace=2, contribute=8), budget=(1.0, 1e-5)) as processes:
        key = processes.submit(processes.compile(make_request(schema_of(2), epsilon=None)))
        ended = processes.await_end(key)
        refused = processes.await_end(processes.submit(processes.compile(make_request(schema_of(2), epsilon=900.0))))
        processes.participants["a"].kill()
        shown = str([ended, refused])
        root = tmp_path / "federation"
        keys = {str(path): private_number(path.read_bytes()) for path in root.rglob("key.pem")}
        values = {f"{name} record": f"{cell:.12f}".encode() for name, (cells, _) in data.items() for cell in cells.flat}
        assert len(keys) >= 4
        logs = b"".join(path.read_bytes() for path in root.rglob("log"))
        assert logs.count(b"\n") > 10
        for secrets in (keys, values):
            look_for(secrets, logs, "a log")
            look_for(secrets, shown.encode(), "a status")
        open_files = [path for path in root.rglob("*") if path.is_file() and path.stat().st_mode & PRIVATE]
        assert {path.name for path in open_files} <= READABLE, open_files
    assert [path for path in scratch.rglob("*") if path.is_file()] == []


def test_what_a_stolen_database_of_a_coordinator_shows() -> None:
    """In every phase of a study: no site's key, no seed, no masked word, no consent that was not given."""
    target = Coordinator()
    stage, seen = target.stage, set()
    try:
        for phase in PHASES:
            stage.bring_to(phase)
            secrets = stored(stage)
            given = set(consents(stage))
            content = database(stage)
            assert stage.key in content
            kept = {name: secret for name, secret in secrets.items() if secret not in given}
            look_for(kept, content, f"the coordinator's database ({phase})")
            seen |= {name.split()[1] for name in kept}
    finally:
        target.close()
    assert seen >= {"key", "box_key", "seed", "words", "consent"}


def consents(stage: Stage) -> Iterator[bytes]:
    """What members gave the coordinator: the secrets of their self-masks, each for one attempt that they consented to."""
    for site in stage.bed.sites.values():
        with site.database.reading() as connection:
            for row in connection.execute(select(ATTEMPTS)).mappings():
                if row["state"] in ("consented", "released"):
                    yield row["consent"][-64:]


def database(stage: Stage) -> bytes:
    """Every value of every table of the coordinator's database."""
    parts: list[bytes] = []
    with stage.hub.journal.database.reading() as connection:  # type: ignore[attr-defined]
        for table in inspect(connection).get_table_names():
            for row in connection.exec_driver_sql(f'SELECT * FROM "{table}"'):  # noqa: S608
                parts += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    return b"\n".join(parts)
