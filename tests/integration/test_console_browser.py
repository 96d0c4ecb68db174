"""Both consoles in a real browser, before a running federation: from an empty inbox to a study on record, without a shell."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.browsing import faults, opened, running_browser, too_wide
from support.federation import make_data, make_request, schema_of
from support.hostile import altered
from support.network import wait_for
from support.processes import VEILSUM, Process, Processes, running_processes
from veilsum_coordinator.protocol.settings import Waits
from veilsum_node.web.people import Links, PersonRole, person
from veilsum_participant.protocol.decisions import approve, waiting_studies
from veilsum_participant.session.beside import open_beside
from veilsum_participant.settings.config import load_participant_config
from veilsum_privacy.study.study import parse_study
from veilsum_proto import federation_pb2 as pb

expect.set_options(timeout=60_000)

PURPOSE = "To learn whether blood pressure differs between the sexes, for the vote EK 2026-117."
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"


class Consoles:
    """A federation whose site ``a`` and coordinator have consoles, and a browser before them."""

    def __init__(self, federation: Processes, browser: Browser, site: str, coordinator: str) -> None:
        self.federation, self.browser, self.site, self.coordinator = federation, browser, site, coordinator
        self._links = {
            site: Links(federation.directory("a") / "participant.console-links", federation.clock),
            coordinator: Links(federation.kit.coordinator.directory / "state" / "console-links", federation.clock),
        }

    def person(self, name: str, role: str, place: str = "") -> Page:
        """Somebody who follows a one-time link to a console; by default the site's."""
        place = place or self.site
        return opened(self.browser, f"{place}/enter?token={self._links[place].add(person(name, [PersonRole(role)]))}")

    def submit(self, name: str, epsilon: float = 1.0, **changes: Any) -> bytes:
        """Let the analyst submit a study, which waits at every site once this returns."""
        request = make_request(schema_of(2), epsilon=epsilon, min_cohort=3).model_copy(
            update={"name": name, "purpose": PURPOSE}
        )
        key = self.federation.submit(altered(self.federation.compile(request), **changes))
        for site in self.federation.names:
            wait_for(lambda site=site: key in self.waiting(site), f"the study at {site}")  # type: ignore[misc]
        return key

    def waiting(self, site: str) -> dict[bytes, str]:
        """Studies that wait at a site, and their states."""
        with open_beside(load_participant_config(self.federation.directory(site) / "participant.toml")) as opened_site:
            return {item.digest: item.state for item in waiting_studies(opened_site)}

    def expire(self, key: bytes) -> None:
        """Let a study lie in the journal as one that expired long ago does."""
        database = self.federation.kit.coordinator.directory / "state" / "coordinator.db"
        with closing(sqlite3.connect(database, timeout=60)) as connection, connection:
            query = "SELECT object FROM coordinator_study WHERE digest = ?"
            (data,) = connection.execute(query, (key,)).fetchone()
            found = pb.StudyObject.FromString(data)
            study = parse_study(found.study)
            for name, moment in (("created", study.created), ("expires", study.expires)):
                found.study = found.study.replace(f'"{name}":{moment}'.encode(), f'"{name}":{moment - 10**7}'.encode())
            connection.execute("UPDATE coordinator_study SET object = ? WHERE digest = ?", (found.SerializeToString(), key))

    def others_approve(self, key: bytes) -> None:
        """Let the officers of the other sites agree."""
        for site in "bc":
            with open_beside(load_participant_config(self.federation.directory(site) / "participant.toml")) as opened_site:
                approve(opened_site, key.hex(), f"officer of {site}")


@contextmanager
def console(role: str, directory: Path, *more: str) -> Iterator[str]:
    """A console's process; yields where it listens."""
    command = [*VEILSUM, role, "console", "--config", str(directory / f"{role}.toml"), "--listen", "127.0.0.1:0", *more]
    process = Process(command, directory / "console-log", forked=True)
    try:
        found: list[str] = []
        pattern = re.compile(r"^The console is at (http://\S+)$", re.MULTILINE)

        def listens() -> bool:
            found[:] = pattern.findall(process.log.read_text()) if process.log.exists() else []
            return bool(found) or not process.alive

        wait_for(listens, "the console's address")
        assert found, process.log.read_text()
        yield found[0]
    finally:
        assert process.stop() == 0, process.log.read_text()


@pytest.fixture(scope="module")
def consoles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Consoles]:
    directory = tmp_path_factory.mktemp("consoles")
    with ExitStack() as stack:
        browser = stack.enter_context(running_browser())
        federation = stack.enter_context(
            running_processes(
                directory, make_data("abc"), waits=Waits(), budget=(20.0, 1e-5), approval="manual", four_eyes_above=2.0
            )
        )
        place = federation.kit.coordinator.directory
        access = {"coordinator": federation.address, "identity": str(federation.kit.operator.identity)}
        lines = [f"{key} = {json.dumps(value)}" for key, value in access.items()]
        (place / "operator.toml").write_text("\n".join(lines) + "\n")
        site = stack.enter_context(console("participant", federation.directory("a"), "--records-in-reach"))
        yield Consoles(federation, browser, site, stack.enter_context(console("coordinator", place)))


@pytest.mark.system
def test_from_an_empty_inbox_to_a_study_on_record(consoles: Consoles) -> None:
    """An officer sees who asks and why, decides by clicks under her name, and finds it on record once it ran."""
    page = consoles.person("Olga Maier", "officer")
    expect(page.get_by_text("Nothing waits for your word.")).to_be_visible()
    key = consoles.submit("heart-means")
    page.get_by_role("navigation").get_by_role("link", name="Inbox").click()
    page.get_by_role("link", name="heart-means").click()
    expect(page.get_by_text(PURPOSE).first).to_be_visible()
    expect(page.get_by_text("Study heart-means by analyst")).to_be_visible()
    expect(page.get_by_text("means and standard deviations of x0 and x1")).to_be_visible()
    expect(page.get_by_text(re.compile("times in 100")).first).to_be_visible()
    assert faults(page) == []
    page.get_by_label("Reason").fill("covered by the vote")
    page.get_by_role("button", name="Approve").click()
    expect(page.get_by_text("covered by the vote (Olga Maier)")).to_be_visible()
    consoles.others_approve(key)
    assert consoles.federation.await_end(key).phase == "finished"
    consoles.federation.await_over("a", key)
    page.get_by_role("navigation").get_by_role("link", name="Inbox").click()
    row = page.get_by_role("row").filter(has_text=key.hex()[:12])
    expect(row.get_by_text("ended")).to_be_visible()
    row.get_by_role("link", name="its entries").click()
    kinds = page.locator("td[data-label=Kind]").all_inner_texts()
    assert {"approval", "reserve", "charge", "release-seen"} <= set(kinds)
    expect(page.get_by_text("covered by the vote (Olga Maier)")).to_be_visible()
    page.get_by_role("button", name="Verify now").click()
    expect(page.get_by_role("heading", name="Verified")).to_be_visible()
    assert faults(page) == []
    page.get_by_role("link", name="Dossier").click()
    expect(page.get_by_text("Olga Maier: covered by the vote")).to_be_visible()
    expect(page.get_by_text(PURPOSE).first).to_be_visible()
    page.get_by_role("link", name="Read and print it").click()
    expect(page.get_by_role("heading", name="1 Summary")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('.verdict')).backgroundColor") != "rgb(0, 0, 0)"  # styled
    page.set_viewport_size({"width": 640, "height": 900})  # A4 without its margins
    page.emulate_media(media="print")
    cut = "all => all.filter(item => item.scrollWidth > item.clientWidth).map(item => item.textContent)"
    assert page.get_by_role("columnheader", name="Total after").count() == 1
    assert page.locator("thead th").evaluate_all(cut) == []
    assert page.alarms == []  # type: ignore[attr-defined]


@pytest.mark.system
def test_a_decline_and_a_session_that_ended(consoles: Consoles) -> None:
    key = consoles.submit("heart-declined")
    page = consoles.person("Olga Maier", "officer")
    page.goto(f"{consoles.site}/study/{key.hex()}")
    kept = page.context.cookies()
    page.get_by_label("Reason").fill("no agreement with this group")
    page.context.clear_cookies()
    page.get_by_role("button", name="Decline").click()
    expect(page.get_by_text("Your session has ended, and nothing was done.")).to_be_visible()
    assert consoles.waiting("a")[key] == "waiting"
    page.context.add_cookies(kept)  # type: ignore[arg-type]
    page.goto(f"{consoles.site}/study/{key.hex()}")
    page.get_by_label("Reason").fill("no agreement with this group")
    page.get_by_role("button", name="Decline").click()
    expect(page.get_by_text("no agreement with this group (Olga Maier)")).to_be_visible()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    page.go_back()
    assert PURPOSE not in page.content()  # what was shown is not kept


@pytest.mark.system
def test_four_eyes_and_the_keyboard(consoles: Consoles) -> None:
    """Two officers in two windows, the second without a mouse."""
    key = consoles.submit("heart-large", epsilon=3.0)
    olga, pia = consoles.person("Olga Maier", "officer"), consoles.person("Pia Berg", "officer")
    for _ in range(2):  # once is recorded, twice is refused
        olga.goto(f"{consoles.site}/study/{key.hex()}")
        expect(olga.get_by_text("Four eyes.")).to_be_visible()
        olga.get_by_role("button", name="Approve").click()
    expect(olga.get_by_text("it needs 2 people")).to_be_visible()
    assert consoles.waiting("a")[key] == "waiting"
    pia.goto(f"{consoles.site}/study/{key.hex()}")
    expect(pia.get_by_text("Approved by Olga Maier").last).to_be_visible()
    for _ in range(40):
        pia.keyboard.press("Tab")
        if pia.evaluate("document.activeElement.value") == "approve":
            break
    outline = pia.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # where one is can be seen
    pia.keyboard.press("Enter")
    expect(pia.locator("td[data-label=Kind]").filter(has_text="approval")).to_have_count(2)
    assert consoles.waiting("a").get(key) != "waiting"


def test_words_of_a_stranger_do_not_run(consoles: Consoles) -> None:
    """A purpose and other texts that are markup: on every page that shows them no dialog opens and no image is asked for."""
    words = dict.fromkeys(("purpose", "reference", "legal_basis", "contact"), f"{HOSTILE} {'x' * 150}")
    key = consoles.submit("heart-hostile", **words)
    page = consoles.person("Olga Maier", "officer")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    for path in ("/", f"/study/{key.hex()}", "/ledger", f"/ledger?text={HOSTILE}&since=1h", "/dossier"):
        page.goto(f"{consoles.site}{path}")
        assert not page.locator("img").count()
        assert too_wide(page) == []  # a word without an end is broken
    page.goto(f"{consoles.site}/study/{key.hex()}")
    assert page.locator("dd").filter(has_text=HOSTILE).count() == 4
    page.get_by_label("Reason").fill(HOSTILE)
    page.get_by_role("button", name="Decline").click()
    page.goto(f"{consoles.site}/ledger?kind=decline")
    expect(page.get_by_text(f"{HOSTILE} (Olga Maier)")).to_be_visible()
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=alert(3)>')")  # were one to come through
    page.locator("img").first.evaluate("image => image.decode().catch(() => null)")  # loaded, or known not to load
    alarms = page.alarms  # type: ignore[attr-defined]
    assert not {"1", "2", "3"} & set(alarms)
    assert [alarm for alarm in alarms if "Content Security Policy" not in alarm and "404" not in alarm] == []
    assert all(url.startswith(consoles.site) for url in asked)


def test_no_other_page_frames_it_or_sends_its_forms(consoles: Consoles) -> None:
    """A page of another origin in the officer's own browser: it gets no frame, and its form counts for nothing."""
    key = consoles.submit("heart-framed")
    page = consoles.person("Olga Maier", "officer")
    place = f"{consoles.site}/study/{key.hex()}"
    frame = f"<iframe name='inner' src='{place}'></iframe>"
    form = f"<form method='post' action='{place}'><input name='decision' value='approve'><button>Win</button></form>"
    page.route(
        "http://evil.example/", lambda route: route.fulfill(body=f"<title>x</title>{frame}{form}", content_type="text/html")
    )
    page.goto("http://evil.example/")
    inner = page.frame("inner")
    assert inner is not None
    assert "Approve" not in inner.content()
    page.get_by_role("button", name="Win").click()
    page.wait_for_url(place)
    said = page.content()
    assert "counts only from a page of this console" in said or "Your session has ended, and nothing was done." in said
    assert consoles.waiting("a")[key] == "waiting"


@pytest.mark.system
def test_every_page_reads_well(consoles: Consoles) -> None:
    """axe-core finds nothing, nothing is wider than its window, at 1280 and 360 px, in light and dark; also what was asked."""
    wrong: list[str] = []
    page = consoles.person("Otto Ops", "operator")
    for path in ("/", "/budgets", "/ledger", "/dossier", "/health", "/settings", "/nowhere"):
        page.goto(consoles.site + path)
        wrong += faults(page)
    operator = consoles.person("Otto Ops", "operator", consoles.coordinator)
    for path in ("/", "/members", "/requests", "/refusals", "/storage?days=0"):
        operator.goto(consoles.coordinator + path)
        wrong += faults(operator)
    page.goto(consoles.site + "/login")
    assert wrong + faults(page) == []
    officer = consoles.person("Olga Maier", "officer")
    officer.goto(f"{consoles.site}/budgets")
    officer.get_by_label("How many more").fill("2")
    officer.get_by_label("Another epsilon").fill("50")
    officer.get_by_role("button", name="Ask").click()
    expect(officer.locator("#answer")).to_contain_text(re.compile(r"budget\s*50"))
    assert officer.alarms == []  # type: ignore[attr-defined]
    officer.get_by_label("Another epsilon").fill("plenty")
    officer.get_by_role("button", name="Ask").click()
    expect(officer.locator("#answer")).to_contain_text("must be a positive number")  # beside the form, which stays
    expect(officer.get_by_label("Another epsilon")).to_have_value("plenty")
    officer.goto(f"{consoles.site}/ledger")
    officer.get_by_label("Since").fill("some day")
    officer.get_by_role("button", name="Search").click()
    expect(officer.locator("#found")).to_contain_text("is not a time")


@pytest.mark.system
def test_the_operators_page(consoles: Consoles) -> None:
    """Members, a study by its rounds, storage; a reader may not abort, and an operator's abort ends the study."""
    key = consoles.submit("heart-aborted")
    reader = consoles.person("Rita Reader", "reader", consoles.coordinator)
    reader.goto(f"{consoles.coordinator}/study/{key.hex()[:12]}")
    expect(reader.get_by_text("They neither enrolled nor refused.")).to_be_visible()
    assert reader.get_by_role("button", name="Abort").count() == 0
    page = consoles.person("Otto Ops", "operator", consoles.coordinator)
    page.get_by_role("link", name="heart-aborted").click()
    page.get_by_role("button", name="Abort heart-aborted").click()
    expect(page.get_by_text("aborted", exact=True)).to_be_visible()
    assert consoles.federation.await_end(key).phase == "aborted"
    page.get_by_role("link", name="Members").click()
    for site in consoles.federation.names:
        expect(page.get_by_role("row").filter(has=page.get_by_role("cell", name=site, exact=True))).to_contain_text(
            "connected"
        )
    page.get_by_role("link", name="Storage").click()
    expect(page.get_by_role("row").filter(has_text=key.hex()[:12])).to_contain_text("aborted")
    page.get_by_role("link", name="heart-aborted").click()
    expect(page.get_by_text("It can be deleted from")).to_be_visible()
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("The study heart-aborted is archived.")).to_be_visible()
    assert page.alarms == []  # type: ignore[attr-defined]


@pytest.mark.system
def test_an_operator_deletes_a_study_whose_name_was_typed(consoles: Consoles) -> None:
    """What is lost stands beside the button; another name deletes nothing; the running coordinator lets go of the study."""
    key = consoles.submit("heart-old")
    page = consoles.person("Otto Ops", "operator", consoles.coordinator)
    page.goto(f"{consoles.coordinator}/study/{key.hex()}")
    page.get_by_role("button", name="Abort heart-old").click()
    assert consoles.federation.await_end(key).phase == "aborted"
    consoles.expire(key)
    page.get_by_role("link", name="Archive or delete it").click()
    expect(page.get_by_text("Lost for good")).to_be_visible()
    expect(page.get_by_role("checkbox")).to_be_checked()
    assert faults(page) == []
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("button", name="Delete heart-old")).to_be_visible()  # the browser wants the name
    page.get_by_label("To confirm").fill("heart-aborted")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("nothing was deleted")).to_be_visible()
    page.go_back()
    page.get_by_label("To confirm").fill("heart-old")
    page.get_by_label("To confirm").press("Enter")
    expect(page.get_by_text("The study heart-old is deleted.")).to_be_visible()
    assert len(list((consoles.federation.kit.coordinator.directory / "state" / "proofs").iterdir())) == 1
    page.get_by_role("link", name="Studies").click()
    expect(page.get_by_role("link", name="heart-old")).to_have_count(0)
    assert [alarm for alarm in page.alarms if "409" not in alarm] == []  # type: ignore[attr-defined]


def test_nothing_listens_that_was_not_started(consoles: Consoles) -> None:
    """Sites listen nowhere, the coordinator at its two addresses; the consoles, which were started, at theirs on loopback."""
    federation = consoles.federation
    assert federation.coordinator is not None
    for name, process in federation.participants.items():
        assert listening(process.pid) == set(), name
    metrics = (federation.kit.coordinator.directory / "metrics-address").read_text().strip()
    assert listening(federation.coordinator.pid) == {federation.address, metrics}


def test_what_is_printed(consoles: Consoles) -> None:
    """From a dark screen as well: dark on white, with the zone of its times, and without forms."""
    officer, operator = consoles.person("Olga Maier", "officer"), consoles.person("Otto Ops", "operator", consoles.coordinator)
    places = [(officer, consoles.site + path) for path in ("/", "/budgets", "/ledger", "/dossier")]
    for page, place in [*places, *((operator, consoles.coordinator + path) for path in ("/", "/members", "/storage"))]:
        page.set_viewport_size({"width": 700, "height": 900})
        page.goto(place)
        page.emulate_media(media="print", color_scheme="dark")
        expect(page.get_by_text("times are in UTC")).to_be_visible()
        assert page.locator("form:visible, button:visible").count() == 0
        red, green, blue = re.findall(r"\d+", page.evaluate("getComputedStyle(document.querySelector('h1')).color"))[:3]
        assert max(int(red), int(green), int(blue)) < 100
        assert page.locator("thead").evaluate_all("all => all.every(item => getComputedStyle(item).position === 'static')")


def listening(pid: int) -> set[str]:
    """Addresses that a process listens on, by the kernel's tables."""
    sockets, found = set(), set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            sockets.add(link.readlink().name)
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                host, port = fields[1].split(":")
                octets = bytes.fromhex(host)[::-1]
                mapped = host.startswith("0" * 16 + "FFFF0000")  # an IPv4 address, as a socket of both kinds names it
                plain = table == "tcp" or mapped
                found.add(f"{'.'.join(map(str, octets[:4]))}:{int(port, 16)}" if plain else fields[1])
    return found
