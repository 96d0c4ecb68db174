"""Robust errors of a regression: one more release, of the products of records' scores at the estimate, over all sites."""

from __future__ import annotations

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.newton import NewtonFit
from veilsum_aggregation.regression import Fit, LinearFit
from veilsum_aggregation.robust import RobustFit
from veilsum_coordinator.parts.base import TaskPlan
from veilsum_coordinator.parts.clustered_errors import linear_asked, newton_asked
from veilsum_coordinator.parts.federation import Federation, Release, released_noise
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.securesum.agreed import AgreedStudy
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.hazard_step import HazardStepParameters
from veilsum_privacy.tasks.newton_step import NewtonStepParameters
from veilsum_privacy.tasks.site_scores import SCALE, ScoreProducts, SiteScoresParameters

PRODUCTS = "score-products"
"""Label of the release."""

SHARE = 0.2
"""Of the budget."""

PRODUCT_NOISE = 0.1
"""The bound of a score is so large that the noise of a variance is this share of it; it leaves most tails alone at least."""


def product_release(step: NewtonStepParameters | HazardStepParameters | SiteScoresParameters, others: float) -> TaskPlan:
    """The release.

    Args:
        step: what the fit's last step computes, or of a linear model the scores' own parameters.
        others: sum of the shares of the fit's releases.

    Raises:
        ConfigurationError: it is a model of hazards.
    """
    if isinstance(step, HazardStepParameters):
        raise ConfigurationError("A Cox regression has no robust errors.", 'Leave out errors = "robust".')
    parameters = step
    if isinstance(step, NewtonStepParameters):
        parameters = SiteScoresParameters.model_validate(step.model_dump(exclude={"information_share"}))
    return TaskPlan(PRODUCTS, "score-products", parameters, share=others * SHARE / (1.0 - SHARE))


def robust(federation: Federation, first: Release, fit: Fit, records: float, spread: float = 0.0) -> RobustFit:
    """Run the release at a fit's estimate.

    Args:
        federation: of the study.
        first: its first release, whose cohort takes part.
        fit: a linear or Newton fit.
        records: how many took part in it.
        spread: of counts, their standard deviation.
    """
    std = released_noise(federation.study, PRODUCTS, len(first.cohort))["diagonal"]
    least, broadcast, influence, expected = _asked(federation.study, fit, math.inf, spread)
    most = _asked(federation.study, fit, 0.0, spread)[0]
    bound = most if std == 0.0 else min(max(math.sqrt(PRODUCT_NOISE * expected / std), least), most)
    release = federation.sum(PRODUCTS, {**broadcast, SCALE: np.array([1.0 / bound])}, members=first.cohort)
    cross = release.values.get("cross", np.zeros(0))
    told = influence.shape[1]  # the others are zeros and noise
    products = symmetric(release.values["diagonal"], cross)[:told, :told] * bound**2
    return RobustFit(fit, products, release.noise_std["diagonal"] * bound**2, influence, records)


def _asked(study: Study, fit: Fit, std: float, spread: float) -> tuple[float, dict[str, Floats], Floats, float]:
    """B, what is broadcast, U, and what a value on the diagonal of the sum is expected to be."""
    task = AgreedStudy(study).task(PRODUCTS).task
    if isinstance(fit, LinearFit):
        return *linear_asked(fit, std, 1), fit.residual_variance * max(float(fit.moments[0, 0]), 1.0)
    if isinstance(fit, NewtonFit) and isinstance(task, ScoreProducts):
        return *newton_asked(fit, task, std, 1, spread**2), float(np.mean(np.diag(fit.floored)))
    raise Misuse("The study declares the scores of another family.")
