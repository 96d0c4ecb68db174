"""`make wheelhouse` collects what a machine without a network installs from; and where a demo's PyTorch comes from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.tools import give_up

ROOT = Path(__file__).resolve().parents[2]
ALONE = ("unshare", "--net", "--map-root-user")
"""A process that has no network, not even loopback."""


def run(*command: object, cwd: Path = ROOT) -> str:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


MIRROR = "TORCH_INDEX=https://mirror.example/x"


@pytest.mark.parametrize(("words", "processors"), [((), True), (("GPU=1",), False), ((MIRROR,), True)])
def test_pytorch_comes_without_cuda_unless_it_is_asked_for(words: tuple[str, ...], *, processors: bool) -> None:
    shown = run("make", "--dry-run", "--always-make", "--no-print-directory", "demo", *words)
    (line,) = [line for line in shown.splitlines() if "install" in line and "torch==" in line]
    index = MIRROR.partition("=")[2] if MIRROR in words else "https://download.pytorch.org/whl/cpu"
    assert (f"--extra-index-url {index}" in line) is processors


@pytest.mark.system
@pytest.mark.timeout(3600)
def test_a_machine_without_a_network_installs_from_a_wheelhouse(tmp_path: Path) -> None:
    """The participant's own distribution, whole, in a namespace without a network; then it says which version it is."""
    if subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        give_up("a namespace without a network cannot be made here (unshare)")
    house, place = tmp_path / "wheelhouse", tmp_path / "venv"
    run("make", "-o", ".venv/.runtime", "--no-print-directory", "wheelhouse", "WHAT=participant", f"WHEELHOUSE={house}")
    run("sha256sum", "--check", "--quiet", "SHA256SUMS", cwd=house)
    run(sys.executable, "-m", "venv", place)
    wheels = list(house.glob("veilsum*.whl"))
    pip = (*ALONE, place / "bin" / "python", "-m", "pip", "--isolated", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-index", "--find-links", house, "-c", house / "constraints.txt", *wheels)
    assert run(*ALONE, place / "bin" / "veilsum", "--version", cwd=tmp_path).startswith("veilsum ")
    veilsum = (*ALONE, place / "bin" / "veilsum")
    run(*veilsum, "participant", "init", "north", "--name", "north", "--coordinator", "c.example:1", cwd=tmp_path)
    assert (tmp_path / "north" / "identity" / "key.pem").exists()
