"""What the coordinator's journal holds for the proof of a finished study's result, in the form in which it is handed out.

Nothing is kept twice: releases, receipts and consents stay where they are, and a file of a proof is put together when it is
asked for.
"""

from __future__ import annotations

import numpy as np
from sqlalchemy import Connection, select

from veilsum_coordinator.storage.journal import STUDIES
from veilsum_coordinator.storage.messages import parse_roster
from veilsum_coordinator.storage.records import RELEASES, SUMS, KeptProof, read_consents, read_receipts
from veilsum_coordinator.storage.releases import read_release
from veilsum_node.database import Database
from veilsum_node.errors import HostileInput
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, ReleaseProof, StudyProof, round_of
from veilsum_privacy.securesum.context import parse_assignment
from veilsum_proto import federation_pb2 as pb


def release_entries(database: Database, study: bytes) -> list[ReleaseEntry]:
    """What the manifest of a study's result says of its releases, in order; no signatures of those that have none."""
    columns = (RELEASES.c.round, RELEASES.c.label, RELEASES.c.digest, RELEASES.c.proof)
    query = select(*columns).where(RELEASES.c.study == study).order_by(RELEASES.c.round)
    with database.reading() as connection:
        rows = connection.execute(query).all()
    kept = [None if row.proof is None else KeptProof.parse(row.proof) for row in rows]
    return [
        ReleaseEntry(row.round, row.label, bytes(row.digest), {} if proof is None else proof.signatures)
        for row, proof in zip(rows, kept, strict=True)
    ]


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
            return _release(connection, study, number).to_bytes()
    raise HostileInput("The proof of a result has no file of that name.")


def _study(connection: Connection, study: bytes) -> StudyProof:
    row = connection.execute(select(STUDIES.c.object, STUDIES.c.roster).where(STUDIES.c.digest == study)).one()
    if row.roster is None:
        raise HostileInput("The study has no proof: it has not finished, or was run by software that kept none.")
    signed = pb.StudyObject.FromString(row.object)
    return StudyProof(signed.study, signed.signature, signed.certificate, tuple(parse_roster(row.roster)))


def _release(connection: Connection, study: bytes, number: int) -> ReleaseProof:
    release = connection.execute(select(RELEASES).where(RELEASES.c.study == study, RELEASES.c.round == number)).first()
    if release is None or release.proof is None:
        raise HostileInput("The study has no such release, or it was opened by software that kept no proof.")
    total = connection.execute(
        select(SUMS.c.assignment, SUMS.c.receipts).where(SUMS.c.study == study, SUMS.c.round == number)
    ).one()
    kept, receipts = KeptProof.parse(release.proof), read_receipts(total.receipts)
    consents = read_consents(connection, parse_receipt(receipts[0].body).context)
    return ReleaseProof(
        assignment=bytes(total.assignment),
        keys=kept.keys,
        receipts=tuple(receipts),
        countersigned=kept.countersigned,
        coordinator=kept.coordinator,
        consents=tuple(consents[name] for name in parse_assignment(total.assignment).names),
        values=np.frombuffer(read_release(connection, study, number, release.values), dtype="<i8").astype(np.int64),
    )
