"""The coordinator: rounds, methods, journal, the gRPC service. It adds ciphertexts and sees released sums only."""

from veilsum_proto import transport as _transport  # first: it must come before gRPC

__all__: list[str] = []

del _transport
