"""The method "pca": scikit-learn's components without noise, an encoder in either case, plain words where there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from support.studies import SCHEMA, WIDTH, compiled, complete, draft, federation, run, shifted_sites
from veilsum.plan import Outlook, Verdict, plan_study
from veilsum_coordinator.methods import get_method
from veilsum_coordinator.results.released_models import result_projection
from veilsum_node.errors import ConfigurationError
from veilsum_participant.applying.model import Model
from veilsum_privacy.results.result import load_result, save_result
from veilsum_privacy.study.schema import DatasetSchema, NumberColumn
from veilsum_privacy.tasks.base import Records

pytestmark = pytest.mark.usefixtures("few_rehearsals", "plans_without_search")


def test_components_without_noise_are_scikit_learns() -> None:
    sites = shifted_sites()
    x = np.vstack([own.features for own in sites.values()])
    expected = PCA(n_components=3).fit(x)
    result = run("pca", {"width": 3, "scale": "none"}, sites)
    matrix = result.arrays["encoder.matrix"]
    signs = np.sign(np.sum(matrix * expected.components_, axis=1))
    np.testing.assert_allclose(matrix, expected.components_ * signs[:, None], atol=1e-5)
    features = matrix @ x.T + result.arrays["encoder.offset"][:, None]
    np.testing.assert_allclose(features.T, expected.transform(x) * signs, atol=1e-5)
    n = len(x)
    np.testing.assert_allclose(result.arrays["explained.variance"], expected.explained_variance_ * (n - 1) / n, rtol=1e-4)
    shares = [row["share"] for row in result.summary["components"]]
    np.testing.assert_allclose(shares, expected.explained_variance_ratio_, rtol=1e-4)
    assert np.all(matrix[np.arange(3), np.abs(matrix).argmax(axis=1)] > 0)
    assert result.summary["records"]["value"] == pytest.approx(n, abs=1e-3)


@pytest.mark.parametrize("scale", ["norm", "whiten", "none"])
@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_it_is_an_encoder_whose_features_are_centred_and_of_norm_about_one(
    scale: str, epsilon: float | None, tmp_path: Path
) -> None:
    sites = shifted_sites()
    privacy: dict[str, Any] = {} if epsilon is None else {"epsilon": epsilon}
    result = run("pca", {"width": 4, "scale": scale}, sites, **privacy)
    save_result(tmp_path, result)
    loaded = load_result(tmp_path)
    projection, arrays = result_projection(loaded)
    assert (projection.inputs, projection.width) == (WIDTH, 4)
    assert loaded.application["encoder"]["sha256"] == projection.sha256
    assert loaded.application["head"] is None
    pooled = complete(np.vstack([own.features for own in sites.values()]))
    features = Model.from_result(loaded).features(pooled)
    np.testing.assert_allclose(features, pooled.features @ arrays["encoder.matrix"].T + arrays["encoder.offset"], atol=1e-9)
    rough = 1e-4 if epsilon is None else 0.1
    assert np.abs(features.mean(axis=0)).max() < rough
    if scale != "none":
        # under noise the variance of a small component is known roughly, and whitening divides by it
        tolerance = 1e-3 if epsilon is None else 0.5 if scale == "whiten" else 0.2
        assert np.mean(np.sum(features**2, axis=1)) == pytest.approx(1.0, abs=tolerance)
    if scale == "whiten" and epsilon is None:
        np.testing.assert_allclose(features.T @ features / len(features), np.eye(4) / 4, atol=1e-3)
    # a later study on it
    study = compiled("fedcgs", encoder=projection, **privacy)
    later = get_method("fedcgs").run(federation(study, sites, encoder=arrays))
    model = Model.from_result(later)
    hits = [np.mean(model.predict(own) == own.labels) for own in sites.values()]
    assert np.mean(hits) > 0.75
    assert float.fromhex(study.parameters["clip"]) == (8.0 if epsilon is None else 0.7)


def test_noise_of_any_size_gives_orthogonal_finite_axes() -> None:
    for epsilon in (0.02, 0.3, 5.0):
        for seed in range(10):
            result = run("pca", {"width": 3, "scale": "none"}, shifted_sites(40), seed, epsilon=epsilon)
            json.dumps(result.summary, allow_nan=False)
            if "not_estimable" in result.summary:
                assert not result.arrays
                continue
            matrix = result.arrays["encoder.matrix"]
            np.testing.assert_allclose(matrix @ matrix.T, np.eye(3), atol=1e-9)
            variances = result.arrays["explained.variance"]
            assert np.all(variances >= 0)
            assert np.all(np.diff(variances) <= 1e-12)
            assert result.summary["components_above_noise"] <= 3


def test_what_has_no_components_is_said() -> None:
    constant = {name: Records(np.full((50, WIDTH), 0.5), own.present[:50], None) for name, own in shifted_sites().items()}
    schema = SCHEMA.model_copy(update={"label": None})
    result = run("pca", {}, constant, schema=schema)
    assert "do not vary" in result.summary.get("not_estimable", "") or result.summary["components"][0]["variance"] < 1e-5
    few = shifted_sites(2)
    reasons = [run("pca", {}, few, seed, epsilon=0.05).summary.get("not_estimable", "") for seed in range(10)]
    assert sum("within its noise" in reason for reason in reasons) >= 8


def test_width_by_default_and_out_of_range() -> None:
    assert compiled("pca").parameters["width"] == WIDTH
    wide = DatasetSchema(columns=tuple(NumberColumn(name=f"x{i}", low=0, high=1) for i in range(80)), max_records=100)
    assert compiled("pca", schema=wide).parameters["width"] == 40
    with pytest.raises(ConfigurationError, match="7 components cannot be made of 6"):
        compiled("pca", {"width": 7})


def test_the_plan_warns_before_components_drown() -> None:
    wide = DatasetSchema(columns=tuple(NumberColumn(name=f"x{i}", low=0, high=1) for i in range(256)), max_records=1000)
    asked = draft("pca", schema=wide, epsilon=0.5, expected=300)
    plan = plan_study(asked, asked.compile())
    assert plan.verdict is Verdict.NOT_WORTH
    (main,) = (part for part in plan.parts if part.main)
    assert (main.name, main.outlook) == ("variance along a direction, on average", Outlook.NOTHING)
    small = draft("pca", epsilon=5.0, expected=800)
    assert plan_study(small, small.compile()).verdict is Verdict.WORTH
    assert plan_study(small, small.compile()).notes == ()
