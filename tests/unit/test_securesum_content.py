"""Forgeries of a dealt key behind an honest frame: length, header, blocks and stated size are right, and the fields are not.

The frame check cannot see them. Each must end in the one typed error. Ciphertexts have no fields, only numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow
import pytest

from veilsum_node.errors import HostileInput
from veilsum_privacy.securesum.bfv import SecretKey, _encryption
from veilsum_privacy.securesum.frames import FrameSize, check_frame
from veilsum_privacy.securesum.parameters import BFV_4096, BFV_8192, BfvParameters

HEADER = 16  # SEAL's, before the frame and again before each inner object
MEMORY = 16 * 1024  # KiB by which one forgery may raise the peak
LARGE = 1 << 22  # words: 32 MiB

_MAGIC, _BLOCK = bytes.fromhex("28b52ffd"), 1 << 17

# Where the fields of a key lie, which SEAL stores as a plaintext: parms_id, number of coefficients, scale, then an array with
# a header of its own, its length and its words.
PARMS_ID, KEY_COUNT, KEY_SCALE, KEY_ARRAY = 0, 32, 40, 48


@pytest.fixture(scope="module", params=[BFV_8192, BFV_4096], ids=["8192", "4096"])
def parameters(request: pytest.FixtureRequest) -> BfvParameters:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def content(parameters: BfvParameters) -> bytes:
    """What is inside the frame of an honest key."""
    data = SecretKey.generate(parameters).to_bytes()
    return bytes(pyarrow.decompress(data[HEADER:], parameters.key.content, codec="zstd", asbytes=True))


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


def _put(content: bytes, place: int, value: bytes) -> bytes:
    return content[:place] + value + content[place + len(value) :]


def _word(place: int, value: int) -> Callable[[bytes], bytes]:
    return lambda content: _put(content, place, struct.pack("<Q", value))


def _nested(place: int, words: int) -> Callable[[bytes], bytes]:
    """Replace the array by a compressed one of so many words, which lies in far fewer bytes; keep the content's length.

    SEAL reads such an array, whatever holds it. Random bytes behind it make up for what the outer compression saves.
    """
    repeated = (_BLOCK << 3 | 2).to_bytes(3, "little") + b"\1"

    def forge(content: bytes) -> bytes:
        frame = _MAGIC + b"\x00\x58" + (8 << 3).to_bytes(3, "little") + struct.pack("<Q", words)
        frame += repeated * (8 * words // _BLOCK + 1) + b"\1\0\0"
        array = _header(len(frame), 2) + frame
        return _put(content, place, array + np.random.default_rng(0).bytes(8 * len(array)))

    return forge


def _count(place: int, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    return lambda content: _put(content, place, struct.pack("<Q", change(struct.unpack_from("<Q", content, place)[0])))


def test_the_honest_content_passes_and_lies_as_supposed(content: bytes, parameters: BfvParameters) -> None:
    """Control of this file: the forger's frame is accepted, and every offset that it alters is the field that it says."""
    again = SecretKey.parse(_framed(content, parameters.key), parameters).to_bytes()
    assert pyarrow.decompress(again[HEADER:], parameters.key.content, codec="zstd", asbytes=True) == content
    words = 2 * parameters.degree
    assert struct.unpack_from("<4Q", content) == tuple(_encryption(parameters).key_parms_id())
    assert struct.unpack_from("<Qd", content, KEY_COUNT) == (words, 1.0)
    assert content[KEY_ARRAY : KEY_ARRAY + 24] == _header(8 + 8 * words, 0) + struct.pack("<Q", words)


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
def test_forged_fields_of_a_key_are_refused(name: str, content: bytes, parameters: BfvParameters) -> None:
    """What a malicious dealer may seal for the others."""
    forged = KEYS[name](content)
    assert forged != content
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
