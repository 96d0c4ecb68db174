"""Configuration files: every problem is named with its key, and unknown keys with the nearest known one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from veilsum.compile import StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_node.config import did_you_mean, explain, load_toml, located, nearest, validate
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Frozen, Real
from veilsum_participant.settings.config import ParticipantConfig, Policy, load_participant_config
from veilsum_privacy.study.schema_file import load_schema


class Cat(Frozen):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(Frozen):
    kind: Literal["dog"] = "dog"
    tricks: tuple[str, ...]


class Settings(Frozen):
    data_dir: str
    limits: dict[str, int] = Field(default_factory=dict)
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = ()
    retry: int | None = Field(default=None, alias="retries", ge=0)


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "settings.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def classes(base: type[Frozen]) -> set[type[Frozen]]:
    """All that are made of it."""
    return {base}.union(*(classes(own) for own in base.__subclasses__()))


def failure(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_toml(path, Settings)
    return str(caught.value)


def test_valid_file_is_loaded(tmp_path: Path) -> None:
    text = 'data_dir = "x"\nretries = 2\n[limits]\na = 1\n[[pets]]\nkind = "dog"\ntricks = ["sit"]\n'
    settings = load_toml(write(tmp_path, text), Settings)
    assert settings.data_dir == "x"
    assert settings.retry == 2
    assert settings.limits == {"a": 1}
    assert settings.pets == (Dog(tricks=("sit",)),)


def test_every_problem_is_listed_with_file_and_key(tmp_path: Path) -> None:
    text = 'data_dri = "x"\nretries = -1\n[limits]\na = "b"\n[[pets]]\nkind = "cat"\nlifes = 9\n'
    path = write(tmp_path, text)
    message = failure(path)
    assert str(path) in message
    assert "has 6 problems" in message
    assert "data_dri: unknown key. Did you mean 'data_dir'?" in message
    assert "data_dir: is missing." in message
    assert "retries: " in message
    assert "limits.a: " in message
    assert "pets[0].lives: is missing." in message
    assert "pets[0].lifes: unknown key. Did you mean 'lives'?" in message


def test_unknown_key_of_a_union_is_compared_with_its_own_members_keys(tmp_path: Path) -> None:
    message = failure(write(tmp_path, 'data_dir = "x"\n[[pets]]\nkind = "dog"\ntricks = []\nlives = 3\n'))
    assert "pets[0].lives: unknown key. Known: kind, tricks." in message


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"a = ", "not valid TOML"), (b"\xff\xfe", "not UTF-8"), (b"a = 1\na = 2", "not valid TOML")],
)
def test_what_is_not_toml(tmp_path: Path, content: bytes, expected: str) -> None:
    assert expected in failure(write(tmp_path, content))


def test_missing_file_and_directory(tmp_path: Path) -> None:
    assert "does not exist" in failure(tmp_path / "none.toml")
    assert "is a folder, not a file" in failure(tmp_path)


@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(value: bool) -> None:
    """In any field of anything that is configured or agreed on that is a number, by itself or among others."""
    assert METHODS  # whose parameters are such models
    for model in classes(Frozen):
        for name, field in model.model_fields.items():
            if field.annotation in (int, float, int | None, float | None) and field.alias is None:
                with pytest.raises(ValidationError):
                    model.model_validate({name: value})
    with pytest.raises(ValidationError) as caught:
        Settings.model_validate({"data_dir": "/", "pets": [{"kind": "cat", "lives": value}]})
    assert explain(caught.value, Settings) == ["pets[0].lives: must be a whole number."]
    for expected in ({"end": value}, {"end": {"died": value}}, {"age": [60, value]}, {"age": value}):
        with pytest.raises(ValidationError, match="true or false"):
            StudyRequest.model_validate({"name": "s", "method": "statistics", "dataset": "d", "expected": expected})


def test_nearest() -> None:
    assert nearest("Epsilom", ["delta", "epsilon"]) == "epsilon"
    assert nearest("zzz", ["delta", "epsilon"]) is None
    assert did_you_mean("zzz", ["b", "a"]) == "Known: a, b."


def test_validate_names_its_source() -> None:
    with pytest.raises(ConfigurationError, match="the request"):
        validate({}, Settings, source="the request")


def test_schema_file_problems(tmp_path: Path) -> None:
    text = """
max_recods = 3
[[columns]]
kind = "number"
name = "age"
low = 2
high = 1
[[columns]]
kind = "numbr"
name = "b"
"""
    with pytest.raises(ConfigurationError) as caught:
        load_schema(write(tmp_path, text))
    message = str(caught.value)
    assert "max_recods: unknown key. Did you mean 'max_records'?" in message
    assert "columns[0]: column 'age': low must be below high." in message
    assert "columns[1].kind: " in message
    assert "columns: tuple" not in message


DEMO_DATA = Path(__file__).parents[2] / "deploy" / "veilsum_deploy" / "demo_data"


@pytest.mark.parametrize(("name", "width"), [("breast_cancer", 30), ("heart_disease", 6 + 2 + 4 + 2 + 3 + 2 + 3 + 3)])
def test_shipped_schemas_load(name: str, width: int) -> None:
    schema = load_schema(DEMO_DATA / f"{name}.toml")
    assert schema.width == width
    assert len(schema.classes) == 2


# -- a participant's configuration -----------------------------------------------------------------------------------------


def participant(tmp_path: Path, policy: str = "", rest: str = "") -> ParticipantConfig:
    text = f"""coordinator = "localhost:1"
[datasets.records]
path = "records.csv"
[policy]
{policy}
{rest}"""
    return load_participant_config(write(tmp_path, text))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ('min_cohort = "3"', "policy.min_cohort: must be a whole number"),
        ("min_cohort = 3.0", "policy.min_cohort: must be a whole number"),
        ("min_cohort = true", "policy.min_cohort: must be a whole number"),
        ("min_cohort = 1", "policy.min_cohort: must be at least 2"),
        ('max_epsilon = "1"', "policy.max_epsilon: must be a number"),
        ("max_epsilon = nan", "policy.max_epsilon: "),
        ("max_attempts = 0", "policy.max_attempts: must be at least 1"),
        ('approval = "hand"', "policy.approval: must be 'policy' or 'manual'"),
        ('units = ["person"]', "policy.units[0]: must be 'record', 'subject' or 'site'"),
        ('cohort_difference = "strict"', "policy.cohort_difference: must be a list, in [brackets]"),
        (
            "share_metrics = true",
            "policy.share_metrics: name what is shared, of software, budget, ledger, timings, certificate",
        ),
        ("share_metrics = 0", "policy.share_metrics: must be a list, in [brackets]"),
        (
            'share_metrics = ["losses"]',
            "policy.share_metrics[0]: must be 'software', 'budget', 'ledger', 'timings' or",
        ),
        ("max_epsilom = 1.0", "policy.max_epsilom: unknown key. Did you mean 'max_epsilon'?"),
        ('aproval = "manual"', "policy.aproval: unknown key. Did you mean 'approval'?"),
        ('methods = ["Stat istics"]', "policy.methods[0]: must be 1 to 64 lower-case letters"),
        ('trusted = { b = "AB" }', "policy.trusted.b: must be 64 hexadecimal digits in lower case"),
        (f'trusted = {{ "B c" = "{"0" * 64}" }}', "policy.trusted.B c: must be 1 to 64 lower-case letters"),
    ],
)
def test_a_policy_is_strict_and_its_faults_are_plain(tmp_path: Path, policy: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        participant(tmp_path, policy)
    message = str(caught.value)
    assert expected in message
    assert "has a problem" in message
    for sign in ("[a-z", "{0,62}", "\\d", "^", "$", "pattern"):
        assert sign not in message, message


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:0", "host:65536", "ho st:1", "host:1a", "host:\u00b2"])
def test_an_address_that_is_none(tmp_path: Path, address: str) -> None:
    text = f'coordinator = "{address}"\n[datasets.records]\npath = "records.csv"\n'
    with pytest.raises(ConfigurationError, match="coordinator: must be host:port"):
        load_participant_config(write(tmp_path, text))


@pytest.mark.parametrize("epsilon", ['"3"', "0", "-1.0", "1001", "nan", "inf", "true", '"none"'])
def test_a_budget_that_is_none(tmp_path: Path, epsilon: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        participant(tmp_path, rest=f"[budgets.records]\nepsilon = {epsilon}\ndelta = 1e-5\n")
    assert 'budgets.records.epsilon: must be a positive number up to 1000, or "unlimited".' in str(caught.value)
    assert "has a problem" in str(caught.value)


def test_numbers_as_toml_writes_them(tmp_path: Path) -> None:
    config = participant(tmp_path, "max_epsilon = 2\nshare_metrics = false", "[budgets.records]\nepsilon = 3\ndelta = 1e-5\n")
    assert (config.policy.max_epsilon, config.budgets["records"].epsilon) == (2.0, 3.0)
    assert config.policy.model_copy(update={"max_epsilon": 1.0}) == Policy()


def test_a_column_of_subjects_belongs_to_its_dataset(tmp_path: Path) -> None:
    text = 'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\nsubject = "Patient ID"\n'
    assert load_participant_config(write(tmp_path, text)).datasets["records"].subject == "Patient ID"
    with pytest.raises(ConfigurationError, match="Did you mean 'subject'"):
        load_participant_config(write(tmp_path, text.replace("subject", "subjects")))


def test_the_first_line_of_a_csv_file_is_the_datasets_own_matter(tmp_path: Path) -> None:
    text = 'coordinator = "localhost:1"\n[datasets.records]\npath = "records.csv"\n'
    assert load_participant_config(write(tmp_path, text)).datasets["records"].header is True
    assert load_participant_config(write(tmp_path, text + "header = false\n")).datasets["records"].header is False
    with pytest.raises(ConfigurationError, match=r"datasets\.records\.header"):
        load_participant_config(write(tmp_path, text + 'header = "false"\n'))


@pytest.mark.parametrize("role", ["participant", "coordinator"])
def test_the_table_of_metrics(tmp_path: Path, role: str) -> None:
    """Its paths are taken from the file's directory; without it there is none; a wrong key is named with the nearest."""
    head = 'coordinator = "localhost:1"\n' if role == "participant" else ""
    tail = '[datasets.records]\npath = "records.csv"\n' if role == "participant" else ""
    load = load_participant_config if role == "participant" else load_coordinator_config
    files = 'certificate = "m.pem"\nkey = "m.key"\ntoken_file = "/run/token"\nready_file = "metrics.address"\n'
    found = load(write(tmp_path, f'{head}[metrics]\nlisten = "0.0.0.0:9465"\n{files}{tail}')).metrics
    assert found is not None
    assert (found.listen, found.certificate, found.key) == ("0.0.0.0:9465", tmp_path / "m.pem", tmp_path / "m.key")
    assert (found.token_file, found.ready_file) == (Path("/run/token"), tmp_path / "metrics.address")
    assert load(write(tmp_path, head + tail)).metrics is None
    with pytest.raises(
        ConfigurationError, match=r"metrics.listen: must be host:port.*\n.*metrics.tokenfile: unknown key. Did"
    ):
        load(write(tmp_path, f'{head}[metrics]\nlisten = "9465"\ntokenfile = "x"\n{tail}'))


@pytest.mark.parametrize(("hours", "good"), [("1", True), ("720", True), ("0", False), ("721", False), ("1.5", False)])
def test_how_often_a_ledger_is_verified(tmp_path: Path, hours: str, good: bool) -> None:
    text = f'coordinator = "localhost:1"\nverify_hours = {hours}\n[datasets.records]\npath = "records.csv"\n'
    if good:
        assert load_participant_config(write(tmp_path, text)).verify_hours == int(hours)
    else:
        with pytest.raises(ConfigurationError, match="verify_hours"):
            load_participant_config(write(tmp_path, text))


class Place(Frozen):
    file: Path | None = None
    name: str = "file"


class Places(Frozen):
    root: Path = Path("root")
    one: Place | None = None
    several: dict[str, Place] = Field(default_factory=dict)
    files: dict[str, Path] = Field(default_factory=dict)


def test_every_path_is_taken_from_the_files_directory_and_nothing_else_changes(tmp_path: Path) -> None:
    written = Places(one=Place(file=Path("a/b")), several={"x": Place(file=Path("/c")), "y": Place()}, files={"z": Path("d")})
    found = located(written, tmp_path / "settings.toml")
    assert found == Places(
        root=tmp_path / "root",
        one=Place(file=tmp_path / "a/b"),
        several={"x": Place(file=Path("/c")), "y": Place()},
        files={"z": tmp_path / "d"},
    )
    assert written.root == Path("root")
    assert located(Places(root=tmp_path), tmp_path / "settings.toml") == Places(root=tmp_path)


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("rounds", ["records", "steps"], "Known: records, steps."),  # what resembles nothing is not a slip
        ("optimizer", ["optimiser", "steps"], "Did you mean 'optimiser'?"),
        ("round", ["rounds", "records"], "Did you mean 'rounds'?"),
        ("espilon", ["epsilon", "delta"], "Did you mean 'epsilon'?"),
        ("EPSILON", ["epsilon", "delta"], "Did you mean 'epsilon'?"),
    ],
)
def test_a_name_is_proposed_for_a_slip_only(name: str, known: list[str], said: str) -> None:
    assert did_you_mean(name, known) == said


class Kennel(Frozen):
    dog: Dog | None = None
    pets: tuple[Annotated[Cat | Dog, Field(discriminator="kind")], ...] = ()
    sizes: dict[str, int] = Field(default_factory=dict)
    guess: dict[str, Real | tuple[Real, Real] | dict[str, Real]] = Field(default_factory=dict)
    owner: Dog | tuple[Dog, ...] | None = None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"dog": "rex"}, "dog: must be a table (in Python, a dict) with the keys kind, tricks."),
        ({"dog": 3}, "dog: must be a table (in Python, a dict) with the keys kind, tricks."),
        ({"sizes": "large"}, "sizes: must be a table (in Python, a dict)."),
        ({"pets": "cat"}, "pets: must be a list, in [brackets]."),
        ({"pets": ["cat"]}, "pets[0]: must be a table (in Python, a dict) with the keys kind, lives, tricks."),
        ({"pets": [{"lives": 9}]}, "pets[0].kind: is missing. Known: cat, dog."),
        ({"pets": [{"kind": "cow"}]}, "pets[0].kind: is none of those that there are. Known: cat, dog."),
        (
            {"guess": {"age": True}},
            "guess.age: must be a number, not true or false. Or must be a list, in [brackets]. Or must be a table",
        ),
        ({"guess": {"age": {"high": "x"}}}, "guess.age.high: must be a number"),
        ({"owner": {"trick": ["sit"]}}, "owner.trick: unknown key. Did you mean 'tricks'?"),
    ],
)
def test_no_class_of_the_code_is_named(value: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        validate(value, Kennel, source="settings")
    assert said in str(caught.value)
    assert not any(name in str(caught.value) for name in ("Dog", "Cat", "Kennel", "instance", "dictionary", "discriminator"))
    assert not any(sign in str(caught.value) for sign in ("?.", "..", "[Real", "function-", "tuple[", "dict["))


def test_a_question_ends_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match=r"called 'meen'\. Did you mean 'mean'\?$"):
        validate({"query": [{"kind": "meen", "over": ["age"]}]}, METHODS["statistics"].Parameters, source="parameters")


def test_a_command_says_values_in_the_products_own_words(capsys: pytest.CaptureFixture[str]) -> None:
    from veilsum_deploy.cli import app

    for words, told in (("--days many", "Must be a whole number"), ("--role nosuch", "'--role': 'nosuch' is not one of")):
        with pytest.raises(SystemExit):
            app(["federation", "sign", "x", "--name", "a", *words.split()])
        assert told in " ".join(capsys.readouterr().err.split())
