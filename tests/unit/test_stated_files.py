"""Files that are read whole by an operator's word: none is waited for, read without end, or taken for another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from veilsum_node.errors import ConfigurationError, VeilsumError
from veilsum_participant.data import encoders, texts
from veilsum_participant.drafting import dictionary
from veilsum_participant.settings.query import Texts
from veilsum_privacy.study import schema_file
from veilsum_privacy.study.encoder import Program

CONTENT = b"code,group\nE11,diabetes\n"


def _encoder(path: Path, sha256: str) -> None:
    encoders.load_encoder(path, Program(sha256=sha256, format="torchscript", inputs=(2,), width=2))


def _tokenizer(path: Path, sha256: str) -> None:
    texts.load_tokenizer(Texts(table=Path("t.csv"), column="note", tokenizer=path, sha256=sha256, length=2))


def _groups(path: Path, sha256: str) -> None:
    column = {"kind": "codes", "name": "dx", "groups": {"file": path.name, "sha256": sha256}}
    schema_file.with_groups({"columns": [column]}, path.parent, "schema")


def _dictionary(path: Path, sha256: str) -> None:
    dictionary.draft_dictionary(path)


Read = Callable[[Path, str], None]
STATED = [_encoder, _tokenizer, _groups]


@pytest.mark.parametrize("read", [*STATED, _dictionary])
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("none", "does not exist"), ("pipe", "not a regular file"), ("device", "not a regular file"),
        ("folder", "not a regular file|is a folder"), ("empty", "is empty"), ("large", "is larger than 1,000 bytes"),
    ],
)  # fmt: skip
def test_a_file_is_bounded_and_never_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Read, damage: str, told: str
) -> None:
    for module, name in ((encoders, "MAX_PROGRAM_BYTES"), (texts, "MAX_BYTES"), (schema_file, "MAX_BYTES"),
                         (dictionary, "MAX_DICTIONARY_BYTES")):  # fmt: skip
        monkeypatch.setattr(module, name, 1000)
    path = tmp_path / "file"
    if damage == "pipe":
        os.mkfifo(path)
    elif damage == "device":
        path.symlink_to("/dev/zero")
    elif damage == "folder":
        path.mkdir()
    elif damage != "none":
        path.write_bytes(CONTENT * 100 if damage == "large" else b"")
    with pytest.raises(VeilsumError, match=told) as caught:
        read(path, hashlib.sha256(CONTENT).hexdigest())
    assert str(path) in caught.value.message
    assert caught.value.advice


@pytest.mark.parametrize("read", STATED)
def test_another_file_is_told_by_both_digests_before_anything_is_made_of_it(tmp_path: Path, read: Read) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    other = hashlib.sha256(CONTENT + b"x").hexdigest()
    with pytest.raises(ConfigurationError, match="its SHA-256 is") as caught:
        read(tmp_path / "file", other)
    assert hashlib.sha256(CONTENT).hexdigest() in caught.value.message
    assert other in caught.value.message


def test_a_digest_is_one_number_in_capitals_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    _groups(tmp_path / "file", hashlib.sha256(CONTENT).hexdigest().upper())
