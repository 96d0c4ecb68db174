"""What a guard asks of the process that serves the site's metrics: what is asked of it over HTTP, one question at a time.

The guard reads no word of a caller's: it is told one of four questions, and gives a page of its own figures, or a word.

======================  =====================  =====================================================
request                 answer                 what crosses
======================  =====================  =====================================================
:class:`AwaitQuestion`  :class:`Question`      in: a question of four, or that none came
:class:`GiveAnswer`     :class:`EndpointDone`  out: the page, or a word
======================  =====================  =====================================================
"""

from enum import IntEnum

from veilsum_participant.boundary.encoding import Inquiry, Message, number, octets, text

SMALL = 1024
MOST_PAGE = 16 * 1024 * 1024
QUIET = 30.0
"""Seconds after which a guard is told that nobody asked."""


class Asked(IntEnum):
    """What is asked."""

    NOTHING = 0
    PAGE = 1
    OPENMETRICS = 2
    READY = 3
    ALIVE = 4


class EndpointFault(Message):
    """It cannot serve, and why: a file or an address of the operator's."""

    words: str = text(1, 4096)
    advice: str = text(2, 4096)


class Question(Message):
    """A question by its number, which its answer repeats."""

    what: int = number(1, max(Asked))
    turn: int = number(2, 2**32)


class EndpointDone(Message):
    """It was handed on."""


class AwaitQuestion(Inquiry[Question]):
    """Wait until somebody asks."""

    code, answer, most, most_answered, seconds = 1, Question, SMALL, SMALL, 2 * QUIET


class GiveAnswer(Inquiry[EndpointDone]):
    """Answer: a page; or of readiness why not, and of life, what is wrong; empty for well."""

    code, answer, most, most_answered, seconds = 2, EndpointDone, MOST_PAGE + SMALL, SMALL, QUIET
    turn: int = number(1, 2**32)
    said: bytes = octets(2, MOST_PAGE)


REQUESTS: tuple[type[Inquiry[Message]], ...] = (AwaitQuestion, GiveAnswer)
"""Every request that the process answers."""
