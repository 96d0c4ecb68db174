"""What becomes of studies that are over: a copy for an archive, and deletion. The mirror, which is a ledger, is never touched.

A study can be deleted once it is over and has expired. Until then a site may not have heard of its end, and its analyst could
submit the same signed study again; afterwards no site would take it.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToJson
from sqlalchemy import delete, func, select

from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_coordinator.results.proof import proof_file
from veilsum_coordinator.storage.journal import STUDIES
from veilsum_coordinator.storage.long_values import RELEASE_PIECES, SUM_PIECES
from veilsum_coordinator.storage.records import CONSENTS, MEMBERS, PROGRESS, RELEASES, ROUNDS, SUMS
from veilsum_node.database import Database, open_database
from veilsum_node.errors import HostileInput, Misuse, StateError
from veilsum_node.identity.certificate import moment
from veilsum_node.identity.files import write_new
from veilsum_privacy.results.proof_files import STUDY_FILE, sum_file
from veilsum_privacy.results.release_names import FOLDER, round_file
from veilsum_privacy.study.study import parse_study
from veilsum_proto import federation_pb2 as pb

OUTCOME = "outcome.json"
"""File of an archived study that holds what the coordinator showed of it."""

PROOFS = "proofs"
"""Folder beside the results in which proofs of deleted studies are kept."""

_OF_A_STUDY = (SUM_PIECES, RELEASE_PIECES, CONSENTS, SUMS, RELEASES, MEMBERS, ROUNDS, PROGRESS)


@dataclass(frozen=True)
class HeldStudy:
    """A study that the coordinator holds.

    Attributes:
        digest: its digest, 32 bytes.
        name: as its analyst named it.
        analyst: its certified name.
        submitted, expires: Unix seconds.
        phase: the last one; the study is over unless ``running``.
        running: whether it is not over.
        size: bytes of its released sums in the journal, and of its results.
    """

    digest: bytes
    name: str
    analyst: str
    submitted: int
    expires: int
    phase: str
    running: bool
    size: int


@contextmanager
def open_holdings(config: CoordinatorConfig) -> Iterator[tuple[Database, Path]]:
    """The coordinator's database, to write to beside the running coordinator, and the folder of its results.

    Raises:
        StateError: the database does not exist.
    """
    place = config.database_place
    if "://" not in place and not Path(place).exists():
        raise StateError(f"The database {place} does not exist.", "It is made when the coordinator starts for the first time.")
    with open_database(place) as database:
        yield database, config.state / "results"


def held_studies(database: Database, results: Path) -> list[HeldStudy]:
    """All studies that a coordinator holds, oldest first, but for those of a version that wrote them in another way."""
    columns = (STUDIES.c.digest, STUDIES.c.object, STUDIES.c.analyst, STUDIES.c.submitted, STUDIES.c.phase, STUDIES.c.status)
    with database.reading() as connection:
        rows = connection.execute(select(*columns).order_by(STUDIES.c.submitted, STUDIES.c.digest)).all()
        sizes: dict[bytes, int] = {}
        for table, length in (
            (RELEASES, func.length(RELEASES.c["values"])),
            (RELEASE_PIECES, func.length(RELEASE_PIECES.c.data)),
            (SUMS, func.coalesce(SUMS.c.size, 0)),
        ):
            for study, size in connection.execute(select(table.c.study, length)):
                sizes[bytes(study)] = sizes.get(bytes(study), 0) + int(size)
    found = []
    for row in rows:
        try:
            study, digest = parse_study(pb.StudyObject.FromString(row.object).study), bytes(row.digest)
        except HostileInput:
            continue
        files = [path for path in (results / digest.hex()).rglob("*") if path.is_file()]
        size = sizes.get(digest, 0) + sum(path.stat().st_size for path in files)
        found.append(
            HeldStudy(digest, study.name, row.analyst, row.submitted, study.expires, row.phase, row.status is None, size)
        )
    return found


def find_study(studies: Sequence[HeldStudy], wanted: str) -> HeldStudy:
    """The study whose digest begins with these hexadecimal digits.

    Raises:
        Misuse: none or several do.
    """
    matching = [item for item in studies if wanted and item.digest.hex().startswith(wanted.lower())]
    if len(matching) != 1:
        found = f"{len(matching)} studies of this coordinator begin" if matching else "No study of this coordinator begins"
        raise Misuse(f"{found} with {wanted!r}.", "`veilsum study list` shows their IDs.")
    return matching[0]


def archive_study(database: Database, results: Path, study: HeldStudy, target: Path) -> Path:
    """Copy all that is to be kept of a study that is over: result, proof, and what was shown of it.

    `veilsum study verify` takes the folder of a study that has finished. Nothing is deleted.

    Args:
        results: the folder of its results.
        target: a folder in which one is made for it.

    Returns:
        The folder that was made.

    Raises:
        StateError: the study is not over, the folder exists, or it cannot be written.
    """
    if study.running:
        raise StateError(f"The study {study.name} is not over.", "Abort it first, or wait for its end.")
    place = target / f"{study.digest.hex()[:16]}"
    partial = target / f".{place.name}.{os.getpid()}"
    if os.path.lexists(place):
        raise StateError(f"{place} exists already.", "Name another folder.")
    try:
        partial.mkdir(parents=True, mode=0o700)
        (partial / FOLDER).mkdir()
        source = results / study.digest.hex()
        for path in sorted(source.iterdir()) if source.is_dir() else ():
            if path.is_file() and not path.name.startswith("."):
                shutil.copyfile(path, partial / path.name)
        rounds = _rounds(database, study.digest)
        for name in (STUDY_FILE, *(file(number) for number in rounds for file in (round_file, sum_file))):
            try:
                data = proof_file(database, study.digest, name)
            except HostileInput:  # software before 0.2 kept none, and before version 6 of the protocol no sum
                continue
            write_new(partial / name, data, mode=0o600)
        write_new(partial / OUTCOME, _outcome(database, study.digest), mode=0o600)
        partial.rename(place)
    except OSError as error:
        raise StateError(f"{place} cannot be written ({error.strerror}).", "Check the folder and the disk.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def delete_study(database: Database, results: Path, study: HeldStudy, now: int, *, proofs: Path | None = None) -> Path | None:
    """Delete a study that is over and has expired: the signed study, its sums, decisions, result and checkpoints.

    The mirror stays as it is: its receipts say that and what sums were released, as every site's ledger does. A running
    coordinator notices within some seconds.

    Args:
        results: the folder of its results.
        now: Unix seconds.
        proofs: folder that keeps its proof; None to keep none.

    Returns:
        The folder of the proof that was kept.

    Raises:
        StateError: it is not over, or has not expired; or its proof cannot be kept.
    """
    if study.running:
        raise StateError(f"The study {study.name} is not over.", "Abort it first, or wait for its end.")
    if now < study.expires:
        raise StateError(
            f"The study {study.name} has not expired: a site may still have to hear of its end.",
            f"It can be deleted from {moment(study.expires)} on.",
        )
    kept = None if proofs is None else archive_study(database, results, study, proofs)
    shutil.rmtree(
        results / study.digest.hex(), ignore_errors=True
    )  # first, so that a deletion that is cut off can be repeated
    if (results / study.digest.hex()).exists():
        raise StateError(f"{results / study.digest.hex()} cannot be deleted.", "Check the folder's owner.")
    with database.transaction() as connection:
        for table in _OF_A_STUDY:
            connection.execute(delete(table).where(table.c.study == study.digest))
        connection.execute(delete(STUDIES).where(STUDIES.c.digest == study.digest))
    return kept


def retire(database: Database, results: Path, now: int, days: int, *, proofs: Path | None) -> list[HeldStudy]:
    """Delete every study that expired ``days`` ago or earlier; returns those that were deleted."""
    ended = due_studies(held_studies(database, results), now, days)
    for item in ended:
        delete_study(database, results, item, now, proofs=proofs)
    return ended


def due_studies(studies: Sequence[HeldStudy], now: int, days: int) -> list[HeldStudy]:
    """Those of some studies that are over and expired ``days`` ago or earlier."""
    return [item for item in studies if not item.running and now >= item.expires + 86400 * days]


def _rounds(database: Database, study: bytes) -> list[int]:
    with database.reading() as connection:
        query = select(RELEASES.c.round).where(RELEASES.c.study == study).order_by(RELEASES.c.round)
        return [int(number) for number in connection.scalars(query)]


def _outcome(database: Database, study: bytes) -> bytes:
    with database.reading() as connection:
        status = connection.scalar(select(STUDIES.c.status).where(STUDIES.c.digest == study))
    return MessageToJson(pb.StudyStatus.FromString(status or b"")).encode() + b"\n"
