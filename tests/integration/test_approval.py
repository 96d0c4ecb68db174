"""Approval by hand: a study that policy and budget bear waits for the operator, who decides beside the running participant."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from support.federation import make_bed, make_data, make_request, open_test_site, schema_of
from support.hostile import Adversary, altered, make_adversary
from support.network import PATIENCE, running_client, running_server, submit, wait_for, wired
from support.processes import Processes, running_processes
from veilsum.local.federation import as_directive
from veilsum_coordinator.protocol.settings import Waits
from veilsum_deploy.cli import main
from veilsum_node.errors import Misuse, Refusal, RefusalCode
from veilsum_node.identity import Authority, Label, Role, new_key_and_csr
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_node.transport.channel import open_channel
from veilsum_participant.cli.participant import waiting_fields, waiting_row
from veilsum_participant.protocol import approval, budgets
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.protocol.decisions import approve, decline, shown_study, waiting_studies
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.session.client import record_policy
from veilsum_participant.settings.config import Policy
from veilsum_participant.site import Site
from veilsum_participant.store.pending import PENDING
from veilsum_privacy.ledger import Kind, read_export, verify_ledger
from veilsum_privacy.ledger.export import write_jsonl
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import StudiesStub


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    """A site whose operator has to approve, before a coordinator that asks as it likes."""
    adversary = make_adversary(tmp_path, budget=(3.0, 1e-5), approval="manual")
    adversary.use(adversary.bed.compile(make_request(schema_of(2), min_cohort=2)))
    return adversary


def ask(attack: Adversary, name: str = "a") -> str:
    """Ask a site to enrol; what it says, or nothing."""
    channel = attack.channels[name]
    channel.objects = {pb.OBJECT_KIND_STUDY: attack.study_object()}
    before = len(channel.said)
    attack.cores[name].handle(as_directive(pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL, study=attack.key)), channel)
    said = channel.said[before:]
    assert len(said) <= 1
    return said[0].call if said else ""


def wait_list(site: Site) -> list[tuple[str, str]]:
    return [(item.digest.hex()[:12], item.state) for item in waiting_studies(site)]


def test_a_study_waits_neither_enrolled_nor_refused(attack: Adversary) -> None:
    site = attack.bed.sites["a"]
    for _ in range(3):
        assert ask(attack) == ""
    (item,) = waiting_studies(site)
    assert (item.digest, item.state, item.analyst, item.obstacle) == (attack.key, "waiting", "analyst", None)
    assert attack.kinds("a") == {"genesis": 1, "budget": 1}
    assert item.before == 0.0
    assert item.after == pytest.approx(item.epsilon)
    assert item.epsilon == pytest.approx(1.0, rel=1e-3)
    approve(site, attack.key.hex()[:8], "olga")
    assert [directive.study for directive in attack.cores["a"].decided()] == [attack.key]
    assert ask(attack) == "enrol"
    assert (wait_list(site), attack.cores["a"].decided()) == ([], [])
    assert attack.row("a").status == "enrolled"


def test_what_an_approved_study_would_cost_counts_what_others_may_ask(attack: Adversary) -> None:
    """Two studies wait; with the first enrolled, the second's figures start from there."""
    site = attack.bed.sites["a"]
    ask(attack)
    approve(site, attack.key.hex(), "olga")
    assert ask(attack) == "enrol"
    attack.use(attack.bed.compile(make_request(schema_of(2), min_cohort=2)))
    ask(attack)
    (item,) = waiting_studies(site)
    assert item.before == pytest.approx(1.0, rel=1e-3)
    assert item.after == pytest.approx(1.460, abs=1e-2)  # two Gaussian releases compose to less than the sum of their epsilons


def test_a_delta_that_guarantees_too_little_is_said_where_the_word_is_given(attack: Adversary) -> None:
    site = attack.bed.sites["a"]
    ask(attack)
    (fields,) = map(waiting_fields, waiting_studies(site))
    assert fields["warnings"] == []
    decline(site, attack.key.hex(), "olga", "another")
    schema = schema_of(2).model_copy(update={"max_records": 5000})
    attack.use(attack.bed.compile(make_request(schema, min_cohort=2, delta=5e-4)))
    ask(attack)
    (fields,) = (waiting_fields(item) for item in waiting_studies(site) if item.digest == attack.key)
    (warning,) = fields["warnings"]
    assert "Delta 0.0005 is above 1 / 5,000, the schema's max_records" in warning
    assert warning in waiting_row(fields)["study"]


def test_two_words_for_what_fits_only_once(attack: Adversary) -> None:
    """An approved study counts from the word on, also before the participant has acted on it."""
    site = attack.bed.sites["a"]
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, "records", 1.2, 1e-5, reason="less", operator="test", adaptive="gaussian")
    keys = []
    for _ in range(2):
        attack.use(attack.bed.compile(make_request(schema_of(2), min_cohort=2)))
        assert ask(attack) == ""
        keys.append(attack.key)
    approve(site, keys[0].hex(), "olga")
    with pytest.raises(Refusal) as caught:
        approve(site, keys[1].hex(), "olga")
    assert caught.value.codes == (RefusalCode.BUDGET,)
    decline(site, keys[0].hex(), "olga", "changed my mind")
    approve(site, keys[1].hex(), "olga")
    assert ask(attack) == "enrol"


def test_a_declined_study_is_refused_for_good(attack: Adversary) -> None:
    """The coordinator hears a code, however often it asks; the ledger keeps the operator's reason, once."""
    site = attack.bed.sites["a"]
    ask(attack)
    decline(site, attack.key.hex(), "olga", "no agreement\n with this group")
    assert len(attack.cores["a"].decided()) == 1
    for _ in range(2):
        assert attack.enrol("a").refused is RefusalCode.APPROVAL
        assert attack.cores["a"].decided() == []
        assert attack.tell("a", pb.DIRECTIVE_KIND_END).call == "confirm"  # the end of a study does not make it unheard of
    (entry,) = site.ledger.entries(kind=Kind.REFUSAL)
    assert (entry.study, entry.detail["code"]) == (attack.key, "approval-declined")
    assert entry.detail["message"] == "The operator declined the study: no agreement with this group"
    assert entry.detail["figures"]["after"] is not None
    attack.nothing_said_but_codes("a", len(attack.channels["a"].said))
    site.ledger.verify(authority=site.credentials.authority)


def test_everything_is_checked_again_at_approval(attack: Adversary) -> None:
    """The policy became stricter and the budget smaller while the study waited: no word of the operator's overrides them."""
    site = attack.bed.sites["a"]
    ask(attack)
    kept = site.config
    site.config = kept.model_copy(update={"policy": kept.policy.model_copy(update={"max_epsilon": 0.5, "methods": ()})})
    with pytest.raises(Refusal) as caught:
        approve(site, attack.key.hex(), "olga")
    assert caught.value.codes == (RefusalCode.METHOD, RefusalCode.EPSILON)
    (item,) = waiting_studies(site)
    assert item.obstacle is not None
    assert (item.state, item.obstacle.codes) == ("waiting", caught.value.codes)
    site.config = kept
    approve(site, attack.key.hex(), "olga")
    with site.database.transaction() as connection:  # after the word, before the participant acts on it
        site.ledger.set_budget(connection, "records", 0.5, 1e-5, reason="less", operator="test", adaptive="gaussian")
    assert attack.enrol("a").refused is RefusalCode.BUDGET
    assert wait_list(site) == []
    assert [entry.detail["code"] for entry in site.ledger.entries(kind=Kind.REFUSAL)] == ["budget-exceeded"]


def test_a_study_that_the_policy_refuses_does_not_wait(attack: Adversary) -> None:
    attack.use(altered(attack.study, weights={"a": 2, "b": 1, "c": 1, "d": 1}))
    assert attack.enrol("a").refused is RefusalCode.WEIGHTS
    assert wait_list(attack.bed.sites["a"]) == []


def test_an_unsigned_study_does_not_wait(attack: Adversary) -> None:
    assert attack.enrol("a", attack.study_object(label=Label.RECEIPT)).refused is RefusalCode.STUDY_SIGNATURE
    assert wait_list(attack.bed.sites["a"]) == []


def test_expired_and_ended_studies_are_dropped(attack: Adversary) -> None:
    site = attack.bed.sites["a"]
    ask(attack)
    assert attack.tell("a", pb.DIRECTIVE_KIND_END).call == "confirm"
    assert wait_list(site) == []
    ask(attack)
    attack.bed.clock.now = attack.study.expires
    (item,) = waiting_studies(site)
    assert item.obstacle is not None
    assert item.obstacle.code is RefusalCode.STUDY_EXPIRED
    with pytest.raises(Refusal):
        approve(site, attack.key.hex(), "olga")
    attack.cores["a"].expire()
    assert wait_list(site) == []


def test_an_analyst_whose_certificate_ran_out_while_its_study_waited(attack: Adversary) -> None:
    site, bed = attack.bed.sites["a"], attack.bed
    _, csr = new_key_and_csr("short", Role.ANALYST)
    Authority.load(bed.kit.authority, bed.clock).sign(csr, role=Role.ANALYST, name="short", days=1)
    ask(attack)
    with site.database.transaction() as connection:
        connection.execute(update(PENDING).values(certificate=b"", analyst="short"))
    (item,) = waiting_studies(site)
    assert item.analyst == "short"
    assert item.obstacle is not None
    assert item.obstacle.code is RefusalCode.STUDY_SIGNATURE
    with pytest.raises(Refusal):
        approve(site, attack.key.hex(), "olga")


def test_the_operators_word_is_always_on_record(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound on refusals is for what others cause; decided studies take no room from those that wait."""
    monkeypatch.setattr(budgets, "MOST_REFUSALS", 0)
    monkeypatch.setattr(approval, "MOST_WAITING", 1)
    site = attack.bed.sites["a"]
    for number in range(3):
        attack.use(altered(attack.study, nonce=f"{number:032x}"))
        assert ask(attack) == ""
        decline(site, attack.key.hex(), "olga", f"no {number}")
    assert len(site.ledger.entries(kind=Kind.REFUSAL)) == 3


def test_names_that_fit_no_study_and_reasons_that_are_none(attack: Adversary) -> None:
    ask(attack)
    site = attack.bed.sites["a"]
    for name in ("", "000", "zzzz", "0" * 64):
        with pytest.raises(Misuse, match="No study waits under"):
            approve(site, name, "olga")
        with pytest.raises(Misuse, match="No study waits under"):
            decline(site, name, "olga", "reason")
    for reason in ("", " \n", "x" * 501, "bell\x07"):
        with pytest.raises(Misuse, match="A reason is a text"):
            decline(site, attack.key.hex(), "olga", reason)
    assert wait_list(site)[0][1] == "waiting"


def test_studies_that_wait_are_bounded(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of studies fills neither the store nor the operator's list."""
    monkeypatch.setattr(approval, "MOST_WAITING", 2)
    for number in range(4):
        attack.use(altered(attack.study, nonce=f"{number:032x}"))
        said = ask(attack)
        assert said == ("" if number < 2 else "refuse")
    assert len(wait_list(attack.bed.sites["a"])) == 2


# -- over real connections -------------------------------------------------------------------------------------------------


def test_an_operator_decides_while_the_participant_runs(tmp_path: Path) -> None:
    """The word comes through another opening of the same file, as the command's process has; the running client acts on it."""
    bed = make_bed(tmp_path, make_data("abc"), budget=(3.0, 1e-5), approval="manual")
    with ExitStack() as stack:
        server, address = stack.enter_context(running_server(bed, Waits(enrol=60, grace=5)))
        for site in bed.sites.values():
            stack.enter_context(running_client(site, address))
        operators = {}
        for name, site in bed.sites.items():
            operators[name] = open_test_site(site.config, bed.clock, SYSTEM_RANDOM)
            stack.callback(operators[name].database.close)
        stub = StudiesStub(stack.enter_context(open_channel(address, bed.analyst)))
        first = submit(bed, stub, bed.compile(make_request(schema_of(2), min_cohort=2)))
        machine = server.hub.studies[first].machine
        for site in operators.values():
            wait_for(lambda site=site: len(wait_list(site)) == 1, "the study's arrival")  # type: ignore[misc]
        words = [threading.Thread(target=approve, args=(operators[name], first.hex()[:12], "olga")) for name in "ab"]
        words.append(threading.Thread(target=decline, args=(operators["c"], first.hex()[:12], "olga", "not ours to give")))
        for word in words:
            word.start()
        for word in words:
            word.join()
        wait_for(lambda: machine.phase.over, "the study's end")
        assert machine.phase.value == "finished", (machine.reason, machine.refusals)
        assert [(name, code) for name, code, _ in machine.refusals] == [("c", "approval-declined")]
        (release,) = server.hub.journal.releases(first)
        assert json.loads(release["cohort"]) == ["a", "b"]
        assert len(operators["c"].ledger.entries(kind=Kind.REFUSAL)) == 1
        assert [len(operators[name].ledger.entries(kind=Kind.CHARGE)) for name in "abc"] == [1, 1, 0]


def test_a_study_that_one_no_makes_impossible_asks_nobody_else_for_a_decision(tmp_path: Path) -> None:
    """It needs all three, and one declines: the other two, who are still to decide, are told once ``waits.grace`` is over.

    By the bed's clock, which stands still, the time to enrol is never up.
    """
    bed = make_bed(tmp_path, make_data("abc"), budget=(3.0, 1e-5), approval="manual")
    with ExitStack() as stack:
        server, _, stub = stack.enter_context(wired(bed, Waits(grace=0)))
        operators = {}
        for name, site in bed.sites.items():
            operators[name] = open_test_site(site.config, bed.clock, SYSTEM_RANDOM)
            stack.callback(operators[name].database.close)
        key = submit(bed, stub, bed.compile(make_request(schema_of(2), min_cohort=3)))
        for site in operators.values():
            wait_for(lambda site=site: len(wait_list(site)) == 1, "the study's arrival")  # type: ignore[misc]
        decline(operators["c"], key.hex()[:12], "olga", "not ours to give")
        asked = pb.ShowRequest(study=key)
        wait_for(lambda: stub.Show(asked, timeout=PATIENCE).phase != "enrolling", "the study's end")
        last = stub.Show(asked, timeout=PATIENCE)
        assert (last.phase, last.reason) == ("failed", "0 of 3 enrolled, 3 are needed (c: approval-declined)")
        assert [(item.participant, item.code) for item in last.refusals] == [("c", "approval-declined")]
        for name in "ab":
            wait_for(lambda site=operators[name]: not wait_list(site), "the end of waiting")  # type: ignore[misc]
            kinds = [entry.kind for entry in operators[name].ledger.entries(study=key)]
            assert kinds == [Kind.EXPIRED]
        assert not server.hub.journal.releases(key)


# -- real processes --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    waits = Waits(enrol=60, seal=20, contribute=30, consent=20, check=20, grace=10)
    directory = tmp_path_factory.mktemp("approval")
    with running_processes(directory, make_data("ab"), waits=waits, budget=(3.0, 1e-5), approval="manual") as processes:
        yield processes


def command(network: Processes, name: str, *arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Run one of the participant's commands beside its process; exit status and the JSON that it printed."""
    config = str(network.directory(name) / "participant.toml")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["participant", *arguments, "--config", config, "--json"])
    output = capsys.readouterr()
    code = int(ended.value.code or 0)
    return code, json.loads(output.err if code else output.out)


@pytest.mark.system  # in one process by default, above
def test_commands_decide_beside_real_participants(network: Processes, capsys: pytest.CaptureFixture[str]) -> None:
    study = network.compile(make_request(schema_of(2), min_cohort=2))
    key = network.submit(study)
    shown = key.hex()[:12]
    for name in "ab":
        wait_for(lambda name=name: bool(command(network, name, "studies", capsys=capsys)[1]), "the study")  # type: ignore[misc]
    (listed,) = command(network, "a", "studies", capsys=capsys)[1]
    expected = {
        "id": key.hex(), "state": "waiting", "name": study.name, "analyst": "analyst", "method": "statistics",
        "disclosures": {"statistics": "joint"}, "dataset": "records", "unit": "record", "noise": "distributed",
        "participants": ["a", "b"], "min_cohort": 2, "obstacles": [], "spent_before": 0.0,
    }  # fmt: skip
    assert listed.items() >= expected.items()
    assert listed["spent_after"] == pytest.approx(listed["epsilon"]) == pytest.approx(1.0, rel=1e-3)

    code, error = command(network, "a", "approve", "ffff" if shown[0] != "f" else "0000", "--as", "olga", capsys=capsys)
    assert (code, error["error"]) == (2, "Misuse")
    for name in "ab":
        code, fields = command(network, name, "approve", shown, "--as", "olga", capsys=capsys)
        assert (code, fields["state"]) == (0, "approved")
    status = network.await_end(key)
    assert status.phase == "finished", (status.reason, status.refusals)

    second = network.submit(network.compile(make_request(schema_of(2), min_cohort=2)))
    wait_for(lambda: bool(command(network, "b", "studies", capsys=capsys)[1]), "the second study")
    words = ("--as", "olga", "--reason", "enough for now")
    assert command(network, "b", "decline", second.hex()[:12], *words, capsys=capsys)[0] == 0
    status = network.await_status(second, lambda found: bool(found.refusals), "the refusal")
    assert [(item.participant, item.code) for item in status.refusals] == [("b", "approval-declined")]
    (entry,) = (item for item in network.entries("b", second) if item.kind is Kind.REFUSAL)
    assert entry.detail["message"].endswith("enough for now")


@pytest.mark.system
def test_a_word_given_while_the_participant_is_down_is_acted_on_at_its_start(
    network: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    key = network.submit(network.compile(make_request(schema_of(2), min_cohort=2)))
    shown = key.hex()[:12]
    for name in "ab":
        wait_for(lambda name=name: shown in str(command(network, name, "studies", capsys=capsys)[1]), "it")  # type: ignore[misc]
    assert network.participants["a"].stop() == 0
    for name in "ab":
        assert command(network, name, "approve", shown, "--as", "olga", capsys=capsys)[0] == 0
    network.start("a")
    status = network.await_end(key)
    assert status.phase == "finished", (status.reason, status.refusals)


def test_a_core_without_decisions_does_nothing(tmp_path: Path) -> None:
    site = make_bed(tmp_path, make_data("ab")).sites["a"]
    assert ParticipantCore(site).decided() == []


# -- what the ledger says of it --------------------------------------------------------------------------------------------


def decisions(site: Site) -> list[tuple[str, str, str]]:
    kinds = (Kind.APPROVAL, Kind.DECLINE, Kind.EXPIRED)
    found = [entry for entry in site.ledger.entries() if entry.kind in kinds]
    return [(entry.kind.value, entry.detail.get("operator", ""), entry.detail.get("reason", "")) for entry in found]


def test_the_ledger_says_who_decided_why_and_by_what_text(attack: Adversary, tmp_path: Path) -> None:
    site = attack.bed.sites["a"]
    ask(attack)
    text = shown_text(shown_study(site, attack.key.hex()))
    approve(site, attack.key.hex(), " Olga  Okafor ", "vote 7,\n as agreed")
    assert ask(attack) == "enrol"
    first = attack.key
    attack.use(altered(attack.study, nonce="1" * 32))
    ask(attack)
    other = shown_text(shown_study(site, attack.key.hex()))
    decline(site, attack.key.hex(), "Pia", "no vote")
    assert decisions(site) == [("approval", "Olga Okafor", "vote 7, as agreed"), ("decline", "Pia", "no vote")]
    yes, no = (site.ledger.entries(kind=kind)[0] for kind in (Kind.APPROVAL, Kind.DECLINE))
    assert yes.detail["shown"] == hashlib.sha256(text.encode()).hexdigest()
    assert no.detail["shown"] == hashlib.sha256(other.encode()).hexdigest() != yes.detail["shown"]
    for entry, study in ((yes, first), (no, attack.key)):
        assert (entry.study, entry.dataset, entry.population) == (study, "records", "records")
        named = {"name": "test-study", "analyst": "analyst", "method": "statistics"}
        assert entry.detail.items() >= named.items()
        assert entry.random is not None  # blinded as all are
    with (tmp_path / "export.jsonl").open("w", encoding="utf-8") as stream:
        write_jsonl(site.ledger, stream)
    found = verify_ledger(read_export(tmp_path / "export.jsonl"), authority=site.credentials.authority)
    assert found.head == site.ledger.head()


def test_above_an_epsilon_two_people_approve(attack: Adversary) -> None:
    """Whoever spells one name in two ways is one person; a decline needs one."""
    site = attack.bed.sites["a"]
    policy = site.config.policy.model_copy(update={"four_eyes_above": 0.5})
    site.config = site.config.model_copy(update={"policy": policy})
    ask(attack)
    approve(site, attack.key.hex(), "Olga")
    assert (wait_list(site)[0][1], ask(attack), attack.cores["a"].decided()) == ("waiting", "", [])
    for again in ("Olga", "OLGA", " olga "):
        with pytest.raises(Misuse, match="needs 2 people"):
            approve(site, attack.key.hex(), again)
    (item,) = waiting_studies(site)
    assert (item.approved_by, item.needs) == (("Olga",), 2)
    assert approve(site, attack.key.hex(), "Pia").state == "approved"
    assert ask(attack) == "enrol"
    attack.use(altered(attack.study, nonce="1" * 32))
    ask(attack)
    approve(site, attack.key.hex(), "Olga")
    assert decline(site, attack.key.hex(), "Pia", "seen too late").state == "declined"
    kinds = [kind for kind, _, _ in decisions(site)]
    assert kinds == ["approval", "approval", "approval", "decline"]


@pytest.mark.parametrize(
    ("bound", "epsilon", "needs"), [(None, 1.0, 1), (0.5, 1.0, 2), (1.01, 1.0, 1), (0.0, 0.1, 2), (1000.0, None, 2)]
)
def test_how_many_people_a_study_needs(tmp_path: Path, bound: float | None, epsilon: float | None, needs: int) -> None:
    attack = make_adversary(
        tmp_path, budget=(None if epsilon is None else 3.0, 1e-5), approval="manual", four_eyes_above=bound
    )
    attack.use(attack.bed.compile(make_request(schema_of(2), epsilon=epsilon, min_cohort=2)))
    ask(attack)
    (item,) = waiting_studies(attack.bed.sites["a"])
    assert item.needs == needs


def test_a_word_for_a_study_that_ended_does_not_count_when_it_comes_again(attack: Adversary) -> None:
    site = attack.bed.sites["a"]
    policy = site.config.policy.model_copy(update={"four_eyes_above": 0.5})
    site.config = site.config.model_copy(update={"policy": policy})
    ask(attack)
    approve(site, attack.key.hex(), "Olga")
    attack.tell("a", pb.DIRECTIVE_KIND_END)
    assert ask(attack) == ""
    (item,) = waiting_studies(site)
    assert item.approved_by == ()
    assert decisions(site)[-1] == ("expired", "", "")
    approve(site, attack.key.hex(), "Olga")
    approve(site, attack.key.hex(), "Pia")
    assert ask(attack) == "enrol"


def test_a_study_that_ends_without_an_answer_is_on_record(
    attack: Adversary, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended by the coordinator, or by its time; also once approved and not joined. A flood does not fill the ledger."""
    caplog.set_level("WARNING", "veilsum.participant")
    monkeypatch.setattr(budgets, "MOST_REFUSALS", 3)
    site = attack.bed.sites["a"]
    for number in range(5):
        attack.use(altered(attack.study, nonce=f"{number:032x}"))
        ask(attack)
        if number == 1:
            approve(site, attack.key.hex(), "Olga")
        caplog.clear()
        if number == 2:
            monkeypatch.setattr(site, "clock", lambda: attack.study.expires)
            attack.cores["a"].expire()
            monkeypatch.undo()
            monkeypatch.setattr(budgets, "MOST_REFUSALS", 3)
        else:
            attack.tell("a", pb.DIRECTIVE_KIND_END)
        assert wait_list(site) == []
        (line, *_) = [record.getMessage() for record in caplog.records if "ended after waiting" in record.getMessage()]
        assert ("approved but not joined" if number == 1 else "without an answer") in line
        assert attack.study.name in line
        assert "analyst" in line
    found = site.ledger.entries(kind=Kind.EXPIRED)
    assert [entry.detail["why"] for entry in found] == ["the coordinator ended it"] * 2 + ["its time ran out"]
    site.ledger.verify(authority=site.credentials.authority)


def test_four_eyes_without_anybody_asked_is_no_policy() -> None:
    with pytest.raises(ValueError, match="four_eyes_above needs approval"):
        Policy(four_eyes_above=0.5)


def test_the_ledger_says_what_of_the_policy_changed(tmp_path: Path) -> None:
    """At each start what differs from the last one, and nothing where nothing does; long values by their digest."""
    site = make_bed(tmp_path, make_data("ab")).sites["a"]

    def start(**changes: Any) -> dict[str, Any] | None:
        before = len(site.ledger.entries(kind=Kind.POLICY))
        site.config = site.config.model_copy(update={"policy": site.config.policy.model_copy(update=changes)})
        record_policy(site)
        found = site.ledger.entries(kind=Kind.POLICY)[before:]
        return found[0].detail["changes"] if found else None

    whole = start()
    assert whole is not None
    assert whole["policy.min_cohort"] == [None, "2"]
    assert {f"policy.{key}" for key in Policy.model_fields} - {"policy.trusted", "policy.directory"} <= set(whole)
    assert start() is None
    assert start(max_epsilon=0.25) == {"policy.max_epsilon": [whole["policy.max_epsilon"][1], "0.25"]}
    pins = site.config.policy.trusted
    assert start(trusted={}) == {f"policy.trusted.{name}": [json.dumps(key), None] for name, key in pins.items()}
    changed = start(analysts=tuple(f"analyst-{number}" for number in range(200)))
    assert changed is not None
    (before, after) = changed["policy.analysts"]
    assert before == '["*"]'
    assert after.startswith("SHA-256 ")
    assert start() is None
    site.ledger.verify(authority=site.credentials.authority)
