"""The means and variances of outcomes that generalised linear models know."""

import math
from typing import Literal

import numpy as np

from veilsum_aggregation.arrays import Floats

Family = Literal["logistic", "poisson"]


def mean_of(family: Family, eta: Floats, most: float) -> tuple[Floats, Floats]:
    """mu and v, the mean of the outcome and its variance, at linear predictors; of counts mu is at most ``most``."""
    if family == "logistic":
        mean = 1.0 / (1.0 + np.exp(-np.clip(eta, -500.0, 500.0)))
        return mean, mean * (1.0 - mean)
    mean = np.exp(np.minimum(eta, math.log(most)))
    return mean, mean


def link(family: Family, mean: float) -> float:
    """The linear predictor of a mean."""
    return math.log(mean / (1.0 - mean)) if family == "logistic" else math.log(mean)


def variance_bound(family: Family, most: float) -> float:
    """The largest v."""
    return 0.25 if family == "logistic" else most
