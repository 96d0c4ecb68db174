"""A coordinator as analysts and operators call it: plain values in and out, typed errors, results checked on disk.

Nothing here prints. Text that came over the wire is made printable, and file names that could leave a directory are refused.
"""

import itertools
import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import grpc

from veilsum.privacy_loss import finite, read_spending
from veilsum_node.errors import HostileInput, Misuse, StateError
from veilsum_node.file_names import write_files
from veilsum_node.identity import Credentials, Label
from veilsum_node.randomness import SYSTEM_RANDOM, spread
from veilsum_node.telemetry.logs import printable
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import explain, hello, split_address
from veilsum_node.transport.dialling import AwayError, BrokenOffError, as_route
from veilsum_node.transport.route import Route
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.results.proof_files import STUDY_FILE, read_entries
from veilsum_privacy.results.result import ARRAYS, MANIFEST, Result, load_result
from veilsum_privacy.study.study import Study, study_digest
from veilsum_proto import MAX_OBJECT_BYTES
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

SHORTEST_ID = 4
"""Hexadecimal digits that name a study at least."""

PATIENCE_SECONDS = 300.0
"""How long a watched coordinator may be away, say for a restart."""

RESTART_SECONDS = 60.0
"""How long a call waits for a coordinator that was there a moment ago."""

CALL_SECONDS = 15.0

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds between the tries of a call."""

OVER = ("finished", "failed", "aborted")

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


_Reply = TypeVar("_Reply")

LOG = logging.getLogger("veilsum.remote")

MOST_LISTED = 2**20
"""Studies after which no more are asked for, whatever a coordinator says."""


@dataclass(frozen=True)
class RoundInfo:
    """One round of a study, as the coordinator reports it; ``seconds`` are 0 unless it is released."""

    round: int
    label: str
    phase: str
    attempts: int
    cohort: tuple[str, ...]
    bytes_received: int
    seconds: float


@dataclass(frozen=True)
class RefusalInfo:
    """A participant's refusal: round 0 is the study itself."""

    participant: str
    code: str
    round: int


@dataclass(frozen=True)
class StudyInfo:
    """A study's state.

    Attributes:
        study: its digest in hexadecimal.
        phase: enrolling, sealing, running, finished, failed or aborted.
        submitted: Unix seconds.
        progress: 0 to 1.
        results: names of the result's files.
        declared, released: releases that the study declares, and those so far.
        epsilon, epsilon_spent: what the former cost, and the latter; None without noise.
        rounds: the newest; of a study in a list the last.
        checkpoints: rounds whose models can be fetched, ascending.
        bytes_received: of all rounds; ``seconds``: of those that are released.
    """

    study: str
    name: str
    method: str
    analyst: str
    phase: str
    reason: str
    submitted: int
    progress: float
    participants: tuple[str, ...]
    enrolled: tuple[str, ...]
    refusals: tuple[RefusalInfo, ...]
    rounds: tuple[RoundInfo, ...]
    results: tuple[str, ...]
    declared: int = 0
    released: int = 0
    epsilon: float | None = None
    epsilon_spent: float | None = None
    delta: float = 0.0
    checkpoints: tuple[int, ...] = ()
    bytes_received: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, status: pb.StudyStatus) -> "StudyInfo":
        """Read a status message."""

        def names(values: Any) -> tuple[str, ...]:
            return tuple(printable(value) for value in values)

        refusals = (RefusalInfo(printable(item.participant), printable(item.code), item.round) for item in status.refusals)
        rounds = (
            RoundInfo(
                item.round, printable(item.label), printable(item.phase), item.attempts, names(item.cohort),
                item.bytes_received, round(item.seconds, 3),
            )
            for item in status.rounds
        )  # fmt: skip
        return cls(
            study=status.study.hex(),
            name=printable(status.name),
            method=printable(status.method),
            analyst=printable(status.analyst),
            phase=printable(status.phase),
            reason=printable(status.reason),
            submitted=status.submitted,
            progress=min(max(status.progress, 0.0), 1.0) if status.progress == status.progress else 0.0,
            participants=names(status.participants),
            enrolled=names(status.enrolled),
            refusals=tuple(refusals),
            rounds=tuple(rounds),
            results=tuple(status.results),
            declared=status.declared,
            released=status.released,
            epsilon=finite(status.epsilon) if status.HasField("epsilon") else None,
            epsilon_spent=finite(status.epsilon_spent) if status.HasField("epsilon_spent") else None,
            delta=finite(status.delta) or 0.0,
            checkpoints=tuple(status.checkpoints),
            bytes_received=status.bytes_received,
            seconds=round(finite(status.seconds) or 0.0, 3),
        )

    @property
    def silent(self) -> tuple[str, ...]:
        """Invited participants that neither enrolled nor refused."""
        refused = {item.participant for item in self.refusals}
        return tuple(name for name in self.participants if name not in self.enrolled and name not in refused)

    @property
    def over(self) -> bool:
        """Whether nothing more happens."""
        return self.phase in OVER

    def to_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        return asdict(self)


@dataclass(frozen=True)
class CoordinatorInfo:
    """A coordinator by its proven name, and the participants that it has seen since it started."""

    coordinator: str
    connected: tuple[str, ...]
    known: tuple[str, ...]
    received: dict[str, int]
    """Bytes of contributions received from each, of everybody's studies: told to operators alone, as is ``seen``."""

    seen: dict[str, int] = field(default_factory=dict)
    """When the last session of each began or ended, Unix seconds."""


class Remote:
    """The ``Studies`` service of one coordinator; made by :func:`connect`.

    A coordinator that restarts meanwhile is waited for, as participants do. Every method raises ``UnreachableError`` if it
    stays away, and ``Misuse`` or ``StateError`` with the
    coordinator's own words if it rejects the call.
    """

    def __init__(self, channel: grpc.Channel, coordinator: str, way: Route, identity: Path) -> None:
        self._stub = StudiesStub(channel)
        self._coordinator, self._way, self._identity = coordinator, way, identity

    def describe(self) -> CoordinatorInfo:
        """Who the coordinator is and who is connected."""
        reply = self._called(lambda: self._stub.Describe(pb.DescribeRequest(), timeout=CALL_SECONDS))
        seen = sorted((printable(item.name), item.connected) for item in reply.participants)
        return CoordinatorInfo(
            self._coordinator,
            connected=tuple(name for name, connected in seen if connected),
            known=tuple(name for name, _ in seen),
            received={printable(item.name): item.bytes_received for item in reply.participants},
            seen={printable(item.name): item.last_seen for item in reply.participants},
        )

    def spending(self, dataset: str) -> dict[str, Counter[Mechanism]] | None:
        """What the caller's studies, an operator all of them, have released of a dataset, by participant: mechanisms and how
        often.

        Returns:
            None where the coordinator cannot tell: its software is too old.

        Raises:
            HostileInput: the answer is malformed.
        """

        def ask() -> dict[str, Counter[Mechanism]] | None:
            found, after, more = dict[str, Counter[Mechanism]](), "", True
            while more:
                try:
                    reply = self._stub.Spending(pb.SpendingRequest(dataset=dataset, after=after), timeout=CALL_SECONDS)
                except grpc.RpcError as error:
                    if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        return None
                    raise
                found |= {printable(item.participant): read_spending(item.events) for item in reply.participants}
                last = max((item.participant for item in reply.participants), default="")
                after, more = last, reply.more and last > after
            return found

        return self._called(ask)

    def submit(self, study: Study, analyst: Credentials) -> bytes:
        """Sign and submit a study; returns its digest."""
        data = study.to_bytes()
        digest = study_digest(data)
        signature = analyst.signing_key.sign(Label.STUDY, data)
        message = pb.StudyObject(study=data, signature=signature, certificate=analyst.identity.certificate)
        tries = itertools.count()

        def send() -> bytes:
            again = next(tries) > 0
            try:
                return bytes(self._stub.Submit(pb.SubmitRequest(study=message), timeout=CALL_SECONDS).study)
            except grpc.RpcError as error:
                if not again or not isinstance(error, grpc.Call) or error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
                    raise
                if all(item.study != digest for item in self._listed(digest.hex())):
                    raise
                return digest  # an earlier try got through, and its answer was lost

        return self._called(send)

    def list(self) -> list[StudyInfo]:
        """The caller's studies, oldest first, each with the last of its rounds; an operator's are all."""
        return [*self._list("")]

    def _list(self, begins: str) -> Sequence[StudyInfo]:
        return [StudyInfo.parse(item) for item in self._called(lambda: self._listed(begins))]

    def _listed(self, begins: str) -> Sequence[pb.StudyStatus]:
        """Studies whose digests begin with some hexadecimal digits, or also others, from reply to reply."""
        found, more = deque[pb.StudyStatus](), True
        while more and len(found) < MOST_LISTED:
            before = found[0].study if found else b""
            reply = self._stub.List(pb.ListRequest(before=before, begins=begins), timeout=CALL_SECONDS)
            found.extendleft(reversed(reply.studies))
            more = reply.more and len(reply.studies) > 0
        return found

    def find(self, prefix: str) -> bytes:
        """The digest of the one study whose hexadecimal digest begins with ``prefix``.

        Raises:
            Misuse: not hexadecimal, too short, or no study or several begin so.
        """
        return find_study(prefix, self._list)

    def show(self, study: bytes) -> StudyInfo:
        """A study's state."""
        return StudyInfo.parse(self._called(lambda: self._stub.Show(pb.ShowRequest(study=study), timeout=CALL_SECONDS)))

    def abort(self, study: bytes) -> StudyInfo:
        """Stop a study; returns its state after."""
        return StudyInfo.parse(self._called(lambda: self._stub.Abort(pb.ShowRequest(study=study), timeout=CALL_SECONDS)))

    def watch(self, study: bytes) -> Iterator[StudyInfo]:
        """Yield the study's state at every change until it is over; a coordinator that restarts is waited for."""
        away_since: float | None = None
        while True:
            call = self._stub.Watch(pb.ShowRequest(study=study))
            try:
                for status in call:
                    away_since = None
                    yield StudyInfo.parse(status)
                return
            except grpc.RpcError as error:
                code = error.code() if isinstance(error, grpc.Call) else None
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if code not in _AWAY or now - away_since > PATIENCE_SECONDS:
                    raise explain(error, self._way, self._identity) from error
            finally:
                # a call that is left open, by an interrupt say, would be waited for as the channel closes
                call.cancel()  # type: ignore[no-untyped-call]
            time.sleep(1.0)

    def fetch(self, study: bytes, directory: Path, *, proof: bool = True) -> Result:
        """Fetch the files of a finished study's result into ``directory``, the manifest last, and check their hashes.

        Args:
            study: its digest.
            directory: must hold no result yet.
            proof: whether to fetch what :func:`veilsum.verification.verify_result` needs, if the result has a proof.

        Raises:
            StateError: the study has no result, or the directory holds one or cannot be written.
            HostileInput: a file name or size is not acceptable, or a file is not the one that the manifest names.
        """
        return write_result(self.show(study), lambda name: self._file(study, name), directory, proof=proof)

    def fetch_checkpoint(self, study: bytes, directory: Path, number: int | None = None) -> tuple[Result, int]:
        """Fetch the model that a study kept after a round, the newest one by default, and check its hashes.

        Returns:
            the checkpoint and its round.

        Raises:
            StateError: the study has kept no such model, or the directory holds a result or cannot be written.
            HostileInput: a size is not acceptable, or a file is not the one that the manifest names.
        """
        chosen = choose_checkpoint(self.show(study), number)
        return write_checkpoint(lambda name: self._file(study, name, chosen), directory), chosen

    def _file(self, study: bytes, name: str, checkpoint: int = 0) -> bytes:
        def read() -> bytes:
            parts: list[bytes] = []
            size, total = 0, 0
            for chunk in self._stub.Result(pb.ResultRequest(study=study, file=name, checkpoint=checkpoint)):
                size, total = size + len(chunk.data), chunk.total
                if max(size, total) > MAX_OBJECT_BYTES:
                    raise HostileInput("A result file is larger than allowed.")
                parts.append(chunk.data)
            if size != total:
                raise HostileInput("A result file ended early.", "Fetch the result again.")
            return b"".join(parts)

        return self._called(read)

    def _called(self, call: Callable[[], _Reply]) -> _Reply:
        """The call's answer, asked for again while the coordinator is away; each may be made more than once."""
        return _patiently(call, self._way, self._identity, met=True)


def _patiently(call: Callable[[], _Reply], way: Route, identity: Path, *, met: bool) -> _Reply:
    """The call's answer, asked for again while the coordinator is away.

    Args:
        call: may be made more than once.
        way, identity: explain why it failed.
        met: whether the coordinator was there before: an address at which nothing ever was is not waited for.
    """
    end, pause = time.monotonic() + RESTART_SECONDS, FIRST_PAUSE
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            found = explain(error, way, identity)
            met = met or isinstance(found, BrokenOffError)
            if not (met and isinstance(found, AwayError)) or time.monotonic() + pause > end:
                raise found from error
            LOG.warning("%s Trying again for up to %d s.", found.message, RESTART_SECONDS)
        time.sleep(spread(pause, SYSTEM_RANDOM))
        pause = min(2 * pause, LONGEST_PAUSE)


_LISTS = "See `veilsum study list`, or studies() of the federation."


def find_study(prefix: str, listed: Callable[[str], Sequence[StudyInfo]]) -> bytes:
    """The digest of the one study that a prefix names; arguments and errors as of :meth:`Remote.find`."""
    text = str(prefix).lower()
    if not SHORTEST_ID <= len(text) <= 64 or not re.fullmatch("[0-9a-f]+", text):
        raise Misuse(
            f"A study is named by {SHORTEST_ID} to 64 hexadecimal digits.",
            _LISTS,
        )
    if len(text) == 64:
        return bytes.fromhex(text)
    found = [item.study for item in listed(text) if item.study.startswith(text)]
    if len(found) != 1:
        what = "No study begins" if not found else f"{len(found)} studies begin"
        advice = _LISTS if not found else "Give more digits."
        raise Misuse(f"{what} with {text}.", advice)
    return bytes.fromhex(found[0])


def write_result(info: StudyInfo, read: Callable[[str], bytes], directory: Path, *, proof: bool) -> Result:
    """Write a finished study's files, the manifest last, and load them.

    Args:
        read: gives a file by its name.
        directory: must hold no result yet, and no other file of a name that the result has.
        proof: whether to write the result's proof as well.

    Raises:
        StateError, HostileInput: as :meth:`Remote.fetch`.
    """
    if not info.results:
        raise StateError(f"The study has no result: it is {info.phase}.", info.reason)
    _require_vacant(directory)
    names = sorted(info.results, key=lambda name: (name == MANIFEST, name))
    if unknown := [name for name in names if name not in (ARRAYS, MANIFEST)]:
        raise HostileInput(
            f"The coordinator names a result file {printable(unknown[0])[:80]!r}, which no result has.",
            "Ask its operator; or install the coordinator's version, if that is newer.",
        )
    for name in names:
        data = read(name)
        if proof and name == MANIFEST:
            for part in _proof_files(data):
                write_files(directory, {part: read(part)})
        write_files(directory, {name: data})
    return load_result(directory)


def choose_checkpoint(info: StudyInfo, number: int | None) -> int:
    """The round whose model is meant, the newest by default.

    Raises:
        StateError: the study kept none of that round.
    """
    chosen = number if number is not None else max(info.checkpoints, default=0)
    if chosen not in info.checkpoints:
        kept = ", ".join(map(str, info.checkpoints)) or "none; the parameter checkpoint_every sets how often"
        raise StateError("The study kept no checkpoint of that round.", f"Rounds with a checkpoint: {kept}.")
    return chosen


def write_checkpoint(read: Callable[[str], bytes], directory: Path) -> Result:
    """Write the files of a model in between, and load it.

    Raises:
        StateError, HostileInput: as :meth:`Remote.fetch_checkpoint`.
    """
    _require_vacant(directory)
    for name in (ARRAYS, MANIFEST):
        write_files(directory, {name: read(name)})
    return load_result(directory)


def _require_vacant(directory: Path) -> None:
    if os.path.lexists(directory / MANIFEST):
        raise StateError(f"{directory} holds a result already.", "Choose another directory.")


def _proof_files(manifest: bytes) -> list[str]:
    """The files of a result's proof; none of a result that has no proof.

    Raises:
        HostileInput: the manifest is malformed.
    """
    try:
        entries = read_entries(json.loads(manifest))
    except (ValueError, AttributeError, RecursionError) as error:
        raise HostileInput("The result's manifest is malformed.", "Fetch the result again.") from error
    if not entries:
        return []
    return [STUDY_FILE, *(name for entry in entries for name in entry.files)]


@contextmanager
def connect(way: Route | str, credentials: Credentials, identity: Path, at: int) -> Iterator[Remote]:
    """Connect to a coordinator, agree on the protocol's version, and let it prove its name.

    Args:
        way: the route to it, or host:port for the straight one.
        credentials: of the caller, loaded from ``identity``.
        identity: the caller's identity directory.
        at: the time to judge the coordinator's certificate by, Unix seconds.

    Raises:
        UnreachableError: nothing listens there, or TLS failed; says which and why.
        StateError: no common version.
        HostileInput: the coordinator does not prove its name.
    """
    way = as_route(way)
    split_address(way.address)
    with open_channel(way, credentials) as channel:
        greeting = _patiently(lambda: hello(channel, credentials, at), way, identity, met=False)
        yield Remote(channel, greeting.coordinator, way, identity)
