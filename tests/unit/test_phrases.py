"""Words for numbers, for a folder where a file is meant, and those that the shell completes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import veilsum
from veilsum_node.identity.renewal import expiry_warning
from veilsum_node.phrases import counted, listed, unreadable, unwritable

DAY = 86_400


def test_one_is_no_plural() -> None:
    assert [counted(number, "day") for number in (0, 1, 2, 1200)] == ["0 days", "1 day", "2 days", "1,200 days"]
    assert [counted(number, "entry", "entries") for number in (1, 2)] == ["1 entry", "2 entries"]
    assert expiry_warning("north", 0, -DAY).endswith("in 1 day")
    assert expiry_warning("north", 0, -2 * DAY).endswith("in 2 days")


def test_words_in_a_row() -> None:
    rows = ([], ["a"], ["a", "b"], ["a", "b", "c"])
    assert [listed(words) for words in rows] == ["", "a", "a and b", "a, b and c"]
    assert listed(["record", "subject", "site"], "or") == "record, subject or site"


def test_why_a_file_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory") as caught:
        tmp_path.read_bytes()
    assert unreadable(caught.value) == "is a folder, not a file"
    with pytest.raises(OSError, match="No such") as caught:
        (tmp_path / "none").read_bytes()
    assert unreadable(caught.value) == "cannot be read (No such file or directory)"
    assert unwritable(caught.value) == "cannot be written (No such file or directory)"


@pytest.mark.parametrize(
    "words",
    [
        ("participant", "check", "--config", "FOLDER"),
        ("federation", "sign", "FOLDER", "--role", "participant", "--name", "north", "--authority", "authority"),
        ("federation", "init", "other", "--name", "other", "--passphrase-file", "FOLDER"),
        ("schema", "draft", "FOLDER"),
        ("study", "plan", "FOLDER"),
        ("participant", "backup", "FOLDER", "--config", "participant.toml"),
        ("participant", "restore", "FOLDER", "--config", "participant.toml"),
        ("ledger", "verify", "--config", "state.toml"),
        ("participant", "start", "--config", "log.toml"),
        ("participant", "audit", "--config", "participant.toml", "--out", "FOLDER"),
        ("ledger", "report", "FOLDER"),
        ("schema", "draft", "records.csv", "--public", "--out", "FOLDER"),
    ],
    ids=" ".join,
)
def test_a_folder_where_a_file_is_meant_is_called_one(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "FOLDER").mkdir()
    assert veilsum(capsys, "federation", "init", "authority", "--name", "trial")[0] == 0
    text = 'coordinator = "localhost:1"\n{}\n[datasets.records]\npath = "records.csv"\n'
    for name, line in (("participant", ""), ("state", 'state = "FOLDER"'), ("log", 'isolation = "none"\nlog.file = "FOLDER"')):
        (tmp_path / f"{name}.toml").write_text(text.format(line))
    (tmp_path / "records.csv").write_text("age\n50\n")
    code, _, err = veilsum(capsys, *words)
    assert (code, "is a folder, not a file" in err) == (2, True), err


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("veilsum study pl", ["plan"]), ("veilsum participant check --sch", ["--schema"]), ("veilsum led", ["ledger"])],
)
def test_the_shell_completes_commands_and_options(
    typed: str, completed: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_VEILSUM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert veilsum(capsys)[1].split() == completed
