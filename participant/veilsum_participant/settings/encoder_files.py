"""The files of frozen encoders and weights that a configuration names, told apart by their hashes. Nothing is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.errors import ConfigurationError
from veilsum_node.phrases import unreadable

if TYPE_CHECKING:
    from veilsum_participant.settings.dataset_config import EncoderConfig

WEIGHTS = "file of base weights"
"""What a file of a model's frozen weights is called."""


def find_path(encoders: Mapping[str, EncoderConfig], sha256: str, what: str = "encoder") -> Path:
    """The configured file that has the hash of a study's program, or of its base weights.

    Raises:
        ConfigurationError: none has it; the message lists what there is.
    """
    found: dict[str, str] = {}
    for name, encoder in encoders.items():
        try:
            found[name] = file_digest(encoder.path)
        except ConfigurationError as error:
            found[name] = error.message.rstrip(".")
        if found[name] == sha256:
            return encoder.path
    there = "; ".join(f"{name}: {what}" for name, what in found.items()) or "none is configured"
    raise ConfigurationError(
        f"No {what} has the SHA-256 {sha256} that the study names ({there}).",
        "Get the study's file and name it in participant.toml: [encoders.NAME] path = ...",
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, 64 hexadecimal digits; remembered until its time or size changes. Loading never relies on it.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        status = path.stat()
        return _digest(path, status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise ConfigurationError(f"{path}: the encoder {unreadable(error)}.", "Check the path in [encoders].") from error


@lru_cache(maxsize=64)
def _digest(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
