"""What a method yields, and how it is kept: tables as JSON, arrays as safetensors, and a manifest that binds them.

A bundle is a directory with ``manifest.json`` and, if the result has arrays, ``arrays.safetensors``. Nothing is pickled, and
a reader needs no code of this project.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays

from veilsum_node.errors import HostileInput, Misuse, Unavailable
from veilsum_privacy.results.proof_files import ReleaseEntry
from veilsum_privacy.securesum.array_bytes import array_pieces

FORMAT = "veilsum-result"
VERSION = 1
ARRAYS = "arrays.safetensors"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Result:
    """A method's result.

    Attributes:
        method: name of the method.
        summary: what a person reads first: JSON values by name; a list of objects with equal keys is a table.
        arrays: named arrays.
        application: how to apply the arrays to new records, as JSON values; empty for a result that is only read.
    """

    method: str
    summary: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    application: Mapping[str, Any] = field(default_factory=dict)


def save_result(
    directory: Path,
    result: Result,
    *,
    study: Mapping[str, Any] | None = None,
    releases: Sequence[ReleaseEntry] = (),
) -> Path:
    """Write a bundle and return the manifest's path.

    The manifest is written last and every file replaced whole, so a bundle with a manifest is complete.

    Args:
        directory: of the bundle.
        result: what to write.
        study: what the manifest says of the study (name, digest, ...).
        releases: that the result was made of, with the signatures of who decrypted them.

    Raises:
        Unavailable: the directory cannot be written.
        Misuse: the summary holds something that is not JSON, or a number that is not finite.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, pieces in _files(result, study, releases):
            _replace(directory / name, pieces)
    except OSError as error:
        raise Unavailable(f"{directory}: the result cannot be written ({error.strerror}).", "Check path and space.") from error
    return directory / MANIFEST


def result_files(
    result: Result, *, study: Mapping[str, Any] | None = None, releases: Sequence[ReleaseEntry] = ()
) -> dict[str, bytes]:
    """The bundle's files by name, the manifest last; arguments and errors as of :func:`save_result`."""
    return {name: b"".join(pieces) for name, pieces in _files(result, study, releases)}


def _files(
    result: Result, study: Mapping[str, Any] | None, releases: Sequence[ReleaseEntry]
) -> list[tuple[str, list[bytes | memoryview]]]:
    """The bundle's files in pieces, of which the arrays are their own: they are large."""
    files: list[tuple[str, list[bytes | memoryview]]] = []
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "method": result.method,
        "study": dict(study or {}),
        "summary": result.summary,
        "application": result.application,
        "files": {},
    }
    if releases:
        manifest["releases"] = [entry.to_json() for entry in releases]
    try:
        if result.arrays:
            files.append((ARRAYS, array_pieces(result.arrays)))
            state = hashlib.sha256()
            for piece in files[0][1]:
                state.update(piece)
            manifest["files"][ARRAYS] = state.hexdigest()
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False)
        files.append((MANIFEST, [text.encode() + b"\n"]))
    except (TypeError, ValueError) as error:
        raise Misuse("The result holds a value that cannot be stored.", "Use JSON values and finite numbers.") from error
    return files


def checkpoint_directory(results: Path, study: bytes, number: int) -> Path:
    """Where the model of a study after a round is kept; ``results`` is the folder of all results."""
    return results / study.hex() / "checkpoints" / f"round-{number:06d}"


def saved_checkpoints(results: Path, study: bytes) -> list[int]:
    """Rounds of a study whose models are kept whole, ascending."""
    found = (results / study.hex() / "checkpoints").glob(f"round-*/{MANIFEST}")
    names = (path.parent.name.removeprefix("round-") for path in found)
    return sorted(int(name) for name in names if name.isdecimal())


def remove_partial(folder: Path) -> None:
    """Remove what a process that was killed while it wrote a result has left anywhere below a folder: files under temporary
    names. Nobody may be writing there."""
    for name in (ARRAYS, MANIFEST):
        for path in folder.rglob(f".{name}.*"):
            with contextlib.suppress(OSError):  # it is in nobody's way
                path.unlink()


def load_result(directory: Path) -> Result:
    """Read a bundle and check its hashes.

    Raises:
        HostileInput: a file is missing, malformed, or not the one that the manifest names.
    """
    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise HostileInput(f"{directory}: is not a result of version {VERSION}.")
        arrays: dict[str, NDArray[Any]] = {}
        if ARRAYS in manifest["files"]:
            data = (directory / ARRAYS).read_bytes()
            if hashlib.sha256(data).hexdigest() != manifest["files"][ARRAYS]:
                raise HostileInput(
                    f"{directory / ARRAYS}: is not the file that the manifest names.", "Fetch the result again."
                )
            arrays = load_arrays(data)
        return Result(manifest["method"], manifest["summary"], arrays, manifest["application"])
    except OSError as error:
        raise HostileInput(f"{directory}: holds no readable result ({error.strerror}).", "Check the path.") from error
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise HostileInput(f"{directory}: the result is malformed.", "Fetch the result again.") from error


def _replace(path: Path, pieces: Sequence[bytes | memoryview]) -> None:
    """Write the pieces durably under a temporary name, then rename."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
