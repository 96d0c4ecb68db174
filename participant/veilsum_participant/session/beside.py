"""The site's own store and ledger, beside the participant that may be running on them: for commands and the console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from veilsum_node.errors import StateError
from veilsum_participant.config import ParticipantConfig
from veilsum_participant.session.client import open_site
from veilsum_participant.site import Site


@contextmanager
def open_beside(settings: ParticipantConfig, *, same_key: bool = True) -> Iterator[Site]:
    """Open them.

    Raises:
        StateError: the participant has never started; or as :func:`~veilsum_participant.session.client.open_site`.
    """
    if not settings.state.exists():
        raise StateError(f"There is no store {settings.state}.", "It is made when the participant starts for the first time.")
    site = open_site(settings, same_key=same_key)
    try:
        yield site
    finally:
        site.database.close()
