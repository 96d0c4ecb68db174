"""What broke drafts of the protocol, each as an attack: refused as the code is, and successful once its guard is removed.

The attackers are a coordinator and all members but those that a test calls honest. Where they need a vector that a challenge
does not see, the plan leaves them one lane of nearly a whole word, so that nothing but the guard in question refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support import one_time
from support.one_time import STUDY, Members, Played, Sent, make_members, play, said_in, shifted, signing_key, some_vectors
from support.randomness import SeededRandom
from support.securesum import ALPHA, uniform_p_value
from veilsum_aggregation.arrays import Integers
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Label, SigningKey, verify
from veilsum_privacy.ledger import receipts as signed_receipts
from veilsum_privacy.results import sum_evidence
from veilsum_privacy.results.sum_evidence import Evidence, Held
from veilsum_privacy.results.whole_sums import total_from_bytes, total_to_bytes, verify_evidence
from veilsum_privacy.securesum import check_words, key_shares, opening, streams
from veilsum_privacy.securesum.check_words import (
    CHECK_BITS,
    CHECKS,
    Answered,
    CheckAnswer,
    Signed,
    products,
    sum_digest,
    verify_answers,
    verify_check_words,
)
from veilsum_privacy.securesum.contributions import Contribution
from veilsum_privacy.securesum.key_shares import MemberMasks, consent_of, self_masks
from veilsum_privacy.securesum.opening import open_keys, open_words
from veilsum_privacy.securesum.products import KeyProducts, common_polynomials
from veilsum_privacy.securesum.ring import RING_2048, RINGS
from veilsum_privacy.securesum.short_keys import draw_key
from veilsum_privacy.securesum.streams import StreamPurpose, WordStream, derived_key

Words = NDArray[np.uint64]
Patch = pytest.MonkeyPatch

T = RING_2048.plain_modulus
WIDE = T // 32 * 7
"""A bound with which two members' sums reach seven eighths of all words."""


def verified(members: Members, found: Evidence) -> Integers:
    return verify_evidence(Held(found, members.identities, STUDY, members.context), members.plan, members.coordinator)


def refused(members: Members, found: Evidence, match: str) -> None:
    with pytest.raises(HostileInput, match=match):
        verified(members, found)


def wide_members(seed: int, size: int = 6) -> Members:
    """Two members of which values may be nearly any."""
    return make_members(2, size=size, bound=WIDE, seed=seed)


def small_vectors(members: Members) -> list[Integers]:
    return [np.arange(members.plan.size) + 10 * place for place, _ in enumerate(members.names)]


def test_an_honest_round_verifies() -> None:
    for members in (make_members(4), wide_members(0), make_members(3, size=5000)):
        played = play(members, some_vectors(members) if members.plan.cohort > 2 else small_vectors(members))
        assert verified(members, played.evidence).tolist() == played.exact.tolist()


# -- 1. words that are chosen after the challenge --------------------------------------------------------------------------


def unseen(rho: bytes, context: bytes, places: Sequence[int], count: int, random: np.random.Generator) -> dict[int, int]:
    """Amounts at these places, one more than there are vectors, to which a known challenge is blind."""
    columns = []
    for place in places:
        unit = np.zeros(count, dtype=np.uint64)
        unit[place] = 1
        columns.append([r % T for r in products(unit, context, rho)])
    last = int(random.integers(1, T))
    rows = [[column[k] for column in columns[:CHECKS]] + [-columns[CHECKS][k] * last % T] for k in range(CHECKS)]
    for pivot in range(CHECKS):
        rows[pivot:] = sorted(rows[pivot:], key=lambda row: row[pivot] == 0)
        inverse = pow(rows[pivot][pivot], -1, T)
        rows[pivot] = [x * inverse % T for x in rows[pivot]]
        for other in range(CHECKS):
            if other != pivot:
                factor = rows[other][pivot]
                rows[other] = [(x - factor * y) % T for x, y in zip(rows[other], rows[pivot], strict=True)]
    return dict(zip(places, [*(row[CHECKS] for row in rows), last], strict=True))


def changed_after_the_challenge(played: Played) -> Evidence:
    """The sum moved by a vector that rho is blind to and that stays in range; everything else as members said it."""
    members, random = played.members, np.random.default_rng(1)
    honest, plan = played.evidence, played.members.plan
    for _ in range(500):
        moved, total = unseen(played.rho, members.context, range(1, CHECKS + 2), plan.words, random), played.total
        for place, amount in moved.items():
            total = shifted(total, place, amount, plan.ring)
        found = replace(honest, total=total_to_bytes(total, plan))
        words = open_words(total, plan, members.context, members.consents)
        try:
            opening.unmask_values(words, plan, members.context, members.consents)
        except HostileInput:
            continue  # out of range; another one
        return found
    raise AssertionError("no vector in range was found")


def test_a_sum_that_is_chosen_after_the_challenge_is_refused(monkeypatch: Patch) -> None:
    members = wide_members(1)
    played = play(members, small_vectors(members))
    found = changed_after_the_challenge(played)
    refused(members, found, "does not follow")
    # a coordinator that signs for the new sum as well gets another challenge, which nobody answered
    fixed = members.fix(total_from_bytes(found.total, members.plan))[1]
    refused(members, replace(found, fixed=fixed), "does not follow")
    # the guard removed: a challenge, and words about it, that are not bound to the sum
    monkeypatch.setattr(Contribution, "digest", lambda self, plan, context: bytes(32))
    loose = play(members, small_vectors(members))
    values = verified(members, changed_after_the_challenge(loose))
    assert values.tolist() != loose.exact.tolist()


# -- 2. a consent that nothing commits to, or somebody else's --------------------------------------------------------------


def copied(members: Members, commitment: Callable[[bytes, str, bytes], bytes] | None) -> tuple[Evidence, Integers]:
    """The second member sends the first one's contribution again, its answer again, and in the end its consent.

    It knows nothing of what is in them: it takes its own masks off and puts them on with the other sign.
    """
    first, second = members.names
    values = np.arange(members.plan.size) - 2
    honest, context, ring = members.contribute(first, values), members.context, members.ring
    seed, cohort = members.pairs[frozenset(members.names)], members.plan.cohort
    keys = WordStream(seed, StreamPurpose.PAIR_KEY, context, bound=1 << ring.share_bits(cohort)).take(ring.degree + 1)
    data = WordStream(seed, StreamPurpose.PAIR_DATA, context, bound=T).take(members.plan.words)
    share = (honest.contribution.share - np.uint64(2) * keys) % np.uint64(1 << ring.share_bits(cohort))
    shift, coefficients = T - data.astype(object) * 2 % T, honest.contribution.coefficients
    scaled = [
        (int(c) + (ring.prime * int(m) * 2 + T) // (2 * T)) % ring.prime for c, m in zip(coefficients, shift, strict=True)
    ]
    twin = Contribution(share, np.array(scaled, dtype=np.uint64))
    sent = [honest, Sent(values, honest.words, honest.key, twin)]
    proof = signed_receipts.consent_proof(members.consent(first))
    pledge = None if commitment is None else commitment(context, second, proof)
    receipts = [members.receipt(first, honest.contribution), members.receipt(second, twin, pledge)]
    played = Played(members, sent, members.add([honest, sent[1]]), receipts)
    (answer,) = [members.answer(first, honest.words, played.rho, played.fixed[0])]
    mask = WordStream(seed, StreamPurpose.PAIR_CHECK, context, played.rho, bound=T).take(CHECKS)
    said = said_in(answer.body).words
    own = products(data, context, played.rho)
    again = [(word - 2 * int(pad) - 2 * product) % T for word, pad, product in zip(said, mask, own, strict=True)]
    played.checks = [answer, members.say(second, again, played.rho, played.fixed[0])]
    return replace(played.evidence, consents=(members.consent(first),) * 2), values


def test_another_members_contribution_and_consent_cannot_be_copied(monkeypatch: Patch) -> None:
    members = make_members(2)
    honest = signed_receipts.consent_commitment
    for pledge in (None, lambda context, _, proof: honest(context, "site-00", proof)):  # its own; the other's
        found, _ = copied(members, pledge)
        refused(members, found, "consent of site-01 is not the one")

    def unnamed(context: bytes, sender: str, proof: bytes) -> bytes:
        return sum_digest(context, proof, b"nobody")

    with monkeypatch.context() as patch:
        patch.setattr(signed_receipts, "consent_commitment", unnamed)
        patch.setattr(one_time, "consent_commitment", unnamed)
        found, values = copied(members, unnamed)
        assert verified(members, found).tolist() == (2 * values).tolist(), "counted twice, by somebody who does not know it"
    monkeypatch.setattr(signed_receipts.Receipt, "hold", lambda *_: None)
    found, values = copied(members, None)
    assert verified(members, found).tolist() == (2 * values).tolist()


def test_another_consent_after_the_opening_is_refused() -> None:
    members = make_members(3)
    found = play(members, some_vectors(members)).evidence
    for place in range(3):
        for other in (bytes(32), found.consents[place][:-1] + b"\0", b"", found.consents[(place + 1) % 3]):
            consents = (*found.consents[:place], other, *found.consents[place + 1 :])
            refused(members, replace(found, consents=consents), f"consent of site-0{place} is not the one")


# -- 3. two challenges for one context -------------------------------------------------------------------------------------


def unpadded(secret: bytes, purpose: StreamPurpose, context: bytes, *more: bytes) -> bytes:
    return derived_key(
        secret, purpose, context, *(() if purpose in (StreamPurpose.PAIR_CHECK, StreamPurpose.SELF_CHECK) else more)
    )


def test_two_challenges_for_one_context_are_not_answered(monkeypatch: Patch) -> None:
    members = make_members(3)
    name, rhos = members.names[0], [bytes([number]) * 32 for number in (1, 2)]
    words = members.contribute(name, np.arange(members.plan.size)).words
    kept = Answered(bytes(32), rhos[0], members.answer(name, words, rhos[0], bytes(32)))
    assert kept.again(rhos[0], bytes(32)) is kept.answer
    for rho, fixed in ((rhos[1], bytes(32)), (rhos[0], rhos[1]), (rhos[1], rhos[1])):
        assert kept.again(rho, fixed) is None

    def differences() -> list[int]:
        said = [said_in(members.answer(name, words, rho, bytes(32)).body).words for rho in rhos]
        real = [products(words, members.context, rho) for rho in rhos]
        return [(a - b - (x - y)) % T for a, b, x, y in zip(*said, *real, strict=True)]

    assert all(differences()), "what is left are pads"
    monkeypatch.setattr(streams, "derived_key", unpadded)
    assert differences() == [0] * CHECKS, "pads that do not depend on rho leave <r - r', y>, before any charge"


# -- 4. answers are digests of vectors, and only their sum opens -----------------------------------------------------------


def solved(members: Members, said: Sequence[int], rho: bytes) -> list[int]:
    """The words that <r, y> alone would give away: a vector of two words under three checks."""
    rows = []
    for place in range(2):
        unit = np.zeros(2, dtype=np.uint64)
        unit[place] = 1
        rows.append(products(unit, members.context, rho))
    (a, c, _), (b, d, _) = rows
    inverse = pow(a * d - b * c, -1, T)
    return [(d * said[0] - b * said[1]) * inverse % T, (a * said[1] - c * said[0]) * inverse % T]


def test_no_members_answer_opens_with_all_consents(monkeypatch: Patch) -> None:
    members = make_members(3, size=1)
    assert members.plan.words == 2 < CHECKS

    def attack() -> bool:
        played = play(members, some_vectors(members))
        victim, found = played.sent[0], played.evidence
        said = said_in(found.checks[0]).words
        pads = self_masks(StreamPurpose.SELF_CHECK, members.context, found.consents[:1], CHECKS, T, played.rho)
        # the third member colludes, and takes off the masks that it shares with the victim
        seed = members.pairs[frozenset((members.names[0], members.names[2]))]
        shared = WordStream(seed, StreamPurpose.PAIR_CHECK, members.context, played.rho, bound=T).take(CHECKS)
        if pairs:
            pads = pads + shared
        bare = [(word - int(pad)) % T for word, pad in zip(said, pads, strict=True)]
        return solved(members, bare, played.rho) == victim.words.tolist()

    pairs = True
    assert not attack()
    whole = MemberMasks.pairwise

    def none(self: MemberMasks, purpose: StreamPurpose, *rest: Any) -> Words:
        return np.zeros(CHECKS, dtype=np.uint64) if purpose is StreamPurpose.PAIR_CHECK else whole(self, purpose, *rest)

    monkeypatch.setattr(MemberMasks, "pairwise", none)
    pairs = False
    assert attack(), "an answer without pairwise masks is a digest that tells a vector of few words whole"


# -- 5. one-time keys that were given away ---------------------------------------------------------------------------------


def test_keys_given_away_open_no_sum_that_nobody_consented_to(monkeypatch: Patch) -> None:
    members = make_members(3, size=700)

    def opened() -> Words:
        """The sum of all words under the sum of the keys, no consent given."""
        sent = [members.contribute(name, np.zeros(700, dtype=np.int64)) for name in members.names]
        total, key = members.add(sent), np.sum([one.key for one in sent], axis=0)
        common = common_polynomials(members.context, RING_2048, 0, 1)
        pads = KeyProducts(key, RING_2048).times(common)[0][: members.plan.words]
        phase = (total.coefficients + np.uint64(RING_2048.prime) - pads) % np.uint64(RING_2048.prime)
        return opening._rounded(phase, RING_2048, 3)

    left = []
    for number in range(30):
        members.context = number.to_bytes(32, "big")
        left.append(opened())
    assert uniform_p_value(np.array(left), T) > ALPHA
    whole = key_shares.self_masks

    def none(purpose: StreamPurpose, context: bytes, consents: Sequence[bytes], count: int, bound: int, *more: bytes) -> Words:
        if purpose is StreamPurpose.SELF_DATA:
            return np.zeros(count, dtype=np.uint64)
        return whole(purpose, context, consents, count, bound, *more)

    monkeypatch.setattr(key_shares, "self_masks", none)
    values = opened()
    assert int(values[0]) == 3
    assert len(set(values.tolist())) < 8, "without the self-mask of the data the sum lies open"


# -- 6. a plain modulus that is not a prime -------------------------------------------------------------------------------


def test_half_of_an_even_modulus_would_pass() -> None:
    """2^(k-1) in one place vanishes under every even number of a challenge; under a prime modulus nothing does. Nobody is
    asked for a modulus: all are of one list, and that they are primes is held in test_one_time_keys.py."""
    words = np.arange(5, dtype=np.uint64)
    for modulus, passes in ((1 << 14, True), (1 << 39, True), (T, False)):
        wrong, seen = words.copy(), 0
        wrong[2] += np.uint64(modulus // 2)
        for number in range(200):
            rho, context, consent = number.to_bytes(32, "big"), bytes(32), bytes(32)
            pads = self_masks(StreamPurpose.SELF_CHECK, context, [consent], CHECKS, modulus, rho)
            said = [(x + int(pad)) % modulus for x, pad in zip(products(words, context, rho), pads, strict=True)]
            verify_check_words(words, modulus, context, rho, [said], [consent])
            try:
                verify_check_words(wrong, modulus, context, rho, [said], [consent])
            except HostileInput:
                seen += 1
        # one of eight challenges misses it, so all of 200 see it with chance (7/8)^200 < 1e-11
        assert (seen < 200) is passes
    assert all(ring.plain_modulus % 2 for ring in RINGS), "a study's ring is chosen of these alone"
    assert T in {ring.plain_modulus for ring in RINGS}


# -- 7. streams that are keyed by a part of a context, or twice ------------------------------------------------------------


def test_no_two_streams_share_a_key_and_none_gives_its_secret_away(monkeypatch: Patch) -> None:
    secret, context = bytes(range(32)), bytes(range(32, 64))
    other = context[:-1] + b"\xff"
    names = [
        (purpose, where, more)
        for purpose in StreamPurpose
        for where in (context, other, context + b"\0", context[:16])
        for more in ((), (b"",), (b"a",), (b"a", b""))
    ]
    keys = {derived_key(secret, purpose, where, *more) for purpose, where, more in names}
    assert len(keys) == len(names)
    assert secret not in keys
    members = make_members(2)

    def difference() -> Words:
        """Of one member's key shares in two contexts that differ in their last byte, the keys being zero."""
        found = []
        for last in (1, 2):
            members.context = bytes(31) + bytes([last])
            found.append(members.share(members.names[0], np.zeros(RING_2048.degree, dtype=np.int64)))
        return (found[0] - found[1]) % np.uint64(1 << RING_2048.share_bits(2))

    assert len(set(difference().tolist())) > 200
    monkeypatch.setattr(
        streams, "derived_key", lambda secret, purpose, context, *more: derived_key(secret, purpose, context[:16], *more)
    )
    monkeypatch.setattr(key_shares, "derived_key", streams.derived_key)
    assert not difference().any(), "a stream keyed by a part of the context serves two of them"


# -- 8. two lists of answers -----------------------------------------------------------------------------------------------


def equivocated(members: Members) -> tuple[Evidence, Played, list[Signed]]:
    """A false sum, fixed before the challenge, in which one word is the attackers'; the honest members consent to a list in
    which the attacker's answer is not one. Then everything opens, and it signs the answer that makes the false sum right."""
    sent = [members.contribute(name, values) for name, values in zip(members.names, small_vectors(members), strict=True)]
    true = members.add(sent)
    for amount in range(1, 50):
        total = shifted(true, 3, amount * (T // 50), members.ring)
        try:
            words = open_words(total, members.plan, members.context, members.consents)
            opening.unmask_values(words, members.plan, members.context, members.consents)
            break
        except HostileInput:
            continue
    receipts = [members.receipt(name, one.contribution) for name, one in zip(members.names, sent, strict=True)]
    played = Played(members, sent, total, receipts)
    shown = list(played.checks)
    pads = self_masks(StreamPurpose.SELF_CHECK, members.context, members.consents, CHECKS, T, played.rho)
    others = [said_in(item.body).words for item in shown[:-1]]
    needed = [
        (product + int(pads[k]) - sum(words[k] for words in others)) % T
        for k, product in enumerate(products(words, members.context, played.rho))
    ]
    later = members.say(members.names[-1], needed, played.rho, played.fixed[0])
    agreed = (
        *members.agree(shown, played.rho, played.fixed[0])[:-1],
        members.agree([*shown[:-1], later], played.rho, played.fixed[0])[-1],  # the attacker signs what it likes
    )
    played.checks = [*shown[:-1], later]
    return replace(played.evidence, agreed=agreed), played, shown


def test_an_answer_that_is_signed_anew_after_the_opening_is_refused(monkeypatch: Patch) -> None:
    members = wide_members(8)
    found, played, shown = equivocated(members)
    refused(members, found, "signature under veilsum/6/consent is invalid")
    honest_list = replace(
        found, checks=tuple(item.body for item in shown), agreed=members.agree(shown, played.rho, played.fixed[0])
    )
    refused(members, honest_list, "vouched for")

    def each_its_own(found: Evidence, said: object, cohort: Sequence[Any]) -> None:
        """What a draft did: every answer signed by its sender, and nothing under all of them."""
        for item, member in zip(played.checks, cohort, strict=True):
            verify(member.public_key, Label.CHECK, item.body, item.signature)

    monkeypatch.setattr(sum_evidence, "_agreed", each_its_own)
    assert verified(members, found).tolist() != played.exact.tolist(), "a false sum with a valid answer of everyone"


# -- further: what a member checks before it is charged, and who signs last ------------------------------------------------


def test_a_member_is_charged_only_for_answers_to_its_own_question() -> None:
    members = make_members(3)
    played = play(members, some_vectors(members))
    checks, own, cohort = played.checks, played.checks[1], members.identities
    asked = said_in(own.body)
    assert verify_answers(own, asked, cohort, answers_of(checks), T) == [item.body for item in checks]
    words, rho, fixed = (1, 2, 3), played.rho, played.fixed[0]

    def instead(place: int, item: Signed) -> list[Signed]:
        return [*checks[:place], item, *checks[place + 1 :]]

    other = SigningKey.generate()
    forged = Signed(checks[0].body, other.sign(Label.CHECK, checks[0].body))
    for bad, match in [
        (checks[:2], "exactly one answer"),
        ([*checks, checks[0]], "exactly one answer"),
        (instead(1, members.say(members.names[1], words, rho, fixed)), "own answer is another"),
        (instead(0, members.say(members.names[0], words, bytes(32), fixed)), "signature"),
        (instead(0, members.say(members.names[0], words, rho, bytes(32))), "signature"),
        (instead(0, members.say(members.names[2], words, rho, fixed)), "signature"),
        ([checks[1], checks[0], checks[2]], "signature"),
        (instead(0, forged), "signature"),
        (instead(0, Signed(checks[0].body, signing_key("site-00").sign(Label.RECEIPT, checks[0].body))), "signature"),
    ]:
        with pytest.raises(HostileInput, match=match):
            verify_answers(own, asked, cohort, answers_of(bad), T)
    for wrong in ((1, 2), (1, 2, 3, 4), (1, 2, T), (1, 2, -1)):
        with pytest.raises(HostileInput, match="words below"):
            verify_answers(own, asked, cohort, [CheckAnswer(wrong, b""), *answers_of(checks[1:])], T)
    others = play(make_members(3, seed=5), some_vectors(members)).checks
    with pytest.raises(HostileInput, match="signature"):
        verify_answers(own, asked, cohort, answers_of([others[0], own, others[2]]), T)


def answers_of(checks: Sequence[Signed]) -> list[CheckAnswer]:
    """What travels of signed answers."""
    return [CheckAnswer(said_in(item.body).words, item.signature) for item in checks]


def test_grinding_receipts_gives_other_challenges_and_no_answer() -> None:
    """Who signs last may try as many receipts as it likes: each has its own challenge, and nothing tells which is good."""
    members = wide_members(9)
    played = play(members, small_vectors(members))
    false = shifted(played.total, 2, T // 3, members.ring)
    fixed = members.fix(false)[0]
    tried = set()
    for number in range(1, 200):
        last = members.receipt(members.names[-1], played.sent[-1].contribution, number=number, head=number.to_bytes(32, "big"))
        rho = check_words.challenge(members.context, [played.receipts[0].body, last.body], fixed)
        tried.add(rho)
        ground = Played(members, played.sent, false, [played.receipts[0], last])
        if number % 40 == 0:
            refused(members, ground.evidence, "vouched for|range|overflows")
    assert len(tried) == 199
    again = Signed(played.receipts[-1].body, signing_key(members.names[-1]).sign(Label.RECEIPT, played.receipts[-1].body))
    assert again.signature != played.receipts[-1].signature
    assert check_words.challenge(members.context, [played.receipts[0].body, again.body], fixed) == check_words.challenge(
        members.context, [item.body for item in played.receipts], fixed
    ), "a signature made anew is not a new try"


def test_two_cohorts_do_not_open_together() -> None:
    """One member is shown another cohort, and so has another context: keys and words of neither are a sum of the other."""
    members = make_members(4)
    shown = replace(members, context=bytes(32))
    sent = [
        (shown if place == 3 else members).contribute(name, np.ones(5, dtype=np.int64))
        for place, name in enumerate(members.names)
    ]
    total = members.add(sent)
    consents = [
        consent_of(members.selves[name], bytes(32) if place == 3 else members.context)
        for place, name in enumerate(members.names)
    ]
    for context in (members.context, bytes(32)):
        with pytest.raises(HostileInput, match=r"do not count|larger than keys"):
            open_keys(total.share, members.ring, context, consents)


def test_an_abandoned_attempts_answer_helps_with_no_other() -> None:
    """An attempt that was given up after its answer, and the next one with the same values: other masks, key, errors, pads."""
    members = make_members(3, size=700)
    first = members.contribute(members.names[0], np.ones(700, dtype=np.int64))
    members.context = bytes(32)
    second = members.contribute(members.names[0], np.ones(700, dtype=np.int64))
    prime, bound = np.uint64(RING_2048.prime), np.uint64(1 << RING_2048.share_bits(3))
    differences = [
        ((first.words + np.uint64(T) - second.words) % np.uint64(T), T),
        ((first.contribution.coefficients + prime - second.contribution.coefficients) % prime, int(prime)),
        ((first.contribution.share + bound - second.contribution.share) % bound, int(bound)),
    ]
    for difference, modulus in differences:
        assert uniform_p_value(difference, modulus) > ALPHA


def test_a_context_that_is_used_twice_would_halve_the_errors() -> None:
    """Why a payload is kept with its coefficients and sent again as it was: two sets of errors about one vector of words tell
    their mean to half the variance, and their keys' difference lies open. Nothing but the kept row stands against it."""
    members = make_members(3, size=700)
    source = SeededRandom(4)
    words = members.mask(members.names[0], np.zeros(700, dtype=np.int64))
    keys = [draw_key(RING_2048, source) for _ in range(2)]
    shares = [members.share(members.names[0], key).astype(np.int64) for key in keys]
    bound = 1 << RING_2048.share_bits(3)
    difference = (shares[0] - shares[1] + bound // 2) % bound - bound // 2
    assert difference[:-1].tolist() == (keys[0] - keys[1]).tolist()
    two = [members.encrypt(words, key).astype(object) for key in keys]
    common = common_polynomials(members.context, RING_2048, 0, 1)
    pads = [KeyProducts(key, RING_2048).times(common)[0][: len(words)].astype(object) for key in keys]
    prime = RING_2048.prime

    def error(phase: int, word: int) -> float:
        return float(Fraction((phase * T - prime * word + prime * T // 2) % (prime * T) - prime * T // 2, T))

    errors = [
        np.array([error(int(c - p), int(y)) for c, p, y in zip(one, pad, words, strict=True)])
        for one, pad in zip(two, pads, strict=True)
    ]
    assert np.var((errors[0] + errors[1]) / 2) < 0.75 * np.var(errors[0])


def test_a_challenge_leaves_a_false_sum_two_to_the_minus_84() -> None:
    assert CHECK_BITS * CHECKS >= 84
    assert all(ring.plain_modulus >= 1 << CHECK_BITS for ring in RINGS)
