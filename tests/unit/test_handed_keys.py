"""A private key that systemd or Kubernetes hands to a service: root's file, readable by the service's group alone."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from veilsum_node.errors import ConfigurationError
from veilsum_node.identity.files import open_to_others, read_private

SERVICE = 65534


def read_as_service(path: Path) -> str:
    """What a process of the service's user reads, or the refusal; a fork, since that user may reach no interpreter here."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        try:
            os.setgroups([])
            os.setgid(SERVICE)
            os.setuid(SERVICE)
            os.write(sending, read_private(path, "private key"))
        except ConfigurationError as error:
            os.write(sending, error.message.encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answer:
        found = answer.read().decode()
    os.waitpid(child, 0)
    return found


def status(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, SERVICE, 4, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "process", "expected"),
    [
        (0o600, 10001, 10001, False),
        (0o400, 10001, 10001, False),
        (0o440, 0, 10001, False),  # a Secret's file under fsGroup, a credential with an access list
        (0o640, 0, 10001, False),
        (0o440, 10001, 10001, True),  # who owns it may have opened it by mistake
        (0o440, 10002, 10001, True),
        (0o440, 0, 0, True),  # root's own process needs no group
        (0o460, 0, 10001, True),
        (0o444, 0, 10001, True),
        (0o441, 0, 10001, True),
    ],
)
def test_only_root_hands_a_file_to_a_group(
    monkeypatch: pytest.MonkeyPatch, mode: int, owner: int, process: int, expected: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: process)
    assert open_to_others(status(mode, owner)) is expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hand a file to another user's process")
@pytest.mark.parametrize(("mode", "readable"), [(0o440, True), (0o444, False), (0o460, False)])
def test_a_service_reads_the_key_that_root_handed_to_its_group(mode: int, readable: bool) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        place = Path(folder)
        place.chmod(0o711)
        key = place / "key.pem"
        key.write_text("key")
        os.chown(key, 0, SERVICE)
        key.chmod(mode)
        assert read_as_service(key) == ("key" if readable else f"The private key {key} can be read by others.")
