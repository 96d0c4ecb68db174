"""The site's policy: each floor refuses what is below it, and everything that is broken is said at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.federation import DATASET, make_request, schema_of
from support.hostile import altered
from support.studies import agreed
from veilsum_node.errors import Refusal, RefusalCode
from veilsum_participant.protocol.policy import JOINT_ONLY, refuse, study_faults
from veilsum_participant.settings.config import METHODS, NEEDED, ParticipantConfig, Policy
from veilsum_participant.settings.dataset_config import DatasetConfig, EncoderConfig
from veilsum_participant.settings.telling import cautions, former_tasks, lacking_tasks, unbounded_datasets
from veilsum_privacy.accounting.prices import study_epsilon
from veilsum_privacy.study.known_tasks import FORMER, TASK_NAMES
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks import TASKS
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask

OWN = "a"
PINNED = {"b": "1" * 64, "c": "2" * 64}


def make_study(**privacy: Any) -> Study:
    return agreed(make_request(schema_of(2), **privacy), "abc", now=1_800_000_000)


def make_config(
    subject: str | None = None,
    path: str = "records.csv",
    header: bool = True,
    columns: tuple[str, ...] = ("x0", "x1", "y"),
    **policy: Any,
) -> ParticipantConfig:
    values = {"analysts": ("ana",), "trusted": PINNED} | policy
    dataset = DatasetConfig(path=Path(path), subject=subject, header=header, columns=columns, most_records=1000)
    return ParticipantConfig(coordinator="localhost:1", datasets={DATASET: dataset}, policy=Policy(**values))


def faults(study: Study, config: ParticipantConfig, analyst: str = "ana", delta: float | None = 1e-5) -> list[Refusal]:
    return list(study_faults(AgreedStudy(study), analyst, config, OWN, delta))


def codes(study: Study, config: ParticipantConfig, analyst: str = "ana", delta: float | None = 1e-5) -> list[RefusalCode]:
    return [fault.code for fault in faults(study, config, analyst, delta)]


def test_the_default_policy_bears_an_ordinary_study() -> None:
    assert codes(make_study(), make_config()) == []


def test_a_policy_that_lists_a_former_task_loads_and_says_what_took_its_place() -> None:
    """No study can ask for it, and the list allows nothing else in its place."""
    old = make_config(tasks=("class-moments", "evaluation"))
    ((name, told, advice),) = former_tasks(old.policy)
    assert (name, "model-tables" in told, "0.2" in told) == ("evaluation", True, True)
    assert advice == "Take 'evaluation' out of policy.tasks, and list 'model-tables' if the site agrees to it."
    ((_, _, advice),) = former_tasks(make_config(tasks=("model-tables", "evaluation")).policy)
    assert advice == "Take 'evaluation' out of policy.tasks."
    assert not list(former_tasks(make_config().policy))
    assert not set(FORMER) & set(TASKS)
    asks = altered(make_study(), task__task="model-tables")
    assert codes(asks, old) == [RefusalCode.TASK]
    gone = altered(make_study(), task__task="evaluation")
    (fault,) = faults(gone, old)
    assert (fault.code, "removed after version 0.2" in str(fault)) == (RefusalCode.STUDY_INVALID, True)


def test_a_site_that_accepts_exact_sums_is_asked_how_many_records_it_may_have() -> None:
    """Without that word two exact sums could show it, so it gives none (decision 123)."""
    stating = make_config(noise=("none",))
    unstated = stating.datasets[DATASET].model_copy(update={"most_records": 0})
    exact = stating.model_copy(update={"datasets": {DATASET: unstated}})
    ((name, _, advice),) = unbounded_datasets(exact)
    assert (name, advice) == (DATASET, f"State datasets.{DATASET}.most_records, a round number with room to grow.")
    assert any(advice in said for said in cautions(exact))
    assert not list(unbounded_datasets(stating))
    assert not list(unbounded_datasets(make_config()))


def test_what_lies_on_a_border_is_within_it() -> None:
    """Days, epsilon of the site and of the study, cohort, trusted peers and smallest cell at exactly what the policy says."""
    study = altered(make_study(), expires=1_800_000_000 + 86400, parameters={"smallest_cell": 7})
    cost = study_epsilon(study, 1e-5)
    policy = {"study_days": 1, "max_epsilon": cost, "smallest_cell": 7, "min_cohort": 3, "min_trusted": 3}
    assert codes(altered(study, privacy__epsilon=cost), make_config(**policy)) == []
    assert codes(altered(study, privacy__epsilon=cost / (1 + 5e-10)), make_config(**policy)) == []  # rounding
    short = altered(study, privacy__epsilon=cost / (1 + 1.5e-9))
    assert codes(short, make_config(**policy)) == [RefusalCode.STUDY_INVALID]


@pytest.mark.parametrize("cell", [0, 6, "many", None])
def test_a_study_that_says_nothing_of_small_cells_prints_all_of_them(cell: int | str | None) -> None:
    parameters = {} if cell is None else {"smallest_cell": cell}
    study = altered(make_study(), parameters=parameters)
    assert codes(study, make_config(smallest_cell=7)) == [RefusalCode.DISCLOSURE]
    if cell != 6:
        assert codes(study, make_config(smallest_cell=1)) == [RefusalCode.DISCLOSURE]


def test_small_cells_are_a_matter_of_statistics_alone() -> None:
    assert codes(make_study(method="fedcgs"), make_config(smallest_cell=7)) == []


def test_refused_is_with_all_reasons_or_not_at_all() -> None:
    refuse([])
    with pytest.raises(Refusal) as caught:
        refuse(fault for fault in (Refusal(RefusalCode.UNIT, "u"), Refusal(RefusalCode.METHOD, "m")))
    assert set(caught.value.codes) == {RefusalCode.UNIT, RefusalCode.METHOD}


def test_noise_of_a_kept_task_is_known_before_anyone_enrols() -> None:
    """A site that takes distributed noise only would refuse the kept task's round, in the middle of the study."""
    study = make_study(cohort_difference="strict")
    keeping = altered(study, tasks=[{**task.model_dump(mode="json"), "keep": True} for task in study.tasks])
    assert codes(study, make_config(noise=("distributed",))) == []
    found = faults(keeping, make_config(noise=("distributed",)))
    assert [(fault.code, "'local'" in fault.message) for fault in found] == [(RefusalCode.NOISE, True)]
    assert codes(keeping, make_config()) == []


def test_what_a_site_keeps_or_trains_has_its_own_noise_alone() -> None:
    """One such task among others is enough; a study whose noise is local, or that has none, asks for no second kind."""
    study = make_study(cohort_difference="strict")
    (task,) = (task.model_dump(mode="json") for task in study.tasks)
    for change in ({"keep": True}, {"local_steps": 2}):
        two = altered(study, tasks=[task, {**task, "label": "other", **change}], privacy__epsilon=2.0)
        reasons = faults(two, make_config(noise=("distributed",), max_epsilon=2.0))
        assert "Noise 'local' is not among policy.noise." in [fault.message for fault in reasons]
    exact = altered(make_study(noise="none", epsilon=None), task__keep=True)
    assert codes(exact, make_config(noise=("none",), disclosures=("joint", "per-site"))) == []


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("disclosures", [("joint",), ("joint", "per-site"), ()])
def test_an_exact_statistic_that_is_kept_is_disclosed_by_site(private: bool, keep: bool, disclosures: tuple[str, ...]) -> None:
    study = make_study(cohort_difference="strict") if private else make_study(noise="none", epsilon=None)
    found = faults(
        altered(study, task__keep=keep), make_config(noise=("distributed", "local", "none"), disclosures=disclosures)
    )
    exact = keep and not private and "per-site" not in disclosures
    assert [fault.code for fault in found] == [RefusalCode.DISCLOSURE] * (exact or not disclosures)
    assert ["kept statistic" in fault.message for fault in found] == [exact] * len(found)
    trained = faults(
        altered(study, task__resolution=7), make_config(noise=("distributed", "local", "none"), disclosures=disclosures)
    )
    told = [fault.code for fault in trained if "training at a site" in fault.message]
    assert told == [RefusalCode.DISCLOSURE] * (not private and "per-site" not in disclosures)


def test_a_task_is_refused_for_the_first_rule_that_it_breaks() -> None:
    """What follows would be about something that is refused already."""
    study = altered(make_study(), task__disclosure="per-site")
    assert codes(study, make_config(tasks=("class-moments",))) == [RefusalCode.TASK]
    assert codes(study, make_config()) == [RefusalCode.DISCLOSURE]
    assert codes(altered(study, task__task="no-such-task"), make_config()) == [RefusalCode.TASK]


@pytest.mark.parametrize("size", [2**26, 2**26 + 1])
def test_the_longest_vector_that_a_site_computes(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(AgreedTask, "size", size)
    assert (RefusalCode.STUDY_INVALID in codes(make_study(), make_config())) == (size > 2**26)


@pytest.mark.parametrize("offered", [True, False])
def test_a_program_is_a_file_of_the_sites_own(tmp_path: Path, offered: bool) -> None:
    (tmp_path / "network.pt").write_bytes(b"a network")
    sha256 = hashlib.sha256(b"a network").hexdigest()
    program = {"kind": "program", "format": "torchscript", "sha256": sha256, "inputs": [2], "width": 2}
    study = altered(make_study(), encoder=program)
    encoders = {"own": EncoderConfig(path=tmp_path / "network.pt")} if offered else {}
    config = make_config().model_copy(update={"encoders": encoders})
    found = faults(study, config)
    assert [fault.code for fault in found] == [RefusalCode.TASK] * (not offered)
    assert all(fault.advice for fault in found)


def test_what_to_do_is_said_where_something_can_be_done() -> None:
    """A key of the policy to change, or what to ask for."""
    for policy, advice in (
        ({"methods": ("fedcgs",)}, "add it to policy.methods"),
        ({"tasks": ("class-moments",)}, "add it to policy.tasks"),
        ({"disclosures": ("per-site",)}, "add it to policy.disclosures"),
        ({"cohort_difference": ("strict",)}, 'cohort_difference = "strict"'),
    ):
        (fault,) = faults(make_study(), make_config(**policy))
        assert advice in fault.advice
    (fault,) = faults(make_study(cohort_difference="strict"), make_config(cohort_difference=("allowed",)))
    assert fault.advice == ""


def test_a_map_chosen_for_each_site_needs_disclosure_by_site_where_there_is_no_noise() -> None:
    """A hostile coordinator maps all records but one site's to zero: the joint sum is that site's own."""
    study = make_study(noise="none", epsilon=None)
    parameters = {
        "width": 2, "alignment": {"kind": "broadcast", "tau": 1.0, "moments": None}, "clip": 1.0, "missing": "skip",
        "count_weight": 1.0, "sum_weight": 1.0,
    }  # fmt: skip
    means = TASKS["feature-means"].Parameters.model_validate(parameters).model_dump(mode="json")
    mapped = altered(study, task__task="feature-means", task__parameters=means)
    offered = {"tasks": ("feature-means",), "noise": ("none",)}
    assert codes(mapped, make_config(**offered, disclosures=("joint", "per-site"))) == []
    (fault,) = faults(mapped, make_config(**offered, disclosures=("joint",)))
    assert (fault.code, "per-site" in fault.message) == (RefusalCode.DISCLOSURE, True)
    plain = altered(mapped, task__parameters={**means, "alignment": None})
    assert codes(plain, make_config(**offered, disclosures=("joint",))) == []


def test_every_analyst_of_the_federation_may_be_accepted() -> None:
    assert codes(make_study(), make_config(analysts=("*",))) == codes(make_study(), make_config(analysts=("x", "ana"))) == []


def crowd(sites: int, min_cohort: int) -> Study:
    """A study of many sites with noise of its own at each."""
    names = ["a", *(f"site-{index:04d}" for index in range(1, sites))]
    return altered(
        make_study(noise="local"), participants=names, weights=dict.fromkeys(names, 1), privacy__min_cohort=min_cohort
    )


@pytest.mark.parametrize(("sites", "min_cohort"), [(65, 60), (66, 8)])
def test_small_studies_and_those_of_small_cohorts_share_masks_completely(sites: int, min_cohort: int) -> None:
    assert codes(crowd(sites, min_cohort), make_config(masks=("complete",))) == []


FLOORS: list[tuple[dict[str, Any], Callable[[], Study], RefusalCode]] = [
    ({"methods": ("fedcgs",)}, make_study, RefusalCode.METHOD),
    ({"tasks": ("class-moments",)}, make_study, RefusalCode.TASK),
    ({"analysts": ("other",)}, make_study, RefusalCode.ANALYST),
    ({"analysts": ()}, make_study, RefusalCode.ANALYST),
    ({"min_cohort": 4}, make_study, RefusalCode.COHORT_SMALL),
    ({"min_trusted": 4}, make_study, RefusalCode.COHORT_TRUST),
    ({"trusted": {"b": "1" * 64}}, make_study, RefusalCode.NOISE),
    ({"noise": ("local",)}, make_study, RefusalCode.NOISE),
    ({"disclosures": ("per-site",)}, make_study, RefusalCode.DISCLOSURE),
    ({"disclosures": ("joint", "per-site")},
     lambda: altered(make_study(), task__disclosure="per-site"), RefusalCode.DISCLOSURE),
    ({"cohort_difference": ("strict",)}, make_study, RefusalCode.COHORT_CHANGED),
    ({"cohort_difference": ("allowed",)}, lambda: make_study(cohort_difference="strict"), RefusalCode.COHORT_CHANGED),
    ({"masks": ("complete",)}, lambda: crowd(66, 60), RefusalCode.MASKS),
    ({"units": ("subject",)}, make_study, RefusalCode.UNIT),
    ({"units": ("record",)}, lambda: altered(make_study(), privacy__unit="subject"), RefusalCode.UNIT),
    ({"max_epsilon": 0.5}, make_study, RefusalCode.EPSILON),
    ({"max_delta": 1e-6}, make_study, RefusalCode.EPSILON),
    ({"max_epsilon": 5.0}, lambda: make_study(delta=1.1e-3), RefusalCode.EPSILON),
    ({"smallest_cell": 10}, make_study, RefusalCode.DISCLOSURE),
    ({"study_days": 1}, lambda: altered(make_study(), expires=1_800_000_000 + 86401), RefusalCode.STUDY_INVALID),
    ({}, lambda: altered(make_study(), dataset="elsewhere"), RefusalCode.DATASET),
    ({}, lambda: altered(make_study(), weights={"a": 1, "b": 1, "c": 2}), RefusalCode.WEIGHTS),
    ({}, lambda: altered(make_study(), privacy__epsilon=0.9), RefusalCode.STUDY_INVALID),
    ({}, lambda: altered(make_study(), privacy__epsilon=None), RefusalCode.STUDY_INVALID),
    ({"noise": ("none",)}, lambda: altered(make_study(epsilon=None), privacy__epsilon=1.0), RefusalCode.STUDY_INVALID),
    ({}, lambda: altered(make_study(), privacy__unit="subject"), RefusalCode.UNIT),  # no column tells subjects apart
]  # fmt: skip


@pytest.mark.parametrize(("policy", "study", "code"), FLOORS)
def test_each_floor_alone(policy: dict[str, Any], study: Callable[[], Study], code: RefusalCode) -> None:
    assert codes(study(), make_config(subject="patient" if "units" in policy else None, **policy)) == [code]


def test_a_column_of_subjects_lets_their_unit_in() -> None:
    study = altered(make_study(), privacy__unit="subject")
    assert codes(study, make_config(subject="patient")) == []


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("path", ["records.csv", "records.data", "records.PARQUET", "records.npz"])
def test_whether_a_csv_file_names_its_columns_is_the_sites_word(path: str, said: bool) -> None:
    """No file is there: whoever looked into one would let its first record decide."""
    bare = make_study().data.model_copy(update={"header": False, "order": ("x0", "x1", "y")})
    study = altered(make_study(), data=bare.model_dump(mode="json"))
    found = faults(study, make_config(path=path, header=said))
    assert [fault.code for fault in found] == ([RefusalCode.DATASET] if said and path.endswith(("csv", "data")) else [])
    if found:
        assert f"datasets.{DATASET}.header" in found[0].advice
        assert "first line holds records; its owner, that it names the columns" in found[0].message
        assert codes(make_study(), make_config(path=path, header=False)) == [RefusalCode.DATASET]


def test_local_noise_needs_no_pins() -> None:
    study = make_study(noise="local")
    assert codes(study, make_config(trusted={})) == []
    assert codes(make_study(), make_config(trusted={})) == [RefusalCode.NOISE]


def test_pins_are_needed_where_more_than_one_share_is_counted() -> None:
    """Three sites less one colluder are two honest shares; less two, each site bears the noise alone and needs no pin."""
    for colluders, expected in ((1, [RefusalCode.NOISE]), (2, []), (3, [])):
        study = altered(make_study(), privacy__assumed_colluders=colluders)
        for pins in ({"b": "1" * 64}, {}):
            assert codes(study, make_config(trusted=pins)) == expected
        assert codes(study, make_config()) == []


def test_a_site_that_is_not_invited() -> None:
    found = list(study_faults(AgreedStudy(make_study()), "ana", make_config(trusted={"a": "3" * 64, **PINNED}), "z", None))
    assert [fault.code for fault in found] == [RefusalCode.STUDY_INVALID]


def test_cost_is_held_at_the_budgets_delta() -> None:
    """At a smaller delta the same noise costs more; the study's own delta counts only without a budget."""
    study = make_study(delta=1e-3)
    assert study_epsilon(study, 1e-3) <= 1.0 < study_epsilon(study, 1e-5)
    assert codes(study, make_config(), delta=1e-5) == [RefusalCode.EPSILON]
    assert codes(study, make_config(), delta=None) == []


def test_everything_that_is_broken_is_said_at_once() -> None:
    """One refusal names every rule with its figures and what to do; its codes are each once and in the list's order."""
    config = make_config(
        methods=("fedcgs",), tasks=("class-moments",), min_cohort=5, min_trusted=4, noise=("local",), trusted={},
        cohort_difference=("strict",), units=("subject",), max_epsilon=0.25,
    )  # fmt: skip
    study = altered(make_study(), weights={"a": 2, "b": 1, "c": 1}, dataset="elsewhere")
    refusal = Refusal.of(faults(study, config))
    assert refusal is not None
    expected = {
        RefusalCode.METHOD, RefusalCode.DATASET, RefusalCode.NOISE, RefusalCode.COHORT_SMALL,
        RefusalCode.COHORT_TRUST, RefusalCode.COHORT_CHANGED, RefusalCode.EPSILON, RefusalCode.UNIT, RefusalCode.WEIGHTS,
        RefusalCode.TASK,
    }  # fmt: skip
    assert set(refusal.codes) == expected
    assert list(refusal.codes) == [code for code in RefusalCode if code in expected]
    assert refusal.code is refusal.codes[0]
    for figure in (
        "epsilon 1; policy.max_epsilon is 0.25",
        "names 3 sites; policy.min_cohort is 5",
        "below min_trusted 4",
    ):
        assert figure in refusal.message
    assert "Not pinned: b, c." in refusal.advice
    assert codes(study, config, "bob") == [RefusalCode.ANALYST]  # who is not accepted learns nothing of the policy
    assert len(refusal.reasons) == 11  # noise is refused for its kind and for its pins


def test_a_task_that_nobody_knows_is_one_fault_among_others() -> None:
    study = altered(make_study(), task__task="no-such-task")
    assert codes(study, make_config(tasks=("no-such-task",), methods=())) == [RefusalCode.METHOD, RefusalCode.STUDY_INVALID]


def test_too_little_noise_to_be_drawn() -> None:
    """A share below 4 grid units is refused at enrolment, not in the first round."""
    study = altered(make_study(method="fedcgs"), task__grid=1, task__variance=20, privacy__epsilon=1e4)
    assert set(codes(study, make_config(max_epsilon=1000))) == {RefusalCode.PRECISION}


REASONS = st.lists(
    st.builds(Refusal, st.sampled_from(RefusalCode), st.sampled_from(["x", "y", "z"]), st.sampled_from(["", "do"]))
)


@given(REASONS)
def test_refusals_are_joined_without_loss(reasons: list[Refusal]) -> None:
    joined = Refusal.of(reasons)
    if joined is None:
        assert reasons == []
        return
    given_pairs = {(reason.code, reason.message) for reason in reasons}
    assert {(reason.code, reason.message) for reason in joined.reasons} == given_pairs
    assert len(joined.reasons) == len(given_pairs)
    assert list(joined.codes) == [code for code in RefusalCode if any(reason.code is code for reason in reasons)]
    assert joined.code is joined.codes[0]
    again = Refusal.of([joined, *reasons])
    assert again is not None
    assert [str(reason) for reason in again.reasons] == [str(reason) for reason in joined.reasons]
    assert json.dumps(joined.message)


def test_the_order_of_reasons_tells_nothing() -> None:
    first, second = Refusal(RefusalCode.UNIT, "u"), Refusal(RefusalCode.METHOD, "m")
    one, two = Refusal.of([first, second]), Refusal.of([second, first])
    assert one is not None
    assert two is not None
    assert (one.code, one.codes, one.message) == (two.code, two.codes, two.message)
    assert Refusal.of([first]) is first
    assert Refusal.of([]) is None


def test_a_person_may_have_several_rows_of_a_query() -> None:
    """Then a study protects persons, unless the site says that nobody has two; a query knows no header either."""
    query = {"source": "sql", "query": "SELECT 1", "files": {"t": "t.parquet"}}
    joined = DatasetConfig.model_validate(query | {"subject": "who"})
    alone = DatasetConfig.model_validate(query | {"joined": False})
    for dataset, unit, expected in (
        (joined, "record", [RefusalCode.UNIT]),
        (joined, "subject", []),
        (alone, "record", []),
        (alone, "subject", [RefusalCode.UNIT]),
    ):
        config = make_config().model_copy(update={"datasets": {DATASET: dataset}})
        assert codes(make_study(method="fedcgs", unit=unit), config) == expected
    config = make_config().model_copy(update={"datasets": {DATASET: alone}})
    assert codes(altered(make_study(), data__header=False, data__order=["x0", "x1", "y"]), config) == []


EARLIER = Policy(
    methods=(
        "statistics", "pca", "slot-align", "o-fedavg", "fedcgs", "fedpft", "fedsgd", "fedavg", "hfedatm", "ggeur",
        "federated-evaluation",
    ),
    tasks=(
        "statistics", "gaussian-moments", "class-moments", "prototypes", "class-mixtures", "local-training",
        "gradient", "grams", "feature-means", "power-moments", "evaluation", "barycenter-step", "two-way-step",
        "aligned-moments", "within-moments",
    ),
)  # fmt: skip
"""What `veilsum participant init` of 0.1 and 0.2 wrote into a site's configuration."""


def test_an_earlier_versions_configuration_is_told_what_it_refuses() -> None:
    """It refused the plainest study with every check green."""
    assert [name for name, _, _ in lacking_tasks(EARLIER)] == ["statistics", "federated-evaluation"]
    assert [name for name, _, _ in former_tasks(EARLIER)]
    ((_, told, advice),) = lacking_tasks(EARLIER.model_copy(update={"methods": ("statistics",)}))
    assert "no study of it can run here" in told
    assert "List 'tables' in policy.tasks" in advice
    followed = EARLIER.model_copy(update={"tasks": (*EARLIER.tasks, "tables")})
    assert not list(lacking_tasks(followed))
    assert not list(lacking_tasks(Policy()))


@pytest.mark.parametrize("name", METHODS)
def test_a_method_without_any_of_its_tasks_is_named(name: str) -> None:
    for group in NEEDED[name]:
        policy = Policy(methods=(name,), tasks=tuple(task for task in TASK_NAMES if task not in group))
        assert [found for found, _, _ in lacking_tasks(policy)] == [name]


def test_a_method_or_task_that_no_version_has_is_named() -> None:
    """A slip in either list allowed nothing, and every check was green."""
    policy = Policy(methods=("statistics", "regresion"), tasks=("tables", "tabels"))
    assert list(lacking_tasks(policy)) == [("regresion", "this version has no such method", "Did you mean 'regression'?")]
    assert list(former_tasks(policy)) == [("tabels", "this version has no such task", "Did you mean 'tables'?")]


def test_names_of_tasks_are_those_that_are_registered() -> None:
    """A site's policy knows names, and no task's code."""
    assert tuple(sorted(TASKS, key=lambda name: TASKS[name].kind == "derived")) == TASK_NAMES
    assert frozenset(name for name, task in TASKS.items() if task.disclosures == ("joint",)) == JOINT_ONLY
    assert {task.disclosures for task in TASKS.values()} <= {("joint",), ("joint", "per-site")}
    assert not {*FORMER} & {*TASKS}
