"""What analysts and operators call: submit, list, show, watch, abort, fetch results."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc

from veilsum_coordinator.results.proof import proof_file
from veilsum_coordinator.service.guard import Context, Guard, WrongRole
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.storage.outage import CALL_SECONDS
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, StateError
from veilsum_node.identity import Role
from veilsum_privacy.results.release_names import FOLDER
from veilsum_privacy.results.result import ARRAYS, MANIFEST, checkpoint_directory, saved_checkpoints
from veilsum_privacy.study.study import MAX_STUDY_BYTES
from veilsum_proto import CHUNK_BYTES, MAX_MESSAGE_BYTES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesServicer

READERS = (Role.ANALYST, Role.OPERATOR)

MOST_BYTES = MAX_MESSAGE_BYTES // 2
"""Of lists in one reply; who asks for the rest gets it by further ones."""

STORED_SECONDS = 0.1
"""How often it is looked whether an end is durable, while the database is away."""

LEAST_SECONDS, LOOK_SECONDS = 0.1, 1.0
"""Who watches a study is shown it so often at most; and so often it is looked whether bytes came, which wake nobody."""

_NOT_STORED = (
    "The study is stopped, but its end is not stored because the database is unreachable. Abort it again once the database is"
    " back: otherwise it would continue after a restart of the coordinator."
)


class _Watchers:
    """Wakes those who watch studies after a change, whichever thread made it; they live in the loop that this is made in."""

    def __init__(self, hub: Hub) -> None:
        self._loop, self._wakers, self._due = asyncio.get_running_loop(), set[asyncio.Event](), False
        hub.listen(self._changed)

    @contextmanager
    def waker(self) -> Iterator[asyncio.Event]:
        """An event that is set after every change."""
        waker = asyncio.Event()
        self._wakers.add(waker)
        try:
            yield waker
        finally:
            self._wakers.discard(waker)

    def wake(self) -> None:
        """Let all look."""
        self._due = False  # what changes from here on wakes them again
        for waker in self._wakers:
            waker.set()

    def _changed(self, _: str | None) -> None:
        if self._wakers and not self._due and not self._loop.is_closed():
            self._due = True
            self._loop.call_soon_threadsafe(self.wake)


class Studies(StudiesServicer):
    """The service for analysts and operators. An analyst sees and stops its own studies, an operator all."""

    def __init__(self, hub: Hub, guard: Guard, results: Path, clock: Callable[[], int]) -> None:
        self._hub, self._guard, self._results, self._clock = hub, guard, results, clock
        self._watchers = _Watchers(hub)

    def close(self) -> None:
        """Tell those who watch that the process is about to stop."""
        self._watchers.wake()

    def _permitted(self, key: bytes, context: Context) -> bytes:
        """A study's digest, of a study that the caller may see."""
        caller = self._guard.caller(context, READERS)
        if caller.role is Role.ANALYST and self._hub.shown.analyst(key) != caller.name:
            raise WrongRole("The study belongs to another analyst.")
        return key

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeReply:
        caller = self._guard.caller(context, READERS)
        with self._hub.changed:
            sessions = sorted(self._hub.sessions.values(), key=lambda session: session.name)
            participants = [pb.ParticipantStatus(name=session.name, connected=session.connected) for session in sessions]
            if caller.role is Role.OPERATOR:  # bytes and times are of everybody's studies
                for shown, session in zip(participants, sessions, strict=True):
                    shown.last_seen, shown.bytes_received = session.last_seen, session.received
        credentials = self._hub.credentials
        return pb.DescribeReply(
            coordinator=credentials.identity.name,
            federation=credentials.federation_id,
            participants=participants,
            now=self._clock(),
        )

    async def Submit(self, request: pb.SubmitRequest, context: Context) -> pb.SubmitReply:
        caller = self._guard.caller(context, (Role.ANALYST,))
        if len(request.study.study) > MAX_STUDY_BYTES or len(request.study.certificate) > 8192:
            raise HostileInput("The study or its certificate is larger than allowed.")
        return pb.SubmitReply(study=await asyncio.to_thread(self._hub.submit, caller.name, request.study))

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListReply:
        caller = self._guard.caller(context, READERS)
        analyst = None if caller.role is Role.OPERATOR else caller.name
        shown, more = await asyncio.to_thread(
            self._hub.shown.page, analyst, begins=request.begins, before=request.before, most=MOST_BYTES
        )
        return pb.ListReply(studies=shown, more=more)

    def _status(self, key: bytes) -> pb.StudyStatus:
        """What is shown of a study, with the checkpoints that lie on disk: a restarted coordinator still has them."""
        status, rounds = self._hub.shown.status(key), saved_checkpoints(self._results, key)
        if not rounds:
            return status
        shown = pb.StudyStatus()
        shown.CopyFrom(status)
        shown.checkpoints.extend(rounds)
        return shown

    async def Show(self, request: pb.ShowRequest, context: Context) -> pb.StudyStatus:
        return self._status(self._permitted(request.study, context))

    async def Watch(self, request: pb.ShowRequest, context: Context) -> AsyncIterator[pb.StudyStatus]:
        key = self._permitted(request.study, context)
        seen: int | bytes | None = None
        shown = b""
        with self._watchers.waker() as waker:
            while True:
                waker.clear()
                if (
                    mark := self._hub.shown.mark(key)
                ) != seen:  # taken first, so that what changes meanwhile is seen next time
                    seen, status = mark, self._status(key)
                    now = status.SerializeToString(deterministic=True)
                    if now != shown:
                        yield status
                        shown = now
                    if status.phase in ("failed", "aborted") or (status.phase == "finished" and status.results):
                        return
                if self._hub.stopping:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "The coordinator is stopping.")
                await asyncio.sleep(LEAST_SECONDS)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await waker.wait()

    async def Abort(self, request: pb.ShowRequest, context: Context) -> pb.StudyStatus:
        key = self._permitted(request.study, context)
        self._hub.abort(key, f"aborted by {self._guard.caller(context, READERS).name}")
        end = time.monotonic() + CALL_SECONDS
        while not self._hub.stored(key):  # "aborted" is said only once no crash can take it back
            if time.monotonic() >= end or self._hub.stopping:
                raise StateError(_NOT_STORED)
            await asyncio.sleep(STORED_SECONDS)
        return self._status(key)

    async def Spending(self, request: pb.SpendingRequest, context: Context) -> pb.SpendingReply:
        caller = self._guard.caller(context, READERS)
        if not 0 < len(request.dataset) <= 64:
            raise HostileInput("A dataset's name has 1 to 64 characters.")
        journal, studies = self._hub.journal, None if caller.role is Role.OPERATOR else self._hub.shown.of(caller.name)
        spent = await journal.outage.call(lambda: journal.mirror.spending(request.dataset, studies))
        reply = pb.SpendingReply()
        for name, events in sorted(spent.items()):
            if name <= request.after:
                continue
            told = canonical(
                [[item.to_json(), item.noise.colluders, count] for item, count in sorted(events.items(), key=repr)]
            )
            if reply.participants and reply.ByteSize() + len(told) > MOST_BYTES:
                reply.more = True
                break
            reply.participants.add(participant=name, events=told)
        return reply

    async def Result(self, request: pb.ResultRequest, context: Context) -> AsyncIterator[pb.Chunk]:
        key = self._permitted(request.study, context)
        directory, names = self._results / key.hex(), list(self._hub.shown.status(key).results)
        if request.checkpoint:
            directory, names = checkpoint_directory(self._results, key, request.checkpoint), [MANIFEST, ARRAYS]
        if request.file.startswith(f"{FOLDER}/") and names and not request.checkpoint:
            journal = self._hub.journal
            data = await journal.outage.call(lambda: proof_file(journal.database, key, request.file))
            async for chunk in _chunks(data):
                yield chunk
            return
        if request.file not in names:
            raise HostileInput("The study has no result file of that name.")
        try:
            data = await asyncio.to_thread((directory / request.file).read_bytes)
        except FileNotFoundError as error:
            raise HostileInput("The study has no such checkpoint any more.", "Ask for the newest one.") from error
        async for chunk in _chunks(data):
            yield chunk


async def _chunks(data: bytes) -> AsyncIterator[pb.Chunk]:
    for start in range(0, max(len(data), 1), CHUNK_BYTES):
        yield pb.Chunk(data=data[start : start + CHUNK_BYTES], total=len(data))
