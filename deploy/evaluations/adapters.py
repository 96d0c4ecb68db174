"""Adapters beside the head alone, on topics of short texts: ``python -m evaluations.adapters --runs 5 --steps 3000``.

Corpus, tokenizer and sites are those of :mod:`evaluations.texts`. The frozen network is one block of a transformer that
tells, from its first word's output, which tokens were left out of a public text; what lies below it makes the records'
words. ``fedsgd`` trains a linear head on the block's output, or adapters of the block with a head, at the same epsilon.
"""

import argparse
import hashlib
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import sentencepiece
import torch
from safetensors.torch import save_file

import veilsum
from evaluations.tables import line, mean_with_error, print_table
from evaluations.texts import CLASSES, LENGTH, SITES, VOCABULARY, WIDTH, corpus, frame_of, tokens_of
from veilsum_aggregation.arrays import Floats
from veilsum_privacy.study.schema import DatasetSchema
from veilsum_privacy.training.arrays import load
from veilsum_privacy.training.models import ModelSpec, build_architecture

EPSILONS = (None, 1.0, 3.0, 8.0)
BLOCK = ModelSpec(name="block", inputs=(LENGTH, WIDTH), options={"heads": 2, "hidden": 2 * WIDTH})
LAYERS = ("features.query", "features.out", "features.first", "features.second")


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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3000, help="of the network's training on public texts")
    parser.add_argument("--rounds", type=int, default=60, help="steps of fedsgd")
    parser.add_argument("--rank", type=int, default=2)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run(told.fortunes, told.runs, told.steps, told.rounds, told.rank, Path(name))


def run(folder: Path, runs: int, steps: int, rounds: int, rank: int, directory: Path) -> None:
    """Print the table of so many runs, each with sites and test texts of its own."""
    found = corpus(folder)
    public = [text for text, _, drawn in found if drawn < 20]
    own = [(text, label) for text, label, drawn in found if drawn >= 20]
    made, tokenizer = io.BytesIO(), directory / "tokenizer.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(public), model_writer=made, vocab_size=VOCABULARY, num_threads=1, minloglevel=2
    )
    tokenizer.write_bytes(made.getvalue())
    known = tokens_of(public, tokenizer, directory)[1]
    below, block = pretrained(torch.from_numpy(known).long(), steps)
    base, words, features = (directory / name for name in ("base.safetensors", "words.pt2", "features.pt2"))
    save_file({f"features.{name}": value.detach().contiguous() for name, value in block.named_parameters()}, base)
    for path, network in ((words, Frozen(below)), (features, Frozen(below, block))):
        torch.export.save(torch.export.export(network.float(), (torch.zeros(1, LENGTH),)), path)
    files = {"base": base, "words": words, "features": features}
    clips = {name: _clip(network, known) for name, network in (("words", Frozen(below)), ("features", Frozen(below, block)))}
    schema, tokens = tokens_of([text for text, _ in own], tokenizer, directory)
    labels = np.array([label for _, label in own])
    scores: dict[tuple[str, str], list[float]] = {}
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        test, site = draw.random(len(own)) < 0.3, draw.integers(len(SITES), size=len(own))
        frames = {name: frame_of(schema, tokens, labels, ~test & (site == place)) for place, name in enumerate(SITES)}
        released = _released(frames, schema, files, clips, frame_of(schema, tokens, labels, test), labels[test], rounds, rank)
        for key, score in released.items():
            scores.setdefault(key, []).append(score)
    print(f"{len(public)} public texts; {len(own)} at {len(SITES)} sites, 30% of them for testing; {runs} runs\n")
    print_table(
        ("fedsgd", "epsilon", "accuracy"),
        [line((*key, mean_with_error(100 * np.array(values)))) for key, values in scores.items()],
        texts=2,
    )


def _clip(network: torch.nn.Module, tokens: Floats) -> float:
    """A norm that one in twenty public texts exceeds."""
    with torch.no_grad():
        made = network(torch.from_numpy(tokens * (2.0 / VOCABULARY) - 1.0).float()).numpy()
    return float(np.quantile(np.linalg.norm(made, axis=1), 0.95))


def _released(
    frames: Mapping[str, Any], schema: DatasetSchema, files: Mapping[str, Path], clips: Mapping[str, float],
    test: Mapping[str, Any], truth: Any, rounds: int, rank: int,
) -> dict[tuple[str, str], float]:  # fmt: skip
    classes = [{"name": name, "values": [name]} for name in CLASSES]
    content = {**schema.model_dump(), "max_records": 2000, "label": {"column": "topic", "classes": classes}}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    options = {"of": "block", "options": BLOCK.options, "weights": digests["base"], "layers": [*LAYERS], "rank": rank}
    adam = {"optimiser": {"name": "adam", "learning_rate": 0.02}, "steps": rounds}
    adapters = {"model": {"name": "adapters", "inputs": [LENGTH, WIDTH], "options": options}, **adam}
    told = {}
    with veilsum.simulate(frames, content, encoders=files) as federation:
        for epsilon in EPSILONS:
            privacy: dict[str, Any] = {"noise": "none"} if epsilon is None else {"epsilon": epsilon}
            dataset, cost = federation.dataset(**privacy), "none" if epsilon is None else f"{epsilon:g}"
            for name, program, width, parameters in (
                ("head alone, as by default", "features", WIDTH, {"steps": rounds}),
                ("head alone, Adam", "features", WIDTH, adam),
                (f"adapters of rank {rank}, Adam", "words", LENGTH * WIDTH, adapters),
            ):
                encoder = {
                    "kind": "program",
                    "format": "exported",
                    "sha256": digests[program],
                    "inputs": [LENGTH],
                    "width": width,
                }
                study = dataset.train("fedsgd", {"clip": clips[program], **parameters}, encoder=encoder)
                model = cast(veilsum.Classifier, study.run().model(encoder=files[program]))
                told[name, cost] = float(np.mean(np.asarray(model.predict(test)) == truth))
    return told


if __name__ == "__main__":
    main()
