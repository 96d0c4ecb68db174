"""``import veilsum``: questions as studies, simulated and real federations, results, models; and the pages that show them."""

from __future__ import annotations

import doctest
import hashlib
import inspect
import itertools
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import statsmodels.api as sm
from lxml import html

import veilsum
from support.federation import make_bed, make_data, schema_of
from support.network import wait_for, wired
from veilsum.api.datasets import Dataset
from veilsum.api.options import Options
from veilsum.cli.study import app
from veilsum.request import StudyRequest
from veilsum.tables import deal_rows
from veilsum_aggregation.figures import MODEL_ERRORS
from veilsum_node.config import validate
from veilsum_node.errors import ConfigurationError, DataError, HostileInput, Misuse, StateError, Unavailable, VeilsumError
from veilsum_participant.applying.model import load_model, probabilities
from veilsum_privacy.results.release_check import ProofFault
from veilsum_privacy.results.release_names import round_file
from veilsum_privacy.tasks.queries.kinds import KINDS

pytestmark = pytest.mark.usefixtures("few_rehearsals")

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = {
    "max_records": 400,
    "columns": [
        {"kind": "number", "name": "age", "low": 0, "high": 100, "unit": "years"},
        {"kind": "number", "name": "score", "low": -10, "high": 10},
        {"kind": "number", "name": "time", "low": 0, "high": 50},
        {"kind": "category", "name": "sex", "categories": ["f", "m"]},
    ],
    "label": {"column": "died", "classes": [{"name": "no", "values": ["0"]}, {"name": "yes", "values": ["1"]}]},
}


def patients(count: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age = rng.uniform(20, 90, count).round()
    return pd.DataFrame(
        {
            "hospital": rng.choice(["St. Mary", "North", "West"], count),
            "patient": np.arange(count) // 2,
            "age": age,
            "score": rng.normal(0, 3, count).clip(-10, 10) + (age - 55) / 20,
            "time": rng.exponential(15, count).clip(0, 50),
            "sex": pd.Categorical(rng.choice(["f", "m"], count)),
            "died": (age + rng.normal(0, 15, count) > 60).astype(int),
        }
    )


FRAME = patients(600, 1)


@pytest.fixture(scope="module")
def federation() -> Iterator[veilsum.Federation]:
    with veilsum.simulate(FRAME, SCHEMA, site_column="hospital", subject="patient") as made:
        yield made


@pytest.fixture(scope="module")
def exact(federation: veilsum.Federation) -> Dataset:
    return federation.dataset(noise="none")


@pytest.fixture(scope="module")
def trained(exact: Dataset) -> veilsum.StudyResult:
    return exact.train("fedcgs").run()


@pytest.mark.parametrize("module", ["veilsum", "veilsum.api.federation", "veilsum.api.datasets", "veilsum.api.results"])
def test_docstrings_hold(module: str) -> None:
    assert doctest.testmod(import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE).failed == 0


@pytest.mark.system
@pytest.mark.parametrize("page", ["api.md", "papers.md"])
def test_the_page_holds(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testfile(str(ROOT / "docs" / page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 20
    assert found.failed == 0


def test_ten_lines_of_the_readme_lead_to_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    assert len([line for line in lines.splitlines() if line]) == 10
    names: dict[str, Any] = {}
    exec(lines, names)  # noqa: S102  what the page shows
    names["federation"].close()
    assert repr(names["federation"]).endswith("closed>")
    with pytest.raises(StateError, match="was closed"):
        names["study"].run()
    assert capsys.readouterr().out.startswith("worth it\n")


def test_importing_it_loads_nothing_heavy() -> None:
    heavy = {"torch", "grpc", "numpy", "pandas", "matplotlib", "sklearn", "pydantic", "IPython"}
    program = f"import sys, veilsum; assert set(veilsum.__all__) <= set(dir(veilsum)); assert not {heavy!r} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=240)
    with pytest.raises(AttributeError, match="nothing"):
        _ = veilsum.nothing  # type: ignore[attr-defined]


def test_every_command_of_an_analyst_has_its_call() -> None:
    """The page names each, and the names are there."""
    page = (ROOT / "docs" / "api.md").read_text()
    rows = dict(re.findall(r"^\| `veilsum ([a-z ]+)` \| (.*) \|$", page, re.MULTILINE))
    commands = {f"study {command.name or getattr(command.callback, '__name__', '')}" for command in app.registered_commands}
    assert {name for name in rows if name.startswith("study ")} == commands
    for calls in rows.values():
        for call in re.findall(r"`([\w.]+)`", calls):
            owner, _, name = call.rpartition(".")
            assert callable(getattr(getattr(veilsum, owner) if owner else veilsum, name)), call


def test_what_is_public_is_documented() -> None:
    for name in veilsum.__all__:
        made = getattr(veilsum, name)
        assert inspect.getdoc(made), name
        for member, value in vars(made).items() if inspect.isclass(made) else ():
            if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


EDGES = {"from": 0, "to": 50, "steps": 5}
QUESTIONS = {
    "count": (
        lambda data: data.count("sex", by="died", where="age > 50"),
        'over = ["sex"]\nby = ["died"]\nwhere = "age > 50"',
    ),
    "histogram": (lambda data: data.histogram("age", edges=[30, 60]), 'over = ["age"]\nedges = [30, 60]'),
    "quantiles": (lambda data: data.quantiles("age", at=[0.5], by="sex"), 'over = ["age"]\nat = [0.5]\nby = ["sex"]'),
    "mean": (lambda data: data.mean(["age", "score"]), 'over = ["age", "score"]'),
    "compare": (lambda data: data.compare("age", by="sex"), 'over = ["age"]\nby = ["sex"]'),
    "table-one": (lambda data: data.table(by="sex", at=[0.5]), 'by = ["sex"]\nat = [0.5]'),
    "independence": (lambda data: data.independence("sex", "died"), 'over = ["sex", "died"]'),
    "correlation": (lambda data: data.correlation(["age", "score"]), 'over = ["age", "score"]'),
    "missing": (lambda data: data.missing("age"), 'over = ["age"]'),
    "survival": (
        lambda data: data.survival("time", event="died", censored="no", edges=EDGES, by="sex"),
        'over = ["time"]\nevent = "died"\ncensored = ["no"]\nby = ["sex"]\nedges = { from = 0, to = 50, steps = 5 }',
    ),
    "synthetic": (lambda data: data.synthetic(["sex", "died"]), 'over = ["sex", "died"]'),
    "discrimination": (lambda data: data.discrimination("age", "died = 'yes'"), 'over = ["age"]\noutcome = "died = \'yes\'"'),
    "effect": (
        lambda data: data.effect("sex", "died = 'yes'", score="score"),
        'over = ["score"]\nby = ["sex"]\noutcome = "died = \'yes\'"',
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", QUESTIONS)
def test_a_question_is_the_study_that_a_file_would_say(exact: Dataset, kind: str) -> None:
    ask, keys = QUESTIONS[kind]
    study = ask(exact.with_options(epsilon=1.0))
    head = f'name = "{study.name}"\nmethod = "statistics"\ndataset = "records"\n[privacy]\nepsilon = 1\n'
    written = tomllib.loads(f'{head}[[query]]\nkind = "{kind}"\n{keys}')
    asked = validate({**written, "data": exact.schema}, StudyRequest, source="test")

    def stated(request: StudyRequest) -> Any:
        whole = request.model_copy(update={"query": (), "parameters": request.all_parameters})
        return json.loads(whole.model_dump_json())

    assert stated(study.request) == stated(asked)
    if kind in ("mean", "table-one", "survival", "effect"):  # a plan of each sort of figure; it is the same call for all
        assert study.plan().participants == ("north", "st-mary", "west")


def test_methods_ask_kinds_that_there_are() -> None:
    """A kind without a method of its own is asked by ``statistics``."""
    assert set(QUESTIONS) - {"table-one"} <= set(KINDS)


def test_exact_figures_are_those_of_pandas(exact: Dataset) -> None:
    plain = exact.federation.dataset()  # questions that are asked together state no cost of their own
    result = exact.statistics(plain.count("sex"), plain.mean(["age", "time"], by="sex")).run()
    counts = result.to_pandas("count").set_index("sex")["count"]
    assert counts.to_dict() == FRAME.groupby("sex", observed=True).size().to_dict()
    means = result.to_pandas("mean").pivot_table(index="sex", columns="column", values="mean")
    truth = FRAME.groupby("sex", observed=True)[["age", "time"]].mean()
    assert np.allclose(means[["age", "time"]], truth, atol=0.1)  # in steps of the grid
    with pytest.raises(Misuse, match="2 tables"):
        result.to_pandas()
    with pytest.raises(Misuse, match="Did you mean 'mean'"):
        result.to_pandas("means")


@pytest.mark.system
def test_coefficients_are_those_of_least_squares(exact: Dataset) -> None:
    study = exact.linear("score", ["age", "sex"])
    design = np.column_stack([np.ones(len(FRAME)), FRAME["age"], FRAME["sex"] == "m"]).astype(float)
    truth, *_ = np.linalg.lstsq(design, FRAME["score"].to_numpy(), rcond=None)
    found = study.run().to_pandas()
    assert found["term"].tolist() == ["constant", "age", "sex m"]
    assert np.allclose(found["coefficient"], truth, atol=[0.3, 0.01, 0.3])
    clustered = exact.linear("score", ["age", "sex"], errors="clustered").run()
    assert np.allclose(clustered.to_pandas()["coefficient"], found["coefficient"])
    groups = FRAME["hospital"].astype("category").cat.codes
    model = sm.OLS(FRAME["score"].to_numpy(), design).fit(
        cov_type="cluster", cov_kwds={"groups": groups, "use_correction": False}
    )
    errors = clustered.to_pandas()["coefficient_sampling_error"] / np.sqrt(3 / 2)
    assert np.allclose(errors, model.bse, rtol=0.25)  # some records are shortened, and weigh less
    beside = clustered.to_pandas(f"coefficients {MODEL_ERRORS}")
    assert np.allclose(beside["coefficient_sampling_error"], found["coefficient_sampling_error"])
    assert "clustered by 3 sites" in str(clustered.content.summary["queries"])


def test_a_result_goes_where_it_is_needed(exact: Dataset, federation: veilsum.Federation, tmp_path: Path) -> None:
    run = exact.survival("time", event="died", censored="no", edges=EDGES, by="sex").submit()
    assert run.id in {info.study for info in federation.studies()}
    result = federation.attach(run.id[:8]).result(tmp_path / "result")
    table = result.to_arrow()
    assert pa.types.is_floating(table["value_low"].type)
    assert table.num_rows == len(result.rows()) == len(result.to_pandas())
    assert r"\toprule" in result.to_latex()
    assert {"sex", "time", "value_low"} <= set(result.to_csv().splitlines()[0].split(","))
    assert "<table" in result._repr_html_()
    assert "survival" in str(result)
    assert len(result.plot().axes) == 2  # the curve, and who is at risk
    assert {path.suffix for path in result.export(tmp_path / "paper", ["csv", "latex", "svg"])} == {".csv", ".tex", ".svg"}
    assert result.provenance["epsilon"] is None
    assert result.provenance["digest"] == run.id
    assert result.verify().comparison.exact
    assert "<progress" not in run._repr_html_()

    with pytest.raises(Misuse, match="only read"):
        result.model()
    kept = result.save(tmp_path / "kept")
    opened = veilsum.open_result(kept.directory)
    assert opened.rows() == result.rows()
    with pytest.raises(Misuse, match="certificate"):
        opened.verify()
    with pytest.raises(StateError, match="exists"):
        result.save(tmp_path / "kept")
    (kept.directory / round_file(1)).write_bytes(b"{}")
    with pytest.raises(ProofFault):
        kept.verify()
    with pytest.raises(ConfigurationError, match="not a directory"):
        veilsum.open_result(tmp_path / "nowhere")


def test_a_model_is_one_of_scikit_learns(trained: veilsum.StudyResult, tmp_path: Path) -> None:
    from sklearn.base import clone, is_classifier
    from sklearn.inspection import permutation_importance
    from sklearn.metrics import RocCurveDisplay, accuracy_score

    model = trained.model()
    assert isinstance(model, veilsum.Classifier)
    FRAME.to_parquet(tmp_path / "new.parquet")
    plain = load_model(trained.directory)
    truth = probabilities(plain.scores(plain.read(tmp_path / "new.parquet")))
    assert np.array_equal(model.predict_proba(FRAME[FRAME.columns[::-1]]), truth)
    assert np.array_equal(model.predict_proba(tmp_path / "new.parquet"), truth)
    array = FRAME[model.feature_names_in_].astype(object).to_numpy()
    assert np.array_equal(model.predict_proba(array), truth)
    labels = np.where(FRAME["died"] == 1, "yes", "no")
    assert model.score(FRAME, labels) == accuracy_score(labels, model.predict(FRAME)) > 0.7
    assert model.decision_function(FRAME).shape == (len(FRAME),)
    assert is_classifier(model)
    assert clone(model).get_params()["released"] is not None
    few, own = FRAME.head(80), labels[:80]
    assert permutation_importance(model, few[model.feature_names_in_], own, n_repeats=1).importances_mean.shape == (4,)
    assert RocCurveDisplay.from_estimator(model, few, own).roc_auc > 0.7
    gaps = few.astype({"age": float})
    gaps.loc[3, "age"] = np.nan
    assert model.predict(gaps)[3] is None
    assert np.isnan(model.predict_proba(gaps)[3]).all()
    with pytest.raises(Misuse, match="not trained"):
        model.fit(FRAME, labels)
    with pytest.raises(Misuse, match="no parameter"):
        model.set_params(depth=3)
    with pytest.raises(DataError, match="'age' is missing"):
        model.predict(FRAME.drop(columns="age"))
    with pytest.raises(DataError, match="shape"):
        model.predict(np.zeros((2, 7)))


@pytest.mark.system
def test_a_model_goes_to_other_programs(federation: veilsum.Federation, trained: veilsum.StudyResult, tmp_path: Path) -> None:
    """As an ONNX file of the study; also from files that were kept, and of a checkpoint."""
    import onnxruntime
    from sklearn.base import clone

    def told(path: Path) -> dict[str, str]:
        return dict(onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map)

    model = trained.model()
    assert isinstance(model, veilsum.Classifier)
    given = {"numbers": FRAME[["age", "score", "time"]].to_numpy(float), "categories": FRAME[["sex"]].to_numpy(object)}
    found = onnxruntime.InferenceSession(model.to_onnx(tmp_path / "a.onnx")).run(["probabilities"], given)[0]
    assert np.allclose(found, model.predict_proba(FRAME), atol=1e-5)
    about = told(tmp_path / "a.onnx")
    assert about["veilsum.study"] == trained.provenance["digest"]
    assert "veilsum.epsilon" not in about
    assert told(clone(model).to_onnx(tmp_path / "b.onnx")) == about

    run = federation.dataset(epsilon=8.0).train("fedsgd", {"steps": 4, "checkpoint_every": 2}).submit()
    result = run.result(tmp_path / "result")
    about = told(veilsum.open_result(tmp_path / "result").to_onnx(tmp_path / "c.onnx"))
    assert (about["veilsum.study"], float(about["veilsum.epsilon"])) == (run.id, result.cost["epsilon"])
    assert result.cost["epsilon"] == pytest.approx(8.0, rel=0.01)
    assert float(about["veilsum.delta"]) == result.cost["delta"] > 0
    assert told(*result.export(tmp_path / "files", ["onnx"])) == about
    halfway = told(run.checkpoint().to_onnx(tmp_path / "d.onnx"))
    assert halfway["veilsum.round"] == str(max(run.status().checkpoints))
    assert 0 < float(halfway["veilsum.epsilon"]) < 8.0
    with pytest.raises(Unavailable, match="cannot be written"):
        model.to_onnx(tmp_path / "nowhere" / "a.onnx")


@pytest.mark.system
def test_components_and_their_measure(exact: Dataset, trained: veilsum.StudyResult) -> None:
    encoder = exact.components(2).run().model()
    assert isinstance(encoder, veilsum.Encoder)
    assert encoder.transform(FRAME.head(5)).shape == (5, 2)
    assert encoder.get_feature_names_out().tolist() == ["feature_1", "feature_2"]
    measured = exact.evaluate(trained).run()
    model = trained.model()
    labels = np.where(FRAME["died"] == 1, "yes", "no")
    assert isinstance(model, veilsum.Classifier)
    assert measured.content.summary["accuracy"]["value"] == pytest.approx(model.score(FRAME, labels), abs=1e-3)


def test_components_are_features_of_later_studies(exact: Dataset, tmp_path: Path) -> None:
    components = exact.components(2).run()
    head = exact.train("fedcgs", encoder=components).run()
    model = head.model()
    assert isinstance(model, veilsum.Classifier)
    encoder = components.model()
    assert isinstance(encoder, veilsum.Encoder)
    assert model.released.width == 2
    FRAME.to_csv(tmp_path / "new.csv", index=False)
    assert np.allclose(model.released.features(model.released.read(tmp_path / "new.csv")), encoder.transform(FRAME))


@pytest.mark.system
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_frozen_network_makes_features(tmp_path: Path) -> None:
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh()).eval()
    path = tmp_path / "net.pt"
    torch.jit.save(torch.jit.script(net), path)  # type: ignore[no-untyped-call]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    declared = {"format": "torchscript", "sha256": digest, "inputs": [5], "width": 3}
    with veilsum.simulate(FRAME, SCHEMA, sites=2, encoders={"network": path}) as federation:
        result = federation.dataset(noise="none").train("fedcgs", {"clip": 2.0}, encoder=declared).run()
        model = result.model(encoder=path)
        assert isinstance(model, veilsum.Classifier)
        assert model.predict_proba(FRAME).shape == (600, 2)
        with pytest.raises(Misuse, match="needs the frozen program"):
            result.model()
        with pytest.raises(Misuse, match="file of its own"):
            result.to_onnx(tmp_path / "model.onnx")
        assert result.to_onnx(tmp_path / "head.onnx", from_features=True).stat().st_size > 0


def test_a_trained_model_and_one_on_its_way(federation: veilsum.Federation) -> None:
    study = federation.dataset(epsilon=8.0).train("fedsgd", {"steps": 4, "checkpoint_every": 2})
    run = study.submit()
    seen = run.result().model()
    kept = run.checkpoint()
    assert isinstance(seen, veilsum.Classifier)
    assert type(kept.model()) is type(seen)
    kept_rounds = run.status().checkpoints
    assert kept_rounds
    with pytest.raises(StateError, match="kept no checkpoint"):
        run.checkpoint(99)


def test_persons_are_counted_once_a_site(exact: Dataset) -> None:
    counted = exact.count(unit="subject", person="first").run().rows()[0]["count"]["value"]
    assert counted == FRAME.groupby("hospital")["patient"].nunique().sum()


def test_objects_show_themselves_in_a_notebook(federation: veilsum.Federation, trained: veilsum.StudyResult) -> None:
    """Small tables, in which the texts of others stand as they are and never as markup."""
    evil = "<img src=x onerror=alert(1)>&"
    columns = [
        {"kind": "number", "name": evil, "low": 0, "high": 9, "unit": evil, "label": evil},
        {"kind": "category", "name": "arm", "categories": [evil, *map(str, range(40))]},
        {"kind": "date", "name": "day", "origin": "2020-01-01", "low": 0, "high": 9},
    ]
    dataset = federation.dataset("others", {"columns": columns}, epsilon=1.0, purpose=evil)
    model = trained.model().set_params(site=evil)
    items = {"federation": federation, "dataset": dataset, "study": dataset.mean(evil, by="arm"), "model": model}
    shown = {name: html.fromstring(item._repr_html_()) for name, item in items.items()}
    for tree in shown.values():
        assert {item.tag for item in tree.iter()} <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
        assert not any(item.attrib for item in tree.iter())
    assert all(evil in tree.text_content() for name, tree in shown.items() if name != "federation")
    assert all(name in shown["federation"].text_content() for name in federation.participants)
    assert "0 to 9 days" in shown["dataset"].text_content()
    assert "and 29 more" in shown["dataset"].text_content()  # categories, of which twelve are shown


WRONG: tuple[Any, ...] = (None, 5, math.nan, "", "nope", [], [None], ["age", "age"], {"a": 1}, b"x", "age >", range(3))
ASKS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mean", {"over": "age", "by": "sex", "where": "age > 40"}),
    ("histogram", {"over": "age", "edges": [20, 60]}),
    ("quantiles", {"over": "age"}),
    ("independence", {"row": "sex", "column": "died"}),
    ("survival", {"time": "time", "event": "yes", "censored": "no", "edges": [0, 10]}),
    ("logistic", {"outcome": "died", "over": ["age"], "errors": "robust"}),
    ("poisson", {"outcome": "age", "over": "sex", "exposure": "age", "per": {"age": 10}}),
    ("cox", {"time": "time", "event": "died", "censored": "no", "over": ["sex"]}),
    ("train", {"method": "fedcgs", "parameters": {}}),
    ("study", {"method": "statistics", "parameters": {"query": [{"kind": "mean", "over": ["age"]}]}}),
)


PROGRAMS_WORDS = re.compile(r"Input should|Value error|<class|object at 0x|validation|should have")


def what_is_said(ask: Callable[[], veilsum.Study]) -> str:
    """The error of a question as its study.toml would say it; empty where there is none. Another kind of error fails."""
    try:
        _ = ask().request
    except VeilsumError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("name", "given"), ASKS, ids=[name for name, _ in ASKS])
def test_whatever_is_wrong_is_said_in_plain_words(federation: veilsum.Federation, name: str, given: dict[str, Any]) -> None:
    """Every argument with values that do not suit it: it works, or an error of ours says so without a program's words."""
    dataset = federation.dataset(epsilon=1.0)
    said = [
        told
        for key, value in itertools.product(given, WRONG)
        if (told := what_is_said(lambda key=key, value=value: getattr(dataset, name)(**(given | {key: value}))))  # type: ignore[misc]
    ]
    assert said
    assert not [told for told in said if PROGRAMS_WORDS.search(told)]


def test_wrong_options_and_names_are_said_in_plain_words(federation: veilsum.Federation) -> None:
    for key, value in itertools.product(Options.__annotations__, WRONG):
        told = what_is_said(lambda given={"epsilon": 1.0} | {key: value}: federation.dataset(**given).mean("age"))  # type: ignore[misc]
        assert not PROGRAMS_WORDS.search(told), (key, value)
    for value in (5, math.nan, {"a": 1}, b"x", object()):
        for wrong in (
            lambda given: federation.dataset(given, {"columns": []}),
            lambda given: federation.dataset("records", [given]),
            lambda given: veilsum.connect(given if isinstance(given, int) else [given]),
            federation.attach,
            lambda given: federation.dataset(epsilon=1.0).mean("age").plan(given if given != 5 else -5),
            lambda given: federation.dataset(epsilon=1.0).statistics(given).plan(),
        ):
            with pytest.raises(VeilsumError):
                wrong(value)
    with pytest.raises(VeilsumError, match="must have at least 2 items, not 1"):  # one name, not its letters
        federation.dataset(epsilon=1.0).mean("age", participants="north").plan()


def test_what_a_closed_federation_shows(tmp_path: Path) -> None:
    """That it is closed: a notebook that shows its objects again is no error."""
    closed = veilsum.simulate({"a": patients(20, 1), "b": patients(20, 2)}, SCHEMA)
    run = closed.dataset().mean("age", noise="none").submit()
    run.result(tmp_path / "result")
    closed.close()
    assert "closed" in repr(closed)
    assert "closed" in closed._repr_html_()
    assert "closed" in run._repr_html_()


def test_a_refusal_names_the_site_and_its_code() -> None:
    sites = {"north": FRAME.head(20), "south": FRAME.tail(20)}
    with veilsum.simulate(sites, SCHEMA) as federation:
        study = federation.dataset().count(unit="subject", person="first", epsilon=1.0)
        with pytest.raises(StateError, match=r"north \(unit-not-accepted\)|north \(dataset"):
            study.run()


def test_a_study_can_be_stopped(federation: veilsum.Federation) -> None:
    run = federation.dataset(epsilon=1.0).train("fedsgd", {"steps": 500}).submit()
    run.abort()
    with pytest.raises(StateError, match="aborted"):
        run.wait()


def test_sites_come_from_folders_files_and_frames(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text("")
    part = FRAME.head(60)
    for name, rows in part.groupby("hospital"):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
    part.to_csv(tmp_path.parent / "all.csv", index=False)
    whole = pa.Table.from_pandas(part)
    sources: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path, {}),
        (str(tmp_path.parent / "all.csv"), {"site_column": "hospital"}),
        ({"a": part.head(20), "b": whole.slice(20, 20), "c": {name: part[name].tolist()[40:] for name in part}}, {}),
    ]
    for source, keys in sources:
        with veilsum.simulate(source, SCHEMA, **keys) as federation:
            assert len(federation.participants) == 3
            assert federation.dataset(noise="none").count().run(progress=False).rows()[0]["count"]["value"] == 60


def test_rows_are_dealt_once_each() -> None:
    dealt = deal_rows(pa.table({"row": list(range(11))}), 4, seed=3)
    assert list(dealt) == ["site-1", "site-2", "site-3", "site-4"]
    assert sorted(row for table in dealt.values() for row in table["row"].to_pylist()) == list(range(11))
    assert {table.num_rows for table in dealt.values()} == {2, 3}


@pytest.mark.parametrize(
    ("source", "keys", "message"),
    [
        (FRAME, {"site_column": "clinic"}, "'clinic' is missing"),
        (FRAME, {"site_column": "hospital", "sites": 3}, "nothing to deal"),
        (FRAME, {"subject": "patient"}, "scatter"),
        (FRAME, {"sites": 1}, "cannot be dealt"),
        (FRAME.assign(hospital=None), {"site_column": "hospital"}, "name no site"),
        (FRAME.assign(hospital="one"), {"site_column": "hospital"}, "names one site"),
        (FRAME.assign(hospital=["a", "A"] * 300), {"site_column": "hospital"}, "would all be named"),
        (FRAME.drop(columns="age"), {"sites": 2}, "column 'age' is missing"),
        ({"north": FRAME}, {}, "at least two sites"),
        ({"north": FRAME, "south": "nowhere.csv"}, {}, "does not exist"),
        ({"north": FRAME, "North": FRAME}, {}, "alike"),
        ({"north": FRAME, "south": FRAME}, {"sites": 2}, "there already"),
        (7, {}, "is not a table"),
        ("/nowhere.csv", {}, "there is no such file"),
    ],
)
def test_what_cannot_be_a_federation_says_why(source: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, Misuse), match=message):
        veilsum.simulate(source, SCHEMA, **keys)


def test_mistakes_are_told_before_anything_is_asked(exact: Dataset, federation: veilsum.Federation, tmp_path: Path) -> None:
    undemanded = federation.dataset()
    with pytest.raises(ConfigurationError, match="what it may cost"):
        undemanded.count().plan()
    with pytest.raises(ConfigurationError, match="Did you mean 'epsilon'"):
        undemanded.count(epsilom=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="Did you mean 'age'"):
        exact.mean("agee").plan()
    with pytest.raises(Misuse, match="releases of its own"):
        exact.statistics(exact.linear("age", "sex"))
    with pytest.raises(Misuse, match="Did you mean 'records'"):
        federation.dataset("record")
    with pytest.raises(ConfigurationError, match="is a folder"):
        federation.dataset(schema=tmp_path)
    with pytest.raises(ConfigurationError, match=r"has no label.*linear"):
        federation.dataset(schema={"columns": SCHEMA["columns"]}, epsilon=1.0).train()
    with pytest.raises(ConfigurationError, match="does not exist"):
        veilsum.connect(tmp_path)
    own = exact.with_options(epsilon=2.0)
    assert own.options == {"epsilon": 2.0}
    assert own.with_options(noise="none").options == {"noise": "none"}


@pytest.mark.system
def test_a_real_federation_is_asked_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bed = make_bed(tmp_path, make_data("abc", 40, 3))
    with wired(bed) as (_, address, _stub):
        settings = tmp_path / "analyst.toml"
        settings.write_text(f'coordinator = "{address}"\nidentity = "{bed.kit.analyst.identity}"\n')
        with veilsum.connect(settings) as federation:
            wait_for(lambda: federation.participants == ("a", "b", "c"), "the sites")
            data = federation.dataset("records", schema_of(3), noise="none")
            plan = data.count().plan()
            assert "exact" in plan.verdict
            assert "sites: a, b, c" in plan.summary()
            run, other = data.count().submit(), data.count().submit()
            assert other.result().rows()[0]["count"]["value"] == 120
        again = veilsum.attach(run.id[:10], tmp_path)  # as another kernel would, when the first one's connection is gone
        result = again.result()
        assert result.rows()[0]["count"]["value"] == 120
        assert result.provenance["noise"] == "none"
        with pytest.raises(Misuse, match="No study begins"):
            veilsum.attach("0000", settings)

        from veilsum.api import results
        from veilsum.remote import Remote
        from veilsum.verification import Look

        real = Remote._file
        with monkeypatch.context() as swapped:  # a coordinator that gives the proven result of another study
            swapped.setattr(Remote, "_file", lambda remote, _, *rest: real(remote, other.key, *rest))
            with pytest.raises(HostileInput, match="not of the one that was asked for"):
                results.fetched_result(again.federation, again.key, None)

        monkeypatch.setattr("veilsum.verification.look_at", lambda *_: Look(None, fault="a sum is not theirs"))
        with pytest.raises(HostileInput, match="a sum is not theirs"):
            results.fetched_result(again.federation, again.key, None)
        again.federation.close()
