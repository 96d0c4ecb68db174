"""BFV at its edge: exact arithmetic for honest bytes, one typed error for everything else, and nothing that inflates."""

from __future__ import annotations

import base64
import json
import os
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tenseal import sealapi

from support.randomness import RARE_DEVIATIONS
from support.securesum import malleated, sum_of
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.securesum import bfv
from veilsum_privacy.securesum.bfv import Adder, Scratch, SecretKey, _context, _encryption, _phases
from veilsum_privacy.securesum.frames import SEED_BYTES, FrameSize, check_frame, numbers_from_bytes, numbers_to_bytes
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, MAX_SEEDS, MAX_SUMMANDS, BfvParameters
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = bytes(range(32))
HEADER = 16  # SEAL's own
SOME = 20  # slots of a ciphertext that is cut
GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "ciphertexts.json").read_text(encoding="utf-8"))


def _foreign(parameters: BfvParameters, bits: tuple[int, ...] = (), modulus: int = 0) -> Any:
    """A context of other primes or another modulus at the same degree."""
    values = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.BFV)
    values.set_poly_modulus_degree(parameters.degree)
    values.set_coeff_modulus(sealapi.CoeffModulus.Create(parameters.degree, list(bits or parameters.prime_bits)))
    values.set_plain_modulus(modulus or parameters.plain_modulus)
    return sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.NONE)


def _ckks(parameters: BfvParameters, bits: tuple[int, ...]) -> Any:
    values = sealapi.EncryptionParameters(sealapi.SCHEME_TYPE.CKKS)
    values.set_poly_modulus_degree(parameters.degree)
    values.set_coeff_modulus(sealapi.CoeffModulus.Create(parameters.degree, list(bits)))
    return sealapi.SEALContext(values, True, sealapi.SEC_LEVEL_TYPE.NONE)


def _slots(parameters: BfvParameters, seed: int, count: int | None = None) -> NDArray[np.uint64]:
    random = np.random.default_rng(seed)
    return random.integers(0, parameters.plain_modulus, count or parameters.degree).astype(np.uint64)


@pytest.fixture(scope="module", params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def parameters(request: pytest.FixtureRequest) -> BfvParameters:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def key(parameters: BfvParameters) -> SecretKey:
    return SecretKey.generate(parameters)


@pytest.fixture(scope="module")
def honest(key: SecretKey) -> bytes:
    """A key as it is dealt."""
    return key.to_bytes()


def _rewrap(frame: bytes, *, mode: int = 2, stated: int | None = None) -> bytes:
    """Put a compressed body behind a correct header."""
    return struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, mode, 0, HEADER + len(frame) if stated is None else stated) + frame


def _refused(data: bytes, parameters: BfvParameters) -> None:
    with pytest.raises(HostileInput):
        SecretKey.parse(data, parameters)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("slots", [1, SOME, None], ids=["one slot", "some slots", "all slots"])
def test_sums_are_exact_to_the_largest_cohort(slots: int | None, key: SecretKey, parameters: BfvParameters) -> None:
    """Against whole numbers, in both forms that sums travel in: with seeds, and with the second polynomial."""
    count, t = slots or parameters.degree, np.uint64(parameters.plain_modulus)
    kinds = [_slots(parameters, 2, count), np.full(count, t - np.uint64(1)), np.arange(count, dtype=np.uint64)]
    fresh = [[key.encrypt(kind) for kind in kinds] for _ in range(MAX_SUMMANDS // 3 + 1)]
    in_turn = [item for several in fresh for item in several]
    for summands in (1, 2, 3, 16, 64, 65, 305, MAX_SUMMANDS):  # 305: the least room of all
        total = sum_of(in_turn[:summands], parameters, count)
        assert len(total) == parameters.sum_bytes(count, summands)
        expected = sum(kinds[index % 3].astype(object) for index in range(summands)) % int(t)
        assert key.decrypt_sum(total, count, summands).tolist() == expected.tolist()


@given(st.integers(1, 4096), st.integers(1, 9), st.integers(0, 2**32), st.sampled_from([BFV_8192, BFV_4096]))
@settings(max_examples=60, deadline=None)
def test_a_sum_of_cut_ciphertexts_is_the_cut_sum(slots: int, summands: int, seed: int, parameters: BfvParameters) -> None:
    """What decision 69 rests on: what is left out is a function of nothing that is needed."""
    key, width = _key(parameters), parameters.coefficient_bytes
    words = [_slots(parameters, seed + index) for index in range(summands)]
    fresh = [key.encrypt(each) for each in words]
    cut = [item[: slots * width] + item[-SEED_BYTES:] for item in fresh]
    total = sum_of(cut, parameters, slots)
    whole = sum_of(fresh, parameters, parameters.degree)
    assert total == whole[: slots * width] + whole[parameters.degree * width :]
    np.testing.assert_array_equal(key.decrypt_sum(total, slots, summands), sum(words)[:slots] % parameters.plain_modulus)  # type: ignore[index]


@cache
def _key(parameters: BfvParameters) -> SecretKey:
    return SecretKey.generate(parameters)


def test_the_noise_of_a_sum_is_the_one_that_is_allowed_for(key: SecretKey, parameters: BfvParameters) -> None:
    """Variance 127/12 a summand: a centred binomial of 42 bits, and rounding of q m / t. An oracle for `most_noise`."""
    for summands, times in ((1, 64), (16, 8), (64, 4)):
        found = np.empty((times, parameters.degree))
        for turn in range(times):
            fresh = [key.encrypt(_slots(parameters, turn * summands + index)) for index in range(summands)]
            _, noise = key._open(sum_of(fresh, parameters, parameters.degree), parameters.degree, summands)
            found[turn] = noise / parameters.plain_modulus
        # The phase is one modulo q - 1: 0 or -1 is added, of variance 1/4, once for all summands.
        std, size = (summands * 127 / 12 + 1 / 4) ** 0.5, found.size
        assert abs(found.std() / std - 1) < RARE_DEVIATIONS * (2 * size) ** -0.5 < 0.04
        assert abs(found.mean() + 0.5) < RARE_DEVIATIONS * std / size**0.5
        assert np.abs(found).max() < parameters.most_noise(summands)  # beyond 9.8 deviations


def test_a_sum_with_other_seeds_is_not_decrypted(key: SecretKey, parameters: BfvParameters) -> None:
    """Missing or foreign seeds are refused by their number or by the noise that they leave, as are numbers above the prime."""
    fresh = [key.encrypt(_slots(parameters, index, SOME)) for index in range(3)]
    total, first, width = sum_of(fresh, parameters, SOME), fresh[0][-64:], parameters.coefficient_bytes
    for wrong in (total[:-64] + bytes(64), total[:-128] + first + first):
        with pytest.raises(HostileInput, match="more noise"):
            key.decrypt_sum(wrong, SOME, 3)
    for wrong in (total[:-64], total + first, total[:-1], total[: width * SOME], total[width:], b"", total + bytes(width)):
        with pytest.raises(HostileInput, match="bytes"):
            key.decrypt_sum(wrong, SOME, 3)
    for slots, summands in ((SOME + 1, 3), (SOME - 1, 3), (SOME, 2), (SOME, 4), (SOME, 65)):
        with pytest.raises(HostileInput, match="bytes"):
            key.decrypt_sum(total, slots, summands)


@pytest.mark.parametrize("place", [0, SOME - 1])
def test_a_coefficient_that_is_not_below_the_prime_is_refused(place: int, key: SecretKey, parameters: BfvParameters) -> None:
    """In a contribution and in a sum of either form, at either end; one below the prime passes the check."""
    width, seeds, second = parameters.coefficient_bytes, bytes(2 * SEED_BYTES), bytes(parameters.degree * 8)
    adder = Adder(parameters, SOME, 2)
    for value, ends in ((parameters.prime, "prime"), ((1 << 8 * width) - 1, "prime"), (parameters.prime - 1, "")):
        numbers = np.zeros(SOME, dtype=np.uint64)
        numbers[place] = value
        first = numbers_to_bytes(numbers, width)
        if ends:
            for refuse in (
                lambda: adder.add(first + seeds[:SEED_BYTES]),  # noqa: B023
                lambda: key.decrypt_sum(first + seeds, SOME, 2),  # noqa: B023
                lambda: key.decrypt_sum(first + second[: parameters.degree * width], SOME, 65),  # noqa: B023
            ):
                with pytest.raises(HostileInput, match=ends):
                    refuse()
        else:
            adder.add(first + seeds[:SEED_BYTES])
            key.decrypt(first + seeds, SOME, 2)
    numbers = np.zeros(parameters.degree, dtype=np.uint64)
    numbers[-1] = parameters.prime
    with pytest.raises(HostileInput, match="prime"):
        key.decrypt(bytes(SOME * width) + numbers_to_bytes(numbers, width), SOME, MAX_SEEDS + 1)


@pytest.mark.parametrize("summands", [2, MAX_SEEDS + 1])
def test_a_ciphertext_that_is_refused_leaves_the_sum_as_it_was(
    summands: int, key: SecretKey, parameters: BfvParameters
) -> None:
    adder, words = Adder(parameters, SOME, summands), _slots(parameters, 1, SOME)
    good, whole = key.encrypt(words), key.encrypt(_slots(parameters, 1))
    for wrong in (b"", b"xx", good[:-1], good + b"\0", good + good, whole, good[:-SEED_BYTES], b"\xff" * len(good)):
        with pytest.raises(HostileInput):
            adder.add(wrong)
    for _ in range(summands):
        adder.add(key.encrypt(words))
    np.testing.assert_array_equal(
        key.decrypt_sum(adder.to_bytes(), SOME, summands), words * np.uint64(summands) % np.uint64(parameters.plain_modulus)
    )


@pytest.mark.parametrize("slots", [SOME, None], ids=["some slots", "all slots"])
@pytest.mark.parametrize("summands", [2, 7, 64])
def test_a_sum_with_more_noise_than_its_contributions_leave_is_not_decrypted(
    key: SecretKey, parameters: BfvParameters, summands: int, slots: int | None
) -> None:
    """One coefficient with more noise than 9.8 standard deviations is too much; the words are still the right ones up to q/2t,
    far beyond."""
    count = slots or parameters.degree
    honest = sum_of([key.encrypt(_slots(parameters, index, count)) for index in range(summands)], parameters, count)
    right = key.decrypt_sum(honest, count, summands)
    std = (summands * 127 / 12) ** 0.5
    for extra in (1, int(2 * std), -int(2 * std)):
        np.testing.assert_array_equal(key.decrypt_sum(malleated(honest, parameters, extra), count, summands), right)
    for extra in (int(20 * std), -int(20 * std), 1500, -1500):
        crafted = malleated(honest, parameters, extra)
        np.testing.assert_array_equal(key.decrypt(crafted, count, summands), right)
        with pytest.raises(HostileInput, match="more noise"):
            key.decrypt_sum(crafted, count, summands)


def test_the_noise_is_judged_to_the_unit(key: SecretKey, parameters: BfvParameters) -> None:
    """Of a coefficient whose noise is known: at the bound it passes, and three units beyond it does not."""
    honest = sum_of([key.encrypt(_slots(parameters, index, SOME)) for index in range(2)], parameters, SOME)
    _, noise = key._open(honest, SOME, 2)
    own = int(np.rint(noise[0] / parameters.plain_modulus))
    for side in (1, -1):
        key.decrypt_sum(malleated(honest, parameters, side * parameters.most_noise(2) - own), SOME, 2)
        with pytest.raises(HostileInput, match="more noise"):
            key.decrypt_sum(malleated(honest, parameters, side * (parameters.most_noise(2) + 4) - own), SOME, 2)


def test_the_primes_are_those_of_the_library(parameters: BfvParameters) -> None:
    for context in (_encryption(parameters), _phases(parameters)):
        primes = [prime.value() for prime in context.first_context_data().parms().coeff_modulus()]
        assert primes == [parameters.prime]


def test_what_travels_keeps_its_bytes(parameters: BfvParameters) -> None:
    """What this release wrote is read by every later one; of the smaller set with the key that it was made with."""
    golden = GOLDEN[str(parameters.degree)]
    total = sum_of(map(base64.b85decode, golden["fresh"]), parameters, 4)
    assert total == base64.b85decode(golden["sum"])
    if "key" in golden:
        key = SecretKey.parse(base64.b85decode(golden["key"]), parameters)
        assert key.decrypt_sum(total, 4, len(golden["fresh"])).tolist() == golden["words"]


def test_a_key_has_the_size_of_its_parameters(parameters: BfvParameters) -> None:
    for _ in range(20):
        check_frame(SecretKey.generate(parameters).to_bytes(), parameters.key, "key")


def test_a_seed_takes_the_place_of_half_the_ciphertext(key: SecretKey, parameters: BfvParameters) -> None:
    """The second polynomial is expanded from a seed of its own in each encryption, and the slots are the same."""
    first, second = key.encrypt(_slots(parameters, 1)), key.encrypt(_slots(parameters, 1))
    assert len(first) == len(second) == parameters.degree * parameters.coefficient_bytes + SEED_BYTES
    numbers = [numbers_from_bytes(data[:-SEED_BYTES], parameters.coefficient_bytes) for data in (first, second)]
    assert (numbers[0] == numbers[1]).sum() < 5
    assert first[-SEED_BYTES:] != second[-SEED_BYTES:]
    for data in (first, second):
        np.testing.assert_array_equal(key.decrypt(data, parameters.degree, 1), _slots(parameters, 1))


def test_the_rewrapped_honest_key_passes(honest: bytes, parameters: BfvParameters) -> None:
    """The forger of this file is right about the format: otherwise its forgeries would be refused for nothing."""
    assert _rewrap(honest[HEADER:]) == honest
    SecretKey.parse(honest, parameters)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: b"xx",
        lambda data: data[:100],
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data + b"\0",
        lambda data: data + b"\x0a\x00",
        lambda data: data + data,
        lambda data: bytes(len(data)),
        lambda data: data[:HEADER] + bytes(len(data) - HEADER),
        lambda data: b"\xff" * len(data),
        lambda data: data[1:] + data[:1],
        lambda data: data[:5] + data[5:].replace(b"\x28\xb5\x2f\xfd", b"\x27\xb5\x2f\xfd", 1),
    ],
)  # fmt: skip
def test_malformed_bytes_are_refused(honest: bytes, change: Callable[[bytes], bytes], parameters: BfvParameters) -> None:
    _refused(change(honest), parameters)


def test_one_form_does_not_pass_for_another(honest: bytes, key: SecretKey, parameters: BfvParameters) -> None:
    """A single contribution has not even the length of what a cohort decrypts, nor has a sum that of what is added."""
    fresh = key.encrypt(_slots(parameters, 1, SOME))
    few, many = (sum_of([fresh] * summands, parameters, SOME) for summands in (2, 65))
    for summands in (2, 3, 64, 65):
        for data in (fresh, honest, many if summands <= MAX_SEEDS else few):
            with pytest.raises(HostileInput):
                key.decrypt(data, SOME, summands)
    for data in (few, many, honest):
        with pytest.raises(HostileInput):
            Adder(parameters, SOME, 2).add(data)
    for data in (fresh, few, many):
        _refused(data, parameters)


def test_what_the_library_refuses_to_load_or_decrypt_is_hostile_input(
    key: SecretKey, parameters: BfvParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            def refuse(*_: object) -> None:
                raise ValueError(name)

            return refuse

    total = sum_of([key.encrypt(_slots(parameters, seed, SOME)) for seed in range(2)], parameters, SOME)
    again = SecretKey.parse(key.to_bytes(), parameters)
    again._decryptor = Refusing()
    for decrypt in (again.decrypt, again.decrypt_sum):
        with pytest.raises(HostileInput, match="decrypted"):
            decrypt(total, SOME, 2)
    monkeypatch.setattr(sealapi, "Ciphertext", Refusing)
    with pytest.raises(HostileInput, match="parsed"):
        key.decrypt(total, SOME, 2)


def test_the_ciphertext_that_decrypts_to_the_key_fails_the_tags(key: SecretKey, parameters: BfvParameters) -> None:
    """(0, round(q / t)) decrypts to the secret key itself, where a second polynomial travels at all, in sums of many: its form
    cannot tell, so the tags must."""
    t, degree, width = parameters.plain_modulus, parameters.degree, parameters.coefficient_bytes

    def crafted(factor: int) -> bytes:
        second = np.zeros(degree, dtype=np.uint64)
        second[0] = factor * (parameters.prime // t)
        return bytes(degree * width) + numbers_to_bytes(second, width)

    once, twice = (key.decrypt(crafted(factor), degree, MAX_SEEDS + 1) for factor in (1, 2))
    assert set(once.tolist()) == {0, 1, t - 1}, "the key's own coefficients"
    np.testing.assert_array_equal(twice, once * np.uint64(2) % np.uint64(t))  # no noise: the oracle answers exactly
    tag_key = TagKey(bytes(32))
    for slots in (once, twice, key.decrypt(bytes(2 * degree * width), degree, MAX_SEEDS + 1)):
        with pytest.raises(HostileInput, match="tags"):
            tag_key.check(CONTEXT, 0, tag_key.pads(CONTEXT, ("a",), 1, t)[0], slots, t)


def _blocks(*sizes: int) -> bytes:
    """RLE blocks of these sizes, the last one marked."""
    out = b""
    for place, size in enumerate(sizes):
        out += (size << 3 | 2 | (place == len(sizes) - 1)).to_bytes(3, "little") + b"\0"
    return out


def _pad(frame: bytes, size: FrameSize) -> bytes:
    """Fill up to an honest length with a raw block, as the frame's first block."""
    missing = size.largest - HEADER - len(frame) - 40
    return (missing << 3).to_bytes(3, "little") + bytes(missing) + frame


@cache
def _bombs(size: FrameSize) -> dict[str, bytes]:
    """Bodies of honest length that the library would read otherwise than they are walked, or inflate far beyond one."""
    magic, room = bytes.fromhex("28b52ffd"), size.largest - HEADER - 20
    stated = magic + b"\xa0" + struct.pack("<I", size.content)
    many = _blocks(*[131072] * (room // 4))
    huge_size = magic + b"\xa0" + struct.pack("<I", 1 << 30) + _pad(_blocks((1 << 21) - 1), size)
    window = magic + b"\x00\x88" + _pad(_blocks(131072, 131072), size)  # a window of 128 MiB, no size
    # A skippable frame holds a decoy that seems to span everything; the real frame lies in the decoy's raw block.
    tail = magic + b"\x00\x58" + many[: 4 * (room // 4 - 20)]
    decoy = stated + (len(tail) << 3 | 1).to_bytes(3, "little")
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", len(decoy)) + decoy + tail
    deflated = zlib.compress(bytes(room * 240), 1)[:room]  # quickly made, and of 240 times its size
    hidden = b"\x78\xda" + stated + ((room - 14) << 3 | 1).to_bytes(3, "little") + deflated[: room - 14]
    raw = min(size.content - 1, size.least - HEADER)
    plain = stated + (raw << 3).to_bytes(3, "little") + bytes(raw) + _blocks(size.content - raw)
    return {
        "no compression stated": _rewrap(plain, mode=0),
        "zlib stated": _rewrap(plain, mode=1),
        "many RLE blocks": _rewrap(stated + many),
        "no size stated": _rewrap(magic + b"\x00\x58" + many),
        "huge size": _rewrap(huge_size),
        "large window": _rewrap(window),
        "skippable frame": _rewrap(skippable),
        "zlib": _rewrap(deflated, mode=1),
        "zlib with a decoy": _rewrap(hidden, mode=1),
        "not compressed": _rewrap(stated + bytes(room - 9), mode=0),
        "two frames": _rewrap(stated + _blocks(1) + many[4:]),
        "wrong inner length": _rewrap(stated + _pad(_blocks(97), size), stated=1 << 40),
    }


@pytest.mark.parametrize("name", sorted(_bombs(BFV_8192.key)))
def test_bombs_are_refused_before_anything_inflates(
    name: str, parameters: BfvParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the library's parser was reached")

    size = parameters.key
    bomb = _bombs(size)[name]
    assert size.least <= len(bomb) <= size.largest, "refused for its length alone"
    monkeypatch.setattr(bfv.Scratch, "load", never)
    _refused(bomb, parameters)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_what_passes_the_frame_check_inflates_to_one_object_at_most() -> None:
    """Four RLE blocks are the most that the walk allows; the stated size holds the library to one key."""
    size = BFV_8192.key
    frame = bytes.fromhex("28b52ffda0") + struct.pack("<I", size.content) + _pad(_blocks(131072, 131072, 131072), size)
    data = _rewrap(frame)
    check_frame(data, size, "forgery")
    script = f"""
        import sys
        from pathlib import Path
        from veilsum_node.errors import HostileInput
        from veilsum_privacy.securesum.bfv import SecretKey
        from veilsum_privacy.securesum.parameters import BFV_8192

        def peak():  # ru_maxrss would begin at the parent's peak
            status = Path("/proc/self/status").read_text().split()
            return int(status[status.index("VmHWM:") + 1])

        SecretKey.generate(BFV_8192)
        data = sys.stdin.buffer.read()
        before = peak()
        for _ in range(20):
            try:
                SecretKey.parse(data, BFV_8192)
            except HostileInput:
                continue
            raise SystemExit("parsed")
        grown = peak() - before
        raise SystemExit(f"grew by {{grown}} KiB" if grown > {16 * 1024} else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("summands", [1, MAX_SEEDS + 1], ids=["seeds", "polynomial"])
def test_flipped_bits_are_refused_or_fail_the_tags(summands: int, key: SecretKey, parameters: BfvParameters) -> None:
    """In coefficients and in the seed or polynomial behind them; one summand is a contribution on its way."""
    tag_key, t = TagKey(bytes(32)), parameters.plain_modulus
    names, words = tuple(str(index) for index in range(summands)), _slots(parameters, 5, 400)
    pad = tag_key.pads(CONTEXT, names, 1, t)[0]
    parts = []
    for name in names:
        tags = tag_key.tags(CONTEXT, 0, tag_key.pads(CONTEXT, (name,), 1, t)[0], words, t)
        parts.append(key.encrypt(np.concatenate([words, tags])))
    data = sum_of(parts, parameters, 402)
    honest = key.decrypt(data, 402, summands)
    tag_key.check(CONTEXT, 0, pad, honest, t)
    random = np.random.default_rng(7)
    places = [0, len(data) - 1, *(int(place) for place in random.integers(0, len(data), 80))]
    reached = 0
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1 << int(random.integers(8))
        try:
            slots = key.decrypt(bytes(altered), 402, summands)
        except HostileInput:
            continue
        if np.array_equal(slots, honest):
            continue  # lost in the ciphertext's own noise: the sum is the same
        reached += 1
        with pytest.raises(HostileInput):
            tag_key.check(CONTEXT, 0, pad, slots, t)
    assert reached > 20, "some flips must get as far as the tags, or this shows nothing about them"


def test_a_key_survives_its_bytes_and_shows_nothing(key: SecretKey, honest: bytes, parameters: BfvParameters) -> None:
    again, slots = SecretKey.parse(honest, parameters), _slots(parameters, 3)
    assert again.to_bytes() == honest
    for one, other in ((key, again), (again, key)):
        np.testing.assert_array_equal(other.decrypt(one.encrypt(slots), parameters.degree, 1), slots)
    assert repr(key) == str(key) == f"SecretKey(degree={parameters.degree})"


def test_another_key_decrypts_to_nothing_useful(key: SecretKey, parameters: BfvParameters) -> None:
    found = SecretKey.generate(parameters).decrypt(key.encrypt(_slots(parameters, 1)), parameters.degree, 1)
    assert (found == _slots(parameters, 1)).sum() < 5


def test_foreign_keys_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    other = BFV_4096 if parameters is BFV_8192 else BFV_8192
    generator = sealapi.KeyGenerator(_encryption(parameters))
    public, relin, galois = sealapi.PublicKey(), sealapi.RelinKeys(), sealapi.GaloisKeys()
    generator.create_public_key(public)
    generator.create_relin_keys(relin)
    generator.create_galois_keys(galois)
    bits = (59, 60) if parameters is BFV_8192 else (53, 55)
    modulus = {8192: 65537, 4096: 40961}[parameters.degree]
    data = key.to_bytes()
    for foreign in (
        SecretKey.generate(other).to_bytes(),
        *(Scratch().dump(item) for item in (public, relin, galois)),
        *(
            Scratch().dump(sealapi.KeyGenerator(context).secret_key())
            for context in (
                _foreign(parameters, bits),
                _foreign(parameters, modulus=modulus),
                _ckks(parameters, parameters.prime_bits),
            )
        ),
        bytes(1000),
        data + bytes(1 << 18),
    ):
        with pytest.raises(HostileInput):
            SecretKey.parse(foreign, parameters)


def test_parameters_below_128_bits_of_security_are_refused(parameters: BfvParameters) -> None:
    weak = replace(parameters, degree=parameters.degree // 2, plain_modulus=65537)
    with pytest.raises(StateError, match="SEAL refuses the parameters"):
        _context(weak, weak.plain_modulus)


def test_a_system_without_files_in_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StateError, match="files in memory"):
        Scratch().load(b"", lambda path: None)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(StateError, match="files in memory"):
        Scratch().load(b"", lambda path: None)


def files_in_memory() -> list[str]:
    """Files of the scratch that this process has open."""
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # that of the folder itself, and what others close in between
            names.append(str(entry.readlink()))
    return [name for name in names if "memfd:veilsum" in name]


def test_the_scratch_file_keeps_nothing(key: SecretKey) -> None:
    """What passes through a file in memory is gone with it at once, also when the library refuses it; no file stays open."""
    scratch, seen = Scratch(), []
    scratch.dump(key._key)

    def refuse(path: str) -> None:
        assert Path(path).read_bytes() == b"secret"
        assert "memfd:veilsum" in str(Path(path).readlink())
        assert len(files_in_memory()) == 1
        seen.append(path)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        scratch.load(b"secret", refuse)
    assert len(seen) == 1
    assert not files_in_memory()
