"""What the guard reads of a coordinator's objects is what protobuf's own library reads, and every bound of the table holds."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from fuzzing.mutation import mutate_bytes
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from hypothesis import given, settings
from hypothesis import strategies as st

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.encoding import Message, Rule, _say, read, rules
from veilsum_participant.telemetry.shared_metrics import SharedMetric
from veilsum_proto import federation_pb2 as pb

PAIRS: list[tuple[type[Message], type[ProtobufMessage]]] = [
    (says.Directive, pb.Directive), (says.StudyObject, pb.StudyObject), (says.RosterObject, pb.RosterObject),
    (says.BoxesObject, pb.BoxesObject), (says.FixedObject, pb.FixedObject), (says.AnswersObject, pb.AnswersObject),
    (says.MirroredObject, pb.MirroredObject), (says.HelloReply, pb.HelloReply),
]  # fmt: skip
UNREAD = {"Directive": {"outcome"}}
"""What a participant has no use for, by message."""

FEW = 3
"""Values of a repeated field, and bytes of a long one, that are drawn."""

SPOILT = 4
"""Ways in which each message is spoilt."""


def values(rule: Rule) -> st.SearchStrategy[Any]:
    """What a field may hold, and little of it."""
    edges = [number for number in (0, 1, 127, 128, 2**31, 2**32, 2**53, 2**63, 2**64 - 1) if number <= rule.most]
    match rule.kind:
        case "number":
            found: st.SearchStrategy[Any] = st.sampled_from([*edges, rule.most])
        case "real":
            found = st.floats(allow_nan=False, allow_infinity=False)
        case "octets":
            found = st.binary(min_size=rule.least, max_size=max(rule.least, min(rule.most, FEW)))
        case "text":
            found = st.text(max_size=min(rule.most, FEW) // 4 or 1).filter(lambda said: len(said.encode()) <= rule.most)
        case _:
            assert rule.of is not None
            found = messages(rule.of)
    if rule.many:
        return st.lists(found, max_size=min(rule.many, FEW)).map(tuple)
    return st.none() | found if rule.optional else found


def messages(of: type[Message]) -> st.SearchStrategy[Any]:
    """Messages of a class."""
    return st.builds(of, **{name: values(rule) for name, rule in rules(of).items() if rule.kind != "memory"})


def same(ours: Any, theirs: Any, name: str = "") -> bool:
    """Whether a message says the same as protobuf's."""
    for field, rule in rules(type(ours)).items():
        own, other = getattr(ours, field), getattr(theirs, field)
        if rule.optional and not theirs.HasField(field):
            other = None
        pairs = list(zip(own, other, strict=True)) if rule.many else [(own, other)]
        for mine, given_ in pairs:
            if rule.kind == "message" and not same(mine, given_, field):
                return False
            if rule.kind != "message" and mine != given_:
                return False
    return True


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda found: found.__name__)
def test_fields_are_those_of_the_wire_format(ours: type[Message], theirs: type[ProtobufMessage]) -> None:
    """By number, name and kind; what is not read is named above."""
    kinds = {"number": "uint", "real": "double", "octets": "bytes", "text": "string", "message": "message"}
    wire = {
        kinds["number"]: (3, 4, 5, 13, 14),
        kinds["real"]: (1,),
        kinds["octets"]: (12,),
        kinds["text"]: (9,),
        "message": (11,),
    }
    seen: list[tuple[type[Message], Any]] = [(ours, theirs.DESCRIPTOR)]
    while seen:
        own, descriptor = seen.pop()
        known = rules(own)
        assert {field.name for field in descriptor.fields} - set(known) == UNREAD.get(own.__name__, set())
        for name, rule in known.items():
            field = descriptor.fields_by_name[name]
            assert (rule.number, bool(rule.many)) == (field.number, field.is_repeated), (own, name)
            assert field.type in wire[kinds[rule.kind]], (own, name)
            if rule.of is not None:
                seen.append((rule.of, field.message_type))


def test_numbers_are_those_of_the_wire_format() -> None:
    for ours, theirs, prefix in (
        (says.DirectiveKind, pb.DirectiveKind, "DIRECTIVE_KIND_"),
        (says.ObjectKind, pb.ObjectKind, "OBJECT_KIND_"),
        (SharedMetric, pb.SharedMetric, "SHARED_METRIC_"),
    ):
        named = {name.removeprefix(prefix): number for name, number in theirs.items()}
        named = {name: number for name, number in named.items() if number or ours is says.DirectiveKind}
        assert {item.name: item.value for item in ours} == named


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda found: found.__name__)
def test_a_message_is_read_as_protobuf_wrote_it_and_back(ours: type[Message], theirs: type[ProtobufMessage]) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(messages(ours))
    def check(message: Message) -> None:
        other = theirs.FromString(message.to_bytes())
        assert same(message, other)
        written = other.SerializeToString()
        assert read(written, ours) == message
        later = b"\xca\x3e\x03new" + written + b"\xd0\x3e\x01\xd9\x3e12345678"  # fields 1001 to 1003 of a later version
        assert read(later, ours) == message

    check()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda found: found.__name__)
def test_what_is_spoilt_is_refused_or_read_as_protobuf_reads_it(ours: type[Message], theirs: type[ProtobufMessage]) -> None:
    """Nothing but a typed refusal, and never another value than the library's."""
    refused = 0

    @settings(max_examples=130, deadline=None, derandomize=True)
    @given(messages(ours), st.integers(0, 2**32 - 1))
    def check(message: Message, seed: int) -> None:
        nonlocal refused
        random, whole = Random(seed), message.to_bytes()
        for _ in range(SPOILT):  # to draw a message takes longer than all else
            data = mutate_bytes(random, whole, [bytes(range(256)), b"\x0a\x00" * 8])
            try:
                found = read(data, ours)
            except HostileInput:
                refused += 1
                continue
            found.check()  # as who sends does, in a walk of its own
            try:
                other = theirs.FromString(data)
            except DecodeError as error:
                raise AssertionError(f"protobuf refuses {data!r}") from error
            assert same(found, other), data

    check()
    assert refused > 20


@pytest.mark.parametrize("of", says.REQUESTS, ids=lambda found: found.__name__)
def test_requests_and_answers_come_over_as_they_were(of: Any) -> None:
    @settings(max_examples=25, deadline=None, derandomize=True)
    @given(messages(of), messages(of.answer))
    def check(request: Message, answer: Message) -> None:
        assert read(request.to_bytes(), of) == request
        assert read(answer.to_bytes(), of.answer) == answer

    check()


EVERY = [*says.REQUESTS, *{of.answer for of in says.REQUESTS}, says.Failed, *(ours for ours, _ in PAIRS), says.Sample]
EVERY += [says.SignedBytes, says.SealedBox, says.SignedEnrolment, says.MemberAnswer, says.MirroredItem]
BOUNDED = [(of, name, rule) for of in dict.fromkeys(EVERY) for name, rule in rules(of).items() if rule.kind != "real"]


def beyond(rule: Rule) -> list[Any]:
    """Values that break a rule, as small as they may be."""
    wrong: list[Any] = [None] if not rule.optional else []
    match rule.kind:
        case "number":
            wrong += [rule.most + 1, -1, True, 1.0, "1"]
        case "octets":
            wrong += [memoryview(bytes(1)).cast("B"), "text", 1] if rule.least > 1 else ["text", 1]
            wrong += [bytes(rule.most + 1)] if rule.most < 2**22 else []
            wrong += [bytes(rule.least - 1)] if rule.least else []
        case "text":
            wrong += ["a" * (rule.most + 1), "\ud800", b"a"]
        case "message":
            wrong += [says.Acknowledged() if rule.of is not says.Acknowledged else says.Failed(), b""]
    if not rule.many:
        return wrong
    one = rule.of() if rule.of is not None else {"number": 0, "octets": b"", "text": ""}[rule.kind]
    many = [(one,) * (rule.many + 1)] if rule.many < 2**16 else []
    return [*((item,) for item in wrong), [one], one, *many]


@pytest.mark.parametrize(("of", "name", "rule"), BOUNDED, ids=lambda found: getattr(found, "__name__", found))
def test_a_value_beyond_its_bound_is_refused_by_who_sends(of: Any, name: str, rule: Rule) -> None:
    for value in beyond(rule):
        right = {field: b"\x01" * own.least for field, own in rules(of).items() if own.least}
        with pytest.raises(HostileInput, match=f"{of.__name__}.{name}"):
            of(**(right | {name: value})).to_bytes()


@pytest.mark.parametrize(("of", "name", "rule"), BOUNDED, ids=lambda found: getattr(found, "__name__", found))
def test_a_value_beyond_its_bound_is_refused_by_who_reads(of: Any, name: str, rule: Rule) -> None:
    """Also where it is a field's only fault that it is not there."""
    right = {field: b"\x01" * own.least for field, own in rules(of).items() if own.least}
    letter, wrong = "a" if rule.kind == "text" else b"\x01", list[Any]()
    match rule.kind:
        case "number" if rule.most < 2**64 - 1:
            wrong = [rule.most + 1, 2**64 - 1]
        case "octets" | "text" if rule.most < 2**22:
            wrong = [letter * (rule.most + 1), *([letter * (rule.least - 1), letter * 0] if rule.least else [])]
        case "message":
            assert rule.of is not None
            wrong = [rule.of()] if any(own.least for own in rules(rule.of).values()) else []
    if rule.many:
        one = rule.of() if rule.of is not None else {"number": 0, "octets": b"", "text": ""}[rule.kind]
        wrong = [*((value,) for value in wrong), *([(one,) * (rule.many + 1)] if rule.many < 2**16 else [])]
    named = f"{of.__name__}.{name}" + ("" if rule.of is None else f"|{rule.of.__name__}\\.")
    for value in wrong:
        parts: list[bytes | memoryview] = []
        _say(of(**(right | {name: value})), parts)  # as nobody of ours sends it
        with pytest.raises(HostileInput, match=named):
            read(b"".join(parts), of)


def test_a_field_beyond_its_bound_is_refused_by_who_reads() -> None:
    for data, of in (
        (b"\x0a" + bytes([64 + 1]) + bytes(65), says.Ready),  # a study of 65 bytes
        (b"\x08\x80\x80\x80\x80\x10", says.Work),  # a version of 2^32
        (b"\x0a\x01\xff" * 1, says.Explained),  # no UTF-8
        (b"\x12\x00" * 1025, says.Seal),  # boxes
        (b"\x08\x01" * 65, says.MemberAnswer),
        (b"\x0a" + bytes([65]) + b"\x01" * 65, says.MemberAnswer),  # the same, packed
        (b"\x12\x00\x12\x00", says.FixedObject),  # a message twice
        (b"\x18\x01", says.Ready),  # a field that is none, between our own processes
        (b"\x0b\x0c", says.Directive),  # a group
        (b"\x00\x01", says.Directive),  # field 0
        (b"\x0a\x05abc", says.Directive),  # ends beyond
        (b"\x08" + b"\x80" * 10 + b"\x01", says.Directive),  # a number that does not end
        (b"\x19" + b"\x00\x00\x00\x00\x00\x00\xf8\x7f", says.Sample),  # not a number
    ):
        with pytest.raises(HostileInput):
            read(data, of)


def test_the_table_in_words_is_the_table() -> None:
    """Each request once, with its answer and how long it is waited for; codes are unique."""
    assert says.__doc__ is not None
    told = re.findall(r"^:class:`(\w+)` +:class:`(\w+)` +.*? +([\d,]+)$", says.__doc__, re.M)
    meant = [(of.__name__, of.answer.__name__, f"{of.seconds:,.0f}") for of in says.REQUESTS]
    assert told == meant
    assert len({of.code for of in says.REQUESTS}) == len(says.REQUESTS)
