"""A site's ledger and store as the participant's own checks see them, opened to read: for an operator who asks beforehand.

Where the participant has never started there is neither; then its configured first budgets stand in, with nothing spent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Connection

from veilsum_node.database import open_database, open_readonly
from veilsum_node.errors import StateError
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.protocol.budgets import Books
from veilsum_privacy.ledger import Budget, Headroom, LedgerReader, Mechanism
from veilsum_privacy.ledger.totals import Follower, Sum


@contextmanager
def open_books(config: ParticipantConfig) -> Iterator[tuple[Connection, Books]]:
    """A connection to the site's store, and its ledger.

    Raises:
        StateError, Unavailable, Damage: the file cannot be read.
    """
    fresh = not config.state.exists()
    with open_database(":memory:") if fresh else open_readonly(config.state) as database, database.reading() as connection:
        yield connection, _FirstBudgets(config) if fresh else _ReadBooks(database)


class _ReadBooks(LedgerReader):
    """A ledger opened to read, asked like the site's own."""

    def headroom(self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None) -> Headroom:
        with self._reading(connection) as reader:
            standing = Follower().standing(reader, population)
        if standing.budget is None:
            raise StateError(f"The population {population} has no budget.", "Set one first.")
        budget = standing.budget
        return Headroom(budget, standing.held.epsilon(budget), standing.held.epsilon(budget, mechanisms))


class _FirstBudgets:
    """What the ledger will begin with: the configured budgets, and nothing spent."""

    def __init__(self, config: ParticipantConfig) -> None:
        self._config = config

    def budget(self, population: str, connection: Connection | None = None) -> Budget | None:
        configured = self._config.budgets.get(population)
        if configured is None:
            return None
        return Budget(None if configured.epsilon == "unlimited" else configured.epsilon, configured.delta, "gaussian")

    def headroom(self, population: str, mechanisms: Mapping[Mechanism, int], connection: Connection | None = None) -> Headroom:
        budget = self.budget(population)
        if budget is None:
            raise StateError(f"The population {population} has no budget.", "Set one first.")
        return Headroom(budget, 0.0, Sum().epsilon(budget, mechanisms))
