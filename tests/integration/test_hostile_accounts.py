"""A hostile coordinator against ledgers, stores and noise: drained budgets, restarts, rollbacks, clamps, telling refusals."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import make_bed, make_data, make_request, open_test_site, schema_of
from support.hostile import LABEL, NAMES, Adversary, altered, context_of, make_adversary
from support.opening import own_vector
from support.randomness import SeededRandom
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Authority, Credentials, Role, load_credentials, new_key_and_csr
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.protocol import contributions
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt
from veilsum_privacy.mechanism.clipping import SiteSum
from veilsum_privacy.securesum.check_words import CheckAnswer
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def _reopen(attack: Adversary, name: str) -> None:
    """The site's process dies and starts again from its database."""
    site = attack.bed.sites[name]
    site.database.close()
    again = open_test_site(site.config, attack.bed.clock, SYSTEM_RANDOM)
    attack.bed.sites[name] = again
    attack.cores[name] = ParticipantCore(again)


class DeathError(Exception):
    """The process ends here."""


class DyingRandom(RandomSource):
    """Randomness that never comes."""

    def bytes(self, count: int) -> bytes:
        raise DeathError


# -- drained budgets -------------------------------------------------------------------------------------------------------


def test_consent_withheld_to_drain_budgets(attack: Adversary) -> None:
    """Rounds that everyone pays and nobody sees: after max_lost of them a site takes no further part."""
    for number in (1, 2):
        attack.collect(number=number, attempt=number)
        attack.consents(number, number)
    assert attack.assign("a", attack.assignment(number=3, attempt=3)).refused is RefusalCode.LOST
    assert attack.charges("a") == 2
    assert attack.bed.sites["a"].ledger.lost_charges(attack.key) == 2


def test_sum_lost_between_consents_and_storage(attack: Adversary) -> None:
    """The charge stands, and the round has no second attempt; the next round has its own charge."""
    attack.collect()
    attack.consents()
    for name in NAMES:
        assert attack.assign(name, attack.assignment(attempt=2)).refused is RefusalCode.ROUND
    attack.collect(number=2, attempt=3)
    attack.finish(2, 3)
    assert all(attack.charges(name) == 2 for name in NAMES)


def test_releases_that_are_only_claimed(attack: Adversary) -> None:
    """A coordinator that says "released" without opening gets no more charges than the signed study declares."""
    attack.use(altered(attack.study, task__releases=3, nonce="0" * 32))
    attack.set_up()
    for number in (1, 2, 3):
        attack.collect(number=number, attempt=number)
        attack.consents(number, number)
        for name in NAMES:
            assert attack.tell(name, pb.DIRECTIVE_KIND_RELEASED, number, number).call == "confirm"
    assert attack.assign("a", attack.assignment(number=4, attempt=4)).refused is RefusalCode.TASK
    assert attack.charges("a") == 3


def test_release_of_what_was_never_consented_to(attack: Adversary) -> None:
    """RELEASED and END before consent free the reservation; they never charge and never mark a release."""
    attack.collect()
    attack.tell("a", pb.DIRECTIVE_KIND_RELEASED, 1, 1)
    assert attack.kinds("a")[Kind.RELEASE_SEEN.value] == 0
    attack.tell("a", pb.DIRECTIVE_KIND_END)
    assert (attack.charges("a"), attack.kinds("a")["free"]) == (0, 1)
    assert attack.ask_check("a", attack.receipts()).refused is RefusalCode.CLOSED
    assert attack.ask_consent("a", []).refused is RefusalCode.CLOSED


def test_strict_study_with_another_cohort(attack: Adversary) -> None:
    """One cohort for the whole study: a smaller one after the first release would show a site by subtraction."""
    attack.use(altered(attack.study, privacy__cohort_difference="strict", nonce="0" * 32))
    attack.set_up()
    attack.collect()
    attack.finish()
    for name in ("a", "b", "c"):
        said = attack.assign(name, attack.assignment(("a", "b", "c"), 2, 2))
        assert said.refused is RefusalCode.COHORT_CHANGED
    attack.collect(number=2, attempt=3)
    attack.finish(2, 3)


def _set_budget(attack: Adversary, name: str, epsilon: float) -> None:
    site = attack.bed.sites[name]
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, "records", epsilon, 1e-5, reason="less", operator="test", adaptive="gaussian")


def test_budget_refusal_tells_only_its_code(tmp_path: Path) -> None:
    """What a site has left is in its own ledger; what leaves is a code of the list, the study, round and attempt."""
    attack = Adversary(make_bed(tmp_path, make_data(), budget=(0.5, 1e-5)))
    assert attack.enrol("a").refused is RefusalCode.BUDGET
    attack.nothing_said_but_codes("a")
    assert attack.kinds("a") == {"genesis": 1, "budget": 1, "refusal": 1}
    refusal = attack.bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)[0]
    assert refusal.detail["figures"]["after"] is not None
    attack.check_ledgers()


def test_budget_lowered_after_enrolment(attack: Adversary) -> None:
    """A round that the budget does not bear any more is refused before anything is computed, and recorded once."""
    _set_budget(attack, "a", 0.01)
    start = len(attack.channels["a"].said)
    for _ in range(3):
        assert attack.assign("a", attack.assignment()).refused is RefusalCode.BUDGET
    attack.nothing_said_but_codes("a", start)
    assert attack.kinds("a") == {"genesis": 1, "budget": 2, "refusal": 1}
    refusal = attack.bed.sites["a"].ledger.entries(kind=Kind.REFUSAL)[0]
    assert (refusal.round, refusal.detail["figures"]["budget"]) == (1, (0.01).hex())


def test_budget_lowered_between_assignment_and_consent(attack: Adversary) -> None:
    """The operator lowers the budget while a payload is out: no consent, no charge, and a refusal on record."""
    attack.collect()
    answers = attack.answers()
    _set_budget(attack, "a", 0.01)
    for _ in range(2):
        assert attack.ask_consent("a", answers).refused is RefusalCode.BUDGET
    assert (attack.charges("a"), attack.kinds("a")["refusal"]) == (0, 1)
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"


def test_refusals_do_not_depend_on_a_record(tmp_path: Path) -> None:
    """Neighbouring data, and records that no schema allows, lead to the same messages in the same order."""
    heard = []
    for index, extra in enumerate((0.5, 1e6, np.nan)):
        data = make_data()
        features, labels = data["a"]
        data["a"] = np.vstack([features, [[extra, extra]]]), np.append(labels, 7)
        attack = Adversary(make_bed(tmp_path / str(index), data))
        attack.set_up()
        attack.collect()
        attack.consents()
        heard.append([said.call for said in attack.channels["a"].said])
        upload = attack.payloads["a", 1]
        assert sum(map(len, upload.pieces)) == attack.plan().encoding.payload_bytes
    assert heard[0] == heard[1] == heard[2]


def test_unreadable_data_tells_only_its_code(attack: Adversary) -> None:
    """A fault in the site's files is the site's own affair; it is found before a record is read or anything is reserved."""
    attack.bed.sites["a"].config.datasets["records"].path.write_bytes(b"not an archive: 4711")
    start = len(attack.channels["a"].said)
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.DATASET
    assert not attack.bed.sites["a"].ledger.entries(kind=Kind.RESERVE)
    attack.nothing_said_but_codes("a", start)


# -- the coordinator's word on the receipts --------------------------------------------------------------------------------


def _second_coordinator(attack: Adversary) -> Credentials:
    """Another coordinator that the federation's own authority certified."""
    directory = attack.bed.kit.directory / "second"
    directory.mkdir()
    pem, request = new_key_and_csr("second", Role.COORDINATOR)
    signed = Authority.load(attack.bed.kit.authority, attack.bed.clock).sign(
        request, role=Role.COORDINATOR, name="second", hosts=["localhost"]
    )
    (directory / KEY_FILE).write_bytes(pem)
    (directory / KEY_FILE).chmod(0o600)
    (directory / CERTIFICATE_FILE).write_bytes(signed)
    (directory / AUTHORITY_FILE).write_bytes((attack.bed.kit.coordinator.identity / AUTHORITY_FILE).read_bytes())
    return load_credentials(directory, attack.bed.clock())


def test_countersignatures_missing_forged_or_for_other_receipts(attack: Adversary) -> None:
    """Without the coordinator's word that the whole cohort is shown these receipts nobody answers, and nothing is charged."""
    good = attack.collect()
    word = attack.countersign(good)
    second = _second_coordinator(attack)
    site = attack.bed.sites["b"].credentials
    wrong = {
        "missing": SignedReceipt(b"", b""),
        "unsigned": SignedReceipt(word.body, b""),
        "malformed": SignedReceipt(b"{}", word.signature),
        "altered": SignedReceipt(attack.countersign(good).body, word.signature),
        "a receipt in its place": good[0],
        "another's signature": attack.countersign(good, signer=site),
        "another coordinator": attack.countersign(good, signer=second, coordinator="second"),
        "another coordinator under this one's name": attack.countersign(good, signer=second),
        "this one under another name": attack.countersign(good, coordinator="second"),
        "fewer receipts": attack.countersign(good[:3]),
        "other order": attack.countersign(good[::-1]),
        "another context": attack.countersign(good, context=bytes(32)),
        "another study": attack.countersign(good, study=bytes(32)),
        "another round": attack.countersign(good, number=2),
        "another attempt": attack.countersign(good, attempt=2),
    }
    for what, countersigned in wrong.items():
        said = attack.ask_check("a", good, countersigned=countersigned)
        assert said.codes == (RefusalCode.RECEIPT,), what
    channel, kept = attack.channels["a"], attack.channels["a"].coordinator_certificate
    for signer, name in (
        (None, "coordinator"),
        (site, "b"),
        (site, "coordinator"),
        (second, "second"),
        (second, "coordinator"),
    ):
        channel.coordinator_certificate = b"" if signer is None else signer.identity.certificate
        countersigned = attack.countersign(good, signer=signer, coordinator=name)
        assert attack.ask_check("a", good, countersigned=countersigned).refused is RefusalCode.RECEIPT
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.answer, row.shown, attack.charges("a")) == (None, None, 0)
    channel.coordinator_certificate = kept
    assert attack.ask_check("a", good, countersigned=word).call == "answer"


def test_what_everyone_signed_is_kept_with_the_charge(attack: Adversary) -> None:
    """Receipts of the whole cohort and the coordinator's word stand beside the charge that they belong to."""
    receipts = attack.collect()
    word = attack.countersign(receipts)
    said = [attack.ask_check(name, receipts, countersigned=word) for name in NAMES]
    attack.ask_consent("a", [CheckAnswer(*item.values[3:]) for item in said])
    site = attack.bed.sites["a"]
    (charge,) = site.ledger.entries(kind=Kind.CHARGE)
    assert charge.detail["countersigned"] == [word.body.hex(), word.signature.hex()]
    kept = site.ledger.receipts(entry=charge.seq)
    assert [item.receipt for item in kept] == receipts
    assert [item.parsed.participant for item in kept] == list(NAMES)


# -- restarts and rollbacks ------------------------------------------------------------------------------------------------


def test_restart_under_one_context_repeats_the_same_bytes(attack: Adversary) -> None:
    """Fresh noise under one context would average out: after a restart the same payload comes, noise and masks included."""
    assignment = attack.assignment()
    first = attack.assign("a", assignment).values[1]
    _reopen(attack, "a")
    again = attack.assign("a", assignment).values[1]
    assert again == first
    assert attack.kinds("a")["reserve"] == 1
    assert attack.assign("a", attack.assignment(attempt=2)).values[1].pieces != first.pieces


def test_death_between_reservation_and_payload(attack: Adversary) -> None:
    """No payload was durable, so none ever comes for that context; the reservation ends at the deadline."""
    assignment = attack.assignment()
    attack.bed.sites["a"].noise_random = DyingRandom()
    with pytest.raises(DeathError):
        attack.assign("a", assignment)
    assert attack.kinds("a")["reserve"] == 1
    _reopen(attack, "a")
    assert attack.assign("a", assignment).refused is RefusalCode.ROUND
    assert attack.ask_check("a", []).refused is RefusalCode.ROUND
    assert attack.ask_consent("a", []).refused is RefusalCode.ROUND
    attack.bed.clock.now += 3600
    attack.cores["a"].expire()
    assert attack.kinds("a")["free"] == 1


class LateRandom(RandomSource):
    """Randomness during which the attempt's deadline passes and the site acts on it."""

    def __init__(self, attack: Adversary, name: str) -> None:
        self._attack, self._name = attack, name

    def bytes(self, count: int) -> bytes:
        self._attack.bed.clock.now += 3600
        self._attack.cores[self._name].expire()
        return SYSTEM_RANDOM.bytes(count)


def test_attempt_given_up_while_its_payload_is_made(attack: Adversary) -> None:
    """Its reservation is free already: no payload is kept or sent under it."""
    attack.bed.sites["a"].noise_random = LateRandom(attack, "a")
    assert attack.assign("a", attack.assignment()).refused is RefusalCode.ROUND
    assert (attack.kinds("a")["reserve"], attack.kinds("a")["free"]) == (1, 1)
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.payload, row.words, row.consent) == ("tombstone", None, None, None)


def test_representations_show_neither_keys_nor_records(attack: Adversary) -> None:
    site, opened = attack.bed.sites["a"], attack.spied("a")
    attack.assign("a", attack.assignment())
    assert site.datasets.holds
    assert "Records" not in repr(site)
    for secret in ("box_key", "shares", "seeds"):
        assert repr(getattr(opened.row, secret))[:40] not in repr(opened)


def test_rolled_back_site_is_found_by_its_peers(attack: Adversary, tmp_path: Path) -> None:
    """A site restored from a copy would pay less than it released: its next receipt has a number that its peers saw."""
    site = attack.bed.sites["a"]
    copy = tmp_path / "copy.db"
    with closing(sqlite3.connect(site.config.state)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    attack.collect()
    attack.finish()
    site.database.close()
    for suffix in ("-wal", "-shm"):
        site.config.state.with_name(site.config.state.name + suffix).unlink(missing_ok=True)
    site.config.state.write_bytes(copy.read_bytes())
    nonce = site.nonce
    _reopen(attack, "a")
    assert attack.bed.sites["a"].nonce != nonce
    assert attack.charges("a") == 0
    assert attack.assign("a", attack.assignments[1]).refused is RefusalCode.CONTEXT  # the former session's nonce
    receipts = attack.collect(number=2, attempt=2)
    assert [parse_receipt(receipt.body).number for receipt in receipts] == [1, 2, 2, 2]
    for name in ("b", "c", "d"):
        assert attack.ask_check(name, receipts, None, 2, 2).refused is RefusalCode.RECEIPT
        assert attack.charges(name) == 1


def test_session_nonces_separate_contexts_of_one_attempt(attack: Adversary) -> None:
    """A restored site that never knew of an attempt answers it anew only under another context."""
    assignment = attack.assignment()
    attack.assign("b", assignment)
    _reopen(attack, "a")
    assert attack.assign("a", assignment).refused is RefusalCode.CONTEXT
    fresh = attack.assign("a", attack.assignment()).values[1]
    assert context_of(fresh.receipt) != context_of(attack.payloads["b", 1].receipt)


def test_secrets_of_an_attempt_and_a_study_leave_the_disk(attack: Adversary) -> None:
    """After a tombstone its secrets, after the study's end its key and seeds stand in no file any more."""
    attack.collect()
    site = attack.bed.sites["a"]
    row, study = attack.attempt_row("a"), attack.row("a")
    assert row is not None
    secrets = [row.consent, row.payload[-32:], row.words[-32:]]

    def on_disk() -> bytes:
        return b"".join(path.read_bytes() for path in site.config.state.parent.glob(site.config.state.name + "*"))

    before = on_disk()
    assert all(secret in before for secret in secrets)
    attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1)
    left = on_disk()
    assert not any(secret in left for secret in secrets)
    kept = {name: getattr(study, name)[-32:] for name in ("box_key", "shares", "seeds")}
    assert all(value in left for value in kept.values())
    attack.tell("a", pb.DIRECTIVE_KIND_END)
    left = on_disk()
    assert not [name for name, value in kept.items() if value in left]


# -- noise -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", [1, pytest.param(-1, marks=pytest.mark.system)])
def test_noise_is_not_lost_to_the_clamp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int) -> None:
    """At the bound a clamp after noise would cut half of it off; noise comes after, and all that was drawn is there."""
    bed = make_bed(tmp_path, make_data(("a", "b", "c"), 3, 60))
    bed.know_noise()
    attack = Adversary(bed, bed.compile(make_request(schema_of(60), min_cohort=2)))
    attack.set_up()
    real = contributions.contribute

    def at_bound(plan: Any, *rest: Any) -> SiteSum:
        return real(plan, *rest)._replace(total=np.full(plan.encoding.size, side * plan.encoding.bound))

    monkeypatch.setattr(contributions, "contribute", at_bound)
    attack.collect(("a", "b", "c"))
    plan = attack.plan()
    for name in "ab":
        drawn = plan.noise.draw(plan.encoding.size, SeededRandom(f"noise of {name}".encode()))
        assert (drawn > 0).any()
        assert (drawn < 0).any()
        np.testing.assert_array_equal(own_vector(attack, name, 1) - side * plan.encoding.bound, drawn)


def test_shares_without_the_colluders_reach_the_stated_noise(attack: Adversary) -> None:
    """A site that subtracts its own share (k = 1) leaves at least S^2 among the others, in every cohort that is allowed."""
    for size in (2, 3, 4):
        noise = AgreedStudy(attack.study).task(LABEL).plan(4, size).noise
        assert noise.colluders >= 1
        assert (size - noise.colluders) * noise.share_variance >= attack.study.tasks[0].variance
