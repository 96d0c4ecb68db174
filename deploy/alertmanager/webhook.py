"""Listens for Alertmanager's webhook and prints one line for each alert, to see what would be sent before a channel is set up.

``python webhook.py [HOST:PORT]``, by default 127.0.0.1:9095; port 0 lets the system choose. The first line says where it
listens. It needs the standard library only, keeps nothing, and does not page anybody.
"""

import json
import sys
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

MOST_BYTES = 1 << 20


class NotificationHandler(BaseHTTPRequestHandler):
    """Takes notifications: the path is the receiver's name."""

    timeout = 10.0

    def do_POST(self) -> None:
        """Print a notification's alerts."""
        try:
            length = int(self.headers.get("Content-Length", "0"))
            if not 0 < length <= MOST_BYTES:
                raise ValueError(f"{length} bytes")
            lines = describe(self.path.strip("/"), json.loads(self.rfile.read(length)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.send_error(400, "This is not a notification of Alertmanager", str(error))
            return
        print("\n".join(lines), flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Requests are not logged."""


def describe(receiver: str, notification: Any) -> list[str]:
    """One line for each alert of a notification (Alertmanager's JSON, version 4)."""
    return [
        f"{receiver}: {alert['status']} {alert['labels']['severity']} {alert['labels']['alertname']}: "
        f"{alert['annotations']['summary']} ({alert['annotations']['runbook_url']})"
        for alert in notification["alerts"]
    ]


def main(place: str = "127.0.0.1:9095") -> None:
    """Listen until interrupted."""
    host, _, port = place.rpartition(":")
    with HTTPServer((host, int(port)), NotificationHandler) as server:
        print(f"listening on {host}:{server.server_port}", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
