"""How well a score ranks what happens, from noised counts by level of the score: area under the ROC curve, Harrell's C.

A pair is one record with an event and one that is known to have had none by then; it is concordant if the first has the
higher score, and half so at equal levels (Harrell and others 1982; with one time this is the area under the ROC curve).
Both numbers of pairs are bilinear in counts of different cells, so that noise does not bias them.
"""

import math

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.classification import auc_figure
from veilsum_aggregation.figures import Answer, NotEstimable
from veilsum_aggregation.moments import NOISE_FLOOR


def area(without: Floats, events: Floats, std: float) -> Answer:
    """The area under the ROC curve from records without and with the event by level, (g,) each, with noise of ``std``."""
    none = np.zeros((len(events), 1))
    return _concordance(events[:, None], none, without, np.array([std, 0.0, std]) ** 2)


def concordance(ends: Floats, beyond: Floats, std: float) -> Answer:
    """Harrell's C of times to an event.

    Args:
        ends: by level of the score, ascending, interval of time, and ending: censored, or a cause of the event, (g, b, k).
        beyond: those whose time did not end in any interval, (g,).
        std: of the noise in each count.
    """
    variances = std**2 * np.repeat([ends.shape[2] - 1.0, 1.0, 1.0], [ends.shape[1], ends.shape[1], 1])
    return _concordance(ends[:, :, 1:].sum(axis=2), ends[:, :, 0], beyond, variances)


def _concordance(events: Floats, censored: Floats, beyond: Floats, variances: Floats) -> Answer:
    """The share of concordant pairs, with its interval.

    The errors are those of the ratio to first order: its gradient times the noise, and times the sampling of the cells. The
    interval is Newcombe's of both.

    Args:
        events: by level of the score, ascending, and interval of time, (g, b).
        censored: those whose time ended in it without one, (g, b); pairs within an interval are not compared.
        beyond: those without an event in any interval, (g,).
        variances: of the noise in events, censored and beyond, (2 b + 1,).
    """
    ends = events + censored
    later = beyond[:, None] + np.cumsum(ends[:, ::-1], axis=1)[:, ::-1] - ends
    below = np.cumsum(later, axis=0) - 0.5 * later  # at lower levels, and half of those at the same one
    concordant, pairs = float((events * below).sum()), float(events.sum(axis=0) @ later.sum(axis=0))
    above = np.cumsum(events[::-1], axis=0)[::-1] - 0.5 * events
    of_pairs = _gradient(np.broadcast_to(later.sum(axis=0), events.shape), np.broadcast_to(events.sum(axis=0), events.shape))
    pairs_std = math.sqrt(float((of_pairs**2 * variances).sum()))
    if not pairs > max(NOISE_FLOOR * pairs_std, 0.5):
        return NotEstimable("the number of pairs to compare is within its noise", "more records, more events, or more epsilon")
    value = concordant / pairs
    gradient = (_gradient(below, above) - value * of_pairs) / pairs
    cells = np.concatenate([events, censored, beyond[:, None]], axis=1)
    sampling = max(float((gradient**2 * cells).sum()), 0.0)
    first = max(float(events.sum()), 1.0)
    noise = float((gradient**2 * variances).sum())
    return auc_figure(min(max(value, 0.0), 1.0), first, max(pairs / first, 1.0), sampling, noise)


def _gradient(of_event: Floats, of_later: Floats) -> Floats:
    """Derivatives by events, censored and beyond, (g, 2 b + 1).

    Args:
        of_event: by an event of each interval as the first of a pair, (g, b).
        of_later: by a record that outlives each interval, (g, b).
    """
    outlived = np.cumsum(of_later, axis=1)
    before = outlived - of_later
    return np.concatenate([of_event + before, before, outlived[:, -1:]], axis=1)
