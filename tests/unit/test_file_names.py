"""Names that come from somewhere else: the files that they become lie where they should, over nothing, and hold no formula."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import string
import unicodedata
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.commands import shown
from support.commands import veilsum as command
from veilsum.api.results import StudyResult
from veilsum.exports import export_result, records_csv, to_csv
from veilsum.mlflow_run import _gather
from veilsum.remote import StudyInfo, write_checkpoint, write_result
from veilsum_node.errors import HostileInput, Misuse, StateError, Unavailable
from veilsum_node.file_names import LONGEST, file_name, is_name, write_files
from veilsum_node.spreadsheets import defused, line, restored, write_csv
from veilsum_participant.cli.apply import write_table
from veilsum_privacy.results.result import Result, copy_result, load_result, result_files, save_result

ROW = {"level": "a", "mean": {"value": 1.0, "low": 0.5, "high": 1.5}}
PATHS = [
    "../out", "../../out", "/tmp/out", "a/../../out", "..\\out", "C:\\out", "C:out", "\\\\host\\share\\out", "a/b", ".", "..",
    ".hidden",
    "nul\0out", "line\nout", "", " ", " out", "out ", "x" * 5000, "\u202etxt", "tab\tout", "\ud800",
]  # fmt: skip
ODD = [
    "CON",
    "con.x",
    "NUL",
    "com1",
    "LPT¹",
    "aa:b",
    "$(id)",
    "-rf",
    "~",
    "%TEMP%",
    "a|b",
    "é" * 150,
    "x" * 199,
    "=1+1",
    "a..b",
    "a.",
]
"""Names that a result may have, and that some system would read otherwise."""
FORMATS = ("csv", "html", "latex", "svg", "png")

names = st.one_of(st.text(), st.sampled_from(PATHS + ODD), st.lists(st.sampled_from(PATHS + ODD)).map("".join))


def tree(directory: Path) -> dict[str, bytes]:
    found = (path for path in sorted(directory.rglob("*")) if path.is_file() or path.is_symlink())
    return {path.relative_to(directory).as_posix(): b"" if path.is_symlink() else path.read_bytes() for path in found}


@given(names, st.sampled_from(["", ".csv", ".svg"]), st.lists(names, max_size=5))
def test_a_name_becomes_one_part_of_a_path(name: str, suffix: str, others: list[str]) -> None:
    taken: list[str] = []
    for other in [*others, name]:
        taken.append(file_name(other, suffix, taken=taken))
    for made in taken:
        for flavour in (PurePosixPath, PureWindowsPath):
            assert flavour(made).parts == (made,)
            assert not flavour(made).is_absolute()
        assert not PureWindowsPath(made).is_reserved()
        assert made.isprintable()
        assert made[0] not in ".-~= "
        assert made[-1] not in ". "
        assert ".." not in made
        assert not set(made) & set("<>:\"/\\|?*$`'&;!%\0 ")
        assert len(made.encode()) <= LONGEST + len(suffix) + 4
        assert made.endswith(suffix)
        assert unicodedata.is_normalized("NFC", made)
    alike = [unicodedata.normalize("NFKD", made).casefold() for made in taken]
    assert len(set(alike)) == len(alike)


@given(st.text(string.ascii_letters + string.digits + "_+=@()[] ,", min_size=1, max_size=40), st.sampled_from(ODD))
def test_plain_names_stay_as_they_are(name: str, odd: str) -> None:
    plain = "x" + name.strip() + "x"
    assert file_name(plain) == plain.replace(" ", "-")
    assert file_name(odd) == file_name(odd)


def test_long_names_that_differ_at_the_end_stay_apart() -> None:
    assert file_name("x" * 300 + "a") != file_name("x" * 300 + "b")


@given(names)
def test_only_names_are_names(name: str) -> None:
    good = is_name(name)
    if good:
        assert name.isprintable()
        assert PurePosixPath(name).parts == PureWindowsPath(name).parts == (name,)
    assert not any(is_name(path) for path in PATHS)
    assert all(map(is_name, ODD))


@pytest.mark.sampled(23)
@pytest.mark.parametrize("name", [*PATHS[:-1], *ODD])  # JSON has no half of a surrogate pair
def test_no_table_is_written_outside_of_out(tmp_path: Path, name: str) -> None:
    """In every format, of a table whatever its name is, by the function that all commands call."""
    place = tmp_path / "deep" / "er"
    place.mkdir(parents=True)
    result = Result(
        "statistics",
        {name: [ROW], f"{name} records": [{"column": "a", "levels": ["x"]}]},
        {f"{name} records": np.zeros((2, 1), int)},
    )
    files = export_result(result, place / "out", FORMATS)
    assert len(files) == len(set(files)) == 7
    assert {path.parent for path in files} == {place / "out"}
    assert sorted(tree(tmp_path)) == sorted(f"deep/er/out/{path.name}" for path in files)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", PATHS[:-1])
@pytest.mark.parametrize("way", ["load", "export", "api", "mlflow", "save"])
def test_a_result_whose_names_are_none_is_not_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, way: str
) -> None:
    """Handed on as a folder, fetched without a proof, or a checkpoint: it is one function that reads them all."""
    place = tmp_path / "result"
    save_result(place, Result("statistics", {"mean": [ROW]}))
    manifest = json.loads((place / "manifest.json").read_text())
    manifest["summary"] = {name: [ROW]}
    (place / "manifest.json").write_text(json.dumps(manifest))
    before = tree(tmp_path)
    if way == "export":
        code, _, err = command(capsys, "study", "export", place, "--out", tmp_path / "out")
        assert (code, "is none" in err, "Fetch the result again" in " ".join(err.split())) == (2, True, True)
    elif way == "mlflow":
        assert command(capsys, "study", "mlflow", place, "--tracking-uri", "http://127.0.0.1:1", "--experiment", "x")[0] == 2
    else:
        ask = {
            "load": lambda: load_result(place),
            "api": lambda: StudyResult(place).export(tmp_path / "out"),
            "save": lambda: save_result(tmp_path / "other", Result("statistics", {name: [ROW]})),
        }[way]
        with pytest.raises((HostileInput, Misuse), match="is none"):
            ask()
    assert tree(tmp_path) == before


@pytest.mark.parametrize("name", ["../x", "", "/x"])
def test_a_method_is_a_name_as_well(tmp_path: Path, name: str) -> None:
    (tmp_path / "manifest.json").write_bytes(
        result_files(Result("statistics", {}))["manifest.json"].replace(b'"statistics"', json.dumps(name).encode())
    )
    with pytest.raises(HostileInput, match="is none"):
        load_result(tmp_path)


def test_nothing_is_replaced_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_result(tmp_path / "result", Result("statistics", {"mean": [ROW], "share": [ROW]}))
    out = tmp_path / "out"
    words = ("study", "export", tmp_path / "result", "--out", out, "--formats", "csv,html")
    files = {Path(name).name for name in shown(capsys, *words)["files"]}
    assert files == {"mean.csv", "share.csv", "result.html"}
    first = tree(out)
    shown(capsys, *words)  # again: each file is there as it would be written
    (out / "share.csv").write_text("mine\n")
    (out / "mean.csv").unlink()
    code, _, err = command(capsys, *words)
    assert (code, "share.csv" in err, "--force" in " ".join(err.split())) == (2, True, True)
    assert tree(out) == {"share.csv": b"mine\n", "result.html": first["result.html"]}  # not even what could have been
    shown(capsys, *words, "--force")
    assert tree(out) == first
    (out / "share.csv").unlink()
    (out / "share.csv").mkdir()
    for replace in (False, True):
        with pytest.raises(StateError, match="is a folder"):
            export_result(load_result(tmp_path / "result"), out, ["csv"], replace=replace)


def test_tables_whose_names_differ_in_capitals_do_not_meet(tmp_path: Path) -> None:
    """A disk that knows no capitals would keep the last of them."""
    alike = ["mean", "Mean", "MEAN", "me-an", "me an", "é", "e\u0301"]
    files = export_result(Result("statistics", {name: [{"who": name}] for name in alike}), tmp_path / "out", ["csv"])
    assert len({unicodedata.normalize("NFKD", path.name).casefold() for path in files}) == len(alike)
    assert [path.read_text().splitlines()[1] for path in files] == alike


@pytest.mark.parametrize("replace", [False, True])
def test_no_link_is_followed(tmp_path: Path, replace: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").write_text("mine")
    out = tmp_path / "out"
    out.mkdir()
    (out / "mean.csv").symlink_to(elsewhere / "mine")
    (out / "share.csv").symlink_to(elsewhere / "none")
    result = Result("statistics", {"mean": [ROW], "share": [ROW]})
    if replace:
        export_result(result, out, ["csv"], replace=True)
        assert not (out / "mean.csv").is_symlink()
    else:
        with pytest.raises(StateError, match="would be replaced"):
            export_result(result, out, ["csv"])
    (out / "proof").symlink_to(elsewhere)
    with pytest.raises(StateError, match="leads out"):
        write_files(out, {"proof/study.json": b"{}"}, replace=replace)
    assert tree(elsewhere) == {"mine": b"mine"}


@pytest.mark.parametrize("name", [*PATHS[:12], "nul\0out", "line\nout", "", "a/b/c", "a//b", "/"])
def test_a_writer_takes_no_path(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    if name in (".hidden", "a/b"):
        write_files(out, {name: b""})
        return
    with pytest.raises(HostileInput, match="names no file below"):
        write_files(out, {"good": b"", name: b""})
    assert not out.exists()


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="cannot be written"):
        write_files(tmp_path / "file" / "out", {"a": b""})
    assert tree(tmp_path) == {"file": b""}


def info(*results: str) -> StudyInfo:
    return StudyInfo("ab" * 32, "n", "m", "a", "finished", "", 0, 1.0, (), (), (), (), results)


@pytest.mark.parametrize(
    "name", ["conftest.py", "../x", "/x", "arrays.safetensors/../../x", ".bashrc", "proof/study.json", "Manifest.json"]
)
@pytest.mark.parametrize("proof", [False, True])
def test_a_coordinator_names_no_file_of_its_own(tmp_path: Path, name: str, proof: bool) -> None:
    files = result_files(Result("statistics", {"mean": [ROW]}))
    with pytest.raises(HostileInput, match="which no result has"):
        write_result(info(name, *files), lambda _: b"import evil", tmp_path / "out", proof=proof)
    assert tree(tmp_path) == {}


def test_what_is_fetched_replaces_nothing(tmp_path: Path) -> None:
    files = result_files(Result("statistics", {"mean": [ROW]}, {"a": np.ones(3)}))
    (tmp_path / "arrays.safetensors").write_text("mine")
    for write in (
        lambda: write_result(info(*files), files.__getitem__, tmp_path, proof=False),
        lambda: write_checkpoint(files.__getitem__, tmp_path),
    ):
        with pytest.raises(StateError, match="would be replaced"):
            write()
    assert tree(tmp_path) == {"arrays.safetensors": b"mine"}
    (tmp_path / "arrays.safetensors").write_bytes(files["arrays.safetensors"])  # a fetch that was broken off goes on
    assert write_result(info(*files), files.__getitem__, tmp_path, proof=False).method == "statistics"


def test_a_folder_that_was_handed_on_gives_away_nothing_else(tmp_path: Path) -> None:
    """Links in it, and files beside a result's own, go neither to MLflow nor into a copy."""
    secret = tmp_path / "id_rsa"
    secret.write_text("secret")
    result = Result("statistics", {"mean": [ROW]})
    place = save_result(tmp_path / "result", result).parent
    (place / "proof").mkdir()
    for name in ("proof/round-000001.json", "proof/study.json", "proof/notes.txt", "notes.txt", "arrays.safetensors"):
        (place / name).symlink_to(secret) if name != "proof/notes.txt" else (place / name).write_text("secret")
    _gather(result, place, tmp_path / "run", {}, proof=True)
    StudyResult(place).save(tmp_path / "copy")
    os.rename(place / "proof", tmp_path / "theirs")
    (tmp_path / "theirs" / "round-000002.json").write_text("secret")
    (place / "proof").symlink_to(tmp_path / "theirs")
    copy_result(place, tmp_path / "again", proof=True)
    for folder in ("run", "copy", "again"):
        assert b"secret" not in tree(tmp_path / folder).values()
    assert set(tree(tmp_path / "copy")) == set(tree(tmp_path / "again")) == {"manifest.json"}


# -- spreadsheets ----------------------------------------------------------------------------------------------------------

RUN = "=+-@\t\r\n＝＋－＠"
FORMULAS = [
    "=cmd|' /C calc'!A0",
    "+1+1",
    "-2+3+cmd|' /C calc'!A0",
    "@SUM(1)",
    "\t=1",
    "\r=1",
    "＝1+1",
    "-",
    "=",
    "--1",
    "+1 or 2",
    "x;=cmd|' /C calc'!A0;y",
    "x\n=1+1",
    "low;-5;'=1",
]
texts = st.one_of(st.text(), st.sampled_from(FORMULAS), st.text("'=+-@\t\r\n1.e ,;\""))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@given(texts)
def test_no_text_is_a_formula_and_each_is_read_back(text: str) -> None:
    cell = defused(text)
    assert cell[:1] not in RUN or not cell or is_number(cell)
    assert restored(cell) == text
    if cell != text:  # nothing but apostrophes came to it
        assert cell.replace("'", "") == text.replace("'", "")


@given(st.lists(texts, min_size=1, max_size=4))
def test_no_part_of_a_line_is_a_formula_however_it_is_split(row: list[str]) -> None:
    """As a spreadsheet does that splits at semicolons, or tabs: quotation marks within what it takes for a cell are text."""
    whole = line(["1", *map(defused, row)])
    for mark in ";\t":
        parts = [part for each in re.split(r"[\r\n]", whole) for part in each.split(mark)]
        assert not [part for part in parts if part[:1] and part[0] in "=+-@＝＋－＠"]


@given(st.one_of(st.integers(), st.floats(), st.none(), st.booleans()))
def test_a_number_stays_a_number(value: Any) -> None:
    assert defused(value) is value


@given(st.lists(st.tuples(texts, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=5), texts)
def test_a_table_is_read_back(rows: list[tuple[str, float]], name: str) -> None:
    stream = io.StringIO(newline="")
    write_csv(stream, [name + "x", "number"], [{name + "x": text, "number": number} for text, number in rows])
    read = list(csv.reader(io.StringIO(stream.getvalue(), newline="")))
    assert [restored(cell) for cell in read[0]] == [name + "x", "number"]
    assert [(restored(text), float(number)) for text, number in read[1:]] == rows
    assert not [cell for line in read for cell in line if cell[:1] and cell[0] in RUN and not is_number(cell)]


@pytest.mark.parametrize("formula", FORMULAS)
def test_every_csv_for_people_is_defused(tmp_path: Path, formula: str) -> None:
    """Levels, columns and notes of exports, synthetic records, predictions and the ledger come from other people."""
    made = to_csv(
        [{"level": formula, formula: -1.5, "mean": {"value": -2.5, "low": -3.5}, "note": {"not_estimable": formula}}]
    )
    synthetic = records_csv(np.array([[0], [1]]), [{"column": formula, "levels": [formula, "-1"]}])
    write_table(tmp_path / "p.csv", ["row", formula], [(1, formula, np.array([-0.5]))], force=False)
    texts = (made, synthetic, (tmp_path / "p.csv").read_bytes().decode())
    for text in texts:
        cells = [cell for line in csv.reader(io.StringIO(text, newline="")) for cell in line]
        assert defused(formula) in cells
        assert defused(formula) != formula
        assert not [cell for cell in cells if cell and cell[0] in RUN and not is_number(cell)]
    assert "-1.5" in made
    assert "-2.5,-3.5" in made
    assert synthetic.endswith("-1\n")
    assert ",-0.5" in texts[2]
