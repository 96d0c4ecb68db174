"""The front of a site: the network and nothing else. It holds no record, no ledger and no key but that for TLS.

It answers what the guard asks (:mod:`veilsum_participant.boundary.front`), in the guard's process or in one of its own.
"""

from veilsum_node.transport import tls13 as _tls13  # first: it must come before gRPC

__all__: list[str] = []

del _tls13
