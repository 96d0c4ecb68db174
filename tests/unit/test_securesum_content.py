"""Forgeries behind an honest frame: length, header, blocks and stated size are right, and the fields within are not.

The frame check cannot see them. Each must end in the one typed error, or where it makes a well-formed ciphertext after all
(another seed, another expansion of it) in tags that do not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray

from support.securesum import whole
from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.bfv import Adder, SecretKey, _context
from veilsum_privacy.securesum.frames import FrameSize, check_frame
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters
from veilsum_privacy.securesum.tags import TagKey

CONTEXT = bytes(range(32))
HEADER = 16  # SEAL's, before the frame and again before each inner object
MEMORY = 16 * 1024  # KiB by which one forgery may raise the peak
LARGE = 1 << 22  # words: 32 MiB

_MAGIC, _BLOCK = bytes.fromhex("28b52ffd"), 1 << 17

# Where the fields of a ciphertext lie: parms_id, NTT flag, size, degree, coefficient primes, scale, correction factor, then an
# array with a header of its own, its length and its words; in the short form another object with the seed follows.
PARMS_ID, NTT, SIZE, DEGREE, PRIMES, SCALE, CORRECTION, ARRAY, COUNT, WORDS = 0, 32, 33, 41, 49, 57, 65, 73, 89, 97
KEY_COUNT, KEY_SCALE, KEY_ARRAY = 32, 40, 48  # of a key, which SEAL stores as a plaintext
SEED, SEED_TYPE = 64, 65  # from the end of the short form: the seed's 64 bytes and its generator's type before them


@pytest.fixture(scope="module", params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def parameters(request: pytest.FixtureRequest) -> BfvParameters:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def key(parameters: BfvParameters) -> SecretKey:
    return SecretKey.generate(parameters)


@pytest.fixture(scope="module")
def tag_key() -> TagKey:
    return TagKey(bytes(32))


@pytest.fixture(scope="module")
def tagged(key: SecretKey, tag_key: TagKey, parameters: BfvParameters) -> dict[str, bytes]:
    """The contents of an honest object of each form; the ciphertext's slots carry their tags."""
    t = parameters.plain_modulus
    words = np.random.default_rng(1).integers(0, t, parameters.degree - 2).astype(np.uint64)
    fresh = key.encrypt(np.concatenate([words, tag_key.tags(CONTEXT, 0, "a", words, t)]))
    objects = {"fresh": fresh, "sum": whole(fresh, parameters), "key": key.to_bytes()}
    return {
        form: pyarrow.decompress(data[HEADER:], _size(parameters, form).content, codec="zstd", asbytes=True)
        for form, data in objects.items()
    }


def _size(parameters: BfvParameters, form: str) -> FrameSize:
    return {"fresh": parameters.fresh, "sum": parameters.sum, "key": parameters.key}[form]


def _header(length: int, mode: int) -> bytes:
    return struct.pack("<HBBBBHQ", 0xA15E, HEADER, 4, 3, mode, 0, HEADER + length)


def _framed(content: bytes, size: FrameSize) -> bytes:
    """An honest frame around a content; it passes the frame check, so whatever refuses it has read the content."""
    if size.content < size.largest:  # of these parameters nothing can be compressed, so the blocks are raw
        parts = [content[start : start + _BLOCK] for start in range(0, len(content), _BLOCK)]
        frame = _MAGIC + b"\xa0" + struct.pack("<I", len(content))
        frame += b"".join((len(p) << 3 | (p is parts[-1])).to_bytes(3, "little") + p for p in parts)
    else:
        frame = pyarrow.compress(content, codec="zstd", asbytes=True)
    data = _header(len(frame), 2) + frame
    check_frame(data, size, "forgery")
    return bytes(data)


def _opened(data: bytes, form: str, key: SecretKey) -> NDArray[np.uint64]:
    return key.decrypt(whole(data, key.parameters) if form == "fresh" else data)


def _put(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


def _word(place: int, value: int) -> Callable[[bytes], bytes]:
    return lambda content: _put(content, place, struct.pack("<Q", value))


def _nested(place: int, words: int, polynomials: int | None = None) -> Callable[[bytes], bytes]:
    """Replace the array by a compressed one of so many words, which lies in far fewer bytes; keep the content's length.

    SEAL reads such an array, whatever holds it. Random bytes behind it make up for what the outer compression saves.
    """
    repeated = (_BLOCK << 3 | 2).to_bytes(3, "little") + b"\1"

    def forge(content: bytes) -> bytes:
        frame = _MAGIC + b"\x00\x58" + (8 << 3).to_bytes(3, "little") + struct.pack("<Q", words)
        frame += repeated * (8 * words // _BLOCK + 1) + b"\1\0\0"
        array = _header(len(frame), 2) + frame
        forged = _put(content, place, array + np.random.default_rng(0).bytes(8 * len(array)))
        return forged if polynomials is None else _put(forged, SIZE, struct.pack("<Q", polynomials))

    return forge


def _count(place: int, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    return lambda content: _put(content, place, struct.pack("<Q", change(struct.unpack_from("<Q", content, place)[0])))


def test_the_honest_content_passes_and_lies_as_supposed(
    tagged: dict[str, bytes], key: SecretKey, tag_key: TagKey, parameters: BfvParameters
) -> None:
    """Control of this file: the forger's frame is accepted, and every offset that it alters is the field that it says."""
    context, t = _context(parameters), parameters.plain_modulus
    for form in ("fresh", "sum"):
        content = tagged[form]
        tag_key.check(CONTEXT, 0, ("a",), _opened(_framed(content, _size(parameters, form)), form, key), t)
        polynomials = 2 if form == "sum" else 1
        fields = struct.unpack_from("<4QBQQQdQ", content)
        assert list(fields[:4]) == list(context.first_parms_id())
        assert fields[4:] == (0, 2, parameters.degree, 1, 1.0, 1)
        words = polynomials * parameters.degree
        assert content[ARRAY:WORDS] == _header(8 + 8 * words, 0) + struct.pack("<Q", words)
        assert len(content) - WORDS - 8 * words == (0 if form == "sum" else HEADER + SEED_TYPE)
    content = tagged["key"]
    assert SecretKey.parse(_framed(content, parameters.key), parameters).to_bytes() == key.to_bytes()
    words = 2 * parameters.degree
    assert struct.unpack_from("<4Q", content) == tuple(context.key_parms_id())
    assert struct.unpack_from("<Qd", content, KEY_COUNT) == (words, 1.0)
    assert content[KEY_ARRAY : KEY_ARRAY + 24] == _header(8 + 8 * words, 0) + struct.pack("<Q", words)


_NEXT_DEGREE = 16384

CIPHERTEXTS: dict[str, Callable[[bytes], bytes]] = {
    "no parameters": lambda content: _put(content, PARMS_ID, bytes(32)),
    "other parameters": lambda content: _put(content, PARMS_ID, bytes(31) + b"\1"),
    "in NTT form": lambda content: _put(content, NTT, b"\1"),
    "NTT flag of two": lambda content: _put(content, NTT, b"\2"),
    "no polynomials": _word(SIZE, 0),
    "one polynomial": _word(SIZE, 1),
    "three polynomials": _word(SIZE, 3),
    "endless polynomials": _word(SIZE, 1 << 60),
    "larger degree": _word(DEGREE, _NEXT_DEGREE),
    "no degree": _word(DEGREE, 0),
    "two primes": _word(PRIMES, 2),
    "no primes": _word(PRIMES, 0),
    "scale": lambda content: _put(content, SCALE, struct.pack("<d", 2.0)),
    "correction factor": _word(CORRECTION, 2),
    "array of none": _word(COUNT, 0),
    "array too short": _count(COUNT, lambda count: count - 1),
    "array too long": _count(COUNT, lambda count: count + 1),
    "endless array": _word(COUNT, 1 << 60),
    "array's header": lambda content: _put(content, ARRAY, bytes(HEADER)),
    "endless array's header": _word(ARRAY + 8, 1 << 60),
    "array said to be compressed": lambda content: _put(content, ARRAY + 5, b"\2"),
    "coefficient of q": lambda content: content,  # put in by the test, which knows q
    "coefficient beyond q": _word(WORDS, (1 << 64) - 1),
    "nested three polynomials": lambda content: _nested(ARRAY, 3 * _degree(content), 3)(content),
    "nested no polynomials": _nested(ARRAY, 0, 0),
    "nested array of 32 MiB": _nested(ARRAY, LARGE),
    "nested 32 MiB of polynomials": lambda content: _nested(ARRAY, LARGE, LARGE // _degree(content))(content),
}  # fmt: skip


def _degree(content: bytes) -> int:
    return int(struct.unpack_from("<Q", content, DEGREE)[0])


@pytest.mark.parametrize("form", ["fresh", "sum"])
@pytest.mark.parametrize("name", CIPHERTEXTS)
def test_forged_fields_of_a_ciphertext_are_refused(
    name: str, form: str, tagged: dict[str, bytes], key: SecretKey, parameters: BfvParameters
) -> None:
    forged = CIPHERTEXTS[name](tagged[form])
    if name == "coefficient of q":
        prime = _context(parameters).first_context_data().parms().coeff_modulus()[0].value()
        forged = _put(forged, WORDS, struct.pack("<Q", prime))
    assert forged != tagged[form]
    _refused_in_little_memory(
        _framed(forged, _size(parameters, form)), Adder(parameters).parse if form == "fresh" else key.decrypt
    )


KEYS: dict[str, Callable[[bytes], bytes]] = {
    "no parameters": lambda content: _put(content, PARMS_ID, bytes(32)),
    "other parameters": lambda content: _put(content, PARMS_ID, bytes(31) + b"\1"),
    "one polynomial": _count(KEY_COUNT, lambda count: count // 2),
    "endless polynomials": _word(KEY_COUNT, 1 << 60),
    "array's header": lambda content: _put(content, KEY_ARRAY, bytes(HEADER)),
    "endless array": _word(KEY_ARRAY + HEADER, 1 << 60),
    "array said to be compressed": lambda content: _put(content, KEY_ARRAY + 5, b"\2"),
    "coefficient beyond q": _word(KEY_ARRAY + HEADER + 8, (1 << 64) - 1),
    "nested array of 32 MiB": _nested(KEY_ARRAY, LARGE),
    "nested 32 MiB of key": lambda content: _put(_nested(KEY_ARRAY, LARGE)(content), KEY_COUNT, struct.pack("<Q", LARGE)),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_forged_fields_of_a_key_are_refused(name: str, tagged: dict[str, bytes], parameters: BfvParameters) -> None:
    """What a malicious dealer may seal for the others."""
    forged = KEYS[name](tagged["key"])
    assert forged != tagged["key"]
    _refused_in_little_memory(_framed(forged, parameters.key), lambda data: SecretKey.parse(data, parameters))


def _refused_in_little_memory(data: bytes, parse: Callable[[bytes], object]) -> None:
    reset = Path("/proc/self/clear_refs")
    reset.write_text("5", encoding="ascii")  # begin the peak of resident memory anew
    before = _peak()
    with pytest.raises(HostileInput):
        parse(data)
    assert _peak() - before < MEMORY


def _peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii").split()
    return int(status[status.index("VmHWM:") + 1])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (SEED, b"\0"),
        (SEED, bytes(64)),
        (1, b"\0"),
        (SEED_TYPE, b"\0"),  # no known generator
        (SEED_TYPE, b"\2"),  # SEAL's other generator
        (SEED_TYPE, b"\7"),
        (SEED_TYPE + HEADER, bytes(HEADER)),
        (SEED_TYPE + HEADER - 8, struct.pack("<Q", 1 << 60)),
    ],
)
def test_an_altered_seed_is_refused_or_fails_the_tags(
    place: int, value: bytes, tagged: dict[str, bytes], key: SecretKey, tag_key: TagKey, parameters: BfvParameters
) -> None:
    content = tagged["fresh"]
    forged = _put(content, len(content) - place, value)
    if forged == content:  # one time in 256 a random byte is the one that is put there
        forged = _put(content, len(content) - place, b"\1" * len(value))
    assert forged != content, "altered"
    data = _framed(forged, parameters.fresh)
    with pytest.raises(HostileInput):
        tag_key.check(CONTEXT, 0, ("a",), _opened(data, "fresh", key), parameters.plain_modulus)


def test_another_seed_of_the_same_form_reaches_the_tags(
    tagged: dict[str, bytes], key: SecretKey, tag_key: TagKey, parameters: BfvParameters
) -> None:
    """Any seed expands to a well-formed polynomial, so here it is the tags alone that refuse."""
    content = tagged["fresh"]
    data = _framed(_put(content, len(content) - SEED, bytes(64)), parameters.fresh)
    slots = _opened(data, "fresh", key)
    honest = _opened(_framed(content, parameters.fresh), "fresh", key)
    assert (slots == honest).sum() < 5, "half of the ciphertext is another"
    with pytest.raises(HostileInput, match="tags"):
        tag_key.check(CONTEXT, 0, ("a",), slots, parameters.plain_modulus)


def test_the_polynomials_of_two_encryptions_are_not_interchangeable(
    tagged: dict[str, bytes], key: SecretKey, tag_key: TagKey, parameters: BfvParameters
) -> None:
    """One encryption's first polynomial with another's seed, of the same key and the same slots, decrypts to noise."""
    slots = _opened(_framed(tagged["fresh"], parameters.fresh), "fresh", key)
    again = pyarrow.decompress(key.encrypt(slots)[HEADER:], parameters.fresh.content, codec="zstd", asbytes=True)
    mixed = _framed(tagged["fresh"][:-SEED] + again[-SEED:], parameters.fresh)
    with pytest.raises(HostileInput, match="tags"):
        tag_key.check(CONTEXT, 0, ("a",), _opened(mixed, "fresh", key), parameters.plain_modulus)
    assert tagged["fresh"][-SEED:] != again[-SEED:], "each encryption draws its own seed"
    first, second = (np.frombuffer(content[WORDS : -SEED_TYPE - HEADER], dtype="<u8") for content in (tagged["fresh"], again))
    assert (first == second).sum() < 5, "and its own first polynomial"
