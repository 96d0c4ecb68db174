"""What an objective of local training is: a loss by record, terms that read no record, and what it exchanges.

The parts are kept apart because privacy treats them differently. The loss of a record has a gradient that is clipped and
noised. A pull depends on the model, on what was broadcast and on the site's state alone, and is added after the noise. A
penalty on a whole batch has no gradient by record, and so exists without noise only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Name, stated_model
from veilsum_privacy.training.models.base import Architecture, Shapes

if TYPE_CHECKING:
    from torch import Tensor

    from veilsum_privacy.training.models.networks import Network

Labels = NDArray[np.int64]
RecordLoss = Callable[["Network", "Tensor", "Tensor"], "Tensor"]
"""Losses (B,) of a network on x (B, ...) with labels (B,), each of its record alone."""

BatchPenalty = Callable[["Network", "Tensor", "Tensor"], "Tensor"]
"""A penalty () on a batch as a whole."""


class ObjectiveSpec(Frozen):
    """An objective as a study names it.

    Attributes:
        name: of a registered objective.
        options: its own. A signed study holds all of them.
    """

    name: Name = "none"
    options: dict[str, Any] = Field(default_factory=dict)


class NoOptions(Frozen):
    """Options of an objective that has none."""


class OwnBlock(NamedTuple):
    """What an objective adds to the sum.

    Attributes:
        name: of the block.
        bound: of the absolute value of each of its values; beyond, they are cut.
        weighted: whether it is multiplied by the site's weight, as the update is.
    """

    name: str
    shape: tuple[int, ...]
    bound: float
    weighted: bool = False


class Received(NamedTuple):
    """What a site begins a round with.

    Attributes:
        start: the broadcast model (P,).
        broadcast: all arrays that everyone received.
        state: of the site's last paid round.
        seed: of random numbers within the loss, and of the order of records without noise; public.
        generated: of what is generated, without noise; public.
    """

    start: Floats
    broadcast: Mapping[str, Floats]
    state: Mapping[str, Floats]
    seed: int = 0
    generated: int = 0


RecordRows = Callable[[Floats, Labels], Floats]
"""Rows (n, size) of features (n, d) and labels (n,), each of its record alone and of a norm of 1 at most."""


class Done(NamedTuple):
    """What a round of training came to.

    Attributes:
        end: the model as the site reports it (P,): the start and the update, after its norm was bounded.
        gradient: mean over the steps of the records' mean gradient (P,), noised in a study with noise, without pull or decay.
        total: the sum (size,) of the objective's rows at ``end``, noised in a study with noise; zeros where it has none.
        x, labels: the records (n, d), (n,) that were trained on; empty in a study with noise.
    """

    end: Floats
    gradient: Floats
    total: Floats
    x: Floats
    labels: Labels


class LocalOutcome(NamedTuple):
    """What an objective adds to the sum, by block, and keeps at the site."""

    blocks: Mapping[str, Floats] = MappingProxyType({})
    state: Mapping[str, Floats] = MappingProxyType({})


@dataclass(frozen=True)
class LocalObjective:
    """An objective in one round at one site.

    Attributes:
        loss: of a record; None for the cross-entropy, of which engines have a closed form.
        pull: gradient (P,) at a model (P,) of the terms that read no record; None for none.
        penalty: on a batch, without noise only; None for none.
        rows: a model (P,) to rows of which the objective is given the sum over records, of a sample with noise; None for none.
        finish: what the site adds to the sum and keeps.
    """

    loss: RecordLoss | None = None
    pull: Callable[[Floats], Floats] | None = None
    penalty: BatchPenalty | None = None
    rows: Callable[[Floats], RecordRows] | None = None
    finish: Callable[[Done], LocalOutcome] = field(default=lambda done: LocalOutcome())


Own = TypeVar("Own", bound=Frozen)


class Objective(ABC, Generic[Own]):
    """Base of all objectives, each for options of its own type. Subclasses set ``name``."""

    name: ClassVar[str]
    Options: ClassVar[type[Frozen]]
    whole_cohort: ClassVar[bool] = False
    """True where the server's part assumes one fixed set of sites, each with one share of the objective."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.Options = stated_model(cls) or NoOptions

    def __init__(self, options: Own, architecture: Architecture) -> None:
        """Build the objective for a model.

        Raises:
            Misuse: the model does not suit it.
        """
        self.options = options
        self.architecture = architecture

    def trained(self) -> Architecture:
        """What is trained: the model itself, or the model with further arrays that are averaged with it."""
        return self.architecture

    def only_without_noise(self) -> str | None:
        """Why it is for studies without noise only, as the end of a sentence; None where it is not."""
        return None

    def blocks(self) -> tuple[OwnBlock, ...]:
        """What it adds to the sum."""
        return ()

    def broadcast(self) -> Shapes:
        """Arrays that the server's part broadcasts, beside the model."""
        return {}

    def row_size(self) -> int:
        """Length of the rows of its sum over records; 0 where it takes none. With noise that sum is one step more a round."""
        return 0

    @abstractmethod
    def begin(self, received: Received) -> LocalObjective:
        """The objective at one site in one round."""

    @property
    def size(self) -> int:
        """Values of what is trained: P."""
        return self.trained().size

    def given(self, received: Received) -> dict[str, Floats]:
        """Its own arrays out of a broadcast.

        Raises:
            HostileInput: one is missing, has another shape, or is not finite.
        """
        found: dict[str, Floats] = {}
        for name, shape in self.broadcast().items():
            array = received.broadcast.get(name)
            if array is None or array.shape != shape or not np.isfinite(array).all():
                raise HostileInput(f"The broadcast must hold {name} of shape {shape}, finite.")
            found[name] = array
        return found

    def kept(self, received: Received, name: str) -> Floats | None:
        """An array (P,) of the site's state, None where there is none of this length."""
        array = received.state.get(name)
        return array if array is not None and array.shape == (self.size,) else None


def representation_size(architecture: Architecture) -> int:
    """Length H of a representation: what the head takes.

    Raises:
        Misuse: the head is not a Linear layer.
    """
    shape = architecture.shapes().get("head.weight", ())
    if len(shape) != 2:
        raise Misuse("The objective needs a model whose head is one Linear layer.")
    return shape[1]


def frozen_network(architecture: Architecture, vector: Floats) -> "Network":
    """A network that holds a flat model (P,) and is not trained."""
    from veilsum_privacy.training.arrays import load, unflatten
    from veilsum_privacy.training.batches import compute_module

    module = compute_module(architecture)
    load(module, unflatten(vector, architecture.shapes()))
    module.requires_grad_(False)
    return module


def scaled_to(vector: Floats, norm: float) -> Floats:
    """The vector with an L2 norm of ``norm`` at most; zeros if it is not finite."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not np.isfinite(largest) or largest == 0.0:
        return np.zeros_like(vector)
    size = largest * float(np.linalg.norm(vector / largest))
    # A hair below, so that rounding cannot lift it above.
    scaled: Floats = vector if size <= norm else vector * (norm * (1.0 - 1e-12) / size)
    return scaled
