"""Every query of every dashboard, asked of a real Prometheus that scrapes a real federation in which a study runs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.network import wait_for
from support.tools import need_tool
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_deploy.dashboards.checking import Answer, check
from veilsum_deploy.dashboards.drawing import draw
from veilsum_deploy.dashboards.reading import FOLDER, read_boards
from veilsum_deploy.dashboards.watching import Watched, watching
from veilsum_deploy.demo.hospitals import packaged_hospitals
from veilsum_deploy.demo.run import wait_for_ledgers

BUDGETS = {"north": 20.0, "east": 4.0, "south": 40.0, "west": 0.7}
STEPS = 40


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    need_tool("prometheus")
    directory = tmp_path_factory.mktemp("watched") / "federation"
    directory.mkdir()
    clock = lambda: int(time.time())  # noqa: E731
    with watching(directory, packaged_hospitals(), clock, budgets=BUDGETS, sharing=("north",)) as running:
        yield running


@pytest.fixture(scope="module")
def asked(watched: Watched) -> list[Answer]:
    """All queries while a study runs: west's budget bears the first, not the second, which goes on without it."""
    analyst = watched.analyst
    some = next(iter(analyst.hospitals.sites.values()))
    first = analyst.run("statistics", "statistics", 0.5)
    privacy = PrivacyRequest(epsilon=1.0, delta=1e-5, assumed_colluders=1, min_cohort=analyst.min_cohort)
    parameters: dict[str, Any] = {"steps": STEPS, "centre": False}
    training = StudyRequest(
        name="train", method="fedsgd", dataset=some.name, data=some.schema, parameters=parameters, privacy=privacy
    )
    study = analyst.compile_request(training)
    key = analyst.submit(study)
    wait_for(lambda: len(analyst.remote.show(key).rounds) >= STEPS // 2, "half of the rounds")
    time.sleep(1.5)  # a scrape
    answers = check(read_boards(), watched.prometheus, watched.window())
    finished = analyst.finish(study, key)
    wait_for_ledgers(analyst.kit, [first, finished])
    return answers


def test_every_query_returns_data_while_a_study_runs(asked: list[Answer]) -> None:
    empty = [f"{answer.board}/{answer.panel}: {answer.fault or answer.expr}" for answer in asked if not answer.series]
    assert not empty, "\n".join(empty)
    panels = sum(len(panel.targets) for board in read_boards() for panel in board.panels)
    assert len(asked) > panels  # those of one participant ran for each of the four


def test_what_is_shown_is_what_happened(watched: Watched, asked: list[Answer]) -> None:
    assert asked

    def one(expr: str) -> float:
        return watched.prometheus.instant(expr, time.time())[0].last

    wait_for(lambda: one("sum(veilsum_rounds_total)") == STEPS + 1, "the last scrape")
    expected = {
        'sum(veilsum_rounds_total{method="fedsgd",outcome="released"})': STEPS,
        'sum(veilsum_refusals_total{job="veilsum-coordinator",reason="budget-exceeded"})': 1,
        'sum(veilsum_refusals_total{site="west",reason="budget-exceeded"})': 1,
        'sum(veilsum_refusals_total{site!="west",job="veilsum-participant"})': 0,
        'sum(veilsum_contributions_total{participant="west"})': 1,
        'sum(veilsum_contributions_total{participant="north"})': STEPS + 1,
        "sum(veilsum_participant_connected)": 4,
        'max(veilsum_epsilon_budget{site="west"})': 0.7,
        "min(veilsum_ledger_verified)": 1,
    }
    assert {expr: one(expr) for expr in expected} == expected


def test_pages_are_drawn_of_the_answers(watched: Watched, asked: list[Answer], tmp_path: Path) -> None:
    assert asked
    pages = draw(read_boards(), watched.prometheus, watched.window(), tmp_path, {"site": "west"}, None)
    texts = [page.read_text() for page in pages]
    assert not any("No data" in text for text in texts)
    assert "One participant: west" in texts[2]
    for name in BUDGETS:
        assert all(f">{name}" in text for text in texts[:2])


def command(watched: Watched, *arguments: str) -> tuple[int, str, str]:
    words = ["-m", "veilsum_deploy.dashboards", *arguments, "--prometheus", watched.prometheus.url]
    done = subprocess.run([sys.executable, *words, "--scrape", "1"], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def test_the_command_says_which_query_returns_nothing(watched: Watched, asked: list[Answer], tmp_path: Path) -> None:
    code, out, _ = command(watched, "check", "--minutes", "2")
    assert (code, out.splitlines()[-1]) == (0, f"{len(asked)} queries, 0 without data")
    for path in FOLDER.iterdir():
        text = path.read_text().replace("veilsum_mirror_entries", "veilsum_mirror_entrees")
        (tmp_path / path.name).write_text(text)
    code, out, _ = command(watched, "check", "--minutes", "2", "--dashboards", str(tmp_path), "--json")
    assert code == 1
    assert {(item["board"], item["panel"]) for item in json.loads(out)["empty"]} == {
        ("Rounds and health", "Mirror entries"),
        ("Privacy budgets", "Mirror entries"),
    }


def test_a_prometheus_that_is_not_there_is_a_message(watched: Watched) -> None:
    words = ["-m", "veilsum_deploy.dashboards", "check", "--prometheus", "http://127.0.0.1:1"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "does not answer" in done.stderr
    assert "Traceback" not in done.stderr
