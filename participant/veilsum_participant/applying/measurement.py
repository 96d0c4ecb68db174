"""How a model does on records whose classes are known: every figure with a closed-form 95% interval."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from veilsum_aggregation.arrays import Floats, Integers
from veilsum_aggregation.classification import ClassCounts, auc, auc_figure, mean_of, mean_recall, reliability
from veilsum_aggregation.figures import Answer, Figure
from veilsum_aggregation.tables import share

BINS = 10
"""Bins of the calibration, of equal width between 1 / K and 1."""


def measure(scores: Floats, truth: Integers, names: Sequence[str], classes: Sequence[str]) -> dict[str, Any]:
    """Figures of predictions, as JSON; None where there is nothing to compute one from.

    Args:
        scores: (n, M) finite, one column a class of the model; their softmax is taken as probabilities.
        truth: (n,) true classes, indices into ``names``.
        names: of the records' classes.
        classes: of the model's, in the order of the scores. A record of a class that the model does not know is counted as
            predicted wrongly; it has no log loss.
    """
    n, m = scores.shape
    own = np.array([classes.index(name) if name in classes else -1 for name in names], dtype=np.int64)[truth]
    predicted = scores.argmax(axis=1).astype(np.int64) if n else np.zeros(0, dtype=np.int64)
    right = own == predicted
    counts = np.zeros((len(names), m), dtype=np.int64)
    np.add.at(counts, (truth, predicted), 1)
    columns = [classes.index(name) if name in classes else None for name in names]
    told = ClassCounts.of_table(counts.astype(np.float64), columns)
    found: dict[str, Any] = {
        "evaluated": n,
        "accuracy": _told(told.accuracy),
        "accuracy_of_constant_guess": _told(told.accuracy_of_constant_guess),
    }
    rows = list(told.figures())
    found["balanced_accuracy"] = _told(mean_recall(row["recall"] for row in rows))
    logs = log_softmax(scores, axis=1)
    losses = -logs[np.arange(n), own][own >= 0]
    found["log_loss"] = mean_of(losses, 0.0, float("inf")).to_json() if len(losses) > 1 else None
    found["auc"] = _area(logs, own) if m == 2 else None
    calibration = reliability(np.exp(logs.max(axis=1)), right, BINS, 1.0 / m) if n else None
    found["calibration_error"] = None if calibration is None else calibration.error.to_json()
    found["classes"] = [
        {"class": name, "records": int(number), **{key: _told(row[key]) for key in ("recall", "precision", "f1")}}
        for name, number, row in zip(names, counts.sum(axis=1), rows, strict=True)
    ]
    found["confusion"] = {"true": list(names), "predicted": list(classes), "counts": counts.tolist()}
    found["calibration"] = []
    if calibration is not None:
        edges = np.linspace(1.0 / m, 1.0, BINS + 1)
        found["calibration"] = [
            {
                "from": float(edges[place]),
                "to": float(edges[place + 1]),
                "records": int(number),
                "confidence": float(calibration.confidence[place]),
                "accuracy": _told(share(round(calibration.accuracy[place] * number), int(number))),
            }
            for place, number in enumerate(calibration.numbers)
            if number
        ]
    return found


def headline(scores: Floats, truth: Integers, names: Sequence[str], classes: Sequence[str]) -> dict[str, float]:
    """What predictions of classes are told by first, on all records that have a class.

    ``auc``, of more classes than two the mean over classes of each against all others, of those that some records have and
    some have not; absent without any. ``mean_predicted`` and ``observed``: of two classes the mean probability and the
    share of the second one; of more the mean probability of the predicted class, and how often it is right. ``accuracy``, a
    record without a prediction being wrong, and that of the constant guess.

    Args:
        scores: (n, M); NaN of a record without a prediction.
        truth, names, classes: as of :func:`measure`.
    """
    own = np.array([classes.index(name) if name in classes else -1 for name in names], dtype=np.int64)[truth]
    known: NDArray[np.bool_] = np.asarray(np.isfinite(scores).all(axis=1))
    found: dict[str, float] = {}
    if known.any():
        shares, label = np.exp(log_softmax(scores[known], axis=1)), own[known]
        areas = [
            auc(shares[:, column], label == column)
            for column in ((1,) if len(classes) == 2 else range(len(classes)))
            if 0 < (label == column).sum() < len(label)
        ]
        if areas:
            found["auc"] = float(np.mean(areas))
        of_event = shares[:, 1] if len(classes) == 2 else shares.max(axis=1)
        hit = label == (1 if len(classes) == 2 else shares.argmax(axis=1))
        found |= {"mean_predicted": float(of_event.mean()), "observed": float(hit.mean())}
    predicted = np.where(known, np.argmax(np.where(known[:, None], scores, 0.0), axis=1), -2)
    guess = float(np.bincount(truth).max()) / len(truth)
    return found | {"accuracy": float(np.mean(predicted == own)), "accuracy_of_constant_guess": guess}


def outcome_headline(loss: str, predicted: Floats, truth: Floats, events: NDArray[np.bool_] | None = None) -> dict[str, float]:
    """What predictions of numbers, counts or times are told by first; a figure that is not defined is absent.

    Of a number R squared and the root mean squared error, of a count the share of the Poisson deviance that is explained, of a
    time Harrell's C; of numbers and counts also the mean prediction and the mean of what was observed.

    Args:
        predicted: (n,) numbers, mean counts, or risks.
        truth: (n,) what happened; of a time how long it was.
        events: (n,) whether a time ended in the event.
    """
    if loss == "hazard":
        found = None if events is None else _concordance(predicted, truth, events)
        return {} if found is None else {"concordance": found}
    means = {"mean_predicted": float(predicted.mean()), "observed": float(truth.mean())}
    if loss == "poisson":
        constant = _deviance(truth, np.full(len(truth), truth.mean())) if truth.any() else 0.0
        return ({"deviance_explained": 1.0 - _deviance(truth, predicted) / constant} if constant > 0.0 else {}) | means
    error, spread = float(np.mean((truth - predicted) ** 2)), float(truth.var())
    figures = {"r_squared": 1.0 - error / spread} if spread > 0.0 else {}
    return figures | {"root_mean_squared_error": error**0.5} | means


def _deviance(counts: Floats, means: Floats) -> float:
    """Sum of Poisson deviances."""
    logs = counts * np.log(np.where(counts > 0.0, counts, 1.0) / np.where(counts > 0.0, means, 1.0))
    return float(2.0 * (logs - counts + means).sum())


def _concordance(risks: Floats, times: Floats, events: NDArray[np.bool_]) -> float | None:
    """Harrell's C; who leaves at the time of an event outlived it. None without a pair to compare."""
    pairs = right = 0.0
    for place in np.flatnonzero(events):
        later = (times > times[place]) | ((times == times[place]) & ~events)
        pairs += float(later.sum())
        right += float((risks[later] < risks[place]).sum()) + 0.5 * float((risks[later] == risks[place]).sum())
    return right / pairs if pairs else None


def _area(logs: Floats, own: Integers) -> dict[str, float] | None:
    """Area under the ROC curve of the model's second class against its first."""
    used = own >= 0
    positive = own[used] == 1
    if not 0 < positive.sum() < len(positive):
        return None
    area = auc(logs[used, 1] - logs[used, 0], positive)
    return auc_figure(area, int(positive.sum()), int((~positive).sum())).to_json()


def _told(answer: Answer) -> dict[str, Any] | None:
    return answer.to_json() if isinstance(answer, Figure) else None
