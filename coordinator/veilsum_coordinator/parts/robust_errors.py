"""Robust errors of a regression: one more release, of the products of records' scores at the estimate, over all sites."""

import math
from dataclasses import replace

import numpy as np

from veilsum_aggregation import newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.moments import symmetric
from veilsum_aggregation.newton import NewtonFit
from veilsum_aggregation.regression import Fit, LinearFit
from veilsum_aggregation.robust import RobustFit, mean_terms, spread_of
from veilsum_coordinator.parts.base import TaskPlan
from veilsum_coordinator.parts.clustered_errors import LARGEST_RESIDUAL, linear_asked, newton_asked
from veilsum_coordinator.parts.federation import Federation, released_noise
from veilsum_coordinator.parts.first_moments import FirstMoments
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.hazard_step import HazardStepParameters
from veilsum_privacy.tasks.newton_step import NewtonStepParameters
from veilsum_privacy.tasks.site_scores import SCALE, ScoreProducts, SiteScoresParameters

PRODUCTS = "score-products"
"""Label of the release."""

SHARE = 0.2
"""Share of the budget."""

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
        parameters = SiteScoresParameters.model_validate(step.model_dump(exclude={"information_share", "excess_share"}))
    return TaskPlan(PRODUCTS, "score-products", parameters, share=others * SHARE / (1.0 - SHARE))


def is_robust(study: Study) -> bool:
    """Whether a study declares the release."""
    return any(task.label == PRODUCTS for task in study.tasks)


def robust(federation: Federation, first: FirstMoments, fit: Fit) -> RobustFit:
    """Run the release at a fit's estimate.

    Args:
        first: what the first release told, whose cohort takes part.
        fit: a linear or Newton fit.
    """
    cohort, spread, question = first.release.cohort, spread_of(*first.spread, math.sqrt(first.rate)), first.question
    std = released_noise(federation.study, PRODUCTS, len(cohort))["diagonal"]
    least, broadcast, influence, expected = _asked(federation.study, fit, math.inf, spread)
    bound = most = _asked(federation.study, fit, 0.0, spread)[0]
    if std > 0.0:
        bound = min(max(math.sqrt(PRODUCT_NOISE * expected / std), least), most)
    release = federation.sum(PRODUCTS, {**broadcast, SCALE: np.array([1.0 / bound])}, members=cohort)
    cross = release.values.get("cross", np.zeros(0))
    told = influence.shape[1]  # the others are zeros and noise
    products = symmetric(release.values["diagonal"], cross)[:told, :told] * bound**2
    found = RobustFit(fit, products, release.noise_std["diagonal"] * bound**2, influence, float(first.moments[0, 0]))
    whiten = newton.whitening(first.gram, first.std, first.part.grain)
    cells, levels = mean_terms(first.gram, question.categories), sum(len(places) + 1 for places in question.categories)
    short = np.minimum(question.longest / np.linalg.norm(cells, axis=1), 1.0)
    leverages, known = np.sum((cells @ whiten) ** 2, axis=1) * short**2 / max(found.records, 1.0), np.zeros(len(cells))
    found = replace(found, cells=cells, leverages=leverages, known=known)
    if not isinstance(fit, LinearFit):
        return found
    if question.event and first.std > 0.0:  # the risk of a level
        known[1 : levels + 1] = (np.maximum(1.0 - (cells @ fit.coefficients) ** 2, 0.0) * leverages)[1 : levels + 1]
    return replace(found, lopsided=first.lopsided, largest=LARGEST_RESIDUAL**2)


def _asked(study: Study, fit: Fit, std: float, spread: float) -> tuple[float, dict[str, Floats], Floats, float]:
    """B, what is broadcast, U, and what a value on the diagonal of the sum is expected to be."""
    task = AgreedStudy(study).task(PRODUCTS).task
    if isinstance(fit, LinearFit):
        return *linear_asked(fit, std, 1), fit.residual_variance * max(float(fit.moments[0, 0]), 1.0)
    if isinstance(fit, NewtonFit) and isinstance(task, ScoreProducts):
        return *newton_asked(fit, task, std, 1, spread**2), float(np.mean(np.diag(fit.floored)))
    raise Misuse("The study declares the scores of another family.")
