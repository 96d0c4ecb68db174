"""How much a record's gradient counts, by its class: rare classes weigh more, by released frequencies or a stated table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.parts.base import Inputs
from veilsum_coordinator.parts.federation import Release
from veilsum_node.errors import ConfigurationError

RARITY = {"sqrt": 0.5, "balanced": 1.0}
"""Powers of :func:`.rarity_weights`, by what a study asks for."""


def resolved_class_weights(
    asked: str | Mapping[str, float] | None, inputs: Inputs, *, counted: bool
) -> str | Mapping[str, float]:
    """Class weights as a compiled study states them.

    Args:
        asked: the parameter.
        counted: whether a centre is released, with which classes are counted.

    Raises:
        ConfigurationError: a table of other classes, or frequencies that no release tells.
    """
    if asked is None:
        return "sqrt" if counted else "none"
    if isinstance(asked, str):
        if asked in RARITY and not counted:
            raise ConfigurationError(
                f"fedsgd's class_weights = \"{asked}\" needs the classes' frequencies, which come with a centre.",
                "State the weights in a table by class, or leave them out.",
            )
        return asked
    stated_weights(asked, inputs.classes, "fedsgd")
    return asked


def stated_weights(asked: Mapping[str, float] | None, classes: Sequence[str], method: str) -> tuple[float, ...]:
    """A table of class weights in the order of the classes, its largest 1; empty without one.

    Raises:
        ConfigurationError: it is of other classes.
    """
    if asked is None:
        return ()
    if set(asked) != set(classes):
        raise ConfigurationError(
            f"The table class_weights of {method} must give each class of the label a weight.",
            f"Give one to each of {', '.join(classes)}." if classes else "Add a [label] table with classes.",
        )
    return tuple(float(asked[name]) / max(map(float, asked.values())) for name in classes)


def weights_of_classes(
    asked: str | Mapping[str, float] | None, classes: Sequence[str], means: Release | None
) -> Floats | None:
    """Weights (K,) from 0 to 1, or None where all records count alike.

    Args:
        asked: resolved.
        means: of :func:`.centre_plan`, by class, where weights follow from frequencies.
    """
    if asked is None or asked == "none":
        return None
    if isinstance(asked, str):
        return None if means is None else rarity_weights(means, RARITY[asked])
    return np.array(stated_weights(asked, classes, "fedsgd"))


def rarity_weights(release: Release, power: float) -> Floats:
    """Weights (K,) of classes by their noised counts: (smallest count / count)^power, the rarest class's being 1.

    The smallest count is taken two standard deviations of its noise larger, so that where classes may well be alike they count
    alike.

    Args:
        release: of :func:`centre_plan` by class.
        power: 1 makes all classes weigh alike, 1/2 goes half of the way.
    """
    noise = release.noise_std["count"]
    counts = np.maximum(release.values["count"], max(noise, 1.0))
    weights: Floats = np.minimum(1.0, (float(counts.min()) + 2.0 * noise) / counts) ** power
    return weights
