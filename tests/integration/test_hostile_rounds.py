"""A hostile coordinator equivocates about rounds: cohorts, attempts, broadcasts, receipts. Each gets noise or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.hostile import (
    NAMES,
    Adversary,
    CheckAnswer,
    add_mod,
    altered,
    context_of,
    make_adversary,
    subtract_mod,
    uniformity,
)
from support.randomness import RARE
from veilsum.local.federation import as_directive
from veilsum_coordinator.storage.messages import assignment_message
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.datasets import Reading
from veilsum_participant.protocol.core import assigned
from veilsum_participant.store.attempts import AttemptState, find_attempt
from veilsum_privacy.ledger.countersigning import part_of_receipt
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt, whole_receipts
from veilsum_privacy.securesum.boxes import pair_seed
from veilsum_privacy.securesum.context import encode_broadcast
from veilsum_privacy.securesum.key_shares import self_masks
from veilsum_privacy.securesum.opening import open_words
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def _is_noise(attack: Adversary, consents: list[bytes], attempt: int = 1) -> None:
    """A sum does not open with these consents: what is left of its key share says nothing, neither of keys nor of a count."""
    total = attack.total(attempt)
    with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
        open_words(total, attack.plan(attempt).encoding, attack.context(attempt), consents)
    assert uniformity(attack.unmasked_share(total, consents, attempt), attack.share_bound(attempt)) > RARE


def _pair_mask(attack: Adversary, seed: bytes, count: int) -> np.ndarray:
    return WordStream(seed, StreamPurpose.PAIR_KEY, attack.context(), bound=attack.share_bound()).take(count)


def test_uniformity_test_can_fail(attack: Adversary) -> None:
    """The control: the sum of the keys of a sum that opens is nowhere near uniform."""
    attack.collect()
    assert uniformity(attack.unmasked_share(attack.total(), attack.consents()), attack.share_bound()) < 1e-12


def test_two_attempts_of_one_round_open_only_once(attack: Adversary) -> None:
    """The coordinator claims that d dropped, has a, b, c do it again without d, and would subtract the two sums.

    At the second assignment a, b and c bury the first attempt with its secrets; the consents of the second open nothing of it,
    and d's lone consent to the first cannot be followed by theirs: d never sees answers of theirs to it.
    """
    first = attack.collect()
    second = attack.collect(("a", "b", "c"), attempt=2)
    assert attack.ask_check("a", first).refused is RefusalCode.ROUND
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.words, row.consent, row.payload) == ("tombstone", None, None, None)
    assert attack.ask_check("d", first).call == "answer"
    assert attack.ask_check("a", second, attempt=2).call == "answer"
    late = attack.consents(attempt=2)
    lone = attack.consent_of("d")  # which d did not give
    _is_noise(attack, [*late, lone])
    bound = attack.share_bound()
    assert bound == attack.share_bound(2)
    rest = subtract_mod(attack.total().share, attack.total(2).share, bound)
    given = self_masks(StreamPurpose.SELF_KEY, attack.context(2), late, len(rest), bound)
    taken = self_masks(StreamPurpose.SELF_KEY, attack.context(), [lone], len(rest), bound)
    assert uniformity(subtract_mod(add_mod(rest, given, bound), taken, bound), bound) > RARE


def test_colluder_takes_its_masks_off_a_single_contribution(attack: Adversary) -> None:
    """With all of d's pair seeds and a's consent, a's key share stays uniform: a's masks with b and c remain."""
    attack.collect()
    share, bound = attack.contribution("a").share, attack.share_bound()
    without_d = subtract_mod(share, _pair_mask(attack, attack.spied("d").seeds["a"], len(share)), bound)
    masks = self_masks(StreamPurpose.SELF_KEY, attack.context(), [attack.consent_of("a")], len(share), bound)
    assert uniformity(subtract_mod(without_d, masks, bound), bound) > RARE


class KnownRandom(RandomSource):
    """A generator that failed: everybody knows what it gives."""

    def bytes(self, count: int) -> bytes:
        return b"\x5a" * count


@pytest.mark.parametrize("broken", ["a", "c"])  # in front of b in the roster, and behind it
def test_a_sites_known_generator_does_not_open_the_masks_of_its_pairs(tmp_path: Path, broken: str) -> None:
    """Both sides draw for a pair's seed. Coordinator and two others hold all else of b's key share: consent, their own
    pairs' seeds; what remains are the masks of b and the site whose generator they know."""
    attack = make_adversary(tmp_path, random=lambda name: KnownRandom() if name == broken else SYSTEM_RANDOM)
    attack.set_up()
    attack.collect()
    bound, share = attack.share_bound(), attack.contribution("b").share
    rest = subtract_mod(
        share, self_masks(StreamPurpose.SELF_KEY, attack.context(), [attack.consent_of("b")], len(share), bound), bound
    )

    def without(other: str, seed: bytes) -> np.ndarray:
        mask = _pair_mask(attack, seed, len(rest))
        return add_mod(rest, mask, bound) if other < "b" else subtract_mod(rest, mask, bound)

    for colluder in {"a", "c", "d"} - {broken}:
        rest = without(colluder, attack.spied(colluder).seeds["b"])
    known, pair = (
        KnownRandom().bytes(32),
        {"study": attack.key, "roster": attack.spied("b").roster(attack.bed.sites["b"]).digest},
    )
    for guess in (known, bytes(32), *(pair_seed({"b": other, broken: known}, **pair) for other in (known, bytes(32)))):
        assert uniformity(without(broken, guess), bound) > RARE
    assert uniformity(without(broken, attack.spied("b").seeds[broken]), bound) < 1e-12  # the control: that was the last lock


def test_consents_are_fresh_for_each_attempt(attack: Adversary) -> None:
    """One that served two attempts would let one consent open two payloads: secrets differ, another's opens nothing."""
    attack.collect()
    before = {name: attack.consent_of(name) for name in NAMES}
    attack.collect(attempt=2)
    consents = attack.consents(attempt=2)
    for name, consent in zip(NAMES, consents, strict=True):
        assert attack.consent_of(name, 2) == consent
        assert len(consent) == len(before[name]) == 32
        assert consent != before[name]
    _is_noise(attack, consents)


def _as_own(attack: Adversary, name: str, receipts: list[SignedReceipt]) -> list[SignedReceipt]:
    """Receipts as a site writes them anew: as if all had been signed for its own release."""
    own = parse_receipt(attack.payloads[name, 1].receipt.body)
    names = tuple(parse_receipt(item.body).participant for item in receipts)
    return list(whole_receipts(tuple(map(part_of_receipt, receipts)), own, names))


def test_another_broadcast_to_one_site(attack: Adversary) -> None:
    """One site is shown another model: its context is another, and whatever a coordinator signs of that, nobody consents;
    forced, it is noise."""
    other = encode_broadcast({"model": np.ones(3)})
    honest = attack.assignment()
    for name in ("a", "b", "c"):
        attack.assign(name, honest)
    attack.assign("d", attack.assignment(broadcast=other), other)
    receipts = attack.receipts()
    assert context_of(receipts[3]) != context_of(receipts[0])
    for name in NAMES:
        assert attack.ask_check(name, receipts).refused is RefusalCode.RECEIPT
    # signed as each site would read it, everybody answers: a challenge of its own context
    answers = [CheckAnswer(*attack.ask_check(name, _as_own(attack, name, receipts)).values[3:]) for name in NAMES]
    for name in NAMES:
        assert attack.ask_consent(name, answers).refused is RefusalCode.CHECK
        assert attack.charges(name) == 0
    # even with all four consents, which no site gave, the pairwise masks do not cancel
    _is_noise(attack, [attack.consent_of(name) for name in NAMES])


def test_another_cohort_to_one_site(attack: Adversary) -> None:
    """d is told of four, the others of three: d's payload adds nothing that cancels, and no answer of theirs is one to d."""
    small = attack.assignment(("a", "b", "c"))
    for name in ("a", "b", "c"):
        attack.assign(name, small)
    attack.assign("d", attack.assignment())
    receipts = attack.receipts()
    assert attack.ask_check("d", receipts).refused is RefusalCode.RECEIPT
    assert attack.ask_check("a", receipts).refused is RefusalCode.RECEIPT
    answers = [
        CheckAnswer(*attack.ask_check(name, _as_own(attack, name, receipts[: 4 if name == "d" else 3])).values[3:])
        for name in NAMES
    ]
    assert attack.ask_consent("d", answers).refused is RefusalCode.CHECK
    for name in "abc":
        assert attack.ask_consent(name, answers).refused is RefusalCode.CHECK
    assert [attack.charges(name) for name in NAMES] == [0] * 4
    _is_noise(attack, [attack.consent_of(name) for name in NAMES])


def test_cohort_out_of_order_doubled_strange_or_without_the_site(attack: Adversary) -> None:
    """A cohort is a part of the roster in its order, with this site in it."""
    for names in ("bacd", "aabc", "abcx", "bcd", "dcba"):
        assert attack.assign("a", attack.assignment(names)).refused is RefusalCode.CONTEXT, names
    assert attack.kinds("a")["reserve"] == 0


def test_cohort_smaller_than_policy(attack: Adversary) -> None:
    """Alone, or below the policy's smallest cohort, a site does not contribute."""
    assert attack.assign("a", attack.assignment(("a",))).refused is RefusalCode.COHORT_SMALL
    config = attack.bed.sites["a"].config
    stricter = config.policy.model_copy(update={"min_cohort": 4})
    attack.bed.sites["a"].config = config.model_copy(update={"policy": stricter})
    assert attack.assign("a", attack.assignment(("a", "b", "c"))).refused is RefusalCode.COHORT_SMALL
    assert attack.assign("a", attack.assignment()).call == "upload"


@pytest.mark.parametrize("colluders", [1, 2, 3])
def test_one_member_that_nobody_pinned(tmp_path: Path, colluders: int) -> None:
    """Of n sites n - k shares are counted: one that is not trusted is one too many, unless each site bears the noise alone."""
    adversary = make_adversary(tmp_path)
    adversary.use(altered(adversary.study, privacy__assumed_colluders=colluders))
    adversary.set_up()
    site = adversary.bed.sites["a"]
    kept = site.config
    pins = {name: key for name, key in kept.policy.trusted.items() if name != "d"}
    doubted = kept.model_copy(update={"policy": kept.policy.model_copy(update={"trusted": pins})})
    expected = (RefusalCode.NOISE,) if colluders < 3 else ()
    site.config = doubted
    said = adversary.assign("a", adversary.assignment())
    assert (said.codes if said.call == "refuse" else ()) == expected
    site.config = kept
    adversary.collect(attempt=2)
    answers = adversary.answers(attempt=2)
    site.config = doubted
    said = adversary.ask_consent("a", answers, attempt=2)
    assert (said.codes if said.call == "refuse" else ()) == expected
    assert adversary.charges("a") == (not expected)
    adversary.check_ledgers()


def test_rounds_and_attempts_only_rise(attack: Adversary) -> None:
    """A replayed attempt gets the same bytes while it is open, and after it nothing."""
    assignment = attack.assignment(number=3, attempt=5)
    first = attack.assign("a", assignment).values[1]
    assert attack.assign("a", assignment).values[1] == first
    assert attack.kinds("a")["reserve"] == 1
    for number, attempt in ((3, 4), (2, 6), (1, 1)):
        assert attack.assign("a", attack.assignment(number=number, attempt=attempt)).refused is RefusalCode.ROUND
    assert attack.assign("a", attack.assignment(number=4, attempt=6)).call == "upload"
    assert attack.assign("a", assignment).refused is RefusalCode.ROUND


def test_no_deadline_sets_the_time_for_records_close_to_what_a_site_takes(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By tries at every second a coordinator finds in which power of two a site's time lies, and no more."""
    site, found = attack.bed.sites["a"], list[float]()
    batches = site.batches

    def told(*given: Any, seconds: float, **named: Any) -> Reading:
        found.append(seconds)
        return batches(*given, seconds=seconds, **named)

    monkeypatch.setattr(site, "batches", told)
    leaves = [*range(1, 9), 170, 171, 341, 342, 3600]
    for number, left in enumerate(leaves, 1):
        assignment = attack.assignment(number=number, attempt=number, deadline=attack.bed.clock.now + left)
        assert attack.assign("a", assignment).call == "upload"
    assert found == [0.5, 1.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 64.0, 128.0, 128.0, 256.0, 2048.0]
    assert all(3 * left / 8 < seconds <= 3 * left / 4 for left, seconds in zip(leaves, found, strict=True))


def test_what_was_sent_is_gone_once_its_sum_was_answered_for(attack: Adversary) -> None:
    """The coordinator has signed for the sum then: who asks for the payload once more gets none, and the round goes on."""
    attack.collect()
    assert attack.assign("a", attack.assignments[1]).call == "upload"
    answers = attack.answers()
    assert attack.assign("a", attack.assignments[1]).refused is RefusalCode.ROUND
    with attack.bed.sites["a"].database.reading() as connection:
        row = find_attempt(connection, attack.key, 1)
    assert row is not None
    assert (row.state, row.payload, row.words) == (AttemptState.PAYLOAD, None, None)
    assert attack.ask_consent("a", answers).call == "consent"


def test_one_attempt_under_two_contexts(attack: Adversary) -> None:
    """An attempt that was answered is never answered under another context: no second payload and no second reservation."""
    attack.assign("a", attack.assignment())
    own = attack.bed.sites["a"].nonce
    for other in (
        attack.assignment(number=2),
        attack.assignment(deadline=attack.bed.clock.now + 60),
        attack.assignment(("a", "b", "c")),
        attack.assignment(cohort=(("a", own), *((name, bytes(16)) for name in "bcd"))),
    ):
        assert attack.assign("a", other).refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == 1


def test_stale_session_nonce(attack: Adversary) -> None:
    """An assignment made for an earlier session of this site."""
    cohort = tuple((name, bytes(16) if name == "a" else attack.bed.sites[name].nonce) for name in NAMES)
    assert attack.assign("a", attack.assignment(cohort=cohort)).refused is RefusalCode.CONTEXT


def test_broadcast_that_is_not_the_announced_one(attack: Adversary) -> None:
    """What was fetched is not what the assignment names, or is not a broadcast at all."""
    assert attack.assign("a", attack.assignment(), b"other").refused is RefusalCode.CONTEXT
    assert attack.assign("a", attack.assignment(broadcast=b"junk"), b"junk").refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == 0


def test_another_broadcast_than_the_assignment_names_however_valid(attack: Adversary) -> None:
    """Everyone is assigned one broadcast and a site is served another, which decodes: its numbers would be of that one, under
    the context of the first. Asked again after its answer, it is as strict."""
    named, other = (encode_broadcast({"model": np.full(3, value)}) for value in (0.0, 1.0))
    for announced, served in ((named, other), (named, b""), (b"", other)):
        assert attack.assign("a", attack.assignment(broadcast=announced), served).refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == 0
    assignment = attack.assignment(broadcast=named)
    assert attack.assign("a", assignment, named).call == "upload"
    assert attack.assign("a", assignment, other).refused is RefusalCode.CONTEXT
    assert attack.assign("a", assignment, named).call == "upload"


def test_undeclared_task_and_passed_deadline(attack: Adversary) -> None:
    """Only declared tasks are computed, and only in time."""
    assert attack.assign("a", attack.assignment(label="other")).refused is RefusalCode.TASK
    assert attack.assign("a", attack.assignment(deadline=attack.bed.clock.now)).refused is RefusalCode.ROUND


def _parts(attack: Adversary, **changes: Any) -> pb.Assignment:
    """The parts of an honest assignment with some in place of others."""
    whole = assignment_message(attack.assignment())
    for name in changes:
        whole.ClearField(name)  # type: ignore[arg-type]
    whole.MergeFrom(pb.Assignment(**changes))
    return whole


def test_malformed_assignments(attack: Adversary) -> None:
    """Each ends in a code and changes nothing."""
    whole = _parts(attack)
    malformed = [
        pb.Assignment(),
        _parts(attack, cohort=[]),
        _parts(attack, cohort=[*whole.cohort, "e"]),
        _parts(attack, cohort=whole.cohort[1:]),
        _parts(attack, cohort=[], nonces=b""),
        *(_parts(attack, nonces=nonces) for nonces in (b"", whole.nonces[:-1], whole.nonces[:-16], whole.nonces + b"\0")),
        *(_parts(attack, broadcast=digest) for digest in (b"", whole.broadcast[:-1], whole.broadcast + b"\0")),
        *(_parts(attack, deadline=moment) for moment in (0, 2**53, 2**64 - 1)),
    ]
    for parts in malformed:
        assert attack.assign("a", attack.assignment(), parts=parts).refused is RefusalCode.CONTEXT, parts
    for number, attempt in ((0, 1), (1, 0)):
        assert attack.assign("a", attack.assignment(number=number, attempt=attempt)).refused is RefusalCode.CONTEXT
    assert attack.attempt_row("a") is None
    assert attack.assign("a", attack.assignment(), parts=whole).call == "upload"


@pytest.mark.parametrize("name", ["a\u00e9", "\u65e5", 'a"b'])
def test_names_of_an_assignment_are_bound_as_they_are_spelt(attack: Adversary, name: str) -> None:
    """Whatever a name is spelt with, what the site writes of the parts is the assignment that a coordinator keeps."""
    asked = attack.assignment(cohort=(("a", attack.bed.sites["a"].nonce), (name, bytes(16))), label=name)
    sent = pb.Directive(round=asked.round, attempt=asked.attempt, assignment=assignment_message(asked))
    assert assigned(as_directive(sent)).to_bytes() == asked.to_bytes()


def test_directives_with_any_number_end_in_an_answer(attack: Adversary) -> None:
    """Numbers beyond what a store can hold must not end the participant's process; no directive alone costs anything."""
    for kind in (*(kind for kind in range(12) if kind != pb.DIRECTIVE_KIND_END), pb.DIRECTIVE_KIND_END):
        for number in (0, 7, 2**53, 2**63, 2**64 - 1):
            said = attack.tell("a", kind, number, number)  # type: ignore[arg-type]
            assert said.call in ("refuse", "confirm"), (kind, number)
    assert attack.kinds("a")["reserve"] == 0


def test_consent_to_a_round_only_once(attack: Adversary) -> None:
    """After consent to one attempt, the round has no other: neither payload nor consent nor charge."""
    attack.collect()
    answers = attack.answers()
    first = attack.ask_consent("a", answers)
    assert attack.assign("a", attack.assignment(attempt=2)).refused is RefusalCode.ROUND
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"
    again = attack.ask_consent("a", answers)
    assert (again, attack.charges("a")) == (first, 1)


def test_receipts_missing_doubled_or_of_another_context(attack: Adversary) -> None:
    """'All have contributed' when not: a site answers only for receipts of exactly its cohort about this very sum."""
    good = attack.collect()
    signer = attack.bed.sites["d"].credentials.signing_key
    own = parse_receipt(good[3].body)
    wrong = {
        "none": [],
        "one missing": good[:3],
        "one too many": [*good, good[0]],
        "doubled": [*good[:3], good[2]],
        "out of order": [good[0], good[2], good[1], good[3]],
        "own replaced": [good[1], *good[1:]],
        "own signed anew": [
            sign_receipt(parse_receipt(good[0].body), attack.bed.sites["a"].credentials.signing_key),
            *good[1:],
        ],
        "another context": [*good[:3], sign_receipt(replace(own, context=bytes(32)), signer)],
        "another study": [*good[:3], sign_receipt(replace(own, study=bytes(32)), signer)],
        "another round": [*good[:3], sign_receipt(replace(own, round=2), signer)],
        "another attempt": [*good[:3], sign_receipt(replace(own, attempt=2), signer)],
        "of version 1": [*good[:3], sign_receipt(replace(own, version=1), signer)],
        "all of version 1": [
            good[0],
            *(sign_receipt(replace(parse_receipt(item.body), version=1), signer) for item in good[1:]),
        ],
        "garbage": [*good[:3], SignedReceipt(b"{}", good[3].signature)],
    }
    for what, receipts in wrong.items():
        assert attack.ask_check("a", receipts).refused is RefusalCode.RECEIPT, what
    assert attack.ask_check("a", good).call == "answer"
    assert attack.charges("a") == 0


@pytest.mark.parametrize("fault", ["forged", "unsigned", "altered", "of version 1 and all agree"])
def test_receipts_that_nobody_signed_are_not_paid_for(attack: Adversary, fault: str) -> None:
    """Shown to the whole cohort alike they may be answered for; nobody is charged by them, so nothing opens."""
    good = attack.collect()
    own = parse_receipt(good[3].body)
    other = replace(own, number=99)
    wrong = {
        "forged": sign_receipt(other, attack.bed.analyst.signing_key),
        "unsigned": SignedReceipt(good[3].body, b""),
        "altered": SignedReceipt(other.to_bytes(), good[3].signature),
        "of version 1 and all agree": sign_receipt(replace(own, version=1), attack.bed.sites["d"].credentials.signing_key),
    }
    said = {name: attack.ask_check(name, [*good[:3], wrong[fault]]) for name in "abc"}
    answers = [CheckAnswer(*item.values[3:]) for item in said.values() if item.call == "answer"]
    for name in "abc":
        if said[name].call == "answer":
            assert attack.ask_consent(name, [*answers, answers[0]]).call == "refuse"
        else:
            assert said[name].refused is RefusalCode.RECEIPT
        assert attack.charges(name) == 0


@pytest.mark.parametrize(
    "change",
    [
        {"study": bytes(32)}, {"context": bytes(32)}, {"round": 2}, {"attempt": 2}, {"participant": "c"}, {"version": 1},
        {"dataset": "others"}, {"unit": "subject"}, {"cohort_size": 3},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_a_receipt_for_another_release_passes_for_none(attack: Adversary, change: dict[str, Any]) -> None:
    """Sites write what was signed again, as if for their own release, and a coordinator countersigns just that: every site
    sees the same, and answers. Who signed for something else did not sign this, so nobody is charged."""
    good = attack.collect()
    signed = sign_receipt(replace(parse_receipt(good[3].body), **change), attack.bed.sites["d"].credentials.signing_key)
    shown = [*good[:3], SignedReceipt(good[3].body, signed.signature)]
    answers = [CheckAnswer(*attack.ask_check(name, shown).values[3:]) for name in NAMES[:3]]
    answers.append(CheckAnswer(*attack.ask_check("d", good).values[3:]))  # by its own receipts it is the same question
    for name in "abc":
        assert attack.ask_consent(name, answers).refused is RefusalCode.RECEIPT
        assert (attack.charges(name), attack.kinds(name)["charge"]) == (0, 0)
    assert attack.ask_check("d", shown).refused is RefusalCode.RECEIPT


def test_consent_to_what_was_given_up_or_never_was(attack: Adversary) -> None:
    """A tombstone stays one; an attempt or study that the site does not know gets a code."""
    receipts = attack.collect()
    answers = attack.answers()
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"
    assert attack.kinds("a")["free"] == 1
    assert attack.ask_check("a", receipts).refused is RefusalCode.ROUND
    assert attack.ask_consent("a", answers).refused is RefusalCode.ROUND
    assert attack.assign("a", attack.assignments[1]).refused is RefusalCode.ROUND
    for numbers in ((1, 9), (9, 1)):
        assert attack.ask_consent("b", answers, *numbers).refused is RefusalCode.ROUND
        assert attack.ask_check("b", receipts, bytes(32), *numbers).refused is RefusalCode.ROUND
    attack.key = bytes(32)
    assert attack.ask_consent("c", answers).refused is RefusalCode.CLOSED
    assert attack.ask_check("c", receipts, bytes(32)).refused is RefusalCode.CLOSED


@pytest.mark.sampled(2)
@pytest.mark.parametrize("ahead", [-18_000, 0, 7_200])
def test_a_deadline_is_what_is_left_of_it(attack: Adversary, ahead: int) -> None:
    """It is a time of day; whatever a site's elapsed time has gained or lost since its start, what is left passes once."""
    for site in attack.bed.sites.values():
        site.elapsed = lambda: attack.bed.clock.now + ahead
    receipts = attack.collect()
    answers = attack.answers()
    attack.bed.clock.now += 600
    assert attack.ask_consent("b", answers).call == "consent"
    attack.bed.clock.now += 3_000
    assert attack.assign("c", attack.assignments[1]).refused is RefusalCode.ROUND  # asked for again, after its deadline
    assert attack.ask_consent("a", answers).refused is RefusalCode.ROUND
    assert attack.ask_check("d", receipts).refused is RefusalCode.ROUND


@pytest.mark.parametrize("answered", [False, True])
def test_nothing_after_the_deadline(attack: Adversary, answered: bool) -> None:
    """The site's own clock ends an attempt that was not asked for consent: freed, erased, refused."""
    receipts = attack.collect()
    answers = attack.answers() if answered else []
    attack.bed.clock.now += 3600
    said = attack.ask_consent("a", answers) if answered else attack.ask_check("a", receipts)
    assert said.refused is RefusalCode.ROUND
    attack.cores["b"].expire()
    for name in ("a", "b"):
        row = attack.attempt_row(name)
        assert row is not None
        assert row.state == "tombstone"
        assert (row.consent, row.payload, row.words, row.answer, row.shown) == (None,) * 5
        assert attack.kinds(name)["free"] == 1
