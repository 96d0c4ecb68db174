"""Identities that were made before in this process, laid out anew: keys and certificates take a quarter of a bed's time."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from veilsum_node.identity.kit import Kit, make_kit
from veilsum_node.identity.provision import Party

_IN_TURN = 4
"""Kits of the same names, handed out in turn: beds that a test makes one after the other are different federations."""

_AGE = 1800
"""Seconds by a test's clock; certificates are valid from their kit's making on, and for much longer."""


@dataclass(frozen=True)
class _Kept:
    kit: Kit
    made: int
    files: dict[str, tuple[bytes, int]]


_KEPT: dict[tuple[str, ...], deque[_Kept]] = {}


def fresh_kit(directory: Path, names: Sequence[str], clock: Callable[[], int]) -> Kit:
    """As :func:`veilsum_node.identity.kit.make_kit`: one that was made for the same names a while ago, or a new one."""
    kept, now = _KEPT.setdefault(tuple(names), deque(maxlen=_IN_TURN)), clock()
    if len(kept) == _IN_TURN and 0 <= now - kept[0].made < _AGE:
        kept.rotate(-1)
        return _laid_out(kept[-1], directory)
    kit = make_kit(directory, names, clock=clock)
    files = {
        str(path.relative_to(directory)): (path.read_bytes(), path.stat().st_mode)
        for path in directory.rglob("*")
        if path.is_file()
    }
    kept.append(_Kept(kit, now, files))
    return kit


def _laid_out(kept: _Kept, directory: Path) -> Kit:
    folders = {os.path.dirname(name) for name in kept.files}
    for folder in sorted(folders):
        os.makedirs(directory / folder, exist_ok=True)
    for name, (content, mode) in kept.files.items():
        with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)

    def moved(party: Party) -> Party:
        return replace(party, directory=directory / party.directory.relative_to(kept.kit.directory))

    return replace(
        kept.kit,
        directory=directory,
        coordinator=moved(kept.kit.coordinator),
        analyst=moved(kept.kit.analyst),
        operator=moved(kept.kit.operator),
        participants=tuple(map(moved, kept.kit.participants)),
    )
