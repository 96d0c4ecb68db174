"""The console's systemd unit by systemd's own checkers: no unknown setting, few privileges, no port, a user of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from support.confinement import read_service
from support.tools import need_tool

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNIT = UNITS / "veilsum-console.service"
MOST_EXPOSED = 1.7
"""Of systemd's exposure level, 0 to 10: as the other units, but for the mapping of users, which a shared group rules out."""


def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    (tmp_path / "etc/systemd/system").mkdir(parents=True)
    for program in ("opt/veilsum/bin/veilsum", "usr/bin/ln"):
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(mode=0o755)
    shutil.copy(UNIT, tmp_path / "etc/systemd/system")
    command = [need_tool("systemd-analyze"), "verify", f"--root={tmp_path}", UNIT.name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_finds_little_exposure() -> None:
    command = [need_tool("systemd-analyze"), "security", "--offline=true", "--no-pager", UNIT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found is not None, done.stderr
    assert float(found[1]) <= MOST_EXPOSED


def test_it_is_no_user_of_records_and_binds_no_port() -> None:
    own, other = read_service(UNIT), read_service(UNITS / "veilsum-participant.service")
    assert own["User"] != other["User"]
    assert own["SupplementaryGroups"] == other["Group"]
    assert own["SocketBindDeny"] == ["any"]
    assert "SocketBindAllow" not in own
    assert "veilsum-console" in (UNITS / "veilsum-console.sysusers.conf").read_text()
