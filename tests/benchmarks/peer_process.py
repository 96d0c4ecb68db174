"""A process of a peer's rounds, run by the peers' interpreter: ``peer_process.py KIND ROLE ADDRESS VALUES CLIENTS ROUNDS``.

Each client holds a vector of float32 and the server takes the mean, in every round. Nothing of veilsum is loaded here.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


def grpc_server(address: str, values: int, clients: int, rounds: int) -> None:
    """Collect a vector of each client and answer all with the mean: the least that a round can cost."""
    import grpc

    parts: list[Any] = []
    whole, means, ended = threading.Condition(), [b""] * rounds, threading.Semaphore(0)

    def mean(request: bytes, _: Any) -> bytes:
        with whole:
            number = means.index(b"")
            parts.append(np.frombuffer(request, dtype=np.float32))
            if len(parts) == clients:
                means[number] = (np.sum(parts, axis=0) / clients).astype(np.float32).tobytes()
                parts.clear()
                whole.notify_all()
                _mark()
            whole.wait_for(lambda: means[number])
        ended.release()
        return means[number]

    server = grpc.server(ThreadPoolExecutor(clients), options=_OPTIONS)
    handler = grpc.unary_unary_rpc_method_handler(mean)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("peers", {"Mean": handler}),))
    if not server.add_insecure_port(address):
        raise SystemExit("the port is taken")
    server.start()
    for _ in range(clients * rounds):
        ended.acquire()
    server.stop(1).wait()


def grpc_client(address: str, values: int, clients: int, rounds: int) -> None:
    """Send a vector and check the mean."""
    import grpc

    with grpc.insecure_channel(address, options=_OPTIONS) as channel:
        call = channel.unary_unary("/peers/Mean", None, None)
        for _ in range(rounds):
            found = np.frombuffer(call(_vector(values).tobytes(), wait_for_ready=True), dtype=np.float32)
            _check(found, values)


def flower_server(address: str, values: int, clients: int, rounds: int) -> None:
    """FedAvg by the server of one process, which Flower still has."""
    flwr: Any = importlib.import_module("flwr")
    common: Any = importlib.import_module("flwr.common")

    class Told(flwr.server.strategy.FedAvg):  # type: ignore[misc]
        def aggregate_fit(self, *arguments: Any) -> Any:
            found = super().aggregate_fit(*arguments)
            _check(common.parameters_to_ndarrays(found[0])[0], values)
            _mark()
            return found

    strategy = Told(
        fraction_evaluate=0.0,
        min_fit_clients=clients,
        min_available_clients=clients,
        initial_parameters=common.ndarrays_to_parameters([np.zeros(values, dtype=np.float32)]),
    )
    config = flwr.server.ServerConfig(num_rounds=rounds)
    flwr.server.start_server(server_address=address, config=config, strategy=strategy, grpc_max_message_length=2**30)


def flower_client(address: str, values: int, clients: int, rounds: int) -> None:
    """Answer what it is asked for with its vector."""
    flwr: Any = importlib.import_module("flwr")

    class Own(flwr.client.NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: Any, config: Any) -> Any:
            return [_vector(values)], 1, {}

    flwr.client.start_client(server_address=address, client=Own().to_client(), grpc_max_message_length=2**30)


_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _vector(values: int) -> Any:
    return np.random.default_rng(0).standard_normal(values, dtype=np.float32)


def _mark() -> None:
    """Tell that a round is over."""
    with open(os.environ["PEER_MARKS"], "a") as marks:
        marks.write("round\n")


def _check(found: Any, values: int) -> None:
    """All clients hold the same vector, so it is the mean."""
    np.testing.assert_allclose(found, _vector(values), rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    kind, role, where, *numbers = sys.argv[1:]
    globals()[f"{kind}_{role}"](where, *map(int, numbers))
