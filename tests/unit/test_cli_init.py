"""What ``init`` leaves for an engineer to edit, and how a coordinator is found."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from support.commands import shown
from veilsum.access import AnalystConfig, resolve_access
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config
from veilsum_deploy import cli
from veilsum_node.config import load_toml
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Authority, Role, SigningKey, verify_certificate
from veilsum_node.process import starters
from veilsum_node.process.confinement import Offered
from veilsum_node.process.starters import EXAMPLE_ADDRESS, write_starter
from veilsum_participant.settings.config import Policy, load_participant_config
from veilsum_privacy.tasks import TASKS


def test_the_participants_starter_is_the_default_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = shown(capsys, "participant", "init", tmp_path / "p", "--name", "p", "--coordinator", "hub.example:1234")
    config = load_participant_config(Path(made["configuration"]))
    assert config.policy == Policy()
    assert config.coordinator == "hub.example:1234"
    assert config.identity == tmp_path / "p" / "identity"
    stated = tomllib.loads(Path(made["configuration"]).read_text())["policy"]
    assert set(stated) >= {
        "analysts",
        "min_cohort",
        "min_trusted",
        "noise",
        "disclosures",
        "max_epsilon",
        "trusted",
    }
    assert not {"methods", "tasks"} & set(stated)  # a later version's are allowed without a word, as its defaults are
    assert made["fingerprint"] == SigningKey.from_pem((tmp_path / "p" / "identity" / "key.pem").read_bytes()).fingerprint


def test_the_default_policy_lists_every_method_and_task_and_nobodys_studies() -> None:
    policy = Policy()
    assert set(policy.methods) == set(METHODS)
    assert set(policy.tasks) == set(TASKS)
    assert (policy.analysts, "none" in policy.noise, policy.disclosures) == ((), False, ("joint",))


def test_the_coordinators_starter_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = shown(capsys, "coordinator", "init", tmp_path / "c", "--name", "c")
    config = load_coordinator_config(Path(made["configuration"]))
    default = CoordinatorConfig()
    assert (config.listen, config.waits, config.max_peer_streams) == (default.listen, default.waits, default.max_peer_streams)


def test_the_analysts_starter_is_found_in_the_present_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shown(capsys, "analyst", "init", tmp_path / "a", "--name", "a")
    assert load_toml(Path(made["configuration"]), AnalystConfig).coordinator == EXAMPLE_ADDRESS
    monkeypatch.chdir(tmp_path / "a")
    access = resolve_access(None, None)
    assert (access.address, access.identity) == (EXAMPLE_ADDRESS, tmp_path / "a" / "identity")
    assert resolve_access("there:1", Path("me")).address == "there:1"
    assert resolve_access("there:1", None).identity == tmp_path / "a" / "identity"


def test_an_operator_gets_the_analysts_settings_and_a_request_for_its_own_role(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = shown(capsys, "analyst", "init", tmp_path / "o", "--name", "o", "--operator")
    assert made["role"] == "operator"
    assert Path(made["configuration"]) == tmp_path / "o" / "analyst.toml"
    authority = Authority.create(tmp_path / "authority", "f", lambda: 1_800_000_000)
    request = Path(made["request"]).read_bytes()
    with pytest.raises(HostileInput, match="different role"):
        authority.sign(request, role=Role.ANALYST, name="o")
    certificate = authority.sign(request, role=Role.OPERATOR, name="o")
    assert verify_certificate(certificate, authority.certificate, 1_800_000_000, None).role is Role.OPERATOR


def test_without_settings_address_and_identity_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match="No coordinator"):
        resolve_access(None, Path("me"), tmp_path / "analyst.toml")
    with pytest.raises(Misuse, match="No identity"):
        resolve_access("there:1", None, tmp_path / "analyst.toml")


def test_an_edited_configuration_is_never_overwritten(tmp_path: Path) -> None:
    path = write_starter(tmp_path, Role.PARTICIPANT)
    path.write_text("mine")
    assert write_starter(tmp_path, Role.PARTICIPANT).read_text() == "mine"


@pytest.mark.parametrize("address", ["nowhere", "a b:1", 'x"\n:1', "host:0", "host:70000", "host:x", ":1"])
def test_an_address_that_is_none_is_refused_before_a_key_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["participant", "init", str(tmp_path / "p"), "--name", "p", "--coordinator", address])
    assert caught.value.code == 2
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(("landlock", "isolation"), [(1, "processes"), (0, "auto")])
def test_a_new_sites_processes_are_confined_where_the_machine_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landlock: int, isolation: str
) -> None:
    """A configuration without the key, as those of before, leaves it to the machine."""
    monkeypatch.setattr(starters, "offered", lambda: Offered(True, True, landlock))
    path = write_starter(tmp_path, Role.PARTICIPANT)
    values = tomllib.loads(path.read_text())
    assert values["isolation"] == isolation
    assert load_participant_config(path).isolation == isolation
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("isolation")))
    assert load_participant_config(path).isolation == "auto"
