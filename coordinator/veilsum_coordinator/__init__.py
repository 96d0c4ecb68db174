"""The coordinator: rounds, methods, journal, the gRPC service. It adds encrypted contributions and sees released sums only."""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
