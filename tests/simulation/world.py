"""Carries out a history: operations on parties, network and clock, one after the other, then quiet until everything has ended.

The method runs on this thread as the product's runner lets it; whenever it waits, the next operation is carried out. Every
operation is defined in every state: where it has no meaning it does nothing, so that any part of a history is a history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulation.checks import Checks, Violation, require
from simulation.ground import BEGINNING, NAMES, Ground, Kind
from simulation.network import Link, LostError, RejectedError
from simulation.parties import Died, Process, Time
from veilsum_coordinator.hub import Hub
from veilsum_coordinator.members import StudyPhase
from veilsum_coordinator.runner import HubFederation, run_study
from veilsum_privacy.errors import VeilsumError
from veilsum_proto import federation_pb2 as pb

Operation = tuple[Any, ...]

QUIET_STEPS = 400
"""Steps without faults within which everything must have ended."""

PAUSE = 60
"""Seconds that pass in a quiet step in which nobody had anything to do."""


@dataclass(frozen=True)
class History:
    """What a history is made of.

    Attributes:
        kind: of the study.
        keyed: whether it begins when keys are exchanged, else with the study's submission.
        rounds: how many the method asks for.
        operations: in order.
        seed: of the sites' noise and keys; and what the history was made from.
        verified: whether the ledgers are proven whole at its end.
    """

    kind: Kind
    keyed: bool
    rounds: int
    operations: tuple[Operation, ...]
    seed: int = 0
    verified: bool = True


class _Ended(BaseException):
    """The coordinator's process is gone, and the method that ran in it."""


class World:
    """One history's parties."""

    def __init__(self, ground: Ground, history: History) -> None:
        self.history, self.ground = history, ground
        self.time = Time(BEGINNING + 60)
        self.signed = ground.studies[history.kind]
        self.coordinator = ground.coordinator(self.time)
        self.processes = ground.participants(self.time, history.seed)
        keyed = ground.keyed[history.kind] if history.keyed else None
        for name, process in self.processes.items():
            process.disk.load(ground.empty[name] if keyed is None else keyed.images[name])
        self.coordinator.disk.load(ground.empty["coordinator"] if keyed is None else keyed.journal)
        self.checks = Checks(ground, self.signed.key, self.processes, self.coordinator.disk)
        self.late: list[Callable[[Hub], object]] = []
        self.steps, self.quiet = 0, 0
        self.crashes = 0
        self._next = 0
        self._depth = 0
        self._phase = StudyPhase.ENROLLING
        hub = self.coordinator.start()
        if keyed is None:
            hub.submit(self.signed.analyst, self.signed.submitted)
        for name, process in self.processes.items():
            process.start()
            if keyed is not None and process.core is not None:
                process.serial = hub.connect(name, process.core.site.nonce)

    # -- the driver --------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Carry the history out; returns the study's last phase.

        Raises:
            Violation: something did not hold.
        """
        self.checks.after()
        while not self._over():
            self._drive()
        phase = self._machine_phase().value
        self.checks.settled(phase, whole=self.history.verified)
        if self.gentle:
            require(phase == "finished", f"the study {phase} ({self._reason()}), though nobody was gone for long")
        return phase

    @property
    def gentle(self) -> bool:
        """Whether nothing happened that excuses a study's failure: no long pause, no crash of the coordinator, few others."""
        return self._excuses == 0 and self.crashes <= 2

    def _drive(self) -> None:
        hub = self.coordinator.hub
        if hub is None or hub.studies[self.signed.key].machine.phase is not StudyPhase.RUNNING:
            self.step()
            return

        def wait() -> None:
            self.step()
            if self.coordinator.hub is not hub:
                raise _Ended

        federation = HubFederation(hub, self.signed.key, wait, self.coordinator.clock)
        try:
            self.ground.rounds = self.history.rounds
            run_study(hub, self.signed.key, federation, self.ground.results)
        except (_Ended, Died):
            if self.coordinator.hub is hub:
                self.coordinator.die()
        self.checks.after()

    def step(self) -> None:
        """Carry out the next operation, or a quiet step after the last."""
        self.steps += 1
        if self._next < len(self.history.operations):
            self._next += 1
            self._carry_out(self.history.operations[self._next - 1])
        else:
            self._quiet_step()
        self.checks.after()

    def meanwhile(self) -> None:
        """Let the history go on while a call is on its way."""
        if self._depth < 2 and self._next < len(self.history.operations):
            self._depth += 1
            try:
                self.step()
            finally:
                self._depth -= 1

    _excuses = 0

    def _carry_out(self, operation: Operation) -> None:
        kind, *arguments = operation
        getattr(self, f"_op_{kind}")(*arguments)

    def _over(self) -> bool:
        if self._next < len(self.history.operations) or self.coordinator.hub is None:
            return False
        machine = self.coordinator.hub.studies[self.signed.key].machine
        if not machine.phase.over or self.late:
            return False
        if any(process.core is None or process.inbox for process in self.processes.values()):
            return False
        if any(self.coordinator.hub.directives(name) for name in NAMES):
            return False
        return not any("reserve" in book.last.values() for book in self.checks.books.values())

    def _machine_phase(self) -> StudyPhase:
        assert self.coordinator.hub is not None
        return self.coordinator.hub.studies[self.signed.key].machine.phase

    def _reason(self) -> str:
        assert self.coordinator.hub is not None
        return self.coordinator.hub.studies[self.signed.key].machine.reason

    def _quiet_step(self) -> None:
        """No faults: everybody is up and connected, late messages come, clocks are right; each answers what is open."""
        self.quiet += 1
        require(self.quiet <= QUIET_STEPS, f"nothing has ended after {QUIET_STEPS} quiet steps")
        self.coordinator.disk.spare()
        self.coordinator.clock.skew = 0
        if self.coordinator.hub is None:
            self._op_rise()
            return
        for message in self.late:
            self._arrive(message)
        self.late = []
        worked = False
        for process in self.processes.values():
            process.cut, process.clock.skew = False, 0
            process.disk.spare()
            if process.core is None:
                process.start()
            worked |= self._turn(process, {})
            if process.core is not None and not worked:
                self._expire(process)
        if self.coordinator.hub is not None:
            self._tick()
        if not worked:
            self.time.now += PAUSE

    # -- operations --------------------------------------------------------------------------------------------------------

    def _op_go(self, name: str, fates: Sequence[tuple[int, str]] = ()) -> None:
        """A participant opens its session if it has none, and answers one directive."""
        self._turn(self.processes[name], dict(fates))

    def _op_hear(self, name: str) -> None:
        """A participant reads what its session brings, and answers nothing yet."""
        process, hub = self.processes[name], self.coordinator.hub
        if hub is not None and process.serial is not None and not process.busy and not process.cut:
            self._read(process, hub)

    def _op_doomed(self, name: str, points: int) -> None:
        """The same, and it dies at a point of it, if it has so many; it is started again with its next turn."""
        process = self.processes[name]
        if not process.busy:
            process.disk.doom(points)
            self._turn(process, {})
            process.disk.spare()

    def _op_kill(self, name: str) -> None:
        """A participant's process is killed between two directives."""
        if not self.processes[name].busy:
            self._die(self.processes[name])

    def _op_again(self, name: str, index: int) -> None:
        """A participant hears an old directive once more; with an odd index one that it did not come to answer."""
        process = self.processes[name]
        heard = process.missed if index % 2 and process.missed else process.heard
        if heard and process.core is not None and process.serial is not None and not process.busy:
            self._answer(process, heard[index // 2 % len(heard)], {}, Link(self, process, {}, echo=True))

    def _op_late(self, index: int) -> None:
        """A delayed request arrives."""
        if self.late:
            self._arrive(self.late.pop(index % len(self.late)))

    def _op_cut(self, name: str) -> None:
        """Nothing passes between a participant and the coordinator any more."""
        self.processes[name].cut = True

    def _op_join(self, name: str) -> None:
        """It passes again."""
        self.processes[name].cut = False

    def _op_notice(self, name: str) -> None:
        """The coordinator notices that a session is gone."""
        process, hub = self.processes[name], self.coordinator.hub
        if hub is not None and name in hub.sessions and (process.cut or process.serial is None):
            self._as_coordinator(lambda: hub.disconnect(name, hub.sessions[name].serial))

    def _op_tick(self) -> None:
        """The coordinator minds its deadlines."""
        self._tick()

    def _op_expire(self, name: str) -> None:
        """A participant minds its deadlines."""
        process = self.processes[name]
        if process.core is not None and not process.busy:
            self._expire(process)

    def _op_sleep(self, seconds: int) -> None:
        """Time passes."""
        if seconds >= 30:
            self._excuses += 1
        self.time.now += seconds

    def _op_skew(self, name: str, seconds: int) -> None:
        """A party's clock is set."""
        self._excuses += 1
        party = self.coordinator if name == "coordinator" else self.processes[name]
        party.clock.skew = seconds

    def _op_fall(self, points: int) -> None:
        """The coordinator dies at a point from here on; at once with 0."""
        if points:
            self.coordinator.disk.doom(points)
        elif self.coordinator.hub is not None:
            self.coordinator.die()

    def _op_rise(self) -> None:
        """The coordinator is started again; sessions are gone."""
        if self.coordinator.hub is None:
            try:
                self.coordinator.start()
            except Died:
                self.coordinator.die()

    # -- parts -------------------------------------------------------------------------------------------------------------

    def _turn(self, process: Process, fates: dict[int, str]) -> bool:
        """One turn; returns whether there was anything to do."""
        if process.busy:
            return False
        if process.core is None:
            process.start()
        link = Link(self, process, fates)
        if process.serial is None:
            return self._guarded(process, lambda: self._open(process, link))
        hub = self.coordinator.hub
        if hub is None or hub.sessions.get(process.name) is None or hub.sessions[process.name].serial != process.serial:
            process.serial = None  # the stream is broken
            return True
        if not process.inbox and not process.cut:
            self._read(process, hub)
        if not process.inbox:
            return False
        return self._answer(process, process.inbox.pop(0), fates, link)

    @staticmethod
    def _read(process: Process, hub: Hub) -> None:
        process.inbox = hub.directives(process.name)
        process.heard += [item for item in process.inbox if item not in process.heard[-8:]]

    def _answer(self, process: Process, directive: pb.Directive, fates: dict[int, str], link: Link | None = None) -> bool:
        assert process.core is not None
        core, link = process.core, link or Link(self, process, fates)
        answered = process.answered
        self._guarded(process, lambda: core.handle(directive, link))
        if process.answered == answered and directive.kind == pb.DIRECTIVE_KIND_CONTRIBUTE and directive not in process.missed:
            process.missed.append(directive)
        return True

    def _open(self, process: Process, link: Link) -> None:
        assert process.core is not None
        try:
            recovered = process.core.catch_up(link)
        except RejectedError:
            recovered = []
        require(not recovered, f"{process.name} charges again what it knows")
        process.serial = link.connect(process.core.site.nonce)

    def _guarded(self, process: Process, work: Callable[[], object]) -> bool:
        process.busy = True
        try:
            work()
        except RejectedError:
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
        if hub is not None and serial is not None and not process.cut:
            self._as_coordinator(lambda: hub.disconnect(process.name, serial))

    def _expire(self, process: Process) -> None:
        assert process.core is not None
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
