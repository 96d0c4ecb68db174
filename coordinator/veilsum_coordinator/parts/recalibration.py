"""Recalibrating a trained model of two classes: a logistic regression of the class on the model's own log odds (Cox 1958).

The first of four releases is at the coefficients 0, where score and information are sums and moments of the log odds, as far
as the others need them; each of these is a Newton step in coordinates that it whitened (:mod:`veilsum_aggregation.newton`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import newton
from veilsum_aggregation.figures import Answer, Drowned
from veilsum_aggregation.moments import NOISE_FLOOR
from veilsum_aggregation.newton import NewtonFit, NewtonRelease
from veilsum_aggregation.regression import Fit, UntoldFit
from veilsum_coordinator.parts.base import Inputs, TaskPlan
from veilsum_coordinator.parts.federation import Federation
from veilsum_coordinator.parts.figure_rows import shown
from veilsum_coordinator.parts.networks import without_centre
from veilsum_coordinator.parts.newton_rounds import newton_release
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.study.schema import NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.calibration_step import CalibrationStepParameters
from veilsum_privacy.tasks.gradient import GradientParameters
from veilsum_privacy.tasks.local_training import LocalTrainingParameters
from veilsum_privacy.tasks.newton_step import POINT, WHITEN
from veilsum_privacy.training.arrays import to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec
from veilsum_privacy.training.models.perceptrons import Perceptron
from veilsum_privacy.training.predict import scores

Floats = NDArray[np.float64]

ROUNDS = tuple(f"recalibration-{number}" for number in range(1, 5))
"""Labels of the releases."""

SHARES = (0.20, 0.15, 0.20, 0.45)
"""Of the option's part of the budget, as of a regression."""

LENGTH, FREE_INFORMATION = 1.25 * math.sqrt(2.0), 0.83
"""C and kappa, as of a logistic regression of one term."""

UNCLIPPED = 1e6
"""Features are scored as they are when the model is applied, however long they are."""

DRAWN, SPREAD = 200, 1.0 / 3.0
"""Typical records whose log odds set the scale of the first release, and standard deviation of their numbers in [-1, 1]."""

ADVICE = "more records or epsilon, or a larger part of it for this"

NAMES = ("calibration intercept", "calibration slope")


def check_recalibration(asked: float, inputs: Inputs, model: ModelSpec, method: str, *, outcome: bool) -> None:
    """Insist that a model can be recalibrated, if it is asked for.

    Raises:
        ConfigurationError: it cannot; the message says why.
    """
    if not asked:
        return
    if outcome or len(inputs.classes) != 2:
        found = "an outcome" if outcome else f"{len(inputs.classes)} classes"
        raise ConfigurationError(
            f"{method} recalibrates the probability of one of two classes; this model is of {found}.",
            "Leave out recalibrate, or name two classes in [label].",
        )
    if model.name == "linear" and model.options.get("bias") == 0.0:
        raise ConfigurationError(f"{method} recalibrates a model's bias, and this model has none.", "State a bias above 0.")


def with_recalibration(asked: float, plans: tuple[TaskPlan, ...]) -> tuple[TaskPlan, ...]:
    """A method's releases, and those of the recalibration after them where it is asked for.

    Args:
        asked: part of the budget that it takes.
        plans: the training the last one; sampled steps count as of :func:`.moment_share`.
    """
    training = plans[-1].parameters
    if not asked or not isinstance(training, GradientParameters | LocalTrainingParameters):
        return plans
    step = CalibrationStepParameters(
        width=training.width,
        alignment=training.alignment,
        clip=UNCLIPPED,
        missing=training.missing,
        model=training.model,
        length=LENGTH,
        information_share=FREE_INFORMATION,
    )
    taken = sum(plan.share * plan.steps * plan.sampling_rate**2 for plan in plans if not plan.derived)
    parts = [taken * asked / (1.0 - asked) * part for part in SHARES]
    releases = zip(ROUNDS, parts, strict=True)
    return *plans, *(
        TaskPlan(label, "calibration-step", step, share=part, source=plans[-1].source) for label, part in releases
    )


class Recalibrated(NamedTuple):
    """A model after its recalibration.

    Attributes:
        arrays: by name; as they were where nothing can be told.
        summary: what the result says of it; nothing where it was not asked for.
    """

    arrays: Mapping[str, Floats]
    summary: Mapping[str, Any]


def recalibrated(
    federation: Federation,
    architecture: Architecture,
    arrays: Mapping[str, Floats],
    *,
    centre: Floats | None = None,
    broadcast: Mapping[str, Floats] | None = None,
    members: Collection[str] | None = None,
) -> Recalibrated:
    """Run the releases, if the study has them, and give the log odds s of the model the intercept a and slope b: a + b s.

    Args:
        federation: of the study.
        architecture: of the model.
        arrays: of the model, by name.
        centre: (d,) what training takes off the features.
        broadcast: what is broadcast beside the model.
        members: who can take part; None for all.
    """
    study = federation.study
    if all(task.label != ROUNDS[0] for task in study.tasks):
        return Recalibrated(arrays, {})
    sent = {**to_broadcast(without_centre(architecture, arrays, centre)), **(broadcast or {})}
    fit = _fitted(federation, sent, _first_terms(study, architecture, arrays, centre), members)
    answers = [fit.combination(row) for row in np.eye(2)]
    told: dict[str, Any] = {name: shown(answer) for name, answer in zip(NAMES, answers, strict=True)}
    why = _unfit(answers)
    told["applied"] = why is None
    if why is not None:
        return Recalibrated(arrays, {"recalibration": {**told, "note": f"{why}; the model stays as it was"}})
    intercept, slope = fit.coefficients
    return Recalibrated(_changed(architecture, arrays, float(intercept), float(slope)), {"recalibration": told})


def _unfit(answers: list[Answer]) -> str | None:
    """Why a recalibration is not applied; None where it is."""
    for answer in answers:
        if isinstance(answer, Drowned):
            return f"not estimable: {answer.reason}"
        if not math.isfinite(answer.value):
            return "not estimable: the released sums give no number"
    slope = answers[1]
    return "the slope is not above 0" if not isinstance(slope, Drowned) and slope.value <= 0.0 else None


def _fitted(federation: Federation, sent: Mapping[str, Floats], start: Floats, members: Collection[str] | None) -> Fit:
    """The logistic regression; the first release is in the coordinates of ``start`` (2, 2)."""
    release = federation.sum(ROUNDS[0], {**sent, WHITEN: start, POINT: np.zeros(2)}, members=members)
    first = newton_release(release, np.zeros(2))
    gram, std = 4.0 * first.information, 4.0 * first.information_std
    events = first.score + gram[:, 0] / 2.0
    noise = math.hypot(first.score_std, std / 2.0)
    records = float(gram[0, 0])
    for number, what in ((events[0], "has"), (records - events[0], "lacks")):
        if number <= max(0.5, NOISE_FLOOR * noise):
            return UntoldFit(
                Drowned(f"no record {what} the second class, or too few against the noise", "more records or epsilon"), 2
            )
    own = newton.whitening(gram, std)
    if own.shape[1] < 2:
        return UntoldFit(
            Drowned("the model says the same of all records, or nearly, against the noise", "more records or epsilon"), 2
        )
    whiten, released = np.asarray(start @ own), list[NewtonRelease]()
    point = newton.first_point("logistic", gram, events, own, 1.0)
    for label in ROUNDS[1:]:
        release = federation.sum(label, {**sent, WHITEN: whiten, POINT: point}, members=release.cohort)
        released.append(newton_release(release, point))
        fit = NewtonFit(whiten, tuple(released), NAMES)
        point = fit.point
    return fit


def _first_terms(study: Study, architecture: Architecture, arrays: Mapping[str, Floats], centre: Floats | None) -> Floats:
    """(2, 2), which turns (1, s) into 1 and s in units of its standard deviation among typical records, from their mean on."""
    rng, middle = np.random.default_rng(0), np.zeros(study.width) if centre is None else centre
    x = middle + rng.normal(0.0, SPREAD, (DRAWN, study.width))
    if study.encoder is None:
        x = np.clip(x, -1.0, 1.0)
        for column, at in study.data.places():
            if not isinstance(column, NumberColumn):
                shares = np.maximum(middle[at], 0.0) + 1e-3
                x[:, at] = np.eye(len(shares))[rng.choice(len(shares), DRAWN, p=shares / shares.sum())]
    found = scores(architecture, without_centre(architecture, arrays, centre), x)
    odds = found[:, 1] - found[:, 0]
    mean, spread = float(odds.mean()), max(float(odds.std()), 1e-6)
    return np.array([[1.0, -mean / spread], [0.0, 1.0 / spread]])


def _changed(architecture: Architecture, arrays: Mapping[str, Floats], intercept: float, slope: float) -> dict[str, Floats]:
    """The model with its last layer changed, so that its log odds s are a + b s."""
    last = architecture.linear_layers()[-1]
    constant = architecture.layers()[-1].constant if isinstance(architecture, Perceptron) else 1.0
    weight, bias = f"{last}.weight", f"{last}.bias"
    moved = slope * arrays[bias] + intercept / constant * np.array([-0.5, 0.5])
    return {**arrays, weight: slope * arrays[weight], bias: moved}
