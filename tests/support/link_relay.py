"""A TCP relay as a script, for a network namespace: listens on its loopback, prints the port, passes everything on.

Arguments: host and port to pass it to.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def serve(listener: socket.socket, target: tuple[str, int]) -> None:
    while True:
        client, _ = listener.accept()
        try:
            server = socket.create_connection(target, timeout=60)
        except OSError:
            client.close()
            continue
        server.settimeout(None)
        threading.Thread(target=pump, args=(client, server), daemon=True).start()
        threading.Thread(target=pump, args=(server, client), daemon=True).start()


if __name__ == "__main__":
    opened = socket.create_server(("127.0.0.1", 0))
    print(opened.getsockname()[1], flush=True)
    serve(opened, (sys.argv[1], int(sys.argv[2])))
