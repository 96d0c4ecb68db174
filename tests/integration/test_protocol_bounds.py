"""What a site and a coordinator hold each other to: how long a reservation lasts, one context for all, a proven name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.channels import OpenChannel
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from veilsum.local.federation import LocalChannel, as_directive
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Label, hello_digest, load_credentials
from veilsum_participant.protocol.contributions import Contributions
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import parse_receipt, sign_receipt
from veilsum_proto import PROTOCOL_VERSIONS
from veilsum_proto import federation_pb2 as pb


def _bed(directory: Path, **policy: object) -> TestBed:
    data = make_data("abc")
    return make_bed(directory, data, **policy)


def _round(bed: TestBed) -> bytes:
    """A study in its first round, in which nobody has uploaded."""
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2), epsilon=None)), bed.analyst)
    local.prepare(key)
    with bed.hub.changing(key):
        assert bed.hub.studies[key].machine.start_round("statistics", ()) is not None
    return key


def _upload(bed: TestBed, change: Callable[[str, Payload], Payload] = lambda _, payload: payload) -> None:
    """Let every site answer its open directives; ``change`` alters what is uploaded."""

    class Channel(LocalChannel):
        def upload(self, study: bytes, payload: Payload) -> None:
            super().upload(study, change(self._name, payload))

    for name, core in bed.local.cores.items():
        for directive in bed.hub.directives(name):
            core.handle(as_directive(directive), Channel(bed.hub, name))


def _count(bed: TestBed, name: str, kind: Kind) -> int:
    return len(bed.sites[name].ledger.entries(kind=kind))


@pytest.mark.parametrize(("hours", "freed"), [(1, 1), (24, 0)])
def test_a_reservation_lasts_as_long_as_the_site_says(tmp_path: Path, hours: int, freed: int) -> None:
    """The coordinator names a deadline of more than an hour; the site's own ends the attempt before, if it is earlier."""
    bed = _bed(tmp_path, attempt_hours=hours)
    _round(bed)
    _upload(bed)
    assert _count(bed, "a", Kind.RESERVE) == 1
    bed.clock.now += 3600 + 60
    Contributions(bed.sites["a"]).expire()
    assert _count(bed, "a", Kind.FREE) == freed


@pytest.mark.parametrize("differs", [True, False])
def test_a_receipt_for_another_context_is_refused_to_its_sender(tmp_path: Path, differs: bool) -> None:
    """One member signs another context than the others: it hears of that at once, and nobody pays."""
    bed = _bed(tmp_path)
    key = _round(bed)

    def change(name: str, payload: Payload) -> Payload:
        if name != "c" or not differs:
            return payload
        other = dataclasses.replace(parse_receipt(payload.receipt.body), context=bytes(32))
        return dataclasses.replace(payload, receipt=sign_receipt(other, bed.sites["c"].credentials.signing_key))

    machine = bed.hub.studies[key].machine
    _upload(bed, change)
    if differs:
        assert ("c", "internal-error", 1) in machine.refusals
        assert machine.phase is StudyPhase.FAILED
        assert "3 are needed" in machine.reason
    else:
        assert machine.phase is StudyPhase.RUNNING
        assert machine.rounds[0].phase is RoundPhase.CHECKING
    assert [_count(bed, name, Kind.CHARGE) for name in "abc"] == [0, 0, 0]


@pytest.mark.parametrize("fault", ["", "relayed", "another challenge", "another role", "unsigned"])
def test_a_coordinator_proves_its_name_to_the_caller(tmp_path: Path, fault: str) -> None:
    """An answer that was made for another caller or another challenge, or by someone else, proves nothing."""
    bed = _bed(tmp_path)
    now = bed.clock()
    own = load_credentials(bed.kit.coordinator.identity, now)
    signer = bed.sites["b"].credentials if fault == "another role" else own

    def hello(request: pb.HelloRequest, timeout: float) -> pb.HelloReply:
        challenge = bytes(32) if fault == "another challenge" else request.challenge
        greeting = hello_digest(challenge, "relay" if fault == "relayed" else "a", signer.identity.name)
        signature = b"" if fault == "unsigned" else signer.signing_key.sign(Label.HELLO, greeting)
        certificate = signer.identity.certificate
        return pb.HelloReply(
            version=PROTOCOL_VERSIONS[-1], now=now, coordinator="coordinator", certificate=certificate, signature=signature
        )

    channel = OpenChannel(SimpleNamespace(**{f"{kind}_{other}": lambda *_, **__: None for kind in ("unary", "stream")
                                             for other in ("unary", "stream")}), bed.sites["a"].credentials, lambda: now)  # type: ignore[arg-type]  # fmt: skip
    channel.stub.Hello = hello  # type: ignore[assignment]
    if fault:
        with pytest.raises(HostileInput):
            channel.hello()
        assert channel.coordinator == ""
    else:
        channel.hello()
        assert channel.coordinator == own.identity.name
