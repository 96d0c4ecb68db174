"""Masked transport against scipy's linear programs, log-domain IPFP, enumeration of all sets, and the paper's settings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.special import logsumexp

from veilsum_aggregation.masked_transport import MaskedPlan, Subsets, pair_probabilities, solve


def scaled(values: np.ndarray) -> np.ndarray:
    return values / values.sum()


def dense(subsets: Subsets, sites: int) -> np.ndarray:
    mask = np.zeros((sites, len(subsets)), dtype=bool)
    for j in range(len(subsets)):
        mask[subsets[j], j] = True
    return mask


def least_residual(p: np.ndarray, subsets: Subsets, q: np.ndarray) -> float:
    """min |T 1 - p|_1 over plans with column sums q, by linear programming."""
    mask = dense(subsets, len(p))
    i, j = np.nonzero(mask)
    n, m, k = len(p), len(q), len(i)
    rows, columns = np.zeros((n, k)), np.zeros((m, k))
    rows[i, np.arange(k)], columns[j, np.arange(k)] = 1.0, 1.0
    equal = np.block([[rows, np.eye(n), -np.eye(n)], [columns, np.zeros((m, 2 * n))]])
    cost = np.concatenate([np.zeros(k), np.ones(2 * n)])
    result = linprog(cost, A_eq=equal, b_eq=np.concatenate([p, q]), method="highs")
    assert result.status == 0
    return float(result.fun)


def ipfp(p: np.ndarray, subsets: Subsets, q: np.ndarray, steps: int) -> np.ndarray:
    """Plan (N, M) after so many scalings of rows, then columns, in the log domain, from q_j / |A_j|; p and q positive."""
    mask = dense(subsets, len(p))
    with np.errstate(divide="ignore"):
        log_plan = np.where(mask, np.log(q / mask.sum(axis=0)), -np.inf)
    for _ in range(steps):
        log_plan += (np.log(p) - logsumexp(log_plan, axis=1))[:, None]
        log_plan += np.log(q) - logsumexp(log_plan, axis=0)
    return np.exp(log_plan)


def nearest(p: np.ndarray, subsets: Subsets, q: np.ndarray) -> np.ndarray:
    """argmin KL(p~ | p) over what is reachable: peel off the set of least q(N(I)) / p(I) by enumerating all sets."""
    mask, result = dense(subsets, len(p)), np.zeros(len(p))
    left, open_ = list(range(len(p))), np.ones(len(q), dtype=bool)
    while left:
        sets = [list(one) for size in range(1, len(left) + 1) for one in itertools.combinations(left, size)]
        ratios = [q[open_ & mask[one].any(axis=0)].sum() / p[one].sum() for one in sets]
        best = min(ratios)
        widest = max((one for one, ratio in zip(sets, ratios, strict=True) if ratio <= best + 1e-12), key=len)
        result[widest] = best * p[widest]
        open_ &= ~mask[widest].any(axis=0)
        left = [site for site in left if site not in widest]
    return result


def plan_matrix(plan: MaskedPlan, subsets: Subsets, q: np.ndarray) -> np.ndarray:
    matrix = np.zeros((len(plan.scores), len(q)))
    for j in range(len(q)):
        matrix[subsets[j], j] = q[j] * plan.weights(subsets[j])
    return matrix


def covered(sites: tuple[int, ...], subsets: Subsets, q: np.ndarray) -> float:
    return float(sum(q[j] for j in range(len(q)) if set(subsets[j].tolist()) & set(sites)))


@st.composite
def instances(draw: st.DrawFn, sites: int = 7, zeros: bool = True) -> tuple[np.ndarray, Subsets, np.ndarray]:
    n = draw(st.integers(2, sites))
    lists = draw(st.lists(st.sets(st.integers(0, n - 1), min_size=1), min_size=1, max_size=12))
    parts = st.integers(0 if zeros else 1, 20)
    p = draw(st.lists(parts, min_size=n, max_size=n).filter(any))
    q = draw(st.lists(parts, min_size=len(lists), max_size=len(lists)).filter(any))
    return scaled(np.array(p, float)), Subsets.from_lists([sorted(one) for one in lists]), scaled(np.array(q, float))


def check_certificate(p: np.ndarray, subsets: Subsets, q: np.ndarray, plan: MaskedPlan) -> None:
    """What a plan says of itself, recomputed from its weights alone."""
    matrix = plan_matrix(plan, subsets, q)
    np.testing.assert_allclose(matrix.sum(axis=0), q, rtol=0, atol=1e-13)
    np.testing.assert_allclose(matrix.sum(axis=1), plan.reached, rtol=0, atol=1e-12)
    assert plan.residual == pytest.approx(np.abs(matrix.sum(axis=1) - p).sum(), abs=1e-12)
    assert np.isfinite(plan.scores).all()
    assert plan.scores.max() == 0.0
    if plan.feasible is False:
        excess = p[list(plan.blocking)].sum() - covered(plan.blocking, subsets, q)
        assert plan.excess == pytest.approx(excess, abs=1e-12)
        assert excess > 0
        assert plan.residual >= 2 * excess - 1e-12
    else:
        assert plan.blocking == ()
        assert plan.excess == 0.0


@settings(max_examples=80, deadline=None)
@given(instances())
def test_random_masks_are_decided_as_by_linear_programming(instance: tuple[np.ndarray, Subsets, np.ndarray]) -> None:
    p, subsets, q = instance
    plan = solve(p, subsets, q, tolerance=1e-9)
    least = least_residual(p, subsets, q)
    assert plan.feasible is not None
    assert plan.feasible == (least < 1e-8)
    assert plan.residual == pytest.approx(least, abs=1e-8)
    check_certificate(p, subsets, q, plan)
    if not plan.feasible:
        assert 2 * plan.excess == pytest.approx(least, abs=1e-8)


@st.composite
def hostile_masses(draw: st.DrawFn) -> tuple[np.ndarray, Subsets, np.ndarray]:
    """Importance and probabilities of most different sizes, 0 and below what float64 adds up to 1 included."""
    sites = draw(st.integers(1, 6))
    lists = draw(st.lists(st.sets(st.integers(0, sites - 1), min_size=1), min_size=1, max_size=6))
    sizes, chances = [0.0, 1.0, 5.0, 0.37, 1e-6, 1e-9, 1e-12, 1e-14, 1e-300], [0.0, 1.0, 3.0, 1e-9, 1e-15]
    p = draw(st.lists(st.sampled_from(sizes), min_size=sites, max_size=sites).filter(any))
    q = draw(st.lists(st.sampled_from(chances), min_size=len(lists), max_size=len(lists)).filter(any))
    return scaled(np.array(p)), Subsets.from_lists([sorted(one) for one in lists]), scaled(np.array(q))


@settings(max_examples=150, deadline=None)
@given(hostile_masses())
@example(
    (
        scaled(np.array([1.0, 1e-12, 0.0])),
        Subsets.from_lists([[1, 2], [0, 1], [0, 1, 2], [0]]),
        scaled(np.array([1.0, 3.0, 3.0, 1e-15])),
    )
)
@example(
    (
        scaled(np.array([1e-12, 1.0, 0.0, 1.0])),
        Subsets.from_lists([[1, 2, 3], [0, 1, 2, 3], [0], [1], [3]]),
        scaled(np.array([1.0, 1.0, 1.0, 3.0, 3.0])),
    )
)
@example(
    (scaled(np.array([0.0, 1e-9, 1e-6, 1e-9, 1e-6, 0.37])), Subsets.from_lists([[0, 1, 3, 4, 5], [3]]), np.array([0.75, 0.25]))
)
@example(
    (
        scaled(np.array([5.0, 1.0, 1e-6, 0.0, 1e-9])),
        Subsets.from_lists([[3, 4], [2, 3, 4], [0, 1, 2]]),
        np.array([0.5, 0.5, 0.0]),
    )
)
@example((scaled(np.array([0.0, 0.0, 0.0, 1.0, 1e-9])), Subsets.from_lists([[4]]), np.array([1.0])))
def test_masses_of_any_size_have_finite_scores(instance: tuple[np.ndarray, Subsets, np.ndarray]) -> None:
    p, subsets, q = instance
    with np.errstate(divide="raise", over="raise", invalid="raise"):
        plan = solve(p, subsets, q, tolerance=1e-9)
    sets = itertools.chain.from_iterable(itertools.combinations(range(len(p)), size) for size in range(len(p) + 1))
    most = max(p[list(some)].sum() - covered(some, subsets, q) for some in sets)  # by duality half the least residual
    assert np.isfinite(plan.scores).all()
    assert np.isfinite([plan.residual, plan.gap, plan.excess]).all()
    for number in range(len(subsets)):
        assert plan.weights(subsets[number]).sum() == pytest.approx(1.0)
    assert plan.excess <= most + 1e-12
    if most > 1e-8:
        assert plan.feasible is False


@settings(max_examples=30, deadline=None)
@given(instances(sites=6, zeros=False))
def test_what_is_reached_has_the_least_kl(instance: tuple[np.ndarray, Subsets, np.ndarray]) -> None:
    p, subsets, q = instance
    plan = solve(p, subsets, q, tolerance=1e-9)
    assert plan.gap <= 1e-9
    np.testing.assert_allclose(plan.reached, nearest(p, subsets, q), rtol=0, atol=1e-8)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 12), st.integers(2, 30))
def test_a_reachable_importance_gives_the_plan_of_ipfp(seed: int, sites: int, number: int) -> None:
    random = np.random.default_rng(seed)
    lists = [random.choice(sites, random.integers(1, min(4, sites) + 1), replace=False).tolist() for _ in range(number)]
    subsets = Subsets.from_lists([*lists, list(range(sites))])  # all sites at once connects them
    q = random.dirichlet(np.ones(len(subsets)))
    shares = [random.dirichlet(np.full(len(subsets[j]), 3.0)) for j in range(len(subsets))]
    p = np.zeros(sites)
    for j, share in enumerate(shares):
        p[subsets[j]] += q[j] * share
    plan = solve(p, subsets, q, tolerance=1e-11)
    assert plan.feasible
    check_certificate(p, subsets, q, plan)
    scaled_plan = ipfp(p, subsets, q, 500)
    assume(np.abs(scaled_plan.sum(axis=1) - p).sum() < 1e-9)  # it is slow where a plan is almost forced
    np.testing.assert_allclose(plan_matrix(plan, subsets, q), scaled_plan, rtol=0, atol=1e-6)


def test_ipfp_agrees_on_pairs() -> None:
    i, subsets = np.arange(1, 31), Subsets.all_pairs(30)
    p, q = scaled(61.0 - i), pair_probabilities(30.0 + i)
    plan, scaled_plan = solve(p, subsets, q, tolerance=1e-12), ipfp(p, subsets, q, 500)
    assert np.abs(scaled_plan.sum(axis=1) - p).sum() < 1e-10
    np.testing.assert_allclose(plan_matrix(plan, subsets, q), scaled_plan, rtol=0, atol=1e-11)
    assert plan.feasible


@pytest.mark.system
def test_an_infeasible_instance_tends_where_ipfp_tends() -> None:
    p, subsets = scaled(np.array([8.0, 5.0, 3.0, 1.0, 1.0])), Subsets.all_pairs(5)
    q = pair_probabilities(np.arange(1.0, 6.0))
    plan = solve(p, subsets, q)
    assert plan.feasible is False
    np.testing.assert_allclose(plan.reached, ipfp(p, subsets, q, 5000).sum(axis=1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("p", "q", "residual", "blocking"),
    [
        (101.0 - np.arange(1, 101), pair_probabilities(np.arange(1.0, 101.0)), 0.680, 36),
        (np.exp(-np.arange(1, 101) / 10), np.full(4950, 1 / 4950), 1.011, 18),
    ],
    ids=["regression", "mnist"],
)
def test_the_papers_settings_cannot_be_met(p: np.ndarray, q: np.ndarray, residual: float, blocking: int) -> None:
    p, subsets = scaled(p), Subsets.all_pairs(100)
    plan = solve(p, subsets, q)
    assert plan.feasible is False
    assert plan.residual == pytest.approx(residual, abs=1e-3)
    assert plan.blocking == tuple(range(blocking))
    assert plan.residual == pytest.approx(2 * plan.excess, abs=1e-9)
    assert plan.gap <= 1e-10
    check_certificate(p, subsets, q, plan)


@pytest.mark.parametrize("part", [0.98, 1.0])
def test_importance_at_the_edge_of_what_availability_allows(part: float) -> None:
    """Every set of the first k sites needs nearly all, or all, of the rounds in which one of them turns up."""
    n, k = 60, np.arange(61)
    p = part * np.diff(1 - (n - k) * (n - k - 1) / (n * (n - 1))) + (1 - part) / n
    subsets, q = Subsets.all_pairs(n), np.full(n * (n - 1) // 2, 2 / (n * (n - 1)))
    plan = solve(p, subsets, q)
    assert plan.feasible
    check_certificate(p, subsets, q, plan)


def test_a_larger_sparse_instance_with_subsets_of_ten() -> None:
    random = np.random.default_rng(5)
    subsets = Subsets.from_lists([random.choice(1000, 10, replace=False).tolist() for _ in range(5000)])
    q = random.dirichlet(np.ones(5000))
    p = np.bincount(subsets.indices, weights=(q[:, None] * random.dirichlet(np.ones(10), size=5000)).ravel(), minlength=1000)
    plan = solve(p, subsets, q)
    assert plan.feasible
    check_certificate(p, subsets, q, plan)


def test_steps_that_run_out_leave_it_undecided() -> None:
    i = np.arange(1, 101)
    p, q = scaled(201.0 - i), pair_probabilities(100.0 + i)
    plan = solve(p, Subsets.all_pairs(100), q, max_iterations=1)
    assert plan.feasible is None
    assert plan.blocking == ()
    assert plan.iterations == 1
    assert solve(p, Subsets.all_pairs(100), q).feasible


def test_sites_without_importance_or_without_rounds() -> None:
    """Site 2 has no importance, site 3 no round: nothing for the one, and for the other nothing can be done."""
    subsets, q = Subsets.from_lists([[0, 2], [0, 1], [3]]), np.array([0.5, 0.5, 0.0])
    plan = solve(np.array([0.7, 0.3, 0.0, 0.0]), subsets, q)
    assert plan.feasible
    np.testing.assert_allclose(plan.weights([0, 2]), [1.0, 0.0], atol=1e-15)
    plan = solve(np.array([0.6, 0.2, 0.0, 0.2]), subsets, q)
    assert plan.blocking == (3,)
    assert plan.excess == pytest.approx(0.2)
    np.testing.assert_allclose(plan.reached, [0.75, 0.25, 0.0, 0.0], atol=1e-10)
    plan = solve(np.array([0.0, 1.0, 0.0, 0.0]), subsets, q)  # a round of sites without importance
    assert plan.blocking == (1,)
    assert plan.excess == pytest.approx(0.5)
    np.testing.assert_allclose(plan.weights([0, 2]), [0.5, 0.5])


def test_an_order_that_starts_out_wrong() -> None:
    """Sites that nothing ties together: with steps of any length their order flips to and fro and p~ is never confirmed."""
    p, subsets, q = np.array([3.0, 1.0, 3.0, 2.0, 0.0]) / 9, Subsets.from_lists([[3], [0, 1]]), np.array([2.0, 1.0]) / 3
    plan = solve(p, subsets, q)
    assert plan.gap <= 1e-10
    np.testing.assert_allclose(plan.reached, [1 / 4, 1 / 12, 0, 2 / 3, 0], rtol=0, atol=1e-9)


def test_groups_that_never_meet() -> None:
    subsets, q = Subsets.from_lists([[0, 1], [2, 3]]), np.array([0.4, 0.6])
    assert solve(np.array([0.3, 0.1, 0.2, 0.4]), subsets, q).feasible
    plan = solve(np.array([0.3, 0.3, 0.2, 0.2]), subsets, q)
    assert plan.blocking == (0, 1)
    np.testing.assert_allclose(plan.reached, [0.2, 0.2, 0.3, 0.3], atol=1e-10)


def test_probabilities_of_pairs_drawn_in_turn() -> None:
    rates = np.array([1.0, 2.0, 0.0, 5.0])
    r = rates / rates.sum()
    counted = dict.fromkeys(itertools.combinations(range(4), 2), 0.0)
    for a, b in itertools.permutations(range(4), 2):
        counted[min(a, b), max(a, b)] += r[a] * r[b] / (1 - r[a])
    np.testing.assert_allclose(pair_probabilities(rates), list(counted.values()), rtol=1e-14)
    assert pair_probabilities(rates).sum() == pytest.approx(1.0)
    pairs = Subsets.all_pairs(4)
    assert [tuple(pairs[j].tolist()) for j in range(len(pairs))] == list(counted)


@pytest.mark.parametrize("lists", [[], [[0], []], [[0, 1, 0]], [[-1]]])
def test_subsets_that_are_none(lists: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"subset|site"):
        Subsets.from_lists(lists)


def test_arguments_that_do_not_fit() -> None:
    pairs, q = Subsets.all_pairs(3), np.full(3, 1 / 3)
    for p in (np.array([0.5, 0.6, 0.1]), np.array([1.5, -0.5, 0.0]), np.array([np.nan, 0.5, 0.5])):
        with pytest.raises(ValueError, match="importance"):
            solve(p, pairs, q)
    with pytest.raises(ValueError, match="subsets"):
        solve(q, pairs, np.array([0.5, 0.5]))
    with pytest.raises(ValueError, match="names site 2"):
        solve(np.array([0.5, 0.5]), pairs, q)
    with pytest.raises(ValueError, match="tolerance"):
        solve(q, pairs, q, tolerance=0.0)
    with pytest.raises(ValueError, match="rates"):
        pair_probabilities(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="two sites"):
        Subsets.all_pairs(1)
    with pytest.raises(IndexError):
        pairs[3]


def heavy_tails(sites: int, kind: str) -> tuple[np.ndarray, Subsets, np.ndarray]:
    """Importance of heavy tails, and ten subsets of ten for each site."""
    rng = np.random.default_rng(0)
    members = np.array([rng.choice(sites, 10, replace=False) for _ in range(10 * sites)])
    q = rng.random(len(members)) + 0.1
    drawn = {"lognormal": np.exp(2 * rng.standard_normal(sites)), "power": 1 / np.arange(1, sites + 1) ** 1.5}[kind]
    return drawn / drawn.sum(), Subsets(np.arange(0, 10 * len(members) + 1, 10), members.ravel()), q / q.sum()


@pytest.mark.system
@pytest.mark.parametrize("kind", ["lognormal", "power"])
def test_heavy_tails_end_in_few_steps_at_the_nearest_that_can_be_reached(kind: str) -> None:
    """Steps alone took 151 of these, or none of 200 sufficed. By KKT each subset gives only to those it serves worst."""
    p, subsets, q = heavy_tails(1500, kind)
    plan = solve(p, subsets, q, 1e-8)
    assert plan.feasible is False
    assert plan.gap <= 1e-8
    assert plan.iterations < 50
    assert plan.residual == pytest.approx(2 * plan.excess, abs=1e-7)
    covered = np.zeros(len(q), dtype=bool)
    covered[np.repeat(np.arange(len(q)), subsets.sizes)[np.isin(subsets.indices, plan.blocking)]] = True
    assert plan.excess == pytest.approx(p[list(plan.blocking)].sum() - q[covered].sum(), abs=1e-12)
    served = plan.reached / p
    for number in range(0, len(subsets), 7):
        members = subsets[number]
        given = served[members][plan.weights(members) > 1e-4]
        assert given.max() <= served[members].min() * (1 + 1e-4)
    for most in (1, 10):
        ended = solve(p, subsets, q, 1e-8, max_iterations=most)
        assert 2.0 * ended.excess <= plan.residual + 1e-9


def test_a_search_that_is_ended_has_its_certificate() -> None:
    p, subsets, q = heavy_tails(300, "power")
    plan = solve(p, subsets, q, 1e-8, max_iterations=2)
    assert plan.iterations == 2
    assert plan.feasible is False
    assert plan.gap > 1e-8
    whole = solve(p, subsets, q, 1e-8)
    assert 0 < plan.excess <= whole.excess + 1e-12
    assert whole.residual <= plan.residual
