"""What a method yields, and how it is kept: tables as JSON, arrays as safetensors, and a manifest that binds them.

A bundle is a directory with ``manifest.json`` and, if the result has arrays, ``arrays.safetensors``. Nothing is pickled, and
a reader needs no code of this project.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from veilsum_node.errors import HostileInput, Misuse, Unavailable
from veilsum_node.file_names import is_name, write_files
from veilsum_node.phrases import unreadable
from veilsum_node.whole_files import whole_file
from veilsum_privacy.results.proof_files import STUDY_FILE, ReleaseEntry, round_of
from veilsum_privacy.results.release_names import FOLDER
from veilsum_privacy.securesum.array_bytes import array_pieces
from veilsum_privacy.study.study import Study
from veilsum_proto import SOFTWARE

FORMAT = "veilsum-result"
VERSION = 1
ARRAYS = "arrays.safetensors"
MANIFEST = "manifest.json"

NAMES = "A name is 1 to 200 printable characters, without a slash, and neither begins with a dot nor ends with a space."
WRITTEN_BY = "Name the directory that `veilsum study result --out` wrote."
FETCH_AGAIN = "Fetch the result again from its coordinator; do not use one that somebody else handed on."


@dataclass(frozen=True)
class Result:
    """A method's result.

    Attributes:
        summary: what a person reads first: JSON values by name; a list of objects with equal keys is a table.
        application: how to apply the arrays to new records, as JSON values; empty for a result that is only read.
    """

    method: str
    summary: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    application: Mapping[str, Any] = field(default_factory=dict)

    @property
    def personal(self) -> bool:
        """Whether it is a site's own, made of its records without noise: as confidential as they are."""
        head = self.application.get("head") if isinstance(self.application, Mapping) else None
        return isinstance(head, Mapping) and head.get("kind") == "personal"


def save_result(
    directory: Path, result: Result, *, study: Mapping[str, Any] | None = None, releases: Sequence[ReleaseEntry] = ()
) -> Path:
    """Write a bundle and return the manifest's path.

    The manifest is written last and every file replaced whole, so a bundle with a manifest is complete.

    Args:
        study: what the manifest says of the study (name, digest, ...).

    Raises:
        Unavailable: the directory cannot be written.
        Misuse: the summary holds something that is not JSON, or a number that is not finite; or a name in it is none.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, pieces in _files(result, study, releases):
            with whole_file(directory / name) as file:
                file.writelines(pieces)
    except OSError as error:
        raise Unavailable(f"{directory}: the result cannot be written ({error.strerror}).", "Check path and space.") from error
    return directory / MANIFEST


def study_fields(study: Study, digest: bytes) -> dict[str, Any]:
    """What the manifest of a result says of its study; ``digest``: of the study."""
    return {"name": study.name, "digest": digest.hex(), "method": study.method, **study.statements}


def result_files(
    result: Result,
    *,
    study: Mapping[str, Any] | None = None,
    releases: Sequence[ReleaseEntry] = (),
    software: str | None = SOFTWARE,
) -> dict[str, bytes]:
    """The bundle's files by name, the manifest last; arguments and errors as of :func:`save_result`.

    Args:
        software: that made the result, for the manifest; None for none, as in results before 0.3.
    """
    return {name: b"".join(pieces) for name, pieces in _files(result, study, releases, software)}


def _files(
    result: Result, study: Mapping[str, Any] | None, releases: Sequence[ReleaseEntry], software: str | None = SOFTWARE
) -> list[tuple[str, list[bytes | memoryview]]]:
    """The bundle's files in pieces, of which the arrays are their own: they are large."""
    if wrong := _no_names(result.method, result.summary):
        raise Misuse(f"The result has the name {wrong[0]!r}, which is none.", NAMES)
    files: list[tuple[str, list[bytes | memoryview]]] = []
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        **({} if software is None else {"software": software}),
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
        HostileInput: a file is missing, malformed, or not the one that the manifest names; or what should be a name in it is a
            path, a control character or another text that is none (:func:`veilsum_node.file_names.is_name`).
    """
    from safetensors import SafetensorError  # a plan makes results and reads none
    from safetensors.numpy import load as load_arrays

    try:
        manifest = json.loads((directory / MANIFEST).read_bytes())
        if manifest["format"] != FORMAT or manifest["version"] != VERSION:
            raise HostileInput(f"{directory} is not a result of version {VERSION}.")
        if wrong := _no_names(manifest["method"], manifest["summary"]):
            raise HostileInput(f"{directory} holds the name {wrong[0]!r}, which is none.", f"{NAMES} {FETCH_AGAIN}")
        arrays: dict[str, NDArray[Any]] = {}
        if ARRAYS in manifest["files"]:
            data = (directory / ARRAYS).read_bytes()
            if hashlib.sha256(data).hexdigest() != manifest["files"][ARRAYS]:
                raise HostileInput(f"{directory / ARRAYS} is not the file that the manifest names.", "Fetch the result again.")
            arrays = load_arrays(data)
        return Result(manifest["method"], manifest["summary"], arrays, manifest["application"])
    except OSError as error:
        raise HostileInput(
            f"{directory} holds no readable result ({error.strerror}).",
            WRITTEN_BY,
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
        raise HostileInput(f"{directory}: the result is malformed.", "Fetch the result again.") from error


def has_file(directory: Path, name: str) -> bool:
    """Whether a bundle has a file of its own of this name: one that leads elsewhere by a symbolic link is not its own."""
    place = directory / name
    return place.is_file() and not place.is_symlink() and (place.parent == directory or not place.parent.is_symlink())


def copy_result(directory: Path, target: Path, *, proof: bool) -> None:
    """Copy a bundle's own files, and with ``proof`` those of its proof; anything else beside them stays where it is.

    Raises:
        StateError: the target holds another file of a name.
        Unavailable: a file cannot be read or written.
    """
    names = [ARRAYS, *(_proof_names(directory) if proof else ()), MANIFEST]
    for name in names:
        if has_file(directory, name):
            try:
                data = (directory / name).read_bytes()
            except OSError as error:
                raise Unavailable(f"{directory / name} {unreadable(error)}.", "Check the path.") from error
            write_files(target, {name: data})


def _proof_names(directory: Path) -> list[str]:
    found = sorted(f"{FOLDER}/{path.name}" for path in (directory / FOLDER).glob("*"))
    return [name for name in found if name == STUDY_FILE or round_of(name) is not None]


def _no_names(method: Any, summary: Any) -> list[str]:
    """The text that stands where a method or an item of a summary should be named, cut short and printable."""
    if not isinstance(summary, Mapping):
        raise TypeError("a summary is a mapping")
    return [str(name)[:80] for name in (method, *summary) if not is_name(name)]
