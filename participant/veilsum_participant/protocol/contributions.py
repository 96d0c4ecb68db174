"""From an assignment to a payload: check, reserve, compute.

Whatever is checked is checked without records, and the budget is reserved before any is read. After that only a payload
leaves (:mod:`.payloads`), whatever the records are: a computation that fails contributes what a site without records would,
and pays for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.database import after_commit
from veilsum_node.errors import HostileInput, Misuse, Refusal, RefusalCode
from veilsum_node.telemetry.logs import about
from veilsum_participant.datasets import Reading
from veilsum_participant.protocol.budgets import record_refused_release
from veilsum_participant.protocol.cohorts import cohort_faults
from veilsum_participant.protocol.limits import FACTORS, count_faults, kept_weights, sum_weights, weight_faults
from veilsum_participant.protocol.open_studies import OpenStudy, check_certificates, load_open_study
from veilsum_participant.protocol.payloads import Assigned, Computed, Payload, resume_payload, seal_payload
from veilsum_participant.protocol.policy import mask_faults, member_faults, noise_faults, refuse
from veilsum_participant.site import LOG, AttemptOutcome, Site, SiteStep
from veilsum_participant.store.attempts import (
    OPEN,
    AttemptState,
    add_attempt,
    attempts_in,
    change_attempt,
    find_attempt,
    finish_attempt,
)
from veilsum_participant.store.kept import find_kept, paid_state
from veilsum_participant.store.studies import StudyState, change_study, find_method
from veilsum_privacy.computation.contribution import Elsewhere, SitePlace, contribute, own_rows
from veilsum_privacy.computation.declared import DeclaredTask
from veilsum_privacy.computation.terms import opaque_names
from veilsum_privacy.ledger import Kind, Mechanism, Reservation
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.securesum.context import (
    Assignment,
    broadcast_digest,
    context_digest,
    decode_broadcast,
    encode_broadcast,
)
from veilsum_privacy.securesum.graph import mask_graph


def give_up_open(connection: Connection, site: Site, study: bytes, attempt: int | None = None) -> None:
    """Tombstone attempts that never got consent, erase all that they held, free their reservations; one transaction."""
    rows = [row for row in attempts_in(connection, OPEN, study) if attempt in (None, row.attempt)]
    for row in rows:
        finish_attempt(connection, study, row.attempt, AttemptState.TOMBSTONE)
        change_attempt(connection, study, row.attempt, consent=None, answer=None, answer_signature=None)
        if site.ledger.entries(kind=Kind.RESERVE, context=row.context, connection=connection):  # not of a ledger that was cut
            site.ledger.free(connection, row.context)
    method = find_method(connection, study) if rows else None
    if method is not None:
        after_commit(connection, lambda: site.observer.ended(method, AttemptOutcome.GIVEN_UP, len(rows)))


@dataclass(frozen=True)
class _Ready:
    """All that a contribution is computed from, beside the records.

    Attributes:
        arrays: what was broadcast.
        kept: the vector that the site kept from an earlier attempt, its noise in it; None to compute one.
    """

    arrays: Mapping[str, Floats] = field(repr=False)
    place: SitePlace = field(repr=False)
    kept: Integers | None = field(repr=False)


class Contributions:
    """The part of a round before consent."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def on_assignment(self, key: bytes, assignment: Assignment, broadcast: bytes, *, own: bool = False) -> Payload:
        """Answer an assignment with a payload; the same assignment again gets the same bytes.

        Args:
            assignment: as it was read.
            broadcast: encoded, as it was fetched, or ``own``: as the site computed it, and held the assignment to its digest.

        Raises:
            Refusal: the assignment is wrong, the ledger at fault, or policy or budget against it, all of which is found
                before a record is read; or the attempt's time ran out while it was computed.
        """
        site = self._site
        site.check_ledger()
        with site.database.reading() as connection:
            opened = load_open_study(connection, site, key)
            row = find_attempt(connection, key, assignment.attempt)
            checked = self._check(connection, opened, assignment, None if own else broadcast, resumed=row is not None)
            if row is not None and site.steady() >= row.deadline:
                raise Refusal(RefusalCode.ROUND, "The attempt's deadline has passed, by this machine's clock.")
        if row is not None:
            return resume_payload(row, checked)
        ready = self._prepare(opened, checked, broadcast)
        try:
            with site.database.transaction() as connection:
                self._reserve(connection, opened, checked)
        except Refusal as refusal:
            self._record_refusal(opened, checked, refusal)
            raise
        with site.observer.timed(SiteStep.COMPUTE):
            computed = self._compute(opened, checked, ready)
        with site.observer.timed(SiteStep.ENCRYPT):
            return seal_payload(site, opened, checked, computed)

    def give_up(self, key: bytes, attempt: int) -> None:
        """The attempt is over before consent. Idempotent; an attempt with consent stays as it is."""
        with self._site.database.transaction() as connection:
            give_up_open(connection, self._site, key, attempt)
        self._site.database.scrub()

    def expire(self) -> None:
        """Give up attempts past their deadline."""
        site = self._site
        now = site.steady()
        with site.database.transaction() as connection:
            for row in attempts_in(connection, OPEN):
                if now >= row.deadline:
                    fields = about("given-up", label=row.label, digest=row.study, round=row.round, attempt=row.attempt)
                    LOG.warning("attempt %d of study %s passed its deadline", row.attempt, row.study.hex()[:12], extra=fields)
                    give_up_open(connection, site, row.study, row.attempt)

    def _check(
        self, connection: Connection, opened: OpenStudy, assignment: Assignment, broadcast: bytes | None, *, resumed: bool
    ) -> Assigned:
        site = self._site
        row, study = opened.row, opened.study
        if row.status != StudyState.READY:
            raise Refusal(RefusalCode.KEYS, "The seeds that this site shares with others are not complete.")
        if not resumed and (assignment.attempt <= row.attempt or assignment.round < row.round):
            raise Refusal(RefusalCode.ROUND, "Round and attempt numbers only increase; this one was seen before.")
        if not resumed and assignment.deadline <= site.clock():  # a time of day; what is left of it passes, whatever the clock
            raise Refusal(RefusalCode.ROUND, "The attempt's deadline has passed, by this machine's clock.")
        if broadcast is not None and broadcast_digest(broadcast) != assignment.broadcast:
            raise Refusal(RefusalCode.CONTEXT, "The broadcast is not the one that the assignment names.")
        roster = opened.roster(site)
        names = assignment.names
        if list(names) != [name for name in roster.names if name in set(names)] or site.name not in names:
            raise Refusal(RefusalCode.CONTEXT, "The cohort is not a part of the roster, in its order, with this site in it.")
        if not resumed and dict(assignment.cohort)[site.name] != site.nonce:
            raise Refusal(RefusalCode.CONTEXT, "The assignment was made for an earlier session of this site.")
        graph = mask_graph(roster, study.privacy)
        if not set(names) & graph.neighbours(site.name) <= set(opened.seeds):
            raise Refusal(RefusalCode.KEYS, "The cohort holds a member without a pair seed.")
        members = [roster.member(name) for name in names]
        check_certificates(members, site)
        policy = site.config.policy
        refuse([*member_faults(members, study, policy, site.name), *mask_faults(graph, members, study, policy, site.name)])
        try:
            task = opened.agreed.task(assignment.label)
            plan = task.plan(len(roster.members), len(names))
        except HostileInput as error:
            raise Refusal(RefusalCode.TASK, error.message) from error
        except Misuse as error:
            raise Refusal(RefusalCode.NOISE, error.message) from error
        weights = sum_weights(task, names, None)  # of a weighted sum they are not known before its broadcast is read
        refuse(cohort_faults(connection, opened.digest, study, site.config, members, site.name, weights))
        counts = count_faults(connection, opened, assignment, policy, resumed=resumed)
        refuse([*noise_faults(plan.noise, members, policy, site.name), *counts])
        context = context_digest(plan, roster, assignment)
        return Assigned(assignment, roster, graph, plan, context)

    def _prepare(self, opened: OpenStudy, checked: Assigned, broadcast: bytes) -> _Ready:
        """Gather all that the round's task takes beside records, and try it without any.

        Raises:
            Refusal: something is missing or wrong; no record had a part in that.
        """
        site, study, task = self._site, opened.study, checked.plan.task
        declaration = task.declaration
        try:
            arrays = decode_broadcast(broadcast, task.single)
        except HostileInput as error:
            raise Refusal(RefusalCode.CONTEXT, error.message) from error
        origin = task.kept_origin(checked.assignment.broadcast)
        with site.database.reading() as connection:
            kept = find_kept(connection, opened.digest, declaration.label) if declaration.keep else None
            sources = [] if declaration.source is None else [declaration.source]
            found = {label: find_kept(connection, opened.digest, label) for label in sources}
            state = paid_state(connection, opened.digest, declaration.label)
        if kept is not None and kept.origin != origin:
            raise Refusal(
                RefusalCode.CONTEXT, "The site's kept statistic of this task was computed from a different broadcast."
            )
        kept_of = {label: vector.own for label, vector in found.items() if vector is not None}
        if missing := [label for label in sources if label not in kept_of]:
            raise Refusal(RefusalCode.TASK, f"This site kept no statistic of the task {missing[0]!r}.")
        participants, encode = study.participants, site.encoder(study)
        site.hold_weights(task)
        asks = encode is not None or task.terms.kind == "training"
        elsewhere = self._elsewhere(opened, checked) if asks else None
        place = SitePlace(
            participants.index(site.name),
            kept_of,
            encode if elsewhere is None else elsewhere.encode(encode),
            tuple(participants.index(name) for name in checked.assignment.names),
            decode_broadcast(state or b""),
            site.noise_random,
            most_records=site.config.datasets[study.dataset].most_records,
            evaluations=site.studies.evaluations(task),
            elsewhere=elsewhere,
        )
        refuse(weight_faults(task, arrays, place, site.config.policy))
        if (factors := kept_weights(task, arrays, place).get(FACTORS)) is not None:
            names = checked.assignment.names
            weights, members = sum_weights(task, names, factors), [checked.roster.member(name) for name in names]
            with site.database.reading() as connection:
                refuse(cohort_faults(connection, opened.digest, study, site.config, members, site.name, weights))
        refuse(site.structure_faults(study.dataset, study.data))
        graph = self._try(task, arrays, place)
        if not asks and graph is not None and opaque_names(graph):
            place = replace(place, elsewhere=self._elsewhere(opened, checked))
        return _Ready(arrays, place, None if kept is None else kept.whole)

    def _elsewhere(self, opened: OpenStudy, checked: Assigned) -> Elsewhere | None:
        """Where the round's networks, programs and training meet records; of rounds without any nobody asks."""
        site = self._site
        return site.datasets.elsewhere(opened.study.dataset, site.config.device, self._seconds(opened, checked))

    def _try(self, task: DeclaredTask, arrays: Mapping[str, Floats], place: SitePlace) -> RowGraph | None:
        """Compute the task without records, and have its rows traced, whose graph is kept for the round; None of tasks that
        have no rows."""
        try:
            self._site.studies.rehearse(task, arrays)
            if task.terms.kind in ("rows", "factors") and place.evaluations is not None:
                return place.evaluations.graph(task, own_rows(task, arrays, place.index), place.given)
            return None
        except (HostileInput, Misuse) as error:
            raise Refusal(RefusalCode.CONTEXT, error.message, error.advice) from error

    def _compute(self, opened: OpenStudy, checked: Assigned, ready: _Ready) -> Computed:
        """The site's vector, of its records or of what it kept. Under noise nothing is raised, whatever the records are.

        Raises:
            Refusal: without noise the site cannot compute: two sums, one without its records, would show its own vector.
        """
        site, study, plan, task = self._site, opened.study, checked.plan, checked.assignment
        if ready.kept is not None:
            return Computed(ready.kept, True)
        place = ready.place
        readings: list[Reading] = []  # the last is the one that counts
        seconds = self._seconds(opened, checked)

        def load() -> Reading:
            readings.append(Reading())
            if plan.task.terms.kind in ("rows", "factors"):
                readings[-1] = site.batches(
                    study.dataset, study.data, by_subject=study.privacy.unit == "subject", seconds=seconds
                )
            else:
                readings[-1] = site.whole(study.dataset, study.data, seconds=seconds)
            return readings[-1]

        part = contribute(plan, load, ready.arrays, place)
        trained = place.state if part.fault is not None and not part.state else part.state
        state = encode_broadcast({**trained, **kept_weights(plan.task, ready.arrays, place)})
        fields = about(
            "contributed", study=study.name, digest=opened.digest, round=task.round, attempt=task.attempt, label=task.label
        )
        if part.fault is not None:
            site.observer.failed()
            LOG.error(
                "study %s: round %d (%s) failed on this site's records; records that failed count as none, and the round is"
                " charged, unless it has no noise and all of them failed",
                study.name,
                task.round,
                task.label,
                exc_info=part.fault,
                extra=fields,
            )
        if part.lost and study.privacy.noise == "none":
            self.give_up(opened.digest, task.attempt)
            raise Refusal(RefusalCode.INTERNAL, "Without noise a site that cannot compute takes no part in a sum.")
        if part.cut:
            site.observer.cut()
            LOG.warning(
                "study %s: round %d (%s): the dataset has more records than the study's max_records of %d; sums are cut off"
                " there, which biases means: state most_records with the dataset, or ask for a larger max_records",
                study.name,
                task.round,
                task.label,
                study.data.max_records,
                extra=fields,
            )
        LOG.info("study %s: round %d (%s) is computed", study.name, task.round, task.label, extra=fields)
        # Whether there is a digest depends on where records come from, not on what they are: an export of the ledger shows it.
        queried = readings and site.config.datasets[study.dataset].source == "sql"
        return Computed(part.total, False, state, readings[-1].digest or b"" if queried else None)

    def _seconds(self, opened: OpenStudy, checked: Assigned) -> float:
        """How long a process that meets records may take: a power of two of seconds, so that no deadline sets it close to what
        the site takes; at most three quarters of what is left, so that there is time to answer without it."""
        left = min(checked.assignment.deadline, opened.study.expires) - self._site.clock()
        return 2.0 ** math.floor(math.log2(0.75 * left)) if left > 0 else 0.0

    def _reserve(self, connection: Connection, opened: OpenStudy, checked: Assigned) -> None:
        site, assignment = self._site, checked.assignment
        left = min(assignment.deadline, opened.study.expires) - site.clock()
        give_up_open(connection, site, opened.digest)
        site.ledger.reserve(connection, self._reservation(opened, checked))
        add_attempt(
            connection,
            study=opened.digest,
            attempt=assignment.attempt,
            round=assignment.round,
            state=AttemptState.RESERVED,
            context=checked.context,
            assignment=assignment.to_bytes(),
            deadline=site.steady() + min(left, 3600 * site.config.policy.attempt_hours),
            label=assignment.label,
        )
        change_study(connection, opened.digest, round=assignment.round, attempt=assignment.attempt)

    def _reservation(self, opened: OpenStudy, checked: Assigned) -> Reservation:
        return Reservation(
            study=opened.digest,
            round=checked.assignment.round,
            attempt=checked.assignment.attempt,
            population=self._site.config.population(opened.study.dataset),
            dataset=opened.study.dataset,
            mechanism=Mechanism.of(checked.plan.declaration, checked.plan.noise),
            unit=opened.study.privacy.unit,
            cohort_size=len(checked.assignment.cohort),
            context=checked.context,
        )

    def _record_refusal(self, opened: OpenStudy, checked: Assigned, refusal: Refusal) -> None:
        site = self._site
        with site.database.transaction() as connection:
            give_up_open(connection, site, opened.digest)
            record_refused_release(connection, site, self._reservation(opened, checked), refusal)
