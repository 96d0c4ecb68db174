"""Images that a table names: what each format's pixels become, and that no file changes anything but its own record."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from support.tables import totals
from veilsum_node.errors import ConfigurationError, DataError
from veilsum_participant.checks import CheckOutcome, SiteCheck
from veilsum_participant.data import check_dataset, check_structure, load_records
from veilsum_participant.data.images import read_image
from veilsum_participant.data.quality import most_unmatched
from veilsum_participant.data.slices import NoPixels
from veilsum_participant.data.sources import read_table
from veilsum_participant.data.stream import stream_records
from veilsum_participant.settings.config import load_participant_config
from veilsum_participant.settings.forms import pixel_names
from veilsum_participant.settings.query import Images, SourceQuery, origin
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn

pytestmark = pytest.mark.filterwarnings("ignore")
"""Filters of the process, such as images sets, end with each test."""

SHAPE = (1, 4, 6)
PIXELS = np.arange(24, dtype=np.uint8).reshape(4, 6) * 10
Rows = list[tuple[str, str, str, str]]


def schema_for(shape: tuple[int, int, int] = SHAPE, high: float = 255) -> DatasetSchema:
    """The pixels, a number of the table's own, and a label."""
    columns = [NumberColumn(name=name, low=0, high=high) for name in pixel_names(shape)]
    label = LabelColumn(column="ill", classes=(ClassValues(name="no", values=("0",)), ClassValues(name="yes", values=("1",))))
    return DatasetSchema(columns=(NumberColumn(name="age", low=0, high=100), *columns), label=label)


def write_table(directory: Path, rows: Rows) -> Images:
    lines = ["who,file,age,ill", *(",".join(row) for row in rows), ""]
    (directory / "labels.csv").write_text("\n".join(lines))
    (directory / "scans").mkdir(exist_ok=True)
    return Images(directory / "labels.csv", directory / "scans", "file", SHAPE)


def write_dicom(path: Path, pixels: NDArray[np.uint16], photometric: str = "MONOCHROME2", **tags: Any) -> None:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = SecondaryCaptureImageStorage, generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset = FileDataset(str(path), {}, file_meta=meta, preamble=bytes(128))
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.PatientName = "Smith"
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, photometric, 0
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.PixelData = pixels.astype("<u2").tobytes()
    dataset.save_as(path, enforce_file_format=True)


def test_the_tables_columns_and_the_pixels_are_one_record(tmp_path: Path) -> None:
    images = write_table(tmp_path, [("p1", "one.png", "60", "0"), ("p2", "sub/two.png", "70", "1")])
    (tmp_path / "scans" / "sub").mkdir()
    Image.fromarray(PIXELS).save(tmp_path / "scans" / "one.png")
    Image.fromarray(255 - PIXELS).save(tmp_path / "scans" / "sub" / "two.png")
    check_structure(images, schema_for(), subject="who", header=True)
    records, _ = load_records(images, schema_for(), "who", header=True)
    want = np.stack([PIXELS.ravel(), 255 - PIXELS.ravel()]) / 255 * 2 - 1
    np.testing.assert_allclose(records.features[:, 1:], want, atol=1e-12)
    np.testing.assert_allclose(records.features[:, 0], [0.2, 0.4], atol=1e-12)
    assert records.labels is not None
    assert (records.labels.tolist(), str(records.subjects), records.present.all()) == ([0, 1], "[0 1]", True)
    query = SourceQuery("scans", "SELECT who, file, age, ill FROM labels", files={"labels": tmp_path / "labels.csv"})
    asked = Images(query, images.folder, "file", SHAPE)
    check_structure(asked, schema_for(), subject="who")
    np.testing.assert_array_equal(load_records(asked, schema_for(), "who")[0].features, records.features)


def test_a_schema_may_name_some_of_the_pixels_and_nothing_else(tmp_path: Path) -> None:
    images = write_table(tmp_path, [("p1", "one.png", "60", "0")])
    Image.fromarray(PIXELS).save(tmp_path / "scans" / "one.png")
    some = DatasetSchema(columns=tuple(NumberColumn(name=f"pixel{place}", low=0, high=255) for place in (23, 0)))
    check_structure(images, some)
    table = read_table(images, some)
    assert {name: column.to_pylist() for name, column in table.columns.items()} == {"pixel23": [230.0], "pixel0": [0.0]}


@pytest.mark.parametrize("name", ["grey.png", "grey16.png", "bits.png", "colour.png", "palette.png", "alpha.png", "grey.jpg"])
def test_pictures(tmp_path: Path, name: str) -> None:
    """Grey and colours as Pillow's own conversions give them, an image of the shape untouched, another one resampled."""
    rng = np.random.default_rng(1)
    colours = Image.fromarray(rng.integers(0, 256, (4, 6, 3), dtype=np.uint8))
    made = {
        "grey.png": Image.fromarray(PIXELS), "grey16.png": Image.fromarray(PIXELS.astype(np.uint16) * 256),
        "bits.png": Image.fromarray(PIXELS).convert("1"), "colour.png": colours, "palette.png": colours.quantize(16),
        "alpha.png": colours.convert("RGBA"), "grey.jpg": Image.fromarray(PIXELS),
    }[name]  # fmt: skip
    made.save(tmp_path / name)
    with Image.open(tmp_path / name) as opened:
        grey = np.asarray(opened if "16" in name else opened.convert("L"), dtype=float)
        three = None if "16" in name else np.moveaxis(np.asarray(opened.convert("RGB"), dtype=float), -1, 0)
    one = read_image(tmp_path, name, (1, 4, 6))
    assert one is not None
    np.testing.assert_allclose(one[0], grey, atol=0.5 if grey.max() < 256 else 0)  # Pillow rounds to whole numbers
    if three is not None:
        np.testing.assert_array_equal(read_image(tmp_path, name, (3, 4, 6)), three)
    small = read_image(tmp_path, name, (1, 2, 3))
    assert small is not None
    want = np.asarray(Image.fromarray(one[0]).resize((3, 2), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(small[0], want)


@pytest.mark.parametrize(("entries", "turned"), [(4, False), (3, False), (3, True), (1, False)])
def test_a_colour_that_a_palette_does_not_have_is_none(tmp_path: Path, entries: int, turned: bool) -> None:
    """It was black. What the palette has more than the picture is no fault."""
    for indices, known in (([0, 1, 2, 3], entries > 3), ([0, 0, 0, 0], True)):
        image = Image.fromarray(np.array([indices], np.uint8)).copy()
        image.putpalette(bytes(range(10, 10 + 3 * entries)))
        exif = Image.Exif()
        exif[0x0112] = 3 if turned else 1
        image.save(tmp_path / "p.png", exif=exif, bits=8)
        data = (tmp_path / "p.png").read_bytes()
        place = data.index(b"PLTE")
        assert int.from_bytes(data[place - 4 : place], "big") == 3 * entries
        found = read_image(tmp_path, "p.png", (3, 1, 4))
        assert isinstance(found, NoPixels) != known
        if known:
            np.testing.assert_array_equal(found[0, 0], [10 + 3 * index for index in indices])


def test_a_turned_picture_is_turned_back(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 270 degrees to show it
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(read_image(tmp_path, "turned.png", (1, 6, 4)), np.rot90(PIXELS, -1)[None])


def test_dicom_counts_by_its_modalitys_scale(tmp_path: Path) -> None:
    pixels = PIXELS.astype(np.uint16) * 16
    write_dicom(tmp_path / "a.dcm", pixels, RescaleSlope="2", RescaleIntercept="-1024")
    np.testing.assert_array_equal(read_image(tmp_path, "a.dcm", SHAPE), 2.0 * pixels[None] - 1024)
    write_dicom(tmp_path / "b.dcm", pixels, "MONOCHROME1")
    np.testing.assert_array_equal(read_image(tmp_path, "b.dcm", SHAPE), 4095.0 - pixels[None])
    np.testing.assert_array_equal(read_image(tmp_path, "b.dcm", (2, 4, 6)), np.stack([4095.0 - pixels] * 2))


@pytest.mark.parametrize("suffix", ["nii", "nii.gz"])
def test_nifti_slices_lie_as_the_canonical_axes_do(tmp_path: Path, suffix: str) -> None:
    volume = np.random.default_rng(2).normal(size=(6, 4, 5)).astype(np.float32)  # x, y, z
    nibabel.Nifti1Image(volume, np.diag([1, 1, 2, 1])).to_filename(tmp_path / f"a.{suffix}")
    nibabel.Nifti1Image(volume[::-1, :, ::-1], np.diag([-1, 1, -2, 1])).to_filename(tmp_path / f"b.{suffix}")
    want = volume.transpose(2, 1, 0)
    for name in ("a", "b"):
        np.testing.assert_array_equal(read_image(tmp_path, f"{name}.{suffix}", (5, 4, 6)), want)
    np.testing.assert_array_equal(read_image(tmp_path, f"a.{suffix}", (3, 4, 6)), want[[0, 2, 4]])
    four = np.stack([volume, volume + 1], axis=-1)
    nibabel.Nifti1Image(four, np.eye(4)).to_filename(tmp_path / f"c.{suffix}")
    np.testing.assert_array_equal(read_image(tmp_path, f"c.{suffix}", (5, 4, 6)), want)
    nibabel.Nifti1Image(volume[..., 0], np.eye(4)).to_filename(tmp_path / f"d.{suffix}")
    np.testing.assert_array_equal(read_image(tmp_path, f"d.{suffix}", SHAPE), want[:1])


def test_no_file_changes_anything_but_its_own_record(tmp_path: Path) -> None:
    """Damaged, empty, outside of the folder, of another format than it says: the record has no pixels, and stays."""
    good = ("p1", "good.png", "60", "0")
    scans = write_table(tmp_path, [good]).folder
    Image.fromarray(PIXELS).save(scans / "good.png")
    Image.fromarray(PIXELS).save(tmp_path / "outside.png")
    write_dicom(scans / "whole.dcm", PIXELS.astype(np.uint16))
    nibabel.Nifti1Image(PIXELS.astype(np.float32), np.eye(4)).to_filename(scans / "whole.nii")
    draw = random.Random(3)
    odd = ["", "absent.png", "../outside.png", "../scans", ".", "\\0", str(tmp_path / "outside.png"), "x" * 5000]
    (scans / "empty.dcm").write_bytes(b"")
    Image.fromarray(PIXELS).save(scans / "picture.bmp")
    odd += ["empty.dcm", "picture.bmp"]
    for source in ("good.png", "whole.dcm", "whole.nii"):
        data = (scans / source).read_bytes()
        for number in range(40):
            changed = bytearray(data)
            for _ in range(draw.choice([1, 4, 50])):
                changed[draw.randrange(len(changed))] = draw.randrange(256)
            name = f"{number}-{source}"
            (scans / name).write_bytes(changed[: draw.choice([len(data), draw.randrange(len(data))])])
            odd.append(name)
    huge = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(huge, "PNG")  # 400 million pixels in 50 kB
    (scans / "bomb.png").write_bytes(huge.getvalue())
    others = [(f"q{place}", name, "50", "1") for place, name in enumerate([*odd, "bomb.png"])]
    images = write_table(tmp_path, [good, *others, good])
    check_structure(images, schema_for(), subject="who")
    records, _ = load_records(images, schema_for(), "who")
    alone, _ = load_records(write_table(tmp_path, [good, good]), schema_for(), "who")
    assert len(records) == len(odd) + 3
    assert not {None, "who"} & {*totals(check_dataset(images, schema_for(), subject="who"))}
    np.testing.assert_array_equal(records.features[:2], alone.features)
    lost = ~records.present[:, 1:].any(axis=1)
    assert lost[2:12].all(), "none of the first ten is an image in the folder"
    assert lost[-1]
    assert records.present[:, 0].all()


def test_images_that_are_not_read_count_as_cells_that_match_nothing(tmp_path: Path) -> None:
    """A record that names none has a missing value; a folder of which half was not copied is one to look at."""
    images = write_table(tmp_path, [("p1", name, "60", "0") for name in ("one.png", "gone.png", "", "NA")])
    Image.fromarray(PIXELS).save(tmp_path / "scans" / "one.png")
    records, counts = load_records(images, schema_for())
    assert records.present[:, 1:].all(axis=1).tolist() == [True, False, False, False]
    assert [(cells.missing, cells.unmatched) for cells in counts.values()] == [(0, 0), *[(2, 1)] * PIXELS.size, (0, 0)]
    assert most_unmatched(images, schema_for(), subject=None, header=True) == 0.5


def test_what_is_wrong_is_told_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = write_table(tmp_path, [("p1", "absent.png", "60", "0")])
    check_structure(images, schema_for())
    with pytest.raises(DataError, match="column 'scan' is missing"):
        check_structure(Images(images.table, images.folder, "scan", SHAPE), schema_for())
    with pytest.raises(DataError, match="column 'pixel24' is missing"):
        check_structure(images, schema_for((1, 5, 5)))
    for folder, said in (("absent", "there is no such folder"), (images.table, "is a file, not a folder")):
        with pytest.raises(DataError, match=said):
            check_structure(Images(images.table, tmp_path / str(folder), "file", SHAPE), schema_for())
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(ConfigurationError, match="pydicom is not installed"):
        check_structure(images, schema_for())


@pytest.mark.parametrize("asked", [False, True], ids=["table", "query"])
def test_a_folder_that_is_gone_when_records_are_read_is_no_folder_without_images(tmp_path: Path, *, asked: bool) -> None:
    """Every record would have counted as one without pixels, and the site's sums with them."""
    images = write_table(tmp_path, [("p1", "one.png", "60", "0")])
    if asked:
        query = SourceQuery("scans", "SELECT who, file, age, ill FROM labels", files={"labels": tmp_path / "labels.csv"})
        images = Images(query, images.folder, "file", SHAPE)
    check_structure(images, schema_for(), subject="who")
    assert not load_records(images, schema_for(), "who")[0].present[:, 1:].any()
    images.folder.rename(tmp_path / "unmounted")
    for read in (load_records, lambda *given: list(stream_records(*given))):
        with pytest.raises(DataError, match="there is no such folder"):
            read(images, schema_for(), "who")


def test_the_configuration_names_them(tmp_path: Path) -> None:
    path = tmp_path / "participant.toml"

    def load(images: str) -> Any:
        path.write_text(
            f'coordinator = "localhost:1"\n[datasets.scans]\npath = "labels.csv"\n'
            f'columns = ["age", "ill"]\n[datasets.scans.images]\n{images}\n'
        )
        return load_participant_config(path)

    config = load('folder = "scans"\nshape = [1, 4, 6]')
    want = write_table(tmp_path, [("p1", "one.png", "60", "0")])
    assert origin(config.datasets["scans"], "scans") == want
    Image.fromarray(PIXELS).save(tmp_path / "scans" / "one.png")

    def said(seen: bool) -> CheckOutcome:
        found = SiteCheck(config, lambda: 0, schemas={"scans": schema_for()} if seen else {}).run()
        return next(item.status for item in found if item.check == "dataset scans")

    for seen in (False, True):
        assert said(seen) is CheckOutcome.OK
    (tmp_path / "scans" / "one.png").unlink()
    (tmp_path / "scans").rmdir()
    assert said(False) is CheckOutcome.FAILED
    with pytest.raises(ConfigurationError, match="at most 4096 columns"):
        load('folder = "scans"\nshape = [3, 64, 64]')
