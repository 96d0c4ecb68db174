"""What a whole study of every method is charged, against an accountant that knows only what the study declares; and the noise
and the samples that sites really drew, against what is charged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from support.durable import NAMES, make_trial
from support.durable_studies import CLEAR, STUDIES
from support.federation import DATASET
from veilsum_privacy.computation import contribution, rehearsal
from veilsum_privacy.ledger import Kind, Mechanism
from veilsum_privacy.mechanism import noise, steps
from veilsum_privacy.mechanism.noise import ROUNDING_VARIANCE
from veilsum_privacy.securesum import agreed
from veilsum_privacy.study.study import Study
from veilsum_privacy.training.objectives import OBJECTIVES

LIKE_FEDAVG = {f"fedavg {name}" for name in OBJECTIVES if name != "proto"}
"""Studies whose objective releases nothing beside what every training does."""

Releases = Counter[tuple[float, float, int]]
"""How often each was released: sigma / D, sampling rate, noised steps."""


def declared(study: Study) -> Releases:
    """Every release that costs something, from the declarations alone."""
    found: Releases = Counter()
    for task in study.tasks:
        if task.variance:
            found[math.sqrt(task.variance) / task.grid, task.sampling_rate, task.local_steps or 1] += task.releases
    return found


def oracle(releases: Releases, delta: float) -> tuple[float, float]:
    """Bounds of epsilon: what is possible, and what the rule may take.

    Without sampling it is one Gaussian mechanism's (Balle and Wang 2018, theorem 8), and the rule takes a tenth of delta and
    four grid units of variance more. With it, it is that of privacy loss distributions, and the rule takes a Gaussian pair in
    place of the steps, which is dear for the few and rare ones of these studies.
    """
    if not releases:
        return 0.0, 0.0
    if all(rate == 1 for _, rate, _ in releases):
        mu = math.sqrt(sum(each * count / sigma**2 for (sigma, _, each), count in releases.items()))

        def excess(epsilon: float) -> float:
            return float(ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon + log_ndtr(-mu / 2 - epsilon / mu))) - delta

        least = float(brentq(excess, 0.0, 1e4))
        return least, 1.03 * least
    whole = None
    for (sigma, rate, each), count in releases.items():
        one = pld.from_gaussian_mechanism(
            sigma, sampling_prob=rate, value_discretization_interval=1e-3, pessimistic_estimate=False
        )
        one = one.self_compose(each * count)
        whole = one if whole is None else whole.compose(one)
    assert whole is not None
    least = float(whole.get_epsilon_for_delta(delta))
    return least * (1 - 1e-4), 1.5 * least  # losses lie on a grid


def released(mechanism: Mechanism) -> tuple[float, float, int]:
    return math.sqrt(mechanism.noise.variance) / mechanism.sensitivity, mechanism.sampling_rate, mechanism.steps


class Drawn:
    """Counts what sites draw, and lets them; what rehearsals draw for made-up records is not charged and not counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._rehearsing = False
        real = rehearsal.compute_sum

        def rehearsed(*arguments: Any) -> Any:
            self._rehearsing = True
            try:
                return real(*arguments)
            finally:
                self._rehearsing = False

        monkeypatch.setattr(rehearsal, "compute_sum", rehearsed)
        self.variances: Counter[Fraction] = Counter()
        self.rates: Counter[float] = Counter()
        for module in (noise, steps):
            self._count(monkeypatch, module, "discrete_gaussian", self.variances)
        for module in (contribution, steps):
            self._count(monkeypatch, module, "poisson_sample", self.rates)
        around = agreed.gaussian_around

        def drawn(centres: Any, variance: Fraction, source: Any) -> Any:
            self.variances[variance - ROUNDING_VARIANCE] += not self._rehearsing
            return around(centres, variance, source)

        monkeypatch.setattr(agreed, "gaussian_around", drawn)

    def _count(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, counter: Counter[Any]) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def counted(first: Any, *rest: Any) -> Any:
            counter[first] += not self._rehearsing
            return real(first, *rest)

        monkeypatch.setattr(module, name, counted)


@pytest.mark.sampled(13)
@pytest.mark.filterwarnings("ignore:Optimal order")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.system if name in LIKE_FEDAVG else [])
        for name in STUDIES
        if name.removeprefix("fedavg ") not in CLEAR
    ],
)
def test_a_whole_study_is_charged_what_it_declares_and_drew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trial = make_trial(tmp_path, STUDIES[name])
    drawn, study = Drawn(monkeypatch), trial.study
    key = trial.submit()
    trial.finish(key)
    delta, whole = study.privacy.delta, declared(study)
    bounds = oracle(whole, delta)
    some = study.parameters.get("participation") is not None
    variances: Counter[Fraction] = Counter()
    rates: Counter[float] = Counter()
    for site in trial.bed.sites.values():
        mechanisms = [entry.mechanism for entry in site.ledger.entries(kind=Kind.CHARGE)]
        paid = [item for item in mechanisms if item is not None and item.noise.kind not in ("none", "kept")]
        charges = Counter(map(released, paid))
        spent, _ = site.ledger.verify().spending[DATASET]
        after = site.ledger.headroom(DATASET, {}).after
        if study.privacy.noise == "none":
            assert (spent, after, charges) == (math.inf, math.inf, Counter())
            continue
        assert charges <= whole
        assert some or charges == whole
        least, most = oracle(charges, delta)
        assert least <= spent == after
        assert some or after <= most
        assert bounds[0] <= study.privacy.epsilon <= bounds[1]
        assert after <= study.privacy.epsilon * (1 + 1e-9)
        for item in paid:
            variances[item.noise.share_variance] += item.steps
            rates[item.sampling_rate] += item.steps
    assert drawn.variances == variances
    assert {rate: count for rate, count in drawn.rates.items() if rate < 1} == {
        rate: count for rate, count in rates.items() if rate < 1
    }
    assert bool(variances) == (study.privacy.noise != "none")
    assert len(trial.bed.sites) == len(NAMES)
