"""Verification names the first entry that was changed, and catches a site that signs what the rules forbid."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from sqlalchemy import text

from support.ledgers import (
    OTHER_STUDY,
    STUDY,
    credentials_of,
    make_receipt,
    make_reservation,
    open_ledger,
    set_budget,
)
from support.tampering import Change, Copy
from veilsum_node.canonical import canonical
from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Credentials, Label, Role
from veilsum_privacy.ledger import Ledger, LedgerFault, verify_ledger

SECOND = 9  # the entry from which the second key signs


def make_ledger() -> Ledger:
    """1 genesis, 2 budget, 3 reserve and 4 charge of round 1, 5 its release, 6 reserve and 7 free of round 2, 8 refusal of
    round 4, 9 a new key, 10 reserve of round 3, 11 recovery of round 5, 12 checkpoint."""
    ledger = open_ledger(":memory:")
    first, second, third, fifth = (make_reservation(number) for number in (1, 2, 3, 5))
    set_budget(ledger, 3.0)
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, first)
        ledger.charge(connection, first.context)
        ledger.release_seen(connection, first.context, bytes(32))
        ledger.reserve(connection, second)
        ledger.free(connection, second.context)
        ledger.refuse(connection, Refusal(RefusalCode.BUDGET, "too much"), reservation=make_reservation(4))
    ledger = open_ledger(ledger.database, credentials=credentials_of(secret=2))
    signed = make_receipt(ledger, fifth, 3)
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, third)
        ledger.recover(connection, signed, "heart")
    ledger.checkpoint()
    return ledger


@pytest.fixture(scope="module")
def original() -> Copy:
    return Copy.of(make_ledger())


@pytest.fixture
def ledger(original: Copy) -> Copy:
    return original.again()


def resign(ledger: Copy) -> Copy:
    """With the key that each entry was signed with; the second begins where the entry that names it lies now."""
    first, second = credentials_of(), credentials_of(secret=2)
    begins = next((number for number, row in enumerate(ledger.rows, 1) if row["kind"] == "key"), len(ledger.rows) + 1)
    return ledger.resign((1, first), (begins, second))


def test_the_ledger_itself_passes(ledger: Copy) -> None:
    head = bytes.fromhex(ledger.rows[-1]["hash"])
    verified = verify_ledger(ledger, head=head, authority=credentials_of().authority)
    assert (verified.entries, verified.head, verified.site, verified.receipts) == (12, head, "north", 1)
    assert list(verified.keys) == [credentials_of(secret=secret).identity.fingerprint for secret in (1, 2)]
    spent, estimate = verified.spending["heart"]
    assert estimate is not None
    assert 1.0126 < estimate < spent
    hashes = [row["hash"] for row in ledger.rows]
    assert [row["hash"] for row in resign(ledger).rows] == hashes, "hashed as an independent reading of the format does"


CHANGED: dict[str, Any] = {
    "seq": 77,
    "time": 1,
    "kind": "free",
    "study": "ab" * 32,
    "round": 9,
    "attempt": 9,
    "population": "lung",
    "dataset": "x",
    "event": '{"mechanism":"none"}',
    "delta": 0.25,
    "unit": "patient",
    "cohort_size": 40,
    "colluders": 2,
    "context": "cd" * 32,
    "detail": '{"a":1}',
    "previous": "ef" * 32,
    "hash": "01" * 32,
    "signature": "23" * 32,
}


@pytest.mark.parametrize("number", range(1, 13))
def test_every_column_of_every_entry_is_covered(ledger: Copy, number: int) -> None:
    assert set(CHANGED) == set(ledger.rows[0])
    for column, value in CHANGED.items():
        if ledger.rows[number - 1][column] == value:
            continue
        tampered = ledger.again()
        tampered.rows[number - 1][column] = value
        with pytest.raises(LedgerFault, match=f"entry {number} fails") as caught:
            verify_ledger(tampered)
        assert (caught.value.entry, caught.value.site or "north") == (number, "north")


@pytest.mark.parametrize(
    ("column", "alias"),
    [
        ("study", bytes.fromhex),
        ("context", bytes.fromhex),
        ("population", str.encode),
        ("delta", float.hex),
        ("round", str),
        ("round", float),
        ("hash", str.upper),
        ("signature", str.upper),
        ("signature", lambda value: value + " "),
        ("study", str.upper),
    ],
)
def test_values_of_another_type_do_not_pass_for_the_same(ledger: Copy, column: str, alias: Any) -> None:
    """A database file takes any type in any column, and some hash as the right one does."""
    ledger.rows[3][column] = alias(ledger.rows[3][column])
    with pytest.raises(LedgerFault, match="entry 4 fails"):
        verify_ledger(ledger)


def test_a_number_written_as_its_text_is_no_number(ledger: Copy) -> None:
    """The delta of a refusal, which no rule compares with anything, as the hexadecimal text that is hashed of it."""
    ledger.rows[7]["delta"] = ledger.rows[7]["delta"].hex()
    with pytest.raises(LedgerFault, match=r"entry 8 fails: .* its delta is of the wrong type"):
        verify_ledger(ledger)


def test_entries_of_two_chains_are_not_spliced(ledger: Copy) -> None:
    """Genuine entries of the site, signed and numbered, but of another chain: they name another entry before them."""
    ledger.cut(11)  # without the checkpoint, which names an entry by its hash
    fork = ledger.again()
    fork.rows[7]["time"] += 1
    resign(fork)
    assert verify_ledger(fork).entries == 11
    ledger.rows[8:], ledger.kept[8:] = fork.rows[8:], fork.kept[8:]
    with pytest.raises(LedgerFault, match="entry 9 fails: it does not name the hash of the entry before it"):
        verify_ledger(ledger)


def test_numbers_rise_by_one_whoever_signs(ledger: Copy) -> None:
    """A chain that leaves a number out, hashed and signed by the site so that all else fits."""
    resign(ledger)
    previous = ledger.rows[6]["hash"]
    for row in ledger.rows[7:]:
        row["seq"], row["previous"] = row["seq"] + 1, previous
        content = {name: value for name, value in row.items() if name not in ("hash", "signature")}
        content |= {name: json.loads(row[name]) for name in ("event", "detail") if row[name] is not None}
        previous = row["hash"] = hashlib.sha256(canonical(content)).hexdigest()
        signer = credentials_of(secret=1 if row["seq"] <= SECOND else 2)
        row["signature"] = signer.signing_key.sign(Label.LEDGER, bytes.fromhex(previous)).hex()
    with pytest.raises(LedgerFault, match="entry 8 fails: its number does not follow"):
        verify_ledger(ledger)


def test_a_missing_entry_is_named(ledger: Copy) -> None:
    for number in range(1, 12):
        cut = ledger.again()
        cut.drop(number)
        with pytest.raises(LedgerFault, match=f"entry {number} fails"):
            verify_ledger(cut)
    head = bytes.fromhex(ledger.rows[-1]["hash"])
    ledger.cut(11)
    assert verify_ledger(ledger).entries == 11, "alone it cannot know"
    with pytest.raises(LedgerFault, match="ends at entry 11") as caught:
        verify_ledger(ledger, head=head)
    assert caught.value.entry == 12
    with pytest.raises(LedgerFault, match="goes on to entry 11") as caught:
        verify_ledger(ledger, head=bytes.fromhex(ledger.rows[7]["hash"]))
    assert caught.value.entry == 9
    ledger.cut(0)
    with pytest.raises(LedgerFault, match="empty"):
        verify_ledger(ledger)


def test_a_chain_made_anew_lacks_the_signature(ledger: Copy) -> None:
    ledger.rows[1]["time"] += 1
    signatures = [row["signature"] for row in ledger.rows]
    for row, signature in zip(resign(ledger).rows, signatures, strict=True):
        row["signature"] = signature
    with pytest.raises(LedgerFault, match="entry 2 fails: its signature"):
        verify_ledger(ledger)


def test_each_key_signs_from_its_entry_on(ledger: Copy) -> None:
    """The old key signs nothing after the new one is named, nor the new one before."""
    first, second = credentials_of(), credentials_of(secret=2)
    for keys, fails in (
        (((1, first),), SECOND),
        (((1, first), (SECOND + 1, second)), SECOND),
        (((1, first), (SECOND - 1, second)), SECOND - 1),
        (((1, second),), 1),
        (((1, first), (SECOND, second), (12, first)), 12),
    ):
        with pytest.raises(LedgerFault, match=f"entry {fails} fails: its signature"):
            verify_ledger(ledger.again().resign(*keys))


def named(credentials: Credentials, *, authority: bool = False) -> dict[str, Any]:
    detail: dict[str, Any] = {"certificate": credentials.identity.certificate}
    if authority:
        detail["authority"] = credentials.authority.public_bytes(Encoding.DER)
    return detail


def test_whose_keys_may_sign(ledger: Copy) -> None:
    """Only keys that the ledger's one authority issued for its name and role, valid when they were named."""
    elsewhere = credentials_of(of="elsewhere")
    with pytest.raises(LedgerFault, match="entry 1 fails: the ledger belongs to another federation"):
        verify_ledger(ledger, authority=elsewhere.authority)
    forged = Copy.of(open_ledger(":memory:", credentials=elsewhere))
    assert verify_ledger(forged).site == "north", "that it is not ours, only the authority's certificate can tell"
    with pytest.raises(LedgerFault, match="another federation"):
        verify_ledger(forged, authority=credentials_of().authority)
    for other, detail, fault in [
        (elsewhere, named(elsewhere), "issuer|invalid|was not issued"),
        (elsewhere, named(elsewhere, authority=True), "different authority"),
        (credentials_of("south"), named(credentials_of("south")), "not the owner's"),
        (credentials_of(role=Role.ANALYST), named(credentials_of(role=Role.ANALYST)), "not of a participant"),
        (credentials_of(secret=3), {"certificate": b"x"}, "not a single X.509"),
        (credentials_of(secret=3), {}, "certificate is missing"),
    ]:
        changed = ledger.again()
        changed.rows[SECOND - 1]["detail"] = canonical(detail).decode()
        changed.resign((1, credentials_of()), (SECOND, other))
        with pytest.raises(LedgerFault, match=f"(?i)entry {SECOND} fails: .*({fault})"):
            verify_ledger(changed)
    late = ledger.again()
    late.rows[SECOND - 1]["time"] += 20 * 365 * 86_400
    with pytest.raises(LedgerFault, match=f"entry {SECOND} fails: .*expired"):
        verify_ledger(resign(late))


def drop(number: int) -> Change:
    return lambda ledger: ledger.drop(number)


def repeat(number: int) -> Change:
    return lambda ledger: ledger.insert(len(ledger.rows) + 1, ledger.rows[number - 1])


def put(number: int, **columns: Any) -> Change:
    return lambda ledger: ledger.rows[number - 1].update(columns)


def detail(number: int, **values: Any) -> Change:
    return lambda ledger: ledger.detail(number, **values)


def event(number: int, **values: Any) -> Change:
    return lambda ledger: ledger.event(number, **values)


def end_second_attempt(ledger: Copy) -> None:
    """Charge round 1 a second time, by an attempt reserved before the first charge."""
    reserve = {**ledger.rows[2], **make_reservation(1, 2).columns()}
    ledger.insert(3, reserve)
    ledger.insert(7, {**reserve, "kind": "charge"})


def recover_again(ledger: Copy) -> None:
    ledger.insert(13, ledger.rows[10])


def recover_a_charge(ledger: Copy) -> None:
    """A recovery of what was charged already."""
    ledger.insert(13, {**ledger.rows[10], **make_reservation(1).columns()})


def figures(**changes: Any) -> Change:
    def change(ledger: Copy) -> None:
        stated = json.loads(ledger.rows[11]["detail"])["populations"]["heart"]
        ledger.detail(12, populations={"heart": {**stated, **changes}})

    return change


MALFORMED = [
    put(3, kind="gift"),
    put(3, event="[]"),
    put(3, study="xyz"),
    put(3, colluders=None),
    put(3, detail="[]"),
    event(3, variance=[0, 1]),
    event(3, variance=[16_000_000, 2]),
    event(3, share_variance=[16_000_000, 1]),
    event(3, steps=0),
    event(3, steps=-5),
    event(3, sampling_rate=(2.0).hex()),
    event(3, sampling_rate="nan"),
    event(3, sensitivity="1000"),
    event(3, extra=1),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "number", "fault"),
    [
        (drop(1), 1, "one genesis"),
        (repeat(1), 13, "one genesis"),
        (detail(1, random="00"), 1, "random bytes"),
        (detail(1, site=None), 1, "whose ledger"),
        (detail(1, role="analyst"), 1, "keeps no ledger"),
        (detail(1, authority=None), 1, "no authority"),
        (drop(2), 2, "no budget"),
        (put(2, population=None), 2, "no population"),
        (put(2, delta=None), 2, "sets no budget"),
        (detail(2, epsilon="0x1p99999"), 2, "budget of a ledger entry is malformed"),
        (detail(2, epsilon="abc"), 2, "budget of a ledger entry is malformed"),
        (detail(2, epsilon=(-1.0).hex()), 2, "budget of a ledger entry is malformed"),
        (detail(2, adaptive="loose"), 2, "written by a newer version"),
        (detail(2, operator=None), 2, "who set the budget"),
        (detail(2, reason=5), 2, "who set the budget"),
        (detail(2, epsilon=(1.2).hex()), 6, "exceeded the budget"),
        (drop(3), 3, "no reservation"),
        (repeat(3), 13, "context was reserved before"),
        (repeat(4), 13, "charged or freed before"),
        (repeat(5), 13, "released before"),
        (drop(4), 4, "never charged"),
        (put(4, cohort_size=5), 4, "not the one that was reserved"),
        (put(4, delta=0.25), 4, "not the one that was reserved"),
        (put(4, unit="patient"), 4, "not the one that was reserved"),
        (put(4, population="lung"), 4, "not the one that was reserved"),
        (put(3, delta=0.25), 3, "delta is not the budget's"),
        (put(5, dataset="x"), 5, "not the one that was charged"),
        (event(4, sensitivity=1), 4, "not the one that was reserved"),
        (put(7, kind="charge", **make_reservation(1).columns()), 7, "charged or freed before"),
        (put(6, attempt=1, round=1), 6, "attempt was reserved before"),
        (put(6, attempt=2, round=1), 6, "round was charged before"),
        (end_second_attempt, 7, "round was charged before"),
        (put(3, dataset=None), 3, "no complete release"),
        (put(3, event=None), 3, "no complete release"),
        (put(3, cohort_size=3), 3, "more honest shares"),
        (put(3, event='{"mechanism": "x"}'), 3, "canonical"),
        (put(8, detail="{}"), 8, "refusal is malformed"),
        (detail(8, figures={"after": "0x1p99999"}), 8, "refusal is malformed"),
        (detail(8, figures={"after": "much"}), 8, "refusal is malformed"),
        (detail(8, figures=[]), 8, "refusal is malformed"),
        (recover_again, 13, "charged before"),
        (recover_a_charge, 13, "charged before"),
        (detail(11, receipt=["00", "00"]), 11, "canonical JSON"),
        (detail(11, receipt=None), 11, "missing or malformed"),
        (detail(11, certificate="00"), 11, "certificate of its receipt is missing"),
        (put(11, dataset="x"), 11, "for another release"),
        (put(11, delta=0.25), 11, "delta is not the budget's"),
        (put(11, round=77), 11, "for another release"),
        (put(11, kind="charge"), 11, "no reservation"),
        (put(11, kind="receipts"), 11, "only a coordinator's mirror"),
        (put(11, kind="consent"), 11, "only a coordinator's mirror"),
        (figures(releases=3), 12, "figures for heart do not follow"),
        (figures(spent=(1.0).hex()), 12, "figures for heart do not follow"),
        (figures(spent=None), 12, "figures for heart do not follow"),
        (figures(estimate=(1.0).hex()), 12, "figures for heart do not follow"),
        (figures(spent="0x1p99999"), 12, "figures are malformed"),
        (figures(spent="x"), 12, "figures are malformed"),
        (detail(12, populations={}), 12, "every population"),
        (detail(12, upto=3), 12, "does not hold"),
        (detail(12, upto=12), 12, "does not hold"),
        (detail(12, head="00" * 32), 12, "does not hold"),
        (detail(4, receipts="00" * 32), 4, "receipt is missing|not those that it covers"),
        *((change, 3, "malformed|written by a newer version") for change in MALFORMED),
    ],
)
def test_what_the_site_signs_must_still_follow_the_rules(ledger: Copy, change: Change, number: int, fault: str) -> None:
    change(ledger)
    with pytest.raises(LedgerFault, match=rf"entry {number} fails.*({fault})") as caught:
        verify_ledger(resign(ledger))
    assert caught.value.entry == number


def test_receipts_that_no_entry_covers(ledger: Copy) -> None:
    ledger.kept[4].append({"entry": 5, "position": 0})
    with pytest.raises(LedgerFault, match="entry 5 fails: receipts are kept with it, but it covers none"):
        verify_ledger(ledger)


def test_a_budget_met_exactly_passes_in_every_version() -> None:
    """Versions may round an epsilon differently in its last digits; a millionth more than the budget is still too much."""
    ledger = open_ledger(":memory:")
    release = make_reservation()
    set_budget(ledger, 3.0)
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, release)
    reserved = ledger.spending("heart").reserved
    for share, passes in ((1.0, True), (1 - 1e-9, True), (1 - 1e-5, False)):
        changed = Copy.of(ledger)
        changed.detail(2, epsilon=(reserved * share).hex())
        changed.resign((1, credentials_of()))
        if passes:
            assert verify_ledger(changed).entries == 3
        else:
            with pytest.raises(LedgerFault, match="entry 3 fails: it exceeded the budget"):
                verify_ledger(changed)


def test_a_charge_must_fit_the_budget_of_its_time() -> None:
    """Reserved under a budget that was lowered before the charge: the gate refuses it, and so does the verification."""
    ledger = open_ledger(":memory:")
    set_budget(ledger, 3.0)
    release = make_reservation()
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, release)
        ledger.charge(connection, release.context)
    changed = Copy.of(ledger)
    changed.insert(4, changed.rows[1])
    changed.detail(4, epsilon=(0.5).hex())
    with pytest.raises(LedgerFault, match="entry 5 fails: it exceeded the budget"):
        verify_ledger(changed.resign((1, credentials_of())))


def test_a_strict_budget_is_verified_as_one() -> None:
    ledger = open_ledger(":memory:")
    set_budget(ledger, 1.02)
    with ledger.database.transaction() as connection:
        ledger.reserve(connection, make_reservation())
    changed = Copy.of(ledger)
    assert verify_ledger(changed).entries == 3
    changed.detail(2, adaptive="strict")
    with pytest.raises(LedgerFault, match="entry 3 fails: it exceeded the budget"):
        verify_ledger(changed.resign((1, credentials_of())))


def test_tampering_with_the_file_is_found() -> None:
    ledger = make_ledger()
    with ledger.database.transaction() as connection:
        connection.execute(text("DROP TRIGGER ledger_no_update"))
        connection.execute(text("UPDATE ledger SET delta = 0.49 WHERE seq = 4"))
    with pytest.raises(LedgerFault, match="entry 4 fails: it was changed after it was written") as caught:
        ledger.verify()
    assert (caught.value.entry, caught.value.site) == (4, "north")
    with pytest.raises(HostileInput, match="does not hold the named head"):
        make_ledger().verify(head=hashlib.sha256(STUDY).digest())


def test_the_recovered_receipt_must_be_the_sites_own(ledger: Copy) -> None:
    """Another site's genuine receipt, or a forged one, behind a chain that the site signed anew."""
    south = open_ledger(":memory:", "south")
    release = make_reservation(5)
    theirs = make_receipt(south, release, 3)
    fingerprint = hashlib.sha256(credentials_of("south").identity.certificate).hexdigest()
    ledger.certificates[fingerprint] = credentials_of("south").identity.certificate
    body, _ = json.loads(ledger.rows[10]["detail"])["receipt"]
    forged = ledger.again()
    forged.detail(11, receipt=[body, theirs.signature])
    with pytest.raises(LedgerFault, match="entry 11 fails: the receipt of north is not signed by that member"):
        verify_ledger(resign(forged))
    ledger.detail(11, receipt=[theirs.body, theirs.signature], certificate=fingerprint)
    with pytest.raises(LedgerFault, match="entry 11 fails: its receipt is not the site's own"):
        verify_ledger(resign(ledger.again()))
    own = json.loads(ledger.rows[10]["detail"])["certificate"]
    ledger.detail(11, certificate=own)
    with pytest.raises(LedgerFault, match="entry 11 fails"):
        verify_ledger(resign(ledger))


def test_an_open_reservation_is_recovered_as_it_was_reserved(ledger: Copy) -> None:
    third = make_reservation(3)
    signed = make_receipt(open_ledger(":memory:", credentials=credentials_of(secret=2)), third, 9)
    recovery = {**ledger.rows[10], **third.columns()}
    ledger.insert(13, recovery)
    ledger.detail(13, receipt=[signed.body, signed.signature])
    assert verify_ledger(resign(ledger.again())).receipts == 2
    ledger.rows[12]["population"] = "lung"
    with pytest.raises(LedgerFault, match="entry 13 fails: its release is not the one that was reserved"):
        verify_ledger(resign(ledger))


def test_faults_speak_plainly(ledger: Copy) -> None:
    """One line that names the entry and what to do, without a path, a secret or a term of the implementation."""
    ledger.rows[5]["time"] += 1
    with pytest.raises(LedgerFault) as caught:
        verify_ledger(ledger)
    assert str(caught.value) == (
        "Ledger entry 6 fails: it was changed after it was written: its hash is not that of its content. "
        "Keep the file as it is and compare it with the mirror."
    )


def test_other_studies_do_not_matter_to_a_round() -> None:
    ledger = open_ledger(":memory:")
    set_budget(ledger, 9.0)
    with ledger.database.transaction() as connection:
        for study in (STUDY, OTHER_STUDY):
            ledger.reserve(connection, make_reservation(study=study))
            ledger.charge(connection, make_reservation(study=study).context)
    assert ledger.verify().entries == 6
    assert replace(make_reservation(), study=OTHER_STUDY).context == make_reservation().context
