"""The dossier of a site's ledger: what was spent, what it means for a person, and whether the record holds.

:func:`describe` turns entries into plain data, the JSON twin; :func:`render` turns the twin, and nothing else, into one HTML
page. Neither opens a file or a connection.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from veilsum_privacy.dossier.content import FORMAT, describe, proven, unproven
    from veilsum_privacy.dossier.model import Proof, StudyLabel, StudyTerms
    from veilsum_privacy.dossier.page import render

__all__ = ["FORMAT", "Proof", "StudyLabel", "StudyTerms", "describe", "proven", "render", "unproven"]

_WHERE = {"Proof": "model", "StudyLabel": "model", "StudyTerms": "model", "render": "page"}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: who shows a study takes its words and figures from here, and draws no page."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'content')}"), name)
