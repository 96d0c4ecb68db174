"""An address that cannot be listened on is refused with the reason, whichever of a host's addresses it is."""

from __future__ import annotations

import itertools
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from support.commands import veilsum
from veilsum_node.addresses import join_host_port
from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.kit import make_kit
from veilsum_node.listening import check_free
from veilsum_node.process.steady_clock import now

REACHED = {
    "127.0.0.1": ["127.0.0.1"],
    "::1": ["::1"],
    "0.0.0.0": ["127.0.0.1"],  # noqa: S104  bound, and not listened on
    "::": ["127.0.0.1", "::1"],
    "localhost": [str(found[4][0]) for found in socket.getaddrinfo("localhost", 1, type=socket.SOCK_STREAM)],
}
"""Where a caller reaches what listens on a host."""


def listener(host: str, port: int = 0) -> socket.socket:
    made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    made.settimeout(5)
    return made


def answers(host: str, port: int) -> bool:
    """Whether somebody who calls there is connected."""
    with suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


@pytest.mark.parametrize(("taken", "asked"), list(itertools.product(["127.0.0.1", "::1"], REACHED)))
def test_an_address_is_free_if_nobody_answers_where_callers_would_reach_it(taken: str, asked: str) -> None:
    try:
        other = listener(taken)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with other:
        port = other.getsockname()[1]
        if any(answers(host, port) for host in REACHED[asked]):
            with pytest.raises(ConfigurationError, match="Address already in use") as caught:
                check_free("It cannot listen", join_host_port(asked, port))
            assert "Choose a free port" in caught.value.advice
        else:
            check_free("It cannot listen", join_host_port(asked, port))
    check_free("It cannot listen", join_host_port(asked, port))
    check_free("It cannot listen", join_host_port(asked, 0))


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_an_address_of_another_machine_is_called_one(host: str) -> None:
    with pytest.raises(ConfigurationError, match=f"It cannot listen on {host}:0") as caught:
        check_free("It cannot listen", f"{host}:0")
    assert "address of this machine" in caught.value.advice


def test_a_coordinator_does_not_share_its_port_with_what_listens_on_one_of_its_addresses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kit = make_kit(tmp_path / "kit", ("a", "b"), clock=now)
    config = kit.coordinator.directory / "coordinator.toml"
    with listener("127.0.0.1") as other:
        address = f"localhost:{other.getsockname()[1]}"
        config.write_text(f'listen = "{address}"\n')
        code, _, err = veilsum(capsys, "coordinator", "start", "--config", str(config))
    assert (code, f"cannot listen on {address} (Address already in use)" in err) == (2, True), err
