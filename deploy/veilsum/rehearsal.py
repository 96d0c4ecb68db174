"""Rehearsals: a study's own tasks and method on typical records with the noise that is to come, before anything is signed.

The records of all sites are drawn from a pool of typical ones (:mod:`veilsum.typical`) with replacement, as how often each of
them occurs at each site: a sum over a million records costs what one over the pool does. Every draw has a fixed seed, so one
plan always tells the same. Where records are sampled, sums are what they are on average. Noise is normal, as the real noise is
to within its grid.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from veilsum.typical import POOL, Guess, typical_records
from veilsum_aggregation.arrays import Floats, Integers
from veilsum_coordinator.parts.base import Method
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_node.errors import Misuse
from veilsum_node.process.imports import networks_may_be_missing
from veilsum_privacy.computation.looking import task_rows, task_sum
from veilsum_privacy.mechanism.clipping import row_norms
from veilsum_privacy.mechanism.rows.evaluation import Evaluation
from veilsum_privacy.mechanism.rows.symbols import record_of, symbol, traced
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import DerivedTask, FactorTask, Records, RowTask
from veilsum_privacy.tasks.feature_maps import map_records
from veilsum_privacy.tasks.tables import Tables, TablesParameters

if TYPE_CHECKING:
    from veilsum_privacy.tasks.model_tables import ModelTables

MANY_RELEASES, SMALL_POOL, LEAST_POOL = 8, 250, 100

MOST_OF_SITE = 4000
"""Records on which a task computes that gives one vector a site."""

MOST_VALUES = 4_000_000
"""Values of records' vectors that are kept from one run to the next, zeros not counted."""

MOST_WITH_ZEROS = 1_000_000
"""Values, zeros counted, up to which vectors are kept as they are, and not as sparse ones: scipy's take long to import."""

EVALUATED = "model-tables"
"""The task that evaluates a model."""

RIGHT = 1.6
"""How much larger the score of a record's class is on average than the others', in their standard deviations, where a model
that nobody has yet seen is evaluated: of two classes it is right in 7 of 8 cases."""


class Rehearsal:
    """One study's rehearsal, at any noise.

    Args:
        width: number of features that an encoder makes; None without one.
        expected: checked guesses.
        sites: how many take part.
        records: that each of them is expected to have.
        releases: of the study; of many, the pool is smaller.
        values: of the longest vector of its tasks; of long ones, the pool is smaller.
    """

    def __init__(
        self,
        method: Method[Any],
        schema: DatasetSchema,
        width: int | None,
        expected: Mapping[str, Guess],
        sites: int,
        records: int,
        releases: int = 1,
        values: int = 1,
    ) -> None:
        self.method, self.sites, self.records = method, sites, records
        self._width, self._rows = width, dict[str, Any]()
        self._exact = dict[str, Result]()
        self._last: tuple[Study, AgreedStudy] | None = None
        self.schema = schema if width is None else _of_features(schema, width)
        most = POOL if releases <= MANY_RELEASES else SMALL_POOL
        number = max(LEAST_POOL, min(most, MOST_VALUES // values))
        self.pool = typical_records(self.schema, expected, number, made=width is not None)

    def runs(self, study: Study) -> int:
        """How many runs a plan makes at first; 0 where the study is not rehearsed, as what sites train is not."""
        return 0 if any(task.local_steps or task.resolution for task in study.tasks) else self.method.rehearsals

    def exact(self, study: Study) -> Result:
        """The result without noise, on what sums are expected to be; the same for studies that differ by their noise."""
        asked = str(study.parameters)
        if asked not in self._exact:
            self._exact[asked] = self._result(study, self._typical, None)
        return self._exact[asked]

    def same_records(self, study: Study, number: int) -> Result:
        """The result of one run on the records of :meth:`exact`, of which it differs by its noise alone."""
        return self._result(study, self._typical, np.random.default_rng((3, number)))

    def run(self, study: Study, number: int) -> Result:
        """The result of one run, with noise if the study has any."""
        rng = np.random.default_rng((3, number))
        counts = rng.multinomial(self.records, np.full(len(self.pool), 1.0 / len(self.pool)), self.sites).astype(np.float64)
        return self._result(study, counts, rng)

    @property
    def _typical(self) -> Floats:
        """How often each record of the pool occurs at each site on average (sites, records of the pool)."""
        return np.full((self.sites, len(self.pool)), self.records / len(self.pool))

    def _result(self, study: Study, counts: Floats, rng: np.random.Generator | None) -> Result:
        with networks_may_be_missing(), np.errstate(all="ignore"):
            return self.method.run(_Rehearsed(self._agreed(study), self.pool, counts, rng, self._rows))

    def _agreed(self, study: Study) -> AgreedStudy:
        """The study as one of features that are there already; its tasks are built once for all runs."""
        if self._last is None or self._last[0] is not study:
            made = study if self._width is None else study.model_copy(update={"encoder": None, "data": self.schema})
            self._last = study, AgreedStudy(made)
        return self._last[1]

    def weights(self, study: Study) -> Mapping[str, float]:
        """Each query's average part of a record's squared norm in the one release of tables; empty for other tasks."""
        agreed = self._agreed(study).tasks[0]
        if not isinstance(agreed.task, Tables):
            return {}
        squares = np.zeros(agreed.task.layout().size)
        for batch in task_rows(agreed.task, self.pool, {}):
            squares += np.square(batch.astype(np.float64)).sum(axis=0)
        found, at = dict[str, float](), 0
        for question in agreed.task.questions:
            end = at + sum(block.size for block in question.blocks())
            name = question.query.part_of or question.query.name
            found[name] = found.get(name, 0.0) + float(squares[at:end].sum() / max(squares.sum(), 1e-300))
            at = end
        return found


def _of_features(schema: DatasetSchema, width: int) -> DatasetSchema:
    """A schema whose columns are the features that an encoder makes."""
    taken = set() if schema.label is None else {schema.label.column}
    names = [name for name in (f"feature {index}" for index in range(width + 1)) if name not in taken][:width]
    return schema.model_copy(update={"columns": tuple(NumberColumn(name=name, low=-1, high=1) for name in names)})


class _Rehearsed(Federation):
    """One run.

    Args:
        counts: (sites, records of the pool) how often each occurs.
        rng: where noise and samples come from; None without noise.
        rows: vectors of the pool by label, of tasks that are broadcast nothing; further runs take them.
    """

    def __init__(
        self, agreed: AgreedStudy, pool: Records, counts: Floats, rng: np.random.Generator | None, rows: dict[str, Any]
    ) -> None:
        super().__init__(agreed.study)  # features are made already
        self._pool, self._counts, self._rng, self._rows = pool, counts, rng, rows
        self._agreed, self._round = agreed, 0
        self._kept: dict[str, dict[int, Floats]] = {}

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """One round; every member takes part."""
        agreed, names = self._agreed.task(label), self.study.participants
        places = [place for place, name in enumerate(names) if members is None or name in members]
        arrays, task, keep = agreed.as_broadcast(broadcast or {}), agreed.task, agreed.declaration.keep
        apart = agreed.per_site or keep
        rows = isinstance(task, RowTask) and not isinstance(task, FactorTask)
        if isinstance(task, RowTask) and rows and task.alignment is None and not task.site_arrays():
            counts = self._counts[places]
            parts = self._sums(agreed, task, arrays, counts if apart else counts.sum(axis=0, keepdims=True), places[0])
        else:
            parts = np.stack([self._at_site(agreed, arrays, place) for place in places])
            parts = parts if apart else parts.sum(axis=0, keepdims=True)
        std = 0.0 if self._rng is None else math.sqrt(agreed.released_variance(len(places)))
        if self._rng is not None and std:
            own = agreed.noise(len(names)).share_std if keep else std
            parts = parts + self._rng.normal(0.0, own * agreed.unit, parts.shape)
        if keep:
            self._kept[label] = dict(zip(places, parts, strict=True))
        each = [task.layout().split(one) for one in (parts if agreed.per_site else parts.sum(axis=0, keepdims=True))]
        values = {name: np.stack([one[name] for one in each]) for name in each[0]} if agreed.per_site else each[0]
        self._round += 1
        cohort = tuple(names[place] for place in places)
        return Release(label, self._round, values, agreed.block_std(std), cohort, bytes(32))

    def _at_site(self, agreed: AgreedTask, arrays: Mapping[str, Floats], place: int) -> Floats:
        """The vector (size,) of one site."""
        task = agreed.task
        arrays = {**arrays, **{name: arrays[name][place] for name in task.site_arrays()}}
        if isinstance(task, DerivedTask):
            return np.clip(task.vector(*self._source(agreed, place), arrays), -task.clip(), task.clip())
        counts = self._counts[place]
        if isinstance(task, RowTask) and not isinstance(task, FactorTask):
            total: Floats = self._sums(agreed, task, arrays, counts[None], place)[0]
            return total
        if not isinstance(task, FactorTask):
            raise Misuse(f"The task {task.name} trains at the sites, which is not rehearsed.")
        some = min(round(counts.sum()), MOST_OF_SITE)
        chosen = np.sort(np.random.default_rng((4, place)).choice(len(counts), some, p=counts / counts.sum()))
        records = replace(self._mapped(agreed, chosen, arrays, place), subjects=None)
        vector: Floats = task_sum(task, records, arrays) * (counts.sum() / some)
        return vector

    def _sums(
        self, agreed: AgreedTask, task: RowTask[Any], arrays: Mapping[str, Floats], counts: Floats, place: int
    ) -> Floats:
        """Sums (rows, size) of the pool's clipped vectors, each as often as a row of ``counts`` says."""
        rate = agreed.declaration.sampling_rate
        if rate < 1.0:
            counts = counts * rate
        asked = f"{agreed.label} {agreed.declaration.parameters}"
        if asked in self._rows:
            return np.asarray((self._rows[asked].T @ counts.T).T)
        total, kept = np.zeros((len(counts), task.layout().size)), list[Any]()
        compact, stack = _storage(len(self._pool) * task.layout().size)
        at, values = 0, 0
        for batch in self._vectors(agreed, task, arrays, place):
            rows = np.where(np.isfinite(batch), batch, 0.0).astype(np.float64)
            rows *= np.minimum(1.0, task.clip() / np.maximum(row_norms(rows), 1e-300))[:, None]
            total += counts[:, at : at + len(rows)] @ rows
            at += len(rows)
            if not arrays and agreed.source is None and values <= MOST_VALUES:
                kept.append(compact(rows))
                values += int(np.count_nonzero(rows))
        if kept and values <= MOST_VALUES:
            self._rows[asked] = stack(kept)
        return total

    def _vectors(
        self, agreed: AgreedTask, task: RowTask[Any], arrays: Mapping[str, Floats], place: int
    ) -> Iterator[Floats | Integers]:
        """The vectors of the pool, in batches; what a model says of a record, whose arrays no plan has, is made up."""
        if task.name != EVALUATED:
            yield from task_rows(task, self._mapped(agreed, slice(None), arrays, place), arrays)
            return
        from veilsum_privacy.tasks.model_tables import ModelTables, classified_schema, scored_schema  # with every architecture

        pool, task = self._pool, cast(ModelTables, task)
        p = task.parameters
        asked = TablesParameters.model_validate({name: getattr(p, name) for name in TablesParameters.model_fields})
        if p.outcome is None and pool.labels is not None:
            tables = Tables(asked, classified_schema(task.schema, p.classes, p.largest_loss))
            scores = _made_up_scores(task, pool.labels)
            record = record_of(scores.shape[1], labelled=True)
            read = task.of_scores(record.features, symbol(np.True_), symbol(record.label))
            given = Records(scores, np.ones(scores.shape, dtype=np.bool_), pool.labels)
            yield from Evaluation(traced(tables.row(read, {}))).rows(given)
        else:
            schema = scored_schema(task.schema, p.low, p.high)
            scores = typical_records(schema, {}, len(pool)).features[:, -1:]
            records = Records(
                np.hstack([pool.features, scores]), np.column_stack([pool.present, scores == scores]), pool.labels
            )
            yield from task_rows(Tables(asked, schema), records, {})

    def _mapped(
        self, agreed: AgreedTask, chosen: slice | NDArray[np.intp], arrays: Mapping[str, Floats], place: int
    ) -> Records:
        """Records of the pool as the task sees them at a site."""
        records, features = self._pool.take(chosen), agreed.task.features
        if features is None:
            return records
        kept, std = (None, None) if agreed.source is None else self._source(agreed, place)
        return map_records(agreed.study, features, records, arrays, index=place, kept=kept, noise_std=std)

    def _source(self, agreed: AgreedTask, place: int) -> tuple[dict[str, Floats], dict[str, float]]:
        """Blocks of what the site kept, and its noise in them."""
        source = cast(AgreedTask, agreed.source)
        std = 0.0 if self._rng is None else source.noise(self.study.sites).share_std
        return source.task.layout().split(self._kept[source.label][place]), source.block_std(std)


def _storage(values: int) -> tuple[Callable[[Floats], Any], Callable[[list[Any]], Any]]:
    """How vectors of so many values, zeros counted, are kept, and how batches of them are joined."""
    if values <= MOST_WITH_ZEROS:
        return np.asarray, np.vstack
    from scipy.sparse import csr_array, vstack

    return csr_array, lambda batches: vstack(batches, format="csr")


def _made_up_scores(task: "ModelTables", labels: Integers) -> Floats:
    """Scores (n, M) of a model that is mostly right about records of these classes."""
    named = task.parameters.classes
    scores = np.random.default_rng(4).standard_normal((len(labels), len(named)))
    own = np.array([named.index(name) if name in named else -1 for name in task.schema.classes])[labels]
    scores[own >= 0, own[own >= 0]] += RIGHT
    return scores
