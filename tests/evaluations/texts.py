"""Topics of short texts by a frozen transformer: ``python -m evaluations.texts --fortunes /usr/share/games/fortunes``.

The texts are those of Debian's package ``fortunes``, of four of its files, which are the classes. A fifth of them, chosen by
their hash, counts as public: a SentencePiece model is learned from it, and a transformer of one layer, to tell words that were
left out. Both are frozen. The rest lies at four sites; three tenths of it are held out. The table has the accuracy of
``fedcgs`` on the network's features beside each site alone and all records in one place, both without noise.
"""

import argparse
import hashlib
import io
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import veilsum
from evaluations.tables import line, mean_with_error, print_table
from veilsum_aggregation.arrays import Floats
from veilsum_participant.data.sources import read_table
from veilsum_participant.settings.forms import PLAIN
from veilsum_participant.settings.query import TextFile, Texts
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn

CLASSES = ("computers", "definitions", "knghtbrd", "songs-poems")
SITES = ("north", "south", "east", "west")
EPSILONS = (1.0, 3.0, 8.0)
VOCABULARY, LENGTH, WIDTH = 1000, 48, 24


class Transformer(torch.nn.Module):
    """Means of a text's tokens behind one layer of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY + 1, WIDTH, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True)

    def words(self, tokens: torch.Tensor) -> torch.Tensor:
        """(n, tokens, width) of tokens (n, tokens)."""
        found: torch.Tensor = self.layer(self.embedding(tokens), src_key_padding_mask=tokens == 0)
        return found

    def forward(self, scaled: torch.Tensor) -> torch.Tensor:
        """(1, width) of scaled columns (1, tokens)."""
        tokens = torch.round((scaled + 1.0) * (VOCABULARY / 2.0)).long()
        kept = (tokens != 0).unsqueeze(-1).float()
        return (self.words(tokens) * kept).sum(1) / kept.sum(1).clamp(min=1.0)


def pretrained(tokens: torch.Tensor, steps: int) -> Transformer:
    """A transformer that tells tokens of public texts (n, tokens) of which some were left out."""
    torch.manual_seed(0)
    network = Transformer()
    guess = torch.nn.Linear(WIDTH, VOCABULARY + 1)
    optimiser = torch.optim.Adam([*network.parameters(), *guess.parameters()], 3e-3)
    for _ in range(steps):
        batch = tokens[torch.randint(len(tokens), (32,))]
        hidden = (torch.rand(batch.shape) < 0.15) & (batch != 0) & (torch.arange(LENGTH) > 0)
        told = guess(network.words(torch.where(hidden, 1, batch)))[hidden]  # 1 is the tokenizer's unknown token
        loss = torch.nn.functional.cross_entropy(told, batch[hidden])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return network.eval()


def corpus(folder: Path) -> list[tuple[str, str, int]]:
    """Texts with their classes, and a number below 100 that is drawn by their hash."""
    found = []
    for name in CLASSES:
        for text in (folder / name).read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            words = " ".join(text.split())
            if len(words) > 20:
                found.append((words, name, int(hashlib.sha256(words.encode()).hexdigest(), 16) % 100))
    return found


def tokens_of(texts: Sequence[str], tokenizer: Path, directory: Path) -> tuple[DatasetSchema, Floats]:
    """The columns that a site makes of them: their schema, and (n, tokens)."""
    file = directory / "texts.csv"
    file.write_text("text\n" + "".join('"' + text.replace('"', '""') + '"\n' for text in texts), encoding="utf-8")
    source = Texts(TextFile(file, PLAIN), "text", tokenizer, hashlib.sha256(tokenizer.read_bytes()).hexdigest(), LENGTH)
    schema = DatasetSchema(columns=tuple(NumberColumn(name=name, low=0, high=VOCABULARY) for name in source.derived))
    columns = read_table(source, schema).columns
    return schema, np.stack([columns[name].to_numpy() for name in source.derived], axis=1)


class TokenCorpus(NamedTuple):
    """Tokens (n, LENGTH) of ``public`` texts, and of those that sites hold, with their columns and their classes (n,)."""

    public: Floats
    schema: DatasetSchema
    tokens: Floats
    labels: NDArray[np.str_]


def read_corpus(folder: Path, directory: Path) -> TokenCorpus:
    """The corpus by a tokenizer that is learned from its public texts, and kept in the directory."""
    found = corpus(folder)
    public = [text for text, _, drawn in found if drawn < 20]
    own = [(text, label) for text, label, drawn in found if drawn >= 20]
    made, tokenizer = io.BytesIO(), directory / "tokenizer.model"
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(public), model_writer=made, vocab_size=VOCABULARY, num_threads=1, minloglevel=2
    )
    tokenizer.write_bytes(made.getvalue())
    known = tokens_of(public, tokenizer, directory)[1]
    schema, tokens = tokens_of([text for text, _ in own], tokenizer, directory)
    return TokenCorpus(known, schema, tokens, np.array([label for _, label in own]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1000, help="of the network's training on public texts")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run(arguments.fortunes, arguments.runs, arguments.steps, Path(name))


def run(folder: Path, runs: int, steps: int, directory: Path) -> None:
    """Print the table of so many runs, each with sites and test texts of its own."""
    known, schema, tokens, labels = read_corpus(folder, directory)
    network, program = pretrained(torch.from_numpy(known).long(), steps), directory / "network.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(1, LENGTH),)), program)
    clip = float(np.quantile(np.linalg.norm(_features(network, known), axis=1), 0.95))  # of public texts
    features = _features(network, tokens)
    scores: dict[str, list[float]] = {}
    for seed in range(runs):
        draw = np.random.default_rng(seed)
        test, site = draw.random(len(tokens)) < 0.3, draw.integers(len(SITES), size=len(tokens))
        alone = [_own(features, labels, ~test & (site == place), test) for place in range(len(SITES))]
        scores.setdefault("each site alone", []).append(float(np.mean(alone)))
        scores.setdefault("in one place, without noise", []).append(_own(features, labels, ~test, test))
        frames = {name: frame_of(schema, tokens, labels, ~test & (site == place)) for place, name in enumerate(SITES)}
        for epsilon, score in _released(
            frames, schema, (program, clip), frame_of(schema, tokens, labels, test), labels[test]
        ).items():
            scores.setdefault(epsilon, []).append(score)
    print(f"{len(known)} public texts; {len(tokens)} at {len(SITES)} sites, 30% of them for testing; {runs} runs\n")
    print_table(
        ("fedcgs", "accuracy"), [line((name, mean_with_error(100 * np.array(values)))) for name, values in scores.items()]
    )


def _features(network: Transformer, tokens: Floats) -> Floats:
    with torch.no_grad():
        found: Floats = network(torch.from_numpy(tokens * (2.0 / VOCABULARY) - 1.0).float()).numpy()
        return found


def _own(features: Floats, labels: Any, kept: Any, test: Any) -> float:
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(features[kept], labels[kept])
    return float(model.score(features[test], labels[test]))


def frame_of(schema: DatasetSchema, tokens: Floats, labels: Any, kept: Any) -> Mapping[str, Any]:
    """A site's columns: tokens and topic of the texts that are kept."""
    columns = {column.name: tokens[kept, place] for place, column in enumerate(schema.columns)}
    return {**columns, "topic": labels[kept]}


def _released(
    frames: Mapping[str, Any], schema: DatasetSchema, network: tuple[Path, float], test: Mapping[str, Any], truth: Any
) -> dict[str, float]:
    classes = [{"name": name, "values": [name]} for name in CLASSES]
    content = {**schema.model_dump(), "max_records": 2000, "label": {"column": "topic", "classes": classes}}
    program, clip = network
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    encoder = {"kind": "program", "format": "exported", "sha256": digest, "inputs": [LENGTH], "width": WIDTH}
    told = {}
    with veilsum.simulate(frames, content, encoders={"network": program}) as federation:
        for epsilon in (None, *EPSILONS):
            privacy: dict[str, Any] = {"noise": "none"} if epsilon is None else {"epsilon": epsilon}
            dataset = federation.dataset(**privacy)
            model = cast(
                veilsum.Classifier, dataset.train("fedcgs", {"clip": clip}, encoder=encoder).run().model(encoder=program)
            )
            name = "without noise" if epsilon is None else f"epsilon {epsilon:g}"
            told[name] = float(np.mean(np.asarray(model.predict(test)) == truth))
    return told


if __name__ == "__main__":
    main()
