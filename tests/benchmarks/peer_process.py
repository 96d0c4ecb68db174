"""One process of a peer's round, run by the peers' own interpreter: ``peer_process.py KIND ROLE ADDRESS VALUES CLIENTS``.

Each client holds a vector of float32 and the server takes the mean, once. Nothing of veilsum is loaded here.
"""

from __future__ import annotations

import importlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


def grpc_server(address: str, values: int, clients: int) -> None:
    """Collect a vector of each client and answer all with the mean: the least that a round can cost."""
    import grpc

    parts: list[Any] = []
    whole, done, ended = threading.Condition(), [b""], threading.Semaphore(0)

    def mean(request: bytes, _: Any) -> bytes:
        with whole:
            parts.append(np.frombuffer(request, dtype=np.float32))
            if len(parts) == clients:
                done[0] = (np.sum(parts, axis=0) / clients).astype(np.float32).tobytes()
                whole.notify_all()
            whole.wait_for(lambda: done[0])
        ended.release()
        return done[0]

    server = grpc.server(ThreadPoolExecutor(clients), options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(mean)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peers", {"Mean": handler}),))
    if not server.add_insecure_port(address):
        raise SystemExit("the port is taken")
    server.start()
    for _ in range(clients):
        ended.acquire()
    server.stop(1).wait()


def grpc_client(address: str, values: int, clients: int) -> None:
    """Send a vector and check the mean."""
    import grpc

    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary("/peers/Mean", None, None)
        found = np.frombuffer(call(_vector(values).tobytes(), wait_for_ready=True), dtype=np.float32)
    _check(found, values)


def flower_server(address: str, values: int, clients: int) -> None:
    """FedAvg of one round."""
    flwr: Any = importlib.import_module("flwr")
    common: Any = importlib.import_module("flwr.common")

    class Once(flwr.server.strategy.FedAvg):  # type: ignore[misc]
        def aggregate_fit(self, *arguments: Any) -> Any:
            found = super().aggregate_fit(*arguments)
            _check(common.parameters_to_ndarrays(found[0])[0], values)
            return found

    strategy = Once(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=common.ndarrays_to_parameters([np.zeros(values, dtype=np.float32)]),
    )
    config = flwr.server.ServerConfig(num_rounds=1)
    flwr.server.start_server(server_address=address, config=config, strategy=strategy, grpc_max_message_length=2**30)


def flower_client(address: str, values: int, clients: int) -> None:
    """Answer what it is asked for with its vector."""
    flwr: Any = importlib.import_module("flwr")

    class Own(flwr.client.NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: Any, config: Any) -> Any:
            return [_vector(values)], 1, {}

    flwr.client.start_client(server_address=address, client=Own().to_client(), grpc_max_message_length=2**30)


_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _vector(values: int) -> Any:
    return np.random.default_rng(0).standard_normal(values, dtype=np.float32)


def _check(found: Any, values: int) -> None:
    """All clients hold the same vector, so it is the mean."""
    np.testing.assert_allclose(found, _vector(values), rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    kind, role, where, size, number = sys.argv[1:]
    globals()[f"{kind}_{role}"](where, int(size), int(number))
