"""A site restored from a backup charges what its own receipts show, once, before it goes on; a lying mirror gains nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import sqlite3
import threading
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from support.channels import OpenChannel
from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered, context_of, make_adversary
from support.network import PATIENCE, running_client, running_server, submit, wait_for
from support.restoring import copy_database, restore, vouch
from veilsum.local.federation import LocalChannel
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.errors import Refusal, RefusalCode, StateError
from veilsum_node.identity import Authority, Role, new_key_and_csr
from veilsum_node.identity.tls import CERTIFICATE_FILE, KEY_FILE
from veilsum_node.transport.channel import open_channel
from veilsum_participant.boundary.front import Status
from veilsum_participant.front.answering import in_process
from veilsum_participant.protocol import recovery
from veilsum_participant.protocol.core import ParticipantCore, settled_entry
from veilsum_participant.protocol.endorsement import recover_receipts
from veilsum_participant.protocol.recovery import MirroredReceipt, settle
from veilsum_participant.session import client as client_module
from veilsum_participant.session.channel import UndeliveredError
from veilsum_participant.session.client import Client, open_site
from veilsum_participant.site import Site
from veilsum_participant.store.attempts import OPEN, attempts_in
from veilsum_participant.store.mirrors import keep_mirror_entry
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub

COORDINATOR = "coordinator"


def charged(site: Site) -> list[tuple[Kind, bytes | None]]:
    found = [entry for entry in site.ledger.entries() if entry.kind in (Kind.CHARGE, Kind.RECOVERY)]
    site.ledger.verify(authority=site.credentials.authority)
    return [(entry.kind, entry.context) for entry in found]


# -- end to end ------------------------------------------------------------------------------------------------------------


def test_a_restored_site_pays_once_for_what_it_released(tmp_path: Path) -> None:
    """Back up, run a study, put the copy back, reconnect: the charge is recovered once, and later studies go on."""
    bed = make_bed(tmp_path, make_data("abc"), budget=(3.0, 1e-5))
    copy = tmp_path / "copy.db"
    copy_database(bed.sites["a"].config.state, copy)
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, Waits(grace=30)))
        others = [stack.enter_context(running_client(bed.sites[name], address)) for name in "bc"]
        stub = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))

        def run(epsilon: float = 1.0) -> bytes:
            key = submit(bed, stub, bed.compile(make_request(schema_of(2), epsilon=epsilon)))
            machine = server.hub.studies[key].machine
            wait_for(lambda: machine.phase.over, "the study's end")
            assert machine.phase.value == "finished", (machine.reason, machine.refusals)
            wait_for(lambda: all(seat.ended for seat in machine.seats.values()), "the end everywhere")
            return key

        with running_client(bed.sites["a"], address):
            key = run()
        site = restore(bed, "a", copy)
        assert charged(site) == []
        for start in range(2):  # the second session finds nothing more
            with running_client(site, address):
                wait_for(lambda: len(charged(site)) == 1, "the charge")
                if start:
                    vouch(site)
                    run(0.3)
        (kind, context), *later = charged(site)
        assert kind is Kind.RECOVERY
        mirrored = server.hub.journal.mirror.mirrored("a")
        assert context == context_of(mirrored[0].receipt)
        assert parse_receipt(mirrored[0].receipt.body).study == key
        assert [kind for kind, _ in later] == [Kind.CHARGE]
        spending = site.ledger.spending(DATASET)
        assert spending.releases == 2
        peer = bed.sites["b"].ledger.spending(DATASET)
        assert spending.spent == pytest.approx(peer.spent)  # as if it had never been restored
        assert others


# -- in a study that goes on -----------------------------------------------------------------------------------------------


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    adversary = make_adversary(tmp_path, budget=(50.0, 1e-5))
    adversary.set_up()
    return adversary


def backed_up(attack: Adversary, tmp_path: Path) -> Path:
    copy = tmp_path / "copy.db"
    copy_database(attack.bed.sites["a"].config.state, copy)
    return copy


def put_back(attack: Adversary, copy: Path) -> Site:
    site = restore(attack.bed, "a", copy)
    attack.cores["a"] = ParticipantCore(site)
    return site


def show(attack: Adversary, *receipts: tuple[SignedReceipt, int, bytes]) -> list[int]:
    """Let the coordinator's mirror show receipts to site a at a session's start; the new entries of its ledger."""
    items = [
        pb.MirroredReceipt(receipt=pb.SignedReceipt(body=item.body, signature=item.signature), number=number, consent=consent)
        for item, number, consent in receipts
    ]
    channel = attack.channels["a"]
    channel.objects = {pb.OBJECT_KIND_MIRRORED: pb.MirroredObject(receipts=items).SerializeToString()}
    entries = attack.cores["a"].catch_up(channel)
    if attack.cores["a"].site.restored() is not None:
        vouch(attack.cores["a"].site)
    return entries


def own(attack: Adversary, attempt: int = 1) -> SignedReceipt:
    return attack.payloads["a", attempt].receipt


def test_a_study_goes_on_after_the_recovery(attack: Adversary, tmp_path: Path) -> None:
    """Receipt numbers go on above the highest that was signed, so the peers accept the next one."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    consent = attack.consents()[0]
    site = put_back(attack, copy)
    (entry,) = show(attack, (own(attack), 5, consent))
    assert charged(site) == [(Kind.RECOVERY, context_of(own(attack)))]
    assert site.ledger.entries(kind=Kind.RECOVERY)[0].seq == entry
    assert show(attack, (own(attack), 5, consent)) == []
    assert settled_entry(site, COORDINATOR) == 5
    assert RefusalCode.ROUND in attack.assign("a", attack.assignments[1]).codes  # the round is over here too
    assert attack.assign("a", attack.assignment(attempt=2)).codes[-1] is RefusalCode.ROUND
    receipts = attack.collect(number=2, attempt=2)
    assert [parse_receipt(receipt.body).number for receipt in receipts] == [2, 2, 2, 2]
    attack.finish(2, 2)
    assert [kind for kind, _ in charged(site)] == [Kind.RECOVERY, Kind.CHARGE]


def test_a_receipt_without_a_consent_is_charged_if_its_context_is_not_known(attack: Adversary, tmp_path: Path) -> None:
    """The site cannot tell whether it consented to what it has forgotten: it takes it for spent."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    site = put_back(attack, copy)
    assert len(show(attack, (own(attack), 5, b""))) == 1
    assert len(charged(site)) == 1


@pytest.mark.parametrize("end", ["open", "given up"])
def test_a_known_attempt_is_charged_only_by_its_consent(attack: Adversary, tmp_path: Path, end: str) -> None:
    """The copy was made between upload and consent: the receipt alone proves nothing, the consent does, also after the site
    gave the attempt up by itself."""
    attack.collect()
    copy = backed_up(attack, tmp_path)
    consent = attack.consents()[0]
    site = put_back(attack, copy)
    if end == "given up":
        attack.bed.clock.now += 3600
        attack.cores["a"].expire()
    before = len(site.ledger.entries())
    for made_up in (b"", bytes(32), consent[:-1], hashlib.sha256(consent).digest(), attack.payloads["a", 1].receipt.signature):
        assert show(attack, (own(attack), 7, made_up)) == []
    assert len(site.ledger.entries()) == before
    assert settled_entry(site, COORDINATOR) == (6 if end == "open" else 7)
    assert len(show(attack, (own(attack), 7, consent))) == 1
    assert charged(site) == [(Kind.RECOVERY, context_of(own(attack)))]
    assert show(attack, (own(attack), 7, consent)) == []
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.payload, row.words) == ("recovered", None, None)
    answers = [CheckAnswer((1, 2, 3), b"")] * 4
    assert attack.ask_consent("a", answers).refused is RefusalCode.ROUND  # what it signed for then it does not know
    spending = site.ledger.spending(DATASET)
    assert (spending.releases, spending.spent) == (1, spending.reserved)


def test_what_is_open_where_another_copy_went_on_is_given_up(attack: Adversary, tmp_path: Path) -> None:
    """The mirror shows a receipt that was signed with a later ledger: the attempt in the copy may have been answered since."""
    receipts = attack.collect()
    copy = backed_up(attack, tmp_path)
    assert attack.ask_check("a", receipts).call == "answer"
    for name in "bcd":
        attack.ask_check(name, receipts)
    attack.collect(number=2, attempt=2)
    site = put_back(attack, copy)
    row = attack.attempt_row("a")
    assert row is not None
    assert row.words, "the copy could answer another challenge"
    assert len(show(attack, (own(attack), 3, b""), (own(attack, 2), 5, b""))) == 1
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.payload, row.words, row.consent) == ("tombstone", None, None, None)
    assert attack.ask_check("a", receipts, bytes(32)).refused is RefusalCode.ROUND
    site.ledger.verify(authority=site.credentials.authority)


def test_a_mirror_that_lies_changes_nothing(attack: Adversary, tmp_path: Path) -> None:
    """Foreign, altered, forged and unsigned receipts cost nothing; what the site signed is charged beside them."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    attack.consents()
    site = put_back(attack, copy)
    good, foreign = own(attack), attack.payloads["b", 1].receipt
    parsed = parse_receipt(good.body)
    dearer = dataclasses.replace(parsed, number=2, context=bytes(32))
    key = attack.bed.sites["b"].credentials.signing_key
    lies = [
        foreign,
        sign_receipt(dearer, key),
        SignedReceipt(dearer.to_bytes(), good.signature),
        SignedReceipt(good.body, b""),
        SignedReceipt(good.body, foreign.signature),
        SignedReceipt(b"{}", good.signature),
        SignedReceipt(b"", b""),
        sign_receipt(dataclasses.replace(parsed, participant="b"), site.credentials.signing_key),
    ]
    before = site.ledger.entries()
    assert show(attack, *((lie, number, bytes(32)) for number, lie in enumerate(lies, 1))) == []
    assert site.ledger.entries() == before
    assert len(show(attack, *((lie, 20, b"") for lie in lies), (good, 21, b""), (good, 22, b""))) == 1
    assert charged(site) == [(Kind.RECOVERY, parsed.context)]


def older_ledger(newer: Path, older: Path, target: Path, cut: int = 0) -> Path:
    """A file with the store of one copy and the ledger of another, less its last entries."""
    target.write_bytes(newer.read_bytes())
    with closing(sqlite3.connect(target, isolation_level=None)) as made:
        made.execute("ATTACH ? AS other", (str(older),))
        triggers = made.execute("SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            made.execute(f"DROP TRIGGER {name}")
        for (table,) in made.execute(
            "SELECT name FROM main.sqlite_master WHERE type = 'table' AND name LIKE 'ledger%'"
        ).fetchall():
            made.execute(f"DELETE FROM main.{table}")  # noqa: S608  a table's name
            made.execute(f"INSERT INTO main.{table} SELECT * FROM other.{table}")  # noqa: S608
        (last,) = made.execute("SELECT max(seq) FROM main.ledger").fetchone()
        made.execute("DELETE FROM main.ledger WHERE seq > ?", (last - cut,))
        made.execute("DELETE FROM main.ledger_receipt WHERE entry > ?", (last - cut,))
        for _, text in triggers:
            made.execute(text)
    return target


def reserved(site: Site) -> set[bytes | None]:
    """Contexts of open reservations."""
    entries = site.ledger.entries()
    ended = {entry.context for entry in entries if entry.kind in (Kind.CHARGE, Kind.RECOVERY, Kind.FREE)}
    return {entry.context for entry in entries if entry.kind is Kind.RESERVE} - ended


def test_a_ledger_that_is_older_than_its_store_charges_what_that_consented_to(attack: Adversary, tmp_path: Path) -> None:
    """A file mended by hand, say: every ledger of a study with every store of it, and ledgers that were cut at their end. What
    the store alone has open is ended: none of it is answered for once more."""
    copies: list[tuple[Path, bool]] = []  # and whether the site had consented by then

    def keep(*, consented: bool = False) -> None:
        copy_database(attack.bed.sites["a"].config.state, copy := tmp_path / f"{len(copies)}.db")
        copies.append((copy, consented))

    keep()
    attack.collect()
    keep()
    answers = attack.answers()
    keep()
    for name in attack.bed.sites:
        attack.ask_consent(name, answers)
    keep(consented=True)
    attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 1)
    keep(consented=True)
    attack.assign("a", attack.assignment(number=2, attempt=2))
    keep(consented=True)
    attack.assign("a", attack.assignment(number=2, attempt=3))
    keep(consented=True)
    context, config = context_of(own(attack)), attack.bed.sites["a"].config
    attack.bed.sites["a"].database.close()
    lacked, now = 0, attack.bed.clock.now
    for (ledger, charged_then), (store, consented), cut in itertools.product(copies, copies, (0, 1)):
        for suffix in ("-wal", "-shm"):
            config.state.with_name(config.state.name + suffix).unlink(missing_ok=True)
        attack.bed.clock.now = now
        site = open_site(
            config.model_copy(update={"state": older_ledger(store, ledger, config.state, cut)}), clock=attack.bed.clock
        )
        entries = site.ledger.entries()
        known = [entry.kind for entry in entries if entry.kind in (Kind.CHARGE, Kind.RECOVERY)]
        site.ledger.verify(authority=site.credentials.authority)
        assert len(known) == (consented or (charged_then and Kind.CHARGE in known))
        assert (site.restored() is not None) is (Kind.RECOVERY in known)
        if Kind.RECOVERY in known:
            lacked += 1
            assert entries[-1 if entries[-1].kind is Kind.RECOVERY else -2].context == context
            with pytest.raises(Refusal, match="restored from a backup"):
                site.check_ledger()
            site.database.close()
            again = open_site(site.config, clock=attack.bed.clock)
            assert again.ledger.entries() == entries
            site = again
        with site.database.reading() as connection:
            rows = attempts_in(connection, OPEN)
        assert reserved(site) >= {row.context for row in rows}, "it would be answered for, and has no reservation"
        attack.bed.clock.now = now + 40 * 86400
        ParticipantCore(site).expire()
        assert not reserved(site) & {row.context for row in rows}
        site.database.close()
    assert lacked > 10


def test_a_release_that_was_not_confirmed_before(attack: Adversary, tmp_path: Path) -> None:
    """The coordinator tells of the release again: the recovered charge is not a lost one."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    attack.consents()
    site = put_back(attack, copy)
    show(attack, (own(attack), 4, b""))
    assert site.ledger.lost_charges(attack.key) == 1
    for _ in range(2):
        assert attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 1).call == "confirm"
    assert site.ledger.lost_charges(attack.key) == 0
    assert len(site.ledger.entries(kind=Kind.RELEASE_SEEN)) == 1
    assert len(charged(site)) == 1


def test_a_long_mirror_is_settled_in_parts(attack: Adversary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many receipts take several transactions; an open attempt in the first part keeps the whole from being settled."""
    monkeypatch.setattr(recovery, "BATCH", 2)
    copy = backed_up(attack, tmp_path)
    for number in (1, 2, 3):
        attack.collect(number=number, attempt=number)
        attack.finish(number, number)
    site = put_back(attack, copy)
    attack.assign("a", attack.assignment(number=9, attempt=9))  # open
    shown = [(own(attack, 9), 1, b""), *((own(attack, number), 3 * number, b"") for number in (1, 2, 3))]
    assert len(show(attack, *shown)) == 3
    assert settled_entry(site, COORDINATOR) == 0
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 9, 9).call == "confirm"
    assert show(attack, *shown) == []
    assert settled_entry(site, COORDINATOR) == 9


def test_numbers_that_no_mirror_has(attack: Adversary, tmp_path: Path) -> None:
    copy = backed_up(attack, tmp_path)
    attack.collect()
    site = put_back(attack, copy)
    for number in (0, 2**53, 2**64 - 1):
        assert show(attack, (own(attack), number, b"")) == []
        assert settled_entry(site, COORDINATOR) == 0


def test_a_coordinator_without_a_mirror(attack: Adversary) -> None:
    """The site goes on, with a line in its log."""
    channel = attack.channels["a"]
    for data in (None, b"\xff\xff", b""):
        channel.objects = {} if data is None else {pb.OBJECT_KIND_MIRRORED: data}
        assert attack.cores["a"].catch_up(channel) == []
    attack.collect()
    attack.finish()


def test_a_site_that_was_never_restored_recovers_nothing(attack: Adversary) -> None:
    attack.collect()
    consent = attack.consents()[0]
    assert show(attack, (own(attack), 3, consent)) == []
    assert charged(attack.bed.sites["a"]) == [(Kind.CHARGE, context_of(own(attack)))]
    assert settled_entry(attack.bed.sites["a"], COORDINATOR) == 3


def test_two_attempts_of_one_round_that_were_both_signed(attack: Adversary, tmp_path: Path) -> None:
    """The site does not know which of them it consented to: both count, and nothing breaks."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    attack.collect(attempt=2)
    site = put_back(attack, copy)
    assert len(show(attack, (own(attack, 1), 4, b""), (own(attack, 2), 6, b""))) == 2
    assert len(charged(site)) == 2
    attack.collect(number=2, attempt=3)
    attack.finish(2, 3)


def test_the_recovered_counts_towards_what_the_study_declared(tmp_path: Path) -> None:
    """A restored site gives no more releases than the signed study names, though it does not know which it gave."""
    attack = make_adversary(tmp_path)
    attack.use(altered(attack.study, task__releases=2, nonce="0" * 32))
    attack.set_up()
    copy = backed_up(attack, tmp_path)
    for number in (1, 2):
        attack.collect(number=number, attempt=number)
        attack.finish(number, number)
    site = put_back(attack, copy)
    assert len(show(attack, (own(attack, 1), 4, b""), (own(attack, 2), 6, b""))) == 2
    assert attack.assign("a", attack.assignment(number=3, attempt=3)).refused is RefusalCode.TASK
    assert len(charged(site)) == 2


def test_a_strict_study_whose_cohort_was_forgotten(tmp_path: Path) -> None:
    """One cohort for the whole study: a site that does not know which it was takes no further part in it."""
    attack = make_adversary(tmp_path)
    attack.use(altered(attack.study, privacy__cohort_difference="strict", nonce="0" * 32))
    attack.set_up()
    copy = backed_up(attack, tmp_path)
    attack.collect()
    attack.finish()
    put_back(attack, copy)
    assert len(show(attack, (own(attack), 4, b""))) == 1
    assert attack.assign("a", attack.assignment(number=2, attempt=2)).refused is RefusalCode.COHORT_CHANGED


def test_a_study_that_the_copy_does_not_know_is_not_enrolled_again(tmp_path: Path) -> None:
    """Its receipts show that it took part: a digest serves once, whatever was forgotten."""
    attack = make_adversary(tmp_path)
    copy = backed_up(attack, tmp_path)
    attack.set_up()
    attack.collect()
    attack.finish()
    site = put_back(attack, copy)
    assert len(show(attack, (own(attack), 4, b""))) == 1
    assert attack.enrol("a").refused is RefusalCode.STUDY_REPLAYED
    assert len(charged(site)) == 1


def test_a_dataset_that_is_offered_no_longer(attack: Adversary, tmp_path: Path) -> None:
    """It is charged to a population of its name, so that nothing is lost."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    site = put_back(attack, copy)
    (offered,) = site.config.datasets.values()
    site.config = site.config.model_copy(update={"datasets": {"other": offered}})
    assert len(show(attack, (own(attack), 4, b""))) == 1
    assert site.ledger.entries(kind=Kind.RECOVERY)[0].population == DATASET


def test_what_is_still_open_is_asked_for_again(attack: Adversary, tmp_path: Path) -> None:
    """A session begins between upload and consent: the entry is not settled, so a copy made now still finds its consent."""
    attack.collect()
    site = attack.bed.sites["a"]
    assert show(attack, (own(attack), 9, b"")) == []
    assert settled_entry(site, COORDINATOR) == 8
    copy = backed_up(attack, tmp_path)
    consent = attack.consents()[0]
    site = put_back(attack, copy)
    assert settled_entry(site, COORDINATOR) == 8
    assert len(show(attack, (own(attack), 9, consent))) == 1


def test_a_mirror_that_begins_anew_is_read_again(attack: Adversary) -> None:
    """A coordinator that lost its mirror numbers from 1: what it shows from then on is not taken for settled."""
    site = attack.bed.sites["a"]
    with site.database.transaction() as connection:
        keep_mirror_entry(connection, COORDINATOR, 500)
    attack.collect()
    attack.consents()
    assert 0 <= settled_entry(site, COORDINATOR) < 10


def test_receipts_from_an_export(attack: Adversary, tmp_path: Path) -> None:
    """What a peer kept serves as well as the mirror; its other receipts are passed over."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    attack.consents()
    kept = attack.bed.sites["b"].ledger.receipts()
    assert {item.parsed.participant for item in kept} == set("abcd")
    site = put_back(attack, copy)
    (entry,) = recover_receipts(site, kept)
    assert recover_receipts(site, kept) == []
    assert site.ledger.entries(kind=Kind.RECOVERY)[0].seq == entry
    assert charged(site) == [(Kind.RECOVERY, context_of(own(attack)))]


def test_a_key_that_was_renewed_since(attack: Adversary, tmp_path: Path) -> None:
    """Receipts that the site's former key signed are its own, for the ledger names that key; those of any other are not."""
    copy = backed_up(attack, tmp_path)
    attack.collect()
    kit, clock = attack.bed.kit, attack.bed.clock
    (party,) = (party for party in kit.participants if party.name == "a")
    pem, request = new_key_and_csr("a", Role.PARTICIPANT)
    signed = Authority.load(kit.authority, clock).sign(request, role=Role.PARTICIPANT, name="a", replace=True)
    (party.identity / CERTIFICATE_FILE).write_bytes(signed)
    (party.identity / KEY_FILE).write_bytes(pem)
    former = attack.bed.sites["a"].credentials.identity.fingerprint
    site = put_back(attack, copy)
    assert site.credentials.identity.fingerprint != former
    forged = sign_receipt(parse_receipt(own(attack).body), attack.bed.sites["b"].credentials.signing_key)
    assert settle(site, COORDINATOR, [MirroredReceipt(forged, 1, b"")]) == []
    assert len(settle(site, COORDINATOR, [MirroredReceipt(own(attack), 2, b"")])) == 1
    assert len(charged(site)) == 1


# -- the client's order of things ------------------------------------------------------------------------------------------


class Ordered(ParticipantCore):
    """Notes what is called, in order."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("catch_up", "expire", "handle", "decided"):
            self.calls.append(name)
        return super().__getattribute__(name)


def test_a_session_catches_up_before_anything_else(tmp_path: Path) -> None:
    bed = make_bed(tmp_path, make_data("ab"))
    with running_server(bed) as (_, address):
        site = bed.sites["a"]
        site.config = site.config.model_copy(update={"coordinator": address})
        client = Client(site, in_process)
        client.core = core = Ordered(site)
        thread = threading.Thread(target=client.run, daemon=True)
        thread.start()
        wait_for(lambda: "expire" in core.calls, "the first deadline check")
        client.stop()
        thread.join(PATIENCE)
        assert core.calls[0] == "catch_up"


def test_deadlines_wait_for_the_mirror_but_not_for_ever(tmp_path: Path) -> None:
    """Nothing is freed before the first session's mirror was read; a coordinator that stays away holds it up for an hour."""
    attack = make_adversary(tmp_path)
    attack.set_up()
    attack.collect()
    site = attack.bed.sites["a"]
    attack.bed.clock.now += 7200  # past the deadline
    client = Client(site, in_process)
    client._expire()
    assert attack.kinds("a")["free"] == 0
    attack.bed.clock.now += client_module.CATCH_UP_SECONDS
    client._expire()
    assert attack.kinds("a")["free"] == 1


@pytest.mark.parametrize(("code", "goes_on"), [(Status.INVALID_ARGUMENT, True), (Status.UNAVAILABLE, False)])
def test_an_old_coordinator_and_a_broken_connection_are_told_apart(
    tmp_path: Path, code: Status, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that does not know the object is worked with; a connection that breaks is made again."""
    bed = make_bed(tmp_path, make_data("ab"))

    def fetch(*_: Any) -> bytes:
        raise UndeliveredError(code, "")

    client = Client(bed.sites["a"], in_process)
    channel = LocalChannel(bed.hub, "a")
    monkeypatch.setattr(channel, "fetch", fetch)
    if goes_on:
        client._catch_up(channel)  # type: ignore[arg-type]
    else:
        with pytest.raises(UndeliveredError):
            client._catch_up(channel)  # type: ignore[arg-type]
    assert client._caught_up is goes_on


def test_a_store_that_fails_ends_the_session_not_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is answered before the mirror is settled: a full disk means another try, with the loop's growing pauses."""
    bed = make_bed(tmp_path, make_data("ab"))
    with running_server(bed) as (server, address):
        site = bed.sites["a"]
        failures: list[bytes] = []
        real = ParticipantCore.catch_up

        def fail(self: ParticipantCore, channel: Any) -> list[int]:
            if not failures:
                failures.append(b"")
                raise StateError("The database refused a transaction: disk full.")
            return real(self, channel)

        monkeypatch.setattr(ParticipantCore, "catch_up", fail)
        with running_client(site, address):
            wait_for(lambda: "a" in server.hub.sessions and server.hub.sessions["a"].serial > 1, "the next session")
    assert len(failures) == 1


def test_the_mirror_is_read_over_the_wire(tmp_path: Path) -> None:
    """A real coordinator's answer to a real request, empty and after a study."""
    bed = make_bed(tmp_path, make_data("ab"))
    with running_server(bed) as (_, address), open_channel(address, bed.sites["a"].credentials) as raw:
        channel = OpenChannel(raw, bed.sites["a"].credentials)
        channel.hello()
        assert channel.coordinator_certificate == bed.hub.credentials.identity.certificate
        assert ParticipantCore(bed.sites["a"]).catch_up(channel) == []
