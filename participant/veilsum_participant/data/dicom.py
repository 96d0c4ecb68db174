"""DICOM objects as arrays: what the standard says of stored pixels is applied by pydicom, or the object is refused.

Values are those of the modality (Hounsfield units, gray, real-world values), never those of a window, which is for eyes.
Sections are those of DICOM PS3.3.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from veilsum_aggregation.arrays import Floats
from veilsum_participant.data.slices import INFLATED, NoPixels, NotAnImage, Slices, check_size

_MEASURED = {"HU", "HU_MOD", "MGML", "Z_EFF", "ED", "EDW", "PCT"}
"""Rescale types (C.11.1.1.2) whose values measure: how they are displayed changes none. Film's density is not among them."""

_READ = 1 << 20


def open_dicom(file: IO[bytes]) -> Slices:
    """The frames of one file, from the feet up where each frame's place in the body is told, and else as they are stored.

    Raises:
        NotAnImage: the object has no pixels, or none that the standard gives one meaning.
        Exception: whatever pydicom raises of a damaged file.
    """
    import pydicom
    from pydicom.pixels.decoders.base import get_decoder
    from pydicom.pixels.utils import as_pixel_options

    _check_inflated(file)
    dataset = pydicom.dcmread(file)
    if not any(name in dataset for name in ("PixelData", "FloatPixelData", "DoubleFloatPixelData")):
        raise NotAnImage(NoPixels.EMPTY)
    frames = int(as_pixel_options(dataset)["number_of_frames"])
    packed = frames > 1 and dataset.BitsAllocated == 1
    colours = 3 if dataset.PhotometricInterpretation == "PALETTE COLOR" else dataset.SamplesPerPixel
    check_size(dataset.Rows, dataset.Columns, colours, frames if packed else 1)
    _check_told(dataset, frames)
    order = _order(dataset, frames)
    try:
        decoder = get_decoder(dataset.file_meta.TransferSyntaxUID)
    except NotImplementedError as error:
        raise NotAnImage(NoPixels.COMPRESSION) from error
    if not decoder.is_available:
        raise NotAnImage(NoPixels.COMPRESSION)

    # pydicom cuts frames of single bits that do not begin on a byte, so these are unpacked together
    bits = decoder.as_array(dataset) if packed else None

    def read(place: int) -> Floats:
        index = order[place]
        stored, told = decoder.as_array(dataset, index=index) if bits is None else (bits[0][index], bits[1])
        return _values(dataset, stored, index, str(told["photometric_interpretation"]))

    return Slices(len(order), read)


def _check_inflated(file: IO[bytes]) -> None:
    """Refuse a deflated object (PS3.5, A.5) of too many bytes: pydicom inflates it at once, to 1,000 times what is stored."""
    from pydicom.filereader import _read_file_meta_info, read_preamble  # as dcmread does
    from pydicom.uid import DeflatedExplicitVRLittleEndian

    read_preamble(file, force=False)  # type: ignore[arg-type]
    if _read_file_meta_info(file).get("TransferSyntaxUID") == DeflatedExplicitVRLittleEndian:  # type: ignore[arg-type]
        stream, found = zlib.decompressobj(-zlib.MAX_WBITS), 0
        while not stream.eof and (data := file.read(_READ)):
            while data and not stream.eof:
                found += len(stream.decompress(data, _READ))
                data = stream.unconsumed_tail
                if found > INFLATED:
                    raise NotAnImage(NoPixels.SIZE)
    file.seek(0)


def _check_told(dataset: Any, frames: int) -> None:
    """Refuse what pydicom does not look at: bits that lie elsewhere, tiles of one picture, segments side by side."""
    if dataset.get("HighBit") is not None and dataset.HighBit != dataset.BitsStored - 1:
        raise NotAnImage(NoPixels.SCALE)
    segments = 1 if dataset.get("SegmentationType") == "LABELMAP" else len(dataset.get("SegmentSequence") or ())
    short = 0 < len(dataset.get("PerFrameFunctionalGroupsSequence") or ()) < frames
    if frames > 1 and (short or segments > 1 or "TotalPixelMatrixColumns" in dataset):
        raise NotAnImage(NoPixels.FRAMES)


def _values(dataset: Any, stored: NDArray[Any], frame: int, photometric: str) -> Floats:
    """A frame's values: (rows, columns) in the modality's unit, or (rows, columns, 3) colours."""
    from pydicom.pixels.processing import apply_color_lut

    scale = _scale(dataset, frame)
    if stored.ndim != (3 if photometric == "RGB" else 2):
        raise NotAnImage(NoPixels.COLOURS)
    if photometric in ("RGB", "PALETTE COLOR"):
        if scale is not None and (scale.get("RescaleSlope"), scale.get("RescaleIntercept")) != (1, 0):
            raise NotAnImage(NoPixels.SCALE)  # none is defined for colours
        if photometric == "RGB":
            return stored.astype(np.float64)
        wide = stored.astype(np.int64)  # an index would wrap around in the type of the palette's entries
        entries, first, _ = dataset.RedPaletteColorLookupTableDescriptor
        colours = apply_color_lut(np.clip(wide, first, first + (entries or 1 << 16) - 1), dataset)
        if colours.shape[-1] != 3 or (colours.dtype.itemsize > 1 and not dataset.file_meta.TransferSyntaxUID.is_little_endian):
            raise NotAnImage(NoPixels.COLOURS)
        return colours.astype(np.float64)
    if photometric not in ("MONOCHROME1", "MONOCHROME2") or dataset.get("PixelPresentation") in ("COLOR", "MIXED"):
        raise NotAnImage(NoPixels.COLOURS)
    mapped, measured = _mapped(dataset, stored, frame, scale)
    if photometric == "MONOCHROME2" or measured:
        return mapped
    low, high = _range(dataset, scale)
    return low + high - mapped


def _scale(dataset: Any, frame: int) -> Any:
    """What holds a frame's one modality LUT (C.11.1), as a table or as slope and intercept; None without one."""
    places = (dataset, *_groups(dataset, frame, "PixelValueTransformationSequence"))
    found = [
        item for item in places if item.get("ModalityLUTSequence") or "RescaleSlope" in item or "RescaleIntercept" in item
    ]
    for item in found:
        line = [item.get("RescaleSlope"), item.get("RescaleIntercept")]
        if len(found) > 1 or line.count(None) != (2 if item.get("ModalityLUTSequence") else 0):
            raise NotAnImage(NoPixels.SCALE)
        if None not in line:
            _check_slope(*line)
    return found[0] if found else None


def _check_slope(slope: Any, intercept: Any = 0) -> None:
    """Refuse a line that gives all stored values one value, or values that are no numbers."""
    if float(slope) == 0 or not math.isfinite(float(slope)) or not math.isfinite(float(intercept)):
        raise NotAnImage(NoPixels.SCALE)


def _mapped(dataset: Any, stored: NDArray[Any], frame: int, scale: Any) -> tuple[Floats, bool]:
    """Stored values on the modality's scale, and whether they measure something."""
    dose = "DoseGridScaling" in dataset or dataset.get("Modality") == "RTDOSE"
    if dose and (scale is not None or dataset.get("DoseGridScaling") is None):
        raise NotAnImage(NoPixels.SCALE)
    if scale is not None:
        kind = scale.get("RescaleType") or ""
        return _rescaled(stored, scale), kind in _MEASURED or dataset.get("Modality") in ("CT", "PT")
    if dose:  # C.8.8.3.4
        _check_slope(dataset.DoseGridScaling)
        return stored.astype(np.float64) * float(dataset.DoseGridScaling), True
    if dataset.get("SegmentationType") == "FRACTIONAL":  # C.8.20.2.3
        _check_slope(dataset.MaximumFractionalValue)
        return stored.astype(np.float64) / int(dataset.MaximumFractionalValue), True
    maps = [*(dataset.get("RealWorldValueMappingSequence") or ()), *_groups(dataset, frame, "RealWorldValueMappingSequence")]
    if len(maps) > 1:
        raise NotAnImage(NoPixels.SCALE)
    return (_real_world(stored, maps[0]), True) if maps else (stored.astype(np.float64), False)


def _rescaled(stored: NDArray[Any], scale: Any) -> Floats:
    from pydicom.pixels.processing import apply_modality_lut

    wide = stored.astype(np.int64) if stored.dtype.kind in "iu" else stored  # a table's index would wrap around
    return np.asarray(apply_modality_lut(wide, scale), dtype=np.float64)


def _real_world(stored: NDArray[Any], mapping: Any) -> Floats:
    """Real-world values (C.7.6.16.2.11); NaN where a stored value has none."""
    low, high = (
        float(mapping.get(f"DoubleFloatRealWorldValue{end}Mapped", mapping.get(f"RealWorldValue{end}Mapped")))
        for end in ("FirstValue", "LastValue")
    )
    known = (stored >= low) & (stored <= high)
    if "RealWorldValueLUTData" in mapping:
        table = np.atleast_1d(np.asarray(mapping.RealWorldValueLUTData, dtype=np.float64))
        found = table[np.where(known, stored - low, 0).astype(np.int64)]
    else:
        _check_slope(mapping.RealWorldValueSlope, mapping.RealWorldValueIntercept)
        found = stored * float(mapping.RealWorldValueSlope) + float(mapping.RealWorldValueIntercept)
    return np.where(known, found, np.nan)


def _range(dataset: Any, scale: Any) -> tuple[float, float]:
    """What the least and the greatest value that can be stored become."""
    if scale is not None and scale.get("ModalityLUTSequence"):
        return 0, 2.0 ** scale.ModalityLUTSequence[0].LUTDescriptor[2] - 1
    if "PixelData" not in dataset:
        raise NotAnImage(NoPixels.SCALE)
    low = -(1 << dataset.BitsStored - 1) if dataset.PixelRepresentation else 0
    ends = np.array([low, low + (1 << dataset.BitsStored) - 1])
    low, high = ends if scale is None else _rescaled(ends, scale)
    return float(low), float(high)


def _groups(dataset: Any, frame: int, name: str) -> list[Any]:
    """The items of a functional group (C.7.6.16): those of all frames, and those of one."""
    frames = dataset.get("PerFrameFunctionalGroupsSequence") or ()
    groups = [*(dataset.get("SharedFunctionalGroupsSequence") or ()), *frames[frame : frame + 1]]
    return [item for group in groups for item in group.get(name) or ()]


def _order(dataset: Any, frames: int) -> Sequence[int]:
    """The first frame at each place along the axis through parallel frames; all as they are stored where none is told."""
    stored = range(frames)
    if frames == 1:
        return stored
    if (offsets := dataset.get("GridFrameOffsetVector")) is not None:  # C.8.8.3
        heights = np.array(offsets, dtype=np.float64)
    elif not dataset.get("PerFrameFunctionalGroupsSequence"):
        return stored  # without a look at each of so many, of which a file may tell any number
    else:
        places = [_groups(dataset, frame, "PlanePositionSequence") for frame in stored]
        planes = [_groups(dataset, frame, "PlaneOrientationSequence") for frame in stored]
        if any(len(items) != 1 for items in (*places, *planes)):
            return stored
        axes = np.array([items[0].ImageOrientationPatient for items in planes], dtype=np.float64)
        if not np.allclose(axes, axes[0], atol=1e-3):
            return stored
        normal = np.cross(axes[0, :3], axes[0, 3:])
        heights = np.array([items[0].ImagePositionPatient for items in places], dtype=np.float64) @ normal
    if len(heights) != frames:
        raise NotAnImage(NoPixels.FRAMES)
    _, first = np.unique(np.round(heights, 3), return_index=True)
    return [int(frame) for frame in first] if len(first) > 1 else stored
