"""A site's part of a round before noise: its task on its records, bounded, on the grid, in the place that disclosure gives it.

Everything that is released passes through :func:`compute_sum`; the participant and the simulation call the same. A
participant calls it by way of :func:`contribute`, which gives a vector whatever the records are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha256
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import SYSTEM_RANDOM, RandomSource
from veilsum_privacy.computation.declared import (
    ENCODER,
    DeclaredPlan,
    DeclaredTask,
    Encode,
    Given,
)
from veilsum_privacy.computation.declared import (
    Note as Note,
)
from veilsum_privacy.computation.terms import opaque_names
from veilsum_privacy.computation.weights import cohort_factors
from veilsum_privacy.mechanism.clipping import MAX_VALUES
from veilsum_privacy.mechanism.factors import FactorSums, FineUnits
from veilsum_privacy.mechanism.noise import CENTRE_BITS
from veilsum_privacy.mechanism.records import Records, join_batches
from veilsum_privacy.mechanism.requests import Trained, block_of
from veilsum_privacy.mechanism.rows.evaluation import TALL, Evaluation, OpaqueMap
from veilsum_privacy.mechanism.rows.graph import RowGraph
from veilsum_privacy.mechanism.rows.sums import rows_sum
from veilsum_privacy.mechanism.steps import Steps, poisson_sample
from veilsum_privacy.study.study import Study

LOG = logging.getLogger("veilsum.participant")

MOST_KEPT = 2**26
"""Bytes of graphs that are kept, about."""


class Graphs:
    """Graphs that were traced, by study, task and all public or noised arrays that they were traced with.

    A graph is what it was when it was traced, whatever came after: its nodes are frozen, and their arrays are bytes. It meets
    no record, and neither does a key. Of a task the last one is kept, and all are let go before they take too much.

    Attributes:
        size: bytes that were kept since all were let go, about.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[bytes, str], tuple[str, RowGraph]] = {}
        self.size = 0

    def of(self, agreed: DeclaredTask, key: str, trace: Callable[[], RowGraph]) -> RowGraph:
        """The graph of a task with what ``key`` tells, which is traced if it is not the one that is kept."""
        task = agreed.agreed.digest, agreed.label
        found = self._kept.get(task)
        if found is not None and found[0] == key:
            return found[1]
        graph = trace()
        size = sum(1024 + sum(array.nbytes for array in step.node.arrays) for step in graph.steps)
        if self.size + size > MOST_KEPT:
            self._kept, self.size = {}, 0
        if size <= MOST_KEPT:
            self._kept[task] = key, graph
            self.size += size  # a graph in the place of another counts beside it until all go
        return graph

    def forget(self, study: bytes) -> None:
        """Let go of the graphs of a study that is over; of its digest."""
        self._kept = {task: found for task, found in self._kept.items() if task[0] != study}
        if not self._kept:
            self.size = 0


class Evaluations:
    """Graphs of a task, kept ready from a round's rehearsal to the round, and from one site to the next; of one thread.

    Nobody writes to a broadcast's arrays, so that the digest of each is taken once.

    Args:
        graphs: where graphs of ``agreed`` are looked for before they are traced, and kept.
        agreed: the task, as its study declares it; of another declaration of it the graphs are the same.
    """

    def __init__(self, graphs: Graphs | None = None, agreed: DeclaredTask | None = None) -> None:
        self._graphs, self._agreed = graphs, agreed
        self._kept: tuple[DeclaredTask, str, Evaluation] | None = None
        self._requested: tuple[RowGraph, int, Evaluation] | None = None
        self._said: list[tuple[NDArray[Any], bytes]] = []

    def graph(self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], given: Given) -> RowGraph:
        """The graph of a task's rows, which is traced if it is not kept."""
        return self._graph(agreed, broadcast, given, self._traced_with(agreed, broadcast, given))

    def _graph(self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], given: Given, key: str) -> RowGraph:
        def trace() -> RowGraph:
            return agreed.row_graph(broadcast, given)

        known, own = self._graphs, self._agreed
        return trace() if known is None or own is None else known.of(own, key, trace)

    def of(
        self,
        agreed: DeclaredTask,
        broadcast: Mapping[str, Floats],
        given: Given,
        most: int,
        maps: Callable[[Mapping[str, OpaqueMap]], Mapping[str, OpaqueMap]],
    ) -> Evaluation:
        """The graph with a broadcast as public arrays, of records as a site has them, in blocks of so many at most.

        ``maps`` gives what is taken in the place of the graph's own opaque maps, once it was traced.
        """
        traced = self._traced_with(agreed, broadcast, given)
        key = f"{most} {id(given.encode)} {traced}"
        if self._kept is None or self._kept[0] is not agreed or self._kept[1] != key:
            graph = self._graph(agreed, broadcast, given, traced)
            found = {**maps(agreed.row_maps(broadcast, graph)), **programs_of(graph, given)}
            self._kept = None  # one that is let go makes room for the next
            self._kept = agreed, key, Evaluation(graph, found, most)
        self._kept[2].fault = None
        return self._kept[2]

    def requested(self, graph: RowGraph, maps: Mapping[str, OpaqueMap], most: int) -> Evaluation:
        """The graph that training asks for, with its maps; it is the one that is kept where it is the same object."""
        if self._requested is None or self._requested[0] is not graph or self._requested[1] != most:
            self._requested = graph, most, Evaluation(graph, maps, most)
        self._requested[2].fault = None
        return self._requested[2]

    def _traced_with(self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], given: Given) -> str:
        """What a graph depends on beside its task, as a text."""
        kept, about = dict[str, Integers](), "None 0"
        if agreed.terms.mapped:
            about, source = f"{given.encode is not None} {given.index}", agreed.declaration.source
            kept = {} if source is None or source not in given.kept else {"kept": given.kept[source]}
        said, known = sha256(), self._said
        self._said = []
        for name, array in sorted([*broadcast.items(), *((f"kept {name}", array) for name, array in kept.items())]):
            said.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest = next((digest for one, digest in known if one is array), None)
            digest = sha256(np.ascontiguousarray(array).data).digest() if digest is None else digest
            self._said.append((array, digest))
            said.update(digest)
        return f"{about} {said.hexdigest()}"


def programs_of(graph: RowGraph, given: Given) -> Mapping[str, OpaqueMap]:
    """The study's program, where the graph takes it."""
    return {} if given.encode is None or ENCODER not in opaque_names(graph) else {ENCODER: given.encode}


class Elsewhere(Protocol):
    """Where networks meet records, if that is not this process."""

    @property
    def spent(self) -> bool:
        """Whether it took longer than it may: then the site contributes what one without records does."""

    def encode(self, encode: Encode | None) -> Encode | None:
        """The study's program, held to the round's time."""

    def maps(
        self, agreed: DeclaredTask, broadcast: Mapping[str, Floats], state: Mapping[str, Floats], maps: Mapping[str, OpaqueMap]
    ) -> Mapping[str, OpaqueMap]:
        """These opaque maps of a task, each in the place of one of this process."""

    def train(
        self,
        agreed: DeclaredTask,
        records: Records,
        broadcast: Mapping[str, Floats],
        state: Mapping[str, Floats],
        note: Note,
    ) -> Trained:
        """As :meth:`.TrainingTask.train_plainly`."""


@dataclass(frozen=True)
class SitePlace:
    """What a site brings to a round besides its records.

    Attributes:
        index: its place among the study's participants.
        kept: noised vectors that it kept, in grid units, by label.
        encode: the study's program, if the records are not encoded yet.
        cohort: places of the round's members among the study's participants; None for all of them.
        state: what it trained in its last paid round of the task.
        random: where samples, and noise within training, come from.
        steps: what hands a training task its samples and noise; an audit takes one that looks on.
        most_records: how many records the dataset may come to hold, which its operator stated; 0 where nothing is stated.
        evaluations: keep the graph of the task's rows, or of what training asks first, for the next site; None to let it go.
        elsewhere: where networks are computed on records; None for here.
    """

    index: int = 0
    kept: Mapping[str, Integers] = field(default_factory=dict, repr=False)
    encode: Encode | None = None
    cohort: tuple[int, ...] | None = None
    state: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    random: RandomSource = field(default=SYSTEM_RANDOM, repr=False)
    steps: Callable[..., Steps] = field(default=Steps, repr=False)
    most_records: int = 0
    evaluations: Evaluations | None = field(default=None, repr=False)
    elsewhere: Elsewhere | None = field(default=None, repr=False)

    @property
    def given(self) -> Given:
        """What the site's graphs depend on."""
        return Given(self.index, self.kept, self.encode)


class SitePart(NamedTuple):
    """A site's part of a round.

    Attributes:
        total: the vector as it is summed, (size,) int64, in grid units; in 2^-20 of them where the study leaves it unrounded.
        clipped: how many rows were scaled down.
        invalid: how many rows were not finite and counted as zero.
        cut: how many values of the sum were more than ``max_records`` records can reach, and were cut off.
        state: what the site keeps of its training until the round is paid for.
        fault: what went wrong while it was computed; stays at the site.
        lost: whether it is what a site without records contributes, because of that.
    """

    total: Integers
    clipped: int = 0
    invalid: int = 0
    cut: int = 0
    state: Mapping[str, Floats] = MappingProxyType({})
    fault: Exception | None = None
    lost: bool = False


def contribute(
    plan: DeclaredPlan, load: Callable[[], Records | Iterable[Records]], broadcast: Mapping[str, Floats], place: SitePlace
) -> SitePart:
    """:func:`compute_sum` as a total function: a site whose records cannot be read, or computed on, takes part all the same.

    That a site takes part, and what it sends in which size, must not depend on its records: who chooses the task could ask
    for one that fails on a record of interest. Nor may a record on which a task fails change what others contribute. So a
    record on which an opaque map fails counts for nothing, and all others count as they would without it
    (:mod:`veilsum_privacy.mechanism.rows.evaluation`). What fails otherwise, as reading does, contributes what a site without
    records would.

    Args:
        load: reads the records, whole or in batches as :func:`compute_sum` takes them.
        plan, broadcast, place: as for :func:`compute_sum`; what can fail without records was tried before
            (:mod:`veilsum_privacy.computation.rehearsal`).
    """
    faults: list[Exception] = []
    fault: Exception
    try:
        part = compute_sum(plan, _read(load), broadcast, place, faults.append)
        if place.elsewhere is not None and place.elsewhere.spent:
            raise Misuse("What computes networks took longer than it may.")
        return part._replace(fault=faults[0] if faults else None)
    except Exception as error:  # noqa: BLE001  whatever it is, it must not be seen
        fault = error
    try:
        here = replace(place, elsewhere=None, evaluations=None)  # without records, so no process has to be asked
        return compute_sum(plan, no_records(plan.task.study), broadcast, here)._replace(fault=fault, lost=True)
    except Exception:
        LOG.debug("there is no contribution without records either", exc_info=True)
        return SitePart(np.zeros(plan.encoding.size, dtype=np.int64), fault=fault, lost=True)


def _read(load: Callable[[], Records | Iterable[Records]]) -> Iterator[Records]:
    """Batches that are read when the first one is asked for."""
    found = load()
    if isinstance(found, Records):
        yield found
    else:
        yield from found


def no_records(study: Study) -> Records:
    """What a site without records computes on."""
    empty = np.zeros((0, study.data.width))
    whose = np.zeros(0, dtype=np.int64)
    return Records(empty, np.zeros(empty.shape, dtype=np.bool_), None if study.data.label is None else whose, whose)


def compute_sum(
    plan: DeclaredPlan,
    records: Records | Iterable[Records],
    broadcast: Mapping[str, Floats],
    place: SitePlace | None = None,
    note: Note | None = None,
) -> SitePart:
    """Run a round's task at a site: sampled and bounded by the study's unit, on the grid, clamped; before noise is added.

    Args:
        records: all of them; or in batches, each with all records of its subjects. A :class:`RowTask` takes one batch
            after the other, and gives the same integers whatever the batches are; other tasks take them joined.
        note: is told what was raised on single records; None to raise it.

    Returns:
        the vector as it is summed, with one block a site where it is disclosed per site.

    Raises:
        Misuse: the study protects subjects, and nothing tells which records are of one; or nothing was kept.
        HostileInput: the broadcast is not what the task needs.
    """
    place, note = SitePlace() if place is None else place, _raised if note is None else note
    agreed, terms = plan.task, plan.task.terms
    factor = _factor(agreed.study, broadcast, place) if terms.weighted else 1.0
    broadcast = own_rows(agreed, broadcast, place.index)
    batches, one = [records] if isinstance(records, Records) else records, agreed.study.privacy.unit == "site"
    if one:
        batches = _as_one_unit(batches)
    match terms.kind:
        case "derived":
            found = _derive(agreed, broadcast, place)
        case "training":
            from veilsum_privacy.computation.training_round import train

            found = train(plan, batches, broadcast, place, factor, note)
        case _ if one:
            taken = poisson_sample(agreed.declaration.sampling_rate, 1, place.random)
            found = _add_rows(plan, batches, broadcast, place, note)
            if not taken.all():  # only now: a site that was not drawn would else be told by how soon it answers
                found = found._replace(total=np.zeros_like(found.total))
        case _:
            found = _add_rows(plan, _sampled(agreed, batches, place.random), broadcast, place, note)
    if not agreed.per_site:
        return found
    whole = np.zeros((agreed.study.sites, terms.size), dtype=np.int64)
    whole[place.index] = found.total
    return found._replace(total=whole.ravel())


def own_rows(agreed: DeclaredTask, broadcast: Mapping[str, Floats], index: int) -> Mapping[str, Floats]:
    """The broadcast with the site's own row in place of arrays that have one for each participant."""
    rows: dict[str, Floats] = {}
    for name in agreed.terms.site_arrays:
        array = broadcast.get(name)
        if array is None or array.ndim < 1 or len(array) != agreed.study.sites:
            raise HostileInput(f"The broadcast must hold {name}, one row for each participant.")
        rows[name] = array[index]
    return {**broadcast, **rows}


def _factor(study: Study, broadcast: Mapping[str, Floats], place: SitePlace) -> float:
    """What the site's vector is multiplied by, in [0, 1]."""
    cohort = tuple(range(study.sites)) if place.cohort is None else place.cohort
    return float(cohort_factors(broadcast, cohort, study.sites)[cohort.index(place.index)])


def _unit_subjects(study: Study, records: Records) -> Integers | None:
    """The unit of each record where that is a subject or the whole site; None where it is the record."""
    if study.privacy.unit == "record":
        return None
    if records.subjects is None:
        raise Misuse("The study's unit is the subject, and the dataset names no column that tells subjects apart.")
    return records.subjects


def _as_one_unit(batches: Iterable[Records]) -> Iterator[Records]:
    """All records of a site as those of one subject, in one batch: their rows are added and clipped once.

    They are joined when the first one is asked for, after all that is public was tried.
    """
    whole = join_batches(batches)
    yield replace(whole, subjects=np.zeros(len(whole), dtype=np.int64))


def _sampled(agreed: DeclaredTask, batches: Iterable[Records], random: RandomSource) -> Iterable[Records]:
    """A Poisson sample of each batch, drawn by the study's unit; the batches themselves where all records take part."""
    rate = agreed.declaration.sampling_rate

    def sample(records: Records) -> Records:
        return records.take(poisson_sample(rate, len(records), random, _unit_subjects(agreed.study, records)))

    return batches if rate == 1 else map(sample, batches)


def _add_rows(
    plan: DeclaredPlan,
    batches: Iterable[Records],
    broadcast: Mapping[str, Floats],
    place: SitePlace,
    note: Note,
) -> SitePart:
    """The rows of all records by the task's graph, which is traced before the first of them is read."""
    agreed, terms, elsewhere = plan.task, plan.task.terms, place.elsewhere
    products, persons, clip, grid = terms.products, terms.persons, terms.clip, plan.declaration.grid
    expected = plan.declaration.sampling_rate * agreed.study.data.max_records
    most = TALL if products is None else block_of(expected)

    def maps(own: Mapping[str, OpaqueMap]) -> Mapping[str, OpaqueMap]:
        return own if elsewhere is None else elsewhere.maps(agreed, broadcast, {}, own)

    evaluation = (place.evaluations or Evaluations()).of(agreed, broadcast, place.given, most, maps)
    if persons is not None and terms.mapped:
        persons = replace(persons, valued=False)
    whole, sums = np.zeros(terms.size if products is None else 0, dtype=np.int64), None
    if products is not None:
        places, largest = (CENTRE_BITS, agreed.largest) if plan.declaration.unrounded else (0, 0)
        fine = FineUnits.of(clip, grid, terms.size, places=places, largest=largest)
        sums = FactorSums(evaluation, products, fine)
    count = clipped = invalid = 0
    for records in batches:
        count += len(records)
        if count > MAX_VALUES:
            raise Misuse("A site's sum takes at most 2^36 records.")
        units = _unit_subjects(agreed.study, records)
        if sums is not None:
            sums.add(records, units)
        else:
            found = rows_sum(evaluation, records, clip, grid, persons=persons, units=units)
            whole += found.total
            clipped, invalid = clipped + found.clipped, invalid + found.invalid
        del records  # before the next ones are read
    if sums is not None:
        whole, clipped, invalid = sums.total(), sums.clipped, sums.invalid
    fault, evaluation.fault = evaluation.fault, None
    if fault is not None:
        note(fault)
    total, cut = _bounded(plan, whole, place.most_records)
    return SitePart(total, clipped, invalid, cut)


def _bounded(plan: DeclaredPlan, whole: Integers, most_records: int) -> tuple[Integers, int]:
    """A site's sum within what ``max_records`` records can reach, and how many of its values that cut off.

    With noise each value is clamped by itself, which is 1-Lipschitz; a factor that followed the sum would move every value for
    one record. The size that the site's operator stated for the dataset is not a record, so :func:`shrunk` may follow it.
    Without noise there is nothing to bound but the lane: all values shrink by one factor, and a mean stays a mean.
    """
    study, bound = plan.task.study, plan.encoding.bound << (CENTRE_BITS if plan.declaration.unrounded else 0)
    if study.privacy.noise == "none":
        largest = int(np.abs(whole).max(initial=0))
        return (whole, 0) if largest <= bound else (np.rint(whole * (bound / largest)).astype(np.int64), len(whole))
    # A whole site's sum is as long as one record's may be, however many records there are.
    if most_records > study.data.max_records and plan.declaration.sampling_rate == 1 and study.privacy.unit != "site":
        whole = shrunk(whole, study.data.max_records, most_records)
    if -bound <= whole.min(initial=0) and whole.max(initial=0) <= bound:
        return whole, 0
    found = np.clip(whole, -bound, bound)
    return found, int(np.count_nonzero(found != whole))


def shrunk(whole: Integers, kept: int, of: int) -> Integers:
    """Integers times ``kept / of``, rounded, for public ``kept <= of`` up to 2^24 and 2^36.

    Sensitivity. For integers a >= b the results differ by at most ceil((a - b) kept / of) <= a - b, since a - b is an integer:
    no value changes by more than it did before, and so no norm.
    """
    quotient, rest = np.divmod(whole, of)
    found: Integers = quotient * kept + (rest * kept + of // 2) // of
    return found


def _raised(fault: Exception) -> None:
    raise fault


def _derive(agreed: DeclaredTask, broadcast: Mapping[str, Floats], place: SitePlace) -> SitePart:
    terms = agreed.terms
    vector = agreed.derived(broadcast, place.kept)
    if vector.shape != (terms.size,) or not np.isfinite(vector).all():
        raise HostileInput("What was broadcast gives no finite vector.")
    scaled = np.clip(vector / terms.clip, -1.0, 1.0) * agreed.declaration.grid
    return SitePart(np.rint(scaled).astype(np.int64))
