"""The registered objectives of local training, each in a file with its source's loss."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from veilsum_node.config import did_you_mean, explain
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_privacy.training.models.base import Architecture
from veilsum_privacy.training.objectives.base import LocalObjective, Objective, ObjectiveSpec, Received
from veilsum_privacy.training.objectives.dyn import Dyn
from veilsum_privacy.training.objectives.iir import Iir
from veilsum_privacy.training.objectives.moon import Moon
from veilsum_privacy.training.objectives.ntd import Ntd
from veilsum_privacy.training.objectives.proto import Proto
from veilsum_privacy.training.objectives.prox import Plain, Prox
from veilsum_privacy.training.objectives.scaffold import Scaffold
from veilsum_privacy.training.objectives.sr import Sr

__all__ = ["OBJECTIVES", "LocalObjective", "Objective", "ObjectiveSpec", "Received", "build_objective", "resolve_objective"]

_ALL: tuple[type[Objective[Any]], ...] = (Plain, Prox, Scaffold, Dyn, Moon, Ntd, Proto, Sr, Iir)

OBJECTIVES: Mapping[str, type[Objective[Any]]] = {kind.name: kind for kind in _ALL}
"""Every objective by name."""


def build_objective(spec: ObjectiveSpec, architecture: Architecture) -> Objective[Any]:
    """Build the objective that a study names for a model.

    Raises:
        HostileInput: no such objective, options that it does not accept or that are left open, or a model that does not suit.
    """
    resolved = resolve_objective(spec)
    if left := sorted(set(resolved.options) - set(spec.options)):
        raise HostileInput(f"Objective {spec.name!r} leaves options open: {', '.join(left)}.", "State every option.")
    kind = OBJECTIVES[spec.name]
    with told_as(HostileInput, Misuse):
        return kind(kind.Options.model_validate(spec.options), architecture)


def resolve_objective(spec: ObjectiveSpec) -> ObjectiveSpec:
    """The same objective with every option stated, as a signed study carries it.

    Raises:
        HostileInput: no such objective, or options that it does not accept.
    """
    if spec.name not in OBJECTIVES:
        raise HostileInput(f"No objective is called {spec.name!r}.", did_you_mean(spec.name, OBJECTIVES))
    kind = OBJECTIVES[spec.name]
    try:
        options = kind.Options.model_validate(spec.options).model_dump(mode="json")
    except ValidationError as error:
        raise HostileInput(f"Objective {spec.name!r} has invalid options: {' '.join(explain(error, kind.Options))}") from error
    return spec.model_copy(update={"options": options})
