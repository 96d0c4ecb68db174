"""Programs of other projects: where they are looked for, how they are fetched, and what happens without them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from local import tools
from local.tools import find_tool
from support.tools import DEMANDED, need_tool

FETCH = Path(__file__).resolve().parents[2] / "deploy" / "tools" / "fetch.sh"
PROGRAMS = ("prometheus", "promtool", "alertmanager", "amtool", "spin", "nginx")


def make(path: Path, script: str = 'echo "$0, version 1 (test)"') -> Path:
    """A program of a few lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty machine: nothing fetched, nothing on PATH, no PostgreSQL."""
    monkeypatch.setattr(tools, "TOOLS", tmp_path / "fetched")
    monkeypatch.setattr(tools, "_POSTGRESQL", tmp_path / "postgresql")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    return tmp_path


def test_what_was_fetched_comes_first(places: Path) -> None:
    assert find_tool("promtool") is None
    system = make(places / "path" / "promtool")
    assert find_tool("promtool") == system
    unpacked = make(places / "fetched" / "usr" / "bin" / "promtool")
    assert find_tool("promtool") == unpacked
    linked = make(places / "fetched" / "bin" / "promtool")
    assert find_tool("promtool") == linked
    linked.chmod(0o644)  # no program any more
    assert find_tool("promtool") == unpacked


def test_debian_s_name_serves(places: Path) -> None:
    found = make(places / "path" / "prometheus-alertmanager")
    assert find_tool("alertmanager") == found
    assert find_tool("amtool") is None


def test_newest_postgresql_but_path_before(places: Path) -> None:
    for version in ("9.6", "15", "17", "beta"):
        make(places / "postgresql" / version / "bin" / "initdb")
    assert find_tool("initdb") == places / "postgresql" / "17" / "bin" / "initdb"
    on_path = make(places / "path" / "initdb")
    assert find_tool("initdb") == on_path


def test_a_test_without_its_tool_is_skipped_or_fails(places: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DEMANDED, raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"promtool is neither .* run `make tools`"):
        need_tool("promtool")
    monkeypatch.setenv(DEMANDED, "1")
    with pytest.raises(pytest.fail.Exception, match="run `make tools`"):
        need_tool("promtool")
    assert need_tool("promtool") if make(places / "path" / "promtool") else False


# -- the script behind `make tools` -----------------------------------------------------------------------------------------

NEEDED = ("bash", "dirname", "mkdir", "mktemp", "rm", "cat", "ln", "touch", "flock")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A checkout with the script, and a folder ``path`` with the few programs that any machine has."""
    (tmp_path / "deploy" / "tools").mkdir(parents=True)
    shutil.copy(FETCH, tmp_path / "deploy" / "tools")
    (tmp_path / "path").mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        if found is not None:
            (tmp_path / "path" / name).symlink_to(found)
    return tmp_path


def fetch(machine: Path) -> subprocess.CompletedProcess[str]:
    """Run the script."""
    environment = os.environ | {"PATH": str(machine / "path")}
    command = [str(machine / "path" / "bash"), str(machine / "deploy" / "tools" / FETCH.name)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


def test_without_apt_it_says_what_to_install(machine: Path) -> None:
    done = fetch(machine)
    assert done.returncode == 1
    assert "there is no apt-get on this machine" in done.stderr
    assert all(f"  {name}\n" in done.stderr for name in PROGRAMS)
    assert "apt-get install prometheus prometheus-alertmanager spin nginx" in done.stderr


def test_nothing_is_fetched_where_everything_is(machine: Path) -> None:
    for name in ("prometheus", "promtool", "prometheus-alertmanager", "amtool", "spin", "nginx"):
        make(machine / "path" / name)
    done = fetch(machine)
    assert done.returncode == 0, done.stderr
    assert [line.partition(":")[0].rpartition("/")[2] for line in done.stdout.splitlines()] == [
        "prometheus",
        "promtool",
        "prometheus-alertmanager",
        "amtool",
        "spin",
        "nginx",
    ]
    assert sorted(path.name for path in (machine / ".tools").iterdir()) == ["bin", "lock"]


APT = """
case "$*" in
    *update*) touch "$UPDATED"; exit 0 ;;
    *download*) test -e "$UPDATED" || exit 100; touch "${@: -1}_1_all.deb" ;;
esac
"""
DPKG = r"""
mkdir -p "$3/usr/bin"
for name in prometheus promtool prometheus-alertmanager amtool spin nginx; do
    printf '#!/bin/bash\necho "%s, version 1 (test)"\n' "$name" > "$3/usr/bin/$name"; chmod +x "$3/usr/bin/$name"
done
"""


def test_lists_are_fetched_where_they_are_absent_and_the_second_call_does_nothing(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDATED", str(machine / "updated"))
    (machine / "path" / "chmod").symlink_to(shutil.which("chmod") or "")
    make(machine / "path" / "apt-get", APT)
    make(machine / "path" / "dpkg", DPKG)
    done = fetch(machine)
    assert done.returncode == 0, done.stderr
    assert (machine / "updated").exists()
    assert sorted(path.name for path in (machine / ".tools" / "bin").iterdir()) == sorted(PROGRAMS)
    assert "Fetching" in done.stderr
    again = fetch(machine)
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


def test_a_download_that_fails_shows_why(machine: Path) -> None:
    make(machine / "path" / "apt-get", 'echo "E: no network" >&2; exit 100')
    make(machine / "path" / "dpkg", DPKG)
    done = fetch(machine)
    assert done.returncode == 1
    assert "E: no network" in done.stderr
    assert "apt-get download prometheus failed" in done.stderr
    assert not list((machine / ".tools").glob("fetch.*"))
