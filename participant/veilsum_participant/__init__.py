"""The participant: data, policy, the site's part of the protocol, the client. It dials out, nothing dials in."""

from veilsum_proto import transport as _transport  # first: it must come before gRPC

__all__: list[str] = []

del _transport
