"""Renewing parties' certificates as an operator does: the authority signs, files are replaced beside a running process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from veilsum_node.identity import Authority, Role, new_key_and_csr
from veilsum_node.identity.files import write_new
from veilsum_node.identity.kit import TRIAL_HOSTS, Kit
from veilsum_node.identity.provision import Party, install
from veilsum_node.identity.tls import KEY_FILE


def sign_again(
    kit: Kit, party: Party, clock: Callable[[], int], *, days: int = 400, csr: bytes | None = None, at: int | None = None
) -> bytes:
    """A certificate for a party's request, or for another one, as of now or another time; nothing is installed."""
    when = clock() if at is None else at
    authority = Authority.load(kit.authority, lambda: when)
    hosts = TRIAL_HOSTS if party.role is Role.COORDINATOR else ()
    request = csr or party.request.read_bytes()
    return authority.sign(request, role=party.role, name=party.name, hosts=hosts, days=days, replace=csr is not None)


def renew(kit: Kit, party: Party, clock: Callable[[], int], *, days: int = 400) -> bytes:
    """Renew a party's certificate for the same key; returns it."""
    certificate = sign_again(kit, party, clock, days=days)
    install(party.identity, certificate, (kit.authority / "certificate.pem").read_bytes())
    return certificate


def renew_with_new_key(kit: Kit, party: Party, clock: Callable[[], int]) -> bytes:
    """Replace a party's key and certificate, the key first; returns the former key."""
    key, csr = new_key_and_csr(party.name, party.role)
    certificate = sign_again(kit, party, clock, csr=csr)
    former = (party.identity / KEY_FILE).read_bytes()
    replace_key(party.identity, key)
    install(party.identity, certificate, (kit.authority / "certificate.pem").read_bytes())
    return former


def replace_key(identity: Path, key: bytes) -> None:
    """Put another private key in place, in one step."""
    partial = identity / ".key.partial"
    write_new(partial, key, mode=0o600)
    os.replace(partial, identity / KEY_FILE)
