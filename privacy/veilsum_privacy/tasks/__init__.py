"""The registered tasks: what a study may ask for by name. Nothing outside this list is ever computed.

Each is loaded when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from veilsum_node.config import did_you_mean, explain
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.process.imports import Registry
from veilsum_privacy.study.known_tasks import FORMER

if TYPE_CHECKING:
    from veilsum_privacy.study.schema import DatasetSchema
    from veilsum_privacy.tasks.base import Task

TASKS: Registry[type[Task[Any]]] = Registry(
    __name__,
    {
        "tables": "tables:Tables",
        "newton-step": "newton_step:NewtonStep",
        "hazard-step": "hazard_step:HazardStep",
        "site-scores": "site_scores:SiteScores",
        "site-hazard-scores": "site_scores:SiteHazardScores",
        "score-products": "site_scores:ScoreProducts",
        "feature-means": "feature_means:FeatureMeans",
        "gaussian-moments": "gaussian_moments:GaussianMoments",
        "class-moments": "class_moments:ClassMoments",
        "prototypes": "class_moments:Prototypes",
        "class-mixtures": "class_mixtures:ClassMixtures",
        "local-training": "local_training:LocalTraining",
        "gradient": "gradient:Gradient",
        "tree-gradients": "tree_gradients:TreeGradients",
        "grams": "grams:Grams",
        "barycenter-step": "formulas:BarycenterStep",
        "two-way-step": "formulas:TwoWayStep",
        "aligned-moments": "formulas:AlignedMoments",
        "ridge-head": "formulas:SiteRidgeHead",
        "power-moments": "power_moments:PowerMoments",
        "within-moments": "formulas:WithinMoments",
        "calibration-step": "calibration_step:CalibrationStep",
        "model-tables": "model_tables:ModelTables",
    },
    lambda kind: kind,
)
"""Every task by name."""


def check_former(names: Iterable[str]) -> None:
    """Refuse a task that there was.

    Raises:
        HostileInput: names the version that computes it.
    """
    for name in names:
        if name in FORMER:
            raise HostileInput(
                f"The task {name!r} was removed after version {FORMER[name].version}.",
                f"Verify its results with that version; a study compiled anew has the task {FORMER[name].now!r} for it.",
            )


def build_task(name: str, parameters: Mapping[str, Any], schema: DatasetSchema) -> Task[Any]:
    """Build a task as a study declares it.

    Raises:
        HostileInput: no such task, parameters that it does not accept, or a schema that it does not fit.
    """
    check_former([name])
    if name not in TASKS:
        raise HostileInput(f"No task is called {name!r}.", did_you_mean(name, TASKS))
    kind = TASKS[name]
    try:
        return kind(kind.Parameters.model_validate(dict(parameters)), schema)
    except ValidationError as error:
        raise HostileInput(f"Task {name!r} has invalid parameters: {' '.join(explain(error, kind.Parameters))}") from error
    except Misuse as error:
        raise HostileInput(error.message, error.advice) from error
    except ArithmeticError as error:  # a number so small, or so large, that nothing can be computed from it
        raise HostileInput(f"Task {name!r} has parameters out of range: {error}.") from error
