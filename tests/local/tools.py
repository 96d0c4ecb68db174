"""Where programs of other projects lie on this machine: what ``make tools`` fetched, else the system's own.

Nothing is downloaded here; ``deploy/tools/fetch.sh`` does that.
"""

import shutil
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
"""The folder that ``make tools`` fills, in the root of the checkout."""

_DEBIAN = {"alertmanager": "prometheus-alertmanager"}  # the same program under the package's name
_POSTGRESQL = Path("/usr/lib/postgresql")


def find_tool(name: str) -> Path | None:
    """Find a program by its upstream name, such as ``promtool`` or ``initdb``.

    Looks in ``.tools/bin`` and ``.tools/usr/bin``, then on PATH, then among Debian's PostgreSQL programs, newest version
    first. Returns its absolute path, or nothing where the machine has no such program.
    """
    names = [name, *([_DEBIAN[name]] if name in _DEBIAN else [])]
    fetched = [TOOLS / "bin", TOOLS / "usr" / "bin"]
    versions = sorted(_POSTGRESQL.glob("*/bin"), key=lambda path: _version(path.parent.name), reverse=True)
    for places in (fetched, None, versions):
        for tool in names:
            found = shutil.which(tool, path=None if places is None else ":".join(map(str, places)))
            if found is not None:
                return Path(found).absolute()
    return None


def _version(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
