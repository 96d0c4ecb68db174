"""The site's own store and ledger, beside the participant that may be running on them: for commands and the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from veilsum_node.database_places import open_readonly
from veilsum_node.errors import StateError
from veilsum_node.identity import Role, load_credentials
from veilsum_node.process.steady_clock import now
from veilsum_node.randomness import SYSTEM_RANDOM
from veilsum_participant.session.client import open_site
from veilsum_participant.settings.config import ParticipantConfig
from veilsum_participant.settings.directory import with_pins
from veilsum_participant.site import Site
from veilsum_privacy.ledger import Ledger, LedgerReader


@contextmanager
def open_to_read(settings: ParticipantConfig) -> Iterator[Site]:
    """Open them to look at what waits: nothing is written, and no writer waits for it.

    Raises:
        StateError: as of :func:`open_beside`.
    """
    from veilsum_participant.data.local import LocalDatasets  # all readers, which a participant's guard does without

    _check_started(settings)
    credentials = load_credentials(settings.identity, now(), Role.PARTICIPANT)
    config, directory = with_pins(settings, credentials, now())
    with open_readonly(config.state) as database:
        ledger = cast(Ledger, LedgerReader(database))  # what shows a study only reads it
        yield Site(
            config,
            credentials,
            database,
            ledger,
            now,
            SYSTEM_RANDOM,
            directory=directory,
            reads_only=True,
            reading=LocalDatasets,
        )


@contextmanager
def open_beside(settings: ParticipantConfig, *, same_key: bool = True) -> Iterator[Site]:
    """Open them.

    Raises:
        StateError: the participant has never started; or as :func:`~veilsum_participant.session.client.open_site`.
    """
    _check_started(settings)
    site = open_site(settings, same_key=same_key)
    try:
        yield site
    finally:
        site.database.close()


def _check_started(settings: ParticipantConfig) -> None:
    if not settings.state.exists():
        raise StateError(f"There is no store {settings.state}.", "It is made when the participant starts for the first time.")
