"""Boosted trees against other classifiers: ``python -m evaluations.trees --heart FOLDER``.

Whole studies of ``gbdt``, ``fedsgd`` and ``fedcgs`` with their defaults, without encryption, on records dealt to four sites;
XGBoost on the same records in one place without noise; and, with ``--ebm`` and the package interpret-core, its explainable
boosting with privacy, also in one place, so that its noise is that of one curator. The table has the area under the ROC curve
on the 30% of each class that was held out, in points.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from evaluations.studies import complete_records, run_on_sites, study_of
from evaluations.tables import line, mean_with_error, print_table
from veilsum_aggregation.arrays import Floats
from veilsum_deploy.datasets import packaged_dataset, read_dataset, take_records
from veilsum_deploy.evaluation import pool
from veilsum_deploy.simulation.partition import hold_out
from veilsum_participant.applying.model import Model
from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.tasks.base import Records

EPSILONS = (1.0, 3.0, 8.0)
METHODS_TRIED = ("gbdt", "fedsgd", "fedcgs")
DELTA = 1e-5
TWO = LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("no", "yes")))

SURVEY = {
    "rate_marriage": (1, 5), "age": (17, 42), "yrs_married": (0, 25), "children": (0, 6), "religious": (1, 4), "educ": (9, 20),
}  # fmt: skip
"""Numbers of the survey, with bounds; besides it has two occupations of six kinds."""

Table = tuple[DatasetSchema, Records]
Fit = Callable[[Table, Records, int], Floats | None]
"""(training, test, seed) -> scores of the second class (n,), or None where the model is not estimable."""


def breast_cancer(_: Path) -> Table:
    """569 x 30, 63% benign."""
    dataset = packaged_dataset("breast-cancer")
    return dataset.schema, dataset.records


def heart(folder: Path) -> Table:
    """920 patients of four hospitals x 13, 55% with a disease."""
    with_schema = Path(__file__).parents[2] / "deploy" / "veilsum_deploy" / "demo_data" / "heart_disease.toml"
    schema = load_schema(with_schema)
    return schema, pool([read_dataset(path, schema, "heart").records for path in sorted(folder.glob("processed.*.data"))])


def eights(_: Path) -> Table:
    """Optical digits: 1,797 x 64, 9.7% of them an 8."""
    dataset = packaged_dataset("digits")
    records = Records(dataset.records.features, dataset.records.present, (dataset.classes == 8).astype(np.int64))
    return dataset.schema.model_copy(update={"label": TWO}), records


def affairs(_: Path) -> Table:
    """Fair's survey of married women (statsmodels): 6,366 x 8, 7.1% of them with much time in affairs."""
    from statsmodels.datasets import fair

    frame = fair.load_pandas().data
    kinds = ("occupation", "occupation_husb")
    schema = DatasetSchema(
        columns=(
            *(NumberColumn(name=name, low=low, high=high) for name, (low, high) in SURVEY.items()),
            *(CategoryColumn(name=name, categories=tuple("123456")) for name in kinds),
        ),
        label=TWO,
        max_records=10_000,
    )
    low, high = np.array(list(SURVEY.values()), dtype=np.float64).T
    numbers = np.clip(2.0 * (frame[list(SURVEY)].to_numpy() - low) / (high - low) - 1.0, -1.0, 1.0)
    x = np.hstack([numbers, *(np.eye(6)[frame[name].to_numpy(np.int64) - 1] for name in kinds)])
    return schema, complete_records(x, (frame["affairs"] >= 3).to_numpy(np.int64))


TABLES: dict[str, Callable[[Path], Table]] = {
    "breast cancer": breast_cancer,
    "heart": heart,
    "an 8": eights,
    "affairs": affairs,
}


def fit_of(method: str, epsilon: float) -> Fit:
    """A study of four sites."""

    def fit(table: Table, test: Records, seed: int) -> Floats | None:
        schema, records = table
        result = run_on_sites(study_of(method, schema, len(records), epsilon), records, seed)
        if not result.application:
            return None
        scores: Floats = Model.from_result(result).scores(test)
        return scores[:, 1] - scores[:, 0]

    return fit


def xgboost_of(table: Table, test: Records, seed: int) -> Floats | None:
    """XGBoost in the clear; trees of depth 4, a hundred of them, at a learning rate of 0.1."""
    import xgboost

    model = xgboost.XGBClassifier(n_estimators=100, max_depth=4, learning_rate=0.1, random_state=seed, n_jobs=1)
    model.fit(table[1].features, table[1].labels)
    return np.asarray(model.predict_proba(test.features)[:, 1], dtype=np.float64)


def ebm_of(epsilon: float) -> Fit:
    """interpret's DPExplainableBoostingClassifier with its defaults, told the public bounds."""

    def fit(table: Table, test: Records, seed: int) -> Floats | None:
        from interpret.privacy import DPExplainableBoostingClassifier

        x = table[1].features
        named = [f"f{k}" for k in range(x.shape[1])]
        model: Any = DPExplainableBoostingClassifier(
            feature_names=named, feature_types=["continuous"] * x.shape[1], random_state=None, n_jobs=1, epsilon=epsilon,
            delta=DELTA, privacy_bounds=dict.fromkeys(named, (-1.0, 1.0)),
        )  # fmt: skip
        model.fit(x, table[1].labels)
        return np.asarray(model.predict_proba(test.features)[:, 1], dtype=np.float64)

    return fit


def areas(table: Table, fit: Fit, seeds: int) -> NDArray[np.float64]:
    """Area on the held-out records of each seed; NaN where the model is not estimable."""
    schema, records = table
    labels = np.zeros(0, dtype=np.int64) if records.labels is None else records.labels
    found = np.full(seeds, np.nan)
    for seed in range(seeds):
        kept, held = hold_out(labels, 0.3, seed)
        test = take_records(records, held)
        scores = fit((schema, take_records(records, kept)), test, seed)
        if scores is not None:
            found[seed] = roc_auc_score(test.labels, scores)
    return 100.0 * found


def figure(found: NDArray[np.float64]) -> str:
    """Mean and standard error over seeds."""
    told = found[np.isfinite(found)]
    missing = f" ({len(found) - len(told)} not estimable)" if len(told) < len(found) else ""
    return ("–" if len(told) < 2 else mean_with_error(told)) + missing


def rows(asked: argparse.Namespace) -> Iterator[str]:
    """A row for each table and epsilon, and one without noise."""
    for name in asked.tables:
        table = TABLES[name](asked.heart)
        blank = [""] * (len(METHODS_TRIED) + asked.ebm)
        yield line([name, "none", *blank, figure(areas(table, xgboost_of, asked.seeds))])
        for epsilon in EPSILONS:
            fits = [fit_of(method, epsilon) for method in METHODS_TRIED] + ([ebm_of(epsilon)] if asked.ebm else [])
            yield line([name, f"{epsilon:g}", *(figure(areas(table, fit, asked.seeds)) for fit in fits), ""])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heart", type=Path, required=True, help="folder of the processed files of UCI Heart Disease")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--ebm", action="store_true", help="explainable boosting too: pip install interpret-core")
    asked = parser.parse_args()
    named = [*(f"`{method}`" for method in METHODS_TRIED), *(["DP-EBM, pooled"] if asked.ebm else []), "XGBoost, pooled"]
    print_table(["data", "epsilon", *named], rows(asked), texts=2)


if __name__ == "__main__":
    main()
