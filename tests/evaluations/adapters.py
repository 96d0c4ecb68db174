"""Blocks of a transformer, on topics of short texts: ``python -m evaluations.adapters --out DIR --parts adapters --runs 10``.

Corpus, tokenizer and sites are those of :mod:`evaluations.texts`. The frozen network is one block of a transformer that
tells, from its first word's output, which tokens were left out of a public text; what lies below it makes the records'
words.

- ``adapters``: a linear head on the block's output, or adapters of the block with a head, by ``fedsgd`` at the same epsilon.
- ``projection``: adapters' gradients whole, and projected to fewer values, at the same epsilon.
- ``fusion``: two stations of two sites train a block of their own on the words, without noise, and ``hfedatm`` merges them: by
  the mean, by RegMean of its Linear layers, with hidden units renumbered; beside each site alone and all texts in one place.
"""

import argparse
import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import save_file

from evaluations.hfedatm import RememberedSums, SideBySide
from evaluations.studies import compile_for_sites, complete_records
from evaluations.tables import append_rows, line, mean_with_error, print_table, read_rows
from evaluations.texts import CLASSES, LENGTH, SITES, VOCABULARY, WIDTH, read_corpus
from veilsum.compile import StudyRequest
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.simulation.baselines import CentralFederation
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.arrays import load
from veilsum_privacy.training.models import ModelSpec, build_architecture
from veilsum_privacy.training.weights import offer

EPSILONS = (None, 1.0, 3.0, 8.0)
BLOCK = ModelSpec(name="block", inputs=(LENGTH, WIDTH), options={"heads": 2, "hidden": 2 * WIDTH})
LAYERS = ("features.query", "features.out", "features.first", "features.second")
RATIOS = (4, 10)
PARTS = ("adapters", "projection", "fusion")
STATIONS = {"one": SITES[:2], "two": SITES[2:]}
MERGES = {
    "average": {"filters": False, "regmean": False},
    "RegMean": {"filters": False, "regmean": True},
    "hidden units renumbered": {"filters": True, "units": True, "regmean": False},
    "hidden units renumbered, RegMean": {"filters": True, "units": True, "regmean": True},
}


@dataclass(frozen=True)
class Arm:
    """What is compared.

    Attributes:
        name: as in the tables; gains are over the part's first arm.
        program: what makes the records' features, ``words`` or the block's output.
        epsilons: of the study; None for no noise.
        records: those of the study's sites, of each of them alone, or of all in one place.
    """

    name: str
    program: Literal["words", "features"]
    parameters: Mapping[str, Any]
    method: str = "fedsgd"
    epsilons: tuple[float | None, ...] = EPSILONS
    records: Literal["sites", "alone", "together"] = "sites"


def arms(part: str, sha256: str, chosen: argparse.Namespace) -> Iterator[Arm]:
    """The arms of a part; ``sha256`` is that of the file of frozen weights."""
    if part == "fusion":
        training = {"rounds": chosen.rounds, "batch": 32, "learning_rate": chosen.rate, "model": BLOCK.model_dump(mode="json")}
        for start, merges in (("shared", [*MERGES][:2]), ("independent", [*MERGES])):  # from a shared start no unit moves
            about = {**training, "start": start, "stations": STATIONS, "gram_clip": 30.0, "layers": [*LAYERS, "head"]}
            for name, merge in ((name, MERGES[name]) for name in merges):
                yield Arm(f"{start} start, {name}", "words", {**about, "merge": merge}, "hfedatm", (None,))
        yield Arm("each site alone", "words", training, "fedavg", (None,), "alone")
        yield Arm("all in one place", "words", training, "fedavg", (None,), "together")
        slower = {**training, "learning_rate": chosen.rate / len(SITES)}
        yield Arm("all in one place, a quarter of the rate", "words", slower, "fedavg", (None,), "together")
        fewer = {**training, "rounds": max(1, chosen.rounds // len(SITES))}
        yield Arm("all in one place, as many steps as a site", "words", fewer, "fedavg", (None,), "together")
        return
    options = {"of": "block", "options": BLOCK.options, "weights": sha256, "layers": [*LAYERS], "rank": chosen.rank}
    adam = {"optimiser": {"name": "adam", "learning_rate": 0.02}, "steps": chosen.steps}
    adapters = {"model": {"name": "adapters", "inputs": [LENGTH, WIDTH], "options": options}, **adam}
    if part == "projection":
        yield Arm("whole", "words", adapters, epsilons=EPSILONS[1:])
        for ratio in RATIOS:
            yield Arm(f"ratio {ratio}", "words", {**adapters, "projection": {"ratio": ratio}}, epsilons=EPSILONS[1:])
        return
    yield Arm("head alone, as by default", "features", {"steps": chosen.steps})
    yield Arm("head alone, Adam", "features", adam)
    yield Arm(f"adapters of rank {chosen.rank}, Adam", "words", adapters)


class Below(torch.nn.Module):
    """Words (n, LENGTH, WIDTH) of tokens (n, LENGTH): one that stands for the text, then the tokens' but for the last."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY + 1, WIDTH, padding_idx=0)
        self.text = torch.nn.Parameter(torch.ones(1, 1, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.text.expand(len(tokens), 1, WIDTH), self.embedding(tokens[:, :-1])], dim=1)


class Frozen(torch.nn.Module):
    """What a program makes of scaled columns (1, LENGTH): words (1, LENGTH * WIDTH); with ``block``, its output (1, WIDTH)."""

    def __init__(self, below: Below, block: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.below, self.block = below, block

    def forward(self, scaled: torch.Tensor) -> torch.Tensor:
        words = self.below(torch.round((scaled + 1.0) * (VOCABULARY / 2.0)).long())
        found: torch.Tensor = words.reshape(len(scaled), -1) if self.block is None else self.block(words.flatten(1))
        return found


def pretrained(tokens: torch.Tensor, steps: int) -> tuple[Below, torch.nn.Module]:
    """What lies below the block, and the block's features: trained on public texts (n, LENGTH) to tell tokens left out."""
    torch.manual_seed(0)
    architecture = build_architecture(BLOCK, LENGTH * WIDTH, len(CLASSES))
    below, network = Below(), architecture.network()
    load(network, architecture.initial(0))
    guess = torch.nn.Linear(WIDTH, VOCABULARY + 1)
    block = network.features
    optimiser = torch.optim.Adam([*below.parameters(), *block.parameters(), *guess.parameters()], 3e-3)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (32,))]
        hidden = (torch.rand(batch.shape) < 0.15) & (batch != 0)
        told = guess(block(below(torch.where(hidden, 1, batch)).flatten(1)))  # 1 is the tokenizer's unknown token
        wanted = torch.zeros_like(told).scatter_(1, torch.where(hidden, batch, 0), 1.0)
        wanted[:, 0] = 0.0
        loss = torch.nn.functional.binary_cross_entropy_with_logits(told, wanted)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return below.eval(), block.eval()


@dataclass(frozen=True)
class Texts:
    """Texts as sites hold them, and what is frozen.

    Attributes:
        schema: of tokens, with the topic.
        records: all texts that are not public; ``features`` (n, LENGTH) are tokens scaled to [-1, 1].
        networks: what makes features, by the programs' names; ``clips`` are norms that one in twenty public texts exceeds.
        base: SHA-256 of the file of the block's weights, which this process knows.
        public: how many texts all of this was made of.
    """

    schema: DatasetSchema
    records: Records
    networks: Mapping[str, torch.nn.Module]
    clips: Mapping[str, float]
    base: str
    public: int
    encoded: dict[str, Floats] = field(default_factory=dict)

    def features(self, program: str) -> Floats:
        """What a program makes of all texts."""
        if program not in self.encoded:
            self.encoded[program] = encode(self.networks[program], self.records.features)
        return self.encoded[program]


def encode(network: torch.nn.Module, scaled: Floats) -> Floats:
    """Features (n, width) of scaled tokens (n, LENGTH), in float32 as a site computes them."""
    with torch.no_grad():
        found: Floats = network(torch.from_numpy(scaled).float()).numpy().astype(np.float64)
    return found


def prepared(folder: Path, steps: int, directory: Path) -> Texts:
    """Train tokenizer, words and block on public texts, and read the others."""
    known, columns, tokens, topics = read_corpus(folder, directory)
    below, block = pretrained(torch.from_numpy(known).long(), steps)
    base = directory / "base.safetensors"
    save_file({f"features.{name}": value.detach().contiguous() for name, value in block.named_parameters()}, base)
    sha256 = hashlib.sha256(base.read_bytes()).hexdigest()
    offer(sha256, base)
    networks = {"words": Frozen(below).float(), "features": Frozen(below, block).float()}
    scale = 2.0 / VOCABULARY
    clips = {
        name: float(np.quantile(np.linalg.norm(encode(network, known * scale - 1.0), axis=1), 0.95))
        for name, network in networks.items()
    }
    label = LabelColumn(column="topic", classes=tuple(ClassValues(name=name, values=(name,)) for name in CLASSES))
    schema = columns.model_copy(update={"label": label, "max_records": 4000})
    labels = np.array([CLASSES.index(name) for name in topics], dtype=np.int64)
    return Texts(schema, complete_records(tokens * scale - 1.0, labels), networks, clips, sha256, len(known))


def study(arm: Arm, epsilon: float | None, texts: Texts, expected: int) -> Study:
    """The study of an arm; nobody signs it."""
    privacy: dict[str, Any] = {"noise": "none"} if epsilon is None else {"epsilon": epsilon}
    encoder = {"kind": "program", "format": "exported", "sha256": "0" * 64, "inputs": [LENGTH]}
    content = {
        "name": "texts",
        "method": arm.method,
        "dataset": "texts",
        "data": texts.schema,
        "encoder": {**encoder, "width": texts.features(arm.program).shape[1]},
        "expected_records": expected,
        "parameters": {"clip": texts.clips[arm.program], **arm.parameters},
        "privacy": {**privacy, **({"min_cohort": 2} if arm.method == "hfedatm" else {})},
    }
    return compile_for_sites(StudyRequest.model_validate(content), SITES)


def accuracy(arm: Arm, epsilon: float | None, texts: Texts, seed: int, memory: RememberedSums) -> float:
    """Percent of the test texts of a seed that are told rightly; of each site alone the mean over sites.

    Stations that begin apart train alike whatever merges them, which is remembered over a seed's arms.
    """
    draw, n = np.random.default_rng(seed), len(texts.records)
    test, site = draw.random(n) < 0.3, draw.integers(len(SITES), size=n)
    labels = np.asarray(texts.records.labels)
    held = complete_records(texts.features(arm.program), labels)
    told = study(arm, epsilon, texts, int((~test).sum()) // len(SITES))

    def right(result: Result) -> float:
        model = Model.from_result(result, lambda scaled: encode(texts.networks[arm.program], scaled))
        return 100.0 * float(np.mean(model.predict(texts.records.take(test)) == labels[test]))

    run, own = METHODS[arm.method].run, [held.take(~test & (site == place)) for place in range(len(SITES))]
    if arm.records == "alone":
        return float(np.mean([right(run(CentralFederation(told, records, holders=1))) for records in own]))
    if arm.records == "together":
        return right(run(CentralFederation(told, held.take(~test))))
    sites = PlainFederation(told, {name: PlainSite(records) for name, records in zip(SITES, own, strict=True)})
    return right(run(SideBySide(sites, None, memory) if arm.method == "hfedatm" else sites))


def measure(texts: Texts, chosen: argparse.Namespace, done: set[str]) -> Iterator[dict[str, Any]]:
    """Every result that is not there yet, seed by seed."""
    for seed in range(chosen.first_seed, chosen.first_seed + chosen.runs):
        memory = RememberedSums()
        for part in chosen.parts:
            for arm in arms(part, texts.base, chosen):
                for epsilon in arm.epsilons:
                    cost = "none" if epsilon is None else f"{epsilon:g}"
                    key = f"{part}, {arm.name}, {cost}, {seed}"
                    if key not in done:
                        told = {"key": key, "part": part, "arm": arm.name, "epsilon": cost, "seed": seed}
                        yield {**told, "accuracy": accuracy(arm, epsilon, texts, seed, memory)}


def table(rows: list[dict[str, Any]]) -> None:
    """Print a part's means with standard errors over seeds, and gains over its first arm, paired by seed."""
    cells: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        cells.setdefault((row["arm"], row["epsilon"]), {})[row["seed"]] = row["accuracy"]
    lines, first = [], rows[0]["arm"]
    for (arm, epsilon), own in cells.items():
        base = cells.get((first, epsilon), {})
        both = sorted(own.keys() & base.keys()) if arm != first else []
        gain = mean_with_error([own[seed] - base[seed] for seed in both], sign=True) if both else ""
        lines.append(line((arm, epsilon, mean_with_error(list(own.values())), gain, len(own))))
    print_table(("trained", "epsilon", "accuracy", "gain", "runs"), lines, texts=2)


def main() -> None:
    """Run what is not in the folder yet, keep every result as a line of JSON, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for rows.jsonl")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--runs", type=int, default=5, help="seeds, each with sites and test texts of its own")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--pretraining", type=int, default=3000, help="steps of the network's training on public texts")
    parser.add_argument("--steps", type=int, default=60, help="of fedsgd")
    parser.add_argument("--rank", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30, help="of the stations, and epochs of who is alone")
    parser.add_argument("--rate", type=float, default=0.1, help="learning rate of these")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = chosen.out / "rows.jsonl"
    with tempfile.TemporaryDirectory() as name:
        texts = prepared(chosen.fortunes, chosen.pretraining, Path(name))
        print(f"{texts.public} public texts; {len(texts.records)} at {len(SITES)} sites, 30% of them for testing")
        append_rows(file, measure(texts, chosen, {row["key"] for row in read_rows(file)}))
    for part in chosen.parts:
        print(f"\n{part}\n")
        table([row for row in read_rows(file) if row["part"] == part])


if __name__ == "__main__":
    main()
