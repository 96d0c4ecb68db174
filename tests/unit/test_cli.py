"""The command line: what it prints, where, and with which exit status."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.certificates import now
from support.commands import veilsum
from veilsum_deploy import cli
from veilsum_node.errors import Misuse, Refusal, RefusalCode, StateError
from veilsum_node.identity import Role, load_credentials
from veilsum_node.identity.kit import make_kit
from veilsum_node.identity.provision import prepare

KIT_SIZE = 3 + 3


def test_help_names_every_command_and_loads_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from veilsum_deploy.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as left: code = left.code\n"
        "heavy = {'torch', 'tenseal', 'sklearn', 'numpy', 'grpc', 'cryptography', 'sqlalchemy'} & set(sys.modules)\n"
        "sys.exit(f'loaded {sorted(heavy)}' if heavy else code)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    for name in cli.NOUNS:
        assert name in result.stdout


@pytest.mark.parametrize("name", cli.NOUNS)
def test_every_command_can_be_imported(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = veilsum(capsys, name, "--help")
    assert code == 0
    assert f"veilsum {name}" in out


@pytest.mark.parametrize(
    ("words", "offered"),
    [("veilsum ", list(cli.NOUNS)), pytest.param("veilsum study e", ["export"], marks=pytest.mark.system)],
)
def test_a_shells_tab_key_is_answered(words: str, offered: list[str]) -> None:
    command = Path(sys.executable).with_name("veilsum")
    place = str(len(words.split(" ")) - 1)
    environment = os.environ | {"COMP_WORDS": words, "COMP_CWORD": place, "_VEILSUM_COMPLETE": "complete_bash"}
    result = subprocess.run([str(command)], capture_output=True, text=True, env=environment)
    assert result.stdout.split() == offered, result.stderr


@pytest.mark.parametrize("shell", ["zsh", pytest.param("fish", marks=pytest.mark.system)])
def test_other_shells_are_answered_too(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"_VEILSUM_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": "veilsum participant ch"}
    for name, value in (asked | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).items():
        monkeypatch.setenv(name, value)
    _, out, err = veilsum(capsys)
    assert "check" in out, err
    assert "start" not in out


def test_the_installed_command_prints_its_version() -> None:
    command = Path(sys.executable).with_name("veilsum")
    result = subprocess.run([str(command), "--version"], capture_output=True, text=True)
    assert (result.returncode, result.stdout.split()[0]) == (0, "veilsum")


def test_from_authority_to_credentials(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, party = tmp_path / "authority", tmp_path / "north"
    code, out, _ = veilsum(capsys, "federation", "init", authority, "--name", "trial", "--json")
    assert code == 0
    federation = json.loads(out)["id"]

    code, out, _ = veilsum(capsys, "participant", "init", party, "--name", "north", "--json")
    assert code == 0
    request = json.loads(out)["request"]
    assert stat.S_IMODE((party / "identity" / "key.pem").stat().st_mode) == 0o600

    arguments = ("federation", "sign", request, "--authority", authority, "--role", "participant", "--name", "north")
    code, out, _ = veilsum(capsys, *arguments, "--days", 10, "--json")
    assert code == 0

    credentials = load_credentials(party / "identity", int(time.time()), Role.PARTICIPANT)
    assert credentials.federation_id == federation
    assert credentials.identity.fingerprint == json.loads(out)["fingerprint"]

    code, out, _ = veilsum(capsys, "federation", "list", authority, "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert (row["name"], row["role"], row["valid"]) == ("north", "participant", True)
    assert row["fingerprint"] == credentials.identity.fingerprint


def test_the_passphrase_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.write_text("correct horse\n")
    secret.chmod(0o600)
    authority = tmp_path / "authority"
    assert veilsum(capsys, "federation", "init", authority, "--name", "trial", "--passphrase-file", secret)[0] == 0
    veilsum(capsys, "analyst", "init", tmp_path / "ada", "--name", "ada")
    request = tmp_path / "ada" / "identity" / "request.csr"
    sign = ("federation", "sign", request, "--authority", authority, "--role", "analyst", "--name", "ada")
    code, _, err = veilsum(capsys, *sign)
    assert code == 2
    assert "passphrase" in err
    assert veilsum(capsys, *sign, "--passphrase-file", secret)[0] == 0


def test_a_signed_certificate_goes_where_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=lambda: int(time.time()))
    party = prepare(tmp_path / "hub", "hub", Role.COORDINATOR)
    sign = ("federation", "sign", party.request, "--authority", kit.authority, "--role", "coordinator", "--name", "hub")
    code, _, err = veilsum(capsys, *sign, "--out", tmp_path / "answer")
    assert (code, "host" in err) == (2, True)
    assert veilsum(capsys, *sign, "--host", "hub.example", "--host", "192.0.2.7", "--out", tmp_path / "answer")[0] == 0
    assert {path.name for path in (tmp_path / "answer").iterdir()} == {"certificate.pem", "authority.pem"}


def test_a_kit_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = veilsum(capsys, "federation", "kit", tmp_path / "kit", "--participants", "a, b,c", "--json")
    assert code == 0
    rows = json.loads(out)
    assert [row["name"] for row in rows] == ["coordinator", "analyst", "operator", "a", "b", "c"]
    assert len(rows) == KIT_SIZE
    for row in rows:
        names = {path.name for path in (Path(row["directory"]) / "identity").iterdir()}
        assert names >= {"key.pem", "certificate.pem", "authority.pem"}


def test_a_table_for_people_is_not_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = make_kit(tmp_path / "kit", ["north", "south"], clock=now)
    code, out, _ = veilsum(capsys, "federation", "list", kit.authority)
    assert code == 0
    assert load_credentials(kit.analyst.identity, now()).identity.fingerprint in out


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a"], "two participants"), (["a", "a"], "twice"), (["a", "analyst"], "twice"), (["a", "B"], "not valid")],
)
def test_a_kit_with_wrong_names_is_refused(tmp_path: Path, names: list[str], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        make_kit(tmp_path / "kit", names, clock=now)
    assert not (tmp_path / "kit").exists()


def test_a_kit_that_was_refused_is_in_nobodys_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [("North Hospital,south",), ("north,south", "--host", "https://hub.example:8461")]
    for words in (*wrong, ("north,south", "--host", "hub.example")):
        code, _, err = veilsum(capsys, "federation", "kit", tmp_path / "kit", "--participants", *words)
        assert (code, "already exists" in err) == (2 if words in wrong else 0, False)


def test_a_place_without_an_authority_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = veilsum(capsys, "federation", "list", tmp_path)
    assert (code, err.startswith(f"Error: {tmp_path} holds no authority")) == (2, True)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_kit(tmp_path / "kit", ["a", "b"], clock=now)
    with pytest.raises(StateError, match="already exists"):
        make_kit(tmp_path / "kit", ["a", "b"], clock=now)
    party = prepare(tmp_path / "p", "p", Role.PARTICIPANT)
    key = (party.identity / "key.pem").read_bytes()
    with pytest.raises(StateError, match="already exists"):
        prepare(tmp_path / "p", "p", Role.PARTICIPANT)
    assert (party.identity / "key.pem").read_bytes() == key


def test_a_typed_error_is_status_2_with_advice_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = veilsum(capsys, "participant", "init", tmp_path / "p", "--name", "North [bold]")
    assert (code, out) == (2, "")
    assert "North [bold]" in err
    assert "Use 1 to 64" in err


def test_a_typed_error_under_json_is_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = veilsum(capsys, "participant", "init", tmp_path / "p", "--name", "North", "--json")
    assert (code, out) == (2, "")
    assert set(json.loads(err)) == {"error", "message", "advice"}
    assert json.loads(err)["error"] == "Misuse"


def test_wrong_usage_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert veilsum(capsys, "federation", "nonsense")[0] == 2
    assert veilsum(capsys, "nonsense")[0] == 2
    assert "Did you mean 'participant'?" in veilsum(capsys, "participnt", "check")[2]


def test_a_crash_is_status_70_and_shows_no_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("age 93.125")

    monkeypatch.setattr("veilsum_node.process.parties.prepare", fail)
    monkeypatch.delenv("VEILSUM_DEBUG", raising=False)
    command = ("participant", "init", tmp_path, "--name", "p")
    code, _, err = veilsum(capsys, *command)
    assert code == 70
    assert "VEILSUM_DEBUG=1" in err
    assert "93.125" not in err
    assert "Traceback" not in err
    assert json.loads(veilsum(capsys, *command, "--json")[2])["message"] == "Internal error: ValueError."

    monkeypatch.setenv("VEILSUM_DEBUG", "1")
    code, _, err = veilsum(capsys, *command)
    assert code == 70
    assert "Traceback" in err
    assert "age 93" in err


def test_a_refusal_shows_its_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise Refusal(RefusalCode.BUDGET, "too much")

    monkeypatch.setattr("veilsum_node.process.parties.prepare", refuse)
    code, _, err = veilsum(capsys, "participant", "init", tmp_path, "--name", "p", "--json")
    assert (code, json.loads(err)["code"]) == (2, "budget-exceeded")


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = veilsum(capsys, "participant", "init", tmp_path / "file" / "p", "--name", "p")
    assert (code, "cannot be written" in err) == (2, True)


@pytest.mark.system
@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.system)])
def test_a_terminal_that_is_not_unicode_gets_its_answer(tmp_path: Path, encoding: str) -> None:
    """Signs that it lacks are replaced; JSON stays JSON, byte for byte the same value."""
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "trial"\nmethod = "statistics"\ndataset = "records"\n[privacy]\nepsilon = 1.0\n'
        '[data]\nmax_records = 100\ncolumns = [{ kind = "number", name = "âge→", low = 0, high = 9 }]\n',
        encoding="utf-8",
    )
    plan = ["study", "plan", str(study), "--participants", "3"]
    script = (
        "import json, sys\n"
        "from veilsum_deploy.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n"
        "    try: main(arguments)\n"
        "    except SystemExit as left: print(f'\\n-- {left.code}', flush=True)\n"
    )
    commands = json.dumps([["federation", "list", str(tmp_path / "nowhere é")], plan, [*plan, "--json"]])
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    result = subprocess.run([sys.executable, "-c", script, commands], capture_output=True, env=environment)
    assert b"Internal" not in result.stderr
    (listed, shown, plain), codes = re.split(rb"\n-- \d+\n", result.stdout)[:3], re.findall(rb"\n-- (\d+)\n", result.stdout)
    assert (codes, listed) == ([b"2", b"0", b"0"], b""), result.stderr
    assert b"nowhere" in result.stderr
    assert b"Verdict" in shown
    assert "mean of âge→" in (str(value) for value in leaves(json.loads(plain)))


def leaves(value: object) -> list[object]:
    if isinstance(value, dict | list):
        return [leaf for item in (value.values() if isinstance(value, dict) else value) for leaf in leaves(item)]
    return [value]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_said_and_is_no_fault_of_the_program(unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "veilsum_deploy.cli", "federation", "--help"]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert result.returncode == 2
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Exception ignored" not in result.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_who_reads_no_further_is_no_fault_either(unbuffered: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        command = [sys.executable, "-m", "veilsum_deploy.cli", "federation", "--help"]
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, env=environment)
    assert (result.returncode, result.stderr) == (1, "")
