"""Malformed messages on every method over real gRPC: a typed status, a count, a server that lives, and a good study after."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import pytest

from support import reports
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, submit, wait_for
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.identity import Credentials
from veilsum_node.transport.channel import open_channel
from veilsum_proto import MAX_MESSAGE_BYTES, PROTOCOL_VERSIONS
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub, StudiesStub

NAMES = "abc"
STUDY = bytes(range(32))

TYPED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True)
class Method:
    """A method of the protocol as the descriptor states it."""

    service: str
    name: str
    streams: bool
    answers: bool
    message: type

    @property
    def path(self) -> str:
        return f"/{self.service}/{self.name}"


def _methods() -> list[Method]:
    found = []
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            message = getattr(pb, method.input_type.name)
            found.append(Method(service.full_name, method.name, method.client_streaming, method.server_streaming, message))
    return found


METHODS = _methods()
EMPTY = {"DescribeRequest", "ListRequest"}
ASKING = {"SpendingRequest"}  # any text names a dataset; of one that nobody knows nothing was spent


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    data = make_data(NAMES, 10)
    return make_bed(tmp_path_factory.mktemp("federation"), data)


@pytest.fixture(scope="module")
def running(bed: TestBed) -> Iterator[tuple[CoordinatorServer, str]]:
    with running_server(bed) as started:
        yield started


@pytest.fixture(scope="module")
def dial(bed: TestBed, running: tuple[CoordinatorServer, str]) -> Iterator[Callable[[str], grpc.Channel]]:
    """Channels by the name of the caller."""
    callers: dict[str, Credentials] = {name: site.credentials for name, site in bed.sites.items()} | {"analyst": bed.analyst}
    with ExitStack() as stack:
        channels = {name: stack.enter_context(open_channel(running[1], who)) for name, who in callers.items()}
        yield channels.__getitem__


@pytest.fixture(scope="module")
def enrolling(bed: TestBed, running: tuple[CoordinatorServer, str]) -> bytes:
    """A study that everybody is invited to."""
    study = bed.compile(make_request(schema_of(2), epsilon=None, min_cohort=2)).to_bytes()
    with open_channel(running[1], bed.analyst) as channel:
        return submit(bed, StudiesStub(channel), study)


def _call(channel: grpc.Channel, method: Method, pieces: Iterable[bytes]) -> grpc.StatusCode:
    """Send raw bytes and return the status."""
    return _told(channel, method, pieces)[0]


def _told(channel: grpc.Channel, method: Method, pieces: Iterable[bytes]) -> tuple[grpc.StatusCode, str]:
    """The same, and what the server says of it."""
    kind = ("stream" if method.streams else "unary") + "_" + ("stream" if method.answers else "unary")
    call = getattr(channel, kind)(method.path, request_serializer=None, response_deserializer=None)
    try:
        reply = call(iter(pieces) if method.streams else next(iter(pieces)), timeout=PATIENCE)
        if method.answers:
            list(reply)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


def _rejected(server: CoordinatorServer, reason: str = "") -> float:
    return sum(
        sample.value
        for metric in server.metrics.registry.collect()
        for sample in metric.samples
        if sample.name == "veilsum_rejected_messages_total" and reason in ("", sample.labels["reason"])
    )


def _caller(method: Method) -> str:
    return "analyst" if method.service.endswith("Studies") else "a"


def _filled(method: Method) -> bytes:
    """A well-formed message of the method with every scalar field set."""
    message = method.message()
    for field in message.DESCRIPTOR.fields:
        if field.type == field.TYPE_MESSAGE or field.is_repeated:
            continue
        value = {
            field.CPPTYPE_STRING: b"\x07" * 32 if field.type == field.TYPE_BYTES else "x" * 16,
            field.CPPTYPE_ENUM: 1,
            field.CPPTYPE_BOOL: True,
        }.get(field.cpp_type, 7)
        setattr(message, field.name, value)
    return bytes(message.SerializeToString())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_bytes_that_are_no_message(
    method: Method, running: tuple[CoordinatorServer, str], dial: Callable[[str], grpc.Channel]
) -> None:
    server, _ = running
    channel = dial(_caller(method))
    whole = _filled(method)
    pieces = [b"\xff\xff\xff\x07", b"\x0a\xff\xff\xff\xff\x0f", b"\x0b" * 200, whole + b"\x0a"]
    if whole:
        pieces.append(whole[:-1])
    for piece in pieces:
        before = _rejected(server, "malformed")
        assert _call(channel, method, [piece]) is grpc.StatusCode.INVALID_ARGUMENT, piece[:8]
        assert _rejected(server, "malformed") == before + 1


@pytest.mark.parametrize(
    "method", [item for item in METHODS if item.message.__name__ not in EMPTY], ids=lambda item: item.name
)
def test_well_formed_messages_about_nothing(
    method: Method, running: tuple[CoordinatorServer, str], dial: Callable[[str], grpc.Channel]
) -> None:
    """Empty, or every field set to something: an unknown study, version, nonce, file or index."""
    server, _ = running
    for piece in (b"",) if method.message.__name__ in ASKING else (b"", _filled(method)):
        before = _rejected(server)
        code = _call(dial(_caller(method)), method, [piece])
        assert code in TYPED, code
        assert _rejected(server) == before + 1


@pytest.mark.sampled(9)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_random_bytes(method: Method, running: tuple[CoordinatorServer, str], dial: Callable[[str], grpc.Channel]) -> None:
    server, _ = running
    channel, whole = dial(_caller(method)), _filled(method)
    source = random.Random(method.name)
    for _ in range(25):
        if whole and source.random() < 0.5:
            mangled = bytearray(whole)
            mangled[source.randrange(len(mangled))] ^= 1 << source.randrange(8)
            piece = bytes(mangled)
        else:
            piece = source.randbytes(source.randrange(1, 300))
        before, internal = _rejected(server), _rejected(server, "internal")
        code = _call(channel, method, [piece])
        if (
            code is grpc.StatusCode.OK
        ):  # unknown fields are skipped, so noise can be a valid message of a method that takes any
            assert method.message.__name__ in EMPTY | ASKING | {"HelloRequest"}, (method.name, piece)
            continue
        assert code in TYPED, (method.name, code)
        assert (_rejected(server), _rejected(server, "internal")) == (before + 1, internal)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_messages_over_the_limit(method: Method, bed: TestBed, running: tuple[CoordinatorServer, str]) -> None:
    """gRPC's core refuses them before a handler sees a byte."""
    who = bed.analyst if _caller(method) == "analyst" else bed.sites["a"].credentials
    tls = grpc.ssl_channel_credentials(who.authority_pem, who.key_pem, who.certificate_pem)
    options = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(running[1], tls, options=options) as channel:
        huge = b"\x7a" + _varint(MAX_MESSAGE_BYTES) + bytes(MAX_MESSAGE_BYTES)  # field 15, unknown everywhere
        assert _call(channel, method, [huge]) is grpc.StatusCode.RESOURCE_EXHAUSTED


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Enrol", pb.EnrolRequest(study=STUDY, enrolment=pb.SignedEnrolment(certificate=bytes(8193)))),
        ("Enrol", pb.EnrolRequest(study=STUDY, enrolment=pb.SignedEnrolment(body=bytes(8193)))),
        ("Refuse", pb.RefuseRequest(study=STUDY, code="because")),
        ("Refuse", pb.RefuseRequest(study=STUDY, code="x" * 1_000_000)),
        ("Submit", pb.SubmitRequest(study=pb.StudyObject(study=bytes(1_048_577)))),
        ("Submit", pb.SubmitRequest(study=pb.StudyObject(certificate=bytes(8193)))),
        ("Show", pb.ShowRequest(study=b"\0")),
        ("Result", pb.ResultRequest(study=STUDY, file="../coordinator.db")),
        ("Fetch", pb.FetchRequest(kind=77, study=STUDY)),
        ("Confirm", pb.ConfirmRequest(study=STUDY, kind=77)),
        ("UploadStatus", pb.UploadStatusRequest(study=STUDY, round=2**64 - 1, attempt=2**64 - 1)),
        ("Answer", pb.AnswerRequest(study=STUDY, answer=pb.MemberAnswer(words=[1, 2]))),
        ("Answer", pb.AnswerRequest(study=STUDY, answer=pb.MemberAnswer(words=[2**64 - 1] * 4))),
        ("Answer", pb.AnswerRequest(study=STUDY, answer=pb.MemberAnswer(words=[1, 2, 3], signature=bytes(257)))),
        ("Consent", pb.ConsentRequest(study=STUDY, consent=bytes(32), signature=bytes(257))),
        ("Hello", pb.HelloRequest(versions=range(2, 400_000))),
        ("Work", pb.WorkRequest(version=PROTOCOL_VERSIONS[-1], session_nonce=bytes(15))),
        *(("Report", pb.ReportRequest(samples=samples)) for samples in reports.HOSTILE.values()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fields_out_of_bounds(
    name: str,
    request_: pb.FetchRequest,
    running: tuple[CoordinatorServer, str],
    dial: Callable[[str], grpc.Channel],
    enrolling: bytes,
) -> None:
    """About a study that there is, so that it is the bound that refuses."""
    server, _ = running
    method = next(item for item in METHODS if item.name == name)
    if "study" in pb.DESCRIPTOR.message_types_by_name[method.message.__name__].fields_by_name and request_.study == STUDY:
        request_.study = enrolling
    before = _rejected(server)
    code, told = _told(dial(_caller(method)), method, [request_.SerializeToString()])
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert ("no such study" in told) == (name == "Show"), told
    assert _rejected(server) == before + 1


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("Hello", pb.HelloRequest(versions=[])),
        ("Hello", pb.HelloRequest(versions=[0, 1, 2, 3, 4, 5, 7, 2**32 - 1])),
        ("Work", pb.WorkRequest(version=0, session_nonce=bytes(16))),
        ("Work", pb.WorkRequest(version=5, session_nonce=bytes(16))),
    ],
    ids=["none", "others", "zero", "five"],
)
def test_versions_that_the_coordinator_does_not_speak(
    name: str, request_: pb.HelloRequest, running: tuple[CoordinatorServer, str], dial: Callable[[str], grpc.Channel]
) -> None:
    server, _ = running
    method = next(item for item in METHODS if item.name == name)
    before = _rejected(server, "version")
    assert _call(dial("a"), method, [request_.SerializeToString()]) is grpc.StatusCode.FAILED_PRECONDITION
    assert _rejected(server, "version") == before + 1


@pytest.mark.parametrize("name", ["Seal", "Upload"])
def test_streams_that_end_before_they_begin(
    name: str, running: tuple[CoordinatorServer, str], dial: Callable[[str], grpc.Channel]
) -> None:
    server, _ = running
    method = next(item for item in METHODS if item.name == name)
    before = _rejected(server, "malformed")
    assert _call(dial("a"), method, []) is grpc.StatusCode.INVALID_ARGUMENT
    assert _rejected(server, "malformed") == before + 1


def test_a_good_study_runs_after_all_that(bed: TestBed, running: tuple[CoordinatorServer, str]) -> None:
    """One invited participant first tries to enrol with another's signed enrolment."""
    server, address = running
    with ExitStack() as stack:
        for name in "ab":
            stack.enter_context(running_client(bed.sites[name], address))
        study = bed.compile(make_request(schema_of(2), epsilon=None)).to_bytes()
        analyst = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        key = submit(bed, analyst, study)
        machine = server.hub.studies[key].machine
        wait_for(lambda: sum(seat.enrolment is not None for seat in machine.seats.values()) == 2, "two enrolments")

        member = CoordinationStub(stack.enter_context(open_channel(address, bed.sites["c"].credentials)))
        stolen = pb.SignedEnrolment(**_wire(machine.seats["a"].enrolment))
        with pytest.raises(grpc.RpcError) as raised:  # another's enrolment under this caller's certificate
            member.Enrol(pb.EnrolRequest(study=key, enrolment=stolen), timeout=PATIENCE)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert machine.seats["c"].enrolment is None

        stack.enter_context(running_client(bed.sites["c"], address))
        wait_for(lambda: machine.phase is StudyPhase.FINISHED, "the study's result")
        wait_for(lambda: all(seat.ended for seat in machine.seats.values()), "the end everywhere")


def _wire(enrolment: object) -> dict[str, bytes]:
    return {name: getattr(enrolment, name) for name in ("certificate", "body", "signature")}
