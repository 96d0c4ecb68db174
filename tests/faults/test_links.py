"""Readers that do not read, and links that stop without a word, lose, delay and throttle: real processes, real packets.

Nobody else waits for longer than a deadline, memory stays bounded, and an upload goes on where it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import pytest

from support.channels import OpenChannel
from support.faulted import COORDINATOR, FaultedProcesses, faulted_processes
from support.federation import make_request, schema_of
from support.links import BadLink, bad_link
from support.network import wait_for
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.identity import load_credentials
from veilsum_node.transport.channel import open_channel
from veilsum_privacy.securesum.sum_plan import OneTimePlan
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

NAMES, IDLE = "abc", "d"
COLUMNS, CATEGORIES, ROWS = 200, 256, 30
WAITS = Waits(enrol=30, seal=60, contribute=150, consent=60, check=60, grace=60)
SLOW = WAITS.model_copy(update={"enrol": 60})


def _schema() -> DatasetSchema:
    numbers = schema_of(1)
    values = tuple(str(value) for value in range(CATEGORIES))
    columns = tuple(CategoryColumn(name=f"k{index}", categories=values) for index in range(COLUMNS))
    return DatasetSchema(columns=(*numbers.columns, *columns), label=numbers.label, max_records=1000)


def _records(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.hstack([rng.uniform(-1, 1, (ROWS, 1)), rng.integers(0, CATEGORIES, (ROWS, COLUMNS))]), np.arange(ROWS) % 2


SCHEMA = _schema()
DATA = {name: _records(index) for index, name in enumerate(NAMES + IDLE)}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultedProcesses]:
    directory = tmp_path_factory.mktemp("federation")
    with faulted_processes(directory, DATA, waits=WAITS, idle=IDLE) as processes:
        yield processes


def _study(network: FaultedProcesses, participants: str) -> Study:
    return network.compile(make_request(SCHEMA, epsilon=None, min_cohort=3), participants)


def _encoding(study: Study, members: int) -> OneTimePlan:
    return AgreedStudy(study).task("statistics").plan(members, members).encoding


def _dial(network: FaultedProcesses, stack: ExitStack, name: str) -> OpenChannel:
    credentials = load_credentials(network.directory(name) / "identity", int(time.time()))
    raw = stack.enter_context(open_channel(network.address, credentials))
    channel = OpenChannel(raw, credentials)
    channel.hello()
    return channel


@pytest.mark.system  # test_resource_limits.py has slow readers in one process by default
def test_who_never_reads_holds_up_nobody(network: FaultedProcesses) -> None:
    """An invited site opens its session and reads nothing, and the study goes on without it."""
    with ExitStack() as stack:
        silent = _dial(network, stack, IDLE)
        session = silent.stub.Work(pb.WorkRequest(version=silent.version, session_nonce=bytes(16)))
        wait_for(lambda: IDLE in network.connected(), "the silent session")
        key = network.submit(_study(network, NAMES + IDLE))
        status = network.await_end(key)
        assert (status.phase, status.reason) == ("finished", "")
        assert network.releases(key)[0].cohort == tuple(NAMES)
        assert session.is_active() or session.code() is grpc.StatusCode.OK
        session.cancel()


@pytest.mark.system
def test_a_slow_reader_of_a_result(network: FaultedProcesses) -> None:
    """An analyst asks for a result and reads one piece: another study runs meanwhile."""
    key = network.submit(_study(network, NAMES))
    assert network.await_end(key).phase == "finished"
    stream = network.studies.Result(pb.ResultRequest(study=key, file="manifest.json"))
    next(stream)
    other = network.submit(_study(network, NAMES))
    assert network.await_end(other).phase == "finished"
    stream.cancel()


# -- over a bad link -------------------------------------------------------------------------------------------------------


@pytest.fixture
def link(tmp_path: Path) -> Iterator[tuple[FaultedProcesses, BadLink]]:
    """A federation in which c lies beyond a link, a good one at first."""
    data = {name: DATA[name] for name in NAMES}
    with bad_link() as made, faulted_processes(tmp_path, data, waits=SLOW, beyond={"c": made}) as network:
        yield network, made


@pytest.mark.system
def test_a_link_goes_dead_in_the_middle_of_an_upload(link: tuple[FaultedProcesses, BadLink]) -> None:
    """No byte and no word any more: both ends notice within their keepalive, and the upload goes on at the next piece."""
    network, wire = link
    study = _study(network, NAMES)
    encoding = _encoding(study, 3)
    assert encoding.pieces >= 3
    wire.rate = 40_000.0
    key = network.submit(study)
    network.await_status(key, lambda shown: bool(shown.rounds) and shown.rounds[-1].phase == "contributing", "the round")
    whole = 2 * encoding.payload_bytes + encoding.piece_bytes(0)  # the other two's, and a key share
    network.await_status(key, lambda shown: shown.rounds[-1].bytes_received > whole, "c's first coefficients")
    starts = {name: len(network.log(name)) for name in ("c", COORDINATOR)}
    wire.dead, began = True, time.monotonic()
    line = network.await_log(COORDINATOR, "the session of c ended", starts[COORDINATOR])
    print(f"the coordinator noticed after {time.monotonic() - began:.1f} s: {line}")
    line = network.await_log("c", "session to", starts["c"])
    print(f"c noticed after {time.monotonic() - began:.1f} s: {line}")
    assert time.monotonic() - began < 75  # 20 s until a ping, 30 s for its answer; the library's own patience is a minute
    wire.dead, wire.rate, back = False, 0.0, time.monotonic()
    network.await_log("c", "open", starts["c"] + 1)
    print(f"c is back after {time.monotonic() - back:.1f} s")
    status = network.await_end(key)
    assert (status.phase, status.reason) == ("finished", "")
    assert status.rounds[0].attempts == 1
    assert status.rounds[0].bytes_received == 3 * encoding.payload_bytes  # no piece came twice
    network.audit(key, charged=NAMES, released=NAMES)


@pytest.mark.system
def test_a_link_that_loses_delays_and_throttles(link: tuple[FaultedProcesses, BadLink]) -> None:
    """10% of packets lost, 300 ms each way, 1 Mbit/s: slow, and right."""
    network, wire = link
    wire.loss, wire.delay, wire.rate = 0.1, 0.3, 125_000.0
    began = time.monotonic()
    key = network.submit(_study(network, NAMES))
    wait_for(lambda: network.status(key).phase in ("finished", "failed"), "the study's end")
    print(f"the study took {time.monotonic() - began:.0f} s over a link with 10% loss, 300 ms and 1 Mbit/s")
    wire.loss, wire.delay, wire.rate = 0.0, 0.0, 0.0
    status = network.status(key)
    assert (status.phase, status.reason) == ("finished", "")
    network.audit(key, charged=NAMES, released=NAMES)
