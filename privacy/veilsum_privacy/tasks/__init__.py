"""The registered tasks: what a study may ask for by name. Nothing outside this list is ever computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from veilsum_privacy.config import did_you_mean, explain
from veilsum_privacy.errors import HostileInput, Misuse
from veilsum_privacy.schema import DatasetSchema
from veilsum_privacy.tasks.base import Task
from veilsum_privacy.tasks.class_moments import ClassMoments
from veilsum_privacy.tasks.statistics import Statistics

TASKS: Mapping[str, type[Task]] = {task.name: task for task in (Statistics, ClassMoments)}
"""Every task by name."""


def build_task(name: str, parameters: Mapping[str, Any], schema: DatasetSchema) -> Task:
    """Build a task as a study declares it.

    Raises:
        HostileInput: no such task, parameters that it does not accept, or a schema that it does not fit.
    """
    if name not in TASKS:
        raise HostileInput(f"There is no task {name!r}.", did_you_mean(name, TASKS))
    kind = TASKS[name]
    try:
        return kind(kind.Parameters.model_validate(dict(parameters)), schema)
    except ValidationError as error:
        raise HostileInput(f"Task {name!r} has invalid parameters: {' '.join(explain(error, kind.Parameters))}") from error
    except Misuse as error:
        raise HostileInput(error.message, error.advice) from error
