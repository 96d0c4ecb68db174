"""Carries out a history: operations on parties, network and clock, one after the other, then quiet until everything has ended.

The method runs on this thread as the product's runner lets it; whenever it waits, the next operation is carried out. Any part
of a history is a history (:mod:`simulation.operations`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from simulation.beside import Beside
from simulation.books import require
from simulation.checks import Checks
from simulation.disks import Died
from simulation.ground import BEGINNING, NAMES, Ground, Kind
from simulation.operations import Operations
from simulation.parties import Time
from veilsum_coordinator.protocol.members import StudyPhase
from veilsum_coordinator.service.hub import Hub
from veilsum_coordinator.service.runner import HubFederation, run_study

Operation = tuple[Any, ...]

QUIET_STEPS = 400
"""Steps without faults within which everything must have ended."""

PAUSE = 60
"""Seconds that pass in a quiet step in which nobody had anything to do."""


@dataclass(frozen=True)
class History:
    """What a history is made of.

    Attributes:
        kind: of the study or studies.
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


class World(Operations):
    """One history's parties.

    Attributes:
        studies: on the same sites; the first one's method runs on this thread, another's beside it.
        waiting: whether no method may begin yet.
    """

    def __init__(self, ground: Ground, history: History, *, loose: bool = False) -> None:
        self.history, self.ground = history, ground
        self.time = Time(BEGINNING + 60)
        self.studies = ground.studies[history.kind]
        self.coordinator = ground.coordinator(self.time)
        self.processes = ground.participants(self.time, history.seed)
        keyed = ground.keyed[history.kind] if history.keyed else None
        empty = ground.tight if history.kind == "rivals" and not loose else ground.empty
        for name, process in self.processes.items():
            process.disk.load(empty[name] if keyed is None else keyed.images[name])
        self.coordinator.disk.load(ground.empty["coordinator"] if keyed is None else keyed.journal)
        bears = 1 if history.kind == "rivals" else 0
        self.checks = Checks(ground, [item.key for item in self.studies], self.processes, self.coordinator.disk, bears)
        self.late: list[Callable[[Hub], object]] = []
        self.steps, self.quiet = 0, 0
        self.crashes = self.excuses = 0
        self._next = 0
        self._depth = 0
        self.waiting = False
        self._beside: dict[bytes, tuple[Hub, Beside]] = {}
        hub = self.coordinator.start()
        if keyed is None:
            for item in self.studies:
                hub.submit(item.analyst, item.submitted)
        for name, process in self.processes.items():
            process.start()
            if keyed is not None and process.core is not None:
                process.serial = hub.connect(name, process.core.site.nonce)

    # -- the driver --------------------------------------------------------------------------------------------------------

    def run(self) -> str:
        """Carry the history out; returns the last phases of its studies.

        Raises:
            Violation: something did not hold.
        """
        try:
            self.checks.after()
            while not self._over():
                self._drive()
        finally:
            self._end_beside()
        assert self.coordinator.hub is not None
        hub, keys = self.coordinator.hub, [item.key for item in self.studies]
        phases = [_phase(hub, key).value for key in keys]
        finished = all(phase == "finished" for phase in phases)
        self.checks.settled(finished, whole=self.history.verified)
        if self.gentle:
            reasons = "; ".join(f"{phase} ({hub.shown.status(key).reason})" for phase, key in zip(phases, keys, strict=True))
            require(finished, f"{reasons}, though nobody was gone for long")
        return " and ".join(sorted(phases))

    @property
    def gentle(self) -> bool:
        """Whether nothing happened that excuses a study's failure: no long pause, nobody gone, no budget for one only."""
        return self.excuses == 0 and self.crashes <= 2 and self.history.kind != "rivals"

    def _drive(self) -> None:
        hub, key = self.coordinator.hub, self.studies[0].key
        if hub is None or _phase(hub, key) is not StudyPhase.RUNNING:
            self.step()
            return

        def wait() -> None:
            self.step()
            if self.coordinator.hub is not hub:
                raise _Ended

        self._run_method(hub, key, wait)
        self.checks.after()

    def _run_method(self, hub: Hub, key: bytes, wait: Callable[[], None]) -> None:
        self.coordinator.pause, former = wait, self.coordinator.pause
        federation = HubFederation(hub, key, wait, self.coordinator.clock)
        try:
            self.ground.rounds = self.history.rounds
            run_study(hub, key, federation, self.ground.results)
        except _Ended:
            pass
        except Died:
            if self.coordinator.hub is hub:
                self.coordinator.die()
        finally:
            self.coordinator.pause = former

    def _go_on_beside(self) -> None:
        """The methods of the other studies go on as far as they can."""
        hub = self.coordinator.hub
        for key, (old, method) in list(self._beside.items()):
            if old is not hub:
                del self._beside[key]
                method.resume()  # into its end
        for item in self.studies[1:]:
            if hub is not None and hub is self.coordinator.hub and _phase(hub, item.key) is StudyPhase.RUNNING:
                if item.key not in self._beside:
                    self._beside[item.key] = hub, Beside(partial(self._run_beside, hub, item.key))
                pause = self.coordinator.pause
                self._beside[item.key][1].resume()
                self.coordinator.pause = pause

    def _run_beside(self, hub: Hub, key: bytes, pause: Callable[[], None]) -> None:
        def wait() -> None:
            pause()
            self.coordinator.pause = wait
            if self.coordinator.hub is not hub or self._closing:
                raise _Ended

        self._run_method(hub, key, wait)

    def _end_beside(self) -> None:
        self._closing = True
        for _, method in self._beside.values():
            method.resume()

    def step(self) -> None:
        """Carry out the next operation, or a quiet step after the last."""
        self.steps += 1
        if self._next < len(self.history.operations):
            self._next += 1
            self._carry_out(self.history.operations[self._next - 1])
        else:
            self._quiet_step()
        if len(self.studies) > 1 and not self._depth and not self.waiting:
            self._go_on_beside()
        self.checks.after()

    def meanwhile(self) -> None:
        """Let the history go on while a call is on its way."""
        if self._depth < 2 and self._next < len(self.history.operations):
            self._depth += 1
            try:
                self.step()
            finally:
                self._depth -= 1

    _closing = False

    def _carry_out(self, operation: Operation) -> None:
        kind, *arguments = operation
        getattr(self, f"_op_{kind}")(*arguments)

    def _over(self) -> bool:
        if self._next < len(self.history.operations) or self.coordinator.hub is None:
            return False
        if self.late or not all(_phase(self.coordinator.hub, item.key).over for item in self.studies):
            return False
        if any(process.core is None or process.inbox for process in self.processes.values()):
            return False
        if any(self.coordinator.hub.directives(name) for name in NAMES):
            return False
        return not any("reserve" in book.last.values() for book in self.checks.books.values())

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
            if process.restored:
                self._op_trust(process.name)
            worked |= self._turn(process, {})
            if process.core is not None and not worked:
                self._expire(process)
        if self.coordinator.hub is not None:
            self._tick()
        if not worked:
            self.time.now += PAUSE


def _phase(hub: Hub, key: bytes) -> StudyPhase:
    ended = hub.ended.get(key)
    return hub.studies[key].machine.phase if ended is None else ended.phase
