"""The pages of a console as one ASGI application, and everything that stands before each of them.

A request is answered if it names this console's host; a page to whoever has a session with the right to it; a form if it comes
from a page of this origin with the session's own token. No answer holds a script, is framed, kept, or fetches from elsewhere.
"""

import hmac
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from email.parser import BytesParser
from email.policy import HTTP
from http import HTTPStatus
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from jinja2 import ChoiceLoader, Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route, Router

from veilsum_node.errors import HostileInput, Misuse, Refusal, Unavailable, VeilsumError
from veilsum_node.oidc.code_flow import Visit
from veilsum_node.oidc.fetcher import Fetch, Fetcher
from veilsum_node.oidc.provider import Metadata, TokenVerifier, discover
from veilsum_node.phrases import counted, listed
from veilsum_node.process.software import installed_version
from veilsum_node.telemetry.log_floods import caused_by
from veilsum_node.telemetry.logs import printable
from veilsum_node.web.people import Allowance, Links, LoggedIn, Person, PersonRole, Right, Sessions, person
from veilsum_node.web.settings import ConsoleSettings

LOG = logging.getLogger("veilsum.console")

MOST_BYTES = 16 * 1024 * 1024
"""The most bytes of a form: another site's export is the largest."""

MOST_FIELDS = 32
RENEWS = "renew"
"""In the query of a page that renews itself: nobody clicked."""

TRIES, TRIES_RATE = 40, 0.5
"""Steps of log-ins, of which one takes two: at once, and then a second, of everybody together."""

ASKS, ASKS_RATE = 120, 4.0
"""Requests of one session, likewise."""

VISIT_SECONDS = 600
MOST_VISITS = 64
SESSION, VISIT = "veilsum", "veilsum-visit"
"""Names of the cookies; the port follows, or ``__Host-`` stands before them where TLS does."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self';"
    " base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
}
_COMMAND = re.compile(r"`([^`]+)`")
STATIC = {"console.css": "text/css", "htmx.min.js": "text/javascript", "icon.svg": "image/svg+xml"}


@dataclass(frozen=True)
class Page:
    """One page or form.

    Attributes:
        path: as Starlette writes it.
        answer: makes the answer; runs in a thread.
        label: in the navigation; not there without one.
        right: that whoever asks needs.
        form: whether it takes POST, in place of GET.
    """

    path: str
    answer: "Callable[[PageRequest], Response]"
    label: str = ""
    right: Right = Right.READ
    form: bool = False


@dataclass(frozen=True)
class PageRequest:
    """A request that everything was checked of."""

    console: "Console" = field(repr=False)
    session: LoggedIn
    path: Mapping[str, str]
    query: Mapping[str, str]
    form: Mapping[str, str]
    place: str

    @property
    def person(self) -> Person:
        """Who asks."""
        return self.session.person

    def render(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page of the console."""
        return self.console.render(template, self, status, **values)

    def go(self, place: str) -> Response:
        """Send the browser to another page of the console, after a form."""
        return RedirectResponse(place, HTTPStatus.SEE_OTHER)


class Console:
    """A console.

    Args:
        package: whose folder ``templates`` has the pages' templates.
        settings: its own.
        url: the origin that browsers know it by.
        pages: what it shows; the first is where a log-in leads.
        links: the one-time links.
        fetch: asks the identity provider; by default over the network.
        clock: seconds for sessions.
    """

    def __init__(
        self,
        title: str,
        package: str,
        settings: ConsoleSettings,
        url: str,
        pages: Sequence[Page],
        links: Links,
        *,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.url, self.settings, self.links = title, url, settings, links
        self.sessions = Sessions(settings.idle_minutes * 60, settings.hours * 3600, clock)
        self._pages, self._clock = pages, clock
        self._tries = Allowance(TRIES_RATE, TRIES, clock)
        self._asks = Allowance(ASKS_RATE, ASKS, clock)
        self._visits: dict[str, tuple[Visit, Metadata, float]] = {}
        self._fetch = fetch
        self._verifier: TokenVerifier | None = None
        self._secure = url.startswith("https:")
        origin = urlsplit(url)
        self._cookie = f"__Host-{SESSION}" if self._secure else f"{SESSION}-{origin.port or 80}"
        self._visit_cookie = self._cookie.replace(SESSION, VISIT)
        self._hosts = {origin.netloc} | ({f"localhost:{origin.port}"} if settings.url is None else set())
        self._origins = {f"{origin.scheme}://{host}" for host in self._hosts}
        self._templates = Environment(
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            loader=ChoiceLoader([FunctionLoader(_source(package)), FunctionLoader(_source(__package__ or ""))]),
        )
        self._templates.filters["coded"] = _coded
        self._templates.globals.update(counted=counted, listed=listed, version=installed_version())
        routes = [Route(page.path, self._endpoint(page), methods=["POST" if page.form else "GET"]) for page in pages]
        routes += [
            Route("/static/{name}", self._static),
            Route("/login", self._open(self._login)),
            Route("/enter", self._open(self._enter)),
            Route("/enter", self._open(self._entered), methods=["POST"]),
            Route("/login/start", self._open(self._start)),
            Route("/login/callback", self._open(self._callback)),
            Route("/login/finish", self._open(self._finish)),
            Route("/logout", self._endpoint(Page("/logout", self._logout, form=True)), methods=["POST"]),
        ]
        self.app = self._guarded(Router(routes, redirect_slashes=False, default=self._nothing))

    # -- before every answer ------------------------------------------------------------------------------------------------

    def _guarded(self, app: Any) -> Callable[[Any, Any, Any], Any]:
        """Check what is asked of whom, and put the headers on every answer, that of a fault as well."""
        headers = dict(HEADERS)
        if self._secure:
            headers["Strict-Transport-Security"] = "max-age=31536000"

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] != "http":
                return

            async def sent(message: Any) -> None:
                if message["type"] == "http.response.start":
                    known = {name.lower() for name, _ in message["headers"]}
                    extra = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
                    message["headers"] = [*message["headers"], *(item for item in extra if item[0] not in known)]
                await send(message)

            request = Request(scope)
            try:
                fault = self._fault(request)
                if fault is not None:
                    await self._failed(*fault)(scope, receive, sent)
                else:
                    await app(scope, receive, sent)
            except ClientDisconnect:
                return
            except Exception:
                number = secrets.token_hex(4)
                LOG.exception("internal error %s of the console", number, extra=_from(request, "internal errors"))
                said = f"The console failed; its log has the cause under {number}."
                await self._failed(HTTPStatus.INTERNAL_SERVER_ERROR, said)(scope, receive, sent)

        return guarded

    async def _nothing(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope)
        session = self.sessions.find(request.cookies.get(self._cookie, ""), click=False)
        asked = None if session is None else PageRequest(self, session, {}, {}, {}, request.url.path)
        await self._failed(HTTPStatus.NOT_FOUND, "There is nothing here.", asked=asked)(scope, receive, send)

    def _fault(self, request: Request) -> tuple[HTTPStatus, str] | None:
        if request.headers.get("host", "") not in self._hosts:
            return HTTPStatus.MISDIRECTED_REQUEST, f"This console is at {self.url}."
        if request.method in ("GET", "HEAD"):
            return None
        site, origin = request.headers.get("sec-fetch-site", "same-origin"), request.headers.get("origin", self.url)
        if site != "same-origin" or origin not in self._origins:
            return HTTPStatus.FORBIDDEN, "A form counts only from a page of this console."
        return None

    def _endpoint(self, page: Page) -> Callable[[Request], Any]:
        async def answered(request: Request) -> Response:
            secret = request.cookies.get(self._cookie, "")
            session = self.sessions.find(secret, click=RENEWS not in request.query_params)
            if session is None:
                return self._log_in_first(request)
            texts = {name: str(value) for name, value in request.path_params.items()}
            asked = PageRequest(self, session, texts, _once(request.url.query), {}, request.url.path)
            if not self._asks.take(session.csrf):
                return self._failed(HTTPStatus.TOO_MANY_REQUESTS, "Too many requests: wait a moment.", asked=asked)
            if not session.person.may(page.right):
                refused = caused_by("refused pages", session.person.name)
                LOG.warning("%s may not %s: %s", session.person.name, page.right.value, page.path, extra=refused)
                said = f"Your role may not do this: it needs the right to {page.right.value}."
                return self._failed(HTTPStatus.FORBIDDEN, said, asked=asked)
            form = await _form(request) if page.form else {}
            if page.form and not hmac.compare_digest(form.get("csrf", "").encode(), session.csrf.encode()):
                refused = caused_by("refused forms", session.person.name)
                LOG.warning("a form without its session's token was refused: %s", page.path, extra=refused)
                return self._failed(HTTPStatus.FORBIDDEN, "The form is not this session's. Open its page again.")
            return await run_in_threadpool(self._answered, page, replace(asked, form=form))

        return answered

    def _answered(self, page: Page, asked: PageRequest) -> Response:
        try:
            return page.answer(asked)
        except VeilsumError as error:
            reasons = error.reasons if isinstance(error, Refusal) else ()
            status = HTTPStatus.SERVICE_UNAVAILABLE if isinstance(error, Unavailable) else HTTPStatus.CONFLICT
            of_a_form = page.form and any(other.path == page.path and not other.form for other in self._pages)
            back = asked.place if of_a_form else "/"
            return asked.render(
                "error.html.j2", status, message=error.message, advice=error.advice, reasons=reasons, back=back
            )

    def _log_in_first(self, request: Request) -> Response:
        if request.headers.get("hx-request") == "true":  # a part of a page: the whole of it goes to the log-in
            return Response(status_code=HTTPStatus.UNAUTHORIZED, headers={"HX-Redirect": "/login"})
        if request.method == "GET":
            return RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        return self._failed(HTTPStatus.UNAUTHORIZED, "Your session has ended, and nothing was done. Log in again.")

    def _open(self, answer: Callable[[Request, Mapping[str, str]], Response]) -> Callable[[Request], Any]:
        """A page for whoever has no session."""

        async def answered(request: Request) -> Response:
            form = await _form(request) if request.method == "POST" else _once(request.url.query)
            try:
                return await run_in_threadpool(answer, request, form)
            except VeilsumError as error:
                LOG.warning("a log-in was refused: %s", printable(error.message), extra=_from(request, "refused log-ins"))
                return self._failed(HTTPStatus.FORBIDDEN, error.message, error.advice)

        return answered

    def _failed(self, status: HTTPStatus, message: str, advice: str = "", *, asked: PageRequest | None = None) -> Response:
        return self.render("error.html.j2", asked, status, message=message, advice=advice, reasons=(), back="/")

    def render(self, template: str, asked: PageRequest | None, status: int = 200, **values: Any) -> Response:
        """A page, for somebody with a session or for nobody."""
        shown = [] if asked is None else [item for item in self._pages if item.label and asked.person.may(item.right)]
        text = self._templates.get_template(template).render(console=self, asked=asked, pages=shown, Right=Right, **values)
        return HTMLResponse(text, status)

    # -- log-in and log-out -------------------------------------------------------------------------------------------------

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in STATIC:
            return self._failed(HTTPStatus.NOT_FOUND, "There is nothing here.")
        data = files(__package__ or "").joinpath("static", name).read_bytes()
        return Response(data, media_type=STATIC[name], headers={"Cache-Control": "max-age=3600"})

    def _login(self, request: Request, query: Mapping[str, str]) -> Response:
        return self.render("login.html.j2", None, provider=self.settings.provider)

    def _enter(self, request: Request, query: Mapping[str, str]) -> Response:
        """Show whom a link is for; only the button uses it up, so that what looks at links does not."""
        self._count_try()
        who = self.links.whose(query.get("token", ""))
        return self.render("enter.html.j2", None, who=_valid(who), token=query["token"])

    def _entered(self, request: Request, form: Mapping[str, str]) -> Response:
        self._count_try()
        return self._begun(_valid(self.links.take(form.get("token", ""))), "a one-time link")

    def _count_try(self) -> None:
        if not self._tries.take():
            raise Misuse("Too many log-ins were tried.", "Wait a minute.")

    def _begun(self, who: Person, way: str) -> Response:
        LOG.info("%s logged in by %s as %s", printable(who.name), way, ", ".join(sorted(who.roles)))
        answer = RedirectResponse(self._pages[0].path, HTTPStatus.SEE_OTHER)
        self._set_cookie(answer, self._cookie, self.sessions.begin(who))
        answer.delete_cookie(self._visit_cookie, secure=self._secure, httponly=True, samesite="strict")
        return answer

    def _logout(self, asked: PageRequest) -> Response:
        LOG.info("%s logged out", printable(asked.person.name))
        self.sessions.end(asked.session)
        answer = RedirectResponse("/login", HTTPStatus.SEE_OTHER)
        answer.delete_cookie(self._cookie, secure=self._secure, httponly=True, samesite="strict")
        return answer

    def _set_cookie(self, answer: Response, name: str, value: str) -> None:
        answer.set_cookie(name, value, secure=self._secure, httponly=True, samesite="strict")

    def _provider(self) -> tuple[Any, Fetch]:
        if self.settings.provider is None:
            raise Misuse("This console has no identity provider.", "Ask its operator for a one-time link.")
        if self._fetch is None:
            self._fetch = Fetcher(self.settings.provider.ca_bundle)
        return self.settings.provider, self._fetch

    def _start(self, request: Request, query: Mapping[str, str]) -> Response:
        self._count_try()
        provider, fetch = self._provider()
        found = discover(provider.issuer, fetch)
        visit = Visit(provider.issuer, provider.client_id, f"{self.url}/login/callback", secrets.token_urlsafe(32))
        now = self._clock()
        self._visits = {key: item for key, item in self._visits.items() if now - item[2] < VISIT_SECONDS}
        if len(self._visits) >= MOST_VISITS:
            raise Unavailable("Too many people are logging in.", "Try again in a few minutes.")
        self._visits[visit.state] = visit, found, now
        answer = RedirectResponse(visit.address(found, provider.scopes), HTTPStatus.SEE_OTHER)
        self._set_cookie(answer, self._visit_cookie, visit.state)
        return answer

    def _callback(self, request: Request, query: Mapping[str, str]) -> Response:
        """Come back from the provider; strict cookies are sent from the next page on, which this origin's own leads to."""
        kept = {name: query[name] for name in ("state", "code", "iss", "error") if name in query}
        return self.render("returned.html.j2", None, place=f"/login/finish?{urlencode(kept, quote_via=quote)}")

    def _finish(self, request: Request, query: Mapping[str, str]) -> Response:
        state = request.cookies.get(self._visit_cookie, "")
        visit, found, since = self._visits.pop(state, (None, None, 0.0))
        same = hmac.compare_digest(query.get("state", "").encode(), state.encode())
        if visit is None or found is None or not same or self._clock() - since > VISIT_SECONDS:
            raise HostileInput("This browser did not begin that log-in, or it took too long.", "Log in again.")
        provider, fetch = self._provider()
        if self._verifier is None:
            self._verifier = TokenVerifier(provider.issuer, provider.client_id, fetch, lambda: int(time.time()))
        claims = self._verifier.verify(visit.token(found, query, fetch), visit.nonce)
        groups, name = claims.get(provider.groups_claim), claims.get(provider.name_claim)
        held = {group for group in groups if isinstance(group, str)} if isinstance(groups, list) else set()
        if not isinstance(name, str):
            raise HostileInput(f"The token has no name (claim {provider.name_claim}).", "Ask the provider's operator.")
        roles = [role for role in PersonRole if held & set(getattr(self.settings.roles, role.value))]
        return self._begun(person(name, roles), "the identity provider")


def _from(request: Request, kind: str) -> dict[str, tuple[str, str]]:
    """For a line of the log that whoever has no session can cause as often as they like."""
    return caused_by(kind, "visitors of the console" if request.client is None else request.client.host)


def _valid(who: Person | None) -> Person:
    if who is None:
        raise HostileInput("The link was used already, or is too old.", "Ask for another one.")
    return who


def _once(text: str) -> dict[str, str]:
    """Fields of a form or query that stand in it once."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="replace")
    except ValueError:
        return {}
    names = [name for name, _ in pairs]
    return {name: value for name, value in pairs if names.count(name) == 1}


async def _form(request: Request) -> dict[str, str]:
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            return {}
    kind = request.headers.get("content-type", "")
    if not kind.startswith("multipart/form-data"):
        return _once(data.decode("utf-8", "replace"))
    head = f"Content-Type: {kind.encode('ascii', 'replace').decode()}\r\n\r\n".encode()
    found = BytesParser(policy=HTTP).parsebytes(head + bytes(data))
    fields: dict[str, str] = {}
    for item in found.iter_parts():
        name, value = item.get_param("name", header="content-disposition"), item.get_payload(decode=True)
        if isinstance(name, str) and isinstance(value, bytes) and len(fields) < MOST_FIELDS:
            fields[name] = value.decode("utf-8", "replace")
    return fields


def _coded(text: str) -> Markup:
    """A text as markup, in which what stands between backticks, as messages name commands, is code."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704  it is escaped


def _source(package: str) -> Callable[[str], str | None]:
    """Templates of a package, from wherever it is installed."""

    def source(name: str) -> str | None:
        place = files(package).joinpath("templates", name)
        return place.read_text(encoding="utf-8") if place.is_file() else None

    return source
