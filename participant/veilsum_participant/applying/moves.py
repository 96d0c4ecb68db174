"""Alignments of a result as they are applied: maps of a site's features, made as at the site during the study."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from veilsum_aggregation import moment_alignment
from veilsum_aggregation.alignment import local_map
from veilsum_aggregation.arrays import Bools, Floats
from veilsum_node.errors import HostileInput, Misuse
from veilsum_participant.applying.recipe import OwnAlignment, aligned_columns
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.feature_maps import exact_affine

Move = Callable[[Floats, Bools], Floats]
"""An alignment: of finite features (n, m), and of which columns of the records are present (n, d)."""


def affine_move(matrix: Floats, offset: Floats) -> Move:
    """x -> matrix x + offset, each row by itself."""
    return lambda x, present: exact_affine(x, matrix, offset)


def own_move(
    alignment: OwnAlignment,
    arrays: Mapping[str, Floats],
    schema: DatasetSchema,
    encoded: int | None,
    kept: Mapping[str, Floats] | None,
    noise_std: Mapping[str, float] | None,
) -> Move:
    """The map that a site makes of what it kept.

    Args:
        alignment: of the result.
        arrays: of the result.
        schema: of the columns.
        encoded: width of the features that an encoder makes; None for the schema's own.
        kept: blocks of the site's kept statistic, in their own units.
        noise_std: standard deviation of the noise of each block; None for what the result says.

    Raises:
        Misuse: what the alignment needs was not given.
        HostileInput: the kept statistic does not fit the result.
    """
    if kept is None:
        raise Misuse(
            f"This result is aligned by what a site kept of the task {alignment.source!r}.",
            "Apply it at a site that took part, which has it in its state file.",
        )
    noise = alignment.noise_std if noise_std is None else noise_std
    if noise is None:
        raise Misuse("The noise of the kept statistic is unknown.", "Give noise_std; without noise, zeros.")
    reference = {name: arrays[array] for name, array in alignment.reference.items()}
    try:
        if alignment.kind == "moments":
            return _by_moments(alignment, reference, schema, encoded, kept, noise)
        own = local_map(alignment.kind, kept, noise, reference, tau=alignment.tau)
    except (KeyError, ValueError, ArithmeticError) as error:
        raise HostileInput(
            "The result's reference does not fit the kept statistic.", "Use the result of the study it was kept for."
        ) from error
    width = schema.width if encoded is None else encoded
    if own.matrix.shape != (width, width):
        raise HostileInput("The kept statistic is of other features than the result's.", "Use the one of the same study.")
    return affine_move(own.matrix, own.offset)


def _by_moments(
    alignment: OwnAlignment,
    reference: Mapping[str, Floats],
    schema: DatasetSchema,
    encoded: int | None,
    kept: Mapping[str, Floats],
    noise: Mapping[str, float],
) -> Move:
    """As :func:`veilsum_privacy.tasks.feature_maps.map_records` does it: the schema's own features stay in their box.

    Raises:
        ValueError, KeyError: kept statistic and reference do not fit together.
    """
    use = alignment.moments
    if use is None:
        raise ValueError("the result does not state its moments")
    own = moment_alignment.local_map(kept, noise, reference, order=use.order, adjust=use.adjust, tau=alignment.tau)
    columns, bound = aligned_columns(schema, encoded, use), use.bound

    def scaled(x: Floats, present: Bools) -> Floats:
        moved: Floats = own(x / bound) * bound
        return moved

    def boxed(x: Floats, present: Bools) -> Floats:
        moved = np.clip(x, -1.0, 1.0)
        moved[:, columns] = np.clip(own(moved[:, columns]), -1.0, 1.0)
        result: Floats = np.where(present, moved, 0.0)
        return result

    return boxed if encoded is None else scaled
