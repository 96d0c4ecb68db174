"""The wire format of veilsum: ``federation.proto`` and the code generated from it, with the limits both sides keep."""

from typing import Final

PROTOCOL_VERSIONS: Final = (6,)
"""Versions of the protocol that this software speaks, highest last."""

SOFTWARE: Final = "veilsum 0.3.0.dev0"

CHUNK_BYTES: Final = 256 * 1024
"""Largest piece of a streamed object."""

MAX_MESSAGE_BYTES: Final = 2 * 1024 * 1024
"""Largest gRPC message that either side accepts."""

MAX_OBJECT_BYTES: Final = 2 * 1024 * 1024 * 1024
"""Largest fetched object."""

PACKAGE: Final = "veilsum.v1"
SERVICES: Final = (f"{PACKAGE}.Coordination", f"{PACKAGE}.Studies")
