"""A hostile coordinator equivocates about rounds: cohorts, attempts, broadcasts, receipts. Each gets noise or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.hostile import NAMES, Adversary, add_mod, altered, context_of, flat, make_adversary, subtract_mod, uniformity
from support.ledgers import any_receipt
from support.randomness import RARE
from veilsum_node.canonical import canonical, parse_canonical
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.ledger.receipts import SignedReceipt, sign_receipt
from veilsum_privacy.securesum.boxes import pair_seed
from veilsum_privacy.securesum.context import encode_broadcast
from veilsum_privacy.securesum.contribution import open_sum
from veilsum_privacy.securesum.masks import MaskStream, derive
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def _is_noise(attack: Adversary, words: list[np.ndarray], consents: list[bytes], attempt: int = 1) -> None:
    plan = attack.plan(attempt).encoding
    with pytest.raises(HostileInput, match="count lane"):
        open_sum(words, plan, consents)
    modulus = plan.parameters.plain_modulus
    masked = [MaskStream(consent, modulus) for consent in consents]
    for part in words:
        opened = part
        for stream in masked:
            opened = subtract_mod(opened, stream.take(len(part)), modulus)
        assert uniformity(opened, modulus) > RARE


def test_uniformity_test_can_fail(attack: Adversary) -> None:
    """The control: words of a sum that opened are nowhere near uniform."""
    attack.collect()
    words, consents = attack.words("d", attack.sum()), attack.consents()
    plan = attack.plan().encoding
    modulus = plan.parameters.plain_modulus
    opened = flat(words)
    for consent in consents:
        opened = subtract_mod(opened, MaskStream(consent, modulus).take(len(opened)), modulus)
    assert uniformity(opened, modulus) < 1e-12


def test_two_attempts_of_one_round_open_only_once(attack: Adversary) -> None:
    """The coordinator claims that d dropped, has a, b, c do it again without d, and would subtract the two sums.

    At the second assignment a, b and c bury the first attempt with its b_i; the consents of the second open nothing of it, and
    d's lone consent to the first cannot be followed by theirs.
    """
    first = attack.collect()
    second = attack.collect(("a", "b", "c"), attempt=2)
    assert attack.ask_consent("a", first).refused is RefusalCode.ROUND
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.self_seed, row.consent, row.payload) == ("tombstone", None, None, None)
    lone = attack.ask_consent("d", first).values[3]
    late = [attack.ask_consent(name, second, attempt=2).values[3] for name in ("a", "b", "c")]
    values = open_sum(attack.words("d", attack.sum(2)), attack.plan(2).encoding, late)
    assert values.shape == (attack.plan(2).encoding.size,)
    _is_noise(attack, attack.words("d", attack.sum(1)), [*late, lone])
    modulus = attack.plan().encoding.parameters.plain_modulus
    difference = subtract_mod(flat(attack.words("d", attack.sum(1))), flat(attack.words("d", attack.sum(2))), modulus)
    for consent in late:
        difference = add_mod(difference, MaskStream(consent, modulus).take(len(difference)), modulus)
    assert uniformity(subtract_mod(difference, MaskStream(lone, modulus).take(len(difference)), modulus), modulus) > RARE


def test_colluder_takes_its_masks_off_a_single_contribution(attack: Adversary) -> None:
    """With BFV key, tag key and all of d's pair seeds, one contribution stays uniform: a's masks with b and c remain."""
    receipts = attack.collect()
    context = context_of(receipts[0])
    modulus = attack.plan().encoding.parameters.plain_modulus
    words = flat(attack.words("d", attack.payloads["a", 1].ciphertexts))
    seed = attack.spied("d").seeds["a"]
    without_d = subtract_mod(words, MaskStream(derive(seed, "pair", context), modulus).take(len(words)), modulus)
    consent = attack.ask_consent("a", receipts).values[3]
    assert uniformity(subtract_mod(without_d, MaskStream(consent, modulus).take(len(words)), modulus), modulus) > RARE


class KnownRandom(RandomSource):
    """A generator that failed: everybody knows what it gives."""

    def bytes(self, count: int) -> bytes:
        return b"\x5a" * count


@pytest.mark.parametrize("broken", ["a", "c"])  # in front of b in the roster, and behind it
def test_a_sites_known_generator_does_not_open_the_masks_of_its_pairs(tmp_path: Path, broken: str) -> None:
    """Both sides draw for a pair's seed. Coordinator and two others hold all else of b's contribution: BFV key, consent, their
    own pairs' seeds; what remains are the masks of b and the site whose generator they know."""
    attack = make_adversary(tmp_path, random=lambda name: KnownRandom() if name == broken else SYSTEM_RANDOM)
    attack.set_up()
    receipts = attack.collect()
    context, modulus = context_of(receipts[0]), attack.plan().encoding.parameters.plain_modulus
    rest = flat(attack.words("d", attack.payloads["b", 1].ciphertexts))
    rest = subtract_mod(rest, MaskStream(attack.ask_consent("b", receipts).values[3], modulus).take(len(rest)), modulus)

    def without(other: str, seed: bytes) -> np.ndarray:
        mask = MaskStream(derive(seed, "pair", context), modulus).take(len(rest))
        return add_mod(rest, mask, modulus) if other < "b" else subtract_mod(rest, mask, modulus)

    for colluder in {"a", "c", "d"} - {broken}:
        rest = without(colluder, attack.spied(colluder).seeds["b"])
    known, pair = (
        KnownRandom().bytes(32),
        {"study": attack.key, "roster": attack.spied("b").roster(attack.bed.sites["b"]).digest},
    )
    for guess in (known, bytes(32), *(pair_seed({"b": other, broken: known}, **pair) for other in (known, bytes(32)))):
        assert uniformity(without(broken, guess), modulus) > RARE
    assert uniformity(without(broken, attack.spied("b").seeds[broken]), modulus) < 1e-12  # the control: that was the last lock


def test_self_masks_are_fresh_for_each_attempt(attack: Adversary) -> None:
    """b_i reused over attempts would let one consent unmask two payloads: seeds differ, another's consent opens nothing."""
    attack.collect()
    before = {name: attack.attempt_row(name) for name in NAMES}
    seeds = {name: row.self_seed for name, row in before.items() if row is not None}
    attack.collect(attempt=2)
    consents = attack.consents(attempt=2)
    for name in NAMES:
        row = attack.attempt_row(name, 2)
        assert row is not None
        assert len(row.self_seed) == len(seeds[name]) == 32
        assert row.self_seed != seeds[name]
    _is_noise(attack, attack.words("d", attack.sum(1)), consents)


def test_another_broadcast_to_one_site(attack: Adversary) -> None:
    """One site is shown another model: its context is another, its receipt says so, nobody consents; forced, it is noise."""
    other = encode_broadcast({"model": np.ones(3)})
    honest = attack.assignment()
    for name in ("a", "b", "c"):
        attack.assign(name, honest)
    attack.assign("d", attack.assignment(broadcast=other), other)
    receipts = attack.receipts()
    assert context_of(receipts[3]) != context_of(receipts[0])
    for name in NAMES:
        assert attack.ask_consent(name, receipts).refused is RefusalCode.RECEIPT
        assert attack.charges(name) == 0
    # even with all four self-mask keys, which no site gave, the pairwise masks do not cancel
    rows = [attack.attempt_row(name) for name in NAMES]
    _is_noise(attack, attack.words("d", attack.sum()), [row.consent for row in rows if row is not None])


def test_another_cohort_to_one_site(attack: Adversary) -> None:
    """d is told of four, the others of three: d's payload adds nothing that cancels."""
    small = attack.assignment(("a", "b", "c"))
    for name in ("a", "b", "c"):
        attack.assign(name, small)
    attack.assign("d", attack.assignment())
    receipts = attack.receipts()
    assert attack.ask_consent("d", receipts).refused is RefusalCode.RECEIPT
    assert attack.ask_consent("a", receipts).refused is RefusalCode.RECEIPT
    rows = [attack.attempt_row(name) for name in NAMES]
    _is_noise(attack, attack.words("d", attack.sum()), [row.consent for row in rows if row is not None])


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
    receipts = adversary.collect(attempt=2)
    site.config = doubted
    said = adversary.ask_consent("a", receipts, attempt=2)
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


def test_directive_and_assignment_disagree(attack: Adversary) -> None:
    """The directive names another attempt than the assignment that it carries."""
    raw = attack.assignment(attempt=2).to_bytes()
    assert attack.assign("a", attack.assignment(), raw=raw).refused is RefusalCode.CONTEXT


def test_stale_session_nonce(attack: Adversary) -> None:
    """An assignment made for an earlier session of this site."""
    cohort = tuple((name, bytes(16) if name == "a" else attack.bed.sites[name].nonce) for name in NAMES)
    assert attack.assign("a", attack.assignment(cohort=cohort)).refused is RefusalCode.CONTEXT


def test_broadcast_that_is_not_the_announced_one(attack: Adversary) -> None:
    """What was fetched is not what the assignment names, or is no broadcast at all."""
    assert attack.assign("a", attack.assignment(), b"other").refused is RefusalCode.CONTEXT
    assert attack.assign("a", attack.assignment(broadcast=b"junk"), b"junk").refused is RefusalCode.CONTEXT
    assert attack.kinds("a")["reserve"] == 0


def test_another_broadcast_than_the_assignment_names_however_valid(attack: Adversary) -> None:
    """Everyone is assigned one broadcast and a site is served another, which decodes: its numbers would be of that one, under
    the context of the first. Asked again after its answer, it is no less strict."""
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


def test_malformed_assignments(attack: Adversary) -> None:
    """Each ends in a code and changes nothing."""
    value = parse_canonical(attack.assignment().to_bytes(), what="assignment")
    changes: list[dict[str, object]] = [
        {"round": 0},
        {"round": "1"},
        {"attempt": 2**53},
        {"attempt": True},
        {"cohort": "abcd"},
        {"cohort": [["a"]]},
        {"cohort": {}},
        {"extra": 1},
        {"broadcast": "00"},
        {"label": 7},
        {"v": 2},
    ]
    for raw in (b"", b"{", b"[]", b"7", b'{"v":1}', *(canonical(value | change) for change in changes)):
        assert attack.assign("a", attack.assignment(), raw=raw).refused is RefusalCode.CONTEXT, raw
    assert attack.attempt_row("a") is None


def test_directives_with_any_number_end_in_an_answer(attack: Adversary) -> None:
    """Numbers beyond what a store can hold must not end the participant's process; no directive alone costs anything."""
    for kind in (*(kind for kind in range(12) if kind != pb.DIRECTIVE_KIND_END), pb.DIRECTIVE_KIND_END):
        for number in (0, 7, 2**53, 2**63, 2**64 - 1):
            said = attack.tell("a", kind, number, number)  # type: ignore[arg-type]
            assert said.call in ("refuse", "confirm"), (kind, number)
    assert attack.kinds("a")["reserve"] == 0


def test_consent_to_a_round_only_once(attack: Adversary) -> None:
    """After consent to one attempt, the round has no other: neither payload nor consent nor charge."""
    receipts = attack.collect()
    attack.ask_consent("a", receipts)
    assert attack.assign("a", attack.assignment(attempt=2)).refused is RefusalCode.ROUND
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"
    again = attack.ask_consent("a", receipts)
    assert (again.call, attack.charges("a")) == ("consent", 1)


def test_receipts_missing_doubled_forged_or_of_another_context(attack: Adversary) -> None:
    """'All have contributed' when not: a site consents only if each member signed for this very sum."""
    good = attack.collect()
    body = any_receipt(attack.key, "d", context=context_of(good[0]), number=99)
    forged = sign_receipt(body, attack.bed.analyst.signing_key)
    attack_row = attack.attempt_row("d")
    assert attack_row is not None
    signer = attack.bed.sites["d"].credentials.signing_key
    foreign = sign_receipt(any_receipt(attack.key, "d"), signer)
    elsewhere = sign_receipt(any_receipt(bytes(32), "d", context=context_of(good[0])), signer)
    wrong = {
        "none": [],
        "one missing": good[:3],
        "one too many": [*good, good[0]],
        "doubled": [*good[:3], good[2]],
        "out of order": [good[0], good[2], good[1], good[3]],
        "own replaced": [good[1], *good[1:]],
        "forged": [*good[:3], forged],
        "unsigned": [*good[:3], SignedReceipt(good[3].body, b"")],
        "altered": [*good[:3], SignedReceipt(body.to_bytes(), good[3].signature)],
        "another context": [*good[:3], foreign],
        "another study": [*good[:3], elsewhere],
        "garbage": [*good[:3], SignedReceipt(b"{}", good[3].signature)],
    }
    for what, receipts in wrong.items():
        assert attack.ask_consent("a", receipts).refused is RefusalCode.RECEIPT, what
    assert attack.charges("a") == 0
    assert attack.ask_consent("a", good).call == "consent"


def test_consent_to_what_was_given_up_or_never_was(attack: Adversary) -> None:
    """A tombstone stays one; an attempt or study that the site does not know gets a code."""
    receipts = attack.collect()
    assert attack.tell("a", pb.DIRECTIVE_KIND_GIVE_UP, 1, 1).call == "confirm"
    assert attack.kinds("a")["free"] == 1
    assert attack.ask_consent("a", receipts).refused is RefusalCode.ROUND
    assert attack.assign("a", attack.assignments[1]).refused is RefusalCode.ROUND
    assert attack.ask_consent("b", receipts, 1, 9).refused is RefusalCode.ROUND
    assert attack.ask_consent("b", receipts, 9, 1).refused is RefusalCode.ROUND
    attack.key = bytes(32)
    assert attack.ask_consent("c", receipts).refused is RefusalCode.CLOSED


@pytest.mark.parametrize("ahead", [-18_000, 0, 7_200])
def test_a_deadline_is_what_is_left_of_it(attack: Adversary, ahead: int) -> None:
    """It is a time of day; whatever a site's elapsed time has gained or lost since its start, what is left passes once."""
    for site in attack.bed.sites.values():
        site.elapsed = lambda: attack.bed.clock.now + ahead
    receipts = attack.collect()
    attack.bed.clock.now += 600
    assert attack.ask_consent("b", receipts).call == "consent"
    attack.bed.clock.now += 3_000
    assert attack.assign("c", attack.assignments[1]).refused is RefusalCode.ROUND  # asked for again, after its deadline
    assert attack.ask_consent("a", receipts).refused is RefusalCode.ROUND


def test_consent_after_the_deadline(attack: Adversary) -> None:
    """The site's own clock ends an attempt that was not asked for consent: freed, erased, refused."""
    receipts = attack.collect()
    attack.bed.clock.now += 3600
    assert attack.ask_consent("a", receipts).refused is RefusalCode.ROUND
    attack.cores["b"].expire()
    for name in ("a", "b"):
        row = attack.attempt_row(name)
        assert row is not None
        assert row.state == "tombstone"
        assert attack.kinds(name)["free"] == 1
