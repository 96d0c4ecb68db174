"""BFV at its edge: exact arithmetic for honest bytes, one typed error for everything else, and nothing that inflates."""

from __future__ import annotations

import struct
import subprocess
import sys
import textwrap
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import tenseal as ts
from numpy.typing import NDArray

from veilsum_privacy.errors import HostileInput
from veilsum_privacy.securesum.bfv import Adder, SecretKey, check_frame
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, MAX_SUMMANDS, BfvParameters
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = bytes(range(32))
HEADER = 24  # TenSEAL's wrapper and SEAL's header


def _context(parameters: BfvParameters, scheme: object = ts.SCHEME_TYPE.BFV, bits: tuple[int, ...] = ()) -> ts.Context:
    primes = list(bits or parameters.prime_bits)
    symmetric = ts.ENCRYPTION_TYPE.SYMMETRIC
    if scheme is ts.SCHEME_TYPE.CKKS:
        return ts.context(scheme, parameters.degree, coeff_mod_bit_sizes=primes, encryption_type=symmetric)
    return ts.context(scheme, parameters.degree, parameters.plain_modulus, primes, encryption_type=symmetric)


def _slots(parameters: BfvParameters, seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, parameters.plain_modulus, parameters.degree).astype(np.uint64)


@pytest.fixture(scope="module", params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def parameters(request: pytest.FixtureRequest) -> BfvParameters:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def key(parameters: BfvParameters) -> SecretKey:
    return SecretKey.generate(parameters)


@pytest.fixture(scope="module")
def honest(key: SecretKey) -> bytes:
    return key.encrypt(_slots(key.parameters, 1))


def _rewrap(frame: bytes, slots: int, *, mode: int = 2, stated: int | None = None) -> bytes:
    """Put a compressed body behind correct outer headers."""
    seal = struct.pack("<HBBBBHQ", 0xA15E, 16, 4, 3, mode, 0, 16 + len(frame) if stated is None else stated)
    size = len(seal) + len(frame)
    varint = bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    return bytes([0x0A, 0x02, slots & 0x7F | 0x80, slots >> 7, 0x12]) + varint + seal + frame


def _refused(data: bytes, key: SecretKey) -> None:
    for parse in (Adder(key.parameters).parse, key.decrypt):
        with pytest.raises(HostileInput):
            parse(data)


def test_sums_are_exact_to_the_largest_cohort(key: SecretKey, parameters: BfvParameters) -> None:
    t, adder, total = np.uint64(parameters.plain_modulus), Adder(parameters), None
    expected = np.zeros(parameters.degree, dtype=np.uint64)
    kinds = [_slots(parameters, 2), np.full_like(expected, t - np.uint64(1)), np.arange(parameters.degree, dtype=np.uint64)]
    for index in range(MAX_SUMMANDS):
        total = adder.add(total, adder.parse(key.encrypt(kinds[index % 3])))
        expected = (expected + kinds[index % 3]) % t
    np.testing.assert_array_equal(key.decrypt(adder.serialise(total)), expected)


def test_sizes_are_those_of_the_parameters(key: SecretKey, parameters: BfvParameters) -> None:
    adder = Adder(parameters)
    for seed in range(20):
        data = key.encrypt(_slots(parameters, seed))
        both = adder.serialise(adder.add(adder.parse(data), adder.parse(data)))
        for item in (data, both):
            check_frame(item, parameters)
    zeros = key.encrypt(np.zeros(parameters.degree, dtype=np.uint64))
    check_frame(zeros, parameters)


def test_the_rewrapped_honest_body_passes(honest: bytes, key: SecretKey, parameters: BfvParameters) -> None:
    """The forger of this file is right about the format: otherwise its forgeries would be refused for nothing."""
    assert _rewrap(honest[HEADER:], parameters.degree) == honest
    np.testing.assert_array_equal(key.decrypt(honest), _slots(parameters, 1))


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
def test_malformed_bytes_are_refused(honest: bytes, key: SecretKey, change: Callable[[bytes], bytes]) -> None:
    _refused(change(honest), key)


def test_foreign_parameters_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    other = BFV_4096 if parameters is BFV_8192 else BFV_8192
    _refused(SecretKey.generate(other).encrypt(_slots(other, 1)), key)
    modulus = {8192: 65537, 4096: 40961}[parameters.degree]
    foreign = ts.context(ts.SCHEME_TYPE.BFV, parameters.degree, modulus, list(parameters.prime_bits),
                         encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC)  # fmt: skip
    _refused(ts.bfv_vector(foreign, [1] * parameters.degree).serialize(), key)
    bits = (59, 60) if parameters is BFV_8192 else (53, 55)
    _refused(ts.bfv_vector(_context(parameters, bits=bits), [1] * parameters.degree).serialize(), key)


def test_three_primes_and_ckks_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    bits = (60, 40, 40) if parameters is BFV_8192 else (36, 36, 37)
    _refused(ts.bfv_vector(_context(parameters, bits=bits), [1] * parameters.degree).serialize(), key)
    ckks = _context(parameters, ts.SCHEME_TYPE.CKKS, bits)
    _refused(ts.ckks_vector(ckks, [1.0] * (parameters.degree // 2), scale=2.0**20).serialize(), key)


def test_two_ciphertexts_and_fewer_slots_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    context = ts.context_from(key.to_bytes())
    _refused(ts.bfv_vector(context, [1] * (parameters.degree - 1)).serialize(), key)
    _refused(ts.bfv_vector(context, [1] * (2 * parameters.degree)).serialize(), key)


def _crafted(key: SecretKey, c1: int) -> bytes:
    """The ciphertext (0, c1) with a constant polynomial c1, in SEAL's format; zeros at its end are an RLE block."""
    parameters = key.parameters
    parms_id = Adder(parameters).parse(key.encrypt(_slots(parameters, 1))).ciphertext()[0].parms_id()
    coefficients = 2 * parameters.degree
    content = struct.pack("<4QBQQQdQ", *parms_id, 0, 2, parameters.degree, 1, 1.0, 1)
    content += struct.pack("<HBBBBHQQ", 0xA15E, 16, 4, 3, 0, 0, 24 + 8 * coefficients, coefficients)
    content += bytes(4 * coefficients) + struct.pack("<Q", c1) + bytes(4 * coefficients - 8)
    raw = 131_100 if parameters is BFV_8192 else 60_000
    first, second = content[: raw // 2], content[raw // 2 : raw]
    assert not any(content[raw:])
    frame = bytes.fromhex("28b52ffda0") + struct.pack("<I", len(content))
    for part in (first, second):
        frame += (len(part) << 3).to_bytes(3, "little") + part
    return _rewrap(frame + _blocks(len(content) - raw), parameters.degree)


def test_a_transparent_ciphertext_is_refused(key: SecretKey) -> None:
    with pytest.raises(HostileInput):
        Adder(key.parameters).parse(_crafted(key, 0))
    with pytest.raises(HostileInput):
        key.decrypt(_crafted(key, 0))


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


def _pad(frame: bytes, parameters: BfvParameters) -> bytes:
    """Fill up to an honest length with a raw block, as the frame's first block."""
    missing = parameters.ciphertext_bytes[1] - HEADER - len(frame) - 64
    return (missing << 3).to_bytes(3, "little") + bytes(missing) + frame


@cache
def _bombs(parameters: BfvParameters) -> dict[str, bytes]:
    """Bodies of honest length that the library would read otherwise than they are walked, or inflate far beyond one."""
    magic, slots, room = bytes.fromhex("28b52ffd"), parameters.degree, parameters.ciphertext_bytes[1] - HEADER - 40
    honest_size = struct.pack("<I", 16 * slots + 97)
    many = _blocks(*[131072] * (room // 4))
    huge_size = magic + b"\xa0" + struct.pack("<I", 1 << 30) + _pad(_blocks((1 << 21) - 1), parameters)
    window = magic + b"\x00\x88" + _pad(_blocks(131072, 131072), parameters)  # a window of 128 MiB, no size
    # A skippable frame holds a decoy that seems to span everything; the real frame lies in the decoy's raw block.
    tail = magic + b"\x00\x58" + many[: 4 * (room // 4 - 20)]
    decoy = magic + b"\xa0" + honest_size + (len(tail) << 3 | 1).to_bytes(3, "little")
    skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", len(decoy)) + decoy + tail
    deflated = zlib.compress(bytes(room * 1100), 9)[:room]
    hidden = b"\x78\xda" + magic + b"\xa0" + honest_size + ((room - 14) << 3 | 1).to_bytes(3, "little") + deflated[: room - 14]
    raw = min(16 * slots, 60_000 if parameters is BFV_4096 else 131_060)
    plain = magic + b"\xa0" + honest_size + (raw << 3).to_bytes(3, "little") + bytes(raw) + _blocks(16 * slots + 97 - raw)
    return {
        "no compression stated": _rewrap(plain, slots, mode=0),
        "zlib stated": _rewrap(plain, slots, mode=1),
        "many RLE blocks": _rewrap(magic + b"\xa0" + honest_size + many, slots),
        "no size stated": _rewrap(magic + b"\x00\x58" + many, slots),
        "huge size": _rewrap(huge_size, slots),
        "large window": _rewrap(window, slots),
        "skippable frame": _rewrap(skippable, slots),
        "zlib": _rewrap(deflated, slots, mode=1),
        "zlib with a decoy": _rewrap(hidden, slots, mode=1),
        "not compressed": _rewrap(magic + b"\xa0" + honest_size + bytes(room), slots, mode=0),
        "two frames": _rewrap(magic + b"\xa0" + honest_size + _blocks(1) + many[4:], slots),
        "wrong inner length": _rewrap(magic + b"\xa0" + honest_size + _pad(_blocks(97), parameters), slots, stated=1 << 40),
    }


BOMBS = sorted(_bombs(BFV_8192))


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_anything_inflates(name: str, key: SecretKey, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("the library's parser was reached")

    bomb = _bombs(key.parameters)[name]
    least, largest = key.parameters.ciphertext_bytes
    assert least <= len(bomb) <= largest, "refused for its length alone"
    adder = Adder(key.parameters)
    monkeypatch.setattr(ts, "bfv_vector_from", never)
    for parse in (adder.parse, key.decrypt):
        with pytest.raises(HostileInput):
            parse(bomb)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory from /proc")
def test_what_passes_the_frame_check_inflates_to_one_ciphertext_at_most() -> None:
    """Four RLE blocks are the most that the walk allows; the stated size holds the library to one ciphertext."""
    frame = bytes.fromhex("28b52ffda0") + struct.pack("<I", 16 * 8192 + 97) + _pad(_blocks(131072, 131072, 131072), BFV_8192)
    data = _rewrap(frame, 8192)
    check_frame(data, BFV_8192)
    script = f"""
        import sys
        from pathlib import Path
        from veilsum_privacy.errors import HostileInput
        from veilsum_privacy.securesum.bfv import Adder
        from veilsum_privacy.securesum.parameters import BFV_8192

        def peak():  # ru_maxrss would begin at the parent's peak
            status = Path("/proc/self/status").read_text().split()
            return int(status[status.index("VmHWM:") + 1])

        adder = Adder(BFV_8192)
        data = sys.stdin.buffer.read()
        before = peak()
        for _ in range(20):
            try:
                adder.parse(data)
            except HostileInput:
                continue
            raise SystemExit("parsed")
        grown = peak() - before
        raise SystemExit(f"grew by {{grown}} KiB" if grown > {16 * 1024} else 0)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], input=data, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()


def test_flipped_bits_are_refused_or_fail_the_tags(key: SecretKey, parameters: BfvParameters) -> None:
    tag_key, words = TagKey(bytes(32)), _slots(parameters, 5)[:-2]
    tags = tag_key.tags(CONTEXT, 0, "a", words, parameters.plain_modulus)
    data, adder = key.encrypt(np.concatenate([words, tags])), Adder(parameters)
    tag_key.check(CONTEXT, 0, ("a",), key.decrypt(data), parameters.plain_modulus)
    random = np.random.default_rng(7)
    places = [*range(48), *(int(place) for place in random.integers(48, len(data), 60)), len(data) - 1]
    reached = 0
    for place in places:
        altered = bytearray(data)
        altered[place] ^= 1 << int(random.integers(8))
        try:
            slots = key.decrypt(adder.serialise(adder.parse(bytes(altered))))
        except HostileInput:
            continue
        if np.array_equal(slots, key.decrypt(data)):
            continue  # lost in the ciphertext's own noise, or a byte that the format ignores: the sum is the same
        reached += 1
        with pytest.raises(HostileInput):
            tag_key.check(CONTEXT, 0, ("a",), slots, parameters.plain_modulus)
    assert reached or parameters is BFV_4096, "some flips must get as far as the tags, or this shows nothing about them"


def test_a_key_survives_its_bytes_and_shows_nothing(key: SecretKey, honest: bytes, parameters: BfvParameters) -> None:
    again = SecretKey.parse(key.to_bytes(), parameters)
    np.testing.assert_array_equal(again.decrypt(honest), _slots(parameters, 1))
    np.testing.assert_array_equal(key.decrypt(again.encrypt(_slots(parameters, 3))), _slots(parameters, 3))
    assert repr(key) == str(key) == f"SecretKey(degree={parameters.degree})"


def test_another_key_decrypts_to_nothing_useful(honest: bytes, parameters: BfvParameters) -> None:
    found = SecretKey.generate(parameters).decrypt(honest)
    assert (found == _slots(parameters, 1)).sum() < 5


def _key_bytes(context: ts.Context, **save: bool) -> bytes:
    kinds = {"save_public_key": False, "save_secret_key": True, "save_galois_keys": False, "save_relin_keys": False}
    return bytes(context.serialize(**(kinds | save)))


def test_foreign_keys_are_refused(key: SecretKey, parameters: BfvParameters) -> None:
    other = BFV_4096 if parameters is BFV_8192 else BFV_8192
    asymmetric = ts.context(ts.SCHEME_TYPE.BFV, parameters.degree, parameters.plain_modulus, list(parameters.prime_bits))
    relin = ts.context(ts.SCHEME_TYPE.BFV, parameters.degree, parameters.plain_modulus, list(parameters.prime_bits))
    relin.generate_relin_keys()
    galois = ts.context(ts.SCHEME_TYPE.BFV, parameters.degree, parameters.plain_modulus, list(parameters.prime_bits))
    galois.generate_galois_keys()
    bits = (59, 60) if parameters is BFV_8192 else (53, 55)
    whole = key.to_bytes()
    for data in (
        SecretKey.generate(other).to_bytes(),
        _key_bytes(ts.context_from(whole), save_secret_key=False),
        _key_bytes(_context(parameters, bits=bits)),
        _key_bytes(_context(parameters, ts.SCHEME_TYPE.CKKS)),
        _key_bytes(asymmetric),
        _key_bytes(asymmetric, save_public_key=True),
        _key_bytes(asymmetric, save_public_key=True, save_secret_key=False),
        _key_bytes(relin, save_relin_keys=True),
        _key_bytes(galois, save_galois_keys=True),
        b"",
        b"xx",
        bytes(1000),
        whole[:-1],
        whole[: len(whole) // 2],
        b"\xff" * len(whole),
        whole + bytes(1 << 18),
    ):
        with pytest.raises(HostileInput):
            SecretKey.parse(data, parameters)
