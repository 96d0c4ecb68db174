"""How studies are priced and shown."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.studies import drafted as draft_of
from veilsum.cli.display import print_result, print_study
from veilsum.cli.planned import figure, print_plan
from veilsum.compile import PrivacyRequest, StudyDraft, StudyRequest
from veilsum.costs import study_cost
from veilsum.plan import plan_study
from veilsum.progress import Pace, duration, follow, words
from veilsum.remote import StudyInfo
from veilsum_aggregation.figures import Figure, NotEstimable
from veilsum_coordinator.console.facts import round_rows, study_row
from veilsum_deploy.demo import report
from veilsum_node.errors import StateError
from veilsum_privacy.accounting.accountant import GaussianEvent, epsilon_of
from veilsum_privacy.ledger.entries import Mechanism
from veilsum_privacy.mechanism.noise_plan import NoisePlan
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.schema import ClassValues, DatasetSchema, LabelColumn, NumberColumn
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_proto import federation_pb2 as pb

pytestmark = pytest.mark.usefixtures("few_rehearsals")

KEY = bytes(range(32))


SCHEMA = DatasetSchema(
    columns=tuple(NumberColumn(name=f"x{index}", low=-1.0, high=1.0) for index in range(3)),
    label=LabelColumn(column="y", classes=tuple(ClassValues(name=name, values=(name,)) for name in ("c0", "c1"))),
    max_records=1000,
)


def drafted(participants: int = 4, epsilon: float | None = 1.0, method: str = "statistics") -> StudyDraft:
    privacy = PrivacyRequest(epsilon=epsilon, noise="distributed" if epsilon else "none")
    request = StudyRequest(name="trial", method=method, dataset="clinic", data=SCHEMA, privacy=privacy, schema=None)
    return draft_of(request, [f"site-{index}" for index in range(participants)])


def status(phase: str, **fields: object) -> StudyInfo:
    values = {"study": KEY, "name": "trial", "method": "statistics", "participants": ["a", "b"], **fields}
    return StudyInfo.parse(pb.StudyStatus(phase=phase, **values))


@pytest.mark.parametrize("participants", [3, 4, 9])
def test_announced_noise_and_epsilon_agree(participants: int) -> None:
    study = drafted(participants).compile()
    cost = study_cost(study)
    (task,) = cost.tasks
    (declared,) = study.tasks
    built = build_task(declared.task, declared.parameters, study.data)
    # n shares of which n - 1 honest ones reach S: the sum has S sqrt(n / (n - 1)), and epsilon is that of S
    multiplier = math.sqrt(declared.variance) / declared.grid
    weights = {block.name: block.weight for block in built.layout().blocks}
    for block, std in task.noise.items():
        expected = multiplier * built.clip() * math.sqrt(participants / (participants - 1)) / weights[block]
        assert std == pytest.approx(expected, rel=1e-3)
    event = GaussianEvent(declared.grid, Fraction(declared.variance))
    assert cost.epsilon == pytest.approx(epsilon_of([event], 1e-5, "gaussian"), rel=1e-9)
    assert cost.upload == task.upload > 0


def test_a_plan_shows_how_wide_a_value_is(capsys: pytest.CaptureFixture[str]) -> None:
    draft = drafted()
    study = draft.compile()
    plan = plan_study(draft, study)
    encoding = AgreedStudy(study).tasks[0].plan(study.sites, study.sites).encoding
    (shown,) = plan.to_json()["cost"]["tasks"]
    assert (shown["lane_bits"], shown["lanes"]) == (encoding.width, encoding.lanes)
    print_plan(plan)
    assert f"{encoding.size:,} values of {encoding.width} bits, joint" in " ".join(capsys.readouterr().out.split())


def test_a_study_without_noise_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    draft = drafted(epsilon=None)
    plan = plan_study(draft, draft.compile())
    assert plan.cost.epsilon is None
    assert set(plan.cost.tasks[0].noise.values()) == {0.0}
    print_plan(plan)
    out = capsys.readouterr().out
    assert "none: exact sums, released without noise" in out
    assert "Verdict: exact, without any guarantee." in out
    assert "odds" not in out
    json.dumps(plan.to_json(), allow_nan=False)


def test_a_plan_shows_both_guarantees_and_what_was_spent(capsys: pytest.CaptureFixture[str]) -> None:
    draft = drafted()
    spent = {
        "site-1": {Mechanism(10, NoisePlan("local", 1_000_000, 1, 1)): 1},
        "site-2": {Mechanism(1, NoisePlan("none", 0, 1, 1)): 1},
    }
    plan = plan_study(draft, draft.compile(), spent=spent)
    print_plan(plan)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert plan.losses is not None
    alone, before, after = plan.alone, plan.losses[1].before, plan.losses[1].after
    assert any(f"with one of the sites │ {plan.cost.epsilon:.4g} │ a factor of 2.7" in line for line in lines)
    assert any(f"every other site, each subtracting its own noise │ {alone:.4g} │" in line for line in lines)
    assert f"│ site-0 │ 0 │ {plan.cost.epsilon:.4g} │" in lines
    assert f"│ site-1 │ {before:.4g} │ {after:.4g} │" in lines
    assert any(line.startswith("│ site-2 │ no bound") for line in lines)


@pytest.mark.system
def test_parts_that_the_noise_hides_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    draft = drafted(epsilon=0.017, method="fedcgs")
    print_plan(plan_study(draft, draft.compile()), everything=True)
    assert "What keeps it from being worth it: model (told in " in " ".join(capsys.readouterr().out.split())


def test_long_parts_are_cut_unless_all_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    columns = tuple(NumberColumn(name=f"x{index}", low=-1.0, high=1.0) for index in range(20))
    request = StudyRequest(
        name="trial", method="statistics", dataset="clinic", data=DatasetSchema(columns=columns),
        privacy=PrivacyRequest(epsilon=1.0), schema=None,
    )  # fmt: skip
    draft = draft_of(request, [f"s{index:02d}" for index in range(30)])
    plan = plan_study(draft, draft.compile(), spent={})
    print_plan(plan)
    out = capsys.readouterr().out
    assert out.count("mean of x") == 12  # what decides the verdict is shown at greater length
    assert "... and 8 more of mean of overview: --all" in out
    assert out.count("standard deviation of x") == 6
    assert "... and 14 more of standard deviation of overview: --all" in out
    assert "18 more participants: --all" in out
    print_plan(plan, everything=True)
    out = capsys.readouterr().out
    assert (out.count("mean of x"), out.count("standard deviation of x"), "--all" in out) == (20, 20, False)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.0, 2, "0"), (1.699, 2, "1.7"), (44.6, 2, "45"), (99.9, 2, "100"), (1085.0, 2, "1,100"), (1925.0, 3, "1,920"),
        (12.5, 3, "12.5"), (0.000189, 2, "0.00019"), (1.4e-9, 2, "1.4e-09"), (-33.3, 2, "-33"), (2.0, 3, "2"),
        (3.2e12, 2, "3.2e+12"), (math.inf, 2, "?"), (123456.0, 2, "120,000"),
    ],
)  # fmt: skip
def test_figures_are_short_and_without_exponents(value: float, digits: int, text: str) -> None:
    assert figure(value, digits) == text


def test_what_came_over_the_wire_is_made_printable(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "x\x1b]0;owned\x07\n\u202e[bold]"
    info = status(
        hostile,
        reason=hostile,
        analyst=hostile,
        enrolled=[hostile],
        refusals=[pb.Refusal(participant=hostile, code=hostile)],
        rounds=[pb.RoundStatus(round=1, label=hostile, phase=hostile, cohort=[hostile])],
        progress=math.nan,
    )
    assert info.progress == 0.0
    print_study(info, as_json=False)
    out = capsys.readouterr().out
    assert "[bold]" in out
    for character in ("\x1b", "\x07", "\u202e"):
        assert character not in out


def test_a_refusal_comes_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    refusals = [
        pb.Refusal(participant="a", code="analyst-not-allowed"),
        pb.Refusal(participant="b", code="internal-error"),
    ]
    print_study(status("failed", refusals=refusals), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "analyst-not-allowed" in line and "name you under policy.analysts" in line]
    assert [line for line in lines if "internal-error" in line and "its log has the reason" in line]


STATES = (
    status("enrolling", enrolled=["a"]),
    status("enrolling", enrolled=["a"], progress=0.01),
    status("running", progress=0.4, rounds=[pb.RoundStatus(round=1, label="sum", phase="contributing", attempts=2)]),
    status("failed", progress=0.1, refusals=[pb.Refusal(participant="b", code="budget-exceeded")]),
)


def test_states_are_lines_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert follow(STATES, as_json=False) is STATES[-1]
    assert capsys.readouterr().out.splitlines() == [
        "  0% enrolling 1/2",
        " 40% running round 1 (sum): contributing, attempt 2",
        " 10% failed, 1 refused",
    ]


def test_states_are_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert follow(STATES, as_json=False) is STATES[-1]
    assert "failed, 1 refused" in capsys.readouterr().out


class Hands:
    """A clock that states move on by a second each."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def states(self, states: Iterable[StudyInfo], seconds: float = 1.0) -> Iterator[StudyInfo]:
        for info in states:
            yield info
            self.now += seconds


def long_study(rounds: int = 100, done: int | None = None) -> list[StudyInfo]:
    """A study of many rounds, its state after each of them, and its end."""
    states = [status("enrolling", enrolled=["a"], declared=rounds, epsilon=3.0, epsilon_spent=0.0)]
    for number in range(1, rounds + 1 if done is None else done + 1):
        shown = [
            pb.RoundStatus(round=item, label="gradient", phase="released" if item < number else "contributing", attempts=1,
                           cohort=["a", "b"], bytes_received=1024, seconds=1.0)
            for item in range(1, number + 1)
        ]  # fmt: skip
        states.append(
            status("running", rounds=shown, declared=rounds, released=number - 1, epsilon=3.0, delta=1e-5,
                   epsilon_spent=3.0 * math.sqrt((number - 1) / rounds), progress=0.1 + 0.9 * (number - 1) / rounds)
        )  # fmt: skip
    if done is None:
        states.append(status("finished", declared=rounds, released=rounds, epsilon=3.0, epsilon_spent=3.0, progress=1.0))
    return states


def test_a_long_study_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    hands = Hands()
    follow(hands.states(long_study()), as_json=False, clock=hands)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  0% enrolling 1/2"
    assert lines[1] == " 10% running round 1 (gradient): contributing, 0 of 100 releases, epsilon 0 of 3"
    # The eleventh round begins ten seconds after the first: ten releases of 1 second each are done, ninety are left.
    assert (
        lines[2] == " 19% running round 11 (gradient): contributing, 10 of 100 releases, epsilon 0.949 of 3, about 90 s left"
    )
    assert lines[-1] == "100% finished, 100 of 100 releases, epsilon 3 of 3"
    assert len(lines) == 12


def test_what_is_out_of_the_ordinary_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    hands = Hands()
    ordinary = long_study(done=5)
    again = [pb.RoundStatus(round=5, label="gradient", phase="contributing", attempts=2)]
    refused = [pb.Refusal(participant="b", code="budget-exceeded")]
    about = {"declared": 100, "released": 4, "epsilon": 3.0, "epsilon_spent": 0.6, "progress": 0.136}
    follow(
        hands.states([*ordinary, status("running", rounds=again, **about),
                      status("running", rounds=again, refusals=refused, **about)]),
        as_json=False, clock=hands,
    )  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert "attempt 2" in lines[2]
    assert "1 refused" in lines[3]


def test_a_long_study_is_an_object_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    hands = Hands()
    follow(hands.states(long_study(), 0.1), as_json=True, clock=hands)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert 10 <= len(shown) <= 14
    assert shown[-1]["phase"] == "finished"
    assert shown[-1]["epsilon_spent"] == 3.0


def test_a_long_study_is_one_short_line_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    hands = Hands()
    follow(hands.states(long_study(done=60)), as_json=False, clock=hands)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    last = [line for line in re.split(r"[\r\n]", plain) if line.strip()][-1]
    assert len(last) <= 100
    for text in ("running gradient, 59 of 100, epsilon 2.305 of 3", "63%", "about 41 s left"):
        assert text in last


@given(spent=st.floats(1e-9, 1e4), share=st.floats(0, 1))
@example(spent=2.3043437243605826, share=0.5)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_shown_cost_is_below_what_was_spent(capsys: pytest.CaptureFixture[str], spent: float, share: float) -> None:
    """In a study's state, on its line while it runs, and in the demo's table, which shows no more left than there is."""
    rounds = [pb.RoundStatus(round=2, label="gradient", phase="contributing", attempts=1)]
    about = {"declared": 3, "released": 1, "epsilon": 2 * spent, "epsilon_spent": spent, "delta": 1e-5, "rounds": rounds}
    info = status("running", **about)
    print_study(info, as_json=False)
    shown = [*re.findall(r"epsilon so far[ │]+(\S+) of (\S+)", capsys.readouterr().out)]
    shown += re.findall(r"epsilon (\S+) of (\S+)", words(info))
    assert len(shown) == 2
    for one, whole in shown:
        assert spent <= float(one) < spent + 0.00101
        assert 2 * spent <= float(whole) < 2 * spent + 0.00101
    left = share * spent
    site = {"spent": spent, "estimate": spent, "left": left, "budget": 1.0, "releases": 1, "entries_verified": 1}
    report._print_epsilon({"epsilon": {"north": site}, "bytes_sent": {}, "delta": 1e-5, "values": 1, "bytes_per_value": 1.0})
    row = next(line for line in capsys.readouterr().out.splitlines() if "north" in line)
    _, first, tighter, rest = [cell.strip() for cell in row.split("│")][1:5]
    assert first == tighter == shown[0][0]
    assert left - 0.00101 < float(rest) <= left


def test_a_round_that_runs_or_failed_has_no_seconds_yet(capsys: pytest.CaptureFixture[str]) -> None:
    """The status says 0 of it, which would read as a round that took no time."""
    rounds = [
        pb.RoundStatus(round=1, label="gradient", phase="released", attempts=1, seconds=0),
        pb.RoundStatus(round=2, label="gradient", phase="failed", attempts=1),
        pb.RoundStatus(round=3, label="gradient", phase="consenting", attempts=1),
    ]
    info = status("running", rounds=rounds, released=1, seconds=0)
    print_study(info, as_json=False)
    table = capsys.readouterr().out.split("Rounds")[1]
    rows = [line.split("│") for line in table.splitlines() if "gradient" in line]
    assert [row[-2].strip() for row in rows] == ["0.0", "", ""]
    assert [row["seconds"] for row in round_rows(info)] == ["–", "–", "0"]
    assert [study_row(item)["seconds"] for item in (info, status("running", rounds=rounds[1:]))] == ["0", "–"]


def test_without_noise_there_is_no_epsilon_to_tell() -> None:
    info = status(
        "running", declared=40, released=3, rounds=[pb.RoundStatus(round=4, label="sum", phase="opening", attempts=1)]
    )
    assert words(info) == "running round 4 (sum): opening, 3 of 40 releases"
    assert info.epsilon is None
    assert status("running", declared=2, epsilon_spent=math.inf).epsilon_spent is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "1 s"), (40.0, "40 s"), (99.6, "2 min"), (720.0, "12 min"), (12_600.0, "3.5 h")]
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_nobody_is_told_an_end_before_a_release_was_timed() -> None:
    hands = Hands()
    pace = Pace(hands)
    before, first, second = long_study(done=3)[1:]
    assert pace.left(before) == ""
    hands.now += 60.0  # waiting for everyone is not a measure of a round
    assert pace.left(first) == ""
    hands.now += 1.0
    assert pace.left(second) == ""
    hands.now += 59.0
    assert pace.left(long_study(done=61)[-1]) == "about 41 s left"


def test_a_long_studys_rounds_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    info = long_study(done=60)[-1]
    print_study(dataclasses.replace(info, checkpoints=(40, 50)), as_json=False)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "│ releases │ 59 of 100 │" in lines
    assert "│ epsilon so far │ 2.305 of 3 (delta 1e-05) │" in lines
    assert "│ checkpoints │ after round 40, after round 50 │" in lines
    assert "│ gradient │ 60 │ 59 │ 0 │ 60 │ 2 │ 60.0 KiB │ 60 │" in lines
    assert sum("│ gradient │" in line for line in lines) == 11  # the sum and the ten newest rounds
    assert any(line.startswith("│ 51 │") for line in lines)
    assert not any(line.startswith("│ 50 │") for line in lines)
    print_study(long_study(5)[-2], as_json=False)
    assert "Rounds by task" not in capsys.readouterr().out


def test_states_are_objects_under_json(capsys: pytest.CaptureFixture[str]) -> None:
    follow(STATES, as_json=True)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["phase"] for item in shown] == ["enrolling", "enrolling", "running", "failed"]
    assert shown[-1]["refusals"] == [{"participant": "b", "code": "budget-exceeded", "round": 0}]
    assert {item["study"] for item in shown} == {KEY.hex()}


def test_a_watch_that_shows_nothing_is_an_error() -> None:
    with pytest.raises(StateError, match="without a reason"):
        follow((), as_json=False)


def test_a_result_is_shown_with_its_errors(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"column": "age", "mean": Figure(54.321, 0.5, 0.0, 53.3, 55.3).to_json()},
        {"column": "sex", "mean": NotEstimable("noise").to_json()},
    ]
    summary = {"records": Figure(150.0, 3.25, 0.0, 143.6, 156.4).to_json(), "cohort": 3, "numbers": rows}
    print_result(Result("statistics", summary, {"w": np.zeros((2, 3))}), Path("out"), as_json=False)
    out = capsys.readouterr().out
    for text in ("150 (143.6 to 156.4)", "54.32 (53.3 to 55.3)", "not estimable: noise", "numbers", "age"):
        assert text in out
    print_result(Result("statistics", summary, {"w": np.zeros((2, 3))}), Path("out"), as_json=True)
    assert json.loads(capsys.readouterr().out)["arrays"] == {"w": [2, 3]}


def test_what_a_result_nests_is_shown_item_by_item(capsys: pytest.CaptureFixture[str]) -> None:
    sites = [{"site": name, "aligned": True, "shift": 0.25} for name in ("rome", "oslo")]
    alignment = {"reference": "slopes", "tau": 0.4, "converged": True, "sites": sites}
    print_result(Result("fedcgs", {"cohort": 2, "alignment": alignment}), Path("out"), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    for told in (("alignment: tau", "0.4"), ("alignment: converged", "yes"), ("oslo", "yes", "0.25")):
        assert any(all(word in line for word in told) for line in lines)


def test_every_refusal_that_a_request_can_mend_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    hints = {"epsilon-too-large": "max_epsilon", "budget-exceeded": "budget", "unit-not-accepted": "privacy.unit",
             "too-many-attempts": "again", "approval-declined": "operator", "cohort-not-trusted": "local"}  # fmt: skip
    for code, hint in hints.items():
        print_study(status("failed", refusals=[pb.Refusal(participant="a", code=code)]), as_json=False)
        shown = capsys.readouterr().out
        row = next(line for line in shown.splitlines() if code in line)
        assert hint in row.split("│")[-2]
        assert ("max_epsilon" in row) == (code == "epsilon-too-large")  # the budget is the ledger's alone


def test_a_results_error_is_called_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    estimate = Figure(3.0, 0.5, 0.0, 2.0, 4.0).to_json()
    nested = {"numbers": [{"column": "age", "mean": estimate}]}
    for summary, said in (({"records": estimate}, True), (nested, True), ({"records": 3.0, "names": ["a"]}, False)):
        print_result(Result("statistics", summary, {}), tmp_path, as_json=False)
        assert ("95% interval" in capsys.readouterr().out) is said


def test_a_query_over_many_columns_stays_on_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    columns = ", ".join(f"column number {index}" for index in range(30))
    queries = [
        {"query": "overview.numbers", "kind": "mean", "over": columns},
        {"query": "one", "kind": "count", "over": "sex"},
    ]
    print_result(Result("statistics", {"queries": queries}, {}), Path("out"), as_json=False)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) < 120
    assert "column number 0, column number 1, column number 2, ..." in out
    print_result(Result("statistics", {"queries": queries}, {}), Path("out"), as_json=True)
    assert columns in capsys.readouterr().out
