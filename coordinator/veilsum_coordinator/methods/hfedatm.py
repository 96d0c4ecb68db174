"""The method "hfedatm": stations of participants train models of their own, a server merges these layer by layer (HFedATM).

In a round every station does a round of federated averaging among its members, with any objective that "fedavg" has. Then the
server makes one model of the stations' models: filters are renumbered to lie on each other (FOT), all arrays are averaged, and
Linear layers are fused by second moments of their inputs, which each station sums over its members (RegMean). What a station
releases is seen by the server, and by all, as that station's: disclosure is per station. Renumbering and fusing are
post-processing and cost nothing.

Stations: groups of a study's participants that train a model of their own, each by sums over its own members.

A sum of a station is one of its members alone: the smallest cohort and the shares of noise hold within the station. Every
participant is in one station, so its records take part in that station's releases and in no other's, and what a study costs it
is what one station's releases cost.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.filters import convolutions
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.regmean import Merged, merge_stations
from veilsum_coordinator.parts.alignment import study_result
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, need_label
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.local_rounds import LOCAL, LocalRounds, TrainingParameters, resolved_training, training_plan
from veilsum_coordinator.parts.networks import checkpoint_due, feature_clip, network_head, resolved_model
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError, Misuse, told_as
from veilsum_node.fields import Frozen, Name, Real
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.grams import DIAGONAL, PRODUCTS, GramsParameters, checked_sizes
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.objectives import OBJECTIVES

Table = Mapping[str, Sequence[str]]

GRAMS = "grams"
"""Label of the releases of Grams."""


class MergeParameters(Frozen):
    """How the server makes one model of the stations'.

    Attributes:
        filters: whether convolutions' channels are renumbered to lie on those of the station whose name comes first (FOT).
        units: whether hidden units of Linear layers are renumbered as well; only with ``filters``.
        regmean: whether Linear layers are fused by their inputs' Grams, which costs releases of these; else averaged.
        inputs: whose inputs of the layers a station takes Grams of: those in its own model (``stations``), as HFedATM does, or
            in the mean of all stations' models (``average``), which all stations then get once more. By default the latter
            where stations begin alike: fused layers read what averaged layers put out, so that is where they must fit.
        alpha: share of a Gram's off-diagonals that is kept.
        ridge: that RegMean adds, drawing to the mean, as a share of the Grams' mean diagonal; at least what the noise needs.
        entropy: weight of the entropy in the transport of filters (Sinkhorn), in units of the cost, which is at most 4; 0 for
            the exact assignment. The plan is rounded to the permutation that it favours.
        every: rounds after which stations are merged and take the merged model; the last round ends in a merge in any case.
            Of no meaning where stations start independently.
    """

    filters: bool = True
    units: bool = False
    regmean: bool = True
    inputs: Literal["stations", "average"] | None = None
    alpha: Real = Field(default=0.75, ge=0, le=1)
    ridge: Real = Field(default=0.0, ge=0, le=1e3, exclude_if=lambda ridge: ridge == 0.0)
    entropy: Real = Field(default=0.0, ge=0, le=1e3, exclude_if=lambda entropy: entropy == 0.0)
    every: int = Field(default=1, ge=1, le=100_000)


class HFedATMParameters(TrainingParameters, FeatureRules):
    """Parameters, all public; those of training stand beside these, ``rounds`` counting rounds of the whole.

    Attributes:
        model: what is trained.
        stations: members of each station, by its name.
        station_rounds: releases of training at each station in a round.
        start: ``shared``: all stations begin with the same values; ``independent``: each with its own, and they are merged
            once, at the end.
        merge: at the server.
        layers: Linear layers that are fused; by default all of the model's where stations start independently, the first one
            where they begin alike: to fuse the layers behind it gained nothing more and fitted the stations' own records too
            closely (docs/results.md).
        gram_clip: L2 norm C that a record's inputs of a layer, its constant included, are scaled down to.
        gram_share: share of the study's budget that all Grams together take; about, where training samples its records.
    """

    model: ModelSpec
    stations: dict[Name, Annotated[tuple[Name, ...], Field(max_length=1024)]]
    station_rounds: int = Field(default=1, ge=1, le=1000)
    start: Literal["shared", "independent"] = "shared"
    merge: MergeParameters = MergeParameters()
    layers: tuple[Name, ...] | None = Field(default=None, min_length=1, max_length=256)
    gram_clip: Real = Field(default=1.0, ge=1e-6, le=1e6)
    gram_share: Real = Field(default=0.1, gt=0, lt=1)

    @property
    def merges(self) -> int:
        """How often stations are merged."""
        return 1 if self.start == "independent" else -(-self.rounds // self.merge.every)


class HFedATM(Method[HFedATMParameters]):
    """Rounds of the task "local-training" at stations; with RegMean also releases of the task "grams"."""

    name = "hfedatm"
    rehearsals = 0

    def resolve(self, parameters: HFedATMParameters, inputs: Inputs) -> HFedATMParameters:
        need_label(inputs, "the method hfedatm")
        check_table(parameters.stations, inputs.sites)
        model = resolved_model(parameters.model, inputs.width, len(inputs.classes), "hfedatm, parameters.model")
        linear, shared = (
            build_architecture(model, inputs.width, len(inputs.classes)).linear_layers(),
            parameters.start == "shared",
        )
        where = parameters.merge.inputs or ("average" if shared else "stations")
        filled = {
            **resolved_training(parameters, inputs, convex=model.name == "linear"),
            "clip": parameters.clip or feature_clip(inputs),
            "model": model,
            "layers": parameters.layers or (linear[:1] if shared else linear),
            "merge": parameters.merge.model_copy(update={"inputs": where}),
        }
        if OBJECTIVES[parameters.objective.name].whole_cohort:
            raise ConfigurationError(
                f'hfedatm does not train with the objective "{parameters.objective.name}", which corrects towards the mean of'
                " all sites.",
                'Use "none", "prox", "sr" or "iir".',
            )
        return parameters.model_copy(update=filled)

    def declare(self, parameters: HFedATMParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None or parameters.layers is None:
            raise ConfigurationError("The method hfedatm needs the defaults of its parameters resolved.")
        p, rounds = parameters, parameters.rounds * parameters.station_rounds
        whole = p.model_copy(update={"rounds": rounds})
        training = training_plan(whole, inputs, p.model, parameters.clip, p.missing)
        if not p.merge.regmean:
            return (training,)
        with told_as(ConfigurationError, Misuse, what="hfedatm, parameters.layers"):
            checked_sizes(build_architecture(p.model, inputs.width, len(inputs.classes)), parameters.layers)
        task = GramsParameters(
            width=None if inputs.encoder is None else inputs.width,
            clip=parameters.clip,
            missing=p.missing,
            model=p.model,
            layers=parameters.layers,
            gram_clip=p.gram_clip,
        )
        steps = training.steps * training.sampling_rate**2  # what sampled steps cost, about, in whole ones
        share = p.gram_share / (1.0 - p.gram_share) * steps / p.merges
        return training, TaskPlan(GRAMS, "grams", task, releases=p.merges, share=share)

    def check(self, study: Study) -> None:
        """Stations hold the study's participants, and each may form a cohort."""
        check_study(HFedATMParameters.model_validate(study.parameters).stations, study)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        p = HFedATMParameters.model_validate(study.parameters)
        check_study(p.stations, study)
        stations = begin(federation, p.stations, p, shared=p.start == "shared")
        merges: list[dict[str, Any]] = []
        for number in range(1, p.rounds + 1):
            for station in stations:
                for _ in range(p.station_rounds):
                    station.rounds.round(members=station.members)
            last = number == p.rounds
            if not last and (p.start == "independent" or number % p.merge.every):
                continue
            merged = self._merge(federation, p, stations)
            for station in stations:
                station.rounds.model = dict(merged.arrays)
            merges.append({"round": number, "moved": merged.moved, "ridges": merged.ridges})
            if checkpoint_due(p.checkpoint_every, number, p.rounds):
                federation.checkpoint(to_broadcast(stations[0].rounds.trained), {"round": number, "rounds": p.rounds})
        objective = stations[0].rounds.task.objective
        summary: dict[str, Any] = {
            "model": objective.architecture.name,
            "values": objective.architecture.size,
            "objective": p.objective.name,
            "start": p.start,
            "rounds": p.rounds,
            "stations": {station.name: list(station.members) for station in stations},
            "changes": {name: {"first": first, "last": last} for name, first, last in moved(stations)},
            "merges": [*merges[:3], *merges[3:][-2:]],
            "epsilon": epsilons(study),
        }
        head, arrays = network_head(objective.architecture, stations[0].rounds.trained)
        return study_result(federation, summary, p.missing, head, arrays, study.data.classes)

    def _merge(self, federation: Federation, p: HFedATMParameters, stations: "Sequence[Station]") -> Merged:
        """One model of the stations' models, after a release of Grams at each of them where RegMean asks for it."""
        layers, grams, noise = p.layers or (), list[dict[str, Floats]](), dict[str, list[float]]()
        groups, counts = stations[0].rounds.task.architecture.channels(), [len(station.members) for station in stations]
        models = [station.rounds.model for station in stations]
        chosen = groups if p.merge.units else convolutions(models[0], groups)
        shown = [station.rounds.trained for station in stations]
        common = p.merge.inputs == "average"
        if common and p.merge.regmean:
            averaged = merge_stations(
                models, None, counts, chosen, (), filters=p.merge.filters, regmean=False, entropy=p.merge.entropy
            )
            shown = [{name: averaged.arrays[name] for name in shown[0]}] * len(stations)
        for station, model in zip(stations, shown, strict=True) if p.merge.regmean else ():
            release = federation.sum(GRAMS, to_broadcast(model), members=station.members)
            values = release.values
            grams.append({each: symmetric(values[DIAGONAL + each], values[PRODUCTS + each]) for each in layers})
            for layer in layers:
                noise.setdefault(layer, []).append(_noise(federation.study, release, layer))
        return merge_stations(
            models,
            grams if p.merge.regmean else None,
            counts,
            chosen,
            layers,
            filters=p.merge.filters,
            regmean=p.merge.regmean,
            alpha=p.merge.alpha,
            ridge=p.merge.ridge,
            noise_std=noise,
            entropy=p.merge.entropy,
            turned=common,
        )


def epsilons(study: Study) -> dict[str, float | None]:
    """Epsilon by the study's rule of all training, of all Grams, and of both together; None for what has no noise."""
    releases = {task.label: task.releases for task in study.tasks}

    def cost(*labels: str) -> float | None:
        found = study_epsilon(study, study.privacy.delta, {label: releases[label] for label in labels if label in releases})
        return found if math.isfinite(found) else None

    return {"training": cost(LOCAL), "grams": cost(GRAMS), "total": cost(LOCAL, GRAMS), "delta": study.privacy.delta}


def _noise(study: Study, release: Release, layer: str) -> float:
    """Standard deviation of the noise on the diagonal of a layer's Gram, and of the members' rounding to the grid."""
    agreed = AgreedStudy(study).task(GRAMS)
    unit = 0.0 if agreed.declaration.unrounded else agreed.block_std(1.0)[DIAGONAL + layer]
    return math.hypot(release.noise_std[DIAGONAL + layer], unit * math.sqrt(len(release.cohort) / 12.0))


class Station(NamedTuple):
    """A station: its name, its members, and its model on its way."""

    name: str
    members: tuple[str, ...]
    rounds: LocalRounds


def check_table(stations: Table, sites: int) -> None:
    """Insist on two stations or more, of two members or more each, that name ``sites`` participants once each.

    Raises:
        ConfigurationError: the message says what is wrong.
    """
    where, seen = "parameters.stations", dict[str, str]()
    if len(stations) < 2:
        raise ConfigurationError(f"{where}: there must be two stations or more.", "One station alone is the method fedavg.")
    for station, members in stations.items():
        if len(members) < 2:
            raise ConfigurationError(f"{where}.{station}: a sum needs two members or more.", "Join it with another station.")
        for name in members:
            if name in seen:
                raise ConfigurationError(f"{where}: {name!r} stands in {seen[name]!r} and in {station!r}.", "Name it once.")
            seen[name] = station
    if len(seen) != sites:
        raise ConfigurationError(
            f"{where}: {len(seen)} participants are named, the study has {sites}.", "Put every participant into one station."
        )


def check_study(stations: Table, study: Study) -> None:
    """Insist that the stations hold exactly the study's participants, and that each may form a cohort.

    Raises:
        ConfigurationError: the message says what is wrong.
    """
    check_table(stations, study.sites)
    for station, members in stations.items():
        for name in members:
            if name not in study.participants:
                advice = did_you_mean(name, study.participants)
                raise ConfigurationError(f"parameters.stations.{station}: {name!r} does not take part in the study.", advice)
        if len(members) < study.privacy.min_cohort:
            raise ConfigurationError(
                f"parameters.stations.{station}: its sums are of {len(members)} members; the study's min_cohort is"
                f" {study.privacy.min_cohort}.",
                f"Set min_cohort = {min(len(own) for own in stations.values())} of privacy, or join stations.",
            )


def begin(federation: Federation, stations: Table, parameters: TrainingParameters, *, shared: bool) -> tuple[Station, ...]:
    """The stations with their first models, one for all or one each, from public seeds.

    Args:
        stations: checked; they come in the order of their names.
        parameters: of the training, resolved.
        shared: whether all begin with the same values.
    """
    own = parameters.model_copy(update={"checkpoint_every": 0})  # no station's model is one that a study is to keep
    found = []
    for number, (name, members) in enumerate(sorted(stations.items())):
        rounds = LocalRounds(federation, own, LOCAL)
        if not shared and number:
            seed = int(np.random.default_rng((parameters.seed, 0x73746174, number)).integers(2**31))
            rounds.model = rounds.task.architecture.initial(seed)
        found.append(Station(name, tuple(members), rounds))
    return tuple(found)


def moved(stations: Sequence[Station]) -> Iterator[tuple[str, float, float]]:
    """Name of each station, and how far its model moved in its first and its last round."""
    for station in stations:
        yield station.name, station.rounds.changes[0], station.rounds.changes[-1]
