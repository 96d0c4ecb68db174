"""What images of all formats have in common: slices that are brought to a shape, and the reasons for which there are none."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from veilsum_aggregation.arrays import Floats

_LUMA = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue (ITU-R BT.601)."""

LARGEST = 1 << 28
"""Pixels that are decoded at once, of a slice or of a volume: 2 GiB as float64."""

INFLATED = 9 * LARGEST
"""Bytes that are taken of what is deflated or of gzip: as many as the largest image takes once decoded, and an eighth."""


class NoPixels(StrEnum):
    """Why a record has no pixels, for its site's own eyes."""

    ABSENT = "no such file in the folder, or none that may be read"
    FORMAT = "neither DICOM, NIfTI, PNG nor JPEG"
    EMPTY = "DICOM without pixels"
    COMPRESSION = "compressed in a way that no installed decoder reads"
    DAMAGED = "damaged, or of a kind that its decoder does not read"
    COLOURS = "colours without one meaning: of ink, translucent, of 16 bits, or of an interpretation that is not read"
    SCALE = "values without one scale: several mappings, half of one, complex numbers, or unusual bits"
    FRAMES = "parts of several pictures: tiles, segments, an animation, or more than four dimensions"
    SIZE = f"more than {LARGEST:,} pixels at once"


class NotAnImage(Exception):  # noqa: N818  no error: a file may be anything
    """A file is not read as an image, for a reason that is one of few and quotes nothing of it."""

    def __init__(self, reason: NoPixels) -> None:
        super().__init__(reason.value)
        self.reason = reason


def check_size(*lengths: int) -> None:
    """Refuse, before it is decoded, what would need too much memory.

    Raises:
        NotAnImage: the product of the lengths is above :data:`LARGEST`.
    """
    if math.prod(lengths) > LARGEST:
        raise NotAnImage(NoPixels.SIZE)


@dataclass(frozen=True)
class Slices:
    """An image as one slice or several.

    Attributes:
        count: how many there are.
        read: the slice at a place from 0 on: (rows, columns), or (rows, columns, 3) of red, green and blue.
    """

    count: int
    read: Callable[[int], Floats]

    def fit(self, shape: tuple[int, int, int]) -> Floats:
        """The slices in a shape; rows and columns are resampled bilinearly.

        Three channels of colours are those of the middle slice. Whatever else is wanted are grey slices at even distances,
        the middle one where it is one. Colours become grey by their luma.
        """
        channels, height, width = shape
        middle = self.read(self.count // 2)
        if channels == 3 and middle.ndim == 3:
            return np.stack([_resampled(middle[..., colour], height, width) for colour in range(3)])
        if channels == 1 or self.count == 1:
            return np.stack([_resampled(middle, height, width)] * channels)
        del middle  # one slice at a time is held whole
        places = np.rint(np.linspace(0, self.count - 1, channels)).astype(int)
        return np.stack([_resampled(self.read(int(place)), height, width) for place in places])


def _resampled(pixels: Floats, height: int, width: int) -> Floats:
    """One slice in grey, of so many rows and columns."""
    from PIL import Image

    grey = pixels if pixels.ndim == 2 else pixels @ _LUMA
    if grey.shape == (height, width):
        return grey
    image = Image.fromarray(np.ascontiguousarray(grey, dtype=np.float32))
    return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), dtype=np.float64)
