"""Plays one federation's plan to its end and judges what is left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from chaos.federation import CLASSES, WIDTH, Federation
from chaos.moments import watch
from chaos.plans import COORDINATOR, FederationPlan, Strike, StudyPlan
from support.federation import make_request, schema_of
from support.processes import OVER
from veilsum_coordinator.protocol.machine import RESTART_SECONDS
from veilsum_privacy.study.study import Study, study_digest
from veilsum_proto import federation_pb2 as pb

LOOP_SECONDS = 0.006
STATUS_SECONDS = 0.2


@dataclass
class Trial:
    """One study while it runs.

    Attributes:
        ended: phase and reason, once it is over.
        seconds: from its submission to its end.
        hit: the strikes that found their moment.
        hung: whether it was given up on.
    """

    plan: StudyPlan
    study: Study
    key: bytes
    begin: float
    pending: list[tuple[Strike, Callable[[], bool]]] = field(default_factory=list)
    submitted: bool = False
    aborted: bool = False
    status: pb.StudyStatus | None = None
    seconds: float = 0.0
    hit: list[str] = field(default_factory=list)
    hung: bool = False

    @property
    def over(self) -> bool:
        return self.hung or (self.status is not None and self.status.phase in OVER)


class Player:
    """Drives a federation through its plan."""

    def __init__(self, federation: Federation, told: Callable[[str], None]) -> None:
        self.federation, self._told = federation, told
        self.trials: list[Trial] = []
        self.starting = 0  # how many were killed at their first start
        waits = federation.plan.waits
        self._limit = RESTART_SECONDS + waits.enrol + 2 * waits.seal + waits.contribute + waits.consent + waits.check + 60
        self._disturbed, self._look = time.monotonic(), 0.0

    def start(self) -> None:
        """Start every process, with the plan's strikes in between; returns when all are there."""
        federation = self.federation
        pending = [(strike, watch(federation, strike.moment, b"", time.monotonic())) for strike in federation.plan.strikes]
        end = time.monotonic() + 10
        while pending and time.monotonic() < end:
            federation.mind()
            pending = [item for item in pending if not self._try(*item)]
            time.sleep(LOOP_SECONDS)
        self.starting = len(federation.plan.strikes) - len(pending)
        federation.heal()

    def play(self) -> None:
        """Run every study; each begins when the one before it is over, or beside it."""
        running: list[Trial] = []
        for plan in self.federation.plan.studies:
            while running and not (plan.beside and len(running) == 1 and self._well_begun(running[0])):
                self._turn(running)
            running.append(self._begin(plan))
        while running:
            self._turn(running)

    def _well_begun(self, trial: Trial) -> bool:
        return time.monotonic() - trial.begin > 0.5

    def _begin(self, plan: StudyPlan) -> Trial:
        federation = self.federation
        request = make_request(
            schema_of(WIDTH, CLASSES, max_records=40),
            plan.method,
            plan.epsilon,
            min_cohort=plan.min_cohort,
            cohort_difference=plan.cohort_difference,
        ).model_copy(update={"parameters": plan.parameters})
        study = federation.compile(request)
        key, now = study_digest(study.to_bytes()), time.monotonic()
        trial = Trial(plan, study, key, now)
        trial.pending = [(strike, watch(federation, strike.moment, key, now)) for strike in plan.strikes]
        self.trials.append(trial)
        self._disturbed = now
        return trial

    def _turn(self, running: list[Trial]) -> None:
        federation, now = self.federation, time.monotonic()
        federation.mind()
        for trial in running:
            due = [item for item in trial.pending if item[1]()]
            trial.pending = [item for item in trial.pending if item not in due]
            for strike, _ in due:
                self._do(strike, trial)
        if now >= self._look:
            self._look = now + STATUS_SECONDS
            for trial in list(running):
                self._ask(trial)
                if trial.over:
                    running.remove(trial)
                    self._end(trial)
        time.sleep(LOOP_SECONDS)

    def _try(self, strike: Strike, come: Callable[[], bool]) -> bool:
        if come():
            self._do(strike)
            return True
        return False

    def _do(self, strike: Strike, trial: Trial | None = None) -> None:
        federation = self.federation
        federation.strike(strike)
        if strike.moment.kind == "sent":
            federation.proxies[strike.moment.party].release()
        self._disturbed = time.monotonic() + max(strike.down)
        if trial is not None:
            trial.hit.append(f"{time.monotonic() - trial.begin:.2f} s: {strike}")

    def _ask(self, trial: Trial) -> None:
        """Submit it, abort it, or see how far it is, whichever comes next."""
        federation, plan = self.federation, trial.plan
        if not federation.running(COORDINATOR):
            return
        try:
            if not trial.submitted:
                federation.studies.Submit(pb.SubmitRequest(study=federation.signed(trial.study)), timeout=5)
                trial.submitted = True
            if plan.abort is not None and not trial.aborted and time.monotonic() - trial.begin > plan.abort:
                federation.studies.Abort(pb.ShowRequest(study=trial.key), timeout=5)
                trial.aborted = True
            trial.status = federation.studies.Show(pb.ShowRequest(study=trial.key), timeout=5)
        except grpc.RpcError as error:
            known = isinstance(error, grpc.Call) and "submitted before" in (error.details() or "")
            trial.submitted = trial.submitted or known  # its answer was lost
        if not trial.over and time.monotonic() - self._disturbed > self._limit:
            trial.hung = True

    def _end(self, trial: Trial) -> None:
        trial.seconds = time.monotonic() - trial.begin
        for strike, _ in trial.pending:
            if strike.moment.kind == "sent":
                self.federation.proxies[strike.moment.party].release()
        trial.pending = []
        plan, status = trial.plan, trial.status
        noise = "no noise" if plan.epsilon is None else f"epsilon {plan.epsilon:g}"
        words = "HANGS" if trial.hung or status is None else " ".join(filter(None, (status.phase, status.reason)))
        hits = "".join(f"\n        {hit}" for hit in trial.hit)
        self._told(f"{plan.seed} {plan.method}, {noise}, {plan.cohort_difference}: {words}, {trial.seconds:.1f} s{hits}")


def play(folder: Path, plan: FederationPlan, told: Callable[[str], None], database: str | None = None) -> Player:
    """Start a federation in an empty folder and play its plan; the caller stops it, also after an error."""
    player = Player(Federation(folder, plan, database), told)
    try:
        player.start()
        player.play()
        player.federation.heal()
    except BaseException as error:
        player.federation.close()
        for party in player.federation.parties.values():
            for fault in party.faults:
                error.add_note(fault)
        raise
    return player
