"""A model that follows from releases: whoever verified these takes the same steps, and knows what the next round broadcasts.

A study whose task "gradient" declares its steps has that task alone, or after the release of a mean. So all that its rounds
broadcast is a function of the study and of the releases before them: the centre and weights of classes by released means, and
the model, step by step. Steps are elementwise in float64 and come out alike to the bit on every machine; first values are
drawn from the study's seed, which another version of numpy, or another processor, may round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_node.errors import Damage, HostileInput, raising
from veilsum_privacy.computation.following import followed
from veilsum_privacy.securesum.array_bytes import array_pieces
from veilsum_privacy.securesum.context import Pieces, broadcast_pieces, decode_broadcast
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.feature_means import FeatureMeansParameters, released_mean
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS
from veilsum_privacy.tasks.gradient import Gradient
from veilsum_privacy.training.arrays import MODEL, to_broadcast
from veilsum_privacy.training.models import build_architecture
from veilsum_privacy.training.server_steps import RARITY, SteppedModel, rarity_weights, stated_weights

ROUNDING = 1e-6
"""Largest difference between first values by one seed, against the largest of their array: half of it is float32's."""

_MEMORY = "optimiser."


def followed_task(agreed: AgreedStudy) -> AgreedTask | None:
    """The task whose broadcasts every member works out itself; None if the study declares no steps.

    Raises:
        HostileInput: a declaration contradicts its task.
    """
    declaration = followed(agreed.study)
    return None if declaration is None else agreed.task(declaration.label)


def followed_model(agreed: AgreedStudy, kept: bytes) -> FollowedModel | None:
    """The model of a study that declares its steps, from what :meth:`FollowedModel.to_pieces` wrote; empty before a release.

    Raises:
        HostileInput: a declaration contradicts its task.
        Damage: what was kept cannot be read.
    """
    task = followed_task(agreed)
    if task is None:
        return None
    with raising(
        Damage("The model that this site kept of a study cannot be read.", "Restore a backup."),
        on=(SafetensorError, ValueError, KeyError),
    ):
        return FollowedModel(task, load(kept) if kept else None)


class FollowedModel:
    """The model of a study, from release to release.

    Args:
        task: of :func:`followed_task`.
        kept: of :meth:`to_pieces`, of an earlier object, to go on with.

    Attributes:
        taken: how many steps were taken.
    """

    def __init__(self, task: AgreedTask, kept: Mapping[str, NDArray[Any]] | None = None) -> None:
        if not isinstance(task.task, Gradient) or task.task.parameters.steps is None:
            raise ValueError("only a study that declares its steps is followed")
        p, study = task.task.parameters, task.study
        self._task, self._steps, self._parameters = task, task.task.parameters.steps, p
        self._architecture = build_architecture(p.model, task.task.dimension, len(study.data.classes))
        self._sketches = task.task.sketches
        shapes = self._architecture.shapes()
        noise = task.block_std(math.sqrt(task.released_variance(study.sites)))[MODEL + next(iter(shapes))]
        self._unit = self._steps.unit(noise, float(task.declaration.sampling_rate))
        self._beside: dict[str, Floats] = {}
        if p.class_weights and not isinstance(self._steps.class_weights, str):
            self._beside[CLASS_WEIGHTS] = np.array(stated_weights(self._steps.class_weights, study.data.classes, "a study"))
        self.label, self.taken = task.label, 0
        if kept is None:
            self._begin(self._architecture.initial(self._steps.seed))
            return
        self.taken = int(kept["taken"])
        self._begin({name: kept[MODEL + name] for name in shapes})
        self._beside |= {name: kept[name] for name in (CENTRE, CLASS_WEIGHTS) if name in kept}
        for kind in self._model.memory():
            prefix = f"{_MEMORY}{kind}."
            self._model.recall({kind: {name: kept[prefix + name] for name in shapes if prefix + name in kept}})

    def _begin(self, first: Mapping[str, NDArray[Any]]) -> None:
        rule = self._steps.with_rate(self._steps.rate(self._architecture.size))
        dtype = np.float32 if self._task.single else np.float64
        self._model = SteppedModel(rule, float(self._steps.decay), first, dtype)

    def to_pieces(self) -> Pieces:
        """All that another object goes on with, as safetensors in pieces."""
        memory = {
            f"{_MEMORY}{kind}.{name}": array for kind, arrays in self._model.memory().items() for name, array in arrays.items()
        }
        model = {MODEL + name: array for name, array in self._model.shown().items()}
        return array_pieces({**model, **memory, **self._beside, "taken": np.array(self.taken, dtype=np.int64)})

    def broadcast(self, label: str) -> Pieces:
        """What the next round broadcasts, encoded, in pieces.

        Raises:
            HostileInput: the study's rounds have another order.
        """
        if label != self._task.label:
            if self.taken or CENTRE in self._beside:
                raise HostileInput(f"A round of {label} comes after it was released.")
            return ()
        if self._parameters.centre and CENTRE not in self._beside:
            raise HostileInput(f"A round of {label} comes before the release that centres the features.")
        if self.taken >= self._steps.steps:
            raise HostileInput("All steps that the study declares were taken.")
        return broadcast_pieces({**to_broadcast(self._model.shown()), **self._along()}, self._task.single)

    def _along(self) -> dict[str, Floats]:
        """What the next round broadcasts beside the model."""
        return {**self._beside, **self._sketches.broadcast(self._steps.seed, self.taken + 1)}

    def begin_with(self, broadcast: bytes) -> None:
        """Take the first values from the first broadcast of the model, as far as they are the seed's but for rounding.

        Raises:
            HostileInput: they are others, or the model is on its way.
        """
        found, own, along = decode_broadcast(broadcast, self._task.single), self._model.shown(), self._along()
        if self.taken or set(found) != {*to_broadcast(own), *along}:
            raise HostileInput("The broadcast is not what follows from the releases.")
        for name, array in {**to_broadcast(own), **along}.items():
            exact, most = name in along, float(np.abs(array).max(initial=0.0))
            apart = float(np.abs(found[name] - array).max(initial=0.0)) if found[name].shape == array.shape else math.inf
            if apart > (0.0 if exact else ROUNDING * most):
                raise HostileInput("The first model is not that of the study's seed.")
        self._begin({name: found[MODEL + name] for name in own})

    def take(self, label: str, values: Integers, cohort: int) -> None:
        """Go on by one release that was verified; its round was of what :meth:`broadcast` gave.

        Args:
            values: (size,) in grid units.
            cohort: how many members contributed.
        """
        study = self._task.study
        task = self._task.agreed.task(label)
        blocks = task.blocks(values)
        if label != self._task.label:
            noise = task.block_std(math.sqrt(task.released_variance(cohort)))["count"]
            means = FeatureMeansParameters.model_validate(task.declaration.parameters)
            bound = 1.0 if study.encoder is None else float(means.clip)
            self._beside[CENTRE] = released_mean(blocks["count"], blocks["sum"], noise, bound)
            if (asked := self._steps.class_weights) in RARITY:
                self._beside[CLASS_WEIGHTS] = rarity_weights(blocks["count"], noise, RARITY[str(asked)])
            return
        divisor = self._steps.divisor(self._unit, cohort, study.sites)
        sketch = self._sketches.sketch(self._along())
        for _ in self._model.step(sketch.expanded(lambda name, part: blocks[MODEL + name].reshape(-1)[part]), divisor):
            pass
        self.taken += 1
