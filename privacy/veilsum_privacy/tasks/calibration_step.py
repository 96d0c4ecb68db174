"""The task "calibration-step": one Newton step of the logistic regression of a class on what a trained model says of it."""

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.families import variance_bound
from veilsum_node.errors import HostileInput, Misuse, told_as
from veilsum_node.fields import Real
from veilsum_privacy.mechanism.rows.evaluation import OpaqueMap
from veilsum_privacy.mechanism.rows.symbols import Record, Symbol, clip, finite, joined, only, real, symbol, where
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import RowTask
from veilsum_privacy.tasks.designs import LARGEST_ENTRY, broadcast_arrays
from veilsum_privacy.tasks.feature_rows import clipped, usable
from veilsum_privacy.tasks.layout import Layout
from veilsum_privacy.tasks.newton_step import POINT, WHITEN, event_norm, step_layout, step_row
from veilsum_privacy.tasks.parameters import FeatureParameters
from veilsum_privacy.training.arrays import from_broadcast, to_broadcast
from veilsum_privacy.training.models import Architecture, ModelSpec, build_architecture, check_resolved
from veilsum_privacy.training.traced import opaque_scores, traced_scores


class CalibrationStepParameters(FeatureParameters):
    """Parameters of :class:`CalibrationStep`; all public and independent of the data.

    Attributes:
        model: what was trained; every option stated.
        length, information_share: as of :class:`~veilsum_privacy.tasks.newton_step.NewtonStepParameters`.
    """

    model: ModelSpec
    length: Real = Field(ge=1e-3, le=1e6)
    information_share: Real = Field(ge=1e-3, le=1e3)


class CalibrationStep(RowTask[CalibrationStepParameters]):
    """Sums over records of c^2 z_w (y - mu) and c^2 v z_w z_w', of z = (1, s): :class:`~.newton_step.NewtonStep` of one.

    The term s is the log odds of the second of two classes under the broadcast model, the difference of its scores, cut to
    1e6 in size; y is 1 in that class and 0 in the other. Blocks are those of :class:`~.newton_step.NewtonStep`, and so are the
    broadcast arrays beside the model's, ``model.<name>``.

    Sensitivity. That of an event there, for any broadcast: it rests on the shortening of z_w and on |y - mu| alone, whatever
    the model makes of a record. The row depends on the record and the broadcast alone: perceptrons score rows exactly, other
    networks in batches of one padded size.

    A record without its class, or that ``missing`` leaves out, adds zero; one that the model gives no finite score as well.
    """

    name = "calibration-step"
    disclosures = ("joint",)
    architecture: Architecture

    def __init__(self, parameters: CalibrationStepParameters, schema: DatasetSchema) -> None:
        super().__init__(parameters, schema)
        if len(schema.classes) != 2:
            raise Misuse("The task calibration-step needs a label with two classes.", "Name two classes in [label].")
        with told_as(Misuse, HostileInput):
            check_resolved(parameters.model)
            self.architecture = build_architecture(parameters.model, self.dimension, 2)

    def layout(self) -> Layout:
        return step_layout(2, self.parameters.length, 1.0, self.parameters.information_share, variance_bound("logistic", 1.0))

    def clip(self) -> float:
        return event_norm(float(self.parameters.information_share))

    def example_broadcast(self, sites: int) -> dict[str, Floats]:
        return {**to_broadcast(self.architecture.initial(0)), WHITEN: np.eye(2), POINT: np.zeros(2)}

    def row(self, record: Record, broadcast: Mapping[str, Floats]) -> Symbol:
        p, label = self.parameters, symbol(-1) if record.label is None else record.label
        given = broadcast_arrays(broadcast, {WHITEN: (2, 2), POINT: (2,)})
        arrays = from_broadcast(broadcast, self.architecture.shapes())
        used = usable(p, record, 2)
        found = traced_scores(self.architecture, arrays, clipped(p, record, used))
        odds = found[1] - found[0]
        used = used & finite(odds)
        z = joined(1.0, clip(where(used, odds, 0.0), -LARGEST_ENTRY, LARGEST_ENTRY))
        y = real(where(used, label, 0))
        return only(step_row(self.layout(), "logistic", 1.0, p.length, z, y, given[WHITEN], given[POINT]), used)

    def maps(self, broadcast: Mapping[str, Floats]) -> Mapping[str, OpaqueMap]:
        return opaque_scores(self.architecture, from_broadcast(broadcast, self.architecture.shapes()))
