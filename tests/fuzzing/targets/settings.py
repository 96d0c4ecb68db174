"""What an operator writes or is handed: configuration files, variables, identities, bundles of authorities."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from fuzzing.driver import Unexpected
from fuzzing.mutation import ODD_TEXTS, mutate_text
from fuzzing.targets.base import Corpus
from support.federation import make_bed, make_data
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config
from veilsum_node.identity import load_credentials
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_node.overrides import Loaded, effective, load_settings
from veilsum_node.transport.route import read_roots
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config

PARTICIPANT = """
coordinator = "coordinator.example:8461"
identity = "identity"
state = "participant.db"
proxy = "proxy.example:3128"
proxy_user = "site"
proxy_password_file = "password"

[log]
level = "debug"
format = "json"

[metrics]
listen = "127.0.0.1:9464"

[datasets.records]
path = "records.npz"
population = "adults"
subject = "person"

[encoders.images]
path = "encoder.pt"

[budgets.adults]
epsilon = 3.0
delta = 1e-6

[policy]
analysts = ["*"]
min_cohort = 3
noise = ["distributed", "local"]
max_epsilon = 1.5

[policy.trusted]
north = "abababababababababababababababababababababababababababababababab"
"""
COORDINATOR = """
listen = "0.0.0.0:8461"
identity = "identity"
state = "state"
database = "postgresql://user@host/name"
max_peer_streams = 16

[waits]
enrol = 60
contribute = 600

[tls]
certificate = "tls.pem"
key = "tls.key"
"""


class Configuration(Corpus):
    """``participant.toml`` and ``coordinator.toml``."""

    name = "configuration"
    readers = 2

    def __init__(self) -> None:
        super().__init__()
        self.seeds = [[PARTICIPANT.encode()], [COORDINATOR.encode()]]
        for reader, (whole,) in enumerate(self.seeds):
            self.read(reader, whole)  # what is spoilt is valid

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        if rng.random() < 0.3:
            return None
        lines = rng.choice(self.seeds[reader]).decode("utf-8", "ignore").splitlines()
        for _ in range(rng.choice((1, 1, 2, 3))):
            at = rng.randrange(len(lines)) if lines else 0
            match rng.randrange(5):
                case 0:
                    lines[at : at + 1] = []
                case 1 if lines:
                    key = lines[at].split("=")[0]
                    values = ("1", "-1", "1e400", "nan", "[]", "{}", '""', "true", "9" * 400, '"\\u0000"', "1979-05-27")
                    lines[at : at + 1] = [f"{key} = {rng.choice(values)}"]
                case 2 if lines:
                    lines.insert(rng.randrange(len(lines)), rng.choice(lines))
                case 3:
                    deep = rng.choice(("a.", "[", "{a=", '"x".')) * rng.choice((3, 100, 3000))
                    lines.insert(at, deep)
                case _ if lines:
                    lines[at] = mutate_text(rng, lines[at])
        return "\n".join(lines).encode("utf-8", "surrogatepass")

    def read(self, reader: int, data: bytes) -> None:
        path = self.file("configuration.toml", data)
        loaded = (load_participant_config if reader == 0 else load_coordinator_config)(path)
        repr(loaded)


class Environment(Corpus):
    """Variables over a valid file: a name and a value, split by a zero byte."""

    name = "environment"
    readers = 2
    models: tuple[type[ParticipantConfig], type[CoordinatorConfig]] = ParticipantConfig, CoordinatorConfig

    def __init__(self) -> None:
        super().__init__()
        self.paths = [self.file("participant.toml", PARTICIPANT.encode()), self.file("coordinator.toml", COORDINATOR.encode())]
        self.file("value", b"text")
        self.seeds = [
            [
                b"VEILSUM__POLICY__MIN_COHORT\x004", b"VEILSUM__DATASETS__RECORDS__PATH\0x.csv", b"VEILSUM__LOG\0file",
                b"VEILSUM__COORDINATOR_FILE\0value", b"VEILSUM__BUDGETS__ADULTS\0{epsilon=1.0}",
                b"VEILSUM__POLICY\0min_cohort = 3\nnoise = ['local']", b"VEILSUM__POLICY__TRUSTED__SOUTH\0ab",
            ],
            [b"VEILSUM__WAITS__ENROL\x0030", b"VEILSUM__WAITS\0{enrol=1}", b"VEILSUM__DATABASE_FILE\0value"],
        ]  # fmt: skip
        for reader, path in enumerate(self.paths):
            load_settings(path, self.models[reader], environment={})  # what is overridden is valid

    def build(self, rng: random.Random, reader: int) -> bytes | None:
        name, _, value = rng.choice(self.seeds[reader]).partition(b"\0")
        match rng.randrange(4):
            case 0:
                other = rng.choice(self.seeds[reader]).partition(b"\0")[2]
                return name + b"\0" + other
            case 1:
                return name + b"\0" + rng.choice(ODD_TEXTS).encode()
            case 2:
                parts = name.split(b"__")
                parts.insert(rng.randrange(len(parts) + 1), rng.choice(parts))
                return b"__".join(parts) + b"\0" + value
            case _:
                return None

    def read(self, reader: int, data: bytes) -> None:
        name, _, value = data.partition(b"\0")
        variables = {os.fsdecode(name): os.fsdecode(value.replace(b"\0", b""))}
        loaded: Loaded[Any] = load_settings(self.paths[reader], self.models[reader], environment=variables)
        effective(loaded)


class Certificates(Corpus):
    """An identity's three files and a bundle of authorities."""

    name = "certificates"
    readers = 4

    def __init__(self) -> None:
        super().__init__()
        bed = make_bed(self.directory / "bed", make_data("ab", 3))
        self.clock = bed.clock
        self.identity = bed.kit.participants[0].identity
        self.whole = {name: (self.identity / name).read_bytes() for name in (KEY_FILE, CERTIFICATE_FILE, AUTHORITY_FILE)}
        self.seeds = [[data] for data in self.whole.values()] + [[2 * self.whole[AUTHORITY_FILE]]]
        other = bed.kit.participants[1].identity
        for number, name in enumerate(self.whole):
            self.seeds[number].append((other / name).read_bytes())

    def read(self, reader: int, data: bytes) -> None:
        if reader == 3:
            read_roots(self.file("roots.pem", data))
            return
        name = list(self.whole)[reader]
        place: Path = self.identity / name
        try:
            place.write_bytes(data)
            loaded = load_credentials(self.identity, self.clock())
            if loaded.identity.name != "a" or "PRIVATE" in repr(loaded):
                raise Unexpected("another identity than the certified one, or a key in its representation")
        finally:
            place.write_bytes(self.whole[name])
