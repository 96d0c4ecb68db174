"""BFV at its edge: exact arithmetic for honest bytes, one typed error for everything else, and nothing that inflates."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tenseal import sealapi

from support.securesum import malleated, whole
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.securesum import bfv
from veilsum_privacy.securesum.bfv import MAX_SEEDS, Adder, SecretKey, _context, _Scratch
from veilsum_privacy.securesum.frames import FrameSize, check_frame
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, MAX_SUMMANDS, BfvParameters
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = bytes(range(32))
HEADER = 16  # SEAL's own
FORMS = ("fresh", "sum", "key")


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


def _encryptions(context: Any, value: Any | None = None) -> tuple[bytes, bytes]:
    """A ciphertext of another context in its short and its whole form."""
    if value is None:
        value = sealapi.Plaintext()
        sealapi.BatchEncoder(context).encode([1, 2, 3], value)
    encryptor = sealapi.Encryptor(context, sealapi.KeyGenerator(context).secret_key())
    total = sealapi.Ciphertext()
    encryptor.encrypt_symmetric(value, total)
    return _Scratch().dump(encryptor.encrypt_symmetric(value)), _Scratch().dump(total)


def _slots(parameters: BfvParameters, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, parameters.plain_modulus, parameters.degree).astype(np.uint64)


@pytest.fixture(scope="module", params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def parameters(request: pytest.FixtureRequest) -> BfvParameters:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def key(parameters: BfvParameters) -> SecretKey:
    return SecretKey.generate(parameters)


@pytest.fixture(scope="module")
def honest(key: SecretKey, parameters: BfvParameters) -> dict[str, bytes]:
    """One object of each form."""
    fresh = key.encrypt(_slots(key.parameters, 1))
    return {"fresh": fresh, "sum": whole(fresh, parameters), "key": key.to_bytes()}


def _size(parameters: BfvParameters, form: str) -> FrameSize:
    return {"fresh": parameters.fresh, "sum": parameters.sum, "key": parameters.key}[form]


def _rewrap(frame: bytes, *, mode: int = 2, stated: int | None = None) -> bytes:
    """Put a compressed body behind a correct header."""
    return struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, mode, 0, HEADER + len(frame) if stated is None else stated) + frame


def _refused(data: bytes, key: SecretKey) -> None:
    for parse in (Adder(key.parameters).parse, key.decrypt, lambda data: SecretKey.parse(data, key.parameters)):
        with pytest.raises(HostileInput):
            parse(data)


def test_sums_are_exact_to_the_largest_cohort(key: SecretKey, parameters: BfvParameters) -> None:
    """In both forms that sums travel in: whole, and with the seeds of few summands in place of the second polynomial."""
    t, adder, total = np.uint64(parameters.plain_modulus), Adder(parameters), None
    seeds: list[bytes] = []
    expected = np.zeros(parameters.degree, dtype=np.uint64)
    kinds = [_slots(parameters, 2), np.full_like(expected, t - np.uint64(1)), np.arange(parameters.degree, dtype=np.uint64)]
    for index in range(MAX_SUMMANDS):
        fresh = key.encrypt(kinds[index % 3])
        total = adder.add(total, adder.parse(fresh))
        seeds.append(adder.seed(fresh))
        expected = (expected + kinds[index % 3]) % t
        if (summands := index + 1) in range(2, 65) or summands in (305, MAX_SUMMANDS):  # 305: the least room of all
            whole, short = adder.serialise(total), adder.serialise(total, seeds)
            assert len(short) == (8 * parameters.degree + 64 * summands if summands <= MAX_SEEDS else len(whole))
            for form in (whole, short):
                np.testing.assert_array_equal(key.decrypt_sum(form, summands), expected)


def test_a_sum_with_other_seeds_is_not_decrypted(key: SecretKey, parameters: BfvParameters) -> None:
    """Missing or foreign seeds are refused by their number or by the noise that they leave, as are numbers above the prime."""
    adder, total, seeds = Adder(parameters), None, []
    for index in range(3):
        fresh = key.encrypt(_slots(parameters, index))
        total = adder.add(total, adder.parse(fresh))
        seeds.append(adder.seed(fresh))
    short = adder.serialise(total, seeds)
    for wrong in (short[:-64], short + seeds[0], short[:-64] + bytes(64), short[:-128] + seeds[0] + seeds[0]):
        with pytest.raises(HostileInput, match=r"seeds of another number|more noise"):
            key.decrypt_sum(wrong, 3)
    for wrong in (short[:-1], short[: 8 * parameters.degree], b"\xff" * 8 + short[8:]):
        with pytest.raises(HostileInput):
            key.decrypt_sum(wrong, 3)


@pytest.mark.parametrize("summands", [2, 7, 64])
def test_a_sum_with_more_noise_than_its_contributions_leave_is_not_decrypted(
    key: SecretKey, parameters: BfvParameters, summands: int
) -> None:
    """One coefficient with more noise than 9.8 standard deviations, and twice that for the bits' granularity, is too much; the
    words are still the right ones up to q/2t, far beyond."""
    adder, total = Adder(parameters), None
    for index in range(summands):
        total = adder.add(total, adder.parse(key.encrypt(_slots(parameters, index))))
    honest = adder.serialise(total)
    right = key.decrypt_sum(honest, summands)
    std = (summands * 127 / 12) ** 0.5
    for extra in (1, int(2 * std), -int(2 * std)):
        np.testing.assert_array_equal(key.decrypt_sum(malleated(honest, parameters, extra), summands), right)
    for extra in (int(25 * std), -int(25 * std), 1500, -1500):
        crafted = malleated(honest, parameters, extra)
        np.testing.assert_array_equal(key.decrypt(crafted), right)
        with pytest.raises(HostileInput, match="more noise"):
            key.decrypt_sum(crafted, summands)


def test_the_least_budget_is_that_of_the_noise(parameters: BfvParameters) -> None:
    """Against a count in whole numbers: the bits of q over those of twice t times 9.8 standard deviations."""
    for summands in range(2, MAX_SUMMANDS + 1):
        largest = (96 * summands * 127 / 12) ** 0.5 * parameters.plain_modulus
        room = 2.0 ** parameters.prime_bits[0] / (2.0 * largest)
        assert 2.0 ** parameters.least_budget(summands) <= room * 1.001
        assert 1 <= parameters.least_budget(summands) < 6


def test_sizes_are_those_of_the_parameters(key: SecretKey, parameters: BfvParameters) -> None:
    adder = Adder(parameters)
    for seed in range(20):
        data = key.encrypt(_slots(parameters, seed))
        check_frame(data, parameters.fresh, "fresh ciphertext")
        check_frame(adder.serialise(adder.add(adder.parse(data), adder.parse(data))), parameters.sum, "sum")
        check_frame(SecretKey.generate(parameters).to_bytes(), parameters.key, "key")
    check_frame(key.encrypt(np.zeros(parameters.degree, dtype=np.uint64)), parameters.fresh, "fresh ciphertext")


def test_a_seed_takes_the_place_of_half_the_ciphertext(key: SecretKey, parameters: BfvParameters) -> None:
    """The second polynomial is expanded from a seed of its own in each encryption, and the slots are the same."""
    first, second = key.encrypt(_slots(parameters, 1)), key.encrypt(_slots(parameters, 1))
    assert max(len(first), len(second)) < 0.51 * parameters.sum.largest
    tails = {data[-64:] for data in (first, second)}
    assert len(tails) == 2
    for data in (first, second):
        np.testing.assert_array_equal(key.decrypt(whole(data, parameters)), _slots(parameters, 1))


def test_the_rewrapped_honest_body_passes(honest: dict[str, bytes], key: SecretKey, parameters: BfvParameters) -> None:
    """The forger of this file is right about the format: otherwise its forgeries would be refused for nothing."""
    for form in FORMS:
        assert _rewrap(honest[form][HEADER:]) == honest[form]
    np.testing.assert_array_equal(key.decrypt(honest["sum"]), _slots(parameters, 1))


@pytest.mark.parametrize("form", FORMS)
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
def test_malformed_bytes_are_refused(
    honest: dict[str, bytes], key: SecretKey, change: Callable[[bytes], bytes], form: str
) -> None:
    _refused(change(honest[form]), key)


def test_one_form_does_not_pass_for_another(honest: dict[str, bytes], key: SecretKey, parameters: BfvParameters) -> None:
    """A single contribution is not even of the form that participants decrypt, nor a sum of the form that is added."""
    parsers = {
        "fresh": Adder(parameters).parse,
        "sum": key.decrypt,
        "key": lambda data: SecretKey.parse(data, parameters),
    }
    for form, data in honest.items():
        for wanted, parse in parsers.items():
            if form != wanted:
                with pytest.raises(HostileInput):
                    parse(data)
            else:
                parse(data)


def test_foreign_parameters_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    other = BFV_4096 if parameters is BFV_8192 else BFV_8192
    fresh = SecretKey.generate(other).encrypt(_slots(other, 1))
    bits = (59, 60) if parameters is BFV_8192 else (53, 55)
    modulus = {8192: 65537, 4096: 40961}[parameters.degree]
    for data in (
        fresh,
        whole(fresh, other),
        *_encryptions(_foreign(parameters, modulus=modulus)),
        *_encryptions(_foreign(parameters, bits)),
    ):
        _refused(data, key)


def test_three_primes_and_ckks_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    bits = (60, 40, 40) if parameters is BFV_8192 else (36, 36, 37)
    for data in _encryptions(_foreign(parameters, bits)):
        _refused(data, key)
    for chain in (bits, parameters.prime_bits):
        context = _ckks(parameters, chain)
        value = sealapi.Plaintext()
        sealapi.CKKSEncoder(context).encode([1.0], 2.0**20, value)
        for data in _encryptions(context, value):
            _refused(data, key)


def test_a_product_of_three_polynomials_is_refused(key: SecretKey, parameters: BfvParameters) -> None:
    context = _context(parameters)
    total = Adder(parameters).parse(key.encrypt(_slots(parameters, 1)))
    sealapi.Evaluator(context).square_inplace(total)
    assert total.size() == 3
    _refused(_Scratch().dump(total), key)


def test_the_shape_is_checked_where_the_layout_would_let_it_pass(
    key: SecretKey, parameters: BfvParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEAL loads all of these under the study's parameters."""
    evaluator, adder = sealapi.Evaluator(_context(parameters)), Adder(parameters)
    fresh = key.encrypt(_slots(parameters, 1))
    three, transformed = adder.parse(fresh), adder.parse(fresh)
    evaluator.square_inplace(three)
    evaluator.transform_to_ntt_inplace(transformed)
    monkeypatch.setattr(bfv, "_plain", lambda data, *_: data)
    np.testing.assert_array_equal(key.decrypt(whole(fresh, parameters)), _slots(parameters, 1))
    for wrong in (three, transformed):
        with pytest.raises(HostileInput, match="shape"):
            key.decrypt(_Scratch().dump(wrong))


def test_a_ciphertext_at_another_level_is_refused(
    key: SecretKey, parameters: BfvParameters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEAL loads none of the level of keys, so this one was never loaded."""
    context, level = _context(parameters), sealapi.Ciphertext()
    encryptor = sealapi.Encryptor(context, sealapi.KeyGenerator(context).secret_key())
    encryptor.encrypt_zero_symmetric(context.key_parms_id(), level)
    if level.is_ntt_form():
        sealapi.Evaluator(context).transform_from_ntt_inplace(level)
    assert level.size() == 2
    total = whole(key.encrypt(_slots(parameters, 1)), parameters)
    monkeypatch.setattr(_Scratch, "load", lambda *_: None)
    monkeypatch.setattr(sealapi, "Ciphertext", lambda: level)
    with pytest.raises(HostileInput, match="shape"):
        key.decrypt(total)


def test_what_the_library_refuses_to_add_or_decrypt_is_hostile_input(key: SecretKey, parameters: BfvParameters) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            def refuse(*_: object) -> None:
                raise ValueError(name)

            return refuse

    adder, fresh = Adder(parameters), key.encrypt(_slots(parameters, 1))
    transformed = adder.parse(fresh)
    sealapi.Evaluator(_context(parameters)).transform_to_ntt_inplace(transformed)
    with pytest.raises(HostileInput, match="added"):
        adder.add(adder.parse(fresh), transformed)
    total, again = whole(fresh, parameters), SecretKey.parse(key.to_bytes(), parameters)
    again._decryptor = Refusing()
    for decrypt in (again.decrypt, lambda data: again.decrypt_sum(data, 2)):
        with pytest.raises(HostileInput, match="decrypted"):
            decrypt(total)


def _crafted(key: SecretKey, c1: int) -> bytes:
    """The ciphertext (0, c1) with a constant polynomial c1, in SEAL's format; zeros at its end are an RLE block."""
    parameters = key.parameters
    parms_id = Adder(parameters).parse(key.encrypt(_slots(parameters, 1))).parms_id()
    coefficients = 2 * parameters.degree
    content = struct.pack("<4QBQQQdQ", *parms_id, 0, 2, parameters.degree, 1, 1.0, 1)
    content += struct.pack("<HBBBBHQQ", 0xA15E, 16, 4, 3, 0, 0, 24 + 8 * coefficients, coefficients)
    content += bytes(4 * coefficients) + struct.pack("<Q", c1) + bytes(4 * coefficients - 8)
    assert len(content) == parameters.sum.content
    raw = parameters.sum.least - HEADER + 20
    first, second = content[: raw // 2], content[raw // 2 : raw]
    assert not any(content[raw:])
    frame = bytes.fromhex("28b52ffda0") + struct.pack("<I", len(content))
    for part in (first, second):
        frame += (len(part) << 3).to_bytes(3, "little") + part
    return _rewrap(frame + _blocks(len(content) - raw))


def test_a_transparent_ciphertext_is_refused(key: SecretKey) -> None:
    data = _crafted(key, 0)
    check_frame(data, key.parameters.sum, "sum")
    with pytest.raises(HostileInput, match=r"shape|parsed"):
        key.decrypt(data)


def test_the_ciphertext_that_decrypts_to_the_key_fails_the_tags(key: SecretKey, parameters: BfvParameters) -> None:
    """(0, round(q / t)) decrypts to the secret key itself: parsing cannot tell, so the tags must."""
    t = parameters.plain_modulus
    once, twice = (key.decrypt(_crafted(key, factor * 4096)) for factor in (1, 2))
    np.testing.assert_array_equal(twice, once * np.uint64(2) % np.uint64(t))  # no noise: the oracle answers exactly
    assert once.any()
    for slots in (once, twice):
        with pytest.raises(HostileInput, match="tags"):
            TagKey(bytes(32)).check(CONTEXT, 0, ("a",), slots, t)


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
    deflated = zlib.compress(bytes(room * 1100), 9)[:room]
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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", sorted(_bombs(BFV_8192.fresh)))
def test_bombs_are_refused_before_anything_inflates(
    name: str, form: str, key: SecretKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the library's parser was reached")

    size = _size(key.parameters, form)
    bomb = _bombs(size)[name]
    assert size.least <= len(bomb) <= size.largest, "refused for its length alone"
    monkeypatch.setattr(bfv._Scratch, "load", never)
    _refused(bomb, key)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
@pytest.mark.parametrize("form", ["fresh", "sum"])
def test_what_passes_the_frame_check_inflates_to_one_object_at_most(form: str) -> None:
    """Four RLE blocks are the most that the walk allows; the stated size holds the library to one ciphertext."""
    size = _size(BFV_8192, form)
    frame = bytes.fromhex("28b52ffda0") + struct.pack("<I", size.content) + _pad(_blocks(131072, 131072, 131072), size)
    data = _rewrap(frame)
    check_frame(data, size, "forgery")
    script = f"""
        import sys
        from pathlib import Path
        from veilsum_node.errors import HostileInput
        from veilsum_privacy.securesum.bfv import Adder, SecretKey
        from veilsum_privacy.securesum.parameters import BFV_8192

        def peak():  # ru_maxrss would begin at the parent's peak
            status = Path("/proc/self/status").read_text().split()
            return int(status[status.index("VmHWM:") + 1])

        parse = Adder(BFV_8192).parse if {form!r} == "fresh" else SecretKey.generate(BFV_8192).decrypt
        data = sys.stdin.buffer.read()
        before = peak()
        for _ in range(20):
            try:
                parse(data)
            except HostileInput:
                continue
            raise SystemExit("parsed")
        grown = peak() - before
        raise SystemExit(f"grew by {{grown}} KiB" if grown > {16 * 1024} else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("form", ["fresh", "sum"])
def test_flipped_bits_are_refused_or_fail_the_tags(form: str, key: SecretKey, parameters: BfvParameters) -> None:
    """In a contribution on its way (seed and first polynomial) and in a sum."""
    tag_key, words = TagKey(bytes(32)), _slots(parameters, 5)[:-2]
    tags = tag_key.tags(CONTEXT, 0, "a", words, parameters.plain_modulus)
    fresh = key.encrypt(np.concatenate([words, tags]))
    data = fresh if form == "fresh" else whole(fresh, parameters)

    def opened(data: bytes) -> NDArray[np.uint64]:
        return key.decrypt(whole(data, parameters) if form == "fresh" else data)

    tag_key.check(CONTEXT, 0, ("a",), opened(data), parameters.plain_modulus)
    random = np.random.default_rng(7)
    last = range(len(data) - 60, len(data), 4)  # where the seed of a fresh ciphertext lies
    places = [*range(48), *(int(place) for place in random.integers(48, len(data), 60)), *last]
    reached = 0
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1 << int(random.integers(8))
        try:
            slots = opened(bytes(altered))
        except HostileInput:
            continue
        if np.array_equal(slots, opened(data)):
            continue  # lost in the ciphertext's own noise, or a byte that the format ignores: the sum is the same
        reached += 1
        with pytest.raises(HostileInput):
            tag_key.check(CONTEXT, 0, ("a",), slots, parameters.plain_modulus)
    assert reached or parameters is BFV_4096, "some flips must get as far as the tags, or this shows nothing about them"


def test_a_key_survives_its_bytes_and_shows_nothing(
    key: SecretKey, honest: dict[str, bytes], parameters: BfvParameters
) -> None:
    again = SecretKey.parse(key.to_bytes(), parameters)
    np.testing.assert_array_equal(again.decrypt(honest["sum"]), _slots(parameters, 1))
    np.testing.assert_array_equal(key.decrypt(whole(again.encrypt(_slots(parameters, 3)), parameters)), _slots(parameters, 3))
    assert repr(key) == str(key) == f"SecretKey(degree={parameters.degree})"


def test_another_key_decrypts_to_nothing_useful(honest: dict[str, bytes], parameters: BfvParameters) -> None:
    found = SecretKey.generate(parameters).decrypt(honest["sum"])
    assert (found == _slots(parameters, 1)).sum() < 5


def test_foreign_keys_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    other = BFV_4096 if parameters is BFV_8192 else BFV_8192
    generator = sealapi.KeyGenerator(_context(parameters))
    public, relin, galois = sealapi.PublicKey(), sealapi.RelinKeys(), sealapi.GaloisKeys()
    generator.create_public_key(public)
    generator.create_relin_keys(relin)
    generator.create_galois_keys(galois)
    bits = (59, 60) if parameters is BFV_8192 else (53, 55)
    modulus = {8192: 65537, 4096: 40961}[parameters.degree]
    data = key.to_bytes()
    for foreign in (
        SecretKey.generate(other).to_bytes(),
        *(_Scratch().dump(item) for item in (public, relin, galois)),
        *(
            _Scratch().dump(sealapi.KeyGenerator(context).secret_key())
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
        _context(weak)


def test_a_system_without_files_in_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(StateError, match="files in memory"):
        _Scratch().load(b"", lambda path: None)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(StateError, match="files in memory"):
        _Scratch().load(b"", lambda path: None)


def test_the_scratch_file_keeps_nothing(key: SecretKey) -> None:
    """What passes through a file in memory is gone with it at once, also when the library refuses it; no file stays open."""
    scratch, seen = _Scratch(), []
    before = len(os.listdir("/proc/self/fd"))
    scratch.dump(key._key)

    def refuse(path: str) -> None:
        assert Path(path).read_bytes() == b"secret"
        assert "memfd:veilsum" in str(Path(path).readlink())
        seen.append(path)
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        scratch.load(b"secret", refuse)
    assert len(seen) == 1
    assert len(os.listdir("/proc/self/fd")) == before
