"""Images by their standards: what DICOM, NIfTI, PNG and JPEG say of their values is applied, or the image is refused.

The oracles are pydicom's and nibabel's own pipelines over every file that these packages ship, and plain arithmetic.
"""

from __future__ import annotations

import fnmatch
import gzip
import io
import logging
import random
import shutil
import struct
import tracemalloc
import warnings
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.pixels.decoders.base import Decoder
from pydicom.pixels.processing import apply_color_lut, apply_modality_lut, convert_color_space
from pydicom.sequence import Sequence
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    RLELossless,
    SecondaryCaptureImageStorage,
    generate_uid,
)

from veilsum_aggregation.arrays import Floats
from veilsum_participant.checks import SiteCheck
from veilsum_participant.data import dicom, images, slices
from veilsum_participant.data.images import read_image
from veilsum_participant.data.slices import NoPixels
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.forms import pixel_names
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn

pytestmark = pytest.mark.filterwarnings("ignore")
"""Filters of the process, such as images sets, end with each test."""

LUMA = np.array([0.299, 0.587, 0.114])

PYDICOM = Path(pydicom.__file__).parent / "data"
NIBABEL = Path(nibabel.__file__).parent

REFUSED = {
    NoPixels.EMPTY: (
        "charset_files/chrJapMulti*.dcm charset_files/chrKoreanMulti.dcm charset_files/chrSQEncoding*.dcm palettes/*.dcm"
        " test_files/UN_sequence.dcm test_files/dicomdirtests/DICOMDIR* test_files/dicomdirtests/TINY_ALPHA/DICOMDIR"
        " test_files/dicomdirtests/TINY_ALPHA/PT*/IM* test_files/empty_charset_LEI.dcm test_files/no_meta_group_length.dcm"
        " test_files/priv_SQ.dcm test_files/reportsi*.dcm test_files/rtplan*.dcm test_files/test-SR.dcm"
        " test_files/waveform_ecg.dcm nicom/tests/data/csa_slice_norm.dcm"
    ),
    NoPixels.COMPRESSION: (
        "test_files/JPEGLSNearLossless_*.dcm test_files/MR_small_jpeg_ls_lossless.dcm test_files/SC_rgb_jls_lossy_*.dcm"
        " test_files/SC_rgb_jpeg_gdcm.dcm"
    ),
    NoPixels.DAMAGED: (
        # cut short, without a transfer syntax or rows, of words where bytes are told, with a colour space that it has not
        "test_files/MR_truncated.dcm test_files/meta_missing_tsyntax.dcm test_files/nested_priv_SQ.dcm test_files/badVR.dcm"
        " test_files/GDCMJ2K_TextGBR.dcm test_files/JPEG2000-embedded-sequence-delimiter.dcm"
        # JPEG of 12 bits, which Pillow does not read
        " test_files/JPEG-lossy.dcm test_files/JPGExtended.dcm"
    ),
    NoPixels.FRAMES: "tests/data/row_major.dconn.nii",  # a matrix between places, not an image of them
    NoPixels.ABSENT: "tests/data/nifti1.hdr tests/data/nifti2.hdr",  # headers without their .img
    NoPixels.FORMAT: (
        # DICOM from before DICM stood at byte 128
        "test_files/ExplVR_*EndNoMeta.dcm test_files/no_meta.dcm test_files/rtstruct.dcm"
        # DICOM or nothing within gzip, and within zip
        " nicom/tests/data/*.gz test_files/zipMR.gz"
        # other formats, and texts
        " *.txt *.json *.md *.rst *.icc *.dump *.bin *.gii *.gii.gz *.gii.bz2 *.dat *.nc *.m *.gitignore */README"
        " *.PAR *.REC *.trk *.tck *.mnc *.mgz *.v *.HEAD *.BRIK *.BRIK.gz tests/data/analyze.hdr"
    ),
}
"""Which of the files that pydicom and nibabel ship are not read, and why."""


def shipped(root: Path) -> list[str]:
    """The files that a package ships for tests."""
    files = (path for path in root.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".mo"))
    return sorted(str(path.relative_to(root)) for path in files if root == PYDICOM or path.parent.name == "data")


def refusal(name: str) -> NoPixels | None:
    found = {reason for reason, names in REFUSED.items() if any(fnmatch.fnmatch(name, item) for item in names.split())}
    assert len(found) <= 1, name
    return next(iter(found), None)


def pixels_of(folder: Path, name: str, shape: tuple[int, int, int]) -> Floats:
    found = read_image(folder, name, shape)
    assert not isinstance(found, NoPixels), f"{name}: {found}"
    return found


def assert_read(path: Path, frames: NDArray[Any]) -> None:
    """Check that all slices of a file are read, its middle one where one is wanted, and the colours of that.

    Args:
        path: the file.
        frames: (n, rows, columns), or (n, rows, columns, 3) of colours.
    """
    count, rows, columns = frames.shape[:3]
    grey = frames @ LUMA if frames.ndim == 4 else frames
    middle = count // 2
    close = {"rtol": 1e-12, "atol": 1e-9}
    np.testing.assert_allclose(pixels_of(path.parent, path.name, (1, rows, columns)), grey[[middle]], **close)
    if frames.ndim == 4:
        colours = np.moveaxis(frames[middle], -1, 0)
        np.testing.assert_array_equal(pixels_of(path.parent, path.name, (3, rows, columns)), colours)
    elif count > 1:
        np.testing.assert_allclose(pixels_of(path.parent, path.name, (count, rows, columns)), grey, **close)
    else:
        np.testing.assert_allclose(pixels_of(path.parent, path.name, (3, rows, columns)), np.repeat(grey, 3, 0), **close)


def pydicoms(path: Path) -> NDArray[Any]:
    """The frames of a DICOM file by pydicom's own pipeline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = pydicom.dcmread(path)
        frames = dataset.pixel_array
    if dataset.PhotometricInterpretation == "MONOCHROME1":
        frames = (1 << dataset.BitsStored) - 1 - frames.astype(int)
    frames = apply_modality_lut(frames, dataset)
    if dataset.PhotometricInterpretation == "PALETTE COLOR":
        frames = apply_color_lut(frames, dataset)
    if "DoseGridScaling" in dataset:
        frames = frames * float(dataset.DoseGridScaling)
    single = int(dataset.get("NumberOfFrames") or 1) == 1
    return np.asarray(frames[None] if single else frames, dtype=np.float64)


def nibabels(path: Path) -> NDArray[Any]:
    """The slices of a NIfTI file's first volume by nibabel's own pipeline."""
    volume = nibabel.as_closest_canonical(nibabel.load(path)).get_fdata()  # type: ignore[no-untyped-call, attr-defined]
    volume = volume[..., 0] if volume.ndim == 4 else volume
    return np.asarray(volume).T


@pytest.mark.parametrize("root", [PYDICOM, NIBABEL], ids=["pydicom", "nibabel"])
def test_each_shipped_file_is_read_as_its_package_reads_it_or_refused_by_name(root: Path) -> None:
    read = {True: 0, False: 0}
    for name in shipped(root):
        path, reason = root / name, refusal(name)
        if reason is not None:
            assert read_image(path.parent, path.name, (1, 4, 4)) is reason, name
        else:
            nifti = path.name.endswith((".nii", ".nii.gz"))
            assert_read(path, nibabels(path) if nifti else pydicoms(path))
        read[reason is None] += 1
    assert min(read.values()) >= (80 if root == PYDICOM else 10), read


@pytest.mark.parametrize("suffix", ["", ".dcm", ".nii", ".nii.gz", ".png", ".hdr", ".txt"])
def test_what_a_file_is_its_content_says_and_not_its_name(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "picture", "PNG")
    Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4)).save(tmp_path / "photo", "JPEG")
    for path in (
        PYDICOM / "test_files/CT_small.dcm", PYDICOM / "test_files/dicomdirtests/98892003/MR1/5641",
        NIBABEL / "tests/data/anatomical.nii", NIBABEL / "tests/data/example4d.nii.gz",
        NIBABEL / "tests/data/example_nifti2.nii.gz", tmp_path / "picture", tmp_path / "photo",
    ):  # fmt: skip
        shutil.copy(path, tmp_path / f"named{suffix}")
        want = pixels_of(path.parent, path.name, (1, 5, 6))
        np.testing.assert_array_equal(pixels_of(tmp_path, f"named{suffix}", (1, 5, 6)), want)


# --- DICOM ---


def item(**elements: Any) -> Sequence:
    dataset = Dataset()
    for name, value in elements.items():
        setattr(dataset, name, value)
    return Sequence([dataset])


def write(path: Path, frames: NDArray[Any], *, syntax: Any = ExplicitVRLittleEndian, **elements: Any) -> Path:
    """A DICOM file of (frames, rows, columns) or, with three samples a pixel, (frames, rows, columns, 3)."""
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    meta.TransferSyntaxUID = syntax
    little = syntax != ExplicitVRBigEndian
    dataset = FileDataset(str(path), {}, bytes(128), meta, is_implicit_VR=False, is_little_endian=little)
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.PatientName, dataset.Modality = "Smith^Anna", "OT"
    bits = 8 * frames.dtype.itemsize
    colours = frames.ndim == 4
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = (3, "RGB") if colours else (1, "MONOCHROME2")
    dataset.NumberOfFrames, dataset.Rows, dataset.Columns = frames.shape[:3]
    dataset.PixelRepresentation = int(frames.dtype.kind == "i")
    dataset.BitsAllocated = dataset.BitsStored = bits
    dataset.HighBit = bits - 1
    if colours:
        dataset.PlanarConfiguration = 0
    for name, value in elements.items():
        setattr(dataset, name, value)
    if "BitsStored" in elements and "HighBit" not in elements:
        dataset.HighBit = dataset.BitsStored - 1
    stored = np.moveaxis(frames, -1, 1) if dataset.get("PlanarConfiguration") else frames
    order = "<" if little else ">"
    if frames.dtype.kind == "f":
        del dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation
        dataset.FloatPixelData = stored.astype(f"{order}f4").tobytes()
    else:
        data = stored.astype(stored.dtype.newbyteorder(order)).tobytes()
        dataset.PixelData = data + bytes(len(data) % 2)
        dataset["PixelData"].VR = "OW" if bits > 8 else "OB"
    if syntax == RLELossless:
        dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset.compress(RLELossless)
    dataset.save_as(path, enforce_file_format=True)
    return path


GREY = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5) * 7 - 100


@pytest.mark.parametrize("syntax", [ExplicitVRLittleEndian, ExplicitVRBigEndian, RLELossless])
@pytest.mark.parametrize("where", ["root", "shared", "frame"])
def test_a_rescale_is_applied_wherever_it_stands(tmp_path: Path, where: str, syntax: Any) -> None:
    """Enhanced objects have it in functional groups, of all frames or of each."""
    lines = [(1, -1024), (2.5, 3), (0.5, 0)] if where == "frame" else [(1, -1024)] * 3
    scales = [{"RescaleSlope": str(a), "RescaleIntercept": str(b), "RescaleType": "HU"} for a, b in lines]
    groups = [item(PixelValueTransformationSequence=item(**scale))[0] for scale in scales]
    elements: dict[str, Any] = {
        "root": scales[0],
        "shared": {"SharedFunctionalGroupsSequence": Sequence(groups[:1])},
        "frame": {"SharedFunctionalGroupsSequence": item(), "PerFrameFunctionalGroupsSequence": Sequence(groups)},
    }[where]
    want = np.stack([frame * a + b for frame, (a, b) in zip(GREY.astype(float), lines, strict=True)])
    assert_read(write(tmp_path / "a", GREY, syntax=syntax, **elements), want)


def modality_table(entries: list[int], first: int, bits: int = 16) -> Sequence:
    table = item(LUTDescriptor=[len(entries), first, bits], ModalityLUTType="US", LUTData=entries)
    table[0]["LUTDescriptor"].VR, table[0]["LUTData"].VR = "SS" if first < 0 else "US", "US"
    return table


@pytest.mark.parametrize(
    ("kind", "first"), [*((kind, first) for kind in ("u1", "u2", "i2") for first in (0, 7)), ("i2", -5), ("i2", -32768)]
)
def test_a_modality_table_is_looked_up_by_stored_values_of_any_type(tmp_path: Path, kind: str, first: int) -> None:
    frames = np.array([[[0, 3, 9, 100], [120, 5, 6, 7]]], dtype=kind)
    entries = [number * number % 60_000 for number in range(300)]
    want = [[[entries[min(max(int(value) - first, 0), 299)] for value in row] for row in frame] for frame in frames]
    path = write(tmp_path / "a", frames, ModalityLUTSequence=modality_table(entries, first))
    assert_read(path, np.array(want, dtype=float))


@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2"])
@pytest.mark.parametrize("line", [None, (2, 10), (-0.5, 3)])
def test_what_counts_darkness_is_inverted_within_what_can_be_stored(tmp_path: Path, kind: str, line: Any) -> None:
    bits = 8 * np.dtype(kind).itemsize - 1
    low = -(1 << bits - 1) if kind[0] == "i" else 0
    high = low + (1 << bits) - 1
    frames = np.linspace(low, high, 20).astype(kind).reshape(1, 4, 5)
    scale = {} if line is None else {"RescaleSlope": str(line[0]), "RescaleIntercept": str(line[1]), "RescaleType": "US"}
    path = write(tmp_path / "a", frames, PhotometricInterpretation="MONOCHROME1", BitsStored=bits, **scale)
    slope, intercept = line or (1, 0)
    assert_read(path, (low + high - frames.astype(float)) * slope + intercept)


def test_a_measurement_is_not_inverted_by_how_it_is_displayed(tmp_path: Path) -> None:
    dark = {"PhotometricInterpretation": "MONOCHROME1", "RescaleSlope": "2", "RescaleIntercept": "-1024"}
    for elements in ({"Modality": "CT"}, {"Modality": "PT"}, {"RescaleType": "HU"}, {"RescaleType": "MGML"}):
        assert_read(write(tmp_path / "a", GREY, **dark, **elements), GREY * 2.0 - 1024)
    table = modality_table([5, 6, 250], 0, 8)
    path = write(tmp_path / "b", np.array([[[0, 1, 2, 9]]], "u1"), PhotometricInterpretation="MONOCHROME1",
                 ModalityLUTSequence=table)  # fmt: skip
    assert_read(path, np.array([[[250.0, 249, 5, 5]]]))


def test_doses_fractions_and_real_world_values_are_scaled(tmp_path: Path) -> None:
    frames = np.arange(60, dtype=np.uint16).reshape(3, 4, 5)
    assert_read(write(tmp_path / "dose", frames, Modality="RTDOSE", DoseGridScaling="0.0125"), frames * 0.0125)
    parts = {"SegmentationType": "FRACTIONAL", "MaximumFractionalValue": 59}
    assert_read(write(tmp_path / "parts", frames, Modality="SEG", **parts), frames / 59)
    line = {"RealWorldValueFirstValueMapped": 0, "RealWorldValueLastValueMapped": 50}
    line |= {"RealWorldValueSlope": 0.5, "RealWorldValueIntercept": -3.0}
    want = np.where(frames <= 50, frames * 0.5 - 3, np.nan)
    for place in ("root", "shared"):
        mapping = {"RealWorldValueMappingSequence": item(**line)}
        elements: Any = mapping if place == "root" else {"SharedFunctionalGroupsSequence": item(**mapping)}
        assert_read(write(tmp_path / place, frames, **elements), want)
    table = item(RealWorldValueFirstValueMapped=10, RealWorldValueLastValueMapped=69,
                 RealWorldValueLUTData=[float(number) ** 2 for number in range(60)])  # fmt: skip
    path = write(tmp_path / "table", frames, RealWorldValueMappingSequence=table)
    assert_read(path, np.where(frames >= 10, (frames - 10.0) ** 2, np.nan))
    both = {"RescaleSlope": "3", "RescaleIntercept": "1", "RealWorldValueMappingSequence": item(**line)}
    assert_read(write(tmp_path / "both", frames, **both), frames * 3.0 + 1)  # the modality's scale comes first
    floats = np.linspace(-1, 1, 60, dtype=np.float32).reshape(3, 4, 5)
    ends = {"DoubleFloatRealWorldValueFirstValueMapped": -2.0, "DoubleFloatRealWorldValueLastValueMapped": 2.0}
    mapping = {"RealWorldValueMappingSequence": item(**ends, RealWorldValueSlope=2.0, RealWorldValueIntercept=0.0)}
    assert_read(write(tmp_path / "floats", floats, **mapping), floats.astype(float) * 2)


def palette(entries: NDArray[Any], first: int = 0) -> dict[str, Any]:
    names = ("Red", "Green", "Blue")
    bits = 8 * entries.dtype.itemsize
    elements: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for name, column in zip(names, entries.T, strict=True):
        elements[f"{name}PaletteColorLookupTableDescriptor"] = [len(entries), first, bits]
        elements[f"{name}PaletteColorLookupTableData"] = np.ascontiguousarray(column).tobytes()
    return elements


@pytest.mark.parametrize("depth", ["u1", "<u2"])
@pytest.mark.parametrize("kind", ["u1", "u2"])
@pytest.mark.parametrize("first", [0, 4])
def test_a_palettes_indices_become_colours(tmp_path: Path, kind: str, depth: str, first: int) -> None:
    entries = np.random.default_rng(4).integers(0, np.iinfo(depth).max, (100, 3)).astype(depth)
    frames = np.array([[[0, 3, 4, 99], [100, 103, 104, 255]], [[1, 2, 3, 4], [5, 6, 7, 8]]], dtype=kind)
    frames[0, 1, 3] = np.iinfo(kind).max  # beyond the palette is its last entry
    want = entries[np.clip(frames.astype(int) - first, 0, 99)].astype(float)
    assert_read(write(tmp_path / "a", frames, **palette(entries, first)), want)


@pytest.mark.parametrize("planar", [0, 1])
@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("space", ["RGB", "YBR_FULL"])
def test_colours_are_those_of_the_middle_frame(tmp_path: Path, space: str, count: int, planar: int) -> None:
    frames = np.random.default_rng(5).integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    want = frames if space == "RGB" else convert_color_space(frames, "YBR_FULL", "RGB")
    path = write(tmp_path / "a", frames, PhotometricInterpretation=space, PlanarConfiguration=planar)
    assert_read(path, want.astype(float))


@pytest.mark.parametrize("values", [(10, 20, 90), (10, 20, 90, 40), (7,), (1, 2)])
def test_grey_frames_are_never_mixed_as_colours(tmp_path: Path, values: tuple[int, ...]) -> None:
    frames = np.stack([np.full((3, 3), value, dtype=np.uint8) for value in values])
    nibabel.Nifti1Image(frames.T, np.eye(4)).to_filename(tmp_path / "b.nii")
    for path in (write(tmp_path / "a", frames), tmp_path / "b.nii"):
        assert_read(path, frames.astype(float))
        assert pixels_of(tmp_path, path.name, (1, 3, 3)).mean() == values[len(values) // 2]


@pytest.mark.parametrize("turned", [False, True])
def test_frames_lie_as_their_places_say_and_of_each_place_the_first_is_taken(tmp_path: Path, turned: bool) -> None:
    heights = [30.0, -10, 20, 0, 10, 0]
    frames = np.stack([np.full((3, 3), number, dtype=np.uint8) for number in range(6)])
    axes = [1, 0, 0, 0, -1 if turned else 1, 0]
    groups = Sequence(item(PlanePositionSequence=item(ImagePositionPatient=[5, 5, height]))[0] for height in heights)
    shared = item(PlaneOrientationSequence=item(ImageOrientationPatient=axes))
    path = write(tmp_path / "a", frames, SharedFunctionalGroupsSequence=shared, PerFrameFunctionalGroupsSequence=groups)
    order = [1, 3, 4, 2, 0]
    assert_read(path, frames[order[::-1] if turned else order].astype(float))
    grid = {"Modality": "RTDOSE", "DoseGridScaling": "1", "GridFrameOffsetVector": [25, 20, 15, 10, 5, 0]}
    assert_read(write(tmp_path / "b", frames, **grid), frames[::-1].astype(float))


def test_single_bits_are_frames_wherever_a_byte_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = np.random.default_rng(6).integers(0, 2, (7, 1, 3), dtype=np.uint8)
    path = write(tmp_path / "a", frames)
    dataset = pydicom.dcmread(path)
    dataset.BitsAllocated = dataset.BitsStored = 1
    dataset.HighBit = 0
    packed = np.packbits(frames.ravel(), bitorder="little").tobytes()
    dataset.PixelData = packed + bytes(len(packed) % 2)
    dataset.save_as(path)
    assert_read(path, frames.astype(float))
    asked = []
    decode = Decoder.as_array
    monkeypatch.setattr(Decoder, "as_array", lambda *given, **named: asked.append(0) or decode(*given, **named))
    assert pixels_of(tmp_path, "a", (7, 1, 3)).tolist() == frames.tolist()
    assert len(asked) == 1, "all frames are decoded at once, and once for each frame would take the square of the time"


def test_no_more_frames_are_looked_at_than_a_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some bytes may say that it holds two thousand million."""
    for told in ({}, {"PerFrameFunctionalGroupsSequence": item()}, {"GridFrameOffsetVector": [0, 1, 2]}):
        write(tmp_path / "a", GREY, **told)
        dataset = pydicom.dcmread(tmp_path / "a")
        dataset.NumberOfFrames = 2_000_000_000
        dataset.save_as(tmp_path / "a")
        monkeypatch.setattr(dicom, "_groups", lambda *_: pytest.fail("each frame was looked at"))
        assert read_image(tmp_path, "a", (1, 4, 5)) is (NoPixels.FRAMES if told else NoPixels.DAMAGED)
        monkeypatch.undo()


def test_slices_are_brought_to_their_shape_one_by_one(tmp_path: Path) -> None:
    """A picture of some kilobytes would take all memory if each channel held it whole."""
    Image.fromarray(np.full((1_000, 1_000), 7, np.uint8)).save(tmp_path / "picture", "PNG")
    write(tmp_path / "volume", np.full((8, 1_000, 1_000), 7, np.uint8), syntax=RLELossless)
    for name in ("picture", "volume"):
        pixels_of(tmp_path, name, (1, 2, 2))  # packages are imported
        tracemalloc.start()
        assert pixels_of(tmp_path, name, (64, 2, 2)).tolist() == np.full((64, 2, 2), 7).tolist()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 4 * 8 * 1_000 * 1_000, name


def test_colours_count_three_times_in_every_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "dicom", np.zeros((1, 6, 6), np.uint8), **palette(np.zeros((4, 3), np.uint8)))
    volume = np.zeros((6, 6, 1), [("R", "u1"), ("G", "u1"), ("B", "u1")])
    nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
    Image.fromarray(np.zeros((6, 6), np.uint8)).convert("P").save(tmp_path / "picture", "PNG")
    names = ("dicom", "a.nii", "picture")
    for most, refused in ((108, False), (107, True)):
        monkeypatch.setattr(slices, "LARGEST", most)
        assert [read_image(tmp_path, name, (1, 2, 2)) is NoPixels.SIZE for name in names] == [refused] * 3


def test_what_has_no_one_meaning_is_refused(tmp_path: Path) -> None:
    line = {"RescaleSlope": "1", "RescaleIntercept": "0"}
    world = item(RealWorldValueFirstValueMapped=0, RealWorldValueLastValueMapped=9, RealWorldValueSlope=1.0,
                 RealWorldValueIntercept=0.0)  # fmt: skip
    shared = item(PixelValueTransformationSequence=item(**line))
    entries = np.zeros((4, 3), dtype=np.uint8)
    colours = np.zeros((1, 4, 5, 3), dtype=np.uint8)
    cases: list[tuple[NoPixels, NDArray[Any], dict[str, Any]]] = [
        (NoPixels.SCALE, GREY, {"RescaleSlope": "2"}),
        (NoPixels.SCALE, GREY, {"RescaleIntercept": "-1024"}),
        (NoPixels.SCALE, GREY, {"RescaleSlope": None, "RescaleIntercept": None}),
        (NoPixels.SCALE, GREY, {**line, "SharedFunctionalGroupsSequence": shared}),
        (NoPixels.SCALE, GREY, {**line, "ModalityLUTSequence": modality_table([1, 2], 0)}),
        (NoPixels.SCALE, GREY, {"RealWorldValueMappingSequence": Sequence([world[0], world[0]])}),
        (NoPixels.SCALE, GREY, {"Modality": "RTDOSE"}),
        (NoPixels.SCALE, GREY, {"DoseGridScaling": "0.1", **line}),
        (NoPixels.SCALE, GREY, {"BitsStored": 12, "HighBit": 15}),
        (NoPixels.SCALE, colours, {"RescaleSlope": "2", "RescaleIntercept": "0"}),
        (NoPixels.SCALE, np.zeros((1, 4, 5), np.float32), {"PhotometricInterpretation": "MONOCHROME1"}),
        (NoPixels.FRAMES, GREY, {"TotalPixelMatrixColumns": 15, "TotalPixelMatrixRows": 4}),
        (NoPixels.FRAMES, GREY, {"SegmentationType": "BINARY", "SegmentSequence": Sequence([Dataset(), Dataset()])}),
        (NoPixels.FRAMES, GREY, {"PerFrameFunctionalGroupsSequence": item()}),
        (NoPixels.COLOURS, GREY.astype("u2"), {"PixelPresentation": "MIXED"}),
        (NoPixels.COLOURS, GREY.astype("u2"), {**palette(entries), "AlphaPaletteColorLookupTableData": bytes(4)}),
        (NoPixels.COLOURS, colours, {"PhotometricInterpretation": "YBR_ICT"}),
        (NoPixels.COLOURS, colours, {"PhotometricInterpretation": "HSV"}),
        (NoPixels.SIZE, np.zeros((1, 1, 1), np.uint8), {"Rows": 65_535, "Columns": 65_535}),
    ]  # fmt: skip
    for reason, frames, elements in cases:
        write(tmp_path / "a", frames, **elements)
        found = read_image(tmp_path, "a", (1, 4, 5))
        assert found is reason, (elements, found)
    write(tmp_path / "a", GREY.astype("u2"), syntax=ExplicitVRBigEndian, **palette(entries.astype("u2")))
    assert read_image(tmp_path, "a", (1, 4, 5)) is NoPixels.COLOURS
    assert_read(write(tmp_path / "a", colours, **line), colours.astype(float))
    assert_read(write(tmp_path / "a", GREY, ModalityLUTSequence=Sequence()), GREY.astype(float))


@pytest.mark.parametrize("slope", ["0", "-0.0", "nan", "inf", "-inf", "1e400"])
def test_a_scale_without_values_is_refused(tmp_path: Path, slope: str) -> None:
    """Applied, it would make an image of one grey, or of what is no number."""
    line = {"RescaleSlope": slope, "RescaleIntercept": "5"}
    number = float(slope)
    world = item(RealWorldValueFirstValueMapped=-200, RealWorldValueLastValueMapped=900, RealWorldValueSlope=number,
                 RealWorldValueIntercept=0.0)  # fmt: skip
    cases: list[dict[str, Any]] = [
        line, {"SharedFunctionalGroupsSequence": item(PixelValueTransformationSequence=item(**line))},
        {"Modality": "RTDOSE", "DoseGridScaling": slope}, {"RealWorldValueMappingSequence": world},
    ]  # fmt: skip
    if number != 0:
        cases.append({"RescaleSlope": "1", "RescaleIntercept": slope})
    for elements in cases:
        write(tmp_path / "a", GREY, **elements)
        assert read_image(tmp_path, "a", (1, 4, 5)) is NoPixels.SCALE, elements


def test_a_deflated_object_is_not_inflated_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of some kilobytes would take all memory, and with it the site's other records."""
    write(tmp_path / "small", GREY, syntax=DeflatedExplicitVRLittleEndian)
    write(tmp_path / "large", np.zeros((1, 2000, 1000), np.uint8), syntax=DeflatedExplicitVRLittleEndian)
    assert (tmp_path / "large").stat().st_size < 10_000
    assert_read(tmp_path / "small", GREY.astype(float))
    assert pixels_of(tmp_path, "large", (1, 4, 5)).tolist() == np.zeros((1, 4, 5)).tolist()
    monkeypatch.setattr(dicom, "INFLATED", 2_000_000)  # the elements around the pixels are beyond it
    monkeypatch.setattr(pydicom, "dcmread", lambda *_: pytest.fail("it was inflated whole"))
    assert read_image(tmp_path, "large", (1, 4, 5)) is NoPixels.SIZE


# --- NIfTI ---


@pytest.mark.sampled(13)
@pytest.mark.parametrize("family", [nibabel.Nifti1Image, nibabel.Nifti2Image, nibabel.Nifti1Pair, nibabel.Nifti2Pair])
@pytest.mark.parametrize(
    ("kind", "packed"), [*((kind, "") for kind in ("u1", "i2", ">i2", "u4", "i8", "f4", "f8")), ("u1", ".gz"), (">i2", ".gz")]
)
def test_nifti_is_scaled_and_turned_as_nibabel_does(tmp_path: Path, family: Any, kind: str, packed: str) -> None:
    """A slope of zero means none; without a place in the body the first axis runs to the left."""
    rng = np.random.default_rng(7)
    dtype = np.dtype(kind)
    pair = "Pair" in family.__name__
    for number, (slope, inter) in enumerate([(None, None), (0, 5), (2.5, -1024), (np.nan, np.nan)]):
        for affine in (None, np.diag([-2, 3, -1, 1]), np.eye(4)[[2, 0, 1, 3]]):
            shape = [(6, 5, 4), (6, 5, 4, 3), (6, 5), (6, 5, 4, 1, 1)][number]
            made = family(rng.integers(0, 100, shape).astype(dtype), affine, family.header_class(endianness=dtype.byteorder
                          if dtype.byteorder == ">" else "<"))  # fmt: skip
            made.set_data_dtype(dtype.newbyteorder("="))
            path = tmp_path / f"{number}.{'img' if pair else 'nii'}{packed}"
            made.to_filename(path)
            header = tmp_path / f"{number}.hdr{packed}" if pair else path
            if slope is not None:
                raw = bytearray(gzip.decompress(header.read_bytes()) if packed else header.read_bytes())
                order = ">" if made.header.endianness == ">" else "<"
                place, code = (112, "ff") if "1" in family.__name__ else (176, "dd")
                struct.pack_into(f"{order}{code}", raw, place, slope, inter)
                header.write_bytes(gzip.compress(raw) if packed else raw)
            loaded = nibabel.load(path)
            volume = np.asarray(loaded.get_fdata())  # type: ignore[attr-defined]
            volume = volume.reshape(*(*shape, 1)[:3], -1)[..., 0]
            turn = nibabel.io_orientation(loaded.affine)  # type: ignore[attr-defined, no-untyped-call]
            want = nibabel.apply_orientation(volume, turn).T  # type: ignore[no-untyped-call]
            for named in {path, header}:
                assert_read(named, want)


@pytest.mark.parametrize("family", [nibabel.Nifti1Image, nibabel.Nifti2Pair])
def test_a_header_of_gzip_is_not_unpacked_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Any) -> None:
    """It may hold extensions of any size, and say that its values begin beyond all that memory or a day's work could hold."""
    made = family(np.arange(60, dtype="u1").reshape(3, 4, 5), np.eye(4))
    made.header.extensions.append(nibabel.nifti1.Nifti1Extension(0, bytes(3_000_000)))
    name = "t.img.gz" if "Pair" in family.__name__ else "t.nii.gz"
    made.to_filename(tmp_path / name)
    assert all(path.stat().st_size < 100_000 for path in tmp_path.iterdir())
    assert_read(tmp_path / name, np.asarray(made.dataobj).T.astype(float))
    monkeypatch.setattr(images, "INFLATED", 1_000_000)
    assert read_image(tmp_path, name, (1, 4, 5)) is NoPixels.SIZE


def test_nifti_of_colours_and_of_what_is_no_number(tmp_path: Path) -> None:
    colours = np.random.default_rng(8).integers(0, 256, (6, 5, 3, 3), dtype=np.uint8)
    rgb = np.ascontiguousarray(colours).view([("R", "u1"), ("G", "u1"), ("B", "u1")]).reshape(6, 5, 3)
    nibabel.Nifti1Image(rgb, np.eye(4)).to_filename(tmp_path / "rgb.nii")
    assert_read(tmp_path / "rgb.nii", colours.transpose(2, 1, 0, 3).astype(float))
    cases = {
        NoPixels.SCALE: np.ones((2, 2, 2), np.complex64),
        NoPixels.FRAMES: np.ones((2, 2, 2, 1, 3), np.float32),
        NoPixels.COLOURS: np.zeros((2, 2, 2), [("R", "u1"), ("G", "u1"), ("B", "u1"), ("A", "u1")]),
    }
    for reason, volume in cases.items():
        nibabel.Nifti1Image(volume, np.eye(4)).to_filename(tmp_path / "a.nii")
        assert read_image(tmp_path, "a.nii", (1, 2, 2)) is reason
    raw = bytearray((tmp_path / "rgb.nii").read_bytes())
    struct.pack_into("<4h", raw, 40, 3, 32767, 32767, 32767)
    (tmp_path / "huge.nii").write_bytes(raw)
    assert read_image(tmp_path, "huge.nii", (1, 2, 2)) is NoPixels.SIZE


def refused_bits(path: Path, shape: tuple[int, int, int], want: Any) -> int:
    """How many bits of an image's file have it refused when they are another; with any other the pixels are the same."""
    whole, refused = path.read_bytes(), 0
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            found = read_image(path.parent, path.name, shape)
            refused += isinstance(found, NoPixels)
            assert isinstance(found, NoPixels) or np.array_equal(found, want), (place, bit)
    return refused


@pytest.mark.parametrize("family", [nibabel.Nifti1Image, nibabel.Nifti2Image, nibabel.Nifti1Pair])
def test_a_damaged_gzip_gives_no_other_pixels(tmp_path: Path, family: Any) -> None:
    """A stream says at its end what it should have held: whichever bit is another, the image is refused or the same."""
    made = family(np.random.default_rng(9).integers(0, 9, (3, 4, 5)).astype("i2"), np.eye(4))
    path = tmp_path / ("t.img.gz" if "Pair" in family.__name__ else "t.nii.gz")
    made.to_filename(path)
    want = np.asarray(made.dataobj).T.astype(float)
    whole = path.read_bytes()
    assert refused_bits(path, (3, 4, 5)[::-1], want) > 7 * (len(whole) - 40), "all but what gzip says of its file"
    for data, same in (
        (whole[:-1], False),
        (whole + b"more", False),
        (whole + gzip.compress(b"more"), True),
        (whole + bytes(512), True),
        (gzip.compress(gzip.decompress(whole)[:99]) + gzip.compress(gzip.decompress(whole)[99:]), True),
    ):
        path.write_bytes(data)
        found = read_image(tmp_path, path.name, (3, 4, 5)[::-1])
        assert np.array_equal(found, want) if same else found is NoPixels.DAMAGED


@pytest.mark.parametrize(
    ("family", "layout", "place", "ends"),
    [(nibabel.Nifti1Image, "<f", 108, 352), (nibabel.Nifti2Image, "<q", 168, 544)],
)
def test_values_of_nifti_begin_behind_its_header(tmp_path: Path, family: Any, layout: str, place: int, ends: int) -> None:
    made = family(np.arange(60, dtype="i2").reshape(3, 4, 5), np.eye(4))
    made.to_filename(tmp_path / "t.nii")
    raw = bytearray((tmp_path / "t.nii").read_bytes() + bytes(99))
    for offset in (0, 1, 16, ends - 16, ends - 1, ends, ends + 16):
        struct.pack_into(layout, raw, place, offset)
        (tmp_path / "t.nii").write_bytes(raw)
        found = read_image(tmp_path, "t.nii", (5, 4, 3))
        assert (found is NoPixels.DAMAGED) == (offset < ends), offset
    assert_read(tmp_path / "t.nii", np.asarray(nibabel.load(tmp_path / "t.nii").dataobj).T.astype(float))  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [(0, 4, 5), (3, 0, 5), (3, 4, 0), (3, 4, 5, 0), ()])
def test_an_image_without_a_value_is_none(tmp_path: Path, shape: tuple[int, ...]) -> None:
    """Resampled, it would be black."""
    nibabel.Nifti1Image(np.zeros((3, 4, 5), "i2"), np.eye(4)).to_filename(tmp_path / "t.nii")
    raw = bytearray((tmp_path / "t.nii").read_bytes())
    struct.pack_into("<8h", raw, 40, *(len(shape), *shape, *7 * (1,))[:8])
    (tmp_path / "t.nii").write_bytes(raw)
    assert read_image(tmp_path, "t.nii", (1, 4, 5)) is NoPixels.DAMAGED


def test_the_other_file_of_a_pair_lies_in_the_folder_too(tmp_path: Path) -> None:
    (tmp_path / "scans").mkdir()
    nibabel.Nifti1Pair(np.ones((2, 2, 2), np.int16), np.eye(4)).to_filename(tmp_path / "a.img")
    for near, far in (("hdr", "img"), ("img", "hdr")):
        shutil.copy(tmp_path / f"a.{near}", tmp_path / f"scans/{near}.{near}")
        assert isinstance(read_image(tmp_path / "scans", f"{near}.{near}", (1, 2, 2)), NoPixels)
        (tmp_path / f"scans/{near}.{far}").symlink_to(tmp_path / f"a.{far}")
        assert read_image(tmp_path / "scans", f"{near}.{near}", (1, 2, 2)) is NoPixels.ABSENT


# --- PNG and JPEG ---


def png(depth: int, kind: int, pixels: NDArray[Any], extra: bytes = b"") -> bytes:
    """A PNG of (rows, columns, samples), of a depth and a kind of colours as its header has them."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows, columns = pixels.shape[:2]
    lines = b"".join(b"\0" + row.astype(">u2" if depth == 16 else "u1").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", columns, rows, depth, kind, 0, 0, 0)
    body = chunk(b"IHDR", head) + (chunk(extra[:4], extra[4:]) if extra else b"") + chunk(b"IDAT", zlib.compress(lines))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def test_pictures_are_read_as_what_they_mean_or_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    grey, colours = rng.integers(0, 256, (4, 6), dtype=np.uint8), rng.integers(0, 256, (4, 6, 3), dtype=np.uint8)
    wide = rng.integers(0, 65_536, (4, 6, 4), dtype=np.uint16)
    clear = rng.integers(0, 2, (4, 6, 1), dtype=np.uint8) * 255
    solid = np.full((4, 6, 1), 255, dtype=np.uint8)
    picture = Image.fromarray(colours)

    def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
        data = io.BytesIO()
        image.save(data, kind, **options)
        return data.getvalue()

    read: list[tuple[bytes, NDArray[Any]]] = [
        (png(8, 0, grey[..., None]), grey),
        (png(16, 0, wide[..., :1]), wide[..., 0]),
        (png(8, 2, colours), colours),
        (png(8, 6, np.concatenate([colours, solid], -1)), colours),
        (png(8, 4, np.concatenate([grey[..., None], solid], -1)), grey),
        (png(8, 3, grey[..., None] % 3, b"PLTE" + bytes(range(9))), np.arange(9).reshape(3, 3)[grey % 3]),
    ]  # fmt: skip
    for data, want in read:
        (tmp_path / "a").write_bytes(data)
        assert_read(tmp_path / "a", want[None].astype(float))
    other = Image.fromarray(255 - colours)
    refused = {
        NoPixels.COLOURS: [
            png(16, 2, wide[..., :3]), png(16, 6, wide), png(16, 4, wide[..., :2]),
            png(8, 6, np.concatenate([colours, clear], -1)), png(8, 4, np.concatenate([grey[..., None], clear], -1)),
            png(8, 0, grey[..., None], b"tRNS" + struct.pack(">H", int(grey[0, 0]))),
            png(16, 0, wide[..., :1], b"tRNS" + struct.pack(">H", int(wide[0, 0, 0]))),
            saved(picture.quantize(8), "PNG", transparency=0), saved(picture.convert("CMYK"), "JPEG"),
        ],
        NoPixels.FRAMES: [saved(picture, "PNG", save_all=True, append_images=[other])],
        NoPixels.FORMAT: [
            saved(picture, "GIF"), saved(picture, "GIF", save_all=True, append_images=[other]), saved(picture, "TIFF"),
            saved(picture, "TIFF", save_all=True, append_images=[other]), saved(picture, "BMP"), b"", b"\0" * 400,
            gzip.compress(saved(picture, "PNG")),
        ],
    }  # fmt: skip
    for reason, files in refused.items():
        for place, data in enumerate(files):
            (tmp_path / "a").write_bytes(data)
            assert read_image(tmp_path, "a", (1, 4, 6)) is reason, (reason, place)


@pytest.mark.parametrize("shape", [(4, 6), (1, 1), (9, 5), (5, 17)])
@pytest.mark.parametrize("depth", [1, 8, 16])
def test_a_picture_without_all_its_rows_is_damaged(tmp_path: Path, shape: tuple[int, int], depth: int) -> None:
    # written by hand, pass by pass, as ISO/IEC 15948 has them; Pillow gives black for what is not there
    values = np.random.default_rng(depth).integers(1, 1 << depth, shape).astype(np.uint16)
    starts = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]

    def lines(pixels: NDArray[Any]) -> bytes:
        told = (np.packbits(row.astype(bool)) if depth == 1 else row.astype(">u2" if depth == 16 else "u1") for row in pixels)
        return b"".join(b"\0" + row.tobytes() for row in told) if pixels.size else b""

    for passes in (0, 1):
        whole = b"".join(lines(values[top::down, left::across]) for top, left, down, across in starts)
        whole = whole if passes else lines(values)
        for data in (whole, whole + b"\0", whole[:-1]):
            head = struct.pack(">IIBBBBB", shape[1], shape[0], depth, 0, 0, 0, passes)
            packed = zlib.compress(data)
            parts = [(b"IHDR", head), *((b"IDAT", packed[place : place + 9]) for place in range(0, len(packed), 9))]
            body = b"".join(
                struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
                for name, part in [*parts, (b"IEND", b"")]
            )
            (tmp_path / "a").write_bytes(b"\x89PNG\r\n\x1a\n" + body)
            if len(data) < len(whole):
                assert read_image(tmp_path, "a", (1, *shape)) is NoPixels.DAMAGED
            else:
                want = values * (255 if depth == 1 else 1)
                np.testing.assert_array_equal(read_image(tmp_path, "a", (1, *shape)), want[None])


# --- what is told ---


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "I;16"])
def test_a_damaged_png_gives_no_other_pixels(tmp_path: Path, mode: str) -> None:
    """Each of its chunks has a checksum: whichever bit is another, the picture is refused or the same."""
    draw, path = np.random.default_rng(3), tmp_path / "t.png"
    shape = (3 if mode in ("P", "RGB") else 1, 5, 6)
    made = Image.fromarray(draw.integers(0, 4, shape[1:] + (3,) * (mode == "RGB"), dtype="u2" if mode == "I;16" else "u1"))
    (made.convert("P", palette=Image.Palette.ADAPTIVE, colors=4) if mode == "P" else made.convert(mode)).save(path)
    size, want = path.stat().st_size, pixels_of(tmp_path, "t.png", shape)
    assert refused_bits(path, shape, want) > 4 * size


def test_no_decoder_tells_what_a_file_holds(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Damaged files of every kind raise nothing, and give no line in a log or on a terminal."""
    draw = random.Random(10)
    Image.fromarray(np.arange(24, dtype=np.uint8).reshape(4, 6)).save(tmp_path / "a.png")
    nibabel.Nifti1Image(np.ones((3, 3, 3), np.int16), np.eye(4)).to_filename(tmp_path / "a.nii")
    names = ["CT_small.dcm", "SC_rgb_rle_2frame.dcm", "SC_rgb_small_odd_jpeg.dcm", "MR_small_jp2klossless.dcm", "rtdose.dcm"]
    sources = [*(PYDICOM / "test_files" / name for name in names), tmp_path / "a.png", tmp_path / "a.nii"]
    log = logging.StreamHandler(io.StringIO())  # as a site's log stands, at the root
    logging.getLogger().addHandler(log)
    with warnings.catch_warnings(record=True) as warned, ExitStack() as after:
        after.callback(logging.getLogger().removeHandler, log)
        warnings.simplefilter("always")
        images._silence.cache_clear()
        for source in sources:
            whole = source.read_bytes()
            for _ in range(60):
                data = bytearray(whole)
                for _ in range(draw.choice([1, 8, 64])):
                    data[draw.randrange(min(len(data), draw.choice([352, 2000, len(data)])))] = draw.randrange(256)
                (tmp_path / "drawn").write_bytes(data[: draw.choice([len(data), draw.randrange(len(data))])])
                found = read_image(tmp_path, "drawn", (1, 4, 4))
                assert isinstance(found, NoPixels | np.ndarray)
    assert not warned
    assert log.stream.getvalue() == ""
    assert capfd.readouterr() == ("", "")


def test_a_sites_check_tells_how_many_images_give_no_pixels_and_why(tmp_path: Path) -> None:
    scans = tmp_path / "scans"
    scans.mkdir()
    (tmp_path / "participant.toml").write_text(
        'coordinator = "localhost:1"\n[datasets.scans]\npath = "labels.csv"\ncolumns = ["age"]\n'
        '[datasets.scans.images]\nfolder = "scans"\nshape = [1, 4, 5]\n'
    )
    for name in ("whole", "half", "other"):
        write(scans / name, GREY, **({} if name == "whole" else {"RescaleSlope": "2"}))
    (tmp_path / "labels.csv").write_text("file,age\nwhole,1\nhalf,2\nabsent,3\nother,4\n")
    columns = [NumberColumn(name=name, low=-200, high=400) for name in pixel_names((1, 4, 5))]
    schema = DatasetSchema(columns=(NumberColumn(name="age", low=0, high=10), *columns))
    config = load_participant_config(tmp_path / "participant.toml")
    said = [found.detail for found in SiteCheck(config, lambda: 0, schemas={"scans": schema}).run()]
    assert f"3 of 4 records have no pixels: {NoPixels.SCALE} (2), {NoPixels.ABSENT} (1)" in said
    assert not [line for line in said if "pixel7" in line], "a line for each pixel would hide the others"


@pytest.mark.parametrize(("kind", "side"), [(2, 9_500), (0, 16_500)])
def test_pictures_are_refused_by_their_size_before_they_are_decoded(tmp_path: Path, kind: int, side: int) -> None:
    """Three colours count three times, as in every other format; Pillow's own bound is of pixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", side, side, 8, kind, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9))) + chunk(b"IEND", b"")
    (tmp_path / "a.png").write_bytes(data)
    assert read_image(tmp_path, "a.png", (1, 2, 2)) is NoPixels.SIZE
