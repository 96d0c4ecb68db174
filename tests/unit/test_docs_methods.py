"""The page on methods says what the code does: every study in it compiles, and its tables hold every parameter and default."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pydantic_core import PydanticUndefined

from support.studies import SITES, agreed, federation, split_records
from support.studies import compiled as compiled_study
from veilsum_aggregation.figures import MODEL_ERRORS
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.fedavg import ParticipationParameters
from veilsum_coordinator.methods.hfedatm import MergeParameters
from veilsum_coordinator.parts.alignment import AlignmentParameters
from veilsum_coordinator.parts.generation import GenerationParameters
from veilsum_coordinator.parts.local_rounds import TrainingParameters
from veilsum_coordinator.parts.moment_alignment import MomentAlignment
from veilsum_deploy.collections import single
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.simulation.deal import Setting
from veilsum_deploy.simulation.runs import simulate
from veilsum_deploy.simulation.study import SimulatedRuns, Simulation, draft_of
from veilsum_node.fields import Frozen
from veilsum_participant.applying.model import load_model
from veilsum_participant.settings.config import NEEDED
from veilsum_privacy.results.result import save_result
from veilsum_privacy.study.encoder import Program
from veilsum_privacy.study.schema import CategoryColumn, DatasetSchema, NumberColumn
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.models import MODELS
from veilsum_privacy.training.objectives import OBJECTIVES, ObjectiveSpec
from veilsum_privacy.training.server_steps import OptimiserParameters
from veilsum_privacy.training.sketches import GradientProjection

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
STUDIES = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
BY_NAME = {study["name"]: study for study in STUDIES}
SHARED = {"clip", "missing"}
ROUNDS = set(TrainingParameters.model_fields)
"""What the page says of "hfedatm" by pointing at "fedavg"."""
TABLES: dict[tuple[str, str], type[Frozen]] = {
    ("## Alignment", "parameter"): AlignmentParameters,
    ("## Generation", "parameter"): GenerationParameters,
    ("## Moments", "`moments`"): MomentAlignment,
    ("## Participation", "`participation`"): ParticipationParameters,
    ("## fedsgd", "`optimiser`"): OptimiserParameters,
    ("## fedsgd", "`projection`"): GradientProjection,
    ("## hfedatm", "`merge`"): MergeParameters,
    **{(f"## {name}", "parameter"): method.Parameters for name, method in METHODS.items() if name != "statistics"},
}


def section(heading: str) -> str:
    """The page's text under a heading of the second level."""
    return re.split(r"^## ", PAGE.split(f"\n{heading}\n")[1], maxsplit=1, flags=re.MULTILINE)[0]


def table(heading: str, titles: str) -> list[list[str]]:
    """Cells of all tables of a section whose first line is ``titles``."""
    columns = titles.count("|") + 1
    rule = " | ".join(["---"] * columns)
    begin = re.escape(f"| {titles} |\n| {rule} |\n")
    found = re.findall(rf"^{begin}((?:\|.*\|\n)+)", section(heading), re.MULTILINE)
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in "".join(found).splitlines()]
    assert all(len(row) == columns for row in cells), heading
    return cells


def rows(heading: str, first: str = "parameter") -> dict[str, str]:
    """Default by parameter, as the tables of a section state them."""
    return {row[0].strip("`"): row[1].strip("`") for row in table(heading, f"{first} | default | what")}


def trial(study: Mapping[str, Any], folder: Path) -> SimulatedRuns:
    """The page's study on the packaged data, without encryption."""
    digits = single(packaged_dataset(study["dataset"]))
    draft = draft_of(study, folder, digits.schema, source="page")
    simulation = Simulation(draft, digits, Setting(), 0, encryption=False)
    return simulate(simulation, lambda text, share: None, lambda: 1_700_000_000)


def with_parameters(study: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
    return {**study, "parameters": {**study.get("parameters", {}), **parameters}}


@pytest.fixture(scope="module")
def own_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The page's package of a model of one's own, as an installer leaves it."""
    folder, text = tmp_path_factory.mktemp("site"), section("## Models")
    (folder / "hospital_models.py").write_text(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0])
    file = re.findall(r"announces it:\n\n(.*?)\n\n`pip", text, re.DOTALL)[0]
    project = tomllib.loads("\n".join(line[4:] for line in file.splitlines()))["project"]
    info = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    points = project["entry-points"]["veilsum.models"].items()
    (info / "entry_points.txt").write_text("[veilsum.models]\n" + "".join(f"{name} = {place}\n" for name, place in points))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
    sys.modules.pop("hospital_models", None)


@pytest.fixture(scope="module")
def axes(tmp_path_factory: pytest.TempPathFactory, own_model: None) -> Path:
    """A folder with results of the page's own studies, where its other studies look for them."""
    folder = tmp_path_factory.mktemp("page")
    for study in (BY_NAME["axes"], with_parameters(BY_NAME["steps"], steps=2)):
        save_result(folder / study["name"] / "run-1", trial(study, folder).runs[0].result)
    return folder


@pytest.mark.sampled(3)
@pytest.mark.parametrize("study", STUDIES, ids=[study["name"] for study in STUDIES])
def test_every_study_of_the_page_compiles(study: dict[str, Any], axes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_deploy.simulation.study.load_encoder", lambda path, declared: declared)
    schema = packaged_dataset(study["dataset"]).schema
    draft = draft_of(study, axes, schema, source=study["name"], program=Path("net.pt"))
    compiled = agreed(draft.request, ["site-1", "site-2", "site-3", "site-4"])
    assert compiled.method == study["method"]
    assert all({task.task for task in compiled.tasks} & set(group) for group in NEEDED[compiled.method])
    wanted = study["privacy"].get("epsilon")
    assert compiled.privacy.epsilon == (None if wanted is None else pytest.approx(wanted, rel=1e-3))
    assert isinstance(compiled.encoder, Program) == (study.get("encoder", {}).get("kind") == "program")


def test_studies_of_the_other_pages_compile(axes: Path) -> None:
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    found = [tomllib.loads(text) for text in re.findall(r"^```toml\n(.*?)^```", results, re.MULTILINE | re.DOTALL)]
    tour = (ROOT / "docs" / "first-study.md").read_text(encoding="utf-8")
    written = re.findall(r"^    name = [^\n]*\n    method = .*?epsilon = [^\n]*\n", tour, re.MULTILINE | re.DOTALL)
    found += [tomllib.loads(re.sub(r"^    ", "", text, flags=re.MULTILINE)) for text in written]
    assert [study["method"] for study in found] == ["fedsgd", "statistics", "fedcgs", "fedsgd"]
    for study in found:
        dataset = packaged_dataset("breast-cancer")
        content = {key: value for key, value in study.items() if key != "schema"}
        request = draft_of(content, axes, dataset.schema, source=study["name"]).request
        compiled = agreed(request, ["north", "south", "west"])
        assert compiled.privacy.epsilon == pytest.approx(1.0, rel=1e-3)


def test_every_method_has_a_study_on_the_page() -> None:
    assert {study["method"] for study in STUDIES} == set(METHODS)
    assert len({study["name"] for study in STUDIES}) == len(STUDIES) > len(METHODS)


def shown(default: object) -> str:
    """A default as the page's tables write it."""
    if isinstance(default, bool):
        return str(default).lower()
    return f'"{default}"' if isinstance(default, str) else str(default)


@pytest.mark.parametrize(("heading", "first"), TABLES)
def test_tables_hold_every_parameter_and_its_default(heading: str, first: str) -> None:
    fields = TABLES[heading, first].model_fields
    stated = rows(heading, first)
    elsewhere = ROUNDS if (heading, first) == ("## hfedatm", "parameter") else set()
    assert set(stated) == set(fields) - SHARED - elsewhere
    for name, text in stated.items():
        default = fields[name].default
        if isinstance(default, bool | str | int | float):
            assert text == shown(default), name
        elif fields[name].is_required():
            assert not text, name
        else:
            assert text, name


def test_tables_of_models_and_objectives_hold_all_of_them_with_their_options() -> None:
    models = {row[0].strip("`"): row[1] for row in table("## Models", "model | options | what")}
    assert models == {name: options_of(kind.Options) for name, kind in MODELS.items()}
    objectives = {row[0]: row for row in table("## fedavg", "objective | options | beside the update | with noise")}
    names = {text.split("`")[1]: row for text, row in objectives.items()}
    assert set(names) == set(OBJECTIVES)
    for name, row in names.items():
        assert re.sub(r" \(.*?\)", "", row[1]) == options_of(OBJECTIVES[name].Options), name


def options_of(kind: type[Frozen]) -> str:
    told = {
        name: "" if field.default is PydanticUndefined else f" {field.default}" for name, field in kind.model_fields.items()
    }
    return ", ".join(f"`{name}`{default}" for name, default in told.items())


def test_optimisers_and_objectives_that_are_defaults() -> None:
    plain = OptimiserParameters().name
    assert (rows("## fedsgd")["optimiser"], rows("## fedavg")["server"], rows("## ggeur")["server"]) == (plain,) * 3
    assert {rows(heading)["objective"] for heading in ("## fedavg", "## ggeur")} == {ObjectiveSpec().name}


@pytest.mark.usefixtures("own_model")
def test_a_model_of_ones_own_trains_and_is_applied(tmp_path: Path) -> None:
    study = with_parameters(BY_NAME["own-model"], steps=3, checkpoint_every=0)
    result = trial(study, tmp_path).runs[0].result
    assert result.summary["model"] == "two-layer"
    assert result.arrays["model.features.first.weight"].shape == (32, 64)
    save_result(tmp_path / "result", result)
    model, digits = load_model(tmp_path / "result"), packaged_dataset("digits")
    x = digits.records.features[:50]
    hidden = np.tanh(x @ result.arrays["model.features.first.weight"].T + result.arrays["model.features.first.bias"])
    second = np.tanh(hidden @ result.arrays["model.features.second.weight"].T + result.arrays["model.features.second.bias"])
    scores = second @ result.arrays["model.head.weight"].T + result.arrays["model.head.bias"]
    np.testing.assert_allclose(model.scores(digits.take(np.arange(50)).records), scores, rtol=1e-9, atol=1e-12)


REGISTRY = DatasetSchema(
    columns=(
        NumberColumn(name="age", low=20, high=90, unit="years"),
        CategoryColumn(name="arm", categories=("a", "b")),
        NumberColumn(name="visits", low=0, high=20),
        NumberColumn(name="years", low=0, high=5),
        CategoryColumn(name="end", categories=("alive", "moved", "died")),
    ),
    max_records=2000,
)
FAMILIES = [tomllib.loads(text) for text in re.findall(r"^```toml family\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]


def registry() -> pd.DataFrame:
    """Made-up records: `arm` b has exp(0.4) times the visits, and exp(-0.6) times the hazard."""
    rng = np.random.default_rng(7)
    age, arm = rng.normal(60, 12, 8000).clip(20, 90), rng.integers(0, 2, 8000)
    visits = rng.poisson(np.exp(0.7 + 0.01 * (age - 60) + 0.4 * arm)).clip(0, 20)
    died, moved = rng.exponential(1 / (0.2 * np.exp(0.02 * (age - 60) - 0.6 * arm))), rng.uniform(0, 12, 8000)
    years = np.minimum(np.minimum(died, moved), 5.0)
    end = np.where(years >= 5.0, "alive", np.where(died <= moved, "died", "moved"))
    return pd.DataFrame({"age": age, "arm": arm, "visits": visits, "years": years, "end": end})


def records_of(frame: pd.DataFrame) -> Records:
    ends = np.array([["alive", "moved", "died"].index(end) for end in frame.end])
    numbers = np.column_stack([(frame.age - 20) / 35 - 1, frame.visits / 10 - 1, frame.years / 2.5 - 1])
    features = np.hstack([numbers[:, :1], np.eye(2)[frame.arm], numbers[:, 1:], np.eye(3)[ends]])
    return Records(features, np.ones(features.shape, dtype=np.bool_), None)


def pooled(family: str, frame: pd.DataFrame) -> float:
    """The coefficient of `arm` in the clear, by statsmodels and lifelines."""
    import statsmodels.api as sm
    from lifelines import CoxPHFitter

    x = sm.add_constant(frame[["age", "arm"]].to_numpy(dtype=float))
    if family == "linear":
        return float(sm.OLS(frame.visits, x).fit().params.iloc[2])
    if family == "poisson":
        return float(sm.GLM(frame.visits, x, family=sm.families.Poisson()).fit().params.iloc[2])
    fitted = CoxPHFitter().fit(frame[["age", "arm", "years"]].assign(died=frame.end == "died"), "years", "died")
    return float(fitted.params_["arm"])


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize("parameters", FAMILIES, ids=[family["family"] for family in FAMILIES])
def test_families_of_regressions_run_as_the_page_says(parameters: dict[str, Any]) -> None:
    frame = registry()
    sites = dict(zip(SITES, split_records(records_of(frame), 4).values(), strict=True))
    study = compiled_study("regression", parameters, schema=REGISTRY, epsilon=3.0, expected=2000)
    truth, found = pooled(parameters["family"], frame), []
    for seed in range(8):
        summary = METHODS["regression"].run(federation(study, sites, seed)).summary
        row = summary["coefficients"][-1]
        figure = row.get("log") or row["coefficient"]
        assert figure["low"] < truth < figure["high"]
        found.append(figure["value"])
    assert np.mean(found) == pytest.approx(truth, rel=0.05)
    said = re.search(rf"{parameters['family']} (-?[\d.]+) and (-?[\d.]+)", section("## regression").replace("`", ""))
    assert said
    assert float(said[1]) == pytest.approx(truth, abs=0.005)
    assert float(said[2]) == pytest.approx(np.mean(found), abs=0.01)


@pytest.mark.system
def test_clustered_errors_cover_as_the_page_says() -> None:
    (parameters,) = map(tomllib.loads, re.findall(r"^```toml clustered\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    names = [f"site-{index}" for index in range(8)]
    study = compiled_study("regression", parameters, schema=REGISTRY, sites=tuple(names), epsilon=3.0, expected=1000)
    covered, widths = {"": 0, f" {MODEL_ERRORS}": 0}, dict[str, list[float]]()
    for seed in range(20):
        rng, sites = np.random.default_rng(seed), {}
        for place, name in enumerate(names):
            frame = registry()[1000 * place : 1000 * (place + 1)].copy()
            off = rng.normal(0, 0.5)
            frame["visits"] = rng.poisson(2 + off * (frame.arm - 0.5) + 0.05 * (frame.age - 20)).clip(0, 20) + frame.arm
            sites[name] = records_of(frame)
        summary = METHODS["regression"].run(federation(study, sites, seed)).summary
        for errors in covered:
            figure = summary[f"coefficients{errors}"][-1]["coefficient"]
            covered[errors] += figure["low"] < 1.0 < figure["high"]
            widths.setdefault(errors, []).append((figure["high"] - figure["low"]) / 2)
    said = re.search(r"covers it in (\d+), ±([\d.]+) in the middle; that of independent\s+records in (\d+), ±([\d.]+)", PAGE)
    assert said
    for (errors, count), number, width in zip(covered.items(), said.groups()[::2], said.groups()[1::2], strict=True):
        assert count == int(number)
        assert np.median(widths[errors]) == pytest.approx(float(width), abs=0.006)


def test_all_families_are_on_the_page() -> None:
    named = [family["family"] for family in FAMILIES] + [BY_NAME["odds"]["parameters"]["family"]]
    assert sorted(named) == ["cox", "linear", "logistic", "poisson"]


def test_parameters_that_methods_share() -> None:
    assert set(rows("## Parameters that all share")) == SHARED
    assert set(METHODS["statistics"].Parameters.model_fields) == {*rows("## statistics"), "query", "derive"}
    for name, method in METHODS.items():
        learns = name not in ("statistics", "regression")
        assert (set(method.Parameters.model_fields) >= SHARED) == learns
        if learns:
            assert method.Parameters.model_fields["missing"].default == "skip"


@pytest.mark.parametrize(("key", "registry"), [("policy.methods", METHODS), ("policy.tasks", TASKS)])
def test_the_page_on_files_lists_what_a_policy_may_allow(key: str, registry: Mapping[str, Any]) -> None:
    page = (ROOT / "docs" / "files.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{key}` |"))
    assert set(re.findall(r"`([a-z-]+)`", row.split("|", 3)[3])) == set(registry)
