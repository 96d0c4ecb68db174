"""Clients with a vector of their own in every round; the server takes their mean, as FedAvg does or by SecAgg+.

Vectors differ, for Flower sends an object that the other side has seen before only once.

Run by the peers' own interpreter in :mod:`benchmarks.peers`; nothing of veilsum is loaded here.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import numpy as np

flwr: Any = importlib.import_module("flwr.client")
common: Any = importlib.import_module("flwr.common")
serving: Any = importlib.import_module("flwr.server")
workflows: Any = importlib.import_module("flwr.server.workflow")
secaggplus_mod: Any = importlib.import_module("flwr.client.mod").secaggplus_mod

ERROR = {"fedavg": 1e-6, "secagg": 1e-4}
"""What a mean may be off: SecAgg+ rounds values to 2^22 steps between -8 and 8."""


def _vector(values: int, number: int, node: int) -> Any:
    return np.random.default_rng([number, node]).standard_normal(values, dtype=np.float32)


class Told(serving.strategy.FedAvg):  # type: ignore[misc]
    """FedAvg that tells when a round is over."""

    def __init__(self, values: int, error: float, **options: Any) -> None:
        super().__init__(**options)
        self._values, self._error = values, error

    def aggregate_fit(self, number: int, results: Any, failures: Any) -> Any:
        """The mean, compared with the exact one."""
        found = super().aggregate_fit(number, results, failures)
        mean = common.parameters_to_ndarrays(found[0])[0]
        expected = np.mean([_vector(self._values, number, int(client.cid)) for client, _ in results], axis=0)
        error = float(np.abs(mean - expected).max())
        _tell("round" if error <= self._error else f"the mean is off by {error}")
        return found


def _tell(what: str) -> None:
    with open(os.environ["PEER_MARKS"], "a") as marks:
        marks.write(f"{what}\n")


server = serving.ServerApp()


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    """All rounds."""
    given = context.run_config
    strategy = Told(
        given["values"],
        ERROR[given["kind"]],
        fraction_evaluate=0.0,
        min_fit_clients=given["clients"],
        min_available_clients=given["clients"],
        on_fit_config_fn=lambda number: {"round": number},
        initial_parameters=common.ndarrays_to_parameters([np.zeros(given["values"], dtype=np.float32)]),
    )
    config = serving.ServerConfig(num_rounds=given["rounds"])
    fit = {"fit_workflow": workflows.SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2, max_weight=1.0)}
    while len(list(grid.get_node_ids())) < given["clients"]:
        time.sleep(0.2)
    _tell("round")  # what is counted begins here
    workflow = workflows.DefaultWorkflow(**(fit if given["kind"] == "secagg" else {}))
    workflow(grid, serving.LegacyContext(context=context, config=config, strategy=strategy))


class Own(flwr.NumPyClient):  # type: ignore[misc]
    """Answers with its vector."""

    def __init__(self, values: int, node: int) -> None:
        self._values, self._node = values, node

    def fit(self, parameters: Any, config: Any) -> Any:
        """The vector, of one record."""
        return [_vector(self._values, int(config["round"]), self._node)], 1, {}


def _started(context: Any) -> Any:
    return Own(context.run_config["values"], context.node_id).to_client()


def _mod(message: Any, context: Any, call: Any) -> Any:
    return secaggplus_mod(message, context, call) if context.run_config["kind"] == "secagg" else call(message, context)


client = flwr.ClientApp(client_fn=_started, mods=[_mod])
