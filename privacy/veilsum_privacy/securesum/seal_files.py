"""SEAL's objects as the files that its Python interface saves and loads, and what it writes around their numbers.

The library's parser ends the process on some malformed bytes (an exception leaves where none may). So it is given nothing but
its own words: around numbers that were checked stands what the library itself writes. Nothing that came from elsewhere is
loaded.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from typing import Any

from veilsum_node.errors import StateError

_MAGIC = b"\x5e\xa1\x10"
_STORED = bytes([0, 0, 0])
_HEADER = 16
_PIPE = 1 << 20
"""Bytes that a pipe may hold for whoever has no privileges (pipe(7))."""


class Scratch:
    """A file in memory: the library's Python interface saves to and loads from named files only.

    It is open for one object only: who adds up a round may be kept for as long as its study.
    """

    def dump(self, item: Any) -> bytes:
        """The bytes of an object that saves itself."""
        with _memory_file() as file:
            item.save(_path(file))
            return file.readall()

    def content(self, item: Any) -> bytes:
        """What is inside the frame of an object that saves itself."""
        return inflate(self.dump(item))

    def load(self, data: bytes, read: Callable[[str], None]) -> None:
        """Let ``read`` load an object from a file that holds ``data``."""
        with _memory_file() as file:
            file.write(data)
            read(_path(file))


class Passage:
    """A file in memory and a pipe that stay open while many objects of about one size pass: pages that the kernel makes for a
    file and takes back take longer than what is copied into them.

    What is loaded through it stays in the file until the next: it is for what everybody knows. What is saved stays nowhere.
    """

    def __init__(self) -> None:
        self._file = _memory_file()
        weakref.finalize(self, self._file.close)
        self._out, self._into = os.pipe()
        os.set_blocking(self._out, False)
        weakref.finalize(self, os.close, self._out)
        weakref.finalize(self, os.close, self._into)
        try:
            self._room = fcntl.fcntl(self._into, fcntl.F_SETPIPE_SZ, _PIPE)
        except OSError:  # where a user has many pipes open
            self._room = 0

    def load(self, parts: Sequence[bytes | memoryview], read: Callable[[str], None]) -> None:
        """Let ``read`` load an object from a file that holds these parts, one behind the other."""
        self._file.truncate(os.pwritev(self._file.fileno(), parts, 0))
        read(_path(self._file))

    def content(self, item: Any, size: int) -> bytes:
        """What is inside the frame of an object that saves itself, of so many bytes."""
        if size + size // 64 + 4096 <= self._room:  # with what a frame may add: nobody reads before all is written
            item.save(f"/proc/self/fd/{self._into}")
            with suppress(BlockingIOError):  # where a pipe cannot be opened by its name, the library says nothing
                return inflate(os.read(self._out, self._room))
        return Scratch().content(item)


def _memory_file() -> FileIO:
    try:
        return FileIO(os.memfd_create("veilsum", os.MFD_CLOEXEC), "r+")
    except (AttributeError, OSError) as error:
        raise StateError(
            "This system offers no files in memory.", "veilsum needs Linux and a sufficient limit of open files."
        ) from error


def _path(file: FileIO) -> str:
    return f"/proc/self/fd/{file.fileno()}"


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
        return b"".join(self.parts(numbers))

    def parts(self, *numbers: bytes | memoryview) -> list[bytes | memoryview]:
        """The same in parts, of which none is copied."""
        return [self.outside, self.head, *numbers]
