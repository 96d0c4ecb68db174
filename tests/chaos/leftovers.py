"""What processes must not leave behind: processes, temporary files, shared memory, files that others may read."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

PRIVATE = re.compile(r"(\.db(-wal|-shm)?|/key\.pem|/results/.*\.(json|safetensors))$")
"""Files that hold keys, ledgers, sums or results: for their owner alone."""

EXPECTED = re.compile(
    r"""^(
    participants/[a-z]/(log|participant\.db(\.lock)?)
    | coordinator/(log|ready)
    | coordinator/state/coordinator\.db(\.lock)?
    | coordinator/state/results/[0-9a-f]{64}/(checkpoints/round-\d{6}/)?(manifest\.json|arrays\.safetensors)
    )$""",
    re.VERBOSE,
)
"""Files that the processes may leave below a federation's folder: logs, databases without a journal, whole results."""


def files(folder: Path) -> set[str]:
    """Every file, and every empty folder, relative to ``folder``."""
    found = set()
    for directory, folders, names in os.walk(folder):
        place = Path(directory).relative_to(folder)
        found |= {str(place / name) for name in names}
        if not folders and not names:
            found.add(f"{place}/")
    return found


def left_files(folder: Path, before: set[str]) -> list[str]:
    """Files that should not be there once every process has ended; ``before``: those that lay there before the first began."""
    return sorted(name for name in files(folder) - before if not EXPECTED.match(name) and name != "coordinator/state/results/")


def open_modes(folder: Path) -> list[str]:
    """Private files that anybody but their owner may read or write, and state folders that others may enter."""
    found = []
    for name in sorted(files(folder)):
        path = folder / name
        if PRIVATE.search(f"/{name}") and path.is_file() and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
            found.append(f"{name} has mode {mode:o}")
    state = folder / "coordinator" / "state"
    if state.exists() and (mode := stat.S_IMODE(state.stat().st_mode)) & 0o077:
        found.append(f"coordinator/state has mode {mode:o}")
    return found


def left_processes(folder: Path) -> list[str]:
    """Processes, of whatever parent, whose command line or environment names a folder."""
    found, name = [], str(folder).encode()
    for place in _processes():
        try:
            told = (place / "cmdline").read_bytes()
            if place.name != str(os.getpid()) and (name in told or name in (place / "environ").read_bytes()):
                found.append(f"{place.name}: {told.replace(bytes(1), b' ').decode(errors='replace').strip()}")
        except OSError:  # it has ended meanwhile, or is another user's
            continue
    return found


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Paths below /dev/shm that processes have open or mapped."""
    found = set()
    for pid in pids:
        place = Path(f"/proc/{pid}")
        try:
            maps = (place / "maps").read_text()
            found |= {line.split(maxsplit=5)[5] for line in maps.splitlines() if " /dev/shm/" in line}
            found |= {target for item in (place / "fd").iterdir() if (target := os.readlink(item)).startswith("/dev/shm/")}
        except OSError:
            continue
    return {path.removesuffix(" (deleted)") for path in found}


def _processes() -> Iterator[Path]:
    return (place for place in Path("/proc").iterdir() if place.name.isdecimal())
