"""The table of messages between guard and front, and of the coordinator's objects that the front hands on as they came.

The guard asks and the front answers, always: what the coordinator wants next is the answer to :class:`Next`, and what a
directive needs is fetched by the guard while it answers it. So calls are nested by the guard's own threads, each has a number,
the order within a study is the guard's, and a front that does not answer in time is ended. Nothing that the front says is
believed: the coordinator's name, receipts and statements are verified by signatures, and whoever takes over the front is a
malicious coordinator.

======================  =======================  ===================  =======
request                 answer                   largest              seconds
======================  =======================  ===================  =======
:class:`Dial`           :class:`Acknowledged`    5 MiB                150
:class:`Hello`          :class:`HelloReply`      64 KiB               90
:class:`Work`           :class:`Acknowledged`    64 KiB               30
:class:`Next`           :class:`Came`            directive 1 MiB      60
:class:`FetchObject`    :class:`Fetched`         object 2 GiB         3,660
:class:`Enrol`          :class:`Acknowledged`    64 KiB               120
:class:`Refuse`         :class:`Acknowledged`    64 KiB               120
:class:`Seal`           :class:`Acknowledged`    boxes 512 MiB        3,660
:class:`Ready`          :class:`Acknowledged`    64 KiB               120
:class:`UploadPayload`  :class:`Acknowledged`    payload 2 GiB        18,600
:class:`Answer`         :class:`Acknowledged`    64 KiB               3,120
:class:`GiveConsent`    :class:`Acknowledged`    64 KiB               3,120
:class:`Confirm`        :class:`Acknowledged`    64 KiB               7,800
:class:`Flush`          :class:`Acknowledged`    64 KiB               7,800
:class:`Report`         :class:`Acknowledged`    64 KiB               30
:class:`Explain`        :class:`Explained`       64 KiB               90
:class:`Hang`           :class:`Acknowledged`    64 KiB               10
======================  =======================  ===================  =======

Besides its own, each answer may be :class:`Failed`. Where nothing else is said, both are at most 64 KiB.
"""

from enum import IntEnum
from typing import ClassVar

from veilsum_participant.boundary.encoding import (
    Inquiry,
    Message,
    blobs,
    number,
    numbers,
    octets,
    one,
    optional_octets,
    real,
    several,
    text,
    texts,
)
from veilsum_proto import CHUNK_BYTES, MAX_OBJECT_BYTES

SMALL = 64 * 1024
DIGEST = 64
"""Digests are of 32 bytes, which who takes them checks."""

SIGNATURE = 1024
CERTIFICATE = 8 * 1024
BODY = 64 * 1024
LONGEST_NAME = 256
MOST_MEMBERS = 1024
CALL, STREAM = 120.0, 3660.0
"""Seconds that the front is waited for: somewhat longer than it waits for the coordinator, with its tries."""


class DirectiveKind(IntEnum):
    """What a coordinator wants next, numbered as on the wire."""

    UNSPECIFIED = 0
    ENROL = 1
    SEAL = 2
    UNSEAL = 3
    CONTRIBUTE = 4
    GIVE_UP = 5
    CONSENT = 6
    RELEASED = 8
    END = 9
    PING = 10
    CHECK = 11


class ObjectKind(IntEnum):
    """What can be fetched, numbered as on the wire."""

    STUDY = 1
    ROSTER = 2
    BOXES = 3
    BROADCAST = 4
    FIXED = 5
    ANSWERS = 6
    MIRRORED = 7
    RELEASE = 8


class Status(IntEnum):
    """How a call to a coordinator failed; gRPC's numbers."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


STALE = (Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION, Status.OUT_OF_RANGE)
"""By which a coordinator does not want an answer any more."""


# -- what a coordinator sends -------------------------------------------------------------------------------------------------


class Sent(Message):
    """A message that a coordinator sends, whose later version may have more fields."""

    grows: ClassVar[bool] = True


class Assignment(Sent):
    """Of an assignment what its directive does not say."""

    label: str = text(1, LONGEST_NAME)
    cohort: tuple[str, ...] = texts(2, MOST_MEMBERS, LONGEST_NAME)
    nonces: bytes = octets(3, MOST_MEMBERS * DIGEST)
    broadcast: bytes = octets(4, DIGEST)
    deadline: int = number(5)


class Directive(Sent):
    """What the coordinator wants of the site next; ``object`` is what it is answered by, if that came along."""

    kind: int = number(1, 2**31 - 1)
    study: bytes = octets(2, 64)
    round: int = number(3)
    attempt: int = number(4)
    assignment: Assignment = one(10, Assignment)
    object: bytes | None = optional_octets(6, CHUNK_BYTES)


class SignedBytes(Sent):
    """A body and the signature under it: a receipt, a countersignature, a statement."""

    body: bytes = octets(1, BODY)
    signature: bytes = octets(2, SIGNATURE)


class SignedEnrolment(Sent):
    """A member's enrolment."""

    certificate: bytes = octets(1, CERTIFICATE)
    body: bytes = octets(2, BODY)
    signature: bytes = octets(3, SIGNATURE)


class StudyObject(Sent):
    """A study with its analyst's signature."""

    study: bytes = octets(1, 2 * 1024 * 1024)
    signature: bytes = octets(2, SIGNATURE)
    certificate: bytes = octets(3, CERTIFICATE)
    seconds_left: int = number(4)


class RosterObject(Sent):
    """Enrolments of a study."""

    enrolments: tuple[SignedEnrolment, ...] = several(1, SignedEnrolment, MOST_MEMBERS)


class SealedBox(Sent):
    """A sealed box."""

    sender: str = text(2, LONGEST_NAME)
    recipient: str = text(3, LONGEST_NAME)
    ciphertext: bytes = octets(5, CHUNK_BYTES)
    signature: bytes = octets(6, SIGNATURE)


class BoxesObject(Sent):
    """The boxes for this site."""

    boxes: tuple[SealedBox, ...] = several(1, SealedBox, MOST_MEMBERS)


class MemberReceipt(Sent):
    """What of a member's receipt does not follow from the attempt."""

    payload: bytes = octets(1, DIGEST)
    number: int = number(2)
    head: bytes = octets(3, DIGEST)
    consent: bytes = octets(4, DIGEST)
    signature: bytes = octets(5, SIGNATURE)


class ReceiptsWord(Sent):
    """The same of the coordinator's word on the receipts."""

    entry: int = number(1)
    head: bytes = octets(2, DIGEST)
    signature: bytes = octets(3, SIGNATURE)


class SumWord(Sent):
    """The same of its word on the sum."""

    sum: bytes = octets(1, DIGEST)
    signature: bytes = octets(2, SIGNATURE)


class FixedObject(Sent):
    """What a sum is checked by."""

    receipts: tuple[MemberReceipt, ...] = several(1, MemberReceipt, MOST_MEMBERS)
    countersigned: ReceiptsWord = one(2, ReceiptsWord)
    fixed: SumWord = one(3, SumWord)


class MemberAnswer(Sent):
    """A member's check words, signed."""

    words: tuple[int, ...] = numbers(1, 64)
    signature: bytes = octets(2, SIGNATURE)


class AnswersObject(Sent):
    """All members' answers."""

    answers: tuple[MemberAnswer, ...] = several(1, MemberAnswer, MOST_MEMBERS)


class MemberConsent(Sent):
    """A member's check words, its consent, and the signature that went with it."""

    words: tuple[int, ...] = numbers(1, 64)
    consent: bytes = octets(2, DIGEST)
    signature: bytes = octets(3, SIGNATURE)


class ReleaseObject(Sent):
    """A released round: what its members were shown and gave, and the sum as it opened."""

    assignment: bytes = octets(1, CHUNK_BYTES)
    fixed: FixedObject = one(2, FixedObject)
    certificate: bytes = octets(3, CERTIFICATE)
    members: tuple[MemberConsent, ...] = several(4, MemberConsent, MOST_MEMBERS)
    total: bytes = octets(5, MAX_OBJECT_BYTES)


class MirroredItem(Sent):
    """One of the site's own receipts in the coordinator's mirror."""

    receipt: SignedBytes = one(1, SignedBytes)
    number: int = number(2)
    consent: bytes = octets(3, SIGNATURE)


class MirroredObject(Sent):
    """What the mirror holds of the site after an entry."""

    receipts: tuple[MirroredItem, ...] = several(1, MirroredItem, MAX_OBJECT_BYTES // 512)  # none is shorter
    last: int = number(2)


# -- answers ------------------------------------------------------------------------------------------------------------------


class Acknowledged(Message):
    """It was done."""


class Failed(Message):
    """It was not: by the coordinator's status, or because what it sent was malformed (``hostile``). The words are another
    machine's: for a log, and nothing decides by them."""

    status: int = number(1, 16)
    details: str = text(2, 2048)
    hostile: int = number(3, 1)


class HelloReply(Sent):
    """The coordinator's greeting, as it came; the guard verifies certificate and signature over its own challenge."""

    version: int = number(1, 2**32 - 1)
    now: int = number(2, 2**53)
    coordinator: str = text(3, LONGEST_NAME)
    software: str = text(4, LONGEST_NAME)
    certificate: bytes = octets(5, CERTIFICATE)
    signature: bytes = octets(6, SIGNATURE)


class Came(Message):
    """What came next: a directive's bytes; none, and ``over`` is 1 where the coordinator ended the session, else the time for
    an answer is up and the guard asks again."""

    directive: bytes = octets(1, 1024 * 1024)
    over: int = number(2, 1)


class Fetched(Message):
    """An object's bytes, as they came."""

    data: bytes = octets(1, MAX_OBJECT_BYTES)


class Explained(Message):
    """Why the coordinator cannot be reached, in words for a log."""

    words: str = text(1, 4096)


# -- requests -----------------------------------------------------------------------------------------------------------------


class Dial(Inquiry[Acknowledged]):
    """Open a channel of mutual TLS to the coordinator, in place of one before.

    Attributes:
        address: host:port.
        proxy, proxy_user, proxy_password: an HTTP proxy's address and what it asks for, empty without.
        roots: PEM beside the federation's authority, empty for none.
        authority, certificate, key: PEM; the key is that for TLS.
    """

    code, answer, most, most_answered, seconds = 1, Acknowledged, 80 * SMALL, SMALL, 150.0
    address: str = text(1, 512)
    proxy: str = text(2, 512)
    proxy_user: str = text(3, 1024)
    proxy_password: str = text(4, SMALL, shown=False)
    roots: bytes = octets(5, 64 * SMALL)
    authority: bytes = octets(6, 2 * SMALL)
    certificate: bytes = octets(7, 2 * SMALL)
    key: bytes = octets(8, 2 * SMALL)


class Hello(Inquiry[HelloReply]):
    """Negotiate a version and ask the coordinator to prove its name by the guard's challenge."""

    code, answer, most, most_answered, seconds = 2, HelloReply, SMALL, SMALL, 90.0
    versions: tuple[int, ...] = numbers(1, 16, 2**32 - 1)
    software: str = text(2, 64)
    challenge: bytes = octets(3, 32, least=32)


class Work(Inquiry[Acknowledged]):
    """Open the session; whether it is granted is said by what comes."""

    code, answer, most, most_answered, seconds = 3, Acknowledged, SMALL, SMALL, 30.0
    version: int = number(1, 2**32 - 1)
    session_nonce: bytes = octets(2, 64)


class Next(Inquiry[Came]):
    """Wait for the session's next directive."""

    code, answer, most, most_answered, seconds = 4, Came, SMALL, 2 * 1024 * 1024, 60.0


class FetchObject(Inquiry[Fetched]):
    """Fetch an object whole."""

    code, answer, most, most_answered, seconds = 5, Fetched, SMALL, MAX_OBJECT_BYTES + SMALL, STREAM
    kind: int = number(1, 2**31 - 1)
    study: bytes = octets(2, 64)
    round: int = number(3)
    attempt: int = number(4)


class Enrol(Inquiry[Acknowledged]):
    """Join a study."""

    code, answer, most, most_answered, seconds = 6, Acknowledged, 2 * SMALL, SMALL, CALL
    study: bytes = octets(1, 64)
    enrolment: SignedEnrolment = one(2, SignedEnrolment)


class Refuse(Inquiry[Acknowledged]):
    """Decline; only codes leave."""

    code, answer, most, most_answered, seconds = 7, Acknowledged, SMALL, SMALL, CALL
    study: bytes = octets(1, 64)
    codes: tuple[str, ...] = texts(2, 64, 64)
    round: int = number(3)
    attempt: int = number(4)
    answers: int = number(5, 2**31 - 1)


class Seal(Inquiry[Acknowledged]):
    """Deliver sealed boxes; none is an answer too."""

    code, answer, most, most_answered, seconds = 8, Acknowledged, 512 * 1024 * 1024, SMALL, STREAM
    study: bytes = octets(1, 64)
    boxes: tuple[SealedBox, ...] = several(2, SealedBox, MOST_MEMBERS)


class Ready(Inquiry[Acknowledged]):
    """Confirm that every box opened."""

    code, answer, most, most_answered, seconds = 9, Acknowledged, SMALL, SMALL, CALL
    study: bytes = octets(1, 64)


class UploadPayload(Inquiry[Acknowledged]):
    """Upload a payload, from the piece that the coordinator wants next if an upload of it was begun (``resumed``); of its
    receipt what does not follow from it."""

    code, answer, most, most_answered, seconds = 10, Acknowledged, MAX_OBJECT_BYTES, SMALL, 5 * STREAM + 300
    study: bytes = octets(1, 64)
    round: int = number(2)
    attempt: int = number(3)
    resumed: int = number(4, 1)
    pieces: tuple[bytes | memoryview, ...] = blobs(5, 2**20, MAX_OBJECT_BYTES)
    receipt: MemberReceipt = one(6, MemberReceipt)


class Answer(Inquiry[Acknowledged]):
    """Answer the challenge of one attempt."""

    code, answer, most, most_answered, seconds = 11, Acknowledged, SMALL, SMALL, 26 * CALL
    study: bytes = octets(1, 64)
    round: int = number(2)
    attempt: int = number(3)
    words: tuple[int, ...] = numbers(4, 64)
    signature: bytes = octets(5, SIGNATURE)


class GiveConsent(Inquiry[Acknowledged]):
    """Let the sum of one attempt open."""

    code, answer, most, most_answered, seconds = 12, Acknowledged, SMALL, SMALL, 26 * CALL
    study: bytes = octets(1, 64)
    round: int = number(2)
    attempt: int = number(3)
    consent: bytes = octets(4, 64)
    signature: bytes = octets(5, SIGNATURE)


class Confirm(Inquiry[Acknowledged]):
    """Confirm a given-up attempt, a seen release or an ended study."""

    code, answer, most, most_answered, seconds = 13, Acknowledged, SMALL, SMALL, 65 * CALL
    study: bytes = octets(1, 64)
    kind: int = number(2, 2**31 - 1)
    round: int = number(3)
    attempt: int = number(4)


class Flush(Inquiry[Acknowledged]):
    """Confirm what releases were seen and are still to be told of."""

    code, answer, most, most_answered, seconds = 14, Acknowledged, SMALL, SMALL, 65 * CALL


class Sample(Message):
    """A shared metric's value, by its number on the wire."""

    metric: int = number(1, 2**31 - 1)
    label: str = text(2, 64 * 4)
    value: float = real(3)


class Report(Inquiry[Acknowledged]):
    """Report metrics that the site's policy shares."""

    code, answer, most, most_answered, seconds = 15, Acknowledged, 2 * SMALL, SMALL, 30.0
    samples: tuple[Sample, ...] = several(1, Sample, 256)


class Explain(Inquiry[Explained]):
    """Probe why the coordinator cannot be reached."""

    code, answer, most, most_answered, seconds = 16, Explained, SMALL, SMALL, 90.0


class Hang(Inquiry[Acknowledged]):
    """End the channel: calls that wait end now."""

    code, answer, most, most_answered, seconds = 17, Acknowledged, SMALL, SMALL, 10.0


REQUESTS: tuple[type[Inquiry[Message]], ...] = (
    Dial, Hello, Work, Next, FetchObject, Enrol, Refuse, Seal, Ready, UploadPayload, Answer, GiveConsent, Confirm, Flush,
    Report, Explain, Hang,
)  # fmt: skip
"""Every request that a front answers."""
