"""Members that take the steps of fedsgd themselves: no model reaches a record but the one that follows from the releases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.apart import ThreadStarter
from support.federation import TestBed, make_bed, make_clusters, make_request, schema_of
from support.following import Between
from support.processes import count, running_processes
from support.proving import proven
from support.renewing import renew, renew_with_new_key
from support.victims import unconfinable
from veilsum.local.federation import LocalChannel
from veilsum_coordinator.methods.fedsgd import FedSGD
from veilsum_coordinator.parts.federation import Federation, Release
from veilsum_coordinator.protocol.settings import Waits
from veilsum_coordinator.results.proof import release_object
from veilsum_coordinator.service import fetching as coordinators_fetching
from veilsum_coordinator.service.runner import RoundLostError, run_study
from veilsum_node.errors import HostileInput, Refusal, RefusalCode
from veilsum_node.identity import Role, load_credentials
from veilsum_participant.boundary.front import Directive, DirectiveKind, ObjectKind
from veilsum_participant.local_studies import LocalStudies
from veilsum_participant.protocol import following
from veilsum_participant.protocol.following import Following
from veilsum_participant.store.attempts import ATTEMPTS
from veilsum_participant.store.followed import FOLLOWED, drop_followed, find_seen, keep_seen
from veilsum_participant.studies import Studies
from veilsum_participant.worker.compiling import WorkerStudies
from veilsum_privacy.ledger import Kind
from veilsum_privacy.results.result import load_result
from veilsum_privacy.securesum.context import broadcast_digest, encode_broadcast
from veilsum_privacy.study.study import Study
from veilsum_privacy.tasks.agreed import AgreedStudy
from veilsum_privacy.tasks.features import CENTRE, CLASS_WEIGHTS
from veilsum_privacy.training.arrays import MODEL
from veilsum_proto import federation_pb2 as pb

Floats = NDArray[np.float64]
WIDTH, CLASSES, SITES, STEPS = 4, 3, "abcd", 3
UNFOLLOWED = {RefusalCode.BROADCAST.value}


@pytest.fixture
def bed(tmp_path: Path) -> TestBed:
    return make_bed(tmp_path, make_clusters(SITES, WIDTH, CLASSES, shares=(0.7, 0.25, 0.05)), min_cohort=2)


@pytest.fixture
def between(bed: TestBed) -> Between:
    return Between(bed)


def compiled(bed: TestBed, **parameters: Any) -> Study:
    request = make_request(schema_of(WIDTH, CLASSES, 200), "fedsgd", 8.0, min_cohort=2)
    return bed.compile(request.model_copy(update={"parameters": {"steps": STEPS, **parameters}}))


def prepared(between: Between, **parameters: Any) -> tuple[Study, bytes, Federation]:
    study = compiled(between.bed, **parameters)
    key = between.submit(study, between.bed.analyst)
    return study, key, between.prepare(key)


class Steered(Federation):
    """A coordinator that broadcasts another model in one round."""

    def __init__(self, inner: Federation, at: int, change: Mapping[str, float] | None = None) -> None:
        super().__init__(inner.study, inner.encoder)
        self._inner, self._at, self._change, self.round = inner, at, change or {}, 0
        self.releases: list[Release] = []

    def sum(self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Any = None) -> Release:
        self.round += 1
        sent = dict(broadcast or {})
        if self.round == self._at:
            for name, value in self._change.items():
                sent[name] = sent[name].copy()
                sent[name].flat[0] += value
        self.releases.append(self._inner.sum(label, sent, members=members))
        return self.releases[-1]


MODELS: list[dict[str, Any]] = [
    {},
    {"centre": False},
    {"centre": False, "class_weights": {"c0": 1.0, "c1": 2.0, "c2": 4.0}},
    {"class_weights": "balanced", "decay": 0.01, "optimiser": {"momentum": 0.9}},
    {"model": {"name": "mlp", "options": {"hidden": 5}}, "seed": 7, "sampling_rate": 0.5},
    {"optimiser": {"name": "adam", "learning_rate": 0.05}, "centre": False},
    {"optimiser": {"name": "yogi", "learning_rate": 0.05}, "sampling_rate": 0.5},
    {"optimiser": {"learning_rate": 0.5}, "records": 800, "checkpoint_every": 2},
    {"model": {"name": "mlp", "options": {"hidden": 9}}, "projection": {"ratio": 2.5}, "centre": False, "seed": 3},
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("parameters", MODELS, ids=range(len(MODELS)))
def test_members_take_the_steps_that_the_method_takes(between: Between, tmp_path: Path, parameters: dict[str, Any]) -> None:
    """To the bit, with every optimiser: nobody fetches a model, and whoever verifies the result makes the same again."""
    study, key, federation = prepared(between, **parameters)
    run_study(between.hub, key, federation, tmp_path / "results")
    between.settle()
    assert between.hub.shown.status(key).phase == "finished", between.hub.shown.status(key).reason
    assert between.refused == {}
    assert not [number for _, kind, number in between.fetched if kind is ObjectKind.BROADCAST and number > 1]
    rounds = STEPS + (study.tasks[0].task == "feature-means")
    assert {number for _, kind, number in between.fetched if kind is ObjectKind.RELEASE} == set(range(1, rounds))
    found = proven(between.bed.hub.journal, tmp_path / "results" / key.hex(), between.bed.analyst.authority)
    assert (found.replayed, found.comparison.exact, len(found.releases)) == (True, True, rounds)
    assert load_result(tmp_path / "results" / key.hex()).summary["steps"] == STEPS
    assert [between.charged(name) for name in SITES] == [rounds] * len(SITES)
    assert all(between.followed(name, key) is None for name in SITES)  # the study is over


def walked(studies: Studies, study: Study, values: list[np.ndarray[Any, Any]]) -> list[tuple[int, bytes, bytes]]:
    """A model from release to release: after each the steps taken, what is kept, and the next broadcast."""
    agreed, kept, found = studies.agreed(study.to_bytes()), b"", []
    own = studies.follow(agreed, b"")
    assert own is not None
    label, first = own.label, b"".join(own.broadcast(own.label))
    own.begin_with(first)
    for each in values:
        own.take(label, each, len(SITES))
        kept = b"".join(own.to_pieces())
        over = len(found) + 1 == len(values)
        found.append((own.taken, kept, b"" if over else b"".join(own.broadcast(label))))
        own = studies.follow(agreed, kept)  # as after a restart
        assert own is not None
    with pytest.raises(HostileInput, match="All steps"):
        own.broadcast(label)
    with pytest.raises(HostileInput):
        own.begin_with(first)
    return found


@pytest.mark.parametrize("parameters", [each for each in MODELS if each.get("centre") is False], ids=str)
@pytest.mark.parametrize("ends", [0, 3, 5])
def test_steps_that_another_process_takes_are_the_same_to_the_bit(bed: TestBed, parameters: dict[str, Any], ends: int) -> None:
    """Also where that process ends, in the midst of any move, and another one goes on with what the guard kept."""
    study, asked = compiled(bed, **parameters), 0

    def ending(request: Any, honest: Any) -> Any:
        nonlocal asked
        asked += 1
        return None if ends and asked % ends == 0 else honest(request)

    size = AgreedStudy(study).tasks[0].size
    draw = np.random.default_rng(5)
    values = [draw.integers(-(2**30), 2**30, size) for _ in range(STEPS)]
    away = WorkerStudies(ThreadStarter(ending))
    try:
        assert walked(away, study, values) == walked(LocalStudies(), study, values)
    finally:
        away.close()
    assert asked > STEPS


@pytest.mark.parametrize(
    ("what", "at"),
    [("model", 2), pytest.param("centre", 3, marks=pytest.mark.system), ("class weights", 4), ("nothing but a bit", 4)],
)
def test_another_broadcast_to_all_is_refused_by_all_and_costs_nothing(between: Between, what: str, at: int) -> None:
    _, key, federation = prepared(between)
    change = {
        "model": {f"{MODEL}head.weight": 100.0},
        "centre": {CENTRE: 0.1},
        "class weights": {CLASS_WEIGHTS: -0.2},
        "nothing but a bit": {f"{MODEL}head.weight": 1e-4},
    }[what]
    with pytest.raises(RoundLostError):
        FedSGD().compute(Steered(federation, at, change))
    assert between.refused == dict.fromkeys(SITES[:3], UNFOLLOWED)  # the last is not asked any more
    assert [between.charged(name) for name in SITES] == [at - 1] * len(SITES)
    assert [between.reserved(name) for name in SITES] == [at - 1] * len(SITES)
    assert between.hub.shown.status(key).phase == "failed"


def others_model(study: Study, federation: Steered) -> bytes:
    """A model of the right form that does not follow."""
    task = AgreedStudy(study).task("gradient")
    arrays = {name: np.full_like(array, 0.3) for name, array in task.task.example_broadcast(4).items()}
    return encode_broadcast(arrays, task.single)


@pytest.mark.parametrize("name", ["a", "b"])
def test_another_model_to_one_member_is_refused_by_it_alone(between: Between, name: str) -> None:
    """It refuses whether it is sent its own model or none: the others go on without it, and their masks cancel."""
    study, _, federation = prepared(between)
    steered = Steered(federation, 0)
    between.models = {(name, 3): others_model(study, steered)}
    FedSGD().compute(steered)
    assert between.refused == {name: UNFOLLOWED}
    assert [release.cohort for release in steered.releases[1:3]] == [tuple(SITES), tuple(sorted(set(SITES) - {name}))]
    assert {other: between.charged(other) for other in SITES} == {**dict.fromkeys(SITES, STEPS + 1), name: 2}


def test_another_model_after_a_restart_is_refused(between: Between) -> None:
    """The site keeps the model: another process of it goes on with its own, and needs no release twice."""
    study, _, federation = prepared(between)
    steered, done = Steered(federation, 0), set[int]()

    def restart(name: str, directive: Directive) -> None:
        if directive.kind == DirectiveKind.CONTRIBUTE and directive.round == 3 and 3 not in done:
            done.add(directive.round)
            between.reopen("b")

    between.before = restart
    between.models = {("b", 4): others_model(study, steered)}
    FedSGD().compute(steered)
    assert done == {3}
    assert between.refused == {"b": UNFOLLOWED | {"context-mismatch"}}  # it was asked by the nonce of its former process
    fetched = [number for name, kind, number in between.fetched if (name, kind) == ("b", ObjectKind.RELEASE)]
    assert sorted(set(fetched)) == sorted(fetched)
    assert between.charged("b") == 3


def fetching(between: Between, name: str) -> following.Fetch:
    """What the coordinator holds, for a member."""
    channel = LocalChannel(between.hub, name)
    return channel.fetch


def caught_up(between: Between, key: bytes, name: str, number: int, show: Any) -> bytes:
    """What a member would contribute to, of the last assignment of a round."""
    with between.hub.changed:
        current = between.hub.studies[key].machine.rounds[number - 1]
    assignment = current.assignment

    held = fetching(between, name)

    def fetch(kind: ObjectKind, study: bytes, number: int, attempt: int) -> bytes:
        return bytes(show(kind, number, held(kind, study, number, attempt)))

    return Following(between.cores[name].site).broadcast(key, assignment, None, fetch)


def released(between: Between, rounds: int, at: int = 0, **parameters: Any) -> tuple[bytes, Federation]:
    """A study some rounds of which were released to a, b and c; the one ``at`` has another model than follows."""
    _, key, federation = prepared(between, **parameters)

    class EndedError(Exception):
        pass

    class Some(Steered):
        def sum(self, label: str, broadcast: Mapping[str, Floats] | None = None, *, members: Any = None) -> Release:
            if len(self.releases) == rounds:
                raise EndedError
            return super().sum(label, broadcast, members=tuple("abc"))

    with pytest.raises(EndedError):
        FedSGD().compute(Some(federation, at, {f"{MODEL}head.weight": 0.5}))
    return key, federation


def test_who_missed_rounds_takes_their_steps_and_no_false_one(between: Between) -> None:
    """d had no part in the first rounds: it verifies each release, and is shown others' in vain."""
    key, _ = released(between, 3)
    seen: list[int] = []

    def swapped(kind: ObjectKind, number: int, data: bytes) -> bytes:
        return between.hub.objects.fetch("d", pb.OBJECT_KIND_RELEASE, key, 1, 0) if number == 2 else data

    with pytest.raises(Refusal) as caught:
        caught_up(between, key, "d", 3, swapped)
    assert caught.value.code is RefusalCode.BROADCAST
    kept = between.followed("d", key)
    assert kept is not None
    assert kept.marks["round"] == 1  # what held stays

    def watched(kind: ObjectKind, number: int, data: bytes) -> bytes:
        seen.append(number)
        return data

    own = caught_up(between, key, "d", 3, watched)
    assert own is not None
    with between.hub.changed:
        assert broadcast_digest(own) == between.hub.studies[key].machine.rounds[2].assignment.broadcast
    assert seen == [2]


@pytest.mark.parametrize("number", [2, 3])
def test_a_model_at_hand_is_the_one_that_is_kept(between: Between, number: int) -> None:
    """From call to call a site has its model at hand; one that was refused half way, or that its database no longer holds, is
    read again."""
    key, _ = released(between, 3, centre=False, steps=STEPS + 1)
    site, held = between.bed.sites["d"], fetching(between, "d")
    own = Following(site)
    with between.hub.changed:
        assignments = [current.assignment for current in between.hub.studies[key].machine.rounds]
    rng = np.random.default_rng(21)

    def go(until: int, fetch: following.Fetch = held) -> bytes:
        """The digest of what it would broadcast, as any other process of the site finds it, too."""
        found = broadcast_digest(own.broadcast(key, assignments[until - 1], None, fetch))
        assert found == broadcast_digest(Following(site).broadcast(key, assignments[until - 1], None, fetch))
        return found

    def spoil(kind: ObjectKind, study: bytes, number: int, attempt: int) -> bytes:
        data = bytearray(held(kind, study, number, attempt))
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        return bytes(data)

    for _ in range(6):
        if number == 3:
            assert go(2) == assignments[1].broadcast
        with pytest.raises(Refusal) as caught:
            own.broadcast(key, assignments[number - 1], None, spoil)
        assert caught.value.code is RefusalCode.BROADCAST
    forged = replace(assignments[number - 1], broadcast=bytes(32))
    with pytest.raises(Refusal):
        own.broadcast(key, forged, None, held)
    assert go(number) == go(number) == assignments[number - 1].broadcast
    with site.database.transaction() as connection:
        drop_followed(connection, key)
    if number == 3:
        assert go(1) == assignments[0].broadcast  # and two steps at once
    assert go(3) == assignments[2].broadcast


def test_a_model_that_all_other_members_took_is_refused(between: Between, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator and a, b and c go on with a model of their own: the sum is true, and d takes no step of it."""

    def as_it_comes(self: Following, key: bytes, assignment: Any, enclosed: bytes | None, fetch: following.Fetch) -> bytes:
        return fetch(ObjectKind.BROADCAST, key, assignment.round, assignment.attempt)

    with monkeypatch.context() as patch:
        patch.setattr(following.Following, "broadcast", as_it_comes)
        key, _ = released(between, 3, at=2)
    with pytest.raises(Refusal, match="made of a broadcast that does not follow") as caught:
        caught_up(between, key, "d", 3, lambda kind, number, data: data)
    assert caught.value.code is RefusalCode.BROADCAST
    kept = between.followed("d", key)
    assert kept is not None
    assert kept.marks["round"] == 1


def test_any_byte_of_a_release_that_is_changed_is_found(between: Between) -> None:
    """Receipts, answers, consents, signatures, and the sum in any place; nothing of it moves the model."""
    key, _ = released(between, 3)
    true = between.hub.objects.fetch("d", pb.OBJECT_KIND_RELEASE, key, 1, 0)
    rng = np.random.default_rng(20)
    places = {*rng.integers(len(true), size=60).tolist(), 0, 1, len(true) - 1, len(true) // 2}
    for place in sorted(places):
        spoilt = bytearray(true)
        spoilt[place] ^= 1 << int(rng.integers(8))
        shown = bytes(spoilt)
        with pytest.raises(Refusal) as caught:
            caught_up(between, key, "d", 3, lambda kind, number, data, shown=shown: shown if number == 1 else data)
        assert caught.value.code is RefusalCode.BROADCAST
        assert between.followed("d", key) is None
    assert caught_up(between, key, "d", 3, lambda kind, number, data: data) is not None


def test_a_release_without_its_words_or_with_anothers_is_found(between: Between) -> None:
    """The sum of another round under a true proof, a proof of another round over a true sum, none, and too much of it."""
    key, _ = released(between, 3)
    first, second = (
        pb.ReleaseObject.FromString(between.hub.objects.fetch("d", pb.OBJECT_KIND_RELEASE, key, number, 0))
        for number in (1, 2)
    )
    spoilt = [second, pb.ReleaseObject()]
    for name in ("assignment", "certificate", "total"):
        for value in (getattr(second, name), b"", getattr(first, name) + b"\0"):
            other = pb.ReleaseObject.FromString(first.SerializeToString())
            setattr(other, name, value)
            spoilt.append(other)
    for change in ("members", "receipts"):
        other = pb.ReleaseObject.FromString(first.SerializeToString())
        field = other.members if change == "members" else other.fixed.receipts
        spoilt += [pb.ReleaseObject.FromString(other.SerializeToString()) for _ in [field.pop()]]
        field.reverse()
        spoilt.append(other)
    for other in spoilt:
        if other == first:  # the coordinator's certificate was the same
            continue
        shown = other.SerializeToString()
        with pytest.raises(Refusal) as caught:
            caught_up(between, key, "d", 3, lambda kind, number, data, shown=shown: shown if number == 1 else data)
        assert caught.value.code is RefusalCode.BROADCAST
    assert between.followed("d", key) is None


def test_two_releases_of_one_round_do_not_meet_in_a_third(between: Between) -> None:
    """A member that consented to one attempt is not shown another's: its coordinator tells of one sum for each round."""
    key, _ = released(between, 2)
    site = between.bed.sites["a"]
    with site.database.transaction() as connection:  # as if a had consented to a later attempt
        connection.execute(ATTEMPTS.update().where(ATTEMPTS.c.round == 2).values(attempt=99))
    with between.hub.changed:
        assignment = between.hub.studies[key].machine.rounds[1].assignment
    later = replace(assignment, round=3)
    with pytest.raises(Refusal, match="another attempt than this site consented to"):
        Following(between.cores["a"].site).broadcast(key, later, None, fetching(between, "a"))


def enclosed(between: Between, key: bytes, name: str, number: int) -> bytes:
    """What comes along with the assignment of a round."""
    asked = pb.Directive(kind=pb.DIRECTIVE_KIND_CONTRIBUTE, study=key, round=number, attempt=99)
    return between.hub.objects.enclose(name, asked).object


def goes_on(between: Between, key: bytes, name: str, data: bytes, fetch: following.Fetch) -> None:
    """A member takes the step of round 3; what it is asked to contribute to names another broadcast than follows."""
    with between.hub.changed:
        assignment = between.hub.studies[key].machine.rounds[2].assignment
    Following(between.cores[name].site).broadcast(key, replace(assignment, round=4, attempt=99), data, fetch)


def nothing(kind: ObjectKind, number: int, attempt: int) -> bytes:
    raise AssertionError("it has all that it needs")


def test_a_member_is_sent_what_it_has_not_seen(between: Between) -> None:
    """Others' consents with their signatures, and the sum, any byte of which is held to what it saw; who was not there is
    sent all."""
    key, _ = released(between, 3)
    whole = between.hub.objects.fetch("a", pb.OBJECT_KIND_RELEASE, key, 3, 0)
    assert enclosed(between, key, "d", 4) == whole
    told, all_of_it = enclosed(between, key, "a", 4), pb.ReleaseObject.FromString(whole)
    sent = pb.ReleaseObject.FromString(told)
    others = [pb.MemberConsent(consent=each.consent, signature=each.signature) for each in all_of_it.members[1:]]
    assert sent == pb.ReleaseObject(members=[pb.MemberConsent(), *others], total=all_of_it.total)
    rng = np.random.default_rng(21)
    for place in sorted({*rng.integers(len(told), size=60).tolist(), 0, 1, 2, 3, len(told) - 1}):
        spoilt = bytearray(told)
        spoilt[place] ^= 1 << int(rng.integers(8))
        with pytest.raises(Refusal) as caught:
            goes_on(between, key, "a", bytes(spoilt), nothing)
        assert caught.value.code is RefusalCode.BROADCAST
        kept = between.followed("a", key)
        assert kept is not None
        assert kept.marks["round"] == 2
    with pytest.raises(Refusal, match="receipt of a does not hold"):  # whose consent is left out of what a is sent
        goes_on(between, key, "b", told, nothing)
    with pytest.raises(Refusal, match="not the step"):
        goes_on(between, key, "a", told, nothing)
    assert (kept := between.followed("a", key)) is not None
    assert kept.marks["round"] == 3
    with between.bed.sites["a"].database.reading() as connection:
        assert find_seen(connection, key) is None, "it took the step"


@pytest.mark.parametrize("keeps", ["nothing", "another round"])
def test_who_keeps_nothing_of_a_round_fetches_all_of_it(between: Between, keeps: str) -> None:
    key, _ = released(between, 3)
    site, fetched = between.bed.sites["a"], list[int]()
    earlier = between.hub.objects.fetch("a", pb.OBJECT_KIND_RELEASE, key, 2, 0)
    with site.database.transaction() as connection:
        assert find_seen(connection, key) is not None
        if keeps == "nothing":
            connection.execute(FOLLOWED.delete().where(FOLLOWED.c.study == key, FOLLOWED.c.place < 0))
        else:
            keep_seen(connection, key, earlier)
    held = fetching(between, "a")

    def fetch(kind: ObjectKind, study: bytes, number: int, attempt: int) -> bytes:
        fetched.append(number)
        return held(kind, study, number, attempt)

    with pytest.raises(Refusal, match="not the step"):
        goes_on(between, key, "a", enclosed(between, key, "a", 4), fetch)
    assert fetched == [3]
    assert (kept := between.followed("a", key)) is not None
    assert kept.marks["round"] == 3


@pytest.mark.parametrize("renewed", [renew, renew_with_new_key])
@pytest.mark.parametrize("before", [DirectiveKind.CONTRIBUTE, DirectiveKind.CONSENT], ids=["contribute", "consent"])
def test_the_coordinators_certificate_is_renewed_between_releases(
    between: Between, tmp_path: Path, renewed: Any, before: DirectiveKind
) -> None:
    """Members go on, one restarted by it too, and are shown the certificate again with the first release that it signed."""
    _, key, federation = prepared(between)
    bed, done = between.bed, set[int]()

    def renew_before(name: str, directive: Directive) -> None:
        if directive.kind == before and directive.round == 2 and name == "b" and not done:
            done.add(2)
            renewed(bed.kit, bed.kit.coordinator, bed.clock)
            between.hub.renew(load_credentials(bed.kit.coordinator.identity, bed.clock(), Role.COORDINATOR))
        if directive.kind == DirectiveKind.CONTRIBUTE and directive.round == 4 and 4 not in done:
            done.add(4)
            between.reopen("d")

    between.before = renew_before
    run_study(between.hub, key, federation, tmp_path / "results")
    between.settle()
    assert done == {2, 4}
    assert between.hub.shown.status(key).phase == "finished", between.hub.shown.status(key).reason
    assert [between.charged(name) for name in SITES] == [STEPS + 1] * len(SITES)
    assert all(codes == {RefusalCode.CONTEXT.value} for codes in between.refused.values())  # the nonce of a former process
    agreed, roster = AgreedStudy(federation.study), len(SITES)
    shown = [
        pb.ReleaseObject.FromString(release_object(bed.hub.journal.database, agreed, roster, number)).certificate
        for number in range(1, STEPS + 2)
    ]
    assert shown[0] != shown[1] == shown[2] == shown[3]
    assert proven(bed.hub.journal, tmp_path / "results" / key.hex(), bed.analyst.authority).comparison.exact


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_of_the_model_loses_nothing(
    between: Between, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """b dies at each write of its model, before or after it is durable, and is charged once for each round."""

    class Death(BaseException):
        pass

    _, key, federation = prepared(between)
    armed: dict[str, set[int]] = {name: set() for name in SITES}
    keep, deaths = following.Following._keep, list[int]()

    def dying(self: following.Following, study: bytes, rules: Any, model: Any) -> None:
        fresh = rules.round <= 3 and rules.round not in armed[self._site.name]  # as often as a coordinator bears it
        armed[self._site.name].add(rules.round)
        if fresh and self._site.name == "b" and when == "before":
            raise Death
        keep(self, study, rules, model)
        if fresh and self._site.name == "b":
            raise Death

    monkeypatch.setattr(following.Following, "_keep", dying)
    step = between.step

    def surviving() -> bool:
        try:
            return step()
        except Death:
            deaths.append(1)
            between.reopen("b")
            return True

    monkeypatch.setattr(between, "step", surviving)
    run_study(between.hub, key, federation, tmp_path / "results")
    between.settle()
    assert len(deaths) == 3
    assert between.hub.shown.status(key).phase == "finished", between.hub.shown.status(key).reason
    assert [between.charged(name) for name in SITES] == [STEPS + 1] * len(SITES)
    assert proven(between.bed.hub.journal, tmp_path / "results" / key.hex(), between.bed.analyst.authority).comparison.exact


def test_first_values_of_another_seed_are_refused(between: Between) -> None:
    _, _, federation = prepared(between, model={"name": "mlp", "options": {"hidden": 3}}, centre=False)
    task = AgreedStudy(federation.study).task("gradient")
    far = task.as_broadcast(task.task.example_broadcast(4))
    far[f"{MODEL}features.hidden.weight"] += 1e-3
    with pytest.raises(RoundLostError):
        federation.sum("gradient", far)
    assert between.refused == dict.fromkeys(SITES[:3], UNFOLLOWED)
    assert [between.reserved(name) for name in SITES] == [0] * len(SITES)


def test_first_values_that_another_processor_rounds_begin_a_study(between: Between) -> None:
    """A seed gives the same values but for rounding: such a model is followed from there on, by all alike."""
    _, key, federation = prepared(between, model={"name": "mlp", "options": {"hidden": 3}}, centre=False)
    task = AgreedStudy(federation.study).task("gradient")
    near = task.as_broadcast(task.task.example_broadcast(4))
    name = f"{MODEL}features.hidden.weight"
    near[name] = near[name] * (1.0 + 2.0**-22)
    assert federation.sum("gradient", near).cohort == tuple(SITES)
    assert all(between.followed(name, key) is not None for name in SITES)
    assert {kind for _, kind, _ in between.fetched} >= {ObjectKind.BROADCAST}


def test_no_other_study_shows_its_sums_to_members(between: Between) -> None:
    """Only where members take the steps; and there to members alone."""
    _, key, federation = prepared(between, followed=False)
    FedSGD().compute(federation)
    for name in SITES:
        with pytest.raises(Exception, match="members take its steps"):
            between.hub.objects.fetch(name, pb.OBJECT_KIND_RELEASE, key, 1, 0)
    _, other, followed = prepared(between)
    FedSGD().compute(followed)
    assert between.hub.objects.fetch("a", pb.OBJECT_KIND_RELEASE, other, 1, 0)
    with pytest.raises(Exception, match=r"no part|not invited"):
        between.hub.objects.fetch("nobody", pb.OBJECT_KIND_RELEASE, other, 1, 0)


def test_nothing_is_kept_of_a_study_that_ends_while_its_release_is_put_together(
    between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, key, federation = prepared(between, centre=False)
    hub, made = between.hub, coordinators_fetching.release_object

    def stopped(*given: Any) -> bytes:
        found = made(*given)
        hub.abort(key, "enough")
        assert hub.stored(key)
        return found

    monkeypatch.setattr(coordinators_fetching, "release_object", stopped)
    task = AgreedStudy(federation.study).task("gradient")
    federation.sum("gradient", task.as_broadcast(task.task.example_broadcast(4)))
    assert hub.shown.status(key).phase == "aborted"
    assert hub.objects._released == {}


@pytest.mark.parametrize("isolation", ["none", pytest.param("processes", marks=pytest.mark.system)])
def test_sites_in_real_processes_take_the_steps(tmp_path: Path, isolation: str) -> None:
    """Over gRPC, also where the guard has neither network nor torch; a coordinator and a site that restart go on."""
    if isolation == "processes" and unconfinable():
        pytest.skip("this machine cannot confine processes")
    waits = Waits(enrol=200, seal=200, contribute=200, consent=200, check=200, grace=60)
    data = make_clusters("abc", WIDTH, CLASSES, shares=(0.7, 0.25, 0.05))
    with running_processes(tmp_path, data, waits=waits, isolation=isolation) as network:
        request = make_request(schema_of(WIDTH, CLASSES, 200), "fedsgd", 8.0, min_cohort=3)
        study = network.compile(request.model_copy(update={"parameters": {"steps": 12, "optimiser": {"momentum": 0.5}}}))
        key = network.submit(study)
        network.await_status(key, lambda status: len(status.rounds) > 2, "the second step")
        network.participants["b"].kill()
        network.heal()
        network.await_status(key, lambda status: len(status.rounds) > 5, "the fifth step")
        network.restart_coordinator(waits)
        status = network.await_end(key)
        assert status.phase == "finished", status.reason
        assert not [item for item in status.refusals if item.code == RefusalCode.BROADCAST.value]
        assert {count(network.entries(name, key), Kind.CHARGE) for name in "abc"} == {13}
