"""Answers the directives of several studies side by side: in order within a study, and no study waits for another's slow work.

Without it one study's long computation or stalled upload could hold back another's consent until its deadline, and the other
sites of that study would have paid for nothing.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from veilsum_node.errors import HostileInput
from veilsum_participant.boundary.front import Directive

MOST_WORKERS = 16
"""Threads at most; further studies share the least busy one."""

WAITING = 64
"""Directives that may wait at one worker; a coordinator that sends more is not served."""

KEPT = 1 << 14
"""Bytes of an object that came along with a directive up to which it waits with that; of larger ones the first does alone, and
the others are fetched again: all together would take a gibibyte."""

_Item = Directive | None


class _Worker:
    def __init__(self, answer: Callable[[Directive], None], failed: Callable[[Exception], None]) -> None:
        self.inbox: queue.Queue[_Item] = queue.Queue(maxsize=WAITING + 1)
        self.stopping = False
        self._answer, self._failed = answer, failed
        self.thread = threading.Thread(target=self._loop, name="study", daemon=True)
        self.thread.start()

    @property
    def load(self) -> int:
        return self.inbox.unfinished_tasks  # what waits and what is being answered, without a moment in between

    def _loop(self) -> None:
        while (item := self.inbox.get()) is not None and not self.stopping:
            try:
                self._answer(item)
            except Exception as error:  # noqa: BLE001 - raised again in the session
                self._failed(error)
                return
            finally:
                self.inbox.task_done()


class Workers:
    """The workers of one session.

    Args:
        answer: answers one directive; called from a worker's thread.
        failed: told of an exception that ``answer`` raised; the session then ends.
    """

    def __init__(self, answer: Callable[[Directive], None], failed: Callable[[Exception], None]) -> None:
        self._answer, self._failed = answer, failed
        self._workers: list[_Worker] = []
        self._of: dict[bytes, _Worker] = {}

    def put(self, directive: Directive) -> None:
        """Hand a directive to its study's worker.

        Raises:
            HostileInput: more directives wait than an honest coordinator sends.
        """
        key = directive.study
        worker = self._of.get(key)
        if worker is None:
            worker = min(self._workers, key=lambda item: item.load, default=None)
            if worker is None or (worker.load and len(self._workers) < MOST_WORKERS):
                worker = _Worker(self._answer, self._failed)
                self._workers.append(worker)
            if len(self._of) >= MOST_WORKERS * WAITING:  # most of them over: with nothing at a worker, any may answer the next
                self._of = {study: found for study, found in self._of.items() if found.load}
            if len(self._of) >= MOST_WORKERS * WAITING:
                raise HostileInput("The coordinator names more studies than can run at once.")
            self._of[key] = worker
        if worker.inbox.qsize() >= WAITING:
            raise HostileInput("The coordinator sends directives faster than they can be answered.")
        later = worker.inbox.qsize() > 0 and len(directive.object or b"") > KEPT
        worker.inbox.put(replace(directive, object=None) if later else directive)

    @property
    def idle(self) -> bool:
        """Whether nothing is being answered and nothing waits."""
        return not any(worker.load for worker in self._workers)

    def stop(self) -> None:
        """Let every worker end after what it is doing now; what waits is dropped, and sent again in the next session."""
        for worker in self._workers:
            worker.stopping = True
            if worker.inbox.qsize() <= WAITING:
                worker.inbox.put(None)

    def end_within(self, seconds: float) -> bool:
        """Wait up to ``seconds`` in all for the workers to end; returns whether all have."""
        end = time.monotonic() + seconds
        for worker in self._workers:
            worker.thread.join(max(0.0, end - time.monotonic()))
        return not any(worker.thread.is_alive() for worker in self._workers)
