"""HFedATM on four origins of digits: a LeNet-5 by stations, tested also on the one origin that no station has.

Each of three origins is a station of three clients; the fourth is left out, every one in turn. Stations train under FedAvg,
FedProx, FedSR or FedIIR. Two courses: stations that begin with different values and are merged once, at the end; and stations
that begin alike and are merged every few rounds. A merge is the mean, the mean of renumbered filters (FOT), the mean but for
fused Linear layers (RegMean), or both.

Training is not private here, to see what noise on the Grams alone does, as HFedATM's authors did: two studies run side by
side on the same sites, one without noise that trains, and one that releases all Grams with the noise of the stated epsilon.
What both run is the method "hfedatm" as it stands. One more row has noise on everything, in one study.

Tables of the evaluation of HFedATM, from its rows: one over all baselines, one by baseline.
"""

import argparse
import hashlib
import itertools
import math
import statistics
import time
from collections.abc import Collection as Names
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evaluations.tables import append_rows, line, mean_with_error, read_rows
from veilsum.compile import StudyDraft, StudyRequest, draft_study
from veilsum.quantisation import plan_grid
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.methods.hfedatm import GRAMS, HFedATMParameters
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_deploy.collections import Collection, load_collection
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.accounting.figures import calibrate_noise_multiplier
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.results.result import Result
from veilsum_privacy.securesum.context import broadcast_digest, encode_broadcast
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.predict import scores

Row = Mapping[str, Any]

PRIVATE = "all private"
"""The baseline of rows in which training has noise as well."""

CLIENTS, DELTA = 3, 1e-5
BASELINES = {"FedAvg": "none", "FedProx": "prox", "FedSR": "sr", "FedIIR": "iir"}
MODEL_SPEC = {"name": "lenet5", "inputs": [1, 16, 16]}


class Merging(NamedTuple):
    """A merge: which parts, and epsilon of the Grams; infinite without noise."""

    filters: bool
    regmean: bool
    epsilon: float = math.inf

    @property
    def name(self) -> str:
        """As in the tables."""
        parts = [name for name, used in (("FOT", self.filters), ("RegMean", self.regmean)) if used]
        return " + ".join(parts) or "average"


def mergings(start: str, epsilons: Sequence[float]) -> list[Merging]:
    """The merges that are compared. From a shared start FOT changes nothing, which is checked once, without noise."""
    found = [Merging(False, False), Merging(True, False), Merging(False, True), Merging(True, True)]
    for epsilon in epsilons:
        found += [Merging(False, True, epsilon)] + ([Merging(True, True, epsilon)] if start == "independent" else [])
    return found


@dataclass(frozen=True)
class EvaluationOptions:
    """What is run.

    Attributes:
        records: of a client.
        tests: most test records of an origin.
        parameters: of the method, beside stations, objective, start and merge.
        every: rounds after which stations that begin alike are merged.
    """

    records: int
    tests: int
    parameters: Mapping[str, Any]
    every: int = 1


@dataclass(frozen=True)
class StationClients:
    """Clients by station, and records to test on by origin."""

    schema: DatasetSchema
    stations: dict[str, tuple[str, ...]]
    records: dict[str, Records]
    tests: dict[str, Records]


def deal(collection: Collection, left_out: str, options: EvaluationOptions, seed: int) -> StationClients:
    """Three clients for each origin but one, of equally many records each, drawn at random; tests of all origins."""
    stations, records, tests = {}, {}, {}
    for number, domain in enumerate(collection.domains):
        rng = np.random.default_rng((seed, number))
        if domain.test is not None:
            kept = rng.permutation(domain.test.table.num_rows)[: options.tests]
            tests[domain.name] = domain.test.take(kept).records
        if domain.name == left_out:
            continue
        names = tuple(f"{domain.name}-{client}" for client in range(1, CLIENTS + 1))
        drawn = rng.permutation(domain.train.table.num_rows)[: CLIENTS * options.records]
        for name, rows in zip(names, np.array_split(drawn, CLIENTS), strict=True):
            records[name] = domain.train.take(rows).records
        stations[domain.name] = names
    schema = collection.schema.model_copy(update={"max_records": options.records})
    return StationClients(schema, stations, records, tests)


class RememberedSums:
    """Sums of a study without noise, which are a function of label, broadcast and members: computed once, over many runs."""

    def __init__(self) -> None:
        self._sums: dict[bytes, Release] = {}

    def sum(self, federation: PlainFederation, label: str, broadcast: Mapping[str, Floats], members: Names[str]) -> Release:
        """The sum, by ``federation`` if it is new."""
        whole = f"{label} {sorted(members)}".encode() + broadcast_digest(encode_broadcast(broadcast))
        key = hashlib.sha256(whole).digest()
        if key not in self._sums:
            self._sums[key] = federation.sum(label, broadcast, members=members)
        return self._sums[key]


class SideBySide(Federation):
    """Two studies on the same sites as one federation: Grams come from one with noise, all else from one without."""

    def __init__(self, plain: PlainFederation, noised: PlainFederation | None, memory: RememberedSums) -> None:
        super().__init__(plain.study)
        self._plain, self._noised, self._memory = plain, noised, memory

    def sum(self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Names[str] | None = None) -> Release:
        if label == GRAMS and self._noised is not None:
            return self._noised.sum(label, broadcast, members=members)
        return self._memory.sum(self._plain, label, broadcast or {}, members or ())


def drafted(
    sites: StationClients, options: EvaluationOptions, objective: str, start: str, merging: Merging, **privacy: Any
) -> StudyDraft:
    """The study as asked for."""
    parameters = {
        "model": MODEL_SPEC,
        **options.parameters,
        "stations": sites.stations,
        "objective": {"name": objective},
        "start": start,
        "merge": {"filters": merging.filters, "regmean": merging.regmean, "every": options.every},
    }
    demand = {"delta": DELTA, "min_cohort": CLIENTS, **privacy}
    request = StudyRequest.model_validate(
        {"name": "hfedatm", "method": "hfedatm", "dataset": "digits4", "data": sites.schema, "parameters": parameters}
        | {"privacy": demand}
    )
    names = sorted(sites.records)
    return draft_study(
        request,
        federation_id="0" * 64,
        coordinator="coordinator",
        participants=names,
        clock=lambda: int(time.time()),
        random=SYSTEM_RANDOM,
    )


def grams_alone(draft: StudyDraft, epsilon: float) -> Study:
    """The study's Grams as a study of their own, with noise for ``epsilon`` over all their releases."""
    plan = next(plan for plan in draft.plans if plan.label == GRAMS)
    multiplier = calibrate_noise_multiplier(epsilon, DELTA, plan.releases)
    members, values = len(draft.members), build_task(plan.task, plan.parameters.model_dump(mode="json"), draft.schema)
    grid = plan_grid(
        max_records=draft.schema.max_records,
        participants=members,
        multiplier=multiplier,
        honest=members - 1,
        values=values.layout().size,
    )
    task = plan.declaration(grid=grid.grid, variance=grid.variance)
    whole = draft.compile().model_dump()
    whole["privacy"] |= {"epsilon": epsilon, "noise": "distributed", "cohort_difference": "allowed"}
    return Study.model_validate({**whole, "tasks": [task.model_dump()]})


def accuracies(result: Result, sites: StationClients) -> dict[str, float]:
    """Percent of each origin's test records that a result classifies rightly."""
    architecture = build_architecture(
        ModelSpec.model_validate(result.application["head"]["model"]), sites.schema.width, len(sites.schema.classes)
    )
    arrays = {name.removeprefix(MODEL): array for name, array in result.arrays.items() if name.startswith(MODEL)}
    found = {}
    for domain, records in sites.tests.items():
        predicted = scores(architecture, arrays, records.features).argmax(axis=1)
        found[domain] = 100.0 * float(np.mean(predicted == records.labels))
    return found


def run(
    sites: StationClients, options: EvaluationOptions, objective: str, start: str, merging: Merging, memory: RememberedSums
) -> dict[str, Any]:
    """One result: accuracies by origin, what moved in merges, and the epsilon of the Grams."""
    draft = drafted(sites, options, objective, start, merging, noise="none")
    places = {name: PlainSite(own) for name, own in sites.records.items()}
    noised = grams_alone(draft, merging.epsilon) if math.isfinite(merging.epsilon) else None
    beside = None if noised is None else PlainFederation(noised, places)
    result = get_method("hfedatm").run(SideBySide(PlainFederation(draft.compile(), places), beside, memory))
    return {
        "accuracies": accuracies(result, sites),
        "moved": [merge["moved"] for merge in result.summary["merges"]],
        "epsilon_grams": None if noised is None else study_epsilon(noised, DELTA),
        "epsilon_training": None,
    }


def run_private(sites: StationClients, options: EvaluationOptions, epsilon: float, merging: Merging) -> dict[str, Any]:
    """One result of a study with noise on everything."""
    private = {"local_steps": 4, "sampling_rate": 0.25, "gradient_clip": 1.0, "learning_rate": 0.5}
    own = replace(options, parameters={**options.parameters, **private})
    study = drafted(sites, own, "none", "shared", merging, epsilon=epsilon).compile()
    places = {name: PlainSite(records) for name, records in sites.records.items()}
    result = get_method("hfedatm").run(PlainFederation(study, places))
    spent = result.summary["epsilon"]
    return {
        "accuracies": accuracies(result, sites),
        "moved": [merge["moved"] for merge in result.summary["merges"]],
        "epsilon_grams": spent["grams"],
        "epsilon_training": spent["training"],
        "epsilon_total": spent["total"],
    }


def measure(collection: Collection, options: EvaluationOptions, chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every result, one after the other."""
    names = [domain.name for domain in collection.domains]
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    for seed, left_out in itertools.product(seeds, chosen.domains or names):
        own = replace(options, parameters={**options.parameters, "seed": seed})
        slower = replace(own, parameters={**own.parameters, "learning_rate": chosen.shared_rate})
        longer = replace(own, parameters={**own.parameters, "epochs": chosen.long_epochs})
        sites = deal(collection, left_out, own, seed)
        about = {"seed": seed, "left_out": left_out}
        for baseline in chosen.baselines:
            memory = RememberedSums()
            by_start = {"shared": slower, "independent": longer}
            for start in chosen.starts:
                for merging in mergings(start, chosen.epsilons):
                    began = time.monotonic()
                    found = run(sites, by_start[start], BASELINES[baseline], start, merging, memory)
                    row = {"baseline": baseline, "start": start, "merge": merging.name, "epsilon": merging.epsilon}
                    yield {**about, **row, **found, "seconds": time.monotonic() - began}
        if chosen.private:
            for merging in (Merging(False, False), Merging(False, True)):
                found = run_private(sites, own, chosen.private, merging)
                row = {"baseline": PRIVATE, "start": "shared", "merge": merging.name, "epsilon": chosen.private}
                yield {**about, **row, **found}


def main(arguments: Sequence[str]) -> None:
    """Run, keep every result as a line of JSON, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m evaluations hfedatm", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds digits4/digits4_16.npz")
    parser.add_argument("--out", type=Path, required=True, help="folder for rows.jsonl and table.md")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--records", type=int, default=150, help="of a client")
    parser.add_argument("--tests", type=int, default=500, help="most test records of an origin")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=1, help="of a client in a round")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate of independent stations")
    parser.add_argument("--shared-rate", type=float, default=0.05, help="of stations that begin alike")
    parser.add_argument("--every", type=int, default=3, help="rounds after which stations that begin alike are merged")
    parser.add_argument("--long-epochs", type=int, default=3, help="epochs where stations start independently")
    parser.add_argument("--table", action="store_true", help="run nothing: only the table of the rows in --out")
    parser.add_argument("--gram-clip", type=float, default=1.0)
    parser.add_argument("--baselines", nargs="*", choices=list(BASELINES), default=list(BASELINES))
    parser.add_argument("--starts", nargs="+", choices=("independent", "shared"), default=["independent", "shared"])
    parser.add_argument("--domains", nargs="+", help="origins to leave out; by default each in turn")
    parser.add_argument("--epsilons", nargs="*", type=float, default=[10.0, 1.0, 0.1], help="of the Grams, besides infinite")
    parser.add_argument("--private", type=float, help="epsilon of one more row, in which everything has noise")
    chosen = parser.parse_args(arguments)
    training = {
        "rounds": chosen.rounds,
        "epochs": chosen.epochs,
        "batch": chosen.batch,
        "learning_rate": chosen.rate,
        "gram_clip": chosen.gram_clip,
    }
    HFedATMParameters.model_validate({"model": MODEL_SPEC, "stations": {}, **training})
    options = EvaluationOptions(chosen.records, chosen.tests, training, chosen.every)
    collection = load_collection("digits4", chosen.data / "digits4")
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "rows.jsonl"
    if not chosen.table:
        file.unlink(missing_ok=True)
        append_rows(file, ({**row, "epsilon": str(row["epsilon"])} for row in measure(collection, options, chosen)))
    text = tables([{**row, "epsilon": float(row["epsilon"])} for row in read_rows(file)])
    (chosen.out / "table.md").write_text(text + "\n", encoding="utf-8")
    print(text)


class RowKind(NamedTuple):
    """Rows of one kind: a course of training, a merge, and the epsilon of its Grams, infinite without noise."""

    start: str
    merge: str
    epsilon: float

    @property
    def words(self) -> list[str]:
        """Its cells."""
        released = "none released" if "RegMean" not in self.merge else "infinite" if math.isinf(self.epsilon) else None
        return [self.start, self.merge, released or f"{self.epsilon:g}"]


def split(row: Row) -> tuple[float, float]:
    """Mean accuracy on the stations' origins, and accuracy on the one left out, in percent."""
    sources = [value for domain, value in row["accuracies"].items() if domain != row["left_out"]]
    return statistics.fmean(sources), row["accuracies"][row["left_out"]]


def gain(row: Row, rows: Sequence[Row]) -> tuple[float, float]:
    """How much better it is than the average of the same stations' models, on the stations' origins and on the other."""
    same = ("seed", "left_out", "baseline", "start")
    base = next(one for one in rows if one["merge"] == "average" and all(one[key] == row[key] for key in same))
    own, other = split(row), split(base)
    return own[0] - other[0], own[1] - other[1]


def tables(rows: Sequence[Row]) -> str:
    """The tables as Markdown.

    Figures behind a plus-minus are standard errors over pairs of a seed and an origin left out, of which each is the mean over
    its baselines: these share records and first values, and are not independent of each other.
    """
    plain = [row for row in rows if row["baseline"] != PRIVATE]
    kinds = list(dict.fromkeys(_kind(row) for row in plain))
    kinds.sort(key=lambda kind: kind.start)
    names = list(dict.fromkeys(row["baseline"] for row in plain))
    first = [line(["start", "merge", "epsilon of Grams", "sources", "left out", "gain, sources", "gain, left out", "runs"])]
    second = [line(["start", "merge", "epsilon of Grams", *names])]
    for lines in (first, second):
        lines.append(line(["---"] * lines[0].count(" | ") + ["---"]))
    for kind in kinds:
        own = [row for row in plain if _kind(row) == kind]
        first.append(line([*kind.words, *_figures(own, plain, empty=kind.merge == "average"), str(len(own))]))
        cells = []
        for name in names:
            part = [row for row in own if row["baseline"] == name]
            of = [split(row) if kind.merge == "average" else gain(row, plain) for row in part]
            sign = kind.merge != "average"
            cells.append(" / ".join(_mean([pair[side] for pair in of], sign=sign) for side in (0, 1)) if of else "")
        second.append(line([*kind.words, *cells]))
    parts = ["\n".join(first), "\n".join(second)]
    if private := [row for row in rows if row["baseline"] == PRIVATE]:
        parts.append(_private(private))
    return "\n\n".join(parts)


def _private(rows: Sequence[Row]) -> str:
    heads = ["merge", "epsilon of training", "of Grams", "in all", "sources", "left out", "gain, sources", "gain, left out"]
    lines = [line(heads), line(["---"] * len(heads))]
    for merge in dict.fromkeys(row["merge"] for row in rows):
        own = [row for row in rows if row["merge"] == merge]
        spent = [own[0][f"epsilon_{part}"] for part in ("training", "grams", "total")]
        told = [f"{value:.3g}" if value else "none released" for value in spent]
        lines.append(line([merge, *told, *_figures(own, rows, empty=merge == "average")]))
    return "\n".join(lines)


def _kind(row: Row) -> RowKind:
    return RowKind(row["start"], row["merge"], row["epsilon"])


def _figures(own: Sequence[Row], rows: Sequence[Row], *, empty: bool) -> list[str]:
    """Accuracies and gains with their standard errors."""
    reached = _clustered(own, [split(row) for row in own])
    found = [_mean([pair[side] for pair in reached], error=True) for side in (0, 1)]
    if empty:
        return [*found, "", ""]
    gained = _clustered(own, [gain(row, rows) for row in own])
    return found + [_mean([pair[side] for pair in gained], error=True, sign=True) for side in (0, 1)]


def _clustered(rows: Sequence[Row], pairs: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Means over the baselines of each seed and origin left out."""
    clusters: dict[tuple[Any, Any], list[tuple[float, float]]] = {}
    for row, pair in zip(rows, pairs, strict=True):
        clusters.setdefault((row["seed"], row["left_out"]), []).append(pair)
    return [
        (statistics.fmean(one for one, _ in found), statistics.fmean(other for _, other in found))
        for found in clusters.values()
    ]


def _mean(values: Sequence[float], *, error: bool = False, sign: bool = False) -> str:
    return mean_with_error(values if error else [statistics.fmean(values)], sign=sign)
