"""The net under formulas: what is released is paid for, so a formula that fails takes nothing along but its own figure.

Formulas say of a figure that it is not estimable, and why (:class:`~veilsum_aggregation.figures.NotEstimable`). What they did
not foresee ends here: the question, or at last the whole method, is then not estimable for that reason, and the rest stands.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.figures import NotEstimable, Row
from veilsum_coordinator.parts.federation import Federation, NoFurtherRoundError, Release
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.context import in_range

LOG = logging.getLogger("veilsum.coordinator")

FORMULA_ERRORS = (ArithmeticError, ValueError)
"""What formulas raise on numbers that they cannot take; those of linear algebra among them."""


def unforeseen(error: Exception, what: str) -> NotEstimable:
    """The reason for what a formula did not foresee; the log has where it happened."""
    LOG.error("%s: not estimable, for a formula failed", what, exc_info=error)
    return NotEstimable(f"it could not be computed from the released sums: {str(error) or type(error).__name__}", "report it")


def told_rows(what: str, rows: Callable[[], Iterator[Row]]) -> list[Row]:
    """The rows of a question; where a formula fails, those before it and one that says so."""
    found: list[Row] = []
    try:
        found.extend(row for row in rows() if row)
    except FORMULA_ERRORS as error:
        found.append({"value": unforeseen(error, what).to_json()})
    return found


def told_arrays(what: str, arrays: Callable[[], Mapping[str, NDArray[Any]]]) -> Mapping[str, NDArray[Any]]:
    """The arrays of a question; none where a formula fails."""
    try:
        return arrays()
    except FORMULA_ERRORS as error:
        unforeseen(error, what)
        return {}


def told_tables(what: str, tables: Mapping[str, Callable[[], Iterator[Row]]]) -> dict[str, list[Row]]:
    """The same of several tables by name."""
    return {name: told_rows(f"{what}, {name}", rows) for name, rows in tables.items()}


def finite(value: Any) -> Any:
    """A summary without numbers that are none: a figure that is none is not estimable, any other is left open."""
    if isinstance(value, Mapping):
        if isinstance(own := value.get("value"), float) and not math.isfinite(own):
            return NotEstimable("the released sums give no number").to_json()
        return {name: finite(own) for name, own in value.items()}
    if isinstance(value, list | tuple):
        return [finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Kept(Federation):
    """A federation that remembers the last release of each task, and asks for nothing that sites would refuse."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation.study, federation.encoder)
        self._federation = federation
        self.releases: dict[str, Release] = {}
        self.asking = False

    def sum(
        self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Collection[str] | None = None
    ) -> Release:
        """See the protocol.

        Raises:
            ArithmeticError: the broadcast has a value that no task takes; nobody was asked for anything.
        """
        if not all(map(_taken, (broadcast or {}).values())):
            raise ArithmeticError(f"what the next round, {label}, would begin with is not finite")
        self.asking = True  # what fails from here on is not a formula of the method's
        release = self._federation.sum(label, broadcast, members=members)
        self.asking = False
        self.releases[label] = release
        return release

    def checkpoint(self, arrays: Mapping[str, Floats], summary: Mapping[str, Any]) -> None:
        self._federation.checkpoint(arrays, finite(summary))


def _taken(array: NDArray[Any]) -> bool:
    """Whether sites take an array as a part of a broadcast; of a model in single precision every finite number is in range."""
    return in_range(array) if array.dtype == np.float64 else bool(np.isfinite(array).all())


def is_of_formulas(federation: Federation, error: Exception) -> bool:
    """Whether one of :data:`FORMULA_ERRORS` came from a formula, and not from asking the sites."""
    return not (isinstance(federation, Kept) and federation.asking) or isinstance(error, NoFurtherRoundError)


def told_result(name: str, federation: Federation, compute: Callable[[Federation], Result]) -> Result:
    """A method's result; where its formulas fail, the reason and the last sum of each task that was released."""
    kept = Kept(federation)
    try:
        result = compute(kept)
    except FORMULA_ERRORS as error:
        if not is_of_formulas(kept, error) or not kept.releases:
            raise
        reason = unforeseen(error, f"study {federation.study.name}").reason
        cohort = len(next(reversed(kept.releases.values())).cohort)
        hidden = int(federation.study.parameters.get("smallest_cell", 0)) > 0
        arrays = {
            f"{label} {block}".replace("/", "."): values
            for label, release in ({} if hidden else kept.releases).items()
            for block, values in release.values.items()
        }
        return Result(name, {"cohort": cohort, "not_estimable": reason}, arrays)
    return Result(result.method, finite(result.summary), result.arrays, result.application)
