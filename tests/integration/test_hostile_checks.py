"""A hostile coordinator once all have contributed: false sums, other sums for others, answers and consents that are not what
they seem. Nobody is charged for two of them, and nothing opens but the sum that everybody answered for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import make_data
from support.hostile import NAMES, Adversary, CheckAnswer, make_adversary
from support.one_time import shifted
from support.randomness import SeededRandom
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_node.identity import Label, verify
from veilsum_privacy.ledger import Kind
from veilsum_privacy.ledger.receipts import SignedReceipt, parse_receipt, sign_receipt
from veilsum_privacy.securesum.check_words import CheckStatement, challenge, checks_digest, consent_statement
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import consent_of
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def _false(attack: Adversary, attempt: int = 1) -> Contribution:
    """The true sum plus 1 in one word, as whoever adds up can make it without a key."""
    return shifted(attack.total(attempt), 1, 1, attack.plan(attempt).encoding.ring)


def _gave_up(attack: Adversary, name: str, attempt: int = 1) -> None:
    """The attempt is over at this site: nothing of it is left, and nothing was charged."""
    row = attack.attempt_row(name, attempt)
    assert row is not None
    assert row.state == "tombstone"
    assert (row.consent, row.payload, row.words, row.answer, row.answer_signature, row.shown) == (None,) * 6
    assert attack.charges(name) == 0


def test_honest_sum_opens(attack: Adversary) -> None:
    """The control of this file: without an attack the very same steps open the sum that numpy computes.

    To the unit: counts are whole, and the noise is what each site draws from a source that the test knows.
    """
    attack.bed.know_noise()
    attack.collect()
    values, plan = attack.finish(), attack.plan()
    noise = sum(plan.noise.draw(len(values), SeededRandom(f"noise of {name}".encode())) for name in NAMES)
    assert np.abs(noise).max() > 1000, "otherwise this would be a study without noise"
    scales = {query["name"]: query["scale"] for query in plan.declaration.parameters["queries"]}
    labels = np.concatenate([labels for _, labels in make_data(NAMES).values()])
    first, *_, none, one = (values - noise).tolist()
    assert first == scales["records"] * len(labels) > 0
    assert [none, one] == (scales["classes"] * np.bincount(labels)).tolist()


def test_a_false_sum_after_the_true_one_was_fixed(attack: Adversary) -> None:
    """All consents are in: another sum than the fixed one has another digest, so answers and it do not belong together; and
    held to the answers' challenge it is not what the members vouched for."""
    attack.collect()
    answers = attack.answers()
    consents = [attack.ask_consent(name, answers).values[3] for name in NAMES]
    with pytest.raises(HostileInput, match="vouched"):
        attack.open(answers, consents, total=_false(attack))
    assert attack.open(answers, consents).shape == (attack.plan().encoding.size,)


def test_a_false_sum_that_was_fixed(attack: Adversary) -> None:
    """Everybody answers for a sum that it cannot know, and pays; no value of it is ever taken for one."""
    receipts = attack.collect()
    false = _false(attack)
    answers = [CheckAnswer(*attack.ask_check(name, receipts, false).values[3:]) for name in NAMES]
    consents = [attack.ask_consent(name, answers).values[3] for name in NAMES]
    for total in (false, attack.total()):
        with pytest.raises(HostileInput, match="vouched"):
            attack.open(answers, consents, total=total)


def test_a_second_sum_of_one_context(attack: Adversary) -> None:
    """A context has one challenge: asked again about it a site says the same, about another it gives the attempt up."""
    receipts = attack.collect()
    first = attack.ask_check("a", receipts)
    assert attack.ask_check("a", receipts) == first
    again = attack.ask_check("a", receipts, _false(attack))
    assert again.refused is RefusalCode.CHECK
    _gave_up(attack, "a")
    assert attack.ask_check("a", receipts).refused is RefusalCode.ROUND
    assert attack.kinds("a")["free"] == 1


def test_a_second_challenge_by_other_receipts(attack: Adversary) -> None:
    """The same sum with another receipt of a colluder is another challenge as well: receipts can be ground for one."""
    receipts = attack.collect()
    own = parse_receipt(receipts[3].body)
    other = sign_receipt(replace(own, number=own.number + 1), attack.bed.sites["d"].credentials.signing_key)
    assert attack.ask_check("a", receipts).call == "answer"
    assert attack.ask_check("a", [*receipts[:3], other]).refused is RefusalCode.CHECK
    _gave_up(attack, "a")


def test_a_second_sum_after_consent(attack: Adversary) -> None:
    """What was paid for stays: the same is said again, of another sum nothing."""
    receipts = attack.collect()
    answers = attack.answers()
    consent = attack.ask_consent("a", answers)
    assert attack.ask_check("a", receipts, _false(attack)).refused is RefusalCode.CHECK
    assert CheckAnswer(*attack.ask_check("a", receipts).values[3:]) == answers[0]
    assert attack.ask_consent("a", answers) == consent
    assert attack.charges("a") == 1


def test_two_sums_for_two_members(attack: Adversary) -> None:
    """Told of different sums they answer different challenges: neither consents to a list with the other's answer."""
    receipts = attack.collect()
    answers = []
    for name in NAMES:
        total = _false(attack) if name == "d" else None
        answers.append(CheckAnswer(*attack.ask_check(name, receipts, total).values[3:]))
    for name in NAMES:
        assert attack.ask_consent(name, answers).refused is RefusalCode.CHECK
        assert attack.charges(name) == 0


def test_two_sets_of_receipts_for_two_members(attack: Adversary) -> None:
    """A colluder that signed two receipts, each shown to a part of the cohort: two challenges again."""
    receipts = attack.collect()
    own = parse_receipt(receipts[3].body)
    other = sign_receipt(replace(own, number=own.number + 1), attack.bed.sites["d"].credentials.signing_key)
    answers = [
        CheckAnswer(*attack.ask_check(name, receipts if name in "bd" else [*receipts[:3], other]).values[3:]) for name in "abc"
    ]
    for name in "abc":
        assert attack.ask_consent(name, [*answers, answers[0]]).refused is RefusalCode.CHECK
        assert attack.charges(name) == 0


def _say(attack: Adversary, name: str, signer: str, words: tuple[int, ...], **changes: Any) -> CheckAnswer:
    """An answer to the true challenge that ``name`` is said to give and ``signer`` signs."""
    context, fixed = attack.context(), attack.total().digest(attack.plan().encoding, attack.context())
    values: dict[str, Any] = {
        "study": attack.key, "participant": name, "round": 1, "attempt": 1, "context": context, "sum": fixed, "words": words,
        "challenge": challenge(context, [item.body for item in attack.receipts()], fixed),
    }  # fmt: skip
    signed = CheckStatement(**(values | changes)).sign(attack.bed.sites[signer].credentials.signing_key)
    return CheckAnswer(words, signed.signature)


def _verify_agreed(attack: Adversary, name: str, answers: list[CheckAnswer], signature: bytes) -> None:
    """Hold a signature that came with a consent to a list of answers, as whoever verifies a result does."""
    context, fixed = attack.context(), attack.total().digest(attack.plan().encoding, attack.context())
    rho = challenge(context, [item.body for item in attack.receipts()], fixed)
    said = [
        CheckStatement(attack.key, who, 1, 1, context, rho, fixed, one.words) for who, one in zip(NAMES, answers, strict=True)
    ]
    word = consent_statement(said[NAMES.index(name)], checks_digest([item.to_bytes() for item in said]))
    verify(attack.bed.sites[name].credentials.identity.public_key, Label.CONSENT, word.to_bytes(), signature)


def test_answers_that_differ_by_member(attack: Adversary) -> None:
    """A colluder signs two answers, and each is shown to a part: both lists are consented to, under signatures of their own.
    Neither sum verifies against either list but the true one, and no signature of one list stands under the other: a result
    shows one list with everyone's signature under it, and there is none of either."""
    attack.collect()
    good = attack.answers()
    lie = _say(attack, "d", "d", (1, 2, 3))
    given = {name: attack.ask_consent(name, good if name == "a" else [*good[:3], lie]).values for name in "abc"}
    for name, seen, other in (("a", good, [*good[:3], lie]), ("b", [*good[:3], lie], good), ("c", [*good[:3], lie], good)):
        _verify_agreed(attack, name, seen, given[name][4])
        with pytest.raises(HostileInput, match="signature"):
            _verify_agreed(attack, name, other, given[name][4])
    consents = [*(given[name][3] for name in "abc"), attack.consent_of("d")]
    assert attack.open(good, consents).shape == (attack.plan().encoding.size,)
    with pytest.raises(HostileInput, match="vouched"):
        attack.open([*good[:3], lie], consents)
    again = attack.ask_consent("a", [*good[:3], lie])  # whatever it is shown now: it says what it said
    assert again.values == given["a"]


def test_answers_of_another_attempt_replayed(attack: Adversary) -> None:
    """An attempt that was given up once it was answered: its answers are none to the next one's challenge."""
    attack.collect()
    old = attack.answers()
    attack.collect(attempt=2)
    new = attack.answers(attempt=2)
    for answers in (old, [*new[:3], old[3]], [old[0], *new[1:]]):
        assert attack.ask_consent("a", answers, attempt=2).refused is RefusalCode.CHECK
    assert attack.charges("a") == 0
    assert attack.ask_consent("a", new, attempt=2).call == "consent"
    assert attack.ask_consent("a", old).refused is RefusalCode.ROUND


def test_consent_before_an_answer(attack: Adversary) -> None:
    """A site that was never asked to check the sum does not consent to it, whoever answered."""
    receipts = attack.collect()
    answers = [CheckAnswer(*attack.ask_check(name, receipts).values[3:]) for name in "bcd"]
    for shown in ([], answers, [answers[0], *answers], [_say(attack, "a", "a", (1, 2, 3)), *answers]):
        assert attack.ask_consent("a", shown).refused is RefusalCode.ROUND
    row = attack.attempt_row("a")
    assert row is not None
    assert (row.state, row.answer, row.agreed, attack.charges("a")) == ("payload", None, None, 0)
    assert attack.ask_check("a", receipts).call == "answer"


def test_a_consent_copied_from_another_member(attack: Adversary) -> None:
    """A commitment names its sender: the copy of another's in a colluder's receipt commits to nothing that it can give."""
    receipts = attack.collect()
    first, last = parse_receipt(receipts[0].body), parse_receipt(receipts[3].body)
    copied = sign_receipt(replace(last, consent=first.consent), attack.bed.sites["d"].credentials.signing_key)
    consent = attack.consent_of("a")
    parse_receipt(receipts[0].body).hold(consent)
    with pytest.raises(HostileInput, match="commits"):
        parse_receipt(copied.body).hold(consent)
    other = consent_of(consent, attack.context())
    for receipt in receipts:
        with pytest.raises(HostileInput, match="commits"):
            parse_receipt(receipt.body).hold(other)


def _restarted(attack: Adversary, ask: Callable[[str], object]) -> None:
    """Whatever a site says, it says the same after it was restarted."""
    for name in NAMES:
        said = ask(name)
        attack.reopen(name)
        assert ask(name) == said


def test_restarts_between_all_steps(attack: Adversary) -> None:
    """Payload, answer and consent are each the same again, byte for byte; one charge, one release."""
    attack.collect()
    before = {name: (b"".join(attack.payloads[name, 1].pieces), attack.payloads[name, 1].receipt) for name in NAMES}
    for name in NAMES:
        attack.reopen(name)
        again = attack.assign(name, attack.assignments[1]).values[1]
        assert (b"".join(again.pieces), again.receipt) == before[name]
    receipts = attack.receipts()
    fixed = {name: attack.fix(name) for name in NAMES}
    word = attack.countersign(receipts)
    _restarted(attack, lambda name: attack.ask_check(name, receipts, fixed=fixed[name], countersigned=word))
    answers = [CheckAnswer(*attack.channels[name].said[-1].values[3:]) for name in NAMES]
    _restarted(attack, lambda name: attack.ask_consent(name, answers))
    consents = [attack.channels[name].said[-1].values[3] for name in NAMES]
    assert attack.open(answers, consents).shape == (attack.plan().encoding.size,)
    for name in NAMES:
        attack.tell(name, pb.DIRECTIVE_KIND_RELEASED, 1, 1)
        assert attack.charges(name) == 1
        assert attack.ask_check(name, receipts).refused is RefusalCode.ROUND
        assert attack.ask_consent(name, answers).refused is RefusalCode.ROUND


@pytest.mark.parametrize("kind", [pb.DIRECTIVE_KIND_CHECK, pb.DIRECTIVE_KIND_CONSENT])
def test_an_object_that_is_no_message(attack: Adversary, kind: pb.DirectiveKind.ValueType) -> None:
    """Bytes that are no protobuf end in a code, not in a crash, and the round goes on."""
    receipts = attack.collect()
    answers = attack.answers() if kind == pb.DIRECTIVE_KIND_CONSENT else []
    objects = {pb.OBJECT_KIND_FIXED: b"\xff\xff\xff", pb.OBJECT_KIND_ANSWERS: b"\xff\xff\xff"}
    for data in (b"\xff\xff\xff", b""):
        assert attack.tell("b", kind, 1, 1, objects=dict.fromkeys(objects, data)).codes
    said = attack.ask_consent("b", answers) if answers else attack.ask_check("b", receipts)
    assert said.call == ("consent" if answers else "answer")


def test_opening_with_one_consent_missing(attack: Adversary) -> None:
    """All answers and all other consents in hand: without the last consent the keys do not open."""
    attack.collect()
    answers = attack.answers()
    consents = [attack.ask_consent(name, answers).values[3] for name in ("a", "b", "c")]
    with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
        attack.open(answers, [*consents, bytes(32)])
    with pytest.raises(HostileInput, match="every member"):
        attack.open(answers, consents)
    whole = [*consents, attack.ask_consent("d", answers).values[3]]
    assert attack.open(answers, whole).shape == (attack.plan().encoding.size,)


def test_receipts_are_held_to_what_was_shown_when_they_are_paid_for(attack: Adversary) -> None:
    """A charge stands beside what was shown last, as its witness: without a member's signature there is none, and the same
    question shown anew with it is paid for. The question itself is the same, for signatures are no part of it."""
    receipts = attack.collect()
    answers = attack.answers()
    site, other = attack.bed.sites["a"], [*receipts[:3], SignedReceipt(receipts[3].body, b"")]
    assert attack.ask_check("a", other).values[3:] == answers[0]
    assert attack.ask_consent("a", answers).refused is RefusalCode.RECEIPT
    assert attack.charges("a") == 0
    assert attack.ask_check("a", receipts).values[3:] == answers[0]
    assert attack.ask_consent("a", answers).call == "consent"
    (charge,) = site.ledger.entries(kind=Kind.CHARGE)
    assert [item.receipt for item in site.ledger.receipts(entry=charge.seq)] == receipts
    assert attack.ask_check("a", other).values[3:] == answers[0]  # said again, and nothing that is paid for changes
    assert [item.receipt for item in site.ledger.receipts(entry=charge.seq)] == receipts
