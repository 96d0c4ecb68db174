"""FedAlign on MNIST: sites with skewed classes and noised images, trained with and without alignment by moments.

Ten sites, classes dealt by a Dirichlet draw of 0.5; every image gets noise N(0, beta), where beta is a variance and pixels lie
in [0, 1], and is cut to [0, 1] again. Accuracy is told on test images as they are, and on test images with a site's own noise,
which go through the site's own alignment: the mean over the sites.

The parts "main" and "ablation" train a LeNet-5 or a perceptron without noise for privacy: FedAvg, FedProx, FedNova, FedRDN,
FedAlign with moments released once and in each round.
The part "private" trains a softmax classifier on images averaged over 2 x 2 pixels under DP, by steps in secure sums (fedsgd)
and by local DP-SGD (fedavg): moments and training are one study, and its epsilon is that of both.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from evaluations.studies import compile_for_sites, complete_records
from evaluations.tables import append_rows, line, mean_with_error, read_rows
from veilsum.compile import StudyRequest
from veilsum_aggregation.arrays import Floats
from veilsum_aggregation.feature_moments import moments_of_sums
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.parts.moment_alignment import LABEL
from veilsum_deploy.simulation.partition import partition
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.applying.model import Model
from veilsum_privacy.mechanism.parts import hash_is_low
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.tasks.feature_maps import ALIGNMENT_SCALE

ALPHA, DELTA, SIDE = 0.5, 1e-5, 28
MODELS: Mapping[str, Mapping[str, Any]] = {
    "lenet5": {"name": "lenet5", "inputs": [1, SIDE, SIDE]},
    "mlp": {"name": "mlp", "options": {"hidden": 64, "scale": 0.125}},
}
SKEWS = ("noise", "graded", "gain")
"""The same noise everywhere; noise whose variance grows from site to site up to beta; each site's gain and brightness, with
noise."""


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        name: as in the tables.
        moments: the table ``[parameters.moments]``; None for no alignment.
        parameters: of the method besides.
        part: of the records that an arm without alignment is given, for a share of 0.5.
    """

    name: str
    moments: Mapping[str, Any] | None = None
    parameters: Mapping[str, Any] | None = None
    method: str = "fedavg"
    whole: bool = True


TRAINING = {
    "main": (
        Arm("FedAvg, all records"),
        Arm("FedAvg, S_k", whole=False),
        Arm("FedAlign, mean and variance", {}),
        Arm("FedAlign, moments of all, training on all", {"records": 1.0}),
        Arm("FedProx, all records", parameters={"objective": {"name": "prox"}}),
        Arm("FedNova, all records", parameters={"normalised": True}),
        Arm("FedRDN, all records", {"records": 1.0, "moved_by": "drawn"}),
        Arm("FedAlign, each round", {"released": "each-round"}),
    ),
    "ablation": (
        Arm("FedAlign, mean only", {"adjust": "mean"}),
        Arm("FedAlign, variance only", {"adjust": "variance"}),
        Arm("FedAlign, four moments", {"order": 4}),
        Arm("FedAlign, four moments, by pixel", {"order": 4, "per": "feature"}),
        Arm("FedAlign, U_k 0.25", {"records": 0.25}),
        Arm("FedAlign, U_k 0.75", {"records": 0.75}),
    ),
}
PRIVATE = (
    Arm("fedsgd", method="fedsgd"),
    Arm("fedsgd, aligned, all records", {"records": 1.0}, method="fedsgd"),
    Arm("fedsgd, aligned, U_k 0.5", {}, method="fedsgd"),
    Arm("fedsgd, FedRDN, all records", {"records": 1.0, "moved_by": "drawn"}, method="fedsgd"),
    Arm("fedavg"),
    Arm("fedavg, aligned, all records", {"records": 1.0}),
    Arm("fedavg, FedRDN, all records", {"records": 1.0, "moved_by": "drawn"}),
    Arm("fedavg, each round, all records", {"records": 1.0, "released": "each-round"}),
    Arm("fedavg, each round, U_k 0.5", {"released": "each-round"}),
)


@dataclass(frozen=True)
class SkewedSites:
    """What the sites hold, what is tested on as it is, and with each site's own skew."""

    records: dict[str, Records]
    clean: Records
    skewed: dict[str, Records]
    schema: DatasetSchema


def deal(arrays: Mapping[str, Any], chosen: argparse.Namespace, *, seed: int, beta: float, pool: int) -> SkewedSites:
    """Draw images, deal them by Dirichlet classes and skew them; all by the seed."""
    rng = np.random.default_rng((seed, 0xFEDA))
    rows = rng.permutation(len(arrays["y_train"]))[: chosen.records * chosen.sites]
    tests = rng.permutation(len(arrays["y_test"]))[: chosen.tests]
    labels = arrays["y_train"][rows].astype(np.int64)
    names = [f"site-{number:02d}" for number in range(1, chosen.sites + 1)]
    parts = partition(labels, chosen.sites, f"dirichlet:{ALPHA}", seed)
    gains = zip(rng.uniform(0.5, 1.5, chosen.sites), rng.uniform(-0.2, 0.2, chosen.sites), strict=True)
    skews = [(gain, offset) if chosen.skew == "gain" else (1.0, 0.0) for gain, offset in gains]
    train, test = arrays["X_train"][rows] / 255.0, arrays["X_test"][tests] / 255.0
    expected = arrays["y_test"][tests].astype(np.int64)
    records, skewed = {}, {}
    for number, (name, own, (gain, offset)) in enumerate(zip(names, parts, skews, strict=True), 1):
        variance = beta * number / chosen.sites if chosen.skew == "graded" else beta

        def skew(images: Floats, gain: float = gain, offset: float = offset, variance: float = variance) -> Floats:
            return np.clip(gain * images + offset + rng.normal(0.0, math.sqrt(variance), images.shape), 0.0, 1.0)

        records[name] = _records(skew(train[own]), labels[own], pool)
        skewed[name] = _records(skew(test), expected, pool)
    classes = tuple(ClassValues(name=str(digit), values=(str(digit),)) for digit in range(10))
    columns = tuple(NumberColumn(name=f"p{index}", low=0, high=1) for index in range((SIDE // pool) ** 2))
    most = chosen.records * chosen.sites
    schema = DatasetSchema(columns=columns, label=LabelColumn(column="digit", classes=classes), max_records=most)
    return SkewedSites(records, _records(test, expected, pool), skewed, schema)


def _records(images: Floats, labels: Any, pool: int) -> Records:
    small = images.reshape(len(images), SIDE // pool, pool, SIDE // pool, pool).mean(axis=(2, 4))
    return complete_records(2.0 * small.reshape(len(images), -1) - 1.0, labels)


def compiled(sites: SkewedSites, arm: Arm, parameters: Mapping[str, Any], chosen: argparse.Namespace, epsilon: float) -> Study:
    """The study of an arm; an infinite epsilon is a study without noise."""
    private = math.isfinite(epsilon)
    noise = ("distributed" if arm.method == "fedsgd" else "local") if private else "none"
    moments = {} if arm.moments is None else {"moments": {**_channels(parameters, arm.moments), **arm.moments}}
    content = {
        "name": "fedalign",
        "method": arm.method,
        "dataset": "mnist",
        "data": sites.schema,
        "expected_records": chosen.records,
        "parameters": {**parameters, **(arm.parameters or {}), **moments},
        "privacy": {"noise": noise, "epsilon": epsilon if private else None, "delta": DELTA},
    }
    return compile_for_sites(StudyRequest.model_validate(content), sorted(sites.records))


def _channels(parameters: Mapping[str, Any], moments: Mapping[str, Any]) -> dict[str, int]:
    """One channel, for models that know no images and would align each pixel by itself."""
    by_itself = "inputs" in parameters.get("model", {}) or moments.get("per") == "feature"
    return {} if by_itself else {"channels": 1}


def _for_training(own: Records) -> Records:
    """The half of a site's records that the tasks of a study with ``part_share`` 0.5 train on."""
    labels = np.full(len(own), -1) if own.labels is None else own.labels
    return own.take(~hash_is_low(own.features, own.present, labels, 0.5))


def run(
    sites: SkewedSites, arm: Arm, parameters: Mapping[str, Any], chosen: argparse.Namespace, epsilon: float
) -> dict[str, Any]:
    """One result: percent of test images classified rightly, as they are and with the sites' own skew."""
    began = time.monotonic()
    study = compiled(sites, arm, parameters, chosen, epsilon)
    held = sites.records if arm.whole else {name: _for_training(own) for name, own in sites.records.items()}
    federation = PlainFederation(study, {name: PlainSite(own) for name, own in held.items()})
    result = get_method(arm.method).run(federation)
    model = Model.from_result(result)
    bare = Model.from_result(replace(result, application={**result.application, "alignment": None}))
    local, told, shown = [], 0, ALIGNMENT_SCALE in result.arrays
    noise = (result.application["alignment"] or {}).get("noise_std", {})
    for name, own in sites.skewed.items():
        kept = None if arm.moments is None or shown else federation.kept_blocks(name, LABEL)
        told += 0 if kept is None else int((moments_of_sums(kept, noise).order > 0).any())
        told += int((result.arrays[ALIGNMENT_SCALE][sorted(held).index(name)] != 1.0).any()) if shown else 0
        local.append(_percent(model.predict(own, name, kept), own))
    return {
        "clean": _percent(bare.predict(sites.clean), sites.clean),
        "local": statistics.fmean(local),
        "epsilons": result.summary.get("epsilon"),
        "sites_told": told,
        "columns": result.summary.get("moments", {}).get("columns"),
        "seconds": time.monotonic() - began,
    }


def _percent(predicted: Any, records: Records) -> float:
    return 100.0 * float(np.mean(predicted == records.labels))


def measure(arrays: Mapping[str, Any], chosen: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Every result that is not there yet, the most important ones first."""
    network = {
        "model": MODELS[chosen.model],
        "rounds": chosen.rounds,
        "batch": chosen.batch,
        "learning_rate": chosen.rate,
        "weighting": "records",
    }
    convex: dict[str, Mapping[str, Any]] = {
        "fedsgd": {"steps": chosen.steps},
        "fedavg": {"model": {"name": "linear"}, "rounds": chosen.steps // 5, "local_steps": 5},
    }
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    for part in chosen.parts:
        for seed in seeds:
            for beta in chosen.betas:
                pool = 2 if part == "private" else 1
                sites: SkewedSites | None = None
                epsilons = chosen.epsilons if part == "private" else [math.inf]
                for arm in PRIVATE if part == "private" else TRAINING[part]:
                    if chosen.arms and arm.name not in chosen.arms:
                        continue
                    for epsilon in epsilons:
                        model = "linear" if part == "private" else chosen.model
                        about = {
                            "part": part,
                            "model": model,
                            "skew": chosen.skew,
                            "beta": beta,
                            "arm": arm.name,
                            "epsilon": str(epsilon),
                        }
                        key = json.dumps({**about, "seed": seed})
                        if key in done:
                            continue
                        sites = sites or deal(arrays, chosen, seed=seed, beta=beta, pool=pool)
                        parameters = {**(convex[arm.method] if part == "private" else network), "seed": seed}
                        yield {"key": key, **about, "seed": seed, **run(sites, arm, parameters, chosen, epsilon)}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: accuracy by part, skew, arm and epsilon; standard errors over seeds behind a plus-minus, and how many seeds.

    Gains are over the first arm of the part that there is at the same beta and epsilon, paired by seed; those of arms that
    leave half of the records to the moments over FedAvg on the other half.
    """
    cells: dict[tuple[str, str, str, str, str, float], dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        names = ("part", "model", "skew", "arm", "epsilon", "beta")
        part, model, skew, arm, epsilon, beta = (row[name] for name in names)
        cells.setdefault((part, model, skew, arm, epsilon, beta), {})[row["seed"]] = row
    lines = [
        "| part | model | sites | beta | epsilon | arm | test images | sites' own | gain | gain, sites' own | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (part, model, skew, arm, epsilon, beta), own in sorted(cells.items(), key=lambda item: (*item[0][:3], item[0][5])):
        found = [_shown([row[name] for row in own.values()]) for name in ("clean", "local")]
        base = cells.get(("main" if part != "private" else part, model, skew, _base(part, arm), epsilon, beta), {})
        both = sorted(set(own) & set(base))
        gains = [_shown([own[seed][name] - base[seed][name] for seed in both], sign=True) for name in ("clean", "local")]
        shown = "none" if epsilon == "inf" else epsilon
        lines.append(line([part, model, skew, beta, shown, arm, *found, *gains, len(own)]))
    return "\n".join(lines)


def _base(part: str, arm: str) -> str:
    if part == "private":
        return arm.split(",")[0]
    whole = "all" in arm.split(",", 1)[1]
    return "FedAvg, all records" if whole else "FedAvg, S_k"


def _shown(values: Sequence[float], *, sign: bool = False) -> str:
    return mean_with_error(values, 2, sign=sign) if values else ""


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m evaluations fedalign", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds mnist/mnist.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for rows.jsonl and table.md")
    parser.add_argument("--parts", nargs="+", choices=("main", "ablation", "private"), default=["main", "ablation", "private"])
    parser.add_argument("--model", choices=list(MODELS), default="lenet5", help="parts to run: main, ablation")
    parser.add_argument("--skew", choices=SKEWS, default="noise")
    parser.add_argument("--betas", nargs="+", type=float, default=[0.05, 0.1], help="variances")
    arms = [arm.name for arms in (*TRAINING.values(), PRIVATE) for arm in arms]
    parser.add_argument("--arms", nargs="+", choices=arms, metavar="ARM", help="only these of a part")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--records", type=int, default=600, help="records of a site, on average")
    parser.add_argument("--tests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--steps", type=int, default=50, help="of private training; a round of fedavg has five")
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0, 8.0, math.inf])
    parser.add_argument("--table", action="store_true", help="run nothing: only the table of the rows in --out")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Run what is not in the folder yet, keep every result as a line of JSON, and print the table."""
    chosen = parsed(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "rows.jsonl"
    if not chosen.table:
        with np.load(chosen.data / "mnist" / "mnist.npz") as arrays:
            append_rows(file, measure(dict(arrays), chosen, {row["key"] for row in read_rows(file)}))
    text = table(read_rows(file))
    (chosen.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)
