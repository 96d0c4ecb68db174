"""The greeting in which a coordinator proves its name, as its caller judges it; no network here.

TLS proves that some coordinator of the federation answers under the host's name, and not which, nor to whom the connection
leads that somebody else keeps. So the answer is signed over a fresh challenge, the caller's name and the coordinator's.
"""

from veilsum_node.errors import HostileInput
from veilsum_node.identity import Credentials, Identity, Label, Role, hello_digest, verify, verify_certificate
from veilsum_proto import PROTOCOL_VERSIONS


def verify_greeting(
    credentials: Credentials, challenge: bytes, *, version: int, certificate: bytes, signature: bytes, at: int
) -> Identity:
    """Who answered a challenge.

    Args:
        credentials: of the caller.
        challenge: 32 random bytes, drawn by the caller for this greeting.
        version: of the protocol, as the coordinator chose it.
        certificate: the coordinator's, DER.
        signature: its signature, see :func:`~veilsum_node.identity.hello_digest`.
        at: the time to judge the certificate by, Unix seconds.

    Raises:
        HostileInput: the version was not offered, or certificate or signature is wrong.
    """
    if version not in PROTOCOL_VERSIONS:
        raise HostileInput("The coordinator chose a protocol version that was not offered.")
    identity = verify_certificate(certificate, credentials.authority, at, Role.COORDINATOR)
    verify(identity.public_key, Label.HELLO, hello_digest(challenge, credentials.identity.name, identity.name), signature)
    return identity
