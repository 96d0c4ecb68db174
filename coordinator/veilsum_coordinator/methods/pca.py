"""The method "pca": principal components of all sites' records, from one secure sum, as an encoder for later studies.

Mean and covariance of the pooled records are released with noise, shrunk by what is known of it, and decomposed here. A later
study names this result in its ``[encoder]`` table; its features are then centred, and their root mean square norm is about 1.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from veilsum_aggregation import moments
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.tables import count
from veilsum_coordinator.parts.alignment import application
from veilsum_coordinator.parts.base import FeatureRules, Inputs, Method, TaskPlan, resolved_clip
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.parts.moment_plans import gaussian_moments
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.projections import projection_digest
from veilsum_privacy.tasks.feature_maps import ENCODER_MATRIX, ENCODER_OFFSET

MOMENTS = "gaussian-moments"
"""Label of the release."""

DEFAULT_WIDTH = 40
"""Components, where the schema has more features than that."""


class PCAParameters(FeatureRules):
    """Parameters, all public.

    Attributes:
        width: number of components; by default 40, or all features of the schema if they are fewer.
        scale: ``norm`` divides all components by one number, the root of the variance that they hold together, so that a
            typical record has norm 1 and directions keep their relative sizes. ``whiten`` gives every component the same
            variance, as if all told as much. ``none`` leaves them in scaled units.
        clip: L2 norm that a record's scaled columns are scaled down to; by default as in the method fedcgs.
    """

    width: int | None = Field(default=None, ge=1, le=4096)
    scale: Literal["norm", "whiten", "none"] = "norm"


class PCA(Method[PCAParameters]):
    """One round of "gaussian-moments", shrinkage, and the leading eigenvectors."""

    name = "pca"

    def resolve(self, parameters: PCAParameters, inputs: Inputs) -> PCAParameters:
        if inputs.encoder is not None:
            raise ConfigurationError("The method pca makes an encoder and takes none.", "Leave the [encoder] table out.")
        width = parameters.width or min(DEFAULT_WIDTH, inputs.width)
        if width > inputs.width:
            raise ConfigurationError(
                f"parameters.width: {width} components cannot be made of {inputs.width} features.", "Ask for fewer."
            )
        return parameters.model_copy(update={"width": width, "clip": resolved_clip(parameters.clip, inputs)})

    def declare(self, parameters: PCAParameters, inputs: Inputs) -> tuple[TaskPlan, ...]:
        if parameters.clip is None:
            raise ConfigurationError("The method pca needs the defaults of its parameters resolved.")
        return (TaskPlan(MOMENTS, "gaussian-moments", gaussian_moments(inputs, parameters.clip, parameters.missing)),)

    def compute(self, federation: Federation) -> Result:
        study = federation.study
        parameters = PCAParameters.model_validate(study.parameters)
        release = federation.sum(MOMENTS)
        number, std = float(release.values["count"][0]), release.noise_std
        summary: dict[str, Any] = {"cohort": len(release.cohort), "records": count(number, std["count"]).to_json()}
        if moments.within_noise(number, std["count"]):
            summary["not_estimable"] = "the released number of records is within its noise; ask for less noise or more records"
            return Result(self.name, summary)
        mean, values, vectors = components(release)
        width = parameters.width or len(values)
        kept, axes = values[:width], vectors[:, :width].T
        if not float(kept[0]) > 0.0:
            summary["not_estimable"] = "the records do not vary; there are no components"
            return Result(self.name, summary)
        edge = noise_edge(release)
        matrix = axes * _factors(kept, parameters.scale)[:, None]
        arrays = {ENCODER_MATRIX: np.ascontiguousarray(matrix), ENCODER_OFFSET: -matrix @ mean}
        total = float(values.sum())
        summary |= {
            "width": width,
            "scale": parameters.scale,
            "explained": float(kept.sum()) / total,
            "noise_variance": edge,
            "components_above_noise": int(np.sum(kept > edge)),
            "components": [
                {"component": index + 1, "variance": float(value), "share": float(value) / total}
                for index, value in enumerate(kept)
            ],
        }
        encoder = {
            "kind": "projection",
            "sha256": projection_digest(arrays[ENCODER_MATRIX], arrays[ENCODER_OFFSET]),
            "matrix": ENCODER_MATRIX,
            "offset": ENCODER_OFFSET,
        }
        applied = application(study.data, missing=parameters.missing, encoder=encoder)
        return Result(self.name, summary, {**arrays, "explained.variance": np.ascontiguousarray(kept)}, applied)


def components(release: Release) -> tuple[Floats, Floats, Floats]:
    """Mean (d,), eigenvalues (d,) descending and eigenvectors (d, d) in columns, of the records behind a release.

    The covariance is projected on the cone without noise, and shrunk by :func:`veilsum_aggregation.moments.shrink_noised` with
    it. Of each eigenvector the entry of largest absolute value is positive, so that equal releases give equal encoders.
    """
    values, std = release.values, release.noise_std
    number, total = float(values["count"][0]), values["sum"]
    second = moments.symmetric(values["squares"], values.get("products", np.zeros(0)))
    matrix = moments.covariance(number, total, second) + (std["sum"] / number) ** 2 * np.eye(len(total))
    if std["squares"] > 0.0:
        covariance = moments.shrink_noised(matrix, number, std["squares"], std.get("products", 0.0))
    else:
        covariance = moments.project_psd(matrix)
    found, vectors = np.linalg.eigh(covariance)
    found, vectors = np.maximum(found[::-1], 0.0), vectors[:, ::-1]
    leading = vectors[np.abs(vectors).argmax(axis=0), np.arange(len(found))]
    return total / number, found, vectors * np.where(leading < 0.0, -1.0, 1.0)


def noise_edge(release: Release) -> float:
    """The variance that noise alone shows along some direction, about 2 s sqrt(d) / n; components below it are the noise's."""
    std: Mapping[str, float] = release.noise_std
    d, number = len(release.values["sum"]), float(release.values["count"][0])
    return 2.0 * math.sqrt(d) * std.get("products", std["squares"]) / number


def _factors(kept: Floats, scale: str) -> Floats:
    """What each component is multiplied by: for ``whiten`` and ``norm`` the summed variance of all is 1 afterwards."""
    if scale == "none":
        return np.ones(len(kept))
    if scale == "norm":
        return np.full(len(kept), 1.0 / math.sqrt(float(kept.sum())))
    # A component without variance keeps none: what it would be divided by is only rounding.
    floor = 1e-9 * float(kept[0])
    roots: Floats = np.sqrt(np.maximum(kept, floor) * len(kept))
    return np.where(kept > floor, 1.0 / roots, 0.0)
