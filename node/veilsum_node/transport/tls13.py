"""TLS 1.3 only, for every gRPC connection of this process.

gRPC's Python API has no setting for the lowest TLS version. Its list of TLS 1.2 suites can be set through the environment,
which gRPC reads once, when it is first imported; TLS 1.3 suites are not affected. The list names one suite that needs a
pre-shared key, and gRPC sets none, so a TLS 1.2 handshake finds nothing to agree on, whatever certificate the server has. The
packages of both roles import this module before gRPC.
"""

import os
import sys

_VARIABLE = "GRPC_SSL_CIPHER_SUITES"
_SUITE = "ECDHE-PSK-CHACHA20-POLY1305"

_IN_TIME = "grpc" not in sys.modules or os.environ.get(_VARIABLE) == _SUITE
os.environ[_VARIABLE] = _SUITE
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC would write its own lines between ours, and in notebooks


def require_tls13() -> None:
    """Refuse to go on in a process in which gRPC was imported before the setting was made.

    Raises:
        RuntimeError: import ``veilsum_coordinator`` or ``veilsum_participant`` before ``grpc``.
    """
    if not _IN_TIME:
        raise RuntimeError("gRPC was imported before veilsum: TLS 1.2 could be spoken. Import veilsum's packages first.")
