"""Every target of the fuzzer for a moment, and everything that it found before."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import zipfile
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing.driver import Target, fuzz, peak, resident, try_input
from fuzzing.targets import TARGETS, make
from fuzzing.targets.data import SCHEMA
from fuzzing.targets.participant import Participant
from fuzzing.targets.requests import write_toml
from fuzzing.targets.settings import COORDINATOR
from fuzzing.targets.stage import PHASES

from veilsum.access import load_analyst
from veilsum.request import load_study_request
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config
from veilsum_node.config import read_toml
from veilsum_node.errors import ConfigurationError, DataError, HostileInput
from veilsum_node.overrides import _parse, load_settings
from veilsum_node.transport.route import read_roots
from veilsum_participant.data.encode import load_records
from veilsum_participant.settings.config import load_participant_config
from veilsum_privacy.backup.backup import MANIFEST, open_archive
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.study.study import parse_study

FOUND = Path(__file__).parents[1] / "data" / "fuzzing"
SECONDS, LEAST, MOST = 0.15, 25, 400
SEED = 20261121
"""The same inputs in every run of the tests; other ones are for runs by hand, as long as one likes."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TARGETS)
def test_a_moment_of_each_target(name: str) -> None:
    target = make(name)
    try:
        report = fuzz(target, SECONDS, seed=SEED, inputs=MOST, least=LEAST)
    finally:
        target.close()
    assert not report.findings, "\n".join(fault for _, fault in report.findings.values())
    assert name in ("metrics", "ndjson") or report.refused, report.line()  # which refuse nothing: a line is left out


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.bin")), ids=lambda path: path.stem)
def test_what_was_found(path: Path) -> None:
    target = make(path.stem.rpartition("-")[0])
    try:
        assert try_input(target, path.read_bytes())[1] == ""
    finally:
        target.close()


class _Broken(Target):
    """Reads in every wrong way, in turn."""

    name = "broken"

    def __init__(self) -> None:
        self.ways = cycle(range(4))

    def case(self, rng: random.Random) -> bytes:
        return bytes([next(self.ways)])

    def run(self, data: bytes) -> None:
        match data[0]:
            case 0:
                raise KeyError("not typed")
            case 1:
                raise HostileInput("typed")
            case 2:
                bytearray(b"\1") * (peak() - resident() + (300 << 20))  # above what this process had before, too


def test_the_driver_finds_what_is_wrong() -> None:
    report = fuzz(_Broken(), 20, inputs=8)
    kinds = {end.split()[0] for end in report.findings}
    assert "KeyError" in kinds
    assert "memory" in kinds
    assert "HostileInput" not in kinds
    assert 0 < report.refused < report.inputs


@pytest.mark.parametrize("number", ["9" * 5000, "[" * 5000])
def test_numbers_and_brackets_without_end(tmp_path: Path, number: str) -> None:
    path = tmp_path / "participant.toml"
    path.write_text(f"x = {number}\n")
    with pytest.raises(ConfigurationError, match="is not valid TOML"):
        read_toml(path)
    assert _parse(number, str) == number


OPENED: dict[str, Any] = {
    "schema": (load_study_request, {"schema": "%s"}),
    "groups": (load_schema, {"columns": [{"kind": "codes", "name": "c", "groups": {"file": "%s"}}]}),
    "groups-in-study": (load_study_request, {"data": {"columns": [{"name": "c", "groups": {"file": "%s"}}]}}),
    "model": (load_study_request, {"parameters": {"result": "%s"}}),
    "state": (load_participant_config, {"state": "%s"}),
    "dataset": (load_participant_config, {"datasets": {"records": {"path": "%s"}}}),
    "hook": (load_participant_config, {"hooks": {"waiting": ["/bin/true", "%s"]}}),
    "directory": (load_coordinator_config, {"state": "%s"}),
    "log": (load_coordinator_config, {"log": {"file": "%s"}}),
    "identity": (load_analyst, {"identity": "%s"}),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_path_with_a_character_that_none_has(tmp_path: Path, name: str) -> None:
    """Opened, it would be a ValueError and no OSError; wherever it stands, its key is named."""
    read, table = OPENED[name]
    path = tmp_path / "settings.toml"
    path.write_text(write_toml(table).replace("%s", "a\\u0000b"))
    with pytest.raises(ConfigurationError, match=r"settings\.toml: \w+ holds the character U\+0000\. Leave"):
        read(path)


def test_a_variable_with_a_character_that_no_path_has(tmp_path: Path) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text(COORDINATOR)
    with pytest.raises(ConfigurationError, match="state holds the character"):
        load_settings(path, CoordinatorConfig, environment={"VEILSUM__STATE": '"a\\u0000b"'})


def test_tables_in_tables_without_end(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text("parameters." + "a." * 30_000 + "a = 1\n")
    with pytest.raises(ConfigurationError, match="name: is missing"):
        load_study_request(path)


@pytest.mark.parametrize("phase", PHASES)
def test_a_participant_in_each_phase(phase: str) -> None:
    """A moment of the target sees one phase only."""
    target, rng = make("participant"), random.Random(SEED)
    assert isinstance(target, Participant)
    try:
        target.stage.bring_to(phase)
        target.count = 1
        for _ in range(20):
            assert try_input(target, target.case(rng))[1] == ""
        assert target.stage.phase == phase
    finally:
        target.close()


def test_a_bundle_of_letters_that_are_not_ascii(tmp_path: Path) -> None:
    path = tmp_path / "roots.pem"
    path.write_text("é")
    with pytest.raises(ConfigurationError, match="no certificates"):
        read_roots(path)


def test_a_study_with_a_number_larger_than_any(tmp_path: Path) -> None:
    target = make("objects")
    whole = target.study.to_bytes()  # type: ignore[attr-defined]
    target.close()
    assert b'"0x1.0000000000000p+0"' in whole
    with pytest.raises(HostileInput, match="larger than any float"):
        parse_study(whole.replace(b'"0x1.0000000000000p+0"', b'"0x1.8p+9999"', 1))


def _npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return buffer.getvalue()


def _array(descr: str, shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header + data


@pytest.mark.parametrize(
    "content",
    [
        b"no array",
        _array("'<f8'", "(99999999999,)"),
        _array("'<U9999999'", "(99999999999,)"),
        _array("'|O'", "(1,)"),
        _array("((", "(1,)"),
    ],
    ids=["bytes", "huge", "wide", "objects", "open"],
)
def test_arrays_that_are_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "records.npz"
    good = io.BytesIO()
    np.save(good, np.zeros(1))
    path.write_bytes(_npz(age=content, sex=good.getvalue(), x=good.getvalue(), y=good.getvalue()))
    with pytest.raises(DataError):
        load_records(path, SCHEMA)


def test_a_text_of_no_characters_costs_its_own_cell(tmp_path: Path) -> None:
    path = tmp_path / "records.npz"
    good = io.BytesIO()
    np.save(good, np.zeros(2))
    odd = _array("'<U1'", "(2,)", b"\xff\xff\xff\xff" + "7".encode("utf-32-le"))
    path.write_bytes(_npz(age=odd, sex=good.getvalue(), x=good.getvalue(), y=good.getvalue()))
    assert load_records(path, SCHEMA)[1]["age"].unmatched == 1


def test_an_archive_that_is_encrypted_or_compressed_in_another_way(tmp_path: Path) -> None:
    path = tmp_path / "records.npz"
    whole = bytearray(_npz(age=_array("'<f8'", "(1,)", bytes(8))))
    for at, value in ((6, 1), (8, 99)):  # flags, method; the central directory repeats them
        changed = bytearray(whole)
        central = whole.index(b"PK\x01\x02")
        changed[at] = changed[central + at + 2] = value
        path.write_bytes(changed)
        with pytest.raises(DataError):
            load_records(path, SCHEMA)


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.map": "0,1,99999999999,1", "GNU.sparse.size": str(2**50), "GNU.sparse.realsize": str(2**50)},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**50)},
        {"GNU.sparse.map": "0"},
        {"size": str(2**60)},
    ],
    ids=["map", "version-1", "odd", "size"],
)
def test_backups_that_unpack_to_more_than_they_are(tmp_path: Path, headers: dict[str, str]) -> None:
    path = tmp_path / "backup.tar"
    for name in (MANIFEST, "state.db"):
        with tarfile.open(path, "w:", format=tarfile.PAX_FORMAT) as tar:
            info = tarfile.TarInfo(name)
            info.size, info.pax_headers = 10, headers
            tar.addfile(info, io.BytesIO(bytes(10)))
        with pytest.raises(HostileInput, match="is not a backup"), open_archive(path):
            pass
    assert [item.name for item in tmp_path.iterdir()] == ["backup.tar"]
