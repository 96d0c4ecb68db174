"""Certificates that end: each refusal names whose it is and the date, where an operator reads it."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.channels import OpenChannel
from support.federation import TestBed, make_bed, make_data, make_request, schema_of
from support.network import running_client, running_server, wait_for
from support.renewing import renew, sign_again
from veilsum_coordinator.protocol.members import Members
from veilsum_node.errors import ConfigurationError, Refusal
from veilsum_node.identity import CertificateExpired, Role, load_credentials
from veilsum_node.identity.certificate import certificate_end, moment
from veilsum_node.identity.files import replace_file
from veilsum_node.identity.provision import Party
from veilsum_node.identity.renewal import DAY
from veilsum_node.identity.tls import CERTIFICATE_FILE
from veilsum_node.transport.channel import open_channel
from veilsum_node.transport.connection import UnreachableError, probe_tls
from veilsum_participant.boundary.front import ObjectKind, Status
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.protocol.open_studies import check_certificates, load_open_study
from veilsum_participant.session.channel import UndeliveredError
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.roster import enrol
from veilsum_privacy.study.study import study_digest


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data("ab", 1, 1))


def expire(bed: TestBed, party: Party) -> str:
    """Give a party a certificate that has ended; returns when."""
    replace_file(party.identity / CERTIFICATE_FILE, sign_again(bed.kit, party, bed.clock, days=1, at=bed.clock() - 3 * DAY))
    return moment(bed.clock() - 2 * DAY)


def test_an_own_certificate_that_has_ended_stops_the_start(bed: TestBed) -> None:
    for party, role in ((bed.kit.coordinator, Role.COORDINATOR), (bed.kit.participants[0], Role.PARTICIPANT)):
        ended = expire(bed, party)
        with pytest.raises(ConfigurationError, match=f"{role} {party.name} has expired: it ended on {ended}"):
            load_credentials(party.identity, bed.clock(), role)


def test_the_coordinators_own_is_named_to_its_callers(bed: TestBed, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It serves on with a certificate that ends under it; a client's handshake names it by its date."""
    end = bed.clock() + 2
    short = sign_again(bed.kit, bed.kit.coordinator, bed.clock, days=1, at=end - DAY)
    replace_file(bed.kit.coordinator.identity / CERTIFICATE_FILE, short)
    with running_server(bed) as (_, address):
        wait_for(lambda: time.time() > end + 1, "its end")
        with pytest.raises(UnreachableError, match=rf"has expired: CN=coordinator, .* to {moment(end)}"):
            probe_tls(address, bed.kit.participants[0].identity)
        bed.sites["a"].clock = lambda: int(time.time())
        with running_client(bed.sites["a"], address):
            wait_for(lambda: f"to {moment(end)}" in caplog.text, "the participant's log")
        bed.clock.now = end + 1
        text = f"the certificate of coordinator coordinator, its own, has expired: it ended on {moment(end)}"
        wait_for(lambda: text in caplog.text, "the coordinator's log")


def test_a_participants_that_the_coordinators_handshake_refuses(bed: TestBed) -> None:
    party = bed.kit.participants[0]
    ended = expire(bed, party)
    message = f"refused this party's certificate: it has expired, it ended on {ended}"
    with running_server(bed) as (_, address), pytest.raises(UnreachableError, match=message):
        probe_tls(address, party.identity)


def test_a_caller_whose_certificate_ends_during_its_session(bed: TestBed, caplog: pytest.LogCaptureFixture) -> None:
    credentials = bed.sites["a"].credentials
    ends = moment(credentials.identity.not_after)
    with running_server(bed) as (_, address), open_channel(address, credentials) as raw:
        channel = OpenChannel(raw, credentials, bed.clock)
        channel.hello()
        # the handshake went by the system's clock; what follows goes by this one
        bed.clock.now = credentials.identity.not_after + 1
        with pytest.raises(UndeliveredError) as raised:
            channel.fetch(ObjectKind.MIRRORED, bytes(32))
        assert raised.value.status is Status.UNAUTHENTICATED
        assert f"participant a has expired: it ended on {ends}" in raised.value.details
    assert f"rejected (unauthenticated): The certificate of participant a has expired: it ended on {ends}" in caplog.text


def test_a_session_ends_with_its_own_certificate_and_comes_back_with_the_next(
    bed: TestBed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "veilsum")
    site, party = bed.sites["a"], bed.kit.participants[0]
    ends, now = site.credentials.identity.not_after, [bed.clock()]
    site.clock = lambda: now[0]
    with running_server(bed) as (server, address), running_client(site, address):
        wait_for(lambda: "a" in server.hub.sessions and server.hub.sessions["a"].connected, "the session")
        now[0] = ends + 1
        text = f"ended: The certificate of participant a has expired: it ended on {moment(ends)}"
        wait_for(lambda: text in caplog.text, "the end of the session")
        wait_for(lambda: not server.hub.sessions["a"].connected, "the end at the coordinator")
        renew(bed.kit, party, bed.clock, days=500)
        now[0] = bed.clock()
        wait_for(lambda: server.hub.sessions["a"].connected, "the next session")
        assert site.credentials.identity.not_after > ends


def test_a_coordinators_that_ends_in_a_session_is_asked_for_again(bed: TestBed) -> None:
    """Renewed, the session goes on; not renewed, it ends with a word on whose it is and since when."""
    site = bed.sites["a"]
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed))
        raw = stack.enter_context(open_channel(address, site.credentials))
        channel = OpenChannel(raw, site.credentials, bed.clock)
        channel.hello()
        first, end = channel.coordinator_certificate, channel.coordinator_end
        assert not channel.greet_again()
        later = OpenChannel(raw, site.credentials, lambda: end + 1)
        later.coordinator = "coordinator"
        with pytest.raises(CertificateExpired, match=f"coordinator coordinator has expired: it ended on {moment(end)}"):
            later.greet_again()
        renew(bed.kit, bed.kit.coordinator, bed.clock, days=600)
        wait_for(lambda: server.hub.credentials.identity.not_after > end, "the renewal")
        assert channel.greet_again()
        assert channel.coordinator_certificate != first
        assert later.greet_again()


def test_a_study_does_not_outlive_the_certificates_of_its_roster(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bed = make_bed(tmp_path, make_data("abc"))
    party = bed.kit.participants[2]
    short = sign_again(bed.kit, party, bed.clock, days=2)
    replace_file(party.identity / CERTIFICATE_FILE, short)
    site = bed.sites["c"]
    site.renew(load_credentials(party.identity, bed.clock()))
    ends = site.credentials.identity.not_after
    local = bed.local
    key = local.submit(bed.compile(make_request(schema_of(2)).model_copy(update={"expires_hours": 72})), bed.analyst)
    local.prepare(key)
    assert f"certificate that expires on {moment(ends)}" in caplog.text
    assert caplog.text.count("certificate that expires on") == 1  # the others' outlive the study
    bed.clock.now = ends + 1
    renew(bed.kit, party, bed.clock)
    site.renew(load_credentials(party.identity, bed.clock()))  # shown from now on; the roster keeps the other
    for other in bed.sites.values():
        with other.database.reading() as connection:
            members = load_open_study(connection, other, key).roster(other).members
        with pytest.raises(Refusal, match=f"participant c has expired: it ended on {moment(ends)}"):
            check_certificates(members, other)


def test_one_whose_certificate_ended_before_the_roster_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bed = make_bed(tmp_path, make_data("abc"))
    site = bed.sites["c"]
    party = bed.kit.participants[2]
    replace_file(party.identity / CERTIFICATE_FILE, sign_again(bed.kit, party, bed.clock, days=2))
    site.renew(load_credentials(party.identity, bed.clock()))
    ends = site.credentials.identity.not_after
    study = bed.compile(make_request(schema_of(2)))
    members = Members(study, study_digest(study.to_bytes()), site.credentials.authority, bed.clock)
    for name, other in bed.sites.items():
        own = other.credentials
        enrolment = enrol(study_digest(study.to_bytes()), own.identity, BoxKey.generate().public, own.signing_key)
        members.enrol(name, enrolment, lambda: None)
    bed.clock.now = ends + 1
    assert members.close() == 2
    assert f"goes on without c: The certificate of participant c has expired: it ended on {moment(ends)}" in caplog.text


def test_check_warns_thirty_days_before(bed: TestBed) -> None:
    site, party = bed.sites["a"], bed.kit.participants[0]
    with running_server(bed) as (_, address):
        config = site.config.model_copy(update={"coordinator": address})

        def found(at: int) -> dict[str, tuple[CheckOutcome, str]]:
            return {item.check: (item.status, item.detail) for item in SiteCheck(config, lambda: at).run()}

        calm = found(bed.clock())
        assert calm["certificate"][0] is CheckOutcome.OK
        assert {"authority", "coordinator's certificate"}.isdisjoint(calm)
        end = site.credentials.identity.not_after
        soon = found(end - 29 * DAY)
        assert soon["certificate"][0] is CheckOutcome.WARNING
        assert moment(end) in soon["certificate"][1]
        status, detail = soon["coordinator's certificate"]
        assert status is CheckOutcome.WARNING
        assert f"coordinator coordinator ends on {moment(end)}, in 29 days" in detail
        root = certificate_end(site.credentials.authority)
        replace_file(party.identity / CERTIFICATE_FILE, sign_again(bed.kit, party, bed.clock, days=3652))
        late = found(root - 20 * DAY)
        assert late["authority"] == (
            CheckOutcome.WARNING, f"the certificate of the federation's authority ends on {moment(root)}, in 20 days"
        )  # fmt: skip
        status, detail = found(end + 1)["protocol"]
        assert status is CheckOutcome.FAILED
        assert f"coordinator coordinator has expired: it ended on {moment(end)}" in detail
