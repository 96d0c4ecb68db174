"""What the studies in a participant's state file are called, for whoever shows its ledger."""

from functools import lru_cache
from pathlib import Path

from sqlalchemy import inspect, select

from veilsum_node.database_places import open_readonly
from veilsum_node.errors import HostileInput
from veilsum_participant.store.studies import STUDIES
from veilsum_privacy.dossier import StudyLabel, StudyTerms
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.dossier.ledgers import is_database
from veilsum_privacy.study.study import Study, parse_study


@lru_cache(maxsize=4096)
def known_study(data: bytes) -> Study | None:
    """A study as a site's store has it, parsed once however often a page is asked for; None of a version that wrote studies in
    another way."""
    try:
        return parse_study(data)
    except HostileInput:
        return None


def study_labels(place: str | Path, *, words: bool = False) -> dict[bytes, StudyLabel]:
    """Names of the studies that a participant's state file keeps, by digest; empty for an export or a mirror.

    ``words``: with what they ask, for which each is looked through.
    """
    if "://" in str(place) or not is_database(Path(place)):
        return {}
    labels: dict[bytes, StudyLabel] = {}
    with open_readonly(place) as database, database.reading() as connection:
        if not inspect(connection).has_table(STUDIES.name):
            return {}
        rows = connection.execute(select(STUDIES.c.digest, STUDIES.c.study, STUDIES.c.analyst)).all()
    for row in rows:
        if (study := known_study(row.study)) is None:
            continue  # its digest has to do
        per_site = tuple(task.label for task in study.tasks if task.disclosure == "per-site")
        asks = asked_facts(study) if words else {}
        labels[row.digest] = StudyLabel(
            study.name, study.method, row.analyst, per_site, StudyTerms.of(study), study.statements, asks
        )
    return labels
