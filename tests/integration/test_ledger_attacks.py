"""Attacks on receipts, mirror and consent that went through once; each ends where it should."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from support.certificates import DAY
from support.federation import make_bed, make_data, make_request, schema_of
from support.hostile import HostileChannel
from support.network import running_client, running_server, submit, wait_for
from veilsum.local.federation import LocalFederation, as_directive
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.protocol.rounds import RoundPhase
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import HostileInput
from veilsum_node.transport.channel import open_channel
from veilsum_participant.data.subjects import BUCKETS, bucket_subjects, number_subjects
from veilsum_participant.protocol.payloads import Payload
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.ledger.receipts import Receipt, SignedReceipt, parse_receipt, sign_receipt
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub


class Cohort:
    """A study of three sites, whose payloads a test sends as it likes."""

    def __init__(self, directory: Path) -> None:
        self.bed = make_bed(directory, make_data("abc"), budget=(50.0, 1e-5))
        self.local: LocalFederation = self.bed.local
        study = self.bed.compile(make_request(schema_of(2), min_cohort=2))
        self.label = study.tasks[0].label
        self.key = self.local.submit(study, self.bed.analyst)
        self.machine = self.bed.hub.studies[self.key].machine
        self.local.prepare(self.key)

    def start(self) -> None:
        with self.bed.hub.changing(self.key):
            assert self.machine.start_round(self.label, ()) is not None

    def payload(self, name: str) -> Payload:
        """What a site answers to its present assignment."""
        current = self.machine.round
        assert current is not None
        channel = HostileChannel()
        channel.objects = {pb.OBJECT_KIND_BROADCAST: current.broadcast}
        [directive] = [item for item in self.bed.hub.directives(name) if item.kind == pb.DIRECTIVE_KIND_CONTRIBUTE]
        self.local.cores[name].handle(as_directive(directive), channel)
        payload = channel.said[-1].values[1]
        assert isinstance(payload, Payload)
        return payload

    def upload(self, name: str, payload: Payload) -> None:
        for index, piece in enumerate(payload.pieces):
            self.bed.hub.upload(name, self.key, payload.attempt, index, bytes(piece))

    def send(self, name: str, payload: Payload, receipt: SignedReceipt | None = None) -> None:
        self.bed.hub.receipt(name, self.key, payload.attempt, part_of_receipt(receipt or payload.receipt))

    def sign(self, name: str, own: Receipt, **changes: Any) -> SignedReceipt:
        return sign_receipt(replace(own, **changes), self.bed.sites[name].credentials.signing_key)


def test_a_receipt_that_no_mirror_takes_is_refused_to_its_sender(tmp_path: Path) -> None:
    """Not to whoever sends the last one, who would be put out of the study for another's fault."""
    cohort = Cohort(tmp_path)
    cohort.start()
    payloads = {name: cohort.payload(name) for name in "abc"}
    own = parse_receipt(payloads["a"].receipt.body)
    other = replace(own.mechanism, noise=NoisePlan("local", int(Fraction(own.mechanism.noise.variance)) * 4, 1, 1))
    cohort.upload("a", payloads["a"])
    for change in (
        {"round": 9}, {"attempt": 9}, {"dataset": "other"}, {"unit": "subject"}, {"cohort_size": 2}, {"mechanism": other},
    ):  # fmt: skip
        with pytest.raises(HostileInput, match="not signed for this attempt"):
            cohort.send("a", payloads["a"], cohort.sign("a", own, **change))
    cohort.send("a", payloads["a"])
    for name in "bc":
        cohort.upload(name, payloads[name])
        cohort.send(name, payloads[name])
    current = cohort.machine.round
    assert current is not None
    assert current.phase is RoundPhase.CHECKING
    assert [seat.refusal for seat in cohort.machine.seats.values()] == ["", "", ""]


def test_a_receipt_number_that_was_shown_is_refused_to_its_sender(tmp_path: Path) -> None:
    cohort = Cohort(tmp_path)
    cohort.start()
    for name in "abc":
        payload = cohort.payload(name)
        cohort.upload(name, payload)
        cohort.send(name, payload)
    assert cohort.machine._numbers == {"a": 1, "b": 1, "c": 1}
    machine, current = cohort.machine, cohort.machine.round
    assert current is not None
    signed = current.receipts()[0]
    current.accumulator.uploads["a"].receipt = None  # as in a later attempt
    machine.rounds[-1].phase = RoundPhase.CONTRIBUTING
    with pytest.raises(HostileInput, match="number 1, but number 1 was shown"):
        machine.receipt("a", current.assignment.attempt, part_of_receipt(signed))


def test_receipts_that_the_mirror_refuses_end_the_study_with_a_name(tmp_path: Path) -> None:
    """A certificate that ran out since enrolment: no charge, no innocent refusal, and the reason says whose it was."""
    cohort = Cohort(tmp_path)
    cohort.start()
    payloads = {name: cohort.payload(name) for name in "abc"}
    for name in "abc":
        cohort.upload(name, payloads[name])
    for name in "ab":
        cohort.send(name, payloads[name])
    before = cohort.bed.clock.now
    cohort.bed.clock.now += 4000 * DAY
    try:
        cohort.send("c", payloads["c"])
    finally:
        cohort.bed.clock.now = before
    assert cohort.machine.phase is StudyPhase.FAILED
    assert "The certificate of a does not hold" in cohort.machine.reason
    assert [seat.refusal for seat in cohort.machine.seats.values()] == ["", "", ""]
    assert cohort.bed.hub.journal.mirror.entries(kind=Kind.RECEIPTS) == []
    assert all(not site.ledger.entries(kind=Kind.CHARGE) for site in cohort.bed.sites.values())


def test_a_consent_that_could_not_be_stored_is_sent_again(tmp_path: Path) -> None:
    """Its sender has paid by then: were it taken for unwanted, everyone would have paid for a sum that never opens."""
    bed = make_bed(tmp_path, make_data("abc"), budget=(50.0, 1e-5))
    trigger = "CREATE TRIGGER full BEFORE UPDATE ON ledger_receipt BEGIN SELECT RAISE(ABORT, 'no room'); END"
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, Waits(grace=30)))
        database = server.hub.journal.database
        with database.transaction() as connection:
            connection.exec_driver_sql(trigger)
        for name in "abc":
            stack.enter_context(running_client(bed.sites[name], address))
        stub = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        data = bed.compile(make_request(schema_of(2))).to_bytes()
        machine = server.hub.studies[submit(bed, stub, data)].machine
        wait_for(lambda: all(site.ledger.entries(kind=Kind.CHARGE) for site in bed.sites.values()), "every charge")
        with database.transaction() as connection:
            connection.exec_driver_sql("DROP TRIGGER full")
        wait_for(lambda: machine.phase.over, "the study's end")
        assert machine.phase is StudyPhase.FINISHED, machine.reason
        assert server.hub.journal.mirror.verify().entries == 4  # genesis, receipts, consent, release
    assert all(len(site.ledger.entries(kind=Kind.CHARGE)) == 1 for site in bed.sites.values())


@pytest.mark.parametrize(
    "identifiers",
    [
        pa.array(["Ren\u00e9", "Rene\u0301"]),
        pa.array([0.0, -0.0]),
        pa.array([0.0, -0.0], pa.float32()),
    ],
)
def test_one_person_is_not_two_by_how_it_is_coded(identifiers: Any) -> None:
    """Two subjects of one person would let it change a sum by twice the sensitivity that is charged."""
    numbers, missing = number_subjects([identifiers])
    assert numbers.tolist() == [0, 0]
    assert not missing.any()


@pytest.mark.parametrize(
    "identifiers",
    [
        pa.array(np.array([np.nan, 7.0, np.nan, 7.0, -np.nan])),
        pa.array(np.array([np.nan, 7.0, np.nan, 7.0, -np.nan], dtype=np.float32)),
        pa.array([None, 7, None, 7, None]),
        pa.array(["", "7", None, "7", "N/A"]),
        pa.array(["NaN", "7", "none", "7", "?"], pa.large_string()),
    ],
)
def test_nobody_is_not_one_person(identifiers: Any) -> None:
    """Records of several persons as one subject would let each of them change it by twice what is charged."""
    numbers, missing = number_subjects([identifiers])
    assert numbers.tolist() == [1, 0, 2, 0, 3]
    assert missing.tolist() == [True, False, True, False, True]
    buckets = bucket_subjects(identifiers)
    assert buckets[[0, 2, 4]].tolist() == [-1, -1, -1]
    assert 0 <= buckets[1] == buckets[3] < BUCKETS
