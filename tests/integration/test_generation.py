"""Generation over the whole protocol, and on real digits: the encrypted study gives what the plain one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.federation import DATASET, make_bed, schema_of
from support.studies import agreed, complete
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_coordinator.methods import METHODS
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.encoder import Program

DIGITS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "digits4" / "digits4_16.npz"
DOMAINS = ("mnist", "optdigits", "semeion", "usps")
WIDTH = 32


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        ("ggeur", {"mode": "multi-domain", "target": 60, "extra": 20, "rounds": 2, "hidden": 8}),
        ("fedpft", {"components": 2, "rounds": 1, "samples": 50}),
        ("fedpft", {"alignment": {"reference": "slopes"}, "samples": 50}),
    ],
)
def test_an_encrypted_study_gives_the_plain_ones_result(tmp_path: Path, method: str, parameters: dict[str, Any]) -> None:
    """Without noise the released integers are the same, so the results are, to the last bit."""
    rng = np.random.default_rng(0)
    means = rng.normal(0, 0.4, (3, 4))
    data = {}
    for name in "abc":
        y = rng.integers(0, 3, 60)
        data[name] = ((means[y] + rng.normal(0, 0.15, (60, 4))).clip(-1, 1), y)
    bed = make_bed(tmp_path, data, disclosures=("joint", "per-site"))
    study = bed.compile(
        StudyRequest(
            name="s",
            method=method,
            dataset=DATASET,
            data=schema_of(4, 3),
            parameters={"clip": 2.0, **parameters},
            privacy=PrivacyRequest(noise="none"),
        )
    )
    local = bed.local
    encrypted = METHODS[method].run(local.prepare(local.submit(study, bed.analyst)))
    sites = {name: PlainSite(complete(x, y)) for name, (x, y) in data.items()}
    plain = METHODS[method].run(PlainFederation(study, sites))
    assert set(encrypted.arrays) == set(plain.arrays)
    for name, array in plain.arrays.items():
        np.testing.assert_array_equal(encrypted.arrays[name], array)
    assert encrypted.application == plain.application


@pytest.fixture(scope="module")
def digits() -> dict[str, tuple[np.ndarray, ...]]:
    """Per domain: training and test features in 32 principal components of a pool balanced over domains, of norm about 1."""
    if not DIGITS.exists():
        pytest.skip(f"the data set digits4 is not at {DIGITS}")
    arrays = np.load(DIGITS)
    raw = {name: [arrays[f"{name}_{part}"] for part in ("X_train", "y_train", "X_test", "y_test")] for name in DOMAINS}
    flat = {name: [x.reshape(len(x), -1) / 255 if x.ndim > 1 else x for x in parts] for name, parts in raw.items()}
    pool = np.concatenate([parts[0][np.random.default_rng(0).permutation(len(parts[0]))[:1000]] for parts in flat.values()])
    centre = pool.mean(axis=0)
    axes = np.linalg.eigh(np.cov(pool.T))[1][:, ::-1][:, :WIDTH]
    axes /= np.sqrt(np.var((pool - centre) @ axes, axis=0).sum())
    return {name: ((x - centre) @ axes, y.astype(np.int64), (tx - centre) @ axes, ty) for name, (x, y, tx, ty) in flat.items()}


def run_on_digits(
    digits: dict[str, tuple[np.ndarray, ...]], method: str, seed: int, alpha: float, limit: int, **parameters: Any
) -> np.ndarray:
    """Accuracy on each domain's test records, one domain a site, classes thinned by a Dirichlet draw over the sites."""
    schema = schema_of(64, 10, max_records=2000)  # columns that a frozen program has encoded already
    encoder = Program(format="torchscript", sha256="0" * 64, inputs=(64,), width=WIDTH)
    request = StudyRequest(
        name="s",
        method=method,
        dataset="d",
        data=schema,
        encoder=encoder,
        parameters={"clip": 8.0, **parameters},
        privacy=PrivacyRequest(noise="none"),
    )
    study = agreed(request, DOMAINS)
    rng = np.random.default_rng(seed)
    shares = rng.dirichlet([alpha] * 4, size=10).T
    sites = {}
    for share, (name, (x, y, _, _)) in zip(shares, digits.items(), strict=True):
        order = rng.permutation(len(y))
        classes = [order[y[order] == c] for c in range(10)]
        kept = rng.permutation(np.concatenate([own[: round(share[c] * len(own))] for c, own in enumerate(classes)]))[:limit]
        sites[name] = PlainSite(complete(x[kept], y[kept]))
    result = METHODS[method].run(PlainFederation(study, sites))
    return np.array([correct(result, index, x, y) for index, (_, _, x, y) in enumerate(digits.values())])


def correct(result: Result, site: int, x: np.ndarray, y: np.ndarray) -> float:
    if result.application["alignment"] is not None:
        x = x @ result.arrays["alignment.matrix"][site].T + result.arrays["alignment.offset"][site]
    layers = result.application["head"].get("layers", [["weights", "bias"]])
    for index, (weight, bias) in enumerate(layers):
        x = (np.maximum(x, 0.0) if index else x) @ result.arrays[weight].T + result.arrays[bias]
    classes = np.array([int(name[1:]) for name in result.application["classes"]])
    return float(100 * np.mean(classes[x.argmax(axis=1)] == y))


@pytest.mark.system
def test_alignment_before_fedpft_gains_on_digits(digits: dict[str, tuple[np.ndarray, ...]]) -> None:
    gains = []
    for seed in range(3):
        plain, aligned = (
            run_on_digits(digits, "fedpft", seed, 0.5, 1500, **own).mean()
            for own in ({}, {"alignment": {"reference": "slopes"}})
        )
        gains.append(aligned - plain)
    assert np.mean(gains) > 0.5


@pytest.mark.system
def test_generation_at_sites_gains_on_digits(digits: dict[str, tuple[np.ndarray, ...]]) -> None:
    """The published direction: both steps raise the mean over domains, and bring the domains closer together."""
    common = {"rounds": 5, "hidden": 32, "extra": 100}
    found = {
        name: np.array([run_on_digits(digits, "ggeur", seed, 0.5, 1000, **common, **own) for seed in range(2)])
        for name, own in {
            "none": {"control": "none"},
            "step 1": {"target": 200},
            "both": {"target": 200, "mode": "multi-domain"},
        }.items()
    }
    for name in ("step 1", "both"):
        assert found[name].mean() > found["none"].mean() + 3.0
        assert found[name].std(axis=1).mean() < found["none"].std(axis=1).mean() - 1.0
