"""Tasks that another process traces: the same sums to the bit, and one that lies changes no bound and no price."""

from __future__ import annotations

import contextlib
import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import golden_sums
from support.apart import Answer, ThreadStarter
from support.neighbours import NEIGHBOURS, SETTINGS, Setting, random_records
from support.randomness import SeededRandom
from support.starting import ProcessStarter
from support.strange import strange
from support.studies import compiled, shifted_sites
from veilsum_node.errors import HostileInput, Misuse, VeilsumError
from veilsum_participant.boundary import compiler as table
from veilsum_participant.boundary.compiler import GraphSaid, StudySaid, TaskSaid, TrainingSaid
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.worker.compiled import CompiledTask
from veilsum_participant.worker.compiling import WorkerStudies
from veilsum_participant.worker.elsewhere import Computing, RoundMaps
from veilsum_privacy.computation.contribution import SitePlace, compute_sum
from veilsum_privacy.computation.declared import Given
from veilsum_privacy.computation.said_terms import terms_to_json
from veilsum_privacy.computation.terms import TaskTerms, products_from_json
from veilsum_privacy.dossier.asked import asked_facts
from veilsum_privacy.mechanism.rows.graph import RowGraph, node
from veilsum_privacy.mechanism.rows.symbols import record_of, traced
from veilsum_privacy.securesum.context import decode_broadcast, encode_broadcast
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.base import Records

Making = Callable[..., WorkerStudies]


@pytest.fixture
def compiling() -> Iterator[Making]:
    """Makes the studies of a site whose compilers a test may meddle with."""
    made: list[WorkerStudies] = []

    def make(meddle: Any = None, starter: Any = None) -> WorkerStudies:
        made.append(WorkerStudies(starter or ThreadStarter(meddle)))
        return made[-1]

    yield make
    for each in made:
        each.close()


def total_of(studies: WorkerStudies | None, study: Study, broadcast: Mapping[str, Any], records: Records) -> Any:
    found: Any = AgreedStudy(study) if studies is None else studies.agreed(study.to_bytes())
    task = found.task(study.tasks[0].label)
    computing = Computing(ThreadStarter())
    try:
        elsewhere = None if studies is None else RoundMaps(computing, "records", "cpu", 600.0)
        place = SitePlace(0, random=SeededRandom(7), elsewhere=elsewhere)
        return compute_sum(task.plan(study.sites, study.sites), records, broadcast, place).total
    finally:
        computing.close()


def broadcast_of(setting: Setting, study: Study, broadcast: Mapping[str, Any]) -> dict[str, Any]:
    return {**broadcast, **{name: np.stack([row] * study.sites) for name, row in setting.given.items()}}


def test_sums_of_every_task_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch, compiling: Making) -> None:
    """By each setting of each task and unit, through encoders and alignments: graphs and terms crossed, networks elsewhere."""
    real, seen = golden_sums._sum, set[str]()

    def both(study: Study, setting: Setting, broadcast: Mapping[str, Any], records: Records) -> Any:
        here = real(study, setting, broadcast, records)
        there = total_of(compiling(), study, broadcast_of(setting, study, broadcast), records)
        np.testing.assert_array_equal(there, here)
        return here

    monkeypatch.setattr(golden_sums, "_sum", both)
    for name, case in golden_sums.cases():
        task, _, how = name.split("/")
        kind = f"{task} {how.partition(',')[0].partition('=')[0]}"
        if kind not in seen:
            seen.add(kind)
            assert case().any(), name
    assert {name.split()[0] for name in seen} == set(NEIGHBOURS) | {"local-training"}


def test_terms_of_every_task_cross_unchanged() -> None:
    for setting in SETTINGS:
        terms = AgreedStudy(setting.study("record", grid=2**12, variance=10**9)).tasks[0].terms
        assert TaskTerms.from_json(json.loads(json.dumps(terms_to_json(terms)))) == terms


def plain() -> Setting:
    """A task of rows."""
    return next(setting for setting in SETTINGS if setting.task == "feature-means")


def of_factors() -> Setting:
    return next(setting for setting in SETTINGS if TASKS[setting.task].kind == "factors")


def study_of(setting: Setting, unit: Any = "record", **changes: Any) -> Study:
    study = setting.study(unit, grid=2**12, variance=10**9)
    return study.model_copy(update={"tasks": (study.tasks[0].model_copy(update=changes),)})


def lying(**terms: Any) -> Any:
    """A compiler that says other terms."""

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        found = honest(request)
        if not isinstance(found, StudySaid):
            return found
        said = (json.loads(task.terms) if task.terms else {} for task in found.tasks)
        return StudySaid(tuple(TaskSaid(json.dumps({**task, **terms}).encode()) for task in said))

    return meddle


# -- terms ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [
        {"kind": "derived"},
        {"kind": "training", "step_clip": 1.0},
        {"kind": "factors"},
        {"kind": "factors", "products": [[["entries", 1, 0.0]], 1.0, False]},
        {"kind": "exact"},
        {"products": [[["entries", 2, 0.0]], 1.0, False]},
        {"persons": ["first", 0, []]},
        {"persons": [None, 3, []]},
        {"persons": ["every", 0, []]},
        {"size": 0},
        {"size": 2**50},
        {"size": True},
        {"clip": 0.0},
        {"clip": -1.0},
        {"clip": float("nan")},
        {"clip": float("inf")},
        {"clip": 1},
        {"clip": "1.0"},
        {"step_clip": -1.0},
        {"disclosures": []},
        {"disclosures": ["everything"]},
        {"flags": [1, 0, 0]},
        {"flags": [False]},
        {"site_arrays": [1]},
        {"site_arrays": "x" * 300, "single_arrays": ["x" * 300]},
        {"kind": None},
    ],
)
def test_terms_that_break_a_rule_are_refused_before_a_record_is_read(terms: dict[str, Any], compiling: Making) -> None:
    """What a compiler says of a task is held to the declaration, on which the price rests; and to the kernel's own bounds."""
    study = study_of(plain())
    with pytest.raises(HostileInput):
        compiling(lying(**terms)).agreed(study.to_bytes()).task(study.tasks[0].label)


def test_a_task_that_reads_records_has_noise_whatever_it_is_said_to_be(compiling: Making) -> None:
    """A declaration without variance of a task that is said to derive from what was kept: it then meets no record."""
    setting = plain()
    kept = study_of(setting, keep=True, label="kept").tasks[0]
    study = study_of(setting, variance=0, source="kept")
    strict = study.privacy.model_copy(update={"cohort_difference": "strict"})
    study = study.model_copy(update={"tasks": (kept, study.tasks[0]), "privacy": strict})
    with pytest.raises(HostileInput, match="must have noise"):
        compiling().agreed(study.to_bytes()).task(study.tasks[1].label)
    own = terms_to_json(AgreedStudy(study_of(setting)).tasks[0].terms)
    with pytest.raises(HostileInput, match="must have noise"):
        compiling(lying(**own)).agreed(study.to_bytes()).task(study.tasks[1].label)
    derived = compiling(lying(**{**own, "kind": "derived"})).agreed(study.to_bytes())
    with pytest.raises(HostileInput):
        derived.task(kept.label)  # which has noise, so it cannot derive
    task = derived.task(study.tasks[1].label)

    def records() -> Iterator[Records]:
        raise AssertionError("a record is read")
        yield

    with pytest.raises(VeilsumError):
        compute_sum(task.plan(study.sites, study.sites), records(), setting.broadcast, SitePlace(0))


@pytest.mark.parametrize("tasks", [(), (TaskSaid(b"[]"),), (TaskSaid(b"null"),), (TaskSaid(b"{"),), (TaskSaid(b"[" * 9999),)])
def test_what_says_no_terms_is_refused(tasks: Any, compiling: Making) -> None:
    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        return StudySaid(tasks) if isinstance(request, table.TakeStudy) else honest(request)

    study = study_of(plain())
    with pytest.raises(HostileInput):
        compiling(meddle).agreed(study.to_bytes()).task(study.tasks[0].label)


def test_the_price_is_the_declarations_whatever_is_said(compiling: Making) -> None:
    """Noise, sensitivity and what the ledger books are the same for all terms that pass."""
    study = study_of(plain())
    honest = AgreedStudy(study).tasks[0]
    for terms in ({}, {"clip": 1e50}, {"clip": 1e-50}, {"size": 7}, {"flags": [True, True, False]}):
        task = compiling(lying(**terms)).agreed(study.to_bytes()).task(honest.label)
        plans = [each.plan(study.sites, study.sites) for each in (task, honest)]
        assert plans[0].noise == plans[1].noise
        assert plans[0].spread == plans[1].spread
        assert task.largest == honest.largest


# -- graphs -----------------------------------------------------------------------------------------------------------------


def graphs(setting: Setting, size: int) -> Mapping[str, RowGraph]:
    """Graphs that a hostile compiler may give in place of a task's."""
    features = node("features", columns=(0,))
    ones = np.ones((1, size))

    def row(factor: float) -> RowGraph:
        record = record_of(setting.schema.width, labelled=setting.schema.label is not None)
        from veilsum_privacy.mechanism.rows.symbols import affine

        return traced(affine(record.features[np.array([0])], factor * ones.T, np.zeros(size)))

    assert features.spec.size == 1
    return {"long": row(1e6), "longer": row(1e90), "small": row(1e-9)}


@pytest.mark.parametrize("which", ["long", "longer", "small"])
@pytest.mark.parametrize("unit", ["record", "subject"])
@pytest.mark.parametrize("clip", [None, 1e-60, 1e60])
def test_no_graph_moves_a_sum_by_more_than_the_declared_grid(
    which: str, unit: Any, clip: float | None, compiling: Making
) -> None:
    """Each unit is taken out of a company: the sum without it is at most a grid away, by L2 norm, in integers."""
    for setting in (plain(), of_factors()):
        study = study_of(setting, unit)
        honest = AgreedStudy(study).tasks[0].terms
        size = honest.size if honest.products is None else honest.products.given
        graph = graphs(setting, size)[which]

        def meddle(request: Inquiry[Any], answer: Answer, graph: RowGraph = graph, said: Any = honest) -> Message | None:
            if isinstance(request, table.AskGraph):
                return GraphSaid(graph.to_bytes())
            terms: dict[str, Any] = {} if clip is None else {"clip": clip}
            if said.products is not None and clip is not None:
                terms["products"] = [terms_to_json(said)["products"][0], clip, said.products.weighted]
            return lying(**terms)(request, answer)

        studies, rng = compiling(meddle), np.random.default_rng(3)
        own = random_records(rng, 24, setting.schema)
        own = replace(own, subjects=np.sort(rng.integers(0, 8, 24)))
        broadcast = broadcast_of(setting, study, setting.broadcast)
        whole = total_of(studies, study, broadcast, own)
        assert own.subjects is not None
        for left_out in range(8):
            away = own.subjects == left_out if unit == "subject" else np.arange(24) == left_out
            moved = (whole - total_of(studies, study, broadcast, own.take(~away))).astype(object)
            assert int((moved * moved).sum()) <= study.tasks[0].grid ** 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"a graph",
        traced(record_of(99, labelled=False).features[np.array([98, 97])]).to_bytes(),
    ],
)
def test_what_is_no_graph_of_the_studys_columns_is_refused_before_a_record_is_read(data: bytes, compiling: Making) -> None:
    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        return GraphSaid(data) if isinstance(request, table.AskGraph) else honest(request)

    study = study_of(plain())

    def records() -> Iterator[Records]:
        raise AssertionError("a record is read")
        yield

    with pytest.raises(HostileInput):
        total_of(compiling(meddle), study, plain().broadcast, records())  # type: ignore[arg-type]


HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**200, -(2**63), 1.5, 5e-324, 1e308, math.inf, -math.inf, math.nan, "",
    "\ud800",
    "x" * 300, [], [[]], [0], [-1], [2**40], {}, {"a": 1}, "features", "label", "opaque", "inputs", "<f8",
]  # fmt: skip
"""What may stand in JSON where something else should."""


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in a value of JSON."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*path, key))


def put(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """The same with something else there."""
    if not path:
        return other
    changed = value.copy()
    changed[path[0]] = put(value[path[0]], path[1:], other)
    return changed


@pytest.fixture(scope="module")
def heads() -> list[tuple[str, Any, bytes]]:
    """Terms, products and heads of graphs as a compiler says them, of many tasks, and the arrays behind each head."""
    found: list[tuple[str, Any, bytes]] = []
    for setting in SETTINGS[::9]:
        study = study_of(setting)
        task = AgreedStudy(study).tasks[0]
        said = json.loads(json.dumps(terms_to_json(task.terms)))
        found += [("terms", said, b""), ("products", said["products"], b"")]
        if task.terms.kind in ("rows", "factors"):
            with contextlib.suppress(HostileInput):  # a setting may need more than these
                data = task.row_graph(broadcast_of(setting, study, setting.broadcast), Given()).to_bytes()
                _, _, rest = data.partition(b"\n")
                size = int.from_bytes(rest[:8], "little")
                found.append(("graph", json.loads(rest[8 : 8 + size]), rest[8 + size :]))
    assert {kind for kind, value, _ in found if value is not None} == {"terms", "products", "graph"}
    return [(kind, value, rest) for kind, value, rest in found if value is not None]


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(drawn=st.data())
def test_whatever_stands_in_terms_or_in_a_graph_is_read_or_refused(heads: list[tuple[str, Any, bytes]], drawn: Any) -> None:
    """No other exception, by which a compiler would end the sessions of all studies."""
    kind, value, rest = drawn.draw(st.sampled_from(heads))
    said = put(value, drawn.draw(st.sampled_from(list(paths(value)))), drawn.draw(st.sampled_from(HOSTILE)))
    head = json.dumps(said).encode()
    with contextlib.suppress(HostileInput):
        if kind == "terms":
            TaskTerms.from_json(said)
        elif kind == "products":
            products_from_json(said)
        else:
            RowGraph.from_bytes(b"veilsum.rows.1\n" + len(head).to_bytes(8, "little") + head + rest)


@pytest.mark.parametrize("asked", table.REQUESTS, ids=lambda asked: asked.__name__)
def test_whatever_a_compiler_says_before_a_reservation_is_taken_or_refused(
    asked: type[Inquiry[Any]], compiling: Making
) -> None:
    """By an error that is one of a study: another would end the sessions of all studies."""
    followed = {"steps": 2, "centre": False, "followed": True}
    model = compiled("fedsgd", followed, epsilon=8.0, cohort_difference="allowed", min_cohort=2)
    said, met = 0, contextlib.suppress(VeilsumError)
    for answer in strange(asked.answer):

        def meddle(request: Inquiry[Any], honest: Answer, answer: Message = answer) -> Message | None:
            nonlocal said
            said += type(request) is asked
            return answer if type(request) is asked else honest(request)

        studies = compiling(meddle)
        for study, broadcast in ((study_of(plain()), plain().broadcast), (model, {})):
            agreed = studies.agreed(study.to_bytes())
            with met:
                studies.asked(study)
            for given_ in (None, broadcast):
                with met:
                    studies.rehearse(agreed.tasks[0], given_)
            with met:
                agreed.tasks[0].row_graph(broadcast, Given())
        with met:
            following = studies.follow(agreed, b"")
            with met:
                following.begin_with(b"".join(following.broadcast("gradient")))
            with met:
                following.take("gradient", np.zeros(4, dtype=np.int64), 3)
            decode_broadcast(b"".join(following.broadcast("gradient")))
        studies.close()
    training = {table.AskDerived, table.BeginTraining, table.AnswerTraining, table.TrainOnNone}  # after a reservation
    assert said or asked in training


def test_what_a_compiler_showed_and_what_is_meant_cross_once(compiling: Making) -> None:
    """A broadcast that the compiler worked out is not sent to it, and graphs name its arrays; sums are as in one process."""
    study = compiled("fedsgd", {"steps": 2, "centre": False}, epsilon=8.0, cohort_difference="allowed", min_cohort=2)
    task = AgreedStudy(study).task("gradient")
    sent, said = list[Any](), list[bytes]()

    def watch(request: Inquiry[Any], honest: Answer) -> Message | None:
        found = honest(request)
        if isinstance(request, table.TakeBroadcast):
            sent.append(request.broadcast)
        if isinstance(found, GraphSaid):
            said.append(found.graph)
        return found

    studies = compiling(watch)
    agreed = studies.agreed(study.to_bytes())
    own = next(iter(shifted_sites(40).values()))

    def run(arrays: Mapping[str, Any], studies: WorkerStudies = studies) -> Any:
        studies.rehearse(agreed.task("gradient"), arrays)
        return total_of(studies, study, arrays, own)

    first = b"".join(studies.follow(agreed, b"").broadcast("gradient"))
    arrays = decode_broadcast(first, task.single)
    np.testing.assert_array_equal(run(arrays), total_of(None, study, arrays, own))
    assert sent == [None]
    assert b'"model.head.weight"' in said[-1]
    assert arrays["model.head.weight"].tobytes() not in said[-1]
    other = decode_broadcast(
        encode_broadcast({name: array[::-1] + 1.0 for name, array in arrays.items()}, task.single), task.single
    )
    np.testing.assert_array_equal(run(other), total_of(None, study, other, own))
    assert [data is None for data in sent] == [True, False]
    np.testing.assert_array_equal(run(decode_broadcast(first, task.single)), total_of(None, study, arrays, own))
    assert [data is None for data in sent] == [True, False, True]


# -- a compiler that ends ---------------------------------------------------------------------------------------------------


class Ending:
    """Ends a compiler at each request of a name, so many times."""

    def __init__(self, name: str, times: int) -> None:
        self.name, self.left, self.lock = name, times, threading.Lock()

    def __call__(self, request: Inquiry[Any], honest: Answer) -> Message | None:
        with self.lock:
            if type(request).__name__ == self.name and self.left:
                self.left -= 1
                return None
        return honest(request)


@pytest.mark.parametrize("name", ["TakeStudy", "TakeBroadcast", "TryTask", "AskGraph"])
def test_one_that_ends_is_started_once_more(name: str, compiling: Making) -> None:
    setting = next(setting for setting in SETTINGS if setting.task == "newton-step")
    study = study_of(setting)
    own = random_records(np.random.default_rng(1), 30, setting.schema)
    broadcast = broadcast_of(setting, study, setting.broadcast)

    def run(times: int) -> Any:
        studies = compiling(Ending(name, times))
        studies.rehearse(studies.agreed(study.to_bytes()).tasks[0], broadcast)
        return total_of(studies, study, broadcast, own)

    np.testing.assert_array_equal(run(1), total_of(None, study, broadcast, own))
    with pytest.raises(HostileInput, match="ends each time"):
        run(2)


def test_a_study_that_says_other_terms_when_it_is_traced_again_is_refused(compiling: Making) -> None:
    study, turns = study_of(plain()), iter([{}, {"clip": 2.0}, {"clip": 3.0}])

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        if isinstance(request, table.TryTask):
            return None
        return lying(**next(turns))(request, honest) if isinstance(request, table.TakeStudy) else honest(request)

    studies = compiling(meddle)
    task = studies.agreed(study.to_bytes()).tasks[0]
    with pytest.raises(HostileInput):
        studies.rehearse(task, None)


def test_what_trains_is_not_gone_on_with_by_another_compiler(compiling: Making) -> None:
    """A training's own course is lost with its process; the round has what a site without records gives."""
    name, case = next((name, case) for name, case in golden_sums.cases() if name.startswith("local-training/reference"))
    seen: list[tuple[Any, ...]] = []
    real = golden_sums._sum
    golden_sums._sum = lambda *given: seen.append(given) or real(*given)  # type: ignore[func-returns-value]
    try:
        assert case().any(), name
    finally:
        golden_sums._sum = real
    study, setting, broadcast, records = seen[0]
    given = broadcast_of(setting, study, broadcast)
    with pytest.raises(Misuse, match="ended"):
        total_of(compiling(Ending("AnswerTraining", 1)), study, given, records)
    studies = compiling()
    np.testing.assert_array_equal(total_of(studies, study, given, records), total_of(None, study, given, records))

    def endless(request: Inquiry[Any], honest: Answer) -> Message | None:
        found = honest(request)
        if isinstance(request, table.AnswerTraining) and isinstance(found, TrainingSaid) and found.over:
            return last[-1]
        if isinstance(found, TrainingSaid):
            last.append(found)
        return found

    last: list[TrainingSaid] = []
    with pytest.raises(Misuse, match="more noised steps"):
        total_of(compiling(endless), study, given, records)


def test_words_come_from_the_compiler_without_what_steers_a_terminal(compiling: Making) -> None:
    study = study_of(plain())

    def meddle(request: Inquiry[Any], honest: Answer) -> Message | None:
        found = honest(request)
        if isinstance(found, table.WordsSaid):
            return table.WordsSaid((*found.facts, table.Fact("more", "a\x1b[2J\nb")))
        return found

    told = dict(compiling(meddle).asked(study))
    assert "\x1b" not in told["more"]
    assert "\n" not in told["more"]
    assert len(told) > 3


def test_a_study_of_many_words_is_told_whole(compiling: Making) -> None:
    """Whoever decides on it would else be told of it without them, and a compiler would end of it."""
    plain_study = study_of(plain())
    columns = tuple(NumberColumn(name=f"{'measured ' * 12}{place:04d}", low=0, high=1) for place in range(4000))
    study = plain_study.model_copy(update={"data": plain_study.data.model_copy(update={"columns": columns})})
    told = asked_facts(study)
    assert len(told["reads"]) > 2**18
    assert dict(compiling().asked(study)) == told


def test_a_compiler_ends_with_its_study_unless_it_works(compiling: Making) -> None:
    studies, mine, other = compiling(), study_of(plain()), study_of(of_factors())
    starter = studies._starter
    assert isinstance(starter, ThreadStarter)
    for study in (mine, other):
        studies.asked(study)
        assert studies.agreed(study.to_bytes()).tasks
    digests = [studies.agreed(study.to_bytes()).digest for study in (mine, other)]
    studies.forget(digests[0])
    assert [worker.ended.is_set() for worker in starter.started] == [True, False]
    kept, forgets = studies._compilers.of(other.to_bytes()), threading.Thread(target=studies.forget, args=(digests[1],))
    with kept.lock:  # as while it works
        forgets.start()
        forgets.join()
    assert not starter.started[1].ended.is_set()
    assert not kept.broken
    assert dict(studies.asked(mine)) == asked_facts(mine)  # by another one
    assert [worker.ended.is_set() for worker in starter.started] == [True, False, False]


def test_a_real_process_gives_the_same(compiling: Making) -> None:
    setting = of_factors()
    study = study_of(setting)
    own = random_records(np.random.default_rng(1), 30, setting.schema)
    broadcast = broadcast_of(setting, study, setting.broadcast)
    studies = compiling(starter=ProcessStarter())
    task = studies.agreed(study.to_bytes()).tasks[0]
    assert isinstance(task, CompiledTask)
    studies.rehearse(task, None)
    np.testing.assert_array_equal(total_of(studies, study, broadcast, own), total_of(None, study, broadcast, own))
