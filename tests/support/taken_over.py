"""A participant of whose processes one is taken over: it does its work as ever, and beside it all of :mod:`support.intruder`.

``python -P -m support.taken_over ROLE,... CONFIG`` runs a participant whose processes of these roles are hostile once they are
confined. ``support.hostile_ROLE`` is the process itself: the real module, with a thread that tries
everything as soon as a file says whom to come after, and tells its standard error, which the participant logs.
"""

from __future__ import annotations

import importlib
import json
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.intruder import ATTEMPTS, Victim

PREY = "prey.json"
"""Name of the file, in a folder from which Python imports: what every process may read."""

TOLD = "INTRUDED "


def attack(fields: dict[str, Any]) -> list[str]:
    """Try everything against a site's other processes and files; what succeeded."""
    made = []
    files = {f"read {path}": Path(path) for path in fields.pop("site_files")}
    victim = Victim(**{**fields, "secret": bytes.fromhex(fields["secret"]), "files": Path(fields["files"])})
    for name, function in ATTEMPTS.items():
        try:
            if function(victim, victim.files / name):
                made.append(name)
        except (OSError, ValueError):
            continue
    for name, path in files.items():
        try:
            if list(path.iterdir()) if path.is_dir() else path.read_bytes():
                made.append(name)
        except OSError:
            continue
    return made


def _attacked() -> bool:
    """Attack whom the file names, and tell; whether there is one."""
    for folder in filter(None, sys.path):
        try:
            fields = json.loads((Path(folder) / PREY).read_text())
        except (OSError, ValueError):
            continue
        made = attack(fields)
        told = TOLD + json.dumps({"tried": len(ATTEMPTS), "made": made})
        print(
            f"2026-01-01T00:00:00Z WARNING {told}", file=sys.stderr, flush=True
        )  # of a reader, lines of its log alone are kept
        return True
    return False


def _wait_and_attack() -> None:
    while not _attacked():
        time.sleep(0.05)


def take_over(module: str) -> Any:
    """The module of a process, hostile from the moment on in which it is confined."""
    real = importlib.import_module(module)
    confine = real.confine

    def confined(bounds: Any, keep: Iterable[int] = ()) -> Any:
        found = confine(bounds, keep)
        if not _attacked():  # a reader lives no longer than it reads: it attacks first
            threading.Thread(target=_wait_and_attack, daemon=True).start()
        return found

    real.confine = confined
    return real


def main() -> None:
    roles, config = sys.argv[1:]
    from veilsum_participant.session import launcher
    from veilsum_participant.session.__main__ import main as serve

    launcher.ROLES.update({role: f"support.hostile_{role}" for role in roles.split(",")})
    serve(Path(config))


if __name__ == "__main__":
    main()
