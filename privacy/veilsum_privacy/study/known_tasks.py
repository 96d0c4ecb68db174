"""Names of tasks, for who has a policy about them and traces none; tests hold them against what is registered
(:mod:`veilsum_privacy.tasks`)."""

from collections.abc import Mapping
from typing import NamedTuple

TASK_NAMES: tuple[str, ...] = (
    "tables", "newton-step", "hazard-step", "site-scores", "site-hazard-scores", "score-products", "feature-means",
    "gaussian-moments", "class-moments", "prototypes", "class-mixtures", "local-training", "gradient", "tree-gradients",
    "grams", "power-moments", "calibration-step", "model-tables", "barycenter-step", "two-way-step", "aligned-moments",
    "ridge-head", "within-moments",
)  # fmt: skip
"""Every task of this version: first those that read records, then those that read only what was kept."""


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
