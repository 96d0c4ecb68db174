"""A gRPC channel over mutual TLS to the coordinator, and the greeting in which the coordinator proves its name."""

import grpc

from veilsum_node.errors import StateError
from veilsum_node.identity import Credentials, Identity
from veilsum_node.transport.dialling import as_route
from veilsum_node.transport.greeting import verify_greeting
from veilsum_node.transport.handshake import TlsParty, server_certificate
from veilsum_node.transport.route import Route
from veilsum_node.transport.tls13 import require_tls13
from veilsum_proto import MAX_MESSAGE_BYTES, PROTOCOL_VERSIONS, SOFTWARE
from veilsum_proto import federation_pb2 as pb
from veilsum_proto.services import CoordinationStub

HELLO_SECONDS = 60.0

_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 30_000),  # a minute by default; a slow uplink that is full may take some seconds
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 15_000),
    ("grpc.use_local_subchannel_pool", 1),  # a new session is a new connection, with the certificate that is current
    ("grpc.enable_http_proxy", 0),  # https_proxy and its like are not ours to follow
    ("grpc.address_http_proxy_enabled_addresses", ""),  # nor GRPC_ADDRESS_HTTP_PROXY, which the line before leaves on
]


def open_channel(way: Route | str, credentials: Credentials | TlsParty) -> grpc.Channel:
    """Open a mutual-TLS channel; the server must be certified for the host that the route names.

    Raises:
        UnreachableError: the route has roots beside the federation's, and no server answers with a certificate that holds.
    """
    require_tls13()
    way = as_route(way)
    roots, target, options = credentials.authority_pem, way.address, list(_OPTIONS)
    if way.roots:
        roots = server_certificate(way, credentials.authority_pem)
    if way.proxy is not None:
        # The tunnel is asked for by these arguments and not by gRPC's own "grpc.http_proxy", which the variable no_proxy
        # switches off. The authority is the name that the certificate must bear.
        target = way.proxy.address
        options += [("grpc.http_connect_server", way.address), ("grpc.default_authority", way.address)]
        if way.proxy.authorization:
            options.append(("grpc.http_connect_headers", way.proxy.authorization))
    tls = grpc.ssl_channel_credentials(roots, credentials.key_pem, credentials.certificate_pem)
    return grpc.secure_channel(target, tls, options=options)


def greet(stub: CoordinationStub, credentials: Credentials, challenge: bytes, at: int) -> tuple[pb.HelloReply, Identity]:
    """Negotiate the protocol version and let the coordinator prove its name (:mod:`.greeting`).

    Args:
        credentials: of the caller.
        challenge: 32 fresh random bytes.
        at: the time to judge the coordinator's certificate by, unix seconds.

    Raises:
        StateError: no common version.
        HostileInput: the answer's version was not offered, or its certificate or signature is wrong.
    """
    try:
        request = pb.HelloRequest(versions=PROTOCOL_VERSIONS, software=SOFTWARE, challenge=challenge)
        reply = stub.Hello(request, timeout=HELLO_SECONDS)
    except grpc.RpcError as error:
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.FAILED_PRECONDITION:
            raise StateError(str(error.details()), "Install a version that the coordinator speaks.") from error
        raise
    identity = verify_greeting(
        credentials, challenge, version=reply.version, certificate=reply.certificate, signature=reply.signature, at=at
    )
    return reply, identity
