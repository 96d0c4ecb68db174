"""Which software this is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Version of the distribution that is installed: the whole platform's, or else the participant's."""
    try:
        return version("veilsum")
    except PackageNotFoundError:
        return version("veilsum-participant")
