"""The task "model-update": a site trains the broadcast head on its own records, and on what it generates, for one round.

One round is one release. What a record adds to a trained model has no small bound, so under noise an update is charged at the
most that two updates can differ. Training with noise in every step is another task's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_privacy.errors import HostileInput, Misuse
from veilsum_privacy.schema import DatasetSchema, Frozen, Real
from veilsum_privacy.tasks.base import Block, FeatureParameters, Floats, Layout, Records, SiteTask
from veilsum_privacy.tasks.features import clipped, usable
from veilsum_privacy.training.mlp import Descent, layer_shapes, train

SEEDS = "model.seeds"
"""Broadcast array (sites, 2): each site's seed of the order of samples, and its seed of generation; whole numbers."""

DIRECTIONS = "geometry.directions"
"""Broadcast array (K, d, d): a deviation of class c is directions[c] times standard normal numbers; zeros repeat samples."""

PROTOTYPES, USE = "geometry.prototypes", "geometry.use"
"""Broadcast arrays (P, K, d) of class prototypes, and (sites, P, K), 0 where a site generates none around one."""

Labels = NDArray[np.int64]

MOST_GENERATED = 2**28
"""Most values of samples that a site generates in one round: 2 GiB."""


class Generation(Frozen):
    """What a site generates in the directions of the broadcast class geometries (GGEUR).

    Attributes:
        fill: records of each class that the site has are joined by samples around them up to this number; None for none. How
            often a record is copied then depends on how many there are: without noise only.
        copies: samples around each record, a public constant.
        prototypes: samples around each prototype that the site is told to use.
    """

    fill: int | None = Field(default=None, ge=1, le=100_000)
    copies: int = Field(default=0, ge=0, le=10_000)
    prototypes: int = Field(default=0, ge=0, le=100_000)


class ModelUpdateParameters(FeatureParameters):
    """Parameters of :class:`ModelUpdate`; all public and independent of the data.

    Attributes:
        hidden: width of the hidden layer; 0 for a linear head.
        epochs, batch, learning_rate, momentum, decay: see :class:`veilsum_privacy.training.mlp.Descent`.
        norm: L2 norm N that an update is scaled down to if it exceeds it.
        weighting: of a site's update, ``equal`` or by its ``records``, which is without noise only.
        generation: None for none.
    """

    hidden: int = Field(ge=0, le=4096)
    epochs: int = Field(ge=1, le=1000)
    batch: int = Field(ge=1, le=2**20)
    learning_rate: Real = Field(gt=0, le=1e6)
    momentum: Real = Field(default=0.0, ge=0, lt=1)
    decay: Real = Field(default=0.0, ge=0, le=1e6)
    norm: Real = Field(gt=0, le=1e9)
    weighting: Literal["records", "equal"]
    generation: Generation | None = None


class ModelUpdate(SiteTask):
    """A site's weight times what local training changes in the broadcast model, scaled down to a norm of N.

    Blocks: ``model.0.weight`` (H, d), ``model.0.bias`` (H,), ``model.1.weight`` (K, H), ``model.1.bias`` (K,), or the first
    two for K classes where there is no hidden layer; ``weight`` (1,). The broadcast holds the model in arrays of these names.
    The sum of updates over the sum of weights is added to the model. A site that has nothing to train on, or whose training
    ends in something that is not finite, changes nothing.

    Sensitivity, where sites weigh alike. Whatever the records are, an update has a norm of N at most and the weight is 1, so
    two vectors of a site differ by at most 2 N; one record that turns the update around reaches it. Where sites weigh by their
    records there is no such bound, nor a need for one: a study with noise that asks for that, or for a generation that copies
    records by how many there are, is refused.

    The order of samples and what is generated come from public seeds. They protect nothing, and the bound does not use them.
    """

    name = "model-update"
    Parameters: ClassVar[type[Frozen]] = ModelUpdateParameters

    def __init__(self, parameters: Frozen, schema: DatasetSchema) -> None:
        if not isinstance(parameters, ModelUpdateParameters):
            raise Misuse("The task model-update takes its own parameters.")
        if len(schema.classes) < 2:
            raise Misuse("The task model-update needs a label with two classes or more.", "Add a [label] table with classes.")
        self.parameters = parameters
        self._classes = len(schema.classes)
        self._width = parameters.dimension(schema)
        generation = parameters.generation
        if generation is not None:
            # Of what is public: a site that ran out of memory would tell how many records it has.
            samples = generation.copies * schema.max_records + self._classes * ((generation.fill or 0) + generation.prototypes)
            if samples * self._width > MOST_GENERATED:
                raise Misuse(f"The task model-update would generate more than {MOST_GENERATED} values.", "Generate fewer.")
        shapes = layer_shapes(self._width, parameters.hidden, self._classes)
        self._model = tuple(Block(f"model.{i // 2}.{'bias' if i % 2 else 'weight'}", shape) for i, shape in enumerate(shapes))

    def layout(self) -> Layout:
        # Carried at N a unit, so that neither block is coarser on the grid than the other.
        return Layout((*self._model, Block("weight", (1,), self.parameters.norm)))

    def clip(self) -> float:
        return 2.0 * self.parameters.norm

    def only_without_noise(self) -> str | None:
        generation = self.parameters.generation
        if self.parameters.weighting == "records":
            return "weighs a site by its number of records"
        if generation is not None and generation.fill is not None:
            return "copies a record the oftener, the fewer its class has"
        return None

    def site_arrays(self) -> tuple[str, ...]:
        generation = self.parameters.generation
        return (SEEDS, USE) if generation is not None and generation.prototypes else (SEEDS,)

    def vector(self, records: Records, broadcast: Mapping[str, Floats]) -> Floats:
        if records.labels is None:
            raise Misuse("The task model-update needs labelled records.")
        p = self.parameters
        model = [_array(broadcast, block.name, block.shape) for block in self._model]
        order, generated = (_generator(seed) for seed in _array(broadcast, SEEDS, (2,)))
        every = slice(0, len(records))
        used = usable(p, records, every, self._classes)
        x = clipped(p, records, every, used)
        used &= np.isfinite(x).all(axis=1)
        x, labels = x[used], records.labels[used]
        weight = float(len(x)) if p.weighting == "records" else 1.0
        if p.generation is not None:
            x, labels = self._generate(p.generation, x, labels, broadcast, generated)
        descent = Descent(p.epochs, p.batch, p.learning_rate, p.momentum, p.decay)
        trained = train(model, x, labels, descent, order)
        update = np.concatenate([(new - old).ravel() for new, old in zip(trained, model, strict=True)])
        return weight * np.append(_scaled_down(update, p.norm), p.norm)

    def _generate(
        self, generation: Generation, x: Floats, labels: Labels, broadcast: Mapping[str, Floats], rng: np.random.Generator
    ) -> tuple[Floats, Labels]:
        """The records, and after them what is generated around them and around prototypes."""
        k, d = self._classes, self._width
        directions = _array(broadcast, DIRECTIONS, (k, d, d))
        centres, classes = [x], [labels]
        for c in range(k):
            mine = x[labels == c]
            wanted = generation.copies * len(mine)
            if generation.fill is not None and len(mine):
                wanted += max(0, generation.fill - len(mine) - wanted)
            around = [mine[np.arange(wanted) % max(len(mine), 1)]] if wanted else []
            if generation.prototypes:
                around += _around(broadcast, c, k, d, generation.prototypes)
            for place in around:
                centres.append(place + rng.standard_normal(place.shape) @ directions[c].T)
                classes.append(np.full(len(place), c, dtype=np.int64))
        return np.concatenate(centres), np.concatenate(classes)


def _around(broadcast: Mapping[str, Floats], c: int, k: int, d: int, number: int) -> list[Floats]:
    """The prototypes of class c that the site uses, each ``number`` times."""
    known = broadcast.get(PROTOTYPES)
    sets = 0 if known is None or known.ndim == 0 else len(known)
    if sets * k * d * number > MOST_GENERATED:
        raise HostileInput(f"The broadcast's {PROTOTYPES} make a site generate too much.")
    prototypes = _array(broadcast, PROTOTYPES, (sets, k, d))
    use = _array(broadcast, USE, (len(prototypes), k))
    return [np.tile(prototypes[i, c], (number, 1)) for i in np.flatnonzero(use[:, c])]


def _scaled_down(update: Floats, norm: float) -> Floats:
    """The update with an L2 norm of N at most; zeros if it is not finite."""
    largest = float(np.abs(update).max(initial=0.0))
    if not np.isfinite(largest) or largest == 0.0:
        return np.zeros_like(update)
    size = largest * float(np.linalg.norm(update / largest))
    # A hair below N, so that rounding cannot lift it above.
    scaled: Floats = update if size <= norm else update * (norm * (1.0 - 1e-12) / size)
    return scaled


def _generator(seed: float) -> np.random.Generator:
    if not (0.0 <= seed < 2.0**53 and seed == int(seed)):
        raise HostileInput(f"The seeds in {SEEDS} must be whole numbers from 0 to 2^53.")
    return np.random.default_rng(int(seed))


def _array(broadcast: Mapping[str, Floats], name: str, shape: Sequence[int]) -> Floats:
    array = broadcast.get(name)
    if array is None or array.shape != tuple(shape) or not np.isfinite(array).all():
        raise HostileInput(f"The broadcast must hold {name} of shape {tuple(shape)}, finite.")
    return array
