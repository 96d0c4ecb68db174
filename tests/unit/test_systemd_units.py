"""The systemd units, by systemd's own checkers: no unknown setting, few privileges, users and directories that can be made."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from support.confinement import read_service
from support.tools import need_tool

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
ROLES = ("coordinator", "participant")
SERVICES = (*ROLES, "logins")
MOST_EXPOSED = 1.5
"""Of systemd's exposure level, 0 to 10; 3.0 is what the project promises."""

RESTRICTION = re.compile(
    "^(Protect|Private|Restrict|SystemCall|Memory|Lock|NoNew|Capability|Ambient|Secure|Keyring|RemoveIPC|Socket)"
)


def unit(role: str) -> Path:
    return UNITS / f"veilsum-{role}.service"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([need_tool(str(command[0])), *command[1:]], capture_output=True, text=True, timeout=60)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A root directory with systemd's own units, ours, and the programs that these start."""
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    for program in ("opt/veilsum/bin/veilsum", "usr/bin/ln"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(mode=0o755)
    for role in SERVICES:
        shutil.copy(unit(role), tmp_path / "etc/systemd/system")
    return tmp_path


@pytest.mark.parametrize("role", SERVICES)
def test_systemd_verifies_the_unit(host: Path, role: str) -> None:
    done = run("systemd-analyze", "verify", f"--root={host}", unit(role).name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("UMask=", "Umask=", "Unknown key"),
        ("Restart=on-failure", "Restart=on-fail", "Failed to parse"),
        ("/opt/veilsum/bin/veilsum", "/opt/veilsum/bin/veilsum2", "is not executable"),
        ("@system-service", "@system-servicing", "Unknown system call"),
        ("TimeoutStopSec=60s", "TimeoutStopSec=60x", "Failed to parse"),
    ],
)
def test_systemd_s_verification_finds_faults(host: Path, old: str, new: str, complaint: str) -> None:
    place = host / "etc/systemd/system" / unit("participant").name
    text = place.read_text(encoding="utf-8")
    assert old in text
    place.write_text(text.replace(old, new), encoding="utf-8")
    assert complaint.lower() in run("systemd-analyze", "verify", f"--root={host}", place.name).stderr.lower()


@pytest.mark.parametrize("role", SERVICES)
def test_systemd_finds_little_exposure(role: str) -> None:
    done = run("systemd-analyze", "security", "--offline=true", "--no-pager", unit(role))
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MOST_EXPOSED


@pytest.mark.parametrize("role", ROLES)
def test_the_unit_fits_the_command_line_and_itself(role: str) -> None:
    settings = read_service(unit(role))
    name = f"veilsum-{role}"
    assert settings["User"] == settings["Group"] == settings["StateDirectory"] == settings["RuntimeDirectory"] == [name]
    folder = f"/etc/veilsum/{role}"
    assert settings["ExecStart"] == [f"/opt/veilsum/bin/veilsum {role} start --config {folder}/{role}.toml"]
    credentials = [f"key.pem:{folder}/identity/key.pem"]
    expected = {
        f"%t/{name}/key.pem": "%d/key.pem",
        f"%t/{name}/certificate.pem": f"{folder}/identity/certificate.pem",
        f"%t/{name}/authority.pem": f"{folder}/identity/authority.pem",
    }
    if role == "participant":  # whose connections have a key of their own, or none yet
        credentials.append(f"transport-key.pem:{folder}/identity/transport/key.pem")
        assert settings["SetCredential"] == ["transport-key.pem:none"]
        expected |= {
            f"%t/{name}/transport/key.pem": "%d/transport-key.pem",
            f"%t/{name}/transport/certificate.pem": f"{folder}/identity/transport/certificate.pem",
            f"%t/{name}/transport/authority.pem": f"{folder}/identity/authority.pem",
        }
    assert settings["LoadCredential"] == credentials
    assert {line.split()[-1]: line.split()[-2] for line in settings["ExecStartPre"] if "/ln " in line} == expected


def test_the_service_for_logins_differs_in_what_it_holds_and_where_it_listens() -> None:
    """The authority's passphrase in place of a key, the authority in place of a journal."""
    logins, coordinator = read_service(unit("logins")), read_service(unit("coordinator"))
    differing = {key for key in {*logins, *coordinator} if logins.get(key) != coordinator.get(key)}
    own = {"ExecStartPre", "ExecStart", "EnvironmentFile", "Environment", "LoadCredential", "LimitNOFILE", "TasksMax"}
    assert differing == own | {"User", "Group", "StateDirectory", "RuntimeDirectory", "SocketBindAllow"}
    folder = "/etc/veilsum/logins"
    assert logins["ExecStart"] == [f"/opt/veilsum/bin/veilsum federation serve-logins --config {folder}/logins.toml"]
    assert logins["LoadCredential"] == [f"passphrase:{folder}/passphrase"]
    assert logins["SocketBindAllow"] == ["tcp:8463", "tcp:9466"]


def test_the_units_differ_only_in_name_ports_and_files() -> None:
    coordinator, participant = (
        {key: [value.replace(role, "ROLE") for value in values] for key, values in read_service(unit(role)).items()}
        for role in ROLES
    )
    differing = {key for key in coordinator if coordinator[key] != participant.get(key)}
    of_processes = {
        "SystemCallFilter",
        "LoadCredential",
        "ExecStartPre",
    }  # that confine themselves, with a key for connections
    assert differing == {"SocketBindAllow", "LimitNOFILE"} | of_processes
    assert set(participant) - set(coordinator) == {"SetCredential", "OOMPolicy"}
    assert participant["SystemCallFilter"][: len(coordinator["SystemCallFilter"])] == coordinator["SystemCallFilter"]
    assert coordinator["SocketBindAllow"] == ["tcp:8461", "tcp:9464"]
    assert participant["SocketBindAllow"] == ["tcp:9465"]  # nothing else at a site can listen


@pytest.mark.parametrize("role", SERVICES)
def test_every_restriction_is_explained(role: str) -> None:
    page = (ROOT / "docs" / "deployment" / "systemd.md").read_text(encoding="utf-8")
    wanted = {key for key in read_service(unit(role)) if RESTRICTION.match(key)} | {"MemoryDenyWriteExecute", "ProcSubset"}
    assert len(wanted) > 20
    assert sorted(key for key in wanted if f"`{key}" not in page) == []


def test_users_and_directories_can_be_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    users = run("systemd-sysusers", f"--root={tmp_path}", UNITS / "veilsum.sysusers.conf")
    assert users.returncode == 0, users.stderr
    lines = (tmp_path / "etc/passwd").read_text(encoding="utf-8").splitlines()
    shells = {line.split(":")[0]: line.split(":")[6] for line in lines}
    assert shells == {f"veilsum-{role}": "/usr/sbin/nologin" for role in SERVICES}
    key = tmp_path / "etc/veilsum/participant/identity/key.pem"
    key.parent.mkdir(parents=True)
    key.touch(mode=0o644)
    settings = UNITS / "veilsum.tmpfiles.conf"
    if os.geteuid() != 0:  # only root gives files to others; the rest is tried all the same
        own = settings.read_text(encoding="utf-8").replace(" root root ", " - - ")
        settings = tmp_path / "own.tmpfiles.conf"
        settings.write_text(own, encoding="utf-8")
    made = run("systemd-tmpfiles", f"--root={tmp_path}", "--create", settings)
    assert made.returncode == 0, made.stderr
    assert key.stat().st_mode & 0o777 == 0o600
    for role in ROLES:
        identity = tmp_path / "etc/veilsum" / role / "identity"
        assert identity.stat().st_mode & 0o777 == 0o755
