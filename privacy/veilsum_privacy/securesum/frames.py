"""The outside of what SEAL serialises: its header and the one compressed frame, walked without inflating anything.

SEAL reads every compression mode it knows and sizes that the bytes themselves state. So every byte that steers its parser is
pinned and the frame's blocks are counted first: no other mode, no skippable frame, no size or window beyond one object of
exactly the expected size.
"""

from __future__ import annotations

from dataclasses import dataclass

from veilsum_privacy.errors import HostileInput

_SEAL_MAGIC = b"\x5e\xa1\x10"
_SEAL_ZSTD = 2
_SEAL_HEADER = 16
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_MAX_BLOCKS = 4  # a block inflates to at most 128 KiB; an honest object has one or two


@dataclass(frozen=True)
class FrameSize:
    """What an honest object measures.

    Attributes:
        least, largest: bytes as serialised.
        content: bytes once inflated, exactly.
    """

    least: int
    largest: int
    content: int


def check_frame(data: bytes, size: FrameSize, what: str) -> None:
    """Check length, header and blocks of a serialised object.

    Raises:
        HostileInput: wrong length, not the expected header, another size inflated, or more blocks than an honest object has.
    """
    if not size.least <= len(data) <= size.largest:
        raise HostileInput(f"A {what} of {len(data)} bytes is outside the {size.least} to {size.largest} of its parameters.")
    if (
        data[:3] != _SEAL_MAGIC
        or data[5:8] != bytes([_SEAL_ZSTD, 0, 0])
        or int.from_bytes(data[8:_SEAL_HEADER], "little") != len(data)
        or data[_SEAL_HEADER : _SEAL_HEADER + 4] != _ZSTD_MAGIC
    ):
        raise HostileInput(f"A {what} does not start as one of the study's parameters does.")
    start = _SEAL_HEADER + 4
    descriptor = data[start]
    width = (1, 2, 4, 8)[descriptor >> 6]
    content = int.from_bytes(data[start + 1 : start + 1 + width], "little") + (256 if width == 2 else 0)
    if not descriptor & 0x20 or descriptor & 3 or content != size.content:
        raise HostileInput(f"A {what}'s compressed frame does not state the size that it must have.")
    position = start + 1 + width
    for _ in range(_MAX_BLOCKS):
        header = int.from_bytes(data[position : position + 3], "little")
        kind, length = header >> 1 & 3, header >> 3
        position += 3 + (1 if kind == 1 else length)
        if position > len(data):
            break
        if header & 1:
            if position + 4 * (descriptor >> 2 & 1) == len(data):
                return
            break
    raise HostileInput(f"A {what}'s compressed frame is truncated, padded or split into too many blocks.")
