"""Running a console until it is told to stop."""

import logging
import signal
from collections.abc import Callable, Sequence

import uvicorn

from veilsum_node.web.application import Console
from veilsum_node.web.people import Person
from veilsum_node.web.settings import Listening

LOG = logging.getLogger("veilsum.console")


class _Server(uvicorn.Server):
    """Says when it listens."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        self._ready()


def serve(console: Console, listening: Listening, ready: Callable[[], None] = lambda: None) -> None:
    """Serve it on an open socket until SIGINT or SIGTERM; ``ready`` is called once it listens."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # uvicorn stops by them and raises them once more in the end
    config = uvicorn.Config(
        console.app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        limit_concurrency=64,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=5,
        h11_max_incomplete_event_size=32 * 1024,
        http="h11",
        ws="none",
    )
    _Server(config, ready).run(sockets=[listening.socket])


def serve_with_links(console: Console, listening: Listening, people: Sequence[Person], say: Callable[[str], None]) -> None:
    """The same, with a one-time link for each of some people once it listens, given to ``say``."""

    def ready() -> None:
        LOG.info("the console of %s is at %s", console.title, console.url)
        for who in people:
            say(f"{who.name}: {console.url}/enter?token={console.links.add(who)}")
        if not people:
            say(f"The console is at {console.url}")
            if console.settings.provider is None:
                say("Nobody can log in yet: the command `console-link --as NAME=ROLE` makes a one-time link.")

    serve(console, listening, ready)
