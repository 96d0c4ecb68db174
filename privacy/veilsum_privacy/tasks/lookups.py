"""Lookups by what a record holds: total, so that no record can make one fail."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

S = TypeVar("S", bound=np.generic)


def looked_up(table: NDArray[S], places: NDArray[Any]) -> NDArray[S]:
    """Rows of a public table (k, ...) at places (n,): (n, ...), zeros where there is no such place."""
    known = (places >= 0) & (places < len(table))
    if known.all():
        return np.asarray(table[places])
    found = np.zeros((len(places), *table.shape[1:]), dtype=table.dtype)
    found[known] = table[places[known]]
    return found
