"""From a record's scaled columns to the features that a task clips: a frozen encoder, then the site's alignment.

Both are maps that no clear record has touched: they come from a broadcast, that is from released sums, from a
file that every site has, or from the site's own noised statistic. So a record is mapped by what is, for its privacy, a
constant, and is clipped afterwards. A record's features depend on it alone, to the last bit: affine maps by
:func:`exact_affine`, maps by moments elementwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation import moment_alignment
from veilsum_aggregation.alignment import local_map
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.gaussian import AffineMap
from veilsum_node.errors import HostileInput, Misuse
from veilsum_privacy.mechanism.exact import exact_affine as exact_affine
from veilsum_privacy.study.encoder import Projection, projection_digest
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.parameters import Alignment, FeatureParameters, PartParameters
from veilsum_privacy.tasks.parts import part_of
from veilsum_privacy.tasks.power_moments import columns_of_moments

ENCODER_MATRIX, ENCODER_OFFSET = "encoder.matrix", "encoder.offset"
ALIGNMENT_MATRIX, ALIGNMENT_OFFSET = "alignment.matrix", "alignment.offset"
REFERENCE = "reference."
"""Names of broadcast arrays; those of a reference begin with the last."""

Encode = Callable[[Floats], Floats]
"""A frozen program: (n, inputs) float64 in [-1, 1] to (n, width) float64, each row by itself."""

NOTHING_KEPT = "The site kept no statistic to make its alignment from."


def map_records(
    study: Study,
    parameters: FeatureParameters,
    records: Records,
    broadcast: Mapping[str, Floats],
    *,
    index: int,
    kept: Mapping[str, Floats] | None = None,
    noise_std: Mapping[str, float] | None = None,
    encode: Encode | None = None,
) -> Records:
    """The records that a task computes on, of the part that it takes; as they are where it takes the schema's own features.

    Alignment by moments maps each feature by itself and leaves the schema's own in their box: values present are cut to
    [-1, 1] before and after it, absent ones stay absent.

    Args:
        study: whose encoder is applied.
        parameters: of the task.
        records: as the schema gives them; already encoded if the study's encoder is a program and ``encode`` is None.
        broadcast: arrays that everyone received.
        index: the site's place among the study's participants.
        kept, noise_std: blocks of the site's kept statistic and their noise, for an alignment that the site makes.
        encode: the study's program.

    Raises:
        HostileInput: an array is missing, has the wrong shape, or is not the one that the study names.
        Misuse: the site makes its own alignment and has kept no statistic.
    """
    if isinstance(parameters, PartParameters):
        records = part_of(records, parameters.part, parameters.part_share)
    if parameters.width is None:
        return _in_box(study, parameters, records, broadcast, kept, noise_std)
    whole: NDArray[np.bool_] = np.ones(len(records), dtype=np.bool_)
    if parameters.missing == "skip":
        whole &= records.present.all(axis=1)
    x = np.where(records.present, records.features, 0.0)
    whole &= np.isfinite(x).all(axis=1)
    x = np.where(whole[:, None], x, 0.0)
    encoder = study.encoder
    if isinstance(encoder, Projection):
        matrix = _array(broadcast, ENCODER_MATRIX, (encoder.width, encoder.inputs))
        offset = _array(broadcast, ENCODER_OFFSET, (encoder.width,))
        if projection_digest(matrix, offset) != encoder.sha256:
            raise HostileInput("The projection in the broadcast is not the one that the study names.")
        x = exact_affine(np.clip(x, -1.0, 1.0), matrix, offset)
    elif encode is not None:
        x = encode(np.clip(x, -1.0, 1.0))
    if x.shape[1] != parameters.width:
        raise HostileInput(f"The features have {x.shape[1]} dimensions; the task takes {parameters.width}.")
    if parameters.alignment is not None and parameters.alignment.moments is not None:
        bound = parameters.alignment.moments.bound
        x = _moment_map(parameters.alignment, broadcast, kept, noise_std, parameters.width)(x / bound) * bound
    else:
        own = _alignment(parameters, broadcast, study.sites, index, kept, noise_std)
        if own is not None:
            x = exact_affine(x, *own)
    whole &= np.isfinite(x).all(axis=1)
    features = np.where(whole[:, None], x, 0.0)
    return replace(records, features=features, present=np.repeat(whole[:, None], features.shape[1], axis=1))


def _alignment(
    parameters: FeatureParameters,
    broadcast: Mapping[str, Floats],
    sites: int,
    index: int,
    kept: Mapping[str, Floats] | None,
    noise_std: Mapping[str, float] | None,
) -> tuple[Floats, Floats] | None:
    """Matrix and offset of the site's alignment; None for none."""
    alignment, width = parameters.alignment, parameters.width or 0
    if alignment is None:
        return None
    if alignment.kind == "broadcast":
        matrices = _array(broadcast, ALIGNMENT_MATRIX, (sites, width, width))
        return matrices[index], _array(broadcast, ALIGNMENT_OFFSET, (sites, width))[index]
    if kept is None or noise_std is None:
        raise Misuse(NOTHING_KEPT)
    own = own_map(alignment, kept, noise_std, broadcast, width)
    return own.matrix, own.offset


def own_map(
    alignment: Alignment,
    kept: Mapping[str, Floats],
    noise_std: Mapping[str, float],
    broadcast: Mapping[str, Floats],
    width: int,
) -> AffineMap:
    """The affine map of so many features that a site makes of what it kept.

    Raises:
        HostileInput: the broadcast holds no reference that fits.
        Misuse: the alignment is of another kind.
    """
    if alignment.kind == "broadcast" or alignment.kind == "moments":
        raise Misuse(f"The alignment {alignment.kind!r} is no affine map that a site makes of all features together.")
    reference = {name: array for name, array in broadcast.items() if name.startswith(REFERENCE)}
    try:
        own = local_map(alignment.kind, kept, noise_std, reference, tau=alignment.tau)
        if own.matrix.shape != (width, width):
            raise ValueError("another dimension")
    except (KeyError, ValueError, ArithmeticError) as error:  # sizes beyond all that a reference has overflow
        raise HostileInput(f"The broadcast holds no reference for the alignment {alignment.kind!r}.") from error
    return own


def _in_box(
    study: Study,
    parameters: FeatureParameters,
    records: Records,
    broadcast: Mapping[str, Floats],
    kept: Mapping[str, Floats] | None,
    noise_std: Mapping[str, float] | None,
) -> Records:
    """The schema's own features, aligned by moments if at all."""
    alignment = parameters.alignment
    if alignment is None:
        return records
    columns = columns_of_moments(study.data, None, None if alignment.moments is None else alignment.moments.channels)
    own = _moment_map(alignment, broadcast, kept, noise_std, len(columns))
    features = np.clip(records.features, -1.0, 1.0)
    features[:, columns] = np.clip(own(features[:, columns]), -1.0, 1.0)
    return replace(records, features=np.where(records.present, features, 0.0))


def _moment_map(
    alignment: Alignment,
    broadcast: Mapping[str, Floats],
    kept: Mapping[str, Floats] | None,
    noise_std: Mapping[str, float] | None,
    features: int,
) -> moment_alignment.MomentMap:
    """The site's map of so many features by their moments."""
    use = alignment.moments
    if use is None:
        raise HostileInput("The schema's own features are aligned by moments only.")
    if kept is None or noise_std is None:
        raise Misuse(NOTHING_KEPT)
    try:
        own = moment_alignment.local_map(kept, noise_std, broadcast, order=use.order, adjust=use.adjust, tau=alignment.tau)
    except (KeyError, ValueError, ArithmeticError) as error:
        raise HostileInput("The broadcast holds no reference for the alignment by moments.") from error
    if len(own.centre) != (use.channels or features):
        raise HostileInput("The reference of the alignment by moments is of other features.")
    return own


def _array(broadcast: Mapping[str, Floats], name: str, shape: tuple[int, ...]) -> Floats:
    array = broadcast.get(name)
    if array is None or array.shape != shape:
        raise HostileInput(f"The broadcast must hold {name} of shape {shape}.")
    return array
