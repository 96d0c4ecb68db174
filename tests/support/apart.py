"""Workers in threads of a test, over the sockets, frames and tables of real ones; and workers that a test plays itself."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from veilsum_participant.boundary import compiler as compiler_table
from veilsum_participant.boundary import maps as maps_table
from veilsum_participant.boundary import reader as reader_table
from veilsum_participant.boundary.encoding import Inquiry, Message
from veilsum_participant.boundary.framing import FramedSocket, pair
from veilsum_participant.boundary.serving import serve
from veilsum_participant.data.local import LocalDatasets
from veilsum_participant.worker import compiler
from veilsum_participant.worker.compiler import Compiler
from veilsum_participant.worker.maps import MapComputer
from veilsum_participant.worker.reader import DatasetReader, told

Answer = Callable[[Inquiry[Any]], Message]
Meddle = Callable[[Inquiry[Any], Answer], Message | None]
"""Is given each request and what would answer it; None to end the worker without an answer."""


@dataclass
class ThreadWorker:
    """One that was started.

    Attributes:
        socket: the guard's end.
        role, dataset: as it was started.
        asked: names of what it was asked, in order.
        ended: whether the guard ended it.
    """

    socket: socket.socket
    role: str
    dataset: str
    asked: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def end(self) -> None:
        self.ended.set()


class GoneError(Exception):
    """The worker ends."""


class ThreadStarter:
    """Starts workers whose answers a test may meddle with; :attr:`started` are all of them."""

    def __init__(self, meddle: Meddle | None = None) -> None:
        self.started: list[ThreadWorker] = []
        self._meddle = meddle

    def start(self, role: str, of: str = "") -> ThreadWorker:
        own, other = pair()
        worker = ThreadWorker(own, role, of)
        self.started.append(worker)
        threading.Thread(target=self._run, args=(worker, FramedSocket(other)), daemon=True).start()
        return worker

    def asked(self, role: str) -> list[str]:
        """What all workers of a role were asked, in order."""
        return [name for worker in self.started if worker.role == role for name in worker.asked]

    def _run(self, worker: ThreadWorker, line: FramedSocket) -> None:
        table: Any = {"reader": reader_table, "maps": maps_table, "compiler": compiler_table}[worker.role]
        honest: Answer = {
            "reader": lambda: DatasetReader(LocalDatasets()).answer,
            "maps": lambda: MapComputer().answer,
            "compiler": lambda: Compiler().answer,
        }[worker.role]()
        said: Any = compiler.told if worker.role == "compiler" else told

        def answer(request: Inquiry[Any]) -> Message:
            worker.asked.append(type(request).__name__)
            found = honest(request) if self._meddle is None else self._meddle(request, honest)
            if found is None:
                line.close()
                raise GoneError
            return found

        serve(line, table.REQUESTS, answer, said, threads=1)


class RawStarter:
    """Starts workers that a test plays, datagram by datagram: ``play`` gets the worker's end once ``after`` was asked."""

    def __init__(self, after: type[Inquiry[Any]], play: Callable[[socket.socket, int, int], object]) -> None:
        self.started: list[ThreadWorker] = []
        self._after, self._play = after, play

    def start(self, role: str, of: str = "") -> ThreadWorker:
        own, other = pair()
        worker = ThreadWorker(own, role, of)
        self.started.append(worker)
        threading.Thread(target=self._run, args=(worker, other), daemon=True).start()
        return worker

    def _run(self, worker: ThreadWorker, end: socket.socket) -> None:
        line, table = FramedSocket(end), {each.code: each for each in reader_table.REQUESTS}
        while (frame := line.receive()) is not None:
            worker.asked.append(table[frame.code].__name__)
            if frame.code == self._after.code:
                self._play(end, frame.code, frame.call)
                worker.ended.wait(20)
                end.close()
                return
            line.send(frame.code, frame.call, reader_table.WorkerDone())
