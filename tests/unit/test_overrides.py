"""Settings from the environment: which key a variable names, what its value becomes, and that no message holds a value."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from support.commands import veilsum
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config, read_coordinator_settings
from veilsum_node.errors import ConfigurationError
from veilsum_node.overrides import Loaded, effective, load_settings, set_variables
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config

SITE = """coordinator = "localhost:1"
log = "site.log"
[datasets.heart-disease]
path = "records.csv"
[policy]
min_cohort = 4
"""


def coordinator(tmp_path: Path, text: str = "", **environment: str) -> Loaded[CoordinatorConfig]:
    path = tmp_path / "coordinator.toml"
    path.write_text(text)
    return load_settings(path, CoordinatorConfig, environment=environment, aliases={"VEILSUM_DATABASE": ("database",)})


def site(tmp_path: Path, **environment: str) -> Loaded[ParticipantConfig]:
    path = tmp_path / "participant.toml"
    path.write_text(SITE)
    return load_settings(path, ParticipantConfig, environment=environment)


def refused(tmp_path: Path, text: str = "", **environment: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        coordinator(tmp_path, text, **environment)
    return str(caught.value)


def test_variables_override_the_file(tmp_path: Path) -> None:
    loaded = coordinator(
        tmp_path,
        'listen = "127.0.0.1:1"\n[waits]\ngrace = 7\nenrol = 9\n',
        VEILSUM__LISTEN="0.0.0.0:8461",
        VEILSUM__WAITS__GRACE="0",
        VEILSUM__LOG__FORMAT="json",
        VEILSUM__MAX_PEER_STREAMS="32",
        VEILSUM__STATE="2026",  # a path, though it looks like a number
        VEILSUM__IDENTITY='"quoted"',
        OTHER="x",
        VEILSUM_COORDINATOR="of the analyst's commands",
    )
    config = loaded.config
    assert config.listen == "0.0.0.0:8461"
    assert (config.waits.grace, config.waits.enrol, config.waits.seal) == (0, 9, 600)
    assert (config.log.format, config.max_peer_streams) == ("json", 32)
    assert (config.state, config.identity) == (Path("2026"), Path("quoted"))
    assert loaded.source(("waits", "grace")) == "VEILSUM__WAITS__GRACE"
    assert loaded.source(("waits", "enrol")) == "file"
    assert loaded.source(("waits", "seal")) == "default"


def test_tables_names_and_lists(tmp_path: Path) -> None:
    loaded = site(
        tmp_path,
        VEILSUM__DATASETS__HEART_DISEASE__PATH="other.csv",
        VEILSUM__DATASETS__MORE__PATH="more.csv",
        VEILSUM__DATASETS__MORE__HEADER="false",
        VEILSUM__BUDGETS__MORE="{ epsilon = 2.0, delta = 1e-5 }",
        VEILSUM__BUDGETS__MORE__EPSILON="unlimited",
        VEILSUM__POLICY__ANALYSTS='["carol", "dave"]',
        VEILSUM__LOG__FORMAT="json",
    )
    config = loaded.config
    assert {name: str(item.path) for name, item in config.datasets.items()} == {
        "heart-disease": "other.csv",
        "more": "more.csv",
    }
    assert [item.header for item in config.datasets.values()] == [True, False]
    assert (config.budgets["more"].epsilon, config.budgets["more"].delta) == ("unlimited", 1e-5)
    assert config.policy.analysts == ("carol", "dave")
    assert config.policy.min_cohort == 4
    assert (config.log.file, config.log.format) == (Path("site.log"), "json")
    assert loaded.source(("log", "file")) == "file"


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("postgresql://u:p@host/db\n")
    for name in ("secret", str(tmp_path / "secret")):
        config = coordinator(tmp_path, VEILSUM__DATABASE_FILE=name).config
        assert config.database is not None
        assert config.database.get_secret_value() == "postgresql://u:p@host/db"
    assert coordinator(tmp_path, VEILSUM__READY_FILE="ready").config.ready_file == Path("ready")  # a key of that name
    (tmp_path / "number").write_text("12\n")
    assert coordinator(tmp_path, VEILSUM__WAITS__GRACE_FILE="number").config.waits.grace == 12
    for text in ("{ grace = 1, seal = 2 }\n", "grace = 1\nseal = 2\n"):
        (tmp_path / "table").write_text(text)
        waits = coordinator(tmp_path, VEILSUM__WAITS_FILE="table").config.waits
        assert (waits.grace, waits.seal, waits.enrol) == (1, 2, 3600)
    assert "VEILSUM__DATABASE_FILE: the file" in refused(tmp_path, VEILSUM__DATABASE_FILE="none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refused(tmp_path, VEILSUM__DATABASE_FILE="binary")


def test_the_older_variable_stays_and_an_empty_one_is_none(tmp_path: Path) -> None:
    config = coordinator(tmp_path, 'database = "postgresql://file/x"', VEILSUM_DATABASE="postgresql://old/x").config
    assert config.database == SecretStr("postgresql://old/x")
    config = coordinator(tmp_path, 'database = "postgresql://file/x"', VEILSUM_DATABASE="", VEILSUM__DATABASE="").config
    assert config.database == SecretStr("postgresql://file/x")
    message = refused(tmp_path, VEILSUM_DATABASE="postgresql://a/x", VEILSUM__DATABASE="postgresql://b/x")
    assert "VEILSUM_DATABASE and VEILSUM__DATABASE set the same key database" in message
    assert "postgresql" not in message


@pytest.mark.parametrize(
    ("variable", "advice"),
    [
        ("VEILSUM__LISTN", "Did you mean VEILSUM__LISTEN?"),
        ("VEILSUM__WAITS__GRAC", "Did you mean VEILSUM__WAITS__GRACE?"),
        ("VEILSUM__WAIT__GRACE", "Did you mean VEILSUM__WAITS?"),
        ("VEILSUM__LOG__FORMAT__X", ""),
        ("VEILSUM__", "Known: VEILSUM__"),
        ("VEILSUM__WAITS__", "Known: VEILSUM__WAITS__"),
        ("VEILSUM__ZZZZZZ", "Known: VEILSUM__DATABASE"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest_known(tmp_path: Path, variable: str, advice: str) -> None:
    message = refused(tmp_path, **{variable: "postgresql://u:hunter2@h/d"})
    assert f"The environment variable {variable} names no key." in message
    assert advice in message
    assert "hunter2" not in message


def test_a_wrong_value_is_named_by_its_variable_and_not_shown(tmp_path: Path) -> None:
    message = refused(
        tmp_path,
        "max_peer_streams = 1\n",
        VEILSUM__WAITS__GRACE="hunter2",
        VEILSUM__LOG="{ file = 'x', formt = 'hunter2' }",
        VEILSUM__DATABASE="[ 'hunter2' ]",
        VEILSUM__LISTEN="hunter2",
    )
    assert "has 4 problems" in message
    assert "VEILSUM__WAITS__GRACE (waits.grace): must be a whole number" in message
    assert "VEILSUM__LOG (log.formt): unknown key. Did you mean 'format'?" in message
    assert "VEILSUM__LISTEN (listen): " in message
    assert "max_peer_streams: must be at least 4" in message
    assert "hunter2" not in message


def test_a_table_that_the_file_writes_as_something_else(tmp_path: Path) -> None:
    assert "VEILSUM__WAITS__GRACE sets a key of waits, which is not a table" in refused(
        tmp_path, "waits = 3\n", VEILSUM__WAITS__GRACE="1"
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), st.text(max_size=60))
def test_no_name_and_no_value_ends_in_another_error_or_shows_the_value(
    tmp_path_factory: pytest.TempPathFactory, name: str, value: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text("")
    secret = f"<{value}>hunter2"
    message = ""
    try:
        load_settings(path, CoordinatorConfig, environment={f"VEILSUM__{name}": secret})
    except ConfigurationError as error:
        message = str(error)
    assert "hunter2" not in message


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60))
def test_a_text_arrives_as_it_is(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """What is not TOML is taken as it stands; what is a TOML text loses its quotes."""
    path = tmp_path_factory.getbasetemp() / "text.toml"
    path.write_text("")
    config = load_settings(path, CoordinatorConfig, environment={"VEILSUM__DATABASE": text}).config
    assert config.database is not None
    try:
        parsed = tomllib.loads(f"x = {text}")
        expected = parsed["x"] if set(parsed) == {"x"} and isinstance(parsed["x"], str) else text
    except tomllib.TOMLDecodeError:
        expected = text
    assert config.database.get_secret_value() == expected


# -- what holds ------------------------------------------------------------------------------------------------------------


def test_what_holds_is_shown_with_its_source_and_without_secrets(tmp_path: Path) -> None:
    loaded = coordinator(tmp_path, "[waits]\nseal = 5\n", VEILSUM__DATABASE="postgresql://u:hunter2@h/d")
    rows = {".".join(key): (value, source) for key, value, source in effective(loaded)}
    assert rows["database"] == ("(hidden)", "VEILSUM__DATABASE")
    assert rows["waits.seal"] == (5, "file")
    assert rows["waits.grace"] == (30, "default")
    assert "hunter2" not in repr(loaded)


@pytest.mark.parametrize("role", ["coordinator", "participant"])
def test_the_commands_output_is_a_configuration_again(
    tmp_path: Path, role: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{role}.toml"
    path.write_text(SITE if role == "participant" else "")
    monkeypatch.setenv("VEILSUM__LOG__LEVEL", "debug")
    status, text, _ = veilsum(capsys, role, "config", "--config", path)
    assert status == 0
    assert any("level" in line and "# VEILSUM__LOG__LEVEL" in line for line in text.splitlines())
    load = load_participant_config if role == "participant" else load_coordinator_config
    before = load(path)
    monkeypatch.delenv("VEILSUM__LOG__LEVEL")
    path.write_text(text)
    assert load(path) == before
    status, shown, _ = veilsum(capsys, role, "config", "--config", path, "--json")
    assert {"key": "log.level", "value": "debug", "source": "file"} in json.loads(shown)


def test_relative_paths_are_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "coordinator.toml"
    path.write_text("")
    monkeypatch.setenv("VEILSUM__STATE", "here")
    monkeypatch.setenv("VEILSUM__LOG", "the.log")
    config = load_coordinator_config(path)
    assert (config.state, config.log.file) == (tmp_path / "here", tmp_path / "the.log")
    assert read_coordinator_settings(path).config.state == Path("here")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("VEILSUM_POLICY__NOISE", "VEILSUM__POLICY__NOISE"),
        ("VEILSUM_POLICY__MIN_COHORT_FILE", "VEILSUM__POLICY__MIN_COHORT_FILE"),
        ("veilsum__policy__noise", "VEILSUM__POLICY__NOISE"),
        ("Veilsum__STATE", "VEILSUM__STATE"),
        ("veilsum_log__level", "VEILSUM__LOG__LEVEL"),
    ],
)
def test_a_misspelt_prefix_is_refused(tmp_path: Path, wrong: str, right: str) -> None:
    assert f"Did you mean {right}?" in (said := refused(tmp_path, **{wrong: "secret"}))
    assert "secret" not in said


def test_other_programs_variables_are_theirs(tmp_path: Path) -> None:
    mine = {
        "VEILSUM_POLICY__NOISE": "",
        "VEILSUM_DATABASE_URL": "x",
        "VEILSUMMER__A": "x",
        "MY_VEILSUM__A": "x",
        "VEILSUM": "x",
    }
    assert coordinator(tmp_path, **mine).overrides == ()


def test_the_log_names_variables_and_no_values() -> None:
    given = {
        "VEILSUM__POLICY__NOISE": '["none"]',
        "VEILSUM__STATE": "",
        "VEILSUM_DATABASE": "postgresql://u:secret@h/n",
        "HOME": "/",
    }
    assert set_variables(given) == ["VEILSUM__POLICY__NOISE"]
