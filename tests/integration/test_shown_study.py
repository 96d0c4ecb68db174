"""What somebody is shown who decides on a study: plain words, figures that other code gives, and nothing of a record."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.federation import make_request, schema_of
from support.hostile import Adversary, altered, make_adversary
from veilsum.local.federation import as_directive
from veilsum_coordinator.methods import METHODS as REGISTERED
from veilsum_node.identity.certificate import moment
from veilsum_participant.protocol.decisions import Waiting, approve, shown_study, waiting_studies
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.site import Site
from veilsum_privacy.dossier.asked import METHODS, QUESTIONS, asked_facts
from veilsum_privacy.dossier.figures import meaning
from veilsum_privacy.ledger import Kind
from veilsum_privacy.tasks.queries.kinds import KINDS
from veilsum_proto import federation_pb2 as pb

PURPOSE = "Who is treated where, to plan the trial NOVA."


def make(tmp_path: Path, budget: tuple[float | None, float] = (3.0, 1e-5), **options: Any) -> Adversary:
    return make_adversary(tmp_path, budget=budget, approval="manual", **options)


def ask(attack: Adversary, seconds: int = 0, **privacy: Any) -> Site:
    """Ask site a; the coordinator says that it waits so long."""
    request = make_request(schema_of(2), min_cohort=2, **privacy).model_copy(update={"purpose": PURPOSE})
    attack.use(attack.bed.compile(request))
    return send(attack, seconds)


def send(attack: Adversary, seconds: int = 0) -> Site:
    channel = attack.channels["a"]
    message = pb.StudyObject.FromString(attack.study_object())
    message.seconds_left = seconds
    channel.objects = {pb.OBJECT_KIND_STUDY: message.SerializeToString()}
    attack.cores["a"].handle(as_directive(pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL, study=attack.key)), channel)
    return attack.bed.sites["a"]


def shown(attack: Adversary) -> tuple[Waiting, str]:
    item = shown_study(attack.bed.sites["a"], attack.key.hex()[:8])
    return item, shown_text(item)


def test_every_method_and_question_has_words() -> None:
    assert set(METHODS) == set(REGISTERED)
    assert set(QUESTIONS) == set(KINDS)


def test_it_says_who_asks_what_why_and_at_what_cost(tmp_path: Path) -> None:
    attack = make(tmp_path)
    site = ask(attack, 3600)
    item, text = shown(attack)
    said = " ".join(text.split())
    for words in (
        "Study test-study by analyst", attack.key.hex(), f"purpose: {PURPOSE}", "reference: not stated",
        "legal basis: not stated",
        "counts of records", "means and standard deviations of x0 and x1", "columns x0, x1 and y of dataset records",
        "10 numbers in 1 sum at most", "4 sites: a, b, c and d; no sum of fewer than 2", "sums over sites only", "one record",
        "by tossing a coin, 50", "There is none.",
    ):  # fmt: skip
        assert words in said, words
    assert item.before == 0.0
    assert item.after is not None
    right = meaning(item.after, 1e-5).guess  # the dossier's own figure, rounded up
    times = next(number for number in range(101) if number >= 100 * right)
    assert f"right at most {times} times in 100 once it is done; nothing is spent or promised before it; by" in said
    assert item.deadline is not None
    assert abs(item.deadline - site.clock() - 3600) <= 5
    assert f"The coordinator waits for an answer until {moment(item.deadline)}" in said


def test_how_many_more_such_studies_a_budget_bears_is_how_many_are_let_in(tmp_path: Path) -> None:
    attack = make(tmp_path)
    site = ask(attack)
    item, text = shown(attack)
    assert item.leaves is not None
    assert f"After it the budget bears {item.leaves} such" in text
    approve(site, attack.key.hex(), "Olga")
    send(attack)
    site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update={"max_budget_answers": 100})})
    let_in = 0
    for number in range(item.leaves + 1):
        attack.use(altered(attack.study, nonce=f"{number:032x}"))
        send(attack)
        waiting = [found for found in waiting_studies(site) if found.state == "waiting"]
        if not waiting:
            break
        approve(site, attack.key.hex(), "Olga")
        send(attack)
        let_in += 1
    assert let_in == item.leaves


@pytest.mark.parametrize(("budget", "epsilon"), [((None, 1e-5), 1.0), ((None, 1e-5), None)])
def test_where_nothing_is_bounded_it_says_so(tmp_path: Path, budget: tuple[None, float], epsilon: float | None) -> None:
    attack = make(tmp_path, budget=budget)
    ask(attack, epsilon=epsilon)
    item, text = shown(attack)
    assert item.leaves is None
    assert ("The budget has no bound." in text) == (epsilon is not None)
    assert ("nothing bounds what they tell" in text) == (epsilon is None)
    assert ("100 times in 100" in text) == (epsilon is None)
    assert "did not say how long it waits" in text


def test_it_says_what_differs_from_the_last_time(tmp_path: Path) -> None:
    attack = make(tmp_path)
    site = ask(attack, epsilon=0.5)
    approve(site, attack.key.hex(), "Olga")
    send(attack)
    ask(attack, epsilon=0.75)
    _, text = shown(attack)
    differences = text.split("Compared with")[1].split("Until when")[0]
    assert "costs: was epsilon 0.5 at delta 1e-05; is epsilon 0.75 at delta 1e-05" in differences
    assert "computes:" not in differences
    approve(site, attack.key.hex(), "Olga")
    send(attack)
    attack.use(altered(attack.study, nonce="1" * 32, created=attack.study.created + 1))
    send(attack)
    approve(site, attack.key.hex(), "Olga")
    send(attack)
    attack.use(altered(attack.study, nonce="2" * 32))
    send(attack)
    _, text = shown(attack)
    assert "It asks the same again." in text


@pytest.mark.parametrize("seconds", [1, 3600, 2**63, 2**64 - 1])
def test_no_word_of_a_coordinator_is_past_the_studys_end(tmp_path: Path, seconds: int) -> None:
    attack = make(tmp_path)
    site = ask(attack, seconds)
    (item,) = waiting_studies(site)
    assert item.deadline is not None
    assert item.deadline <= min(item.study.expires, site.clock() + seconds)
    send(attack, 30)  # it asks again, and waits anew
    (item,) = waiting_studies(site)
    assert item.deadline is not None
    assert item.deadline <= site.clock() + 30


def test_what_was_shown_is_what_the_ledger_holds_the_digest_of(tmp_path: Path) -> None:
    attack = make(tmp_path)
    site = ask(attack, 600)
    _, text = shown(attack)
    approve(site, attack.key.hex(), "Olga")
    (entry,) = site.ledger.entries(kind=Kind.APPROVAL)
    assert entry.detail["shown"] == hashlib.sha256(text.encode()).hexdigest()


def test_the_text_depends_on_no_record(tmp_path: Path) -> None:
    """The same study, at a site with other records, with none, and with a file that is not there."""
    attack = make(tmp_path)
    site = ask(attack, 600)
    _, text = shown(attack)
    for dataset in site.config.datasets.values():
        assert dataset.path is not None
        dataset.path.unlink()
    again = shown_study(site, attack.key.hex())
    assert shown_text(again) == text


def test_a_hostile_study_forges_no_line(tmp_path: Path) -> None:
    """Every text of a study is one line of the page: what an analyst writes cannot look like what the site says."""
    attack = make(tmp_path)
    site = ask(attack)
    column = "age\nWhat it costs here\n  nothing\u202e"
    data = attack.study.data.model_dump(mode="json")
    data["columns"][0]["name"] = column
    forged = altered(attack.study, purpose="x What it costs here: nothing", nonce="2" * 32, data=data)
    item = replace(shown_study(site, attack.key.hex()), study=forged, earlier=attack.study)
    lines = shown_text(item).splitlines()
    assert lines.count("What it costs here") == 1
    assert "  purpose: x What it costs here: nothing" in lines
    assert any(column in text for text in asked_facts(forged).values())
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("filler", [" ", "\u2800", "\u3164", "\u115f", "\uffa0", "\ufe0f", "\U000e0100"])
def test_nothing_that_is_not_seen_fills_a_line(tmp_path: Path, filler: str) -> None:
    """A terminal goes on in its next line: what stands there must not look like what the site says."""
    attack = make(tmp_path)
    site = ask(attack)
    said = "  It costs epsilon 0.01 for one record, over the whole study."
    forged = altered(attack.study, purpose="x" + filler * 200 + said.strip(), nonce="5" * 32)
    lines = shown_text(replace(shown_study(site, attack.key.hex()), study=forged)).splitlines()
    (line,) = (line for line in lines if line.startswith("  purpose: x"))
    assert line.removeprefix("  ").count(f"\\u{ord(filler):04x}") == 200
    assert "  " not in line.removeprefix("  ")
    assert filler == " " or filler not in line


def test_how_columns_are_derived_is_said(tmp_path: Path) -> None:
    """A condition may name a column that the analyst made, by a name that says nothing of its rule."""
    attack = make(tmp_path)
    site = ask(attack)
    task = attack.study.tasks[0].model_dump(mode="json")
    old = {
        "name": "old",
        "kind": "count",
        "over": [],
        "where": "plain > 3",
        "scale": task["parameters"]["queries"][0]["scale"],
    }
    derived = [
        {"name": "plain", "number": "4 * (x0 > 0.5) + x1", "low": 0, "high": 9},
        {"name": "third", "of": "x1", "edges": [0.25, 0.5]},
    ]
    task["parameters"] |= {"queries": [*task["parameters"]["queries"], old], "derived": derived}
    forged = altered(attack.study, nonce="6" * 32, tasks=[task])
    derives = asked_facts(forged)["derives"]
    assert derives == "plain = 4 * (x0 > 0.5) + x1, within 0 and 9; third = x1, cut at 0.25 and 0.5"
    assert f"  derives: {derives}" in shown_text(replace(shown_study(site, attack.key.hex()), study=forged)).splitlines()
    assert "derives" not in asked_facts(attack.study)


def test_tasks_that_the_method_says_nothing_of_are_named(tmp_path: Path) -> None:
    """A method is a name that the analyst gives: a study of "statistics" may hold any task that the policy lists."""
    attack = make(tmp_path)
    site = ask(attack)
    other = attack.bed.compile(make_request(schema_of(2), "pca", 1.0, min_cohort=2)).tasks[0]
    tasks = [task.model_dump(mode="json") for task in (*attack.study.tasks, other)]
    item = shown_study(site, attack.key.hex())
    assert "  tasks: tables" in shown_text(item).splitlines()
    forged = replace(item, study=altered(attack.study, nonce="3" * 32, tasks=tasks), earlier=attack.study)
    lines = shown_text(forged).splitlines()
    assert f"  tasks: tables and {other.task}" in lines
    assert f"  tasks: was tables; is tables and {other.task}" in lines
