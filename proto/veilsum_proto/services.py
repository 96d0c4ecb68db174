"""The services of ``federation.proto`` for gRPC: what calls them, what answers, and how a server takes an answerer.

They are made of the descriptors that ``federation_pb2`` holds, as the code would be that gRPC's compiler generates; type
checkers read them in the stubs generated as ``federation_pb2_grpc.pyi``, a module that exists for them alone.
"""

from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message_factory import GetMessageClass

from veilsum_proto import federation_pb2

__all__ = [
    "CoordinationServicer",
    "CoordinationStub",
    "StudiesServicer",
    "StudiesStub",
    "add_CoordinationServicer_to_server",
    "add_StudiesServicer_to_server",
]


def _service(name: str) -> tuple[type, type, Any]:
    """The classes of a service's callers and answerers, and the function that gives an answerer to a server."""
    service = federation_pb2.DESCRIPTOR.services_by_name[name]
    sides = ("unary", "stream")
    kinds = {item.name: f"{sides[item.client_streaming]}_{sides[item.server_streaming]}" for item in service.methods}

    def call(stub: Any, channel: grpc.Channel) -> None:
        for method in service.methods:
            called = getattr(channel, kinds[method.name])(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
                _registered_method=True,
            )
            setattr(stub, method.name, called)

    def not_there(servicer: Any, request: Any, context: grpc.ServicerContext) -> None:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not implemented!")

    def add(servicer: Any, server: grpc.Server) -> None:
        handlers = {
            method.name: getattr(grpc, f"{kinds[method.name]}_rpc_method_handler")(
                getattr(servicer, method.name),
                request_deserializer=GetMessageClass(method.input_type).FromString,
                response_serializer=GetMessageClass(method.output_type).SerializeToString,
            )
            for method in service.methods
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        server.add_registered_method_handlers(service.full_name, handlers)

    return type(f"{name}Stub", (), {"__init__": call}), type(f"{name}Servicer", (), dict.fromkeys(kinds, not_there)), add


if TYPE_CHECKING:
    from veilsum_proto.federation_pb2_grpc import (
        CoordinationServicer,
        CoordinationStub,
        StudiesServicer,
        StudiesStub,
        add_CoordinationServicer_to_server,
        add_StudiesServicer_to_server,
    )
else:
    for _name in ("Coordination", "Studies"):
        globals().update(
            zip((f"{_name}Stub", f"{_name}Servicer", f"add_{_name}Servicer_to_server"), _service(_name), strict=True)
        )
