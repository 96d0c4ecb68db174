"""Calls to the coordinator in every phase of a study: honest ones that are spoilt, made-up ones, at wrong times, by others."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

from google.protobuf.message import DecodeError, Message

from fuzzing.driver import Target, Unexpected
from fuzzing.mutation import mutate_bytes, mutate_message
from fuzzing.targets.stage import NAMES, PHASES, Call, Refused, Stage
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_proto import federation_pb2 as pb

MARK = b"the-digest-of-the-present-study!"
"""Stands for the present study's digest in an input that is kept."""

INPUTS_EACH = 40
"""Inputs that one study gets."""

METHODS = {
    "Hello": pb.HelloRequest, "Work": pb.WorkRequest, "Fetch": pb.FetchRequest, "Enrol": pb.EnrolRequest,
    "Refuse": pb.RefuseRequest, "Seal": pb.SealedBoxes, "Ready": pb.ReadyRequest, "UploadStatus": pb.UploadStatusRequest,
    "Upload": pb.UploadChunk, "Answer": pb.AnswerRequest, "Consent": pb.ConsentRequest, "Confirm": pb.ConfirmRequest,
    "Report": pb.ReportRequest, "Describe": pb.DescribeRequest, "Submit": pb.SubmitRequest, "List": pb.ListRequest,
    "Show": pb.ShowRequest, "Watch": pb.ShowRequest, "Abort": pb.ShowRequest, "Spending": pb.SpendingRequest,
    "Result": pb.ResultRequest,
}  # fmt: skip


ANALYSTS = ("Describe", "Submit", "List", "Show", "Watch", "Abort", "Spending", "Result")


class Coordinator(Target):
    """Servicers with state; an honest study ends well after all of it, every few hundred inputs."""

    name = "coordinator"
    allowed = (Refused, DecodeError)

    def __init__(self) -> None:
        self.stage = Stage(Path(tempfile.mkdtemp(prefix="fuzzing-")))
        self.next: list[Call] = []
        self.count = self.studies = 0

    def close(self) -> None:
        self.stage.close()

    def case(self, rng: random.Random) -> bytes:
        stage = self.stage
        if self.count % INPUTS_EACH == 0 or (stage.phase != "over" and stage.hub.stored(stage.key)):
            self._renew(rng.choice(PHASES))
        self.count += 1
        call = rng.choice(self.next) if self.next and rng.random() < 0.7 else self._made_up(rng)
        caller, method = call.caller, call.method
        if rng.random() < 0.15:
            caller = rng.choice((*NAMES, "analyst", "coordinator"))
        messages = []
        spoilt = rng.randrange(len(call.messages)) if call.messages else -1
        for number, message in enumerate(call.messages):
            copy = type(message).FromString(message.SerializeToString())
            if number == spoilt:
                for _ in range(rng.choice((0, 1, 1, 2))):
                    mutate_message(rng, copy, self._words())
            raw = copy.SerializeToString()
            messages.append(mutate_bytes(rng, raw) if number == spoilt and rng.random() < 0.15 else raw)
        if len(messages) > 1 and rng.random() < 0.2:
            match rng.randrange(3):
                case 0:
                    rng.shuffle(messages)
                case 1:
                    messages = messages[: rng.randrange(len(messages))]
                case _:
                    messages.append(rng.choice(messages))
        kept = [raw.replace(stage.key, MARK).hex() for raw in messages]
        return json.dumps({"phase": stage.phase, "caller": caller, "method": method, "messages": kept}).encode()

    def _made_up(self, rng: random.Random) -> Call:
        method = rng.choice(list(METHODS))
        message: Message = METHODS[method]()
        if "study" in message.DESCRIPTOR.fields_by_name and method != "Submit":
            message.study = self.stage.key  # type: ignore[attr-defined]
        for _ in range(rng.choice((1, 2, 4))):
            mutate_message(rng, message, self._words())
        return Call("analyst" if method in ANALYSTS else rng.choice(NAMES), method, (message,))

    def _words(self) -> tuple[bytes | str | int, ...]:
        credentials = self.stage.credentials
        certificates = [item.identity.certificate for item in credentials.values()]
        texts = (*NAMES, "coordinator", "records", "budget-exceeded")
        return self.stage.key, bytes(32), bytes(16), *certificates, *texts, 1, 2, 3

    def _renew(self, phase: str) -> None:
        stage = self.stage
        self.studies += 1
        if self.studies % 10 == 0:
            stage.bring_to("contributing")  # among its members are those in whose names all that came
            stage.bring_to("over")
            if (found := stage.hub.shown.status(stage.key)).phase != StudyPhase.FINISHED.value:
                raise Unexpected(f"an honest study {found.phase}: {found.reason}")
        stage.bring_to(phase)
        self.next = stage.next_calls()

    def run(self, data: bytes) -> None:
        asked, stage = json.loads(data), self.stage
        if not stage.key or stage.phase != asked["phase"]:
            self._renew(asked["phase"])
        before = stage.internal_errors()
        try:
            kind = METHODS[asked["method"]]
            messages = [kind.FromString(bytes.fromhex(raw).replace(MARK, stage.key)) for raw in asked["messages"]]
            for answer in stage.call(Call(asked["caller"], asked["method"], tuple(messages) or (kind(),))):
                answer.SerializeToString()
        finally:
            if stage.internal_errors() != before:
                raise Unexpected("an internal error")
            stage.hub.tick()
            for name in NAMES:
                stage.hub.directives(name)
            stage.hub.shown.status(stage.key).SerializeToString()
