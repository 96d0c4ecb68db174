"""Logging in with an identity provider: over real HTTPS, from the browser's visit to a study; other requests are refused."""

from __future__ import annotations

import hmac
import http.client
import json
import logging
import math
import ssl
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import KeySet

from support.commands import shown, veilsum
from support.federation import make_data, make_request, schema_of
from support.identity_provider import CLIENT, IdentityProvider, Keys, encoded
from support.network import wait_for
from support.processes import Process, running_processes, write_toml
from veilsum.access import LoginNeededError, LoginSettings, resolve_access
from veilsum.login.person import log_in
from veilsum.remote import connect
from veilsum_coordinator.protocol.settings import Waits
from veilsum_deploy.login.issuer import Issuer, LoginMetrics, LoginServer, LoginServiceConfig, RoleSettings
from veilsum_node.errors import ConfigurationError, HostileInput, Misuse, StateError, Unavailable, VeilsumError
from veilsum_node.identity import Authority, Role, load_credentials, new_key_and_csr
from veilsum_node.identity.directory import parse_directory
from veilsum_node.identity.files import write_new
from veilsum_node.identity.provision import install
from veilsum_node.identity.releases import sign_directory
from veilsum_node.identity.requests import login_request
from veilsum_node.oidc.fetcher import AnsweredError, Fetcher
from veilsum_node.oidc.provider import ALGORITHMS, ProviderSettings, discover
from veilsum_node.telemetry.log_floods import ATTRIBUTE

HOUR = 3600


def now() -> int:
    return int(time.time())


class Place:
    """A provider, an authority, its service and a person's directory."""

    def __init__(self, directory: Path, provider: IdentityProvider) -> None:
        self.provider = provider
        self.authority = Authority.create(directory / "authority", "trial", now)
        self.config = LoginServiceConfig(
            listen="localhost:0",
            certificate=provider.certificate_file,
            key=provider.key_file,
            provider=ProviderSettings(issuer=provider.issuer, client_id=CLIENT, ca_bundle=provider.ca_bundle),
            roles=RoleSettings(analyst=("research", "statistics"), operator=("on-call",)),
        )
        self.issuer = Issuer(self.config, self.authority, now)
        self.identity = directory / "ada" / "identity"

    def settings(self, server: LoginServer, **changes: Any) -> LoginSettings:
        return LoginSettings(url=server.url, ca_bundle=self.provider.ca_bundle, **changes)

    def token(self, nonce: str, algorithm: str = "RS256", **changes: Any) -> str:
        return self.provider.keys.sign(self.provider.claims(nonce, **changes), algorithm)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with IdentityProvider(tmp_path) as provider:
        yield Place(tmp_path, provider)


@pytest.fixture
def server(place: Place) -> Iterator[LoginServer]:
    with LoginServer(place.config, place.issuer, place.authority.certificate_pem) as server:
        yield server


@pytest.mark.parametrize(("algorithm", "role"), [("RS256", Role.ANALYST), ("ES256", Role.OPERATOR)])
def test_a_login_brings_a_certificate_of_some_hours(
    place: Place, server: LoginServer, caplog: pytest.LogCaptureFixture, algorithm: str, role: Role
) -> None:
    caplog.set_level(logging.INFO)
    place.provider.algorithm = algorithm
    place.provider.person["groups"] = ["statistics", "on-call", 7]
    settings = place.settings(server, federation=place.authority.federation_id)
    before = now()
    found = log_in(settings, place.identity, role, place.provider.browse, now)
    assert (found.name, found.role) == ("ada", role)
    assert before + 8 * HOUR <= found.not_after <= now() + 8 * HOUR
    for name in ("key.pem", "certificate.pem", "authority.pem"):
        mode = stat.S_IMODE((place.identity / name).stat().st_mode)
        assert mode == (0o600 if name == "key.pem" else 0o644), name
    assert load_credentials(place.identity, now(), role).identity == found

    (entry,) = place.authority.issued()
    assert (entry.name, entry.role, entry.subject) == ("ada", role, f"{place.provider.issuer} 0a1b")
    (told,) = [record.getMessage() for record in caplog.records if record.name == "veilsum.logins"]
    assert all(word in told for word in ("ada", role.value, entry.serial, "0a1b"))
    assert "eyJ" not in caplog.text  # how a token begins

    again = log_in(settings, place.identity, role, place.provider.browse, now)
    assert again.fingerprint != found.fingerprint  # a new key every time, for the same name
    assert load_credentials(place.identity, now(), role).identity == again


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "audience": ({"aud": "another-client"}, "audience|aud|azp"),
    "audiences": ({"aud": [CLIENT, "another-client"], "azp": CLIENT}, "audience"),
    "issuer": ({"iss": "https://localhost:1"}, "iss"),
    "expired": ({"iat": now() - 400, "exp": now() - 100}, "expired"),
    "old": ({"iat": now() - 2 * HOUR, "exp": now() + HOUR}, "too long ago"),
    "future": ({"iat": now() + HOUR, "exp": now() + 2 * HOUR}, "iat"),
    "not yet": ({"nbf": now() + HOUR}, "nbf"),
    "endless": ({"exp": float("nan")}, "exp"),
    "no end": ({"exp": None}, "exp"),
    "no time": ({"iat": None}, "iat"),
    "no nonce": ({"nonce": None}, "nonce"),
    "empty nonce": ({"nonce": ""}, "nonce"),
    "another key's nonce": ({"nonce": "ab" * 32}, "nonce"),
    "no subject": ({"sub": None}, "sub"),
    "subject": ({"sub": "a b"}, "subject"),
    "another client's": ({"azp": "another-client"}, "azp"),
    "no groups": ({"groups": None}, "no groups .claim groups"),
    "group": ({"groups": ["on-call"]}, "in no group"),
    "groups as a text": ({"groups": "research"}, "not a list"),
    "no name": ({"preferred_username": None}, "no name"),
    "name": ({"preferred_username": "Ada Lovelace"}, "not a name"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_login_is_refused(place: Place, case: str) -> None:
    changes, words = REFUSED[case]
    key, request = login_request(Role.ANALYST)
    with pytest.raises(HostileInput, match=words) as caught:
        place.issuer.issue(place.token(**{"nonce": key.fingerprint, **changes}), request)
    assert "eyJ" not in str(caught.value)
    assert place.authority.issued() == []
    assert place.issuer.issue(place.token(key.fingerprint), request).name == "ada"  # nothing else was wrong


def test_signatures_that_prove_nothing(place: Place) -> None:
    key, request = login_request(Role.ANALYST)
    keys, claims = place.provider.keys, place.provider.claims(key.fingerprint)
    good = keys.sign(claims, "RS256")
    head, body, signature = good.split(".")
    other = keys.sign({**claims, "sub": "other"}, "RS256").split(".")
    tokens = {
        "none": keys.sign(claims, "none"),
        "none with a signature": f"{keys.sign(claims, 'none').rpartition('.')[0]}.{signature}",
        "HS256 by the public key": keys.sign(claims, "HS256", kid="first-RS256"),
        "a stranger's key": Keys("first").sign(claims, "RS256"),
        "another kind of key": keys.sign(claims, "ES256", kid="first-RS256"),
        "another token's body": f"{head}.{other[1]}.{signature}",
        "no signature": f"{head}.{body}.",
        "nonsense": "nonsense",
        "empty": "",
        "not ASCII": good + "\u00e9",
        "endless": "a" * 40_000,
    }
    for what, token in tokens.items():
        with pytest.raises(HostileInput, match=r"not signed|too long"):
            raise AssertionError(what, place.issuer.issue(token, request))
    assert place.issuer.issue(good, request).name == "ada"


def _symmetric(place: Place, monkeypatch: pytest.MonkeyPatch, **key: Any) -> dict[str, str]:
    """Have the provider publish a symmetric key beside its own, as some do by mistake: whoever reads it could sign."""
    oct_key = {"kty": "oct", "kid": "shared", "k": encoded(b"s" * 32), **key}
    get = place.provider.get

    def published(path: str, query: Mapping[str, str]) -> Any:
        found = get(path, query)
        if isinstance(found, tuple) and "keys" in found[1]:
            return found[0], {"keys": [oct_key, *found[1]["keys"]]}
        return found

    monkeypatch.setattr(place.provider, "get", published)
    return oct_key


def _hs256(claims: Mapping[str, Any]) -> str:
    head = {"alg": "HS256", "typ": "JWT", "kid": "shared"}
    text = ".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    return f"{text}.{encoded(hmac.digest(b's' * 32, text.encode(), 'sha256'))}"


@pytest.mark.parametrize("key", [{}, {"use": "sig"}, {"alg": "HS256"}, {"key_ops": ["verify"]}])
def test_a_symmetric_key_signs_no_login(place: Place, monkeypatch: pytest.MonkeyPatch, key: dict[str, Any]) -> None:
    """Neither is it taken from what the provider publishes, nor would its signature count if it were."""
    shared = _symmetric(place, monkeypatch, **key)
    own, request = login_request(Role.ANALYST)
    token = _hs256(place.provider.claims(own.fingerprint))
    with pytest.raises(HostileInput, match="not signed"):
        place.issuer.issue(token, request)
    verifier = place.issuer._verifier
    assert {item["kty"] for item in verifier._load().as_dict(private=False)["keys"]} == {"RSA", "EC"}
    monkeypatch.setattr(verifier, "_load", lambda: KeySet.import_key_set({"keys": [shared]}))  # type: ignore[arg-type]
    verifier._keys, verifier._looked = None, -math.inf
    with pytest.raises(HostileInput, match="not signed"):
        place.issuer.issue(token, request)
    assert place.authority.issued() == []


@pytest.mark.parametrize("use", ["enc", ""])
def test_a_key_that_encrypts_signs_no_login(place: Place, monkeypatch: pytest.MonkeyPatch, use: str) -> None:
    get = place.provider.get

    def published(path: str, query: Mapping[str, str]) -> Any:
        found = get(path, query)
        if isinstance(found, tuple) and "keys" in found[1]:
            return found[0], {"keys": [{**key, "use": use} for key in found[1]["keys"]]}
        return found

    monkeypatch.setattr(place.provider, "get", published)
    key, request = login_request(Role.ANALYST)
    with pytest.raises(HostileInput, match="publishes no key"):
        place.issuer.issue(place.token(key.fingerprint), request)


def test_what_is_not_signed_at_all_is_no_login_whatever_keys_there_are(place: Place) -> None:
    """The algorithms that count are those of key pairs."""
    assert all(name[:2] in ("RS", "PS", "ES") for name in ALGORITHMS)


def test_a_stolen_token_is_good_for_no_other_key_and_not_twice(place: Place, server: LoginServer) -> None:
    key, request = login_request(Role.ANALYST)
    token = place.token(key.fingerprint)
    fetch = Fetcher(place.provider.ca_bundle)
    _, thief = login_request(Role.ANALYST)
    for stolen, status, words in ((thief, 403, "nonce"), (request, 200, ""), (request, 409, "certified already")):
        body = {"token": token, "request": stolen.decode()}
        if status == 200:
            assert "certificate" in fetch(f"{server.url}/login", body=body)
            continue
        with pytest.raises(AnsweredError) as caught:
            fetch(f"{server.url}/login", body=body)
        assert (caught.value.status, words in caught.value.body["message"]) == (status, True)
    assert len(place.authority.issued()) == 1


def test_requests_that_ask_for_more(place: Place) -> None:
    for role in (Role.PARTICIPANT, Role.COORDINATOR):
        key, request = login_request(role)
        with pytest.raises(HostileInput, match="analyst or operator"):
            place.issuer.issue(place.token(key.fingerprint), request)
    _, named = new_key_and_csr("root", Role.ANALYST)
    with pytest.raises(HostileInput, match="nothing else"):
        place.issuer.issue("", named)
    key, request = login_request(Role.OPERATOR)  # ada is not an operator
    with pytest.raises(HostileInput, match="in no group whose members are operators"):
        place.issuer.issue(place.token(key.fingerprint), request)
    key, request = login_request(Role.ANALYST)
    damaged = request.replace(request.splitlines()[1][:8], b"AAAAAAAA")
    with pytest.raises(HostileInput):
        place.issuer.issue(place.token(key.fingerprint), damaged)
    assert place.authority.issued() == []


def test_a_name_belongs_to_one_person_and_no_login_takes_an_operators(place: Place) -> None:
    def issue(**changes: Any) -> str:
        key, request = login_request(Role.ANALYST)
        return place.issuer.issue(place.token(key.fingerprint, **changes), request).name

    _, csr = new_key_and_csr("north", Role.PARTICIPANT)
    place.authority.sign(csr, role=Role.PARTICIPANT, name="north")
    with pytest.raises(StateError, match="'north' belongs to somebody else"):
        issue(preferred_username="north")
    assert issue() == issue() == "ada"
    with pytest.raises(StateError, match="'ada' belongs to somebody else"):
        issue(sub="another-person")
    _, csr = new_key_and_csr("ada", Role.ANALYST)
    with pytest.raises(StateError, match="another key or role"):
        place.authority.sign(csr, role=Role.ANALYST, name="ada")

    listed = parse_directory(sign_directory(place.authority), place.authority.certificate)
    assert [member.name for member in listed.members] == ["north"]  # a listed key would lock the next login out
    index = (place.authority.directory / "issued" / "index.jsonl").read_text().splitlines()
    assert ["subject" in json.loads(line) for line in index] == [False, True, True]


def test_keys_of_the_provider_may_change(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    key, request = login_request(Role.ANALYST)
    assert place.issuer.issue(place.token(key.fingerprint), request).name == "ada"
    place.provider.keys = Keys("second")
    key, request = login_request(Role.ANALYST)
    with pytest.raises(HostileInput, match="not signed"):  # looked at a moment ago
        place.issuer.issue(place.token(key.fingerprint), request)
    monkeypatch.setattr("veilsum_node.oidc.provider._KEYS_APART", 0.0)
    assert place.issuer.issue(place.token(key.fingerprint), request).name == "ada"


def test_a_provider_that_says_no_or_nobody_comes(place: Place, server: LoginServer) -> None:
    place.provider.denies = True
    with pytest.raises(HostileInput, match="access_denied"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    with pytest.raises(Unavailable, match="in time"):
        log_in(place.settings(server), place.identity, Role.ANALYST, lambda _: None, now, patience=0.1)
    place.provider.denies = False
    place.provider.person["groups"] = []
    with pytest.raises(HostileInput, match="login service refused: The login is in no group"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    with pytest.raises(HostileInput, match="is federation"):
        log_in(place.settings(server, federation="0" * 64), place.identity, Role.ANALYST, place.provider.browse, now)
    assert not place.identity.exists()


@pytest.mark.parametrize("change", ["issuer", "answer", "verifier"])
def test_a_visit_that_was_tampered_with(
    place: Place, server: LoginServer, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Another issuer's metadata, an answer by another issuer (RFC 9207), and a code without its verifier bring nothing."""
    get, token = place.provider.get, place.provider.token

    def other_get(path: str, query: Mapping[str, str]) -> str | tuple[int, Mapping[str, Any]]:
        found = get(path, query)
        if change == "issuer" and isinstance(found, tuple) and "issuer" in found[1]:
            return 200, {**found[1], "issuer": "https://other.example"}
        if change == "answer" and isinstance(found, str):
            return found.replace("iss=https", "iss=http")
        return found

    def other_token(form: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        return token({**form, "code_verifier": "a" * 43} if change == "verifier" else form)

    monkeypatch.setattr(place.provider, "get", other_get)
    monkeypatch.setattr(place.provider, "token", other_token)
    words = {"issuer": "describes another issuer", "answer": "Another identity provider", "verifier": "invalid_grant"}
    with pytest.raises(HostileInput, match=words[change]):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    assert not place.identity.exists()
    assert place.authority.issued() == []


@pytest.mark.parametrize("what", ["another's key", "another federation", "another role"])
def test_a_certificate_that_is_not_the_one_asked_for(
    place: Place, server: LoginServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """Each of these is signed by an authority and valid; none is written beside the person's key."""
    role = Role.OPERATOR if what == "another role" else Role.ANALYST
    _, others = login_request(role)
    authority = place.authority
    if what == "another federation":
        authority = Authority.create(tmp_path / "other", "other", now)
        monkeypatch.setattr(server, "_authority_pem", authority.certificate_pem)

    def issue(token: str, request: bytes) -> Any:
        asked = request if what == "another federation" else others
        return authority.sign_login(asked, name="ada", subject="0a1b", seconds=HOUR)

    monkeypatch.setattr(place.issuer, "issue", issue)
    with pytest.raises(HostileInput, match="another's certificate" if role is Role.ANALYST else "not of a analyst"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    assert not place.identity.exists()


def test_a_browser_that_does_not_know_the_state_is_not_heard(place: Place, server: LoginServer) -> None:
    def visit(url: str) -> None:
        redirect = next(part for part in url.split("&") if part.startswith("redirect_uri="))
        callback = redirect.partition("=")[2].replace("%3A", ":").replace("%2F", "/")
        for query in ("code=stolen&state=guess", "code=stolen", "code=stolen&state=a&state=b"):
            with pytest.raises(Exception, match="404"):
                place.provider.browse(f"{callback}?{query}")
        place.provider.browse(url)

    assert log_in(place.settings(server), place.identity, Role.ANALYST, visit, now).name == "ada"


def test_a_key_that_no_login_made_is_not_replaced(place: Place, server: LoginServer) -> None:
    key, csr = new_key_and_csr("ada", Role.ANALYST)
    write_new(place.identity / "key.pem", key, mode=0o600)
    write_new(place.identity / "request.csr", csr)
    with pytest.raises(StateError, match="analyst init"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    assert (place.identity / "key.pem").read_bytes() == key


def test_another_federations_directory_is_left_as_it_is(place: Place, server: LoginServer, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "other", now)
    write_new(place.identity / "authority.pem", other.certificate_pem)
    with pytest.raises(Misuse, match="another authority"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    assert [path.name for path in place.identity.iterdir()] == ["authority.pem"]


@pytest.mark.parametrize(
    "url", ["http://login.example/", "ftp://localhost/", "https://", "https://a@b/", "nonsense", "https://a:b/"]
)
def test_addresses_whose_answers_could_be_changed(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"not https|not a URL"):
        Fetcher()(url)


def test_no_redirection_is_followed_and_tls_is_verified(place: Place) -> None:
    url = f"{place.provider.issuer}/authorize?client_id={CLIENT}&redirect_uri=http://127.0.0.1:1/&scope=openid"
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        Fetcher()(f"{place.provider.issuer}/keys")
    with pytest.raises(AnsweredError, match="status 302"):
        Fetcher(place.provider.ca_bundle)(url)


def test_a_service_that_strangers_can_reach_speaks_tls(place: Place) -> None:
    open_to_all = place.config.model_copy(update={"listen": "0.0.0.0:0", "certificate": None, "key": None})
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        LoginServer(open_to_all, place.issuer, b"")


@pytest.mark.parametrize(
    ("body", "status"), [({}, 400), ({"token": 1, "request": ""}, 400), ({"token": "", "request": "x"}, 403)]
)
def test_bodies_that_are_none(place: Place, server: LoginServer, body: dict[str, Any], status: int) -> None:
    with pytest.raises(AnsweredError) as caught:
        Fetcher(place.provider.ca_bundle)(f"{server.url}/login", body=body)
    assert caught.value.status == status


def test_bodies_beyond_bounds(place: Place, server: LoginServer) -> None:
    with pytest.raises(VeilsumError) as caught:
        Fetcher(place.provider.ca_bundle)(f"{server.url}/login", body={"token": "a" * 70_000, "request": ""})
    assert isinstance(caught.value, Unavailable) or getattr(caught.value, "status", 0) == 413


def test_a_key_that_the_provider_withdrew_counts_no_longer_than_an_hour(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds a withdrawn key and keeps the service from the provider gets nothing by it."""

    def issue() -> str:
        key, request = login_request(Role.ANALYST)
        return place.issuer.issue(place.token(key.fingerprint), request).name

    asked: list[str] = []
    get = place.provider.get

    def away(path: str, _: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        asked.append(path)
        return 503, {}

    assert issue() == "ada"
    monkeypatch.setattr(place.provider, "get", away)
    assert issue() == "ada"  # within the hour nobody is asked
    late = time.monotonic() + 2 * HOUR
    monkeypatch.setattr("veilsum_node.oidc.provider.time.monotonic", lambda: late)
    with pytest.raises(AnsweredError, match="503"):
        issue()
    for _ in range(3):
        with pytest.raises(Unavailable, match="a moment ago"):
            issue()
    assert len(asked) == 1  # logins do not become a flood of questions
    monkeypatch.setattr(place.provider, "get", get)
    monkeypatch.setattr("veilsum_node.oidc.provider.time.monotonic", lambda: late + 31)
    assert issue() == "ada"


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri"])
def test_a_provider_sends_nobody_to_a_loopback_without_tls(place: Place, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What listens on the machine's own loopback is not the provider's to ask, and not its to be."""
    get = place.provider.get

    def other(path: str, query: Mapping[str, str]) -> str | tuple[int, Mapping[str, Any]]:
        found = get(path, query)
        if isinstance(found, tuple) and name in found[1]:
            return 200, {**found[1], name: "http://127.0.0.1:1/path"}
        return found

    monkeypatch.setattr(place.provider, "get", other)
    with pytest.raises(HostileInput, match="does not describe"):
        discover(place.provider.issuer, Fetcher(place.provider.ca_bundle))


def test_an_answer_that_does_not_say_whose_it_is(place: Place, server: LoginServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that says that it names itself in answers must do so (RFC 9207, section 2.4); of another it is not asked."""
    get, says = place.provider.get, True

    def other(path: str, query: Mapping[str, str]) -> str | tuple[int, Mapping[str, Any]]:
        found = get(path, query)
        if isinstance(found, str):
            return found.partition("&iss=")[0] + "&code=" + found.partition("&code=")[2]
        if "issuer" in found[1]:
            return 200, {**found[1], "authorization_response_iss_parameter_supported": says}
        return found

    monkeypatch.setattr(place.provider, "get", other)
    with pytest.raises(HostileInput, match="Another identity provider"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    says = False
    assert log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now).name == "ada"


def test_a_service_elsewhere_names_no_provider_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = {"issuer": "http://127.0.0.1:9", "client_id": CLIENT, "scopes": ["openid"], "federation": "0" * 64}
    monkeypatch.setattr("veilsum.login.person.Fetcher", lambda _: lambda *_, **__: told)
    with pytest.raises(HostileInput, match="not https"):
        log_in(LoginSettings(url="https://authority.example"), tmp_path / "identity", Role.ANALYST, print, now)


def test_a_certified_key_without_its_request_is_not_replaced(place: Place, server: LoginServer) -> None:
    """Whoever mounts an identity leaves the request out; a key of years is not lost to a login all the same."""
    key, csr = new_key_and_csr("north", Role.PARTICIPANT)
    certificate = place.authority.sign(csr, role=Role.PARTICIPANT, name="north")
    write_new(place.identity / "key.pem", key, mode=0o600)
    with pytest.raises(StateError, match="no login made"):  # it waits for its certificate
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    install(place.identity, certificate, place.authority.certificate_pem)
    with pytest.raises(StateError, match="no login made"):
        log_in(place.settings(server), place.identity, Role.ANALYST, place.provider.browse, now)
    assert (place.identity / "key.pem").read_bytes() == key
    assert (place.identity / "certificate.pem").read_bytes() == certificate


def test_the_record_of_who_logged_in_is_nobody_elses(place: Place) -> None:
    index = place.authority.directory / "issued" / "index.jsonl"
    assert stat.S_IMODE(index.stat().st_mode) == 0o600


def test_no_address_holds_a_password(place: Place) -> None:
    for url in ("https://:secret@localhost/", "https://@localhost/", "https://ada:secret@localhost/"):
        with pytest.raises(ConfigurationError) as caught:
            Fetcher()(url)
        assert "secret" not in str(caught.value)


@pytest.mark.system
def test_from_login_to_study(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    data = make_data("abc")
    waits = Waits(enrol=60, grace=5)
    with (
        IdentityProvider(tmp_path) as provider,
        running_processes(tmp_path / "federation", data, waits=waits, analysts=("ada",)) as federation,
    ):
        ada = tmp_path / "ada"
        ada.mkdir()
        monkeypatch.chdir(ada)
        write_toml(
            tmp_path / "logins.toml",
            {
                "": {
                    "listen": "localhost:0", "authority": str(federation.kit.authority), "ready_file": "ready",
                    "certificate": provider.certificate_file.name, "key": provider.key_file.name,
                },
                "provider": {"issuer": provider.issuer, "client_id": CLIENT, "ca_bundle": provider.ca_bundle.name},
                "roles": {"analyst": ["research"]},
            },
        )  # fmt: skip
        arguments = ["-m", "veilsum_deploy.cli", "federation", "serve-logins", "--config", str(tmp_path / "logins.toml")]
        service = Process(arguments, tmp_path / "service.log")
        try:
            ready = tmp_path / "ready"
            wait_for(lambda: ready.exists() or not service.alive, "the login service's address")
            assert service.alive, service.log.read_text()
            write_toml(
                ada / "analyst.toml",
                {
                    "": {"coordinator": federation.address},
                    "login": {"url": f"https://{ready.read_text()}", "ca_bundle": str(provider.ca_bundle)},
                },
            )
            code, _, err = veilsum(capsys, "study", "list", "--json")
            assert (code, json.loads(err)["error"], json.loads(err)["advice"]) == (
                2,
                "LoginNeededError",
                "Run `veilsum login`.",
            )

            monkeypatch.setattr("webbrowser.open", provider.browse)  # the person's browser is this process
            fields = shown(capsys, "login", "--browser")
            assert (fields["name"], fields["role"]) == ("ada", "analyst")
            assert shown(capsys, "study", "list") == []

            access, study = resolve_access(None, None), federation.compile(make_request(schema_of(2)))
            credentials = access.credentials(now())
            with connect(access.route, credentials, access.identity, now()) as remote:
                key = remote.submit(study, credentials)
                assert list(remote.watch(key))[-1].phase == "finished"
            (listed,) = shown(capsys, "study", "list")
            assert (listed["study"], listed["analyst"]) == (key.hex(), "ada")
            code, out, err = veilsum(capsys, "study", "result", key.hex(), "--out", ada / "result")
            assert code == 0, (out, err)

            with pytest.raises(LoginNeededError, match=r"has expired.*veilsum login"):
                access.credentials(now() + 9 * HOUR)
            late = now() + 9 * HOUR  # what was signed stays signed: the proof is judged by the study's own time
            monkeypatch.setattr(time, "time", lambda: float(late))
            code, out, err = veilsum(capsys, "study", "verify", ada / "result")
            assert code == 0, (out, err)
        finally:
            assert service.stop() == 0
        log = service.log.read_text()
        assert "certified analyst ada" in log
        assert "eyJ" not in log


# -- who is refused, and from where ----------------------------------------------------------------------------------------


def submitted(server: LoginServer, place: Place, token: str, request: bytes, *forwarded: str) -> tuple[int, dict[str, Any]]:
    """Post a login as a proxy would hand it on; status and answer."""
    body = json.dumps({"token": token, "request": request.decode()})
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=place.provider.ca_bundle)
    connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
    connection.putrequest("POST", "/login")
    for value in forwarded:
        connection.putheader("X-Forwarded-For", value)
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body.encode())
    answer = connection.getresponse()
    status, text = answer.status, answer.read()
    connection.close()
    return status, json.loads(text) if text.startswith(b"{") else {}


TRUSTED = ("127.0.0.1", "::1", "192.0.2.1")


@pytest.mark.parametrize(
    ("trusted", "forwarded", "caller"),
    [
        ((), ("198.51.100.7",), "loopback"),  # by default nobody is believed
        (TRUSTED, (), "loopback"),
        (TRUSTED, ("198.51.100.7",), "198.51.100.7"),
        (TRUSTED, ("203.0.113.9, 198.51.100.7",), "198.51.100.7"),  # what the caller wrote stands in front
        (TRUSTED, ("203.0.113.9", "198.51.100.7"), "198.51.100.7"),
        (TRUSTED, ("198.51.100.7, 192.0.2.1",), "198.51.100.7"),  # through a second proxy that is trusted
        (TRUSTED, ("2001:db8::7",), "2001:db8::7"),
        (TRUSTED, ("198.51.100.7, unknown",), "loopback"),
        (TRUSTED, ("\x1b[31m7",), "loopback"),
    ],
)
def test_a_refusal_is_logged_with_subject_and_address(
    place: Place, caplog: pytest.LogCaptureFixture, trusted: tuple[str, ...], forwarded: tuple[str, ...], caller: str
) -> None:
    """Whom the provider vouches for, if it vouches for anybody; nothing of a token, and nothing of it in the answer."""
    metrics = LoginMetrics(place.authority)
    config = place.config.model_copy(update={"trusted_proxies": trusted})
    key, request = login_request(Role.ANALYST)
    with LoginServer(config, Issuer(config, place.authority, now), place.authority.certificate_pem, metrics) as server:
        outside = place.token(key.fingerprint, groups=["strangers"])
        assert submitted(server, place, outside, request, *forwarded)[0] == 403
        forged = Keys("forged").sign(place.provider.claims(key.fingerprint), "RS256")
        status, answer = submitted(server, place, forged, request, *forwarded)
        assert (status, "0a1b" in json.dumps(answer)) == (403, False)
        assert submitted(server, place, place.token(key.fingerprint), request, *forwarded)[0] == 200
    about = [record for record in caplog.records if record.message.startswith("refused a login")]
    told = [record.getMessage() for record in about]
    assert [("subject 0a1b:" in line, "subject not proven:" in line) for line in told] == [(True, False), (False, True)]
    where = {line.split()[4].rstrip(",") for line in told}
    assert {getattr(record, ATTRIBUTE) for record in about} == {("refused logins", peer) for peer in where}, (
        "a flood is counted"
    )
    assert where <= ({"127.0.0.1", "::1"} if caller == "loopback" else {caller})
    assert "eyJ" not in caplog.text
    assert "\x1b" not in caplog.text
    counts = {sample.labels["outcome"]: sample.value for sample in metrics.logins.collect()[0].samples}
    assert counts == {"certified": 1, "refused": 2, "unavailable": 0, "failed": 0}


def test_callers_behind_a_trusted_proxy_are_counted_one_by_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy itself is not bound to four, a caller is, and who left makes room."""
    config = place.config.model_copy(update={"trusted_proxies": TRUSTED})
    inside, leave = threading.Semaphore(0), threading.Event()

    class Slow(Issuer):
        def issue(self, token: str, request: bytes) -> Any:
            inside.release()
            leave.wait(30)
            raise HostileInput("not today")

    with LoginServer(config, Slow(config, place.authority, now), place.authority.certificate_pem) as server:
        key, request = login_request(Role.ANALYST)

        def ask(caller: str) -> int:
            return submitted(server, place, "x", request, caller)[0]

        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(ask, caller) for caller in ["198.51.100.7"] * 4 + ["198.51.100.8"] * 3]
            for _ in range(7):  # more than four of the proxy's address
                assert inside.acquire(timeout=30)
            assert ask("198.51.100.7") == 429
            leave.set()
            assert {item.result(30) for item in waiting} == {403}
        assert ask("198.51.100.7") == 403
    assert key.fingerprint
