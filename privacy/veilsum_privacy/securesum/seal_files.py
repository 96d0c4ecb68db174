"""SEAL's objects as the files that its Python interface saves and loads, and what it writes around their numbers.

The library's parser ends the process on some malformed bytes (an exception leaves where none may). So it is given nothing but
its own words: around numbers that were checked stands what the library itself writes. Nothing that came from elsewhere is
loaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from veilsum_node.errors import StateError

_MAGIC = b"\x5e\xa1\x10"
_STORED = bytes([0, 0, 0])
_HEADER = 16


class Scratch:
    """A file in memory: the library's Python interface saves to and loads from named files only.

    It is open for one object only: who adds up a round may be kept for as long as its study.
    """

    def dump(self, item: Any) -> bytes:
        """The bytes of an object that saves itself."""
        with _memory_file() as file:
            item.save(f"/proc/self/fd/{file}")
            return os.pread(file, os.fstat(file).st_size, 0)

    def content(self, item: Any) -> bytes:
        """What is inside the frame of an object that saves itself."""
        return inflate(self.dump(item))

    def load(self, data: bytes, read: Callable[[str], None]) -> None:
        """Let ``read`` load an object from a file that holds ``data``."""
        with _memory_file() as file:
            os.pwrite(file, data, 0)
            read(f"/proc/self/fd/{file}")


@contextmanager
def _memory_file() -> Iterator[int]:
    try:
        file = os.memfd_create("veilsum", os.MFD_CLOEXEC)
    except (AttributeError, OSError) as error:
        raise StateError(
            "This system offers no files in memory.", "veilsum needs Linux and a sufficient limit of open files."
        ) from error
    try:
        yield file
    finally:
        os.close(file)


def inflate(data: bytes) -> bytes:
    """What is inside the frame of an object that this library wrote: one of Zstandard behind SEAL's header."""
    import pyarrow  # large, and whoever neither encrypts nor opens inflates nothing

    frame = memoryview(data)[_HEADER:]
    width = (1, 2, 4, 8)[frame[4] >> 6]
    size = int.from_bytes(frame[5 : 5 + width], "little") + (256 if width == 2 else 0)
    return bytes(pyarrow.decompress(frame, decompressed_size=size, codec="zstd", asbytes=True))


@dataclass(frozen=True)
class Template:
    """What stands around the numbers of an object: the same in every one of its kind.

    Attributes:
        outside: SEAL's header of the object without compression.
        head: before the numbers: parameters, sizes, flags and the header of the array.
    """

    outside: bytes
    head: bytes

    @classmethod
    def of(cls, content: bytes, whole: bytes, numbers: int) -> Template:
        """The template of an object, inflated and as serialised, with ``numbers`` bytes of polynomials.

        Raises:
            StateError: the library writes it in another way than this module knows.
        """
        at = content.find(_MAGIC) + _HEADER + 8
        if content[at - _HEADER - 8 : at - 19] != _MAGIC + whole[3:5] or len(content) != at + numbers:
            raise StateError("The encryption library writes its objects in an unknown way.")
        return cls(whole[:5] + _STORED + (_HEADER + len(content)).to_bytes(8, "little"), content[:at])

    def fill(self, numbers: bytes) -> bytes:
        """An object without compression, of its polynomials' numbers."""
        return self.outside + self.head + numbers
