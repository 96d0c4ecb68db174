"""Secrets of a real run are looked for in what others may read: logs, errors, metrics, statuses, representations."""

from __future__ import annotations

import base64
import dataclasses
import gc
import importlib
import io
import json
import logging
import pkgutil
import random
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from fuzzing.targets.coordinator import Coordinator
from fuzzing.targets.participant import Participant
from fuzzing.targets.stage import PHASES, Stage
from prometheus_client import generate_latest
from sqlalchemy import select

import veilsum_coordinator
import veilsum_participant
import veilsum_privacy
from support.federation import make_request, schema_of
from support.processes import running_processes
from veilsum_coordinator.settings import Waits
from veilsum_participant import store
from veilsum_participant.route import Proxy
from veilsum_privacy.database import reading

HOSTILE_INPUTS = 120
SHORTEST = 12
"""Bytes of a secret by which it is known again."""


def spellings(secret: bytes) -> Iterator[bytes]:
    """How a secret may be written: hexadecimal, base64, Python's representation, as it is."""
    part = secret[: max(SHORTEST, len(secret) // 2)]
    yield part
    yield part.hex().encode()
    yield base64.b64encode(secret)[: 4 * (len(part) // 3)]
    yield repr(part)[2:-1].encode()


def look_for(secrets: dict[str, bytes], text: bytes, where: str) -> None:
    """Fail if one of them is in the text."""
    lowered = text.lower()
    for name, secret in secrets.items():
        for spelling in spellings(secret):
            assert spelling not in text, f"{name} in {where}"
            assert spelling.lower() not in lowered, f"{name} in {where}"


def private_number(pem: bytes) -> bytes:
    """The private number of a key."""
    key = load_pem_private_key(pem, None)
    return int(key.private_numbers().private_value).to_bytes(32, "big")  # type: ignore[union-attr]


def stored(stage: Stage) -> dict[str, bytes]:
    """What the sites keep to themselves at this moment: study keys, seeds, consents."""
    found: dict[str, bytes] = {}
    for name, site in stage.bed.sites.items():
        found[f"{name} key"] = private_number(site.credentials.key_pem)
        with reading(site.engine) as connection:
            for row in connection.execute(select(store.STUDIES)).mappings():
                for column in ("box_key", "secret_key", "tag_key"):
                    if row[column] is not None:
                        found[f"{name} {column} {row['digest'].hex()[:8]}"] = row[column][-64:]
                for peer, seed in json.loads(row["seeds"] or b"{}").items():
                    found[f"{name} seed with {peer} {row['digest'].hex()[:8]}"] = bytes.fromhex(seed)
            for row in connection.execute(select(store.ATTEMPTS)).mappings():
                for column in ("self_seed", "consent"):
                    if row[column] is not None:
                        found[f"{name} {column} {row['context'].hex()[:8]}"] = row[column]
    return found


def representations() -> bytes:
    """How everything of the project that is alive shows itself."""
    shown = []
    for item in gc.get_objects():
        module = type(item).__module__
        if isinstance(module, str) and module.startswith("veilsum_") and "_pb2" not in module:
            shown.append(repr(item))
    return "\n".join(shown).encode("utf-8", "surrogateescape")


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
    target, rng = kind(), random.Random(0)
    stage, secrets, said = target.stage, {}, []
    try:
        for phase in PHASES:
            stage.bring_to(phase)
            secrets |= stored(stage)
            look_for(stored(stage), representations(), f"a representation ({phase})")
            said.append(str([stage.hub.status(key) for key in stage.hub.studies]))
        assert {key.split()[1] for key in secrets} >= {
            "key",
            "box_key",
            "secret_key",
            "tag_key",
            "seed",
            "self_seed",
            "consent",
        }
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


def test_the_search_finds_what_is_there() -> None:
    secret = bytes(range(100, 132))
    for text in (secret, secret.hex().upper().encode(), base64.b64encode(b"abc" + secret)[4:], repr(secret).encode()):
        with pytest.raises(AssertionError, match="planted in a text"):
            look_for({"planted": secret}, b"x" + text + b"y", "a text")


SECRET_NAMES = re.compile(r"(^|_)(password|secret|seed|seeds|key_pem|self_seed|token|consents?|authorization|private)$")
OPAQUE = ("SecretKey", "BoxKey", "TagKey", "SigningKey", "SecretStr", "bool", "int", "Path")
PUBLIC = {
    ("Receipt", "consent"),  # a commitment, not the consent
    ("KeptReceipt", "consent"),
}


def test_no_dataclass_shows_a_field_that_holds_a_secret() -> None:
    checked = 0
    for package in (veilsum_privacy, veilsum_participant, veilsum_coordinator):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__") or ".migrations." in module.name:
                continue
            for kind in vars(importlib.import_module(module.name)).values():
                if not (isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == module.name):
                    continue
                for field in dataclasses.fields(kind):
                    if not SECRET_NAMES.search(field.name) or (kind.__name__, field.name) in PUBLIC:
                        continue
                    checked += 1
                    assert not field.repr or any(word in str(field.type) for word in OPAQUE), f"{kind}: {field.name}"
    assert checked > 5
    assert "word" not in repr(Proxy("proxy:1", "user", "pass-word"))


PRIVATE = stat.S_IRWXG | stat.S_IRWXO
READABLE = {
    "certificate.pem",
    "authority.pem",
    "ready",
    "coordinator.toml",
    "participant.toml",
    "records.npz",
    "log",
    "request.csr",
    "index.jsonl",
}


def test_processes_that_log_everything_write_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes with debug logs and temporary files in a known place; one is killed."""
    monkeypatch.setenv("VEILSUM__LOG__LEVEL", "debug")
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    rng = np.random.default_rng(5)
    data = {name: (rng.uniform(-1, 1, (9, 2)), rng.integers(0, 2, 9)) for name in "abc"}
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
