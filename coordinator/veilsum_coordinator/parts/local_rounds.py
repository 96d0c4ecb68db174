"""Rounds of local training: sites train a broadcast model, a secure sum adds up what changed, an optimiser takes the mean.

What the methods "fedavg" and "ggeur" have in common, for any objective at the sites and any optimiser here.

The coordinator's part of the objectives of local training: what it broadcasts, and what it makes of the sites' blocks.

All of it is computed from released sums. The sites' part stands in :mod:`veilsum_privacy.training.objectives`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs, Missing, TaskPlan
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.networks import checkpoint_due
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, told_as
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.generation import Generation
from veilsum_privacy.tasks.local_training import SEEDS, STEPS, WEIGHT, LocalTraining, LocalTrainingParameters
from veilsum_privacy.training.arrays import MODEL, flatten, to_broadcast, unflatten
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.objectives import Objective, ObjectiveSpec, iir, proto, resolve_objective, scaffold
from veilsum_privacy.training.objectives.dyn import Dyn
from veilsum_privacy.training.server_steps import OptimiserParameters, ServerOptimiser

CLEAR = 3.0
"""Standard deviations of its noise that a class count must exceed for its prototype to be used."""

LOCAL = "local-training"
"""Label of the releases."""

CONVEX_CLIP, CLIP = 0.1, 1.0
"""Gradient norms of linear models, whose features have a norm of about 1, and of others."""

CONVEX_TRAVEL, TRAVEL = 50.0, 30.0
"""See ``travel``: of linear models, and of others."""

PULLING = ("prox", "dyn")
"""Objectives with a term in the distance to the broadcast model: a rate of more than 2 over its weight diverges."""

SERVER_RATES = {"sgd": 1.0, "adam": 0.03, "yogi": 0.03}
"""Learning rates of the optimiser here; 1 takes the mean update as it is."""


class TrainingParameters(Frozen):
    """How sites train and what is made of it, all public.

    Attributes:
        objective: at the sites.
        rounds: each a release.
        epochs, batch: at a site in a round, without noise.
        local_steps: of DP-SGD in a round, with noise.
        sampling_rate: q, with which each record takes part in a step, with noise.
        gradient_clip: C, L2 norm that a record's gradient is scaled down to, with noise.
        travel: with noise, how far the noise of all rounds alone would move the mean model, in L2, which sets the learning
            rate; the default where no rate is stated, but for objectives that pull a site back to where it began.
        norm: L2 norm that a site's update is scaled down to; generous.
        weighting: of sites: ``equal``, or by their ``records``, which is without noise only.
        normalised: updates are divided by the steps that they took, and the mean multiplied by the mean number (FedNova). With
            noise all sites take equally many steps, and it changes nothing.
        server: what is made of the mean update: by default the model moves by it (FedAvg); others are FedOPT's.
        records: that a site is taken to have, in what a noised step's sum is divided by; by default what the study expects.
        checkpoint_every: rounds after which a model is kept; 0 for none.
        seed: of first values and orders; it protects nothing.
    """

    objective: ObjectiveSpec = ObjectiveSpec()
    rounds: int = Field(default=20, ge=1, le=100_000)
    epochs: int = Field(default=1, ge=1, le=1000)
    batch: int = Field(default=64, ge=1, le=2**20)
    local_steps: int = Field(default=5, ge=1, le=100_000)
    sampling_rate: Real = Field(default=1.0, gt=0, le=1)
    gradient_clip: Real | None = Field(default=None, ge=1e-9, le=1e6)
    learning_rate: Real | None = Field(default=None, gt=0, le=1e6)
    momentum: Real = Field(default=0.0, ge=0, lt=1)
    decay: Real = Field(default=0.0, ge=0, le=1e6)
    travel: Real | None = Field(default=None, gt=0, le=1e6)
    norm: Real = Field(default=100.0, gt=0, le=1e9)
    weighting: Literal["equal", "records"] = "equal"
    normalised: bool = False
    server: OptimiserParameters = OptimiserParameters()
    records: int | None = Field(default=None, ge=1, le=2**40)
    checkpoint_every: int = Field(default=0, ge=0, le=100_000)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


def resolved_training(
    parameters: TrainingParameters, inputs: Inputs, *, convex: bool, norm: float = 1.0 / math.sqrt(3.0)
) -> dict[str, Any]:
    """What is left open, by name.

    Args:
        convex: whether the model is linear.
        norm: root mean square norm of a record's features as a linear model takes them. For numbers spread over [-1, 1]^d and
            divided by sqrt(d) it is 1 / sqrt(3).

    Raises:
        ConfigurationError: the objective is unknown or its options are wrong.
    """
    if parameters.travel is not None and (parameters.learning_rate is not None or not inputs.private):
        raise ConfigurationError(
            "parameters.travel sets the learning rate from the noise.", "Leave it out, or the learning rate; it needs noise."
        )
    travel = parameters.travel
    if inputs.private and parameters.learning_rate is None and parameters.objective.name not in PULLING:
        travel = travel or (CONVEX_TRAVEL if convex else TRAVEL)
    rate = parameters.learning_rate
    if travel is None:
        rate = rate or _default_rate(inputs, norm, convex=convex) * (1.0 - parameters.momentum)
    return {
        "objective": resolved_objective(parameters.objective, private=inputs.private),
        "gradient_clip": parameters.gradient_clip or (CONVEX_CLIP if convex else CLIP),
        "learning_rate": rate,
        "travel": travel,
        "server": resolved_server(parameters.server),
        "records": parameters.records or inputs.records,
    }


def _default_rate(inputs: Inputs, norm: float, *, convex: bool) -> float:
    """Default rate of linear models: in proportion to 1 / norm^2, as the curvature of their losses has it, and 16 at most."""
    if convex:
        return min(16.0, 16.0 / 3.0 / norm**2)
    return 0.5 if inputs.private else 0.1


def resolved_objective(spec: ObjectiveSpec, *, private: bool) -> ObjectiveSpec:
    """The objective with every option stated.

    Raises:
        ConfigurationError: there is none of this name, or it does not take these options.
    """
    if spec.name == "proto" and not private:  # without noise a bound on representations saves nothing
        spec = spec.model_copy(update={"options": {"radius": 1000.0, **spec.options}})
    with told_as(ConfigurationError, HostileInput, what="parameters.objective"):
        return resolve_objective(spec)


def resolved_server(server: OptimiserParameters) -> OptimiserParameters:
    """The optimiser with a learning rate."""
    return server.model_copy(update={"learning_rate": server.learning_rate or SERVER_RATES[server.name]})


def training_plan(
    parameters: TrainingParameters,
    inputs: Inputs,
    model: ModelSpec,
    clip: float,
    missing: Missing,
    *,
    public_weights: bool = False,
    generation: Generation | None = None,
    label: str = LOCAL,
    size: int | None = None,
    **features: Any,
) -> TaskPlan:
    """The release of rounds of local training.

    Args:
        clip, missing: of the features.
        public_weights: whether the broadcast weighs the sites.
        generation: of samples to train on beside the records.
        size: values of the model; None for one of the inputs' features and classes.
        features: further parameters of the task, as of an alignment.

    Raises:
        ConfigurationError: the task cannot be built, or needs a study without noise.
    """
    names = ("epochs", "batch", "momentum", "decay", "norm", "normalised", "local_steps", "objective")
    values = size or build_architecture(model, inputs.width, len(inputs.classes)).size
    task = LocalTrainingParameters.model_validate(
        {
            "width": None if inputs.encoder is None else inputs.width,
            "clip": clip,
            "missing": missing,
            "model": model,
            "weighting": "public" if public_weights else parameters.weighting,
            "learning_rate": parameters.learning_rate or 0.1,
            "noise_step": _noise_step(parameters, inputs, values),
            "gradient_clip": parameters.gradient_clip or CLIP,
            "expected_records": parameters.records or inputs.records,
            "generation": generation,
            **{name: getattr(parameters, name) for name in names},
            **features,
        }
    )
    with told_as(ConfigurationError, HostileInput, Misuse):
        built = LocalTraining(task, inputs.schema)
    if inputs.private and (reason := built.only_without_noise()) is not None:
        raise ConfigurationError(f"Local training {reason}.", 'This needs noise = "none".')
    rate = float(parameters.sampling_rate) if inputs.private else 1.0
    return TaskPlan(
        label, LocalTraining.name, task, releases=parameters.rounds, sampling_rate=rate, local_steps=built.noised_sums()
    )


def _noise_step(parameters: TrainingParameters, inputs: Inputs, values: int) -> float | None:
    """What one step's noise may move a value by at a site, for all steps to move the mean of the sites' models by ``travel``.

    Sites have noise of their own, so their mean moves 1 / sqrt(n) as far, and independent steps by the root of their number.
    With momentum a step goes on for 1 / (1 - m) times its length.
    """
    if parameters.travel is None:
        return None
    steps = parameters.rounds * parameters.local_steps
    return float(parameters.travel) * (1.0 - parameters.momentum) * math.sqrt(inputs.sites / (steps * values))


class LocalRounds:
    """Rounds of one study, with the state that the coordinator has between them.

    Attributes:
        task: at the sites; ``task.architecture`` is what is trained, ``task.objective.architecture`` the model in it.
        model: arrays by name, as they stand; further arrays of the objective among them.
        changes: L2 norm of each round's change.
    """

    def __init__(self, federation: Federation, parameters: TrainingParameters, label: str = LOCAL) -> None:
        """Begin with first values of the seed."""
        self._federation, self._parameters, self._label = federation, parameters, label
        agreed = AgreedStudy(federation.study).task(label)
        self._agreed, task, declaration = agreed, agreed.task, agreed.declaration
        if not isinstance(task, LocalTraining):
            raise Misuse(f"The task {label!r} does not train locally.")
        self.task = task
        self.model = dict(task.architecture.initial(parameters.seed))
        self.changes: list[float] = []
        std = math.sqrt(declaration.variance) / declaration.grid
        self._part = server_part(task.objective, std)
        self._optimiser = ServerOptimiser(resolved_server(parameters.server), task.architecture.shapes())
        self._generated = np.random.default_rng((parameters.seed, 0)).integers(2**53, size=federation.study.sites)

    def round(
        self,
        broadcast: Mapping[str, Floats] | None = None,
        members: Collection[str] | None = None,
        scale: Callable[[Collection[str]], float] | None = None,
    ) -> float:
        """One round; returns the L2 norm of the change.

        Args:
            broadcast: arrays beside the model, as generation or weights need them.
            members: who may take part; None for all.
            scale: what the mean of a cohort's models is multiplied by; None for 1.
        """
        study, number, shapes = self._federation.study, len(self.changes) + 1, self.task.architecture.shapes()
        order = np.random.default_rng((self._parameters.seed, 1 + number)).integers(2**53, size=study.sites)
        seeds = np.stack([order, self._generated], axis=1).astype(np.float64)
        sent = self._agreed.as_broadcast(to_broadcast(self.model))
        self.model = {name: sent[MODEL + name] for name in shapes}  # updates are made from where the sites begin
        arrays = {**(broadcast or {}), **self._part.broadcast(), **sent, SEEDS: seeds}
        release = self._federation.sum(self._label, arrays, members=members)
        weight = float(release.values[WEIGHT][0])
        if weight <= 0.0:  # without noise alone: no site has records
            self.changes.append(0.0)
            return 0.0
        update = flatten({name: release.values[MODEL + name] / weight for name in shapes}, shapes)
        if self._parameters.normalised:
            update = update * (float(release.values[STEPS][0]) / weight)
        update = self._part.absorb(release, update, weight, len(release.cohort) / study.sites)
        if scale is not None and (factor := scale(release.cohort)) != 1.0:
            update = factor * update + (factor - 1.0) * flatten(self.model, shapes)
        before, gradient = flatten(self.model, shapes), unflatten(-update, shapes)
        self.model = self._optimiser.step(self.model, gradient)
        self.changes.append(float(np.linalg.norm(flatten(self.model, shapes) - before)))
        rounds = self._parameters.rounds
        if checkpoint_due(self._parameters.checkpoint_every, number, rounds):
            self._federation.checkpoint(to_broadcast(self.trained), {"round": number, "rounds": rounds})
        return self.changes[-1]

    @property
    def trained(self) -> dict[str, Floats]:
        """The model's arrays, without what only its training needed."""
        return {name: self.model[name] for name in self.task.objective.architecture.shapes()}

    def summary(self) -> dict[str, Any]:
        """Rounds, and how far the model moved in the first and the last of them."""
        shown = [{"round": number, "change": change} for number, change in enumerate(self.changes, 1)]
        return {"rounds": len(self.changes), "changes": [*shown[:3], *shown[3:][-2:]]}


class ServerPart:
    """The part of an objective that keeps nothing. Subclasses are those of the objectives that need more."""

    def broadcast(self) -> dict[str, Floats]:
        """Arrays for the next round, beside the model."""
        return {}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        """Take in a round and return the update to make.

        Args:
            update: mean update (P,) of the sites that took part.
            weight: sum of their weights, by which weighted blocks are divided; positive.
            share: of the study's participants that took part.
        """
        return update


class ControlPart(ServerPart):
    """SCAFFOLD: c <- c + share mean(change of c_i)."""

    def __init__(self, size: int) -> None:
        self.control = np.zeros(size)

    def broadcast(self) -> dict[str, Floats]:
        return {scaffold.CONTROL: self.control}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        self.control = self.control + share * release.values[scaffold.CHANGE] / weight
        return update


class DynPart(ServerPart):
    """FedDyn: h <- h - alpha share mean(update), and the next model lies at mean(models) - h / alpha."""

    def __init__(self, size: int, alpha: float) -> None:
        self.h, self._alpha = np.zeros(size), alpha

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        self.h = self.h - self._alpha * share * update
        step: Floats = update - self.h / self._alpha
        return step


class ProtoPart(ServerPart):
    """FedProto: prototypes are released class sums over released class counts, of classes whose count is beyond its noise.

    Args:
        classes, size: K and H.
        radius: what the sums are in units of.
        count_std: standard deviation of one site's noise in a count.
    """

    def __init__(self, classes: int, size: int, radius: float, count_std: float) -> None:
        self.prototypes, self.known = np.zeros((classes, size)), np.zeros(classes)
        self._radius, self._std = radius, count_std

    def broadcast(self) -> dict[str, Floats]:
        return {proto.PROTOTYPES: self.prototypes, proto.KNOWN: self.known}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        counts, sums = release.values[proto.COUNTS], release.values[proto.SUMS]
        clear = counts > max(CLEAR * self._std * len(release.cohort) ** 0.5, 1e-3)
        self.prototypes = self.prototypes.copy()
        self.prototypes[clear] = self._radius * sums[clear] / counts[clear, None]
        self.known = np.where(clear, 1.0, self.known)
        return update


class IirPart(ServerPart):
    """FedIIR: a moving average of the sites' mean head gradient."""

    def __init__(self, size: int, ema: float) -> None:
        self.gradient, self.known, self._ema = np.zeros(size), np.zeros(1), ema

    def broadcast(self) -> dict[str, Floats]:
        return {iir.GRADIENT: self.gradient, iir.KNOWN: self.known}

    def absorb(self, release: Release, update: Floats, weight: float, share: float) -> Floats:
        mean = release.values[iir.GRADIENT] / weight
        self.gradient = self._ema * self.gradient + (1.0 - self._ema) * mean if self.known.any() else mean
        self.known = np.ones(1)
        return update


def server_part(objective: Objective[Any], step_std: float) -> ServerPart:
    """The part of this objective.

    Args:
        objective: as the study names it.
        step_std: standard deviation of one site's noise in a step's sum, over the bound on a record's part; 0 without noise.
    """
    if isinstance(objective, scaffold.Scaffold):
        return ControlPart(objective.size)
    if isinstance(objective, Dyn):
        return DynPart(objective.size, float(objective.options.alpha))
    if isinstance(objective, proto.Proto):
        (classes, size), radius = objective.broadcast()[proto.PROTOTYPES], float(objective.options.radius)
        return ProtoPart(classes, size, radius, step_std / proto.COUNT_SHARE**0.5)
    if isinstance(objective, iir.Iir):
        return IirPart(objective.broadcast()[iir.GRADIENT][0], float(objective.options.ema))
    return ServerPart()
