"""Starting a site's console, and making links to it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from veilsum_node.telemetry.logs import start_logging
from veilsum_node.web.application import Console
from veilsum_node.web.people import Links, Person
from veilsum_node.web.serving import serve_with_links
from veilsum_node.web.settings import ConsoleSettings, open_socket
from veilsum_participant.console.pages import SitePages
from veilsum_participant.console.reach import check_reach
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
    start_logging(settings.log)
    listening = open_socket(settings)
    serve_with_links(site_console(path, settings, listening.url), listening, people, say)
