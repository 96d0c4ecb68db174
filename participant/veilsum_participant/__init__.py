"""The participant: data, policy, the site's part of the protocol, the client. It dials out, nothing dials in."""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
