"""Studies that the site takes part in: loaded from the store and verified again, with their roster, key and seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from cryptography import x509
from sqlalchemy import Connection

from veilsum_node.errors import HostileInput, Refusal, RefusalCode, StateError
from veilsum_node.identity import Role, verify_certificate
from veilsum_participant.protocol.policy import analyst_faults, refuse
from veilsum_participant.site import Site
from veilsum_participant.store.studies import TAKING_PART, StudyRow, find_study, load_enrolments
from veilsum_participant.store.tables import promised
from veilsum_privacy.securesum.boxes import BoxKey
from veilsum_privacy.securesum.roster import Member, Roster, verify_roster
from veilsum_privacy.study.study import Study, parse_study

if TYPE_CHECKING:
    from veilsum_privacy.computation.declared import DeclaredStudy


@lru_cache(maxsize=32)
def verified_roster(data: bytes, study: bytes, digest: bytes, authority: x509.Certificate, at: int) -> Roster:
    """A stored roster, verified as of a fixed time; remembered by all that this depends on, for a round asks for it often.

    Raises:
        HostileInput: it does not verify.
    """
    return verify_roster(load_enrolments(data), parse_study(study), digest, authority, at)


@dataclass(frozen=True)
class OpenStudy:
    """A study that the site is enrolled in, loaded from the store and verified again."""

    row: StudyRow = field(repr=False)  # holds a key and seeds
    agreed: DeclaredStudy

    @property
    def study(self) -> Study:
        """As its analyst signed it."""
        return self.agreed.study

    @property
    def digest(self) -> bytes:
        """The study's name in the protocol."""
        return self.agreed.digest

    @property
    def box_key(self) -> BoxKey:
        """The site's HPKE key for the study."""
        return BoxKey.parse(promised(self.row.box_key))

    def roster(self, site: Site) -> Roster:
        """The roster, verified at the time when it was accepted: a member that has left may let its certificate expire.

        Whoever asks for a contribution or a consent checks the cohort's certificates at the present time as well
        (:func:`check_certificates`).
        """
        if self.row.roster is None:
            raise Refusal(RefusalCode.ROSTER, "No roster was received for this study yet.")
        row = self.row
        try:
            return verified_roster(row.roster, row.study, self.digest, site.credentials.authority, row.roster_time)
        except HostileInput as error:
            raise Refusal(RefusalCode.ROSTER, error.message) from error

    @property
    def shares(self) -> dict[str, bytes]:
        """What this site drew for its pairs' seeds, by the other member's name."""
        return _secrets(self.row.shares)

    @property
    def seeds(self) -> dict[str, bytes]:
        """Pair seeds by the other member's name."""
        return _secrets(self.row.seeds)


def _secrets(stored: bytes | None) -> dict[str, bytes]:
    return {name: bytes.fromhex(secret) for name, secret in json.loads(stored or b"{}").items()}


def check_certificates(members: Sequence[Member], site: Site) -> None:
    """Check that a cohort's certificates are valid now, and the directory that the pins come from.

    Raises:
        Refusal: one is not.
    """
    check_directory(site)
    now = site.clock()
    try:
        for member in members:
            verify_certificate(member.enrolment.certificate, site.credentials.authority, now, Role.PARTICIPANT)
    except HostileInput as error:
        raise Refusal(RefusalCode.ROSTER, error.message) from error


def check_directory(site: Site) -> None:
    """Check that the directory that the pins come from, if one is used, has not ended since the start.

    Raises:
        Refusal: it has; nobody is pinned any more.
    """
    if site.directory is not None:
        try:
            site.directory.check_time(site.clock())
        except HostileInput as error:
            raise Refusal(RefusalCode.COHORT_TRUST, error.message, error.advice) from error


def load_open_study(connection: Connection, site: Site, digest: bytes) -> OpenStudy:
    """Load an enrolled study that is neither left, ended nor expired.

    Raises:
        Refusal: there is none, or its analyst is not accepted any more.
    """
    row = find_study(connection, digest)
    if row is None:
        raise Refusal(RefusalCode.CLOSED, "This site is not enrolled in that study.")
    if row.status not in TAKING_PART:
        raise Refusal(RefusalCode.CLOSED, f"This site's part in the study is over ({row.status}).")
    refuse(analyst_faults(row.analyst, site.config.policy))
    agreed = site.agreed(row.study)
    study = agreed.study
    if site.clock() >= study.expires:
        raise Refusal(RefusalCode.STUDY_EXPIRED, "The study has expired.")
    if study.dataset not in site.config.datasets:
        raise StateError(
            f"Dataset {study.dataset!r} is not offered any more.", "Restore it in participant.toml, or end the study."
        )
    return OpenStudy(row, agreed)
