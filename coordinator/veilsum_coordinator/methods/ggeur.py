"""The method "ggeur": class geometries over all sites guide what each site, or the coordinator, generates to train a head on.

After GGEUR (Ma et al. 2025). One joint release of class moments gives the geometry of each class. Then, in a study without
noise, ``train = "sites"``: each site fills its classes up with samples around its own records (step 1), generates samples
around the class prototypes of the other sites (step 2, ``mode = "multi-domain"``), and all train a head in rounds, each a
release, by FedAvg or with any other objective and optimiser of the method "fedavg". Under noise ``train = "coordinator"``: a
head is trained on what is generated around released class means or prototypes, at no further cost. How often a record is
copied to fill a class depends on how many there are, which no bound on one record holds: training at sites on what they
generated is refused under noise.

Two controls stand beside it: the same counts without deviations, and, at sites, no generation at all.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.geometry import directions
from veilsum_coordinator.parts.alignment import study_result
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label, resolved_clip
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.generation import (
    GEOMETRY,
    PROTOTYPES,
    FeatureUse,
    GeneratedFeatures,
    GenerationParameters,
    centres_plan,
    generation_plans,
    released_geometry,
    run_centres,
    run_generation,
)
from veilsum_coordinator.parts.local_rounds import LocalRounds, TrainingParameters, resolved_training, training_plan
from veilsum_coordinator.parts.networks import network_head, resolved_model
from veilsum_coordinator.parts.server_heads import mlp_arrays, mlp_head
from veilsum_node.errors import ConfigurationError
from veilsum_node.fields import Real
from veilsum_privacy.results.result import Result
from veilsum_privacy.tasks import generation as made
from veilsum_privacy.training.mlp import Descent
from veilsum_privacy.training.models import ModelSpec
from veilsum_privacy.training.objectives import ObjectiveSpec
from veilsum_privacy.training.server_steps import OptimiserParameters


class GGEURParameters(GenerationParameters, FeatureRules):
    """Parameters, all public; those of the generation stand beside these.

    Attributes:
        train: where the head is trained: at the ``sites``, by default in a study without noise, or at the ``coordinator``.
        control: ``geometry`` is the method. ``oversample`` repeats records and prototypes, at the coordinator class means or
            prototypes, to the same counts without deviations, and asks for no second moments. ``none`` generates nothing, for
            training at the sites.
        extra: samples around each class prototype of each other site, in multi-domain mode (500 in GGEUR's experiments).
        hidden: width of the head's hidden layer; 0 for a linear head.
        objective, server: at the sites and here, as in the method fedavg.
        rounds: of training; at the coordinator, so many times ``epochs`` are passes over what is generated.
        epochs: passes over a site's samples in one round.
        batch, learning_rate, momentum, decay: of stochastic gradient descent. The defaults suit features of a norm about 1.
        norm: L2 norm that a site's update is scaled down to; generous.
        weighting: of sites: ``equal``, or by their ``records``.
        normalised: updates by how many steps they took (FedNova).
    """

    train: Literal["sites", "coordinator"] | None = None
    control: Literal["geometry", "oversample", "none"] = "geometry"
    extra: int = Field(default=500, ge=0, le=100_000)
    hidden: int = Field(default=128, ge=0, le=4096)
    objective: ObjectiveSpec = ObjectiveSpec()
    server: OptimiserParameters = OptimiserParameters()
    rounds: int = Field(default=20, ge=1, le=10_000)
    epochs: int = Field(default=1, ge=1, le=1000)
    batch: int = Field(default=64, ge=1, le=2**20)
    learning_rate: Real = Field(default=0.1, gt=0, le=1e6)
    momentum: Real = Field(default=0.9, ge=0, lt=1)
    decay: Real = Field(default=0.0, ge=0, le=1e6)
    norm: Real = Field(default=100.0, gt=0, le=1e9)
    weighting: Literal["equal", "records"] = "equal"
    normalised: bool = False

    @property
    def training(self) -> TrainingParameters:
        """Training at the sites."""
        names = [name for name in TrainingParameters.model_fields if name in type(self).model_fields]
        return TrainingParameters.model_validate({name: getattr(self, name) for name in names})

    @property
    def model(self) -> ModelSpec:
        """What sites train."""
        return ModelSpec(name="mlp", options={"hidden": self.hidden}) if self.hidden else ModelSpec(name="linear")

    @property
    def descent(self) -> Descent:
        """Training at the coordinator: the passes of all rounds at once."""
        return Descent(self.rounds * self.epochs, self.batch, self.learning_rate, self.momentum, self.decay)

    @property
    def elsewhere(self) -> bool:
        """Whether sites generate around the prototypes of others."""
        return self.mode == "multi-domain" and self.control != "none" and self.extra > 0


class GGEUR(Method[GGEURParameters]):
    """Class geometries, then rounds of "local-training" at the sites, or a head trained here."""

    name = "ggeur"
    rehearsals = 2

    def resolve(self, parameters: GGEURParameters, inputs: Inputs) -> GGEURParameters:
        train = parameters.train or ("coordinator" if inputs.private else "sites")
        if train == "sites" and inputs.private:
            raise ConfigurationError(
                'ggeur with train = "sites" needs noise = "none": filling up a class copies its records more often'
                " the fewer it has, so one record's influence on a trained model has no small bound.",
                'Use train = "coordinator", which generates from noised prototypes and geometries alone.',
            )
        if train == "coordinator" and parameters.control == "none":
            raise ConfigurationError(
                f'ggeur with control = "{parameters.control}" trains on records, and the coordinator has none.',
                'Use train = "sites", in a study without noise.',
            )
        named = resolved_training(parameters.training, inputs, convex=False)
        filled = {
            "clip": resolved_clip(parameters.clip, inputs),
            "train": train,
            "target": parameters.copies,
            **{name: named[name] for name in ("objective", "server")},
        }
        return parameters.model_copy(update=filled)

    def declare(self, parameters: GGEURParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None or parameters.train is None:
            raise ConfigurationError("The method ggeur needs the defaults of its parameters resolved.")
        need_label(inputs, "the method ggeur")
        use = FeatureUse.of(inputs, parameters.clip, parameters.missing)
        plans = generation_plans(parameters, use)
        if parameters.train == "coordinator":
            return plans if parameters.control == "geometry" else (centres_plan(parameters, use),)
        wanted = {GEOMETRY: parameters.control == "geometry", PROTOTYPES: parameters.elsewhere}
        model = resolved_model(parameters.model, inputs.width, len(inputs.classes), "ggeur, parameters.hidden")
        generation = _site_generation(parameters)
        training, clip, missing = parameters.training, parameters.clip, parameters.missing
        rounds = training_plan(training, inputs, model, clip, missing, generation=generation)
        return *(plan for plan in plans if wanted[plan.label]), rounds

    def compute(self, federation: Federation) -> Result:
        parameters = GGEURParameters.model_validate(federation.study.parameters)
        if parameters.train == "coordinator":
            return self._at_coordinator(federation, parameters)
        return self._at_sites(federation, parameters)

    def _at_coordinator(self, federation: Federation, parameters: GGEURParameters) -> Result:
        names = federation.study.data.classes
        repeat = parameters.control == "oversample"
        generation = run_centres(federation, parameters) if repeat else run_generation(federation, parameters)
        summary = _described(generation, names)
        if generation.not_estimable is not None:
            summary["not_estimable"] = generation.not_estimable
            return Result(self.name, summary)
        features, labels = generation.samples()
        summary["samples"] = len(features)
        rng = np.random.default_rng(parameters.seed)
        layers, classes = mlp_head(features, labels, names, parameters.hidden, parameters.descent, rng)
        extra = {} if repeat else {"similarity": generation.similarities()}
        head, arrays = mlp_arrays(layers)
        return study_result(federation, summary, parameters.missing, head, {**arrays, **extra}, classes)

    def _at_sites(self, federation: Federation, parameters: GGEURParameters) -> Result:
        study = federation.study
        k = len(study.data.classes)
        summary: dict[str, Any] = {}
        extra: dict[str, Floats] = {}
        broadcast: dict[str, Floats] = {made.DIRECTIONS: np.zeros((k, study.width, study.width))}
        if parameters.control == "geometry":
            geometry = released_geometry(federation.sum(GEOMETRY))
            broadcast[made.DIRECTIONS] = directions(geometry, parameters.scale)
            generation = GeneratedFeatures.around_means(geometry, parameters.copies, parameters.scale, parameters.seed)
            summary |= _described(generation, study.data.classes)
            extra["similarity"] = generation.similarities()
        if parameters.elsewhere:
            broadcast |= _prototypes(federation.sum(PROTOTYPES), study.participants)
        rounds = LocalRounds(federation, parameters.training)
        for _ in range(parameters.rounds):
            rounds.round(broadcast)
        summary |= {"objective": parameters.objective.name, "server": parameters.server.name, **rounds.summary()}
        head, arrays = network_head(rounds.task.objective.architecture, rounds.trained)
        return study_result(federation, summary, parameters.missing, head, {**arrays, **extra}, study.data.classes)


def _site_generation(parameters: GGEURParameters) -> made.Generation | None:
    if parameters.control == "none":
        return None
    return made.Generation(fill=parameters.copies, prototypes=parameters.extra if parameters.elsewhere else 0)


def _prototypes(release: Release, participants: Sequence[str]) -> dict[str, Floats]:
    """Class prototypes of all participants (P, K, d), and which of them each site (sites, P, K) uses: the others' that are."""
    counts, sums = release.values["counts"], release.values["sums"]
    prototypes = np.zeros((len(participants), *sums.shape[1:]))
    present = np.zeros((len(participants), counts.shape[1]))
    for row, name in enumerate(release.cohort):
        index, has = participants.index(name), counts[row] > 0.0
        present[index] = has
        prototypes[index, has] = sums[row, has] / counts[row, has, None]
    others = 1.0 - np.eye(len(participants))
    return {made.PROTOTYPES: prototypes, made.USE: others[:, :, None] * present[None]}


def _described(generation: GeneratedFeatures, names: Sequence[str]) -> dict[str, Any]:
    """Each class: whether it is known, the class whose geometry is most like its own, and how much its first axes hold."""
    table, geometry = generation.similarities(), generation.geometry
    rows: list[dict[str, Any]] = []
    for c, name in enumerate(names):
        others = np.where(np.arange(len(names)) == c, -1.0, table[c])
        total, known = float(geometry.values[c].sum()), c in generation.known
        nearest, alike = int(np.argmax(others)), known and total > 0.0
        rows.append(
            {
                "class": name,
                "in_head": known,
                "centres": int(np.sum(generation.classes == c)),
                "share_of_five_axes": float(geometry.values[c, :5].sum()) / total if total > 0.0 else None,
                "most_alike": names[nearest] if alike and others[nearest] > 0.0 else None,
                "similarity": float(others[nearest]) if alike and others[nearest] > 0.0 else None,
            }
        )
    return {"classes": rows, "largest_similarity": min(5, geometry.means.shape[1])}
