"""Simulated studies: the same released integers over gRPC, in one process, and without encryption; and what is reported."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.commands import veilsum
from support.federation import Clock, TestBed, make_bed, make_request, schema_of
from support.folders import write_collection
from support.network import submit, wait_for, wired
from support.randomness import SeededRandom
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.runner import RoundLostError
from veilsum_deploy.collections import single
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.simulation import progress
from veilsum_deploy.simulation.deal import Setting
from veilsum_deploy.simulation.plain import PlainFederation, PlainSite
from veilsum_deploy.simulation.run_store import RunStore
from veilsum_deploy.simulation.runs import simulate
from veilsum_deploy.simulation.study import Simulation, draft_of
from veilsum_node.errors import HostileInput, Misuse, StateError
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.data import load_records
from veilsum_participant.session.client import open_site
from veilsum_privacy.mechanism.noise import discrete_gaussian
from veilsum_privacy.results.result import load_result
from veilsum_privacy.study.study import Study, study_digest
from veilsum_privacy.tasks.agreed import AgreedStudy

Data = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
WIDTH = 3


@pytest.fixture(scope="module")
def data() -> Data:
    rng = np.random.default_rng(7)
    return {
        name: (rng.uniform(-1, 1, (rows, WIDTH)), rng.integers(0, 2, rows))
        for name, rows in zip("abcd", (40, 9, 25, 1), strict=True)
    }


def seeded_bed(directory: Path, data: Data) -> TestBed:
    """A bed whose noise, and nothing else, comes from seeds."""
    bed = make_bed(directory, data)
    for name, site in bed.sites.items():
        site.noise_random = SeededRandom(name.encode())
    return bed


def journalled(hub: Hub, study: Study) -> list[NDArray[np.int64]]:
    return [np.frombuffer(row["values"], dtype="<i8") for row in hub.journal.releases(study_digest(study.to_bytes()))]


def over_grpc(directory: Path, data: Data, compiled: Callable[[TestBed], Study]) -> list[NDArray[np.int64]]:
    bed = seeded_bed(directory, data)
    study = compiled(bed)
    with wired(bed) as (server, _, stub):
        key = submit(bed, stub, study)
        wait_for(lambda: server.hub.shown.status(key).phase in ("finished", "failed"), what="the study's end")
        return journalled(server.hub, study)


def in_process(directory: Path, data: Data, compiled: Callable[[TestBed], Study]) -> list[NDArray[np.int64]]:
    bed = seeded_bed(directory, data)
    study = compiled(bed)
    assert bed.local.run(study, bed.analyst, directory / "results").phase == "finished"
    return journalled(bed.hub, study)


def plain_federation(directory: Path, data: Data, study: Study, seeded: bool = True) -> PlainFederation:
    directory.mkdir(exist_ok=True)
    sites = {}
    for name, (features, labels) in data.items():
        np.savez(directory / f"{name}.npz", X=features, y=labels.astype(str))
        records = load_records(directory / f"{name}.npz", study.data)[0]
        sites[name] = PlainSite(records, SeededRandom(name.encode())) if seeded else PlainSite(records)
    return PlainFederation(study, sites)


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [
        pytest.param("statistics", 1.0, marks=pytest.mark.system),
        ("fedcgs", 2.0),
        pytest.param("statistics", None, marks=pytest.mark.system),
    ],
)
def test_three_ways_release_the_same_integers(tmp_path: Path, data: Data, method: str, epsilon: float | None) -> None:
    studies: list[Study] = []

    def compiled(bed: TestBed) -> Study:
        studies.append(bed.compile(make_request(schema_of(WIDTH), method, epsilon)))
        return studies[-1]

    grpc = over_grpc(tmp_path / "grpc", data, compiled)
    local = in_process(tmp_path / "local", data, compiled)
    plain = plain_federation(tmp_path / "plain", data, studies[-1])
    label = studies[-1].tasks[0].label
    released = plain.sum(label)
    assert len(grpc) == len(local) == len(plain.sums) == 1
    np.testing.assert_array_equal(grpc[0], local[0])
    np.testing.assert_array_equal(local[0], plain.sums[0])
    assert (max(released.noise_std.values()) == 0) == (epsilon is None)
    if epsilon is not None:  # the noise is really there: without it, or with other seeds, the integers differ
        other = plain_federation(tmp_path / "plain", data, studies[-1], seeded=False)
        other.sum(label)
        assert not np.array_equal(other.sums[0], plain.sums[0])


def test_the_plain_sum_is_exact_sum_plus_each_sites_share(tmp_path: Path, data: Data) -> None:
    bed = make_bed(tmp_path / "bed", data)
    study = bed.compile(make_request(schema_of(WIDTH), "statistics", 1.0))
    federation = plain_federation(tmp_path / "plain", data, study)
    release = federation.sum("statistics")
    plan = AgreedStudy(study).task("statistics").plan(4, 4)
    noise = sum(discrete_gaussian(plan.noise.share_variance, plan.encoding.size, SeededRandom(name.encode())) for name in data)
    unit = release.noise_std["records/table"] / float(plan.noise.total_variance(4)) ** 0.5
    exact = release.values["records/table"][0] - float(noise[0]) * unit
    assert exact == pytest.approx(75, abs=75 * 0.01 + 1e-3)  # 40 + 9 + 25 + 1 records, truncated to the grid
    assert release.cohort == ("a", "b", "c", "d")
    assert plan.noise.honest == 3


def test_a_plain_federation_keeps_the_studys_rules(tmp_path: Path, data: Data) -> None:
    bed = make_bed(tmp_path / "bed", data)
    study = bed.compile(make_request(schema_of(WIDTH), "statistics", 1.0))
    federation = plain_federation(tmp_path / "plain", data, study)
    with pytest.raises(HostileInput, match="declares no task"):
        federation.sum("class-moments")
    federation.sum("statistics")
    with pytest.raises(RoundLostError, match="used up"):
        federation.sum("statistics")
    with pytest.raises(Misuse, match="participants"):
        plain_federation(tmp_path / "plain", {name: data[name] for name in "abc"}, study)


def test_a_study_that_sites_refuse_is_an_error(tmp_path: Path, data: Data) -> None:
    bed = make_bed(tmp_path, data, noise=("local",))
    study = bed.compile(make_request(schema_of(WIDTH), "statistics", 1.0))
    with pytest.raises(StateError, match="noise-not-accepted"):
        bed.local.run(study, bed.analyst, tmp_path / "results")


def test_a_started_participant_draws_noise_from_the_operating_system(tmp_path: Path, data: Data) -> None:
    bed = make_bed(tmp_path, data)
    config = bed.sites["a"].config.model_copy(update={"state": tmp_path / "other.db"})
    site = open_site(config, clock=Clock())
    assert site.noise_random is SYSTEM_RANDOM
    assert PlainSite(site.records("records", schema_of(WIDTH))).noise_random is SYSTEM_RANDOM


STUDY = """\
name = "trial"
method = "{method}"
dataset = "breast-cancer"
[privacy]
{privacy}
"""


def write_study(path: Path, method: str = "statistics", privacy: str = "epsilon = 5") -> Path:
    path.write_text(STUDY.format(method=method, privacy=privacy))
    return path


@pytest.mark.sampled(2)
@pytest.mark.parametrize("encryption", ["--encryption", "--no-encryption"])
def test_statistics_of_all_sites_without_noise_are_numpys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], encryption: str
) -> None:
    from sklearn.datasets import load_breast_cancer

    study = write_study(tmp_path / "study.toml", privacy='noise = "none"')
    options = ("--dataset", "breast-cancer", "--sites", 3, "--partition", "dirichlet:0.3", encryption, "--json")
    code, out, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    summary = json.loads(out)
    assert sum(summary["sites"].values()) == 569
    assert summary["epsilon"] is None
    rows = {row["quantity"]: row["mean"] for row in summary["table"]}
    bunch = load_breast_cancer()
    smoothness = list(bunch.feature_names).index("mean smoothness")
    assert rows["overview.numbers[mean smoothness].mean"] == pytest.approx(bunch.data[:, smoothness].mean(), rel=1e-3)
    assert rows["classes[benign].count"] == pytest.approx(357, abs=0.01)


@pytest.mark.system
def test_a_classifier_that_sites_align_themselves_is_tested_with_encryption_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = STUDY.format(method="fedcgs", privacy='noise = "none"')
    study = tmp_path / "study.toml"
    study.write_text(text + '\n[parameters.alignment]\nmode = "iterated"\nrounds = 2\n')
    options = ("--dataset", "breast-cancer", "--sites", 3, "--holdout", 0.3, "--json")
    shares = []
    for encryption in ("--encryption", "--no-encryption"):
        code, out, err = veilsum(capsys, "simulate", study, *options, encryption)
        assert code == 0, err
        shares += json.loads(out)["accuracy"]
    assert shares[0] == pytest.approx(shares[1], abs=0.02)
    assert shares[0] > 0.85


@pytest.mark.usefixtures("known_randomness")
def test_results_go_to_a_new_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "study.toml", "fedcgs")
    out = tmp_path / "out"
    options = ("--dataset", "breast-cancer", "--no-encryption", "--repeat", 3, "--holdout", 0.25, "--out", out, "--json")
    code, _, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    summary = json.loads((out / "summary.json").read_text())
    assert len(summary["accuracy"]) == 3
    assert sum(summary["sites"].values()) == 569 - 142
    assert min(summary["accuracy"]) > 0.7  # the larger class alone is 0.63
    heads = [load_result(out / f"run-{number}").arrays["weights"] for number in (1, 2, 3)]
    assert not np.array_equal(heads[0], heads[1])  # fresh noise in every run
    with (out / "table.csv").open() as file:
        rows = {row["quantity"]: row for row in csv.DictReader(file)}
    counts = np.array([load_result(out / f"run-{number}").summary["classes"][0]["count"]["value"] for number in (1, 2, 3)])
    assert float(rows["classes[malignant].count"]["mean"]) == pytest.approx(counts.mean())
    assert float(rows["classes[malignant].count"]["std"]) == pytest.approx(counts.std(ddof=1))
    assert (out / "table.md").read_text().count("\n|") == len(rows) + 2
    code, _, err = veilsum(capsys, "simulate", study, "--dataset", "breast-cancer", "--out", out)
    assert (code, "not an empty directory" in err) == (2, True)


def test_a_file_is_dealt_with_its_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "schema.toml").write_text('columns = [{ kind = "number", name = "x", low = 0, high = 10 }]\n')
    (tmp_path / "all.csv").write_text("x\n" + "".join(f"{value}\n" for value in range(11)))
    study = write_study(tmp_path / "study.toml", privacy='noise = "none"')
    study.write_text('schema = "schema.toml"\n' + study.read_text())
    code, out, err = veilsum(
        capsys, "simulate", study, "--data", tmp_path / "all.csv", "--sites", 2, "--no-encryption", "--json"
    )
    assert code == 0, err
    rows = {row["quantity"]: row["mean"] for row in json.loads(out)["table"]}
    assert rows["overview.numbers[x].mean"] == pytest.approx(5, abs=1e-3)


SAID = ("delimiter=;", "decimal=,", "encoding=utf-16", "compression=gzip")


@pytest.mark.parametrize("whose", ["file", "column", "folder", "domains"])
def test_files_are_read_as_their_owner_says_that_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whose: str
) -> None:
    (tmp_path / "schema.toml").write_text('columns = [{ kind = "number", name = "größe", low = 0, high = 10 }]\n')
    study = write_study(tmp_path / "study.toml", privacy='noise = "none"')
    study.write_text('schema = "schema.toml"\n' + study.read_text())
    data, flags = tmp_path / "data", {"file": ("--sites", 2), "column": ("--site-column", "wo")}.get(whose, ())
    places = {"file": ["a.csv"], "column": ["a.csv"], "folder": ["a.csv", "b.csv"], "domains": ["u/a.csv", "v/b.csv"]}[whose]
    for path in (data / place for place in places):
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "größe;wo\n" + "".join(f"{value},5;{'Köln' if value % 2 else 'Ulm'}\n" for value in range(10))
        path.write_bytes(gzip.compress(text.encode("utf-16")))
    given = data / places[0] if len(places) == 1 else data
    command = ("simulate", study, "--data", given, "--no-encryption", *flags)
    code, out, err = veilsum(capsys, *command, *(word for said in SAID for word in ("--dialect", said)), "--json")
    assert code == 0, err
    rows = {row["quantity"]: row["mean"] for row in json.loads(out)["table"]}
    assert rows["overview.numbers[größe].mean"] == pytest.approx(5, abs=1e-3)
    code, _, err = veilsum(capsys, *command)
    assert (code, 'compression = "gzip"' in err) == (2, True)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("delimiter", "Use KEY=VALUE"),
        ("separator=;", "Use KEY=VALUE"),
        ("encoding=utf-7", "is none of utf-8"),
        ("decimal=;", "'.' or ','"),
        ("decimal=,", "the same mark"),
    ],
)
def test_what_says_nothing_of_how_a_file_is_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], said: str, words: str
) -> None:
    (tmp_path / "schema.toml").write_text('columns = [{ kind = "number", name = "x", low = 0, high = 10 }]\n')
    (tmp_path / "all.csv").write_text("x\n1\n2\n")
    study = write_study(tmp_path / "study.toml")
    study.write_text('schema = "schema.toml"\n' + study.read_text())
    code, _, err = veilsum(capsys, "simulate", study, "--data", tmp_path / "all.csv", "--dialect", said)
    assert (code, words in err) == (2, True), err
    code, _, err = veilsum(capsys, "simulate", study, "--dataset", "digits", "--dialect", said)
    assert (code, "records of your own" in err) == (2, True), err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "either --data or --dataset"),
        (("--dataset", "breast"), "Did you mean 'breast-cancer'"),
        (("--dataset", "breast-cancer", "--partition", "even"), "Unknown partition"),
        (("--dataset", "breast-cancer", "--sites", "600"), "cannot be dealt"),
        (("--data", "missing.csv"), "schema"),
        (("--collection", "digits4"), "does not name a folder"),
        (("--collection", "digits=."), "Did you mean 'digits4'"),
        (("--dataset", "breast-cancer", "--partition", "domains"), "one domain"),
        (("--dataset", "breast-cancer", "--baseline", "method=a"), "belongs to a sweep"),
        (("--dataset", "breast-cancer", "--jobs", "2"), "--no-encryption"),
        (("--dataset", "breast-cancer", "--resume"), "--out"),
        (("--dataset", "breast-cancer", "--engine", "dask"), "No engine"),
        (("--dataset", "breast-cancer", "--address", "auto"), "--engine ray"),
        (("--dataset", "breast-cancer", "--baselines", "pool"), "Did you mean 'pooled'"),
        (("--dataset", "breast-cancer", "--seeds", "2", "--encryption"), "without encryption"),
        (("--dataset", "breast-cancer", "--seeds", "2", "--repeat", "2"), "--seeds in place"),
        (("--dataset", "breast-cancer", "--seeds", "2", "--resume"), "--out"),
        (("--dataset", "breast-cancer", "--vary", "limit=0"), "is not a number"),
        (("--dataset", "breast-cancer", "--vary", "method=a", "--vary", "method=b"), "varied twice"),
        (("--dataset", "breast-cancer", "--vary", "method=a", "--baseline", "method=b"), "not one of the values"),
    ],
)
def test_what_cannot_be_simulated_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    code, _, err = veilsum(capsys, "simulate", write_study(tmp_path / "study.toml"), *options)
    assert code == 2
    assert words in err


def read_runs(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open() as file:
        return list(csv.DictReader(file))


def write_bare_study(path: Path, **keys: str) -> Path:
    """A study that leaves its method and privacy to the sweep, but for the keys that are given."""
    path.write_text("".join(f"{key} = {value}\n" for key, value in {"name": '"trial"', "dataset": '"d"', **keys}.items()))
    return path


@pytest.mark.system  # test_engines.py holds processes to the same values by default
def test_a_sweep_is_the_same_in_one_process_and_in_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_collection("heart-disease", tmp_path / "heart", records=80)
    study = write_bare_study(tmp_path / "study.toml", method='"fedcgs"')
    options = ("--collection", f"heart-disease={folder}", "--vary", "privacy.epsilon=none", "--seeds", 2, "--limit", 60)
    options += ("--vary", "partition=domains,domains+dirichlet:1,iid", "--vary", "parameters.clip=3,7,-1")
    options += ("--baseline", "parameters.clip=3")
    found = []
    for jobs in (1, 2):
        out = tmp_path / f"out-{jobs}"
        code, text, err = veilsum(capsys, "simulate", study, *options, "--jobs", jobs, "--out", out, "--json")
        assert code == 0, err
        summary = json.loads(text)
        assert summary == json.loads((out / "summary.json").read_text())
        found.append([{key: value for key, value in run.items() if key != "seconds"} for run in read_runs(out)])
        assert err.count("Run ") == len(found[-1]) == 3 * 2 * (2 + 3)
    assert found[0] == found[1]  # without noise the seed decides everything
    refused = [run for run in found[0] if run["status"] == "refused"]
    assert {run["parameters.clip"] for run in refused} == {"-1"}
    assert len(refused) == 3 * 2
    rows = [row for row in summary["rows"] if row["kind"] == "cell"]
    assert len(rows) == 9
    assert {row["statuses"].get("refused", 0) for row in rows} == {0, 2}
    assert sum(row["gain"] is not None for row in rows) == 3
    assert (tmp_path / "out-1" / "table.md").read_text().count("2 of 2 runs refused") == 3
    assert (tmp_path / "out-1" / "gains.svg").read_text().startswith("<?xml")


def test_a_model_that_nothing_was_held_out_for_says_how_to_score_and_keep_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedsgd"', parameters="{ steps = 2 }", privacy="{ epsilon = 3 }")
    code, text, err = veilsum(capsys, "simulate", study, "--dataset", "breast-cancer", "--holdout", 0, "--no-encryption")
    assert code == 0, err
    assert "--holdout 0.3 scores a model, --out keeps it" in text


def test_a_sweep_of_nothing_but_refused_runs_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedcgs"', parameters="{ clip = 8 }")
    options = ("--dataset", "breast-cancer", "--vary", "privacy.epsilom=1,2", "--jobs", 1, "--baselines", "none")
    code, text, _ = veilsum(capsys, "simulate", study, *options)
    assert (code, text.count("Did you mean 'epsilon'?")) == (1, 2)


@pytest.mark.usefixtures("known_randomness")
def test_a_sweeps_cell_without_noise_is_pooled_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedcgs"', parameters="{ clip = 8 }")
    options = ("--dataset", "digits", "--vary", "privacy.epsilon=none,0.01", "--seed", 3, "--seeds", 2, "--jobs", 1, "--json")
    code, text, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    rows = {row["label"]: row for row in json.loads(text)["rows"]}
    assert rows["epsilon none"]["average"]["mean"] == pytest.approx(rows["pooled"]["average"]["mean"], abs=0.01)
    assert rows["epsilon none"]["average"]["mean"] > 0.9  # discriminants tell 94 of 100 digits
    noisy = rows["epsilon 0.01"]
    assert noisy["statuses"].get("not-estimable", 0) == 2 or noisy["average"]["mean"] < 0.5


def test_a_sweep_is_taken_up_where_it_was_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedcgs"', parameters="{ clip = 3 }")
    out = tmp_path / "out"
    options = ("simulate", study, "--dataset", "breast-cancer", "--vary", "privacy.epsilon=1,none", "--jobs", 1, "--out", out)
    code, _, err = veilsum(capsys, *options, "--seeds", 1)
    assert code == 0, err
    first = read_runs(out)
    code, _, err = veilsum(capsys, *options, "--seeds", 2)
    assert (code, "not an empty directory" in err) == (2, True)
    code, _, err = veilsum(capsys, *options, "--seeds", 2, "--resume")
    assert (code, "Run 4 of 4" in err) == (0, True), err
    assert "area under the ROC curve" in (out / "auc.svg").read_text()  # the figure that leads the table
    second = read_runs(out)
    assert second[: len(first)] == first  # noise is fresh in every run: an equal row was kept
    assert len(second) == 2 * len(first) == 8
    study.write_text(study.read_text().replace("clip = 3", "clip = 2"))
    code, _, err = veilsum(capsys, *options, "--seeds", 2, "--resume")
    assert (code, "Run 4 of 4" in err) == (0, True)  # sites alone and pooled are as they were, the study is another
    assert len(read_runs(out)) == 12


@pytest.mark.system  # what a sweep takes up again is tested above by default
def test_an_interrupted_sweep_leaves_what_is_done(tmp_path: Path) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedcgs"')
    out = tmp_path / "out"
    command = [sys.executable, "-m", "veilsum_deploy.cli", "simulate", study, "--dataset", "breast-cancer", "--jobs", "2"]
    command += ["--vary", "privacy.epsilon=1,none", "--seeds", "300", "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [str(part) for part in command],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.startswith("Run 5 "):
            os.killpg(child.pid, signal.SIGINT)  # as a terminal does: every process of the group
            break
    _, rest = child.communicate(timeout=240)
    assert child.returncode == 130, rest
    assert "Traceback" not in rest
    summary = json.loads((out / "summary.json").read_text())
    runs = read_runs(out)
    assert summary["complete"] is False
    assert 5 <= len(runs) < 1200
    assert sum(row["done"] for row in summary["rows"]) == len(runs)
    assert "Not complete" in (out / "table.md").read_text()


SGD = """\
name = "trial"
method = "fedsgd"
dataset = "breast-cancer"
parameters = { steps = 1200 }
privacy = { epsilon = 5 }
"""


@pytest.mark.system  # test_engines.py takes up a killed run by default
def test_one_study_is_taken_up_wherever_it_was_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.toml").write_text(SGD)
    out = tmp_path / "out"
    options = ["simulate", tmp_path / "study.toml", "--dataset", "breast-cancer", "--no-encryption", "--sites", 3]
    options += ["--holdout", 0.3, "--baselines", "none", "--out", out]
    rounds = out / "unfinished" / "run-1" / "rounds.bin"
    kept = b""
    for resume in ([], ["--resume"]):
        command = [sys.executable, "-m", "veilsum_deploy.cli", *map(str, options), *resume]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ})
        least = len(kept) + 4000
        wait_for(lambda: rounds.exists() and rounds.stat().st_size > least, "some rounds")  # noqa: B023
        child.kill()
        assert child.wait() == -signal.SIGKILL
        assert child.stderr is not None
        child.stderr.close()
        data = rounds.read_bytes()
        assert data.startswith(kept[: 200 * (len(kept) // 200)])  # a round takes more than 200 bytes; the last may be cut off
        kept = data
    code, _, err = veilsum(capsys, *options)
    assert (code, "not an empty directory" in err) == (2, True)
    (tmp_path / "study.toml").write_text(SGD.replace("epsilon = 5", "epsilon = 6"))
    code, _, err = veilsum(capsys, *options, "--resume")
    assert (code, "another simulation" in err) == (2, True)
    (tmp_path / "study.toml").write_text(SGD)
    code, text, err = veilsum(capsys, *options, "--resume", "--json")
    assert code == 0, err
    assert json.loads(text)["accuracy"][0] > 0.5
    assert sorted(path.name for path in out.iterdir()) == ["run-1", "summary.json", "table.csv", "table.md"]
    code, _, err = veilsum(capsys, *options, "--resume")
    assert (code, "is done" in err) == (2, True)


def test_whole_runs_are_kept_and_a_refused_study_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    simulation = make_simulation(repeat=3)
    told: list[str] = []

    def stop(text: str, _: float) -> None:
        told.append(text)
        if text == "Run 3 of 3" and "stop" not in told:
            told.append("stop")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(simulation, stop, Clock(), store=RunStore(out, "x"))
    first = [load_result(out / f"run-{number}").arrays["weights"] for number in (1, 2)]
    outcome = simulate(simulation, stop, Clock(), store=RunStore(out, "x", resume=True))
    for number, weights in enumerate(first):
        np.testing.assert_array_equal(outcome.runs[number].result.arrays["weights"], weights)
    assert not np.array_equal(outcome.runs[2].result.arrays["weights"], first[0])
    with pytest.raises(StateError, match="another simulation"):
        simulate(simulation, stop, Clock(), store=RunStore(out, "y", resume=True))
    study = write_study(tmp_path / "study.toml", "fedcgs", 'epsilon = 1\nnoise = "local"\nmin_cohort = 9')
    code, _, err = veilsum(capsys, "simulate", study, "--dataset", "breast-cancer", "--out", tmp_path / "new")
    assert code == 2, err
    assert not (tmp_path / "new").exists()


def make_simulation(**changes: Any) -> Simulation:
    collection = single(packaged_dataset("breast-cancer"))
    content = {"name": "trial", "method": "fedcgs", "dataset": "breast-cancer", "privacy": {"epsilon": 5.0}}
    draft = draft_of(content, Path(), collection.schema, source="test")
    return Simulation(draft, collection, Setting(holdout=0.3), 0, encryption=False, **changes)


@pytest.mark.usefixtures("known_randomness")
def test_what_stands_beside_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path / "study.toml", "fedsgd", "epsilon = 100")
    study.write_text(study.read_text() + "[parameters]\nsteps = 20\n")
    options = ("--dataset", "breast-cancer", "--holdout", 0.3, "--no-encryption", "--sites", 3, "--json")
    code, text, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    found = {one["baseline"]: one for one in json.loads(text)["baselines"]}
    assert list(found) == ["alone", "pooled", "trained-alone", "trained-pooled", "central"]
    assert min(one["accuracy"] for one in found.values()) > 0.8
    assert all(one["held_out"]["auc"] > one["accuracy"] for one in found.values())
    code, text, _ = veilsum(capsys, "simulate", study, *options[:-1], "--baselines", "pooled,central,personal")
    assert (code, "pooled, same epsilon" in text, "each site, personal" in text, "each site alone" in text) == (
        0,
        True,
        True,
        False,
    )
    beside = text[text.index("Beside it") :]
    assert beside.index("area") < beside.index("mean predicted") < beside.index("accuracy")


@pytest.mark.system
@pytest.mark.usefixtures("known_randomness")
def test_a_sweep_shows_what_stands_beside_each_cell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_bare_study(tmp_path / "study.toml", method='"fedsgd"', parameters="{ steps = 15 }")
    options = ("--dataset", "breast-cancer", "--sites", 3, "--vary", "privacy.epsilon=1,50", "--seeds", 2, "--jobs", 1)
    code, text, err = veilsum(capsys, "simulate", study, *options, "--json", "--out", tmp_path / "out")
    assert code == 0, err
    summary = json.loads(text)
    kinds = [row["kind"] for row in summary["rows"]]
    assert kinds == ["alone", "pooled", "trained-alone", "trained-pooled", "cell", "central", "cell", "central"]
    assert all(row["done"] == 2 and row["average"] is not None for row in summary["rows"])
    assert all({"auc", "observed", "accuracy_of_constant_guess"} <= set(row["figures"]) for row in summary["rows"])
    rows = {row["label"]: row for row in summary["rows"]}
    assert rows["pooled, same epsilon, epsilon 50"]["epsilon"] == pytest.approx(50, rel=0.01)
    table = (tmp_path / "out" / "table.md").read_text()
    assert '"Pooled, same epsilon"' in table
    assert "| epsilon | records | area | mean predicted | observed | AVG | guess | runs |" in table
    assert all(0.5 < float(run["auc"]) <= 1.0 for run in read_runs(tmp_path / "out"))


def test_a_sweep_of_numbers_has_r_squared_in_place_of_accuracy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(8)
    x = rng.uniform(0, 10, 200)
    lines = [f"{a:.3f},{2 * a + b:.3f}" for a, b in zip(x, rng.normal(0, 0.5, 200), strict=True)]
    (tmp_path / "all.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    (tmp_path / "schema.toml").write_text(
        'max_records = 200\n[[columns]]\nkind = "number"\nname = "x"\nlow = 0\nhigh = 10\n'
        '[[columns]]\nkind = "number"\nname = "y"\nlow = -5\nhigh = 25\n'
    )
    parameters = '{ outcome = { column = "y", loss = "squared" }, steps = 60 }'
    schema = f'"{tmp_path / "schema.toml"}"'
    study = write_bare_study(tmp_path / "study.toml", method='"fedsgd"', schema=schema, parameters=parameters)
    options = ("--data", tmp_path / "all.csv", "--vary", "privacy.epsilon=none", "--sites", 2, "--jobs", 1, "--json")
    code, text, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    rows = {row["kind"]: row for row in json.loads(text)["rows"]}
    assert set(rows) == {"alone", "pooled", "trained-alone", "trained-pooled", "cell", "central"}
    assert "a linear discriminant needs classes" in rows["pooled"]["notes"]
    for kind in ("cell", "central", "trained-pooled"):
        assert (rows[kind]["average"], rows[kind]["statuses"]) == (None, {})
        assert rows[kind]["figures"]["r_squared"]["mean"] > 0.8


@pytest.mark.parametrize("encryption", ["--encryption", "--no-encryption"])
def test_progress_tells_rounds_and_epsilon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, encryption: str
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "SHARE", 0.0)
    study = write_study(tmp_path / "study.toml", "fedsgd", "epsilon = 5")
    study.write_text(study.read_text() + "[parameters]\nsteps = 4\n")
    code, _, err = veilsum(capsys, "simulate", study, "--dataset", "breast-cancer", "--sites", 2, encryption)
    assert code == 0, err
    lines = [line for line in err.splitlines() if "round" in line]
    rounds = len(lines)  # four steps, and what the method releases before them
    assert rounds >= 4
    assert [line.split(",")[0] for line in lines] == [f"Run 1 of 1: round {n} of {rounds}" for n in range(1, rounds + 1)]
    spent = [float(line.split("epsilon ")[1].split()[0]) for line in lines]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(5, rel=0.01)


@pytest.mark.system
@pytest.mark.sampled(2)
@pytest.mark.parametrize("encryption", ["--encryption", "--no-encryption"])
def test_one_study_runs_on_a_collections_domains(tmp_path: Path, capsys: pytest.CaptureFixture[str], encryption: str) -> None:
    folder = write_collection("heart-disease", tmp_path / "heart", records=40)
    study = write_study(tmp_path / "study.toml", "fedcgs", 'noise = "none"')
    options = ("--collection", f"heart-disease={folder}", "--partition", "domains+dirichlet:1", encryption, "--json")
    code, text, err = veilsum(capsys, "simulate", study, *options, "--out", tmp_path / "out")
    assert code == 0, err
    summary = json.loads(text)
    assert sorted(summary["sites"]) == ["cleveland", "hungarian", "switzerland", "va"]
    assert [sorted(shares) for shares in summary["accuracy_by_domain"]] == [sorted(summary["sites"])]
    assert load_result(tmp_path / "out" / "run-1").summary["cohort"] == 4


@pytest.mark.system
def test_encoders_make_the_features_of_cells_and_of_what_stands_beside_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_bare_study(
        tmp_path / "study.toml", method='"pca"', privacy='{ noise = "none" }', parameters="{ width = 20 }"
    )
    options = ("--dataset", "digits", "--no-encryption", "--out", tmp_path / "pca")
    code, _, err = veilsum(capsys, "simulate", study, *options)
    assert code == 0, err
    write_bare_study(study, method='"fedcgs"', privacy='{ noise = "none" }')
    sweep = ("simulate", study, "--dataset", "digits", "--seeds", 1, "--jobs", 1, "--json")
    code, text, err = veilsum(capsys, *sweep, "--encoder", tmp_path / "pca" / "run-1")
    assert code == 0, err
    means = {row["label"]: row["average"]["mean"] for row in json.loads(text)["rows"]}
    assert means["all"] == pytest.approx(means["pooled"], abs=0.01)
    assert 0.8 < means["pooled"] < 0.95  # 20 components tell digits almost as well as all 64 pixels, and not as well
    matrix = load_result(tmp_path / "pca" / "run-1").arrays["encoder.matrix"]
    layer = torch.nn.Linear(64, 20)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(matrix))
        layer.bias.copy_(torch.from_numpy(load_result(tmp_path / "pca" / "run-1").arrays["encoder.offset"]))
    torch.jit.save(torch.jit.script(layer), tmp_path / "layer.pt")
    digest = hashlib.sha256((tmp_path / "layer.pt").read_bytes()).hexdigest()
    encoder = f'{{ kind = "program", format = "torchscript", sha256 = "{digest}", inputs = [64], width = 20 }}'
    write_bare_study(study, method='"fedcgs"', privacy='{ noise = "none" }', parameters="{ clip = 8 }", encoder=encoder)
    code, _, err = veilsum(capsys, *sweep)
    assert (code, "--program" in err) == (2, True)
    code, text, err = veilsum(capsys, *sweep, "--baselines", "none", "--program", tmp_path / "layer.pt")
    assert code == 0, err
    (same_features,) = json.loads(text)["rows"]
    assert same_features["average"]["mean"] == pytest.approx(means["all"], abs=0.005)  # float32 in place of float64


def write_own_sites(directory: Path) -> Path:
    """A schema, a study about persons, one file with a column of sites, and the same records as a folder; returns the study.

    Persons of up to three records are mixed up, so that whoever takes rows for persons, or loses their order, counts wrong.
    """
    rng = np.random.default_rng(3)
    lines = [
        f"{hospital},p{rng.integers(60)},{rng.integers(0, 100)},{rng.integers(2)}" for hospital in "ABC" for _ in range(90)
    ]
    rng.shuffle(lines)
    (directory / "all.csv").write_text("hospital,patient,age,ill\n" + "\n".join(lines) + "\n")
    folder = directory / "sites"
    folder.mkdir()
    for hospital in "ABC":
        own = "\n".join(line[2:] for line in lines if line.startswith(hospital))
        (folder / f"{hospital}.csv").write_text(f"patient,age,ill\n{own}\n")
    (directory / "schema.toml").write_text(
        'max_records = 100\n[[columns]]\nkind = "number"\nname = "age"\nlow = 0\nhigh = 100\n[label]\ncolumn = "ill"\n'
        'classes = [{ name = "no", values = ["0"] }, { name = "yes", values = ["1"] }]\n'
    )
    study = directory / "study.toml"
    study.write_text(
        'name = "own"\nmethod = "statistics"\ndataset = "records"\nschema = "schema.toml"\n[privacy]\nnoise = "none"\n'
        'unit = "subject"\n[parameters]\nperson = "first"\n[[query]]\nkind = "mean"\nover = "age"\nby = "ill"\n'
    )
    return study


@pytest.mark.sampled(3)
@pytest.mark.parametrize("encryption", ["--encryption", "--no-encryption"])
@pytest.mark.parametrize("source", [("sites",), ("all.csv", "--site-column", "hospital")])
def test_a_study_of_persons_runs_on_ones_own_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: tuple[str, ...], encryption: str
) -> None:
    study = write_own_sites(tmp_path)
    data = ("--data", tmp_path / source[0], *source[1:], "--subject", "patient")
    code, text, err = veilsum(capsys, "simulate", study, *data, encryption, "--json")
    assert code == 0, err
    summary = json.loads(text)
    assert summary["sites"] == {"a": 90, "b": 90, "c": 90}
    assert summary["partition"] == "domains"
    first: dict[tuple[str, str], tuple[str, float]] = {}
    for row in csv.DictReader((tmp_path / "all.csv").open()):
        first.setdefault((row["hospital"], row["patient"]), (row["ill"], float(row["age"])))
    rows = {row["quantity"]: row["mean"] for row in summary["table"]}
    for level, code_of in (("no", "0"), ("yes", "1")):
        ages = [age for ill, age in first.values() if ill == code_of]
        assert rows[f"mean[{level}, age].count"] == len(ages)
        assert rows[f"mean[{level}, age].mean"] == pytest.approx(np.mean(ages), abs=0.5)  # in steps of the grid


def test_own_sites_hold_records_out_and_are_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_own_sites(tmp_path)
    study = tmp_path / "classify.toml"
    study.write_text('name = "c"\nmethod = "fedcgs"\ndataset = "records"\nschema = "schema.toml"\n[privacy]\nepsilon = 5\n')
    options = ("--vary", "partition=domains,iid", "--seeds", 2, "--jobs", 1, "--json")
    code, text, err = veilsum(capsys, "simulate", study, "--data", tmp_path / "sites", *options)
    assert code == 0, err
    cells = {row["label"]: row for row in json.loads(text)["rows"] if row["kind"] == "cell"}
    assert {row["done"] for row in cells.values()} == {2}
    assert len(cells) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "all.csv", "--site-column", "clinic"), "column 'clinic' is missing"),
        (("--data", "sites", "--site-column", "hospital"), "is a folder, whose files are the sites"),
        (("--data", "all.csv", "--subject", "patient"), "scatter a person's"),
        (("--data", "sites", "--subject", "patient", "--partition", "iid"), "scatter a person's"),
        (("--dataset", "breast-cancer", "--site-column", "hospital"), "records of your own"),
        (("--data", "empty"), "holds 0 files of records"),
        (("--data", "sites", "--sites", 4), "are the domains a, b, c"),
    ],
)
def test_own_sites_that_do_not_fit_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, options: tuple[Any, ...], message: str
) -> None:
    study = write_own_sites(tmp_path)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    code, _, err = veilsum(capsys, "simulate", study, *options)
    assert code == 2
    assert message in " ".join(err.split())
