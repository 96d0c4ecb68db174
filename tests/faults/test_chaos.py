"""A few real studies under SIGKILL, and proof that those who judge them would see what is wrong."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import grpc
import pytest
from chaos.federation import DELTA, Federation
from chaos.judging import Verdict, judge
from chaos.ledgers import check_ledgers, gaussian_epsilon
from chaos.leftovers import files, left_files, left_processes, open_modes
from chaos.oracle import Noise, check_study
from chaos.plans import COORDINATOR, PATIENT, FederationPlan, Moment, Strike, StudyPlan, draw_federation
from chaos.playing import Player, play
from chaos.reasons import ALLOWED, name_of

from veilsum_coordinator.service.guard import Guard
from veilsum_coordinator.service.metrics import Metrics
from veilsum_coordinator.service.runner import Supervisor
from veilsum_node.errors import HostileInput
from veilsum_privacy.accounting.gaussian import analytic_gaussian_epsilon
from veilsum_privacy.results.result import ARRAYS, load_result

SEED = "ci/0"


def _plan(count: int) -> FederationPlan:
    """The first of three studies of fixed seeds: exact, iterated and noised; a site, the coordinator, everybody are killed."""
    drawn = draw_federation(SEED, 3, 3)

    def study(number: int, method: str, parameters: dict[str, Any], epsilon: float | None, *strikes: Strike) -> StudyPlan:
        difference: Literal["strict", "allowed"] = "strict" if epsilon is None else "allowed"
        return StudyPlan(f"{SEED}/{number}", method, parameters, epsilon, 3, difference, number == 1, None, strikes)

    def kill(moment: Moment, *victims: str) -> Strike:
        return Strike(moment, victims, (0.0,) * len(victims))

    studies = (
        study(0, "statistics", {}, None, kill(Moment("attempt", "b", state="consented"), "b")),
        study(1, "fedsgd", {"steps": 2, "gradient_clip": 0.5}, 2.0, kill(Moment("round", number=2, state="sum"), COORDINATOR)),
        study(2, "fedcgs", {}, 1.0, kill(Moment("round", number=1, state="release"), COORDINATOR, "a", "b", "c")),
    )
    return FederationPlan(SEED, drawn.names, PATIENT, None, studies[:count])


@pytest.fixture(scope="module", params=[pytest.param(3, marks=pytest.mark.system)])
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Player, Verdict, list[str]]]:
    told: list[str] = []
    player = play(tmp_path_factory.mktemp("chaos"), _plan(request.param), told.append)
    try:
        yield player, judge(player), told
    finally:
        player.federation.close()


def test_killed_studies_end_in_the_right_result(played: tuple[Player, Verdict, list[str]]) -> None:
    player, verdict, told = played
    studies = len(player.trials)
    assert verdict.faults == [], "\n".join(told)
    assert verdict.ends.total() == studies
    assert verdict.hits.total() >= studies - 1, "\n".join(told)
    assert verdict.releases >= 1
    assert len(verdict.accounts) == 3


@pytest.fixture
def copied(played: tuple[Player, Verdict, list[str]], tmp_path: Path) -> tuple[Player, Federation]:
    """The federation that was played, its files a copy that a test may spoil."""
    player, _, _ = played
    federation = object.__new__(Federation)
    federation.__dict__.update(player.federation.__dict__)
    shutil.copytree(player.federation.folder, tmp_path / "copy")
    federation.folder = tmp_path / "copy"
    federation.parties = {
        name: type(party)(name, party.role, tmp_path / "copy" / party.directory.relative_to(player.federation.folder))
        for name, party in player.federation.parties.items()
    }
    federation.journal = federation.parties[COORDINATOR].directory / "state" / "coordinator.db"
    return player, federation


def _spoil(place: Path, statement: str, *arguments: Any) -> None:
    connection = sqlite3.connect(place)
    with connection:
        guards = "SELECT type, name FROM sqlite_master WHERE type = 'trigger' OR type = 'index' AND sql IS NOT NULL"
        for kind, name in connection.execute(guards).fetchall():  # the ledger is append-only, and charges a round once
            connection.execute(f'DROP {kind} "{name}"')
        assert connection.execute(statement, arguments).rowcount == 1
    connection.close()


def _phases(player: Player) -> dict[bytes, str]:
    return {trial.key: trial.status.phase for trial in player.trials if trial.status is not None}


def _released(player: Player, federation: Federation) -> Any:
    """A study that has a release, with that."""
    for trial in player.trials:
        found = federation.at_coordinator('SELECT round, "values" FROM coordinator_release WHERE study = ?', trial.key)
        if found:
            return trial, found[0]["round"], bytearray(found[0]["values"])
    raise AssertionError("no study has a release")


def _check(federation: Federation, trial: Any) -> list[str]:
    _, _, faults = check_study(
        federation, trial.key, trial.status.phase, trial.status.reason, len(trial.status.enrolled), Noise()
    )
    return faults


def test_a_wrong_sum_would_be_seen(copied: tuple[Player, Federation]) -> None:
    player, federation = copied
    trial, number, values = _released(player, federation)
    assert trial.plan.epsilon is None
    assert isinstance(federation.journal, Path)
    assert _check(federation, trial) == []
    values[0] ^= 1
    where = 'UPDATE coordinator_release SET "values" = ? WHERE study = ? AND round = ?'
    _spoil(federation.journal, where, bytes(values), trial.key, number)
    assert any("is wrong by up to 1 grid units" in fault for fault in _check(federation, trial))


@pytest.mark.parametrize(
    ("statement", "fault"),
    [
        ("DELETE FROM ledger WHERE seq = (SELECT min(seq) FROM ledger WHERE kind = 'charge')", "released and not paid for"),
        ("DELETE FROM ledger WHERE seq = (SELECT min(seq) FROM ledger WHERE kind = 'charge')", "the chain is broken"),
        (
            "UPDATE ledger SET kind = 'free' WHERE seq = (SELECT min(seq) FROM ledger WHERE kind = 'charge')",
            "and charges differ",
        ),
        ("DELETE FROM ledger WHERE seq = (SELECT min(seq) FROM ledger WHERE kind = 'release-seen')", "was seen 0 times"),
        ("UPDATE participant_study SET seeds = x'00' WHERE rowid = 1", "still has its keys"),
        ("UPDATE participant_attempt SET payload = x'00' WHERE rowid = 1", "still has its payload"),
        (
            "UPDATE ledger SET round = 1 + (SELECT max(round) FROM ledger)"
            " WHERE seq = (SELECT max(seq) FROM ledger WHERE kind = 'charge')",
            "charges of the finished study",
        ),
        (
            "UPDATE ledger SET kind = 'charge' WHERE seq = (SELECT min(seq) FROM ledger WHERE kind = 'reserve')",
            "is charged twice",
        ),
    ],
)
def test_a_wrong_account_would_be_seen(copied: tuple[Player, Federation], statement: str, fault: str) -> None:
    player, federation = copied
    assert check_ledgers(federation, _phases(player))[1] == []
    _spoil(federation.state("a"), statement)
    assert any(fault in found for found in check_ledgers(federation, _phases(player))[1])


def test_what_is_left_behind_would_be_seen(copied: tuple[Player, Federation]) -> None:
    _, federation = copied
    folder, before = federation.folder, federation.before
    shutil.rmtree(folder / "exports")
    assert (left_files(folder, before), open_modes(folder), left_processes(folder)) == ([], [], [])
    results = next((folder / "coordinator" / "state" / "results").iterdir())
    for name in (
        folder / "tmp" / "x",
        folder / "participants" / "a" / "participant.db-journal",
        results / ".manifest.json.ab",
    ):
        name.touch()
    federation.state("b").chmod(0o640)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(folder)])
    try:
        assert len(left_files(folder, before)) == 3
        assert open_modes(folder) == ["participants/b/participant.db has mode 640"]
        deadline = time.monotonic() + 10
        while not left_processes(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [line.split(":")[0] for line in left_processes(folder)] == [str(child.pid)]
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("squares", [1e-3, 0.05, 1.0, 9.0, 60.0])
def test_the_closed_form_of_what_was_spent(squares: float) -> None:
    assert gaussian_epsilon(squares, DELTA) == pytest.approx(analytic_gaussian_epsilon(squares, DELTA), rel=1e-6)


def test_reasons_that_no_kill_explains() -> None:
    assert len({name for name, _ in ALLOWED}) == len(ALLOWED)
    assert name_of("round 3 was lost after consent was asked for: no consent from a, b in time") == "consent missing"
    for reason in (
        "internal error in the method; see the coordinator's log",
        "the sum of round 2 is of another context than its members' now",
    ):
        assert name_of(reason) is None


class _Gone:
    """A call whose caller has gone: nothing can be told any more."""

    @staticmethod
    def auth_context() -> dict[str, list[bytes]]:
        return {"x509_common_name": [b"a"]}

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.InternalError


@pytest.mark.parametrize("noticed", [False, True])
def test_a_caller_that_dies_in_a_stream_is_no_internal_error(caplog: pytest.LogCaptureFixture, noticed: bool) -> None:
    """It was one: a killed site's boxes ended early, were rejected, and to tell it so failed."""
    guard = Guard(None, lambda: 0, Metrics(lambda: 0))  # type: ignore[arg-type]

    async def sealing() -> None:
        raise HostileInput("A member must send exactly the boxes that it owes, each once.")

    async def served() -> None:
        context: Any = _Gone()
        task = asyncio.ensure_future(guard.unary(context, lambda: guard.unary(context, sealing)))
        await asyncio.sleep(0)
        if noticed:
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with caplog.at_level("INFO"):
        asyncio.run(served())
    assert "internal error" not in caplog.text
    assert caplog.text.count("rejected (malformed)") == (0 if noticed else 1)


_SAVE = """
import os, signal, sys
from pathlib import Path
import numpy as np
from veilsum_privacy.results.result import Result, save_result
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
save_result(Path(sys.argv[1]), Result("statistics", {}, {"x": np.ones(9)}))
"""


@pytest.mark.parametrize("place", [pytest.param("ab", marks=pytest.mark.system), "ab/checkpoints/round-000001"])
def test_a_coordinator_killed_while_it_writes_a_result_leaves_no_file_behind(tmp_path: Path, place: str) -> None:
    """The next start clears it away; a partial file would be listed among the study's results."""
    folder = tmp_path / place
    whole = tmp_path / "whole"
    done = subprocess.run([sys.executable, "-c", _SAVE.replace("os.fsync =", "unused ="), str(whole)])
    assert done.returncode == 0
    killed = subprocess.run([sys.executable, "-c", _SAVE, str(folder)])
    assert killed.returncode == -signal.SIGKILL
    (partial,) = folder.iterdir()
    assert partial.name.startswith(f".{ARRAYS}.")
    assert stat.S_IMODE(partial.stat().st_mode) == 0o600
    supervisor = Supervisor(_NoHub(), tmp_path, lambda: int(time.time()))  # type: ignore[arg-type]
    supervisor.start()
    supervisor.stop()
    assert os.listdir(folder) == []
    assert load_result(whole).arrays["x"].sum() == 9
    assert files(whole) == {"manifest.json", ARRAYS}


class _NoHub:
    """A hub without studies."""

    def __init__(self) -> None:
        self.studies: dict[bytes, Any] = {}
        self.ended: dict[bytes, Any] = {}
        self.changed = threading.Condition()

    def tick(self) -> None:
        """Nothing is due."""
