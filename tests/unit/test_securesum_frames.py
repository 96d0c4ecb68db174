"""The walk over a compressed frame, on frames made by hand: what each field may say, at its very bounds."""

from __future__ import annotations

import pytest

from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.securesum.frames import FrameSize, Template, check_frame

RAW, RLE = 0, 1
SINGLE_SEGMENT, CHECKSUM = 0x20, 0x04
CONTENT = 300


def block(kind: int, length: int, *, last: bool) -> bytes:
    body = bytes(1 if kind == RLE else length)
    return (length << 3 | kind << 1 | last).to_bytes(3, "little") + body


def frame(
    blocks: tuple[tuple[int, int], ...] = ((RAW, 5),),
    *,
    stated: int = CONTENT,
    width: int = 4,
    flags: int = SINGLE_SEGMENT,
    tail: bytes = b"",
    unended: bool = False,
) -> bytes:
    """An object of one frame as SEAL and Zstandard write it: RFC 8878, section 3.1.1."""
    code = {1: 0, 2: 1, 4: 2, 8: 3}[width]
    field = (stated - 256 if width == 2 else stated).to_bytes(width, "little")
    made = bytes.fromhex("28b52ffd") + bytes([code << 6 | flags]) + field
    for place, (kind, length) in enumerate(blocks):
        made += block(kind, length, last=not unended and place == len(blocks) - 1)
    made += tail
    return b"\x5e\xa1\x10\x04\x01\x02\x00\x00" + (16 + len(made)).to_bytes(8, "little") + made


def passes(data: bytes, content: int = CONTENT, least: int = 0, largest: int = 10_000) -> bool:
    try:
        check_frame(data, FrameSize(least, largest, content), "thing")
    except HostileInput:
        return False
    return True


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_stated_size_is_read_in_every_width(width: int) -> None:
    content = 200 if width == 1 else 300
    assert passes(frame(stated=content, width=width), content)
    for other in (content - 1, content + 1, content + 256):
        assert not passes(frame(stated=content, width=width), other)


def test_length_at_both_bounds() -> None:
    data = frame()
    assert passes(data, least=len(data), largest=len(data))
    assert not passes(data, least=len(data) + 1)
    assert not passes(data, largest=len(data) - 1)


def test_one_to_four_blocks() -> None:
    for count in range(1, 5):
        assert passes(frame(((RAW, 3),) * count))
        assert passes(frame(((RLE, 131072),) * count))
        assert passes(frame(((RLE, 7), (RAW, 0))[:count] + ((RAW, 9),) * max(0, count - 2)))
    assert not passes(frame(((RAW, 3),) * 5))
    assert not passes(frame(((RAW, 3),) * 3, unended=True))


def test_nothing_behind_the_last_block_but_a_checksum() -> None:
    assert passes(frame(flags=SINGLE_SEGMENT | CHECKSUM, tail=bytes(4)))
    for length in (0, 1, 3, 5, 8):
        assert not passes(frame(flags=SINGLE_SEGMENT | CHECKSUM, tail=bytes(length)))
    for length in (1, 4):
        assert not passes(frame(tail=bytes(length)))
    for last in (True, False):
        assert not passes(frame(tail=block(RAW, 5, last=last)))
    cut = frame(((RAW, 5), (RAW, 5)))[:-1]
    assert not passes(cut[:8] + len(cut).to_bytes(8, "little") + cut[16:])


def test_flags_that_change_the_layout() -> None:
    assert not passes(frame(flags=0))  # a window would follow
    for dictionary in (1, 2, 3):
        assert not passes(frame(flags=SINGLE_SEGMENT | dictionary))


def test_every_byte_of_the_header_that_steers() -> None:
    """Two bytes, of SEAL's version, are not looked at here."""
    data = frame()
    assert passes(data)
    for place in (*range(3), *range(5, 20)):
        assert not passes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]), place


HEAD, NUMBERS = 8, 24
WHOLE = b"\x5e\xa1\x10\x04\x01\x02\x00\x00"


def inflated(rest: bytes = b"") -> bytes:
    """Something, then the header of an array and its numbers; then a seed with its header, or nothing."""
    return bytes(range(HEAD)) + WHOLE[:5] + bytes(3) + bytes(8) + bytes(8) + bytes(NUMBERS) + rest


@pytest.mark.parametrize("rest", [b"", b"generator" + bytes(64)])
def test_all_around_the_numbers_and_a_seed_is_pinned(rest: bytes) -> None:
    content = inflated(rest)
    template = Template.of(content, WHOLE, NUMBERS)
    written = template.check(content, "thing")
    assert written == WHOLE[:5] + bytes(3) + (16 + len(content)).to_bytes(8, "little") + content
    free = set(range(HEAD + 24, HEAD + 24 + NUMBERS)) | set(range(len(content) - 64, len(content)) if rest else ())
    for place in range(len(content)):
        changed = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        if place in free:
            assert template.check(changed, "thing").endswith(changed)
        else:
            with pytest.raises(HostileInput):
                template.check(changed, "thing")
    for wrong in (content[:-1], content + b"\0"):
        with pytest.raises(HostileInput):
            template.check(wrong, "thing")


def test_a_library_that_writes_otherwise_is_not_used() -> None:
    for content in (inflated(bytes(64)), inflated(b"\1"), inflated().replace(WHOLE[:5], b"\x5e\xa1\x10\x04\x02")):
        with pytest.raises(StateError):
            Template.of(content, WHOLE, NUMBERS)
