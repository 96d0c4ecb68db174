"""Loaded first: the transport's setting must come before any test's import of gRPC."""

import veilsum_proto.transport  # noqa: F401
