"""The site's console, asked over HTTP in this process: who may what, what is refused, and what the ledger says then."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import stat
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from lxml import html
from scipy.optimize import brentq
from scipy.stats import norm

from support.commands import shown, veilsum
from support.consoles import URL, Seconds, Visitor, ask, console_of, scripts, words
from support.federation import make_request, schema_of
from support.hostile import Adversary, altered, make_adversary
from support.identity_provider import CLIENT, IdentityProvider
from veilsum_node.errors import ConfigurationError
from veilsum_node.oidc.provider import ProviderSettings
from veilsum_node.telemetry.log_floods import LINES, FloodFilter
from veilsum_node.web.application import ASKS, LOG, POLICY, TRIES, Page
from veilsum_node.web.people import LINK_SECONDS, Links, PersonRole, Right, person
from veilsum_node.web.settings import ConsoleSettings, RoleGroups, open_socket
from veilsum_participant.console.pages import SitePages
from veilsum_participant.protocol.decisions import shown_study, waiting_studies
from veilsum_participant.protocol.shown import shown_text
from veilsum_privacy.ledger import Kind, LedgerReader, Verification, verify_ledger
from veilsum_privacy.ledger.export import write_jsonl
from veilsum_privacy.ledger.rows import read_row

PAGES = [page for page in SitePages(Path("participant.toml")).pages() if page.path != "/logout"]
FORMS = [page for page in PAGES if page.form]

WORDS = {"purpose": "To learn how blood pressure differs.", "reference": "EK 2026-117", "contact": "Ada, 4711"}


@pytest.fixture
def attack(tmp_path: Path) -> Adversary:
    """A site whose officer has to approve; a study of hers waits."""
    adversary = make_adversary(tmp_path, budget=(3.0, 1e-5), approval="manual")
    adversary.use(altered(adversary.bed.compile(make_request(schema_of(2), min_cohort=2)), **WORDS))
    ask(adversary)
    return adversary


def entries(attack: Adversary, kind: Kind | None = None) -> list[Any]:
    return attack.bed.sites["a"].ledger.entries(kind=kind)


def place(page: Page, study: bytes) -> str:
    return page.path.replace("{study}", study.hex())


# -- who is let in ------------------------------------------------------------------------------------------------------------


def test_without_a_session_there_is_only_the_log_in(attack: Adversary) -> None:
    visitor, before = Visitor(console_of(attack)), len(entries(attack))
    for page in PAGES:
        path = place(page, attack.key)
        answer = visitor.client.post(path, data={"decision": "approve"}) if page.form else visitor.client.get(path)
        if page.form:
            assert (answer.status_code, "nothing was done" in answer.text) == (401, True), path
        else:
            assert (answer.status_code, answer.headers["location"]) == (303, "/login"), path
    assert len(entries(attack)) == before
    renewing = visitor.client.get("/", headers={"HX-Request": "true"})
    assert (renewing.status_code, renewing.headers["hx-redirect"]) == (401, "/login")


@pytest.mark.parametrize("role", list(PersonRole))
def test_each_role_may_what_it_may(attack: Adversary, role: PersonRole) -> None:
    """A matrix of every page and form; what a role may not, it is not shown either."""
    visitor = Visitor(console_of(attack)).log_in("Rita", role)
    named = {str(link) for link in visitor.page("/").xpath("//nav//a/@href")}
    for page in PAGES:
        path = place(page, attack.key)
        status = (visitor.send(path) if page.form else visitor.client.get(path)).status_code
        may = page.right in role.rights
        assert (status == 403) is not may, (path, status)
        assert status < 500, path
        if page.label:
            assert (page.path in named) is may
    forms = {str(action) for action in visitor.page(f"/study/{attack.key.hex()}").xpath("//form/@action")}
    assert (f"/study/{attack.key.hex()}" in forms) is (Right.DECIDE in role.rights)


def test_every_answer_is_guarded(attack: Adversary) -> None:
    """Pages, forms, faults, redirections and files: none is framed, kept or allowed a script from elsewhere."""
    visitor = Visitor(console_of(attack)).log_in()
    asked = [place(page, attack.key) for page in PAGES if not page.form]
    answers = [visitor.client.get(path) for path in [*asked, "/login", "/nowhere", "/study/zz", "/static/htmx.min.js"]]
    answers += [visitor.client.post("/budgets"), visitor.client.get("/", headers={"Host": "evil.example"})]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert policy == POLICY or "sandbox" in policy
        for name, value in {"x-frame-options": "DENY", "x-content-type-options": "nosniff"}.items():
            assert answer.headers[name] == value
        kept = answer.headers["cache-control"]
        assert kept == ("max-age=3600" if "/static/" in str(answer.url) else "no-store")
        assert "server" not in answer.headers


def test_looking_writes_nothing(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page but a form begins a transaction that could write, and none opens a dataset."""
    visitor = Visitor(console_of(attack)).log_in("Otto", "operator")

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a page writes, or reads records")

    for name in ("open_database", "Database.transaction"):
        monkeypatch.setattr(f"veilsum_node.database.{name}", forbidden)
    monkeypatch.setattr("veilsum_participant.session.client.open_database", forbidden)
    monkeypatch.setattr("veilsum_participant.data.local.load_records", forbidden)
    monkeypatch.setattr("veilsum_participant.data.local.check_structure", forbidden)
    for page in PAGES:
        if not page.form:
            assert visitor.client.get(place(page, attack.key)).status_code == 200, page.path
    assert "Verified" in visitor.send("/ledger/verify").text


FORGED: dict[str, dict[str, Any]] = {
    "no token": {"data": {}},
    "an empty token": {"data": {"csrf": ""}},
    "another session's token": {"data": {"csrf": "x" * 43}},
    "the token twice": {"content": "csrf={csrf}&csrf={csrf}"},
    "another origin": {"data": {"csrf": "{csrf}"}, "headers": {"Origin": "https://evil.example"}},
    "no origin that is one": {"data": {"csrf": "{csrf}"}, "headers": {"Origin": "null"}},
    "no origin at all": {"data": {"csrf": "{csrf}"}, "headers": {"Origin": "http://["}},
    "another scheme": {"data": {"csrf": "{csrf}"}, "headers": {"Origin": "https://127.0.0.1:8470"}},
    "another port": {"data": {"csrf": "{csrf}"}, "headers": {"Origin": "http://127.0.0.1:1"}},
    "another site": {"data": {"csrf": "{csrf}"}, "headers": {"Sec-Fetch-Site": "cross-site"}},
    "a sister site": {"data": {"csrf": "{csrf}"}, "headers": {"Sec-Fetch-Site": "same-site"}},
    "another host": {"data": {"csrf": "{csrf}"}, "headers": {"Host": "evil.example:8470"}},
}


def test_a_forged_form_does_nothing(attack: Adversary) -> None:
    words_of = {"decision": "approve", "population": "records", "epsilon": "9", "delta": "1e-5", "reason": "forged"}
    before = len(entries(attack))
    for case, given in FORGED.items():
        visitor = Visitor(console_of(attack)).log_in()
        seen = visitor.page(f"/study/{attack.key.hex()}").xpath("//input[@name='shown']/@value")
        csrf = visitor.csrf
        for page in FORMS:
            sent = dict(given)
            if "data" in sent:
                fields = {name: value.replace("{csrf}", csrf) for name, value in sent["data"].items()}
                sent["data"] = {**words_of, "shown": str(seen[0]), **fields}
            else:
                sent["content"] = sent["content"].replace("{csrf}", csrf) + "".join(f"&{k}={v}" for k, v in words_of.items())
            answer = visitor.client.post(place(page, attack.key), **sent)
            assert answer.status_code in (403, 421), (case, page.path)
        assert len(entries(attack)) == before, case
    assert visitor.decide(attack.key, "approve").status_code == 303  # the same with the right token counts


def test_who_has_no_session_cannot_fill_the_log(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreadable header causes no internal error; what a visitor can cause again and again is counted after some lines."""
    console, passed = console_of(attack), list[logging.LogRecord]()
    flood = FloodFilter(lambda *_: None, wait=lambda *_: None)
    monkeypatch.setattr(LOG, "handlers", [Kept(passed, flood)])
    visitor = Visitor(console)
    for origin in ("http://[", "http://[::1", "http://a]b", "\u00e9".encode(), "http://127.0.0.1:port"):
        assert visitor.client.post("/enter", data={"token": "x"}, headers={"Origin": origin}).status_code == 403
    assert passed == []
    for _ in range(TRIES + LINES + 20):
        assert visitor.client.post("/enter", data={"token": "x"}).status_code == 403
    assert 0 < len(passed) <= LINES
    monkeypatch.setattr(console, "links", None)  # a fault of the console's own
    for _ in range(TRIES + LINES + 20):
        visitor.client.get("/enter", params={"token": "x"})
    assert len([record for record in passed if record.exc_info]) <= LINES


class Kept(logging.Handler):
    """Keeps what a handler of the console's process would write."""

    def __init__(self, passed: list[logging.LogRecord], flood: FloodFilter) -> None:
        super().__init__()
        self._passed = passed
        self.addFilter(flood)

    def emit(self, record: logging.LogRecord) -> None:
        self._passed.append(record)


def test_a_cookie_is_for_this_console_alone(attack: Adversary) -> None:
    visitor = Visitor(console_of(attack))
    token = visitor.console.links.add(person("Olga", [PersonRole.OFFICER]))
    said = visitor.client.post("/enter", data={"token": token}).headers["set-cookie"].lower()
    assert all(word in said for word in ("httponly", "samesite=strict", "path=/", "veilsum-8470="))
    secure = console_of(attack, url="https://console.example")
    secure = type(secure)(
        "site", "veilsum_participant.console", secure.settings, "https://console.example", PAGES, secure.links
    )
    other = Visitor(secure)
    token = secure.links.add(person("Olga", [PersonRole.OFFICER]))
    answer = other.client.post("/enter", data={"token": token})
    said = answer.headers["set-cookie"].lower()
    assert said.startswith("__host-veilsum=")
    assert "secure" in said
    assert "max-age" in answer.headers["strict-transport-security"]


# -- log-ins ------------------------------------------------------------------------------------------------------------------


def test_a_link_counts_once_and_looking_at_it_does_not_use_it_up(attack: Adversary, tmp_path: Path) -> None:
    console = console_of(attack)
    token = console.links.add(person("Olga Maier", [PersonRole.OFFICER]))
    visitor = Visitor(console)
    for _ in range(2):  # a mail's scanner, say
        assert "Olga Maier" in visitor.client.get("/enter", params={"token": token}).text
    assert visitor.client.get("/").status_code == 303
    assert visitor.client.post("/enter", data={"token": token}).status_code == 303
    assert visitor.client.get("/").status_code == 200
    again = Visitor(console)
    assert again.client.post("/enter", data={"token": token}).status_code == 403
    assert again.client.get("/").status_code == 303


def test_links_are_kept_as_digests_for_their_user_and_end(tmp_path: Path) -> None:
    now = [1000]
    path = tmp_path / "links"
    links = Links(path, lambda: now[0])
    tokens = [links.add(person(f"person {number}", [PersonRole.READER])) for number in range(3)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert all(token not in path.read_text() for token in tokens)
    found = links.whose(tokens[1])
    assert found is not None
    assert found.name == "person 1"
    assert Links(path, lambda: now[0]).take(tokens[0]) is not None  # another process made it
    assert links.take(tokens[0]) is None
    now[0] += LINK_SECONDS
    assert [links.take(token) for token in tokens] == [None] * 3
    assert path.read_text() == ""


def test_sessions_end(attack: Adversary) -> None:
    """Without a click, after a day's work whatever is done, and by logging out; a page that renews itself is not a click."""
    clock = Seconds()
    console = console_of(attack, clock=clock, idle_minutes=15, hours=1)
    visitor = Visitor(console).log_in()
    for _ in range(2):
        clock.now += 14 * 60
        assert visitor.client.get("/").status_code == 200
    for _ in range(2):
        clock.now += 8 * 60
        assert visitor.client.get("/?renew", headers={"HX-Request": "true"}).status_code == (
            200 if clock.now < 1000 + 37 * 60 else 401
        )
    visitor.log_in()
    for _ in range(4):
        clock.now += 14 * 60
        visitor.client.get("/")
    clock.now += 5 * 60
    assert visitor.client.get("/").status_code == 303
    visitor.log_in()
    cookies, csrf = dict(visitor.client.cookies), visitor.csrf
    assert visitor.send("/logout").headers["location"] == "/login"
    visitor.client.cookies.update(cookies)  # a copy of the cookie is worth nothing
    before = len(entries(attack))
    sent = {"csrf": csrf, "decision": "approve", "shown": "x"}
    assert visitor.client.post(f"/study/{attack.key.hex()}", data=sent).status_code == 401
    assert len(entries(attack)) == before


def test_log_ins_and_requests_are_rationed(attack: Adversary) -> None:
    clock = Seconds()
    console = console_of(attack, clock=clock)
    guesser = Visitor(console)
    said = [guesser.client.post("/enter", data={"token": f"guess {number}"}).text for number in range(TRIES + 2)]
    assert ["Too many" in text for text in said] == [False] * TRIES + [True] * 2
    clock.now += 60
    visitor = Visitor(console).log_in()
    statuses = [visitor.client.get("/settings").status_code for _ in range(ASKS + 10)]
    assert statuses.count(429) >= 8
    assert Visitor(console).client.get("/login").status_code == 200


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[IdentityProvider]:
    with IdentityProvider(tmp_path) as found:
        yield found


def with_provider(attack: Adversary, provider: IdentityProvider) -> Visitor:
    settings = ProviderSettings(issuer=provider.issuer, client_id=CLIENT, ca_bundle=provider.ca_bundle)
    roles = RoleGroups(officer=("privacy",), reader=("research",))
    return Visitor(console_of(attack, provider=settings, roles=roles))


def visit(visitor: Visitor, provider: IdentityProvider) -> str:
    """Go to the provider; returns where it sends the browser back."""
    answer = visitor.client.get("/login/start")
    assert answer.status_code == 303, answer.text
    place = answer.headers["location"]
    assert place.startswith(f"{provider.issuer}/authorize?")
    query = dict(item.split("=", 1) for item in place.partition("?")[2].split("&"))
    from urllib.parse import unquote_plus

    back = provider.get("/authorize", {name: unquote_plus(value) for name, value in query.items()})
    assert isinstance(back, str)
    return back.removeprefix(URL)


def test_people_log_in_with_the_organisations_provider(attack: Adversary, provider: IdentityProvider) -> None:
    visitor = with_provider(attack, provider)
    provider.person |= {"preferred_username": "olga", "groups": ["privacy", 7]}
    returned = visitor.page(visit(visitor, provider))
    (onward,) = returned.xpath("//a[contains(@href, '/login/finish')]/@href")
    assert visitor.client.get(str(onward)).headers["location"] == "/"
    assert "olgaofficer" in visitor.text("/")
    assert visitor.decide(attack.key, "approve").status_code == 303
    (entry,) = entries(attack, Kind.APPROVAL)
    assert entry.detail["operator"] == "olga"


def test_a_log_in_counts_for_the_browser_that_began_it(attack: Adversary, provider: IdentityProvider) -> None:
    visitor = with_provider(attack, provider)
    provider.person["groups"] = ["privacy"]
    onward = visit(visitor, provider).replace("/callback", "/finish")
    victim = Visitor(visitor.console)
    assert victim.client.get(onward).status_code == 403  # led there by somebody else: logged in as nobody
    assert victim.client.get("/").status_code == 303
    assert visitor.client.get(onward).status_code == 303
    assert visitor.client.get(onward).status_code == 403  # and once


@pytest.mark.parametrize(
    "change", [{"groups": ["others"]}, {"groups": None}, {"preferred_username": None}, {"aud": "another"}]
)
def test_who_has_no_role_or_no_name_is_not_let_in(
    attack: Adversary, provider: IdentityProvider, change: dict[str, Any]
) -> None:
    visitor = with_provider(attack, provider)
    provider.person |= {"groups": ["privacy"]} | change
    onward = visit(visitor, provider).replace("/callback", "/finish")
    assert visitor.client.get(onward).status_code == 403
    assert visitor.client.get("/").status_code == 303


# -- deciding -----------------------------------------------------------------------------------------------------------------


def test_an_approval_is_the_commands(attack: Adversary, caplog: pytest.LogCaptureFixture) -> None:
    """The page says what `participant show` says; the entry holds the name of the log-in, the reason and the text's digest."""
    caplog.set_level(logging.INFO, "veilsum.console")
    site = attack.bed.sites["a"]
    text = shown_text(shown_study(site, attack.key.hex()))
    visitor = Visitor(console_of(attack)).log_in("Olga Maier")
    assert attack.study.name in visitor.text("/")
    said = visitor.text(f"/study/{attack.key.hex()}")
    for line in filter(None, text.splitlines()):
        name, _, rest = line.strip().partition(": ")
        assert (rest or name) in said, line
    (signed,) = visitor.page(f"/study/{attack.key.hex()}").xpath("//pre")
    assert json.loads(signed.text_content()) == json.loads(attack.study.to_bytes())
    assert visitor.decide(attack.key, "approve", "covered by\n the vote").status_code == 303
    (entry,) = entries(attack, Kind.APPROVAL)
    assert entry.detail["operator"] == "Olga Maier"
    assert entry.detail["reason"] == "covered by the vote"
    assert entry.detail["shown"] == hashlib.sha256(text.encode()).hexdigest()
    assert [directive.study for directive in attack.cores["a"].decided()] == [attack.key]
    assert "Olga Maier: approve" in caplog.text
    assert "approved" in visitor.text(f"/study/{attack.key.hex()}")
    ask(attack)  # the participant joins it
    gone = visitor.client.get(f"/study/{attack.key.hex()}")
    assert (gone.status_code, gone.headers["location"]) == (303, f"/ledger?study={attack.key.hex()[:12]}")
    assert "covered by the vote (Olga Maier)" in visitor.text(gone.headers["location"])
    assert visitor.client.get(f"/study/{'ab' * 32}").status_code == 409


def test_a_decline_needs_a_reason(attack: Adversary) -> None:
    visitor = Visitor(console_of(attack)).log_in()
    answer = visitor.decide(attack.key, "decline")
    assert (answer.status_code, "A reason is a text" in words(html.fromstring(answer.text))) == (409, True)
    assert waiting_studies(attack.bed.sites["a"])[0].state == "waiting"
    assert visitor.decide(attack.key, "decline", "no agreement with this group").status_code == 303
    (entry,) = entries(attack, Kind.DECLINE)
    assert (entry.detail["operator"], entry.detail["reason"]) == ("Olga Maier", "no agreement with this group")
    assert len(entries(attack, Kind.REFUSAL)) == 1


def test_what_was_decided_waits_no_more(attack: Adversary) -> None:
    """The inbox counts what waits, and says until when of that alone."""
    visitor = Visitor(console_of(attack)).log_in()
    said = visitor.text("/")
    assert ("1 study waits for your word." in said, "Decided" in said) == (True, False)
    visitor.decide(attack.key, "decline", "no agreement with this group")
    said = visitor.text("/")
    assert ("Nothing waits for your word." in said, "Decided, and not joined" in said) == (True, True)
    assert "the coordinator waits until" not in said


def test_who_is_refused_keeps_the_way_to_other_pages(attack: Adversary) -> None:
    visitor = Visitor(console_of(attack)).log_in("Olga Maier", "officer")
    for path, status in (("/settings", 403), ("/nowhere", 404), (f"/study/{'0' * 64}", 409)):
        answer = visitor.client.get(path)
        assert (answer.status_code, "/ledger" in html.fromstring(answer.text).xpath("//nav//a/@href")) == (status, True)
    assert html.fromstring(Visitor(visitor.console).client.get("/nowhere").text).xpath("//nav") == []
    answer = visitor.decide(attack.key, "decline", " ")
    assert html.fromstring(answer.text).xpath("//main//a/@href") == [f"/study/{attack.key.hex()}"]


def test_nobody_decides_on_another_text_than_was_shown(attack: Adversary) -> None:
    visitor = Visitor(console_of(attack)).log_in()
    path = f"/study/{attack.key.hex()}"
    (seen,) = visitor.page(path).xpath("//input[@name='shown']/@value")
    first, site = attack.key, attack.bed.sites["a"]
    with site.database.transaction() as connection:
        site.ledger.set_budget(connection, "records", 2.0, 1e-5, reason="less", operator="test", adaptive="gaussian")
    before = len(entries(attack))
    answer = visitor.send(path, decision="approve", shown=str(seen))
    assert (answer.status_code, "has changed" in answer.text) == (409, True)
    assert len(entries(attack)) == before
    assert visitor.decide(first, "approve").status_code == 303


def test_four_eyes_are_two_people(tmp_path: Path) -> None:
    attack = make_adversary(tmp_path, budget=(3.0, 1e-5), approval="manual", four_eyes_above=0.5)
    attack.use(attack.bed.compile(make_request(schema_of(2), min_cohort=2)))
    ask(attack)
    console = console_of(attack)
    olga, pia = Visitor(console).log_in("Olga Maier"), Visitor(console).log_in("Pia Berg")
    assert "needs 2 people" in olga.text("/")
    assert olga.decide(attack.key, "approve").status_code == 303
    assert "Approved by Olga Maier" in pia.text(f"/study/{attack.key.hex()}")
    for again in (olga, Visitor(console).log_in("olga  MAIER")):
        answer = again.decide(attack.key, "approve")
        assert (answer.status_code, "needs 2 people" in answer.text) == (409, True)
    assert attack.cores["a"].decided() == []
    assert pia.decide(attack.key, "approve").status_code == 303
    assert [entry.detail["operator"] for entry in entries(attack, Kind.APPROVAL)] == ["Olga Maier", "Pia Berg"]
    assert len(attack.cores["a"].decided()) == 1


HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "{{ 7 * 7 }}", "javascript:alert(1)", "</title><b>")


@pytest.mark.parametrize("text", HOSTILE)
def test_words_of_strangers_are_words(attack: Adversary, text: str) -> None:
    """In the purpose, the columns, the categories and every other free text of a study; also in a reason and in a search."""
    stranger = altered(attack.study, purpose=f"{text} purpose", reference=text, contact=text, nonce="2" * 32)
    attack.use(stranger)
    ask(attack)
    visitor = Visitor(console_of(attack)).log_in("Olga", "officer")
    path = f"/study/{attack.key.hex()}"
    trees = [visitor.page("/"), visitor.page(path)]
    assert f"{text} purpose" in words(trees[0])
    assert f"{text} purpose" in words(trees[1])
    answer = visitor.decide(attack.key, "decline", f"{text} reason")
    assert answer.status_code == 303
    trees += [visitor.page(path), visitor.page("/ledger"), visitor.page("/dossier"), visitor.page("/ledger", text=text)]
    assert f"{text} reason" in words(trees[3])
    trees += [html.fromstring(visitor.client.get(f"/ledger?since={text}").text), visitor.page("/ledger", study=text)]
    trees.append(html.fromstring(visitor.client.get("/dossier/page").text))
    assert scripts(trees[:-1]) == []
    assert [item for item in scripts(trees[-1:]) if "style" not in item] == []
    assert not any(tree.xpath("//b") for tree in trees[:3])


# -- budgets, ledger, dossier -------------------------------------------------------------------------------------------------


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism at ``mu`` (Balle and Wang 2018, theorem 8), solved here."""

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - delta

    return float(brentq(excess, 1e-9, 200.0))


def test_what_if_says_what_would_be(tmp_path: Path) -> None:
    """Figures of many equal Gaussian sums, against the closed formula of their composition."""
    attack = make_adversary(tmp_path, budget=(3.0, 1e-5), approval="manual")
    attack.use(attack.bed.compile(make_request(schema_of(2), min_cohort=2)))
    ask(attack)
    visitor = Visitor(console_of(attack)).log_in()
    visitor.decide(attack.key, "approve")
    ask(attack)
    mu = float(brentq(lambda value: gaussian_epsilon(value, 1e-5) - 1.0, 1e-3, 5.0))

    def answer(**query: str) -> dict[str, str]:
        (listed,) = visitor.page("/budgets", **query).xpath("//div[@id='answer']/dl")
        names, values = listed.xpath("dt"), listed.xpath("dd")
        return {name.text: value.text for name, value in zip(names, values, strict=True)}

    base = {"population": "records", "study": attack.key.hex()}
    for count in (0, 1, 3, 10):
        expected = gaussian_epsilon(mu * math.sqrt(1 + count), 1e-5)
        told = answer(**base, count=str(count))
        stands = next(value for name, value in told.items() if "more such" in name)
        assert float(stands) == pytest.approx(expected, rel=3e-3)
        assert told["the budget bears it"] == ("yes" if expected <= 3.0 else "no")
        wider = answer(**base, count=str(count), epsilon="100")
        assert (wider["budget"], wider["the budget bears it"]) == ("100", "yes")
    most = int(answer(**base, count="1")["such studies that it bears from now on"])
    assert gaussian_epsilon(mu * math.sqrt(1 + most), 1e-5) <= 3.0 * 1.001
    assert gaussian_epsilon(mu * math.sqrt(2 + most), 1e-5) > 3.0 * 0.999
    assert len(entries(attack, Kind.BUDGET)) == 1  # asking changes nothing


def test_a_budget_is_set_as_the_command_does(attack: Adversary, capsys: pytest.CaptureFixture[str]) -> None:
    visitor = Visitor(console_of(attack)).log_in()
    form = {"population": "records", "delta": "1e-6", "reason": "the board's vote"}
    assert visitor.send("/budgets", **form, epsilon="5").status_code == 303
    entry = entries(attack, Kind.BUDGET)[-1]
    assert (entry.detail["operator"], entry.detail["reason"]) == ("Olga Maier", "the board's vote")
    path = attack.bed.directory("a") / "participant.toml"
    (told,) = shown(capsys, "ledger", "budget", "show", "--config", path)["spending"]
    assert (told["epsilon"], told["delta"]) == (5.0, 1e-6)
    assert "the board's vote (Olga Maier)" in visitor.text("/budgets")
    before = len(entries(attack))
    wrong = [{"epsilon": "0"}, {"epsilon": "x"}, {"epsilon": "1", "delta": "?"}, {"epsilon": "1", "population": "none"}]
    for change in [*wrong, {"epsilon": "1", "reason": " "}]:
        assert visitor.send("/budgets", **(form | change)).status_code == 409, change
    assert len(entries(attack)) == before


def test_the_ledger_is_searched_verified_and_compared(attack: Adversary, tmp_path: Path) -> None:
    visitor = Visitor(console_of(attack)).log_in()
    visitor.decide(attack.key, "approve", "covered by the vote")

    def found(**query: str) -> list[str]:
        return [str(kind) for kind in visitor.page("/ledger", **query).xpath("//td[@data-label='Kind']/text()")]

    everything = [entry.kind.value for entry in entries(attack)][::-1]
    assert found() == everything
    assert found(kind="approval") == ["approval"]
    assert found(text="COVERED by") == ["approval"]
    assert found(study=attack.key.hex()[:8]) == ["approval"]
    assert found(study="test-study", population="records") == ["approval"]
    assert found(before="2") == everything[-1:]
    assert found(before="\u00b2") == everything  # a digit that is no number
    assert found(since="1h") == everything
    assert found(until="2001-01-01") == []
    answer = visitor.send("/ledger/verify")
    assert "Verified" in answer.text
    site, export = attack.bed.sites["a"], tmp_path / "export.jsonl"
    with export.open("w", encoding="utf-8") as stream:
        write_jsonl(site.ledger, stream)
    whole = export.read_text()

    def compare(text: str) -> str:
        form, files = {"csrf": visitor.csrf}, {"export": ("peer.jsonl", text.encode(), "application/json")}
        return words(html.fromstring(visitor.client.post("/ledger/verify", data=form, files=files).text))

    assert "agree with the export" in compare(whole)
    assert "does not verify" in compare(whole.replace("covered by the vote", "covered by the note"))
    assert "Verified" not in compare("junk")
    from veilsum_privacy.dossier.ledgers import open_source

    with open_source(export) as copy:
        assert copy.head() == site.ledger.head()


def test_a_page_of_the_ledger_reads_so_many_entries_and_the_next_one_goes_on(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is searched for: that a page reads all is what takes a console's processor."""
    visitor = Visitor(console_of(attack)).log_in()
    visitor.decide(attack.key, "approve", "covered by the vote")
    monkeypatch.setattr("veilsum_participant.console.facts.MOST_READ", 2)
    read: list[Any] = []
    monkeypatch.setattr("veilsum_participant.console.facts.read_row", lambda row: read.append(row) or read_row(row))

    def found(**query: str) -> tuple[list[int], int]:
        """Numbers of all entries that are found page by page, and how many pages there were."""
        numbers: list[int] = []
        for count in range(1, 100):
            read.clear()
            page = visitor.page("/ledger", **query)
            assert len(read) <= 2
            numbers += map(int, page.xpath("//td[@data-label='No.']/text()"))
            links = page.xpath("//a[text()='Earlier entries']/@href")
            if not links:
                return numbers, count
            query = dict(parse_qsl(urlsplit(links[0]).query))
        raise AssertionError("no end of pages")

    everything = [entry.seq for entry in entries(attack)][::-1]
    assert found() == (everything, len(everything) // 2 + 1)
    (approved,) = (entry.seq for entry in entries(attack, Kind.APPROVAL))
    assert found(text="covered by") == ([approved], len(everything) // 2 + 1)
    assert found(study="test-study")[0] == found(study=attack.key.hex()[:8])[0] == [approved]
    assert found(study="another") == found(study=attack.key.hex()[:8] + "%") == ([], 1)


def test_the_dossier_says_on_whose_word(attack: Adversary) -> None:
    visitor = Visitor(console_of(attack)).log_in("Olga Maier")
    visitor.decide(attack.key, "decline", "no contract")
    assert "Olga Maier: no contract" in visitor.text("/dossier")
    answer = visitor.client.get("/dossier/page")
    styles = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    policy = answer.headers["content-security-policy"]
    assert styles
    for style in styles:
        assert f"'sha256-{b64encode(hashlib.sha256(style.encode()).digest()).decode()}'" in policy
    assert "Olga Maier" in answer.text
    twin = visitor.client.get("/dossier/twin")
    assert "attachment" in twin.headers["content-disposition"]
    (account,) = twin.json()["accounts"]
    assert (account["analyst"], account["purpose"]) == ("analyst", WORDS["purpose"])


def test_the_dossier_verifies_a_ledger_once(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may read it cannot keep the processor busy by asking again; what is new, or an hour old, is verified."""
    times: list[bytes] = []

    def verified(source: LedgerReader, **given: Any) -> Verification:
        times.append(source.head())
        return verify_ledger(source, **given)

    monkeypatch.setattr("veilsum_privacy.dossier.ledgers.verify_ledger", verified)
    visitor = Visitor(console_of(attack)).log_in()
    for place in ("/dossier", "/dossier/page", "/dossier/twin", "/dossier/page?contact=Ada"):
        assert visitor.client.get(place).status_code == 200
    assert len(times) == 1
    visitor.decide(attack.key, "decline", "no contract")
    made = visitor.client.get("/dossier/twin").json()
    assert (len(times), made["proof"]["head"]) == (2, attack.bed.sites["a"].ledger.head().hex())
    monkeypatch.setattr("veilsum_participant.console.facts.KEPT_SECONDS", 0)
    assert visitor.client.get("/dossier").status_code == 200
    assert len(times) == 3
    with attack.bed.sites["a"].database.transaction() as connection:
        for (name,) in connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.exec_driver_sql("UPDATE ledger SET time = time + 1 WHERE seq = 2")
    assert "does not verify" in visitor.text("/dossier")


def test_health_and_settings_say_where(attack: Adversary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilsum_node.web.looking.PATIENCE", 60.0)
    console = console_of(attack)
    path = attack.bed.directory("a") / "participant.toml"
    path.write_text(path.read_text().replace('approval = "manual"', '# by hand\napproval = "manual"'))
    visitor = Visitor(console).log_in("Otto", "operator")
    line = path.read_text().splitlines().index('approval = "manual"') + 1
    rows = {}
    for row in visitor.page("/settings").xpath("//tbody/tr"):
        key, value, where = (words(cell) for cell in row.xpath("td"))
        rows[key] = (value, where)
    assert rows["policy.approval"] == ("manual", f"participant.toml, line {line}")
    assert rows["verify_hours"] == ("24", "default")
    said = visitor.text("/health")
    for word in ("certificate", "ledger", "budget records", "version"):
        assert word in said
    assert "dataset records" not in said  # which would open it


def test_a_fault_is_no_page_of_the_interpreters(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    console = console_of(attack)
    visitor = Visitor(console).log_in()

    def fails(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("veilsum_participant.console.facts.budget_rows", fails)
    answer = visitor.client.get("/budgets")
    assert answer.status_code == 500
    assert "a secret" not in answer.text
    (number,) = re.findall(r"under (\w{8})", answer.text)
    assert number in caplog.text


# -- where it listens ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:8470", "[::]:8470", "192.0.2.7:8470", "console.example:8470", "unix:console.sock", "8470", "127.0.0.1"],
)
def test_it_listens_on_loopback_or_a_socket_only(
    listen: str, attack: Adversary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="listen"):
        ConsoleSettings(listen=listen)
    console_of(attack)
    path = attack.bed.directory("a") / "participant.toml"
    status, _, said = veilsum(capsys, "participant", "console", "--config", path, "--listen", listen)
    assert status == 2
    assert "--listen" in said


def test_a_taken_port_and_a_unix_socket(tmp_path: Path) -> None:
    opened = open_socket(ConsoleSettings(listen="127.0.0.1:0"))
    port = opened.socket.getsockname()[1]
    opened.socket.listen()
    assert opened.url == f"http://127.0.0.1:{port}"
    with pytest.raises(ConfigurationError, match="cannot listen"):
        open_socket(ConsoleSettings(listen=f"127.0.0.1:{port}"))
    opened.socket.close()
    path = tmp_path / "console.sock"
    for _ in range(2):  # the second finds what a killed console left
        made = open_socket(ConsoleSettings(listen=f"unix:{path}", url="https://console.example"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        made.socket.close()
    with pytest.raises(ValueError, match="url is needed"):
        ConsoleSettings(listen=f"unix:{path}")


def test_it_is_not_there_without_its_packages(
    attack: Adversary, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    console_of(attack)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    path = attack.bed.directory("a") / "participant.toml"
    status, _, said = veilsum(capsys, "participant", "console", "--config", path)
    assert status == 2
    assert "veilsum[console]" in said
