"""Two processes that race for the last of a budget, each with a ledger of its own on one database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from support.forked import FORKS
from support.ledgers import make_key, make_reservation, open_ledger
from support.network import PATIENCE
from veilsum_node.errors import Refusal
from veilsum_node.identity import Credentials, Role, SigningKey, load_authority_certificate, verify_certificate
from veilsum_privacy.ledger import Ledger

Papers = tuple[int, bytes, bytes]
"""Credentials that can be sent to another process: the key's number, the certificate, the authority's certificate in PEM."""


def papers_of(credentials: Credentials) -> Papers:
    """Write credentials down."""
    secret = credentials.signing_key._key.private_numbers().private_value
    return secret, credentials.identity.certificate, credentials.authority_pem


def read_papers(papers: Papers) -> Credentials:
    """The credentials that were written down."""
    secret, certificate, authority = papers
    ca = load_authority_certificate(authority)
    at = int(ca.not_valid_after_utc.timestamp()) - 1
    identity = verify_certificate(certificate, ca, at, Role.PARTICIPANT)
    return Credentials(identity, SigningKey(make_key(secret)), ca, b"", certificate, authority)


class Racers:
    """Two worker processes that wait at the same line; :meth:`race` starts them off together, as often as wanted."""

    def __init__(self, place: str, credentials: Credentials) -> None:
        barrier = FORKS.Barrier(2)
        self._pipes, self._processes = [], []
        for lane in (1, 2):
            ours, theirs = FORKS.Pipe()
            process = FORKS.Process(target=_run, args=(place, papers_of(credentials), lane, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        for pipe in self._pipes:
            assert self._answer(pipe) == "ready"

    def race(self, population: str, multiplier: float) -> list[str]:
        """Let both try to pay for one release. Returns what each says: paid, or refused."""
        for pipe in self._pipes:
            pipe.send((population, multiplier))
        return [self._answer(pipe) for pipe in self._pipes]

    def stop(self) -> None:
        """End both."""
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.close()
            process.join(PATIENCE)
            if process.is_alive():
                process.kill()

    @staticmethod
    def _answer(pipe: Any) -> str:
        assert pipe.poll(PATIENCE), "a racer says nothing"
        return str(pipe.recv())


@contextmanager
def racers(place: str, credentials: Credentials) -> Iterator[Racers]:
    """Both, for the length of a block."""
    pair = Racers(place, credentials)
    try:
        yield pair
    finally:
        pair.stop()


def _run(place: str, papers: Papers, lane: int, barrier: Any, pipe: Any) -> None:
    ledger = open_ledger(place, credentials=read_papers(papers))
    pipe.send("ready")
    number = 0
    while True:
        try:
            population, multiplier = pipe.recv()
        except EOFError:
            return
        number += 1
        barrier.wait(PATIENCE)
        pipe.send(_pay(ledger, lane, number, population, multiplier))


def _pay(ledger: Ledger, lane: int, number: int, population: str, multiplier: float) -> str:
    release = make_reservation(number, study=bytes([lane]) * 32, population=population, multiplier=multiplier)
    try:
        with ledger.database.transaction() as connection:
            ledger.reserve(connection, release)
        with ledger.database.transaction() as connection:
            ledger.charge(connection, release.context)
    except Refusal:
        return "refused"
    return "paid"
