"""Asks Prometheus of a local deployment what it has scraped."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable

from veilsum_node.errors import StateError

SECONDS = 5.0
POLL_SECONDS = 0.5


def instant(address: str, query: str, label: str) -> dict[str, float]:
    """The samples of an instant query, by one of their labels; empty while Prometheus has none or does not answer."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            found = json.load(answer)["data"]["result"]
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return {}
    return {item["metric"].get(label, ""): float(item["value"][1]) for item in found}


def wait_for(what: str, read: Callable[[], bool], seconds: float, check: Callable[[], None]) -> None:
    """Wait until ``read`` returns true.

    Args:
        check: called meanwhile; raises to give up.

    Raises:
        StateError: time is up.
    """
    deadline = time.monotonic() + seconds
    while not read():
        check()
        if time.monotonic() > deadline:
            raise StateError(f"{what} is not there after {seconds:g} s.", "See the logs of the services.")
        time.sleep(POLL_SECONDS)
