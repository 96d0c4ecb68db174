"""Who may call what over real gRPC: roles, expired certificates, borrowed names, and peers that hold many calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, certified, running_client, running_server, submit, wait_for
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service import coordination
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.errors import StateError
from veilsum_node.identity import Credentials, Label, Role, load_credentials
from veilsum_node.transport.channel import greet, open_channel
from veilsum_proto import PROTOCOL_VERSIONS
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub, StudiesStub

DAY = 86_400
STUDY = bytes(32)

COORDINATION: dict[str, Callable[[CoordinationStub], object]] = {
    "Work": lambda stub: list(
        stub.Work(pb.WorkRequest(version=PROTOCOL_VERSIONS[-1], session_nonce=bytes(16)), timeout=PATIENCE)
    ),
    "Fetch": lambda stub: list(stub.Fetch(pb.FetchRequest(study=STUDY), timeout=PATIENCE)),
    "Enrol": lambda stub: stub.Enrol(pb.EnrolRequest(study=STUDY), timeout=PATIENCE),
    "Refuse": lambda stub: stub.Refuse(pb.RefuseRequest(study=STUDY), timeout=PATIENCE),
    "Seal": lambda stub: stub.Seal(iter([pb.SealedBoxes(study=STUDY)]), timeout=PATIENCE),
    "Ready": lambda stub: stub.Ready(pb.ReadyRequest(study=STUDY), timeout=PATIENCE),
    "UploadStatus": lambda stub: stub.UploadStatus(pb.UploadStatusRequest(study=STUDY), timeout=PATIENCE),
    "Upload": lambda stub: stub.Upload(iter([pb.UploadChunk(study=STUDY)]), timeout=PATIENCE),
    "Answer": lambda stub: stub.Answer(pb.AnswerRequest(study=STUDY), timeout=PATIENCE),
    "Consent": lambda stub: stub.Consent(pb.ConsentRequest(study=STUDY), timeout=PATIENCE),
    "Confirm": lambda stub: stub.Confirm(pb.ConfirmRequest(study=STUDY), timeout=PATIENCE),
    "Report": lambda stub: stub.Report(pb.ReportRequest(), timeout=PATIENCE),
}

STUDIES: dict[str, Callable[[StudiesStub], object]] = {
    "Describe": lambda stub: stub.Describe(pb.DescribeRequest(), timeout=PATIENCE),
    "Submit": lambda stub: stub.Submit(pb.SubmitRequest(), timeout=PATIENCE),
    "List": lambda stub: stub.List(pb.ListRequest(), timeout=PATIENCE),
    "Show": lambda stub: stub.Show(pb.ShowRequest(study=STUDY), timeout=PATIENCE),
    "Watch": lambda stub: list(stub.Watch(pb.ShowRequest(study=STUDY), timeout=PATIENCE)),
    "Abort": lambda stub: stub.Abort(pb.ShowRequest(study=STUDY), timeout=PATIENCE),
    "Result": lambda stub: list(stub.Result(pb.ResultRequest(study=STUDY), timeout=PATIENCE)),
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = make_data("abc", 10)
    return make_bed(tmp_path_factory.mktemp("federation"), data)


@pytest.fixture(scope="module")
def running(bed: TestBed) -> Iterator[tuple[CoordinatorServer, str]]:
    with running_server(bed) as started:
        yield started


@pytest.fixture(scope="module")
def dial(bed: TestBed, running: tuple[CoordinatorServer, str]) -> Iterator[Callable[[Credentials], grpc.Channel]]:
    with ExitStack() as stack:
        yield lambda who: stack.enter_context(open_channel(running[1], who))


def _load(bed: TestBed, role: Role) -> Credentials:
    party = next(party for party in bed.kit.parties if party.role is role)
    return load_credentials(party.identity, bed.clock(), role)


def _status(call: Callable[[], object]) -> grpc.StatusCode:
    return _told(call)[0]


def _told(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    """How a call ended, and the words for it."""
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def _rejected(server: CoordinatorServer, reason: str) -> float:
    value = server.metrics.registry.get_sample_value("veilsum_rejected_messages_total", {"reason": reason})
    assert value is not None
    return value


@pytest.mark.sampled(5)
@pytest.mark.parametrize("role", [Role.ANALYST, Role.OPERATOR, Role.COORDINATOR])
@pytest.mark.parametrize("name", COORDINATION)
def test_only_participants_call_coordination(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel], role: Role, name: str
) -> None:
    stub = CoordinationStub(dial(_load(bed, role)))
    before = _rejected(running[0], "role")
    assert _status(lambda: COORDINATION[name](stub)) is grpc.StatusCode.PERMISSION_DENIED
    assert _rejected(running[0], "role") == before + 1


@pytest.mark.parametrize(
    ("role", "names"),
    [(Role.PARTICIPANT, tuple(STUDIES)), (Role.COORDINATOR, tuple(STUDIES)), (Role.OPERATOR, ("Submit",))],
)
def test_only_analysts_and_operators_call_studies(
    bed: TestBed,
    running: tuple[CoordinatorServer, str],
    dial: Callable[[Credentials], grpc.Channel],
    role: Role,
    names: tuple[str, ...],
) -> None:
    stub = StudiesStub(dial(_load(bed, role)))
    for name in names:
        before = _rejected(running[0], "role")
        assert _status(lambda name=name: STUDIES[name](stub)) is grpc.StatusCode.PERMISSION_DENIED, name  # type: ignore[misc]
        assert _rejected(running[0], "role") == before + 1, name


@pytest.mark.parametrize("who", ["a", "analyst"])
def test_parties_of_another_version_of_the_protocol_are_told_so(
    bed: TestBed,
    running: tuple[CoordinatorServer, str],
    dial: Callable[[Credentials], grpc.Channel],
    monkeypatch: pytest.MonkeyPatch,
    who: str,
) -> None:
    """An old party at this coordinator, and this software at an old coordinator: each hears what the other speaks, and nothing
    else is answered."""
    credentials = bed.analyst if who == "analyst" else bed.sites[who].credentials
    stub = CoordinationStub(dial(credentials))
    before = _rejected(running[0], "version")
    with pytest.raises(grpc.RpcError) as raised:
        stub.Hello(pb.HelloRequest(versions=[1, 2, 3, 4, 5]), timeout=PATIENCE)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert raised.value.details() == "No common protocol version; this coordinator speaks 6. Update the older side."
    assert greet(stub, credentials, bytes(32), bed.clock())[0].version == 6
    monkeypatch.setattr(coordination, "PROTOCOL_VERSIONS", (5,))
    with pytest.raises(StateError, match=r"this coordinator speaks 5\. Update the older side") as told:
        greet(stub, credentials, bytes(32), bed.clock())
    assert told.value.advice == "Install a version that the coordinator speaks."
    assert _rejected(running[0], "version") == before + 2


def test_an_expired_certificate_does_not_get_through_the_handshake(
    bed: TestBed, dial: Callable[[Credentials], grpc.Channel]
) -> None:
    fresh = certified(bed, "late-1", Role.PARTICIPANT, at=bed.clock())
    stub = CoordinationStub(dial(fresh))
    assert _status(lambda: stub.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE)) is grpc.StatusCode.OK
    expired = certified(bed, "late-2", Role.PARTICIPANT, at=bed.clock() - 30 * DAY)
    stub = CoordinationStub(dial(expired))
    assert (
        _status(lambda: stub.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE))
        is grpc.StatusCode.UNAVAILABLE
    )


def test_a_certificate_that_expires_while_connected_is_no_longer_taken(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    short = certified(bed, "short", Role.PARTICIPANT, at=bed.clock(), days=1)
    stub = CoordinationStub(dial(short))
    assert _status(lambda: stub.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE)) is grpc.StatusCode.OK
    before = _rejected(running[0], "unauthenticated")
    bed.clock.now += 2 * DAY
    try:
        for call in (
            lambda: stub.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE),
            lambda: COORDINATION["Work"](stub),
        ):
            assert _status(call) is grpc.StatusCode.UNAUTHENTICATED
    finally:
        bed.clock.now -= 2 * DAY
    assert _rejected(running[0], "unauthenticated") == before + 2


def test_a_session_ends_with_its_certificate(
    bed: TestBed,
    running: tuple[CoordinatorServer, str],
    dial: Callable[[Credentials], grpc.Channel],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A participant that can answer no more is not shown as present, and no round waits for it."""
    monkeypatch.setattr(coordination, "PING_SECONDS", 0.1)
    stub = CoordinationStub(dial(certified(bed, "brief", Role.PARTICIPANT, at=bed.clock(), days=1)))
    session = stub.Work(pb.WorkRequest(version=PROTOCOL_VERSIONS[-1], session_nonce=bytes(16)), timeout=PATIENCE)
    assert next(session).kind == pb.DIRECTIVE_KIND_PING
    assert running[0].hub.sessions["brief"].connected
    bed.clock.now += 2 * DAY
    try:
        assert _status(lambda: list(session)) is grpc.StatusCode.UNAUTHENTICATED
        wait_for(lambda: not running[0].hub.sessions["brief"].connected)
    finally:
        bed.clock.now -= 2 * DAY


def test_another_analysts_study_is_out_of_reach(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    server, _ = running
    key = _submit(bed, dial)
    try:
        other = StudiesStub(dial(certified(bed, "other-analyst", Role.ANALYST, at=bed.clock())))
        shown = pb.ShowRequest(study=key)
        assert _status(lambda: other.Show(shown, timeout=PATIENCE)) is grpc.StatusCode.PERMISSION_DENIED
        assert _status(lambda: other.Abort(shown, timeout=PATIENCE)) is grpc.StatusCode.PERMISSION_DENIED
        assert _status(lambda: list(other.Watch(shown, timeout=PATIENCE))) is grpc.StatusCode.PERMISSION_DENIED
        assert not other.List(pb.ListRequest(), timeout=PATIENCE).studies
        assert server.hub.studies[key].machine.phase is StudyPhase.ENROLLING
    finally:
        server.hub.abort(key, "the test is over")


def test_a_certified_participant_that_was_not_invited(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    server, _ = running
    key = _submit(bed, dial)
    stub = CoordinationStub(dial(certified(bed, "stranger", Role.PARTICIPANT, at=bed.clock())))
    calls: tuple[Callable[[], object], ...] = (
        lambda: list(stub.Fetch(pb.FetchRequest(kind=pb.OBJECT_KIND_STUDY, study=key), timeout=PATIENCE)),
        lambda: list(stub.Fetch(pb.FetchRequest(kind=pb.OBJECT_KIND_BOXES, study=key), timeout=PATIENCE)),
        lambda: stub.Enrol(pb.EnrolRequest(study=key), timeout=PATIENCE),
        lambda: stub.Refuse(pb.RefuseRequest(study=key, code="budget-exceeded"), timeout=PATIENCE),
        lambda: stub.Seal(iter([pb.SealedBoxes(study=key)]), timeout=PATIENCE),
        lambda: stub.Ready(pb.ReadyRequest(study=key), timeout=PATIENCE),
        lambda: stub.Upload(iter([pb.UploadChunk(study=key, attempt=1)]), timeout=PATIENCE),
        lambda: stub.Answer(pb.AnswerRequest(study=key, attempt=1, answer=pb.MemberAnswer(words=[1, 2, 3])), timeout=PATIENCE),
        lambda: stub.Consent(pb.ConsentRequest(study=key, attempt=1, consent=bytes(32)), timeout=PATIENCE),
        lambda: stub.Confirm(pb.ConfirmRequest(study=key, kind=pb.DIRECTIVE_KIND_END), timeout=PATIENCE),
    )
    for call in calls:
        before = _rejected(server, "malformed")
        code, words = _told(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "not invited to that study" in words or "not in the study's roster" in words, words
        assert _rejected(server, "malformed") == before + 1
    machine = server.hub.studies[key].machine
    assert machine.phase is StudyPhase.ENROLLING
    assert not machine.refusals
    server.hub.abort(key, "the test is over")


def _submit(bed: TestBed, dial: Callable[[Credentials], grpc.Channel]) -> bytes:
    study = bed.compile(make_request(schema_of(2), epsilon=None)).to_bytes()
    return submit(bed, StudiesStub(dial(bed.analyst)), study)


def test_a_study_signed_by_someone_else_is_not_taken(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    study = bed.compile(make_request(schema_of(2), epsilon=None)).to_bytes()
    other = certified(bed, "third-analyst", Role.ANALYST, at=bed.clock())
    site = bed.sites["a"].credentials
    forged = [
        # another analyst relays a study that is signed properly
        (other, bed.analyst.signing_key, bed.analyst.identity.certificate),
        # the caller signs, under the other's certificate
        (bed.analyst, other.signing_key, bed.analyst.identity.certificate),
        # a participant's certificate under a study
        (bed.analyst, site.signing_key, site.identity.certificate),
    ]
    for caller, key, certificate in forged:
        signed = pb.StudyObject(study=study, signature=key.sign(Label.STUDY, study), certificate=certificate)
        stub = StudiesStub(dial(caller))
        before = _rejected(running[0], "malformed")
        code = _status(lambda stub=stub, signed=signed: stub.Submit(pb.SubmitRequest(study=signed), timeout=PATIENCE))  # type: ignore[misc]
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert _rejected(running[0], "malformed") == before + 1


def test_one_peers_many_calls_do_not_stop_the_others(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    """A peer holds far more open calls than it may: its own next call waits, everyone else's study runs."""
    server, address = running
    greedy = dial(bed.sites["c"].credentials)
    health = health_pb2_grpc.HealthStub(greedy)
    held = [health.Watch(health_pb2.HealthCheckRequest(), timeout=60) for _ in range(80)]
    answered = []

    def read(stream: Iterator[object]) -> None:
        try:
            next(stream)
            answered.append(stream)
        except (grpc.RpcError, StopIteration):
            return

    readers = [threading.Thread(target=read, args=(stream,), daemon=True) for stream in held]
    for reader in readers:
        reader.start()
    try:
        wait_for(lambda: len(answered) >= 16, "the calls that a peer may hold")
        assert _status(lambda: CoordinationStub(greedy).Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=1)) is (
            grpc.StatusCode.DEADLINE_EXCEEDED
        )
        assert len(answered) == 16
        with ExitStack() as stack:
            for site in bed.sites.values():  # over connections of their own
                stack.enter_context(running_client(site, address))
            key = _submit(bed, dial)
            machine = server.hub.studies[key].machine
            wait_for(lambda: machine.phase is StudyPhase.FINISHED, "the study's result")
            wait_for(lambda: all(seat.ended for seat in machine.seats.values()), "the end everywhere")
    finally:
        for stream in held:
            stream.cancel()
        for reader in readers:
            reader.join(PATIENCE)


def test_a_peers_calls_are_bounded_over_all_its_connections(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    server, _ = running
    key = _submit(bed, dial)
    before = _rejected(server, "busy")
    # channels with equal arguments share a connection unless told otherwise
    tls = grpc.ssl_channel_credentials(bed.analyst.authority_pem, bed.analyst.key_pem, bed.analyst.certificate_pem)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with ExitStack() as stack:
        channels = [stack.enter_context(grpc.secure_channel(running[1], tls, options=options)) for _ in range(3)]
        held = []
        for index in range(16):
            held.append(StudiesStub(channels[index % 3]).Watch(pb.ShowRequest(study=key), timeout=240))
            assert next(held[-1]).phase == "enrolling"
        for channel in channels:
            stub = StudiesStub(channel)
            assert (
                _status(lambda stub=stub: stub.List(pb.ListRequest(), timeout=PATIENCE)) is grpc.StatusCode.RESOURCE_EXHAUSTED
            )  # type: ignore[misc]
        assert _rejected(server, "busy") == before + 3
        other = CoordinationStub(dial(bed.sites["a"].credentials))
        assert (
            _status(lambda: other.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE)) is grpc.StatusCode.OK
        )
        held.pop().cancel()
        free = StudiesStub(channels[0])
        wait_for(lambda: _status(lambda: free.List(pb.ListRequest(), timeout=PATIENCE)) is grpc.StatusCode.OK, "a free call")
        server.hub.abort(key, "the test is over")


def test_a_newer_session_takes_the_place_of_an_older_one(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    server, _ = running
    stub = CoordinationStub(dial(bed.sites["b"].credentials))
    sessions = []
    before = server.hub.sessions["b"].serial if "b" in server.hub.sessions else 0
    for index in range(1, 4):
        sessions.append(stub.Work(pb.WorkRequest(version=PROTOCOL_VERSIONS[-1], session_nonce=bytes(16)), timeout=PATIENCE))
        wait_for(lambda: "b" in server.hub.sessions and server.hub.sessions["b"].serial == before + index, "a session")  # noqa: B023
    ended = sum(_ends(session) for session in sessions[:2])
    assert ended == 2
    assert server.hub.sessions["b"].connected
    sessions[2].cancel()
    wait_for(lambda: not server.hub.sessions["b"].connected, "the last session's end")


def test_another_process_waits_while_one_has_the_session(
    bed: TestBed, running: tuple[CoordinatorServer, str], dial: Callable[[Credentials], grpc.Channel]
) -> None:
    """Known by its nonce; it is told from where the other one came, counted, and let in once that one has gone."""
    server, _ = running
    stub = CoordinationStub(dial(bed.sites["c"].credentials))

    def ask(nonce: bytes) -> Any:
        return stub.Work(pb.WorkRequest(version=PROTOCOL_VERSIONS[-1], session_nonce=nonce), timeout=PATIENCE)

    first = ask(bytes(16))
    assert next(first).kind == pb.DIRECTIVE_KIND_PING
    before = _rejected(server, "held")
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            next(ask(bytes([1] * 16)))
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "opened from 127.0.0.1; this one asked from 127.0.0.1" in caught.value.details()
    assert _rejected(server, "held") == before + 2
    session = server.hub.sessions["c"]
    assert (session.connected, session.nonce) == (True, bytes(16))
    again = ask(bytes(16))  # the same process dials anew
    assert next(again).kind == pb.DIRECTIVE_KIND_PING
    assert _ends(first)
    again.cancel()
    wait_for(lambda: not server.hub.sessions["c"].connected, "the session's end")
    assert next(ask(bytes([1] * 16))).kind == pb.DIRECTIVE_KIND_PING


def _ends(session: Iterator[pb.Directive]) -> bool:
    try:
        return all(item.kind in (pb.DIRECTIVE_KIND_PING, pb.DIRECTIVE_KIND_END) for item in session)
    except grpc.RpcError:
        return False
