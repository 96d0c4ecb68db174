"""A federation under the restrictions of the systemd units: a coordinator and sites run a study, PyTorch trains and convolves.

systemd itself is not at work here; :mod:`support.confinement` reads the units and does what systemd would do. What it leaves
out stands there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import confinement, processes
from support.federation import make_data, make_request, schema_of
from support.processes import running_processes
from support.tools import need_tool
from veilsum_coordinator.protocol.settings import Waits
from veilsum_privacy.tasks import build_task

UNITS = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
SCRIPT = Path(confinement.__file__)
ROWS, NUMBERS = 40, 3

PROBE = """
import os, socket, sys
import torch

def refused(action):
    try:
        action()
    except OSError as error:
        return error.errno
    return 0

print(refused(lambda: socket.socket(16, socket.SOCK_RAW, 0)), refused(lambda: os.sched_setaffinity(0, {0})),
      refused(lambda: os.setuid(1)), refused(lambda: open("/etc/veilsum-probe", "w")))
values = torch.randn(2, 3, 16, 16, requires_grad=True)
torch.nn.Conv2d(3, 4, 3)(values).sum().backward()
script = torch.jit.script(torch.nn.Linear(4, 2))
print([tuple(script(torch.zeros(1, 4)).shape) for _ in range(3)], tuple(values.grad.shape))
"""


def confined(role: str, folder: Path, *command: str, unit: Path | None = None) -> list[str]:
    """A command under a role's unit, which may write to one folder."""
    need_tool("systemd-analyze")
    return [str(SCRIPT), str(unit or UNITS / f"veilsum-{role}.service"), str(folder), "--", sys.executable, *command]


def probe(folder: Path, unit: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *confined("participant", folder, "-c", PROBE, unit=unit)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=200)


@pytest.mark.parametrize("role", ["coordinator", "participant"])
def test_every_setting_is_applied_or_known(role: str) -> None:
    settings = confinement.read_service(UNITS / f"veilsum-{role}.service")
    assert set(settings) <= confinement.APPLIED | confinement.ELSEWHERE


@pytest.mark.system  # what the units refuse and allow is probed below by default
def test_a_study_runs_under_the_units_restrictions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(role: str, config: Path) -> list[str]:
        start = ("-m", "veilsum_deploy.cli", role, "start", "--config", str(config))
        return confined(role, config.parent, *start)

    monkeypatch.setattr(processes, "command", command)
    data = make_data("abc", ROWS, NUMBERS)
    waits = Waits(enrol=30, seal=20, contribute=20, consent=20, check=20, grace=10)
    with running_processes(tmp_path, data, waits=waits, forked=False) as network:
        study = network.compile(make_request(schema_of(NUMBERS), epsilon=None, min_cohort=3))
        key = network.submit(study)
        assert network.await_end(key).phase == "finished"
        (release,) = network.releases(key)
        assert release.cohort == ("a", "b", "c")
        task = build_task(study.tasks[0].task, study.tasks[0].parameters, study.data)
        unit = task.clip() / study.tasks[0].grid / task.layout().blocks[0].weight
        assert release.values[0] * unit == pytest.approx(3 * ROWS, abs=3 * ROWS * unit)  # the first value counts the records
        states = [Path(f"/proc/{item._child.pid}/status").read_text() for item in network.participants.values()]
    assert all("NoNewPrivs:\t1" in text and "Seccomp:\t2" in text for text in states)


def test_pytorch_works_and_the_rest_is_refused(tmp_path: Path) -> None:
    done = probe(tmp_path)
    assert done.returncode == 0, done.stderr
    refusals, shapes = done.stdout.splitlines()
    read_only = 30 if os.geteuid() == 0 else 13
    assert refusals.split() == ["97", "1", "1", str(read_only)]  # EAFNOSUPPORT, EPERM, EPERM, EROFS or EACCES
    assert shapes == "[(1, 2), (1, 2), (1, 2)] (2, 3, 16, 16)"


@pytest.mark.system
def test_why_memory_may_be_made_executable(tmp_path: Path) -> None:
    """With MemoryDenyWriteExecute PyTorch cannot compile its convolutions; once it can, the units should set it."""
    stricter = tmp_path / "stricter.service"
    text = (UNITS / "veilsum-participant.service").read_text(encoding="utf-8")
    stricter.write_text(text.replace("[Install]", "MemoryDenyWriteExecute=yes\n\n[Install]"), encoding="utf-8")
    done = probe(tmp_path, stricter)
    assert done.returncode != 0
    assert "could not create a primitive" in done.stderr
