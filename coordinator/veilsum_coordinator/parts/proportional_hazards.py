"""Cox regression as tasks of a study, and as figures: ends of follow-up and moments first, then steps of "hazard-step"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.baselines import MOST_PERIODS, LifeTable
from veilsum_aggregation.cells import Cells
from veilsum_aggregation.figures import NotEstimable
from veilsum_aggregation.hazards import FirstSums, HazardFit, HazardModel, HazardRelease, first_model, longest_terms
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.newton import padded
from veilsum_aggregation.regression import UntoldFit
from veilsum_coordinator.parts.federation import Federation, Release, released_noise
from veilsum_coordinator.parts.query_requests import EdgeRange, QueryRequest
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.hazard_step import CENTRE, HAZARDS, PERIODS, POINT, POWERS, ROUNDING, WHITEN, HazardStepParameters
from veilsum_privacy.tasks.queries.cells import NumberDomain
from veilsum_privacy.tasks.queries.coefficients import term_names
from veilsum_privacy.tasks.queries.kinds.regression import LinearRegression
from veilsum_privacy.tasks.queries.kinds.survival import Survival
from veilsum_privacy.tasks.queries.language import Columns, DerivedColumn, Query
from veilsum_privacy.tasks.tables import questions_of

ENDS = "ends"
"""Name of the first release's query about ends of follow-up."""

ENTRIES, ENTRY, FOLLOWED = "entries", "entry on the time's scale", "followed on the time's scale"
"""Name of its query about entries, and of columns of them: the one that it is over, and one that has to be above 0."""

MOST_STRATA = 12
"""Strata of a study: each has periods of its own in what a record sends."""

INTERVALS = 40
"""Intervals of time where nobody states edges."""


def ends_request(
    time: str,
    event: str,
    censored: Sequence[str],
    edges: tuple[float, ...] | EdgeRange,
    where: str,
    columns: Columns,
    strata: str = "",
) -> QueryRequest:
    """The query that tells how many ended when, and how."""
    if not event or not censored:
        raise ConfigurationError(
            "A Cox regression states `event` and `censored`.", 'event = "status", censored = ["alive"], beside the time.'
        )
    edges = edges or all_times(columns.number(time, "outcome"), INTERVALS)
    return QueryRequest(
        name=ENDS, kind="survival", over=(time,), event=event, censored=tuple(censored), edges=edges, where=where,
        by=(strata,) if strata else (),
    )  # fmt: skip


def all_times(domain: NumberDomain, steps: int) -> EdgeRange:
    """So many equal intervals of all times."""
    return EdgeRange.model_validate({"from": domain.low, "to": domain.high, "steps": steps})


def event_condition(event: str, censored: Sequence[str], columns: Columns) -> str:
    """The condition that a time ended with the event."""
    levels = [level for level in columns.levels(event, "event") if level not in censored]
    if not levels:
        raise ConfigurationError(
            f"`censored` names all categories of {event!r}, so none is an event.", "Leave out those that are."
        )
    return f"{_quoted(event, chr(34))} in ({', '.join(_quoted(level, chr(39)) for level in levels)})"


def _quoted(text: str, mark: str) -> str:
    return mark + text.replace(mark, mark * 2) + mark


def hazard_step(
    time: str, query: Query, derived: Sequence[DerivedColumn], strata: str, levels: int, *, late: bool
) -> HazardStepParameters:
    """Parameters of the later rounds.

    Args:
        time: column.
        query: of terms.
        derived: columns, :func:`entry_columns` among them if entries are late.
        strata: column; empty for none.
        levels: how many strata there are, 1 without any.
        late: whether records enter after the start.
    """
    return HazardStepParameters(
        query=query.model_copy(update={"scale": 1}),
        derived=tuple(derived),
        time=time,
        periods=MOST_PERIODS * levels,
        entry=ENTRY if late else "",
        strata=strata,
    )


def entry_columns(entry: str, time: str, columns: Columns) -> tuple[DerivedColumn, DerivedColumn]:
    """The entry on the time's scale, where earlier than its start is at its start; and how long a record was followed."""
    domain = columns.number(time, "outcome")
    columns.number(entry, "entry")
    span, name = domain.high - domain.low, _quoted(entry, '"')
    late = DerivedColumn(name=ENTRY, number=name, low=domain.low, high=domain.high, unit=domain.unit)
    number = f"{_quoted(time, chr(34))} - {name}"
    return late, DerivedColumn(name=FOLLOWED, number=number, low=-span, high=span, unit=domain.unit)


def followed(where: str, time: str, columns: Columns) -> str:
    """The condition, of records that were followed for some time: who ends when he enters was at no risk."""
    domain = columns.number(time, "outcome")
    some = f"{_quoted(FOLLOWED, chr(34))} > {(domain.high - domain.low) * ROUNDING!r}"
    return f"({where}) and {some}" if where else some


def entries_request(ends: QueryRequest) -> QueryRequest:
    """The query that tells how many entered when, in the intervals of another one's times."""
    return QueryRequest(name=ENTRIES, kind="histogram", over=(ENTRY,), edges=ends.edges, where=ends.where, by=ends.by)


def fit_hazards(
    federation: Federation, first: Release, query: str, steps: Sequence[str], question: LinearRegression
) -> HazardFit | UntoldFit:
    """Run the later rounds, if the terms vary.

    Args:
        federation: of the study.
        first: the first release.
        query: name of its query about terms.
        steps: labels of the other rounds.
        question: of the terms.
    """
    noise = [released_noise(federation.study, label, len(first.cohort)) for label in steps]
    sums = _first_sums(federation.study, first.values, first.noise_std, query, exact=noise[-1]["hazards"] == 0.0)
    model = first_model(sums, noise[-1]["hazards"])
    if not model.whiten.size:
        return UntoldFit(NotEstimable("no term varies"), len(sums.gram))
    point, released = model.point, list[HazardRelease]()
    held = replace(model, baseline=model.baseline.held)
    for label, expected in zip(steps, noise, strict=True):
        length = longest_terms(model, expected["score"], expected["diagonal"])
        release = federation.sum(label, broadcast_of(model, point, length), members=first.cohort)
        released.append(_read(release.values, release.noise_std, model, point, length))
        # on the way the shape is the life table's: early releases tell too little of it
        point = HazardFit(held, tuple(released), length).point
    cells, names = Cells("poisson", sums.gram, question.categories), term_names(question)
    return HazardFit(model, tuple(released), length, names, cells=cells, numbers=question.numeric)


def _questions(study: Study) -> Sequence[LinearRegression | Survival]:
    return [each for each in questions_of(AgreedStudy(study).tasks[0].task) if isinstance(each, LinearRegression | Survival)]


def _first_sums(
    study: Study, values: Mapping[str, Floats], stds: Mapping[str, float], query: str, *, exact: bool
) -> FirstSums:
    """What the first release told; ``exact`` where there is no noise."""
    (ends,) = (each for each in _questions(study) if isinstance(each, Survival))
    moments = symmetric(values[f"{query}/diagonal"], values[f"{query}/cross"])
    gram = moments[:-1, :-1]
    (terms,) = (each for each in _questions(study) if isinstance(each, LinearRegression))
    grain = 0.5 / terms.query.scale if exact else 0.0
    edges = np.array([ends.domain.scale(edge) for edge in (ends.domain.low, *ends.query.edges[1:])])
    entered = values.get(f"{ENTRIES}/table")
    tables = tuple(
        LifeTable(
            died=table[:, 1:].sum(axis=1),
            left=table[:, 0],
            beyond=float(beyond),
            ends=edges / 2.0 + 0.5,
            std=stds[f"{ENDS}/ends"] * math.sqrt(table.shape[1] - 1),
            entered=None if entered is None else _within(entered.reshape(len(values[f"{ENDS}/ends"]), -1)[place], ends),
        )
        for place, (table, beyond) in enumerate(zip(values[f"{ENDS}/ends"], values[f"{ENDS}/beyond"], strict=True))
    )
    return FirstSums(
        gram=gram,
        events=(moments[:-1, -1] + gram[:, 0]) / 2.0,  # an event is 1, and no event -1
        gram_std=stds[f"{query}/diagonal"],
        tables=tables,
        grain=grain,
    )


def _within(entered: Floats, ends: Survival) -> Floats:
    """Entries by interval: a histogram has intervals beyond the edges as well, of which the first counts for the start."""
    before = int(ends.query.edges[0] > ends.domain.low)
    found = np.array(entered[before : before + ends.bins], dtype=np.float64)
    found[0] += float(entered[:before].sum())
    return found


def broadcast_of(model: HazardModel, point: Floats, length: float) -> dict[str, Floats]:
    """What sites are told: whitened terms as long as their bound have length 1, and periods that are not used are empty."""
    p, strata = len(model.centre), model.baseline.every_ends
    ends = [np.concatenate([own, np.full(MOST_PERIODS + 1 - len(own), own[-1])]) for own in strata]
    hazards = np.zeros(MOST_PERIODS * len(strata))
    hazards[model.baseline.places] = model.baseline.hazards(point[: model.q])
    return {
        WHITEN: padded(model.whiten / length, p),
        CENTRE: model.centre,
        POINT: padded(point[model.q :] * length, p),
        PERIODS: np.clip(np.concatenate(ends), 0.0, 1.0),
        POWERS: np.array(model.baseline.powers),
        HAZARDS: hazards,
    }


def _read(
    values: Mapping[str, Floats], stds: Mapping[str, float], model: HazardModel, at: Floats, length: float
) -> HazardRelease:
    """A release in units of the whitened terms."""
    used, k = model.baseline.places, model.whiten.shape[1]
    upper = values.get("upper", np.zeros(0))
    return HazardRelease(
        at=at,
        hazards=values["hazards"][used],
        score=values["score"][:k] * length,
        cross=values["cross"][used, :k] * length,
        information=symmetric(values["diagonal"], upper)[:k, :k] * length**2,
        hazard_std=stds["hazards"],
        score_std=stds["score"] * length,
        cross_std=stds["cross"] * length,
        information_std=stds["diagonal"] * length**2,
    )
