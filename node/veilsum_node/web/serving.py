"""Running a console until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from veilsum_node.web.application import Console
from veilsum_node.web.settings import Listening


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
