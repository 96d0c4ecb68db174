"""Types of arrays, and what numpy does not do at its best."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]
Words = NDArray[np.uint64]

Whole = TypeVar("Whole", Integers, Words)


def residues(numbers: Whole, modulus: int) -> Whole:
    """These numbers mod a modulus in their own place: numpy takes less than a third of the time of its remainder to divide."""
    quotients = numbers // numbers.dtype.type(modulus)
    quotients *= quotients.dtype.type(modulus)
    numbers -= quotients
    return numbers
