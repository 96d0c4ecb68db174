"""The task "prototypes": class counts and class sums, from which class means are computed; no second moments."""

from typing import ClassVar

from pydantic import Field

from veilsum_node.fields import Frozen, Real
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.class_moments import ClassMoments, ClassMomentsParameters
from veilsum_privacy.tasks.parameters import FeatureParameters


class PrototypesParameters(FeatureParameters):
    """Parameters of :class:`Prototypes`; all public and independent of the data.

    Attributes:
        count_weight: weight a of the class counts.
        sum_weight: weight b of the class sums.
    """

    count_weight: Real = Field(gt=0, le=1e6)
    sum_weight: Real = Field(gt=0, le=1e6)


class Prototypes(ClassMoments):
    """Per class the count and the sum of x, with |x|_2 <= C.

    Blocks: ``counts`` (K,); ``sums`` (K, d).

    Sensitivity. A record touches the count and the sum of one class, so its squared norm is at most a^2 + b^2 R^2 with
    R^2 = min(C^2, d) for the schema's own features and C^2 otherwise; the longest record reaches it.
    """

    name = "prototypes"
    Parameters: ClassVar[type[Frozen]] = PrototypesParameters

    def __init__(self, parameters: PrototypesParameters, schema: DatasetSchema) -> None:
        same = parameters.model_dump()
        super().__init__(ClassMomentsParameters(**same, second="none", square_weight=1.0, product_weight=1.0), schema)
