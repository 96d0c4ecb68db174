"""Local training of many sites at once: what the task "local-training" computes at each of them, up to rounding.

It serves small perceptrons, where it pays, whose objective adds nothing to a site's sum and keeps nothing there: "none" and
"prox". All else trains site by site. Sites walk side by side, each its own number of steps. Without noise, what a site comes
to depends on it alone, whatever sites stand beside it.

No participant comes here: floating point products bound what a record changes only up to rounding, and noise from one call
for many sites has no meaning at one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_deploy.simulation.stacks import PerceptronStack
from veilsum_deploy.simulation.walk import JoinedRecords, NoisedSteps, Pull, Walk, by_owner, filled_up, sampled, shuffled
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.randomness import RandomSource
from veilsum_privacy.mechanism.noise import NoisePlan
from veilsum_privacy.securesum.agreed import AgreedTask
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.tasks.generation import finite_array
from veilsum_privacy.tasks.local_training import SEEDS, STEPS, LocalTraining, effective_steps
from veilsum_privacy.training.arrays import flatten, from_broadcast
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.objectives.base import Received

OBJECTIVES = ("none", "prox")
MOST_VALUES = 2**14
"""Most values of a model that is trained side by side. Of larger ones the products take the time, not the calls."""

LARGEST_STACK = 2**16
"""Most values of the models of sites that walk side by side: more do not stay in a cache."""

LARGEST_BATCHES = 2**22
"""Most values of their batches."""


class SiteTraining:
    """Trains many sites in rounds of the task "local-training"."""

    def __init__(self, agreed: AgreedTask, task: LocalTraining, architecture: Perceptron) -> None:
        self._study, self._declaration, self._task = agreed.study, agreed.declaration, task
        self._stack, self._architecture = PerceptronStack(architecture), architecture

    @np.errstate(over="ignore", invalid="ignore")
    def vectors(
        self,
        records: Records,
        offsets: Integers,
        broadcast: Mapping[str, Floats],
        places: Sequence[int],
        plan: NoisePlan,
        sources: Sequence[RandomSource],
    ) -> Floats:
        """The vectors (n, size) of n sites, as the task gives them, up to rounding.

        Args:
            records: of all the sites, one after the other, as the task sees them.
            offsets: (n + 1,) where each site's begin, and the end.
            broadcast: arrays that everyone received.
            places: of the sites among the study's participants.
            plan: of the round's noise.
            sources: where samples and noise of each site come from.

        Raises:
            HostileInput: the broadcast is not what the task needs.
        """
        task, p = self._task, self._task.parameters
        shapes = self._architecture.shapes()
        start = flatten(from_broadcast(broadcast, shapes), shapes)
        orders = _orders(broadcast, self._study.sites)[list(places)]
        pull = task.objective.begin(Received(start, broadcast, {}, 0)).pull
        sites = self._prepared(records, offsets)
        share = np.ones(len(places))
        if plan.kind == "training":
            declaration = self._declaration
            clamp = declaration.grid * self._study.data.max_records
            number = declaration.local_steps
            if number != task.noised_sums():
                raise Misuse(f"The task local-training takes {task.noised_sums()} noised steps a round, not {number}.")
            steps = NoisedSteps(number, declaration.sampling_rate, plan, declaration.grid, task.step_clip(), clamp)
            ends = self._noised(start, sites, pull, steps, sources)
            taken = np.full(len(places), p.local_steps)
        else:
            if p.weighting == "records":
                share = sites.counts / self._study.data.max_records
            ends = self._plain(start, sites, pull, orders)
            taken = np.maximum(p.epochs * -(-sites.counts // p.batch), 1)
        return self._reported(start, ends, share, taken)

    def _prepared(self, records: Records, offsets: Integers) -> JoinedRecords:
        if records.labels is None:
            raise Misuse("The task local-training needs labelled records.")
        p, every = self._task.parameters, slice(0, len(records))
        used = usable(p, records, every, self._architecture.classes)
        x = clipped(p, records, every, used)
        used &= np.isfinite(x).all(axis=1)
        before = np.concatenate([[0], np.cumsum(used)]).astype(np.int64)
        x, labels = x[used], records.labels[used]
        return JoinedRecords(np.concatenate([x, np.zeros((1, x.shape[1]))]), np.append(labels, 0), before[offsets])

    def _plain(self, start: Floats, sites: JoinedRecords, pull: Pull | None, orders: Integers) -> Floats:
        """Models (n, P) after epochs over shuffled batches, as :func:`veilsum_privacy.training.descent.descend`."""
        descent, counts = self._task.parameters.descent, sites.counts
        ends = np.tile(start, (len(orders), 1))
        for stack, height in self._stacks(np.minimum(counts, descent.batch)):
            # Those with most steps an epoch stand in front, so that those still on their way are a slice.
            members = stack[np.argsort(-counts[stack], kind="stable")]
            lengths = -(-counts[members] // descent.batch)
            rows = np.empty((len(members), int(lengths[0]), height), dtype=np.int64)
            sources = [np.random.default_rng(int(orders[member])) for member in members]
            walk = Walk(start, len(members), descent, pull)
            for _ in range(descent.epochs):
                for own, member, rng in zip(rows, members.tolist(), sources, strict=True):
                    shuffled(own, int(sites.offsets[member]), rng.permutation(int(counts[member])), descent.batch)
                for step in range(rows.shape[1]):
                    on = int(np.searchsorted(-lengths, -step, side="left"))
                    walk.step(self._stack.mean_gradients(walk.models[:on], sites.batches(rows[:on, step])))
            ends[members] = walk.models
        return ends

    def _noised(
        self, start: Floats, sites: JoinedRecords, pull: Pull | None, steps: NoisedSteps, sources: Sequence[RandomSource]
    ) -> Floats:
        """Models (n, P) after noised steps, as :func:`veilsum_privacy.training.descent.descend_noised`."""
        p = self._task.parameters
        descent, expected = p.descent, max(1.0, steps.rate * p.expected_records)
        if p.noise_step is not None:
            descent = replace(descent, learning_rate=float(p.noise_step) * expected / steps.std_of(start.size))
        ends = np.tile(start, (len(sources), 1))
        for members, _ in self._stacks(sites.counts, empty=True):
            own, counts = [sources[member] for member in members], sites.counts[members]
            first = np.repeat(sites.offsets[members] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            owner = np.repeat(np.arange(len(members)), counts)
            walk = Walk(start, len(members), descent, pull)
            for _ in range(p.local_steps):
                taken = sampled(steps.rate, counts, own)
                finite = np.isfinite(walk.models).all(axis=1, keepdims=True)
                models = walk.models if finite.all() else np.where(finite, walk.models, start)
                batches = sites.batches(by_owner(first[taken], owner[taken], len(members)))
                totals = self._stack.clipped_sums(models, batches, p.gradient_clip)
                walk.step(steps.noised(totals, own) / expected)
            ends[members] = walk.models
        return ends

    def _stacks(self, rows: Integers, *, empty: bool = False) -> Iterator[tuple[Integers, int]]:
        """Sites whose batches hold about as many rows, and that number; none without records unless ``empty``."""
        heights = filled_up(rows)
        for height in np.unique(heights).tolist():
            members = np.flatnonzero(heights == height)
            most = min(LARGEST_STACK // self._stack.size, LARGEST_BATCHES // max(height * self._architecture.width, 1))
            most = max(most, 1)
            for first in range(0, len(members) if height or empty else 0, most):
                yield members[first : first + most], height

    def _reported(self, start: Floats, ends: Floats, share: Floats, taken: Integers) -> Floats:
        """The vectors, as the task makes them of models."""
        p, layout = self._task.parameters, self._task.layout()
        updates = _scaled_to(ends - start, p.norm)
        if not p.normalised:
            return np.column_stack([share[:, None] * updates, share * p.norm])
        worth = np.array([effective_steps(int(number), p.momentum) for number in taken])
        weight = next(block.weight for block in layout.blocks if block.name == STEPS)
        return np.column_stack([(share / worth)[:, None] * updates, share * worth * weight, share * p.norm])


def site_training(agreed: AgreedTask) -> SiteTraining | None:
    """Training of many sites at once; None where sites train one by one, because they have to or because it is no slower."""
    study, declaration, task = agreed.study, agreed.declaration, agreed.task
    if not isinstance(task, LocalTraining) or not isinstance(task.architecture, Perceptron):
        return None
    if task.architecture.size > MOST_VALUES or task.objective.name not in OBJECTIVES:
        return None
    if task.parameters.generation or task.parameters.alignment or study.privacy.unit != "record":
        return None
    if declaration.disclosure != "joint" or declaration.keep or declaration.source:
        return None
    if task.parameters.outcome is not None or task.parameters.class_weights:
        return None
    return SiteTraining(agreed, task, task.architecture)


def _scaled_to(updates: Floats, norm: float) -> Floats:
    """Each row with an L2 norm of ``norm`` at most; zeros where it is not finite.

    As :func:`veilsum_privacy.training.objectives.base.scaled_to`.
    """
    largest = np.abs(updates).max(axis=1)
    known = np.isfinite(largest) & (largest > 0.0)
    updates, largest = np.where(known[:, None], updates, 0.0), np.where(known, largest, 1.0)
    units = updates / largest[:, None]
    sizes = largest * np.sqrt(np.einsum("np,np->n", units, units))
    factors = np.where(sizes <= norm, 1.0, norm * (1.0 - 1e-12) / np.where(sizes > 0.0, sizes, 1.0))
    found: Floats = updates * factors[:, None]
    return found


def _orders(broadcast: Mapping[str, Floats], sites: int) -> Integers:
    """Seeds (sites,) of the order of records.

    Raises:
        HostileInput: there are none, or they are no whole numbers.
    """
    seeds = finite_array(broadcast, SEEDS, (sites, 2))
    if not ((seeds >= 0.0) & (seeds < 2.0**53) & (seeds == np.trunc(seeds))).all():
        raise HostileInput(f"The seeds in {SEEDS} must be whole numbers from 0 to 2^53.")
    return seeds[:, 0].astype(np.int64)
