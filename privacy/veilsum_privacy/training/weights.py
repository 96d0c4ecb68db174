"""Frozen weights of networks: from files of whoever computes, found by their hash, and never sent.

A study names a file by its SHA-256. Whoever meets records is told where it lies (:func:`offer`); it is read where a network
needs it (:func:`frozen`), and what is taken is what was hashed. Who plans, traces or tries a study meets no record and needs
no file: inside of :func:`made_up` networks hold made-up values.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING

from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.files import stated_file

if TYPE_CHECKING:
    import torch

MAX_BYTES = 4 << 30
"""Largest file of weights that is read."""

_KEPT = 2
_ADVICE = "Get the exact file that the study was made with, or correct the study."

_lock = threading.Lock()
_files: dict[str, Path] = {}
_read: OrderedDict[str, dict[str, torch.Tensor]] = OrderedDict()
_made_up: ContextVar[bool] = ContextVar("made_up", default=False)


def offer(sha256: str, path: Path) -> None:
    """Tell this process where the file with this hash lies. It is not read here."""
    _files[sha256] = path


def offered(sha256: str) -> bool:
    """Whether this process knows where the file lies."""
    return sha256 in _files


@contextmanager
def made_up() -> Iterator[None]:
    """Let networks hold made-up values in place of frozen ones; only where no record is."""
    token = _made_up.set(True)
    try:
        yield
    finally:
        _made_up.reset(token)


def are_made_up() -> bool:
    """Whether networks are to hold made-up values."""
    return _made_up.get()


def frozen(sha256: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Arrays of these names and shapes out of the file with this hash, which may hold others besides.

    Raises:
        ConfigurationError: the file is not known here, is not the one that the study names, is no safetensors file, or lacks
            an array; or an array has another shape or is not finite. The message names the file.
    """
    import torch

    path = _files.get(sha256)
    if path is None:
        raise ConfigurationError(
            f"No file is known that holds the base weights with SHA-256 {sha256}.",
            "Get the study's file; a site names it in participant.toml: [encoders.NAME] path = ...",
        )
    with _lock:
        held = _read.pop(sha256, None)
        _read[sha256] = held = _tensors(path, sha256) if held is None else held
        if len(_read) > _KEPT:
            _read.popitem(last=False)
    found: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        values = held.get(name)
        if values is None or not values.is_floating_point() or tuple(values.shape) != tuple(shape):
            there = "none" if values is None else f"one of {tuple(values.shape)}, {str(values.dtype).removeprefix('torch.')}"
            raise ConfigurationError(
                f"{path}: the study's model needs an array {name!r} of {tuple(shape)}; the file has {there}.",
                "Compare the model's inputs, its options and its names with the file.",
            )
        if not bool(torch.isfinite(values).all()):
            raise ConfigurationError(f"{path}: the array {name!r} is not finite.", _ADVICE)
        found[name] = values
    return found


def _tensors(path: Path, sha256: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    data = stated_file(path, "file of base weights", sha256, by="the study names", advice=_ADVICE, most=MAX_BYTES)
    try:
        found: dict[str, torch.Tensor] = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: the base weights are no safetensors file.", "Write them with safetensors.torch.save_file."
        ) from error
    return found
