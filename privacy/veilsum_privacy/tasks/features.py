"""What the tasks on features share: what is broadcast to them, and how long second moments get."""

import math
from collections.abc import Mapping

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.parameters import FeatureParameters

CLASS_WEIGHTS = "class.weights"
"""Broadcast array (K,): what a record's clipped gradient is multiplied by, by its class; from 0 to 1."""


def class_weights(broadcast: Mapping[str, Floats], classes: int) -> Floats:
    """The weight (K,) of each class.

    Raises:
        HostileInput: the broadcast does not hold weights from 0 to 1.
    """
    weights = broadcast.get(CLASS_WEIGHTS)
    if weights is None or weights.shape != (classes,) or not ((weights >= 0.0) & (weights <= 1.0)).all():
        raise HostileInput(f"The broadcast must hold {CLASS_WEIGHTS} of shape {(classes,)}, from 0 to 1.")
    return weights


CENTRE = "features.centre"
"""Broadcast array (d,): of released sums, so that it is a constant for each record."""


def second_moment_bound(parameters: FeatureParameters, schema: DatasetSchema, square: float, product: float | None) -> float:
    """Largest squared norm of the values c x_i^2 and sqrt 2 e x_i x_j, i < j, of one record; e None is without the latter.

    With r = |x| and Q = sum x_i^4 it is c^2 Q + 2 e^2 sum_{i<j} x_i^2 x_j^2 = c^2 Q + e^2 (r^4 - Q).

    For fixed r, Q is least where all x_i^2 are equal, r^4 / d, and, being convex in the x_i^2, greatest in a corner of what
    they may be. In the ball alone that is r^4, all in one coordinate. In the box [-1, 1]^d, where r^2 is at most
    R^2 = min(C^2, d), it is q(r): as many coordinates at a bound as fit (floor(r^2) of them), the rest in one more. If
    c >= e the bound e^2 r^4 + (c^2 - e^2) q(r) rises with r, otherwise c^2 r^4 / d + e^2 (r^4 - r^4 / d) does, so both are
    largest at r = R, and both are reached. Without products (e = 0) it is the first.
    """
    r2, d = parameters.largest_square(schema), parameters.dimension(schema)
    most = math.floor(r2) + (r2 - math.floor(r2)) ** 2 if parameters.boxed else r2 * r2
    e = 0.0 if product is None else product
    q = most if square >= e else r2 * r2 / d
    return float(square**2 * q + e**2 * (r2 * r2 - q))


def centre_of(broadcast: Mapping[str, Floats], width: int) -> Floats:
    """What is taken off the features.

    Raises:
        HostileInput: the broadcast does not hold it.
    """
    centre = broadcast.get(CENTRE)
    if centre is None or centre.shape != (width,) or not np.isfinite(centre).all():
        raise HostileInput(f"The broadcast must hold {CENTRE} of shape {(width,)}, finite.")
    return centre
