"""The ``veilsum`` command: provisioning, running, operators' and analysts' commands, demo, simulation."""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
