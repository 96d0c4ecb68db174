"""What the rows of tasks on features share, said of one record: whether it counts, and its features, clipped to the ball."""

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, clip, every, length, maximum, symbol, where
from veilsum_privacy.tasks.parameters import FeatureParameters


def usable(parameters: FeatureParameters, record: Record, classes: int | None = None) -> Symbol:
    """Whether a record counts: ``missing`` keeps it, and it has a valid label where ``classes`` are told.

    Features that an encoder or an alignment made are there as a whole or not at all; a record without them never counts.
    """
    used = symbol(np.True_)
    if classes is not None and record.label is not None:
        used = (record.label >= 0) & (record.label < classes)
    if parameters.missing == "skip" or parameters.width is not None:
        used = used & every(record.present)
    return used


def clipped(parameters: FeatureParameters, record: Record, used: Symbol, centre: Floats | None = None) -> Symbol:
    """Features (d,) of a record, scaled down to an L2 norm of C; zeros of one that does not count.

    The schema's own features are cut to [-1, 1] before that, then ``centre`` (d,) is taken off; a missing one is at it. A
    value that is not a number stays one, for the sum to count; features so long that their squares overflow become zeros.
    """
    features = record.features
    if parameters.width is None:
        features = clip(features, -1.0, 1.0)
    if centre is not None:
        features = features - centre
    x = where(record.present & used, features, 0.0)
    return x * (parameters.clip / maximum(length(x), parameters.clip))
