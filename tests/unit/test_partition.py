"""How records are dealt to simulated sites and to the demo's hospitals."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum.tables import site_name
from veilsum_deploy.datasets import TableWithSchema, packaged_dataset, read_dataset
from veilsum_deploy.demo.hospitals import HOSPITALS, folder_hospitals, packaged_hospitals
from veilsum_deploy.simulation.partition import domain_alpha, hold_out, partition, thin_domains
from veilsum_node.errors import DataError, Misuse
from veilsum_node.identity.certificate import NAME_PATTERN
from veilsum_participant.data import load_records
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn

KINDS = st.one_of(st.sampled_from(["iid", "uneven"]), st.floats(0.001, 1000).map(lambda alpha: f"dirichlet:{alpha}"))


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=200), KINDS, st.integers(0, 2**32), st.data())
def test_every_row_goes_to_one_site_and_none_stays_empty(classes: list[int], how: str, seed: int, data: st.DataObject) -> None:
    sites = data.draw(st.integers(1, len(classes)))
    parts = partition(np.array(classes), sites, how, seed)
    assert len(parts) == sites
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(classes)))
    again = partition(np.array(classes), sites, how, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_iid_is_even_and_uneven_is_not() -> None:
    classes = np.arange(1000) % 2
    assert {len(part) for part in partition(classes, 7, "iid", 1)} == {142, 143}
    sizes = [len(part) for part in partition(classes, 4, "uneven", 1)]
    assert sizes == [480, 240, 160, 120]  # 1000 / (1 + 1/2 + 1/3 + 1/4), over 1, 2, 3, 4
    assert not np.array_equal(partition(classes, 4, "iid", 1)[0], partition(classes, 4, "iid", 2)[0])


def test_a_small_alpha_skews_classes() -> None:
    classes = np.arange(2000) % 10

    def largest_share(alpha: float) -> float:
        parts = partition(classes, 5, f"dirichlet:{alpha}", 3)
        counts = np.array([np.bincount(classes[part], minlength=10) for part in parts])
        return float((counts.max(axis=0) / counts.sum(axis=0)).mean())

    assert largest_share(1000) < 0.25 < 0.6 < largest_share(0.1)


@pytest.mark.parametrize(
    "how", ["", "even", "dirichlet", "dirichlet:", "dirichlet:x", "dirichlet:0", "dirichlet:nan", "iid:1"]
)
def test_an_unknown_partition_is_refused(how: str) -> None:
    with pytest.raises(Misuse, match="Unknown partition"):
        partition(np.zeros(5, dtype=np.int64), 2, how, 0)


def test_more_sites_than_records_are_refused() -> None:
    with pytest.raises(Misuse, match="cannot be dealt"):
        partition(np.zeros(3, dtype=np.int64), 4, "iid", 0)


@given(st.lists(st.integers(0, 2), max_size=100), st.floats(0, 0.99), st.integers(0, 100))
def test_hold_out_takes_its_share_of_every_class(classes: list[int], share: float, seed: int) -> None:
    values = np.array(classes, dtype=np.int64)
    kept, held = hold_out(values, share, seed)
    assert sorted([*kept.tolist(), *held.tolist()]) == list(range(len(classes)))
    for value in set(classes):
        assert int((values[held] == value).sum()) == round(share * classes.count(value))


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_hold_out_refuses_other_shares(share: float) -> None:
    with pytest.raises(Misuse):
        hold_out(np.zeros(4, dtype=np.int64), share, 0)


def test_the_demo_deals_all_patients_once() -> None:
    hospitals = packaged_hospitals()
    for name, counts in HOSPITALS.items():
        assert tuple(np.bincount(hospitals.sites[name].classes)) == counts
    whole = packaged_dataset("breast-cancer").table.to_pylist()
    dealt = [row for dataset in (*hospitals.sites.values(), hospitals.held_out) for row in dataset.table.to_pylist()]
    assert sorted(map(repr, dealt)) == sorted(map(repr, whole))
    assert hospitals.held_out.table.num_rows == 150


def test_a_written_data_set_reads_back_the_same(tmp_path: Path) -> None:
    for name in ("breast-cancer", "digits"):
        dataset = packaged_dataset(name)
        path = dataset.write(tmp_path, name)
        records, counts = load_records(path, dataset.schema)
        assert not any(cells.unmatched for cells in counts.values())
        assert records.labels is not None
        assert np.array_equal(records.labels, dataset.classes)
        first = dataset.schema.columns[0]
        values = dataset.table[first.name].to_numpy()
        low, high = first.low, first.high  # type: ignore[union-attr]
        np.testing.assert_allclose(records.features[:, 0], np.clip(2 * (values - low) / (high - low) - 1, -1, 1), atol=1e-12)
        assert read_dataset(path, dataset.schema, name).table.num_rows == dataset.table.num_rows


SCHEMA = """\
header = false
order = ["x", "y"]
label = { column = "y", classes = [{ name = "no", values = ["0"] }, { name = "yes", values = ["1"] }] }
columns = [{ kind = "number", name = "x", low = 0, high = 1 }]
"""


def _folder(directory: Path, **files: int) -> Path:
    (directory / "schema.toml").write_text(SCHEMA)
    (directory / "readme.names").write_text("not data")
    for name, rows in files.items():
        (directory / f"{name}.data").write_text("".join(f"0.{row % 10},{row % 2}\n" for row in range(rows)))
    return directory


def test_a_folder_gives_one_site_a_file(tmp_path: Path) -> None:
    hospitals = folder_hospitals(_folder(tmp_path, Nord_1=20, sued=10), None)
    assert {name: dataset.table.num_rows for name, dataset in hospitals.sites.items()} == {"nord_1": 16, "sued": 8}
    assert hospitals.held_out.table.num_rows == 6
    assert hospitals.sites["sued"].write(tmp_path / "out", "records").suffix == ".parquet"  # the schema has no header
    named = DatasetSchema(
        columns=(CategoryColumn(name="note", categories=("a", "b\nc")), NumberColumn(name="x", low=0, high=9))
    )
    for notes, suffix in ((["a", "b", None], ".csv"), (["a", "b\nc", None], ".parquet"), (["a", "b\rc", None], ".parquet")):
        whole = TableWithSchema("notes", named, pa.table({"note": notes, "x": [1.0, 2.0, 3.0]}))
        path = whole.write(tmp_path / "notes", "records")
        assert path.suffix == suffix
        np.testing.assert_array_equal(load_records(path, named)[0].features, whole.records.features)


def test_a_folder_that_cannot_be_a_federation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="1 file of records"):
        folder_hospitals(_folder(tmp_path, alone=5), None)
    (tmp_path / "Alone.csv").write_text("0.1,0\n")
    with pytest.raises(DataError, match="would all be named 'alone'"):
        folder_hospitals(tmp_path, None)
    (tmp_path / "Alone.csv").rename(tmp_path / "analyst.csv")
    with pytest.raises(Misuse, match="taken"):
        folder_hospitals(tmp_path, None)
    (tmp_path / "schema.toml").write_text("\n".join(line for line in SCHEMA.splitlines() if not line.startswith("label")))
    with pytest.raises(DataError, match="no label"):
        folder_hospitals(tmp_path, None)
    (tmp_path / "analyst.csv").rename(tmp_path / "another.csv")
    unlabelled = folder_hospitals(tmp_path, None, trains=False)
    assert unlabelled.held_out.table.num_rows == 0
    assert not unlabelled.tests


@settings(max_examples=200)
@given(st.text(max_size=100))
def test_every_file_name_with_a_letter_or_digit_becomes_a_valid_site_name(text: str) -> None:
    try:
        assert NAME_PATTERN.fullmatch(site_name(text))
    except DataError:
        assert not any(letter.isascii() and letter.isalnum() for letter in unicodedata.normalize("NFKD", text))


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 8), st.integers(0, 100))
def test_shards_give_each_site_its_number_of_classes(sites: int, number: int, kinds: int, seed: int) -> None:
    classes = np.arange(60 * kinds) % kinds
    if number > kinds:
        with pytest.raises(Misuse, match="Unknown partition"):
            partition(classes, sites, f"shards:{number}", seed)
        return
    if sites * number < kinds:
        with pytest.raises(Misuse, match="to nobody"):
            partition(classes, sites, f"shards:{number}", seed)
        return
    parts = partition(classes, sites, f"shards:{number}", seed)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(classes)))
    held = [set(classes[part].tolist()) for part in parts]
    assert {len(own) for own in held} == {number}
    owners = [sum(value in own for own in held) for value in range(kinds)]
    assert max(owners) - min(owners) <= 1


def test_shards_are_paired_differently_by_each_seed() -> None:
    classes = np.arange(1000) % 10
    pairs = [[tuple(np.unique(classes[part])) for part in partition(classes, 100, "shards:2", seed)] for seed in (0, 1)]
    assert len(set(pairs[0])) > 10
    assert pairs[0] != pairs[1]
    assert {len(part) for part in partition(classes, 100, "shards:2", 0)} == {10}  # 20 places a class, 100 records each


DOMAINS = st.lists(st.lists(st.integers(-1, 3), min_size=1, max_size=60), min_size=1, max_size=5)


@given(DOMAINS, st.floats(0.01, 100), st.integers(0, 1000))
def test_thinned_domains_keep_some_of_their_own(domains: list[list[int]], alpha: float, seed: int) -> None:
    classes = [np.array(own, dtype=np.int64) for own in domains]
    parts, forced = thin_domains(classes, alpha, seed)
    again, _ = thin_domains(classes, alpha, seed)
    assert all(np.array_equal(one, other) for one, other in zip(parts, again, strict=True))
    for index, (own, part) in enumerate(zip(classes, parts, strict=True)):
        assert 1 <= len(set(part.tolist())) == len(part)
        assert part.min() >= 0
        assert part.max() < len(own)
        assert index not in forced or len(part) == 1
    if len(classes) == 1:  # a Dirichlet draw over one site is 1
        assert len(parts[0]) == len(classes[0])


def test_a_classs_shares_sum_to_one_and_are_dirichlets() -> None:
    own = np.repeat(np.arange(10), 1000)
    shares = np.array(
        [
            [np.bincount(own[part], minlength=10) / 1000 for part in thin_domains([own] * 4, 0.5, seed)[0]]
            for seed in range(200)
        ]
    )  # (seeds, sites, classes)
    np.testing.assert_allclose(shares.sum(axis=1), 1, atol=4 * 0.0005 + 1e-12)  # each share is rounded to a record
    # Dirichlet(a, a, a, a): mean 1/4, variance (1/4)(3/4) / (4 a + 1); a record between two neighbours changes nothing here.
    assert shares.mean() == pytest.approx(0.25, abs=1e-3)
    assert shares.var() == pytest.approx(0.25 * 0.75 / 3, rel=0.06)


def test_a_site_without_a_record_gets_one_and_it_is_said() -> None:
    forced = [thin_domains([np.array([0, 0]), np.array([0, 0])], 0.01, seed)[1] for seed in range(20)]
    assert {tuple(sites) for sites in forced} >= {(0,), (1,)}
    with pytest.raises(Misuse, match="no record"):
        thin_domains([np.array([0]), np.array([], dtype=np.int64)], 1.0, 0)


@pytest.mark.parametrize(("how", "alpha"), [("domains", None), ("domains+dirichlet:0.1", 0.1)])
def test_partitions_by_domain_are_parsed(how: str, alpha: float | None) -> None:
    assert domain_alpha(how) == alpha


@pytest.mark.parametrize("how", ["domains+", "domains+iid", "domains+dirichlet:0", "domainsdirichlet:1", "domains:1"])
def test_an_unknown_partition_by_domain_is_refused(how: str) -> None:
    with pytest.raises(Misuse, match="Unknown partition"):
        domain_alpha(how)


@pytest.mark.parametrize("how", ["shards", "shards:", "shards:0", "shards:-1", "shards:3", "shards:1.5", "shards:²"])
def test_an_unknown_number_of_shards_is_refused(how: str) -> None:
    with pytest.raises(Misuse, match="Unknown partition"):
        partition(np.arange(10) % 2, 5, how, 0)
