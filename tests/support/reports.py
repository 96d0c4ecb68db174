"""Reports of shared metrics that no honest site sends, by what is wrong with each."""

from __future__ import annotations

import math

from veilsum_proto import federation_pb2 as pb

SPENT, BUDGET = pb.SHARED_METRIC_EPSILON_SPENT, pb.SHARED_METRIC_EPSILON_BUDGET
VERIFIED, STEP, SOFTWARE = pb.SHARED_METRIC_LEDGER_VERIFIED, pb.SHARED_METRIC_STEP_SECONDS, pb.SHARED_METRIC_SOFTWARE
EXPIRY = pb.SHARED_METRIC_CERTIFICATE_EXPIRY


def sample(metric: int, label: str = "", value: float = 1.0) -> pb.SharedSample:
    """One sample."""
    return pb.SharedSample(metric=metric, label=label, value=value)  # type: ignore[arg-type]


HOSTILE: dict[str, list[pb.SharedSample]] = {
    "nothing": [],
    "no metric": [sample(pb.SHARED_METRIC_UNSPECIFIED)],
    "a metric of another list": [sample(77)],
    "more than are read": [sample(STEP, "compute")] * 257,
    "one twice": [sample(VERIFIED), sample(VERIFIED, value=0.0)],
    "a population that is not a name": [sample(SPENT, "Records of Anna")],
    "a population with a line": [sample(SPENT, 'a"} 1\nveilsum_rounds_total{method="x')],
    "a population without a name": [sample(SPENT)],
    "a long population": [sample(SPENT, "a" * 65)],
    "a label where there is none": [sample(VERIFIED, "records")],
    "a step that there is not": [sample(STEP, "think")],
    "two kinds of software": [sample(SOFTWARE, "veilsum 1"), sample(SOFTWARE, "veilsum 2")],
    "software with a line": [sample(SOFTWARE, "veilsum\n1")],
    "software as a number": [sample(SOFTWARE, "veilsum 1", 2.0)],
    "not a number": [sample(SPENT, "records", math.nan)],
    "infinite": [sample(BUDGET, "records", math.inf)],
    "negative": [sample(SPENT, "records", -1e-9)],
    "no budget": [sample(BUDGET, "records", 0.0)],
    "half verified": [sample(VERIFIED, value=0.5)],
    "before all time": [sample(EXPIRY, value=-1.0)],
    "too many populations": [sample(SPENT, f"p{number}") for number in range(17)],
}
