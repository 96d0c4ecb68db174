"""The registered tasks: what a study may ask for by name. Nothing outside this list is ever computed."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from veilsum_node.config import did_you_mean, explain
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Task
from veilsum_privacy.tasks.calibration_step import CalibrationStep
from veilsum_privacy.tasks.class_mixtures import ClassMixtures
from veilsum_privacy.tasks.class_moments import ClassMoments
from veilsum_privacy.tasks.feature_means import FeatureMeans
from veilsum_privacy.tasks.formulas import AlignedMoments, BarycenterStep, SiteRidgeHead, TwoWayStep, WithinMoments
from veilsum_privacy.tasks.gaussian_moments import GaussianMoments
from veilsum_privacy.tasks.gradient import Gradient
from veilsum_privacy.tasks.grams import Grams
from veilsum_privacy.tasks.hazard_step import HazardStep
from veilsum_privacy.tasks.local_training import LocalTraining
from veilsum_privacy.tasks.model_tables import ModelTables
from veilsum_privacy.tasks.newton_step import NewtonStep
from veilsum_privacy.tasks.power_moments import PowerMoments
from veilsum_privacy.tasks.prototypes import Prototypes
from veilsum_privacy.tasks.site_scores import ScoreProducts, SiteHazardScores, SiteScores
from veilsum_privacy.tasks.tables import Tables
from veilsum_privacy.tasks.tree_gradients import TreeGradients

_ALL: tuple[type[Task[Any]], ...] = (
    Tables,
    NewtonStep,
    HazardStep,
    SiteScores,
    SiteHazardScores,
    ScoreProducts,
    FeatureMeans,
    GaussianMoments,
    ClassMoments,
    Prototypes,
    ClassMixtures,
    LocalTraining,
    Gradient,
    TreeGradients,
    Grams,
    BarycenterStep,
    TwoWayStep,
    AlignedMoments,
    SiteRidgeHead,
    PowerMoments,
    WithinMoments,
    CalibrationStep,
    ModelTables,
)

TASKS: Mapping[str, type[Task[Any]]] = {task.name: task for task in _ALL}
"""Every task by name."""


class Former(NamedTuple):
    """A task that there was: the last version that has it, and the task that does what it did."""

    version: str
    now: str


FORMER: Mapping[str, Former] = {
    "evaluation": Former("0.2", "model-tables"),
    "local-head": Former("0.2", "ridge-head"),
    "statistics": Former("0.2", "tables"),
}
"""Former tasks by name. Ledgers and policies that name them are still read; their version verifies what was signed."""


def check_former(name: str) -> None:
    """Refuse a task that there was.

    Raises:
        HostileInput: names the version that computes it.
    """
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
    check_former(name)
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
