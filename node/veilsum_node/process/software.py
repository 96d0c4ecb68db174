"""Which software this is, and how what it lacks is added."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = ("veilsum", "veilsum-participant", "veilsum-analyst", "veilsum-coordinator")
"""The whole platform, and one party's part of it: an environment holds one of them."""


@cache
def installed_distribution() -> str:
    """The one of :data:`DISTRIBUTIONS` that is installed, looked for once in a process.

    Raises:
        PackageNotFoundError: none is.
    """
    for name in DISTRIBUTIONS:
        try:
            version(name)
        except PackageNotFoundError:
            continue
        return name
    raise PackageNotFoundError(DISTRIBUTIONS[0])


def installed_version() -> str:
    return version(installed_distribution())


def install_extra(extra: str) -> str:
    """The command that adds an extra to what is installed: another distribution's would bring that one along."""
    return f"pip install '{installed_distribution()}[{extra}]'"
