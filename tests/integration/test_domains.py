"""Domains of one's own: folders of images and a frozen network, every method that suits them, and a domain left out."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from support.commands import veilsum
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.collections import own_sites
from veilsum_deploy.images import FrozenNetwork, Shape, read_image, write_records
from veilsum_deploy.simulation.deal import Deal, Setting, deal, site_names, sites_by_domain
from veilsum_node.errors import DataError, Misuse
from veilsum_privacy.study.schema_file import load_schema

DOMAINS, CLASSES, EACH = ("ink", "chalk", "pencil"), ("bar", "post", "dot"), 20
METHODS_PAGE = Path(__file__).parents[2] / "docs" / "methods.md"
PAGE = METHODS_PAGE.read_text(encoding="utf-8").split("## Domains\n")[1].split("\n## ")[0]
ROWS = re.findall(r"^\| `([a-z-]+)` \| (.*) \| (accuracy|nothing.*) \|$", PAGE, re.MULTILINE)
PARAMETERS = {method: re.findall(r"`([^`]+)`", cell) for method, cell, _ in ROWS}
"""Lines of the table of parameters, as the page shows them."""
CLASSIFIERS = {method for method, _, result in ROWS if result == "accuracy"}
UNCLIPPED = {"statistics", "regression", "gbdt", "federated-evaluation"}


def draw(kind: str, domain: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """A bar, a post or a dot about the middle, on paper of its own and by a pen of its own."""
    image = np.zeros((20, 16))
    row, column = rng.integers(8, 11), rng.integers(6, 9)
    rows, columns = {"bar": (slice(row, row + 2), slice(2, 14)), "post": (slice(4, 16), slice(column, column + 2))}.get(
        kind, (slice(row, row + 4), slice(column - 2, column + 2))
    )
    image[rows, columns] = 1.0
    paper, pen, rough = {"ink": (230, -200, 5), "chalk": (200, -150, 25), "pencil": (170, -100, 8)}[domain]
    return np.clip(paper + pen * image + rng.normal(0, rough, image.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images by domain and class, and a network that reads 12 x 12 grey levels."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(4)
    for domain in DOMAINS:
        for kind in CLASSES:
            (folder / "images" / domain / kind).mkdir(parents=True)
            for number in range(EACH):
                Image.fromarray(draw(kind, domain, rng)).save(folder / "images" / domain / kind / f"{number:02d}.png")
    torch.manual_seed(1)
    layers = [torch.nn.Conv2d(1, 6, 3), torch.nn.ReLU(), torch.nn.AvgPool2d(2), torch.nn.Flatten()]
    network = torch.nn.Sequential(*layers).eval()
    torch.jit.save(torch.jit.trace(network, torch.zeros(1, 1, 12, 12)), str(folder / "net.pt"))
    return folder


@pytest.fixture(scope="module")
def features(photos: Path) -> Path:
    shape = Shape(1, 12)
    counts = write_records(photos / "images", photos / "features", shape, FrozenNetwork(photos / "net.pt", "torchscript"))
    assert counts == dict.fromkeys(sorted(DOMAINS), EACH * len(CLASSES))
    return photos / "features"


def study(folder: Path, text: str, privacy: str = 'noise = "none"', name: str = "study") -> Path:
    path = folder / f"{name}.toml"
    head, *tables = text.split("\n[", 1)
    rest = "".join(f"\n[{table}" for table in tables)
    about = f'name = "photos"\ndataset = "photos"\nschema = "{folder / "features" / "schema.toml"}"\n'
    path.write_text(f"{about}{head}{rest}\n[privacy]\nmin_cohort = 2\n{privacy}\n")
    return path


def test_features_are_the_networks_at_norm_one(photos: Path, features: Path) -> None:
    schema = load_schema(features / "schema.toml")
    network = torch.jit.load(str(photos / "net.pt"))
    with np.load(features / "chalk.npz") as archive:
        rows, labels = archive["X"], archive["y"]
    assert rows.shape == (60, schema.width) == (60, 150)
    assert list(labels) == [kind for kind in sorted(CLASSES) for _ in range(EACH)]
    for index in (0, 25, 59):
        file = photos / "images" / "chalk" / labels[index] / f"{index % EACH:02d}.png"
        levels = read_image(file, Shape(1, 12))
        with torch.no_grad():
            own = network(torch.from_numpy(levels / 127.5 - 1.0).reshape(1, 1, 12, 12)).numpy()[0]
        np.testing.assert_allclose(rows[index], own / np.linalg.norm(own), atol=1e-6)
        whole = Image.open(file).crop((0, 2, 16, 18)).resize((12, 12), Image.Resampling.BICUBIC)
        assert np.abs(levels - np.asarray(whole, dtype=np.float32).reshape(-1)).mean() < 1.0  # but for its edges


def test_the_page_has_every_method() -> None:
    assert set(PARAMETERS) == set(METHODS)


@pytest.mark.system
@pytest.mark.sampled(7)
@pytest.mark.parametrize("method", PARAMETERS)
def test_each_method_runs_by_its_study_file(
    photos: Path, features: Path, capsys: pytest.CaptureFixture[str], method: str
) -> None:
    """As the page shows it; classifiers far above chance on the domain that no site has, from two sites of each other."""
    lines = PARAMETERS[method] + ([] if method in UNCLIPPED else ["clip = 1.0"])
    path = study(photos, "\n".join([f'method = "{method}"', "[parameters]", *lines]))
    options = ["--data", features, "--sites", 4, "--leave-out", "chalk", "--holdout", 0.3, "--no-encryption", "--json"]
    options += ["--partition", "domains", "--baselines", "none"]
    if method == "federated-evaluation" and not (photos / "fedsgd").exists():
        lines = ['method = "fedsgd"', "[parameters]", "clip = 1.0", *PARAMETERS["fedsgd"]]
        own = study(photos, "\n".join(lines), name="fedsgd")
        code, _, err = veilsum(capsys, "simulate", own, *options, "--out", photos / "fedsgd")
        assert code == 0, err
    code, text, err = veilsum(capsys, "simulate", path, *options)
    assert code == 0, err
    found = json.loads(text)
    assert sorted(found["sites"]) == ["ink-1", "ink-2", "pencil-1", "pencil-2"]
    assert (found["accuracy_by_domain"] is not None) == (method in CLASSIFIERS)
    if method in CLASSIFIERS:
        assert set(found["accuracy_by_domain"][0]) == set(DOMAINS)
        shares = found["accuracy_by_domain"][0].values()
        assert min(shares) > 0.5  # of 18 records each but for the domain left out
        assert sum(shares) / len(shares) > 0.7


@pytest.mark.system
def test_a_sweep_leaves_each_domain_out(photos: Path, features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(photos, 'method = "fedpft"')
    vary = ("--vary", "leave_out=without,ink,chalk", "--vary", "partition=domains,domains+dirichlet:2")
    code, text, err = veilsum(capsys, "simulate", path, "--data", features, *vary, "--seeds", 2, "--jobs", 1, "--json")
    assert code == 0, err
    rows = json.loads(text)["rows"]
    assert {row["cell"].get("leave_out") for row in rows} == {"without", "ink", "chalk", None}
    kinds = [row["kind"] for row in rows]
    assert (kinds.count("cell"), kinds.count("left-out")) == (6, 2)
    for row in rows:
        assert (row["done"], row["statuses"]) == (2, {})
        assert set(row["domains"]) == ({"ink", "chalk"} if row["kind"] == "left-out" else set(DOMAINS))
    pooled = {row["cell"]["leave_out"]: row["domains"]["ink"] for row in rows if row["kind"] == "pooled"}
    assert pooled["without"] > 0.9


@pytest.mark.system
def test_each_leaves_every_domain_out_in_turn(photos: Path, features: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = study(photos, 'method = "fedpft"')
    options = ("--vary", "leave_out=without,each,ink", "--baselines", "none", "--jobs", 1, "--json")
    code, text, err = veilsum(capsys, "simulate", path, "--data", features, *options)
    assert code == 0, err
    *rows, mean = json.loads(text)["rows"]
    assert [row["cell"]["leave_out"] for row in rows] == ["without", *sorted(DOMAINS)]
    assert mean["kind"] == "left-out"
    assert mean["domains"] == {row["cell"]["leave_out"]: row["domains"][row["cell"]["leave_out"]] for row in rows[1:]}
    code, _, err = veilsum(capsys, "simulate", path, "--data", features, *options, "--baseline", "leave_out=each")
    assert (code, "leave_out=each is every domain in turn" in " ".join(err.split())) == (2, True), err


def dealt(features: Path, setting: Setting, seed: int = 0) -> tuple[Deal, Any]:
    collection = own_sites(features, load_schema(features / "schema.toml"), "photos")
    return deal(collection, setting, seed, site_names(collection, setting)), collection


def test_domains_are_dealt_evenly_to_sites_of_their_own(features: Path) -> None:
    found, collection = dealt(features, Setting("domains", sites=9, holdout=0.3))
    assert sites_by_domain(collection, Setting("domains", sites=9))["ink"] == ("ink-1", "ink-2", "ink-3")
    assert found.sites_of("ink") == ["ink-1", "ink-2", "ink-3"]
    whole = {domain.name: {row.tobytes() for row in domain.train.records.features} for domain in collection.domains}
    for domain in DOMAINS:
        parts = [found.training[f"{domain}-{number}"].records.features for number in (1, 2, 3)]
        assert [len(part) for part in parts] == [14, 14, 14]
        rows = {row.tobytes() for row in np.concatenate([*parts, found.tests[domain].records.features])}
        assert rows == whole[domain]  # no row twice, none of another domain, none of those tested on
        assert len(rows) == 60
    skewed, _ = dealt(features, Setting("domains+dirichlet:0.5", sites=6, holdout=0.3))
    assert sum(data.table.num_rows for data in skewed.training.values()) < 3 * 42 / 2


def test_a_domain_left_out_is_only_tested_on_and_with_all_its_records(features: Path) -> None:
    for how, sites in (("domains", None), ("iid", 5)):
        found, _ = dealt(features, Setting(how, sites=sites, holdout=0.3, leave_out="ink"))
        assert (len(found.tests["ink"].records), len(found.tests["chalk"].records)) == (60, 18)
        tested = {row.tobytes() for row in found.tests["ink"].records.features}
        assert not tested & {row.tobytes() for data in found.training.values() for row in data.records.features}
        assert sum(data.table.num_rows for data in found.training.values()) == 2 * 42
        assert found.sites_of("ink") == list(found.training)
        ((site, rows),) = found.parts("ink")
        assert site is None
        np.testing.assert_array_equal(rows, np.arange(60))
        for domain in ("chalk", "pencil"):  # each record once, at a site of its domain
            parts = found.parts(domain)
            assert {site for site, _ in parts} == set(found.sites_of(domain))
            np.testing.assert_array_equal(np.sort(np.concatenate([rows for _, rows in parts])), np.arange(18))
    with pytest.raises(Misuse, match="no domain 'inc' to leave out"):
        dealt(features, Setting("domains", leave_out="inc"))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """The same records as one table with columns of hospital and scanner, and as folders of scanners."""
    rng = np.random.default_rng(2)
    scanner = {"a": "old", "b": "old", "c": "new", "d": "new"}
    rows = [(site, scanner[site], round(rng.normal(50, 9)), rng.integers(2)) for site in "abcd" for _ in range(25)]
    order = rng.permutation(len(rows))
    lines = [",".join(map(str, rows[index])) for index in order]
    (tmp_path / "all.csv").write_text("\n".join(["hospital,scanner,age,ill", *lines]) + "\n")
    for site, origin in scanner.items():
        (tmp_path / "folders" / origin).mkdir(parents=True, exist_ok=True)
        own = [f"{rows[index][2]},{rows[index][3]}" for index in order if rows[index][0] == site]
        (tmp_path / "folders" / origin / f"{site}.csv").write_text("\n".join(["age,ill", *own]) + "\n")
    (tmp_path / "schema.toml").write_text(
        'max_records = 100\n[[columns]]\nkind = "number"\nname = "age"\nlow = 0\nhigh = 100\n[label]\ncolumn = "ill"\n'
        'classes = [{ name = "no", values = ["0"] }, { name = "yes", values = ["1"] }]\n'
    )
    return tmp_path


def test_columns_and_folders_say_the_same(tables: Path) -> None:
    schema = load_schema(tables / "schema.toml")
    by_column = own_sites(tables / "all.csv", schema, "all", site_column="hospital", domain_column="scanner")
    by_folder = own_sites(tables / "folders", schema, "all")
    for seed in (0, 1):
        one, two = (
            deal(source, Setting("domains", holdout=0.0), seed, site_names(source, Setting("domains")))
            for source in (by_column, by_folder)
        )
        assert list(one.training) == ["c", "d", "a", "b"]
        assert list(two.training) == ["new-c", "new-d", "old-a", "old-b"]
        assert one.sites == {"new": ("c", "d"), "old": ("a", "b")}
        for name, other in zip(one.training, two.training, strict=True):
            np.testing.assert_array_equal(one.training[name].records.features, two.training[other].records.features)
            np.testing.assert_array_equal(one.training[name].records.labels, two.training[other].records.labels)
    alone = own_sites(tables / "all.csv", schema, "all", domain_column="scanner")
    assert site_names(alone, Setting("domains", sites=4)) == ["new-1", "new-2", "old-1", "old-2"]
    with pytest.raises(Misuse, match="are the domains"):
        site_names(by_folder, Setting("domains", sites=6))
    with pytest.raises(DataError, match="has records of"):
        own_sites(tables / "all.csv", schema, "all", site_column="scanner", domain_column="hospital")
    (tables / "one.csv").write_text("scanner,age,ill\nold,5,1\nold,6,0\n")
    with pytest.raises(DataError, match="names one domain"):
        own_sites(tables / "one.csv", schema, "all", domain_column="scanner")


def test_the_command_makes_records_of_images(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mixed").mkdir()
    code, text, err = veilsum(
        capsys, "images", photos / "images", "--size", 8, "--channels", 1, "--out", tmp_path / "pixels", "--json"
    )
    assert code == 0, err
    assert json.loads(text)["domains"] == dict.fromkeys(sorted(DOMAINS), 60)
    schema = load_schema(tmp_path / "pixels" / "schema.toml")
    collection = own_sites(tmp_path / "pixels", schema, "pixels")
    records = collection.domains[0].train.records
    first = photos / "images" / "chalk" / "bar" / "00.png"
    np.testing.assert_allclose(records.features[0], read_image(first, Shape(1, 8)) / 127.5 - 1.0, atol=1e-6)
    for options, message in (
        (("--out", tmp_path / "pixels"), "is there already"),
        (("--size", 100, "--out", tmp_path / "x"), "more than the 4096"),
        (("--program", photos / "net.pt", "--size", 2, "--out", tmp_path / "x"), "does not run on one image"),
        (("--channels", 2, "--out", tmp_path / "x"), "no 2 channels"),
    ):
        code, _, err = veilsum(capsys, "images", photos / "images", *options)
        assert (code, message in " ".join(err.split())) == (2, True), err
    code, _, err = veilsum(capsys, "images", tmp_path / "mixed", "--out", tmp_path / "x")
    assert (code, "two domains" in err) == (2, True)
    bad = tmp_path / "broken" / "images"
    for domain in "ab":
        for kind in "cd":
            (bad / domain / kind).mkdir(parents=True)
            (bad / domain / kind / "1.png").write_bytes(b"no image")
    code, _, err = veilsum(capsys, "images", bad, "--out", tmp_path / "y")
    assert (code, "cannot be read as an image" in " ".join(err.split())) == (2, True)


@pytest.mark.system
def test_the_pages_two_commands_run(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/methods.md shows them, with the size of these images and a domain that there is."""
    images, simulate = re.findall(r"^    veilsum (.*)$", PAGE, re.MULTILINE)[:2]
    (tmp_path / "ggeur.toml").write_text(textwrap.dedent(PAGE[PAGE.index("    name =") : PAGE.index("Without `--program`")]))
    (tmp_path / "photos").symlink_to(photos / "images")
    (tmp_path / "net.pt").symlink_to(photos / "net.pt")
    monkeypatch.chdir(tmp_path)
    code, _, err = veilsum(capsys, *images.replace("224", "12 --channels 1").split())
    assert code == 0, err
    own = simulate.replace("sketch", "chalk").replace("--seeds 5", "--seeds 1")
    code, text, err = veilsum(capsys, *own.split(), "--jobs", 1, "--json", "--baselines", "none")
    assert code == 0, err
    assert [row["statuses"] for row in json.loads(text)["rows"]] == [{}, {}]
