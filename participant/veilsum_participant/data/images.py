"""Images as records: a table names a file for each record, and the file's pixels become columns beside the table's own.

Whatever a file holds, it gives as many numbers as the shape has, or none: if it is missing, damaged or outside the folder, or
if its format does not give its values one meaning, the record has no pixels, and no other record changes. What a file is, its
content says and not its name. PNG and JPEG are decoded by Pillow, DICOM by pydicom, NIfTI by nibabel.
"""

from __future__ import annotations

import gzip
import logging
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePath
from typing import IO, Any, cast

import numpy as np
import pyarrow as pa

from veilsum_aggregation.arrays import Floats
from veilsum_node.errors import DataError, raising
from veilsum_participant.data.dicom import open_dicom
from veilsum_participant.data.reader import missing_package
from veilsum_participant.data.slices import INFLATED, NoPixels, NotAnImage, Slices, check_size
from veilsum_participant.settings.forms import pixel_names
from veilsum_participant.settings.query import Images

_HEAD = 348
"""Bytes of a file by which its format is known: NIfTI's magic, the furthest, ends there."""

_NIFTI = (
    (344, b"n+1\0", "Nifti1Image"), (344, b"ni1\0", "Nifti1Pair"), (4, b"n+2\0", "Nifti2Image"), (4, b"ni2\0", "Nifti2Pair"),
)  # fmt: skip
"""Where which magic stands in a header, and nibabel's class."""

_GREY = ("1", "L", "LA")
"""Pillow's modes of one colour in 8 bits or fewer."""

_PART = 1 << 22  # bytes that are inflated at a time

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"


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
        with raising(missing_package(name.partition(".")[0], "images"), on=ImportError):
            __import__(name)


def pixel_columns(images: Images, files: Any, wanted: list[str]) -> tuple[dict[str, Any], Counter[str]]:
    """The wanted pixels of each record's image.

    Args:
        images: folder and shape.
        files: (n,) array of text, each record's file within the folder.
        wanted: names of pixels.

    Returns:
        Arrays (n,) of float64, NaN where no image is named and infinite where the named one is not read; and how many records
        have none, by reason.
    """
    known = {name: place for place, name in enumerate(pixel_names(images.shape))}
    places = [known[name] for name in wanted]
    names = files.to_pylist()
    found = np.full((len(names), len(places)), np.nan)
    refused: Counter[str] = Counter()
    for row, name in enumerate(names):
        pixels = _reading.decode(images.folder, name, images.shape)
        if isinstance(pixels, NoPixels):
            refused[pixels] += 1
            found[row] = np.inf if name else np.nan
        else:
            found[row] = pixels.ravel()[places]
    return {name: pa.array(found[:, place]) for place, name in enumerate(wanted)}, refused


def read_image(folder: Path, name: object, shape: tuple[int, int, int]) -> Floats | NoPixels:
    """One image as channels or slices, rows and columns, or why there is none. Nothing raises, whatever a file holds."""
    _silence()
    if not isinstance(name, str) or not name:
        return NoPixels.ABSENT
    try:
        with ExitStack() as files:
            return _Opener(folder, files).slices(name).fit(shape)
    except NotAnImage as refused:
        return refused.reason
    except Exception:  # noqa: BLE001  what decoders raise is many things
        return NoPixels.DAMAGED


Decode = Callable[[Path, object, tuple[int, int, int]], Floats | NoPixels]
"""As :func:`read_image`."""


@dataclass
class _Reading:
    decode: Decode = read_image


_reading = _Reading()


def decode_by(decode: Decode) -> None:
    """Have this process decode images by another function from here on, which may do so elsewhere."""
    _reading.decode = decode


def preload() -> None:
    """Import what images are decoded with, which takes a while."""
    _silence()
    import pydicom.pixels  # noqa: F401


@cache
def _silence() -> None:
    """What decoders log and warn of quotes what they decode, and goes to standard error or to the site's log otherwise.

    Once for the process: what is silenced for a while returns while another study's thread still reads.
    """
    import nibabel.imageglobals
    import PIL  # noqa: F401
    import pydicom  # noqa: F401

    ours = r"veilsum_participant\.data\.(dicom|images|slices)"
    warnings.filterwarnings("ignore", module=rf"(pydicom|nibabel|PIL|numpy|{ours})\b")
    nibabel.imageglobals.logger.handlers.clear()
    for name in ("pydicom", "nibabel", "PIL"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False


class _Unpacked(gzip.GzipFile):
    """A file of gzip, of which no more is taken than the largest image has: NIfTI's header may hold extensions of any size."""

    def read(self, size: int | None = -1) -> bytes:
        left = INFLATED - self.tell()
        data = super().read(left if size is None or size < 0 else min(size, left))
        self._check(self.tell())
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._check(offset)
        return super().seek(offset, whence)

    def finish(self) -> None:
        """Unpack what is left, as far as the largest image goes: only at its end a stream says whether it is damaged."""
        while self.tell() < INFLATED and super().read(_PART):
            pass

    @staticmethod
    def _check(place: int) -> None:
        if place >= INFLATED:
            raise NotAnImage(NoPixels.SIZE)


@dataclass(frozen=True)
class _Opener:
    """Opens files of a folder, to be closed with ``files``."""

    folder: Path
    files: ExitStack

    def slices(self, name: str) -> Slices:
        """The slices of a file, by its content; of NIfTI in two files either may be named."""
        file, head = self._open(name)
        packed = isinstance(file, gzip.GzipFile)
        if head.startswith(b"DICM", 128) and not packed:
            return open_dicom(file)
        if (kind := next((kind for place, magic, kind in _NIFTI if head.startswith(magic, place)), None)) is not None:
            if kind.endswith("Image"):
                return _open_nifti(kind, image=file)
            if (pixels := self._beside(name, ".img")) is None:
                raise NotAnImage(NoPixels.ABSENT)
            return _open_nifti(kind, header=file, image=self._open(pixels)[0])
        if name.removesuffix(".gz").endswith(".img") and (header := self._beside(name, ".hdr")) is not None:
            return self.slices(header)
        if packed:
            raise NotAnImage(NoPixels.FORMAT)  # what it holds has no bounds
        return _open_picture(file, head)

    def _beside(self, name: str, suffix: str) -> str | None:
        """The file of the same name with another suffix."""
        other = str(PurePath(name.removesuffix(".gz")).with_suffix(suffix))
        return next((found for found in (other, f"{other}.gz") if (self.folder / found).is_file()), None)

    def _open(self, name: str) -> tuple[IO[bytes], bytes]:
        """A file, unpacked where it is of gzip, and its first bytes."""
        try:
            path = (self.folder / name).resolve()
            if not path.is_relative_to(self.folder.resolve()) or not path.is_file():
                raise NotAnImage(NoPixels.ABSENT)
            file: IO[bytes] = self.files.enter_context(path.open("rb"))
        except (OSError, ValueError) as error:  # a name that is too long, or a folder that may not be entered
            raise NotAnImage(NoPixels.ABSENT) from error
        if file.read(2) == b"\x1f\x8b":
            file.seek(0)
            file = cast(IO[bytes], self.files.enter_context(_Unpacked(fileobj=file)))
        file.seek(0)
        head = file.read(_HEAD)
        file.seek(0)
        return file, head


def _open_nifti(kind: str, **files: IO[bytes]) -> Slices:
    """The first volume along the closest canonical axes: slices from below, rows from behind, columns from the left.

    Raises:
        NotAnImage: its values are neither numbers nor colours, it has none or more than four dimensions, or its values lie in
            its header.
        Exception: whatever nibabel raises of a damaged file.
    """
    import nibabel
    from nibabel.orientations import apply_orientation, io_orientation

    family = getattr(nibabel, kind)
    image = family.from_file_map(family.make_file_map(files), mmap=False)  # a mapped file that is cut short ends the process
    shape, names = image.shape, image.get_data_dtype().names
    if any(length != 1 for length in shape[4:]):
        raise NotAnImage(NoPixels.FRAMES)
    if image.get_data_dtype().kind == "c":
        raise NotAnImage(NoPixels.SCALE)
    if names not in (None, ("R", "G", "B")):
        raise NotAnImage(NoPixels.COLOURS)
    space = (*shape, 1, 1, 1)[:3]
    check_size(*space, 1 if names is None else len(names))
    offset = image.dataobj.offset
    if not shape or 0 in shape or (kind.endswith("Image") and offset < image.header_class.single_vox_offset):
        raise NotAnImage(NoPixels.DAMAGED)  # nibabel takes the header's own bytes for values
    volume = np.asarray(image.dataobj[(slice(None),) * len(shape[:3]) + (0,) * len(shape[3:])]).reshape(space)
    for file in files.values():
        if isinstance(file, _Unpacked):
            file.finish()
    volume = apply_orientation(volume, io_orientation(image.affine)).T  # type: ignore[no-untyped-call]

    def read(place: int) -> Floats:
        layer = volume[place]
        return layer.astype(np.float64) if names is None else np.stack([layer[name] for name in names], -1).astype(np.float64)

    return Slices(len(volume), read)


_ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""First column and row of each pass of an interlaced PNG, and how far apart they are (ISO/IEC 15948, 8.2)."""


def _check_rows(file: IO[bytes], size: tuple[int, int], head: bytes) -> None:
    """Insist that a PNG has all its rows, which begin with a byte for their filter: Pillow leaves black what is not there.

    Raises:
        NotAnImage: a chunk's checksum is of other bytes.
        struct.error: its chunks end before.
    """
    depth, kind, *_, interlaced = head[24:29]
    bits, need = depth * {2: 3, 4: 2, 6: 4}.get(kind, 1), 0
    for left, top, across, down in _ADAM7 if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(size[0] - left) // across), -(-(size[1] - top) // down)
        need += rows * (1 + -(-columns * bits // 8)) if columns > 0 < rows else 0
    place, stream = len(_PNG), zlib.decompressobj()
    while need > 0:
        file.seek(place)
        length, name = struct.unpack(">I4s", file.read(8))
        place += 12 + length
        data = file.read(length) if name == b"IDAT" else b""
        if data and zlib.crc32(name + data) != int.from_bytes(file.read(4)):  # of these chunks Pillow does not look at it
            raise NotAnImage(NoPixels.DAMAGED)
        while need > 0 and (found := stream.decompress(data, _PART)):
            need -= len(found)
            data = stream.unconsumed_tail
    file.seek(0)


def _open_picture(file: IO[bytes], head: bytes) -> Slices:
    """The one slice of a PNG or JPEG, turned as its EXIF says.

    Raises:
        NotAnImage: it is neither, or has several frames, or its colours are of ink, translucent, or cut to 8 bits by Pillow.
        Exception: whatever Pillow raises of a damaged file.
    """
    from PIL import Image, ImageOps

    if not head.startswith((_PNG, _JPEG)):
        raise NotAnImage(NoPixels.FORMAT)
    depth, kind = head[24:26] if head.startswith(_PNG) else (8, 0)
    if depth == 16 and kind != 0:
        raise NotAnImage(NoPixels.COLOURS)
    try:
        opened = Image.open(file, formats=("PNG", "JPEG"))
    except Image.DecompressionBombError as error:
        raise NotAnImage(NoPixels.SIZE) from error
    check_size(*opened.size, 1 if opened.mode in _GREY or opened.mode.startswith("I") else 3)
    if opened.format == "PNG" and getattr(opened, "is_animated", False):
        raise NotAnImage(NoPixels.FRAMES)
    if opened.format == "PNG":
        _check_rows(file, opened.size, head)
    image = ImageOps.exif_transpose(opened)
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "I", "I;16"):
        raise NotAnImage(NoPixels.COLOURS)
    if image.mode == "P" and int(np.asarray(image).max()) >= len(image.getpalette() or ()) // 3:
        raise NotAnImage(NoPixels.DAMAGED)  # a colour that the palette does not have would be black
    wide = image.mode.startswith("I")
    if image.has_transparency_data and (wide or image.convert("RGBA").getchannel("A").getextrema() != (255, 255)):
        raise NotAnImage(NoPixels.COLOURS)
    if not wide:
        image = image.convert("L" if image.mode in _GREY else "RGB")
    return Slices(1, lambda _: np.asarray(image, dtype=np.float64))
