"""Folders of images as records: pixels, or the features that a frozen network makes of them.

Images lie in ``DOMAIN/CLASS/``, as the collections of the papers on domains come. Every record is a fixed function of its own
image: the middle square, at one size, as grey or colour levels from 0 to 255; and with a network, what it makes of the levels
scaled to [-1, 1], at an L2 norm of 1. So each bound is public. Nothing here is part of a study.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from veilsum.tables import site_name
from veilsum_deploy.datasets import EXTRA
from veilsum_node.errors import ConfigurationError, DataError, Misuse, raising
from veilsum_node.phrases import unreadable
from veilsum_participant.data.encoders import MAX_PROGRAM_BYTES, load_encoder
from veilsum_participant.data.programs import read_program
from veilsum_privacy.study.encoder import MAX_WIDTH, Program
from veilsum_privacy.study.schema_file import load_schema

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SCHEMA = "schema.toml"
LABEL = "y"

_TOGETHER = 64
"""Images that are held at a time while a network reads them."""

Floats = NDArray[np.float32]
Progress = Callable[[str, float], None]


@dataclass(frozen=True)
class Shape:
    """An image as numbers: ``channels`` (1 grey, 3 colours) of ``size`` rows and columns."""

    channels: Literal[1, 3]
    size: int

    @property
    def values(self) -> int:
        """Numbers of one image, by channel, row and column, the last fastest."""
        return self.channels * self.size**2


@dataclass(frozen=True)
class FrozenNetwork:
    """A frozen network in a file, and the format of the file."""

    path: Path
    format: Literal["torchscript", "exported"]


def find_images(folder: Path) -> dict[str, dict[str, list[Path]]]:
    """The images of a folder by domain and class, whose names are those of their folders in lower-case letters and digits.

    Raises:
        DataError: there are no two domains or no two classes, two have one name, or a domain has no image.
    """
    found: dict[str, dict[str, list[Path]]] = {}
    for domain, path in _folders(folder).items():
        classes = {
            name: sorted(file for file in own.iterdir() if file.suffix.lower() in IMAGES and file.is_file())
            for name, own in _folders(path).items()
        }
        found[domain] = {name: files for name, files in classes.items() if files}
        if not found[domain]:
            raise DataError(f"{path} has no images in folders of classes.", "Store images as DOMAIN/CLASS/name.png.")
    if len(found) < 2 or len({name for classes in found.values() for name in classes}) < 2:
        raise DataError(f"{folder}: there must be two domains and two classes.", "Store images as DOMAIN/CLASS/name.png.")
    return found


def write_records(
    folder: Path, out: Path, shape: Shape, network: FrozenNetwork | None, progress: Progress = lambda *_: None
) -> dict[str, int]:
    """Write a folder's images as one npz file a domain, and their schema.

    Args:
        folder: of images, as in :func:`find_images`.
        shape: of an image as numbers.
        network: makes features of them; None for the levels themselves.
        progress: told of each domain.

    Returns:
        Number of records by domain.

    Raises:
        DataError: an image cannot be read, or the network makes no numbers of it.
        ConfigurationError: the network's file is not as needed.
        Misuse: the folder is there already, or images have more levels than a schema has columns.
    """
    images = find_images(folder)
    encode = None if network is None else _features(network, shape)
    width = shape.values if encode is None else encode.width
    classes = sorted({name for own in images.values() for name in own})
    counts = {domain: sum(map(len, own.values())) for domain, own in images.items()}
    text = _schema_text(shape, width, classes, max(counts.values()), features=encode is not None)
    if out.exists():
        raise Misuse(f"{out} is there already.", "Name a new folder.")
    out.mkdir(parents=True)
    (out / SCHEMA).write_text(text, encoding="utf-8")
    load_schema(out / SCHEMA)
    for number, (domain, own) in enumerate(images.items()):
        progress(f"{domain}: {counts[domain]} images", number / len(images))
        files = [file for name in sorted(own) for file in own[name]]
        labels = np.array([name for name in sorted(own) for _ in own[name]])
        rows = np.concatenate([_rows(part, shape, encode) for part in _parts(files)])
        np.savez_compressed(out / f"{domain}.npz", X=rows, y=labels)
    return counts


def read_image(path: Path, shape: Shape) -> Floats:
    """Levels (channels * size * size,) from 0 to 255 of an image's middle square.

    Raises:
        DataError: it cannot be read.
        Misuse: Pillow is not installed.
    """
    with raising(Misuse("Pillow, which reads images, is not installed.", EXTRA), on=ImportError):
        from PIL import Image, ImageOps
    try:
        with Image.open(path) as file:
            upright = ImageOps.exif_transpose(file).convert("L" if shape.channels == 1 else "RGB")
            square = ImageOps.fit(upright, (shape.size, shape.size), Image.Resampling.BICUBIC)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{path} cannot be read as an image.", "Remove it, or store it as PNG or JPEG.") from error
    levels: Floats = np.asarray(square, dtype=np.float32).reshape(shape.size, shape.size, shape.channels)
    return np.ascontiguousarray(levels.transpose(2, 0, 1)).reshape(-1)


class _NetworkFeatures:
    """A network, with the number of features that it makes."""

    def __init__(self, run: Callable[[NDArray[np.float64]], NDArray[np.float64]], width: int) -> None:
        self.run, self.width = run, width


def _features(network: FrozenNetwork, shape: Shape) -> _NetworkFeatures:
    import torch

    try:
        data = network.path.read_bytes()[:MAX_PROGRAM_BYTES]
    except OSError as error:
        raise ConfigurationError(f"{network.path}: {unreadable(error)}.", "Check the path.") from error
    inputs = (shape.channels, shape.size, shape.size)
    try:
        made = read_program(data, network.format).run(torch.zeros((1, *inputs)))
        width = int(made.numel())
    except ConfigurationError as error:
        raise ConfigurationError(f"{network.path}: {error.message}", error.advice) from error
    except Exception as error:  # whatever the program raises
        raise ConfigurationError(
            f"{network.path}: does not run on one image of shape {(1, *inputs)} ({type(error).__name__}).",
            "State --size and --channels as the network takes them.",
        ) from error
    program = Program(format=network.format, sha256=hashlib.sha256(data).hexdigest(), inputs=inputs, width=width)
    return _NetworkFeatures(load_encoder(network.path, program), width)


def _rows(files: Sequence[Path], shape: Shape, encode: _NetworkFeatures | None) -> Floats:
    levels = np.stack([read_image(path, shape) for path in files])
    if encode is None:
        return levels.astype(np.uint8).astype(np.float32)
    made = encode.run(levels.astype(np.float64) / 127.5 - 1.0)
    norms = np.linalg.norm(made, axis=1)
    for path, norm in zip(files, norms, strict=True):
        if not (np.isfinite(norm) and norm > 0.0):
            raise DataError(f"{path}: the network makes no features of it.", "Remove it, or use another network.")
    features: Floats = (made / norms[:, None]).astype(np.float32)
    return features


def _schema_text(shape: Shape, width: int, classes: Sequence[str], records: int, *, features: bool) -> str:
    low, high = (-1, 1) if features else (0, 255)
    if features:
        names = [f"feature_{number}" for number in range(1, width + 1)]
    else:
        grid = np.ndindex(shape.channels, shape.size, shape.size)
        names = [f"pixel_{channel}_{row}_{column}" for channel, row, column in grid]
    if len(names) > MAX_WIDTH:
        advice = "State a smaller --size, or a network by --program."
        raise Misuse(f"{len(names)} columns are more than the {MAX_WIDTH} of a schema.", advice)
    lines = [f"max_records = {records}", "", "[label]", f'column = "{LABEL}"', "classes = ["]
    lines += [f'    {{ name = "{name}", values = ["{name}"] }},' for name in classes] + ["]"]
    for name in names:
        lines += ["", "[[columns]]", 'kind = "number"', f'name = "{name}"', f"low = {low}", f"high = {high}"]
    return "\n".join(lines) + "\n"


def _folders(folder: Path) -> Mapping[str, Path]:
    if not folder.is_dir():
        raise DataError(f"{folder} does not exist.", "Name a folder of images as DOMAIN/CLASS/name.png.")
    found: dict[str, Path] = {}
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        name = site_name(path.name)
        if name in found:
            raise DataError(f"{found[name]} and {path} would both be named {name!r}.", "Rename one of them.")
        found[name] = path
    return found


def _parts(files: Sequence[Path]) -> Iterator[Sequence[Path]]:
    for first in range(0, len(files), _TOGETHER):
        yield files[first : first + _TOGETHER]
