"""What the parties do in a history's steps: a participant's turn, its session, its death; the coordinator's part in them."""

from __future__ import annotations

from collections.abc import Callable

from simulation.books import Violation, require
from simulation.checks import Checks
from simulation.disks import Died
from simulation.network import Link, LostError, RejectedError
from simulation.parties import Coordinator, Process, Time
from veilsum.local.federation import as_directive
from veilsum_coordinator.service.hub import Hub
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import VeilsumError
from veilsum_participant.protocol.core import assigned
from veilsum_proto import federation_pb2 as pb


class Turns:
    """The part of a :class:`~simulation.world.World` that knows no history."""

    coordinator: Coordinator
    processes: dict[str, Process]
    checks: Checks
    time: Time
    crashes: int
    late: list[Callable[[Hub], object]]

    def meanwhile(self) -> None:
        """Let the history go on while a call is on its way."""
        raise NotImplementedError

    def _turn(self, process: Process, fates: dict[int, str]) -> bool:
        """One turn; returns whether there was anything to do."""
        if process.busy:
            return False
        if process.core is None and not self._start(process):
            return True
        link = Link(self, process, fates)
        if process.serial is None:
            return self._guarded(process, lambda: self._open(process, link))
        hub = self.coordinator.hub
        session = None if hub is None else hub.sessions.get(process.name)
        if hub is None or session is None or session.serial != process.serial or not (session.connected or process.cut):
            process.serial = None  # the stream is broken
            return True
        if not process.inbox and not process.cut:
            self._read(process, hub)
        if not process.inbox:
            return False
        return self._answer(process, process.inbox.pop(0), fates, link)

    @staticmethod
    def _start(process: Process) -> bool:
        """Start a process; returns whether it runs, which it does not while its disk takes nothing."""
        try:
            process.start()
        except DatabaseAwayError:
            process.die()
        return process.core is not None

    def _read(self, process: Process, hub: Hub) -> None:
        process.inbox = hub.directives(process.name)
        for directive in process.inbox:
            if directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE:
                self.checks.assigned(directive.study, assigned(as_directive(directive)).to_bytes())
        process.heard += [item for item in process.inbox if item not in process.heard[-8:]]

    def _answer(self, process: Process, directive: pb.Directive, fates: dict[int, str], link: Link | None = None) -> bool:
        assert process.core is not None
        core, link = process.core, link or Link(self, process, fates)
        answered = process.answered
        ((before,),) = process.disk.rows("SELECT MAX(seq) FROM ledger")

        def handle() -> None:
            try:
                core.handle(as_directive(directive), link)
            except DatabaseAwayError:  # nothing was decided and nothing said: the same again with the next turn
                process.inbox.insert(0, directive)

        self._guarded(process, handle)
        self.checks.answered(process, directive.study, before)
        if process.answered == answered and directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE and directive not in process.missed:
            process.missed.append(directive)
        return True

    def _open(self, process: Process, link: Link) -> None:
        assert process.core is not None
        try:
            recovered = process.core.catch_up(link)
        except RejectedError:
            recovered = []
        else:
            self.checks.caught_up(process)
            process.caught_up = True
        require(not recovered or process.restored, f"{process.name} charges again what it knows")
        process.serial = link.connect(process.core.site.nonce)

    def _guarded(self, process: Process, work: Callable[[], object]) -> bool:
        process.busy = True
        try:
            work()
        except (RejectedError, DatabaseAwayError):
            pass
        except LostError:
            self._hang_up(process)
        except Died:
            self._die(process)
        except (Violation, AssertionError):
            raise
        except Exception as error:
            raise Violation(f"{process.name}: internal error: {type(error).__name__}: {error}") from error
        finally:
            process.busy = False
        return True

    def _hang_up(self, process: Process) -> None:
        """A session whose call failed is over at both ends, unless nothing passes that would tell the coordinator."""
        serial, process.serial, process.inbox = process.serial, None, []
        hub = self.coordinator.hub
        if hub is not None and serial is not None and not process.cut and process.name in hub.sessions:
            self._as_coordinator(lambda: hub.disconnect(process.name, serial))

    def _die(self, process: Process) -> None:
        serial = process.serial
        process.die()
        self.crashes += 1
        hub = self.coordinator.hub
        if hub is not None and serial is not None and not process.cut and process.name in hub.sessions:
            self._as_coordinator(lambda: hub.disconnect(process.name, serial))

    def _expire(self, process: Process) -> None:
        assert process.core is not None
        if process.caught_up or not process.restored:  # as the client does: first it hears what it consented to
            self._guarded(process, process.core.expire)

    def _tick(self) -> None:
        hub = self.coordinator.hub
        if hub is not None:
            self._as_coordinator(hub.tick)

    def _arrive(self, message: Callable[[Hub], object]) -> None:
        hub = self.coordinator.hub
        if hub is not None:
            self._as_coordinator(lambda: message(hub))

    def _as_coordinator(self, work: Callable[[], object]) -> None:
        try:
            work()
        except VeilsumError:
            return  # answered with an error that nobody reads
        except Died:
            if self.coordinator.hub is not None:
                self.coordinator.die()
