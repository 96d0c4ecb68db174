"""Images as records: a table names a file for each record, and the file's pixels become columns beside the table's own.

Whatever a file holds, it gives as many numbers as the shape has, or none: if it is missing, damaged or outside the folder, the
record has no pixels, and no other record changes. PNG and JPEG are decoded by Pillow, DICOM by pydicom, NIfTI by nibabel.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from veilsum_node.errors import DataError
from veilsum_participant.data.reader import missing_package
from veilsum_participant.query import Images, pixel_names

Floats = NDArray[np.float32]

_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
"""Of red, green and blue (ITU-R BT.601)."""


def check_images(images: Images) -> None:
    """Check that there is a folder, and that every kind of image can be decoded: which kinds there are is told by records.

    Raises:
        DataError: the folder is none.
        ConfigurationError: a package is missing.
    """
    if not images.folder.is_dir():
        said = "is a file, not a folder" if images.folder.exists() else "there is no such folder"
        raise DataError(
            f"{images.folder}: {said}.", "Check `folder` under [datasets.NAME.images], and the permissions above it."
        )
    for name in ("PIL.Image", "pydicom", "nibabel"):
        try:
            __import__(name)
        except ImportError as error:
            raise missing_package(name.partition(".")[0], "images") from error


def pixel_columns(images: Images, files: Any, wanted: list[str]) -> dict[str, Any]:
    """The wanted pixels of each record's image.

    Args:
        images: folder and shape.
        files: (n,) array of text, each record's file within the folder.
        wanted: names of pixels.

    Returns:
        Arrays (n,) of float64, NaN where there is no image.
    """
    known = {name: place for place, name in enumerate(pixel_names(images.shape))}
    places = [known[name] for name in wanted]
    names = files.to_pylist()
    found = np.full((len(names), len(places)), np.nan)
    for row, name in enumerate(names):
        if (pixels := read_image(images.folder, name, images.shape)) is not None:
            found[row] = pixels.ravel()[places]
    return {name: pa.array(found[:, place]) for place, name in enumerate(wanted)}


def read_image(folder: Path, name: object, shape: tuple[int, int, int]) -> Floats | None:
    """One image as channels or slices, rows and columns; None where there is none. Nothing raises, whatever a file holds."""
    if not isinstance(name, str) or not name:
        return None
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()) or not path.is_file():
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _fit(_decode(path), shape)
    except Exception:  # noqa: BLE001  what decoders raise is many things
        return None


def _decode(path: Path) -> Floats:
    """An image's channels (or slices), rows and columns."""
    name = path.name.lower()
    if name.endswith((".nii", ".nii.gz")):
        return _decode_nifti(path)
    if name.endswith((".dcm", ".dicom")):
        return _decode_dicom(path)
    from PIL import Image, ImageOps

    with Image.open(path, formats=("PNG", "JPEG")) as opened:
        image = ImageOps.exif_transpose(opened)
        if image.mode not in ("L", "RGB", "F") and not image.mode.startswith("I"):
            image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
        return _channels_first(np.asarray(image, dtype=np.float32))


def _decode_dicom(path: Path) -> Floats:
    """Pixels by the modality's scale, such as Hounsfield units; where the file counts darkness they are inverted first."""
    import pydicom
    from pydicom.pixels.processing import apply_rescale

    dataset = pydicom.dcmread(path)
    pixels = dataset.pixel_array
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        pixels = (1 << int(dataset.BitsStored)) - 1 - pixels.astype(np.int64)
    return _channels_first(np.asarray(apply_rescale(pixels, dataset), dtype=np.float32))


def _decode_nifti(path: Path) -> Floats:
    """The first volume, from below, from behind and from the left: slices, rows and columns of the closest canonical axes."""
    import nibabel

    image = nibabel.as_closest_canonical(nibabel.load(path))  # type: ignore[no-untyped-call]
    volume = np.asarray(image.dataobj, dtype=np.float32)
    volume = volume.reshape(*volume.shape[:3], -1)[..., 0] if volume.ndim > 3 else volume
    return volume.reshape(*volume.shape, *[1] * (3 - volume.ndim)).T


def _channels_first(pixels: Floats) -> Floats:
    if pixels.ndim == 2:
        return pixels[None]
    return np.moveaxis(pixels, -1, 0) if pixels.shape[-1] in (3, 4) else pixels


def _fit(pixels: Floats, shape: tuple[int, int, int]) -> Floats | None:
    """Pixels in the shape: grey of colours, one channel repeated, else evenly spaced slices; rows and columns resampled."""
    from PIL import Image

    if pixels.ndim != 3 or not pixels.size:
        return None
    channels, height, width = shape
    if len(pixels) != channels:
        if channels == 1 and len(pixels) in (3, 4):
            pixels = np.tensordot(_LUMA, pixels[:3], axes=1)[None]
        else:
            pixels = pixels[np.rint(np.linspace(0, len(pixels) - 1, channels)).astype(int)]
    if pixels.shape[1:] != (height, width):
        resized = [
            Image.fromarray(np.ascontiguousarray(channel)).resize((width, height), Image.Resampling.BILINEAR)
            for channel in pixels
        ]
        pixels = np.stack([np.asarray(channel) for channel in resized])
    return pixels
