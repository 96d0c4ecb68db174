"""Hostile code inside each kind of process reaches nothing but what that kind is for, as an ordinary user, on this kernel."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.victims import Running, folder, give, intrude, unconfinable, victim
from veilsum_node.process.confinement import offered

pytestmark = pytest.mark.skipif(unconfinable() != "", reason=unconfinable() or "it is")

NEEDS_MORE = {
    "look_into_the_parent", "send_a_signal_to_the_parent",  # whom root's tests run as
    "open_a_socket_of_the_kernels_ciphers", "open_a_virtual_socket", "dial_multipath_tcp",  # what a kernel may lack
    "enter_a_namespace", "load_a_program_into_the_kernel", "count_events", "handle_faults_of_pages", "make_a_ring",
    "make_a_namespace", "type_into_the_terminal", "trace", "take_a_descriptor", "read_memory_of_another",
    "write_memory_of_another", "read_memory_by_proc", "use_a_handle_of_a_file", "mark_a_file", "keep_a_key",
    "open_a_queue_of_messages", "compare_descriptors", "leave_a_file_in_shared_memory",
}  # fmt: skip
"""Attempts that fail on some machines without any confinement of ours."""

OF_PORTS = {"dial_tcp", "listen_on_tcp", "listen_without_an_address"}


@pytest.fixture
def place() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.fixture
def prey(place: Path) -> Iterator[Running]:
    with victim(place) as found:
        yield found


def _owned(place: Path) -> dict[str, Any]:
    """A file and a folder of the intruder's own."""
    (place / "own.csv").write_bytes(b"a,b\n1,2\n")
    (place / "state").mkdir()
    give(place / "own.csv")
    give(place / "state")
    return {"reads": [str(place / "own.csv")], "writes": [str(place / "state")]}


def test_without_confinement_the_same_code_reaches_nearly_everything(prey: Running) -> None:
    """Else what follows would show nothing."""
    found = intrude(prey, None)
    assert {name: why for name, why in found["failed"].items() if name not in NEEDS_MORE} == {}
    assert found["executed"]


@pytest.mark.parametrize("kind", ["reads a file", "writes its state", "has nothing"])
def test_a_process_without_a_network_reaches_what_is_its_own(kind: str, place: Path, prey: Running) -> None:
    own = _owned(place)
    work = {"reads a file": {"reads": own["reads"]}, "writes its state": own, "has nothing": {}}[kind]
    bounds: dict[str, Any] = {"read": work.get("reads", []), "write": work.get("writes", [])}
    found = intrude(prey, bounds, **work)
    assert found["made"] == []
    assert not found["executed"]
    assert found["work"] == {**found["work"], "threads": True, "memory": True, "itself": True, "clock": True}
    assert found["work"]["read"] == [8 for _ in work.get("reads", ())]


def test_one_that_alters_its_files_may_and_no_more(place: Path, prey: Running) -> None:
    """The guard writes its state with the modes that it chooses, and so can change those of any file of its user."""
    work = _owned(place)
    found = intrude(prey, {"read": work["reads"], "write": work["writes"], "alters": True}, **work)
    altering = {"open_a_file_to_others", "give_a_file_away", "date_a_file_back", "mark_a_file", "truncate_a_file"}
    assert set(found["made"]) <= altering - ({"truncate_a_file"} if offered().landlock >= 3 else set())


def test_one_with_a_network_dials_its_port_and_no_other(place: Path, prey: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as served:
        port = served.getsockname()[1]
        found = intrude(prey, {"network": True, "dial": [port]}, dials=[port])
    limited = offered().landlock >= 4
    assert set(found["made"]) <= ({"listen_without_an_address"} if limited else OF_PORTS)
    assert not found["executed"]
    assert found["work"]["threads"]


def test_no_descriptor_is_inherited_but_those_that_are_handed_over(place: Path, prey: Running) -> None:
    given, other = socket.socketpair()
    with given, other:
        os.set_inheritable(given.fileno(), True)
        found = intrude(prey, {}, keep=[given.fileno()], descriptors=[given.fileno()])
    assert "use_an_inherited_descriptor" in found["failed"]
    assert found["work"]["memory"]


def test_an_inherited_descriptor_is_there_unless_it_is_closed(prey: Running) -> None:
    assert "use_an_inherited_descriptor" in intrude(prey, None)["made"]
