"""Addresses: one rule for everything that is dialled or listened on, IPv6 among them."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from support.certificates import now
from veilsum.access import AnalystConfig
from veilsum_coordinator.protocol.settings import CoordinatorConfig
from veilsum_node.addresses import join_host_port, peer_host, split_host_port
from veilsum_node.errors import Misuse
from veilsum_node.identity import Authority, Role, new_key_and_csr
from veilsum_node.telemetry.endpoint import MetricsSettings
from veilsum_node.telemetry.health import ask_ready
from veilsum_node.transport.connection import split_address
from veilsum_node.transport.route import Route
from veilsum_node.transport.route_settings import RouteSettings
from veilsum_participant.settings.config import ParticipantConfig

GOOD = [
    ("coordinator.example:8461", "coordinator.example", 8461),
    ("127.0.0.1:1", "127.0.0.1", 1),
    ("[::1]:8461", "::1", 8461),
    ("[::]:65535", "::", 65535),
    ("[2001:db8:0:0:0:0:0:7]:8461", "2001:db8:0:0:0:0:0:7", 8461),
    ("[2001:DB8::7]:8461", "2001:DB8::7", 8461),
    ("[::ffff:192.0.2.7]:8461", "::ffff:192.0.2.7", 8461),
    ("[fe80::1%eth0]:8461", "fe80::1%eth0", 8461),
]
BAD = [
    "", ":", ":8461", "host", "host:", "host:x", "host:65536", "host:-1", "host:1٢", "ho st:1", "::1:8461", "2001:db8::7:8461",
    "[::1]", "[::1]8461", "[::1", "::1]:8461", "[]:8461", "[host]:8461", "[127.0.0.1]:8461", "[[::1]]:8461", "[::1]:8461:8461",
    "[::12345]:8461", "http://host:8461", "user@host:8461", "host/:8461",
]  # fmt: skip

FIELDS: dict[str, Callable[[str], object]] = {
    "participant": lambda value: ParticipantConfig(coordinator=value, datasets={"records": {"path": "records.csv"}}),
    "analyst": lambda value: AnalystConfig(coordinator=value),
    "proxy": lambda value: RouteSettings(proxy=value),
    "coordinator": lambda value: CoordinatorConfig(listen=value),
    "metrics": lambda value: MetricsSettings(listen=value),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("address", "host", "port"), GOOD)
def test_every_field_takes_every_form(field: str, address: str, host: str, port: int) -> None:
    FIELDS[field](address)
    assert split_host_port(address) == split_address(address) == (host, port)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("address", BAD)
def test_no_field_takes_what_is_no_address(field: str, address: str) -> None:
    with pytest.raises(ValidationError):
        FIELDS[field](address)
    with pytest.raises(Misuse):
        split_address(address)


@given(
    st.one_of(
        st.ip_addresses(v=4).map(str),
        st.ip_addresses(v=6).map(str),
        st.from_regex(r"[a-z]([a-z0-9.-]*[a-z0-9])?", fullmatch=True),
    ),
    st.integers(1, 65535),
)
def test_an_address_is_read_as_it_is_written(host: str, port: int) -> None:
    assert split_host_port(join_host_port(host, port)) == (host, port)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_refusal(text: str) -> None:
    try:
        host, port = split_host_port(text)
    except ValueError:
        return
    assert host
    assert 0 < port < 65536


@pytest.mark.parametrize("address", ["::1", "[::1]", "2001:db8::7", "[2001:db8::7]"])
def test_a_certificate_names_an_ipv6_address_with_or_without_brackets(tmp_path: Path, address: str) -> None:
    authority = Authority.create(tmp_path / "authority", "trial", now)
    _, csr = new_key_and_csr("coordinator", Role.COORDINATOR)
    pem = authority.sign(csr, role=Role.COORDINATOR, name="coordinator", hosts=[address])
    named = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert named.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address(address.strip("[]"))]


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:192.0.2.7:1", "192.0.2.7"), ("ipv6:%5B2001:db8::7%5D:1", "2001:db8::7"), ("ipv6:[::1]:1", "::1"), ("unix:/x", "")],
)
def test_a_peer_is_named_by_its_host(peer: str, host: str) -> None:
    assert peer_host(peer) == host


@pytest.mark.parametrize(
    ("listen", "asked"),
    [
        ("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1"), ("[0:0:0:0:0:0:0:0]:1", "[::1]:1"), ("[::0]:1", "[::1]:1"),
        ("localhost:1", "localhost:1"), ("[::1]:1", "[::1]:1"),
    ],
)  # fmt: skip
def test_every_interface_is_asked_on_loopback(listen: str, asked: str) -> None:
    assert ask_ready(MetricsSettings(listen=listen)).endpoint == f"http://{asked}/readyz"


def test_a_proxy_of_the_environment_may_be_an_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://[2001:db8::3]:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    way: Route = RouteSettings(proxy="environment").route_to("[2001:db8::7]:8461")
    assert way.proxy is not None
    assert way.proxy.address == "[2001:db8::3]:3128"
