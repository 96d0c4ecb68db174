"""Which software this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

DISTRIBUTIONS = ("veilsum", "veilsum-participant", "veilsum-analyst", "veilsum-coordinator")
"""The whole platform, and one party's part of it: an environment holds one of them."""


def installed_version() -> str:
    """Version of the distribution that is installed.

    Raises:
        PackageNotFoundError: none is.
    """
    for name in DISTRIBUTIONS:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    raise PackageNotFoundError(DISTRIBUTIONS[0])
