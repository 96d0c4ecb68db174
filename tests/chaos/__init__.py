"""Real studies whose processes are killed at random, judged from outside: ``python -m chaos``, with ``tests`` on the path."""

import veilsum_node.transport.tls13  # noqa: F401 - has to come before gRPC
