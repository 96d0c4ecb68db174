"""A hostile coordinator asks participants to decrypt what they should not: each gets a refusal, and the participant leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.federation import make_data
from support.hostile import (
    NAMES,
    Adversary,
    add_mod,
    context_of,
    flat,
    key_extracting_ciphertext,
    make_adversary,
    subtract_mod,
    uniformity,
)
from support.randomness import RARE, SeededRandom
from support.securesum import malleated, sum_of
from veilsum_node.errors import HostileInput, RefusalCode
from veilsum_privacy.securesum.bfv import SecretKey
from veilsum_privacy.securesum.contribution import open_sum
from veilsum_privacy.securesum.parameters import MAX_SEEDS, TAGS
from veilsum_proto import federation_pb2 as pb


@pytest.fixture
def attack(tmp_path: Path) -> Iterator[Adversary]:
    adversary = make_adversary(tmp_path)
    adversary.set_up()
    yield adversary
    adversary.check_ledgers()


def _consented(attack: Adversary) -> None:
    attack.collect()
    attack.consents()


def _left(attack: Adversary, name: str) -> None:
    row = attack.row(name)
    assert row.status == "left"
    assert row.secret_key is row.tag_key is row.seeds is row.box_key is None
    assert attack.ask_decryption(name, attack.sum()).refused is RefusalCode.CLOSED


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


def _own_ciphertexts(attack: Adversary) -> list[bytes]:
    """Encryptions of zeros under a key of the adversary's own."""
    parameters = attack.plan().encoding.parameters
    own = SecretKey.generate(parameters)
    slots = attack.slots()
    return [sum_of([own.encrypt(np.zeros(count, dtype=np.uint64)) for _ in NAMES], parameters, count) for count in slots]


def test_decryption_oracle_on_a_crafted_ciphertext(attack: Adversary) -> None:
    """c0 = 0, c1 = floor(q/t) decrypts to the secret key. A sum of so few has no second polynomial that could be chosen, only
    seeds; and no form of it has tags. So nothing comes back and the site leaves.

    That the ciphertext is what it claims is shown with a colluder's key: the words are the key's coefficients, -1, 0 or 1.
    """
    _consented(attack)
    parameters, slots = attack.plan().encoding.parameters, attack.slots()
    crafted = [key_extracting_ciphertext(parameters, count) for count in slots]
    secret, tags = attack.spied("d").keys(4)
    many, modulus = [str(index) for index in range(MAX_SEEDS + 1)], parameters.plain_modulus
    for data, count in zip(crafted, slots, strict=True):
        words = secret.decrypt(data, count, len(many))
        assert set(words.tolist()) == {0, 1, modulus - 1}
        with pytest.raises(HostileInput, match="tags"):
            tags.check(bytes(32), 0, tags.pads(bytes(32), many, 1, modulus)[0], words, modulus)
    assert attack.ask_decryption("a", crafted).refused is RefusalCode.TAG
    _left(attack, "a")
    attack.nothing_said_but_codes("a", -2)


def test_decryption_of_a_ciphertext_under_another_key(attack: Adversary) -> None:
    """A ciphertext in good form that the adversary made whole."""
    _consented(attack)
    assert attack.ask_decryption("a", _own_ciphertexts(attack)).refused is RefusalCode.TAG
    _left(attack, "a")


def test_decryption_oracle_on_shifted_sum(attack: Adversary) -> None:
    """The true sum plus a plaintext of the adversary's choice: linear tags do not follow an unknown r."""
    _consented(attack)
    parameters = attack.plan().encoding.parameters
    width, step = parameters.coefficient_bytes, parameters.prime // parameters.plain_modulus
    shifted = []
    for data in attack.sum():
        second = (int.from_bytes(data[width : 2 * width], "little") + step) % parameters.prime
        shifted.append(data[:width] + second.to_bytes(width, "little") + data[2 * width :])
    assert (flat(attack.words("d", shifted)) != flat(attack.words("d", attack.sum()))).sum() == len(shifted)
    assert attack.ask_decryption("b", shifted).refused is RefusalCode.TAG
    _left(attack, "b")


def test_decryption_oracle_on_a_malleated_sum(attack: Adversary) -> None:
    """The true sum with noise added to one coefficient: its words and tags stay right, as long as the noise does not reach
    q/2t, so whether it opens tells about the noise that is in it. It is refused as a wrong tag is, before it comes near that.
    """
    _consented(attack)
    parameters = attack.plan().encoding.parameters
    for name, extra in (("b", 1000), ("c", -1000)):
        crafted = [malleated(data, parameters, extra) for data in attack.sum()]
        assert (flat(attack.words("d", crafted)) == flat(attack.words("d", attack.sum()))).all()
        assert attack.ask_decryption(name, crafted).refused is RefusalCode.TAG
        _left(attack, name)
        attack.nothing_said_but_codes(name, -2)
    assert attack.ask_decryption("a", attack.sum()).call == "decrypted"


def test_decryption_of_a_part_of_the_cohort(attack: Adversary) -> None:
    """A single contribution, a smaller sum or one that counts someone twice: the pads are those of the exact cohort."""
    _consented(attack)
    for asked, names in zip("cabd", ("a", "ab", "abc", "abcdd"), strict=True):
        assert attack.ask_decryption(asked, attack.sum(names=tuple(names))).refused is RefusalCode.TAG, names
        _left(attack, asked)


def test_decryption_of_another_attempts_sum(attack: Adversary) -> None:
    """A complete, honest sum of another round: its tags are of another context."""
    attack.collect()
    attack.finish()
    attack.collect(number=2, attempt=2)
    attack.consents(2, 2)
    assert attack.ask_decryption("a", attack.sum(1), 2, 2).refused is RefusalCode.TAG


def test_second_sum_of_one_context(attack: Adversary) -> None:
    """After the right sum a wrong one for the same context is refused; the same one is answered."""
    _consented(attack)
    right = attack.sum()
    first = attack.ask_decryption("a", right).values[3]
    again = attack.ask_decryption("a", right).values[3]
    assert all(np.array_equal(one, other) for one, other in zip(first, again, strict=True))
    assert attack.ask_decryption("a", attack.sum(names=("a", "b", "c"))).refused is RefusalCode.TAG
    _left(attack, "a")


def _encrypted_again(attack: Adversary, change: int = 0) -> list[bytes]:
    """The sum under other randomness, a data slot changed, with right tags: made by a colluder, who holds the study's keys."""
    secret, tags = attack.spied("d").keys(len(NAMES))
    parameters, context = secret.parameters, context_of(attack.payloads["a", 1].receipt)
    modulus, made = parameters.plain_modulus, []
    for index, (part, count) in enumerate(zip(attack.sum(), attack.slots(), strict=True)):
        slots = secret.decrypt(part, count, len(NAMES))
        words = slots[:-TAGS].copy()
        words[1] = (int(words[1]) + change) % modulus
        # tags are linear in the words: what the change adds to them is the difference of two tags under the same pad
        pad = np.zeros(TAGS, dtype=np.uint64)
        before, after = (tags.tags(context, index, pad, each, modulus) for each in (slots[:-TAGS], words))
        right = add_mod(slots[-TAGS:], subtract_mod(after, before, modulus), modulus)
        rest = [secret.encrypt(np.zeros(count, dtype=np.uint64)) for _ in NAMES[1:]]
        made.append(sum_of([secret.encrypt(np.concatenate([words, right])), *rest], parameters, count))
    return made


@pytest.mark.parametrize("change", [0, 1], ids=["same words", "other words"])
def test_second_sum_of_one_context_with_right_tags(attack: Adversary, change: int) -> None:
    """A context is decrypted once. Tags prove what was summed, not that it is the first: here they are right."""
    _consented(attack)
    right, other = attack.sum(), _encrypted_again(attack, change)
    assert other != right
    control = flat(attack.ask_decryption("b", other).values[3])
    assert np.count_nonzero(control != flat(attack.words("d", right))) == change * len(right)
    assert attack.ask_decryption("b", right).refused is RefusalCode.TAG
    _left(attack, "b")
    assert attack.ask_decryption("a", right).call == "decrypted"
    assert attack.ask_decryption("a", other).refused is RefusalCode.TAG
    _left(attack, "a")


def test_decryption_before_consent(attack: Adversary) -> None:
    """Right tags, but this site has not consented: nothing is decrypted. It stays, for the sum was no forgery."""
    attack.collect()
    assert attack.ask_decryption("a", attack.sum()).refused is RefusalCode.ROUND
    assert attack.row("a").status == "ready"


def test_decryption_after_release(attack: Adversary) -> None:
    """A released context is closed."""
    attack.collect()
    attack.finish()
    assert attack.ask_decryption("b", attack.sum()).refused is RefusalCode.ROUND


@pytest.mark.parametrize("faults", [("empty", "fewer", "more"), ("truncated", "zeroed", "garbage")])
def test_malformed_sums_are_refused(attack: Adversary, faults: tuple[str, ...]) -> None:
    """Whatever cannot be the sum is refused with a code before the key is used on it."""
    _consented(attack)
    good = attack.sum()
    sums = {
        "empty": [b""] * len(good),
        "fewer": good[:-1],
        "more": [*good, good[0]],
        "truncated": [good[0][:-1], *good[1:]],
        "zeroed": [bytes(len(good[0])), *good[1:]],
        "garbage": [b"\xff" * len(good[0]), *good[1:]],
    }
    for name, fault in zip("dab", faults, strict=True):
        assert attack.ask_decryption(name, sums[fault]).refused is RefusalCode.TAG, fault
        _left(attack, name)


def test_sum_object_that_is_no_message(attack: Adversary) -> None:
    """Bytes that are no protobuf end in a code, not in a crash."""
    _consented(attack)
    said = attack.tell("a", pb.DIRECTIVE_KIND_DECRYPT, 1, 1, objects={pb.OBJECT_KIND_SUM: b"\xff\xff\xff"})
    assert said.refused is RefusalCode.INTERNAL
    assert attack.ask_decryption("a", attack.sum()).call == "decrypted"


def test_opening_with_one_consent_missing(attack: Adversary) -> None:
    """Key, tags and all other consents in hand: without the last consent the words are uniform and the count lane refuses."""
    receipts = attack.collect()
    consents = [attack.ask_consent(name, receipts).values[3] for name in ("a", "b", "c")]
    words = attack.words("d", attack.sum())
    plan = attack.plan().encoding
    with pytest.raises(HostileInput, match="count lane"):
        open_sum(words, plan, [*consents, bytes(32)])
    with pytest.raises(HostileInput, match="every member"):
        open_sum(words, plan, consents)
    assert uniformity(flat(words), plan.parameters.plain_modulus) > RARE
    whole = [*consents, attack.ask_consent("d", receipts).values[3]]
    assert open_sum(words, plan, whole).shape == (plan.size,)
