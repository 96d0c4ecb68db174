"""Errors of a regression that are clustered by site: one more release, in which each site's score of the fit is its own."""

import math

import numpy as np

from veilsum_aggregation import newton
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.clustered import FEWEST_SITES, ClusteredFit, score_bound
from veilsum_aggregation.hazards import HazardFit
from veilsum_aggregation.newton import NewtonFit
from veilsum_aggregation.regression import Fit, LinearFit
from veilsum_coordinator.parts.base import TaskPlan
from veilsum_coordinator.parts.federation import Federation, Release, released_noise
from veilsum_coordinator.parts.proportional_hazards import broadcast_of
from veilsum_node.errors import ConfigurationError, Misuse
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.hazard_step import HAZARDS, HazardStepParameters
from veilsum_privacy.tasks.newton_step import POINT, WHITEN, NewtonStepParameters
from veilsum_privacy.tasks.queries.language import DerivedColumn, Query
from veilsum_privacy.tasks.site_scores import BASELINE, SCALE, SiteScores, SiteScoresParameters

SCORES = "site-scores"
"""Label of the release."""

SHARE = 0.3
"""Share of the budget."""

TAILS = {"linear": 3.0, "poisson": 4.0}
"""Standard deviations of the outcome from its mean within which no record's score is shortened, whatever the noise: enough
for the tails of a normal and, for counts, skewed outcome."""

LARGEST_RESIDUAL = 2.0
"""Largest residual of a linear model, from one bound of the outcome to the other."""

FARTHEST = 8.0
"""Terms of a linear model are shortened beyond so many times the length of most, where no noise is added."""

LONGEST_HAZARD_SCORE = 4.0
"""The same of a hazard model's scores, in units of the longest terms."""


def score_release(
    step: NewtonStepParameters | HazardStepParameters | SiteScoresParameters, others: float, sites: int
) -> TaskPlan:
    """The release.

    Args:
        step: what the fit's last step computes, or of a linear model the release itself.
        others: sum of the shares of the fit's releases.
        sites: that the study names.

    Raises:
        ConfigurationError: there are too few.
    """
    if sites < FEWEST_SITES:
        raise ConfigurationError(
            f"Errors clustered by site need {FEWEST_SITES} sites; the study names {sites}.", 'Leave out errors = "clustered".'
        )
    name, parameters = "site-scores", step
    if isinstance(step, HazardStepParameters):
        name = "site-hazard-scores"
    elif isinstance(step, NewtonStepParameters):
        parameters = SiteScoresParameters.model_validate(step.model_dump(exclude={"information_share", "excess_share"}))
    return TaskPlan(SCORES, name, parameters, disclosure="per-site", share=others * SHARE / (1.0 - SHARE))


def linear_scores(query: Query, derived: tuple[DerivedColumn, ...], longest: float) -> SiteScoresParameters:
    """Parameters of the release of a linear model whose terms were shortened to ``longest``."""
    return SiteScoresParameters(query=query.model_copy(update={"scale": 1}), derived=derived, family="linear", length=longest)


def cluster(federation: Federation, first: Release, fit: Fit, rate: float = 0.0) -> ClusteredFit:
    """Run the release at a fit's estimate.

    Args:
        first: its first release, whose cohort takes part.
        fit: a linear, Newton or hazard fit.
        rate: of counts, their mean.
    """
    bound, broadcast, influence = _asked(federation.study, len(first.cohort), fit, rate)
    release = federation.sum(SCORES, broadcast, members=first.cohort)
    scores = release.values["score"][:, : influence.shape[1]] * bound
    return ClusteredFit(fit, scores, release.noise_std["score"] * bound, influence)


def _asked(study: Study, sites: int, fit: Fit, rate: float) -> tuple[float, dict[str, Floats], Floats]:
    """B, what is broadcast, and U."""
    task, std = AgreedStudy(study).task(SCORES).task, released_noise(study, SCORES, sites)["score"]
    if isinstance(fit, LinearFit):
        bound, broadcast, influence = linear_asked(fit, std, sites)
    elif isinstance(fit, NewtonFit) and isinstance(task, SiteScores):
        bound, broadcast, influence = newton_asked(fit, task, std, sites, rate)
    elif isinstance(fit, HazardFit):
        bound, broadcast, influence = _hazards(fit, std, sites)
    else:
        raise Misuse("The study declares the scores of another family.")
    return bound, {**broadcast, SCALE: np.array([1.0 / bound])}, influence


def linear_asked(fit: LinearFit, std: float, sites: int) -> tuple[float, dict[str, Floats], Floats]:
    """B, what is broadcast, and U of a linear model, for noise of ``std`` in a score of which 1 is the bound."""
    gram = fit.moments[: fit.p, : fit.p]
    whiten, error = newton.whitening(gram, fit.std, fit.grain), math.sqrt(fit.residual_variance)
    back, length = np.linalg.pinv(whiten), newton.REACH * math.sqrt(fit.p)
    spread = error * math.sqrt(max(float(gram[0, 0]), 1.0) / sites)
    least = length * min(TAILS["linear"] * error, LARGEST_RESIDUAL)
    bound = score_bound(spread, std, least, FARTHEST * length * LARGEST_RESIDUAL)
    broadcast = {WHITEN: newton.padded(whiten, fit.p), POINT: newton.padded(back @ fit.coefficients, fit.p)}
    return bound, broadcast, fit.inverse @ back.T


def newton_asked(
    fit: NewtonFit, task: SiteScores, std: float, sites: int, rate: float
) -> tuple[float, dict[str, Floats], Floats]:
    """The same of events and counts; ``rate`` is the variance of counts."""
    length, most = float(task.parameters.length), float(task.parameters.most)
    largest = length * (1.0 if task.parameters.family == "logistic" else max(task.question.outcome.high, most))
    least = largest if task.parameters.family == "logistic" else min(length * TAILS["poisson"] * math.sqrt(rate), largest)
    spread = math.sqrt(float(np.mean(np.diag(fit.floored))) / sites)
    bound = score_bound(spread, std, least, largest)
    return bound, {WHITEN: newton.padded(fit.whiten, fit.p), POINT: newton.padded(fit.point, fit.p)}, fit.influence


def _hazards(fit: HazardFit, std: float, sites: int) -> tuple[float, dict[str, Floats], Floats]:
    """Terms are as long as in the last step, so that they weigh as there."""
    spread = math.sqrt(fit.model.events / sites) / fit.length
    bound = score_bound(spread, std, 1.0, LONGEST_HAZARD_SCORE)
    broadcast = broadcast_of(fit.model, fit.point, fit.length)
    baseline = np.zeros((len(broadcast[HAZARDS]), len(fit.model.whiten)))
    baseline[fit.model.baseline.places, : fit.baseline.shape[1]] = fit.baseline / fit.length
    # U is of scores in units of the whitened terms, the release of terms of length 1
    return bound, {**broadcast, BASELINE: baseline}, fit.influence * fit.length
