"""Compiling a study: nothing is left open, the grid keeps its promises, and the cost never exceeds the demand."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.randomness import SeededRandom
from veilsum.compile import StudyRequest, draft_study, load_study_request
from veilsum.plan import notes
from veilsum.quantisation import plan_grid, rounding_share
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.accounting.accountant import Adaptive, GaussianEvent, epsilon_of
from veilsum_privacy.accounting.figures import calibrate_noise_multiplier
from veilsum_privacy.study.study import Study, parse_study
from veilsum_privacy.tasks import build_task
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask
from veilsum_privacy.tasks.base import TrainingTask

SCHEMA = """
max_records = 5000
[[columns]]
kind = "number"
name = "age"
low = 20
high = 100
[[columns]]
kind = "category"
name = "sex"
categories = ["f", "m"]
[label]
column = "ill"
classes = [{ name = "no", values = ["0"] }, { name = "yes", values = ["1"] }]
"""

STUDY = """
name = "first"
method = "{method}"
dataset = "clinic"
schema = "schema.toml"
[privacy]
{privacy}
"""


def request(tmp_path: Path, privacy: str = "epsilon = 2.0\nmin_cohort = 3", method: str = "statistics") -> StudyRequest:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(method=method, privacy=privacy))
    return load_study_request(path)


def compiled(asked: StudyRequest, participants: tuple[str, ...] = ("d", "b", "a", "c")) -> Study:
    return draft_study(
        asked,
        federation_id="ab" * 32,
        coordinator="hub",
        participants=participants,
        clock=lambda: 1_000,
        random=SeededRandom(7),
    ).compile()


@pytest.mark.parametrize("method", ["statistics", "fedcgs"])
@pytest.mark.parametrize("privacy", ["epsilon = 2.0", 'noise = "none"', 'noise = "local"\nepsilon = 0.5\ndelta = 1e-6'])
def test_compiled_study_survives_its_signed_bytes(tmp_path: Path, method: str, privacy: str) -> None:
    study = compiled(request(tmp_path, privacy, method))
    assert parse_study(study.to_bytes()) == study
    for task in study.tasks:
        built = build_task(task.task, task.parameters, study.data)
        assert built.layout().size > 0
        later = {"centre", "class_weights", "classes", "outcome", "limbs", "limb_bits"}  # stated only where there are any
        assert set(built.Parameters.model_fields) - later <= set(task.parameters) <= set(built.Parameters.model_fields)


@pytest.mark.parametrize("hidden", [16, 4096])
def test_a_step_of_training_fits_its_grid_however_few_records_there_are(tmp_path: Path, hidden: int) -> None:
    """A step's sum is rounded: its grid follows from how many values it has, not from max_records alone."""
    asked = request(tmp_path, 'epsilon = 1.0\nnoise = "local"', "fedavg")
    few = asked.model_copy(
        update={
            "data": None if asked.data is None else asked.data.model_copy(update={"max_records": 20}),
            "parameters": {"model": {"name": "mlp", "options": {"hidden": hidden}}},
        }
    )
    study = compiled(few)
    (task,) = study.tasks
    built = AgreedTask(AgreedStudy(study), task).task
    assert isinstance(built, TrainingTask)
    assert task.grid >= 100 * math.sqrt(built.step_size())


def test_everything_is_stated(tmp_path: Path) -> None:
    study = compiled(request(tmp_path, method="fedcgs"))
    assert study.participants == ("a", "b", "c", "d")
    assert study.weights == dict.fromkeys("abcd", 1)
    assert (study.created, study.expires) == (1_000, 1_000 + 24 * 3600)
    assert study.nonce == SeededRandom(7).bytes(16).hex()
    assert study.privacy.min_cohort == 3
    assert study.privacy.assumed_colluders == 1
    assert study.privacy.cohort_difference == "allowed"
    assert float.fromhex(study.parameters["clip"]) == pytest.approx(math.sqrt(1 / 30 + 1 / 2))
    assert study.parameters["centre"] is True
    assert study.parameters["missing"] == "skip"
    assert [(task.label, task.disclosure, task.releases) for task in study.tasks] == [
        ("means", "joint", 1),
        ("class-moments", "joint", 1),
    ]


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 50), st.sampled_from([1e-8, 1e-5, 1e-3]), st.sampled_from(["standard", "gaussian"]))
def test_cost_is_within_the_demand_and_near_it(epsilon: float, delta: float, rule: Adaptive) -> None:
    multiplier = calibrate_noise_multiplier(epsilon, delta, 1, rule)
    grid = plan_grid(max_records=2000, participants=4, multiplier=multiplier, honest=3)
    reached = epsilon_of([GaussianEvent(grid.grid, Fraction(grid.variance))], delta, rule)
    assert 0.999 * epsilon <= reached <= epsilon
    assert Fraction(grid.variance) >= (Fraction(multiplier) * grid.grid) ** 2


def test_an_error_is_asked_for_in_place_of_an_epsilon(tmp_path: Path) -> None:
    study = compiled(request(tmp_path, "error = 0.05\nmax_epsilon = 1.0"))
    (task,) = study.tasks
    assert study.privacy.epsilon == epsilon_of([GaussianEvent(task.grid, Fraction(task.variance))], 1e-5, "gaussian")
    # the mean of age: a third off the middle, and patients that differ by a third of the range beside the noise
    std = AgreedStudy(study).task("statistics").block_std(math.sqrt(task.variance * 4 / 3))
    error = math.hypot(std["overview.numbers/sum"], std["overview.numbers/records"] / 3, math.sqrt(4 * 5000) / 3)
    assert 1.96 * error / (4 * 5000) == pytest.approx(0.05, rel=5e-3)  # Fieller's interval is a little wider
    assert parse_study(study.to_bytes()) == study
    asked = request(tmp_path, "error = 0.05").model_copy(update={"expected_records": 50})
    fewer = compiled(asked).privacy.epsilon
    assert fewer is not None
    assert fewer > 10 * study.privacy.epsilon
    with pytest.raises(ConfigurationError, match=r"expected_records: 5001 exceeds the schema's max_records"):
        compiled(asked.model_copy(update={"expected_records": 5001}))


def test_the_unit_is_passed_on(tmp_path: Path) -> None:
    assert compiled(request(tmp_path)).privacy.unit == "record"
    asked = request(tmp_path, 'epsilon = 1.0\nunit = "subject"')
    assert compiled(asked.model_copy(update={"parameters": {"person": "first"}})).privacy.unit == "subject"
    with pytest.raises(ConfigurationError, match="how a person's records count"):
        compiled(asked)


def test_conditions_that_the_bounds_decide_are_named(tmp_path: Path) -> None:
    """Where they are a part of a condition, of an outcome or of a derived number."""
    request(tmp_path)
    path = tmp_path / "study.toml"
    asked = """
    [[query]]
    kind = "count"
    where = "age > 100 or sex = 'f' and age != 30"
    [[query]]
    kind = "linear"
    over = ["sex"]
    outcome = "age < 200"
    [[query]]
    kind = "mean"
    over = "old"
    [derive.old]
    number = "3 * (age >= 10) * (sex in ('m'))"
    low = 0
    high = 3
    """
    path.write_text(path.read_text() + asked)
    told = [note for note in notes(compiled(load_study_request(path)), 100) if "condition" in note]
    since = ", since 'age' lies from 20 to 100."
    assert told == [
        f"A condition says nothing: 'age > 100' holds for none{since}",
        f"A condition says nothing: 'age >= 10' holds for every value{since}",
        f"A condition says nothing: 'age < 200' holds for every value{since}",
    ]
    path.write_text(path.read_text().replace("age > 100 or sex = 'f' and age != 30", "age > 100"))
    with pytest.raises(ConfigurationError, match="no record can meet 'age > 100'") as refused:
        compiled(load_study_request(path))
    assert refused.value.advice == f"'age > 100' holds for none{since}"


@pytest.mark.parametrize(("most", "warned"), [("", False), ("most = 50", False), ("most = 49.9", True), ("most = 4", True)])
def test_a_largest_mean_below_what_counts_may_be_is_warned_of(most: str, warned: bool, tmp_path: Path) -> None:
    request(tmp_path)
    path = tmp_path / "study.toml"
    asked = f"""
    [parameters]
    family = "poisson"
    outcome = "age"
    over = ["sex"]
    {most}
    """
    path.write_text(path.read_text().replace('"statistics"', '"regression"') + asked)
    told = [note for note in notes(compiled(load_study_request(path)), 100) if "ean counts" in note]
    assert bool(told) == warned
    if warned:
        assert f"Mean counts of 'age' are taken as {most[7:]} at most, and a count may be 100" in told[0]


def test_where_a_person_may_have_several_rows_the_unit_is_the_person(tmp_path: Path) -> None:
    plain = request(tmp_path)
    assert plain.data is not None
    assert "joined" not in plain.data.model_dump(), "studies of other schemas keep their bytes"
    joined = {"data": plain.data.model_copy(update={"joined": True})}
    with pytest.raises(ConfigurationError, match=r"the schema says that a person may have several \(joined = true\)"):
        compiled(plain.model_copy(update=joined))
    told = joined | {"parameters": {"at_most": 2}}
    study = compiled(plain.model_copy(update=told))
    assert study.privacy.unit == "subject"
    assert parse_study(study.to_bytes()).data.joined
    assert any("the unit is a person with all of them" in note for note in notes(study, 100))
    assert compiled(request(tmp_path, 'epsilon = 1.0\nunit = "subject"').model_copy(update=told)).privacy.unit == "subject"
    rows = request(tmp_path, 'epsilon = 1.0\nunit = "record"')
    assert compiled(rows).privacy.unit == "record"
    with pytest.raises(ConfigurationError, match=r'unit = "record" hides one row; by the schema'):
        compiled(rows.model_copy(update=told))


def test_study_states_the_reached_epsilon(tmp_path: Path) -> None:
    study = compiled(request(tmp_path))
    (task,) = study.tasks
    assert study.privacy.epsilon == epsilon_of([GaussianEvent(task.grid, Fraction(task.variance))], 1e-5, "gaussian")
    assert 1.99 < study.privacy.epsilon <= 2.0
    assert compiled(request(tmp_path, 'noise = "none"')).privacy.epsilon is None


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2**24), st.integers(2, 1024), st.none() | st.floats(0.05, 1000), st.integers(1, 1024))
def test_grid_keeps_its_promises(max_records: int, participants: int, z: float | None, colluders: int) -> None:
    honest = max(1, participants - colluders)
    try:
        plan = plan_grid(max_records=max_records, participants=participants, multiplier=z, honest=honest)
    except ConfigurationError:
        # Only when even the coarsest grids leave no room or too little noise in a share.
        finest = 2**46 / (participants * (max_records + 12 * (z or 0)))
        assert finest <= 2 or (z is not None and z * finest / math.sqrt(honest) < 32)
        return
    sigma = math.sqrt(plan.variance)
    assert plan.grid & (plan.grid - 1) == 0
    assert 1 <= plan.grid <= 2**26
    assert plan.variance <= 2**62
    assert 2 * participants * (max_records * plan.grid + 12 * sigma) < 2**47 * (1 + 1e-9)
    if z is not None:
        assert sigma / math.sqrt(honest) >= 4
        assert plan.rounding == pytest.approx(participants * max_records / (z * plan.grid))
        if plan.rounding > 0.01:  # then a grid twice as fine would not fit
            twice = 2 * plan.grid
            fits = 2 * participants * twice * (max_records + 12 * z) < 2**47 and twice <= 2**26 and z * twice <= 2**31
            assert not fits


def test_truncation_adds_at_most_one_percent_of_the_noise() -> None:
    plan = plan_grid(max_records=300, participants=4, multiplier=3.7, honest=3)
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (4 * 300, 50))
    x[:, 0] = 1 - 1e-12  # one value that is always just below a grid point: the worst case
    error = np.trunc(x * plan.grid).sum(axis=0) - (x * plan.grid).sum(axis=0)
    assert np.abs(error).max() <= 0.01 * math.sqrt(plan.variance)
    assert np.abs(error[0]) > 0.9 * 4 * 300
    assert plan.grid == 2 ** math.ceil(math.log2(4 * 300 / (0.01 * 3.7)))


def test_rounding_of_a_compiled_study_is_that_of_its_grid(tmp_path: Path) -> None:
    for privacy in ("epsilon = 2.0", 'noise = "none"', "epsilon = 9000.0"):
        asked = request(tmp_path, privacy, "fedcgs").model_copy(update={"parameters": {"centre": False}})
        study = compiled(asked)
        z = math.sqrt(study.tasks[0].variance) / study.tasks[0].grid or None
        plan = plan_grid(max_records=5000, participants=4, multiplier=z, honest=3)
        assert plan.grid == study.tasks[0].grid
        assert rounding_share(study) == pytest.approx(plan.rounding, rel=1e-6)


def test_too_many_records_fit_the_lane_and_report_the_rounding() -> None:
    plan = plan_grid(max_records=2**24, participants=64, multiplier=4.0)
    assert plan.rounding > 0.01
    assert plan.grid == 2**15  # 64 * 2^24 * 2 * 2^15 = 2^46, and 2^16 would need 2^47
    with pytest.raises(ConfigurationError, match="No grid fits"):
        plan_grid(max_records=2**24, participants=1024, multiplier=1e-4)


def test_without_noise_the_finest_grid_is_taken() -> None:
    assert plan_grid(max_records=100, participants=4, multiplier=None).grid == 2**26
    plan = plan_grid(max_records=2**20, participants=4, multiplier=None)
    assert plan.grid == 2**23  # 4 * 2^20 * 2 * 2^24 would be 2^47
    assert plan.variance == 0


@pytest.mark.parametrize(
    ("privacy", "expected"),
    [
        ("", "state epsilon or error or noise"),
        ('noise = "none"\nepsilon = 1.0', "only one of them"),
        ('noise = "none"\nerror = 0.1', "only one of them"),
        ("epsilon = 1.0\nerror = 0.1", "only one of them"),
        ('epsilon = 1.0\nerror = 0.1\nnoise = "none"', "only one of them"),
        ("epsilon = 1.0\nmax_epsilon = 2.0", "state it with error"),
        ("error = 0.0", "privacy.error"),
        ("error = 1.5", "privacy.error"),
        ('epsilon = 1.0\nunit = "visit"', "privacy.unit"),
        ('noise = "none"\ncohort_difference = "allowed"', "strict"),
        ("epsilon = 1.0\nepsilom = 2.0", "privacy.epsilom: unknown key. Did you mean 'epsilon'"),
        ("epsilon = -1.0", "privacy.epsilon"),
        ("epsilon = 1.0\n[data]\nmax_records = 5", "data.columns: is missing"),
        ("epsilon = 1.0\n[parameters]\nclip = 2.0", "clip: unknown key"),
        ('epsilon = 1.0\n[parameters.outcome]\ncolumn = "x0"', "takes no outcome.*gbdt, fedsgd and fedavg predict"),
        ("epsilon = 1.0\nmin_cohort = 9", "min_cohort exceeds"),
        ("error = 0.1\nmin_cohort = 9", "min_cohort exceeds"),
        ('epsilon = 0.0001\naccounting = "rdp"', "No noise reaches"),
        ("epsilon = 1.0\nslack = 0.2", "privacy.slack"),
        ('epsilon = 1.0\n[encoder]\nreslt = "pca"', r"encoder\.reslt: unknown key\. Did you mean 'result'"),
        ('epsilon = 1.0\n[encoder]\nkind = "weights"', r"encoder\.kind: must be 'program'"),
        (
            'epsilon = 1.0\n[encoder]\nformat = "torchscript"\ninputs = [3]\nwidth = 2\nsha256 = "ab"',
            r"problem:\n  encoder\.sha256: [^\n]*$",
        ),
    ],
)
def test_bad_requests_are_explained(tmp_path: Path, privacy: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        compiled(request(tmp_path, privacy))


def test_unknown_method_participant_and_schema_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'statistics'"):
        compiled(request(tmp_path, method="statistic"))
    asked = request(tmp_path).model_copy(update={"participants": ("a", "bb")})
    with pytest.raises(ConfigurationError, match="'bb' is not in the federation"):
        compiled(asked)
    (tmp_path / "study.toml").write_text(STUDY.format(method="statistics", privacy="epsilon = 1.0").replace("schema.t", "s.t"))
    with pytest.raises(ConfigurationError, match=r"s\.toml does not exist"):
        load_study_request(tmp_path / "study.toml")


def test_chosen_participants_only(tmp_path: Path) -> None:
    asked = request(tmp_path, "epsilon = 1.0").model_copy(update={"participants": ("c", "a")})
    study = compiled(asked)
    assert study.participants == ("a", "c")
    assert study.privacy.min_cohort == 2


def test_inline_schema(tmp_path: Path) -> None:
    data = SCHEMA.replace("[[columns]]", "[[data.columns]]").replace("[label]", "[data.label]")
    data = data.replace("max_records", "[data]\nmax_records")
    text = STUDY.format(method="statistics", privacy="epsilon = 2.0").replace('schema = "schema.toml"\n', "") + data
    (tmp_path / "study.toml").write_text(text)
    assert load_study_request(tmp_path / "study.toml").data == request(tmp_path).data
