"""Charges with a cohort's receipts, in a ledger that its site made anew: what it keeps of others must still be their word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.ledgers import COORDINATOR, Trial, credentials_of, make_receipt, open_ledger
from support.tampering import Change, Copy
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Role
from veilsum_privacy.ledger import LedgerFault, SignedReceipt, verify_ledger
from veilsum_privacy.ledger.countersigning import countersign
from veilsum_privacy.ledger.receipts import parse_countersignature, receipts_digest

SITES = ("north", "south", "east")
CENTRE = credentials_of(COORDINATOR, role=Role.COORDINATOR)


@pytest.fixture(scope="module")
def trial() -> Trial:
    """North's ledger: 1 genesis, 2 budget, 3 reserve, 4 charge, 5 release of round 1; 6, 7, 8 of round 2."""
    trial = Trial(SITES)
    trial.play(1)
    trial.play(2)
    return trial


@pytest.fixture
def ledger(trial: Trial) -> Copy:
    return Copy.of(trial.ledgers["north"])


def test_charges_of_the_version_before_verify_beside_present_ones() -> None:
    """In one ledger, after an upgrade; the receipts of one charge are all of one version."""
    trial = Trial(SITES)
    trial.version = 1
    trial.play(1)
    trial.version = 6
    trial.play(2)
    for name, reader in trial.readers.items():
        verify_ledger(reader, against=trial.others(name))
        if name != COORDINATOR:
            assert {item.parsed.round: item.parsed.version for item in reader.receipts()} == {1: 1, 2: 6}
    release = trial.release(3)
    trial.reserve(release)
    receipts = [trial.receipt("north", release)]
    trial.version = 1
    receipts += [trial.receipt(name, release) for name in SITES[1:]]
    word = trial.mirror
    with pytest.raises(HostileInput, match="describes a different release"), word.database.transaction() as connection:
        word.show(connection, tuple(receipts), trial.certificates)


def resign(ledger: Copy) -> Copy:
    return ledger.resign((1, credentials_of("north")))


def kept(entry: int, at: int, **values: object) -> Change:
    return lambda ledger: ledger.kept[entry - 1][at].update(values)


def detail(number: int, **values: object) -> Change:
    return lambda ledger: ledger.detail(number, **values)


def exchange(ledger: Copy) -> None:
    """The receipts of round 1 and round 2 behind each other's charge."""
    ledger.kept[3], ledger.kept[6] = ledger.kept[6], ledger.kept[3]


def exchange_everything(ledger: Copy) -> None:
    """With digests and countersignatures."""
    exchange(ledger)
    first, second = (json.loads(ledger.rows[number - 1]["detail"]) for number in (4, 7))
    ledger.detail(4, **second)
    ledger.detail(7, **first)


def another_coordinators_certificate(ledger: Copy) -> None:
    other = credentials_of("other", role=Role.COORDINATOR).identity.certificate
    fingerprint = hashlib.sha256(other).hexdigest()
    ledger.certificates[fingerprint] = other
    ledger.detail(4, coordinator=fingerprint)


def members_certificate_for_the_coordinator(ledger: Copy) -> None:
    ledger.detail(4, coordinator=ledger.kept[3][1]["certificate"])


def a_later_word(ledger: Copy) -> None:
    """The coordinator's genuine word for the other round."""
    ledger.detail(4, countersigned=json.loads(ledger.rows[6]["detail"])["countersigned"])


def drop_receipts_but_not_their_digest(ledger: Copy) -> None:
    ledger.kept[3] = []


@pytest.mark.parametrize(
    ("change", "number", "fault"),
    [
        (lambda ledger: None, 0, ""),
        (exchange, 4, "changed, lost or swapped"),
        (exchange_everything, 4, "for another release"),
        (drop_receipts_but_not_their_digest, 4, "changed, lost or swapped"),
        (detail(4, receipts=None), 4, "covers none"),
        (detail(4, countersigned=None), 4, "countersignature is missing"),
        (detail(4, countersigned=["00", "00"]), 4, "canonical|signature"),
        (detail(4, countersigned=["zz", "00"]), 4, "countersignature is missing or malformed"),
        (detail(4, countersigned="x"), 4, "countersignature is missing or malformed"),
        (detail(4, coordinator=None), 4, "certificate of its coordinator is missing"),
        (a_later_word, 4, "another study or context"),
        (another_coordinators_certificate, 4, "signature"),
        (members_certificate_for_the_coordinator, 4, "not of a coordinator"),
        (kept(7, 2, consent="00" * 32), 7, "which only a mirror does"),
        (kept(7, 2, signature="00"), 7, "is not signed by that member"),
        (kept(7, 0, position=1), 7, "receipt is missing"),
        (kept(4, 1, certificate=None), 4, "certificate of a kept receipt is missing"),
    ],
)
def test_every_fault_is_named(ledger: Copy, change: Change, number: int, fault: str) -> None:
    change(ledger)
    resign(ledger)
    if not number:
        assert verify_ledger(ledger).receipts == 6
        return
    with pytest.raises(LedgerFault, match=f"(?s)entry {number} fails: .*({fault})") as caught:
        verify_ledger(ledger)
    assert (caught.value.entry, caught.value.site) == (number, "north")


def put(trial: Trial, ledger: Copy, number: int, receipts: Sequence[SignedReceipt]) -> None:
    """Let everyone sign other receipts for an entry: the members, the coordinator, and the site for its chain."""
    for item, signed in zip(ledger.kept[number - 1], receipts, strict=True):
        value = json.loads(signed.body)
        item.update(body=signed.body.decode(), signature=signed.signature.hex())
        item.update({name: value[name] for name in ("context", "participant", "study", "round", "attempt", "number", "head")})
    body, _ = json.loads(ledger.rows[number - 1]["detail"])["countersigned"]
    word = replace(parse_countersignature(bytes.fromhex(body)), receipts=receipts_digest(receipts))
    signed = countersign(word, CENTRE.signing_key)
    ledger.detail(number, receipts=receipts_digest(receipts), countersigned=[signed.body, signed.signature])
    resign(ledger)


def _receipt(trial: Trial, name: str, *, number: int, **changes: object) -> SignedReceipt:
    return make_receipt(trial.ledgers[name], trial.release(2), number, **changes)


def again(trial: Trial, number: int = 2, **changes: dict[str, Any]) -> list[SignedReceipt]:
    """New receipts of all members for round 2, with changes by member."""
    head = trial.ledgers["north"].entries()[5].hash
    common: dict[str, Any] = {"head": head, "number": number}
    return [_receipt(trial, name, **(common | changes.get(name, {}))) for name in SITES]


def test_what_everyone_conspires_to_sign(trial: Trial, ledger: Copy) -> None:
    """Even if all members and the coordinator sign anew, some things cannot be: for everyone the same kinds of fault."""
    good = ledger.again()
    put(trial, good, 7, again(trial))
    assert verify_ledger(good).receipts == 6
    cases = {
        "names an entry that this ledger does not hold": again(trial, north={"head": bytes(32)}),
        "receipt of east is replayed: its number 1": again(trial, east={"number": 1}),
        "receipt of south is for another release": again(trial, south={"dataset": "other"}),
        "receipt of east is for another release": again(trial, east={"context": bytes(32)}),
        "receipt of north is for another release": again(trial, north={"cohort_size": 4}),
    }
    for fault, receipts in cases.items():
        changed = ledger.again()
        put(trial, changed, 7, receipts)
        with pytest.raises(LedgerFault, match=f"entry 7 fails: .*{fault}"):
            verify_ledger(changed)
    later = ledger.again()
    put(trial, later, 7, again(trial, north={"head": bytes.fromhex(later.rows[7]["hash"])}))
    with pytest.raises(LedgerFault, match=r"entry 7 fails: .*does not hold"):
        verify_ledger(later)


def test_no_member_of_the_cohort_is_left_out(trial: Trial, ledger: Copy) -> None:
    """Whatever the others and the coordinator sign: who is not shown that a sum was paid for cannot be said to have been."""
    ledger.kept[6].pop()
    put(trial, ledger, 7, again(trial)[:-1])
    with pytest.raises(LedgerFault, match=r"entry 7 fails: .*not one receipt for each member"):
        verify_ledger(ledger)


def test_the_own_receipt_must_be_among_them(trial: Trial, ledger: Copy) -> None:
    """Another site in its place, with a certificate and signature of its own."""
    west = open_ledger(":memory:", "west")
    receipts = again(trial)
    receipts[0] = make_receipt(west, trial.release(2), 5)
    certificate = credentials_of("west").identity.certificate
    fingerprint = hashlib.sha256(certificate).hexdigest()
    ledger.certificates[fingerprint] = certificate
    ledger.kept[6][0]["certificate"] = fingerprint
    put(trial, ledger, 7, receipts)
    with pytest.raises(LedgerFault, match="entry 7 fails: the site's own receipt is not among its receipts"):
        verify_ledger(ledger)


def test_a_member_twice_is_no_cohort(trial: Trial, ledger: Copy) -> None:
    receipts = again(trial)
    receipts[2] = make_receipt(trial.ledgers["south"], trial.release(2), 3, head=bytes(32))
    ledger.kept[6][2]["certificate"] = ledger.kept[6][1]["certificate"]
    put(trial, ledger, 7, receipts)
    with pytest.raises(LedgerFault, match="entry 7 fails: there is not one receipt for each member"):
        verify_ledger(ledger)


def test_a_certificate_must_have_been_valid_then(trial: Trial, ledger: Copy) -> None:
    short = credentials_of("south", days=0)
    fingerprint = hashlib.sha256(short.identity.certificate).hexdigest()
    ledger.certificates[fingerprint] = short.identity.certificate
    ledger.kept[3][1]["certificate"] = fingerprint
    with pytest.raises(LedgerFault, match="entry 4 fails: the certificate of south was not valid at its time"):
        verify_ledger(ledger)
