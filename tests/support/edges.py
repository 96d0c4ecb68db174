"""Data sets at the edges of statistics: what no formula should fail on, each as a frame that oracles read as well."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd

from veilsum_privacy.study.schema import CategoryColumn, ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks.base import Records

SITES = tuple(f"site-{index}" for index in range(4))

COLUMNS = (
    NumberColumn(name="age", low=20, high=90, unit="years"),
    NumberColumn(name="stay", low=0, high=60, unit="days"),
    NumberColumn(name="dose", low=-5, high=5),
    NumberColumn(name="visits", low=0, high=20),
    CategoryColumn(name="arm", categories=("a", "b")),
    CategoryColumn(name="sex", categories=("f", "m", "x")),
    CategoryColumn(name="end", categories=("alive", "died", "moved")),
)
NUMBERS = tuple(column.name for column in COLUMNS if isinstance(column, NumberColumn))
LEVELS = {column.name: column.categories for column in COLUMNS if isinstance(column, CategoryColumn)}

SCHEMA = DatasetSchema(columns=COLUMNS, max_records=2000)
LABEL = LabelColumn(column="end", classes=tuple(ClassValues(name=name, values=(name,)) for name in LEVELS["end"]))
CLASSES = DatasetSchema(columns=COLUMNS[:-1], label=LABEL, max_records=2000)
"""The same, with ``end`` as what is told apart."""
TWO = CLASSES.model_copy(
    update={
        "label": LabelColumn(
            column="end",
            classes=(ClassValues(name="alive", values=("alive",)), ClassValues(name="gone", values=("died", "moved"))),
        )
    }
)
"""The same of two classes."""

FEW = 100
"""Most records of a site in the data set that has more."""


def typical(n: int = 400, seed: int = 0) -> pd.DataFrame:
    """Records whose columns all have to do with one another; every level occurs, and some ages are missing."""
    rng = np.random.default_rng(seed)
    age, arm = rng.normal(60, 12, n).clip(20, 90), rng.integers(0, 2, n)
    h = (age - 60) / 15 + 0.5 * arm
    stay = (rng.gamma(2.0, 4.0, n) * np.exp(0.2 * h)).clip(0, 60)
    end = (rng.random(n) < 0.4 / (1 + np.exp(-h))) * (1 + (rng.random(n) < 0.3))
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.05, np.nan, age),
            "stay": stay,
            "dose": rng.normal(0, 1.5, n).clip(-5, 5),
            "visits": rng.poisson(np.exp(0.5 + 0.3 * h)).clip(0, 20).astype(float),
            "arm": np.array(LEVELS["arm"])[arm],
            "sex": np.array(LEVELS["sex"])[rng.choice(3, n, p=(0.5, 0.4, 0.1))],
            "end": np.array(LEVELS["end"])[end],
        }
    )
    return frame.astype(dict.fromkeys(LEVELS, object))


def _changed(**columns: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda frame: frame.assign(**columns)


def _separated(frame: pd.DataFrame) -> pd.DataFrame:
    """The old die, all of them in arm b, and nobody else."""
    old = frame["age"].fillna(30.0) > 60
    return frame.assign(end=np.where(old, "died", "alive"), arm=np.where(old, "b", "a"), stay=np.where(old, 30.0, 5.0))


def _quasi(frame: pd.DataFrame) -> pd.DataFrame:
    """Nobody of sex x dies, and all others as they do."""
    return frame.assign(
        end=np.where(frame["sex"] == "x", "alive", frame["end"]), visits=frame["visits"] * (frame["sex"] != "x")
    )


def _group_of_one(frame: pd.DataFrame) -> pd.DataFrame:
    alone = np.arange(len(frame)) == 3
    return frame.assign(arm=np.where(alone, "b", "a"))


def _rare(frame: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return frame.assign(end=np.where(rng.random(len(frame)) < 0.09, "died", "alive"))


def _heavy(frame: pd.DataFrame) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    n = len(frame)
    return frame.assign(
        stay=rng.lognormal(0.5, 1.5, n).clip(0, 60),
        dose=rng.standard_cauchy(n).clip(-5, 5),
        visits=rng.pareto(1.0, n).clip(0, 20).round(),
    )


DATA: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "typical": lambda frame: frame,
    "constant": _changed(age=50.0, stay=3.0, dose=0.0, visits=2.0, arm="a", sex="f", end="alive"),
    "constant at the bounds": _changed(age=90.0, stay=0.0, dose=-5.0, visits=20.0, arm="b", sex="x", end="moved"),
    "all missing": _changed(**dict.fromkeys(NUMBERS, np.nan), **dict.fromkeys(LEVELS)),
    "numbers missing": _changed(**dict.fromkeys(NUMBERS, np.nan)),
    "one class": _changed(end="died"),
    "all censored": _changed(end="alive"),
    "a level that nobody has": lambda frame: frame.assign(sex=frame["sex"].replace("x", "f")),
    "the reference level that nobody has": lambda frame: frame.assign(sex=frame["sex"].replace("f", "m")),
    "separated": _separated,
    "quasi-separated": _quasi,
    "ties": lambda frame: frame.assign(
        age=frame["age"].round(-1), stay=np.where(frame["stay"] > 8, 10.0, 2.0), dose=np.sign(frame["dose"])
    ),
    "no record": lambda frame: frame[:0],
    "one record": lambda frame: frame[:1],
    "two records": lambda frame: frame[:2],
    "a group of one": _group_of_one,
    "one interval": _changed(stay=3.0, end="died"),
    "one interval by group": lambda frame: frame.assign(
        stay=np.where(frame["arm"] == "a", 3.0, frame["stay"]), end=np.where(frame["arm"] == "a", "died", frame["end"])
    ),
    "everybody at the horizon": _changed(stay=60.0),
    "9% events": _rare,
    "heavy tails": _heavy,
    "more than max_records": lambda frame: frame,
    "collinear": lambda frame: frame.assign(
        dose=(frame["age"] - 55) / 7,
        visits=((frame["age"] - 20) / 3.5).clip(0, 20),
        sex=np.where(frame["arm"] == "a", "f", "m"),
    ),
}
"""By name, what is made of typical records."""


def schema_of(name: str, schema: DatasetSchema = SCHEMA) -> DatasetSchema:
    """The schema of a data set, which in one case allows fewer records than there are."""
    return schema.model_copy(update={"max_records": FEW // 2}) if name == "more than max_records" else schema


def records_of(frame: pd.DataFrame, schema: DatasetSchema = SCHEMA) -> Records:
    """A frame as sites hold it."""
    n = len(frame)
    features, present = np.zeros((n, schema.width)), np.ones((n, schema.width), dtype=np.bool_)
    for column, place in schema.places():
        own = frame[column.name]
        known = own.notna().to_numpy()
        present[:, place] = known[:, None]
        if isinstance(column, NumberColumn):
            scaled = (own.to_numpy(dtype=np.float64) - column.low) / (column.high / 2 - column.low / 2) - 1
            features[:, place.start] = np.where(known, scaled, 0.0)
        else:
            codes = own.map({level: code for code, level in enumerate(column.categories)}).fillna(0).to_numpy(dtype=np.int64)
            features[np.arange(n), place.start + codes] = known
    labels = None
    if schema.label is not None:
        codes = {value: code for code, kind in enumerate(schema.label.classes) for value in kind.values}
        kept = frame[schema.label.column].notna().to_numpy()
        labels = frame[schema.label.column][kept].map(codes).to_numpy(dtype=np.int64)
        features, present = features[kept], present[kept]  # a record without a class is not read
    return Records(features, present, labels)
