"""Ctrl-C while an analyst waits for a study: the process ends, the study goes on, and the way back to it is named."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_server
from veilsum_coordinator.service.server import CoordinatorServer

CLOSED = """
import sys, veilsum
with veilsum.connect(coordinator=sys.argv[1], identity=sys.argv[2]) as federation:
    federation.attach(sys.argv[3]).result(progress=True)
"""
KEPT = """
import sys, veilsum
federation = veilsum.connect(coordinator=sys.argv[1], identity=sys.argv[2])  # as in most notebooks and scripts
federation.attach(sys.argv[3]).result(progress=True)
"""
CAUGHT = """
import sys, veilsum
federation = veilsum.connect(coordinator=sys.argv[1], identity=sys.argv[2])
run = federation.attach(sys.argv[3])
try:
    run.result(progress=True)
except KeyboardInterrupt:
    assert run.status().phase == "enrolling"  # the connection is as good as before
    sys.exit(7)
"""


@pytest.fixture
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestBed, str, bytes, CoordinatorServer]]:
    bed = make_bed(tmp_path_factory.mktemp("federation"), make_data("abc", 5, 1))
    with running_server(bed) as (server, address):
        key = server.hub.submit("analyst", bed.signed(bed.compile(make_request(schema_of(1)))))
        yield bed, address, key, server


@pytest.mark.parametrize(
    "how",
    [*(pytest.param(how, marks=pytest.mark.system) for how in ("closed", "kept", "caught")), "command"],
)
def test_one_ctrl_c_ends_it_and_the_study_goes_on(running: tuple[TestBed, str, bytes, CoordinatorServer], how: str) -> None:
    bed, address, key, server = running
    identity = str(bed.kit.analyst.identity)
    scripts = {"closed": CLOSED, "kept": KEPT, "caught": CAUGHT}
    command = (
        [sys.executable, "-c", scripts[how], address, identity, key.hex()]
        if how in scripts
        else [sys.executable, "-m", "veilsum_deploy.cli", "study", "watch", key.hex()[:12], "--coordinator", address,
              "--identity", identity]
    )  # fmt: skip
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have what it starts ignore it
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline()  # it watches
            while "enrolling" not in said:
                said += process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=PATIENCE)
        except BaseException:
            process.kill()
            raise
    assert process.returncode not in (0, None)
    assert ("veilsum study watch" if how == "command" else "attach(") in err, err
    assert key.hex()[:12] in err
    assert (process.returncode == 7) == (how == "caught"), err
    assert server.hub.shown.status(key).phase == "enrolling"
