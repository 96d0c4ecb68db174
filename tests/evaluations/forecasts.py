"""How well plans forecast what studies then tell: ``python -m evaluations.forecasts``.

Patients of an intensive care unit are made up: 9% die, stays and creatinine are log-normal, severity is a gamma number, groups
are unequal, and columns depend on one another. A plan is given what could be published of them: shares, means with standard
deviations, or quartiles. It is held against studies of fresh patients, each drawn anew.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from evaluations.studies import SITES, Sums, complete_records
from evaluations.tables import print_table, run_options
from veilsum.compile import PrivacyRequest, StudyRequest, draft_study
from veilsum.forecasts import read_figures
from veilsum_coordinator.methods import METHODS
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

NUMBERS = {"age": (18, 100), "severity": (0, 60), "creatinine": (0, 10), "stay": (0, 60), "visits": (0, 20)}
LEVELS = {
    "sex": ("f", "m"),
    "arm": ("usual", "new"),
    "ward": ("medical", "surgical", "cardiac", "burns"),
    "died": ("no", "yes"),
}
SCHEMA = DatasetSchema(
    columns=(
        *(NumberColumn(name=name, low=low, high=high) for name, (low, high) in NUMBERS.items()),
        *(CategoryColumn(name=name, categories=levels) for name, levels in LEVELS.items()),
    ),
    max_records=50_000,
)
EXPECTED = {
    "age": [63, 16], "severity": [16, 7.5], "creatinine": [0.8, 1.0, 1.4], "stay": [2.6, 4.7, 8.5], "visits": [1.7, 1.8],
    "sex": 0.6, "arm": 0.5, "ward": {"medical": 0.55, "surgical": 0.3, "cardiac": 0.12, "burns": 0.03}, "died": 0.09,
}  # fmt: skip
"""What is guessed: of 100,000 such patients, rounded."""


class Asked(NamedTuple):
    """One study: its method, keys, epsilon and records."""

    method: str
    keys: Mapping[str, Any]
    epsilon: float
    records: int


OVER = ["age", "severity", "sex", "arm"]
COX = {"family": "cox", "outcome": "stay", "event": "died", "censored": ["no"], "over": ["age", "arm"]}
DIED = "died = 'yes'"


def _query(epsilon: float, records: int, **keys: Any) -> Asked:
    return Asked("statistics", {"query": [keys]}, epsilon, records)


def _fit(epsilon: float, records: int, **keys: Any) -> Asked:
    return Asked("regression", {"parameters": {"over": OVER, **keys}}, epsilon, records)


ASKED = {
    "mean": _query(0.5, 1000, kind="mean", over=["age", "creatinine"]),
    "means of the dead": _query(1.0, 2000, kind="mean", over=["severity", "stay"], where=DIED),
    "quantiles": _query(1.0, 2000, kind="quantiles", over="stay"),
    "area": _query(1.0, 3000, kind="discrimination", over="severity", outcome=DIED),
    "risks": _query(1.0, 2000, kind="independence", over=["arm", "died"]),
    "shares": _query(1.0, 2000, kind="count", over="died", by="ward"),
    "correlation": _query(1.0, 1500, kind="correlation", over=["age", "severity"]),
    "linear": _fit(1.0, 2000, family="linear", outcome="stay"),
    "linear, robust": _fit(3.0, 2000, family="linear", outcome="stay", errors="robust"),
    "logistic": _fit(8.0, 3000, family="logistic", outcome=DIED),
    "logistic at 3": _fit(3.0, 1000, family="logistic", outcome=DIED),
    "logistic between": _fit(3.0, 3000, family="logistic", outcome=DIED),
    "poisson": _fit(3.0, 3000, family="poisson", outcome="visits"),
    "cox": Asked("regression", {"parameters": COX}, 8.0, 3000),
}


def drawn(n: int, rng: np.random.Generator) -> Records:
    """So many patients."""
    age = 100.0 - rng.gamma(5.5, 6.8, n)
    female, arm = rng.random(n) < 0.4, rng.integers(0, 2, n)
    ward = rng.choice(4, n, p=(0.55, 0.3, 0.12, 0.03))
    severity = rng.gamma(4.5, 3.5, n) + 0.05 * (age - 60)
    creatinine = rng.lognormal(0.05 + 0.008 * severity - 0.13, 0.42, n)
    stay = rng.lognormal(1.5 + 0.015 * (severity - 16) + 0.1 * arm, 0.87, n)
    visits = rng.poisson(rng.gamma(1.5, 1.0, n) * np.exp(0.1 + 0.005 * (age - 60)))
    died = rng.random(n) < 1.0 / (1.0 + np.exp(2.38 - 0.09 * (severity - 16) - 0.03 * (age - 63) + 0.4 * arm))
    numbers = [age, severity, creatinine, stay, visits]
    bounds = [(low, (high - low) / 2.0) for low, high in NUMBERS.values()]
    scaled = [np.clip((x - low) / half - 1.0, -1.0, 1.0) for x, (low, half) in zip(numbers, bounds, strict=True)]
    codes = [1 - female, arm, ward, died.astype(int)]
    indicators = [np.eye(len(levels))[code] for code, levels in zip(codes, LEVELS.values(), strict=True)]
    return complete_records(np.hstack([np.column_stack(scaled), *indicators]))


def rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Lines of a table, and last how many forecasts were near."""
    near = told_near = widths = number = 0
    for name, asked in ASKED.items():
        content = {
            "name": "evaluation", "method": asked.method, "dataset": "d", "data": SCHEMA, "expected": EXPECTED,
            "expected_records": asked.records // len(SITES), "privacy": PrivacyRequest(epsilon=asked.epsilon), **asked.keys,
        }  # fmt: skip
        request = StudyRequest.model_validate(content)
        draft = draft_study(
            request, federation_id="0" * 64, coordinator="hub", participants=SITES, clock=lambda: 0, random=SYSTEM_RANDOM
        )
        study = draft.compile()
        forecasts = {item.quantity: item for item in draft.forecast(study) if item.main}
        found = [read_figures(METHODS[study.method].run(Sums(study, drawn(asked.records, rng), rng))) for _ in range(runs)]
        for quantity, item in forecasts.items():
            if quantity.endswith("died no"):
                continue  # the share of the others
            own = [each for run in found for each in run.values() if each.quantity == quantity and each.main]
            halves = [each.half for each in own if each.value is not None]
            told, width = len(halves) / runs, float(np.median(halves)) if halves else np.inf
            told_near += abs(item.told - told) <= 0.1
            number += 1
            shown = f"{item.told:.2f} | {told:.2f}"
            if halves and np.isfinite(item.half_width):
                ratio = item.half_width / width
                widths, near = widths + 1, near + (abs(ratio - 1.0) <= 0.15)
                shown = f"{item.half_width:.3g} | {width:.3g} | {ratio:.2f} | {shown}"
            else:
                shown = f" | | | {shown}"
            yield f"| {name} | {quantity} | {asked.epsilon:g} | {asked.records:,} | {shown} |"
    yield f"| near | | | | | within 15%: | {near} of {widths} | within .1: | {told_near} of {number} |"


if __name__ == "__main__":
    options = run_options("forecasts", __doc__, 200).parse_args()
    heads = ["study", "figure", "epsilon", "records", "forecast", "measured", "ratio", "told, forecast", "told"]
    print_table(heads, rows(options.runs, np.random.default_rng(options.seed)), texts=2)
