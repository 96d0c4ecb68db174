"""Whether the site's ledger bears a study, before anyone enrols: what it declares beside what is charged, open and promised.

A study that is enrolled may ask for every release that it declares. So a new one is held against the releases charged and
reserved so far and those that the other enrolled studies of the population may still ask for; otherwise two studies would be
let in that only fit one at a time, and one of them would end in its middle. The same figures serve the operator's commands.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from sqlalchemy import Connection, inspect

from veilsum_node.errors import Misuse, Refusal, RefusalCode
from veilsum_node.phrases import counted, rounded
from veilsum_participant.site import LOG, Site
from veilsum_participant.store.attempts import OPEN, PAID, AttemptState, AttemptTally, recovered_receipts, tally
from veilsum_participant.store.pending import PENDING, PendingRow, PendingState, pending_studies
from veilsum_participant.store.studies import STUDIES, StudyRow, open_studies
from veilsum_privacy.ledger import Budget, Headroom, Kind, Mechanism, Reservation
from veilsum_privacy.ledger.entries import why_infinite
from veilsum_privacy.ledger.receipts import parse_receipt
from veilsum_privacy.ledger.statements import LONGEST_TEXT, RequestedStudy, declared_mechanisms
from veilsum_privacy.mechanism.noise_plan import task_noise
from veilsum_privacy.study.study import Study, TaskDeclaration, parse_study

if TYPE_CHECKING:
    from veilsum_participant.settings.config import ParticipantConfig

MOST_REFUSALS = 256
"""Refusals that the ledger takes up in a day; more are only logged, so that nobody can fill the site's disk with them."""

_DAY = 86_400
_Price = tuple[int, int, float, int, bool]
"""Sensitivity, variance, sampling rate and steps of a release, and whether the noise is of the study's distributed kind."""


class Books(Protocol):
    """What is asked of a site's ledger."""

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None: ...

    def headroom(
        self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None
    ) -> Headroom: ...


def remaining(connection: Connection, key: bytes, study: Study, *, paid_only: bool = False) -> Counter[Mechanism]:
    """What a study may still ask for: declared, less what was charged or is open; ``paid_only``: less what was charged."""
    used = _used(connection, key, study, PAID if paid_only else (*OPEN, *PAID))
    left = Counter({mechanism: count - used[_price(mechanism)] for mechanism, count in declared_mechanisms(study).items()})
    return +left


def releases_used(connection: Connection, key: bytes, study: Study, label: str, counted: AttemptTally) -> bool:
    """Whether the releases that the study declares for a task are charged.

    Releases that are known from receipts only, after a backup was restored, bear no label: they count for all tasks of the
    same price together, so that the study never costs more than it declared.
    """
    declaration = study.task(label)
    if counted.labels(PAID)[label] >= declaration.releases:
        return True
    price = _task_price(study, declaration)
    declared = sum(task.releases for task in study.tasks if _task_price(study, task) == price)
    return _used(connection, key, study, PAID, counted)[price] >= declared


def budget_faults(
    connection: Connection, config: ParticipantConfig, books: Books, key: bytes, study: Study
) -> Iterator[Refusal]:
    """Whether the budget of the study's population bears it; nothing for a dataset that is not offered.

    Args:
        books: the site's ledger.
        key: the study's digest; what it may ask for itself is not counted twice.
    """
    if study.dataset not in config.datasets:
        return
    population = config.population(study.dataset)
    budget = books.budget(population, connection)
    if budget is None:
        advice = f"Set one: veilsum ledger budget set {population}."
        yield Refusal(RefusalCode.BUDGET, f"The population {population} has no budget.", advice)
        return
    try:
        own = declared_mechanisms(study)
    except Misuse:
        return  # such noise cannot be drawn, which the policy's checks say
    others = promised(connection, config, population, key)
    room = books.headroom(population, others + own, connection)
    if not room.admits:
        beside = f" and {others.total()} that other studies here may still ask for" if others else ""
        yield Refusal(
            RefusalCode.BUDGET,
            f"The population {population} has spent epsilon {rounded(room.reserved)} of {budget.epsilon:.15g} at delta"
            f" {budget.delta:g}; the study's {counted(own.total(), 'release')}{beside} would bring it to"
            f" {rounded(room.after)}.{why_infinite(room.after)}",
            "Ask for more noise or fewer releases, or let the operator raise the budget.",
        )


def promised(connection: Connection, config: ParticipantConfig, population: str, but: bytes = b"") -> Counter[Mechanism]:
    """What studies on the population, other than the study ``but``, may still ask for: enrolled ones, and those that the
    operator approved and the participant has not yet joined.
    """
    tables = inspect(connection).get_table_names()  # a file may be of an older layout, or have been opened for its ledger only
    total: Counter[Mechanism] = Counter()

    def concerned(row: StudyRow | PendingRow) -> Study | None:
        study = parse_study(row.study)
        offered = study.dataset in config.datasets
        return study if row.digest != but and offered and config.population(study.dataset) == population else None

    for row in open_studies(connection) if STUDIES.name in tables else ():
        if (study := concerned(row)) is not None:
            total += remaining(connection, row.digest, study)
    for asked in pending_studies(connection) if PENDING.name in tables else ():
        if asked.state is PendingState.APPROVED and (study := concerned(asked)) is not None:
            total += declared_mechanisms(study)
    return total


def record_refused_study(
    connection: Connection, site: Site, asked: RequestedStudy, study: Study, refusal: Refusal, *, by_operator: bool = False
) -> None:
    """Enter a refused study into the ledger, with every reason and the budget's figures; the same words only once.

    Args:
        by_operator: it is the operator's own word, which no bound on refusals holds back.
    """
    earlier = site.ledger.entries(kind=Kind.REFUSAL, study=asked.study, connection=connection)
    words = refusal.message[:LONGEST_TEXT]  # as the ledger holds them
    same = any(entry.context is None and entry.detail.get("message") == words for entry in earlier)
    if same or (not by_operator and too_many(connection, site, Kind.REFUSAL)):
        return
    try:
        cost = [
            dataclasses.replace(mechanism, steps=mechanism.steps * count)
            for mechanism, count in declared_mechanisms(study).items()
        ]
    except Misuse:
        cost = []
    site.ledger.refuse(
        connection, refusal, population=asked.population, study=asked.study, dataset=asked.dataset, cost=cost, asked=asked
    )


def record_refused_release(connection: Connection, site: Site, reservation: Reservation, refusal: Refusal) -> None:
    """Enter a refused release into the ledger, with the budget's figures; once for each context."""
    known = site.ledger.entries(kind=Kind.REFUSAL, context=reservation.context, connection=connection)
    if not known and not too_many(connection, site, Kind.REFUSAL):
        site.ledger.refuse(connection, refusal, reservation=reservation)


def too_many(connection: Connection, site: Site, kind: Kind) -> bool:
    """Whether the ledger has taken up as many entries of a kind that others cause today as it takes."""
    now = site.clock()
    # what a clock that was wrong dated further ahead would count until then
    today = site.ledger.entries(kind=kind, since=now - _DAY + 1, until=now + _DAY, connection=connection)
    if len(today) < MOST_REFUSALS:
        return False
    LOG.error(
        "%d entries %s within a day: the ledger records no more of them today; this log has them", len(today), kind.value
    )
    return True


def _price(mechanism: Mechanism) -> _Price:
    noise = mechanism.noise
    return mechanism.sensitivity, noise.variance, mechanism.sampling_rate, mechanism.steps, noise.kind == "distributed"


def _task_price(study: Study, task: TaskDeclaration) -> _Price:
    return _price(Mechanism.of(task, task_noise(study, task, study.sites)))


def _used(
    connection: Connection, key: bytes, study: Study, states: tuple[AttemptState, ...], counted: AttemptTally | None = None
) -> Counter[_Price]:
    """Attempts of a study in some states, the recovered ones among them, counted by price; those without a label by their
    receipts."""
    prices = {task.label: _task_price(study, task) for task in study.tasks}
    used: Counter[_Price] = Counter()
    counted = tally(connection, key, 0) if counted is None else counted
    for label, count in (+counted.labels([state for state in states if state is not AttemptState.RECOVERED])).items():
        used[prices[label]] += count
    if counted.total((AttemptState.RECOVERED,)):
        for receipt in recovered_receipts(connection, key):
            used[_price(parse_receipt(receipt).mechanism)] += 1
    return used
