"""The operator's pages over HTTP in this process: who may what, and that each form does what its command does, and no more."""

from __future__ import annotations

import logging
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lxml import html

from support import commands
from support.consoles import URL, Visitor, words
from support.held import HeldStudies
from support.network import wait_for
from veilsum.local.coordinator import LocalCoordinator
from veilsum.verification import verify_result
from veilsum_coordinator.console import facts
from veilsum_coordinator.console.pages import OperatorPages
from veilsum_coordinator.console.run import operator_console
from veilsum_coordinator.protocol.settings import load_coordinator_config
from veilsum_deploy.coordinator.check import check_coordinator, coordinator_checks
from veilsum_node.web import looking
from veilsum_node.web.people import PersonRole, Right
from veilsum_node.web.settings import ConsoleSettings

DAY = 86_400


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> HeldStudies:
    return HeldStudies(tmp_path_factory.mktemp("held"))


class Desk:
    """An operator's console before a copy of the coordinator's state, on a day of the test's choice."""

    def __init__(self, place: HeldStudies, directory: Path, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.place, self.config, self.now = place, place.copy(directory), place.expires
        self.slow: list[tuple[str, looking.Look]] = []
        patch.setattr(facts, "now", lambda: self.now)
        patch.setattr("veilsum_deploy.coordinator.coordinator.time", SimpleNamespace(time=lambda: self.now))

        @contextmanager
        def connect() -> Iterator[LocalCoordinator]:
            yield LocalCoordinator(place.bed.local, place.results)

        def row(look: Callable[[], Sequence[Any]]) -> looking.Look:
            return lambda: [item.row() for item in look()]

        def checks() -> list[tuple[str, looking.Look]]:
            found = coordinator_checks(load_coordinator_config(self.config), place.bed.clock)
            return [*((name, row(look)) for name, look in found), *self.slow]

        sources = facts.Sources(self.config, ConsoleSettings(**settings), connect, checks)
        self.pages = OperatorPages(sources).pages()
        self.console = operator_console(sources, URL)
        self.visitor = Visitor(self.console).log_in("Otto Ops", "operator")
        self.one = f"/storage/{place.key.hex()}"

    def settle(self, action: str, **form: str) -> Any:
        return self.visitor.send(self.one, action=action, **form)

    @property
    def state(self) -> Path:
        return self.config.parent / "state"

    def contents(self) -> dict[str, Any]:
        """Every row of every table, and every file beside the database."""
        found: dict[str, Any] = {}
        with closing(sqlite3.connect(self.state / "coordinator.db")) as connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                found[name] = sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"').fetchall()))  # noqa: S608
        for path in self.state.rglob("*"):
            if path.is_file() and not path.name.startswith(("coordinator.db", "console-links")):
                found[str(path.relative_to(self.state))] = path.read_bytes()
        return found


@pytest.fixture
def desk(place: HeldStudies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(place, tmp_path / "hub", monkeypatch)


@pytest.mark.parametrize("role", [None, *PersonRole])
def test_each_role_may_what_it_may(desk: Desk, role: PersonRole | None) -> None:
    """A matrix of every page and form, without a session, and with each role; what a role may not, it is not shown."""
    before = desk.contents()
    visitor = Visitor(desk.console)
    if role is not None:
        visitor.log_in("Rita", role)
    for page in desk.pages:
        path = page.path.replace("{study}", desk.place.open.hex())
        if role is None:
            answer = visitor.client.post(path) if page.form else visitor.client.get(path)
            assert answer.status_code == (401 if page.form else 303), path
            continue
        if page.path == "/study/{study}" and page.form and page.right in role.rights:
            continue  # the operator's abort, which the browser's test tries
        status = (visitor.send(path) if page.form else visitor.client.get(path)).status_code
        assert (status == 403) is (page.right not in role.rights), (path, status)
        assert status < 500, path
    if role is not None:
        for path in ("/storage", desk.one):
            shown = {str(item) for item in visitor.page(path).xpath("//main//form/@action")}
            assert bool(shown) is (Right.OPERATE in role.rights), path
    assert desk.contents() == before


FORGED: dict[str, dict[str, Any]] = {
    "no token": {"data": {"csrf": ""}},
    "another session's token": {"data": {"csrf": "x" * 43}},
    "another origin": {"headers": {"Origin": "https://evil.example"}},
    "another site": {"headers": {"Sec-Fetch-Site": "cross-site"}},
    "another host": {"headers": {"Host": "evil.example:8470"}},
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_form_does_nothing(desk: Desk, case: str) -> None:
    before, given = desk.contents(), FORGED[case]
    csrf = desk.visitor.csrf
    due = facts.due(facts.held(load_coordinator_config(desk.config)), "0")
    for path, form in (
        (desk.one, {"action": "archive"}),
        (desk.one, {"action": "delete", "name": desk.place.name}),
        ("/storage", {"days": "0", "shown": due.digest, "name": due.words}),
    ):
        sent = {"csrf": csrf, **form, **given.get("data", {})}
        assert desk.visitor.client.post(path, data=sent, headers=given.get("headers")).status_code in (403, 421)
    assert desk.contents() == before


def test_archiving_is_the_commands_and_deletes_nothing(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    before = desk.contents()
    assert "Nothing is deleted" in desk.visitor.text(desk.one)
    with caplog.at_level(logging.INFO, "veilsum.console"):
        answer = desk.settle("archive")
    assert answer.status_code == 200, words_of(answer)
    (kept,) = (desk.state / "archive").iterdir()
    assert str(kept) in words_of(answer)
    assert verify_result(kept, desk.place.bed.analyst.authority).comparison.exact
    assert {name: value for name, value in desk.contents().items() if not name.startswith("archive/")} == before
    assert f"Otto Ops archived study {desk.place.key.hex()[:12]}" in caplog.text
    again = desk.settle("archive")
    assert (again.status_code, "exists already" in again.text) == (409, True)


@pytest.mark.parametrize("keep", [False, True])
def test_deleting_is_the_commands_to_the_last_row(
    desk: Desk, keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another copy of the same state, of which the command deletes the same study: every table and file is the same after."""
    said = desk.visitor.text(desk.one)
    for told in ("Lost for good", "What stays", "each site's ledger", desk.place.name, str(desk.state / "proofs")):
        assert told in said
    form = {"keep": "on"} if keep else {}
    answer = desk.settle("delete", name=f" {desk.place.name}", **form)
    assert (answer.status_code, "is deleted" in words_of(answer)) == (200, True)
    other = Desk(desk.place, tmp_path / "other", monkeypatch)
    options = ("--keep-proof",) if keep else ()
    commands.shown(capsys, "coordinator", "delete", desk.place.key.hex()[:12], *options, "--config", other.config)
    assert desk.contents() == other.contents()
    assert [item.digest for item in facts.held(load_coordinator_config(desk.config))] == [desk.place.open]
    proofs = [verify_result(path, desk.place.bed.analyst.authority) for path in (desk.state / "proofs").glob("*")]
    assert [found.study.digest for found in proofs] == [desk.place.key] * keep
    assert desk.visitor.client.get(desk.one).status_code == 409  # it is not there


def test_database_and_folders_are_looked_at_once_for_whoever_asks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew for whoever looks after something was done."""
    looked: list[str] = []
    held, storage = facts.held, facts.storage
    monkeypatch.setattr(facts, "held", lambda config: looked.append("held") or held(config))
    monkeypatch.setattr(facts, "storage", lambda config, known: looked.append("storage") or storage(config, known))
    for path in ("/storage", desk.one, "/storage?days=0", "/storage"):
        assert desk.place.key.hex()[:12] in desk.visitor.client.get(path).text
    assert looked == ["held", "storage"]
    assert desk.settle("delete", name=desk.place.name).status_code == 200
    assert desk.place.key.hex()[:12] not in desk.visitor.text("/storage")
    assert looked == ["held", "storage"] * 2


def test_nothing_is_deleted_without_its_name_or_before_its_time(desk: Desk) -> None:
    before = desk.contents()
    for name in ("", desk.place.name.upper(), desk.place.name[:-1], desk.place.key.hex()):
        answer = desk.settle("delete", name=name)
        assert (answer.status_code, "nothing was deleted" in words_of(answer)) == (409, True)
        assert html.fromstring(answer.text).xpath("//main//a/@href") == [desk.one]  # back to the form
    assert desk.settle("delete").status_code == 409
    assert desk.settle("", name=desk.place.name).status_code == 409
    desk.now = desk.place.expires - 1
    assert "can be deleted from" in desk.visitor.text(desk.one)
    assert "not expired" in words_of(desk.settle("delete", name=desk.place.name))
    still_open = desk.place.held()[desk.place.open]
    path = f"/storage/{still_open.digest.hex()}"
    assert not desk.visitor.page(path).xpath("//main//form")
    desk.now = still_open.expires + DAY
    for form in ({"action": "archive"}, {"action": "delete", "name": still_open.name}):
        assert "is not over" in words_of(desk.visitor.send(path, **form))
    assert desk.contents() == before


def test_what_expired_long_ago_is_listed_and_deleted_as_the_command_does(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = desk.contents()
    assert "Nothing is deleted by itself" in desk.visitor.text("/storage")
    desk.config.write_text(desk.config.read_text() + "[retention]\nstudies = 30\nkeep_proofs = false\n")
    assert "deleted by itself 30 days after it expired" in desk.visitor.text("/storage")
    for days in ("-1", "x", "1.5", "36501", "9" * 7, "\N{SUPERSCRIPT TWO}"):
        assert desk.visitor.client.get("/storage", params={"days": days}).status_code == 409, days
    assert "No study is over and expired 1 day ago" in desk.visitor.text("/storage", days="1")
    page = desk.visitor.page("/storage", days="0")
    (shown,) = page.xpath("//input[@name='shown']/@value")
    assert desk.place.key.hex()[:12] in words(page.xpath("//section[@id='due']")[0])
    assert desk.place.open.hex()[:12] not in words(page.xpath("//section[@id='due']")[0])
    form = {"days": "0", "shown": str(shown), "name": "delete 1 study"}
    for change in ({"name": "delete 2 studies"}, {"name": ""}, {"shown": "0" * 64}, {"days": "1"}, {"days": ""}):
        answer = desk.visitor.send("/storage", **(form | change))
        assert answer.status_code == 409, change
    assert desk.contents() == before
    assert "1 study is deleted" in words_of(desk.visitor.send("/storage", **form))
    other = Desk(desk.place, tmp_path / "other", monkeypatch)
    told = commands.shown(capsys, "coordinator", "retire", "--days", "1", "--config", other.config)
    assert (told, other.contents()) == ([], before)
    (told,) = commands.shown(capsys, "coordinator", "retire", "--days", "0", "--config", other.config)
    assert told["study"] == desk.place.key.hex()
    assert desk.contents() == other.contents()


def test_health_has_the_rows_of_the_command(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "PATIENCE", 60.0)
    page = desk.visitor.page("/health")
    shown = [[words(cell) for cell in row.xpath("td")] for row in page.xpath("//tbody/tr")]
    config = load_coordinator_config(desk.config)
    found = [item.row() for item in check_coordinator(config, desk.place.bed.clock)]
    assert [row["of"] for row in found] == ["certificate", "mirror", "disk", "backup"]
    free = re.compile(r"[\d,]+ MiB free")  # which others use meanwhile
    command = [
        [row["state"], row["of"], free.sub("", row["found"]), row["what to do"].replace("`", "") or "–"] for row in found
    ]
    assert [[*row[:2], free.sub("", row[2]), row[3]] for row in shown[2:-1]] == command
    assert [row[1] for row in shown[:2]] == ["service", "interface"]
    assert page.xpath("//*[@hx-trigger]") == []  # all is known: the page does not renew itself


def test_a_row_that_takes_long_keeps_no_page_waiting(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for once, however often the page is opened; what it finds is shown then, and looked at anew by a click."""
    monkeypatch.setattr(looking, "FRESH", 3600.0)
    monkeypatch.setattr(looking, "PATIENCE", 0.0)
    goes_on, asked = threading.Event(), list[int]()

    def look() -> list[looking.Row]:
        asked.append(1)
        assert goes_on.wait(60)
        return [{"state": "ok", "of": "archive disk", "found": f"answered {len(asked)}", "what to do": ""}]

    def fails() -> list[looking.Row]:
        raise ZeroDivisionError("a secret")

    def rows(path: str = "/health?renew") -> dict[str, str]:
        page = desk.visitor.page(path)
        assert page.xpath("//*[@hx-trigger]/@hx-get") == ["/health?renew"] * ("pending" in words(page))
        return {words(row.xpath("td")[1]): words(row.xpath("td")[2]) for row in page.xpath("//tbody/tr")}

    def until(said: str) -> None:
        wait_for(lambda: said in rows().values(), said)

    desk.slow = [("archive disk", look), ("what fails", fails)]
    for _ in range(3):
        found = rows("/health")
        assert "not known yet" in found["archive disk"]
        assert found["version"].startswith("veilsum ")
    until("the console failed to look")
    assert len(asked) == 1
    goes_on.set()
    until("answered 1")
    assert rows()["archive disk"] == "answered 1"  # it stays, for a page that renews itself
    rows("/health")
    until("answered 2")


def words_of(answer: Any) -> str:
    return words(html.fromstring(answer.text))
