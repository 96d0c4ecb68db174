"""Starting the operator's page, and making links to it."""

import time
from collections.abc import Callable, Sequence

from veilsum_coordinator.console.facts import Sources
from veilsum_coordinator.console.pages import OperatorPages
from veilsum_coordinator.protocol.settings import CoordinatorConfig, load_coordinator_config
from veilsum_node.telemetry.log_floods import start_bounded_logging
from veilsum_node.web.application import Console
from veilsum_node.web.people import Links, Person
from veilsum_node.web.serving import serve_with_links
from veilsum_node.web.settings import ConsoleSettings, open_socket


def operator_links(config: CoordinatorConfig, settings: ConsoleSettings) -> Links:
    """The one-time links of the operator's page: in the state's directory, unless the settings name a file."""
    return Links(settings.links or config.state / "console-links", lambda: int(time.time()))


def operator_console(sources: Sources, url: str) -> Console:
    """The console of the coordinator whose configuration lies at a path."""
    links = operator_links(load_coordinator_config(sources.path), sources.settings)
    return Console("coordinator", __package__, sources.settings, url, OperatorPages(sources).pages(), links)


def run_operator_console(sources: Sources, people: Sequence[Person], say: Callable[[str], None]) -> None:
    """Serve it until it is told to stop.

    Args:
        people: for whom links are made once it listens.
        say: is given each link.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    start_bounded_logging(sources.settings.log)
    listening = open_socket(sources.settings)
    serve_with_links(operator_console(sources, listening.url), listening, people, say)
