"""Lists of more studies than a message holds, of any phase, and studies of more rounds and members than one holds."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_server
from support.studies import agreed
from veilsum.remote import connect
from veilsum_coordinator.protocol.machine import MOST_REFUSALS
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service import listing
from veilsum_coordinator.service.ended import EndedStudy
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.status import MOST_ROUNDS, study_status
from veilsum_coordinator.service.table import StudyEntry
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Role, load_credentials
from veilsum_node.transport.channel import open_channel
from veilsum_privacy.ledger import Mechanism
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_proto import MAX_MESSAGE_BYTES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

SEATS = tuple("abcd")
HOSPITALS = tuple(f"hospital-{number:02}" for number in range(24))


def ended(number: int, *, analyst: str = "analyst", rounds: int = 0, submitted: int | None = None) -> EndedStudy:
    """A study that is over."""
    digest = np.random.default_rng(number).bytes(32)
    status = pb.StudyStatus(
        study=digest, name=f"study-{number}", method="fedsgd", phase="finished", analyst=analyst, participants=HOSPITALS,
        enrolled=HOSPITALS, submitted=number if submitted is None else submitted, progress=1.0, bytes_received=7 * rounds,
        rounds=[pb.RoundStatus(round=k + 1, label="gradient", cohort=SEATS, bytes_received=7) for k in range(rounds)],
    )  # fmt: skip
    return EndedStudy(status, {})


def admit(hub: Hub, studies: list[EndedStudy]) -> None:
    hub.forget_deleted = lambda: None  # type: ignore[method-assign]  # the journal has none: on a slow machine they were gone
    with hub.changed:
        hub.ended |= {study.digest: study for study in studies}


def test_an_operator_lists_and_finds_all_of_more_studies_than_a_message_holds(tmp_path: Path) -> None:
    """Over gRPC, in order, each once, with what they received in all; an analyst sees its own alone."""
    bed = make_bed(tmp_path, make_data(SEATS, 12, 2))
    made = [ended(k, analyst="analyst" if k % 3 else "other", rounds=MOST_ROUNDS if k % 200 == 0 else 1) for k in range(4_000)]
    operator = load_credentials(bed.kit.operator.identity, bed.clock(), Role.OPERATOR)
    with running_server(bed) as (server, address):
        admit(server.hub, made)
        with connect(address, operator, bed.kit.operator.identity, bed.clock()) as remote:
            found = remote.list()
            assert sum(study.status.ByteSize() for study in made[1:200]) * 20 > MAX_MESSAGE_BYTES
            assert [info.name for info in found] == [f"study-{k}" for k in range(len(made))]
            assert [info.bytes_received for info in found[199:202]] == [7, 7 * MOST_ROUNDS, 7]
            assert {len(info.rounds) for info in found} == {1}
            assert remote.find(made[0].digest.hex()[:12]) == made[0].digest
            assert len(remote.show(made[0].digest).rounds) == MOST_ROUNDS
            begins = Counter(study.digest.hex()[:4] for study in made).most_common(1)[0]
            with pytest.raises(Misuse, match=f"{begins[1]} studies begin with {begins[0]}"):
                remote.find(begins[0])
        with connect(address, bed.analyst, bed.kit.analyst.identity, bed.clock()) as remote:
            assert [info.study for info in remote.list()] == [
                study.digest.hex() for study in made if study.analyst == "analyst"
            ]
            sent = remote.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
            assert remote.list()[-1].study == sent.hex()
        with open_channel(address, operator) as channel:  # of an earlier version: the newest that fit
            reply = StudiesStub(channel).List(pb.ListRequest(), timeout=PATIENCE)
    assert [item.study for item in reply.studies][-2:] == [made[-1].digest, sent]
    assert 1000 < len(reply.studies) < len(made)


def test_what_was_spent_is_told_of_more_studies_than_a_message_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed, rng = make_bed(tmp_path, make_data(SEATS, 12, 2)), np.random.default_rng(1)
    spent: dict[str, Counter[Mechanism]] = {}
    for name in HOSPITALS:
        noises = [NoisePlan("distributed", int(std) ** 2, 3, 1) for std in rng.integers(2**20, 2**30, 700)]
        spent[name] = Counter({Mechanism(2**18, noise): int(rng.integers(1, 9)) for noise in noises})
    with (
        running_server(bed) as (server, address),
        connect(address, bed.analyst, bed.kit.analyst.identity, bed.clock()) as remote,
    ):
        monkeypatch.setattr(server.hub.journal.mirror, "spending", lambda dataset, studies: spent)
        assert remote.spending("records") == spent
        with open_channel(address, bed.analyst) as channel:
            reply = StudiesStub(channel).Spending(pb.SpendingRequest(dataset="records"), timeout=PATIENCE)
    assert reply.more
    assert [item.participant for item in reply.participants] == list(HOSPITALS[: len(reply.participants)])


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return make_bed(tmp_path_factory.mktemp("bed"), make_data(SEATS, 12, 2))


@settings(max_examples=50, deadline=None)
@given(
    times=st.lists(st.integers(0, 3), max_size=30),
    most=st.sampled_from([0, 1, 200, 500, 10_000]),
    begins=st.sampled_from(["", "a"]),
)
def test_pages_joined_are_the_whole_list(bed: TestBed, times: list[int], most: int, begins: str) -> None:
    """Also of studies that were submitted in one second."""
    hub = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(), clock=bed.clock)
    made = [ended(number, submitted=when) for number, when in enumerate(times)]
    admit(hub, made)
    pages, more, before = list[pb.StudyStatus](), True, b""
    while more:
        found, more = hub.shown.page(begins=begins, before=before, most=most)
        pages[:0] = found
        before = found[0].study if found else b""
        assert found or not more
    expected = sorted((study.submitted, study.digest) for study in made if study.digest.hex().startswith(begins))
    assert [(status.submitted, status.study) for status in pages] == expected


def test_a_list_behind_a_study_that_is_not_listed_is_refused(bed: TestBed) -> None:
    """Deleted between two replies, unknown, or another analyst's, whose time it would tell."""
    hub = Hub(bed.hub.credentials, bed.hub.journal, waits=Waits(), clock=bed.clock)
    admit(hub, [ended(1), ended(2, analyst="other")])
    for before in (b"x", bytes(32), ended(2).digest):
        with pytest.raises(HostileInput, match="listed any more"):
            hub.shown.page("analyst", before=before)
    assert hub.shown.page("analyst", before=ended(1).digest) == (deque(), False)
    assert hub.shown.page("analyst", begins="no digits") == (deque(), False)


def test_a_page_is_made_without_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who needs it meanwhile gets it, and a study that ends meanwhile is shown as it ended."""
    bed = make_bed(tmp_path, make_data(SEATS, 12, 2))
    hub, key = bed.hub, bed.local.submit(bed.compile(make_request(schema_of(2))), bed.analyst)
    admit(hub, [ended(number, submitted=2**40) for number in range(3)])  # shown first
    listed_status = listing.listed_status

    def meanwhile(status: pb.StudyStatus) -> pb.StudyStatus:
        thread = threading.Thread(target=hub.abort, args=(key, "enough"))
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the lock is held while a page is made"
        return listed_status(status)

    monkeypatch.setattr(listing, "listed_status", meanwhile)
    found, more = hub.shown.page()
    assert (len(found), more) == (4, False)
    assert (found[0].study, found[0].phase, found[0].reason) == (key, "aborted", "enough")


@dataclass
class Passed:
    """A round as far as it is shown."""

    number: int
    cohort: tuple[str, ...]
    label: str = "gradient"
    phase: RoundPhase = RoundPhase.RELEASED
    attempts: int = 2**31
    bytes_received: int = 2**50
    seconds: float = 1e9


@pytest.mark.parametrize("members", [3, 16, 200, 1024])
def test_a_status_fits_into_a_message_however_long_and_large_a_study_is(members: int) -> None:
    names = tuple(f"{index:064d}" for index in range(members))
    study = agreed(make_request(schema_of(3, 2), "fedsgd", 3.0), names)
    rounds = [Passed(number, names) for number in range(1, 3001)]
    refusals = [(names[k % members], "certificate-" + "x" * 40, k) for k in range(10 * MOST_REFUSALS)]
    seats = {name: SimpleNamespace(enrolled=True, ready=True) for name in names}
    machine = SimpleNamespace(
        digest=bytes(32), study=study, phase=StudyPhase.FINISHED, reason="x" * 1000, seats=seats, rounds=rounds,
        refusals=refusals,
    )  # fmt: skip
    status = study_status(StudyEntry(cast(Any, machine), pb.StudyObject(), "analyst", 1))
    assert status.ByteSize() < MAX_MESSAGE_BYTES
    assert [item.round for item in status.rounds] == list(range(3001 - len(status.rounds), 3001))
    assert len(status.rounds) == MOST_ROUNDS if members <= 16 else len(status.rounds) >= 16
    assert (status.bytes_received, status.seconds) == (3000 * 2**50, 3000 * 1e9)
