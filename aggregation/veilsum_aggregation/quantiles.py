"""stub"""

from __future__ import annotations
import numpy as np
from numpy.typing import NDArray


def toeplitz_column(bins: int, scale: int = 64) -> NDArray[np.int64]:
    k = np.arange(1, bins)
    f = np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])
    return np.asarray(np.rint(scale * f), dtype=np.int64)
