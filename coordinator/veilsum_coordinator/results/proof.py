"""What the coordinator's journal holds for the proof of a finished study's result, in the form in which it is handed out.

Nothing is kept twice: releases, receipts and consents stay where they are, and a file of a proof is put together when it is
asked for.
"""

import json

import numpy as np
from sqlalchemy import Connection, select

from veilsum_coordinator.storage.journal import STUDIES
from veilsum_coordinator.storage.messages import fixed_object, parse_roster
from veilsum_coordinator.storage.records import (
    RELEASES,
    SUMS,
    FormerProof,
    read_agreed,
    read_answers,
    read_consents,
    read_proof,
    read_receipts,
    read_total,
)
from veilsum_coordinator.storage.releases import read_release
from veilsum_node.database import Database
from veilsum_node.errors import HostileInput
from veilsum_privacy.results.former.proof import FormerReleaseProof
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, round_of
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.results.sum_evidence import check_bodies
from veilsum_privacy.results.whole_sums import total_from_bytes
from veilsum_privacy.securesum.check_words import Signed, answer_words
from veilsum_privacy.securesum.context import parse_assignment
from veilsum_privacy.securesum.written_sums import opened_to_bytes
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb


def release_entries(database: Database, study: bytes) -> list[ReleaseEntry]:
    """What the manifest of a study's result says of its releases, in order; no signatures of those that have none."""
    columns = (RELEASES.c.round, RELEASES.c.label, RELEASES.c.digest, RELEASES.c.proof)
    query = select(*columns).where(RELEASES.c.study == study).order_by(RELEASES.c.round)
    with database.reading() as connection:
        rows = connection.execute(query).all()
    return [ReleaseEntry(row.round, row.label, bytes(row.digest), _signatures(row.proof)) for row in rows]


def _signatures(proof: str | None) -> dict[str, bytes]:
    """Who signed for a release of an earlier version of the protocol."""
    kept = None if proof is None else read_proof(proof)
    return kept.signatures if isinstance(kept, FormerProof) else {}


def proof_file(database: Database, study: bytes, name: str) -> bytes:
    """A file of the proof of a finished study, by its name below the result's directory.

    Raises:
        HostileInput: there is none of that name, or the study was run by software that kept no proof.
    """
    number = round_of(name)
    with database.reading() as connection:
        if name == STUDY_FILE:
            return _study(connection, study).to_bytes()
        if number is not None:
            release, total = _release(connection, study, number)
            if name == round_file(number):
                return release.to_bytes()
            if total is not None:
                return total
    raise HostileInput("The proof of a result has no file of that name.")


def release_object(database: Database, agreed: AgreedStudy, roster: int, number: int, shown: bytes = b"") -> bytes:
    """A released round as members of a study that declares its steps fetch it.

    Args:
        roster: how many members it has.
        shown: its opened sum in few bytes, where that is at hand; it is opened once more where not.

    Raises:
        HostileInput: there is none.
    """
    with database.reading() as connection:
        release, total = _release(connection, agreed.digest, number, total=not shown)
    if not isinstance(release, ReleaseProof) or total is None:
        raise HostileInput("The study has no such release of this version of the protocol.")
    assignment, context = parse_assignment(release.assignment), release.receipts[0].read().context
    plan = agreed.task(assignment.label).plan(roster, len(assignment.names)).encoding
    if not shown:
        summed = total_from_bytes(total, plan)
        del total  # what is as long as the sum is not held twice
        shown = opened_to_bytes(summed, plan, context, release.consents)
    signed = release.receipts, release.countersigned, _sum_of(release.fixed), release.fixed.signature
    fixed = fixed_object(*signed)
    for receipt in fixed.receipts:
        receipt.ClearField("consent")  # follows from the consent itself
    modulus = plan.ring.plain_modulus
    members = [
        pb.MemberConsent(words=answer_words(body, modulus), consent=consent, signature=agreed)
        for body, consent, agreed in zip(release.checks, release.consents, release.agreed, strict=True)
    ]
    return pb.ReleaseObject(
        assignment=release.assignment,
        fixed=fixed,
        certificate=release.coordinator,
        members=members,
        total=shown,
    ).SerializeToString()


def _study(connection: Connection, study: bytes) -> StudyProof:
    row = connection.execute(select(STUDIES.c.object, STUDIES.c.roster).where(STUDIES.c.digest == study)).one()
    if row.roster is None:
        raise HostileInput("The study has no proof: it has not finished, or was run by software that kept none.")
    signed = pb.StudyObject.FromString(row.object)
    return StudyProof(signed.study, signed.signature, signed.certificate, tuple(parse_roster(row.roster)))


def _release(
    connection: Connection, study: bytes, number: int, *, total: bool = True
) -> tuple[ReleaseProof | FormerReleaseProof, bytes | None]:
    """The proof of a release, and its sum, of which earlier versions of the protocol kept none; empty unless asked for."""
    release = connection.execute(select(RELEASES).where(RELEASES.c.study == study, RELEASES.c.round == number)).first()
    if release is None or release.proof is None:
        raise HostileInput("The study has no such release, or it was opened by software that kept no proof.")
    found = connection.execute(select(SUMS).where(SUMS.c.study == study, SUMS.c.round == number)).one()
    kept, receipts, assignment = read_proof(release.proof), read_receipts(found.receipts), parse_assignment(found.assignment)
    context = receipts[0].read().context
    given = read_consents(connection, context)
    consents = tuple(given[name] for name in assignment.names)
    if isinstance(kept, FormerProof):
        values = np.frombuffer(read_release(connection, study, number, release.values), dtype="<i8").astype(np.int64)
        shown = kept.countersigned, kept.coordinator
        return FormerReleaseProof(assignment.to_bytes(), kept.keys, tuple(receipts), *shown, consents, values), None
    summed = read_total(connection, study, number, found.total) if total else b""
    agreed = read_agreed(connection, study, number)
    fixed = _sum_of(kept.fixed)
    proof = ReleaseProof(
        assignment=assignment.to_bytes(),
        receipts=tuple(receipts),
        countersigned=kept.countersigned,
        coordinator=kept.coordinator,
        fixed=kept.fixed,
        checks=check_bodies(study, assignment, context, receipts, fixed, [words for words, _ in read_answers(found.answers)]),
        consents=consents,
        agreed=tuple(agreed[name] for name in assignment.names),
        total=summed,
    )
    return proof, summed


def _sum_of(fixed: Signed) -> bytes:
    """The digest of a sum in the coordinator's own word on it."""
    return bytes.fromhex(json.loads(fixed.body)["sum"])
