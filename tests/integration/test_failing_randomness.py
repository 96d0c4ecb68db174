"""Where the operating system gives no randomness, or too little, nothing leaves a site but with all of its noise.

The n-th call for randomness of an assignment fails, and so many after it, for every n. What is uploaded then is opened.
The sites hold no records, so that it is noise alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from support.federation import make_bed, make_data, make_request, schema_of
from support.hostile import NAMES, Adversary, altered, encoded
from support.opening import own_vector
from support.randomness import RARE
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_privacy.computation.rehearsal import made_up_broadcast
from veilsum_privacy.tasks.agreed import AgreedStudy

WIDTH = 60
SAMPLED = {"steps": 2, "followed": False, "sampling_rate": 0.5, "centre": False, "gradient_clip": 0.5}
TRAINED = {"model": {"name": "linear"}, "rounds": 2, "local_steps": 2, "sampling_rate": 0.5}
METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "statistics": ({}, "distributed"),
    "fedsgd": (SAMPLED, "distributed"),
    "fedavg": (TRAINED, "local"),
}


def broken(real: Callable[[int], bytes], fails: range, how: str, calls: list[int]) -> Callable[[int], bytes]:
    """A generator whose calls of these numbers fail."""

    def urandom(count: int) -> bytes:
        calls.append(count)
        if len(calls) - 1 not in fails:
            return real(count)
        match how:
            case "raises":
                raise OSError("no randomness")
            case "is not there":
                raise NotImplementedError
            case "is empty":
                return b""
            case _:
                return real(count)[:-1]

    return urandom


@pytest.mark.parametrize("times", [1, 99])
@pytest.mark.parametrize("how", ["raises", "is not there", "is empty", "is short"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_leaves_without_its_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, how: str, times: int
) -> None:
    parameters, noise = METHODS[method]
    bed = make_bed(tmp_path, make_data(NAMES, rows=0, width=WIDTH), min_cohort=2)
    request = make_request(schema_of(WIDTH, max_records=40), method, 100.0, noise=noise, min_cohort=2)
    study = altered(bed.compile(request.model_copy(update={"parameters": parameters})), task__releases=1)
    attack = Adversary(bed, study)
    attack.set_up()
    for site in bed.sites.values():
        site.random = site.noise_random = SYSTEM_RANDOM
    label = study.tasks[0].label
    broadcast = encoded(study, label, made_up_broadcast(AgreedStudy(study).task(label))[1])
    vectors, calls, failing = [], list[int](), -1
    while failing < len(calls):
        failing += 1
        assignment = attack.assignment(number=1, attempt=failing + 1, broadcast=broadcast, label=label)
        calls.clear()
        before = len(attack.channels["a"].said)
        with monkeypatch.context() as patched:
            patched.setattr(os, "urandom", broken(os.urandom, range(failing, failing + times), how, calls))
            try:
                attack.assign("a", assignment, broadcast)
            except (OSError, NotImplementedError):
                assert len(attack.channels["a"].said) == before
        if attack.channels["a"].said[before:] and attack.channels["a"].said[-1].call == "upload":
            vectors.append(own_vector(attack, "a", failing + 1))
    attack.check_ledgers()
    assert failing > 5
    assert vectors, "the last attempt has no fault"
    plan = attack.plan(failing + 1)
    for vector in vectors[: None if plan.noise.drawn else 0]:
        spread = float((vector.astype(np.float64) ** 2).sum()) / float(plan.noise.share_variance)
        assert RARE < stats.chi2(len(vector)).cdf(spread) < 1 - RARE
    for place, vector in enumerate(vectors):
        lost = not vector.any()  # as one that computed nothing: its noise would be in what it trained
        assert lost <= (not plan.noise.drawn)
        assert lost or not any(np.array_equal(vector, other) for other in vectors[:place])
