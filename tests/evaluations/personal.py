"""Models of a site's own beside the released one that they are made of and what each site reaches alone, paired.

    python -m evaluations.personal --data DATA --out DIR --seeds 10 --jobs 2

One released model a setting, epsilon and seed; every site moves it by its own records, and it, the moved one and what the site
reaches alone are tested on the same records of the site's own domain. So no noise is in the differences but that of the
released model. "Alone" is the better of ridge regression and the linear discriminant by the site's own cross-validation, as
``personalise`` tells it.
"""

import argparse
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from evaluations.tables import append_rows, line, mean_with_error, print_table, read_rows
from veilsum_aggregation.arrays import Floats
from veilsum_deploy.simulation.deal import Deal, Setting, deal, site_names
from veilsum_deploy.simulation.plain import run_plain
from veilsum_deploy.simulation.scores import labelled_tests
from veilsum_deploy.simulation.study import draft_of, read_content
from veilsum_deploy.simulation.sweep import Source
from veilsum_participant.applying import personal
from veilsum_participant.applying.model import Model, best_class
from veilsum_privacy.results.result import save_result
from veilsum_privacy.tasks.base import Records

STUDIES = Path(__file__).parent
EPSILONS = (1.0, 3.0, 8.0)


@dataclass(frozen=True)
class Data:
    """Where a setting's records come from, who holds them, and the study that makes its features.

    Attributes:
        own: how many of a site's records move the model, drawn at random; None for all.
    """

    source: str
    setting: Setting
    methods: tuple[str, ...] = ("fedcgs", "fedsgd")
    encoder: str | None = None
    own: int | None = None


HEART = Setting("domains")
BREAST = Setting("iid", holdout=0.3)
SETTINGS = {
    "digits4": Data("digits4", Setting("domains", limit=1275), encoder="pca"),
    "Office-Caltech10": Data("office-caltech10", Setting("domains", split=7), encoder="pca-40"),
    "heart disease": Data("heart-disease", HEART),
    "breast cancer": Data("breast-cancer", Setting("iid", 4, holdout=0.3)),
    "breast cancer, 8 sites": Data("breast-cancer", Setting("iid", 8, holdout=0.3)),
    "breast cancer, 16 sites": Data("breast-cancer", Setting("iid", 16, holdout=0.3)),
    "heart disease, 25 records": Data("heart-disease", HEART, own=25),
    "heart disease, 50 records": Data("heart-disease", HEART, own=50),
    "digits4, 50 records": Data("digits4", Setting("domains", limit=1275), ("fedcgs",), "pca", own=50),
}
FOLDERS = {"digits4": "digits4", "office-caltech10": "office_caltech10", "heart-disease": "heart_disease"}


def _source(name: str, data: Path) -> Source:
    return Source("collection", name, data / FOLDERS[name]) if name in FOLDERS else Source("packaged", name)


_collection = lru_cache(maxsize=4)(lambda name, data: _source(name, data).load(None))


def _encoder(setting: Data, data: Path, out: Path) -> Path | None:
    """The projection of a setting, computed once; its seed deals as that of ``veilsum simulate`` without one."""
    if setting.encoder is None:
        return None
    folder = out / f"{setting.encoder}-{setting.source}"
    if not (folder / "manifest.json").exists():
        collection = _collection(setting.source, data)
        draft = draft_of(
            read_content(STUDIES / f"{setting.encoder}.toml", None), STUDIES, collection.schema, source="the projection"
        )
        dealt = deal(collection, setting.setting, 0, site_names(collection, setting.setting))
        study, result, _ = run_plain(draft, dealt, lambda: int(time.time()))
        save_result(folder, result, study={"name": study.name, "digest": "0" * 64})
    return folder


@dataclass(frozen=True)
class Own:
    """What a site has to move a released model by, and what it is tested on."""

    model: Model
    training: Records
    test: Records


def own_of(name: str, method: str, epsilon: float, seed: int, data: Path, out: Path) -> list[Own]:
    """One run of a setting: every site's own records, with the model that all sites' were released as; none without one."""
    setting = SETTINGS[name]
    collection = _collection(setting.source, data)
    content = read_content(STUDIES / "private.toml", _encoder(setting, data, out))
    content = {**content, "method": method, "privacy": {**content["privacy"], "epsilon": epsilon}}
    schema = collection.schema
    if setting.setting.most_records is not None:
        schema = schema.model_copy(update={"max_records": min(schema.max_records, setting.setting.most_records)})
    draft = draft_of(content, STUDIES, schema, source="the study")
    dealt = deal(collection, setting.setting, seed, site_names(collection, setting.setting))
    _, result, _ = run_plain(draft, dealt, lambda: int(time.time()))
    if "not_estimable" in result.summary:
        return []
    model = Model.from_result(result)
    return [
        Own(model, _some(dealt.training[site].records, setting.own, seed), test)
        for domain in labelled_tests(dealt)
        for site in dealt.sites_of(domain)
        for test in _tests(dealt, domain, site)
    ]


def _tests(dealt: Deal, domain: str, site: str) -> list[Records]:
    own = dealt.own(domain, site)
    return [] if own is None else [own.records]


def _some(records: Records, number: int | None, seed: int) -> Records:
    if number is None or len(records) <= number:
        return records
    return records.take(np.sort(np.random.default_rng((seed, 2)).permutation(len(records))[:number]))


def right(scores: Floats, records: Records) -> float:
    """Percent of the labelled records that scores (n, K) tell."""
    assert records.labels is not None
    known = records.labels >= 0
    return 100.0 * float(np.mean(best_class(scores)[known] == records.labels[known]))


def alone(own: Own, found: personal.Personal) -> Model:
    """The site's own model without the released one: its better half, by its own cross-validation."""
    told = personal._own_records(own.model, own.training, None)
    x = own.model.features(told.records, None, None, None)
    used = told.known & np.isfinite(x).all(axis=1)
    zeros = np.zeros((int(used.sum()), own.model.recipe.scores))
    data = personal._Standard.of(x[used], zeros, told.targets[used], told.loss)
    folds = personal.fold_of(found.records, None)
    parts = [personal._cross_validated(data, folds, name) for name in personal.ALONE]
    best = min(parts, key=lambda part: part.loss)
    return personal._moved(own.model, data, personal._fit(data, best.choice))


def accuracies(each: list[Own]) -> dict[str, float]:
    """Mean over sites of the percent told rightly."""
    rows = []
    for own in each:
        found = personal.personalise(own.model, own.training)
        by = {"alone": alone(own, found) if found.weights else own.model, "released": own.model, "personal": found.model}
        rows.append({name: right(model.scores(own.test), own.test) for name, model in by.items()})
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def _run(job: tuple[Any, ...]) -> dict[str, Any]:
    name, method, epsilon, seed, *folders = job
    told = {"key": f"{name}, {method}, {epsilon:g}, {seed}", "data": name, "method": method, "epsilon": epsilon, "seed": seed}
    each = own_of(name, method, epsilon, seed, *folders)
    return {**told, **(accuracies(each) if each else {})}


def measure(chosen: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Every run that is not there yet."""
    folders = (chosen.data, chosen.out)
    for name in chosen.settings:
        _encoder(SETTINGS[name], *folders)
    jobs = [
        (name, method, epsilon, seed, *folders)
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds)
        for name in chosen.settings
        for method in SETTINGS[name].methods
        for epsilon in chosen.epsilons
        if f"{name}, {method}, {epsilon:g}, {seed}" not in done
    ]
    with ProcessPoolExecutor(chosen.jobs) as pool:
        yield from pool.map(_run, jobs)


def table(rows: list[dict[str, Any]]) -> None:
    """Means, and paired differences with their standard errors over seeds."""
    lines = []
    for cell in dict.fromkeys((row["data"], row["method"], row["epsilon"]) for row in rows):
        own = [row for row in rows if (row["data"], row["method"], row["epsilon"]) == cell and "personal" in row]
        if not own:
            continue
        by = {name: np.array([row[name] for row in own]) for name in ("alone", "released", "personal")}
        better = by["alone"] if by["alone"].mean() >= by["released"].mean() else by["released"]
        gains = [by["personal"] - base for base in (by["alone"], by["released"], better)]
        lines.append(
            line(
                (
                    cell[0],
                    cell[1],
                    f"{cell[2]:g}",
                    *(f"{own.mean():.1f}" for own in by.values()),
                    *(mean_with_error(gain, 2, sign=True) for gain in gains),
                    len(own),
                )
            )
        )
    print_table(
        (
            "data",
            "method",
            "epsilon",
            "alone",
            "released",
            "personal",
            "over alone",
            "over released",
            "over the better",
            "runs",
        ),
        lines,
        texts=2,
    )


def main() -> None:
    """Run what is not in the folder yet, and print the table of the chosen seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of digits4, office_caltech10 and heart_disease")
    parser.add_argument("--out", type=Path, required=True, help="folder for rows.jsonl and projections")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "rows.jsonl"
    append_rows(file, measure(chosen, {row["key"] for row in read_rows(file)}))
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    table([row for row in read_rows(file) if row["seed"] in seeds and row["data"] in chosen.settings])


if __name__ == "__main__":
    main()
