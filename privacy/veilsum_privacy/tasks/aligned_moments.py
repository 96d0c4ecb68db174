"""The task "aligned-moments": class moments of a site's records after its alignment, computed from its noised class moments.

An affine map turns moments into moments, so what is learnt from class moments after an alignment costs nothing more than the
alignment's own release. It reads no record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from pydantic import Field

from veilsum_aggregation.alignment import example_reference, local_map
from veilsum_aggregation.moments import symmetric
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import DerivedTask, Floats
from veilsum_privacy.tasks.layout import Block, Layout
from veilsum_privacy.tasks.parameters import Alignment, WidthParameters

ROOM = 4.0
"""How far above the largest sums of records values may lie before they are clamped."""

REFERENCE = "reference."
"""Names of a reference's broadcast arrays begin with it."""


class AlignedMomentsParameters(WidthParameters):
    """Parameters of :class:`AlignedMoments`.

    Attributes:
        width: m, features of the source; None for as many as the schema has.
        alignment: ``barycenter``, ``two-way`` or ``slopes``, and its strength.
        reach: R, largest norm of a record after the map; twice the source's clip norm leaves room.
    """

    alignment: Alignment
    reach: Real = Field(gt=0, le=1e6)


class AlignedMoments(DerivedTask[AlignedMomentsParameters]):
    """The class moments of a site after its own map x -> A x + b.

    From n_c, s_c, n, s and S they are n_c, A s_c + n_c b and A S A^T + A s b^T + b s^T A^T + n b b^T.

    Blocks: ``counts`` (K,), ``sums`` (K, m), ``squares`` (m,) and ``products`` (m (m - 1) / 2,), as class-moments pools them;
    and ``gain`` (1,), tr(A A^T) / m, by which the map multiplies the noise's variance on an average coordinate of a sum.

    The map is :func:`veilsum_aggregation.alignment.local_map` of the kept moments and the broadcast reference; a site whose
    count is within its noise maps nothing. Where the source has second moments of each class they are pooled.

    Sensitivity. None: it computes from what the site has released already. With M the schema's ``max_records``, values are
    clamped far beyond what records of norm R reach, for there is noise in them: counts at 4 M, sums at 4 M R, second moments
    at 4 M R^2.
    """

    name = "aligned-moments"
    sources = ("class-moments",)
    Parameters: ClassVar[type[Frozen]] = AlignedMomentsParameters

    def __init__(self, parameters: AlignedMomentsParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if parameters.alignment.kind in ("broadcast", "moments"):
            raise Misuse("The task aligned-moments makes its own map.", "Use the alignment slopes, two-way or barycenter.")
        if schema.label is None:
            raise Misuse("The task aligned-moments needs a label in the schema.", "Add a [label] table with classes.")
        self._classes, self._records = len(schema.classes), schema.max_records

    def layout(self) -> Layout:
        m, k, r = self.dimension, self._classes, self.parameters.reach
        blocks = [Block("counts", (k,), r * r), Block("sums", (k, m), r), Block("squares", (m,))]
        if m > 1:
            blocks.append(Block("products", (m * (m - 1) // 2,)))
        return Layout((*blocks, Block("gain", (1,), r * r)))

    def clip(self) -> float:
        return ROOM * self._records * self.parameters.reach**2

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return example_reference(self.parameters.alignment.kind, self.dimension, self._classes)

    def vector(self, kept: Mapping[str, Floats], noise_std: Mapping[str, float], broadcast: Mapping[str, Floats]) -> Floats:
        alignment, m = self.parameters.alignment, self.dimension
        if alignment.kind == "broadcast" or alignment.kind == "moments":
            raise Misuse("The task aligned-moments makes its own map.")
        reference = {name: array for name, array in broadcast.items() if name.startswith(REFERENCE)}
        try:
            own = local_map(alignment.kind, kept, noise_std, reference, tau=alignment.tau)
            if own.matrix.shape != (m, m):
                raise ValueError("another dimension")
        except (KeyError, ValueError, ArithmeticError) as error:
            raise HostileInput(f"The broadcast holds no reference for the alignment {alignment.kind!r}.") from error
        a, b = own.matrix, own.offset
        counts, sums = kept["counts"], kept["sums"]
        number, total = float(counts.sum()), a @ sums.sum(axis=0)
        second = a @ _pooled(kept) @ a.T + np.outer(total, b) + np.outer(b, total) + number * np.outer(b, b)
        blocks = {
            "counts": counts,
            "sums": sums @ a.T + counts[:, None] * b,
            "squares": np.diag(second),
            "products": second[np.triu_indices(m, 1)],
            "gain": np.array([float(np.sum(a * a)) / m]),
        }
        return np.concatenate([blocks[block.name].ravel() * block.weight for block in self.layout().blocks])


def _pooled(kept: Mapping[str, Floats]) -> Floats:
    """Second moments (m, m) of all classes together."""
    squares, products = kept["squares"], kept.get("products", np.zeros(0))
    if squares.ndim == 2:
        squares, products = squares.sum(axis=0), products.sum(axis=0)
    return symmetric(squares, products)
