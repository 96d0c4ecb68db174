"""Wheels are the same bytes wherever they are built, and hold what is committed and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import zipfile
from pathlib import Path

import pytest

from support.pages import ROOT

PAGES = re.compile(r"^[^/]+\.data/data/share/doc/[^/]+/")
"""Where a wheel brings its pages."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]


def build(clone: Path, *, umask: int, zone: str) -> dict[str, bytes]:
    """The wheels that a clone makes, by name."""
    command = ["make", "-o", ".venv/.runtime", f"BIN={ROOT / '.venv' / 'bin'}", "--no-print-directory", "wheels"]
    done = subprocess.run(
        command, cwd=clone, env={**os.environ, "TZ": zone}, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {file.name: file.read_bytes() for file in (clone / "dist").glob("*.whl")}


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """At other paths, under another mask and zone, and beside files that nobody committed."""
    one, other = tmp_path / "one", tmp_path / "deeper" / "other"
    for clone in (one, other):
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True, capture_output=True)
    (other / "privacy" / "veilsum_privacy" / "stray.py").write_text("")
    wheels = build(one, umask=0o022, zone="UTC")
    assert len(wheels) == 4
    assert build(other, umask=0o077, zone="Pacific/Auckland") == wheels
    committed = set(subprocess.run(["git", "ls-files"], cwd=one, capture_output=True, text=True, check=True).stdout.split())
    for wheel in (one / "dist").glob("*.whl"):
        names = [PAGES.sub("", name) for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
        assert [name for name in names if not any(f"/{file}".endswith(f"/{name}") for file in committed)] == []
