"""What a site's check says of a study before the site's ledger exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from veilsum_deploy.checks import Outcome, SiteCheck, StudyTerms
from veilsum_participant.config import load_participant_config


def study_checks(directory: Path, budget: str, epsilon: float | None, noise: str = "distributed") -> list[Outcome]:
    (directory / "participant.toml").write_text(
        f"""coordinator = "localhost:1"
[datasets.records]
path = "records.csv"
[budgets.records]
epsilon = {budget}
delta = 1e-5
[policy]
noise = ["distributed", "none"]
"""
    )
    config = load_participant_config(directory / "participant.toml")
    terms = StudyTerms("statistics", "records", noise, epsilon)
    return [item.status for item in SiteCheck(config, lambda: 1_800_000_000, study=terms).run() if item.check == "study"]


@pytest.mark.parametrize(
    ("budget", "epsilon", "noise", "expected"),
    [
        ("0.5", 0.5, "distributed", [Outcome.OK]),
        ("0.5", 0.75, "distributed", [Outcome.OK, Outcome.WARNING]),
        ("0.5", None, "none", [Outcome.OK, Outcome.WARNING]),
        ('"unlimited"', 0.75, "distributed", [Outcome.OK]),
        ('"unlimited"', None, "none", [Outcome.OK]),
    ],
)
def test_a_study_beyond_the_first_budget_is_warned_of(
    tmp_path: Path, budget: str, epsilon: float | None, noise: str, expected: list[Outcome]
) -> None:
    assert study_checks(tmp_path, budget, epsilon, noise) == expected
