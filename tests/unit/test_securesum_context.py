"""The context's digest: any change of anything that a contribution depends on changes it, and so every mask."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from inspect import signature
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from support.federation import DATASET, schema_of
from veilsum_node.canonical import canonical, digest
from veilsum_node.errors import HostileInput, Misuse
from veilsum_node.identity import Identity, Role
from veilsum_privacy.results.former.layout import BFV_8192, FormerPlan, former_context, plan_encoding
from veilsum_privacy.securesum.context import (
    Assignment,
    broadcast_digest,
    context_digest,
    decode_broadcast,
    encode_broadcast,
    parse_assignment,
)
from veilsum_privacy.securesum.lanes import LanePlan
from veilsum_privacy.securesum.ring import RING_2048_FEW, RING_4096_FEW
from veilsum_privacy.securesum.roster import Enrolment, Member, Roster
from veilsum_privacy.study.study import PrivacyDemand, Study, TaskDeclaration
from veilsum_privacy.tasks.agreed import AgreedStudy, AgreedTask, RoundPlan

MEANS = {"clip": 1.0, "missing": "centre", "count_weight": 0.5, "sum_weight": 1.0}
NAMES = ("east", "north", "south", "west")
KEY = ec.generate_private_key(ec.SECP256R1()).public_key()


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _member(name: str, fingerprint: str = "", public: bytes = b"") -> Member:
    identity = Identity(name, Role.PARTICIPANT, fingerprint or _hash(name).hex(), KEY, 0, 1, b"")
    return Member(identity, public or _hash("public " + name), Enrolment(b"", b"", b""))


STUDY = Study(
    version=1, name="trial", federation="ab" * 32, coordinator="coordinator", nonce="0" * 32, created=1, expires=2,
    method="statistics", parameters={}, dataset=DATASET, data=schema_of(3),
    privacy=PrivacyDemand(epsilon=1.0, delta=1e-5, noise="distributed", assumed_colluders=1, min_cohort=2,
                          cohort_difference="allowed", unit="record"),
    tasks=(TaskDeclaration(label="one", task="feature-means", parameters=MEANS, disclosure="joint", releases=2, grid=1000,
                           variance=10**7),),
    participants=NAMES, weights=dict.fromkeys(NAMES, 1),
)  # fmt: skip
ROSTER = Roster(tuple(_member(name) for name in NAMES), _hash("roster"))
ASSIGNMENT = Assignment(3, 5, "one", tuple((name, _hash(name)[:16]) for name in NAMES[:3]), _hash("broadcast"), 1000)
PLAN = AgreedStudy(STUDY).task("one").plan(len(NAMES), 3)


def _digest(
    study: Study = STUDY,
    study_digest: bytes = _hash("study"),
    roster: Roster = ROSTER,
    assignment: Assignment = ASSIGNMENT,
    plan: RoundPlan = PLAN,
) -> bytes:
    agreed = AgreedStudy(study)
    vars(agreed)["digest"] = study_digest
    return context_digest(replace_task(plan, agreed, plan.declaration), roster, assignment)


def replace_task(plan: RoundPlan, agreed: AgreedStudy, declaration: TaskDeclaration) -> RoundPlan:
    """A plan with a task that was never verified, so that one thing changes alone."""
    task = object.__new__(AgreedTask)
    vars(task).update(agreed=agreed, declaration=declaration)
    return replace(plan, task=task)


def _study(**changes: Any) -> Study:
    return STUDY.model_copy(update=changes)


def _privacy(**changes: Any) -> Study:
    return _study(privacy=STUDY.privacy.model_copy(update=changes))


def _task(**changes: Any) -> RoundPlan:
    return replace_task(PLAN, PLAN.task.agreed, PLAN.declaration.model_copy(update=changes))


def _encoding(**changes: Any) -> RoundPlan:
    return replace(PLAN, encoding=replace(PLAN.encoding, **changes))


def _ring(**changes: Any) -> RoundPlan:
    return _encoding(ring=replace(PLAN.encoding.ring, **changes))


def _noise(**changes: Any) -> RoundPlan:
    return replace(PLAN, noise=replace(PLAN.noise, **changes))


def _with_member(member: Member) -> Roster:
    return replace(ROSTER, members=(member, *ROSTER.members[1:]))


def _cohort(*members: tuple[str, bytes]) -> Assignment:
    return replace(ASSIGNMENT, cohort=members)


FIRST, SECOND, THIRD = ASSIGNMENT.cohort
CHANGES: dict[str, Callable[[], bytes]] = {
    "federation": lambda: _digest(_study(federation="cd" * 32)),
    "study digest": lambda: _digest(study_digest=_hash("other study")),
    "roster digest": lambda: _digest(roster=replace(ROSTER, digest=_hash("other roster"))),
    "round": lambda: _digest(assignment=replace(ASSIGNMENT, round=4)),
    "attempt": lambda: _digest(assignment=replace(ASSIGNMENT, attempt=6)),
    "deadline": lambda: _digest(assignment=replace(ASSIGNMENT, deadline=1001)),
    "cohort smaller": lambda: _digest(assignment=_cohort(FIRST, SECOND)),
    "cohort larger": lambda: _digest(assignment=_cohort(FIRST, SECOND, THIRD, ("west", bytes(16)))),
    "cohort order": lambda: _digest(assignment=_cohort(SECOND, FIRST, THIRD)),
    "cohort member": lambda: _digest(assignment=_cohort(FIRST, SECOND, ("west", THIRD[1]))),
    "session nonce": lambda: _digest(assignment=_cohort((FIRST[0], bytes(16)), SECOND, THIRD)),
    "nonces exchanged": lambda: _digest(assignment=_cohort((FIRST[0], SECOND[1]), (SECOND[0], FIRST[1]), THIRD)),
    "member's certified key": lambda: _digest(roster=_with_member(_member("east", fingerprint="00" * 32))),
    "member's box key": lambda: _digest(roster=_with_member(_member("east", public=b"other"))),
    "broadcast": lambda: _digest(assignment=replace(ASSIGNMENT, broadcast=_hash("other model"))),
    "task label": lambda: _digest(plan=_task(label="two")),
    "task name": lambda: _digest(plan=_task(task="class-moments")),
    "task parameters": lambda: _digest(plan=_task(parameters={"clip": 1})),
    "disclosure": lambda: _digest(plan=_task(disclosure="per-site")),
    "releases": lambda: _digest(plan=_task(releases=3)),
    "sensitivity": lambda: _digest(plan=_task(grid=1001)),
    "variance": lambda: _digest(plan=_task(variance=10**7 + 1)),
    "weights": lambda: _digest(_study(weights=dict.fromkeys(NAMES, 1) | {"east": 2})),
    "schema": lambda: _digest(_study(data=schema_of(4))),
    "schema's bounds": lambda: _digest(_study(data=schema_of(3, max_records=999))),
    "size": lambda: _digest(plan=_encoding(size=1)),
    "bound": lambda: _digest(plan=_encoding(bound=PLAN.encoding.bound + 1)),
    "reach": lambda: _digest(plan=_encoding(reach=PLAN.encoding.reach + 1)),
    "offset": lambda: _digest(plan=_encoding(offset=PLAN.encoding.offset + 1)),
    "width": lambda: _digest(plan=_encoding(width=PLAN.encoding.width + 1)),
    "lanes": lambda: _digest(plan=_encoding(lanes=PLAN.encoding.lanes + 1)),
    "degree": lambda: _digest(plan=_ring(degree=16384)),
    "coefficient prime": lambda: _digest(plan=_ring(prime=12289)),
    "plain modulus": lambda: _digest(plan=_ring(plain_modulus=65537)),
    "kind of noise": lambda: _digest(plan=_noise(kind="local", honest=1)),
    "noise's variance": lambda: _digest(plan=_noise(variance=PLAN.noise.variance + 1)),
    "honest shares": lambda: _digest(plan=_noise(honest=1)),
    "colluders": lambda: _digest(plan=_noise(colluders=2)),
    "delta": lambda: _digest(_privacy(delta=1e-6)),
    "unit": lambda: _digest(_privacy(unit="subject")),
}


def test_what_follows_from_a_study_is_worked_out_once() -> None:
    agreed = AgreedStudy.parse(STUDY.to_bytes())
    task = agreed.task("one")
    assert task is agreed.task("one") is agreed.tasks[0]
    assert task.plan(4, 3) is task.plan(4, 3)
    assert task.plan(4, 2) is not task.plan(4, 3)
    assert agreed.digest == hashlib.sha256(STUDY.to_bytes()).digest()


def test_the_same_input_has_the_same_digest() -> None:
    again = Study.model_validate_json(STUDY.model_dump_json())
    assert _digest() == _digest(again, plan=AgreedStudy(again).task("one").plan(4, 3))
    assert len(_digest()) == 32


@pytest.mark.parametrize(("variance", "mechanism"), [(10**7, "discrete-gaussian"), (0, "none")])
def test_the_digest_is_of_the_design_s_list(variance: int, mechanism: str) -> None:
    """The list written out: whoever changes what a contribution is bound to changes it here too."""
    plan = _task(variance=variance)
    declared = plan.declaration.model_dump(mode="json")
    said = {"task": declared, "weights": dict.fromkeys(NAMES, 1), "schema": STUDY.data.model_dump(mode="json")}
    common = {
        "federation": "ab" * 32, "study": _hash("study"), "roster": _hash("roster"),
        "round": 3, "attempt": 5, "deadline": 1000,
        "cohort": [[name, _hash(name).hex(), _hash("public " + name), _hash(name)[:16]] for name in NAMES[:3]],
        "task": digest("veilsum/1/task", canonical(said)), "broadcast": _hash("broadcast"),
        "noise": PLAN.noise.to_context(),
        "event": {"mechanism": mechanism, "sensitivity": 1000, "variance": str(variance), "sampling_rate": 1.0, "steps": 1,
                  "delta": 1e-5, "unit": "record"},
    }  # fmt: skip

    def lanes(encoding: LanePlan) -> dict[str, object]:
        numbers = {"bound": str(encoding.bound), "reach": str(encoding.reach), "offset": str(encoding.offset)}
        return {**numbers, "size": encoding.size, "width": encoding.width, "lanes": encoding.lanes}

    ring = PLAN.encoding.ring
    moduli = {"degree": ring.degree, "prime": str(ring.prime), "plain_modulus": str(ring.plain_modulus)}
    now = {"v": 6, "encoding": lanes(PLAN.encoding), "ring": moduli}
    assert _digest(plan=plan) == digest("veilsum/6/context", canonical(common | now))

    encoding = plan_encoding(PLAN.encoding.size, PLAN.encoding.bound, PLAN.task.released_variance(3), 3, BFV_8192)
    bfv = {"degree": 8192, "prime_bits": [60, 60], "plain_modulus": 281474976694273}
    then = {"v": 1, "encoding": lanes(encoding), "bfv": bfv, "keys": _hash("keys")}
    agreed = AgreedStudy(STUDY)
    vars(agreed)["digest"] = _hash("study")
    former = FormerPlan(replace_task(PLAN, agreed, plan.declaration).task, encoding, PLAN.noise)
    found = former_context(former, ROSTER, _hash("keys"), ASSIGNMENT)
    assert found == digest("veilsum/1/context", canonical(common | then))
    assert found != former_context(former, ROSTER, _hash("other keys"), ASSIGNMENT)


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_every_change_changes_the_digest(name: str) -> None:
    assert CHANGES[name]() != _digest()


def test_no_two_changes_share_a_digest() -> None:
    assert len({change() for change in CHANGES.values()}) == len(CHANGES)


ASSIGNMENTS = st.builds(
    Assignment,
    st.integers(1, 2**53 - 1),
    st.integers(1, 2**53 - 1),
    st.sampled_from(["one", "two"]),
    st.lists(st.tuples(st.sampled_from(NAMES), st.binary(min_size=16, max_size=16)), max_size=4).map(tuple),
    st.binary(min_size=32, max_size=32),
    st.integers(1, 2**53 - 1),
)


@settings(deadline=None)
@given(ASSIGNMENTS, ASSIGNMENTS)
def test_two_assignments_share_a_digest_only_if_they_are_equal(one: Assignment, other: Assignment) -> None:
    one, other = replace(one, label="one"), replace(other, label="one")  # the label is bound with the task's declaration
    assert (_digest(assignment=one) == _digest(assignment=other)) == (one == other)


@given(ASSIGNMENTS)
def test_an_assignment_survives_its_bytes(assignment: Assignment) -> None:
    assert parse_assignment(assignment.to_bytes()) == assignment


RIGHT: dict[str, Any] = {
    "v": 1, "round": 3, "attempt": 5, "label": "one", "cohort": [["a", bytes(16)]], "broadcast": bytes(32), "deadline": 9
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"v": True}, {"round": 0}, {"round": "1"}, {"round": True}, {"round": None}, {"attempt": -1}, {"attempt": 2**53},
        {"deadline": 0}, {"deadline": [1]}, {"label": 1}, {"label": None}, {"cohort": 5}, {"cohort": [["a"]]},
        {"cohort": [["a", "00"]]}, {"cohort": [["a", "zz" * 16]]}, {"cohort": [["a", None]]}, {"broadcast": "00"},
        {"broadcast": None}, {"broadcast": 7},
    ],
)  # fmt: skip
def test_malformed_assignments_are_refused(change: dict[str, Any]) -> None:
    parse_assignment(canonical(RIGHT))
    with pytest.raises(HostileInput):
        parse_assignment(canonical(RIGHT | change))


@pytest.mark.parametrize(
    "value",
    [*({key: item for key, item in RIGHT.items() if key != name} for name in RIGHT), RIGHT | {"more": 1}, RIGHT | {"v": 2}],
)
def test_assignments_of_other_fields_are_refused(value: dict[str, Any]) -> None:
    with pytest.raises(HostileInput, match="exactly the fields of version 1"):
        parse_assignment(canonical(value))


@pytest.mark.parametrize(
    "change",
    [
        {"v": True},
        {"broadcast": "AB" * 32},
        {"broadcast": "00 " * 32},
        {"cohort": [["a", "AB" * 16]]},
        {"cohort": [[1, "00" * 16]]},
    ],
)
def test_an_assignment_has_one_encoding_only(change: dict[str, Any]) -> None:
    with pytest.raises(HostileInput, match="encodes a value differently"):
        parse_assignment(canonical(RIGHT | change))


@pytest.mark.parametrize("number", [1, 2**53 - 1])
def test_numbers_at_both_bounds_are_taken(number: int) -> None:
    assignment = replace(ASSIGNMENT, round=number, attempt=number, deadline=number)
    assert parse_assignment(assignment.to_bytes()) == assignment


def test_a_number_of_2_to_the_53_is_refused() -> None:
    with pytest.raises(HostileInput, match="canonical"):
        parse_assignment(ASSIGNMENT.to_bytes().replace(b'"round":3', b'"round":%d' % (2**53)))


def test_an_assignment_has_2_to_the_18_bytes_at_most() -> None:
    room = 2**18 - len(replace(ASSIGNMENT, label="").to_bytes())
    assignment = replace(ASSIGNMENT, label="a" * room)
    assert parse_assignment(assignment.to_bytes()) == assignment
    with pytest.raises(HostileInput, match="larger than allowed"):
        parse_assignment(replace(assignment, label="a" * (room + 1)).to_bytes())


@given(
    st.binary(max_size=200) | st.text(max_size=100).map(str.encode) | st.sampled_from([b"[]", b"1", b"null", b'"a"', b"{}"])
)
def test_any_bytes_parse_as_an_assignment_or_are_refused(data: bytes) -> None:
    with pytest.raises(HostileInput):
        parse_assignment(data)


def test_the_plan_follows_the_cohort() -> None:
    for members in (2, 3, 4):
        plan = AgreedStudy(STUDY).task("one").plan(4, members)
        assert plan.noise.honest == max(1, members - 1)
        assert plan.encoding.cohort == members
        variance = Fraction(10**7 * members, plan.noise.honest)
        assert plan.encoding.bound == STUDY.data.max_records * 1000
        assert plan.encoding.reach >= members * plan.encoding.bound + 12 * float(variance) ** 0.5
        assert plan.encoding.ring == AgreedStudy(STUDY).ring(4)  # the roster decides, not who is left
    assert AgreedStudy(STUDY).ring(4) in (RING_2048_FEW, RING_4096_FEW)
    with pytest.raises(HostileInput):
        AgreedStudy(STUDY).task("two").plan(4, 3)
    thin = _study(tasks=(STUDY.tasks[0].model_copy(update={"variance": 40}),))
    with pytest.raises(Misuse):
        AgreedStudy(thin).task("one").plan(4, 4)  # three honest shares of 13 grid units squared each


def test_broadcasts_survive_their_bytes_and_are_named_by_them() -> None:
    arrays = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1e100, -0.0])}
    data = encode_broadcast(arrays)
    assert data == encode_broadcast(dict(reversed(arrays.items())))
    decoded = decode_broadcast(data)
    assert set(decoded) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(decoded[name], array)
    assert encode_broadcast({}) == b""
    assert decode_broadcast(b"") == {}
    assert broadcast_digest(data) != broadcast_digest(b"")


def test_a_broadcast_holds_float64_whatever_it_is_made_of() -> None:
    single: Any = np.array([1.5, -2.0], dtype=np.float32)
    assert encode_broadcast({"a": single}) == encode_broadcast({"a": np.array([1.5, -2.0])})


def test_a_models_arrays_may_be_in_single_precision() -> None:
    """Four bytes a value less; everyone reads the nearest single-precision numbers, and no array of the wrong type."""
    rng = np.random.default_rng(5)
    arrays = {"model.w": rng.normal(size=(50, 20)), "seeds": np.array([2.0**53 - 1, 1e100])}
    data = encode_broadcast(arrays, {"model.w"})
    assert len(encode_broadcast(arrays)) - len(data) == pytest.approx(4 * 1000, abs=16)  # the header is padded
    found = decode_broadcast(data, {"model.w"})
    assert {array.dtype for array in found.values()} == {np.dtype(np.float64)}
    np.testing.assert_array_equal(found["seeds"], arrays["seeds"])
    nearest = [struct.unpack("<f", struct.pack("<f", value))[0] for value in arrays["model.w"].ravel()]
    assert found["model.w"].ravel().tolist() == nearest
    assert encode_broadcast(found, {"model.w"}) == data
    for singles in ((), {"seeds"}, {"model.w", "seeds"}):
        with pytest.raises(HostileInput, match="other types"):
            decode_broadcast(data, singles)
    with pytest.raises(HostileInput, match="other types"):
        decode_broadcast(encode_broadcast(arrays), {"model.w"})
    for beyond in (3.5e38, -np.inf, np.nan):  # the largest single-precision number is 3.4e38
        with pytest.raises(HostileInput, match="numbers up to"):
            decode_broadcast(encode_broadcast({"model.w": np.array([1.0, beyond])}, {"model.w"}), {"model.w"})


def test_a_broadcast_holds_4096_arrays_at_most() -> None:
    arrays = {f"a{index}": np.ones(1) for index in range(4096)}
    assert len(decode_broadcast(encode_broadcast(arrays))) == 4096
    with pytest.raises(HostileInput, match="too many arrays"):
        decode_broadcast(encode_broadcast(arrays | {"one more": np.ones(1)}))


def test_an_array_may_be_empty() -> None:
    assert decode_broadcast(encode_broadcast({"a": np.zeros((0, 3))}))["a"].shape == (0, 3)


def test_malformed_broadcasts_are_refused() -> None:
    from safetensors.numpy import save

    good = encode_broadcast({"a": np.ones(4)})
    for data in (
        good[:-1],
        good + b"\0",
        b"\0",
        bytes(100),
        b"\xff" * 100,
        (2**62).to_bytes(8, "little") + good[8:],
        save({"a": np.ones(4, dtype=np.float32)}),
        save({"a": np.array([1.0, np.nan])}),
        save({"a": np.array([np.inf])}),
    ):
        with pytest.raises(HostileInput):
            decode_broadcast(data)


@pytest.mark.parametrize(("disclosure", "blocks"), [("joint", 1), ("per-site", len(NAMES))])
def test_a_vector_has_one_block_or_one_for_every_participant(disclosure: str, blocks: int) -> None:
    """Of the study, not of the cohort: who is not in it keeps an empty block."""
    parameters = {"width": None, "clip": 1.0, "missing": "skip", "count_weight": 1.0, "sum_weight": 1.0}
    task = STUDY.tasks[0].model_copy(update={"task": "feature-means", "parameters": parameters, "disclosure": disclosure})
    for cohort in (3, 4):
        plan = AgreedStudy(_study(tasks=(task,))).task("one").plan(len(NAMES), cohort).encoding
        assert (plan.size, plan.bound, plan.cohort) == (4 * blocks, task.grid * STUDY.data.max_records, cohort)


def _means(disclosure: str) -> AgreedTask:
    """Feature means of 2 numbers at 4 sites: a count and 2 sums a block."""
    parameters = {"width": None, "clip": 3.0, "missing": "skip", "count_weight": 2.0, "sum_weight": 0.5}
    task = STUDY.tasks[0].model_copy(update={"task": "feature-means", "parameters": parameters, "disclosure": disclosure})
    agreed = AgreedStudy(_study(tasks=(task,), data=schema_of(2))).task("one")
    assert (agreed.label, agreed.task.layout().size, agreed.study.sites) == ("one", 3, 4)
    return agreed


def test_a_site_keeps_its_own_block_or_the_whole_vector() -> None:
    noised = np.arange(12)
    own = _means("per-site").kept_part(noised, 2)
    assert own.tolist() == [6, 7, 8]
    own[:] = 0  # a copy, without the other sites' blocks
    assert noised.tolist() == list(range(12))
    assert _means("joint").kept_part(noised[:3], 2).tolist() == [0, 1, 2]


@pytest.mark.parametrize("disclosure", ["joint", "per-site"])
def test_a_kept_vector_is_read_in_its_blocks_own_units(disclosure: str) -> None:
    """A grid unit is worth a thousandth of a record's bound, and each block's weight is divided out."""
    task = _means(disclosure)
    unit = task.task.clip() / 1000
    assert task.unit == unit
    blocks, stds = task.kept_blocks(np.array([4, -6, 10]))
    count, sums = (block.name for block in task.task.layout().blocks)
    assert list(blocks) == list(stds) == [count, sums]
    np.testing.assert_allclose(blocks[count], 2 * unit)
    np.testing.assert_allclose(blocks[sums], [-12 * unit, 20 * unit])
    share = task.noise(4).share_std * unit
    assert stds == pytest.approx({count: share / 2, sums: 2 * share})
    assert task.block_std(10.0) == pytest.approx({count: 5 * unit, sums: 20 * unit})
    for length in (2, 4, 12):
        with pytest.raises(HostileInput, match="different length"):
            task.kept_blocks(np.zeros(length, dtype=np.int64))


def test_a_kept_vector_is_bound_to_its_task_and_broadcast() -> None:
    task = _means("per-site")
    assert task.kept_origin(b"one") == digest("veilsum/1/kept", task.digest, b"one")


def test_what_was_worked_out_is_no_part_of_what_was_agreed() -> None:
    """Neither of its words, nor of what makes two of them equal, nor to be passed in."""
    one, other = AgreedStudy(STUDY), AgreedStudy(STUDY)
    task = one.task("one")
    assert task.plan(4, 3).encoding.ring is one.ring(4)
    assert one == other
    assert task == other.task("one")
    assert repr(one) == f"AgreedStudy(study={STUDY!r})"
    assert repr(task) == f"AgreedTask(declaration={task.declaration!r})"
    assert list(signature(AgreedStudy).parameters) == ["study"]
    assert list(signature(AgreedTask).parameters) == ["agreed", "declaration"]
