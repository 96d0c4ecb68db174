"""The dossier of a site's ledger: what was spent, what it means for a person, and whether the record holds.

:func:`describe` turns entries into plain data, the JSON twin; :func:`render` turns the twin, and nothing else, into one HTML
page. Neither opens a file or a connection.
"""

from veilsum_privacy.dossier.content import FORMAT, describe, proven, unproven
from veilsum_privacy.dossier.model import Proof, StudyLabel, StudyTerms
from veilsum_privacy.dossier.render import render

__all__ = ["FORMAT", "Proof", "StudyLabel", "StudyTerms", "describe", "proven", "render", "unproven"]
