"""References of alignment before FedCGS, one-shot, and what ``reference = "auto"`` takes: ``python -m evaluations reference``.

Each release is taken once, and heads are made of it without an alignment, after ``two-way`` and after ``slopes``; what "auto"
takes is one of these. Data: digits of four origins and photographs of four cameras on their principal components, four
hospitals, packaged data dealt out at random, and normal classes at six sites whose instruments differ, or whose patients do.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilsum_aggregation import moments
from veilsum_aggregation.gaussian import AffineMap
from veilsum_coordinator.methods.fedcgs import FedCGSParameters, discriminant
from veilsum_coordinator.parts.alignment import LABEL, AlignmentParameters
from veilsum_coordinator.parts.federation import Release
from veilsum_coordinator.parts.joint_moments import joined
from veilsum_coordinator.parts.reference_choice import choose_reference
from veilsum_coordinator.parts.references import two_way_reference
from veilsum_deploy.collections import Collection, Domain, load_collection, single
from veilsum_deploy.datasets import TableWithSchema, packaged_dataset
from veilsum_deploy.simulation.deal import Deal, Setting, deal, site_names
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.scores import labelled
from veilsum_deploy.simulation.study import SimulationDraft, compiled, draft_of
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.study.study import Study

Floats = NDArray[np.float64]

ALIGNED: tuple[Literal["two-way", "slopes"], ...] = ("two-way", "slopes")
REFERENCES = ("none", *ALIGNED)
MADE = {
    "instruments": (5, 16, 600, 0.8, 0.25),
    "offsets": (5, 16, 600, 0.6, 0.0),
    "alike": (5, 16, 600, 0.0, 0.0),
    "two-offsets": (2, 12, 400, 0.7, 0.0),
    "patients": (2, 12, 400, 0.0, 0.0),
}
"""Classes, features, records of a site, standard deviations of shifts and of slopes; sites of "patients" are shifted along
what tells the ill apart, the more the more of them are ill."""

REAL = {
    "digits4, Dirichlet 0.1": ("digits4", "pca-digits4", Setting("domains+dirichlet:0.1", cap=3000)),
    "digits4, Dirichlet 0.5": ("digits4", "pca-digits4", Setting("domains+dirichlet:0.5", cap=3000)),
    "Office, all records": ("office-caltech10", "pca-office", Setting("domains", split=7)),
    "Office, Dirichlet 0.5": ("office-caltech10", "pca-office", Setting("domains+dirichlet:0.5", split=7)),
    "heart disease": ("heart-disease", None, Setting("domains")),
    "digits, iid": ("digits", None, Setting("iid", sites=4, holdout=0.3)),
    "breast cancer, iid": ("breast-cancer", None, Setting("iid", sites=4, holdout=0.3)),
}
SITES, TESTS = 6, 800


def made(kind: str, seed: int) -> Collection:
    """Six sites of normal classes, in columns from -1 to 1."""
    classes, width, records, shift, slope = MADE[kind]
    rng = np.random.default_rng((seed, 59))
    means = rng.standard_normal((classes, width)) / (1.0 if classes > 2 else 1.5)
    factor = rng.standard_normal((width, width))
    root = np.linalg.cholesky(0.3 * np.eye(width) + 0.7 * factor @ factor.T / width)
    schema = DatasetSchema(
        columns=tuple(NumberColumn(name=f"x{number}", low=-1, high=1) for number in range(width)),
        label=LabelColumn(
            column="y", classes=tuple(ClassValues(name=f"c{number}", values=(str(number),)) for number in range(classes))
        ),
        max_records=1000,
    )
    domains = []
    for site in range(SITES):
        turned = np.eye(width) + slope * rng.standard_normal((width, width)) * 2.0 / np.sqrt(width)
        moved, frequencies = shift * rng.standard_normal(width), rng.dirichlet(np.ones(classes))
        if kind == "patients":
            how_ill = rng.normal()
            moved, ill = 0.5 * how_ill * (means[1] - means[0]), 1.0 / (1.0 + np.exp(-1.5 * how_ill))
            frequencies = np.array([1.0 - ill, ill])
        parts = []
        for number in (records, TESTS):
            labels = rng.choice(classes, number, p=frequencies)
            x = ((means[labels] + rng.standard_normal((number, width)) @ root.T) @ turned.T + moved) / 5.0
            columns = {f"x{index}": column for index, column in enumerate(np.clip(x, -1.0, 1.0).T)}
            parts.append(TableWithSchema(kind, schema, pa.table({**columns, "y": labels.astype(str)})))
        domains.append(Domain(f"site-{site}", parts[0], parts[1]))
    return Collection(kind, schema, tuple(domains))


def source(name: str, seed: int, data: Path) -> tuple[Collection, str | None, Setting]:
    """A data set, the projection of its features, and how it is dealt."""
    if name in MADE:
        return made(name, seed), None, Setting("domains")
    collection, encoder, setting = REAL[name]
    if collection in ("digits", "breast-cancer"):
        return single(packaged_dataset(collection)), encoder, setting
    folder = {"office-caltech10": "office_caltech10", "heart-disease": "heart_disease"}.get(collection, collection)
    return load_collection(collection, data / folder), encoder, setting


def released(
    collection: Collection, encoder: Path | None, setting: Setting, epsilon: float | None, seed: int
) -> tuple[Study, Release, SimulationDraft, Deal]:
    """The release of a study's alignment, and what it was made from."""
    content: dict[str, Any] = {
        "name": "reference",
        "method": "fedcgs",
        "dataset": "evaluation",
        "parameters": {"alignment": {"mode": "one-shot"}},
        "privacy": {"noise": "none"} if epsilon is None else {"epsilon": epsilon, "delta": 1e-5},
    }
    if encoder is not None:
        content["encoder"] = {"result": str(encoder.resolve())}
    schema = collection.schema
    if setting.most_records is not None and setting.most_records < schema.max_records:
        schema = schema.model_copy(update={"max_records": setting.most_records})
    draft = draft_of(content, Path.cwd(), schema, source="the evaluation")
    dealt = deal(collection, setting, seed, site_names(collection, setting))
    study = compiled(draft, "0" * 64, list(dealt.training), lambda: int(time.time()))
    sites = {name: PlainSite(dataset.records) for name, dataset in dealt.training.items()}
    return study, PlainFederation(study, sites, draft.broadcast).sum(LABEL), draft, dealt


def accuracy(study: Study, release: Release, maps: Sequence[AffineMap] | None, draft: SimulationDraft, dealt: Deal) -> float:
    """Percent of test records that FedCGS's head tells rightly after the maps, by domain; 0 where there is no head."""
    joint = joined(release, maps)
    std = joint.noise_std["counts"]
    known = [index for index, number in enumerate(joint.values["counts"]) if not moments.within_noise(float(number), std)]
    if not known:
        return 0.0
    head = discriminant(joint, study.data, known, FedCGSParameters())[0]
    shares = []
    for domain, dataset in dealt.tests.items():
        records = draft.encode(labelled(dataset.records))
        used = records.present.all(axis=1)
        labels = np.zeros(0) if records.labels is None else records.labels[used]
        own = []
        for site in dealt.sites_of(domain):
            mapped = AffineMap.identity(records.features.shape[1]) if maps is None else maps[release.cohort.index(site)]
            predicted = head.predict(records.features[used] @ mapped.matrix.T + mapped.offset)
            own.append(float(np.mean(np.array(known)[predicted] == labels)))
        shares.append(statistics.fmean(own))
    return 100.0 * statistics.fmean(shares)


def rows(name: str, epsilon: float | None, seeds: Sequence[int], data: Path, encoders: Path) -> Iterator[dict[str, Any]]:
    """Of each seed, the accuracy of each reference and what "auto" takes."""
    own = AlignmentParameters()
    for seed in seeds:
        collection, encoder, setting = source(name, seed, data)
        folder = None if encoder is None else encoders / encoder / "run-1"
        study, release, draft, dealt = released(collection, folder, setting, epsilon, seed)
        found: dict[str, Any] = {"none": accuracy(study, release, None, draft, dealt)}
        for kind in ALIGNED:
            fitted = two_way_reference(release, tau=float(own.tau), shrinkage="auto", rounds=10, kind=kind)
            found[kind] = accuracy(study, release, None if fitted is None else fitted.maps, draft, dealt)
        yield {**found, "chosen": choose_reference(release, tau=float(own.tau), shrinkage="auto", rounds=10)[0]}


def main(arguments: Sequence[str]) -> None:
    """Print a row for each data set and epsilon."""
    parser = argparse.ArgumentParser(prog="python -m evaluations reference", description=__doc__)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder that holds digits4, office_caltech10 and heart_disease"
    )
    parser.add_argument("--encoders", type=Path, required=True, help="folder with the results pca-digits4 and pca-office")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=200)
    parser.add_argument("--names", nargs="*", default=[*REAL, *MADE], choices=[*REAL, *MADE])
    parser.add_argument("--epsilons", nargs="*", type=float, default=[8.0, 3.0], help="besides none")
    chosen = parser.parse_args(arguments)
    print("| data | epsilon | none | two-way | slopes | auto | below the best | taken |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |")
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    for name in chosen.names:
        for epsilon in (None, *chosen.epsilons):
            found = list(rows(name, epsilon, seeds, chosen.data, chosen.encoders))
            means = {kind: statistics.fmean(row[kind] for row in found) for kind in REFERENCES}
            best = max(means, key=lambda kind: means[kind])
            losses = [row[best] - row[row["chosen"]] for row in found]
            error = statistics.stdev(losses) / len(losses) ** 0.5 if len(losses) > 1 else 0.0
            taken = ", ".join(
                f"{kind} {number}" for kind in REFERENCES if (number := sum(row["chosen"] == kind for row in found))
            )
            cells = [f"{means[kind]:.1f}" for kind in REFERENCES]
            auto = statistics.fmean(row[row["chosen"]] for row in found)
            print(
                f"| {name} | {'none' if epsilon is None else f'{epsilon:g}'} | {' | '.join(cells)} | {auto:.1f} "
                f"| {statistics.fmean(losses):.2f} ± {error:.2f} | {taken} |",
                flush=True,
            )
