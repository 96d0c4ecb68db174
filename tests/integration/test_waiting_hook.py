"""The site's command for waiting studies: what it gets, how often it runs, and what happens when it fails or hangs."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from support.federation import make_request, schema_of
from support.hostile import Adversary, altered, make_adversary
from support.network import wait_for
from support.processes import gone
from veilsum.local.federation import as_directive
from veilsum_participant.protocol.decisions import decline, shown_study
from veilsum_participant.protocol.shown import shown_text
from veilsum_participant.session.hooks import PAUSE_SECONDS, WaitingHook
from veilsum_participant.session.supervisor import Supervisor
from veilsum_participant.settings.config import HooksConfig
from veilsum_proto import federation_pb2 as pb

LONG = 60.0
NOTE = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ), sys.stdin.read()], open(sys.argv[1], 'w'))"


class Bench:
    """A site whose operator has to approve, with a command and a clock of the test's own."""

    def __init__(self, directory: Path, *command: str, limit: float = LONG) -> None:
        self.attack: Adversary = make_adversary(directory, budget=(3.0, 1e-5), approval="manual")
        self.site = self.attack.bed.sites["a"]
        self.site.config = self.site.config.model_copy(update={"hooks": HooksConfig(waiting=command)})
        self.now = 0.0
        self.site.elapsed = lambda: self.now
        self.hook = WaitingHook(self.site, limit=limit)

    def ask(self, number: int = 0) -> None:
        study = self.attack.bed.compile(make_request(schema_of(2), min_cohort=2))
        self.attack.use(altered(study, nonce=f"{number:032x}"))
        self.attack.channels["a"].objects = {pb.OBJECT_KIND_STUDY: self.attack.study_object()}
        directive = pb.Directive(kind=pb.DIRECTIVE_KIND_ENROL, study=self.attack.key)
        self.attack.cores["a"].handle(as_directive(directive), self.attack.channels["a"])

    def look(self) -> None:
        self.hook.look()
        assert self.hook.wait(LONG)


def test_what_the_command_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arguments as they stand, the page on its input, the studies' IDs; no other variables, which may hold secrets."""
    monkeypatch.setenv("VEILSUM__PROXY", "secret")
    note = tmp_path / "note"
    bench = Bench(tmp_path / "bed", sys.executable, "-c", NOTE, str(note), "$(id); `id` && {id}")
    bench.look()
    assert not note.exists()  # nothing waits yet
    bench.ask()
    bench.look()
    arguments, environment, text = json.loads(note.read_text())
    assert arguments == [str(note), "$(id); `id` && {id}"]
    assert environment["VEILSUM_STUDIES"] == bench.attack.key.hex()
    assert set(environment) <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "VEILSUM_STUDIES"}
    assert text == shown_text(shown_study(bench.site, bench.attack.key.hex()))


def test_a_launcher_gives_the_command_no_variable_of_a_guards_choice(tmp_path: Path) -> None:
    """Of these some load code into any program, and the command is not confined as the guard is."""
    note = tmp_path / "note"
    bench = Bench(tmp_path / "bed", sys.executable, "-c", NOTE, str(note))
    ours, theirs = socket.socketpair()
    asked = {"VEILSUM_STUDIES": "ab", "PYTHONWARNINGS": "ignore", "LD_PRELOAD": "/", "PATH": "/"}
    with ours, theirs, TemporaryFile() as given, TemporaryFile() as words:
        launching = Supervisor(bench.site.config, os.getpid(), ours, None, words.fileno())
        number, (ends,) = launching._hook(asked, [given.fileno()])
    with os.fdopen(ends, "rb") as told:
        wait_for(launching._children[number].over)
        assert told.read() == b"0"
    environment = json.loads(note.read_text())[1]
    assert environment["VEILSUM_STUDIES"] == "ab"
    assert environment["PATH"] != "/"
    assert set(environment) <= {"PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "VEILSUM_STUDIES"}


def test_many_studies_start_few_commands(tmp_path: Path) -> None:
    """Those that came within a minute are told together; each once, and again only where it ended and came again."""
    bench, told = Bench(tmp_path / "bed", sys.executable, "-c", NOTE, str(tmp_path / "note")), []

    def look(after: float) -> None:
        bench.now += after
        (tmp_path / "note").unlink(missing_ok=True)
        bench.look()
        told.append(
            len(json.loads((tmp_path / "note").read_text())[1]["VEILSUM_STUDIES"].split())
            if (tmp_path / "note").exists()
            else 0
        )

    bench.ask(1)
    look(0)
    for number in (2, 3):
        bench.ask(number)
        look(PAUSE_SECONDS / 3)
    look(PAUSE_SECONDS / 3)
    look(PAUSE_SECONDS)
    bench.attack.tell("a", pb.DIRECTIVE_KIND_END)
    look(PAUSE_SECONDS)
    bench.ask(3)
    look(PAUSE_SECONDS)
    assert told == [1, 0, 0, 2, 0, 0, 1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([sys.executable, "-c", "raise SystemExit(3)"], "exit status 3"),
        (["/no/such/program"], "cannot be run"),
        ([sys.executable, "-c", "import time; time.sleep(600)"], "was ended after"),
        ([sys.executable, "-c", "import os; os.close(0); raise SystemExit(4)"], "exit status 4"),
    ],
)
def test_a_command_that_fails_is_logged_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, command: list[str], said: str
) -> None:
    bench = Bench(tmp_path, *command, limit=LONG if "sleep" not in command[-1] else 0.5)
    bench.ask()
    bench.look()
    assert said in caplog.text
    decline(bench.site, bench.attack.key.hex(), "Olga", "no")  # the site goes on


def test_a_command_that_runs_ends_with_the_participant(tmp_path: Path) -> None:
    """And what it started: nothing of it is left."""
    child = (
        "import os, subprocess, sys; p = subprocess.Popen(['sleep', '600']); new = sys.argv[1] + '.new';"
        " print(p.pid, file=open(new, 'w'), flush=True); os.rename(new, sys.argv[1]); p.wait()"
    )
    bench = Bench(tmp_path / "bed", sys.executable, "-c", child, str(tmp_path / "pid"))
    bench.ask()
    bench.hook.look()
    wait_for((tmp_path / "pid").exists, "the command's child")
    bench.hook.stop()
    assert bench.hook.wait(LONG)
    child_id = int((tmp_path / "pid").read_text())
    wait_for(lambda: gone(child_id), "the child's end")


@pytest.mark.parametrize("command", [("mail",), ("./mail",), ("/bin/mail", "a\0b")])
def test_a_command_that_could_be_another_is_refused(command: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="waiting"):
        HooksConfig(waiting=command)
