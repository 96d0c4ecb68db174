"""The way to a coordinator: what a configuration may ask for, what a proxy may answer, what is never shown."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.hospital import HospitalAuthority
from support.network import PATIENCE
from veilsum.access import resolve_access
from veilsum_node.errors import ConfigurationError, Unavailable
from veilsum_node.overrides import PREFIX
from veilsum_node.transport.dialling import UnreachableError, _answer, _refused, connect
from veilsum_node.transport.route import Proxy, Route, plan_route, unused_proxy_variables
from veilsum_participant.boundary.framing import pair
from veilsum_participant.boundary.front import Dial
from veilsum_participant.session.launcher import LaunchStarter
from veilsum_participant.session.supervisor import Supervisor
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config
from veilsum_participant.settings.telling import dialling

BASE = 'coordinator = "coordinator.example:8461"\n{keys}\n[datasets.records]\npath = "records.csv"\n'
BUNDLE, OTHER = HospitalAuthority().pem, HospitalAuthority().pem
VARIABLES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "grpc_proxy", "GRPC_ADDRESS_HTTP_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def route(tmp_path: Path, keys: str) -> Route:
    path = tmp_path / "participant.toml"
    path.write_text(BASE.format(keys=keys))
    return load_participant_config(path).route


def test_the_way_is_straight_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    assert route(tmp_path, "") == Route("coordinator.example:8461")
    assert unused_proxy_variables() == ["https_proxy"]


def test_a_proxy_with_a_password(tmp_path: Path) -> None:
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("öpen: sesame \n")
    way = route(tmp_path, 'proxy = "proxy.example:3128"\nproxy_user = "hospital"\nproxy_password_file = "password"')
    assert way.proxy == Proxy("proxy.example:3128", "hospital", "öpen: sesame ")
    assert way.proxy.authorization == "Proxy-Authorization: Basic aG9zcGl0YWw6w7ZwZW46IHNlc2FtZSA="
    assert str(way) == "coordinator.example:8461 through the proxy proxy.example:3128"
    for text in (repr(way), str(way)):
        assert "sesame" not in text
        assert "hospital" not in text


def test_the_environment_overrides_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").touch(0o600)
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv(f"{PREFIX}PROXY", "proxy.example:3128")
    monkeypatch.setenv(f"{PREFIX}PROXY_USER", "hospital")
    monkeypatch.setenv(f"{PREFIX}PROXY_PASSWORD_FILE", str(tmp_path / "password"))
    assert route(tmp_path, "").proxy == Proxy("proxy.example:3128", "hospital", "secret")


@pytest.mark.parametrize(
    ("variables", "proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy.example:3128"}, Proxy("proxy.example:3128")),
        ({"HTTPS_PROXY": "proxy.example:3128"}, Proxy("proxy.example:3128")),
        ({"https_proxy": "http://u%40s:p%3Aw@proxy.example:3128/"}, Proxy("proxy.example:3128", "u@s", "p:w")),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "coordinator.example"}, None),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "other,.example"}, None),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "other.example"}, Proxy("proxy.example:3128")),
        ({"https_proxy": "http://proxy.example:3128", "NO_PROXY": "*"}, None),
        ({"http_proxy": "http://proxy.example:3128"}, None),
    ],
)
def test_the_environment_decides_only_where_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], proxy: Proxy | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert route(tmp_path, 'proxy = "environment"').proxy == proxy
    assert route(tmp_path, "").proxy is None


@pytest.mark.parametrize(
    "value", ["https://proxy.example:3128", "socks5://proxy.example:1080", "http://proxy.example", "http://:1"]
)
def test_a_proxy_of_another_kind_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("https_proxy", value)
    with pytest.raises(ConfigurationError, match="https_proxy names no HTTP proxy"):
        assert route(tmp_path, 'proxy = "environment"')


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ('proxy = "http://proxy.example:3128"', "host:port without a scheme"),
        ('proxy = "user@proxy.example:3128"', "host:port without a scheme"),
        ('proxy = "proxy.example"', "host:port without a scheme"),
        ('proxy = "proxy.example:99999"', "host:port without a scheme"),
        ('proxy = "proxy.example:1"\nproxy_user = "me"', "must be set together"),
        ('proxy_user = "me"\nproxy_password_file = "password"', "must be set together"),
        ('proxy = "environment"\nproxy_user = "me"\nproxy_password_file = "password"', "must be set together"),
        ('proxy = "proxy.example:1"\nproxy_user = "a:b"\nproxy_password_file = "password"', "proxy_user"),
        ('proxy = "proxy.example:1"\nproxy_user = "a\\r\\nX: y"\nproxy_password_file = "password"', "proxy_user"),
        ('proxy = "proxy.example:1"\nproxy_user = "me"\nproxy_password_file = "nowhere"', "does not exist"),
        ('proxy = "proxy.example:1"\nproxy_user = "me"\nproxy_password_file = "open"', "can be read by others"),
        ('proxy = "proxy.example:1"\nproxy_user = "me"\nproxy_password_file = "lines"', "one line"),
        ('ca_bundle = "nowhere.pem"', "cannot be read"),
        ('ca_bundle = "open"', "no certificates"),
        ('ca_bundle = "empty"', "no certificates"),
    ],
)
def test_wrong_keys_are_explained(tmp_path: Path, keys: str, message: str) -> None:
    for name, text, mode in (("open", "secret", 0o644), ("lines", "secret\r\nX-Injected: 1", 0o600), ("empty", "", 0o600)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigurationError, match=message) as raised:
        route(tmp_path, keys)
    assert "secret" not in str(raised.value)


def test_a_bundle_is_read_anew_each_time(tmp_path: Path) -> None:
    bundle = tmp_path / "roots.pem"
    bundle.write_bytes(HospitalAuthority().pem)
    first = plan_route("there:1", ca_bundle=bundle)
    bundle.write_bytes(HospitalAuthority().pem)
    assert plan_route("there:1", ca_bundle=bundle).roots not in (b"", first.roots)


@contextmanager
def supervised(config: ParticipantConfig) -> Iterator[tuple[LaunchStarter, Callable[[], None]]]:
    """A guard's side of a launcher, and how that answers once."""
    ours, theirs = pair()
    with ours, theirs, TemporaryFile() as words:
        launching = Supervisor(config, os.getpid(), ours, None, words.fileno())
        yield LaunchStarter(theirs), lambda: threading.Thread(target=launching._answered, daemon=True).start()


@given(
    user=st.from_regex(r"[^:\x00-\x1f\x7f]{1,256}", fullmatch=True), password=st.text(st.characters(codec="utf-8"), min_size=1)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_guard_is_told_the_way_as_it_is_now(tmp_path: Path, user: str, password: str) -> None:
    """Also where it cannot be told: its launcher reads the files, anew each time."""
    assume(password.isprintable())
    bundle, secret = tmp_path / "roots.pem", tmp_path / "secret"
    secret.unlink(missing_ok=True)
    keys = {"proxy": "proxy.example:3128", "proxy_user": user, "proxy_password_file": secret, "ca_bundle": bundle}
    bundle.write_bytes(BUNDLE)
    made = ParticipantConfig.model_validate(
        {
            "coordinator": "there:1",
            "datasets": {"records": {"path": tmp_path}},
            "identity": tmp_path,
            "state": tmp_path / "x",
            **keys,
        }
    )
    with supervised(made) as (starter, answer):
        answer()
        with pytest.raises(Unavailable, match="does not exist"):
            starter.way()
        secret.touch(mode=0o600)
        secret.write_text(password)
        answer()
        assert starter.way() == Dial("there:1", "proxy.example:3128", user, password, BUNDLE)
        bundle.write_bytes(OTHER)
        answer()
        assert starter.way() == dialling(made.route)


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A listener that takes one request and gives one answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as raw:
                raw.settimeout(PATIENCE)
                while b"\r\n\r\n" not in raw.recv(4096):
                    pass
                raw.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", r"asks for a user and a password \(407\)"),
        (b"HTTP/1.0 401 Unauthorized\r\n\r\n", r"asks for a user and a password \(401\)"),
        (b"HTTP/1.0 403 Forbidden\r\nA: b\r\n\r\n", r"does not allow there.example:8461 \(403\)"),
        (b"HTTP/1.1 405 No\r\n\r\n", r"does not tunnel \(405\)"),
        (b"HTTP/1.1 504 Late\r\n\r\n", r"cannot reach there.example:8461 \(504\)"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x\r\n\r\n", "with status 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "is not an HTTP proxy"),
        (b"", "is not an HTTP proxy"),
        (b"HTTP/1.1 twohundred OK\r\n\r\n", "is not an HTTP proxy"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 40_000, "is not an HTTP proxy"),
    ],
)
def test_what_a_proxy_answers_is_explained(answer: bytes, message: str) -> None:
    with answering(answer) as address, pytest.raises(UnreachableError, match=message):
        connect(Route("there.example:8461", Proxy(address)))


def test_what_follows_the_answer_is_the_tunnels() -> None:
    answer = b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nfirst bytes"
    with answering(answer) as address, connect(Route("there.example:8461", Proxy(address))) as raw:
        assert raw.recv(100) == b"first bytes"


@settings(max_examples=60, deadline=None)
@given(answer=st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"HTTP/1.1 " + tail + b"\r\n\r\n"))
def test_hostile_answers_end_in_a_typed_error_or_a_tunnel(answer: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        status = _answer(ours)
        assert -1 <= status <= 999
        if status != -1:
            assert answer.startswith(b"HTTP/1.")
        assert str(_refused(Proxy("proxy.example:1"), status, "there:1"))


def test_an_analysts_settings_say_the_way_too(tmp_path: Path) -> None:
    (tmp_path / "roots.pem").write_bytes(HospitalAuthority().pem)
    settings_file = tmp_path / "analyst.toml"
    settings_file.write_text(
        'coordinator = "coordinator.example:8461"\nproxy = "proxy.example:3128"\nca_bundle = "roots.pem"\n'
    )
    for address in (None, "other.example:8461"):
        access = resolve_access(address, None, settings_file)
        expected = Route(
            address or "coordinator.example:8461", Proxy("proxy.example:3128"), (tmp_path / "roots.pem").read_bytes()
        )
        assert access.route == expected
    assert resolve_access("there:1", Path("me"), tmp_path / "none.toml").route == Route("there:1")
