"""Many participants at one coordinator over real gRPC: how long, how much memory, who waits; ``python -m load``."""

import veilsum_node.transport.tls13  # noqa: F401 - its setting must come before any import of gRPC
