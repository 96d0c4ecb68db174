"""Texts as records: a column of a table becomes columns of tokens, which a frozen network reads.

Tokens are those of a SentencePiece model in a file of the site's own. Every text gives as many numbers as the length says, or
none if there is no text; what one text holds changes no other record.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from veilsum_node.errors import ConfigurationError, raising
from veilsum_node.identity.files import stated_file
from veilsum_participant.data.reader import missing_package
from veilsum_participant.settings.query import Texts

MAX_BYTES = 1 << 26
"""Largest tokenizer that is read."""

CHARACTERS = 16
"""Characters of a text that are looked at for each token that is kept: time and memory follow from the length alone."""


class NoTokens(StrEnum):
    """Why a record has none."""

    ABSENT = "there is no text"
    DAMAGED = "the text is not Unicode"


def load_tokenizer(texts: Texts) -> Any:
    """The tokenizer of a site's texts, whose hash is checked before anything is made of the file.

    Raises:
        ConfigurationError: the file is missing, too large, not the one that is stated, or not a SentencePiece model; or the
            package is missing.
    """
    return _loaded(texts.tokenizer, texts.sha256)


@lru_cache(maxsize=4)
def _loaded(path: Path, sha256: str) -> Any:
    with raising(missing_package("sentencepiece", "texts"), on=ImportError):
        from sentencepiece import SentencePieceProcessor
    data = stated_file(path, "tokenizer", sha256, by="`sha256` states", advice=_ADVICE, most=MAX_BYTES)
    try:
        processor = SentencePieceProcessor(model_proto=data)
        processor.encode("")
    except Exception as error:  # whatever it raises of a file that is none
        raise ConfigurationError(f"{path}: is not a SentencePiece model ({type(error).__name__}).", _ADVICE) from error
    return processor


_ADVICE = "Check `tokenizer` and `sha256` under [datasets.NAME.texts]."


def token_columns(texts: Texts, cells: Any, wanted: list[str]) -> tuple[dict[str, Any], Counter[str]]:
    """The wanted tokens of each record's text.

    Args:
        texts: tokenizer and length.
        cells: (n,) array of text.
        wanted: names of tokens.

    Returns:
        Arrays (n,) of float64: 0 beyond a text's end, else 1 plus the token's number; NaN where there is no text, infinite
        where there is none that can be read. And how many records have none, by reason.

    Raises:
        ConfigurationError: as :func:`load_tokenizer`.
    """
    processor = load_tokenizer(texts)
    known = {name: place for place, name in enumerate(texts.derived)}
    names = cells.to_pylist()
    found = np.full((len(names), texts.length), np.nan)
    absent: Counter[str] = Counter()
    for row, text in enumerate(names):
        if not isinstance(text, str) or not text:
            absent[NoTokens.ABSENT] += 1
            continue
        try:
            tokens = processor.encode(text[: CHARACTERS * texts.length])[: texts.length]
        except Exception:  # noqa: BLE001  nothing raises because of what a record holds
            absent[NoTokens.DAMAGED] += 1
            found[row] = np.inf
            continue
        found[row] = 0.0
        found[row, : len(tokens)] = np.asarray(tokens, dtype=float) + 1.0
    return {name: pa.array(found[:, known[name]]) for name in wanted}, absent
