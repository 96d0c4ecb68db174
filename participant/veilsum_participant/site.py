"""What every part of a participant's protocol needs: identity, policy, store, ledger, data, clock and randomness.

:class:`Site` performs no network I/O; :mod:`veilsum_participant.session.client` does, and in-process simulation calls the same
code.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from veilsum_node.database import Database
from veilsum_node.errors import Refusal, RefusalCode, StateError, VeilsumError
from veilsum_node.identity import Credentials, key_fingerprint
from veilsum_node.identity.certificate import load_certificate, p256_key
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_participant.store.studies import load_enrolments, open_studies
from veilsum_participant.store.tables import create_tables
from veilsum_privacy.backup.restored import Mark, lift_mark, read_mark
from veilsum_privacy.ledger import Ledger
from veilsum_privacy.securesum import NONCE_BYTES

if TYPE_CHECKING:
    from veilsum_node.identity.directory import Directory
    from veilsum_participant.datasets import Datasets, Reading, Snapshot
    from veilsum_participant.settings.config import ParticipantConfig
    from veilsum_participant.studies import Studies
    from veilsum_privacy.computation.declared import DeclaredStudy, DeclaredTask, Encode
    from veilsum_privacy.mechanism.records import Records
    from veilsum_privacy.study.schema import DatasetSchema
    from veilsum_privacy.study.study import Study


class SiteStep(StrEnum):
    """A part of a round that takes a site time."""

    COMPUTE = "compute"
    ENCRYPT = "encrypt"
    UPLOAD = "upload"
    ANSWER = "answer"
    CONSENT = "consent"


class AttemptOutcome(StrEnum):
    """How an attempt at a round ended for a site."""

    RELEASED = "released"
    GIVEN_UP = "given-up"
    REFUSED = "refused"


class Stage(StrEnum):
    """What could not be decoded."""

    MESSAGE = "message"
    CHECK = "check"


class SiteObserver:
    """What a site's protocol tells whoever counts; a subclass overrides what it wants to know.

    It is called in the midst of the protocol's work, so it only counts and never waits.
    """

    @contextmanager
    def timed(self, step: SiteStep) -> Iterator[None]:
        """Tell how long the block took, if it did what it should."""
        start = time.perf_counter()
        yield
        self.took(step, time.perf_counter() - start)

    def took(self, step: SiteStep, seconds: float) -> None:
        """A step of a round was done."""

    def ended(self, method: str, outcome: AttemptOutcome, count: int = 1) -> None:
        """Attempts at rounds of a method ended."""

    def refused(self, codes: Collection[RefusalCode]) -> None:
        """The site refused something, for these reasons."""

    def failed(self) -> None:
        """A round's computation failed on the site's records; it took part all the same."""

    def cut(self) -> None:
        """A round's sum was more than the study's ``max_records`` records can reach, and was cut off there."""

    def contributed(self, size: int) -> None:
        """A contribution was uploaded; ``size`` in bytes."""

    def unreadable(self, stage: Stage) -> None:
        """Something that the coordinator sent could not be decoded."""

    def verification(self, succeeded: bool) -> None:
        """The ledger was verified."""

    def session_opened(self, send: Callable[..., None]) -> None:
        """The session with the coordinator is open; ``send`` reports samples of shared metrics in it."""

    def session_ended(self) -> None:
        """The session with the coordinator has ended."""

    def held_elsewhere(self, held: bool) -> None:
        """A session was refused, or not, because another process with this identity has one."""

    def heard(self) -> None:
        """The coordinator said something."""

    def turned(self) -> None:
        """The client's loop turned."""


LOG = logging.getLogger("veilsum.participant")

ELSEWHERE = (
    "Receipts of this site were signed with a ledger that is not this one: another host runs, or ran, with a copy of this"
    " state. Stop that one for good first; see docs/moving.md."
)
RESTORED = (
    "This site was restored from a backup, or another host ran with a copy of its state. It joins no study and releases"
    " nothing until its spending since then is confirmed."
)
COMPLETE = (
    "Run `veilsum ledger recover --from` with another site's export; or, to take the coordinator's word for it,"
    " `veilsum ledger recover --trust-coordinator`."
)


def local_studies() -> Studies:
    """What traces tasks in this process."""
    from veilsum_participant.local_studies import LocalStudies  # all tasks, which a participant's guard does without

    return LocalStudies()


@dataclass
class Site:
    """A participant's dependencies.

    Attributes:
        observer: told what happens; nobody unless something watches the site.
        noise_random: where the noise is drawn from; apart from ``random`` so that a test can repeat the noise alone.
        ledger_fault: what is wrong with the ledger by its last verification; nothing is released while there is something.
        ledger_known: set unless the verification of the start is still under way, which enrolments and contributions wait for.
        mirror_read: set once the coordinator's mirror was read and settled by this process.
        elapsed: seconds that pass whatever becomes of the clock, from the time of day at the start; None stands for the clock.
        patience: how long a payload that is drawn waits, in seconds, for a disk that takes nothing.
        unmatched: of datasets that were held against the site's own schema at the start, the largest share of a column's cells
            that match nothing in it.
        directory: what the pins of ``config`` come from, if it is a confirmed directory.
        nonce: the session nonce, drawn when the process starts; a restarted process has another.
        reads_only: whether the database was opened to read; then nothing is made or brought up to date in it.
        reading: makes what reads the records.
        tracing: makes what traces the tasks of studies; by default this process.
    """

    config: ParticipantConfig
    credentials: Credentials
    database: Database = field(repr=False)
    ledger: Ledger
    clock: Callable[[], int]
    random: RandomSource
    noise_random: RandomSource = SYSTEM_RANDOM
    observer: SiteObserver = field(default_factory=SiteObserver)
    ledger_fault: str = ""
    ledger_known: threading.Event = field(default_factory=threading.Event)
    mirror_read: bool = False
    patience: float = 0.0
    elapsed: Callable[[], int] | None = None
    directory: Directory | None = None
    reads_only: bool = False
    unmatched: dict[str, float] = field(default_factory=dict)
    nonce: bytes = field(init=False)
    _making: threading.Lock = field(init=False, repr=False, default_factory=threading.Lock)
    _datasets: Datasets | None = field(init=False, repr=False, default=None)
    _studies: Studies | None = field(init=False, repr=False, default=None)
    reading: Callable[[], Datasets] = field(kw_only=True, repr=False)
    tracing: Callable[[], Studies] = field(kw_only=True, default=local_studies, repr=False)

    def __post_init__(self) -> None:
        self.nonce = self.random.bytes(NONCE_BYTES)
        self.ledger_known.set()
        if not self.reads_only:
            create_tables(self.database)

    @property
    def datasets(self) -> Datasets:
        """What reads the records: made when a study asks for some."""
        with self._making:
            self._datasets = self._datasets or self.reading()
            return self._datasets

    @datasets.setter
    def datasets(self, found: Datasets) -> None:
        self._datasets = found

    @property
    def studies(self) -> Studies:
        """What traces the tasks of studies: made when there is one."""
        with self._making:
            self._studies = self._studies or self.tracing()
            return self._studies

    @studies.setter
    def studies(self, found: Studies) -> None:
        self._studies = found

    def forget(self, digest: bytes) -> None:
        """Let go of what is remembered for a study that is over."""
        for made in (self._datasets, self._studies):
            if made is not None:
                made.forget(digest)

    def close(self) -> None:
        """End what reads and traces, and close the database."""
        for made in (self._datasets, self._studies):
            if made is not None:
                made.close()
        self.database.close()

    def agreed(self, data: bytes) -> DeclaredStudy:
        """As :meth:`.Studies.agreed`."""
        return self.studies.agreed(data)

    @property
    def name(self) -> str:
        """The certified name."""
        return self.credentials.identity.name

    def steady(self) -> int:
        """The time that deadlines of attempts go by, Unix seconds."""
        return (self.elapsed or self.clock)()

    def check_ledger(self) -> None:
        """Insist that nothing was wrong with the ledger when it was last verified (at the start, wait for that), and that a
        restored one was completed.

        Raises:
            Refusal: something was, or it was not; what a release would cost could not be proven.
        """
        self.ledger_known.wait()
        if self.ledger_fault:
            message = f"This site's ledger does not verify ({self.ledger_fault}): it joins no study and releases nothing."
            raise Refusal(RefusalCode.LEDGER, message, "Stop the participant and run `veilsum ledger verify`.")
        if self.restored() is not None and not self.lift_trusted():
            raise Refusal(RefusalCode.LEDGER, RESTORED, COMPLETE)

    def restored(self) -> Mark | None:
        """The mark of a restored state whose ledger nobody has vouched for yet; None without one."""
        with self.database.reading() as connection:
            return read_mark(connection)

    def lift_trusted(self) -> bool:
        """Lift the mark if the operator trusts the mirror and this process has read it. Returns whether none stands now."""
        with self.database.transaction() as connection:
            mark = read_mark(connection)
            if mark is not None and mark.trusted and self.mirror_read:
                lift_mark(connection)
                LOG.warning("the restored ledger was completed from the coordinator's mirror, as the operator decided")
                mark = None
        return mark is None

    def renew(self, credentials: Credentials) -> None:
        """Show and sign with renewed credentials from here on; only between sessions, when nothing is being answered.

        Raises:
            StateError: a new key cannot be taken while studies are open, or not be named in the ledger.
        """

        def run(work: Callable[[Connection], object]) -> None:
            with self.database.transaction() as connection:
                check_key(connection, credentials)
                work(connection)

        self.ledger.renew(credentials, run)
        self.credentials = credentials

    def budget_delta(self, dataset: str, connection: Connection | None = None) -> float | None:
        """Delta of the budget that a dataset draws on; None where none is set or the dataset is not offered."""
        if dataset not in self.config.datasets:
            return None
        budget = self.ledger.budget(self.config.population(dataset), connection)
        return None if budget is None else budget.delta

    def records(self, dataset: str, schema: DatasetSchema) -> Records:
        """The dataset under the study's schema; read once for each schema."""
        return self.read(dataset, schema).records

    def read(self, dataset: str, schema: DatasetSchema) -> Snapshot:
        """:meth:`records`, and of a query what they were then."""
        return self.datasets.read(dataset, self.config.datasets[dataset], schema)

    def batches(self, dataset: str, schema: DatasetSchema, *, by_subject: bool, seconds: float = math.inf) -> Reading:
        """As :meth:`.Datasets.batches`."""
        offered = self.config.datasets[dataset]
        return self.datasets.batches(dataset, offered, schema, by_subject=by_subject, seconds=seconds)

    def whole(self, dataset: str, schema: DatasetSchema, *, seconds: float = math.inf) -> Reading:
        """:meth:`read` in one batch."""
        return self.datasets.whole(dataset, self.config.datasets[dataset], schema, seconds=seconds)

    def hold_against_schemas(self) -> None:
        """Find what share of which dataset's cells matches nothing in the site's own schema of it, where it states one.

        Raises:
            DataError, Unavailable, ConfigurationError: a schema, or the dataset, cannot be read.
        """
        for name, offered in self.config.datasets.items():
            if offered.schema_file is not None:
                self.unmatched[name] = self.datasets.unmatched(name, offered)

    def withheld(self, dataset: str) -> bool:
        """Whether more of a dataset's cells match nothing than the site wants to take part with."""
        offered = self.config.datasets.get(dataset)
        most = None if offered is None else offered.most_unmatched
        return most is not None and self.unmatched.get(dataset, 0.0) > most

    def structure_faults(self, dataset: str, schema: DatasetSchema) -> Iterator[Refusal]:
        """As :meth:`.Datasets.structure_faults`."""
        return self.datasets.structure_faults(dataset, self.config.datasets[dataset], schema)

    def encoder_faults(self, study: Study) -> Iterator[Refusal]:
        """Whether the site has the program that a study names, and it treats every made-up record by itself."""
        try:
            self.encoder(study)
        except Refusal as refusal:
            yield refusal

    def hold_weights(self, task: DeclaredTask) -> None:
        """Have the frozen weights of a task's model at hand, where it has any.

        Raises:
            Refusal: the site has no such file, or it does not hold what the model needs.
        """
        if not task.terms.weights:
            return
        try:
            self.datasets.hold_weights(task.study.dataset, self.config.encoders, task, self.config.device)
        except VeilsumError as error:
            raise Refusal(RefusalCode.TASK, error.message, error.advice) from error

    def encoder(self, study: Study) -> Encode | None:
        """The program that a study names, from this site's own file; None where it names none.

        Raises:
            Refusal: the site has no such program, or it cannot be loaded.
        """
        from veilsum_privacy.study.encoder import Program

        if not isinstance(study.encoder, Program):
            return None
        return self.datasets.encoder(study.dataset, self.config.encoders, study.encoder, self.config.device)


def check_key(connection: Connection, credentials: Credentials) -> None:
    """Check that the key is the one that every open study knows this site by.

    Raises:
        StateError: it is a new one.
    """
    for row in open_studies(connection):
        enrolled = load_enrolments(row.enrolment)[0].certificate
        known = key_fingerprint(p256_key(load_certificate(enrolled).public_key(), "enrolled certificate"))
        study = row.digest.hex()[:12]
        if known != credentials.signing_key.fingerprint:
            raise StateError(
                f"The identity holds a new key, but the open study {study} knows this site by the key {known[:16]}.",
                "Keep the former key and its certificate until the study has ended. If that key is lost, leave the study with"
                f" `veilsum participant leave {study}`.",
            )
