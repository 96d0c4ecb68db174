"""Two people set a budget where the policy says so; lowering one takes one; the ledger says who and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import commands
from support.federation import DATASET, TestBed, make_bed, make_data
from veilsum_node.errors import Misuse
from veilsum_participant.protocol.budget_changes import PROPOSAL_SECONDS, change_budget, proposals
from veilsum_participant.site import Site
from veilsum_privacy.ledger import Budget, Kind
from veilsum_privacy.ledger.export import read_export, write_jsonl


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_data("ab"), budget=(1.0, 1e-5), four_eyes_budget=True)


def change(site: Site, epsilon: float | None, operator: str, reason: str = "vote 7", delta: float = 1e-5) -> int | None:
    with site.database.transaction() as connection:
        return change_budget(
            connection, site.ledger, site.config.policy, site.clock(), DATASET, epsilon, delta, adaptive="gaussian",
            reason=reason, operator=operator,
        )  # fmt: skip


def in_force(site: Site) -> Budget:
    found = site.ledger.budget(DATASET)
    assert found is not None
    return found


def rule(site: Site) -> None:
    """Let the first budget be by the rule that the changes name."""
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, DATASET, 1.0, 1e-5, reason="first", operator="IT", adaptive="gaussian")


def test_a_budget_is_raised_by_two_people(bed: TestBed) -> None:
    site = bed.sites["a"]
    rule(site)
    before = len(site.ledger.entries())
    assert change(site, 3.0, "Olga") is None
    assert in_force(site).epsilon == 1.0
    with site.database.reading() as connection:
        (waiting,) = proposals(connection, site.clock())
    assert (waiting.population, waiting.budget.epsilon, waiting.operator) == (DATASET, 3.0, "Olga")
    for again in ("Olga", " OLGA "):
        with pytest.raises(Misuse, match="2 people"):
            change(site, 3.0, again)
    assert change(site, 3.5, "Olga K") is None
    with pytest.raises(Misuse, match="2 people"):
        change(site, 3.5, "Olga \u00a0 K")
    with pytest.raises(Misuse, match="can be seen"):
        change(site, 3.5, "Olga K\u200b")
    assert change(site, 3.0, "Olga") is None
    entry = change(site, 3.0, "Pia", "the board agrees")
    assert in_force(site).epsilon == 3.0
    (last,) = site.ledger.entries(first=before + 1)
    assert (last.seq, last.kind) == (entry, Kind.BUDGET)
    assert (last.detail["operator"], last.detail["reason"]) == ("Olga and Pia", "vote 7; the board agrees")
    site.ledger.verify(authority=site.credentials.authority)
    with site.database.reading() as connection:
        assert proposals(connection, site.clock()) == []


@pytest.mark.parametrize("given", [{"reason": "because " * 200_000}, {"operator": "O" * 1001}])
def test_no_entry_is_longer_than_an_export_may_have_it(bed: TestBed, tmp_path: Path, given: dict[str, str]) -> None:
    """What is in a ledger is there for good: nobody could read an export with such a line, to verify it or to vouch by it."""
    site, before = bed.sites["a"], bed.sites["a"].ledger.head()
    with pytest.raises(Misuse, match="at most 1000 characters"):
        change(site, 0.5, **{"operator": "Olga", **given})
    assert site.ledger.head() == before
    assert change(site, 0.5, "O" * 1000, "é" * 1000) is not None
    with (tmp_path / "a.jsonl").open("w", encoding="utf-8") as stream:
        write_jsonl(site.ledger, stream)
    read_export(tmp_path / "a.jsonl").verify(authority=site.credentials.authority)


def test_another_figure_is_another_proposal(bed: TestBed) -> None:
    site = bed.sites["a"]
    rule(site)
    assert change(site, 3.0, "Olga") is None
    assert change(site, 4.0, "Pia") is None
    assert change(site, 3.0, "Olga") is None  # what Olga proposed first was replaced
    assert change(site, 3.0, "Pia", delta=1e-6) is None
    assert in_force(site).epsilon == 1.0
    assert change(site, None, "Pia") is None
    assert change(site, None, "Olga") is not None
    assert in_force(site).epsilon is None


def test_a_proposal_counts_for_a_week(bed: TestBed) -> None:
    site = bed.sites["a"]
    rule(site)
    assert change(site, 3.0, "Olga") is None
    bed.clock.now += PROPOSAL_SECONDS
    assert change(site, 3.0, "Pia") is None
    assert change(site, 3.0, "Olga") is not None
    bed.clock.now += PROPOSAL_SECONDS + 1
    assert change(site, 4.0, "Olga") is None
    bed.clock.now -= PROPOSAL_SECONDS + 1  # the clock was wrong when Olga spoke
    assert change(site, 4.0, "Pia") is None


def test_one_person_lowers_a_budget_and_nothing_waits_any_more(bed: TestBed) -> None:
    site = bed.sites["a"]
    rule(site)
    assert change(site, 3.0, "Olga") is None
    assert change(site, 0.5, "Pia") is not None
    assert in_force(site).epsilon == 0.5
    assert change(site, 3.0, "Pia") is None
    assert change(site, 0.5, "Pia", delta=1e-4) is None


def test_without_the_rule_one_person_is_enough(tmp_path: Path) -> None:
    site = make_bed(tmp_path, make_data("ab"), budget=(1.0, 1e-5)).sites["a"]
    assert change(site, 3.0, "Olga") is not None


def test_the_command_says_that_somebody_else_is_needed(bed: TestBed, capsys: pytest.CaptureFixture[str]) -> None:
    site = bed.sites["a"]
    folder = site.config.state.parent
    config = folder / "participant.toml"
    records = folder / "records.npz"
    site.database.close()
    config.write_text(
        f'coordinator = "localhost:1"\nidentity = "{site.config.identity}"\nstate = "{site.config.state}"\n'
        f'[datasets.{DATASET}]\npath = "{records}"\n[policy]\nfour_eyes_budget = true\n'
    )
    bed.clock.now = 0
    words = ("ledger", "budget", "set", DATASET, "--epsilon", "3", "--delta", "1e-5", "--config", config, "--reason", "vote")
    first = commands.shown(capsys, *words, "--operator", "Olga")
    assert (first["waits_for_second"], first["epsilon"]) == (True, 1.0)
    second = commands.shown(capsys, *words, "--operator", "Pia")
    assert (second["waits_for_second"], second["epsilon"]) == (False, 3.0)
