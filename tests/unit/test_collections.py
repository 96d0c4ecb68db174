"""Collections of real data: the same records as the participant's reader, and who is dealt what of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.folders import write_collection
from veilsum_deploy.collections import _READERS, Collection, load_collection, single
from veilsum_deploy.data_names import COLLECTIONS
from veilsum_deploy.datasets import concatenate, packaged_dataset
from veilsum_deploy.simulation.deal import Deal, Setting, deal, site_names
from veilsum_node.errors import ConfigurationError, DataError, Misuse
from veilsum_participant.data import load_records
from veilsum_privacy.tasks.base import Records

REAL = Path(__file__).parents[2].parent / "shared" / "data"
FOLDERS = {"digits4": "digits4", "office-caltech10": "office_caltech10", "heart-disease": "heart_disease", "mnist": "mnist"}


def same(one: Records, other: Records) -> None:
    """Insist on equal records, to the bit."""
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.present, other.present)
    assert one.labels is not None
    assert other.labels is not None
    np.testing.assert_array_equal(one.labels, other.labels)


@pytest.mark.sampled(3)
def test_every_collection_has_its_reader() -> None:
    assert tuple(_READERS) == COLLECTIONS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COLLECTIONS)
def test_records_are_those_of_the_participants_reader(name: str, tmp_path: Path) -> None:
    collection = load_collection(name, write_collection(name, tmp_path / "data"))
    for domain in collection.domains:
        records, counts = load_records(domain.train.write(tmp_path, domain.name), collection.schema)
        same(domain.train.records, records)
        assert len(records) == 30
        assert not any(cells.unmatched for cells in counts.values())
        assert records.labels is not None
        assert set(np.bincount(records.labels).tolist()) == ({6, 24} if name == "heart-disease" else {3})
        rows = np.array([3, 1])
        taken = Records(records.features[rows], records.present[rows], records.labels[rows])
        same(domain.train.take(rows).records, taken)


def test_features_are_fixed_functions_of_their_own_record(tmp_path: Path) -> None:
    digits = load_collection("digits4", write_collection("digits4", tmp_path / "digits")).domains[1]
    images = np.load(tmp_path / "digits" / "digits4_16.npz")["usps_X_train"].reshape(30, 256)
    np.testing.assert_allclose(digits.train.records.features, images / 127.5 - 1, atol=1e-12)
    office = load_collection("office-caltech10", write_collection("office-caltech10", tmp_path / "office")).domains[0]
    features = office.train.records.features
    assert features.min() >= 0
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 4.0, rtol=0.05)  # 1 / 0.25, but for what is clamped


@pytest.mark.parametrize("name", COLLECTIONS)
def test_what_is_not_as_published_is_said(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no such file|does not exist"):
        load_collection(name, tmp_path)
    for file in write_collection(name, tmp_path / "data").iterdir():
        file.write_bytes(b"no data\x00\n")
    with pytest.raises(DataError):
        load_collection(name, tmp_path / "data")


def test_an_unknown_collection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No collection") as caught:
        load_collection("digits", tmp_path)
    assert "digits4" in caught.value.advice


@pytest.mark.system
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COLLECTIONS)
def test_the_published_files_have_the_known_sizes(name: str) -> None:
    folder = REAL / FOLDERS[name]
    if not folder.is_dir():
        pytest.skip(f"the published files of {name} are not at {folder}")
    collection = load_collection(name, folder)
    sizes = {
        "digits4": ([60000, 7291, 1275, 1437], [10000, 2007, 318, 360], 256),
        "mnist": ([60000], [10000], 784),
        "office-caltech10": ([958, 1123, 157, 295], None, 800),
        "heart-disease": ([303, 294, 123, 200], None, 25),
    }[name]
    assert [domain.train.table.num_rows for domain in collection.domains] == sizes[0]
    assert [domain.test.table.num_rows for domain in collection.domains if domain.test] == (sizes[1] or [])
    part = collection.domains[-1].train.take(np.arange(0, 100, 7))
    assert part.records.features.shape == (15, sizes[2])
    assert np.isfinite(part.records.features).all()
    assert (part.classes >= 0).all()


def small(tmp_path: Path, name: str = "digits4") -> Collection:
    return load_collection(name, write_collection(name, tmp_path / "data"))


def dealt(collection: Collection, setting: Setting, seed: int = 0) -> Deal:
    return deal(collection, setting, seed, site_names(collection, setting))


def test_each_domain_is_a_site_with_its_own_tests(tmp_path: Path) -> None:
    collection = small(tmp_path)
    found = dealt(collection, Setting("domains"))
    assert list(found.training) == list(found.tests) == ["mnist", "usps", "semeion", "optdigits"]
    for domain in collection.domains:
        same(found.training[domain.name].records, domain.train.records)
        assert domain.test is not None
        same(found.tests[domain.name].records, domain.test.records)
        assert found.home[domain.name] == domain.name


def test_a_limit_is_drawn_before_the_skew_and_a_cap_after(tmp_path: Path) -> None:
    collection = small(tmp_path)
    for seed in range(3):
        limited = dealt(collection, Setting("domains", limit=7), seed)
        assert [data.table.num_rows for data in limited.training.values()] == [7] * 4
        skewed = dealt(collection, Setting("domains+dirichlet:1", limit=20), seed)
        assert 4 <= sum(data.table.num_rows for data in skewed.training.values()) <= 20 + 4 * 10 * 0.5
        capped = dealt(collection, Setting("domains+dirichlet:1", cap=3), seed)
        free = dealt(collection, Setting("domains+dirichlet:1"), seed)
        for name, data in capped.training.items():
            assert data.table.num_rows == min(3, free.training[name].table.num_rows)
    first, second = (dealt(collection, Setting("domains", limit=7), seed).training["mnist"] for seed in (0, 1))
    assert not np.array_equal(first.records.features, second.records.features)


def test_pooled_partitions_deal_every_training_record(tmp_path: Path) -> None:
    collection = small(tmp_path)
    found = dealt(collection, Setting("shards:2", sites=10))
    assert len(found.training) == 10
    assert not found.home
    rows = np.concatenate([data.records.features for data in found.training.values()])
    whole = concatenate([domain.train for domain in collection.domains]).records.features
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], whole[np.lexsort(whole.T)])
    limited = dealt(collection, Setting("iid", sites=3, limit=5))
    assert [data.table.num_rows for data in limited.training.values()] == [5, 5, 5]


def test_held_out_records_are_in_no_site(tmp_path: Path) -> None:
    collection = small(tmp_path, "office-caltech10")
    for seed in (0, 1):
        found = dealt(collection, Setting("domains", holdout=0.2), seed)
        for domain in collection.domains:
            tested, kept = found.tests[domain.name].records, found.training[domain.name].records
            assert (len(tested), len(kept)) == (10, 20)  # 0.2 of 3 records a class is 1
            rows = {row.tobytes() for row in tested.features} | {row.tobytes() for row in kept.features}
            assert len(rows) == 30
    own, other = (dealt(collection, Setting("domains"), seed).tests["dslr"].records for seed in (0, 1))
    fixed = [dealt(collection, Setting("domains+dirichlet:1", split=1), seed).tests["dslr"].records for seed in (0, 5)]
    same(fixed[0], fixed[1])
    same(fixed[0], other)
    assert not np.array_equal(own.features, other.features)
    assert not dealt(collection, Setting("domains", holdout=0.0)).tests
    assert all(data.table.num_rows == 10 for data in dealt(collection, Setting("domains")).tests.values())  # 0.3 by default


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    collection = small(tmp_path)
    with pytest.raises(Misuse, match="are the domains"):
        site_names(collection, Setting("domains", sites=3))
    with pytest.raises(Misuse, match="are the domains"):
        site_names(collection, Setting("domains"), ["a", "b", "c", "d"])
    assert site_names(collection, Setting("domains"), ["usps", "mnist", "semeion", "optdigits"])[0] == "mnist"
    with pytest.raises(Misuse, match="one domain"):
        site_names(single(packaged_dataset("digits")), Setting("domains"))
    with pytest.raises(Misuse, match="names 2 participants"):
        site_names(collection, Setting(sites=3), ["a", "b"])
    assert site_names(collection, Setting()) == ["site-1", "site-2", "site-3", "site-4"]
