"""A column of texts as tokens: what each text becomes, that none changes another's, and what a frozen network reads."""

import hashlib
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
import torch

from support.starting import Child
from support.tables import totals
from veilsum_node.errors import ConfigurationError, DataError
from veilsum_node.process.confinement import offered
from veilsum_participant.boundary.framing import pair
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.encoders import load_encoder
from veilsum_participant.data.sources import opened, read_table
from veilsum_participant.data.texts import CHARACTERS, NoTokens, token_columns
from veilsum_participant.session.launcher import ROLES
from veilsum_participant.session.supervisor import bounds_of
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.forms import token_names
from veilsum_participant.settings.query import Texts, origin
from veilsum_participant.settings.roles import environment
from veilsum_participant.worker.remote import WorkerDatasets
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn

LENGTH, VOCABULARY = 8, 36
TEXTS = [
    "the patient has a fever and a cough", "the patient fell and broke a hip", "no fever, no cough", "pain in the chest",
    "chest pain and a cough", "the hip hurts after a fall", "a broken hip", "fever",
]  # fmt: skip
HOSTILE = [
    "\x00", "\u200b", "\U0001f600" * 40, "é" * 400, "▁▁▁", "<unk></s><s>", "\n\t", "x" * 100_000, "ﷺ" * 300, "'; DROP TABLE",
    "١٢٣", "-0", "nan",
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, learned from a few made-up sentences."""
    path, made = tmp_path_factory.mktemp("tokenizer") / "notes.model", io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 20), model_writer=made, vocab_size=VOCABULARY, num_threads=1, minloglevel=2
    )
    path.write_bytes(made.getvalue())
    return path


def texts_of(model: Path, directory: Path, notes: list[str | None], **changes: Any) -> Texts:
    ill = [str(place % 2) for place in range(len(notes))]
    table = pa.table({"who": [f"p{place}" for place in range(len(notes))], "note": pa.array(notes, pa.string()), "ill": ill})
    pa.parquet.write_table(table, directory / "notes.parquet", row_group_size=3)
    stated = {"column": "note", "tokenizer": model, "sha256": hashlib.sha256(model.read_bytes()).hexdigest(), "length": LENGTH}
    return Texts(directory / "notes.parquet", **{**stated, **changes})


def schema_for(texts: Texts) -> DatasetSchema:
    columns = tuple(NumberColumn(name=name, low=0, high=VOCABULARY) for name in texts.derived)
    classes = (ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",)))
    return DatasetSchema(columns=columns, label=LabelColumn(column="ill", classes=classes))


def oracle(model: Path, text: str) -> list[float]:
    """By the package itself."""
    found = sentencepiece.SentencePieceProcessor(model_file=str(model)).encode(text)
    return [*(number + 1.0 for number in found), *[0.0] * LENGTH][:LENGTH]


def test_no_text_changes_anything_but_its_own_record(model: Path, tmp_path: Path) -> None:
    notes = [TEXTS[0], None, *HOSTILE, "", TEXTS[1]]
    texts = texts_of(model, tmp_path, notes)
    schema = schema_for(texts)
    check_structure(texts, schema, subject="who")
    records, _ = load_records(texts, schema, "who")
    assert len(records) == len(notes)
    assert not {None, "who"} & {*totals(check_dataset(texts, schema, subject="who"))}
    for place, text in enumerate(notes):
        alone, _ = load_records(texts_of(model, tmp_path, [text]), schema, "who")
        np.testing.assert_array_equal(records.features[place], alone.features[0])
        assert records.present[place].all() == bool(text and text.strip())
    found, absent = token_columns(texts, pa.array(["fever", "\ud800"[:0], None]), texts.derived)
    assert absent == {NoTokens.ABSENT: 2}
    assert not np.isnan(found[texts.derived[0]].to_numpy()[0])


def test_tokens_are_the_models_and_a_stream_gives_the_same(model: Path, tmp_path: Path) -> None:
    texts = texts_of(model, tmp_path, [*TEXTS])
    schema = schema_for(texts)
    table = read_table(texts, schema)
    found = np.stack([table.columns[name].to_numpy() for name in texts.derived], axis=1)
    np.testing.assert_array_equal(found, [oracle(model, text) for text in TEXTS])
    with opened(texts, schema) as tables:
        parts = [*tables.read(rows=3)]
    assert len(parts) > 1
    for name in texts.derived:
        np.testing.assert_array_equal(np.concatenate([part.columns[name].to_numpy() for part in parts]), table.columns[name])


def test_a_long_text_is_cut_before_it_is_looked_at(model: Path, tmp_path: Path) -> None:
    text = "a cough " * 100
    texts = texts_of(model, tmp_path, [text, text + "x" * 50_000, text[: CHARACTERS * LENGTH]])
    records, _ = load_records(texts, schema_for(texts))
    assert len(np.unique(records.features, axis=0)) == 1


@pytest.mark.parametrize(("changes", "said"), [
    ({"sha256": "0" * 64}, "its SHA-256 is"), ({"tokenizer": Path("absent.model")}, "tokenizer absent.model does not exist"),
    ({"tokenizer": Path(__file__)}, "is not a SentencePiece model"),
])  # fmt: skip
def test_a_tokenizer_is_the_one_that_was_stated(model: Path, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    if changes.get("tokenizer") == Path(__file__):
        changes = changes | {"sha256": hashlib.sha256(Path(__file__).read_bytes()).hexdigest()}
    texts = texts_of(model, tmp_path, ["fever"], **changes)
    with pytest.raises(ConfigurationError, match=said):
        check_structure(texts, schema_for(texts))


def test_sites_of_different_tokenizers_offer_different_columns(model: Path, tmp_path: Path) -> None:
    texts = texts_of(model, tmp_path, ["fever"])
    other = DatasetSchema(columns=(NumberColumn(name=token_names("f" * 64, 1)[0], low=0, high=9),))
    with pytest.raises(DataError, match="column 'token0_ffffffff' is missing"):
        check_structure(texts, other)
    with pytest.raises(DataError, match="column 'letter' is missing"):
        check_structure(texts_of(model, tmp_path, ["fever"], column="letter"), schema_for(texts))


def test_the_package_is_named_where_it_is_missing(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilsum_participant.data import texts as module

    module._loaded.cache_clear()
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    texts = texts_of(model, tmp_path, ["fever"])
    with pytest.raises(ConfigurationError, match="sentencepiece is not installed"):
        check_structure(texts, schema_for(texts))


def test_the_configuration_names_them(model: Path, tmp_path: Path) -> None:
    texts = texts_of(model, tmp_path, ["fever", None, "a cough"])
    path = tmp_path / "participant.toml"

    def load(more: str = "") -> Any:
        path.write_text(
            'coordinator = "localhost:1"\n[datasets.notes]\npath = "notes.parquet"\n[datasets.notes.texts]\ncolumn = "note"\n'
            f'tokenizer = "{model}"\nsha256 = "{texts.sha256}"\nlength = {LENGTH}\n{more}'
        )
        return load_participant_config(path)

    config = load()
    assert origin(config.datasets["notes"], "notes") == texts
    assert list(config.datasets["notes"].derived) == texts.derived

    def said(schemas: dict[str, DatasetSchema]) -> list[Any]:
        found = SiteCheck(config, lambda: 0, schemas=schemas).run()
        return [item for item in found if item.check == "dataset notes"]

    assert said({})[0].status is CheckOutcome.OK
    seen = said({"notes": schema_for(texts)})
    assert any("1 of 3 records have no tokens: there is no text (1)" in item.detail for item in seen)
    assert all("fever" not in item.detail for item in seen)
    with pytest.raises(ConfigurationError, match="images and texts"):
        load('[datasets.notes.images]\nfolder = "scans"\nshape = [1, 2, 2]\n')


class Transformer(torch.nn.Module):
    """A frozen network of one layer of attention, which takes scaled columns back to tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY + 1, 16, padding_idx=0)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, scaled: torch.Tensor) -> torch.Tensor:
        tokens = torch.round((scaled + 1.0) * (VOCABULARY / 2.0)).long()
        return self.read(tokens)

    def read(self, tokens: torch.Tensor) -> torch.Tensor:
        absent = tokens == 0
        found = self.layer(self.embedding(tokens), src_key_padding_mask=absent)
        kept = (~absent).unsqueeze(-1).to(found.dtype)
        return (found * kept).sum(1) / kept.sum(1).clamp(min=1.0)


@pytest.mark.filterwarnings("ignore")
def test_a_transformer_reads_the_tokens_that_the_columns_were(model: Path, tmp_path: Path) -> None:
    torch.manual_seed(4)
    network, path = Transformer().eval(), tmp_path / "net.pt2"
    torch.export.save(torch.export.export(network, (torch.zeros(1, LENGTH),)), path)
    declared = Program(
        format="exported", sha256=hashlib.sha256(path.read_bytes()).hexdigest(), inputs=(LENGTH,), width=16, kind="program"
    )
    texts = texts_of(model, tmp_path, [*TEXTS])
    records, _ = load_records(texts, schema_for(texts))
    found = load_encoder(path, declared)(records.features)
    with torch.no_grad():
        want = network.read(torch.tensor([oracle(model, text) for text in TEXTS]).long())
    np.testing.assert_allclose(found, want.numpy(), atol=1e-5)
    assert len(np.unique(np.round(found, 6), axis=0)) == len(np.unique(records.features, axis=0)) > 6


@pytest.mark.skipif(not offered().enough, reason="this kernel cannot confine")
def test_a_confined_reader_makes_the_same_of_them(model: Path, tmp_path: Path) -> None:
    """In a process of its own, which sees the dataset's file and the tokenizer and nothing else of the site's."""
    texts = texts_of(model, tmp_path, [*TEXTS, None, *HOSTILE])
    schema = schema_for(texts)
    path = tmp_path / "participant.toml"
    path.write_text(
        f'coordinator = "localhost:1"\n[datasets.notes]\npath = "notes.parquet"\n[datasets.notes.texts]\ncolumn = "note"\n'
        f'tokenizer = "{model}"\nsha256 = "{texts.sha256}"\nlength = {LENGTH}\n'
    )
    config = load_participant_config(path)

    class Confined:
        def start(self, role: str, of: str = "") -> Child:
            own, other = pair()
            words = [sys.executable, "-P", "-m", ROLES[role], str(other.fileno()), bounds_of(config, role, of).to_text()]
            process = subprocess.Popen(words, pass_fds=(other.fileno(),), env=environment())
            other.close()
            return Child(own, process)

    apart = WorkerDatasets(Confined())
    found = apart.load("notes", config.datasets["notes"], schema, seconds=60.0)
    want, _ = load_records(texts, schema)
    np.testing.assert_array_equal(found.records.features, want.features)
    np.testing.assert_array_equal(found.records.present, want.present)
    apart.close()
