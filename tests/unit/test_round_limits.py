"""How often a study may ask, at the very boundary of each count; and what public weights a site accepts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.federation import make_request, schema_of
from support.fresh import PARTICIPANT, fresh_database
from support.hostile import altered
from support.studies import agreed
from veilsum_coordinator.parts.local_rounds import LOCAL
from veilsum_node.errors import RefusalCode
from veilsum_participant.protocol import limits
from veilsum_participant.protocol.limits import FACTORS, count_faults, kept_weights, sum_weights, weight_faults
from veilsum_participant.settings.config import Policy
from veilsum_participant.store.attempts import AttemptState, add_attempt
from veilsum_privacy.computation.contribution import SitePlace
from veilsum_privacy.computation.weights import WEIGHTS
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask

KEY = bytes(32)
ROUND, SEEN = RefusalCode.ROUND, AttemptState.RELEASED
LOST, GIVEN_UP = AttemptState.CONSENTED, AttemptState.TOMBSTONE


@cache
def compiled(method: str = "statistics", epsilon: float | None = 1.0, **privacy: Any) -> Study:
    request = make_request(schema_of(2), method, epsilon, **privacy)
    if method == "fedavg":
        table = {"mode": "natural", "subsets": [{"sites": list("abc"), "probability": 1.0}]}
        parameters = {"rounds": 3, "model": {"name": "linear"}, "participation": table}
        request = request.model_copy(update={"parameters": parameters})
    return agreed(request, "abc")


# -- attempts --------------------------------------------------------------------------------------------------------------


def study_of(**releases: int) -> Study:
    """Tasks of these labels, each with noise of its own size."""
    (task,) = (task.model_dump(mode="json") for task in compiled().tasks)
    tasks = [
        {**task, "label": label, "releases": number, "variance": task["variance"] + place}
        for place, (label, number) in enumerate(releases.items())
    ]
    return altered(compiled(), tasks=tasks)


@contextmanager
def asked(
    attempts: Sequence[tuple[str, int, AttemptState]], study: Study, label: str = "one", number: int = 1, **policy: int
) -> Iterator[Any]:
    """Ask about a round after attempts, given as (label, round, state); gives what is refused, by whether it is resumed."""
    with fresh_database(":memory:", PARTICIPANT) as database, database.transaction() as connection:
        for attempt, (of, at, state) in enumerate(attempts, 1):
            add_attempt(
                connection,
                study=KEY,
                attempt=attempt,
                round=at,
                state=state,
                context=attempt.to_bytes(32),
                assignment=b"",
                deadline=0,
                label=of,
            )
        opened: Any = SimpleNamespace(digest=KEY, study=study)
        assignment: Any = SimpleNamespace(round=number, label=label)

        def codes(*, resumed: bool = False) -> list[RefusalCode]:
            held = Policy(**policy)  # type: ignore[arg-type]
            return [fault.code for fault in count_faults(connection, opened, assignment, held, resumed=resumed)]

        yield codes


@pytest.mark.parametrize("state", [LOST, SEEN])
def test_one_consent_a_round(state: AttemptState) -> None:
    study = study_of(one=9)
    with asked([("one", 1, state)], study) as codes:
        assert codes() == codes(resumed=True) == [ROUND]
    with asked([("one", 2, state)], study) as codes:
        assert codes() == codes(resumed=True) == []


def test_as_many_releases_as_are_declared_and_no_more() -> None:
    study = study_of(one=2, other=2)
    with asked([("one", 1, SEEN), ("one", 2, GIVEN_UP), ("other", 3, SEEN)], study, number=4) as codes:
        assert codes() == []
    with asked([("one", 1, SEEN), ("one", 2, SEEN)], study, number=3) as codes:
        assert codes() == codes(resumed=True) == [RefusalCode.TASK]
    with asked([("one", 1, SEEN), ("one", 2, SEEN)], study, "other", 3) as codes:
        assert codes() == []


@pytest.mark.parametrize(("lost", "refused"), [(1, False), (2, True), (3, True)])
def test_charges_that_nothing_followed(lost: int, refused: bool) -> None:
    attempts = [("one", number, LOST) for number in range(1, lost + 1)] + [("one", 8, SEEN)]
    with asked(attempts, study_of(one=9), number=9, max_lost=2) as codes:
        assert codes() == codes(resumed=True) == [RefusalCode.LOST] * refused


@pytest.mark.parametrize(("tries", "refused"), [(2, False), (3, True), (4, True)])
def test_attempts_of_one_round(tries: int, refused: bool) -> None:
    """Those of other rounds do not count, nor does an attempt that is asked for again."""
    attempts = [("one", 5, GIVEN_UP)] * tries + [("one", 4, GIVEN_UP)] * 5
    with asked(attempts, study_of(one=9), number=5, max_attempts=3) as codes:
        assert codes() == [RefusalCode.ATTEMPTS] * refused
        assert codes(resumed=True) == []


@pytest.mark.parametrize(("attempts", "refused"), [(14, False), (15, True), (16, True)])
def test_attempts_of_all_rounds(attempts: int, refused: bool) -> None:
    """Three for each of five releases."""
    made = [("one", number, GIVEN_UP) for number in range(1, attempts + 1)]
    with asked(made, study_of(one=2, other=3), number=99, max_attempts=3) as codes:
        assert codes() == [RefusalCode.ATTEMPTS] * refused
        assert codes(resumed=True) == []


@pytest.mark.parametrize(("attempts", "refused"), [(3 * 4 + 0, False), (3 * 4 + 1, True)])
def test_a_long_study_is_not_tried_as_often_in_every_round(
    monkeypatch: pytest.MonkeyPatch, attempts: int, *, refused: bool
) -> None:
    """Three for each of the first four releases, and one for the fifth: each that comes to nothing is two entries for good."""
    monkeypatch.setattr(limits, "TRIED_AGAIN", 4)
    made = [("one", number, GIVEN_UP) for number in range(1, attempts + 1)]
    with asked(made, study_of(one=2, other=3), number=99, max_attempts=3) as codes:
        assert codes() == [RefusalCode.ATTEMPTS] * refused


@pytest.mark.parametrize(
    ("attempts", "refused"),
    [([], True), ([("kept", 1, GIVEN_UP)], True), ([("other", 1, SEEN)], True), ([("kept", 1, LOST)], False)],
)
def test_what_is_computed_from_a_statistic_comes_after_it_is_paid_for(
    attempts: list[tuple[str, int, AttemptState]], refused: bool
) -> None:
    known, source = study_of(kept=1, other=3, one=3), "kept"
    derived: Any = SimpleNamespace(
        tasks=known.tasks,
        sites=known.sites,
        privacy=known.privacy,
        task=lambda label: known.task(label).model_copy(update={"source": source if label == "one" else None}),
    )
    with asked(attempts, derived, number=2) as codes:
        assert codes() == codes(resumed=True) == [RefusalCode.TASK] * refused
    with asked(attempts, derived, "other", number=2) as codes:
        assert codes() == []


# -- public weights --------------------------------------------------------------------------------------------------------


@cache
def training(*others: str, strict: bool = True) -> AgreedTask:
    """A weighted task, in a study with these tasks beside it: ``plain`` is a sum of one vector a site, too."""
    study = compiled("fedavg", None) if strict else compiled("fedavg", 5.0, noise="local")
    (task,) = study.tasks
    beside = {
        "plain": task.model_copy(update={"label": "plain", "parameters": {**task.parameters, "weighting": "equal"}}),
        "records": compiled(epsilon=None, noise="none").tasks[0].model_copy(update={"label": "records"}),
    }
    return AgreedStudy(study.model_copy(update={"tasks": (task, *(beside[name] for name in others))})).task(LOCAL)


def weighed(
    weights: Sequence[float],
    cohort: tuple[int, ...] | None = None,
    before: Sequence[float] | None = None,
    agreed: AgreedTask | None = None,
    least: int = 2,
) -> list[RefusalCode]:
    state = {} if before is None else {FACTORS: np.array(before)}
    place, broadcast = SitePlace(cohort=cohort, state=state), {WEIGHTS: np.array(weights)}
    return [fault.code for fault in weight_faults(agreed or training(), broadcast, place, Policy(min_cohort=least))]


def test_nobody_weighs_as_much_as_a_cohort_that_is_too_small() -> None:
    """A share of half is what two members have, to within rounding."""
    tiny = 1e-9
    for weights, share_of_half in (((1.0, 1.0), True), ((1.0, 1 - tiny), True), ((1.0, 1 - 3 * tiny), False)):
        assert weighed([*weights, 7.0], (0, 1)) == [RefusalCode.DISCLOSURE] * (not share_of_half)
    assert weighed([1.0, 1.0, 1.0], least=3) == []
    for least, code in ((2, []), (3, [RefusalCode.DISCLOSURE])):
        assert weighed([2.0, 1.0, 1.0], least=least) == code
    assert weighed([3.0, 1.0, 1.0]) == [RefusalCode.DISCLOSURE]
    assert weighed([1.0, 1.0, 0.0]) == []
    assert weighed([1.0, 1.0, 0.0], (0, 2)) == [RefusalCode.DISCLOSURE]


@pytest.mark.parametrize("weights", [[1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, -1.0], [1.0, 1.0, np.nan]])
def test_weights_that_are_none(weights: list[float]) -> None:
    assert weighed(weights) == [RefusalCode.CONTEXT]


def test_one_cohort_has_the_same_weights_in_every_round() -> None:
    assert weighed([2.0, 2.0, 2.0], before=[1.0, 1.0, 1.0]) == []
    assert weighed([2.0, 2.0, 1.0], before=[1.0, 1.0, 1.0]) == [RefusalCode.COHORT_CHANGED]
    assert weighed([2.0, 2.0, 9.0], (0, 1), [1.0, 1.0]) == []
    assert weighed([2.0, 2.0, 1.0], before=[1.0, 1.0, 1.0], agreed=training(strict=False)) == []


def test_a_weighted_sum_beside_another_of_one_vector_a_site() -> None:
    """At weights of its own, that would be a second equation; a sum over records is none of the same vectors."""
    assert weighed([1.0, 1.0, 1.0], agreed=training("plain")) == [RefusalCode.COHORT_CHANGED]
    assert weighed([1.0, 1.0, 1.0], agreed=training("records")) == []
    plain = training("plain").agreed.task("plain")
    assert weighed([9.0, 1.0, 1.0], agreed=plain) == []  # where nothing is weighed, weights are not looked at


@pytest.mark.parametrize(("cohort", "factors"), [(None, [1.0, 0.5, 0.25]), ((1, 2), [1.0, 0.5])])
def test_what_the_next_round_is_held_to(cohort: tuple[int, ...] | None, factors: list[float]) -> None:
    broadcast, place = {WEIGHTS: np.array([4.0, 2.0, 1.0])}, SitePlace(cohort=cohort)

    def kept(agreed: AgreedTask) -> Mapping[str, Any]:
        return kept_weights(agreed, broadcast, place)

    found = kept(training())
    assert list(found) == [FACTORS]
    np.testing.assert_array_equal(found[FACTORS], factors)
    assert kept(training(strict=False)) == kept(training("plain").agreed.task("plain")) == {}


def test_what_a_sum_weighs_its_members_with() -> None:
    """A sum of vectors weighs each by its public factor, which nobody knows before the broadcast; one without factors by 1."""
    names, factors = ("a", "b", "c"), np.array([0.2, 0.3, 0.5])
    weighted, counted = AgreedStudy(compiled("fedavg")).task(LOCAL), AgreedStudy(compiled()).tasks[0]
    plain: Any = SimpleNamespace(terms=SimpleNamespace(kind=weighted.terms.kind, weighted=False))
    assert weighted.terms.weighted
    assert sum_weights(weighted, names, factors) == {"a": 0.2, "b": 0.3, "c": 0.5}
    assert sum_weights(weighted, names, None) is None
    assert sum_weights(plain, names, None) == dict.fromkeys(names, 1.0)
    assert sum_weights(counted, names, None) is None
