"""Starting a site's console, and making links to it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, SecretStr

from veilsum_node.errors import StateError
from veilsum_node.telemetry.log_floods import start_bounded_logging
from veilsum_node.web.application import Console
from veilsum_node.web.people import Links, Person
from veilsum_node.web.serving import serve_with_links
from veilsum_node.web.settings import ConsoleSettings, open_socket
from veilsum_participant.console.pages import SitePages
from veilsum_participant.settings.config import ParticipantConfig, load_participant_config
from veilsum_privacy.dossier.ledgers import open_source


def site_links(config: ParticipantConfig, settings: ConsoleSettings) -> Links:
    """The one-time links of a site's console: beside its state, unless the settings name a file."""
    place = settings.links or config.state.with_name(f"{config.state.stem}.console-links")
    return Links(place, lambda: int(time.time()))


def site_console(path: Path, settings: ConsoleSettings, url: str, *, clock: Callable[[], float] = time.monotonic) -> Console:
    """The console of the site whose configuration lies at a path; ``clock`` ends sessions."""
    config = load_participant_config(path)
    title = "site"
    if config.state.exists():
        with open_source(config.state) as opened:
            title = f"site {opened.site}"
    return Console(title, __package__, settings, url, SitePages(path).pages(), site_links(config, settings), clock=clock)


def run_site_console(
    path: Path, settings: ConsoleSettings, people: Sequence[Person], say: Callable[[str], None], *, in_reach: bool = False
) -> None:
    """Serve it until it is told to stop.

    Args:
        people: for whom links are made once it listens.
        say: is given each link.
        in_reach: start although records can be read.

    Raises:
        StateError: a record is within reach.
        ConfigurationError: the address cannot be listened on.
    """
    config = load_participant_config(path)
    if not in_reach:
        check_reach(config)
    start_bounded_logging(settings.log)
    listening = open_socket(settings)
    serve_with_links(site_console(path, settings, listening.url), listening, people, say)


HARMLESS = frozenset({"schema_file", "query_file", "misses_file", "ca_file"})
"""Files that a dataset names and that hold no record and no way to one."""


def check_reach(config: ParticipantConfig) -> None:
    """Insist that no file of records, and none with a password to them, can be opened by this process.

    Raises:
        StateError: one can.
    """
    for name, dataset in config.datasets.items():
        for place in _places(dataset):
            if place is None:
                said = f"The configuration holds the password of dataset {name}'s database, and this user reads it."
                raise StateError(said, "Keep it in a file of its own (dsn_file) that the console's user may not read.")
            if _readable(place):
                raise StateError(
                    f"This user may read {place}, of dataset {name}: the console keeps no record within its reach.",
                    "Run it as a user of its own (docs/console.md); for a trial with made-up records say --records-in-reach.",
                )


def _places(value: Any, key: str = "") -> Iterator[Path | None]:
    """Every file that a part of the configuration names; None for a secret that stands in it."""
    if isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from _places(getattr(value, name), name)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _places(item, key)
    elif isinstance(value, SecretStr):
        if _has_password(value.get_secret_value()):
            yield None
    elif isinstance(value, Path) and key not in HARMLESS:
        yield value


def _has_password(url: str) -> bool:
    try:
        return urlsplit(url).password is not None or "password" in url
    except ValueError:
        return True


def _readable(place: Path) -> bool:
    """Whether the file, or anything in the folder or under the pattern, can be opened."""
    found = map(Path, glob(str(place), recursive=True)) if has_magic(str(place)) else iter([place])
    for path in found:
        if path.is_dir():
            if any(os.access(item, os.R_OK) for item in path.rglob("*") if not item.is_dir()):
                return True
        elif os.access(path, os.R_OK):
            return True
    return False
