"""How good a classifier is on records that no site holds, and what it would be without privacy.

The baseline is the method "fedcgs" on exact moments of records in one place, unclipped: what a site could do alone, or all
could do if they pooled their records. It exists for comparison in trials; nothing here is part of a study.
"""

import numpy as np

from veilsum_aggregation.heads import LinearHead
from veilsum_coordinator.methods.fedcgs import FedCGSParameters, discriminant
from veilsum_coordinator.parts.federation import Release
from veilsum_node.errors import DataError
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Records


def pool(parts: list[Records]) -> Records:
    """Records of several sites in one place; labels where all have them."""
    labels = [part.labels for part in parts if part.labels is not None]
    return Records(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.present for part in parts]),
        np.concatenate(labels) if len(labels) == len(parts) else None,
    )


def exact_head(records: Records, schema: DatasetSchema) -> LinearHead:
    """Linear discriminant analysis on records in the clear: complete, labelled records, classes that occur.

    Raises:
        DataError: no record is complete and labelled.
    """
    if records.labels is None:
        raise DataError("A classifier needs labelled records.", "Add a [label] table to the schema.")
    used = (records.labels >= 0) & records.present.all(axis=1)
    x, labels = records.features[used], records.labels[used]
    if not len(x):
        raise DataError("No record is complete and labelled.", "State an impute for columns with missing values.")
    member = (labels[:, None] == np.arange(len(schema.classes))).astype(np.float64)
    second = x.T @ x
    values = {
        "counts": member.sum(axis=0),
        "sums": member.T @ x,
        "squares": np.diag(second),
        "products": second[np.triu_indices(len(second), 1)],
    }
    release = Release("class-moments", 1, values, dict.fromkeys(values, 0.0), (), b"")
    known = [index for index, count in enumerate(values["counts"]) if count > 0]
    return discriminant(release, schema, known, FedCGSParameters())[0]


def result_head(result: Result) -> LinearHead | None:
    """The linear classifier of a result, or None where it holds none."""
    if not {"weights", "bias"} <= set(result.arrays):
        return None
    clip = result.application["head"].get("clip")
    classes = tuple(result.application["classes"])
    return LinearHead(result.arrays["weights"], result.arrays["bias"], classes, result.arrays.get("centre"), clip)


def accuracy(head: LinearHead | None, records: Records, schema: DatasetSchema) -> float:
    """Share of the labelled records that are classified rightly; without a classifier 0."""
    if head is None or records.labels is None:
        return 0.0
    labelled = records.labels >= 0
    if not labelled.any():
        raise DataError("No held-out record has a label.", "Hold out more records.")
    classes = np.array([schema.classes.index(name) for name in head.classes])
    return float(np.mean(classes[head.predict(records.features[labelled])] == records.labels[labelled]))
