"""What analysts and operators are shown of studies: the status of one, and all of them page by page."""

import math
from collections import deque
from collections.abc import Sequence

from veilsum_coordinator.service.ended import EndedStudy
from veilsum_coordinator.service.status import listed_status, shown_status
from veilsum_coordinator.service.table import StudyEntry, StudyTable
from veilsum_node.errors import HostileInput
from veilsum_proto import federation_pb2 as pb


class Listing:
    """What is shown of the studies of a table. Thread-safe."""

    def __init__(self, table: StudyTable) -> None:
        self._table = table

    def status(self, key: bytes) -> pb.StudyStatus:
        """What is shown of a study.

        Raises:
            HostileInput: there is none of that digest.
        """
        with self._table.lock:
            ended = self._table.ended.get(bytes(key))
            return shown_status(self._table.entry(key)) if ended is None else ended.status

    def analyst(self, key: bytes) -> str:
        """Whose a study is; errors as of :meth:`status`."""
        with self._table.lock:
            ended = self._table.ended.get(bytes(key))
            return self._table.entry(key).analyst if ended is None else ended.analyst

    def of(self, analyst: str) -> set[bytes]:
        """Digests of an analyst's studies."""
        with self._table.lock:
            known: dict[bytes, StudyEntry | EndedStudy] = {**self._table.ended, **self._table.studies}
        return {key for key, each in known.items() if each.analyst == analyst}

    def mark(self, key: bytes) -> int | bytes:
        """While it is the same, :meth:`status` shows the same; errors as there.

        Who takes it before the status, and looks again once it is another one, misses no change.
        """
        with self._table.lock:
            ended = self._table.ended.get(bytes(key))
            return self._table.entry(key).changes if ended is None else ended.mark

    def all(self) -> list[pb.StudyStatus]:
        """What is shown of all studies beside one another, oldest first."""
        return [*self.page()[0]]

    def page(
        self, analyst: str | None = None, *, begins: str = "", before: bytes = b"", most: float = math.inf
    ) -> tuple[Sequence[pb.StudyStatus], bool]:
        """What is shown of studies beside one another, oldest first: each as it is when its turn comes.

        Args:
            analyst: whose; None for everybody's.
            begins: hexadecimal digits that their digests begin with.
            before: a study's digest: only those before it.
            most: bytes of what is shown; the newest that fit, and at least one.

        Returns:
            these, and whether there are older ones.

        Raises:
            HostileInput: no such study is listed, as when it was deleted meanwhile.
        """
        with self._table.lock:  # a page of thousands is made without it: messages of participants would wait
            known: dict[bytes, StudyEntry | EndedStudy] = {**self._table.ended, **self._table.studies}
        keys = sorted((each.submitted, key) for key, each in known.items() if analyst in (None, each.analyst))
        if before:
            if (limit := next((at for at, (_, key) in enumerate(keys) if key == before), None)) is None:
                raise HostileInput("No study of that digest is listed any more.", "List the studies from the start.")
            del keys[limit:]
        found, size = deque[pb.StudyStatus](), 0
        for key in (key for _, key in reversed(keys) if key.hex().startswith(begins)):
            each = known[key]
            shown = listed_status(each.status if isinstance(each, EndedStudy) else self._of(key, each))
            size += shown.ByteSize() + 8  # its tag and length
            if found and size > most:
                return found, True
            found.appendleft(shown)
        return found, False

    def _of(self, key: bytes, entry: StudyEntry) -> pb.StudyStatus:
        """What is shown of a study that ran when it was looked up, and may be over since."""
        with self._table.lock:
            ended = self._table.ended.get(key)
            return shown_status(entry) if ended is None else ended.status
