"""What one ledger cannot know by itself, others' show: a truncated tail, a restored or forked copy, on either side."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.ledgers import COORDINATOR, OTHER_STUDY, Trial, credentials_of, make_receipt, open_ledger, open_mirror, set_budget
from support.tampering import Copy
from veilsum_node.identity import Role
from veilsum_privacy.ledger import LedgerFault, LedgerReader, Witness, read_export, verify_ledger, write_jsonl

SITES = ("north", "south", "east")


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(SITES, lambda name: tmp_path / f"{name}.db")


def restore(trial: Trial, name: str, act: Callable[[], object]) -> None:
    """Copy a party's file, let the federation go on, and put the copy back."""
    party = trial.mirror if name == COORDINATOR else trial.ledgers[name]
    path = Path(str(party.database.engine.url.database))
    party.database.close()
    backup = path.with_suffix(".backup")
    shutil.copyfile(path, backup)
    act()
    party.database.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(backup, path)
    if name == COORDINATOR:
        trial.mirror = open_mirror(path, clock=trial.clock)
    else:
        trial.ledgers[name] = open_ledger(path, name, clock=trial.clock)


def test_honest_ledgers_fit(trial: Trial) -> None:
    """Concurrent studies, attempts that were given up before and after they were shown, a consent that came alone."""
    trial.play(1)
    trial.play(1, study=OTHER_STUDY)
    lost, shown, partly = trial.release(2), trial.release(2, 2), trial.release(2, 3)
    trial.reserve(lost)
    for name in SITES:
        trial.free(name, lost)
    trial.reserve(shown)
    trial.show(shown)
    for name in SITES:
        trial.free(name, shown)
    trial.reserve(partly)
    word = trial.show(partly)
    trial.charge("east", word)
    trial.consent("east", word)
    for name in ("north", "south"):
        trial.free(name, partly)
    trial.play(3)
    for name, reader in trial.readers.items():
        verified = reader.verify(against=trial.others(name), authority=credentials_of().authority)
        assert verified.site == name


@pytest.mark.parametrize("witness", ["south", COORDINATOR])
def test_a_truncated_tail_is_found_by_a_peer_and_by_the_mirror(trial: Trial, witness: str) -> None:
    """North after round 1: 1 genesis, 2 budget, 3 reserve, 4 charge, 5 release; round 2: 6, 7, 8; round 3: 9, 10, 11.

    Its receipts name entries 3, 6 and 9.
    """
    for number in (1, 2, 3):
        trial.play(number)
    other = trial.readers[witness]
    whole = Copy.of(trial.ledgers["north"])
    for length, last_common in ((8, 6), (6, 6), (5, 3), (3, 3), (2, 0)):
        cut = whole.again()
        cut.cut(length)
        assert verify_ledger(cut).entries == length
        with pytest.raises(LedgerFault) as caught:
            verify_ledger(cut, against=[other])
        assert f"The last entry that both know is {last_common}." in caught.value.message
        assert caught.value.entry == last_common + 1
        assert caught.value.site == "north"
        assert other.verify().entries > 1, "the witness itself is in order"
    for length in (9, 10):  # after the last receipt only the mirror, which holds the consent, or nobody can tell
        cut = whole.again()
        cut.cut(length)
        if witness == COORDINATOR and length == 9:
            with pytest.raises(LedgerFault, match="has not charged receipt number 3 of north for round 3"):
                verify_ledger(cut, against=[other])
        else:
            assert verify_ledger(cut, against=[other]).entries == length


def test_a_restored_backup_is_found_and_settled_by_recovery(trial: Trial) -> None:
    trial.play(1)
    open_before = trial.release(7)
    trial.reserve(open_before)

    def go_on() -> None:
        trial.play(2)
        word = trial.show(open_before)
        for name in SITES:
            trial.charge(name, word)
            trial.consent(name, word)

    restore(trial, "north", go_on)
    north = trial.ledgers["north"]
    with pytest.raises(LedgerFault, match=r"lacks the entry .* receipt number 2 of north .* both know is 3\.") as caught:
        north.verify(against=[trial.readers["east"]])
    assert (caught.value.entry, caught.value.site) == (4, "north")
    with pytest.raises(LedgerFault, match="lacks the entry") as caught:
        trial.readers["east"].verify(against=[north])
    assert (caught.value.entry, caught.value.site) == (4, "north"), "whoever is asked: it is north's ledger that fails"
    for item in trial.mirror.mirrored("north"):
        with north.database.transaction() as connection:
            north.recover(connection, item.receipt, "heart")
    assert north.spending("heart").releases == 3
    trial.play(3)
    for name, reader in trial.readers.items():
        assert reader.verify(against=trial.others(name)).site == name


def test_a_fork_is_found(trial: Trial) -> None:
    """North restores an older copy and goes on as if nothing had been: two chains with one beginning."""
    trial.play(1)
    north = trial.ledgers["north"]
    old: list[Copy] = []

    def go_on() -> None:
        trial.play(2)
        old.append(Copy.of(north))

    restore(trial, "north", go_on)
    trial.play(3)
    forked = trial.ledgers["north"]
    for witness in ("south", COORDINATOR):
        with pytest.raises(LedgerFault, match=r"both know is 3\.") as caught:
            forked.verify(against=[trial.readers[witness]])
        assert (caught.value.entry, caught.value.site) == (4, "north")
    for one, other in ((forked, old[0]), (old[0], forked)):
        with pytest.raises(LedgerFault, match="two versions of the ledger of north: they agree up to entry 5") as caught:
            verify_ledger(one, against=[other])
        assert caught.value.entry == 6
    assert forked.verify().entries == 8


def test_copies_of_one_ledger(trial: Trial) -> None:
    trial.play(1)
    whole = Copy.of(trial.ledgers["north"])
    older = whole.again()
    older.cut(4)
    assert verify_ledger(whole, against=[older, whole]).entries == 5
    with pytest.raises(LedgerFault, match="ends at entry 4, but another copy of it goes on to 5") as caught:
        verify_ledger(older, against=[whole])
    assert caught.value.entry == 5


def test_a_rewound_mirror_is_found_by_a_site(trial: Trial) -> None:
    trial.play(1)
    restore(trial, COORDINATOR, lambda: trial.play(2))
    for number in (2, 3):
        trial.numbers.update({(name, trial.release(1).study): number for name in SITES})
    trial.play(3)
    for name in SITES:
        for one, other in ((trial.mirror, trial.ledgers[name]), (trial.ledgers[name], trial.mirror)):
            with pytest.raises(LedgerFault, match=r"mirror of coordinator lacks its entry 5, .* both know is 2\.") as caught:
                one.verify(against=[other])
            assert (caught.value.entry, caught.value.site) == (3, COORDINATOR)


def test_a_site_that_edits_its_chain_anew_is_found(trial: Trial) -> None:
    """It owns its key: what it makes anew verifies by itself, but no longer fits what it signed for others."""
    trial.play(1)
    trial.play(2)
    anew = Copy.of(trial.ledgers["north"])
    anew.rows[1]["time"] -= 1
    anew.resign((1, credentials_of("north")))
    for number in (4, 7):  # its own receipts name heads of the true chain: it must drop what covers them
        anew.detail(number, receipts=None, countersigned=None, coordinator=None)
        anew.kept[number - 1] = []
    anew.resign((1, credentials_of("north")))
    assert verify_ledger(anew).entries == 8
    for witness in ("south", COORDINATOR):
        with pytest.raises(LedgerFault, match=r"both know is 0\.") as caught:
            verify_ledger(anew, against=[trial.readers[witness]])
        assert caught.value.entry == 1


def test_a_reservation_that_was_edited_out_is_found(trial: Trial) -> None:
    """The heads are there, but the release that the site signed for is not."""
    trial.play(1)
    release = trial.release(2)
    trial.reserve(release)
    north = trial.ledgers["north"]
    phantom = trial.release(3)
    receipts = [make_receipt(ledger, phantom, 5) for ledger in trial.ledgers.values()]
    with trial.mirror.database.transaction() as connection:
        trial.mirror.show(connection, receipts, trial.certificates)
    with pytest.raises(LedgerFault, match="holds no reservation for receipt number 5 of north") as caught:
        north.verify(against=[trial.mirror])
    assert caught.value.entry == 6


def test_a_consent_that_was_never_charged_is_found(trial: Trial) -> None:
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    trial.consent("north", shown)
    trial.free("north", release)
    with pytest.raises(
        LedgerFault, match=r"has not charged receipt number 1 of north .* coordinator holds its consent"
    ) as caught:
        trial.ledgers["north"].verify(against=[trial.mirror])
    assert (caught.value.entry, caught.value.site) == (4, "north")
    assert trial.ledgers["south"].verify(against=[trial.mirror]).entries == 3


def test_a_coordinator_that_shows_two_sets_of_receipts_is_found(trial: Trial, tmp_path: Path) -> None:
    """Two chains of one mirror, each consistent: the members' ledgers tell when they are compared."""
    release = trial.release(1)
    trial.reserve(release)
    shown = trial.show(release)
    trial.charge("north", shown)
    second = open_mirror(tmp_path / "second.db", clock=trial.clock)
    receipts = tuple(make_receipt(ledger, release, 9) for name, ledger in trial.ledgers.items() if name != "north")
    receipts = (shown.receipts[0], *receipts)
    with second.database.transaction() as connection:
        word = second.show(connection, receipts, trial.certificates)
    south = trial.ledgers["south"]
    with south.database.transaction() as connection:
        south.charge(connection, release.context, Witness(receipts, word, trial.certificates))
    with pytest.raises(LedgerFault, match="hold different receipts for one and the same sum") as caught:
        trial.ledgers["north"].verify(against=[south])
    assert caught.value.entry == 4
    with pytest.raises(LedgerFault, match="mirror of coordinator lacks its entry 2"):
        trial.mirror.verify(against=[south])


def test_a_witness_must_verify_itself_and_be_of_the_federation(trial: Trial) -> None:
    trial.play(1)
    north = trial.ledgers["north"]
    broken = Copy.of(trial.ledgers["south"])
    broken.kept[3][0]["signature"] = broken.kept[3][1]["signature"]
    with pytest.raises(LedgerFault, match=r"given to compare with does not verify itself. Ledger entry 4 fails") as caught:
        north.verify(against=[broken])
    assert caught.value.site == "south"
    stranger = open_ledger(":memory:", credentials=credentials_of("south", of="elsewhere"))
    with pytest.raises(LedgerFault, match="another federation"):
        north.verify(against=[stranger])
    with pytest.raises(LedgerFault, match="another federation"):
        north.verify(against=[stranger], authority=credentials_of().authority)


def test_exports_bear_witness_as_databases_do(trial: Trial, tmp_path: Path) -> None:
    trial.play(1)
    trial.play(2)
    exports = {}
    for name, reader in trial.readers.items():
        path = tmp_path / f"{name}.jsonl"
        with path.open("w") as stream:
            write_jsonl(reader, stream)
        exports[name] = read_export(path)
    for name in exports:
        others = [exported for other, exported in exports.items() if other != name]
        assert exports[name].verify(against=others) == trial.readers[name].verify()
    cut = Copy.of(trial.ledgers["north"])
    cut.cut(5)
    for witness in ("east", COORDINATOR):
        with pytest.raises(LedgerFault, match=r"both know is 3\."):
            verify_ledger(cut, against=[exports[witness]])


def test_different_coordinators_do_not_disturb_each_other(trial: Trial, tmp_path: Path) -> None:
    """A site in studies of two coordinators: each mirror holds its own, and both fit."""
    trial.play(1)
    first = trial.mirror
    credentials = credentials_of("second", role=Role.COORDINATOR)
    trial.mirror = open_mirror(tmp_path / "other.db", credentials=credentials, clock=trial.clock)
    trial.play(1, study=OTHER_STUDY)
    for ledger in trial.ledgers.values():
        assert ledger.verify(against=[first, trial.mirror]).receipts == 6
    assert first.verify(against=[trial.mirror, *trial.ledgers.values()]).site == COORDINATOR
    assert LedgerReader(trial.mirror.database).verify(against=[first]).site == "second"
    set_budget(trial.ledgers["north"], 5.0)
