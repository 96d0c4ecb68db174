"""What a coordinator tells each role of a study: of each call every field that comes back, or the status that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, certified, submit, wait_for, wired
from veilsum_node.identity import Credentials, Role, load_credentials
from veilsum_node.transport.channel import open_channel
from veilsum_proto import PROTOCOL_VERSIONS
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub, StudiesStub

OWNER, STRANGER, OPERATOR, MEMBER, OUTSIDER, COORDINATOR = "owner", "stranger", "operator", "member", "outsider", "coordinator"
"""The study's analyst, another analyst, an operator, a site of the study, a site that it does not invite, a coordinator."""

Fields = frozenset[str]
DENIED, MALFORMED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT

WHO_IS_THERE = frozenset({"coordinator", "federation", "now", "participants.name", "participants.connected"})
STATUS = frozenset(
    {
        "analyst", "bytes_received", "declared", "delta", "enrolled", "epsilon", "epsilon_spent", "method", "name",
        "participants", "phase", "progress", "released", "results", "rounds.attempts", "rounds.bytes_received",
        "rounds.cohort", "rounds.label", "rounds.phase", "rounds.round", "study", "submitted",
    }
)  # fmt: skip
LISTED = frozenset(f"studies.{name}" for name in STATUS)
SPENT = frozenset({"participants.participant", "participants.events"})
FILE = frozenset({"data", "total"})
OWN_RECEIPTS = frozenset(
    {f"receipts.{name}" for name in ("receipt.body", "receipt.signature", "number", "consent")} | {"last"}
)
NOTHING: Fields = frozenset()
GREETED = frozenset({"version", "now", "coordinator", "software"})

ONLY_SITES = dict.fromkeys((OWNER, STRANGER, OPERATOR, COORDINATOR), DENIED)
NO_SITES = dict.fromkeys((MEMBER, OUTSIDER, COORDINATOR), DENIED)

TOLD: dict[str, dict[str, Fields | grpc.StatusCode]] = {
    "Hello": dict.fromkeys((OWNER, STRANGER, OPERATOR, MEMBER, OUTSIDER, COORDINATOR), GREETED),
    "Describe": {
        OWNER: WHO_IS_THERE,
        STRANGER: WHO_IS_THERE,
        OPERATOR: WHO_IS_THERE | {"participants.last_seen", "participants.bytes_received"},
        **NO_SITES,
    },
    "Submit": {OWNER: MALFORMED, STRANGER: MALFORMED, OPERATOR: DENIED, **NO_SITES},
    "List": {OWNER: LISTED, STRANGER: NOTHING, OPERATOR: LISTED, **NO_SITES},
    "Show": {OWNER: STATUS, STRANGER: DENIED, OPERATOR: STATUS, **NO_SITES},
    "Watch": {OWNER: STATUS, STRANGER: DENIED, OPERATOR: STATUS, **NO_SITES},
    "Spending": {OWNER: SPENT, STRANGER: NOTHING, OPERATOR: SPENT, **NO_SITES},
    "Result": {OWNER: FILE, STRANGER: DENIED, OPERATOR: FILE, **NO_SITES},
    "Result of the proof": {OWNER: FILE, STRANGER: DENIED, OPERATOR: FILE, **NO_SITES},
    "Fetch of a study": {MEMBER: MALFORMED, OUTSIDER: MALFORMED, **ONLY_SITES},
    "Fetch of a roster": {MEMBER: MALFORMED, OUTSIDER: MALFORMED, **ONLY_SITES},
    "Fetch of a release": {MEMBER: MALFORMED, OUTSIDER: MALFORMED, **ONLY_SITES},
    "Fetch of receipts": {
        MEMBER: OWN_RECEIPTS,
        OUTSIDER: NOTHING,
        **ONLY_SITES,
    },
    "UploadStatus": {MEMBER: MALFORMED, OUTSIDER: MALFORMED, **ONLY_SITES},
    "Abort": {STRANGER: DENIED, **NO_SITES},
}  # fmt: skip


def fields(message: Message) -> Iterator[str]:
    """Paths of all that is set."""
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            if isinstance(item, Message):
                yield from (f"{field.name}.{inner}" for inner in fields(item))
            else:
                yield field.name


@dataclass
class Scene:
    """A study of one analyst that is over, and whoever may ask for it."""

    study: bytes
    signed: pb.StudyObject
    channels: dict[str, grpc.Channel]

    def calls(self, who: str) -> dict[str, Callable[[], list[Message]]]:
        studies, sites = StudiesStub(self.channels[who]), CoordinationStub(self.channels[who])
        show = pb.ShowRequest(study=self.study)

        def file(name: str) -> list[Message]:
            return list(studies.Result(pb.ResultRequest(study=self.study, file=name), timeout=PATIENCE))

        def fetch(kind: pb.ObjectKind.ValueType) -> list[Message]:
            return list(sites.Fetch(pb.FetchRequest(kind=kind, study=self.study, round=1, attempt=1), timeout=PATIENCE))

        def receipts() -> list[Message]:
            chunks = sites.Fetch(pb.FetchRequest(kind=pb.OBJECT_KIND_MIRRORED, study=bytes(32)), timeout=PATIENCE)
            return [pb.MirroredObject.FromString(b"".join(chunk.data for chunk in chunks))]

        return {
            "Hello": lambda: [sites.Hello(pb.HelloRequest(versions=PROTOCOL_VERSIONS), timeout=PATIENCE)],
            "Describe": lambda: [studies.Describe(pb.DescribeRequest(), timeout=PATIENCE)],
            "Submit": lambda: [studies.Submit(pb.SubmitRequest(study=self.signed), timeout=PATIENCE)],
            "List": lambda: [studies.List(pb.ListRequest(), timeout=PATIENCE)],
            "Show": lambda: [studies.Show(show, timeout=PATIENCE)],
            "Watch": lambda: list(studies.Watch(show, timeout=PATIENCE)),
            "Spending": lambda: [studies.Spending(pb.SpendingRequest(dataset=DATASET), timeout=PATIENCE)],
            "Result": lambda: file("manifest.json"),
            "Result of the proof": lambda: file("proof/study.json"),
            "Fetch of a study": lambda: fetch(pb.OBJECT_KIND_STUDY),
            "Fetch of a roster": lambda: fetch(pb.OBJECT_KIND_ROSTER),
            "Fetch of a release": lambda: fetch(pb.OBJECT_KIND_RELEASE),
            "Fetch of receipts": receipts,
            "UploadStatus": lambda: [
                sites.UploadStatus(pb.UploadStatusRequest(study=self.study, round=1, attempt=1), timeout=PATIENCE)
            ],
            "Abort": lambda: [studies.Abort(show, timeout=PATIENCE)],
        }


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    bed = make_bed(tmp_path_factory.mktemp("told"), make_data("abc"), budget=(50.0, 1e-5))

    def load(identity: Path) -> Credentials:
        return load_credentials(identity, bed.clock())

    study = bed.compile(make_request(schema_of(2)))
    with ExitStack() as stack:
        server, address, stub = stack.enter_context(wired(bed))
        key = submit(bed, stub, study)
        wait_for(lambda: server.hub.shown.status(key).phase == "finished" and bool(server.hub.shown.status(key).results))
        who = {
            OWNER: bed.analyst,
            STRANGER: certified(bed, "stranger", Role.ANALYST, at=bed.clock()),
            OPERATOR: load(bed.kit.operator.identity),
            MEMBER: bed.sites["a"].credentials,
            OUTSIDER: certified(bed, "outsider", Role.PARTICIPANT, at=bed.clock()),
            COORDINATOR: load(bed.kit.coordinator.identity),
        }
        channels = {name: stack.enter_context(open_channel(address, credentials)) for name, credentials in who.items()}
        yield Scene(key, bed.signed(study), channels)


@pytest.mark.parametrize("call", TOLD)
def test_each_role_is_told_what_it_needs_and_no_more(scene: Scene, call: str) -> None:
    for who, expected in TOLD[call].items():
        try:
            told: object = frozenset(path for message in scene.calls(who)[call]() for path in fields(message))
        except grpc.RpcError as error:
            told = error.code()
        assert told == expected, who


def test_no_reply_to_another_analyst_names_the_study_its_analyst_or_its_members_traffic(scene: Scene) -> None:
    for call in ("Describe", "List", "Spending"):
        for message in scene.calls(STRANGER)[call]():
            data = message.SerializeToString()
            assert scene.study not in data
            assert b"analyst" not in data
