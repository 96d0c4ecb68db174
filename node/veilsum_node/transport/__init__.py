"""The way to a coordinator: routes and proxies, TLS 1.3 with both certificates, the greeting that proves its name."""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
