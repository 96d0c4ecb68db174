"""From a record's scaled columns to the features that a task clips: a frozen encoder, then the site's alignment.

Both are affine or frozen maps that no clear record has touched: they come from a broadcast, that is from released sums, from a
file that every site has, or from the site's own noised statistic. So a record is mapped by what is, for its privacy, a
constant, and is clipped afterwards. A record's features depend on it alone, to the last bit: :func:`exact_affine`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.alignment import local_map
from veilsum_privacy.encoder import Projection, projection_digest
from veilsum_privacy.errors import HostileInput, Misuse
from veilsum_privacy.study import Study
from veilsum_privacy.tasks.base import FeatureParameters, Floats, Records

ENCODER_MATRIX, ENCODER_OFFSET = "encoder.matrix", "encoder.offset"
ALIGNMENT_MATRIX, ALIGNMENT_OFFSET = "alignment.matrix", "alignment.offset"
REFERENCE = "reference."
"""Names of broadcast arrays; those of a reference begin with the last."""

Encode = Callable[[Floats], Floats]
"""A frozen program: (n, inputs) float64 in [-1, 1] to (n, width) float64, each row by itself."""

_MANTISSA = 53
_LARGEST = 2.0**1000
"""Beyond it values do not fit the slices, so that products would no longer be exact."""


def exact_affine(x: Floats, matrix: Floats, offset: Floats) -> Floats:
    """``x @ matrix.T + offset`` where a row depends on its own row of ``x`` alone, whatever rows stand beside it.

    A matrix product may add up in another order when there are more rows. Here both factors are cut into two integers of b
    bits each, with 2 b + log2(p) <= 53, so that every product of slices is exact in any order; slices of slices are left out.
    Relative to the largest |x_i| and the largest entry of the matrix, a result is off by less than p 2^(2 - 2b).

    Args:
        x: (n, p), finite.
        matrix: (m, p).
        offset: (m,).

    Returns:
        (n, m); NaN in a row of ``x`` with values above 2^1000, which no power of two could bring below 1.

    Raises:
        HostileInput: the map has values that are not finite or above 2^1000.
    """
    p = matrix.shape[1]
    if not (np.abs(matrix).max(initial=0.0) <= _LARGEST and np.abs(offset).max(initial=0.0) <= _LARGEST):
        raise HostileInput("An affine map holds a value that is not finite, or too large.")
    x = np.where(np.abs(x).max(axis=1, initial=0.0)[:, None] <= _LARGEST, x, np.nan)
    bits = (_MANTISSA - math.ceil(math.log2(max(p, 2)))) // 2
    rows = _power(np.abs(x).max(axis=1, initial=0.0))[:, None]
    scale = float(_power(np.array([np.abs(matrix).max(initial=0.0)]))[0])
    x_high, x_low = _slices(x / rows, bits)
    m_high, m_low = _slices(matrix / scale, bits)
    step = 2.0**-bits
    product = (x_high @ m_high.T) + ((x_high @ m_low.T) + (x_low @ m_high.T)) * step
    result: Floats = product * (step * step * scale) * rows + offset
    return result


def _power(values: Floats) -> Floats:
    """The smallest power of two that is no smaller, within the range of normal numbers; 1 for 0."""
    exponent = np.clip(np.frexp(values)[1], -1000, 1000)
    return np.where(values > 0, np.ldexp(1.0, exponent), 1.0)


def _slices(values: Floats, bits: int) -> tuple[Floats, Floats]:
    """Integers (high, low) of at most ``bits`` bits with values = (high + low / 2^bits) / 2^bits, cut off below."""
    scaled = np.ldexp(values, bits)
    high = np.trunc(scaled)
    return high, np.trunc(np.ldexp(scaled - high, bits))


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
    """The records that a task computes on; as they are where it takes the schema's own features.

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
    if parameters.width is None:
        return records
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
        raise Misuse("The site kept no statistic to make its alignment from.")
    reference = {name: array for name, array in broadcast.items() if name.startswith(REFERENCE)}
    try:
        own = local_map(alignment.kind, kept, noise_std, reference, tau=alignment.tau)
    except (KeyError, ValueError, ArithmeticError) as error:  # sizes beyond all that a reference has overflow
        raise HostileInput(f"The broadcast holds no reference for the alignment {alignment.kind!r}.") from error
    return own.matrix, own.offset


def _array(broadcast: Mapping[str, Floats], name: str, shape: tuple[int, ...]) -> Floats:
    array = broadcast.get(name)
    if array is None or array.shape != shape:
        raise HostileInput(f"The broadcast must hold {name} of shape {shape}.")
    return array
