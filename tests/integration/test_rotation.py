"""Certificates and keys renewed in the middle of a running study, over real gRPC: no round is lost and all ledgers verify."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import PATIENCE, submit, wait_for, wired
from support.renewing import renew, renew_with_new_key
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.identity import key_fingerprint
from veilsum_node.identity.certificate import load_certificate, p256_key
from veilsum_node.identity.tls import CERTIFICATE_FILE
from veilsum_participant.protocol import core
from veilsum_participant.protocol.contributions import Contributions
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

ROUNDS = 12
SITES = "abc"


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    data = make_data(SITES, 40, 3)
    return make_bed(tmp_path, data)


class Gate:
    """Holds one site's computation of chosen rounds until it is told to go on: so a renewal falls where a test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rounds: int) -> None:
        self.reached = {number: threading.Event() for number in rounds}
        self.passed = {number: threading.Event() for number in rounds}
        self._seen = 0
        computed = Contributions._compute

        def compute(contributions: Contributions, *arguments: Any) -> Any:
            if contributions._site.name == SITES[-1]:
                self._seen += 1
                if self._seen in self.reached:
                    self.reached[self._seen].set()
                    assert self.passed[self._seen].wait(PATIENCE)
            return computed(contributions, *arguments)

        monkeypatch.setattr(Contributions, "_compute", compute)


class Late:
    """Holds whoever asks first what the sum of a round is checked by until it is told to go on, and lets it greet anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.reached, self.passed = threading.Event(), threading.Event()
        first = threading.Lock()

        def asked(own: Any, directive: Any, key: bytes, channel: Any) -> Any:
            if directive.round == number and first.acquire(blocking=False):
                self.reached.set()
                assert self.passed.wait(PATIENCE)
                assert channel.greet_again()  # as a session that was opened since would have
            return answered(own, directive, key, channel)

        answered = core.ParticipantCore._check
        monkeypatch.setattr(core.ParticipantCore, "_check", asked)


def ask(stub: StudiesStub, bed: TestBed) -> bytes:
    request = make_request(schema_of(3, max_records=100), "fedsgd", 2.0)
    study = bed.compile(request.model_copy(update={"parameters": {"centre": False, "steps": ROUNDS}})).to_bytes()
    return submit(bed, stub, study)


def shown(bed: TestBed, name: str) -> int:
    """When the certificate ends that a site shows."""
    return bed.sites[name].credentials.identity.not_after


def test_renewals_in_the_middle_of_a_study_lose_no_round(
    bed: TestBed, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veilsum")
    gate, late = Gate(monkeypatch, 3, 5, 7, 9), Late(monkeypatch, 11)
    kit, clock, parties = bed.kit, bed.clock, {party.name: party for party in bed.kit.participants}
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed, Waits(grace=30)))
        key = ask(stub, bed)
        genuine = server.hub.credentials

        assert gate.reached[3].wait(PATIENCE)  # the coordinator: the same key, certified anew
        renew(kit, kit.coordinator, clock)
        wait_for(lambda: server.hub.credentials.identity.not_after > genuine.identity.not_after, "the renewed certificate")
        gate.passed[3].set()

        assert gate.reached[5].wait(PATIENCE)  # a participant that has nothing to do, and one in the middle of its computation
        ends = {name: shown(bed, name) for name in "ac"}
        for name in "ac":
            renew(kit, parties[name], clock, days=500)
        wait_for(lambda: shown(bed, "a") > ends["a"], "the renewed certificate of a")
        time.sleep(1.5)
        assert shown(bed, "c") == ends["c"]  # it is not quiet there
        gate.passed[5].set()
        wait_for(lambda: shown(bed, "c") > ends["c"], "the renewed certificate of c")

        assert gate.reached[7].wait(PATIENCE)  # the coordinator: a new key, with an upload of this round under way
        renew_with_new_key(kit, kit.coordinator, clock)
        wait_for(lambda: server.hub.credentials.signing_key.fingerprint != genuine.signing_key.fingerprint, "the new key")
        gate.passed[7].set()

        assert gate.reached[9].wait(PATIENCE)  # a participant: a new key has to wait
        former = bed.sites["b"].credentials
        renew_with_new_key(kit, parties["b"], clock)
        wait_for(lambda: "The identity holds a new key" in caplog.text, "the refusal of a new key")
        assert bed.sites["b"].credentials is former
        gate.passed[9].set()

        assert late.reached.wait(PATIENCE)  # the coordinator: another key, after it countersigned and before all have heard it
        wait_for(lambda: len(server.hub.studies[key].machine.rounds[-1].answers) == len(SITES) - 1, "the others' answers")
        second = server.hub.credentials.signing_key.fingerprint
        renew_with_new_key(kit, kit.coordinator, clock)
        wait_for(lambda: server.hub.credentials.signing_key.fingerprint != second, "the third key")
        late.passed.set()

        last = list(stub.Watch(pb.ShowRequest(study=key), timeout=240))[-1]
        assert last.phase == "finished", last.reason
        assert [(item.attempts, "".join(item.cohort), item.phase) for item in last.rounds] == [(1, "abc", "released")] * ROUNDS
        wait_for(lambda: bed.sites["b"].credentials is not former, "the new key, once the study has ended")
        wait_for(lambda: {"a", "b", "c"} <= {s.name for s in server.hub.sessions.values() if s.connected}, "all sessions")
        mirror: Mirror = server.hub.journal.mirror
        mirrored = mirror.verify(authority=genuine.authority)
        named, again = mirror.entries(kind=Kind.KEY)
        rounds = [entry.round for entry in mirror.entries(kind=Kind.RELEASE_SEEN)]
        assert rounds == list(range(1, ROUNDS + 1))
        assert next(entry.round for entry in mirror.entries(first=named.seq + 1)) == 7
        assert next(entry.round for entry in mirror.entries(first=again.seq + 1)) == 11
        certified = load_certificate((kit.coordinator.identity / CERTIFICATE_FILE).read_bytes()).public_key()
        assert len(set(mirrored.keys)) == 3
        assert mirrored.keys[-1] == key_fingerprint(p256_key(certified, "coordinator's"))
    for name, site in bed.sites.items():
        site.ledger.verify(authority=genuine.authority)
        assert len(site.ledger.entries(kind=Kind.CHARGE)) == ROUNDS, name
        assert len(site.ledger.entries(kind=Kind.FREE)) == 0, name
        assert len(site.ledger.entries(kind=Kind.KEY)) == (name == "b"), name
