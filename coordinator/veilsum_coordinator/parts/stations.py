"""Stations: groups of a study's participants that train a model of their own, each by sums over its own members.

A sum of a station is one of its members alone: the smallest cohort and the shares of noise hold within the station. Every
participant is in one station, so its records take part in that station's releases and in no other's, and what a study costs it
is what one station's releases cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.local_rounds import LOCAL, LocalRounds, TrainingParameters
from veilsum_node.config import did_you_mean
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.study import Study

Table = Mapping[str, Sequence[str]]


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
                raise ConfigurationError(f"parameters.stations.{station}: {name!r} is no participant of the study.", advice)
        if len(members) < study.privacy.min_cohort:
            raise ConfigurationError(
                f"parameters.stations.{station}: its sums are of {len(members)} members; the study's min_cohort is"
                f" {study.privacy.min_cohort}.",
                f"Set min_cohort = {min(len(own) for own in stations.values())} in [privacy], or join stations.",
            )


def begin(federation: Federation, stations: Table, parameters: TrainingParameters, *, shared: bool) -> tuple[Station, ...]:
    """The stations with their first models, one for all or one each, from public seeds.

    Args:
        federation: of a study with local training.
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


def adopt(stations: Sequence[Station], arrays: Mapping[str, Floats]) -> None:
    """Give every station the same model."""
    for station in stations:
        station.rounds.model = dict(arrays)


def moved(stations: Sequence[Station]) -> Iterator[tuple[str, float, float]]:
    """Name of each station, and how far its model moved in its first and its last round."""
    for station in stations:
        yield station.name, station.rounds.changes[0], station.rounds.changes[-1]
