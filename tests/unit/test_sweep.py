"""Sweeps: what is varied, what runs come to, and how a folder is taken up again."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn.metrics import roc_auc_score

from support.studies import SITES, agreed
from veilsum.compile import StudyRequest
from veilsum_coordinator.parts.alignment import application
from veilsum_deploy.collections import single
from veilsum_deploy.datasets import TableWithSchema, packaged_dataset
from veilsum_deploy.evaluation import accuracy, exact_head, pool
from veilsum_deploy.simulation.baselines import alone, pooled
from veilsum_deploy.simulation.deal import Deal, Setting, deal
from veilsum_deploy.simulation.evaluate import HELD_OUT, Folder, Results
from veilsum_deploy.simulation.jobs import RunRecord, plan_jobs
from veilsum_deploy.simulation.scores import Scores, guessed, overall, score, spread
from veilsum_deploy.simulation.sweep import Cell, Source, Sweep, SweptKey, parse_axis, parse_baseline, shown
from veilsum_deploy.simulation.tables import estimate, problems, table_rows, tabulate, to_csv, to_markdown
from veilsum_node.config import read_toml
from veilsum_node.errors import ConfigurationError, DataError, Misuse, StateError
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema_file import load_schema
from veilsum_privacy.tasks.base import Records

CONTENT = {"name": "trial", "method": "fedcgs", "dataset": "d", "privacy": {"epsilon": 1.0, "cohort_difference": "allowed"}}


def make_sweep(*vary: str, baseline: str | None = None, seeds: int = 3, **changes: Any) -> Sweep:
    axes = tuple(parse_axis(text) for text in vary)
    given = {"content": CONTENT, "base": Path(), "source": Source("packaged", "digits"), "setting": Setting()} | changes
    pair = None if baseline is None else parse_baseline(baseline, axes)
    return Sweep(axes=axes, seeds=tuple(range(seeds)), baseline=pair, **given)


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("privacy.epsilon=0.5,1,none", "privacy.epsilon", (0.5, 1, "none")),
        ("method=o-fedavg,fedcgs", "method", ("o-fedavg", "fedcgs")),
        ("a={x = 1, y = [2, 3]},default", "a", ({"x": 1, "y": [2, 3]}, "default")),
        ("a.b='x,y',\"z\"", "a.b", ("x,y", "z")),
        ("a=true,1e-3,-2", "a", (True, 1e-3, -2)),
        ("partition=domains+dirichlet:0.1, iid", "partition", ("domains+dirichlet:0.1", "iid")),
    ],
)
def test_values_are_toml_or_bare_words(text: str, key: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text) == SweptKey(key, values)


@pytest.mark.parametrize("text", ["", "a", "=1", "a=", "a..b=1", ".a=1", "a=1,1", "a=x,x"])
def test_what_varies_nothing_is_refused(text: str) -> None:
    with pytest.raises(Misuse):
        parse_axis(text)


@given(st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans()), min_size=1, max_size=6))
def test_written_values_are_read_back(values: list[Any]) -> None:
    if len({repr(value) for value in values}) < len(values):
        return
    texts = [str(value).lower() if isinstance(value, bool) else repr(value) for value in values]
    found = parse_axis(f"key={','.join(texts)}").values
    assert [repr(value) for value in found] == [repr(value) for value in values]


def test_cells_are_all_combinations() -> None:
    sweep = make_sweep("method=a,b", "limit=10,20", "parameters.deep.tau=0,0.4", baseline="parameters.deep.tau=0.0")
    cells = sweep.cells()
    assert len(cells) == 8
    assert len({json.dumps(cell.values) for cell in cells}) == 8
    content = sweep.content_of(cells[-1])
    assert (content["method"], content["parameters"]) == ("b", {"deep": {"tau": 0.4}})
    assert "limit" not in content
    assert sweep.setting_of(cells[-1]).limit == 20
    assert CONTENT["method"] == "fedcgs"  # the study itself is left as it is
    assert "parameters" not in CONTENT
    assert [group.values for group in sweep.groups()] == [(("limit", 10),), (("limit", 20),)]
    assert sweep.baseline_of(cells[0]) is None
    assert sweep.baseline_of(cells[-1]) == Cell((("method", "b"), ("limit", 20), ("parameters.deep.tau", 0)))
    assert sweep.baseline_of(cells[-1]) in cells


def test_a_value_may_be_a_table() -> None:
    one, same, other = (Cell((("parameters.objective", {"name": name}),)) for name in ("none", "none", "prox"))
    assert {one, same, other} == {one, other}
    assert hash(one) == hash(same)


def test_no_noise_takes_the_place_of_an_epsilon_and_back() -> None:
    sweep = make_sweep("privacy.epsilon=none,3")
    none, three = (sweep.content_of(cell)["privacy"] for cell in sweep.cells())
    assert none == {"noise": "none"}
    assert three == {"epsilon": 3, "cohort_difference": "allowed"}
    quiet = make_sweep("privacy.epsilon=none,3", content={**CONTENT, "privacy": {"noise": "none"}})
    assert [quiet.content_of(cell)["privacy"] for cell in quiet.cells()] == [{"noise": "none"}, {"epsilon": 3}]
    asked = make_sweep("privacy.epsilon=3", content={**CONTENT, "privacy": {"error": 0.1, "max_epsilon": 2}})
    assert asked.content_of(asked.cells()[0])["privacy"] == {"epsilon": 3}


def test_default_leaves_a_key_out() -> None:
    sweep = make_sweep("privacy.cohort_difference=default,strict", "sites=default,7")
    assert sweep.content_of(sweep.cells()[0])["privacy"] == {"epsilon": 1.0}
    assert [sweep.setting_of(cell).sites for cell in sweep.cells()[:2]] == [None, 7]


@pytest.mark.parametrize("text", ["limit=0", "limit=many", "sites=1.5", "limit=true", "cap=-3"])
def test_a_setting_that_is_no_number_is_refused(text: str) -> None:
    sweep = make_sweep(text)
    with pytest.raises(Misuse, match="is not a number"):
        sweep.setting_of(sweep.cells()[0])


def test_a_key_through_a_value_is_refused() -> None:
    sweep = make_sweep("method.name=1")
    with pytest.raises(Misuse, match="not a table"):
        sweep.content_of(sweep.cells()[0])


@pytest.mark.parametrize(("text", "words"), [("b=1", "not varied"), ("a=3", "not one of"), ("a=1,2", "not one of")])
def test_a_baseline_is_one_of_the_values(text: str, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        make_sweep("a=1,2", baseline=text)


def test_runs_are_known_by_all_that_decides_them(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text("one")
    base = make_sweep("privacy.epsilon=1,3", content={**CONTENT, "schema": "schema.toml"}, base=tmp_path)
    ids = [job.run for job in plan_jobs(base)]
    assert len(ids) == len(set(ids)) == 3 * (2 + 2)
    for other in (
        make_sweep("privacy.epsilon=1,3", content={**base.content, "method": "x"}, base=tmp_path),
        make_sweep("privacy.epsilon=1,3", content=base.content, base=tmp_path, setting=Setting(cap=3)),
        make_sweep("privacy.epsilon=1,3", content=base.content, base=tmp_path, source=Source("packaged", "breast-cancer")),
    ):
        assert not {job.run for job in plan_jobs(other) if job.kind == "cell"} & set(ids)
    wider = make_sweep("privacy.epsilon=1,3,10", content=base.content, base=tmp_path, seeds=4)
    assert set(ids) < {job.run for job in plan_jobs(wider)}
    (tmp_path / "schema.toml").write_text("two")
    assert not {job.run for job in plan_jobs(base)} & set(ids)


def invented(sweep: Sweep, seed: int = 0) -> dict[str, RunRecord]:
    """Random accuracies on two domains for every run of a sweep."""
    rng = np.random.default_rng(seed)
    found = {}
    for job in plan_jobs(sweep):
        shares = dict(zip(("x", "y"), rng.uniform(0, 1, 2).tolist(), strict=True))
        figures = {"auc": float(rng.uniform()), "mean_predicted": 0.25, "accuracy_of_constant_guess": 0.5}
        epsilon = 1.5 if job.kind == "cell" else None
        found[job.run] = RunRecord("ok", shares, figures, epsilon, 0.25, 40)
    return found


def test_means_errors_and_paired_gains_are_numpys() -> None:
    sweep = make_sweep("a=0,1", "privacy.delta=1e-5,1e-6", baseline="a=0", seeds=7)
    records = invented(sweep)
    rows = tabulate(sweep, plan_jobs(sweep), records)
    assert [row.kind for row in rows] == ["alone", "pooled", "cell", "cell", "cell", "cell"]
    values = {}  # (seeds, domains) by cell
    for cell in sweep.cells():
        runs = [records[sweep.run_id("cell", cell, seed)].accuracies for seed in sweep.seeds]
        values[json.dumps(cell.values)] = np.array([[shares["x"], shares["y"]] for shares in runs])
    for row in rows[2:]:
        own = values[json.dumps(row.cell.values)]
        average = own.mean(axis=1)
        assert row.domains["y"] == pytest.approx(own[:, 1].mean())
        assert row.average is not None
        assert row.average.mean == pytest.approx(average.mean())
        assert row.average.error == pytest.approx(average.std(ddof=1) / math.sqrt(7))
        assert row.spread is not None
        assert row.spread.mean == pytest.approx(own.std(axis=1).mean())
        if row.cell.value("a") == 0:
            assert row.gain is None
            continue
        base = values[json.dumps(row.cell.with_value("a", 0).values)]
        gains = average - base.mean(axis=1)
        assert row.gain is not None
        assert (row.gain.mean, row.gain.runs) == (pytest.approx(gains.mean()), 7)
        assert row.gain.error == pytest.approx(gains.std(ddof=1) / math.sqrt(7))
        assert row.spread_gain is not None
        assert row.spread_gain.mean == pytest.approx((own.std(axis=1) - base.std(axis=1)).mean())


def test_what_could_not_tell_is_counted_and_gains_use_common_seeds() -> None:
    sweep = make_sweep("a=0,1", baseline="a=0", seeds=4)
    records = invented(sweep)
    base, other = sweep.cells()
    lost = sweep.run_id("cell", base, 1)
    records[lost] = RunRecord("not-estimable", note="within its noise")
    refused = sweep.run_id("cell", other, 3)
    records[refused] = RunRecord("refused", note="no|such thing")
    del records[sweep.run_id("cell", other, 2)]
    rows = tabulate(sweep, plan_jobs(sweep), records)
    row = rows[-1]
    pair = [spread(records[sweep.run_id("cell", cell, 0)].accuracies)[0] for cell in (other, base)]
    assert row.gain is not None
    assert (row.gain.mean, row.gain.error, row.gain.runs) == (pytest.approx(pair[0] - pair[1]), None, 1)
    assert problems(rows) == [
        "a 0: 1 of 4 runs not-estimable; within its noise",
        "a 1: 1 of 4 runs refused; 1 of 4 runs not done; no|such thing",
    ]
    text = to_markdown(sweep, "title", ["about"], rows)
    line = next(line for line in text.splitlines() if line.startswith("| 1 |"))
    assert line.endswith("| 2 of 4 |")
    assert f"{100 * (pair[0] - pair[1]):+.1f}" in line
    assert "no|such thing" in text
    assert "| AVG of all runs |" in text
    assert next(line for line in text.splitlines() if line.startswith("| 0 |")).split("|")[4:7] == ["  "] * 3


def test_the_mean_of_all_runs_has_the_guess_where_there_is_no_model() -> None:
    """Survivors alone would look better; and where no run has a model there is no mean."""
    sweep = make_sweep("a=0,1", baseline="a=0", beside="none", seeds=3)
    records = invented(sweep)
    base, other = sweep.cells()
    guess = RunRecord("not-estimable", {"x": 0.1, "y": 0.2}, {"auc": 0.5, "accuracy_of_constant_guess": 0.5})
    records[sweep.run_id("cell", base, 1)] = guess
    rows = tabulate(sweep, plan_jobs(sweep), records)
    own = [records[sweep.run_id("cell", base, seed)] for seed in range(3)]
    assert rows[0].average is not None
    assert rows[1].gain is not None
    assert rows[0].average.mean == pytest.approx(np.mean([[run.accuracies["x"], run.accuracies["y"]] for run in own]))
    assert rows[0].figures["auc"].mean == pytest.approx(np.mean([run.held_out["auc"] for run in own]))
    assert "mean_predicted" not in rows[0].figures  # a guess has none: no mean over the others
    assert (rows[0].told, rows[1].gain.runs) == (2, 3)
    for seed in range(3):
        records[sweep.run_id("cell", other, seed)] = guess
    last = tabulate(sweep, plan_jobs(sweep), records)[1]
    assert (last.average, last.gain, last.figures, last.told) == (None, None, {}, 0)


def test_a_domain_without_test_records_in_some_seed_takes_no_other_figure_with_it() -> None:
    sweep = make_sweep("a=0,1", baseline="a=0", beside="none", seeds=3)
    records = invented(sweep)
    for cell in sweep.cells():
        del records[sweep.run_id("cell", cell, 0)].accuracies["x"]
        records[sweep.run_id("cell", cell, 1)].accuracies["z"] = 0.5
    for row in tabulate(sweep, plan_jobs(sweep), records):
        own = pd.DataFrame([records[sweep.run_id("cell", row.cell, seed)].accuracies for seed in range(3)])
        assert row.domains == {name: pytest.approx(own[name].mean()) for name in "yxz"}
        assert row.average is not None
        assert (row.average.mean, row.average.runs) == (pytest.approx(own.mean(axis=1).mean()), 3)


def test_a_domain_of_which_no_test_record_has_a_label_is_left_out(digits: Deal) -> None:
    schema, test = digits.tests["digits"].schema, digits.tests["digits"]
    records = test.records
    nameless = Records(records.features, records.present, np.full(len(records), -1))
    none = cast(TableWithSchema, SimpleNamespace(records=nameless, table=test.table))
    both = replace(digits, tests={"nameless": none, "digits": test})
    for found in (alone, pooled):
        assert found(both, schema, lambda own: own) == found(digits, schema, lambda own: own)
    assert guessed(both, schema) == guessed(digits, schema)
    head = exact_head(pool([data.records for data in digits.training.values()]), schema)
    linear = {"kind": "linear", "weights": "weights", "bias": "bias"}
    said = {**application(schema), "head": linear, "classes": list(head.classes)}
    result = Result("x", {}, {"weights": head.weights, "bias": head.bias}, said)
    assert score(result, both, schema, None) == score(result, digits, schema, None)
    with pytest.raises(DataError, match="No test record has a label"):
        score(result, replace(digits, tests={"nameless": none}), schema, None)


def test_the_csv_holds_the_markdowns_figures() -> None:
    sweep = make_sweep("a=0,1", "limit=5,6", baseline="a=0")
    rows = tabulate(sweep, plan_jobs(sweep), invented(sweep))
    lines = list(csv.DictReader(to_csv(sweep, rows).splitlines()))
    words = table_rows(sweep, rows)
    assert len(lines) == len(words) == 2 * (2 + 2)
    heads = ["limit", "a", "area", "mean predicted", "x", "y", "AVG", "STD", "guess", "gain", "gain in STD", "cost", "runs"]
    assert [*words[0]] == heads
    for line, word in zip(lines, words, strict=True):
        assert word["AVG"] == f"{100 * float(line['average.mean']):.1f} ± {100 * float(line['average.error']):.1f}"
        assert word["x"] == f"{100 * float(line['accuracy.x']):.1f}"
        assert word["area"] == f"{100 * float(line['auc.mean']):.1f} ± {100 * float(line['auc.error']):.1f}"
        assert (word["mean predicted"], word["guess"]) == ("25.0", "50.0")
        assert (word["gain"] == "") == (line["gain.mean"] == "")
    assert [word["a"] for word in words[:4]] == ["each site alone", "pooled", "0", "1"]


def test_figures_of_numbers_lead_where_there_are_no_classes() -> None:
    """R squared in points, the rest in the outcome's unit; a gain is over the figure that leads."""
    sweep = make_sweep("a=0,1", baseline="a=0", beside="none")
    rng = np.random.default_rng(3)
    told = {job.run: {"r_squared": rng.uniform(), "root_mean_squared_error": 12.3456} for job in plan_jobs(sweep)}
    records = {job.run: RunRecord("ok", held_out=dict(told[job.run])) for job in plan_jobs(sweep)}
    rows = tabulate(sweep, plan_jobs(sweep), records)
    values = np.array([[told[sweep.run_id("cell", cell, seed)]["r_squared"] for seed in range(3)] for cell in sweep.cells()])
    gains = 100 * (values[1] - values[0])
    mean, error = 100 * values.mean(axis=1), 100 * values.std(axis=1, ddof=1) / math.sqrt(3)
    first = {"a": "0", "R squared": f"{mean[0]:.1f} ± {error[0]:.1f}", "RMSE": "12.35", "gain": "", "runs": "3"}
    second = {"a": "1", "R squared": f"{mean[1]:.1f} ± {error[1]:.1f}", "RMSE": "12.35"}
    gain = f"{gains.mean():+.1f} ± {gains.std(ddof=1) / math.sqrt(3):.1f}"
    assert table_rows(sweep, rows) == [first, {**second, "gain": gain, "runs": "3"}]


def test_the_row_over_domains_left_out_is_of_each_where_no_site_had_it() -> None:
    sweep = make_sweep("leave_out=without,x,y", "a=0,1", beside="none", seeds=4)
    records = invented(sweep)
    lost = sweep.run_id("cell", Cell((("leave_out", "y"), ("a", 1))), 2)
    records[lost] = RunRecord("not-estimable", {"x": 0.25, "y": 0.125})
    rows = [row for row in tabulate(sweep, plan_jobs(sweep), records) if row.kind == "left-out"]
    assert [row.cell.values for row in rows] == [(("a", 0),), (("a", 1),)]
    for row in rows:
        a = row.cell.value("a")
        seeds = range(4)
        own = np.array(
            [
                [records[sweep.run_id("cell", Cell((("leave_out", d), ("a", a))), seed)].accuracies[d] for d in "xy"]
                for seed in seeds
            ]
        )
        assert row.domains == {"x": pytest.approx(own[:, 0].mean()), "y": pytest.approx(own[:, 1].mean())}
        assert row.average is not None
        assert row.average.mean == pytest.approx(own.mean())
        assert row.average.error == pytest.approx(own.mean(axis=1).std(ddof=1) / math.sqrt(len(seeds)))
        assert row.told == (4 if a == 0 else 3)
    lines = table_rows(sweep, rows)
    assert [(line["leave_out"], line["a"], line["runs"]) for line in lines] == [
        ("mean over those left out", "0", "4"), ("mean over those left out", "1", "3 of 4"),
    ]  # fmt: skip
    assert "left it out" in to_markdown(sweep, "title", [], rows)
    one = make_sweep("leave_out=without,x", beside="none")
    assert all(row.kind == "cell" for row in tabulate(one, plan_jobs(one), invented(one)))


@given(st.lists(st.floats(0, 1), max_size=9))
def test_an_estimate_is_numpys(values: list[float]) -> None:
    found = estimate(values)
    if not values:
        assert found is None
        return
    assert found is not None
    assert found.mean == pytest.approx(np.mean(values))
    assert (found.error is None) == (len(values) == 1)
    if found.error is not None:
        assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-12)


def finished(sweep: Sweep, records: dict[str, RunRecord]) -> Results:
    jobs = plan_jobs(sweep)
    return Results(sweep, jobs, ("x", "y"), tabulate(sweep, jobs, records), True, "title", ["about"])


def test_a_folder_gives_back_its_runs_to_the_bit(tmp_path: Path) -> None:
    sweep = make_sweep("privacy.epsilon=1,default,none")
    records, jobs = invented(sweep), plan_jobs(sweep)
    refused = jobs[-1].run
    records[refused] = RunRecord("refused", note='a, "quoted"\nreason')
    folder = Folder(tmp_path / "out", sweep, ("x", "y"), resume=False)
    with folder.writing() as append:
        for job in reversed(jobs):
            append(job, records[job.run])
    text = (tmp_path / "out" / "runs.csv").read_text()
    assert {len(line) for line in csv.reader(text.splitlines()) if len(line) > 3} >= {13 + len(HELD_OUT)}
    again = Folder(tmp_path / "out", sweep, ("x", "y"), resume=True).earlier()
    assert refused not in again  # what was refused is tried again
    assert again == {run: record for run, record in records.items() if run != refused}
    paths = folder.finish(finished(sweep, records), records)
    lines = list(csv.DictReader((tmp_path / "out" / "runs.csv").open()))
    assert [line["run"] for line in lines] == [job.run for job in jobs]
    assert [path.suffix for path in paths] == [".png", ".svg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["complete"] is True


def test_a_line_that_was_cut_off_is_no_run(tmp_path: Path) -> None:
    sweep = make_sweep("privacy.epsilon=1,none")
    records, jobs = invented(sweep), plan_jobs(sweep)
    with Folder(tmp_path, sweep, ("x", "y"), resume=False).writing() as append:
        for job in jobs:
            append(job, records[job.run])
    path = tmp_path / "runs.csv"
    path.write_bytes(path.read_bytes()[:-20])
    folder = Folder(tmp_path, sweep, ("x", "y"), resume=True)
    assert len(folder.earlier()) == len(jobs) - 1
    with folder.writing() as append:
        append(jobs[-1], records[jobs[-1].run])
    assert folder.earlier() == records


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    sweep = make_sweep("privacy.epsilon=1,none")
    (tmp_path / "runs.csv").write_text("run,kind\n1,2\n")
    with pytest.raises(StateError, match="not an empty directory"):
        Folder(tmp_path, sweep, ("x",), resume=False)
    with pytest.raises(StateError, match="another sweep"):
        Folder(tmp_path, sweep, ("x",), resume=True).earlier()
    (tmp_path / "runs.csv").unlink()
    (tmp_path / "other").write_text("mine")
    with pytest.raises(StateError, match="not an empty directory"):
        Folder(tmp_path, sweep, ("x",), resume=True)
    assert shown({"a": [1, 2.5], "b": False}) == "a 1 2.5 b no"


@pytest.fixture(scope="module")
def digits() -> Deal:
    return deal(single(packaged_dataset("digits")), Setting("dirichlet:0.5", 3, holdout=0.3), 1, ["a", "b", "c"])


def test_what_sites_reach_alone_and_pooled_is_their_own_discriminants(digits: Deal) -> None:
    schema = digits.tests["digits"].schema
    test = digits.tests["digits"].records
    alone_found = alone(digits, schema, lambda records: records).accuracies["digits"]
    each = [accuracy(exact_head(data.records, schema), test, schema) for data in digits.training.values()]
    assert alone_found == pytest.approx(np.mean(each))
    head = exact_head(pool([data.records for data in digits.training.values()]), schema)
    whole, found = accuracy(head, test, schema), pooled(digits, schema, lambda records: records)
    assert found.accuracies["digits"] == pytest.approx(whole)
    area = roc_auc_score(test.labels, softmax(head.scores(test.features), axis=1), multi_class="ovr")
    assert found.held_out["auc"] == pytest.approx(area, abs=1e-12)
    assert alone_found < 0.9 < whole


def test_test_records_go_through_their_own_sites_alignment(digits: Deal) -> None:
    """Site b's map turns features around and the head reads them turned: only through b's map are they told rightly."""
    schema = digits.tests["digits"].schema
    head = exact_head(pool([data.records for data in digits.training.values()]), schema)
    width = schema.width
    maps = np.stack([np.eye(width), -np.eye(width), np.eye(width)])
    arrays = {"weights": -head.weights, "bias": head.bias, "m": maps, "o": np.zeros((3, width))}
    alignment = {"kind": "maps", "sites": ["a", "b", "c"], "matrix": "m", "offset": "o"}
    linear = {"kind": "linear", "weights": "weights", "bias": "bias"}
    said = {**application(schema), "alignment": alignment, "head": linear, "classes": list(head.classes)}
    result = Result("x", {}, arrays, said)
    assert score(Result("x", {}), digits, schema, None) == Scores()  # a result that is only read
    assert score(Result("x", {}, {}, application(schema)), digits, schema, None) == Scores()  # features only
    right = accuracy(head, digits.tests["digits"].records, schema)
    wrong = score(result, Deal(digits.training, digits.tests, {"digits": "a"}), schema, None).accuracies
    assert wrong["digits"] < 0.3 < right
    turned = score(result, Deal(digits.training, digits.tests, {"digits": "b"}), schema, None).accuracies
    assert turned == {"digits": pytest.approx(right)}
    own = score(result, digits, schema, None).accuracies  # no site is a domain: each site has every third record
    records = digits.tests["digits"].records
    thirds = [records.take(np.arange(len(records)) % 3 == place) for place in range(3)]
    flipped = replace(head, weights=-head.weights)
    parts = [accuracy(flipped, thirds[0], schema), accuracy(head, thirds[1], schema), accuracy(flipped, thirds[2], schema)]
    assert own["digits"] == pytest.approx(np.average(parts, weights=[len(part) for part in thirds]))
    whose = np.ones(len(records), dtype=np.int64)
    told = Deal(digits.training, digits.tests, {}, sites={"digits": ("a", "b")}, owners={"digits": whose})
    assert score(result, told, schema, None).accuracies == {"digits": pytest.approx(right)}


def test_a_domain_that_no_site_has_is_a_new_sites(digits: Deal) -> None:
    """Its records are moved far away: the sites' maps, none of which moves any, score them at chance, its own as before."""
    schema, test = digits.tests["digits"].schema, digits.tests["digits"]
    head = exact_head(pool([data.records for data in digits.training.values()]), schema)
    rows = pool([data.records for data in digits.training.values()])
    known = rows.labels if rows.labels is not None else np.empty(0)
    means = np.stack([rows.features[known == index].mean(axis=0) for index in range(len(schema.classes))])
    rest = rows.features - means[known]
    reference = {
        "reference.class_means": means,
        "reference.within": rest.T @ rest / len(rest) + 1e-3 * np.eye(schema.width),
        "reference.scalars": np.array([50.0, 0.1]),
    }
    arrays = {
        "weights": head.weights,
        "bias": head.bias,
        "m": np.stack([np.eye(schema.width)] * 3),
        "o": np.zeros((3, schema.width)),
        **reference,
    }
    made_by = {"kind": "two-way", "tau": 0.4, "reference": {name: name for name in reference}}
    alignment = {"kind": "maps", "sites": ["a", "b", "c"], "matrix": "m", "offset": "o", "made_by": made_by}
    linear = {"kind": "linear", "weights": "weights", "bias": "bias"}
    said = {**application(schema), "alignment": alignment, "head": linear, "classes": list(head.classes)}
    result = Result("x", {}, arrays, said)
    moved = Records(test.records.features + 5.0, test.records.present, test.records.labels)
    far = cast(TableWithSchema, SimpleNamespace(records=moved, table=test.table))
    site = score(result, Deal(digits.training, {"digits": far}, {}), schema, None).accuracies["digits"]
    new = score(result, Deal(digits.training, {"digits": far}, {}, left_out="digits"), schema, None).accuracies["digits"]
    assert site < 0.5
    assert new > accuracy(head, test.records, schema) - 0.05


def test_a_run_without_a_model_is_no_accuracy_and_counts_as_a_guess(digits: Deal) -> None:
    schema = digits.tests["digits"].schema
    assert score(Result("x", {"not_estimable": "noise"}), digits, schema, None) == Scores()
    labels = digits.tests["digits"].records.labels
    assert labels is not None
    found = guessed(digits, schema)
    assert found.accuracies == {"digits": pytest.approx(np.bincount(labels).max() / len(labels))}
    assert found.held_out["auc"] == 0.5


def test_averages_weigh_domains_as_they_say(digits: Deal) -> None:
    rows = digits.tests["digits"]
    two = Deal(digits.training, {"x": rows.take(np.arange(10)), "y": rows.take(np.arange(30))}, {})
    shares = {"x": 1.0, "y": 0.5}
    assert overall(shares, two) == pytest.approx((10 + 15) / 40)
    assert spread(shares) == (0.75, 0.25)


def test_studies_vary_by_name(tmp_path: Path) -> None:
    """Method and parameters come from the files beside the study; all else is the study's, and other keys go on top."""
    (tmp_path / "joint.toml").write_text('name = "j"\nmethod = "fedcgs"\n[privacy]\nepsilon = 9.0\n')
    (tmp_path / "heads.toml").write_text('name = "h"\nmethod = "o-fedavg"\n[parameters]\nclip = 2.0\n')
    content = {"name": "s", "method": "statistics", "parameters": {"x": 1}, "privacy": {"epsilon": 1.0}}
    axes = (parse_axis("study=joint,heads"), parse_axis("parameters.clip=default,3.0"))
    sweep = Sweep(content, tmp_path, Source("packaged", "digits"), Setting("iid", 4, None, None, None, None), axes, (0,))
    found = [sweep.content_of(cell) for cell in sweep.cells()]
    assert [item["method"] for item in found] == ["fedcgs", "fedcgs", "o-fedavg", "o-fedavg"]
    assert [item["parameters"] for item in found] == [{}, {"clip": 3.0}, {}, {"clip": 3.0}]
    assert all(item["privacy"] == {"epsilon": 1.0} and item["name"] == "s" for item in found)
    assert sweep.cells()[2].label() == "study heads, clip default"
    missing = replace(sweep, axes=(parse_axis("study=nothing"),))
    with pytest.raises(ConfigurationError, match=r"nothing\.toml"):
        missing.content_of(missing.cells()[0])


EVALUATIONS = Path(__file__).parents[1] / "evaluations"
HEART_SCHEMA = Path(__file__).parents[2] / "deploy" / "veilsum_deploy" / "demo_data" / "heart_disease.toml"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", sorted(EVALUATIONS.rglob("*.toml")), ids=lambda path: path.stem)
def test_the_evaluations_compile(path: Path) -> None:
    """Every study file of docs/results.md, on a data set that is always there."""
    content = {key: value for key, value in read_toml(path).items() if key != "dataset"}
    names_columns = "query" in content or content["method"] == "regression"
    schema = load_schema(HEART_SCHEMA) if names_columns else packaged_dataset("digits").schema
    request = StudyRequest.model_validate({**content, "dataset": "evaluation", "data": schema})
    named = [site for station in content.get("parameters", {}).get("stations", {}).values() for site in station]
    study = agreed(request, named or SITES)
    assert study.method == content["method"]
    if request.privacy.epsilon is None:
        assert study.privacy.epsilon is None
    else:
        assert study.privacy.epsilon == pytest.approx(request.privacy.epsilon, rel=0.02)
