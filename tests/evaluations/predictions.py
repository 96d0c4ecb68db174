"""How often intervals of a prediction's measures cover: ``python -m evaluations.predictions``.

A formula that is a little off (slopes of four fifths of the true ones) is evaluated on records of the heart study of
:mod:`evaluations.regression`; times are exponential, with the same terms. The truth is the mean of ten
samples of 1,000,000 records without noise.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from evaluations.regression import NUMBERS, OUTCOMES, SCHEMA, SIGNS, TRUTHS, drawn
from evaluations.studies import Sums, study_of
from evaluations.tables import print_table, run_options
from veilsum_coordinator.methods import METHODS
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records

PREDICTS = {"linear": "number", "logistic": "probability", "poisson": "rate", "cox": "hazard"}
BOUNDS = {"linear": (2.5, 5.5), "logistic": (-2.0, 2.5), "poisson": (-0.6, 1.0), "cox": (-2.0, 2.5)}
SLOPES = 0.8
TRUTH, SAMPLES = 1_000_000, 10
"""Records and samples of the truth, whose own error is then a fourteenth of that of 50,000 records."""

TIMES = DatasetSchema(
    columns=(
        *(NumberColumn(name=name, low=-1, high=1) for name in NUMBERS),
        NumberColumn(name="years", low=0, high=5),
        *(CategoryColumn(name=name, categories=("no", "yes")) for name in (*SIGNS, "event")),
    ),
    max_records=50_000,
)


def formula(family: str) -> str:
    """The prediction."""
    truth = TRUTHS["logistic" if family == "cox" else family]
    text = f"{truth[0]}"
    for name, slope in zip((*NUMBERS, *(f"({sign} = 'yes')" for sign in SIGNS)), truth[1:], strict=True):
        text += f" {'-' if slope < 0 else '+'} {abs(SLOPES * slope):.4g} * {name}"
    return text.lstrip("+ ").replace("-0.6 ", "- 0.6 ")


def records_of(family: str, n: int, rng: np.random.Generator) -> Records:
    """Records whose outcome follows the family."""
    if family != "cox":
        return drawn(family, n, rng)
    base = drawn("logistic", n, rng)
    features = base.features.copy()
    signs = features[:, [5, 7, 9]]
    h = np.hstack([features[:, :3], signs]) @ TRUTHS["logistic"][1:]
    died, left = rng.exponential(size=n) / (0.15 * np.exp(h - h.mean())), rng.uniform(1.0, 8.0, n)
    event = (died <= left) & (died < 5.0)
    features[:, 3] = np.minimum(np.minimum(died, left), 5.0) / 2.5 - 1.0
    features[:, 10], features[:, 11] = ~event, event
    return Records(features, base.present, None)


def compiled(family: str, n: int, epsilon: float | None) -> Study:
    """The evaluation."""
    low, high = BOUNDS[family]
    told: dict[str, Any] = {"predicts": PREDICTS[family], "number": formula(family), "low": low, "high": high}
    if family == "cox":
        told |= {"outcome": "years", "event": "event", "censored": ["no"]}
    else:
        told["outcome"] = OUTCOMES[family]
    schema, records = TIMES if family == "cox" else SCHEMA, min(n, 4 * 50_000)
    return study_of("federated-evaluation", schema, records, epsilon, parameters={"prediction": told})


def measured(study: Study, family: str, n: int, rng: np.random.Generator) -> dict[str, dict[str, Any]]:
    """The measures of one study of n fresh records."""
    summary = METHODS["federated-evaluation"].run(Sums(study, records_of(family, n, rng), rng)).summary
    return {row["measure"]: row["value"] for row in summary["measures"]}


def rows(runs: int, rng: np.random.Generator) -> Iterator[str]:
    """Coverage of each measure."""
    for family in PREDICTS:
        whole = compiled(family, 200_000, None)
        told = [measured(whole, family, TRUTH, rng) for _ in range(SAMPLES)]
        truth = {name: float(np.mean([each[name]["value"] for each in told])) for name in told[0]}
        found: dict[tuple[str, float, int], list[bool | None]] = {}
        for epsilon in (1.0, 3.0):
            for n in (5000, 50_000):
                study = compiled(family, n, epsilon)
                for _ in range(runs if n < 50_000 else max(1, runs // 2)):
                    for name, value in measured(study, family, n, rng).items():
                        low, high = value.get("low"), value.get("high")
                        covers = (low is None or low <= truth[name]) and (high is None or truth[name] <= high)
                        found.setdefault((name, epsilon, n), []).append(covers if "value" in value else None)
        for name in truth:
            cells = []
            for epsilon in (1.0, 3.0):
                for n in (5000, 50_000):
                    inside = [each for each in found[name, epsilon, n] if each is not None]
                    cells.append(f"{np.mean(inside):.3f}" if 4 * len(inside) > len(found[name, epsilon, n]) else "–")
            yield f"| {PREDICTS[family]} | {name} | {truth[name]:.3f} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    options = run_options("predictions", __doc__, 100).parse_args()
    heads = ["predicted", "measure", "truth", "ε 1, 5,000", "1, 50,000", "3, 5,000", "3, 50,000"]
    print_table(heads, rows(options.runs, np.random.default_rng(options.seed)), texts=2)


if __name__ == "__main__":
    main()
