"""Whole studies over real gRPC with mutual TLS."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from support.federation import make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, running_client, running_server, submit, wait_for, wired
from veilsum.remote import connect
from veilsum.verification import verify_result
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.service.coordination import Coordination
from veilsum_coordinator.service.hub import Hub
from veilsum_node.errors import HostileInput
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_node.transport.channel import open_channel
from veilsum_participant.boundary.front import Answer, Directive, GiveConsent
from veilsum_participant.front.channel import GrpcChannel
from veilsum_participant.protocol.contributions import Contributions
from veilsum_participant.protocol.open_studies import OpenStudy
from veilsum_participant.session.channel import SiteChannel
from veilsum_participant.session.workers import KEPT, MOST_WORKERS, WAITING, Workers
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub


def test_a_study_runs_from_submission_to_result(tmp_path: Path) -> None:
    data = make_data("abcd", 40, 3)
    bed = make_bed(tmp_path, data)
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed))
        study = bed.compile(make_request(schema_of(3), epsilon=None)).to_bytes()
        key = submit(bed, stub, study)
        phases = [status.phase for status in stub.Watch(pb.ShowRequest(study=key), timeout=240)]
        status = stub.Show(pb.ShowRequest(study=key))
        assert status.phase == StudyPhase.FINISHED, (status.reason, status.refusals)
        assert phases[-1] == "finished"
        assert list(status.results) == ["arrays.safetensors", "manifest.json"]
        manifest = b"".join(chunk.data for chunk in stub.Result(pb.ResultRequest(study=key, file="manifest.json")))
        assert b'"statistics"' in manifest
        wait_for(lambda: not server.hub.ended[key].seats, "the end everywhere")


def _flipped(signature: bytes) -> bytes:
    return bytes([*signature[:-1], signature[-1] ^ 1])


def test_answers_and_consents_that_are_not_signed_for_are_refused_to_their_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told so, nothing of the round is lost, and the result's proof has the signatures that came in the end."""
    bed = make_bed(tmp_path, make_data("abc", 40, 3))
    answer, consent = GrpcChannel.answer, GrpcChannel.consent
    refused: list[grpc.StatusCode] = []

    def refuse(call: Callable[[], object]) -> None:
        with pytest.raises(grpc.RpcError) as raised:
            call()
        refused.append(raised.value.code())

    def faulty_answer(self: GrpcChannel, right: Answer) -> None:
        head = {"study": right.study, "round": right.round, "attempt": right.attempt}
        words, signature = right.words, right.signature
        for said, signed in (
            (words, _flipped(signature)), (words, b""), (words, bytes(300)), (words[:2], signature), ((), signature),
            ((*words, 0), signature), ((words[0] ^ 1, *words[1:]), signature), ((2**64 - 1, *words[1:]), signature),
        ):  # fmt: skip
            request = pb.AnswerRequest(answer=pb.MemberAnswer(words=said, signature=signed), **head)
            refuse(partial(self.stub.Answer, request, timeout=PATIENCE))
        answer(self, right)

    def faulty_consent(self: GrpcChannel, right: GiveConsent) -> None:
        head = {"study": right.study, "round": right.round, "attempt": right.attempt}
        secret, signature = right.consent, right.signature
        for given, signed in (
            (secret, _flipped(signature)), (secret, b""), (secret, bytes(300)), (_flipped(secret), signature),
            (b"", signature), (secret + secret, signature),
        ):  # fmt: skip
            request = pb.ConsentRequest(consent=given, signature=signed, **head)
            refuse(partial(self.stub.Consent, request, timeout=PATIENCE))
        consent(self, right)

    monkeypatch.setattr(GrpcChannel, "answer", faulty_answer)
    monkeypatch.setattr(GrpcChannel, "consent", faulty_consent)
    with ExitStack() as stack:
        _, address = stack.enter_context(running_server(bed))
        for site in bed.sites.values():
            stack.enter_context(running_client(site, address))
        identity = bed.kit.analyst.identity
        remote = stack.enter_context(connect(address, bed.analyst, identity, bed.clock()))
        key = remote.submit(bed.compile(make_request(schema_of(3), epsilon=None)), bed.analyst)
        *_, last = remote.watch(key)
        assert (last.phase, last.reason) == ("finished", "")
        remote.fetch(key, tmp_path / "out")
    assert refused == [grpc.StatusCode.INVALID_ARGUMENT] * (3 * (8 + 6))
    assert verify_result(tmp_path / "out", bed.analyst.authority).comparison.exact


def test_a_foreign_certificate_is_not_let_in(tmp_path: Path) -> None:
    data = make_data("ab", 1, 1)
    bed, other = make_bed(tmp_path / "one", data), make_bed(tmp_path / "two", data)
    with running_server(bed) as (_, address), open_channel(address, other.analyst) as channel:
        try:
            StudiesStub(channel).List(pb.ListRequest(), timeout=PATIENCE)
            code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            code = error.code()
        assert code is grpc.StatusCode.UNAVAILABLE


class FaultyRandom(RandomSource):
    """Randomness that fails once."""

    def __init__(self) -> None:
        self.failed = False

    def bytes(self, count: int) -> bytes:
        if not self.failed:
            self.failed = True
            raise ArithmeticError
        return SYSTEM_RANDOM.bytes(count)


def test_a_fault_in_a_participant_costs_an_attempt_and_not_the_participant(tmp_path: Path) -> None:
    """Whatever goes wrong in a session, the client comes back and its site goes on minding deadlines."""
    data = make_data("abc", 40, 3)
    bed = make_bed(tmp_path, data)
    faulty = bed.sites["b"].noise_random = FaultyRandom()
    with ExitStack() as stack:
        _, _, stub = stack.enter_context(wired(bed, Waits(grace=30)))
        study = bed.compile(make_request(schema_of(3), epsilon=1.0)).to_bytes()
        key = submit(bed, stub, study)
        last = list(stub.Watch(pb.ShowRequest(study=key), timeout=240))[-1]
    assert faulty.failed
    assert last.phase == "finished", last.reason
    assert [(item.attempts, list(item.cohort)) for item in last.rounds] == [(2, ["a", "b", "c"])]


def test_one_studys_slow_work_does_not_hold_another_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that computes one study for longer than another's consent may take still consents to the other in time."""
    data = make_data("abc", 40, 3)
    bed = make_bed(tmp_path, data)
    computed, slow = Contributions._compute, threading.Event()

    def compute(self: Contributions, opened: OpenStudy, *rest: Any) -> Any:
        if opened.study.name == "slow" and self._site.name == "b":
            slow.set()
            assert released.wait(PATIENCE)
        return computed(self, opened, *rest)

    released = threading.Event()
    monkeypatch.setattr(Contributions, "_compute", compute)
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed, Waits(consent=3, grace=5)))

        def ask(name: str) -> bytes:
            request = make_request(schema_of(3), epsilon=None).model_copy(update={"name": name})
            study = bed.compile(request).to_bytes()
            return submit(bed, stub, study)

        first = ask("slow")
        assert slow.wait(PATIENCE)
        second = ask("quick")
        machines = {key: server.hub.studies[key].machine for key in (first, second)}
        wait_for(lambda: machines[second].phase.over, "the quick study's end")
        assert machines[second].phase is StudyPhase.FINISHED, machines[second].reason
        assert not machines[first].phase.over
        released.set()
        wait_for(lambda: machines[first].phase.over, "the slow study's end")
        assert machines[first].phase is StudyPhase.FINISHED, machines[first].reason


def _put(workers: Workers, studies: list[bytes]) -> None:
    for number, study in enumerate(studies):
        workers.put(Directive(study=study, round=number))


def test_a_coordinator_that_floods_is_not_served() -> None:
    """Directives wait for their worker, but not without bound; nor may a coordinator name studies without bound."""
    hold = threading.Event()
    seen: list[int] = []

    def answer(directive: Directive) -> None:
        seen.append(directive.round)
        hold.wait(PATIENCE)

    workers = Workers(answer, lambda error: None)
    _put(workers, [bytes(32)])
    wait_for(lambda: seen == [0], "the first answer")
    with pytest.raises(HostileInput, match="faster"):
        _put(workers, [bytes(32)] * (WAITING + 1))
    with pytest.raises(HostileInput, match="The coordinator"):
        _put(workers, [number.to_bytes(32, "big") for number in range(1, MOST_WORKERS * (WAITING + 1) + 1)])
    assert len(workers._workers) == MOST_WORKERS
    workers.stop()
    hold.set()
    assert workers.end_within(PATIENCE)
    assert len(seen) <= MOST_WORKERS


@pytest.mark.parametrize(("size", "at_each"), [(KEPT, WAITING), (KEPT + 1, 2)])
def test_large_objects_that_come_along_do_not_wait_in_memory(size: int, at_each: int) -> None:
    """As many as there are directives that may wait would take a gibibyte; small ones spare a call."""
    hold, seen = threading.Event(), list[bytes | None]()

    def answer(directive: Directive) -> None:
        seen.append(directive.object)
        hold.wait(PATIENCE)

    workers, large = Workers(answer, lambda error: None), bytes(size)
    for number in range(WAITING):
        for study in range(MOST_WORKERS):
            workers.put(Directive(study=bytes([study]) * 32, round=number, object=large))
            wait_for(lambda least=study: len(seen) > least, "the first answers")  # type: ignore[misc]
    hold.set()
    wait_for(lambda: workers.idle, "the answers")
    assert len(seen) == MOST_WORKERS * WAITING
    assert seen[:MOST_WORKERS] == [large] * MOST_WORKERS
    assert seen.count(large) == at_each * MOST_WORKERS
    workers.stop()
    assert workers.end_within(PATIENCE)


def test_a_session_serves_any_number_of_studies_one_after_another() -> None:
    seen: list[bytes] = []
    workers = Workers(lambda directive: seen.append(directive.study), lambda error: None)
    keys = [number.to_bytes(32, "big") for number in range(2 * MOST_WORKERS * WAITING)]
    for start in range(0, len(keys), WAITING // 2):
        _put(workers, keys[start : start + WAITING // 2])
        wait_for(lambda: workers.idle, "the answers")
    assert sorted(seen) == keys
    assert len(workers._of) <= MOST_WORKERS * WAITING
    workers.stop()
    assert workers.end_within(PATIENCE)


CALLS = ("Fetch", "UploadStatus", "Upload", "Answer", "Consent", "Confirm")


def test_a_round_of_few_values_takes_three_calls_of_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for comes with what it takes; a release that was seen is told of with the next upload."""
    bed, calls, confirmed = make_bed(tmp_path, make_data("abc", 40, 3)), Counter[str](), []
    for method in CALLS:
        served = getattr(Coordination, method)

        def counted(self: Coordination, *rest: Any, _served: Any = served, _name: str = method) -> Any:
            calls[_name] += 1
            return _served(self, *rest)

        monkeypatch.setattr(Coordination, method, counted)
    confirm = Hub.confirm

    def noted(self: Hub, name: str, key: bytes, kind: Any, number: int, attempt: int) -> None:
        confirmed.append((name, kind, number))
        confirm(self, name, key, kind, number, attempt)

    monkeypatch.setattr(Hub, "confirm", noted)
    # What the clock tells it to confirm meanwhile depends on how busy the machine is.
    monkeypatch.setattr(SiteChannel, "flush", lambda self: None)
    rounds = 4
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed))
        request = make_request(schema_of(3), "fedsgd", epsilon=3.0)
        study = bed.compile(request.model_copy(update={"parameters": {"steps": rounds, "centre": False}}))
        key = submit(bed, stub, study.to_bytes())
        *_, last = stub.Watch(pb.ShowRequest(study=key), timeout=240)
        assert last.phase == "finished", last.reason
        wait_for(lambda: not server.hub.ended[key].seats, "the end everywhere")
        assert len(last.rounds) == rounds
        assert {calls[name] for name in ("Upload", "Answer", "Consent")} == {3 * rounds}
        assert calls["UploadStatus"] == 0
        assert calls["Fetch"] == 3 * 4, "the mirror, the study, the roster and the boxes of each"
        assert calls["Confirm"] == 3 * 2, "the end, and the last release, after which no upload came"
        told = {(name, number) for name, kind, number in confirmed if kind == pb.DIRECTIVE_KIND_RELEASED}
        assert told == {(name, number) for name in "abc" for number in range(1, rounds + 1)}
