"""Released projections by their digest: a result whose arrays encode the records of later studies (the method "pca")."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import HostileInput, StateError
from veilsum_privacy.results.result import MANIFEST, Result, load_result
from veilsum_privacy.study.encoder import Encoder, Projection, projection_digest
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET


def result_projection(result: Result) -> tuple[Projection, dict[str, Floats]]:
    """The projection that a result released, and its arrays by the names under which they are broadcast.

    Raises:
        HostileInput: the result holds none.
    """
    matrix, offset = result.arrays.get(ENCODER_MATRIX), result.arrays.get(ENCODER_OFFSET)
    if matrix is None or offset is None or matrix.ndim != 2 or offset.shape != (len(matrix),):
        raise HostileInput("The result holds no projection.", "Name a result of the method pca.")
    arrays = {ENCODER_MATRIX: matrix.astype(np.float64), ENCODER_OFFSET: offset.astype(np.float64)}
    sha256 = projection_digest(arrays[ENCODER_MATRIX], arrays[ENCODER_OFFSET])
    return Projection(sha256=sha256, inputs=matrix.shape[1], width=len(matrix)), arrays


def find_projection(results: Path, encoder: Encoder | None) -> Mapping[str, Floats]:
    """The arrays that every round of a study with this encoder broadcasts; empty unless it is a projection.

    Args:
        results: the folder of all results.

    Raises:
        StateError: no result in the folder released this projection.
    """
    if not isinstance(encoder, Projection):
        return {}
    for manifest in sorted(results.glob(f"*/{MANIFEST}")):
        try:
            known = json.loads(manifest.read_bytes())["application"].get("encoder") or {}
            if known.get("sha256") != encoder.sha256:
                continue
            projection, arrays = result_projection(load_result(manifest.parent))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, HostileInput):
            continue
        if projection == encoder:
            return arrays
    raise StateError(
        "No result at this coordinator released the projection that the study names.",
        "Run the study that releases it at this coordinator first, and keep its result.",
    )
