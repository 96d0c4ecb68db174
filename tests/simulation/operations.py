"""The operations that histories are made of, each defined in every state: where it has no meaning it does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from simulation.disks import Died
from simulation.ground import Ground, Signed
from simulation.network import Link
from simulation.turns import Turns
from veilsum_node.driver_faults import DatabaseAwayError
from veilsum_node.errors import Misuse
from veilsum_participant.protocol.decisions import leave_study
from veilsum_participant.protocol.endorsement import recover_receipts, trust_coordinator, vouch
from veilsum_privacy.ledger import LedgerReader


class Operations(Turns):
    """The part of a :class:`~simulation.world.World` that histories call by name."""

    ground: Ground
    studies: tuple[Signed, ...]
    excuses: int

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
            self.excuses += 1
        self.time.now += seconds

    def _op_skew(self, name: str, seconds: int) -> None:
        """A party's clock is set."""
        self.excuses += 1
        party = self.coordinator if name == "coordinator" else self.processes[name]
        party.clock.skew = seconds

    def _op_abort(self, index: int) -> None:
        """The analyst stops a study."""
        hub, key = self.coordinator.hub, self.studies[index % len(self.studies)].key
        if hub is not None:
            self.excuses += 1
            self._as_coordinator(lambda: hub.abort(key, "stopped"))

    def _op_leave(self, name: str, index: int) -> None:
        """A participant's operator leaves a study."""
        process, key = self.processes[name], self.studies[index % len(self.studies)].key
        core = process.core
        if core is not None and not process.busy:
            self.excuses += 1
            self.checks.left.add(name)

            def leave() -> None:
                with suppress(Misuse):
                    leave_study(core.site, key.hex())

            self._guarded(process, leave)

    def _op_full(self, name: str, transactions: int) -> None:
        """A participant's disk takes nothing for some transactions."""
        self.processes[name].disk.refuse(transactions)

    def _op_away(self, transactions: int, lost: bool) -> None:
        """The coordinator's database is away for some transactions; ``lost``: only its answers are."""
        self.coordinator.disk.refuse(transactions, lost=lost)

    def _op_backup(self, name: str) -> None:
        """A participant's state is backed up."""
        process = self.processes[name]
        if not process.busy:
            process.backup = process.disk.image(), process.clock()

    def _op_restore(self, name: str) -> None:
        """A participant's disk is lost, and its last backup put in its place."""
        process = self.processes[name]
        if process.backup is not None and not process.busy:
            self.excuses += 1
            self._die(process)
            process.disk.load(self.ground.marked(*process.backup), once=True)
            process.restored = True
            self.checks.restored(name)

    def _op_trust(self, name: str) -> None:
        """The operator of a restored site takes the coordinator's word for what was spent."""
        process = self.processes[name]
        core = process.core
        if core is not None and process.restored and not process.busy and core.site.restored() is not None:
            self._guarded(process, lambda: trust_coordinator(core.site, "restored", "operator"))

    def _op_vouch(self, name: str, other: str) -> None:
        """The operator of a restored site brings another site's ledger."""
        process = self.processes[name]
        core = process.core
        if core is not None and process.restored and not process.busy and core.site.restored() is not None and name != other:

            def bring() -> None:
                reader = LedgerReader(self.processes[other].disk.database)
                recover_receipts(core.site, reader.receipts())
                vouch(core.site, reader)

            self._guarded(process, bring)

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
            except (Died, DatabaseAwayError):
                self.coordinator.die()
