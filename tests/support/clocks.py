"""Processes whose time of day a test sets while they run, by libfaketime; elapsed time stays what it is."""

from __future__ import annotations

from pathlib import Path

from support.tools import give_up

PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib64/faketime/libfaketimeMT.so.1")


def clock_library() -> Path:
    """The library; without it the test is skipped, or fails where tools are demanded."""
    found = [path for place in PLACES for path in Path("/").glob(place.lstrip("/"))]
    if not found:
        give_up("needs libfaketime (package faketime) to set a process's clock")
    return found[0]


class SetClock:
    """One process's clock.

    Args:
        file: where the library reads how far it is off.
        offset: seconds ahead of the system's clock at first.
    """

    def __init__(self, file: Path, offset: int = 0) -> None:
        self._file = file
        self.offset = offset
        self.set(offset)

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the process."""
        return {
            "LD_PRELOAD": str(clock_library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: int) -> None:
        """Set it so many seconds ahead of the system's clock, from the process's next look on."""
        self.offset = offset
        partial = self._file.with_suffix(".new")
        partial.write_text(f"{offset:+d}\n")
        partial.replace(self._file)
