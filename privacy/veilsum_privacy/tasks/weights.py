"""Public weights of a round: what each member's vector is multiplied by before it is rounded.

A broadcast says the weights of all participants at once, so that every member knows everyone's, whatever the cohort is:
``participation.scores`` (sites,), of which a cohort's weights are the softmax, or ``participation.weights`` (sites,), taken as
they are. A vector is multiplied by its weight over the largest weight in the cohort, a number in [0, 1]: what one record
changes never grows, and the sum of the factors is what a mean divides by.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput

SCORES, WEIGHTS = "participation.scores", "participation.weights"
"""Names of the broadcast arrays."""


def cohort_factors(broadcast: Mapping[str, Floats], cohort: Sequence[int], sites: int) -> Floats:
    """The factors (n,) of a cohort of n, given by their places among the study's participants; the largest is 1.

    Raises:
        HostileInput: the broadcast has not exactly one of the two arrays, or no member has a positive weight.
    """
    found = [name for name in (SCORES, WEIGHTS) if name in broadcast]
    if len(found) != 1:
        raise HostileInput(f"The broadcast must hold either {SCORES} or {WEIGHTS}.")
    array = broadcast[found[0]]
    if array.shape != (sites,) or not np.isfinite(array).all():
        raise HostileInput(f"The broadcast must hold {found[0]}, one finite number for each participant.")
    own = array[list(cohort)]
    weights = np.exp(own - own.max()) if found[0] == SCORES else own
    if weights.min() < 0.0 or weights.max() <= 0.0:
        raise HostileInput(f"The weights in {found[0]} must not be negative, and not all zero in a cohort.")
    factors: Floats = weights / weights.max()
    return factors


def largest_share(factors: Floats) -> float:
    """The largest part of a sum's weight that one member has."""
    return float(factors.max() / factors.sum())
