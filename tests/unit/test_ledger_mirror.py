"""The coordinator's mirror on every database: what was shown, who consented, what was released; nothing else of a site."""

# ruff: noqa: S608 - fixed text

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from support.backends import BACKENDS, new_place
from support.fresh import LEDGER
from support.ledgers import (
    COORDINATOR,
    OTHER_STUDY,
    STUDY,
    Shown,
    Trial,
    credentials_of,
    make_consent,
    make_receipt,
    open_ledger,
    open_mirror,
)
from support.tampering import Change, Copy
from veilsum_node.canonical import digest
from veilsum_node.errors import Damage, HostileInput, Misuse, StateError
from veilsum_node.identity import Role
from veilsum_privacy.ledger import Kind, LedgerFault, LedgerReader, Mirrored, verify_ledger
from veilsum_privacy.ledger.receipts import parse_countersignature, receipts_digest, verify_countersignature


@pytest.fixture(params=BACKENDS)
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Trial:
    return Trial(("north", "south", "east"), lambda _: new_place(request.param, tmp_path, LEDGER))


def test_a_round_in_the_mirror(trial: Trial) -> None:
    mirror = trial.mirror
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    entry = mirror.entries(kind=Kind.RECEIPTS)[0]
    assert (entry.study, entry.round, entry.attempt, entry.context) == (STUDY, 1, 1, release.context)
    assert (entry.dataset, entry.mechanism, entry.unit) == (release.dataset, release.mechanism, release.unit)
    assert (entry.cohort_size, entry.colluders, entry.population, entry.delta) == (3, 1, None, None)
    assert entry.detail == {"receipts": receipts_digest(shown.receipts).hex(), "cohort": list(trial.names)}
    word = parse_countersignature(shown.countersigned.body)
    assert (word.coordinator, word.entry, word.head) == (COORDINATOR, entry.seq, entry.hash)
    identity = credentials_of(COORDINATOR, role=Role.COORDINATOR).identity
    verify_countersignature(shown.countersigned, identity, STUDY, release.context, shown.receipts)
    assert [trial.consent(name, shown) for name in trial.names] == [None, None, 3]
    consents = [hashlib.sha256(make_consent(name, release.context)).digest() for name in trial.names]
    assert mirror.entries(kind=Kind.CONSENT)[0].detail == {"consents": digest("veilsum/1/consents", *consents).hex()}
    with mirror.database.transaction() as connection:
        assert mirror.released(connection, release.context, b"\7" * 32) == 4
    assert mirror.entries(kind=Kind.RELEASE_SEEN)[0].detail == {"digest": "07" * 32}
    kept = mirror.receipts()
    assert [item.receipt for item in kept] == list(shown.receipts)
    assert [item.consent for item in kept] == consents
    assert (mirror.role, mirror.site) == (Role.COORDINATOR, COORDINATOR)
    verified = mirror.verify()
    assert (verified.entries, verified.receipts, verified.spending) == (4, 3, {})


def test_repeating_changes_nothing(trial: Trial) -> None:
    shown = trial.play(1)
    entries, certificates = trial.mirror.entries(), trial.certificates
    with trial.mirror.database.transaction() as connection:
        again = trial.mirror.show(connection, shown.receipts, certificates)
        assert again.body == shown.countersigned.body
        identity = credentials_of(COORDINATOR, role=Role.COORDINATOR).identity
        verify_countersignature(again, identity, STUDY, shown.release.context, shown.receipts)
        for name in trial.names:
            consent = make_consent(name, shown.release.context)
            assert trial.mirror.consented(connection, shown.release.context, name, consent) == 3
        assert trial.mirror.released(connection, shown.release.context, b"other") == 4
    assert trial.mirror.entries() == entries


def test_a_consent_is_given_once(trial: Trial) -> None:
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    trial.consent("north", shown)
    for name, consent, error, fault in [
        ("north", bytes(32), HostileInput, "other bytes before"),
        ("north", b"short", Misuse, "32 bytes"),
        ("south", bytes(32), HostileInput, "not the one that its receipt commits it to"),
        ("west", bytes(32), StateError, "No receipt of west"),
    ]:
        with pytest.raises(error, match=fault), trial.mirror.database.transaction() as connection:
            trial.mirror.consented(connection, release.context, name, consent)
    with pytest.raises(StateError, match="No receipt of north"), trial.mirror.database.transaction() as connection:
        trial.mirror.consented(connection, bytes(32), "north", bytes(32))
    with pytest.raises(StateError, match="not all of its cohort"), trial.mirror.database.transaction() as connection:
        trial.mirror.released(connection, release.context)
    assert [item.consent is None for item in trial.mirror.mirrored("north")] == [False]
    assert [item.consent for item in trial.mirror.mirrored("south")] == [None]
    assert trial.mirror.verify().entries == 2


def test_what_does_not_fit_is_not_shown(trial: Trial) -> None:
    first = trial.play(1)
    release = trial.release(2)
    trial.reserve(release)
    receipts = [trial.receipt(name, release) for name in trial.names]
    south = trial.ledgers["south"]
    certificates = trial.certificates
    lone = open_ledger(":memory:", credentials=credentials_of("south", of="elsewhere"))
    wrong = {
        "no receipts": ([], certificates),
        "not exactly one": (receipts[:2], certificates),
        "one receipt for each": ([receipts[0], receipts[0], receipts[2]], certificates),
        "number 1, but number 1": ([receipts[0], make_receipt(south, release, 1), receipts[2]], certificates),
        "receipt of south describes a different release": (
            [receipts[0], make_receipt(south, release, 7, unit="subject"), receipts[2]], certificates,
        ),
        "receipt of south describes": ([receipts[0], make_receipt(south, release, 7, round=3), receipts[2]], certificates),
        "another context": ([receipts[0], first.receipts[1], receipts[2]], certificates),
        "receipt of south is not signed by": (
            [receipts[0], replace(receipts[1], signature=receipts[0].signature), receipts[2]], certificates,
        ),
        "receipt of east is not signed by": (receipts, {**certificates, "east": certificates["north"]}),
        "certificate of south does not hold": (
            [receipts[0], make_receipt(lone, release, 7), receipts[2]],
            {**certificates, "south": credentials_of("south", of="elsewhere").identity.certificate},
        ),
        "no certificate of east": (receipts, {name: certificates[name] for name in ("north", "south")}),
    }  # fmt: skip
    for fault, (shown, known) in wrong.items():
        with pytest.raises(HostileInput, match=f"(?i){fault}"), trial.mirror.database.transaction() as connection:
            trial.mirror.show(connection, shown, known)
    other = [make_receipt(trial.ledgers[name], first.release, 30) for name in trial.names]
    with pytest.raises(StateError, match="Other receipts"), trial.mirror.database.transaction() as connection:
        trial.mirror.show(connection, other, certificates)
    assert len(trial.mirror.entries()) == 4
    assert len(trial.mirror.receipts()) == 3


def test_a_participants_own_receipts(trial: Trial) -> None:
    shown = [trial.play(1), trial.play(2), trial.play(1, study=OTHER_STUDY)]
    found = trial.mirror.mirrored("south")
    assert found == [
        Mirrored(item.receipts[1], entry, make_consent("south", item.release.context))
        for item, entry in zip(shown, (2, 5, 8), strict=True)
    ]
    assert trial.mirror.mirrored("south", after=5) == found[2:]
    assert trial.mirror.mirrored("south", after=8) == trial.mirror.mirrored("nobody") == []


def test_what_consents_cost_by_participant(trial: Trial) -> None:
    trial.play(1)
    trial.play(2, multiplier=8.0)
    trial.play(3)
    release = trial.release(4)
    trial.reserve(release)
    trial.consent("east", trial.show(release))  # the others never answer
    dear, cheap = release.mechanism, trial.release(2, multiplier=8.0).mechanism
    everyone = Counter({dear: 2, cheap: 1})
    expected = {"north": everyone, "south": everyone, "east": everyone + Counter([dear])}
    trial.play(1, study=OTHER_STUDY)
    assert trial.mirror.spending("heart-2024", [STUDY]) == expected
    assert trial.mirror.spending("heart-2024", [OTHER_STUDY]) == {name: Counter([dear]) for name in expected}
    assert trial.mirror.spending("heart-2024", []) == {}
    both = {name: counts + Counter([dear]) for name, counts in expected.items()}
    assert trial.mirror.spending("heart-2024") == trial.mirror.spending("heart-2024", [STUDY, OTHER_STUDY]) == both
    assert trial.mirror.spending("other") == {}


def test_a_mirror_is_one_coordinators(trial: Trial) -> None:
    database = trial.mirror.database
    with pytest.raises(Misuse, match="Only a coordinator"):
        open_mirror(database, credentials=credentials_of("north"))
    with pytest.raises(StateError, match="belongs to coordinator, not to other"):
        open_mirror(database, credentials=credentials_of("other", role=Role.COORDINATOR))
    with pytest.raises(StateError, match="coordinator's, not a participant's"):
        open_ledger(database, credentials=credentials_of(COORDINATOR))
    open_mirror(database, credentials=credentials_of(COORDINATOR, role=Role.COORDINATOR, secret=2))
    trial.mirror = open_mirror(database, credentials=credentials_of(COORDINATOR, role=Role.COORDINATOR, secret=2))
    shown = trial.play(1)
    assert len(trial.mirror.verify().keys) == 2
    assert all(ledger.verify(against=[trial.mirror]).receipts == 3 for ledger in trial.ledgers.values())
    assert LedgerReader(database).populations() == []
    assert shown.countersigned.body != b""


def test_the_database_shows_a_context_once(trial: Trial) -> None:
    trial.play(1)
    for number, kind in ((2, "receipts"), (3, "consent"), (4, "release-seen")):
        copied = (
            "INSERT INTO ledger SELECT 5, time, kind, study, round, attempt, population, dataset, event, delta, unit, "
            f"cohort_size, colluders, context, detail, 'p', 'h', signature FROM ledger WHERE seq = {number}"
        )
        with pytest.raises(Damage, match=r"(?i)unique"), trial.mirror.database.transaction() as connection:
            connection.execute(text(copied))
        assert trial.mirror.entries()[number - 1].kind == kind


# -- verification


@pytest.fixture(scope="module")
def original() -> tuple[Copy, Shown]:
    """1 genesis, 2 receipts, 3 consent, 4 release of round 1, 5 receipts of round 2."""
    trial = Trial(("north", "south", "east"))
    shown = trial.play(1)
    release = trial.release(2)
    trial.reserve(release)
    trial.show(release)
    return Copy.of(trial.mirror), shown


@pytest.fixture
def mirror(original: tuple[Copy, Shown]) -> Copy:
    return original[0].again()


def resign(mirror: Copy) -> Copy:
    return mirror.resign((1, credentials_of(COORDINATOR, role=Role.COORDINATOR)))


def detail(number: int, **values: object) -> Change:
    return lambda ledger: ledger.detail(number, **values)


def put(number: int, **columns: object) -> Change:
    return lambda ledger: ledger.rows[number - 1].update(columns)


def kept(entry: int, at: int, **values: object) -> Change:
    return lambda ledger: ledger.kept[entry - 1][at].update(values)


def lose(number: int, position: int) -> Change:
    def change(ledger: Copy) -> None:
        del ledger.kept[number - 1][position]

    return change


def exchange(ledger: Copy) -> None:
    items = ledger.kept[1]
    items[0], items[1] = items[1], items[0]


def exchange_signatures(ledger: Copy) -> None:
    one, other = ledger.kept[1][:2]
    one["signature"], other["signature"] = other["signature"], one["signature"]


def exchange_consents(ledger: Copy) -> None:
    one, other = ledger.kept[1][:2]
    one["consent"], other["consent"] = other["consent"], one["consent"]


def repeat(number: int) -> Change:
    return lambda ledger: ledger.insert(6, ledger.rows[number - 1], ledger.kept[number - 1])


@pytest.mark.parametrize(
    ("change", "number", "fault"),
    [
        (lambda ledger: None, 0, ""),
        (lambda ledger: ledger.drop(2), 2, "never shown"),
        (lambda ledger: ledger.drop(3), 3, "never consented"),
        (repeat(2), 6, "shown before"),
        (repeat(3), 6, "consented to before"),
        (repeat(4), 6, "released before"),
        (put(3, dataset="x"), 3, "not the one whose receipts were shown"),
        (put(4, round=9), 4, "not the one whose receipts were shown"),
        (put(2, dataset="x"), 2, "receipt of north is for another release"),
        (put(2, cohort_size=4), 2, "one receipt for each member"),
        (put(2, context=None), 2, "no complete release"),
        (put(5, kind="reserve"), 5, "only a site's own ledger"),
        (put(5, kind="budget"), 5, "only a site's own ledger"),
        (put(5, kind="checkpoint"), 5, "only a site's own ledger"),
        (detail(2, cohort=["north", "south", "west"]), 2, "not those of the cohort"),
        (detail(2, receipts="00" * 32), 2, "changed, lost or swapped"),
        (detail(2, receipts=None), 2, "covers none"),
        (detail(3, consents="00" * 32), 3, "consents kept for it"),
        (lose(2, 0), 2, "a receipt is missing"),
        (lose(2, 2), 2, "changed, lost or swapped"),
        (exchange, 2, "a receipt is missing"),
        (exchange_signatures, 2, "is not signed by that member"),
        (exchange_consents, 2, "commits it to"),
        (kept(2, 1, consent=None), 3, "consents kept for it"),
        (kept(2, 1, consent="00" * 32), 2, "commits it to"),
        (kept(2, 1, consent="xyz"), 2, "kept receipt is malformed"),
        (kept(2, 1, body="{}"), 2, "exactly the fields"),
        (kept(2, 1, body=None), 2, "malformed"),
        (kept(2, 1, number=77), 2, "contradict"),
        (kept(2, 1, participant="north"), 2, "contradict"),
        (kept(2, 1, head="00" * 32), 2, "contradict"),
        (kept(2, 1, signature="00"), 2, "is not signed by that member"),
        (kept(2, 1, signature="0"), 2, "malformed"),
        (kept(2, 1, certificate="00"), 2, "certificate of a kept receipt is missing"),
        (kept(2, 1, position="1"), 2, "malformed"),
    ],
)
def test_every_fault_of_a_mirror_is_named(mirror: Copy, change: Change, number: int, fault: str) -> None:
    change(mirror)
    resign(mirror)
    if not number:
        assert verify_ledger(mirror).receipts == 6
        return
    with pytest.raises(LedgerFault, match=f"entry {number} fails: .*{fault}") as caught:
        verify_ledger(mirror)
    assert (caught.value.entry, caught.value.site) == (number, COORDINATOR)


def test_a_receipt_by_somebody_elses_key_is_named(mirror: Copy) -> None:
    """The certificate of another member, or of another federation, in place of the signer's."""
    north, south = (mirror.kept[1][position]["certificate"] for position in (0, 1))
    swapped = mirror.again()
    swapped.certificates[south] = mirror.certificates[north]
    with pytest.raises(LedgerFault, match="entry 2 fails: the receipt of south is signed by north"):
        verify_ledger(swapped)
    mirror.certificates[south] = credentials_of("south", of="elsewhere").identity.certificate
    with pytest.raises(LedgerFault, match="entry 2 fails"):
        verify_ledger(mirror)


def _with_receipts(mirror: Copy, number: int, make: Callable[[], list], names: tuple[str, ...]) -> None:
    """Put freshly signed receipts behind an entry, with everything that repeats them."""
    receipts = make()
    for item, signed in zip(mirror.kept[number - 1], receipts, strict=True):
        value = json.loads(signed.body)
        item.update(body=signed.body.decode(), signature=signed.signature.hex())
        item.update({name: value[name] for name in ("context", "participant", "study", "round", "attempt", "number", "head")})
    mirror.detail(number, receipts=receipts_digest(receipts), cohort=list(names))


def test_a_replayed_number_is_named(mirror: Copy) -> None:
    """Genuine signatures of every member, but one number was used in round 1 already."""
    trial = Trial(("north", "south", "east"))
    release = trial.release(2)
    for numbers, fails in (((2, 2, 2), False), ((2, 1, 2), True), ((5, 9, 2), False)):
        changed = mirror.again()

        def make(numbers: tuple[int, ...] = numbers) -> list:
            return [
                make_receipt(trial.ledgers[name], release, number) for name, number in zip(trial.names, numbers, strict=True)
            ]

        _with_receipts(changed, 5, make, trial.names)
        resign(changed)
        if fails:
            with pytest.raises(LedgerFault, match="entry 5 fails: the receipt of south is replayed: its number 1"):
                verify_ledger(changed)
        else:
            assert verify_ledger(changed).receipts == 6


def test_an_orphaned_receipt_is_named() -> None:
    trial = Trial(("north", "south", "east"))
    trial.play(1)
    with trial.mirror.database.transaction() as connection:
        columns = "position, context, participant, study, round, attempt, number, head, body, signature, certificate"
        connection.execute(text(
            f"INSERT INTO ledger_receipt (entry, {columns}) SELECT 77, position, 'c', participant, study, round, attempt, "
            "number + 9, head, body, signature, certificate FROM ledger_receipt WHERE position = 0"
        ))  # fmt: skip
    with pytest.raises(LedgerFault, match="kept with entry 77, which does not exist"):
        trial.mirror.verify()
