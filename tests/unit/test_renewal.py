"""Renewed certificates: what is taken, what is refused with a word in the log, and what ends soon."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from support.federation import Clock
from support.hospital import HospitalAuthority
from support.renewing import renew, renew_with_new_key, replace_key, sign_again
from veilsum_node.database import Database, open_database
from veilsum_node.errors import ConfigurationError, Misuse, StateError
from veilsum_node.identity import CertificateExpired, Credentials, Role, load_credentials, verify_certificate
from veilsum_node.identity.certificate import load_authority_certificate, moment
from veilsum_node.identity.files import replace_file
from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.renewal import DAY, ExpiryLog, Renewal, expiry_warning, renewed_credentials
from veilsum_node.identity.server_pair import load_server_pair
from veilsum_node.identity.tls import CERTIFICATE_FILE, KEY_FILE
from veilsum_node.phrases import counted
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.ledger import Kind, Ledger
from veilsum_privacy.ledger.chain import Chain


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kit(tmp_path: Path, clock: Clock) -> Kit:
    return make_kit(tmp_path / "kit", ["north", "south"], clock=clock)


@pytest.fixture
def used(kit: Kit, clock: Clock) -> Credentials:
    return load_credentials(kit.participants[0].identity, clock())


@pytest.fixture
def watched(kit: Kit, used: Credentials, clock: Clock) -> Renewal[Credentials]:
    made = renewed_credentials(kit.participants[0].identity, lambda: used, clock)
    first = made.poll()
    assert first is not None
    assert first.certificate_pem == used.certificate_pem
    assert made.poll() is None
    return made


def test_a_renewed_certificate_of_the_same_key_is_taken(
    kit: Kit, used: Credentials, watched: Renewal[Credentials], clock: Clock
) -> None:
    renew(kit, kit.participants[0], clock)
    found = watched.poll()
    assert found is not None
    assert found.identity.not_after == used.identity.not_after + 35 * DAY
    assert found.signing_key.fingerprint == used.signing_key.fingerprint
    assert watched.poll() is None


@pytest.mark.parametrize("half", [b"", b"-----BEGIN CERTIFICATE-----\nMIIB", b"nonsense"])
def test_half_a_file_is_refused_once_and_the_whole_one_taken(
    kit: Kit, watched: Renewal[Credentials], clock: Clock, half: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = kit.participants[0].identity / CERTIFICATE_FILE
    whole = sign_again(kit, kit.participants[0], clock)
    replace_file(path, half)
    for _ in range(3):
        assert watched.poll() is None
    assert caplog.text.count("cannot be used, the previous ones stay in use") == 1
    replace_file(path, whole)
    assert watched.poll() is not None


def test_a_pair_that_does_not_match_is_refused_until_it_does(
    kit: Kit, used: Credentials, watched: Renewal[Credentials], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    identity = kit.participants[0].identity
    former = renew_with_new_key(kit, kit.participants[0], clock)
    new = (identity / KEY_FILE).read_bytes()
    replace_key(identity, former)
    assert watched.poll() is None
    assert "does not belong to" in caplog.text
    replace_key(identity, new)
    found = watched.poll()
    assert found is not None
    assert found.signing_key.fingerprint != used.signing_key.fingerprint


def test_another_party_or_authority_is_refused(
    kit: Kit, used: Credentials, watched: Renewal[Credentials], clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own, other = (party.identity for party in kit.participants)
    for name in (KEY_FILE, CERTIFICATE_FILE):
        os.replace(other / name, own / name)
    assert watched.poll() is None
    assert "not of participant north" in caplog.text
    foreign = make_kit(tmp_path / "foreign", ["north", "south"], clock=clock).participants[0].identity
    for path in foreign.glob("*.*"):
        os.replace(path, own / path.name)
    assert watched.poll() is None
    assert "another authority's" in caplog.text


def test_a_certificate_that_is_not_valid_yet_is_taken_when_it_is(
    kit: Kit, watched: Renewal[Credentials], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    party, begins = kit.participants[0], clock() + 2 * DAY
    replace_file(party.identity / CERTIFICATE_FILE, sign_again(kit, party, clock, at=begins))
    assert watched.poll() is None
    assert f"not valid yet: it begins on {moment(begins - 300)}" in caplog.text  # the authority dates five minutes back
    clock.now = begins
    assert watched.poll() is not None


def test_what_may_not_be_taken_now_is_tried_again(
    kit: Kit, used: Credentials, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    forbidden = [True]

    def allowed(_: Credentials) -> None:
        if forbidden:
            raise StateError("A study is open.")

    watched = renewed_credentials(kit.participants[0].identity, lambda: used, clock, allowed)
    for _ in range(3):
        assert watched.poll() is None
    assert caplog.text.count("A study is open.") == 1
    forbidden.clear()
    assert watched.poll() is not None
    assert watched.poll() is None
    watched.forget()
    assert watched.poll() is not None


@settings(max_examples=30, deadline=None)
@given(days=st.integers(-400, 400), seconds=st.integers(0, DAY - 1))
def test_what_ends_within_thirty_days_is_worth_a_warning(days: int, seconds: int) -> None:
    now = 1_800_000_000
    end = now + days * DAY + seconds
    text = expiry_warning("participant north", end, now)
    assert bool(text) == (days < 30)
    if text:
        assert "participant north" in text
        assert moment(end) in text
        assert ("has expired" in text) == (end < now)
        assert end < now or f"in {counted(days, 'day')}" in text


def test_expiry_is_logged_once_a_day_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    clock.now = 20_000 * DAY
    end, log = clock.now + 2 * DAY + 10, ExpiryLog(clock)
    for _ in range(4):
        for _ in range(5):
            log.check("participant north", end)
        clock.now += DAY
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3 + [logging.ERROR]
    log.check("participant north", clock.now + 400 * DAY)
    assert len(caplog.records) == 4


def test_expired_certificates_are_named_with_their_date(kit: Kit, used: Credentials, clock: Clock) -> None:
    ends = used.identity.not_after
    with pytest.raises(CertificateExpired, match=f"of participant north has expired: it ended on {moment(ends)}"):
        verify_certificate(used.identity.certificate, used.authority, ends + 1, Role.PARTICIPANT)
    clock.now = ends + 1
    with pytest.raises(ConfigurationError, match=f"of participant north has expired: it ended on {moment(ends)}"):
        load_credentials(kit.participants[0].identity, clock())
    last = int(used.authority.not_valid_after_utc.timestamp())
    with pytest.raises(CertificateExpired, match=f"of authority trial has expired: it ended on {moment(last)}"):
        verify_certificate(used.identity.certificate, used.authority, last + 1, None)
    assert load_authority_certificate(used.authority_pem) == used.authority


def test_a_server_pair_is_checked(tmp_path: Path, clock: Clock) -> None:
    hospital = HospitalAuthority()
    certificate, key = hospital.issue(tmp_path / "one")
    pair = load_server_pair(certificate, key, clock())
    assert pair.name == "CN=coordinator.hospital"
    with pytest.raises(ConfigurationError, match=f"has expired: it ended on {moment(pair.not_after)}"):
        load_server_pair(certificate, key, pair.not_after + 1)
    with pytest.raises(ConfigurationError, match="is not valid yet"):
        load_server_pair(certificate, key, clock() - 10 * DAY)
    with pytest.raises(ConfigurationError, match="does not belong to"):
        load_server_pair(certificate, hospital.issue(tmp_path / "two")[1], clock())
    swapped = tmp_path / "swapped.key"
    swapped.touch(0o600)
    swapped.write_bytes(certificate.read_bytes())
    with pytest.raises(ConfigurationError, match="in PEM"):
        load_server_pair(certificate, swapped, clock())
    key.chmod(0o644)
    with pytest.raises(ConfigurationError, match="read by others"):
        load_server_pair(certificate, key, clock())


# -- the ledger's key ------------------------------------------------------------------------------------------------------


def runner(database: Database) -> Callable[[Callable[[Connection], object]], None]:
    def run(work: Callable[[Connection], object]) -> None:
        with database.transaction() as connection:
            work(connection)

    return run


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(tmp_path / "ledger.db")


def budget(ledger: Ledger, database: Database, epsilon: float) -> None:
    with database.transaction() as connection:
        ledger.set_budget(connection, "records", epsilon, 1e-5, reason="test", operator="test")


def opened(database: Database, credentials: Credentials, clock: Clock) -> Ledger:
    return Ledger(database, credentials=credentials, clock=clock, random=SYSTEM_RANDOM)


def test_a_ledger_goes_on_under_a_new_key(kit: Kit, used: Credentials, database: Database, clock: Clock) -> None:
    ledger = opened(database, used, clock)
    budget(ledger, database, 1.0)
    renew(kit, kit.participants[0], clock)
    ledger.renew(load_credentials(kit.participants[0].identity, clock()), runner(database))
    assert len(ledger.entries(kind=Kind.KEY)) == 0  # the same key needs no entry
    renew_with_new_key(kit, kit.participants[0], clock)
    new = load_credentials(kit.participants[0].identity, clock())
    ledger.renew(new, runner(database))
    budget(ledger, database, 2.0)
    assert ledger.verify(authority=used.authority).keys == (used.signing_key.fingerprint, new.signing_key.fingerprint)
    with pytest.raises(Misuse, match="another party"):
        ledger.renew(load_credentials(kit.participants[1].identity, clock()), runner(database))


@pytest.mark.parametrize("written", [False, True])
def test_a_renewal_whose_commit_got_no_answer_leaves_a_ledger_that_verifies(
    kit: Kit, used: Credentials, database: Database, clock: Clock, written: bool
) -> None:
    """Until it is tried again, entries are signed with whichever key the ledger names."""
    ledger = opened(database, used, clock)
    renew_with_new_key(kit, kit.participants[0], clock)
    new = load_credentials(kit.participants[0].identity, clock())

    def unanswered(work: Callable[[Connection], object]) -> None:
        with database.transaction() as connection:
            work(connection)
            if not written:
                raise StateError("gone")
        raise StateError("gone")

    with pytest.raises(StateError, match="gone"):
        ledger.renew(new, unanswered)
    budget(ledger, database, 1.0)
    assert len(ledger.verify(authority=used.authority).keys) == 1 + written
    budget(ledger, database, 2.0)
    ledger.renew(new, runner(database))
    budget(ledger, database, 3.0)
    assert ledger.verify(authority=used.authority).keys == (used.signing_key.fingerprint, new.signing_key.fingerprint)


def test_a_key_that_another_process_named_is_respected(kit: Kit, used: Credentials, database: Database, clock: Clock) -> None:
    """A command that runs beside the participant may have been started with the new key already."""
    running = opened(database, used, clock)
    budget(running, database, 1.0)
    renew_with_new_key(kit, kit.participants[0], clock)
    new = load_credentials(kit.participants[0].identity, clock())
    budget(opened(database, new, clock), database, 2.0)
    for _ in range(2):
        with pytest.raises(StateError, match="names a different key"):
            budget(running, database, 3.0)
    running.renew(new, runner(database))
    budget(running, database, 3.0)
    assert len(running.entries(kind=Kind.KEY)) == 1
    assert len(running.verify(authority=used.authority).keys) == 2


@settings(max_examples=12, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["write", "undo", "renew"])), max_size=14))
def test_whatever_two_processes_do_the_ledger_verifies(
    steps: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock, directory = Clock(), tmp_path_factory.mktemp("ledger")
    kit = make_kit(directory / "kit", ["north", "south"], clock=clock)
    party = kit.participants[0]
    database = open_database(directory / "ledger.db")
    used = load_credentials(party.identity, clock())
    chains = {name: Chain(database, credentials=used, clock=clock, random=SYSTEM_RANDOM) for name in "ab"}
    renew_with_new_key(kit, party, clock)
    new = load_credentials(party.identity, clock())

    def write(chain: Chain, *, undo: bool) -> None:
        with database.transaction() as connection:
            detail = {"epsilon": 1.0, "reason": "test", "operator": "test"}
            chain.append(connection, Kind.BUDGET, {"population": "records", "delta": 1e-5}, detail)
            if undo:
                raise StateError("undone")

    for name, what in steps:
        try:
            if what == "renew":
                chains[name].renew(new, runner(database))
            else:
                write(chains[name], undo=what == "undo")
        except StateError:
            pass
    reader = opened(database, new, clock)
    reader.verify(authority=used.authority)
    database.close()
