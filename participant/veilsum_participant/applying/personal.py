"""A model of a site's own: a released model, moved as far as the site's own records speak for it.

The scores of a personal model are s z + x V^T + c: z (n, K) the released model's scores, x (n, m) the features that its head
takes. Such models are fitted to the site's records, exactly: with V = 0, which is the released model calibrated here; with all
three, ridge regression towards what was released; with s = 0, what the site reaches alone; and of classes the linear
discriminant of its records. Each but the last minimises the mean loss, plus lambda / 2 |V|^2 for features of unit variance,
plus a normal prior with s about 1 and c about 0. lambda is that of the least loss in the site's own cross-validation, in which
a person's records stay together. The models are averaged with weights that add up to one (stacking, Wolpert 1992; Breiman
1996): not the best ones, which few records choose by chance, but the mean of all weights under a Dirichlet prior, which has
the calibrated model ahead where records are few, and the likelihood in cross-validation. So the released sums are a prior, own
records are exact, and nothing is released.

Whoever holds a personal model holds what it learnt of single records, without noise: it stays at the site.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import gammaln, log_expit, log_softmax, softmax

from veilsum_aggregation.arrays import Bools, Floats, Integers
from veilsum_aggregation.heads import lda_head
from veilsum_aggregation.shrinkage import shrink_oas
from veilsum_node.errors import DataError, Misuse
from veilsum_participant.applying.heads import PERSONAL, PersonalHead, ReleasedHead, head_scores
from veilsum_participant.applying.measurement import headline, outcome_headline
from veilsum_participant.applying.model import Model
from veilsum_participant.applying.recipe import OutcomeForm
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.outcomes import Outcome
from veilsum_privacy.training.losses import OutcomeLoss, Squared

PENALTIES = (3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003)
"""Values of lambda, in units of the loss' curvature at the best constant prediction."""

PARTS = ("calibrated", "moved", "alone", "discriminant")
"""What is averaged; the last of classes only."""

ALONE = ("alone", "discriminant")
"""Those that know nothing of the released model."""

FOLDS = 5
FEWEST = 20
"""Records below which the released model is left as it is: cross-validation would choose by chance."""

SPREAD = 0.5
"""Standard deviation of the prior of s about 1, which weighs one record."""

STEADY = 32.0
"""Records that the prior of c about 0 weighs where there is a released model; one record where there is none."""

SMALLEST = 1e-6
"""Added to the variances of a discriminant, whose features have variance 1 or none."""

PRIOR = 5.0
"""Concentration of the weights' prior: records whose likelihood would move them as much."""

AHEAD = 200.0
"""By how much the calibrated part's mean weight is ahead of another's in the prior, in logarithms, times the records."""

DRAWS = 300
"""Weights drawn of the prior, and as many of all alike, by a seed that is always the same."""

ITERATIONS = 200


@dataclass(frozen=True)
class Personal:
    """A personal model, and how it was chosen.

    Attributes:
        model: the site's own; it is applied as a released one.
        weights: of the average, by the names in :data:`PARTS`; empty where the released model is left as it is.
        records: how many it was made of.
        left_out: records without a class that the model knows, an outcome, or features.
        figures: by ``released``, ``alone`` and ``personal``, what each reaches on own records that it was not made of (the
            released one was, under its noise), by the names of :func:`.measurement.headline` and ``loss``.
    """

    model: Model
    weights: Mapping[str, float]
    records: int
    left_out: int
    figures: Mapping[str, Mapping[str, float]]

    def result(self, released: Result) -> Result:
        """The released result with this model in its place, to be stored.

        It is a personal one also where the released model is left as it is: what it tells beside is the site's own records'.
        """
        model, head = self.model, self.model.recipe.head
        if not isinstance(head, PersonalHead):
            model, head = _with(model, 1.0, np.zeros((model.recipe.scores, model.width)), np.zeros(model.recipe.scores))
        own = {name: array for name, array in model.arrays.items() if name.startswith(PERSONAL)}
        alignment = None if model.recipe.alignment is None else model.recipe.alignment.model_dump(mode="json")
        told = {**released.application, "head": head.model_dump(mode="json"), "scores": _SCORES, "alignment": alignment}
        summary = {**released.summary, "personal": self.to_json()}
        return Result(released.method, summary, {**released.arrays, **own}, told)

    def to_json(self) -> list[dict[str, Any]]:
        """How it was chosen, as a table with one line."""
        figures = {f"{name}_{key}": value for name, each in self.figures.items() for key, value in each.items()}
        weights = {f"weight_{name}": self.weights.get(name, 0.0) for name in PARTS}
        return [{"records": self.records, **weights, **figures}]


_SCORES = "scale times the released head's scores, plus features @ weights.T + bias; made of one site's records without noise"


def personalise(
    model: Model,
    records: Records,
    *,
    schema: DatasetSchema | None = None,
    site: str | None = None,
    kept: Mapping[str, Floats] | None = None,
    noise_std: Mapping[str, float] | None = None,
) -> Personal:
    """Move a released model by a site's own records.

    Args:
        model: with a head; not a personal one.
        records: the site's own: with labels under the model's schema; for a model of an outcome under the study's schema.
        site, kept, noise_std: as of :meth:`Model.features`.

    Raises:
        Misuse: the model has no head or is a site's own already, or its outcome's columns are not given.
        DataError: no record can be learnt from.
    """
    own = _own_records(model, records, schema)
    x = model.features(own.records, site, kept, noise_std)
    z = head_scores(_released(model), model.arrays, x, model.recipe.scores)
    used = own.known & np.isfinite(x).all(axis=1) & np.isfinite(z).all(axis=1)
    number, left_out = int(used.sum()), int((~used).sum())
    if number == 0:
        raise DataError("No record has features and a class or outcome that the model knows.", "Give labelled records.")
    data = _Standard.of(x[used], z[used], own.targets[used], own.loss)
    told = own.told(used)
    figures = {"released": told(data.z) | {"loss": data.mean_loss(data.z)}}
    if number < FEWEST or data.curvature <= 0.0:  # of one class alone there is nothing to learn
        return Personal(model, {}, number, left_out, figures | {"personal": figures["released"]})
    folds = fold_of(number, None if records.subjects is None else records.subjects[used])
    names = PARTS if isinstance(own.loss, _Classes) else PARTS[:-1]
    parts = {name: _cross_validated(data, folds, name) for name in names}
    weights = _stacked(data, [part.scores for part in parts.values()])
    together = np.tensordot(weights, np.stack([part.scores for part in parts.values()]), axes=1)
    alone = min((part for part in parts.values() if part.choice.name in ALONE), key=lambda part: part.loss)
    figures["alone"] = told(alone.scores) | {"loss": alone.loss}
    figures["personal"] = told(together) | {"loss": data.mean_loss(together)}
    fits = [_fit(data, part.choice) for part in parts.values()]
    moved = _moved(
        model, data, _Fit(*(sum(w * f for w, f in zip(weights, each, strict=True)) for each in zip(*fits, strict=True)))
    )
    return Personal(moved, dict(zip(parts, weights.tolist(), strict=True)), number, left_out, figures)


def fold_of(n: int, subjects: Integers | None) -> Integers:
    """The fold (n,) of each record: a person's records share one, and people are dealt by a fixed shuffle."""
    units = np.arange(n) if subjects is None else np.unique(subjects, return_inverse=True)[1]
    dealt = np.random.default_rng(0).permutation(int(units.max()) + 1) % FOLDS
    return np.asarray(dealt[units], dtype=np.int64)


@dataclass(frozen=True)
class _Own:
    """Own records as the loss takes them: ``targets`` (n, t), and which have one that is ``known``."""

    records: Records
    targets: Floats
    known: Bools
    loss: OutcomeLoss
    told: Callable[[Bools], Callable[[Floats], dict[str, float]]]


def _own_records(model: Model, records: Records, schema: DatasetSchema | None) -> _Own:
    form = model.recipe.outcome
    if form is not None:
        return _of_outcome(form, records, schema)
    if records.labels is None:
        raise DataError("A personal model needs records with their classes.", "Add the label's column to the file.")
    names, classes = model.schema.classes, model.classes
    places = np.array([classes.index(name) if name in classes else -1 for name in names] + [-1], dtype=np.int64)
    own = places[records.labels]
    targets = (own[:, None] == np.arange(len(classes))).astype(np.float64)

    def told(used: Bools) -> Callable[[Floats], dict[str, float]]:
        truth = own[used]
        return lambda scores: headline(scores, truth, classes, classes)

    return _Own(records, targets, own >= 0, _Classes(len(classes)), told)


def _of_outcome(form: OutcomeForm, records: Records, schema: DatasetSchema | None) -> _Own:
    if schema is None:
        raise Misuse("A model of an outcome is moved by records with the outcome.", "Give the study's schema.")
    outcome = Outcome(column=form.column, loss=form.loss, event=form.event, censored=form.censored, cuts=form.cuts)
    outcome.check(schema)
    parted = outcome.split(records, schema)

    def told(used: Bools) -> Callable[[Floats], dict[str, float]]:
        truth, events = form.observed(parted.outcomes[used])
        return lambda scores: outcome_headline(form.loss, form.estimates(scores), truth, events) if len(truth) > 1 else {}

    return _Own(parted.records, parted.outcomes, parted.known, outcome.build(schema), told)


class _Classes(OutcomeLoss):
    """-log of the softmax probability of the record's class; targets (n, K) are indicators."""

    def __init__(self, classes: int) -> None:
        self.scores = self.outcomes = classes

    def gradient(self, scores: Any, outcomes: Any) -> Any:
        return softmax(scores, axis=1) - outcomes

    def values(self, scores: Floats, outcomes: Floats) -> Floats:
        losses: Floats = -(log_softmax(scores, axis=1) * outcomes).sum(axis=1)
        return losses

    def constant(self, means: Floats) -> Floats:
        return np.log(np.maximum(means, 1e-3))

    def curvature(self, means: Floats) -> float:
        return float((means * (1.0 - means)).max())


def _released(model: Model) -> ReleasedHead:
    head = model.recipe.head
    if head is None:
        raise Misuse("This result computes features and holds no model to move.", "Give the result of a model.")
    if isinstance(head, PersonalHead):
        raise Misuse("This model is a site's own already.", "Give the released result.")
    return head


@dataclass(frozen=True)
class _Standard:
    """Records to learn from: features (n, m) of mean 0 and variance 1, released scores (n, K), targets (n, t).

    Attributes:
        centre, scale: (m,) features are scale x + centre; a feature that does not vary here is 0 throughout.
        curvature: of the loss at the best constant prediction.
    """

    x: Floats
    z: Floats
    targets: Floats
    loss: OutcomeLoss
    centre: Floats
    scale: Floats
    curvature: float

    @staticmethod
    def of(x: Floats, z: Floats, targets: Floats, loss: OutcomeLoss) -> "_Standard":
        """Standardise features; released scores keep their unit."""
        centre, spread = x.mean(axis=0), x.std(axis=0)
        varies = spread > 1e-9 * (1.0 + np.abs(centre))
        standard = np.where(varies, (x - centre) / np.where(varies, spread, 1.0), 0.0)
        means = targets.mean(axis=0)
        scale = np.where(varies, spread, np.inf)
        return _Standard(standard, z, targets, loss, centre, scale, loss.curvature(means))

    def mean_loss(self, scores: Floats) -> float:
        """Mean loss of scores (n, K)."""
        return float(np.mean(self.loss.values(scores, self.targets)))

    def part(self, rows: Bools) -> "_Standard":
        """Some of the records."""
        return replace(self, x=self.x[rows], z=self.z[rows], targets=self.targets[rows])


class _Choice(NamedTuple):
    """One of :data:`PARTS`, and the penalty lambda of its V, where it has one to choose."""

    name: str
    penalty: float | None = None


class _Validated(NamedTuple):
    """A choice, and its scores and loss on records that it was not fitted to."""

    choice: _Choice
    scores: Floats
    loss: float


class _Fit(NamedTuple):
    """Scores scale z + x matrix^T + offset."""

    scale: float
    matrix: Floats
    offset: Floats

    def scores(self, data: _Standard) -> Floats:
        moved: Floats = self.scale * data.z + data.x @ self.matrix.T + self.offset
        return moved


def _cross_validated(data: _Standard, folds: Integers, name: str) -> _Validated:
    """The penalty with the least mean loss on records that it was not fitted to, of a part with all of them."""
    choices = [_Choice(name, penalty) for penalty in (PENALTIES if name in ("moved", "alone") else (None,))]
    found = [np.zeros_like(data.z) for _ in choices]
    for fold in range(FOLDS):
        held = folds == fold
        training, testing, start = data.part(~held), data.part(held), None
        for scores, choice in zip(found, choices, strict=True):  # from the stiffest on, each from where the last one ended
            start = _fit(training, choice, start)
            scores[held] = start.scores(testing)
    losses = [data.mean_loss(scores) for scores in found]
    best = int(np.argmin(losses))
    return _Validated(choices[best], found[best], losses[best])


def _discriminant(data: _Standard) -> _Fit:
    """Linear discriminant analysis with the OAS covariance; a class without records has the mean of all."""
    n, m = data.x.shape
    counts = data.targets.sum(axis=0)
    means = data.targets.T @ data.x / np.maximum(counts, 1.0)[:, None]
    means[counts == 0.0] = data.x.mean(axis=0)
    rest = data.x - data.targets @ means
    degrees = max(1, n - int((counts > 0.0).sum()))
    covariance = shrink_oas(rest.T @ rest / degrees, float(degrees)) + SMALLEST * np.eye(m)
    head = lda_head(means, covariance, counts + 0.5, tuple(map(str, range(len(counts)))))
    return _Fit(0.0, head.weights, head.bias)


def _fit(data: _Standard, choice: _Choice, start: _Fit | None = None) -> _Fit:
    """A part's model of records; but for the discriminant by L-BFGS, from another one's on."""
    if choice.name == "discriminant":
        return _discriminant(data)
    released = choice.name != "alone"
    (n, m), k = data.x.shape, data.z.shape[1]
    base = data.z if released else np.zeros((n, k))
    rest = np.zeros(k) if released else data.loss.constant(data.targets.mean(axis=0))
    tight = data.curvature / n / SPREAD**2
    prior = data.curvature / n * (STEADY if released else 1.0)
    stiff = 0.0 if choice.penalty is None else choice.penalty * data.curvature
    rows = data.x[:, :0] if choice.penalty is None else data.x

    def objective(values: Floats) -> tuple[float, Floats]:
        off, offset, matrix = values[0] - 1.0, values[1 : 1 + k], values[1 + k :].reshape(k, -1)
        scores = values[0] * base + rest + offset + rows @ matrix.T
        penalty = tight * off * off + prior * float(offset @ offset) + stiff * float((matrix * matrix).sum())
        slopes = data.loss.gradient(scores, data.targets) / n
        by_scale = np.array([float((slopes * base).sum()) + tight * off])
        by_matrix = slopes.T @ rows + stiff * matrix
        return data.mean_loss(scores) + 0.5 * penalty, np.concatenate(
            [by_scale, slopes.sum(axis=0) + prior * offset, by_matrix.ravel()]
        )

    first = start or _Fit(1.0, np.zeros((k, m)), rest)
    begin = np.concatenate([[first.scale], first.offset - rest, first.matrix[:, : rows.shape[1]].ravel()])
    found = minimize(objective, begin, jac=True, method="L-BFGS-B", options={"maxiter": ITERATIONS}).x
    matrix = np.zeros((k, m)) if choice.penalty is None else found[1 + k :].reshape(k, m)
    return _Fit(float(found[0]) if released else 0.0, matrix, rest + found[1 : 1 + k])


def _stacked(data: _Standard, parts: Sequence[Floats]) -> Floats:
    """Mean of the weights of an average of scores, the calibrated ones first, under their posterior.

    By importance sampling from the prior and from all weights alike: the prior is all but certain of few records, and a
    likelihood that contradicts it is to be heard.
    """
    scores, n, k = np.stack(parts), len(data.z), len(parts)
    lead = 1.0 / (1.0 + (k - 1) * np.exp(-AHEAD / n))  # of few records cross-validation tells little
    prior = PRIOR * np.array([lead, *[(1.0 - lead) / (k - 1)] * (k - 1)])
    rng = np.random.default_rng(0)
    drawn = np.concatenate([rng.dirichlet(prior, DRAWS), rng.dirichlet(np.ones(k), DRAWS)])
    density = gammaln(PRIOR) - gammaln(prior).sum() - gammaln(k) + np.log(np.maximum(drawn, 1e-300)) @ (prior - 1.0)
    losses = np.array([data.mean_loss(np.tensordot(weights, scores, axes=1)) for weights in drawn])
    unit = 2.0 * losses.min() + SMALLEST if isinstance(data.loss, Squared) else 1.0  # errors' variance; others are -log p
    found: Floats = softmax(log_expit(density) - n / unit * losses) @ drawn
    return found


def _moved(model: Model, data: _Standard, fit: _Fit) -> Model:
    matrix = fit.matrix / data.scale
    return _with(model, fit.scale, matrix, fit.offset - matrix @ data.centre)[0]


def _with(model: Model, scale: float, matrix: Floats, offset: Floats) -> tuple[Model, PersonalHead]:
    """The model with a part of the site's own, and its head."""
    arrays = {f"{PERSONAL}weights": matrix, f"{PERSONAL}bias": offset}
    weights, bias = arrays
    head = PersonalHead(kind="personal", released=_released(model), scale=scale, weights=weights, bias=bias)
    return replace(model, recipe=replace(model.recipe, head=head), arrays={**model.arrays, **arrays}), head
