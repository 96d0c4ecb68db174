"""Whatever a front says within the bounds of its table, a guard takes it, or raises what ends a call or a session and no more.

One word ends a guard, as a coordinator's may: that they have no version of the protocol in common.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.federation import TestBed, make_bed, make_data
from support.strange import strange
from veilsum_node.errors import HostileInput, StateError, Unavailable
from veilsum_participant.boundary import front as says
from veilsum_participant.boundary.calls import CallFailedError
from veilsum_participant.boundary.direct import Direct
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.front import Directive, DirectiveKind, ObjectKind, Status
from veilsum_participant.protocol.core import ParticipantCore
from veilsum_participant.session.channel import SiteChannel, UndeliveredError
from veilsum_privacy.securesum.roster import Enrolment

ENDS = (HostileInput, UndeliveredError, Unavailable)
"""What ends a call or a session."""

GREETINGS = ("hello", "greet_again")
NOT_ASKED = (says.Hang, says.UploadPayload)
"""What a guard asks where it has something to upload, and what it takes no answer of."""

OBJECTS: dict[ObjectKind, type[Message]] = {
    ObjectKind.STUDY: says.StudyObject,
    ObjectKind.ROSTER: says.RosterObject,
    ObjectKind.BOXES: says.BoxesObject,
    ObjectKind.FIXED: says.FixedObject,
    ObjectKind.ANSWERS: says.AnswersObject,
    ObjectKind.MIRRORED: says.MirroredObject,
    ObjectKind.RELEASE: says.ReleaseObject,
}


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> TestBed:
    return make_bed(tmp_path_factory.mktemp("kit"), make_data("abc", 20))


def quiet(request: Inquiry[Any]) -> Message:
    """The answer of a front that has nothing to tell."""
    return says.Came(over=1) if isinstance(request, says.Next) else request.answer()


def channel_of(bed: TestBed, answer: Callable[[Any], Message]) -> SiteChannel:
    site = bed.sites["a"]
    return SiteChannel(Direct(answer, lambda error: says.Failed(status=Status.UNKNOWN)), site.credentials, site.clock)


def directives(whole: bytes | None = None) -> Iterator[Directive]:
    """Of every kind, of a study that there may be and of none, some with an object that is to answer them."""
    for kind in (*DirectiveKind, 2**31 - 1):
        for key in (b"k" * 32, b"k", b""):
            yield Directive(kind=kind, study=key, round=1, attempt=1, object=whole)


def met(act: Callable[[], Any]) -> type[Exception] | None:
    """What an act raised that ends a call or a session."""
    try:
        act()
    except ENDS as error:
        return type(error)
    except StopIteration:
        pass
    return None


def acts(bed: TestBed, channel: SiteChannel) -> Iterator[Callable[[], Any]]:
    """All by which a guard comes to ask its front, but for what only a study has it say."""
    core = ParticipantCore(bed.sites["a"])
    yield lambda: channel.dial(says.Dial())
    yield channel.hello
    yield channel.greet_again
    yield lambda: list(itertools.islice(channel.directives(b"x" * 32), 3))
    yield channel.explain
    yield lambda: core.catch_up(channel)
    for each in directives():
        yield lambda each=each: core.handle(each, channel)  # type: ignore[misc]
    key, signature = b"k" * 32, b"s" * 64
    yield lambda: channel.enrol(key, Enrolment(b"c", b"b", signature))
    yield lambda: channel.seal(key, ())
    yield lambda: channel.ready(key)
    yield lambda: channel.answer(key, 1, 1, (1, 2), signature)
    yield lambda: channel.consent(key, 1, 1, b"c", signature)
    yield lambda: channel.confirm(key, 1, 1, 1)
    yield lambda: channel.report(())
    yield channel.flush
    yield channel.hang


@pytest.mark.sampled(4)
@pytest.mark.parametrize("asked", says.REQUESTS, ids=lambda asked: asked.__name__)
def test_what_a_front_answers_ends_a_call_at_most(bed: TestBed, asked: type[Inquiry[Any]]) -> None:
    failed = [*strange(says.Failed), *(says.Failed(status=status, details="x") for status in Status)]
    said = 0
    for instead in (*strange(asked.answer), *failed):

        def answer(request: Inquiry[Any], instead: Message = instead) -> Message:
            nonlocal said
            if type(request) is not asked:
                return quiet(request)
            said += 1
            if asked is says.Next and said % 3 == 0:  # one that says nothing says so without end
                return quiet(request)
            if isinstance(instead, says.Failed):
                raise CallFailedError(instead)
            return instead

        last = asked is says.Hello and isinstance(instead, says.Failed) and instead.status == Status.FAILED_PRECONDITION
        for act in acts(bed, channel_of(bed, answer)):
            with pytest.raises(StateError, match="x") if last and act.__name__ in GREETINGS else contextlib.nullcontext():
                met(act)
    assert said or asked in NOT_ASKED


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", OBJECTS)
def test_what_a_front_fetches_or_brings_along_ends_an_answer_at_most(bed: TestBed, kind: ObjectKind) -> None:
    for whole in (each.to_bytes() for each in strange(OBJECTS[kind])):

        def answer(request: Inquiry[Any], whole: bytes = whole) -> Message:
            return says.Fetched(whole) if type(request) is says.FetchObject else quiet(request)

        channel, core = channel_of(bed, answer), ParticipantCore(bed.sites["a"])
        assert met(lambda: core.catch_up(channel)) is None  # noqa: B023
        for each in (*directives(), *directives(whole[: says.CHUNK_BYTES])):
            assert met(lambda: core.handle(each, channel)) is None  # noqa: B023
