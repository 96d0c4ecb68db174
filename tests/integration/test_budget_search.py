"""What an analyst can find out about a site's budget by submitting studies to a coordinator who helps: so many bits a day."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.federation import DATASET, make_bed, make_data, make_request, schema_of
from support.hostile import Adversary, altered
from veilsum.local.federation import as_directive
from veilsum_node.errors import RefusalCode
from veilsum_node.identity import Authority, Credentials, Role, load_credentials, new_key_and_csr
from veilsum_node.identity.tls import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from veilsum_participant.protocol.decisions import approve
from veilsum_participant.settings.dataset_config import DatasetConfig
from veilsum_participant.telemetry.metrics import SiteMetrics
from veilsum_privacy.ledger import Kind
from veilsum_proto import federation_pb2 as pb

DAY = 86_400
MOST = 3
"""``policy.max_budget_answers``."""


class Searcher:
    """An analyst and a coordinator who look for what is left of a budget, by studies of any price."""

    def __init__(self, directory: Path, budget: float | None = 2.0, **policy: Any) -> None:
        self.attack = Adversary(make_bed(directory, make_data(), budget=(budget, 1e-5), max_budget_answers=MOST, **policy))
        self._count = 0

    def prepare(self, epsilon: float, *, releases: int = 1, dataset: str = DATASET) -> None:
        """Turn to a new study that costs so much for its one release, and declares so many."""
        self._count += 1
        study = self.attack.bed.compile(make_request(schema_of(2), epsilon=epsilon, min_cohort=2))
        changes: dict[str, Any] = {"nonce": f"{self._count:032x}", "dataset": dataset, "privacy__epsilon": 1000.0}
        self.attack.use(altered(study, task__releases=releases, **changes))

    def ask(self, epsilon: float, *, releases: int = 1, dataset: str = DATASET, end: bool = True) -> RefusalCode | None:
        """Whether site a enrols in a new study; ended at once, so that nothing stays promised to it."""
        self.prepare(epsilon, releases=releases, dataset=dataset)
        said = self.attack.enrol("a")
        if said.call == "refuse":
            return said.refused
        if end:
            self.attack.tell("a", pb.DIRECTIVE_KIND_END)
        return None

    def bisect(self, steps: int) -> tuple[list[RefusalCode | None], float, float]:
        """Halve between 0 and 4 as often; the answers, and what the budget lies between as far as they tell."""
        low, high, answers = 0.0, 4.0, []
        for _ in range(steps):
            middle = (low + high) / 2
            answers.append(self.ask(middle))
            if answers[-1] is None:
                low = middle
            elif answers[-1] is RefusalCode.BUDGET:
                high = middle
        return answers, low, high


@pytest.fixture
def searcher(tmp_path: Path) -> Iterator[Searcher]:
    made = Searcher(tmp_path)
    yield made
    made.attack.check_ledgers()


def test_a_bisection_ends_after_so_many_answers(tmp_path: Path) -> None:
    """Two budgets that differ by less than the answers resolve are told apart by nothing, however often one asks."""
    found = []
    for number, budget in enumerate((2.001, 2.0005)):
        searcher = Searcher(tmp_path / str(number), budget)
        answers, low, high = searcher.bisect(4 * MOST)
        assert answers[:MOST].count(None) + answers[:MOST].count(RefusalCode.BUDGET) == MOST
        assert answers[MOST:] == [RefusalCode.ASKED] * (3 * MOST)
        assert math.isclose(high - low, 4.0 / 2**MOST)
        found.append(answers)
    assert found[0] == found[1]


def test_the_budget_is_not_looked_at_beyond_the_bound(searcher: Searcher) -> None:
    """One that fits and one that never would hear the same, and each stands in the ledger once."""
    for _ in range(MOST):
        assert searcher.ask(3.0) is RefusalCode.BUDGET
    site = searcher.attack.bed.sites["a"]
    site.observer = metrics = SiteMetrics(site)
    for epsilon in (0.01, 3.0, 900.0):
        assert searcher.ask(epsilon) is RefusalCode.ASKED
        assert searcher.attack.enrol("a").refused is RefusalCode.ASKED
    refusals = [entry.detail["code"] for entry in site.ledger.entries(kind=Kind.REFUSAL)]
    assert refusals == [RefusalCode.BUDGET] * MOST + [RefusalCode.ASKED] * 3
    counted = metrics.registry.get_sample_value("veilsum_refusals_total", {"reason": "asked-too-often"})
    assert counted == 6.0


def test_a_study_that_breaks_the_policy_is_told_nothing_of_the_budget(searcher: Searcher) -> None:
    """It hears the same whether the budget bears it, and it is no answer that counts."""
    site = searcher.attack.bed.sites["a"]
    kept = site.config
    site.config = kept.model_copy(update={"policy": kept.policy.model_copy(update={"methods": ()})})
    for epsilon in (0.01, 3.0) * MOST:
        searcher.prepare(epsilon)
        assert searcher.attack.enrol("a").codes == (RefusalCode.METHOD,)
    site.config = kept
    assert searcher.ask(3.0) is RefusalCode.BUDGET


@pytest.mark.parametrize(
    ("ahead", "codes"), [(DAY - 1, RefusalCode.ASKED), (DAY, RefusalCode.BUDGET), (9 * DAY, RefusalCode.BUDGET)]
)
def test_answers_that_a_wrong_clock_dated_ahead_count_no_longer_than_others(
    searcher: Searcher, ahead: int, codes: RefusalCode
) -> None:
    """A clock that is put right by less than a day forgets no answer of that day; by more, none counts until its date."""
    clock = searcher.attack.bed.clock
    clock.now += ahead
    assert [searcher.ask(3.0) for _ in range(MOST + 1)] == [*[RefusalCode.BUDGET] * MOST, RefusalCode.ASKED]
    clock.now -= ahead
    assert searcher.ask(3.0) is codes
    clock.now += DAY
    assert searcher.ask(3.0) is (RefusalCode.ASKED if ahead < DAY else RefusalCode.BUDGET)


@pytest.mark.parametrize("end", [True, False])
def test_studies_that_are_let_in_and_pay_nothing_count(searcher: Searcher, *, end: bool) -> None:
    """A search from below has no refusal: it ends its studies, or keeps them open, each with its share promised."""
    for _ in range(MOST):
        assert searcher.ask(0.02, end=end) is None
    assert searcher.ask(0.02) is RefusalCode.ASKED


def pay(searcher: Searcher, *, releases: int = 1) -> None:
    """A whole round of a new study, that declares so many."""
    searcher.prepare(0.02, releases=releases)
    searcher.attack.set_up()
    searcher.attack.collect()
    searcher.attack.finish()


@pytest.mark.system
def test_studies_that_pay_all_that_they_declared_do_not_count(searcher: Searcher) -> None:
    """An analyst at work: study after study, each released, some refused in between."""
    for number in range(MOST + 4):
        pay(searcher)
        if number < MOST - 1:
            assert searcher.ask(3.0) is RefusalCode.BUDGET
    assert searcher.ask(0.02) is None
    assert searcher.ask(0.02) is RefusalCode.ASKED


def test_studies_that_pay_less_than_they_declared_count(searcher: Searcher) -> None:
    """Otherwise one cheap release would pay for the answer about many."""
    for _ in range(MOST):
        pay(searcher, releases=2)
    assert searcher.ask(0.02) is RefusalCode.ASKED


def test_the_bound_holds_across_restarts_and_for_a_day(searcher: Searcher) -> None:
    for _ in range(MOST):
        searcher.ask(3.0)
    searcher.attack.reopen("a")
    assert searcher.ask(0.02) is RefusalCode.ASKED
    searcher.attack.bed.clock.now += DAY - 1
    assert searcher.ask(0.02) is RefusalCode.ASKED
    searcher.attack.bed.clock.now += 1
    assert searcher.bisect(MOST + 2)[0].count(RefusalCode.ASKED) == 2


def test_a_study_that_was_answered_is_answered_again(searcher: Searcher) -> None:
    """A message was lost, or the budget was raised since: the same study is one question."""
    searcher.ask(3.0)
    site = searcher.attack.bed.sites["a"]
    for _ in range(3 * MOST):
        assert searcher.attack.enrol("a").refused is RefusalCode.BUDGET
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, DATASET, 4.0, 1e-5, reason="more", operator="test", adaptive="gaussian")
    assert searcher.attack.enrol("a").call == "enrol"
    for _ in range(MOST - 2):
        assert searcher.ask(3.0) is RefusalCode.BUDGET  # beside what the first was promised
    assert searcher.ask(3.0) is RefusalCode.ASKED


def test_populations_have_answers_of_their_own_and_their_datasets_have_not(searcher: Searcher) -> None:
    site = searcher.attack.bed.sites["a"]
    dataset = site.config.datasets[DATASET]
    datasets = {
        DATASET: dataset,
        "copy": DatasetConfig(path=dataset.path, population=DATASET),
        "others": DatasetConfig(path=dataset.path),
    }
    site.config = site.config.model_copy(update={"datasets": datasets})
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, "others", 2.0, 1e-5, reason="test", operator="test", adaptive="gaussian")
    for number in range(MOST):
        assert searcher.ask(3.0, dataset=(DATASET, "copy")[number % 2]) is RefusalCode.BUDGET
    assert searcher.ask(0.02) is searcher.ask(0.02, dataset="copy") is RefusalCode.ASKED
    assert searcher.ask(0.02, dataset="others") is None


def another_analyst(searcher: Searcher, directory: Path) -> Credentials:
    """Certified by the federation's authority."""
    bed = searcher.attack.bed
    authority = Authority.load(bed.kit.authority, bed.clock)
    key, request = new_key_and_csr("rival", Role.ANALYST)
    directory.mkdir()
    (directory / KEY_FILE).touch(mode=0o600)
    (directory / KEY_FILE).write_bytes(key)
    (directory / CERTIFICATE_FILE).write_bytes(authority.sign(request, role=Role.ANALYST, name="rival"))
    (directory / AUTHORITY_FILE).write_bytes((bed.kit.analyst.identity / AUTHORITY_FILE).read_bytes())
    return load_credentials(directory, bed.clock())


def test_one_analysts_questions_take_nothing_from_another(searcher: Searcher, tmp_path: Path) -> None:
    for _ in range(MOST):
        searcher.ask(3.0)
    assert searcher.ask(0.02) is RefusalCode.ASKED
    searcher.attack.bed.analyst = another_analyst(searcher, tmp_path / "rival")
    assert searcher.bisect(MOST + 2)[0].count(RefusalCode.ASKED) == 2


def test_an_unlimited_budget_has_nothing_to_find(tmp_path: Path) -> None:
    searcher = Searcher(tmp_path, None)
    assert {searcher.ask(3.0) for _ in range(2 * MOST)} == {None}


def test_what_the_operator_approved_is_not_held_back(tmp_path: Path) -> None:
    """Waiting is an answer too; an approval is the operator's own."""
    searcher = Searcher(tmp_path, approval="manual")
    site = searcher.attack.bed.sites["a"]
    channel = searcher.attack.channels["a"]

    def submit() -> int:
        searcher.prepare(0.02)
        before = len(channel.said)
        channel.objects = {pb.OBJECT_KIND_STUDY: searcher.attack.study_object()}
        searcher.attack.cores["a"].handle(
            as_directive(pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL, study=searcher.attack.key)), channel
        )
        return len(channel.said) - before

    assert submit() == 0  # it waits, and nothing is said
    first = searcher.attack.study
    assert [submit() for _ in range(MOST)] == [0] * (MOST - 1) + [1]
    assert channel.said[-1].refused is RefusalCode.ASKED
    searcher.attack.use(first)
    approve(site, searcher.attack.key.hex()[:12], "olga")
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update={"max_budget_answers": 1})})
    assert searcher.attack.enrol("a").call == "enrol"
