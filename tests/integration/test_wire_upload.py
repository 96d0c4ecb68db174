"""Uploads in every wrong order over real gRPC: nothing of them enters the sum, and the right upload is taken after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from support.channels import OpenChannel
from support.federation import make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, wait_for
from veilsum_coordinator.protocol.machine import StudyMachine
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service.server import CoordinatorServer
from veilsum_node.transport.channel import open_channel
from veilsum_participant.boundary.front import Directive
from veilsum_participant.protocol.core import ParticipantCore, assigned
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, parse_receipt, sign_receipt
from veilsum_privacy.tasks import build_task
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub


@dataclass
class Standing:
    """A study at which everyone has uploaded but this member, whose payload is ready."""

    server: CoordinatorServer
    machine: StudyMachine
    channel: OpenChannel
    core: ParticipantCore
    key: bytes
    payload: Payload
    directives: Iterator[Directive]
    columns: np.ndarray

    def chunk(self, index: int, *, first: bool = False, data: bytes | None = None) -> pb.UploadChunk:
        chunk = pb.UploadChunk(index=index, data=bytes(self.payload.pieces[index]) if data is None else data)
        return self.named(chunk) if first else chunk

    def named(self, chunk: pb.UploadChunk) -> pb.UploadChunk:
        chunk.study, chunk.round, chunk.attempt = self.key, self.payload.round, self.payload.attempt
        return chunk

    def receipt(self, signed: SignedReceipt) -> pb.UploadChunk:
        _, number, head, consent, signature = part_of_receipt(signed)
        return pb.UploadChunk(receipt=pb.MemberReceipt(number=number, head=head, consent=consent, signature=signature))

    def refused(self, *chunks: pb.UploadChunk, why: str = "") -> grpc.StatusCode:
        with pytest.raises(grpc.RpcError) as raised:
            self.channel.stub.Upload(iter(chunks), timeout=PATIENCE)
        assert why in raised.value.details()
        return raised.value.code()

    def next(self) -> int:
        request = pb.UploadStatusRequest(study=self.key, round=self.payload.round, attempt=self.payload.attempt)
        return int(self.channel.stub.UploadStatus(request, timeout=PATIENCE).next)


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    width = 600
    data = make_data("abc", 5, width)
    bed = make_bed(tmp_path_factory.mktemp("federation"), data)
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed))
        for name in "ab":
            stack.enter_context(running_client(bed.sites[name], address))
        study = bed.compile(make_request(schema_of(width), epsilon=None)).to_bytes()
        analyst = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        signed = bed.signed(study)
        site = bed.sites["c"]
        raw = stack.enter_context(open_channel(address, site.credentials))
        channel, core = OpenChannel(raw, site.credentials), ParticipantCore(site)
        channel.hello()
        directives = channel.directives(site.nonce)
        key = analyst.Submit(pb.SubmitRequest(study=signed), timeout=PATIENCE).study
        payload = _until_payload(core, channel, directives)
        machine = server.hub.studies[key].machine
        wait_for(lambda: all(machine.rounds[0].accumulator.uploads[name].complete for name in "ab"), "the others")
        columns = np.concatenate([features for features, _ in data.values()])
        yield Standing(server, machine, channel, core, key, payload, directives, columns)


def _until_payload(core: ParticipantCore, channel: OpenChannel, directives: Iterator[Directive]) -> Payload:
    """Answer directives honestly up to the assignment, and make the payload without sending it."""
    for directive in directives:
        if directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE:
            return core.contributions.on_assignment(directive.study, assigned(directive), b"")
        if directive.kind != pb.DIRECTIVE_KIND_PING:
            core.handle(directive, channel)
    raise AssertionError("the session ended before the assignment")


def test_the_payload_has_several_pieces(standing: Standing) -> None:
    assert len(standing.payload.pieces) >= 2
    assert standing.next() == 0


def test_an_index_ahead_is_out_of_range(standing: Standing) -> None:
    assert standing.refused(standing.chunk(1, first=True)) is grpc.StatusCode.OUT_OF_RANGE
    assert standing.next() == 0


@pytest.mark.parametrize("index", [2**16, 2**63])
def test_an_index_beyond_the_plan(standing: Standing, index: int) -> None:
    chunk = standing.named(pb.UploadChunk(index=index, data=bytes(standing.payload.pieces[0])))
    assert standing.refused(chunk) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 0


@pytest.mark.parametrize("kind", ["empty", "short", "too large", "truncated", "longer"])
def test_something_else_than_a_key_share(standing: Standing, kind: str) -> None:
    whole = bytes(standing.payload.pieces[0])
    data = {
        "empty": b"",
        "short": b"xx",
        "too large": b"\xff" * len(whole),
        "truncated": whole[:-100],
        "longer": whole + bytes(5000),
    }[kind]
    assert standing.refused(standing.chunk(0, first=True, data=data)) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 0


def test_an_attempt_named_twice_another_attempt_another_study(standing: Standing) -> None:
    other = standing.chunk(0, first=True)
    other.attempt += 1
    assert standing.refused(other) is grpc.StatusCode.INVALID_ARGUMENT
    other = standing.chunk(0, first=True)
    other.study = bytes(32)
    assert standing.refused(other) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 0


def test_more_releases_seen_than_can_be_open(standing: Standing) -> None:
    """They come with the first chunk and no other; those that are not open change nothing."""
    before = {name: set(seat.released) for name, seat in standing.machine.seats.items()}
    many, late = standing.chunk(0, first=True), standing.chunk(1)
    many.seen.extend([pb.Seen(round=1, attempt=1)] * 65)
    late.seen.add(round=1, attempt=1)
    assert standing.refused(many) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 0
    ahead = standing.chunk(1, first=True)
    ahead.seen.extend(pb.Seen(round=number, attempt=2**64 - 1) for number in range(64))
    assert standing.refused(ahead) is grpc.StatusCode.OUT_OF_RANGE
    empty = standing.named(pb.UploadChunk(index=2**16, data=b""))
    assert standing.refused(empty, late) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 0
    assert before == {name: set(seat.released) for name, seat in standing.machine.seats.items()}


def test_a_receipt_before_its_pieces(standing: Standing) -> None:
    early = standing.named(standing.receipt(standing.payload.receipt))
    assert standing.refused(early, why="before the last piece") is grpc.StatusCode.INVALID_ARGUMENT


def test_an_index_sent_twice_is_added_once(standing: Standing) -> None:
    assert standing.refused(standing.chunk(0, first=True), standing.chunk(0)) is grpc.StatusCode.OUT_OF_RANGE
    assert standing.next() == 1
    assert standing.refused(standing.chunk(0, first=True)) is grpc.StatusCode.OUT_OF_RANGE
    coefficients = bytes(standing.payload.pieces[1])
    for data in (b"", coefficients[:-1], coefficients + b"\0", b"\xff" * len(coefficients), bytes(standing.payload.pieces[0])):
        assert standing.refused(standing.chunk(1, first=True, data=data)) is grpc.StatusCode.INVALID_ARGUMENT
        assert standing.next() == 1
    assert standing.refused(standing.chunk(1, first=True), standing.chunk(1, first=True)) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.next() == 2


def test_receipts_that_are_not_this_members_for_these_bytes(standing: Standing) -> None:
    last = len(standing.payload.pieces)
    for index in range(standing.next(), last):
        assert standing.channel.stub.Upload(iter([standing.chunk(index, first=True)]), timeout=PATIENCE).next == index + 1
    key = standing.core.site.credentials.signing_key
    own = standing.payload.receipt
    honest = parse_receipt(own.body)
    forged = [
        SignedReceipt(own.body, bytes(len(own.signature))),
        SignedReceipt(own.body, own.signature[:-1]),
        SignedReceipt(_changed(honest, head=bytes(32)).to_bytes(), own.signature),
        SignedReceipt(_changed(honest, number=2).to_bytes(), own.signature),
        SignedReceipt(own.body, own.signature * 9),
        sign_receipt(_changed(honest, payload=bytes(32)), key),
        sign_receipt(_changed(honest, participant="a"), key),
        sign_receipt(_changed(honest, study=bytes(32)), key),
        sign_receipt(_changed(honest, context=bytes(32)), key),
        sign_receipt(_changed(honest, version=1), key),
        standing.machine.rounds[0].accumulator.uploads["a"].receipt,
    ]
    for signed in forged:
        assert signed is not None
        why = "signature" if len(signed.signature) > 256 else "not signed for this attempt"
        assert standing.refused(standing.named(standing.receipt(signed)), why=why) is grpc.StatusCode.INVALID_ARGUMENT
    assert standing.machine.rounds[0].accumulator.uploads["c"].receipt is None


def _changed(receipt: Receipt, **changes: object) -> Receipt:
    return Receipt(**(vars(receipt) | changes))  # type: ignore[arg-type]


def test_the_right_upload_is_taken_and_the_sum_is_exact(standing: Standing) -> None:
    standing.channel.upload(standing.key, standing.payload)
    with pytest.raises(grpc.RpcError):  # after the receipt nothing more is added
        standing.channel.stub.Upload(iter([standing.chunk(0, first=True)]), timeout=PATIENCE)
    for directive in standing.directives:
        if directive.kind != pb.DIRECTIVE_KIND_PING:
            standing.core.handle(directive, standing.channel)
        if directive.kind == pb.DIRECTIVE_KIND_END:
            break
    assert standing.machine.phase is StudyPhase.FINISHED, standing.machine.reason
    (row,) = standing.server.hub.journal.releases(standing.key)
    study = standing.machine.study
    task = build_task("tables", study.tasks[0].parameters, study.data)
    unit = task.clip() / study.tasks[0].grid
    released = task.layout().split(np.frombuffer(row["values"], "<i8") * unit)
    records = len(standing.columns)
    sums = np.concatenate([values[0] for name, values in released.items() if name.endswith("/sum")])
    step = 1.0 / min(query["scale"] for query in study.tasks[0].parameters["queries"])
    np.testing.assert_allclose(sums, standing.columns.sum(0), rtol=0, atol=records * step / 2)
    np.testing.assert_array_equal(released["records/table"], [records])
