"""Objects that participants fetch, serialised; which of them a participant may have is :mod:`.fetching`'s to say."""

from collections.abc import Iterator
from typing import NamedTuple

from veilsum_coordinator.storage.messages import receipt_message
from veilsum_privacy.ledger.mirror import Mirror
from veilsum_privacy.securesum.context import Pieces, parse_assignment
from veilsum_proto import CHUNK_BYTES
from veilsum_proto import federation_pb2 as pb

ENCLOSED = {
    pb.DIRECTIVE_KIND_CONTRIBUTE: pb.OBJECT_KIND_BROADCAST,
    pb.DIRECTIVE_KIND_CHECK: pb.OBJECT_KIND_FIXED,
    pb.DIRECTIVE_KIND_CONSENT: pb.OBJECT_KIND_ANSWERS,
}
"""The object that comes along with a directive, if it is small enough."""

FROM_DATABASE = (pb.OBJECT_KIND_MIRRORED, pb.OBJECT_KIND_RELEASE)
"""What is read from the database when it is asked for, which may be slow or away; the rest is in memory."""


class Released(NamedTuple):
    """A released round, as members of a study that declares its steps fetch it.

    Attributes:
        number: of the round.
        whole: the object.
    """

    number: int
    whole: bytes

    def unseen(self, name: str) -> bytes:
        """What of it a member has not seen: who consented to the attempt keeps what it was shown of it, and what it gave."""
        shown = pb.ReleaseObject.FromString(self.whole)
        names = parse_assignment(shown.assignment).names
        if name not in names:
            return self.whole
        for member in shown.members:
            member.ClearField("words")
        shown.members[names.index(name)].Clear()
        return pb.ReleaseObject(members=shown.members, total=shown.total).SerializeToString()


def chunk_messages(pieces: Pieces) -> Iterator[bytes]:
    """An object's pieces as the serialised messages of a stream."""
    total = sum(map(len, pieces))
    return (pb.Chunk(data=data, total=total).SerializeToString() for data in chunks(pieces))


def chunks(pieces: Pieces) -> Iterator[bytes]:
    """The pieces as one object, cut into chunks; an empty object is one empty chunk."""
    chunk = bytearray()
    for piece in pieces:
        for start in range(0, len(piece), CHUNK_BYTES):
            chunk += memoryview(piece)[start : start + CHUNK_BYTES]
            if len(chunk) >= CHUNK_BYTES:
                yield bytes(chunk[:CHUNK_BYTES])
                del chunk[:CHUNK_BYTES]
    if chunk or not any(pieces):
        yield bytes(chunk)


def mirrored_object(mirror: Mirror, name: str, after: int) -> bytes:
    """A participant's own receipts in the mirror after an entry, for one that may have been restored from a backup."""
    found = mirror.mirrored(name, after)
    receipts = [
        pb.MirroredReceipt(receipt=receipt_message(item.receipt), number=item.entry, consent=item.consent or b"")
        for item in found
    ]
    last = max((item.entry for item in found), default=after)
    return pb.MirroredObject(receipts=receipts, last=last).SerializeToString()
