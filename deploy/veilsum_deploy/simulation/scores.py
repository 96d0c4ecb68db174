"""How good a result's classifier is on each domain's test records.

Test records of a domain go through the alignment of the domain's own site; where it has several, or none, through that of each
of these, or of all, in turn, and the accuracies are averaged. Nothing here is part of a study.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from veilsum_deploy.datasets import TableWithSchema
from veilsum_deploy.simulation.deal import Deal
from veilsum_node.errors import DataError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.tasks.base import Floats, Records

Kept = Callable[[str, str], Mapping[str, Floats]]
"""The noised statistic that a site keeps: of (site, label of the task)."""

Encode = Callable[[Records], Records]
"""What makes features of records; the identity where a study has no encoder."""


def domain_accuracies(
    result: Result, deal: Deal, schema: DatasetSchema, kept: Kept | None, program: Callable[[Floats], Floats] | None = None
) -> dict[str, float] | None:
    """Share of each domain's labelled test records that the result classifies rightly.

    Args:
        result: of a study.
        deal: whose test records are used.
        schema: of the data.
        kept: None where sites' kept statistics are out of reach.
        program: the study's frozen program, where it has one.

    Returns:
        By domain; None where the result holds no classifier, or one that needs kept statistics which are out of reach.
    """
    if not result.application:
        return None
    alignment, source = result.application.get("alignment"), source_of(result)
    if source is not None and kept is None:
        return None
    model = Model.from_result(result, program)
    if model.recipe.head is None or model.recipe.outcome is not None:
        return None
    # The last entry is what -1, no class, becomes.
    indices = np.array([*(schema.classes.index(name) for name in model.classes), -1])
    found = {}
    for domain, dataset in deal.tests.items():
        records = labelled(dataset.records)
        sites: Sequence[str | None] = [None]
        if alignment is not None:
            sites = deal.sites_of(domain)
        shares = []
        for site in sites:
            blocks = kept(site, source) if kept is not None and source is not None and site is not None else None
            predicted = indices[model.predict(records, site=site, kept=blocks)]
            shares.append(float(np.mean(predicted == records.labels)))
        found[domain] = statistics.fmean(shares)
    return found


def source_of(result: Result) -> str | None:
    """The task whose kept statistic a site's own alignment is made of; None where it needs none."""
    alignment: Mapping[str, Any] | None = result.application.get("alignment")
    return None if alignment is None or alignment["kind"] == "maps" else str(alignment["source"])


def spread(accuracies: Mapping[str, float]) -> tuple[float, float]:
    """AVG and STD over domains: the mean, each domain counted once, and the standard deviation with n in the denominator."""
    values = list(accuracies.values())
    return statistics.fmean(values), statistics.pstdev(values)


def overall(accuracies: Mapping[str, float], deal: Deal) -> float:
    """Accuracy over all labelled test records: the domains' accuracies, weighted by their numbers of records."""
    numbers = {domain: len(labelled(dataset.records)) for domain, dataset in deal.tests.items()}
    return math.fsum(accuracies[domain] * number for domain, number in numbers.items()) / sum(numbers.values())


def labelled(records: Records) -> Records:
    """The records that have a label.

    Raises:
        DataError: there is none.
    """
    known: NDArray[np.bool_] = np.zeros(len(records), dtype=np.bool_) if records.labels is None else records.labels >= 0
    if records.labels is None or not known.any():
        raise DataError("No test record has a label.", "Hold out more records.")
    if known.all():
        return records
    return Records(records.features[known], records.present[known], records.labels[known])


def complete(dataset: TableWithSchema) -> bool:
    """Whether no labelled record lacks a feature."""
    return bool(labelled(dataset.records).present.all())
