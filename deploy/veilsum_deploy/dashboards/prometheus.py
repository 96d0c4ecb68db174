"""A reader of Prometheus' HTTP API: what the dashboards need of it."""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from veilsum_node.errors import ConfigurationError, HostileInput, StateError

SECONDS = 10.0
MOST_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Series:
    """One series of an answer.

    Attributes:
        labels: without the metric's name.
        points: (Unix seconds, value); values may be NaN or infinite.
    """

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def last(self) -> float:
        """The last value that is a number; NaN if none is."""
        return next((value for _, value in reversed(self.points) if not math.isnan(value)), math.nan)


class Prometheus:
    """Asks one Prometheus.

    Args:
        url: for example http://localhost:9090.

    Raises:
        ConfigurationError: it is no http or https URL.
    """

    def __init__(self, url: str) -> None:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ConfigurationError(f"{url!r} is no URL.", "Give Prometheus' address, for example http://localhost:9090.")
        self.url = url.rstrip("/")

    def instant(self, expr: str, at: float) -> list[Series]:
        """The series that an expression has at one time.

        Raises:
            HostileInput: Prometheus refuses the expression, or the answer is no Prometheus'.
            StateError: it cannot be reached.
        """
        return _series(self._get("query", {"query": expr, "time": f"{at:.3f}"}), "value")

    def over(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """The series that an expression has between two times, every ``step`` seconds.

        Raises:
            HostileInput, StateError: as :meth:`instant`.
        """
        asked = {"query": expr, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:g}"}
        return _series(self._get("query_range", asked), "values")

    def label_values(self, selector: str, label: str, start: float, end: float) -> list[str]:
        """The values of a label in a selector's series, sorted.

        Raises:
            HostileInput, StateError: as :meth:`instant`.
        """
        asked = {"match[]": selector, "start": f"{start:.3f}", "end": f"{end:.3f}"}
        found = self._get(f"label/{label}/values", asked)
        if not isinstance(found, list):
            raise HostileInput(f"{self.url} answers otherwise than Prometheus does.")
        return sorted(str(value) for value in found)

    def ready(self) -> bool:
        """Whether it takes queries."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=SECONDS):  # noqa: S310  checked in __init__
                return True
        except OSError:
            return False

    def _get(self, path: str, asked: Mapping[str, str]) -> Any:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(asked)}"
        try:
            with urllib.request.urlopen(url, timeout=SECONDS) as reply:  # noqa: S310  checked in __init__
                body = reply.read(MOST_BYTES)
        except urllib.error.HTTPError as error:
            body = error.read(MOST_BYTES)
        except OSError as error:
            raise StateError(f"Prometheus at {self.url} does not answer ({error}).", "Start it, or name another.") from error
        try:
            content = json.loads(body)
            if content["status"] == "success":
                return content["data"]
            fault = f"{content['errorType']}: {content['error']}"
        except (ValueError, KeyError, TypeError) as error:
            raise HostileInput(f"{self.url} answers otherwise than Prometheus does.", "Is it a Prometheus?") from error
        raise HostileInput(f"Prometheus refuses {asked.get('query', path)} ({fault}).")


def _series(data: Any, key: str) -> list[Series]:
    if data["resultType"] == "scalar":
        return [Series({}, _points([data["result"]]))]
    found = []
    for item in data["result"]:
        labels = {name: str(value) for name, value in item["metric"].items() if name != "__name__"}
        found.append(Series(labels, _points([item[key]] if key == "value" else item[key])))
    return found


def _points(pairs: Sequence[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    return tuple((float(at), float(value)) for at, value in pairs)


def now() -> float:
    """Unix seconds."""
    return time.time()
