"""The ``veilsum`` command: provisioning, running, operators' and analysts' commands, demo, simulation."""

from veilsum_proto import transport as _transport  # first: it must come before gRPC

__all__: list[str] = []

del _transport
