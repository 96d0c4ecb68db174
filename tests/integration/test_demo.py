"""``veilsum demo``: one run with real processes, its figures held against other sources, and no process left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from support.forked import ForkedCommand
from support.network import PATIENCE, wait_for
from support.randomness import RARE_DEVIATIONS
from veilsum_deploy.datasets import packaged_dataset
from veilsum_deploy.demo.directory import MARKER, claim
from veilsum_deploy.demo.hospitals import HOSPITALS, packaged_hospitals
from veilsum_node.errors import StateError
from veilsum_node.process.confinement import offered
from veilsum_participant.data import load_records
from veilsum_privacy.dossier.ledgers import open_source
from veilsum_privacy.ledger import Kind

DEMO = [str(Path(sys.executable).with_name("veilsum")), "demo"]
EPSILON = {"statistics": 1.0, "classifier-epsilon-1": 1.0, "classifier-epsilon-3": 3.0}

Started = tuple[int, int]
"""A process's number, and when it was started: a number is used again."""


def processes() -> dict[int, tuple[int, int, int]]:
    """The parent, the session and the start of every process on this machine that has not ended."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            words = (path / "stat").read_text().rpartition(") ")[2].split() if path.name.isdigit() else ["Z"]
        except OSError:
            continue
        if words[0] != "Z":
            found[int(path.name)] = (int(words[1]), int(words[3]), int(words[19]))
    return found


def parties_of(demo: int) -> list[Started]:
    """The processes of a demo that runs, in the order of their starts: each leads a session of its own."""
    table, family = processes(), {demo}
    for number in sorted(table, key=lambda number: table[number][2]):
        if table[number][0] in family:
            family.add(number)
    return sorted(
        ((number, table[number][2]) for number in family - {demo} if table[number][1] == number), key=lambda party: party[1]
    )


def five_parties(demo: subprocess.Popen[Any]) -> list[Started]:
    found: list[Started] = []

    def complete() -> bool:
        found[:] = parties_of(demo.pid)
        return len(found) == 5 or demo.poll() is not None

    wait_for(complete, "five processes")
    return found


def running(parties: Iterable[Started]) -> list[Started]:
    table = processes()
    return [party for party in parties if party[0] in table and table[party[0]][2] == party[1]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    work = tmp_path_factory.mktemp("work")
    directory, out, errors = work / "demo", work / "out", work / "errors"
    with (
        out.open("w") as output,
        errors.open("w") as said,
        subprocess.Popen([*DEMO, "--directory", directory, "--json"], stdout=output, stderr=said) as started,
    ):
        parties = five_parties(started)
        started.wait(PATIENCE)
    assert started.returncode == 0, errors.read_text()
    assert "killed" in errors.read_text()  # plain lines say what happens
    assert running(parties) == []
    return directory, json.loads(out.read_text())


@pytest.mark.system
def test_accuracies_are_those_of_the_held_out_patients(demo: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    accuracy = demo[1]["accuracy"]
    assert set(accuracy["alone"]) == set(HOSPITALS)
    assert set(accuracy["federated"]) == {"1", "3"}
    hospitals = packaged_hospitals()
    schema = hospitals.held_out.schema
    test = load_records(hospitals.held_out.write(tmp_path, "test"), schema)[0]
    for name in ("north", "east"):
        own = load_records(hospitals.sites[name].write(tmp_path, name), schema)[0]
        model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(own.features, own.labels)
        assert accuracy["alone"][name] == pytest.approx(model.score(test.features, test.labels), abs=0.05)
    whole = [load_records(dataset.write(tmp_path, name), schema)[0] for name, dataset in hospitals.sites.items()]
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(
        np.concatenate([part.features for part in whole]),
        np.concatenate([part.labels for part in whole if part.labels is not None]),
    )
    assert accuracy["pooled"] == pytest.approx(model.score(test.features, test.labels), abs=0.03)
    assert accuracy["federated"]["3"] > 0.75  # the larger class alone is 0.63


@pytest.mark.system
def test_epsilon_is_what_the_ledgers_events_cost(demo: tuple[Path, dict[str, Any]]) -> None:
    found = demo[1]
    for name, path in found["ledgers"].items():
        figures = found["epsilon"][name]
        accountant = PLDAccountant()
        with open_source(path) as ledger:
            charges = ledger.entries(kind=Kind.CHARGE)
            verified = ledger.verify()
        assert (verified.site, verified.entries) == (name, figures["entries_verified"])
        for entry in charges:
            assert entry.mechanism is not None
            ratio = (entry.mechanism.noise.variance**0.5) / entry.mechanism.sensitivity
            accountant.compose(dp_accounting.GaussianDpEvent(ratio))
        least = accountant.get_epsilon(found["delta"])
        assert least * (1 - 1e-3) <= figures["spent"] <= 1.03 * least
        assert figures["estimate"] < figures["spent"] < sum(EPSILON.values()) + 1
        assert figures["left"] == pytest.approx(figures["budget"] - figures["spent"])
        assert figures["left"] > 0


@pytest.mark.system
def test_the_killed_hospital_is_not_in_the_sum_and_not_charged(demo: tuple[Path, dict[str, Any]]) -> None:
    found = demo[1]
    dropout = found["dropout"]
    assert dropout["killed"] in HOSPITALS
    assert dropout["cohort"] == sorted(set(HOSPITALS) - {dropout["killed"]})
    assert dropout["phase"] == "finished"
    contributions = {name: found["epsilon"][name]["releases"] for name in HOSPITALS}
    fewest = min(contributions.values())
    assert {name for name, count in contributions.items() if count == fewest} == {dropout["killed"]}
    last = found["releases"][-1]
    assert last["cohort"] == dropout["cohort"]
    (first,) = [
        item for item in found["releases"] if item["study"] == "classifier-epsilon-1" and "counts" in item["noise_std"]
    ]
    # cohorts of 4 and 3 with one colluder: variances S^2 4/3 and S^2 3/2 for the same S
    assert last["noise_std"]["counts"] / first["noise_std"]["counts"] == pytest.approx((9 / 8) ** 0.5, rel=1e-3)


@pytest.mark.system
def test_sums_and_files_are_where_the_report_says(demo: tuple[Path, dict[str, Any]]) -> None:
    directory, found = demo
    studies = [item["study"] for item in found["releases"][:5]]
    assert studies == ["statistics", *["classifier-epsilon-1"] * 2, *["classifier-epsilon-3"] * 2]
    assert all(item["epsilon"] == pytest.approx(EPSILON[item["study"]], abs=1e-3) for item in found["releases"][:5])
    assert all((directory / "results" / study / "manifest.json").is_file() for study in EPSILON)
    rows = found["classes"]
    for row, true in zip(rows, np.bincount(packaged_dataset("breast-cancer").classes) - (56, 94), strict=True):
        assert abs(row["count"]["value"] - true) < RARE_DEVIATIONS * row["count"]["noise_error"]
    for name in HOSPITALS:
        assert found["bytes_sent"][name] > 1000
        assert (directory / "participants" / name / "participant.log").is_file()
    assert 12 > found["bytes_per_value"] > 3  # of few values; a key share of 2.3 kB is a third of it


def verify(folder: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """``veilsum ledger verify`` as a third party runs it: another process, in a folder of its own."""
    out = folder / "verified"
    out.unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        code = ForkedCommand(["ledger", "verify", *arguments, "--json"], out, {}).wait(60)
    return code, json.loads(out.read_text())


@pytest.mark.system
def test_a_third_party_repeats_the_verification_from_the_export_alone(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    directory, found = demo
    assert set(found["dossiers"]) == set(HOSPITALS)
    folder = tmp_path / "third-party"
    folder.mkdir()
    for name in ("authority.pem", "coordinator.jsonl"):
        shutil.copyfile(directory / "dossiers" / name, folder / name)
    for name, paper in found["dossiers"].items():
        shutil.copyfile(paper["export"], folder / f"{name}.jsonl")
    for name, paper in list(found["dossiers"].items())[:1]:
        arguments = (f"{name}.jsonl", "--authority", "authority.pem", "--against", "coordinator.jsonl")
        code, body = verify(folder, *arguments, "--head", paper["head"])
        assert (code, body["site"], body["entries"], body["receipts"]) == (0, name, paper["entries"], paper["receipts"])
        assert body["receipts"] >= sum(len(item["cohort"]) for item in found["releases"] if name in item["cohort"])
        assert body["spending"]["breast-cancer"]["spent"] == found["epsilon"][name]["spent"]
    first, *others = HOSPITALS
    peers = [word for other in others for word in ("--against", f"{other}.jsonl")]
    assert verify(folder, f"{first}.jsonl", *peers)[0] == 0
    export = folder / f"{first}.jsonl"
    lines = export.read_text().splitlines(keepends=True)
    charge = next(index for index, line in enumerate(lines) if '"kind":"charge"' in line)
    export.write_text(
        "".join([*lines[:charge], lines[charge].replace('"cohort_size":4', '"cohort_size":3'), *lines[charge + 1 :]])
    )
    code, body = verify(folder, export.name)
    assert (code, body["valid"], body["entry"]) == (1, False, json.loads(lines[charge])["seq"])


@pytest.mark.system
def test_dossiers_say_what_the_ledgers_say(demo: tuple[Path, dict[str, Any]]) -> None:
    found = demo[1]
    for name, paper in found["dossiers"].items():
        data = json.loads(Path(paper["twin"]).read_text())
        (population,) = data["populations"]
        assert (data["site"], data["proof"]["valid"], data["proof"]["head"]) == (name, True, paper["head"])
        assert (data["proof"]["authority"], data["proof"]["against"]) == (True, ["coordinator.jsonl"])
        for field in ("spent", "estimate", "left"):
            assert population[field] == found["epsilon"][name][field]
        assert {label["name"] for label in data["studies"].values()} >= set(EPSILON)
        page = Path(paper["dossier"]).read_text()
        assert "The record verifies." in page
        assert "classifier-epsilon-3" in page
        assert paper["head"] in page


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_demo_that_ends_early_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    directory = tmp_path / "demo"
    with subprocess.Popen(
        [*DEMO, "--directory", str(directory)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as started:
        parties = five_parties(started)
        with pytest.raises(StateError, match="A demo runs"), claim(directory):
            pass
        started.send_signal(number)
        assert started.wait(PATIENCE) != 0
    wait_for(lambda: running(parties) == [], "the end of all processes")


@pytest.mark.system
def test_the_demo_runs_confined(tmp_path: Path) -> None:
    """Every hospital as processes that are confined: studies, a hospital that is killed, ledgers and proofs as ever."""
    if not offered().enough:
        pytest.skip("this kernel cannot confine processes")
    done = subprocess.run(
        [*DEMO, "--confined", "--directory", str(tmp_path / "demo"), "--json"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert all(ledger["entries"] > 10 for ledger in found["dossiers"].values())
    for site in HOSPITALS:
        log = (tmp_path / "demo" / "participants" / site / "participant.log").read_text()
        assert "reader: dataset breast-cancer is read" in log
        assert "one process holds records, keys and the network" not in log


@pytest.mark.system
def test_a_dead_coordinator_ends_the_demo(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with subprocess.Popen([*DEMO, "--directory", str(directory)], stderr=subprocess.PIPE, text=True) as started:
        parties = five_parties(started)
        os.kill(parties[0][0], signal.SIGKILL)
        _, errors = started.communicate(timeout=240)
    assert started.returncode == 2
    assert "coordinator" in errors
    assert running(parties) == []


def test_a_directory_is_claimed_only_if_new_empty_or_a_demos(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(StateError, match="not a demo's"), claim(other):
        pass
    assert (other / "thesis.txt").read_text() == "mine"
    assert not (other / MARKER).exists()
    with claim(tmp_path / "new") as claimed:
        (claimed / "sub").mkdir()
        (claimed / "sub" / "file").write_text("old")
        with pytest.raises(StateError, match="A demo runs"), claim(tmp_path / "new"):
            pass
    with claim(tmp_path / "new") as claimed:
        assert [path.name for path in claimed.iterdir()] == [MARKER]
