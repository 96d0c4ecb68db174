"""Loaded first: the transport's setting must come before any test's import of gRPC."""

from hypothesis import settings

import veilsum_node.transport.tls13  # noqa: F401

settings.register_profile("untimed", deadline=None)  # other load on the machine fails no test
settings.load_profile("untimed")
