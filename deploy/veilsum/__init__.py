"""The analyst's side: compile a study from a request, plan its cost, submit and follow it, verify and replay its result."""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
