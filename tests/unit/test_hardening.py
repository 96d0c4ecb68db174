"""A party's process leaves no core file, lets nobody look into it, and asks for the files that it needs."""

from __future__ import annotations

import json
import os
import platform
import resource
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support.network import PATIENCE
from veilsum_deploy import cli
from veilsum_node.process.hardening import allow_files
from veilsum_privacy.results.result import Result, save_result

ROOT = Path(__file__).parents[2]

CHILD = """
import ctypes, os, resource, signal, sys
import numpy as np
from veilsum_node.process.hardening import harden
from veilsum_privacy.securesum.products import KeyProducts
from veilsum_privacy.securesum.ring import RING_2048
key, one = np.ones(2048, dtype=np.int64), np.ones((1, 2048), dtype=np.uint64)
KeyProducts(key, RING_2048).times(one)
resource.setrlimit(resource.RLIMIT_CORE, (resource.getrlimit(resource.RLIMIT_CORE)[1],) * 2)
os.setuid({user})
harden()
assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0
KeyProducts(key, RING_2048).times(one)  # its files in memory can still be opened by name
open("/proc/self/statm").read()
print("ready", flush=True)
sys.stdin.read()
os.kill(os.getpid(), signal.SIGABRT)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_no_core_file_and_no_look_into_the_memory(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for parent in tmp_path.parents:
        if parent.stat().st_uid == os.getuid() and str(parent) != "/":
            parent.chmod(parent.stat().st_mode | 0o011)
    program = CHILD.format(user=65534)
    path = [str(ROOT / name) for name in ("proto", "privacy", "aggregation")]
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join([*path, *sys.path]), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    looked = subprocess.run(["setpriv", "--reuid=65534", "cat", f"/proc/{child.pid}/environ"], capture_output=True)
    assert looked.returncode != 0
    assert not looked.stdout
    child.communicate(input="", timeout=PATIENCE)
    assert child.returncode == -6
    assert not list(tmp_path.iterdir())


def test_both_starts_harden_before_anything_is_read() -> None:
    for place, begins, reads in (
        ("participant/veilsum_participant/session/serving.py", "def serve(", "divide(config)"),
        ("participant/veilsum_participant/session/whole.py", "def _serve_whole(", "load_participant_config(config)"),
        ("deploy/veilsum_deploy/coordinator/coordinator.py", "def start(", "_load(config)"),
    ):
        text = (ROOT / place).read_text()
        start = text.index(begins)
        assert text.index("    harden()", start) < text.index(reads, start), place


def test_files_for_connections_are_asked_for() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        got = allow_files(300)
        assert got == 300
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 556
        few = allow_files(2**30) if hard < 2**30 else 300
        assert few <= hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SIGN = ("--authority", "{}/authority", "--role", "participant", "--name", "north")
COMMANDS = (
    ("federation", "init", "{}/authority", "--name", "trial"),
    ("participant", "init", "{}/north", "--name", "north"),
    (
        "federation",
        "sign",
        "{}/north/identity/request.csr",
        "--authority",
        "{}/authority",
        "--role",
        "participant",
        "--name",
        "north",
    ),
    ("federation", "kit", "{}/kit", "--participants", "a,b"),
)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_what_commands_make_is_nobody_elses_to_change(umask: int, tmp_path: Path) -> None:
    former = os.umask(umask)
    try:
        for command in COMMANDS:
            os.umask(umask)
            with pytest.raises(SystemExit) as ended:
                cli.main([word.format(tmp_path) for word in command])
            assert ended.value.code == 0
    finally:
        os.umask(former)
    made = {path: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    keys = {mode for path, mode in made.items() if path.name == "key.pem"}
    assert sum(path.name == "key.pem" for path in made) >= 6
    assert keys == {0o600}
    assert {mode for path, mode in made.items() if path.is_dir()} == {0o755 & ~umask}
    assert {mode for path, mode in made.items() if path.is_file()} == {0o600, 0o644}


def test_results_are_their_owners(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        save_result(tmp_path / "result", Result("statistics", {}, {"x": np.zeros(3)}, {}))
    finally:
        os.umask(former)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "result").iterdir()} == {0o600}


FREED = """
import json
from veilsum_node.process.memory import give_back_memory
def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
kept = [bytes([place % 255 + 1]) * 100_000 for place in range(1000)]
last = kept.pop()  # above them, so that nothing is given back by itself
full = held()
del kept
freed = held()
give_back_memory()
print(json.dumps([full, freed, held()]))
"""


def test_what_was_freed_is_given_back() -> None:
    """Of a hundred megabytes in pieces that the C library keeps; where it is another one nothing is done or raised."""
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    full, freed, left = json.loads(done.stdout)
    assert full > 90_000_000
    if platform.libc_ver()[0] == "glibc":
        assert left < full - 90_000_000 < freed
