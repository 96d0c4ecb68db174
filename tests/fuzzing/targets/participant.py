"""Directives and objects that a hostile coordinator sends to a participant, in every phase of a study."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from fuzzing.driver import Target, Unexpected
from fuzzing.mutation import mutate_bytes, mutate_message
from fuzzing.targets.stage import NAMES, PHASES, Call, Stage
from veilsum.local.federation import as_directive
from veilsum_node.errors import HostileInput
from veilsum_participant.boundary.front import Status
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.session.channel import UndeliveredError
from veilsum_proto import federation_pb2 as pb

MARK = b"the-digest-of-the-present-study!"
INPUTS_EACH = 25
OBJECTS = {
    pb.OBJECT_KIND_STUDY: pb.StudyObject, pb.OBJECT_KIND_ROSTER: pb.RosterObject, pb.OBJECT_KIND_BOXES: pb.BoxesObject,
    pb.OBJECT_KIND_FIXED: pb.FixedObject, pb.OBJECT_KIND_ANSWERS: pb.AnswersObject, pb.OBJECT_KIND_MIRRORED: pb.MirroredObject,
}  # fmt: skip


class Participant(Target):
    """A participant between directives; whatever comes, it answers, refuses, or its channel says what was wrong."""

    name = "participant"
    allowed = (HostileInput,)

    def __init__(self) -> None:
        self.stage = Stage(Path(tempfile.mkdtemp(prefix="fuzzing-")))
        self.count = self.verified = 0

    def close(self) -> None:
        self.stage.close()

    def case(self, rng: random.Random) -> bytes:
        stage = self.stage
        if self.count % INPUTS_EACH == 0:
            stage.bring_to(rng.choice(PHASES))
        self.count += 1
        open_now = stage.hub.directives("a")
        directive = pb.Directive(study=stage.key, kind=rng.randrange(12), round=1, attempt=1)  # type: ignore[arg-type]
        if open_now and rng.random() < 0.7:
            directive = rng.choice(open_now)
        if rng.random() < 0.4:
            mutate_message(rng, directive, (stage.key, 1, 2, 0))
        if directive.HasField("assignment") and rng.random() < 0.3:
            mutate_message(rng, directive.assignment, (stage.key, 1, 2, 0, "a"))
        kind = rng.choice([*OBJECTS, pb.OBJECT_KIND_BROADCAST])
        fetched = {}
        if rng.random() < 0.7:
            for every in (kind, rng.choice(list(OBJECTS))):
                fetched[every] = self._spoilt(rng, every).replace(stage.key, MARK).hex()
        kept = directive.SerializeToString().replace(stage.key, MARK).hex()
        asked = {"phase": stage.phase, "directive": kept, "fetched": fetched, "catch_up": rng.random() < 0.1}
        return json.dumps(asked).encode()

    def _spoilt(self, rng: random.Random, kind: int) -> bytes:
        stage = self.stage
        entry = stage.hub.studies.get(stage.key)  # the hub lets go of a study whose end is stored
        current = entry.machine.round if entry is not None else None
        number, attempt = current.present if current is not None else (0, 0)
        try:
            whole = stage.hub.objects.fetch("a", kind, stage.key, number, attempt)  # type: ignore[arg-type]
        except HostileInput:
            whole = b""
        if kind not in OBJECTS or rng.random() < 0.3:
            return mutate_bytes(rng, whole)
        message: Message = OBJECTS[kind]()
        message.ParseFromString(whole)
        certificates = [item.identity.certificate for item in stage.credentials.values()]
        for _ in range(rng.choice((1, 1, 2))):
            mutate_message(rng, message, (stage.key, bytes(32), *certificates, *NAMES, 1, 2))
        return message.SerializeToString()

    def run(self, data: bytes) -> None:
        asked, stage = json.loads(data), self.stage
        if not stage.key or stage.phase != asked["phase"]:
            stage.bring_to(asked["phase"])
        core: ParticipantCore = stage.cores["a"]
        given = {int(kind): bytes.fromhex(raw).replace(MARK, stage.key) for kind, raw in asked["fetched"].items()}
        directive = pb.Directive()
        directive.ParseFromString(bytes.fromhex(asked["directive"]).replace(MARK, stage.key))
        channel: Any = stage.channels["a"]
        former, channel.stub = channel.stub, _Lying(stage, given)
        try:
            if asked["catch_up"]:
                core.catch_up(channel)
            core.handle(as_directive(directive), channel)
            core.expire()
        except UndeliveredError as error:
            if error.status is Status.UNKNOWN:  # nothing that a coordinator says: the front's own fault
                raise Unexpected(error.details) from error
            raise HostileInput(str(error)) from error
        finally:
            channel.stub = former
            self.verified += 1
            if self.verified % 20 == 0 and not core.site.ledger.verify(authority=core.site.credentials.authority).entries:
                raise Unexpected("the ledger is empty")


class _Lying:
    """A coordinator that hands out what it was given, and takes every answer."""

    def __init__(self, stage: Stage, given: dict[int, bytes]) -> None:
        self._stage, self._given = stage, given

    def __getattr__(self, method: str) -> Any:
        def call(request: Any, timeout: float | None = None) -> Any:
            if method == "Fetch" and request.kind in self._given:
                data = self._given[request.kind]
                return iter([pb.Chunk(data=data, total=len(data))])
            if method == "Fetch":
                return iter(self._stage.call(Call("a", method, (request,))))
            if method == "Hello":
                return self._stage.call(Call("a", method, (request,)))[0]
            if method == "UploadStatus":
                return pb.UploadStatusReply(next=0)
            for _ in request if hasattr(request, "__next__") else ():
                pass
            return pb.Ack()

        return call
