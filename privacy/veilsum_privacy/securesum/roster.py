"""Enrolments and the roster: who takes part in a study, with which certified keys.

Every participant verifies the whole roster itself. The digest binds certificates, enrolments and signatures byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from cryptography import x509

from veilsum_node.canonical import canonical, digest, parse_canonical
from veilsum_node.errors import HostileInput
from veilsum_node.identity import Identity, Label, Role, SigningKey, verify, verify_certificate
from veilsum_node.identity.certificate import issued
from veilsum_privacy.securesum.boxes import public_key
from veilsum_privacy.study.study import Study


@dataclass(frozen=True)
class Enrolment:
    """A participant's signed word that it takes part, with its HPKE public key for this study.

    Attributes:
        certificate: DER of the participant's certificate.
        body: canonical JSON of study digest, name and public key.
        signature: over ``body``, by the certificate's key.
    """

    certificate: bytes
    body: bytes
    signature: bytes

    @property
    def digest(self) -> bytes:
        """Digest of every byte of the enrolment."""
        return digest("veilsum/1/enrolment", self.certificate, self.body, self.signature)


@dataclass(frozen=True)
class Member:
    """A verified participant of a study."""

    identity: Identity
    public: bytes
    enrolment: Enrolment

    @property
    def name(self) -> str:
        """The certificate's name."""
        return self.identity.name


@dataclass(frozen=True)
class Roster:
    """The verified participants of a study in the order of their names' bytes."""

    members: tuple[Member, ...]
    digest: bytes

    @cached_property
    def names(self) -> tuple[str, ...]:  # asked for with every message
        """Names in roster order."""
        return tuple(member.name for member in self.members)

    @cached_property
    def _by_name(self) -> dict[str, Member]:
        return {member.name: member for member in self.members}

    def member(self, name: str) -> Member:
        """Return the member with this name.

        Raises:
            HostileInput: nobody of that name is in the roster.
        """
        member = self._by_name.get(name)
        if member is None:
            raise HostileInput("A message names a participant that is not in the study's roster.")
        return member


def enrol(study: bytes, identity: Identity, public: bytes, key: SigningKey) -> Enrolment:
    """Sign an enrolment for the study with this digest."""
    body = canonical({"v": 1, "study": study, "participant": identity.name, "public": public})
    return Enrolment(identity.certificate, body, key.sign(Label.ENROLMENT, body))


def verify_enrolment(enrolment: Enrolment, study: bytes, authority: x509.Certificate, at: int | None) -> Member:
    """Verify certificate, role, signature and content of one enrolment.

    Args:
        enrolment: as it came.
        study: digest of the study.
        authority: the federation's.
        at: the time at which the certificate must be valid, Unix seconds; None where it may have expired since.

    Raises:
        HostileInput: anything is wrong.
    """
    if at is None:
        identity = issued(enrolment.certificate, authority, Role.PARTICIPANT)
    else:
        identity = verify_certificate(enrolment.certificate, authority, at, Role.PARTICIPANT)
    verify(identity.public_key, Label.ENROLMENT, enrolment.body, enrolment.signature)
    value = parse_canonical(enrolment.body, what="enrolment")
    if not isinstance(value, dict) or set(value) != {"v", "study", "participant", "public"} or value["v"] != 1:
        raise HostileInput("An enrolment does not have exactly the fields of version 1.")
    if value["study"] != study.hex():
        raise HostileInput("An enrolment is for another study.")
    if value["participant"] != identity.name:
        raise HostileInput("An enrolment names a different participant than its certificate.")
    try:
        public = bytes.fromhex(value["public"])
    except (ValueError, TypeError) as error:
        raise HostileInput("An enrolment's public key is not hexadecimal.") from error
    public_key(public)
    return Member(identity, public, enrolment)


def verify_roster(
    enrolments: Sequence[Enrolment], study: Study, study_digest: bytes, authority: x509.Certificate, at: int | None
) -> Roster:
    """Verify every enrolment, their order, and that names, keys and participants are distinct and invited.

    Certificates must be valid ``at`` that time (Unix seconds); with None they may have expired since.

    Raises:
        HostileInput: anything is wrong, or fewer members than the study's ``min_cohort``.
    """
    members = tuple(verify_enrolment(enrolment, study_digest, authority, at) for enrolment in enrolments)
    names = [member.name for member in members]
    if names != sorted(set(names), key=str.encode):
        raise HostileInput("The roster is not sorted, or names someone twice.")
    if len({member.identity.fingerprint for member in members}) != len(members) or len(
        {member.public for member in members}
    ) != len(members):
        raise HostileInput("Two members of the roster share a key.")
    if not set(names) <= set(study.participants):
        raise HostileInput("The roster holds someone whom the study does not name.")
    if len(members) < study.privacy.min_cohort:
        raise HostileInput("The roster is smaller than the study's smallest cohort.")
    return Roster(members, digest("veilsum/1/roster", *(member.enrolment.digest for member in members)))
