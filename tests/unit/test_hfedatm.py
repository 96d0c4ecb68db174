"""The method hfedatm: stations against fedavg, merges against means and least squares, who takes part, and what it costs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.linalg import lstsq

from evaluations import hfedatm as evaluation
from support.federation import make_bed, make_request, schema_of
from support.networks import permute
from support.studies import Watched, agreed, complete
from veilsum.compile import PrivacyRequest, StudyRequest
from veilsum_aggregation.arrays import Floats
from veilsum_coordinator.methods import METHODS
from veilsum_coordinator.methods.hfedatm import GRAMS
from veilsum_coordinator.parts.local_rounds import LOCAL
from veilsum_node.errors import ConfigurationError
from veilsum_privacy.accounting.accountant import epsilon_of
from veilsum_privacy.accounting.figures import rdp_epsilon
from veilsum_privacy.accounting.prices import declared_event
from veilsum_privacy.results.result import Result
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.base import Records
from veilsum_privacy.training.arrays import MODEL
from veilsum_privacy.training.models import ModelSpec, build_architecture, resolve_model
from veilsum_privacy.training.objectives.sr import Probabilistic

WIDTH, K = 6, 3
SITES = ("a", "b", "c", "d", "e")
STATIONS = {"north": ["a", "b"], "south": ["c", "d", "e"]}
LINEAR = {"name": "linear", "options": {"scale": 0.5, "bias": 0.7}}
MLP = {"name": "mlp", "options": {"hidden": 8}}
LENET = {"name": "lenet5", "inputs": [1, 12, 12], "options": {"conv1": 3, "conv2": 4, "fc1": 8, "fc2": 6}}
DATA = Path(__file__).parents[3] / "shared" / "data"


def compiled(method: str = "hfedatm", width: int = WIDTH, sites: tuple[str, ...] = SITES, **parameters: Any) -> Study:
    privacy = parameters.pop("privacy", {"noise": "none"})
    own: dict[str, Any] = {"stations": STATIONS, "model": MLP, "learning_rate": 0.2, "batch": 1000, "rounds": 2}
    if method != "hfedatm":
        del own["stations"]
    request = StudyRequest(
        name="s",
        method=method,
        dataset="d",
        data=schema_of(width, K, max_records=60),
        parameters=own | parameters,
        privacy=PrivacyRequest(**{"min_cohort": 2, **privacy}),
    )
    return agreed(request, sites)


def records(width: int = WIDTH, n: int = 60, sites: tuple[str, ...] = SITES) -> dict[str, Records]:
    """Three classes; the stations' records lie in other places."""
    rng = np.random.default_rng(4)
    means, found = rng.normal(0.0, 0.5, (K, width)), {}
    for name in sites:
        y = rng.integers(0, K, n)
        x = means[y] + rng.normal(0.0, 0.3, (n, width)) + (0.3 if name in STATIONS["south"] else -0.3)
        found[name] = complete(x.clip(-1.0, 1.0), y)
    return found


def run(study: Study, sites: Mapping[str, Records] | None = None) -> tuple[Result, Watched]:
    watched = Watched(study, records(study.data.width) if sites is None else sites)
    result = METHODS[study.method].run(watched)
    json.dumps(result.summary, allow_nan=False)
    return result, watched


def model(result: Result) -> dict[str, Floats]:
    return {name: array for name, array in result.arrays.items() if name.startswith(MODEL)}


def station_models(**parameters: Any) -> list[dict[str, Floats]]:
    """What the method fedavg makes of each station's sites alone."""
    found = []
    for members in STATIONS.values():
        own = {name: site for name, site in records().items() if name in members}
        study = compiled("fedavg", sites=tuple(members), **parameters)
        found.append(model(run(study, own)[0]))
    return found


@pytest.mark.parametrize("fot", [False, True])
def test_a_merge_is_the_mean_of_stations_by_their_numbers_of_clients(fot: bool) -> None:
    """One merge at the end of full-batch rounds, in which no order matters; from a shared start FOT moves nothing."""
    study = compiled(rounds=3, merge={"regmean": False, "filters": fot, "units": True, "every": 3})
    result, watched = run(study)
    north, south = station_models(rounds=3)
    for name, array in model(result).items():
        np.testing.assert_allclose(array, (2 * north[name] + 3 * south[name]) / 5, atol=1e-9)
    assert [merge["round"] for merge in result.summary["merges"]] == [3]
    assert result.summary["merges"][0]["moved"] == 0.0
    assert [release.label for release in watched.releases] == [LOCAL] * 6


@pytest.mark.sampled(5)
@pytest.mark.parametrize("objective", ["none", "prox", "sr", "iir"])
def test_from_a_shared_start_fot_equals_the_average(objective: str) -> None:
    sites = records(144)
    found = []
    for fot in (False, True):
        parameters: dict[str, Any] = {
            "model": LENET,
            "objective": {"name": objective},
            "learning_rate": 0.05,
            "batch": 30,
            "seed": 3,
        }
        study = compiled(width=144, merge={"regmean": False, "filters": fot, "units": fot}, **parameters)
        found.append(run(study, sites)[0])
    assert all(merge["moved"] == 0.0 for merge in found[1].summary["merges"])
    assert len(found[1].summary["merges"]) == 2
    for name, array in model(found[0]).items():
        np.testing.assert_array_equal(array, model(found[1])[name])


def test_independent_stations_begin_apart_and_are_merged_once() -> None:
    sites, found = records(144), {}
    for fot in (False, True):
        study = compiled(width=144, model=LENET, start="independent", merge={"regmean": False, "filters": fot}, rounds=2)
        found[fot], _ = run(study, sites)
        assert [merge["round"] for merge in found[fot].summary["merges"]] == [2]
    assert found[False].summary["merges"][0]["moved"] == 0.0
    assert found[True].summary["merges"][0]["moved"] > 0.0
    shared = run(compiled(width=144, model=LENET, merge={"regmean": False}, rounds=2), sites)[0]
    assert not np.allclose(model(shared)["model.head.weight"], model(found[False])["model.head.weight"])


def test_regmean_is_least_squares_on_the_stations_own_inputs() -> None:
    """One linear layer: min over W of the squared distance to each station's scores on its clipped inputs."""
    parameters: dict[str, Any] = {"model": LINEAR, "rounds": 1, "epochs": 5}
    result, watched = run(compiled(merge={"alpha": 1.0}, gram_clip=0.9, **parameters))
    left, right = [], []
    for members, own in zip(STATIONS.values(), station_models(**parameters), strict=True):
        weights = np.column_stack([own["model.head.weight"], own["model.head.bias"]])
        for name in members:
            u = np.column_stack([0.5 * records()[name].features, np.full(60, 0.7)])
            u *= np.minimum(1.0, 0.9 / np.linalg.norm(u, axis=1))[:, None]
            left.append(u)
            right.append(u @ weights.T)
    expected = lstsq(np.concatenate(left), np.concatenate(right))[0].T
    found = model(result)
    fused = np.column_stack([found["model.head.weight"], found["model.head.bias"]])
    np.testing.assert_allclose(fused, expected, atol=2e-4)
    mean = np.mean([own["model.head.weight"] for own in station_models(**parameters)], axis=0)
    assert np.abs(fused[:, :-1] - mean).max() > 0.01, "the fused layer is not the mean"
    assert [(release.label, release.cohort) for release in watched.releases[2:]] == [
        (GRAMS, ("a", "b")),
        (GRAMS, ("c", "d", "e")),
    ]


@pytest.mark.parametrize("inputs", ["stations", "average"])
def test_a_layer_behind_others_is_fused_on_the_inputs_that_are_asked_for(inputs: str) -> None:
    """The head of a perceptron against least squares, on what each station's hidden layer puts out, or their mean's does."""
    parameters: dict[str, Any] = {"model": MLP, "rounds": 1, "epochs": 20}
    merge = {"alpha": 1.0, "inputs": inputs}
    result, _ = run(compiled(merge=merge, layers=["head"], gram_clip=2.0, **parameters))
    own = station_models(**parameters)
    mean = {name: (2 * own[0][name] + 3 * own[1][name]) / 5 for name in own[0]}
    left, right = [], []
    for members, station in zip(STATIONS.values(), own, strict=True):
        reads = station if inputs == "stations" else mean
        weights = np.column_stack([station["model.head.weight"], station["model.head.bias"]])
        for name in members:
            x = records()[name].features
            hidden = np.maximum(x @ reads["model.features.hidden.weight"].T + reads["model.features.hidden.bias"], 0.0)
            u = np.column_stack([hidden, np.ones(60)])
            left.append(u * np.minimum(1.0, 2.0 / np.linalg.norm(u, axis=1))[:, None])
            right.append(left[-1] @ weights.T)
    found = model(result)
    np.testing.assert_allclose(found["model.features.hidden.weight"], mean["model.features.hidden.weight"], atol=1e-9)
    fused = np.column_stack([found["model.head.weight"], found["model.head.bias"]])
    expected = lstsq(np.concatenate(left), np.concatenate(right))[0].T
    x = np.concatenate(left)
    np.testing.assert_allclose(x @ fused.T, x @ expected.T, atol=2e-3)


def test_by_default_a_shared_start_fuses_the_first_layer_on_the_means_inputs() -> None:
    chosen = {}
    for start in ("shared", "independent"):
        parameters = compiled(width=144, model=LENET, start=start).parameters
        chosen[start] = parameters["merge"]["inputs"], tuple(parameters["layers"])
    assert chosen == {
        "shared": ("average", ("features.fc1",)),
        "independent": ("stations", ("features.fc1", "features.fc2", "head")),
    }


@pytest.mark.parametrize("noise", ["none", "distributed"])
def test_a_station_is_summed_by_itself_and_pays_for_its_own_rounds_alone(noise: str) -> None:
    privacy = {"noise": "none"} if noise == "none" else {"noise": noise, "epsilon": 20.0}
    study = compiled(rounds=3, station_rounds=2, merge={"every": 2}, privacy=privacy, local_steps=2)
    result, watched = run(study)
    counted = [(release.label, release.cohort) for release in watched.releases]
    for members in STATIONS.values():
        assert counted.count((LOCAL, tuple(members))) == 6 == study.task(LOCAL).releases
        assert counted.count((GRAMS, tuple(members))) == 2 == study.task(GRAMS).releases
    assert len(counted) == 16
    assert [merge["round"] for merge in result.summary["merges"]] == [2, 3]
    if noise == "none":
        return
    grams = [release for release in watched.releases if release.label == GRAMS]
    stds = {release.cohort: release.noise_std["diagonal.features.hidden"] for release in grams}
    # Honest shares are 1 of 2 and 2 of 3: sums carry variances of 2 and 3 / 2 in units of S^2, and 16 a share.
    variance = study.task(GRAMS).variance
    assert stds["a", "b"] / stds["c", "d", "e"] == pytest.approx(np.sqrt(2 * (variance + 16) / (3 * (variance / 2 + 16))))


def test_the_budget_is_split_as_stated_and_told_in_separate_fields() -> None:
    study = compiled(rounds=4, merge={"every": 2}, privacy={"epsilon": 8.0}, local_steps=3, gram_share=0.2)
    events = [declared_event(task) for task in study.tasks]
    costs = [task.releases * task.steps * task.grid**2 / task.variance for task in study.tasks]
    assert [event.steps for event in events] == [12, 2]
    assert costs[1] / sum(costs) == pytest.approx(0.2, rel=0.01)
    told = run(study)[0].summary["epsilon"]
    assert told["training"] == pytest.approx(epsilon_of(events[:1], 1e-5, "gaussian"))
    assert told["grams"] == pytest.approx(epsilon_of(events[1:], 1e-5, "gaussian"))
    assert told["total"] == pytest.approx(study.privacy.epsilon)
    assert told["grams"] < told["training"] < told["total"] <= 8.0
    sampled = compiled(rounds=4, privacy={"epsilon": 8.0}, local_steps=3, gram_share=0.2, sampling_rate=0.25)
    events = [declared_event(task) for task in sampled.tasks]
    assert rdp_epsilon(events[1:], 1e-5) < 0.6 * rdp_epsilon(events[:1], 1e-5), "a sampled step costs less than a whole one"
    free = run(compiled(merge={"regmean": False}))[0].summary["epsilon"]
    assert (free["training"], free["grams"], free["total"]) == (None, 0.0, None)


def test_noised_grams_that_drown_leave_the_mean() -> None:
    """At an epsilon so small that nothing is left of the Grams, the ridge keeps the fused layers near the average."""
    privacy = {"epsilon": 0.5, "noise": "distributed"}
    parameters: dict[str, Any] = {"rounds": 1, "local_steps": 1, "learning_rate": 1e-6, "privacy": privacy}
    result, _ = run(compiled(gram_share=1e-5, **parameters))
    start = build_architecture(resolve_model(ModelSpec.model_validate(MLP)), WIDTH, K).initial(0)
    np.testing.assert_allclose(model(result)["model.head.weight"], start["head.weight"], atol=1e-3)
    ridges = result.summary["merges"][0]["ridges"]
    assert min(ridges.values()) > 300.0, "all records together have a trace of 300"


def test_checkpoints_hold_merged_models() -> None:
    _, watched = run(compiled(rounds=6, checkpoint_every=2, merge={"every": 1}))
    assert [summary["round"] for summary in watched.kept] == [2, 4]
    _, watched = run(compiled(rounds=6, checkpoint_every=2, merge={"every": 3}))
    assert watched.kept == []


@pytest.mark.system
def test_the_encrypted_study_is_the_plain_one(tmp_path: Path) -> None:
    sites = records(sites=("a", "b", "c", "d"))
    data = {name: (own.features, own.labels) for name, own in sites.items()}
    bed = make_bed(tmp_path, data, disclosures=("joint", "per-site"))  # as training without noise asks for
    parameters = {"model": LINEAR, "rounds": 1, "stations": {"n": ["a", "c"], "s": ["b", "d"]}}
    request = make_request(schema_of(WIDTH, K, max_records=60), "hfedatm", None, min_cohort=2)
    study = bed.compile(request.model_copy(update={"parameters": parameters}))
    local = bed.local
    encrypted = METHODS["hfedatm"].run(local.prepare(local.submit(study, bed.analyst)))
    plain, _ = run(study, sites)
    for name, array in model(plain).items():
        np.testing.assert_allclose(model(encrypted)[name], array, rtol=1e-7, atol=1e-9)  # sites round their Grams one by one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stations": {"all": list(SITES)}}, "two stations or more"),
        ({"stations": {"n": ["a"], "s": ["b", "c", "d", "e"]}}, "two members or more"),
        ({"stations": {"n": ["a", "b", "c"], "s": ["c", "d", "e"]}}, "'c' stands in 'n' and in 's'"),
        ({"stations": {"n": ["a", "b"], "s": ["c", "d"]}}, "4 participants are named, the study has 5"),
        ({"stations": {"n": ["a", "b"], "s": ["c", "d", "f"]}}, "'f' does not take part in the study"),
        ({"privacy": {"noise": "none", "min_cohort": 3}}, "min_cohort is 3"),
        ({"objective": {"name": "scaffold"}}, "does not train with the objective"),
        ({"objective": {"name": "iir"}, "privacy": {"epsilon": 8.0}}, "gradient of a whole batch"),
        ({"layers": ["fc1"]}, "no Linear layer 'fc1'"),
        ({"model": {"name": "mlp", "options": {"hidden": 4096}}, "layers": ["head"]}, "Leave|more than 1048576"),
    ],
)
def test_what_cannot_be_run_is_refused_before_it_is_submitted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        compiled(**changes)


def test_random_representations_follow_the_channels_that_the_head_reads() -> None:
    """Renumbered as the model is, FedSR's further arrays give the same losses; left as they are, they do not."""
    import torch

    from veilsum_privacy.training.arrays import flatten, load
    from veilsum_privacy.training.batches import compute_module
    from veilsum_privacy.training.objectives import ObjectiveSpec, build_objective, resolve_objective
    from veilsum_privacy.training.objectives.base import Received

    inner = build_architecture(resolve_model(ModelSpec.model_validate(LENET)), 144, K)
    objective = build_objective(resolve_objective(ObjectiveSpec(name="sr", options={"l2": 0.1, "cmi": 1.0})), inner)
    trained, rng = objective.trained(), np.random.default_rng(0)
    assert isinstance(trained, Probabilistic)
    arrays = {name: rng.normal(0.0, 0.3, shape) for name, shape in trained.shapes().items()}
    x, y = torch.tensor(rng.normal(size=(5, 144)), dtype=torch.float32), torch.tensor([0, 1, 2, 0, 1])
    orders = {group.name: rng.permutation(group.size) for group in trained.channels()}

    def divergence(values: Mapping[str, Floats]) -> Floats:
        module = compute_module(trained)
        load(module, values)
        with torch.no_grad():
            mean = module.features(x)
            std = torch.nn.functional.softplus(module.spread(mean))  # type: ignore[operator]
            centre = module.centres(torch.nn.functional.one_hot(y, K).float())  # type: ignore[operator]
            return torch.stack([std.sum(1), ((mean - centre) ** 2 / std).sum(1)]).double().numpy()

    turned = permute(arrays, trained.channels(), orders)
    np.testing.assert_allclose(divergence(turned), divergence(arrays), rtol=1e-4)
    assert not np.allclose(divergence({**arrays, **permute(arrays, inner.channels(), orders)}), divergence(arrays), rtol=1e-2)
    assert flatten(turned, trained.shapes()).shape == (trained.size,)
    assert objective.begin(Received(flatten(turned, trained.shapes()), {}, {})).loss is not None
    assert trained.linear_layers() == inner.linear_layers()


@pytest.mark.system
@pytest.mark.skipif(not (DATA / "digits4").is_dir(), reason="the digits of four origins are not in ../shared/data/digits4")
def test_the_evaluation_runs_and_its_table_has_a_row_for_every_merge(tmp_path: Path) -> None:
    options = "--seeds 1 --records 12 --tests 20 --rounds 1 --long-epochs 1 --baselines FedAvg --domains usps --epsilons 1"
    evaluation.main(["--data", str(DATA), "--out", str(tmp_path), *options.split()])
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["start"], row["merge"], row["epsilon"]) for row in rows] == [
        (start, *merge)
        for start in ("independent", "shared")
        for merge in [
            ("average", "inf"),
            ("FOT", "inf"),
            ("RegMean", "inf"),
            ("FOT + RegMean", "inf"),
            ("RegMean", "1.0"),
            *([("FOT + RegMean", "1.0")] if start == "independent" else []),
        ]
    ]
    assert all(set(row["accuracies"]) == {"mnist", "usps", "semeion", "optdigits"} for row in rows)
    noised = [row["epsilon_grams"] for row in rows if row["epsilon"] == "1.0"]
    assert noised == pytest.approx([1.0] * 3, abs=1e-6)
    first, second = (part.splitlines() for part in (tmp_path / "table.md").read_text().split("\n\n"))
    assert len(first) == len(second) == 2 + len(rows)
    regmean = next(row for row in rows if (row["start"], row["merge"], row["epsilon"]) == ("shared", "RegMean", "inf"))
    average = next(row for row in rows if (row["start"], row["merge"]) == ("shared", "average"))
    cells = [cell.strip() for cell in next(line for line in first if "shared | RegMean | inf" in line).strip("|").split("|")]
    sources = [np.mean([row["accuracies"][name] for name in ("mnist", "semeion", "optdigits")]) for row in (regmean, average)]
    assert float(cells[3]) == pytest.approx(sources[0], abs=0.06)
    assert float(cells[5]) == pytest.approx(sources[0] - sources[1], abs=0.06)
    assert float(cells[6]) == pytest.approx(regmean["accuracies"]["usps"] - average["accuracies"]["usps"], abs=0.06)
